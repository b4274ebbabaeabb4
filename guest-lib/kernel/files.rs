// SPDX-License-Identifier: GPL-2.0

//! The files of `/proc/tofu`.

use core::fmt::Write;
use core::ptr::NonNull;

use kernel::bindings;
use kernel::ffi::{c_int, c_long, c_ulong, c_void};
use kernel::prelude::*;
use kernel::str::CString;
use kernel::sync::{Arc, ArcBorrow};
use kernel::uaccess::{UserPtr, UserSlice};

use tofu_abi::regs::PAGE_STRIDE;

use crate::bch::Bch;
use crate::control;
use crate::cq::Cq;
use crate::engine::now_ns;
use crate::ids::{ChannelId, QueueId};
use crate::opened::Opened;
use crate::pin::PAGE;
use crate::shim::{self, ProcEntry};
use crate::uapi;

/// The page size of the machines that the interface comes from. A program may depend on it: the
/// registers of each queue or channel occupy a page of this size.
const FOREIGN_PAGE: u64 = 1 << 16;
const _: () = assert!(FOREIGN_PAGE == PAGE_STRIDE);

/// The purpose of a file.
#[derive(Clone, Copy)]
enum FileKind {
    Position,
    Generation,
    Links,
    Control,
    Info,
    Cq(QueueId),
    Bch(ChannelId),
}

/// A file.
struct ProcFile {
    opened: Arc<Opened>,
    kind: FileKind,
}

/// All files. Dropping this removes them: it waits for calls in progress, and releases open files.
pub(crate) struct Files {
    root: Folder,
    // Boxes, because /proc has their addresses.
    files: KVec<KBox<ProcFile>>,
}

// SAFETY: entries of /proc may be removed by any thread.
unsafe impl Send for Files {}

impl Files {
    /// Makes the files.
    ///
    /// # Errors
    ///
    /// `EEXIST` if /proc/tofu exists, because a node has one controller. `ENOMEM`.
    pub(crate) fn new(opened: &Arc<Opened>) -> Result<Self> {
        let root = Folder::new(c"tofu", None).map_err(|_| EEXIST)?;
        // From here on an error removes the entries made so far.
        let mut files = Self {
            root,
            files: KVec::new(),
        };
        let dev = Folder::new(c"dev", Some(root))?;
        let mut add = |folder, name: &CStr, mode, kind| {
            let file = ProcFile {
                opened: opened.clone(),
                kind,
            };
            files.add(folder, name, mode, file)
        };
        add(root, c"position", 0o666, FileKind::Position)?;
        add(dev, c"control", 0o600, FileKind::Control)?;
        add(dev, c"info", 0o666, FileKind::Info)?;
        let description = opened.device.description();
        add(root, c"generation", 0o444, FileKind::Generation)?;
        add(root, c"links", 0o444, FileKind::Links)?;
        let kernel_cq = description.kernel_cq();
        for id in QueueId::of(description).filter(|id| id.cq != kernel_cq) {
            let name = CString::try_from_fmt(fmt!("{id}"))?;
            add(dev, &name, 0o666, FileKind::Cq(id))?;
        }
        for id in ChannelId::of(description) {
            let name = CString::try_from_fmt(fmt!("{id}"))?;
            add(dev, &name, 0o666, FileKind::Bch(id))?;
        }
        Ok(files)
    }

    fn add(
        &mut self,
        folder: Folder,
        name: &CStr,
        mode: bindings::umode_t,
        file: ProcFile,
    ) -> Result {
        let file = KBox::new(file, GFP_KERNEL)?;
        let raw = core::ptr::from_ref(&*file).cast_mut().cast();
        // It must exist before its entry in /proc does.
        self.files.push(file, GFP_KERNEL)?;
        let folder = folder.0.as_ptr();
        // SAFETY: `folder` is an entry of ours; the file's data stay until the entry is removed.
        let entry = unsafe { shim::tofu_shim_proc_file(name.as_char_ptr(), mode, folder, raw) };
        if entry.is_null() {
            return Err(ENOMEM);
        }
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // SAFETY: made in `new`. Afterwards no call is in our functions, so the data may be freed.
        unsafe { shim::tofu_shim_proc_remove(self.root.0.as_ptr()) };
    }
}

/// A folder of `/proc`, which is removed when [`Files`] is dropped.
#[derive(Clone, Copy)]
struct Folder(NonNull<ProcEntry>);

