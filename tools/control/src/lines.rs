//! Messages as lines of JSON.

use std::io::{self, BufRead, BufReader, Read};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// The most bytes of a request, including its line end.
pub const MAX_REQUEST: usize = 256 << 10;
/// The most bytes of a reply, which must hold all nodes of a machine.
pub(crate) const MAX_REPLY: usize = 64 << 20;

/// The memory that a reader keeps for further lines, in bytes.
const KEPT: usize = 64 << 10;

/// The reason why there is no message.
#[derive(Debug, Error)]
pub enum LineError {
    /// The stream is broken.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line is too long; the rest of it is still to come.
    #[error("a line of more than {0} bytes")]
    TooLong(usize),
    /// A line is not a message; it was skipped.
    #[error("{0}")]
    Malformed(#[from] serde_json::Error),
}

/// Encodes a message as a line, including its end.
///
/// # Errors
///
/// None for the messages of [`protocol`](crate::protocol).
pub fn encode<T: Serialize>(message: &T) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Reads messages from a stream.
#[derive(Debug)]
pub struct LineReader<R> {
    stream: BufReader<R>,
    most: usize,
    line: Vec<u8>,
}

impl<R: Read> LineReader<R> {
    /// Reads `stream`, whose lines have up to `most` bytes.
    pub fn new(stream: R, most: usize) -> Self {
        Self { stream: BufReader::new(stream), most, line: Vec::new() }
    }

    /// Returns the stream, with the bytes that were read from it and do not make a message yet.
    pub fn into_inner(self) -> BufReader<R> {
        self.stream
    }

    /// Waits for the next message. Returns `None` at the end of the stream. An incomplete line at
    /// the end is not an error, because its sender may have died. Empty lines are ignored.
    ///
    /// # Errors
    ///
    /// After [`LineError::Malformed`] the next call continues with the next line.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LineError> {
        self.receive_with(|_| Ok(()))
    }

    /// Like [`LineReader::receive`], but calls `before` with the stream before each read. A message
    /// may take many reads.
    ///
    /// # Errors
    ///
    /// Also those of `before`. The part of a message that was read is then lost.
    pub(crate) fn receive_with<T: DeserializeOwned>(
        &mut self,
        mut before: impl FnMut(&R) -> io::Result<()>,
    ) -> Result<Option<T>, LineError> {
        loop {
            self.line.clear();
            // One long line must not hold its memory for as long as the connection lives.
            self.line.shrink_to(KEPT);
            while !self.line.ends_with(b"\n") {
                if self.line.len() >= self.most {
                    return Err(LineError::TooLong(self.most));
                }
                before(self.stream.get_ref())?;
                let read = match self.stream.fill_buf() {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read?,
                };
                if read.is_empty() {
                    return Ok(None);
                }
                let room = &read[..read.len().min(self.most - self.line.len())];
                let taken =
                    room.iter().position(|byte| *byte == b'\n').map_or(room.len(), |at| at + 1);
                self.line.extend_from_slice(&room[..taken]);
                self.stream.consume(taken);
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(Some(serde_json::from_slice(&self.line)?));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_one_by_one() {
        let mut reader = LineReader::new(&b"1\n\n  \r\nx\n[2, 3]\r\n4"[..], 16);
        assert_eq!(reader.receive::<u8>().unwrap(), Some(1));
        assert!(matches!(reader.receive::<u8>(), Err(LineError::Malformed(_))));
        assert_eq!(reader.receive::<Vec<u8>>().unwrap(), Some(vec![2, 3]));
        // The end came in the middle of a line.
        assert_eq!(reader.receive::<u8>().unwrap(), None);
    }

    #[test]
    fn time_is_for_a_whole_message() {
        /// Sends a byte at a time.
        struct Slow<'a>(&'a [u8]);

        impl Read for Slow<'_> {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.0.read(&mut buf[..1])
            }
        }

        let mut left = 4;
        let mut reader = LineReader::new(Slow(b"[1,2,3]\n"), 16);
        let result = reader.receive_with::<Vec<u8>>(|_| match left {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => {
                left -= 1;
                Ok(())
            }
        });
        assert!(matches!(result, Err(LineError::Io(_))), "{result:?}");
    }

    #[test]
    fn lines_have_an_end() {
        let mut reader = LineReader::new(&b"\"0123456789\"\n"[..], 8);
        assert!(matches!(reader.receive::<String>(), Err(LineError::TooLong(8))));
    }
}
