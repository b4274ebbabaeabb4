//! The driver's platform over a client's socket.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::client::*;
use tofu_abi::regs::Register;
use tofu_driver::{DmaError, IrqError, Platform};
use tofu_inproc::{Arena, Buffer};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, MmapRegion, VolatileMemory};

/// Guest memory starts here.
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const MEMORY: u64 = 16 << 20;

/// The driver's platform over a socket.
pub(crate) struct Remote {
    pub(crate) client: Mutex<Client>,
    pub(crate) memory: Arena,
    events: Mutex<HashMap<u16, Arc<Event>>>,
    start: Instant,
    /// The mappable part of BAR0, if there is any.
    pub(crate) pages: Option<MmapRegion<()>>,
    /// Doorbells that need no message, by offset in BAR0.
    pub(crate) bells: HashMap<u64, OwnedFd>,
    /// True if an interrupt has arrived that woke the driver.
    pub(crate) woken: AtomicBool,
}

impl Remote {
    /// Attaches as a VMM would.
    pub(crate) fn new(mut client: Client) -> Self {
        let file = sealed(MEMORY);
        client.try_map(Some(&file), [0, BASE, MEMORY]).unwrap();
        client.enable();
        let range = (GuestAddress(BASE), MEMORY as usize, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::<()>::from_ranges_with_files([range]).unwrap();
        Self {
            client: Mutex::new(client),
            memory: Arena::new(memory).unwrap(),
            events: Mutex::default(),
            start: Instant::now(),
            pages: None,
            bells: HashMap::new(),
            woken: AtomicBool::new(false),
        }
    }
}

impl Remote {
    /// A word of BAR0 that is mapped.
    pub(crate) fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let pages = self.pages.as_ref()?;
        let (Register::Cq { .. } | Register::Bch { .. }) = Register::decode(offset)? else {
            return None;
        };
        pages.get_atomic_ref(offset as usize).ok()
    }
}

impl Platform for Remote {
    type Dma = Buffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        if let Some(word) = self.word(offset) {
            return word.load(SeqCst);
        }
        let bytes = self.client.lock().unwrap().read(0, offset, 8);
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        if let Some(bell) = self.bells.get(&offset) {
            rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
            return;
        }
        if let Some(word) = self.word(offset) {
            word.store(value, SeqCst);
            return;
        }
        self.client.lock().unwrap().post_write(0, offset, &value.to_le_bytes());
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        self.memory.alloc(size, align)
    }

    fn irq_enable(&self, vector: u16) -> Result<(), IrqError> {
        let event = Event::new();
        let bound = self.client.lock().unwrap().try_bind(u32::from(vector), &[&event]);
        bound.map_err(|_| IrqError { vector })?;
        self.events.lock().unwrap().insert(vector, Arc::new(event));
        Ok(())
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        let event = Arc::clone(&self.events.lock().unwrap()[&vector]);
        let woken = event.wait_for(Duration::from_nanos(timeout_ns)) > 0;
        self.woken.fetch_or(woken, SeqCst);
        woken
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}