impl Folder {
    fn new(name: &CStr, parent: Option<Self>) -> Result<Self> {
        let parent = parent.map_or(core::ptr::null_mut(), |parent| parent.0.as_ptr());
        // SAFETY: the name is a string, and `parent` null or an entry of ours.
        let entry = unsafe { shim::tofu_shim_proc_folder(name.as_char_ptr(), parent) };
        NonNull::new(entry).map(Self).ok_or(ENOMEM)
    }
}

fn code(result: Result) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// # Safety
///
/// `file` must be what [`Files::add`] gave to /proc, in a call for that file.
unsafe fn proc_file<'a>(file: *mut c_void) -> &'a ProcFile {
    // SAFETY: they stay until the files are removed, which waits for such calls.
    unsafe { &*file.cast() }
}

/// # Safety
///
/// `data` must be what `tofu_rs_open` left for a queue's file, in a call for that file.
unsafe fn cq_of<'a>(data: *mut c_void) -> ArcBorrow<'a, Cq> {
    // SAFETY: made by `into_raw`; the file holds the reference during the call.
    unsafe { ArcBorrow::from_raw(data.cast()) }
}

/// # Safety
///
/// `data` must be what `tofu_rs_open` left for a channel's file, in a call for that file.
unsafe fn bch_of<'a>(data: *mut c_void) -> ArcBorrow<'a, Bch> {
    // SAFETY: made by `into_raw`; the file holds the reference during the call.
    unsafe { ArcBorrow::from_raw(data.cast()) }
}

/// # Safety
///
/// `file` must be the file's data, `data` room for the open file's.
#[no_mangle]
unsafe extern "C" fn tofu_rs_open(file: *mut c_void, data: *mut *mut c_void) -> c_int {
    // SAFETY: `file` is the data of a file of ours, in a call for it.
    let file = unsafe { proc_file(file) };
    let opened = match file.kind {
        FileKind::Cq(id) => file
            .opened
            .open_queue(id)
            .map(|cq| Arc::into_raw(cq).cast()),
        FileKind::Bch(id) => file
            .opened
            .open_channel(id)
            .map(|bch| Arc::into_raw(bch).cast()),
        _ => Ok(core::ptr::null()),
    };
    code(opened.map(|raw: *const c_void| {
        // SAFETY: `data` is room for the data of the open file, by this function's contract.
        unsafe { *data = raw.cast_mut() };
    }))
}

/// # Safety
///
/// `file` must be the file's data, `data` what `tofu_rs_open` left; called once.
#[no_mangle]
unsafe extern "C" fn tofu_rs_release(file: *mut c_void, data: *mut c_void) {
    // SAFETY: `file` is the data of a file of ours, in a call for it.
    let file = unsafe { proc_file(file) };
    match file.kind {
        FileKind::Cq(_) => {
            // SAFETY: made by `into_raw` when the file was opened; it is not in use any more.
            let queue = unsafe { Arc::from_raw(data.cast::<Cq>()) };
            file.opened.close_queue(&queue);
        }
        FileKind::Bch(..) => {
            // SAFETY: made by `into_raw` when the file was opened; it is not in use any more.
            let channel = unsafe { Arc::from_raw(data.cast::<Bch>()) };
            file.opened.close_channel(&channel);
        }
        _ => {}
    }
}

/// # Safety
///
/// `file` must be the file's data, `data` what `tofu_rs_open` left.
#[no_mangle]
unsafe extern "C" fn tofu_rs_ioctl(
    file: *mut c_void,
    data: *mut c_void,
    cmd: u32,
    arg: c_ulong,
) -> c_long {
    // SAFETY: `file` is the data of a file of ours, in a call for it.
    let file = unsafe { proc_file(file) };
    let arg = arg as u64;
    let result = match file.kind {
        FileKind::Position | FileKind::Generation | FileKind::Links => Err(ENOTTY),
        FileKind::Control => control::ioctl(&file.opened, cmd, arg),
        FileKind::Info => control::info_ioctl(&file.opened, cmd, arg),
        // SAFETY: `data` is what `tofu_rs_open` left for this file, which is a queue's.
        FileKind::Cq(..) => Arc::from(unsafe { cq_of(data) }).ioctl(cmd, arg),
        // SAFETY: `data` is what `tofu_rs_open` left for this file, which is a channel's.
        FileKind::Bch(..) => unsafe { bch_of(data) }.ioctl(cmd, arg),
    };
    code(result) as c_long
}

