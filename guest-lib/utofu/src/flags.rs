//! Flags, as bits of an `unsigned long`.

use crate::error::{Code, Error};

/// VCQ: several threads use it at the same time.
pub(crate) const VCQ_THREAD_SAFE: u64 = 1 << 0;
/// VCQ: it shares its control queue with no other.
pub const VCQ_EXCLUSIVE: u64 = 1 << 1;
/// VCQ: its commands start when a peer's command triggers them (session mode).
pub const VCQ_SESSION_MODE: u64 = 1 << 2;

/// VBG: several threads use it at the same time.
pub(crate) const VBG_THREAD_SAFE: u64 = 1 << 0;

/// Registered memory: peers may read it, but not write it.
pub const REG_MEM_READ_ONLY: u64 = 1 << 0;

/// Command: the last bytes of a Put become visible after all others.
pub const STRONG_ORDER: u64 = 1 << 0;
/// Command: packets are answered one by one, which has no effect visible to a program.
pub const PACKET_RESPONSE: u64 = 1 << 1;
/// Command: the target's message receive queue gets a notice.
pub const REMOTE_MRQ_NOTICE: u64 = 1 << 2;
/// Command: packets are padded to whole cache lines on the wire.
pub const PADDING: u64 = 1 << 3;
/// Command: data goes into the target's cache.
pub const CACHE_INJECTION: u64 = 1 << 5;
/// Command: it waits for the next command without this flag.
pub const DELAY_START: u64 = 1 << 8;
/// Command: its completion is reported by the transmit complete queue.
pub const TCQ_NOTICE: u64 = 1 << 14;
/// Command: its completion is reported by the sender's message receive queue.
pub const LOCAL_MRQ_NOTICE: u64 = 1 << 15;

/// Flags that commands can have, with session steps (27:24) and path ID (31:28).
const COMMAND: u64 = 0xff00_0000
    | STRONG_ORDER
    | PACKET_RESPONSE
    | REMOTE_MRQ_NOTICE
    | PADDING
    | CACHE_INJECTION
    | DELAY_START
    | TCQ_NOTICE
    | LOCAL_MRQ_NOTICE;

/// Returns the flags by which a command advances the target's session, by 0 to 15 steps.
pub const fn sps(steps: u8) -> u64 {
    (steps as u64 & 15) << 24
}

/// Returns the flags for the path of a command, from
/// [`VcqId::path_id_of`](crate::ids::VcqId::path_id_of).
pub const fn path(path_id: u8) -> u64 {
    (path_id as u64 & 15) << 28
}

/// Checks the flags of a command.
#[inline]
pub(crate) fn check_command(flags: u64) -> Result<u64, Error> {
    check(flags, COMMAND, "flags of a command")
}

/// Checks that `flags` has no bits other than those in `allowed`.
///
/// # Errors
///
/// [`Code::InvalidFlags`] if it has.
#[inline]
pub fn check(flags: u64, allowed: u64, what: &'static str) -> Result<u64, Error> {
    if flags & !allowed == 0 {
        Ok(flags)
    } else {
        let hint = "these bits are no flags here";
        Err(Error::with_value(Code::InvalidFlags, what, flags & !allowed, hint))
    }
}
