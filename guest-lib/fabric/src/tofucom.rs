//! The device, by the C functions of `libtofucom`.
//!
//! The library is loaded, not linked: a program that uses uTofu itself has it already, and a
//! process has one device.

use std::collections::VecDeque;
use std::ffi::{CStr, c_int, c_uint, c_ulong, c_void};
use std::sync::OnceLock;
use std::time::Duration;

use crate::core::{
    Address, Busy, CHUNKS, Event, Failure, Place, RINGS_PER_CHUNK, SLOT, SLOTS, Signal, Transport,
};
use crate::memory::{Pages, ProgramMemory};

const SUCCESS: c_int = 0;
const NOT_FOUND: c_int = -1;
const BUSY: c_int = -4;
/// `UTOFU_VCQ_FLAG_THREAD_SAFE`.
const THREAD_SAFE: c_ulong = 1;
const READ_ONLY: c_ulong = 1;
/// `UTOFU_ONESIDED_FLAG_*`.
const REMOTE_NOTICE: c_ulong = 1 << 2;
const LOCAL_NOTICE: c_ulong = 1 << 15;
/// The types of notices.
const LOCAL_PUT: u8 = 0;
const REMOTE_PUT: u8 = 1;
const LOCAL_GET: u8 = 2;

/// The steering tag of the memory that signals go to; that of the first chunk of rings is the next.
const SIGNALS_STAG: c_uint = 0;
/// A byte for each value of a signal.
const SIGNALS_SIZE: usize = 1 << 16;
/// Slots that are on their way.
const STAGED: usize = 64;
/// Data of notices: what a Put was for.
const FILL: u64 = 0;
const HELLO: u64 = 1;
const CREDIT: u64 = 2;
const FULL: u64 = 3;

#[repr(C)]
#[derive(Default)]
struct Notice {
    kind: u8,
    padding: [u8; 7],
    vcq_id: u64,
    edata: u64,
    rmt_value: u64,
    lcl_stadd: u64,
    rmt_stadd: u64,
    reserved: [u64; 2],
}

/// A Put or a Get. Its third argument is the local memory; of a piggyback Put, the data.
type Move = unsafe extern "C" fn(usize, u64, u64, u64, usize, u64, c_ulong, *mut c_void) -> c_int;

/// The functions that are used.
struct Api {
    get_tnis: unsafe extern "C" fn(*mut *mut u16, *mut usize) -> c_int,
    create_vcq: unsafe extern "C" fn(u16, c_ulong, *mut usize) -> c_int,
    free_vcq: unsafe extern "C" fn(usize) -> c_int,
    query_vcq_id: unsafe extern "C" fn(usize, *mut u64) -> c_int,
    query_stadd: unsafe extern "C" fn(u64, c_uint, *mut u64) -> c_int,
    reg_mem: unsafe extern "C" fn(usize, *mut c_void, usize, c_ulong, *mut u64) -> c_int,
    reg_mem_with_stag:
        unsafe extern "C" fn(usize, *mut c_void, usize, c_uint, c_ulong, *mut u64) -> c_int,
    dereg_mem: unsafe extern "C" fn(usize, u64, c_ulong) -> c_int,
    put: Move,
    get: Move,
    put_piggyback8: Move,
    poll_mrq: unsafe extern "C" fn(usize, c_ulong, *mut Notice) -> c_int,
    wait: unsafe extern "C" fn(usize, i64) -> c_int,
    wait_fd: unsafe extern "C" fn(usize, *mut c_int) -> c_int,
}

/// Finds a function of a library.
///
/// # Safety
///
/// The function has the type `F`, a pointer to a function.
unsafe fn find<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: an open library and a name.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: guaranteed by the caller.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}

