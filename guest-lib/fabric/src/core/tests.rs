//! Endpoints on a network of the test's own, whose events come in the order of each pair.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::header::{Header, Kind};
use super::*;

#[path = "remote_tests.rs"]
mod remote;

/// Memory of a test.
#[derive(Clone, Debug)]
struct Bytes(Rc<RefCell<Vec<u8>>>, usize, usize);

impl Bytes {
    fn new(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self(Rc::new(RefCell::new(bytes)), 0, length)
    }

    fn get(&self) -> Vec<u8> {
        self.0.borrow()[self.1..][..self.2].to_vec()
    }
}

impl Memory for Bytes {
    fn len(&self) -> usize {
        self.2
    }

    fn address(&self) -> usize {
        self.1
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        let room = self.2.saturating_sub(offset).min(data.len());
        if room == 0 {
            return;
        }
        self.0.borrow_mut()[self.1 + offset..][..room].copy_from_slice(&data[..room]);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow()[self.1 + offset..][..into.len()]);
    }

    fn part(&self, offset: usize, length: usize) -> Self {
        assert!(offset + length <= self.2);
        Self(Rc::clone(&self.0), self.1 + offset, length)
    }

    fn owned(length: usize) -> Self {
        Self::new(vec![0; length])
    }
}

/// The network that all endpoints of a test share.
#[derive(Debug, Default)]
struct Network {
    events: HashMap<Address, VecDeque<Event>>,
    slots: HashMap<(Address, Place), Vec<u8>>,
    memory: HashMap<u64, Bytes>,
    dead: Vec<Address>,
    next: u64,
    /// Rails between each two, and the commands on each.
    rails: usize,
    used: HashMap<usize, usize>,
    /// Commands until the device has no room, once.
    until_busy: usize,
}

impl Network {
    fn is_busy(&mut self) -> bool {
        self.until_busy = self.until_busy.checked_sub(1).unwrap_or(5);
        self.until_busy == 0
    }

    /// Sends a command along a way. Returns its target.
    fn take(&mut self, way: Way) -> Address {
        *self.used.entry(way.rail % self.rails.max(1)).or_default() += 1;
        way.peer
    }

    fn tell(&mut self, to: Address, event: Event) {
        self.events.entry(to).or_default().push_back(event);
    }
}

#[derive(Clone, Debug)]
struct Fake(Address, Rc<RefCell<Network>>);

impl Transport for Fake {
    type Memory = Bytes;

    fn address(&self) -> Address {
        self.0
    }

    fn provide(&mut self, _: u16) -> Result<(), Failure> {
        Ok(())
    }

    fn read(&self, from: Place, into: &mut [u8]) {
        let network = self.1.borrow();
        into.copy_from_slice(&network.slots[&(self.0, from)][..into.len()]);
    }

    fn rails(&mut self, _: Address) -> usize {
        self.1.borrow().rails.max(1)
    }

    fn fill(&mut self, way: Way, to: Place, data: [&[u8]; 2], token: u32) -> Result<(), Busy> {
        let mut network = self.1.borrow_mut();
        if network.is_busy() {
            return Err(Busy);
        }
        let peer = network.take(way);
        let good = !network.dead.contains(&peer);
        if good {
            let mut slot = data.concat();
            assert!(slot.len() <= SLOT);
            slot.resize(SLOT, 0xee);
            let old = network.slots.insert((peer, to), slot);
            assert_eq!(old, None, "a slot was overwritten");
            network.tell(peer, Event::Filled(to));
        }
        network.tell(self.0, Event::Ended(token, good));
        Ok(())
    }

    fn signal(&mut self, peer: Address, signal: Signal) -> Result<(), Busy> {
        let mut network = self.1.borrow_mut();
        if network.is_busy() {
            return Err(Busy);
        }
        if network.dead.contains(&peer) {
            network.tell(self.0, Event::Lost(peer));
        } else {
            network.tell(peer, Event::Signal(self.0, signal));
        }
        Ok(())
    }

    fn register(
        &mut self,
        memory: &Bytes,
        _: bool,
        _: Address,
        rails: usize,
    ) -> Result<Vec<Spot>, Failure> {
        let mut network = self.1.borrow_mut();
        let mut spot = || {
            network.next += 1 << 32;
            let at = network.next;
            network.memory.insert(at, memory.clone());
            Spot { queue: self.0, stadd: at }
        };
        Ok((0..rails).map(|_| spot()).collect())
    }

