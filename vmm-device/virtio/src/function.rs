//! The virtio-pci transport (1.2, 4.1): a device as a bus sees it.
//!
//! # Transport
//!
//! The transport is virtio over PCI (4.1), modern only: a driver must accept `VIRTIO_F_VERSION_1`,
//! and `ACCESS_PLATFORM` of a device behind an IOMMU. It has split rings (2.7), with
//! `VIRTIO_F_INDIRECT_DESC` and `VIRTIO_F_EVENT_IDX`. The packed ring, `RING_RESET`,
//! `NOTIFICATION_DATA` and shared memory regions are not offered.
//!
//! - vendor, device: `1af4`, `1040` + number of the device; the subsystem has the same; revision 1
//! - BAR 0, 32-bit, 16 KiB (ours): common configuration at `0x0000`, interrupt status at `0x1000`,
//!   device configuration at `0x2000`, notification at `0x3000`
//! - BAR 1, 32-bit, 8 KiB (ours): MSI-X: vectors for configuration changes and for each queue
//! - capabilities: common, ISR, device (if it has a configuration), notify, and the access window
//!   in configuration space (4.1.4.9)
//!
//! All queues share one notification register (multiplier 0) (ours), so a device needs one
//! ioeventfd. There is no INTx pin: a driver without MSI-X has to poll the interrupt status.
//!
//! Fields of the common configuration are written with their own width, addresses also as eight
//! bytes at once. Other writes are ignored. A queue that is enabled stays as it is until reset, as
//! do the features after FEATURES_OK. Without bus master enable the device does not touch memory;
//! notifications from that time are served when it is enabled again.

use std::fmt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tofu_pci::{BAR_COUNT, Bar, BarRange, Endpoint, LinkSpeed, PciFunction};
use tofu_sync::lock;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::device::{ConfigFields, Device};
use crate::iommu;
use crate::regs::{self, NO_VECTOR, REGISTER_BAR, cap, common, feature, status};
use crate::ring::QueueSettings;
use crate::shared::Core;
use crate::{DeviceMemory, Doorbells, Error, GuestMemory, worker};

/// Address space, not memory: pages are taken as the stack grows.
const THREAD_STACK: usize = 256 << 10;

/// Length of the window capability, and the place of its fields.
const WINDOW_BAR: u16 = 4;
const WINDOW_OFFSET: u16 = 8;
const WINDOW_LENGTH: u16 = 12;
const WINDOW_DATA: u16 = 16;

/// Runs first on a device's thread; for giving up rights, say.
pub type ThreadStart = Arc<dyn Fn() + Send + Sync>;

/// State that all kinds of devices have.
#[derive(Clone, Default)]
pub struct Options {
    /// Names the device in the log and its thread, whose name keeps the first 15 bytes.
    pub name: String,
    /// Runs first on the device's thread.
    pub thread_start: Option<ThreadStart>,
    /// Puts the device behind an IOMMU, as this endpoint: its rings and buffers have the
    /// addresses that the guest has mapped for it. Drivers must accept `ACCESS_PLATFORM` then.
    pub endpoint: Option<iommu::Endpoint>,
}

/// A virtio device behind a PCI function. Dropping it ends its thread.
pub struct Virtio {
    core: Arc<Core>,
    config: Vec<u8>,
    /// The fields of it that can change.
    fields: Option<Arc<dyn ConfigFields>>,
    /// The features that the device offers.
    features: u64,
    /// Entries of each queue at most.
    queue_sizes: Vec<u16>,
    /// The offset of the window capability in configuration space.
    window: u16,
    registers: Mutex<Registers>,
    thread: Option<JoinHandle<()>>,
}

/// The driver's settings in the common configuration.
struct Registers {
    device_feature_select: u32,
    driver_feature_select: u32,
    driver_features: u64,
    queue_select: u16,
    queues: Vec<QueueSettings>,
}

