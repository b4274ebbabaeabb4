//! The device, by the C functions of `libtofucom`.
//!
//! The library is loaded, not linked: a program that uses uTofu itself has it already, and a
//! process has one device.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::sync::OnceLock;
use std::time::Duration;

use tofu_abi::Coords;
use tofu_process::Library;

use crate::core::{
    Address, Busy, CHUNKS, Event, Failure, Place, RINGS_PER_CHUNK, SLOT, SLOTS, Signal, Spot,
    Transport, Way,
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
    query_vcq_info: unsafe extern "C" fn(u64, *mut u8, *mut u16, *mut u16, *mut u16) -> c_int,
    set_vcq_id_path: unsafe extern "C" fn(*mut u64, *mut u8) -> c_int,
    query_num_unread_mrq: unsafe extern "C" fn(usize, *mut usize) -> c_int,
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

impl Api {
    /// Loads the library, once.
    fn load() -> Option<&'static Self> {
        static API: OnceLock<Option<Api>> = OnceLock::new();
        API.get_or_init(Self::open).as_ref()
    }

    fn open() -> Option<Self> {
        // SAFETY: the library runs no code of others when it is loaded.
        let library = unsafe { Library::open(c"libtofucom.so", libc::RTLD_NOW) }.ok()?;
        // SAFETY: the types are those of `utofu.h` and `tofu_wait.h`.
        unsafe {
            Some(Self {
                get_tnis: library.function(c"utofu_get_onesided_tnis")?,
                create_vcq: library.function(c"utofu_create_vcq")?,
                free_vcq: library.function(c"utofu_free_vcq")?,
                query_vcq_id: library.function(c"utofu_query_vcq_id")?,
                query_vcq_info: library.function(c"utofu_query_vcq_info")?,
                set_vcq_id_path: library.function(c"utofu_set_vcq_id_path")?,
                query_num_unread_mrq: library.function(c"utofu_query_num_unread_mrq")?,
                query_stadd: library.function(c"utofu_query_stadd")?,
                reg_mem: library.function(c"utofu_reg_mem")?,
                reg_mem_with_stag: library.function(c"utofu_reg_mem_with_stag")?,
                dereg_mem: library.function(c"utofu_dereg_mem")?,
                put: library.function(c"utofu_put")?,
                get: library.function(c"utofu_get")?,
                put_piggyback8: library.function(c"utofu_put_piggyback8")?,
                poll_mrq: library.function(c"utofu_poll_mrq")?,
                wait: library.function(c"tofu_wait")?,
                wait_fd: library.function(c"tofu_wait_fd")?,
            })
        }
    }

    /// Returns the network interfaces of the process.
    fn tnis(&self) -> Vec<u16> {
        let (mut tnis, mut count) = (std::ptr::null_mut(), 0);
        // SAFETY: both pointers are good.
        let code = unsafe { (self.get_tnis)(&mut tnis, &mut count) };
        if code != SUCCESS || tnis.is_null() {
            return Vec::new();
        }
        // SAFETY: the function has allocated this many entries, for the caller to free.
        unsafe {
            let all = std::slice::from_raw_parts(tnis, count).to_vec();
            libc::free(tnis.cast());
            all
        }
    }

    /// Returns the node of a queue.
    fn node(&self, queue: Address) -> Option<Coords> {
        let (mut at, mut tni, mut cq, mut extra) = ([0; 6], 0, 0, 0);
        // SAFETY: the pointers are good, and there is room for six coordinates.
        let code = unsafe {
            (self.query_vcq_info)(queue.0, at.as_mut_ptr(), &mut tni, &mut cq, &mut extra)
        };
        let [x, y, z, a, b, c] = at;
        (code == SUCCESS).then_some(Coords::new(x, y, z, a, b, c))
    }

    /// Creates a queue on an interface, with this memory to send from.
    fn open_queue(&self, tni: u16, staging: &Pages) -> Option<Queue> {
        let (mut vcq, mut id, mut staging_stadd) = (0, 0, 0);
        // SAFETY: the pointers are good.
        if unsafe { (self.create_vcq)(tni, THREAD_SAFE, &mut vcq) } != SUCCESS {
            return None;
        }
        let (at, size) = (staging.address().cast(), staging.size());
        // SAFETY: the queue exists, the pointers are good, and the memory stays as long as the
        // queue.
        let codes = unsafe {
            [
                (self.query_vcq_id)(vcq, &mut id),
                (self.reg_mem)(vcq, at, size, READ_ONLY, &mut staging_stadd),
            ]
        };
        if codes != [SUCCESS; 2] {
            // SAFETY: the queue exists, and is not used again.
            unsafe { (self.free_vcq)(vcq) };
            return None;
        }
        Some(Queue { vcq, address: Address(id), staging_stadd, pending: 0 })
    }
}

