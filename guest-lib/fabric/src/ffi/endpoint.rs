//! Endpoints: opening, binding, and how completions get into queues.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use super::abi::{
    self, CqEntry, Fid, Info, NoOps, Ops, OpsCm, OpsEp, OpsMsg, OpsTagged, absent, class,
};
use super::av::{Av, Vector, write_address};
use super::counter::{Count, Counter};
use super::cq::{Cq, Item, Queue};
use super::info::ADDRESS;
use super::messages::{MSG_OPS, TAGGED_OPS};
use super::{give, guard, lock, of, take};
use crate::core::{Address, Completion, Endpoint as Core, Failure, Finished};
use crate::tofucom::Tofucom;

/// The time that the end of an endpoint waits for what was sent.
const AT_CLOSE: Duration = Duration::from_secs(2);

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
    av: OnceLock<Arc<Mutex<Vector>>>,
    sends: Reports,
    receives: Reports,
    /// Flags of operations that have none.
    pub(super) send_flags: u64,
    pub(super) receive_flags: u64,
    least_room: AtomicUsize,
    name: [u8; ADDRESS],
}

impl Shared {
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

    /// Makes progress, and reports what has ended.
    pub(super) fn progress(&self) {
        let mut core = lock(&self.core);
        // Progress may rest, which what has ended must not wait for.
        if self.report(&mut core) == 0 {
            core.progress();
            self.report(&mut core);
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

#[repr(C)]
pub(super) struct Endpoint {
    fid: Fid,
    ops: *const OpsEp,
    cm: *const OpsCm,
    msg: *const OpsMsg,
    rma: *const NoOps<9>,
    tagged: *const OpsTagged,
    atomic: *const NoOps<13>,
    collective: *const NoOps<12>,
    pub(super) shared: Arc<Shared>,
}

static ENDPOINT: Ops = Ops { bind, control, ..Ops::closing(close) };
static EP_OPS: OpsEp = OpsEp {
    size: size_of::<OpsEp>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: absent,
    rx_ctx: absent,
    rx_size_left: absent,
    tx_size_left: absent,
};
static CM_OPS: OpsCm =
    OpsCm { size: size_of::<OpsCm>(), setname: absent, getname, others: [absent; 7] };
static NO_RMA: NoOps<9> = NoOps::new();
static NO_ATOMICS: NoOps<13> = NoOps::new();
static NO_COLLECTIVES: NoOps<12> = NoOps::new();

pub(super) unsafe extern "C" fn open(
    _domain: *mut Fid,
    info: *mut Info,
    endpoint: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(abi::OTHER, || {
        let Some(device) = Tofucom::open() else { return -libc::ENODEV };
        let core = Core::new(device);
        let name = name(&core);
        // SAFETY: guaranteed by the caller.
        let (send_flags, receive_flags) = unsafe {
            let info = info.as_ref();
            let tx = info.and_then(|info| info.tx_attr.as_ref());
            let rx = info.and_then(|info| info.rx_attr.as_ref());
            (tx.map_or(0, |tx| tx.op_flags), rx.map_or(0, |rx| rx.op_flags))
        };
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            av: OnceLock::new(),
            sends: Reports::default(),
            receives: Reports::default(),
            send_flags,
            receive_flags,
            least_room: AtomicUsize::new(64),
            name,
        });
        let new = Endpoint {
            fid: Fid { class: class::EP, context, ops: &ENDPOINT },
            ops: &EP_OPS,
            cm: &CM_OPS,
            msg: &MSG_OPS,
            rma: &NO_RMA,
            tagged: &TAGGED_OPS,
            atomic: &NO_ATOMICS,
            collective: &NO_COLLECTIVES,
            shared,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give(new, endpoint) }
    })
}

/// Returns an endpoint's address: the ID of its queue, and a number that an endpoint which had the
/// queue before it does not have.
fn name(core: &Core<Tofucom>) -> [u8; ADDRESS] {
    let start = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let mut name = [0; ADDRESS];
    name[..8].copy_from_slice(&core.address().0.to_le_bytes());
    name[8..].copy_from_slice(&start.to_le_bytes());
    name
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: the table is for endpoints.
        let endpoint = unsafe { take::<Endpoint>(fid) };
        endpoint.shared.with(|core| core.drain(AT_CLOSE));
        0
    })
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        let shared = unsafe { &of::<Endpoint>(fid).shared };
        // SAFETY: all objects begin with a `Fid`, and its class says what they are.
        unsafe {
            match (*other).class {
                class::AV => {
                    let vector = Arc::clone(&of::<Av>(other).vector);
                    if shared.av.set(vector).is_err() {
                        return abi::INVALID;
                    }
                }
                class::CQ => bind_queue(shared, &of::<Cq>(other).queue, flags),
                class::CNTR => bind_counter(shared, &of::<Counter>(other).count, flags),
                class::EQ => {}
                _ => return abi::INVALID,
            }
        }
        0
    })
}

