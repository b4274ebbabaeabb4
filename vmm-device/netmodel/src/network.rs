//! The network: its options, and its interface for callers.
//!
//! # Rules of the model
//!
//! `tofu-netmodel` simulates discrete events, without a clock. *Messages* are injected, each of
//! them consecutive TLPs of one command; each TLP is a frame on the links, which `tofu-links`
//! models.
//!
//! - A node is a crossbar with 16 inputs and outputs: ten ports and six TNIs. Each input of a port
//!   has a receive queue per VC; a TNI has one for requests, one for system packets, and one for
//!   responses.
//! - The first frame of each queue leaves once the output is free, the crossbar can take the frame
//!   from its input, and there is room for the whole frame in the queue at the other end of the
//!   link and in the replay buffer. Each way into and out of a crossbar is as fast as a link (IEEE
//!   Micro).
//! - A crossbar is made of 15 parts, each with five inputs and three outputs (IEEE Micro). How they
//!   are grouped is *ours*: the inputs of ports 0 to 4, of ports 5 to 9, and of the TNIs, and
//!   outputs in their order.
//! - An output serves three parts in turn, and the inputs of a part in turn, so traffic from the
//!   links does not starve when all TNIs send. An input of a port can send a frame through each
//!   part at the same time (ours); a TNI sends one frame at a time. Outputs that want the same
//!   input take turns (ours). With other arbiters long rings gain, and frames may starve.
//! - *Virtual cut-through*: a frame can leave as soon as its header has arrived, a hop after the
//!   header left the previous crossbar.
//! - Room in a queue is known at the other end of the link a hop after the frame's last byte has
//!   left the queue. Room in the replay buffer is known once the acknowledgement of the last byte
//!   has come back.
//! - A TNI sends the messages of a class in the order in which it got them, and holds a limited
//!   number of requests and system messages. A TNI always accepts what arrives.
//! - *Errors* can be set for each direction of a link: the bit error rate of each lane, dead lanes,
//!   and the probability that a DLLP is lost. What does not arrive is retransmitted, so nothing is
//!   lost and no order changes. Random numbers follow from the seed, the link and their count.
//! - *A frame whose end turns out bad* when it is already on its way to the next node is marked as
//!   bad there, and the first receiver that has all of it drops it. Frames with an unreadable
//!   header do not get that far *(ours: that the first 16 bytes are needed)*. A link with fewer
//!   lanes delays a frame before it hands it on, so that the frame leaves no faster than it comes
//!   in.
//! - While a link is down, frames that come to it are discarded. Those already on it arrive, after
//!   retransmission if need be.
//!
//! Messages of one class with the same source, TNI, target and path arrive in the order in which
//! they were injected. Events at a node at the same time are ordered by kind and port, so the same
//! messages have the same fate to the picosecond.
//!
//! Time advances in windows of one hop, as nothing that happens in a window is seen by another node
//! before its end, so the number of threads changes no result.

mod agenda;
mod arbiter;
mod arena;
mod broken;
mod calendar;
mod crossbar;
mod engine;
mod frame;
mod full;
mod mail;
mod message;
mod node;
mod slabs;
mod slot;
mod steps;
mod watched;

use std::collections::BTreeSet;

use tofu_abi::frame::ROUTING_HEADER_SIZE;
use tofu_abi::topology::{NodeId, Port, Shape};
use tofu_abi::{Coords, TniId};
use tofu_fabric::{
    BadErrors, Class, LinkErrors, NoSuchLink, PortCounters, Ps, Route, RouteError, Scheduler, Way,
    XbCounters, XbCycles, is_date_line,
};
use tofu_links::{ErrorRate, Lanes, Parameters};

pub use arbiter::Arbiter;
pub use engine::Totals;
pub use message::{LONGEST_TLP, Message, Refused, Sink};

use node::{Costs, Queued};
use slabs::Slabs;
use slot::CameIn;
use steps::Steps;

/// Bytes of the routing header, which each frame has before its TLP.
const ROUTING_HEADER: u16 = ROUTING_HEADER_SIZE as u16;

