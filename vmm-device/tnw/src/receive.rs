//! The receiving side of a channel: its reception FIFO, its credits, and how they match.
//!
//! Messages and credits match strictly in order (section 2). *Ours*: a message ends with a marked
//! packet. So a credit ends even if its length differs from the message's, and the next message
//! matches the next credit.

use std::cmp::Ordering;
use std::collections::VecDeque;

use tofu_abi::tnw::{
    CREDIT_QUEUE, MAX_MESSAGE, Notification, PACKET_DATA, RECEPTION_FIFO, Status, packets,
};
use tofu_dma::DmaMemory;
use tofu_inspect::inspect;

use crate::unit::Data;

/// A credit, or the data of an Nget: a range of memory, and how its end is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Address of the memory.
    pub address: u64,
    /// Its length in bytes.
    pub length: u32,
    /// Address of the notification word.
    pub notify: u64,
    /// Returned in the notification word.
    pub tag: u32,
    /// True if an interrupt follows.
    pub interrupt: bool,
}

impl Request {
    /// The notification word for this status and length.
    pub(crate) const fn notification(&self, status: Status, length: u32) -> Notification {
        Notification(0)
            .with_length(length)
            .with_status(status as u8)
            .with_tag(self.tag)
            .with_done(true)
    }
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The request.
    pub request: Request,
    /// The result.
    pub status: Status,
    /// Bytes moved.
    pub length: u32,
}

inspect!(Request { address as hex, length, notify as hex, tag, interrupt });

#[derive(Debug)]
enum Item {
    /// Packets; some of them may already have been moved.
    Run(Data, u16),
    /// The message that was arriving does not continue.
    Cut,
}

/// The progress of moving a message.
#[derive(Clone, Copy, Debug)]
struct Moving {
    packets: u64,
    failed: bool,
}

/// The receiving side of a channel.
#[derive(Debug, Default)]
pub struct Receive {
    fifo: VecDeque<Item>,
    /// Number of packets in `fifo`.
    packets: u16,
    /// Number of items at the end of `fifo` whose data may still be memory of the sender.
    borrowed: usize,
    /// Number of packets that have arrived of an incomplete message.
    coming: u64,
    credits: VecDeque<Request>,
    /// Progress of the first credit, if it is in use.
    moving: Option<Moving>,
    /// True if the credit of the message that is leaving the FIFO was cancelled.
    skipping: bool,
    /// Number of messages moved to memory.
    pub(crate) messages: u64,
    /// Number of packets that belonged to no message.
    pub(crate) orphans: u64,
}

inspect!(Receive {
    fifo as len,
    packets,
    borrowed,
    coming,
    credits,
    moving as debug,
    skipping,
    messages,
    orphans,
});

impl Receive {
    /// Number of packets in the FIFO.
    pub const fn packets(&self) -> u16 {
        self.packets
    }

    /// Number of packets that the FIFO has room for.
    pub const fn room(&self) -> u16 {
        (RECEPTION_FIFO as u16).saturating_sub(self.packets)
    }

    /// Number of pending credits, including the one in use.
    pub fn credits(&self) -> usize {
        self.credits.len()
    }

    /// Returns true if any packet can be moved.
    pub fn matches(&self) -> bool {
        match self.fifo.front() {
            Some(Item::Run(..)) => self.skipping || !self.credits.is_empty(),
            Some(Item::Cut) => true,
            None => false,
        }
    }

    /// Adds a credit.
    ///
    /// # Errors
    ///
    /// [`Status::Full`] if there is no room for it.
    pub fn add(&mut self, credit: Request) -> Result<(), Status> {
        if self.credits.len() >= CREDIT_QUEUE {
            return Err(Status::Full);
        }
        self.credits.push_back(credit);
        Ok(())
    }

    /// Takes packets that have arrived. Returns false if they belong to no message. Then they were
    /// dropped.
    pub fn push(&mut self, data: Data) -> bool {
        let offset = u64::from(data.offset());
        if offset != self.coming % (MAX_MESSAGE / PACKET_DATA as u64) {
            if self.coming != 0 {
                // The sender was reset and has begun another message.
                self.cut();
            }
            if offset != 0 {
                self.orphans += u64::from(data.packets());
                return false;
            }
        }
        self.coming += u64::from(data.packets());
        if data.is_last() {
            self.coming = 0;
        }
        self.packets = self.packets.saturating_add(data.packets());
        self.borrowed += 1;
        self.fifo.push_back(Item::Run(data, 0));
        true
    }

