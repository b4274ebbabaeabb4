//! Requests about the network of a running machine: its state, and changes of it.

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_control::protocol::{EventKind, FaultReport, LinkEnd, NodeKind, Reply, Request};
use tofu_fabric::{NodeId, Port, Shape};
use tofu_machine::AnyNetwork;
use tofu_spec::faults::FaultSpec;

use crate::changes::{self, known_port};
use crate::registry::Registry;

fn running(registry: &Registry) -> anyhow::Result<&dyn AnyNetwork> {
    registry.running().context("the machine has not started yet")
}

/// Carries out a request that changes the network or a device. In modelled time, that is at the
/// next boundary at which something can come from outside, and the answer comes then.
///
/// # Errors
///
/// One line for the user, as all errors here, and nothing has changed.
pub(super) fn change(registry: &Registry, request: Request) -> anyhow::Result<()> {
    let running = running(registry)?;
    if let Some(timed) = registry.timed() {
        return timed.change(request);
    }
    for (node, what) in changes::apply(running, &request)? {
        if let EventKind::Faults { faults } = &what {
            registry.settings().set_faults(faults.clone());
        }
        registry.publish(node, what);
    }
    match request {
        Request::SetLink { node, port, up } => {
            let (at, port) = (registry.place(NodeId(node))?, known_port(&port)?);
            registry.settings().set_link(running.fabric().shape(), at, port, up);
        }
        Request::SetNodes { nodes, up, .. } => {
            registry.settings().set_nodes(nodes.into_iter().map(NodeId), up);
        }
        _ => {}
    }
    Ok(())
}

/// Makes the routers of nodes fail or work again. With `guests`, also ends or starts their guests.
///
/// # Errors
///
/// One line for the user. Nothing has changed then, unless the error concerns a guest.
pub(super) fn set_nodes(
    registry: &Registry,
    nodes: Vec<u32>,
    up: bool,
    guests: bool,
) -> anyhow::Result<()> {
    let place = |node: &u32| Ok((NodeId(*node), registry.place(NodeId(*node))?));
    let places = nodes.iter().map(place).collect::<anyhow::Result<Vec<_>>>()?;
    let kind_of = |id| registry.other(id).map(|other| other.kind);
    let gateway = places.iter().find(|(id, _)| kind_of(*id) == Some(NodeKind::Gateway));
    if let (Some((_, at)), false) = (gateway, up) {
        bail!("{at} is the machine's only gateway; without it the host reaches no node");
    }
    change(registry, Request::SetNodes { nodes, up, guests })?;
    for (id, at) in places.iter().filter(|_| guests) {
        registry.power(*id, up).with_context(|| format!("the guest of {at}"))?;
    }
    Ok(())
}

/// Returns whether a node's router has failed.
pub(super) fn is_down(registry: &Registry, at: Coords) -> bool {
    let up = registry.running().map(|running| running.fabric().node_up(at));
    matches!(up, Some(Ok(false)))
}

pub(super) fn links(registry: &Registry) -> anyhow::Result<Reply> {
    let fabric = running(registry)?.fabric();
    let down = fabric.links().filter(|(_, up)| !up);
    let ends = down.filter_map(|(link, _)| LinkEnd::at(fabric.shape(), link.from, link.port));
    Ok(Reply::Links { down: ends.collect() })
}

pub(super) fn faults(registry: &Registry) -> anyhow::Result<Reply> {
    let faults = running(registry)?.faults().map(|(plan, counters)| FaultReport {
        faults: FaultSpec::of(&plan).to_string(),
        links: plan.links.len() as u32,
        lost: counters.lost,
        duplicated: counters.duplicated,
        reordered: counters.reordered,
        corrupted: counters.corrupted,
        undetected: counters.undetected,
    });
    Ok(Reply::Faults { faults })
}

/// Returns the ends of the links that are down now, or will be once the machine has been built.
pub(super) fn links_down(registry: &Registry) -> Vec<[[u8; 6]; 2]> {
    let network = &registry.network;
    match registry.running() {
        Some(running) => {
            let down = running.fabric().links().filter(|(_, up)| !up);
            down.filter_map(|(link, _)| ends(&network.shape, link.from, link.port)).collect()
        }
        None => {
            let down = network.links_down.iter();
            down.filter_map(|(at, port)| ends(&network.shape, *at, *port)).collect()
        }
    }
}

fn ends(shape: &Shape, at: Coords, port: Port) -> Option<[[u8; 6]; 2]> {
    Some([at.to_array(), shape.neighbor(at, port)?.to_array()])
}