/// Most threads that a network may have.
pub const MOST_THREADS: u32 = 64;

/// Options of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The choice of virtual channels on X, Y and Z.
    pub scheduler: Scheduler,
    /// The arbitration of outputs.
    pub arbiter: Arbiter,
    /// Bytes of each receive queue; what the links have if `None`.
    pub queue_bytes: Option<u32>,
    /// Bytes of each replay buffer; what the links have if `None`.
    pub replay_bytes: Option<u32>,
    /// Seed of random link errors.
    pub seed: u64,
    /// The number of requests and system messages a TNI holds until their last frame has left.
    pub backlog: u32,
    /// Threads that run the network. Results do not depend on it.
    pub threads: u32,
    /// Packets that cross a date line keep their channel, so rings lock up.
    #[cfg(test)]
    pub(crate) no_date_lines: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scheduler: Scheduler::default(),
            arbiter: Arbiter::default(),
            queue_bytes: None,
            replay_bytes: None,
            seed: 0,
            backlog: 16,
            threads: 1,
            #[cfg(test)]
            no_date_lines: false,
        }
    }
}

/// An option has an impossible value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, but may be {least} to {most}")]
pub struct BadOption {
    /// The option.
    pub name: &'static str,
    /// Its value.
    pub value: u32,
    /// The least that is allowed.
    pub least: u32,
    /// The most that is allowed.
    pub most: u32,
}

/// The links, crossbars and TNIs of a machine in modelled time.
#[derive(Debug)]
pub struct Network {
    shape: Shape,
    backlog: u32,
    now: Ps,
    slabs: Slabs,
    looked_at: BTreeSet<NodeId>,
}

impl Network {
    /// The idle network of a machine at time 0.
    ///
    /// # Errors
    /// [`BadOption`] if a buffer does not hold the longest frame or is larger than 256 KiB, the
    /// backlog is 0, or there are no threads or more than [`MOST_THREADS`].
    pub fn new(
        shape: Shape,
        parameters: &Parameters,
        options: &Options,
    ) -> Result<Self, BadOption> {
        let row = u32::from(parameters.row);
        let longest = u32::from(parameters.rows(ROUTING_HEADER + LONGEST_TLP)) * row;
        let rows = |name, value: u32| {
            let (least, most) = (longest, 256 << 10);
            if value < least || value > most {
                return Err(BadOption { name, value, least, most });
            }
            Ok((value / row) as u16)
        };
        let replay_bytes = options.replay_bytes.unwrap_or(parameters.replay_bytes);
        let queue_bytes = options.queue_bytes.unwrap_or(parameters.queue_bytes);
        let queue = rows("queue_bytes", queue_bytes)?;
        let replay = rows("replay_bytes", replay_bytes)?;
        let parameters = Parameters { queue_bytes, replay_bytes, ..*parameters };
        if options.backlog == 0 {
            let (value, most) = (options.backlog, u32::MAX);
            return Err(BadOption { name: "backlog", value, least: 1, most });
        }
        if !(1..=MOST_THREADS).contains(&options.threads) {
            let (value, most) = (options.threads, MOST_THREADS);
            return Err(BadOption { name: "threads", value, least: 1, most });
        }
        // Bytes sent until an acknowledgement returns, plus the frames in progress at both times.
        let rate = u64::from(parameters.link_kbytes());
        let unacknowledged =
            2 * parameters.hop_ps() * rate / 1_000_000_000 + 2 * u64::from(longest);
        let costs = Costs {
            parameters,
            scheduler: options.scheduler,
            arbiter: options.arbiter,
            queue,
            longest: (longest / row) as u16,
            replay,
            replay_limits: unacknowledged > u64::from(replay_bytes),
        };
        let Options { seed, threads, .. } = *options;
        let slabs = Slabs::new(&costs, &shape, seed, threads, |node, port| {
            let from = shape.coords(node)?;
            let to = shape.neighbor(from, port)?;
            let (axis, direction) = (port.axis(), port.direction());
            let closes = direction != 0 && is_date_line(&shape, axis, direction > 0, from[axis]);
            #[cfg(test)]
            let closes = closes && !options.no_date_lines;
            Some((shape.node_id(to)?, closes))
        });
        let backlog = options.backlog;
        Ok(Self { shape, backlog, now: 0, slabs, looked_at: BTreeSet::new() })
    }

