//! A control queue that two processes share: the owner's side.
//!
//! Each of the two has separate rings, as if it had its own queue. The owner serves these rings in
//! place of the device: it moves orders into the queue, and completions and notices out of it. So
//! the processes share no memory and no lock. If one is killed, in any state, only its own rings
//! are left inconsistent.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use tofu_abi::Rcode;
use tofu_abi::irq::CqsIrqs;
use tofu_abi::queue::MrqEntry;
use tofu_abi::table::PageSize;
use tofu_driver::{
    Access, Arm, Cq, CqConfig, Device, DmaBuffer, Full, MemoryRange, Order, Platform, RingMemory,
    ServedRings, Stag, TimedOut,
};

use crate::driver::{open_error, register_error};
use crate::error::{Code, Error};
use crate::half::Half;

/// Memory that a process has mapped for the device, to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedMemory {
    /// Address of the first byte for the device. Nothing else is mapped in its 64 KiB before it.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    /// The steering tag.
    pub stag: u32,
    /// The required offset of the first byte, which equals the address modulo 256.
    pub offset: u64,
    /// True if it is read-only for peers.
    pub read_only: bool,
}

/// An open control queue that is divided between two processes.
pub trait Divisible {
    /// Entries of the transmit order queue.
    fn orders(&self) -> usize;

    /// Entries of the message receive queue.
    fn notices(&self) -> usize;

    /// Descriptors that can be posted now.
    fn free_slots(&self) -> usize;

    /// Posts a command.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    fn post(&mut self, order: &Order) -> Result<(), Full>;

    /// Starts what was posted.
    fn ring(&mut self);

    /// Returns the result of the next command, in the order of posting.
    fn poll_completion(&mut self) -> Option<Rcode>;

    /// Returns the next notice.
    fn poll_notice(&mut self) -> Option<MrqEntry>;

    /// Registers memory under a steering tag that is not in use.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidAddress`] if the device cannot reach it, [`Code::OutOfMemory`].
    fn register(&mut self, memory: &MappedMemory) -> Result<(), Error>;

    /// Deregisters memory. When this returns, the device no longer uses it.
    ///
    /// # Errors
    ///
    /// [`Code::Fatal`] if the device does not release it.
    fn deregister(&mut self, stag: u32) -> Result<(), Error>;
}

/// A control queue of a device that this process drives, for others.
pub struct OwnedQueue<P: Platform> {
    cq: Cq<P>,
    registered: BTreeMap<u32, Stag>,
}

impl<P: Platform> OwnedQueue<P> {
    /// Opens a queue, and enables its interface. In place of the interrupts of `config`, entries
    /// interrupt if that is requested.
    ///
    /// # Errors
    ///
    /// As [`Provider::open`](crate::Provider::open).
    pub fn open(device: &Device<P>, config: &CqConfig) -> Result<Self, Error> {
        let tni = config.tni;
        let broken = |_| {
            let hint = "the device does not enable the interface";
            Error::with_value(Code::Fatal, "TNI", tni.get().into(), hint)
        };
        device.tni(tni).enable().map_err(broken)?;
        let config = CqConfig { interrupts: CqsIrqs::ACKNOWLEDGES, ..*config };
        let cq = Cq::open(device, &config).map_err(open_error)?;
        Ok(Self { cq, registered: BTreeMap::new() })
    }

    /// Closes it.
    ///
    /// # Errors
    ///
    /// [`TimedOut`] if the device does not release it. Its memory is then never used again.
    pub fn close(self) -> Result<(), TimedOut> {
        self.cq.close()
    }

    /// Returns the driver's queue.
    pub const fn cq(&self) -> &Cq<P> {
        &self.cq
    }
}

impl<P: Platform> Divisible for OwnedQueue<P> {
    fn orders(&self) -> usize {
        self.cq.orders()
    }

    fn notices(&self) -> usize {
        self.cq.notices()
    }

    fn free_slots(&self) -> usize {
        self.cq.free_slots()
    }

    fn post(&mut self, order: &Order) -> Result<(), Full> {
        self.cq.post(order, 0)
    }

    fn ring(&mut self) {
        self.cq.doorbell();
    }

    fn poll_completion(&mut self) -> Option<Rcode> {
        self.cq.poll_tcq().map(|done| done.rcode)
    }

