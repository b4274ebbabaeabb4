//! What is handed to an engine: queues to run, deadlines to keep, doorbells to listen to or to
//! poll.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tofu_abi::{Doorbell, TniId};
use tofu_fabric::NodeId;
use tofu_sync::lock;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::error::Error;
use crate::wakeup::{Sleep, Watching};

/// A queue of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueId {
    pub(crate) node: NodeId,
    pub(crate) tni: TniId,
    pub(crate) bell: Doorbell,
}

/// What an engine is to do. Any thread may add to it.
pub(crate) struct Inbox {
    index: usize,
    pub(crate) wake: EventFd,
    pub(crate) sleep: Sleep,
    pub(crate) pending: Mutex<VecDeque<QueueId>>,
    /// The nodes whose work this is.
    pub(crate) nodes: Mutex<Vec<NodeId>>,
    /// Changes of the queues whose shared pages are watched.
    pub(crate) watch_changes: Mutex<Vec<(QueueId, Watching)>>,
    pub(crate) watch_changed: AtomicBool,
    /// Doorbell descriptors to start or to stop listening to.
    pub(crate) changes: Mutex<Vec<Change>>,
    pub(crate) changed: AtomicBool,
    /// Earliest deadline of the engine's nodes.
    pub(crate) deadline: AtomicU64,
}

/// A change of the doorbell descriptors that an engine listens to.
pub(crate) enum Change {
    Listen(QueueId, u64, Arc<EventFd>),
    Ignore(Arc<EventFd>),
}

impl Inbox {
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

    /// Queues a control queue or channel.
    pub(crate) fn enqueue(&self, node: NodeId, tni: TniId, bell: Doorbell) {
        lock(&self.pending).push_back(QueueId { node, tni, bell });
        self.wake();
    }

    /// Calls [`tofu_icc::Icc::expire`] of the engine's nodes at `deadline_ns`.
    pub(crate) fn want(&self, deadline_ns: u64) {
        if deadline_ns < self.deadline.fetch_min(deadline_ns, SeqCst) {
            self.wake();
        }
    }

    /// Runs a queue whenever `event` is signalled during this life of the queue.
    pub(crate) fn listen(
        &self,
        (node, tni, bell): (NodeId, TniId, Doorbell),
        life: u64,
        event: Arc<EventFd>,
    ) {
        self.change(Change::Listen(QueueId { node, tni, bell }, life, event));
    }

    /// Stops listening to `event`.
    pub(crate) fn ignore(&self, event: Arc<EventFd>) {
        self.change(Change::Ignore(event));
    }

    fn change(&self, change: Change) {
        lock(&self.changes).push(change);
        self.changed.store(true, SeqCst);
        // The engine may be waiting for its old set of descriptors at this moment.
        self.sleep.over();
        self.signal();
    }

    /// Starts or stops polling the shared page of a queue.
    pub(crate) fn watch(&self, node: NodeId, tni: TniId, bell: Doorbell, what: Watching) {
        lock(&self.watch_changes).push((QueueId { node, tni, bell }, what));
        self.watch_changed.store(true, SeqCst);
        self.wake();
    }
}
