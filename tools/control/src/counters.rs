//! The counters of a node's device, by the names of the register map, except for two that are not
//! registers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tofu_abi::regs::{PortReg, TniReg};
use tofu_abi::tnw::{ChannelReg, LinkReg};

/// Counters of one unit, by name.
pub type Counters = BTreeMap<String, u64>;

/// Name of a counter of an interface that is not a register: commands refused by their targets.
pub const COMMANDS_REFUSED: &str = "COMMANDS_REFUSED";
/// Name of a counter of an interface that is not a register: commands that found no target, or got
/// no answer.
pub const COMMANDS_LOST: &str = "COMMANDS_LOST";

/// Counters of a control queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCounters {
    /// Its network interface.
    pub tni: u8,
    /// Its number there.
    pub cq: u8,
    /// Its counters.
    pub counters: Counters,
}

/// Counters of a link of TNW.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// The port that it is at.
    pub port: String,
    /// The counters of the link.
    pub counters: Counters,
    /// The counters of its channels, in their order.
    pub channels: Vec<Counters>,
}

/// Counters of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounters {
    /// Counters of each network interface.
    pub tnis: Vec<Counters>,
    /// Counters of each link port.
    pub ports: Vec<Counters>,
    /// Counters of the enabled control queues.
    pub queues: Vec<QueueCounters>,
    /// Errors that codes have found in the device's memory; not registers.
    #[serde(default)]
    pub ecc: Counters,
    /// The counters of IP over Tofu, if this process runs it there.
    pub ip: Option<Counters>,
    /// Counters of a network processor of TNW.
    #[serde(default)]
    pub nwp: Option<Counters>,
    /// Counters of those links of the network processor that lead somewhere.
    #[serde(default)]
    pub links: Vec<LinkCounters>,
    /// Commands of its control queues that wait for answers now. Not a counter.
    #[serde(default)]
    pub under_way: u64,
    /// Modelled nanoseconds since guests began, in a machine in modelled time. Not a counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_ns: Option<u64>,
}

impl NodeCounters {
    /// Returns the sum of a counter over all network interfaces, by its register.
    pub fn of_tnis(&self, reg: TniReg) -> u64 {
        sum(&self.tnis, reg.name())
    }

    /// Returns how many commands were sent and failed elsewhere.
    pub fn failed_commands(&self) -> u64 {
        sum(&self.tnis, COMMANDS_REFUSED) + sum(&self.tnis, COMMANDS_LOST)
    }

    /// Returns the sum of a counter over all ports, by its register.
    pub fn of_ports(&self, reg: PortReg) -> u64 {
        sum(&self.ports, reg.name())
    }

    /// Returns the sum of a counter over all links of TNW, by its register.
    pub fn of_links(&self, reg: LinkReg) -> u64 {
        self.links.iter().filter_map(|link| link.counters.get(reg.name())).sum()
    }

    /// Returns the sum of a counter over all channels of TNW, by its register.
    pub fn of_channels(&self, reg: ChannelReg) -> u64 {
        self.links.iter().map(|link| sum(&link.channels, reg.name())).sum()
    }

    /// Returns the increase since `before`. A counter that has been reset counts from 0.
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: &Counters, before: Option<&Counters>| -> Counters {
            let old = |name| before.and_then(|before| before.get(name)).copied().unwrap_or(0);
            now.iter()
                .map(|(name, &n)| (name.clone(), n.checked_sub(old(name)).unwrap_or(n)))
                .collect()
        };
        let all = |now: &[Counters], before: &[Counters]| {
            now.iter().enumerate().map(|(n, now)| less(now, before.get(n))).collect()
        };
        let queue_before = |queue: &QueueCounters| {
            let same = |other: &&QueueCounters| (other.tni, other.cq) == (queue.tni, queue.cq);
            before.queues.iter().find(same).map(|queue| &queue.counters)
        };
        Self {
            tnis: all(&self.tnis, &before.tnis),
            ports: all(&self.ports, &before.ports),
            queues: self
                .queues
                .iter()
                .map(|now| QueueCounters {
                    counters: less(&now.counters, queue_before(now)),
                    ..*now
                })
                .collect(),
            ecc: less(&self.ecc, Some(&before.ecc)),
            ip: self.ip.as_ref().map(|now| less(now, before.ip.as_ref())),
            under_way: self.under_way,
            modelled_ns: self.modelled_ns,
            nwp: self.nwp.as_ref().map(|now| less(now, before.nwp.as_ref())),
            links: self
                .links
                .iter()
                .map(|now| {
                    let before = before.links.iter().find(|link| link.port == now.port);
                    LinkCounters {
                        port: now.port.clone(),
                        counters: less(&now.counters, before.map(|link| &link.counters)),
                        channels: all(&now.channels, before.map_or(&[], |link| &link.channels)),
                    }
                })
                .collect(),
        }
    }
}

fn sum(all: &[Counters], name: &str) -> u64 {
    all.iter().filter_map(|counters| counters.get(name)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(cq: u8, values: [u64; 2]) -> QueueCounters {
        QueueCounters { tni: 0, cq, counters: counters(values) }
    }

    fn counters(values: [u64; 2]) -> Counters {
        [("A".to_owned(), values[0]), ("B".to_owned(), values[1])].into()
    }

    #[test]
    fn increase_is_the_difference() {
        let before = NodeCounters {
            tnis: vec![counters([1, 5])],
            queues: vec![queue(11, [4, 4])],
            ..NodeCounters::default()
        };
        let now = NodeCounters {
            // The second one was reset in between.
            tnis: vec![counters([3, 2])],
            // The first one is new.
            queues: vec![queue(3, [7, 0]), queue(11, [4, 6])],
            ip: Some(counters([9, 0])),
            ..NodeCounters::default()
        };
        let link = |values| LinkCounters {
            port: "X+".to_owned(),
            counters: counters(values),
            channels: vec![counters(values)],
        };
        let before = NodeCounters { links: vec![link([1, 2])], ..before };
        let now = NodeCounters { links: vec![link([5, 2])], ..now };
        let added = now.since(&before);
        assert_eq!(added.links, [link([4, 0])]);
        assert_eq!(added.tnis, [counters([2, 2])]);
        assert_eq!(added.queues, [queue(3, [7, 0]), queue(11, [0, 2])]);
        assert_eq!(added.ip, now.ip);
        assert_eq!(sum(&added.tnis, "A"), 2);
    }
}
