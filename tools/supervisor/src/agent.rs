//! The host's side of a node's agent, which runs several programs at once over one stream.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use anyhow::{Context, bail};
use tofu_agent::wire::{
    Exec, FrameReader, FromGuest, FromProgram, MAX_PROGRAMS, Output, Status, ToGuest, ToProgram,
    VERSION, WINDOW, WireError, encode,
};
use tofu_sync::{lock, wait_timeout};

/// A node's agent, in the node's current virtual machine.
#[derive(Default)]
pub struct Agent {
    link: Mutex<Link>,
    pinged: Mutex<Pings>,
    answered: Condvar,
}

/// Pings sent and answered so far. At most one is outstanding, because data that a guest does not
/// read stays in the host's memory.
#[derive(Default)]
struct Pings {
    asked: u64,
    answered: u64,
}

#[derive(Default)]
struct Link {
    out: Option<Arc<Mutex<UnixStream>>>,
    session: u64,
    /// Whether the guest has answered in this session.
    ready: bool,
    next: u32,
    programs: HashMap<u32, Entry>,
}

/// A running program.
struct Entry {
    sink: Sender<FromProgram>,
    /// Bytes that the agent may still send, by [`Output`].
    credit: [u64; 2],
}

fn send(out: &Mutex<UnixStream>, message: &ToGuest) -> Result<(), WireError> {
    let frame = encode(message)?;
    Ok(lock(out).write_all(&frame)?)
}

