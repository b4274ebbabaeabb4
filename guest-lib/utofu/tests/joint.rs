//! A control queue that two processes share, over a queue of the test: in any order of events, and
//! whenever one of the two ends, each gets what is its own.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use tofu_abi::Rcode;
use tofu_abi::queue::{MrqEntry, MrqId, MrqWord0, MrqWord1};
use tofu_abi::regs::CqReg;
use tofu_driver::{Arm, Full, Order, RingMemory, Rings, Target, UserPage, VolatileBuffer};
use tofu_utofu::{Divisible, Error, Half, JointQueue, MappedMemory};
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

const ORDERS: u32 = 8;
const NOTICES: u32 = 8;

#[derive(Clone)]
struct Memory(Arc<MmapRegion<()>>);

impl VolatileBuffer for Memory {
    fn addr(&self) -> u64 {
        0
    }

    fn memory(&self) -> VolatileSlice<'_> {
        self.0.get_slice(0, self.0.size()).unwrap()
    }
}

/// The register that counts of a process's page, as a list of what was written to it.
#[derive(Clone, Default)]
struct Registers(Arc<std::sync::Mutex<Vec<u64>>>);

impl UserPage for Registers {
    fn read(&self, _: u64) -> u64 {
        0
    }

    fn write(&self, offset: u64, value: u64) {
        if offset == CqReg::MrqFullPointer.offset() {
            self.0.lock().unwrap().push(value);
        }
    }
}

/// A queue whose commands end when the test says so.
#[derive(Default)]
struct Fake {
    posted: VecDeque<Order>,
    ended: VecDeque<Rcode>,
    notices: VecDeque<MrqEntry>,
    registered: BTreeSet<u32>,
    /// Commands that have not been reaped.
    taken: usize,
}

impl Divisible for Fake {
    fn orders(&self) -> usize {
        ORDERS as usize
    }
    fn notices(&self) -> usize {
        NOTICES as usize
    }
    fn free_slots(&self) -> usize {
        // As if each had two descriptors.
        ORDERS as usize - 2 * self.taken
    }
    fn post(&mut self, order: &Order) -> Result<(), Full> {
        assert!(self.free_slots() >= 2);
        assert!(order.descriptors().last().unwrap().header1().interrupt(), "the owner would sleep");
        self.taken += 1;
        self.posted.push_back(*order);
        Ok(())
    }
    fn ring(&mut self) {}
    fn poll_completion(&mut self) -> Option<Rcode> {
        let ended = self.ended.pop_front()?;
        self.taken -= 1;
        Some(ended)
    }
    fn poll_notice(&mut self) -> Option<MrqEntry> {
        self.notices.pop_front()
    }
    fn register(&mut self, memory: &MappedMemory) -> Result<(), Error> {
        assert!(self.registered.insert(memory.stag), "in use");
        Ok(())
    }
    fn deregister(&mut self, stag: u32) -> Result<(), Error> {
        assert!(self.registered.remove(&stag), "not registered");
        Ok(())
    }
}

/// The sender's or target's extra value in a command's data, as the library has it.
const fn edata(half: Half) -> u16 {
    let extra = 4 * half as u16 + 1;
    const WANTED: u16 = 1 << 7;
    extra | extra << 4 | WANTED
}

/// A simulated process.
struct Process {
    half: Half,
    rings: Rings<Memory, Registers>,
    page: Registers,
    arm: Arm<Memory>,
    /// It sleeps until it is woken.
    asleep: bool,
    posted: VecDeque<u64>,
    notices: VecDeque<u64>,
    stags: BTreeSet<u32>,
}

