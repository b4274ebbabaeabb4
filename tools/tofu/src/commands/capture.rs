//! `tofu capture`: the packets that pass a node, as text or in a file for Wireshark.

mod ring;

use std::fs::File;
use std::io::{self, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use tofu_control::protocol::{CaptureLimits, CaptureRequest, CaptureSummary, Reply, Request};
use tofu_control::{Connection, locate, node_number};
use tofu_spec::units::MemorySize;
use tofu_supervisor::capture::file::WholeBlocks;
use tofu_supervisor::capture::select::{CapturePoints, PacketKinds};
use tofu_supervisor::capture::text::TextLines;
use tofu_ui::signals;

use self::ring::Ring;

/// Show the packets at a node's ports and network interfaces, or write a file for Wireshark
///
/// Without -w each packet is a line on standard output: time (UTC), place, direction, kind, source
/// and target. The file is pcapng with an interface for each of the ten link ports and six TNIs and
/// with times in nanoseconds. Ctrl-C ends it. The dissector is tools/wireshark/tofu.lua.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CaptureArgs {
    /// Node: an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C, with MACHINE/ in front if
    /// several machines run
    #[arg(value_name = "NODE")]
    pub(crate) node: String,

    /// File to write, or - for standard output [default: a line of text for each packet]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,

    /// Begin another file when one has this size, such as 64MiB; with -w x.pcapng the files are
    /// x-00001.pcapng and so on
    #[arg(long, value_name = "SIZE", requires = "write")]
    pub(crate) file_size: Option<MemorySize>,

    /// Keep only this number of files, the newest
    #[arg(long, value_name = "N", requires = "file_size")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) files: Option<u32>,

    /// Only at these places: tni, tni0 to tni5, port, or a port such as X+
    ///
    /// A packet is seen at each place that it passes.
    #[arg(long, value_name = "PLACE,...", value_delimiter = ',', allow_hyphen_values = true)]
    #[arg(value_parser = named::<CapturePoints>)]
    pub(crate) on: Vec<String>,

    /// Only packets of these kinds: system, raw, put, get, atomic, answer, barrier, dllp; with TNW
    /// data, hello, ack, nack, restart
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    #[arg(value_parser = named::<PacketKinds>)]
    pub(crate) kind: Vec<String>,

    /// End after this number of packets
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,

    /// End after this number of seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) seconds: Option<u64>,

    /// Number of bytes of each packet to keep, including the record's header of 56 or 80 bytes
    ///
    /// The default holds any single frame; a burst of a Put or Get is longer.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = CaptureRequest::snaplen(),
        value_parser = clap::value_parser!(u32).range(56..=1_048_576)
    )]
    pub(crate) snaplen: u32,

    /// Print a summary as JSON; it goes to standard error if the file goes to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tofu capture 0 --on port --count 20
  tofu capture 0 -w node0.pcapng
  tofu capture 0 -w node0.pcapng --file-size 64MiB --files 4
      the last 192 to 256 MiB, for a fault that is rare
  tofu capture t-0-0-0-0-1-0 -w - --on tni | wireshark -k -i -
  tofu capture 0 -w ip.pcapng --on tni0 --kind system --seconds 10";

/// A name that is passed to the machine unchanged, if it is one of these.
fn named<T: FromStr<Err = &'static str>>(name: &str) -> Result<String, &'static str> {
    name.parse::<T>().map(|_| name.to_owned())
}

/// Runs `tofu capture` and returns the exit code.
pub(crate) fn run(args: &CaptureArgs) -> anyhow::Result<u8> {
    let path = args.write.as_deref().filter(|path| path.as_os_str() != "-");
    if path.is_none() && args.file_size.is_some() {
        bail!("--file-size: standard output is not several files; name one with -w");
    }
    let (control, shape, at) = locate(&args.node)?;
    let out: Box<dyn Write> = match path {
        Some(path) => {
            output(path, args).with_context(|| format!("cannot write {}", path.display()))?
        }
        None if args.write.is_none() => Box::new(TextLines::new(io::stdout())),
        None => Box::new(io::stdout()),
    };
    let request = Request::Capture(CaptureRequest {
        node: node_number(&shape, at)?,
        on: args.on.clone(),
        kind: args.kind.clone(),
        snaplen: args.snaplen,
        limits: CaptureLimits { count: args.count, seconds: args.seconds },
    });
    let mut connection = Connection::open(&control, &request)?;
    let stream = connection.stream()?;
    let _signals = signals::forward(signals::GRACE, move |_| {
        // The machine then ends the file and reports that.
        let _ = stream.shutdown(Shutdown::Write);
    })?;
    let mut file = WholeBlocks::new(out);
    let mut begun = false;
    let summary = loop {
        match connection.answer()? {
            Reply::Packets { pcapng: bytes } => {
                file.add(&bytes).with_context(|| match path {
                    None => "standard output".to_owned(),
                    Some(path) => format!("cannot write {}", path.display()),
                })?;
                if !begun && !args.json {
                    tofu_ui::tell!("capturing at {at}; Ctrl-C ends it");
                }
                begun = true;
            }
            Reply::Captured(summary) => break summary,
            _ => bail!("not an answer"),
        }
    };
    report(&summary, args.json, path.is_none())?;
    Ok(0)
}

/// Creates the file, or the first of several.
fn output(path: &Path, args: &CaptureArgs) -> io::Result<Box<dyn Write>> {
    Ok(match args.file_size {
        None => Box::new(File::create(path)?),
        Some(size) => Box::new(Ring::new(path, size.0, args.files.map(|most| most as usize))?),
    })
}

fn report(summary: &CaptureSummary, as_json: bool, to_stderr: bool) -> io::Result<()> {
    let CaptureSummary { packets, dropped, seconds } = summary;
    if as_json {
        let line = json!({ "packets": packets, "dropped": dropped, "seconds": seconds });
        if to_stderr {
            tofu_ui::tell!("{line}");
        } else {
            writeln!(io::stdout(), "{line}")?;
        }
    } else {
        tofu_ui::tell!("{packets} packets, {dropped} dropped for want of room, in {seconds:.1} s");
    }
    Ok(())
}
