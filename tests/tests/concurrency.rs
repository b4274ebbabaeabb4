//! A machine with engine threads, driven by several threads at once.
//!
//! Some of these are litmus tests of the memory that driver and device share: threads that share
//! nothing else, none of which may see a stale word. They matter on processors that do not keep the
//! order of stores and of loads, such as Arm's.
//!
//! - Commands (TOQ), `commands_are_read_as_posted`: `Rings::write_order` stores three words,
//!   then the one with the flip bit (release). `DmaMemory::load_entry` loads that word first
//!   (each acquires).
//! - Completions (TCQ), the same test: one word, by `DmaMemory::store` (release) and
//!   `Rings::load_tcq` (acquire).
//! - Arrivals (MRQ), `notice_never_precedes_its_data`: `DmaMemory::store_entry` stores the word
//!   with the flip bit last (each releases). It is loaded first (acquire), then the others.
//! - Tables (STags, pages), `promised_tables_and_data_are_there`: the word with the valid bit is
//!   stored last (release); `DmaMemory::load` acquires.
//! - Data of a Put, the same test and `put_shows_its_last_word_last`: it is copied before its
//!   completion is stored, the last bytes behind a fence, and read after the completion.
//! - Asking for an interrupt (`Arm::ask`) and marks of TNW, `every_wait_is_woken`: a store, a
//!   fence (sequentially consistent), a load, and the same the other way round.
//! - Registers that are mapped, doorbells in all of these: a release fence before each write, an
//!   acquire fence after each read.
//! - Notices of gates, the sums of `tofu-collective`'s groups: the values are stored, then the
//!   status by `DmaMemory::store` (release). The status is loaded first (acquire), then the
//!   values.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tofu_abi::desc::ArmwOp;
use tofu_abi::queue::MrqId;
use tofu_abi::table::PageSize;
use tofu_abi::{CqId, Rcode, TniId};
use tofu_driver::{Access, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, Platform, Target};
use tofu_fabric::Shape;
use tofu_inproc::{Buffer, InProcess};
use tofu_machine::{Machine, MachineConfig};
use tofu_tests::{config, description, open, pattern, tni};

/// Longer than anything here takes, in nanoseconds.
const LONG: u64 = 20_000_000_000;

/// Nodes of a machine with running engines.
fn machine(shape: &str, engines: usize) -> Vec<Device<InProcess>> {
    let shape: Shape = shape.parse().unwrap();
    let config = MachineConfig { engines, ..tofu_tests::machine(shape) };
    let machine = Arc::new(Machine::new(config).unwrap());
    let devices = shape
        .iter()
        .map(|coords| {
            let platform = InProcess::attach(&machine, coords, 4 << 20).unwrap();
            let device = Device::probe(platform).unwrap();
            assert_eq!(device.coords(), coords);
            device.enable_tnis().unwrap();
            device
        })
        .collect();
    machine.start().unwrap();
    devices
}

fn at(offset: u64) -> tofu_abi::StagOffset {
    tofu_abi::StagOffset::new(CqId::ALL[0], 0, offset)
}

/// Waits for something to reap. A lost wake-up would show as a wait that ends by its time limit.
fn wait(cq: &mut Cq<InProcess>) {
    let start = cq.device().platform().now_ns();
    cq.wait(LONG).unwrap();
    assert!(cq.device().platform().now_ns() - start < LONG, "woken by the time limit only");
}

/// Takes completions and notices until `n` commands are complete, all of them successfully.
fn reap(cq: &mut Cq<InProcess>, n: usize) {
    let mut done = 0;
    while done < n {
        while let Some(completion) = cq.poll_tcq() {
            assert_eq!(completion.rcode, Rcode::SUCCESS);
            done += 1;
        }
        while cq.poll_mrq().is_some() {}
        if done < n {
            wait(cq);
        }
    }
}

