//! MSI-X messages into KVM.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use kvm_bindings::{
    KVM_IRQ_ROUTING_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER,
    KVM_IRQCHIP_PIC_SLAVE, KvmIrqRouting, kvm_irq_routing_entry,
    kvm_irq_routing_entry__bindgen_ty_1, kvm_irq_routing_irqchip, kvm_irq_routing_msi, kvm_msi,
};
use kvm_ioctls::VmFd;
use log::debug;
use tofu_pci::MsiSink;
use tofu_sync::{lock, read, write};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::Error;

/// Interrupt inputs of the I/O APIC; MSI routes have numbers from here on.
const IOAPIC_PINS: u32 = 24;
const PIC_PINS: u32 = 8;

/// The interrupt routing table of a VM: KVM takes it only as a whole.
pub(crate) struct Routes {
    vm: Arc<VmFd>,
    messages: Mutex<BTreeMap<u32, (u64, u32)>>,
}

impl Routes {
    pub(crate) fn new(vm: Arc<VmFd>) -> Self {
        Self { vm, messages: Mutex::new(BTreeMap::new()) }
    }

    /// Makes `gsi`, or the lowest free number, deliver a message; returns the
    /// number.
    fn set(&self, gsi: Option<u32>, address: u64, data: u32) -> Result<u32, Error> {
        let mut messages = lock(&self.messages);
        let gsi = gsi.unwrap_or_else(|| {
            (IOAPIC_PINS..).find(|gsi| !messages.contains_key(gsi)).unwrap_or(u32::MAX)
        });
        let before = messages.insert(gsi, (address, data));
        if let Err(error) = self.program(&messages) {
            match before {
                Some(before) => messages.insert(gsi, before),
                None => messages.remove(&gsi),
            };
            return Err(error);
        }
        Ok(gsi)
    }

    fn program(&self, messages: &BTreeMap<u32, (u64, u32)>) -> Result<(), Error> {
        let entries: Vec<_> = pin_routes().chain(messages.iter().map(msi_route)).collect();
        let table = KvmIrqRouting::from_entries(&entries)
            .map_err(|_| Error::State("out of interrupt routes"))?;
        self.vm.set_gsi_routing(&table).map_err(Error::kvm("setting interrupt routes"))
    }
}

/// The routes that KVM itself sets up for a PC, which a new table replaces.
fn pin_routes() -> impl Iterator<Item = kvm_irq_routing_entry> {
    let entry = |gsi, irqchip, pin| kvm_irq_routing_entry {
        gsi,
        type_: KVM_IRQ_ROUTING_IRQCHIP,
        u: kvm_irq_routing_entry__bindgen_ty_1 {
            irqchip: kvm_irq_routing_irqchip { irqchip, pin },
        },
        ..Default::default()
    };
    let pic = (0..2 * PIC_PINS).map(move |gsi| match gsi {
        0..PIC_PINS => entry(gsi, KVM_IRQCHIP_PIC_MASTER, gsi),
        _ => entry(gsi, KVM_IRQCHIP_PIC_SLAVE, gsi - PIC_PINS),
    });
    let ioapic = (0..IOAPIC_PINS).map(move |gsi| entry(gsi, KVM_IRQCHIP_IOAPIC, gsi));
    pic.chain(ioapic)
}

fn msi_route((&gsi, &(address, data)): (&u32, &(u64, u32))) -> kvm_irq_routing_entry {
    let mut msi = kvm_irq_routing_msi {
        address_lo: address as u32,
        address_hi: (address >> 32) as u32,
        data,
        ..Default::default()
    };
    msi.__bindgen_anon_1.devid = 0;
    kvm_irq_routing_entry {
        gsi,
        type_: KVM_IRQ_ROUTING_MSI,
        u: kvm_irq_routing_entry__bindgen_ty_1 { msi },
        ..Default::default()
    }
}

/// The receiver of one function's MSI-X messages.
///
/// A vector gets an eventfd and a route when it is first unmasked and keeps
/// both. Where that fails (the guest or the host ran out of routes or
/// descriptors) messages go in by `KVM_SIGNAL_MSI`, which needs neither.
pub(crate) struct FunctionMsi {
    routes: Arc<Routes>,
    lines: RwLock<HashMap<u16, Line>>,
}

struct Line {
    event: EventFd,
    gsi: u32,
    message: (u64, u32),
}

impl FunctionMsi {
    pub(crate) fn new(routes: Arc<Routes>) -> Self {
        Self { routes, lines: RwLock::new(HashMap::new()) }
    }

    fn route(&self, vector: u16, address: u64, data: u32) -> Result<(), Error> {
        let mut lines = write(&self.lines);
        if let Some(line) = lines.get_mut(&vector) {
            if line.message != (address, data) {
                self.routes.set(Some(line.gsi), address, data)?;
                line.message = (address, data);
            }
            return Ok(());
        }
        let event = EventFd::new(EFD_NONBLOCK).map_err(Error::host("creating an eventfd"))?;
        let gsi = self.routes.set(None, address, data)?;
        self.routes
            .vm
            .register_irqfd(&event, gsi)
            .map_err(Error::kvm("registering an interrupt eventfd"))?;
        lines.insert(vector, Line { event, gsi, message: (address, data) });
        Ok(())
    }
}

impl MsiSink for FunctionMsi {
    fn notify(&self, vector: u16, address: u64, data: u32) {
        {
            let lines = read(&self.lines);
            if let Some(line) = lines.get(&vector)
                && line.message == (address, data)
                && line.event.write(1).is_ok()
            {
                return;
            }
        }
        let message = kvm_msi {
            address_lo: address as u32,
            address_hi: (address >> 32) as u32,
            data,
            ..Default::default()
        };
        // An address that is no interrupt message goes nowhere, as on hardware.
        let _ = self.routes.vm.signal_msi(message);
    }

    fn update(&self, vector: u16, address: u64, data: u32, masked: bool) {
        if !masked && let Err(error) = self.route(vector, address, data) {
            debug!("MSI-X vector {vector} goes without an eventfd: {error}");
        }
    }
}

impl Drop for FunctionMsi {
    fn drop(&mut self) {
        let lines = self.lines.get_mut().unwrap_or_else(PoisonError::into_inner);
        for line in lines.values() {
            // KVM itself drops the registration with the VM at the latest.
            let _ = self.routes.vm.unregister_irqfd(&line.event, line.gsi);
        }
    }
}
