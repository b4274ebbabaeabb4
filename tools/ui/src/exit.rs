//! Exit codes of the command.

/// The program or guest that was run has failed.
pub const FAILED: u8 = 1;
/// Bad input, or a host that cannot carry out the command.
pub const BAD_INPUT: u8 = 2;
/// Modelled time has got to where it was to stop.
pub const UNTIL: u8 = 125;
/// Ended by the user's Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// The reader of standard output has gone: what shells make of SIGPIPE.
pub const UNREAD: u8 = 141;

/// Ended by a signal: 128 and its number, as shells do.
pub fn of_signal(signal: i32) -> u8 {
    128 + (signal as u8 & 0x7f)
}
