// SPDX-License-Identifier: GPL-2.0

//! `tofu0`: a network interface whose frames go to other nodes by system packets.
//!
//! What goes over the wire is defined in the crate `tofu_ipotofu`, from the sources of the
//! library of that name; what is here differs from it in the memory that frames lie in. netdev.c
//! forwards what the kernel asks of an interface.
//!
//! `interface` is what the kernel sees, `tx` and `rx` are the two directions, `spread` has the
//! broadcasts, `carrier` the state of the ports, `frame` the kernel's frames, `long` the frames
//! that are fetched, `known` what is known of other nodes, `counts` the counters.
//!
//! An interface has one to three queues, each a [`Link`] over a TNI of its own. The first one is
//! what every node has; frames to one node may go by the others if that node listens there, too.
//!
//! Two locks of each, `rx` before `tx`. Both are taken with software interrupts off, by the stack
//! when it sends and polls, and by netdev.c for all others.

use kernel::ffi::c_int;
use kernel::irq::{self as kirq, IrqReturn};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::{new_mutex, new_spinlock, Arc, Mutex, SpinLock};
use kernel::time::{ClockSource, Monotonic};

use tofu_abi::irq::vector;
use tofu_abi::regs::KERNEL_CQ;
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, TniId};

use crate::device::Device;
use crate::packets::{Receiver, Sender};
use crate::shim::{self, NetQueue};

mod carrier;
mod counts;
mod frame;
mod interface;
mod known;
mod long;
mod rx;
mod spread;
mod tx;

use carrier::Ports;
use counts::{Count, COUNTS, REGISTERS};
pub(crate) use interface::{interfaces, Interfaces};
use known::Takers;
use rx::{Rx, Step};
use tx::Tx;

fn now_ns() -> u64 {
    Monotonic::ktime_get() as u64
}

/// The interrupts of an interface that is up.
struct Irqs {
    _packets: Pin<KBox<kirq::Registration<'static, Handler>>>,
    _sent: Pin<KBox<kirq::Registration<'static, Handler>>>,
}

/// All that an interrupt does is to have the interface polled.
struct Handler {
    queue: *mut NetQueue,
    link: Arc<Link>,
    /// That of the control queue, not of the packets.
    sent: bool,
}

// SAFETY: the interface may be told from any processor.
unsafe impl Send for Handler {}
// SAFETY: as above.
unsafe impl Sync for Handler {}

impl kirq::Handler for Handler {
    fn handle(&self) -> IrqReturn {
        self.link.interrupts.add(1, Relaxed);
        let fired = match self.sent {
            true => &self.link.sent,
            false => &self.link.fired,
        };
        fired.store(1, Relaxed);
        // SAFETY: the interrupt is given back before the interface goes.
        unsafe { shim::tofu_shim_net_schedule(self.queue) };
        IrqReturn::Handled
    }
}

/// What other nodes have said of themselves, to whichever queue.
struct Heard {
    /// Nodes that take frames that are not finished.
    takers: Takers,
    /// Nodes that fetch frames that are offered to them.
    fetchers: Takers,
    /// Nodes that listen at the second queue's TNI, and the third one's.
    listeners: [Takers; MAX_QUEUES - 1],
}

impl Heard {
    fn new() -> Result<Arc<Self>> {
        let heard = Self {
            takers: Takers::new()?,
            fetchers: Takers::new()?,
            listeners: [Takers::new()?, Takers::new()?],
        };
        Ok(Arc::new(heard, GFP_KERNEL)?)
    }

    /// Takes note of what the packet of a node says of it.
    fn learn(&self, from: Coords, fetches: bool, more_queues: u8, now: u64) {
        self.fetchers.learn(from, fetches, now);
        for (n, listeners) in self.listeners.iter().enumerate() {
            listeners.learn(from, n < usize::from(more_queues), now);
        }
    }

    /// How many queues a node has, as far as is known.
    fn queues(&self, node: Coords, now: u64) -> usize {
        let listen = |listeners: &&Takers| listeners.has(node, now);
        1 + self.listeners.iter().take_while(listen).count()
    }
}

