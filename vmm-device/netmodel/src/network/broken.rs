//! Messages that have lost a frame, so that each loss is reported once.

use std::collections::BTreeMap;

/// The number of messages that are remembered before it is worth checking whose frames are all
/// gone.
const FEW: usize = 64;

/// Which frame of its message was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Others follow.
    Earlier,
    /// The last one: earlier ones may still be in flight, or be lost further on.
    Last,
    /// The only one.
    Only,
}

/// The tokens of messages that have lost a frame and may have others in flight.
#[derive(Debug)]
pub(super) struct Broken {
    /// True if the last frame is lost, too. A whole message with that token is then another one.
    tokens: BTreeMap<u64, bool>,
    /// The number that may be remembered before the next check.
    limit: usize,
}

impl Broken {
    pub(super) const fn new() -> Self {
        Self { tokens: BTreeMap::new(), limit: FEW }
    }

    /// Notes that the last frame of a message has arrived. Returns whether the others have.
    pub(super) fn is_whole(&mut self, token: u64) -> bool {
        self.tokens.is_empty() || self.tokens.remove(&token).is_none_or(|ended| ended)
    }

    /// Notes that a frame was lost. Returns whether it is the first of its message.
    pub(super) fn is_first(&mut self, token: u64, which: Which) -> bool {
        match which {
            Which::Only => true,
            Which::Earlier => {
                let mut first = false;
                self.tokens.entry(token).or_insert_with(|| {
                    first = true;
                    false
                });
                first
            }
            Which::Last => self.tokens.insert(token, true).is_none_or(|ended| ended),
        }
    }

    /// Returns true if it is time to check whose frames are all gone.
    pub(super) fn is_full(&self) -> bool {
        self.tokens.len() >= self.limit
    }

    /// The tokens of messages whose last frame is lost, in order.
    pub(super) fn ended(&self) -> Vec<u64> {
        self.tokens.iter().filter(|(_, ended)| **ended).map(|(token, _)| *token).collect()
    }

    /// Forgets messages without frames in flight.
    pub(super) fn forget(&mut self, gone: impl Iterator<Item = u64>) {
        gone.for_each(|token| {
            self.tokens.remove(&token);
        });
        self.limit = FEW.max(2 * self.tokens.len());
    }

    /// The memory that it takes, roughly.
    pub(super) fn bytes(&self) -> usize {
        self.tokens.len() * size_of::<(u64, bool)>()
    }
}
