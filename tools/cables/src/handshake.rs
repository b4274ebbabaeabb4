//! The handshake of shards: at the start of a machine, and when one comes back.
//!
//! A shard that starts connects to the shards with lower numbers, which wait for it. Shards that
//! already run have dropped the right to open connections, so a shard that comes back connects to
//! the shards with higher numbers, too. A shard that has not met all others yet then refuses it,
//! and connects by itself. Many handshakes may be in progress at the same time, so that no shard
//! waits for a silent one.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustls::client::verify_server_name;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use tofu_fabric::ShardId;

use crate::hello::{Greeting, Hello, shown};
use crate::hosts::{Credentials, server_name};
use crate::keepalive::Keepalive;
use crate::link::{FrameKind, Link};
use crate::peer::{Frame, Met, Peer};

/// The time limit for the exchange of greetings on a new connection.
const GREETING: Duration = Duration::from_secs(10);
/// Pause before another attempt to connect to a shard.
const RETRY: Duration = Duration::from_millis(100);
/// The same if either end turned the other away.
const RETRY_TURNED: Duration = Duration::from_secs(1);
/// The same for a shard with a higher number, which is expected to connect by itself.
const RETRY_HIGHER: Duration = Duration::from_secs(2);
/// The time for which a shard that is reported as taken is claimed again: its holder may just have
/// ended.
const CLAIM: Duration = Duration::from_secs(5);
/// The most connections that may exchange greetings at a time. A further one replaces the oldest.
const MOST_GREETING: usize = 64;
/// The most different reasons for turning connections away that are reported.
const MOST_TOLD: usize = 100;

/// A shard is considered cut off after this time without an acknowledgement, unless the user sets
/// another time *(ours)*.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// A shard that is about to meet the others, with its address bound.
pub struct Joining {
    pub(crate) own: Hello,
    credentials: Credentials,
    listener: TcpListener,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    pub(crate) timeout: Duration,
}

/// The reason why a connection is not used.
enum Turned {
    /// It is not from a shard, or failed.
    Away(anyhow::Error),
    /// It is from a shard that does not match this one.
    Unfit(String),
    /// The other end says that another process holds this shard.
    Taken(String),
    /// The other end will connect by itself.
    Later,
}

fn away(error: impl Into<anyhow::Error>) -> Turned {
    Turned::Away(error.into())
}

/// The verdict on a shard that connects.
pub(crate) enum Verdict {
    Take,
    /// Another process holds it. The line names that process.
    Taken(String),
    /// It must wait.
    Later,
}

/// A connection whose ends exchange greetings.
struct Greet {
    link: Link,
    /// True if this shard has introduced itself.
    begun: bool,
    since: Instant,
    /// The shard that this one connected to, or the address of the end that connected.
    with: Result<ShardId, SocketAddr>,
    said: Option<Hello>,
    frames: VecDeque<Frame>,
}

impl Greet {
    fn new(link: Link, with: Result<ShardId, SocketAddr>, own: &Hello) -> Self {
        let begun = with.is_err();
        if begun {
            say(&link, &Greeting::Hello(own.clone()));
        }
        Self { link, begun, since: Instant::now(), with, said: None, frames: VecDeque::new() }
    }

    /// Handles received data. `judge` gives the verdict on the shard that the other end claims to
    /// be; its second argument is true if the other end connected. Returns whether both have met.
    fn go_on(
        &mut self,
        own: &Hello,
        judge: &dyn Fn(&Hello, bool) -> Verdict,
    ) -> Result<bool, Turned> {
        if !self.begun && self.link.is_connected().map_err(away)? {
            say(&self.link, &Greeting::Hello(own.clone()));
            self.begun = true;
        }
        let mut frames = Vec::new();
        if self.begun {
            self.link.receive(Some(Duration::ZERO), true, &mut frames).map_err(away)?;
        }
        self.frames.extend(frames);
        while let Some((kind, body)) = self.frames.pop_front() {
            if kind != FrameKind::Said {
                return Err(Turned::Away(anyhow!("it does not say who it is")));
            }
            let greeting = serde_json::from_slice(&body).map_err(away)?;
            match (greeting, self.said.is_some()) {
                (Greeting::Hello(other), false) => {
                    self.judge(own, &other, judge)?;
                    self.said = Some(other);
                }
                (Greeting::Welcome, true) => return Ok(true),
                (Greeting::Refused(why), _) => return Err(Turned::Unfit(shown(&why))),
                (Greeting::Taken(why), _) => return Err(Turned::Taken(shown(&why))),
                (Greeting::Later, _) => return Err(Turned::Later),
                (Greeting::Hello(_) | Greeting::Welcome, _) => {
                    return Err(Turned::Away(anyhow!("it does not greet as shards do")));
                }
            }
        }
        match self.since.elapsed() < GREETING {
            true => Ok(false),
            false => Err(Turned::Away(anyhow!("it sends nothing"))),
        }
    }

