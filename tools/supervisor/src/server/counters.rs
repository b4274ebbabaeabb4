//! What a node's device has counted, for `tofu stats`: by the names of the register map.

use anyhow::Context;
use tofu_abi::regs::{CqReg, CqsReg, NUM_PORT, PortReg, Register, TniReg};
use tofu_abi::{Coords, CqId, TniId};
use tofu_control::{Counters, NodeCounters};
use tofu_gateway::LinkCounters;
use tofu_machine::Node;

use crate::registry::Registry;

/// Counters of a control queue's page.
const QUEUE: [CqReg; 4] =
    [CqReg::TcqNumNotice, CqReg::MrqNumNotice, CqReg::TxPayloadByte, CqReg::RxPayloadByte];

/// Counters of the device at a place; `None` if there is no device.
///
/// # Errors
///
/// One line for the user, if the machine is not there or has no such place.
pub(super) fn of(registry: &Registry, at: Coords) -> anyhow::Result<Option<NodeCounters>> {
    let network = registry.running().context("the machine has not started yet")?;
    let shape = network.wires().fabric().shape();
    let id = shape.node_id(at).with_context(|| format!("the machine {shape} has no node {at}"))?;
    let Some(node) = network.node(id) else { return Ok(None) };
    let ip = registry.gateway_link(at).map(|stats| ip(&stats.now()));
    Ok(Some(NodeCounters { ip, ..of_device(&node) }))
}

fn of_device(node: &Node) -> NodeCounters {
    let read = |register: Register| {
        let mut data = [0; 8];
        node.icc().bar_read(register.offset(), &mut data);
        u64::from_le_bytes(data)
    };
    let tnis = TniId::ALL.into_iter();
    let counted = |reg: &&TniReg| reg.offset() >= TniReg::SendCount.offset();
    let of_tni = |tni| {
        let regs = TniReg::ALL.iter().filter(counted);
        regs.map(|&reg| (reg.name().to_owned(), read(Register::Tni { tni, reg }))).collect()
    };
    let counts = |reg: &&PortReg| **reg != PortReg::FreeRunCount;
    let of_port = |port| {
        let regs = PortReg::ALL.iter().filter(counts);
        regs.map(|&reg| (reg.name().to_owned(), read(Register::Port { port, reg }))).collect()
    };
    let queues = tnis.clone().flat_map(|tni| CqId::ALL.map(|cq| (tni, cq)));
    let enabled =
        |&(tni, cq): &(TniId, CqId)| read(Register::Cqs { tni, cq, reg: CqsReg::Enable }) & 1;
    let of_queue = |(tni, cq): (TniId, CqId)| {
        let counters =
            QUEUE.map(|reg| (reg.name().to_owned(), read(Register::Cq { tni, cq, reg })));
        (tni.get(), cq.get(), Counters::from(counters))
    };
    NodeCounters {
        tnis: tnis.map(of_tni).collect(),
        ports: (0..NUM_PORT as u8).map(of_port).collect(),
        queues: queues.filter(|queue| enabled(queue) != 0).map(of_queue).collect(),
        ip: None,
    }
}

fn ip(counters: &LinkCounters) -> Counters {
    let LinkCounters { link, forged } = counters;
    let all = link.named().chain([("forged", *forged)]);
    all.map(|(name, value)| (name.to_owned(), value)).collect()
}
