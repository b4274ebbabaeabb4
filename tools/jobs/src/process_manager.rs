//! The process manager of an MPI job on Linux nodes, by which its ranks find each other.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_agent::relay;
use tofu_agent::wire::{Exec, Output, ToProgram};
use tofu_control::RemoteProgram;
use tofu_pmix::{Away, Server};

use crate::elf::Family;
use crate::job::{Event, Teller};
use crate::machine::Machine;
use crate::mpi;
use crate::place::Placement;

/// The time limit for a program of the agent to report its address, in guests that may be slow.
const START: Duration = Duration::from_secs(120);
/// The longest line of such a program, in bytes.
const MAX_LINE: usize = 2000;

/// Ranks that need a process manager.
pub(crate) struct Ranks<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) placement: &'a Placement,
    /// The job's name.
    pub(crate) name: &'a str,
    /// The job's folder on nodes.
    pub(crate) folder: &'a str,
    /// The ranks' user.
    pub(crate) user: u32,
}

/// The process manager that ranks of an MPI library need.
pub(crate) enum Manager {
    /// For PMI-1.
    Pmi(Pmi),
    /// For PMIx.
    Pmix(Pmix),
    /// None, for a rank that is the only one.
    Alone,
}

impl Manager {
    /// Starts the process manager for an MPI library.
    ///
    /// # Errors
    ///
    /// If it does not start, or ranks could not reach it.
    pub(crate) fn start(
        ranks: &Ranks<'_>,
        family: Option<Family>,
        events: Teller,
    ) -> anyhow::Result<Self> {
        match family {
            Some(Family::OpenMpi { .. }) => match Pmix::start(ranks, events) {
                // It takes itself for the only one without a server.
                Err(error) if ranks.placement.info.job.processes() == 1 => {
                    log::info!("the rank runs without PMIx: {error:#}");
                    Ok(Self::Alone)
                }
                started => started.map(Self::Pmix),
            },
            _ => Pmi::start(ranks, events).map(Self::Pmi),
        }
    }

    /// Returns the variables by which a rank finds it.
    ///
    /// # Errors
    ///
    /// If there are none for this rank.
    pub(crate) fn variables(
        &self,
        rank: u32,
        placement: &Placement,
    ) -> anyhow::Result<Vec<(String, String)>> {
        match self {
            Self::Pmi(pmi) => Ok(placement.mpi_variables(rank, Some(&pmi.address))),
            Self::Pmix(pmix) => {
                let numbers = placement.mpi_variables(rank, None);
                let at = pmix.addresses.get(&placement.node(rank)).context("no such node")?;
                Ok([numbers, pmix.server.variables_by(rank, *at)?].concat())
            }
            Self::Alone => Ok(Vec::new()),
        }
    }

    /// Ends it.
    pub(crate) fn end(self) {
        let programs = match self {
            Self::Pmi(pmi) => vec![pmi.remote],
            Self::Pmix(pmix) => pmix.relays,
            Self::Alone => Vec::new(),
        };
        for program in programs {
            // If this fails, it has ended.
            let _ = program.say(ToProgram::Kill);
        }
    }
}

/// A process manager for PMI-1, on the node of the job's first rank.
pub(crate) struct Pmi {
    remote: RemoteProgram,
    /// The address at which ranks reach it.
    address: String,
}

impl Pmi {
    fn start(ranks: &Ranks<'_>, events: Teller) -> anyhow::Result<Self> {
        let Ranks { machine, placement, .. } = ranks;
        let job = &placement.info.job;
        let exec =
            Exec::agent(["pmi".to_owned(), job.processes().to_string(), placement.mpi_mapping()]);
        let node = machine.index(placement.node(0))?;
        let remote = RemoteProgram::start(&machine.control, node, exec)?;
        let (sender, addresses) = mpsc::sync_channel(1);
        let followed = remote.clone();
        let follow = move || {
            let mut text = Vec::new();
            let status = followed.follow(|output, bytes| {
                if output == Output::Out {
                    text.extend_from_slice(bytes);
                }
                while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = text.drain(..=end).collect();
                    take_line(String::from_utf8_lossy(&line).trim(), &sender, &events);
                }
                if text.len() > MAX_LINE {
                    // Not a line of the manager.
                    text.clear();
                }
                Ok(())
            });
            log::debug!("the ranks' process manager has ended: {status:?}");
        };
        thread::Builder::new().name("manager".into()).spawn(follow).context("no threads left")?;
        let address = addresses.recv_timeout(START);
        let address = address.context("the process manager for the ranks does not start")?;
        if placement.nodes().len() > 1 && address.starts_with("127.") {
            bail!(
                "MPI needs tofu0 or an Ethernet between the nodes, and the machine {} has neither; \
                 start it with `tofu up --linux --net lan`",
                machine.name
            );
        }
        Ok(Self { remote, address })
    }
}

