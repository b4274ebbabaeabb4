// SPDX-License-Identifier: GPL-2.0

//! The link of a queue: both directions, and their interrupts.

use kernel::ffi::c_int;
use kernel::irq::{self as kirq, IrqReturn};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, new_spinlock, Arc, Mutex, SpinLock};
use kernel::types::NotThreadSafe;

use tofu_abi::irq::vector;
use tofu_abi::TniId;
use tofu_ipotofu::neighbor::LocalNode;

use super::ethtool::{self, QueueCounters};
use super::rx::{Rx, Sides, Step};
use super::tx::{self, Tx};
use crate::device::Device;
use crate::engine::{now_ns, Health, Peers};
use crate::packets::{KeptMemory, Receiver, Sender};
use crate::shim;
use crate::skb::Skb;
use crate::tx_queue::TxQueue;

/// The interrupts of an interface that is up.
struct Irqs {
    _packets: Pin<KBox<kirq::Registration<'static, Handler>>>,
    _sent: Pin<KBox<kirq::Registration<'static, Handler>>>,
}

/// The interrupt handler only schedules a poll of the interface.
struct Handler {
    queue: TxQueue<'static>,
    link: Arc<Link>,
}

impl kirq::Handler for Handler {
    fn handle(&self) -> IrqReturn {
        self.link.interrupts.add(1, Relaxed);
        self.queue.schedule_napi();
        IrqReturn::Handled
    }
}

/// The position of a link in its interface.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The TNI of its queue.
    pub(super) tni: TniId,
    /// The number of its queue, from 0 on.
    pub(super) number: u8,
    /// The number of queues of the interface.
    pub(super) queues: u8,
}

/// The link of one of an interface's queues to the other nodes.
#[pin_data]
pub(super) struct Link {
    device: Arc<Device>,
    pub(super) node: LocalNode,
    pub(super) tni: TniId,
    /// The number of queues the interface has, in use or not.
    pub(super) queues: u8,
    #[pin]
    pub(super) tx: SpinLock<Tx>,
    #[pin]
    pub(super) rx: SpinLock<Rx>,
    #[pin]
    irqs: Mutex<Option<Irqs>>,
    kept: KeptMemory,
    interrupts: Atomic<u64>,
    peers: Arc<Peers>,
    health: Arc<Health>,
    /// True if reports of dead links use this link.
    reports: bool,
    pub(super) coalesce_us: Atomic<u32>,
    pub(super) coalesce_packets: Atomic<u32>,
}

impl Link {
    pub(super) fn new(
        device: &Arc<Device>,
        node: LocalNode,
        place: Place,
        peers: Arc<Peers>,
        health: Arc<Health>,
    ) -> Result<Arc<Self>> {
        let Place {
            tni,
            number,
            queues,
        } = place;
        let reports = tni.get() == 0;
        let tx = Tx::new(node, tni, queues - 1, health.clone(), reports)?;
        let rx = Rx::new(&node, number)?;
        let kept = KeptMemory::new(device)?;
        Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                node,
                tni,
                queues,
                tx <- new_spinlock!(tx),
                rx <- new_spinlock!(rx),
                irqs <- new_mutex!(None),
                kept,
                interrupts: Atomic::new(0),
                peers,
                health,
                reports,
                coalesce_us: Atomic::new(0),
                coalesce_packets: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Opens the queues of the TNI.
    ///
    /// # Safety
    ///
    /// [`Self::stop`] must be called before the interface of `queue` is freed.
    pub(super) unsafe fn open(self: &Arc<Self>, queue: TxQueue<'static>) -> Result {
        let sender = Sender::open(&self.device, self.tni, &self.kept)?;
        let receiver = Receiver::open(&self.device, self.tni)?;
        receiver.coalesce(
            u64::from(self.coalesce_us.load(Relaxed)) * 1000,
            self.coalesce_packets.load(Relaxed).into(),
        );
        let irq = |number| -> Result<_> {
            let request = self.device.vector(number).ok_or(ENODEV)?;
            let handler = Handler {
                queue,
                link: self.clone(),
            };
            // SAFETY: it is never leaked: it is dropped when the interface is stopped, at the
            // latest when it is removed.
            let registration = unsafe {
                kirq::Registration::new(request, kirq::Flags::SHARED, c"tofu-net", Ok(handler))
            };
            KBox::try_pin_init(registration, GFP_KERNEL)
        };
        let irqs = Irqs {
            _packets: irq(vector::tni(self.tni))?,
            _sent: irq(vector::cq(self.tni, self.device.description().kernel_cq()))?,
        };
        *self.irqs.lock() = Some(irqs);
        let _quiet = Quiet::new();
        let mut rx = self.rx.lock();
        rx.receiver = Some(receiver);
        let mut tx = self.tx.lock();
        tx.start(sender, now_ns());
        queue.set_carrier(tx.outbound.ports().carrier());
        Ok(())
    }

    pub(super) fn stop(&self) {
        // Without the other locks, because all of this may sleep.
        let irqs = self.irqs.lock().take();
        drop(irqs);
        let (sender, receiver);
        {
            let _quiet = Quiet::new();
            let mut rx = self.rx.lock();
            receiver = rx.receiver.take();
            rx.state.clear();
            sender = self.tx.lock().sender.take();
        }
        drop(receiver);
        drop(sender);
    }

    /// See [`Tx::xmit`].
    pub(super) fn xmit(&self, queue: TxQueue<'_>, skb: Skb, more: bool) -> Result<(), Skb> {
        self.tx.lock().xmit(&self.peers, queue, skb, more)
    }

    /// The queue for a frame for which the stack has chosen one.
    pub(super) fn select(&self, skb: &Skb, chosen: u16) -> u16 {
        tx::select(&self.node, &self.peers, skb, chosen)
    }

    fn sides(&self) -> Sides<'_> {
        Sides {
            tni: self.tni,
            tx: &self.tx,
            peers: &self.peers,
            health: self.reports.then_some(&*self.health),
        }
    }

