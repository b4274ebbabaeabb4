//! Engine threads: they run queues, poll doorbells, and keep the deadlines of their nodes.

use std::collections::HashMap;
use std::hint::spin_loop;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};
use tofu_sync::lock;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::timerfd::TimerFd;

use crate::drive::{Drive, View};
use crate::inbox::{Change, Inbox, Piece};
use crate::shared::{RELEASES, Shared};
use crate::wakeup::Watching;

/// The shortest and the longest interval between two polls, in nanoseconds.
const NAP_NS: (u64, u64) = (20_000, 1_000_000);
/// A page that cannot be protected, and has been quiet for the first of these times, is polled at
/// intervals of the second. Both are in nanoseconds. The documentation of
/// tofu-vfio-user has the cost.
const DOZE_NS: (u64, u64) = (1_000_000_000, 10_000_000);

/// Number of turns after which a busy engine checks its event descriptors.
const TURNS_PER_LOOK: u32 = 16;
/// The most queues that a turn runs, so that a guest with work in all of its queues does not keep
/// the engine from checking the doorbells and deadlines of other nodes.
const QUEUES_PER_TURN: usize = 16;
/// A turn that has taken longer than this, in nanoseconds, runs no further queue.
const TURN_NS: u64 = 200_000;

/// An engine, which does the work of some of a machine's nodes.
pub(crate) struct Engine<'a, D: Drive> {
    pub(crate) shared: &'a Shared<D>,
    pub(crate) inbox: &'a Inbox<D::Work>,
}

impl<D: Drive> Clone for Engine<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Drive> Copy for Engine<'_, D> {}

impl<D: Drive> Engine<'_, D> {
    /// Does queued work and work that is due. Returns whether there was any queued.
    pub(crate) fn turn(&self, view: &mut D::View<'_>) -> bool {
        if self.inbox.deadline.load(SeqCst) <= view.now_ns() {
            self.expire(view);
        }
        // A queue with more work goes to the end, behind the queues that wait.
        let waiting = lock(&self.inbox.pending).len().min(QUEUES_PER_TURN);
        self.work(view, waiting)
    }

    /// Does up to `most` pieces of queued work. Returns whether there was any.
    pub(crate) fn work(&self, view: &mut D::View<'_>, most: usize) -> bool {
        let start = view.now_ns();
        let mut worked = false;
        for _ in 0..most {
            // Running a queue reads the clock, so this costs nothing.
            if view.now_ns().saturating_sub(start) > TURN_NS {
                break;
            }
            let Some(piece) = lock(&self.inbox.pending).pop_front() else {
                break;
            };
            worked = true;
            if let Some(node) = self.shared.node(piece.node)
                && view.run(node, piece.work)
            {
                lock(&self.inbox.pending).push_back(piece);
            }
        }
        worked
    }

    fn expire(&self, view: &mut D::View<'_>) {
        self.inbox.deadline.store(u64::MAX, SeqCst);
        if self.inbox.index() == RELEASES {
            view.release();
        }
        for node in lock(&self.inbox.nodes).iter().filter_map(|node| self.shared.node(*node)) {
            self.inbox.deadline.fetch_min(view.expire(node), SeqCst);
        }
    }

    /// The engine's thread.
    pub(crate) fn run(self) {
        if let Err(error) = self.serve() {
            log::error!("engine {}: {error}", self.inbox.index());
        }
    }

    fn serve(self) -> Result<(), String> {
        let Self { shared, inbox } = self;
        let timer = TimerFd::new().map_err(|error| error.to_string())?;
        let timer = Arc::new(Mutex::new(timer));
        let mut sources =
            EventManager::<Sources<'_, D>>::new().map_err(|error| error.to_string())?;
        let subscriber = Sources::new(self, Arc::clone(&timer));
        sources.add_subscriber(subscriber);
        let mut watch = WatchedPages::new(shared);
        let mut turns = 0u32;
        while !shared.stopping.load(SeqCst) {
            watch.update(inbox);
            // Both read the clock through this view, because reading the clock dominates the cost
            // of an engine that polls.
            let mut view = D::view(shared);
            let worked = self.turn(&mut view) | watch.poll(inbox, &mut view);
            turns = turns.wrapping_add(1);
            if inbox.changed.load(SeqCst) || turns.is_multiple_of(TURNS_PER_LOOK) {
                look(&mut sources, 0)?;
            }
            if worked {
                continue;
            }
            let next_look = watch.next_look(view.now_ns());
            if next_look.is_some_and(|at| at <= view.now_ns()) {
                spin_loop();
                continue;
            }
            let now = shared.now_ns();
            inbox.sleep.announce();
            // Work that arrived before the flag was set has not woken the engine.
            let deadline = inbox.deadline.load(SeqCst).min(next_look.unwrap_or(u64::MAX));
            let idle = lock(&inbox.pending).is_empty()
                && deadline > now
                && !inbox.watch_changed.load(SeqCst)
                && !shared.stopping.load(SeqCst);
            if idle {
                if deadline != u64::MAX {
                    let wait = Duration::from_nanos(deadline - now);
                    lock(&timer).reset(wait, None).map_err(|error| error.to_string())?;
                }
                look(&mut sources, -1)?;
            }
            inbox.sleep.over();
        }
        watch.pages.iter().for_each(|page| D::unwatch(&page.node, page.queue.work));
        Ok(())
    }
}

