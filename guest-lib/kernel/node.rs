// SPDX-License-Identifier: GPL-2.0

//! The files of `/proc/tofu`.

use core::ptr::NonNull;

use kernel::bindings;
use kernel::ffi::{c_int, c_long, c_ulong, c_void};
use kernel::prelude::*;
use kernel::str::CString;
use kernel::sync::{Arc, ArcBorrow};
use kernel::uaccess::{UserPtr, UserSlice};

use tofu_abi::regs::{
    cq_page, CqReg, PortReg, BAR0_SIZE, NUM_BCH, NUM_CQ, NUM_PORT, NUM_TNI, PAGE_STRIDE,
};

use crate::bch::Bch;
use crate::cq::Cq;
use crate::device::{Device, USER_CQS};
use crate::pin::PAGE;
use crate::shim::{self, ProcEntry};
use crate::uapi;
use crate::users::{Rights, BG_MASK, CQ_MASK};

/// Where the registers lie on a real machine, which LOAD_REGISTER counts from.
const HARDWARE_BASE: u64 = 0x4000_0000;
/// Bytes that LOAD_REGISTER and LOAD_RESOURCE give at most in one call (ours).
const MAX_LOAD: u64 = 16 << 20;
/// Pages of the machines that the interface comes from: a program may count on them. The registers
/// of a queue or channel have so much space of their own.
const FOREIGN_PAGE: u64 = 1 << 16;
const _: () = assert!(FOREIGN_PAGE == PAGE_STRIDE);
/// Items of NOTIFY_LINKDOWN at most (ours).
const MAX_LINKS: i32 = 4096;

/// What a file is.
#[derive(Clone, Copy)]
enum Kind {
    Position,
    Control,
    Info,
    Cq(u8, u8),
    Bch(u8, u8),
}

/// A file.
struct Node {
    device: Arc<Device>,
    kind: Kind,
}

/// All files. Dropping it takes them away: it waits for calls that are under way, and releases
/// what is open.
pub(crate) struct Files {
    root: NonNull<ProcEntry>,
    // Boxes, because /proc has their addresses.
    nodes: KVec<KBox<Node>>,
}

// SAFETY: entries of /proc may be removed by any thread.
unsafe impl Send for Files {}

impl Files {
    /// Makes the files.
    ///
    /// # Errors
    ///
    /// `EEXIST` if there is a /proc/tofu: a node has one controller. `ENOMEM`.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self> {
        let count = 3 + NUM_TNI * (USER_CQS + NUM_BCH);
        let root = folder(c"tofu", core::ptr::null_mut()).map_err(|_| EEXIST)?;
        // From here on an error takes away what there is.
        let mut files = Self {
            root,
            nodes: KVec::new(),
        };
        files.nodes.reserve(count, GFP_KERNEL)?;
        let dev = folder(c"dev", root.as_ptr())?.as_ptr();
        files.add(device, root.as_ptr(), c"position", 0o666, Kind::Position)?;
        files.add(device, dev, c"control", 0o600, Kind::Control)?;
        files.add(device, dev, c"info", 0o666, Kind::Info)?;
        for tni in 0..NUM_TNI as u8 {
            for cq in 0..USER_CQS as u8 {
                let name = CString::try_from_fmt(fmt!("tni{tni}cq{cq}"))?;
                files.add(device, dev, &name, 0o666, Kind::Cq(tni, cq))?;
            }
            for bch in 0..NUM_BCH as u8 {
                let name = CString::try_from_fmt(fmt!("tni{tni}bch{bch}"))?;
                files.add(device, dev, &name, 0o666, Kind::Bch(tni, bch))?;
            }
        }
        Ok(files)
    }

    fn add(
        &mut self,
        device: &Arc<Device>,
        parent: *mut ProcEntry,
        name: &CStr,
        mode: bindings::umode_t,
        kind: Kind,
    ) -> Result {
        let node = KBox::new(
            Node {
                device: device.clone(),
                kind,
            },
            GFP_KERNEL,
        )?;
        let raw = core::ptr::from_ref(&*node).cast_mut().cast();
        // It has to be there before the file is.
        self.nodes.push(node, GFP_KERNEL)?;
        // SAFETY: `parent` is an entry of ours; the node stays until the entry is removed.
        let entry = unsafe { shim::tofu_shim_proc_file(name.as_char_ptr(), mode, parent, raw) };
        if entry.is_null() {
            return Err(ENOMEM);
        }
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // SAFETY: made in `new`. Afterwards nobody is in our functions, so that the nodes may go.
        unsafe { shim::tofu_shim_proc_remove(self.root.as_ptr()) };
    }
}

