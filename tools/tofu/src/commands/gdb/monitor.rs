//! QEMU's monitor, by QMP.

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};

/// The time limit for QEMU to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Longest answer, in bytes.
const LONGEST: u64 = 1 << 20;

/// A connection to the monitor.
pub(super) struct Monitor {
    out: UnixStream,
    input: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects, if there is no other client.
    pub(super) fn connect(socket: &Path) -> anyhow::Result<Self> {
        let out = UnixStream::connect(socket).context("QEMU's monitor does not answer")?;
        out.set_read_timeout(Some(ANSWER))?;
        let mut monitor = Self { input: BufReader::new(out.try_clone()?), out };
        // It greets whom it listens to.
        monitor.line().context("QEMU's monitor is busy with another client")?;
        monitor.command(&json!({ "execute": "qmp_capabilities" }))?;
        Ok(monitor)
    }

    fn line(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.input.by_ref().take(LONGEST).read_line(&mut line)? == 0 {
            bail!("QEMU has ended");
        }
        Ok(serde_json::from_str(&line)?)
    }

    fn command(&mut self, command: &Value) -> anyhow::Result<Value> {
        writeln!(self.out, "{command}").context("QEMU has ended")?;
        self.answer()
    }

    fn answer(&mut self) -> anyhow::Result<Value> {
        loop {
            // Events come in between.
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU says: {}", error["desc"].as_str().unwrap_or_default());
            }
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
        }
    }

    /// Makes gdb's server take connections from a socket. QEMU may not make one itself.
    pub(super) fn serve_gdb(&mut self, listener: &UnixListener) -> anyhow::Result<()> {
        const NAME: &str = "gdb-server";
        let named = json!({ "execute": "getfd", "arguments": { "fdname": NAME } });
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [listener.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let line = format!("{named}\n");
        let bytes = [IoSlice::new(line.as_bytes())];
        sendmsg(&self.out, &bytes, &mut control, SendFlags::NOSIGNAL).context("QEMU has ended")?;
        self.answer()?;
        let address = json!({ "type": "fd", "data": { "str": NAME } });
        let socket = json!({ "addr": address, "server": true, "wait": false });
        let backend = json!({ "type": "socket", "data": socket });
        let arguments = json!({ "id": NAME, "backend": backend });
        self.command(&json!({ "execute": "chardev-add", "arguments": arguments }))?;
        self.gdbserver(&format!("chardev:{NAME}"))
    }

    /// Makes gdb's server stop.
    pub(super) fn end_gdb(&mut self) -> anyhow::Result<()> {
        self.gdbserver("none")
    }

    fn gdbserver(&mut self, place: &str) -> anyhow::Result<()> {
        let line = json!({ "command-line": format!("gdbserver {place}") });
        let said =
            self.command(&json!({ "execute": "human-monitor-command", "arguments": line }))?;
        let said = said.as_str().unwrap_or_default().trim().to_owned();
        if said.starts_with("Could not") || said.contains("Error") {
            bail!("QEMU says: {said}");
        }
        Ok(())
    }

    /// Whether the node's processors run.
    pub(super) fn is_running(&mut self) -> anyhow::Result<bool> {
        let status = self.command(&json!({ "execute": "query-status" }))?;
        Ok(status["running"] == true)
    }

    /// Has them run.
    pub(super) fn go_on(&mut self) -> anyhow::Result<()> {
        self.command(&json!({ "execute": "cont" })).map(drop)
    }
}
