//! Streams of bytes between two shards, beside the packets, for requests to a shard about its
//! nodes. Each stream has a window, so that a slow reader delays nothing else on the connection.
//! One thread serves all streams with a shard.
//!
//! Frames of streams have a number, a byte with their kind, and the data of that kind. The end that
//! opens a stream assigns its number. The highest bit of the byte says that the sender is that end.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tofu_abi::codes;
use tofu_sync::lock;
use tofu_sync::queue::Item;

/// The most streams that each of two shards may have open with the other.
const MOST: usize = 1024;
/// Size of a stream's window in each direction, in bytes.
const WINDOW: u32 = 64 << 10;
/// Maximum size of the data in a frame, in bytes.
const PIECE: usize = 32 << 10;
/// Flag: the sender has opened the stream.
const OPENER: u8 = 0x80;

codes! {
    /// The kind of a frame.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Word {
        /// A new stream.
        Open = 0,
        /// Bytes of a stream.
        Data = 1,
        /// This many more bytes may be sent.
        Credit = 2,
        /// No more bytes will come in this direction.
        End = 3,
        /// The stream is closed in both directions.
        Close = 4,
    }
}

/// A stream, among those with the same shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// True if this end has opened it.
    ours: bool,
    number: u32,
}

/// Sends the body of a frame to the other shard.
type Send = dyn Fn(&[u8]) -> bool + std::marker::Send + Sync;

/// The streams with one other shard.
pub(crate) struct Streams {
    send: Box<Send>,
    table: Mutex<HashMap<Key, Arc<Stream>>>,
    next: AtomicU32,
    /// True if a thread serves the streams, and the event that wakes it up.
    pump: Mutex<bool>,
    wake: OnceLock<OwnedFd>,
}

/// A stream that another shard has opened, and that is not served yet.
pub struct Visit {
    streams: Arc<Streams>,
    key: Key,
    stream: Arc<Stream>,
}

impl Item for Visit {}

struct Stream {
    state: Mutex<State>,
    /// The stream's end of a local socket pair, once there is one. The user has the other end.
    local: OnceLock<UnixStream>,
}

#[derive(Default)]
struct State {
    /// Received bytes that are still to be passed to this process.
    inbox: Vec<u8>,
    /// True if all data has arrived.
    ended: bool,
    /// Number of bytes that may be sent.
    credit: u32,
    /// True if the stream is closed.
    closed: bool,
    /// True if the end of the data was sent to the other shard.
    sent: bool,
    /// True if the other end has stopped reading.
    unread: bool,
    /// True if this process gets no more: it has everything, or has stopped reading.
    given: bool,
    /// True if this process has stopped reading.
    deaf: bool,
}

impl State {
    /// The events of the local socket that the stream waits for.
    fn interest(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.credit > 0 && !self.sent);
        events.set(PollFlags::OUT, !self.inbox.is_empty() && !self.given);
        events
    }
}

impl Stream {
    fn new() -> Arc<Self> {
        let state = State { credit: WINDOW, ..State::default() };
        Arc::new(Self { state: Mutex::new(state), local: OnceLock::new() })
    }

    /// Closes the stream at this end.
    fn close(&self) {
        lock(&self.state).closed = true;
        if let Some(local) = self.local.get() {
            // This fails if the other end has closed first.
            let _ = local.shutdown(Shutdown::Both);
        }
    }
}

impl Streams {
    /// The streams with a shard; `send` sends frames to it.
    pub(crate) fn new(send: Box<Send>) -> Arc<Self> {
        Arc::new(Self {
            send,
            table: Mutex::default(),
            next: AtomicU32::new(0),
            pump: Mutex::default(),
            wake: OnceLock::new(),
        })
    }

    fn say(&self, key: Key, word: Word, what: &[u8]) -> bool {
        let mut body = Vec::with_capacity(5 + what.len());
        body.extend(key.number.to_le_bytes());
        body.push(word as u8 | if key.ours { OPENER } else { 0 });
        body.extend(what);
        (self.send)(&body)
    }

