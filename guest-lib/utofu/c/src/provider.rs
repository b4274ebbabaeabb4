//! A provider of whatever kind, for a program that chooses when it runs.

use std::sync::Arc;

use tofu_abi::barrier::Profile;
use tofu_abi::reduce::{Input, Op, Value};
use tofu_abi::{BchId, Coords, TniId};
use tofu_utofu::{Channel, Error, OpenQueue, Provider, Queue, VbgSetting};

/// A provider of whatever kind.
#[derive(Clone)]
pub(crate) struct AnyProvider(Arc<dyn AnyQueueProvider>);

/// A control queue of whatever kind.
pub(crate) type AnyQueue = Box<dyn Queue + Send>;

/// A barrier channel of whatever kind.
pub(crate) struct AnyChannel(Box<dyn AnyBarrier>);

impl AnyProvider {
    pub(crate) fn new<P>(provider: Arc<P>) -> Self
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
    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error>;
    fn give_gates(&self, tni: TniId, gates: u64);
    fn open_channel(
        &self,
        tni: TniId,
        bch: BchId,
        gates: &[VbgSetting],
    ) -> Result<AnyChannel, Error>;
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

    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error> {
        self.0.take_gates(tni, relays)
    }

    fn give_gates(&self, tni: TniId, gates: u64) {
        self.0.give_gates(tni, gates);
    }

    fn open_channel(
        &self,
        tni: TniId,
        bch: BchId,
        gates: &[VbgSetting],
    ) -> Result<AnyChannel, Error> {
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

    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error> {
        self.0.take_gates(tni, relays)
    }

    fn give_gates(&self, tni: TniId, gates: u64) {
        self.0.give_gates(tni, gates);
    }

    fn open_channel(
        &self,
        tni: TniId,
        bch: BchId,
        gates: &[VbgSetting],
    ) -> Result<AnyChannel, Error> {
        self.0.open_channel(tni, bch, gates)
    }

    fn relax(&self) {
        self.0.relax();
    }
}
