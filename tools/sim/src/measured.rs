//! Values that were measured on Fugaku with public programs, next to those of our own programs in
//! modelled time.
//!
//! The programs use uTofu as those on the machine do, so their commands go through the library, the
//! driver and the devices. Time is the devices' and the network's, and that of the instructions
//! that the library takes ([`rank::Software`]). Caches, and the vectors of the processor, cost
//! nothing.
//!
//! Instructions were counted by callgrind, release build, `tofu run --local`: 694 for a Put, 194
//! for a poll that finds a completion, 628 for a notice, 219 for nothing. A look at a word of
//! memory takes five, and an addition four for each 64 bytes. With an instruction a cycle, 22 of 30
//! values are within the tolerance. Programs are threads that take turns in the order of modelled
//! time.
//!
//! Choices of ours: where two programs put to each other, data alternates between two places, so
//! that a completion is waited for a round later. Commands go by direct descriptors where the
//! interface is ready for one, which our library does not by default, as each store may be an exit
//! of a virtual machine.

mod memory;
mod programs;
mod rank;

use serde::Serialize;

use crate::plot::{Curves, Line};
use programs::Program;
use rank::Software;

/// Nanoseconds of an instruction: three in two cycles of an A64FX at its 2.2 GHz. *Fitted with*
/// these values, as the only one; the instructions are counted.
pub(crate) const NS_PER_INSTRUCTION: f64 = 0.3;
/// Two measured values that differ by more than this factor are in an order.
const APART: f64 = 1.05;
/// The tolerance, relative to the measured value.
const TOLERANCE: f64 = 0.15;

/// A value that was measured.
#[derive(Debug, Serialize)]
struct Measured {
    /// The program, as its source calls it.
    what: &'static str,
    /// With which parameter.
    with: &'static str,
    value: f64,
    unit: Unit,
    #[serde(skip)]
    program: Program,
    /// The reason why ours is not within the tolerance; empty if it is.
    reason: &'static str,
}

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Unit {
    #[serde(rename = "us")]
    Us,
    #[serde(rename = "GB/s")]
    GbPerS,
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Us => "us",
            Self::GbPerS => "GB/s",
        }
    }
}

const fn us(what: &'static str, with: &'static str, value: f64, program: Program) -> Measured {
    Measured { what, with, value, unit: Unit::Us, program, reason: "" }
}

const fn rate(what: &'static str, with: &'static str, value: f64, program: Program) -> Measured {
    Measured { what, with, value, unit: Unit::GbPerS, program, reason: "" }
}

impl Measured {
    /// The same value, with the reason why it is not met.
    const fn missed(self, reason: &'static str) -> Self {
        Self { reason, ..self }
    }
}