    /// The machine's shape.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The parameters of the links.
    pub const fn parameters(&self) -> &Parameters {
        self.slabs.parameters()
    }

    /// The time up to which the network has run.
    pub const fn now(&self) -> Ps {
        self.now
    }

    /// When the next event is due; `None` if there is none.
    pub fn next_event(&self) -> Option<Ps> {
        self.slabs.next_at()
    }

    /// The counts of all links.
    pub fn totals(&self) -> Totals {
        self.slabs.totals()
    }

    /// The number of times a frame was sent over a link.
    pub fn hops(&self) -> u64 {
        self.slabs.hops()
    }

    /// The number of directions of links with their data link layer modelled in full: those on
    /// which something goes wrong or recently did, and those that are observed.
    pub fn in_full(&self) -> usize {
        self.slabs.in_full()
    }

    /// Returns true if no message is at a TNI, no frame is in a queue or on a link, and no frame is
    /// unacknowledged.
    pub fn is_idle(&self) -> bool {
        self.slabs.is_idle()
    }

    /// The memory that the network takes, in bytes.
    pub fn memory(&self) -> usize {
        self.slabs.bytes()
    }

    /// The number of requests and system messages that a TNI still accepts. It always accepts
    /// responses.
    ///
    /// 0 if there is no such node.
    pub fn room(&self, node: NodeId, tni: TniId) -> u32 {
        if node.0 >= self.shape.nodes() {
            return 0;
        }
        self.slabs.backlog(node, tni).map_or(0, |backlog| self.backlog - backlog.min(self.backlog))
    }

    /// Hands a message to its TNI, which sends messages of a class in the order of injection.
    ///
    /// # Errors
    /// [`Refused`] if the TNI has no room for another request, or there is no such way or TLP.
    pub fn inject(&mut self, message: &Message) -> Result<(), Refused> {
        let Message { src, src_tni, dst, dst_tni, path, way, class, .. } = *message;
        let sizes = [message.full, message.last];
        if message.tlps == 0 || sizes.iter().any(|size| !(1..=LONGEST_TLP).contains(size)) {
            return Err(Refused::Size { most: LONGEST_TLP.into() });
        }
        let node = self.shape.node_id(src).ok_or(RouteError::Source(src))?;
        if class != Class::Response && self.room(node, src_tni) == 0 {
            return Err(Refused::NoRoom);
        }
        let mut nullified = false;
        let steps = match way {
            Way::Shortest => Steps::new(Route::new(&self.shape, src, dst, path, class)?.legs()),
            Way::Distances(distances) => {
                let (_, route) =
                    Route::by_distances(&self.shape, src, dst, distances, path, class)?;
                Steps::new(route.legs())
            }
            Way::Hop { port, vc, nullified: bad } => {
                if vc > 3 || self.shape.neighbor(src, port).is_none() {
                    return Err(Refused::Port { node: src, port, vc });
                }
                nullified = bad;
                Steps::one_hop(port, vc)
            }
        };
        let queued = Queued {
            token: message.token,
            ready_at: message.ready_at,
            gap: message.gap,
            bus: message.bus,
            steps,
            class,
            nullified,
            dst_tni,
            tlps: message.tlps,
            left: message.tlps,
            full: message.full + ROUTING_HEADER,
            last: message.last + ROUTING_HEADER,
            next: 0,
        };
        self.slabs.inject(self.now, node, src_tni, queued);
        Ok(())
    }

    /// Runs the network up to and including `until`. A time already reached changes nothing.
    pub fn run_until(&mut self, until: Ps, sink: &mut impl Sink) {
        self.slabs.run_until(until, sink);
        self.now = self.now.max(until);
    }

