//! Registers of the transport and numbers of the devices, named as in virtio 1.2.

/// PCI vendor of all virtio devices (1.2, 4.1.2).
pub const VENDOR_ID: u16 = 0x1af4;
/// PCI device ID of virtio device 0; the device's number is added (1.2, 4.1.2).
pub(crate) const DEVICE_ID_BASE: u16 = 0x1040;

/// Kinds of devices (1.2, 5).
pub mod kind {
    /// Block device.
    pub const BLOCK: u16 = 2;
    /// Console.
    pub const CONSOLE: u16 = 3;
    /// Entropy source.
    pub(crate) const RNG: u16 = 4;
    /// IOMMU.
    pub const IOMMU: u16 = 23;
}

/// Device status bits (1.2, 2.1).
pub mod status {
    /// The guest has noticed the device.
    pub const ACKNOWLEDGE: u8 = 1;
    /// The guest knows how to drive it.
    pub const DRIVER: u8 = 2;
    /// The driver is ready.
    pub const DRIVER_OK: u8 = 4;
    /// The features are agreed upon.
    pub const FEATURES_OK: u8 = 8;
    /// The device cannot continue without a reset.
    pub const NEEDS_RESET: u8 = 64;
    /// The driver has given up.
    pub const FAILED: u8 = 128;
}

/// Feature bits of every device (1.2, 6).
pub mod feature {
    /// Descriptors may point to tables of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Notifications are suppressed by ring index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The driver supports virtio 1.0 or later; the legacy interface does not
    /// exist here.
    pub const VERSION_1: u64 = 1 << 32;
    /// The device is behind an IOMMU, if there is one, as any other is.
    pub const ACCESS_PLATFORM: u64 = 1 << 33;
}

/// Types of the vendor-specific capabilities (1.2, 4.1.4).
pub mod cap {
    /// Common configuration.
    pub const COMMON: u8 = 1;
    /// Notifications.
    pub const NOTIFY: u8 = 2;
    /// Interrupt status.
    pub const ISR: u8 = 3;
    /// Device configuration.
    pub const DEVICE: u8 = 4;
    /// The window from configuration space into the BARs.
    pub const PCI_CFG: u8 = 5;
}

/// Fields of the common configuration, in bytes from its start (1.2, 4.1.4.3).
pub mod common {
    /// Which half of the device's features is seen, 32 bits.
    pub const DEVICE_FEATURE_SELECT: u64 = 0;
    /// The device's features, 32 bits.
    pub const DEVICE_FEATURE: u64 = 4;
    /// Which half of the driver's features is seen, 32 bits.
    pub const DRIVER_FEATURE_SELECT: u64 = 8;
    /// The driver's features, 32 bits.
    pub const DRIVER_FEATURE: u64 = 12;
    /// MSI-X vector of configuration changes, 16 bits.
    pub const CONFIG_MSIX_VECTOR: u64 = 16;
    /// Number of queues, 16 bits.
    pub const NUM_QUEUES: u64 = 18;
    /// Device status, 8 bits.
    pub const DEVICE_STATUS: u64 = 20;
    /// Which queue the fields from here on are about, 16 bits.
    pub const QUEUE_SELECT: u64 = 22;
    /// Entries of the queue, 16 bits.
    pub const QUEUE_SIZE: u64 = 24;
    /// MSI-X vector of the queue, 16 bits.
    pub const QUEUE_MSIX_VECTOR: u64 = 26;
    /// The queue is in use; 16 bits.
    pub const QUEUE_ENABLE: u64 = 28;
    /// Address of the descriptor table, 64 bits.
    pub const QUEUE_DESC: u64 = 32;
    /// Address of the available ring, 64 bits.
    pub const QUEUE_DRIVER: u64 = 40;
    /// Address of the used ring, 64 bits.
    pub const QUEUE_DEVICE: u64 = 48;
    /// Size of the common configuration in bytes.
    pub const SIZE: u64 = 56;
}

/// No MSI-X vector (1.2, 4.1.5.1.2).
pub const NO_VECTOR: u16 = 0xffff;
/// Interrupt status: a queue has something (1.2, 4.1.4.5).
pub const ISR_QUEUE: u8 = 1;
/// Interrupt status: the configuration or the status has changed.
pub(crate) const ISR_CONFIG: u8 = 2;

/// The BAR of the transport's registers (ours): 32-bit, 16 KiB.
pub const REGISTER_BAR: u8 = 0;
/// The BAR of the MSI-X table (ours).
pub const MSIX_BAR: u8 = 1;
/// Size of [`REGISTER_BAR`] in bytes.
pub const REGISTER_BAR_SIZE: u64 = 0x4000;
/// The common configuration in [`REGISTER_BAR`]. Each part has its own page.
pub const COMMON_AT: u64 = 0x0000;
/// The interrupt status in [`REGISTER_BAR`].
pub(crate) const ISR_AT: u64 = 0x1000;
/// The device configuration in [`REGISTER_BAR`].
pub(crate) const DEVICE_AT: u64 = 0x2000;
/// The notification register in [`REGISTER_BAR`]: one for all queues, because
/// the device checks all of them whenever it is woken.
pub const NOTIFY_AT: u64 = 0x3000;
/// Size of the notification register in bytes.
pub(crate) const NOTIFY_SIZE: u64 = 4;
