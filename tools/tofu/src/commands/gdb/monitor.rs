//! gdb's server in QEMU, by its monitor.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::bail;
use serde_json::json;
use tofu_linux_nodes::qemu::Qmp;

/// A connection to the monitor.
pub(super) struct Monitor(Qmp);

impl Monitor {
    /// Connects, if there is no other client.
    pub(super) fn connect(socket: &Path) -> anyhow::Result<Self> {
        Qmp::connect(socket).map(Self)
    }

    /// Makes gdb's server take connections from a socket. QEMU may not make one itself.
    pub(super) fn serve_gdb(&mut self, listener: &UnixListener) -> anyhow::Result<()> {
        const NAME: &str = "gdb-server";
        self.0.pass(NAME, listener.as_fd())?;
        let address = json!({ "type": "fd", "data": { "str": NAME } });
        let socket = json!({ "addr": address, "server": true, "wait": false });
        let backend = json!({ "type": "socket", "data": socket });
        self.0.command("chardev-add", json!({ "id": NAME, "backend": backend }))?;
        self.gdbserver(&format!("chardev:{NAME}"))
    }

    /// Makes gdb's server stop.
    pub(super) fn end_gdb(&mut self) -> anyhow::Result<()> {
        self.gdbserver("none")
    }

    fn gdbserver(&mut self, place: &str) -> anyhow::Result<()> {
        let line = json!({ "command-line": format!("gdbserver {place}") });
        let said = self.0.command("human-monitor-command", line)?;
        let said = said.as_str().unwrap_or_default().trim().to_owned();
        if said.starts_with("Could not") || said.contains("Error") {
            bail!("QEMU says: {said}");
        }
        Ok(())
    }

    /// True if the node's processors run.
    pub(super) fn is_running(&mut self) -> anyhow::Result<bool> {
        let status = self.0.command("query-status", json!({}))?;
        Ok(status["running"] == true)
    }

    /// Has them run.
    pub(super) fn go_on(&mut self) -> anyhow::Result<()> {
        self.0.command("cont", json!({})).map(drop)
    }
}
