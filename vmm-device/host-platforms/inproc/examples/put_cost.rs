//! Runs a number of Puts, one after the other, for whoever counts their instructions.
//!
//! `valgrind --tool=callgrind target/release/examples/put_cost put 8 1000`, and again with 21000.
//! `traced` has them with a trace that nobody reads, `piggyback` has data in the descriptor.

use tofu_inproc::{Pair, PairError};

fn main() -> Result<(), PairError> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_default();
    let mut number = || args.next().and_then(|text| text.parse().ok()).unwrap_or(8);
    let (bytes, count) = (number(), number());
    let mut pair = Pair::new()?;
    let order = if what == "piggyback" { pair.piggyback() } else { pair.put(bytes) };
    let _trace = if what == "traced" { pair.network().trace() } else { None };
    (0..count).try_for_each(|_| pair.run(&order))
}
