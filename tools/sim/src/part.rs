//! Scenarios over several processes.

use tofu_fabric::network::{Exchange, Share};

/// The part of a scenario that this process runs, and how it reaches the others.
pub struct Part {
    /// Its number, from 0.
    pub own: u32,
    /// How many there are.
    pub of: u32,
    /// Makes an exchange with the same others.
    pub exchange: Box<dyn Fn() -> Box<dyn Exchange>>,
}

impl Part {
    pub(crate) fn share(&self) -> Share {
        Share { own: self.own, of: self.of, exchange: (self.exchange)() }
    }
}

/// What has to be the same for all parts of a scenario.
pub struct Common<'a> {
    /// The scenario file.
    pub text: &'a str,
    /// Threads of each part.
    pub threads: u32,
}

/// Meets the other parts of a scenario.
pub type Meet<'a> = dyn FnOnce(&Common<'_>) -> anyhow::Result<Part> + 'a;
