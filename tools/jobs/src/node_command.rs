//! Commands of ours on a node, whose output is short.

use std::path::Path;
use std::thread;

use anyhow::bail;
use tofu_agent::wire::{Exec, Status};
use tofu_control::RemoteProgram;

/// The bytes of output that are read.
const MAX_SAID: usize = 2000;

/// Returns the command that runs a script with arguments in a node's shell.
pub(crate) fn shell(words: &[&str]) -> Exec {
    Exec::named(["sh", "-c"].iter().chain(words).copied())
}

/// Runs one of our programs on a node and fails unless it succeeds. Returns the beginning of its
/// output.
pub(crate) fn must(socket: &Path, node: u32, exec: Exec, input: &[u8]) -> anyhow::Result<String> {
    let remote = RemoteProgram::start(socket, node, exec)?;
    let mut said = Vec::new();
    let status = thread::scope(|scope| {
        let feeding = remote.clone();
        scope.spawn(move || feeding.feed(input));
        let status = remote.follow(|_, bytes| {
            let room = MAX_SAID.saturating_sub(said.len());
            said.extend_from_slice(&bytes[..bytes.len().min(room)]);
            Ok(())
        });
        // A thread that still feeds the program would wait for credit for ever.
        remote.give_up();
        status
    });
    let said = String::from_utf8_lossy(&said).into_owned();
    match status? {
        Status::Code(0) => Ok(said),
        Status::NotRun { why, .. } => bail!(tofu_ui::printable(&why)),
        _ => bail!(tofu_ui::printable(said.trim())),
    }
}
