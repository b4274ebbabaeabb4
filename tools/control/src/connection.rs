//! Connections to running machines.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use tofu_abi::Coords;
use tofu_abi::topology::Shape;

use crate::lines::{LineError, LineReader, MAX_REPLY, encode};
use crate::name::{MachineName, NodeName};
use crate::protocol::{MachineInfo, NodeInfo, Reply, Request, VERSION};
use crate::rundir;

/// The time limit for a machine to answer questions that need no work.
const ANSWER: Duration = Duration::from_secs(5);
/// The time limit for the agents of Linux nodes to answer a ping.
pub const PING: Duration = Duration::from_secs(2);
/// The time for which the agent of a Linux node may be silent before a program there is abandoned,
/// unless the request says otherwise.
pub const SILENCE: Duration = Duration::from_secs(30);

/// A connection to a machine.
pub struct Connection {
    out: UnixStream,
    input: LineReader<UnixStream>,
}

impl Connection {
    /// Connects, and sends a request.
    ///
    /// # Errors
    ///
    /// If there is no answer, or the other end uses another version of the protocol.
    pub fn open(control: &Path, request: &Request) -> anyhow::Result<Self> {
        let out = UnixStream::connect(control).map_err(|error| match error.kind() {
            // The machine has ended since it was found.
            ErrorKind::NotFound => anyhow!("the machine has ended"),
            _ => anyhow::Error::from(error).context("the machine does not answer"),
        })?;
        Self::over(out, request)
    }

    /// Sends a request over a stream that leads to a machine.
    ///
    /// # Errors
    ///
    /// As [`Connection::open`].
    pub fn over(out: UnixStream, request: &Request) -> anyhow::Result<Self> {
        out.set_read_timeout(Some(ANSWER))?;
        let input = LineReader::new(out.try_clone()?, MAX_REPLY);
        let mut connection = Self { out, input };
        match connection.answer()? {
            Reply::Hello { protocol: VERSION, .. } => {}
            Reply::Hello { protocol, tofu } => bail!(
                "the machine is one of tofu {tofu}, whose control protocol has version {protocol}; \
                 this command speaks version {VERSION}"
            ),
            _ => bail!("not an answer"),
        }
        // A machine that has no room for another command says so, and reads no request.
        if let Err(error) = connection.say(request) {
            return Err(connection.answer().err().unwrap_or(error));
        }
        connection.out.set_read_timeout(None)?;
        Ok(connection)
    }

    /// Sends a further request.
    ///
    /// # Errors
    ///
    /// If the machine has ended.
    pub fn say(&mut self, request: &Request) -> anyhow::Result<()> {
        self.out.write_all(&encode(request)?).context("the machine has ended")
    }

    /// Returns the next answer.
    ///
    /// # Errors
    ///
    /// As [`Connection::reply`], and also for [`Reply::Error`].
    pub fn answer(&mut self) -> anyhow::Result<Reply> {
        match self.reply()? {
            Reply::Error { why } => bail!(why),
            reply => Ok(reply),
        }
    }

    /// Returns the next answer of any kind, which must arrive before `end`.
    ///
    /// # Errors
    ///
    /// As [`Connection::reply`], and also on a timeout.
    pub fn reply_until(&mut self, end: Instant) -> anyhow::Result<Reply> {
        // The time is for the whole answer, which may come byte by byte.
        let reply =
            self.input.receive_with(|stream| match end.saturating_duration_since(Instant::now()) {
                Duration::ZERO => Err(ErrorKind::WouldBlock.into()),
                left => stream.set_read_timeout(Some(left)),
            });
        self.out.set_read_timeout(None)?;
        reply.map_err(told)?.context("the machine has ended")
    }

    /// Returns the next answer of any kind.
    ///
    /// # Errors
    ///
    /// If the machine has ended, or sends something that is not a reply.
    pub fn reply(&mut self) -> anyhow::Result<Reply> {
        self.input.receive().map_err(told)?.context("the machine has ended")
    }

    /// Returns another handle of the connection.
    pub fn stream(&self) -> anyhow::Result<UnixStream> {
        Ok(self.out.try_clone()?)
    }

    /// Splits the connection into its two directions.
    pub fn split(self) -> (UnixStream, LineReader<UnixStream>) {
        (self.out, self.input)
    }
}

/// Converts an error of a stream into what users read.
fn told(error: LineError) -> anyhow::Error {
    match error {
        LineError::Io(error) if error.kind() == ErrorKind::WouldBlock => {
            anyhow!("the machine does not answer")
        }
        error => anyhow::Error::from(error).context("the machine does not answer"),
    }
}

/// Returns a machine's description of itself and its nodes.
pub fn info(control: &Path) -> anyhow::Result<MachineInfo> {
    look(control, false)
}

/// Returns the same description after pinging the nodes.
pub fn ping(control: &Path) -> anyhow::Result<MachineInfo> {
    look(control, true)
}

fn look(control: &Path, ping: bool) -> anyhow::Result<MachineInfo> {
    match ask(control, &Request::Info { ping })? {
        Reply::Machine(machine) => Ok(machine),
        _ => bail!("not an answer"),
    }
}

/// A running machine, or its shards on this host. Any of these shards answers for the whole
/// machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// The name of the machine.
    pub name: MachineName,
    /// The names and sockets of its processes here, at least one. If the machine is in shards,
    /// these are the names of the shards.
    pub sockets: Vec<(MachineName, PathBuf)>,
}

