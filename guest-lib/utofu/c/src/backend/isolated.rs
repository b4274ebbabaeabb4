//! A device that `tofud` shares among processes of users who are not root. The device isolates
//! them, so each process has its own rings and notices, and sends requests to `tofud` for
//! everything else.

use std::sync::Arc;

use tofu_abi::irq::BgsIrqs;
use tofu_abi::{BchId, Coords, Generation, TniId};
use tofu_driver::{ChannelConfig, Gate, Rings, Rounds};
use tofu_utofu::{
    ClaimQueue, Code, DriverChannel, Error, OpenQueue, Provider, Registration, VbgSetting,
};
use tofu_vfio::broker::wire::Refusal;
use tofu_vfio::broker::{
    Broker, BrokerError, BrokerPage, IsolatedChannel, IsolatedDevice, IsolatedQueue, Part,
    RegisterError, ShareError, Wake,
};

use super::broker::{Claims, Taken, broker_error};
use super::notices::mrq_size;
use super::outside::{OutsideBarrier, OutsideChannel, OutsideQueue, RingQueue};

const QUEUE: &str = "control queue";

/// A process's share of the device.
pub(super) struct IsolatedProvider {
    device: IsolatedDevice,
    claims: Claims,
}

impl IsolatedProvider {
    pub(super) fn new(device: IsolatedDevice, claims: Claims) -> Self {
        Self { device, claims }
    }
}

fn open_error(what: &'static str, number: u8, error: BrokerError) -> Error {
    let number = u64::from(number);
    match error {
        BrokerError::Refused { why: Refusal::NoneLeft, text } => {
            Error::with_text(Code::OutOfMemory, what, Some(number), text)
        }
        BrokerError::Refused { why: Refusal::InUse, .. } => {
            Error::with_value(Code::NotAvailable, what, number, "another process has it")
        }
        error => Error::with_text(Code::Fatal, what, Some(number), error.to_string()),
    }
}

impl Provider for IsolatedProvider {
    type Queue = RingQueue<BrokerQueue>;
    type Channel = DriverChannel<OutsideBarrier<IsolatedChannel>>;

    fn coords(&self) -> Coords {
        self.device.coords()
    }

    fn generation(&self) -> Generation {
        self.device.generation()
    }

    fn open(&self, queue: &OpenQueue) -> Result<Self::Queue, Error> {
        let &OpenQueue { tni, cq, stags, session } = queue;
        let claim = self.claims.claim(tni, cq)?;
        let opened = self.device.open((tni, cq), stags, mrq_size(), session);
        let queue = opened.map_err(|error| open_error(QUEUE, cq.get(), error))?;
        let broker = Arc::clone(self.device.broker());
        Ok(RingQueue::new(BrokerQueue { queue, broker, _claim: claim }))
    }

    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error> {
        self.claims.take_gates(tni, relays)
    }

    fn give_gates(&self, tni: TniId, gates: u64) {
        self.claims.give_gates(tni, gates);
    }

    fn open_channel(
        &self,
        tni: TniId,
        bch: BchId,
        gates: &[VbgSetting],
    ) -> Result<Self::Channel, Error> {
        let gates: Vec<Gate> = gates.iter().map(VbgSetting::gate).collect::<Result<_, _>>()?;
        let profile = self.device.generation().description().barrier;
        let opened = self.device.open_channel(&ChannelConfig::new(tni, bch), profile, &gates)?;
        let channel = opened.map_err(|error| open_error("barrier channel", bch.get(), error))?;
        Ok(DriverChannel::new(OutsideBarrier(channel)))
    }
}

impl OutsideChannel for IsolatedChannel {
    type Memory = Part;
    type Page = BrokerPage;

    #[inline]
    fn rounds_mut(&mut self) -> &mut Rounds<Part, BrokerPage> {
        self.rounds_mut()
    }

    fn exceptions(&self) -> Option<BgsIrqs> {
        self.exceptions()
    }
}

/// A control queue whose STags `tofud` manages.
pub(super) struct BrokerQueue {
    // First, so that the device uses nothing when the rest is dropped.
    queue: IsolatedQueue,
    broker: Arc<Broker>,
    _claim: Option<Taken>,
}

impl BrokerQueue {
    /// Ends the process if `tofud` has gone: nothing arrives any more, and no call could report
    /// that.
    #[cold]
    fn end_without_broker(&self) {
        if self.broker.is_gone() {
            eprintln!("libtofucom: tofud, which has the device, is gone: the process ends");
            // SAFETY: no requirements.
            unsafe { libc::raise(libc::SIGTERM) };
        }
    }
}

impl OutsideQueue for BrokerQueue {
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
        let done = unsafe { self.queue.register((addr, len), stag, offset, read_only) };
        done.map_err(register_error)
    }

    fn deregister(&mut self, stag: u32) -> bool {
        self.queue.deregister(stag).is_ok()
    }

    fn works(&self) -> bool {
        self.end_without_broker();
        self.queue.works()
    }

    fn wake(&self) -> Option<&Wake> {
        self.queue.wake()
    }
}

fn register_error(error: RegisterError) -> Error {
    let what = "memory to be registered";
    let text = |code, error: &dyn ToString| Error::with_text(code, what, None, error.to_string());
    match error {
        RegisterError::Share(error @ (ShareError::Inaccessible | ShareError::Foreign)) => {
            text(Code::InvalidAddress, &error)
        }
        RegisterError::Share(error) => text(Code::Fatal, &error),
        RegisterError::Broker(error @ BrokerError::Refused { why: Refusal::NoneLeft, .. }) => {
            text(Code::OutOfMemory, &error)
        }
        RegisterError::Broker(error) => broker_error(what, error),
    }
}
