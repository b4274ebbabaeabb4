//! Messages of which a frame was lost, so that each is told once.

use std::collections::BTreeMap;

/// As many messages as are remembered before it is worth looking whose frames are all gone.
const FEW: usize = 64;

/// Which frame of its message was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Others follow.
    Earlier,
    /// It is the last one: those before it may still be under way, or be lost further on.
    Last,
    /// It is the only one.
    Only,
}

/// The tokens of messages that have lost a frame and may have others under way.
#[derive(Debug)]
pub(super) struct Broken {
    /// Whether the last frame is lost, too: then the token is another message's if a whole one has
    /// it.
    tokens: BTreeMap<u64, bool>,
    /// How many may be remembered before the next look.
    limit: usize,
}

impl Broken {
    pub(super) const fn new() -> Self {
        Self { tokens: BTreeMap::new(), limit: FEW }
    }

    /// The last frame of a message has arrived. Says whether the others have.
    pub(super) fn is_whole(&mut self, token: u64) -> bool {
        self.tokens.is_empty() || self.tokens.remove(&token).is_none_or(|ended| ended)
    }

    /// A frame was lost. Says whether it is the first of its message.
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

    /// Whether it is time to look whose frames are all gone.
    pub(super) fn is_full(&self) -> bool {
        self.tokens.len() >= self.limit
    }

    /// The tokens of messages whose last frame is lost, in order.
    pub(super) fn ended(&self) -> Vec<u64> {
        self.tokens.iter().filter(|(_, ended)| **ended).map(|(token, _)| *token).collect()
    }

    /// Forgets messages no frame of which is under way.
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