impl Process {
    fn join(half: Half, joint: &mut JointQueue<Fake, Memory>) -> Option<Self> {
        let parts = RingMemory::<Memory>::sizes(ORDERS, NOTICES)
            .map(|size| Memory(Arc::new(MmapRegion::new(size.max(4096)).unwrap())));
        let page = Registers::default();
        let word = Memory(Arc::new(MmapRegion::new(4096).unwrap()));
        let memory = RingMemory::of(parts.clone(), ORDERS, NOTICES);
        joint.join(half, memory, Arm::of(word.clone())).ok()?;
        let rings = Rings::new(RingMemory::of(parts, ORDERS, NOTICES), page.clone());
        let (posted, notices, stags) = Default::default();
        let arm = Arm::of(word);
        Some(Self { half, rings, page, arm, asleep: false, posted, notices, stags })
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Join(Half),
    /// The process is killed, or closes its queue.
    End(Half),
    Post(Half, bool),
    Poll(Half),
    /// The process requests to be woken, polls, and sleeps if it finds nothing.
    Sleep(Half),
    Register(Half, u32),
    Deregister(Half, u32),
    Serve,
    /// The device ends a command.
    Finish,
    /// A notice comes for a process.
    Notice(Half),
}

fn step() -> impl Strategy<Value = Step> {
    let half = || prop_oneof![Just(Half::Lower), Just(Half::Upper)];
    prop_oneof![
        2 => half().prop_map(Step::Join),
        1 => half().prop_map(Step::End),
        6 => (half(), any::<bool>()).prop_map(|(half, long)| Step::Post(half, long)),
        6 => half().prop_map(Step::Poll),
        2 => half().prop_map(Step::Sleep),
        1 => (half(), 0u32..8192).prop_map(|(half, stag)| Step::Register(half, stag)),
        1 => (half(), 0u32..8192).prop_map(|(half, stag)| Step::Deregister(half, stag)),
        6 => Just(Step::Serve),
        6 => Just(Step::Finish),
        3 => half().prop_map(Step::Notice),
    ]
}

struct World {
    joint: JointQueue<Fake, Memory>,
    processes: [Option<Process>; 2],
    next: u64,
}

impl World {
    fn new() -> Self {
        Self { joint: JointQueue::new(Fake::default()), processes: [None, None], next: 1 }
    }

    /// Ends a process, if it is there.
    fn end(&mut self, half: Half) {
        let Some(process) = self.processes[half as usize].take() else { return };
        self.joint.stop(half);
        self.joint.leave(half).unwrap();
        assert!(process.stags.iter().all(|stag| !self.joint.queue().registered.contains(stag)));
    }

    fn post(&mut self, half: Half, long: bool) {
        let Some(process) = &mut self.processes[half as usize] else { return };
        let to = Target::new(Default::default(), tofu_abi::TniId::ALL[0]);
        let data = [self.next; 4].map(u64::to_le_bytes).concat();
        let data = &data[..if long { 32 } else { 8 }];
        let order = Order::put_piggyback(to, tofu_abi::StagOffset(0), data).unwrap();
        if process.rings.post(&order, self.next).is_ok() {
            process.posted.push_back(self.next);
            self.next += 1;
        }
    }

    /// A process requests to be woken, and sleeps if there is nothing for it.
    fn sleep(&mut self, half: Half) {
        let Some(process) = &mut self.processes[half as usize] else { return };
        process.arm.ask();
        if self.poll(half) {
            self.processes[half as usize].iter().for_each(|process| process.arm.withdraw());
        } else if let Some(process) = &mut self.processes[half as usize] {
            process.asleep = true;
        }
    }

    /// The owner serves the queue, and wakes who has something and sleeps.
    fn serve(&mut self) {
        self.joint.serve();
        for half in Half::BOTH {
            let wakes = self.joint.must_wake(half);
            let Some(process) = &mut self.processes[half as usize] else {
                assert!(!wakes, "there is none");
                continue;
            };
            assert!(process.asleep || !wakes, "it has not asked for that");
            process.asleep &= !wakes;
            if process.asleep {
                assert!(!self.poll(half), "there was something for a process that sleeps");
            }
        }
    }

    /// A process polls: it gets its own, in order. Returns whether there was anything.
    fn poll(&mut self, half: Half) -> bool {
        let Some(process) = &mut self.processes[half as usize] else { return false };
        let before = process.posted.len() + process.notices.len();
        while let Some(done) = process.rings.poll_tcq() {
            let number = process.posted.pop_front().expect("not its own, or twice");
            assert_eq!((done.cookie, done.rcode), (number, Rcode::new(number as u8)));
        }
        while let Some(entry) = process.rings.poll_mrq() {
            assert_eq!(Some(entry.0[2]), process.notices.pop_front());
            assert_eq!(Half::of_notice(&entry), Some(half));
        }
        for value in process.page.0.lock().unwrap().drain(..) {
            self.joint.acknowledge(half, value);
        }
        process.posted.len() + process.notices.len() < before
    }

    fn register(&mut self, half: Half, stag: u32) {
        let memory = MappedMemory { address: 0, len: 1, stag, offset: 0, read_only: false };
        let done = self.joint.register(half, &memory).is_ok();
        let Some(process) = &mut self.processes[half as usize] else {
            return assert!(!done, "by no process");
        };
        assert_eq!(done, half.has_stag(stag) && process.stags.insert(stag));
    }

    fn deregister(&mut self, half: Half, stag: u32) {
        let done = self.joint.deregister(half, stag).is_ok();
        let process = &mut self.processes[half as usize];
        assert_eq!(done, process.as_mut().is_some_and(|process| process.stags.remove(&stag)));
    }

