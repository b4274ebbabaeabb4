//! All connections of a part.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rustls::client::verify_server_name;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use tofu_fabric::PartId;
use tofu_machine::Transport;
use tofu_sync::lock;

use crate::hello::{Greeting, Hello, PartStatus};
use crate::hosts::{Credentials, server_name};
use crate::link::{Kind, Link};
use crate::streams::{Streams, Visit};

/// How long the other end of a new connection may take for each thing that it is to say.
const GREETING: Duration = Duration::from_secs(10);
/// How long to wait before a part is looked for again.
const RETRY: Duration = Duration::from_millis(100);
/// The same if someone is there who is turned away, or turns this one away.
const RETRY_TURNED: Duration = Duration::from_secs(1);
/// Different reasons why others were turned away that are told, at most, before all parts have met.
const MOST_TOLD: usize = 100;
/// How often a part gives a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A part that has given none for so long is taken for dead. One whose process has ended is so at
/// once.
const SILENCE: Duration = Duration::from_secs(10);

/// A part that is about to meet the others. Its address is taken.
pub struct Joining {
    own: Hello,
    credentials: Credentials,
    listener: TcpListener,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// What happens to other parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A part has gone, and why.
    Went(PartId, String),
    /// A part has said how it is.
    Status(PartId, PartStatus),
}

/// The connections with all other parts.
pub struct Mesh {
    /// None of this part itself.
    peers: Box<[Option<Peer>]>,
    joining: Joining,
    start: Instant,
}

struct Peer {
    link: Arc<Link>,
    streams: Arc<Streams>,
    said: Hello,
    /// What came with its greeting.
    early: Mutex<Vec<Frame>>,
    /// When it was last heard of, in milliseconds since the start of the mesh.
    heard: AtomicU64,
    gone: AtomicBool,
}

impl Peer {
    fn new((link, said, early): (Link, Hello, Vec<Frame>)) -> Self {
        let (early, heard) = (Mutex::new(early), AtomicU64::new(0));
        let link = Arc::new(link);
        let sends = Arc::clone(&link);
        let streams = Streams::new(Box::new(move |body| sends.send(Kind::Stream, body)));
        Self { link, streams, said, early, heard, gone: AtomicBool::new(false) }
    }
}

type Frame = (Kind, Vec<u8>);

/// What is done with what comes from other parts.
pub trait Receive: Send + Sync {
    /// A message of the machine.
    fn message(&self, from: PartId, message: &[u8]);

    /// There is room for requests again.
    fn room(&self);

    /// Something has happened to a part.
    fn news(&self, news: News);

    /// A part has opened a stream. Whoever serves it does so on a thread of his own; one that is
    /// dropped is closed.
    fn visit(&self, _from: PartId, _visit: Visit) {}
}

/// Another part, for those who ask about the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Which.
    pub part: PartId,
    /// Where it listens.
    pub address: String,
    /// Its process.
    pub pid: u32,
    /// It is no longer there.
    pub gone: bool,
}

impl Joining {
    /// Reads what the folder has for a part, and takes its address.
    ///
    /// # Errors
    ///
    /// In one line that names the file, or the address if another process has it.
    pub fn new(dir: &Path, own: Hello) -> anyhow::Result<Self> {
        let part = PartId(own.part);
        let credentials = Credentials::read(dir, part)?;
        let count = credentials.addresses.len();
        if count != own.parts as usize {
            bail!(
                "part {part}/{}: {} has addresses for {count} parts; give {part}/{count}, or make \
                 another one with `tofu hosts init`",
                own.parts,
                dir.display()
            );
        }
        let sockets = credentials.sockets(part)?;
        let listener = TcpListener::bind(&sockets[..]).map_err(|error| {
            let address = &credentials.addresses[part.index()];
            match error.kind() {
                io::ErrorKind::AddrInUse => anyhow!(
                    "part {part} of machine {} is taken: another process listens at {address}",
                    own.machine
                ),
                _ => anyhow!("part {part} cannot listen at {address}: {error}"),
            }
        })?;
        let (server, client) = configurations(&credentials)?;
        Ok(Self { own, credentials, listener, server, client })
    }