#[test]
fn concurrent_atomics_add_up() {
    if !description().atomics {
        return;
    }
    const ROUNDS: usize = 40;
    const BATCH: usize = 50;
    let devices = machine("1x1x1x2x3x1", 3);
    // Each interface of node 0 has a queue, and all of them lead to the same memory.
    let shared = Arc::new(devices[0].platform().alloc_dma(4096, 4096).unwrap());
    let _targets: Vec<_> = description()
        .tni_ids()
        .map(|tni| {
            let mut cq = Cq::open(&devices[0], &CqConfig::new(tni, CqId::ALL[0])).unwrap();
            let range = [MemoryRange::of(&*shared)];
            cq.register(&range, PageSize::Size4K, Access::ReadWrite, Some(0)).unwrap();
            cq
        })
        .collect();
    let node0 = devices[0].coords();
    std::thread::scope(|s| {
        for (rank, device) in devices.iter().enumerate() {
            s.spawn(move || {
                let config = config(rank as u8, 1);
                let (mut cq, _buffer) = open(device, &config, 4096);
                for _ in 0..ROUNDS {
                    for i in 0..BATCH {
                        let to = Target::new(node0, tni((i + rank) as u8));
                        let add8 = Order::armw8(to, ArmwOp::Add, at(0), 1 + rank as u64);
                        let add4 = Order::armw4(to, ArmwOp::Add, at(12), 1);
                        let or = Order::armw8(to, ArmwOp::Or, at(16), 1 << (rank * 8 + i % 8));
                        for order in [add8, add4, or] {
                            cq.post(&order, 0).unwrap();
                        }
                    }
                    cq.doorbell();
                    reap(&mut cq, 3 * BATCH);
                }
            });
        }
    });
    let n = (ROUNDS * BATCH) as u64;
    assert_eq!(shared.load_u64(0, Ordering::Acquire), n * (1 + 2 + 3 + 4 + 5 + 6));
    assert_eq!(shared.load_u32(12, Ordering::Acquire), 6 * n as u32);
    assert_eq!(shared.load_u64(16, Ordering::Acquire), (1 << 48) - 1);
}

#[test]
fn compare_and_swap_makes_a_lock() {
    if !description().atomics {
        return;
    }
    const TURNS: u64 = 60;
    let devices = machine("1x1x1x2x1x2", 2);
    let (_target, memory) = open(&devices[0], &CqConfig::new(TniId::ALL[0], CqId::ALL[0]), 4096);
    let to = Target::new(devices[0].coords(), TniId::ALL[0]);
    std::thread::scope(|s| {
        for (rank, device) in devices.iter().enumerate() {
            s.spawn(move || {
                let (mut cq, local) =
                    open(device, &CqConfig::new(TniId::ALL[1], CqId::ALL[0]), 4096);
                let mut run = |order: &Order| {
                    cq.post_and_ring(order, 0).unwrap();
                    let notice = cq.wait_mrq(LONG).unwrap();
                    assert_eq!(notice.word0().rcode(), Rcode::SUCCESS);
                    assert!(cq.wait_tcq(LONG).unwrap().is_success());
                    notice.old_value()
                };
                let me = rank as u64 + 1;
                for _ in 0..TURNS {
                    while run(&Order::cswap8(to, at(0), 0, me)) != 0 {
                        std::thread::yield_now();
                    }
                    // Read, add, write back: without the lock, additions would be lost.
                    run(&Order::get(to, at(64), at(0), 8));
                    let value = local.load_u64(0, Ordering::Acquire);
                    local.store_u64(8, value + 1, Ordering::Release);
                    run(&Order::put(to, at(64), at(8), 8));
                    assert_eq!(run(&Order::cswap8(to, at(0), me, 0)), me);
                }
            });
        }
    });
    assert_eq!(memory.load_u64(64, Ordering::Acquire), 4 * TURNS);
}

/// Programs wait for the last word of a Put, and expect all of it there then.
#[test]
fn put_shows_its_last_word_last() {
    const COUNT: u64 = 600;
    const MOST: usize = 32 << 10;
    let devices = machine("1x1x1x2x1x1", 1);
    let cq = CqConfig::new(TniId::ALL[0], CqId::ALL[0]);
    let (mut to_a, memory_a) = open(&devices[0], &cq, 2 * MOST);
    let (mut to_b, memory_b) = open(&devices[1], &cq, 2 * MOST);
    let [a, b] = [0, 1].map(|i| Target::new(devices[i].coords(), TniId::ALL[0]));
    // Every word of the message is its sequence number, so the last word implies the others.
    let rounds = || {
        let lens = [16, 24, 40, 72, 136, 264, 1000, 4104, 20_000, MOST];
        lens.into_iter().flat_map(|len| (0..COUNT).map(move |_| len / 8)).zip(1..)
    };
    // If either side fails, so does the other.
    let deadline = Instant::now() + Duration::from_secs(60);
    let wait = |memory: &Buffer, word: usize, n| {
        while memory.load_u64(word * 8, Ordering::Acquire) != n {
            assert!(Instant::now() < deadline, "word {word} is not {n}");
            std::thread::yield_now();
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| {
            for (words, n) in rounds() {
                wait(&memory_b, words - 1, n);
                // As the program does that uses the memory for something else now.
                for i in 0..words {
                    assert_eq!(memory_b.load_u64(i * 8, Ordering::Relaxed), n, "{i} of {words}");
                    memory_b.store_u64(i * 8, 0, Ordering::Relaxed);
                }
                for i in 0..words {
                    assert_eq!(memory_b.load_u64(i * 8, Ordering::Relaxed), 0, "{i} of {words}");
                }
                let order = Order::put_piggyback(a, at(0), &n.to_le_bytes()).unwrap();
                to_b.post_and_ring(&order, n).unwrap();
                reap(&mut to_b, 1);
            }
        });
        for (words, n) in rounds() {
            for i in 0..words {
                memory_a.store_u64(MOST + i * 8, n, Ordering::Relaxed);
            }
            let order = Order::put(b, at(0), at(MOST as u64), words as u32 * 8);
            let order = if n % 2 == 0 { order.strong_order() } else { order };
            to_a.post_and_ring(&order, n).unwrap();
            reap(&mut to_a, 1);
            wait(&memory_a, 0, n);
        }
    });
}

