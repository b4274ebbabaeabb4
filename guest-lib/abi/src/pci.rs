//! The device on PCI Express (ours: real TofuD sits on the processor's own
//! bus, at physical address 0x4000_0000).

/// Vendor id (Fujitsu).
pub const VENDOR_ID: u16 = 0x10cf;
/// Device id of Tofu (K computer).
pub const DEVICE_TOFU: u16 = 0x1cc1;
/// Device id of Tofu2.
pub const DEVICE_TOFU2: u16 = 0x1cc2;
/// Device id of TofuD.
pub const DEVICE_TOFUD: u16 = 0x1ccd;
/// Device id of TNW.
pub const DEVICE_TNW: u16 = 0x1cce;
/// Class code: network controller, other.
pub const CLASS_CODE: u32 = 0x02_8000;
/// Revision id.
pub const REVISION: u8 = 1;
/// BAR with the register space, 64-bit prefetchable (it takes BAR 1 as well).
pub const REGISTER_BAR: u8 = 0;
/// BAR with the MSI-X table and pending bits.
pub const MSIX_BAR: u8 = 2;
