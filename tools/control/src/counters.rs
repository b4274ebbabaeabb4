//! What a node's device has counted: by the names of the register map.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tofu_abi::regs::{PortReg, TniReg};

/// Counters of the same kind of thing, by name.
pub type Counters = BTreeMap<String, u64>;

/// Counters of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounters {
    /// Of each network interface.
    pub tnis: Vec<Counters>,
    /// Of each link port.
    pub ports: Vec<Counters>,
    /// Of the control queues that are enabled, by interface and queue.
    pub queues: Vec<(u8, u8, Counters)>,
    /// Of IP over Tofu, if it is this process that speaks it there.
    pub ip: Option<Counters>,
}

impl NodeCounters {
    /// The sum of counters of all network interfaces, by a register's name.
    pub fn of_tnis(&self, reg: TniReg) -> u64 {
        sum(&self.tnis, reg.name())
    }

    /// The sum of counters of all ports, by a register's name.
    pub fn of_ports(&self, reg: PortReg) -> u64 {
        sum(&self.ports, reg.name())
    }

    /// What was added since `before`. A counter that has been reset begins at 0.
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
