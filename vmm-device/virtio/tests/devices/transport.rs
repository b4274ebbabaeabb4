//! The transport, with an entropy source behind it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tofu_pci::testing::capabilities;
use tofu_pci::{PciFunction, regs as pci};
use tofu_virtio::regs::{self, cap, common, feature, status};
use tofu_virtio::{Block, BlockConfig, Doorbells, Rng};
use vmm_sys_util::eventfd::EventFd;

use crate::driver::{BUFFERS, Guest, from_device, wait};

#[test]
fn driver_finds_the_specified_layout() {
    let guest = Guest::new(Rng::new());
    let mut ids = [0; 4];
    guest.function.config_read(0, &mut ids);
    assert_eq!(ids, [0xf4, 0x1a, 0x44, 0x10]);
    let kinds: Vec<_> = guest.ranges.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [cap::COMMON, cap::ISR, cap::NOTIFY, cap::PCI_CFG]);
    assert_eq!(guest.range(cap::COMMON).len, 56);
    assert_eq!(guest.offered(), feature::VERSION_1 | feature::EVENT_IDX | feature::INDIRECT_DESC);

    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(3 * 512 + 100).unwrap();
    let config = BlockConfig { path: image.path().into(), read_only: true, id: String::new() };
    let guest = Guest::new(Block::open(&config).unwrap());
    assert_eq!(guest.read(cap::DEVICE, 0), 3u64.to_le_bytes());
    assert_eq!(guest.read::<2>(cap::DEVICE, 23), [0, 0xff], "the configuration ends at 24");
}

#[test]
fn features_must_be_offered_and_modern() {
    let guest = Guest::new(Rng::new());
    assert!(!guest.negotiate(0), "not without VERSION_1");
    assert!(!guest.negotiate(feature::VERSION_1 | 1 << 34), "the packed ring is not offered");
    assert!(guest.negotiate(feature::VERSION_1));
    // Agreed is agreed.
    guest.common(common::DRIVER_FEATURE, &u32::MAX.to_le_bytes());
    assert_eq!(guest.read(cap::COMMON, common::DRIVER_FEATURE), 1u32.to_le_bytes());
    guest.reset();
    guest.set_status(status::ACKNOWLEDGE | status::DRIVER | status::DRIVER_OK);
    assert_eq!(guest.status(), status::ACKNOWLEDGE | status::DRIVER, "not without FEATURES_OK");
    // Bits stay until reset, and the driver cannot set the device's own bit.
    guest.set_status(status::FAILED | status::NEEDS_RESET);
    let expected = status::ACKNOWLEDGE | status::DRIVER | status::FAILED;
    assert_eq!(guest.status(), expected);
}

#[test]
fn queue_registers_keep_what_can_be() {
    let guest = Guest::new(Rng::new());
    let read16 = |at| u16::from_le_bytes(guest.read(cap::COMMON, at));
    assert_eq!(read16(common::NUM_QUEUES), 1);
    assert_eq!(read16(common::QUEUE_SIZE), 64);
    for size in [0u16, 3, 128, 0x8000] {
        guest.common(common::QUEUE_SIZE, &size.to_le_bytes());
        assert_eq!(read16(common::QUEUE_SIZE), 64);
    }
    guest.common(common::QUEUE_SIZE, &16u16.to_le_bytes());
    assert_eq!(read16(common::QUEUE_SIZE), 16);
    // Both halves in one access, as some firmware does.
    guest.common(common::QUEUE_DESC, &0x1234_5678_9abc_def0u64.to_le_bytes());
    assert_eq!(guest.read(cap::COMMON, common::QUEUE_DESC + 4), 0x1234_5678u32.to_le_bytes());
    for (vector, kept) in [(0u16, 0), (1, 1), (2, regs::NO_VECTOR), (0xffff, regs::NO_VECTOR)] {
        guest.common(common::QUEUE_MSIX_VECTOR, &vector.to_le_bytes());
        guest.common(common::CONFIG_MSIX_VECTOR, &vector.to_le_bytes());
        assert_eq!(read16(common::QUEUE_MSIX_VECTOR), kept);
        assert_eq!(read16(common::CONFIG_MSIX_VECTOR), kept);
    }
    guest.common(common::QUEUE_ENABLE, &1u16.to_le_bytes());
    guest.common(common::QUEUE_SIZE, &8u16.to_le_bytes());
    assert_eq!(read16(common::QUEUE_SIZE), 16, "a queue in use stays as it is");
    guest.common(common::QUEUE_SELECT, &1u16.to_le_bytes());
    assert_eq!((read16(common::QUEUE_SIZE), read16(common::QUEUE_ENABLE)), (0, 0), "no such queue");
    guest.reset();
    assert_eq!((read16(common::QUEUE_SIZE), read16(common::QUEUE_ENABLE)), (64, 0));
}

