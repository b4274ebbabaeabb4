//! Messages and their frames.
//!
//! A frame is a mask byte and a message in postcard's format, each byte of which is XORed with the
//! mask, all encoded by COBS to remove zero bytes, and then a zero byte. The mask is a byte that
//! the message has seldom, as COBS costs the receiver a step for each zero and programs consist of
//! zeros for a large part. So a reader that joins in the middle of a stream, or after a peer that
//! died in the middle of a frame, finds the next message after the next zero, regardless of what
//! came before. That matters because a virtio port outlives the programs on both of its sides.
//!
//! # Course of a session
//!
//! The guest sends [`FromGuest::Awake`] when it opens the port. The host sends [`ToGuest::Hello`]
//! when it opens its end, and again upon `Awake`; the guest answers [`FromGuest::Welcome`] with the
//! same number, and ends all programs of an earlier session. Messages before the right `Welcome`
//! are from an earlier session and are ignored.
//!
//! A node that is a clone of another one is sent [`ToGuest::Identify`] before anything else. It
//! answers [`FromGuest::Identified`] when programs can run.
//!
//! # Flow control
//!
//! Each stream has at most [`WINDOW`] bytes in flight: the sender may send that much at first, and
//! later as much as the receiver has taken and granted by `Credit`. So a slow reader of one
//! program's output holds up only that program.
//!
//! Messages about programs are also sent over a machine's control socket, as JSON. `serde`'s names
//! are for that; postcard uses numbers.

use std::io::{self, BufRead, BufReader, Read};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tofu_sync::queue::Item;

/// Version of the messages. Both sides must have the same one.
pub const VERSION: u16 = 6;
/// Most bytes of a stream in a message.
pub const MAX_DATA: usize = 32 << 10;
/// Most bytes of a frame without its zero.
pub const MAX_FRAME: usize = 64 << 10;
/// Bytes of a stream that may be in flight without a grant.
pub const WINDOW: u32 = 256 << 10;
/// Programs that run at the same time in a session.
pub const MAX_PROGRAMS: usize = 64;

/// The reason why there is no message.
#[derive(Debug, Error)]
pub enum WireError {
    /// The stream is broken.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A frame is longer than [`MAX_FRAME`]; it was skipped.
    #[error("a message of more than {MAX_FRAME} bytes")]
    TooLong,
    /// A frame is not a message; it was skipped.
    #[error("not a message: {0}")]
    Malformed(postcard::Error),
}

/// Which program to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// The first of the arguments, looked for in the guest's PATH.
    #[default]
    Named,
    /// The agent itself, with these arguments; used to move files.
    Agent,
    /// As [`Program::Named`], on a terminal of this size, which is its standard input, output and
    /// error, and controls it. All that it writes comes as standard output.
    OnTerminal(WindowSize),
}

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Its height.
    pub rows: u16,
    /// Its width.
    pub columns: u16,
}

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Which.
    #[serde(default)]
    pub program: Program,
    /// Its arguments; except for [`Program::Agent`], the first one is its name.
    pub args: Vec<String>,
    /// Variables besides the agent's own.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// True if it will get standard input; otherwise that is empty.
    #[serde(default)]
    pub stdin: bool,
}

impl Exec {
    fn new<W: Into<String>>(program: Program, args: impl IntoIterator<Item = W>) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self { program, args, env: Vec::new(), stdin: false }
    }

    /// A program of the guest, by its name and its arguments, without input.
    pub fn named<W: Into<String>>(args: impl IntoIterator<Item = W>) -> Self {
        Self::new(Program::Named, args)
    }

    /// The agent itself with these arguments, without input.
    pub fn agent<W: Into<String>>(args: impl IntoIterator<Item = W>) -> Self {
        Self::new(Program::Agent, args)
    }

    /// The agent, which unpacks its input at a path. Nothing that users of the guest have put there
    /// gets into it.
    pub fn unpack_alone(to: &str) -> Self {
        Self::agent(["unpack-alone", to]).with_input()
    }

    /// The same with standard input.
    #[must_use]
    pub fn with_input(self) -> Self {
        Self { stdin: true, ..self }
    }
}

/// A stream of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// The end of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It could not be run: whether the program is missing, and the reason in one line.
    NotRun {
        /// True if the reason is that there is no such program.
        missing: bool,
        /// One line.
        why: String,
    },
}

