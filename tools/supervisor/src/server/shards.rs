//! Requests in a machine in shards: those about nodes of another shard are passed on to that shard,
//! and those about all nodes are sent to all shards.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_control::protocol::{MachineInfo, NodeInfo, Reply, Request, ShardInfo, ShardState};
use tofu_control::{Connection, node_name};
use tofu_fabric::{NodeId, ShardId};
use tofu_ui::printable;

use super::{answers, network};
use crate::registry::{Registry, Rest};

/// The time limit for other shards to answer questions that need no work. A client waits longer
/// than this.
const ANSWER: Duration = Duration::from_secs(4);
/// The shard that keeps the jobs of all shards.
pub(super) const OF_JOBS: ShardId = ShardId(0);

/// The way a request is carried out.
pub(super) enum Way {
    /// By this shard.
    Here,
    /// By another shard, which has the rest of the connection.
    Through(ShardId),
    /// It has been carried out, with this answer.
    Done(anyhow::Result<Reply>),
}

/// Returns how a request of a client on this host is carried out, and carries it out if it goes to
/// all shards.
pub(super) fn way(registry: &Registry, rest: &Rest, request: &Request) -> Way {
    let owner = |node: u32| rest.shards.of(NodeId(node)).filter(|shard| *shard != rest.own);
    let through = |node| owner(node).map_or(Way::Here, Way::Through);
    let ask = |node| owner(node).map_or(Way::Here, |shard| Way::Done(rest.ask(shard, request)));
    let gateway = rest.gateway.filter(|shard| *shard != rest.own);
    match request {
        Request::Exec(exec) => through(exec.node),
        Request::Capture(ask) => through(ask.node),
        // The shard with the first node serves it, and reports an error if it does not have all of
        // them.
        Request::Trace(ask) => ask.nodes.first().map_or(Way::Here, |node| through(*node)),
        Request::Console { node } => through(*node),
        // The shard that has the gateway's node answers.
        Request::Gateway => gateway.map_or(Way::Here, |shard| Way::Done(rest.ask(shard, request))),
        Request::Forward { .. } | Request::Datagrams { .. } => {
            gateway.map_or(Way::Here, Way::Through)
        }
        Request::Job { .. } if rest.own != OF_JOBS => Way::Through(OF_JOBS),
        Request::Restart { node }
        | Request::Pause { node }
        | Request::Resume { node }
        | Request::SetLinkErrors { node, .. }
        | Request::SetDeviceFaults { node, .. }
        | Request::InjectEcc { node, .. }
        | Request::Counters { node }
        | Request::Registers { node } => ask(*node),
        Request::Inspect(look) => ask(look.node),
        Request::Translate(look) => ask(look.node),
        Request::Info { ping } => Way::Done(Ok(Reply::Machine(info(registry, rest, *ping)))),
        Request::Links => Way::Done(links(registry, rest)),
        Request::Faults => Way::Done(faults(registry, rest)),
        // This shard goes first, because an error would be the same everywhere. All shards record
        // the setting, and send it to shards that come back.
        Request::SetLink { .. } | Request::SetNodes { .. } | Request::SetFaults { .. } => {
            let here = answers::answer(registry, request.clone());
            Way::Done(here.and_then(|_| done_by(rest.ask_all(request).collect())))
        }
        Request::Down => {
            rest.others.take_down();
            Way::Here
        }
        Request::Job { .. }
        | Request::Events
        | Request::GoOn { .. }
        | Request::Take { .. }
        | Request::Wait
        | Request::To { .. } => Way::Here,
    }
}

type Answers = Vec<(ShardId, anyhow::Result<Reply>)>;

impl Rest {
    /// Connects to the control server of a shard.
    pub(super) fn connect(&self, shard: ShardId, request: &Request) -> anyhow::Result<Connection> {
        let stream = self.others.open(shard).map_err(anyhow::Error::from);
        let connection = stream.and_then(|stream| Connection::over(stream, request));
        connection.with_context(|| format!("shard {shard} of the machine"))
    }

    /// Returns a shard's answer. Waits without a time limit, as long as the shard exists.
    fn ask(&self, shard: ShardId, request: &Request) -> anyhow::Result<Reply> {
        let reply = self.connect(shard, request)?.reply();
        reply.map(said).with_context(|| format!("shard {shard} of the machine"))
    }

    /// Asks all shards that are present. The answers are read lazily.
    fn ask_all(
        &self,
        request: &Request,
    ) -> impl Iterator<Item = (ShardId, anyhow::Result<Reply>)> + use<> {
        let end = Instant::now() + ANSWER;
        let there = self.others.peers().into_iter().filter(|peer| !peer.gone);
        let asked: Vec<_> =
            there.map(|peer| (peer.shard, self.connect(peer.shard, request))).collect();
        asked.into_iter().map(move |(shard, connection)| {
            let reply = connection.and_then(|mut connection| connection.reply_until(end));
            (shard, reply.map(said))
        })
    }
}

/// Sanitizes a reply of another shard, which may have sent anything.
fn said(reply: Reply) -> Reply {
    match reply {
        Reply::Error { why } => Reply::Error { why: printable(&why) },
        reply => reply,
    }
}

