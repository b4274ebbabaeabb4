//! A device of this computer, through the kernel driver's files. Other processes share it, and each
//! has its own queues, gates and memory.

use std::env;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tofu_abi::irq::BgsIrqs;
use tofu_abi::{BchId, BgId, Coords, CqId, Generation, TniId};
use tofu_driver::{ChannelConfig, DmaBuffer, Gate, Rings, Rounds};
use tofu_tof::{
    BarrierChannel, Buffer, ControlQueue, OpenError, PageFile, QueueConfig, RegisterError,
    TofDevice,
};
use tofu_utofu::{
    Code, DeviceShare, DriverChannel, Error, OpenQueue, Provider, Registration, VbgSetting,
};

use super::gates::{LockGate, LockedGates};
use super::notices::mrq_size;
use super::outside::{OutsideBarrier, OutsideChannel, OutsideQueue, RingQueue};
use crate::environment;
use crate::provider::{AnyProvider, any};

/// The subjects of errors.
const WHAT: &str = "Tofu device";
const QUEUE: &str = "control queue";
/// The first of the STags that the kernel chooses.
const FIRST_NORMAL_STAG: u32 = 4096;

pub(crate) struct Tof {
    provider: Arc<AnyProvider>,
    share: DeviceShare,
}

impl Tof {
    /// Returns whether there is a kernel driver.
    pub(crate) fn is_there() -> bool {
        TofDevice::is_there()
    }

    /// Opens the kernel driver's device with the share of process `TOFU_LOCAL_RANK` of `TOFU_PPN`
    /// or, if these are not set, with the first free share. Returns `None` if the node has more
    /// processes than control queues. Then `tofud` has the device, or gets it from the driver.
    pub(crate) fn open() -> Result<Option<Self>, Error> {
        let device = match TofDevice::open() {
            Ok(device) => device,
            // Another process of the node has asked `tofud` to take it.
            Err(_) if !Self::is_there() => return Ok(None),
            Err(error) => {
                let hint = format!("the kernel driver: {error}");
                return Err(Error::with_text(Code::NotAvailable, WHAT, None, hint));
            }
        };
        let index = environment::number("TOFU_LOCAL_RANK", 0)?;
        let processes = environment::number("TOFU_PPN", 1)?;
        let description = device.generation().description();
        if (u16::from(description.processes) + 1..=description.cores.into()).contains(&processes) {
            return Ok(None);
        }
        let counted = DeviceShare::of(device.generation(), index, processes)?;
        let is_counted = env::var_os("TOFU_PPN").is_some();
        let share = if is_counted { take_share(&device, counted)? } else { free_share(&device)? };
        let inner = TofProvider {
            gates: LockedGates::new(device.generation()),
            device: Arc::new(device),
            share: share.clone(),
            direct: environment::direct_descriptors()?,
        };
        let provider = any(inner);
        Ok(Some(Self { provider, share }))
    }

    pub(crate) fn process(&self) -> Result<(Arc<AnyProvider>, DeviceShare), Error> {
        Ok((self.provider.clone(), self.share.clone()))
    }
}

/// Locks the share of a process with a known number, so that processes without one keep off it.
fn take_share(device: &TofDevice, share: DeviceShare) -> Result<DeviceShare, Error> {
    for (tni, cq) in share.tnis().flat_map(|tni| share.cqs().map(move |cq| (tni, cq))) {
        if !device.lock_queue(tni, cq).map_err(|error| no_locks(&error))? {
            let hint =
                "another process has it, although TOFU_PPN and TOFU_LOCAL_RANK give it to this one";
            return Err(Error::with_value(Code::NotAvailable, QUEUE, cq.get().into(), hint));
        }
    }
    Ok(share)
}

