//! The host's side of a node's agent, which runs several programs at once over one stream.
//!
//! The guest may run another agent, which sends anything or nothing. Its data is bounded by the
//! credit that the host has granted, and nothing waits for it: an `Outlet` writes to the guest, and
//! programs are abandoned if the agent answers no ping.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_agent::wire::{
    Exec, FrameReader, FromGuest, FromProgram, Identity, MAX_PROGRAMS, Output, Status, ToGuest,
    ToProgram, VERSION, WINDOW, WireError, encode,
};
use tofu_control::SILENCE;
use tofu_sync::queue::{Item, Receiver, RecvTimeoutError, Sender, WhenFull, queue};
use tofu_sync::{lock, wait_timeout};

use crate::duplex::Duplex;
use crate::outlet::Outlet;

/// The most bytes that wait for a guest: the windows of all its programs.
const MOST_OUT: usize = MAX_PROGRAMS * WINDOW as usize;
/// The most bytes of a program's messages that wait for its client before they are merged. Then
/// they take no more than the windows of its streams in addition.
const MOST_IN: usize = WINDOW as usize;
/// The most bytes that wait of a guest that replays its input.
const MOST_EARLY: usize = 64 << 20;
/// Bytes that such a message takes besides its own.
const EARLY: usize = 64;
/// The interval at which the agent of a program that sends nothing is pinged.
const LOOK: Duration = Duration::from_secs(1);
/// The interval at which an agent that starts again and again is reported.
const READY_AGAIN: Duration = Duration::from_secs(1);

/// A node's agent, in the node's current virtual machine.
#[derive(Default)]
pub struct Agent {
    link: Mutex<Link>,
    pinged: Mutex<Pings>,
    answered: Condvar,
}

/// Pings sent and answered so far. At most one is outstanding.
struct Pings {
    asked: u64,
    answered: u64,
    /// The time of the last one, or since when the node's processors run again.
    since: Instant,
    /// True if the node's processors are stopped on request.
    held: bool,
    /// True if there are none, as they would come at times of the host.
    none: bool,
}

impl Default for Pings {
    fn default() -> Self {
        Self { asked: 0, answered: 0, since: Instant::now(), held: false, none: false }
    }
}

/// The start of a node that is a clone of another one.
pub struct CloneStart<'a> {
    /// Returns the identity that the guest must assume.
    pub identity: &'a dyn Fn() -> Identity,
    /// Called with the reason, in one line, if the guest does not become ready.
    pub failed: &'a dyn Fn(&str),
}

#[derive(Default)]
struct Link {
    out: Option<Outlet>,
    session: u64,
    /// True if the guest has answered in this session.
    ready: bool,
    /// True if the guest of this virtual machine, a clone, has assumed its identity.
    identified: bool,
    /// The last time at which a guest has answered.
    since: Option<Instant>,
    next: u32,
    programs: HashMap<u32, Entry>,
    /// Of a guest that replays its input.
    early: Option<Early>,
}

/// Messages of a guest that replays its input, which does not wait for this host.
#[derive(Default)]
struct Early {
    waits: HashMap<u32, VecDeque<FromProgram>>,
    bytes: usize,
}

/// A running program.
struct Entry {
    /// The client's end, if it is still interested.
    sink: Option<Sender<FromProgram>>,
    /// Bytes that the agent may still send, by [`Output`].
    credit: [u32; 2],
    /// Bytes of input that the agent has not taken.
    input: u32,
}

impl Agent {
    /// Creates the agent of a guest in modelled time. It gets no pings while a program runs, and a
    /// silent program has no time limit as long as its virtual machine runs. If the guest `replays`
    /// its input, it may send a program's output before the program has been started.
    pub fn in_modelled_time(replays: bool) -> Self {
        let this = Self::default();
        lock(&this.pinged).none = true;
        lock(&this.link).early = replays.then(Early::default);
        this
    }

