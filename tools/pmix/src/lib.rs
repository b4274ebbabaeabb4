//! A process manager for ranks that speak PMIx, such as those of Open MPI. Ranks get their rank
//! numbers from it, and exchange addresses.
//!
//! The protocol is defined only by its library, libpmix, which also implements the server's side.
//! The library creates threads, signal handlers and files, so it runs in a separate process
//! ([`serve`]), which ends with the process that has started it ([`Server`]).

mod abi;
mod library;
mod server;

pub use server::serve;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

/// The command of a program that starts itself again as that process. It must call [`serve`].
pub const COMMAND: &str = "pmix-server";

/// Names and values of a rank's variables.
type Variables = Vec<(String, String)>;

/// A job, which the process gets as one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The job's name.
    pub job: String,
    /// The nodes with their names and ranks.
    pub nodes: Vec<(String, Vec<u32>)>,
    /// The library, as a path or as a name for the loader.
    pub library: PathBuf,
}

/// A line of JSON from the process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Said {
    /// It serves; the variables of each rank.
    Ready(Vec<Variables>),
    /// It does not.
    Failed(String),
    /// A rank wants the job to end with this code.
    Abort { rank: u32, code: i32 },
}

/// The process, which ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    input: Option<ChildStdin>,
    variables: Vec<Variables>,
}

impl Server {
    /// Starts `command`, which calls [`serve`]. `on_abort` is called with the rank and the code of
    /// each abort.
    ///
    /// # Errors
    ///
    /// If the process does not start, or the library is missing or does not serve.
    pub fn start(
        mut command: Command,
        layout: &Layout,
        on_abort: impl Fn(u32, i32) + Send + 'static,
    ) -> anyhow::Result<Self> {
        // Signals of a terminal are not for it: it would leave its files behind.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().context("cannot start the PMIx server")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (mut input, output) = input.zip(output).context("a process without pipes")?;
        serde_json::to_writer(&mut input, layout)?;
        std::io::Write::write_all(&mut input, b"\n")?;
        let mut server = Self { child, input: Some(input), variables: Vec::new() };
        let mut lines = BufReader::new(output).lines();
        let first = lines.next().context("the PMIx server has ended")??;
        match serde_json::from_str(&first)? {
            Said::Ready(variables) => server.variables = variables,
            Said::Failed(why) => bail!("{why}"),
            Said::Abort { .. } => bail!("the PMIx server does not answer"),
        }
        thread::Builder::new().name("pmix".into()).spawn(move || {
            for line in lines.map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(Said::Abort { rank, code }) => on_abort(rank, code),
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
}

impl Drop for Server {
    fn drop(&mut self) {
        self.input = None;
        // It ends by itself, and within a limit.
        let _ = self.child.wait();
    }
}
