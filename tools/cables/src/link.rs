//! The connection with one other shard.
//!
//! Any thread may send. Bytes for which the socket has no room stay encrypted in the connection.
//! The thread that receives from the connection waits for both directions, and sends these bytes.
//! No thread blocks while sending, so two shards with much data for each other never wait for each
//! other.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustls::Connection;
use tofu_abi::codes;
use tofu_machine::MAX_MESSAGE;
use tofu_sync::lock;

use crate::keepalive::Acks;

/// No more requests are accepted while this many bytes wait for the socket.
const ENOUGH: u64 = 4 << 20;
/// With this many, requests of the other end are not served until it has taken answers.
const MUCH: u64 = 16 << 20;
/// With this many, nothing is passed on from other shards.
const MOST_PASSED_ON: u64 = 128 << 20;
/// With this many, the shard accepts nothing any more, and is considered dead.
const MOST: u64 = 256 << 20;
/// Maximum size of a record of TLS 1.3 and its overhead, in bytes (RFC 8446, 5.1 and 5.2).
const RECORD: (usize, usize) = (16 << 10, 22);
/// Size of the buffer for a read, in bytes.
const READ: usize = 256 << 10;
/// Size of a frame's header, in bytes: the frame's length, and its kind.
const HEADER: usize = 5;

codes! {
    /// The kind of a frame.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FrameKind {
        /// Greetings, and shards' reports of their guests: JSON.
        Said = 0,
        /// A message of the machine.
        Message = 1,
        /// A keep-alive.
        Alive = 2,
        /// A frame of a stream.
        Stream = 3,
        /// The other end must stop sending requests, or may send them again: a byte, 1 or 0.
        Hold = 4,
    }
}

/// Encodes the header of a frame.
fn frame(kind: FrameKind, body: &[u8]) -> [u8; HEADER] {
    let [a, b, c, d] = (body.len() as u32).to_le_bytes();
    [a, b, c, d, kind as u8]
}

/// A connection.
pub(crate) struct Link {
    socket: TcpStream,
    wake: OwnedFd,
    tls: Mutex<Tls>,
    /// Number of bytes that wait for the socket; not 0 while there are any.
    waiting: AtomicU64,
    /// True if there was no room for requests, and new room has not been reported yet.
    crowded: AtomicBool,
    /// True if the socket has taken data since this was last checked.
    taken: AtomicBool,
    closed: AtomicBool,
    /// True if the socket takes no more data, because the other end is gone. Data that it sent
    /// before, such as the message that it leaves, can still be received.
    unread: AtomicBool,
}

struct Tls {
    connection: Connection,
    /// Received bytes that are not a complete frame yet.
    received: Vec<u8>,
}

/// Writes with write(2), because not every thread of a machine may call sendto(2).
struct Socket<'a>(&'a TcpStream);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Socket<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.0, bytes)?)
    }
}

