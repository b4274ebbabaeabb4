//! Runs a number of Puts, one after the other, so that their instructions can be counted.
//!
//! `valgrind --tool=callgrind target/release/examples/put_cost put 8 1000`, and again with 21000.
//! `traced` has them with a trace that is not read, `piggyback` has data in the descriptor, and
//! `modelled` goes over modelled links. A third number is how many Puts share a doorbell.
//!
//! Of the 2817 instructions of a Put of 8 bytes, the queue's turn with the descriptor's check takes
//! 690, the way there and back 220, translation at both ends 220, the target 300, completion and
//! notice 430, the driver 420; the doorbell's register write, and the begin and end of a turn, 450.
//! The last 1000 that were saved: transactions instead of packets and a place in a table (600), a
//! doorbell that is recognised before registers are decoded (380), ways whose links are looked at
//! only after a change of any, a cache of mappings without a lock, checks once instead of twice,
//! and functions in place (90). No gain: page tables that are looked up once, answers by reference,
//! larger functions for the initiator, one codegen unit for each of the device's crates (2 % more),
//! packets that are carried together in up to 16 (3046 instead of 3032 at 64 to a doorbell, but
//! 4752 alone). A Put alone has a second look for descriptors, the clock, and the register write
//! with its state of the thread.

use tofu_inproc::{Pair, PairError};
use tofu_machine::Links;

fn main() -> Result<(), PairError> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_default();
    let mut number = |default| args.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (bytes, count, at_once) = (number(8), number(8), number(1));
    let mut pair = Pair::over(if what == "modelled" { Links::Modelled } else { Links::Direct })?;
    let order = if what == "piggyback" { pair.piggyback() } else { pair.put(bytes) };
    let _trace = if what == "traced" { pair.network().trace() } else { None };
    (0..count).try_for_each(|_| pair.run_many(&order, at_once as usize))
}
