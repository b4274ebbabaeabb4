//! The state of endpoints, and how completions get into queues.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};

use super::abi::{self, CqEntry, Fid, NoOps, OpsCm, OpsEp, OpsMsg, OpsTagged};
use super::av::Vector;
use super::counter::Count;
use super::cq::{Item, Queue};
use super::info::ADDRESS;
use super::object::lock;
use super::progress::Progress;
use crate::core::{Address, Completion, Endpoint as Core, Failure, Finished};
use crate::tofucom::Tofucom;

/// The queue and counter that report the ends of sends or receives.
#[derive(Default)]
struct Reports {
    queue: OnceLock<Arc<Queue>>,
    /// Only those that are asked for.
    selective: AtomicBool,
    count: OnceLock<Arc<Count>>,
}

/// The state that the functions of an endpoint share.
pub(super) struct Shared {
    core: Mutex<Core<Tofucom>>,
    pub(super) av: OnceLock<Arc<Mutex<Vector>>>,
    sends: Reports,
    receives: Reports,
    /// Flags of operations that have none.
    pub(super) send_flags: u64,
    pub(super) receive_flags: u64,
    pub(super) least_room: AtomicUsize,
    pub(super) name: [u8; ADDRESS],
}

impl Shared {
    /// The state of a new endpoint.
    pub(super) fn new(core: Core<Tofucom>, name: [u8; ADDRESS], flags: [u64; 2]) -> Self {
        let [send_flags, receive_flags] = flags;
        Self {
            core: Mutex::new(core),
            av: OnceLock::new(),
            sends: Reports::default(),
            receives: Reports::default(),
            send_flags,
            receive_flags,
            least_room: AtomicUsize::new(64),
            name,
        }
    }

    /// Runs an operation.
    pub(super) fn with<R>(&self, operation: impl FnOnce(&mut Core<Tofucom>) -> R) -> R {
        operation(&mut lock(&self.core))
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

    /// Binds a queue.
    pub(super) fn bind_queue(self: &Arc<Self>, queue: &Arc<Queue>, flags: u64) {
        queue.endpoints.add(self);
        for (flag, reports) in [(abi::SEND, &self.sends), (abi::RECV, &self.receives)] {
            if flags & flag != 0 {
                let _ = reports.queue.set(Arc::clone(queue));
                reports.selective.store(flags & abi::SELECTIVE_COMPLETION != 0, SeqCst);
            }
        }
    }

    /// Binds a counter. One that is bound for RMA only counts nothing.
    pub(super) fn bind_counter(self: &Arc<Self>, count: &Arc<Count>, flags: u64) {
        count.endpoints.add(self);
        for (flag, reports) in [(abi::SEND, &self.sends), (abi::RECV, &self.receives)] {
            if flags & flag != 0 {
                let _ = reports.count.set(Arc::clone(count));
            }
        }
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
        let reports = match completion.finished {
            Finished::Send => &self.sends,
            Finished::Receive => &self.receives,
        };
        if let Some(count) = reports.count.get() {
            count.count(completion.failure.is_none());
        }
        if !completion.wanted && completion.failure.is_none() {
            return;
        }
        let Some(queue) = reports.queue.get() else { return };
        let number = completion.source.and_then(|source| lock(self.av.get()?).number(source));
        let error = completion.failure.map(|failure| match failure {
            Failure::Unreachable => (abi::EHOSTUNREACH, 0),
            Failure::Truncated(over) => (abi::ETRUNC, over),
            Failure::Canceled => (abi::ECANCELED, 0),
            Failure::NoMessage => (abi::ENOMSG, 0),
            Failure::NoRoom => (abi::ENOMEM, 0),
        });
        let entry = CqEntry {
            context: completion.context,
            flags: flags(completion),
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
}

/// Returns the flags of a completion.
fn flags(completion: &Completion) -> u64 {
    let released = if completion.released { abi::MULTI_RECV } else { 0 };
    if completion.released && completion.source.is_none() {
        return released;
    }
    let kind = if completion.tagged { abi::TAGGED } else { abi::MSG };
    let direction = match completion.finished {
        Finished::Send => abi::SEND,
        Finished::Receive => abi::RECV,
    };
    let data = if completion.data.is_some() { abi::REMOTE_CQ_DATA } else { 0 };
    kind | direction | data | released
}

/// The object that libfabric sees.
#[repr(C)]
pub(super) struct Endpoint {
    pub(super) fid: Fid,
    pub(super) ops: *const OpsEp,
    pub(super) cm: *const OpsCm,
    pub(super) msg: *const OpsMsg,
    pub(super) rma: *const NoOps<9>,
    pub(super) tagged: *const OpsTagged,
    pub(super) atomic: *const NoOps<13>,
    pub(super) collective: *const NoOps<12>,
    pub(super) shared: Arc<Shared>,
}