    /// Receives up to `budget` packets. Returns how many.
    pub(super) fn poll(&self, queue: TxQueue<'_>, budget: c_int) -> c_int {
        let now = now_ns();
        // Packets that arrive during the poll need not interrupt it.
        if let Some(receiver) = self.rx.lock().receiver.as_ref() {
            receiver.disarm();
        }
        self.tx.lock().begin_poll(now);
        let mut done = 0;
        while done < budget {
            let step = self.rx.lock().step(&self.sides(), queue, now);
            match step {
                Step::Idle => break,
                Step::Wait(nanoseconds) => {
                    queue.start_hrtimer(nanoseconds);
                    break;
                }
                Step::Done => {}
                // Without locks, because the stack may answer within this call.
                Step::Frame(frame, metadata) => {
                    if !frame.receive(queue, &metadata) {
                        self.rx.lock().state.inbound.count().malformed += 1;
                    }
                }
            }
            done += 1;
        }
        let mut rx = self.rx.lock();
        let mut tx = self.tx.lock();
        rx.state.fetches.answer(true, &mut tx.queue(now));
        drop(rx);
        // Work for which other nodes wait comes before the stack's.
        if tx.gets.are_untold() {
            tx.flush();
        }
        tx.received(done);
        done
    }

    /// Ends a poll: rings the doorbell for what was posted, by this side and by the stack. Work
    /// that no other node waits for comes after that. With `idle`, makes the next packet raise an
    /// interrupt. Returns true if there is already more to do.
    pub(super) fn polled(&self, queue: TxQueue<'_>, idle: bool) -> bool {
        let now = now_ns();
        let mut tx = self.tx.lock();
        tx.uncork();
        tx.reap(now);
        tx.expire(now);
        tx.settle(now);
        tx.account(queue);
        let carrier = tx.outbound.ports_mut().news();
        let goes_on = tx.goes_on(&self.peers, now);
        drop(tx);
        if let Some(on) = carrier {
            queue.set_carrier(on);
        }
        if goes_on && queue.is_stopped() {
            queue.wake_queue();
        }
        idle && self.rearm(queue, now)
    }

    /// Announces this number of the interface's queues to other nodes.
    pub(super) fn set_queues(&self, queues: u8) {
        let _quiet = Quiet::new();
        let mut tx = self.tx.lock();
        tx.outbound.set_more_queues(queues.saturating_sub(1));
    }

    /// Called every second while the interface is up.
    pub(super) fn service(&self, queue: TxQueue<'_>) {
        // One link does this for the whole node.
        let suspect = self.reports && self.device.has_met_dead_link();
        let mut tx = self.tx.lock();
        if suspect {
            tx.outbound.ports_mut().suspect();
        }
        let timer = tx.look_at_ports();
        drop(tx);
        if timer {
            queue.start_timer();
        }
    }

    /// Makes the next packet raise an interrupt. Returns true if there is already more to do.
    fn rearm(&self, queue: TxQueue<'_>, now: u64) -> bool {
        let rx = self.rx.lock();
        let ready = rx.receiver.as_ref().is_some_and(Receiver::rearm);
        // A packet that waits for a frame is handled when the frame arrives, or when it has waited
        // long enough.
        let ready = ready && !rx.state.fetches.is_holding();
        let fetching = rx.state.fetches.are_under_way();
        drop(rx);
        let mut tx = self.tx.lock();
        if let Some(sender) = tx.sender.as_ref() {
            sender.rearm();
        }
        tx.reap(now);
        tx.account(queue);
        tx.flush();
        let settled = tx.is_settled() && !fetching;
        let ready = ready || tx.gets.are_due(now);
        if !settled {
            queue.start_timer();
        }
        ready
    }

    /// Adds the counters of this queue.
    pub(super) fn counters(&self, values: &mut [u64]) {
        let mut engine = self.rx.lock().state.inbound.counters();
        let tx = self.tx.lock();
        engine += tx.outbound.counters();
        let queue = QueueCounters {
            interrupts: self.interrupts.load(Relaxed),
            ..tx.counters
        };
        drop(tx);
        ethtool::add(values, &engine, &queue, |reg| {
            self.device.read(self.tni, reg)
        });
    }
}

/// Bottom halves are disabled on this processor as long as this lives.
pub(super) struct Quiet(NotThreadSafe);

impl Quiet {
    pub(super) fn new() -> Self {
        // SAFETY: it may be nested; `drop` enables them again, on the same processor.
        unsafe { shim::tofu_shim_local_bh(true) };
        Self(NotThreadSafe)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: `new` disabled them, on this processor, because a guard is not moved to another.
        unsafe { shim::tofu_shim_local_bh(false) };
    }
}
