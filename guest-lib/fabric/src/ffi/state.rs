//! The state of endpoints, and how completions get into queues.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};

use super::abi::{self, CqEntry, Fid, NoOps, OpsAtomic, OpsCm, OpsEp, OpsMsg, OpsRma, OpsTagged};
use super::av::Vector;
use super::counter::{Count, Counts};
use super::cq::{Item, Queue};
use super::info::ADDRESS;
use super::object::lock;
use super::progress::Progress;
use super::table::Table;
use crate::core::{Address, Busy, Completion, Endpoint as Core, Failure, Finished};
use crate::tofucom::Tofucom;

/// The context of an operation whose end is counted only.
pub(super) const NO_CONTEXT: usize = usize::MAX;

/// The queue that reports completions of this endpoint's sends, or of its receives.
#[derive(Default)]
struct Reports {
    queue: OnceLock<Arc<Queue>>,
    /// True if only requested completions are reported.
    selective: AtomicBool,
}

/// The state that the functions of an endpoint share.
pub(super) struct Shared {
    core: Mutex<Core<Tofucom>>,
    pub(super) av: OnceLock<Arc<Mutex<Vector>>>,
    sends: Reports,
    receives: Reports,
    counts: Counts,
    table: Arc<Table>,
    /// Flags of operations that have none.
    pub(super) send_flags: u64,
    pub(super) receive_flags: u64,
    /// True if the program has requested directed receives, which take messages of one peer only.
    pub(super) is_directed: bool,
    pub(super) least_room: AtomicUsize,
    pub(super) name: [u8; ADDRESS],
}

impl Shared {
    /// The state of a new endpoint.
    pub(super) fn new(
        core: Core<Tofucom>,
        table: Arc<Table>,
        name: [u8; ADDRESS],
        flags: [u64; 2],
        is_directed: bool,
    ) -> Self {
        let [send_flags, receive_flags] = flags;
        Self {
            core: Mutex::new(core),
            av: OnceLock::new(),
            sends: Reports::default(),
            receives: Reports::default(),
            counts: Counts::default(),
            table,
            send_flags,
            receive_flags,
            is_directed,
            least_room: AtomicUsize::new(64),
            name,
        }
    }

    /// Runs an operation.
    pub(super) fn with<R>(&self, operation: impl FnOnce(&mut Core<Tofucom>) -> R) -> R {
        operation(&mut lock(&self.core))
    }

    /// Begins an operation. Returns the code.
    pub(super) fn try_with(
        &self,
        operation: impl FnOnce(&mut Core<Tofucom>) -> Result<(), Busy>,
    ) -> isize {
        // Not every program makes progress before it tries again.
        let begun = self.with(|core| operation(core).inspect_err(|_| core.progress()));
        begun.map_or(abi::AGAIN, |()| 0)
    }

    /// Returns the address of this number.
    pub(super) fn address(&self, number: u64) -> Option<Address> {
        lock(self.av.get()?).get(number)
    }

    /// Returns whether the program wants to know the end of a send with these flags.
    pub(super) fn wants_send(&self, flags: u64) -> bool {
        !self.sends.selective.load(SeqCst) || flags & abi::COMPLETION != 0
    }

    /// Returns whether the program wants to know the end of a receive with these flags.
    pub(super) fn wants_receive(&self, flags: u64) -> bool {
        !self.receives.selective.load(SeqCst) || flags & abi::COMPLETION != 0
    }

    /// The room below which memory for several messages takes no more.
    pub(super) fn least_room(&self) -> usize {
        self.least_room.load(SeqCst)
    }

    /// Binds a queue. Returns whether it can be waited for as it wants.
    pub(super) fn bind_queue(self: &Arc<Self>, queue: &Arc<Queue>, flags: u64) -> bool {
        queue.endpoints.add(self);
        let descriptor = || self.with(|core| core.transport().descriptor());
        let can_wait =
            queue.wait.get().is_none_or(|wait| descriptor().is_some_and(|fd| wait.add(fd)));
        for (flag, reports) in [(abi::SEND, &self.sends), (abi::RECV, &self.receives)] {
            if flags & flag != 0 {
                let _ = reports.queue.set(Arc::clone(queue));
                reports.selective.store(flags & abi::SELECTIVE_COMPLETION != 0, SeqCst);
            }
        }
        can_wait
    }

