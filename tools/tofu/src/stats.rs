//! What a node's device has counted, for `tofu stats`: by the names of the register map.

use std::collections::BTreeMap;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tofu_abi::Coords;
use tofu_abi::regs::{CqReg, CqsReg, NUM_CQ, NUM_PORT, NUM_TNI, PortReg, Register, TniReg};
use tofu_gateway::LinkCounters;
use tofu_machine::Node;

use crate::linux::machine::Registry;

/// Counters of a control queue's page.
const QUEUE: [CqReg; 4] =
    [CqReg::TcqNumNotice, CqReg::MrqNumNotice, CqReg::TxPayloadByte, CqReg::RxPayloadByte];

/// Counters of the same kind of thing, by name.
pub(crate) type Counters = BTreeMap<String, u64>;

/// Counters of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeCounters {
    /// Of each network interface.
    pub(crate) tnis: Vec<Counters>,
    /// Of each link port.
    pub(crate) ports: Vec<Counters>,
    /// Of the control queues that are enabled, by interface and queue.
    pub(crate) queues: Vec<(u8, u8, Counters)>,
    /// Of IP over Tofu, if it is this process that speaks it there.
    pub(crate) ip: Option<Counters>,
}

/// Counters of the device at a place; `None` if there is no device.
///
/// # Errors
///
/// One line for the user, if the machine is not there or has no such place.
pub(crate) fn of(registry: &Registry, at: Coords) -> anyhow::Result<Option<NodeCounters>> {
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
    let tnis = 0..NUM_TNI as u8;
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
    let queues = tnis.clone().flat_map(|tni| (0..NUM_CQ as u8).map(move |cq| (tni, cq)));
    let enabled = |&(tni, cq): &(u8, u8)| read(Register::Cqs { tni, cq, reg: CqsReg::Enable }) & 1;
    let of_queue = |(tni, cq)| {
        let counters =
            QUEUE.map(|reg| (reg.name().to_owned(), read(Register::Cq { tni, cq, reg })));
        (tni, cq, Counters::from(counters))
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
    [
        ("sent", link.sent),
        ("received", link.received),
        ("answered", link.answered),
        ("forwarded", link.forwarded),
        ("malformed", link.malformed),
        ("spoofed", link.spoofed),
        ("misdirected", link.misdirected),
        ("duplicates", link.duplicates),
        ("damaged", link.damaged),
        ("oversized", link.oversized),
        ("abandoned", link.abandoned),
        ("no_such_node", link.no_such_node),
        ("forged", *forged),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

impl NodeCounters {
    /// The sum of counters of all network interfaces, by a register's name.
    pub(crate) fn of_tnis(&self, reg: TniReg) -> u64 {
        sum(&self.tnis, reg.name())
    }

    /// The sum of counters of all ports, by a register's name.
    pub(crate) fn of_ports(&self, reg: PortReg) -> u64 {
        sum(&self.ports, reg.name())
    }

    /// What was added since `before`. A counter that has been reset begins at 0.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let less = |now: &Counters, before: Option<&Counters>| -> Counters {
            let old = |name| before.and_then(|before| before.get(name)).copied().unwrap_or(0);
            now.iter()
                .map(|(name, &n)| (name.clone(), n.checked_sub(old(name)).unwrap_or(n)))
                .collect()
        };
        let all = |now: &[Counters], before: &[Counters]| {
            now.iter().enumerate().map(|(n, now)| less(now, before.get(n))).collect()
        };
        let queue_before = |tni, cq| {
            let found = before.queues.iter().find(|queue| (queue.0, queue.1) == (tni, cq));
            found.map(|queue| &queue.2)
        };
        Self {
            tnis: all(&self.tnis, &before.tnis),
            ports: all(&self.ports, &before.ports),
            queues: self
                .queues
                .iter()
                .map(|(tni, cq, now)| (*tni, *cq, less(now, queue_before(*tni, *cq))))
                .collect(),
            ip: self.ip.as_ref().map(|now| less(now, before.ip.as_ref())),
        }
    }
}

fn sum(all: &[Counters], name: &str) -> u64 {
    all.iter().filter_map(|counters| counters.get(name)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(values: [u64; 2]) -> Counters {
        [("A".to_owned(), values[0]), ("B".to_owned(), values[1])].into()
    }

    #[test]
    fn what_was_added() {
        let before = NodeCounters {
            tnis: vec![counters([1, 5])],
            queues: vec![(0, 11, counters([4, 4]))],
            ..NodeCounters::default()
        };
        let now = NodeCounters {
            // The second one was reset in between.
            tnis: vec![counters([3, 2])],
            // The first one is new.
            queues: vec![(0, 3, counters([7, 0])), (0, 11, counters([4, 6]))],
            ip: Some(counters([9, 0])),
            ..NodeCounters::default()
        };
        let added = now.since(&before);
        assert_eq!(added.tnis, [counters([2, 2])]);
        assert_eq!(added.queues, [(0, 3, counters([7, 0])), (0, 11, counters([0, 2]))]);
        assert_eq!(added.ip, now.ip);
        assert_eq!(sum(&added.tnis, "A"), 2);
    }
}
