// SPDX-License-Identifier: GPL-2.0

//! The ioctls of the files `control` and `info`: rights of users, counters, and state for finding
//! out what has gone wrong.

use kernel::bindings;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::uaccess::{UserPtr, UserSlice};

use tofu_abi::regs::{CqReg, PortReg, BAR0_SIZE, NUM_CQ, NUM_PORT, NUM_TNI};
use tofu_abi::topology::{Port, Shape};
use tofu_abi::{Coords, CqId, Group, TniId};

use crate::device::Device;
use crate::ids::{GateSet, QueueId};
use crate::opened::Opened;
use crate::uapi;
use crate::users::{cq_mask, Rights};

/// Queues and gates that programs register which know TofuD alone.
const CQ_MASK: u64 = (1 << (NUM_CQ - 1)) - 1;
const BG_MASK: u64 = (1 << 44) - 1;

/// Where the registers lie on a real machine, which LOAD_REGISTER counts from.
const HARDWARE_BASE: u64 = 0x4000_0000;
/// Bytes that LOAD_REGISTER and LOAD_RESOURCE give at most in one call (ours).
const MAX_LOAD: u64 = 16 << 20;
/// Items of NOTIFY_LINKDOWN at most (ours).
const MAX_LINKS: i32 = 4096;

/// The ioctls of `control`.
///
/// # Errors
///
/// See docs/src/reference/tof-uapi.md.
pub(crate) fn ioctl(opened: &Opened, cmd: u32, arg: u64) -> Result {
    let device = &opened.device;
    match cmd {
        uapi::SET_SUBNET => {
            privileged()?;
            let subnet = uapi::get::<uapi::Subnet>(arg)?.mode()?;
            device.users.lock().set_subnet(subnet);
            Ok(())
        }
        uapi::REG_USER => {
            privileged()?;
            register_user(device, &uapi::get(arg)?)
        }
        _ => info_ioctl(opened, cmd, arg),
    }
}

/// The ioctls of `info`, which `control` has too.
///
/// # Errors
///
/// See docs/src/reference/tof-uapi.md.
pub(crate) fn info_ioctl(opened: &Opened, cmd: u32, arg: u64) -> Result {
    let device = &opened.device;
    match cmd {
        uapi::GET_PORT_STAT => port_stat(device, arg),
        uapi::GET_CQ_STAT => cq_stat(device, arg),
        uapi::NOTIFY_LINKDOWN => {
            privileged()?;
            note_links_down(device, &uapi::get(arg)?)
        }
        uapi::LOAD_REGISTER => {
            privileged()?;
            load_register(device, &uapi::get(arg)?)
        }
        uapi::LOAD_RESOURCE => {
            privileged()?;
            load_resource(opened, &uapi::get(arg)?)
        }
        _ => Err(ENOTTY),
    }
}

fn privileged() -> Result {
    // SAFETY: no requirements.
    if unsafe { bindings::capable(bindings::CAP_SYS_ADMIN as c_int) } {
        Ok(())
    } else {
        Err(EPERM)
    }
}

fn register_user(device: &Device, a: &uapi::RegUser) -> Result {
    if a.gpid == uapi::NO_GROUP {
        device.users.lock().forget(a.uid);
        return Ok(());
    }
    // A program that registers all queues and gates of a TofuD is given those that there are.
    let masks = |addr: u64, allowed: u64, there: [u64; NUM_TNI]| -> Result<[u64; NUM_TNI]> {
        let mut masks: [u64; NUM_TNI] = uapi::get(addr)?;
        if masks.iter().all(|mask| mask & !allowed == 0) {
            masks
                .iter_mut()
                .zip(there)
                .for_each(|(mask, there)| *mask &= there);
            Ok(masks)
        } else {
            Err(EINVAL)
        }
    };
    let description = device.description();
    let cqs = [cq_mask(description); NUM_TNI];
    let gates = description.user_gates();
    let all_gates = gates.iter().fold(BG_MASK, |all, mask| all | mask);
    let rights = Rights {
        group: Group::Given(a.gpid),
        subnet: a.subnet.mode()?,
        cqs: masks(a.cqmask, CQ_MASK, cqs)?,
        gates: GateSet(masks(a.bgmask, all_gates, gates)?),
    };
    device.users.lock().register(a.uid, rights)
}