    /// Opens a stream, and returns this process's end.
    pub(crate) fn open(self: &Arc<Self>) -> io::Result<UnixStream> {
        let (key, stream) = {
            let mut table = lock(&self.table);
            if table.keys().filter(|key| key.ours).count() >= MOST {
                return Err(io::Error::other("too many streams are open"));
            }
            let key = loop {
                let key = Key { ours: true, number: self.next.fetch_add(1, SeqCst) };
                if !table.contains_key(&key) {
                    break key;
                }
            };
            let stream = Stream::new();
            table.insert(key, Arc::clone(&stream));
            (key, stream)
        };
        self.say(key, Word::Open, &[]);
        self.serve(key, stream)
    }

    /// Has a stream served, and returns this process's end.
    fn serve(self: &Arc<Self>, key: Key, stream: Arc<Stream>) -> io::Result<UnixStream> {
        let served = self.start(&stream);
        if served.is_err() {
            self.say(key, Word::Close, &[]);
            stream.close();
            lock(&self.table).remove(&key);
        }
        served
    }

    fn start(self: &Arc<Self>, stream: &Stream) -> io::Result<UnixStream> {
        let (near, far) = UnixStream::pair()?;
        near.set_nonblocking(true)?;
        let local = stream.local.get_or_init(|| near);
        if lock(&stream.state).closed {
            let _ = local.shutdown(Shutdown::Both);
        }
        let mut pump = lock(&self.pump);
        if self.wake.get().is_none() {
            let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
            self.wake.get_or_init(|| event);
        }
        if !*pump {
            let streams = Arc::clone(self);
            thread::Builder::new().name("streams".to_owned()).spawn(move || streams.run())?;
            *pump = true;
        }
        drop(pump);
        self.wake();
        Ok(far)
    }

    /// Wakes the thread that serves the streams. Must be called when a state has changed.
    fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            // This fails only if the counter is full, and then the thread is awake.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    /// Serves the streams until there are none.
    fn run(&self) {
        let Some(wake) = self.wake.get() else { return };
        loop {
            let served = {
                let mut pump = lock(&self.pump);
                let table = lock(&self.table);
                let served = table.iter().filter(|(_, stream)| stream.local.get().is_some());
                let served: Vec<_> = served.map(|(key, at)| (*key, Arc::clone(at))).collect();
                if served.is_empty() {
                    *pump = false;
                    return;
                }
                served
            };
            for (key, stream) in &served {
                if let Some(local) = stream.local.get()
                    && self.advance(*key, stream, local)
                {
                    lock(&self.table).remove(key);
                }
            }
            let waits = served.iter().filter_map(|(_, stream)| {
                let events = lock(&stream.state).interest();
                Some(PollFd::new(stream.local.get()?, events)).filter(|_| !events.is_empty())
            });
            let mut fds: Vec<_> = waits.chain([PollFd::new(wake, PollFlags::IN)]).collect();
            // An error would be a lack of memory, and the next round may have some.
            let _ = poll(&mut fds, None);
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
    }

    /// Moves what can be moved in both directions. Returns whether the stream is done.
    fn advance(&self, key: Key, stream: &Stream, local: &UnixStream) -> bool {
        let mut state = lock(&stream.state);
        if state.closed {
            let _ = local.shutdown(Shutdown::Both);
            return true;
        }
        self.give_out(key, &mut state, local);
        if !self.take_in(key, &mut state, local) {
            drop(state);
            stream.close();
            return true;
        }
        if state.sent && state.deaf {
            self.say(key, Word::Close, &[]);
        }
        state.sent && state.given
    }

    /// Sends what this process has written, at most one piece. Returns whether the other shard is
    /// still there.
    fn take_in(&self, key: Key, state: &mut State, mut local: &UnixStream) -> bool {
        if state.sent {
            return true;
        }
        let mut bytes = [0; PIECE];
        let most = (state.credit as usize).min(PIECE);
        let read = match state.unread {
            true => Ok(0),
            false if most == 0 => return true,
            false => local.read(&mut bytes[..most]),
        };
        match read {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                true
            }
            Ok(n @ 1..) => {
                state.credit -= n as u32;
                self.say(key, Word::Data, &bytes[..n])
            }
            Ok(0) | Err(_) => {
                state.sent = true;
                self.say(key, Word::End, &[]);
                true
            }
        }
    }