fn broken(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

impl Link {
    /// A link over a socket whose ends have not greeted each other yet.
    pub(crate) fn new(socket: TcpStream, connection: Connection) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut connection = connection;
        // This module limits the buffer itself.
        connection.set_buffer_limit(None);
        Ok(Self {
            socket,
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            tls: Mutex::new(Tls { connection, received: Vec::new() }),
            waiting: AtomicU64::new(0),
            crowded: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            unread: AtomicBool::new(false),
        })
    }

    /// Lets the caller inspect the connection, for example its certificates.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&Connection) -> R) -> R {
        look(&lock(&self.tls).connection)
    }

    /// The events to wait for: data to receive, and room to send waiting bytes.
    pub(crate) fn interest(&self) -> PollFd<'_> {
        self.interest_and(PollFlags::empty())
    }

    /// The same events, and `more`.
    pub(crate) fn interest_and(&self, more: PollFlags) -> PollFd<'_> {
        let mut events = PollFlags::IN | more;
        if self.waiting.load(SeqCst) > 0 {
            events |= PollFlags::OUT;
        }
        PollFd::new(&self.socket, events)
    }

    /// Returns true if the other end has closed the connection, even if data that it sent before is
    /// unread.
    pub(crate) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let ready = poll(&mut fds, Some(&Timespec::default()));
        self.closed.load(SeqCst) || ready.is_ok_and(|_| !fds[0].revents().is_empty())
    }

    /// True if the connection is established.
    ///
    /// # Errors
    ///
    /// The reason for which it failed.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default()))?;
        if fds[0].revents().is_empty() {
            return Ok(false);
        }
        self.socket.take_error()?.map_or(Ok(true), Err)
    }

    /// The state of the other kernel's acknowledgements.
    pub(crate) fn acks(&self) -> io::Result<Acks> {
        Acks::of(&self.socket)
    }

    /// Sends a frame. Returns false if the other end is gone.
    pub(crate) fn send(&self, kind: FrameKind, body: &[u8]) -> bool {
        if self.closed.load(SeqCst) || self.unread.load(SeqCst) {
            return false;
        }
        let mut tls = lock(&self.tls);
        let header = frame(kind, body);
        let length = HEADER + body.len();
        // In one write, so that a short frame is one record.
        let shards = [IoSlice::new(&header), IoSlice::new(body)];
        let written = tls.connection.writer().write_vectored(&shards);
        let bytes = length + length.div_ceil(RECORD.0) * RECORD.1;
        let before = self.waiting.fetch_add(bytes as u64, SeqCst);
        if !self.has_room() {
            self.crowded.store(true, SeqCst);
        }
        let written = written.is_ok_and(|written| written == length);
        let sent = written && self.flush(&mut tls);
        drop(tls);
        if !written || before > MOST {
            self.close();
            return false;
        }
        if !sent {
            self.wake();
            return false;
        }
        if self.waiting.load(SeqCst) > 0 || self.crowded.load(SeqCst) {
            self.wake();
        }
        true
    }

    /// Sends waiting bytes to the socket. Returns false if it takes no more data.
    fn flush(&self, tls: &mut Tls) -> bool {
        while tls.connection.wants_write() && !self.unread.load(SeqCst) {
            match tls.connection.write_tls(&mut Socket(&self.socket)) {
                Ok(sent) => {
                    self.taken.store(true, SeqCst);
                    // Handshakes and alerts were not counted.
                    let waiting = self.waiting.load(SeqCst);
                    self.waiting.store(waiting.saturating_sub(sent as u64).max(1), SeqCst);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.unread.store(true, SeqCst),
            }
        }
        self.waiting.store(0, SeqCst);
        !self.unread.load(SeqCst)
    }

    /// Returns true if more requests are accepted.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.load(SeqCst) < ENOUGH
    }

    /// Returns true if requests of the other end are served now.
    pub(crate) fn is_served(&self) -> bool {
        self.waiting.load(SeqCst) < MUCH
    }

    /// Returns true if messages of other shards are passed on now.
    pub(crate) fn passes_on(&self) -> bool {
        self.waiting.load(SeqCst) < MOST_PASSED_ON
    }

    /// Returns true if bytes wait, and the other end has taken none since the last call.
    pub(crate) fn stands_still(&self) -> bool {
        !self.taken.swap(false, SeqCst) && self.waiting.load(SeqCst) > 0
    }

    /// Considers the other end dead from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
        self.wake();
    }

    /// Ends the connection. The other end notices this immediately.
    pub(crate) fn leave(&self) {
        self.close();
        // This fails if the other end has closed first.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    fn wake(&self) {
        // This fails only if the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Waits for frames, up to the time limit if there is one, and sends waiting bytes during that
    /// time. Returns the frames, and whether there is new room for requests. Without `listen` it
    /// takes no frames, and waits until bytes were sent.
    ///
    /// # Errors
    ///
    /// If the other end is gone, or sends something invalid.
    pub(crate) fn receive(
        &self,
        patience: Option<Duration>,
        listen: bool,
        frames: &mut Vec<(FrameKind, Vec<u8>)>,
    ) -> io::Result<bool> {
        let socket = match listen {
            true => self.interest(),
            false => PollFd::new(&self.socket, PollFlags::OUT),
        };
        let mut fds = [socket, PollFd::new(&self.wake, PollFlags::IN)];
        let timeout = patience.map(Timespec::try_from).transpose().map_err(broken)?;
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let (socket, woken) = (fds[0].revents(), !fds[1].revents().is_empty());
        if self.closed.load(SeqCst) {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        if woken {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        if listen && !socket.is_empty() {
            self.take(frames)?;
        }
        // If the socket takes no more data, reading from it fails soon, with the reason.
        self.flush(&mut lock(&self.tls));
        Ok(self.has_room() && self.crowded.swap(false, SeqCst))
    }

    /// Reads the available data from the socket.
    fn take(&self, frames: &mut Vec<(FrameKind, Vec<u8>)>) -> io::Result<()> {
        let mut bytes = vec![0; READ];
        let read = match Socket(&self.socket).read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut rest = &bytes[..read];
        while !rest.is_empty() {
            let mut tls = lock(&self.tls);
            let Tls { connection, received } = &mut *tls;
            connection.read_tls(&mut rest)?;
            let state = connection.process_new_packets().map_err(|error| {
                // Tries to send the reason to the other end. If that fails, the other end notices
                // that this one is gone.
                let _ = connection.write_tls(&mut Socket(&self.socket));
                broken(error)
            })?;
            let from = received.len();
            received.resize(from + state.plaintext_bytes_to_read(), 0);
            connection.reader().read_exact(&mut received[from..])?;
            cut(received, frames)?;
        }
        Ok(())
    }
}

/// Removes complete frames from the start of the received bytes.
fn cut(received: &mut Vec<u8>, frames: &mut Vec<(FrameKind, Vec<u8>)>) -> io::Result<()> {
    let mut at = 0;
    while let Some(&[a, b, c, d, kind]) = received[at..].first_chunk::<HEADER>() {
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let kind = FrameKind::from_code(kind).filter(|_| length <= MAX_MESSAGE);
        let kind = kind.ok_or_else(|| broken("a frame of no known kind or size"))?;
        let Some(body) = received.get(at + HEADER..at + HEADER + length) else { break };
        frames.push((kind, body.to_vec()));
        at += HEADER + length;
    }
    received.drain(..at);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_cut_wherever_the_stream_is() {
        let bodies: [&[u8]; 3] = [b"", b"one", &[7; 5000]];
        let mut stream = Vec::new();
        for body in bodies {
            stream.extend(frame(FrameKind::Message, body));
            stream.extend(body);
        }
        for step in [1, 3, 4, 5, 6, 1000, 10_000] {
            let (mut received, mut frames) = (Vec::new(), Vec::new());
            for piece in stream.chunks(step) {
                received.extend_from_slice(piece);
                cut(&mut received, &mut frames).unwrap();
            }
            let found: Vec<_> = frames.iter().map(|(kind, body)| (*kind, &body[..])).collect();
            assert_eq!(found, bodies.map(|body| (FrameKind::Message, body)));
            assert!(received.is_empty());
        }
    }

    #[test]
    fn malformed_frame_ends_the_connection() {
        for bad in [[255, 255, 255, 255, 1], [0, 0, 0, 0, 9]] {
            assert!(cut(&mut bad.to_vec(), &mut Vec::new()).is_err());
        }
    }
}
