//! The user's terminal as a full screen.

use std::io::{self, Write};

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::Modifier;
use rustix::termios::tcgetwinsize;

use crate::commands::terminal::Raw;

/// The other screen of the terminal, in raw mode. Dropping it restores the terminal.
pub(super) struct Screen {
    /// Restores the modes.
    _raw: Raw,
}

impl Screen {
    /// From now on.
    pub(super) fn enter() -> anyhow::Result<Self> {
        let screen = Self { _raw: Raw::enter()? };
        write(b"\x1b[?1049h\x1b[?25l\x1b[2J")?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = write(b"\x1b[0m\x1b[?25h\x1b[?1049l");
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

impl Backend for Screen {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut bytes = Vec::new();
        for (x, y, cell) in content {
            let bold = if cell.modifier.contains(Modifier::BOLD) { ";1" } else { "" };
            let reversed = if cell.modifier.contains(Modifier::REVERSED) { ";7" } else { "" };
            write!(bytes, "\x1b[{};{}H\x1b[0{bold}{reversed}m", y + 1, x + 1)?;
            bytes.extend_from_slice(cell.symbol().as_bytes());
        }
        bytes.extend_from_slice(b"\x1b[0m");
        write(&bytes)
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        write(b"\x1b[?25l")
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        write(b"\x1b[?25h")
    }

    /// The cursor is hidden, so its position does not matter.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        write(format!("\x1b[{};{}H", y + 1, x + 1).as_bytes())
    }

    fn clear(&mut self) -> io::Result<()> {
        write(b"\x1b[2J")
    }

    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(io::stdout())?;
        // A serial line does not know.
        match (size.ws_col, size.ws_row) {
            (0, _) | (_, 0) => Ok(Size::new(80, 24)),
            (columns, rows) => Ok(Size::new(columns, rows)),
        }
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().lock().flush()
    }
}
