//! The receiving side of a channel: its reception FIFO, its credits, and how they match.
//!
//! Messages and credits match strictly in order (section 2). *Ours*: a message ends with a marked
//! packet. So a credit whose length differs from the message's ends all the same, and the next
//! message meets the next credit.

use std::cmp::Ordering;
use std::collections::VecDeque;

use tofu_abi::tnw::{
    CREDIT_QUEUE, MAX_MESSAGE, Notification, PACKET_DATA, RECEPTION_FIFO, Status, packets,
};
use tofu_inspect::inspect;
use tofu_parts::DmaMemory;

use crate::unit::Data;

/// A credit, or what an Nget is to send: memory, and how to tell that it is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Address of the memory.
    pub address: u64,
    /// Its length in bytes.
    pub length: u32,
    /// Address of the notification word.
    pub notify: u64,
    /// Comes back in the notification word.
    pub tag: u32,
    /// Whether an interrupt follows.
    pub interrupt: bool,
}

impl Request {
    /// The notification word for an end like this.
    pub(crate) const fn notification(&self, status: Status, length: u32) -> Notification {
        Notification(0)
            .with_length(length)
            .with_status(status as u8)
            .with_tag(self.tag)
            .with_done(true)
    }
}

/// A request that is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The request.
    pub request: Request,
    /// How it ended.
    pub status: Status,
    /// Bytes moved.
    pub length: u32,
}

inspect!(Request { address as hex, length, notify as hex, tag, interrupt });

#[derive(Debug)]
enum Item {
    /// Packets, of which some may have been moved.
    Run(Data, u16),
    /// The message that was coming in does not go on.
    Cut,
}

/// How far a message has been moved.
#[derive(Clone, Copy, Debug)]
struct Moving {
    packets: u64,
    failed: bool,
}

/// The receiving side of a channel.
#[derive(Debug, Default)]
pub struct Receive {
    fifo: VecDeque<Item>,
    /// Packets in it.
    packets: u16,
    /// Items at its end whose data may still be memory of their sender's.
    borrowed: usize,
    /// Packets that have come of a message that is not over.
    coming: u64,
    credits: VecDeque<Request>,
    /// The first credit is in use.
    moving: Option<Moving>,
    /// The credit of the message that is coming out of the FIFO was taken back.
    skipping: bool,
    /// Messages that were moved to memory.
    pub(crate) messages: u64,
    /// Packets that belong to no message.
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
    /// Packets in the FIFO.
    pub const fn packets(&self) -> u16 {
        self.packets
    }

    /// Packets that there is room for.
    pub const fn room(&self) -> u16 {
        (RECEPTION_FIFO as u16).saturating_sub(self.packets)
    }

    /// Credits that wait, the one in use among them.
    pub fn credits(&self) -> usize {
        self.credits.len()
    }

    /// Whether some packet can be moved.
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

    /// Takes packets that have arrived. Returns false if they belong to no message: then they were
    /// dropped.
    pub fn push(&mut self, data: Data) -> bool {
        let offset = u64::from(data.offset());
        if offset != self.coming % (MAX_MESSAGE / PACKET_DATA as u64) {
            if self.coming != 0 {
                // Its sender was reset, and has something new to say.
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

    /// The message that is coming in does not go on.
    pub fn cut(&mut self) {
        if self.coming != 0 {
            self.coming = 0;
            self.borrowed += 1;
            self.fifo.push_back(Item::Cut);
        }
    }

    /// Copies packets that have arrived and were not moved yet. To be called before they are
    /// acknowledged, because the sender's memory may be reused after that.
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

    /// Moves up to `most` packets to memory, of one message. Returns the credit if it is done with.
    pub fn deliver(&mut self, memory: &dyn DmaMemory, most: u16) -> Option<Done> {
        let mut left = most;
        while left > 0 {
            let Item::Run(data, at) = self.fifo.front_mut()? else {
                self.fifo.pop_front();
                self.skipping = false;
                // If nothing of the message was moved, its credit is unused: the next message is
                // for it.
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

    /// The first credit is done with.
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

    /// Takes all credits back. What is left of a message whose credit was in use is thrown away.
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
