//! Driver and library for the network processor of the torus network TNW.
//!
//! The terms are the paper's (Pivanti, Schifano and Simma, *An FPGA-based Torus Communication
//! Network*, 2010, section 3). A message is sent to a neighbour: [`Stream::send`] stores it to the
//! device, [`Stream::send_from`] has the device fetch it. Its receiver has posted a credit for it
//! ([`Stream::credit`]), and both test or wait for the end ([`Stream::test`], [`Stream::wait`]).
//! Sends and credits of a link and channel match strictly in order.
//!
//! The library uses the [`Platform`] of the ICC's driver; [`Windows`] adds the access to injection
//! windows. Between messages no register is read, and a send by stores writes none.
//!
//! ```
//! use tofu_driver::{DmaBuffer, Platform};
//! use tofu_inproc::nwp_pair;
//! use tofu_tnw::{Channel, Link, Outcome, Status};
//!
//! const SECOND: u64 = 1_000_000_000;
//! // Two nodes of this process, neighbours on X.
//! let [left, right] = nwp_pair(1 << 20)?;
//! let mut out = left.open(Link::ALL[1], Channel::ALL[0])?;
//! let mut inward = right.open(Link::ALL[0], Channel::ALL[0])?;
//!
//! // Where the next message goes.
//! let sink = right.platform().alloc_dma(4096, 64)?;
//! let credit = inward.credit(&sink, 0, 20)?;
//! // By stores, which are in the device when this returns.
//! out.send(b"twenty bytes of text", SECOND)?;
//! let end = inward.wait(credit, SECOND).expect("it comes");
//! assert_eq!(end, Outcome { status: Status::Ok, length: 20 });
//! let mut text = [0; 20];
//! sink.read(0, &mut text);
//! assert_eq!(&text, b"twenty bytes of text");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use thiserror::Error;
use tofu_abi::Coords;
use tofu_abi::pci::DEVICE_TNW;
use tofu_abi::tnw::{
    self, Cancel, ChannelReg, Control, Features, LinkReg, LinkStatus, MAX_MESSAGE, Mark, Mode,
    Notification, NwpReg, PACKET_DATA, Register, Start, WINDOW_RING, WindowPlace,
};
use tofu_driver::{DmaBuffer, DmaError, IrqError, Platform};

pub use tofu_abi::tnw::{Channel, Link, LinkCounters, Status};

/// Bytes of a store to a window: a buffer in which processors combine writes.
pub const STORE: usize = tnw::MAX_STORE;
/// Notification words of a stream: for all credits and Ngets that the device takes.
const WORDS: usize = tnw::CREDIT_QUEUE + tnw::NGET_QUEUE;
/// The time for which a stream sleeps at most: another one of its link may have taken its
/// interrupt.
const LONGEST_SLEEP_NS: u64 = 1_000_000;
const PACKET: u64 = PACKET_DATA as u64;

/// Stores to a device's injection windows.
pub trait Windows {
    /// Stores at `offset` of the BAR of windows, a multiple of [`STORE`]. The bytes may arrive in
    /// pieces and later than stores that come after, but before a register that is written after.
    fn store(&self, offset: u64, data: &[u8; STORE]);

    /// Returns true if windows can be memory here that the device polls: if so, the methods below
    /// do what they say.
    fn can_share(&self) -> bool {
        false
    }

    /// Stores a word at `offset`, a multiple of 8, in one access. A reader that sees it also sees
    /// all earlier stores.
    fn publish(&self, _offset: u64, _word: u64) {}

    /// Loads a word at `offset`, a multiple of 8, in one access that comes after all stores before,
    /// for others, too.
    fn load_after_stores(&self, _offset: u64) -> u64 {
        0
    }
}

/// The device is not there or not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProbeError {
    /// It says that it is something else.
    #[error("this is no network processor of TNW: ID reads {0:#x}")]
    NotTnw(u64),
}

/// The reason why a channel cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// Nothing is at the other end of the link.
    #[error("no node is at the other end of the link")]
    NoLink,
    /// No memory for its notification words.
    #[error(transparent)]
    Memory(#[from] DmaError),
}

/// The reason why a credit or an Nget was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// As many wait as the device takes.
    #[error("too many requests are waiting")]
    Full,
    /// The length is 0 or more than 8 MiB, or not all of it is in the buffer.
    #[error("{len} bytes at {at} of a buffer of {buffer}: 1 to 8 MiB inside of it can be moved")]
    Range {
        /// The requested offset.
        at: usize,
        /// The requested bytes.
        len: usize,
        /// Length of the buffer.
        buffer: usize,
    },
}

