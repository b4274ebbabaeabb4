//! A rank of `tofu run --local` that shares its control queue with another one. The command owns
//! the queue. Each of the two has its own rings, and sends requests for everything else. It maps
//! its memory itself, as ranks with their own queues do.

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::mem;
use std::path::Path;
use std::sync::Arc;

use tofu_abi::{BchId, Coords, Generation, TniId};
use tofu_driver::{Device, Rings};
use tofu_hosted::{HostPlatform, Mapping};
use tofu_utofu::{
    ClaimQueue, Code, DriverProvider, Error, MapUser, OpenQueue, Provider, Registration, VbgSetting,
};
use tofu_vfio::broker::wire::Refusal;
use tofu_vfio::broker::{
    Broker, BrokerError, BrokerPage, IsolatedDevice, IsolatedQueue, Joined, Part, Wake,
};

use super::hosted::{MRQ_SIZE, Memory};
use super::outside::{OutsideQueue, RingQueue};

/// The variable with the abstract socket of the owner of shared queues, behind an `@`.
pub(super) const OWNER: &str = "TOFU_LOCAL_OWNER";
const QUEUE: &str = "shared control queue";

/// The node as the rank itself has it, with other ranks.
type Node<C> = DriverProvider<HostPlatform, Memory, C>;

/// A rank's share of the node.
pub(super) struct HalfProvider<C> {
    node: Node<C>,
    owner: IsolatedDevice,
}

impl<C: ClaimQueue> HalfProvider<C> {
    /// Asks the owner for what rank `place.0` of `place.1` of the node has.
    pub(super) fn new(node: Node<C>, place: (u16, u16)) -> Result<Self, Error> {
        let path = env::var_os(OWNER).ok_or_else(|| {
            let hint = "processes that share a control queue need it; `tofu run --local` sets it";
            Error::new(Code::NotAvailable, OWNER, hint)
        })?;
        let gone = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let broker = Broker::connect(Path::new(&path)).and_then(|found| found.ok_or_else(gone));
        let broker = broker.map_err(|error| {
            Error::with_text(Code::NotAvailable, OWNER, None, error.to_string())
        })?;
        match Arc::new(broker).join_any(Some(place)).map_err(refused)? {
            Joined::Isolated(owner) => Ok(Self { node, owner }),
            Joined::Shared(_) => Err(refused(BrokerError::Answer)),
        }
    }
}

fn refused(error: BrokerError) -> Error {
    match error {
        BrokerError::Refused { why, text } => {
            let code = match why {
                Refusal::InUse => Code::NotAvailable,
                Refusal::NoneLeft => Code::OutOfMemory,
                Refusal::NoDevice | Refusal::Wrong => Code::Fatal,
            };
            Error::with_text(code, QUEUE, None, text)
        }
        _ => Error::new(Code::Fatal, QUEUE, "`tofu run`, which has it, does not answer"),
    }
}

impl<C: ClaimQueue> Provider for HalfProvider<C> {
    type Queue = RingQueue<HalfQueue>;
    type Channel = <Node<C> as Provider>::Channel;

    fn coords(&self) -> Coords {
        self.node.coords()
    }

    fn generation(&self) -> Generation {
        self.node.generation()
    }

    fn open(&self, queue: &OpenQueue) -> Result<Self::Queue, Error> {
        let &OpenQueue { tni, cq, stags, session } = queue;
        let queue = self.owner.open((tni, cq), stags, MRQ_SIZE, session).map_err(refused)?;
        let device = self.node.device().clone();
        Ok(RingQueue::new(HalfQueue { queue, device, mapped: BTreeMap::new() }))
    }

    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error> {
        self.node.take_gates(tni, relays)
    }

    fn give_gates(&self, tni: TniId, gates: u64) {
        self.node.give_gates(tni, gates);
    }

    fn open_channel(
        &self,
        tni: TniId,
        bch: BchId,
        gates: &[VbgSetting],
    ) -> Result<Self::Channel, Error> {
        self.node.open_channel(tni, bch, gates)
    }

    fn relax(&self) {
        self.node.relax();
    }
}

/// A rank's half of a control queue.
pub(super) struct HalfQueue {
    // First, so that it is closed before its memory is unmapped.
    queue: IsolatedQueue,
    device: Device<HostPlatform>,
    mapped: BTreeMap<u32, Mapping>,
}

impl OutsideQueue for HalfQueue {
    type Memory = Part;
    type Page = BrokerPage;
    const POLLS_WITHOUT_QUESTION: u32 = 1 << 13;

    #[inline]
    fn rings(&self) -> &Rings<Part, BrokerPage> {
        self.queue.rings()
    }

    #[inline]
    fn rings_mut(&mut self) -> &mut Rings<Part, BrokerPage> {
        self.queue.rings_mut()
    }

    unsafe fn register(&mut self, memory: &Registration) -> Result<(), Error> {
        let &Registration { addr, len, stag, offset, read_only } = memory;
        // SAFETY: guaranteed by the caller.
        let mapped = unsafe { Memory.map_user(self.device.platform(), addr, len)? };
        let at = (mapped.device_addr, len as u64);
        self.queue.register_mapped(at, stag, offset, read_only).map_err(refused)?;
        self.mapped.insert(stag, mapped.mapping);
        Ok(())
    }

    fn deregister(&mut self, stag: u32) -> bool {
        let mapping = self.mapped.remove(&stag);
        let released = self.queue.deregister(stag).is_ok();
        if !released {
            // The device may still use it.
            mem::forget(mapping);
        }
        released
    }

    fn works(&self) -> bool {
        self.queue.works()
    }

    fn wake(&self) -> Option<&Wake> {
        self.queue.wake()
    }
}
