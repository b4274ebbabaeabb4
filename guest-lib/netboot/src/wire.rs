//! The messages.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use thiserror::Error;
use tofu_abi::codes;
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// EtherType of the frames: the first of the two that are free for local experiments (IEEE 802).
pub const ETHERTYPE: u16 = 0x88b5;
/// Version of the format.
pub const VERSION: u8 = 1;
/// Bytes of the header.
pub const HEADER_SIZE: usize = 16;
/// Bytes of a file that one answer carries at most.
pub const BLOCK: usize = 16 << 10;
/// The MTU that both ends need: the longest message.
pub const MTU: u16 = (HEADER_SIZE + size_of::<RawRange>() + BLOCK) as u16;
/// Files of a manifest at most.
pub(crate) const MAX_FILES: usize = 4;
/// Bytes of a file at most.
pub const MAX_FILE: u64 = 1 << 30;
/// Bytes of a command line at most.
pub(crate) const MAX_COMMAND_LINE: usize = 2047;
/// Bytes of text in a report or a refusal at most; the rest is cut off.
pub const MAX_TEXT: usize = 200;

const MAGIC: [u8; 2] = *b"TB";

/// A SHA-256.
pub type Hash = [u8; 32];

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 2],
    version: u8,
    kind: u8,
    /// CRC-32 (IEEE 802.3) of the whole message with 0 here.
    sum: U32,
    session: U32,
    tag: U32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRange {
    manifest: U32,
    file: U16,
    length: U16,
    offset: U64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawOffer {
    manifest: U32,
    kind: u8,
    files: u8,
    command_line: U16,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFile {
    role: u8,
    reserved: [u8; 7],
    size: U64,
    sha256: Hash,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawReport {
    /// A state in a report, a reason in a refusal.
    code: u8,
    reserved: u8,
    text: U16,
}

mod kind {
    pub(super) const DISCOVER: u8 = 1;
    pub(super) const OFFER: u8 = 2;
    pub(super) const READ: u8 = 3;
    pub(super) const DATA: u8 = 4;
    pub(super) const REPORT: u8 = 5;
    pub(super) const ACK: u8 = 6;
    pub(super) const REFUSED: u8 = 7;
}

/// The reason why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Shorter than it says.
    #[error("message cut off")]
    Truncated,
    /// Not of this protocol, of another version, or of a kind that this one does not have.
    #[error("not a network boot message of version 1")]
    Unknown,
    /// The check sum is wrong.
    #[error("wrong check sum")]
    Damaged,
    /// Values that are not allowed, or do not fit together.
    #[error("inconsistent message")]
    Inconsistent,
}

codes! {
    /// The kind of image to start.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum ImageKind {
        /// A small guest: an ELF file, entered as the machine monitor enters it.
        Guest = 1,
        /// A Linux kernel (bzImage or vmlinux), entered by the 64-bit Linux/x86 boot protocol.
        Linux = 2,
    }
}

codes! {
    /// The purpose of a file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum FileRole {
        /// The guest or kernel.
        Kernel = 1,
        /// The kernel's initial RAM disk.
        Initrd = 2,
    }
}

impl fmt::Display for FileRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kernel => "kernel",
            Self::Initrd => "initrd",
        })
    }
}

/// A file of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Its purpose.
    pub role: FileRole,
    /// Bytes, 1 to [`MAX_FILE`].
    pub size: u64,
    /// SHA-256 of all of them.
    pub sha256: Hash,
}

/// The files that a node is to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Tells it from those that the server has had before, so that blocks of two are not mixed.
    pub id: u32,
    /// The kind of image to start.
    pub kind: ImageKind,
    /// Its files: a kernel, and for Linux perhaps an initrd.
    pub files: Vec<FileInfo>,
    /// The command line.
    pub command_line: String,
}

impl Manifest {
    /// Index and properties of the file with this role.
    pub fn file(&self, role: FileRole) -> Option<(u16, FileInfo)> {
        let found = (0..).zip(&self.files).find(|(_, file)| file.role == role);
        found.map(|(index, file)| (index, *file))
    }

