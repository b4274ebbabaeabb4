//! `tofu map`: the places of a job's processes, as text, JSON or a picture.

mod picture;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use tofu_abi::Coords;
use tofu_control::NodeAt;
use tofu_jtofu::{Job, LogicalShape, Mapinfo, RankMap, System};
use tofu_spec::plan::Network;

use crate::commands::running::MachineOrShape;

/// Up to this many nodes are listed one by one.
const LISTED_NODES: u32 = 192;

/// Show on which nodes the processes of a job are placed
///
/// A job requests a torus of one to three axes. Each of its axes is folded from axes of the
/// machine, so neighbours in the job are neighbours in the machine, and so are the last and the
/// first node of an axis. With --json the output is a mapinfo, from which programs read their
/// places; TOFU_MAPINFO_FILE names a file with it.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MapArgs {
    #[command(flatten)]
    pub(crate) machine: MachineOrShape,

    /// Torus that the job requests, in nodes, such as 12, 4x3 or 2x3x2
    ///
    /// [default: one axis through all nodes]
    #[arg(long, value_name = "XxYxZ")]
    pub(crate) map: Option<LogicalShape>,

    /// Processes on each node, 1 to 48
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) ppn: u32,

    /// Total number of processes [default: as many as fit]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) procs: Option<u32>,

    /// Node that the job must not use, such as 0,0,0,0,1,0 or t-0-0-0-0-1-0; can be repeated
    #[arg(long, value_name = "X,Y,Z,A,B,C")]
    pub(crate) exclude: Vec<NodeAt>,

    /// Refuse maps with an axis whose last node is not a neighbour of its first node
    #[arg(long)]
    pub(crate) closed: bool,

    /// Write a picture of the job to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Print the map as a mapinfo (JSON)
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tofu map --map 4x3
      a torus of 4 by 3 on the 12 nodes of a Tofu unit
  tofu map --shape half-rack --map 8x12x2 --svg map.svg
      a picture; each link has the colour of its axis of the machine
  tofu map --shape 1x1x4x2x3x2 --map 4x11 --exclude 0,0,1,0,2,0
      around a node that has failed
  tofu map --map 4x3 --ppn 4 --json > map.json
      48 processes; programs find the map by TOFU_MAPINFO_FILE=map.json";

/// Runs `tofu map`.
pub(crate) fn run(args: &MapArgs) -> anyhow::Result<u8> {
    let network = args.machine.network()?;
    let (info, map) = lay(&network, args)?;
    let mut out = io::stdout().lock();
    if let Some(path) = &args.svg {
        let picture = picture::draw(&info, &map)?;
        std::fs::write(path, picture)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        writeln!(out, "{}", info.to_json())?;
    } else if let Some(path) = &args.svg {
        out.write_all(summary(&network, &info, &map).as_bytes())?;
        writeln!(out, "picture: {}", path.display())?;
    } else {
        out.write_all(text(&network, &info, &map).as_bytes())?;
    }
    out.flush()?;
    Ok(0)
}

/// The machine as jobs see it, without the nodes to exclude and the links that are down.
fn system(network: &Network, exclude: &[NodeAt]) -> anyhow::Result<System> {
    let shape = &network.shape;
    let links = network.links_down.iter();
    let links = links.filter_map(|(at, port)| Some((*at, shape.neighbor(*at, *port)?)));
    let system = System::new(*shape)
        .with_links_down(links)?
        .with_cut_off_failed()
        .with_failed(shape.io_nodes())?
        .with_failed(exclude.iter().map(|place| place.0))
        .context("--exclude")?;
    Ok(system)
}

fn lay(network: &Network, args: &MapArgs) -> anyhow::Result<(Mapinfo, RankMap)> {
    let system = system(network, &args.exclude)?;
    let shape = match args.map {
        Some(shape) => shape,
        None => LogicalShape::new(&[system.shape().nodes() - system.failed().len() as u32])
            .context("no node is left for the job")?,
    };
    let map = RankMap::find(&system, shape, args.closed)?;
    let all = shape.nodes().saturating_mul(args.ppn);
    let job = Job::new(&map, args.ppn, args.procs.unwrap_or(all))?;
    Ok((Mapinfo { system, job }, map))
}

/// The job in a few lines.
fn summary(network: &Network, info: &Mapinfo, map: &RankMap) -> String {
    let job = &info.job;
    // Writing to a String cannot fail.
    let mut text = network.summary() + "\n";
    let _ = write!(text, "job {}: {} processes", job.shape(), job.processes());
    let _ = writeln!(text, ", up to {} on a node", job.per_node());
    for (name, axis) in "xyz".chars().zip(map.axes()) {
        let _ = writeln!(text, "  {name}: {axis}");
    }
    let extent = job.extent().map(|len| len.to_string()).join("x");
    let _ = writeln!(text, "  box: {extent} from {}", job.reference());
    let failed: Vec<_> = info.system.failed().iter().map(Coords::to_string).collect();
    if !failed.is_empty() {
        let _ = writeln!(text, "  excluded: {}", failed.join(" "));
    }
    text
}

