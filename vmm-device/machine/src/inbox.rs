//! Work for an engine: queues to run, deadlines to keep, doorbells to listen to or to
//! poll.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tofu_fabric::NodeId;
use tofu_sync::lock;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::error::Error;
use crate::wakeup::{Sleep, Watching};

/// A piece of the work of a node, or a page of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece<W> {
    pub(crate) node: NodeId,
    pub(crate) work: W,
}

/// The work of an engine. Any thread may add to it.
#[derive(Debug)]
pub(crate) struct Inbox<W> {
    index: usize,
    pub(crate) wake: EventFd,
    pub(crate) sleep: Sleep,
    pub(crate) pending: Mutex<VecDeque<Piece<W>>>,
    /// The nodes whose work this is.
    pub(crate) nodes: Mutex<Vec<NodeId>>,
    /// Changes of the queues whose shared pages are watched.
    pub(crate) watch_changes: Mutex<Vec<(Piece<W>, Watching)>>,
    pub(crate) watch_changed: AtomicBool,
    /// Doorbell descriptors to start or to stop listening to.
    pub(crate) changes: Mutex<Vec<Change<W>>>,
    pub(crate) changed: AtomicBool,
    /// Earliest deadline of the engine's nodes.
    pub(crate) deadline: AtomicU64,
}

/// A change of the doorbell descriptors that an engine listens to.
#[derive(Debug)]
pub(crate) enum Change<W> {
    Listen(Piece<W>, u64, Arc<EventFd>),
    Ignore(Arc<EventFd>),
}

impl<W: PartialEq> Inbox<W> {
    pub(crate) fn new(index: usize) -> Result<Self, Error> {
        let wake = EventFd::new(EFD_NONBLOCK).map_err(Error::host("creating an eventfd"))?;
        Ok(Self {
            index,
            wake,
            sleep: Sleep::new(),
            pending: Mutex::new(VecDeque::new()),
            nodes: Mutex::new(Vec::new()),
            watch_changes: Mutex::new(Vec::new()),
            watch_changed: AtomicBool::new(false),
            changes: Mutex::new(Vec::new()),
            changed: AtomicBool::new(false),
            deadline: AtomicU64::new(u64::MAX),
        })
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Makes the engine responsible for a node.
    pub(crate) fn adopt(&self, node: NodeId) {
        lock(&self.nodes).push(node);
    }

    /// Ends the engine's sleep.
    pub(crate) fn wake(&self) {
        if self.sleep.end() {
            self.signal();
        }
    }

    fn signal(&self) {
        // Fails only when the counter is full, and then the engine wakes up anyway.
        let _ = self.wake.write(1);
    }

    /// Queues a piece of work.
    pub(crate) fn enqueue(&self, node: NodeId, work: W) {
        lock(&self.pending).push_back(Piece { node, work });
        self.wake();
    }

    /// Requests the work that is due at the engine's nodes at `deadline_ns`.
    pub(crate) fn want(&self, deadline_ns: u64) {
        if deadline_ns < self.deadline.fetch_min(deadline_ns, SeqCst) {
            self.wake();
        }
    }

    /// Does a piece of work whenever `event` is signalled during this life of its queue.
    pub(crate) fn listen(&self, node: NodeId, work: W, life: u64, event: Arc<EventFd>) {
        self.change(Change::Listen(Piece { node, work }, life, event));
    }

    /// Stops listening to `event`.
    pub(crate) fn ignore(&self, event: Arc<EventFd>) {
        self.change(Change::Ignore(event));
    }

    fn change(&self, change: Change<W>) {
        lock(&self.changes).push(change);
        self.changed.store(true, SeqCst);
        // The engine may be waiting for its old set of descriptors at this moment.
        self.sleep.over();
        self.signal();
    }

    /// Starts or stops polling a page.
    pub(crate) fn watch(&self, node: NodeId, page: W, what: Watching) {
        let page = Piece { node, work: page };
        {
            let mut changes = lock(&self.watch_changes);
            let latest = changes.iter().rev().find(|(known, _)| *known == page);
            // A guest may cause the same one often.
            if latest.is_some_and(|(_, latest)| *latest == what) {
                return;
            }
            changes.push((page, what));
        }
        self.watch_changed.store(true, SeqCst);
        self.wake();
    }
}