fn folder(name: &CStr, parent: *mut ProcEntry) -> Result<NonNull<ProcEntry>> {
    // SAFETY: `parent` is null or an entry of ours.
    NonNull::new(unsafe { shim::tofu_shim_proc_folder(name.as_char_ptr(), parent) }).ok_or(ENOMEM)
}

fn code(result: Result) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// # Safety
///
/// `node` must be what [`Files::add`] gave to /proc, in a call for that file.
unsafe fn node_of<'a>(node: *mut c_void) -> &'a Node {
    // SAFETY: nodes stay until their files are removed, which waits for such calls.
    unsafe { &*node.cast() }
}

/// # Safety
///
/// `node` must be that of the file, `data` a place for its data.
#[no_mangle]
unsafe extern "C" fn tofu_rs_open(node: *mut c_void, data: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let node = unsafe { node_of(node) };
    let opened = match node.kind {
        Kind::Cq(tni, cq) => {
            Cq::open(&node.device, tni, cq).map(|cq| Arc::into_raw(cq).cast_mut().cast())
        }
        Kind::Bch(tni, bch) => {
            Bch::open(&node.device, tni, bch).map(|bch| Arc::into_raw(bch).cast_mut().cast())
        }
        _ => Ok(core::ptr::null_mut()),
    };
    code(opened.map(|raw: *mut c_void| {
        // SAFETY: the caller's promise.
        unsafe { *data = raw };
    }))
}

/// # Safety
///
/// `node` must be that of the file, `data` what `tofu_rs_open` left; called once.
#[no_mangle]
unsafe extern "C" fn tofu_rs_release(node: *mut c_void, data: *mut c_void) {
    // SAFETY: the caller's promise.
    match unsafe { node_of(node) }.kind {
        // SAFETY: made by `into_raw` when the file was opened; nobody uses it any more.
        Kind::Cq(..) => unsafe { Arc::from_raw(data.cast::<Cq>()) }.release(),
        // SAFETY: likewise.
        Kind::Bch(..) => unsafe { Arc::from_raw(data.cast::<Bch>()) }.release(),
        _ => {}
    }
}

/// # Safety
///
/// `node` must be that of the file, `data` what `tofu_rs_open` left.
#[no_mangle]
unsafe extern "C" fn tofu_rs_ioctl(
    node: *mut c_void,
    data: *mut c_void,
    cmd: u32,
    arg: c_ulong,
) -> c_long {
    // SAFETY: the caller's promise.
    let node = unsafe { node_of(node) };
    let arg = arg as u64;
    let result = match node.kind {
        Kind::Position => Err(ENOTTY),
        Kind::Control | Kind::Info => node.ioctl(cmd, arg),
        Kind::Cq(..) => {
            // SAFETY: made by `into_raw`; the file holds the reference during the call.
            let cq: Arc<Cq> = unsafe { ArcBorrow::from_raw(data.cast::<Cq>()) }.into();
            cq.ioctl(cmd, arg)
        }
        // SAFETY: likewise.
        Kind::Bch(..) => unsafe { ArcBorrow::from_raw(data.cast::<Bch>()) }.ioctl(cmd, arg),
    };
    code(result) as c_long
}

/// # Safety
///
/// `node` must be that of the file, `data` what `tofu_rs_open` left, `pos` the file's position.
#[no_mangle]
unsafe extern "C" fn tofu_rs_read(
    node: *mut c_void,
    data: *mut c_void,
    buf: *mut c_void,
    len: usize,
    pos: *mut bindings::loff_t,
) -> isize {
    // SAFETY: the caller's promise.
    let (node, pos) = unsafe { (node_of(node), &mut *pos) };
    let read = match node.kind {
        Kind::Position => node.read(buf as usize, len, pos),
        // SAFETY: made by `into_raw`; the file holds the reference during the call.
        Kind::Bch(..) => unsafe { ArcBorrow::from_raw(data.cast::<Bch>()) }
            .exceptions()
            .and_then(|exceptions| put_word(buf as usize, len, exceptions)),
        _ => Err(EINVAL),
    };
    match read {
        Ok(n) => n as isize,
        Err(error) => error.to_errno() as isize,
    }
}