    fn poll_notice(&mut self) -> Option<MrqEntry> {
        self.cq.poll_mrq()
    }

    fn register(&mut self, memory: &MappedMemory) -> Result<(), Error> {
        let &MappedMemory { address, len, stag, offset, read_only } = memory;
        // As the library does for memory that it maps itself.
        let page = match len {
            _ if offset > address & 0xffff => PageSize::Size4K,
            0..=0x1_0000 => PageSize::Size64K,
            _ => PageSize::Size2M,
        };
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        let range = MemoryRange { addr: address, len };
        let taken = self.cq.register_at(range, page, access, stag, offset);
        self.registered.insert(stag, taken.map_err(register_error)?);
        Ok(())
    }

    fn deregister(&mut self, stag: u32) -> Result<(), Error> {
        let Some(taken) = self.registered.remove(&stag) else { return Ok(()) };
        self.cq.unregister(taken).map_err(register_error)
    }
}

/// A process that has half of the queue.
struct Member<D> {
    rings: ServedRings<D>,
    /// The steering tags under which it has registered memory.
    stags: BTreeSet<u32>,
    /// No more of its orders are taken.
    is_stopped: bool,
    /// Notices that were lost because of a full queue.
    lost: u64,
}

/// A command in the queue.
#[derive(Clone, Copy)]
struct Posted {
    half: Half,
    descriptors: usize,
}

/// A control queue that two processes share.
pub struct JointQueue<Q, D> {
    queue: Q,
    members: [Option<Member<D>>; 2],
    /// The commands in the queue, in order of posting.
    posted: VecDeque<Posted>,
    /// The member whose orders are taken first next time.
    first: usize,
}

impl<Q: Divisible, D: DmaBuffer> JointQueue<Q, D> {
    /// Shares an open queue.
    pub const fn new(queue: Q) -> Self {
        Self { queue, members: [None, None], posted: VecDeque::new(), first: 0 }
    }

    /// Returns the queue.
    pub const fn queue(&self) -> &Q {
        &self.queue
    }

    /// Returns the queue, for tests that play its device.
    pub const fn queue_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// Returns whether a half can be given to a process: no other has it, and all commands of the
    /// one that had it have ended.
    pub fn is_free(&self, half: Half) -> bool {
        self.members[half as usize].is_none() && self.is_over(half)
    }

    /// Returns whether none of a half's commands is in the queue.
    pub fn is_over(&self, half: Half) -> bool {
        self.posted.iter().all(|posted| posted.half != half)
    }

    /// Returns whether the queue can be closed, because no process has a part of it, and all
    /// commands have ended.
    pub fn is_unused(&self) -> bool {
        Half::BOTH.iter().all(|half| self.is_free(*half))
    }

    /// Gives the queue back.
    pub fn into_queue(self) -> Q {
        self.queue
    }

    /// Gives a half to a process with rings and a word for requests in this memory, which is blank.
    ///
    /// # Errors
    ///
    /// [`Code::NotAvailable`] unless it [is free](JointQueue::is_free).
    pub fn join(&mut self, half: Half, memory: RingMemory<D>, arm: Arm<D>) -> Result<(), Error> {
        if !self.is_free(half) {
            let hint = "another process has it";
            return Err(Error::new(Code::NotAvailable, "half of a control queue", hint));
        }
        // Notices of commands to the process that had it before are not for this one.
        self.sort_notices();
        let (rings, stags) = (ServedRings::new(memory).with_arm(arm), BTreeSet::new());
        self.members[half as usize] = Some(Member { rings, stags, is_stopped: false, lost: 0 });
        Ok(())
    }

    /// Takes no more orders of a process. Those in the queue end by themselves.
    pub fn stop(&mut self, half: Half) {
        if let Some(member) = &mut self.members[half as usize] {
            member.is_stopped = true;
        }
    }

    /// Takes a half back from a process: deregisters its memory, and discards the results of its
    /// commands. Returns the number of lost notices.
    ///
    /// # Errors
    ///
    /// [`Code::Fatal`] if the device does not release memory.
    pub fn leave(&mut self, half: Half) -> Result<u64, Error> {
        let Some(member) = self.members[half as usize].take() else { return Ok(0) };
        let mut result = Ok(member.lost);
        for stag in member.stags {
            result = result.and_then(|lost| self.queue.deregister(stag).map(|()| lost));
        }
        result
    }

