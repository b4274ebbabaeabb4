//! The two nodes, as the scenes use them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_agent::files;
use tofu_agent::wire::{Exec, Status};
use tofu_control::protocol::{InspectRequest, Reply, Request};
use tofu_control::{RemoteProgram, ask, info};
use tofu_inspect::Value;
use tofu_linux_nodes::lab::Lab;
use tofu_linux_nodes::qemu::LinkError;
use tofu_supervisor::node::AgentNode;
use tofu_supervisor::programs;
use tofu_supervisor::registry::Registry;
use tofu_ui::printable;

/// Both nodes.
pub(crate) const NODES: [u32; 2] = [0, 1];
/// The longest silence of a node.
const SILENCE: Duration = Duration::from_secs(20);
/// Most bytes that are kept of a command's output.
const MOST: usize = 256 << 10;
/// The same of a long file.
const MOST_OF_A_FILE: usize = 64 << 20;
/// Lines of a console that are searched for its last words.
const CONSOLE: usize = 200;

/// The output of a command.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) ok: bool,
    pub(crate) text: String,
}

impl Said {
    /// The last line, for a report.
    pub(crate) fn last(&self) -> String {
        printable(self.text.trim().lines().last().unwrap_or("nothing"))
    }
}

/// A node is gone: it has died, hangs, or a command on it does not end.
#[derive(Debug)]
pub(crate) struct Gone(pub(crate) String);

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Gone {}

/// The nodes.
pub(crate) struct Nodes {
    control: PathBuf,
    registry: Arc<Registry>,
    patience: Duration,
    end: Instant,
    commands: AtomicU64,
}

impl Nodes {
    pub(crate) fn new(lab: &Lab, patience: Duration, end: Instant) -> Self {
        let registry = Arc::clone(lab.registry());
        Self { control: lab.control(), registry, patience, end, commands: AtomicU64::new(0) }
    }

    /// The number of commands that nodes were given.
    pub(crate) fn commands(&self) -> u64 {
        self.commands.load(Relaxed)
    }

    /// Runs a shell script on a node.
    ///
    /// # Errors
    ///
    /// [`Gone`] if it does not end in time, or the node does not answer.
    pub(crate) fn run(&self, node: u32, script: &str) -> anyhow::Result<Said> {
        self.run_for(node, script, MOST)
    }

    /// Reads a file of a node, which may be long.
    ///
    /// # Errors
    ///
    /// As [`Nodes::run`].
    pub(crate) fn read(&self, node: u32, path: &str) -> anyhow::Result<Said> {
        self.run_for(node, &format!("cat {path}"), MOST_OF_A_FILE)
    }

    fn run_for(&self, node: u32, script: &str, most: usize) -> anyhow::Result<Said> {
        let limit = self.patience.min(self.end.saturating_duration_since(Instant::now()));
        if limit.is_zero() {
            return Err(Gone("there is no time left (--limit)".into()).into());
        }
        self.commands.fetch_add(1, Relaxed);
        let exec = Exec::named(["sh", "-c", script]);
        let program = RemoteProgram::start_within(&self.control, node, exec, SILENCE)?;
        let (done, result) = mpsc::sync_channel(1);
        // If it never ends, the thread ends with the machine.
        thread::Builder::new().name("prove".into()).spawn(move || {
            let mut text = Vec::new();
            let status = program.follow(|_, bytes| {
                let room = most.saturating_sub(text.len());
                text.extend_from_slice(&bytes[..bytes.len().min(room)]);
                Ok(())
            });
            // The receiver may have given up.
            let _ = done.send(status.map(|status| (status, text)));
        })?;
        match result.recv_timeout(limit) {
            Ok(Ok((status, text))) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                Ok(Said { ok: matches!(status, Status::Code(0)), text })
            }
            Ok(Err(error)) => Err(Gone(self.last_words(node, &format!("{error:#}"))).into()),
            Err(_) => {
                let why = format!("a command has not ended after {} s", limit.as_secs());
                Err(Gone(self.last_words(node, &why)).into())
            }
        }
    }

    /// Runs a script on both nodes at the same time.
    pub(crate) fn both(&self, script: &str) -> anyhow::Result<[Said; 2]> {
        let [first, second] = thread::scope(|scope| {
            NODES.map(|node| scope.spawn(move || self.run(node, script))).map(|thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        });
        Ok([first?, second?])
    }

    /// Runs a script on both nodes, and fails if it does on one.
    pub(crate) fn both_must(&self, script: &str) -> anyhow::Result<[Said; 2]> {
        let said = self.both(script)?;
        for (node, said) in NODES.into_iter().zip(&said) {
            if !said.ok {
                bail!("node {node}: {}", said.last());
            }
        }
        Ok(said)
    }

    /// Ends both nodes and boots them again.
    ///
    /// # Errors
    ///
    /// If they do not boot in time.
    pub(crate) fn restart(&self) -> anyhow::Result<()> {
        for node in self.registry.linux() {
            node.restart()?;
        }
        let end = Instant::now() + 2 * self.patience;
        let is_ready = |node: &Arc<dyn AgentNode>| node.status().state == "ready";
        while !self.registry.linux().iter().all(is_ready) {
            if Instant::now() > end {
                bail!("the nodes have not booted again");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Copies a file to both nodes.
    pub(crate) fn copy(&self, path: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let mut archive = Vec::new();
        files::pack_bytes(name, 0o755, bytes, &mut archive)?;
        for node in self.registry.linux() {
            programs::must_run(node.agent(), Exec::unpack_alone(path), &archive)
                .context("cannot copy to a node")?;
        }
        Ok(())
    }

    /// A part of the state of a node's device. The host reads it without the guest.
    pub(crate) fn inspect(&self, node: u32, path: &str) -> anyhow::Result<Value> {
        let (path, depth) = (path.to_owned(), InspectRequest::depth());
        let request = InspectRequest { node, path, depth, limit: InspectRequest::limit() };
        match ask(&self.control, &Request::Inspect(request))? {
            Reply::Inspection { tree: Some(tree), .. } => Ok(tree),
            _ => bail!("node {node} has no device"),
        }
    }

    /// Replaces the faults of both devices.
    pub(crate) fn fault(&self, faults: &str) -> anyhow::Result<()> {
        for node in NODES {
            let faults = Some(faults.to_owned());
            ask(&self.control, &Request::SetDeviceFaults { node, faults })?;
        }
        Ok(())
    }

    /// Has the root port of a node report an error.
    pub(crate) fn link_error(&self, node: u32, error: LinkError) -> anyhow::Result<()> {
        let nodes = info(&self.control)?.nodes;
        let node = nodes.iter().find(|known| known.index == node).context("no such node")?;
        error.inject(&self.control, node)
    }

    /// Takes the link between the nodes down or up.
    pub(crate) fn link(&self, up: bool) -> anyhow::Result<()> {
        for port in ["X+", "X-"] {
            let request = Request::SetLink { node: 0, port: port.into(), up };
            // The shape may have one of them only.
            let _ = ask(&self.control, &request);
        }
        Ok(())
    }

    /// The reason for the end of a node, with what its console says of it.
    fn last_words(&self, node: u32, why: &str) -> String {
        let lines = self.registry.linux().get(node as usize).map(|node| {
            let lines = node.console().last_lines(CONSOLE);
            let signs = ["Kernel panic", "BUG:", "Oops", "Unable to handle"];
            lines.into_iter().find(|line| signs.iter().any(|sign| line.contains(sign)))
        });
        match lines.flatten() {
            Some(line) => format!("node {node}: {why}; its console: {}", printable(line.trim())),
            None => format!("node {node}: {why}"),
        }
    }
}
