//! Requests with one answer, which this process can give itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use tofu_control::protocol::{
    EventKind, GuestTimeInfo, MachineInfo, NodeInfo, NodeKind, Reply, Request, ShardInfo,
    ShardState, TimeInfo,
};
use tofu_control::{PING, node_name};
use tofu_fabric::{Fabric, NodeId, Port};
use tofu_gateway::Connector;
use tofu_machine::GuestPassed;

use super::{counters, inspect, network, registers};
use crate::node::{AgentNode, NodeStatus};
use crate::registry::{Registry, Rest};
use crate::timed::until;

/// Carries out a request that has one answer, in this process.
///
/// # Errors
///
/// One line for the user.
pub(super) fn answer(registry: &Registry, request: Request) -> anyhow::Result<Reply> {
    match request {
        Request::Info { ping } => return Ok(Reply::Machine(info(registry, ping))),
        Request::Restart { node } => {
            find(registry, node)?.restart()?;
            registry.goes_on(NodeId(node));
        }
        Request::Pause { node } => registry.hold(NodeId(node), true)?,
        Request::Resume { node } => registry.hold(NodeId(node), false)?,
        Request::GoOn { until } => go_on(registry, until)?,
        Request::Gateway => drop(gateway(registry)?),
        Request::Links => return network::links(registry),
        Request::SetNodes { nodes, up, guests } => {
            network::set_nodes(registry, nodes, up, guests)?;
        }
        Request::SetLink { .. }
        | Request::SetLinkErrors { .. }
        | Request::SetFaults { .. }
        | Request::SetDeviceFaults { .. }
        | Request::InjectEcc { .. } => network::change(registry, request)?,
        Request::Faults => return network::faults(registry),
        Request::Counters { node } => {
            return Ok(Reply::Counters {
                counters: counters::of(registry, NodeId(node))?.map(Box::new),
            });
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
        | Request::Trace(_)
        | Request::Down
        | Request::Job { .. }
        | Request::Events => bail!("not a request with one answer"),
    }
    Ok(Reply::Done)
}

/// Returns the Linux node of this number.
///
/// # Errors
///
/// One line for the user, if there is none.
pub(super) fn find(registry: &Registry, id: u32) -> anyhow::Result<&Arc<dyn AgentNode>> {
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

/// Returns the gateway.
///
/// # Errors
///
/// One line for the user, if there is none.
pub(super) fn gateway(registry: &Registry) -> anyhow::Result<&Connector> {
    registry.gateway().context(
        "the machine has no gateway that works; start it with --gateway and a node, such as \
         tofu up --gateway 0,0,0,0,0,0",
    )
}

/// The nodes whose agents should answer, but time out.
fn silent(registry: &Registry, linux: &[Arc<dyn AgentNode>]) -> Vec<NodeId> {
    let asked =
        |node: &&Arc<dyn AgentNode>| node.status().state == "ready" && !registry.is_held(node.id());
    let asked: Vec<_> = linux.iter().filter(asked).collect();
    let pings: Vec<_> = asked.iter().map(|node| node.agent().ping()).collect();
    let until = Instant::now() + PING;
    let late = asked.iter().zip(pings).filter(|(node, ping)| !node.agent().answers(*ping, until));
    late.map(|(node, _)| node.id()).collect()
}

/// Describes the machine, or this shard of it.
pub(super) fn info(registry: &Registry, ping: bool) -> MachineInfo {
    let shape = &registry.network.shape;
    let shard = registry.rest().map(|rest| rest.own.0);
    let linux = registry.linux();
    let silent = if ping { silent(registry, linux) } else { Vec::new() };
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
                shard,
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
    nodes.extend(others(registry, shard));
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
        time: time(registry),
        nodes,
        jobs: registry.jobs.list(),
        shards: registry.rest().map(own_shard).into_iter().collect(),
    }
}

/// Resumes the time of a machine in modelled time.
fn go_on(registry: &Registry, until: Option<u64>) -> anyhow::Result<()> {
    let machine = registry.running().context("the machine has not started yet")?;
    machine.go_on(until).map_err(anyhow::Error::msg)?;
    registry.publish(None, EventKind::TimeGoesOn);
    Ok(())
}

/// The time of a machine in modelled time.
fn time(registry: &Registry) -> Option<Box<TimeInfo>> {
    let network = registry.running()?;
    let passed = network.passed()?;
    let of_guest = |guest: GuestPassed| {
        let node = guest.node;
        Some(GuestTimeInfo {
            node: node.0,
            at: registry.network.shape.coords(node)?.to_array(),
            awake_ns: guest.awake_ns,
            host_ns: guest.host_ns,
            steps: guest.steps,
            accesses: guest.accesses,
            commands: guest.commands,
            in_flight_ns: guest.in_flight_ns,
            waited_ns: waited(network.fabric(), node),
        })
    };
    Some(Box::new(TimeInfo {
        modelled_ns: passed.ns,
        ns_per_instruction: passed.instruction_ps as f64 / 1000.0,
        late: passed.late,
        late_most_ns: passed.late_most_ns,
        guests: passed.guests.into_iter().filter_map(of_guest).collect(),
        stands: passed.stands.as_ref().map(until::info),
    }))
}

/// The ports of a node at which packets have waited for credits, and for how many modelled
/// nanoseconds.
fn waited(fabric: &Fabric, node: NodeId) -> BTreeMap<String, u64> {
    let Some(parameters) = fabric.parameters() else { return BTreeMap::new() };
    let of_port = |port: Port| {
        let cycles: u64 = fabric.port_counters(node, port)?.zero_credit.iter().sum();
        let ns = cycles.saturating_mul(parameters.cycle_ps()) / 1000;
        (ns > 0).then(|| (port.name().to_owned(), ns))
    };
    Port::ALL.into_iter().filter_map(of_port).collect()
}

/// Describes the nodes without Linux.
fn others(registry: &Registry, shard: Option<u16>) -> Vec<NodeInfo> {
    let described = registry.others().into_iter().filter_map(|(id, other)| {
        let at = registry.network.shape.coords(id)?;
        let state = match other.state {
            "running" if registry.is_held(id) => "paused",
            state => state,
        };
        Some(NodeInfo {
            index: id.0,
            at: at.to_array(),
            shard,
            name: node_name(at),
            kind: other.kind,
            state: state.into(),
            vmm: if other.kind == NodeKind::Bare { "tofu" } else { "none" }.into(),
            arch: None,
            down: network::is_down(registry, at),
            pid: None,
            seconds: other.since.elapsed().as_secs_f64(),
        })
    });
    described.collect()
}

/// Describes this shard, as in descriptions of the machine.
fn own_shard(rest: &Rest) -> ShardInfo {
    ShardInfo {
        shard: rest.own.0,
        address: rest.others.address().to_owned(),
        pid: std::process::id(),
        state: ShardState::Here,
    }
}
