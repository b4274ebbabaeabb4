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
use tofu_linux_nodes::host::LinuxHost;
use tofu_linux_nodes::runtimes::Runtimes;
use tofu_spec::plan::Plan;
use tofu_spec::units::{ShardOf, Timeout};
use tofu_supervisor::event;
use tofu_supervisor::memory;
use tofu_supervisor::node::LinuxBackend;
use tofu_supervisor::runner;
use tofu_supervisor::session::{Rights, Session};
use tofu_supervisor::shards::{self, Joining, Others};
use tofu_ui::{Style, exit, tell};

use self::screen::Screen;
use self::watch::watch;
use crate::commands::joining::JoinArgs;
use crate::options::{LinuxArgs, MachineArgs};

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
    pub(crate) shards: ShardArgs,
}

/// A machine in shards.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Several processes or hosts")]
pub(crate) struct ShardArgs {
    #[command(flatten)]
    join: JoinArgs,

    /// Stop the guests of this shard, after --grace, when another shard is lost; without this
    /// option they continue, and the other shard may come back
    #[arg(long, alias = "end-with-part", requires = "shard")]
    end_with_shard: bool,

    /// Start a shard on each host of a file by ssh, and follow all of them
    ///
    /// Each line has HOST or USER@HOST for ssh. It may be followed by ADDRESS:PORT, where the shard
    /// listens (default: HOST:7700), and by the path of the tofu command on that host; without a
    /// path the command is copied there. The first host has shard 0. Lines that guests print begin
    /// with the number of their shard.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["shard", "join", "detach", "capture"])]
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
  tofu up --shape 4x1x1x1x1x1 --shard 0/2 --join demo
      half of a machine; `tofu up --shape 4x1x1x1x1x1 --shard 1/2 --join demo` is the other
  tofu up --shape half-rack --guest ring --hosts hosts.txt
      a machine over the hosts of a file, a shard on each

A machine file:
  shape = \"2x1x1x2x3x2\"
  torus = { x = false }
  guest = \"ring\"

  [[link]]                          # this link starts down
  at = [0, 0, 0, 0, 0, 0]
  port = \"B+\"
  down = true";

impl UpArgs {
    /// Plans the machine, or the requested shard of it. Also returns the settings that all shards
    /// must share.
    fn plan(&self) -> anyhow::Result<(Plan, Vec<(String, String)>)> {
        let plan = Plan::new(&self.machine.spec()?)?;
        let Some((own, _)) = self.shards.join.asked() else { return Ok((plan, Vec::new())) };
        let same = shards::in_common(&plan);
        let plan = Plan { end_with_shard: self.shards.end_with_shard, ..plan.cut(own)? };
        Ok((plan, same))
    }
}

/// Runs `tofu up` and returns the exit code.
pub(crate) fn run(args: &UpArgs) -> anyhow::Result<u8> {
    if let Some(file) = &args.shards.hosts {
        return hosts::run(file, &args.machine, args.json, args.check);
    }
    let (mut plan, same) = args.plan()?;
    let joined = args.shards.join.asked();
    let LinuxArgs { detach, detached, .. } = args.machine.linux;
    check_host(&plan, &args.machine.linux)?;
    if args.check {
        return check::describe(&plan, args.json);
    }
    if detach && !detached {
        return detach::run(args.machine.shape.config.as_deref());
    }
    runner::prepare(&plan);
    let meet = |plan: &mut Plan| {
        let Some((own, dir)) = joined else { return Ok(None) };
        let mesh = args.shards.join.meet(join(plan, own, dir, same)?, own, args.json)?;
        anyhow::Ok(Some(Others::new(mesh)))
    };
    let (start, style) = (Instant::now(), Style::detect(args.json));
    let (sender, events) = event::events();
    let mut parent = detached.then(detach::Parent::new).transpose()?;
    let signals = match plan.linux().next() {
        Some(_) => Some(linux::Signals::new(sender.clone())?),
        None => None,
    };
    let (runtimes, others) = match &signals {
        Some(signals) => {
            let runtimes = signals.prepare(&plan, style)?;
            if runtimes.is_none() {
                return Ok(exit::INTERRUPTED);
            }
            // Once the images are ready, because shards that have met do not wait long for each
            // other's devices.
            let Some(others) = signals.while_idle(|| meet(&mut plan)) else {
                return Ok(exit::INTERRUPTED);
            };
            (runtimes, others?)
        }
        None => (None, meet(&mut plan)?),
    };
    // Now, because threads may open no files later. Jobs copy libraries that nodes lack.
    let clones = runtimes.as_ref().is_some_and(|runtimes| runtimes.any_clone(&plan));
    let preload = clones.then(tofu_jobs::preload).and_then(Result::ok);
    let folders = runtimes.as_ref().map(Runtimes::writes);
    let rights = folders.as_deref().map_or(Rights::Guests, Rights::Programs);
    let mut session = Session::start(&plan, rights, sender.clone(), others)?;
    // Small guests run in this process, whose threads must all come after the sandbox. Until then
    // a signal just ends the process, and the janitor tidies up.
    let forward = signals.is_none().then(|| sender.forward_signals());
    let _forwarding = forward.transpose()?;
    let linux = runtimes.map(|runtimes| -> Box<dyn LinuxBackend> {
        Box::new(LinuxHost::new(&plan, &session, runtimes).with_files(preload))
    });
    let backend = session.machines(linux);
    let mut out = detach::output(detached);
    let mut screen = Screen::new(&mut *out, style, &plan, session.dir.name().as_str())?;
    let (name, log) = (session.dir.name().as_str(), session.dir.path().join("log"));
    let mut started = |screen: &mut Screen<'_>| {
        if let Some(hints) = hints(&plan, &session, detached) {
            screen.ready(name, start.elapsed(), &hints)?;
        }
        parent.as_mut().map_or(Ok(()), |parent| parent.leave(&log))
    };
    watch(&plan, args.grace.0, &backend, sender, &events, &mut screen, &mut started)
}

