//! Commands that speak to a machine that runs: `ps`, `hosts`, `exec`, `console`, `cp`, `forward`,
//! `restart`, `down`, `link`, `fault`, `stats`, `capture`.

pub(crate) mod capture;
pub(crate) mod console;
pub(crate) mod cp;
pub(crate) mod exec;
pub(crate) mod fault;
pub(crate) mod forward;
pub(crate) mod hosts;
pub(crate) mod link;
pub(crate) mod ps;
pub(crate) mod stats;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_agent::wire::{FrameReader, encode};
use tofu_fabric::{NodeId, Shape};

use crate::cli::{DownArgs, RestartArgs};
use crate::linux::control::{MachineInfo, NodeInfo, Reply, Request};
use crate::rundir;
use crate::units::MachineName;

/// How long a machine may take to answer what it knows at once.
const ANSWER: Duration = Duration::from_secs(5);
/// How long it may take to end.
const END: Duration = Duration::from_secs(20);

/// A connection to a machine.
pub(crate) struct Connection {
    out: UnixStream,
    input: FrameReader<UnixStream>,
}

impl Connection {
    /// Connects, and asks something.
    pub(crate) fn open(control: &Path, request: &Request) -> anyhow::Result<Self> {
        let out = UnixStream::connect(control).context("the machine does not answer")?;
        let input = FrameReader::new(out.try_clone()?);
        let mut connection = Self { out, input };
        connection.say(request)?;
        Ok(connection)
    }

    pub(crate) fn say(&mut self, request: &Request) -> anyhow::Result<()> {
        self.out.write_all(&encode(request)?).context("the machine has ended")
    }

    /// The next answer.
    ///
    /// # Errors
    ///
    /// Also [`Reply::Error`].
    pub(crate) fn answer(&mut self) -> anyhow::Result<Reply> {
        match self.input.receive().context("the machine does not answer")? {
            Some(Reply::Error(why)) => bail!(why),
            Some(reply) => Ok(reply),
            None => bail!("the machine has ended"),
        }
    }

    /// Another handle of the connection.
    pub(crate) fn stream(&self) -> anyhow::Result<UnixStream> {
        Ok(self.out.try_clone()?)
    }

    pub(crate) fn split(self) -> (UnixStream, FrameReader<UnixStream>) {
        (self.out, self.input)
    }
}

/// A machine and its nodes, as it describes them.
pub(crate) fn info(control: &Path) -> anyhow::Result<(MachineInfo, Vec<NodeInfo>)> {
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
pub(crate) fn find_machine(name: Option<&MachineName>) -> anyhow::Result<(MachineName, PathBuf)> {
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
pub(crate) struct Found {
    pub(crate) control: PathBuf,
    pub(crate) node: NodeInfo,
}

/// Finds what the user calls `text`: an index, coordinates or a name, with the machine in front
/// if need be.
pub(crate) fn find_node(text: &str) -> anyhow::Result<Found> {
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
pub(crate) fn parse_node(text: &str) -> anyhow::Result<(Option<MachineName>, NodeName)> {
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

/// How a node can be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeName {
    Index(u32),
    At([u8; 6]),
}

impl NodeName {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse::<u32>().ok()).flatten()
        };
        if let Some(index) = number(text) {
            return Some(Self::Index(index));
        }
        let parts: Vec<&str> = match text.strip_prefix("t-") {
            Some(name) => name.split('-').collect(),
            None => {
                let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
                inner.unwrap_or(text).split(',').map(str::trim).collect()
            }
        };
        let at: Option<Vec<u8>> =
            parts.iter().map(|part| number(part).and_then(|n| u8::try_from(n).ok())).collect();
        at?.try_into().ok().map(Self::At)
    }

    /// Where it is in a machine of this shape.
    pub(crate) fn at(self, shape: &Shape) -> Option<Coords> {
        match self {
            Self::Index(index) => shape.coords(NodeId(index)),
            Self::At(at) => Some(Coords::from_array(at)).filter(|at| shape.contains(*at)),
        }
    }

    fn means(self, node: &NodeInfo) -> bool {
        match self {
            Self::Index(index) => node.index == index,
            Self::At(at) => node.at == at,
        }
    }
}

/// Runs `tofu pause` (`on`) or `tofu resume` and returns the exit code.
pub(crate) fn hold(node: &str, on: bool) -> anyhow::Result<u8> {
    let found = find_node(node)?;
    let node = found.node.index;
    Connection::open(&found.control, &Request::Hold { node, on })?.answer()?;
    Ok(0)
}

/// Runs `tofu restart` and returns the exit code.
pub(crate) fn restart(args: &RestartArgs) -> anyhow::Result<u8> {
    let found = find_node(&args.node)?;
    let node = found.node.index;
    Connection::open(&found.control, &Request::Restart { node })?.answer()?;
    // Until it can be used, or has failed for good.
    loop {
        let (_, nodes) = info(&found.control)?;
        let now = nodes.iter().find(|info| info.index == node).map(|info| info.state.as_str());
        match now {
            Some("ready") => return Ok(0),
            Some("off") | None => {
                bail!("node {} did not come up again; `tofu console {0}` shows why", args.node)
            }
            Some(_) => sleep(Duration::from_millis(50)),
        }
    }
}

/// Runs `tofu down` and returns the exit code.
pub(crate) fn down(args: &DownArgs) -> anyhow::Result<u8> {
    let machines = match args.all {
        true => rundir::machines()?,
        false => vec![find_machine(args.name.as_ref())?],
    };
    for (name, control) in &machines {
        let asked = Connection::open(control, &Request::Down)
            .and_then(|mut connection| connection.answer());
        if let Err(error) = asked
            && !rundir::is_gone(control)
        {
            return Err(error).with_context(|| format!("machine {name}"));
        }
    }
    let end = Instant::now() + END;
    for (name, control) in &machines {
        while !rundir::is_gone(control) {
            if Instant::now() > end {
                bail!("the machine {name} does not end");
            }
            sleep(Duration::from_millis(10));
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_several_names() {
        assert_eq!(NodeName::parse("11"), Some(NodeName::Index(11)));
        let at = Some(NodeName::At([1, 0, 0, 1, 2, 0]));
        for text in ["1,0,0,1,2,0", "t-1-0-0-1-2-0", "(1,0,0,1,2,0)", "1, 0, 0, 1, 2, 0"] {
            assert_eq!(NodeName::parse(text), at, "{text}");
        }
        for text in ["", "-1", "+1", "1,0,0,1,2", "1,0,0,1,2,0,0", "1,0,0,1,2,256", "t-1", "x"] {
            assert_eq!(NodeName::parse(text), None, "{text}");
        }
    }
}