    fn release(&mut self, spots: &[Spot]) {
        for spot in spots {
            assert!(self.1.borrow_mut().memory.remove(&spot.stadd).is_some());
        }
    }

    fn get(&mut self, way: Way, places: [Spot; 2], length: usize, token: u32) -> Result<(), Busy> {
        let mut network = self.1.borrow_mut();
        if network.is_busy() {
            return Err(Busy);
        }
        let peer = network.take(way);
        assert!(length <= PIECE);
        let [from, to] = places;
        assert_eq!([from.queue, to.queue], [peer, self.0]);
        let (remote, local) = (from.stadd, to.stadd);
        let good = !network.dead.contains(&peer);
        if good {
            let start = |stadd: u64| (stadd >> 32 << 32, (stadd & 0xffff_ffff) as usize);
            let ((remote, from), (local, to)) = (start(remote), start(local));
            let mut data = vec![0; length];
            network.memory[&remote].read(from, &mut data);
            network.memory.get_mut(&local).unwrap().write(to, &data);
        }
        network.tell(self.0, Event::Ended(token, good));
        Ok(())
    }

    fn poll(&mut self) -> Option<Event> {
        let mut network = self.1.borrow_mut();
        let event = network.events.get_mut(&self.0)?.pop_front()?;
        if let Event::Filled(place) = event {
            // It is read during this call, or with others that came before it.
            let slot = network.slots.get(&(self.0, place)).cloned();
            assert!(slot.is_some());
        }
        Some(event)
    }

    fn wait(&mut self, _: Duration) -> bool {
        self.1.borrow().events.get(&self.0).is_some_and(|events| !events.is_empty())
    }
}

/// Removes slots that were emptied, as the credits that come back say.
struct Machine {
    network: Rc<RefCell<Network>>,
    endpoints: Vec<Endpoint<Fake>>,
}

impl Machine {
    fn new(count: u64) -> Self {
        let network = Rc::<RefCell<Network>>::default();
        let endpoint = |n| Endpoint::new(Fake(Address(n), Rc::clone(&network)), Arc::default());
        Self { endpoints: (0..count).map(endpoint).collect(), network: Rc::clone(&network) }
    }

    fn send(&mut self, from: usize, to: u64, tag: u64, bytes: Vec<u8>) {
        let memory = Bytes::new(bytes);
        let (data, context, wanted) = (Some(tag + 1), Some(tag as usize), true);
        let send = Send {
            to: Address(to),
            memory,
            tagged: true,
            tag,
            data,
            context,
            wanted,
            delivered: false,
        };
        self.endpoints[from].send(send).unwrap();
    }

    fn receive(&mut self, at: usize, source: Option<u64>, tag: u64, room: usize) -> Bytes {
        let memory = Bytes::new(vec![0; room]);
        let (source, context) = (source.map(Address), tag as usize);
        let (tagged, ignore, several, wanted) = (true, 0, None, true);
        let into = memory.clone();
        let receive = Receive { context, memory, source, tagged, tag, ignore, several, wanted };
        self.endpoints[at].receive(receive);
        into
    }

    fn step(&mut self, at: usize) {
        self.endpoints[at].progress();
        self.forget_emptied();
    }

    /// The device does not know which slots were emptied; the test does, because the receivers
    /// empty all filled slots.
    fn forget_emptied(&mut self) {
        let mut network = self.network.borrow_mut();
        let waiting: Vec<(Address, Place)> = network
            .events
            .iter()
            .flat_map(|(at, events)| events.iter().map(|event| (*at, *event)))
            .filter_map(|(at, event)| match event {
                Event::Filled(place) => Some((at, place)),
                _ => None,
            })
            .collect();
        network.slots.retain(|slot, _| waiting.contains(slot));
    }

    /// Lets all work until nothing happens.
    fn settle(&mut self) {
        for _ in 0..2000 {
            for at in 0..self.endpoints.len() {
                self.step(at);
            }
            let network = self.network.borrow();
            if network.events.values().all(VecDeque::is_empty)
                && self.endpoints.iter().all(|e| e.listed.is_empty() && e.asking.is_empty())
            {
                return;
            }
        }
        panic!("it never ends");
    }

