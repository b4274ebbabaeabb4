//! A device of this computer's, by the kernel driver's files: shared with other processes, each of
//! which has queues, gates and memory of its own.

use std::env;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tofu_abi::Coords;
use tofu_abi::desc::Descriptor;
use tofu_abi::queue::MrqEntry;
use tofu_abi::regs::{NUM_BG, NUM_TNI};
use tofu_driver::{Device, DmaBuffer, Full, Platform};
use tofu_tof::{Buffer, OpenError, RegisterError, TofPlatform};
use tofu_utofu::{
    ClaimQueue, Code, DriverChannel, DriverProvider, DriverQueue, Error, GatePool, MapUser, Mapped,
    OpenQueue, Place, Provider, Queue, Registration, VbgSetting,
};

use super::AnyProvider;
use crate::process;

/// Size code of message receive queues, that of real systems: 131072 notices.
const MRQ_SIZE: u8 = 3;
/// What errors are about.
const WHAT: &str = "Tofu device";
/// Where the STags begin that the kernel chooses.
const FIRST_NORMAL_STAG: u32 = 4096;

pub(crate) struct Tof {
    provider: AnyProvider,
    place: Place,
}

impl Tof {
    /// Whether there is a kernel driver.
    pub(crate) fn is_there() -> bool {
        TofPlatform::is_there()
    }

    /// The device that the kernel driver has; with the share of process `TOFU_LOCAL_RANK` of
    /// `TOFU_PPN`, or, if nobody has counted the processes, the first one that is free.
    pub(crate) fn open() -> Result<Self, Error> {
        let counted =
            Place::new(process::number("TOFU_LOCAL_RANK", 0)?, process::number("TOFU_PPN", 1)?)?;
        let is_counted = env::var_os("TOFU_PPN").is_some();
        let platform = TofPlatform::open().map_err(|error| {
            let hint = format!("the kernel driver: {error}");
            Error::new(Code::NotAvailable, WHAT, hint.leak())
        })?;
        let device = Device::probe(platform)
            .map_err(|_| Error::new(Code::Fatal, WHAT, "it does not answer"))?;
        let place = if is_counted {
            take_place(device.platform(), counted)?
        } else {
            free_place(device.platform())?
        };
        let claims =
            Claims { device: device.clone(), place: place.clone(), gates: Mutex::default() };
        let inner = DriverProvider::new(device.clone(), NoLoan, MRQ_SIZE, 0).with_claims(claims);
        let provider = AnyProvider::new(Arc::new(TofProvider { device, inner }));
        Ok(Self { provider, place })
    }

    pub(crate) fn process(&self) -> Result<(AnyProvider, Place), Error> {
        Ok((self.provider.clone(), self.place.clone()))
    }
}

/// Takes the share of a process that was counted, so that one that was not keeps off it.
fn take_place(platform: &TofPlatform, place: Place) -> Result<Place, Error> {
    for (tni, cq) in place.tnis().flat_map(|tni| place.cqs().map(move |cq| (tni, cq))) {
        if !platform.lock_queue(tni, cq).map_err(|error| no_locks(&error))? {
            let hint =
                "another process has it, though TOFU_PPN and TOFU_LOCAL_RANK say whose it is";
            return Err(Error::with_value(Code::NotAvailable, "control queue", cq.into(), hint));
        }
    }
    Ok(place)
}

/// The share of a process that nobody has counted: a queue of every interface.
fn free_place(platform: &TofPlatform) -> Result<Place, Error> {
    let mut failed = None;
    let first = Place::choose_queue(|cq| {
        let mut lock = |tni| match platform.lock_queue(tni, cq) {
            Ok(locked) => locked,
            Err(error) => {
                failed = Some(error);
                false
            }
        };
        let Some(taken) = (0..NUM_TNI as u8).find(|tni| !lock(*tni)) else { return true };
        (0..taken).for_each(|tni| platform.unlock_queue(tni, cq));
        false
    });
    if let Some(error) = failed {
        return Err(no_locks(&error));
    }
    let none = Error::new(Code::Full, WHAT, "the node has eleven processes that use it already");
    first.ok_or(none).and_then(Place::of_queue)
}

fn no_locks(error: &std::io::Error) -> Error {
    let hint = format!("processes cannot share it: locks on /proc/tofu/position: {error}");
    Error::new(Code::OutOfResource, WHAT, hint.leak())
}

fn open_error(what: &'static str, number: u8, error: &OpenError) -> Error {
    let number = u64::from(number);
    match error {
        // The next one may be free; so there may be many of these, and one text for all.
        OpenError::Busy => {
            Error::with_value(Code::NotAvailable, what, number, "another process has it")
        }
        OpenError::Permission => {
            Error::with_value(Code::NotAvailable, what, number, "this user may not have it")
        }
        OpenError::None => {
            Error::with_value(Code::NotAvailable, what, number, "the device does not have it")
        }
        OpenError::Memory => {
            Error::with_value(Code::OutOfMemory, what, number, "no memory left that can be pinned")
        }
        _ => Error::with_value(Code::Fatal, what, number, error.to_string().leak()),
    }
}

