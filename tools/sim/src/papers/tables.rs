//! Tables I, II, IV and V and Figure 7 of the TofuD paper, from the descriptions of the generations
//! and from the model.

use std::fmt::Write as _;

use serde::Serialize;
use tofu_abi::generation::{Description, Generation};
use tofu_icc::CommandTiming;
use tofu_links::Parameters;

use super::commands;
use super::results::Extent;
use super::values::VALUES;

/// A row: what, and a value of each generation.
pub(super) type Row = (&'static str, fn(&Description) -> String);

/// Table I: data rates of signals, and injection rates.
pub(super) const TABLE_I: [Row; 5] = [
    ("lanes of a node", |of| (u32::from(of.ports) * u32::from(of.link.lanes)).to_string()),
    ("data rate, Gbit/s", |of| (f64::from(of.link.lane_kbps) / 1e6).to_string()),
    ("link bandwidth, GB/s", |of| format!("{:.1}", of.link.bytes_per_s() as f64 / 1e9)),
    ("interfaces of a node", |of| of.tnis.to_string()),
    ("injection bandwidth of a node, GB/s", |of| {
        (of.injection_bytes_per_s() as f64 / 1e9).to_string()
    }),
];

/// Table II: memory groups, and resources for communication.
pub(super) const TABLE_II: [Row; 6] = [
    ("cores of a node", |of| of.cores.to_string()),
    ("memory groups of a node", |of| (of.groups.near + of.groups.far).to_string()),
    ("interfaces of a node", |of| of.tnis.to_string()),
    ("queues of a node", |of| (u32::from(of.tnis) * u32::from(of.cqs)).to_string()),
    ("barrier channels of a node", |of| barrier(of, of.barrier.channels)),
    ("barrier gates of a node", |of| barrier(of, of.barrier.gates)),
];

fn barrier(of: &Description, each: u8) -> String {
    (u32::from(of.barrier.tnis) * u32::from(each)).to_string()
}

/// A table of the papers.
#[derive(Debug, Serialize)]
struct Table {
    title: &'static str,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of what descriptions have. Tofu is in K and FX10.
    fn of(title: &'static str, rows: &[Row]) -> Self {
        let names = Generation::ALL.map(|of| of.to_string());
        let columns = [String::new()].into_iter().chain(names).collect();
        let row = |(what, value): &Row| {
            let values = Generation::ALL.map(|of| value(of.description()));
            [(*what).to_owned()].into_iter().chain(values).collect()
        };
        Self { title, columns, rows: rows.iter().map(row).collect() }
    }
}

/// The tables, to be printed.
#[derive(Debug, Serialize)]
pub(crate) struct Tables(Vec<Table>);

/// Rows of Tables IV and V: a value of `sim papers`, and the published efficiency in percent.
const INJECTION: [(&str, Generation, f64); 4] = [
    ("injection-k", Generation::K, 77.0),
    ("injection-fx10", Generation::Fx10, 88.0),
    ("injection-tofu2", Generation::Fx100, 92.0),
    ("injection-tofud", Generation::Fugaku, 93.0),
];
const THROUGHPUT: [(&str, Generation, f64); 3] = [
    ("put-tofu", Generation::K, 95.0),
    ("put-tofu2", Generation::Fx100, 92.0),
    ("put-tofud", Generation::Fugaku, 93.0),
];

impl Tables {
    /// Reads the descriptions, and measures rates.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let injection = INJECTION.map(|(name, of, published)| {
            let peak = of.description().injection_bytes_per_s();
            Ok((name, of, peak, commands::injection(of)?, published))
        });
        let throughput = THROUGHPUT.map(|(name, of, published)| {
            let peak = of.description().link.bytes_per_s();
            let rate = commands::ping(of, commands::LARGE, false, Extent::new(false))?;
            Ok((name, of, peak, rate, published))
        });
        Ok(Self(vec![
            Table::of("Table I: data rates of signals and injection rates", &TABLE_I),
            Table::of("Table II: memory groups and communication resources", &TABLE_II),
            efficiencies("Table IV: injection rates", injection)?,
            efficiencies("Table V: throughput of Puts", throughput)?,
            parts_of_a_put(),
        ]))
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for Table { title, columns, rows } in &self.0 {
            let gap = if text.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}{title}");
            let head: Vec<&str> = columns.iter().map(String::as_str).collect();
            let right: Vec<usize> = (1..head.len()).collect();
            text += &tofu_ui::table(&head, &right, rows.iter().cloned());
        }
        text
    }
}