    /// Registers memory of a process.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidStag`] for a steering tag of another process, or one that is in use; see also
    /// [`Divisible::register`].
    pub fn register(&mut self, half: Half, memory: &MappedMemory) -> Result<(), Error> {
        let Some(member) = &mut self.members[half as usize] else { return Err(no_member()) };
        if !half.has_stag(memory.stag) || member.stags.contains(&memory.stag) {
            let hint = "another process's, or in use";
            let stag = memory.stag.into();
            return Err(Error::with_value(Code::InvalidStag, "steering tag", stag, hint));
        }
        self.queue.register(memory)?;
        member.stags.insert(memory.stag);
        Ok(())
    }

    /// Deregisters memory of a process.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidStag`] if it has registered none under this tag; see also
    /// [`Divisible::deregister`].
    pub fn deregister(&mut self, half: Half, stag: u32) -> Result<(), Error> {
        let Some(member) = &mut self.members[half as usize] else { return Err(no_member()) };
        if !member.stags.remove(&stag) {
            let hint = "no memory is registered under it";
            return Err(Error::with_value(Code::InvalidStag, "steering tag", stag.into(), hint));
        }
        self.queue.deregister(stag)
    }

    /// A process has written its register MRQ_FULL_POINTER.
    pub fn acknowledge(&mut self, half: Half, full_pointer: u64) {
        if let Some(member) = &mut self.members[half as usize] {
            member.rings.acknowledge(full_pointer);
        }
    }

    /// Returns whether a process must be woken now, because it has got an entry and has requested
    /// that, and takes the request.
    pub fn must_wake(&mut self, half: Half) -> bool {
        self.members[half as usize].as_mut().is_some_and(|member| member.rings.must_wake())
    }

    /// Moves what there is between the queue and the processes, a queue's worth at most. Returns
    /// whether there was anything.
    pub fn serve(&mut self) -> bool {
        let ended = self.sort_completions();
        let told = self.sort_notices();
        self.take_orders() || ended || told
    }

    /// Moves orders into the queue, in turn one of each process.
    fn take_orders(&mut self) -> bool {
        /// The most descriptors of a command.
        const LONGEST: usize = 2;
        let mut taken = false;
        let mut without = 0;
        while without < self.members.len() && self.queue.free_slots() >= LONGEST {
            let half = Half::BOTH[self.first];
            self.first = (self.first + 1) % self.members.len();
            without += 1;
            let member = self.members[half as usize].as_mut().filter(|member| !member.is_stopped);
            let Some(order) = member.and_then(|member| member.rings.take()) else { continue };
            let descriptors = order.descriptors().len();
            // The owner sleeps until a command ends, whether or not its process waits for that.
            if self.queue.post(&order.interrupt()).is_err() {
                // It has reported room.
                break;
            }
            self.posted.push_back(Posted { half, descriptors });
            (taken, without) = (true, 0);
        }
        if taken {
            self.queue.ring();
        }
        taken
    }

    /// Moves completions to the processes.
    fn sort_completions(&mut self) -> bool {
        let mut any = false;
        for _ in 0..self.queue.orders() {
            let Some(rcode) = self.queue.poll_completion() else { break };
            any = true;
            let Some(Posted { half, descriptors }) = self.posted.pop_front() else { break };
            if let Some(member) = &mut self.members[half as usize] {
                member.rings.complete(descriptors, rcode);
            }
        }
        any
    }

    /// Moves notices to the processes.
    fn sort_notices(&mut self) -> bool {
        let mut any = false;
        for _ in 0..self.queue.notices() {
            let Some(notice) = self.queue.poll_notice() else { break };
            any = true;
            let half = Half::of_notice(&notice);
            let member = half.and_then(|half| self.members[half as usize].as_mut());
            if let Some(member) = member
                && !member.rings.notify(&notice)
            {
                member.lost += 1;
            }
        }
        any
    }
}

const fn no_member() -> Error {
    Error::new(Code::NotAvailable, "half of a control queue", "the process has not opened it")
}