/// Takes a share for a process without a known number: a queue of every interface.
fn free_share(device: &TofDevice) -> Result<DeviceShare, Error> {
    let mut failed = None;
    let generation = device.generation();
    let tnis = generation.description().tni_ids();
    let first = DeviceShare::choose_queue(generation, |cq| {
        let mut lock = |tni| match device.lock_queue(tni, cq) {
            Ok(locked) => locked,
            Err(error) => {
                failed = Some(error);
                false
            }
        };
        let Some(taken) = tnis.clone().find(|tni| !lock(*tni)) else { return true };
        TniId::ALL[..taken.index()].iter().for_each(|tni| device.unlock_queue(*tni, cq));
        false
    });
    if let Some(error) = failed {
        return Err(no_locks(&error));
    }
    let none =
        Error::new(Code::Full, WHAT, "processes of the node have all its control queues already");
    first.ok_or(none).and_then(|cq| DeviceShare::of_queue(generation, cq))
}

fn no_locks(error: &io::Error) -> Error {
    let hint = format!("processes cannot share it: locks on /proc/tofu/position: {error}");
    Error::with_text(Code::OutOfResource, WHAT, None, hint)
}

fn open_error(what: &'static str, number: u8, error: OpenError) -> Error {
    let number = u64::from(number);
    match error {
        OpenError::Busy => {
            Error::with_value(Code::NotAvailable, what, number, "another process has it")
        }
        OpenError::GateBusy => {
            let hint = "a program that does not use this library has one of its gates";
            Error::with_value(Code::Used, what, number, hint)
        }
        OpenError::Gates(error) => error.into(),
        OpenError::Permission => {
            Error::with_value(Code::NotAvailable, what, number, "this user may not have it")
        }
        OpenError::None => {
            Error::with_value(Code::NotAvailable, what, number, "the device does not have it")
        }
        OpenError::Memory => {
            Error::with_value(Code::OutOfMemory, what, number, "no memory left that can be pinned")
        }
        _ => Error::with_text(Code::Fatal, what, Some(number), error.to_string()),
    }
}

struct TofProvider {
    device: Arc<TofDevice>,
    share: DeviceShare,
    gates: LockedGates,
    direct: bool,
}

impl LockGate for TofDevice {
    fn lock(&self, tni: TniId, bg: BgId) -> io::Result<bool> {
        self.lock_gate(tni, bg)
    }

    fn unlock(&self, tni: TniId, bg: BgId) {
        self.unlock_gate(tni, bg);
    }
}

/// A queue that is claimed as long as it is open.
struct QueueClaim {
    device: Arc<TofDevice>,
    tni: TniId,
    cq: CqId,
}

impl Drop for QueueClaim {
    fn drop(&mut self) {
        self.device.unlock_queue(self.tni, self.cq);
    }
}

impl TofProvider {
    /// Claims a queue that is not in this process's share.
    fn claim(&self, tni: TniId, cq: CqId) -> Result<Option<QueueClaim>, Error> {
        if self.share.owns(tni, cq) {
            return Ok(None);
        }
        if !self.device.lock_queue(tni, cq).map_err(|error| no_locks(&error))? {
            return Err(open_error(QUEUE, cq.into(), OpenError::Busy));
        }
        Ok(Some(QueueClaim { device: Arc::clone(&self.device), tni, cq }))
    }
}

impl Provider for TofProvider {
    type Queue = RingQueue<TofQueue>;
    type Channel = DriverChannel<OutsideBarrier<BarrierChannel>>;

    fn coords(&self) -> Coords {
        self.device.coords()
    }

    fn generation(&self) -> Generation {
        self.device.generation()
    }

    fn open(&self, queue: &OpenQueue) -> Result<Self::Queue, Error> {
        let &OpenQueue { tni, cq, session, .. } = queue;
        let claim = self.claim(tni, cq)?;
        let config = QueueConfig { tni, cq, toq_size: 0, mrq_size: mrq_size(), session };
        let queue =
            ControlQueue::open(&config).map_err(|error| open_error(QUEUE, cq.into(), error))?;
        let queue = TofQueue { queue, blank: None, _claim: claim };
        Ok(RingQueue::new(queue).with_direct_descriptors(self.direct))
    }

    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error> {
        self.gates.take(&*self.device, (tni, relays), no_locks)
    }

    fn give_gates(&self, tni: TniId, gates: u64) {
        self.gates.give(&*self.device, tni, gates);
    }

