//! What can be asked of the network of a machine that runs, and changed in it.

use anyhow::{Context, anyhow};
use tofu_abi::Coords;
use tofu_control::protocol::{FaultReport, LinkEnd, NetworkReply, NetworkRequest};
use tofu_fabric::{Port, Shape};

use super::counters;
use crate::faults::FaultSpec;
use crate::registry::Registry;

/// Answers what a command asks.
///
/// # Errors
///
/// One line for the user.
pub(super) fn answer(registry: &Registry, request: NetworkRequest) -> anyhow::Result<NetworkReply> {
    let network = registry.running().context("the machine has not started yet")?;
    let (wires, fabric) = (network.wires(), network.wires().fabric());
    match request {
        NetworkRequest::SetLink { at, port, up } => {
            let port = Port::from_index(port.into()).context("there is no such port")?;
            fabric.set_link(Coords::from_array(at), port, up)?;
            Ok(NetworkReply::Done)
        }
        NetworkRequest::Links => {
            let down = fabric.links().filter(|(_, up)| !up).map(|(link, _)| LinkEnd::of(&link));
            Ok(NetworkReply::Links(down.collect()))
        }
        NetworkRequest::SetFaults(spec) => {
            let spec = spec.map(|text| text.parse::<FaultSpec>()).transpose();
            let spec = spec.map_err(|allowed| anyhow!("faults are {allowed}"))?;
            wires.set_faults(spec.map(|spec| spec.plan()))?;
            Ok(NetworkReply::Done)
        }
        NetworkRequest::Counters { at } => {
            Ok(NetworkReply::Counters(counters::of(registry, Coords::from_array(at))?))
        }
        NetworkRequest::Faults => {
            Ok(NetworkReply::Faults(wires.faults().map(|(plan, counters)| FaultReport {
                faults: FaultSpec::of(&plan).to_string(),
                links: plan.links.len() as u32,
                lost: counters.lost,
                duplicated: counters.duplicated,
                reordered: counters.reordered,
                corrupted: counters.corrupted,
                undetected: counters.undetected,
            })))
        }
    }
}

/// The ends of the links that are down now, or will be when the machine has been built.
pub(super) fn links_down(registry: &Registry) -> Vec<[[u8; 6]; 2]> {
    let network = &registry.network;
    match registry.running() {
        Some(running) => {
            let down = running.wires().fabric().links().filter(|(_, up)| !up);
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
