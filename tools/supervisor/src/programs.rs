//! Guest programs on Linux nodes, run by the nodes' agents.

use std::sync::Arc;
use std::thread;

use anyhow::{Context, bail};
use tofu_agent::files;
use tofu_agent::wire::{Exec, FromProgram, MAX_DATA, Output, Status, ToProgram, WINDOW};

use crate::agent::Agent;
use crate::event::{Event, EventSender, Outcome};
use crate::node::AgentNode;
use tofu_spec::guest::Guest;

/// The folder of a guest that programs are copied to.
const FOLDER: &str = "/tmp";
/// The length in bytes at which a line of a guest is cut.
const MAX_LINE: usize = 4096;

/// Runs a program to its end, with `input` on its standard input. `output` is called with its
/// output.
///
/// # Errors
///
/// If it could not be run, or the node has stopped.
pub fn run(
    agent: &Arc<Agent>,
    exec: Exec,
    input: &[u8],
    mut output: impl FnMut(Output, &[u8]),
) -> anyhow::Result<Status> {
    let (handle, mut messages) =
        agent.exec(Exec { stdin: !input.is_empty(), ..exec }, None)?.split();
    let mut left = input;
    let mut credit = WINDOW as usize;
    loop {
        while !left.is_empty() && credit > 0 {
            let (now, later) = left.split_at(left.len().min(credit).min(MAX_DATA));
            handle.say(ToProgram::Input(now.to_vec()))?;
            credit -= now.len();
            left = later;
            if left.is_empty() {
                handle.say(ToProgram::InputEnd)?;
            }
        }
        match messages.next().context("the node has stopped")? {
            FromProgram::Output(stream, bytes) => {
                output(stream, &bytes);
                handle.used(stream, bytes.len())?;
            }
            FromProgram::Credit(bytes) => credit += bytes as usize,
            FromProgram::Ended(Status::NotRun { why, .. }) => bail!(why),
            FromProgram::Ended(status) => return Ok(status),
        }
    }
}

/// Runs a program to its end.
///
/// # Errors
///
/// Unless it succeeds, with what it wrote to its standard output and error.
pub fn must_run(agent: &Arc<Agent>, exec: Exec, input: &[u8]) -> anyhow::Result<()> {
    let name = exec.args.join(" ");
    let mut errors = Vec::new();
    let status = run(agent, exec, input, |_, bytes| {
        if errors.len() < MAX_LINE {
            errors.extend_from_slice(bytes);
        }
    })?;
    match status {
        Status::Code(0) => Ok(()),
        _ => bail!("{name}: {}", tofu_ui::printable(String::from_utf8_lossy(&errors).trim())),
    }
}

/// Starts a guest program on a node. Its lines and its end arrive as events.
pub fn start(
    node: &Arc<dyn AgentNode>,
    guest: &Guest,
    args: &str,
    events: &EventSender,
) -> anyhow::Result<()> {
    let (node, guest, events) = (Arc::clone(node), guest.clone(), events.clone());
    let words: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
    let thread = thread::Builder::new().name("guest".into()).spawn(move || {
        let mut lines = Lines::default();
        let status = put(&*node, &guest).and_then(|path| {
            let exec = Exec::named([path].into_iter().chain(words));
            run(node.agent(), exec, &[], |_, bytes| {
                lines.take(bytes, |line| {
                    events.send(Event::Line(node.id(), line));
                });
            })
        });
        lines.end(|line| {
            events.send(Event::Line(node.id(), line));
        });
        let outcome = match status {
            Ok(Status::Code(code)) => Outcome::Exited(code as u32),
            Ok(Status::Signal(signal)) => Outcome::Fault(format!("ended by signal {signal}")),
            Ok(Status::NotRun { why, .. }) => Outcome::Fault(why),
            Err(error) => Outcome::Fault(format!("{error:#}")),
        };
        events.send(Event::Ended(node.id(), outcome));
    });
    thread.context("no threads left")?;
    Ok(())
}

/// Copies a program into a guest and returns its path there.
pub fn put(node: &dyn AgentNode, guest: &Guest) -> anyhow::Result<String> {
    let name = format!("guest-{}", guest.name);
    let mut archive = Vec::new();
    files::pack_bytes(&name, 0o755, &guest.image, &mut archive)?;
    let path = format!("{FOLDER}/{name}");
    must_run(node.agent(), Exec::unpack_alone(&path), &archive)
        .context("cannot copy the program to the node")?;
    Ok(path)
}

/// Cuts output into lines of bounded length.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
}

impl Lines {
    fn take(&mut self, bytes: &[u8], mut each: impl FnMut(String)) {
        for chunk in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = MAX_LINE - self.line.len();
            self.line.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.ends_with(b"\n") || self.line.len() == MAX_LINE {
                let line = String::from_utf8_lossy(&self.line);
                each(line.trim_end_matches(['\r', '\n']).to_owned());
                self.line.clear();
            }
        }
    }

    fn end(&mut self, mut each: impl FnMut(String)) {
        if !self.line.is_empty() {
            each(String::from_utf8_lossy(&self.line).into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut() {
        let mut found = Vec::new();
        let mut lines = Lines::default();
        for chunk in [b"one\r\ntw".as_slice(), b"o\n\nthr", b"ee"] {
            lines.take(chunk, |line| found.push(line));
        }
        lines.end(|line| found.push(line));
        assert_eq!(found, ["one", "two", "", "three"]);
        let mut lengths = Vec::new();
        let mut lines = Lines::default();
        lines.take(&[b'x'; MAX_LINE + 10], |line| lengths.push(line.len()));
        lines.take(b"\n", |line| lengths.push(line.len()));
        assert_eq!(lengths.first(), Some(&MAX_LINE));
        assert!(lines.line.len() < MAX_LINE);
    }
}
