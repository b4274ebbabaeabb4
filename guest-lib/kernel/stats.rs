// SPDX-License-Identifier: GPL-2.0

//! What a node does and how it is, to be read in debugfs (`tofu/`), by people and scripts: lines
//! of words, the first of which say what the line is about. The files are part of no interface.

use kernel::debugfs::Scope;
use kernel::fmt;
use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;

use tofu_abi::irq::{cqs, tni as requests, tnr};
use tofu_abi::regs::{
    self, cq_page, cqs_page, tni_base, CqReg, CqsReg, CqsStatus, PortReg, Register, TniReg,
    TniState, TofuReg, NUM_CQ, NUM_PORT, NUM_TNI,
};

use crate::device::Device;
use crate::users::USER_CQS;

/// Exceptions of a control queue, by their public names.
const CQ_EXCEPTIONS: [(u64, &str); 11] = [
    (cqs::TOQ_READ_EXCEPTION, "TOQ_READ_EXCEPTION"),
    (
        cqs::TOQ_DIRECT_DESCRIPTOR_EXCEPTION,
        "TOQ_DIRECT_DESCRIPTOR_EXCEPTION",
    ),
    (cqs::TOQ_MARKED_UE, "TOQ_MARKED_UE"),
    (cqs::TCQ_WRITE_EXCEPTION, "TCQ_WRITE_EXCEPTION"),
    (cqs::TOQ_SOURCE_TYPE_EXCEPTION, "TOQ_SOURCE_TYPE_EXCEPTION"),
    (cqs::MRQ_WRITE_EXCEPTION, "MRQ_WRITE_EXCEPTION"),
    (cqs::MRQ_OVERFLOW, "MRQ_OVERFLOW"),
    (cqs::STEERING_READ_EXCEPTION, "STEERING_READ_EXCEPTION"),
    (cqs::MB_READ_EXCEPTION, "MB_READ_EXCEPTION"),
    (cqs::PAYLOAD_READ_EXCEPTION, "PAYLOAD_READ_EXCEPTION"),
    (cqs::PAYLOAD_WRITE_EXCEPTION, "PAYLOAD_WRITE_EXCEPTION"),
];
/// Those of a TNI. That packets of other nodes find no buffer is no fault of this node's.
const TNI_EXCEPTIONS: [(u64, &str); 5] = [
    (requests::PBQ_READ_EXCEPTION, "PBQ_READ_EXCEPTION"),
    (requests::PBQ_MARKED_UE, "PBQ_MARKED_UE"),
    (requests::PRQ_WRITE_EXCEPTION, "PRQ_WRITE_EXCEPTION"),
    (requests::PRQ_OVERFLOW, "PRQ_OVERFLOW"),
    (
        requests::STAGE2_TRANSLATION_FAULT,
        "STAGE2_TRANSLATION_FAULT",
    ),
];
/// Names of the ports' requests, in the order of their bits.
const PORT_REQUESTS: [&str; 5] = [
    "RX_FILTER_OUT",
    "TX_FILTER_OUT",
    "PORT_ERROR",
    "DATELINE_ERROR",
    "ROUTING_ERROR",
];
/// The folder.
pub(crate) type Files = Pin<KBox<Scope<Arc<Device>>>>;

/// Makes the files of a node.
///
/// # Errors
///
/// `ENOMEM`. Where the kernel has no debugfs, there are no files.
pub(crate) fn files(device: &Arc<Device>) -> Result<Files> {
    let device: Result<Arc<Device>> = Ok(device.clone());
    let scope = Scope::dir(device, c"tofu", |device, dir| {
        dir.read_callback_file(c"health", device, &health);
        dir.read_callback_file(c"queues", device, &queues);
        dir.read_callback_file(c"interfaces", device, &interfaces);
        dir.read_callback_file(c"ports", device, &ports);
    });
    KBox::pin_init(scope, GFP_KERNEL)
}

/// Writes the names of the bits that are set.
fn names(f: &mut fmt::Formatter<'_>, bits: u64, known: &[(u64, &str)]) -> fmt::Result {
    for (_, name) in known.iter().filter(|(bit, _)| bits & bit != 0) {
        write!(f, " {name}")?;
    }
    Ok(())
}

fn all(known: &[(u64, &str)]) -> u64 {
    known.iter().fold(0, |all, (bit, _)| all | bit)
}

