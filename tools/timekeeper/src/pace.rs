//! The connection to the machine: reports of the guest's time, and answers with the time until
//! which it may run.

use std::io;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tofu_pace::VERSION;
use tofu_pace::message::{ACCESS, ASLEEP, AT, BEGIN, Go, Message, PASSED};
use tofu_pace::pages::{Next, Page};

/// A connection to the machine.
pub(crate) struct Pace {
    machine: UnixStream,
    /// The pages that it shares with the other guests, once it has begun.
    page: Option<Page>,
    /// True if the next step needs an answer, because something may have happened in the meantime.
    asks: bool,
}

impl Pace {
    /// Connects to the socket of a node's pace.
    ///
    /// # Errors
    ///
    /// If nothing serves it.
    pub(crate) fn connect(path: &str) -> io::Result<Self> {
        UnixStream::connect(path).map(Self::on)
    }

    /// By a connection that is there.
    pub(crate) const fn on(machine: UnixStream) -> Self {
        Self { machine, page: None, asks: false }
    }

    /// Begins, with the guest's clock at a time. Waits until the guests of all nodes have begun.
    ///
    /// # Errors
    ///
    /// If the machine ends, or speaks another version.
    pub(crate) fn begin(&mut self, ns: u64) -> io::Result<Go> {
        self.say([BEGIN, VERSION], [ns, 0])?;
        let (go, files) = Go::receive(&self.machine)?;
        self.page = Some(Page::map(go.guest as usize, files)?);
        Ok(go)
    }

    /// True once it has begun.
    pub(crate) const fn has_begun(&self) -> bool {
        self.page.is_some()
    }

    /// The picoseconds of an instruction, once it has begun.
    pub(crate) fn instruction_ps(&self) -> u64 {
        self.page.as_ref().map_or(0, Page::instruction_ps)
    }

    /// Tells where the guest is after an access to the device, or where something happens at its
    /// node. Waits until the machine has got there.
    ///
    /// # Errors
    ///
    /// If the machine ends.
    pub(crate) fn at(&mut self, ns: u64) -> io::Result<Go> {
        self.ask(AT, [ns, 0])
    }

    /// The same before an access to the device. The machine waits for the next message, which says
    /// where the guest is after it.
    ///
    /// # Errors
    ///
    /// If the machine ends.
    pub(crate) fn access(&mut self, ns: u64) -> io::Result<Go> {
        self.reach(ns)?;
        self.ask(ACCESS, [ns, 0])
    }

    /// The same of a guest that sleeps until a time, if nothing happens at its node before.
    ///
    /// # Errors
    ///
    /// If the machine ends.
    pub(crate) fn asleep(&mut self, ns: u64, until_ns: u64) -> io::Result<Go> {
        self.reach(ns)?;
        self.asks = true;
        self.ask(ASLEEP, [ns, until_ns])
    }

    /// The same for a guest that has reached its limit. The machine is not asked if nothing happens
    /// at its node.
    ///
    /// # Errors
    ///
    /// If the machine ends.
    pub(crate) fn step(&mut self, ns: u64) -> io::Result<Go> {
        if let Next::Run(until_ns) = self.pass(ns, ns)? {
            return Ok(Go { until_ns, ..Go::default() });
        }
        self.asks = false;
        self.at(ns)
    }

    /// Publishes the time of a guest that would run to `end` without a pause. Returns how far it
    /// may run, or that it must ask the machine.
    ///
    /// # Errors
    ///
    /// If the machine ends.
    pub(crate) fn pass(&mut self, ns: u64, end: u64) -> io::Result<Next> {
        self.reach(ns)?;
        match self.page.as_ref().filter(|_| !self.asks) {
            Some(page) => page.next(ns, end, || self.is_there()),
            None => Ok(Next::Ask),
        }
    }

    /// Says that the guest has taken bytes of input from a port.
    pub(crate) fn take(&self, port: usize, bytes: usize) {
        if let Some(page) = &self.page {
            page.take(port, bytes);
        }
    }

    /// Publishes this guest's time to the others. It has not accessed the machine since its last
    /// request.
    fn reach(&mut self, ns: u64) -> io::Result<()> {
        match self.page.as_mut().is_some_and(|page| page.reach(ns)) {
            true => self.say([PASSED, 0], [ns, 0]),
            false => Ok(()),
        }
    }

    /// An error if the machine has gone.
    fn is_there(&self) -> io::Result<()> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&self.machine, &mut [0u8; 1], flags) {
            Ok((_, 0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn say(&self, [kind, version]: [u32; 2], [at_ns, until_ns]: [u64; 2]) -> io::Result<()> {
        Message { kind, version, at_ns, until_ns }.send(&self.machine)
    }

    fn ask(&mut self, kind: u32, times: [u64; 2]) -> io::Result<Go> {
        self.say([kind, 0], times)?;
        let (go, _) = Go::receive(&self.machine)?;
        // The machine has to know when it continues.
        self.asks |= kind != ACCESS && go.until_ns <= times[0];
        Ok(go)
    }
}
