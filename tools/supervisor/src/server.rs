//! The control socket of a machine: serves `tofu ps`, `exec`, `cp`, `run`, `console`, `down`.
//!
//! Lines of JSON, as docs/src/reference/control.md has it.

mod capture;
mod counters;
mod events;
mod inspect;
mod jobs;
mod metrics;
mod network;
mod registers;
mod reply;

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_agent::wire::FromProgram;
use tofu_control::lines::{LineError, LineReader, MAX_REQUEST};
use tofu_control::protocol::{MachineInfo, NodeInfo, NodeKind, Reply, Request, VERSION};
use tofu_control::{PING, node_name};
use tofu_fabric::NodeId;
use tofu_gateway::{Connected, Connector};

use crate::agent::ProgramHandle;
use crate::event::Event;
use crate::node::{AgentNode, NodeStatus};
use crate::registry::Registry;
use reply::say;

pub use metrics::Metrics;

/// Serves the socket, from now on to the end of the process.
pub fn serve(socket: &Path, registry: &Arc<Registry>) -> anyhow::Result<()> {
    let cannot = || format!("cannot make the control socket {}", socket.display());
    let listener = UnixListener::bind(socket).with_context(cannot)?;
    let registry = Arc::clone(registry);
    let accept = move || {
        for client in listener.incoming() {
            match client {
                Ok(client) => {
                    let registry = Arc::clone(&registry);
                    let thread = thread::Builder::new().name("control".into());
                    let run = move || {
                        if let Err(error) = serve_client(client, &registry) {
                            log::debug!("control: {error:#}");
                        }
                    };
                    if let Err(error) = thread.spawn(run) {
                        log::warn!("control: no threads left: {error}");
                    }
                }
                Err(error) => {
                    log::warn!("control: {error}");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    };
    thread::Builder::new().name("control".into()).spawn(accept).context("no threads left")?;
    Ok(())
}

fn serve_client(mut client: UnixStream, registry: &Registry) -> anyhow::Result<()> {
    let tofu = env!("CARGO_PKG_VERSION").to_owned();
    match say(&mut client, &Reply::Hello { protocol: VERSION, tofu }) {
        // It only wanted to know whether somebody is here.
        Err(error) if is_gone(&error) => return Ok(()),
        said => said?,
    }
    let mut requests = LineReader::new(client.try_clone()?, MAX_REQUEST);
    loop {
        let request = match requests.receive() {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(LineError::Io(error)) if error.kind() == ErrorKind::ConnectionReset => {
                return Ok(());
            }
            Err(LineError::Malformed(error)) => {
                say(&mut client, &Reply::Error { why: format!("not a request: {error}") })?;
                continue;
            }
            Err(error) => {
                say(&mut client, &Reply::Error { why: format!("not a request: {error}") })?;
                return Err(error.into());
            }
        };
        let reply = match request {
            // These have the rest of the connection.
            Request::Exec(exec) => {
                let started =
                    find(registry, exec.node).and_then(|node| node.agent().exec(exec.exec));
                match started {
                    Ok(running) => {
                        let (handle, events) = running.split();
                        return serve_program(client, requests, handle, events);
                    }
                    Err(error) => Err(error),
                }
            }
            Request::Console { node } => match find(registry, node) {
                Ok(node) => return serve_console(client, requests.into_inner(), node),
                Err(error) => Err(error),
            },
            Request::Forward { node, port } => match connect(registry, node, port) {
                Ok(connected) => {
                    say(&mut client, &Reply::Done)?;
                    return Ok(connected.splice(client)?);
                }
                Err(error) => Err(error),
            },
            Request::Datagrams { node, port } => {
                match datagrams(&mut client, registry, node, port) {
                    Ok(()) => return Ok(()),
                    Err(error) => Err(error),
                }
            }
            Request::Capture(ask) => match capture::begin(registry, &ask) {
                Ok(begun) => return begun.serve(&mut client, requests),
                Err(error) => Err(error),
            },
            Request::Events => return events::serve(client, requests, registry),
            Request::Job { command, pid } => {
                return jobs::serve(client, requests, registry, (&command, pid));
            }
            Request::Down => {
                // First, as this process may end before it could be said.
                say(&mut client, &Reply::Done)?;
                // If nobody listens any more the machine is going down already.
                let _ = registry.events.send(Event::Down);
                continue;
            }
            request => answer(registry, request),
        };
        say(
            &mut client,
            &reply.unwrap_or_else(|error| Reply::Error { why: format!("{error:#}") }),
        )?;
    }
}

/// Whether a client has left.
fn is_gone(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset))
}

/// Does what a client wants that has one answer.
fn answer(registry: &Registry, request: Request) -> anyhow::Result<Reply> {
    match request {
        Request::Info { ping } => return Ok(Reply::Machine(info(registry, ping))),
        Request::Restart { node } => {
            find(registry, node)?.restart()?;
            registry.goes_on(NodeId(node));
        }
        Request::Pause { node } => registry.hold(NodeId(node), true)?,
        Request::Resume { node } => registry.hold(NodeId(node), false)?,
        Request::Gateway => drop(gateway(registry)?),
        Request::SetLink { node, port, up } => network::set_link(registry, node, &port, up)?,
        Request::SetLinkErrors { node, port, errors } => {
            network::set_link_errors(registry, node, &port, errors)?;
        }
        Request::Links => return network::links(registry),
        Request::SetNodes { nodes, up, guests } => {
            network::set_nodes(registry, &nodes, up, guests)?;
        }
        Request::SetFaults { faults } => network::set_faults(registry, faults)?,
        Request::Faults => return network::faults(registry),
        Request::Counters { node } => {
            return Ok(Reply::Counters { counters: counters::of(registry, NodeId(node))? });
        }
        Request::Registers { node } => {
            return Ok(Reply::Registers { registers: registers::of(registry, NodeId(node))? });
        }
        Request::Inspect(ask) => return inspect::look_at(registry, &ask),
        Request::Translate(ask) => return inspect::translate(registry, &ask),
        Request::To { .. } => bail!("no program runs on this connection"),
        Request::Take { .. } | Request::Wait => bail!("the connection is no job's"),
        Request::Exec(_)
        | Request::Console { .. }
        | Request::Forward { .. }
        | Request::Datagrams { .. }
        | Request::Capture(_)
        | Request::Down
        | Request::Job { .. }
        | Request::Events => bail!("not a request with one answer"),
    }
    Ok(Reply::Done)
}

fn find(registry: &Registry, id: u32) -> anyhow::Result<&Arc<dyn AgentNode>> {
    let found = registry.linux().iter().find(|node| node.id() == NodeId(id));
    match found {
        Some(node) => Ok(node),
        None if registry.other(NodeId(id)).is_some() => {
            bail!("the node is not a Linux node of this machine")
        }
        None if registry.linux().is_empty() => bail!("the machine has not started yet"),
        None => bail!("the node has no virtual machine"),
    }
}

fn gateway(registry: &Registry) -> anyhow::Result<&Connector> {
    registry.gateway().context(
        "the machine has no gateway that works; start it with --gateway and a node, such as \
         tofu up --gateway 0,0,0,0,0,0",
    )
}

/// The gateway, and the place of a node that it is to reach.
fn way(registry: &Registry, node: u32) -> anyhow::Result<(&Connector, Coords)> {
    let gateway = gateway(registry)?;
    let at = registry.network.shape.coords(NodeId(node)).context("there is no such node")?;
    if registry.other(NodeId(node)).is_some_and(|other| other.kind == NodeKind::Gateway) {
        bail!("it is the gateway itself, which has no guest");
    }
    Ok((gateway, at))
}

fn connect(registry: &Registry, node: u32, port: u16) -> anyhow::Result<Connected> {
    let (gateway, at) = way(registry, node)?;
    Ok(gateway.connect(at, port)?)
}

fn datagrams(
    client: &mut UnixStream,
    registry: &Registry,
    node: u32,
    port: u16,
) -> anyhow::Result<()> {
    let (gateway, at) = way(registry, node)?;
    gateway.datagrams(at, port, client.try_clone()?)?;
    // Nothing comes the same way before the client has sent something.
    say(client, &Reply::Done)
}

fn info(registry: &Registry, ping: bool) -> MachineInfo {
    let shape = &registry.network.shape;
    let linux = registry.linux();
    let mut silent = Vec::new();
    if ping {
        let asked = |node: &&Arc<dyn AgentNode>| {
            node.status().state == "ready" && !registry.is_held(node.id())
        };
        let asked: Vec<_> = linux.iter().filter(asked).collect();
        let pings: Vec<_> = asked.iter().map(|node| node.agent().ping()).collect();
        let until = Instant::now() + PING;
        let late =
            asked.iter().zip(pings).filter(|(node, ping)| !node.agent().answers(*ping, until));
        silent = late.map(|(node, _)| node.id()).collect();
    }
    let mut nodes: Vec<NodeInfo> = linux
        .iter()
        .map(|node| {
            let NodeStatus { state, vmm, pid, since } = node.status();
            let state = match state {
                "off" | "waiting" => state,
                _ if registry.is_held(node.id()) => "paused",
                "ready" if silent.contains(&node.id()) => "not answering",
                _ => state,
            };
            NodeInfo {
                index: node.id().0,
                at: node.at().to_array(),
                name: node_name(node.at()),
                kind: NodeKind::Linux,
                state: state.into(),
                vmm: vmm.into(),
                arch: Some(node.arch().name().into()),
                down: network::is_down(registry, node.at()),
                pid,
                seconds: since.as_secs_f64(),
            }
        })
        .collect();
    for (id, other) in registry.others() {
        let Some(at) = shape.coords(id) else { continue };
        let state = match other.state {
            "running" if registry.is_held(id) => "paused",
            state => state,
        };
        nodes.push(NodeInfo {
            index: id.0,
            at: at.to_array(),
            name: node_name(at),
            kind: other.kind,
            state: state.into(),
            vmm: if other.kind == NodeKind::Bare { "tofu" } else { "none" }.into(),
            arch: None,
            down: network::is_down(registry, at),
            pid: None,
            seconds: other.since.elapsed().as_secs_f64(),
        });
    }
    nodes.sort_by_key(|node| node.index);
    let mut archs: Vec<_> = linux.iter().map(|node| node.arch().name()).collect();
    archs.dedup();
    MachineInfo {
        pid: std::process::id(),
        shape: shape.to_string(),
        torus: shape.torus(),
        io_nodes: shape.has_io_nodes(),
        generation: registry.running().map(|machine| machine.interconnect().name().into()),
        arch: archs.first().filter(|_| archs.len() == 1).map(|arch| (*arch).into()),
        links_down: network::links_down(registry),
        seconds: registry.started.elapsed().as_secs_f64(),
        nodes,
        jobs: registry.jobs.list(),
    }
}

/// Passes on what a program and a command have to say to each other.
fn serve_program(
    mut client: UnixStream,
    mut requests: LineReader<UnixStream>,
    handle: ProgramHandle,
    events: Receiver<FromProgram>,
) -> anyhow::Result<()> {
    let answers = thread::Builder::new().name("program".into()).spawn(move || {
        for what in events {
            let ended = matches!(what, FromProgram::Ended(_));
            if say(&mut client, &Reply::Program { what }).is_err() || ended {
                break;
            }
        }
        // Wakes up the other direction.
        let _ = client.shutdown(Shutdown::Both);
    });
    let answers = answers.context("no threads left")?;
    let result = loop {
        match requests.receive() {
            Ok(Some(Request::To { what })) => {
                if let Err(error) = handle.say(what) {
                    break Err(error);
                }
            }
            // The command has gone, with or without a word.
            _ => break Ok(()),
        }
    };
    // Kills the program if it still runs, upon which the agent reports its end.
    drop(handle);
    // A panic there has been printed.
    let _ = answers.join();
    result
}

/// How often a console looks whether its viewer is still there.
const LOOK: Duration = Duration::from_millis(200);

fn serve_console(
    mut client: UnixStream,
    mut typed: BufReader<UnixStream>,
    node: &Arc<dyn AgentNode>,
) -> anyhow::Result<()> {
    let (tail, output) = node.console().view();
    say(&mut client, &Reply::Console { replay: tail.len() as u64 })?;
    let gone = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&gone);
    let viewer = thread::Builder::new().name("console".into()).spawn(move || {
        let mut sent = client.write_all(&tail);
        while sent.is_ok() && !seen.load(SeqCst) {
            match output.recv_timeout(LOOK) {
                Ok(bytes) => sent = client.write_all(&bytes),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    });
    let viewer = viewer.context("no threads left")?;
    let mut buffer = [0; 1024];
    loop {
        match typed.read(&mut buffer) {
            Ok(n) if n > 0 => node.console().type_in(&buffer[..n])?,
            _ => break,
        }
    }
    gone.store(true, SeqCst);
    // A panic there has been printed.
    let _ = viewer.join();
    Ok(())
}