#[test]
fn window_reaches_the_registers() {
    let guest = Guest::new(Rng::new());
    let point = |bar: u8, offset: u64, len: u32| {
        guest.function.config_write(guest.window + 4, &[bar]);
        guest.function.config_write(guest.window + 8, &(offset as u32).to_le_bytes());
        guest.function.config_write(guest.window + 12, &len.to_le_bytes());
    };
    let data = guest.window + 16;
    let read = |len: usize| {
        let mut bytes = vec![0; len];
        guest.function.config_read(data, &mut bytes);
        bytes
    };
    let place = guest.range(cap::COMMON);
    point(place.bar, place.offset + common::DEVICE_STATUS, 1);
    guest.function.config_write(data, &[status::ACKNOWLEDGE]);
    assert_eq!(guest.status(), status::ACKNOWLEDGE);
    assert_eq!(read(1), [status::ACKNOWLEDGE]);
    point(place.bar, place.offset + common::QUEUE_SIZE, 2);
    assert_eq!(read(2), 64u16.to_le_bytes());
    // Invalid lengths and places: writes have no effect, reads return zeroes.
    for (bar, offset, len) in [(place.bar, 0, 3), (place.bar, 0, 8), (place.bar, 2, 4)] {
        point(bar, offset, len);
        guest.function.config_write(data, &[0xff; 4]);
        assert_eq!(read(4), [0; 4]);
    }
    point(9, 0, 4);
    guest.function.config_write(data, &[0xff; 4]);
    assert_eq!(read(4), [0xff; 4]);

    let mut queues = guest.start(0, 1, 8);
    queues[0].add(&[from_device(BUFFERS, 8)]);
    let notify = guest.range(cap::NOTIFY);
    point(notify.bar, notify.offset, 2);
    guest.function.config_write(data, &[0, 0]);
    assert_eq!(queues[0].wait(), (0, 8));
}

#[derive(Default)]
struct Recorder(Mutex<Vec<(u8, u64, EventFd)>>);

impl Doorbells for Recorder {
    fn attach(&self, bar: u8, offset: u64, event: EventFd) -> Result<(), String> {
        self.0.lock().unwrap().push((bar, offset, event));
        Ok(())
    }
}

#[test]
fn attached_doorbell_acts_like_a_write() {
    let guest = Guest::new(Rng::new());
    let recorder = Recorder::default();
    guest.function.attach_doorbell(&recorder).unwrap();
    let attached = recorder.0.lock().unwrap();
    let notify = guest.range(cap::NOTIFY);
    let [(bar, offset, event)] = &attached[..] else { panic!("one doorbell") };
    assert_eq!((*bar, *offset), (notify.bar, notify.offset));
    let mut queues = guest.start(0, 1, 8);
    queues[0].add(&[from_device(BUFFERS, 8)]);
    event.write(1).unwrap();
    assert_eq!(queues[0].wait(), (0, 8));
    queues[0].call(&[from_device(BUFFERS, 8)]);
}

#[test]
fn without_msix_the_interrupt_status_tells() {
    let guest = Guest::new(Rng::new());
    let (msix, _) =
        capabilities(&*guest.function).into_iter().find(|(_, id)| *id == pci::CAP_MSIX).unwrap();
    guest.function.config_write(msix + pci::MSIX_CONTROL, &[0, 0]);
    let mut queues = guest.start(0, 1, 8);
    queues[0].call(&[from_device(BUFFERS, 8)]);
    wait("the bit", || guest.read(cap::ISR, 0) == [regs::ISR_QUEUE]);
    assert_eq!(guest.read(cap::ISR, 0), [0], "reading clears it");
    assert!(guest.sink.notified().is_empty());
}