    /// Communicates with the agent of a virtual machine until the virtual machine ends. Calls
    /// `ready` when an agent has answered; in a clone, when the guest has assumed its identity.
    pub fn follow(
        &self,
        Duplex { output, input }: Duplex,
        name: &str,
        clone: Option<&CloneStart<'_>>,
        ready: impl Fn(),
    ) {
        match Outlet::new(input, MOST_OUT, Duration::ZERO) {
            Ok(out) => {
                let mut link = lock(&self.link);
                (link.out, link.identified) = (Some(out), false);
            }
            Err(error) => return log::warn!("{name}: agent: {error:#}"),
        }
        self.forget_pings();
        self.hold(false);
        self.greet(name);
        let mut reader = FrameReader::new(output);
        loop {
            match reader.receive() {
                Ok(Some(message)) => self.take(message, name, clone, &ready),
                Ok(None) | Err(WireError::Io(_)) => break,
                // Anything in the guest may write to the port.
                Err(error) => log::debug!("{name}: from the agent: {error}"),
            }
        }
        let mut link = lock(&self.link);
        link.out = None;
        link.end_all("the node has stopped");
        self.forget_pings();
    }

    /// Begins a session.
    fn greet(&self, name: &str) {
        let mut link = lock(&self.link);
        link.end_all("the node's agent was restarted");
        link.session += 1;
        let hello = ToGuest::Hello { version: VERSION, session: link.session };
        // The guest ignores everything of earlier sessions.
        let frame = encode(&hello).map_err(anyhow::Error::from);
        let said = frame.and_then(|frame| link.out()?.replace(frame));
        drop(link);
        // It would answer pings of the earlier session no more.
        self.forget_pings();
        if let Err(error) = said {
            log::debug!("{name}: agent: {error:#}");
        }
    }

    fn take(
        &self,
        message: FromGuest,
        name: &str,
        clone: Option<&CloneStart<'_>>,
        ready: &dyn Fn(),
    ) {
        match message {
            FromGuest::Awake => self.greet(name),
            FromGuest::Welcome { version, session } => {
                let mut link = lock(&self.link);
                if !link.welcome(version, session, name) {
                    return;
                }
                if let Some(clone) = clone.filter(|_| !link.identified) {
                    return link.identify((clone.identity)(), name);
                }
                let is_news = link.begin();
                drop(link);
                if is_news {
                    ready();
                }
            }
            FromGuest::Identified(Ok(())) => {
                let mut link = lock(&self.link);
                link.identified = clone.is_some();
                let is_news = link.identified && link.begin();
                drop(link);
                if is_news {
                    ready();
                }
            }
            FromGuest::Identified(Err(why)) => {
                if let Some(clone) = clone
                    && lock(&self.link).is_seldom()
                {
                    (clone.failed)(&tofu_ui::printable(&why));
                }
            }
            FromGuest::Pong => self.forget_pings(),
            FromGuest::From { id, what } => lock(&self.link).forward(id, what, name),
        }
    }

    /// Treats an outstanding ping as answered.
    fn forget_pings(&self) {
        let mut pings = lock(&self.pinged);
        pings.answered = pings.asked;
        self.answered.notify_all();
    }

    /// Notes that the node's processors are stopped on request, or run again.
    pub fn hold(&self, on: bool) {
        let mut pings = lock(&self.pinged);
        (pings.held, pings.since) = (on, Instant::now());
    }

    /// Pings the guest's agent; returns the argument for [`Agent::answers`].
    pub(crate) fn ping(&self) -> u64 {
        let mut pings = lock(&self.pinged);
        if pings.none || pings.asked > pings.answered {
            return pings.asked;
        }
        pings.asked += 1;
        pings.since = Instant::now();
        let asked = pings.asked;
        drop(pings);
        // A failed send shows up as a missing answer.
        let _ = lock(&self.link).send(&ToGuest::Ping);
        asked
    }

    /// Waits for the answer to a ping. Returns false on a timeout.
    pub(crate) fn answers(&self, ping: u64, until: Instant) -> bool {
        let mut pings = lock(&self.pinged);
        while pings.answered < ping {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            pings = wait_timeout(&self.answered, pings, left);
        }
        true
    }

