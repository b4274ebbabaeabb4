//! Messages as they are on the wire: the vfio-user protocol, version 0.1, as in QEMU's
//! `docs/interop/vfio-user.rst`. Integers have the host's byte order.

use rustix::io::Errno;

/// Bytes of a message's header.
pub(crate) const HEADER_SIZE: usize = 16;
/// The most bytes of data that a region access carries, which is the protocol's default: a client
/// that ignores the server's capabilities observes it.
pub(crate) const MAX_DATA: usize = 1 << 20;
/// The most bytes that follow a header: a region write's data and the fields before them.
pub(crate) const MAX_BODY: usize = MAX_DATA + 16;
/// The most descriptors that come with a message. QEMU refuses a server that wants more.
pub(crate) const MAX_FDS: usize = 16;
/// The most descriptors of a message: a doorbell for each of 72 queues.
pub(crate) const MAX_SENT_FDS: usize = 72;
/// The protocol's version, major and minor.
pub(crate) const VERSION: (u16, u16) = (0, 1);
/// The number of ranges that a client may map, which is the protocol's default: QEMU refuses
/// a server that allows more, though it does map more itself for a guest with a vIOMMU.
pub(crate) const MAX_MAPS_TOLD: usize = 65_535;
/// Ranges of DMA memory are multiples of this, in bytes.
pub(crate) const PAGE_SIZE: u64 = 4096;

/// Commands of clients.
pub(crate) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const DEVICE_GET_INFO: u16 = 4;
    pub(crate) const DEVICE_GET_REGION_INFO: u16 = 5;
    pub(crate) const DEVICE_GET_REGION_IO_FDS: u16 = 6;
    pub(crate) const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub(crate) const DEVICE_SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DEVICE_RESET: u16 = 13;
    /// Not in QEMU's description of the protocol but in libvfio-user's, as is its format.
    pub(crate) const REGION_WRITE_MULTI: u16 = 15;
}

/// Flags of DMA_MAP and DMA_UNMAP.
pub(crate) mod dma {
    pub(crate) const READ: u32 = 1 << 0;
    pub(crate) const WRITE: u32 = 1 << 1;
    pub(crate) const UNMAP_ALL: u32 = 1 << 1;
}

/// Flags of DEVICE_GET_INFO.
pub(crate) mod device {
    pub(crate) const RESET: u32 = 1 << 0;
    pub(crate) const PCI: u32 = 1 << 1;
}

/// Regions of a PCI device. Those below are its BARs, by index.
pub(crate) mod region {
    pub(crate) const ROM: u32 = 6;
    pub(crate) const CONFIG: u32 = 7;
    pub(crate) const VGA: u32 = 8;
    pub(crate) const COUNT: u32 = 9;

    pub(crate) const READ: u32 = 1 << 0;
    pub(crate) const WRITE: u32 = 1 << 1;
    /// A descriptor comes with the answer.
    pub(crate) const MMAP: u32 = 1 << 2;
    /// Capabilities follow.
    pub(crate) const CAPS: u32 = 1 << 3;

    /// First word of the capability that lists the parts that can be mapped: its number, and its
    /// version in the upper half.
    pub(crate) const SPARSE_MMAP: u32 = 1 | 1 << 16;
}

/// Ways in which a part of a region rings without a message.
pub(crate) mod io_fd {
    pub(crate) const IOEVENTFD: u32 = 0;
}

/// Interrupt indices of a PCI device: INTx, MSI, MSI-X, errors, requests to let go.
pub(crate) mod irq {
    pub(crate) const MSIX: u32 = 2;
    pub(crate) const ERROR: u32 = 3;
    pub(crate) const COUNT: u32 = 5;

    pub(crate) const EVENTFD: u32 = 1 << 0;

    pub(crate) const DATA_NONE: u32 = 1 << 0;
    pub(crate) const DATA_BOOL: u32 = 1 << 1;
    pub(crate) const DATA_EVENTFD: u32 = 1 << 2;
    pub(crate) const ACTION_TRIGGER: u32 = 1 << 5;
}

const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: u16,
    pub(crate) command: u16,
    /// Bytes of the message with its header.
    pub(crate) size: u32,
    flags: u32,
    errno: u32,
}

impl Header {
    pub(crate) fn parse(bytes: [u8; HEADER_SIZE]) -> Self {
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self {
            id: u16::from_ne_bytes([bytes[0], bytes[1]]),
            command: u16::from_ne_bytes([bytes[2], bytes[3]]),
            size: word(4),
            flags: word(8),
            errno: word(12),
        }
    }

    /// A command with this many bytes behind its header.
    pub(crate) fn command(
        id: u16,
        command: u16,
        body: usize,
        wants_reply: bool,
    ) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        let flags = if wants_reply { 0 } else { NO_REPLY };
        bytes[..2].copy_from_slice(&id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&command.to_ne_bytes());
        bytes[4..8].copy_from_slice(&((HEADER_SIZE + body) as u32).to_ne_bytes());
        bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
        bytes
    }

    /// The result of the command that this is the answer to; `None` if it is none.
    pub(crate) fn outcome(self) -> Option<Result<(), Errno>> {
        if self.flags & TYPE != REPLY {
            return None;
        }
        let errno = || Errno::from_raw_os_error(self.errno.clamp(1, 4095) as i32);
        Some(if self.flags & ERROR == 0 { Ok(()) } else { Err(errno()) })
    }

    pub(crate) fn is_command(self) -> bool {
        self.flags & TYPE == 0
    }

    pub(crate) fn wants_reply(self) -> bool {
        self.flags & NO_REPLY == 0
    }

    /// Makes `message`, which has room for a header, the reply to this one.
    pub(crate) fn reply(self, message: &mut Vec<u8>, result: Result<(), Errno>) {
        let (flags, errno) = match result {
            Ok(()) => (REPLY, 0),
            Err(errno) => {
                message.truncate(HEADER_SIZE);
                (REPLY | ERROR, errno.raw_os_error() as u32)
            }
        };
        let size = message.len() as u32;
        message[..2].copy_from_slice(&self.id.to_ne_bytes());
        message[2..4].copy_from_slice(&self.command.to_ne_bytes());
        for (at, word) in [(4, size), (8, flags), (12, errno)] {
            message[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
    }
}

/// Parses a message's body. A body that is too short for its command is invalid.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Errno> {
        self.take().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_ne_bytes)
    }

    /// The size that a client has reserved for a structure of at least `size` bytes, with which its
    /// body begins.
    pub(crate) fn argsz(&mut self, size: usize) -> Result<usize, Errno> {
        let whole = self.0.len() >= size;
        let argsz = self.u32()? as usize;
        if whole && argsz >= size { Ok(argsz) } else { Err(Errno::INVAL) }
    }
}

/// Appends 64-bit words to a message.
pub(crate) fn put_long(message: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        message.extend_from_slice(&word.to_ne_bytes());
    }
}

/// Appends 32-bit words to a message.
pub(crate) fn put(message: &mut Vec<u8>, words: &[u32]) {
    for word in words {
        message.extend_from_slice(&word.to_ne_bytes());
    }
}