    /// Returns true if it can be sent and booted: files of an allowed size, a kernel first, no two
    /// of one role, a guest without initrd.
    pub fn is_valid(&self) -> bool {
        let sizes = self.files.iter().all(|file| (1..=MAX_FILE).contains(&file.size));
        let roles = match (self.kind, self.files.as_slice()) {
            (_, [kernel]) => kernel.role == FileRole::Kernel,
            (ImageKind::Linux, [kernel, initrd]) => {
                kernel.role == FileRole::Kernel && initrd.role == FileRole::Initrd
            }
            _ => false,
        };
        let line = &self.command_line;
        sizes && roles && line.len() <= MAX_COMMAND_LINE && !line.contains('\0')
    }
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Of which manifest.
    pub manifest: u32,
    /// Index of the file in it.
    pub file: u16,
    /// Bytes, 1 to [`BLOCK`].
    pub length: u16,
    /// The first byte.
    pub offset: u64,
}

impl Range {
    fn raw(self) -> RawRange {
        RawRange {
            manifest: self.manifest.into(),
            file: self.file.into(),
            length: self.length.into(),
            offset: self.offset.into(),
        }
    }
}

codes! {
    /// The progress of a node.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum BootState {
        /// All files are there and have the right hash: what was fetched is started now.
        Starting = 1,
        /// It gives up.
        Failed = 2,
    }
}

codes! {
    /// The reason why a server refuses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Reason {
        /// It has nothing to boot for this node.
        NotForYou = 1,
        /// The server has another manifest now; the node should ask for it again.
        Stale = 2,
        /// No such file, or not so many bytes in it.
        NoSuchRange = 3,
    }
}

/// A message, read or to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Node: what am I to boot?
    Discover,
    /// Server: this.
    Offer(Manifest),
    /// Node: this part of a file, please.
    Read(Range),
    /// Server: here it is.
    Data(Range, &'a [u8]),
    /// Node: the result of its boot, with a line for the user.
    Report(BootState, &'a str),
    /// Server: the report has arrived.
    Ack,
    /// Server: no, with a line for people.
    Refused(Reason, &'a str),
}

/// The header that every message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// A number that the node draws when it starts to boot; answers have that of the question.
    pub session: u32,
    /// Number of the question; answers have that of the question.
    pub tag: u32,
}

fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

impl Message<'_> {
    fn kind(&self) -> u8 {
        match self {
            Self::Discover => kind::DISCOVER,
            Self::Offer(_) => kind::OFFER,
            Self::Read(_) => kind::READ,
            Self::Data(..) => kind::DATA,
            Self::Report(..) => kind::REPORT,
            Self::Ack => kind::ACK,
            Self::Refused(..) => kind::REFUSED,
        }
    }

    /// The message as bytes. Text is cut at [`MAX_TEXT`] bytes; a manifest that is not
    /// [valid](Manifest::is_valid) and a block whose length differs from its range give bytes that
    /// no receiver accepts.
    pub fn emit(&self, envelope: Envelope) -> Vec<u8> {
        let mut header = Header {
            magic: MAGIC,
            version: VERSION,
            kind: self.kind(),
            sum: 0.into(),
            session: envelope.session.into(),
            tag: envelope.tag.into(),
        };
        let mut bytes = Vec::with_capacity(HEADER_SIZE + 64);
        bytes.extend_from_slice(header.as_bytes());
        match self {
            Self::Discover | Self::Ack => {}
            Self::Offer(manifest) => emit_manifest(manifest, &mut bytes),
            Self::Read(range) => bytes.extend_from_slice(range.raw().as_bytes()),
            Self::Data(range, data) => {
                bytes.reserve_exact(size_of::<RawRange>() + data.len());
                bytes.extend_from_slice(range.raw().as_bytes());
                bytes.extend_from_slice(data);
            }
            Self::Report(state, text) => emit_text(*state as u8, text, &mut bytes),
            Self::Refused(reason, text) => emit_text(*reason as u8, text, &mut bytes),
        }
        header.sum = crc32fast::hash(&bytes).into();
        bytes[..HEADER_SIZE].copy_from_slice(header.as_bytes());
        bytes
    }
}

fn emit_manifest(manifest: &Manifest, bytes: &mut Vec<u8>) {
    let raw = RawOffer {
        manifest: manifest.id.into(),
        kind: manifest.kind as u8,
        files: manifest.files.len().min(u8::MAX.into()) as u8,
        command_line: (manifest.command_line.len().min(u16::MAX.into()) as u16).into(),
    };
    bytes.extend_from_slice(raw.as_bytes());
    for file in &manifest.files {
        let raw = RawFile {
            role: file.role as u8,
            reserved: [0; 7],
            size: file.size.into(),
            sha256: file.sha256,
        };
        bytes.extend_from_slice(raw.as_bytes());
    }
    bytes.extend_from_slice(manifest.command_line.as_bytes());
}