    /// Starts a program. It is given up once the agent has answered nothing for `silence`.
    ///
    /// # Errors
    ///
    /// If the node is not up, or too many programs run there.
    pub(crate) fn exec(
        self: &Arc<Self>,
        exec: Exec,
        silence: Option<Duration>,
    ) -> anyhow::Result<AgentProgram> {
        let (sink, queue) = queue(MOST_IN, WhenFull::Merge);
        let id = lock(&self.link).start(exec, sink)?;
        let handle = ProgramHandle { agent: Arc::clone(self), id };
        // The agent answers a ping that is sent from here on only after it has started the program.
        let before = lock(&self.pinged).asked;
        self.ping();
        let (agent, silence) = (Arc::clone(self), silence.unwrap_or(SILENCE));
        let (since, looked) = (Instant::now(), Instant::now());
        let messages = Messages { agent, id, queue, before, since, looked, silence };
        Ok(AgentProgram { handle, messages })
    }
}

impl Link {
    fn out(&self) -> anyhow::Result<&Outlet> {
        self.out.as_ref().context("the node has stopped")
    }

    fn send(&self, message: &ToGuest) -> anyhow::Result<()> {
        self.out()?.send(encode(message)?)
    }

    /// Handles the answer to a greeting; returns whether the guest can be used.
    fn welcome(&mut self, version: u16, session: u64, name: &str) -> bool {
        if session != self.session || self.ready {
            return false;
        }
        if version != VERSION && self.is_seldom() {
            log::warn!(
                "{name}: its agent speaks version {version}, this command version {VERSION}; \
                 build the image anew with `tofu image build`"
            );
        }
        version == VERSION
    }

    /// Tells a clone which node it is.
    fn identify(&self, identity: Identity, name: &str) {
        if let Err(error) = self.send(&ToGuest::Identify(identity)) {
            log::debug!("{name}: agent: {error:#}");
        }
    }

    /// Notes that programs can run. Returns true if that must be reported.
    fn begin(&mut self) -> bool {
        let was_ready = std::mem::replace(&mut self.ready, true);
        !was_ready && self.is_seldom()
    }

    /// Returns whether the last time at which a guest has answered is long enough ago to report
    /// another one.
    fn is_seldom(&mut self) -> bool {
        let often = self.since.is_some_and(|since| since.elapsed() < READY_AGAIN);
        self.since = Some(Instant::now());
        !often
    }

    /// Starts a program, and returns its number.
    fn start(&mut self, exec: Exec, sink: Sender<FromProgram>) -> anyhow::Result<u32> {
        if !self.ready {
            bail!("the node is not up");
        }
        if self.programs.len() >= MAX_PROGRAMS {
            bail!("{MAX_PROGRAMS} programs run there already");
        }
        while self.programs.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let frame = match encode(&ToGuest::Exec { id, exec }) {
            Err(WireError::TooLong) => bail!("the command is too long"),
            frame => frame?,
        };
        self.out()?.send(frame)?;
        let entry = Entry { sink: Some(sink), credit: [WINDOW; 2], input: 0 };
        self.programs.insert(id, entry);
        self.catch_up(id);
        Ok(id)
    }

    fn end_all(&mut self, why: &str) {
        self.ready = false;
        self.early = self.early.take().map(|_| Early::default());
        for (_, entry) in self.programs.drain() {
            entry.tell(not_run(why));
        }
    }

    fn forward(&mut self, id: u32, what: FromProgram, name: &str) {
        let Some(early) = &mut self.early else { return self.forward_now(id, what, name) };
        early.bytes += EARLY + what.bytes();
        if early.bytes > MOST_EARLY {
            log::warn!("{name}: its replay is too far ahead; what its programs say is lost");
            *early = Early::default();
            return;
        }
        early.waits.entry(id).or_default().push_back(what);
        self.catch_up(id);
    }

    /// Forwards what a guest has sent for a program before it was due, as far as it is now.
    fn catch_up(&mut self, id: u32) {
        while let (Some(early), Some(entry)) = (&mut self.early, self.programs.get(&id))
            && let Some(waits) = early.waits.get_mut(&id)
            && let Some(what) = waits.pop_front_if(|what| entry.may_get(what))
        {
            early.bytes = early.bytes.saturating_sub(EARLY + what.bytes());
            if waits.is_empty() {
                early.waits.remove(&id);
            }
            self.forward_now(id, what, "replay");
        }
    }