/// Twelve nodes of Fugaku, 2x3x2 in one unit. Published by lighttransport/gemm (MIT licence):
/// a64fx/utofu-tests/summary.md, findings 1, 3, 5, 6, 10 to 14 and 17.
const VALUES: &[Measured] = &[
    us("Put one way, 8 B", "1 hop", 0.98, Program::Put { bytes: 8, hops: 1 }),
    us("Put one way, 8 B", "2 hops", 1.06, Program::Put { bytes: 8, hops: 2 }),
    us("Put one way, 8 B", "3 hops", 1.13, Program::Put { bytes: 8, hops: 3 }),
    us("Get and back, 8 B", "1 hop", 1.495, Program::Get { hops: 1 }),
    us("Get and back, 8 B", "2 hops", 1.65, Program::Get { hops: 2 }),
    us("Get and back, 8 B", "3 hops", 1.80, Program::Get { hops: 3 }),
    us("fetch-add and back, 8 B", "1 hop", 1.335, Program::FetchAdd { hops: 1 }),
    us("fetch-add and back, 8 B", "2 hops", 1.49, Program::FetchAdd { hops: 2 }),
    us("fetch-add and back, 8 B", "3 hops", 1.63, Program::FetchAdd { hops: 3 }),
    rate("Put stream, window 8", "1 KiB", 3.49, Program::PutStream { bytes: 1 << 10 }),
    rate("Put stream, window 8", "4 KiB", 6.18, Program::PutStream { bytes: 4 << 10 }),
    rate("Put stream, window 8", "16 KiB", 6.32, Program::PutStream { bytes: 16 << 10 }),
    rate("Get stream, window 8", "1 KiB", 3.48, Program::GetStream { bytes: 1 << 10 }),
    rate("Get stream, window 8", "4 KiB", 6.12, Program::GetStream { bytes: 4 << 10 }),
    rate("Get stream, window 8", "16 KiB", 6.31, Program::GetStream { bytes: 16 << 10 }),
    us("ring hop", "2080 B", 1.56, Program::Ring { bytes: 2080 }),
    us("ring hop", "4160 B", 1.83, Program::Ring { bytes: 4160 }),
    us("ring hop", "8320 B", 2.49, Program::Ring { bytes: 8320 }),
    us("ring hop, Put and poll", "16640 B", 3.80, Program::Ring { bytes: 16640 }),
    us("ring hop", "33280 B", 6.75, Program::Ring { bytes: 33280 }),
    us("ring hop", "66560 B", 11.70, Program::Ring { bytes: 66560 }),
    us("ring hop, bf16", "8320 B", 2.47, Program::Ring { bytes: 8320 }),
    us("ring reduce, bf16", "8320 B", 27.14, Program::RingReduce { bytes: 8320 }),
    us("tree allreduce, bf16", "8320 B", 13.61, Program::Sum { bytes: 8320, adds: true }),
    us("striping to one peer", "16640 B, 1 TNI", 3.87, Program::Striped { bytes: 16640, tnis: 1 }),
    us("striping to one peer", "16640 B, 2 TNIs", 3.88, Program::Striped { bytes: 16640, tnis: 2 }),
    us("striping to one peer", "16640 B, 3 TNIs", 3.87, Program::Striped { bytes: 16640, tnis: 3 }),
    us("striping to one peer", "16640 B, 6 TNIs", 5.42, Program::Striped { bytes: 16640, tnis: 6 })
        .missed(
            "on the machine six interfaces cost 1.5 us more than three; all are alike in the model",
        ),
    us("striping to one peer", "66560 B, 1 TNI", 11.70, Program::Striped { bytes: 66560, tnis: 1 }),
    us(
        "striping to one peer",
        "66560 B, 6 TNIs",
        12.27,
        Program::Striped { bytes: 66560, tnis: 6 },
    ),
    us("allgather, 1 KiB", "1 TNI", 14.99, Program::ToAll { bytes: 1024, tnis: 1 }),
    us("allgather, 1 KiB", "6 TNIs", 4.93, Program::ToAll { bytes: 1024, tnis: 6 }).missed(
        "caches cost nothing here: on the machine, a post to another interface than the one before \
         seems to take 0.1 us more",
    ),
    us("allgather, 1 KiB", "ring", 15.68, Program::GatherByRing { bytes: 1024 }),
    us("allgather, 1 KiB", "doubling", 13.02, Program::GatherByDoubling { bytes: 1024 }),
    us("allreduce, no additions", "12 KiB", 18.39, Program::Sum { bytes: 12288, adds: false }),
    us("all-to-all and back, 12 KiB", "6 TNIs", 34.6, Program::Dispatch { bytes: 12288, tnis: 6 }),
    us("Put one way, 12 KiB", "1 hop", 3.17, Program::Put { bytes: 12288, hops: 1 }),
    us("Put one way, 12 KiB", "3 hops", 3.35, Program::Put { bytes: 12288, hops: 3 }),
    us("chain and back, 12 KiB", "12 nodes", 70.5, Program::Chain { bytes: 12288 }),
];

/// A measured value next to ours.
#[derive(Debug, Serialize)]
struct Compared {
    #[serde(flatten)]
    value: &'static Measured,
    ours: f64,
    /// The difference of ours from the measured value, relative to it.
    difference: f64,
    /// True if ours is within the tolerance.
    met: bool,
}

/// All measured values next to ours.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    ns_per_instruction: f64,
    values: Vec<Compared>,
    curves: Vec<Curves>,
}

