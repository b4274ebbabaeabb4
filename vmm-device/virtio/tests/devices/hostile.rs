//! Guests that break the rules for drivers.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tofu_pci::{PciFunction, regs as pci};
use tofu_virtio::regs::{self, cap, common, feature, status};
use tofu_virtio::{Block, BlockConfig, Console, PortConfig, Rng};
use vm_memory::{Bytes, GuestAddress};

use crate::driver::{BUFFERS, Guest, HIGH_START, LOW, QUEUES, Queue, from_device, to_device, wait};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// The device requests a reset when it should, and works after it.
fn refuses(what: &str, trick: impl FnOnce(&Guest, &mut Queue)) {
    let guest = Guest::new(Rng::new());
    let mut queues = guest.start(0, 1, 8);
    trick(&guest, &mut queues[0]);
    queues[0].kick();
    println!("{what}");
    guest.needs_reset();
    // It stays like this until then.
    queues[0].kick();
    assert_ne!(guest.status() & status::NEEDS_RESET, 0);
    let mut queues = guest.start(0, 1, 8);
    assert_eq!(queues[0].call(&[from_device(BUFFERS, 8)]), 8);
    assert_eq!(guest.status() & status::NEEDS_RESET, 0);
}

#[test]
fn chains_that_cannot_be() {
    refuses("a loop", |_, queue| {
        queue.descriptor(queue.desc, 0, BUFFERS, 8, WRITE | NEXT, 1);
        queue.descriptor(queue.desc, 1, BUFFERS, 8, WRITE | NEXT, 0);
        queue.publish(0);
    });
    refuses("a head that is not there", |_, queue| queue.publish(8));
    refuses("a next that is not there", |_, queue| {
        queue.descriptor(queue.desc, 0, BUFFERS, 8, WRITE | NEXT, 0xffff);
        queue.publish(0);
    });
    refuses("readable behind writable", |_, queue| {
        queue.add(&[from_device(BUFFERS, 8), to_device(BUFFERS, 8)]);
    });
    refuses("nothing to write to", |_, queue| {
        queue.add(&[to_device(BUFFERS, 8)]);
    });
    refuses("a buffer outside of memory", |_, queue| {
        queue.add(&[from_device(LOW, 8)]);
    });
    refuses("a buffer at the end of all addresses", |_, queue| {
        queue.add(&[from_device(u64::MAX - 3, 8)]);
    });
    refuses("4 GiB in all", |_, queue| {
        queue.add(&[from_device(LOW, u32::MAX), from_device(LOW, 2)]);
    });
}

#[test]
fn tables_that_cannot_be() {
    let table = BUFFERS;
    for (what, at, len) in [
        ("a table outside of memory", LOW, 16),
        ("a table that wraps", u64::MAX - 15, 32),
        ("a table of part of a descriptor", table, 17),
        ("an empty table", table, 0),
    ] {
        refuses(what, |_, queue| {
            queue.descriptor(queue.desc, 0, at, len, INDIRECT, 0);
            queue.publish(0);
        });
    }
    refuses("a table in a table", |_, queue| {
        queue.descriptor(table, 0, table, 16, INDIRECT, 0);
        queue.descriptor(queue.desc, 0, table, 16, INDIRECT, 0);
        queue.publish(0);
    });
    refuses("a table longer than the queue", |_, queue| {
        queue.add_indirect(table, &[from_device(BUFFERS + 0x8000, 8); 9]);
    });
    refuses("a loop in a table of 65535", |_, queue| {
        for i in 0..=65534u16 {
            queue.descriptor(table, i, BUFFERS, 1, WRITE | NEXT, i.wrapping_add(1));
        }
        queue.descriptor(queue.desc, 0, table, 16 * 65535, INDIRECT, 0);
        queue.publish(0);
    });
}

#[test]
fn available_index_runs_ahead() {
    refuses("more than the queue holds", |guest, queue| {
        guest.memory.write_obj(9u16, GuestAddress(queue.avail + 2)).unwrap();
    });
    refuses("going back", |guest, queue| {
        queue.call(&[from_device(BUFFERS, 8)]);
        guest.memory.write_obj(0u16, GuestAddress(queue.avail + 2)).unwrap();
    });
}

