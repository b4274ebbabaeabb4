//! Traces over the control socket.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_control::lines::LineReader;
use tofu_control::protocol::{CaptureLimits, Reply, TraceRequest, TraceSummary};
use tofu_fabric::{NodeId, Shape};
use tofu_machine::trace::Trace;

use super::reply::{has_enough, say};
use crate::registry::Registry;
use crate::trace::{Assembler, Ended, Selection};

/// The interval at which the rings are emptied.
const LOOK: Duration = Duration::from_millis(5);
/// The most commands in one message, so that no line is too long.
const CHUNK: usize = 256;

/// A trace in progress.
pub(super) struct Begun {
    trace: Trace,
    selection: Selection,
    shape: Shape,
    limits: CaptureLimits,
    _observing: Arc<()>,
}

/// Begins a trace.
///
/// # Errors
///
/// One line for the user.
pub(super) fn begin(registry: &Registry, request: &TraceRequest) -> anyhow::Result<Begun> {
    let network = registry.running().context("the machine has not started yet")?;
    for node in &request.nodes {
        registry.place(NodeId(*node))?;
        if let Some(rest) = registry.rest()
            && rest.shards.of(NodeId(*node)) != Some(rest.own)
        {
            bail!(
                "node {node} is in another shard than node {}; trace each shard",
                request.nodes.first().copied().unwrap_or_default()
            );
        }
    }
    let selection = Selection::of(request)?;
    if network.interconnect().tofu().is_none() {
        bail!("a machine of TNW has no commands to trace; tofu capture shows its packets");
    }
    let observing = registry.observe()?;
    let trace = network.trace().context("the machine ends")?;
    let (shape, limits) = (registry.network.shape, request.limits);
    Ok(Begun { trace, selection, shape, limits, _observing: observing })
}

impl Begun {
    /// Serves the trace until a limit is reached, or the client closes its side or has gone.
    ///
    /// # Errors
    ///
    /// If the client has gone.
    pub(super) fn serve(
        mut self,
        client: &mut UnixStream,
        requests: LineReader<UnixStream>,
    ) -> anyhow::Result<()> {
        let stop = has_enough(requests)?;
        say(client, &Reply::Traced { commands: Vec::new(), interrupts: Vec::new() })?;
        let start = Instant::now();
        let end = self.limits.seconds.map(|seconds| start + Duration::from_secs(seconds));
        let most = self.limits.count.unwrap_or(u64::MAX);
        let mut assembler = Assembler::new(self.shape);
        let mut summary = TraceSummary::default();
        loop {
            let over = stop.load(SeqCst) || end.is_some_and(|end| Instant::now() >= end);
            let records = self.trace.read(over);
            // Reasons are read after the steps, because a command's reason is recorded before its
            // end.
            assembler.learn(self.trace.reasons());
            let mut ended = Ended::default();
            for record in &records {
                assembler.take(record, &mut ended);
            }
            assembler.settle(self.trace.now_ns(), &mut ended);
            if over {
                assembler.finish(&mut ended);
            }
            let left = most - summary.commands;
            self.send(client, ended, left, &mut summary)?;
            if over || summary.commands >= most {
                break;
            }
            thread::sleep(LOOK);
        }
        summary.open = assembler.open();
        summary.lost = self.trace.lost();
        summary.seconds = start.elapsed().as_secs_f64();
        say(client, &Reply::TraceEnded(summary))
    }

    /// Sends the selected commands and interrupts that have ended, at most this many commands.
    fn send(
        &self,
        client: &mut UnixStream,
        ended: Ended,
        left: u64,
        summary: &mut TraceSummary,
    ) -> anyhow::Result<()> {
        let wanted = ended.commands.into_iter();
        let wanted = wanted.filter(|(code, command)| self.selection.has(command, *code));
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let mut commands: Vec<_> = wanted.map(|(_, command)| command).take(left).collect();
        let mut interrupts = ended.interrupts;
        interrupts.retain(|interrupt| self.selection.has_node(interrupt.node));
        summary.commands += commands.len() as u64;
        summary.failed += commands.iter().filter(|command| command.rcode != 0).count() as u64;
        while !commands.is_empty() || !interrupts.is_empty() {
            let rest = commands.split_off(commands.len().min(CHUNK));
            let others = interrupts.split_off(interrupts.len().min(CHUNK));
            let commands = std::mem::replace(&mut commands, rest);
            let interrupts = std::mem::replace(&mut interrupts, others);
            say(client, &Reply::Traced { commands, interrupts })?;
        }
        Ok(())
    }
}
