//! Ctrl-C and termination.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::exit;

/// While it lives, signals are forwarded; dropping it joins the thread.
pub struct Forwarding {
    over: Arc<AtomicBool>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Wrappers such as `timeout` and some shells deliver one Ctrl-C twice; signals this soon after the
/// first count as the same.
pub const SAME: Duration = Duration::from_millis(500);

/// The time limit for a command to end after a signal if it has nothing to clean up.
pub const GRACE: Duration = Duration::from_secs(5);
/// The same if it has machines, nodes or files to clean up.
pub const CLEANING: Duration = Duration::from_secs(10);

const CANNOT: &str = "cannot handle signals";

/// A flag that becomes true with the first SIGINT or SIGTERM that [`forward`] gets.
///
/// # Errors
///
/// As of [`forward`].
pub fn flag(grace: Duration) -> anyhow::Result<(Arc<AtomicBool>, Forwarding)> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    Ok((flag, forward(grace, move |_| set.store(true, SeqCst))?))
}

/// Calls `forward` with the number of the first SIGINT or SIGTERM. If stopping hangs, the process
/// ends immediately on a second signal, and otherwise after `grace`.
///
/// # Errors
///
/// If the host has no descriptors or threads left.
pub fn forward(
    grace: Duration,
    forward: impl Fn(i32) + Send + 'static,
) -> anyhow::Result<Forwarding> {
    let over = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&over);
    let mut signals = Signals::new([SIGINT, SIGTERM]).context(CANNOT)?;
    let handle = signals.handle();
    let thread = thread::Builder::new().name("signals".into()).spawn(move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            match first {
                None => {
                    first = Some(Instant::now());
                    // First, because `forward` may wait for what hangs.
                    let ended = Arc::clone(&ended);
                    after(grace, move || {
                        if !ended.load(SeqCst) {
                            late(signal, grace);
                        }
                    });
                    forward(signal);
                }
                Some(first) if first.elapsed() < SAME => {}
                Some(_) => std::process::exit(exit::of_signal(signal).into()),
            }
        }
    });
    let thread = thread.context(CANNOT)?;
    Ok(Forwarding { over, handle, thread: Some(thread) })
}

/// Calls `then` after a time, on a thread that ends with the process.
pub fn after(time: Duration, then: impl FnOnce() + Send + 'static) {
    let run = move || {
        thread::sleep(time);
        then();
    };
    // Without threads, a second signal still ends the process.
    let _ = thread::Builder::new().name("grace".into()).spawn(run);
}

/// Ends this process, which has not ended by itself within the time limit after a signal.
fn late(signal: i32, grace: Duration) -> ! {
    let seconds = grace.as_secs_f64();
    crate::tell!("tofu: not ended {seconds} s after signal {signal}; ending without cleaning up");
    std::process::exit(exit::of_signal(signal).into())
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It has nothing to return, and a panic there has been printed.
            let _ = thread.join();
        }
    }
}
