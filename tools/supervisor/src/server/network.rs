//! Requests about the network of a machine that runs: its state, and changes of it.

use anyhow::{Context, anyhow};
use tofu_abi::Coords;
use tofu_control::protocol::{EventKind, FaultReport, LinkEnd, Reply};
use tofu_fabric::{NodeId, Port, Shape};

use crate::faults::FaultSpec;
use crate::link_errors::LinkErrorSpec;
use crate::machine::AnyNetwork;
use crate::registry::Registry;

fn running(registry: &Registry) -> anyhow::Result<&AnyNetwork> {
    registry.running().context("the machine has not started yet")
}

/// Takes the link at a port of a node up or down.
///
/// # Errors
///
/// One line for the user, as all errors here.
pub(super) fn set_link(registry: &Registry, node: u32, port: &str, up: bool) -> anyhow::Result<()> {
    let fabric = running(registry)?.fabric();
    fabric.set_link(registry.place(NodeId(node))?, known_port(port)?, up)?;
    registry.publish(Some(NodeId(node)), EventKind::Link { port: port.to_owned(), up });
    Ok(())
}

fn known_port(name: &str) -> anyhow::Result<Port> {
    Port::from_name(name).with_context(|| {
        format!("there is no port {name}; ports are {}", Port::ALL.map(Port::name).join(", "))
    })
}

/// Sets the errors of the modelled link at a port of a node, or has it have none.
pub(super) fn set_link_errors(
    registry: &Registry,
    node: u32,
    port: &str,
    errors: Option<String>,
) -> anyhow::Result<()> {
    let spec = errors.map(|text| text.parse::<LinkErrorSpec>()).transpose();
    let spec = spec.map_err(|allowed| anyhow!("errors of a link are {allowed}"))?;
    let fabric = running(registry)?.fabric();
    let lanes = fabric.parameters().map_or(0, |parameters| parameters.lanes);
    let at = registry.place(NodeId(node))?;
    let errors = spec.unwrap_or_default().errors(lanes);
    fabric.set_link_errors(at, known_port(port)?, &errors)?;
    let errors = spec.as_ref().map(ToString::to_string);
    registry.publish(Some(NodeId(node)), EventKind::LinkErrors { port: port.to_owned(), errors });
    Ok(())
}

pub(super) fn links(registry: &Registry) -> anyhow::Result<Reply> {
    let fabric = running(registry)?.fabric();
    let down = fabric.links().filter(|(_, up)| !up);
    let ends = down.filter_map(|(link, _)| LinkEnd::of(fabric.shape(), &link));
    Ok(Reply::Links { down: ends.collect() })
}

pub(super) fn set_faults(registry: &Registry, faults: Option<String>) -> anyhow::Result<()> {
    let spec = faults.map(|text| text.parse::<FaultSpec>()).transpose();
    let spec = spec.map_err(|allowed| anyhow!("faults are {allowed}"))?;
    let faults = spec.as_ref().map(ToString::to_string);
    running(registry)?.set_faults(spec.map(|spec| spec.plan()))?;
    registry.publish(None, EventKind::Faults { faults });
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

/// The ends of the links that are down now, or will be when the machine has been built.
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
