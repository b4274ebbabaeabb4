//! Changes of a running machine's network and devices that commands ask for.

use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use tofu_abi::Coords;
use tofu_control::protocol::{EventKind, Request};
use tofu_fabric::{Fabric, LinkErrors, NodeId, Port, Shape};
use tofu_links::Parameters;
use tofu_machine::{AnyNetwork, AnyNode, EccErrors, Interconnect};
use tofu_spec::device_faults::DeviceFaultSpec;
use tofu_spec::ecc::EccPlaceName;
use tofu_spec::faults::FaultSpec;

use crate::link_errors::LinkErrorSpec;

/// A change that was made, for followers of events: of a node, or of the whole machine.
pub(crate) type Changed = (Option<NodeId>, EventKind);

/// Changes a network as a request asks. Returns what has changed. Guests are not affected.
///
/// # Errors
///
/// One line for the user, and nothing has changed then.
pub(crate) fn apply(network: &dyn AnyNetwork, request: &Request) -> anyhow::Result<Vec<Changed>> {
    let fabric = network.fabric();
    Ok(match request {
        Request::SetLink { node, port, up } => {
            fabric.set_link(place(fabric.shape(), NodeId(*node))?, known_port(port)?, *up)?;
            vec![(Some(NodeId(*node)), EventKind::Link { port: port.clone(), up: *up })]
        }
        Request::SetLinkErrors { node, port, errors } => {
            vec![set_link_errors(network, NodeId(*node), port, errors.as_deref())?]
        }
        Request::SetNodes { nodes, up, .. } => set_routers(fabric, nodes, *up)?,
        Request::SetFaults { faults } => vec![(None, set_faults(network, faults.as_deref())?)],
        Request::SetDeviceFaults { node, faults } => {
            let spec = faults.as_ref().map(|text| text.parse::<DeviceFaultSpec>()).transpose();
            let spec = spec.map_err(|allowed| anyhow!("faults of a device are {allowed}"))?;
            if !device(network, NodeId(*node))?.set_device_faults(spec.unwrap_or_default().0) {
                bail!("devices of this kind have no faults");
            }
            Vec::new()
        }
        Request::InjectEcc { node, place: part, correctable } => {
            let EccPlaceName(part) = part.parse().map_err(|allowed: &str| anyhow!(allowed))?;
            let errors = correctable.map_or(EccErrors::Fatal, EccErrors::Correctable);
            device(network, NodeId(*node))?;
            if !network.inject_ecc(NodeId(*node), part, errors) {
                bail!("devices of this kind have no error-correcting codes");
            }
            Vec::new()
        }
        _ => bail!("this request changes no network"),
    })
}

/// True if [`apply`] carries out requests of this kind.
pub(crate) const fn is_change(request: &Request) -> bool {
    matches!(
        request,
        Request::SetLink { .. }
            | Request::SetLinkErrors { .. }
            | Request::SetNodes { .. }
            | Request::SetFaults { .. }
            | Request::SetDeviceFaults { .. }
            | Request::InjectEcc { .. }
    )
}

/// The nodes that a request names.
pub(crate) fn nodes_of(request: &Request) -> Vec<NodeId> {
    match request {
        Request::SetLink { node, .. }
        | Request::SetLinkErrors { node, .. }
        | Request::SetDeviceFaults { node, .. }
        | Request::InjectEcc { node, .. } => vec![NodeId(*node)],
        Request::SetNodes { nodes, .. } => nodes.iter().map(|node| NodeId(*node)).collect(),
        _ => Vec::new(),
    }
}

/// Returns the coordinates of a node.
///
/// # Errors
///
/// One line for the user, if the machine has no such node.
pub(crate) fn place(shape: &Shape, id: NodeId) -> anyhow::Result<Coords> {
    shape.coords(id).with_context(|| format!("the machine {shape} has no node {id}"))
}

/// The device at a node.
fn device(network: &dyn AnyNetwork, id: NodeId) -> anyhow::Result<Arc<dyn AnyNode>> {
    place(network.fabric().shape(), id)?;
    network.node(id).context("there is no device at this place")
}

/// Finds the port of this name.
///
/// # Errors
///
/// One line for the user, with all names.
pub(crate) fn known_port(name: &str) -> anyhow::Result<Port> {
    Port::from_name(name).with_context(|| {
        format!("there is no port {name}; ports are {}", Port::ALL.map(Port::name).join(", "))
    })
}

/// Makes the routers of nodes fail or work again, all of them or none.
fn set_routers(fabric: &Fabric, nodes: &[u32], up: bool) -> anyhow::Result<Vec<Changed>> {
    let nodes = nodes.iter().map(|node| NodeId(*node));
    let places = nodes.map(|id| Ok((id, place(fabric.shape(), id)?)));
    let places = places.collect::<anyhow::Result<Vec<_>>>()?;
    let mut changed = Vec::new();
    for (id, at) in places {
        if fabric.set_node(at, up)? {
            changed.push((Some(id), EventKind::Router { up }));
        }
    }
    Ok(changed)
}

/// Sets the errors of the link at a port of a node, or removes them. Links of Tofu must be
/// modelled.
fn set_link_errors(
    network: &dyn AnyNetwork,
    node: NodeId,
    port: &str,
    errors: Option<&str>,
) -> anyhow::Result<Changed> {
    let spec = errors.map(str::parse::<LinkErrorSpec>).transpose();
    let spec = spec.map_err(|allowed| anyhow!("errors of a link are {allowed}"))?;
    let fabric = network.fabric();
    let at = place(fabric.shape(), node)?;
    let tnw = (network.interconnect() == Interconnect::Tnw).then_some(Parameters::TNW);
    let errors = match (spec, fabric.parameters().or(tnw)) {
        (Some(spec), Some(parameters)) => spec.errors(parameters.lanes)?,
        // No errors, which is refused as well for links that are not modelled.
        _ => LinkErrors::default(),
    };
    network.set_link_errors(at, known_port(port)?, &errors)?;
    let errors = spec.as_ref().map(ToString::to_string);
    Ok((Some(node), EventKind::LinkErrors { port: port.to_owned(), errors }))
}

/// Sets the faults of all links, or removes them.
fn set_faults(network: &dyn AnyNetwork, faults: Option<&str>) -> anyhow::Result<EventKind> {
    let spec = faults.map(str::parse::<FaultSpec>).transpose();
    let spec = spec.map_err(|allowed| anyhow!("faults are {allowed}"))?;
    let faults = spec.as_ref().map(ToString::to_string);
    network.set_faults(spec.map(|spec| spec.plan()))?;
    Ok(EventKind::Faults { faults })
}