/// The variable with the most interfaces that an endpoint uses.
const TNIS: &str = "FI_TOFU_TNIS";
/// Polls that may find nothing, while commands are on their way, before the thread rests.
const LOOKS: u32 = 64;
/// The length of such a rest.
const REST: Duration = Duration::from_micros(20);

/// A virtual control queue.
#[derive(Debug)]
struct Queue {
    vcq: usize,
    address: Address,
    /// The address of the memory from which it sends.
    staging_stadd: u64,
    /// Commands whose ends have not been reported.
    pending: usize,
}

/// An interface for commands of this endpoint.
#[derive(Debug)]
enum Interface {
    /// One that was not needed yet.
    Unused(u16),
    Open(Queue),
    /// One on which there was no queue left.
    Full,
}

/// The ways to a peer.
#[derive(Debug)]
struct Route {
    /// The interface of the first rail.
    first: usize,
    /// The path of each rail; none for the default path.
    paths: Vec<Option<[u8; 3]>>,
}

/// A Get that has not ended.
#[derive(Clone, Copy, Debug)]
struct Get {
    way: Way,
    places: [Spot; 2],
    length: usize,
    token: u32,
    /// It takes another path than the default one.
    detours: bool,
}

/// Returns whether the process has a device.
pub(crate) fn is_there() -> bool {
    Api::load().is_some_and(|api| !api.tnis().is_empty())
}

/// Virtual control queues, with the memory that peers write.
///
/// Peers know the first one: they fill slots and signal there. The others, one for each further
/// interface, are for commands of this endpoint and for Gets of peers. They are created when they
/// are needed.
pub(crate) struct Tofucom {
    api: &'static Api,
    first: Queue,
    /// The interfaces behind that of the first queue.
    others: Vec<Interface>,
    node: Coords,
    routes: HashMap<Address, Route>,
    signals: Pages,
    chunks: Vec<Option<Pages>>,
    staging: Pages,
    /// Tokens of the slots in flight, and free places.
    staged: Vec<u32>,
    free: Vec<usize>,
    /// Gets, by the data of their notices, and those that must be posted again.
    gets: Vec<Option<Get>>,
    again: VecDeque<usize>,
    /// Events for commands that were refused immediately.
    refused: VecDeque<Event>,
    /// Polls that found nothing while commands were in flight.
    looks: u32,
}

impl std::fmt::Debug for Tofucom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tofucom").field("address", &self.first.address).finish_non_exhaustive()
    }
}

impl Tofucom {
    /// Creates a queue on the first network interface of the process.
    pub(crate) fn open() -> Option<Self> {
        let api = Api::load()?;
        let most = std::env::var(TNIS).ok().and_then(|most| most.parse().ok());
        let mut tnis = api.tnis().into_iter().take(most.unwrap_or(usize::MAX).max(1));
        let signals = Pages::new(SIGNALS_SIZE)?;
        let staging = Pages::new(STAGED * SLOT)?;
        let first = api.open_queue(tnis.next()?, &staging)?;
        let node = api.node(first.address);
        let new = Self {
            api,
            first,
            others: tnis.map(Interface::Unused).collect(),
            node: node.unwrap_or_default(),
            routes: HashMap::new(),
            signals,
            chunks: (0..CHUNKS).map(|_| None).collect(),
            staging,
            staged: vec![0; STAGED],
            free: (0..STAGED).rev().collect(),
            gets: vec![None; 256],
            again: VecDeque::new(),
            refused: VecDeque::new(),
            looks: 0,
        };
        new.expose(&new.signals, SIGNALS_STAG)?;
        node.map(|_| new)
    }

    /// Returns a descriptor that is readable as long as [`Transport::wait`] would not sleep, if no
    /// command of another queue is on its way.
    pub(crate) fn descriptor(&self) -> Option<c_int> {
        let mut fd = -1;
        // SAFETY: the queue exists, and the pointer is good.
        let code = unsafe { (self.api.wait_fd)(self.first.vcq, &mut fd) };
        (code == SUCCESS).then_some(fd)
    }

