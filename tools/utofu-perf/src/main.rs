//! `utofu-perf`: latency, bandwidth and message rate of uTofu, between two processes.
//!
//! Without `--peer` both are threads of this program, on a machine in it. With it, one process
//! on each of two nodes runs this program, one of them with `--serve`; they find each other by
//! their coordinates.

mod api;
mod baseline;
mod measure;
mod overhead;
mod plot;
mod registration;

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Parser, ValueEnum};
use serde::Serialize;
use tofu_hosted::Library;

use crate::measure::{MAX_SIZE, Row, Side};
use crate::overhead::{Overhead, Way};

/// Measures uTofu between two processes.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Tests to run [default: everything except registration and overhead]
    #[arg(value_enum)]
    tests: Vec<Test>,
    /// Bytes of messages, separated by commas, up to 16777215.
    #[arg(long, value_delimiter = ',', default_value = "8,64,1024,16384,262144,1048576")]
    sizes: Vec<usize>,
    /// Bytes of memory to register, separated by commas [default: 4 KiB to 1 GiB].
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4096,65536,1048576,16777216,268435456,1073741824",
        hide_default_value = true
    )]
    regions: Vec<usize>,
    /// Interfaces to use at most, 1 to 6.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=6))]
    tnis: u16,
    /// Milliseconds for each value.
    #[arg(long, default_value_t = 200)]
    time: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Write a picture to this file.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Coordinates of the other process's node, such as 0,0,0,1,0,0.
    #[arg(long, value_delimiter = ',', num_args = 1)]
    peer: Option<Vec<u8>>,
    /// Only post this number of commands of the overhead test, through WAY, for a program that
    /// counts instructions.
    #[arg(long, num_args = 2, value_names = ["WAY", "COMMANDS"])]
    repeat: Option<Vec<String>>,
    /// Answer the other process instead of measuring.
    #[arg(long, requires = "peer")]
    serve: bool,
    /// Coordinates of two nodes, twelve numbers: the process on the first one measures, that on
    /// the second answers. For jobs, whose processes all have the same arguments.
    #[arg(long, value_delimiter = ',', num_args = 1, conflicts_with = "peer")]
    between: Option<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Test {
    /// Baseline: a copy in the process's own memory.
    Copy,
    /// Baseline: a word that two threads of the process watch, one way.
    Word,
    /// A message one way, reported by a notice.
    Latency,
    /// A Put until it is complete.
    Put,
    /// A Get until it is complete.
    Get,
    /// Puts, one way.
    Bandwidth,
    /// Puts and Gets at the same time.
    Bidirectional,
    /// Messages of 8 bytes.
    Rate,
    /// Registering and deregistering memory (--regions); only if it is named.
    Registration,
    /// The cost of the library compared to posting by hand.
    Overhead,
}

