//! The interfaces and control queues that a process of a node has.
//!
//! The first control queue of each process is the same as on real systems (public sources give it
//! for up to 36 processes per node), because programs compute IDs of their peers from it. These
//! first queues are the starts of equal shares of the eleven user queues. *Ours*: a process takes
//! further queues from its share; the interfaces of more than four processes; and the queues of
//! more than 36.

use core::ops::Range;

use tofu_abi::generation::{Description, Generation};
use tofu_abi::{CqId, TniId};

use crate::error::{Code, Error};
use crate::half::Half;

/// The first queues of processes, by how many equal shares the eleven user queues are divided into.
const STARTS: [&[u8]; 7] = [
    &[0],
    &[0, 6],
    &[0, 4, 8],
    &[0, 2, 5, 8],
    &[0, 2, 5, 8, 10],
    &[0, 2, 5, 8, 9, 10],
    &[0, 1, 2, 5, 6, 8, 9, 10],
];
/// The first queues with Tofu's two user queues.
const STARTS_OF_TWO: [&[u8]; 2] = [&[0], &[0, 1]];

/// Returns the first queues of processes that share a device. The first few processes have one
/// queue each. Beyond that, it is as few queues as suffice if processes with the same queue have at
/// least one interface each.
fn starts(description: &Description, processes: u16) -> Option<&'static [u8]> {
    if processes == 0 || processes > description.processes.into() {
        return None;
    }
    let all = if description.user_cqs() == 2 { &STARTS_OF_TWO[..] } else { &STARTS[..] };
    let few = all.iter().find(|starts| starts.len() == usize::from(processes));
    let fits = |starts: &&&[u8]| {
        let starts = starts.len();
        starts >= 4.min(all.len()) && starts * usize::from(description.tnis) >= processes.into()
    };
    few.filter(|starts| starts.len() < 5).or_else(|| all.iter().find(fits)).copied()
}

/// The share that a process has of its node's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceShare {
    tnis: Range<u8>,
    cqs: Range<u8>,
    /// The first of the queues.
    first: u8,
    /// True if queues other than the first may belong to other processes.
    shared: bool,
    /// Its number among the processes of the node that have the same interfaces.
    turn: u8,
    /// Its half of its queue, if another process has the rest.
    half: Option<Half>,
}

/// The first queues of processes without a known number, in the order in which they are given.
const CHOSEN: [usize; 11] = [0, 6, 4, 8, 2, 5, 9, 10, 7, 3, 1];

impl DeviceShare {
    /// Returns the share of process `index` of `processes` on its node.
    ///
    /// # Errors
    ///
    /// If there are 0 or more than 48 processes, or fewer than `index` + 1.
    pub fn new(index: u16, processes: u16) -> Result<Self, Error> {
        Self::of(Generation::Fugaku, index, processes)
    }

    /// Returns the share of a process on a node of a generation.
    ///
    /// # Errors
    ///
    /// If there are 0 or too many processes (more than 8 on the K computer and FX10, 32 on FX100,
    /// 48 on Fugaku), or fewer than `index` + 1.
    pub fn of(generation: Generation, index: u16, processes: u16) -> Result<Self, Error> {
        let description = generation.description();
        let starts = starts(description, processes).ok_or_else(|| {
            let hint = match description.processes {
                8 => "a node has 1 to 8 processes",
                32 => "a node has 1 to 32 processes",
                _ => "a node has 1 to 48 processes",
            };
            Error::with_value(Code::NotAvailable, "processes per node", processes.into(), hint)
        })?;
        if index >= processes {
            return Err(no_such_process(index));
        }
        // Processes with the same queues divide the interfaces among them.
        let sharing = usize::from(processes).div_ceil(starts.len());
        let tnis = usize::from(description.tnis) / sharing;
        let (share, turn) = (usize::from(index) / sharing, usize::from(index) % sharing);
        let end = starts.get(share + 1).copied().unwrap_or(description.user_cqs());
        let tni = (turn * tnis) as u8;
        let first = starts[share];
        let tnis = tni..tni + tnis as u8;
        Ok(Self { tnis, cqs: first..end, first, shared: false, turn: share as u8, half: None })
    }