    /// Registers memory for peers to write.
    fn expose(&self, memory: &Pages, stag: c_uint) -> Option<()> {
        let (at, size) = (memory.address().cast(), memory.size());
        let mut stadd = 0;
        let vcq = self.first.vcq;
        // SAFETY: the memory stays as long as the queue; and there are no references to it.
        let code = unsafe { (self.api.reg_mem_with_stag)(vcq, at, size, stag, 0, &mut stadd) };
        (code == SUCCESS).then_some(())
    }

    /// Returns the address of memory that a peer has registered under a reserved tag.
    fn stadd_of(&self, peer: Address, stag: c_uint) -> Option<u64> {
        let mut stadd = 0;
        // SAFETY: the pointer is good.
        let code = unsafe { (self.api.query_stadd)(peer.0, stag, &mut stadd) };
        (code == SUCCESS).then_some(stadd)
    }

    /// Returns the ways to a peer. The rails of each new peer begin at the next interface, because
    /// "Quad-rail network interfaces" are for several targets as well. A transfer takes four, two
    /// or one of the shortest paths, depending on how many of A, B and C differ (IEEE Micro, 2012),
    /// but no more than there are interfaces.
    fn route(&mut self, peer: Address) -> &Route {
        let (tnis, next) = (1 + self.others.len(), self.routes.len());
        self.routes.entry(peer).or_insert_with(|| {
            let to = self.api.node(peer).unwrap_or(self.node);
            let default = to.default_path();
            let paths = self.node.minimal_paths(to).take(tnis);
            let paths = paths.map(|path| (path != default).then_some([path.a, path.b, path.c]));
            Route { first: next % tnis, paths: paths.collect() }
        })
    }

    /// Returns the queue for a way, which is the first one if there is no other.
    fn queue(&mut self, way: Way) -> &mut Queue {
        let tnis = 1 + self.others.len();
        let route = self.route(way.peer);
        let at = (route.first + way.rail % route.paths.len().max(1)) % tnis;
        let Some(other) = at.checked_sub(1).and_then(|at| self.others.get_mut(at)) else {
            return &mut self.first;
        };
        if let Interface::Unused(tni) = *other {
            let new = self.api.open_queue(tni, &self.staging);
            *other = new.map_or(Interface::Full, Interface::Open);
        }
        match other {
            Interface::Open(queue) => queue,
            _ => &mut self.first,
        }
    }

    /// All queues.
    fn queues(&self) -> impl Iterator<Item = &Queue> {
        let others = self.others.iter().filter_map(|other| match other {
            Interface::Open(queue) => Some(queue),
            _ => None,
        });
        std::iter::once(&self.first).chain(others)
    }

    /// Returns one of the queues.
    fn queue_of(&self, address: Address) -> Option<&Queue> {
        self.queues().find(|queue| queue.address == address)
    }

    /// Returns whether commands of other queues than the first are on their way.
    fn is_awaiting(&self) -> bool {
        !self.again.is_empty() || self.queues().skip(1).any(|queue| queue.pending > 0)
    }