    /// Notes that the message that is arriving does not continue.
    pub fn cut(&mut self) {
        if self.coming != 0 {
            self.coming = 0;
            self.borrowed += 1;
            self.fifo.push_back(Item::Cut);
        }
    }

    /// Copies packets that have arrived and were not moved yet. Must be called before they are
    /// acknowledged, because the sender may reuse its memory after that.
    pub(crate) fn keep(&mut self) {
        if self.borrowed == 0 {
            return;
        }
        for item in self.fifo.iter().rev().take(std::mem::take(&mut self.borrowed)) {
            if let Item::Run(data, _) = item {
                data.payload.keep();
            }
        }
    }

    /// Moves up to `most` packets of one message to memory. Returns the credit if it is completed.
    pub fn deliver(&mut self, memory: &dyn DmaMemory, most: u16) -> Option<Done> {
        let mut left = most;
        while left > 0 {
            let Item::Run(data, at) = self.fifo.front_mut()? else {
                self.fifo.pop_front();
                self.skipping = false;
                // If nothing of the message was moved, its credit is unused and goes to the next
                // message.
                if let (Some(moving), Some(credit)) = (self.moving.take(), self.credits.front()) {
                    return Some(self.end(moving, *credit, Some(Status::Cut)));
                }
                continue;
            };
            let count = left.min(data.packets() - *at);
            let credit = match self.credits.front() {
                _ if self.skipping => None,
                Some(credit) => Some(*credit),
                None => return None,
            };
            if let Some(credit) = credit {
                let moving = self.moving.get_or_insert(Moving { packets: 0, failed: false });
                let from = usize::from(*at) * PACKET_DATA;
                let done = moving.packets * PACKET_DATA as u64;
                let room = u64::from(credit.length).saturating_sub(done) as usize;
                let bytes = room.min(usize::from(count) * PACKET_DATA);
                if bytes > 0 && !moving.failed {
                    let to = credit.address.saturating_add(done);
                    moving.failed = data.payload.copy(from, bytes, memory, to).is_err();
                }
                moving.packets += u64::from(count);
            }
            *at += count;
            left -= count;
            self.packets = self.packets.saturating_sub(count);
            if *at < data.packets() {
                continue;
            }
            let last = data.is_last();
            self.fifo.pop_front();
            if last {
                self.skipping = false;
                if let (Some(moving), Some(credit)) = (self.moving.take(), credit) {
                    return Some(self.end(moving, credit, None));
                }
            }
        }
        None
    }

    /// Completes the first credit.
    fn end(&mut self, moving: Moving, credit: Request, cause: Option<Status>) -> Done {
        self.credits.pop_front();
        self.messages += 1;
        let bytes = moving.packets * PACKET_DATA as u64;
        let status = match (cause, moving.packets.cmp(&packets(credit.length.into()))) {
            _ if moving.failed => Status::BadAddress,
            (Some(cause), _) => cause,
            (None, Ordering::Greater) => Status::Truncated,
            (None, Ordering::Less) => Status::Short,
            (None, Ordering::Equal) => Status::Ok,
        };
        let length = if moving.failed { 0 } else { bytes.min(credit.length.into()) as u32 };
        Done { request: credit, status, length }
    }

    /// Cancels all credits. The rest of a message whose credit was in use is dropped.
    pub fn cancel(&mut self) -> Vec<Done> {
        let moving = self.moving.take();
        self.skipping |= moving.is_some();
        let mut moved = moving.map_or(0, |moving| moving.packets * PACKET_DATA as u64);
        let cancelled = |request: Request| {
            let length = std::mem::take(&mut moved).min(request.length.into()) as u32;
            Done { request, status: Status::Cancelled, length }
        };
        self.credits.drain(..).map(cancelled).collect()
    }
}
