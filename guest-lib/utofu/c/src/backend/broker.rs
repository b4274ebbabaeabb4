//! Requests to `tofud` of processes that share a device.

use std::sync::Arc;

use tofu_abi::{CqId, TniId};
use tofu_utofu::{ClaimQueue, Code, DeviceShare, Error};
use tofu_vfio::broker::wire::Refusal;
use tofu_vfio::broker::{Broker, BrokerError};

/// Converts a refusal of `tofud` to an error of the library.
pub(super) fn broker_error(what: &'static str, error: BrokerError) -> Error {
    let code = match error {
        BrokerError::Refused { why: Refusal::NoneLeft, .. } => Code::Full,
        BrokerError::Answer => Code::Fatal,
        _ => Code::NotAvailable,
    };
    Error::with_text(code, what, None, error.to_string())
}

/// Claims control queues in a device where other processes have some.
pub(super) struct Claims {
    broker: Arc<Broker>,
    share: DeviceShare,
}

impl Claims {
    /// Creates the claims of a process with this share.
    pub(super) fn new(broker: Arc<Broker>, share: DeviceShare) -> Self {
        Self { broker, share }
    }
}

/// A control queue that has been claimed.
pub(super) struct Taken {
    broker: Arc<Broker>,
    tni: TniId,
    cq: CqId,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.broker.give(self.tni, self.cq);
    }
}

impl ClaimQueue for Claims {
    type Claim = Option<Taken>;

    fn claim(&self, tni: TniId, cq: CqId) -> Result<Option<Taken>, Error> {
        if self.share.owns(tni, cq) {
            return Ok(None);
        }
        match self.broker.take(tni, cq) {
            Ok(()) => Ok(Some(Taken { broker: Arc::clone(&self.broker), tni, cq })),
            Err(BrokerError::Refused { why: Refusal::InUse, .. }) => {
                let hint = "another process has it";
                Err(Error::with_value(Code::NotAvailable, "control queue", cq.get().into(), hint))
            }
            Err(BrokerError::Gone(_)) => {
                let hint = "tofud, which knows who has it, is gone";
                Err(Error::with_value(Code::OutOfResource, "control queue", cq.get().into(), hint))
            }
            Err(error) => Err(broker_error("control queue", error)),
        }
    }

    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error> {
        let Ok(relays) = u8::try_from(relays) else { return Ok(None) };
        match self.broker.take_gates(tni, relays) {
            Ok(gates) => Ok(Some(gates)),
            Err(BrokerError::Refused { why: Refusal::NoneLeft, .. }) => Ok(None),
            Err(BrokerError::Gone(_)) => {
                let hint = "tofud, which knows who has them, is gone";
                Err(Error::with_value(
                    Code::OutOfResource,
                    "barrier gates of TNI",
                    tni.get().into(),
                    hint,
                ))
            }
            Err(error) => Err(broker_error("barrier gates", error)),
        }
    }

    fn give_gates(&self, tni: TniId, gates: u64) {
        self.broker.give_gates(tni, gates);
    }
}
