//! Queues and barrier channels that the kernel driver or `tofud` has set up. The process has their
//! rings and rounds, and sends requests for everything else.

use std::thread;

use tofu_abi::Rcode;
use tofu_abi::desc::Descriptor;
use tofu_abi::irq::BgsIrqs;
use tofu_abi::queue::MrqEntry;
use tofu_abi::reduce::{Input, Op};
use tofu_driver::{DmaBuffer, Full, Order, Outcome, Rings, Rounds, StartError, TimedOut, UserPage};
use tofu_utofu::{Code, DriverBarrier, Error, IdlePolls, Queue, Registration, no_interrupts};
use tofu_vfio::broker::Wake;

/// The rings of a queue, and requests about it.
pub(super) trait OutsideQueue {
    /// The memory of its rings.
    type Memory: DmaBuffer;
    /// Its page of registers.
    type Page: UserPage;
    /// After this many polls that found nothing, check whether it still [works](Self::works).
    const POLLS_WITHOUT_QUESTION: u32;

    fn rings(&self) -> &Rings<Self::Memory, Self::Page>;

    fn rings_mut(&mut self) -> &mut Rings<Self::Memory, Self::Page>;

    /// See [`Queue::register`].
    ///
    /// # Safety
    ///
    /// As for [`Queue::register`].
    unsafe fn register(&mut self, memory: &Registration) -> Result<(), Error>;

    /// Deregisters memory. Returns false if the device does not release it.
    fn deregister(&mut self, stag: u32) -> bool;

    /// Returns false if the device has lost the queue.
    fn works(&self) -> bool;

    /// Returns the means by which this process is woken, if there is one.
    fn wake(&self) -> Option<&Wake> {
        None
    }
}

/// A control queue of this kind.
pub(super) struct RingQueue<Q> {
    queue: Q,
    idle: IdlePolls,
    is_lost: bool,
    /// True if commands go by direct descriptors, which need no doorbell.
    direct: bool,
}

impl<Q: OutsideQueue> RingQueue<Q> {
    pub(super) fn new(queue: Q) -> Self {
        Self { queue, idle: IdlePolls::default(), is_lost: false, direct: false }
    }

    /// A queue whose commands go by direct descriptors when the device is ready for one.
    pub(super) fn with_direct_descriptors(self, direct: bool) -> Self {
        Self { direct, ..self }
    }

    #[inline]
    fn polled<T>(&mut self, found: Option<T>) -> Option<T> {
        let found = self.idle.note(found, thread::yield_now);
        if self.idle.count() % Q::POLLS_WITHOUT_QUESTION == Q::POLLS_WITHOUT_QUESTION - 1 {
            self.is_lost |= !self.queue.works();
        }
        found
    }
}

impl<Q: OutsideQueue> Queue for RingQueue<Q> {
    fn orders(&self) -> usize {
        self.queue.rings().orders()
    }

    fn notices(&self) -> usize {
        self.queue.rings().notices()
    }

    #[inline]
    fn free_slots(&self) -> usize {
        self.queue.rings().free_slots()
    }

    #[inline]
    fn post(&mut self, descriptors: &[Descriptor], delayed: bool) -> Result<(), Full> {
        let order = Order::raw(descriptors);
        let rings = self.queue.rings_mut();
        match (delayed, self.direct) {
            (true, _) => rings.post_delayed(&order, 0),
            (false, true) => rings.post_direct(&order, 0),
            (false, false) => rings.post(&order, 0),
        }
    }

    #[inline]
    fn ring(&mut self) {
        if !self.direct {
            self.queue.rings().doorbell();
        }
    }

    #[inline]
    fn poll_completion(&mut self) -> Option<Rcode> {
        let found = self.queue.rings_mut().poll_tcq().map(|done| done.rcode);
        self.polled(found)
    }

    #[inline]
    fn poll_notice(&mut self) -> Option<MrqEntry> {
        let found = self.queue.rings_mut().poll_mrq();
        self.polled(found)
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn interrupt_fd(&mut self) -> Result<i32, Error> {
        self.queue.wake().map(Wake::fd).ok_or_else(no_interrupts)
    }

    fn ask_interrupt(&mut self) {
        if let Some(wake) = self.queue.wake() {
            wake.ask();
        }
    }

    fn ask_no_more(&mut self) {
        if let Some(wake) = self.queue.wake() {
            wake.ask_no_more();
        }
    }

    fn look(&mut self) {
        self.is_lost |= !self.queue.works();
    }

    unsafe fn register(&mut self, memory: &Registration) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.queue.register(memory) }
    }

    fn deregister(&mut self, stag: u32) -> Result<(), Error> {
        if self.queue.deregister(stag) {
            return Ok(());
        }
        let hint = "the device does not release the memory";
        Err(Error::with_value(Code::Fatal, "steering tag", stag.into(), hint))
    }
}

/// The rounds of a barrier channel, and requests about it.
pub(super) trait OutsideChannel {
    /// The memory of its notices.
    type Memory: DmaBuffer;
    /// Its page of registers.
    type Page: UserPage;

    fn rounds_mut(&mut self) -> &mut Rounds<Self::Memory, Self::Page>;

    /// See [`DriverBarrier::exceptions`].
    fn exceptions(&self) -> Option<BgsIrqs>;
}

/// A barrier channel of this kind.
pub(super) struct OutsideBarrier<C>(pub(super) C);

impl<C: OutsideChannel> DriverBarrier for OutsideBarrier<C> {
    fn start(&mut self, op: Op, input: &Input, count: u8) -> Result<(), StartError> {
        self.0.rounds_mut().start(op, input, count)
    }

    #[inline]
    fn poll(&mut self) -> Option<Outcome> {
        self.0.rounds_mut().poll()
    }

    fn exceptions(&self) -> Option<BgsIrqs> {
        self.0.exceptions()
    }

    fn yield_processor(&self) {
        thread::yield_now();
    }

    fn close(self) -> Result<(), TimedOut> {
        // Its creator keeps the memory until the device releases it.
        Ok(())
    }
}
