//! Frames that are not finished: whose checksum is not there yet, or that stand for several of a
//! TCP connection. Linux calls this checksum and segmentation offload. Such a frame goes to nodes
//! that say that they take it; for others it is finished here ([`Facts::finish`]).
//!
//! Like `addr`, `neighbor`, `routes`, `tree` and `wire`, this file needs no allocator: the kernel
//! driver compiles them, too.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::ETHERNET_HEADER;

/// Bytes of [`Facts`] in front of a frame.
pub const FACTS_SIZE: usize = 8;

const NEEDS_CHECKSUM: u8 = 1;
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const ECN: u8 = 0x80;
/// The smallest segments that a TCP has, in bytes: smaller ones would be many out of one frame.
const MIN_SEGMENT: u16 = 48;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
pub(crate) const TCP: u8 = 6;
const IPV4_MIN: usize = 20;
pub(crate) const IPV6_HEADER: usize = 40;
const TCP_MIN: usize = 20;
/// Where in a TCP header its checksum is.
pub(crate) const TCP_CHECKSUM: usize = 16;

/// The facts as they lie in front of a frame. Numbers are big endian.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Wire {
    flags: u8,
    segments: u8,
    size: U16,
    start: U16,
    offset: U16,
}

/// Into what a frame is to be cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segments {
    /// It is one.
    #[default]
    One,
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
}

/// What is left to do with a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The checksum that is to be completed: where in the frame the bytes begin that it is over,
    /// and where behind that it is, both in bytes. The field has the sum of the pseudo header.
    pub checksum: Option<(u16, u16)>,
    /// What to cut it into.
    pub segments: Segments,
    /// Bytes of payload in each of these but the last.
    pub size: u16,
    /// The connection uses explicit congestion notification: CWR is for the first segment only.
    pub ecn: bool,
}

/// Facts that do not fit together, or to their frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadFacts;

impl Facts {
    /// Whether there is nothing left to do.
    pub fn is_finished(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the facts in front of a frame.
    ///
    /// # Errors
    ///
    /// If they are not such as [`Facts::emit`] makes. Whether they fit to a frame, [`Facts::check`]
    /// tells.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadFacts> {
        let (wire, _) = Wire::ref_from_prefix(bytes).map_err(|_| BadFacts)?;
        let segments = match wire.segments & !ECN {
            0 => Segments::One,
            TCP4 => Segments::Tcp4,
            TCP6 => Segments::Tcp6,
            _ => return Err(BadFacts),
        };
        let (start, offset) = (wire.start.get(), wire.offset.get());
        let checksum = match wire.flags {
            0 if (start, offset) == (0, 0) => None,
            NEEDS_CHECKSUM => Some((start, offset)),
            _ => return Err(BadFacts),
        };
        let ecn = wire.segments & ECN != 0;
        let facts = Self { checksum, segments, size: wire.size.get(), ecn };
        let one = segments == Segments::One;
        if one && (facts.size != 0 || ecn) { Err(BadFacts) } else { Ok(facts) }
    }

    /// The facts as they go in front of a frame.
    pub fn emit(&self) -> [u8; FACTS_SIZE] {
        let (start, offset) = self.checksum.unwrap_or_default();
        let segments = match self.segments {
            Segments::One => 0,
            Segments::Tcp4 => TCP4,
            Segments::Tcp6 => TCP6,
        };
        let wire = Wire {
            flags: if self.checksum.is_some() { NEEDS_CHECKSUM } else { 0 },
            segments: segments | if self.ecn { ECN } else { 0 },
            size: U16::new(self.size),
            start: U16::new(start),
            offset: U16::new(offset),
        };
        let mut bytes = [0; FACTS_SIZE];
        // The sizes are the same, so this cannot fail.
        let _ = wire.write_to(&mut bytes);
        bytes
    }

    /// Checks that the facts fit to a frame, and returns how many bytes of headers it begins with,
    /// if it is to be cut.
    ///
    /// # Errors
    ///
    /// If they do not.
    pub fn check(&self, frame: &[u8]) -> Result<Option<usize>, BadFacts> {
        if let Some((start, offset)) = self.checksum {
            let (start, offset) = (usize::from(start), usize::from(offset));
            if start < ETHERNET_HEADER || start + offset + 2 > frame.len() {
                return Err(BadFacts);
            }
        }
        let tcp = match self.segments {
            Segments::One => return Ok(None),
            Segments::Tcp4 => ipv4_header(frame),
            Segments::Tcp6 => ipv6_header(frame),
        };
        let tcp = tcp.ok_or(BadFacts)?;
        let of_tcp = (u16::try_from(tcp).map_err(|_| BadFacts)?, TCP_CHECKSUM as u16);
        let words = usize::from(*frame.get(tcp + 12).ok_or(BadFacts)? >> 4);
        let end = tcp + 4 * words;
        let fits = self.checksum == Some(of_tcp)
            && self.size >= MIN_SEGMENT
            && 4 * words >= TCP_MIN
            && end < frame.len();
        if fits { Ok(Some(end)) } else { Err(BadFacts) }
    }
}

/// Where the TCP header of a frame with IPv4 is.
fn ipv4_header(frame: &[u8]) -> Option<usize> {
    let ip = packet(frame, ETHERTYPE_IPV4)?;
    let (&first, &protocol) = (ip.first()?, ip.get(9)?);
    let length = usize::from(first & 0xf) * 4;
    // A fragment has no TCP header.
    let whole = get16(ip.get(..8)?, 6) & 0x3fff == 0;
    (first >> 4 == 4 && length >= IPV4_MIN && ip.len() >= length && protocol == TCP && whole)
        .then_some(ETHERNET_HEADER + length)
}

/// The same with IPv6, without extension headers.
fn ipv6_header(frame: &[u8]) -> Option<usize> {
    let ip = packet(frame, ETHERTYPE_IPV6)?;
    (ip.len() >= IPV6_HEADER && ip[0] >> 4 == 6 && ip[6] == TCP)
        .then_some(ETHERNET_HEADER + IPV6_HEADER)
}

fn packet(frame: &[u8], kind: [u8; 2]) -> Option<&[u8]> {
    (frame.get(12..ETHERNET_HEADER)? == kind).then(|| &frame[ETHERNET_HEADER..])
}

pub(crate) fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
