//! Namespaces of inter-process communication for programs on this host that are on different nodes:
//! System V shared memory, semaphores and message queues, and POSIX message queues.
//!
//! A process makes them one after another, because this one has threads, and Linux gives a user
//! namespace to processes with one thread only. They exist as long as something refers to them: the
//! files here, and then the programs that have entered.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use anyhow::Context;
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde::{Deserialize, Serialize};

/// Asks for a namespace.
const NEXT: u8 = b'n';
/// Answers that there is one, and with a user namespace around it.
const MADE: u8 = b'm';
const MADE_WITH_USER: u8 = b'u';

/// Makes namespaces.
pub struct Maker {
    child: Child,
    pipes: Option<(ChildStdin, ChildStdout)>,
    /// The user namespace, which all share: without rights on the host, only its owner may make
    /// others.
    user: Option<Arc<File>>,
}

/// A namespace that programs can enter.
#[derive(Debug)]
pub struct Namespace {
    user: Option<Arc<File>>,
    ipc: File,
}

/// The files of a namespace, through which a process enters it before it executes a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entrance {
    user: Option<String>,
    ipc: String,
}

impl Maker {
    /// Starts it by a command that runs [`make`].
    ///
    /// # Errors
    ///
    /// If no process can be started.
    pub(crate) fn start(mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("cannot start a process")?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        Ok(Self { child, pipes, user: None })
    }

    /// Makes a namespace.
    ///
    /// # Errors
    ///
    /// If the host does not permit it.
    pub fn make(&mut self) -> anyhow::Result<Namespace> {
        let (to, from) = self.pipes.as_mut().context("it has ended")?;
        let mut answer = [0];
        to.write_all(&[NEXT])
            .and_then(|()| from.read_exact(&mut answer))
            .context("this host permits no namespaces")?;
        let open = |kind: &str| File::open(format!("/proc/{}/ns/{kind}", self.child.id()));
        if answer == [MADE_WITH_USER] && self.user.is_none() {
            self.user = Some(Arc::new(open("user")?));
        }
        Ok(Namespace { user: self.user.clone(), ipc: open("ipc")? })
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.pipes = None;
        let _ = self.child.wait();
    }
}

impl Namespace {
    /// Returns where children of this process find it.
    pub(crate) fn entrance(&self) -> Entrance {
        let path = |file: &File| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Entrance { user: self.user.as_deref().map(path), ipc: path(&self.ipc) }
    }
}

impl Entrance {
    /// Moves this process there.
    pub(crate) fn enter(&self) -> anyhow::Result<()> {
        use LinkNameSpaceType::{InterProcessCommunication, User};
        // Both are opened first: behind the user namespace the parent's files are out of reach.
        let user = self.user.as_ref().map(File::open).transpose()?;
        let ipc = File::open(&self.ipc)?;
        if let Some(user) = user {
            move_into_link_name_space(user.as_fd(), Some(User)).context("the user namespace")?;
        }
        move_into_link_name_space(ipc.as_fd(), Some(InterProcessCommunication))
            .context("the namespace of inter-process communication")
    }
}

/// Makes a namespace for each request, in the process that [`Maker::start`] starts.
pub(crate) fn make() -> anyhow::Result<u8> {
    let (mut requests, mut answers) = (io::stdin().lock(), io::stdout().lock());
    let mut has_user = false;
    let mut request = [0];
    while requests.read(&mut request)? > 0 {
        match unshare(UnshareFlags::NEWIPC) {
            Ok(()) => {}
            // Root would lose its rights to other users' files.
            Err(Errno::PERM) if !has_user && !geteuid().is_root() => {
                with_user()?;
                has_user = true;
            }
            Err(error) => return Err(error.into()),
        }
        answers.write_all(&[if has_user { MADE_WITH_USER } else { MADE }])?;
        answers.flush()?;
    }
    Ok(0)
}

/// Makes a user namespace in which only this process's user and group exist, and the other in it.
fn with_user() -> anyhow::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWIPC)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    Ok(())
}

#[expect(deprecated, reason = "what makes it unsound are flags that are not used here")]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}
