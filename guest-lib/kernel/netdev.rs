// SPDX-License-Identifier: GPL-2.0

//! `tofu0`: a network interface whose frames go to other nodes by system packets.
//!
//! What goes over the wire is defined in the crate `tofu_ipotofu`, from the sources of the
//! library of that name; what is here differs from it in the memory that frames lie in. netdev.c
//! forwards what the kernel asks of an interface.
//!
//! Two locks, `rx` before `tx`. Both are taken with software interrupts off, by the stack when it
//! sends and polls, and by netdev.c for all others.

use core::fmt::Write;

use kernel::ffi::{c_char, c_int, c_void};
use kernel::irq::{self as kirq, IrqReturn};
use kernel::prelude::*;
use kernel::str::CStr;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::{new_mutex, new_spinlock, Arc, Mutex, SpinLock};
use kernel::time::{ClockSource, Monotonic};

use tofu_abi::frame::SYSTEM_PAYLOAD_MAX;
use tofu_abi::irq::vector;
use tofu_abi::regs::{tni_base, TniReg, KERNEL_CQ};
use tofu_abi::{rcode, Coords};
use tofu_ipotofu::addr::{self, Mac};
use tofu_ipotofu::neighbor::{Answer, Place};
use tofu_ipotofu::offload::{Facts, Segments, FACTS_SIZE};
use tofu_ipotofu::routes::route;
use tofu_ipotofu::topology::Shape;
use tofu_ipotofu::tree;
use tofu_ipotofu::wire::{self, Kind, Packet, Repr, Sum, ETHERNET_HEADER, HEADER_SIZE, PIECE_MAX};

use crate::device::Device;
use crate::packets::{Order, Receiver, Sender};
use crate::shim::{self, NetDevice, NetFacts, NetSetup, SkBuff};

/// Interfaces at most. Each has a TNI of its own, from 0 on.
const MAX_INTERFACES: u32 = 2;
/// What the number of the machine is more by in the addresses of the second interface.
const SECOND_MACHINE: u8 = 4;
/// The largest MTU: with its Ethernet header a frame has at most 2^16 - 1 bytes.
const MAX_MTU: u16 = u16::MAX - ETHERNET_HEADER as u16;
/// Pieces of the longest frame, with what is in front of it.
const MAX_PIECES: usize = (u16::MAX as usize).div_ceil(PIECE_MAX);
/// The stack is held when there is not room for so many packets: for a frame that has to be cut
/// into 64 segments here.
const RESERVE: usize = 80;
/// It goes on when there is room for so many.
const ENOUGH: usize = 2 * RESERVE;
/// Bytes of a frame in which a question for an address, and all headers, are.
const HEAD: usize = 256;

/// How long a frame may take from its first piece to its last, in nanoseconds.
const LIFETIME_NS: u64 = 1_000_000_000;
/// Frames that may be under way to this node at a time, and from one node.
const PARTIALS: usize = 32;
const PER_ORIGIN: usize = 8;
/// Pieces of broadcasts that are remembered, to tell those that come twice.
const SEEN: usize = 256;
/// How long it is believed that a node takes frames that are not finished, in milliseconds.
const TAKES_MS: u64 = 2_000;
/// How long a way round a dead link is kept before the first one is tried again.
const DETOUR_NS: u64 = 1_000_000_000;
/// How long the confirmation of a broadcast may take before it goes around the node, and how long
/// it goes around at once from then on.
const CONFIRM_NS: u64 = 100_000_000;
const DEAF_NS: u64 = 10_000_000_000;
/// Pieces that wait for confirmation at a time.
const AWAITED: usize = 64;
/// Nodes of which something is known at a time, a power of two.
const KNOWN: usize = 256;
/// Nodes to which one piece of a broadcast may still have to go.
const SPREAD: usize = 128;

fn now_ns() -> u64 {
    Monotonic::ktime_get() as u64
}

/// What was done since the interface is there. The order is that of `NAMES`.
#[derive(Clone, Copy)]
enum Count {
    Sent,
    Received,
    Answered,
    Forwarded,
    Malformed,
    Spoofed,
    Misdirected,
    Duplicates,
    Damaged,
    Oversized,
    Abandoned,
    NoSuchNode,
    Rerouted,
    Lost,
    Full,
    Finished,
    NoMemory,
    Polls,
    Interrupts,
    Held,
}

const COUNTS: usize = Count::Held as usize + 1;

/// Names of the counters for ethtool: those of [`Count`], then registers of the TNI.
const NAMES: [&CStr; COUNTS] = [
    c"sent",
    c"received",
    c"answered",
    c"forwarded",
    c"malformed",
    c"spoofed",
    c"misdirected",
    c"duplicates",
    c"damaged",
    c"oversized",
    c"abandoned",
    c"no_such_node",
    c"rerouted",
    c"lost",
    c"full",
    c"finished",
    c"no_memory",
    c"polls",
    c"interrupts",
    c"held",
];
const REGISTERS: [(&CStr, TniReg); 7] = [
    (c"tni_send_tlp", TniReg::NumSendTlp),
    (c"tni_send_system_tlp", TniReg::NumSendSystemTlp),
    (c"tni_receive_tlp", TniReg::NumReceiveTlp),
    (c"tni_receive_system_tlp", TniReg::RxNumSystemTlp),
    (c"tni_receive_unknown_tlp", TniReg::RxNumUnknownTlp),
    (c"tni_receive_exception_tlp", TniReg::RxNumExceptionTlp),
    (c"tni_discard_system_tlp", TniReg::RxNumDiscardSystemTlp),
];

/// Something that is known of some nodes for a while. Of two nodes with the same place the later
/// one is kept.
struct Known {
    places: KVVec<(u32, u64, u8)>,
}

/// The place of a node in a table of [`KNOWN`].
fn place(node: Coords) -> (u32, usize) {
    let key = addr::pack(node);
    (key, (key.wrapping_mul(0x9e37_79b1) >> 24) as usize % KNOWN)
}

/// The key of no node.
const NOBODY: u32 = u32::MAX;

impl Known {
    fn new() -> Result<Self> {
        let places = KVVec::from_elem((NOBODY, 0, 0), KNOWN, GFP_KERNEL)?;
        Ok(Self { places })
    }

    fn get(&self, node: Coords, now: u64, lifetime: u64) -> Option<u8> {
        let (key, at) = place(node);
        let (found, since, value) = *self.places.get(at)?;
        (found == key && now.saturating_sub(since) < lifetime).then_some(value)
    }

    fn set(&mut self, node: Coords, now: u64, value: u8) {
        let (key, at) = place(node);
        if let Some(entry) = self.places.get_mut(at) {
            *entry = (key, now, value);
        }
    }

    fn forget(&mut self, node: Coords) {
        let (key, at) = place(node);
        if let Some(entry) = self.places.get_mut(at).filter(|entry| entry.0 == key) {
            entry.0 = NOBODY;
        }
    }
}

