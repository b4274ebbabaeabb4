//! The header in front of every piece of an Ethernet frame.

use core::fmt;

use tofu_abi::Coords;
use tofu_abi::frame::SYSTEM_PAYLOAD_MAX;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::addr;
use crate::offload::FACTS_SIZE;

/// Version of the format.
pub const VERSION: u8 = 1;
/// Bytes of the header.
pub const HEADER_SIZE: usize = 20;
/// Bytes of a frame that one packet can carry.
pub const PIECE_MAX: usize = SYSTEM_PAYLOAD_MAX - HEADER_SIZE;
/// Bytes of an Ethernet header.
pub const ETHERNET_HEADER: usize = 14;
/// The largest MTU for which no frame needs more than one packet.
pub const WHOLE_MTU: u16 = (PIECE_MAX - ETHERNET_HEADER) as u16;

/// The header as it lies in a packet. Numbers are big endian.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    /// Version in the high, kind in the low four bits.
    pub(crate) version_kind: u8,
    /// Bit 0: the origin takes frames that are not finished. Bit 1: whoever gets this broadcast is
    /// to confirm it. Bit 2: the origin fetches, see `offer.rs`. Bits 4 and 5: at how many further
    /// TNIs the origin listens.
    pub(crate) flags: u8,
    /// Bytes of the whole frame.
    pub(crate) total: U16,
    /// Where in the frame this piece begins, in bytes.
    pub(crate) offset: U16,
    /// Bytes of this piece.
    pub(crate) length: U16,
    /// Tells the frames of a sender apart.
    pub(crate) id: U32,
    /// Sum over the whole frame, if it is in several pieces; else 0.
    pub(crate) sum: U32,
    /// The node that the frame comes from.
    pub(crate) origin: U32,
}

/// How a frame spreads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// To one node.
    Unicast = 0,
    /// To all nodes, each of which hands it on along the tree.
    Broadcast = 1,
    /// To one node that takes it: what is left to do with the frame, and then the frame.
    Unfinished = 2,
    /// No frame, but a confirmation: a piece of a broadcast has come to the sender of this.
    Heard = 3,
}

/// The flag of senders that take [`Kind::Unfinished`].
pub(crate) const TAKES_UNFINISHED: u8 = 1;
/// The flag of broadcasts that are to be confirmed.
const ASKS: u8 = 2;
/// Where the number of further TNIs is in the flags, and its bits.
const MORE_QUEUES_SHIFT: u8 = 4;
const MORE_QUEUES: u8 = 3;

/// The flags that say at how many further TNIs a node listens, 3 at most.
pub const fn more_queues(count: u8) -> u8 {
    let count = if count > MORE_QUEUES { MORE_QUEUES } else { count };
    count << MORE_QUEUES_SHIFT
}

/// At how many further TNIs the origin of a packet listens; of a packet without a header none.
pub fn says_more_queues(packet: &[u8]) -> u8 {
    packet.get(1).map_or(0, |flags| flags >> MORE_QUEUES_SHIFT & MORE_QUEUES)
}

/// Why a header is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The packet is shorter than the header and the piece that it announces.
    Truncated,
    /// Another version, or a kind that this one does not have.
    Unknown,
    /// Lengths that do not fit together, or an origin that no node can have.
    Inconsistent,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "packet cut off",
            Self::Unknown => "unknown version or kind",
            Self::Inconsistent => "header contradicts itself",
        })
    }
}

impl core::error::Error for Malformed {}

/// A packet with a header, checked for its length once.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a Header,
    body: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A packet that is at least as long as its header.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] if it is shorter.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, body) = Header::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        Ok(Self { header, body })
    }

    /// Version.
    pub fn version(&self) -> u8 {
        self.header.version_kind >> 4
    }

    /// Kind, if it is a known one.
    pub fn kind(&self) -> Option<Kind> {
        [Kind::Unicast, Kind::Broadcast, Kind::Unfinished, Kind::Heard]
            .into_iter()
            .find(|kind| *kind as u8 == self.header.version_kind & 0xf)
    }

    /// Bytes of the whole frame.
    pub fn total(&self) -> u16 {
        self.header.total.get()
    }

    /// Where in the frame the piece begins, in bytes.
    pub fn offset(&self) -> u16 {
        self.header.offset.get()
    }

    /// Bytes of the piece.
    pub fn length(&self) -> u16 {
        self.header.length.get()
    }

    /// Number of the frame.
    pub fn id(&self) -> u32 {
        self.header.id.get()
    }

    /// Sum over the frame.
    pub fn sum(&self) -> u32 {
        self.header.sum.get()
    }

    /// Whether the sender takes frames that are not finished.
    pub fn takes_unfinished(&self) -> bool {
        self.header.flags & TAKES_UNFINISHED != 0
    }

    /// Whether whoever gets this is to confirm it.
    pub fn asks(&self) -> bool {
        self.header.flags & ASKS != 0
    }

    /// The node that the frame comes from, if there can be such a one.
    pub fn origin(&self) -> Option<Coords> {
        addr::unpack(self.header.origin.get())
    }

    /// What follows the header.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }
}

/// A header taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// How the frame spreads.
    pub kind: Kind,
    /// Whether the node that the frame comes from takes [`Kind::Unfinished`].
    pub takes_unfinished: bool,
    /// Whether it is a broadcast that is to be confirmed by [`Kind::Heard`].
    pub asks: bool,
    /// Bytes of the whole frame, and of what is in front of it.
    pub total: u16,
    /// Where in the frame this piece begins, in bytes: a multiple of [`PIECE_MAX`].
    pub offset: u16,
    /// Bytes of this piece.
    pub length: u16,
    /// Tells the frames of a sender apart.
    pub id: u32,
    /// Sum over the whole frame, see [`sum`]; 0 if it is in one piece.
    pub sum: u32,
    /// The node that the frame comes from.
    pub origin: Coords,
}

