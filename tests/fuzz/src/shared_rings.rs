//! Anything that a process can write into the rings of its half of a shared control queue.
//!
//! The queue takes no more than it has room for, and the process with the other half gets its own
//! completions and notices, in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arbitrary::{Result, Unstructured};
use tofu_abi::queue::{MrqEntry, MrqId, MrqWord0, MrqWord1};
use tofu_abi::regs::CqReg;
use tofu_abi::{Coords, Rcode, StagOffset, TniId};
use tofu_driver::{
    Arm, DmaBuffer, Full, Order, RingMemory, Rings, Target, UserPage, VolatileBuffer,
};
use tofu_utofu::{Divisible, Error, Half, JointQueue, MappedMemory};
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

const ORDERS: u32 = 8;
const NOTICES: u32 = 8;
/// Steps of one input at most.
const MOST: usize = 512;
/// The half of the process that writes anything.
const WILD: Half = Half::Lower;
const TAME: Half = Half::Upper;

#[derive(Clone)]
struct Memory(Arc<MmapRegion<()>>);

impl Memory {
    fn new() -> Self {
        Self(Arc::new(MmapRegion::new(4096).expect("memory is left")))
    }
}

impl VolatileBuffer for Memory {
    fn addr(&self) -> u64 {
        0
    }

    fn memory(&self) -> VolatileSlice<'_> {
        self.0.get_slice(0, self.0.size()).expect("all of it")
    }
}

/// The register MRQ_FULL_POINTER.
#[derive(Clone, Default)]
struct Registers(Arc<AtomicU64>);

impl UserPage for Registers {
    fn read(&self, _: u64) -> u64 {
        0
    }

    fn write(&self, offset: u64, value: u64) {
        if offset == CqReg::MrqFullPointer.offset() {
            self.0.store(value, Ordering::Relaxed);
        }
    }
}

/// A queue whose commands end when the input says so.
#[derive(Default)]
struct Queue {
    posted: VecDeque<Order>,
    ended: VecDeque<Rcode>,
    notices: VecDeque<MrqEntry>,
    /// Descriptors that have not been reaped, of each command.
    taken: VecDeque<usize>,
}

impl Divisible for Queue {
    fn orders(&self) -> usize {
        ORDERS as usize
    }
    fn notices(&self) -> usize {
        NOTICES as usize
    }
    fn free_slots(&self) -> usize {
        ORDERS as usize - self.taken.iter().sum::<usize>()
    }
    fn post(&mut self, order: &Order) -> std::result::Result<(), Full> {
        let descriptors = order.descriptors().len();
        assert!((1..=2).contains(&descriptors) && descriptors <= self.free_slots());
        self.taken.push_back(descriptors);
        self.posted.push_back(*order);
        Ok(())
    }
    fn ring(&mut self) {}
    fn poll_completion(&mut self) -> Option<Rcode> {
        let ended = self.ended.pop_front()?;
        self.taken.pop_front();
        Some(ended)
    }
    fn poll_notice(&mut self) -> Option<MrqEntry> {
        self.notices.pop_front()
    }
    fn register(&mut self, _: &MappedMemory) -> std::result::Result<(), Error> {
        Ok(())
    }
    fn deregister(&mut self, _: u32) -> std::result::Result<(), Error> {
        Ok(())
    }
}

/// Both processes and their queue.
struct World {
    joint: JointQueue<Queue, Memory>,
    /// Rings and word of the one that writes anything there.
    wild: [Memory; 4],
    tame: Rings<Memory, Registers>,
    page: Registers,
    /// Those that the other one waits for.
    posted: VecDeque<u64>,
    told: VecDeque<u64>,
    next: u64,
}