fn bind_queue(shared: &Arc<Shared>, queue: &Arc<Queue>, flags: u64) {
    queue.bind(shared);
    for (flag, reports) in [(abi::SEND, &shared.sends), (abi::RECV, &shared.receives)] {
        if flags & flag != 0 {
            let _ = reports.queue.set(Arc::clone(queue));
            reports.selective.store(flags & abi::SELECTIVE_COMPLETION != 0, SeqCst);
        }
    }
}

/// A counter that is bound for RMA only counts nothing.
fn bind_counter(shared: &Arc<Shared>, count: &Arc<Count>, flags: u64) {
    count.bind(shared);
    for (flag, reports) in [(abi::SEND, &shared.sends), (abi::RECV, &shared.receives)] {
        if flags & flag != 0 {
            let _ = reports.count.set(Arc::clone(count));
        }
    }
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    guard(abi::OTHER, || {
        if command != abi::CONTROL_ENABLE {
            return abi::NO_FUNCTION;
        }
        // SAFETY: guaranteed by the caller.
        let shared = unsafe { &of::<Endpoint>(fid).shared };
        if shared.av.get().is_none() { abi::BAD_STATE } else { 0 }
    })
}

unsafe extern "C" fn getname(fid: *mut Fid, to: *mut u8, size: *mut usize) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let small = size.read() < ADDRESS;
            write_address(&of::<Endpoint>(fid).shared.name, to, size);
            // `FI_ETOOSMALL`.
            if small { -257 } else { 0 }
        }
    })
}

unsafe extern "C" fn cancel(fid: *mut Fid, context: usize) -> isize {
    guard(abi::OTHER as isize, || {
        // SAFETY: guaranteed by the caller.
        let shared = unsafe { &of::<Endpoint>(fid).shared };
        let found = shared.with(|core| core.cancel(context));
        if found { 0 } else { -abi::ENOENT as isize }
    })
}

unsafe extern "C" fn getopt(
    fid: *mut Fid,
    level: c_int,
    option: c_int,
    value: *mut usize,
    size: *mut usize,
) -> c_int {
    guard(abi::OTHER, || {
        if level != 0 || option != abi::OPT_MIN_MULTI_RECV {
            return abi::NO_FUNCTION;
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            if size.read() < size_of::<usize>() {
                return abi::INVALID;
            }
            value.write(of::<Endpoint>(fid).shared.least_room());
            size.write(size_of::<usize>());
        }
        0
    })
}

unsafe extern "C" fn setopt(
    fid: *mut Fid,
    level: c_int,
    option: c_int,
    value: *const usize,
    size: usize,
) -> c_int {
    guard(abi::OTHER, || {
        if level != 0 || option != abi::OPT_MIN_MULTI_RECV {
            return abi::NO_FUNCTION;
        }
        if size != size_of::<usize>() {
            return abi::INVALID;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { of::<Endpoint>(fid).shared.least_room.store(value.read(), SeqCst) };
        0
    })
}
