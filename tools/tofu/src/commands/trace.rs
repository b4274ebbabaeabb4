//! `tofu trace`: the course of commands, as text, as a picture, or in a file for Perfetto.

mod flight;
mod perfetto;
mod picture;
mod text;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use tofu_control::protocol::{
    CaptureLimits, Reply, Request, TraceRequest, TraceSummary, TracedCommand, TracedInterrupt,
};
use tofu_control::{Connection, find_machine, locate, node_number};
use tofu_spec::units::Timeout;
use tofu_sync::lock;
use tofu_ui::{printable, signals};

use flight::Flight;
use perfetto::Perfetto;
use picture::Picture;

/// Trace the commands of a running machine as text, or write a file for Perfetto
///
/// Without -w each command that has ended is a line: time (UTC), node, queue, command and target,
/// how long it took, and its result; for a failed command a second line says why. The file is for
/// ui.perfetto.dev: a command is a span, which has spans for the way there, the work at the target
/// and the way back. Ctrl-C ends the trace.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TraceArgs {
    /// Nodes whose commands to show: an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C,
    /// with MACHINE/ in front if several machines run [default: all nodes]
    #[arg(value_name = "NODE")]
    pub(crate) nodes: Vec<String>,

    /// File to write, or - for standard output [default: text]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,

    /// Draw a picture of the first 400 commands
    #[arg(long, value_name = "FILE", conflicts_with_all = ["write", "json"])]
    pub(crate) svg: Option<PathBuf>,

    /// Only commands of these control queues, such as 0/3, or interfaces, such as 0
    #[arg(long, value_name = "TNI[/CQ],...", value_delimiter = ',')]
    pub(crate) queue: Vec<String>,

    /// Only commands of these kinds: put, get, atomic, packet, other
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    pub(crate) kind: Vec<String>,

    /// Only commands with these results: success, failed, or a code, such as 0x33 or LINK_DOWN
    #[arg(long, value_name = "RESULT,...", value_delimiter = ',')]
    pub(crate) result: Vec<String>,

    /// End after this number of commands
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// End after this number of seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) seconds: Option<u64>,

    /// Keep only the commands that ended within this time; when a command fails, a guest dies, the
    /// machine ends, or at Ctrl-C, write them and end
    #[arg(long, value_name = "TIME", conflicts_with_all = ["result", "count", "seconds"])]
    pub(crate) last: Option<Timeout>,

    /// Print a JSON object for each command, as the control socket sends it
    #[arg(long, conflicts_with = "write")]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tofu trace --count 10
  tofu trace 0 --result failed
      why commands of node 0 fail, as they do
  tofu trace --count 20 --svg trace.svg
  tofu trace --last 2s -w failure.json
      a flight recorder: the two seconds before a command fails or a guest dies
  tofu trace 0 1 --queue 0/3 --kind put,get -w two.json --seconds 5
      a file to open in ui.perfetto.dev";

/// The output for commands.
enum Output {
    Text(Box<dyn Write>),
    Json(Box<dyn Write>),
    File(Perfetto<Box<dyn Write>>),
    Picture(Picture, Box<dyn Write>),
}

impl Output {
    fn take(
        &mut self,
        commands: &[TracedCommand],
        interrupts: &[TracedInterrupt],
    ) -> io::Result<()> {
        match self {
            Self::Text(out) => {
                commands.iter().try_for_each(|command| text::command(out, command))?;
                out.flush()
            }
            Self::Json(out) => {
                commands.iter().try_for_each(|command| writeln!(out, "{}", json!(command)))?;
                out.flush()
            }
            Self::File(file) => {
                commands.iter().try_for_each(|command| file.command(command))?;
                interrupts.iter().try_for_each(|interrupt| file.interrupt(interrupt))?;
                file.flush()
            }
            Self::Picture(picture, _) => {
                commands.iter().for_each(|command| picture.command(command));
                Ok(())
            }
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Text(mut out) | Self::Json(mut out) => out.flush(),
            Self::File(file) => file.finish(),
            Self::Picture(picture, mut out) => {
                out.write_all(picture.draw().as_bytes())?;
                out.flush()
            }
        }
    }
}