/// How the node is: a line `state` with `ok`, `degraded` (a link or a queue has met an exception)
/// or `failed` (the device does not answer, or a TNI has stopped), then a line for each reason.
fn health(device: &Arc<Device>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if device.read(regs::tofu(TofuReg::NodeAddress)) == u64::MAX {
        return writeln!(f, "state failed\ndevice no answer");
    }
    let tni = |tni: u8, reg: TniReg| device.read(tni_base(tni) + reg.offset());
    let irr = |tni: u8, cq: u8| device.read(cqs_page(tni, cq) + CqsReg::Irr.offset());
    let tnis = 0..NUM_TNI as u8;
    let queues = || {
        tnis.clone()
            .flat_map(|tni| (0..NUM_CQ as u8).map(move |cq| (tni, cq)))
    };
    let stopped = |n: &u8| tni(*n, TniReg::State) & 3 == TniState::Error as u64;
    let links = device.read(regs::tofu(TofuReg::TnrIrr)) & tnr::ALL;

    let failed = tnis.clone().any(|n| stopped(&n));
    let degraded = links != 0
        || tnis
            .clone()
            .any(|n| tni(n, TniReg::Irr) & all(&TNI_EXCEPTIONS) != 0)
        || queues().any(|(tni, cq)| irr(tni, cq) & all(&CQ_EXCEPTIONS) != 0);
    let state = match (failed, degraded) {
        (true, _) => "failed",
        (false, true) => "degraded",
        (false, false) => "ok",
    };
    writeln!(f, "state {state}")?;
    let [x, y, z, a, b, c] = device.coords().to_array();
    writeln!(f, "position {x} {y} {z} {a} {b} {c}")?;
    let interrupts = if device.vector(0).is_some() {
        "on"
    } else {
        "off"
    };
    writeln!(f, "interrupts {interrupts}")?;
    writeln!(f, "pinned_pages {}", device.pinned.load(Relaxed))?;
    writeln!(f, "signalled_exceptions {}", device.faults.load(Relaxed))?;
    for n in tnis.clone() {
        let exceptions = tni(n, TniReg::Irr);
        if stopped(&n) {
            writeln!(f, "tni{n} stopped")?;
        }
        if exceptions & all(&TNI_EXCEPTIONS) != 0 {
            write!(f, "tni{n}")?;
            names(f, exceptions, &TNI_EXCEPTIONS)?;
            writeln!(f)?;
        }
    }
    for (tni, cq) in queues() {
        let exceptions = irr(tni, cq);
        if exceptions & all(&CQ_EXCEPTIONS) != 0 {
            write!(f, "tni{tni}cq{cq}")?;
            names(f, exceptions, &CQ_EXCEPTIONS)?;
            writeln!(f)?;
        }
    }
    for port in 0..NUM_PORT as u8 {
        let requests = links >> (6 * port) & 0x1f;
        if requests != 0 {
            write!(f, "port{}", port + 1)?;
            let set = PORT_REQUESTS.iter().enumerate();
            for (_, name) in set.filter(|(bit, _)| requests >> bit & 1 != 0) {
                write!(f, " {name}")?;
            }
            writeln!(f)?;
        }
    }
    Ok(())
}

/// Control queues that are on: whose they are, bytes of payload since then, exceptions.
fn queues(device: &Arc<Device>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for tni in 0..NUM_TNI as u8 {
        for cq in 0..NUM_CQ as u8 {
            let page = cqs_page(tni, cq);
            let status = CqsStatus(device.read(page + CqsReg::Status.offset()));
            if !status.cq_enable() {
                continue;
            }
            let user = cq_page(tni, cq);
            let owner = if usize::from(cq) < USER_CQS {
                "process"
            } else {
                "kernel"
            };
            write!(
                f,
                "tni{tni}cq{cq} owner {owner} gpid {} sent {} received {}",
                device.read(page + CqsReg::Gpid.offset()),
                device.read(user + CqReg::TxPayloadByte.offset()),
                device.read(user + CqReg::RxPayloadByte.offset()),
            )?;
            names(f, device.read(page + CqsReg::Irr.offset()), &CQ_EXCEPTIONS)?;
            writeln!(f)?;
        }
    }
    Ok(())
}

/// Counters of the TNIs, by their public names, but for those that are 0.
fn interfaces(device: &Arc<Device>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for tni in 0..NUM_TNI as u8 {
        let state = device.read(tni_base(tni) + TniReg::State.offset());
        writeln!(f, "tni{tni} STATE {}", state & 3)?;
        let counters = TniReg::ALL
            .iter()
            .filter(|reg| reg.offset() >= TniReg::SendCount.offset());
        for reg in counters {
            let value = device.read(tni_base(tni) + reg.offset());
            if value != 0 {
                writeln!(f, "tni{tni} {} {value}", reg.name())?;
            }
        }
    }
    Ok(())
}

/// Counters of the ports, numbered from 1 as elsewhere, by their public names, but for those that
/// are 0.
fn ports(device: &Arc<Device>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for port in 0..NUM_PORT as u8 {
        for reg in PortReg::ALL {
            let value = device.read(Register::Port { port, reg: *reg }.offset());
            if value != 0 {
                writeln!(f, "port{} {} {value}", port + 1, reg.name())?;
            }
        }
    }
    Ok(())
}