    /// Passes received bytes to this process.
    fn give_out(&self, key: Key, state: &mut State, mut local: &UnixStream) {
        let mut given = 0;
        while given < state.inbox.len() && !state.given {
            match local.write(&state.inbox[given..]) {
                Ok(n @ 1..) => given += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // This process does not read any more. The data that it wrote before must be sent
                // first.
                Ok(0) | Err(_) => (state.given, state.deaf) = (true, true),
            }
        }
        if given > 0 && !state.deaf {
            self.say(key, Word::Credit, &(given as u32).to_le_bytes());
        }
        state.inbox.drain(..given);
        if state.deaf {
            state.inbox = Vec::new();
        } else if state.ended && state.inbox.is_empty() && !state.given {
            let _ = local.shutdown(Shutdown::Write);
            state.given = true;
        }
    }

    /// Handles the body of a frame from the other shard, and returns the stream if it is a new one.
    /// A frame that no honest shard sends is dropped, and its stream is closed if there is one.
    pub(crate) fn take(self: &Arc<Self>, body: &[u8]) -> Option<Visit> {
        let (number, rest) = body.split_first_chunk::<4>()?;
        let (&code, what) = rest.split_first()?;
        let key = Key { ours: code & OPENER == 0, number: u32::from_le_bytes(*number) };
        let word = Word::from_code(code & !OPENER)?;
        if word == Word::Open {
            return self.opened(key);
        }
        let stream = lock(&self.table).get(&key).cloned()?;
        let mut state = lock(&stream.state);
        match word {
            Word::Data if !state.ended && state.inbox.len() + what.len() <= WINDOW as usize => {
                state.inbox.extend(what);
            }
            Word::Credit => {
                let more = what.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                state.credit = state.credit.saturating_add(more).min(WINDOW);
            }
            Word::End => state.ended = true,
            // All data has arrived, but must still be written.
            Word::Close if state.ended => {
                state.unread = true;
                if let Some(local) = stream.local.get() {
                    let _ = local.shutdown(Shutdown::Read);
                }
            }
            Word::Open | Word::Data | Word::Close => {
                let honest = word == Word::Close;
                drop(state);
                stream.close();
                self.wake();
                if !honest {
                    self.say(key, Word::Close, &[]);
                }
                return None;
            }
        }
        drop(state);
        self.wake();
        None
    }

    fn opened(self: &Arc<Self>, key: Key) -> Option<Visit> {
        if key.ours {
            return None;
        }
        let mut table = lock(&self.table);
        if table.contains_key(&key) || table.keys().filter(|key| !key.ours).count() >= MOST {
            drop(table);
            self.say(key, Word::Close, &[]);
            return None;
        }
        let stream = Stream::new();
        table.insert(key, Arc::clone(&stream));
        drop(table);
        Some(Visit { streams: Arc::clone(self), key, stream })
    }

    /// Ends all streams, because the other shard is gone.
    pub(crate) fn end(&self) {
        let all: Vec<_> = lock(&self.table).values().cloned().collect();
        all.iter().for_each(|stream| stream.close());
        self.wake();
    }
}