/// Hints for the user about a machine that is ready. `None` if it ends with its programs, and
/// nothing of this host waits for it.
fn hints(plan: &Plan, session: &Session, detached: bool) -> Option<Vec<String>> {
    let gateway = session.gateway_hints.clone();
    match plan.linux().next() {
        Some(_) if plan.stays_up() => {
            Some(linux::hints(&session.dir, detached, &gateway.unwrap_or_default()))
        }
        Some(_) => None,
        None => gateway.or(detached.then(Vec::new)),
    }
}

/// Takes the address of a shard. This process is called `NAME-partI` from then on, because shards
/// may share a host.
fn join(
    plan: &mut Plan,
    own: ShardOf,
    dir: &Path,
    same: Vec<(String, String)>,
) -> anyhow::Result<Joining> {
    let machine = plan.name.take().unwrap_or_default();
    let name = machine.of_shard(own.shard.0);
    let why = |allowed| anyhow!("the name of shard {} of {machine}: {allowed}", own.shard);
    plan.name = Some(name.map_err(why)?);
    shards::join(dir, machine.as_str(), same, own)
}

/// Refuses a machine that this host cannot run. Warns about one that it may not run to its end.
fn check_host(plan: &Plan, linux: &LinuxArgs) -> anyhow::Result<()> {
    let warning = check_memory(plan, memory::available())?;
    linux::check(plan, linux.detach)?;
    // The command that starts the detached one has warned already.
    if let Some(warning) = warning.filter(|_| !linux.detached) {
        tell!("tofu: {warning}");
    }
    Ok(())
}

/// Refuses a machine that takes more memory than there is. Returns a warning about one whose guests
/// could use more than there is: then nodes are ended.
fn check_memory(plan: &Plan, available: Option<u64>) -> anyhow::Result<Option<String>> {
    let Some(available) = available else { return Ok(None) };
    let (least, most, mib) = (plan.least_memory(), plan.guest_memory(), 1 << 20);
    if least > available {
        bail!(
            "too little memory: {} VMs take {} MiB, {} MiB are available; \
             lower --nodes, or --memory of Linux nodes",
            plan.vms().count(),
            least.div_ceil(mib),
            available / mib
        );
    }
    Ok((most > available).then(|| {
        format!(
            "guests that use all of their memory would take {} MiB, {} MiB are available; \
             if memory runs out, the nodes that have most of it are ended",
            most / mib,
            available / mib
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::watch::tests::{LONG, plan};
    use super::*;

    #[test]
    fn too_little_memory_is_refused() {
        let plan = plan("unit", 12, LONG);
        let least = plan.least_memory();
        assert!((12 << 20..24 << 20).contains(&least), "{least}");
        let message = check_memory(&plan, Some(10 << 20)).unwrap_err().to_string();
        assert!(message.starts_with("too little memory: 12 VMs take 1"), "{message}");
        assert!(message.contains("10 MiB are available"), "{message}");
        assert!(check_memory(&plan, Some(least - 1)).is_err());
        // Memory that they may use later is not in the way of any guest now.
        let warning = check_memory(&plan, Some(least)).unwrap().unwrap();
        assert!(warning.contains("would take 192 MiB"), "{warning}");
        assert_eq!(check_memory(&plan, Some(192 << 20)).unwrap(), None);
        assert_eq!(check_memory(&plan, None).unwrap(), None);
    }
}
