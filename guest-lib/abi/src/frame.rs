//! Frames of raw and system packets, as they lie in memory.
//!
//! Three things are public: the sizes, the structure of a frame (a routing header, and a TLP that
//! ends with an ECRC), and the names of the routing header's fields (TofuD paper, Figure 5).
//! Everything else is ours.
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 7 | [`RoutingHeader`] |
//! | 8 to 15 | [`TlpHeader`], the first qword of the TLP |
//! | 16 to 15 + `length` | payload |
//! | up to the last 4 | zeros that fill the TLP up to a multiple of 32 bytes, 96 at least |
//! | last 4 | ECRC: the CRC-32 of ISO 3309 over the TLP before it, little endian |
//!
//! A driver that sends a *system packet* leaves 16 bytes free and writes the payload after them;
//! the device fills in headers, padding and ECRC. A *raw packet* is sent as it is in memory, except
//! for the routing header, which the device fills in. In a frame for TRANSMIT_RAW_PACKET2 it keeps
//! the target's TNI.

use crate::addr::{Coords, Path, StagOffset};
use crate::{Rcode, bitfield};

/// Bytes of a routing header.
pub const ROUTING_HEADER_SIZE: usize = 8;
/// Bytes in front of the payload: routing header and TLP header.
pub const HEADER_SIZE: usize = ROUTING_HEADER_SIZE + 8;
/// Bytes of the ECRC.
pub const ECRC_SIZE: usize = 4;
/// A TLP is a multiple of this many bytes.
pub const TLP_UNIT: usize = 32;
/// Bytes of the shortest TLP: LEN 2.
pub const TLP_MIN: usize = 96;
/// Bytes of the longest TLP: LEN 61.
pub const TLP_MAX: usize = 1984;
/// Bytes of the shortest frame.
pub const FRAME_MIN: usize = ROUTING_HEADER_SIZE + TLP_MIN;
/// Bytes of the longest frame.
pub const FRAME_MAX: usize = ROUTING_HEADER_SIZE + TLP_MAX;
/// Bytes of payload that a system packet can have.
pub const SYSTEM_PAYLOAD_MAX: usize = TLP_MAX - 8 - ECRC_SIZE;
/// Frames that are sent begin at a multiple of this many bytes.
pub const FRAME_ALIGN: u64 = 256;

/// Bytes of the frame of a system packet with `payload` bytes.
pub const fn frame_size(payload: usize) -> usize {
    frame_around(payload + 8 + ECRC_SIZE)
}

/// Bytes of the frame whose TLP has `bytes` bytes, or is filled up from so many.
pub const fn frame_around(bytes: usize) -> usize {
    let tlp = bytes.next_multiple_of(TLP_UNIT);
    ROUTING_HEADER_SIZE + if tlp < TLP_MIN { TLP_MIN } else { tlp }
}

/// Returns true if a frame can have so many bytes.
pub const fn is_frame_size(bytes: usize) -> bool {
    bytes >= FRAME_MIN && bytes <= FRAME_MAX && (bytes - ROUTING_HEADER_SIZE) % TLP_UNIT == 0
}

bitfield! {
    /// The routing header. Names are public; positions, and that distances are signed, are ours.
    pub struct RoutingHeader {
        /// LEN: units of 32 bytes of the TLP, less one.
        tlp_units / with_tlp_units: u8 @ 0..=5,
        /// Path: A coordinate (DABC1).
        pa / with_pa: u8 @ 6..=6,
        /// Path: B coordinate.
        pb / with_pb: u8 @ 7..=8,
        /// Path: C coordinate.
        pc / with_pc: u8 @ 9..=9,
        /// Hops on X, as a byte in two's complement; 0 if the way is the shortest one.
        dx / with_dx: u8 @ 10..=17,
        /// Hops on Y.
        dy / with_dy: u8 @ 18..=25,
        /// Hops on Z.
        dz / with_dz: u8 @ 26..=33,
        /// Target A (DABC2).
        a / with_a: u8 @ 34..=34,
        /// Target B.
        b / with_b: u8 @ 35..=36,
        /// Target C.
        c / with_c: u8 @ 37..=37,
        /// Target TNI.
        di / with_di: u8 @ 38..=40,
        /// A barrier TLP.
        barrier / with_barrier: bool @ 41..=41,
        /// A system TLP.
        system / with_system: bool @ 42..=42,
        /// Virtual channel. This and what follows are a link's, new on each, and 0 in memory.
        vc / with_vc: u8 @ 44..=45,
        /// PAT: into how many slices the TLP is cut, less one.
        pat / with_pat: u8 @ 46..=48,
        /// STAT: a bit for each lane of the other direction that is received badly.
        stat / with_stat: u8 @ 49..=50,
        /// Sequence number.
        seq / with_seq: u16 @ 51..=62,
        /// 1, as which every routing header on a link begins.
        start / with_start: bool @ 63..=63,
    }
}

