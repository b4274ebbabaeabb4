//! Scenarios over several processes.

use tofu_netmodel::{Exchange, Share};

/// One part of a scenario, which this process runs, with its connection to the others.
pub struct Part {
    /// Its number, from 0.
    pub own: u32,
    /// The number of parts.
    pub of: u32,
    /// Makes another exchange with the same parts.
    pub exchange: Box<dyn Fn() -> Box<dyn Exchange>>,
}

impl Part {
    pub(crate) fn share(&self) -> Share {
        Share { own: self.own, of: self.of, exchange: (self.exchange)() }
    }
}

/// What must be the same for all parts of a scenario.
pub struct Common<'a> {
    /// The scenario file.
    pub text: &'a str,
    /// Threads of each part.
    pub threads: u32,
}

/// Meets the other parts of a scenario.
pub type Meet<'a> = dyn FnOnce(&Common<'_>) -> anyhow::Result<Part> + 'a;
