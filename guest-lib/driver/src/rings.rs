//! The hot path of a control queue: rings in memory and a page of registers. Posting commands and
//! reaping completions and notices needs no other register.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::Ordering;

use thiserror::Error;
use tofu_abi::Rcode;
use tofu_abi::desc::{DESC_SIZE, Descriptor, Header1, source_type};
use tofu_abi::queue::{MRQ_ENTRY_SIZE, MrqEntry, MrqWord0, RingIndex, TCQ_ENTRY_SIZE, TcqEntry};
use tofu_abi::regs::CqReg;
use tofu_abi::table::TABLE_ALIGN;

use crate::order::Order;
use crate::platform::{DmaBuffer, DmaError, UserPage};

/// The transmit order queue has no room for the descriptors until more completions are reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("transmit order queue full")]
pub struct Full;

/// A completed command, from its transmit complete queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The cookie that the command was posted with.
    pub cookie: u64,
    /// The result, see [`Rcode`](tofu_abi::Rcode).
    pub rcode: Rcode,
    /// The entry's length field: size of the message, in bytes.
    pub length: u32,
}

impl Completion {
    /// Returns true if the command succeeded.
    pub const fn is_success(&self) -> bool {
        self.rcode.is_success()
    }
}

/// An entry of the message receive queue.
pub type Notice = MrqEntry;

/// The driver's state of a transmit order queue slot.
#[derive(Clone, Copy, Debug)]
struct Slot {
    cookie: u64,
    /// True if the completion of the command belongs to a later slot.
    silent: bool,
}

/// Memory of the three rings.
#[derive(Debug)]
pub struct RingMemory<D> {
    toq: D,
    tcq: D,
    mrq: D,
    orders: u32,
    notices: u32,
}

impl<D: DmaBuffer> RingMemory<D> {
    /// Rings of `orders` and `notices` entries (see [`tofu_abi::queue::queue_entries`]), all blank.
    /// `alloc` gets a size and an alignment in bytes, as [`crate::Platform::alloc_dma`] does.
    ///
    /// # Errors
    ///
    /// The errors of `alloc`.
    pub fn new(
        orders: u32,
        notices: u32,
        alloc: impl Fn(usize, usize) -> Result<D, DmaError>,
    ) -> Result<Self, DmaError> {
        let [toq, tcq, mrq] = Self::sizes(orders, notices);
        let ring = |size| alloc(size, TABLE_ALIGN as usize);
        Ok(Self::of([ring(toq)?, ring(tcq)?, ring(mrq)?], orders, notices))
    }

    /// Sizes of the rings in bytes: transmit orders, transmit completions, notices.
    pub const fn sizes(orders: u32, notices: u32) -> [usize; 3] {
        let (orders, notices) = (orders as usize, notices as usize);
        [orders * DESC_SIZE, orders * TCQ_ENTRY_SIZE, notices * MRQ_ENTRY_SIZE]
    }

    /// Rings in existing, zeroed memory of these [`sizes`](Self::sizes).
    pub fn of([toq, tcq, mrq]: [D; 3], orders: u32, notices: u32) -> Self {
        Self { toq, tcq, mrq, orders, notices }
    }

    /// Entries of the transmit queues.
    pub(crate) const fn orders(&self) -> u32 {
        self.orders
    }

    /// Entries of the message receive queue.
    pub(crate) const fn notices(&self) -> u32 {
        self.notices
    }

    pub(crate) const fn toq(&self) -> &D {
        &self.toq
    }

    pub(crate) const fn tcq(&self) -> &D {
        &self.tcq
    }

    pub(crate) const fn mrq(&self) -> &D {
        &self.mrq
    }

    /// Device address of the transmit order queue.
    pub fn toq_addr(&self) -> u64 {
        self.toq.device_addr()
    }

    /// Device address of the transmit complete queue.
    pub fn tcq_addr(&self) -> u64 {
        self.tcq.device_addr()
    }

    /// Device address of the message receive queue.
    pub fn mrq_addr(&self) -> u64 {
        self.mrq.device_addr()
    }
}

/// The rings of an enabled control queue, and its page.
///
/// On drop, the page is dropped before the memory. A page that stops its queue then ensures that
/// the device does not write to the freed memory.
#[derive(Debug)]
pub struct Rings<D, G> {
    page: G,
    memory: Arc<RingMemory<D>>,
    /// Position of the next transmit order to write.
    post: RingIndex,
    /// Position of the next transmit completion to read.
    reap: RingIndex,
    slots: Vec<Slot>,
    /// [`RingIndex::count`] just after the last direct descriptor.
    direct_end: u64,
    /// Count and header of the first order that is still hidden from the device.
    held: Option<(u64, Header1)>,
    /// Position of the next notice to read.
    receive: RingIndex,
    /// Number of consumed notices that the device knows about.
    full_pointer: u64,
}

