//! The interrupt registers of a unit, and the word in memory that can replace some of them.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use tofu_abi::irq::IrqSet;
use tofu_inspect::{Hex, Inspect, Visit};
use tofu_sync::AtomicU64;
use vm_memory::VolatileMemory;

use crate::host::Host;
use crate::memory::{Access, DmaMemory, DmaResult};
use crate::observe::format::Requests;

/// The messages of a unit: those sent, and those lost while MSI-X was disabled. They are for
/// [rules](tofu_rules), so a reset does not clear them.
#[derive(Debug, Default)]
struct Messages {
    sent: std::sync::atomic::AtomicU64,
    lost: std::sync::atomic::AtomicU64,
}

/// IRR, IMR and ICL of one unit (CQS, BGS, TNI or TNR), whose requests are `S`.
#[derive(Debug)]
pub(crate) struct IrqUnit<S> {
    vector: u16,
    pending: AtomicU64,
    mask: AtomicU64,
    level: AtomicU64,
    messages: Messages,
    requests: PhantomData<S>,
}

impl<S: IrqSet> IrqUnit<S> {
    /// A unit whose requests go to `vector`. After reset all is masked.
    pub(crate) fn new(vector: u16) -> Self {
        Self {
            vector,
            pending: AtomicU64::new(0),
            mask: AtomicU64::new(u64::MAX),
            level: AtomicU64::new(0),
            messages: Messages::default(),
            requests: PhantomData,
        }
    }

    pub(crate) fn reset(&self) {
        self.pending.store(0, SeqCst);
        self.mask.store(u64::MAX, SeqCst);
        self.level.store(0, SeqCst);
    }

    /// Sends the message of the unit's vector.
    fn send(&self, host: &dyn Host) {
        let count = if host.sends_interrupts() { &self.messages.sent } else { &self.messages.lost };
        count.fetch_add(1, Relaxed);
        host.interrupt(self.vector);
    }

    /// The number of messages sent, and of those lost while MSI-X was disabled.
    pub(crate) fn messages(&self) -> (u64, u64) {
        let Messages { sent, lost } = &self.messages;
        (sent.load(Relaxed), lost.load(Relaxed))
    }

    /// Raises requests; a message is sent if one of them is new and not masked.
    pub(crate) fn request(&self, host: &dyn Host, requests: S) {
        let bits = requests.raw();
        if bits == 0 {
            return;
        }
        // SeqCst here and in `clear_mask`: if a request and an unmasking race, at least one must
        // see the other.
        let new = bits & !self.pending.fetch_or(bits, SeqCst);
        if new & !self.mask.load(SeqCst) != 0 {
            self.send(host);
        }
    }

    /// Sends the message that an [`Arm`] requested, if it is not masked. It is not latched in IRR.
    pub(crate) fn announce(&self, host: &dyn Host, requests: S) {
        if requests.raw() & !self.mask.load(SeqCst) != 0 {
            self.send(host);
        }
    }

    /// IRR.
    pub(crate) fn pending(&self) -> u64 {
        self.pending.load(SeqCst)
    }

    /// IMR.
    pub(crate) fn mask(&self) -> u64 {
        self.mask.load(SeqCst)
    }

    /// ICL.
    pub(crate) fn level(&self) -> u64 {
        self.level.load(SeqCst)
    }

    /// A write to IMR.
    pub(crate) fn set_mask(&self, bits: u64) {
        self.mask.fetch_or(bits, SeqCst);
    }

    /// A write to IRC.
    pub(crate) fn clear_pending(&self, bits: u64) {
        self.pending.fetch_and(!bits, SeqCst);
    }

    /// A write to IMC: unmasks, and sends a message for pending requests.
    pub(crate) fn clear_mask(&self, host: &dyn Host, bits: u64) {
        let unmasked = bits & self.mask.fetch_and(!bits, SeqCst);
        if unmasked & self.pending.load(SeqCst) != 0 {
            self.send(host);
        }
    }

    /// A write to ICL.
    pub(crate) fn set_level(&self, value: u64) {
        self.level.store(value, SeqCst);
    }
}

impl<S: IrqSet> Inspect for IrqUnit<S> {
    fn inspect(&self, visit: Visit<'_>) {
        let Self { vector, pending: _, mask: _, level: _, messages: _, requests: _ } = self;
        visit.tree(|tree| {
            tree.add("vector", vector);
            tree.add("pending", &Requests(S::from_raw(self.pending())));
            tree.add("masked", &Requests(S::from_raw(self.mask())));
            tree.add("level", &Hex(self.level()));
        });
    }
}

/// A word in the guest's memory in which its driver requests the next interrupt for entries. It
/// saves the guest a register access.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arm(pub(crate) u64);

impl Arm {
    /// Returns true if there is such a word; otherwise requests are kept in IRR.
    pub(crate) const fn is_used(self) -> bool {
        self.0 != 0
    }

    /// Takes the driver's request, and returns true if there was one. Must be called after the
    /// entries are written. The driver writes its request first and polls for entries afterwards,
    /// so either this sees the request or the driver sees the entries.
    ///
    /// # Errors
    ///
    /// If the word is not memory.
    #[inline(always)]
    pub(crate) fn take(self, memory: &(impl DmaMemory + ?Sized)) -> DmaResult<bool> {
        if let Some(slice) = memory.slice(self.0, 8)
            && let Ok(word) = slice.get_atomic_ref(0)
        {
            return Ok(asked(word));
        }
        let mut wanted = false;
        memory.word(self.0, Access::Update, &mut |word| wanted = asked(word))?;
        Ok(wanted)
    }
}