#[derive(Serialize)]
struct Report {
    results: Vec<Row>,
    /// Load average of the machine before and after, if it reports that.
    load: [Option<f64>; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    overhead: Option<Overhead>,
}

fn main() -> Result<()> {
    let mut args = Args::parse();
    // As a static program, for nodes, it could not load them.
    Library::provide(&tofulocal::TABLE);
    if let Some(size) = args.sizes.iter().find(|size| **size == 0 || **size > MAX_SIZE) {
        bail!("--sizes: {size} is not 1 to {MAX_SIZE}");
    }
    if args.regions.contains(&0) {
        bail!("--regions: 0 bytes cannot be registered");
    }
    if args.tests.is_empty() {
        use Test::{Bandwidth, Bidirectional, Copy, Get, Latency, Put, Rate, Word};
        args.tests = vec![Word, Copy, Latency, Put, Get, Bandwidth, Bidirectional, Rate];
    }
    if let Some(repeat) = &args.repeat {
        own_machine();
        let way = Way::from_str(&repeat[0], true).map_err(|error| anyhow!("--repeat: {error}"))?;
        let commands = repeat[1].parse().context("--repeat: not a number")?;
        return overhead::repeat(way, commands);
    }
    if let Some(nodes) = args.between.take() {
        let (first, second) = nodes.split_at_checked(6).context("--between: not two nodes")?;
        let own = api::my_coords()?;
        args.serve = own == second;
        args.peer = Some(if args.serve { first } else { second }.to_vec());
        if !args.serve && own != first {
            bail!("--between: this is node {own:?}, neither of the two");
        }
    }
    let before = baseline::load();
    let results = match &args.peer {
        Some(coords) => {
            let coords = coords[..].try_into().ok().context("--peer: not six coordinates")?;
            let side = Side::new(coords, args.tnis)?;
            if args.serve {
                return side.serve();
            }
            side.greet()?;
            let results = run(&args, &side)?;
            side.end()?;
            results
        }
        None => alone(&args)?,
    };
    let overhead = args.tests.contains(&Test::Overhead).then(overhead::measure).transpose()?;
    let report = Report { results, load: [before, baseline::load()], overhead };
    if let Some(path) = &args.svg {
        fs::write(path, plot::svg(&report.results))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

/// Unless the environment says otherwise, the device is a machine in this process.
fn own_machine() {
    if std::env::var_os("TOFU_PROVIDER").is_none() {
        // SAFETY: no other thread is there yet.
        unsafe {
            std::env::set_var("TOFU_PROVIDER", "inproc");
            std::env::set_var("TOFU_SHAPE", "1x1x1x2x1x1");
        }
    }
}

/// Both sides in this process.
fn alone(args: &Args) -> Result<Vec<Row>> {
    own_machine();
    let coords = [0, 1].map(|process| {
        api::select(process).context("without --peer, TOFU_PROVIDER=inproc is needed")?;
        api::my_coords()
    });
    let [mine, theirs] = coords;
    let (mine, theirs) = (mine?, theirs?);
    let tnis = args.tnis;
    let other = thread::spawn(move || -> Result<()> {
        api::select(1)?;
        Side::new(mine, tnis)?.serve()
    });
    api::select(0)?;
    let side = Side::new(theirs, tnis)?;
    side.greet()?;
    let results = run(args, &side)?;
    side.end()?;
    match other.join() {
        Ok(result) => result.map(|()| results),
        Err(_) => bail!("the other side has panicked"),
    }
}

fn run(args: &Args, side: &Side) -> Result<Vec<Row>> {
    let time = Duration::from_millis(args.time);
    let mut rows = Vec::new();
    let all = usize::from(args.tnis);
    // With one and with all interfaces, and everything in between for the largest size.
    let largest = args.sizes.iter().max().copied();
    for test in &args.tests {
        let name = || test.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned());
        for &size in &args.sizes {
            let failed = || format!("{} of {size} bytes", name());
            let some: Vec<_> =
                (1..=all).filter(|&n| n == 1 || n == all || Some(size) == largest).collect();
            match test {
                Test::Copy => rows.push(baseline::copy(size, time)?),
                Test::Latency => rows.push(side.latency(size, time).with_context(failed)?),
                Test::Put | Test::Get => {
                    let row = side.completion(size, *test == Test::Get, time);
                    rows.push(row.with_context(failed)?);
                }
                Test::Bandwidth | Test::Bidirectional => {
                    let both = *test == Test::Bidirectional;
                    for &tnis in &some {
                        let row = side.bandwidth(size, tnis, both, time);
                        rows.push(row.with_context(failed)?);
                    }
                }
                Test::Rate | Test::Word | Test::Registration | Test::Overhead => {}
            }
        }
        if *test == Test::Word {
            rows.push(baseline::word(time)?);
        }
        if *test == Test::Registration {
            rows.extend(registration::measure(&args.regions, time)?);
        }
        if *test == Test::Rate {
            if args.peer.is_none() {
                rows.push(overhead::rate_by_hand(time)?);
            }
            for tnis in 1..=all {
                rows.push(side.rate(tnis, time).with_context(name)?);
            }
        }
    }
    Ok(rows)
}

fn print(report: &Report) {
    if !report.results.is_empty() {
        println!(
            "{:<14}{:>9}{:>6}{:>10}{:>10}{:>10}{:>10}",
            "test", "bytes", "TNIs", "p50 us", "p99 us", "MB/s", "M/s"
        );
    }
    let number = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.2}"));
    let time = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.3}"));
    for row in &report.results {
        println!(
            "{:<14}{:>9}{:>6}{:>10}{:>10}{:>10}{:>10}",
            row.test,
            row.size,
            if row.tnis == 0 { "-".to_owned() } else { row.tnis.to_string() },
            time(row.p50_us),
            time(row.p99_us),
            number(row.mb_per_s),
            number(row.million_per_s)
        );
    }
    if let Some(o) = &report.overhead {
        println!(
            "Put of 8 bytes until completion and notice are taken, ns: median (fastest round)"
        );
        for (name, times) in [("by hand", &o.hand), ("in Rust", &o.rust), ("in C", &o.c)] {
            let more = |a: f64, b: f64| (a / b - 1.0) * 100.0;
            println!(
                "{name:<8}{:>7.0} ({:.0}) {:+.1} % ({:+.1} %), {:.2} looks",
                times.median_ns,
                times.fastest_ns,
                more(times.median_ns, o.hand.median_ns),
                more(times.fastest_ns, o.hand.fastest_ns),
                times.looks
            );
        }
    }
}