    fn completions(&mut self, at: usize) -> Vec<Completion> {
        std::iter::from_fn(|| self.endpoints[at].completion()).collect()
    }
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length).map(|i| (i as u64 * 7 + seed) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any sends and receives in any order, each receive gets the first message that
    /// fits it, whole and from the right sender; nothing is lost; slots are never overwritten.
    #[test]
    fn messages_arrive_in_order_and_whole(
        rails in 1usize..5,
        steps in proptest::collection::vec((0u8..4, 0usize..3, 0u64..3, 0usize..6), 1..120)
    ) {
        const LENGTHS: [usize; 6] = [0, 1, 200, SLOT, EAGER, 3 * EAGER];
        let mut machine = Machine::new(3);
        machine.network.borrow_mut().rails = rails;
        let mut sent: HashMap<(usize, u64), VecDeque<usize>> = HashMap::new();
        let mut posted: HashMap<(usize, u64), VecDeque<Bytes>> = HashMap::new();
        for (step, from, to, length) in steps {
            match step {
                0 => {
                    let queue = sent.entry((from, to)).or_default();
                    let number = queue.len();
                    queue.push_back(LENGTHS[length]);
                    let bytes = pattern(LENGTHS[length], number as u64);
                    machine.send(from, to, from as u64, bytes);
                }
                1 => {
                    let (source, tag) = (Some(from as u64), from as u64);
                    let into = machine.receive(to as usize, source, tag, 3 * EAGER);
                    posted.entry((from, to)).or_default().push_back(into);
                }
                _ => machine.step(from),
            }
        }
        // All that was sent is received at last.
        for (&(from, to), queue) in &sent {
            let have = posted.entry((from, to)).or_default();
            let (source, tag) = (Some(from as u64), from as u64);
            while have.len() < queue.len() {
                have.push_back(machine.receive(to as usize, source, tag, 3 * EAGER));
            }
        }
        machine.settle();
        for at in 0..3 {
            let all = machine.completions(at);
            prop_assert!(all.iter().all(|c| c.failure.is_none()));
            for from in 0..3u64 {
                let lengths: Vec<usize> = all.iter()
                    .filter(|c| c.finished == Finished::Receive && c.source == Some(Address(from)))
                    .map(|c| c.length).collect();
                // Short messages may overtake long ones, which are read; receives are in order.
                let mut lengths = lengths;
                let mut expected: Vec<usize> =
                    sent.get(&(from as usize, at as u64)).into_iter().flatten().copied().collect();
                lengths.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(lengths, expected);
            }
            let sends = all.iter().filter(|c| c.finished == Finished::Send).count();
            let expected: usize =
                (0..3).map(|to| sent.get(&(at, to)).map_or(0, VecDeque::len)).sum();
            prop_assert_eq!(sends, expected);
        }
        for (pair, queue) in &sent {
            for (number, length) in queue.iter().enumerate() {
                let got = posted[pair][number].get();
                prop_assert_eq!(&got[..*length], &pattern(*length, number as u64)[..]);
            }
        }
        prop_assert!(machine.network.borrow().memory.is_empty(), "registrations are left");
    }
}

/// Messages from 4 KiB on are divided evenly, whether they go through slots or are read.
#[test]
fn long_messages_take_all_rails() {
    for rails in [1, 2, 4] {
        for (length, all) in [(DIVIDED - 1, false), (DIVIDED, true), (EAGER + 1, true)] {
            let mut machine = Machine::new(2);
            machine.network.borrow_mut().rails = rails;
            let into = machine.receive(1, None, 4, length);
            machine.send(0, 1, 4, pattern(length, 3));
            machine.settle();
            assert_eq!(into.get(), pattern(length, 3));
            let network = machine.network.borrow();
            let expected = if all { rails } else { 1 };
            assert_eq!(network.used.len(), expected, "{length} bytes, {rails} rails");
        }
    }
}

/// A peer that breaks the protocol.
#[test]
fn request_without_places_fails() {
    let mut machine = Machine::new(2);
    machine.send(1, 0, 4, vec![1]);
    machine.settle();
    machine.completions(1);
    let (tagged, tag, total) = (true, 5, 2 * EAGER as u64);
    let header = Header { tagged, tag, total, ..Header::of(Kind::Request) };
    machine.endpoints[1].enqueue(0, outgoing::Outgoing::new(header, vec![7; 15], None));
    machine.receive(0, None, 5, 10);
    machine.settle();
    let failures: Vec<_> = machine.completions(0).iter().map(|c| c.failure).collect();
    assert_eq!(failures, [Some(Failure::NoRoom)]);
}

