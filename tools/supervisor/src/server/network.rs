//! Requests about the network of a running machine: its state, and changes of it.

use anyhow::{Context, anyhow, bail};
use tofu_abi::Coords;
use tofu_control::protocol::{EventKind, FaultReport, LinkEnd, NodeKind, Reply};
use tofu_fabric::{LinkErrors, NodeId, Port, Shape};
use tofu_machine::{AnyNetwork, EccErrors};

use crate::link_errors::LinkErrorSpec;
use crate::registry::Registry;
use tofu_spec::device_faults::DeviceFaultSpec;
use tofu_spec::ecc::EccPlaceName;
use tofu_spec::faults::FaultSpec;

fn running(registry: &Registry) -> anyhow::Result<&dyn AnyNetwork> {
    registry.running().context("the machine has not started yet")
}

/// The network of a machine whose links can change.
fn changeable(registry: &Registry) -> anyhow::Result<&dyn AnyNetwork> {
    let running = running(registry)?;
    if running.passed().is_some() {
        bail!("the links of a machine in modelled time cannot change so far");
    }
    Ok(running)
}

/// Takes the link at a port of a node up or down.
///
/// # Errors
///
/// One line for the user, as all errors here.
pub(super) fn set_link(registry: &Registry, node: u32, port: &str, up: bool) -> anyhow::Result<()> {
    let fabric = changeable(registry)?.fabric();
    let (at, known) = (registry.place(NodeId(node))?, known_port(port)?);
    fabric.set_link(at, known, up)?;
    registry.settings().set_link(fabric.shape(), at, known, up);
    registry.publish(Some(NodeId(node)), EventKind::Link { port: port.to_owned(), up });
    Ok(())
}

/// Makes the routers of nodes fail or work again. With `guests`, also ends or starts their guests.
///
/// # Errors
///
/// One line for the user. Nothing has changed then, unless the error concerns a guest.
pub(super) fn set_nodes(
    registry: &Registry,
    nodes: &[u32],
    up: bool,
    guests: bool,
) -> anyhow::Result<()> {
    let fabric = changeable(registry)?.fabric();
    let place = |node: &u32| Ok((NodeId(*node), registry.place(NodeId(*node))?));
    let nodes = nodes.iter().map(place).collect::<anyhow::Result<Vec<_>>>()?;
    let kind_of = |id| registry.other(id).map(|other| other.kind);
    let gateway = nodes.iter().find(|(id, _)| kind_of(*id) == Some(NodeKind::Gateway));
    if let (Some((_, at)), false) = (gateway, up) {
        bail!("{at} is the machine's only gateway; without it the host reaches no node");
    }
    for (id, at) in &nodes {
        if fabric.set_node(*at, up)? {
            registry.publish(Some(*id), EventKind::Router { up });
        }
    }
    registry.settings().set_nodes(nodes.iter().map(|(id, _)| *id), up);
    for (id, at) in nodes.iter().filter(|_| guests) {
        registry.power(*id, up).with_context(|| format!("the guest of {at}"))?;
    }
    Ok(())
}

/// Returns whether a node's router has failed.
pub(super) fn is_down(registry: &Registry, at: Coords) -> bool {
    let up = registry.running().map(|running| running.fabric().node_up(at));
    matches!(up, Some(Ok(false)))
}

fn known_port(name: &str) -> anyhow::Result<Port> {
    Port::from_name(name).with_context(|| {
        format!("there is no port {name}; ports are {}", Port::ALL.map(Port::name).join(", "))
    })
}

/// Sets the errors of the modelled link at a port of a node, or removes them.
pub(super) fn set_link_errors(
    registry: &Registry,
    node: u32,
    port: &str,
    errors: Option<String>,
) -> anyhow::Result<()> {
    let spec = errors.map(|text| text.parse::<LinkErrorSpec>()).transpose();
    let spec = spec.map_err(|allowed| anyhow!("errors of a link are {allowed}"))?;
    let fabric = changeable(registry)?.fabric();
    let at = registry.place(NodeId(node))?;
    let errors = match (spec, fabric.parameters()) {
        (Some(spec), Some(parameters)) => spec.errors(parameters.lanes)?,
        // No errors, which is refused as well for links that are not modelled.
        _ => LinkErrors::default(),
    };
    fabric.set_link_errors(at, known_port(port)?, &errors)?;
    let errors = spec.as_ref().map(ToString::to_string);
    registry.publish(Some(NodeId(node)), EventKind::LinkErrors { port: port.to_owned(), errors });
    Ok(())
}

pub(super) fn links(registry: &Registry) -> anyhow::Result<Reply> {
    let fabric = running(registry)?.fabric();
    let down = fabric.links().filter(|(_, up)| !up);
    let ends = down.filter_map(|(link, _)| LinkEnd::at(fabric.shape(), link.from, link.port));
    Ok(Reply::Links { down: ends.collect() })
}

pub(super) fn set_faults(registry: &Registry, faults: Option<String>) -> anyhow::Result<()> {
    let spec = faults.map(|text| text.parse::<FaultSpec>()).transpose();
    let spec = spec.map_err(|allowed| anyhow!("faults are {allowed}"))?;
    let faults = spec.as_ref().map(ToString::to_string);
    changeable(registry)?.set_faults(spec.map(|spec| spec.plan()))?;
    registry.settings().set_faults(faults.clone());
    registry.publish(None, EventKind::Faults { faults });
    Ok(())
}

pub(super) fn set_device_faults(
    registry: &Registry,
    node: u32,
    faults: Option<String>,
) -> anyhow::Result<()> {
    let spec = faults.map(|text| text.parse::<DeviceFaultSpec>()).transpose();
    let spec = spec.map_err(|allowed| anyhow!("faults of a device are {allowed}"))?;
    changeable(registry)?;
    let device = registry.device(NodeId(node))?.context("there is no device at this place")?;
    if !device.set_device_faults(spec.unwrap_or_default().0) {
        bail!("devices of this kind have no faults");
    }
    Ok(())
}

pub(super) fn inject_ecc(
    registry: &Registry,
    node: u32,
    place: &str,
    correctable: Option<u64>,
) -> anyhow::Result<()> {
    let EccPlaceName(place) = place.parse().map_err(|allowed: &str| anyhow!(allowed))?;
    changeable(registry)?;
    let device = registry.device(NodeId(node))?.context("there is no device at this place")?;
    let errors = correctable.map_or(EccErrors::Fatal, EccErrors::Correctable);
    if !device.inject_ecc(place, errors) {
        bail!("devices of this kind have no error-correcting codes");
    }
    Ok(())
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
