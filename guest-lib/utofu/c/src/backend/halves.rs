//! A rank of `tofu run --local` that shares its control queue with another one. The command owns
//! the queue. Each of the two has its own rings, and sends requests for everything else. It maps
//! its memory itself, as ranks with their own queues do.

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::mem;
use std::path::Path;
use std::sync::Arc;

use tofu_driver::{Device, Rings};
use tofu_hosted::{HostPlatform, Mapping};
use tofu_utofu::{ClaimQueue, Code, DriverProvider, Error, MapUser, OpenQueue, Registration};
use tofu_vfio::broker::wire::Refusal;
use tofu_vfio::broker::{
    Broker, BrokerError, BrokerPage, IsolatedDevice, IsolatedQueue, Joined, Part, Wake,
};

use super::hosted::{MRQ_SIZE, Memory};
use super::outside::{OutsideQueue, RingQueue};
use crate::provider::{AnyProvider, any_with};

/// The variable with the abstract socket of the owner of shared queues, behind an `@`.
pub(super) const OWNER: &str = "TOFU_LOCAL_OWNER";
const QUEUE: &str = "shared control queue";

/// Returns the provider of rank `place.0` of `place.1` of a node, which the rank itself has with
/// other ranks. Its queues come from their owner.
pub(super) fn provider<C>(
    node: DriverProvider<HostPlatform, Memory, C>,
    place: (u16, u16),
) -> Result<Arc<AnyProvider>, Error>
where
    C: ClaimQueue<Claim: Send> + Send + Sync + 'static,
{
    let owner = owner(place)?;
    Ok(any_with(node, move |node, queue| {
        let &OpenQueue { tni, cq, stags, session } = queue;
        let queue = owner.open((tni, cq), stags, MRQ_SIZE, session).map_err(refused)?;
        let device = node.device().clone();
        Ok(Box::new(RingQueue::new(HalfQueue { queue, device, mapped: BTreeMap::new() })))
    }))
}

/// Asks the owner of shared queues for what a rank has.
fn owner(place: (u16, u16)) -> Result<IsolatedDevice, Error> {
    let path = env::var_os(OWNER).ok_or_else(|| {
        let hint = "processes that share a control queue need it; `tofu run --local` sets it";
        Error::new(Code::NotAvailable, OWNER, hint)
    })?;
    let gone = || io::Error::from(io::ErrorKind::ConnectionRefused);
    let broker = Broker::connect(Path::new(&path)).and_then(|found| found.ok_or_else(gone));
    let broker = broker
        .map_err(|error| Error::with_text(Code::NotAvailable, OWNER, None, error.to_string()))?;
    match Arc::new(broker).join_any(Some(place)).map_err(refused)? {
        Joined::Isolated(owner) => Ok(owner),
        Joined::Shared(_) => Err(refused(BrokerError::Answer)),
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

/// A rank's half of a control queue.
struct HalfQueue {
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