    /// Sends this shard's verdict on the other one.
    fn judge(
        &self,
        own: &Hello,
        other: &Hello,
        judge: &dyn Fn(&Hello, bool) -> Verdict,
    ) -> Result<(), Turned> {
        let shard = ShardId(other.shard);
        let known = shard.0 != own.shard && self.link.with(|connection| is_of(connection, shard));
        let fault = match self.with {
            _ if !known => {
                Some(format!("a peer that claims to be shard {shard} has another certificate"))
            }
            Ok(wanted) if wanted != shard => {
                Some("that is the address of another shard".to_owned())
            }
            _ => None,
        };
        if let Some(why) = fault {
            say(&self.link, &Greeting::Refused(why.clone()));
            return Err(Turned::Away(anyhow!(why)));
        }
        if let Some(why) = own.refuses(other) {
            say(&self.link, &Greeting::Refused(why.clone()));
            return Err(Turned::Unfit(why));
        }
        match judge(other, self.with.is_err()) {
            Verdict::Take => {
                say(&self.link, &Greeting::Welcome);
                Ok(())
            }
            Verdict::Taken(why) => {
                say(&self.link, &Greeting::Taken(why.clone()));
                Err(Turned::Away(anyhow!(why)))
            }
            Verdict::Later => {
                say(&self.link, &Greeting::Later);
                Err(Turned::Later)
            }
        }
    }
}

fn say(link: &Link, greeting: &Greeting) {
    if let Ok(body) = serde_json::to_vec(greeting) {
        // If it is gone, its silence shows that.
        link.send(FrameKind::Said, &body);
    }
}

/// All connections whose ends exchange greetings.
#[derive(Default)]
struct Hall {
    greets: Vec<Greet>,
    told: HashSet<String>,
}

impl Hall {
    /// Waits for an event at the listener or a connection, for `patience` at most.
    fn wait(&self, listener: &TcpListener, patience: Duration) {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        fds.extend(self.greets.iter().map(|greet| match greet.begun {
            true => greet.link.interest(),
            false => greet.link.interest_and(PollFlags::OUT),
        }));
        let patience = Timespec::try_from(patience).unwrap_or_default();
        // If `poll` fails, there is nothing to do for a while.
        let _ = poll(&mut fds, Some(&patience));
    }

    /// Accepts waiting connections.
    fn admit(&mut self, joining: &Joining) {
        loop {
            let (socket, from) = match joining.listener.accept() {
                Ok(came) => came,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // For example, no descriptors are left. The error would recur immediately.
                Err(_) => return thread::sleep(RETRY),
            };
            if self.greets.len() >= MOST_GREETING {
                self.greets.remove(0);
            }
            let connection = ServerConnection::new(Arc::clone(&joining.server));
            let link = connection.map_err(io::Error::other);
            match link.and_then(|connection| Link::new(socket, connection.into())) {
                Ok(link) => self.greets.push(Greet::new(link, Err(from), &joining.own)),
                Err(error) => self.tell(format!("{from} is turned away: {error}")),
            }
        }
    }

    /// Returns true if a connection to a shard that this process opened is in its greeting.
    fn looks_for(&self, shard: ShardId) -> bool {
        self.greets.iter().any(|greet| greet.with == Ok(shard))
    }

    /// Handles received data of all connections. Returns those that have met, and those that were
    /// turned away.
    fn go_on(
        &mut self,
        Joining { own, credentials, .. }: &Joining,
        judge: &dyn Fn(&Hello, bool) -> Verdict,
        met: &mut dyn FnMut(Met) -> Option<Met>,
    ) -> Vec<(Result<ShardId, SocketAddr>, Turned)> {
        let mut turned = Vec::new();
        for mut greet in std::mem::take(&mut self.greets) {
            match (greet.go_on(own, judge), greet.said.take()) {
                (Ok(true), Some(said)) => {
                    let Greet { link, frames, with, .. } = greet;
                    let at = match with {
                        Ok(shard) => credentials.addresses[shard.index()].clone(),
                        Err(from) => from.to_string(),
                    };
                    // The shard is not accepted after all.
                    if let Some(turned) = met(Met { link, said, at, early: frames.into() }) {
                        turned.link.leave();
                    }
                }
                (Ok(_), said) => self.greets.push(Greet { said, ..greet }),
                (Err(why), _) => turned.push((greet.with, why)),
            }
        }
        turned
    }

    /// Reports each line once, so that an end that keeps connecting is reported only once.
    fn tell(&mut self, line: String) {
        if self.told.len() < MOST_TOLD && self.told.insert(line.clone()) {
            log::warn!("{line}");
        }
    }
}

