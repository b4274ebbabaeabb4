// SPDX-License-Identifier: GPL-2.0

//! State and counters of a node in debugfs (`tofu/`), for people and scripts. Each line is a list
//! of words; the first ones name its subject. The files are not a stable interface. Devlink also
//! has the health.

use kernel::debugfs::Scope;
use kernel::fmt;
use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;

use tofu_abi::irq::{CqsIrqs, PortRequest, TniIrqs, TnrIrqs};
use tofu_abi::regs::{CqReg, CqsReg, CqsStatus, PortReg, TniReg, TniState};
use tofu_abi::topology::Port;
use tofu_abi::TniId;

use crate::device::Device;
use crate::ids::QueueId;
use crate::opened::Opened;

/// Exceptions of a TNI. A packet of another node that finds no buffer is not a fault of this node.
const TNI_EXCEPTIONS: TniIrqs = TniIrqs::ALL
    .without(TniIrqs::PBQ_UNDERFLOW)
    .without(TniIrqs::PRQ_PACKET_DISCARD)
    .without(TniIrqs::PRQ_WRITE_ACKNOWLEDGE)
    .without(TniIrqs::INACTIVE_BG);
/// Names of the ports' requests.
const PORT_REQUESTS: [(PortRequest, &str); 5] = [
    (PortRequest::RxFilterOut, "RX_FILTER_OUT"),
    (PortRequest::TxFilterOut, "TX_FILTER_OUT"),
    (PortRequest::PortError, "PORT_ERROR"),
    (PortRequest::DatelineError, "DATELINE_ERROR"),
    (PortRequest::RoutingError, "ROUTING_ERROR"),
];
/// All that there is to say of a device that is gone.
const NO_ANSWER: &str = "device no answer";
/// The folder; dropping it removes the files.
pub(crate) type Files = Pin<KBox<Scope<Arc<Opened>>>>;

/// The text of the file `health`, also for devlink's health reporter.
pub(crate) struct Report<'a>(pub(crate) &'a Arc<Opened>);

impl core::fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        health(self.0, f)
    }
}

/// Makes the files of a node.
///
/// # Errors
///
/// `ENOMEM`. If the kernel has no debugfs, there are no files.
pub(crate) fn files(opened: &Arc<Opened>) -> Result<Files> {
    let opened: Result<Arc<Opened>> = Ok(opened.clone());
    let scope = Scope::dir(opened, c"tofu", |opened, dir| {
        dir.read_callback_file(c"health", opened, &health);
        dir.read_callback_file(c"queues", opened, &|o, f| if_it_answers(o, f, queues));
        dir.read_callback_file(c"interfaces", opened, &|o, f| {
            if_it_answers(o, f, interfaces)
        });
        dir.read_callback_file(c"ports", opened, &|o, f| if_it_answers(o, f, ports));
    });
    KBox::pin_init(scope, GFP_KERNEL)
}

/// Lets `write` print something about the device, or says that it is gone.
fn if_it_answers(
    opened: &Arc<Opened>,
    f: &mut fmt::Formatter<'_>,
    write: impl FnOnce(&Device, &mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    match opened.device.answers() {
        true => write(&opened.device, f),
        false => writeln!(f, "{NO_ANSWER}"),
    }
}

/// Writes the names of requests.
fn names<'a>(f: &mut fmt::Formatter<'_>, names: impl Iterator<Item = &'a str>) -> fmt::Result {
    for name in names {
        write!(f, " {name}")?;
    }
    writeln!(f)
}

fn cq_exceptions(device: &Device, id: QueueId) -> CqsIrqs {
    CqsIrqs::from_raw(device.read(id, CqsReg::Irr)) & CqsIrqs::EXCEPTIONS
}

fn tni_exceptions(device: &Device, tni: TniId) -> TniIrqs {
    TniIrqs::from_raw(device.read(tni, TniReg::Irr)) & TNI_EXCEPTIONS
}

fn has_stopped(device: &Device, tni: TniId) -> bool {
    device.read(tni, TniReg::State) & 3 == TniState::Error as u64
}

/// Packets that were marked as bad in transit and dropped, because a router's memory had an
/// uncorrectable error.
fn nullified(device: &Device) -> u64 {
    let of = |tni| device.read(tni, TniReg::NumReceiveNullifiedTlp);
    // A device that has just gone reads as all ones.
    device
        .description()
        .tni_ids()
        .map(of)
        .fold(0, u64::saturating_add)
}

