// SPDX-License-Identifier: GPL-2.0

//! A control queue that a process has opened.
//!
//! Two locks. `state` serialises the process's own calls, and may be held while memory is pinned
//! or allocated. `tables` guards what the device reads; it is taken by [`Cq::unmapped`], which
//! the kernel calls with locks of the process's memory held, and so no memory is allocated or
//! pinned while it is held.

use kernel::bindings;
use kernel::irq::{self as kirq, IrqReturn};
use kernel::mm::Mm;
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::uaccess::{UserPtr, UserSlice};
use kernel::workqueue::{self, impl_has_work, new_work, Work, WorkItem};

use tofu_abi::desc::DESC_SIZE;
use tofu_abi::irq;
use tofu_abi::queue::{queue_entries, MRQ_ENTRY_SIZE, TCQ_ENTRY_SIZE};
use tofu_abi::regs::{cq_page, cqs_page, CqsReg, CACHE_INJECTION};
use tofu_abi::table::{MemoryBlock, PageEntry, PageSize, Steering};

use crate::device::Device;
use crate::dma::Table;
use crate::pin::{current_mm, Pinned, PAGE};
use crate::shim;
use crate::uapi::{self, AllocStag, FreeStags, InitCq};
use crate::watch::{Watch, What};

/// STags that a process chooses itself; others are given out from here on.
const SPECIAL_STAGS: u32 = 4096;
/// STags that FREE_STAGS takes in one call.
const MAX_FREE: u16 = 1024;
/// Where the address space of an STag begins: at a multiple of this, as on machines whose pages
/// are so large. Programs rely on an offset having the same low bits as the address.
const BASE_ALIGN: u64 = 1 << 16;
/// Longest STag: what an offset can say.
const MAX_SPAN: u64 = 1 << tofu_abi::addr::OFFSET_BITS;

/// Who gets signals, and which.
pub(crate) struct Signal {
    pid: *mut bindings::pid,
    number: Atomic<i32>,
}

// SAFETY: a `struct pid` is reference counted and used under RCU by any thread.
unsafe impl Send for Signal {}
// SAFETY: as above.
unsafe impl Sync for Signal {}

impl Signal {
    /// Without SET_RT_SIGNAL the process is told to end.
    const DEFAULT: i32 = bindings::SIGTERM as i32;

    /// For the calling process.
    pub(crate) fn new() -> Self {
        // SAFETY: no requirements; the reference is ours.
        let pid = unsafe { shim::tofu_shim_current_pid() };
        let number = Atomic::new(Self::DEFAULT);
        Self { pid, number }
    }

    /// SET_RT_SIGNAL.
    ///
    /// # Errors
    ///
    /// `EINVAL` for another than a real-time signal, `EFAULT`.
    pub(crate) fn set(&self, arg: u64) -> Result {
        let number: i32 = uapi::get(arg)?;
        if !(bindings::SIGRTMIN as i32..=bindings::_NSIG as i32).contains(&number) {
            return Err(EINVAL);
        }
        self.number.store(number, Relaxed);
        Ok(())
    }

    /// Sends the signal with a code (`si_errno`) and the queue or channel (`si_int`).
    pub(crate) fn send(&self, code: i32, value: i32) {
        // SAFETY: we hold a reference to the pid.
        unsafe { shim::tofu_shim_signal(self.pid, self.number.load(Relaxed), code, value) };
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // SAFETY: the reference of `new`.
        unsafe { bindings::put_pid(self.pid) };
    }
}

/// Exceptions that a process is told of, with their codes.
const EXCEPTIONS: [(u64, i32); 3] = [
    (irq::cqs::TOQ_DIRECT_DESCRIPTOR_EXCEPTION, 0),
    (irq::cqs::TOQ_SOURCE_TYPE_EXCEPTION, 1),
    (irq::cqs::MRQ_OVERFLOW, 2),
];

/// The queue's interrupt.
struct Handler {
    device: Arc<Device>,
    tni: u8,
    cq: u8,
    signal: Arc<Signal>,
}

impl Handler {
    fn mask() -> u64 {
        EXCEPTIONS.iter().fold(0, |mask, (bit, _)| mask | bit)
    }
}