/// A shard to connect to.
struct Wanted {
    next: Instant,
    /// The time since which it has reported that this shard is taken.
    taken: Option<Instant>,
}

/// Gives a shard that was met its place, unless the shard has one already.
fn seat(peers: &mut [Option<Peer>], met: Met) {
    let Some(place) = peers.get_mut(usize::from(met.said.shard)) else { return };
    match place.as_ref().is_none_or(|peer| peer.link.has_ended()) {
        true => *place = Some(Peer::new(met)),
        false => met.link.leave(),
    }
}

impl Joining {
    /// Reads a shard's files from the folder, and binds its address.
    ///
    /// # Errors
    ///
    /// An error of one line that names the file, or the address if another process has it.
    pub fn new(dir: &Path, own: Hello) -> anyhow::Result<Self> {
        let shard = ShardId(own.shard);
        let credentials = Credentials::read(dir, shard)?;
        let count = credentials.addresses.len();
        if count != own.shards as usize {
            bail!(
                "shard {shard}/{}: {} has addresses for {count} shards; give {shard}/{count}, or \
                 make another one with `tofu hosts init`",
                own.shards,
                dir.display()
            );
        }
        let sockets = credentials.sockets(shard)?;
        let listener = TcpListener::bind(&sockets[..]).map_err(|error| {
            let address = &credentials.addresses[shard.index()];
            match error.kind() {
                io::ErrorKind::AddrInUse => anyhow!(
                    "shard {shard} of machine {} is taken: another process listens at {address}",
                    own.machine
                ),
                _ => anyhow!("shard {shard} cannot listen at {address}: {error}"),
            }
        })?;
        listener.set_nonblocking(true)?;
        let (server, client) = configurations(&credentials)?;
        Ok(Self { own, credentials, listener, server, client, timeout: TIMEOUT })
    }

    /// Sets the time after which shards are considered cut off.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The address at which this shard listens.
    pub fn address(&self) -> &str {
        self.address_of(ShardId(self.own.shard))
    }

    /// The address at which an existing shard listens.
    pub(crate) fn address_of(&self, shard: ShardId) -> &str {
        &self.credentials.addresses[shard.index()]
    }

    /// Connects to all other shards and waits for them: see [`Joining::meet`].
    pub(crate) fn meet_all(
        &self,
        waits: &mut dyn FnMut(ShardId, &str),
    ) -> anyhow::Result<Vec<Option<Peer>>> {
        let own = ShardId(self.own.shard);
        let count = self.own.shards as usize;
        let mut peers: Vec<Option<Peer>> = (0..count).map(|_| None).collect();
        let start = Instant::now();
        let wanted = |shard: usize| {
            let later = if shard > own.index() { RETRY_HIGHER / 4 } else { Duration::ZERO };
            Wanted { next: start + later, taken: None }
        };
        let mut wanted: Vec<_> = (0..count).map(wanted).collect();
        let mut hall = Hall::default();
        let (mut waits_for, mut beat) = (None, start);
        loop {
            let mut first = None;
            for shard in (0..own.0).chain(own.0 + 1..count as u16).map(ShardId) {
                let peer = &mut peers[shard.index()];
                if peer.as_ref().is_some_and(|peer| peer.link.has_ended()) {
                    *peer = None;
                }
                if peer.is_some() {
                    wanted[shard.index()].taken = None;
                    continue;
                }
                first.get_or_insert(shard);
                let next = &mut wanted[shard.index()].next;
                if *next <= Instant::now() && !hall.looks_for(shard) {
                    *next = Instant::now() + if shard < own { RETRY } else { RETRY_HIGHER };
                    // A shard that cannot be reached now may be reachable later.
                    hall.greets.extend(self.look_for(shard)?);
                }
            }
            let Some(first) = first else { break };
            if waits_for.replace(first) != Some(first) {
                waits(first, self.address_of(first));
            }
            if beat <= Instant::now() {
                // Shards that already run expect keep-alives.
                beat = Instant::now() + Keepalive::beat(self.timeout);
                for peer in peers.iter().flatten() {
                    peer.link.send(FrameKind::Alive, &[]);
                }
            }
            hall.wait(&self.listener, RETRY / 2);
            hall.admit(self);
            let mut came = Vec::new();
            let judge = |other: &Hello, came: bool| {
                match peers.get(usize::from(other.shard)).and_then(Option::as_ref) {
                    Some(peer) if !peer.link.has_ended() => taken(other, peer),
                    // If two shards connect to each other, the connection of the one with the
                    // higher number counts.
                    _ if came && other.shard < own.0 => Verdict::Later,
                    _ => Verdict::Take,
                }
            };
            let turned = hall.go_on(self, &judge, &mut |met| {
                came.push(met);
                None
            });
            came.into_iter().for_each(|met| seat(&mut peers, met));
            for (with, why) in turned {
                self.turn(with, why, &mut wanted, &mut hall)?;
            }
        }
        Ok(peers)
    }

