// SPDX-License-Identifier: GPL-2.0

//! A queue from its opening to the last close of its file.
//!
//! Two locks. `state` serialises the process's own calls, and may be held while memory is pinned or
//! allocated. `shared` guards the tables that the device reads. It is also taken when memory is
//! unmapped, in a notifier that the kernel calls under locks of the process's memory. So no memory
//! may be allocated or pinned while it is held.

use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::uaccess::{UserPtr, UserSlice};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

use tofu_abi::cq::{CqRings, StagTables};
use tofu_abi::desc::DESC_SIZE;
use tofu_abi::queue::{MRQ_ENTRY_SIZE, TCQ_ENTRY_SIZE};
use tofu_abi::regs::{CqsReg, CACHE_INJECTION};

use crate::device::Device;
use crate::ids::QueueId;
use crate::opener::Opener;
use crate::signal::Signal;
use crate::uapi::{self, InitCq, QueueSizes};

use super::interrupt;
use super::ring::Ring;
use super::stag::Stag;
use super::tables::Tables;

/// The queue after INIT_CQ.
pub(super) struct Open {
    irq: Option<interrupt::Registration>,
    /// TOQ, TCQ, MRQ.
    rings: [Ring; 3],
    pub(super) stags: KVVec<Option<KBox<Stag>>>,
    /// STags from this one on were never allocated.
    pub(super) end: u32,
}

impl Open {
    fn remove_notifiers(&mut self) {
        self.rings.iter_mut().for_each(Ring::remove_notifier);
        let stags = self.stags.iter_mut().flatten();
        stags.for_each(|stag| stag.remove_notifier());
    }
}

/// The data that the lock of the same name guards.
pub(super) struct Shared {
    pub(super) tables: Option<Tables>,
    /// True if the queue is enabled in the device.
    pub(super) enabled: bool,
    /// A ring was unmapped: the queue has stopped permanently.
    pub(super) ring_gone: bool,
    /// The queue was not seen to stop, so that the device may still use its memory.
    pub(super) is_stuck: bool,
}

/// The epoch of a queue that was not set up in the device.
const NO_EPOCH: u64 = u64::MAX;

/// A control queue that is open.
#[pin_data]
pub(crate) struct Cq {
    pub(super) device: Arc<Device>,
    pub(super) id: QueueId,
    uid: u32,
    pub(super) opener: Arc<Opener>,
    signal: Arc<Signal>,
    /// The epoch in which the queue was set up in the device, if it was.
    epoch: Atomic<u64>,
    #[pin]
    pub(super) state: Mutex<Option<KBox<Open>>>,
    #[pin]
    pub(super) shared: Mutex<Shared>,
    #[pin]
    work: Work<Cq>,
}

impl_has_work! {
    impl HasWork<Self> for Cq { self.work }
}

impl WorkItem for Cq {
    type Pointer = Arc<Cq>;

    fn run(this: Arc<Cq>) {
        this.reclaim_unmapped();
    }
}

