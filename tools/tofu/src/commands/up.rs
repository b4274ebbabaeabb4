//! `tofu up`: runs a plan and reports.

mod board;
mod check;
mod detach;
mod hosts;
mod linux;
mod screen;
mod watch;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{anyhow, bail};
use clap::{Args, Parser};
use tofu_supervisor::confine::Confinement;
use tofu_supervisor::event;
use tofu_supervisor::gateway::GatewaySetup;
use tofu_supervisor::options::MachineArgs;
use tofu_supervisor::parts::{self, Joining, Others};
use tofu_supervisor::plan::Plan;
use tofu_supervisor::runner::Machines;
use tofu_supervisor::session::Session;
use tofu_supervisor::units::{PartOf, Timeout};
use tofu_ui::Style;

use self::screen::Screen;
use self::watch::watch;
use crate::commands::host;
use crate::commands::joining::JoinArgs;

/// Boot a machine and run a guest program on every node
///
/// Boots one VM per node, and shows what the guests print, with the coordinates of their nodes. It
/// ends when all guests have ended, when --timeout expires, or when you press Ctrl-C. A guest
/// succeeds if it exits with code 0. If one fails, the others are stopped after --grace.
#[derive(Debug, Clone, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UpArgs {
    /// Print one JSON object per event and a summary at the end
    // Help has it after --engines.
    #[arg(long, display_order = 10)]
    pub(crate) json: bool,

    /// The time for which the other guests may continue when one has failed
    #[arg(long, value_name = "TIME", default_value = "2s", display_order = 9)]
    pub(crate) grace: Timeout,

    /// Check the machine file and the options, print the machine in one line, and start nothing
    #[arg(long, display_order = 11)]
    pub(crate) check: bool,

    #[command(flatten)]
    pub(crate) machine: MachineArgs,

    #[command(flatten)]
    pub(crate) parts: PartArgs,
}

/// A machine in parts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Several processes or hosts")]
pub(crate) struct PartArgs {
    #[command(flatten)]
    join: JoinArgs,

    /// Stop the guests of this part, after --grace, when another part is lost; without this option
    /// they continue, and the other part may come back
    #[arg(long, requires = "part")]
    end_with_part: bool,

    /// Start a part on each host of a file by ssh, and follow all of them
    ///
    /// Each line has HOST or USER@HOST for ssh. It may be followed by ADDRESS:PORT, where the part
    /// listens (default: HOST:7700), and by the path of the tofu command on that host; without a
    /// path the command is copied there. The first host has part 0. Lines that guests print begin
    /// with the number of their part.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["part", "join", "detach", "capture"])]
    hosts: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  tofu up
      a Tofu unit, every node exchanges data with every other
  tofu up --shape half-rack --guest ring
      192 VMs pass a token around
  tofu up --shape 4x1x1x1x1x1 --guest pingpong --args 'max=4096'
      four nodes on a ring
  tofu up --guest ./target/release/mine.elf --nodes 2 --timeout 10s
      your own program on two nodes
  tofu up -c machine.toml --json
      a machine file; output for scripts
  tofu up --linux --detach
      two Linux nodes; then tofu exec 0 -- uname -a, tofu console 1, tofu down
  tofu up --linux --shape unit --guest allpairs
      a program on twelve Linux nodes
  tofu up --shape 4x1x1x1x1x1 --part 0/2 --join demo
      half of a machine; `tofu up --shape 4x1x1x1x1x1 --part 1/2 --join demo` is the other
  tofu up --shape half-rack --guest ring --hosts hosts.txt
      a machine over the hosts of a file, a part on each

A machine file:
  shape = \"2x1x1x2x3x2\"
  torus = { x = false }
  guest = \"ring\"

