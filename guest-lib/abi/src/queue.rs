//! Queues and their entries.
//!
//! Every queue is a ring in guest memory without an index register on its hot path: an
//! entry is new when its flip bit differs from that of the previous lap. Queues start
//! zeroed, so entries of the first lap have the flip bit set ([`RingIndex`]).

use crate::addr::{Coords, Path, StagOffset};
use crate::desc::Header1;
use crate::{Rcode, bitfield, codes};

/// Largest size code of a queue.
pub(crate) const MAX_SIZE_CODE: u64 = 5;

/// Entries of a queue with size code `code` (0 to 5): 2^(2 code + 11).
pub const fn queue_entries(code: u64) -> Option<u32> {
    if code <= MAX_SIZE_CODE { Some(1 << (2 * code + 11)) } else { None }
}

/// Bytes of a TCQ entry.
pub const TCQ_ENTRY_SIZE: usize = 8;
/// Bytes of an MRQ entry.
pub const MRQ_ENTRY_SIZE: usize = 32;
/// Bytes of a PBQ entry.
pub const PBQ_ENTRY_SIZE: usize = 8;
/// Bytes of a PRQ entry.
pub const PRQ_ENTRY_SIZE: usize = 8;
/// Bytes of the frame buffer that a PBQ entry posts.
pub const PACKET_BUFFER_SIZE: usize = 1 << PACKET_BUFFER_SHIFT;
const PACKET_BUFFER_SHIFT: u32 = 11;
/// Bytes of one statistics dump: data and wait cycles for 6 TNIs and 10 ports, a qword each.
pub const STQ_ENTRY_SIZE: usize = 0x100;

/// A position in a ring: where the next entry goes and which flip bit it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingIndex {
    entries: u32,
    count: u64,
}

impl RingIndex {
    /// The start of an empty ring. `entries` must be a power of two; it is rounded up to
    /// one otherwise.
    pub const fn new(entries: u32) -> Self {
        Self { entries: entries.next_power_of_two(), count: 0 }
    }

    /// Entries passed since the ring was empty.
    #[inline]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Entries of the ring.
    #[inline]
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// Slot of the next entry.
    #[inline]
    pub const fn slot(&self) -> u32 {
        (self.count & (self.entries as u64 - 1)) as u32
    }

    /// Flip bit of a valid entry at that slot on this lap: set on the first lap.
    #[inline]
    pub const fn flip(&self) -> bool {
        self.count & self.entries as u64 == 0
    }

    /// Entries passed that a consumer has not taken, which has taken `consumed` in all. Low bits
    /// count alone, so for one that is ahead of this end there are more than the ring has.
    #[inline]
    pub const fn unconsumed(&self, consumed: u64) -> u64 {
        self.count.wrapping_sub(consumed) & (2 * self.entries as u64 - 1)
    }

    /// Moves on by one entry.
    #[inline]
    pub const fn advance(&mut self) {
        self.count = self.count.wrapping_add(1);
    }
}

bitfield! {
    /// A transmit complete queue (TCQ) entry: entry i answers TOQ entry i.
    pub struct TcqEntry {
        /// The descriptors taken do not match the doorbells (not raised here).
        counter_unmatch / with_counter_unmatch: bool @ 5..=5,
        /// Flip bit.
        flip / with_flip: bool @ 7..=7,
        /// The result of the command, see [`Rcode`].
        rcode / with_rcode: Rcode @ 8..=15,
        /// Bytes of the message.
        length / with_length: u32 @ 32..=55,
    }
}

bitfield! {
    /// First qword of a message receive queue (MRQ) entry.
    pub struct MrqWord0 {
        /// Flip bit.
        flip / with_flip: bool @ 7..=7,
        /// The event, see [`MrqId`].
        id / with_id: u8 @ 8..=15,
        /// The result, see [`Rcode`].
        rcode / with_rcode: Rcode @ 16..=23,
        /// Path: A coordinate.
        pa / with_pa: u8 @ 28..=28,
        /// Path: B coordinate.
        pb / with_pb: u8 @ 29..=30,
        /// Path: C coordinate.
        pc / with_pc: u8 @ 31..=31,
        /// X of the node at the other end.
        x / with_x: u8 @ 32..=39,
        /// Y of the node at the other end.
        y / with_y: u8 @ 40..=47,
        /// Z of the node at the other end.
        z / with_z: u8 @ 48..=55,
        /// A of the node at the other end.
        a / with_a: u8 @ 56..=56,
        /// B of the node at the other end.
        b / with_b: u8 @ 57..=58,
        /// C of the node at the other end.
        c / with_c: u8 @ 59..=59,
        /// Network interface at the other end.
        i / with_i: u8 @ 61..=63,
    }
}

