// SPDX-License-Identifier: GPL-2.0

//! The offsets of registers in BAR 0. A check at compile time ensures that all of them are within
//! it.

use tofu_abi::regs::{
    bgs_page, cq_page, cqs_page, tni_base, BgsReg, CqReg, CqsReg, PortReg, TniReg, TofuReg,
    BAR0_SIZE, MAX_BG, NUM_CQ, NUM_PORT, NUM_TNI,
};
use tofu_abi::topology::Port;
use tofu_abi::{regs, BgId, CqId, TniId};

use crate::ids::{GateId, QueueId};

/// Bytes of the BAR, which is mapped as a whole.
pub(crate) const BAR_BYTES: usize = BAR0_SIZE as usize;

/// A register that units of one kind have.
///
/// # Safety
///
/// All 8 bytes from `offset` on must lie in BAR 0 for every unit, and `offset` must be a multiple
/// of 8.
pub(crate) unsafe trait Register: Copy {
    /// The owner of such a register.
    type Unit: Copy;

    /// Its offset in BAR 0.
    fn offset(self, unit: Self::Unit) -> usize;
}

#[allow(
    dead_code,
    reason = "rustc 1.85 does not count what constants without a name use"
)]
const fn lies_in_bar(offset: u64) -> bool {
    offset % 8 == 0 && offset + 8 <= BAR0_SIZE
}

/// Defines the offsets of registers of one kind: in a block for each unit, where the block of the
/// last unit has the highest address.
macro_rules! registers {
    ($($reg:ty: |$unit:ident: $unit_type:ty| $block:expr, up to $last:expr;)*) => { $(
        const _: () = {
            let mut i = 0;
            while i < <$reg>::ALL.len() {
                assert!(lies_in_bar($last + <$reg>::ALL[i].offset()));
                i += 1;
            }
        };

        // SAFETY: the assertion checks that each register of the unit with the highest address
        // is aligned and lies in the BAR.
        unsafe impl Register for $reg {
            type Unit = $unit_type;

            #[inline]
            fn offset(self, $unit: $unit_type) -> usize {
                ($block + <$reg>::offset(self)) as usize
            }
        }
    )* };
}

#[allow(
    dead_code,
    reason = "rustc 1.85 does not count what constants without a name use"
)]
const LAST_TNI: TniId = TniId::ALL[NUM_TNI - 1];
#[allow(
    dead_code,
    reason = "rustc 1.85 does not count what constants without a name use"
)]
const LAST_CQ: CqId = CqId::ALL[NUM_CQ - 1];

registers! {
    CqReg: |id: QueueId| cq_page(id.tni, id.cq), up to cq_page(LAST_TNI, LAST_CQ);
    CqsReg: |id: QueueId| cqs_page(id.tni, id.cq), up to cqs_page(LAST_TNI, LAST_CQ);
    BgsReg: |id: GateId| bgs_page(id.tni, id.bg),
        up to bgs_page(LAST_TNI, BgId::ALL[MAX_BG - 1]);
    TniReg: |tni: TniId| tni_base(tni), up to tni_base(LAST_TNI);
    PortReg: |port: Port| port_block(port), up to port_block(Port::ALL[NUM_PORT - 1]);
}

const fn port_block(port: Port) -> u64 {
    let reg = PortReg::ALL[0];
    regs::Register::Port { port, reg }.offset() - reg.offset()
}

// Those with the highest addresses.
const _: () = assert!(lies_in_bar(regs::tofu(TofuReg::TniVms(LAST_TNI, u8::MAX))));
const _: () = assert!(lies_in_bar(regs::tofu(TofuReg::TniMsiBase(LAST_TNI))));

// SAFETY: the assertions check that those with the highest addresses are aligned and in the BAR.
unsafe impl Register for TofuReg {
    type Unit = ();

    #[inline]
    fn offset(self, (): ()) -> usize {
        regs::tofu(self) as usize
    }
}