impl Status {
    /// The exit code that shells report for it: 127 and 126 for programs that cannot be run, 128
    /// and the signal's number for those that a signal ended.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Code(code) => *code as u8,
            Self::Signal(signal) => 128u8.wrapping_add(*signal as u8),
            Self::NotRun { missing: true, .. } => 127,
            Self::NotRun { missing: false, .. } => 126,
        }
    }
}

/// The host's messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// Begins a session.
    Hello {
        /// The host's [`VERSION`].
        version: u16,
        /// Any number that was not used before.
        session: u64,
    },
    /// Runs a program, known as `id` until its [`FromProgram::Ended`].
    Exec {
        /// Chosen by the host, not in use.
        id: u32,
        /// The program to run.
        exec: Exec,
    },
    /// Something about a program.
    To {
        /// Which.
        id: u32,
        /// The part.
        what: ToProgram,
    },
    /// Checks that the agent is alive. Answered immediately by [`FromGuest::Pong`].
    Ping,
    /// Gives a clone of a node its identity.
    Identify(Identity),
}

/// The properties in which a node differs from the one that it is a clone of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its name.
    pub host: String,
    /// The command line with which its kernel would have been booted.
    pub command_line: String,
    /// The time, in nanoseconds since 1970 UTC; `None` if its clock is right.
    pub time_ns: Option<u64>,
    /// Random bytes, for the kernel's generator.
    pub seed: [u8; 32],
}

/// The host's messages to a program. Those to a program that has ended are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToProgram {
    /// The next bytes of its standard input, at most [`MAX_DATA`].
    Input(#[serde(with = "bytes")] Vec<u8>),
    /// The end of its standard input.
    InputEnd,
    /// Grants this many more bytes of this stream.
    Credit(Output, u32),
    /// Sends a signal to it and its children.
    Signal(i32),
    /// Kills it and its children, and discards their output.
    Kill,
    /// Its terminal has another size now.
    Resize(WindowSize),
}

/// The guest's messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuest {
    /// The agent has started and knows of no session.
    Awake,
    /// The answer to [`ToGuest::Hello`].
    Welcome {
        /// The guest's [`VERSION`].
        version: u16,
        /// As in the `Hello`.
        session: u64,
    },
    /// Something about a program.
    From {
        /// Which.
        id: u32,
        /// The part.
        what: FromProgram,
    },
    /// The answer to [`ToGuest::Ping`].
    Pong,
    /// The answer to [`ToGuest::Identify`]: the node is ready; or else the reason why it is not, in
    /// one line.
    Identified(Result<(), String>),
}

/// The guest's messages about a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromProgram {
    /// The next bytes of a stream, at most [`MAX_DATA`].
    Output(Output, #[serde(with = "bytes")] Vec<u8>),
    /// Grants this many more bytes of standard input.
    Credit(u32),
    /// It is over, and all of its output was sent; its number is free again.
    Ended(Status),
}

impl Item for FromProgram {
    fn bytes(&self) -> usize {
        match self {
            Self::Output(_, bytes) => bytes.len(),
            Self::Ended(Status::NotRun { why, .. }) => why.len(),
            _ => 0,
        }
    }

    fn absorb(&mut self, later: Self) -> Option<Self> {
        match (self, later) {
            (Self::Output(stream, bytes), Self::Output(same, more))
                if *stream == same && bytes.len() + more.len() <= MAX_DATA =>
            {
                bytes.extend(more);
                None
            }
            (Self::Credit(sum), Self::Credit(more)) => {
                *sum = sum.saturating_add(more);
                None
            }
            (_, later) => Some(later),
        }
    }
}

/// Bytes of a stream, in base64 where a format is text.
pub mod bytes {
    use base64::engine::general_purpose::STANDARD;
    use base64::{DecodeError, Engine};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes them.
    ///
    /// # Errors
    ///
    /// The errors of the format.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.serialize_str(&text(bytes)),
            false => serializer.serialize_bytes(bytes),
        }
    }

    /// Reads them.
    ///
    /// # Errors
    ///
    /// The errors of the format, and text that is not base64.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        match deserializer.is_human_readable() {
            true => from_text(&String::deserialize(deserializer)?).map_err(Error::custom),
            false => serde_bytes::deserialize(deserializer),
        }
    }

    // Compiled in this crate, so that it is optimised in tests, too: whole files pass through here.
    fn text(bytes: &[u8]) -> String {
        STANDARD.encode(bytes)
    }

    fn from_text(text: &str) -> Result<Vec<u8>, DecodeError> {
        STANDARD.decode(text)
    }
}

