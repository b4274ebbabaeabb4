//! Shows the progress of building images.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tofu_image::{Phase, Progress};
use tofu_sync::lock;

/// Returns true if the user has stopped it.
pub fn is_interrupted(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(tofu_image::Error::Interrupted))
}

/// Progress on a terminal; without one, a line for each phase.
#[derive(Debug)]
pub struct ImageProgress {
    cancelled: Arc<AtomicBool>,
    terminal: bool,
    state: Mutex<(Option<Phase>, Option<ProgressBar>)>,
}

impl ImageProgress {
    /// Nothing is shown before there is work to do.
    pub fn new(cancelled: Arc<AtomicBool>, terminal: bool) -> Self {
        Self { cancelled, terminal, state: Mutex::default() }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        let mut state = lock(&self.state);
        if let Some(bar) = state.1.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for ImageProgress {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Progress for ImageProgress {
    fn update(&self, phase: Phase, done: u64, total: u64) {
        let mut state = lock(&self.state);
        let (last, bar) = &mut *state;
        let begins = *last != Some(phase);
        *last = Some(phase);
        if !self.terminal {
            if begins {
                say(&phase.to_string());
            }
            return;
        }
        let bar = bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(0);
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        if begins {
            let template = match phase {
                Phase::Download => "{msg} {bar:24} {bytes}/{total_bytes} {elapsed}",
                _ => "{msg} {spinner} {elapsed}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(format!("image: {phase}"));
        }
        bar.set_length(total);
        bar.set_position(done);
    }

    fn note(&self, text: &str) {
        let state = lock(&self.state);
        match &state.1 {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(SeqCst)
    }
}

/// Prints a line, whether or not there is a reader.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "tofu: image: {text}");
}