/// Writes the node's health: a line `state` with `ok`, `degraded` or `failed`, and a line for each
/// reason. The state is `degraded` if a link or a queue has had an exception, or a process still
/// has a queue that a reset has ended. It is `failed` if the device does not respond, or a TNI has
/// stopped.
fn health(opened: &Arc<Opened>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let device = &opened.device;
    if !device.answers() {
        return writeln!(f, "state failed\n{NO_ANSWER}");
    }
    if device.epoch().is_err() {
        return writeln!(f, "state failed\ndevice reset");
    }
    let links = device.link_requests();
    let mut tnis = device.description().tni_ids();
    let is_failed = tnis.clone().any(|tni| has_stopped(device, tni));
    let is_degraded = !links.is_empty()
        || opened.has_lost()
        || tnis.any(|tni| !tni_exceptions(device, tni).is_empty())
        || QueueId::of(device.description()).any(|id| !cq_exceptions(device, id).is_empty());
    let state = match (is_failed, is_degraded) {
        (true, _) => "failed",
        (false, true) => "degraded",
        (false, false) => "ok",
    };
    writeln!(f, "state {state}")?;
    writeln!(f, "position {}", device.coords().separated(' '))?;
    let interrupts = if device.vector(0).is_some() {
        "on"
    } else {
        "off"
    };
    writeln!(f, "interrupts {interrupts}")?;
    writeln!(f, "pinned_pages {}", device.pinned.load(Relaxed))?;
    writeln!(f, "charged_pages {}", device.charged.load(Relaxed))?;
    writeln!(f, "signalled_exceptions {}", device.faults.load(Relaxed))?;
    writeln!(f, "peer_exceptions {}", device.peer_faults())?;
    writeln!(f, "resets {}", device.resets())?;
    writeln!(f, "nullified_packets {}", nullified(device))?;
    opened.write_lost(f)?;
    exceptions(device, f)?;
    for port in Port::ALL {
        let is_set = |request| links.intersects(TnrIrqs::of(port, request));
        let mut set = PORT_REQUESTS
            .iter()
            .filter_map(|(request, name)| is_set(*request).then_some(*name))
            .peekable();
        if set.peek().is_some() {
            write!(f, "port{}", port.index() + 1)?;
            names(f, set)?;
        }
    }
    Ok(())
}

/// Prints exceptions of TNIs and queues, and which TNIs have stopped.
fn exceptions(device: &Device, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for tni in device.description().tni_ids() {
        if has_stopped(device, tni) {
            writeln!(f, "tni{tni} stopped")?;
        }
        let exceptions = tni_exceptions(device, tni);
        if !exceptions.is_empty() {
            write!(f, "tni{tni}")?;
            names(f, exceptions.names())?;
        }
    }
    for id in QueueId::of(device.description()) {
        let exceptions = cq_exceptions(device, id);
        if !exceptions.is_empty() {
            write!(f, "{id}")?;
            names(f, exceptions.names())?;
        }
    }
    Ok(())
}

/// The enabled control queues: owner, bytes of payload, exceptions.
fn queues(device: &Device, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for id in QueueId::of(device.description()) {
        if !CqsStatus(device.read(id, CqsReg::Status)).cq_enable() {
            continue;
        }
        let owner = if id.cq != device.description().kernel_cq() {
            "process"
        } else {
            "kernel"
        };
        write!(
            f,
            "{id} owner {owner} gpid {:#x} sent {} received {}",
            device.read(id, CqsReg::Gpid),
            device.read(id, CqReg::TxPayloadByte),
            device.read(id, CqReg::RxPayloadByte),
        )?;
        names(f, cq_exceptions(device, id).names())?;
    }
    Ok(())
}

/// Counters of the TNIs that are not 0, by their public names.
fn interfaces(device: &Device, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for tni in device.description().tni_ids() {
        let state = device.read(tni, TniReg::State);
        writeln!(f, "tni{tni} STATE {}", state & 3)?;
        let counters = TniReg::ALL
            .iter()
            .filter(|reg| reg.offset() >= TniReg::SendCount.offset());
        for reg in counters {
            let value = device.read(tni, *reg);
            if value != 0 {
                writeln!(f, "tni{tni} {} {value}", reg.name())?;
            }
        }
    }
    Ok(())
}

/// Counters of the ports that are not 0, by their public names. Ports are numbered from 1.
fn ports(device: &Device, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for port in Port::ALL {
        for reg in PortReg::ALL {
            let value = device.read(port, *reg);
            if value != 0 {
                writeln!(f, "port{} {} {value}", port.index() + 1, reg.name())?;
            }
        }
    }
    Ok(())
}
