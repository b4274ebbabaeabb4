//! The configuration of a machine.

use std::sync::Arc;

use tofu_abi::Generation;
use tofu_fabric::{NodeId, Port, Shape, ShardId, Timing, axes_of, bisection_links, links_between};
use tofu_icc::{Body, CommandTiming};
use tofu_links::Parameters;
use tofu_netmodel::HostBus;

use crate::cables::Transport;

/// The delivery of doorbells to the devices of a machine. The guest cannot see the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbells {
    /// By an exit or an ioeventfd. Engines sleep until then.
    Trapped,
    /// In memory that the guest maps and the engines poll. Only nodes made with shared pages have
    /// such doorbells; those of other nodes are trapped. A page that has been quiet for a while is
    /// write-protected, and its next doorbell is trapped.
    Polled,
}

/// The model of the links of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Without delay: links have no buffers and cost no time.
    #[default]
    Direct,
    /// As frames with credits, in modelled time that follows the host's time or lags behind it.
    Modelled,
}

/// The configuration of a machine.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// The box of nodes.
    pub shape: Shape,
    /// The transport of packets over the links.
    pub links: Links,
    /// The machine's generation: the features of its controllers, and the cost of their links and
    /// commands.
    pub generation: Generation,
    /// The delivery of doorbells.
    pub doorbells: Doorbells,
    /// Number of engines that share the nodes; at least one.
    pub engines: usize,
    /// The time for which a command waits for an answer, in nanoseconds.
    pub timeout_ns: u64,
    /// The time for which an engine without work polls a doorbell continuously before it polls less
    /// and less often, in nanoseconds.
    pub spin_ns: u64,
}

impl MachineConfig {
    /// A Fugaku machine of this shape, with one engine and trapped doorbells.
    pub const fn new(shape: Shape) -> Self {
        Self::of(Generation::Fugaku, shape)
    }

    /// Like [`MachineConfig::new`], for a machine of another generation.
    pub const fn of(generation: Generation, shape: Shape) -> Self {
        Self {
            shape,
            links: Links::Direct,
            generation,
            doorbells: Doorbells::Trapped,
            engines: 1,
            timeout_ns: 500_000_000,
            spin_ns: 50_000,
        }
    }

    /// Timing of the links, if they are direct.
    pub const fn timing(&self) -> Timing {
        Timing::of(self.parameters())
    }

    /// Parameters of the links.
    pub const fn parameters(&self) -> &'static Parameters {
        Parameters::of(self.generation)
    }

    /// Timing of the commands.
    pub const fn commands(&self) -> CommandTiming {
        CommandTiming::of(self.generation)
    }

    /// The bus between memory and interfaces, if it slows modelled links down.
    pub(crate) fn bus(&self) -> Option<HostBus<Body>> {
        let bus = self.commands().bus_bytes_per_s;
        bus.map(|bytes_per_s| HostBus { bytes_per_s, data: Body::payload_bytes })
    }
}

/// Connections of a machine to the outside.
#[derive(Default)]
pub struct Surroundings {
    /// The shard of the machine in this process; `None` if the whole machine is in it.
    pub shard: Option<Shard>,
    /// Called when a modelled link has failed.
    pub link_failed: Option<LinkFailed>,
}

/// A callback for a port that takes down a modelled link because no frame gets through any more.
/// The thread that drives the links calls it, so it must not inspect the links.
pub type LinkFailed = Box<dyn Fn(NodeId, Port) + Send + Sync>;

/// The shard of a machine that is in this process.
pub struct Shard {
    /// The number of shards.
    pub count: u32,
    /// This one.
    pub own: ShardId,
    /// The transport to the others. A shard counts as present after
    /// [`Network::shard_came`](crate::Network::shard_came).
    pub transport: Arc<dyn Transport>,
}

/// The capacity of a machine's links, calculated as in the papers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Bandwidth with which all nodes together can send to their neighbours, in bytes per second.
    pub injection: u64,
    /// Bandwidth between two halves of the machine, both directions together, in bytes per second.
    pub bisection: u64,
    /// The fraction of links that are optical.
    pub optical: f64,
}

impl Capacity {
    /// The capacity of a machine of this generation and shape.
    pub fn of(generation: Generation, shape: &Shape) -> Self {
        let description = generation.description();
        let electric = description.electric_block.and_then(|block| Shape::new(block).ok());
        let optical = electric.map_or(0.0, |block| {
            let (optical, all) = links_between(shape, &block);
            optical as f64 / all.max(1) as f64
        });
        Self {
            injection: u64::from(shape.nodes()) * description.injection_bytes_per_s(),
            bisection: bisection_links(&axes_of(shape)) * description.link.bytes_per_s(),
            optical,
        }
    }
}
