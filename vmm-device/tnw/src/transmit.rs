//! The sending side of a channel: its window, its Ngets, and the order in which they go out.
//!
//! The order is *ours*: a message that has begun is finished first. An Nget goes after everything
//! that was stored completely to the window when the Nget was posted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tofu_abi::tnw::{Channel, MAX_MESSAGE, NGET_QUEUE, PACKET_DATA, Status, packets};
use tofu_dma::{Access, DmaMemory};
use tofu_inspect::inspect;

use crate::payload::Borrowed;
use crate::receive::{Done, Request};
use crate::shared::SharedWindow;
use crate::unit::{Data, MAX_RUN};
use crate::window::Window;

/// Number of packets of the longest message.
const MOST_PACKETS: u32 = (MAX_MESSAGE / PACKET_DATA as u64) as u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Window,
    Nget,
    /// The message was cancelled. It ends with a packet of zeros.
    Ending,
}

#[derive(Debug)]
struct Nget {
    request: Request,
    /// Tail of the window when the Nget was posted. The Nget goes after everything before it.
    after: u64,
    /// Set if memory that packets referred to could not be read.
    failed: Arc<AtomicBool>,
}

inspect!(Nget { request, after, failed as debug });

/// An Nget that has been sent, but whose memory may still be read.
#[derive(Debug)]
pub(crate) struct Pending {
    done: Done,
    failed: Arc<AtomicBool>,
    /// Number of packets sent over the link in all until the Nget had been sent.
    sent: u64,
}

impl Pending {
    fn end(self) -> Done {
        match self.failed.load(Relaxed) {
            true => Done { status: Status::BadAddress, ..self.done },
            false => self.done,
        }
    }
}

/// The sending side of a channel.
#[derive(Debug, Default)]
pub(crate) struct Transmit {
    /// Allocated at the first store.
    window: Option<Box<Window>>,
    ngets: VecDeque<Nget>,
    /// Ngets that have been sent, in order.
    pending: VecDeque<Pending>,
    /// The source of the message that has begun.
    source: Option<Source>,
    /// Number of packets of it that were sent.
    sent: u32,
    pub(crate) messages: u64,
    pub(crate) overlaps: u64,
}

inspect!(Transmit {
    window,
    ngets,
    pending as len,
    source as debug,
    sent,
    messages,
    overlaps,
});

/// The data of packets.
enum Content {
    Bytes(Arc<[u8]>),
    Borrowed(Borrowed),
}

/// Data of packets, their number, whether the last of them ends its message, and the Nget that ends
/// with them.
type Fetched = (Content, u32, bool, Option<Pending>);

/// The next packets to send.
pub(crate) struct Outgoing {
    pub(crate) data: Data,
    /// The Nget that ends with these packets, if one does.
    pub(crate) ended: Option<Pending>,
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

    /// Looks for packets in the window, if it is shared.
    pub(crate) fn look(&mut self) {
        if let Some(window) = &mut self.window {
            window.look();
        }
    }

    /// The guest memory of the window, if the window is shared.
    pub(crate) fn shared(&self) -> Option<&SharedWindow> {
        self.window.as_ref()?.shared()
    }

    /// Makes the window guest memory, or registers again.
    pub(crate) fn share(&mut self, shared: Option<SharedWindow>) {
        self.clear();
        self.window().share(shared);
    }

    /// The mark that the next packet in a shared window will have.
    pub(crate) fn next_mark(&self) -> Option<u64> {
        self.window.as_ref()?.next_mark()
    }

    pub(crate) fn ngets(&self) -> usize {
        self.ngets.len() + self.pending.len()
    }

    /// Returns true if there is something to send. Without `dma`, Ngets wait.
    pub(crate) fn is_ready(&self, dma: bool) -> bool {
        self.next_source(dma).is_some()
    }