impl Repr {
    /// Takes a header apart that is followed by `body_len` bytes.
    ///
    /// # Errors
    ///
    /// See [`Malformed`].
    pub fn parse(packet: &Packet<'_>, body_len: usize) -> Result<Self, Malformed> {
        let kind = packet.kind().filter(|_| packet.version() == VERSION);
        let kind = kind.ok_or(Malformed::Unknown)?;
        let origin = packet.origin().ok_or(Malformed::Inconsistent)?;
        let (total, offset, length) = (packet.total(), packet.offset(), packet.length());
        let (id, sum) = (packet.id(), packet.sum());
        let takes_unfinished = packet.takes_unfinished();
        let asks = packet.asks() && kind == Kind::Broadcast;
        let repr = Self { kind, takes_unfinished, asks, total, offset, length, id, sum, origin };
        if !repr.is_consistent() {
            return Err(Malformed::Inconsistent);
        }
        // What fills the packet up to its shortest length may follow.
        if body_len < usize::from(length) {
            return Err(Malformed::Truncated);
        }
        Ok(repr)
    }

    /// Pieces are as long as they can be, but for the last one, and follow each other.
    fn is_consistent(&self) -> bool {
        let (total, offset) = (usize::from(self.total), usize::from(self.offset));
        if self.kind == Kind::Heard {
            return offset.is_multiple_of(PIECE_MAX) && (total, self.length, self.sum) == (0, 0, 0);
        }
        let prefix = if self.kind == Kind::Unfinished { FACTS_SIZE } else { 0 };
        total >= prefix + ETHERNET_HEADER
            && offset < total
            && offset.is_multiple_of(PIECE_MAX)
            && usize::from(self.length) == (total - offset).min(PIECE_MAX)
            && (self.sum == 0 || !self.is_whole() || self.kind == Kind::Unfinished)
    }

    /// Whether the piece is the whole frame.
    pub const fn is_whole(&self) -> bool {
        self.length == self.total
    }

    /// The confirmation of a piece of a broadcast: it has the same origin, id and offset.
    pub const fn heard(&self) -> Self {
        let kind = Kind::Heard;
        Self { kind, takes_unfinished: false, asks: false, total: 0, length: 0, sum: 0, ..*self }
    }

    /// The header as it lies in a packet.
    pub fn emit(&self) -> [u8; HEADER_SIZE] {
        let header = Header {
            version_kind: VERSION << 4 | self.kind as u8,
            flags: if self.takes_unfinished { TAKES_UNFINISHED } else { 0 }
                | if self.asks { ASKS } else { 0 },
            total: U16::new(self.total),
            offset: U16::new(self.offset),
            length: U16::new(self.length),
            id: U32::new(self.id),
            sum: U32::new(self.sum),
            origin: U32::new(addr::pack(self.origin)),
        };
        let mut bytes = [0; HEADER_SIZE];
        // The sizes are the same, so this cannot fail.
        let _ = header.write_to(&mut bytes);
        bytes
    }
}

/// The sum over a frame: its 32-bit words, little endian and filled up with zeros, added with the
/// carry at the end, as in RFC 1071 with wider words; never 0.
pub fn sum(frame: &[u8]) -> u32 {
    let mut sum = Sum::default();
    sum.add(frame);
    sum.finish()
}

/// A sum that is made piece by piece.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds a part. All parts but the last one are multiples of 4 bytes; their order does not
    /// matter.
    pub fn add(&mut self, part: &[u8]) {
        self.add_at(0, part);
    }

    /// Adds a part that begins with byte `at` and has any length.
    pub fn add_at(&mut self, at: usize, part: &[u8]) {
        let (pairs, rest) = part.as_chunks();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let mut words = Words::default();
        for pair in pairs {
            words.add(u64::from_le_bytes(*pair));
        }
        words.add(u64::from_le_bytes(last));
        self.add_words(at, words);
    }

    /// Adds a part that was added up elsewhere, see [`Sum::add_at`].
    pub fn add_words(&mut self, at: usize, words: Words) {
        let Words { sum, carries } = words;
        let (sum, carry) = sum.overflowing_add(carries);
        // 2^64 counts as 1, so a part that is shifted is a sum that is rotated.
        let sum = (sum + u64::from(carry)).rotate_left(8 * (at % 8) as u32);
        // 2^32 does, too.
        self.0 =
            (self.0 & u64::from(u32::MAX)) + (self.0 >> 32) + (sum >> 32) + (sum & 0xffff_ffff);
    }

    /// The sum as it goes into headers.
    pub fn finish(self) -> u32 {
        finish(self.0)
    }
}

/// Two words at a time that are added up, with their carries: for who copies and sums up in one go.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words {
    sum: u64,
    carries: u64,
}

impl Words {
    /// Adds the next 8 bytes, little endian, filled up with zeros at the end.
    #[inline]
    pub fn add(&mut self, pair: u64) {
        let (sum, carry) = self.sum.overflowing_add(pair);
        self.sum = sum;
        self.carries += u64::from(carry);
    }
}

fn finish(mut sum: u64) -> u32 {
    while sum > u64::from(u32::MAX) {
        sum = (sum & u64::from(u32::MAX)) + (sum >> 32);
    }
    // Nothing but zeros adds up to 0, and all ones stand for 0, too.
    if sum == 0 { u32::MAX } else { sum as u32 }
}
