//! The data of the page: the machine's structure, and frames of the activity of its nodes and
//! links.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tofu_control::protocol::{JobInfo, LinkEnd, MachineInfo};
use tofu_control::rates::{Look, NodeSample, modelled_ns, seconds_between};
use tofu_fabric::{Link, Shape};

/// The format that the first line of a file gives.
const FORMAT: &str = "tofu film 1";
/// Longest line of a file, in bytes: a frame of a machine of 27,648 nodes has less.
const LONGEST: usize = 16 << 20;
/// Largest file.
const LARGEST: u64 = 2 << 30;

/// A machine as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Stage {
    format: String,
    /// Its name.
    pub(super) machine: String,
    pub(super) shape: String,
    pub(super) torus: [bool; 3],
    #[serde(default)]
    pub(super) io_nodes: bool,
    pub(super) generation: String,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Frame {
    /// Since the machine's start.
    pub(super) seconds: f64,
    /// Its modelled time, in seconds, if it has that. Rates are per second of it then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) modelled: Option<f64>,
    pub(super) nodes: Vec<Seen>,
    /// Links that are in use: their numbers, and bytes a second there and back.
    pub(super) loads: Vec<(u32, f64, f64)>,
    /// Numbers of links that are down.
    pub(super) down: Vec<u32>,
    pub(super) jobs: Vec<JobInfo>,
}

/// A node at one look.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) state: String,
    /// In a second: commands, bytes sent, bytes received, errors.
    pub(super) rates: [f64; 4],
    /// Commands that wait for answers.
    pub(super) waiting: u64,
}

/// The links of a machine, by their ends.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) all: Vec<Link>,
    /// By node and name of its port: the number of the link, and whether this is its second end.
    by_end: HashMap<(u32, String), (u32, bool)>,
}

/// A machine, and frames of it.
#[derive(Debug)]
pub(super) struct Film {
    pub(super) stage: Stage,
    pub(super) shape: Shape,
    pub(super) links: Links,
    /// Each as JSON.
    pub(super) frames: Vec<String>,
}

impl Links {
    fn new(shape: &Shape) -> Self {
        let all: Vec<_> = Link::all(shape).collect();
        let mut by_end = HashMap::with_capacity(2 * all.len());
        for (number, link) in (0..).zip(&all) {
            let ends = [(link.from, link.port, false), (link.to, link.port.opposite(), true)];
            for (at, port, second) in ends {
                if let Some(id) = shape.node_id(at) {
                    by_end.insert((id.0, port.to_string()), (number, second));
                }
            }
        }
        Self { all, by_end }
    }

    /// The number of the link at this port of a node.
    pub(super) fn number(&self, node: u32, port: &str) -> Option<u32> {
        Some(self.by_end.get(&(node, port.to_owned()))?.0)
    }

    fn loads(&self, nodes: &[NodeSample], seconds: f64) -> Vec<(u32, f64, f64)> {
        let mut loads: HashMap<u32, [f64; 2]> = HashMap::new();
        for node in nodes {
            for (port, bytes) in node.ports(seconds) {
                if let Some((number, second)) = self.by_end.get(&(node.index, port)) {
                    loads.entry(*number).or_default()[usize::from(*second)] += bytes;
                }
            }
        }
        let mut loads: Vec<_> =
            loads.into_iter().map(|(n, [there, back])| (n, there, back)).collect();
        loads.sort_by_key(|(number, ..)| *number);
        loads
    }
}

