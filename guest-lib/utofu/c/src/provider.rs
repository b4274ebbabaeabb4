//! A provider whose kind is chosen at run time.

use std::sync::Arc;

use tofu_abi::{BchId, Coords, Generation, TniId};
use tofu_utofu::{Channel, Error, OpenQueue, Provider, Queue, VbgSetting};

use crate::link_state;

/// A control queue of any kind.
pub(crate) type AnyQueue = Box<dyn Queue + Send>;
/// A barrier channel of any kind.
type AnyChannel = Box<dyn Channel + Send>;

/// A provider of any kind.
pub(crate) type AnyProvider = dyn Provider<Queue = AnyQueue, Channel = AnyChannel> + Send + Sync;

/// Erases the types of a provider's queues and channels.
pub(crate) fn any<P>(provider: P) -> Arc<AnyProvider>
where
    P: Provider<Queue: Send + 'static, Channel: Send + 'static> + Send + Sync + 'static,
{
    any_with(provider, |provider, queue| Ok(Box::new(provider.open(queue)?)))
}

/// The same for a provider whose queues are opened in another way.
pub(crate) fn any_with<P>(
    provider: P,
    open: impl Fn(&P, &OpenQueue) -> Result<AnyQueue, Error> + Send + Sync + 'static,
) -> Arc<AnyProvider>
where
    P: Provider<Channel: Send + 'static> + Send + Sync + 'static,
{
    Arc::new(Erased { provider, open })
}

struct Erased<P, F> {
    provider: P,
    open: F,
}

impl<P, F> Provider for Erased<P, F>
where
    P: Provider<Channel: Send + 'static>,
    F: Fn(&P, &OpenQueue) -> Result<AnyQueue, Error>,
{
    type Queue = AnyQueue;
    type Channel = AnyChannel;

    fn coords(&self) -> Coords {
        self.provider.coords()
    }

    fn open(&self, queue: &OpenQueue) -> Result<AnyQueue, Error> {
        (self.open)(&self.provider, queue)
    }

    fn generation(&self) -> Generation {
        self.provider.generation()
    }

    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error> {
        self.provider.take_gates(tni, relays)
    }

    fn give_gates(&self, tni: TniId, gates: u64) {
        self.provider.give_gates(tni, gates);
    }

    fn open_channel(
        &self,
        tni: TniId,
        bch: BchId,
        gates: &[VbgSetting],
    ) -> Result<AnyChannel, Error> {
        let gates = link_state::signals(self.provider.coords(), gates);
        Ok(Box::new(self.provider.open_channel(tni, bch, &gates)?))
    }

    fn relax(&self) {
        self.provider.relax();
    }
}
