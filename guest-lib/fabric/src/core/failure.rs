//! Reasons why operations fail.

/// The reason why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer does not exist, has ended, or refuses.
    Unreachable,
    /// The message was this many bytes longer than the memory for it.
    Truncated(usize),
    /// The program has canceled it.
    Canceled,
    /// A look for a message found none.
    NoMessage,
    /// The peer has no such region, or does not permit this use of it.
    Refused,
    /// There is no room for another peer, or no memory can be registered.
    NoRoom,
}
