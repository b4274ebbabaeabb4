//! Network processors that are open, and the requests that wait at their channels.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock};

use tofu_abi::tnw::{CHANNELS, LINKS};
use tofu_driver::{Platform, VolatileBuffer};
use tofu_process::{Own, PerProcess, lock};
use tofu_tnw::{Channel, Link, Nwp, OpenError, PostError, Stream, Ticket};

use crate::backend::{self, Backend};
use crate::error::{Code, Error, ended};
use crate::platform::{AnyBuffer, AnyPlatform};

/// Buffers begin at multiples of a packet's length.
const ALIGN: usize = 128;
/// Looks for news before a thread gives others its processor.
const SPINS: u32 = 200;
/// Places of a request's parts: 8 times the link and the channel, a serial number above it.
const SERIAL: u32 = 6;

/// Position in a handle of the number of its process among those that have forked each other.
const GENERATION: u32 = 20;

/// Devices by handle.
type Devices = Mutex<Vec<Option<Arc<Device>>>>;

/// The devices that this process has opened. Those that its parent has opened are its parent's.
#[derive(Default)]
struct Opened {
    devices: Devices,
    nodes: Mutex<BTreeSet<u32>>,
    backend: OnceLock<Result<Backend, Error>>,
}

static OPENED: PerProcess<Opened> = PerProcess::new();

fn opened() -> &'static Own<Opened> {
    OPENED.get_or_init(Opened::default)
}

/// A node that is not opened again in this process as long as this lives.
struct Claim(u32);

impl Claim {
    fn new(node: u32) -> Result<Self, Error> {
        if lock(&opened().value.nodes).insert(node) {
            Ok(Self(node))
        } else {
            Err(Code::Busy.into())
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&opened().value.nodes).remove(&self.0);
    }
}

/// A network processor with references that the compiler does not track.
struct Owned(NonNull<Nwp<AnyPlatform>>);

// SAFETY: as a Box of it would be; a processor belongs to no thread.
unsafe impl Send for Owned {}
// SAFETY: as above: it is only lent by shared references.
unsafe impl Sync for Owned {}

impl Owned {
    fn new(nwp: Nwp<AnyPlatform>) -> Self {
        Self(NonNull::from(Box::leak(Box::new(nwp))))
    }

