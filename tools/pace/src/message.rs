//! Messages on the stream between a plugin and the machine. Numbers are little-endian.
//!
//! | plugin to machine | bytes | |
//! |---|---|---|
//! | kind | 4 | [`BEGIN`], [`AT`], [`ASLEEP`], [`ACCESS`] or [`PASSED`] |
//! | version | 4 | [`VERSION`](crate::VERSION) in the first message; 0 later |
//! | time | 8 | of the guest, in nanoseconds; more than 0 in the first message of a clone |
//! | until | 8 | of a guest that is asleep: when its next timer is due; else 0 |
//!
//! | machine to plugin | bytes | |
//! |---|---|---|
//! | until | 8 | the time until which the guest may run; no later than where it is if time stops |
//! | count | 4 | number of vectors, [`MOST_VECTORS`] at most |
//! | guest | 4 | in the first answer, the guest's number among the pages; 0 later |
//! | console, agent | 4 each | bytes of input for either port, [`INPUT`] at most |
//! | vectors | 4 each | MSI-X vectors of the device that have fired |
//! | input | | that of the console, then that of the agent |
//!
//! 1. The plugin sends `BEGIN` once, and gets its answer when time begins.
//! 2. It sends `AT` when the guest has got to `until`. The answer comes when the machine has got
//!    there, which may take as long as the other guests need. Until the plugin sends `AT` again,
//!    nothing happens at the node, and the guest must not run beyond `until`.
//! 3. Before each access to the device it sends `ACCESS`, and after it `AT`; the machine stands
//!    still in between.
//! 4. A guest that is asleep may go to the time of its next timer, or to where something happens at
//!    its node, which it learns when it sends `AT` there.
//! 5. If time stands still, the guest stops before its next instruction. When it is continued, it
//!    repeats its message first. The answer brings what it would have got without the pause.
//!
//! Time does not go back: a plugin that reports that is disconnected. Interrupts are delivered when
//! an answer brings them. A guest begins when the machine has reached the time of its clock. A
//! plugin of a node whose guest has ended may connect later, and its guest begins at the present
//! time of the machine at the earliest. The answer to `AT` is computed from the events in flight
//! and from what the other guests could still cause (`Turn::horizon` of the crate `tofu-timed`).

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::pages::MOST_GUESTS;
use crate::{INPUT, PORTS};

/// Begins a guest's time. Answered with the pages, when the guests of all nodes have begun.
pub const BEGIN: u32 = 1;
/// The guest has got to a time.
pub const AT: u32 = 2;
/// The same of a guest that sleeps until a time.
pub const ASLEEP: u32 = 3;
/// The same before an access to the device.
pub const ACCESS: u32 = 4;
/// The guest has reached the time for which the machine requested a report. It is not answered.
pub const PASSED: u32 = 5;

/// Bytes of a message of the plugin.
const MESSAGE: usize = 24;
/// Bytes of an answer without its vectors and input.
const ANSWER: usize = 24;
/// The most vectors that an answer has.
pub const MOST_VECTORS: usize = 64;

/// The number of 4 bytes at a place of a message.
fn word(message: &[u8], at: usize) -> u32 {
    message[at..at + 4].iter().rfold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// The number of 8 bytes at a place of a message.
fn long(message: &[u8], at: usize) -> u64 {
    u64::from(word(message, at + 4)) << 32 | u64::from(word(message, at))
}

/// A message of the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its kind, such as [`AT`].
    pub kind: u32,
    /// [`VERSION`](crate::VERSION) in the first one, and 0 later.
    pub version: u32,
    /// The guest's time, in nanoseconds of its clock.
    pub at_ns: u64,
    /// Until when a guest sleeps that does, in nanoseconds of its clock.
    pub until_ns: u64,
}

impl Message {
    /// Sends it.
    ///
    /// # Errors
    ///
    /// If the other side has gone.
    pub fn send(&self, mut to: impl Write) -> io::Result<()> {
        let mut bytes = [0; MESSAGE];
        bytes[..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.version.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.at_ns.to_le_bytes());
        bytes[16..].copy_from_slice(&self.until_ns.to_le_bytes());
        to.write_all(&bytes)
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// If the other side has gone.
    pub fn receive(mut from: impl Read) -> io::Result<Self> {
        let mut bytes = [0; MESSAGE];
        from.read_exact(&mut bytes)?;
        let word = |at| word(&bytes, at);
        Ok(Self {
            kind: word(0),
            version: word(4),
            at_ns: long(&bytes, 8),
            until_ns: long(&bytes, 16),
        })
    }
}

/// The machine's answer.
#[derive(Debug, Default)]
pub struct Go {
    /// The time until which the guest may run, in nanoseconds of its clock. If that is its present
    /// time, time is stopped: the guest stops there, and asks again when it is continued.
    pub until_ns: u64,
    /// The guest's number among the pages. It is in the first answer, and 0 later.
    pub guest: u32,
    /// Vectors of the device that have fired.
    pub vectors: Vec<u16>,
    /// Input that comes to each port now, at most [`INPUT`] bytes.
    pub input: Input,
}

/// Bytes for each port of a guest.
pub type Input = [Vec<u8>; PORTS];

impl Go {
    /// Sends it, with the pages in the first answer.
    ///
    /// # Errors
    ///
    /// If the plugin has gone.
    pub fn send(&self, mut to: &UnixStream, pages: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(ANSWER + 4 * self.vectors.len());
        bytes.extend(self.until_ns.to_le_bytes());
        bytes.extend((self.vectors.len() as u32).to_le_bytes());
        bytes.extend(self.guest.to_le_bytes());
        bytes.extend(self.input.iter().flat_map(|input| (input.len() as u32).to_le_bytes()));
        bytes.extend(self.vectors.iter().flat_map(|vector| u32::from(*vector).to_le_bytes()));
        self.input.iter().for_each(|input| bytes.extend(input));
        let mut sent = 0;
        if !pages.is_empty() {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_GUESTS + 1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(pages)) {
                return Err(Errno::MFILE.into());
            }
            sent = sendmsg(to, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        }
        to.write_all(&bytes[sent..])
    }

    /// Reads one, and the files that come with it.
    ///
    /// # Errors
    ///
    /// If the machine has gone, or says what it cannot.
    pub fn receive(mut from: &UnixStream) -> io::Result<(Self, Vec<OwnedFd>)> {
        let mut bytes = [0; ANSWER];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_GUESTS + 1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut first = [IoSliceMut::new(&mut bytes)];
        let got = loop {
            match recvmsg(from, &mut first, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                got => break got?.bytes,
            }
        };
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let files = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => files.collect(),
            _ => Vec::new(),
        });
        let files: Vec<_> = files.collect();
        from.read_exact(&mut bytes[got..])?;
        let count = word(&bytes, 8) as usize;
        if count > MOST_VECTORS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{count} vectors")));
        }
        let lengths = [word(&bytes, 16) as usize, word(&bytes, 20) as usize];
        if let Some(length) = lengths.iter().find(|length| **length > INPUT) {
            let why = format!("{length} bytes of input");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut vectors = vec![0; count * 4];
        from.read_exact(&mut vectors)?;
        let mut input = lengths.map(|length| vec![0; length]);
        for bytes in &mut input {
            from.read_exact(bytes)?;
        }
        let vectors = vectors.as_chunks::<4>().0.iter();
        let vectors = vectors.map(|bytes| u32::from_le_bytes(*bytes) as u16).collect();
        Ok((Self { until_ns: long(&bytes, 0), guest: word(&bytes, 12), vectors, input }, files))
    }
}