#[test]
fn many_senders_share_no_limit() {
    let mut machine = Machine::new(140);
    for from in 1..140 {
        for n in 0..10 {
            machine.send(from, 0, 5, pattern(2 * SLOT, n));
        }
    }
    machine.settle();
    for _ in 0..139 * 10 {
        machine.receive(0, None, 5, 2 * SLOT);
    }
    machine.settle();
    let received = machine.completions(0);
    assert_eq!(received.len(), 139 * 10);
    assert!(received.iter().all(|c| c.failure.is_none() && c.length == 2 * SLOT));
    assert!(received.iter().all(|c| c.data == Some(6)));
}

#[test]
fn dead_peer_fails_all_that_needs_it() {
    let mut machine = Machine::new(2);
    machine.send(0, 1, 1, pattern(10, 0));
    machine.settle();
    machine.completions(0);
    machine.receive(0, Some(1), 7, 10);
    machine.network.borrow_mut().dead.push(Address(1));
    for n in 2..30 {
        machine.send(0, 1, n, pattern(100 << n.min(10), 0));
    }
    machine.settle();
    machine.send(0, 1, 30, vec![]);
    machine.receive(0, Some(1), 31, 10);
    machine.settle();
    let all = machine.completions(0);
    let failed = all.iter().filter(|c| c.failure == Some(Failure::Unreachable));
    assert_eq!(failed.count(), 31, "{all:?}");
    assert_eq!(all.len(), 31);
}

#[test]
fn peer_that_never_was_is_an_error() {
    let mut machine = Machine::new(1);
    machine.network.borrow_mut().dead.push(Address(9));
    machine.send(0, 9, 1, vec![1]);
    machine.settle();
    let all = machine.completions(0);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].failure, Some(Failure::Unreachable));
}

#[test]
fn long_messages_are_truncated() {
    let mut machine = Machine::new(2);
    for length in [11, EAGER, 2 * EAGER] {
        let into = machine.receive(1, None, 4, 10);
        machine.send(0, 1, 4, pattern(length, 3));
        machine.settle();
        let all = machine.completions(1);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].failure, Some(Failure::Truncated(length - 10)));
        assert_eq!((all[0].length, into.get()), (10, pattern(10, 3)));
        assert_eq!(machine.completions(0)[0].failure, None);
    }
}

#[test]
fn looks_find_claim_and_discard() {
    let mut machine = Machine::new(2);
    let look = |machine: &mut Machine, claim| {
        machine.endpoints[1].look(true, None, [4, 0], 77, claim);
        machine.completions(1)[0]
    };
    assert_eq!(look(&mut machine, Claim::Leave).failure, Some(Failure::NoMessage));
    for length in [5, 3 * EAGER, 6, 2 * EAGER] {
        machine.send(0, 1, 4, pattern(length, 1));
    }
    machine.settle();
    assert_eq!(look(&mut machine, Claim::Leave).length, 5);
    assert_eq!(look(&mut machine, Claim::Discard).length, 5);
    let found = look(&mut machine, Claim::Take);
    assert_eq!((found.length, found.source), (3 * EAGER, Some(Address(0))));
    // Another receive gets the next message.
    let next = machine.receive(1, None, 4, 6);
    let memory = Bytes::new(vec![0; 3 * EAGER]);
    let (context, into) = (77, memory.clone());
    let (source, tagged, tag, ignore, several, wanted) = (None, true, 0, 0, None, true);
    let receive = Receive { context, memory, source, tagged, tag, ignore, several, wanted };
    assert!(machine.endpoints[1].receive_claimed(receive));
    machine.settle();
    assert_eq!((next.get(), into.get()), (pattern(6, 1), pattern(3 * EAGER, 1)));
    machine.completions(1);
    assert_eq!(look(&mut machine, Claim::Take).failure, None);
    assert!(machine.endpoints[1].discard_claimed(77, true));
    assert!(!machine.endpoints[1].discard_claimed(77, true));
    let ends = machine.completions(1);
    assert_eq!((ends.len(), ends[0].context, ends[0].tag), (1, 77, 4));
    machine.settle();
    assert!(machine.network.borrow().memory.is_empty());
}

