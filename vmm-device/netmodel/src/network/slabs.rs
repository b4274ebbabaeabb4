//! All nodes of a network, divided into slabs. A thread may run a slab through a window of time.
//!
//! A window is as long as the shortest way between nodes, a hop: what is posted in one arrives in a
//! later one. Engines can therefore run through a window in any order and on any thread, with the
//! same result to the last bit. This is faster even with one thread, as an engine's nodes stay in
//! the caches of the processor until all their work is done.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::panic;
use std::sync::mpsc::{Receiver, RecvError, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use tofu_abi::TniId;
use tofu_abi::topology::{NodeId, Port, Shape};
use tofu_fabric::{DiscardReason, LinkErrors, Ps};
use tofu_links::{Counters, Parameters, Receiver as LinkReceiver};

use super::agenda::NEVER;
use super::broken::Broken;
use super::engine::{Engine, Totals};
use super::frame::{Far, SLOTS};
use super::mail::{Mail, Notice, Notices, Outlet, Told};
use super::message::Sink;
use super::node::{Costs, Queued};
use super::slot::{CameIn, Sending};
use super::watched::Receiving;

/// Most nodes of an engine: their state is a few hundred kilobytes, which fits in caches.
const NODES: u32 = 48;
/// The number of nodes that must be busy in a window to make waking threads worthwhile.
const WORTH_IT: usize = 32;
/// The number of times a thread polls for work, or for finished work, before it sleeps: for some
/// tens of microseconds, as long as a window that is barely worthwhile.
const LOOKS: u32 = 1000;
/// Polls between two yields of the processor.
const LOOKS_AT_ONCE: u32 = 100;

/// Receives from a channel. Polls up to `looks` times before it sleeps.
fn receive<T>(from: &Receiver<T>, looks: u32) -> Result<T, RecvError> {
    for look in 1..=looks {
        match from.try_recv() {
            Ok(value) => return Ok(value),
            Err(TryRecvError::Disconnected) => return Err(RecvError),
            Err(TryRecvError::Empty) if look % LOOKS_AT_ONCE == 0 => thread::yield_now(),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
    from.recv()
}

/// A part of a window for a slab to run.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// Start and end of the window, if it is a new one.
    opens: Option<(Ps, Ps)>,
    /// Last picosecond to run, inclusive.
    until: Ps,
    /// Index of this window's mailbox; messages sent now go to the other one.
    mail: usize,
    hops: bool,
}

/// Consecutive engines.
#[derive(Debug)]
struct Slab {
    /// The number of the first engine.
    first: usize,
    engines: Vec<Engine>,
    /// By window, alternating, and by engine of the whole machine.
    mail: [Vec<Mail>; 2],
    /// Mail from other slabs for the next window, by engine.
    came: Vec<Vec<Mail>>,
    /// Empty mail, kept for its memory.
    spare: Vec<Mail>,
    /// Engines of other slabs that this one sends to.
    away: Vec<usize>,
    notices: Notices,
    /// When the next event other than notices and credits is due, when the next credit is, and how
    /// many nodes were busy.
    next_at: Ps,
    credits_at: Ps,
    busy: usize,
}

impl Slab {
    /// Applies the credits that were returned for the next window.
    fn take_credits(&mut self, next: usize, engine: usize) {
        let Self { first, engines, mail, came, .. } = self;
        let Some(engine_of) = engines.get_mut(engine) else { return };
        for mail in std::iter::once(&mut mail[next][*first + engine]).chain(&mut came[engine]) {
            engine_of.take_credits(mail);
        }
    }

    fn work(&mut self, stretch: Stretch) {
        let Self { engines, mail: [even, odd], came, spare, notices, .. } = self;
        let (now, next) = if stretch.mail == 0 { (even, odd) } else { (odd, even) };
        (self.next_at, self.busy) = (NEVER, 0);
        let own = now[self.first..].iter_mut().zip(came);
        for (engine, (mail, came)) in engines.iter_mut().zip(own) {
            if let Some((start, end)) = stretch.opens {
                engine.open(start, end, std::iter::once(&mut *mail).chain(&mut *came));
                spare.append(came);
            }
            let mut out = Outlet { mail: next, notices, hops: stretch.hops };
            self.busy += engine.run(stretch.until, &mut out);
            self.next_at = self.next_at.min(engine.next_at());
        }
        let own = next[self.first..].iter().take(self.engines.len());
        let away = self.away.iter().filter_map(|engine| next.get(*engine));
        self.credits_at = NEVER;
        for mail in own.chain(away).chain(self.came.iter().flatten()) {
            self.next_at = self.next_at.min(mail.soonest);
            self.credits_at = self.credits_at.min(mail.credits_at);
        }
        if !notices.is_quiet(stretch.until) {
            notices.gather(stretch.until);
        }
    }
}

/// A thread that runs slabs.
#[derive(Debug)]
struct Worker {
    jobs: Option<Sender<(Slab, Stretch)>>,
    done: Receiver<Slab>,
    /// The number of polls by either side before it sleeps.
    looks: u32,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn new(looks: u32) -> std::io::Result<Self> {
        let (jobs, work) = channel::<(Slab, Stretch)>();
        let (finished, done) = channel();
        let work = move || {
            while let Ok((mut slab, stretch)) = receive(&work, looks) {
                slab.work(stretch);
                if finished.send(slab).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("tofu-network".to_owned()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), done, looks, thread: Some(thread) })
    }

    fn begin(&self, slab: Slab, stretch: Stretch) {
        if let Some(jobs) = &self.jobs {
            // An error here is detected when the slab is to be returned.
            let _ = jobs.send((slab, stretch));
        }
    }

    fn end(&mut self) -> Slab {
        receive(&self.done, self.looks).unwrap_or_else(|_| {
            match self.thread.take().map(JoinHandle::join) {
                Some(Err(panic)) => panic::resume_unwind(panic),
                _ => unreachable!("a thread ends after its last job"),
            }
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It returns nothing, and a panic has been reported.
            let _ = thread.join();
        }
    }
}

/// All nodes, and what happens among them.
#[derive(Debug)]
pub(super) struct Slabs {
    parameters: Parameters,
    /// Nodes of an engine, and engines of a slab.
    nodes: u32,
    engines: usize,
    slabs: Vec<Slab>,
    workers: Vec<Worker>,
    /// The end of the open window, and the index of its mailbox.
    end: Ps,
    mail: usize,
    /// When the next event other than notices and credits is due, and when the next credit is.
    next_at: Ps,
    credits_at: Ps,
    /// The number of nodes that were busy in this window so far, and in the previous one; and the
    /// time that the window has reached.
    busy: usize,
    busy_before: usize,
    done: Ps,
    broken: Broken,
    /// Links to take down at the end of the window, by node and port.
    failed: Vec<(NodeId, Port)>,
    /// Directions modelled in full without need, by node and port.
    clean: Vec<(NodeId, Port)>,
    told: Vec<Told>,
}

impl Slabs {
    /// Creates the nodes. For each port of each node with a link, `neighbor` returns the node at
    /// the other end, and whether the link closes a ring.
    ///
    /// Starts fewer threads than requested if the system allows no more.
    pub(super) fn new(
        costs: &Costs,
        shape: &Shape,
        seed: u64,
        threads: u32,
        neighbor: impl Fn(NodeId, Port) -> Option<(NodeId, bool)>,
    ) -> Self {
        let total = shape.nodes();
        let threads = threads.min(total);
        // A polling thread keeps others from working if there are too few processors.
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let looks = if threads as usize <= processors { LOOKS } else { 0 };
        let workers: Vec<_> = (1..threads).map_while(|_| Worker::new(looks).ok()).collect();
        let slabs = workers.len() + 1;
        let nodes = total.div_ceil(slabs as u32).clamp(1, NODES);
        let count = total.div_ceil(nodes) as usize;
        let engines = count.div_ceil(slabs);
        let far = |(node, closes): (NodeId, bool), port: Port| {
            let slot = (node.0 % nodes) as usize * SLOTS + port.opposite().index();
            (node, Far { engine: node.0 / nodes, slot: slot as u16 }, closes)
        };
        let mut slabs = Vec::new();
        for first in (0..count).step_by(engines) {
            let of_slab = first..count.min(first + engines);
            let mut away = BTreeSet::new();
            let engines = of_slab.clone().map(|engine| {
                let first = engine as u32 * nodes;
                let own = (first, nodes.min(total - first));
                Engine::new(costs.clone(), own, seed, |node, port| {
                    let to = far(neighbor(node, port)?, port);
                    if !of_slab.contains(&(to.1.engine as usize)) {
                        away.insert(to.1.engine as usize);
                    }
                    Some(to)
                })
            });
            let engines: Vec<_> = engines.collect();
            slabs.push(Slab {
                first,
                mail: [(); 2].map(|()| (0..count).map(|_| Mail::new()).collect()),
                came: engines.iter().map(|_| Vec::new()).collect(),
                spare: Vec::new(),
                engines,
                away: away.into_iter().collect(),
                notices: Notices::new(),
                next_at: NEVER,
                credits_at: NEVER,
                busy: 0,
            });
        }
        Self {
            parameters: costs.parameters,
            nodes,
            engines,
            slabs,
            workers,
            end: 0,
            mail: 0,
            next_at: NEVER,
            credits_at: NEVER,
            busy: 0,
            busy_before: 0,
            done: 0,
            broken: Broken::new(),
            failed: Vec::new(),
            clean: Vec::new(),
            told: Vec::new(),
        }
    }

    pub(super) const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    const fn place(&self, node: NodeId) -> (usize, usize, u32) {
        let engine = (node.0 / self.nodes) as usize;
        (engine / self.engines, engine % self.engines, node.0 % self.nodes)
    }

    fn engine(&self, node: NodeId) -> Option<(&Engine, u32)> {
        let (slab, engine, node) = self.place(node);
        Some((self.slabs.get(slab)?.engines.get(engine)?, node))
    }

    fn engine_mut(&mut self, node: NodeId) -> Option<(&mut Engine, u32)> {
        let (slab, engine, node) = self.place(node);
        Some((self.slabs.get_mut(slab)?.engines.get_mut(engine)?, node))
    }

    fn all(&self) -> impl Iterator<Item = &Engine> {
        self.slabs.iter().flat_map(|slab| &slab.engines)
    }

    fn all_mail(&self) -> impl Iterator<Item = &Mail> {
        self.slabs.iter().flat_map(|slab| slab.mail.iter().chain(&slab.came).flatten())
    }

    pub(super) fn hops(&self) -> u64 {
        self.all().map(Engine::hops).sum()
    }

    pub(super) fn in_full(&self) -> usize {
        self.all().map(Engine::in_full).sum()
    }

    /// The arrivals in a slot of a node that exists.
    pub(super) fn came_in(&self, node: NodeId, n: usize) -> CameIn {
        self.engine(node).map(|(engine, node)| engine.came_in(node, n)).unwrap_or_default()
    }

    /// The counters of a port of a node that exists, as a sender.
    pub(super) fn sending(&self, node: NodeId, port: Port) -> Sending {
        self.engine(node).map(|(engine, node)| engine.sending(node, port)).unwrap_or_default()
    }

    /// Returns true if no message is at a TNI, no frame is in a queue or on a link, and no frame is
    /// unacknowledged.
    pub(super) fn is_idle(&self) -> bool {
        self.all().all(Engine::is_idle)
            && self.all_mail().all(|mail| mail.frames.is_empty())
            && self.slabs.iter().all(|slab| slab.notices.next_at() == NEVER)
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.all().map(|engine| engine.bytes() + size_of::<Engine>()).sum::<usize>()
            + self.all_mail().map(|mail| mail.bytes() + size_of::<Mail>()).sum::<usize>()
            + self.slabs.iter().map(|slab| slab.notices.bytes()).sum::<usize>()
            + self.broken.bytes()
    }

    /// The counts of all links.
    pub(super) fn totals(&self) -> Totals {
        self.all().map(Engine::totals).fold(Totals::default(), Totals::and)
    }

    pub(super) fn backlog(&self, node: NodeId, tni: TniId) -> Option<u32> {
        self.engine(node).map(|(engine, node)| engine.backlog(node, tni))
    }

    pub(super) fn set_down(&mut self, now: Ps, node: NodeId, port: Port, down: bool) {
        if let Some((engine, node)) = self.engine_mut(node) {
            engine.set_down(now, node, port, down);
        }
        self.next_at = self.next_at.min(now);
    }

    pub(super) fn is_down(&self, node: NodeId, port: Port) -> bool {
        self.engine(node).is_none_or(|(engine, node)| engine.is_down(node, port))
    }

    /// When the next notice is due.
    fn notices_at(&self) -> Ps {
        self.slabs.iter().map(|slab| slab.notices.next_at()).fold(NEVER, Ps::min)
    }

    pub(super) fn next_at(&self) -> Option<Ps> {
        let mut next_at = self.next_at.min(self.notices_at());
        if self.credits_at < next_at {
            for slab in &self.slabs {
                let own = slab.mail[1 - self.mail][slab.first..].iter().zip(&slab.came);
                for (engine, (mail, came)) in slab.engines.iter().zip(own) {
                    let mails = std::iter::once(mail).chain(came);
                    next_at = mails.map(|mail| engine.waited_for(mail)).fold(next_at, Ps::min);
                }
            }
        }
        (next_at != NEVER).then_some(next_at)
    }

    /// Queues a message at a TNI.
    pub(super) fn inject(&mut self, now: Ps, node: NodeId, tni: TniId, message: Queued) {
        self.next_at = self.next_at.min(message.ready_at.max(now));
        if let Some((engine, node)) = self.engine_mut(node) {
            engine.inject(now, node, tni, message);
        }
    }

    /// Sets the errors of the direction of a link out of a port to another node.
    pub(super) fn set_errors(
        &mut self,
        now: Ps,
        (node, port): (NodeId, Port),
        to: NodeId,
        errors: &LinkErrors,
    ) {
        let (slab, engine, local) = self.place(node);
        let mail = 1 - self.mail;
        let Some(slab) = self.slabs.get_mut(slab) else { return };
        slab.take_credits(mail, engine);
        let Some(engine_of) = slab.engines.get_mut(engine) else { return };
        let new = engine_of.set_errors(now, local, port, errors);
        self.watch_behind(now, (node, port), to, new);
        if let Some((engine, node)) = self.engine_mut(to) {
            engine.set_errors_behind(node, port.opposite(), errors);
        }
    }

    /// Starts or stops modelling a direction in full for an observer.
    pub(super) fn look_at(
        &mut self,
        now: Ps,
        (node, port): (NodeId, Port),
        to: NodeId,
        look: bool,
    ) {
        let (slab, engine, local) = self.place(node);
        let mail = 1 - self.mail;
        let Some(slab) = self.slabs.get_mut(slab) else { return };
        slab.take_credits(mail, engine);
        let Some(engine_of) = slab.engines.get_mut(engine) else { return };
        let new = engine_of.look_at(now, local, port, look);
        self.watch_behind(now, (node, port), to, new);
    }

    fn watch_behind(
        &mut self,
        now: Ps,
        (node, port): (NodeId, Port),
        to: NodeId,
        new: Option<Receiving>,
    ) {
        if let Some(new) = new
            && let Some((engine, node)) = self.engine_mut(to)
        {
            engine.watch_behind(node, port.opposite(), new);
        }
        self.next_at = self.next_at.min(now);
        if !self.clean.contains(&(node, port)) && self.may_become_clean(node, port) {
            self.clean.push((node, port));
        }
    }

    fn may_become_clean(&self, node: NodeId, port: Port) -> bool {
        self.engine(node).is_some_and(|(engine, node)| engine.may_become_clean(node, port))
    }

    /// Drops the full state of links that no longer need it; like [`Self::fail_links`], at both
    /// ends together.
    fn clean_links(&mut self) {
        let now = self.end;
        for (node, port) in std::mem::take(&mut self.clean) {
            if self.clean_link(now, node, port).is_none() && self.may_become_clean(node, port) {
                self.clean.push((node, port));
            }
        }
    }

    fn clean_link(&mut self, now: Ps, node: NodeId, port: Port) -> Option<()> {
        let (engine, local) = self.engine(node)?;
        let far = engine.clean_link(now, local, port)?;
        let to = NodeId(far.engine * self.nodes + u32::from(far.slot) / SLOTS as u32);
        let (engine, _) = self.engine_mut(to)?;
        let rest = engine.forget_receiving(now, far.slot.into())?;
        let (engine, local) = self.engine_mut(node)?;
        engine.forget_sending(now, local, port, rest);
        self.next_at = self.next_at.min(now);
        Some(())
    }

    /// Counters of both ends of a direction modelled in full: the sender's, the receiver's.
    pub(super) fn watched(&self, node: NodeId, port: Port, to: NodeId) -> Option<[Counters; 2]> {
        let (engine, node) = self.engine(node)?;
        let sent = engine.watched(node, port)?;
        let (engine, node) = self.engine(to)?;
        let received = engine.watched_in(node, port.opposite())?;
        Some([sent, Counters { slice_fcs_errors: sent.slice_fcs_errors, ..received }])
    }

    /// Runs all events up to a time, inclusive.
    pub(super) fn run_until(&mut self, until: Ps, sink: &mut impl Sink) {
        let hop_ps = self.parameters.hop_ps();
        let mut opens = None;
        loop {
            let last = until.min(self.end.saturating_sub(1));
            if opens.is_some() || self.next_at <= last {
                self.work(Stretch { opens, until: last, mail: self.mail, hops: sink.wants_hops() });
                self.tell(sink);
            }
            if until >= self.end {
                self.fail_links(sink);
                if !self.clean.is_empty() {
                    self.clean_links();
                }
                if self.broken.is_full() {
                    self.forget_broken();
                }
            }
            let next_at = self.next_at.min(self.credits_at);
            if until < self.end || next_at > until || next_at == NEVER {
                break;
            }
            let start = next_at / hop_ps * hop_ps;
            self.end = start + hop_ps;
            self.mail = 1 - self.mail;
            opens = Some((start, self.end));
        }
        if self.notices_at() <= until {
            self.slabs.iter_mut().for_each(|slab| slab.notices.gather(until));
            self.exchange(1 - self.mail);
            self.tell(sink);
        }
    }

    /// Takes down links through which no frame gets. Both ends change together, which is possible
    /// between two windows.
    fn fail_links(&mut self, sink: &mut impl Sink) {
        let now = self.end;
        for (node, port) in std::mem::take(&mut self.failed) {
            if let Some(to) = self.fail_link(now, node, port) {
                self.set_down(now, to, port.opposite(), true);
                sink.failed(now, node, port);
            }
        }
    }

    /// Takes down the sending side of a link, and returns the node at the other end. `None` if it
    /// is down: a failure may be reported twice.
    fn fail_link(&mut self, now: Ps, node: NodeId, port: Port) -> Option<NodeId> {
        let (engine, local) = self.engine(node)?;
        let far = engine.failed_link(local, port)?;
        let to = NodeId(far.engine * self.nodes + u32::from(far.slot) / SLOTS as u32);
        let slot = usize::from(far.slot);
        let there = self.engine_mut(to)?.0.receiver_mut(slot)?;
        let (expected, freed) = (there.expected(), there.freed_rows());
        // Sender and receiver may be in one engine, so the sender gets a copy of the receiver.
        let mut receiver = LinkReceiver::at(&self.parameters, expected, freed);
        let (slab, engine, local) = self.place(node);
        let Slab { engines, mail, notices, .. } = self.slabs.get_mut(slab)?;
        let mut out = Outlet { mail: &mut mail[1 - self.mail], notices, hops: false };
        engines.get_mut(engine)?.fail(now, local, port, &mut receiver, &mut out);
        self.engine_mut(to)?.0.receiver_mut(slot)?.restart_at(receiver.expected());
        Some(to)
    }

    /// Forgets lost messages that have no frames in flight.
    fn forget_broken(&mut self) {
        let ended = self.broken.ended();
        let mut stay = vec![0u64; ended.len().div_ceil(u64::BITS as usize)];
        let posted = self.all_mail().flat_map(|mail| &mail.frames).map(|(_, frame)| frame.token);
        // Links that have just failed have lost frames that were not reported yet.
        let untold = self.slabs.iter().flat_map(|slab| slab.notices.lost());
        for token in self.all().flat_map(Engine::tokens).chain(posted).chain(untold) {
            if let Ok(n) = ended.binary_search(&token) {
                stay[n / u64::BITS as usize] |= 1 << (n % u64::BITS as usize);
            }
        }
        let stays = |n: usize| stay[n / u64::BITS as usize] >> (n % u64::BITS as usize) & 1 != 0;
        let gone = ended.iter().enumerate().filter(|(n, _)| !stays(*n));
        self.broken.forget(gone.map(|(_, token)| *token));
    }

    /// Runs all slabs through a stretch of a window, and exchanges what they sent each other.
    fn work(&mut self, stretch: Stretch) {
        let threads = self.workers.len() + 1;
        if (threads.min(self.slabs.len()) == 1 || self.slabs.len() > threads)
            || !self.is_worth_it(&stretch)
        {
            self.slabs.iter_mut().for_each(|slab| slab.work(stretch));
        } else {
            let mut away = std::mem::take(&mut self.slabs).into_iter();
            let own = away.next();
            let workers = self.workers.iter_mut().take(away.len());
            let mut workers: Vec<_> = workers.collect();
            workers.iter().zip(away).for_each(|(worker, slab)| worker.begin(slab, stretch));
            self.slabs.extend(own.map(|mut slab| {
                slab.work(stretch);
                slab
            }));
            self.slabs.extend(workers.iter_mut().map(|worker| worker.end()));
        }
        if stretch.opens.is_some() {
            self.busy_before = std::mem::take(&mut self.busy);
        }
        self.busy += self.slabs.iter().map(|slab| slab.busy).sum::<usize>();
        self.done = stretch.until;
        self.next_at = self.slabs.iter().map(|slab| slab.next_at).fold(NEVER, Ps::min);
        self.credits_at = self.slabs.iter().map(|slab| slab.credits_at).fold(NEVER, Ps::min);
        self.exchange(1 - stretch.mail);
    }

    /// Passes mail for the next window between slabs.
    fn exchange(&mut self, next: usize) {
        let Self { slabs, engines, .. } = self;
        for from in 0..slabs.len() {
            for n in 0..slabs[from].away.len() {
                let engine = slabs[from].away[n];
                if slabs[from].mail[next][engine].is_empty() {
                    continue;
                }
                let to = engine / *engines;
                let empty = slabs[to].spare.pop().unwrap_or_else(Mail::new);
                let sent = std::mem::replace(&mut slabs[from].mail[next][engine], empty);
                slabs[to].came[engine % *engines].push(sent);
            }
        }
    }

    /// Returns true if a stretch of a window is enough work for threads, judging by the window
    /// before.
    fn is_worth_it(&self, stretch: &Stretch) -> bool {
        if stretch.opens.is_some() {
            // There is mail to sort, too.
            return self.busy.max(self.busy_before) >= WORTH_IT;
        }
        let share = u128::from(stretch.until.saturating_sub(self.done));
        self.busy_before as u128 * share >= WORTH_IT as u128 * u128::from(self.parameters.hop_ps())
    }

    /// Notes that a message other than a response has left its TNI.
    fn left(&mut self, node: NodeId, tni: TniId) {
        if let Some((engine, node)) = self.engine_mut(node) {
            engine.left(node, tni);
        }
    }

    /// Reports what has happened, in order of time.
    fn tell(&mut self, sink: &mut impl Sink) {
        let tells = |slab: &Slab| !slab.notices.due.is_empty();
        if !self.slabs.iter().any(tells) {
            return;
        }
        let mut told = std::mem::take(&mut self.told);
        for slab in &mut self.slabs {
            told.append(&mut slab.notices.due);
        }
        if self.slabs.len() > 1 {
            told.sort_by_key(Told::order);
        }
        for told in told.drain(..) {
            let (at, node) = (told.at, told.node());
            match told.notice {
                Notice::Delivered { tni, token } => {
                    if self.broken.is_whole(token) {
                        sink.delivered(at, node, tni, token);
                    }
                }
                Notice::Left { tni, token, request } => {
                    if request {
                        self.left(node, tni);
                    }
                    sink.left(at, node, tni, token);
                }
                Notice::Discarded { port, token, which } => {
                    if self.broken.is_first(token, which) {
                        sink.lost(at, node, port, DiscardReason::LinkDown, token);
                    }
                }
                Notice::Failed { port } => self.failed.push((node, port)),
                Notice::Hop { hop, class, bytes, token, link } => {
                    sink.hop(at, &hop, class, bytes, token, link);
                }
                Notice::Again { hop, bytes, token, link } => {
                    sink.again(at, &hop, bytes, token, link);
                }
                Notice::Said { hop, dllp, link } => sink.said(at, &hop, dllp, link),
            }
        }
        self.told = told;
    }
}
