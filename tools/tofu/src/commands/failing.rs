//! `tofu node` and `tofu board`: parts of a running machine fail, and are repaired.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_control::protocol::{MachineInfo, NodeInfo, NodeKind, Request};
use tofu_control::{MachineName, ask, find_machine, info, node_number, parse_node, place};
use tofu_ui::table;

/// Make nodes of a running machine fail, or repair them
///
/// The router of a node that is down does not work: all of its links are down, and packets to it or
/// through it are lost, and counted by the last port before it. Commands in flight complete as on a
/// link failure. The node's guest ends with it, unless --keep-guests is given, and boots again when
/// the node is repaired.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum NodeCommand {
    /// Make nodes fail
    Down(NodesArgs),
    /// Repair nodes, and boot their guests if these ended with them or have crashed
    Up(NodesArgs),
}

/// Make boards of a running machine fail, or repair them
///
/// A board is the field-replaceable unit: on the K computer and FX10 the four nodes of a unit with
/// the same B, on FX100 three nodes in a row on Z (ours), on Fugaku the two nodes of a CPU memory
/// unit, which differ in C. Its nodes go down and up together, as with `tofu node`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum BoardCommand {
    /// Make the boards of these nodes fail
    Down(NodesArgs),
    /// Repair the boards of these nodes, and boot guests there that ended with them or have crashed
    Up(NodesArgs),
    /// List the boards, their nodes, and whether they are up
    Ls {
        /// Machine; not needed if only one runs
        #[arg(value_name = "NAME")]
        name: Option<MachineName>,
        /// Only boards with a node that is down
        #[arg(long)]
        down: bool,
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Which nodes.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodesArgs {
    /// Nodes of one machine: indices, coordinates X,Y,Z,A,B,C or names t-X-Y-Z-A-B-C, with MACHINE/
    /// in front if several machines run
    #[arg(value_name = "NODE", required = true)]
    pub(crate) nodes: Vec<String>,

    /// Do not end or boot the guests
    #[arg(long)]
    pub(crate) keep_guests: bool,
}

/// Runs `tofu node` and returns the exit code.
pub(crate) fn node(command: &NodeCommand) -> anyhow::Result<u8> {
    let (args, up) = match command {
        NodeCommand::Down(args) => (args, false),
        NodeCommand::Up(args) => (args, true),
    };
    let (control, machine, nodes) = find(&args.nodes, None)?;
    set(&control, &machine.shape()?, &nodes, up, args.keep_guests)
}

/// Runs `tofu board` and returns the exit code.
pub(crate) fn board(command: &BoardCommand) -> anyhow::Result<u8> {
    let (args, up) = match command {
        BoardCommand::Down(args) => (args, false),
        BoardCommand::Up(args) => (args, true),
        BoardCommand::Ls { name, down, json } => return list(name.as_ref(), *down, *json),
    };
    let (control, machine, nodes) = find(&args.nodes, Some(BY_NODES))?;
    let (shape, lengths) = (machine.shape()?, lengths(&machine));
    let nodes = nodes.into_iter().flat_map(|at| shape.block(at, lengths)).collect();
    set(&control, &shape, &nodes, up, args.keep_guests)
}

const BY_NODES: &str = "a board is named by any of its nodes";

/// Nodes that the user names, and their machine. `why` they are nodes stands before what is wrong
/// with a name.
fn find(
    texts: &[String],
    why: Option<&'static str>,
) -> anyhow::Result<(PathBuf, MachineInfo, BTreeSet<Coords>)> {
    let wrong = |error: anyhow::Error| match why {
        Some(why) => error.context(why),
        None => error,
    };
    let named = texts.iter().map(|text| parse_node(text).map_err(wrong));
    let named = named.collect::<anyhow::Result<Vec<_>>>()?;
    let (first, _) = named.first().context("no node is named")?;
    let (name, control) = find_machine(first.as_ref())?;
    let stranger = named.iter().zip(texts).find(|((machine, _), _)| machine != first);
    if let Some((_, text)) = stranger {
        bail!("node {text}: all nodes of a command are of one machine, here {name}");
    }
    let machine = info(&control)?;
    let shape = machine.shape()?;
    let at = named
        .into_iter()
        .zip(texts)
        .map(|((_, node), text)| place(node, text, &shape).map_err(wrong));
    Ok((control, machine, at.collect::<anyhow::Result<_>>()?))
}

/// Lengths of a board of a machine. Each node of TNW is its own board.
fn lengths(machine: &MachineInfo) -> [u8; 6] {
    machine.generation().map_or([1; 6], |generation| generation.description().board)
}

fn set(
    control: &Path,
    shape: &Shape,
    nodes: &BTreeSet<Coords>,
    up: bool,
    keep: bool,
) -> anyhow::Result<u8> {
    let nodes =
        nodes.iter().map(|at| node_number(shape, *at)).collect::<anyhow::Result<Vec<_>>>()?;
    ask(control, &Request::SetNodes { nodes: nodes.clone(), up, guests: !keep })?;
    if !keep {
        wait(control, &nodes, up)?;
    }
    Ok(0)
}

/// Waits until the guests of nodes have ended, or Linux runs there.
fn wait(control: &Path, nodes: &[u32], up: bool) -> anyhow::Result<()> {
    loop {
        let machine = match info(control) {
            Err(_) if !up && !control.exists() => {
                tofu_ui::tell!(
                    "tofu: the machine has ended, because none of its guests is running"
                );
                return Ok(());
            }
            answer => answer?,
        };
        let nodes = || machine.nodes.iter().filter(|node| nodes.contains(&node.index));
        if nodes().any(|node| is_changing(node, up)) {
            sleep(Duration::from_millis(50));
            continue;
        }
        match nodes().find(|node| up && node.is_linux() && node.state == "off") {
            Some(NodeInfo { name, index, .. }) => {
                bail!("{name} did not come up again; `tofu console {index}` shows why")
            }
            None => return Ok(()),
        }
    }
}

/// Returns true if a node's guest has not ended yet, or is not ready yet.
fn is_changing(node: &NodeInfo, up: bool) -> bool {
    match node.kind {
        NodeKind::Linux if up => matches!(node.state.as_str(), "waiting" | "booting"),
        NodeKind::Linux => node.state != "off",
        NodeKind::Bare => !up && node.state != "ended",
        NodeKind::Served | NodeKind::Gateway => false,
    }
}

fn list(name: Option<&MachineName>, only_down: bool, as_json: bool) -> anyhow::Result<u8> {
    let (_, control) = find_machine(name)?;
    let machine = info(&control)?;
    let (shape, lengths) = (machine.shape()?, lengths(&machine));
    let down = |at: &Coords| {
        let found = machine.nodes.iter().find(|node: &&NodeInfo| node.at == at.to_array());
        found.is_some_and(|node| node.down)
    };
    let mut rows = Vec::new();
    let mut all = Vec::new();
    for first in shape.iter().filter(|at| shape.block(*at, lengths).next() == Some(*at)) {
        let nodes: Vec<_> = shape.block(first, lengths).collect();
        let dead = nodes.iter().filter(|at| down(at)).count();
        if only_down && dead == 0 {
            continue;
        }
        let index = |at: &Coords| shape.node_id(*at).map_or(0, |id| id.0);
        let numbers: Vec<_> = nodes.iter().map(index).collect();
        if as_json {
            all.push(json!({ "first": first.to_array(), "nodes": numbers, "down": dead }));
        } else {
            let state = match dead {
                0 => "up".to_owned(),
                dead if dead == nodes.len() => "down".to_owned(),
                dead => format!("{dead} of {} down", nodes.len()),
            };
            let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
            rows.push(vec![first.to_string(), numbers.join(" "), state]);
        }
    }
    let mut out = io::stdout().lock();
    if as_json {
        writeln!(out, "{}", json!(all))?;
    } else {
        write!(out, "{}", table(&["first node", "nodes", "state"], &[], rows.into_iter()))?;
    }
    out.flush()?;
    Ok(0)
}
