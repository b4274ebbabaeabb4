//! Scenario files of TNW: all nodes of a torus send over the same links.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tofu_abi::Coords;
use tofu_abi::tnw::Link;
use tofu_fabric::{Ppm, Shape};
use tofu_ui::TomlFile;
use toml::Spanned;

use super::exchange::{Exchange, Scheme};
use crate::plot::{Curves, Line};
use crate::scenario::{OneOrMore, within};

/// The value of `generation` in these files.
const GENERATION: &str = "tnw";
const MOST_NODES: u32 = 64;
const MOST_BYTES: u64 = 1 << 20;
const MOST_MESSAGES: u64 = 1000;

#[derive(Deserialize)]
struct Peek {
    generation: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    shape: Spanned<String>,
    #[expect(dead_code, reason = "it is why the file is read here")]
    generation: String,
    send: Spanned<String>,
    links: Spanned<OneOrMore<String>>,
    size: Spanned<OneOrMore<i64>>,
    count: Spanned<i64>,
    errors: Option<Spanned<i64>>,
    seed: Option<u64>,
}

/// A scenario with all of its sizes.
pub(crate) struct Scenario {
    name: String,
    title: String,
    links: usize,
    points: Vec<Exchange>,
}

/// A size, with its result.
#[derive(Debug, Serialize)]
struct Row {
    size: usize,
    /// The time from one message's start to the next.
    message_us: f64,
    link_gbytes_per_s: f64,
    /// The total of all links that a node sends over.
    node_gbytes_per_s: f64,
    /// Packets that were resent.
    resent: u64,
    time_us: f64,
}

/// The results of a scenario.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    scenario: String,
    rows: Vec<Row>,
    #[serde(skip)]
    title: String,
}

/// Returns whether a scenario is one of TNW.
pub(crate) fn is_of_tnw(text: &str) -> bool {
    let peek = toml::from_str::<Peek>(text);
    peek.is_ok_and(|peek| peek.generation.as_deref() == Some(GENERATION))
}

impl Scenario {
    pub(crate) fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let file = TomlFile::new(Path::new(name), text);
        let raw: Raw = file.parse()?;
        let shape = raw.shape.get_ref().parse::<Shape>().ok();
        let shape = shape.filter(|shape| {
            let [_, _, _, a, b, c] = shape.lengths();
            (a, b, c) == (1, 1, 1) && shape.nodes() <= MOST_NODES
        });
        let shape = shape.with_context(|| {
            let allowed = format!("three lengths such as \"4x2x2\", {MOST_NODES} nodes at most");
            file.value_error("shape", &raw.shape, allowed)
        })?;
        let scheme = Scheme::ALL.iter().find(|(name, _)| name == raw.send.get_ref());
        let (_, scheme) = *scheme.with_context(|| {
            let allowed = "\"pput\", \"pput-flushed\" or \"nget\"";
            file.value_error("send", &raw.send, allowed)
        })?;
        let leads = |link: &Link| shape.neighbor(Coords::default(), link.port()).is_some();
        let known: Vec<Link> = Link::ALL.into_iter().filter(leads).collect();
        let mut links: Vec<Link> = Vec::new();
        for name in raw.links.get_ref().all() {
            let link = known.iter().find(|link| link.port().to_string() == *name);
            if let Some(link) = link.filter(|link| !links.contains(link)) {
                links.push(*link);
                continue;
            }
            let known: Vec<_> = known.iter().map(|link| format!("\"{}\"", link.port())).collect();
            let allowed = format!("some of {}, each once", known.join(", "));
            return Err(file.value_error("links", &raw.links, allowed).into());
        }
        let sizes = raw.size.get_ref().all().iter();
        let sizes = sizes.map(|size| Some(within(*size, 1..=MOST_BYTES).ok()? as usize));
        let sizes = sizes.collect::<Option<Vec<_>>>().filter(|sizes| !sizes.is_empty());
        let sizes = sizes.with_context(|| {
            let allowed = format!("1 to {MOST_BYTES} bytes, or a list of such");
            file.value_error("size", &raw.size, allowed)
        })?;
        let count = within(*raw.count.get_ref(), 1..=MOST_MESSAGES)
            .map_err(|allowed| file.value_error("count", &raw.count, allowed))?
            as u32;
        let errors = file.checked("errors", &raw.errors, |parts| {
            let parts = within(*parts, 0..=100_000)?;
            Ppm::new(parts as u32).ok_or_else(String::new)
        })?;
        let nodes = shape.iter().flat_map(|coords| links.iter().map(move |link| (coords, *link)));
        let exchange = Exchange {
            shape,
            programs: nodes.collect(),
            scheme,
            size: 0,
            count,
            errors: errors.unwrap_or_default(),
            seed: raw.seed.unwrap_or(1),
        };
        let points = sizes.into_iter().map(|size| Exchange { size, ..exchange.clone() }).collect();
        let names: Vec<_> = links.iter().map(|link| link.port().to_string()).collect();
        let title = format!("{scheme} over {} on {} (TNW)", names.join(", "), raw.shape.get_ref());
        Ok(Self { name: name.to_owned(), title, links: links.len(), points })
    }

    /// Runs every size.
    pub(crate) fn run(&self) -> anyhow::Result<Report> {
        let rows = self.points.iter().map(|exchange| {
            let outcome = exchange.run().with_context(|| self.name.clone())?;
            let rate = outcome.bytes_per_s / 1e9;
            Ok(Row {
                size: exchange.size,
                message_us: outcome.message_ps / 1e6,
                link_gbytes_per_s: rate,
                node_gbytes_per_s: rate * self.links as f64,
                resent: outcome.resent,
                time_us: outcome.time_ps as f64 / 1e6,
            })
        });
        let rows = rows.collect::<anyhow::Result<_>>()?;
        Ok(Report { scenario: self.name.clone(), rows, title: self.title.clone() })
    }
}