  [[link]]                          # this link starts down
  at = [0, 0, 0, 0, 0, 0]
  port = \"B+\"
  down = true";

/// Runs `tofu up` and returns the exit code.
pub(crate) fn run(args: &UpArgs) -> anyhow::Result<u8> {
    if let Some(file) = &args.parts.hosts {
        return hosts::run(file, &args.machine, args.json, args.check);
    }
    let (json, grace, only_check) = (args.json, args.grace.0, args.check);
    let args_of_parts = &args.parts;
    let args = &MachineArgs { only_check, ..args.machine.clone() };
    let mut plan = Plan::new(args)?;
    let mut same = Vec::new();
    if let Some((own, _)) = args_of_parts.join.asked() {
        same = parts::in_common(&plan);
        plan = plan.cut(own)?;
        plan.end_with_part = args_of_parts.end_with_part;
    }
    check_memory(&plan, host::memory_available())?;
    let is_linux = plan.linux().next().is_some();
    match is_linux {
        true => linux::check(&plan, args)?,
        false => linux::refuse_options(args)?,
    }
    if only_check {
        return check::describe(&plan, json);
    }
    if args.linux.detach && !args.linux.detached {
        return detach::run(args.shape.config.as_deref());
    }
    if is_linux {
        return linux::run(&plan, args, (json, grace), |args| {
            let Some((own, dir)) = args_of_parts.join.asked() else { return Ok(None) };
            let joining = join(args, own, dir, same)?;
            Ok(Some(Others::new(args_of_parts.join.meet(joining, own, json)?)))
        });
    }
    let mut args = args.clone();
    // Before anything needs cleaning up: a signal just ends the process.
    let others = match args_of_parts.join.asked() {
        Some((own, dir)) => {
            let joining = join(&mut args, own, dir, same)?;
            Some(Others::new(args_of_parts.join.meet(joining, own, json)?))
        }
        None => None,
    };
    let mut parent = args.linux.detached.then(detach::Parent::new).transpose()?;
    let start = Instant::now();
    let mut session = Session::new(&plan, &args)?;
    // Before there are other threads, which it would not reach.
    let confinement = Confinement::of_guests(&[session.dir.base()], args.sandbox.off)?;
    let (sender, events) = event::events();
    let _signals = sender.forward_signals()?;
    let mut out = detach::output(args.linux.detached);
    let name = session.dir.name().clone();
    let mut screen = Screen::new(&mut *out, Style::detect(json), &plan, name.as_str())?;
    let mut machines = Machines::bare(confinement);
    machines.registry = Some(session.serve_part(&plan, sender.clone(), others.clone())?);
    machines.others = others;
    machines.gateway = session.gateway.take();
    let hints = machines.gateway.as_ref().map(GatewaySetup::hints);
    let mut started = |screen: &mut Screen<'_>| {
        if hints.is_some() || parent.is_some() {
            let hints = hints.as_deref().unwrap_or_default();
            screen.ready(session.dir.name().as_str(), start.elapsed(), hints)?;
        }
        parent.as_mut().map_or(Ok(()), |parent| parent.leave(&session.dir.path().join("log")))
    };
    watch(&plan, grace, &machines, sender, &events, &mut screen, &mut started)
}

/// Takes the address of a part. This process is called `NAME-partI` from then on, because parts may
/// share a host.
fn join(
    args: &mut MachineArgs,
    own: PartOf,
    dir: &Path,
    same: Vec<(String, String)>,
) -> anyhow::Result<Joining> {
    let machine = args.linux.name.take().unwrap_or_default();
    let name = machine.of_part(own.part.0);
    let why = |allowed| anyhow!("the name of part {} of {machine}: {allowed}", own.part);
    args.linux.name = Some(name.map_err(why)?);
    parts::join(dir, machine.as_str(), same, own)
}

/// Refuses a machine whose guests could use more memory than there is, which
/// would end in the kernel killing processes.
fn check_memory(plan: &Plan, available: Option<u64>) -> anyhow::Result<()> {
    let (wanted, mib) = (plan.guest_memory(), 1 << 20);
    match available {
        Some(available) if wanted > available => bail!(
            "too little memory: {} VMs want {} MiB, {} MiB are available; \
             lower --memory or --nodes",
            plan.vms().count(),
            wanted / mib,
            available / mib
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::watch::tests::{LONG, plan};
    use super::*;

    #[test]
    fn too_little_memory_is_refused() {
        let plan = plan("unit", 12, LONG);
        let message = check_memory(&plan, Some(100 << 20)).unwrap_err().to_string();
        assert!(message.starts_with("too little memory: 12 VMs want 192 MiB, 100 MiB are"));
        assert!(check_memory(&plan, Some(192 << 20)).is_ok());
        assert!(check_memory(&plan, None).is_ok());
    }
}
