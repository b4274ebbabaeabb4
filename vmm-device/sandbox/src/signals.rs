//! Signals to the process, which confined threads leave to others.

use libc::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
    SIGWINCH,
};
use vmm_sys_util::signal::{self, Error};

/// Signals that another process or a terminal sends. The kernel runs a handler on any thread that
/// does not block the signal, and a handler may make system calls that a role may not: that of
/// signal-hook calls sendto(2).
const OF_THE_PROCESS: [i32; 11] = [
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
    SIGWINCH,
];

/// Blocks them on the calling thread.
pub(crate) fn leave_to_others() -> Result<(), Error> {
    OF_THE_PROCESS.into_iter().try_for_each(|number| match signal::block_signal(number) {
        Err(Error::SignalAlreadyBlocked(_)) => Ok(()),
        blocked => blocked,
    })
}
