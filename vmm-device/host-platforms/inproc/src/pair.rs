//! Two linked devices, for benches.

use std::sync::Arc;

use thiserror::Error;
use tofu_abi::desc::ArmwOp;
use tofu_abi::table::PageSize;
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, CqId, Rcode, StagOffset, TniId};
use tofu_driver::{
    Access, Cq, CqConfig, Device, DeviceError, DmaBuffer, DmaError, Full, MemoryRange, OpenError,
    Order, Platform, StagError, Target,
};
use tofu_machine::{Generation, Links, Machine, MachineConfig, Torus, TorusConfig};
use tofu_tnw::{Nwp, ProbeError};

use crate::{AttachError, Buffer, InProcess};

/// Memory of each node, in bytes: its buffer of [`Pair::BUFFER`] bytes, queues and tables.
const MEMORY: usize = 64 << 20;

/// The reason why a pair cannot be made or used.
#[derive(Debug, Error)]
pub enum PairError {
    /// The machine could not be built.
    #[error(transparent)]
    Machine(#[from] tofu_machine::Error),
    /// A device could not be added to it.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The driver could not start a device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The same of a network processor of TNW.
    #[error(transparent)]
    Nwp(#[from] ProbeError),
    /// The driver could not open a queue.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No memory for buffers.
    #[error(transparent)]
    Memory(#[from] DmaError),
    /// A buffer could not be registered.
    #[error(transparent)]
    Register(#[from] StagError),
    /// More commands than the queue has room for.
    #[error(transparent)]
    Full(#[from] Full),
    /// A command did not end although there is nothing left to do.
    #[error("a command did not end")]
    Lost,
    /// A command failed.
    #[error("{0}")]
    Failed(Rcode),
}

/// Two network processors of TNW that are neighbours on X, enabled, with `size` bytes of memory
/// each. There is no engine thread: the thread that writes to a register or waits does all the
/// work.
///
/// # Errors
///
/// If the host has no memory left.
pub fn nwp_pair(size: usize) -> Result<[Nwp<InProcess>; 2], PairError> {
    let shape = Shape::new([2, 1, 1, 1, 1, 1]).map_err(|_| PairError::Lost)?;
    let torus = Arc::new(Torus::new(TorusConfig::new(shape))?);
    let node = |coords| -> Result<_, PairError> {
        Ok(Nwp::probe(InProcess::attach_nwp(&torus, coords, size)?)?)
    };
    let pair = [node(Coords::default())?, node(Coords::new(1, 0, 0, 0, 0, 0))?];
    // They have greeted each other then.
    torus.run_pending();
    Ok(pair)
}

/// Two neighbouring devices without engine threads: the thread that rings the doorbell does all
/// the work, so its time is the device's.
pub struct Pair {
    cq: Cq<InProcess>,
    _target_cq: Cq<InProcess>,
    to: Target,
    local: StagOffset,
    remote: StagOffset,
    machine: Arc<Machine>,
    // After the queues, whose tables name it.
    _buffers: [Buffer; 2],
}

impl Pair {
    /// Bytes of each node's buffer.
    pub const BUFFER: usize = 16 << 20;

    /// Makes two nodes with a buffer each, in pages of 2 MiB.
    ///
    /// # Errors
    ///
    /// If the host has no memory left.
    pub fn new() -> Result<Self, PairError> {
        Self::over(Links::Direct)
    }

    /// The same over such links. Time on modelled links advances with the host's.
    ///
    /// # Errors
    ///
    /// If the host has no memory left.
    pub fn over(links: Links) -> Result<Self, PairError> {
        Self::of(Generation::Fugaku, links)
    }

    /// The same with the devices of a generation.
    ///
    /// # Errors
    ///
    /// If the host has no memory left.
    pub fn of(generation: Generation, links: Links) -> Result<Self, PairError> {
        let shape = Shape::new([1, 1, 1, 2, 1, 1]).map_err(|_| PairError::Lost)?;
        let config = MachineConfig { links, ..MachineConfig::of(generation, shape) };
        let machine = Arc::new(Machine::new(config)?);
        let end = |coords| -> Result<_, PairError> {
            let platform = InProcess::attach(&machine, coords, MEMORY)?;
            let buffer = platform.alloc_dma(Self::BUFFER, 2 << 20)?;
            let range = MemoryRange { addr: buffer.device_addr(), len: buffer.len() as u64 };
            // Touched before it is measured.
            buffer.write(0, &vec![1; buffer.len()]);
            let device = Device::probe(platform)?;
            device.tni(TniId::ALL[0]).enable()?;
            let mut cq = Cq::open(&device, &CqConfig::new(TniId::ALL[0], CqId::ALL[0]))?;
            let stag = cq.register(&[range], PageSize::Size2M, Access::ReadWrite, None)?;
            Ok((Target::new(coords, TniId::ALL[0]), cq, stag.at(0), buffer))
        };
        let mut nodes = shape.iter();
        let (Some(first), Some(second)) = (nodes.next(), nodes.next()) else {
            return Err(PairError::Lost);
        };
        let (_, cq, local, source) = end(first)?;
        let (to, target_cq, remote, sink) = end(second)?;
        let _buffers = [source, sink];
        Ok(Self { cq, _target_cq: target_cq, to, local, remote, machine, _buffers })
    }

    /// The network between both.
    pub fn network(&self) -> tofu_machine::Network {
        self.machine.network().clone()
    }

    /// A Put of `bytes` bytes, at most [`Pair::BUFFER`], from one buffer to the other.
    pub fn put(&self, bytes: u32) -> Order {
        Order::put(self.to, self.remote, self.local, bytes)
    }

    /// A Get of `bytes` bytes, at most [`Pair::BUFFER`], from the other buffer.
    pub fn get(&self, bytes: u32) -> Order {
        Order::get(self.to, self.remote, self.local, bytes)
    }

    /// An atomic addition to 8 bytes of the other buffer.
    pub fn add(&self) -> Order {
        Order::armw8(self.to, ArmwOp::Add, self.remote, 1)
    }

    /// A Put of 8 bytes that come with the command.
    pub fn piggyback(&self) -> Order {
        let data = 7u64.to_le_bytes();
        Order::put_piggyback(self.to, self.remote, &data).expect("8 bytes fit")
    }

    /// Posts a command, runs it to its end, and takes its completion and notice.
    ///
    /// # Errors
    ///
    /// If the command fails.
    pub fn run(&mut self, order: &Order) -> Result<(), PairError> {
        self.cq.post_and_ring(order, 0)?;
        self.reap(1)
    }

    /// The same for `count` commands that share a doorbell.
    ///
    /// # Errors
    ///
    /// If a command fails, or if they are more than the queue has entries (2048).
    pub fn run_many(&mut self, order: &Order, count: usize) -> Result<(), PairError> {
        for _ in 0..count {
            self.cq.post(order, 0)?;
        }
        self.cq.doorbell();
        self.reap(count)
    }

    fn reap(&mut self, count: usize) -> Result<(), PairError> {
        let (mut reaped, mut idle) = (0, false);
        while reaped < count {
            match self.cq.poll_tcq() {
                Some(done) if done.is_success() => (reaped, idle) = (reaped + 1, false),
                Some(done) => return Err(PairError::Failed(done.rcode)),
                // The results of the last turn have been polled.
                None if idle => return Err(PairError::Lost),
                // A doorbell gives the queue one turn; much work takes several.
                None => idle = !self.machine.run_turn(),
            }
            while self.cq.poll_mrq().is_some() {}
        }
        Ok(())
    }
}
