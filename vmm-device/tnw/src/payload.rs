//! The data of packets: bytes, or memory of the sending node, which is read where the data is used.
//! So data that stays in this process is copied once, from memory to memory.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use tofu_abi::tnw::PACKET_DATA;
use tofu_dma::{Access, DmaMemory, DmaResult};
use tofu_sync::lock;

/// Memory that packets refer to. It is read until [`Payload::keep`] and not after that, so its
/// owner may then reuse it.
pub(crate) struct Borrowed {
    memory: Arc<dyn DmaMemory>,
    address: u64,
    /// Size of the memory, in bytes. Zeros fill the last packet up.
    bytes: usize,
    /// Set if the memory could not be read. The packets then have zeros.
    failed: Arc<AtomicBool>,
    /// The bytes, once they have been read.
    kept: OnceLock<Arc<[u8]>>,
    /// Held while the memory is read.
    reading: Mutex<()>,
}

impl Borrowed {
    /// Refers to `bytes` bytes at an address. `failed` is set if they cannot be read.
    pub(crate) fn new(
        memory: Arc<dyn DmaMemory>,
        address: u64,
        bytes: usize,
        failed: Arc<AtomicBool>,
    ) -> Self {
        let (kept, reading) = (OnceLock::new(), Mutex::default());
        Self { memory, address, bytes, failed, kept, reading }
    }

    fn keep(&self) -> &Arc<[u8]> {
        if let Some(kept) = self.kept.get() {
            return kept;
        }
        let _reading = lock(&self.reading);
        self.kept.get_or_init(|| {
            let len = self.bytes.next_multiple_of(PACKET_DATA);
            let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len).collect();
            if let Some(bytes) = Arc::get_mut(&mut bytes)
                && self.memory.read(self.address, &mut bytes[..self.bytes]).is_err()
            {
                bytes.fill(0);
                self.failed.store(true, Relaxed);
            }
            bytes
        })
    }

    /// Writes a part of the bytes to `address` of another memory.
    fn copy(&self, from: usize, len: usize, to: &dyn DmaMemory, address: u64) -> DmaResult {
        let reading = lock(&self.reading);
        if let Some(kept) = self.kept.get() {
            drop(reading);
            return to.write(address, &kept[from..from + len]);
        }
        let there = len.min(self.bytes.saturating_sub(from));
        let (mut done, mut written) = (0, Ok(()));
        let read = self.memory.access(
            self.address.saturating_add(from as u64),
            there,
            Access::Read,
            &mut |slice| {
                let at = address.saturating_add(done as u64);
                done += slice.len();
                if written.is_ok() {
                    written = to.write_from(at, slice);
                }
            },
        );
        drop(reading);
        if read.is_err() {
            return to.write(address, &self.keep()[from..from + len]);
        }
        written?;
        // Zeros that fill up the last packet, so fewer than a packet has.
        let rest = &[0; PACKET_DATA][..(len - there).min(PACKET_DATA)];
        if rest.is_empty() {
            return Ok(());
        }
        to.write(address.saturating_add(there as u64), rest)
    }
}

#[derive(Clone)]
enum Held {
    Bytes(Arc<[u8]>),
    Borrowed(Arc<Borrowed>),
}

/// The data of a run of packets.
#[derive(Clone)]
pub(crate) struct Payload {
    held: Held,
    /// Offset of the part of `held` that is used, in bytes.
    from: usize,
    len: usize,
}

impl Payload {
    pub(crate) fn of(bytes: Arc<[u8]>) -> Self {
        Self { from: 0, len: bytes.len(), held: Held::Bytes(bytes) }
    }

    /// Refers to memory. Zeros fill the last packet up.
    pub(crate) fn borrowed(borrowed: Borrowed) -> Self {
        let len = borrowed.bytes.next_multiple_of(PACKET_DATA);
        Self { held: Held::Borrowed(Arc::new(borrowed)), from: 0, len }
    }

    /// The length in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Removes bytes from the beginning.
    pub(crate) fn skip(&mut self, bytes: usize) {
        let bytes = bytes.min(self.len);
        self.from += bytes;
        self.len -= bytes;
    }

    /// Removes everything after the first `bytes` bytes.
    pub(crate) fn truncate(&mut self, bytes: usize) {
        self.len = self.len.min(bytes);
    }

    /// Reads the memory that the payload refers to, for the last time.
    pub(crate) fn keep(&self) {
        if let Held::Borrowed(borrowed) = &self.held {
            borrowed.keep();
        }
    }

    /// The bytes, which are read from memory now if they were not before.
    pub(crate) fn bytes(&self) -> &[u8] {
        let all = match &self.held {
            Held::Bytes(bytes) => bytes,
            Held::Borrowed(borrowed) => borrowed.keep(),
        };
        all.get(self.from..self.from + self.len).unwrap_or(&[])
    }

    /// Writes `len` bytes of the payload, from `from` on, to `address` of a memory.
    ///
    /// # Errors
    ///
    /// If there is no memory at `address`.
    pub(crate) fn copy(
        &self,
        from: usize,
        len: usize,
        to: &dyn DmaMemory,
        address: u64,
    ) -> DmaResult {
        let from = from.min(self.len);
        let len = len.min(self.len - from);
        match &self.held {
            Held::Bytes(_) => to.write(address, &self.bytes()[from..from + len]),
            Held::Borrowed(borrowed) => borrowed.copy(self.from + from, len, to, address),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Payload {}