impl kirq::Handler for Handler {
    fn handle(&self) -> IrqReturn {
        let page = cqs_page(self.tni, self.cq);
        let pending = self.device.read(page + CqsReg::Irr.offset()) & Self::mask();
        if pending == 0 {
            return IrqReturn::None;
        }
        self.device.write(page + CqsReg::Irc.offset(), pending);
        self.device.faults.add(1, Relaxed);
        // SAFETY: no requirements.
        unsafe { shim::tofu_shim_trace_fault(self.tni, self.cq, pending) };
        for (bit, code) in EXCEPTIONS {
            if pending & bit != 0 {
                dev_dbg!(
                    self.device.pdev(),
                    "tni{}cq{}: exception {}\n",
                    self.tni,
                    self.cq,
                    code
                );
                self.signal
                    .send(code, i32::from(self.tni) << 8 | i32::from(self.cq));
            }
        }
        IrqReturn::Handled
    }
}

/// What an STag stands for: pages of the process, and how they are offered.
#[derive(Clone, Copy)]
struct Span {
    /// First byte of the first page, and the one behind the last.
    start: u64,
    end: u64,
    /// Where the address space begins.
    base: u64,
    large: bool,
    read_only: bool,
}

impl Span {
    /// # Errors
    ///
    /// `EINVAL` if there are no such addresses, or more than an offset can say.
    fn new(a: &AllocStag) -> Result<Self> {
        let (start, end) = pages_around(a.va, a.len)?;
        let huge = PageSize::Size2M.bytes();
        let large = a.flags & uapi::LARGE_PAGES != 0 && end - start >= huge;
        let base = start & !(if large { huge } else { BASE_ALIGN } - 1);
        if end - base > MAX_SPAN {
            return Err(EINVAL);
        }
        let read_only = a.flags & uapi::READ_ONLY != 0;
        Ok(Self {
            start,
            end,
            base,
            large,
            read_only,
        })
    }

    /// Whether the public interface has one STag for both: it counts in pages of 64 KiB.
    fn serves(&self, other: &Self) -> bool {
        let kind = |span: &Self| (span.base, span.large, span.read_only);
        kind(self) == kind(other)
            && self.end.div_ceil(BASE_ALIGN) == other.end.div_ceil(BASE_ALIGN)
            && (self.start..=self.end).contains(&other.start)
            && other.end <= self.end
    }
}

/// Registered memory. The order of fields is that of taking it down.
struct Stag {
    span: Span,
    watch: Pin<KBox<Watch>>,
    _pinned: Pinned,
    _pages: Table,
}

/// A ring in the process's memory.
struct Ring {
    _watch: Pin<KBox<Watch>>,
    pinned: Pinned,
    /// Byte in the first page at which it begins.
    at: u64,
    bytes: u64,
}

impl Ring {
    fn addr(&self) -> u64 {
        self.pinned.addr(0) + self.at
    }
}

/// What INIT_CQ made.
struct Open {
    mm: ARef<Mm>,
    irq: Option<Pin<KBox<kirq::Registration<'static, Handler>>>>,
    /// TOQ, TCQ, MRQ.
    rings: [Ring; 3],
    stags: KVVec<Option<KBox<Stag>>>,
    /// No STag from here on has ever been given out.
    end: u32,
}

/// How things stand with an STag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StagState {
    Free,
    /// ALLOC_STAG works on it.
    Pending,
    /// Its memory was unmapped before ALLOC_STAG was through.
    Aborted,
    /// The device uses it.
    Live,
    /// Its memory was unmapped; what it held is to be given back.
    Dead,
}

/// What the device and the process read.
struct Tables {
    steering: Table,
    blocks: Table,
    shown: Arc<Shown>,
    states: KVVec<StagState>,
}

/// The translation table that a process may map to read: 16 bytes for each STag.
struct Shown {
    table: *mut u64,
    qwords: usize,
}

// SAFETY: the table belongs to this object, and is written under the lock of `Tables`.
unsafe impl Send for Shown {}
// SAFETY: as above; whoever else has a reference only shows it to a process.
unsafe impl Sync for Shown {}

impl Shown {
    fn new(stags: usize) -> Result<Self> {
        let qwords = stags * 2;
        // SAFETY: no requirements.
        let table = unsafe { shim::tofu_shim_table_alloc(qwords * 8) };
        if table.is_null() {
            return Err(ENOMEM);
        }
        Ok(Self {
            table: table.cast(),
            qwords,
        })
    }

