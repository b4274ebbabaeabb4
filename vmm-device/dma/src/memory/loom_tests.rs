//! The rings between a driver and a device, in every order in which the two can run: the driver's
//! own code on memory of loom's atomics, and the device's order of accesses.

use std::sync::atomic::Ordering::{self, Relaxed};

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use tofu_abi::Rcode;
use tofu_abi::desc::Header1;
use tofu_abi::queue::{MrqWord0, TcqEntry};
use tofu_driver::{DmaBuffer, Order, RingMemory, Rings, UserPage};

use super::{STORE, load_words, store_words};

/// Words shared by driver and device.
#[derive(Clone)]
struct Words(Arc<Vec<AtomicU64>>);

impl Words {
    /// Words left by an earlier use, without flip bits that could look new.
    fn old(bytes: usize) -> Self {
        Self(Arc::new((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()))
    }

    fn entry(&self) -> [u64; 4] {
        load_words(|i, order| self.0[i].load(order))
    }
}

impl DmaBuffer for Words {
    fn device_addr(&self) -> u64 {
        0
    }

    fn len(&self) -> usize {
        8 * self.0.len()
    }

    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.0[offset / 8].load(order)
    }

    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.0[offset / 8].store(value, order);
    }

    fn load_u32(&self, _: usize, _: Ordering) -> u32 {
        unreachable!("rings have words of 64 bits")
    }

    fn store_u32(&self, _: usize, _: u32, _: Ordering) {
        unreachable!("rings have words of 64 bits")
    }

    fn load_u8(&self, _: usize, _: Ordering) -> u8 {
        unreachable!("rings have words of 64 bits")
    }

    fn store_u8(&self, _: usize, _: u8, _: Ordering) {
        unreachable!("rings have words of 64 bits")
    }

    fn read(&self, _: usize, _: &mut [u8]) {
        unreachable!("rings have words of 64 bits")
    }

    fn write(&self, _: usize, _: &[u8]) {
        unreachable!("rings have words of 64 bits")
    }
}

/// Registers that impose no order: the tests rely on memory accesses alone.
struct Page;

impl UserPage for Page {
    fn read(&self, _: u64) -> u64 {
        0
    }

    fn write(&self, _: u64, _: u64) {}
}

/// Number of entries of a ring.
const ENTRIES: u32 = 2;

/// The rings of a driver, and their memory: orders, completions, notices.
fn rings() -> (Rings<Words, Page>, [Words; 3]) {
    let memory = RingMemory::<Words>::sizes(ENTRIES, ENTRIES).map(Words::old);
    let rings = Rings::new(RingMemory::of(memory.clone(), ENTRIES, ENTRIES), Page);
    (rings, memory)
}

/// A command of two descriptors.
fn order() -> Order {
    let to = tofu_driver::Target::new(tofu_abi::Coords::default(), tofu_abi::TniId::ALL[1]);
    let remote = tofu_abi::StagOffset::default();
    Order::put_piggyback(to, remote, &[7; 32]).unwrap()
}

/// A device that polls its ring finds nothing or the whole command, even without a doorbell.
#[test]
fn loom_command_is_seen_whole_or_not_at_all() {
    loom::model(|| {
        let (mut rings, [orders, ..]) = rings();
        let device = thread::spawn(move || {
            let first = orders.entry();
            if !Header1(first[0]).flip() {
                return;
            }
            let second = load_words(|i, order| orders.0[4 + i].load(order));
            let order = order();
            for (found, descriptor) in [first, second].into_iter().zip(order.descriptors()) {
                let [header, operands @ ..] = descriptor.0;
                assert_eq!(
                    found,
                    [&[Header1(header).with_flip(true).0], &operands[..]].concat()[..]
                );
            }
        });
        rings.post(&order(), 1).unwrap();
        device.join().unwrap();
    });
}

/// A thread that sees a completion also sees the data that the command has fetched.
#[test]
fn loom_data_is_there_before_its_completion() {
    loom::model(|| {
        let (mut rings, [_, completions, _]) = rings();
        rings.post(&Order::nop(), 5).unwrap();
        let data = Arc::new(AtomicU64::new(0));
        let fetched = Arc::clone(&data);
        let device = thread::spawn(move || {
            fetched.store(1, Relaxed);
            let entry = TcqEntry(0).with_flip(true).with_rcode(Rcode::SUCCESS);
            completions.0[0].store(entry.0, STORE);
        });
        if let Some(completion) = rings.poll_tcq() {
            assert!(completion.is_success() && completion.cookie == 5);
            assert_eq!(data.load(Relaxed), 1);
        }
        device.join().unwrap();
    });
}

/// A thread that sees a notice sees all of it, and the data that it announces.
#[test]
fn loom_notice_is_whole_and_after_its_data() {
    loom::model(|| {
        let (mut rings, [.., notices]) = rings();
        let entry = [MrqWord0(0).with_flip(true).0, 2, 3, 4];
        let data = Arc::new(AtomicU64::new(0));
        let arrived = Arc::clone(&data);
        let device = thread::spawn(move || {
            arrived.store(1, Relaxed);
            store_words(entry, |i, value, order| notices.0[i].store(value, order));
        });
        if let Some(notice) = rings.poll_mrq() {
            assert_eq!(notice.0, entry);
            assert_eq!(data.load(Relaxed), 1);
        }
        device.join().unwrap();
    });
}
