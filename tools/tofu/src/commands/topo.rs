//! `tofu topo`: a machine's nodes and links as text, JSON or a picture.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use tofu_abi::Coords;
use tofu_abi::generation::Description;
use tofu_control::protocol::JobInfo;
use tofu_fabric::{Axis, Link, Port, Shape};
use tofu_machine::{Capacity, Generation};
use tofu_spec::plan::Network;
use tofu_spec::units::generation;

use crate::commands::running::{Described, MachineOrShape};
use crate::commands::svg;

/// Show a machine's nodes and links as text or as a picture
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopoArgs {
    #[command(flatten)]
    pub(crate) machine: MachineOrShape,

    /// Generation of the links, which determines their bandwidth: k, fx10, fx100 or fugaku
    ///
    /// [default: that of the machine file, or k for the shapes k and k-racks, or fugaku]
    #[arg(long, value_name = "GENERATION", value_parser = generation)]
    pub(crate) generation: Option<Generation>,

    /// Write a picture of the 6D box to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Print the machine as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tofu topo
  tofu topo --shape half-rack --svg half-rack.svg
  tofu topo --shape k
      the K computer, and what its links can carry
  tofu topo --shape k-racks
      two racks of it, with their I/O nodes
  tofu topo --machine
      the machine that runs, with the links that are down now, and its jobs
  tofu topo -c machine.toml --json";

/// Columns for whether a node is an I/O node.
const KIND: usize = 7;
/// Columns for the numbers of jobs.
const JOBS: usize = 5;
/// Up to this many nodes are listed one by one: two racks of the K computer.
const LISTED_NODES: u32 = 204;

impl TopoArgs {
    /// The machine's properties, with the requested generation.
    fn described(&self) -> anyhow::Result<Described> {
        self.machine.describe(self.generation)
    }
}

/// Runs `tofu topo`.
pub(crate) fn run(args: &TopoArgs) -> anyhow::Result<u8> {
    let machine = args.described()?;
    let network = &machine.network;
    let capacity = machine.generation.map(|of| (of, Capacity::of(of, &network.shape)));
    let mut out = io::stdout().lock();
    if let Some(path) = &args.svg {
        let picture = svg::draw(network, &machine.jobs)?;
        std::fs::write(path, picture)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        writeln!(out, "{}", to_json(&machine, capacity))?;
    } else if let Some(path) = &args.svg {
        writeln!(out, "{}", network.summary())?;
        writeln!(out, "picture: {}", path.display())?;
    } else {
        out.write_all(text(&machine, capacity, args.machine.runs()).as_bytes())?;
    }
    out.flush()?;
    Ok(0)
}

/// The topology of an axis.
fn closing(network: &Network, axis: Axis) -> &'static str {
    match (network.shape.len(axis), network.shape.wraps(axis)) {
        (1, _) => "no links",
        (2, true) => "torus, two links",
        (_, true) => "torus",
        (_, false) => "mesh",
    }
}

/// The capacity of the links, in one line.
fn carried(generation: Generation, capacity: &Capacity) -> String {
    let rate = |bytes: u64| {
        let units = [(1e15, "PB/s"), (1e12, "TB/s"), (1e9, "GB/s")];
        let fits = units.into_iter().find(|(unit, _)| bytes as f64 >= *unit);
        let (unit, name) = fits.unwrap_or((1e9, "GB/s"));
        format!("{:.2} {name}", bytes as f64 / unit)
    };
    let Capacity { injection, bisection, optical } = *capacity;
    format!(
        "{}: injection {}, bisection {}, optical links {:.0} %",
        generation.description().interconnect,
        rate(injection),
        rate(bisection),
        optical * 100.0
    )
}

/// The packages of boards, with the nodes of each.
fn packages(generation: Generation) -> impl Iterator<Item = (&'static str, [u8; 6])> {
    let Description { shelf, electric_block, .. } = *generation.description();
    let outer = if shelf.is_some() { "half racks" } else { "chassis" };
    let shelves = shelf.map(|shelf| ("shelves", shelf));
    shelves.into_iter().chain(electric_block.map(|block| (outer, block)))
}

/// The name of the package that a node is in (*ours*): the place of its half rack on X, Y and Z,
/// and behind a slash that of its shelf there; or the place of its chassis on X, Y, Z and B.
fn package(generation: Generation, at: Coords) -> Option<String> {
    let Description { shelf, electric_block, .. } = *generation.description();
    let block = electric_block?;
    let [x, y, z, _, b, _] = Description::block_of(at, block);
    let Some(shelf) = shelf else { return Some(format!("{x}-{y}-{z}-{b}")) };
    let [sx, sy, ..] = Description::block_of(at, shelf);
    let within = |place: u8, axis: usize| place % (block[axis] / shelf[axis]).max(1);
    Some(format!("{x}-{y}-{z}/{}", within(sx, 0) + 2 * within(sy, 1)))
}

