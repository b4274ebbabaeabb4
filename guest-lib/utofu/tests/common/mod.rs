//! Processes on a machine in this process.
#![allow(dead_code, unreachable_pub)] // Each test program uses its part.

use std::time::{Duration, Instant};

use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_utofu::ids::Stadd;
use tofu_utofu::{Completion, Context, DeviceShare, Notice, Vcq};
use tofu_utofu_local::{Generation, LocalMachine, LocalProvider};

/// The time for which a test waits for the device.
const PATIENCE: Duration = Duration::from_secs(20);

/// One process on each of the two nodes of a machine.
pub struct Pair {
    pub machine: LocalMachine,
    pub contexts: [Context<LocalProvider>; 2],
}

pub fn pair() -> Pair {
    pair_of(Generation::Fugaku)
}

pub fn pair_of(generation: Generation) -> Pair {
    let shape = Shape::new([1, 1, 1, 2, 1, 1]).unwrap();
    let machine = LocalMachine::of(generation, shape).unwrap();
    let contexts = [0, 1].map(|a| {
        let node = machine.node(Coords::new(0, 0, 0, a, 0, 0)).unwrap();
        Context::new(node, DeviceShare::of(generation, 0, 1).unwrap())
    });
    Pair { machine, contexts }
}

/// Memory that is registered somewhere. It is never freed, so that a failing test cannot leave the
/// device with freed memory.
pub struct Memory {
    addr: *mut u8,
    len: usize,
}

impl Memory {
    pub fn new(len: usize) -> Self {
        Self::aligned(len, 0)
    }

    /// Memory whose address ends in `phase` (below 64 KiB).
    pub fn aligned(len: usize, phase: usize) -> Self {
        let bytes = Box::leak(vec![0u8; len + (2 << 16)].into_boxed_slice());
        let start = (bytes.as_mut_ptr() as usize).next_multiple_of(1 << 16) + phase;
        Self { addr: start as *mut u8, len }
    }

    pub fn addr(&self) -> *mut u8 {
        self.addr
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn fill(&self, f: impl Fn(usize) -> u8) {
        for i in 0..self.len {
            // SAFETY: the memory is this object's, and only accessed by volatile accesses.
            unsafe { self.addr.add(i).write_volatile(f(i)) };
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: as above.
        (0..self.len).map(|i| unsafe { self.addr.add(i).read_volatile() }).collect()
    }

    pub fn register(&self, vcq: &Vcq<LocalProvider>, flags: u64) -> Stadd {
        // SAFETY: the memory is never freed and only accessed by volatile accesses.
        unsafe { vcq.reg_mem(self.addr, self.len, None, flags).unwrap() }
    }
}

/// Waits for something.
pub fn wait<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "no {what}");
        std::thread::yield_now();
    }
}

pub fn completion(vcq: &Vcq<LocalProvider>) -> Completion {
    wait("completion", || vcq.poll_tcq())
}

pub fn notice(vcq: &Vcq<LocalProvider>) -> Notice {
    wait("notice", || vcq.poll_mrq())
}

/// The value that the atomic operation `op` writes where there was `old`.
pub fn armw(op: u32, old: u64, value: u64) -> u64 {
    match op {
        1 => value,
        2 => old.wrapping_add(value),
        3 => old ^ value,
        4 => old & value,
        _ => old | value,
    }
}

/// A word of a model's memory.
pub fn word(memory: &[u8], at: usize, len: usize) -> u64 {
    memory[at..at + len].iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}
