//! A process manager for ranks that speak PMIx, such as those of Open MPI. Ranks get their rank
//! numbers from it, and exchange addresses.
//!
//! The protocol is defined only by its library, libpmix, which also implements the server's side.
//! The library creates threads, signal handlers and files, so it runs in a separate process
//! ([`serve`]), which ends with the process that has started it ([`Server`]).

mod abi;
mod confine;
mod library;
mod server;

pub use server::serve;

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, SocketAddrV4};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tofu_agent::pmi::Report;

/// The command of a program that starts itself again as that process. It must call [`serve`].
pub const COMMAND: &str = "pmix-server";

/// The beginning of an address in a variable.
const SCHEME: &str = "tcp4://";

/// Names and values of a rank's variables.
pub type Variables = Vec<(String, String)>;

/// A job, which the process gets as one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The job's name.
    pub job: String,
    /// The nodes with their names and ranks.
    pub nodes: Vec<(String, Vec<u32>)>,
    /// The library, as a path or as a name for the loader.
    pub library: PathBuf,
    /// The ranks' place, if they are on other hosts than the server.
    pub away: Option<Away>,
}

/// Ranks on nodes whose files the server does not share. Their connections are carried to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Away {
    /// The number of their user, who is his own group.
    pub user: u32,
    /// The folder on each node in which they may have files.
    pub folder: PathBuf,
}

/// A job, and the folder for the process's files, which the process itself may be unable to remove.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    layout: Layout,
    files: PathBuf,
}

/// A line of JSON from the process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Said {
    /// It serves; the variables of each rank.
    Ready(Vec<Variables>),
    /// It does not.
    Failed(String),
    /// Something has happened to a rank.
    Reported(Report),
}

/// The process, which ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    input: Option<ChildStdin>,
    variables: Vec<Variables>,
    _files: TempDir,
}

impl Server {
    /// Starts `command`, which calls [`serve`]. `report` is called with what happens to ranks.
    ///
    /// # Errors
    ///
    /// If the process does not start, or the library is missing or does not serve.
    pub fn start(
        mut command: Command,
        layout: &Layout,
        report: impl Fn(Report) + Send + 'static,
    ) -> anyhow::Result<Self> {
        // Signals of a terminal are not for it: it would leave its files behind.
        if layout.away.is_some() {
            // Ranks get facts about the job as messages, not as a file.
            command.env("PMIX_MCA_gds", "hash");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().context("cannot start the PMIx server")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (mut input, output) = input.zip(output).context("a process without pipes")?;
        let files = tempfile::Builder::new().prefix("tofu-pmix-").tempdir()?;
        let task = Task { layout: layout.clone(), files: files.path().to_owned() };
        serde_json::to_writer(&mut input, &task)?;
        std::io::Write::write_all(&mut input, b"\n")?;
        let mut server = Self { child, input: Some(input), variables: Vec::new(), _files: files };
        let mut lines = BufReader::new(output).lines();
        let first = lines.next().context("the PMIx server has ended")??;
        match serde_json::from_str(&first)? {
            Said::Ready(variables) => server.variables = variables,
            Said::Failed(why) => bail!("{why}"),
            Said::Reported(_) => bail!("the PMIx server does not answer"),
        }
        thread::Builder::new().name("pmix".into()).spawn(move || {
            for line in lines.map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(Said::Reported(about)) => report(about),
                    _ => log::warn!("the PMIx server says {line:?}"),
                }
            }
        })?;
        Ok(server)
    }

    /// Returns the variables of a rank.
    pub fn variables(&self, rank: u32) -> &[(String, String)] {
        self.variables.get(rank as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns the address at which ranks reach the server.
    ///
    /// # Errors
    ///
    /// If no variable tells it.
    pub fn address(&self) -> anyhow::Result<SocketAddrV4> {
        let mut values = self.variables(0).iter().map(|(_, value)| value);
        let found = values.find_map(|value| value.split_once(SCHEME)?.1.parse().ok());
        found.context("the PMIx server's variables do not tell its address")
    }

    /// Returns the variables of a rank that reaches the server at another address.
    ///
    /// # Errors
    ///
    /// As of [`Server::address`].
    pub fn variables_by(&self, rank: u32, other: SocketAddr) -> anyhow::Result<Variables> {
        let own = format!("{SCHEME}{}", self.address()?);
        let other = format!("{SCHEME}{other}");
        let variables = self.variables(rank).iter();
        Ok(variables.map(|(name, value)| (name.clone(), value.replace(&own, &other))).collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.input = None;
        // It ends by itself, and within a limit.
        let _ = self.child.wait();
    }
}
