// SPDX-License-Identifier: GPL-2.0

//! The kernel's view of an interface, and the functions that netdev.c calls.

use core::fmt::Write;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

use kernel::ffi::{c_char, c_int, c_void};
use kernel::prelude::*;
use kernel::str::CStr;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;

use tofu_abi::irq::vector;
use tofu_abi::topology::Shape;
use tofu_abi::TniId;
use tofu_ipotofu::addr;
use tofu_ipotofu::neighbor::LocalNode;
use tofu_ipotofu::wire::{MAX_MTU, MIN_MTU};

use super::ethtool;
use super::link::{Link, Place, Quiet};
use crate::device::Device;
use crate::engine::{Health, Peers};
use crate::packets;
use crate::shim::{self, NetDevice, NetQueue, NetSetup, SkBuff};
use crate::skb::Skb;
use crate::text::Text;
use crate::tx_queue::TxQueue;

/// The most queues of an interface.
const MAX_QUEUES: usize = 3;
/// The most interfaces. Each has its own TNI, from 0 on.
const MAX_INTERFACES: u32 = 2;
/// Added to the number of the machine in the addresses of the second interface.
const SECOND_MACHINE: u8 = 4;

/// The TNI of a queue of the interface whose first queue has TNI `first`. The interfaces take
/// alternate TNIs, so that they never share one.
const fn tni_of(first: TniId, number: u8) -> Option<TniId> {
    TniId::new(first.get() + number * MAX_INTERFACES as u8)
}

impl Link {
    /// Writes a line about the interface.
    fn show(&self, what: c_int, to: &mut Text<'_>) -> core::fmt::Result {
        let LocalNode { shape, machine, me } = self.node;
        match what {
            0 => writeln!(to, "{}", me.separated(' ')),
            1 => {
                let [a, b, c, d] = addr::ipv4(machine, me);
                let bits = addr::ipv4_prefix(&shape, machine);
                writeln!(to, "{a}.{b}.{c}.{d}/{bits}")
            }
            2 => {
                let address = core::net::Ipv6Addr::from(addr::ipv6(machine, me));
                writeln!(to, "{address}/{}", addr::IPV6_PREFIX)
            }
            3 => writeln!(to, "{shape}"),
            4 => {
                write!(to, "{}", self.tni)?;
                for tni in (1..self.queues).filter_map(|number| tni_of(self.tni, number)) {
                    write!(to, " {tni}")?;
                }
                writeln!(to)
            }
            _ => {
                let _quiet = Quiet::new();
                let tx = self.tx.lock();
                for (name, up) in tx.outbound.ports().named() {
                    writeln!(to, "{name} {}", if up { "up" } else { "down" })?;
                }
                Ok(())
            }
        }
    }
}

/// A registered interface. Dropping it unregisters it.
pub(crate) struct Interface {
    dev: *mut NetDevice,
    _links: KVec<Arc<Link>>,
}

// SAFETY: an interface may be removed by any thread.
unsafe impl Send for Interface {}
// SAFETY: the operations of a shared reference, detach and attach, take the RTNL.
unsafe impl Sync for Interface {}

impl Drop for Interface {
    fn drop(&mut self) {
        // SAFETY: it was added, and is removed once. It is down afterwards.
        unsafe { shim::tofu_shim_net_remove(self.dev) };
    }
}

impl Interface {
    /// Closes the queues, because the device is about to be reset. Addresses and routes stay.
    pub(crate) fn detach(&self) {
        // SAFETY: the interface is there.
        unsafe { shim::tofu_shim_net_detach(self.dev) };
    }

    /// Opens the queues again if the interface is up.
    ///
    /// # Errors
    ///
    /// Those of [`Link::open`].
    pub(crate) fn attach(&self) -> Result {
        // SAFETY: the interface is there.
        kernel::error::to_result(unsafe { shim::tofu_shim_net_attach(self.dev) })
    }
}

/// The interfaces of a node.
pub(crate) type Interfaces = [Option<Interface>; MAX_INTERFACES as usize];

/// Text of a parameter.
///
/// # Safety
///
/// `text` must be null, or a string that lasts as long as the module.
unsafe fn parameter(text: *const c_char) -> Option<&'static str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: it is a string that stays valid, by this function's contract.
    unsafe { CStr::from_char_ptr(text) }.to_str().ok()
}

/// The module's parameters, unchecked.
struct Parameters {
    shape: Option<&'static str>,
    torus: Option<&'static str>,
    machine: u32,
    mtu: u32,
    interfaces: u32,
    queues: u32,
}