/// The right to control queues and gates, where other processes have some.
struct Claims {
    device: Device<TofPlatform>,
    place: Place,
    /// Those that this process does not have.
    gates: Mutex<GatePool>,
}

/// A control queue that was opened.
struct Taken {
    device: Device<TofPlatform>,
    tni: u8,
    cq: u8,
    /// It belongs to nobody when it is closed.
    locked: bool,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let platform = self.device.platform();
        platform.close_queue(self.tni, self.cq);
        if self.locked {
            platform.unlock_queue(self.tni, self.cq);
        }
    }
}

impl ClaimQueue for Claims {
    type Claim = Taken;

    fn claim(&self, tni: u8, cq: u8) -> Result<Taken, Error> {
        const WHAT: &str = "control queue";
        let platform = self.device.platform();
        let locked = !self.place.owns(tni, cq);
        if locked && !platform.lock_queue(tni, cq).map_err(|error| no_locks(&error))? {
            return Err(open_error(WHAT, cq, &OpenError::Busy));
        }
        if let Err(error) = platform.open_queue(tni, cq) {
            if locked {
                platform.unlock_queue(tni, cq);
            }
            return Err(open_error(WHAT, cq, &error));
        }
        Ok(Taken { device: self.device.clone(), tni, cq, locked })
    }

    fn take_gates(&self, tni: u8, relays: usize) -> Result<Option<u64>, Error> {
        let platform = self.device.platform();
        let mut pool = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        let mut foreign = 0;
        // Ends, as each round finds a gate that is another process's.
        let taken = loop {
            let Some(gates) = pool.take(tni, relays) else { break Ok(None) };
            let mut locked = 0;
            let mut refused = None;
            for bg in bits(gates) {
                match platform.lock_gate(tni, bg) {
                    Ok(true) => locked |= 1 << bg,
                    Ok(false) => foreign |= 1 << bg,
                    Err(error) => refused = Some(no_locks(&error)),
                }
            }
            if locked == gates {
                break Ok(Some(gates));
            }
            bits(locked).for_each(|bg| platform.unlock_gate(tni, bg));
            pool.give(tni, gates & !foreign);
            if let Some(error) = refused {
                break Err(error);
            }
        };
        // They may be free the next time.
        pool.give(tni, foreign);
        taken
    }

    fn give_gates(&self, tni: u8, gates: u64) {
        bits(gates).for_each(|bg| self.device.platform().unlock_gate(tni, bg));
        self.gates.lock().unwrap_or_else(PoisonError::into_inner).give(tni, gates);
    }
}

fn bits(mask: u64) -> impl Iterator<Item = u8> {
    (0..NUM_BG as u8).filter(move |bit| mask >> bit & 1 != 0)
}

/// Memory is registered with the kernel, see [`TofQueue`].
#[derive(Clone, Copy)]
struct NoLoan;

impl MapUser<TofPlatform> for NoLoan {
    type Mapping = ();

    unsafe fn map_user(&self, _: &TofPlatform, _: usize, _: usize) -> Result<Mapped<()>, Error> {
        Err(Error::new(Code::Fatal, "memory to be registered", "it is not the kernel's"))
    }
}

struct TofProvider {
    device: Device<TofPlatform>,
    inner: DriverProvider<TofPlatform, NoLoan, Claims>,
}

impl Provider for TofProvider {
    type Queue = TofQueue;
    type Channel = DriverChannel<TofPlatform>;

    fn coords(&self) -> Coords {
        self.device.coords()
    }

    fn open(&self, queue: &OpenQueue) -> Result<TofQueue, Error> {
        // The driver's own tables are not used.
        let inner = self.inner.open(&OpenQueue { stags: 1, ..*queue })?;
        if let Some(error) = self.device.platform().queue_error(queue.tni, queue.cq) {
            return Err(open_error("control queue", queue.cq, &error));
        }
        let device = self.device.clone();
        Ok(TofQueue { inner, device, at: (queue.tni, queue.cq), blank: None })
    }

    fn take_gates(&self, tni: u8, relays: usize) -> Result<Option<u64>, Error> {
        self.inner.take_gates(tni, relays)
    }

    fn give_gates(&self, tni: u8, gates: u64) {
        self.inner.give_gates(tni, gates);
    }

    fn open_channel(&self, tni: u8, bch: u8, gates: &[VbgSetting]) -> Result<Self::Channel, Error> {
        const WHAT: &str = "barrier channel";
        let platform = self.device.platform();
        platform.open_channel(tni, bch).map_err(|error| open_error(WHAT, bch, &error))?;
        let channel = self.inner.open_channel(tni, bch, gates);
        let channel = channel.inspect_err(|_| platform.close_channel(tni, bch))?;
        let all: Vec<_> = gates.iter().map(|gate| (gate.id.tni(), gate.id.bg())).collect();
        match platform.enable_channel(tni, bch, &all) {
            Ok(()) => Ok(channel),
            Err(OpenError::Busy) => {
                let hint = "a program that does not use this library has one of its gates";
                Err(Error::with_value(Code::Used, WHAT, bch.into(), hint))
            }
            Err(error) => Err(open_error(WHAT, bch, &error)),
        }
    }

