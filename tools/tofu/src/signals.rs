//! Ctrl-C and termination.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// While it lives, signals are forwarded; dropping it joins the thread.
pub(crate) struct Forwarding {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Calls `forward` with the number of each SIGINT and SIGTERM. A second one ends
/// the process at once, for the case that stopping hangs.
pub(crate) fn forward(forward: impl Fn(i32) + Send + 'static) -> io::Result<Forwarding> {
    let armed = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds it unarmed and arms it.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, armed.clone())?;
        signal_hook::flag::register(signal, armed.clone())?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let handle = signals.handle();
    let thread = thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            forward(signal);
        }
    })?;
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