impl RoutingHeader {
    /// A copy with the path replaced.
    #[must_use]
    pub const fn with_path(self, p: Path) -> Self {
        self.with_pa(p.a).with_pb(p.b).with_pc(p.c)
    }

    /// A copy with the hops on X, Y and Z replaced.
    #[must_use]
    pub const fn with_distances(self, d: [i8; 3]) -> Self {
        self.with_dx(d[0] as u8).with_dy(d[1] as u8).with_dz(d[2] as u8)
    }

    /// Bytes of the TLP.
    pub const fn tlp_size(self) -> usize {
        (self.tlp_units() as usize + 1) * TLP_UNIT
    }
}

bitfield! {
    /// The first qword of the TLP.
    pub struct TlpHeader {
        /// The kind of TLP, see [`TlpKind`].
        kind / with_kind: u8 @ 0..=7,
        /// Bytes of payload.
        length / with_length: u16 @ 8..=19,
        /// TNI that sent it.
        i / with_i: u8 @ 20..=22,
        /// X of the node that sent it.
        x / with_x: u8 @ 24..=31,
        /// Y of the node that sent it.
        y / with_y: u8 @ 32..=39,
        /// Z of the node that sent it.
        z / with_z: u8 @ 40..=47,
        /// A of the node that sent it.
        a / with_a: u8 @ 48..=48,
        /// B of the node that sent it.
        b / with_b: u8 @ 49..=50,
        /// C of the node that sent it.
        c / with_c: u8 @ 51..=51,
    }
}

impl TlpHeader {
    /// Coordinates of the node that sent the TLP.
    pub const fn source(self) -> Coords {
        Coords::new(self.x(), self.y(), self.z(), self.a(), self.b(), self.c())
    }

    /// Bytes of payload, as many as a system packet can have at most.
    pub const fn payload_len(self) -> usize {
        let len = self.length() as usize;
        if len > SYSTEM_PAYLOAD_MAX { SYSTEM_PAYLOAD_MAX } else { len }
    }

    /// A copy with the source's coordinates replaced.
    #[must_use]
    pub const fn with_source(self, n: Coords) -> Self {
        self.with_x(n.x).with_y(n.y).with_z(n.z).with_a(n.a).with_b(n.b).with_c(n.c)
    }
}

/// Kinds of TLP that are seen in packet buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TlpKind {
    /// A system packet.
    System = 1,
    /// A device's report to its own node; never sent. Its payload is a [`Report`].
    Report = 2,
}

/// A device's report of a request of another node that it refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The answer that the other node got, see [`Rcode`].
    pub rcode: Rcode,
    /// Control queue of the initiator.
    pub source_cq: u8,
    /// Code of the command ([`crate::desc::Command`]): PUT, GET or ATOMIC_READ_MODIFY_WRITE.
    pub command: u8,
    /// Bytes of the part of the message that was refused.
    pub length: u32,
    /// Address at this node.
    pub remote: StagOffset,
    /// Group process id of the initiator.
    pub gpid: u64,
}

impl Report {
    /// Bytes of a report.
    pub const SIZE: usize = 24;

    /// The report as it lies in memory.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let word0 = u64::from(self.rcode.raw())
            | u64::from(self.source_cq) << 8
            | u64::from(self.command) << 16
            | u64::from(self.length) << 32;
        let mut bytes = [0; Self::SIZE];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip([word0, self.remote.0, self.gpid]) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Inverse of [`Report::to_bytes`].
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let mut words = [0; 3];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut le = [0; 8];
            le.copy_from_slice(chunk);
            *word = u64::from_le_bytes(le);
        }
        Self {
            rcode: Rcode::new(words[0] as u8),
            source_cq: (words[0] >> 8) as u8,
            command: (words[0] >> 16) as u8,
            length: (words[0] >> 32) as u32,
            remote: StagOffset(words[1]),
            gpid: words[2],
        }
    }
}