#[test]
fn rings_that_cannot_be() {
    let good = [QUEUES, QUEUES + 0x4000, QUEUES + 0x8000];
    let bad = [0, 1, 8, LOW - 64, LOW, HIGH_START - 16, 1 << 63, u64::MAX - 64, u64::MAX];
    let guest = Guest::new(Rng::new());
    for part in 0..3 {
        for address in bad {
            // An address of 8 is valid for rings, and 0 for all but the available ring.
            if (address == 8 && part > 0) || (address == 0 && part != 1) {
                continue;
            }
            assert!(guest.negotiate(feature::VERSION_1));
            let mut places = good;
            places[part] = address;
            guest.describe(0, 64, places);
            guest.sink.take();
            guest.go();
            println!("part {part} at {address:#x}");
            guest.needs_reset();
            guest.write(cap::NOTIFY, 0, &[0, 0]);
        }
    }
    let mut queues = guest.start(0, 1, 8);
    assert_eq!(queues[0].call(&[from_device(BUFFERS, 8)]), 8);
}

/// Rings that overlap each other and the buffers: the device does something, and survives.
#[test]
fn rings_in_one_place() {
    let guest = Guest::new(Rng::new());
    assert!(guest.negotiate(feature::VERSION_1 | feature::EVENT_IDX));
    guest.memory.write_slice(&[1; 0x1000], GuestAddress(QUEUES)).unwrap();
    guest.describe(0, 8, [QUEUES; 3]);
    guest.go();
    for _ in 0..100 {
        guest.write(cap::NOTIFY, 0, &[0, 0]);
    }
    let mut queues = guest.start(0, 1, 8);
    assert_eq!(queues[0].call(&[from_device(BUFFERS, 8)]), 8);
}

#[test]
fn requests_without_header_or_status() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(4096).unwrap();
    let config = BlockConfig { path: image.path().into(), read_only: false, id: String::new() };
    let guest = Guest::new(Block::open(&config).unwrap());
    for buffers in [
        vec![to_device(BUFFERS, 15), from_device(BUFFERS, 1)],
        vec![to_device(BUFFERS, 16)],
        vec![from_device(BUFFERS, 513)],
        vec![to_device(LOW, 16), from_device(BUFFERS, 1)],
        vec![to_device(BUFFERS, 16), from_device(LOW, 1)],
        vec![to_device(BUFFERS, 16), from_device(BUFFERS, 0)],
    ] {
        let mut queues = guest.start(0, 1, 8);
        guest.sink.take();
        queues[0].add(&buffers);
        queues[0].kick();
        guest.needs_reset();
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Bytes into one of the rings or the buffers.
    Scribble {
        place: u64,
        data: Vec<u8>,
    },
    /// An almost valid descriptor.
    Descriptor {
        index: u16,
        at: u64,
        len: u32,
        flags: u16,
        next: u16,
    },
    Publish(u16),
    Bar {
        bar: u8,
        offset: u64,
        data: u64,
        width: usize,
    },
    Config {
        offset: u16,
        data: u64,
        width: usize,
    },
    Kick,
    Start,
}

fn step() -> impl Strategy<Value = Step> {
    let address = prop_oneof![
        Just(BUFFERS),
        Just(QUEUES),
        Just(LOW - 8),
        Just(HIGH_START),
        Just(u64::MAX - 8),
        0..LOW,
        any::<u64>()
    ];
    let len = prop_oneof![Just(0), Just(1), Just(16), Just(512), Just(u32::MAX), 0u32..5000];
    // Descriptor table, available and used ring, buffers.
    let place = prop_oneof![0u64..0x200, 0x4000u64..0x4040, 0x8000u64..0x8100, 0x4000u64..0x4004];
    let bytes = proptest::collection::vec(any::<u8>(), 1..64);
    let fields =
        prop_oneof![0u64..64, regs::NOTIFY_AT..regs::NOTIFY_AT + 8, 0u64..0x4010, any::<u64>()];
    prop_oneof![
        1 => (0u64..4, place, bytes)
            .prop_map(|(queue, at, data)| Step::Scribble {
                place: QUEUES + queue * 0x1_0000 + at,
                data,
            }),
        8 => (0u16..9, address, len, 0u16..8, 0u16..9)
            .prop_map(|(index, at, len, flags, next)| {
                Step::Descriptor { index, at, len, flags, next }
            }),
        8 => (0u16..9).prop_map(Step::Publish),
        1 => (0u8..3, fields, any::<u64>(), 0usize..4)
            .prop_map(|(bar, offset, data, width)| Step::Bar { bar, offset, data, width }),
        1 => (0u16..0x110, any::<u64>(), 0usize..4)
            .prop_map(|(offset, data, width)| Step::Config { offset, data, width }),
        4 => Just(Step::Kick),
        2 => Just(Step::Start),
    ]
}

