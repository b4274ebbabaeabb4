// SPDX-License-Identifier: GPL-2.0

//! tofu.ko: a driver for the Tofu interconnect controller.
//!
//! It gives unprivileged processes remote direct memory access (RDMA) through `/proc/tofu`, the
//! interface on real machines with this controller. The public parts of that interface are
//! implemented exactly; the rest is marked *ours*.
//!
//! A module uses only modules that precede it in this list:
//!
//! - `shim`: functions in C, for what the kernel's bindings for Rust lack
//! - `uapi`: arguments of ioctls
//! - `ids`, `registers`: queues and gates by number; offsets of registers
//! - `users`: rights
//! - `engine`: kernel services for the engine of IP over Tofu
//! - `device`: the controller
//! - `opener`, `signal`: the process of a file; its signals for exceptions
//! - `charge`: limits on users' memory
//! - `dma`, `pin`, `unmap`: coherent memory; pinned memory of processes; notifiers of its unmapping
//! - `cq`, `bch`: control queues and barrier channels of processes
//! - `opened`: which queues and channels are open
//! - `control`, `files`, `stats`: ioctls of the node as a whole; /proc/tofu; debugfs
//! - `rendezvous`, `packets`, `netdev`: memory of frames that nodes fetch; the kernel's own queues,
//!   and network interfaces on them
//! - `reset`: resets of the function

use kernel::device::Core;
use kernel::dma::{Device as _, DmaMask};
use kernel::pci;
use kernel::prelude::*;
use kernel::sync::aref::ARef;

mod bch;
mod charge;
mod control;
mod cq;
mod device;
mod dma;
mod engine;
mod files;
mod ids;
mod kept;
mod netdev;
mod opened;
mod opener;
mod packets;
mod pin;
mod registers;
mod rendezvous;
mod reset;
mod shim;
mod signal;
mod skb;
mod stats;
mod text;
mod tx_queue;
mod uapi;
mod unmap;
mod users;

use tofu_abi::pci::{DEVICE_TOFU, DEVICE_TOFU2, DEVICE_TOFUD};

use device::Taken;

/// Bits of an address in the device's tables.
const DMA_BITS: DmaMask = DmaMask::new::<{ tofu_abi::table::IPA_BITS }>();

/// The function of a generation. The kernel has no name for its vendor.
const fn function(device: u16) -> pci::DeviceId {
    let id = kernel::bindings::pci_device_id {
        vendor: tofu_abi::pci::VENDOR_ID as u32,
        device: device as u32,
        subvendor: !0,
        subdevice: !0,
        class: 0,
        class_mask: 0,
        driver_data: 0,
        override_only: 0,
    };
    // SAFETY: `DeviceId` is a transparent wrapper.
    unsafe { core::mem::transmute::<kernel::bindings::pci_device_id, pci::DeviceId>(id) }
}

kernel::pci_device_table!(
    PCI_TABLE,
    <TofuDriver as pci::Driver>::IdInfo,
    [
        (function(DEVICE_TOFU), ()),
        (function(DEVICE_TOFU2), ()),
        (function(DEVICE_TOFUD), ()),
    ]
);

struct TofuDriver;

/// A function that may read and write memory. Dropping it ends that, and disables the function.
struct Enabled(ARef<pci::Device>);

impl Enabled {
    fn new(pdev: &pci::Device<Core<'_>>) -> Result<Self> {
        pdev.enable_device_mem()?;
        // From here on an error disables it.
        let enabled = Self(pdev.into());
        // SAFETY: nothing has been mapped or allocated for the device yet.
        unsafe { pdev.dma_set_mask_and_coherent(DMA_BITS)? };
        pdev.set_master();
        Ok(enabled)
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        // A `pci::Device` is a transparent wrapper.
        let raw = core::ptr::from_ref::<pci::Device>(&self.0)
            .cast_mut()
            .cast();
        // SAFETY: the function was enabled in `new`. It exists, because this has a reference to it,
        // and the kernel holds its lock during probe and unbind. This also clears Bus Master
        // Enable.
        unsafe { kernel::bindings::pci_disable_device(raw) };
    }
}

/// The state from probe to unbind. Fields are dropped in order: first the interfaces and files,
/// after which the device is not in use.
struct Bound {
    _net: reset::Watch,
    _stats: Option<stats::Files>,
    _files: files::Files,
    taken: Taken,
    _enabled: Enabled,
}

impl pci::Driver for TofuDriver {
    type IdInfo = ();
    type Data<'bound> = Bound;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let enabled = Enabled::new(pdev)?;
            let taken = Taken::new(pdev)?;
            let device = taken.device();
            let opened = opened::Opened::new(device)?;
            let files = files::Files::new(&opened)?;
            let [x, y, z, a, b, c] = device.coords().to_array();
            dev_info!(pdev, "node ({},{},{},{},{},{})\n", x, y, z, a, b, c);
            Ok(core::convert::identity::<Result<Bound>>(Ok(Bound {
                _net: reset::Watch::new(&opened, netdev::interfaces(device))?,
                // The device works without them.
                _stats: stats::files(&opened).ok(),
                _files: files,
                taken,
                _enabled: enabled,
            })))
        })
    }

    fn unbind<'bound>(_pdev: &'bound pci::Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        // No new transfers begin; those of open queues end when their files are released.
        this.taken.device().quiesce();
    }
}

kernel::module_pci_driver! {
    type: TofuDriver,
    name: "tofu",
    authors: ["The open Tofu project"],
    description: "Tofu interconnect controller",
    license: "GPL",
}