    /// Where this part listens.
    pub fn address(&self) -> &str {
        &self.credentials.addresses[usize::from(self.own.part)]
    }

    /// Meets all other parts, however long that takes: looks for those with lower numbers, and
    /// waits for the others. `waits` is told of each part before, with its address.
    ///
    /// # Errors
    ///
    /// If one of them does not fit to this one. Whoever is none of them is turned away.
    pub fn meet(self, waits: &mut dyn FnMut(PartId, &str)) -> anyhow::Result<Mesh> {
        let mut peers: Vec<Option<Peer>> = (0..self.own.parts).map(|_| None).collect();
        for part in (0..self.own.part).map(PartId) {
            waits(part, &self.credentials.addresses[part.index()]);
            peers[part.index()] = Some(Peer::new(self.find(part)?));
        }
        let first = usize::from(self.own.part) + 1;
        let mut told = HashSet::new();
        while let Some(missing) = (first..peers.len()).find(|part| peers[*part].is_none()) {
            waits(PartId(missing as u16), &self.credentials.addresses[missing]);
            let (socket, from) = self.listener.accept().context("waiting for parts")?;
            match self.admit(socket, &peers) {
                Ok(met) => {
                    let place = usize::from(met.1.part);
                    peers[place] = Some(Peer::new(met));
                }
                Err(Turned::Away(why)) => {
                    // It may come again and again.
                    let line = format!("{} is turned away: {why:#}", from.ip());
                    if told.len() < MOST_TOLD && told.insert(line.clone()) {
                        log::warn!("{line}");
                    }
                }
                Err(Turned::Unfit(why)) => bail!(why),
            }
        }
        Ok(Mesh { peers: peers.into(), joining: self, start: Instant::now() })
    }

    /// Looks for a part until it is there.
    fn find(&self, part: PartId) -> anyhow::Result<(Link, Hello, Vec<Frame>)> {
        let mut told = String::new();
        loop {
            let sockets = self.credentials.sockets(part)?;
            let Ok(socket) = TcpStream::connect(&sockets[..]) else {
                thread::sleep(RETRY);
                continue;
            };
            let connection = ClientConnection::new(Arc::clone(&self.client), server_name(part)?)?;
            let link = Link::new(socket, connection.into())?;
            let expected = |other: &Hello| {
                let why = "that is the address of another part";
                (other.part != part.0).then(|| why.to_owned())
            };
            match self.greet(&link, &expected) {
                Ok((said, early)) => return Ok((link, said, early)),
                Err(Turned::Unfit(why)) => bail!(why),
                // It may be about to end, or not a part at all.
                Err(Turned::Away(why)) => {
                    let address = &self.credentials.addresses[part.index()];
                    let line = format!("part {part} at {address}: {why:#}");
                    if told != line {
                        log::warn!("{line}");
                        told = line;
                    }
                    thread::sleep(RETRY_TURNED);
                }
            }
        }
    }

    /// Takes a connection from a part that is not there yet.
    fn admit(
        &self,
        socket: TcpStream,
        peers: &[Option<Peer>],
    ) -> Result<(Link, Hello, Vec<Frame>), Turned> {
        let connection = ServerConnection::new(Arc::clone(&self.server)).map_err(away)?;
        let link = Link::new(socket, connection.into()).map_err(away)?;
        let taken = |other: &Hello| {
            let holder = peers.get(usize::from(other.part)).and_then(Option::as_ref)?;
            let (part, machine, pid) = (other.part, &other.machine, holder.said.pid);
            Some(match holder.gone.load(SeqCst) {
                false => format!("part {part} of machine {machine} is taken by process {pid}"),
                true => format!(
                    "part {part} of machine {machine} was process {pid}, which has gone; parts \
                     cannot come back so far: start all of them again"
                ),
            })
        };
        let (said, early) = self.greet(&link, &taken)?;
        Ok((link, said, early))
    }