/// Runs `tofu trace` and returns the exit code.
pub(crate) fn run(args: &TraceArgs) -> anyhow::Result<u8> {
    let (control, nodes) = traced(args)?;
    let request = Request::Trace(TraceRequest {
        nodes,
        queues: args.queue.clone(),
        kinds: args.kind.clone(),
        results: args.result.clone(),
        limits: CaptureLimits { count: args.count, seconds: args.seconds },
    });
    let mut connection = Connection::open(&control, &request)?;
    // The first answer confirms that the request is valid; otherwise no file is touched.
    let Reply::Traced { .. } = connection.answer()? else { bail!("not an answer") };
    let path = args.write.as_deref().filter(|path| path.as_os_str() != "-");
    let path = path.or(args.svg.as_deref());
    let cannot = || match path {
        Some(path) => format!("cannot write {}", path.display()),
        None => "standard output".to_owned(),
    };
    let mut output = open_output(args, path).with_context(cannot)?;
    let stream = connection.stream()?;
    let _signals = signals::forward(signals::GRACE, move |_| {
        // The machine then sends what it has and reports the end.
        let _ = stream.shutdown(Shutdown::Write);
    })?;
    let mut flight = args.last.map(|Timeout(last)| Flight::new(last));
    let dead = flight.as_ref().map(|_| flight::watch(&control, &connection)).transpose()?;
    tofu_ui::tell!("tracing; Ctrl-C ends it");
    let mut wrong = None;
    let ended = loop {
        match (connection.answer(), &mut flight) {
            (Ok(Reply::Traced { commands, interrupts }), None) => {
                output.take(&commands, &interrupts).with_context(cannot)?;
            }
            (Ok(Reply::Traced { commands, interrupts }), Some(flight)) => {
                if let Some(what) = flight.take(commands, interrupts) {
                    wrong = Some(what);
                    let _ = connection.stream()?.shutdown(Shutdown::Write);
                }
            }
            (Ok(Reply::TraceEnded(summary)), _) => break Ok(summary),
            (Ok(_), _) => bail!("not an answer"),
            // The machine has ended. The file is valid up to here.
            (Err(error), _) => break Err(error),
        }
    };
    let Some(flight) = flight else {
        output.finish().with_context(cannot)?;
        tofu_ui::tell!("{}", words(&ended?));
        return Ok(0);
    };
    let (commands, interrupts) = flight.finish();
    output.take(&commands, &interrupts).with_context(cannot)?;
    output.finish().with_context(cannot)?;
    let dead = dead.and_then(|dead| lock(&dead).take());
    for what in dead.iter().chain(&wrong) {
        tofu_ui::tell!("{}", printable(what));
    }
    // The end of the machine is one of the awaited events.
    let seen = ended.map_or_else(|error| error.to_string(), |summary| words(&summary));
    tofu_ui::tell!("the last {} commands are written; {seen}", commands.len());
    Ok(0)
}

/// Opens the output that the options select, at `path` or on standard output.
fn open_output(args: &TraceArgs, path: Option<&Path>) -> io::Result<Output> {
    let out: Box<dyn Write> = match path {
        Some(path) => Box::new(BufWriter::new(File::create(path)?)),
        None => Box::new(BufWriter::new(io::stdout())),
    };
    Ok(match (&args.write, args.json) {
        _ if args.svg.is_some() => Output::Picture(Picture::default(), out),
        (None, false) => Output::Text(out),
        (None, true) => Output::Json(out),
        (Some(_), _) => Output::File(Perfetto::new(out)?),
    })
}

/// The machine to trace, and the numbers of the named nodes.
fn traced(args: &TraceArgs) -> anyhow::Result<(PathBuf, Vec<u32>)> {
    let mut controls = BTreeMap::new();
    let mut nodes = Vec::new();
    for node in &args.nodes {
        let (control, shape, at) = locate(node)?;
        nodes.push(node_number(&shape, at)?);
        controls.insert(control, ());
    }
    let mut controls = controls.into_keys();
    let control = match (controls.next(), controls.next()) {
        (Some(control), None) => control,
        (None, _) => find_machine(None)?.1,
        (Some(_), Some(_)) => bail!("the nodes are of several machines; trace one at a time"),
    };
    Ok((control, nodes))
}

fn words(summary: &TraceSummary) -> String {
    let TraceSummary { commands, failed, open, lost, seconds } = summary;
    let mut line = format!("{commands} commands, {failed} failed, in {seconds:.1} s");
    if *open > 0 {
        line += &format!("; {open} had not ended");
    }
    if *lost > 0 {
        line += &format!("; {lost} steps were lost, because they came faster than they were read");
    }
    line
}
