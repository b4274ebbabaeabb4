//! Frames that are not finished: whose checksum is not there yet, or that stand for several of a
//! TCP connection. Linux calls this checksum and segmentation offload. Such a frame goes to nodes
//! that say that they take it; for others it is finished here.

use alloc::vec::Vec;

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
const TCP: u8 = 6;
const IPV4_MIN: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_MIN: usize = 20;
/// Where in a TCP header its checksum and flags are.
const TCP_CHECKSUM: usize = 16;
const TCP_FLAGS: usize = 13;
const FIN: u8 = 1;
const PSH: u8 = 8;
const CWR: u8 = 0x80;

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

    /// Does what is left to do: hands finished frames to `out`, in order.
    ///
    /// # Errors
    ///
    /// If the facts do not fit to the frame. Nothing is handed out then.
    pub fn finish(&self, frame: &[u8], out: &mut dyn FnMut(&[u8])) -> Result<(), BadFacts> {
        let Some(headers) = self.check(frame)? else {
            let mut done = frame.to_vec();
            if let Some((start, offset)) = self.checksum {
                complete(&mut done, start.into(), offset.into());
            }
            out(&done);
            return Ok(());
        };
        let Some((start, _)) = self.checksum else { return Err(BadFacts) };
        let tcp = usize::from(start);
        let v4 = self.segments == Segments::Tcp4;
        let payload = &frame[headers..];
        let last = payload.len().div_ceil(self.size.into()) - 1;
        let mut segment = Vec::with_capacity(headers + usize::from(self.size));
        for (n, body) in payload.chunks(self.size.into()).enumerate() {
            segment.clear();
            segment.extend_from_slice(&frame[..headers]);
            segment.extend_from_slice(body);
            let sequence =
                get32(&segment, tcp + 4).wrapping_add((n * usize::from(self.size)) as u32);
            segment[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
            if n != last {
                segment[tcp + TCP_FLAGS] &= !(FIN | PSH);
            }
            if n != 0 {
                segment[tcp + TCP_FLAGS] &= !CWR;
            }
            let length = segment.len() - ETHERNET_HEADER;
            if v4 {
                let id = get16(&segment, ETHERNET_HEADER + 4).wrapping_add(n as u16);
                put16(&mut segment, ETHERNET_HEADER + 2, length as u16);
                put16(&mut segment, ETHERNET_HEADER + 4, id);
                put16(&mut segment, ETHERNET_HEADER + 10, 0);
                let sum = !fold(sum(&segment[ETHERNET_HEADER..tcp]));
                put16(&mut segment, ETHERNET_HEADER + 10, sum);
            } else {
                put16(&mut segment, ETHERNET_HEADER + 4, (length - IPV6_HEADER) as u16);
            }
            // What the kernel has summed up is the pseudo header with the length of the whole.
            let addresses = if v4 { 12..20 } else { 8..40 };
            let (from, to) = (ETHERNET_HEADER + addresses.start, ETHERNET_HEADER + addresses.end);
            let tcp_length = (segment.len() - tcp) as u32;
            let pseudo = sum(&segment[from..to]) + u64::from(TCP) + u64::from(tcp_length);
            put16(&mut segment, tcp + TCP_CHECKSUM, fold(pseudo));
            complete(&mut segment, tcp, TCP_CHECKSUM);
            out(&segment);
        }
        Ok(())
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

/// Replaces the field at `start + offset` by the checksum (RFC 1071) from `start` on, the field
/// included.
fn complete(frame: &mut [u8], start: usize, offset: usize) {
    let sum = !fold(sum(&frame[start..]));
    // 0 would mean that a UDP datagram has none; ffff is the same number.
    put16(frame, start + offset, if sum == 0 { u16::MAX } else { sum });
}

/// The sum of 16-bit words, big endian, before carries are added.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    // Two words at a time: they come together when carries are added.
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_be_bytes(last));
    sum
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from(get16(bytes, at)) << 16 | u32::from(get16(bytes, at + 2))
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
