//! Runs a number of Puts, one after the other, for whoever counts their instructions.
//!
//! `valgrind --tool=callgrind target/release/examples/put_cost put 8 1000`, and again with 21000.

use tofu_inproc::{Pair, PairError};

fn main() -> Result<(), PairError> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_default();
    let mut number = || args.next().and_then(|text| text.parse().ok()).unwrap_or(8);
    let (bytes, count) = (number(), number());
    let mut pair = Pair::new()?;
    let order = if what == "put" { pair.put(bytes) } else { pair.piggyback() };
    (0..count).try_for_each(|_| pair.run(&order))
}
