//! Ctrl-C and termination.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// While it lives, signals are forwarded; dropping it joins the thread.
pub struct Forwarding {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Wrappers such as `timeout` and some shells deliver one Ctrl-C twice; signals this soon after the
/// first count as the same.
pub const SAME: Duration = Duration::from_millis(500);

const CANNOT: &str = "cannot handle signals";

/// A flag that becomes true with the first SIGINT or SIGTERM that [`forward`] gets.
///
/// # Errors
///
/// As of [`forward`].
pub fn flag() -> anyhow::Result<(Arc<AtomicBool>, Forwarding)> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    Ok((flag, forward(move |_| set.store(true, SeqCst))?))
}

/// Calls `forward` with the number of the first SIGINT or SIGTERM. A later one ends
/// the process at once, in case stopping hangs.
///
/// # Errors
///
/// If the host has no descriptors or threads left.
pub fn forward(forward: impl Fn(i32) + Send + 'static) -> anyhow::Result<Forwarding> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context(CANNOT)?;
    let handle = signals.handle();
    let thread = thread::Builder::new().name("signals".into()).spawn(move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            match first {
                None => {
                    first = Some(Instant::now());
                    forward(signal);
                }
                Some(first) if first.elapsed() < SAME => {}
                Some(_) => std::process::exit(128 + signal),
            }
        }
    });
    let thread = thread.context(CANNOT)?;
    Ok(Forwarding { handle, thread: Some(thread) })
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It has nothing to return, and a panic there has been printed.
            let _ = thread.join();
        }
    }
}