fn text(network: &Network, info: &Mapinfo, map: &RankMap) -> String {
    let mut text = summary(network, info, map);
    let job = &info.job;
    if job.shape().nodes() > LISTED_NODES {
        let _ = writeln!(text, "\nJobs of up to {LISTED_NODES} nodes are listed node by node.");
        return text;
    }
    let rows: Vec<[String; 3]> = (0..job.shape().nodes())
        .filter_map(|index| {
            let at = job.shape().coords(index)?;
            let node = job.nodes()[index as usize];
            let at = at[..job.shape().lens().len()].iter().map(u32::to_string);
            Some([
                picture::ranks(job.ranks_at(node)),
                at.collect::<Vec<_>>().join(","),
                node.to_string(),
            ])
        })
        .collect();
    let names = ["x", "x,y", "x,y,z"];
    let head = ["rank", names[job.shape().lens().len() - 1], "node"].map(str::to_owned);
    let rows: Vec<_> = [head].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (ranks, places) = (width(0), width(1));
    text.push('\n');
    for [rank, place, node] in &rows {
        let _ = writeln!(text, "{rank:>ranks$}  {place:places$}  {node}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ShapeArgs;
    use tofu_fabric::Port;

    fn args(map: &str) -> MapArgs {
        MapArgs {
            machine: MachineOrShape { shape: ShapeArgs::default(), machine: None },
            map: Some(map.parse().unwrap()),
            ppn: 1,
            procs: None,
            exclude: Vec::new(),
            closed: false,
            svg: None,
            json: false,
        }
    }

    fn network(shape: &str) -> Network {
        Network { shape: shape.parse().unwrap(), links_down: Default::default(), shard: None }
    }

    #[test]
    fn job_is_described_in_words() {
        let network = network("unit");
        let (info, map) = lay(&network, &MapArgs { ppn: 2, ..args("4x3") }).unwrap();
        let text = text(&network, &info, &map);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "machine 1x1x1x2x3x2: 12 nodes, 24 links");
        assert_eq!(lines[1], "job 4x3: 24 processes, up to 2 on a node");
        assert_eq!(lines[2], "  x: 4 from A2 C2, closed");
        assert_eq!(lines[4], "  box: 1x1x1x2x3x2 from (0,0,0,0,0,0)");
        assert_eq!(lines[6], " rank  x,y  node");
        assert_eq!(lines[7], "  0-1  0,0  (0,0,0,0,0,0)");
        assert_eq!(lines.len(), 7 + 12);
    }

    #[test]
    fn json_is_a_mapinfo_and_pictures_are_whole() {
        for (shape, job) in [("unit", "12"), ("unit", "2x3x2"), ("half-rack", "8x12x2")] {
            let (info, map) = lay(&network(shape), &args(job)).unwrap();
            assert_eq!(Mapinfo::from_json(&info.to_json()).unwrap(), info);
            let picture = picture::draw(&info, &map).unwrap();
            let nodes = map.shape().nodes() as usize;
            assert_eq!(picture.matches("<rect class=\"node\"").count(), nodes, "{job}");
            let hops = picture.matches("class=\"hop\"").count();
            assert_eq!(hops, map.steps().count(), "{job}");
            captions_fit(&picture);
        }
    }

    /// A letter is about 0.6 of its font's size wide.
    fn captions_fit(picture: &str) {
        let number = |text: &str, name: &str| -> i32 {
            let rest = text.split(&format!("{name}=\"")).nth(1).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let width = number(picture, " width");
        let height = number(picture, " height");
        for line in picture.lines().filter(|line| line.starts_with("<text")) {
            let letters = line.split('>').nth(1).unwrap().split('<').next().unwrap().len() as i32;
            let right = number(line, " x") + letters * number(line, "font-size") * 6 / 10;
            assert!(right <= width && number(line, " y") < height, "{width} {height}: {line}");
        }
    }

    #[test]
    fn failed_nodes_and_links_are_left_out() {
        let exclude = vec!["(0,0,0,0,1,0)".parse().unwrap(), "0, 0,0,1,1,0".parse().unwrap()];
        let network = Network {
            links_down: [(Coords::default(), Port::ZPlus)].into(),
            ..network("1x1x2x2x3x2")
        };
        let (info, map) = lay(&network, &MapArgs { exclude, ..args("2x6") }).unwrap();
        assert!(map.nodes().iter().all(|node| !info.system.is_failed(*node)));
        assert_eq!(info.system.links_down().len(), 1);
        let text = summary(&network, &info, &map);
        assert!(text.ends_with("  excluded: (0,0,0,0,1,0) (0,0,0,1,1,0)\n"), "{text}");
    }

    #[test]
    fn wrong_arguments_are_told() {
        let error = |args: MapArgs| format!("{:#}", lay(&network("unit"), &args).unwrap_err());
        let outside = vec!["0,0,1,0,0,0".parse().unwrap()];
        assert_eq!(
            error(MapArgs { exclude: outside, ..args("2") }),
            "--exclude: the machine 1x1x1x2x3x2 has no node (0,0,1,0,0,0)"
        );
        assert!(error(MapArgs { ppn: 49, ..args("2") }).contains("must be 1 to 48"));
        assert!(error(args("4x4")).ends_with("; 4x3 would fit"));
    }

    #[test]
    fn large_jobs_are_not_listed() {
        let network = network("4x4x4x2x3x2");
        let (info, map) = lay(&network, &MapArgs { map: None, ..args("1") }).unwrap();
        assert_eq!(info.job.processes(), 768);
        assert!(text(&network, &info, &map).lines().count() < 8);
    }
}
