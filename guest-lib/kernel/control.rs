// SPDX-License-Identifier: GPL-2.0

//! The ioctls of the files `control` and `info`: rights of users, counters, and state for
//! debugging.

use kernel::bindings;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::uaccess::{UserPtr, UserSlice};

use tofu_abi::regs::{CqReg, PortReg, NUM_TNI};
use tofu_abi::Group;

use crate::device::Device;
use crate::ids::{GateSet, QueueId};
use crate::opened::Opened;
use crate::uapi::{self, Resource};
use crate::users::{cq_mask, Rights};

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
            let subnet = uapi::get::<uapi::Subnet>(arg)?.mode().ok_or(EINVAL)?;
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
    // SAFETY: it reads the credentials of the current process, which exists in an ioctl.
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
    let masks = |addr, known, there| -> Result<_> {
        uapi::RegUser::masks(uapi::get(addr)?, known, there).ok_or(EINVAL)
    };
    let description = device.description();
    let cqs = [cq_mask(description); NUM_TNI];
    let (known, gates) = (
        uapi::RegUser::bg_mask(description),
        description.user_gates(),
    );
    let rights = Rights {
        group: Group::Given(a.gpid),
        subnet: a.subnet.mode().ok_or(EINVAL)?,
        cqs: masks(a.cqmask, uapi::RegUser::CQ_MASK, cqs)?,
        gates: GateSet(masks(a.bgmask, known, gates)?),
    };
    device.users.lock().register(a.uid, rights)
}

/// Ours: a new report about a node replaces the earlier one.
fn note_links_down(device: &Device, a: &uapi::NotifyLinkdown) -> Result {
    let count = a.count().ok_or(EINVAL)?;
    let health = device.health();
    for i in 0..count {
        let at = i * size_of::<uapi::LinkdownItem>() as u64;
        let item: uapi::LinkdownItem = uapi::get(a.items.wrapping_add(at))?;
        let node = item.node().ok_or(EINVAL)?;
        let ports = item.ports;
        if let Some(health) = &health {
            health.note(node, ports);
        }
        dev_dbg!(
            device.pdev(),
            "links down at {}: ports {:#x}\n",
            core::format_args!("{}", node.separated(' ')),
            ports
        );
    }
    Ok(())
}

fn port_stat(device: &Device, arg: u64) -> Result {
    let mut stat: uapi::PortStat = uapi::get(arg)?;
    let port = stat.port().ok_or(EINVAL)?;
    for (value, reg) in stat.pa.iter_mut().zip(PortReg::ALL) {
        *value = device.try_read(port, *reg)?;
    }
    uapi::put(arg, &stat)
}

fn cq_stat(device: &Device, arg: u64) -> Result {
    let mut stat: uapi::CqStat = uapi::get(arg)?;
    let (tni, cq) = stat.queue(device.description()).ok_or(EINVAL)?;
    let id = QueueId { tni, cq };
    stat.txbyte = device.try_read(id, CqReg::TxPayloadByte)?;
    stat.rxbyte = device.try_read(id, CqReg::RxPayloadByte)?;
    uapi::put(arg, &stat)
}

fn load_register(device: &Device, a: &uapi::LoadRegister) -> Result {
    let range = a.range().ok_or(EINVAL)?;
    let mut out = UserSlice::new(UserPtr::from_addr(a.buf as usize), a.len as usize).writer();
    for (n, offset) in range.step_by(8).enumerate() {
        // A read of a device register is slow, and there are millions of registers.
        if n % 256 == 255 && current!().signal_pending() {
            return Err(EINTR);
        }
        out.write(&device.load(offset)?)?;
    }
    Ok(())
}

fn load_resource(opened: &Opened, a: &uapi::LoadResource) -> Result {
    let open = |number| {
        let id = QueueId::all().nth(number);
        id.and_then(|id| opened.queue(id)).ok_or(ENOENT)
    };
    match a.resource().ok_or(EINVAL)? {
        Resource::Ring { queue, ring } => open(queue)?.dump_ring(ring, a.offset, a.len, a.buf),
        Resource::Packets => Err(ENOENT),
        Resource::Table { queue, blocks } => {
            open(queue)?.dump_table(blocks, a.offset, a.len, a.buf)
        }
    }
}

const _: () = assert!(PortReg::ALL.len() == 31);
