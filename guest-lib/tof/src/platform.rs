//! The platform.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use tofu_abi::Coords;
use tofu_abi::barrier::BCH_MASK;
use tofu_abi::regs::{
    BgsReg, CACHE_INJECTION, CqsMode, CqsReg, CqsStatus, NUM_BCH, NUM_BG, NUM_CQ, NUM_TNI,
    NodeAddress, PAGE_STRIDE, Register, TNI_STRIDE, TniReg, TniState, TofuReg,
};
use tofu_driver::{DmaError, IrqError, Platform};

use crate::buffer::Buffer;
use crate::gates::Gate;
use crate::locks::{Locks, Thing};
use crate::page::Page;
use crate::signal;
use crate::uapi::{self, InitCq};

/// Where the driver's files are.
const FILES: &str = "/proc/tofu";
/// Queues of each interface that processes may have.
const USER_CQS: u64 = 11;

/// Why a queue or channel cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it.
    #[error("another process has it")]
    Busy,
    /// Not this user's.
    #[error("this user may not have it")]
    Permission,
    /// There is none of that number.
    #[error("the device does not have it")]
    None,
    /// The system has no memory left, or may pin no more.
    #[error("no memory left that can be pinned")]
    Memory,
    /// The system refuses something else.
    #[error("the kernel driver refuses it: {0}")]
    System(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EBUSY) => Self::Busy,
            Some(libc::EACCES | libc::EPERM) => Self::Permission,
            Some(libc::ENOENT | libc::ENXIO) => Self::None,
            Some(libc::ENOMEM) => Self::Memory,
            _ => Self::System(error),
        }
    }
}

/// Why memory cannot be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The queue is not open.
    #[error("the control queue is not open")]
    Closed,
    /// It is not mapped, or is read-only and was to be written.
    #[error("it is not mapped, or read-only")]
    Inaccessible,
    /// The STag that was asked for is taken, or none is left.
    #[error("the STag is taken, or none is left")]
    Taken,
    /// The system has no memory left, or may pin no more.
    #[error("no memory left that can be pinned")]
    Memory,
    /// The queue has stopped, or is that of a parent process.
    #[error("the queue has stopped, or belongs to a parent process")]
    Stopped,
    /// The system refuses something else.
    #[error("the kernel driver refuses it: {0}")]
    System(io::Error),
}

impl From<io::Error> for RegisterError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EINVAL | libc::EFAULT) => Self::Inaccessible,
            Some(libc::EBUSY | libc::ENOSPC) => Self::Taken,
            Some(libc::ENOMEM) => Self::Memory,
            Some(libc::EPERM) => Self::Stopped,
            _ => Self::System(error),
        }
    }
}

/// A file that is open, and its page. Registers come first, so that the file is closed for good
/// when it is dropped.
#[derive(Debug)]
struct Opened {
    page: Page,
    file: File,
}

impl Opened {
    fn new(name: &str) -> Result<Self, OpenError> {
        let path = format!("{FILES}/dev/{name}");
        let file = File::options().read(true).write(true).open(path)?;
        if let Some(number) = signal::ignored() {
            uapi::set_rt_signal(file.as_fd(), number)?;
        }
        let page = Page::map(file.as_fd())?;
        Ok(Self { page, file })
    }
}

/// A queue.
#[derive(Debug, Default)]
struct Queue {
    opened: Option<Opened>,
    /// What was written to its registers.
    init: InitCq,
    enabled: bool,
    /// Why it did not get enabled.
    error: Option<io::Error>,
}

impl Queue {
    fn write(&mut self, reg: CqsReg, value: u64) {
        match reg {
            CqsReg::Mode => self.init.session_mode = CqsMode(value).session().into(),
            CqsReg::ToqIpa => self.init.toq_mem = value,
            CqsReg::ToqSize => self.init.toq_size = value as u8,
            CqsReg::TcqIpa => self.init.tcq_mem = value & !CACHE_INJECTION,
            CqsReg::MrqIpa => self.init.mrq_mem = value & !CACHE_INJECTION,
            CqsReg::MrqSize => self.init.mrq_size = value as u8,
            CqsReg::Enable if value & 1 != 0 => self.enable(),
            CqsReg::Enable => *self = Self::default(),
            // Interrupts, tables and rights are the kernel's.
            _ => {}
        }
    }

