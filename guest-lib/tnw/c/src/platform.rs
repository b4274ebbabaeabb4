//! A platform whose kind is chosen at run time.

use std::sync::Arc;

use tofu_driver::{DmaError, IrqError, Platform, VolatileBuffer};
use tofu_hosted::HostPlatform;
use tofu_tnw::{STORE, Windows};
use tofu_vfio::VfioPlatform;
use vm_memory::VolatileSlice;

/// The platform of a network processor.
pub(crate) enum AnyPlatform {
    /// In this process, or in another one of this host.
    Hosted(Arc<HostPlatform>),
    /// In this computer.
    Vfio(Box<VfioPlatform>),
}

/// Memory that it reaches.
pub(crate) enum AnyBuffer {
    /// Of the first kind.
    Hosted(tofu_hosted::Buffer),
    /// Of the second.
    Vfio(tofu_vfio::Buffer),
}

impl VolatileBuffer for AnyBuffer {
    fn addr(&self) -> u64 {
        match self {
            Self::Hosted(buffer) => buffer.addr(),
            Self::Vfio(buffer) => buffer.addr(),
        }
    }

    fn memory(&self) -> VolatileSlice<'_> {
        match self {
            Self::Hosted(buffer) => buffer.memory(),
            Self::Vfio(buffer) => buffer.memory(),
        }
    }
}

/// Does the same for all kinds.
macro_rules! each {
    ($self:ident, $platform:ident => $what:expr) => {
        match $self {
            AnyPlatform::Hosted($platform) => $what,
            AnyPlatform::Vfio($platform) => $what,
        }
    };
}

impl Platform for AnyPlatform {
    type Dma = AnyBuffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        each!(self, platform => platform.bar0_read64(offset))
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        each!(self, platform => platform.bar0_write64(offset, value));
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<AnyBuffer, DmaError> {
        match self {
            Self::Hosted(platform) => platform.alloc_dma(size, align).map(AnyBuffer::Hosted),
            Self::Vfio(platform) => platform.alloc_dma(size, align).map(AnyBuffer::Vfio),
        }
    }

    fn irq_enable(&self, vector: u16) -> Result<(), IrqError> {
        each!(self, platform => platform.irq_enable(vector))
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        each!(self, platform => platform.irq_wait(vector, timeout_ns))
    }

    fn now_ns(&self) -> u64 {
        each!(self, platform => platform.now_ns())
    }

    fn relax(&self) {
        each!(self, platform => platform.relax());
    }

    fn yield_processor(&self) {
        each!(self, platform => platform.yield_processor());
    }
}

impl Windows for AnyPlatform {
    fn store(&self, offset: u64, data: &[u8; STORE]) {
        each!(self, platform => platform.store(offset, data));
    }
}