/// The reason why a send did not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// The message has no bytes, or more than 8 MiB.
    #[error("a message of {0} bytes: 1 to 8 MiB can be sent")]
    Length(usize),
    /// The neighbour took no more. The message continues with what is sent next.
    #[error("the neighbour took no more than {0} bytes")]
    Stalled(usize),
}

/// A node's network processor.
#[derive(Debug)]
pub struct Nwp<P> {
    platform: P,
    present: u64,
    features: Features,
    coords: Coords,
    shape: [u8; 3],
}

impl<P: Platform> Nwp<P> {
    /// Resets the device, enables it, and finds out which node this is.
    ///
    /// # Errors
    ///
    /// [`ProbeError`] if it is another device.
    pub fn probe(platform: P) -> Result<Self, ProbeError> {
        let nwp = Self::attach(platform)?;
        let control = Control(0).with_reset(true).with_enable(true);
        nwp.write(Register::Nwp(NwpReg::Control), control.0);
        Ok(nwp)
    }

    /// Finds out which node this is, and leaves the device as another process has set it up.
    ///
    /// # Errors
    ///
    /// As [`Nwp::probe`].
    pub fn attach(platform: P) -> Result<Self, ProbeError> {
        let read = |reg| platform.bar0_read64(Register::Nwp(reg).offset());
        let id = read(NwpReg::Id);
        if id as u16 != DEVICE_TNW {
            return Err(ProbeError::NotTnw(id));
        }
        let place = read(NwpReg::Coordinates).to_le_bytes();
        let shape = read(NwpReg::Shape).to_le_bytes();
        Ok(Self {
            present: read(NwpReg::Present),
            features: Features(read(NwpReg::Features)),
            coords: Coords::new(place[0], place[1], place[2], 0, 0, 0),
            shape: [shape[0], shape[1], shape[2]],
            platform,
        })
    }

    /// The platform.
    pub const fn platform(&self) -> &P {
        &self.platform
    }

    /// Place of the node.
    pub const fn coords(&self) -> Coords {
        self.coords
    }

    /// Nodes on X, Y and Z.
    pub const fn shape(&self) -> [u8; 3] {
        self.shape
    }

    /// Returns true if a link leads to a neighbour.
    pub const fn is_present(&self, link: Link) -> bool {
        self.present & 1 << link.index() != 0
    }

    /// Reads a register.
    pub fn read(&self, register: Register) -> u64 {
        self.platform.bar0_read64(register.offset())
    }

    fn write(&self, register: Register, value: u64) {
        self.platform.bar0_write64(register.offset(), value);
    }

    /// The state of a link.
    pub fn link_status(&self, link: Link) -> LinkStatus {
        LinkStatus(self.read(Register::Link(link, LinkReg::Status)))
    }

    /// The counters of a link.
    pub fn link_counters(&self, link: Link) -> LinkCounters {
        LinkCounters::read(|reg| self.read(Register::Link(link, reg)))
    }

    /// Returns true if nothing that was sent is still in the device: the neighbours have it all.
    fn is_flushed(&self) -> bool {
        let links = Link::ALL.into_iter().filter(|link| self.is_present(*link));
        links.into_iter().all(|link| {
            // In this order: what leaves a channel is in txBuffer before it is acknowledged.
            let sent = Channel::ALL.into_iter().all(|channel| {
                let read = |reg| self.read(Register::Channel(link, channel, reg));
                read(ChannelReg::TxHead) == read(ChannelReg::TxTail) && read(ChannelReg::Ngets) == 0
            });
            sent && self.link_status(link).unacknowledged() == 0
        })
    }

    /// Waits until the neighbours have received everything, for at most `timeout_ns` nanoseconds.
    /// Returns true if they have. Data that is still in the device is lost if the device is reset,
    /// also when that happens because the process ends.
    pub fn flush(&self, timeout_ns: u64) -> bool {
        let start = self.platform.now_ns();
        while !self.is_flushed() {
            if self.platform.now_ns().saturating_sub(start) >= timeout_ns {
                return false;
            }
            self.platform.yield_processor();
        }
        true
    }