/// Returns the machines on this host, and those with shards on it, by name.
///
/// # Errors
///
/// If their folder cannot be read.
pub fn present() -> anyhow::Result<Vec<Present>> {
    let mut found: Vec<Present> = Vec::new();
    for (name, socket) in rundir::machines()? {
        let whole = name.of_whole();
        match found.iter_mut().find(|machine| machine.name == whole) {
            Some(machine) => machine.sockets.push((name, socket)),
            None => found.push(Present { name: whole, sockets: vec![(name, socket)] }),
        }
    }
    Ok(found)
}

/// Finds the machine of this name, or the only one if there is no name. Machines of `tofu run` are
/// considered only if there are no others, so that a job in one terminal does not make `tofu exec
/// 0` ambiguous in another.
///
/// # Errors
///
/// If there is none, or if there are several and none is named.
pub fn find_present(name: Option<&MachineName>) -> anyhow::Result<Present> {
    let machines = present()?;
    let names = || {
        let names: Vec<_> = machines.iter().map(|machine| machine.name.as_str()).collect();
        names.join(", ")
    };
    let lasting: Vec<_> = machines.iter().filter(|machine| !machine.name.is_of_a_run()).collect();
    let (wanted, found) = match (name, &machines[..]) {
        (_, []) => bail!("no machine is running; `tofu up --linux --detach` starts one"),
        (None, [only]) => return Ok(only.clone()),
        (None, _) if lasting.len() == 1 => return Ok(lasting[0].clone()),
        (None, _) => bail!("several machines are running, name one of them: {}", names()),
        // A shard may be given by its own name as well.
        (Some(wanted), all) => (wanted, all.iter().find(|machine| machine.is_called(wanted))),
    };
    found
        .cloned()
        .with_context(|| format!("no machine {wanted} is running; there are: {}", names()))
}

impl Present {
    fn is_called(&self, wanted: &MachineName) -> bool {
        self.name == *wanted || self.sockets.iter().any(|(name, _)| name == wanted)
    }
}

/// Finds a machine, and the socket for requests to it: that of the named shard, or of the first
/// shard here.
///
/// # Errors
///
/// As [`find_present`].
pub fn find_machine(name: Option<&MachineName>) -> anyhow::Result<(MachineName, PathBuf)> {
    let Present { name: machine, sockets } = find_present(name)?;
    let named = sockets.iter().find(|(shard, _)| Some(shard) == name).or(sockets.first());
    let (_, socket) = named.context("a machine without a process")?;
    Ok((machine, socket.clone()))
}

/// A node of a running machine.
pub struct Found {
    /// The socket of its machine.
    pub control: PathBuf,
    /// The machine's description of it.
    pub node: NodeInfo,
}

/// Finds the node that the user calls `text`: an index, coordinates or a name, preceded by the
/// machine if necessary.
pub fn find_node(text: &str) -> anyhow::Result<Found> {
    let (machine, wanted) = parse_node(text)?;
    let (name, control) = find_machine(machine.as_ref())?;
    let nodes = info(&control)?.nodes;
    let found = nodes.iter().find(|node| wanted.means(node));
    match found {
        Some(node) => Ok(Found { node: node.clone(), control }),
        None => bail!(
            "node {text}: the machine {name} has no such node with a guest; `tofu ps` lists them"
        ),
    }
}

/// Parses a user's name for a node, and the machine if that precedes it.
pub fn parse_node(text: &str) -> anyhow::Result<(Option<MachineName>, NodeName)> {
    let (machine, node) = match text.split_once('/') {
        Some((machine, node)) => {
            let name = machine
                .parse()
                .map_err(|allowed| anyhow::anyhow!("node {text}: a machine's name is {allowed}"))?;
            (Some(name), node)
        }
        None => (None, text),
    };
    let wanted = NodeName::parse(node).with_context(|| {
        format!(
            "node {text}: not a node; give an index such as 0, coordinates such as 0,0,0,0,0,0 or \
             a name such as t-0-0-0-0-0-0"
        )
    })?;
    Ok((machine, wanted))
}

/// Returns the coordinates of the node that the user calls `text`, in a machine of this shape.
///
/// # Errors
///
/// If the machine has no such node.
pub fn place(node: NodeName, text: &str, shape: &Shape) -> anyhow::Result<Coords> {
    node.at(shape).with_context(|| format!("node {text}: the machine {shape} has no such node"))
}

/// Returns the number of a node that [`place`] has found.
///
/// # Errors
///
/// If the node belongs to another machine.
pub fn node_number(shape: &Shape, at: Coords) -> anyhow::Result<u32> {
    let id = shape.node_id(at);
    Ok(id.with_context(|| format!("the machine {shape} has no node {at}"))?.0)
}

/// Finds the machine of the node that the user calls `text`, and the node's place, which need not
/// have a guest. Returns the machine's socket, its shape, and the place.
///
/// # Errors
///
/// If there is no such machine or node, or the machine does not answer.
pub fn locate(text: &str) -> anyhow::Result<(PathBuf, Shape, Coords)> {
    let (machine, node) = parse_node(text)?;
    let (_, control) = find_machine(machine.as_ref())?;
    let shape = shape(&control)?;
    let at = place(node, text, &shape)?;
    Ok((control, shape, at))
}

/// Asks a machine a question that needs no work.
pub fn ask(control: &Path, request: &Request) -> anyhow::Result<Reply> {
    let mut connection = Connection::open(control, request)?;
    connection.out.set_read_timeout(Some(ANSWER))?;
    connection.answer()
}

/// Returns the shape of a running machine.
pub fn shape(control: &Path) -> anyhow::Result<Shape> {
    info(control)?.shape()
}