/// A piece of a broadcast whose confirmation is awaited.
#[derive(Clone)]
struct Awaited {
    live: bool,
    to: Coords,
    repr: Repr,
    since: u64,
    body: [u8; PIECE_MAX],
}

/// The sending side.
struct Tx {
    sender: Option<Sender>,
    next_id: u32,
    detours: Known,
    deaf: Known,
    /// A ring, in the order of sending: the next one to be looked at, and how many there are.
    awaited: KVVec<Awaited>,
    first: usize,
    waiting: usize,
    /// Nodes to which the piece that is being spread has still to go.
    spread: KVVec<Coords>,
    scratch: KVVec<u8>,
    counts: [u64; COUNTS],
}

/// A frame some pieces of which are there.
struct Partial {
    origin: Coords,
    id: u32,
    sum: u32,
    kind: Kind,
    total: u16,
    since: u64,
    /// Bit n is set if piece n is there.
    there: u64,
    so_far: Sum,
    facts: [u8; FACTS_SIZE],
    frame: Frame,
}

/// A frame of this node's.
struct Frame {
    skb: *mut SkBuff,
    len: usize,
}

// SAFETY: a frame belongs to whoever has it, on any processor.
unsafe impl Send for Frame {}

impl Frame {
    fn new(dev: *mut NetDevice, len: usize) -> Option<Self> {
        // SAFETY: the interface exists as long as it is polled.
        let skb = unsafe { shim::tofu_shim_skb_new(dev, len as u32) };
        (!skb.is_null()).then_some(Self { skb, len })
    }

    /// Writes a part, as far as the frame goes.
    fn write(&mut self, at: usize, part: &[u8]) -> bool {
        // SAFETY: the frame is ours; whether the part is within it is looked at there.
        let error = unsafe {
            shim::tofu_shim_skb_write(self.skb, at as u32, part.as_ptr().cast(), part.len() as u32)
        };
        error == 0
    }

    /// Its first bytes.
    fn head<'a>(&self, buf: &'a mut [u8; HEAD]) -> &'a [u8] {
        let len = self.len.min(HEAD);
        read(self.skb, 0, &mut buf[..len]);
        &buf[..len]
    }

    /// Gives it to the stack; false if the facts do not fit.
    fn receive(self, dev: *mut NetDevice, facts: Option<&Facts>) -> bool {
        let facts = facts.map(NetFacts::from);
        let facts = facts
            .as_ref()
            .map_or(core::ptr::null(), core::ptr::from_ref);
        let skb = self.skb;
        core::mem::forget(self);
        // SAFETY: the frame is complete, and the stack's from here on.
        unsafe { shim::tofu_shim_skb_receive(dev, skb, facts) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: the frame is ours.
        unsafe { shim::tofu_shim_skb_free(self.skb) };
    }
}

/// Copies a part of a frame, which is as long as that.
fn read(skb: *const SkBuff, at: usize, to: &mut [u8]) -> bool {
    // SAFETY: the caller has the frame; whether the part is within it is looked at there.
    let error = unsafe {
        shim::tofu_shim_skb_read(skb, at as u32, to.as_mut_ptr().cast(), to.len() as u32)
    };
    error == 0
}

impl From<&Facts> for NetFacts {
    fn from(facts: &Facts) -> Self {
        let (csum_start, csum_offset) = facts.checksum.unwrap_or_default();
        let segments = match facts.segments {
            Segments::One => 0,
            Segments::Tcp4 => Self::TCP4,
            Segments::Tcp6 => Self::TCP6,
        };
        Self {
            needs_csum: facts.checksum.is_some().into(),
            gso_type: segments | if facts.ecn { Self::ECN } else { 0 },
            gso_size: facts.size,
            csum_start,
            csum_offset,
        }
    }
}

impl NetFacts {
    /// What goes over the wire of it, if it can.
    fn facts(&self) -> Option<Facts> {
        let segments = match self.gso_type & !Self::ECN {
            0 => Segments::One,
            Self::TCP4 => Segments::Tcp4,
            Self::TCP6 => Segments::Tcp6,
            _ => return None,
        };
        Some(Facts {
            checksum: (self.needs_csum != 0).then_some((self.csum_start, self.csum_offset)),
            segments,
            size: if segments == Segments::One {
                0
            } else {
                self.gso_size
            },
            ecn: self.gso_type & Self::ECN != 0,
        })
    }
}

/// The receiving side.
struct Rx {
    receiver: Option<Receiver>,
    state: RxState,
}

struct RxState {
    partials: KVVec<Option<Partial>>,
    /// Origin, id and offset of pieces; the place of the next one.
    seen: KVVec<Option<(Coords, u32, u16)>>,
    next_seen: usize,
    counts: [u64; COUNTS],
}

/// The interrupts of an interface that is up.
struct Irqs {
    _packets: Pin<KBox<kirq::Registration<'static, Handler>>>,
    _sent: Pin<KBox<kirq::Registration<'static, Handler>>>,
}

/// All that an interrupt does is to have the interface polled.
struct Handler {
    dev: *mut NetDevice,
    link: Arc<Link>,
}

// SAFETY: the interface may be told from any processor.
unsafe impl Send for Handler {}
// SAFETY: as above.
unsafe impl Sync for Handler {}

impl kirq::Handler for Handler {
    fn handle(&self) -> IrqReturn {
        self.link.interrupts.add(1, Relaxed);
        self.link.fired.store(1, Relaxed);
        // SAFETY: the interrupt is given back before the interface goes.
        unsafe { shim::tofu_shim_net_schedule(self.dev) };
        IrqReturn::Handled
    }
}

/// One interface's link to the other nodes.
#[pin_data]
pub(crate) struct Link {
    device: Arc<Device>,
    shape: Shape,
    machine: u8,
    me: Coords,
    tni: u8,
    #[pin]
    tx: SpinLock<Tx>,
    #[pin]
    rx: SpinLock<Rx>,
    #[pin]
    irqs: Mutex<Option<Irqs>>,
    interrupts: Atomic<u64>,
    /// 1 if there was an interrupt that the device was not yet told to raise anew.
    fired: Atomic<i32>,
    /// Nodes that take frames that are not finished: key plus one, above when they have said so
    /// last, in milliseconds.
    takers: KVVec<Atomic<u64>>,
    coalesce_us: Atomic<u32>,
    coalesce_packets: Atomic<u32>,
}

/// Bits of a time in [`Link::takers`].
const TAKER_TIME: u32 = 44;