impl Report {
    /// Runs all programs with this time of an instruction.
    pub(crate) fn measure(ns_per_instruction: f64) -> anyhow::Result<Self> {
        let software = Software { ns_per_instruction };
        let values = VALUES.iter().map(|value| {
            let ours = value.program.run(software)?;
            let difference = ours / value.value - 1.0;
            Ok(Compared { value, ours, difference, met: difference.abs() <= TOLERANCE })
        });
        let values = values.collect::<anyhow::Result<Vec<_>>>()?;
        let curves = vec![ring(&values)];
        Ok(Self { ns_per_instruction, values, curves })
    }

    pub(crate) fn curves(&self) -> &[Curves] {
        &self.curves
    }

    /// Formats the report: a table, and notes about its rows.
    pub(crate) fn text(&self) -> String {
        let rows = self.values.iter().map(|row| {
            let Compared { value, ours, difference, met } = row;
            vec![
                value.what.to_owned(),
                value.with.to_owned(),
                format!("{} {}", value.value, value.unit.name()),
                format!("{ours:.3}"),
                format!("{:+.1} %", difference * 100.0),
                if *met { "met" } else { "missed" }.to_owned(),
            ]
        });
        let head = ["on Fugaku", "with", "measured", "ours", "difference", ""];
        let mut text = tofu_ui::table(&head, &[2, 3, 4], rows);
        let (met, all) = (self.values.iter().filter(|row| row.met).count(), self.values.len());
        text += &format!(
            "\n{met} of {all} are within {:.0} %. An instruction takes {} ns; the library takes {} \
             for a Put, {} for a poll that finds a completion, {} for one that finds a notice, and \
             {} for one that finds nothing.\n",
            TOLERANCE * 100.0,
            self.ns_per_instruction,
            Software::POST,
            Software::TCQ,
            Software::MRQ,
            Software::LOOK,
        );
        let (right, pairs) = self.orders();
        text += &format!(
            "{right} of {pairs} pairs whose measured values are more than {:.0} % apart are in the \
             same order.\n",
            (APART - 1.0) * 100.0
        );
        for row in self.values.iter().filter(|row| !row.met && !row.value.reason.is_empty()) {
            let Measured { what, with, reason, .. } = row.value;
            text += &format!("- {what}, {with}: {reason}\n");
        }
        text
    }
}

impl Report {
    /// The number of pairs of values of a unit that are in the measured order, and of all pairs
    /// that are in an order.
    fn orders(&self) -> (usize, usize) {
        let (mut right, mut pairs) = (0, 0);
        for (i, a) in self.values.iter().enumerate() {
            for b in &self.values[i + 1..] {
                let measured = a.value.value / b.value.value;
                if a.value.unit == b.value.unit && measured.max(1.0 / measured) > APART {
                    pairs += 1;
                    right += usize::from((measured > 1.0) == (a.ours > b.ours));
                }
            }
        }
        (right, pairs)
    }
}

/// The ring's hops by size, measured and ours.
fn ring(values: &[Compared]) -> Curves {
    let points = |of: fn(&Compared) -> f64| {
        let hops = values.iter().filter_map(|row| match row.value.program {
            Program::Ring { bytes } => Some((bytes as f64, of(row))),
            _ => None,
        });
        hops.collect()
    };
    let line = |name: &str, points| Line { name: name.to_owned(), points };
    Curves {
        title: "A hop of the ring".to_owned(),
        y: "us",
        x: "bytes",
        lines: vec![
            line("measured", points(|row| row.value.value)),
            line("ours", points(|row| row.ours)),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_met_or_have_a_reason() {
        let report = Report::measure(NS_PER_INSTRUCTION).unwrap();
        for row in &report.values {
            assert_eq!(row.met, row.value.reason.is_empty(), "{row:?}");
        }
        let (right, pairs) = report.orders();
        assert!(right * 100 >= pairs * 98, "{right} of {pairs}");
    }

    #[test]
    fn runs_equal_each_other() {
        let program = Program::Ring { bytes: 2080 };
        let run = |ns_per_instruction| program.run(Software { ns_per_instruction }).unwrap();
        assert_eq!(run(NS_PER_INSTRUCTION).to_bits(), run(NS_PER_INSTRUCTION).to_bits());
        assert!(run(1.0) > run(0.1));
    }
}