    /// A notice comes, if its process has room for it.
    fn notice(&mut self, half: Half) {
        let number = self.next;
        self.next += 1;
        if let Some(process) = &mut self.processes[half as usize] {
            // The first quarter that was taken makes room.
            if process.notices.len() >= NOTICES as usize * 3 / 4 {
                return;
            }
            process.notices.push_back(number);
        }
        let word0 = MrqWord0(0).with_id(MrqId::PutLastHalfway as u8).0;
        let word1 = MrqWord1(0).with_edata(edata(half)).0;
        self.joint.queue_mut().notices.push_back(MrqEntry([word0, word1, number, 0]));
    }

    fn finish(&mut self) {
        let fake = self.joint.queue_mut();
        if let Some(order) = fake.posted.pop_front() {
            fake.ended.push_back(Rcode::new(order.descriptors().last().unwrap().data() as u8));
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Join(half) => {
                let place = &mut self.processes[half as usize];
                let is_free = self.joint.is_free(half);
                let joined = Process::join(half, &mut self.joint);
                assert_eq!(joined.is_some(), is_free);
                assert!(!is_free || place.is_none());
                if let Some(process) = joined {
                    assert_eq!(process.half, half);
                    *place = Some(process);
                }
            }
            Step::End(half) => self.end(half),
            Step::Post(half, long) => self.post(half, long),
            Step::Poll(half) => {
                self.poll(half);
            }
            Step::Sleep(half) => self.sleep(half),
            Step::Register(half, stag) => self.register(half, stag),
            Step::Deregister(half, stag) => self.deregister(half, stag),
            Step::Serve => self.serve(),
            Step::Finish => self.finish(),
            Step::Notice(half) => self.notice(half),
        }
    }

    /// Everything ends that was posted.
    fn settle(&mut self) {
        for _ in 0..4 * ORDERS {
            self.serve();
            for _ in 0..ORDERS {
                self.finish();
            }
            for half in Half::BOTH {
                self.poll(half);
            }
        }
    }
}

proptest! {
    #[test]
    fn each_gets_what_is_its_own(steps in prop::collection::vec(step(), 0..300)) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
        }
        world.settle();
        for process in world.processes.iter().flatten() {
            prop_assert!(process.posted.is_empty() && process.notices.is_empty());
        }
        Half::BOTH.into_iter().for_each(|half| world.end(half));
        prop_assert!(world.joint.is_unused() && world.joint.queue().registered.is_empty());
    }
}

/// A process that posts all the time and polls never leaves the other its turn.
#[test]
fn greedy_process_leaves_room() {
    let mut world = World::new();
    Half::BOTH.into_iter().for_each(|half| world.run(Step::Join(half)));
    for _ in 0..ORDERS {
        world.post(Half::Lower, false);
    }
    world.post(Half::Upper, true);
    world.joint.serve();
    // Four at a time; one of them is the other process's.
    let long = |order: &Order| order.descriptors().len() == 2;
    assert_eq!(world.joint.queue().posted.iter().filter(|order| long(order)).count(), 1);
    for _ in 0..3 {
        (0..ORDERS).for_each(|_| world.finish());
        world.joint.serve();
    }
    world.poll(Half::Upper);
    assert!(world.processes[1].as_ref().unwrap().posted.is_empty());
}

/// A notice for the process that had a half before is not one for the next.
#[test]
fn late_notice_is_dropped() {
    let mut world = World::new();
    world.notice(Half::Upper);
    world.run(Step::Join(Half::Upper));
    world.joint.serve();
    world.poll(Half::Upper);
}

/// Notices beyond the room of a process that does not poll are lost, and the other's are not.
#[test]
fn full_list_of_notices_hurts_no_other() {
    let mut world = World::new();
    Half::BOTH.into_iter().for_each(|half| world.run(Step::Join(half)));
    for number in 0..3 * u64::from(NOTICES) {
        let word0 = MrqWord0(0).with_id(MrqId::PutLastHalfway as u8).0;
        let word1 = MrqWord1(0).with_edata(edata(Half::Lower)).0;
        world.joint.queue_mut().notices.push_back(MrqEntry([word0, word1, number, 0]));
    }
    world.notice(Half::Upper);
    for _ in 0..4 {
        world.joint.serve();
    }
    world.poll(Half::Upper);
    assert!(world.processes[1].as_ref().unwrap().notices.is_empty());
    assert_eq!(world.joint.leave(Half::Lower).unwrap(), 2 * u64::from(NOTICES));
}
