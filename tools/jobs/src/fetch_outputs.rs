//! Copies the files that ranks wrote in their working folders back to this host.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, bail};
use tofu_agent::unpack::{Folder, Place};
use tofu_agent::wire::{Output, Status};
use tofu_control::RemoteProgram;

use crate::bundle::WORK;
use crate::job;
use crate::spec::JobSpec;
use crate::user::as_user;

/// Bytes of a node's error message that are shown.
const MAX_COMPLAINT: usize = 2000;

/// The destination of the files.
#[derive(Debug)]
pub(crate) enum Destination {
    /// Into one subfolder of this folder for each node.
    ByNode(PathBuf),
    /// Into this folder, from all nodes.
    Shared(PathBuf),
}

impl Destination {
    /// Returns the destination that the user has given, if any. Makes a folder for the nodes'
    /// subfolders if necessary.
    ///
    /// # Errors
    ///
    /// If the folder cannot be made, or does not exist.
    pub(crate) fn new(spec: &JobSpec) -> anyhow::Result<Option<Self>> {
        let absolute = |path: &PathBuf| std::path::absolute(path).map_err(anyhow::Error::from);
        if let Some(out) = &spec.out {
            let cannot = || format!("--out {}: cannot make it", out.display());
            fs::create_dir_all(out).with_context(cannot)?;
            return Ok(Some(Self::ByNode(absolute(out)?)));
        }
        let Some(folder) = &spec.cwd else { return Ok(None) };
        fs::read_dir(folder)
            .with_context(|| format!("--cwd {}: cannot read it", folder.display()))?;
        Ok(Some(Self::Shared(absolute(folder)?)))
    }

    /// Returns the folder for what a node's ranks write.
    pub(crate) fn folder(&self, node: &str) -> PathBuf {
        match self.of_node(node) {
            (out, Place::Merged(name) | Place::Alone(name)) => out.join(name),
            (folder, Place::Contents) => folder.to_owned(),
        }
    }

    /// Returns the user's folder, and what becomes in it of a folder that a node's ranks fill.
    fn of_node<'a>(&'a self, node: &'a str) -> (&'a Path, Place<'a>) {
        match self {
            // The user has not named this subfolder, so it may not be a link.
            Self::ByNode(out) => (out, Place::Merged(node.as_ref())),
            Self::Shared(folder) => (folder, Place::Contents),
        }
    }
}

/// The place of a job's folder on a node.
pub(crate) struct Origin<'a> {
    /// The machine's control socket.
    pub(crate) control: &'a Path,
    /// The node's number.
    pub(crate) node: u32,
    /// Its name.
    pub(crate) name: String,
    /// The user that owns the folder. Links in it lead to nothing that this user may not read.
    pub(crate) user: u32,
}

/// Copies the new files in a job's folder from these nodes, one node after another.
///
/// # Errors
///
/// If something cannot be read there or written here.
pub(crate) fn bring(
    to: &Destination,
    folder: &str,
    from: &[Origin<'_>],
    json: bool,
) -> anyhow::Result<()> {
    let mut seen = HashSet::new();
    let mut twice = None;
    for origin in from {
        let (target, place) = to.of_node(&origin.name);
        let brought = fetch(origin, folder, target, place).with_context(|| {
            format!("cannot bring what ranks wrote on {} to {}", origin.name, target.display())
        })?;
        if matches!(place, Place::Contents) {
            for file in brought {
                if let Some(file) = seen.replace(file) {
                    twice.get_or_insert(file);
                }
            }
        }
    }
    if let Some(file) = twice {
        let file = file.display();
        job::warn(json, &format!("{file} was written on several nodes; the last one's is kept"))?;
    }
    Ok(())
}

/// Adds to a node's error message, as long as it is not too long to be shown.
///
/// # Errors
///
/// None; the type of the result is required by [`RemoteProgram::follow`].
pub fn complain(complaint: &mut Vec<u8>, bytes: &[u8]) -> io::Result<()> {
    let room = MAX_COMPLAINT.saturating_sub(complaint.len());
    complaint.extend_from_slice(&bytes[..bytes.len().min(room)]);
    Ok(())
}

fn fetch(
    origin: &Origin<'_>,
    folder: &str,
    to: &Path,
    place: Place<'_>,
) -> anyhow::Result<Vec<PathBuf>> {
    let to = Folder::open(to)?;
    let work = format!("{folder}/{WORK}");
    let exec = as_user(origin.user, &["/proc/self/exe", "pack-changed", &work, folder]);
    let remote = RemoteProgram::start(origin.control, origin.node, exec)?;
    let (reader, mut writer) = io::pipe().context("no pipes left")?;
    let mut complaint = Vec::new();
    thread::scope(|scope| {
        let unpacking = scope.spawn(move || to.unpack(io::BufReader::new(reader), place));
        let status = remote.follow(|output, bytes| match output {
            Output::Out => writer.write_all(bytes),
            Output::Err => complain(&mut complaint, bytes),
        });
        drop(writer);
        let brought = unpacking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match status {
            Ok(Status::Code(0)) => Ok(brought?),
            Ok(Status::NotRun { why, .. }) => bail!(tofu_ui::printable(&why)),
            Ok(_) => bail!(tofu_ui::printable(String::from_utf8_lossy(&complaint).trim())),
            // If unpacking has failed, that error says why.
            Err(error) => brought.map_err(anyhow::Error::from).and(Err(error)),
        }
    })
}
