//! The control queues of an interface that wait for room in the network.

use std::sync::atomic::Ordering::SeqCst;

use tofu_abi::CqId;
use tofu_abi::regs::NUM_CQ;
use tofu_inspect::{Inspect, Visit};
use tofu_sync::AtomicU32;

const QUEUES: u32 = (1 << NUM_CQ) - 1;
/// Above the queues: which of them goes first next time.
const FIRST: u32 = 16;

/// Which control queues of an interface wait for room in the network.
///
/// A queue that finds no room enters, and then checks again. The thread that makes room does so
/// first, and then takes the queues out. Therefore a queue either sees the room or is taken out.
#[derive(Debug)]
pub(crate) struct Waiting(AtomicU32);

impl Waiting {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Enters a queue. It must check for room again after this.
    pub(crate) fn enter(&self, cq: CqId) {
        // SeqCst, because the following check for room must not be reordered before it.
        self.0.fetch_or(1 << cq.get(), SeqCst);
    }

    /// Notes that a waiting queue has found room: the queue after it is first next time.
    pub(crate) fn served(&self, cq: CqId) {
        let first = (u32::from(cq.get()) + 1) << FIRST;
        // The update always succeeds.
        let _ = self.0.fetch_update(SeqCst, SeqCst, |state| Some(state & QUEUES | first));
    }

    /// Takes out all queues, in the order in which they are to get the room.
    pub(crate) fn take(&self) -> impl Iterator<Item = CqId> {
        order(self.0.fetch_and(!QUEUES, SeqCst))
    }
}

impl Inspect for Waiting {
    fn inspect(&self, visit: Visit<'_>) {
        let waiting: Vec<_> = order(self.0.load(SeqCst)).map(|cq| cq.to_string()).collect();
        visit.text(if waiting.is_empty() { "none".to_owned() } else { waiting.join(" ") });
    }
}

/// The queues that wait, in turn.
fn order(state: u32) -> impl Iterator<Item = CqId> {
    let (waiting, first) = (state & QUEUES, (state >> FIRST) as usize);
    (0..NUM_CQ)
        .map(move |n| CqId::ALL[(first + n) % NUM_CQ])
        .filter(move |cq| waiting & 1 << cq.get() != 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn taken(waiting: &Waiting) -> Vec<u8> {
        waiting.take().map(CqId::get).collect()
    }

    #[test]
    fn served_queue_comes_last_next() {
        let waiting = Waiting::new();
        for (served, order) in [(3, [0, 3, 11]), (11, [11, 0, 3]), (0, [0, 3, 11])] {
            [0, 3, 11].into_iter().for_each(|n| waiting.enter(CqId::ALL[n]));
            assert_eq!(taken(&waiting), order);
            waiting.served(CqId::ALL[served]);
        }
        waiting.enter(CqId::ALL[0]);
        waiting.enter(CqId::ALL[0]);
        assert_eq!(taken(&waiting), [0]);
        assert_eq!(taken(&waiting), []);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    struct Model {
        waiting: Waiting,
        room: AtomicU32,
    }

    #[test]
    fn loom_a_queue_sees_the_room_or_is_rung() {
        loom::model(|| {
            let model = Arc::new(Model { waiting: Waiting::new(), room: AtomicU32::new(0) });
            let network = Arc::clone(&model);
            let rings = thread::spawn(move || {
                network.room.store(1, SeqCst);
                network.waiting.take().count()
            });
            let has_room = || model.room.load(SeqCst) == 1;
            let idle = !has_room() && {
                model.waiting.enter(CqId::ALL[5]);
                !has_room()
            };
            let rung = rings.join().unwrap() == 1;
            assert!(!idle || rung);
        });
    }
}
