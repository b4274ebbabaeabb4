//! The registers of a node's device, by the names of the register map.
//!
//! Left out are those that are written only, user pages of queues and channels that nobody has
//! enabled, and of the barrier gates those that are not enabled: there are thousands of them. Of a
//! network processor of TNW those links are there that lead somewhere, and channels that were used.

use tofu_abi::barrier::{GpidBseq, LocalLink, RemoteLink, SignalMask, SignalState};
use tofu_abi::irq::{BgsIrqs, CqsIrqs, TniIrqs};
use tofu_abi::regs::{
    BchReg, BgsReg, CqReg, CqsMode, CqsReg, CqsStatus, NUM_PORT, NodeAddress, PortReg, Register,
    TniReg, TofuReg, XbReg,
};
use tofu_abi::tnw::{self, Channel, ChannelReg, Link, LinkReg, NwpReg};
use tofu_abi::{BgId, CqId, TniId};
use tofu_control::protocol::RegisterValue;
use tofu_fabric::{NodeId, Port};
use tofu_machine::{Node, Nwp};

use crate::registry::{AnyNode, Registry};

/// The registers of a node's device; `None` if there is no device.
///
/// # Errors
///
/// One line for the user, if the machine is not there or has no such node.
pub(super) fn of(registry: &Registry, id: NodeId) -> anyhow::Result<Option<Vec<RegisterValue>>> {
    Ok(registry.device(id)?.map(|node| match node {
        AnyNode::Tofu(node) => Reader { node: &node, found: Vec::new() }.all(),
        AnyNode::Tnw(node) => of_nwp(node.nwp()),
    }))
}

/// The registers of a network processor.
fn of_nwp(nwp: &Nwp) -> Vec<RegisterValue> {
    let value = |of: &str, register: tnw::Register, name: &str| {
        let value = nwp.read_register(register);
        let fields: Fields = match register {
            tnw::Register::Nwp(NwpReg::Control) => tnw::Control::FIELDS,
            tnw::Register::Nwp(NwpReg::Errors) => tnw::Errors::FIELDS,
            tnw::Register::Link(_, LinkReg::Status) => tnw::LinkStatus::FIELDS,
            _ => &[],
        };
        RegisterValue {
            offset: register.offset(),
            of: of.to_owned(),
            name: name.to_owned(),
            value,
            fields: extract(fields, value),
        }
    };
    let own = NwpReg::ALL.iter().map(|&reg| value("tnw", tnw::Register::Nwp(reg), reg.name()));
    let mut found: Vec<_> = own.collect();
    for link in Link::ALL.into_iter().filter(|link| nwp.leads_somewhere(*link)) {
        let of = format!("link {}", link.port());
        let regs = LinkReg::ALL.iter();
        found.extend(regs.map(|&reg| value(&of, tnw::Register::Link(link, reg), reg.name())));
        for channel in Channel::ALL {
            let of = format!("{of} channel {}", channel.index());
            let regs = ChannelReg::ALL.iter();
            let regs =
                regs.map(|&reg| value(&of, tnw::Register::Channel(link, channel, reg), reg.name()));
            let regs: Vec<_> = regs.collect();
            if regs.iter().any(|register| register.value != 0) {
                found.extend(regs);
            }
        }
    }
    found
}

/// The fields of a value, as `FIELDS` of the register map has them.
type Fields = &'static [(&'static str, u32, u32)];

struct Reader<'a> {
    node: &'a Node,
    found: Vec<RegisterValue>,
}

