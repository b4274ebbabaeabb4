//! `tofu view`: a page of a running machine, or of a recorded run.

mod film;
mod server;

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, value_parser};
use tofu_control::rates::Look;
use tofu_control::{MachineName, find_machine, rundir};
use tofu_spec::units::Timeout;
use tofu_ui::{exit, signals};

use self::film::{Film, Recorder};
use self::server::{Scene, Server};

/// Show a machine on a page in a browser: the torus, load and health of links, jobs, a time line
///
/// The page is served on this host only, at an address with a token, which this command prints.
/// Anyone who has the address can also take links and nodes of the machine down. To view it over
/// ssh, forward the port: ssh -L PORT:127.0.0.1:PORT HOST.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ViewArgs {
    /// Machine; not needed if only one runs
    #[arg(value_name = "NAME", conflicts_with = "replay")]
    pub(crate) name: Option<MachineName>,

    /// Port on 127.0.0.1 [default: one that is free]
    #[arg(long, value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,

    /// Interval between updates
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) every: Timeout,

    /// Record what the page shows to a file, for --replay
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub(crate) record: Option<PathBuf>,

    /// Show what --record has written, without a machine
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  tofu view                       prints the page's address; Ctrl-C ends it, not the machine
  tofu view --record run.film     the same, and records it
  tofu view --replay run.film     shows the recording later, or on another host";

/// Shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(100);
/// The poll interval for signals.
const LOOK: Duration = Duration::from_millis(50);

/// Runs `tofu view` and returns the exit code.
pub(crate) fn run(args: &ViewArgs) -> anyhow::Result<u8> {
    if let Some(file) = &args.replay {
        let film = Film::read(file)?;
        let scene = Arc::new(Scene::new(film, None)?);
        let (ended, _signals) = signals::flag(signals::GRACE)?;
        let _server = serve(args, &scene)?;
        while !ended.load(SeqCst) {
            thread::sleep(LOOK);
        }
        return Ok(exit::INTERRUPTED);
    }
    let (name, control) = find_machine(args.name.as_ref())?;
    let first = Look::take(&control)?;
    let film = Film::new(name.as_str(), &first)?;
    let mut recorder = args.record.as_deref().map(|file| Recorder::new(file, &film)).transpose()?;
    let scene = Arc::new(Scene::new(film, Some(control.clone()))?);
    let (ended, _signals) = signals::flag(signals::GRACE)?;
    let _server = serve(args, &scene)?;
    let every = args.every.0.max(SHORTEST);
    let mut before = first;
    let mut next = Instant::now();
    loop {
        let seen = Look::take(&control).and_then(|now| Ok((scene.take(&before, &now)?, now)));
        let (frame, now) = match seen {
            Ok(seen) => seen,
            // The last state stays on the page.
            Err(_) if rundir::has_ended(&control) => {
                tofu_ui::tell!("tofu: the machine has ended; Ctrl-C ends the page");
                scene.end();
                break;
            }
            Err(error) => return Err(error),
        };
        if let Some(file) = &mut recorder
            && let Err(error) = file.write(&frame)
        {
            tofu_ui::tell!("tofu: {error:#}; nothing more is recorded");
            recorder = None;
        }
        before = now;
        // A reading that takes longer than planned is not followed immediately by another one.
        next = (next + every).max(Instant::now() + every / 4);
        while Instant::now() < next {
            if ended.load(SeqCst) {
                return Ok(exit::INTERRUPTED);
            }
            thread::sleep(LOOK.min(next.saturating_duration_since(Instant::now())));
        }
    }
    while !ended.load(SeqCst) {
        thread::sleep(LOOK);
    }
    Ok(exit::INTERRUPTED)
}

/// Listens and says where.
fn serve(args: &ViewArgs, scene: &Arc<Scene>) -> anyhow::Result<Server> {
    let port = args.port.unwrap_or(0);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .with_context(|| format!("cannot listen on 127.0.0.1:{port}"))?;
    let server = Server::start(listener, scene)?;
    writeln!(io::stdout(), "{}", server.address())?;
    Ok(server)
}
