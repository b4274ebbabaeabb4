//! The user's own terminal.

use std::io;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// A terminal that passes on every key. Dropping this restores the terminal.
pub(crate) struct Raw {
    former: Termios,
}

impl Raw {
    /// From now on.
    ///
    /// # Errors
    ///
    /// If standard input is not a terminal.
    pub(crate) fn enter() -> anyhow::Result<Self> {
        let former = tcgetattr(io::stdin())?;
        let mut raw = former.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { former })
    }

    /// Restores the terminal; for a process that ends without dropping this.
    pub(crate) fn leave(&self) {
        // The terminal may be gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.former);
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.leave();
    }
}