#[test]
fn driver_can_refuse_interrupts() {
    let guest = Guest::new(Rng::new());
    let mut queues = guest.start(0, 1, 8);
    let flags = vm_memory::GuestAddress(queues[0].avail);
    vm_memory::Bytes::write_obj(&guest.memory, 1u16, flags).unwrap();
    queues[0].call(&[from_device(BUFFERS, 8)]);
    vm_memory::Bytes::write_obj(&guest.memory, 0u16, flags).unwrap();
    queues[0].call(&[from_device(BUFFERS, 8)]);
    wait("one interrupt", || guest.sink.notified() == [1]);
}

#[test]
fn disabled_bus_mastering_spares_memory() {
    let guest = Guest::new(Rng::new());
    let mut queues = guest.start(0, 1, 8);
    guest.function.config_write(pci::COMMAND, &pci::COMMAND_MEMORY.to_le_bytes());
    queues[0].add(&[from_device(BUFFERS, 8)]);
    queues[0].kick();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(queues[0].poll(), None);
    let on = pci::COMMAND_MEMORY | pci::COMMAND_BUS_MASTER;
    guest.function.config_write(pci::COMMAND, &on.to_le_bytes());
    assert_eq!(queues[0].wait(), (0, 8), "what was rung meanwhile is not lost");
}

#[test]
fn every_kind_of_reset_ends_the_queues() {
    let guest = Guest::new(Rng::new());
    let resets: [(&str, &dyn Fn()); 3] = [
        ("status", &|| guest.reset()),
        ("function level", &|| {
            let (at, _) = capabilities(&*guest.function)
                .into_iter()
                .find(|(_, id)| *id == pci::CAP_PCI_EXPRESS)
                .unwrap();
            guest.function.config_write(at + 8, &0x8000u16.to_le_bytes());
        }),
        ("machine", &|| guest.function.reset()),
    ];
    for (kind, reset) in resets {
        let mut queues = guest.start(0, 1, 8);
        queues[0].call(&[from_device(BUFFERS, 8)]);
        reset();
        guest.enable();
        assert_eq!(guest.status(), 0, "{kind}");
        queues[0].add(&[from_device(BUFFERS, 8)]);
        queues[0].kick();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(queues[0].poll(), None, "{kind}");
    }
    let mut queues = guest.start(0, 1, 8);
    queues[0].call(&[from_device(BUFFERS, 8)]);
}

/// Resets while the device is busy: it does not use rings after their removal, and works
/// afterwards.
#[test]
fn resets_under_load() {
    let guest = Guest::new(Rng::new());
    for round in 0..100 {
        let mut queues = guest.start(0, 1, 64);
        for _ in 0..64 {
            queues[0].add(&[from_device(BUFFERS, 4096)]);
        }
        queues[0].kick();
        if round % 3 == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
        guest.reset();
        let index = || -> u16 {
            let at = vm_memory::GuestAddress(queues[0].used + 2);
            vm_memory::Bytes::read_obj(&guest.memory, at).unwrap()
        };
        let before = index();
        std::thread::sleep(Duration::from_micros(200));
        assert_eq!(index(), before, "the used ring changed after a reset");
    }
}

#[test]
fn thread_follows_the_functions_life() {
    let seen = Arc::new(Mutex::new(None));
    let start: tofu_virtio::ThreadStart = {
        let seen = Arc::clone(&seen);
        Arc::new(move || {
            *seen.lock().unwrap() = std::thread::current().name().map(str::to_owned);
        })
    };
    let name = "a name longer than a thread's".to_owned();
    let options = tofu_virtio::Options { name, thread_start: Some(start), ..Default::default() };
    let function = tofu_virtio::Virtio::new(Rng::new(), options, crate::driver::memory()).unwrap();
    wait("the thread", || seen.lock().unwrap().is_some());
    assert_eq!(seen.lock().unwrap().as_deref(), Some("a name longer t"));
    drop(function);
    assert_eq!(Arc::strong_count(&seen), 1, "the thread has released everything");
}
