//! `tofu down`.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use tofu_control::protocol::Request;
use tofu_control::{Connection, MachineName, find_present, present, rundir};

/// End a machine
///
/// A machine in shards ends on all hosts.
#[derive(Debug, Clone, Args)]
pub(crate) struct DownArgs {
    /// Machine; not needed if only one runs
    #[arg(value_name = "NAME", conflicts_with = "all")]
    pub(crate) name: Option<MachineName>,

    /// End all machines
    #[arg(long)]
    pub(crate) all: bool,
}

/// The time limit for it to end.
const END: Duration = Duration::from_secs(20);

/// Runs `tofu down` and returns the exit code.
pub(crate) fn run(args: &DownArgs) -> anyhow::Result<u8> {
    let machines = match args.all {
        true => present()?,
        false => vec![find_present(args.name.as_ref())?],
    };
    for machine in &machines {
        // One of the shards on this host is enough.
        let mut asked = Ok(());
        for (name, control) in &machine.sockets {
            let answer = Connection::open(control, &Request::Down)
                .and_then(|mut connection| connection.answer());
            asked = match answer {
                Err(error) if !rundir::has_ended(control) => {
                    Err(error).with_context(|| format!("machine {name}"))
                }
                Err(_) => continue,
                Ok(_) => Ok(()),
            };
            if asked.is_ok() {
                break;
            }
        }
        asked?;
    }
    let end = Instant::now() + END;
    for (name, control) in machines.iter().flat_map(|machine| &machine.sockets) {
        while !rundir::is_gone(control) {
            if Instant::now() > end {
                bail!("the machine {name} does not end");
            }
            sleep(Duration::from_millis(10));
        }
    }
    Ok(0)
}