    fn forward_now(&mut self, id: u32, what: FromProgram, name: &str) {
        let Some(entry) = self.programs.get_mut(&id) else { return };
        let allowed = match &what {
            // They say nothing.
            FromProgram::Credit(0) => return,
            FromProgram::Output(_, bytes) if bytes.is_empty() => return,
            FromProgram::Output(output, bytes) => {
                take(&mut entry.credit[*output as usize], bytes.len())
            }
            FromProgram::Credit(bytes) => take(&mut entry.input, *bytes as usize),
            FromProgram::Ended(_) => true,
        };
        // The rest of a killed program's output is not needed.
        if allowed || entry.sink.is_none() {
            let ended = matches!(what, FromProgram::Ended(_));
            entry.tell(what);
            if ended {
                self.programs.remove(&id);
            }
            return;
        }
        log::warn!("{name}: its agent sends more than it may; cut off");
        entry.tell(not_run("the node's agent sends more than it may"));
        self.programs.remove(&id);
    }

    /// Sends a message to a program.
    fn say(&mut self, id: u32, what: ToProgram) -> anyhow::Result<()> {
        let Some(entry) = self.programs.get_mut(&id) else { return Ok(()) };
        match &what {
            ToProgram::Credit(output, bytes) => {
                let credit = &mut entry.credit[*output as usize];
                *credit = credit
                    .checked_add(*bytes)
                    .filter(|sum| *sum <= WINDOW)
                    .context("the client grants more than it has received")?;
            }
            ToProgram::Input(bytes) => {
                let left = (WINDOW - entry.input) as usize;
                anyhow::ensure!(bytes.len() <= left, "the client sends more input than it may");
                entry.input += bytes.len() as u32;
            }
            _ => {}
        }
        self.send(&ToGuest::To { id, what })?;
        self.catch_up(id);
        Ok(())
    }

    /// Kills a program whose client is gone. The guest may still send messages for it, so its
    /// number must not be reused yet: its entry stays until the guest reports the end.
    fn kill(&mut self, id: u32) {
        let Some(entry) = self.programs.get_mut(&id) else { return };
        if entry.sink.take().is_none() {
            return;
        }
        // If the program cannot be reached, it is dead, or dies with its node.
        let kill = ToGuest::To { id, what: ToProgram::Kill };
        if let (Some(out), Ok(frame)) = (&self.out, encode(&kill)) {
            let _ = out.force(frame);
        }
    }
}

/// Subtracts from what a peer may send. Returns whether it was that much.
fn take(left: &mut u32, bytes: usize) -> bool {
    let rest = u32::try_from(bytes).ok().and_then(|bytes| left.checked_sub(bytes));
    *left = rest.unwrap_or_default();
    rest.is_some()
}

fn not_run(why: &str) -> FromProgram {
    FromProgram::Ended(Status::NotRun { missing: false, why: why.to_owned() })
}

impl Entry {
    /// True if a message is not more than the guest may send.
    fn may_get(&self, what: &FromProgram) -> bool {
        let left = match what {
            FromProgram::Output(output, _) => self.credit[*output as usize],
            FromProgram::Credit(_) => self.input,
            FromProgram::Ended(_) => u32::MAX,
        };
        let asked = match what {
            FromProgram::Credit(bytes) => *bytes as usize,
            what => what.bytes(),
        };
        self.sink.is_none() || asked <= left as usize
    }

    fn tell(&self, what: FromProgram) {
        if let Some(sink) = &self.sink {
            // The receiver may be gone.
            let _ = sink.send(what);
        }
    }
}

/// A program in a guest.
pub(crate) struct AgentProgram {
    handle: ProgramHandle,
    messages: Messages,
}

/// Sends messages to the program. Dropping it kills the program.
pub(crate) struct ProgramHandle {
    agent: Arc<Agent>,
    id: u32,
}

/// The messages of a program.
pub(crate) struct Messages {
    agent: Arc<Agent>,
    id: u32,
    queue: Receiver<FromProgram>,
    /// The last ping before the program was started.
    before: u64,
    since: Instant,
    /// The last time at which the agent was pinged.
    looked: Instant,
    silence: Duration,
}

impl AgentProgram {
    /// Splits the program into its handle and its messages.
    pub(crate) fn split(self) -> (ProgramHandle, Messages) {
        (self.handle, self.messages)
    }
}