    /// Binds a counter.
    pub(super) fn bind_counter(self: &Arc<Self>, count: &Arc<Count>, flags: u64) {
        count.endpoints.add(self);
        self.counts.bind(count, flags);
    }

    fn report(&self, core: &mut Core<Tofucom>) -> usize {
        let mut reported = 0;
        while let Some(completion) = core.completion() {
            self.report_one(&completion);
            reported += 1;
        }
        reported
    }

    fn report_one(&self, completion: &Completion) {
        let direction = flags(completion);
        // Several messages may have had one receive, which is no message then.
        self.counts.count(direction, completion.failure.is_none());
        if let Some(counts) = completion.key.and_then(|key| self.table.counts(key)) {
            counts.count(direction, completion.failure.is_none());
        }
        if completion.context == NO_CONTEXT || !completion.wanted && completion.failure.is_none() {
            return;
        }
        let reports = match completion.finished {
            Finished::Receive | Finished::PeerRead | Finished::PeerWrite => &self.receives,
            _ => &self.sends,
        };
        let Some(queue) = reports.queue.get() else { return };
        let number = completion.source.and_then(|source| lock(self.av.get()?).number(source));
        let error = completion.failure.map(|failure| match failure {
            Failure::Unreachable => (abi::EHOSTUNREACH, 0),
            Failure::Truncated(over) => (abi::ETRUNC, over),
            Failure::Canceled => (abi::ECANCELED, 0),
            Failure::NoMessage => (abi::ENOMSG, 0),
            Failure::Refused => (abi::EACCES, 0),
            Failure::NoRoom => (abi::ENOMEM, 0),
        });
        let entry = CqEntry {
            context: completion.context,
            flags: direction,
            length: completion.length,
            buffer: completion.buffer,
            data: completion.data.unwrap_or(0),
            tag: completion.tag,
        };
        queue.push(Item { entry, source: number.unwrap_or(abi::ADDR_UNSPEC), error });
    }
}

impl Progress for Shared {
    fn progress(&self) {
        let mut core = lock(&self.core);
        // Progress may rest, which what has ended must not wait for.
        if self.report(&mut core) == 0 {
            core.progress();
            self.report(&mut core);
        }
    }

    fn is_quiet(&self) -> bool {
        self.with(Core::is_quiet)
    }
}

/// Returns the flags of a completion.
fn flags(completion: &Completion) -> u64 {
    let released = if completion.released { abi::MULTI_RECV } else { 0 };
    if completion.released && completion.source.is_none() {
        return released;
    }
    let message = if completion.tagged { abi::TAGGED } else { abi::MSG };
    let kind = match completion.finished {
        Finished::Send => message | abi::SEND,
        Finished::Receive => message | abi::RECV,
        Finished::Read => abi::RMA | abi::READ,
        Finished::Write => abi::RMA | abi::WRITE,
        Finished::Atomic => abi::ATOMIC | abi::WRITE,
        Finished::FetchAtomic => abi::ATOMIC | abi::READ,
        Finished::PeerRead => abi::RMA | abi::REMOTE_READ,
        Finished::PeerWrite => abi::RMA | abi::REMOTE_WRITE,
    };
    let data = if completion.data.is_some() { abi::REMOTE_CQ_DATA } else { 0 };
    kind | data | released
}

/// The object that libfabric sees.
#[repr(C)]
pub(super) struct Endpoint {
    pub(super) fid: Fid,
    pub(super) ops: *const OpsEp,
    pub(super) cm: *const OpsCm,
    pub(super) msg: *const OpsMsg,
    pub(super) rma: *const OpsRma,
    pub(super) tagged: *const OpsTagged,
    pub(super) atomic: *const OpsAtomic,
    pub(super) collective: *const NoOps<12>,
    pub(super) shared: Arc<Shared>,
}