    /// Opens a channel of a link, for sending and receiving. It should be opened once only.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(&self, link: Link, channel: Channel) -> Result<Stream<'_, P>, OpenError> {
        if !self.is_present(link) {
            return Err(OpenError::NoLink);
        }
        // The words, and the one of TX_REPORT.
        let words = self.platform.alloc_dma((WORDS + 1) * 8, 64)?;
        let register = |reg| Register::Channel(link, channel, reg);
        let tail = self.read(register(ChannelReg::TxTail));
        words.store_u64(WORDS * 8, 0, Relaxed);
        self.write(register(ChannelReg::TxReport), words.device_addr() + WORDS as u64 * 8);
        // Read after that, so that no move is missed.
        let head = self.read(register(ChannelReg::TxHead));
        Ok(Stream {
            head,
            nwp: self,
            link,
            channel,
            words,
            busy: 0,
            credits: 0,
            ngets: 0,
            tag: 0,
            interrupts: false,
            tail,
            shared: None,
            written: [[None; 3]; 2],
        })
    }
}

/// The result of a credit or an Nget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The status that the device reported.
    pub status: Status,
    /// Bytes moved.
    pub length: u32,
}

/// A credit or an Nget that was posted. Its place is free again once its end was seen.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its place is taken until its end was seen"]
pub struct Ticket {
    slot: u8,
    credit: bool,
    tag: u32,
}

/// A channel of a link: messages to the neighbour and from it.
pub struct Stream<'a, P: Platform> {
    nwp: &'a Nwp<P>,
    link: Link,
    channel: Channel,
    words: P::Dma,
    /// Notification words in use, one bit each.
    busy: u128,
    credits: usize,
    ngets: usize,
    tag: u32,
    /// True if interrupts are enabled.
    interrupts: bool,
    /// Bytes that had left the ring when the channel was opened.
    head: u64,
    /// Bytes stored to the window's ring.
    tail: u64,
    /// True if the window is memory that the device reads; empty until that is known.
    shared: Option<bool>,
    /// The values of the registers of credits and of Ngets, so that they need not be written again.
    written: [[Option<u64>; 3]; 2],
}

impl<P: Platform> fmt::Debug for Stream<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("link", &self.link)
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