impl Parameters {
    fn read() -> Self {
        let (shape, torus) = (shim::tofu_shim_param_shape(), shim::tofu_shim_param_torus());
        // SAFETY: parameters are set before any device is probed, and are read-only, so they stay
        // valid.
        let (shape, torus) = unsafe { (parameter(shape), parameter(torus)) };
        Self {
            shape,
            torus,
            machine: shim::tofu_shim_param_machine(),
            mtu: shim::tofu_shim_param_mtu(),
            interfaces: shim::tofu_shim_param_interfaces(),
            queues: shim::tofu_shim_param_queues(),
        }
    }

    /// The number of requested interfaces.
    fn interfaces(&self, device: &Device) -> usize {
        if self.interfaces > MAX_INTERFACES {
            dev_warn!(
                device.pdev(),
                "interfaces={} is 0, 1 or 2\n",
                self.interfaces
            );
        }
        self.interfaces as usize
    }

    /// The number of queues each interface has.
    fn queues(&self, device: &Device) -> u8 {
        // Each queue has its own TNI, and each interface half of the TNIs.
        let tnis = u32::from(device.description().tnis);
        let most = (tnis / MAX_INTERFACES).min(MAX_QUEUES as u32);
        if !(1..=most).contains(&self.queues) {
            dev_warn!(device.pdev(), "queues={} is 1 to {}\n", self.queues, most);
        }
        self.queues.clamp(1, most) as u8
    }
}

/// The settings of a node's interfaces.
struct Settings {
    shape: Shape,
    /// Number of the machine in the addresses of the first interface.
    machine: u8,
    mtu: u16,
    interfaces: usize,
    queues: u8,
}

impl Settings {
    /// The configuration from the module's parameters. `None` if there can be no interface, which
    /// is logged.
    fn read(device: &Device) -> Option<Self> {
        let parameters = Parameters::read();
        let Some(text) = parameters.shape else {
            dev_info!(
                device.pdev(),
                "no tofu0: the parameter shape is not given\n"
            );
            return None;
        };
        let shape = parse_shape(device, text, parameters.torus)?;
        let (Ok(machine @ 0..=addr::MAX_MACHINE), Ok(mtu @ MIN_MTU..=MAX_MTU)) = (
            u8::try_from(parameters.machine),
            u16::try_from(parameters.mtu),
        ) else {
            dev_err!(
                device.pdev(),
                "no tofu0: machine={} is 0 to 7, mtu={} is 1280 to 65521\n",
                parameters.machine,
                parameters.mtu
            );
            return None;
        };
        if !shape.contains(device.coords()) {
            dev_err!(
                device.pdev(),
                "no tofu0: shape={} does not have this node\n",
                text
            );
            return None;
        }
        Some(Self {
            shape,
            machine,
            mtu,
            interfaces: parameters.interfaces(device),
            queues: parameters.queues(device),
        })
    }
}

/// The shape of the machine. `None` if there is no such shape, which is logged.
fn parse_shape(device: &Device, text: &str, torus: Option<&str>) -> Option<Shape> {
    let Ok(shape) = text.parse::<Shape>() else {
        dev_err!(
            device.pdev(),
            "no tofu0: shape={}: it is six lengths such as 1x1x1x2x3x2, at most 32x32x32x2x3x2\n",
            text
        );
        return None;
    };
    Some(torus.map_or(shape, |axes| shape.with_torus_letters(axes)))
}

/// The initial state of the links: none is dead.
fn new_health(device: &Device, shape: Shape) -> Result<Arc<Health>> {
    let health = Health::new(shape, device.coords())?;
    Ok(Arc::new(health, GFP_KERNEL)?)
}

/// Makes the interfaces that the module's parameters request. A failure is logged, because the
/// device works without an interface.
pub(crate) fn interfaces(device: &Arc<Device>) -> Interfaces {
    let mut made = [None, None];
    let Some(settings) = Settings::read(device) else {
        return made;
    };
    let health = match new_health(device, settings.shape) {
        Ok(health) => health,
        Err(error) => {
            dev_err!(device.pdev(), "no tofu0: {:?}\n", error);
            return made;
        }
    };
    let names = [c"tofu0", c"tofu1"];
    let all = made.iter_mut().zip(names).zip(TniId::ALL);
    for ((made, name), first) in all.take(settings.interfaces) {
        match interface(device, &settings, first, name, &health) {
            Ok(interface) => {
                *made = Some(interface);
                device.set_health(Some(health.clone()));
            }
            Err(error) => dev_err!(device.pdev(), "no tofu{}: {:?}\n", first.get(), error),
        }
    }
    made
}

