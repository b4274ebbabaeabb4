// SPDX-License-Identifier: GPL-2.0

//! The kernel's services for the engine of the network interfaces, besides queues and frames:
//! memory and a clock. Also the engine's state that other modules read.

use core::fmt::Debug;

use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::time::{ClockSource, Monotonic};

use tofu_ipotofu::Storage;

/// Nanoseconds since some time.
pub(crate) fn now_ns() -> u64 {
    Monotonic::ktime_get() as u64
}

/// Memory of the kernel for the engine.
#[derive(Debug)]
pub(crate) struct KernelMemory;

impl Storage for KernelMemory {
    type Places<T: Debug> = KVVec<T>;
    type Shared<T: Debug> = Arc<T>;
    type Error = Error;

    fn places<T: Debug>(count: usize, empty: impl Fn() -> T) -> Result<KVVec<T>> {
        let mut places = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            places.push(empty(), GFP_KERNEL)?;
        }
        Ok(places)
    }
}

/// The capabilities that other nodes have announced, on any queue.
pub(crate) type Peers = tofu_ipotofu::Peers<KernelMemory>;

/// The known dead links.
pub(crate) type Health = tofu_ipotofu::Health<KernelMemory>;