impl Messages {
    /// Waits for the next message; the last one is [`FromProgram::Ended`]. A program that is merely
    /// silent is waited for as long as its agent answers.
    pub(crate) fn next(&mut self) -> Option<FromProgram> {
        loop {
            let left = LOOK.saturating_sub(self.looked.elapsed());
            // Also while the agent sends messages.
            if !left.is_zero() {
                match self.queue.recv_timeout(left) {
                    Ok(what) => return Some(what),
                    Err(RecvTimeoutError::Disconnected) => return None,
                    Err(RecvTimeoutError::Timeout) => {}
                }
            }
            self.looked = Instant::now();
            self.agent.ping();
            if let Some(why) = self.silent() {
                lock(&self.agent.link).kill(self.id);
                return Some(not_run(&why));
            }
        }
    }

    /// Returns why the program must be given up, if its agent has not answered for too long. If the
    /// node was stopped on request after the program had started, it continues with the node.
    fn silent(&self) -> Option<String> {
        let pings = lock(&self.agent.pinged);
        let started = pings.answered > self.before;
        let silent = match started {
            _ if pings.none => return None,
            true if pings.held || pings.asked == pings.answered => return None,
            true => pings.since.elapsed(),
            false => self.since.elapsed(),
        };
        let held = if pings.held { "; it is paused" } else { "" };
        (silent >= self.silence).then(|| {
            format!("the node has not answered for {} s{held}", self.silence.as_secs_f64())
        })
    }
}

impl ProgramHandle {
    /// Sends a message to the program; if it has ended, the message is dropped.
    ///
    /// # Errors
    ///
    /// If the program cannot be reached, or the client sends more than it may.
    pub(crate) fn say(&self, what: ToProgram) -> anyhow::Result<()> {
        lock(&self.agent.link).say(self.id, what)
    }

    /// Returns credit for this many bytes of a stream to the agent.
    pub(crate) fn used(&self, output: Output, bytes: usize) -> anyhow::Result<()> {
        self.say(ToProgram::Credit(output, bytes as u32))
    }
}