impl Registers {
    fn new(queue_sizes: &[u16]) -> Self {
        let queue = |&size| QueueSettings { size, ..QueueSettings::default() };
        Self {
            device_feature_select: 0,
            driver_feature_select: 0,
            driver_features: 0,
            queue_select: 0,
            queues: queue_sizes.iter().map(queue).collect(),
        }
    }
}

impl Virtio {
    /// Makes a function of a device, and starts its thread.
    ///
    /// # Errors
    /// [`Error::Host`] if the host has no thread or descriptor left, [`Error::Pci`] if the
    /// device has more queues than there are MSI-X vectors.
    pub fn new(
        device: impl Device + 'static,
        options: Options,
        memory: GuestMemory,
    ) -> Result<Self, Error> {
        let mut device: Box<dyn Device> = Box::new(device);
        let identity = device.identity();
        let queues = identity.queues.len();
        // One vector a queue, and one for the configuration.
        let vectors = u16::try_from(queues + 1).unwrap_or(u16::MAX);
        let id = regs::DEVICE_ID_BASE + identity.kind;
        let endpoint = Endpoint::new(
            tofu_pci::Identity {
                vendor: regs::VENDOR_ID,
                device: id,
                // Not a transitional device (1.2, 4.1.2.1).
                revision: 1,
                class: identity.class,
                subsystem_vendor: regs::VENDOR_ID,
                subsystem: id,
            },
            LinkSpeed::Gen1,
        )
        .with_bar(REGISTER_BAR, Bar::memory32(regs::REGISTER_BAR_SIZE))?
        .with_msix(regs::MSIX_BAR, vectors)?;
        let (endpoint, window) = with_capabilities(endpoint, identity.config.len())?;
        let wake = EventFd::new(EFD_NONBLOCK).map_err(Error::host("creating an eventfd"))?;
        device.connect(wake.try_clone().map_err(Error::host("duplicating an eventfd"))?);
        let fields = device.fields();
        let memory = DeviceMemory::new(memory, options.endpoint);
        let platform = if memory.is_translated() { feature::ACCESS_PLATFORM } else { 0 };
        let core = Arc::new(Core::new(options.name, memory, endpoint, wake, queues, device));
        let (body, start) = (Arc::clone(&core), options.thread_start);
        let thread = std::thread::Builder::new()
            .name(core.name.chars().take(15).collect())
            .stack_size(THREAD_STACK)
            .spawn(move || {
                if let Some(start) = start {
                    start();
                }
                worker::run(&body);
            })
            .map_err(Error::host("starting a device's thread"))?;
        Ok(Self {
            core,
            features: identity.features
                | feature::VERSION_1
                | feature::INDIRECT_DESC
                | feature::EVENT_IDX
                | platform,
            registers: Mutex::new(Registers::new(&identity.queues)),
            config: identity.config,
            fields,
            queue_sizes: identity.queues,
            window,
            thread: Some(thread),
        })
    }

    /// The PCI Express endpoint, where MSI-X messages are connected.
    pub fn endpoint(&self) -> &Endpoint {
        &self.core.endpoint
    }

    /// Lets notifications arrive without an exit. Without this they arrive as writes.
    ///
    /// # Errors
    /// The error of `doorbells`, or that the host has no descriptors left.
    pub fn attach_doorbell(&self, doorbells: &dyn Doorbells) -> Result<(), String> {
        let event = self.core.wake.try_clone().map_err(|error| error.to_string())?;
        doorbells.attach(REGISTER_BAR, regs::NOTIFY_AT, event)
    }

    fn reset_device(&self) {
        let mut registers = lock(&self.registers);
        self.reset_registers(&mut registers);
    }

    fn reset_registers(&self, registers: &mut Registers) {
        self.core.reset();
        *registers = Registers::new(&self.queue_sizes);
    }

