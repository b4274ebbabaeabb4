//! The queue that packets are sent by, and what is kept with each of them until it has ended.

use core::fmt::Debug;
use core::ops::Range;

use tofu_abi::topology::Port;
use tofu_abi::{Coords, PacketTarget, Rcode};

use crate::addr;
use crate::wire::Sum;

/// The data that its sender needs about a packet if it is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The node that the packet goes to.
    pub to: Coords,
    /// Number of its route, see [`route`](crate::routes::route).
    pub attempt: u8,
    /// True if the packet is part of a broadcast.
    pub broadcast: bool,
    /// True if it is a [`Report`](crate::Report), whose loss does not matter.
    pub report: bool,
    /// True if routes before the first one tried were skipped. They then come last.
    pub wraps: bool,
}

impl Tag {
    const BROADCAST: u32 = 1 << 26;
    const REPORT: u32 = 1 << 27;
    const WRAPS: u32 = 1 << 28;
    /// Number of bits of [`Tag::pack`].
    pub const BITS: u32 = 29;

    /// The tag as a number: node in bits 18:0, way 25:19, broadcast 26, report 27, wraps 28.
    pub const fn pack(self) -> u32 {
        let broadcast = if self.broadcast { Self::BROADCAST } else { 0 };
        let report = if self.report { Self::REPORT } else { 0 };
        let wraps = if self.wraps { Self::WRAPS } else { 0 };
        addr::pack(self.to) | (self.attempt as u32) << 19 | broadcast | report | wraps
    }

    /// Inverse of [`Tag::pack`].
    pub const fn unpack(number: u32) -> Option<Self> {
        match addr::unpack(number & 0x7_ffff) {
            Some(to) => Some(Self {
                to,
                attempt: (number >> 19 & 0x7f) as u8,
                broadcast: number & Self::BROADCAST != 0,
                report: number & Self::REPORT != 0,
                wraps: number & Self::WRAPS != 0,
            }),
            None => None,
        }
    }
}

/// The purpose of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A packet for another node.
    Packet(Tag),
    /// A test of whether packets can leave through a port.
    Port(Port),
}

impl Purpose {
    const PORT: u32 = 1 << Tag::BITS;

    /// The purpose as a number, for queues that keep one with each packet.
    pub const fn pack(self) -> u32 {
        match self {
            Self::Packet(tag) => tag.pack(),
            Self::Port(port) => Self::PORT | port.index() as u32,
        }
    }

    /// Inverse of [`Purpose::pack`].
    pub fn unpack(number: u32) -> Option<Self> {
        match number & Self::PORT {
            0 => Tag::unpack(number).map(Self::Packet),
            _ => Port::from_index((number & !Self::PORT) as usize).map(Self::Port),
        }
    }
}

/// A packet whose sending has ended. It is still in its buffer.
#[derive(Debug)]
pub struct Ended<B> {
    /// Its purpose.
    pub purpose: Purpose,
    /// The result of sending it.
    pub rcode: Rcode,
    /// Its buffer.
    pub buffer: B,
    /// Number of bytes of its payload.
    pub len: u16,
}

/// A queue to send packets by, with a fixed number of buffers.
pub trait PacketQueue {
    /// A buffer that is not in the queue.
    type Buffer: Debug;

    /// Number of packets that can be posted now.
    fn room(&self) -> usize;

    /// Number of buffers.
    fn size(&self) -> usize;

    /// Takes a free buffer, if there is one.
    fn take(&mut self) -> Option<Self::Buffer>;

    /// Frees a buffer.
    fn give_up(&mut self, buffer: Self::Buffer);

    /// Writes a part of a packet's payload, from offset `at` on. False if it does not fit.
    fn write(&mut self, buffer: &Self::Buffer, at: usize, bytes: &[u8]) -> bool;

    /// Reads the beginning of a packet's payload. False if there are not so many bytes.
    fn read(&mut self, buffer: &Self::Buffer, to: &mut [u8]) -> bool;

    /// Puts a packet with `len` bytes of payload into the queue. Without room the buffer is freed,
    /// and this returns false.
    fn post_buffer(
        &mut self,
        buffer: Self::Buffer,
        len: u16,
        target: &PacketTarget,
        purpose: Purpose,
    ) -> bool;

    /// Puts a packet into the queue. Its payload is the concatenation of `parts`. False if there is
    /// no buffer for it.
    fn post(&mut self, target: &PacketTarget, purpose: Purpose, parts: &[&[u8]]) -> bool {
        let Some(buffer) = self.take() else { return false };
        let mut len = 0;
        for part in parts {
            if !self.write(&buffer, len, part) {
                self.give_up(buffer);
                return false;
            }
            len += part.len();
        }
        self.post_buffer(buffer, len as u16, target, purpose)
    }
}

/// A frame to be sent, in any kind of memory.
pub trait Outgoing<Q: PacketQueue> {
    /// Number of its bytes.
    fn size(&self) -> usize;

    /// Reads its bytes from offset `at` on. False if that fails.
    fn read(&self, at: usize, to: &mut [u8]) -> bool;

    /// Copies a part of it to an offset in a packet's payload, and adds the part to `sum`, if there
    /// is one. False if that fails.
    fn copy(
        &self,
        part: Range<usize>,
        queue: &mut Q,
        place: (&Q::Buffer, usize),
        sum: Option<&mut Sum>,
    ) -> bool;
}

impl<Q: PacketQueue> Outgoing<Q> for &[u8] {
    fn size(&self) -> usize {
        self.len()
    }

    fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let from = self.get(at..).and_then(|rest| rest.get(..to.len()));
        from.map(|from| to.copy_from_slice(from)).is_some()
    }

    fn copy(
        &self,
        part: Range<usize>,
        queue: &mut Q,
        (buffer, to): (&Q::Buffer, usize),
        sum: Option<&mut Sum>,
    ) -> bool {
        let Some(part) = self.get(part) else { return false };
        if let Some(sum) = sum {
            sum.add(part);
        }
        queue.write(buffer, to, part)
    }
}