/// A message as a frame, with its zero.
///
/// # Errors
///
/// [`WireError::TooLong`] if it is longer than a frame may be.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    // With room for the mask.
    let mut bytes = postcard::to_extend(message, vec![0]).map_err(WireError::Malformed)?;
    let mask = seldom(&bytes[1..]);
    bytes.iter_mut().for_each(|byte| *byte ^= mask);
    let frame = without_zeros(&bytes);
    if frame.len() > MAX_FRAME + 1 { Err(WireError::TooLong) } else { Ok(frame) }
}

/// Messages of fewer bytes are not searched for the best mask.
const SMALL: usize = 128;

/// Returns a byte that is seldom among these.
fn seldom(bytes: &[u8]) -> u8 {
    if bytes.len() < SMALL {
        return 0;
    }
    let mut counts = [0_u32; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    (0..=u8::MAX).min_by_key(|byte| counts[usize::from(*byte)]).unwrap_or(0)
}

/// Most bytes without a zero that one byte in front of them can describe.
const RUN: usize = 254;

/// Makes a frame of these bytes, with its zero (COBS). In front of each run of bytes without a zero
/// is the distance to the next such place: a zero follows the run unless it has [`RUN`] bytes. It
/// works by runs, not by bytes, because whole files pass through here, on emulated processors.
fn without_zeros(bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(bytes.len() + bytes.len() / RUN + 2);
    for mut run in bytes.split(|byte| *byte == 0) {
        while let Some((first, rest)) = run.split_at_checked(RUN) {
            frame.push(u8::MAX);
            frame.extend_from_slice(first);
            run = rest;
        }
        frame.push(run.len() as u8 + 1);
        frame.extend_from_slice(run);
    }
    frame.push(0);
    frame
}

/// Turns a frame, without its zero, into the bytes that it was made of; `false` if it is not a
/// frame.
fn with_zeros(frame: &mut Vec<u8>) -> bool {
    let (mut from, mut to) = (0, 0);
    while let Some(code) = frame.get(from).map(|code| usize::from(*code)) {
        let run = from + 1..from + code;
        if code == 0 || run.end > frame.len() {
            return false;
        }
        from = run.end;
        frame.copy_within(run, to);
        to += code - 1;
        if code <= RUN && from < frame.len() {
            frame[to] = 0;
            to += 1;
        }
    }
    frame.truncate(to);
    true
}

/// Takes messages from a stream.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: BufReader<R>,
    frame: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    /// Reads `stream` from now on.
    pub fn new(stream: R) -> Self {
        Self { stream: BufReader::with_capacity(MAX_DATA, stream), frame: Vec::new() }
    }

    /// The stream, with the bytes that were read from it and are not a message yet.
    pub fn into_inner(self) -> BufReader<R> {
        self.stream
    }

    /// Waits for the next message; `None` at the end of the stream. Part of a frame at the end is
    /// no error: its sender has died.
    ///
    /// # Errors
    ///
    /// After [`WireError::TooLong`] and [`WireError::Malformed`] the next call continues with the
    /// next frame.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        loop {
            if !self.read_frame()? {
                return Ok(None);
            }
            // Zeros by themselves only separate.
            if !self.frame.is_empty() {
                let whole = with_zeros(&mut self.frame);
                let frame = if whole { self.frame.split_first_mut() } else { None };
                let message = frame.map(|(mask, message)| {
                    message.iter_mut().for_each(|byte| *byte ^= *mask);
                    &*message
                });
                let message = message.ok_or(postcard::Error::DeserializeBadEncoding);
                let message = message.and_then(postcard::from_bytes);
                return message.map(Some).map_err(WireError::Malformed);
            }
        }
    }

    /// Reads up to the next zero, which is left out; false at the end.
    fn read_frame(&mut self) -> Result<bool, WireError> {
        let mut too_long = false;
        loop {
            self.frame.clear();
            let mut limited = (&mut self.stream).take(MAX_FRAME as u64 + 1);
            limited.read_until(0, &mut self.frame)?;
            match self.frame.pop_if(|last| *last == 0) {
                Some(_) if too_long => return Err(WireError::TooLong),
                Some(_) => return Ok(true),
                None if self.frame.len() <= MAX_FRAME => return Ok(false),
                None => too_long = true,
            }
        }
    }
}
