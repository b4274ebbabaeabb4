//! Offloaded frames: frames without their checksum, or frames that stand for several segments of a
//! TCP connection. Metadata with such a frame say how to complete it. Nodes that announce this
//! capability get offloaded frames unchanged; for other nodes they are completed before they are
//! sent ([`Metadata::complete`]).

use crate::wire::ETHERNET_HEADER;

pub use crate::wire::METADATA_SIZE;

const NEEDS_CHECKSUM: u8 = 1;
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const ECN: u8 = 0x80;
/// Size of the longest headers of a frame in bytes: Ethernet, IP and TCP.
pub const MAX_HEADERS: usize = ETHERNET_HEADER + 60 + 60;
/// Number of bytes of a frame that are read before the rest, to be parsed: a multiple of 8, with
/// room for all headers and for a question for an address.
pub const HEAD: usize = 256;
/// Size of the longest frame that can have its metadata in front of it, in bytes.
pub const MAX_OFFLOADED: usize = u16::MAX as usize - METADATA_SIZE;
const _: () = assert!(HEAD % 8 == 0 && HEAD >= MAX_HEADERS);
/// The smallest segment size of a TCP, in bytes. Smaller ones would be many out of one frame.
const MIN_SEGMENT: u16 = 48;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
pub(crate) const TCP: u8 = 6;
const IPV4_MIN: usize = 20;
pub(crate) const IPV6_HEADER: usize = 40;
const TCP_MIN: usize = 20;
/// Offset of the checksum in a TCP header.
pub(crate) const TCP_CHECKSUM: usize = 16;

/// Metadata in the encoding of virtio's network header (`struct virtio_net_hdr`), which is used on
/// the wire as well.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Fields {
    /// 1 if the checksum must be completed.
    pub flags: u8,
    /// The kind of segments, and whether the connection uses explicit congestion notification.
    pub kind: u8,
    /// Size of the payload of each segment but the last, in bytes.
    pub size: u16,
    /// Offset in the frame of the bytes that the checksum covers.
    pub start: u16,
    /// Offset of the checksum from `start`.
    pub offset: u16,
}

/// The segments that a frame is to be cut into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segments {
    /// The frame is not cut.
    #[default]
    One,
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
}

/// The processing that a frame still needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The checksum to be completed: the offset in the frame of the bytes that it covers, and the
    /// offset of its field from there, both in bytes. The field has the sum of the pseudo header.
    pub checksum: Option<(u16, u16)>,
    /// The kind of segments to cut the frame into.
    pub segments: Segments,
    /// Size of the payload of each segment but the last, in bytes.
    pub size: u16,
    /// True if the connection uses explicit congestion notification: only the first segment has
    /// CWR.
    pub ecn: bool,
}

/// The metadata are inconsistent, or do not match their frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMetadata;

impl Metadata {
    /// Returns true if nothing is left to do.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Parses the metadata in front of a frame.
    ///
    /// # Errors
    ///
    /// If [`Metadata::emit`] does not produce such metadata. [`Metadata::check`] checks that they
    /// match a frame.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadMetadata> {
        let bytes: &[u8; METADATA_SIZE] = bytes.first_chunk().ok_or(BadMetadata)?;
        let [size, start, offset] = [2, 4, 6].map(|at| get16(bytes, at));
        let fields = Fields { flags: bytes[0], kind: bytes[1], size, start, offset };
        // All other encodings are invalid.
        let metadata = Self::from_fields(fields).ok_or(BadMetadata)?;
        if metadata.emit() == *bytes { Ok(metadata) } else { Err(BadMetadata) }
    }

    /// Encodes the metadata as in front of a frame.
    pub fn emit(&self) -> [u8; METADATA_SIZE] {
        let Fields { flags, kind, size, start, offset } = self.fields();
        let mut bytes = [flags, kind, 0, 0, 0, 0, 0, 0];
        put16(&mut bytes, 2, size);
        put16(&mut bytes, 4, start);
        put16(&mut bytes, 6, offset);
        bytes
    }

    /// Converts the metadata that a system passes with a frame; `None` if their kind is unknown.
    pub fn from_fields(fields: Fields) -> Option<Self> {
        let Fields { flags, kind, size, start, offset } = fields;
        let segments = match kind & !ECN {
            0 => Segments::One,
            TCP4 => Segments::Tcp4,
            TCP6 => Segments::Tcp6,
            _ => return None,
        };
        let cut = segments != Segments::One;
        Some(Self {
            checksum: (flags & NEEDS_CHECKSUM != 0).then_some((start, offset)),
            segments,
            size: if cut { size } else { 0 },
            ecn: cut && kind & ECN != 0,
        })
    }

    /// Converts the metadata to the form that systems use.
    pub fn fields(&self) -> Fields {
        let (start, offset) = self.checksum.unwrap_or_default();
        let segments = match self.segments {
            Segments::One => 0,
            Segments::Tcp4 => TCP4,
            Segments::Tcp6 => TCP6,
        };
        let kind = segments | if self.ecn { ECN } else { 0 };
        Fields { flags: self.checksum.is_some().into(), kind, size: self.size, start, offset }
    }

    /// Checks that the metadata match a frame. Returns the size of the frame's headers in bytes, if
    /// it is to be segmented.
    ///
    /// # Errors
    ///
    /// If they do not match.
    pub fn check(&self, frame: &[u8]) -> Result<Option<usize>, BadMetadata> {
        self.check_head(frame, frame.len())
    }

    /// Like [`Metadata::check`], for a frame of `len` bytes that begins with `frame`. That must
    /// include all headers; [`MAX_HEADERS`] bytes are enough.
    ///
    /// # Errors
    ///
    /// If they do not match.
    pub fn check_head(&self, frame: &[u8], len: usize) -> Result<Option<usize>, BadMetadata> {
        if let Some((start, offset)) = self.checksum {
            let (start, offset) = (usize::from(start), usize::from(offset));
            if start < ETHERNET_HEADER || start + offset + 2 > len {
                return Err(BadMetadata);
            }
        }
        let tcp = match self.segments {
            Segments::One => return Ok(None),
            Segments::Tcp4 => ipv4_header(frame),
            Segments::Tcp6 => ipv6_header(frame),
        };
        let tcp = tcp.ok_or(BadMetadata)?;
        let of_tcp = (u16::try_from(tcp).map_err(|_| BadMetadata)?, TCP_CHECKSUM as u16);
        let words = usize::from(*frame.get(tcp + 12).ok_or(BadMetadata)? >> 4);
        let end = tcp + 4 * words;
        let fits = self.checksum == Some(of_tcp)
            && self.size >= MIN_SEGMENT
            && 4 * words >= TCP_MIN
            && end < len;
        if fits { Ok(Some(end)) } else { Err(BadMetadata) }
    }
}

/// Offset of the TCP header of an IPv4 frame.
fn ipv4_header(frame: &[u8]) -> Option<usize> {
    let ip = packet(frame, ETHERTYPE_IPV4)?;
    let (&first, &protocol) = (ip.first()?, ip.get(9)?);
    let length = usize::from(first & 0xf) * 4;
    // A fragment has no TCP header.
    let whole = get16(ip.get(..8)?, 6) & 0x3fff == 0;
    (first >> 4 == 4 && length >= IPV4_MIN && ip.len() >= length && protocol == TCP && whole)
        .then_some(ETHERNET_HEADER + length)
}

/// Offset of the TCP header of an IPv6 frame without extension headers.
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

pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