/// Ours: what is said of a node replaces what was said of it before.
fn note_links_down(device: &Device, a: &uapi::NotifyLinkdown) -> Result {
    if !(0..=MAX_LINKS).contains(&a.num) {
        return Err(EINVAL);
    }
    let health = device.health();
    for i in 0..a.num as u64 {
        let at = i * size_of::<uapi::LinkdownItem>() as u64;
        let uapi::LinkdownItem {
            x,
            y,
            z,
            a,
            b,
            c,
            ports,
        } = uapi::get(a.items.wrapping_add(at))?;
        let node = Coords::new(x, y, z, a, b, c);
        if !Shape::LARGEST.contains(node) || ports >> NUM_PORT != 0 {
            return Err(EINVAL);
        }
        if let Some(health) = &health {
            health.note(node, ports);
        }
        dev_dbg!(
            device.pdev(),
            "links down at ({},{},{},{},{},{}): ports {:#x}\n",
            x,
            y,
            z,
            a,
            b,
            c,
            ports
        );
    }
    Ok(())
}

fn port_stat(device: &Device, arg: u64) -> Result {
    let mut stat: uapi::PortStat = uapi::get(arg)?;
    let index = usize::try_from(stat.port_no)
        .ok()
        .and_then(|number| number.checked_sub(1));
    let port = index.and_then(Port::from_index).ok_or(EINVAL)?;
    for (value, reg) in stat.pa.iter_mut().zip(PortReg::ALL) {
        *value = device.read(port, *reg);
    }
    uapi::put(arg, &stat)
}

fn cq_stat(device: &Device, arg: u64) -> Result {
    let mut stat: uapi::CqStat = uapi::get(arg)?;
    let tni = u8::try_from(stat.tni).ok().and_then(TniId::new);
    let cq = u8::try_from(stat.cqid).ok().and_then(CqId::new);
    let id = QueueId {
        tni: tni.ok_or(EINVAL)?,
        cq: cq.ok_or(EINVAL)?,
    };
    if !device.description().has_tni(id.tni) || !device.description().has_cq(id.cq) {
        return Err(EINVAL);
    }
    stat.txbyte = device.read(id, CqReg::TxPayloadByte);
    stat.rxbyte = device.read(id, CqReg::RxPayloadByte);
    uapi::put(arg, &stat)
}

fn load_register(device: &Device, a: &uapi::LoadRegister) -> Result {
    let start = a.pa.checked_sub(HARDWARE_BASE).ok_or(EINVAL)?;
    let end = start.checked_add(a.len).ok_or(EINVAL)?;
    if (start | a.len) % 8 != 0 || end > BAR0_SIZE || a.len > MAX_LOAD {
        return Err(EINVAL);
    }
    let mut out = UserSlice::new(UserPtr::from_addr(a.buf as usize), a.len as usize).writer();
    for offset in (start..end).step_by(8) {
        out.write(&device.load(offset)?)?;
    }
    Ok(())
}

/// Numbers of resources as in the public interface, whose list leaves out the steering tables
/// of queues 0 to 2 of the last TNI, so that what follows has three less.
fn load_resource(opened: &Opened, a: &uapi::LoadResource) -> Result {
    const QUEUES: u64 = (NUM_TNI * NUM_CQ) as u64;
    const STEERING: u64 = 3 * QUEUES + 2 * NUM_TNI as u64;
    const LEFT_OUT: u64 = 3;
    const BLOCKS: u64 = STEERING + QUEUES - LEFT_OUT;
    const END: u64 = BLOCKS + QUEUES;
    const LAST_TNI: u64 = QUEUES - NUM_CQ as u64;
    if a.len > MAX_LOAD {
        return Err(EINVAL);
    }
    let open = |number: u64| {
        let id = QueueId::all().nth(number as usize);
        id.and_then(|id| opened.queue(id)).ok_or(ENOENT)
    };
    let id = a.rsc_id;
    if id < 3 * QUEUES {
        open(id % QUEUES)?.dump_ring((id / QUEUES) as usize, a.offset, a.len, a.buf)
    } else if id < STEERING {
        // Packet queues are not dumped.
        Err(ENOENT)
    } else if id < BLOCKS {
        let n = id - STEERING;
        let queue = if n < LAST_TNI { n } else { n + LEFT_OUT };
        open(queue)?.dump_table(false, a.offset, a.len, a.buf)
    } else if id < END {
        open(id - BLOCKS)?.dump_table(true, a.offset, a.len, a.buf)
    } else {
        Err(EINVAL)
    }
}

const _: () = assert!(PortReg::ALL.len() == 31);