impl<D: DmaBuffer, G: UserPage> Rings<D, G> {
    /// Rings of the queue with this page, in the memory just given to the device.
    pub fn new(memory: RingMemory<D>, page: G) -> Self {
        let (post, receive) = (RingIndex::new(memory.orders), RingIndex::new(memory.notices));
        Self {
            page,
            slots: vec![Slot { cookie: 0, silent: false }; memory.orders as usize],
            memory: Arc::new(memory),
            post,
            reap: post,
            direct_end: 0,
            held: None,
            receive,
            full_pointer: 0,
        }
    }

    /// The queue's page.
    pub const fn page(&self) -> &G {
        &self.page
    }

    /// The memory of the rings.
    pub(crate) fn memory(&self) -> &RingMemory<D> {
        &self.memory
    }

    /// Keeps the memory from ever being freed, for a device that may still use it.
    pub(crate) fn leak(&self) {
        mem::forget(Arc::clone(&self.memory));
    }

    /// Number of entries of the transmit order queue.
    pub fn orders(&self) -> usize {
        self.slots.len()
    }

    /// Number of entries of the message receive queue.
    pub fn notices(&self) -> usize {
        self.receive.entries() as usize
    }

    /// Number of descriptors that can be posted now.
    pub fn free_slots(&self) -> usize {
        self.slots.len() - (self.post.count() - self.reap.count()) as usize
    }

