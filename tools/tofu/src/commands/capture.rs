//! `tofu capture`: what goes through a node, into a file for Wireshark.

use std::fs::File;
use std::io::{self, Write};
use std::net::Shutdown;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use tofu_control::protocol::{
    CaptureLimits, CaptureReply, CaptureRequest, CaptureSummary, Reply, Request,
};
use tofu_control::{Connection, locate};
use tofu_supervisor::capture::file::WholeBlocks;
use tofu_supervisor::capture::select::{CapturePoints, PacketKinds};
use tofu_ui::signals;

/// Write what goes through a node's ports and network interfaces into a file for Wireshark
///
/// The file is pcapng with an interface for each of the ten link ports and six TNIs and with times
/// in nanoseconds. Ctrl-C ends it. The dissector is tools/wireshark/tofu.lua.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CaptureArgs {
    /// Node: an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C, with MACHINE/ in front if
    /// several machines run
    #[arg(value_name = "NODE")]
    pub(crate) node: String,

    /// File to write, or - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: PathBuf,

    /// Only at these places: tni, tni0 to tni5, port, or a port such as X+
    ///
    /// A packet is seen at each place that it passes.
    #[arg(long, value_name = "PLACE,...", value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) on: Vec<CapturePoints>,

    /// Only packets of these kinds: system, raw, put, get, atomic, answer, barrier
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    pub(crate) kind: Vec<PacketKinds>,

    /// End after so many packets
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,

    /// End after so many seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) seconds: Option<u64>,

    /// Bytes of each packet to keep, with the record's header of 56 bytes
    ///
    /// The default holds any single frame; a burst of a Put or Get is longer.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 2048,
        value_parser = clap::value_parser!(u32).range(56..=1_048_576)
    )]
    pub(crate) snaplen: u32,

    /// Print a summary as JSON, to standard error if the file goes to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tofu capture 0 -w node0.pcapng
  tofu capture t-0-0-0-0-1-0 -w - --on tni | wireshark -k -i -
  tofu capture 0 -w ip.pcapng --on tni0 --kind system --seconds 10";

/// Runs `tofu capture` and returns the exit code.
pub(crate) fn run(args: &CaptureArgs) -> anyhow::Result<u8> {
    let (control, _, at) = locate(&args.node)?;
    let to_stdout = args.write.as_os_str() == "-";
    let out: Box<dyn Write> = if to_stdout {
        Box::new(io::stdout())
    } else {
        let cannot = || format!("cannot write {}", args.write.display());
        Box::new(File::create(&args.write).with_context(cannot)?)
    };
    let request = Request::Capture(CaptureRequest {
        at: at.to_array(),
        interfaces: args
            .on
            .iter()
            .map(|places| places.0)
            .reduce(union)
            .unwrap_or(CapturePoints::ALL.0),
        kinds: args.kind.iter().map(|kinds| kinds.0).reduce(union).unwrap_or(PacketKinds::ALL.0),
        snaplen: args.snaplen,
        limits: CaptureLimits { count: args.count, seconds: args.seconds },
    });
    let mut connection = Connection::open(&control, &request)?;
    let stream = connection.stream()?;
    let _signals = signals::forward(move |_| {
        // The machine then ends the file and says so.
        let _ = stream.shutdown(Shutdown::Write);
    })?;
    let mut file = WholeBlocks::new(out);
    let mut begun = false;
    let summary = loop {
        match connection.answer()? {
            Reply::Capture(CaptureReply::Data(bytes)) => {
                file.add(&bytes).with_context(|| match to_stdout {
                    true => "standard output".to_owned(),
                    false => format!("cannot write {}", args.write.display()),
                })?;
                if !begun && !args.json {
                    eprintln!("capturing at {at}; Ctrl-C ends it");
                }
                begun = true;
            }
            Reply::Capture(CaptureReply::End(summary)) => break summary,
            _ => bail!("not an answer"),
        }
    };
    report(&summary, args.json, to_stdout);
    Ok(0)
}

const fn union(a: u32, b: u32) -> u32 {
    a | b
}

fn report(summary: &CaptureSummary, as_json: bool, to_stderr: bool) {
    let CaptureSummary { packets, dropped, seconds } = summary;
    if as_json {
        let line = json!({ "packets": packets, "dropped": dropped, "seconds": seconds });
        if to_stderr {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    } else {
        eprintln!("{packets} packets, {dropped} dropped for want of room, in {seconds:.1} s");
    }
}
