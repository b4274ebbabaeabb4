//! The platform: one device, attached.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use rustix::io::Errno;
use thiserror::Error;
use tofu_abi::pci::REGISTER_BAR;
use tofu_abi::regs::{NUM_CQ, NUM_TNI};
use tofu_abi::tnw::WINDOW_BAR;
use tofu_driver::FreeList;
use tofu_driver::{DmaError, IrqError, Platform};
use tofu_inproc::{Arena, Buffer};
use tofu_pci::regs;
use tofu_process::{Resize, memory_file};
use tofu_tnw::{STORE, Windows};
use tofu_vfio_user::{Client, ClientError, MappedPages, client_window};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, MmapRegion, VolatileMemory};

use crate::interrupts::Interrupts;

/// Region of configuration space, as VFIO numbers them.
const CONFIG_REGION: u32 = 7;
/// Doorbells that are events: those of two queues of each interface. The others are messages, so
/// that both processes have few descriptors.
const DOORBELLS: usize = 2 * NUM_TNI;
/// The same where several processes share the device: those of all queues, as each has others.
const SHARED_DOORBELLS: usize = NUM_CQ * NUM_TNI;
/// Queues and tables start here in a process's addresses, so that address 0 is no memory.
const QUEUE_BASE: u64 = 0x1_0000;
/// Bytes for queues and tables. Only what is used takes memory.
const QUEUE_MEMORY: usize = 512 << 20;
/// Mapped memory of the process has the addresses behind this part of those that it may use.
const QUEUE_PART: u64 = 4;
/// Mappings share no granule of this size, so that a steering tag never reaches another one.
const GRANULE: u64 = 1 << 16;

/// The reason why there is no device.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// There is no listener, or access is denied.
    #[error("{socket}: {source}")]
    Socket {
        /// The socket.
        socket: String,
        /// The system's error.
        source: io::Error,
    },
    /// The server does not do what it should.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// There is no memory for queues and tables.
    #[error("memory of the device's queues: {0}")]
    Memory(io::Error),
}

/// The reason why memory cannot be mapped for the device.
#[derive(Debug, Error)]
pub enum MapError {
    /// The device has no addresses for so much.
    #[error("the device has no addresses left for {0} bytes")]
    NoAddresses(u64),
    /// The process has no memory there, or may not read it.
    #[error("the memory is not mapped or not readable")]
    NoMemory,
    /// The host does not let the server reach this process's memory.
    #[error("the device's server may not reach this process's memory")]
    NotAllowed,
    /// The server refuses otherwise, or is gone.
    #[error(transparent)]
    Server(ClientError),
}

impl From<ClientError> for MapError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(Errno::FAULT) => Self::NoMemory,
            ClientError::Refused(Errno::PERM) => Self::NotAllowed,
            error => Self::Server(error),
        }
    }
}

/// A device, of Tofu or of TNW, that another process serves at a socket.
///
/// This process has it for itself, or shares it with others. When it and all memory that came from
/// it are dropped, or the process ends, the device is reset; of a shared device, only the parts
/// that this process has used.
pub struct SocketPlatform {
    client: Arc<Client>,
    addresses: Arc<Addresses>,
    queues: Arena,
    pages: Option<Pages>,
    /// Injection windows of TNW, where they are memory.
    windows: Option<Pages>,
    bells: BTreeMap<u64, OwnedFd>,
    interrupts: Interrupts,
    start: Instant,
}

impl fmt::Debug for SocketPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketPlatform").field("client", &self.client).finish_non_exhaustive()
    }
}

