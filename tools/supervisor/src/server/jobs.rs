//! A job's connection: its place in the queue, its turn, its nodes, and its end.

use std::collections::HashSet;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use anyhow::{Context, anyhow, bail};
use tofu_control::lines::{LineError, LineReader};
use tofu_control::protocol::{Reply, Request};
use tofu_fabric::NodeId;
use tofu_ui::printable;

use super::reply::say;
use crate::jobs::Held;
use crate::registry::Registry;

/// Characters of a job's shape that are kept: three lengths of up to six digits.
const MOST_SHAPE: usize = 20;

/// A message to a job's thread.
enum Message {
    /// A request of the client. The next one is read only after it has been answered.
    Request(Request),
    /// Something that is not a request, with the reason.
    Wrong(String),
    /// The machine or its jobs have changed.
    Changed,
    /// The client has left.
    Gone,
}

/// Serves a job until its client leaves.
pub(super) fn serve(
    mut client: UnixStream,
    requests: LineReader<UnixStream>,
    registry: &Registry,
    (command, pid): (&str, Option<u32>),
) -> anyhow::Result<()> {
    let (sender, messages) = mpsc::channel();
    let (answered, next) = mpsc::sync_channel(1);
    let (told, changed) = (sender.clone(), Arc::new(AtomicBool::new(false)));
    let under_way = Arc::clone(&changed);
    let wake = move || {
        // One message in the queue is enough.
        if !under_way.swap(true, SeqCst) {
            // The thread that served the job may have gone.
            let _ = told.send(Message::Changed);
        }
    };
    let job = match registry.jobs.enter(command, pid, Box::new(wake)) {
        Ok(job) => job,
        Err(error) => return say(&mut client, &Reply::Error { why: error.to_string() }),
    };
    let number = job.job;
    registry.publish_job(job);
    let reading = thread::Builder::new().name("job".into());
    let reading = reading.spawn(move || read(requests, &sender, &next));
    let result = match reading {
        Ok(_) => attend(&mut client, registry, number, &messages, &changed, || {
            // If this fails, the reader has gone.
            let _ = answered.send(());
        }),
        Err(error) => Err(error).context("no threads left"),
    };
    let _ = client.shutdown(Shutdown::Both);
    if let Some(job) = registry.jobs.leave(number) {
        registry.publish_job(job);
    }
    result
}

/// Passes on the client's requests, one after another.
fn read(mut requests: LineReader<UnixStream>, to: &Sender<Message>, next: &Receiver<()>) {
    loop {
        let message = match requests.receive() {
            Ok(Some(request)) => Message::Request(request),
            Err(LineError::Malformed(error)) => Message::Wrong(format!("not a request: {error}")),
            Ok(None) | Err(_) => Message::Gone,
        };
        let last = matches!(message, Message::Gone);
        if to.send(message).is_err() || last || next.recv().is_err() {
            return;
        }
    }
}

/// Tells the client its place and its turn, and carries out its requests.
fn attend(
    client: &mut UnixStream,
    registry: &Registry,
    job: u32,
    messages: &Receiver<Message>,
    changed: &AtomicBool,
    answered: impl Fn(),
) -> anyhow::Result<()> {
    let mut place = None;
    // Whether the client waits for its turn, and whether the machine has changed since the last
    // one.
    let (mut waits, mut due) = (true, true);
    loop {
        match registry.jobs.before(job).filter(|_| waits && due) {
            Some(0) => {
                say(client, &Reply::Turn { job })?;
                (waits, due) = (false, false);
            }
            before @ Some(number) if before != place => {
                say(client, &Reply::Queued { job, before: number })?;
                place = before;
            }
            _ => {}
        }
        let reply = match messages.recv()? {
            Message::Gone => return Ok(()),
            Message::Changed => {
                changed.store(false, SeqCst);
                due = true;
                continue;
            }
            Message::Wrong(why) => Err(anyhow!(why)),
            Message::Request(Request::Wait) if registry.jobs.before(job) == Some(0) => {
                waits = true;
                answered();
                continue;
            }
            Message::Request(Request::Wait) => Err(anyhow!("it is not the turn of job {job}")),
            Message::Request(Request::Take { nodes, alone, shape }) => {
                take(registry, job, Held { nodes, alone, shape })
            }
            Message::Request(_) => Err(anyhow!("the connection is that of job {job}")),
        };
        say(client, &reply.unwrap_or_else(|error| Reply::Error { why: format!("{error:#}") }))?;
        answered();
    }
}

fn take(registry: &Registry, job: u32, mut wanted: Held) -> anyhow::Result<Reply> {
    if wanted.nodes.is_empty() {
        bail!("a job has one node or more");
    }
    for node in &wanted.nodes {
        registry.place(NodeId(*node))?;
    }
    let mut seen = HashSet::new();
    wanted.nodes.retain(|node| seen.insert(*node));
    wanted.shape = wanted.shape.map(|shape| printable(&shape).chars().take(MOST_SHAPE).collect());
    registry.publish_job(registry.jobs.take(job, wanted)?);
    Ok(Reply::Done)
}
