//! The control socket of a machine: serves `tofu ps`, `exec`, `cp`, `run`, `console`, `down`.
//!
//! Lines of JSON, as docs/src/reference/control.md describes them.

mod answers;
mod capture;
mod counters;
mod events;
mod inspect;
mod jobs;
mod metrics;
mod network;
mod registers;
mod reply;
mod shards;
mod trace;

use std::collections::HashMap;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_agent::wire::{FromProgram, MAX_PROGRAMS};
use tofu_control::lines::{LineError, LineReader, MAX_REQUEST};
use tofu_control::protocol::{NodeKind, Reply, Request, VERSION};
use tofu_fabric::{NodeId, ShardId};
use tofu_gateway::{Connected, Connector};
use tofu_sync::queue::RecvTimeoutError;

use crate::agent::AgentProgram;
use crate::console::Output;
use crate::event::Event;
use crate::node::AgentNode;
use crate::registry::Registry;
use answers::{answer, find, gateway};
use reply::say;
use shards::Way;

pub use metrics::Metrics;

/// The most connections of commands on this host, and of each other shard, besides one for each
/// program that nodes can run.
const MOST_CLIENTS: usize = 512;
/// The time limit for another shard to send the request for which it has opened a stream.
const FIRST_REQUEST: Duration = Duration::from_secs(10);

/// The source of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asker {
    /// A command on this host. The request concerns the whole machine.
    Host,
    /// Another shard of the machine. The request concerns this shard only.
    Shard,
}

