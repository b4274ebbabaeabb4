//! The C functions, called as a C program calls them, with errors as Rust has them.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use anyhow::{Result, bail};
use tofucom as c;

/// The completion of a command must be reported.
pub(crate) const TCQ_NOTICE: u64 = 1 << 14;
/// The target must be notified.
pub(crate) const REMOTE_NOTICE: u64 = 1 << 2;
/// The result of a command must be reported.
pub(crate) const LOCAL_NOTICE: u64 = 1 << 15;
/// The last bytes become visible last.
pub(crate) const STRONG_ORDER: u64 = 1;

/// Type of the local notice of a Put.
const LCL_PUT: u8 = 0;
const NOT_FOUND: c_int = -1;
const BUSY: c_int = -4;

/// Component ID of the program's VCQs, from which peers compute their IDs.
const CMP_ID: u16 = 6;
/// Steering tag of the program's memory.
const STAG: u32 = 17;

/// The library's words for a return code.
pub(crate) fn ok(code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let mut text = [0u8; 1024];
    // SAFETY: the buffer has the size that the function wants.
    unsafe { c::utofu_get_last_error(text.as_mut_ptr().cast::<c_char>()) };
    let len = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    bail!("{}", String::from_utf8_lossy(&text[..len]))
}

/// One more look, if a poll has returned that nothing has come yet.
pub(crate) fn nothing_yet(code: c_int) -> Result<u64> {
    if code == NOT_FOUND { Ok(1) } else { ok(code).map(|()| 1) }
}

/// Coordinates of this process's node.
pub(crate) fn my_coords() -> Result<[u8; 6]> {
    let mut coords = [0; 6];
    // SAFETY: there is room for six bytes.
    ok(unsafe { c::utofu_query_my_coords(coords.as_mut_ptr()) })?;
    Ok(coords)
}

/// Makes the calling thread one of a process of a machine in this process.
pub(crate) fn select(process: u32) -> Result<()> {
    ok(c::tofu_inproc_select(process))
}

/// A VCQ with its registered memory. It is freed by the end of the program.
#[derive(Clone, Copy)]
pub(crate) struct Vcq {
    handle: usize,
    /// The STADD of the memory.
    pub(crate) memory: u64,
}

/// The memory of a peer's VCQ.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    vcq_id: u64,
    /// Its STADD.
    pub(crate) memory: u64,
}

/// Memory that is registered, never freed, and only used by commands.
pub(crate) fn memory(size: usize) -> *mut u8 {
    let bytes = vec![0u64; size.div_ceil(8) + 32].leak();
    let address = bytes.as_mut_ptr() as usize;
    ptr::without_provenance_mut::<u8>(address.next_multiple_of(256))
}

impl Vcq {
    pub(crate) fn new(tni: u16, memory: *mut u8, size: usize) -> Result<Self> {
        let (mut handle, mut stadd) = (0, 0);
        // SAFETY: the memory is never freed, and nothing in Rust refers to it.
        unsafe {
            ok(c::utofu_create_vcq_with_cmp_id(tni, CMP_ID, 0, &raw mut handle))?;
            let memory = memory.cast::<c_void>();
            ok(c::utofu_reg_mem_with_stag(handle, memory, size, STAG, 0, &raw mut stadd))?;
        }
        Ok(Self { handle, memory: stadd })
    }

    /// Posts a Put; false if the queue is full.
    pub(crate) fn put(&self, to: Peer, size: usize, edata: u64, flags: u64) -> Result<bool> {
        let (from, remote) = (self.memory, to.memory);
        // SAFETY: no pointers.
        let code = unsafe {
            c::utofu_put(self.handle, to.vcq_id, from, remote, size, edata, flags, ptr::null_mut())
        };
        if code == BUSY { Ok(false) } else { ok(code).map(|()| true) }
    }

