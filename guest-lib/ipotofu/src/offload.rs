//! Offloaded frames: frames without their checksum, or frames that stand for several segments of a
//! TCP connection. Metadata with such a frame say what is left to do. Nodes that announce that they
//! take offloaded frames get them as they are; for others they are completed here
//! ([`Metadata::complete`]).

use crate::wire::ETHERNET_HEADER;

pub use crate::wire::METADATA_SIZE;

const NEEDS_CHECKSUM: u8 = 1;
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const ECN: u8 = 0x80;
/// Bytes of the longest headers of a frame: Ethernet's, IP's, TCP's.
pub const MAX_HEADERS: usize = ETHERNET_HEADER + 60 + 60;
/// The smallest segments that a TCP has, in bytes: smaller ones would be many out of one frame.
const MIN_SEGMENT: u16 = 48;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
pub(crate) const TCP: u8 = 6;
const IPV4_MIN: usize = 20;
pub(crate) const IPV6_HEADER: usize = 40;
const TCP_MIN: usize = 20;
/// Offset of the checksum in a TCP header.
pub(crate) const TCP_CHECKSUM: usize = 16;

/// The same in the numbers of virtio's network header (`struct virtio_net_hdr`), which go over the
/// wire as well.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Fields {
    /// 1 if the checksum is to be completed.
    pub flags: u8,
    /// What to cut it into, and whether the connection uses explicit congestion notification.
    pub kind: u8,
    /// Bytes of payload in each segment but the last.
    pub size: u16,
    /// Offset in the frame of the bytes that the checksum is over.
    pub start: u16,
    /// Offset of the checksum from `start`.
    pub offset: u16,
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
pub struct Metadata {
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

/// Metadata that do not fit together, or to their frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMetadata;

impl Metadata {
    /// Whether nothing is left to do.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the metadata in front of a frame.
    ///
    /// # Errors
    ///
    /// If they are not such as [`Metadata::emit`] makes. [`Metadata::check`] tells whether they fit
    /// to a frame.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadMetadata> {
        let bytes: &[u8; METADATA_SIZE] = bytes.first_chunk().ok_or(BadMetadata)?;
        let [size, start, offset] = [2, 4, 6].map(|at| get16(bytes, at));
        let fields = Fields { flags: bytes[0], kind: bytes[1], size, start, offset };
        // All other values of the fields are malformed.
        let metadata = Self::from_fields(fields).ok_or(BadMetadata)?;
        if metadata.emit() == *bytes { Ok(metadata) } else { Err(BadMetadata) }
    }

    /// The metadata as they go in front of a frame.
    pub fn emit(&self) -> [u8; METADATA_SIZE] {
        let Fields { flags, kind, size, start, offset } = self.fields();
        let mut bytes = [flags, kind, 0, 0, 0, 0, 0, 0];
        put16(&mut bytes, 2, size);
        put16(&mut bytes, 4, start);
        put16(&mut bytes, 6, offset);
        bytes
    }

    /// Reads the metadata that a system passes with a frame; `None` if it is of an unknown kind.
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

    /// The metadata in the form that systems use.
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

    /// Checks that the metadata fit to a frame, and returns how many bytes of headers it begins
    /// with, if it is to be cut into segments.
    ///
    /// # Errors
    ///
    /// If they do not.
    pub fn check(&self, frame: &[u8]) -> Result<Option<usize>, BadMetadata> {
        self.check_head(frame, frame.len())
    }

    /// The same for a frame of `len` bytes, of which these are the first ones: all headers, for
    /// which [`MAX_HEADERS`] are enough.
    ///
    /// # Errors
    ///
    /// If they do not.
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

/// Offset of the TCP header of a frame with IPv4.
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

pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
