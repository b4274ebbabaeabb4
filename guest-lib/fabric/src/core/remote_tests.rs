//! Reads, writes and atomic operations between endpoints of the test's network.

use std::sync::{Mutex, PoisonError};

use super::*;

const ALL: Access = Access { read: true, write: true };

impl Machine {
    /// Adds a region to an endpoint.
    fn region(&mut self, at: usize, key: u64, memory: &Bytes, access: Access) {
        let regions: &Mutex<_> = &self.endpoints[at].regions;
        let mut regions = regions.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(regions.add(key, memory.clone(), 1000, access));
        assert!(!regions.add(key, memory.clone(), 1000, access), "the key is used");
    }

    fn close(&mut self, at: usize, key: u64) -> Lease {
        self.endpoints[at].regions.lock().unwrap().remove(key).unwrap()
    }

    fn act(&mut self, to: u64, key: u64, place: u64, action: Action<Bytes>) {
        let (to, context, wanted) = (Address(to), Some(7), true);
        let remote = Remote { to, key, place, action, context, wanted };
        self.endpoints[0].remote(remote).unwrap();
    }

    /// Does an operation of endpoint 0, and returns how it has ended.
    fn done(&mut self, to: u64, key: u64, place: u64, action: Action<Bytes>) -> Option<Failure> {
        self.act(to, key, place, action);
        self.settle();
        let all = self.completions(0);
        let own: Vec<_> = all.iter().filter(|c| c.context == 7).collect();
        assert_eq!(own.len(), 1, "{all:?}");
        own[0].failure
    }
}

#[test]
fn regions_are_read_and_written() {
    // The second turn is of an endpoint with itself.
    for to in [1, 0] {
        let mut machine = Machine::new(2);
        for length in [0, 1, SLOT, EAGER, EAGER + 1, 5 * EAGER] {
            let memory = Bytes::new(vec![0; length + 20]);
            machine.region(to as usize, length as u64, &memory, ALL);
            let data = pattern(length, 3);
            let write = Action::Write(Bytes::new(data.clone()), Some(5));
            assert_eq!(machine.done(to, length as u64, 1010, write), None);
            assert_eq!(&memory.get()[10..length + 10], &data[..]);
            assert!(memory.get()[..10].iter().all(|byte| *byte == 0));
            let into = Bytes::new(vec![0; length]);
            let read = Action::Read(into.clone());
            assert_eq!(machine.done(to, length as u64, 1010, read), None);
            assert_eq!(into.get(), data);
            if to == 1 {
                let seen: Vec<_> = machine
                    .completions(1)
                    .iter()
                    .map(|c| (c.finished, c.length, c.data, c.key, c.source, c.wanted))
                    .collect();
                let (source, key) = (Some(Address(0)), Some(length as u64));
                assert_eq!(
                    seen,
                    [
                        (Finished::PeerWrite, length, Some(5), key, source, true),
                        (Finished::PeerRead, length, None, key, source, false),
                    ]
                );
            }
        }
        assert!(machine.network.borrow().memory.is_empty(), "registrations are left");
    }
}

#[test]
fn wrong_keys_and_places_are_refused() {
    let mut machine = Machine::new(2);
    let memory = Bytes::new(vec![9; 100]);
    let only_read = Access { read: true, write: false };
    for at in 0..2 {
        machine.region(at, 1, &memory, only_read);
        machine.region(at, 2, &memory, Access { read: false, write: true });
    }
    let sum = Atomic::new(Operator::Sum, Number::U8, false).unwrap();
    for to in [1, 0] {
        let mut refused = |key, place, action| {
            assert_eq!(machine.done(to, key, place, action), Some(Failure::Refused));
        };
        for length in [1, 2 * EAGER] {
            let bytes = || Bytes::new(vec![1; length]);
            refused(3, 1000, Action::Read(bytes()));
            refused(3, 1000, Action::Write(bytes(), None));
            refused(1, 1000, Action::Write(bytes(), None));
            refused(2, 1000, Action::Read(bytes()));
            refused(1, 999, Action::Read(bytes()));
            refused(2, 1100, Action::Write(bytes(), None));
            refused(1, u64::MAX, Action::Read(bytes()));
        }
        refused(1, 1000, Action::Atomic(sum, vec![1], None));
        refused(2, 1099, Action::Atomic(sum, vec![1, 1], None));
    }
    assert_eq!(memory.get(), vec![9; 100]);
    machine.close(1, 1);
    let read = Action::Read(Bytes::new(vec![0]));
    assert_eq!(machine.done(1, 1, 1000, read), Some(Failure::Refused));
}