impl World {
    fn new() -> Self {
        let mut joint = JointQueue::new(Queue::default());
        let mut join = |half| {
            let all = [(); 4].map(|()| Memory::new());
            let [a, b, c, word] = all.clone();
            let rings = RingMemory::of([a, b, c], ORDERS, NOTICES);
            joint.join(half, rings, Arm::of(word)).expect("it is free");
            all
        };
        let wild = join(WILD);
        let [a, b, c, _] = join(TAME);
        let page = Registers::default();
        let tame = Rings::new(RingMemory::of([a, b, c], ORDERS, NOTICES), page.clone());
        let (posted, told) = Default::default();
        Self { joint, wild, tame, page, posted, told, next: 1 }
    }

    fn post(&mut self, long: bool) {
        let data = [self.next; 4].map(u64::to_le_bytes).concat();
        let to = Target::new(Coords::default(), TniId::ALL[0]);
        let order = Order::put_piggyback(to, StagOffset(0), &data[..if long { 32 } else { 8 }]);
        if self.tame.post(&order.expect("it fits"), self.next).is_ok() {
            self.posted.push_back(self.next);
            self.next += 1;
        }
    }

    fn poll(&mut self) {
        while let Some(done) = self.tame.poll_tcq() {
            assert_eq!(Some(done.cookie), self.posted.pop_front());
            assert_eq!(done.rcode, Rcode::new(done.cookie as u8 & 0x7f), "another one's");
        }
        while let Some(entry) = self.tame.poll_mrq() {
            assert_eq!(Some(entry.0[2]), self.told.pop_front());
        }
        self.joint.acknowledge(TAME, self.page.0.load(Ordering::Relaxed));
    }

    /// A notice for one of the two, if the queue has room; for the one that polls only if it has
    /// room, too.
    fn notice(&mut self, half: Half) {
        if self.joint.queue().notices.len() >= NOTICES as usize {
            return;
        }
        if half == TAME {
            if self.told.len() >= NOTICES as usize * 3 / 4 {
                return;
            }
            self.told.push_back(self.next);
        }
        const WANTED: u16 = 1 << 7;
        let extra = 4 * half as u16;
        let word0 = MrqWord0(0).with_id(MrqId::PutLastHalfway as u8).0;
        let word1 = MrqWord1(0).with_edata(extra | extra << 4 | WANTED).0;
        let entry = MrqEntry([word0, word1, self.next, 0]);
        self.joint.queue_mut().notices.push_back(entry);
        self.next += 1;
    }

    fn finish(&mut self) {
        let queue = self.joint.queue_mut();
        if let Some(order) = queue.posted.pop_front() {
            let data = order.descriptors().last().map_or(0, |last| last.data());
            queue.ended.push_back(Rcode::new(data as u8 & 0x7f));
        }
    }

    fn serve(&mut self) {
        self.joint.serve();
        for half in Half::BOTH {
            self.joint.must_wake(half);
        }
    }
}

/// Runs one input: steps of both processes, of the device and of the owner.
pub fn run(data: &[u8]) {
    let _ = play(&mut Unstructured::new(data));
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let mut world = World::new();
    for _ in 0..MOST {
        if u.is_empty() {
            break;
        }
        let step = u.arbitrary::<u8>()?;
        match step % 8 {
            0 | 1 => {
                let (offset, value) = (u.arbitrary::<u8>()?, u.arbitrary::<u64>()?);
                let ring = &world.wild[usize::from(step >> 3) % 4];
                ring.store_u64(usize::from(offset) * 8, value, Ordering::Relaxed);
            }
            2 => world.joint.acknowledge(WILD, u.arbitrary()?),
            3 => world.finish(),
            4 => world.notice(if step & 8 == 0 { WILD } else { TAME }),
            5 => world.serve(),
            6 => world.post(step & 8 != 0),
            _ => world.poll(),
        }
    }
    for _ in 0..4 * ORDERS {
        world.serve();
        for _ in 0..ORDERS {
            world.finish();
        }
        world.poll();
    }
    assert!(world.posted.is_empty() && world.told.is_empty(), "the other process is served");
    Ok(())
}
