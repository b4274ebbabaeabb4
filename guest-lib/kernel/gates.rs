// SPDX-License-Identifier: GPL-2.0

//! Which barrier channels and gates of a node are taken.

use kernel::prelude::*;

use tofu_abi::regs::NUM_TNI;

/// What is taken of a node's gates.
pub(crate) struct Taken {
    /// Channels whose file is open.
    pub(crate) channels: Masks,
    /// Gates that are enabled.
    pub(crate) gates: Masks,
}

impl Taken {
    pub(crate) const fn new() -> Self {
        Self {
            channels: Masks([0; NUM_TNI]),
            gates: Masks([0; NUM_TNI]),
        }
    }
}

/// A mask for each TNI.
pub(crate) struct Masks([u64; NUM_TNI]);

impl Masks {
    /// Takes what nobody has.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is taken.
    pub(crate) fn claim(&mut self, tni: u8, bit: u8) -> Result {
        let mask = self.0.get_mut(usize::from(tni)).ok_or(EINVAL)?;
        if *mask >> bit & 1 != 0 {
            return Err(EBUSY);
        }
        *mask |= 1 << bit;
        Ok(())
    }

    /// Gives back all that is set in `bits`.
    pub(crate) fn give_up(&mut self, tni: u8, bits: u64) {
        if let Some(mask) = self.0.get_mut(usize::from(tni)) {
            *mask &= !bits;
        }
    }
}