/// Handles the events that are pending. With a timeout of -1 it waits for at least one.
fn look<D: Drive>(
    sources: &mut EventManager<Sources<'_, D>>,
    timeout_ms: i32,
) -> Result<(), String> {
    sources.run_with_timeout(timeout_ms).map(drop).map_err(|error| error.to_string())
}

/// Event sources of an engine: its wake-up event, its timer, and trapped doorbells.
struct Sources<'a, D: Drive> {
    engine: Engine<'a, D>,
    timer: Arc<Mutex<TimerFd>>,
    /// The doorbells by the tokens of their descriptors.
    queues: HashMap<u32, TrappedDoorbell<D>>,
    /// The token of the next one. A token is not used again soon: events that were pending when a
    /// queue was disabled may come after it was enabled again, and belong to its former life.
    next: u32,
}

/// A trapped doorbell.
struct TrappedDoorbell<D: Drive> {
    queue: Piece<D::Work>,
    /// The life of the queue that the doorbell belongs to. It may have ended when the doorbell is
    /// noticed.
    life: u64,
    node: Arc<D::Node>,
    event: Arc<EventFd>,
}

const WAKE: u32 = 0;
const TIMER: u32 = 1;
const FIRST_QUEUE: u32 = 2;

impl<'a, D: Drive> Sources<'a, D> {
    fn new(engine: Engine<'a, D>, timer: Arc<Mutex<TimerFd>>) -> Self {
        Self { engine, timer, queues: HashMap::new(), next: FIRST_QUEUE }
    }

    /// Returns a token that no doorbell has.
    fn token(&mut self) -> u32 {
        loop {
            let token = self.next;
            self.next = token.checked_add(1).unwrap_or(FIRST_QUEUE);
            if !self.queues.contains_key(&token) {
                return token;
            }
        }
    }

    /// Applies the requested changes of the descriptors to listen to.
    fn apply_changes(&mut self, ops: &mut EventOps<'_>) {
        self.engine.inbox.changed.store(false, SeqCst);
        let changes: Vec<Change<D::Work>> = lock(&self.engine.inbox.changes).drain(..).collect();
        for change in changes {
            match change {
                Change::Listen(queue, life, event) => self.listen(queue, life, event, ops),
                Change::Ignore(event) => self.ignore(&event, ops),
            }
        }
    }

    fn listen(
        &mut self,
        queue: Piece<D::Work>,
        life: u64,
        event: Arc<EventFd>,
        ops: &mut EventOps<'_>,
    ) {
        let Some(node) = self.engine.shared.node(queue.node).cloned() else { return };
        let token = self.token();
        // Edge-triggered, so that a descriptor never needs to be read: reading one that another
        // process shares could block.
        let edges = EventSet::IN | EventSet::EDGE_TRIGGERED;
        if let Err(error) = ops.add(Events::with_data(&*event, token, edges)) {
            log::error!("listening to a doorbell of node {}: {error}", queue.node);
            return;
        }
        self.queues.insert(token, TrappedDoorbell { queue, life, node, event });
    }

    fn ignore(&mut self, event: &Arc<EventFd>, ops: &mut EventOps<'_>) {
        for _ in self.queues.extract_if(|_, known| Arc::ptr_eq(&known.event, event)) {
            if let Err(error) = ops.remove(Events::empty(&**event)) {
                log::error!("ending to listen to a doorbell: {error}");
            }
        }
    }
}