impl Link {
    fn new(device: &Arc<Device>, shape: Shape, machine: u8, tni: u8) -> Result<Arc<Self>> {
        let awaited = Awaited {
            live: false,
            to: Coords::default(),
            repr: NO_PIECE,
            since: 0,
            body: [0; PIECE_MAX],
        };
        let mut ring = KVVec::with_capacity(AWAITED, GFP_KERNEL)?;
        for _ in 0..AWAITED {
            ring.push(awaited.clone(), GFP_KERNEL)?;
        }
        let tx = Tx {
            sender: None,
            next_id: 0,
            detours: Known::new()?,
            deaf: Known::new()?,
            awaited: ring,
            first: 0,
            waiting: 0,
            spread: KVVec::with_capacity(SPREAD, GFP_KERNEL)?,
            scratch: KVVec::from_elem(0, PIECE_MAX, GFP_KERNEL)?,
            counts: [0; COUNTS],
        };
        let mut partials = KVVec::with_capacity(PARTIALS, GFP_KERNEL)?;
        for _ in 0..PARTIALS {
            partials.push(None, GFP_KERNEL)?;
        }
        let rx = Rx {
            receiver: None,
            state: RxState {
                partials,
                seen: KVVec::from_elem(None, SEEN, GFP_KERNEL)?,
                next_seen: 0,
                counts: [0; COUNTS],
            },
        };
        let mut takers = KVVec::with_capacity(KNOWN, GFP_KERNEL)?;
        for _ in 0..KNOWN {
            takers.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                shape,
                machine,
                me: device.coords(),
                tni,
                tx <- new_spinlock!(tx),
                rx <- new_spinlock!(rx),
                irqs <- new_mutex!(None),
                interrupts: Atomic::new(0),
                fired: Atomic::new(0),
                takers,
                coalesce_us: Atomic::new(0),
                coalesce_packets: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    fn open(self: &Arc<Self>, dev: *mut NetDevice) -> Result {
        let mut sender = Sender::open(&self.device, self.tni)?;
        let receiver = Receiver::open(&self.device, self.tni)?;
        receiver.coalesce(
            u64::from(self.coalesce_us.load(Relaxed)) * 1000,
            self.coalesce_packets.load(Relaxed).into(),
        );
        let irq = |number| -> Result<_> {
            let request = self.device.vector(number).ok_or(ENODEV)?;
            let handler = Handler {
                dev,
                link: self.clone(),
            };
            // SAFETY: it is never forgotten: it goes when the interface is stopped, at the latest
            // when it is removed.
            let registration = unsafe {
                kirq::Registration::new(request, kirq::Flags::SHARED, c"tofu-net", Ok(handler))
            };
            KBox::try_pin_init(registration, GFP_KERNEL)
        };
        let irqs = Irqs {
            _packets: irq(vector::tni(self.tni))?,
            _sent: irq(vector::cq(self.tni, KERNEL_CQ))?,
        };
        // What was sent before is not remembered, unlike the numbers that it had.
        sender.rest();
        *self.irqs.lock() = Some(irqs);
        let _quiet = Quiet::new();
        let mut rx = self.rx.lock();
        rx.receiver = Some(receiver);
        let mut tx = self.tx.lock();
        tx.sender = Some(sender);
        tx.next_id = now_ns() as u32;
        tx.waiting = 0;
        // One may have come before there was somebody to tell.
        self.fired.store(1, Relaxed);
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
            for partial in rx.state.partials.iter_mut() {
                *partial = None;
            }
            sender = self.tx.lock().sender.take();
        }
        drop(receiver);
        drop(sender);
    }

    fn takes_unfinished(&self, node: Coords, now: u64) -> bool {
        let (key, at) = place(node);
        let entry = self.takers.get(at).map_or(0, |taker| taker.load(Relaxed));
        let since = entry & ((1 << TAKER_TIME) - 1);
        entry >> TAKER_TIME == u64::from(key) + 1
            && (now / 1_000_000).saturating_sub(since) <= TAKES_MS
    }

    fn learn(&self, repr: &Repr, now: u64) {
        let (key, at) = place(repr.origin);
        let Some(taker) = self.takers.get(at) else {
            return;
        };
        let key = u64::from(key) + 1;
        let time = (now / 1_000_000) & ((1 << TAKER_TIME) - 1);
        if repr.takes_unfinished {
            taker.store(key << TAKER_TIME | time, Relaxed);
        } else if taker.load(Relaxed) >> TAKER_TIME == key {
            taker.store(0, Relaxed);
        }
    }

    /// Sends a frame of the stack's, or drops it.
    fn xmit(&self, dev: *mut NetDevice, mut skb: *mut SkBuff, more: bool) {
        let now = now_ns();
        let mut tx = self.tx.lock();
        tx.reap(self, now);
        while !skb.is_null() {
            let (next, sent) = self.send(&mut tx, dev, &mut skb, now);
            let Some(rest) = next else {
                // It has become several.
                continue;
            };
            // SAFETY: the frame is ours and not used any more.
            unsafe { shim::tofu_shim_skb_sent(dev, skb, sent) };
            skb = rest;
        }
        let room = tx.sender.as_ref().map_or(0, Sender::room);
        if room < RESERVE {
            tx.counts[Count::Held as usize] += 1;
            // SAFETY: the interface is up.
            unsafe { shim::tofu_shim_net_hold(dev) };
        }
        if !more || room < RESERVE {
            if let Some(sender) = tx.sender.as_mut() {
                sender.flush();
            }
        }
        // SAFETY: the interface is up.
        unsafe { shim::tofu_shim_net_look_again(dev) };
    }

    /// Sends the first frame of a list. Returns the rest of the list and whether it was sent; no
    /// rest if the frame had to be finished first and is now a list of its own.
    fn send(
        &self,
        tx: &mut Tx,
        dev: *mut NetDevice,
        skb: &mut *mut SkBuff,
        now: u64,
    ) -> (Option<*mut SkBuff>, bool) {
        let mut facts = NetFacts::default();
        // SAFETY: the frame is ours.
        let unfinished = unsafe { shim::tofu_shim_skb_facts(*skb, &mut facts) };
        // SAFETY: as above.
        let len = unsafe { shim::tofu_shim_skb_len(*skb) } as usize;
        let mut mac: Mac = [0; 6];
        let is_frame = len >= ETHERNET_HEADER && read(*skb, 0, &mut mac);
        let node = addr::node_of_mac(mac)
            .filter(|node| *node != self.me && self.shape.rank(*node).is_some());
        if unfinished {
            let prefix = facts
                .facts()
                .filter(|_| len + FACTS_SIZE <= u16::MAX.into());
            match (node, prefix) {
                (Some(node), Some(facts)) if self.takes_unfinished(node, now) => {
                    let sent = tx.unicast(self, node, *skb, len, Some(&facts), now);
                    // SAFETY: the frame is ours.
                    return (Some(unsafe { shim::tofu_shim_skb_next(*skb) }), sent);
                }
                _ => {}
            }
            // A list has only frames that are finished, but for a checksum, so nothing is lost
            // behind this one.
            tx.counts[Count::Finished as usize] += 1;
            // SAFETY: the frame is ours.
            if unsafe { shim::tofu_shim_skb_finish(skb) } {
                // SAFETY: as above.
                let still = unsafe { shim::tofu_shim_skb_facts(*skb, &mut facts) };
                if !still {
                    return (None, false);
                }
            }
            // SAFETY: as above.
            return (Some(unsafe { shim::tofu_shim_skb_next(*skb) }), false);
        }
        // SAFETY: as above.
        let rest = unsafe { shim::tofu_shim_skb_next(*skb) };
        let sent = if !is_frame || len > u16::MAX.into() {
            tx.counts[Count::Oversized as usize] += 1;
            false
        } else if addr::is_multicast(mac) {
            self.send_to_group(tx, dev, *skb, len, now)
        } else if let Some(node) = node {
            tx.unicast(self, node, *skb, len, None, now)
        } else {
            tx.counts[Count::NoSuchNode as usize] += 1;
            false
        };
        (Some(rest), sent)
    }

    fn send_to_group(
        &self,
        tx: &mut Tx,
        dev: *mut NetDevice,
        skb: *const SkBuff,
        len: usize,
        now: u64,
    ) -> bool {
        let mut head = [0; HEAD];
        let head = &mut head[..len.min(HEAD)];
        if !read(skb, 0, head) {
            return false;
        }
        let place = Place {
            shape: &self.shape,
            machine: self.machine,
            me: self.me,
        };
        match place.answer(head) {
            Answer::Reply(reply) => {
                tx.counts[Count::Answered as usize] += 1;
                let frame = reply.as_bytes();
                // SAFETY: the interface is up; the bytes are copied.
                unsafe {
                    shim::tofu_shim_skb_answer(dev, frame.as_ptr().cast(), frame.len() as u32)
                };
                true
            }
            Answer::Silence => true,
            Answer::None => tx.broadcast(self, skb, len, now),
        }
    }

    /// Receives up to `budget` packets. Returns how many.
    fn poll(&self, dev: *mut NetDevice, budget: c_int) -> c_int {
        let now = now_ns();
        let go_on = {
            let mut tx = self.tx.lock();
            tx.reap(self, now);
            tx.go_around(self, now);
            tx.flush();
            tx.counts[Count::Polls as usize] += 1;
            tx.sender
                .as_ref()
                .is_some_and(|sender| sender.room() >= ENOUGH)
        };
        // SAFETY: the interface is up.
        if go_on && unsafe { shim::tofu_shim_net_is_held(dev) } {
            // SAFETY: as above.
            unsafe { shim::tofu_shim_net_go_on(dev) };
        }
        let mut done = 0;
        while done < budget {
            let mut rx = self.rx.lock();
            let Rx { receiver, state } = &mut *rx;
            let taken = receiver.as_mut().and_then(|receiver| {
                receiver.take(|from, payload| state.receive(self, dev, from, payload, now))
            });
            let Some(taken) = taken else { break };
            drop(rx);
            done += 1;
            // Without locks: the stack may answer at once.
            if let Some((frame, facts)) = taken {
                if !frame.receive(dev, facts.as_ref()) {
                    self.rx.lock().state.counts[Count::Malformed as usize] += 1;
                }
            }
        }
        self.tx.lock().flush();
        done
    }

    /// Has the next packet raise an interrupt. Returns whether there is something to be done now.
    fn rest(&self, dev: *mut NetDevice) -> bool {
        let now = now_ns();
        // Without an interrupt since the last time the device still has to raise one.
        let fired = self.fired.xchg(0, Full) != 0;
        let rx = self.rx.lock();
        let receiver = rx.receiver.as_ref();
        let ready = receiver.is_some_and(|receiver| match fired {
            true => receiver.rest(),
            false => receiver.is_ready(),
        });
        drop(rx);
        let mut tx = self.tx.lock();
        if let Some(sender) = tx.sender.as_mut() {
            sender.rest();
        }
        tx.reap(self, now);
        tx.flush();
        let settled = tx.waiting == 0 && tx.sender.as_ref().is_none_or(Sender::is_settled);
        if !settled {
            // SAFETY: the interface is up.
            unsafe { shim::tofu_shim_net_look_again(dev) };
        }
        ready
    }

    fn counters(&self, values: &mut [u64]) {
        let rx = self.rx.lock();
        let tx = self.tx.lock();
        let sums = rx.state.counts.iter().zip(&tx.counts);
        for (value, (received, sent)) in values.iter_mut().zip(sums) {
            *value = received + sent;
        }
        if let Some(value) = values.get_mut(Count::Interrupts as usize) {
            *value = self.interrupts.load(Relaxed);
        }
        drop((rx, tx));
        for (value, (_, reg)) in values.iter_mut().skip(COUNTS).zip(REGISTERS) {
            *value = self.device.read(tni_base(self.tni) + reg.offset());
        }
    }

    /// Writes a line about the interface.
    fn show(&self, what: c_int, to: &mut Text<'_>) -> core::fmt::Result {
        match what {
            0 => {
                let [x, y, z, a, b, c] = self.me.to_array();
                writeln!(to, "{x} {y} {z} {a} {b} {c}")
            }
            1 => {
                let [a, b, c, d] = addr::ipv4(self.machine, self.me);
                let bits = addr::ipv4_prefix(&self.shape, self.machine);
                writeln!(to, "{a}.{b}.{c}.{d}/{bits}")
            }
            2 => {
                let address = core::net::Ipv6Addr::from(addr::ipv6(self.machine, self.me));
                writeln!(to, "{address}/64")
            }
            3 => {
                let [x, y, z, a, b, c] = self.shape.lengths();
                writeln!(to, "{x}x{y}x{z}x{a}x{b}x{c}")
            }
            _ => writeln!(to, "{}", self.tni),
        }
    }
}

/// In place of the piece of a broadcast where there is none.
const NO_PIECE: Repr = Repr {
    kind: Kind::Heard,
    takes_unfinished: false,
    asks: false,
    total: 0,
    offset: 0,
    length: 0,
    id: 0,
    sum: 0,
    origin: Coords::new(0, 0, 0, 0, 0, 0),
};

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

impl Tx {
    fn flush(&mut self) {
        if let Some(sender) = self.sender.as_mut() {
            sender.flush();
        }
    }