impl Cq {
    /// Opens a queue for the calling process.
    ///
    /// # Errors
    ///
    /// `EACCES` if the user may not use it.
    pub(crate) fn open(device: &Arc<Device>, id: QueueId) -> Result<Arc<Self>> {
        let uid = crate::users::current();
        let rights = device.users.lock().rights(uid);
        if !rights.allow_queue(id) {
            return Err(EACCES);
        }
        let opener = Arc::new(Opener::current()?, GFP_KERNEL_ACCOUNT)?;
        let signal = Arc::new(Signal::new(&opener), GFP_KERNEL_ACCOUNT)?;
        Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                id,
                uid,
                opener,
                signal,
                epoch: Atomic::new(NO_EPOCH),
                state <- new_mutex!(None),
                shared <- new_mutex!(Shared {
                    tables: None,
                    enabled: false,
                    ring_gone: false,
                    is_stuck: false,
                }),
                work <- new_work!("Cq::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Which queue it is.
    pub(crate) fn id(&self) -> QueueId {
        self.id
    }

    /// Physical address of the queue's user page, if the caller may map it.
    ///
    /// # Errors
    ///
    /// Those of [`Opener::check`].
    pub(crate) fn page_phys(&self) -> Result<u64> {
        self.opener.check()?;
        Ok(self.device.page_phys(self.id.tni, self.id.cq))
    }

    /// The ioctls of a queue's file.
    ///
    /// # Errors
    ///
    /// See docs/src/reference/tof-uapi.md.
    pub(crate) fn ioctl(self: &Arc<Self>, cmd: u32, arg: u64) -> Result {
        self.opener.check()?;
        if self.is_lost() {
            return Err(EIO);
        }
        match cmd {
            uapi::INIT_CQ => self.init(&uapi::get(arg)?),
            uapi::ALLOC_STAG => self.alloc_stag(arg),
            uapi::FREE_STAGS => self.free_stags(arg),
            uapi::SET_RT_SIGNAL => self.signal.set(arg),
            _ => Err(ENOTTY),
        }
    }

    /// Returns true if a reset of the device has ended the queue.
    pub(crate) fn is_lost(&self) -> bool {
        let epoch = self.epoch.load(Relaxed);
        epoch != NO_EPOCH && !self.device.is_in(epoch)
    }

    /// Returns the queue's state: working, or stopped by an error (ours).
    ///
    /// # Errors
    ///
    /// `EPERM` before INIT_CQ; `EIO` if the queue has stopped permanently.
    pub(crate) fn check(&self) -> Result {
        if self.epoch.load(Relaxed) == NO_EPOCH {
            return Err(EPERM);
        }
        if self.shared.lock().enabled {
            Ok(())
        } else {
            Err(EIO)
        }
    }

    /// Handles an imminent reset of the device: stops the queue permanently, and notifies the
    /// process.
    pub(crate) fn lose(&self) {
        let mut shared = self.shared.lock();
        if shared.enabled {
            self.device.write(self.id, CqsReg::Imr, u64::MAX);
            self.stop(&mut shared);
            drop(shared);
            self.signal.tell_lost(self.id.si_int());
        }
    }

    fn init(self: &Arc<Self>, a: &InitCq) -> Result {
        let epoch = self.device.epoch()?;
        let sizes = a.sizes().ok_or(EINVAL)?;
        if a.session_mode == 1 && !self.device.description().session_mode {
            return Err(EOPNOTSUPP);
        }
        let mut state = self.state.lock();
        if state.is_some() {
            return Err(EBUSY);
        }
        // This stays set if the memory was unmapped in the meantime.
        self.shared.lock().ring_gone = false;
        let rings = self.rings(a, &sizes)?;
        let tables = Tables::new(&self.device, &self.opener, sizes.stags)?;
        let stags = no_stags(sizes.stags)?;
        self.configure(a, &sizes, &rings, &tables);
        let irq = interrupt::register(&self.device, self.id, &self.signal)?;
        let open = Open {
            irq,
            rings,
            stags,
            end: 0,
        };
        let open = KBox::new(open, GFP_KERNEL_ACCOUNT)?;
        self.start(tables, epoch)?;
        *state = Some(open);
        dev_dbg!(self.device.pdev(), "{}: opened\n", self.id);
        Ok(())
    }

    /// Pins the rings.
    fn rings(self: &Arc<Self>, a: &InitCq, sizes: &QueueSizes) -> Result<[Ring; 3]> {
        let ring = |addr, entries, entry_size| {
            Ring::new(
                self.clone(),
                &self.device,
                &self.opener,
                addr,
                (entries, entry_size),
            )
        };
        Ok([
            ring(a.toq_mem, sizes.toq, DESC_SIZE)?,
            ring(a.tcq_mem, sizes.toq, TCQ_ENTRY_SIZE)?,
            ring(a.mrq_mem, sizes.mrq, MRQ_ENTRY_SIZE)?,
        ])
    }

    /// Writes all registers of the queue, which stays disabled.
    fn configure(&self, a: &InitCq, sizes: &QueueSizes, rings: &[Ring; 3], tables: &Tables) {
        let rights = self.device.users.lock().rights(self.uid);
        let mode = rights.subnet.with_session(a.session_mode == 1);
        let injection = |wanted: u8| if wanted == 1 { CACHE_INJECTION } else { 0 };
        let [toq, tcq, mrq] = rings;
        let rings = CqRings {
            toq: toq.addr(),
            toq_size: a.toq_size,
            tcq: tcq.addr() | injection(a.tcq_cinj),
            mrq: mrq.addr() | injection(a.mrq_cinj),
            mrq_size: a.mrq_size,
            mrq_mask: 0,
            tcq_coalescing_ns: 0,
            mrq_coalescing_ns: 0,
        };
        let tables = StagTables {
            blocks: tables.blocks().addr(),
            block_count: sizes.stags,
            steering: tables.steering().addr(),
            stags: sizes.stags,
        };
        let settings = [
            (CqsReg::Mode, mode.0),
            (CqsReg::Gpid, rights.group.gpid()),
            // Acknowledgement interrupts are for sleeping waiters; processes poll.
            (CqsReg::MrqInterruptMask, u64::MAX),
            (CqsReg::Imr, u64::MAX),
            (CqsReg::Irc, u64::MAX),
        ];
        self.device.write_all(self.id, &settings);
        self.device.write_all(self.id, &rings.registers());
        self.device.write_all(self.id, &tables.registers());
    }

    /// Enables the queue, which was set up in the device in that epoch.
    fn start(&self, tables: Tables, epoch: u64) -> Result {
        let mut shared = self.shared.lock();
        // A reset first ends the epoch, and then takes this lock.
        if !self.device.is_in(epoch) {
            return Err(EIO);
        }
        if shared.ring_gone {
            return Err(EFAULT);
        }
        if let Err(error) = self.device.enable_cq(self.id, true) {
            let _ = self.device.enable_cq(self.id, false);
            return Err(error);
        }
        shared.tables = Some(tables);
        shared.enabled = true;
        self.epoch.store(epoch, Relaxed);
        Ok(())
    }

    /// Stops the queue permanently. Returns true if the device no longer uses its memory, which may
    /// then be freed.
    pub(super) fn stop(&self, shared: &mut Shared) -> bool {
        shared.enabled = false;
        self.device.write(self.id, CqsReg::SteeringTableEnable, 0);
        let stopped = self.device.enable_cq(self.id, false);
        if stopped.is_err() {
            let why = self.device.why_not_stopped();
            dev_err!(self.device.pdev(), "{}: {}\n", self.id, why);
        }
        shared.is_stuck |= stopped.is_err();
        stopped.is_ok()
    }

    /// As [`Cq::stop`], before the file is closed.
    fn stop_for_good(&self) -> bool {
        {
            let mut shared = self.shared.lock();
            if !self.is_lost() {
                self.device.write(self.id, CqsReg::Imr, u64::MAX);
                let stopped = self.stop(&mut shared);
                self.device
                    .write(self.id, CqsReg::MemoryBlockTableEnable, 0);
                return stopped;
            }
        }
        // A reset ends all activity of the device. Its preparation may need the lock.
        self.device.wait_for_reset().is_ok()
    }

    /// Handles the last close of the file. Returns false if the device was not seen to stop: the
    /// queue then has the memory that the device may still write to until it is dropped.
    pub(crate) fn release(&self) -> bool {
        let mut open = self.state.lock().take();
        let mut stopped = true;
        if let Some(open) = &mut open {
            stopped = self.stop_for_good();
            open.irq = None;
            // Their process may live on, longer than this module. They refer to this queue.
            open.remove_notifiers();
        }
        // SAFETY: the work is part of this object. Nothing schedules it again, because the
        // notifiers are gone.
        unsafe { bindings::flush_work(Work::raw_get(&self.work)) };
        if stopped {
            drop(open);
            let tables = self.shared.lock().tables.take();
            drop(tables);
        } else {
            *self.state.lock() = open;
        }
        stopped
    }

    /// Maps the translation table into the process.
    ///
    /// # Errors
    ///
    /// `EPERM` before INIT_CQ, `EINVAL` beyond the end of the table.
    ///
    /// # Safety
    ///
    /// `vma` must be an area of `len` bytes that the kernel is setting up.
    pub(crate) unsafe fn map_table(&self, vma: *mut bindings::vm_area_struct, len: u64) -> Result {
        self.opener.check()?;
        // The lock is not held here. Mapping allocates page tables, which may wait for a thread
        // that unmaps memory, and that thread may wait for the lock.
        let table = {
            let shared = self.shared.lock();
            shared.tables.as_ref().ok_or(EPERM)?.user().clone()
        };
        // SAFETY: the area is being set up and has `len` bytes, by this function's contract.
        unsafe { table.map(vma, len) }
    }

    /// Copies a part of a ring (0 TOQ, 1 TCQ, 2 MRQ) to a user's address.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the queue is not set up, `EINVAL` beyond the ring, `EFAULT`.
    pub(crate) fn dump_ring(&self, ring: usize, offset: u64, len: u64, user: u64) -> Result {
        let state = self.state.lock();
        let ring = state.as_ref().and_then(|open| open.rings.get(ring));
        ring.ok_or(ENOENT)?.copy_to(offset, len, user)
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
                let table = match blocks {
                    true => tables.blocks(),
                    false => tables.steering(),
                };
                if end > table.size() {
                    return Err(EINVAL);
                }
                table.load((at / 8) as usize)
            };
            out.write(&value)?;
        }
        Ok(())
    }
}

/// Empty places for this number of STags.
fn no_stags(count: u32) -> Result<KVVec<Option<KBox<Stag>>>> {
    let mut stags = KVVec::with_capacity(count as usize, GFP_KERNEL_ACCOUNT)?;
    for _ in 0..count {
        stags.push(None, GFP_KERNEL_ACCOUNT)?;
    }
    Ok(stags)
}