impl MrqWord0 {
    /// Bits of path, coordinates and interface.
    const OTHER_END: u64 = u64::MAX << 28 & !(1 << 60);

    /// One whose other end is the target of a command, by its path. A header has these at the same
    /// bits.
    pub const fn about_target(header: Header1) -> Self {
        Self(header.0 & Self::OTHER_END)
    }

    /// Coordinates of the node at the other end.
    pub const fn coords(self) -> Coords {
        Coords::new(self.x(), self.y(), self.z(), self.a(), self.b(), self.c())
    }

    /// A copy with the other end's coordinates replaced.
    #[must_use]
    pub const fn with_coords(self, n: Coords) -> Self {
        self.with_x(n.x).with_y(n.y).with_z(n.z).with_a(n.a).with_b(n.b).with_c(n.c)
    }

    /// A copy with the path replaced.
    #[must_use]
    pub const fn with_path(self, p: Path) -> Self {
        self.with_pa(p.a).with_pb(p.b).with_pc(p.c)
    }
}

bitfield! {
    /// Second qword of an MRQ entry.
    pub struct MrqWord1 {
        /// The first TLP of its message.
        initial / with_initial: bool @ 12..=12,
        /// The command's edata.
        edata / with_edata: u16 @ 16..=31,
        /// Payload bytes of the TLP that the notice is for.
        length / with_length: u16 @ 32..=42,
        /// Operator of an atomic command.
        op / with_op: u8 @ 32..=35,
    }
}

codes! {
    /// The kind of an MRQ entry. *Halfway* ids are seen at the target, the others at the initiator.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum MrqId {
        /// This node's memory was changed by an atomic command.
        ArmwHalfway = 1,
        /// An atomic command of this queue is complete.
        Armw = 2,
        /// An atomic command of this queue failed.
        ArmwRemoteError = 3,
        /// A TLP of a Put, not the last one, was written here.
        PutHalfway = 4,
        /// A Put was written here.
        PutLastHalfway = 5,
        /// A TLP of a Get, not the last one, was read here.
        GetHalfway = 6,
        /// A Get was read here.
        GetLastHalfway = 7,
        /// A TLP of a Put of this queue, not the last one, arrived.
        Put = 8,
        /// A Put of this queue is complete.
        PutLast = 9,
        /// A TLP of a Get of this queue, not the last one, arrived.
        Get = 10,
        /// A Get of this queue is complete.
        GetLast = 11,
        /// A TLP of a Put of this queue, not the last one, failed.
        PutRemoteError = 12,
        /// A Put of this queue failed.
        PutLastRemoteError = 13,
        /// A TLP of a Get of this queue, not the last one, failed.
        GetRemoteError = 14,
        /// A Get of this queue failed.
        GetLastRemoteError = 15,
    }
}

impl MrqId {
    /// The value of MRQ_MASK (ours) with which only notices with these ids are written, and all
    /// others discarded: bit n is for id n.
    pub const fn mask_all_but(ids: &[Self]) -> u64 {
        let mut mask = !crate::regs::MRQ_MASK_DISCARD;
        let mut rest = ids;
        while let [id, others @ ..] = rest {
            mask &= !(1 << *id as u8);
            rest = others;
        }
        mask
    }

    /// Returns true if the notice is for a command of another node's queue.
    pub const fn is_halfway(self) -> bool {
        matches!(
            self,
            Self::ArmwHalfway
                | Self::PutHalfway
                | Self::PutLastHalfway
                | Self::GetHalfway
                | Self::GetLastHalfway
        )
    }

