//! Connections to machines that run.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_agent::wire::{FrameReader, encode};
use tofu_fabric::Shape;

use crate::name::{MachineName, NodeName};
use crate::protocol::{MachineInfo, NetworkReply, NetworkRequest, NodeInfo, Reply, Request};
use crate::rundir;

/// How long a machine may take to answer what it knows at once.
const ANSWER: Duration = Duration::from_secs(5);

/// A connection to a machine.
pub struct Connection {
    out: UnixStream,
    input: FrameReader<UnixStream>,
}

impl Connection {
    /// Connects, and asks something.
    pub fn open(control: &Path, request: &Request) -> anyhow::Result<Self> {
        let out = UnixStream::connect(control).context("the machine does not answer")?;
        let input = FrameReader::new(out.try_clone()?);
        let mut connection = Self { out, input };
        connection.say(request)?;
        Ok(connection)
    }

    /// Asks, or tells, something more.
    ///
    /// # Errors
    ///
    /// If the machine has ended.
    pub fn say(&mut self, request: &Request) -> anyhow::Result<()> {
        self.out.write_all(&encode(request)?).context("the machine has ended")
    }

    /// The next answer.
    ///
    /// # Errors
    ///
    /// Also [`Reply::Error`].
    pub fn answer(&mut self) -> anyhow::Result<Reply> {
        match self.input.receive().context("the machine does not answer")? {
            Some(Reply::Error(why)) => bail!(why),
            Some(reply) => Ok(reply),
            None => bail!("the machine has ended"),
        }
    }

    /// Another handle of the connection.
    pub fn stream(&self) -> anyhow::Result<UnixStream> {
        Ok(self.out.try_clone()?)
    }

    /// Both directions on their own.
    pub fn split(self) -> (UnixStream, FrameReader<UnixStream>) {
        (self.out, self.input)
    }
}

/// A machine and its nodes, as it describes them.
pub fn info(control: &Path) -> anyhow::Result<(MachineInfo, Vec<NodeInfo>)> {
    let mut connection = Connection::open(control, &Request::Info)?;
    connection.out.set_read_timeout(Some(ANSWER))?;
    let Reply::Machine(machine) = connection.answer()? else { bail!("not an answer") };
    let mut nodes = Vec::new();
    while let Reply::Node(node) = connection.answer()? {
        nodes.push(node);
    }
    Ok((machine, nodes))
}

/// The machine of this name, or the only one there is.
pub fn find_machine(name: Option<&MachineName>) -> anyhow::Result<(MachineName, PathBuf)> {
    let machines = rundir::machines()?;
    let names = || {
        let names: Vec<_> = machines.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    };
    match (name, &machines[..]) {
        (_, []) => bail!("no machine is running; `tofu up --linux --detach` starts one"),
        (None, [only]) => Ok(only.clone()),
        (None, _) => bail!("several machines are running, name one of them: {}", names()),
        (Some(wanted), all) => match all.iter().find(|(name, _)| name == wanted) {
            Some(found) => Ok(found.clone()),
            None => bail!("no machine {wanted} is running; there are: {}", names()),
        },
    }
}

/// A node of a machine that runs.
pub struct Found {
    /// The socket of its machine.
    pub control: PathBuf,
    /// What the machine says of it.
    pub node: NodeInfo,
}

/// Finds what the user calls `text`: an index, coordinates or a name, with the machine in front
/// if need be.
pub fn find_node(text: &str) -> anyhow::Result<Found> {
    let (machine, wanted) = parse_node(text)?;
    let (name, control) = find_machine(machine.as_ref())?;
    let (_, nodes) = info(&control)?;
    let found = nodes.iter().find(|node| wanted.means(node));
    match found {
        Some(node) => Ok(Found { node: node.clone(), control }),
        None => bail!(
            "node {text}: the machine {name} has no such node with a guest; `tofu ps` lists them"
        ),
    }
}

/// What the user calls a node, and the machine if it is in front.
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

/// The place of a node that the user calls `text`, in a machine of this shape.
///
/// # Errors
///
/// If it has none.
pub fn place(node: NodeName, text: &str, shape: &Shape) -> anyhow::Result<Coords> {
    node.at(shape).with_context(|| format!("node {text}: the machine {shape} has no such node"))
}

/// Finds the machine of the node that the user calls `text`, and the node's place; whether there is
/// a guest does not matter. Returns the machine's socket, its shape, and the place.
///
/// # Errors
///
/// If there is none, or it does not answer.
pub fn locate(text: &str) -> anyhow::Result<(PathBuf, Shape, Coords)> {
    let (machine, node) = parse_node(text)?;
    let (_, control) = find_machine(machine.as_ref())?;
    let shape = shape(&control)?;
    let at = place(node, text, &shape)?;
    Ok((control, shape, at))
}

/// What a machine answers about its network.
pub fn ask(control: &Path, request: NetworkRequest) -> anyhow::Result<NetworkReply> {
    match Connection::open(control, &Request::Network(request))?.answer()? {
        Reply::Network(answer) => Ok(answer),
        _ => bail!("not an answer"),
    }
}

/// The shape of a machine that runs.
pub fn shape(control: &Path) -> anyhow::Result<Shape> {
    let (machine, _) = info(control)?;
    let shape: Shape = machine.shape.parse()?;
    Ok(shape.with_torus(machine.torus))
}
