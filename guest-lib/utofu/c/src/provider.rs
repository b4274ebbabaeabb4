//! A provider whose kind is chosen at run time.

use std::sync::Arc;

use tofu_abi::{BchId, Coords, Generation, TniId};
use tofu_utofu::{Channel, Error, OpenQueue, Provider, Queue, VbgSetting};

use crate::link_state;

/// A control queue of any kind.
type AnyQueue = Box<dyn Queue + Send>;
/// A barrier channel of any kind.
type AnyChannel = Box<dyn Channel + Send>;

/// A provider of any kind.
pub(crate) type AnyProvider = dyn Provider<Queue = AnyQueue, Channel = AnyChannel> + Send + Sync;

/// Erases the types of a provider's queues and channels.
pub(crate) fn any<P>(provider: Arc<P>) -> Arc<AnyProvider>
where
    P: Provider + Send + Sync + 'static,
    P::Queue: Send + 'static,
    P::Channel: Send + 'static,
{
    Arc::new(Erased(provider))
}

struct Erased<P>(Arc<P>);

impl<P> Provider for Erased<P>
where
    P: Provider,
    P::Queue: Send + 'static,
    P::Channel: Send + 'static,
{
    type Queue = AnyQueue;
    type Channel = AnyChannel;

    fn coords(&self) -> Coords {
        self.0.coords()
    }

    fn open(&self, queue: &OpenQueue) -> Result<AnyQueue, Error> {
        Ok(Box::new(self.0.open(queue)?))
    }

    fn generation(&self) -> Generation {
        self.0.generation()
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
        let gates = link_state::signals(self.0.coords(), gates);
        Ok(Box::new(self.0.open_channel(tni, bch, &gates)?))
    }

    fn relax(&self) {
        self.0.relax();
    }
}
