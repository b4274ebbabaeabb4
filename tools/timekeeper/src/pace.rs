//! The connection to the machine: where the guest is in time, and how far it may run.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// Version of the protocol.
const VERSION: u32 = 2;
/// Kinds of messages.
const BEGIN: u32 = 1;
const AT: u32 = 2;
const ASLEEP: u32 = 3;
const ACCESS: u32 = 4;
/// The most vectors of an answer that are believed.
const MOST_VECTORS: u32 = 4096;

/// The machine's answer.
pub(crate) struct Go {
    /// The time until which the guest may run, in nanoseconds.
    pub(crate) until_ns: u64,
    /// Vectors of the device that have fired.
    pub(crate) vectors: Vec<u32>,
}

/// A connection to the machine.
pub(crate) struct Pace(UnixStream);

impl Pace {
    /// Connects to the socket of a node's pace.
    ///
    /// # Errors
    ///
    /// If nothing serves it.
    pub(crate) fn connect(path: &str) -> io::Result<Self> {
        UnixStream::connect(path).map(Self)
    }

    /// By a connection that is there.
    pub(crate) const fn on(socket: UnixStream) -> Self {
        Self(socket)
    }

    /// Begins. Waits until the guests of all nodes have.
    ///
    /// # Errors
    ///
    /// If the machine ends, or speaks another version.
    pub(crate) fn begin(&mut self) -> io::Result<Go> {
        self.tell([BEGIN, VERSION], [0, 0])
    }

    /// Tells where the guest is, and waits until the machine has got there.
    ///
    /// # Errors
    ///
    /// If the machine ends.
    pub(crate) fn at(&mut self, ns: u64) -> io::Result<Go> {
        self.tell([AT, 0], [ns, 0])
    }

    /// The same before an access to the device. The machine waits for the next message, which says
    /// where the guest is after it.
    ///
    /// # Errors
    ///
    /// If the machine ends.
    pub(crate) fn access(&mut self, ns: u64) -> io::Result<Go> {
        self.tell([ACCESS, 0], [ns, 0])
    }

    /// The same of a guest that sleeps until a time, if nothing happens at its node before.
    ///
    /// # Errors
    ///
    /// If the machine ends.
    pub(crate) fn asleep(&mut self, ns: u64, until_ns: u64) -> io::Result<Go> {
        self.tell([ASLEEP, 0], [ns, until_ns])
    }

    fn tell(&mut self, [kind, version]: [u32; 2], [ns, until_ns]: [u64; 2]) -> io::Result<Go> {
        let head = [kind.to_le_bytes(), version.to_le_bytes()].concat();
        let times = [ns.to_le_bytes(), until_ns.to_le_bytes()].concat();
        self.0.write_all(&[head, times].concat())?;
        let mut message = [0; 16];
        self.0.read_exact(&mut message)?;
        let word =
            |at: usize| message[at..at + 4].iter().rev().fold(0, |n, &b| n << 8 | u32::from(b));
        let count = word(8);
        if count > MOST_VECTORS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{count} vectors")));
        }
        let mut bytes = vec![0; count as usize * 4];
        self.0.read_exact(&mut bytes)?;
        let vectors = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Ok(Go { until_ns: u64::from(word(4)) << 32 | u64::from(word(0)), vectors })
    }
}