impl<D: Drive> MutEventSubscriber for Sources<'_, D> {
    fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
        match events.data() {
            WAKE => {
                let _ = self.engine.inbox.wake.read();
                self.apply_changes(ops);
            }
            TIMER => {
                if let Err(error) = lock(&self.timer).wait() {
                    log::error!("engine {}: timer: {error}", self.engine.inbox.index());
                }
            }
            token => {
                if let Some(TrappedDoorbell { queue, life, node, .. }) = self.queues.get(&token)
                    && D::rang(node, queue.work, Some(*life))
                {
                    lock(&self.engine.inbox.pending).push_back(*queue);
                }
            }
        }
    }

    fn init(&mut self, ops: &mut EventOps<'_>) {
        let timer = lock(&self.timer);
        let added = ops
            .add(Events::with_data(&self.engine.inbox.wake, WAKE, EventSet::IN))
            .and_then(|()| ops.add(Events::with_data(&*timer, TIMER, EventSet::IN)));
        if let Err(error) = added {
            log::error!("engine {}: {error}", self.engine.inbox.index());
        }
    }
}

/// The shared pages that an engine polls.
///
/// A page is polled continuously after its doorbell rang, then ever less often. A page that has
/// been quiet for long is write-protected, so it need not be polled until the guest writes to it
/// again.
struct WatchedPages<'a, D: Drive> {
    shared: &'a Shared<D>,
    pages: Vec<WatchedPage<D>>,
}

struct WatchedPage<D: Drive> {
    queue: Piece<D::Work>,
    node: Arc<D::Node>,
    protected: bool,
    /// When its doorbell last rang, in nanoseconds.
    rang_at: u64,
}

impl<'a, D: Drive> WatchedPages<'a, D> {
    const fn new(shared: &'a Shared<D>) -> Self {
        Self { shared, pages: Vec::new() }
    }

    /// When to poll the pages next, at `now` at the earliest; `None` if all are protected.
    fn next_look(&self, now: u64) -> Option<u64> {
        let awake = self.pages.iter().filter(|page| !page.protected);
        awake.map(|page| page.next_look(now, self.shared.spin_ns)).min()
    }

    /// Applies the requested changes of the pages to watch.
    fn update(&mut self, inbox: &Inbox<D::Work>) {
        if !inbox.watch_changed.swap(false, SeqCst) {
            return;
        }
        let changes: Vec<_> = lock(&inbox.watch_changes).drain(..).collect();
        for (queue, what) in changes {
            let now = self.shared.now_ns();
            let known = self.pages.iter_mut().find(|page| page.queue == queue);
            match (what, known, self.shared.node(queue.node)) {
                (Watching::Stop, _, _) => self.pages.retain(|page| page.queue != queue),
                (_, Some(page), _) => {
                    D::watch(&page.node, queue.work);
                    page.protected = false;
                    page.rang_at = now;
                }
                (Watching::Start, None, Some(node)) => {
                    let node = Arc::clone(node);
                    D::watch(&node, queue.work);
                    self.pages.push(WatchedPage { queue, node, protected: false, rang_at: now });
                }
                _ => {}
            }
        }
    }

    /// Polls all pages that are not protected. Returns whether any doorbell rang.
    fn poll(&mut self, inbox: &Inbox<D::Work>, view: &mut D::View<'_>) -> bool {
        if self.pages.iter().all(|page| page.protected) {
            return false;
        }
        let start = view.now_ns();
        let mut any = false;
        for page in self.pages.iter_mut().filter(|page| !page.protected) {
            let now = view.now_ns();
            let late = now.saturating_sub(start) > TURN_NS;
            let mut rang = page.poll(inbox, view, late);
            if !rang && now.saturating_sub(page.rang_at) > D::POLLED_NS && page.protect() {
                // Takes a doorbell that rang before the page was protected.
                rang = page.poll(inbox, view, late);
            }
            if rang {
                page.rang_at = now;
                any = true;
            }
        }
        any
    }
}

impl<D: Drive> WatchedPage<D> {
    fn next_look(&self, now: u64, spin_ns: u64) -> u64 {
        match now.saturating_sub(self.rang_at) {
            quiet if quiet < spin_ns => now,
            quiet if quiet > DOZE_NS.0 => now + DOZE_NS.1,
            quiet => now + (quiet / 4).clamp(NAP_NS.0, NAP_NS.1),
        }
    }

    /// Runs the queue if its doorbell rang. If it is `late`, the queue is only enqueued.
    fn poll(&self, inbox: &Inbox<D::Work>, view: &mut D::View<'_>, late: bool) -> bool {
        let Piece { node, work } = self.queue;
        let rang = D::poll(&self.node, work);
        if rang && D::rang(&self.node, work, None) && (late || view.run(&self.node, work)) {
            inbox.enqueue(node, work);
        }
        rang
    }