    /// Adds an Nget.
    ///
    /// # Errors
    ///
    /// [`Status::Full`] if there is no room for it.
    pub(crate) fn add(&mut self, request: Request) -> Result<(), Status> {
        if self.ngets() >= NGET_QUEUE {
            return Err(Status::Full);
        }
        // Packets that are already in a shared window go first.
        self.look();
        self.ngets.push_back(Nget { request, after: self.tail(), failed: Arc::default() });
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

    /// Takes up to `most` packets. Those of an Nget refer to its memory if `by_reference`.
    ///
    /// # Errors
    ///
    /// An Nget that failed because nothing of it can be sent.
    pub(crate) fn take(
        &mut self,
        channel: Channel,
        most: u16,
        memory: Option<&Arc<dyn DmaMemory>>,
        borrowed: bool,
    ) -> Result<Option<Outgoing>, Done> {
        let most = most.min(MAX_RUN).min((MOST_PACKETS - self.sent).min(u32::from(MAX_RUN)) as u16);
        let Some(source) = self.next_source(memory.is_some()).filter(|_| most > 0) else {
            return Ok(None);
        };
        let offset = self.sent as u16;
        let zeros = || Content::Bytes(Arc::from([0; PACKET_DATA]));
        let (content, count, last, ended) = match (source, memory) {
            (Source::Window, _) => {
                // The next message must not begin before an Nget that was posted earlier.
                let end = match (self.source, self.ngets.front()) {
                    (None, Some(nget)) => nget.after,
                    _ => u64::MAX,
                };
                let Some(window) = &mut self.window else { return Ok(None) };
                let Some(taken) = window.take(most, end) else { return Ok(None) };
                let count = (taken.data.len() / PACKET_DATA) as u32;
                (Content::Bytes(taken.data), count, taken.last, None)
            }
            (Source::Nget, Some(memory)) => self.fetch(most, memory, borrowed)?,
            (Source::Nget, None) => return Ok(None),
            (Source::Ending, _) => (zeros(), 1, true, None),
        };
        let last = last || self.sent + count >= MOST_PACKETS;
        if last {
            (self.source, self.sent) = (None, 0);
            self.messages += 1;
        } else {
            (self.source, self.sent) = (Some(source), self.sent + count);
        }
        let data = match content {
            Content::Bytes(bytes) => Data::new(channel, offset, last, bytes),
            Content::Borrowed(borrowed) => Data::borrowed(channel, offset, last, borrowed),
        };
        Ok(Some(Outgoing { data, ended }))
    }

    /// Fetches packets of the first Nget.
    fn fetch(
        &mut self,
        most: u16,
        memory: &Arc<dyn DmaMemory>,
        borrowed: bool,
    ) -> Result<Fetched, Done> {
        let zeros = || Content::Bytes(Arc::from([0; PACKET_DATA]));
        let Some(Nget { request, failed, .. }) = self.ngets.front() else {
            // Unreachable: the source is an Nget only if there is one.
            return Ok((zeros(), 1, true, None));
        };
        let (request, failed) = (*request, Arc::clone(failed));
        let fetched = u64::from(self.sent) * PACKET_DATA as u64;
        let left = u64::from(request.length).saturating_sub(fetched);
        let count = packets(left).min(most.into()) as usize;
        let bytes = left.min((count * PACKET_DATA) as u64) as usize;
        let address = request.address.saturating_add(fetched);
        let content = if borrowed {
            memory.contains(address, bytes, Access::Read).then(|| {
                let memory = Arc::clone(memory);
                Content::Borrowed(Borrowed::new(memory, address, bytes, Arc::clone(&failed)))
            })
        } else {
            let mut payload: Arc<[u8]> = std::iter::repeat_n(0, count * PACKET_DATA).collect();
            let read = Arc::get_mut(&mut payload)
                .map_or(Ok(()), |payload| memory.read(address, &mut payload[..bytes]));
            read.is_ok().then_some(Content::Bytes(payload))
        };
        let last = bytes as u64 == left;
        let Some(content) = content else {
            self.ngets.pop_front();
            let done = Done { request, status: Status::BadAddress, length: fetched as u32 };
            if self.sent == 0 {
                return Err(done);
            }
            return Ok((zeros(), 1, true, Some(Pending { done, failed, sent: 0 })));
        };
        if last {
            self.ngets.pop_front();
        }
        let done = Done { request, status: Status::Ok, length: request.length };
        let ended = last.then_some(Pending { done, failed, sent: 0 });
        Ok((content, count as u32, last, ended))
    }

    /// Adds an Nget that has been sent; `sent` is the number of packets sent over the link until
    /// then.
    pub(crate) fn post(&mut self, pending: Pending, sent: u64) {
        self.pending.push_back(Pending { sent, ..pending });
    }

    /// The next completed Nget, if none of the first `released` packets will be needed again.
    pub(crate) fn ended(&mut self, released: u64) -> Option<Done> {
        let pending = self.pending.pop_front_if(|pending| pending.sent <= released)?;
        Some(pending.end())
    }

    /// Cancels all Ngets. Their packets must have been kept. A message that has begun ends with the
    /// next packet that is sent.
    pub(crate) fn cancel(&mut self) -> Vec<Done> {
        if self.source == Some(Source::Nget) {
            self.source = Some(Source::Ending);
        }
        let mut sent = u64::from(self.sent) * PACKET_DATA as u64;
        let cancelled = |nget: Nget| {
            let length = std::mem::take(&mut sent).min(nget.request.length.into()) as u32;
            Done { request: nget.request, status: Status::Cancelled, length }
        };
        let ended = self.pending.drain(..).map(Pending::end);
        ended.chain(self.ngets.drain(..).map(cancelled)).collect()
    }

    /// Empties the window. A message that has begun ends with the next packet that is sent.
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