    /// Both ends say who they are, and whether the other one fits. `refuses` may know why it does
    /// not.
    fn greet(
        &self,
        link: &Link,
        refuses: &dyn Fn(&Hello) -> Option<String>,
    ) -> Result<(Hello, Vec<Frame>), Turned> {
        let mut heard = VecDeque::new();
        say(link, &Greeting::Hello(self.own.clone()));
        let Greeting::Hello(other) = hear(link, &mut heard)? else {
            return Err(Turned::Away(anyhow!("it does not say who it is")));
        };
        let part = PartId(other.part);
        let known = part.0 != self.own.part && link.with(|connection| is_of(connection, part));
        let stranger =
            || format!("whoever says it is part {part} has another certificate than that part");
        let fault = (!known).then(stranger).or_else(|| refuses(&other));
        if let Some(why) = fault {
            say(link, &Greeting::Refused(why.clone()));
            return Err(Turned::Away(anyhow!(why)));
        }
        if let Some(why) = self.own.refuses(&other) {
            say(link, &Greeting::Refused(why.clone()));
            return Err(Turned::Unfit(why));
        }
        say(link, &Greeting::Welcome);
        match hear(link, &mut heard)? {
            Greeting::Welcome => Ok((other, heard.into())),
            Greeting::Refused(why) => Err(Turned::Unfit(why)),
            Greeting::Hello(_) => Err(Turned::Away(anyhow!("it says twice who it is"))),
        }
    }
}

/// Why a connection is not used.
enum Turned {
    /// It is nobody's, or comes to nothing.
    Away(anyhow::Error),
    /// It is a part's that does not fit to this one.
    Unfit(String),
}

fn away(error: impl Into<anyhow::Error>) -> Turned {
    Turned::Away(error.into())
}

fn configurations(of: &Credentials) -> anyhow::Result<(Arc<ServerConfig>, Arc<ClientConfig>)> {
    let (provider, authority) = (Arc::new(default_provider()), Arc::new(of.authority.clone()));
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&authority), Arc::clone(&provider))
            .build()?;
    let versions = &[&rustls::version::TLS13];
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(of.certificate.clone(), of.key.clone_key())?;
    // Nobody comes back with a ticket.
    server.send_tls13_tickets = 0;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_root_certificates(authority)
        .with_client_auth_cert(of.certificate.clone(), of.key.clone_key())?;
    Ok((Arc::new(server), Arc::new(client)))
}

