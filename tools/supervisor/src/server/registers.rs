//! The registers of a node's device, by the names of the register map.
//!
//! For a network processor of TNW, these are the registers of links that lead somewhere, and of
//! channels that have been used.

use tofu_abi::tnw::{self, Channel, ChannelReg, Link, LinkReg, NwpReg};
use tofu_control::protocol::RegisterValue;
use tofu_fabric::NodeId;
use tofu_icc::{Icc, RegisterNow, Unit};
use tofu_machine::{Nwp, register_fields};

use crate::registry::Registry;

/// Returns the registers of a node's device, or `None` if it has no device.
///
/// # Errors
///
/// One line for the user, if the machine does not exist or has no such node.
pub(super) fn of(registry: &Registry, id: NodeId) -> anyhow::Result<Option<Vec<RegisterValue>>> {
    Ok(registry.device(id)?.and_then(|node| match node.icc() {
        Some(icc) => Some(of_icc(icc)),
        None => node.nwp().map(of_nwp),
    }))
}

/// Returns the registers of a network processor.
fn of_nwp(nwp: &Nwp) -> Vec<RegisterValue> {
    let value = |of: &str, register: tnw::Register, name: &str| {
        let value = nwp.read_register(register);
        RegisterValue {
            offset: register.offset(),
            of: of.to_owned(),
            name: name.to_owned(),
            value,
            fields: owned(register_fields(register, value)),
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

/// Returns the registers of a controller.
fn of_icc(icc: &Icc) -> Vec<RegisterValue> {
    let of_unit = |unit: Unit| {
        let value = move |register: RegisterNow| RegisterValue {
            offset: register.register.offset(),
            of: unit.to_string(),
            name: register.name.to_owned(),
            value: register.value,
            fields: owned(register.fields()),
        };
        icc.registers(unit).into_iter().map(value)
    };
    icc.units().flat_map(of_unit).collect()
}

fn owned(fields: Vec<(&str, String)>) -> Vec<(String, String)> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