    fn bytes(&self) -> u64 {
        self.qwords as u64 * 8
    }

    fn set(&self, stag: u32, entry: u64) {
        for i in [stag as usize * 2, stag as usize * 2 + 1] {
            if i < self.qwords {
                // SAFETY: in the table; processes that have it mapped may read it meanwhile.
                unsafe { self.table.add(i).write_volatile(entry) };
            }
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`. Pages that are mapped stay until they are unmapped.
        unsafe { shim::tofu_shim_table_free(self.table.cast()) };
    }
}

impl Tables {
    fn new(device: &Arc<Device>, stags: u32) -> Result<Self> {
        let n = stags as usize;
        Ok(Self {
            steering: Table::new(device, n * 2)?,
            blocks: Table::new(device, n * 2)?,
            shown: Arc::new(Shown::new(n)?, GFP_KERNEL)?,
            states: KVVec::from_elem(StagState::Free, n, GFP_KERNEL)?,
        })
    }

    fn state(&self, stag: u32) -> StagState {
        self.states
            .get(stag as usize)
            .copied()
            .unwrap_or(StagState::Dead)
    }

    fn set_state(&mut self, stag: u32, state: StagState) {
        if let Some(place) = self.states.get_mut(stag as usize) {
            *place = state;
        }
    }

    /// Clears an STag's entries; the cache is to be flushed afterwards.
    fn disable(&mut self, stag: u32) {
        self.steering.store(stag as usize * 2, 0);
        self.blocks.store(stag as usize * 2, 0);
        self.shown.set(stag, 0);
    }
}

/// What the tables' lock guards. It is taken when memory is unmapped, also by the kernel when it is
/// short of memory: nothing is allocated while it is held.
struct Shared {
    tables: Option<Tables>,
    /// Whether the device works for the queue.
    enabled: bool,
    /// A ring was unmapped: the queue has stopped for good.
    ring_gone: bool,
}

/// A control queue that is open.
#[pin_data]
pub(crate) struct Cq {
    device: Arc<Device>,
    tni: u8,
    cq: u8,
    uid: u32,
    signal: Arc<Signal>,
    #[pin]
    state: Mutex<Option<KBox<Open>>>,
    #[pin]
    shared: Mutex<Shared>,
    #[pin]
    work: Work<Cq>,
}

impl_has_work! {
    impl HasWork<Self> for Cq { self.work }
}

impl WorkItem for Cq {
    type Pointer = Arc<Cq>;

    fn run(this: Arc<Cq>) {
        this.bury();
    }
}

impl Cq {
    /// Opens a queue for the calling process.
    ///
    /// # Errors
    ///
    /// `EACCES` if the user may not use it, `EBUSY` if it is open already.
    pub(crate) fn open(device: &Arc<Device>, tni: u8, cq: u8) -> Result<Arc<Self>> {
        let uid = crate::users::current();
        let rights = device.users.lock().rights(uid);
        let mask = rights.cqs.get(usize::from(tni)).copied().unwrap_or(0);
        if mask >> cq & 1 == 0 {
            return Err(EACCES);
        }
        let signal = Arc::new(Signal::new(), GFP_KERNEL)?;
        let this = Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                tni,
                cq,
                uid,
                signal,
                state <- new_mutex!(None),
                shared <- new_mutex!(Shared { tables: None, enabled: false, ring_gone: false }),
                work <- new_work!("Cq::work"),
            }),
            GFP_KERNEL,
        )?;
        device.claim_cq(tni, cq, &this)?;
        Ok(this)
    }

    fn register(&self, reg: CqsReg) -> u64 {
        cqs_page(self.tni, self.cq) + reg.offset()
    }

    /// Physical address of the queue's user page.
    pub(crate) fn page_phys(&self) -> u64 {
        self.device.bar_phys(cq_page(self.tni, self.cq))
    }

    /// The ioctls of a queue's file.
    ///
    /// # Errors
    ///
    /// See [`crate::node`].
    pub(crate) fn ioctl(self: &Arc<Self>, cmd: u32, arg: u64) -> Result {
        match cmd {
            uapi::INIT_CQ => self.init(&uapi::get(arg)?),
            uapi::ALLOC_STAG => self.alloc_stag(arg),
            uapi::FREE_STAGS => self.free_stags(arg),
            uapi::SET_RT_SIGNAL => self.signal.set(arg),
            _ => Err(ENOTTY),
        }
    }

    /// Pins a ring and watches it.
    fn ring(self: &Arc<Self>, mm: &ARef<Mm>, addr: u64, bytes: u64, align: u64) -> Result<Ring> {
        if addr == 0 || addr % align != 0 {
            return Err(EINVAL);
        }
        let (start, end) = pages_around(addr, bytes)?;
        let watch = Watch::new(self, What::Ring, mm, start, end - start)?;
        let huge = PageSize::Size2M.bytes();
        // In step with huge pages, should the memory have some: then the IOMMU has them too.
        let align = if end - start >= huge { huge } else { PAGE };
        let pinned = Pinned::new(&self.device, mm, start, end, true, align)?;
        if !pinned.is_contiguous() {
            dev_dbg!(
                self.device.pdev(),
                "queues must be contiguous for the device: turn on the IOMMU, or use huge pages\n"
            );
            return Err(EOPNOTSUPP);
        }
        Ok(Ring {
            _watch: watch,
            pinned,
            at: addr - start,
            bytes,
        })
    }

    fn init(self: &Arc<Self>, a: &InitCq) -> Result {
        let fit = a.version == uapi::VERSION
            && a.session_mode <= 1
            && a.num_stag <= 2
            && a.tcq_cinj <= 1
            && a.mrq_cinj <= 1;
        let toq = queue_entries(a.toq_size.into())
            .filter(|_| fit)
            .ok_or(EINVAL)?;
        let mrq = queue_entries(a.mrq_size.into()).ok_or(EINVAL)?;
        let stags = 1u32 << (13 + a.num_stag);

        let mut state = self.state.lock();
        if state.is_some() {
            return Err(EBUSY);
        }
        // It stays so if the memory was unmapped since.
        self.shared.lock().ring_gone = false;
        let mm = current_mm()?;
        let (toq, mrq) = (u64::from(toq), u64::from(mrq));
        let rings = [
            self.ring(&mm, a.toq_mem, toq * DESC_SIZE as u64, DESC_SIZE as u64)?,
            self.ring(
                &mm,
                a.tcq_mem,
                toq * TCQ_ENTRY_SIZE as u64,
                TCQ_ENTRY_SIZE as u64,
            )?,
            self.ring(
                &mm,
                a.mrq_mem,
                mrq * MRQ_ENTRY_SIZE as u64,
                MRQ_ENTRY_SIZE as u64,
            )?,
        ];
        let tables = Tables::new(&self.device, stags)?;
        let mut list = KVVec::with_capacity(stags as usize, GFP_KERNEL)?;
        for _ in 0..stags {
            list.push(None, GFP_KERNEL)?;
        }

        let rights = self.device.users.lock().rights(self.uid);
        let injection = |wanted: u8| if wanted == 1 { CACHE_INJECTION } else { 0 };
        let settings = [
            (
                CqsReg::Mode,
                rights.subnet.with_session(a.session_mode == 1).0,
            ),
            (CqsReg::Gpid, rights.gpid),
            (CqsReg::ToqIpa, rings[0].addr()),
            (CqsReg::ToqSize, a.toq_size.into()),
            (CqsReg::TcqIpa, rings[1].addr() | injection(a.tcq_cinj)),
            (CqsReg::MrqIpa, rings[2].addr() | injection(a.mrq_cinj)),
            (CqsReg::MrqSize, a.mrq_size.into()),
            (CqsReg::MrqMask, 0),
            (CqsReg::FetchStop, 0),
            (CqsReg::TcqDescriptorCoalescingTimer, 0),
            (CqsReg::MrqDescriptorCoalescingTimer, 0),
            (CqsReg::MemoryBlockTableIpa, tables.blocks.addr()),
            (CqsReg::MemoryBlockTableSize, stags.into()),
            (CqsReg::MemoryBlockTableEnable, 1),
            (CqsReg::SteeringTableIpa, tables.steering.addr()),
            (CqsReg::SteeringTableSize, stags.into()),
            (CqsReg::SteeringTableEnable, 1),
            // Acknowledgements are for those who sleep; processes poll.
            (CqsReg::MrqInterruptMask, u64::MAX),
            (CqsReg::Imr, u64::MAX),
            (CqsReg::Irc, u64::MAX),
        ];
        for (reg, value) in settings {
            self.device.write(self.register(reg), value);
        }
        let irq = self.irq()?;
        if irq.is_some() {
            self.device
                .write(self.register(CqsReg::Imc), Handler::mask());
        }
        let open = KBox::new(
            Open {
                mm,
                irq,
                rings,
                stags: list,
                end: 0,
            },
            GFP_KERNEL,
        )?;
        {
            let mut shared = self.shared.lock();
            if shared.ring_gone {
                return Err(EFAULT);
            }
            if let Err(error) = self.device.enable_cq(self.tni, self.cq, true) {
                let _ = self.device.enable_cq(self.tni, self.cq, false);
                return Err(error);
            }
            shared.tables = Some(tables);
            shared.enabled = true;
        }
        *state = Some(open);
        dev_dbg!(self.device.pdev(), "tni{}cq{}: opened\n", self.tni, self.cq);
        Ok(())
    }

    /// Asks for the queue's interrupt; without it there are no signals.
    fn irq(&self) -> Result<Option<Pin<KBox<kirq::Registration<'static, Handler>>>>> {
        let Some(request) = self.device.vector(irq::vector::cq(self.tni, self.cq)) else {
            return Ok(None);
        };
        let handler = Handler {
            device: self.device.clone(),
            tni: self.tni,
            cq: self.cq,
            signal: self.signal.clone(),
        };
        // SAFETY: it is never forgotten: it goes with `Open`, and first when that is leaked.
        let registration = unsafe {
            kirq::Registration::new(request, kirq::Flags::SHARED, c"tofu-cq", Ok(handler))
        };
        KBox::try_pin_init(registration, GFP_KERNEL).map(Some)
    }

    fn alloc_stag(self: &Arc<Self>, arg: u64) -> Result {
        let mut a: AllocStag = uapi::get(arg)?;
        let mut state = self.state.lock();
        let open = state.as_deref_mut().ok_or(EPERM)?;
        // Another process, which has the file by inheritance, has other memory.
        if open.mm.as_raw() != current_mm()?.as_raw() {
            return Err(EPERM);
        }
        let known = uapi::READ_ONLY | uapi::LARGE_PAGES | uapi::NEW_STAG;
        let wanted = u32::try_from(a.stag).ok();
        let bad = a.flags & !known != 0
            || a.stag < -1
            || wanted.is_some_and(|stag| stag >= SPECIAL_STAGS)
            || a.va == 0
            || a.len == 0;
        if bad {
            return Err(EINVAL);
        }
        let span = Span::new(&a)?;
        if wanted.is_none() && a.flags & uapi::NEW_STAG == 0 {
            if let Some(stag) = self.known(open, &span) {
                a.stag = stag as i32;
                a.offset = a.va - span.base;
                return uapi::put(arg, &a);
            }
        }
        let stag = self.choose(wanted, span.read_only)?;
        let made = self.make_stag(open, &mut a, stag, &span);
        if let Err(error) = made {
            let mut shared = self.shared.lock();
            if let Some(tables) = shared.tables.as_mut() {
                tables.set_state(stag, StagState::Free);
            }
            // What is not mapped is a bad argument here.
            return Err(if error == EFAULT { EINVAL } else { error });
        }
        a.stag = stag as i32;
        if let Err(error) = uapi::put(arg, &a) {
            self.free(open, &[stag])?;
            return Err(error);
        }
        Ok(())
    }

    /// An STag that stands for the same memory already, if its pages are the process's still.
    fn known(&self, open: &Open, span: &Span) -> Option<u32> {
        let shared = self.shared.lock();
        let tables = shared.tables.as_ref().filter(|_| shared.enabled)?;
        let first = SPECIAL_STAGS + u32::from(span.read_only);
        (first..open.end).step_by(2).find(|stag| {
            let stag_there = open.stags.get(*stag as usize).and_then(Option::as_ref);
            stag_there.is_some_and(|s| s.span.serves(span) && s.watch.is_untouched())
                && tables.state(*stag) == StagState::Live
        })
    }

    /// Reserves an STag.
    fn choose(&self, wanted: Option<u32>, read_only: bool) -> Result<u32> {
        let mut shared = self.shared.lock();
        if !shared.enabled {
            return Err(EPERM);
        }
        let tables = shared.tables.as_mut().ok_or(EPERM)?;
        let stag = match wanted {
            Some(stag) if tables.state(stag) == StagState::Free => stag,
            Some(_) => return Err(EBUSY),
            None => {
                let first = SPECIAL_STAGS + u32::from(read_only);
                (first..tables.states.len() as u32)
                    .step_by(2)
                    .find(|stag| tables.state(*stag) == StagState::Free)
                    .ok_or(ENOSPC)?
            }
        };
        tables.set_state(stag, StagState::Pending);
        Ok(stag)
    }

    fn make_stag(
        self: &Arc<Self>,
        open: &mut Open,
        a: &mut AllocStag,
        stag: u32,
        span: &Span,
    ) -> Result {
        let &Span {
            start,
            end,
            base,
            large,
            read_only,
        } = span;
        let huge = PageSize::Size2M.bytes();
        // In step with huge pages, should the memory have some: then the IOMMU has them too.
        let (page, align) = if end - start >= huge {
            (PageSize::Size2M, huge)
        } else {
            (PageSize::Size64K, BASE_ALIGN)
        };
        // Watched first: what is unmapped while it is being pinned is noticed.
        let watch = Watch::new(self, What::Stag(stag), &open.mm, start, end - start)?;
        let pinned = Pinned::new(&self.device, &open.mm, start, end, !read_only, align)?;

        let range = pinned.range().filter(|addr| addr % align == 0);
        // Where the table begins in the process's memory.
        let (page, first) = match range {
            Some(_) => (page, start & !(align - 1)),
            None => (PageSize::Size4K, base),
        };
        let entries = (end - first).div_ceil(page.bytes());
        let pages = Table::new(&self.device, entries as usize)?;
        let entry = |addr: u64| PageEntry(0).with_ipa(addr).with_enable(true).0;
        match range {
            Some(addr) => {
                for i in 0..entries {
                    pages.store(i as usize, entry(addr + i * align));
                }
            }
            None => {
                // Entries in front of the first page stay disabled.
                let skipped = ((start - first) / PAGE) as usize;
                for i in 0..pinned.len() {
                    pages.store(skipped + i, entry(pinned.addr(i)));
                }
            }
        }
        // An STag of the process's own choice begins at the memory itself.
        let special = stag < SPECIAL_STAGS;
        let mbva = if special { a.va & !0xff } else { base } - first;
        a.offset = a.va - first - mbva;

        let i = stag as usize * 2;
        let block = MemoryBlock(0)
            .with_ps(page as u8)
            .with_ipa(pages.addr())
            .with_enable(true)
            .0;
        let steering = Steering(0)
            .with_readonly(read_only)
            .with_mbva_units(mbva >> 8)
            .with_mbid(stag as u16)
            .with_enable(true)
            .0;
        let units = (end - base).div_ceil(BASE_ALIGN);
        let shown = base >> 16 & ((1 << 36) - 1)
            | (units & ((1 << 27) - 1)) << 36
            | u64::from(large && range.is_some()) << 63;
        // The memory of this box is needed below, where none can be allocated.
        let record = KBox::new(
            Stag {
                span: *span,
                watch,
                _pinned: pinned,
                _pages: pages,
            },
            GFP_KERNEL,
        )?;
        let place = open.stags.get_mut(stag as usize).ok_or(EINVAL)?;

        let mut shared = self.shared.lock();
        let tables = shared.tables.as_mut().ok_or(EPERM)?;
        if tables.state(stag) != StagState::Pending {
            drop(shared);
            drop(record);
            return Err(EFAULT);
        }
        tables.blocks.store(i + 1, entries);
        tables.blocks.store(i, block);
        tables.steering.store(i + 1, end - first - mbva);
        tables.steering.store(i, steering);
        tables.shown.set(stag, shown);
        tables.set_state(stag, StagState::Live);
        *place = Some(record);
        open.end = open.end.max(stag + 1);
        Ok(())
    }

    fn free_stags(self: &Arc<Self>, arg: u64) -> Result {
        let mut a: FreeStags = uapi::get(arg)?;
        if a.num > MAX_FREE {
            return Err(EINVAL);
        }
        let mut state = self.state.lock();
        let open = state.as_deref_mut().ok_or(EPERM)?;
        let count = usize::from(a.num);
        let mut list = KVec::with_capacity(count, GFP_KERNEL)?;
        let user = || UserSlice::new(UserPtr::from_addr(a.stags as usize), count * 4);
        let mut reader = user().reader();
        for _ in 0..count {
            list.push(reader.read::<i32>()?, GFP_KERNEL)?;
        }
        let mut freed = KVec::with_capacity(count, GFP_KERNEL)?;
        let mut result = Ok(());
        for stag in list.iter_mut() {
            let number = *stag as u32;
            if *stag < 0 || number as usize >= open.stags.len() {
                result = Err(EINVAL);
                break;
            }
            let is_live = {
                let shared = self.shared.lock();
                let tables = shared.tables.as_ref();
                tables.is_some_and(|tables| tables.state(number) == StagState::Live)
            };
            if !is_live || freed.contains(&number) {
                result = Err(ENOENT);
                continue;
            }
            freed.push(number, GFP_KERNEL)?;
            *stag = -1;
        }
        self.free(open, &freed)?;
        let mut writer = user().writer();
        for stag in &list {
            writer.write(stag)?;
        }
        a.num = freed.len() as u16;
        uapi::put(arg, &a)?;
        result
    }

    /// Takes STags back with one flush for all.
    fn free(&self, open: &mut Open, stags: &[u32]) -> Result {
        if stags.is_empty() {
            return Ok(());
        }
        {
            let mut shared = self.shared.lock();
            let enabled = shared.enabled;
            if let Some(tables) = shared.tables.as_mut() {
                stags.iter().for_each(|stag| tables.disable(*stag));
            }
            if enabled {
                if let Err(error) = self.device.flush_cq(self.tni, self.cq) {
                    // They stay pinned and taken: the device might still use them.
                    self.stop(&mut shared);
                    return Err(error);
                }
            }
            if let Some(tables) = shared.tables.as_mut() {
                // Nobody else gives them out while `state` is locked.
                stags
                    .iter()
                    .for_each(|stag| tables.set_state(*stag, StagState::Free));
            }
        }
        for stag in stags {
            if let Some(place) = open.stags.get_mut(*stag as usize) {
                *place = None;
            }
        }
        Ok(())
    }

    /// Stops the queue, for good. What it uses may go if this says that the device has let go.
    fn stop(&self, shared: &mut Shared) -> bool {
        shared.enabled = false;
        self.device
            .write(self.register(CqsReg::SteeringTableEnable), 0);
        let stopped = self.device.enable_cq(self.tni, self.cq, false);
        if stopped.is_err() {
            dev_err!(
                self.device.pdev(),
                "tni{}cq{}: does not stop\n",
                self.tni,
                self.cq
            );
        }
        stopped.is_ok()
    }

    /// Memory that the queue uses is unmapped, or its process has gone. When this returns, the
    /// device uses it no more.
    pub(crate) fn unmapped(self: &Arc<Self>, what: What) {
        let mut shared = self.shared.lock();
        match what {
            What::Ring => {
                shared.ring_gone = true;
                if shared.enabled {
                    self.stop(&mut shared);
                }
            }
            What::Stag(stag) => {
                let enabled = shared.enabled;
                let Some(tables) = shared.tables.as_mut() else {
                    return;
                };
                match tables.state(stag) {
                    StagState::Pending => tables.set_state(stag, StagState::Aborted),
                    StagState::Live => {
                        tables.disable(stag);
                        tables.set_state(stag, StagState::Dead);
                        if enabled && self.device.flush_cq(self.tni, self.cq).is_err() {
                            self.stop(&mut shared);
                        }
                        drop(shared);
                        // The notifier cannot be removed here, in its own callback.
                        let _ = workqueue::system_long().enqueue(self.clone());
                    }
                    _ => {}
                }
            }
        }
    }

    /// Gives back what STags held whose memory was unmapped.
    fn bury(&self) {
        let mut state = self.state.lock();
        let Some(open) = state.as_deref_mut() else {
            return;
        };
        for (stag, place) in open.stags.iter_mut().enumerate() {
            let stag = stag as u32;
            let is_dead = {
                let shared = self.shared.lock();
                shared
                    .tables
                    .as_ref()
                    .is_some_and(|t| t.state(stag) == StagState::Dead)
            };
            if place.is_some() && is_dead {
                *place = None;
                if let Some(tables) = self.shared.lock().tables.as_mut() {
                    tables.set_state(stag, StagState::Free);
                }
            }
        }
    }

    /// The file is closed for good.
    pub(crate) fn release(self: &Arc<Self>) {
        let open = self.state.lock().take();
        if let Some(mut open) = open {
            let stopped = {
                let mut shared = self.shared.lock();
                self.device.write(self.register(CqsReg::Imr), u64::MAX);
                let stopped = self.stop(&mut shared);
                self.device
                    .write(self.register(CqsReg::MemoryBlockTableEnable), 0);
                stopped
            };
            open.irq = None;
            if stopped {
                drop(open);
                let tables = self.shared.lock().tables.take();
                drop(tables);
            } else {
                // Better lost than written to by a device that does not obey. The watches go
                // with it: their process may live on.
                core::mem::forget(open);
                core::mem::forget(self.shared.lock().tables.take());
                core::mem::forget(self.clone());
            }
        }
        // SAFETY: the work is part of this object. Nobody starts it anew: the watches are gone.
        unsafe { bindings::flush_work(Work::raw_get(&self.work)) };
        self.device.give_up_cq(self.tni, self.cq);
    }

    /// Shows the translation table to the process.
    ///
    /// # Errors
    ///
    /// `EPERM` before INIT_CQ, `EINVAL` for more than there is.
    pub(crate) fn map_table(&self, vma: *mut bindings::vm_area_struct, len: u64) -> Result {
        // Not while the lock is held: page tables are allocated, which may wait for somebody who
        // unmaps memory, who may wait for the lock.
        let shown = {
            let shared = self.shared.lock();
            shared.tables.as_ref().ok_or(EPERM)?.shown.clone()
        };
        if len > shown.bytes() {
            return Err(EINVAL);
        }
        // SAFETY: the kernel hands us an area that is being set up; the table is user memory of
        // the kernel's, and there as long as we have a reference.
        kernel::error::to_result(unsafe { shim::tofu_shim_map_table(vma, shown.table.cast()) })
    }

    /// Copies a part of a ring (0 TOQ, 1 TCQ, 2 MRQ) to a user's address.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the queue is not set up, `EINVAL` beyond the ring, `EFAULT`.
    pub(crate) fn dump_ring(&self, ring: usize, offset: u64, len: u64, user: u64) -> Result {
        let state = self.state.lock();
        let ring = state
            .as_ref()
            .and_then(|open| open.rings.get(ring))
            .ok_or(ENOENT)?;
        if offset.checked_add(len).ok_or(EINVAL)? > ring.bytes {
            return Err(EINVAL);
        }
        ring.pinned.copy_to(ring.at + offset, len, user)
    }

    /// Copies a part of the steering or memory block table to a user's address.
    ///
    /// # Errors
    ///
    /// As [`Cq::dump_ring`].
    pub(crate) fn dump_table(&self, blocks: bool, offset: u64, len: u64, user: u64) -> Result {
        if (offset | len) % 8 != 0 {
            return Err(EINVAL);
        }
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        let mut out = UserSlice::new(UserPtr::from_addr(user as usize), len as usize).writer();
        for at in (offset..end).step_by(8) {
            let value = {
                let shared = self.shared.lock();
                let tables = shared.tables.as_ref().ok_or(ENOENT)?;
                if end > tables.states.len() as u64 * 16 {
                    return Err(EINVAL);
                }
                let table = if blocks {
                    &tables.blocks
                } else {
                    &tables.steering
                };
                table.load((at / 8) as usize)
            };
            out.write(&value)?;
        }
        Ok(())
    }
}

/// The pages that hold `len` bytes from `addr`: first byte, and the one behind the last.
///
/// # Errors
///
/// `EINVAL` if there are no such addresses.
fn pages_around(addr: u64, len: u64) -> Result<(u64, u64)> {
    let end = addr
        .checked_add(len)
        .and_then(|end| end.checked_add(PAGE - 1))
        .ok_or(EINVAL)?;
    let (start, end) = (addr & !(PAGE - 1), end & !(PAGE - 1));
    if end > i64::MAX as u64 || end - start > MAX_SPAN {
        return Err(EINVAL);
    }
    Ok((start, end))
}