#[test]
fn atomic_operations_return_old_numbers() {
    let mut machine = Machine::new(2);
    let words = |words: [u64; 2]| words.map(u64::to_ne_bytes).concat();
    for to in [1, 0] {
        let memory = Bytes::new(words([5, u64::MAX]));
        machine.region(to as usize, 4, &memory, ALL);
        let atomic = |operator, fetches| Atomic::new(operator, Number::U64, fetches).unwrap();
        let sum = Action::Atomic(atomic(Operator::Sum, false), words([1, 2]), None);
        assert_eq!(machine.done(to, 4, 1000, sum), None);
        assert_eq!(memory.get(), words([6, 1]));
        let old = Bytes::new(vec![0; 16]);
        let both = [words([10, 20]), words([6, 0])].concat();
        let swap = Action::Atomic(atomic(Operator::SwapEqual, true), both, Some(old.clone()));
        assert_eq!(machine.done(to, 4, 1000, swap), None);
        assert_eq!((old.get(), memory.get()), (words([6, 1]), words([10, 1])));
    }
}

#[test]
fn accesses_are_in_the_order_of_their_start() {
    let mut machine = Machine::new(2);
    let memory = Bytes::new(vec![0; 8]);
    machine.region(1, 4, &memory, ALL);
    let sum = Atomic::new(Operator::Sum, Number::U64, true).unwrap();
    let olds: Vec<Bytes> = (0..200)
        .map(|_| {
            let old = Bytes::new(vec![0; 8]);
            let one = 1u64.to_ne_bytes().to_vec();
            machine.act(1, 4, 1000, Action::Atomic(sum, one, Some(old.clone())));
            old
        })
        .collect();
    machine.settle();
    for (number, old) in olds.iter().enumerate() {
        assert_eq!(old.get(), (number as u64).to_ne_bytes());
    }
    assert_eq!(machine.completions(0).len(), 200);
}

#[test]
fn region_in_use_is_known_until_the_end() {
    let mut machine = Machine::new(1);
    machine.region(0, 4, &Bytes::new(vec![0; 8]), ALL);
    let found = machine.endpoints[0].regions.lock().unwrap().find(4, 1000, 8, ALL);
    let lease = machine.close(0, 4);
    assert!(found.is_some() && lease.is_used());
    drop(found);
    assert!(!lease.is_used());
}

#[test]
fn delivered_sends_wait_for_the_receiver() {
    let mut machine = Machine::new(2);
    let memory = Bytes::new(pattern(3 * SLOT, 0));
    let (to, tagged, tag, data) = (Address(1), true, 4, None);
    let (context, wanted, delivered) = (Some(7), true, true);
    let send = Send { to, memory, tagged, tag, data, context, wanted, delivered };
    machine.endpoints[0].send(send).unwrap();
    // The receiver has said hello only, so it has not emptied a slot.
    machine.step(1);
    for _ in 0..20 {
        machine.step(0);
    }
    assert!(machine.completions(0).is_empty());
    machine.settle();
    assert_eq!(machine.completions(0).len(), 1);
}

#[test]
fn peer_that_dies_before_its_answer_is_found() {
    let mut machine = Machine::new(2);
    let memory = Bytes::new(vec![0; 8]);
    machine.region(1, 4, &memory, ALL);
    machine.act(1, 4, 1000, Action::Read(Bytes::new(vec![0; 8])));
    machine.step(1);
    for _ in 0..20 {
        machine.step(0);
    }
    assert!(machine.completions(0).is_empty(), "all has arrived, and no answer comes");
    machine.network.borrow_mut().dead.push(Address(1));
    // The device may have no room at times.
    for _ in 0..3 {
        machine.endpoints[0].probe();
        machine.step(0);
    }
    let all = machine.completions(0);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].failure, Some(Failure::Unreachable));
}