/// Name, generation, the peak and our rate in bytes a second, and the published efficiency.
type Rate = (&'static str, Generation, u64, f64, f64);

fn efficiencies<const N: usize>(
    title: &'static str,
    rates: [anyhow::Result<Rate>; N],
) -> anyhow::Result<Table> {
    let head = ["", "peak, GB/s", "published", "", "ours", ""];
    let row = |rate: anyhow::Result<Rate>| {
        let (name, of, peak, ours, efficiency) = rate?;
        let published = VALUES.iter().find(|value| value.name == name);
        let published = published.map_or(String::new(), |value| value.published.to_string());
        Ok(vec![
            of.to_string(),
            format!("{:.1}", peak as f64 / 1e9),
            published,
            format!("{efficiency} %"),
            format!("{:.2}", ours / 1e9),
            format!("{:.1} %", ours * 100.0 / peak as f64),
        ])
    };
    let rows = rates.into_iter().map(row).collect::<anyhow::Result<_>>()?;
    Ok(Table { title, columns: head.map(str::to_owned).to_vec(), rows })
}

/// Figure 7 shows the parts without numbers. Those of the model sum up to Table III.
fn parts_of_a_put() -> Table {
    let title = "Figure 7: parts of the one-way latency of a Put of 8 bytes, ns; halves of the \
                 ends are ours";
    let of = [Generation::K, Generation::Fx100, Generation::Fugaku];
    let names = of.map(|of| of.description().interconnect.to_owned());
    let ends = of.map(CommandTiming::of);
    let links = of.map(Parameters::of);
    let frame = links.map(|link| link.wire_ps(tofu_icc::wire_bytes(8) as u16));
    let row = |what: &str, ps: [u64; 3]| {
        let ns = ps.map(|ps| format!("{:.1}", ps as f64 / 1e3));
        [what.to_owned()].into_iter().chain(ns).collect::<Vec<_>>()
    };
    let sum = [0, 1, 2]
        .map(|of: usize| ends[of].issue_ps + links[of].hop_ps() + frame[of] + ends[of].deliver_ps);
    let rows = vec![
        row("a descriptor that is fetched, in addition", ends.map(|end| end.memory_ps)),
        row("direct descriptor to the first TLP", ends.map(|end| end.issue_ps)),
        row("packet: switch", links.map(|link| link.switch_ps)),
        row("packet: link", links.map(|link| link.link_ps)),
        row("packet: its frame", frame),
        row("TLP to data in the cache", ends.map(|end| end.deliver_ps)),
        row(
            "data in memory instead, in addition",
            ends.map(|end| if end.cache_injection { end.memory_ps } else { 0 }),
        ),
        row("both processes in far memory groups, in addition", ends.map(|end| 2 * end.far_ps)),
        row("sum of a direct descriptor, near, in the cache", sum),
    ];
    Table { title, columns: [String::new()].into_iter().chain(names).collect(), rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_those_of_the_paper() {
        let tables = Tables::new().unwrap();
        let text = tables.text();
        let has = |cells: &[&str]| {
            let same = |line: &str| line.split_whitespace().eq(cells.iter().copied());
            assert!(text.lines().any(same), "{cells:?}\n{text}");
        };
        has(&["lanes", "of", "a", "node", "80", "80", "40", "20"]);
        has(&["cores", "of", "a", "node", "8", "16", "32", "48"]);
        has(&["queues", "of", "a", "node", "12", "12", "48", "72"]);
        for Table { title, rows, .. } in &tables.0[2..4] {
            for row in rows {
                let share = |at: usize| row[at].trim_end_matches(" %").parse::<f64>().unwrap();
                assert!((share(3) - share(5)).abs() < 3.0, "{title}: {row:?}");
            }
        }
        // Table III, with direct descriptors.
        let sums = tables.0[4].rows.last().unwrap();
        let near = |at: usize, ns: f64| (sums[at].parse::<f64>().unwrap() - ns).abs() < 5.0;
        assert!(near(1, 910.0) && near(2, 710.0) && near(3, 490.0), "{sums:?}");
    }
}
