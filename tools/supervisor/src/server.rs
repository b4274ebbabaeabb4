//! The control socket of a machine: serves `tofu ps`, `exec`, `cp`, `console`, `restart`, `down`.

mod capture;
mod counters;
mod network;

use std::io::{BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_agent::wire::{FrameReader, FromProgram, encode};
use tofu_control::node_name;
use tofu_control::protocol::{MachineInfo, NodeInfo, Reply, Request};
use tofu_fabric::NodeId;
use tofu_gateway::{Connected, Connector};

use crate::agent::ProgramHandle;
use crate::event::Event;
use crate::node::{AgentNode, NodeStatus};
use crate::registry::Registry;

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

fn say(client: &mut UnixStream, reply: &Reply) -> anyhow::Result<()> {
    Ok(client.write_all(&encode(reply)?)?)
}

fn serve_client(mut client: UnixStream, registry: &Registry) -> anyhow::Result<()> {
    let mut requests = FrameReader::new(client.try_clone()?);
    let Some(request) = requests.receive()? else { return Ok(()) };
    let result = match request {
        Request::Info => info(&mut client, registry),
        Request::Exec { node, exec } => {
            return match find(registry, node).and_then(|node| node.agent().exec(exec)) {
                Ok(running) => {
                    let (handle, events) = running.split();
                    serve_program(client, requests, handle, events)
                }
                Err(error) => say(&mut client, &Reply::Error(format!("{error:#}"))),
            };
        }
        Request::Console { node } => match find(registry, node) {
            Ok(node) => {
                say(&mut client, &Reply::Done)?;
                return serve_console(client, requests.into_inner(), node);
            }
            Err(error) => Err(error),
        },
        Request::Restart { node } => find(registry, node).and_then(|node| node.restart()),
        Request::Hold { node, on } => registry.hold(NodeId(node), on),
        Request::Gateway => gateway(registry).map(drop),
        Request::Forward { node, port } => match connect(registry, node, port) {
            Ok(connected) => {
                say(&mut client, &Reply::Done)?;
                return Ok(connected.splice(client)?);
            }
            Err(error) => Err(error),
        },
        Request::Datagrams { node, port } => match datagrams(&mut client, registry, node, port) {
            Ok(()) => return Ok(()),
            Err(error) => Err(error),
        },
        Request::Down => {
            registry.events.send(Event::Down).context("the machine is going down already")
        }
        Request::Capture(ask) => match capture::serve(&mut client, requests, registry, &ask) {
            Ok(()) => return Ok(()),
            Err(error) => Err(error),
        },
        Request::Network(ask) => match network::answer(registry, ask) {
            Ok(answer) => return say(&mut client, &Reply::Network(answer)),
            Err(error) => Err(error),
        },
        Request::To(_) => Err(anyhow::anyhow!("no program runs on this connection")),
    };
    let reply = match result {
        Ok(()) => Reply::Done,
        Err(error) => Reply::Error(format!("{error:#}")),
    };
    say(&mut client, &reply)
}

fn find(registry: &Registry, id: u32) -> anyhow::Result<&Arc<dyn AgentNode>> {
    let found = registry.linux().iter().find(|node| node.id() == NodeId(id));
    match found {
        Some(node) => Ok(node),
        None if registry.others().contains_key(&NodeId(id)) => {
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
    if registry.others().get(&NodeId(node)) == Some(&"gateway") {
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

fn info(client: &mut UnixStream, registry: &Registry) -> anyhow::Result<()> {
    let shape = &registry.network.shape;
    let machine = MachineInfo {
        pid: std::process::id(),
        shape: shape.to_string(),
        torus: shape.torus(),
        links_down: network::links_down(registry),
        seconds: registry.started.elapsed().as_secs_f64(),
    };
    say(client, &Reply::Machine(machine))?;
    let mut nodes: Vec<NodeInfo> = registry
        .linux()
        .iter()
        .map(|node| {
            let NodeStatus { state, vmm, pid, since } = node.status();
            NodeInfo {
                index: node.id().0,
                at: node.at().to_array(),
                name: node_name(node.at()),
                state: state.into(),
                vmm: vmm.into(),
                pid,
                seconds: since.as_secs_f64(),
            }
        })
        .collect();
    let others: Vec<_> = registry.others().iter().map(|(id, state)| (*id, *state)).collect();
    for (id, state) in others {
        let Some(at) = shape.coords(id) else { continue };
        nodes.push(NodeInfo {
            index: id.0,
            at: at.to_array(),
            name: node_name(at),
            state: state.into(),
            vmm: if matches!(state, "served" | "gateway") { "none" } else { "tofu" }.into(),
            pid: None,
            seconds: registry.started.elapsed().as_secs_f64(),
        });
    }
    nodes.sort_by_key(|node| node.index);
    nodes.into_iter().try_for_each(|node| say(client, &Reply::Node(node)))
}

/// Passes on what a program and a command have to say to each other.
fn serve_program(
    mut client: UnixStream,
    mut requests: FrameReader<UnixStream>,
    handle: ProgramHandle,
    events: Receiver<FromProgram>,
) -> anyhow::Result<()> {
    let answers = thread::Builder::new().name("program".into()).spawn(move || {
        for what in events {
            let ended = matches!(what, FromProgram::Ended(_));
            if say(&mut client, &Reply::Program(what)).is_err() || ended {
                break;
            }
        }
        // Wakes up the other direction.
        let _ = client.shutdown(Shutdown::Both);
    });
    let answers = answers.context("no threads left")?;
    let result = loop {
        match requests.receive() {
            Ok(Some(Request::To(what))) => {
                if let Err(error) = handle.say(what) {
                    break Err(error);
                }
            }
            // The command has gone, with or without a word.
            _ => break Ok(()),
        }
    };
    // Kills the program if it still runs, upon which the agent tells of its end.
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
