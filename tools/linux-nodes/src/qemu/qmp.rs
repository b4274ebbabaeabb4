//! QEMU's monitor, by QMP.

use std::io::{BufRead, BufReader, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};

/// The time limit for QEMU to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Longest answer, in bytes.
const LONGEST: u64 = 1 << 20;

/// A connection to the monitor of a node's QEMU.
pub struct Qmp {
    out: UnixStream,
    input: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects, if there is no other client.
    ///
    /// # Errors
    ///
    /// If QEMU has ended, or does not answer.
    pub fn connect(socket: &Path) -> anyhow::Result<Self> {
        let out = UnixStream::connect(socket).context("QEMU's monitor does not answer")?;
        out.set_read_timeout(Some(ANSWER))?;
        let mut monitor = Self { input: BufReader::new(out.try_clone()?), out };
        // It greets only the client that it listens to.
        monitor.line().context("QEMU's monitor is busy with another client")?;
        monitor.command("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    fn line(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.input.by_ref().take(LONGEST).read_line(&mut line)? == 0 {
            bail!("QEMU has ended");
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Gives a command, and returns its result.
    ///
    /// # Errors
    ///
    /// QEMU's own error; or if QEMU has ended, or does not answer.
    pub fn command(&mut self, name: &str, arguments: Value) -> anyhow::Result<Value> {
        self.send(name, arguments, &[])
    }

    /// Has the virtual machine run. Waits until QEMU says that it is about to, as the answer may
    /// take any time. QEMU drops commands of a client that hangs up before.
    ///
    /// # Errors
    ///
    /// As of [`Qmp::command`].
    pub(super) fn run(&mut self) -> anyhow::Result<()> {
        self.write("cont", json!({}), &[])?;
        self.answer(|line| line["event"] == "RESUME").map(drop)
    }

    /// Gives QEMU an open file, and returns the path at which it can open that in the same mode.
    ///
    /// # Errors
    ///
    /// As of [`Qmp::command`].
    pub(super) fn add(&mut self, file: BorrowedFd<'_>) -> anyhow::Result<String> {
        let added = self.send("add-fd", json!({}), &[file])?;
        let set = added["fdset-id"].as_u64().context("QEMU has not taken a file")?;
        Ok(format!("/dev/fdset/{set}"))
    }

    /// Gives QEMU a descriptor, to which later commands refer by `name`.
    ///
    /// # Errors
    ///
    /// As of [`Qmp::command`].
    pub fn pass(&mut self, name: &str, descriptor: BorrowedFd<'_>) -> anyhow::Result<()> {
        self.send("getfd", json!({ "fdname": name }), &[descriptor]).map(drop)
    }

    fn write(&mut self, name: &str, args: Value, fds: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let line = format!("{}\n", json!({ "execute": name, "arguments": args }));
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            let bytes = [IoSlice::new(rest)];
            let sent = sendmsg(&self.out, &bytes, &mut control, SendFlags::NOSIGNAL)
                .context("QEMU has ended")?;
            rest = &rest[sent..];
            control.clear();
        }
        Ok(())
    }

    fn send(&mut self, name: &str, args: Value, fds: &[BorrowedFd<'_>]) -> anyhow::Result<Value> {
        self.write(name, args, fds)?;
        // Events come in between.
        let mut answer = self.answer(|line| line.get("return").is_some())?;
        Ok(answer["return"].take())
    }

    /// Reads lines until one is an answer, or an error.
    fn answer(&mut self, is_answer: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        loop {
            let line = self.line()?;
            if let Some(error) = line.get("error") {
                bail!("QEMU says: {}", error["desc"].as_str().unwrap_or_default());
            }
            if is_answer(&line) {
                return Ok(line);
            }
        }
    }
}