impl Api {
    /// Loads the library, once.
    fn load() -> Option<&'static Self> {
        static API: OnceLock<Option<Api>> = OnceLock::new();
        API.get_or_init(Self::open).as_ref()
    }

    fn open() -> Option<Self> {
        // SAFETY: the library runs no code of others when it is loaded.
        let library = unsafe { libc::dlopen(c"libtofucom.so".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        // SAFETY: the types are those of `utofu.h` and `tofu_wait.h`.
        unsafe {
            Some(Self {
                get_tnis: find(library, c"utofu_get_onesided_tnis")?,
                create_vcq: find(library, c"utofu_create_vcq")?,
                free_vcq: find(library, c"utofu_free_vcq")?,
                query_vcq_id: find(library, c"utofu_query_vcq_id")?,
                query_stadd: find(library, c"utofu_query_stadd")?,
                reg_mem: find(library, c"utofu_reg_mem")?,
                reg_mem_with_stag: find(library, c"utofu_reg_mem_with_stag")?,
                dereg_mem: find(library, c"utofu_dereg_mem")?,
                put: find(library, c"utofu_put")?,
                get: find(library, c"utofu_get")?,
                put_piggyback8: find(library, c"utofu_put_piggyback8")?,
                poll_mrq: find(library, c"utofu_poll_mrq")?,
                wait: find(library, c"tofu_wait")?,
                wait_fd: find(library, c"tofu_wait_fd")?,
            })
        }
    }

    /// Returns the first network interface of the process.
    fn first_tni(&self) -> Option<u16> {
        let (mut tnis, mut count) = (std::ptr::null_mut(), 0);
        // SAFETY: both pointers are good.
        let code = unsafe { (self.get_tnis)(&mut tnis, &mut count) };
        if code != SUCCESS || count == 0 || tnis.is_null() {
            return None;
        }
        // SAFETY: the function has allocated at least one entry, for the caller to free.
        unsafe {
            let first = tnis.read();
            libc::free(tnis.cast());
            Some(first)
        }
    }
}

/// Returns whether the process has a device.
pub(crate) fn is_there() -> bool {
    Api::load().is_some_and(|api| api.first_tni().is_some())
}

/// A virtual control queue, with the memory that peers write.
pub(crate) struct Tofucom {
    api: &'static Api,
    vcq: usize,
    address: Address,
    signals: Pages,
    chunks: Vec<Option<Pages>>,
    staging: Pages,
    staging_stadd: u64,
    /// Tokens of the slots that are on their way, and places for others.
    staged: Vec<u32>,
    free: Vec<usize>,
    /// Tokens of Gets, by the data of their notices.
    gets: Vec<Option<u32>>,
    /// Events for commands that were refused at once.
    refused: VecDeque<Event>,
}

impl std::fmt::Debug for Tofucom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tofucom").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Tofucom {
    /// Creates a queue on the first network interface of the process.
    pub(crate) fn open() -> Option<Self> {
        let api = Api::load()?;
        let tni = api.first_tni()?;
        let signals = Pages::new(SIGNALS_SIZE)?;
        let staging = Pages::new(STAGED * SLOT)?;
        let (mut vcq, mut id) = (0, 0);
        // SAFETY: the pointers are good.
        if unsafe { (api.create_vcq)(tni, THREAD_SAFE, &mut vcq) } != SUCCESS {
            return None;
        }
        let chunks = (0..CHUNKS).map(|_| None).collect();
        // SAFETY: the queue exists, and the pointer is good.
        let code = unsafe { (api.query_vcq_id)(vcq, &mut id) };
        let mut new = Self {
            api,
            vcq,
            address: Address(id),
            signals,
            chunks,
            staging,
            staging_stadd: 0,
            staged: vec![0; STAGED],
            free: (0..STAGED).rev().collect(),
            gets: vec![None; 256],
            refused: VecDeque::new(),
        };
        if code != SUCCESS {
            return None;
        }
        new.expose(&new.signals, SIGNALS_STAG)?;
        let (at, size) = (new.staging.address().cast(), new.staging.size());
        // SAFETY: the memory stays as long as the queue.
        let code = unsafe { (api.reg_mem)(vcq, at, size, READ_ONLY, &mut new.staging_stadd) };
        (code == SUCCESS).then_some(new)
    }

    /// Returns a descriptor that is readable as long as [`Transport::wait`] would not sleep.
    pub(crate) fn descriptor(&self) -> Option<c_int> {
        let mut fd = -1;
        // SAFETY: the queue exists, and the pointer is good.
        let code = unsafe { (self.api.wait_fd)(self.vcq, &mut fd) };
        (code == SUCCESS).then_some(fd)
    }

    /// Registers memory for peers to write.
    fn expose(&self, memory: &Pages, stag: c_uint) -> Option<()> {
        let (at, size) = (memory.address().cast(), memory.size());
        let mut stadd = 0;
        // SAFETY: the memory stays as long as the queue; and there are no references to it.
        let code = unsafe { (self.api.reg_mem_with_stag)(self.vcq, at, size, stag, 0, &mut stadd) };
        (code == SUCCESS).then_some(())
    }

    /// Returns the address of memory that a peer has registered under a reserved tag.
    fn stadd_of(&self, peer: Address, stag: c_uint) -> Option<u64> {
        let mut stadd = 0;
        // SAFETY: the pointer is good.
        let code = unsafe { (self.api.query_stadd)(peer.0, stag, &mut stadd) };
        (code == SUCCESS).then_some(stadd)
    }

    /// Handles the code of a command: one that must wait is tried again, and any other is reported
    /// as failed.
    fn posted(&mut self, code: c_int, failed: Event) -> Result<(), Busy> {
        match code {
            SUCCESS => {}
            BUSY => return Err(Busy),
            _ => self.refused.push_back(failed),
        }
        Ok(())
    }

    /// Translates a notice.
    fn event(&mut self, notice: &Notice, good: bool) -> Option<Event> {
        let peer = Address(notice.vcq_id);
        match notice.kind {
            REMOTE_PUT => {
                // The address is the end of what was written.
                let offset = ((notice.rmt_stadd & ((1 << 40) - 1)) as usize).checked_sub(1)?;
                let stag = (notice.rmt_stadd >> 40) as c_uint & 0xff;
                let value = offset as u16;
                match (stag.checked_sub(SIGNALS_STAG + 1), notice.edata) {
                    (Some(chunk), FILL) => Some(Event::Filled(Place::at(chunk as u16, offset))),
                    (None, HELLO) => Some(Event::Signal(peer, Signal::Hello(value))),
                    (None, CREDIT) => Some(Event::Signal(peer, Signal::Credit(value))),
                    (None, FULL) => Some(Event::Signal(peer, Signal::Full)),
                    _ => None,
                }
            }
            LOCAL_PUT if notice.edata == FILL => {
                let offset = notice.lcl_stadd.wrapping_sub(self.staging_stadd) as usize;
                // The address is the end of what was read, or its start after a failure.
                let index = offset.checked_sub(usize::from(good))? / SLOT;
                let token = *self.staged.get(index)?;
                self.free.push(index);
                Some(Event::Ended(token, good))
            }
            LOCAL_PUT if !good => Some(Event::Lost(peer)),
            LOCAL_GET => {
                let token = self.gets.get_mut(notice.edata as usize)?.take()?;
                Some(Event::Ended(token, good))
            }
            _ => None,
        }
    }
}