    /// Returns a queue of a peer with the path for a way, and whether it is not the default one.
    fn by_path(&mut self, way: Way, queue: Address) -> (u64, bool) {
        let route = self.route(way.peer);
        let mut id = queue.0;
        let path = route.paths.get(way.rail % route.paths.len().max(1)).copied().flatten();
        let Some(mut path) = path else { return (id, false) };
        // SAFETY: the pointers are good, and a path has three coordinates.
        let code = unsafe { (self.api.set_vcq_id_path)(&mut id, path.as_mut_ptr()) };
        if code == SUCCESS { (id, true) } else { (queue.0, false) }
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

    /// Posts the Get of a place in `gets`. Returns the code, and whether it makes a detour.
    fn post_get(&mut self, index: usize, get: &Get) -> (c_int, bool) {
        let Get { way, places: [from, to], length, detours, .. } = *get;
        let (peer, detours) =
            if detours { self.by_path(way, from.queue) } else { (from.queue.0, false) };
        let Some(vcq) = self.queue_of(to.queue).map(|queue| queue.vcq) else {
            return (NOT_FOUND, false);
        };
        let (data, nothing) = (index as u64, std::ptr::null_mut());
        // SAFETY: the queue exists; the local memory is registered.
        let code = unsafe {
            (self.api.get)(vcq, peer, to.stadd, from.stadd, length, data, LOCAL_NOTICE, nothing)
        };
        if code == SUCCESS {
            self.count(to.queue, 1);
        }
        (code, detours)
    }

    /// Counts commands of a queue that are on their way.
    fn count(&mut self, address: Address, more: isize) {
        let others = self.others.iter_mut().filter_map(|other| match other {
            Interface::Open(queue) => Some(queue),
            _ => None,
        });
        let mut all = std::iter::once(&mut self.first).chain(others);
        if let Some(queue) = all.find(|queue| queue.address == address) {
            queue.pending = queue.pending.saturating_add_signed(more);
        }
    }

    /// Posts Gets that have failed on other paths than the default one, which avoids dead links.
    fn post_again(&mut self) {
        while let Some(&index) = self.again.front() {
            if let Some(get) = self.gets.get(index).copied().flatten() {
                let (code, _) = self.post_get(index, &get);
                if code == BUSY {
                    return;
                }
                if code != SUCCESS {
                    self.gets[index] = None;
                    self.refused.push_back(Event::Ended(get.token, false));
                }
            }
            self.again.pop_front();
        }
    }

    /// Takes the next notice of a queue, and returns whether its command has succeeded.
    fn notice(&self, vcq: usize) -> Option<(Notice, bool)> {
        let mut notice = Notice::default();
        // SAFETY: the queue exists, and the pointer is good.
        let code = unsafe { (self.api.poll_mrq)(vcq, 0, &mut notice) };
        // A code that is no result of a command is for a queue that has been lost.
        let is_there = code != NOT_FOUND && (code == SUCCESS || code <= -128);
        is_there.then_some((notice, code == SUCCESS))
    }

    /// Returns whether a queue has notices, without the rest that a poll may take. A queue that
    /// has been lost has no commands on their way.
    fn has_notices(&mut self, queue: Address, vcq: usize) -> bool {
        let mut count = 0;
        // SAFETY: the queue exists, and the pointer is good.
        if unsafe { (self.api.query_num_unread_mrq)(vcq, &mut count) } != SUCCESS {
            self.count(queue, isize::MIN);
        }
        count > 0
    }

    /// Takes the next event of a queue. Unless it `looks` first, it may rest.
    fn next_of(&mut self, (queue, vcq): (Address, usize), looks: bool) -> Option<Event> {
        while !looks || self.has_notices(queue, vcq) {
            let (notice, good) = self.notice(vcq)?;
            let event = self.event(queue, &notice, good);
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Translates a notice of a queue.
    fn event(&mut self, queue: Address, notice: &Notice, good: bool) -> Option<Event> {
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
                self.count(queue, -1);
                let staging = self.queue_of(queue)?.staging_stadd;
                let offset = notice.lcl_stadd.wrapping_sub(staging) as usize;
                // The address is the end of what was read, or its start after a failure.
                let index = offset.checked_sub(usize::from(good))? / SLOT;
                let token = *self.staged.get(index)?;
                self.free.push(index);
                Some(Event::Ended(token, good))
            }
            LOCAL_PUT if !good => Some(Event::Lost(peer)),
            LOCAL_GET => {
                self.count(queue, -1);
                let index = notice.edata as usize;
                let place = self.gets.get_mut(index)?;
                let get = place.as_mut()?;
                if !good && std::mem::take(&mut get.detours) {
                    let peer = get.way.peer;
                    self.again.push_back(index);
                    // Further transfers take the default path as well.
                    if let Some(route) = self.routes.get_mut(&peer) {
                        route.paths.fill(None);
                    }
                    return None;
                }
                let token = get.token;
                *place = None;
                Some(Event::Ended(token, good))
            }
            _ => None,
        }
    }
}

impl Transport for Tofucom {
    type Memory = ProgramMemory;