#[test]
fn notice_never_precedes_its_data() {
    const COUNT: usize = 400;
    let devices = machine("1x1x1x2x1x1", 2);
    let (mut source, memory) =
        open(&devices[0], &CqConfig::new(TniId::ALL[0], CqId::ALL[0]), 1 << 20);
    let (mut sink, target) =
        open(&devices[1], &CqConfig::new(TniId::ALL[0], CqId::ALL[0]), 1 << 20);
    let to = Target::new(devices[1].coords(), TniId::ALL[0]);
    let data = pattern(3, 1 << 20);
    memory.write(0, &data);
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 0..COUNT {
                let (offset, len) = (n * 97, 1 + n * 131);
                let order = Order::put(to, at(offset as u64), at((n * 53) as u64), len as u32);
                source.post_and_ring(&order.remote_notice().edata(n as u16), 0).unwrap();
                // One at a time, because the places overlap: waits until the other side has
                // checked.
                reap(&mut source, 1);
                while target.load_u64((1 << 20) - 8, Ordering::Acquire) != n as u64 + 1 {
                    std::thread::yield_now();
                }
            }
        });
        let mut found = vec![0; 1 << 16];
        for n in 0..COUNT {
            let notice = sink.wait_mrq(LONG).unwrap();
            assert_eq!(notice.word1().edata(), n as u16);
            let (offset, len, from) = (n * 97, 1 + n * 131, n * 53);
            target.read(offset, &mut found[..len]);
            assert!(found[..len] == data[from..from + len], "message {n}");
            target.store_u64((1 << 20) - 8, n as u64 + 1, Ordering::Release);
        }
    });
}

/// Commands are written while the device reads those before them, each of two descriptors; what it
/// has read of one it must not have read too early.
#[test]
fn commands_are_read_as_posted() {
    const COUNT: usize = 6000;
    const SLOTS: usize = 1500;
    let devices = machine("1x1x1x2x1x1", 2);
    let (mut source, _memory) =
        open(&devices[0], &CqConfig::new(TniId::ALL[0], CqId::ALL[0]), 4096);
    let (_sink, target) = open(&devices[1], &CqConfig::new(TniId::ALL[0], CqId::ALL[0]), 1 << 16);
    let to = Target::new(devices[1].coords(), TniId::ALL[0]);
    let (mut posted, mut done) = (0, 0);
    while done < COUNT {
        if posted < COUNT {
            let value = posted as u64 + 1;
            let bytes: Vec<u8> = [value; 4].iter().flat_map(|word| word.to_le_bytes()).collect();
            let slot = at((posted % SLOTS * 32) as u64);
            let order = Order::put_piggyback(to, slot, &bytes).unwrap();
            // The queue is full where the device is behind.
            posted += usize::from(source.post_and_ring(&order, value).is_ok());
        }
        while source.poll_tcq().is_some() {}
        while let Some(notice) = source.poll_mrq() {
            assert_eq!(notice.word0().rcode(), Rcode::SUCCESS);
            done += 1;
        }
    }
    for slot in 0..SLOTS {
        let value = (COUNT - SLOTS + slot) as u64 + 1;
        for word in 0..4 {
            let at = slot * 32 + word * 8;
            assert_eq!(target.load_u64(at, Ordering::Relaxed), value, "slot {slot}, word {word}");
        }
    }
}

