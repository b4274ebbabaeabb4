//! `tofu cp`.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::thread;

use anyhow::{Context, bail};
use clap::Parser;
use tofu_agent::files;
use tofu_agent::unpack::unpack;
use tofu_agent::wire::{Exec, Output, Status, ToProgram};
use tofu_control::{MachineName, NodeName, find_node};
use tofu_jobs::complain;
use tofu_ui::{exit, printable, signals};

use crate::commands::exec::SilenceArgs;

/// Copy a file or folder to or from a Linux node
///
/// One of SRC and DST is NODE:PATH. If DST is an existing folder, the copy goes into it, with the
/// name of SRC. Permissions are kept. Links in DST are replaced, not followed.
#[derive(Debug, Clone, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CpArgs {
    /// Source and destination: PATH or NODE:PATH
    #[arg(value_name = "SRC")]
    pub(crate) from: String,

    /// Where to copy it: NODE:PATH or PATH
    #[arg(value_name = "DST")]
    pub(crate) to: String,

    #[command(flatten)]
    pub(crate) silence: SilenceArgs,
}

const EXAMPLES: &str = "\
Examples:
  tofu cp ./mine 0:/usr/local/bin/
  tofu cp 1,0,0,0,0,0:/var/log ./logs";

/// Runs `tofu cp` and returns the exit code.
pub(crate) fn run(args: &CpArgs) -> anyhow::Result<u8> {
    match (CopyEnd::parse(&args.from), CopyEnd::parse(&args.to)) {
        (CopyEnd::Here(from), CopyEnd::There(node, to)) => send(from, node, to, args.silence)?,
        (CopyEnd::There(node, from), CopyEnd::Here(to)) => {
            return fetch(node, from, to, args.silence);
        }
        (CopyEnd::Here(_), CopyEnd::Here(_)) => bail!(
            "neither {} nor {} is on a node; write NODE:PATH, such as 0:/tmp/",
            args.from,
            args.to
        ),
        (CopyEnd::There(..), CopyEnd::There(..)) => {
            bail!("both are on nodes; copy to this host first")
        }
    }
    Ok(0)
}

/// A path, and where it is.
#[derive(Debug, PartialEq, Eq)]
enum CopyEnd<'a> {
    Here(&'a str),
    There(&'a str, &'a str),
}

impl<'a> CopyEnd<'a> {
    /// NODE:PATH where NODE can be one; everything else is a path of this host.
    fn parse(text: &'a str) -> Self {
        let Some((node, path)) = text.split_once(':') else { return Self::Here(text) };
        let name = node.rsplit_once('/').map_or(node, |(_, name)| name);
        let machine = node.strip_suffix(name).and_then(|machine| machine.strip_suffix('/'));
        let is_node = NodeName::parse(name).is_some()
            && machine.is_none_or(|machine| machine.parse::<MachineName>().is_ok());
        if is_node { Self::There(node, path) } else { Self::Here(text) }
    }
}

fn send(from: &str, node: &str, to: &str, silence: SilenceArgs) -> anyhow::Result<()> {
    let to = if to.is_empty() { "." } else { to };
    // Before anything is started there.
    let name = files::name_of(Path::new(from))?.to_string_lossy();
    std::fs::metadata(from).with_context(|| format!("cannot read {from}"))?;
    let found = find_node(node)?;
    let remote = silence.start(&found, Exec::agent(["unpack", to, &name]).with_input())?;
    let (reader, writer) = io::pipe().context("no pipes left")?;
    let mut complaint = Vec::new();
    let (packed, status) = thread::scope(|scope| {
        let packing = scope.spawn(move || files::pack(Path::new(from), io::BufWriter::new(writer)));
        let feeding = remote.clone();
        scope.spawn(move || feeding.feed(reader));
        let status = remote.follow(|_, bytes| complain(&mut complaint, bytes));
        // A thread that still feeds a program that has ended gets no more credit, but also no
        // answer.
        remote.give_up();
        let packed = packing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (packed, status)
    });
    check(status?, &complaint, node)?;
    let skipped = packed.with_context(|| format!("cannot read {from}"))?;
    if skipped > 0 {
        log::warn!("{skipped} that are neither files, folders nor links were left out");
    }
    Ok(())
}

fn fetch(node: &str, from: &str, to: &str, silence: SilenceArgs) -> anyhow::Result<u8> {
    let name = files::name_of(Path::new(from))?;
    let found = find_node(node)?;
    let remote = silence.start(&found, Exec::agent(["pack", from]))?;
    let (reader, mut writer) = io::pipe().context("no pipes left")?;
    let stopped = Arc::new(AtomicI32::new(0));
    let (stop, killed) = (Arc::clone(&stopped), remote.clone());
    // A signal ends the copying, so that nothing half done is left.
    let _signals = signals::forward(signals::GRACE, move |signal| {
        stop.store(signal, SeqCst);
        // If this fails, it has ended.
        let _ = killed.say(ToProgram::Kill);
    })?;
    let mut complaint = Vec::new();
    let (unpacked, status) = thread::scope(|scope| {
        let unpacking =
            scope.spawn(move || unpack(io::BufReader::new(reader), Path::new(to), name));
        let status = remote.follow(|output, bytes| match output {
            _ if stopped.load(SeqCst) != 0 => Err(io::ErrorKind::Interrupted.into()),
            Output::Out => writer.write_all(bytes),
            Output::Err => complain(&mut complaint, bytes),
        });
        drop(writer);
        let unpacked = unpacking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (unpacked, status)
    });
    match (stopped.load(SeqCst), status) {
        (0, Ok(status @ (Status::Code(1..) | Status::NotRun { .. } | Status::Signal(_)))) => {
            check(status, &complaint, node)?;
        }
        // If unpacking has failed, it has reported why, and other errors do not matter.
        (0, status) => {
            unpacked.with_context(|| format!("cannot write {to}"))?;
            check(status?, &complaint, node)?;
        }
        (signal, _) => return Ok(exit::of_signal(signal)),
    }
    Ok(0)
}

fn check(status: Status, complaint: &[u8], node: &str) -> anyhow::Result<()> {
    let complaint = String::from_utf8_lossy(complaint);
    let complaint = printable(complaint.trim());
    match status {
        Status::Code(0) => Ok(()),
        Status::NotRun { why, .. } => bail!("node {node}: {}", printable(&why)),
        _ if complaint.is_empty() => bail!("node {node}: copying was ended there"),
        _ => bail!("node {node}: {complaint}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        assert_eq!(CopyEnd::parse("0:/tmp/a:b"), CopyEnd::There("0", "/tmp/a:b"));
        assert_eq!(CopyEnd::parse("1,0,0,0,0,0:x"), CopyEnd::There("1,0,0,0,0,0", "x"));
        assert_eq!(CopyEnd::parse("m/1:x"), CopyEnd::There("m/1", "x"));
        assert_eq!(CopyEnd::parse("t-0-0-0-0-0-1:"), CopyEnd::There("t-0-0-0-0-0-1", ""));
        for path in ["a", "./0:x", "a:b", "/0:b", "a/b/0:x", "dir/x:1"] {
            assert_eq!(CopyEnd::parse(path), CopyEnd::Here(path));
        }
    }
}
