//! The header in front of every fragment of an Ethernet frame.

use core::fmt;

use tofu_abi::frame::SYSTEM_PAYLOAD_MAX;
use tofu_abi::{Coords, codes};

use crate::addr;

/// Version of the format.
pub const VERSION: u8 = 1;
/// Bytes of the header.
pub const HEADER_SIZE: usize = 20;
/// Number of bytes of a frame that one packet can carry.
pub const FRAGMENT_MAX: usize = SYSTEM_PAYLOAD_MAX - HEADER_SIZE;
/// Size of the largest packet, in bytes.
pub(crate) const PACKET_MAX: usize = HEADER_SIZE + FRAGMENT_MAX;
/// Number of fragments of the longest frame and its metadata.
pub(crate) const MAX_FRAGMENTS: usize = (u16::MAX as usize).div_ceil(FRAGMENT_MAX);
/// Size of the [offload metadata](crate::offload::Metadata) in front of a frame, in bytes.
pub const METADATA_SIZE: usize = 8;
/// Size of an Ethernet header, in bytes.
pub const ETHERNET_HEADER: usize = 14;
/// The smallest MTU: that of IPv6 (RFC 8200).
pub const MIN_MTU: u16 = 1280;
/// The largest MTU: with its Ethernet header a frame has at most 2^16 - 1 bytes.
pub const MAX_MTU: u16 = u16::MAX - ETHERNET_HEADER as u16;
/// The largest MTU for which no frame needs more than one packet.
pub const WHOLE_MTU: u16 = (FRAGMENT_MAX - ETHERNET_HEADER) as u16;

/// The header as in a packet, where numbers are big endian.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Header {
    /// The version in the high four bits, and the kind in the low four.
    pub(crate) version_kind: u8,
    /// [`Capabilities`] of the origin in bits 0, 2, and 4 to 6. Bit 1: the receiver of this
    /// broadcast must acknowledge it. Bit 3: see `rendezvous.rs`.
    pub(crate) flags: u8,
    /// Size of the whole frame, in bytes.
    pub(crate) total: u16,
    /// Offset of this fragment in the frame, in bytes.
    pub(crate) offset: u16,
    /// Size of this fragment, in bytes.
    pub(crate) length: u16,
    /// Distinguishes the frames of a sender.
    pub(crate) id: u32,
    /// Sum over the whole frame, if it has several fragments; otherwise 0.
    pub(crate) sum: u32,
    /// The node that the frame comes from.
    pub(crate) origin: u32,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_SIZE] = bytes.first_chunk()?;
        let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| u32::from(word(at)) << 16 | u32::from(word(at + 2));
        Some(Self {
            version_kind: bytes[0],
            flags: bytes[1],
            total: word(2),
            offset: word(4),
            length: word(6),
            id: long(8),
            sum: long(12),
            origin: long(16),
        })
    }

    pub(crate) fn emit(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        (bytes[0], bytes[1]) = (self.version_kind, self.flags);
        bytes[2..4].copy_from_slice(&self.total.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.offset.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.length.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.id.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.sum.to_be_bytes());
        bytes[16..].copy_from_slice(&self.origin.to_be_bytes());
        bytes
    }
}

codes! {
    /// The kind of a packet.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum PacketKind {
        /// A fragment of a frame to one node.
        Unicast = 0,
        /// A fragment of a frame to all nodes, each of which relays it along the tree.
        Broadcast = 1,
        /// A fragment of an offloaded frame to one node that accepts it: offload metadata, followed
        /// by the frame.
        Offloaded = 2,
        /// An acknowledgement, without a frame: the sender has received a fragment of a broadcast.
        Acknowledgement = 3,
    }
}

/// Flag of senders that accept [`PacketKind::Offloaded`].
const TAKES_OFFLOADED: u8 = 1;
/// Flag of broadcasts that must be acknowledged.
const ACKNOWLEDGE: u8 = 2;
/// Flag of senders that fetch frames.
const RENDEZVOUS: u8 = 4;
/// Flag of senders that fetch the rest of frames whose head is in the request.
const SPLIT: u8 = 0x40;
/// Position of the number of further TNIs in the flags, and its mask.
const MORE_QUEUES_SHIFT: u8 = 4;
const MORE_QUEUES: u8 = 3;