    fn relax(&self) {
        self.inner.relax();
    }
}

/// A control queue, whose STags are the kernel's.
///
/// The kernel gives the lowest STag that is free, and so does the library. They disagree when
/// memory was unmapped that is registered: to the kernel its STag is free then, to the library not
/// until the program says so. Such a one is parked: it stands for a page that nobody uses.
struct TofQueue {
    // First, so that the device uses nothing when the rest goes.
    inner: DriverQueue<TofPlatform, NoLoan, Taken>,
    device: Device<TofPlatform>,
    at: (u8, u8),
    /// What parked STags stand for.
    blank: Option<Buffer>,
}

/// Times that the kernel is asked whether it has given up the STag of memory that was unmapped,
/// which takes it a moment, and how long it is left alone in between.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);

impl TofQueue {
    /// Makes the kernel take an STag for a page that nobody uses.
    fn park(&mut self, stag: u32) -> Result<(), Error> {
        let platform = self.device.platform();
        if self.blank.is_none() {
            let hint = "no memory left";
            let error = |_| Error::new(Code::OutOfMemory, "memory to be registered", hint);
            self.blank = Some(platform.alloc_dma(1, 1).map_err(error)?);
        }
        let Some(blank) = &self.blank else { return Ok(()) };
        let addr = blank.device_addr() as usize;
        let read_only = stag & 1 != 0;
        // SAFETY: the page is mapped as long as the queue is open, and nobody looks at it.
        let parked = unsafe { platform.register(self.at, addr, 1, None, read_only) };
        parked.map(drop).map_err(register_error)
    }
}

impl Queue for TofQueue {
    fn orders(&self) -> usize {
        self.inner.orders()
    }

    fn notices(&self) -> usize {
        self.inner.notices()
    }

    #[inline]
    fn free_slots(&self) -> usize {
        self.inner.free_slots()
    }

    #[inline]
    fn post(&mut self, descriptors: &[Descriptor], delayed: bool) -> Result<(), Full> {
        self.inner.post(descriptors, delayed)
    }

    #[inline]
    fn ring(&mut self) {
        self.inner.ring();
    }

    #[inline]
    fn poll_completion(&mut self) -> Option<u8> {
        self.inner.poll_completion()
    }

    #[inline]
    fn poll_notice(&mut self) -> Option<MrqEntry> {
        self.inner.poll_notice()
    }

    unsafe fn register(&mut self, memory: &Registration) -> Result<(), Error> {
        let &Registration { addr, len, stag, offset, read_only } = memory;
        let (tni, cq) = self.at;
        let device = self.device.clone();
        let platform = device.platform();
        let wanted = (stag < FIRST_NORMAL_STAG).then_some(stag);
        for _ in 0..TRIES {
            // SAFETY: as promised to this function.
            let got = unsafe { platform.register(self.at, addr, len, wanted, read_only) };
            match got {
                Ok((got, at)) if got == stag && at == offset => return Ok(()),
                Ok((got, _)) => {
                    platform.deregister(tni, cq, got).map_err(register_error)?;
                    match got.cmp(&stag) {
                        std::cmp::Ordering::Less => self.park(got)?,
                        std::cmp::Ordering::Greater => thread::sleep(PAUSE),
                        std::cmp::Ordering::Equal => break,
                    }
                }
                Err(RegisterError::Taken) if wanted.is_some() => thread::sleep(PAUSE),
                Err(error) => return Err(register_error(error)),
            }
        }
        let hint = "the kernel driver does not give it out";
        Err(Error::with_value(Code::OutOfResource, "steering tag", stag.into(), hint))
    }

    fn deregister(&mut self, stag: u32) -> Result<(), Error> {
        // A parked one is free again as well.
        let (tni, cq) = self.at;
        self.device.platform().deregister(tni, cq, stag).map_err(|_| {
            let hint = "the device does not let go of the memory";
            Error::with_value(Code::Fatal, "steering tag", stag.into(), hint)
        })
    }
}

fn register_error(error: RegisterError) -> Error {
    let what = "memory to be registered";
    match error {
        RegisterError::Inaccessible => {
            Error::new(Code::InvalidAddress, what, "it is not mapped, or read-only")
        }
        RegisterError::Taken => {
            Error::new(Code::OutOfResource, what, "the device has no steering tag for it")
        }
        RegisterError::Memory => {
            Error::new(Code::OutOfMemory, what, "half of the node's memory can be pinned at most")
        }
        RegisterError::Stopped => {
            let hint = "the queue's memory was unmapped, or the queue is a parent process's";
            Error::new(Code::Fatal, what, hint)
        }
        _ => Error::new(Code::Fatal, what, "the kernel refuses to map it for the device"),
    }
}