    /// Puts a command into the transmit order queue. The device notices it at the next
    /// [`Rings::doorbell`] at the latest.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    pub fn post(&mut self, order: &Order, cookie: u64) -> Result<(), Full> {
        let descriptors = order.descriptors();
        let first = self.claim(descriptors.len(), cookie)?;
        // In reverse order, so that the device finds either nothing or the whole command.
        for (i, descriptor) in descriptors.iter().enumerate().rev() {
            self.write_order(first + i as u64, *descriptor);
        }
        self.release();
        Ok(())
    }

    /// Puts a command into the transmit order queue, but hides it from the device until a command
    /// is posted in another way. Several commands can be posted like this; a doorbell alone does
    /// not start them.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    pub fn post_delayed(&mut self, order: &Order, cookie: u64) -> Result<(), Full> {
        let descriptors = order.descriptors();
        let first = self.claim(descriptors.len(), cookie)?;
        for (i, descriptor) in descriptors.iter().enumerate().rev() {
            let count = first + i as u64;
            if i == 0 && self.held.is_none() {
                // The device stops at this entry while it is blank.
                self.write_operands(count, descriptor);
                self.held = Some((count, descriptor.header1()));
            } else {
                self.write_order(count, *descriptor);
            }
        }
        Ok(())
    }

    /// Reveals the orders hidden by [`Rings::post_delayed`] to the device.
    fn release(&mut self) {
        if let Some((count, header)) = self.held.take() {
            self.write_header(count, header);
        }
    }

    /// Notifies the device of commands. One doorbell is enough for any number of them.
    pub fn doorbell(&self) {
        self.page.write(CqReg::FetchStart.offset(), 1);
    }

    /// [`Rings::post`] and [`Rings::doorbell`].
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    pub fn post_and_ring(&mut self, order: &Order, cookie: u64) -> Result<(), Full> {
        self.post(order, cookie)?;
        self.doorbell();
        Ok(())
    }

    /// Passes a command to the device through the direct descriptor register, so that the device
    /// need not read the queue. Commands posted before go first.
    ///
    /// While the last direct descriptor is not complete, the command is put into the queue instead,
    /// and the doorbell is rung.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    pub fn post_direct(&mut self, order: &Order, cookie: u64) -> Result<(), Full> {
        if !self.is_complete(self.direct_end) {
            return self.post_and_ring(order, cookie);
        }
        let descriptors = order.descriptors();
        let n = descriptors.len();
        let first = self.claim(n, cookie)?;
        self.release();
        self.direct_end = self.post.count();
        let direct = |h: Header1| h.with_source_type(source_type::DIRECT);
        // Entries in the queue keep the command's place in the order, and its completion entry.
        for i in (0..n as u64).rev() {
            self.write_order(first + i, Descriptor([direct(Header1(0)).0, 0, 0, 0]));
        }
        let mut words = [0; 8];
        for (i, descriptor) in descriptors.iter().enumerate() {
            let [header, rest @ ..] = descriptor.0;
            let header = direct(Header1(header)).with_flip(self.flip(first + i as u64));
            words[i * 4] = header.0;
            words[i * 4 + 1..i * 4 + 4].copy_from_slice(&rest);
        }
        // The first qword is written last, because it gives their number.
        for i in (0..n * 4).rev() {
            self.page.write(CqReg::DirectDescriptor0.offset() + i as u64 * 8, words[i]);
        }
        Ok(())
    }

    /// Takes `n` slots for one command and returns the count of the first one.
    fn claim(&mut self, n: usize, cookie: u64) -> Result<u64, Full> {
        if self.free_slots() < n {
            return Err(Full);
        }
        let first = self.post.count();
        for i in 0..n {
            self.slots[self.post.slot() as usize] = Slot { cookie, silent: i + 1 < n };
            self.post.advance();
        }
        Ok(first)
    }

    fn slot(&self, count: u64) -> usize {
        (count & (u64::from(self.post.entries()) - 1)) as usize
    }

    /// Flip bit of a valid entry, see [`RingIndex::flip`].
    fn flip(&self, count: u64) -> bool {
        count & u64::from(self.post.entries()) == 0
    }

    /// Writes the descriptor into its slot and makes it valid.
    fn write_order(&self, count: u64, descriptor: Descriptor) {
        self.write_operands(count, &descriptor);
        // The first word still has the flip bit of the last lap, so the entry is blank until here.
        // One store publishes the command and its flip bit, after the other words.
        self.write_header(count, descriptor.header1());
    }

    fn write_operands(&self, count: u64, descriptor: &Descriptor) {
        let at = self.slot(count) * DESC_SIZE;
        let [_, a, b, c] = descriptor.0;
        self.memory.toq.store_words(at + 8, [a, b, c], Ordering::Relaxed);
    }

    fn write_header(&self, count: u64, header: Header1) {
        let header = header.with_flip(self.flip(count));
        self.memory.toq.store_u64(self.slot(count) * DESC_SIZE, header.0, Ordering::Release);
    }

    /// Returns true if all commands before `count` are complete, reaped or not.
    fn is_complete(&self, count: u64) -> bool {
        if self.reap.count() >= count {
            return true;
        }
        let entry = self.load_tcq(count - 1);
        entry.flip() == self.flip(count - 1)
    }

    fn load_tcq(&self, count: u64) -> TcqEntry {
        TcqEntry(self.memory.tcq.load_u64(self.slot(count) * TCQ_ENTRY_SIZE, Ordering::Acquire))
    }

    fn tcq_ready(&self) -> bool {
        (self.reap.count()..self.post.count())
            .take_while(|n| self.load_tcq(*n).flip() == self.flip(*n))
            .any(|n| !self.slots[self.slot(n)].silent)
    }

    /// Reaps the next completion, in the order of posting.
    ///
    /// A command of two descriptors has one completion.
    pub fn poll_tcq(&mut self) -> Option<Completion> {
        while self.reap.count() < self.post.count() {
            let entry = self.load_tcq(self.reap.count());
            if entry.flip() != self.reap.flip() {
                return None;
            }
            let slot = self.slots[self.reap.slot() as usize];
            self.reap.advance();
            if !slot.silent {
                let cookie = slot.cookie;
                return Some(Completion { cookie, rcode: entry.rcode(), length: entry.length() });
            }
        }
        None
    }

    fn load_mrq(&self) -> Option<MrqWord0> {
        let at = self.receive.slot() as usize * MRQ_ENTRY_SIZE;
        let word = MrqWord0(self.memory.mrq.load_u64(at, Ordering::Acquire));
        (word.flip() == self.receive.flip()).then_some(word)
    }

    /// Takes the next notice from the message receive queue.
    pub fn poll_mrq(&mut self) -> Option<Notice> {
        let word0 = self.load_mrq()?;
        let at = self.receive.slot() as usize * MRQ_ENTRY_SIZE;
        let [a, b, c] = self.memory.mrq.load_words(at + 8, Ordering::Relaxed);
        let notice = MrqEntry([word0.0, a, b, c]);
        self.receive.advance();
        // A register write for every notice would cost more than the notice.
        if self.receive.count() - self.full_pointer >= u64::from(self.receive.entries()) / 4 {
            self.acknowledge_mrq();
        }
        Some(notice)
    }

    /// Reports the number of taken notices to the device. [`Rings::poll_mrq`] does so after each
    /// quarter of the queue.
    pub fn acknowledge_mrq(&mut self) {
        self.full_pointer = self.receive.count();
        self.page.write(CqReg::MrqFullPointer.offset(), self.full_pointer);
    }

    /// Returns true if [`Rings::poll_tcq`] or [`Rings::poll_mrq`] would return an entry.
    pub fn is_ready(&self) -> bool {
        self.tcq_ready() || self.load_mrq().is_some()
    }
}