/// The capabilities of a node, in the flags of its packets to one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// It accepts [`PacketKind::Offloaded`].
    pub offload: bool,
    /// It fetches frames, see [`crate::rendezvous`].
    pub rendezvous: bool,
    /// It fetches the rest of a frame whose head is in the request.
    pub split: bool,
    /// Number of further TNIs at which it listens, 3 at most.
    pub more_queues: u8,
}

impl Capabilities {
    /// No capabilities.
    pub const NONE: Self = Self { offload: false, rendezvous: false, split: false, more_queues: 0 };

    /// The capabilities of a packet's sender; none if the packet has no header.
    pub fn of(packet: &[u8]) -> Self {
        packet.get(1).map_or_else(Self::default, |flags| Self::from_flags(*flags))
    }

    /// Decodes the flags of a header.
    pub(crate) const fn from_flags(flags: u8) -> Self {
        Self {
            offload: flags & TAKES_OFFLOADED != 0,
            rendezvous: flags & RENDEZVOUS != 0,
            split: flags & SPLIT != 0,
            more_queues: flags >> MORE_QUEUES_SHIFT & MORE_QUEUES,
        }
    }

    /// The flags for these capabilities.
    pub const fn flags(self) -> u8 {
        let more = if self.more_queues > MORE_QUEUES { MORE_QUEUES } else { self.more_queues };
        let offload = if self.offload { TAKES_OFFLOADED } else { 0 };
        let rendezvous = if self.rendezvous { RENDEZVOUS } else { 0 };
        let split = if self.split { SPLIT } else { 0 };
        offload | rendezvous | split | more << MORE_QUEUES_SHIFT
    }
}

/// The reason why a header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The packet is too short for the header, or for the fragment that the header announces.
    Truncated,
    /// Another version, or a kind that this one does not have.
    Unknown,
    /// Inconsistent lengths, or an origin that no node can have.
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
    header: Header,
    body: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses a packet that is at least as long as its header.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] if it is shorter.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header = Header::parse(bytes).ok_or(Malformed::Truncated)?;
        Ok(Self { header, body: &bytes[HEADER_SIZE..] })
    }

    /// The version.
    pub fn version(&self) -> u8 {
        self.header.version_kind >> 4
    }

    /// The kind; `None` if it is unknown.
    pub fn kind(&self) -> Option<PacketKind> {
        PacketKind::from_code(self.header.version_kind & 0xf)
    }

    /// Returns true if the sender accepts [`PacketKind::Offloaded`].
    pub fn takes_offloaded(&self) -> bool {
        self.header.flags & TAKES_OFFLOADED != 0
    }

    /// The bytes after the header.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The kind of the packet.
    pub kind: PacketKind,
    /// True if the origin of the frame accepts [`PacketKind::Offloaded`].
    pub takes_offloaded: bool,
    /// True if it is a broadcast that requires a [`PacketKind::Acknowledgement`].
    pub acknowledge: bool,
    /// Size of the whole frame and its metadata, in bytes.
    pub total: u16,
    /// Offset of this fragment in the frame, in bytes: a multiple of [`FRAGMENT_MAX`].
    pub offset: u16,
    /// Size of this fragment, in bytes.
    pub length: u16,
    /// Distinguishes the frames of a sender.
    pub id: u32,
    /// Checksum over the whole frame, see [`sum`]; 0 if it has only one fragment.
    pub sum: u32,
    /// The node that the frame comes from.
    pub origin: Coords,
}

