//! A job's place in the queue of a running machine, and the nodes that it holds there.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;
use tofu_control::Connection;
use tofu_control::lines::encode;
use tofu_control::protocol::{JobInfo, JobState, Reply, Request};
use tofu_jtofu::Job;

use crate::job::{self, Control};
use crate::machine::Machine;
use crate::place::{self, Fit, Wanted};
use crate::spec::JobSpec;

/// The interval at which a waiting job checks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);
/// The time for which other jobs may have their turn before the user is notified.
const TURN: Duration = Duration::from_millis(500);
/// The time limit for a machine to answer when the answer involves no turn.
const ANSWER: Duration = Duration::from_secs(30);

/// The result of a request for nodes.
pub(crate) enum Got {
    /// The job holds these nodes as long as the lease exists.
    Nodes(Lease, Box<Job>),
    /// A signal came first.
    Signal(i32),
}

/// A job of a running machine. When it is dropped, or this process ends in any way, the machine
/// takes the job's nodes back.
pub(crate) struct Lease {
    out: UnixStream,
    /// Answers, including errors, after which more answers may follow.
    answers: Receiver<anyhow::Result<Reply>>,
    number: u32,
}

impl Lease {
    /// Waits in the machine's queue until there are nodes for the job, and takes them. Updates
    /// `machine` in each turn.
    ///
    /// # Errors
    ///
    /// If the job would not fit even if it were the only one, or if it would have to wait and must
    /// not.
    pub(crate) fn take(
        spec: &JobSpec,
        wanted: Wanted,
        machine: &mut Machine,
        control: &Control,
    ) -> anyhow::Result<Got> {
        let mut lease = Self::enter(machine, &spec.program.join(" "))?;
        let mut waiting = Waiting { json: spec.json, since: Instant::now(), said: None };
        // The number of jobs before this one, unless that has been reported already.
        let mut queued = None;
        loop {
            match lease.next(control, queued.map(|_| waiting.since + TURN))? {
                Next::Signal(signal) => return Ok(Got::Signal(signal)),
                Next::Late => {
                    let before = queued.take().unwrap_or_default();
                    if spec.no_wait {
                        bail!("{} before this one wait for nodes", jobs(before));
                    }
                    waiting.queued(before)?;
                }
                Next::Reply(Reply::Queued { before, .. }) => queued = Some(before),
                Next::Reply(Reply::Turn { job }) => {
                    (lease.number, queued) = (job, None);
                    machine.look()?;
                    match lease.fit(wanted, machine)? {
                        Ok(job) => {
                            waiting.over(lease.number)?;
                            return Ok(Got::Nodes(lease, job));
                        }
                        Err(why) if spec.no_wait => bail!(why),
                        Err(why) => waiting.until_free(&why)?,
                    }
                    lease.say(&Request::Wait)?;
                }
                Next::Reply(Reply::Error { why }) => bail!(why),
                Next::Reply(_) => bail!("not an answer"),
            }
        }
    }