    /// Takes the link at a port up or down, in both directions. Frames already on the link arrive;
    /// later ones are lost.
    ///
    /// # Errors
    /// [`NoSuchLink`] if the machine has no such node or nothing is at that port.
    pub fn set_link(&mut self, node: Coords, port: Port, up: bool) -> Result<(), NoSuchLink> {
        let (near, far) = self.ends(node, port).ok_or(NoSuchLink { node, port })?;
        self.slabs.set_down(self.now, near, port, !up);
        self.slabs.set_down(self.now, far, port.opposite(), !up);
        Ok(())
    }

    /// Sets the errors of the direction of a link out of a port. Nothing is lost by that, because
    /// lost frames are resent. But if no frame gets through for too long, the link goes down.
    ///
    /// # Errors
    /// [`BadErrors`] if there is no such link or lane, or the link could no longer send anything.
    pub fn set_errors(
        &mut self,
        node: Coords,
        port: Port,
        errors: &LinkErrors,
    ) -> Result<(), BadErrors> {
        let (near, far) = self.ends(node, port).ok_or(NoSuchLink { node, port })?;
        let lanes = self.parameters().lanes;
        let rates = (0..).zip(errors.rates);
        let wrong = rates.filter(|(_, rate)| *rate != ErrorRate::NEVER).map(|(lane, _)| lane);
        let dead = (0..8).filter(|lane| errors.dead >> lane & 1 != 0);
        if let Some(lane) = wrong.chain(dead).find(|lane| *lane >= lanes) {
            return Err(BadErrors::Lane { lane, lanes });
        }
        let mut state = Lanes::new(self.parameters());
        (0..lanes).for_each(|lane| state.set_dead(lane, errors.dead >> lane & 1 != 0));
        if !state.works() {
            return Err(BadErrors::Dead { name: self.parameters().name });
        }
        self.slabs.set_errors(self.now, (near, port), far, errors);
        Ok(())
    }

    /// Models the data link layer of all links of these nodes in full, in both directions, so that
    /// a [`Sink`] observes each frame and each data-link-layer packet on them. Other links are
    /// modelled only as far as needed.
    pub fn look_at(&mut self, nodes: &BTreeSet<NodeId>) {
        let former = std::mem::replace(&mut self.looked_at, nodes.clone());
        for node in former.union(nodes) {
            let Some(at) = self.shape.coords(*node) else { continue };
            for port in Port::ALL {
                let Some((near, far)) = self.ends(at, port) else { continue };
                let look = nodes.contains(&near) || nodes.contains(&far);
                self.slabs.look_at(self.now, (near, port), far, look);
                self.slabs.look_at(self.now, (far, port.opposite()), near, look);
            }
        }
    }

    /// Returns true if the link at a port is up; `None` if there is no link.
    pub fn link_up(&self, node: Coords, port: Port) -> Option<bool> {
        let (near, _) = self.ends(node, port)?;
        Some(!self.slabs.is_down(near, port))
    }

    fn ends(&self, node: Coords, port: Port) -> Option<(NodeId, NodeId)> {
        let near = self.shape.node_id(node)?;
        let far = self.shape.node_id(self.shape.neighbor(node, port)?)?;
        Some((near, far))
    }