/// Takes a request by an [`Arm`].
#[inline]
fn asked(word: &std::sync::atomic::AtomicU64) -> bool {
    fence(SeqCst);
    word.load(Relaxed) != 0 && word.swap(0, SeqCst) != 0
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;
    use tofu_abi::irq::TniIrqs;
    use tofu_abi::{Doorbell, TniId};
    use tofu_fabric::{Port, PortCounters, XbCounters};

    const REQUEST: TniIrqs = TniIrqs::PBQ_UNDERFLOW;

    /// Counts interrupts.
    struct Counter(Mutex<u32>, Condvar);

    impl Counter {
        fn new() -> Self {
            Self(Mutex::new(0), Condvar::new())
        }

        fn count(&self) -> u32 {
            *self.0.lock().unwrap()
        }

        /// Sleeps until there are more than `seen`, and sees them.
        fn sleep(&self, seen: &mut u32) {
            let mut count = self.0.lock().unwrap();
            while *count == *seen {
                count = self.1.wait(count).unwrap();
            }
            *seen = *count;
        }
    }

    impl Host for Counter {
        fn interrupt(&self, _: u16) {
            *self.0.lock().unwrap() += 1;
            self.1.notify_all();
        }
        fn doorbell(&self, _: TniId, _: Doorbell) {}
        fn queue_enabled(&self, _: TniId, _: Doorbell, _: bool) {}
        fn timer(&self, _: u64) {}
        fn now_ns(&self) -> u64 {
            0
        }
        fn port_counters(&self, _: Port) -> PortCounters {
            PortCounters::default()
        }
        fn xb_counters(&self) -> XbCounters {
            XbCounters::default()
        }
    }

    struct Model {
        unit: IrqUnit<TniIrqs>,
        host: Counter,
    }

    fn model(driver: fn(&Model)) {
        loom::model(move || {
            let model = Arc::new(Model { unit: IrqUnit::new(0), host: Counter::new() });
            let other = Arc::clone(&model);
            let device = thread::spawn(move || other.unit.request(&other.host, REQUEST));
            driver(&model);
            device.join().unwrap();
            let pending = model.unit.pending() & !model.unit.mask();
            let sent = model.host.count();
            assert!(pending == 0 || sent > 0, "a request is pending and unmasked, unannounced");
        });
    }

    #[test]
    fn loom_unmasked_request_is_announced() {
        model(|m| m.unit.clear_mask(&m.host, REQUEST.raw()));
    }

    #[test]
    fn loom_request_after_clearing_is_announced() {
        model(|m| {
            m.unit.clear_mask(&m.host, REQUEST.raw());
            m.unit.set_mask(1);
            // The driver polls here, so the requests that it clears are not lost.
            m.unit.clear_pending(REQUEST.raw());
            m.unit.clear_mask(&m.host, REQUEST.raw());
        });
    }

    /// A barrier channel whose round 1 has ended.
    struct Barrier {
        unit: IrqUnit<TniIrqs>,
        host: Counter,
        gates: Mutex<Gates>,
    }

    /// The state under the lock of an interface's gates, and the notice.
    #[derive(Default)]
    struct Gates {
        started: bool,
        signalled: bool,
        /// The notice of round 2 is written.
        ended: bool,
    }

    impl Barrier {
        /// Does something that may end the round; the interrupt is requested after the lock.
        fn change(&self, change: impl FnOnce(&mut Gates)) {
            let mut gates = self.gates.lock().unwrap();
            change(&mut gates);
            gates.ended = gates.started && gates.signalled;
            let ended = gates.ended;
            drop(gates);
            if ended {
                self.unit.request(&self.host, REQUEST);
            }
        }

        fn has_ended(&self) -> bool {
            self.gates.lock().unwrap().ended
        }
    }

    /// The driver's `Channel::wait`, while the request for the end of the round before comes late.
    /// A lost interrupt is a deadlock, which loom finds.
    #[test]
    fn loom_waiter_for_a_round_wakes_up() {
        // Three threads: every order with up to three preemptions, as loom advises.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let barrier = Arc::new(Barrier {
                unit: IrqUnit::new(0),
                host: Counter::new(),
                gates: Mutex::default(),
            });
            barrier.unit.clear_mask(&barrier.host, REQUEST.raw());
            let (late, signal) = (Arc::clone(&barrier), Arc::clone(&barrier));
            let late = thread::spawn(move || late.unit.request(&late.host, REQUEST));
            let signal = thread::spawn(move || signal.change(|gates| gates.signalled = true));
            barrier.change(|gates| {
                barrier.unit.clear_pending(REQUEST.raw());
                gates.started = true;
            });
            let mut seen = 0;
            while !barrier.has_ended() {
                barrier.host.sleep(&mut seen);
                if barrier.has_ended() {
                    break;
                }
                barrier.unit.clear_pending(REQUEST.raw());
            }
            late.join().unwrap();
            signal.join().unwrap();
        });
    }
}