    /// Returns true if the notice is for the end of a command of the queue that it is in. Every
    /// command that was sent has exactly one such notice, except raw and system packets, which have
    /// none.
    pub const fn ends_own_command(self) -> bool {
        matches!(
            self,
            Self::Armw
                | Self::ArmwRemoteError
                | Self::PutLast
                | Self::PutLastRemoteError
                | Self::GetLast
                | Self::GetLastRemoteError
        )
    }
}

/// An MRQ entry of 32 bytes.
///
/// Qword 2 is the local and qword 3 the remote CQ-STag-offset word (ours: public sources
/// give two words, local and remote), seen from the queue that the entry is in. Both are
/// advanced by the length for Put and Get, neither is for atomic commands; an atomic
/// command's old value is in qword 2 of the initiator's notice (ours).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C, align(32))]
pub struct MrqEntry(pub [u64; 4]);

impl MrqEntry {
    /// Flip, id, rcode and the other end.
    pub const fn word0(&self) -> MrqWord0 {
        MrqWord0(self.0[0])
    }

    /// edata and length.
    pub const fn word1(&self) -> MrqWord1 {
        MrqWord1(self.0[1])
    }

    /// The kind of the entry, if its id is a known one.
    pub fn id(&self) -> Option<MrqId> {
        MrqId::from_code(self.word0().id())
    }

    /// Address on this side.
    pub const fn local(&self) -> StagOffset {
        StagOffset(self.0[2])
    }

    /// Address on the other side.
    pub const fn remote(&self) -> StagOffset {
        StagOffset(self.0[3])
    }

    /// The old value, in the initiator's notice of an atomic command.
    pub const fn old_value(&self) -> u64 {
        self.0[2]
    }
}

bitfield! {
    /// A packet buffer queue (PBQ) entry.
    pub struct PbqEntry {
        /// Flip bit.
        f / with_f: bool @ 7..=7,
        /// Address of the frame buffer, in units of 2048 bytes.
        pa_units / with_pa_units: u64 @ 11..=39,
    }
}

bitfield! {
    /// A packet receive queue (PRQ) entry.
    pub struct PrqEntry {
        /// The kind of the received packet, see [`PrqRcode`].
        rcode / with_rcode: u8 @ 0..=6,
        /// Flip bit.
        f / with_f: bool @ 7..=7,
        /// Address of the frame buffer, in units of 2048 bytes.
        pa_units / with_pa_units: u64 @ 11..=39,
        /// W flag. Ours: this node's device wrote the content of the buffer, a
        /// [`crate::frame::Report`].
        w / with_w: bool @ 48..=48,
        /// L flag. Ours: the last entry about its TLP. It is always set.
        l / with_l: bool @ 54..=54,
        /// E flag. Ours: the buffer could not be written and holds nothing.
        e / with_e: bool @ 55..=55,
    }
}

impl PbqEntry {
    /// An entry that posts the buffer at `addr`, a multiple of 2048 below 2^40.
    pub const fn post(addr: u64, flip: bool) -> Self {
        Self(0).with_pa_units(addr >> PACKET_BUFFER_SHIFT).with_f(flip)
    }

    /// Address of the buffer.
    pub const fn addr(self) -> u64 {
        self.pa_units() << PACKET_BUFFER_SHIFT
    }
}

impl PrqEntry {
    /// Address of the buffer.
    pub const fn addr(self) -> u64 {
        self.pa_units() << PACKET_BUFFER_SHIFT
    }

    /// The kind of the received packet, if the code is a known one.
    pub fn kind(self) -> Option<PrqRcode> {
        PrqRcode::from_code(self.rcode())
    }
}

codes! {
    /// The subject of a PRQ entry. The names are public; the exact condition for each is ours.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum PrqRcode {
        /// A TLP of no known kind.
        UnknownTlp = 0,
        /// A system TLP.
        SystemTlp = 1,
        /// A request to an address beyond an STag, a table or a memory block.
        AddressRangeException = 6,
        /// A request to an address that the queue's tables do not offer for it.
        CqException = 8,
        /// A TLP with fields that cannot be: a system TLP that names another source than its frame.
        IllegalTlpFlags = 9,
        /// A TLP of an impossible length.
        IllegalTlpLength = 10,
        /// A request that the queue does not accept: the queue does not exist, is disabled, or is
        /// restricted to other nodes.
        CqError = 12,
    }
}