    #[allow(unsafe_code)]
    fn enable(&mut self) {
        let Some(opened) = &self.opened else { return };
        // SAFETY: addresses of rings are device addresses of `alloc_dma`: memory that the driver
        // accesses by loads, stores and copies, and keeps until it has disabled the queue.
        let result = unsafe { uapi::init_cq(opened.file.as_fd(), std::mem::take(&mut self.init)) };
        self.error = result.err();
        // If it failed, whoever enables it need not wait to learn of it.
        self.enabled = true;
    }
}

/// A barrier channel.
#[derive(Debug, Default)]
struct Channel {
    opened: Option<Opened>,
    notice: u64,
    unmasked: bool,
    /// Interfaces and numbers of its gates, once the kernel has set it up.
    gates: Vec<(u8, u8)>,
}

/// The device of this computer, through the kernel driver.
#[derive(Debug)]
pub struct TofPlatform {
    coords: Coords,
    /// By interface and number.
    queues: Vec<RwLock<Queue>>,
    channels: Vec<RwLock<Channel>>,
    gates: Mutex<Vec<Gate>>,
    locks: Locks,
    start: Instant,
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl TofPlatform {
    /// Whether there is a kernel driver.
    pub fn is_there() -> bool {
        std::path::Path::new(FILES).join("position").exists()
    }

    /// The device that the kernel driver has.
    ///
    /// # Errors
    ///
    /// If there is no driver, or it does not say where the node is.
    pub fn open() -> io::Result<Self> {
        let path = format!("{FILES}/position");
        let mut file = File::options().read(true).write(true).open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let coords = parse(&text).ok_or(io::ErrorKind::InvalidData)?;
        let many = |count| 0..NUM_TNI * count;
        Ok(Self {
            coords,
            queues: many(NUM_CQ).map(|_| RwLock::default()).collect(),
            channels: many(NUM_BCH).map(|_| RwLock::default()).collect(),
            gates: Mutex::new(vec![Gate::default(); NUM_TNI * NUM_BG]),
            locks: Locks::new(file),
            start: Instant::now(),
        })
    }

    fn queue(&self, tni: u8, cq: u8) -> Option<&RwLock<Queue>> {
        self.queues.get(usize::from(tni) * NUM_CQ + usize::from(cq))
    }

    fn channel(&self, tni: u8, bch: u8) -> Option<&RwLock<Channel>> {
        let inside = usize::from(bch) < NUM_BCH;
        self.channels.get(usize::from(tni) * NUM_BCH + usize::from(bch)).filter(|_| inside)
    }

    fn gates(&self) -> MutexGuard<'_, Vec<Gate>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a queue among the processes that use this library; `false` if another one has it.
    ///
    /// # Errors
    ///
    /// Of a system without locks.
    pub fn lock_queue(&self, tni: u8, cq: u8) -> io::Result<bool> {
        self.locks.take(Thing::Queue { tni, cq })
    }

    /// Gives up [`TofPlatform::lock_queue`].
    pub fn unlock_queue(&self, tni: u8, cq: u8) {
        self.locks.give(Thing::Queue { tni, cq });
    }

    /// Claims a barrier gate, as [`TofPlatform::lock_queue`] does queues.
    ///
    /// # Errors
    ///
    /// Of a system without locks.
    pub fn lock_gate(&self, tni: u8, bg: u8) -> io::Result<bool> {
        self.locks.take(Thing::Gate { tni, bg })
    }

    /// Gives up [`TofPlatform::lock_gate`].
    pub fn unlock_gate(&self, tni: u8, bg: u8) {
        self.locks.give(Thing::Gate { tni, bg });
    }

    /// Opens a queue for this process, so that the driver can bring it up. It is open until the
    /// driver closes it, or [`TofPlatform::close_queue`].
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open_queue(&self, tni: u8, cq: u8) -> Result<(), OpenError> {
        let mut queue = write(self.queue(tni, cq).ok_or(OpenError::None)?);
        if queue.opened.is_some() {
            return Err(OpenError::Busy);
        }
        let opened = Some(Opened::new(&format!("tni{tni}cq{cq}"))?);
        *queue = Queue { opened, ..Queue::default() };
        Ok(())
    }

    /// Why the kernel did not set up a queue that the driver has enabled.
    pub fn queue_error(&self, tni: u8, cq: u8) -> Option<OpenError> {
        let mut queue = write(self.queue(tni, cq)?);
        queue.error.take().map(OpenError::from)
    }

    /// Closes a queue, whether the driver has brought it up or not. Memory that was registered
    /// there is used no more when this returns.
    pub fn close_queue(&self, tni: u8, cq: u8) {
        if let Some(queue) = self.queue(tni, cq) {
            *write(queue) = Queue::default();
        }
    }

    /// Registers memory of this process with a queue that is open: under the STag `wanted`, below
    /// 4096, or the lowest one from there on that is free, which is even if others may write to
    /// the memory, odd otherwise. Returns the STag and the offset of the first byte.
    ///
    /// # Errors
    ///
    /// See [`RegisterError`].
    ///
    /// # Safety
    ///
    /// Until [`TofPlatform::deregister`], or until the queue is closed, the process treats the
    /// memory as memory that others may change at any time. It may be unmapped: then others can
    /// reach it no more.
    #[allow(unsafe_code)]
    pub unsafe fn register(
        &self,
        (tni, cq): (u8, u8),
        addr: usize,
        len: usize,
        wanted: Option<u32>,
        read_only: bool,
    ) -> Result<(u32, u64), RegisterError> {
        let queue = read(self.queue(tni, cq).ok_or(RegisterError::Closed)?);
        let file = queue.opened.as_ref().ok_or(RegisterError::Closed)?.file.as_fd();
        // SAFETY: as promised to this function.
        Ok(unsafe { uapi::alloc_stag(file, addr, len, wanted, read_only)? })
    }

    /// Takes memory back. When it returns, the device uses it no more. Whether the kernel had done
    /// so before, because the memory was unmapped, makes no difference.
    ///
    /// # Errors
    ///
    /// If the device does not let go of it.
    pub fn deregister(&self, tni: u8, cq: u8, stag: u32) -> Result<(), RegisterError> {
        let queue = read(self.queue(tni, cq).ok_or(RegisterError::Closed)?);
        let file = queue.opened.as_ref().ok_or(RegisterError::Closed)?.file.as_fd();
        match uapi::free_stag(file, stag) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Opens a barrier channel for this process, so that the driver can bring it up.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open_channel(&self, tni: u8, bch: u8) -> Result<(), OpenError> {
        let mut channel = write(self.channel(tni, bch).ok_or(OpenError::None)?);
        if channel.opened.is_some() {
            return Err(OpenError::Busy);
        }
        let opened = Some(Opened::new(&format!("tni{tni}bch{bch}"))?);
        *channel = Channel { opened, ..Channel::default() };
        Ok(())
    }

    /// Closes a channel, whether the driver has brought it up or not.
    pub fn close_channel(&self, tni: u8, bch: u8) {
        if let Some(channel) = self.channel(tni, bch) {
            *write(channel) = Channel::default();
        }
    }

    /// Has the kernel set up a channel that the driver has brought up, with its gates.
    ///
    /// # Errors
    ///
    /// [`OpenError::Busy`] if a program that does not use this library has a gate; see
    /// [`OpenError`].
    #[allow(unsafe_code)]
    pub fn enable_channel(&self, tni: u8, bch: u8, gates: &[(u8, u8)]) -> Result<(), OpenError> {
        let mut channel = write(self.channel(tni, bch).ok_or(OpenError::None)?);
        let file = channel.opened.as_ref().ok_or(OpenError::None)?.file.as_fd();
        let known = self.gates();
        let gate = |tni: u8, bg: u8| known.get(gate_index(tni, bg));
        let settings: Vec<_> =
            gates.iter().filter_map(|&(t, bg)| Some(gate(t, bg)?.setting(t, bg))).collect();
        let bseq = gate(tni, bch).map_or(0, Gate::bseq);
        // SAFETY: the notice area is a device address of `alloc_dma`: memory that the driver
        // accesses by loads, stores and copies, and keeps until it has masked the channel.
        let enabled = unsafe { uapi::enable_bch(file, channel.notice, bseq, &settings) };
        enabled?;
        channel.gates = gates.to_vec();
        Ok(())
    }

    /// Exceptions of the channel that has a gate, as the kernel knows them.
    fn exceptions(&self, tni: u8, bg: u8) -> u64 {
        let of_channel = |channel: &RwLock<Channel>| {
            let channel = read(channel);
            let file =
                &channel.opened.as_ref().filter(|_| channel.gates.contains(&(tni, bg)))?.file;
            let mut word = [0; 8];
            // It fails if the driver has gone; then nothing is known.
            let got = (&*file).read(&mut word).ok()?;
            (got == word.len()).then(|| u64::from_ne_bytes(word))
        };
        self.channels.iter().find_map(of_channel).unwrap_or(0)
    }
}

/// Six numbers.
fn parse(text: &str) -> Option<Coords> {
    let mut words = text.split_whitespace().map(|word| word.parse::<u8>().ok());
    let mut next = || words.next().flatten();
    let coords = Coords::new(next()?, next()?, next()?, next()?, next()?, next()?);
    (NodeAddress::from_coords(coords).coords() == coords).then_some(coords)
}

fn gate_index(tni: u8, bg: u8) -> usize {
    usize::from(tni) * NUM_BG + usize::from(bg)
}

impl Platform for TofPlatform {
    type Dma = Buffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        let own = offset % PAGE_STRIDE;
        match Register::decode(offset) {
            Some(Register::Tofu(TofuReg::NodeAddress)) => NodeAddress::from_coords(self.coords).0,
            Some(Register::Tni { reg: TniReg::CqPresent, .. }) => (1 << USER_CQS) - 1,
            // The kernel has enabled it.
            Some(Register::Tni { reg: TniReg::State, .. }) => TniState::Normal as u64,
            Some(Register::Cq { tni, cq, .. }) => self
                .queue(tni.get(), cq.get())
                .and_then(|queue| Some(read(queue).opened.as_ref()?.page.read(own)))
                .unwrap_or(u64::MAX),
            Some(Register::Bch { tni, bch, .. }) => self
                .channel(tni.get(), bch.get())
                .and_then(|channel| Some(read(channel).opened.as_ref()?.page.read(own)))
                .unwrap_or(u64::MAX),
            Some(Register::Cqs { tni, cq, reg: CqsReg::Status }) => {
                let enabled =
                    self.queue(tni.get(), cq.get()).is_some_and(|queue| read(queue).enabled);
                CqsStatus(0).with_cq_enable(enabled).0
            }
            // Requests are the kernel's: to this process nothing is pending.
            Some(Register::Cqs { .. }) => 0,
            Some(Register::Bgs { tni, bg, reg }) => match reg {
                BgsReg::State => self
                    .gates()
                    .get(gate_index(tni.get(), bg.get()))
                    .is_some_and(|gate| gate.enabled)
                    .into(),
                BgsReg::BchMask => {
                    let unmasked = |channel: &RwLock<Channel>| read(channel).unmasked;
                    let unmasked = self.channel(tni.get(), bg.get()).is_some_and(unmasked);
                    if unmasked { 0 } else { BCH_MASK }
                }
                BgsReg::Irr => self.exceptions(tni.get(), bg.get()),
                _ => 0,
            },
            _ => u64::MAX,
        }
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        let own = offset % PAGE_STRIDE;
        match Register::decode(offset) {
            Some(Register::Cq { tni, cq, .. }) => {
                if let Some(queue) = self.queue(tni.get(), cq.get())
                    && let Some(opened) = &read(queue).opened
                {
                    opened.page.write(own, value);
                }
            }
            Some(Register::Bch { tni, bch, .. }) => {
                if let Some(channel) = self.channel(tni.get(), bch.get())
                    && let Some(opened) = &read(channel).opened
                {
                    opened.page.write(own, value);
                }
            }
            Some(Register::Cqs { tni, cq, reg }) => {
                if let Some(queue) = self.queue(tni.get(), cq.get()) {
                    write(queue).write(reg, value);
                }
            }
            Some(Register::Bgs { tni, bg, reg: BgsReg::BchNoticeIpa }) => {
                if let Some(channel) = self.channel(tni.get(), bg.get()) {
                    write(channel).notice = value;
                }
            }
            Some(Register::Bgs { tni, bg, reg: BgsReg::BchMask }) => {
                if value & BCH_MASK != 0 {
                    // The kernel takes the channel down, and its gates, when it is closed.
                    self.close_channel(tni.get(), bg.get());
                } else if let Some(channel) = self.channel(tni.get(), bg.get()) {
                    write(channel).unmasked = true;
                }
            }
            Some(Register::Bgs { tni, bg, reg }) => {
                if let Some(gate) = self.gates().get_mut(gate_index(tni.get(), bg.get())) {
                    gate.write(reg, value);
                }
            }
            // The rest is the kernel's, or is not there.
            _ => {}
        }
    }

    #[inline]
    fn doorbell_write64(&self, offset: u64, value: u64) {
        // The way of every command: shorter than to look up the register.
        let (tni, cq) = (offset / TNI_STRIDE, offset % TNI_STRIDE / PAGE_STRIDE);
        if cq < USER_CQS
            && let Some(queue) = self.queue(tni as u8, cq as u8)
            && let Some(opened) = &read(queue).opened
        {
            return opened.page.write(offset % PAGE_STRIDE, value);
        }
        self.bar0_write64(offset, value);
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        Buffer::new(size, align)
    }

    fn irq_enable(&self, vector: u16) -> Result<(), IrqError> {
        // Interrupts are the kernel's; processes get signals.
        Err(IrqError { vector })
    }

    fn irq_wait(&self, _: u16, _: u64) -> bool {
        false
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use tofu_driver::DmaBuffer;

    fn platform() -> TofPlatform {
        TofPlatform {
            coords: Coords::new(3, 0, 1, 1, 2, 0),
            queues: (0..NUM_TNI * NUM_CQ).map(|_| RwLock::default()).collect(),
            channels: (0..NUM_TNI * NUM_BCH).map(|_| RwLock::default()).collect(),
            gates: Mutex::new(vec![Gate::default(); NUM_TNI * NUM_BG]),
            locks: Locks::new(File::open("/dev/null").unwrap()),
            start: Instant::now(),
        }
    }

    #[test]
    fn positions_are_six_coordinates() {
        assert_eq!(parse("3 0 31 1 2 0\n"), Some(Coords::new(3, 0, 31, 1, 2, 0)));
        for bad in ["", "1 2 3", "1 2 3 4 5 6", "-1 0 0 0 0 0", "32 0 0 0 0 0", "x"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_driver_finds_the_node() {
        let device = tofu_driver::Device::probe(platform()).unwrap();
        assert_eq!(device.coords(), Coords::new(3, 0, 1, 1, 2, 0));
        assert!(device.tni(5).unwrap().enable().is_ok());
    }

    #[test]
    fn memory_has_addresses_of_the_process() {
        let buffer = platform().alloc_dma(5000, 256).unwrap();
        assert_eq!(buffer.device_addr() % 4096, 0);
        assert_eq!(buffer.len(), 5000);
        buffer.store_u64(4096, 0x1234, Ordering::Relaxed);
        assert_eq!(buffer.load_u64(4096, Ordering::Relaxed), 0x1234);
        let mut bytes = [1; 3];
        buffer.read(4997, &mut bytes);
        assert_eq!(bytes, [0; 3]);
        assert!(platform().alloc_dma(usize::MAX, 256).is_err());
        assert!(platform().alloc_dma(1, 8192).is_err());
    }

    #[test]
    fn what_is_not_open_does_nothing() {
        let platform = platform();
        assert!(matches!(platform.deregister(0, 0, 1), Err(RegisterError::Closed)));
        assert!(matches!(platform.deregister(6, 0, 1), Err(RegisterError::Closed)));
        assert!(matches!(platform.enable_channel(0, 16, &[]), Err(OpenError::None)));
        // Any register, also of queues and gates that there are not.
        for offset in (0..tofu_abi::regs::BAR0_SIZE).step_by(0x4008) {
            platform.bar0_write64(offset & !7, u64::MAX);
            platform.bar0_read64(offset & !7);
        }
    }
}