    fn get(&self) -> &Nwp<AnyPlatform> {
        // SAFETY: from a box that is freed when this is dropped.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    ///
    /// Nothing of it is used when this has been dropped.
    unsafe fn get_longer(&self) -> &'static Nwp<AnyPlatform> {
        // SAFETY: as promised.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and its borrowers are gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A network processor that is open.
pub(crate) struct Device {
    // Before what they borrow: fields are dropped in this order.
    lanes: [Lane; LINKS * CHANNELS],
    memory: Mutex<BTreeMap<usize, Arc<AnyBuffer>>>,
    nwp: Owned,
    /// Last: another one may be opened then.
    _claim: Claim,
}

/// A channel of a link.
#[derive(Default)]
struct Lane {
    /// Held by the thread that stores a message, from its first packet to its last.
    sender: Mutex<()>,
    /// Opened when it is first used.
    open: Mutex<Option<OpenLane>>,
}

struct OpenLane {
    stream: Stream<'static, AnyPlatform>,
    waiting: Vec<Waiting>,
    serial: u64,
}

/// A request whose end has not been reported yet.
struct Waiting {
    serial: u64,
    ticket: Ticket,
    /// The memory that the device uses.
    _memory: Arc<AnyBuffer>,
}

/// A link and a channel, checked.
#[derive(Clone, Copy)]
pub(crate) struct LinkChannel {
    pub(crate) link: Link,
    channel: Channel,
}

impl LinkChannel {
    pub(crate) fn new(link: u32, channel: u32) -> Result<Self, Error> {
        let channel = Channel::new(channel as usize).ok_or(Code::InvalidChannel)?;
        Ok(Self { link: self::link(link)?, channel })
    }

    const fn index(self) -> usize {
        self.link.index() * CHANNELS + self.channel.index()
    }
}

pub(crate) fn link(link: u32) -> Result<Link, Error> {
    Link::new(link as usize).ok_or(Code::InvalidLink.into())
}

/// Opens a node; returns its handle.
pub(crate) fn open(node: u32) -> Result<i32, Error> {
    let claim = Claim::new(node)?;
    let own = opened();
    let backend = own.value.backend.get_or_init(|| backend::choose(own.generation > 0));
    let backend = backend.as_ref().map_err(Clone::clone)?;
    let nwp = Nwp::probe(backend::platform(backend, node)?)
        .map_err(|error| Error::new(Code::NotAvailable, error.to_string()))?;
    let device = Device {
        lanes: std::array::from_fn(|_| Lane::default()),
        memory: Mutex::default(),
        nwp: Owned::new(nwp),
        _claim: claim,
    };
    let mut open = lock(&own.value.devices);
    let free = open.iter().position(Option::is_none);
    let index = free.unwrap_or_else(|| {
        open.push(None);
        open.len() - 1
    });
    open[index] = Some(Arc::new(device));
    let generation = (own.generation as usize) << GENERATION;
    let handle = (index < 1 << GENERATION).then_some(generation | index);
    handle.and_then(|handle| i32::try_from(handle).ok()).ok_or(Code::OutOfMemory.into())
}

/// The place in the table for the device of a handle, if this process has opened it.
fn place(handle: i32) -> Result<(&'static Devices, usize), Error> {
    let handle = u32::try_from(handle).map_err(|_| Code::InvalidHandle)?;
    let (generation, at) = (handle >> GENERATION, handle as usize % (1 << GENERATION));
    match OPENED.get().filter(|own| own.generation == generation) {
        Some(own) => Ok((&own.value.devices, at)),
        None if generation < OPENED.generation() => {
            let why = "it belongs to the process that has forked this one";
            Err(Error::new(Code::NotAvailable, why))
        }
        None => Err(Code::InvalidHandle.into()),
    }
}

/// The device that is open with this handle.
pub(crate) fn find(handle: i32) -> Result<Arc<Device>, Error> {
    let (devices, at) = place(handle)?;
    let device = lock(devices).get(at).cloned().flatten();
    device.ok_or(Code::InvalidHandle.into())
}

/// Takes it out of the list of what is open.
pub(crate) fn take(handle: i32) -> Result<Arc<Device>, Error> {
    let (devices, at) = place(handle)?;
    let device = lock(devices).get_mut(at).and_then(Option::take);
    device.ok_or(Code::InvalidHandle.into())
}

impl Device {
    pub(crate) fn nwp(&self) -> &Nwp<AnyPlatform> {
        self.nwp.get()
    }

    fn now_ns(&self) -> u64 {
        self.nwp().platform().now_ns()
    }

    /// Calls `f` with a channel, which is opened if it is not yet.
    fn with<R>(
        &self,
        place: LinkChannel,
        f: impl FnOnce(&mut OpenLane) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut lane = lock(&self.lanes[place.index()].open);
        if lane.is_none() {
            // SAFETY: the stream stays in `lanes`, which are dropped before `nwp`.
            let nwp = unsafe { self.nwp.get_longer() };
            let stream = nwp.open(place.link, place.channel).map_err(|error| match error {
                OpenError::NoLink => Error::from(Code::NoLink),
                OpenError::Memory(error) => Error::new(Code::OutOfMemory, error.to_string()),
            })?;
            *lane = Some(OpenLane { stream, waiting: Vec::new(), serial: 0 });
        }
        f(lane.as_mut().ok_or(Code::Internal)?)
    }

    /// Memory that the device reaches.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<*mut u8, Error> {
        if bytes == 0 {
            return Err(Code::InvalidLength.into());
        }
        let buffer = self.nwp().platform().alloc_dma(bytes, ALIGN);
        let buffer = buffer.map_err(|error| Error::new(Code::OutOfMemory, error.to_string()))?;
        let at = buffer.memory().ptr_guard_mut().as_ptr();
        lock(&self.memory).insert(at.addr(), Arc::new(buffer));
        Ok(at)
    }

    /// Gives it up.
    pub(crate) fn free(&self, at: usize) -> Result<(), Error> {
        lock(&self.memory).remove(&at).map(drop).ok_or(Code::InvalidMemory.into())
    }

    /// The buffer in which so many bytes at an address are, and where in it.
    fn buffer(&self, at: usize, bytes: usize) -> Result<(Arc<AnyBuffer>, usize), Error> {
        let memory = lock(&self.memory);
        let (start, buffer) = memory.range(..=at).next_back().ok_or(Code::InvalidMemory)?;
        let offset = at - start;
        let end = offset.checked_add(bytes).ok_or(Code::InvalidMemory)?;
        if end > buffer.memory().len() {
            return Err(Code::InvalidMemory.into());
        }
        Ok((Arc::clone(buffer), offset))
    }

    /// Posts a credit, or else a message by Nget; returns its request.
    pub(crate) fn post(
        &self,
        place: LinkChannel,
        (at, bytes): (usize, usize),
        credit: bool,
    ) -> Result<u64, Error> {
        let (buffer, offset) = self.buffer(at, bytes)?;
        self.with(place, |lane| {
            let ticket = match credit {
                true => lane.stream.credit(&buffer, offset, bytes),
                false => lane.stream.send_from(&buffer, offset, bytes),
            };
            let ticket = ticket.map_err(|error| match error {
                PostError::Full => Code::Full,
                PostError::Range { .. } => Code::InvalidLength,
            })?;
            lane.serial += 1;
            lane.waiting.push(Waiting { serial: lane.serial, ticket, _memory: buffer });
            Ok(lane.serial << SERIAL | place.index() as u64)
        })
    }

    /// Sends a message by Pput.
    pub(crate) fn pput(&self, place: LinkChannel, message: &[u8]) -> Result<(), Error> {
        let _sender = lock(&self.lanes[place.index()].sender);
        let (mut rest, mut idle) = (message, 0);
        loop {
            // Other threads may post credits in the meantime: the neighbour may need them to take
            // this.
            rest = self.with(place, |lane| {
                let mut left = rest;
                while let Some(tail) = lane.stream.send_packet(left) {
                    left = tail;
                }
                Ok(left)
            })?;
            if rest.is_empty() {
                return Ok(());
            }
            self.idle(&mut idle);
        }
    }

    fn idle(&self, looks: &mut u32) {
        *looks = looks.saturating_add(1);
        let platform = self.nwp().platform();
        if *looks < SPINS { platform.relax() } else { platform.yield_processor() }
    }

    /// The result of a request, and its number of bytes; `None` if it has not ended.
    pub(crate) fn test(&self, request: u64) -> Result<Option<(Code, usize)>, Error> {
        let unknown = || Error::from(Code::InvalidRequest);
        let index = (request & ((1 << SERIAL) - 1)) as usize;
        let lane = self.lanes.get(index).ok_or_else(unknown)?;
        let mut lane = lock(&lane.open);
        let lane = lane.as_mut().ok_or_else(unknown)?;
        let serial = request >> SERIAL;
        let at = lane.waiting.iter().position(|waiting| waiting.serial == serial);
        let Waiting { ticket, _memory, .. } = lane.waiting.swap_remove(at.ok_or_else(unknown)?);
        match lane.stream.test(ticket) {
            Ok(outcome) => Ok(Some((ended(outcome.status), outcome.length as usize))),
            Err(ticket) => {
                lane.waiting.push(Waiting { serial, ticket, _memory });
                Ok(None)
            }
        }
    }

    /// The same; waits for at most so long.
    pub(crate) fn wait(
        &self,
        request: u64,
        timeout_ns: u64,
    ) -> Result<Option<(Code, usize)>, Error> {
        let (start, mut idle) = (self.now_ns(), 0);
        loop {
            let ended = self.test(request)?;
            if ended.is_some() || self.now_ns().saturating_sub(start) >= timeout_ns {
                return Ok(ended);
            }
            self.idle(&mut idle);
        }
    }

    /// Takes back what waits at a channel.
    pub(crate) fn cancel(&self, place: LinkChannel) -> Result<(), Error> {
        self.with(place, |lane| {
            lane.stream.cancel();
            Ok(())
        })
    }
}