    /// Returns the job's number, which the machine gives to no other job.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    fn enter(machine: &Machine, command: &str) -> anyhow::Result<Self> {
        let (command, pid) = (command.to_owned(), Some(std::process::id()));
        let mut connection = Connection::open(&machine.control, &Request::Job { command, pid })?;
        let out = connection.stream()?;
        let (sender, answers) = mpsc::channel();
        let listen = move || {
            loop {
                let reply = connection.reply();
                let last = reply.is_err();
                if sender.send(reply).is_err() || last {
                    return;
                }
            }
        };
        thread::Builder::new().name("lease".into()).spawn(listen).context("no threads left")?;
        Ok(Self { out, answers, number: 0 })
    }

    /// Takes nodes for the job in its turn, or returns why it must wait.
    fn fit(
        &mut self,
        wanted: Wanted,
        machine: &Machine,
    ) -> anyhow::Result<Result<Box<Job>, String>> {
        let wanted = Wanted { interconnect: machine.interconnect, ..wanted };
        let is_other = |job: &&JobInfo| job.job != self.number && !job.nodes.is_empty();
        let others: Vec<&JobInfo> = machine.jobs.iter().filter(is_other).collect();
        let apart = |other: &&&JobInfo| other.alone || wanted.alone;
        let in_the_way: Vec<&JobInfo> = others.iter().filter(apart).copied().collect();
        let places = |jobs: &[&JobInfo]| machine.places(jobs.iter().flat_map(|job| &job.nodes));
        // Free nodes are preferred to shared ones, because jobs on the same node need the same
        // control queues.
        if !wanted.alone
            && (wanted.map.is_some() || wanted.ranks.is_some())
            && others.len() > in_the_way.len()
            && let Fit::Now(job) = place::fit(&machine.usable, places(&others), wanted)?
        {
            self.hold(&job, wanted.alone, machine)?;
            return Ok(Ok(job));
        }
        match place::fit(&machine.usable, places(&in_the_way), wanted)? {
            Fit::Now(job) => {
                self.hold(&job, wanted.alone, machine)?;
                Ok(Ok(job))
            }
            Fit::Later(what) => {
                let words = in_the_way.iter().map(|other| {
                    let nodes = other.nodes.len();
                    let nodes = if nodes == 1 { "1 node".into() } else { format!("{nodes} nodes") };
                    format!("job {} ({}) has {nodes}", other.job, other.command)
                });
                let words: Vec<_> = words.take(MOST_NAMED).collect();
                let more = in_the_way.len() - words.len();
                let more = if more > 0 { format!(", and {more} more") } else { String::new() };
                Ok(Err(format!("{what}; {}{more}", words.join(", "))))
            }
        }
    }

    /// Places the job again after it has lost nodes: as before if there are nodes for that and no
    /// job waits for nodes, or else on its remaining nodes.
    ///
    /// # Errors
    ///
    /// If it does not fit there.
    pub(crate) fn take_again(
        &mut self,
        wanted: Wanted,
        job: &Job,
        machine: &Machine,
    ) -> anyhow::Result<Box<Job>> {
        let wanted = Wanted { interconnect: machine.interconnect, ..wanted };
        let others = machine.jobs.iter().filter(|other| other.job != self.number);
        let in_the_way = others.filter(|other| other.alone || wanted.alone);
        let taken = machine.places(in_the_way.flat_map(|other| &other.nodes));
        if machine.jobs.iter().all(|other| other.state == JobState::Running) {
            let free = machine.usable.clone().with_failed(taken)?;
            if let Ok(same) = place::lay_again(&free, wanted, job)
                && self.hold(&same, wanted.alone, machine).is_ok()
            {
                return Ok(Box::new(same));
            }
        }
        let shape = machine.system.shape();
        let others = shape.iter().filter(|at| !job.nodes().contains(at));
        let own = machine.usable.clone().with_failed(others)?;
        let less = place::degrade(&own, wanted, job)?;
        self.hold(&less, wanted.alone, machine)?;
        Ok(Box::new(less))
    }

    /// Takes the nodes of a placement.
    fn hold(&mut self, job: &Job, alone: bool, machine: &Machine) -> anyhow::Result<()> {
        let nodes: anyhow::Result<_> = job.nodes().iter().map(|at| machine.index(*at)).collect();
        let shape = Some(job.shape().to_string());
        self.say(&Request::Take { nodes: nodes?, alone, shape })?;
        match self.answers.recv_timeout(ANSWER).context("the machine does not answer")?? {
            Reply::Done => Ok(()),
            Reply::Error { why } => bail!(why),
            _ => bail!("not an answer"),
        }
    }

    fn say(&mut self, request: &Request) -> anyhow::Result<()> {
        self.out.write_all(&encode(request)?).context("the machine has ended")
    }

    /// Returns the machine's next message, if one arrives before the time limit.
    fn next(&self, control: &Control, until: Option<Instant>) -> anyhow::Result<Next> {
        loop {
            if let Some(signal) = control.signal() {
                return Ok(Next::Signal(signal));
            }
            if until.is_some_and(|until| Instant::now() > until) {
                return Ok(Next::Late);
            }
            match self.answers.recv_timeout(LOOK) {
                Ok(reply) => return Ok(Next::Reply(reply?)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the machine has ended"),
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The machine may have ended.
        let _ = self.out.shutdown(Shutdown::Both);
    }
}

/// A message to a waiting job.
enum Next {
    Reply(Reply),
    Signal(i32),
    /// Nothing before the time limit.
    Late,
}

/// The most jobs whose numbers a waiting user sees.
const MOST_NAMED: usize = 3;

fn jobs(number: u32) -> String {
    if number == 1 { "1 job".to_owned() } else { format!("{number} jobs") }
}

/// Tells the user what a job waits for, without repetition.
struct Waiting {
    json: bool,
    since: Instant,
    said: Option<String>,
}

impl Waiting {
    fn queued(&mut self, before: u32) -> anyhow::Result<()> {
        let verb = if before == 1 { "is" } else { "are" };
        let text = format!("waiting for nodes: {} {verb} before this one", jobs(before));
        self.say(text, before)
    }

    fn until_free(&mut self, why: &str) -> anyhow::Result<()> {
        self.say(format!("waiting for nodes: {why}"), 0)
    }

    fn say(&mut self, text: String, before: u32) -> anyhow::Result<()> {
        if self.said.as_ref() != Some(&text) {
            let value = json!({ "event": "queued", "before": before, "text": text });
            job::note(self.json, &text, &value)?;
            self.said = Some(text);
        }
        Ok(())
    }

    fn over(&self, number: u32) -> anyhow::Result<()> {
        if self.said.is_some() {
            let seconds = self.since.elapsed().as_secs_f64();
            let value = json!({ "event": "nodes", "job": number, "seconds": seconds });
            job::note(
                self.json,
                &format!("job {number} has its nodes after {seconds:.1} s"),
                &value,
            )?;
        }
        Ok(())
    }
}