#[test]
fn memory_for_several_messages_is_released() {
    let mut machine = Machine::new(2);
    let post = |machine: &mut Machine, context| {
        let memory = Bytes::new(vec![0; 100]);
        let (source, tagged, tag, ignore, wanted) = (None, false, 0, u64::MAX, true);
        let several = Some(30);
        let receive = Receive { context, memory, source, tagged, tag, ignore, several, wanted };
        machine.endpoints[1].receive(receive);
    };
    let send = |machine: &mut Machine, length| {
        let memory = Bytes::new(pattern(length, 0));
        let (to, tagged, tag, data) = (Address(1), false, 0, None);
        let send =
            Send { to, memory, tagged, tag, data, context: None, wanted: false, delivered: false };
        machine.endpoints[0].send(send).unwrap();
    };
    // One that waits, one that fits, and one that does not fit any more.
    send(&mut machine, 20);
    machine.settle();
    post(&mut machine, 1);
    post(&mut machine, 2);
    send(&mut machine, 40);
    send(&mut machine, 60);
    send(&mut machine, 30);
    machine.settle();
    let all = machine.completions(1);
    let seen: Vec<_> = all.iter().map(|c| (c.context, c.length, c.buffer, c.released)).collect();
    let expected = [
        (1, 20, 0, false),
        (1, 40, 20, false),
        (1, 0, 0, true),
        (2, 60, 0, false),
        (2, 30, 60, true),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn canceled_receives_take_nothing() {
    let mut machine = Machine::new(2);
    let first = machine.receive(1, None, 4, 4);
    assert!(machine.endpoints[1].cancel(4));
    assert!(!machine.endpoints[1].cancel(4));
    let second = machine.receive(1, None, 4, 4);
    machine.send(0, 1, 4, vec![1, 2, 3, 4]);
    machine.settle();
    assert_eq!((first.get(), second.get()), (vec![0; 4], vec![1, 2, 3, 4]));
    let all = machine.completions(1);
    assert_eq!(all[0].failure, Some(Failure::Canceled));
    assert_eq!(all[1].failure, None);
}

#[test]
fn own_messages_need_no_device() {
    let mut machine = Machine::new(1);
    machine.send(0, 0, 4, pattern(4 * EAGER, 1));
    let into = machine.receive(0, Some(0), 4, 4 * EAGER);
    assert_eq!(into.get(), pattern(4 * EAGER, 1));
    assert_eq!(machine.completions(0).len(), 2);
    assert!(machine.network.borrow().slots.is_empty());
}

#[test]
fn peers_beyond_the_last_ring_are_refused() {
    let mut machine = Machine::new(1);
    for from in 1..=4081 {
        let network = Rc::clone(&machine.network);
        network.borrow_mut().tell(Address(0), Event::Signal(Address(from), Signal::Hello(0)));
    }
    // Once too often for a device that is busy at times.
    for _ in 0..200 {
        machine.step(0);
    }
    let network = machine.network.borrow();
    let told = |peer| network.events[&Address(peer)].front().copied();
    assert_eq!(told(1), Some(Event::Signal(Address(0), Signal::Hello(0))));
    assert_eq!(told(4080), Some(Event::Signal(Address(0), Signal::Hello(4079))));
    assert_eq!(told(4081), Some(Event::Signal(Address(0), Signal::Full)));
}

#[test]
fn endpoint_with_the_queue_of_an_old_one_is_new() {
    let mut machine = Machine::new(2);
    for turn in 0..3 {
        // More than a ring has.
        for n in 0..20 {
            machine.send(1, 0, turn, pattern(10, n));
            machine.receive(0, Some(1), turn, 10);
            machine.settle();
            machine.send(0, 1, turn, pattern(10, n));
            machine.receive(1, Some(0), turn, 10);
            machine.settle();
        }
        for at in 0..2 {
            let all = machine.completions(at);
            assert_eq!(all.len(), 40);
            assert!(all.iter().all(|c| c.failure.is_none()), "{all:?}");
        }
        let fake = Fake(Address(1), Rc::clone(&machine.network));
        machine.endpoints[1] = Endpoint::new(fake, Arc::default());
    }
}