/// Does all of this to a device, and then uses it correctly.
fn survive(guest: &Guest, queues: u16, steps: Vec<Step>, works: impl Fn(&Guest)) {
    let mut rings = guest.start(feature::EVENT_IDX, queues, 8);
    for step in steps {
        match step {
            Step::Scribble { place, data } => {
                guest.memory.write_slice(&data, GuestAddress(place)).unwrap();
            }
            Step::Descriptor { index, at, len, flags, next } => {
                for ring in &rings {
                    ring.descriptor(ring.desc, index, at, len, flags, next);
                }
            }
            Step::Publish(head) => rings.iter().for_each(|ring| ring.publish(head)),
            Step::Bar { bar, offset, data, width } => {
                guest.function.bar_write(bar, offset, &data.to_le_bytes()[..1 << width]);
                let mut back = [0; 8];
                guest.function.bar_read(bar, offset, &mut back[..1 << width]);
            }
            Step::Config { offset, data, width } => {
                guest.function.config_write(offset, &data.to_le_bytes()[..1 << width]);
                let mut back = [0; 8];
                guest.function.config_read(offset, &mut back[..1 << width]);
            }
            Step::Kick => guest.write(cap::NOTIFY, 0, &[0, 0]),
            Step::Start => {
                guest.function.config_write(pci::COMMAND, &[6, 0]);
                guest.reset();
                rings = guest.start(0, queues, 8);
            }
        }
    }
    guest.function.reset();
    guest.enable();
    works(guest);
}

fn cases() -> Config {
    Config { cases: 500, ..Config::default() }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step(), 0..80)
}

#[test]
fn anything_at_all_to_an_entropy_source() {
    let guest = Guest::new(Rng::new());
    let works = |guest: &Guest| {
        let mut queues = guest.start(0, 1, 8);
        assert_eq!(queues[0].call(&[from_device(BUFFERS, 8)]), 8);
    };
    TestRunner::new(cases())
        .run(&steps(), |steps| {
            survive(&guest, 1, steps, works);
            Ok(())
        })
        .unwrap();
}

#[test]
fn anything_at_all_to_a_disk() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(64 * 512).unwrap();
    let config = BlockConfig { path: image.path().into(), read_only: false, id: String::new() };
    let guest = Guest::new(Block::open(&config).unwrap());
    let works = |guest: &Guest| {
        let mut queues = guest.start(0, 1, 8);
        guest.memory.write_slice(&[0; 16], GuestAddress(BUFFERS)).unwrap();
        let data = [to_device(BUFFERS, 16), from_device(BUFFERS + 512, 513)];
        assert_eq!(queues[0].call(&data), 513);
    };
    TestRunner::new(cases())
        .run(&steps(), |steps| {
            survive(&guest, 1, steps, works);
            prop_assert_eq!(image.as_file().metadata().unwrap().len(), 64 * 512);
            Ok(())
        })
        .unwrap();
}

#[test]
fn anything_at_all_to_a_console() {
    let ports = (0..2).map(|_| PortConfig::default()).collect();
    let (console, handles) = Console::new(ports).unwrap();
    let guest = Guest::new(console);
    let works = |guest: &Guest| {
        let mut queues = guest.start(0, 2, 8);
        assert_eq!(queues[1].call(&[to_device(BUFFERS, 8)]), 0);
    };
    TestRunner::new(cases())
        .run(&steps(), |steps| {
            // A peer that does not read.
            let (ours, device) = std::os::unix::net::UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let _ = std::io::Write::write(&mut (&ours), &[7; 4096]);
            handles[0].connect(device).unwrap();
            survive(&guest, 4, steps, |_| ());
            handles[0].disconnect();
            works(&guest);
            Ok(())
        })
        .unwrap();
}

/// A queue that is not enabled, and registers of queues that do not exist.
#[test]
fn queues_that_are_not_in_use() {
    let guest = Guest::new(Rng::new());
    assert!(guest.negotiate(feature::VERSION_1));
    guest.go();
    guest.write(cap::NOTIFY, 0, &[0, 0]);
    guest.common(common::QUEUE_SELECT, &7u16.to_le_bytes());
    for at in common::QUEUE_SIZE..common::SIZE {
        guest.common(at, &[0xff; 4]);
        guest.common(at, &[0xff; 2]);
    }
    wait("it is still there", || guest.status() & status::DRIVER_OK != 0);
    let mut queues = guest.start(0, 1, 8);
    assert_eq!(queues[0].call(&[from_device(BUFFERS, 8)]), 8);
}