impl Visit {
    /// Serves the stream: returns this process's end.
    ///
    /// # Errors
    ///
    /// If the host has no descriptors or threads left.
    pub fn accept(self) -> io::Result<UnixStream> {
        let Self { streams, key, stream } = &self;
        streams.serve(*key, Arc::clone(stream))
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // The stream was not accepted.
        if self.stream.local.get().is_none() {
            self.streams.say(self.key, Word::Close, &[]);
            lock(&self.streams.table).remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// Two ends that send frames to each other. The second one echoes all data.
    fn echo() -> Arc<Streams> {
        let (here, bodies) = channel::<Vec<u8>>();
        let (there, answers) = channel::<Vec<u8>>();
        let to = |sender: Sender<Vec<u8>>| {
            let sender = Mutex::new(sender);
            Box::new(move |body: &[u8]| lock(&sender).send(body.to_vec()).is_ok())
        };
        let (near, far) = (Streams::new(to(here)), Streams::new(to(there)));
        thread::spawn(move || {
            for body in bodies {
                let Some(visit) = far.take(&body) else { continue };
                let served = visit.accept().unwrap();
                thread::spawn(move || {
                    let mut bytes = vec![0; 1000];
                    while let Ok(n @ 1..) = (&served).read(&mut bytes) {
                        (&served).write_all(&bytes[..n]).unwrap();
                    }
                });
            }
        });
        let taker = Arc::clone(&near);
        thread::spawn(move || answers.iter().for_each(|body| drop(taker.take(&body))));
        near
    }

    #[test]
    fn streams_carry_more_than_their_window() {
        let near = echo();
        let streams: Vec<_> = (0..3).map(|_| near.open().unwrap()).collect();
        let sent: Vec<u8> = (0..3 * WINDOW).map(|n| (n % 251) as u8).collect();
        for stream in &streams {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut stream = stream;
                    stream.write_all(&sent).unwrap();
                    stream.shutdown(Shutdown::Write).unwrap();
                });
                let mut back = Vec::new();
                { stream }.read_to_end(&mut back).unwrap();
                assert!(back == sent);
            });
        }
        drop(streams);
        while !lock(&near.table).is_empty() {
            thread::yield_now();
        }
    }

    #[test]
    fn one_thread_serves_all_streams_of_a_shard() {
        let streams = Streams::new(Box::new(|_| true));
        let body = |number: u32, word: u8, data: &[u8]| {
            [&number.to_le_bytes()[..], &[OPENER | word], data].concat()
        };
        let mut served = Vec::new();
        for number in 0..MOST as u32 {
            served.push(streams.take(&body(number, 0, &[])).unwrap().accept().unwrap());
            assert!(streams.take(&body(number, 1, b"data")).is_none());
        }
        for mut stream in served {
            let mut data = [0; 4];
            stream.read_exact(&mut data).unwrap();
            assert_eq!(&data, b"data");
        }
        let is_one = |task: &std::path::Path| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "streams\n")
        };
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let threads = tasks.filter(|task| is_one(&task.as_ref().unwrap().path())).count();
        // Other tests have some, too.
        assert!(threads < 16, "{threads}");
    }

    #[test]
    fn departed_shard_ends_its_streams() {
        let near = echo();
        let mut stream = near.open().unwrap();
        near.end();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn malformed_data_ends_only_its_stream() {
        let sent: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let note = Arc::clone(&sent);
        let streams = Streams::new(Box::new(move |body| {
            lock(&note).push(body.to_vec());
            true
        }));
        for bad in [&[][..], &[1], &[0, 0, 0, 0], &[0, 0, 0, 0, 9], &[0, 0, 0, 0, 0x81, 1]] {
            assert!(streams.take(bad).is_none());
        }
        let open = |number: u32| [&number.to_le_bytes()[..], &[OPENER]].concat();
        let visit = streams.take(&open(7)).unwrap();
        assert!(streams.take(&open(7)).is_none());
        // More data than the window holds, before any of it was read.
        let data = [&7u32.to_le_bytes()[..], &[OPENER | 1], &vec![0; WINDOW as usize]].concat();
        assert!(streams.take(&data).is_none() && !lock(&visit.stream.state).closed);
        assert!(streams.take(&data).is_none() && lock(&visit.stream.state).closed);
        drop(visit);
        assert!(lock(&streams.table).is_empty());
        // The number of streams is limited. Streams that are not accepted make room.
        let visits: Vec<_> = (0..2000).filter_map(|n| streams.take(&open(n))).collect();
        assert_eq!(visits.len(), MOST);
        drop(visits);
        assert!(lock(&streams.table).is_empty() && streams.take(&open(1)).is_some());
    }
}
