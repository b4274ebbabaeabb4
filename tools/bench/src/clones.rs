//! Linux nodes that are clones, against nodes that boot: how long both take to be ready, and the
//! time of the host's processors.

use std::fmt;

use anyhow::Context;
use serde::Serialize;
use tofu_linux_nodes::lan::Ethernet;
use tofu_spec::MachineSpec;
use tofu_spec::units::Driver;

use crate::linux::{Lab, SHAPE, Say, load, load_since, processor_s};
use crate::machine::empty;

/// Medians are of this many machines.
const RUNS: usize = 5;

/// All results.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Clones {
    /// The host's load average of one minute, before and after.
    load: Option<[f64; 2]>,
    rows: Vec<Start>,
}

/// Machines of clones and machines whose nodes boot, started by turns.
#[derive(Debug, Serialize)]
struct Start {
    nodes: u32,
    clones_s: f64,
    boots_s: f64,
    /// Time of the host's processors until all nodes are ready, for each node.
    clones_processor_s: f64,
    boots_processor_s: f64,
    /// The factor by which clones are ready sooner.
    times: f64,
}

impl Start {
    fn header() -> String {
        format!(
            "{:>5} {:>9} {:>9} {:>7} {:>26}",
            "nodes", "clones", "booted", "times", "processor seconds a node"
        )
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, clones_s, boots_s, clones_processor_s, boots_processor_s, times } = self;
        let processors = format!("{clones_processor_s:.2} and {boots_processor_s:.2}");
        write!(f, "{nodes:>5} {clones_s:>7.2} s {boots_s:>7.2} s {times:>7.1} {processors:>26}")
    }
}

/// Starts a machine. Returns the seconds until all nodes are ready, and those of processors.
fn start(shape: &str, cold: bool) -> anyhow::Result<[f64; 2]> {
    let spec = MachineSpec {
        linux: Some(true),
        driver: Some(Driver::Vfio),
        cold: Some(cold),
        ..empty(shape)?
    };
    let before = processor_s().context("/proc has no times of processors")?;
    let lab = Lab::start(&spec, Ethernet::None)?;
    let after = processor_s().context("/proc has no times of processors")?;
    Ok([lab.ready.as_secs_f64(), after - before])
}

/// Runs the benchmark.
pub(crate) fn measure(quick: bool, say: &mut Say<'_>) -> anyhow::Result<Clones> {
    let before = load();
    say(&Start::header())?;
    let (runs, shapes) =
        if quick { (1, &[(2, SHAPE)][..]) } else { (RUNS, &[(2, SHAPE), (12, "unit")][..]) };
    // The first use makes the template, and the image if there is none.
    start(SHAPE, false)?;
    let mut rows = Vec::new();
    for (nodes, shape) in shapes {
        let mut measured: [Vec<[f64; 2]>; 2] = [Vec::new(), Vec::new()];
        for _ in 0..runs {
            for (cold, measured) in [false, true].into_iter().zip(&mut measured) {
                measured.push(start(shape, cold)?);
            }
        }
        let middle = |runs: &[[f64; 2]], which: usize| {
            let mut values: Vec<f64> = runs.iter().map(|run| run[which]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let [clones, boots] = &measured;
        let (clones_s, boots_s) = (middle(clones, 0), middle(boots, 0));
        let row = Start {
            nodes: *nodes,
            clones_s,
            boots_s,
            clones_processor_s: middle(clones, 1) / f64::from(*nodes),
            boots_processor_s: middle(boots, 1) / f64::from(*nodes),
            times: boots_s / clones_s,
        };
        say(&row)?;
        rows.push(row);
    }
    Ok(Clones { load: load_since(before, say)?, rows })
}
