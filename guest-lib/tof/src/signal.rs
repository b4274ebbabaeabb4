//! The signal that the kernel sends for exceptions of a queue or channel.
//!
//! It is SIGTERM unless the process chooses another one. Programs that use this library get
//! exceptions from completions and results, as on every platform. So the library chooses a signal
//! that the process ignores.
#![allow(unsafe_code)]

use std::sync::OnceLock;

/// A real-time signal that is ignored, if one is available: the highest one for which the program
/// has set no action when this is first called.
pub(crate) fn ignored() -> Option<i32> {
    static CHOSEN: OnceLock<Option<i32>> = OnceLock::new();
    *CHOSEN.get_or_init(|| (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|n| ignore(*n)))
}

/// Ignores a signal, unless the program has a handler for it.
fn ignore(number: i32) -> bool {
    // SAFETY: a structure of integers and a mask, for which zeroes are values.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes the structure.
    let known = unsafe { libc::sigaction(number, std::ptr::null(), &raw mut action) } == 0;
    if known && action.sa_sigaction == libc::SIG_DFL {
        action.sa_sigaction = libc::SIG_IGN;
        // SAFETY: the call reads the structure, which sets no handler.
        return unsafe { libc::sigaction(number, &raw const action, std::ptr::null_mut()) } == 0;
    }
    known && action.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_survives_the_signal() {
        let number = ignored().unwrap();
        assert!(number >= 32);
        assert_eq!(ignored(), Some(number));
        // SAFETY: no requirements.
        assert_eq!(unsafe { libc::raise(number) }, 0);
    }
}