impl Transport for Tofucom {
    type Memory = ProgramMemory;

    fn address(&self) -> Address {
        self.address
    }

    fn provide(&mut self, chunk: u16) -> Result<(), Failure> {
        let place = self.chunks.get(usize::from(chunk)).ok_or(Failure::NoRoom)?;
        if place.is_some() {
            return Ok(());
        }
        let size = usize::from(RINGS_PER_CHUNK) * usize::from(SLOTS) * SLOT;
        let pages = Pages::new(size).ok_or(Failure::NoRoom)?;
        let stag = SIGNALS_STAG + 1 + c_uint::from(chunk);
        self.expose(&pages, stag).ok_or(Failure::NoRoom)?;
        self.chunks[usize::from(chunk)] = Some(pages);
        Ok(())
    }

    fn read(&self, from: Place, into: &mut [u8]) {
        if let Some(Some(chunk)) = self.chunks.get(usize::from(from.chunk())) {
            chunk.read(from.offset(), into);
        }
    }

    fn fill(&mut self, peer: Address, to: Place, data: [&[u8]; 2], token: u32) -> Result<(), Busy> {
        let stag = SIGNALS_STAG + 1 + c_uint::from(to.chunk());
        let Some(remote) = self.stadd_of(peer, stag) else {
            self.refused.push_back(Event::Ended(token, false));
            return Ok(());
        };
        let remote = remote + to.offset() as u64;
        let index = self.free.pop().ok_or(Busy)?;
        let [head, body] = data;
        self.staging.write(index * SLOT, head);
        self.staging.write(index * SLOT + head.len(), body);
        let length = (head.len() + body.len()).min(SLOT);
        let local = self.staging_stadd + (index * SLOT) as u64;
        let flags = REMOTE_NOTICE | LOCAL_NOTICE;
        let nothing = std::ptr::null_mut();
        self.staged[index] = token;
        // SAFETY: the queue exists.
        let code = unsafe {
            (self.api.put)(self.vcq, peer.0, local, remote, length, FILL, flags, nothing)
        };
        if code != SUCCESS {
            self.free.push(index);
        }
        self.posted(code, Event::Ended(token, false))
    }