/// The processor of each node.
fn cores(generation: Generation) -> String {
    let Description { cores, groups, tnis, .. } = *generation.description();
    let far = match groups.far {
        0 => String::new(),
        far => format!(", {far} of them far from the TNIs"),
    };
    let all = groups.near + groups.far;
    let groups = if all == 1 { "memory group (CMG)" } else { "memory groups (CMGs)" };
    format!("each node: {cores} cores in {all} {groups}{far}; {tnis} TNIs")
}

/// The boards of a machine, unless they are cut short, and the racks if the papers describe them.
fn built(generation: Generation, shape: &Shape) -> String {
    let lengths = generation.description().board;
    let nodes: u32 = lengths.into_iter().map(u32::from).product();
    let boards = Axis::ALL.map(|axis| u32::from(shape.len(axis).div_ceil(lengths[axis.index()])));
    let boards: u32 = boards.iter().product();
    let mut line = format!("boards of up to {nodes} nodes: {boards}");
    for (name, block) in packages(generation) {
        let blocks: BTreeSet<_> = shape.iter().map(|at| Description::block_of(at, block)).collect();
        let _ = write!(line, "; {name}: {}", blocks.len());
    }
    // Two racks have 17 units on Z, and X and Y join racks: IEEE Micro.
    if shape.has_io_nodes() && shape.lengths()[2..] == Shape::K_RACKS.lengths()[2..] {
        let _ =
            write!(line, "; racks: {}", 2 * shape.len(Axis::X) as u32 * shape.len(Axis::Y) as u32);
    }
    line
}