impl Frame {
    /// The activity between two readings, with the links that are down.
    pub(super) fn new(links: &Links, down: &[LinkEnd], before: &Look, now: &Look) -> Self {
        let seconds = seconds_between((before.at, &before.nodes), (now.at, &now.nodes));
        let old: HashMap<_, _> = before.nodes.iter().map(|node| (node.index, node)).collect();
        let nodes = now.nodes.iter().map(|node| node.since(old.get(&node.index).copied()));
        let nodes: Vec<_> = nodes.collect();
        // Both are of the same reading, in the same order.
        let seen = nodes.iter().zip(&now.machine.nodes).map(|(node, info)| {
            let rates = node.rates(seconds);
            Seen {
                index: node.index,
                name: node.name.clone(),
                kind: info.kind.to_string(),
                state: node.state.clone(),
                rates: [rates.commands, rates.sent, rates.received, rates.errors],
                waiting: rates.waiting,
            }
        });
        let down = down.iter().filter_map(|end| links.number(end.node, &end.port));
        Self {
            seconds: now.machine.seconds,
            modelled: modelled_ns(&now.nodes).map(|ns| ns as f64 / 1e9),
            loads: links.loads(&nodes, seconds),
            down: down.collect(),
            jobs: now.machine.jobs.clone(),
            nodes: seen.collect(),
        }
    }
}

impl Film {
    /// A film of a machine that has been read, without any frame.
    pub(super) fn new(name: &str, look: &Look) -> anyhow::Result<Self> {
        let MachineInfo { shape, torus, io_nodes, generation, .. } = &look.machine;
        Self::of(Stage {
            format: FORMAT.to_owned(),
            machine: name.to_owned(),
            shape: shape.clone(),
            torus: *torus,
            io_nodes: *io_nodes,
            generation: generation.clone().unwrap_or_default(),
        })
    }

    fn of(stage: Stage) -> anyhow::Result<Self> {
        let shape: Shape = stage.shape.parse()?;
        let shape = shape.with_torus(stage.torus).with_io_nodes(stage.io_nodes);
        Ok(Self { links: Links::new(&shape), shape, stage, frames: Vec::new() })
    }

    /// Reads a recorder's file.
    ///
    /// # Errors
    ///
    /// If it is another kind of file, with the file and the line.
    pub(super) fn read(file: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot read {}", file.display());
        let mut lines = BufReader::new(tofu_input::open(file, LARGEST).with_context(cannot)?);
        let mut film: Option<Self> = None;
        for number in 1.. {
            let mut line = Vec::new();
            if lines.read_until(b'\n', &mut line).with_context(cannot)? == 0 {
                break;
            }
            // A recorder that was killed may have left half a line.
            if line.last() != Some(&b'\n') {
                break;
            }
            let wrong = || format!("{}, line {number}: not what --record writes", file.display());
            ensure!(line.len() <= LONGEST, wrong());
            match &mut film {
                None => {
                    let stage: Stage = serde_json::from_slice(&line).with_context(wrong)?;
                    if stage.format != FORMAT {
                        bail!("{}: {:?} is not {FORMAT:?}", file.display(), stage.format);
                    }
                    film = Some(Self::of(stage).with_context(wrong)?);
                }
                Some(film) => {
                    let frame: Frame = serde_json::from_slice(&line).with_context(wrong)?;
                    film.frames.push(serde_json::to_string(&frame)?);
                }
            }
        }
        let film = film.with_context(|| format!("{} is empty", file.display()))?;
        ensure!(!film.frames.is_empty(), "{} has no frame", file.display());
        Ok(film)
    }
}

/// Writes a film as it is seen.
#[derive(Debug)]
pub(super) struct Recorder {
    file: File,
    name: String,
}

impl Recorder {
    /// Begins a file.
    pub(super) fn new(file: &Path, film: &Film) -> anyhow::Result<Self> {
        let name = file.display().to_string();
        let file = File::create(file).with_context(|| format!("cannot write {name}"))?;
        let mut recorder = Self { file, name };
        recorder.write(&serde_json::to_string(&film.stage)?)?;
        Ok(recorder)
    }

    /// Adds a line.
    pub(super) fn write(&mut self, line: &str) -> anyhow::Result<()> {
        let line = format!("{line}\n");
        self.file.write_all(line.as_bytes()).with_context(|| format!("cannot write {}", self.name))
    }
}