/// Tables are written while the device reads them, for memory that others have used before. A
/// thread that sees the notice of a command's end also sees its data, without any other
/// synchronisation.
#[test]
fn promised_tables_and_data_are_there() {
    const COUNT: u64 = 400;
    const LEN: usize = 2048;
    let devices = machine("1x1x1x2x1x1", 2);
    let (mut source, _memory) =
        open(&devices[0], &CqConfig::new(TniId::ALL[0], CqId::ALL[0]), 4096);
    let (_sink, target) = open(&devices[1], &CqConfig::new(TniId::ALL[0], CqId::ALL[0]), 4096);
    let to = Target::new(devices[1].coords(), TniId::ALL[0]);
    let buffers = [(); 2].map(|()| devices[0].platform().alloc_dma(4096, 4096).unwrap());
    for n in 1..=COUNT {
        let buffer = &buffers[n as usize % 2];
        for i in 0..LEN / 8 {
            buffer.store_u64(i * 8, n, Ordering::Relaxed);
        }
        let range = [MemoryRange::of(buffer)];
        let stag = source.register(&range, PageSize::Size4K, Access::ReadOnly, Some(1)).unwrap();
        let from = tofu_abi::StagOffset::new(CqId::ALL[0], 1, 0);
        let order = Order::put(to, at(0), from, LEN as u32);
        source.post_and_ring(&order, n).unwrap();
        let notice = loop {
            while source.poll_tcq().is_some() {}
            if let Some(notice) = source.poll_mrq() {
                break notice;
            }
            std::hint::spin_loop();
        };
        assert_eq!(notice.word0().rcode(), Rcode::SUCCESS);
        for i in 0..LEN / 8 {
            assert_eq!(target.load_u64(i * 8, Ordering::Relaxed), n, "word {i}");
        }
        source.unregister(stag).unwrap();
    }
}

#[test]
fn every_wait_is_woken() {
    // Ping-pong by interrupts alone: after a lost wake-up a wait would end by its time limit.
    const COUNT: u64 = 2000;
    let devices = machine("1x1x1x2x1x1", 2);
    let ends = [0, 1].map(|i| open(&devices[i], &CqConfig::new(TniId::ALL[0], CqId::ALL[0]), 4096));
    std::thread::scope(|s| {
        for (rank, (mut cq, memory)) in ends.into_iter().enumerate() {
            let to = Target::new(devices[1 - rank].coords(), TniId::ALL[0]);
            s.spawn(move || {
                let send = |cq: &mut Cq<InProcess>, n: u64| {
                    let order = Order::put_piggyback(to, at(0), &n.to_le_bytes()).unwrap();
                    cq.post_and_ring(&order.remote_notice(), n).unwrap();
                    reap(cq, 1);
                };
                for n in 1..=COUNT {
                    if rank == 0 {
                        send(&mut cq, n);
                    }
                    while memory.load_u64(0, Ordering::Acquire) < n {
                        wait(&mut cq);
                        while cq.poll_mrq().is_some() {}
                    }
                    if rank == 1 {
                        send(&mut cq, n);
                    }
                }
            });
        }
    });
}

#[test]
fn queues_close_while_others_send() {
    let devices = machine("1x1x1x2x1x1", 2);
    let stop = AtomicBool::new(false);
    let to = Target::new(devices[1].coords(), TniId::ALL[0]);
    std::thread::scope(|s| {
        let sender = s.spawn(|| {
            let (mut cq, _memory) =
                open(&devices[0], &CqConfig::new(TniId::ALL[0], CqId::ALL[0]), 1 << 20);
            let (mut good, mut refused) = (0u32, 0u32);
            while !stop.load(Ordering::Relaxed) {
                let order = Order::put(to, at(0), at(0), 300_000);
                cq.post_and_ring(&order.remote_notice(), 0).unwrap();
                let done = loop {
                    if let Some(done) = cq.poll_tcq() {
                        break done;
                    }
                    wait(&mut cq);
                };
                assert_eq!(done.rcode, Rcode::SUCCESS, "it was sent");
                let notice = loop {
                    match cq.poll_mrq() {
                        Some(notice) if notice.id().is_some_and(MrqId::ends_own_command) => {
                            break notice;
                        }
                        Some(_) => {}
                        None => wait(&mut cq),
                    }
                };
                match notice.word0().rcode() {
                    Rcode::SUCCESS => good += 1,
                    _ => refused += 1,
                }
            }
            (good, refused)
        });
        for round in 0..300 {
            let (cq, memory) =
                open(&devices[1], &CqConfig::new(TniId::ALL[0], CqId::ALL[0]), 1 << 20);
            if round % 2 == 0 {
                std::thread::yield_now();
            }
            cq.close().unwrap();
            // Nothing may write to the memory any more.
            memory.fill(0);
            let looks = (0..3).all(|_| {
                std::thread::yield_now();
                (0..1 << 17).step_by(997).all(|i| memory.load_u64(i * 8, Ordering::Relaxed) == 0)
            });
            assert!(looks, "written after the queue was closed");
        }
        stop.store(true, Ordering::Relaxed);
        let (good, refused) = sender.join().unwrap();
        assert!(good + refused > 0);
    });
}