/// The interface whose first queue has TNI `first`.
fn interface(
    device: &Arc<Device>,
    settings: &Settings,
    first: TniId,
    name: &'static CStr,
    health: &Arc<Health>,
) -> Result<Interface> {
    let machine = (settings.machine + first.get() * SECOND_MACHINE) % (addr::MAX_MACHINE + 1);
    let node = LocalNode {
        shape: settings.shape,
        machine,
        me: device.coords(),
    };
    let peers = Arc::new(Peers::new()?, GFP_KERNEL)?;
    let mut links = KVec::with_capacity(MAX_QUEUES, GFP_KERNEL)?;
    let mut raw = [core::ptr::null_mut(); MAX_QUEUES];
    let mut vectors = [0; MAX_QUEUES];
    for ((number, raw), of) in (0..settings.queues).zip(&mut raw).zip(&mut vectors) {
        let tni = tni_of(first, number).ok_or(EINVAL)?;
        *of = vector::tni(tni);
        let place = Place {
            tni,
            number,
            queues: settings.queues,
        };
        let link = Link::new(device, node, place, peers.clone(), health.clone())?;
        *raw = Arc::as_ptr(&link).cast_mut().cast();
        links.push(link, GFP_KERNEL)?;
    }
    let setup = NetSetup {
        links: raw.as_ptr(),
        vectors: vectors.as_ptr(),
        queues: settings.queues.into(),
        parent: device.raw(),
        name: name.as_char_ptr(),
        mac: addr::mac(node.me),
        mtu: settings.mtu,
        min_mtu: MIN_MTU,
        max_mtu: MAX_MTU,
        rx_buffers: packets::IN,
        tx_buffers: packets::OUT,
    };
    let mut error = 0;
    // SAFETY: the links live as long as the interface.
    let dev = unsafe { shim::tofu_shim_net_add(&setup, &mut error) };
    if dev.is_null() {
        return Err(Error::from_errno(error));
    }
    Ok(Interface { dev, _links: links })
}

/// The link that netdev.c holds.
///
/// # Safety
///
/// `link` must be one that [`interface`] has passed to netdev.c, of an interface that exists.
unsafe fn link_of<'a>(link: *mut c_void) -> &'a Link {
    // SAFETY: it came from an `Arc` of a `Link`, which the interface keeps.
    unsafe { &*link.cast::<Link>() }
}

/// Brings a queue up.
///
/// # Safety
///
/// `link` must be as for [`link_of`], and `queue` its queue. [`tofu_rs_net_stop`] must be called
/// before the interface is freed.
#[no_mangle]
unsafe extern "C" fn tofu_rs_net_open(link: *mut c_void, queue: NonNull<NetQueue>) -> c_int {
    // SAFETY: it came from an `Arc`, which the interface keeps. This takes another reference.
    let link = unsafe {
        let borrowed = ManuallyDrop::new(Arc::from_raw(link.cast::<Link>()));
        Arc::clone(&borrowed)
    };
    // SAFETY: the caller stops the link before the queue's interface is freed, which ends the use
    // by `open`.
    let opened = unsafe { link.open(TxQueue::from_raw(queue)) };
    opened.map_or_else(Error::to_errno, |()| 0)
}

/// Takes a queue down.
///
/// # Safety
///
/// `link` must be as for [`link_of`].
#[no_mangle]
unsafe extern "C" fn tofu_rs_net_stop(link: *mut c_void) {
    // SAFETY: `link` is valid, by this function's contract.
    unsafe { link_of(link) }.stop();
}

/// Sends a frame. Returns false if it must wait; the caller then still owns it.
///
/// # Safety
///
/// `link` must be as for [`link_of`], `queue` its queue, and `skb` a frame that the stack sends by
/// it.
#[no_mangle]
unsafe extern "C" fn tofu_rs_net_xmit(
    link: *mut c_void,
    queue: NonNull<NetQueue>,
    skb: NonNull<SkBuff>,
    more: bool,
) -> bool {
    // SAFETY: `link` and `queue` are of an interface that exists during this call. The stack passes
    // ownership of the frame, which is on no list, unless this returns false.
    let (link, queue, skb) =
        unsafe { (link_of(link), TxQueue::from_raw(queue), Skb::from_raw(skb)) };
    match link.xmit(queue, skb, more) {
        Ok(()) => true,
        Err(skb) => {
            skb.into_raw();
            false
        }
    }
}

/// The queue for a frame. `link` is that of the first one.
///
/// # Safety
///
/// `link` must be as for [`link_of`], and `skb` a frame that stays during the call.
#[no_mangle]
unsafe extern "C" fn tofu_rs_net_select(
    link: *mut c_void,
    skb: NonNull<SkBuff>,
    chosen: u16,
) -> u16 {
    // SAFETY: `link` is valid. The frame is only read while the stack keeps it. It is not freed,
    // because its `Skb` is not dropped.
    let (link, skb) = unsafe { (link_of(link), ManuallyDrop::new(Skb::from_raw(skb))) };
    link.select(&skb, chosen)
}

