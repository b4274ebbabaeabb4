//! The counters of a node's device for `tofu stats`, by the names of the register map.

use tofu_abi::regs::{CqReg, CqsReg, PortReg, Register, TniReg};
use tofu_abi::tnw::{self, Channel, ChannelReg, Link, LinkReg, NwpReg};
use tofu_abi::topology::Port;
use tofu_abi::{CqId, TniId};
use tofu_control::{
    COMMANDS_LOST, COMMANDS_REFUSED, Counters, LinkCounters as NwpLink, NodeCounters, QueueCounters,
};
use tofu_fabric::NodeId;
use tofu_gateway::LinkCounters;
use tofu_icc::Icc;
use tofu_machine::Nwp;

use crate::registry::Registry;

/// The counters in a control queue's page.
const QUEUE: [CqReg; 4] =
    [CqReg::TcqNumNotice, CqReg::MrqNumNotice, CqReg::TxPayloadByte, CqReg::RxPayloadByte];

/// Returns the counters of a node's device, or `None` if it has no device.
///
/// # Errors
///
/// One line for the user, if the machine does not exist or has no such node.
pub(super) fn of(registry: &Registry, id: NodeId) -> anyhow::Result<Option<NodeCounters>> {
    let ip = registry.gateway_link(registry.place(id)?).map(|stats| ip(&stats.now()));
    let modelled_ns = registry.modelled_ns();
    Ok(registry.device(id)?.and_then(|node| match node.icc() {
        Some(icc) => Some(NodeCounters { ip, modelled_ns, ..of_device(icc) }),
        None => node.nwp().map(of_nwp),
    }))
}

/// Counters of a channel of TNW.
const CHANNEL: [ChannelReg; 5] = [
    ChannelReg::MessagesSent,
    ChannelReg::MessagesReceived,
    ChannelReg::Overlaps,
    ChannelReg::Orphans,
    ChannelReg::Refused,
];

fn of_nwp(nwp: &Nwp) -> NodeCounters {
    let read = |register, name: &str| (name.to_owned(), nwp.read_register(register));
    let own = [NwpReg::StrayStores, NwpReg::BadAccesses];
    let own = own.map(|reg| read(tnw::Register::Nwp(reg), reg.name()));
    let links = Link::ALL.into_iter().filter(|link| nwp.leads_somewhere(*link));
    let of_link = |link: Link| {
        let counts = |reg: &&LinkReg| **reg != LinkReg::Status;
        let regs = LinkReg::ALL.iter().filter(counts);
        let counters = regs.map(|&reg| read(tnw::Register::Link(link, reg), reg.name()));
        let of_channel = |channel| {
            let register = |reg| tnw::Register::Channel(link, channel, reg);
            CHANNEL.map(|reg| read(register(reg), reg.name())).into()
        };
        NwpLink {
            port: link.port().to_string(),
            counters: counters.collect(),
            channels: Channel::ALL.into_iter().map(of_channel).collect(),
        }
    };
    NodeCounters {
        nwp: Some(own.into()),
        links: links.map(of_link).collect(),
        ..NodeCounters::default()
    }
}

fn of_device(icc: &Icc) -> NodeCounters {
    let read = |register: Register| {
        let mut data = [0; 8];
        icc.bar_read(register.offset(), &mut data);
        u64::from_le_bytes(data)
    };
    let description = icc.description();
    let tnis = description.tni_ids();
    let counted = |reg: &&TniReg| reg.offset() >= TniReg::SendCount.offset();
    let of_tni = |tni| {
        let regs = TniReg::ALL.iter().filter(counted);
        let regs = regs.map(|&reg| (reg.name().to_owned(), read(Register::Tni { tni, reg })));
        let failed = icc.failed_commands(tni);
        let failed = [(COMMANDS_REFUSED, failed.refused), (COMMANDS_LOST, failed.lost)];
        regs.chain(failed.map(|(name, value)| (name.to_owned(), value))).collect()
    };
    let counts = |reg: &&PortReg| **reg != PortReg::FreeRunCount;
    let of_port = |port| {
        let regs = PortReg::ALL.iter().filter(counts);
        regs.map(|&reg| (reg.name().to_owned(), read(Register::Port { port, reg }))).collect()
    };
    let queues =
        description.tni_ids().flat_map(|tni| description.cq_ids().map(move |cq| (tni, cq)));
    let enabled =
        |&(tni, cq): &(TniId, CqId)| read(Register::Cqs { tni, cq, reg: CqsReg::Enable }) & 1;
    let of_queue = |(tni, cq): (TniId, CqId)| {
        let counters =
            QUEUE.map(|reg| (reg.name().to_owned(), read(Register::Cq { tni, cq, reg })));
        QueueCounters { tni: tni.get(), cq: cq.get(), counters: counters.into() }
    };
    NodeCounters {
        tnis: tnis.map(of_tni).collect(),
        ports: Port::ALL.into_iter().map(of_port).collect(),
        queues: queues.filter(|queue| enabled(queue) != 0).map(of_queue).collect(),
        ecc: icc.ecc_counts().map(|(name, value)| (name.to_owned(), value)).into(),
        ip: None,
        under_way: icc.commands_under_way(),
        ..NodeCounters::default()
    }
}

fn ip(counters: &LinkCounters) -> Counters {
    let LinkCounters { link, forged } = counters;
    let all = link.named().chain([("forged", *forged)]);
    all.map(|(name, value)| (name.to_owned(), value)).collect()
}
