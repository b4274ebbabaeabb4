//! Registered memory of programs: all of it is in the memory of the model's nodes.
#![allow(unsafe_code)]

use tofu_inproc::{Buffer, InProcess};
use tofu_utofu::ids::Stadd;
use tofu_utofu::{Code, DriverProvider, Error, MapUser, Mapped, Vcq};

/// The source of control queues of a node.
pub(super) type Provider = DriverProvider<InProcess, NodeMemory>;

/// Maps memory that the node's device reaches already.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeMemory;

impl MapUser<InProcess> for NodeMemory {
    type Mapping = ();

    unsafe fn map_user(
        &self,
        platform: &InProcess,
        addr: usize,
        len: usize,
    ) -> Result<Mapped<()>, Error> {
        let device_addr = platform.memory().device_addr(addr, len).ok_or_else(|| {
            let hint = "it is not memory of the node";
            Error::with_value(Code::InvalidAddress, "memory, at", addr as u64, hint)
        })?;
        Ok(Mapped { mapping: (), device_addr, isolated: false })
    }
}

/// Registers a buffer with a queue, for as long as the queue is open.
pub(super) fn register(vcq: &Vcq<Provider>, buffer: &Buffer) -> Result<Stadd, Error> {
    use tofu_driver::VolatileBuffer;
    let memory = buffer.memory();
    // SAFETY: the buffer is accessed by volatile accesses alone. The device reaches the node's
    // memory through a mapping of the model, which outlives all queues, so it never touches memory
    // that is unmapped.
    unsafe { vcq.reg_mem(memory.ptr_guard_mut().as_ptr(), memory.len(), None, 0) }
}
