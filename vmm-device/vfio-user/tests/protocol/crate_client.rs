//! The client of the crate vfio_user, which is Cloud Hypervisor's, with the calls of its
//! user-device code, in that order.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use tofu_abi::irq::vector;
use tofu_abi::regs::{BAR0_SIZE, Register};
use tofu_abi::{CqId, Doorbell, TniId};
use tofu_driver::{DmaError, IrqError, Platform};
use tofu_inproc::{Arena, Buffer};
use tofu_pci::regs;
use tofu_vfio_user::{Backing, Limits, bind_socket};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, MmapRegion, VolatileMemory};

use crate::client::{Event, Host, unsealed};
use crate::exchange;

/// Guest memory below and above the hole that PCs have.
const LOW: (u64, u64) = (0, 4 << 20);
const HIGH: (u64, u64) = (4 << 30, 16 << 20);
const CONFIG: u32 = 7;
const MSIX: u32 = 2;
/// Descriptors in one message, as Cloud Hypervisor sends them.
const BATCH: usize = 16;

/// A user device of a VMM.
struct UserDevice {
    client: Mutex<vfio_user::Client>,
    memory: Arena,
    events: HashMap<u16, Event>,
    areas: Vec<(u64, MmapRegion<()>)>,
    start: Instant,
}

/// Walks the list of capabilities, and returns where MSI-X is.
fn find_msix(client: &mut vfio_user::Client) -> u16 {
    let mut read = |at: u16| {
        let mut bytes = [0; 4];
        client.region_read(CONFIG, at.into(), &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    };
    assert_eq!(read(regs::VENDOR_ID) as u16, tofu_abi::pci::VENDOR_ID);
    let mut at = read(regs::CAPABILITIES) as u16 & 0xff;
    let mut found = Vec::new();
    let mut msix = 0;
    while at != 0 {
        let capability = read(at);
        found.push(capability as u8);
        if capability as u8 == regs::CAP_MSIX {
            msix = at;
        }
        at = capability as u16 >> 8;
    }
    assert!(found.len() == 3 && msix != 0, "{found:x?}");
    msix
}

impl UserDevice {
    fn attach(path: &Path, polled: bool) -> Self {
        let mut client = vfio_user::Client::new(path).unwrap();
        // It returns the opposite of the server's answer, so Cloud Hypervisor does not call it.
        assert!(!client.resettable());
        client.reset().unwrap();
        let msix = find_msix(&mut client);
        let vectors = client.get_irq_info(MSIX).unwrap().count as usize;
        assert_eq!(vectors, usize::from(vector::COUNT));
        assert_eq!(client.get_irq_info(0).unwrap().count, 0, "no INTx");
        // BARs: how large, then where.
        for (bar, size) in [(0u64, BAR0_SIZE), (2, 8192)] {
            let at = u64::from(regs::BAR0) + 4 * bar;
            client.region_write(CONFIG, at, &[0xff; 4]).unwrap();
            let mut bytes = [0; 4];
            client.region_read(CONFIG, at, &mut bytes).unwrap();
            let mask = u32::from_le_bytes(bytes) & !0xf;
            assert_eq!(u64::from(!mask) + 1, size);
            client.region_write(CONFIG, at, &0xc000_0000u32.to_le_bytes()).unwrap();
        }
        // Areas that can be mapped.
        let region = client.region(0).unwrap();
        assert_eq!(region.size, BAR0_SIZE);
        let mut areas = Vec::new();
        if let Some(file) = &region.file_offset {
            for area in &region.sparse_areas {
                let place =
                    FileOffset::from_arc(Arc::clone(file.arc()), file.start() + area.offset);
                let mapped = MmapRegion::from_file(place, area.size as usize).unwrap();
                areas.push((area.offset, mapped));
            }
        }
        assert_eq!(areas.len(), if polled { 72 + 96 } else { 0 });
        assert!(client.region(1).unwrap().file_offset.is_none());
        // Guest memory.
        let mut ranges = Vec::new();
        for (address, size) in [LOW, HIGH] {
            // Neither sealed nor sealable.
            let file: File = unsealed(size, MemfdFlags::empty());
            client.dma_map(0, address, size, file.as_fd().as_raw_fd()).unwrap();
            ranges.push((GuestAddress(address), size as usize, Some(FileOffset::new(file, 0))));
        }
        let high = ranges.pop().unwrap();
        let memory = GuestMemoryMmap::<()>::from_ranges_with_files([high]).unwrap();
        // The guest's driver: memory, bus master, MSI-X.
        client.region_write(CONFIG, regs::COMMAND.into(), &6u16.to_le_bytes()).unwrap();
        let control = u64::from(msix) + u64::from(regs::MSIX_CONTROL);
        client.region_write(CONFIG, control, &regs::MSIX_ENABLE.to_le_bytes()).unwrap();
        let events: Vec<Event> = (0..vectors).map(|_| Event::new()).collect();
        let fds: Vec<i32> = events.iter().map(|event| event.as_fd().as_raw_fd()).collect();
        for (batch, fds) in (0u32..).zip(fds.chunks(BATCH)) {
            let (first, count) = (batch * BATCH as u32, fds.len() as u32);
            client.set_irqs(MSIX, crate::client::EVENTFDS, first, count, fds).unwrap();
        }
        Self {
            client: Mutex::new(client),
            memory: Arena::new(memory).unwrap(),
            events: (0..).zip(events).collect(),
            areas,
            start: Instant::now(),
        }
    }

    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let Register::Cq { tni, cq, .. } = Register::decode(offset)? else {
            return None;
        };
        let page = Doorbell::from(cq).page(tni);
        let (_, mapped) = self.areas.iter().find(|(at, _)| *at == page)?;
        mapped.get_atomic_ref((offset - page) as usize).ok()
    }

    fn detach(&self) {
        let mut client = self.client.lock().unwrap();
        client.set_irqs(MSIX, 0x21, 0, 0, &[]).unwrap();
        for (address, size) in [LOW, HIGH] {
            client.dma_unmap(address, size).unwrap();
        }
        client.shutdown().unwrap();
    }
}