    /// The common configuration as it reads now.
    fn common(&self) -> [u8; common::SIZE as usize] {
        let registers = lock(&self.registers);
        let select = usize::from(registers.queue_select);
        // A queue that is not there has size 0 (1.2, 4.1.4.3).
        let queue = registers.queues.get(select).copied().unwrap_or_default();
        let vector = self.core.queue_vectors.get(select);
        let half = |features: u64, select: u32| match select {
            0 => features as u32,
            1 => (features >> 32) as u32,
            _ => 0,
        };
        let mut bytes = [0; common::SIZE as usize];
        let mut put = |at: u64, value: &[u8]| {
            bytes[at as usize..at as usize + value.len()].copy_from_slice(value);
        };
        let Registers { device_feature_select, driver_feature_select, driver_features, .. } =
            *registers;
        put(common::DEVICE_FEATURE_SELECT, &device_feature_select.to_le_bytes());
        put(common::DEVICE_FEATURE, &half(self.features, device_feature_select).to_le_bytes());
        put(common::DRIVER_FEATURE_SELECT, &driver_feature_select.to_le_bytes());
        put(common::DRIVER_FEATURE, &half(driver_features, driver_feature_select).to_le_bytes());
        put(common::CONFIG_MSIX_VECTOR, &self.core.config_vector.load(SeqCst).to_le_bytes());
        put(common::NUM_QUEUES, &(self.queue_sizes.len() as u16).to_le_bytes());
        put(common::DEVICE_STATUS, &[self.core.status()]);
        put(common::QUEUE_SELECT, &registers.queue_select.to_le_bytes());
        put(common::QUEUE_SIZE, &queue.size.to_le_bytes());
        let vector = vector.map_or(NO_VECTOR, |vector| vector.load(SeqCst));
        put(common::QUEUE_MSIX_VECTOR, &vector.to_le_bytes());
        put(common::QUEUE_ENABLE, &u16::from(queue.enabled).to_le_bytes());
        put(common::QUEUE_DESC, &queue.desc.to_le_bytes());
        put(common::QUEUE_DRIVER, &queue.avail.to_le_bytes());
        put(common::QUEUE_DEVICE, &queue.used.to_le_bytes());
        bytes
    }

    /// Writes one field, or one half of an address; anything else is ignored, as no driver may
    /// do it (1.2, 4.1.3.1).
    fn common_write(&self, offset: u64, data: &[u8]) {
        if data.len() > 4 {
            // Two halves of an address, or nothing.
            if data.len() == 8 && offset >= common::QUEUE_DESC {
                self.common_write(offset, &data[..4]);
                self.common_write(offset + 4, &data[4..]);
            }
            return;
        }
        let mut value = [0; 4];
        value[..data.len()].copy_from_slice(data);
        let value = u32::from_le_bytes(value);
        let registers = &mut *lock(&self.registers);
        let negotiable = self.core.status() & status::FEATURES_OK == 0;
        match (offset, data.len()) {
            (common::DEVICE_FEATURE_SELECT, 4) => registers.device_feature_select = value,
            (common::DRIVER_FEATURE_SELECT, 4) => registers.driver_feature_select = value,
            (common::DRIVER_FEATURE, 4) if negotiable => {
                set_half(&mut registers.driver_features, registers.driver_feature_select, value);
            }
            (common::CONFIG_MSIX_VECTOR, 2) => {
                self.core.config_vector.store(self.vector(value), SeqCst);
            }
            (common::DEVICE_STATUS, 1) => self.write_status(registers, value as u8),
            (common::QUEUE_SELECT, 2) => registers.queue_select = value as u16,
            (common::QUEUE_MSIX_VECTOR, 2) => {
                let select = usize::from(registers.queue_select);
                if let Some(vector) = self.core.queue_vectors.get(select) {
                    vector.store(self.vector(value), SeqCst);
                }
            }
            _ => self.queue_write(registers, offset, data.len(), value),
        }
    }

