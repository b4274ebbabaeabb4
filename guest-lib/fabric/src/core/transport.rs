//! The device, as the core uses it.

use std::time::Duration;

use super::failure::Failure;
use super::{RINGS_PER_CHUNK, SLOT, SLOTS};

/// An endpoint's address: the ID of its virtual control queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(pub u64);

/// A rail to a peer: one of several ways that parts of a long transfer take at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Way {
    /// The peer.
    pub peer: Address,
    /// The number of the rail, from 0. There may be fewer rails; then it is one of those.
    pub rail: usize,
}

/// A place in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The virtual control queue that the memory is registered with.
    pub queue: Address,
    /// The address for the device.
    pub stadd: u64,
}

impl Spot {
    const BYTES: usize = 16;
    /// The most rails.
    const MOST: usize = 4;

    /// Returns the place that many bytes behind it.
    #[must_use]
    pub const fn plus(self, bytes: usize) -> Self {
        Self { stadd: self.stadd.wrapping_add(bytes as u64), ..self }
    }

    /// The places as a message.
    pub(super) fn encode(spots: &[Self]) -> Vec<u8> {
        let words = spots.iter().flat_map(|spot| [spot.queue.0, spot.stadd]);
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Returns what a message has of places.
    pub(super) fn decode(bytes: &[u8]) -> Vec<Self> {
        let spot = |spot: &[u8; Self::BYTES]| {
            let word = |at: usize| {
                let word = spot.as_chunks::<8>().0.get(at);
                word.map_or(0, |word| u64::from_le_bytes(*word))
            };
            Self { queue: Address(word(0)), stadd: word(1) }
        };
        bytes.as_chunks().0.iter().take(Self::MOST).map(spot).collect()
    }
}

/// A slot of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The number that the receiver has given to the sender.
    pub ring: u16,
    /// The slot of the ring.
    pub slot: u16,
}

impl Place {
    /// The chunk of memory with the ring.
    pub const fn chunk(self) -> u16 {
        self.ring / RINGS_PER_CHUNK
    }

    /// The offset of the slot in its chunk.
    pub const fn offset(self) -> usize {
        let ring = (self.ring % RINGS_PER_CHUNK) as usize;
        (ring * SLOTS as usize + self.slot as usize) * SLOT
    }

    /// The slot with the byte at an offset of a chunk.
    pub const fn at(chunk: u16, offset: usize) -> Self {
        let slot = offset / SLOT;
        let ring = chunk * RINGS_PER_CHUNK + (slot / SLOTS as usize) as u16;
        Self { ring, slot: (slot % SLOTS as usize) as u16 }
    }
}

/// The meaning of a signal, with 16 bits of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The sender has given this ring to the receiver of the signal.
    Hello(u16),
    /// The sender has emptied this many slots, modulo 2^16.
    Credit(u16),
    /// The sender has no ring left for the receiver of the signal.
    Full,
}

/// Something that has happened at the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer has sent a signal.
    Signal(Address, Signal),
    /// A peer has filled a slot.
    Filled(Place),
    /// The Put or Get with this token has ended; false if it has failed.
    Ended(u32, bool),
    /// A signal could not be delivered.
    Lost(Address),
}

/// There is no room for another command now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// Memory of the program, which the program leaves to an operation until its end.
pub trait Memory {
    /// The number of bytes.
    fn len(&self) -> usize;

    /// Returns true if it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of its first byte.
    fn address(&self) -> usize;

    /// Writes what fits of `data`, from an offset on.
    fn write(&mut self, offset: usize, data: &[u8]);

    /// Reads from an offset on.
    fn read(&self, offset: usize, into: &mut [u8]);

    /// Returns bytes of it that are in one piece, as separate memory.
    fn part(&self, offset: usize, length: usize) -> Self
    where
        Self: Sized;

    /// Takes `length` bytes from its start, as separate memory.
    fn split(&mut self, length: usize) -> Self
    where
        Self: Sized,
    {
        let first = self.part(0, length);
        *self = self.part(first.len(), self.len() - first.len());
        first
    }

    /// Makes memory that belongs to the operation itself.
    fn owned(length: usize) -> Self
    where
        Self: Sized;
}

/// A device with rings, signals, and Gets.
pub trait Transport {
    /// Memory that it can register.
    type Memory: Memory;

    /// The address of this endpoint.
    fn address(&self) -> Address;

    /// Makes memory for a chunk of rings, if it is not there.
    ///
    /// # Errors
    ///
    /// If there is none.
    fn provide(&mut self, chunk: u16) -> Result<(), Failure>;

    /// Reads a filled slot of this endpoint.
    fn read(&self, from: Place, into: &mut [u8]);

    /// Returns how many rails a long transfer to or from a peer takes, at least one.
    fn rails(&mut self, peer: Address) -> usize;

    /// Fills a slot of a peer with a header and what follows it. The end is reported with the
    /// token.
    ///
    /// # Errors
    ///
    /// If it must wait.
    fn fill(&mut self, way: Way, to: Place, data: [&[u8]; 2], token: u32) -> Result<(), Busy>;

    /// Sends a signal.
    ///
    /// # Errors
    ///
    /// If it must wait.
    fn signal(&mut self, peer: Address, signal: Signal) -> Result<(), Busy>;

    /// Registers memory for a transfer to or from a peer. Returns where it is for the device on
    /// each of up to `rails` rails, at least one. Only peers with the addresses can access it, and
    /// only read it if `read_only`.
    ///
    /// # Errors
    ///
    /// If it cannot be registered.
    fn register(
        &mut self,
        memory: &Self::Memory,
        read_only: bool,
        peer: Address,
        rails: usize,
    ) -> Result<Vec<Spot>, Failure>;

    /// Ends a registration.
    fn release(&mut self, spots: &[Spot]);

    /// Reads memory of a peer, from the first place to the second one. The end is reported with the
    /// token.
    ///
    /// # Errors
    ///
    /// If it must wait.
    fn get(&mut self, way: Way, places: [Spot; 2], length: usize, token: u32) -> Result<(), Busy>;

    /// Takes the next event. It may rest for a millisecond if there has been none for long.
    fn poll(&mut self) -> Option<Event>;

    /// Sleeps until there may be an event, or the time has passed. Returns whether there may be
    /// one.
    fn wait(&mut self, timeout: Duration) -> bool;
}
