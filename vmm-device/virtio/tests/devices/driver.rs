//! A small virtio driver: finds everything in configuration space and uses the function only as a
//! guest can, through configuration space, BARs and guest memory.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use tofu_pci::testing::{RecordingSink, capabilities};
use tofu_pci::{PciFunction, regs as pci};
use tofu_virtio::regs::{self, cap, common, feature, status};
use tofu_virtio::{Device, GuestMemory, Options, Virtio};
use vm_memory::{Bytes, GuestAddress};

/// Guest memory of all tests: two regions with a hole between.
pub(crate) const LOW: u64 = 0x40_0000;
pub(crate) const HIGH_START: u64 = 0x1_0000_0000;
pub(crate) const HIGH: u64 = 0x10_0000;
/// Queues lie from here on, 64 KiB each; buffers lie above [`BUFFERS`].
pub(crate) const QUEUES: u64 = 0x1_0000;
pub(crate) const BUFFERS: u64 = 0x20_0000;

/// Longer than anything takes on a host that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

pub(crate) fn memory() -> GuestMemory {
    let ranges = [(GuestAddress(0), LOW as usize), (GuestAddress(HIGH_START), HIGH as usize)];
    GuestMemory::from_ranges(&ranges).unwrap()
}

pub(crate) fn virtio(device: impl Device + 'static) -> Virtio {
    let options = Options { name: "test".to_owned(), ..Options::default() };
    Virtio::new(device, options, memory()).unwrap()
}