impl Reader<'_> {
    fn read(&self, register: Register) -> u64 {
        let mut data = [0; 8];
        self.node.icc().bar_read(register.offset(), &mut data);
        u64::from_le_bytes(data)
    }

    fn all(mut self) -> Vec<RegisterValue> {
        let tofu = [
            (TofuReg::NodeAddress, "NODE_ADDRESS"),
            (TofuReg::Generation, "GENERATION"),
            (TofuReg::PortSetting, "PORT_SETTING"),
            (TofuReg::TnrMsiBase, "TNR_MSI_BASE"),
            (TofuReg::TnrIrr, "TNR_IRR"),
            (TofuReg::TnrImr, "TNR_IMR"),
            (TofuReg::TnrIcl, "TNR_ICL"),
        ];
        for (reg, name) in tofu {
            self.add("tofu", name, Register::Tofu(reg));
        }
        for &reg in XbReg::ALL {
            self.add("crossbar", reg.name(), Register::Xb(reg));
        }
        let description = self.node.icc().description();
        for tni in description.tni_ids() {
            let of = format!("tni {}", tni.get());
            self.add(&of, "MSI_BASE", Register::Tofu(TofuReg::TniMsiBase(tni.get())));
            let regs = TniReg::ALL.iter().filter(|reg| !matches!(reg, TniReg::Irc | TniReg::Imc));
            for &reg in regs {
                self.add(&of, reg.name(), Register::Tni { tni, reg });
            }
            for cq in description.cq_ids() {
                self.queue(tni, cq);
            }
            for bg in BgId::ALL.into_iter().filter(|bg| description.has_gate(tni, *bg)) {
                self.gate(tni, bg);
            }
        }
        for port in 0..NUM_PORT as u8 {
            let name = Port::from_index(port.into()).map_or("?", Port::name);
            for &reg in PortReg::ALL {
                self.add(&format!("port {name}"), reg.name(), Register::Port { port, reg });
            }
        }
        self.found
    }

    fn queue(&mut self, tni: TniId, cq: CqId) {
        if self.read(Register::Cqs { tni, cq, reg: CqsReg::Enable }) & 1 == 0 {
            return;
        }
        let of = format!("tni {} cq {}", tni.get(), cq.get());
        let written_only =
            |reg: &CqsReg| matches!(reg, CqsReg::CacheFlush | CqsReg::Irc | CqsReg::Imc);
        for &reg in CqsReg::ALL.iter().filter(|reg| !written_only(reg)) {
            self.add(&of, reg.name(), Register::Cqs { tni, cq, reg });
        }
        for &reg in CqReg::ALL.iter().filter(|reg| reg.offset() >= CqReg::TcqNumNotice.offset()) {
            self.add(&of, reg.name(), Register::Cq { tni, cq, reg });
        }
        let reg = CqReg::MrqFullPointer;
        self.add(&of, reg.name(), Register::Cq { tni, cq, reg });
    }

    fn gate(&mut self, tni: TniId, bg: BgId) {
        if self.read(Register::Bgs { tni, bg, reg: BgsReg::Enable }) & 1 == 0 {
            return;
        }
        let of = format!("tni {} gate {}", tni.get(), bg.get());
        let barrier = self.node.icc().description().barrier;
        let channel = bg.channel().filter(|bch| barrier.has_channel(tni.get(), bch.get()));
        let data = BgsReg::DataA0.offset()..=BgsReg::DataBe.offset();
        for &reg in BgsReg::ALL {
            let of_channel = reg.offset() >= BgsReg::BchMask.offset();
            let written_only = matches!(reg, BgsReg::Irc | BgsReg::Imc);
            if !(written_only || data.contains(&reg.offset()) || of_channel && channel.is_none()) {
                self.add(&of, reg.name(), Register::Bgs { tni, bg, reg });
            }
        }
        if let Some(bch) = channel {
            for reg in [BchReg::Ready, BchReg::IgnoredSignalCount] {
                self.add(&of, reg.name(), Register::Bch { tni, bch, reg });
            }
        }
    }

    fn add(&mut self, of: &str, name: &str, register: Register) {
        let value = self.read(register);
        self.found.push(RegisterValue {
            offset: register.offset(),
            of: of.to_owned(),
            name: name.to_owned(),
            value,
            fields: fields(register, value),
        });
    }
}

/// What a value means, by the names of its fields or of the requests in it.
fn fields(register: Register, value: u64) -> Vec<(String, String)> {
    let set = |names: Vec<&str>| vec![("requests".to_owned(), names.join(" "))];
    let known: Fields = match register {
        Register::Tofu(TofuReg::NodeAddress) => NodeAddress::FIELDS,
        Register::Cqs { reg: CqsReg::Status, .. } => CqsStatus::FIELDS,
        Register::Cqs { reg: CqsReg::Mode, .. } => CqsMode::FIELDS,
        Register::Bgs { reg: BgsReg::SignalA | BgsReg::SignalB, .. } => SignalState::FIELDS,
        Register::Bgs { reg: BgsReg::SignalMask, .. } => SignalMask::FIELDS,
        Register::Bgs { reg: BgsReg::LocalLink, .. } => LocalLink::FIELDS,
        Register::Bgs { reg: BgsReg::RemoteLink, .. } => RemoteLink::FIELDS,
        Register::Bgs { reg: BgsReg::GpidBseq, .. } => GpidBseq::FIELDS,
        Register::Cqs { reg: CqsReg::Irr | CqsReg::Imr, .. } if value != 0 => {
            return set(CqsIrqs::from_raw(value).names().collect());
        }
        Register::Tni { reg: TniReg::Irr | TniReg::Imr, .. } if value != 0 => {
            return set(TniIrqs::from_raw(value).names().collect());
        }
        Register::Bgs { reg: BgsReg::Irr | BgsReg::Imr, .. } if value != 0 => {
            return set(BgsIrqs::from_raw(value).names().collect());
        }
        Register::Tni { reg: TniReg::State, .. } => {
            let state = match value & 3 {
                0 => "disabled",
                2 => "normal",
                3 => "error",
                _ => "reserved",
            };
            return vec![("state".to_owned(), state.to_owned())];
        }
        _ => &[],
    };
    extract(known, value)
}

fn extract(fields: Fields, value: u64) -> Vec<(String, String)> {
    let field = |&(name, low, high): &(&str, u32, u32)| {
        (name.to_owned(), tofu_abi::bits::extract(value, low, high).to_string())
    };
    fields.iter().map(field).collect()
}
