//! Rounds of messages among all parts. Each part waits for the messages of all others.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tofu_fabric::PartId;
use tofu_machine::{MAX_MESSAGE, Transport};
use tofu_netmodel::Exchange;
use tofu_sync::lock;

use crate::mesh::{Mesh, News, Receive};

/// Values of the first byte of a chunk: the message ends here, or there is more.
const LAST: u8 = 0;
const MORE: u8 = 1;
/// Maximum size of a message, in bytes *(ours)*: more than two parts of the largest machine have
/// for each other in a round.
const MOST: usize = 128 << 20;
/// The most messages of a part that wait here. A part is at most a round ahead.
const AHEAD: usize = 2;

/// The rounds of a part. Clones refer to the same rounds.
#[derive(Clone)]
pub struct Rounds {
    mesh: Arc<Mesh>,
    inbox: Arc<Inbox>,
}

impl std::fmt::Debug for Rounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rounds").field("at", &self.mesh.address()).finish_non_exhaustive()
    }
}

impl Rounds {
    /// Creates rounds among parts that have connected to each other.
    ///
    /// # Errors
    ///
    /// If the host has no threads left.
    pub fn new(mesh: Mesh) -> io::Result<Self> {
        let mesh = Arc::new(mesh);
        let parts = mesh.peers().len() + 1;
        let inbox = Arc::new(Inbox {
            parts: Mutex::new((0..parts).map(|_| Part::default()).collect()),
            changed: Condvar::new(),
        });
        let (to, first): (Arc<dyn Receive>, Arc<dyn Fn() + Send + Sync>) =
            (Arc::clone(&inbox) as _, Arc::new(|| ()));
        mesh.start(&to, &first)?;
        Ok(Self { mesh, inbox })
    }

    /// Leaves once all other parts have received their messages.
    pub fn leave(mut self) {
        let mut messages = vec![Vec::new(); lock(&self.inbox.parts).len()];
        // A part that has left already has received its message.
        let _ = self.round(&mut messages);
        self.mesh.leave();
    }

    fn send(&self, to: PartId, message: &[u8]) {
        let mut pieces = message.chunks(MAX_MESSAGE - 1).peekable();
        loop {
            let piece = pieces.next().unwrap_or_default();
            let more = pieces.peek().is_some();
            let mut body = Vec::with_capacity(1 + piece.len());
            body.push(if more { MORE } else { LAST });
            body.extend_from_slice(piece);
            // If the part is gone, waiting for its message fails.
            if !self.mesh.send(to, body) || !more {
                return;
            }
        }
    }
}

impl Exchange for Rounds {
    fn round(&mut self, messages: &mut [Vec<u8>]) -> io::Result<()> {
        let others: Vec<_> = self.mesh.peers().into_iter().map(|peer| peer.part).collect();
        for &part in &others {
            if let Some(message) = messages.get(part.index()) {
                self.send(part, message);
            }
        }
        for part in others {
            if let Some(message) = messages.get_mut(part.index()) {
                *message = self.inbox.next(part)?;
            }
        }
        Ok(())
    }
}

/// Received messages.
struct Inbox {
    parts: Mutex<Vec<Part>>,
    changed: Condvar,
}

#[derive(Default)]
struct Part {
    /// The incomplete message.
    begun: Vec<u8>,
    messages: VecDeque<Vec<u8>>,
    /// The reason for which no more messages come, if there is one.
    gone: Option<String>,
}

impl Part {
    fn take(&mut self, piece: &[u8]) {
        let Some((&more, piece)) = piece.split_first() else {
            self.gone = Some("it says what is not known".to_owned());
            return;
        };
        if self.begun.len() + piece.len() > MOST || self.messages.len() >= AHEAD {
            self.gone.get_or_insert_with(|| "it says more than it may".to_owned());
        }
        if self.gone.is_some() {
            return;
        }
        self.begun.extend_from_slice(piece);
        if more == LAST {
            self.messages.push_back(std::mem::take(&mut self.begun));
        }
    }
}

impl Inbox {
    /// Waits for the next message of a part.
    fn next(&self, part: PartId) -> io::Result<Vec<u8>> {
        let nothing = |parts: &mut Vec<Part>| {
            parts.get(part.index()).is_some_and(|of| of.messages.is_empty() && of.gone.is_none())
        };
        let parts = self.changed.wait_while(lock(&self.parts), nothing);
        let mut parts = parts.unwrap_or_else(PoisonError::into_inner);
        let Some(of) = parts.get_mut(part.index()) else {
            return Err(io::Error::new(
                ErrorKind::NotConnected,
                format!("there is no part {part}"),
            ));
        };
        of.messages.pop_front().ok_or_else(|| {
            let why = of.gone.clone().unwrap_or_default();
            io::Error::new(ErrorKind::NotConnected, format!("part {part} is lost: {why}"))
        })
    }

    fn with(&self, part: PartId, change: impl FnOnce(&mut Part)) {
        if let Some(of) = lock(&self.parts).get_mut(part.index()) {
            change(of);
        }
        self.changed.notify_all();
    }
}

impl Receive for Inbox {
    fn message(&self, from: PartId, message: &[u8]) {
        self.with(from, |of| of.take(message));
    }

    fn room(&self) {}

    fn news(&self, news: News) {
        // A part that comes back has lost all earlier messages and is of no use.
        if let News::Went(part, why) = news {
            self.with(part, |of| {
                of.gone.get_or_insert(why);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_pieces_and_not_too_many_ahead() {
        let mut part = Part::default();
        part.take(&[MORE, 1, 2]);
        assert!(part.messages.is_empty());
        part.take(&[LAST, 3]);
        part.take(&[LAST]);
        assert_eq!(part.messages, [vec![1, 2, 3], vec![]]);
        part.take(&[LAST, 9]);
        assert_eq!((part.messages.len(), part.gone.is_some()), (2, true));
        let mut bad = Part::default();
        bad.take(&[]);
        assert!(bad.gone.is_some());
    }
}
