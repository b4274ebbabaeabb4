//! The parts of a Put or Get that its target carries out in place.

use std::fmt;

use tofu_abi::desc::Header1;
use tofu_abi::{Coords, Path, TniId};
use vm_memory::VolatileSlice;

use crate::notice::Peer;
use crate::tlp::{Request, Size};

/// The bits of a header that name the target's node and the path.
const ENDS: u64 = {
    let ones = Coords { x: 0xff, y: 0xff, z: 0xff, a: 1, b: 3, c: 1 };
    Header1(0).with_target(ones).with_pa(1).with_pb(3).with_pc(1).0
};

/// A Put or Get, for its target to carry out in place, as in a blocking transport of TLM-2.0.
pub struct Transaction<'a> {
    pub(crate) is_put: bool,
    pub(crate) from: Peer,
    /// The command's header, which names the target.
    pub(crate) header1: Header1,
    pub(crate) tni: TniId,
    pub(crate) request: &'a Request,
    /// The memory at the initiator.
    pub(crate) memory: VolatileSlice<'a>,
    pub(crate) there: Size,
    pub(crate) back: Size,
    /// Modelled time from the doorbell to the first TLP, in picoseconds.
    pub(crate) issue_ps: u64,
    /// Reports that the command has begun, if commands are traced. The target calls it as soon as
    /// nothing can keep it from carrying out the transaction.
    pub(crate) begun: Option<&'a dyn Fn()>,
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("request", self.request).finish_non_exhaustive()
    }
}

/// A transaction that was carried out: modelled times at its target, in picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    pub(crate) issue_ps: u64,
    pub(crate) deliver_ps: u64,
    /// From the end of the request to the first TLP of the answer.
    pub(crate) answer_ps: u64,
}

/// Modelled time from the doorbell to the end of the request, and to the arrival of the answer, in
/// picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub(crate) request_ps: u64,
    pub(crate) answer_ps: u64,
}

impl Transaction<'_> {
    /// Stands for its [ends](Transaction::ends).
    #[inline]
    pub const fn key(&self) -> [u64; 2] {
        let Coords { x, y, z, a, b, c } = self.from.node;
        [u64::from_le_bytes([x, y, z, a, b, c, 0, 0]), self.header1.0 & ENDS]
    }

    /// The nodes of the initiator and the target, and the path.
    pub const fn ends(&self) -> (Coords, Coords, Path) {
        (self.from.node, self.header1.target(), self.header1.path())
    }

    /// The interface that sends the request, and the TLPs and bytes of the request.
    #[inline]
    pub const fn there(&self) -> (TniId, u32, u64) {
        (self.from.tni, self.there.tlps, self.there.bytes)
    }

    /// The same of the answer.
    #[inline]
    pub const fn back(&self) -> (TniId, u32, u64) {
        (self.tni, self.back.tlps, self.back.bytes)
    }
}

impl Served {
    /// The end of the transaction, whose request and answer take this time on links, in
    /// picoseconds.
    #[inline]
    pub const fn over(self, there_ps: u64, back_ps: u64) -> Ended {
        let Self { issue_ps, deliver_ps, answer_ps } = self;
        let request_ps = issue_ps.saturating_add(there_ps).saturating_add(deliver_ps);
        let answer_ps = request_ps.saturating_add(answer_ps).saturating_add(back_ps);
        Ended { request_ps, answer_ps }
    }
}
