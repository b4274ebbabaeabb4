//! The results of a scenario, as a table, JSON and curves.

use std::fmt::{self, Write as _};

use serde::Serialize;
use tofu_fabric::Scheduler;
use tofu_netmodel::Arbiter;

use crate::plot::{Curves, Line};
use crate::traffic::{Outcome, Spread, Traffic};

/// While the network is not saturated, at least this share of the offered load arrives.
const UNSATURATED: f64 = 0.95;

/// One point of a scenario, and its result.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) size: u64,
    /// Bytes that a link carries while it carries a message.
    pub(super) link_bytes: u64,
    /// The offered payload of each node, unless nodes send as much as they can.
    pub(super) offered_gbytes_per_s: Option<f64>,
    /// The payload of each node of uniform traffic at which a link is full, given the routes.
    pub(super) bound_gbytes_per_s: Option<f64>,
    /// The mean number of links on a message's route, and the mean time of a message that never
    /// waits, if they are known.
    pub(super) mean_hops: Option<f64>,
    pub(super) unloaded_us: Option<f64>,
    /// With the first seed.
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    /// The payload of each node with each of several seeds, in GB/s.
    pub(super) seeds: Option<Spread>,
}

/// The network, with the parameters that other simulators need.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Described {
    nodes: u32,
    link_gbytes_per_s: f64,
    /// From when a frame's header leaves one node until it may leave the next.
    hop_ns: f64,
    cycle_ns: f64,
    /// The unit of credit.
    row_bytes: u8,
    /// Receive queues of a port for requests. There are as many for answers.
    request_channels: u8,
    queue_bytes: u32,
    replay_bytes: u32,
    scheduler: &'static str,
    arbiter: &'static str,
    /// The most messages that a TNI holds.
    backlog: u32,
}

impl Described {
    pub(super) fn new(traffic: &Traffic) -> Self {
        let Traffic { shape, links, options, .. } = traffic;
        let row = u32::from(links.row);
        let rows = |bytes: Option<u32>, all: u32| bytes.unwrap_or(all) / row * row;
        Self {
            nodes: shape.nodes(),
            link_gbytes_per_s: f64::from(links.link_kbytes()) / 1e6,
            hop_ns: links.hop_ps() as f64 / 1e3,
            cycle_ns: links.cycle_ps() as f64 / 1e3,
            row_bytes: links.row,
            request_channels: 2,
            queue_bytes: rows(options.queue_bytes, links.queue_bytes),
            replay_bytes: rows(options.replay_bytes, links.replay_bytes),
            scheduler: match options.scheduler {
                Scheduler::LookAhead => LOOK_AHEAD,
                Scheduler::DateLine => DATE_LINE,
            },
            arbiter: match options.arbiter {
                Arbiter::InTurn => IN_TURN,
                Arbiter::StraightFirst => STRAIGHT_FIRST,
                Arbiter::TransitFirst => TRANSIT_FIRST,
            },
            backlog: options.backlog,
        }
    }
}

pub(super) const LOOK_AHEAD: &str = "look-ahead";
pub(super) const DATE_LINE: &str = "date-line";
pub(super) const IN_TURN: &str = "in-turn";
pub(super) const STRAIGHT_FIRST: &str = "straight-first";
pub(super) const TRANSIT_FIRST: &str = "transit-first";

/// The results of a scenario.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    scenario: String,
    network: Described,
    pub(super) rows: Vec<Row>,
    /// Saturation for each size that was sent at several rates.
    pub(super) saturation: Vec<Saturation>,
    #[serde(skip)]
    title: String,
}

/// The load at which a network saturates, in GB/s of each node.
#[derive(Debug, Serialize)]
pub(super) struct Saturation {
    size: u64,
    /// The lowest offered rate of which less than 95 % arrived.
    pub(super) at_gbytes_per_s: Option<f64>,
    /// The highest rate that arrived.
    most_gbytes_per_s: f64,
    pub(super) bound_gbytes_per_s: Option<f64>,
    /// The mean time of a message that never waits.
    unloaded_us: Option<f64>,
}

impl fmt::Display for Saturation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, .. } = self;
        let (at, most) = (self.at_gbytes_per_s, self.most_gbytes_per_s);
        let bound = self.bound_gbytes_per_s;
        write!(f, "{size} bytes: ")?;
        if let Some(unloaded) = self.unloaded_us {
            write!(f, "{unloaded:.3} us without load; ")?;
        }
        write!(f, "at most {most:.3} GB/s of each node arrive")?;
        if let Some(bound) = bound {
            let part = most / bound * 100.0;
            write!(f, ", {part:.0} % of {bound:.3}, at which a link is full")?;
        }
        match at {
            Some(at) => write!(f, "; saturated at {at:.3}"),
            None => write!(f, "; not saturated"),
        }
    }
}

impl Report {
    pub(super) fn new(scenario: &str, title: &str, network: &Described, rows: Vec<Row>) -> Self {
        let mut report = Self {
            scenario: scenario.to_owned(),
            network: network.clone(),
            rows,
            saturation: Vec::new(),
            title: title.to_owned(),
        };
        let mut sizes: Vec<_> = report.rows.iter().map(|row| row.size).collect();
        sizes.dedup();
        report.saturation = sizes.into_iter().filter_map(|size| report.saturates(size)).collect();
        report
    }

