//! The sending side of a channel: its window, its Ngets, and in which order they go out.
//!
//! *Ours* is the order: a message that has begun ends first; an Nget goes after what had been
//! stored completely to the window when it was posted.

use std::collections::VecDeque;
use std::sync::Arc;

use tofu_abi::tnw::{Channel, MAX_MESSAGE, NGET_QUEUE, PACKET_DATA, Status, packets};
use tofu_parts::DmaMemory;

use crate::receive::{Done, Request};
use crate::unit::{Data, MAX_RUN};
use crate::window::Window;

/// Packets of the longest message.
const MOST_PACKETS: u32 = (MAX_MESSAGE / PACKET_DATA as u64) as u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Window,
    Nget,
    /// The message was cancelled: it ends with a packet of zeros.
    Ending,
}

#[derive(Debug)]
struct Nget {
    request: Request,
    /// It goes after what had left the window up to here.
    after: u64,
}

/// The sending side of a channel.
#[derive(Debug, Default)]
pub(crate) struct Transmit {
    /// Made when something is stored first.
    window: Option<Box<Window>>,
    ngets: VecDeque<Nget>,
    /// Where the message comes from that has begun.
    source: Option<Source>,
    /// Packets of it that were sent.
    sent: u32,
    pub(crate) messages: u64,
    pub(crate) overlaps: u64,
}

/// Data of packets, whether the last of them ends its message, and an Nget that is done with.
type Fetched = (Arc<[u8]>, bool, Option<Done>);

/// What goes out next.
pub(crate) struct Outgoing {
    pub(crate) data: Data,
    /// An Nget whose memory may be used again.
    pub(crate) done: Option<Done>,
}

impl Transmit {
    pub(crate) fn window(&mut self) -> &mut Window {
        self.window.get_or_insert_default()
    }

    pub(crate) fn head(&self) -> u64 {
        self.window.as_ref().map_or(0, |window| window.head())
    }

    pub(crate) fn tail(&self) -> u64 {
        self.window.as_ref().map_or(0, |window| window.tail())
    }

    pub(crate) fn ngets(&self) -> usize {
        self.ngets.len()
    }

    /// Whether there is something to send. Without `dma`, Ngets wait.
    pub(crate) fn is_ready(&self, dma: bool) -> bool {
        self.next_source(dma).is_some()
    }

    /// Adds an Nget.
    ///
    /// # Errors
    ///
    /// [`Status::Full`] if there is no room for it.
    pub(crate) fn add(&mut self, request: Request) -> Result<(), Status> {
        if self.ngets.len() >= NGET_QUEUE {
            return Err(Status::Full);
        }
        self.ngets.push_back(Nget { request, after: self.tail() });
        Ok(())
    }

    fn next_source(&self, dma: bool) -> Option<Source> {
        let stored = (self.tail() > self.head()).then_some(Source::Window);
        let nget = self.ngets.front();
        match (self.source, nget) {
            (Some(Source::Ending), _) => self.source,
            (Some(Source::Window), _) | (None, None) => stored,
            (None, Some(nget)) if self.head() < nget.after => stored,
            (Some(Source::Nget) | None, _) => dma.then_some(Source::Nget),
        }
    }

    /// Takes up to `most` packets.
    ///
    /// # Errors
    ///
    /// An Nget of which nothing can be sent.
    pub(crate) fn take(
        &mut self,
        channel: Channel,
        most: u16,
        memory: Option<&dyn DmaMemory>,
    ) -> Result<Option<Outgoing>, Done> {
        let most = most.min(MAX_RUN).min((MOST_PACKETS - self.sent).min(u32::from(MAX_RUN)) as u16);
        let Some(source) = self.next_source(memory.is_some()).filter(|_| most > 0) else {
            return Ok(None);
        };
        let offset = self.sent as u16;
        let (payload, last, done) = match (source, memory) {
            (Source::Window, _) => {
                // The next message must not begin before the Nget that was posted before it.
                let end = match (self.source, self.ngets.front()) {
                    (None, Some(nget)) => nget.after,
                    _ => u64::MAX,
                };
                let Some(window) = &mut self.window else { return Ok(None) };
                let Some(taken) = window.take(most, end) else { return Ok(None) };
                (taken.data, taken.last, None)
            }
            (Source::Nget, Some(memory)) => self.fetch(most, memory)?,
            (Source::Nget, None) => return Ok(None),
            (Source::Ending, _) => (Arc::from([0; PACKET_DATA]), true, None),
        };
        let count = (payload.len() / PACKET_DATA) as u32;
        let last = last || self.sent + count >= MOST_PACKETS;
        if last {
            (self.source, self.sent) = (None, 0);
            self.messages += 1;
        } else {
            (self.source, self.sent) = (Some(source), self.sent + count);
        }
        Ok(Some(Outgoing { data: Data::new(channel, offset, last, payload), done }))
    }

    /// Fetches packets of the first Nget.
    fn fetch(&mut self, most: u16, memory: &dyn DmaMemory) -> Result<Fetched, Done> {
        let Some(Nget { request, .. }) = self.ngets.front() else {
            // Not reached: its source is an Nget only if there is one.
            return Ok((Arc::from([0; PACKET_DATA]), true, None));
        };
        let request = *request;
        let fetched = u64::from(self.sent) * PACKET_DATA as u64;
        let left = u64::from(request.length).saturating_sub(fetched);
        let count = packets(left).min(most.into()) as usize;
        let bytes = left.min((count * PACKET_DATA) as u64) as usize;
        let mut payload: Arc<[u8]> = std::iter::repeat_n(0, count * PACKET_DATA).collect();
        let read = Arc::get_mut(&mut payload).map_or(Ok(()), |payload| {
            memory.read(request.address.saturating_add(fetched), &mut payload[..bytes])
        });
        let last = bytes as u64 == left;
        if read.is_err() {
            self.ngets.pop_front();
            let done = Done { request, status: Status::BadAddress, length: fetched as u32 };
            if self.sent == 0 {
                return Err(done);
            }
            return Ok((Arc::from([0; PACKET_DATA]), true, Some(done)));
        }
        if last {
            self.ngets.pop_front();
        }
        let done = last.then_some(Done { request, status: Status::Ok, length: request.length });
        Ok((payload, last, done))
    }

    /// Takes back all Ngets. A message that has begun ends with what is sent next.
    pub(crate) fn cancel(&mut self) -> Vec<Done> {
        if self.source == Some(Source::Nget) {
            self.source = Some(Source::Ending);
        }
        let mut sent = u64::from(self.sent) * PACKET_DATA as u64;
        let cancelled = |nget: Nget| {
            let length = std::mem::take(&mut sent).min(nget.request.length.into()) as u32;
            Done { request: nget.request, status: Status::Cancelled, length }
        };
        self.ngets.drain(..).map(cancelled).collect()
    }

    /// Empties the window. A message that has begun ends with what is sent next.
    pub(crate) fn clear(&mut self) {
        if self.source == Some(Source::Window) {
            self.source = Some(Source::Ending);
        }
        if let Some(window) = &mut self.window {
            window.clear();
        }
        for nget in &mut self.ngets {
            nget.after = 0;
        }
    }
}