    /// Posts a Get into the second half of the memory; false if the queue is full.
    pub(crate) fn get(&self, to: Peer, size: usize, offset: u64, flags: u64) -> Result<bool> {
        let (into, remote) = (self.memory + offset, to.memory + offset);
        // SAFETY: no pointers.
        let code = unsafe {
            c::utofu_get(self.handle, to.vcq_id, into, remote, size, 0, flags, ptr::null_mut())
        };
        if code == BUSY { Ok(false) } else { ok(code).map(|()| true) }
    }

    /// Posts a Put of 8 bytes that travel in the command; false if the queue is full.
    pub(crate) fn put8(&self, to: Peer, edata: u64, flags: u64) -> Result<bool> {
        let remote = to.memory;
        // SAFETY: no pointers.
        let code = unsafe {
            c::utofu_put_piggyback8(
                self.handle,
                to.vcq_id,
                edata,
                remote,
                8,
                edata,
                flags,
                ptr::null_mut(),
            )
        };
        if code == BUSY { Ok(false) } else { ok(code).map(|()| true) }
    }

    /// Takes a completion, if there is one.
    pub(crate) fn poll_tcq(&self) -> Result<bool> {
        let mut cbdata = ptr::null_mut();
        // SAFETY: the pointer may be written to.
        let code = unsafe { c::utofu_poll_tcq(self.handle, 0, &raw mut cbdata) };
        if code == NOT_FOUND { Ok(false) } else { ok(code).map(|()| true) }
    }

    /// Takes a notice, if there is one: its edata and the end of the memory that was written.
    pub(crate) fn poll_mrq(&self) -> Result<Option<(u64, u64)>> {
        Ok(self.take_notice()?.map(|notice| (notice.edata, notice.rmt_stadd)))
    }

    /// Takes the notice of a Put of this VCQ, if it is there. Those of others are dropped, so this
    /// is for a VCQ that no peer sends to yet.
    ///
    /// # Errors
    ///
    /// If the target has refused the Put, or it was lost.
    pub(crate) fn poll_own_notice(&self) -> Result<Option<()>> {
        let own = self.take_notice()?.filter(|notice| notice.notice_type == LCL_PUT);
        Ok(own.map(|_| ()))
    }

    #[inline]
    fn take_notice(&self) -> Result<Option<c::MrqNotice>> {
        let mut notice = c::MrqNotice::default();
        // SAFETY: the pointer may be written to.
        let code = unsafe { c::utofu_poll_mrq(self.handle, 0, &raw mut notice) };
        if code == NOT_FOUND {
            return Ok(None);
        }
        ok(code)?;
        Ok(Some(notice))
    }
}

/// A VCQ that is for registrations. It is freed by the end of the program.
pub(crate) struct Registrar(usize);

impl Registrar {
    pub(crate) fn new() -> Result<Self> {
        let mut handle = 0;
        // SAFETY: the pointer may be written to.
        ok(unsafe { c::utofu_create_vcq(0, 0, &raw mut handle) })?;
        Ok(Self(handle))
    }

    /// Registers memory until [`Registrar::deregister`]. No peer knows where it is.
    pub(crate) fn register(&self, memory: &mut [u8]) -> Result<u64> {
        let mut stadd = 0;
        let start = memory.as_mut_ptr().cast::<c_void>();
        // SAFETY: the memory is there, and no peer knows of it, so it does not change.
        ok(unsafe { c::utofu_reg_mem(self.0, start, memory.len(), 0, &raw mut stadd) })?;
        Ok(stadd)
    }

    pub(crate) fn deregister(&self, stadd: u64) -> Result<()> {
        ok(c::utofu_dereg_mem(self.0, stadd, 0))
    }
}

impl Peer {
    /// The peer's VCQ on an interface.
    pub(crate) fn new(mut coords: [u8; 6], tni: u16) -> Result<Self> {
        let (mut vcq_id, mut memory) = (0, 0);
        // SAFETY: the pointers lead to what they are said to.
        unsafe {
            let at = coords.as_mut_ptr();
            ok(c::utofu_construct_vcq_id(at, tni, 0, CMP_ID, &raw mut vcq_id))?;
            ok(c::utofu_query_stadd(vcq_id, STAG, &raw mut memory))?;
        }
        Ok(Self { vcq_id, memory })
    }
}