    /// Returns the share of a process on a node that may have more processes than queues, up to one
    /// for each core. The first ones have the queues that they would have without the others. Each
    /// of the others shares the queue of one of them, so that each of the two has [half](Half).
    ///
    /// # Errors
    ///
    /// If there are 0 or more processes than cores, or fewer than `index` + 1.
    pub fn joint(generation: Generation, index: u16, processes: u16) -> Result<Self, Error> {
        let description = generation.description();
        let own = u16::from(description.processes);
        if processes <= own {
            return Self::of(generation, index, processes);
        }
        if processes > description.cores.into() {
            let hint = match description.cores {
                8 => "a node has 8 cores",
                16 => "a node has 16 cores",
                32 => "a node has 32 cores",
                _ => "a node has 48 cores",
            };
            let what = "processes per node";
            return Err(Error::with_value(Code::NotAvailable, what, processes.into(), hint));
        }
        if index >= processes {
            return Err(no_such_process(index));
        }
        let half = if index < own { Half::Lower } else { Half::Upper };
        let is_alone = index < own && index + own >= processes;
        let share = Self::of(generation, index % own, own)?;
        Ok(Self { half: (!is_alone).then_some(half), ..share })
    }

    /// Returns the share of a process without a known number, which was given control queue `first`
    /// of every interface. It may use other queues that no other process has.
    ///
    /// # Errors
    ///
    /// If that user queue does not exist.
    pub fn of_queue(generation: Generation, first: CqId) -> Result<Self, Error> {
        let description = generation.description();
        let first = first.get();
        if first >= description.user_cqs() {
            let hint = "the highest queue is the kernel's";
            return Err(Error::with_value(Code::NotAvailable, "control queue", first.into(), hint));
        }
        let cqs = 0..description.user_cqs();
        let turn = CHOSEN.iter().position(|cq| *cq == usize::from(first)).unwrap_or(0) as u8;
        Ok(Self { tnis: 0..description.tnis, cqs, first, shared: true, turn, half: None })
    }

    /// Returns its number among the processes of the node that have the same interfaces.
    pub const fn turn(&self) -> u8 {
        self.turn
    }

    /// Returns the process's half of its only queue, if another process has the rest.
    pub const fn half(&self) -> Option<Half> {
        self.half
    }

    /// Returns the first queue for the next process without a known number. `is_free` returns true
    /// for free queues. With few processes, the queues are those of a node with one, two, three or
    /// four processes.
    pub fn choose_queue(
        generation: Generation,
        mut is_free: impl FnMut(CqId) -> bool,
    ) -> Option<CqId> {
        let users = generation.description().user_cqs();
        CHOSEN
            .map(|cq| CqId::ALL[cq])
            .into_iter()
            .filter(|cq| cq.get() < users)
            .find(|cq| is_free(*cq))
    }

    /// Returns the process's only queue, and its half of it, if another process has the rest.
    pub fn shared_queue(&self) -> Option<((TniId, CqId), Half)> {
        Some((self.tnis().next().zip(self.cqs().next())?, self.half?))
    }

    /// Returns the network interfaces.
    pub fn tnis(&self) -> impl ExactSizeIterator<Item = TniId> + use<> {
        TniId::ALL[usize::from(self.tnis.start)..usize::from(self.tnis.end)].iter().copied()
    }

    /// Returns the control queues on each of them. The first is for VCQs that are neither exclusive
    /// nor in session mode.
    pub fn cqs(&self) -> impl Iterator<Item = CqId> + use<> {
        let first = self.first;
        let others = self.cqs.clone().filter(move |cq| *cq != first);
        core::iter::once(first).chain(others).filter_map(CqId::new)
    }

    /// Returns whether a control queue certainly belongs to the process. Others must be claimed.
    pub fn owns(&self, tni: TniId, cq: CqId) -> bool {
        let within = self.tnis.contains(&tni.get()) && self.cqs.contains(&cq.get());
        within && (!self.shared || cq.get() == self.first)
    }
}