fn emit_text(code: u8, text: &str, bytes: &mut Vec<u8>) {
    let text = cut(text);
    let raw = RawReport { code, reserved: 0, text: (text.len() as u16).into() };
    bytes.extend_from_slice(raw.as_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

/// Reads a message. Bytes behind it are ignored, but are part of the checksum.
///
/// # Errors
///
/// See [`Malformed`].
pub fn parse(bytes: &[u8]) -> Result<(Envelope, Message<'_>), Malformed> {
    let (header, body) = Header::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
    if header.magic != MAGIC || header.version != VERSION {
        return Err(Malformed::Unknown);
    }
    let blank = Header { sum: 0.into(), ..*header };
    let mut sum = crc32fast::Hasher::new();
    sum.update(blank.as_bytes());
    sum.update(body);
    if sum.finalize() != header.sum.get() {
        return Err(Malformed::Damaged);
    }
    let envelope = Envelope { session: header.session.get(), tag: header.tag.get() };
    let message = match header.kind {
        kind::DISCOVER => Message::Discover,
        kind::OFFER => Message::Offer(parse_manifest(body)?),
        kind::READ => Message::Read(parse_range(body)?.0),
        kind::DATA => {
            let (range, data) = parse_range(body)?;
            let data = data.get(..range.length.into()).ok_or(Malformed::Truncated)?;
            Message::Data(range, data)
        }
        kind::REPORT => {
            let (code, text) = parse_text(body)?;
            let state = BootState::from_code(code).ok_or(Malformed::Inconsistent)?;
            Message::Report(state, text)
        }
        kind::ACK => Message::Ack,
        kind::REFUSED => {
            let (code, text) = parse_text(body)?;
            let reason = Reason::from_code(code).ok_or(Malformed::Inconsistent)?;
            Message::Refused(reason, text)
        }
        _ => return Err(Malformed::Unknown),
    };
    Ok((envelope, message))
}

fn parse_range(body: &[u8]) -> Result<(Range, &[u8]), Malformed> {
    let (raw, rest) = RawRange::ref_from_prefix(body).map_err(|_| Malformed::Truncated)?;
    let range = Range {
        manifest: raw.manifest.get(),
        file: raw.file.get(),
        length: raw.length.get(),
        offset: raw.offset.get(),
    };
    let lengths = 1..=BLOCK as u16;
    if !lengths.contains(&range.length) || range.offset > MAX_FILE - u64::from(range.length) {
        return Err(Malformed::Inconsistent);
    }
    Ok((range, rest))
}

fn parse_manifest(body: &[u8]) -> Result<Manifest, Malformed> {
    let (raw, mut rest) = RawOffer::ref_from_prefix(body).map_err(|_| Malformed::Truncated)?;
    let kind = ImageKind::from_code(raw.kind).ok_or(Malformed::Inconsistent)?;
    if usize::from(raw.files) > MAX_FILES {
        return Err(Malformed::Inconsistent);
    }
    let mut files = Vec::with_capacity(raw.files.into());
    for _ in 0..raw.files {
        let (file, behind) = RawFile::ref_from_prefix(rest).map_err(|_| Malformed::Truncated)?;
        let role = FileRole::from_code(file.role).ok_or(Malformed::Inconsistent)?;
        files.push(FileInfo { role, size: file.size.get(), sha256: file.sha256 });
        rest = behind;
    }
    let line = rest.get(..raw.command_line.get().into()).ok_or(Malformed::Truncated)?;
    let command_line = core::str::from_utf8(line).map_err(|_| Malformed::Inconsistent)?.into();
    let manifest = Manifest { id: raw.manifest.get(), kind, files, command_line };
    if manifest.is_valid() { Ok(manifest) } else { Err(Malformed::Inconsistent) }
}

fn parse_text(body: &[u8]) -> Result<(u8, &str), Malformed> {
    let (raw, rest) = RawReport::ref_from_prefix(body).map_err(|_| Malformed::Truncated)?;
    let len = usize::from(raw.text.get());
    if len > MAX_TEXT {
        return Err(Malformed::Inconsistent);
    }
    let text = rest.get(..len).ok_or(Malformed::Truncated)?;
    Ok((raw.code, core::str::from_utf8(text).map_err(|_| Malformed::Inconsistent)?))
}