    /// Writes a field of the selected queue, as long as that is not in use.
    fn queue_write(&self, registers: &mut Registers, offset: u64, len: usize, value: u32) {
        let select = usize::from(registers.queue_select);
        let running = self.core.status() & status::DRIVER_OK != 0;
        let Some(queue) = registers.queues.get_mut(select).filter(|queue| !queue.enabled) else {
            return;
        };
        let half = u32::from(offset & 4 != 0);
        match (offset & !4, len) {
            _ if running => {}
            (_, 2) if offset == common::QUEUE_SIZE => {
                let size = value as u16;
                if size.is_power_of_two() && size <= self.queue_sizes[select] {
                    queue.size = size;
                }
            }
            (_, 2) if offset == common::QUEUE_ENABLE => queue.enabled = value == 1,
            (common::QUEUE_DESC, 4) => set_half(&mut queue.desc, half, value),
            (common::QUEUE_DRIVER, 4) => set_half(&mut queue.avail, half, value),
            (common::QUEUE_DEVICE, 4) => set_half(&mut queue.used, half, value),
            _ => {}
        }
    }

    /// A vector as the device takes it: one that is not there becomes none.
    fn vector(&self, value: u32) -> u16 {
        let vectors = self.core.queue_vectors.len() + 1;
        if (value as usize) < vectors { value as u16 } else { NO_VECTOR }
    }

    fn write_status(&self, registers: &mut Registers, value: u8) {
        if value == 0 {
            self.reset_registers(registers);
            return;
        }
        let old = self.core.status();
        let mut new = value & !old & !status::NEEDS_RESET;
        let features = registers.driver_features;
        // A driver that knows of no IOMMU would give addresses that mean something else.
        let needed = feature::VERSION_1 | self.features & feature::ACCESS_PLATFORM;
        let acceptable = features & !self.features == 0 && features & needed == needed;
        if new & status::FEATURES_OK != 0 && !acceptable {
            new &= !status::FEATURES_OK;
        }
        if (old | new) & status::FEATURES_OK == 0 {
            new &= !status::DRIVER_OK;
        }
        self.core.add_status(new);
        if new & status::DRIVER_OK != 0 {
            let event_idx = features & feature::EVENT_IDX != 0;
            self.core.start(features, event_idx, &registers.queues);
        }
    }

    /// The access that the window makes: BAR, offset and length; none if it is not set up for one.
    fn window(&self) -> Option<(u8, u64, usize)> {
        let mut fields = [0; 16];
        self.core.endpoint.config_read(self.window, &mut fields);
        let word = |at: u16| {
            let at = usize::from(at);
            u32::from_le_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]])
        };
        let (offset, len) = (word(WINDOW_OFFSET), word(WINDOW_LENGTH));
        let possible = matches!(len, 1 | 2 | 4) && offset.is_multiple_of(len);
        possible.then_some((fields[usize::from(WINDOW_BAR)], offset.into(), len as usize))
    }
}

/// Sets the low (0) or the high (1) half of `value`.
fn set_half(value: &mut u64, half: u32, to: u32) {
    match half {
        0 => *value = *value & !0xffff_ffff | u64::from(to),
        1 => *value = *value & 0xffff_ffff | u64::from(to) << 32,
        _ => {}
    }
}

/// Adds the capabilities by which drivers find the registers. Returns where the window is.
fn with_capabilities(endpoint: Endpoint, config: usize) -> Result<(Endpoint, u16), Error> {
    // Type, BAR, ID, padding, offset, length (1.2, 4.1.4).
    let body = |kind: u8, at: u64, len: u64| {
        let mut body = vec![kind, REGISTER_BAR, 0, 0, 0];
        body.extend((at as u32).to_le_bytes());
        body.extend((len as u32).to_le_bytes());
        body
    };
    let parts = [
        (cap::COMMON, regs::COMMON_AT, common::SIZE),
        (cap::ISR, regs::ISR_AT, 1),
        (cap::DEVICE, regs::DEVICE_AT, config as u64),
    ];
    let mut endpoint = endpoint;
    for (kind, at, len) in parts.into_iter().filter(|&(_, _, len)| len > 0) {
        (endpoint, _) = endpoint.with_vendor_capability(&body(kind, at, len), &[])?;
    }
    let mut notify = body(cap::NOTIFY, regs::NOTIFY_AT, regs::NOTIFY_SIZE);
    // The multiplier: all queues have the same register.
    notify.extend(0u32.to_le_bytes());
    (endpoint, _) = endpoint.with_vendor_capability(&notify, &[])?;
    let mut window = body(cap::PCI_CFG, 0, 0);
    window[1] = 0;
    window.extend([0; 4]);
    // BAR, offset and length are the driver's to write; the data is not kept.
    let mut writable = [0; 13];
    writable[1] = 0xff;
    writable[5..].fill(0xff);
    Ok(endpoint.with_vendor_capability(&window, &writable)?)
}

