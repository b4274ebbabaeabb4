//! The reason why a command fails.

use tofu_abi::Rcode;
use tofu_abi::irq::CqsIrqs;

/// The reason why a command is refused or an address could not be translated: the result code that
/// the owner of the address reports, and the matching interrupt request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) rcode: Rcode,
    pub(crate) irq: CqsIrqs,
}

impl From<Rcode> for Fault {
    /// A fault that is reported by its code alone.
    fn from(rcode: Rcode) -> Self {
        Self { rcode, irq: CqsIrqs::NONE }
    }
}

impl Fault {
    pub(crate) const fn steering(rcode: Rcode) -> Self {
        Self { rcode, irq: CqsIrqs::STEERING_READ_EXCEPTION }
    }

    pub(crate) const fn memory_block(rcode: Rcode) -> Self {
        Self { rcode, irq: CqsIrqs::MB_READ_EXCEPTION }
    }

    /// Memory at a translated address that cannot be read or written.
    pub(crate) const fn payload(write: bool) -> Self {
        let irq =
            if write { CqsIrqs::PAYLOAD_WRITE_EXCEPTION } else { CqsIrqs::PAYLOAD_READ_EXCEPTION };
        Self { rcode: Rcode::PAYLOAD_ACCESS, irq }
    }
}
