//! Who gives the process its device: chosen by environment variables, which the manual lists.

mod inproc;
mod local;
mod tof;
mod vfio;

use std::env;
use std::sync::Arc;

use tofu_abi::Coords;
use tofu_abi::barrier::Profile;
use tofu_abi::reduce::{Input, Op, Value};
use tofu_utofu::{Channel, Code, Context, Error, OpenQueue, Provider, Queue, VbgSetting};

use crate::process::Process;

/// A provider of whatever kind.
#[derive(Clone)]
pub(crate) struct AnyProvider(Arc<dyn AnyQueueProvider>);

/// A control queue of whatever kind.
pub(crate) type AnyQueue = Box<dyn Queue + Send>;

/// A barrier channel of whatever kind.
pub(crate) struct AnyChannel(Box<dyn AnyBarrier>);

impl AnyProvider {
    fn new<P>(provider: Arc<P>) -> Self
    where
        P: Provider + Send + Sync + 'static,
        P::Queue: Send + 'static,
        P::Channel: Send + 'static,
    {
        Self(Arc::new(Erased(provider)))
    }
}

/// A [`Channel`] without its type.
trait AnyBarrier: Send {
    fn start(&mut self, op: Op, input: &Input, count: u8) -> Result<(), Error>;
    fn poll(&mut self) -> Result<Option<Value>, Error>;
    fn close(self: Box<Self>) -> Result<(), Error>;
}

impl<C: Channel + Send> AnyBarrier for C {
    fn start(&mut self, op: Op, input: &Input, count: u8) -> Result<(), Error> {
        Channel::start(self, op, input, count)
    }

    fn poll(&mut self) -> Result<Option<Value>, Error> {
        Channel::poll(self)
    }

    fn close(self: Box<Self>) -> Result<(), Error> {
        Channel::close(*self)
    }
}

impl Channel for AnyChannel {
    fn start(&mut self, op: Op, input: &Input, count: u8) -> Result<(), Error> {
        self.0.start(op, input, count)
    }

    fn poll(&mut self) -> Result<Option<Value>, Error> {
        self.0.poll()
    }

    fn close(self) -> Result<(), Error> {
        self.0.close()
    }
}

/// A [`Provider`] without its types of queue and channel.
trait AnyQueueProvider: Send + Sync {
    fn coords(&self) -> Coords;
    fn open(&self, queue: &OpenQueue) -> Result<AnyQueue, Error>;
    fn barrier_profile(&self) -> Profile;
    fn take_gates(&self, tni: u8, relays: usize) -> Result<Option<u64>, Error>;
    fn give_gates(&self, tni: u8, gates: u64);
    fn open_channel(&self, tni: u8, bch: u8, gates: &[VbgSetting]) -> Result<AnyChannel, Error>;
    fn relax(&self);
}

struct Erased<P>(Arc<P>);

impl<P> AnyQueueProvider for Erased<P>
where
    P: Provider + Send + Sync,
    P::Queue: Send + 'static,
    P::Channel: Send + 'static,
{
    fn coords(&self) -> Coords {
        self.0.coords()
    }

    fn open(&self, queue: &OpenQueue) -> Result<AnyQueue, Error> {
        Ok(Box::new(self.0.open(queue)?))
    }

    fn barrier_profile(&self) -> Profile {
        self.0.barrier_profile()
    }

    fn take_gates(&self, tni: u8, relays: usize) -> Result<Option<u64>, Error> {
        self.0.take_gates(tni, relays)
    }

    fn give_gates(&self, tni: u8, gates: u64) {
        self.0.give_gates(tni, gates);
    }

    fn open_channel(&self, tni: u8, bch: u8, gates: &[VbgSetting]) -> Result<AnyChannel, Error> {
        Ok(AnyChannel(Box::new(self.0.open_channel(tni, bch, gates)?)))
    }

    fn relax(&self) {
        self.0.relax();
    }
}

impl Provider for AnyProvider {
    type Queue = AnyQueue;
    type Channel = AnyChannel;

    fn coords(&self) -> Coords {
        self.0.coords()
    }

    fn open(&self, queue: &OpenQueue) -> Result<AnyQueue, Error> {
        self.0.open(queue)
    }

    fn barrier_profile(&self) -> Profile {
        self.0.barrier_profile()
    }

    fn take_gates(&self, tni: u8, relays: usize) -> Result<Option<u64>, Error> {
        self.0.take_gates(tni, relays)
    }

    fn give_gates(&self, tni: u8, gates: u64) {
        self.0.give_gates(tni, gates);
    }

    fn open_channel(&self, tni: u8, bch: u8, gates: &[VbgSetting]) -> Result<AnyChannel, Error> {
        self.0.open_channel(tni, bch, gates)
    }

    fn relax(&self) {
        self.0.relax();
    }
}

/// Where devices come from.
pub(crate) enum Backend {
    /// A machine in this process.
    InProcess(inproc::InProcess),
    /// Nodes in another process of this host.
    Served(local::Served),
    /// A device of this computer's, by the kernel driver.
    Tof(tof::Tof),
    /// A device of this computer's, by VFIO.
    Vfio(vfio::Vfio),
}

impl Backend {
    /// Processes in the sense of uTofu that are in this process.
    pub(crate) fn processes(&self) -> usize {
        match self {
            Self::InProcess(machine) => machine.processes(),
            Self::Served(nodes) => nodes.processes(),
            Self::Tof(_) | Self::Vfio(_) => 1,
        }
    }

    /// The one with this number.
    pub(crate) fn process(&self, index: usize) -> Result<Process, Error> {
        let (provider, place) = match self {
            Self::InProcess(machine) => machine.process(index)?,
            Self::Served(nodes) => nodes.process(index)?,
            Self::Tof(device) => device.process()?,
            Self::Vfio(device) => device.process()?,
        };
        Ok(Context::new(Arc::new(provider), place))
    }
}

/// What the environment asks for.
pub(crate) fn choose() -> Result<Backend, Error> {
    match env::var("TOFU_PROVIDER").as_deref() {
        Ok("inproc") => inproc::InProcess::new().map(Backend::InProcess),
        Ok("local") => local::Served::new().map(Backend::Served),
        Ok("tof") => tof::Tof::open().map(Backend::Tof),
        Ok("vfio") => vfio::Vfio::open().map(Backend::Vfio),
        // A program in a guest finds its device by itself.
        Err(env::VarError::NotPresent) if tof::Tof::is_there() => {
            tof::Tof::open().map(Backend::Tof)
        }
        Err(env::VarError::NotPresent) => vfio::Vfio::open().map(Backend::Vfio),
        _ => {
            let hint = "the environment variable is not `inproc`, `local`, `tof` or `vfio`";
            Err(Error::new(Code::NotAvailable, "TOFU_PROVIDER", hint))
        }
    }
}