    /// The counters of a port; `None` if the machine has no such node.
    pub fn port_counters(&self, node: NodeId, port: Port) -> Option<PortCounters> {
        let at = self.shape.coords(node)?;
        let sending = self.slabs.sending(node, port);
        let mut counters = PortCounters {
            zero_credit: sending.zero_credit.map(|time| time / self.parameters().cycle_ps()),
            tx_discard_system: sending.discarded_system,
            tx_discard_normal: sending.discarded_normal,
            ..PortCounters::default()
        };
        if let Some((_, far)) = self.ends(at, port) {
            let received = self.slabs.came_in(node, port.index());
            counters.recv_tlp = received.frames;
            counters.recv_bytes = received.bytes;
            counters.recv_system = received.system;
            counters.recv_nullified = received.nullified;
            // The frames that have arrived at the other end are those that were sent.
            let sent = self.slabs.came_in(far, port.opposite().index());
            counters.send_tlp = sent.frames;
            counters.send_bytes = sent.bytes;
            counters.send_system = sent.system;
            counters.send_nullified = sent.nullified;
            counters.cut_through = sent.frames.saturating_sub(sending.stored);
            counters.generate_nullified = sending.marked;
            counters.rx_discard_nullified = received.nullified;
            // Without errors, each frame causes an ACK and a return of credit.
            counters.send_dllp = 2 * received.frames;
            counters.recv_dllp = 2 * sent.frames;
            if let Some([out, received]) = self.slabs.watched(node, port, far) {
                counters.recv_dllp -= 2 * received.recv_frames.min(sent.frames);
                counters.recv_dllp += out.recv_dllp;
                counters.send_dllp += out.send_dllp;
                counters.send_nullified += out.send_nullified;
                counters.ack_timeouts = out.ack_timeouts;
                counters.failures = out.failures;
            }
            if let Some([_, into]) = self.slabs.watched(far, port.opposite(), node) {
                counters.send_dllp -= 2 * into.recv_frames.min(received.frames);
                counters.send_dllp += into.send_dllp;
                counters.recv_dllp += into.recv_dllp;
                counters.recv_nullified += into.recv_nullified;
                counters.rx_discard_nullified += into.recv_nullified;
                counters.lcrc_errors = into.lcrc_errors;
                counters.slice_fcs_errors = [0, 1].map(|lane| into.slice_fcs_errors[lane]);
            }
        }
        Some(counters)
    }

    /// The counters of a node's crossbar; `None` if the machine has no such node.
    pub fn xb_counters(&self, node: NodeId) -> Option<XbCounters> {
        self.shape.coords(node)?;
        let cycle = self.parameters().cycle_ps();
        let row = u64::from(self.parameters().row);
        let cycles = |n| {
            let CameIn { bytes, wait, .. } = self.slabs.came_in(node, n);
            XbCycles { data: bytes / row, wait: wait / cycle }
        };
        Some(XbCounters {
            tni: std::array::from_fn(|tni| cycles(Port::COUNT + tni)),
            port: std::array::from_fn(cycles),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_fabric::DiscardReason;

    struct Count(u32);

    impl Sink for Count {
        fn delivered(&mut self, _: Ps, _: NodeId, _: TniId, _: u64) {
            self.0 += 1;
        }

        fn left(&mut self, _: Ps, _: NodeId, _: TniId, _: u64) {}

        fn lost(&mut self, _: Ps, _: NodeId, _: Option<Port>, _: DiscardReason, _: u64) {}
    }

    /// Every node of a ring of six sends three hops ahead, with room for one frame in each queue.
    fn around_a_ring(options: Options) -> (u32, bool) {
        let shape = Shape::new([6, 1, 1, 1, 1, 1]).expect("lengths are within limits");
        let options = Options { queue_bytes: Some(2000), ..options };
        let mut network =
            Network::new(shape, &Parameters::TOFU, &options).expect("room for a frame");
        for from in shape.iter() {
            let dst = Coords { x: (from.x + 3) % 6, ..from };
            for src_tni in TniId::ALL {
                let message = Message { src_tni, tlps: 10, ..Message::longest(from, dst) };
                network.inject(&message).expect("room");
            }
        }
        let mut count = Count(0);
        network.run_until(Ps::MAX, &mut count);
        assert_eq!(network.next_event(), None);
        (count.0, network.is_idle())
    }

    /// Checks that a deadlock shows in the model.
    #[test]
    fn scheduler_without_date_line_locks_up() {
        for scheduler in [Scheduler::DateLine, Scheduler::LookAhead] {
            let options = Options { scheduler, ..Options::default() };
            assert_eq!(around_a_ring(options), (36, true));
        }
        let alone = Options { no_date_lines: true, ..Options::default() };
        let (delivered, idle) = around_a_ring(alone);
        assert!(!idle && delivered < 36, "{delivered}");
    }
}