impl Agent {
    /// Communicates with the agent of a virtual machine until the virtual machine ends. Calls
    /// `ready` whenever an agent has answered.
    pub fn follow(&self, stream: UnixStream, name: &str, ready: impl Fn()) {
        match stream.try_clone() {
            Ok(out) => lock(&self.link).out = Some(Arc::new(Mutex::new(out))),
            Err(error) => return log::warn!("{name}: agent: {error}"),
        }
        self.greet(name);
        let mut reader = FrameReader::new(stream);
        loop {
            match reader.receive() {
                Ok(Some(message)) => self.take(message, name, &ready),
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
        let (out, session) = {
            let mut link = lock(&self.link);
            link.end_all("the node's agent was restarted");
            link.session += 1;
            (link.out.clone(), link.session)
        };
        let hello = ToGuest::Hello { version: VERSION, session };
        if let Some(Err(error)) = out.map(|out| send(&out, &hello)) {
            log::debug!("{name}: agent: {error}");
        }
    }

    fn take(&self, message: FromGuest, name: &str, ready: &dyn Fn()) {
        match message {
            FromGuest::Awake => self.greet(name),
            FromGuest::Welcome { version, session } => {
                {
                    let mut link = lock(&self.link);
                    if session != link.session || link.ready {
                        return;
                    }
                    if version != VERSION {
                        log::warn!(
                            "{name}: its agent speaks version {version}, this command version \
                             {VERSION}; build the image anew with `tofu image build`"
                        );
                        return;
                    }
                    link.ready = true;
                }
                ready();
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

    /// Pings the guest's agent; returns the argument for [`Agent::answers`].
    pub(crate) fn ping(&self) -> u64 {
        let out = lock(&self.link).out.clone();
        let mut pings = lock(&self.pinged);
        if pings.asked == pings.answered {
            pings.asked += 1;
            drop(pings);
            // A failed send shows up as a missing answer.
            let _ = out.map(|out| send(&out, &ToGuest::Ping));
            return lock(&self.pinged).asked;
        }
        pings.asked
    }

    /// Waits for the answer to a ping; returns whether it came in time.
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

    /// Starts a program.
    ///
    /// # Errors
    ///
    /// If the node is not up, or too many programs run there.
    pub(crate) fn exec(self: &Arc<Self>, exec: Exec) -> anyhow::Result<AgentProgram> {
        let (sink, events) = mpsc::channel();
        let (out, id) = {
            let mut link = lock(&self.link);
            let out = link.out.clone().filter(|_| link.ready);
            let out = out.context("the node is not up")?;
            if link.programs.len() >= MAX_PROGRAMS {
                bail!("{MAX_PROGRAMS} programs run there already");
            }
            while link.programs.contains_key(&link.next) {
                link.next = link.next.wrapping_add(1);
            }
            let id = link.next;
            link.next = link.next.wrapping_add(1);
            link.programs.insert(id, Entry { sink, credit: [WINDOW.into(); 2] });
            (out, id)
        };
        let handle = ProgramHandle { agent: Arc::clone(self), id };
        match send(&out, &ToGuest::Exec { id, exec }) {
            Ok(()) => Ok(AgentProgram { handle, events }),
            Err(WireError::TooLong) => bail!("the command is too long"),
            Err(error) => Err(error).context("the node's agent cannot be reached"),
        }
    }
}

impl Link {
    fn end_all(&mut self, why: &str) {
        self.ready = false;
        for (_, entry) in self.programs.drain() {
            let status = Status::NotRun { missing: false, why: why.to_owned() };
            // The receiver may be gone.
            let _ = entry.sink.send(FromProgram::Ended(status));
        }
    }

    fn forward(&mut self, id: u32, what: FromProgram, name: &str) {
        let Some(entry) = self.programs.get_mut(&id) else { return };
        let mut ended = matches!(what, FromProgram::Ended(_));
        let mut what = what;
        if let FromProgram::Output(output, bytes) = &what {
            let credit = &mut entry.credit[*output as usize];
            match credit.checked_sub(bytes.len() as u64) {
                Some(left) => *credit = left,
                None => {
                    log::warn!("{name}: its agent sends more than it may; cut off");
                    let why = "the node's agent sends more than it may".to_owned();
                    what = FromProgram::Ended(Status::NotRun { missing: false, why });
                    ended = true;
                }
            }
        }
        let _ = entry.sink.send(what);
        if ended {
            self.programs.remove(&id);
        }
    }
}

/// A program in a guest.
pub(crate) struct AgentProgram {
    handle: ProgramHandle,
    events: Receiver<FromProgram>,
}

/// Sends messages to the program. Dropping it kills the program.
pub(crate) struct ProgramHandle {
    agent: Arc<Agent>,
    id: u32,
}

impl AgentProgram {
    /// Splits the program into its handle and its messages, the last of which is
    /// [`FromProgram::Ended`].
    pub(crate) fn split(self) -> (ProgramHandle, Receiver<FromProgram>) {
        (self.handle, self.events)
    }
}

impl ProgramHandle {
    /// Sends a message to the program; if it has ended, the message is dropped.
    pub(crate) fn say(&self, what: ToProgram) -> anyhow::Result<()> {
        let out = {
            let mut link = lock(&self.agent.link);
            let Some(entry) = link.programs.get_mut(&self.id) else { return Ok(()) };
            if let ToProgram::Credit(output, bytes) = what {
                let credit = &mut entry.credit[output as usize];
                *credit = credit.saturating_add(bytes.into());
            }
            link.out.clone()
        };
        match out {
            Some(out) => {
                let sent = send(&out, &ToGuest::To { id: self.id, what });
                sent.context("the node's agent cannot be reached")
            }
            None => Ok(()),
        }
    }

    /// Returns credit for this many bytes of a stream to the agent.
    pub(crate) fn used(&self, output: Output, bytes: usize) -> anyhow::Result<()> {
        self.say(ToProgram::Credit(output, bytes as u32))
    }
}

impl Drop for ProgramHandle {
    fn drop(&mut self) {
        let runs = lock(&self.agent.link).programs.contains_key(&self.id);
        if runs {
            // If the program cannot be reached, it is dead, or dies with its node.
            let _ = self.say(ToProgram::Kill);
            // The guest may still send for this program, so its number must not be reused yet: the
            // entry stays until the guest reports the end.
            if let Some(entry) = lock(&self.agent.link).programs.get_mut(&self.id) {
                entry.credit = [u64::MAX; 2];
            }
        }
    }
}
