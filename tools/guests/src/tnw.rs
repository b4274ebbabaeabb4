//! Shared by the programs for TNW.

use alloc::vec;
use alloc::vec::Vec;

use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_driver::{DmaBuffer, Platform};
use tofu_tnw::{Channel, Link, Nwp, Outcome, Status, Stream, Ticket};

use crate::{Error, NodeBuffer, NodePlatform, fail, option};

/// The time limit for a neighbour, in nanoseconds: it may not have booted yet.
pub const PATIENCE_NS: u64 = 50_000_000_000;
/// The time to wait for neighbours at the end, in nanoseconds. The last answer of one that has
/// ended before may be lost.
const LEAVING_NS: u64 = 5_000_000_000;

/// The torus that a network processor is in.
///
/// # Errors
///
/// If the device reports something that is not a torus.
pub fn torus(nwp: &Nwp<NodePlatform>) -> Result<Shape, Error> {
    let [x, y, z] = nwp.shape();
    let shape = Shape::new([x, y, z, 1, 1, 1])?;
    Ok(option("torus").map_or(shape, |axes| shape.with_torus_letters(axes)))
}

/// Waits until the neighbours have received everything, because a device may be reset when its
/// program ends.
pub fn leave(nwp: &Nwp<NodePlatform>) {
    nwp.flush(LEAVING_NS);
}

/// The way a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By stores.
    Pput,
    /// The device fetches it.
    Nget,
}

impl How {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Pput, Self::Nget];
}

/// Messages in one direction: over a link, or from it.
pub struct Lane<'a> {
    stream: Stream<'a, NodePlatform>,
    buffer: NodeBuffer,
    bytes: Vec<u8>,
}

impl<'a> Lane<'a> {
    /// Messages of up to `most` bytes on a channel.
    ///
    /// # Errors
    ///
    /// If there is no neighbour, or no memory.
    pub fn open(
        nwp: &'a Nwp<NodePlatform>,
        link: Link,
        channel: Channel,
        most: usize,
    ) -> Result<Self, Error> {
        let buffer = nwp.platform().alloc_dma(most, 64)?;
        Ok(Self { stream: nwp.open(link, channel)?, buffer, bytes: vec![0; most] })
    }

    /// The same, with waits that sleep, for use by more programs than there are processors.
    ///
    /// # Errors
    ///
    /// If there is no interrupt left.
    pub fn sleeping(mut self) -> Result<Self, Error> {
        self.stream.use_interrupts()?;
        Ok(self)
    }

    /// Sends a message. The lane is free again once [`Lane::sent`] has seen its end.
    ///
    /// # Errors
    ///
    /// If it is not accepted.
    pub fn send(&mut self, how: How, message: &[u8]) -> Result<Option<Ticket>, Error> {
        if how == How::Pput {
            self.stream.send(message, PATIENCE_NS)?;
            return Ok(None);
        }
        self.buffer.write(0, message);
        Ok(Some(self.stream.send_from(&self.buffer, 0, message.len())?))
    }

    /// Waits until a message has left.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub fn sent(&mut self, ticket: Option<Ticket>) -> Result<(), Error> {
        let Some(ticket) = ticket else { return Ok(()) };
        match self.stream.wait(ticket, PATIENCE_NS) {
            Ok(Outcome { status: Status::Ok, .. }) => Ok(()),
            outcome => Err(fail!("a message over {:?}: {outcome:?}", self.stream.link())),
        }
    }

    /// Posts a credit for a message of `bytes` bytes.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub fn credit(&mut self, bytes: usize) -> Result<Ticket, Error> {
        Ok(self.stream.credit(&self.buffer, 0, bytes)?)
    }

    /// Waits for the message of a credit, which must have as many bytes as the credit.
    ///
    /// # Errors
    ///
    /// If it does not come, or is another one.
    pub fn received(&mut self, ticket: Ticket) -> Result<(), Error> {
        match self.stream.wait(ticket, PATIENCE_NS) {
            Ok(Outcome { status: Status::Ok, .. }) => Ok(()),
            outcome => Err(fail!("a credit of {:?}: {outcome:?}", self.stream.link())),
        }
    }

    /// The first bytes of the last received message.
    pub fn bytes(&mut self, count: usize) -> &[u8] {
        let bytes = &mut self.bytes[..count];
        self.buffer.read(0, bytes);
        bytes
    }
}

/// The link from a node to a neighbour.
pub fn link_between(shape: &Shape, from: Coords, to: Coords) -> Option<Link> {
    Link::ALL.into_iter().find(|link| shape.neighbor(from, link.port()) == Some(to))
}
