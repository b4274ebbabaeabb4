//! What a machine is made from.

use tofu_abi::Generation;
use tofu_fabric::{PartId, Shape, Timing, axes_of, bisection_links, links_between};
use tofu_icc::CommandTiming;
use tofu_links::Parameters;

/// How doorbells arrive at the devices of a machine. The guest cannot tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbells {
    /// By an exit or an ioeventfd; engines sleep meanwhile.
    Trapped,
    /// In memory that the guest has mapped and the engines poll. Nodes have such doorbells if they
    /// were made with shared pages; otherwise theirs are trapped. A page that has been quiet for a
    /// while is write-protected, and its next doorbell is trapped.
    Polled,
}

/// How packets go over the links of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// At once: links have no buffers and cost no time.
    #[default]
    Direct,
    /// As frames with credits, in modelled time that goes on with the host's, or behind it.
    Modelled,
}

/// What a machine is made from.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// Its box of nodes.
    pub shape: Shape,
    /// Into how many parts it is cut, and which of them is in this process; `None` if all of it is.
    pub part: Option<(u32, PartId)>,
    /// How packets go over its links.
    pub links: Links,
    /// The machine's generation: the features of its controllers, and the cost of their links and
    /// commands.
    pub generation: Generation,
    /// How doorbells arrive.
    pub doorbells: Doorbells,
    /// How many engines share the nodes; at least one.
    pub engines: usize,
    /// How long a command waits for an answer, in nanoseconds.
    pub timeout_ns: u64,
    /// How long an engine without work polls a doorbell continuously before it polls less and less
    /// often, in nanoseconds.
    pub spin_ns: u64,
}

impl MachineConfig {
    /// A machine like Fugaku of this shape, with one engine and trapped doorbells.
    pub const fn new(shape: Shape) -> Self {
        Self::of(Generation::Fugaku, shape)
    }

    /// The same of another generation.
    pub const fn of(generation: Generation, shape: Shape) -> Self {
        Self {
            shape,
            part: None,
            links: Links::Direct,
            generation,
            doorbells: Doorbells::Trapped,
            engines: 1,
            timeout_ns: 500_000_000,
            spin_ns: 50_000,
        }
    }

    /// Times of its links, if they are direct.
    pub const fn timing(&self) -> Timing {
        Timing::of(self.parameters())
    }

    /// What its links are like.
    pub const fn parameters(&self) -> &'static Parameters {
        Parameters::of(self.generation)
    }

    /// Times of its commands.
    pub const fn commands(&self) -> CommandTiming {
        CommandTiming::of(self.generation)
    }
}

/// What the links of a machine can carry, calculated as in the papers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Bytes a second that all nodes together can send to their neighbours.
    pub injection: u64,
    /// Bytes a second that go between two halves of the machine, in both directions.
    pub bisection: u64,
    /// The part of links that are optical.
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