/// Returns the reply if all of them have succeeded, or the first error.
fn done_by(answers: Answers) -> anyhow::Result<Reply> {
    for (shard, answer) in answers {
        let of = || format!("shard {shard} of the machine");
        match answer.with_context(of)? {
            Reply::Error { why } => bail!("{}: {why}", of()),
            Reply::Done => {}
            _ => bail!("{}: not an answer", of()),
        }
    }
    Ok(Reply::Done)
}

fn info(registry: &Registry, rest: &Rest, ping: bool) -> MachineInfo {
    let answers = rest.ask_all(&Request::Info { ping });
    let mut all = answers::info(registry, ping);
    let mut silent = Vec::new();
    for (shard, answer) in answers {
        match answer {
            Ok(Reply::Machine(info)) => {
                let nodes = info.nodes.into_iter();
                all.nodes.extend(nodes.filter_map(|node| of_shard(rest, shard, node)));
                all.links_down.extend(info.links_down);
                if shard == OF_JOBS {
                    all.jobs = info.jobs;
                }
            }
            other => {
                log::debug!("control: shard {shard}: {other:?}");
                silent.push(shard);
            }
        }
    }
    all.nodes.sort_by_key(|node| node.index);
    all.links_down.sort_unstable();
    all.links_down.dedup();
    let peers = rest.others.peers().into_iter().map(|peer| ShardInfo {
        shard: peer.shard.0,
        address: peer.address,
        pid: peer.pid,
        state: match peer.gone {
            true => ShardState::Lost,
            false if silent.contains(&peer.shard) => ShardState::Silent,
            false => ShardState::There,
        },
    });
    all.shards.extend(peers);
    all.shards.sort_by_key(|shard| shard.shard);
    all
}

/// Checks a shard's description of a node, and returns it if the node is one of the shard's own.
fn of_shard(rest: &Rest, shard: ShardId, node: NodeInfo) -> Option<NodeInfo> {
    let id = NodeId(node.index);
    let at = rest.shards.shape().coords(id).filter(|_| rest.shards.of(id) == Some(shard))?;
    Some(NodeInfo {
        at: at.to_array(),
        shard: Some(shard.0),
        name: node_name(at),
        state: printable(&node.state),
        vmm: printable(&node.vmm),
        arch: node.arch.as_deref().map(printable),
        ..node
    })
}

/// Returns the links that are down according to a shard at either of their ends.
fn links(registry: &Registry, rest: &Rest) -> anyhow::Result<Reply> {
    let answers = rest.ask_all(&Request::Links);
    let Reply::Links { down: mut all } = network::links(registry)? else { bail!("not an answer") };
    for (shard, answer) in answers {
        // Links to a shard that has gone in the meantime are down on this side anyway.
        let Ok(Reply::Links { down }) = answer else { continue };
        let new = down.into_iter().filter(|end| {
            let found = end.find(rest.shards.shape()).and_then(|(at, port)| {
                let far = rest.shards.shape().neighbor(at, port)?;
                Some([at, far])
            });
            let mut ends = found.into_iter().flatten();
            ends.any(|at| {
                let id = rest.shards.shape().node_id(at);
                id.and_then(|id| rest.shards.of(id)) == Some(shard)
            })
        });
        let new: Vec<_> = new.filter(|end| !all.contains(end)).collect();
        all.extend(new);
    }
    Ok(Reply::Links { down: all })
}

/// Returns the faults, with the counts of all shards added up.
fn faults(registry: &Registry, rest: &Rest) -> anyhow::Result<Reply> {
    let answers = rest.ask_all(&Request::Faults);
    let mut reply = network::faults(registry)?;
    if let Reply::Faults { faults: Some(all) } = &mut reply {
        for (_, answer) in answers {
            let Ok(Reply::Faults { faults: Some(faults) }) = answer else { continue };
            for (sum, more) in [
                (&mut all.lost, faults.lost),
                (&mut all.duplicated, faults.duplicated),
                (&mut all.reordered, faults.reordered),
                (&mut all.corrupted, faults.corrupted),
                (&mut all.undetected, faults.undetected),
            ] {
                *sum = sum.saturating_add(more);
            }
        }
    }
    Ok(reply)
}

/// Passes data between a client and another shard until either leaves.
pub(super) fn splice(
    client: &UnixStream,
    mut typed: BufReader<UnixStream>,
    shard: Connection,
) -> anyhow::Result<()> {
    let (out, replies) = shard.split();
    let mut replies = replies.into_inner();
    thread::scope(|scope| {
        let back = || {
            copy(&mut replies, client);
            // The shard sends no more, so the client need not send any more, either.
            let _ = client.shutdown(Shutdown::Both);
        };
        let back = thread::Builder::new().name("passed-on".into()).spawn_scoped(scope, back);
        back.context("no threads left")?;
        copy(&mut typed, &out);
        let _ = out.shutdown(Shutdown::Write);
        Ok(())
    })
}

/// Copies until either side ends, with read(2) and write(2), which a machine's threads may call.
fn copy(from: &mut BufReader<UnixStream>, mut to: &UnixStream) {
    let mut buffer = vec![0; 32 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => {
                if to.write_all(&buffer[..n]).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
