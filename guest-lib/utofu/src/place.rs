//! Which interfaces and control queues a process of a node has.
//!
//! The first control queue of each process is that of real systems (public sources give them for
//! all numbers of processes per node); programs compute IDs of their peers from it. They are the
//! starts of equal shares of the eleven user queues, from which this library takes the further
//! queues of a process; that, and the interfaces of more than four processes, is ours.

use core::ops::Range;

use tofu_abi::regs::NUM_TNI;

use crate::error::{Code, Error};

/// Control queues that user processes have: 0 to 10.
const USER_CQS: u8 = 11;
/// Processes of a node at most.
pub const MAX_PROCESSES: u16 = 36;

/// The share of a process in its node's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    tnis: Range<u8>,
    cqs: Range<u8>,
}

impl Place {
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
        let first = (turn * tnis) as u8;
        Ok(Self { tnis: first..first + tnis as u8, cqs: starts[share]..end })
    }

    /// The network interfaces.
    pub fn tnis(&self) -> Range<u8> {
        self.tnis.clone()
    }

    /// The control queues on each of them. The first is that of VCQs that are neither exclusive
    /// nor in session mode.
    pub fn cqs(&self) -> Range<u8> {
        self.cqs.clone()
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    fn firsts(processes: u16) -> Vec<u8> {
        let mut firsts: Vec<u8> =
            (0..processes).map(|i| Place::new(i, processes).unwrap().cqs().start).collect();
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
                let place = Place::new(index, processes).unwrap();
                assert!(!place.tnis().is_empty(), "{index} of {processes}");
                for tni in place.tnis() {
                    assert!(tni < 6 && !place.cqs().is_empty());
                    for cq in place.cqs() {
                        assert!(cq < USER_CQS);
                        assert!(seen.insert((tni, cq)), "{index} of {processes}: {tni} {cq}");
                    }
                }
            }
        }
        assert!(Place::new(0, 0).is_err());
        assert!(Place::new(0, 37).is_err());
        assert!(Place::new(4, 4).is_err());
    }

    #[test]
    fn up_to_four_processes_have_all_interfaces() {
        for processes in 1..=4 {
            assert_eq!(Place::new(0, processes).unwrap().tnis(), 0..6);
        }
    }
}