impl Repr {
    /// Parses a header that is followed by `body_len` bytes.
    ///
    /// # Errors
    ///
    /// See [`Malformed`].
    pub fn parse(packet: &Packet<'_>, body_len: usize) -> Result<Self, Malformed> {
        let kind = packet.kind().filter(|_| packet.version() == VERSION);
        let kind = kind.ok_or(Malformed::Unknown)?;
        let Header { flags, total, offset, length, id, sum, origin, .. } = packet.header;
        let origin = addr::unpack(origin).ok_or(Malformed::Inconsistent)?;
        let takes_offloaded = packet.takes_offloaded();
        let acknowledge = flags & ACKNOWLEDGE != 0 && kind == PacketKind::Broadcast;
        let repr =
            Self { kind, takes_offloaded, acknowledge, total, offset, length, id, sum, origin };
        if !repr.is_consistent() {
            return Err(Malformed::Inconsistent);
        }
        // Padding to the minimum length of a packet may follow.
        if body_len < usize::from(length) {
            return Err(Malformed::Truncated);
        }
        Ok(repr)
    }

    /// The header of a packet, if it is valid.
    pub(crate) fn of(header: &[u8], body: &[u8]) -> Option<Self> {
        Self::parse(&Packet::new_checked(header).ok()?, body.len()).ok()
    }

    /// Returns true if the lengths are valid: each fragment but the last has the maximum size.
    fn is_consistent(&self) -> bool {
        let (total, offset) = (usize::from(self.total), usize::from(self.offset));
        if self.kind == PacketKind::Acknowledgement {
            let nothing = (total, self.length, self.sum) == (0, 0, 0);
            return offset % FRAGMENT_MAX == 0 && nothing;
        }
        total >= self.metadata_size() + ETHERNET_HEADER
            && offset < total
            && offset % FRAGMENT_MAX == 0
            && usize::from(self.length) == (total - offset).min(FRAGMENT_MAX)
            && (self.sum == 0 || !self.is_whole() || self.kind == PacketKind::Offloaded)
    }

    /// Returns true if the fragment is the whole frame.
    pub const fn is_whole(&self) -> bool {
        self.length == self.total
    }

    /// Size of the metadata in front of the frame, in bytes.
    pub(crate) fn metadata_size(&self) -> usize {
        if self.kind == PacketKind::Offloaded { METADATA_SIZE } else { 0 }
    }

    /// Number of fragments of the frame.
    pub fn count(&self) -> usize {
        usize::from(self.total).div_ceil(FRAGMENT_MAX)
    }

    /// The index of this fragment.
    pub(crate) fn number(&self) -> usize {
        usize::from(self.offset) / FRAGMENT_MAX
    }

    /// Identifies this fragment among those of all frames.
    pub(crate) fn key(&self) -> FragmentKey {
        FragmentKey { origin: self.origin, id: self.id, offset: self.offset }
    }

    /// Returns true if frames of this kind and total length have a sum. An offloaded frame has no
    /// checksum that would detect damage.
    pub(crate) fn is_summed(kind: PacketKind, total: usize) -> bool {
        total > FRAGMENT_MAX || kind == PacketKind::Offloaded
    }

    /// All fragments of the frame of this fragment.
    pub fn fragments(self) -> impl Iterator<Item = Self> + Clone {
        (0..usize::from(self.total)).step_by(FRAGMENT_MAX).map(move |offset| {
            let length = (usize::from(self.total) - offset).min(FRAGMENT_MAX) as u16;
            Self { offset: offset as u16, length, ..self }
        })
    }

    /// The acknowledgement of a fragment of a broadcast: it has the same origin, id and offset.
    pub const fn acknowledgement(&self) -> Self {
        let kind = PacketKind::Acknowledgement;
        let (takes_offloaded, acknowledge) = (false, false);
        Self { kind, takes_offloaded, acknowledge, total: 0, length: 0, sum: 0, ..*self }
    }

    /// An acknowledgement that no node waits for.
    pub const fn probe(me: Coords) -> Self {
        Self {
            kind: PacketKind::Acknowledgement,
            takes_offloaded: false,
            acknowledge: false,
            total: 0,
            offset: 0,
            length: 0,
            id: 0,
            sum: 0,
            origin: me,
        }
    }

