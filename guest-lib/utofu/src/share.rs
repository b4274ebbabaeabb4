//! Which interfaces and control queues a process of a node has.
//!
//! The first control queue of each process is that of real systems (public sources give them for
//! all numbers of processes per node); programs compute IDs of their peers from it. They are the
//! starts of equal shares of the eleven user queues, from which this library takes the further
//! queues of a process; that, and the interfaces of more than four processes, is ours.

use core::ops::Range;

use tofu_abi::regs::NUM_TNI;
use tofu_abi::{CqId, TniId};

use crate::error::{Code, Error};

/// Control queues that user processes have: 0 to 10.
pub const USER_CQS: u8 = 11;
/// Processes of a node at most.
pub const MAX_PROCESSES: u16 = 36;

/// The share of a process in its node's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceShare {
    tnis: Range<u8>,
    cqs: Range<u8>,
    /// The first of the queues.
    first: u8,
    /// The others may be other processes'.
    shared: bool,
}

impl DeviceShare {
    /// The share of process `index` of `processes` on its node.
    ///
    /// # Errors
    ///
    /// If there are no or more than 36 processes, or fewer than `index` + 1.
    pub fn new(index: u16, processes: u16) -> Result<Self, Error> {
        let starts: &[u8] = match processes {
            1 => &[0],
            2 => &[0, 6],
            3 => &[0, 4, 8],
            4..=24 => &[0, 2, 5, 8],
            25..=30 => &[0, 2, 5, 8, 10],
            31..=36 => &[0, 2, 5, 8, 9, 10],
            _ => {
                let hint = "a node has 1 to 36 processes";
                let what = "processes per node";
                return Err(Error::with_value(Code::NotAvailable, what, processes.into(), hint));
            }
        };
        if index >= processes {
            let hint = "not below the number of processes per node";
            return Err(Error::with_value(Code::NotAvailable, "process", index.into(), hint));
        }
        // Processes that have the same queues share out the interfaces.
        let sharing = usize::from(processes).div_ceil(starts.len());
        let tnis = NUM_TNI / sharing;
        let (share, turn) = (usize::from(index) / sharing, usize::from(index) % sharing);
        let end = starts.get(share + 1).copied().unwrap_or(USER_CQS);
        let tni = (turn * tnis) as u8;
        let first = starts[share];
        Ok(Self { tnis: tni..tni + tnis as u8, cqs: first..end, first, shared: false })
    }

    /// The share of a process that nobody has counted: it was given control queue `first` of every
    /// interface, and may have others as long as no other process has them.
    ///
    /// # Errors
    ///
    /// If there is no such user queue.
    pub fn of_queue(first: CqId) -> Result<Self, Error> {
        let first = first.get();
        if first >= USER_CQS {
            let hint = "processes have queues 0 to 10";
            return Err(Error::with_value(Code::NotAvailable, "control queue", first.into(), hint));
        }
        Ok(Self { tnis: 0..NUM_TNI as u8, cqs: 0..USER_CQS, first, shared: true })
    }

    /// The queue of its own that the next process which nobody has counted gets, if each queue is
    /// taken or not as `is_free` says. With few processes they are those of a node with one, two,
    /// three or four.
    pub fn choose_queue(mut is_free: impl FnMut(CqId) -> bool) -> Option<CqId> {
        [0, 6, 4, 8, 2, 5, 9, 10, 7, 3, 1]
            .map(|cq| CqId::ALL[cq])
            .into_iter()
            .find(|cq| is_free(*cq))
    }

    /// The network interfaces.
    pub fn tnis(&self) -> impl ExactSizeIterator<Item = TniId> + use<> {
        TniId::ALL[usize::from(self.tnis.start)..usize::from(self.tnis.end)].iter().copied()
    }

    /// The control queues on each of them. The first is that of VCQs that are neither exclusive
    /// nor in session mode.
    pub fn cqs(&self) -> impl Iterator<Item = CqId> + use<> {
        let first = self.first;
        let others = self.cqs.clone().filter(move |cq| *cq != first);
        core::iter::once(first).chain(others).filter_map(CqId::new)
    }

    /// Whether a control queue is the process's for certain. Others must be asked for.
    pub fn owns(&self, tni: TniId, cq: CqId) -> bool {
        let within = self.tnis.contains(&tni.get()) && self.cqs.contains(&cq.get());
        within && (!self.shared || cq.get() == self.first)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    fn firsts(processes: u16) -> Vec<u8> {
        let mut firsts: Vec<u8> = (0..processes)
            .filter_map(|i| DeviceShare::new(i, processes).unwrap().cqs().next())
            .map(CqId::get)
            .collect();
        firsts.dedup();
        firsts
    }

    #[test]
    fn first_queues_are_those_of_real_systems() {
        assert_eq!(firsts(1), [0]);
        assert_eq!(firsts(2), [0, 6]);
        assert_eq!(firsts(3), [0, 4, 8]);
        for processes in [4, 5, 8, 9, 12, 13, 24] {
            let all = [0, 2, 5, 8];
            assert!(firsts(processes).iter().all(|cq| all.contains(cq)), "{processes}");
        }
        assert_eq!(firsts(4), [0, 2, 5, 8]);
        assert_eq!(firsts(24), [0, 2, 5, 8]);
        assert_eq!(firsts(30), [0, 2, 5, 8, 10]);
        assert_eq!(firsts(36), [0, 2, 5, 8, 9, 10]);
    }

    #[test]
    fn processes_do_not_share_queues() {
        for processes in 1..=MAX_PROCESSES {
            let mut seen = BTreeSet::new();
            for index in 0..processes {
                let share = DeviceShare::new(index, processes).unwrap();
                assert!(share.tnis().len() > 0, "{index} of {processes}");
                for tni in share.tnis() {
                    assert!(share.cqs().count() > 0);
                    for cq in share.cqs() {
                        assert!(share.owns(tni, cq));
                        assert!(cq < CqId::KERNEL);
                        assert!(seen.insert((tni, cq)), "{index} of {processes}: {tni} {cq}");
                    }
                }
            }
        }
        assert!(DeviceShare::new(0, 0).is_err());
        assert!(DeviceShare::new(0, 37).is_err());
        assert!(DeviceShare::new(4, 4).is_err());
    }

    #[test]
    fn a_process_that_was_not_counted_has_one_queue_and_the_hope_for_others() {
        let share = DeviceShare::of_queue(CqId::ALL[4]).unwrap();
        assert!(share.tnis().eq(TniId::ALL));
        let cqs: Vec<u8> = share.cqs().map(CqId::get).collect();
        assert_eq!(cqs, [4, 0, 1, 2, 3, 5, 6, 7, 8, 9, 10]);
        for cq in share.cqs() {
            assert_eq!(share.owns(TniId::ALL[5], cq), cq.get() == 4);
        }
        assert!(DeviceShare::of_queue(CqId::KERNEL).is_err());
        let mut free: BTreeSet<u8> = (0..USER_CQS).collect();
        let mut order = Vec::new();
        while let Some(cq) = DeviceShare::choose_queue(|cq| free.contains(&cq.get())) {
            assert!(free.remove(&cq.get()));
            order.push(cq.get());
        }
        assert!(free.is_empty(), "{free:?} left");
        assert_eq!(order[..2], [0, 6]);
    }

    #[test]
    fn up_to_four_processes_have_all_interfaces() {
        for processes in 1..=4 {
            assert!(DeviceShare::new(0, processes).unwrap().tnis().eq(TniId::ALL));
        }
    }
}
