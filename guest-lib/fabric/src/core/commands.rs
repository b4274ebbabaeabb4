//! Commands of the device that have not ended.

use super::peers::Number;

/// The purpose of a command of the device.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    Fill { peer: Number, send: Option<u64> },
    Get { fetch: u64 },
}

/// Commands of the device, by token.
#[derive(Debug, Default)]
pub(super) struct Commands {
    all: Vec<Option<Command>>,
    free: Vec<u32>,
}

impl Commands {
    pub(super) fn add(&mut self, command: Command) -> u32 {
        if let Some(token) = self.free.pop() {
            self.all[token as usize] = Some(command);
            return token;
        }
        self.all.push(Some(command));
        self.all.len() as u32 - 1
    }

    pub(super) fn take(&mut self, token: u32) -> Option<Command> {
        let command = self.all.get_mut(token as usize)?.take()?;
        self.free.push(token);
        Some(command)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.all.len()
    }
}
