//! The link of a node that this process drives, on its own thread.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, TniId};
use tofu_driver::{Device, DeviceError, PacketConfig};
use tofu_inproc::{AttachError, InProcess};
use tofu_ipotofu::addr::Mac;
use tofu_ipotofu::{Counters, Link, LinkError};
use tofu_machine::Machine;
use tofu_pci::MsiSink;
use tofu_sync::lock;

use crate::antispoof::is_honest;

/// Network interface of all nodes' links.
const TNI: TniId = TniId::ALL[0];
/// Memory of the node, in bytes: queues, and packet buffers of 2 KiB.
const MEMORY: usize = 16 << 20;
/// Packet buffers in each direction: the most that a device supports, because this node may
/// communicate with all others.
const BUFFERS: u16 = 1024;
/// Frames that are received before tenants get their turn.
const TURN: usize = 256;
/// The time for which the thread sleeps while packets are in flight. It must poll, because nothing
/// wakes it when a packet has met a dead link and must be sent on another path.
const NAP: Duration = Duration::from_millis(1);

/// The settings of the machine's network.
#[derive(Clone, Debug)]
pub struct Config {
    /// The machine.
    pub shape: Shape,
    /// Number of the machine, 0 to 7: part of IP addresses.
    pub machine: u8,
    /// Largest IP packet, in bytes: 1280 to 65521, the same on all nodes.
    pub mtu: u16,
}

impl Config {
    /// Machine 0, MTU 1500.
    pub const fn new(shape: Shape) -> Self {
        Self { shape, machine: 0, mtu: 1500 }
    }

    fn link(&self) -> tofu_ipotofu::Config {
        let config = tofu_ipotofu::Config::new(self.shape);
        tofu_ipotofu::Config { machine: self.machine, mtu: self.mtu, ..config }
    }
}

/// The reason why an I/O node cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum IoNodeError {
    /// It cannot be added to the machine.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Its device does not answer.
    #[error("the device of the I/O node: {0}")]
    Device(#[from] DeviceError),
    /// The link does not come up.
    #[error("the link of the I/O node: {0}")]
    Link(#[from] LinkError),
    /// The host has no descriptors or threads left.
    #[error("no descriptors or threads left: {0}")]
    Host(#[from] std::io::Error),
}

/// Wakes up the thread of an I/O node, so that its tenants work.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Does it; never blocks.
    pub fn wake(&self) {
        // Fails only if the counter is full, which takes more calls than there can be.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Interrupts of the device wake its thread, too.
impl MsiSink for Waker {
    fn notify(&self, _: u16, _: u64, _: u32) {
        self.wake();
    }

    fn update(&self, _: u16, _: u64, _: u32, _: bool) {}
}

/// The way out to the other nodes.
#[derive(Debug)]
pub struct Out<'a> {
    link: &'a mut Link<InProcess>,
}

impl Out<'_> {
    /// Returns true if a frame of any length could be sent now. If not, its tenants' `work` is
    /// called again within about a millisecond.
    pub fn has_room(&mut self) -> bool {
        self.link.has_room()
    }

    /// Sends an Ethernet frame, whose source must be [`Out::mac`]. As on any network, it may be
    /// lost: if there is no room, or no such node.
    pub fn send(&mut self, frame: &[u8]) {
        if let Err(error) = self.link.send(frame) {
            log::trace!("I/O node: {error}");
        }
    }

    /// The hardware address of the node.
    pub fn mac(&self) -> Mac {
        self.link.mac()
    }

    /// Bytes of the longest frame: MTU plus Ethernet header.
    pub fn max_frame(&self) -> usize {
        self.link.config().max_frame()
    }
}

/// A user of the link of an I/O node. All of its methods are called on the node's thread
/// and must not block.
pub trait Tenant: Send {
    /// Handles an arriving frame. It is for this node or for a group. Its hardware address is that
    /// of its sender, and its IP address does not belong to another node. Returns true if it is for
    /// this tenant only; otherwise the next one gets it too.
    fn frame(&mut self, frame: &[u8]) -> bool;

    /// Adds the events to wait for before [`Tenant::work`] is called again.
    fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let _ = fds;
    }

    /// Does the pending work: after frames have arrived, when something of [`Tenant::watch`] is
    /// ready (`ready` has the events of each, in the same order; it is empty or shorter if they
    /// were not polled), when the time that it returned before is over, or when [`Waker::wake`] was
    /// called. Returns how long no further call is needed if nothing else happens.
    fn work(&mut self, ready: &[PollFlags], out: &mut Out<'_>) -> Option<Duration>;
}

/// An I/O node whose link is up, and which is not driven yet.
pub struct Prepared {
    link: Link<InProcess>,
    waker: Waker,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("node", &self.link.coords()).finish_non_exhaustive()
    }
}