fn no_such_process(index: u16) -> Error {
    let hint = "not below the number of processes per node";
    Error::with_value(Code::NotAvailable, "process", index.into(), hint)
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    const FUGAKU: Generation = Generation::Fugaku;

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
        // Ours: no source has more than 36.
        assert_eq!(firsts(48), [0, 1, 2, 5, 6, 8, 9, 10]);
    }

    #[test]
    fn processes_do_not_share_queues() {
        for generation in Generation::ALL {
            let description = generation.description();
            for processes in 1..=description.processes.into() {
                let mut seen = BTreeSet::new();
                for index in 0..processes {
                    let share = DeviceShare::of(generation, index, processes).unwrap();
                    assert!(share.tnis().len() > 0, "{index} of {processes}");
                    for tni in share.tnis() {
                        assert!(description.has_tni(tni) && share.cqs().count() > 0);
                        for cq in share.cqs() {
                            assert!(share.owns(tni, cq));
                            assert!(cq < description.kernel_cq());
                            assert!(seen.insert((tni, cq)), "{index} of {processes}: {tni} {cq}");
                        }
                    }
                }
            }
            let too_many = u16::from(description.processes) + 1;
            assert!(DeviceShare::of(generation, 0, too_many).is_err());
        }
        assert!(DeviceShare::new(0, 0).is_err());
        assert!(DeviceShare::new(0, 49).is_err());
        assert!(DeviceShare::new(4, 4).is_err());
    }

    #[test]
    fn two_processes_at_most_share_a_queue() {
        for generation in Generation::ALL {
            let description = generation.description();
            for processes in 1..=description.cores.into() {
                let mut seen = BTreeSet::new();
                for index in 0..processes {
                    let share = DeviceShare::joint(generation, index, processes).unwrap();
                    let queues: Vec<_> =
                        share.tnis().flat_map(|tni| share.cqs().map(move |cq| (tni, cq))).collect();
                    assert!(share.half().is_none() || queues.len() == 1);
                    let halves = share.half().map_or_else(|| Half::BOTH.to_vec(), |h| [h].into());
                    for (queue, half) in queues.iter().flat_map(|q| halves.iter().map(|h| (*q, *h)))
                    {
                        assert!(seen.insert((queue, half as u8)), "{index} of {processes}");
                    }
                }
            }
            let too_many = u16::from(description.cores) + 1;
            assert!(DeviceShare::joint(generation, 0, too_many).is_err());
        }
        let half = |index, processes| {
            DeviceShare::joint(Generation::Fx10, index, processes).unwrap().half()
        };
        assert_eq!([0, 1, 7, 8].map(|i| half(i, 9)), {
            [Some(Half::Lower), None, None, Some(Half::Upper)]
        });
        assert_eq!(half(7, 8), None);
        assert!(DeviceShare::joint(Generation::Fx10, 9, 9).is_err());
    }

    #[test]
    fn uncounted_process_gets_one_queue() {
        let share = DeviceShare::of_queue(FUGAKU, CqId::ALL[4]).unwrap();
        assert!(share.tnis().eq(TniId::ALL));
        let cqs: Vec<u8> = share.cqs().map(CqId::get).collect();
        assert_eq!(cqs, [4, 0, 1, 2, 3, 5, 6, 7, 8, 9, 10]);
        for cq in share.cqs() {
            assert_eq!(share.owns(TniId::ALL[5], cq), cq.get() == 4);
        }
        assert!(DeviceShare::of_queue(FUGAKU, CqId::KERNEL).is_err());
        let mut free: BTreeSet<u8> = (0..11).collect();
        let mut order = Vec::new();
        while let Some(cq) = DeviceShare::choose_queue(FUGAKU, |cq| free.contains(&cq.get())) {
            assert!(free.remove(&cq.get()));
            order.push(cq.get());
        }
        assert!(free.is_empty(), "{free:?} left");
        assert_eq!(order[..2], [0, 6]);
    }

    #[test]
    fn tofu_queues_are_chosen_in_order() {
        let mut free: BTreeSet<u8> = (0..3).collect();
        let mut choose = || {
            let cq = DeviceShare::choose_queue(Generation::K, |cq| free.contains(&cq.get()))?;
            free.remove(&cq.get());
            Some(cq.get())
        };
        assert_eq!([choose(), choose(), choose()], [Some(0), Some(1), None]);
    }

    #[test]
    fn up_to_four_processes_have_all_interfaces() {
        for processes in 1..=4 {
            assert!(DeviceShare::new(0, processes).unwrap().tnis().eq(TniId::ALL));
        }
    }
}