/// Waits until `done` says so.
#[track_caller]
pub(crate) fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The place that a capability gives for a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CapabilityRange {
    pub(crate) bar: u8,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// A function and the guest's knowledge of it.
pub(crate) struct Guest {
    pub(crate) function: Arc<Virtio>,
    pub(crate) memory: GuestMemory,
    pub(crate) sink: Arc<RecordingSink>,
    pub(crate) ranges: Vec<(u8, CapabilityRange)>,
    pub(crate) window: u16,
}

impl Guest {
    pub(crate) fn new(device: impl Device + 'static) -> Self {
        let memory = memory();
        let options = Options { name: "test".to_owned(), ..Options::default() };
        let function = Virtio::new(device, options, memory.clone()).unwrap();
        Self::of(Arc::new(function), memory)
    }

    pub(crate) fn of(function: Arc<Virtio>, memory: GuestMemory) -> Self {
        let sink = Arc::new(RecordingSink::default());
        function.endpoint().msix().unwrap().connect(sink.clone());
        let (mut ranges, mut window) = (Vec::new(), 0);
        for (at, id) in capabilities(&*function) {
            if id != pci::CAP_VENDOR {
                continue;
            }
            let mut body = [0; 16];
            function.config_read(at, &mut body);
            let word = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().unwrap());
            let range =
                CapabilityRange { bar: body[4], offset: word(8).into(), len: word(12).into() };
            if body[3] == cap::PCI_CFG {
                window = at;
            }
            ranges.push((body[3], range));
        }
        let guest = Self { function, memory, sink, ranges, window };
        guest.enable();
        guest
    }

    /// Bus mastering, and MSI-X with vector n for message n.
    pub(crate) fn enable(&self) {
        let command = pci::COMMAND_MEMORY | pci::COMMAND_BUS_MASTER;
        self.function.config_write(pci::COMMAND, &command.to_le_bytes());
        let msix = capabilities(&*self.function).into_iter().find(|(_, id)| *id == pci::CAP_MSIX);
        let (at, _) = msix.unwrap();
        let mut control = [0; 2];
        self.function.config_read(at + pci::MSIX_CONTROL, &mut control);
        let vectors = (u16::from_le_bytes(control) & 0x7ff) + 1;
        for vector in 0..vectors {
            let entry = u64::from(vector) * 16;
            self.function.bar_write(regs::MSIX_BAR, entry, &0xfee0_0000u64.to_le_bytes());
            self.function.bar_write(regs::MSIX_BAR, entry + 8, &u64::from(vector).to_le_bytes());
        }
        self.function.config_write(at + pci::MSIX_CONTROL, &pci::MSIX_ENABLE.to_le_bytes());
    }

    pub(crate) fn range(&self, kind: u8) -> CapabilityRange {
        self.ranges.iter().find(|(found, _)| *found == kind).expect("the capability").1
    }

    pub(crate) fn read<const N: usize>(&self, kind: u8, offset: u64) -> [u8; N] {
        let range = self.range(kind);
        let mut data = [0; N];
        self.function.bar_read(range.bar, range.offset + offset, &mut data);
        data
    }

    pub(crate) fn write(&self, kind: u8, offset: u64, data: &[u8]) {
        let range = self.range(kind);
        self.function.bar_write(range.bar, range.offset + offset, data);
    }

    pub(crate) fn common(&self, offset: u64, data: &[u8]) {
        self.write(cap::COMMON, offset, data);
    }

    pub(crate) fn status(&self) -> u8 {
        self.read::<1>(cap::COMMON, common::DEVICE_STATUS)[0]
    }

    pub(crate) fn set_status(&self, bits: u8) {
        self.common(common::DEVICE_STATUS, &[bits]);
    }

    pub(crate) fn reset(&self) {
        self.set_status(0);
        assert_eq!(self.status(), 0);
    }

    pub(crate) fn offered(&self) -> u64 {
        let half = |select: u32| {
            self.common(common::DEVICE_FEATURE_SELECT, &select.to_le_bytes());
            u64::from(u32::from_le_bytes(self.read(cap::COMMON, common::DEVICE_FEATURE)))
        };
        half(0) | half(1) << 32
    }

    /// Up to FEATURES_OK; false if the device does not agree.
    pub(crate) fn negotiate(&self, features: u64) -> bool {
        self.reset();
        self.set_status(status::ACKNOWLEDGE);
        self.set_status(status::ACKNOWLEDGE | status::DRIVER);
        for (select, half) in [(0u32, features as u32), (1, (features >> 32) as u32)] {
            self.common(common::DRIVER_FEATURE_SELECT, &select.to_le_bytes());
            self.common(common::DRIVER_FEATURE, &half.to_le_bytes());
        }
        self.set_status(self.status() | status::FEATURES_OK);
        self.status() & status::FEATURES_OK != 0
    }

    /// Describes a queue to the device, at its usual place, with vector `index + 1`.
    pub(crate) fn queue(&self, index: u16, size: u16) -> Queue {
        let base = QUEUES + u64::from(index) * 0x1_0000;
        let queue = self.queue_at(index, size, base);
        self.memory.write_slice(&[0; 0x1_0000], GuestAddress(base)).unwrap();
        self.describe(index, size, [queue.desc, queue.avail, queue.used]);
        queue
    }

    /// The driver's side of a queue whose 64 KiB of memory begin at `base`.
    pub(crate) fn queue_at(&self, index: u16, size: u16, base: u64) -> Queue {
        Queue {
            index,
            size,
            event_idx: false,
            desc: base,
            avail: base + 0x4000,
            used: base + 0x8000,
            next: 0,
            seen: 0,
            notify: self.range(cap::NOTIFY),
            function: Arc::clone(&self.function),
            memory: self.memory.clone(),
        }
    }

    pub(crate) fn describe(&self, index: u16, size: u16, [desc, avail, used]: [u64; 3]) {
        self.common(common::QUEUE_SELECT, &index.to_le_bytes());
        self.common(common::QUEUE_SIZE, &size.to_le_bytes());
        self.common(common::QUEUE_MSIX_VECTOR, &(index + 1).to_le_bytes());
        for (at, address) in [
            (common::QUEUE_DESC, desc),
            (common::QUEUE_DRIVER, avail),
            (common::QUEUE_DEVICE, used),
        ] {
            self.common(at, &(address as u32).to_le_bytes());
            self.common(at + 4, &((address >> 32) as u32).to_le_bytes());
        }
        self.common(common::QUEUE_ENABLE, &1u16.to_le_bytes());
    }

    pub(crate) fn go(&self) {
        self.common(common::CONFIG_MSIX_VECTOR, &0u16.to_le_bytes());
        self.set_status(self.status() | status::DRIVER_OK);
    }

    /// Negotiates, describes `queues` queues of `size` entries, and starts.
    pub(crate) fn start(&self, features: u64, queues: u16, size: u16) -> Vec<Queue> {
        assert!(self.negotiate(features | feature::VERSION_1));
        let mut queues: Vec<_> = (0..queues).map(|index| self.queue(index, size)).collect();
        for queue in &mut queues {
            queue.event_idx = features & feature::EVENT_IDX != 0;
        }
        self.go();
        queues
    }

    #[track_caller]
    pub(crate) fn needs_reset(&self) {
        wait("the device asks for a reset", || self.status() & status::NEEDS_RESET != 0);
        wait("it says so", || self.sink.notified().contains(&0));
    }
}