/// Sets the number of queues in use from the next open on.
///
/// # Safety
///
/// `link` must be as for [`link_of`].
#[no_mangle]
unsafe extern "C" fn tofu_rs_net_queues(link: *mut c_void, queues: u32) {
    // SAFETY: `link` is valid, by this function's contract.
    unsafe { link_of(link) }.set_queues(queues as u8);
}

/// Receives.
///
/// # Safety
///
/// `link` must be as for [`link_of`], and `queue` its queue.
#[no_mangle]
unsafe extern "C" fn tofu_rs_net_poll(
    link: *mut c_void,
    queue: NonNull<NetQueue>,
    budget: c_int,
) -> c_int {
    // SAFETY: `link` and `queue` are of an interface that exists during this call.
    let (link, queue) = unsafe { (link_of(link), TxQueue::from_raw(queue)) };
    link.poll(queue, budget)
}

/// Does the periodic work of a queue.
///
/// # Safety
///
/// `link` must be as for [`link_of`], and `queue` its queue.
#[no_mangle]
unsafe extern "C" fn tofu_rs_net_service(link: *mut c_void, queue: NonNull<NetQueue>) {
    // SAFETY: `link` and `queue` are of an interface that exists during this call.
    let (link, queue) = unsafe { (link_of(link), TxQueue::from_raw(queue)) };
    link.service(queue);
}

/// Ends a poll, and if that was the last one for now, waits for the next interrupt.
///
/// # Safety
///
/// `link` must be as for [`link_of`], and `queue` its queue.
#[no_mangle]
unsafe extern "C" fn tofu_rs_net_polled(
    link: *mut c_void,
    queue: NonNull<NetQueue>,
    idle: bool,
) -> bool {
    // SAFETY: `link` and `queue` are of an interface that exists during this call.
    let (link, queue) = unsafe { (link_of(link), TxQueue::from_raw(queue)) };
    link.polled(queue, idle)
}

/// Adds the counters of a link.
///
/// # Safety
///
/// `link` must be as for [`link_of`], and `values` an array of `n`.
#[no_mangle]
unsafe extern "C" fn tofu_rs_net_counters(link: *mut c_void, values: *mut u64, n: c_int) {
    // SAFETY: `link` is valid, and there are `n` values that nothing else uses during this call.
    let (link, values) = unsafe {
        (
            link_of(link),
            core::slice::from_raw_parts_mut(values, n as usize),
        )
    };
    link.counters(values);
}

/// The number of counters.
#[no_mangle]
extern "C" fn tofu_rs_net_counter_count() -> c_int {
    ethtool::COUNT as c_int
}

/// The name of a counter.
#[no_mangle]
extern "C" fn tofu_rs_net_counter_name(n: c_int) -> *const c_char {
    let name = ethtool::names().nth(n as usize);
    name.unwrap_or(c"").as_char_ptr()
}

/// Writes a line about the interface, and returns its length.
///
/// # Safety
///
/// `link` must be as for [`link_of`], and `buf` have `size` bytes.
#[no_mangle]
unsafe extern "C" fn tofu_rs_net_show(
    link: *mut c_void,
    what: c_int,
    buf: *mut c_char,
    size: usize,
) -> isize {
    // SAFETY: `link` is valid, and the buffer has that size and nothing else uses it.
    let (link, buf) = unsafe {
        (
            link_of(link),
            core::slice::from_raw_parts_mut(buf.cast::<u8>(), size),
        )
    };
    let mut text = Text::new(buf);
    match link.show(what, &mut text) {
        Ok(()) => text.len() as isize,
        Err(_) => EINVAL.to_errno() as isize,
    }
}

/// Reads or sets the interrupt coalescing.
///
/// # Safety
///
/// `link` must be as for [`link_of`], and both values must be valid and not shared.
#[no_mangle]
unsafe extern "C" fn tofu_rs_net_coalesce(
    link: *mut c_void,
    usecs: *mut u32,
    frames: *mut u32,
    set: bool,
) {
    // SAFETY: `link` is valid, and nothing else uses the values during this call.
    let (link, usecs, frames) = unsafe { (link_of(link), &mut *usecs, &mut *frames) };
    if !set {
        *usecs = link.coalesce_us.load(Relaxed);
        *frames = link.coalesce_packets.load(Relaxed);
        return;
    }
    link.coalesce_us.store(*usecs, Relaxed);
    link.coalesce_packets.store(*frames, Relaxed);
    let _quiet = Quiet::new();
    // The guard has a name, so that it is dropped before bottom halves are enabled again.
    let rx = link.rx.lock();
    if let Some(receiver) = rx.receiver.as_ref() {
        receiver.coalesce(u64::from(*usecs) * 1000, (*frames).into());
    }
}
