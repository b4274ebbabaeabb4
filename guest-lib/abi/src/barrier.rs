//! The Tofu barrier: gate addresses, links, the start of a round and its notice.
//!
//! Names, widths and bit positions of registers are public facts of the TofuD ICC. The start of a
//! round and the layout of its notice are not public: see [`BchReady`] and [`Notice`], which are
//! ours.

use core::fmt;

use crate::bitfield;
use crate::reduce::{Op, VALUE_QWORDS};
use crate::{BchId, BgId, Coords, Path, TniId};

/// Barrier sequence numbers have 24 bits.
pub const BSEQ_MASK: u32 = (1 << 24) - 1;
/// Group process ids have 40 bits at a gate.
pub const GPID_MASK: u64 = (1 << 40) - 1;
/// Bytes of a channel's notice area, which is also its alignment.
pub const NOTICE_SIZE: usize = 256;

/// The features of barriers in a generation of Tofu: part of its
/// [`Description`](crate::generation::Description).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Network interfaces with barrier gates, from 0 on.
    pub tnis: u8,
    /// Barrier channels of an interface: those of gates 0 to `channels - 1`.
    pub channels: u8,
    /// Barrier gates of an interface.
    pub gates: u8,
    /// Integers of one reduction.
    pub integers: u8,
    /// Floating-point numbers of one reduction.
    pub doubles: u8,
}

impl Profile {
    /// Elements that a channel takes at most.
    pub const fn max_elements(&self, op: Op) -> u8 {
        match op {
            Op::Barrier => 0,
            Op::FpSum => self.doubles,
            _ => self.integers,
        }
    }

    /// Returns true if there is such a gate.
    pub const fn has_gate(&self, tni: TniId, bg: BgId) -> bool {
        tni.get() < self.tnis && bg.get() < self.gates
    }

    /// Returns true if there is such a channel.
    pub const fn has_channel(&self, tni: TniId, bch: BchId) -> bool {
        tni.get() < self.tnis && bch.get() < self.channels
    }

    /// Returns true if the gate exists and is a channel's start/end gate.
    pub const fn has_start_gate(&self, tni: TniId, bg: BgId) -> bool {
        match bg.channel() {
            Some(bch) => self.has_channel(tni, bch),
            None => false,
        }
    }

    /// Returns true if there is such a gate on some node.
    pub const fn has_address(&self, address: BgAddress) -> bool {
        match (TniId::new(address.tni()), BgId::new(address.bg())) {
            (Some(tni), Some(bg)) => self.has_gate(tni, bg) && address.b() < 3,
            _ => false,
        }
    }
}

/// Bits of an element in IDATA.
pub const fn input_bits(op: Op) -> u32 {
    match op {
        Op::FpSum => 160,
        _ => 64,
    }
}

/// OP_TYPE of a signal: the code of an operator, or [`OpType::ERROR`]. Others may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct OpType(u8);

impl OpType {
    /// An error instead of a value (ours).
    pub const ERROR: Self = Self(0xf);

    /// The type with this code.
    pub const fn new(code: u8) -> Self {
        Self(code)
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The operator. None for an error, or if there is no such operator.
    pub const fn op(self) -> Option<Op> {
        Op::from_code(self.0)
    }
}

impl From<Op> for OpType {
    fn from(op: Op) -> Self {
        Self(op.code())
    }
}

bitfield! {
    /// Address of a barrier gate: node, interface and gate, and in the upper four bits the path to
    /// it (28 bits where a gate receives, 32 where it sends).
    pub struct BgAddress {
        /// Barrier gate.
        bg / with_bg: u8 @ 0..=5,
        /// Network interface.
        tni / with_tni: u8 @ 6..=8,
        /// C coordinate.
        c / with_c: u8 @ 9..=9,
        /// B coordinate.
        b / with_b: u8 @ 10..=11,
        /// A coordinate.
        a / with_a: u8 @ 12..=12,
        /// Z coordinate.
        z / with_z: u8 @ 13..=17,
        /// Y coordinate.
        y / with_y: u8 @ 18..=22,
        /// X coordinate.
        x / with_x: u8 @ 23..=27,
        /// C coordinate of the path.
        pc / with_pc: u8 @ 28..=28,
        /// B coordinate of the path.
        pb / with_pb: u8 @ 29..=30,
        /// A coordinate of the path.
        pa / with_pa: u8 @ 31..=31,
    }
}

impl BgAddress {
    /// A gate, with the default path to its node.
    pub const fn new(node: Coords, tni: TniId, bg: BgId) -> Self {
        Self(0).with_bg(bg.get()).with_tni(tni.get()).with_coords(node)
    }

    /// The gate of these numbers on another node, with the default path there.
    #[must_use]
    pub const fn with_coords(self, node: Coords) -> Self {
        self.with_c(node.c)
            .with_b(node.b)
            .with_a(node.a)
            .with_z(node.z)
            .with_y(node.y)
            .with_x(node.x)
            .with_path(node.default_path())
    }

    /// The node.
    pub const fn coords(self) -> Coords {
        Coords::new(self.x(), self.y(), self.z(), self.a(), self.b(), self.c())
    }

