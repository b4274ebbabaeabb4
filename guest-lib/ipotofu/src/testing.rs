//! A packet queue without a device, for tests.

use alloc::vec;
use alloc::vec::Vec;

use tofu_abi::PacketTarget;
use tofu_abi::frame::SYSTEM_PAYLOAD_MAX;

use crate::outbound::{PacketQueue, Purpose, Tag};

/// A posted packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Its target.
    pub target: PacketTarget,
    /// Its purpose.
    pub purpose: Purpose,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Posted {
    /// The tag of a packet for another node.
    ///
    /// # Panics
    ///
    /// If it is a test of a port.
    pub fn tag(&self) -> Tag {
        match self.purpose {
            Purpose::Packet(tag) => tag,
            Purpose::Port(port) => panic!("a test of {}", port.name()),
        }
    }
}

/// A queue that keeps the packets that were posted to it.
#[derive(Debug)]
pub struct TestQueue {
    /// The packets, in the order of posting.
    pub posted: Vec<Posted>,
    size: usize,
    free: usize,
}

impl TestQueue {
    /// An empty queue with so many buffers.
    pub const fn new(size: usize) -> Self {
        Self { posted: Vec::new(), size, free: size }
    }

    /// Number of buffers that are neither free nor of posted packets.
    pub fn missing(&self) -> usize {
        self.size - self.free - self.posted.len()
    }

    /// Takes the posted packets, and frees their buffers.
    pub fn take_posted(&mut self) -> Vec<Posted> {
        self.free += self.posted.len();
        core::mem::take(&mut self.posted)
    }
}

impl Default for TestQueue {
    /// A queue with enough buffers for all tests.
    fn default() -> Self {
        Self::new(1 << 16)
    }
}

impl PacketQueue for TestQueue {
    type Buffer = core::cell::RefCell<Vec<u8>>;

    fn room(&self) -> usize {
        self.free
    }

    fn size(&self) -> usize {
        self.size
    }

    fn take(&mut self) -> Option<Self::Buffer> {
        self.free = self.free.checked_sub(1)?;
        Some(vec![0; SYSTEM_PAYLOAD_MAX].into())
    }

    fn give_up(&mut self, _: Self::Buffer) {
        self.free += 1;
    }

    fn write(&mut self, buffer: &Self::Buffer, at: usize, bytes: &[u8]) -> bool {
        let mut buffer = buffer.borrow_mut();
        let place = buffer.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len()));
        place.map(|place| place.copy_from_slice(bytes)).is_some()
    }

    fn read(&mut self, buffer: &Self::Buffer, to: &mut [u8]) -> bool {
        let buffer = buffer.borrow();
        let from = buffer.get(..to.len());
        from.map(|from| to.copy_from_slice(from)).is_some()
    }

    fn post_buffer(
        &mut self,
        buffer: Self::Buffer,
        len: u16,
        target: &PacketTarget,
        purpose: Purpose,
    ) -> bool {
        assert_eq!(Purpose::unpack(purpose.pack()), Some(purpose));
        let mut payload = buffer.into_inner();
        payload.truncate(len.into());
        self.posted.push(Posted { target: *target, purpose, payload });
        true
    }
}
