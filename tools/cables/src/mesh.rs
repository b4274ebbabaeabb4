//! All connections of a shard.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::Instant;

use tofu_fabric::ShardId;
use tofu_machine::Transport;
use tofu_sync::{lock, read, write};

use crate::handshake::{Joining, Verdict, taken};
use crate::hello::{Hello, ShardStatus};
use crate::keepalive::{Dead, HOLD, Keepalive, SILENCE, Signs};
use crate::link::FrameKind;
use crate::peer::{Frame, Met, Peer};
use crate::streams::Visit;

/// About the most bytes of a shard's frames that wait here until the shard has taken answers.
/// Beyond that, nothing is read from it.
const MOST_DEFERRED: usize = 64 << 20;

/// Events of other shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardEvent {
    /// A shard has gone, for this reason.
    Went(ShardId, String),
    /// A shard has reported its status. A shard that was gone sends [`ShardStatus::Here`] when it
    /// comes back.
    Status(ShardId, ShardStatus),
}

/// The connections with all other shards.
pub struct Mesh {
    /// By shard. The place of this shard stays empty.
    places: Box<[ShardSlot]>,
    /// The current or last holder of each place. Checked before each request.
    holders: RwLock<Vec<Arc<Peer>>>,
    joining: Joining,
    /// The report that all guests here have ended, if they have. It is also sent to shards that
    /// come later.
    told: Mutex<Option<ShardStatus>>,
    left: AtomicBool,
}

/// The place of a shard.
#[derive(Default)]
struct ShardSlot {
    holder: Mutex<Option<Arc<Peer>>>,
    came: Condvar,
}

impl ShardSlot {
    /// The peer, if it is present.
    fn peer(&self) -> Option<Arc<Peer>> {
        lock(&self.holder).clone().filter(|peer| !peer.gone.load(SeqCst))
    }
}

/// Handles the messages of other shards.
pub trait Receive: Send + Sync {
    /// Handles a message of the machine.
    fn message(&self, from: ShardId, message: &[u8]);

    /// Notes that there is room for requests again.
    fn room(&self);

    /// Handles an event of a shard.
    fn event(&self, event: ShardEvent);

    /// Serves a stream that a shard has opened. This needs a separate thread; a stream
    /// that is dropped is closed.
    fn visit(&self, _from: ShardId, _visit: Visit) {}
}

/// Another shard, for reports about the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The shard.
    pub shard: ShardId,
    /// The address at which it listens.
    pub address: String,
    /// Its process ID.
    pub pid: u32,
    /// True if it has gone.
    pub gone: bool,
}

impl Joining {
    /// Meets all other shards, without a time limit. `waits` is called with the first missing shard
    /// and its address whenever that changes.
    ///
    /// # Errors
    ///
    /// If a shard does not match this one, or another process has this shard. Connections that are
    /// not from shards are turned away.
    pub fn meet(self, waits: &mut dyn FnMut(ShardId, &str)) -> anyhow::Result<Mesh> {
        Ok(Mesh::new(self.meet_all(waits)?, self))
    }
}

impl Mesh {
    fn new(peers: Vec<Option<Peer>>, joining: Joining) -> Self {
        let peers: Vec<_> = peers.into_iter().map(|peer| peer.map(Arc::new)).collect();
        let holders = RwLock::new(peers.iter().flatten().cloned().collect());
        let place = |holder| ShardSlot { holder: Mutex::new(holder), came: Condvar::new() };
        let places = peers.into_iter().map(place).collect();
        Self { places, holders, joining, told: Mutex::default(), left: AtomicBool::new(false) }
    }