    /// The table, with a line for each point.
    fn table(&self) -> String {
        let number = |value: f64| format!("{value:.2}");
        let rows = self.rows.iter().map(|row| {
            let Row { size, offered_gbytes_per_s, outcome, .. } = row;
            vec![
                size.to_string(),
                offered_gbytes_per_s.map_or_else(|| "all".to_owned(), number),
                format!("{:.3}", outcome.gbytes_per_s),
                number(outcome.mean_us),
                number(outcome.p50_us),
                number(outcome.p99_us),
                number(outcome.max_us),
                outcome.delivered.to_string(),
                outcome.lost.to_string(),
                number(outcome.time_us),
                number(outcome.busiest_gbytes_per_s),
                outcome.hops.to_string(),
                outcome.of_a_node.map_or_else(String::new, |node| node.to_string()),
                row.seeds.map_or_else(String::new, |seeds| seeds.to_string()),
            ]
        });
        let head = [
            "bytes",
            "offered",
            "GB/s",
            "mean us",
            "50 %",
            "99 %",
            "most",
            "messages",
            "lost",
            "in us",
            "link GB/s",
            "hops",
            "slowest / mean / fastest node",
            "least / mean / most of seeds",
        ];
        // The last two are not always known.
        let known = if self.rows.iter().any(|row| row.seeds.is_some()) {
            head.len()
        } else if self.rows.iter().any(|row| row.outcome.of_a_node.is_some()) {
            head.len() - 1
        } else {
            head.len() - 2
        };
        let head = &head[..known];
        let rows = rows.map(|row| row.into_iter().take(known).collect());
        let right: Vec<_> = (0..head.len()).collect();
        tofu_ui::table(head, &right, rows)
    }

    /// Formats the results as a table.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let senders = self.rows.first().map_or(0, |row| row.outcome.senders);
        // Writing to a string cannot fail.
        let Described { link_gbytes_per_s, hop_ns, request_channels, queue_bytes, .. } =
            self.network;
        let _ = writeln!(
            text,
            "{}, {senders} nodes send\n\
             links of {link_gbytes_per_s} GB/s, {hop_ns} ns a hop, {request_channels} queues of \
             {queue_bytes} bytes a port for requests, {} and {}\n",
            self.title, self.network.scheduler, self.network.arbiter
        );
        text += &self.table();
        let wrong: u64 = self.rows.iter().map(|row| row.outcome.lcrc_errors).sum();
        let late: u64 = self.rows.iter().map(|row| row.outcome.ack_timeouts).sum();
        if (wrong, late) != (0, 0) {
            let _ = writeln!(
                text,
                "\nOn links: {wrong} frames with a wrong CRC, {late} acknowledgements too late."
            );
        }
        for saturation in &self.saturation {
            let _ = writeln!(text, "\n{saturation}");
        }
        text
    }

    /// Finds where messages of a size saturate the network, as far as the measured rates show it.
    fn saturates(&self, size: u64) -> Option<Saturation> {
        let rows = self.rows.iter().filter(|row| row.size == size);
        let points: Vec<_> = rows
            .clone()
            .filter_map(|row| Some((row.offered_gbytes_per_s?, row.outcome.gbytes_per_s)))
            .collect();
        let most = points.iter().map(|point| point.1).reduce(f64::max)?;
        let saturates = |(offered, arrived): &&(f64, f64)| *arrived < UNSATURATED * *offered;
        let at = points.iter().filter(saturates).map(|point| point.0).reduce(f64::min);
        Some(Saturation {
            size,
            at_gbytes_per_s: at,
            most_gbytes_per_s: most,
            bound_gbytes_per_s: rows.clone().find_map(|row| row.bound_gbytes_per_s),
            unloaded_us: rows.clone().find_map(|row| row.unloaded_us),
        })
    }

    /// Returns the offered rate, the rate that arrived, both in GB/s of each node, and the mean
    /// latency in microseconds, for each rate.
    #[cfg(test)]
    pub(crate) fn rates(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        self.rows.iter().filter_map(|row| {
            let Outcome { gbytes_per_s, mean_us, .. } = row.outcome;
            Some((row.offered_gbytes_per_s?, gbytes_per_s, mean_us))
        })
    }

    /// Returns throughput and latency by rate if rates vary, or else by size.
    pub(crate) fn curves(&self) -> Vec<Curves> {
        let by_rate = self.rows.iter().any(|row| row.offered_gbytes_per_s.is_some());
        let lines = |y: fn(&Outcome) -> f64| {
            let mut lines: Vec<Line> = Vec::new();
            for row in &self.rows {
                let (name, x) = match row.offered_gbytes_per_s {
                    Some(rate) if by_rate => (format!("{} bytes", row.size), rate),
                    _ => (self.scenario.clone(), row.size.max(1) as f64),
                };
                let point = (x, y(&row.outcome));
                match lines.iter_mut().find(|line| line.name == name) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Line { name, points: vec![point] }),
                }
            }
            lines
        };
        let x = if by_rate { "GB/s of each node" } else { "bytes" };
        let curves = |title: &str, y: &'static str, lines| Curves {
            title: format!("{}: {title}", self.title),
            y,
            x,
            lines,
        };
        vec![
            curves("throughput of a node", "GB/s", lines(|outcome| outcome.gbytes_per_s)),
            curves("mean latency", "us", lines(|outcome| outcome.mean_us)),
        ]
    }
}