    /// Posts the packet in a buffer.
    fn post(
        &mut self,
        link: &Link,
        to: Coords,
        broadcast: bool,
        buffer: u16,
        len: usize,
        now: u64,
    ) {
        let attempt = self.detours.get(to, now, DETOUR_NS).unwrap_or(0);
        let target = route(&link.shape, link.me, to, link.tni, attempt);
        let Some(sender) = self.sender.as_mut() else {
            return;
        };
        let Some(target) = target else {
            self.counts[Count::Lost as usize] += 1;
            sender.give_up(buffer);
            return;
        };
        // Whoever is held must hear of room as soon as there is some: at the ends of frames.
        let ask = sender.room() < ENOUGH && len < SYSTEM_PAYLOAD_MAX;
        sender.post(
            Order::new(to, attempt, broadcast, buffer, len),
            &target,
            ask,
        );
    }

    /// Posts a packet of these two parts.
    fn post_parts(
        &mut self,
        link: &Link,
        to: Coords,
        broadcast: bool,
        header: &[u8; HEADER_SIZE],
        body: &[u8],
        now: u64,
    ) {
        let len = HEADER_SIZE + body.len();
        let sender = self.sender.as_mut();
        let filled = sender.and_then(|sender| {
            let buffer = sender.take()?;
            let payload = sender.payload(buffer).and_then(|all| all.get_mut(..len));
            match payload {
                Some(payload) => {
                    let (head, rest) = payload.split_at_mut(HEADER_SIZE);
                    head.copy_from_slice(header);
                    rest.copy_from_slice(body);
                    Some(buffer)
                }
                None => {
                    sender.give_up(buffer);
                    None
                }
            }
        });
        match filled {
            Some(buffer) => self.post(link, to, broadcast, buffer, len, now),
            None => self.counts[Count::Lost as usize] += 1,
        }
    }

