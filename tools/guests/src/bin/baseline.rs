//! Rings a bare doorbell and spins on bare memory: the baseline for Puts in `tofu bench`.
//!
//! It needs the function that `tofu bench` puts on the bus in place of a Tofu device, and says
//! so where there is none. `count=N`: round trips of each kind (1000).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use core::hint::spin_loop;

use tofu_bare::{mmio, pci};
use tofu_guests::{Error, fail, now_ns, number, println};

tofu_guests::entry!(run);

/// The function of `tofu bench`, which is ours and has no other use.
const VENDOR: u16 = 0x10cf;
const DEVICE: u16 = 0x1cff;
/// Its BAR 0: a doorbell page, then a page of memory with one word that the host changes when the
/// doorbell rings and one that it keeps one ahead of what the guest writes to it.
const BAR_SIZE: u64 = 0x4000;
const DOORBELL: usize = 0x1000;
const RUNG: usize = 0x2000;
const MINE: usize = 0x2040;
const ECHO: usize = 0x2080;

fn run() -> Result<(), Error> {
    let count = number("count", 1000)?.max(100);
    let Some(device) = pci::find(VENDOR, DEVICE) else {
        println!("nothing to do here: this program is a part of tofu bench");
        return Ok(());
    };
    let bar = device.map_bar(0, BAR_SIZE).map_err(|error| fail!("BAR 0: {error}"))?;
    device.enable();
    // SAFETY: registers and shared memory of the function, which does no DMA.
    let (read, write) =
        unsafe { (|at: usize| mmio::read64(at), |at: usize, value: u64| mmio::write64(at, value)) };
    report("spin", count, |_| {
        let mine = read(bar + ECHO) + 1;
        write(bar + MINE, mine);
        while read(bar + ECHO) != mine {
            spin_loop();
        }
    });
    report("ring", count, |_| {
        let before = read(bar + RUNG);
        write(bar + DOORBELL, 1);
        while read(bar + RUNG) == before {
            spin_loop();
        }
    });
    Ok(())
}

/// Prints the least, the median and the 99th percentile of some times, in nanoseconds.
fn report(what: &str, count: u64, mut trip: impl FnMut(u64)) {
    let mut times = Vec::with_capacity(count as usize);
    for i in 0..count {
        let start = now_ns();
        trip(i);
        times.push(now_ns() - start);
    }
    times.sort_unstable();
    let at = |percent: u64| times[(count * percent / 100) as usize];
    println!("{what} {} {} {}", at(0), at(50), at(99));
}