impl Platform for &UserDevice {
    type Dma = Buffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        if let Some(word) = self.word(offset) {
            return word.load(SeqCst);
        }
        let mut bytes = [0; 8];
        self.client.lock().unwrap().region_read(0, offset, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        match self.word(offset) {
            Some(word) => word.store(value, SeqCst),
            None => {
                let mut client = self.client.lock().unwrap();
                client.region_write(0, offset, &value.to_le_bytes()).unwrap();
            }
        }
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        self.memory.alloc(size, align)
    }

    fn irq_enable(&self, _: u16) -> Result<(), IrqError> {
        Ok(())
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        self.events[&vector].wait_for(Duration::from_nanos(timeout_ns)) > 0
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

fn drive(host: &Host, polled: bool) {
    const LEN: usize = 10_000;
    let directory = tempfile::tempdir().unwrap();
    let served: Vec<_> = (0..)
        .zip(&host.servers)
        .map(|(index, server)| {
            let socket = bind_socket(&directory.path().join(format!("{index}"))).unwrap();
            let (server, listener) = (Arc::clone(server), socket.listener().unwrap());
            (socket, std::thread::spawn(move || server.run(listener)))
        })
        .collect();
    for round in 0..2 {
        let devices: Vec<UserDevice> =
            served.iter().map(|(socket, _)| UserDevice::attach(socket.path(), polled)).collect();
        let sent: Vec<u8> = (0..LEN).map(|i| (i * 3 + i / 255 + round) as u8).collect();
        let to = host.servers[1].coords();
        let [one, other] = &devices[..] else { panic!("two devices") };
        drop(exchange::put([one, other], to, (TniId::ALL[5], CqId::KERNEL), &sent));
        devices.iter().for_each(UserDevice::detach);
    }
    for (server, (socket, thread)) in host.servers.iter().zip(served) {
        server.stop();
        thread.join().unwrap().unwrap();
        let path = socket.path().to_owned();
        drop(socket);
        assert!(!path.exists());
    }
}

#[test]
fn cloud_hypervisor_traps_doorbells() {
    drive(&Host::new(Backing::Any, Limits::DEFAULT), false);
}

#[test]
fn cloud_hypervisor_polls_doorbells() {
    drive(&Host::polled_with(Backing::Any), true);
}