/// Handles a line of the process manager: first its address, later a report about a rank.
fn take_line(line: &str, addresses: &SyncSender<String>, events: &Teller) {
    if !line.contains(' ') {
        // One is enough. If it came too late, the receiver has gone.
        let _ = addresses.try_send(line.to_owned());
    } else if let Ok(report) = line.parse() {
        events.tell(Event::Reported(report));
    } else {
        log::warn!("the ranks' process manager says {:?}", tofu_ui::printable(line));
    }
}

/// A PMIx server on this host. The agent of each node carries its ranks' connections, so nodes need
/// neither a network nor a library for servers.
pub(crate) struct Pmix {
    server: Server,
    relays: Vec<RemoteProgram>,
    /// The address at which the ranks of each node reach it.
    addresses: HashMap<Coords, SocketAddr>,
}

impl Pmix {
    fn start(ranks: &Ranks<'_>, events: Teller) -> anyhow::Result<Self> {
        let Ranks { machine, placement, .. } = ranks;
        let away = Away { user: ranks.user, folder: ranks.folder.into() };
        let server = mpi::serve(placement, ranks.name, Some(away), events)?;
        let at = server.address()?;
        let mut relays = Vec::new();
        let mut waiting = Vec::new();
        for node in placement.nodes() {
            let (remote, address) = start_relay(machine, machine.index(node)?, at)?;
            relays.push(remote);
            waiting.push((node, address));
        }
        let address = |(node, line): (Coords, Receiver<String>)| {
            let line = line.recv_timeout(START).ok();
            let address = line.and_then(|line| line.trim().parse().ok());
            Ok((node, address.with_context(|| format!("node {node}: no relay for MPI's ranks"))?))
        };
        let addresses: anyhow::Result<_> = waiting.into_iter().map(address).collect();
        Ok(Self { server, relays, addresses: addresses? })
    }
}

/// Starts what carries connections of a node's ranks to a server here. Returns its program, and
/// what receives the line with its address.
fn start_relay(
    machine: &Machine,
    node: u32,
    server: SocketAddrV4,
) -> anyhow::Result<(RemoteProgram, Receiver<String>)> {
    let exec = Exec::agent(["relay"]).with_input();
    let remote = RemoteProgram::start(&machine.control, node, exec)?;
    let (from_node, mut passed) = io::pipe()?;
    let (frames, to_node) = io::pipe()?;
    let spawn = |run: Box<dyn FnOnce() + Send>| {
        let thread = thread::Builder::new().name("relay".into());
        thread.spawn(run).context("no threads left").map(drop)
    };
    let followed = remote.clone();
    spawn(Box::new(move || {
        let status = followed.follow(|output, bytes| match output {
            Output::Out => passed.write_all(bytes),
            Output::Err => Ok(()),
        });
        log::debug!("node {node}: the relay has ended: {status:?}");
        followed.give_up();
    }))?;
    let fed = remote.clone();
    spawn(Box::new(move || fed.feed(frames)))?;
    let (sender, address) = mpsc::sync_channel(1);
    spawn(Box::new(move || {
        let mut input = BufReader::new(from_node);
        let mut line = String::new();
        let read = (&mut input).take(MAX_LINE as u64).read_line(&mut line);
        // If it came too late, the receiver has gone.
        let _ = read.map(|_| sender.send(line));
        if let Err(error) = relay::join(input, to_node, || TcpStream::connect(server)) {
            log::warn!("node {node}: the relay for MPI's ranks: {error}");
        }
    }))?;
    Ok((remote, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Control;
    use std::time::Instant;
    use tofu_agent::pmi::Report;

    #[test]
    fn process_manager_output_is_parsed() {
        let (addresses, got_addresses) = mpsc::sync_channel(1);
        let control = Control::new(Duration::ZERO).unwrap();
        let events = control.teller();
        take_line("10.84.0.1:40000", &addresses, &events);
        take_line("3 aborted -1", &addresses, &events);
        take_line("what else", &addresses, &events);
        assert_eq!(got_addresses.try_iter().collect::<Vec<_>>(), ["10.84.0.1:40000"]);
        assert!(matches!(control.next(None), Ok(Some(Event::Reported(Report::Aborted(3, -1))))));
        let now = Some(Instant::now());
        assert!(matches!(control.next(now), Ok(None)));
        // Events of an earlier start are ignored.
        control.again();
        events.tell(Event::Reported(Report::Aborted(3, -1)));
        assert!(matches!(control.next(now), Ok(None)));
    }
}