impl<P: Platform> Stream<'_, P> {
    /// The link.
    pub const fn link(&self) -> Link {
        self.link
    }

    /// The channel.
    pub const fn channel(&self) -> Channel {
        self.channel
    }

    /// Reads a register of the channel.
    pub fn read(&self, reg: ChannelReg) -> u64 {
        self.nwp.read(Register::Channel(self.link, self.channel, reg))
    }

    fn write(&self, reg: ChannelReg, value: u64) {
        self.nwp.write(Register::Channel(self.link, self.channel, reg), value);
    }

    /// Posts a credit: the next message of the channel goes to `len` bytes at offset `at` of
    /// `buffer`, which must stay until the end was seen. The rest of a longer message is thrown
    /// away.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    pub fn credit(&mut self, buffer: &P::Dma, at: usize, len: usize) -> Result<Ticket, PostError> {
        self.post(buffer, at, len, true)
    }

    /// Sends `len` bytes at offset `at` of `buffer`, which the device fetches (Nget). They must
    /// stay until the end was seen.
    ///
    /// ```
    /// use tofu_driver::{DmaBuffer, Platform};
    /// use tofu_inproc::nwp_pair;
    /// use tofu_tnw::{Channel, Link, Status};
    ///
    /// const SECOND: u64 = 1_000_000_000;
    /// let [left, right] = nwp_pair(1 << 20)?;
    /// let mut out = left.open(Link::ALL[1], Channel::ALL[7])?;
    /// let mut inward = right.open(Link::ALL[0], Channel::ALL[7])?;
    /// let source = left.platform().alloc_dma(4096, 64)?;
    /// source.write(0, &[5; 4096]);
    /// let sink = right.platform().alloc_dma(4096, 64)?;
    ///
    /// // A credit for the first half: the rest is thrown away, and both are told.
    /// let credit = inward.credit(&sink, 0, 2048)?;
    /// let sent = out.send_from(&source, 0, 4096)?;
    /// let received = inward.wait(credit, SECOND).expect("it comes");
    /// assert_eq!((received.status, received.length), (Status::Truncated, 2048));
    /// // From here on the source may be used again.
    /// let sent = out.wait(sent, SECOND).expect("it is fetched");
    /// assert_eq!((sent.status, sent.length), (Status::Ok, 4096));
    /// assert_eq!(left.link_counters(Link::ALL[1]).sent, 32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    pub fn send_from(
        &mut self,
        buffer: &P::Dma,
        at: usize,
        len: usize,
    ) -> Result<Ticket, PostError> {
        self.post(buffer, at, len, false)
    }

    fn post(
        &mut self,
        buffer: &P::Dma,
        at: usize,
        len: usize,
        credit: bool,
    ) -> Result<Ticket, PostError> {
        let inside = at.checked_add(len).is_some_and(|end| end <= buffer.len());
        if len == 0 || len as u64 > MAX_MESSAGE || !inside {
            return Err(PostError::Range { at, len, buffer: buffer.len() });
        }
        let (waiting, most) = match credit {
            true => (&mut self.credits, tnw::CREDIT_QUEUE),
            false => (&mut self.ngets, tnw::NGET_QUEUE),
        };
        if *waiting >= most {
            return Err(PostError::Full);
        }
        *waiting += 1;
        let slot = self.busy.trailing_ones() as usize;
        self.busy |= 1 << slot;
        self.words.store_u64(slot * 8, 0, Relaxed);
        self.tag = self.tag.wrapping_add(1) & 0x7f_ffff;
        let start = Start(0).with_tag(self.tag).with_interrupt(self.interrupts);
        use ChannelReg as R;
        let registers = match credit {
            true => [R::CreditAddress, R::CreditLength, R::CreditNotify],
            false => [R::NgetAddress, R::NgetLength, R::NgetNotify],
        };
        let notify = self.words.device_addr() + slot as u64 * 8;
        let values = [buffer.device_addr() + at as u64, len as u64, notify];
        for (index, (reg, value)) in registers.into_iter().zip(values).enumerate() {
            let known = &mut self.written[usize::from(credit)][index];
            if *known != Some(value) {
                *known = Some(value);
                self.write(reg, value);
            }
        }
        self.write(if credit { R::CreditStart } else { R::NgetStart }, start.0);
        Ok(Ticket { slot: slot as u8, credit, tag: self.tag })
    }

    /// The result of a credit or Nget.
    ///
    /// # Errors
    ///
    /// The ticket, if it has not.
    pub fn test(&mut self, ticket: Ticket) -> Result<Outcome, Ticket> {
        let slot = usize::from(ticket.slot);
        let word = Notification(self.words.load_u64(slot * 8, Acquire));
        if !word.done() || word.tag() != ticket.tag {
            return Err(ticket);
        }
        self.busy &= !(1 << slot);
        let waiting = if ticket.credit { &mut self.credits } else { &mut self.ngets };
        *waiting = waiting.saturating_sub(1);
        let status = Status::from_raw(word.status()).unwrap_or(Status::Cancelled);
        Ok(Outcome { status, length: word.length() })
    }

    /// Waits until a credit or Nget has ended, for at most `timeout_ns` nanoseconds.
    ///
    /// # Errors
    ///
    /// The ticket, if it has not.
    pub fn wait(&mut self, ticket: Ticket, timeout_ns: u64) -> Result<Outcome, Ticket> {
        let mut ticket = match self.test(ticket) {
            Ok(outcome) => return Ok(outcome),
            Err(ticket) => ticket,
        };
        let platform = &self.nwp.platform;
        let start = platform.now_ns();
        loop {
            if self.interrupts {
                let left = timeout_ns.saturating_sub(platform.now_ns().saturating_sub(start));
                platform.irq_wait(self.link.index() as u16, left.min(LONGEST_SLEEP_NS));
            } else {
                platform.relax();
            }
            match self.test(ticket) {
                Err(waiting) if platform.now_ns().saturating_sub(start) < timeout_ns => {
                    ticket = waiting;
                }
                end => return end,
            }
        }
    }

    /// From now on the device sends an interrupt with each notification, and [`Stream::wait`]
    /// sleeps until one comes.
    ///
    /// # Errors
    ///
    /// If the platform has no interrupt left for the link.
    pub fn use_interrupts(&mut self) -> Result<(), IrqError> {
        self.nwp.platform.irq_enable(self.link.index() as u16)?;
        self.interrupts = true;
        Ok(())
    }

    /// Cancels all credits and Ngets: they end with [`Status::Cancelled`], and the device no longer
    /// touches their memory.
    pub fn cancel(&mut self) {
        self.write(ChannelReg::Cancel, Cancel(0).with_requests(true).0);
    }

    /// Bytes that can be stored to the window now.
    fn room(&self) -> u64 {
        let head = self.words.load_u64(WORDS * 8, Acquire).max(self.head);
        WINDOW_RING.saturating_sub(self.tail.wrapping_sub(head))
    }
}