/// A buffer of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) writable: bool,
}

pub(crate) fn to_device(at: u64, len: u32) -> Buffer {
    Buffer { at, len, writable: false }
}

pub(crate) fn from_device(at: u64, len: u32) -> Buffer {
    Buffer { at, len, writable: true }
}

/// The driver's side of a queue. Descriptors are taken in order; a caller must not have more in
/// flight than there are.
pub(crate) struct Queue {
    pub(crate) index: u16,
    pub(crate) size: u16,
    pub(crate) event_idx: bool,
    pub(crate) desc: u64,
    pub(crate) avail: u64,
    pub(crate) used: u64,
    next: u16,
    seen: u16,
    notify: CapabilityRange,
    function: Arc<Virtio>,
    memory: GuestMemory,
}

impl Queue {
    pub(crate) fn descriptor(
        &self,
        table: u64,
        index: u16,
        at: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&at.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write_slice(&bytes, GuestAddress(table + 16 * u64::from(index))).unwrap();
    }

    /// Makes a request available without notifying the device.
    pub(crate) fn add(&mut self, buffers: &[Buffer]) -> u16 {
        let head = self.next;
        for (i, buffer) in (0u16..).zip(buffers) {
            let last = usize::from(i) + 1 == buffers.len();
            let flags = if buffer.writable { WRITE } else { 0 } | if last { 0 } else { NEXT };
            let this = (head + i) % self.size;
            self.descriptor(self.desc, this, buffer.at, buffer.len, flags, (this + 1) % self.size);
        }
        self.next = (head + buffers.len() as u16) % self.size;
        self.publish(head);
        head
    }

    /// The same through a table at `table`.
    pub(crate) fn add_indirect(&mut self, table: u64, buffers: &[Buffer]) -> u16 {
        for (i, buffer) in (0u16..).zip(buffers) {
            let last = usize::from(i) + 1 == buffers.len();
            let flags = if buffer.writable { WRITE } else { 0 } | if last { 0 } else { NEXT };
            self.descriptor(table, i, buffer.at, buffer.len, flags, i + 1);
        }
        let head = self.next;
        self.descriptor(self.desc, head, table, 16 * buffers.len() as u32, INDIRECT, 0);
        self.next = (head + 1) % self.size;
        self.publish(head);
        head
    }

    /// Puts a chain's head into the available ring.
    pub(crate) fn publish(&self, head: u16) {
        let index: u16 = self.memory.load(GuestAddress(self.avail + 2), Acquire).unwrap();
        let slot = self.avail + 4 + 2 * u64::from(index % self.size);
        self.memory.write_obj(head, GuestAddress(slot)).unwrap();
        self.memory.store(index.wrapping_add(1), GuestAddress(self.avail + 2), Release).unwrap();
    }

    pub(crate) fn kick(&self) {
        self.function.bar_write(self.notify.bar, self.notify.offset, &self.index.to_le_bytes());
    }

    /// The next completed request: its head and how much the device has written.
    pub(crate) fn poll(&mut self) -> Option<(u32, u32)> {
        let index: u16 = self.memory.load(GuestAddress(self.used + 2), Acquire).unwrap();
        if index == self.seen {
            return None;
        }
        let at = self.used + 4 + 8 * u64::from(self.seen % self.size);
        self.seen = self.seen.wrapping_add(1);
        if self.event_idx {
            let event = self.avail + 4 + 2 * u64::from(self.size);
            self.memory.store(self.seen, GuestAddress(event), Release).unwrap();
        }
        let [head, len]: [u32; 2] =
            [at, at + 4].map(|at| self.memory.read_obj(GuestAddress(at)).unwrap());
        Some((head, len))
    }

    #[track_caller]
    pub(crate) fn wait(&mut self) -> (u32, u32) {
        let mut found = None;
        wait("a completion", || {
            found = self.poll();
            found.is_some()
        });
        found.unwrap()
    }

    /// Sends one request and waits for it; returns how much the device has written.
    #[track_caller]
    pub(crate) fn call(&mut self, buffers: &[Buffer]) -> u32 {
        let head = self.add(buffers);
        self.kick();
        let (done, len) = self.wait();
        assert_eq!(done, u32::from(head));
        len
    }
}