/// The header of the table of nodes.
fn header(
    machine: &Described,
    ports: &[Port],
    (width, column): (usize, usize),
    package: Option<&str>,
) -> String {
    let mut text = format!("\nnode  {:width$}", "coordinates");
    if machine.network.shape.has_io_nodes() {
        let _ = write!(text, "  {:KIND$}", "kind");
    }
    if !machine.jobs.is_empty() {
        let _ = write!(text, "  {:JOBS$}", "job");
    }
    for port in ports {
        let _ = write!(text, "  {:column$}", port.to_string());
    }
    let _ = write!(text, "  {}", package.unwrap_or_default());
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn text(machine: &Described, capacity: Option<(Generation, Capacity)>, runs: bool) -> String {
    let network = &machine.network;
    let shape = &network.shape;
    // Writing to a String cannot fail.
    let mut text = network.summary() + "\n";
    if let Some((generation, capacity)) = &capacity {
        let _ = writeln!(text, "{}", carried(*generation, capacity));
        let _ = writeln!(text, "{}", built(*generation, shape));
        let _ = writeln!(text, "{}", cores(*generation));
    }
    text += "\naxis  length\n";
    for axis in Axis::ALL {
        let _ = writeln!(
            text,
            "{:4}  {:>6}  {}",
            axis.to_string(),
            shape.len(axis),
            closing(network, axis)
        );
    }
    if shape.nodes() > LISTED_NODES {
        let _ = writeln!(text, "\nMachines of up to {LISTED_NODES} nodes are listed node by node.");
        return text;
    }
    // Ports that no node has get no column.
    let used = |port: &Port| shape.iter().any(|at| shape.neighbor(at, *port).is_some());
    let ports: Vec<Port> = Port::ALL.into_iter().filter(used).collect();
    let width = shape.iter().map(|at| at.to_string().len()).max().unwrap_or(0);
    let column = width.max(6) + 1;
    let generation = capacity.as_ref().map(|(generation, _)| *generation);
    let innermost = generation.and_then(|of| packages(of).next());
    let kind = innermost.map(|(name, _)| if name == "shelves" { "shelf" } else { "chassis" });
    text += &header(machine, &ports, (width, column), kind);
    for (id, at) in (0..).zip(shape.iter()) {
        let mut row = format!("{id:>4}  {:pad$}", at.to_string(), pad = width.max(11));
        if shape.has_io_nodes() {
            let kind = if shape.is_io_node(at) { "I/O" } else { "compute" };
            let _ = write!(row, "  {kind:KIND$}");
        }
        if !machine.jobs.is_empty() {
            let _ = write!(row, "  {:JOBS$}", JobInfo::numbers(&machine.jobs, id));
        }
        for port in &ports {
            let cell = match shape.neighbor(at, *port) {
                None => "-".to_owned(),
                Some(to) if network.is_down(at, *port) => format!("{to}!"),
                Some(to) => to.to_string(),
            };
            let _ = write!(row, "  {cell:column$}");
        }
        let package = generation.and_then(|of| package(of, at));
        let _ = write!(row, "  {}", package.unwrap_or_default());
        text.push_str(row.trim_end());
        text.push('\n');
    }
    if !network.links_down.is_empty() {
        let state = if runs { "is" } else { "starts" };
        let _ = writeln!(text, "\n! this link {state} down");
    }
    text
}

fn to_json(machine: &Described, capacity: Option<(Generation, Capacity)>) -> serde_json::Value {
    let network = &machine.network;
    let shape = &network.shape;
    let coords = |at: Coords| json!(at.to_array());
    let axes: serde_json::Map<_, _> = Axis::ALL
        .into_iter()
        .map(|axis| {
            let described = json!({ "length": shape.len(axis), "torus": shape.wraps(axis) });
            (axis.to_string(), described)
        })
        .collect();
    let links: Vec<_> = Link::all(shape)
        .map(|link| {
            json!({
                "from": coords(link.from), "port": link.port.to_string(), "to": coords(link.to),
                "wrap": link.wrap, "down": network.is_down(link.from, link.port),
            })
        })
        .collect();
    let capacity = capacity.map(|(generation, capacity)| {
        json!({
            "generation": generation.name(), "injection_bytes_per_s": capacity.injection,
            "bisection_bytes_per_s": capacity.bisection, "optical": capacity.optical,
            "board": generation.description().board,
            "shelf": generation.description().shelf,
            "electric_block": generation.description().electric_block,
            "cores": generation.description().cores,
            "memory_groups": {
                "near": generation.description().groups.near,
                "far": generation.description().groups.far,
            },
        })
    });
    json!({
        "shape": shape.to_string(), "nodes": shape.nodes(), "axes": axes, "links": links,
        "io_nodes": shape.io_nodes().map(coords).collect::<Vec<_>>(),
        "capacity": capacity, "jobs": machine.jobs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use tofu_control::protocol::JobState;

    fn described(network: Network) -> Described {
        Described { network, generation: None, jobs: Vec::new() }
    }

    fn machine(shape: &str) -> Described {
        let shape = shape.parse().unwrap();
        described(Network {
            shape,
            links_down: [(Coords::default(), Port::BPlus)].into(),
            shard: None,
        })
    }

    #[test]
    fn jobs_have_a_column() {
        let job = |job, nodes: &[u32]| JobInfo {
            job,
            command: "ring".into(),
            pid: None,
            state: JobState::Running,
            shape: None,
            alone: false,
            nodes: nodes.to_vec(),
            seconds: 0.0,
        };
        let mut machine = machine("unit");
        machine.jobs = vec![job(3, &[0, 1]), job(12, &[1])];
        let text = text(&machine, None, true);
        let rows: Vec<Vec<_>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[10][2..4], ["job", "A"]);
        assert_eq!((rows[11][2], &rows[12][2..4], rows[13][2]), ("3", &["3", "12"][..], "-"));
        assert_eq!(to_json(&machine, None)["jobs"][1]["nodes"], json!([1]));
    }

    #[test]
    fn unit_is_described_in_words() {
        let text = text(&machine("unit"), None, false);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "machine 1x1x1x2x3x2: 12 nodes, 24 links, 1 down");
        assert_eq!(lines[3], "X          1  no links");
        assert_eq!(lines[6], "A          2  mesh");
        assert_eq!(lines[7], "B          3  torus");
        let row = lines.iter().find(|line| line.contains("   0  (0,0,0,0,0,0)")).unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        let expected = [
            "0",
            "(0,0,0,0,0,0)",
            "(0,0,0,1,0,0)",
            "(0,0,0,0,0,1)",
            "(0,0,0,0,2,0)",
            "(0,0,0,0,1,0)!",
        ];
        assert_eq!(cells, expected);
        assert_eq!(lines.len(), 9 + 2 + 12 + 2);
    }

    #[test]
    fn packages_have_names() {
        let at = |x, y, z, b| Coords::new(x, y, z, 0, b, 0);
        let of = |generation, at| package(generation, at).unwrap();
        assert_eq!(of(Generation::Fugaku, at(0, 0, 0, 0)), "0-0-0/0");
        assert_eq!(of(Generation::Fugaku, at(3, 2, 4, 2)), "1-1-1/1");
        assert_eq!(of(Generation::Fugaku, at(1, 1, 3, 0)), "0-0-0/3");
        assert_eq!(of(Generation::Fx100, at(1, 0, 5, 2)), "1-0-1-2");
        assert_eq!(package(Generation::K, at(0, 0, 0, 0)), None);
        let unit = machine("unit");
        let capacity = Capacity::of(Generation::Fugaku, &unit.network.shape);
        let text = text(&unit, Some((Generation::Fugaku, capacity)), false);
        let line = "each node: 48 cores in 4 memory groups (CMGs), 2 of them far from the TNIs; \
                     6 TNIs";
        assert!(text.lines().any(|found| found == line), "{text}");
        assert_eq!(text.lines().filter(|line| line.ends_with("  0-0-0/0")).count(), 12, "{text}");
        assert_eq!(cores(Generation::K), "each node: 8 cores in 1 memory group (CMG); 4 TNIs");
    }

    #[test]
    fn large_machines_are_not_listed() {
        let text = text(&machine("4x4x4x2x3x2"), None, false);
        assert!(text.lines().count() < 12);
    }

    #[test]
    fn io_nodes_boards_and_racks_are_marked() {
        let machine = machine("k-racks");
        let capacity = Capacity::of(Generation::K, &machine.network.shape);
        let text = text(&machine, Some((Generation::K, capacity)), false);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "machine 1x1x17x2x3x2: 204 nodes, 612 links, 1 down, 12 I/O nodes");
        assert_eq!(lines[2], "boards of up to 4 nodes: 51; racks: 2");
        let kinds = |kind: &str| {
            let of = |line: &&&str| line.split_whitespace().nth(2) == Some(kind);
            lines.iter().filter(of).count()
        };
        assert_eq!((kinds("I/O"), kinds("compute")), (12, 192));
        let value = to_json(&machine, Some((Generation::K, capacity)));
        assert_eq!(value["io_nodes"].as_array().map(Vec::len), Some(12));
        assert_eq!(value["io_nodes"][1], json!([0, 0, 0, 0, 0, 1]));
        assert_eq!(value["capacity"]["board"], json!([1, 1, 1, 2, 1, 2]));
        // For another length, no source gives the number of racks.
        let shape: Shape = "2x1x5x2x3x2".parse().unwrap();
        let line = "boards of up to 2 nodes: 60; shelves: 4; half racks: 2";
        assert_eq!(built(Generation::Fugaku, &shape), line);
        assert!(!built(Generation::K, &shape.with_io_nodes(true)).contains("racks"));
    }

    #[test]
    fn link_capacity_is_in_the_second_line() {
        let k =
            Network { shape: "k".parse().unwrap(), links_down: Default::default(), shard: None };
        let capacity = Capacity::of(Generation::K, &k.shape);
        let text = text(&described(k), Some((Generation::K, capacity)), false);
        let expected = "Tofu: injection 1.66 PB/s, bisection 46.08 TB/s, optical links 0 %";
        assert_eq!(text.lines().nth(1), Some(expected));
        let value = to_json(&machine("rack"), Some((Generation::Fugaku, capacity)));
        assert_eq!(value["capacity"]["bisection_bytes_per_s"], 46_080_000_000_000_u64);
    }

    /// Without an option or a file that gives the generation, the shapes of the K computer are of
    /// its own.
    #[test]
    fn shapes_of_the_k_computer_have_its_links() {
        let of = |shape: &str, generation| {
            let args = ["topo", "--shape", shape].into_iter().chain(generation);
            let cli = crate::cli::Cli::try_parse_from(["tofu"].into_iter().chain(args)).unwrap();
            let crate::cli::Command::Topo(args) = cli.command else { panic!("{shape}") };
            args.described().unwrap().generation
        };
        for shape in ["k", "k-racks"] {
            assert_eq!(of(shape, None), Some(Generation::K), "{shape}");
            let asked = of(shape, Some("--generation=fx100"));
            assert_eq!(asked, Some(Generation::Fx100), "{shape}");
        }
        for shape in ["unit", "shelf", "half-rack", "rack", "24x18x16x2x3x2"] {
            assert_eq!(of(shape, None), Some(Generation::Fugaku), "{shape}");
        }
    }

    #[test]
    fn json_has_every_link() {
        let value = to_json(&machine("half-rack"), None);
        let links = value["links"].as_array().unwrap();
        // 12 nodes a unit: 6 A, 6 C, 12 B. Tori of 2, 2 and 4 give each node one link an axis.
        assert_eq!(links.len(), 16 * 24 + 3 * 192);
        assert_eq!(links.iter().filter(|link| link["down"] == true).count(), 1);
        assert_eq!(value["axes"]["Z"], json!({ "length": 4, "torus": true }));
    }
}