    /// Sends a frame to a node, with facts in front of it if it is not finished.
    fn unicast(
        &mut self,
        link: &Link,
        to: Coords,
        skb: *const SkBuff,
        len: usize,
        facts: Option<&Facts>,
        now: u64,
    ) -> bool {
        let emitted = facts.map(Facts::emit);
        let prefix: &[u8] = emitted.as_ref().map_or(&[], |facts| &facts[..]);
        let total = prefix.len() + len;
        let pieces = total.div_ceil(PIECE_MAX);
        let mut buffers = [0u16; MAX_PIECES];
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        if pieces > MAX_PIECES || pieces > sender.room() {
            self.counts[Count::Full as usize] += 1;
            return false;
        }
        let summed = pieces > 1 || facts.is_some();
        let mut sum = Sum::default();
        for (n, place) in buffers.iter_mut().take(pieces).enumerate() {
            // There is room, as was just seen.
            let Some(buffer) = sender.take() else {
                return false;
            };
            *place = buffer;
            let offset = n * PIECE_MAX;
            let end = HEADER_SIZE + (total - offset).min(PIECE_MAX);
            let body = sender
                .payload(buffer)
                .and_then(|all| all.get_mut(HEADER_SIZE..end));
            let copied = body.is_some_and(|body| {
                let in_front = prefix.len().saturating_sub(offset);
                let (front, rest) = body.split_at_mut(in_front);
                front.copy_from_slice(&prefix[..in_front]);
                let copied = read(skb, (offset + in_front) - prefix.len(), rest);
                if summed {
                    sum.add(body);
                }
                copied
            });
            if !copied {
                for buffer in &buffers[..=n] {
                    sender.give_up(*buffer);
                }
                self.counts[Count::Lost as usize] += 1;
                return false;
            }
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        for (n, buffer) in buffers.iter().take(pieces).enumerate() {
            let offset = n * PIECE_MAX;
            let length = (total - offset).min(PIECE_MAX);
            let repr = Repr {
                kind: if facts.is_some() {
                    Kind::Unfinished
                } else {
                    Kind::Unicast
                },
                takes_unfinished: true,
                asks: false,
                total: total as u16,
                offset: offset as u16,
                length: length as u16,
                id,
                sum: if summed { sum.finish() } else { 0 },
                origin: link.me,
            };
            let header = self
                .sender
                .as_mut()
                .and_then(|sender| sender.payload(*buffer));
            if let Some(header) = header.and_then(|all| all.first_chunk_mut()) {
                *header = repr.emit();
            }
            self.post(link, to, false, *buffer, HEADER_SIZE + length, now);
        }
        self.counts[Count::Sent as usize] += 1;
        true
    }

    /// Sends a frame to all nodes.
    fn broadcast(&mut self, link: &Link, skb: *const SkBuff, len: usize, now: u64) -> bool {
        let mut scratch = core::mem::take(&mut self.scratch);
        let sent = self.broadcast_by(link, skb, len, &mut scratch, now);
        self.scratch = scratch;
        sent
    }

    fn broadcast_by(
        &mut self,
        link: &Link,
        skb: *const SkBuff,
        len: usize,
        scratch: &mut [u8],
        now: u64,
    ) -> bool {
        let pieces = len.div_ceil(PIECE_MAX);
        let children = tree::children(&link.shape, link.me, link.me);
        let room = self.sender.as_ref().map_or(0, Sender::room);
        if pieces * children.clone().count() > room {
            self.counts[Count::Full as usize] += 1;
            return false;
        }
        let piece = |n: usize| n * PIECE_MAX..len.min((n + 1) * PIECE_MAX);
        let mut sum = Sum::default();
        for part in (0..pieces).map(piece).filter(|_| pieces > 1) {
            let Some(body) = scratch.get_mut(..part.len()) else {
                return false;
            };
            if !read(skb, part.start, body) {
                return false;
            }
            sum.add(body);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        for part in (0..pieces).map(piece) {
            let Some(body) = scratch.get_mut(..part.len()) else {
                return false;
            };
            if !read(skb, part.start, body) {
                return false;
            }
            let repr = Repr {
                kind: Kind::Broadcast,
                takes_unfinished: true,
                asks: true,
                total: len as u16,
                offset: part.start as u16,
                length: part.len() as u16,
                id,
                sum: if pieces > 1 { sum.finish() } else { 0 },
                origin: link.me,
            };
            for child in children.clone() {
                self.spread(link, child, &repr, body, now);
            }
        }
        self.counts[Count::Sent as usize] += 1;
        true
    }

    /// Sends a piece of a broadcast to a node, and, if that is known not to listen, to those to
    /// which it would have handed it on.
    fn spread(&mut self, link: &Link, to: Coords, repr: &Repr, body: &[u8], now: u64) {
        let header = repr.emit();
        self.spread.clear();
        let _ = self.spread.push_within_capacity(to);
        // Every node is in the tree once, so this ends.
        while let Some(node) = self.spread.pop() {
            self.post_parts(link, node, true, &header, body, now);
            if !repr.asks {
                continue;
            }
            let mut behind = tree::children(&link.shape, repr.origin, node).peekable();
            if behind.peek().is_none() {
                continue;
            }
            if self.deaf.get(node, now, DEAF_NS).is_some() {
                for child in behind {
                    if self.spread.push_within_capacity(child).is_err() {
                        self.counts[Count::Lost as usize] += 1;
                    }
                }
            } else {
                self.expect(node, repr, body, now);
            }
        }
    }

    /// Notes that a piece is to be confirmed. If too many are, the oldest counts as confirmed.
    fn expect(&mut self, to: Coords, repr: &Repr, body: &[u8], now: u64) {
        if self.waiting == AWAITED {
            self.first = (self.first + 1) % AWAITED;
            self.waiting -= 1;
        }
        let at = (self.first + self.waiting) % AWAITED;
        if let Some(one) = self.awaited.get_mut(at) {
            one.live = true;
            one.to = to;
            one.repr = *repr;
            one.since = now;
            if let Some(place) = one.body.get_mut(..body.len()) {
                place.copy_from_slice(body);
            }
            self.waiting += 1;
        }
    }

    /// Takes note that a piece has come to a node, or never will.
    fn forget(&mut self, to: Coords, origin: Coords, id: u32, offset: u16) {
        for one in self.awaited.iter_mut() {
            if (one.to, one.repr.origin, one.repr.id, one.repr.offset) == (to, origin, id, offset) {
                one.live = false;
            }
        }
    }

    /// Has broadcasts go around nodes that have not confirmed them in time.
    fn go_around(&mut self, link: &Link, now: u64) {
        while self.waiting > 0 {
            let Some(one) = self.awaited.get(self.first) else {
                return;
            };
            if one.live && now.saturating_sub(one.since) < CONFIRM_NS {
                return;
            }
            let (live, to, repr) = (one.live, one.to, one.repr);
            let mut scratch = core::mem::take(&mut self.scratch);
            let len = usize::from(repr.length).min(scratch.len());
            scratch[..len].copy_from_slice(&one.body[..len]);
            self.first = (self.first + 1) % AWAITED;
            self.waiting -= 1;
            if live {
                self.deaf.set(to, now, 0);
                for child in tree::children(&link.shape, repr.origin, to) {
                    self.spread(link, child, &repr, &scratch[..len], now);
                }
            }
            self.scratch = scratch;
        }
    }

    /// Looks after packets whose sending has ended.
    fn reap(&mut self, link: &Link, now: u64) {
        while let Some((order, code)) = self.sender.as_mut().and_then(Sender::reap) {
            if code == rcode::SUCCESS {
                if let Some(sender) = self.sender.as_mut() {
                    sender.give_up(order.buffer());
                }
            } else {
                self.retry(link, &order, code, now);
            }
        }
    }

    /// Sends a lost packet another way, or, if it is a broadcast for a node that cannot be
    /// reached, to those to which that node would have handed it on.
    fn retry(&mut self, link: &Link, order: &Order, code: u8, now: u64) {
        let Some(sender) = self.sender.as_mut() else {
            return;
        };
        let next = order.attempt.saturating_add(1);
        let way = (code == rcode::LINK_DOWN)
            .then(|| route(&link.shape, link.me, order.to, link.tni, next))
            .flatten();
        if let Some(target) = way {
            self.detours.set(order.to, now, next);
            self.counts[Count::Rerouted as usize] += 1;
            let again = Order::new(order.to, next, order.broadcast, order.buffer(), order.len());
            sender.post(again, &target, false);
            return;
        }
        self.detours.forget(order.to);
        self.counts[Count::Lost as usize] += 1;
        let mut scratch = core::mem::take(&mut self.scratch);
        let mut repr = None;
        if let Some(payload) = sender.payload(order.buffer()) {
            let parsed = payload.get(..order.len()).and_then(|packet| {
                let (_, body) = packet.split_at_checked(HEADER_SIZE)?;
                let packet = Packet::new_checked(packet).ok()?;
                let repr = Repr::parse(&packet, body.len()).ok()?;
                scratch
                    .get_mut(..usize::from(repr.length))?
                    .copy_from_slice(&body[..usize::from(repr.length)]);
                Some(repr)
            });
            repr = parsed.filter(|_| order.broadcast);
        }
        sender.give_up(order.buffer());
        if let Some(repr) = repr {
            self.forget(order.to, repr.origin, repr.id, repr.offset);
            for child in tree::children(&link.shape, repr.origin, order.to) {
                self.spread(
                    link,
                    child,
                    &repr,
                    &scratch[..usize::from(repr.length)],
                    now,
                );
            }
        }
        self.scratch = scratch;
    }
}

impl RxState {
    fn count(&mut self, what: Count) {
        self.counts[what as usize] += 1;
    }

    /// Takes a packet. Returns a frame that it completes, with what is left to do with it.
    fn receive(
        &mut self,
        link: &Link,
        dev: *mut NetDevice,
        from: Coords,
        payload: &[u8],
        now: u64,
    ) -> Option<(Frame, Option<Facts>)> {
        let parsed = Packet::new_checked(payload)
            .and_then(|packet| Repr::parse(&packet, packet.body().len()).map(|r| (r, packet)));
        let Ok((repr, packet)) = parsed else {
            self.count(Count::Malformed);
            return None;
        };
        let body = packet.body().get(..usize::from(repr.length))?;
        // SAFETY: no requirements.
        unsafe {
            shim::tofu_shim_trace_packet(
                link.tni,
                addr::pack(repr.origin),
                repr.id,
                repr.offset,
                repr.length,
                repr.kind as u8,
            )
        };
        match repr.kind {
            Kind::Heard => {
                let mut tx = link.tx.lock();
                tx.deaf.forget(from);
                tx.forget(from, repr.origin, repr.id, repr.offset);
                return None;
            }
            Kind::Unicast | Kind::Unfinished if repr.origin == from => link.learn(&repr, now),
            Kind::Broadcast
                if repr.origin != link.me
                    && tree::is_ancestor(&link.shape, repr.origin, from, link.me) =>
            {
                self.hand_on(link, from, &repr, body, now)?;
            }
            _ => {
                self.count(Count::Spoofed);
                return None;
            }
        }
        if repr.is_whole() {
            self.take_whole(link, dev, &repr, body)
        } else {
            self.take_piece(link, dev, &repr, body, now)
        }
    }

    /// Hands a piece of a broadcast on, unless it was here already.
    fn hand_on(
        &mut self,
        link: &Link,
        from: Coords,
        repr: &Repr,
        body: &[u8],
        now: u64,
    ) -> Option<()> {
        let mut tx = link.tx.lock();
        // Also one that has come before: the confirmation may have been lost.
        if repr.asks {
            tx.post_parts(link, from, false, &repr.heard().emit(), &[], now);
        }
        let piece = Some((repr.origin, repr.id, repr.offset));
        if self.seen.contains(&piece) {
            drop(tx);
            self.count(Count::Duplicates);
            return None;
        }
        if let Some(place) = self.seen.get_mut(self.next_seen) {
            *place = piece;
        }
        self.next_seen = (self.next_seen + 1) % SEEN;
        for child in tree::children(&link.shape, repr.origin, link.me) {
            self.count(Count::Forwarded);
            tx.spread(link, child, repr, body, now);
        }
        Some(())
    }

    fn take_whole(
        &mut self,
        link: &Link,
        dev: *mut NetDevice,
        repr: &Repr,
        body: &[u8],
    ) -> Option<(Frame, Option<Facts>)> {
        let unfinished = repr.kind == Kind::Unfinished;
        if unfinished && wire::sum(body) != repr.sum {
            self.count(Count::Damaged);
            return None;
        }
        let (facts, whole) = body.split_at_checked(if unfinished { FACTS_SIZE } else { 0 })?;
        let Some(mut frame) = Frame::new(dev, whole.len()) else {
            self.count(Count::NoMemory);
            return None;
        };
        let facts = self.accept(link, repr, unfinished.then_some(facts), whole)?;
        if !frame.write(0, whole) {
            return None;
        }
        Some((frame, facts))
    }

    /// What is left to do with a frame, if it is one that its origin may send to this node.
    fn accept(
        &mut self,
        link: &Link,
        repr: &Repr,
        facts: Option<&[u8]>,
        head: &[u8],
    ) -> Option<Option<Facts>> {
        let facts = match facts.map(Facts::parse) {
            None => None,
            // All headers are in the head, and what comes behind them begins there.
            Some(Ok(facts)) if facts.check(head).is_ok() => Some(facts),
            Some(_) => {
                self.count(Count::Malformed);
                return None;
            }
        };
        if head.get(6..12) != Some(&addr::mac(repr.origin)[..]) {
            self.count(Count::Spoofed);
            return None;
        }
        let mac: Mac = *head.first_chunk()?;
        let ours = match repr.kind {
            Kind::Broadcast => addr::is_multicast(mac),
            _ => mac == addr::mac(link.me),
        };
        if !ours {
            self.count(Count::Misdirected);
            return None;
        }
        self.count(Count::Received);
        Some(facts)
    }

    fn take_piece(
        &mut self,
        link: &Link,
        dev: *mut NetDevice,
        repr: &Repr,
        body: &[u8],
        now: u64,
    ) -> Option<(Frame, Option<Facts>)> {
        let at = self.partial(dev, repr, now)?;
        let place = self.partials.get_mut(at)?;
        let partial = place.as_mut()?;
        if (partial.total, partial.sum) != (repr.total, repr.sum) {
            self.count(Count::Damaged);
            return None;
        }
        let offset = usize::from(repr.offset);
        let bit = 1u64 << (offset / PIECE_MAX);
        if partial.there & bit != 0 {
            self.count(Count::Duplicates);
            return None;
        }
        partial.so_far.add(body);
        // The facts are in front of the frame, in the first piece.
        let front = if repr.kind == Kind::Unfinished {
            FACTS_SIZE
        } else {
            0
        };
        let part = if offset == 0 {
            let (facts, part) = body.split_at_checked(front)?;
            if let Some(place) = partial.facts.get_mut(..front) {
                place.copy_from_slice(facts);
            }
            part
        } else {
            body
        };
        let written = partial.frame.write(offset.saturating_sub(front), part);
        partial.there |= bit;
        let pieces = usize::from(repr.total).div_ceil(PIECE_MAX);
        if partial.there.count_ones() as usize != pieces {
            return None;
        }
        let partial = place.take()?;
        if !written || partial.so_far.finish() != partial.sum {
            self.count(Count::Damaged);
            return None;
        }
        let mut head = [0; HEAD];
        let head = partial.frame.head(&mut head);
        let facts = (front > 0).then_some(&partial.facts[..]);
        let facts = self.accept(link, repr, facts, head)?;
        Some((partial.frame, facts))
    }

    /// The place of the frame that a piece belongs to, which begins with it if need be: in the
    /// place of an older one if there are too many.
    fn partial(&mut self, dev: *mut NetDevice, repr: &Repr, now: u64) -> Option<usize> {
        let (mut free, mut oldest, mut oldest_of_origin) = (None, None, None);
        let mut of_origin = 0;
        let mut abandoned = 0;
        for (at, place) in self.partials.iter_mut().enumerate() {
            if place
                .as_ref()
                .is_some_and(|partial| now.saturating_sub(partial.since) >= LIFETIME_NS)
            {
                *place = None;
                abandoned += 1;
            }
            let Some(partial) = place.as_ref() else {
                free = free.or(Some(at));
                continue;
            };
            let key = (partial.origin, partial.id, partial.kind);
            if key == (repr.origin, repr.id, repr.kind) {
                self.counts[Count::Abandoned as usize] += abandoned;
                return Some(at);
            }
            let older = |than: Option<(usize, u64)>| match than {
                Some((_, since)) if since <= partial.since => than,
                _ => Some((at, partial.since)),
            };
            oldest = older(oldest);
            if partial.origin == repr.origin {
                of_origin += 1;
                oldest_of_origin = older(oldest_of_origin);
            }
        }
        let at = if of_origin >= PER_ORIGIN {
            oldest_of_origin.map(|(at, _)| at)
        } else {
            free.or(oldest.map(|(at, _)| at))
        };
        self.counts[Count::Abandoned as usize] += abandoned;
        let place = self.partials.get_mut(at?)?;
        if place.take().is_some() {
            self.counts[Count::Abandoned as usize] += 1;
        }
        let front = if repr.kind == Kind::Unfinished {
            FACTS_SIZE
        } else {
            0
        };
        let frame = usize::from(repr.total)
            .checked_sub(front)
            .and_then(|len| Frame::new(dev, len));
        let Some(frame) = frame else {
            self.count(Count::NoMemory);
            return None;
        };
        *place = Some(Partial {
            origin: repr.origin,
            id: repr.id,
            sum: repr.sum,
            kind: repr.kind,
            total: repr.total,
            since: now,
            there: 0,
            so_far: Sum::default(),
            facts: [0; FACTS_SIZE],
            frame,
        });
        at
    }
}

/// A page to write text to.
struct Text<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.len + text.len();
        let place = self.buf.get_mut(self.len..end).ok_or(core::fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// An interface that the kernel knows. Dropping it takes it away.
pub(crate) struct Interface {
    dev: *mut NetDevice,
    _link: Arc<Link>,
}

// SAFETY: the interface is only taken away, by whoever has this.
unsafe impl Send for Interface {}
// SAFETY: as above.
unsafe impl Sync for Interface {}

impl Drop for Interface {
    fn drop(&mut self) {
        // SAFETY: it was added and is taken away once. It is down afterwards.
        unsafe { shim::tofu_shim_net_remove(self.dev) };
    }
}

/// The interfaces of a node.
pub(crate) type Interfaces = [Option<Interface>; MAX_INTERFACES as usize];

/// Text of a parameter.
fn parameter<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: parameters are strings that stay.
    unsafe { CStr::from_char_ptr(text) }.to_str().ok()
}

/// Makes the interfaces that the module's parameters ask for. One that cannot be made is told of
/// in the log: the device works without it.
pub(crate) fn interfaces(device: &Arc<Device>) -> Interfaces {
    let mut made = [None, None];
    // SAFETY: parameters are there before any device is.
    let (shape, torus, machine, mtu, count) = unsafe {
        (
            parameter(shim::tofu_shim_param_shape()),
            parameter(shim::tofu_shim_param_torus()),
            shim::tofu_shim_param_machine(),
            shim::tofu_shim_param_mtu(),
            shim::tofu_shim_param_interfaces(),
        )
    };
    let Some(text) = shape else {
        dev_info!(
            device.pdev(),
            "no tofu0: the parameter shape is not given\n"
        );
        return made;
    };
    let Ok(shape) = text.parse::<Shape>() else {
        dev_err!(
            device.pdev(),
            "no tofu0: shape={}: it is six lengths such as 1x1x1x2x3x2, at most 32x32x32x2x3x2\n",
            text
        );
        return made;
    };
    let shape = torus.map_or(shape, |axes| shape.with_torus(axes));
    let (Ok(machine @ 0..=addr::MAX_MACHINE), Ok(mtu @ 1280..=MAX_MTU)) =
        (u8::try_from(machine), u16::try_from(mtu))
    else {
        dev_err!(
            device.pdev(),
            "no tofu0: machine={} is 0 to 7, mtu={} is 1280 to 65521\n",
            machine,
            mtu
        );
        return made;
    };
    if shape.rank(device.coords()).is_none() {
        dev_err!(
            device.pdev(),
            "no tofu0: shape={} does not have this node\n",
            text
        );
        return made;
    }
    if count > MAX_INTERFACES {
        dev_warn!(device.pdev(), "interfaces={} is 0, 1 or 2\n", count);
    }
    let names = [c"tofu0", c"tofu1"];
    for (tni, (place, name)) in made.iter_mut().zip(names).take(count as usize).enumerate() {
        let machine = (machine + tni as u8 * SECOND_MACHINE) % (addr::MAX_MACHINE + 1);
        match interface(device, shape, machine, tni as u8, name, mtu) {
            Ok(interface) => *place = Some(interface),
            Err(error) => dev_err!(device.pdev(), "no tofu{}: {:?}\n", tni, error),
        }
    }
    made
}

fn interface(
    device: &Arc<Device>,
    shape: Shape,
    machine: u8,
    tni: u8,
    name: &'static CStr,
    mtu: u16,
) -> Result<Interface> {
    let link = Link::new(device, shape, machine, tni)?;
    let setup = NetSetup {
        link: Arc::as_ptr(&link).cast_mut().cast(),
        parent: device.raw(),
        name: name.as_char_ptr(),
        mac: addr::mac(device.coords()),
        mtu,
        max_mtu: MAX_MTU,
    };
    let mut error = 0;
    // SAFETY: the link lives as long as the interface.
    let dev = unsafe { shim::tofu_shim_net_add(&setup, &mut error) };
    if dev.is_null() {
        return Err(Error::from_errno(error));
    }
    Ok(Interface { dev, _link: link })
}

/// The link that netdev.c was given.
///
/// # Safety
///
/// `link` is of an [`Interface`] that is there.
unsafe fn link_of<'a>(link: *mut c_void) -> &'a Link {
    // SAFETY: see above.
    unsafe { &*link.cast::<Link>() }
}

/// Brings an interface up.
#[no_mangle]
extern "C" fn tofu_rs_net_open(link: *mut c_void, dev: *mut NetDevice) -> c_int {
    // SAFETY: the link of an interface is an `Arc`, which that keeps; this is one more reference.
    let link = unsafe {
        let borrowed = core::mem::ManuallyDrop::new(Arc::from_raw(link.cast::<Link>()));
        Arc::clone(&borrowed)
    };
    link.open(dev).map_or_else(Error::to_errno, |()| 0)
}

/// Takes an interface down.
#[no_mangle]
extern "C" fn tofu_rs_net_stop(link: *mut c_void) {
    // SAFETY: netdev.c passes the link of its interface.
    unsafe { link_of(link) }.stop();
}

/// Sends a frame.
#[no_mangle]
extern "C" fn tofu_rs_net_xmit(
    link: *mut c_void,
    dev: *mut NetDevice,
    skb: *mut SkBuff,
    more: bool,
) {
    // SAFETY: as above.
    unsafe { link_of(link) }.xmit(dev, skb, more);
}

/// Receives.
#[no_mangle]
extern "C" fn tofu_rs_net_poll(link: *mut c_void, dev: *mut NetDevice, budget: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { link_of(link) }.poll(dev, budget)
}

/// Waits for the next interrupt.
#[no_mangle]
extern "C" fn tofu_rs_net_rest(link: *mut c_void, dev: *mut NetDevice) -> bool {
    // SAFETY: as above.
    unsafe { link_of(link) }.rest(dev)
}

/// What was done.
#[no_mangle]
extern "C" fn tofu_rs_net_counters(link: *mut c_void, values: *mut u64, n: c_int) {
    // SAFETY: as above, and there are so many values.
    unsafe {
        let values = core::slice::from_raw_parts_mut(values, n as usize);
        link_of(link).counters(values);
    }
}

/// How many counters there are.
#[no_mangle]
extern "C" fn tofu_rs_net_counter_count() -> c_int {
    (COUNTS + REGISTERS.len()) as c_int
}

/// The name of a counter.
#[no_mangle]
extern "C" fn tofu_rs_net_counter_name(n: c_int) -> *const c_char {
    let n = n as usize;
    let register = || REGISTERS.get(n.wrapping_sub(COUNTS)).map(|(name, _)| *name);
    let name = NAMES.get(n).copied().or_else(register);
    name.unwrap_or(c"").as_char_ptr()
}

/// A line about the interface; its length.
#[no_mangle]
extern "C" fn tofu_rs_net_show(
    link: *mut c_void,
    what: c_int,
    buf: *mut c_char,
    size: usize,
) -> isize {
    // SAFETY: as above, and the buffer has that size.
    let (link, buf) = unsafe {
        (
            link_of(link),
            core::slice::from_raw_parts_mut(buf.cast::<u8>(), size),
        )
    };
    let mut text = Text { buf, len: 0 };
    match link.show(what, &mut text) {
        Ok(()) => text.len as isize,
        Err(_) => EINVAL.to_errno() as isize,
    }
}

/// Reads or sets how long interrupts are held back.
#[no_mangle]
extern "C" fn tofu_rs_net_coalesce(
    link: *mut c_void,
    usecs: *mut u32,
    frames: *mut u32,
    set: bool,
) {
    // SAFETY: as above, and both values are there.
    let (link, usecs, frames) = unsafe { (link_of(link), &mut *usecs, &mut *frames) };
    if !set {
        *usecs = link.coalesce_us.load(Relaxed);
        *frames = link.coalesce_packets.load(Relaxed);
        return;
    }
    link.coalesce_us.store(*usecs, Relaxed);
    link.coalesce_packets.store(*frames, Relaxed);
    let _quiet = Quiet::new();
    if let Some(receiver) = link.rx.lock().receiver.as_ref() {
        receiver.coalesce(u64::from(*usecs) * 1000, (*frames).into());
    }
}