/// Whether the other end's certificate is that of a part.
fn is_of(connection: &Connection, part: PartId) -> bool {
    let first = connection.peer_certificates().and_then(<[CertificateDer<'_>]>::first);
    let parsed = first.and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
    let (Some(parsed), Ok(name)) = (parsed, server_name(part)) else { return false };
    verify_server_name(&parsed, &name).is_ok()
}

fn say(link: &Link, greeting: &Greeting) {
    if let Ok(body) = serde_json::to_vec(greeting) {
        // Whether it is gone is seen when it says nothing.
        link.send(Kind::Said, &body);
    }
}

/// What the other end says next.
fn hear(link: &Link, heard: &mut VecDeque<Frame>) -> Result<Greeting, Turned> {
    let start = Instant::now();
    while heard.is_empty() {
        let left = GREETING.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(Turned::Away(anyhow!("it says nothing")));
        }
        let mut frames = Vec::new();
        link.receive(Some(left), &mut frames).map_err(away)?;
        heard.extend(frames);
    }
    match heard.pop_front() {
        Some((Kind::Said, body)) => serde_json::from_slice(&body).map_err(away),
        _ => Err(Turned::Away(anyhow!("it does not say who it is"))),
    }
}

impl Mesh {
    /// Starts the threads that take what other parts send; each calls `first` before anything else,
    /// to give up rights, say.
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
        for (part, _) in self.others() {
            let (mesh, to) = (Arc::clone(self), Arc::clone(to));
            spawn(format!("cable{part}"), Box::new(move || mesh.receive(part, &*to)))?;
        }
        let mesh = Arc::clone(self);
        spawn("cables".to_owned(), Box::new(move || mesh.look_after()))
    }

    /// Tells all other parts how this one is.
    pub fn tell(&self, status: PartStatus) {
        let Ok(body) = serde_json::to_vec(&status) else { return };
        for (_, peer) in self.others() {
            peer.link.send(Kind::Said, &body);
        }
    }

    /// Opens a stream to a part, which gets it as a [`Visit`], and returns this end. It is served
    /// by threads that the caller's thread starts.
    ///
    /// # Errors
    ///
    /// If the part is not there, has too many, or the host has no descriptors or threads left.
    pub fn open(&self, part: PartId) -> io::Result<UnixStream> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "it is not there");
        self.peer(part).ok_or_else(gone)?.streams.open()
    }

    /// The other parts.
    pub fn peers(&self) -> Vec<PeerInfo> {
        let info = |(part, peer): (PartId, &Peer)| PeerInfo {
            part,
            address: self.joining.credentials.addresses[part.index()].clone(),
            pid: peer.said.pid,
            gone: peer.gone.load(SeqCst),
        };
        self.others().map(info).collect()
    }

    /// Where this part listens.
    pub fn address(&self) -> &str {
        self.joining.address()
    }

    /// Leaves the machine: all other parts see this one go.
    pub fn leave(&self) {
        self.others().for_each(|(_, peer)| peer.link.leave());
    }

    fn others(&self) -> impl Iterator<Item = (PartId, &Peer)> {
        (0..).map(PartId).zip(&self.peers).filter_map(|(part, peer)| Some((part, peer.as_ref()?)))
    }

    fn peer(&self, part: PartId) -> Option<&Peer> {
        let peer = self.peers.get(part.index())?.as_ref()?;
        (!peer.gone.load(SeqCst)).then_some(peer)
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Takes what a part sends until it is gone.
    fn receive(&self, part: PartId, to: &dyn Receive) {
        let Some(peer) = self.peer(part) else { return };
        let mut frames = std::mem::take(&mut *lock(&peer.early));
        let why = loop {
            peer.heard.store(self.now_ms(), SeqCst);
            for (kind, body) in frames.drain(..) {
                match kind {
                    Kind::Message => to.message(part, &body),
                    Kind::Alive => {}
                    Kind::Stream => {
                        if let Some(visit) = peer.streams.take(&body) {
                            to.visit(part, visit);
                        }
                    }
                    Kind::Said => match serde_json::from_slice(&body) {
                        Ok(status) => to.news(News::Status(part, status)),
                        Err(error) => log::warn!("part {part} says what is not known: {error}"),
                    },
                }
            }
            match peer.link.receive(None, &mut frames) {
                Ok(true) => to.room(),
                Ok(false) => {}
                Err(error) => break error,
            }
        };
        peer.gone.store(true, SeqCst);
        peer.link.close();
        peer.streams.end();
        to.room();
        to.news(News::Went(part, went(&why)));
    }

    /// Gives signs of life, and takes those for dead who give none; and turns away who comes now.
    fn look_after(&self) {
        if self.joining.listener.set_nonblocking(true).is_err() {
            log::warn!("parts that come later wait in vain");
        }
        loop {
            thread::sleep(HEARTBEAT);
            let (now, mut any) = (self.now_ms(), false);
            for (_, peer) in self.others().filter(|(_, peer)| !peer.gone.load(SeqCst)) {
                any = true;
                peer.link.send(Kind::Alive, &[]);
                if now.saturating_sub(peer.heard.load(SeqCst)) > SILENCE.as_millis() as u64 {
                    peer.link.close();
                }
            }
            if !any {
                return;
            }
            while let Ok((socket, from)) = self.joining.listener.accept() {
                match self.joining.admit(socket, &self.peers) {
                    Err(Turned::Away(why)) => log::warn!("{from} is turned away: {why:#}"),
                    Err(Turned::Unfit(why)) => log::warn!("{from} is turned away: {why}"),
                    Ok(_) => {}
                }
            }
        }
    }
}

/// Why a part is gone, for users.
fn went(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => "its process has ended".to_owned(),
        io::ErrorKind::ConnectionAborted => "nothing was heard of it any more".to_owned(),
        _ => error.to_string(),
    }
}

impl Transport for Mesh {
    fn send(&self, to: PartId, message: Vec<u8>) -> bool {
        self.peer(to).is_some_and(|peer| peer.link.send(Kind::Message, &message))
    }

    fn has_room(&self) -> bool {
        self.others().all(|(_, peer)| peer.gone.load(SeqCst) || peer.link.has_room())
    }
}
