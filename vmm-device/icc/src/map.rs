//! The readable registers of a device, by the names of the register map.
//!
//! Write-only registers are left out, and so are control queues and barrier gates that are not
//! enabled, because there are thousands of these.

use std::fmt;

use tofu_abi::barrier::{GpidBseq, LocalLink, RemoteLink, SignalMask, SignalState};
use tofu_abi::irq::{BgsIrqs, CqsIrqs, TniIrqs};
use tofu_abi::regs::{
    BchReg, BgsReg, CqReg, CqsMode, CqsReg, CqsStatus, NodeAddress, PortReg, Register, TniReg,
    TofuReg, XbReg,
};
use tofu_abi::{BgId, CqId, TniId, bits};
use tofu_fabric::Port;

use crate::device::Icc;

/// A part of a device that has its own registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The device as a whole.
    Tofu,
    /// The crossbar.
    Crossbar,
    /// A network interface.
    Tni(TniId),
    /// A control queue: its system registers and its page.
    Queue(TniId, CqId),
    /// A barrier gate, with its channel.
    Gate(TniId, BgId),
    /// A port.
    Port(Port),
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tofu => f.write_str("tofu"),
            Self::Crossbar => f.write_str("crossbar"),
            Self::Tni(tni) => write!(f, "tni {tni}"),
            Self::Queue(tni, cq) => write!(f, "tni {tni} cq {cq}"),
            Self::Gate(tni, gate) => write!(f, "tni {tni} gate {gate}"),
            Self::Port(port) => write!(f, "port {port}"),
        }
    }
}

/// A register and its present value.
#[derive(Clone, Copy, Debug)]
pub struct RegisterNow {
    /// Its name in the register map.
    pub name: &'static str,
    /// The register.
    pub register: Register,
    /// The value of a read.
    pub value: u64,
}

impl RegisterNow {
    /// The meaning of the value: its fields by name, or the requests in it.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let value = self.value;
        let set = |names: Vec<&str>| vec![("requests", names.join(" "))];
        let known: &[(&str, u32, u32)] = match self.register {
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
                return vec![("state", state.to_owned())];
            }
            _ => &[],
        };
        let field = |&(name, low, high): &(&'static str, u32, u32)| {
            (name, bits::extract(value, low, high).to_string())
        };
        known.iter().map(field).collect()
    }
}

impl Icc {
    /// The parts that have registers and are in use.
    pub fn units(&self) -> impl Iterator<Item = Unit> {
        let description = self.description();
        let of_tni = move |tni| {
            let queues = description.cq_ids().map(move |cq| Unit::Queue(tni, cq));
            let gates = BgId::ALL.into_iter().filter(move |bg| description.has_gate(tni, *bg));
            [Unit::Tni(tni)]
                .into_iter()
                .chain(queues)
                .chain(gates.map(move |bg| Unit::Gate(tni, bg)))
        };
        let in_use = |unit: &Unit| match *unit {
            Unit::Queue(tni, cq) => self.queue(tni, cq).enabled(),
            Unit::Gate(tni, bg) => self.read_bgs(tni, bg, BgsReg::Enable) & 1 != 0,
            _ => true,
        };
        [Unit::Tofu, Unit::Crossbar]
            .into_iter()
            .chain(description.tni_ids().flat_map(of_tni))
            .chain(Port::ALL.map(Unit::Port))
            .filter(in_use)
    }

    /// The registers of a part that are worth showing, with their values, read without side
    /// effects.
    pub fn registers(&self, unit: Unit) -> Vec<RegisterNow> {
        let read = |(name, register): (&'static str, Register)| {
            let mut data = [0; 8];
            self.bar_read(register.offset(), &mut data);
            RegisterNow { name, register, value: u64::from_le_bytes(data) }
        };
        self.named(unit).into_iter().map(read).collect()
    }

    fn named(&self, unit: Unit) -> Vec<(&'static str, Register)> {
        match unit {
            Unit::Tofu => vec![
                ("NODE_ADDRESS", Register::Tofu(TofuReg::NodeAddress)),
                ("GENERATION", Register::Tofu(TofuReg::Generation)),
                ("PORT_SETTING", Register::Tofu(TofuReg::PortSetting)),
                ("TNR_MSI_BASE", Register::Tofu(TofuReg::TnrMsiBase)),
                ("TNR_IRR", Register::Tofu(TofuReg::TnrIrr)),
                ("TNR_IMR", Register::Tofu(TofuReg::TnrImr)),
                ("TNR_ICL", Register::Tofu(TofuReg::TnrIcl)),
            ],
            Unit::Crossbar => {
                XbReg::ALL.iter().map(|&reg| (reg.name(), Register::Xb(reg))).collect()
            }
            Unit::Tni(tni) => {
                let written_only = |reg: &TniReg| matches!(reg, TniReg::Irc | TniReg::Imc);
                let regs = TniReg::ALL.iter().filter(|reg| !written_only(reg));
                let base = ("MSI_BASE", Register::Tofu(TofuReg::TniMsiBase(tni)));
                let named = |&reg: &TniReg| (reg.name(), Register::Tni { tni, reg });
                [base].into_iter().chain(regs.map(named)).collect()
            }
            Unit::Queue(tni, cq) => {
                let written_only =
                    |reg: &CqsReg| matches!(reg, CqsReg::CacheFlush | CqsReg::Irc | CqsReg::Imc);
                let system = CqsReg::ALL.iter().filter(|reg| !written_only(reg));
                let system = system.map(|&reg| (reg.name(), Register::Cqs { tni, cq, reg }));
                let counters = CqReg::ALL.iter();
                let counters = counters.filter(|reg| reg.offset() >= CqReg::TcqNumNotice.offset());
                let page = counters.chain(&[CqReg::MrqFullPointer]);
                system.chain(page.map(|&reg| (reg.name(), Register::Cq { tni, cq, reg }))).collect()
            }
            Unit::Gate(tni, bg) => {
                let channel = bg.channel().filter(|bch| self.profile().has_channel(tni, *bch));
                let data = BgsReg::DataA0.offset()..=BgsReg::DataBe.offset();
                let says = |reg: &BgsReg| {
                    let of_channel = reg.offset() >= BgsReg::BchMask.offset();
                    let written_only = matches!(reg, BgsReg::Irc | BgsReg::Imc);
                    !(written_only
                        || data.contains(&reg.offset())
                        || of_channel && channel.is_none())
                };
                let gate = BgsReg::ALL.iter().copied().filter(says);
                let gate = gate.map(|reg| (reg.name(), Register::Bgs { tni, bg, reg }));
                let page = channel.into_iter().flat_map(|bch| {
                    [BchReg::Ready, BchReg::IgnoredSignalCount]
                        .map(|reg| (reg.name(), Register::Bch { tni, bch, reg }))
                });
                gate.chain(page).collect()
            }
            Unit::Port(port) => {
                let named = |&reg: &PortReg| (reg.name(), Register::Port { port, reg });
                PortReg::ALL.iter().map(named).collect()
            }
        }
    }
}