    /// Encodes the header as in a packet.
    pub fn emit(&self) -> [u8; HEADER_SIZE] {
        Header {
            version_kind: VERSION << 4 | self.kind as u8,
            flags: if self.takes_offloaded { TAKES_OFFLOADED } else { 0 }
                | if self.acknowledge { ACKNOWLEDGE } else { 0 },
            total: self.total,
            offset: self.offset,
            length: self.length,
            id: self.id,
            sum: self.sum,
            origin: addr::pack(self.origin),
        }
        .emit()
    }

    /// Like [`Repr::emit`], for a node with these capabilities.
    pub(crate) fn emit_with(&self, says: Capabilities) -> [u8; HEADER_SIZE] {
        let mut bytes = self.emit();
        bytes[1] |= says.flags();
        bytes
    }
}

/// Identifies a fragment of a broadcast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentKey {
    /// The node that the frame comes from.
    pub origin: Coords,
    /// The number of the frame among those of its origin.
    pub id: u32,
    /// Offset of the fragment in the frame, in bytes.
    pub offset: u16,
}

/// A fragment to be sent to a node.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    /// The node that it goes to next.
    pub to: Coords,
    /// True if it is part of a broadcast.
    pub broadcast: bool,
    /// Its header.
    pub header: [u8; HEADER_SIZE],
    /// The part of the frame.
    pub body: &'a [u8],
}

/// The sum over a frame: its 32-bit words, little endian and padded with zeros, added with
/// end-around carry, as in RFC 1071 with wider words; never 0.
pub fn sum(frame: &[u8]) -> u32 {
    let mut sum = Sum::default();
    sum.add(frame);
    sum.finish()
}

/// A sum that is computed part by part.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds a part. The size of each but the last must be a multiple of 4 bytes. Their order does
    /// not matter.
    pub fn add(&mut self, part: &[u8]) {
        self.add_at(0, part);
    }

    /// Adds a part of any length that begins at offset `at`.
    pub fn add_at(&mut self, at: usize, part: &[u8]) {
        let mut words = Words::default();
        words.add_all(part);
        self.add_words(at, words);
    }

    /// Adds a part whose words were summed elsewhere, see [`Sum::add_at`].
    pub fn add_words(&mut self, at: usize, words: Words) {
        let Words { sum, carries } = words;
        let (sum, carry) = sum.overflowing_add(carries);
        // 2^64 counts as 1, so the sum of a shifted part is a rotated sum.
        let sum = (sum + u64::from(carry)).rotate_left(8 * (at % 8) as u32);
        // 2^32 counts as 1, too.
        self.0 =
            (self.0 & u64::from(u32::MAX)) + (self.0 >> 32) + (sum >> 32) + (sum & 0xffff_ffff);
    }

    /// The sum in the encoding of headers.
    pub fn finish(self) -> u32 {
        finish(self.0)
    }
}

/// A sum of 8-byte words, with its carries, for code that copies and sums in one pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words {
    sum: u64,
    carries: u64,
}

impl Words {
    /// Adds the next 8 bytes, little endian, padded with zeros at the end.
    #[inline]
    pub fn add(&mut self, pair: u64) {
        let (sum, carry) = self.sum.overflowing_add(pair);
        self.sum = sum;
        self.carries += u64::from(carry);
    }

    /// Adds bytes, padded with zeros at the end.
    pub(crate) fn add_all(&mut self, bytes: &[u8]) {
        let mut pairs = bytes.chunks_exact(8);
        for pair in pairs.by_ref() {
            // All chunks have this length, which the compiler knows.
            self.add(u64::from_le_bytes(pair.try_into().unwrap_or_default()));
        }
        let rest = pairs.remainder();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last));
    }
}

fn finish(mut sum: u64) -> u32 {
    while sum > u64::from(u32::MAX) {
        sum = (sum & u64::from(u32::MAX)) + (sum >> 32);
    }
    // Only zeros add up to 0; all ones is the other representation of 0.
    if sum == 0 { u32::MAX } else { sum as u32 }
}
