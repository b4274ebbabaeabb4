//! The rates of a machine's nodes per second, from two readings of their counters.

use std::path::Path;
use std::time::Instant;

use anyhow::bail;
use tofu_abi::regs::{CqReg, PortReg, TniReg};
use tofu_abi::tnw::{ChannelReg, LinkReg};
use tofu_abi::topology::Port;

use crate::protocol::{MachineInfo, Reply, Request};
use crate::{Counters, NodeCounters, ask, info};

/// The unit in which a device counts bytes.
const UNIT: u64 = 16;
/// Bytes of data in a packet of TNW.
const TNW_DATA: u64 = 128;

/// A node at one moment.
#[derive(Clone, Debug)]
pub struct NodeSample {
    /// Its number.
    pub index: u32,
    /// Name, such as `t-0-0-0-0-0-0`.
    pub name: String,
    /// As in [`NodeInfo::state`](crate::protocol::NodeInfo::state), or `down`.
    pub state: String,
    /// Its counters.
    pub counters: NodeCounters,
}

/// A machine at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// When it was read.
    pub at: Instant,
    /// Its description of itself.
    pub machine: MachineInfo,
    /// Its nodes that have a device.
    pub nodes: Vec<NodeSample>,
}

/// A node's activity per second.
#[derive(Clone, Debug)]
pub struct Rates {
    /// Commands of its queues that have ended.
    pub commands: f64,
    /// Bytes that its interfaces sent.
    pub sent: f64,
    /// Bytes that they received.
    pub received: f64,
    /// Commands and packets that failed.
    pub errors: f64,
    /// Commands that wait for answers now.
    pub waiting: u64,
}

impl Look {
    /// Reads the counters of the machine at this control socket.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn take(control: &Path) -> anyhow::Result<Self> {
        let machine = info(control)?;
        let mut nodes = Vec::with_capacity(machine.nodes.len());
        for node in &machine.nodes {
            let counters = match ask(control, &Request::Counters { node: node.index })? {
                Reply::Counters { counters } => {
                    counters.map(|counters| *counters).unwrap_or_default()
                }
                _ => bail!("not an answer"),
            };
            let state = if node.down { "down".to_owned() } else { node.state.clone() };
            nodes.push(NodeSample { index: node.index, name: node.name.clone(), state, counters });
        }
        Ok(Self { at: Instant::now(), machine, nodes })
    }
}

impl NodeSample {
    /// Returns the node with the increase of its counters since an earlier reading, or without any
    /// increase if there was none.
    pub fn since(&self, before: Option<&Self>) -> Self {
        let old = before.map_or(&self.counters, |before| &before.counters);
        Self { counters: self.counters.since(old), ..self.clone() }
    }

    /// Returns the rates of the counters, which must be those of `seconds` seconds.
    pub fn rates(&self, seconds: f64) -> Rates {
        let counters = &self.counters;
        let of_queues = |reg: CqReg| -> u64 {
            counters.queues.iter().filter_map(|queue| queue.counters.get(reg.name())).sum()
        };
        let (commands, sent, received) = match counters.nwp.is_some() {
            true => (
                counters.of_channels(ChannelReg::MessagesSent),
                TNW_DATA * counters.of_links(LinkReg::Sent),
                TNW_DATA * counters.of_links(LinkReg::Received),
            ),
            false => (
                of_queues(CqReg::TcqNumNotice),
                UNIT * counters.of_tnis(TniReg::ByteSendTlp),
                UNIT * counters.of_tnis(TniReg::ByteReceiveTlp),
            ),
        };
        let errors = [
            counters.failed_commands(),
            counters.of_tnis(TniReg::NumReceiveNullifiedTlp),
            counters.of_tnis(TniReg::RxNumExceptionTlp),
            counters.of_tnis(TniReg::RxNumUnknownTlp),
            counters.of_ports(PortReg::NumTxDiscardNormalTlp),
            counters.of_ports(PortReg::NumTxDiscardSystemTlp),
            counters.of_links(LinkReg::CrcErrors),
            counters.of_links(LinkReg::SequenceErrors),
            counters.of_links(LinkReg::Timeouts),
            counters.of_channels(ChannelReg::Refused),
        ];
        Rates {
            commands: rate(commands, seconds),
            sent: rate(sent, seconds),
            received: rate(received, seconds),
            errors: rate(errors.iter().fold(0, |sum, n| sum.saturating_add(*n)), seconds),
            waiting: counters.under_way,
        }
    }

    /// Returns the ports over which data left it, with the bytes per second.
    pub fn ports(&self, seconds: f64) -> Vec<(String, f64)> {
        let of = |counters: &Counters, name| counters.get(name).copied().unwrap_or(0);
        let ports = Port::ALL.iter().zip(&self.counters.ports);
        let ports = ports.map(|(port, counted)| {
            (port.to_string(), UNIT * of(counted, PortReg::ByteSendTlp.name()))
        });
        let links =
            self.counters.links.iter().map(|link| {
                (link.port.clone(), TNW_DATA * of(&link.counters, LinkReg::Sent.name()))
            });
        let busy = ports.chain(links).filter(|(_, bytes)| *bytes > 0);
        busy.map(|(port, bytes)| (port, rate(bytes, seconds))).collect()
    }
}

/// The modelled time of the latest of these readings, in nanoseconds, if the machine has it.
pub fn modelled_ns(nodes: &[NodeSample]) -> Option<u64> {
    nodes.iter().filter_map(|node| node.counters.modelled_ns).max()
}

/// Returns the seconds between two readings: of the modelled time, if the machine has it, or else
/// of the host's.
pub fn seconds_between(before: (Instant, &[NodeSample]), now: (Instant, &[NodeSample])) -> f64 {
    match (modelled_ns(before.1), modelled_ns(now.1)) {
        (Some(before), Some(now)) => now.saturating_sub(before) as f64 / 1e9,
        _ => now.0.saturating_duration_since(before.0).as_secs_f64(),
    }
}

/// Returns the rate of `n` in `seconds`, per second.
pub fn rate(n: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { n as f64 / seconds } else { 0.0 }
}