/// # Safety
///
/// `file` must be the file's data, `data` what `tofu_rs_open` left, `pos` the position in the open
/// file.
#[no_mangle]
unsafe extern "C" fn tofu_rs_read(
    file: *mut c_void,
    data: *mut c_void,
    buf: *mut c_void,
    len: usize,
    pos: *mut bindings::loff_t,
) -> isize {
    // SAFETY: `file` is the data of a file of ours, in a call for it, and `pos` its position.
    let (file, pos) = unsafe { (proc_file(file), &mut *pos) };
    let read = match file.kind {
        FileKind::Position => file.read_position(buf as usize, len, pos),
        FileKind::Generation => {
            CString::try_from_fmt(fmt!("{}\n", file.opened.device.generation().name()))
                .and_then(|text| put_text(text.to_bytes(), buf as usize, len, pos))
        }
        FileKind::Links => file.read_links(buf as usize, len, pos),
        // SAFETY: `data` is what `tofu_rs_open` left for this file, which is a queue's.
        FileKind::Cq(..) => unsafe { cq_of(data) }
            .check()
            .and_then(|()| put_word(buf as usize, len, 0)),
        // SAFETY: `data` is what `tofu_rs_open` left for this file, which is a channel's.
        FileKind::Bch(..) => unsafe { bch_of(data) }
            .exceptions()
            .and_then(|exceptions| put_word(buf as usize, len, exceptions.raw())),
        _ => Err(EINVAL),
    };
    match read {
        Ok(n) => n as isize,
        Err(error) => error.to_errno() as isize,
    }
}

/// # Safety
///
/// `file` must be the file's data, `data` what `tofu_rs_open` left, `vma` an area that is being set
/// up.
#[no_mangle]
unsafe extern "C" fn tofu_rs_mmap(
    file: *mut c_void,
    data: *mut c_void,
    vma: *mut bindings::vm_area_struct,
    offset: c_ulong,
    len: c_ulong,
    shared: bool,
    write: bool,
) -> c_int {
    // SAFETY: `file` is the data of a file of ours, in a call for it.
    let kind = unsafe { proc_file(file) }.kind;
    let (offset, len) = (offset as u64, len as u64);
    let page = match kind {
        FileKind::Cq(..) => {
            // SAFETY: `data` is what `tofu_rs_open` left for this file, which is a queue's.
            let cq = unsafe { cq_of(data) };
            if (offset == PAGE || offset == FOREIGN_PAGE) && shared {
                // Processes may not write the table.
                return code(if write {
                    Err(EACCES)
                } else {
                    // SAFETY: `vma` is being set up, and has `len` bytes.
                    unsafe { cq.map_table(vma, len) }
                });
            }
            cq.page_phys()
        }
        // SAFETY: `data` is what `tofu_rs_open` left for this file, which is a channel's.
        FileKind::Bch(..) => unsafe { bch_of(data) }.page_phys(),
        _ => Err(ENODEV),
    };
    let page = match page {
        Ok(page) => page,
        Err(error) => return error.to_errno(),
    };
    // The rest of the page belongs to another user.
    if offset != 0 || len > FOREIGN_PAGE || !shared {
        return EINVAL.to_errno();
    }
    // SAFETY: `vma` is being set up, and processes may map the page.
    unsafe { shim::tofu_shim_map_registers(vma, page, len as usize) }
}

/// The result of a read that returns one word.
fn put_word(buf: usize, len: usize, word: u64) -> Result<usize> {
    if len < size_of::<u64>() {
        return Err(EINVAL);
    }
    uapi::put(buf as u64, &word)?;
    Ok(size_of::<u64>())
}

impl ProcFile {
    fn read_position(&self, buf: usize, len: usize, pos: &mut i64) -> Result<usize> {
        let [x, y, z, a, b, c] = self.opened.device.coords().to_array();
        let text = CString::try_from_fmt(fmt!("{x} {y} {z} {a} {b} {c}\n"))?;
        put_text(text.to_bytes(), buf, len, pos)
    }
}

/// A text that grows.
struct Text(KVVec<u8>);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let added = self.0.extend_from_slice(text.as_bytes(), GFP_KERNEL);
        added.map_err(|_| core::fmt::Error)
    }
}

impl ProcFile {
    /// Reads the known dead links. Empty if there is no network interface, because only that tracks
    /// them.
    fn read_links(&self, buf: usize, len: usize, pos: &mut i64) -> Result<usize> {
        let mut text = Text(KVVec::new());
        if let Some(health) = self.opened.device.health() {
            write!(text, "{}", health.known(now_ns())).map_err(|_| ENOMEM)?;
        }
        put_text(&text.0, buf, len, pos)
    }
}

/// Copies a text from `pos` on to a process, as far as there is room.
fn put_text(text: &[u8], buf: usize, len: usize, pos: &mut i64) -> Result<usize> {
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