impl<P: Platform + Windows> Stream<'_, P> {
    /// Sends a message by stores to the window (Pput). It is in the device when this returns, but
    /// not at the neighbour. If the device has no room, this waits for it, for at most `timeout_ns`
    /// nanoseconds each time.
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    pub fn send(&mut self, message: &[u8], timeout_ns: u64) -> Result<(), SendError> {
        if message.is_empty() || message.len() as u64 > MAX_MESSAGE {
            return Err(SendError::Length(message.len()));
        }
        let mut rest = message;
        while !rest.is_empty() {
            match self.send_packet(rest) {
                Some(tail) => rest = tail,
                None if self.wait_for_room(timeout_ns) => {}
                None => return Err(SendError::Stalled(message.len() - rest.len())),
            }
        }
        Ok(())
    }

    /// Sends the first packet of the rest of a message, for callers that have other work while the
    /// window is full. Returns what is left then. The message ends when nothing is left.
    ///
    /// `None` if there is no room in the window, or nothing to send.
    pub fn send_packet<'m>(&mut self, rest: &'m [u8]) -> Option<&'m [u8]> {
        if rest.is_empty() {
            return None;
        }
        if self.room() < PACKET {
            self.ring();
            return None;
        }
        let (packet, tail) = rest.split_at(rest.len().min(PACKET_DATA));
        self.store(packet, tail.is_empty());
        if tail.is_empty() {
            self.ring();
        }
        Some(tail)
    }

    /// Makes [`Stream::send`] store to registers even if the window could be memory that the device
    /// polls. To be called before the first send. If windows can only be memory, it has no effect.
    pub fn use_registers(&mut self) {
        if !self.nwp.features.only_shared_windows() {
            self.shared = Some(false);
        }
    }

    /// Returns true if the window is memory that the device polls. It becomes that when it is first
    /// used, if device and platform support it.
    fn is_shared(&mut self) -> bool {
        if let Some(shared) = self.shared {
            return shared;
        }
        let mut shared = false;
        if self.nwp.features.shared_windows() && self.nwp.platform.can_share() {
            self.write(ChannelReg::TxMode, Mode(0).with_shared(true).0);
            shared = Mode(self.read(ChannelReg::TxMode)).shared();
        }
        self.shared = Some(shared);
        shared
    }

    /// Tells the device of what is new in a window that is memory, unless it looks by itself.
    fn ring(&self) {
        if self.shared == Some(true) {
            let at = tnw::window(self.link, self.channel) + tnw::BELL_OFFSET;
            if self.nwp.platform.load_after_stores(at) != 0 {
                self.write(ChannelReg::TxBell, 1);
            }
        }
    }

    fn wait_for_room(&self, timeout_ns: u64) -> bool {
        let platform = &self.nwp.platform;
        let start = platform.now_ns();
        while self.room() < PACKET {
            if platform.now_ns().saturating_sub(start) >= timeout_ns {
                return false;
            }
            platform.relax();
        }
        true
    }

    /// Stores a packet, filled up with zeros.
    fn store(&mut self, packet: &[u8], last: bool) {
        let Self { link, channel, .. } = *self;
        let shared = self.is_shared();
        // The mark of one that is memory says what the address does otherwise.
        let at = self.tail % WINDOW_RING;
        let place = WindowPlace { link, channel, at, last: last && !shared };
        let mut filled = [0; PACKET_DATA];
        let packet = packet.first_chunk::<PACKET_DATA>().unwrap_or_else(|| {
            filled[..packet.len()].copy_from_slice(packet);
            &filled
        });
        for (at, part) in (place.offset()..).step_by(STORE).zip(packet.as_chunks().0) {
            self.nwp.platform.store(at, part);
        }
        if shared {
            let mark = Mark(0).with_last(last).with_number(self.tail / PACKET + 1);
            let at = tnw::window(link, channel) + tnw::mark_offset((at / PACKET) as usize);
            self.nwp.platform.publish(at, mark.0);
        }
        self.tail += PACKET;
    }
}

impl<P: Platform> Drop for Stream<'_, P> {
    /// Makes the device drop all references to the stream's memory. Packets that were sent still
    /// arrive.
    fn drop(&mut self) {
        self.cancel();
        self.write(ChannelReg::TxReport, 0);
        // Writes may be in flight still; a read comes after them.
        self.read(ChannelReg::TxReport);
    }
}