    fn signal(&mut self, peer: Address, signal: Signal) -> Result<(), Busy> {
        let (kind, value) = match signal {
            Signal::Hello(ring) => (HELLO, ring),
            Signal::Credit(emptied) => (CREDIT, emptied),
            Signal::Full => (FULL, 0),
        };
        let Some(remote) = self.stadd_of(peer, SIGNALS_STAG) else {
            self.refused.push_back(Event::Lost(peer));
            return Ok(());
        };
        let remote = remote + u64::from(value);
        let flags = REMOTE_NOTICE | LOCAL_NOTICE;
        let nothing = std::ptr::null_mut();
        // SAFETY: the queue exists.
        let code = unsafe {
            (self.api.put_piggyback8)(self.vcq, peer.0, 0, remote, 1, kind, flags, nothing)
        };
        self.posted(code, Event::Lost(peer))
    }

    fn register(&mut self, memory: &ProgramMemory, read_only: bool) -> Result<u64, Failure> {
        let (at, size) = memory.only_piece().ok_or(Failure::NoRoom)?;
        let flags = if read_only { READ_ONLY } else { 0 };
        let mut stadd = 0;
        // SAFETY: the memory stays until the operation has ended, which the core reports after it
        // has ended the registration.
        let code =
            unsafe { (self.api.reg_mem)(self.vcq, at as *mut c_void, size, flags, &mut stadd) };
        if code == SUCCESS { Ok(stadd) } else { Err(Failure::NoRoom) }
    }

    fn release(&mut self, stadd: u64) {
        // SAFETY: the queue exists; a registration that does not is refused.
        unsafe { (self.api.dereg_mem)(self.vcq, stadd, 0) };
    }

    fn get(
        &mut self,
        peer: Address,
        remote: u64,
        local: u64,
        length: usize,
        token: u32,
    ) -> Result<(), Busy> {
        let index = self.gets.iter().position(Option::is_none).ok_or(Busy)?;
        let nothing = std::ptr::null_mut();
        let data = index as u64;
        // SAFETY: the queue exists; the local memory is registered.
        let code = unsafe {
            (self.api.get)(self.vcq, peer.0, local, remote, length, data, LOCAL_NOTICE, nothing)
        };
        if code == SUCCESS {
            self.gets[index] = Some(token);
        }
        self.posted(code, Event::Ended(token, false))
    }

    fn poll(&mut self) -> Option<Event> {
        if let Some(event) = self.refused.pop_front() {
            return Some(event);
        }
        loop {
            let mut notice = Notice::default();
            // SAFETY: the queue exists, and the pointer is good.
            let code = unsafe { (self.api.poll_mrq)(self.vcq, 0, &mut notice) };
            // A code that is no result of a command is for a queue that has been lost.
            if code == NOT_FOUND || (code != SUCCESS && code > -128) {
                return None;
            }
            if let Some(event) = self.event(&notice, code == SUCCESS) {
                return Some(event);
            }
        }
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        if !self.refused.is_empty() {
            return true;
        }
        let longest = i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX);
        // SAFETY: the queue exists.
        let code = unsafe { (self.api.wait)(self.vcq, longest) };
        if code != SUCCESS && code != NOT_FOUND {
            std::thread::sleep(timeout.min(Duration::from_micros(50)));
        }
        code != NOT_FOUND
    }
}

impl Drop for Tofucom {
    fn drop(&mut self) {
        // After this no peer can write the memory, which goes next.
        // SAFETY: the queue exists, and is not used again.
        unsafe { (self.api.free_vcq)(self.vcq) };
    }
}