impl Drop for ProgramHandle {
    fn drop(&mut self) {
        lock(&self.agent.link).kill(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use tofu_agent::wire::MAX_DATA;

    /// An agent whose guest is the other end of the stream, and a session with it.
    struct Guest {
        agent: Arc<Agent>,
        stream: UnixStream,
        follows: Option<thread::JoinHandle<()>>,
    }

    impl Guest {
        fn new() -> Self {
            Self::of(Agent::default())
        }

        fn of(agent: Agent) -> Self {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let agent = Arc::new(agent);
            let followed = Arc::clone(&agent);
            let follows = thread::spawn(move || {
                followed.follow(Duplex::on(ours).unwrap(), "test", None, || {})
            });
            let this = Self { agent, stream: theirs, follows: Some(follows) };
            let mut reader = FrameReader::new(&this.stream);
            let Ok(Some(ToGuest::Hello { session, .. })) = reader.receive() else { panic!() };
            this.say(&FromGuest::Welcome { version: VERSION, session });
            while !lock(&this.agent.link).ready {
                thread::yield_now();
            }
            this
        }

        fn say(&self, message: &FromGuest) {
            self.write(&encode(message).unwrap());
        }

        /// Writes to the host, which must not stop reading.
        fn write(&self, bytes: &[u8]) {
            self.stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
            (&self.stream).write_all(bytes).unwrap();
        }

        fn exec(&self, silence: Duration) -> AgentProgram {
            let exec = Exec {
                program: tofu_agent::wire::Program::Named,
                args: vec!["true".to_owned()],
                env: Vec::new(),
                stdin: true,
            };
            self.agent.exec(exec, Some(silence)).unwrap()
        }

        /// The host has handled everything that was written so far.
        fn is_heard(&self) {
            let ping = self.agent.ping();
            self.say(&FromGuest::Pong);
            assert!(self.agent.answers(ping, Instant::now() + Duration::from_secs(30)));
        }
    }

    impl Drop for Guest {
        fn drop(&mut self) {
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
            let _ = self.follows.take().unwrap().join();
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    fn from(id: u32, what: FromProgram) -> FromGuest {
        FromGuest::From { id, what }
    }

    fn why(messages: &mut Messages) -> String {
        loop {
            match messages.next() {
                Some(FromProgram::Ended(Status::NotRun { why, .. })) => return why,
                Some(_) => {}
                None => panic!("no end"),
            }
        }
    }

    #[test]
    fn messages_that_say_nothing_are_dropped() {
        let guest = Guest::new();
        let (_handle, messages) = guest.exec(LONG).split();
        for what in [FromProgram::Credit(0), FromProgram::Output(Output::Out, Vec::new())] {
            guest.write(&encode(&from(0, what)).unwrap().repeat(100_000));
        }
        guest.is_heard();
        assert!(messages.queue.try_recv().is_err());
    }

    #[test]
    fn replay_that_is_ahead_is_told_in_order_and_by_credit() {
        let guest = Guest::of(Agent::in_modelled_time(true));
        let output = |byte, bytes| FromProgram::Output(Output::Out, vec![byte; bytes]);
        let whole = WINDOW as usize / MAX_DATA;
        let mut all = vec![output(b'a', MAX_DATA); whole];
        all.push(FromProgram::Credit(3));
        all.push(output(b'b', 1));
        all.push(FromProgram::Ended(Status::Code(7)));
        let count = all.len();
        all.into_iter().for_each(|what| guest.say(&from(0, what)));
        // Nothing else is a sign that they have come.
        let waiting = || match &lock(&guest.agent.link).early {
            Some(early) => early.waits.get(&0).map_or(0, VecDeque::len),
            None => 0,
        };
        while waiting() < count {
            thread::yield_now();
        }
        let (handle, mut messages) = guest.exec(LONG).split();
        for _ in 0..whole {
            assert_eq!(messages.next(), Some(output(b'a', MAX_DATA)));
        }
        // Messages about input wait until the input has been sent.
        assert!(messages.queue.try_recv().is_err());
        handle.say(ToProgram::Input(b"abc".to_vec())).unwrap();
        assert_eq!(messages.next(), Some(FromProgram::Credit(3)));
        assert!(messages.queue.try_recv().is_err());
        handle.say(ToProgram::Credit(Output::Out, WINDOW)).unwrap();
        assert_eq!(messages.next(), Some(output(b'b', 1)));
        assert_eq!(messages.next(), Some(FromProgram::Ended(Status::Code(7))));
        let link = lock(&guest.agent.link);
        assert!(link.programs.is_empty() && link.early.as_ref().unwrap().bytes == 0);
    }

    #[test]
    fn agent_over_its_limit_is_cut_off() {
        let guest = Guest::new();
        let (_handle, mut messages) = guest.exec(LONG).split();
        guest.say(&from(0, FromProgram::Credit(1)));
        assert!(why(&mut messages).contains("more than it may"));
        let (_handle, mut messages) = guest.exec(LONG).split();
        // One byte at a time, on both streams, so that messages take more than the bytes.
        let pair = [Output::Out, Output::Err]
            .map(|stream| encode(&from(1, FromProgram::Output(stream, vec![b'x']))).unwrap());
        guest.write(&pair.concat().repeat(WINDOW as usize));
        guest.is_heard();
        let waiting: Vec<_> = messages.queue.try_iter().collect();
        let bytes: usize = waiting.iter().map(tofu_sync::queue::Item::bytes).sum();
        assert_eq!(bytes, 2 * WINDOW as usize);
        let taken = waiting.len() * size_of::<FromProgram>() + bytes;
        assert!(taken <= MOST_IN + 2 * WINDOW as usize, "{taken}");
        guest.say(&from(1, FromProgram::Output(Output::Err, vec![b'x'])));
        assert!(why(&mut messages).contains("more than it may"));
    }

    /// Follows an agent of a clone, whose side `guest` plays; returns what was reported.
    fn follow_clone(identity: &Identity, guest: impl FnOnce(&Arc<Agent>, &UnixStream)) -> String {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let agent: Arc<Agent> = Arc::default();
        let reported = Mutex::new(String::new());
        let report = |what: &str| lock(&reported).push_str(what);
        thread::scope(|scope| {
            scope.spawn(|| {
                let clone = CloneStart { identity: &|| identity.clone(), failed: &report };
                agent.follow(Duplex::on(ours).unwrap(), "test", Some(&clone), || report("ready"));
            });
            let mut reader = FrameReader::new(&theirs);
            let Ok(Some(ToGuest::Hello { session, .. })) = reader.receive() else { panic!() };
            let welcome = FromGuest::Welcome { version: VERSION, session };
            (&theirs).write_all(&encode(&welcome).unwrap()).unwrap();
            let Ok(Some(ToGuest::Identify(sent))) = reader.receive() else { panic!() };
            assert_eq!(&sent, identity);
            guest(&agent, &theirs);
            drop(reader);
            drop(theirs);
        });
        reported.into_inner().unwrap()
    }

    #[test]
    fn clone_is_ready_with_its_identity() {
        let (host, command_line) = ("t-0".to_owned(), "tofu.name=t-0".to_owned());
        let identity = Identity { host, command_line, time_ns: Some(1), seed: [7; 32] };
        let answer = |stream: &UnixStream, result: Result<(), String>| {
            let mut stream = stream;
            stream.write_all(&encode(&FromGuest::Identified(result)).unwrap()).unwrap();
        };
        let reported = follow_clone(&identity, |agent, stream| {
            assert!(!lock(&agent.link).ready, "it has answered without an identity");
            answer(stream, Ok(()));
            // An agent that starts again keeps it, and is ready as soon as it answers.
            let mut there = stream;
            there.write_all(&encode(&FromGuest::Awake).unwrap()).unwrap();
            let Ok(Some(ToGuest::Hello { session, .. })) = FrameReader::new(stream).receive()
            else {
                panic!()
            };
            let welcome = FromGuest::Welcome { version: VERSION, session };
            there.write_all(&encode(&welcome).unwrap()).unwrap();
            let begin = Instant::now();
            while !lock(&agent.link).ready {
                assert!(begin.elapsed() < Duration::from_secs(30), "it is asked again");
                thread::yield_now();
            }
        });
        assert_eq!(reported, "ready");
        let reported = follow_clone(&identity, |agent, stream| {
            answer(stream, Err("no device\u{7}".to_owned()));
            answer(stream, Err("again".to_owned()));
            assert!(!lock(&agent.link).ready);
        });
        assert!(reported.starts_with("no device") && !reported.contains('\u{7}'), "{reported}");
        assert!(!reported.contains("again"), "one that fails again and again: {reported}");
    }

    #[test]
    fn deaf_guest_holds_up_no_other() {
        let guest = Guest::new();
        let (handle, mut messages) = guest.exec(Duration::from_millis(1)).split();
        let piece = vec![0; tofu_agent::wire::MAX_DATA];
        for _ in 0..WINDOW as usize / piece.len() {
            handle.say(ToProgram::Input(piece.clone())).unwrap();
        }
        // A client that ignores the window gets no room.
        let error = handle.say(ToProgram::Input(vec![0])).unwrap_err();
        assert!(error.to_string().contains("more input than it may"), "{error}");
        let error = handle.say(ToProgram::Credit(Output::Out, 1)).unwrap_err();
        assert!(error.to_string().contains("grants more"), "{error}");
        let signals = (0..).map(|_| handle.say(ToProgram::Signal(15))).take_while(Result::is_ok);
        assert!(signals.count() < MOST_OUT / size_of::<Vec<u8>>());
        // Still without a wait.
        let ping = guest.agent.ping();
        assert!(!guest.agent.answers(ping, Instant::now()));
        assert!(why(&mut messages).contains("has not answered for"));
        // A new session replaces all waiting frames.
        guest.say(&FromGuest::Awake);
        let mut all = FrameReader::new(&guest.stream);
        while !matches!(all.receive(), Ok(Some(ToGuest::Hello { session: 2, .. }))) {}
    }

    #[test]
    fn only_started_programs_wait_for_a_pause() {
        let guest = Guest::new();
        let (_handle, started) = guest.exec(Duration::from_millis(1)).split();
        guest.say(&FromGuest::Pong);
        while lock(&guest.agent.pinged).answered == 0 {
            thread::yield_now();
        }
        guest.agent.hold(true);
        let (_other, mut late) = guest.exec(Duration::from_millis(1)).split();
        assert!(why(&mut late).contains("it is paused"));
        assert_eq!(started.silent(), None);
        guest.agent.hold(false);
        thread::sleep(Duration::from_millis(2));
        assert!(started.silent().is_some());
        let mut rest = [0; 16];
        assert!((&guest.stream).read(&mut rest).unwrap() > 0);
    }
}
