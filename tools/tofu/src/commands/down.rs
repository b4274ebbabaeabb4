//! `tofu down`.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use tofu_control::protocol::Request;
use tofu_control::{Connection, MachineName, find_machine, rundir};

/// End a machine
#[derive(Debug, Clone, Args)]
pub(crate) struct DownArgs {
    /// Machine; not needed if only one runs
    #[arg(value_name = "NAME", conflicts_with = "all")]
    pub(crate) name: Option<MachineName>,

    /// End all machines
    #[arg(long)]
    pub(crate) all: bool,
}

/// How long it may take to end.
const END: Duration = Duration::from_secs(20);

/// Runs `tofu down` and returns the exit code.
pub(crate) fn run(args: &DownArgs) -> anyhow::Result<u8> {
    let machines = match args.all {
        true => rundir::machines()?,
        false => vec![find_machine(args.name.as_ref())?],
    };
    for (name, control) in &machines {
        let asked = Connection::open(control, &Request::Down)
            .and_then(|mut connection| connection.answer());
        if let Err(error) = asked
            && !rundir::is_gone(control)
        {
            return Err(error).with_context(|| format!("machine {name}"));
        }
    }
    let end = Instant::now() + END;
    for (name, control) in &machines {
        while !rundir::is_gone(control) {
            if Instant::now() > end {
                bail!("the machine {name} does not end");
            }
            sleep(Duration::from_millis(10));
        }
    }
    Ok(0)
}
