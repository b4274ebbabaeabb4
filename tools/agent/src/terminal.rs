//! Terminals for programs that the host has started on one.

use std::fs::{File, OpenOptions};
use std::io;
use std::process::Command;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::cross_arch;
use crate::wire::WindowSize;

/// The word that makes the agent [`become_program`].
pub const WORD: &str = "terminal";

/// The host's side of a terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    file: File,
    /// The path of the program's side.
    pub(crate) path: String,
}

impl Terminal {
    /// A new terminal.
    ///
    /// # Errors
    ///
    /// If the guest has no more of them, or no file system for them.
    pub(crate) fn open(size: WindowSize) -> io::Result<Self> {
        let file = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&file)?;
        unlockpt(&file)?;
        let path = ptsname(&file, Vec::new())?;
        let path = path.into_string().map_err(|_| io::ErrorKind::InvalidData)?;
        let terminal = Self { file: file.into(), path };
        terminal.resize(size)?;
        Ok(terminal)
    }

    /// Another handle of the host's side, for input and the program's output.
    pub(crate) fn stream(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Sets its size. The programs in its foreground are notified by SIGWINCH.
    pub(crate) fn resize(&self, size: WindowSize) -> io::Result<()> {
        let (ws_row, ws_col) = (size.rows, size.columns);
        let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.file, size)?)
    }
}

/// Makes the terminal at `path` control this process, and then turns the process into the program
/// `words`. It returns only if that is not possible.
pub fn become_program(path: &str, words: &[&str]) -> io::Error {
    let attach = || {
        rustix::process::setsid()?;
        // The first terminal that a session's leader opens controls it.
        let terminal = OpenOptions::new().read(true).write(true).open(path)?;
        rustix::stdio::dup2_stdin(&terminal)?;
        rustix::stdio::dup2_stdout(&terminal)?;
        rustix::stdio::dup2_stderr(&terminal)?;
        io::Result::Ok(())
    };
    if let Err(error) = attach() {
        return error;
    }
    match words.split_first() {
        Some((name, args)) => cross_arch::exec(Command::new(name).args(args)),
        None => io::ErrorKind::InvalidInput.into(),
    }
}