/// Queues of an interface at most.
const MAX_QUEUES: usize = 3;

/// The link of one of an interface's queues to the other nodes.
#[pin_data]
pub(crate) struct Link {
    device: Arc<Device>,
    shape: Shape,
    machine: u8,
    me: Coords,
    tni: TniId,
    /// Which of the interface's queues it is; the first one has all but unicast frames.
    number: u8,
    /// How many there are.
    queues: u8,
    #[pin]
    tx: SpinLock<Tx>,
    #[pin]
    rx: SpinLock<Rx>,
    #[pin]
    irqs: Mutex<Option<Irqs>>,
    interrupts: Atomic<u64>,
    /// 1 if there was an interrupt that the device was not yet told to raise anew: of the packets,
    /// and of the control queue.
    fired: Atomic<i32>,
    sent: Atomic<i32>,
    heard: Arc<Heard>,
    coalesce_us: Atomic<u32>,
    coalesce_packets: Atomic<u32>,
}

impl Link {
    fn new(
        device: &Arc<Device>,
        shape: Shape,
        machine: u8,
        tni: TniId,
        (number, queues): (u8, u8),
        heard: Arc<Heard>,
    ) -> Result<Arc<Self>> {
        let ports = Ports::new(&shape, device.coords());
        let (tx, rx) = (Tx::new(ports)?, Rx::new()?);
        Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                shape,
                machine,
                me: device.coords(),
                tni,
                number,
                queues,
                tx <- new_spinlock!(tx),
                rx <- new_spinlock!(rx),
                irqs <- new_mutex!(None),
                interrupts: Atomic::new(0),
                fired: Atomic::new(0),
                sent: Atomic::new(0),
                heard,
                coalesce_us: Atomic::new(0),
                coalesce_packets: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    fn open(self: &Arc<Self>, queue: *mut NetQueue) -> Result {
        let sender = Sender::open(&self.device, self.tni)?;
        let receiver = Receiver::open(&self.device, self.tni)?;
        receiver.coalesce(
            u64::from(self.coalesce_us.load(Relaxed)) * 1000,
            self.coalesce_packets.load(Relaxed).into(),
        );
        let irq = |number, sent| -> Result<_> {
            let request = self.device.vector(number).ok_or(ENODEV)?;
            let handler = Handler {
                queue,
                link: self.clone(),
                sent,
            };
            // SAFETY: it is never forgotten: it goes when the interface is stopped, at the latest
            // when it is removed.
            let registration = unsafe {
                kirq::Registration::new(request, kirq::Flags::SHARED, c"tofu-net", Ok(handler))
            };
            KBox::try_pin_init(registration, GFP_KERNEL)
        };
        let irqs = Irqs {
            _packets: irq(vector::tni(self.tni.get()), false)?,
            _sent: irq(vector::cq(self.tni.get(), KERNEL_CQ), true)?,
        };
        *self.irqs.lock() = Some(irqs);
        let _quiet = Quiet::new();
        let mut rx = self.rx.lock();
        rx.receiver = Some(receiver);
        let mut tx = self.tx.lock();
        tx.sender = Some(sender);
        tx.next_id = now_ns() as u32;
        tx.waiting = 0;
        tx.long.clear();
        tx.ports = Ports::new(&self.shape, self.me);
        // SAFETY: the interface is coming up.
        unsafe { shim::tofu_shim_net_carrier(queue, tx.ports.carrier()) };
        // One may have come before there was somebody to tell.
        self.fired.store(1, Relaxed);
        self.sent.store(1, Relaxed);
        Ok(())
    }

    fn stop(&self) {
        // Outside of the other locks, as all of it may sleep.
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

    /// Receives up to `budget` packets. Returns how many.
    fn poll(&self, queue: *mut NetQueue, budget: c_int) -> c_int {
        let now = now_ns();
        let carrier = {
            let mut tx = self.tx.lock();
            tx.reap(self, now);
            tx.go_around(self, now);
            tx.flush();
            tx.counts[Count::Polls as usize] += 1;
            tx.ports.news()
        };
        if let Some(on) = carrier {
            // SAFETY: the interface is up.
            unsafe { shim::tofu_shim_net_carrier(queue, on) };
        }
        let mut done = 0;
        while done < budget {
            let step = self.rx.lock().step(self, queue, now);
            match step {
                Step::Idle => break,
                Step::Wait(nanoseconds) => {
                    // SAFETY: the interface is up.
                    unsafe { shim::tofu_shim_net_nap(queue, nanoseconds) };
                    break;
                }
                Step::Done => {}
                // Without locks: the stack may answer at once.
                Step::Frame(frame, facts) => {
                    if !frame.receive(queue, facts.as_ref()) {
                        self.rx.lock().state.count(Count::Malformed);
                    }
                }
            }
            done += 1;
        }
        let mut rx = self.rx.lock();
        let mut tx = self.tx.lock();
        rx.state.answer(self, &mut tx, true, now);
        drop(rx);
        tx.flush();
        let goes_on = tx.goes_on(self, now);
        drop(tx);
        // SAFETY: the interface is up.
        if goes_on && unsafe { shim::tofu_shim_net_is_held(queue) } {
            // SAFETY: as above.
            unsafe { shim::tofu_shim_net_go_on(queue) };
        }
        done
    }

    /// Is called every second while the interface is up.
    fn beat(&self, queue: *mut NetQueue) {
        if self.tx.lock().look_at_ports(self) {
            // SAFETY: the interface is up.
            unsafe { shim::tofu_shim_net_look_again(queue) };
        }
    }

    /// Has the next packet raise an interrupt. Returns whether there is something to be done now.
    fn rest(&self, queue: *mut NetQueue) -> bool {
        let now = now_ns();
        // Without an interrupt since the last time the device still has to raise one.
        let fired = self.fired.xchg(0, Full) != 0;
        let rx = self.rx.lock();
        let receiver = rx.receiver.as_ref();
        let ready = receiver.is_some_and(|receiver| match fired {
            true => receiver.rest(),
            false => receiver.is_ready(),
        });
        // What waits for a frame is looked at when that comes, or when it has waited long enough.
        let ready = ready && !rx.state.is_waiting();
        let fetching = rx.state.is_fetching();
        drop(rx);
        let mut tx = self.tx.lock();
        if self.sent.xchg(0, Full) != 0 {
            if let Some(sender) = tx.sender.as_ref() {
                sender.rest();
            }
        }
        tx.reap(self, now);
        tx.flush();
        let settled = tx.waiting == 0
            && !tx.long.is_blocked()
            && !fetching
            && tx.sender.as_ref().is_none_or(Sender::is_settled);
        let ready = ready || tx.long.has_fetched();
        if !settled {
            // SAFETY: the interface is up.
            unsafe { shim::tofu_shim_net_look_again(queue) };
        }
        ready
    }

    /// Adds what was done by this queue.
    fn counters(&self, values: &mut [u64]) {
        let rx = self.rx.lock();
        let tx = self.tx.lock();
        let sums = rx.state.counts.iter().zip(&tx.counts);
        for (value, (received, sent)) in values.iter_mut().zip(sums) {
            *value += received + sent;
        }
        if let Some(value) = values.get_mut(Count::Interrupts as usize) {
            *value += self.interrupts.load(Relaxed);
        }
        drop((rx, tx));
        for (value, (_, reg)) in values.iter_mut().skip(COUNTS).zip(REGISTERS) {
            *value += self.device.read(self.tni, reg);
        }
    }
}

/// Software interrupts are off on this processor as long as this lives.
struct Quiet(());

impl Quiet {
    fn new() -> Self {
        // SAFETY: turned on again by `drop`, on the same processor.
        unsafe { shim::tofu_shim_quiet(true) };
        Self(())
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        unsafe { shim::tofu_shim_quiet(false) };
    }
}