impl SocketPlatform {
    /// Attaches the device that is served at `socket`: a path, or the name of an abstract socket
    /// behind an `@`.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn connect(socket: &str) -> Result<Self, ConnectError> {
        Self::connect_shared(socket, 0, 1)
    }

    /// Attaches a device that `count` processes share and that is served at `socket`. This process
    /// is number `index`, and gets the interrupts of the queues that it opens.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn connect_shared(socket: &str, index: u16, count: u16) -> Result<Self, ConnectError> {
        let error = |source| ConnectError::Socket { socket: socket.to_owned(), source };
        let address = match socket.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(socket),
        };
        let stream = address.and_then(|address| UnixStream::connect_addr(&address));
        Self::attach_shared(stream.map_err(error)?, index, count)
    }

    /// Attaches the device that is served at the other end of `socket`.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn attach(socket: UnixStream) -> Result<Self, ConnectError> {
        Self::attach_shared(socket, 0, 1)
    }

    fn attach_shared(socket: UnixStream, index: u16, count: u16) -> Result<Self, ConnectError> {
        let doorbells = if count > 1 { SHARED_DOORBELLS } else { DOORBELLS };
        let client = Arc::new(Client::new(socket, doorbells)?);
        let (first, last) = client_window(index, count).into_inner();
        let queues = queue_memory(&client, first + QUEUE_BASE)?;
        let mapped = |bar| -> Result<_, ConnectError> {
            let pages = client.mapped_pages(bar)?.map(Pages::map).transpose();
            pages.map_err(ConnectError::Memory)
        };
        let (pages, windows) = (mapped(REGISTER_BAR)?, mapped(WINDOW_BAR)?);
        let bells = match &pages {
            Some(_) => Vec::new(),
            None => client.doorbells()?,
        };
        let bells = bells.into_iter().map(|bell| (bell.offset, bell.event)).collect();
        let mut free = FreeList::default();
        let size = last - first + 1;
        let mapped = first + size / QUEUE_PART;
        free.give(mapped, first + size - mapped);
        let platform = Self {
            addresses: Arc::new(Addresses { client: Arc::clone(&client), free: Mutex::new(free) }),
            client,
            queues,
            pages,
            windows,
            bells,
            interrupts: Interrupts::default(),
            start: Instant::now(),
        };
        let command = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
        let at = regs::COMMAND.into();
        platform.client.region_write(CONFIG_REGION, at, &command.to_le_bytes())?;
        Ok(platform)
    }

    /// The eventfd of an interrupt that is enabled, for event loops that hold it.
    pub fn interrupt_event(&self, vector: u16) -> Option<Arc<OwnedFd>> {
        self.interrupts.event(vector)
    }

    /// Maps for the device `len` bytes of this process's memory at `address`, until the result is
    /// dropped: for reading, and for writing if it is `writable`. The server must be one that can
    /// access its clients' memory.
    ///
    /// If the memory is unmapped before that, the device's accesses to it fail.
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    pub fn map(&self, address: usize, len: usize, writable: bool) -> Result<Mapping, MapError> {
        let full = MapError::NoAddresses(len as u64);
        let phase = address as u64 % GRANULE;
        let size = (len as u64).checked_add(phase);
        let Some(size) = size.and_then(|size| size.checked_next_multiple_of(GRANULE)) else {
            return Err(full);
        };
        let granule = self.addresses.free().take(size, GRANULE, 0).ok_or(full)?;
        let mut mapping = Mapping {
            addresses: Arc::clone(&self.addresses),
            granule: (granule, size),
            address: granule + phase,
            len: 0,
        };
        self.client.map(mapping.address, len as u64, address as u64, writable, None)?;
        mapping.len = len as u64;
        Ok(mapping)
    }
}

/// The addresses that mapped memory may have.
struct Addresses {
    client: Arc<Client>,
    free: Mutex<FreeList>,
}

impl Addresses {
    fn free(&self) -> MutexGuard<'_, FreeList> {
        tofu_sync::lock(&self.free)
    }
}

/// Memory of this process that the device reaches until this is dropped.
pub struct Mapping {
    addresses: Arc<Addresses>,
    /// Its range of the device's addresses: the first, and how many.
    granule: (u64, u64),
    address: u64,
    /// Bytes, 0 if it is not mapped yet.
    len: u64,
}

impl Mapping {
    /// The device address of the first byte. Its offset within 64 KiB is that of the address in
    /// this process, and nothing else is mapped before it in that range.
    pub fn device_addr(&self) -> u64 {
        self.address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 && self.addresses.client.unmap(self.address, self.len).is_err() {
            // The server is gone, or has it mapped still: the addresses are not used again.
            return;
        }
        self.addresses.free().give(self.granule.0, self.granule.1);
    }
}