impl Report {
    /// Formats the results as a table.
    pub(crate) fn text(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            vec![
                row.size.to_string(),
                format!("{:.3}", row.message_us),
                format!("{:.3}", row.link_gbytes_per_s),
                format!("{:.3}", row.node_gbytes_per_s),
                row.resent.to_string(),
                format!("{:.2}", row.time_us),
            ]
        });
        let head = ["bytes", "message us", "link GB/s", "node GB/s", "sent again", "in us"];
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}\n", self.title);
        text + &tofu_ui::table(&head, &[0, 1, 2, 3, 4, 5], rows)
    }

    /// Returns bandwidth and time by size.
    pub(crate) fn curves(&self) -> Vec<Curves> {
        let curves = |what: &str, y, of: fn(&Row) -> f64| {
            let points = self.rows.iter().map(|row| (row.size as f64, of(row))).collect();
            Curves {
                title: format!("{}: {what}", self.title),
                y,
                x: "bytes",
                lines: vec![Line { name: self.scenario.clone(), points }],
            }
        };
        vec![
            curves("bandwidth of a node", "GB/s", |row| row.node_gbytes_per_s),
            curves("a message", "us", |row| row.message_us),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: &str = include_str!("../../scenarios/tnw.toml");

    #[test]
    fn shipped_scenario_has_table_and_curves() {
        assert!(is_of_tnw(SHIPPED));
        let report = Scenario::parse("tnw", SHIPPED).unwrap().run().unwrap();
        let text = report.text();
        assert!(text.starts_with("Pput, flushed by software over X+, Y+, Z+ on 2x2x2"), "{text}");
        let last = report.rows.last().unwrap();
        assert!((1.42..1.58).contains(&last.node_gbytes_per_s), "{text}");
        assert_eq!(report.curves()[0].lines[0].points.len(), report.rows.len());
        assert!(serde_json::to_string(&report).unwrap().contains("node_gbytes_per_s"));
    }

    #[test]
    fn both_directions_of_a_link_can_be_used() {
        let text = "generation = \"tnw\"\nshape = \"3x1x1\"\nsend = \"nget\"\nsize = 5000\n\
                    links = [\"X+\", \"X-\"]\ncount = 3\nerrors = 5000";
        let report = Scenario::parse("test", text).unwrap().run().unwrap();
        assert!(report.rows[0].node_gbytes_per_s > 0.5, "{}", report.text());
    }

    /// Six links have 5.46 GB/s together, and one interface of PCI Express has 3.2.
    #[test]
    fn six_links_use_both_pci_interfaces() {
        for send in ["pput", "nget"] {
            let text = format!(
                "generation = \"tnw\"\nshape = \"3x3x3\"\nsend = \"{send}\"\nsize = 65536\n\
                 links = [\"X+\", \"X-\", \"Y+\", \"Y-\", \"Z+\", \"Z-\"]\ncount = 3"
            );
            let report = Scenario::parse("test", &text).unwrap().run().unwrap();
            let rate = report.rows[0].node_gbytes_per_s;
            assert!((4.0..5.46).contains(&rate), "{}", report.text());
        }
    }

    #[test]
    fn bad_values_name_the_allowed_ones() {
        let changed = [
            ("\"2x2x2\"", "\"9x9x9\"", "s.toml:4: shape = \"9x9x9\" is not allowed; shape is"),
            ("\"2x2x2\"", "\"2x1x1x2x1x1\"", "s.toml:4: shape = \"2x1x1x2x1x1\" is not allowed"),
            ("\"pput-flushed\"", "\"put\"", "s.toml:5: send = \"put\" is not allowed; send is \"p"),
            ("\"Y+\"", "\"A\"", "is not allowed; links is some of \"X-\", \"X+\", \"Y-\""),
            ("\"Y+\"", "\"X+\"", "each once"),
            ("size = [128,", "size = [0,", "is not allowed; size is 1 to 1048576 bytes"),
            ("count = 2", "count = 0", "s.toml:8: count = 0 is not allowed; count is 1 to 1000"),
            ("count = 2", "count = 2\nerrors = -1", "s.toml:9: errors = -1 is not allowed"),
            ("count = 2", "count = 2\nrate = 1", "s.toml:9: rate = 1: unknown field `rate`"),
        ];
        for (from, to, expected) in changed {
            let text = SHIPPED.replacen(from, to, 1);
            let error = Scenario::parse("s.toml", &text).err();
            let error = error.unwrap_or_else(|| panic!("{to} is allowed")).to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{to}: {error}");
        }
    }
}
