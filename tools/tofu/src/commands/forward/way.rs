//! The way from a port of this host to a port of a node.

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::bail;
use tofu_control::Connection;
use tofu_control::protocol::{NodeInfo, Reply, Request};
use tofu_sync::lock;

/// Connections at a time; each takes two threads.
pub(super) const MOST: usize = 256;
/// The shortest time between repetitions of the same message.
const QUIET: Duration = Duration::from_secs(1);
/// The target of a listener's connections.
pub(super) struct Way {
    control: PathBuf,
    pub(super) node: NodeInfo,
    pub(super) port: u16,
    /// Connections of all ways.
    pub(super) open: Arc<AtomicUsize>,
    /// The last error message, and its time.
    said: Mutex<Option<(String, Instant)>>,
}

impl Way {
    pub(super) fn new(control: PathBuf, node: NodeInfo, port: u16, open: Arc<AtomicUsize>) -> Self {
        Self { control, node, port, open, said: Mutex::default() }
    }

    /// Tells the user, without repeating the same message too often.
    pub(super) fn complain(&self, line: &str) {
        let mut said = lock(&self.said);
        let again = said.as_ref().is_some_and(|(last, at)| last == line && at.elapsed() < QUIET);
        if !again {
            tofu_ui::tell!("{line}");
            *said = Some((line.to_owned(), Instant::now()));
        }
    }

    /// A stream to a port of a node through the machine's gateway, of TCP's bytes or of datagrams.
    pub(super) fn connect(&self, udp: bool) -> anyhow::Result<(UnixStream, BufReader<UnixStream>)> {
        let (node, port) = (self.node.index, self.port);
        let request =
            if udp { Request::Datagrams { node, port } } else { Request::Forward { node, port } };
        let mut connection = Connection::open(&self.control, &request)?;
        let Reply::Done = connection.answer()? else { bail!("not an answer") };
        let (stream, input) = connection.split();
        // The node's first data may have come with the answer.
        Ok((stream, input.into_inner()))
    }
}