    /// Announces this shard, and starts the threads that receive from others. Each of them first
    /// calls `first`, for example to drop privileges.
    ///
    /// # Errors
    ///
    /// If the host has no threads left.
    pub fn start(
        self: &Arc<Self>,
        to: &Arc<dyn Receive>,
        first: &Arc<dyn Fn() + Send + Sync>,
    ) -> io::Result<()> {
        let spawn = |name: String, run: Box<dyn FnOnce() + Send>| {
            let first = Arc::clone(first);
            let run = move || {
                first();
                run();
            };
            thread::Builder::new().name(name).spawn(run).map(drop)
        };
        self.say(ShardStatus::Here);
        for shard in self.others() {
            let (mesh, to) = (Arc::clone(self), Arc::clone(to));
            spawn(format!("cable{shard}"), Box::new(move || mesh.receive(shard, &*to)))?;
        }
        let mesh = Arc::clone(self);
        spawn("cables".to_owned(), Box::new(move || mesh.look_after()))?;
        let mesh = Arc::clone(self);
        spawn("cables-door".to_owned(), Box::new(move || mesh.keep_door()))
    }

    /// Reports this shard's status to all other shards, and to those that come later.
    pub fn tell(&self, status: ShardStatus) {
        if let ShardStatus::Ended { .. } = status {
            *lock(&self.told) = Some(status);
        }
        self.say(status);
    }

    fn say(&self, status: ShardStatus) {
        for (_, peer) in self.present() {
            say(&peer, status);
        }
    }