    fn address(&self) -> Address {
        self.first.address
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

    fn rails(&mut self, peer: Address) -> usize {
        self.route(peer).paths.len().max(1)
    }

    fn fill(&mut self, way: Way, to: Place, data: [&[u8]; 2], token: u32) -> Result<(), Busy> {
        let stag = SIGNALS_STAG + 1 + c_uint::from(to.chunk());
        let Some(remote) = self.stadd_of(way.peer, stag) else {
            self.refused.push_back(Event::Ended(token, false));
            return Ok(());
        };
        let remote = remote + to.offset() as u64;
        let index = self.free.pop().ok_or(Busy)?;
        let [head, body] = data;
        self.staging.write(index * SLOT, head);
        self.staging.write(index * SLOT + head.len(), body);
        let length = (head.len() + body.len()).min(SLOT);
        let &mut Queue { vcq, address, staging_stadd, .. } = self.queue(way);
        let local = staging_stadd + (index * SLOT) as u64;
        let flags = REMOTE_NOTICE | LOCAL_NOTICE;
        let (peer, nothing) = (way.peer.0, std::ptr::null_mut());
        self.staged[index] = token;
        // By the default path: a Put whose answer was lost must not be repeated on another path,
        // because the slot may since have been read and filled again. SAFETY: the queue exists.
        let code =
            unsafe { (self.api.put)(vcq, peer, local, remote, length, FILL, flags, nothing) };
        if code == SUCCESS {
            self.count(address, 1);
        } else {
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
        let (vcq, nothing) = (self.first.vcq, std::ptr::null_mut());
        // From the first queue, whose address identifies this endpoint to peers. SAFETY: the queue
        // exists.
        let code =
            unsafe { (self.api.put_piggyback8)(vcq, peer.0, 0, remote, 1, kind, flags, nothing) };
        self.posted(code, Event::Lost(peer))
    }

    fn register(
        &mut self,
        memory: &ProgramMemory,
        read_only: bool,
        peer: Address,
        rails: usize,
    ) -> Result<Vec<Spot>, Failure> {
        let (at, size) = memory.only_piece().ok_or(Failure::NoRoom)?;
        let flags = if read_only { READ_ONLY } else { 0 };
        let mut spots = Vec::new();
        for rail in 0..rails.clamp(1, self.rails(peer)) {
            let &mut Queue { vcq, address, .. } = self.queue(Way { peer, rail });
            let mut stadd = 0;
            // SAFETY: the memory stays until the operation has ended, which the core reports after
            // it has ended the registration.
            let code =
                unsafe { (self.api.reg_mem)(vcq, at as *mut c_void, size, flags, &mut stadd) };
            if code != SUCCESS {
                self.release(&spots);
                return Err(Failure::NoRoom);
            }
            spots.push(Spot { queue: address, stadd });
        }
        Ok(spots)
    }

    fn release(&mut self, spots: &[Spot]) {
        for spot in spots {
            if let Some(queue) = self.queue_of(spot.queue) {
                // SAFETY: the queue exists; a registration that does not is refused.
                unsafe { (self.api.dereg_mem)(queue.vcq, spot.stadd, 0) };
            }
        }
    }

    fn get(&mut self, way: Way, places: [Spot; 2], length: usize, token: u32) -> Result<(), Busy> {
        let index = self.gets.iter().position(Option::is_none).ok_or(Busy)?;
        let get = Get { way, places, length, token, detours: true };
        let (code, detours) = self.post_get(index, &get);
        if code == SUCCESS {
            self.gets[index] = Some(Get { detours, ..get });
        }
        self.posted(code, Event::Ended(token, false))
    }

    fn poll(&mut self) -> Option<Event> {
        self.post_again();
        if let Some(event) = self.refused.pop_front() {
            return Some(event);
        }
        let first = (self.first.address, self.first.vcq);
        if !self.is_awaiting() {
            return self.next_of(first, false);
        }
        let found = (0..self.others.len()).find_map(|at| match self.others.get(at) {
            Some(Interface::Open(queue)) if queue.pending > 0 => {
                self.next_of((queue.address, queue.vcq), true)
            }
            _ => None,
        });
        if let Some(event) = found.or_else(|| self.next_of(first, true)) {
            self.looks = 0;
            return Some(event);
        }
        // A poll of a queue would rest by that queue alone.
        self.looks = self.looks.saturating_add(1);
        if self.looks > LOOKS {
            std::thread::sleep(REST);
        }
        None
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        if !self.refused.is_empty() {
            return true;
        }
        if self.is_awaiting() {
            std::thread::sleep(timeout.min(REST));
            return true;
        }
        let longest = i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX);
        // SAFETY: the queue exists.
        let code = unsafe { (self.api.wait)(self.first.vcq, longest) };
        if code != SUCCESS && code != NOT_FOUND {
            std::thread::sleep(timeout.min(Duration::from_micros(50)));
        }
        code != NOT_FOUND
    }
}

impl Drop for Tofucom {
    fn drop(&mut self) {
        // After this no peer can access the memory, which goes next.
        for queue in self.queues() {
            // SAFETY: the queue exists, and is not used again.
            unsafe { (self.api.free_vcq)(queue.vcq) };
        }
    }
}
