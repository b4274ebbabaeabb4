//! QEMU's monitor, by QMP.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// How long QEMU may take to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Longest answer, in bytes.
const LONGEST: u64 = 1 << 20;

/// A connection to the monitor.
pub(super) struct Monitor {
    out: UnixStream,
    input: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects, if nobody else has.
    pub(super) fn connect(socket: &Path) -> anyhow::Result<Self> {
        let out = UnixStream::connect(socket).context("QEMU's monitor does not answer")?;
        out.set_read_timeout(Some(ANSWER))?;
        let mut monitor = Self { input: BufReader::new(out.try_clone()?), out };
        // It greets whom it listens to.
        monitor.line().context("QEMU's monitor is busy with somebody else")?;
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

    /// Makes gdb's server listen there, or, with `none`, stop listening.
    pub(super) fn gdbserver(&mut self, place: &str) -> anyhow::Result<()> {
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