    /// Handles connections that were turned away during the meeting.
    fn turn(
        &self,
        with: Result<ShardId, SocketAddr>,
        why: Turned,
        wanted: &mut [Wanted],
        hall: &mut Hall,
    ) -> anyhow::Result<()> {
        let shard = match with {
            Ok(shard) => shard,
            Err(from) => {
                match why {
                    Turned::Unfit(why) => bail!(why),
                    Turned::Away(why) => {
                        hall.tell(format!("{} is turned away: {why:#}", from.ip()));
                    }
                    Turned::Taken(_) | Turned::Later => {}
                }
                return Ok(());
            }
        };
        let wanted = &mut wanted[shard.index()];
        match why {
            Turned::Unfit(why) => bail!(why),
            Turned::Taken(why) if wanted.taken.get_or_insert(Instant::now()).elapsed() > CLAIM => {
                bail!(why)
            }
            Turned::Taken(_) => wanted.next = Instant::now() + RETRY,
            Turned::Later => wanted.next = Instant::now() + RETRY_HIGHER,
            // The other end may be about to end, not started yet, or not a shard at all.
            Turned::Away(why) => {
                let at = &self.credentials.addresses[shard.index()];
                // No process listens yet, or the host is not reachable.
                let quiet = [
                    io::ErrorKind::ConnectionRefused,
                    io::ErrorKind::HostUnreachable,
                    io::ErrorKind::NetworkUnreachable,
                    io::ErrorKind::TimedOut,
                ];
                let kind = why.downcast_ref::<io::Error>().map(io::Error::kind);
                if kind.is_none_or(|kind| !quiet.contains(&kind)) {
                    hall.tell(format!("shard {shard} at {at}: {why:#}"));
                    wanted.next = Instant::now() + RETRY_TURNED;
                }
            }
        }
        Ok(())
    }

    /// Begins to connect to a shard; `None` if that is not possible.
    fn look_for(&self, shard: ShardId) -> anyhow::Result<Option<Greet>> {
        let Some(at) = self.credentials.sockets(shard)?.first().copied() else { return Ok(None) };
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &at) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(_) => return Ok(None),
        }
        let connection = ClientConnection::new(Arc::clone(&self.client), server_name(shard)?)?;
        let link = Link::new(TcpStream::from(socket), connection.into()).context("a socket")?;
        Ok(Some(Greet::new(link, Ok(shard), &self.own)))
    }

    /// Lets in shards that connect while the machine runs, until `stop` returns true. `judge`
    /// decides whether a shard may join. `met` gets the shard, and returns it if it is not
    /// accepted.
    pub(crate) fn keep_door(
        &self,
        stop: &dyn Fn() -> bool,
        judge: &dyn Fn(&Hello, bool) -> Verdict,
        met: &mut dyn FnMut(Met) -> Option<Met>,
    ) {
        let mut hall = Hall::default();
        while !stop() {
            hall.wait(&self.listener, RETRY);
            hall.admit(self);
            for (with, why) in hall.go_on(self, judge, met) {
                let Err(from) = with else { continue };
                match why {
                    Turned::Away(why) => {
                        hall.tell(format!("{} is turned away: {why:#}", from.ip()))
                    }
                    Turned::Unfit(why) => hall.tell(format!("{} is turned away: {why}", from.ip())),
                    Turned::Taken(_) | Turned::Later => {}
                }
            }
        }
    }
}

/// The verdict for a shard that is held by a live process.
pub(crate) fn taken(other: &Hello, holder: &Peer) -> Verdict {
    let (shard, machine, pid) = (other.shard, shown(&other.machine), holder.said.pid);
    let at = &holder.at;
    Verdict::Taken(format!("shard {shard} of machine {machine} is taken by process {pid} at {at}"))
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
    // Shards do not resume sessions with tickets.
    server.send_tls13_tickets = 0;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_root_certificates(authority)
        .with_client_auth_cert(of.certificate.clone(), of.key.clone_key())?;
    Ok((Arc::new(server), Arc::new(client)))
}

/// Returns true if the other end's certificate is that of a shard.
fn is_of(connection: &Connection, shard: ShardId) -> bool {
    let first = connection.peer_certificates().and_then(<[CertificateDer<'_>]>::first);
    let parsed = first.and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
    let (Some(parsed), Ok(name)) = (parsed, server_name(shard)) else { return false };
    verify_server_name(&parsed, &name).is_ok()
}
