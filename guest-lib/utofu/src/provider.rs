//! The interface to the device that the library needs.

use alloc::boxed::Box;

use tofu_abi::Generation;
use tofu_abi::desc::Descriptor;
use tofu_abi::queue::MrqEntry;
use tofu_abi::reduce::{Input, Op, Value};
use tofu_abi::{BchId, Coords, CqId, Rcode, TniId};
use tofu_driver::Full;

use crate::error::{Code, Error};
use crate::gates::VbgSetting;

/// The error of a queue without interrupts.
pub const fn no_interrupts() -> Error {
    let hint = "a process that reaches its device in this way has no interrupts: poll";
    Error::new(Code::NotSupported, "waiting for a control queue", hint)
}

/// A control queue to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenQueue {
    /// Network interface.
    pub tni: TniId,
    /// Control queue; the kernel's is not allowed.
    pub cq: CqId,
    /// Number of steering tags.
    pub stags: u32,
    /// True if commands start as the session advances.
    pub session: bool,
}

/// Gives a process control queues of its node's device.
pub trait Provider {
    /// A control queue.
    type Queue: Queue;
    /// A barrier channel.
    type Channel: Channel;

    /// Returns the coordinates of the node.
    fn coords(&self) -> Coords;

    /// Opens a control queue, and enables its interface.
    ///
    /// # Errors
    ///
    /// [`Code::NotAvailable`] if another process has it, [`Code::OutOfResource`] or
    /// [`Code::OutOfMemory`] if resources are exhausted, [`Code::Fatal`] if the device does not
    /// answer.
    fn open(&self, queue: &OpenQueue) -> Result<Self::Queue, Error>;

    /// Returns the device's generation, which is Fugaku's by default.
    fn generation(&self) -> Generation {
        Generation::Fugaku
    }

    /// Takes a start and end gate and `relays` relay gates of an interface. Returns them as a mask,
    /// or `None` if too few are left.
    ///
    /// # Errors
    ///
    /// [`Code::OutOfResource`] if there is no broker.
    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error>;

    /// Returns gates that no longer belong to a channel.
    fn give_gates(&self, tni: TniId, gates: u64);

    /// Links gates, enables their interfaces, and opens the channel `bch` of `tni`, whose gate is
    /// the start and end gate.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidArg`] for a start and end gate without input, and links by which a gate would
    /// wait for itself; [`Code::Used`] if the device uses a gate already; [`Code::OutOfMemory`],
    /// [`Code::OutOfResource`], and [`Code::Fatal`] if the device does not answer.
    fn open_channel(
        &self,
        tni: TniId,
        bch: BchId,
        gates: &[VbgSetting],
    ) -> Result<Self::Channel, Error>;

    /// Called while a thread waits for the device.
    fn relax(&self) {
        core::hint::spin_loop();
    }
}

/// An open barrier channel.
///
/// Dropping it closes it.
pub trait Channel {
    /// Starts a round.
    ///
    /// # Errors
    ///
    /// [`Code::Busy`] while one is in progress; [`Code::BarrierOther`] if a gate is in error.
    fn start(&mut self, op: Op, input: &Input, count: u8) -> Result<(), Error>;

    /// Returns the result of the round, if it is complete.
    ///
    /// # Errors
    ///
    /// [`Code::BarrierMismatch`] if the members did not start the same operation;
    /// [`Code::BarrierOther`] if a gate is in error.
    fn poll(&mut self) -> Result<Option<Value>, Error>;

    /// Closes the channel.
    ///
    /// # Errors
    ///
    /// [`Code::Fatal`] if the device does not release its gates.
    fn close(self: Box<Self>) -> Result<(), Error>;
}

impl<C: Channel + ?Sized> Channel for Box<C> {
    fn start(&mut self, op: Op, input: &Input, count: u8) -> Result<(), Error> {
        (**self).start(op, input, count)
    }

    fn poll(&mut self) -> Result<Option<Value>, Error> {
        (**self).poll()
    }

    fn close(self: Box<Self>) -> Result<(), Error> {
        (*self).close()
    }
}