impl Prepared {
    /// Puts a device at `at` and opens its link.
    ///
    /// # Errors
    ///
    /// If the place is taken or not in the machine, or the host lacks something.
    pub fn new(machine: &Arc<Machine>, at: Coords, config: &Config) -> Result<Self, IoNodeError> {
        let platform = InProcess::attach(machine, at, MEMORY)?;
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(std::io::Error::from)?;
        let waker = Waker(Arc::new(event));
        if let Some(table) = machine.node(at).and_then(|node| node.endpoint().msix()) {
            table.connect(Arc::new(waker.clone()));
        }
        let device = Device::probe(platform)?;
        let packets =
            PacketConfig { rx_buffers: BUFFERS, tx_buffers: BUFFERS, ..PacketConfig::new(TNI) };
        let link = Link::open(&device, config.link(), &packets)?;
        Ok(Self { link, waker })
    }

    /// The node.
    pub fn coords(&self) -> Coords {
        self.link.coords()
    }

    /// A waker for the future thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Starts the thread. A frame is offered to the tenants in this order; `first` is called on the
    /// thread before anything else, for example to give up rights.
    ///
    /// # Errors
    ///
    /// If the host has no threads left.
    pub fn start(
        self,
        tenants: Vec<Box<dyn Tenant>>,
        first: impl FnOnce() + Send + 'static,
    ) -> Result<IoNode, IoNodeError> {
        let waker = self.waker();
        let stopping = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stopping);
        let stats = LinkStats::default();
        let told = stats.clone();
        let thread = thread::Builder::new().name("io-node".into()).spawn(move || {
            first();
            if let Err(error) = run(self, tenants, &seen, &told) {
                log::error!("the I/O node has stopped: {error}");
            }
        })?;
        Ok(IoNode { waker, stats, stopping, thread: Some(thread) })
    }
}

/// The counters of an I/O node's link, readable from any thread.
#[derive(Clone, Debug, Default)]
pub struct LinkStats(Arc<Mutex<LinkCounters>>);

/// A snapshot of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// The counters of the link.
    pub link: Counters,
    /// Frames that were dropped because an address in them belongs to another node.
    pub forged: u64,
}

impl LinkStats {
    /// The counters as of the last time that the node's thread was idle.
    pub fn now(&self) -> LinkCounters {
        *lock(&self.0)
    }
}

/// A running I/O node. Dropping it ends the node and its tenants.
#[derive(Debug)]
pub struct IoNode {
    waker: Waker,
    stats: LinkStats,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl IoNode {
    /// The counters of its link, which stay readable after the node has ended.
    pub fn stats(&self) -> LinkStats {
        self.stats.clone()
    }

    /// Ends it.
    pub fn stop(&mut self) {
        self.stopping.store(true, SeqCst);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for IoNode {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(
    prepared: Prepared,
    mut tenants: Vec<Box<dyn Tenant>>,
    stopping: &AtomicBool,
    stats: &LinkStats,
) -> Result<(), rustix::io::Errno> {
    let Prepared { mut link, waker } = prepared;
    let (machine, max_frame) = (link.config().machine, link.config().max_frame());
    let mut frame = vec![0; max_frame];
    let mut ready: Vec<Vec<PollFlags>> = tenants.iter().map(|_| Vec::new()).collect();
    while !stopping.load(SeqCst) {
        for _ in 0..TURN {
            let Some(len) = link.recv(&mut frame) else { break };
            if !is_honest(&frame[..len], machine) {
                lock(&stats.0).forged += 1;
                continue;
            }
            // The first that wants it.
            let _ = tenants.iter_mut().any(|tenant| tenant.frame(&frame[..len]));
        }
        let mut timeout: Option<Duration> = None;
        for (tenant, ready) in tenants.iter_mut().zip(&ready) {
            let until = tenant.work(ready, &mut Out { link: &mut link });
            timeout = [timeout, until].into_iter().flatten().min();
        }
        link.flush();
        lock(&stats.0).link = link.counters();
        let mut fds = vec![PollFd::new(&waker.0, PollFlags::IN)];
        let counts: Vec<usize> = tenants
            .iter()
            .map(|tenant| {
                let before = fds.len();
                tenant.watch(&mut fds);
                fds.len() - before
            })
            .collect();
        if link.packets().prepare_sleep() || link.is_ready() {
            timeout = Some(Duration::ZERO);
        } else if !link.is_settled() {
            timeout = Some(timeout.unwrap_or(NAP).min(NAP));
        }
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().min(3600) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error),
        }
        let mut events = fds.iter().map(PollFd::revents);
        if events.next().is_some_and(|events| !events.is_empty()) {
            // The count does not matter.
            let _ = rustix::io::read(&waker.0, &mut [0; 8]);
        }
        for (ready, count) in ready.iter_mut().zip(counts) {
            ready.clear();
            ready.extend(events.by_ref().take(count));
        }
    }
    Ok(())
}

/// Used by tenants for the events that they wait for.
pub(crate) fn watched(fd: &impl AsFd, flags: PollFlags) -> PollFd<'_> {
    PollFd::new(fd, flags)
}