    fn open_channel(
        &self,
        tni: TniId,
        bch: BchId,
        gates: &[VbgSetting],
    ) -> Result<Self::Channel, Error> {
        let gates: Vec<Gate> = gates.iter().map(VbgSetting::gate).collect::<Result<_, _>>()?;
        let profile = self.device.generation().description().barrier;
        let channel = BarrierChannel::open(&ChannelConfig::new(tni, bch), profile, &gates);
        let channel = channel.map_err(|error| open_error("barrier channel", bch.into(), error))?;
        Ok(DriverChannel::new(OutsideBarrier(channel)))
    }
}

impl OutsideChannel for BarrierChannel {
    type Memory = Buffer;
    type Page = PageFile;

    #[inline]
    fn rounds_mut(&mut self) -> &mut Rounds<Buffer, PageFile> {
        self.rounds_mut()
    }

    fn exceptions(&self) -> Option<BgsIrqs> {
        self.exceptions()
    }
}

/// A control queue whose STags the kernel manages.
///
/// The kernel assigns the lowest free STag, and so does the library. They disagree after registered
/// memory was unmapped: for the kernel its STag is free then, but for the library only when the
/// program deregisters the memory. Such an STag is parked: registered for an unused page.
struct TofQueue {
    // First, so that the device uses nothing when the rest is dropped.
    queue: ControlQueue,
    /// The page for which parked STags are registered.
    blank: Option<Buffer>,
    _claim: Option<QueueClaim>,
}

/// The number and the interval of polls for the STag of unmapped memory, which the kernel frees
/// with a short delay.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);

impl TofQueue {
    /// Makes the kernel assign an STag to an unused page.
    fn park(&mut self, stag: u32) -> Result<(), Error> {
        if self.blank.is_none() {
            let hint = "no memory left";
            let error = |_| Error::new(Code::OutOfMemory, "memory to be registered", hint);
            self.blank = Some(Buffer::new(1, 1).map_err(error)?);
        }
        let Some(blank) = &self.blank else { return Ok(()) };
        let addr = blank.device_addr() as usize;
        let read_only = stag & 1 != 0;
        // SAFETY: the page is mapped as long as the queue is open, and it is not read.
        let parked = unsafe { self.queue.register(addr, 1, None, read_only) };
        parked.map(drop).map_err(register_error)
    }
}

impl OutsideQueue for TofQueue {
    type Memory = Buffer;
    type Page = PageFile;
    const POLLS_WITHOUT_QUESTION: u32 = 1 << 10;

    #[inline]
    fn rings(&self) -> &Rings<Buffer, PageFile> {
        self.queue.rings()
    }

    #[inline]
    fn rings_mut(&mut self) -> &mut Rings<Buffer, PageFile> {
        self.queue.rings_mut()
    }

    unsafe fn register(&mut self, memory: &Registration) -> Result<(), Error> {
        let &Registration { addr, len, stag, offset, read_only } = memory;
        let wanted = (stag < FIRST_NORMAL_STAG).then_some(stag);
        for _ in 0..TRIES {
            // SAFETY: guaranteed by the caller.
            let got = unsafe { self.queue.register(addr, len, wanted, read_only) };
            match got {
                Ok((got, at)) if got == stag && at == offset => return Ok(()),
                Ok((got, _)) => {
                    self.queue.deregister(got).map_err(register_error)?;
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

    fn deregister(&mut self, stag: u32) -> bool {
        // This frees a parked STag as well.
        self.queue.deregister(stag).is_ok()
    }

    fn works(&self) -> bool {
        self.queue.works()
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
        RegisterError::Memory => Error::new(
            Code::OutOfMemory,
            what,
            "no more can be pinned: see `ulimit -l`; all processes have half of the node's memory",
        ),
        RegisterError::Stopped => {
            let hint = "the queue's memory was unmapped, or the queue is a parent process's";
            Error::new(Code::Fatal, what, hint)
        }
        _ => Error::new(Code::Fatal, what, "the kernel refuses to map it for the device"),
    }
}
