//! Runs a number of Puts, one after the other, so that their instructions can be counted.
//!
//! `valgrind --tool=callgrind target/release/examples/put_cost put 8 1000`, and again with 21000.
//! `traced` has them with a trace that is not read, `piggyback` has data in the descriptor, and
//! `modelled` goes over modelled links. A third number is how many Puts share a doorbell.

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