    /// Opens a stream to a shard, which gets it as a [`Visit`], and returns this end. The calling
    /// thread starts the threads that serve the stream.
    ///
    /// # Errors
    ///
    /// If the shard has gone or has too many streams, or the host has no descriptors or threads
    /// left.
    pub fn open(&self, shard: ShardId) -> io::Result<UnixStream> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "it is not there");
        let peer = self.places.get(shard.index()).and_then(ShardSlot::peer);
        peer.ok_or_else(gone)?.streams.open()
    }

    /// The other shards.
    pub fn peers(&self) -> Vec<PeerInfo> {
        let info = |shard: ShardId| {
            let holder = lock(&self.places[shard.index()].holder).clone();
            PeerInfo {
                shard,
                address: self.joining.address_of(shard).to_owned(),
                pid: holder.as_ref().map_or(0, |peer| peer.said.pid),
                gone: holder.is_none_or(|peer| peer.gone.load(SeqCst)),
            }
        };
        self.others().map(info).collect()
    }

    /// The address at which this shard listens.
    pub fn address(&self) -> &str {
        self.joining.address()
    }

    /// Leaves the machine. All other shards notice this.
    pub fn leave(&self) {
        self.left.store(true, SeqCst);
        self.present().for_each(|(_, peer)| peer.link.leave());
        for place in &self.places {
            // Under the lock, so that a thread that is about to wait does not miss the
            // notification.
            let _holder = lock(&place.holder);
            place.came.notify_all();
        }
    }

    fn others(&self) -> impl Iterator<Item = ShardId> + use<> {
        let own = self.joining.own.shard;
        (0..self.places.len() as u16).filter(move |shard| *shard != own).map(ShardId)
    }

    /// The shards that are connected.
    fn present(&self) -> impl Iterator<Item = (ShardId, Arc<Peer>)> + '_ {
        (0..)
            .map(ShardId)
            .zip(&self.places)
            .filter_map(|(shard, place)| Some((shard, place.peer()?)))
    }

    /// Receives from the processes that hold a shard, one after the other.
    fn receive(&self, shard: ShardId, to: &dyn Receive) {
        let Some(place) = self.places.get(shard.index()) else { return };
        let mut holder = lock(&place.holder);
        while !self.left.load(SeqCst) {
            match holder.clone().filter(|peer| !peer.gone.load(SeqCst)) {
                Some(peer) => {
                    drop(holder);
                    self.serve(shard, &peer, to);
                    holder = lock(&place.holder);
                }
                None => {
                    let woken = place.came.wait(holder);
                    holder = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Sends keep-alives, and checks whether the other shards are still alive.
    fn look_after(&self) {
        let timeout = self.joining.timeout;
        let mut pulses: Vec<_> = self.places.iter().map(|_| (None, Keepalive::default())).collect();
        let mut last = Instant::now();
        while !self.left.load(SeqCst) {
            thread::sleep(Keepalive::beat(timeout));
            let after = last.elapsed();
            last = Instant::now();
            for (shard, peer) in self.present() {
                let (whose, keepalive) = &mut pulses[shard.index()];
                // Another process holds the shard now.
                if *whose != Some(Arc::as_ptr(&peer)) {
                    (*whose, *keepalive) = (Some(Arc::as_ptr(&peer)), Keepalive::default());
                }
                let signs = Signs {
                    received: peer.received.swap(false, SeqCst),
                    full: peer.link.stands_still(),
                    holds: peer.holds.load(SeqCst),
                    acks: peer.link.acks().unwrap_or_default(),
                };
                if let Some(why) = keepalive.look(after, signs, timeout) {
                    let _ = peer.dead.set(why);
                    peer.link.close();
                }
                peer.link.send(FrameKind::Alive, &[]);
            }
        }
    }

    /// Lets shards come back.
    fn keep_door(&self) {
        let holder = |shard: u16| self.places.get(usize::from(shard)).and_then(ShardSlot::peer);
        let judge = |other: &Hello, _| match holder(other.shard) {
            Some(peer) => taken(other, &peer),
            None => Verdict::Take,
        };
        let mut met = |met: Met| {
            let Some(place) = self.places.get(usize::from(met.said.shard)) else {
                return Some(met);
            };
            let mut holder = lock(&place.holder);
            if holder.as_ref().is_some_and(|peer| !peer.gone.load(SeqCst)) {
                return Some(met);
            }
            let peer = Arc::new(Peer::new(met));
            say(&peer, ShardStatus::Here);
            if let Some(status) = *lock(&self.told) {
                say(&peer, status);
            }
            let mut holders = write(&self.holders);
            holders.retain(|other| other.said.shard != peer.said.shard);
            holders.push(Arc::clone(&peer));
            drop(holders);
            *holder = Some(peer);
            place.came.notify_all();
            None
        };
        self.joining.keep_door(&|| self.left.load(SeqCst), &judge, &mut met);
    }
}

/// The reason for which a shard is gone, for users.
fn went(error: &io::Error, dead: Option<&Dead>) -> String {
    match (error.kind(), dead) {
        (_, Some(Dead::CutOff)) => "its host does not answer".to_owned(),
        (_, Some(Dead::Silent)) => {
            format!("its process has said nothing for {} s", SILENCE.as_secs())
        }
        (_, Some(Dead::Full)) => {
            format!("its process has taken nothing for {} s", SILENCE.as_secs())
        }
        (_, Some(Dead::Holds)) => {
            format!("its process has let no shard send for {} s", HOLD.as_secs())
        }
        (
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe,
            None,
        ) => "its process has ended".to_owned(),
        (io::ErrorKind::ConnectionAborted, None) => "the cable takes no more".to_owned(),
        _ => error.to_string(),
    }
}

fn say(peer: &Peer, status: ShardStatus) {
    if let Ok(body) = serde_json::to_vec(&status) {
        peer.link.send(FrameKind::Said, &body);
    }
}

/// Frames from a shard that are not handled yet.
#[derive(Default)]
struct Deferred {
    frames: VecDeque<Frame>,
    bytes: usize,
}

impl Deferred {
    fn push(&mut self, frame: Frame) {
        self.bytes += frame.1.len();
        self.frames.push_back(frame);
    }

    fn pop(&mut self) -> Option<Frame> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.1.len();
        Some(frame)
    }
}

/// The messages of a process that holds a shard.
#[derive(Default)]
struct Inbox {
    here: bool,
    unknown: bool,
}

impl Inbox {
    /// Handles a frame. Frames must be passed in the order in which they were sent.
    fn take(&mut self, shard: ShardId, (kind, body): &Frame, to: &dyn Receive) {
        match kind {
            FrameKind::Message => to.message(shard, body),
            FrameKind::Said => match serde_json::from_slice(body) {
                // Repeated messages are ignored.
                Ok(ShardStatus::Here) if self.here => {}
                Ok(status) => {
                    self.here |= status == ShardStatus::Here;
                    to.event(ShardEvent::Status(shard, status));
                }
                Err(_) if self.unknown => {}
                Err(error) => {
                    self.unknown = true;
                    log::warn!("unknown message from shard {shard}: {error}");
                }
            },
            FrameKind::Alive | FrameKind::Stream | FrameKind::Hold => {}
        }
    }
}

impl Mesh {
    /// Receives from the process that holds a shard, until it is gone.
    ///
    /// While the answers to its requests pile up, its frames wait, too, because a short request may
    /// have a long answer. They are still read, because two shards that wait for each other to read
    /// would deadlock. During that time this process is requested to throttle its own requests.
    fn serve(&self, shard: ShardId, peer: &Peer, to: &dyn Receive) {
        let mut frames = std::mem::take(&mut *lock(&peer.early));
        let (mut inbox, mut deferred) = (Inbox::default(), Deferred::default());
        let why = loop {
            if !frames.is_empty() {
                peer.received.store(true, SeqCst);
            }
            for frame in frames.drain(..) {
                match frame.0 {
                    FrameKind::Alive => {}
                    FrameKind::Stream => {
                        if let Some(visit) = peer.streams.take(&frame.1) {
                            to.visit(shard, visit);
                        }
                    }
                    FrameKind::Hold => {
                        let holds = frame.1 == [1];
                        if peer.holds.swap(holds, SeqCst) && !holds {
                            to.room();
                        }
                    }
                    FrameKind::Message | FrameKind::Said => deferred.push(frame),
                }
            }
            while peer.link.is_served()
                && let Some(frame) = deferred.pop()
            {
                inbox.take(shard, &frame, to);
            }
            if !deferred.frames.is_empty() {
                self.hold_back(shard, shard);
            }
            let listen = deferred.bytes < MOST_DEFERRED;
            match peer.link.receive(None, listen, &mut frames) {
                Ok(true) => {
                    self.let_go(shard);
                    to.room();
                }
                Ok(false) => {}
                Err(error) => break error,
            }
        };
        while let Some(frame) = deferred.pop() {
            inbox.take(shard, &frame, to);
        }
        peer.streams.end();
        // Before another process can take the shard.
        to.event(ShardEvent::Went(shard, went(&why, peer.dead.get())));
        peer.gone.store(true, SeqCst);
        peer.link.leave();
        self.let_go(shard);
        to.room();
    }

    /// Lets shards send again that were held back because of this one.
    fn let_go(&self, because: ShardId) {
        for (_, peer) in self.present() {
            let mut held = lock(&peer.held);
            if *held == Some(because) {
                *held = None;
                peer.link.send(FrameKind::Hold, &[0]);
            }
        }
    }
}

impl Transport for Mesh {
    fn send(&self, to: ShardId, message: Vec<u8>) -> bool {
        let peer = self.places.get(to.index()).and_then(ShardSlot::peer);
        peer.is_some_and(|peer| peer.link.send(FrameKind::Message, &message))
    }

    fn pass_on(&self, to: ShardId, message: Vec<u8>) -> bool {
        let peer = self.places.get(to.index()).and_then(ShardSlot::peer);
        peer.is_some_and(|peer| {
            peer.link.passes_on() && peer.link.send(FrameKind::Message, &message)
        })
    }

    fn hold_back(&self, whose: ShardId, to: ShardId) {
        let peer = |shard: ShardId| self.places.get(shard.index()).and_then(ShardSlot::peer);
        let crowded = || peer(to).is_some_and(|peer| !peer.link.has_room());
        if !crowded() {
            return;
        }
        let Some(asks) = peer(whose) else { return };
        let mut held = lock(&asks.held);
        if held.is_some() {
            return;
        }
        *held = Some(to);
        asks.link.send(FrameKind::Hold, &[1]);
        drop(held);
        // A thread that made room in between has not seen that the shard is held back.
        if !crowded() {
            self.let_go(to);
        }
    }

    fn has_room(&self) -> bool {
        let holders = read(&self.holders);
        holders
            .iter()
            .all(|peer| peer.gone.load(SeqCst) || peer.link.has_room() && !peer.holds.load(SeqCst))
    }
}