/// # Safety
///
/// `node` must be that of the file, `data` what `tofu_rs_open` left, `vma` an area that is being
/// set up.
#[no_mangle]
unsafe extern "C" fn tofu_rs_mmap(
    node: *mut c_void,
    data: *mut c_void,
    vma: *mut bindings::vm_area_struct,
    offset: c_ulong,
    len: c_ulong,
    shared: bool,
    write: bool,
) -> c_int {
    // SAFETY: the caller's promise.
    let kind = unsafe { node_of(node) }.kind;
    let (offset, len) = (offset as u64, len as u64);
    let page = match kind {
        Kind::Cq(..) => {
            // SAFETY: made by `into_raw`; the file holds the reference during the call.
            let cq = unsafe { ArcBorrow::from_raw(data.cast::<Cq>()) };
            if (offset == PAGE || offset == FOREIGN_PAGE) && shared {
                // The table is the kernel's.
                return code(if write {
                    Err(EACCES)
                } else {
                    cq.map_table(vma, len)
                });
            }
            cq.page_phys()
        }
        // SAFETY: likewise.
        Kind::Bch(..) => unsafe { ArcBorrow::from_raw(data.cast::<Bch>()) }.page_phys(),
        _ => return ENODEV.to_errno(),
    };
    // What is behind is somebody else's.
    if offset != 0 || len > FOREIGN_PAGE || !shared {
        return EINVAL.to_errno();
    }
    // SAFETY: the caller's promise, and the page is one that processes may have.
    unsafe { shim::tofu_shim_map_registers(vma, page, len as usize) }
}

/// The result of a read that gives one word.
fn put_word(buf: usize, len: usize, word: u64) -> Result<usize> {
    if len < size_of::<u64>() {
        return Err(EINVAL);
    }
    uapi::put(buf as u64, &word)?;
    Ok(size_of::<u64>())
}

fn privileged() -> Result {
    // SAFETY: no requirements.
    if unsafe { bindings::capable(bindings::CAP_SYS_ADMIN as c_int) } {
        Ok(())
    } else {
        Err(EPERM)
    }
}

impl Node {
    /// Reads the node's position.
    fn read(&self, buf: usize, len: usize, pos: &mut i64) -> Result<usize> {
        let [x, y, z, a, b, c] = self.device.coords().to_array();
        let text = CString::try_from_fmt(fmt!("{x} {y} {z} {a} {b} {c}\n"))?;
        let text = text.to_bytes();
        let start = usize::try_from(*pos).map_err(|_| EINVAL)?.min(text.len());
        let part = text
            .get(start..text.len().min(start.saturating_add(len)))
            .ok_or(EINVAL)?;
        UserSlice::new(UserPtr::from_addr(buf), part.len())
            .writer()
            .write_slice(part)?;
        *pos += part.len() as i64;
        Ok(part.len())
    }

    fn ioctl(&self, cmd: u32, arg: u64) -> Result {
        match cmd {
            uapi::GET_PORT_STAT => self.port_stat(arg),
            uapi::GET_CQ_STAT => self.cq_stat(arg),
            uapi::SET_SUBNET | uapi::REG_USER if !matches!(self.kind, Kind::Control) => Err(ENOTTY),
            uapi::SET_SUBNET => {
                privileged()?;
                let subnet = uapi::get::<uapi::Subnet>(arg)?.mode()?;
                self.device.users.lock().set_subnet(subnet);
                Ok(())
            }
            uapi::REG_USER => {
                privileged()?;
                self.register_user(&uapi::get(arg)?)
            }
            uapi::NOTIFY_LINKDOWN => {
                privileged()?;
                self.links_down(&uapi::get(arg)?)
            }
            uapi::LOAD_REGISTER => {
                privileged()?;
                self.load_register(&uapi::get(arg)?)
            }
            uapi::LOAD_RESOURCE => {
                privileged()?;
                self.load_resource(&uapi::get(arg)?)
            }
            _ => Err(ENOTTY),
        }
    }