/// Serves the socket and the requests of other shards of the machine, until the process ends.
pub fn serve(socket: &Path, registry: &Arc<Registry>) -> anyhow::Result<()> {
    let cannot = || format!("cannot make the control socket {}", socket.display());
    let listener = UnixListener::bind(socket).with_context(cannot)?;
    let clients = Clients::default();
    serve_visitors(registry)?;
    let registry = Arc::clone(registry);
    let accept = move || {
        for client in listener.incoming() {
            match client {
                Ok(mut client) => {
                    let Some(counted) = clients.another(&registry) else {
                        // There is room for it in the socket's buffer.
                        let why = "too many commands use the machine at the same time".to_owned();
                        let _ = hello(&mut client);
                        let _ = say(&mut client, &Reply::Error { why });
                        continue;
                    };
                    let registry = Arc::clone(&registry);
                    let thread = thread::Builder::new().name("control".into());
                    let run = move || {
                        let _counted = counted;
                        if let Err(error) = serve_client(client, &registry, Asker::Host) {
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

/// The connections of this host, or of one other shard, which share this count. Each shard has a
/// separate limit, so that one that opens many does not affect the others.
#[derive(Clone, Default)]
struct Clients(Arc<()>);

impl Clients {
    /// Counts another connection, if there is room for one.
    fn another(&self, registry: &Registry) -> Option<Self> {
        let programs = registry.linux().len() * MAX_PROGRAMS;
        (Arc::strong_count(&self.0) <= MOST_CLIENTS + programs).then(|| self.clone())
    }
}

/// Serves the requests of other shards, until the process ends.
fn serve_visitors(registry: &Arc<Registry>) -> anyhow::Result<()> {
    let Some(visits) = registry.rest().and_then(|rest| rest.others.visitors()) else {
        return Ok(());
    };
    let registry = Arc::clone(registry);
    let serve = move || {
        let mut clients = HashMap::<ShardId, Clients>::new();
        for (from, visit) in visits.iter() {
            // A visit that is dropped is closed.
            let clients = clients.entry(from).or_default();
            let Some(counted) = clients.another(&registry) else { continue };
            let registry = Arc::clone(&registry);
            let run = move || {
                let _counted = counted;
                let served = visit.accept().map_err(anyhow::Error::from);
                let served = served.and_then(|peer| serve_client(peer, &registry, Asker::Shard));
                if let Err(error) = served {
                    log::debug!("control, of another shard: {error:#}");
                }
            };
            if let Err(error) = thread::Builder::new().name("control".into()).spawn(run) {
                log::warn!("control: no threads left: {error}");
            }
        }
    };
    thread::Builder::new().name("visitors".into()).spawn(serve).context("no threads left")?;
    Ok(())
}

/// Says which protocol this is.
fn hello(client: &mut UnixStream) -> anyhow::Result<()> {
    let tofu = env!("CARGO_PKG_VERSION").to_owned();
    say(client, &Reply::Hello { protocol: VERSION, tofu })
}

fn serve_client(mut client: UnixStream, registry: &Registry, asker: Asker) -> anyhow::Result<()> {
    match hello(&mut client) {
        // The client only checked whether the socket is served.
        Err(error) if is_gone(&error) => return Ok(()),
        said => said?,
    }
    let mut requests = LineReader::new(client.try_clone()?, MAX_REQUEST);
    if asker == Asker::Shard {
        client.set_read_timeout(Some(FIRST_REQUEST))?;
    }
    while let Some(request) = next_request(&mut client, &mut requests)? {
        let reply = match begin(&mut client, registry, request, asker) {
            Ok(Answer::Reply(reply)) => reply,
            Ok(Answer::Serve(serve)) => return serve(client, requests),
            Ok(Answer::End) => {
                // Answered first, because this process may end before it could answer.
                say(&mut client, &Reply::Done)?;
                registry.events.send(Event::Down);
                continue;
            }
            Err(error) => Reply::Error { why: format!("{error:#}") },
        };
        say(&mut client, &reply)?;
    }
    Ok(())
}

/// Receives a request, and complains of what is none. Returns `None` if the client has left.
fn next_request(
    client: &mut UnixStream,
    requests: &mut LineReader<UnixStream>,
) -> anyhow::Result<Option<Request>> {
    loop {
        let received = requests.receive();
        client.set_read_timeout(None)?;
        match received {
            Ok(request) => return Ok(request),
            Err(LineError::Io(error)) if error.kind() == ErrorKind::ConnectionReset => {
                return Ok(None);
            }
            Err(error) => {
                say(client, &Reply::Error { why: format!("not a request: {error}") })?;
                if !matches!(error, LineError::Malformed(_)) {
                    return Err(error.into());
                }
            }
        }
    }
}

/// The answer to a request.
enum Answer<'a> {
    Reply(Reply),
    /// The request has the rest of the connection, which this serves.
    Serve(Box<dyn FnOnce(UnixStream, LineReader<UnixStream>) -> anyhow::Result<()> + 'a>),
    /// The machine is to end.
    End,
}

impl<'a> Answer<'a> {
    fn serve(
        serve: impl FnOnce(UnixStream, LineReader<UnixStream>) -> anyhow::Result<()> + 'a,
    ) -> Self {
        Self::Serve(Box::new(serve))
    }
}

/// Begins to answer a request.
fn begin<'a>(
    client: &mut UnixStream,
    registry: &'a Registry,
    request: Request,
    asker: Asker,
) -> anyhow::Result<Answer<'a>> {
    let rest = registry.rest().filter(|_| asker == Asker::Host);
    if let Some(rest) = rest {
        match shards::way(registry, rest, &request) {
            Way::Through(shard) => {
                let there = rest.connect(shard, &request)?;
                return Ok(Answer::serve(move |client, requests| {
                    shards::splice(&client, requests.into_inner(), there)
                }));
            }
            Way::Done(reply) => return reply.map(Answer::Reply),
            Way::Here => {}
        }
    }
    Ok(match request {
        Request::Exec(exec) => {
            let silence = exec.silence_ms.map(Duration::from_millis);
            let program = find(registry, exec.node)?.agent().exec(exec.exec, silence)?;
            Answer::serve(move |client, requests| serve_program(client, requests, program))
        }
        Request::Console { node } => {
            let node = find(registry, node)?;
            Answer::serve(move |client, typed| serve_console(client, typed.into_inner(), node))
        }
        Request::Forward { node, port } => {
            let connected = connect(registry, node, port)?;
            Answer::serve(move |mut client, _| {
                say(&mut client, &Reply::Done)?;
                Ok(connected.splice(client)?)
            })
        }
        Request::Datagrams { node, port } => {
            datagrams(client, registry, node, port)?;
            Answer::serve(|_, _| Ok(()))
        }
        Request::Capture(ask) => {
            let begun = capture::begin(registry, &ask)?;
            Answer::serve(move |mut client, requests| begun.serve(&mut client, requests))
        }
        Request::Trace(ask) => {
            let begun = trace::begin(registry, &ask)?;
            Answer::serve(move |mut client, requests| begun.serve(&mut client, requests))
        }
        Request::Events => Answer::serve(move |client, _| events::serve(client, registry, rest)),
        Request::Job { command, pid } => Answer::serve(move |client, requests| {
            jobs::serve(client, requests, registry, (&command, pid))
        }),
        Request::Down => Answer::End,
        request => Answer::Reply(answer(registry, request)?),
    })
}

/// Returns whether an error means that the client has left.
fn is_gone(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset))
}

/// Returns the gateway, and the coordinates of the node to reach.
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
    // Nothing is sent to the client before it has sent something.
    say(client, &Reply::Done)
}

/// Passes messages between a program and a client.
fn serve_program(
    mut client: UnixStream,
    mut requests: LineReader<UnixStream>,
    program: AgentProgram,
) -> anyhow::Result<()> {
    let (handle, mut messages) = program.split();
    let answers = thread::Builder::new().name("program".into()).spawn(move || {
        while let Some(what) = messages.next() {
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
            // The client has gone, with or without an error.
            _ => break Ok(()),
        }
    };
    // This kills the program if it still runs; the agent then reports its end.
    drop(handle);
    // A panic in the thread has already been printed.
    let _ = answers.join();
    result
}

/// The interval at which a console checks whether its viewer is still there.
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
                Ok(Output(bytes)) => sent = client.write_all(&bytes),
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
    // A panic in the thread has already been printed.
    let _ = viewer.join();
    Ok(())
}