    fn protect(&mut self) -> bool {
        self.protected = D::doze(&self.node, self.queue.work);
        self.protected
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use tofu_abi::regs::{CqsReg, Register, TniReg};
    use tofu_abi::{Coords, CqId, TniId, pci};
    use tofu_fabric::{NodeId, Shape};
    use tofu_icc::Icc;
    use tofu_pci::{PciFunction, regs};
    use vm_memory::{GuestAddress, GuestMemoryMmap, MmapRegion};

    use super::*;
    use crate::node::Node;
    use crate::{DoorbellBackend, Machine, MachineConfig};

    /// Keeps the events of doorbells.
    #[derive(Default)]
    struct Events(Mutex<Vec<EventFd>>);

    impl DoorbellBackend for Events {
        fn attach_event(&self, _: u64, event: &EventFd) -> Result<(), String> {
            lock(&self.0).push(event.try_clone().unwrap());
            Ok(())
        }

        fn attach_page(
            &self,
            _: u64,
            _: &Arc<MmapRegion<()>>,
            _: usize,
            _: Box<dyn Fn() + Send + Sync>,
        ) -> Result<(), String> {
            Err("none".to_owned())
        }

        fn protect_page(&self, _: u64) {}

        fn detach(&self, _: u64) {
            lock(&self.0).clear();
        }
    }

    fn write(node: &Node, register: Register, value: u64) {
        node.bar_write(pci::REGISTER_BAR, register.offset(), &value.to_le_bytes());
    }

    #[test]
    fn queue_is_queued_once_for_many_doorbells() {
        let shape: Shape = "1x1x1x2x1x1".parse().unwrap();
        let machine = Machine::new(MachineConfig::new(shape)).unwrap();
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x10_0000)]).unwrap();
        let events = Arc::new(Events::default());
        let backend = Some(Arc::clone(&events) as _);
        let parts = crate::NodeParts { backend, ..crate::NodeParts::new(Arc::new(memory)) };
        let node = machine.add_node_of(Coords::new(0, 0, 0, 0, 0, 0), parts).unwrap();
        let command = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
        node.config_write(regs::COMMAND, &command.to_le_bytes());
        write(&node, Register::Tni { tni: TniId::ALL[0], reg: TniReg::Enable }, 1);
        write(
            &node,
            Register::Cqs { tni: TniId::ALL[0], cq: CqId::ALL[0], reg: CqsReg::Enable },
            1,
        );

        let inbox = machine.shared.engine_of(node.id());
        let engine = Engine { shared: &machine.shared, inbox };
        let mut sources = EventManager::<Sources<'_, _>>::new().unwrap();
        let timer = Arc::new(Mutex::new(TimerFd::new().unwrap()));
        sources.add_subscriber(Sources::new(engine, timer));
        look(&mut sources, 0).unwrap();
        for _ in 0..3 {
            lock(&events.0)[0].write(1).unwrap();
            look(&mut sources, 0).unwrap();
            assert_eq!(lock(&inbox.pending).len(), 1);
        }
        machine.run_turn();
        assert_eq!(lock(&inbox.pending).len(), 0);
        lock(&events.0)[0].write(1).unwrap();
        look(&mut sources, 0).unwrap();
        assert_eq!(lock(&inbox.pending).len(), 1);

        // The engine does not listen to a doorbell of a disabled queue.
        write(
            &node,
            Register::Cqs { tni: TniId::ALL[0], cq: CqId::ALL[0], reg: CqsReg::Enable },
            0,
        );
        look(&mut sources, 0).unwrap();
        machine.run_turn();
        assert!(lock(&events.0).is_empty());
    }

    #[test]
    fn turn_leaves_queues_of_a_busy_node() {
        let shape: Shape = "1x1x1x2x1x1".parse().unwrap();
        let machine = Machine::new(MachineConfig::new(shape)).unwrap();
        let inbox = &machine.shared.engines[0];
        for cq in CqId::ALL {
            for tni in TniId::ALL {
                inbox.enqueue(NodeId(0), (tni, cq.into()));
            }
        }
        let mut view = Icc::view(&machine.shared);
        assert!(Engine { shared: &machine.shared, inbox }.turn(&mut view));
        assert_eq!(lock(&inbox.pending).len(), 72 - QUEUES_PER_TURN);
    }
}
