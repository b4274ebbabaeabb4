//! How the results of commands are printed.

use std::io::{self, Write};

use clap::Args;

#[derive(Args)]
pub(crate) struct Output {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Output {
    /// Prints `value` as JSON, or else calls `text`.
    pub(crate) fn print(
        &self,
        value: &serde_json::Value,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        let written = if self.json { writeln!(out, "{value}") } else { text(&mut out) };
        match written.and_then(|()| out.flush()) {
            // Whoever reads has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => Ok(other?),
        }
    }
}
