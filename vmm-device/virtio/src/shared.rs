//! State that the registers and the device's thread share.
//!
//! Cycle: `super::device`, because this owns the device, and the device reaches its rings and the
//! transport by what is here.

use std::fmt::Display;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering::SeqCst};

use tofu_pci::Endpoint;
use tofu_sync::lock;
use vmm_sys_util::eventfd::EventFd;

use crate::DeviceMemory;
use crate::device::{Device, Interest, Io, Work};
use crate::regs::{ISR_CONFIG, ISR_QUEUE, NO_VECTOR, status};
use crate::ring::{QueueSettings, Ring};

/// The shared part of a device.
pub(crate) struct Core {
    pub(crate) name: String,
    pub(crate) memory: DeviceMemory,
    pub(crate) endpoint: Endpoint,
    /// Ends the sleep of the device's thread.
    pub(crate) wake: EventFd,
    status: AtomicU8,
    isr: AtomicU8,
    /// MSI-X vectors: of configuration changes, and of each queue.
    pub(crate) config_vector: AtomicU16,
    pub(crate) queue_vectors: Vec<AtomicU16>,
    /// A caller waits for the thread to release the rings.
    yielding: AtomicBool,
    stopping: AtomicBool,
    complained: AtomicBool,
    active: Mutex<Active>,
}

/// The context of a turn of the thread.
struct Active {
    device: Box<dyn Device>,
    /// From DRIVER_OK to reset.
    rings: Option<Vec<Option<Ring>>>,
    features: u64,
}

impl Core {
    pub(crate) fn new(
        name: String,
        memory: DeviceMemory,
        endpoint: Endpoint,
        wake: EventFd,
        queues: usize,
        device: Box<dyn Device>,
    ) -> Self {
        Self {
            name,
            memory,
            endpoint,
            wake,
            status: AtomicU8::new(0),
            isr: AtomicU8::new(0),
            config_vector: AtomicU16::new(NO_VECTOR),
            queue_vectors: (0..queues).map(|_| AtomicU16::new(NO_VECTOR)).collect(),
            yielding: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            complained: AtomicBool::new(false),
            active: Mutex::new(Active { device, rings: None, features: 0 }),
        }
    }

    pub(crate) fn wake(&self) {
        // Fails only when the counter is full, and then the thread wakes up anyway.
        let _ = self.wake.write(1);
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, SeqCst);
        self.wake();
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }

    pub(crate) fn status(&self) -> u8 {
        self.status.load(SeqCst)
    }

    /// Adds status bits, which only a reset takes away.
    pub(crate) fn add_status(&self, bits: u8) {
        self.status.fetch_or(bits, SeqCst);
    }

    /// Reads the interrupt status, which clears it.
    pub(crate) fn take_isr(&self) -> u8 {
        self.isr.swap(0, SeqCst)
    }

    pub(crate) fn interrupt_queue(&self, queue: usize) {
        self.isr.fetch_or(ISR_QUEUE, SeqCst);
        self.send(self.queue_vectors.get(queue));
    }

    fn send(&self, vector: Option<&AtomicU16>) {
        if let Some(vector) = vector.map(|vector| vector.load(SeqCst))
            && vector != NO_VECTOR
        {
            self.endpoint.trigger(vector);
        }
    }

    /// Asks the driver for a reset (1.2, 2.1.2).
    fn need_reset(&self, why: &dyn Display) {
        self.complain(&format_args!("needs a reset: {why}"));
        self.add_status(status::NEEDS_RESET);
        self.isr.fetch_or(ISR_CONFIG, SeqCst);
        self.send(Some(&self.config_vector));
    }

    pub(crate) fn complain(&self, what: &dyn Display) {
        let first = !self.complained.swap(true, SeqCst);
        let level = if first { log::Level::Warn } else { log::Level::Debug };
        log::log!(level, "{}: {what}", self.name);
    }

    /// Returns true if the rings may be accessed: no thread waits for the device to yield them, and
    /// the function may access memory at all.
    pub(crate) fn may_work(&self) -> bool {
        !self.yielding.load(SeqCst) && !self.stopping() && self.endpoint.bus_master()
    }

    /// Takes the rings into use, as the driver has described them.
    pub(crate) fn start(&self, features: u64, event_idx: bool, queues: &[QueueSettings]) {
        let mut active = lock(&self.active);
        let ring = |settings: &QueueSettings| {
            settings.enabled.then(|| Ring::new(settings, event_idx, &self.memory)).transpose()
        };
        match queues.iter().map(ring).collect() {
            Ok(rings) => {
                active.rings = Some(rings);
                active.features = features;
            }
            Err(broken) => self.need_reset(&broken),
        }
        drop(active);
        self.wake();
    }

    /// Takes the rings out of use. Waits for the request in progress, at most.
    pub(crate) fn reset(&self) {
        self.yielding.store(true, SeqCst);
        let mut active = lock(&self.active);
        if active.rings.take().is_some() {
            active.device.reset();
        }
        self.status.store(0, SeqCst);
        self.isr.store(0, SeqCst);
        self.config_vector.store(NO_VECTOR, SeqCst);
        for vector in &self.queue_vectors {
            vector.store(NO_VECTOR, SeqCst);
        }
        drop(active);
        self.yielding.store(false, SeqCst);
        // The thread may want to listen to less now.
        self.wake();
    }

    /// Waits until no thread works on the rings. A change that forbids such work is then in effect.
    pub(crate) fn settle(&self) {
        drop(lock(&self.active));
    }

    /// Gives the device a turn.
    pub(crate) fn turn(&self) -> Work {
        if !self.may_work() {
            return Work::Done;
        }
        let mut active = lock(&self.active);
        let Active { device, rings, features } = &mut *active;
        let Some(some) = rings else { return Work::Done };
        let mut io = Io { core: self, rings: some, features: *features };
        let _access = self.memory.begin();
        match device.work(&mut io) {
            Ok(work) => work,
            Err(broken) => {
                *rings = None;
                device.reset();
                self.need_reset(&broken);
                Work::Done
            }
        }
    }

    /// The events that the device waits for.
    pub(crate) fn interests(&self) -> Vec<Interest> {
        let mut interests = Vec::new();
        let active = lock(&self.active);
        if active.rings.is_some() && self.endpoint.bus_master() {
            active.device.interests(&mut interests);
        }
        interests
    }
}