/// Memory to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Address in the process.
    pub addr: usize,
    /// Length in bytes, not 0.
    pub len: usize,
    /// The steering tag, which is not in use.
    pub stag: u32,
    /// The required offset of the first byte, which equals the address modulo 256.
    pub offset: u64,
    /// True if it is read-only for peers.
    pub read_only: bool,
}

/// An open control queue.
///
/// Dropping it closes it. Memory that it has registered is not used afterwards.
pub trait Queue {
    /// Returns the number of entries in the transmit order queue.
    fn orders(&self) -> usize;

    /// Returns the number of entries in the message receive queue.
    fn notices(&self) -> usize;

    /// Returns how many descriptors can be posted now.
    fn free_slots(&self) -> usize;

    /// Posts one command of one or two descriptors. A `delayed` command waits for the next one that
    /// is not delayed.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    fn post(&mut self, descriptors: &[Descriptor], delayed: bool) -> Result<(), Full>;

    /// Starts the posted commands.
    fn ring(&mut self);

    /// Returns the result code of the next command, in the order of posting.
    fn poll_completion(&mut self) -> Option<Rcode>;

    /// Returns the next notice.
    fn poll_notice(&mut self) -> Option<MrqEntry>;

    /// Returns true if the device has lost the queue, by a reset. Polls that find nothing find that
    /// out after a while.
    fn is_lost(&self) -> bool;

    /// Enables interrupts, each of which [`Queue::ask_interrupt`] must request. Returns the
    /// descriptor that becomes readable with each. It stays open as long as the provider.
    ///
    /// # Errors
    ///
    /// [`Code::NotSupported`] if the queue has no interrupts, as by default; [`Code::OutOfMemory`].
    fn interrupt_fd(&mut self) -> Result<i32, Error> {
        Err(no_interrupts())
    }

    /// Clears an interrupt that has come, and requests one for the next requested completion, or
    /// the next notice of another process's command. The caller must poll afterwards, because
    /// earlier entries do not interrupt any more.
    fn ask_interrupt(&mut self) {}

    /// Withdraws that.
    fn ask_no_more(&mut self) {}

    /// Checks whether the device has lost the queue, see [`Queue::is_lost`].
    fn look(&mut self) {}

    /// Lets the device access memory.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidAddress`] for memory that cannot be accessed, [`Code::OutOfResource`] or
    /// [`Code::OutOfMemory`] if resources are exhausted.
    ///
    /// # Safety
    ///
    /// Until [`Queue::deregister`] or the end of the queue, the memory stays mapped, and the
    /// process treats it as memory that others may change at any time.
    #[allow(unsafe_code)]
    unsafe fn register(&mut self, memory: &Registration) -> Result<(), Error>;

    /// Deregisters memory. When it returns, the device no longer uses it.
    ///
    /// # Errors
    ///
    /// [`Code::Fatal`] if the device does not release it.
    fn deregister(&mut self, stag: u32) -> Result<(), Error>;
}

impl<Q: Queue + ?Sized> Queue for Box<Q> {
    fn orders(&self) -> usize {
        (**self).orders()
    }

    fn notices(&self) -> usize {
        (**self).notices()
    }

    fn free_slots(&self) -> usize {
        (**self).free_slots()
    }

    fn post(&mut self, descriptors: &[Descriptor], delayed: bool) -> Result<(), Full> {
        (**self).post(descriptors, delayed)
    }

    fn ring(&mut self) {
        (**self).ring();
    }

    fn poll_completion(&mut self) -> Option<Rcode> {
        (**self).poll_completion()
    }

    fn poll_notice(&mut self) -> Option<MrqEntry> {
        (**self).poll_notice()
    }

    fn is_lost(&self) -> bool {
        (**self).is_lost()
    }

    fn interrupt_fd(&mut self) -> Result<i32, Error> {
        (**self).interrupt_fd()
    }

    fn ask_interrupt(&mut self) {
        (**self).ask_interrupt();
    }

    fn ask_no_more(&mut self) {
        (**self).ask_no_more();
    }

    fn look(&mut self) {
        (**self).look();
    }

    #[allow(unsafe_code)]
    unsafe fn register(&mut self, memory: &Registration) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        unsafe { (**self).register(memory) }
    }

    fn deregister(&mut self, stag: u32) -> Result<(), Error> {
        (**self).deregister(stag)
    }
}