    /// The path there.
    pub const fn path(self) -> Path {
        Path::new(self.pa(), self.pb(), self.pc())
    }

    /// The same gate by another path.
    #[must_use]
    pub const fn with_path(self, path: Path) -> Self {
        self.with_pa(path.a).with_pb(path.b).with_pc(path.c)
    }

    /// The address without its path: 28 bits.
    #[must_use]
    pub const fn place(self) -> Self {
        Self(self.0 & 0x0fff_ffff)
    }
}

impl fmt::Display for BgAddress {
    /// `node (0,0,0,0,0,0), TNI 0, gate 0`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}, TNI {}, gate {}", self.coords(), self.tni(), self.bg())
    }
}

bitfield! {
    /// BGS SIGNAL_A and SIGNAL_B: what is in one of a gate's two buffers.
    pub struct SignalState {
        /// Operator of the value in the buffer, 0 if it is empty.
        op / with_op: u8 @ 0..=3,
        /// Ours: the gate's channel has started this round.
        sig_send / with_sig_send: bool @ 61..=61,
        /// The signal of the remote gate has come.
        tlp_recv / with_tlp_recv: bool @ 62..=62,
        /// The signal of the local gate has come.
        sig_recv / with_sig_recv: bool @ 63..=63,
    }
}

bitfield! {
    /// BGS SIGNAL_MASK: links that a gate does not have.
    pub struct SignalMask {
        /// It sends to no remote gate.
        tlp_send / with_tlp_send: bool @ 60..=60,
        /// It sends to no local gate.
        sig_send / with_sig_send: bool @ 61..=61,
        /// It waits for no remote gate.
        tlp_recv / with_tlp_recv: bool @ 62..=62,
        /// It waits for no local gate.
        sig_recv / with_sig_recv: bool @ 63..=63,
    }
}

bitfield! {
    /// BGS LOCAL_LINK: gates of the same interface.
    pub struct LocalLink {
        /// Gate that signals go to.
        send / with_send: u8 @ 0..=5,
        /// Gate that signals come from.
        recv / with_recv: u8 @ 32..=37,
    }
}

bitfield! {
    /// BGS REMOTE_LINK: gates of any node and interface, see [`BgAddress`].
    pub struct RemoteLink {
        /// Gate that signals go to, with the path.
        send / with_send: u32 @ 0..=31,
        /// Gate that signals come from, without a path.
        recv / with_recv: u32 @ 32..=59,
    }
}

bitfield! {
    /// BGS GPID_BSEQ.
    pub struct GpidBseq {
        /// Sequence number of the round that the gate works on. Ours: it advances while the gate is
        /// enabled.
        bseq / with_bseq: u32 @ 0..=23,
        /// Group process id, which all gates of a group share.
        gpid / with_gpid: u64 @ 24..=63,
    }
}

bitfield! {
    /// BCH READY.
    ///
    /// That STATE says whether the channel can take another operation is public; that a write with
    /// START begins one is ours. The operation takes the values that are in IDATA at that time.
    pub struct BchReady {
        /// Operation, see [`Op`].
        op / with_op: u8 @ 0..=3,
        /// Elements of IDATA in use, the rest counts as 0.
        count / with_count: u8 @ 8..=11,
        /// Begins a round.
        start / with_start: bool @ 62..=62,
        /// The channel can take another operation.
        state / with_state: bool @ 63..=63,
    }
}

/// Bit 63 of BGS BCH_MASK: the channel takes no operations and ends no rounds.
pub const BCH_MASK: u64 = 1 << 63;
/// Bit 63 of BGS BCH_MASK_STATUS: a change of the mask is not in effect yet (inferred from the
/// public kernel driver, which waits for it to be clear). Always clear in this device.
pub const BCH_MASK_STATUS_RUN: u64 = 1 << 63;

bitfield! {
    /// TNI EXCEPTION_INFO_INACTIVE_BG: the last signal to a gate that is not enabled.
    pub struct InactiveBg {
        /// Address of the gate that sent it.
        source / with_source: u32 @ 0..=27,
        /// The gate that it was for.
        dest / with_dest: u8 @ 32..=37,
    }
}

bitfield! {
    /// Last word of a notice.
    pub struct NoticeStatus {
        /// Sequence number of the round.
        bseq / with_bseq: u32 @ 0..=23,
        /// Operator, or [`OpType::ERROR`] if members started the round with different ones.
        op / with_op: u8 @ 24..=27,
        /// The notice was written.
        valid / with_valid: bool @ 63..=63,
    }
}

/// The place of a round's notice in the notice area (ours).
///
/// The area has two halves of 128 bytes. A round writes the one that the lowest bit of its
/// sequence number chooses: fifteen qwords of result, then [`NoticeStatus`], which is written
/// last.
pub struct Notice;

impl Notice {
    /// Byte offset of the half that round `bseq` writes.
    pub const fn offset(bseq: u32) -> usize {
        (bseq as usize & 1) * NOTICE_SIZE / 2
    }

    /// Byte offset of the status word of round `bseq`.
    pub const fn status_offset(bseq: u32) -> usize {
        Self::offset(bseq) + VALUE_QWORDS * 8
    }
}
