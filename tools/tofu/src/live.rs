//! What can be asked of the network of a machine that runs, and changed in it.

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use tofu_abi::Coords;
use tofu_fabric::{Link, Port, Shape};

use crate::faults::FaultSpec;
use crate::linux::machine::Registry;
use crate::stats::{self, NodeCounters};

/// A question about the network, or an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Takes the link at a port of a node up or down. Answered by [`Answer::Done`].
    SetLink { at: [u8; 6], port: u8, up: bool },
    /// Answered by [`Answer::Links`].
    Links,
    /// Has these faults from now on, as text, or none. Answered by [`Answer::Done`].
    SetFaults(Option<String>),
    /// Answered by [`Answer::Faults`].
    Faults,
    /// What the device at a place has counted. Answered by [`Answer::Counters`].
    Counters { at: [u8; 6] },
}

/// What a machine answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    /// The links that are down. All others are up.
    Links {
        down: Vec<LinkEnd>,
    },
    /// None if there are none.
    Faults(Option<FaultReport>),
    /// None where no device is.
    Counters(Option<NodeCounters>),
}

/// Faults, and how often they happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FaultReport {
    /// On all links, as text.
    pub(crate) faults: String,
    /// Links with faults of their own.
    pub(crate) links: u32,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) corrupted: u64,
    pub(crate) undetected: u64,
}

/// A link, named from one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkEnd {
    pub(crate) at: [u8; 6],
    pub(crate) port: u8,
}

impl LinkEnd {
    pub(crate) fn of(link: &Link) -> Self {
        Self { at: link.from.to_array(), port: link.port.index() as u8 }
    }
}

/// Answers what a command asks.
///
/// # Errors
///
/// One line for the user.
pub(crate) fn answer(registry: &Registry, ask: Ask) -> anyhow::Result<Answer> {
    let network = registry.running().context("the machine has not started yet")?;
    let (wires, fabric) = (network.wires(), network.wires().fabric());
    match ask {
        Ask::SetLink { at, port, up } => {
            let port = Port::from_index(port.into()).context("there is no such port")?;
            fabric.set_link(Coords::from_array(at), port, up)?;
            Ok(Answer::Done)
        }
        Ask::Links => {
            let down = fabric.links().filter(|(_, up)| !up).map(|(link, _)| LinkEnd::of(&link));
            Ok(Answer::Links { down: down.collect() })
        }
        Ask::SetFaults(spec) => {
            let spec = spec.map(|text| text.parse::<FaultSpec>()).transpose();
            let spec = spec.map_err(|allowed| anyhow!("faults are {allowed}"))?;
            wires.set_faults(spec.map(|spec| spec.plan()))?;
            Ok(Answer::Done)
        }
        Ask::Counters { at } => Ok(Answer::Counters(stats::of(registry, Coords::from_array(at))?)),
        Ask::Faults => Ok(Answer::Faults(wires.faults().map(|(plan, counters)| FaultReport {
            faults: FaultSpec::of(&plan).to_string(),
            links: plan.links.len() as u32,
            lost: counters.lost,
            duplicated: counters.duplicated,
            reordered: counters.reordered,
            corrupted: counters.corrupted,
            undetected: counters.undetected,
        }))),
    }
}

/// The ends of the links that are down now, or will be when the machine has been built.
pub(crate) fn links_down(registry: &Registry) -> Vec<[[u8; 6]; 2]> {
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