    fn register_user(&self, a: &uapi::RegUser) -> Result {
        let masks = |addr: u64, allowed: u64| -> Result<[u64; NUM_TNI]> {
            let masks: [u64; NUM_TNI] = uapi::get(addr)?;
            if masks.iter().all(|mask| mask & !allowed == 0) {
                Ok(masks)
            } else {
                Err(EINVAL)
            }
        };
        let rights = Rights {
            gpid: a.gpid.into(),
            subnet: a.subnet.mode()?,
            cqs: masks(a.cqmask, CQ_MASK)?,
            bgs: masks(a.bgmask, BG_MASK)?,
        };
        self.device.users.lock().register(a.uid, rights)
    }

    /// Ours: what is told is written to the log; routes are not the driver's business.
    fn links_down(&self, a: &uapi::NotifyLinkdown) -> Result {
        if !(0..=MAX_LINKS).contains(&a.num) {
            return Err(EINVAL);
        }
        for i in 0..a.num as u64 {
            let item: uapi::LinkdownItem = uapi::get(
                a.items
                    .wrapping_add(i * size_of::<uapi::LinkdownItem>() as u64),
            )?;
            let fit = [item.x, item.y, item.z].iter().all(|p| *p < 32)
                && item.a < 2
                && item.b < 3
                && item.c < 2
                && item.ports >> NUM_PORT == 0;
            if !fit {
                return Err(EINVAL);
            }
            let uapi::LinkdownItem {
                x,
                y,
                z,
                a,
                b,
                c,
                ports,
            } = item;
            dev_dbg!(
                self.device.pdev(),
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

    fn port_stat(&self, arg: u64) -> Result {
        let mut stat: uapi::PortStat = uapi::get(arg)?;
        let port = usize::try_from(stat.port_no)
            .ok()
            .filter(|n| (1..=NUM_PORT).contains(n));
        let port = port.ok_or(EINVAL)? as u8 - 1;
        for (value, reg) in stat.pa.iter_mut().zip(PortReg::ALL) {
            *value = self.device.port_counter(port, *reg);
        }
        uapi::put(arg, &stat)
    }

    fn cq_stat(&self, arg: u64) -> Result {
        let mut stat: uapi::CqStat = uapi::get(arg)?;
        let tni = usize::try_from(stat.tni)
            .ok()
            .filter(|n| *n < NUM_TNI)
            .ok_or(EINVAL)?;
        let cq = usize::try_from(stat.cqid)
            .ok()
            .filter(|n| *n < NUM_CQ)
            .ok_or(EINVAL)?;
        let page = cq_page(tni as u8, cq as u8);
        stat.txbyte = self.device.read(page + CqReg::TxPayloadByte.offset());
        stat.rxbyte = self.device.read(page + CqReg::RxPayloadByte.offset());
        uapi::put(arg, &stat)
    }

    fn load_register(&self, a: &uapi::LoadRegister) -> Result {
        let start = a.pa.checked_sub(HARDWARE_BASE).ok_or(EINVAL)?;
        let end = start.checked_add(a.len).ok_or(EINVAL)?;
        if (start | a.len) % 8 != 0 || end > BAR0_SIZE || a.len > MAX_LOAD {
            return Err(EINVAL);
        }
        let mut out = UserSlice::new(UserPtr::from_addr(a.buf as usize), a.len as usize).writer();
        for offset in (start..end).step_by(8) {
            out.write(&self.device.read(offset))?;
        }
        Ok(())
    }

    /// Numbers of resources as in the public interface, whose list leaves out the steering tables
    /// of queues 0 to 2 of the last TNI, so that what follows has three less.
    fn load_resource(&self, a: &uapi::LoadResource) -> Result {
        const QUEUES: u64 = (NUM_TNI * NUM_CQ) as u64;
        const STEERING: u64 = 3 * QUEUES + 2 * NUM_TNI as u64;
        const LEFT_OUT: u64 = 3;
        const BLOCKS: u64 = STEERING + QUEUES - LEFT_OUT;
        const END: u64 = BLOCKS + QUEUES;
        const LAST_TNI: u64 = QUEUES - NUM_CQ as u64;
        if a.len > MAX_LOAD {
            return Err(EINVAL);
        }
        let open = |queue: u64| {
            let (tni, cq) = (queue / NUM_CQ as u64, queue % NUM_CQ as u64);
            self.device.open_cq(tni as u8, cq as u8).ok_or(ENOENT)
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
}

const _: () = assert!(PortReg::ALL.len() == 31);