/// Reads `data` from a block of bytes that starts at `base`; what is outside reads as ones.
fn read_block(block: &[u8], offset: u64, data: &mut [u8]) {
    for (at, byte) in (offset..).zip(data) {
        *byte = usize::try_from(at).ok().and_then(|at| block.get(at)).copied().unwrap_or(0xff);
    }
}

impl PciFunction for Virtio {
    fn config_read(&self, offset: u16, data: &mut [u8]) {
        self.core.endpoint.config_read(offset, data);
        let window_data = usize::from(self.window + WINDOW_DATA);
        let places = (usize::from(offset)..)
            .zip(data)
            .filter(|(at, _)| (window_data..window_data + 4).contains(at));
        let mut value = None;
        for (at, byte) in places {
            // One access for all bytes, and none if none of them is read: reading may have side
            // effects.
            let value = value.get_or_insert_with(|| {
                let mut value = [0; 4];
                if let Some((bar, offset, len)) = self.window() {
                    self.bar_read(bar, offset, &mut value[..len]);
                }
                value
            });
            *byte = value[at - window_data];
        }
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        let changes = self.core.endpoint.config_write(offset, data);
        if changes.function_reset {
            self.reset_device();
        }
        if changes.bus_master {
            self.core.settle();
            self.core.wake();
        }
        if offset == self.window + WINDOW_DATA
            && let Some((bar, offset, len)) = self.window()
            && let Some(data) = data.get(..len)
        {
            self.bar_write(bar, offset, data);
        }
    }

    fn bars(&self) -> [Option<BarRange>; BAR_COUNT] {
        self.core.endpoint.bars()
    }

    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        if self.core.endpoint.msix_bar_read(bar, offset, data) {
            return;
        }
        if bar != REGISTER_BAR || offset >= regs::NOTIFY_AT {
            data.fill(0xff);
        } else if let Some(offset) = offset.checked_sub(regs::DEVICE_AT) {
            match &self.fields {
                None => read_block(&self.config, offset, data),
                Some(fields) => {
                    let mut config = self.config.clone();
                    fields.read(&mut config);
                    read_block(&config, offset, data);
                }
            }
        } else if offset >= regs::ISR_AT {
            let isr =
                if offset == regs::ISR_AT && !data.is_empty() { self.core.take_isr() } else { 0 };
            read_block(&[isr], offset - regs::ISR_AT, data);
        } else {
            read_block(&self.common(), offset, data);
        }
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
        if self.core.endpoint.msix_bar_write(bar, offset, data) || bar != REGISTER_BAR {
            return;
        }
        if offset < regs::ISR_AT {
            self.common_write(offset, data);
        } else if let Some(fields) = &self.fields
            && (regs::DEVICE_AT..regs::NOTIFY_AT).contains(&offset)
        {
            fields.write(offset - regs::DEVICE_AT, data);
        } else if offset >= regs::NOTIFY_AT && offset - regs::NOTIFY_AT < regs::NOTIFY_SIZE {
            self.core.wake();
        }
    }

    fn reset(&self) {
        self.core.endpoint.reset();
        self.reset_device();
    }
}

impl Drop for Virtio {
    fn drop(&mut self) {
        self.core.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("{}: the device's thread has panicked", self.core.name);
        }
    }
}

impl fmt::Debug for Virtio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Virtio").field("name", &self.core.name).finish_non_exhaustive()
    }
}