/// Makes memory for queues and tables that the server maps too.
fn queue_memory(client: &Client, base: u64) -> Result<Arena, ConnectError> {
    let make = || {
        let file = memory_file("tofu-queues", QUEUE_MEMORY as u64, Resize::Never)?;
        let start = FileOffset::new(File::from(file.try_clone()?), 0);
        let region = (GuestAddress(base), QUEUE_MEMORY, Some(start));
        let memory = GuestMemoryMmap::from_ranges_with_files([region]).map_err(io::Error::other)?;
        io::Result::Ok((file, memory))
    };
    let (file, memory) = make().map_err(ConnectError::Memory)?;
    client.map(base, QUEUE_MEMORY as u64, 0, true, Some(file.as_fd()))?;
    Ok(Arena::new(memory).expect("the memory has a region"))
}

/// Registers that are mapped.
struct Pages {
    region: MmapRegion,
    /// Offset and size, in the order of offsets.
    areas: Vec<(u64, u64)>,
}

impl Pages {
    fn map(pages: MappedPages) -> io::Result<Self> {
        let MappedPages { file, mut areas } = pages;
        areas.sort_unstable();
        let end = areas.last().map_or(0, |(first, size)| first.saturating_add(*size));
        let size = usize::try_from(end).map_err(io::Error::other)?;
        let start = FileOffset::new(File::from(file), 0);
        let region = MmapRegion::from_file(start, size).map_err(io::Error::other)?;
        Ok(Self { region, areas })
    }

    /// The register at an offset, if it is mapped.
    fn register(&self, offset: u64) -> Option<&AtomicU64> {
        let after = self.areas.partition_point(|(first, _)| *first <= offset);
        let (first, size) = self.areas.get(after.checked_sub(1)?)?;
        if offset - first + 8 > *size {
            return None;
        }
        self.region.get_atomic_ref(offset as usize).ok()
    }
}

impl Platform for SocketPlatform {
    type Dma = Buffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        if let Some(register) = self.pages.as_ref().and_then(|pages| pages.register(offset)) {
            return u64::from_le(register.load(Ordering::Acquire));
        }
        let mut bytes = [0; 8];
        // As on a bus when the device has gone.
        match self.client.region_read(REGISTER_BAR.into(), offset, &mut bytes) {
            Ok(()) => u64::from_le_bytes(bytes),
            Err(_) => u64::MAX,
        }
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        if let Some(register) = self.pages.as_ref().and_then(|pages| pages.register(offset)) {
            register.store(value.to_le(), Ordering::Release);
        } else if let Some(bell) = self.bells.get(&offset) {
            // A full counter rings already.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        } else {
            // Lost if the server is gone, as on a bus.
            let bytes = value.to_le_bytes();
            let _ = self.client.region_write(REGISTER_BAR.into(), offset, &bytes);
        }
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        self.queues.alloc(size, align)
    }

    fn irq_enable(&self, vector: u16) -> Result<(), IrqError> {
        self.interrupts.enable(&self.client, vector)
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        self.interrupts.wait(vector, timeout_ns)
    }

    fn irq_fd(&self, vector: u16) -> Option<i32> {
        self.interrupts.descriptor(vector)
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn relax(&self) {
        // The device may be waiting for this processor.
        std::thread::yield_now();
    }
}

impl Windows for SocketPlatform {
    fn store(&self, offset: u64, data: &[u8; STORE]) {
        let Some(windows) = &self.windows else {
            // Lost if the server is gone, as on a bus.
            let _ = self.client.region_write(WINDOW_BAR.into(), offset, data);
            return;
        };
        for (at, word) in (offset..).step_by(8).zip(data.as_chunks::<8>().0) {
            if let Some(place) = windows.register(at) {
                place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
        }
    }

    fn can_share(&self) -> bool {
        self.windows.is_some()
    }

    fn publish(&self, offset: u64, word: u64) {
        if let Some(place) = self.windows.as_ref().and_then(|windows| windows.register(offset)) {
            place.store(word.to_le(), Ordering::Release);
        }
    }

    fn load_after_stores(&self, offset: u64) -> u64 {
        fence(Ordering::SeqCst);
        let place = self.windows.as_ref().and_then(|windows| windows.register(offset));
        place.map_or(0, |place| u64::from_le(place.load(Ordering::SeqCst)))
    }
}
