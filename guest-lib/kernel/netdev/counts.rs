// SPDX-License-Identifier: GPL-2.0

//! What an interface counts.

use kernel::str::CStr;

use tofu_abi::regs::TniReg;

/// What was done since the interface is there. The order is that of `NAMES`.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Sent,
    Received,
    Answered,
    Forwarded,
    Malformed,
    Spoofed,
    Misdirected,
    Duplicates,
    Damaged,
    Oversized,
    Abandoned,
    NoSuchNode,
    Rerouted,
    Lost,
    Full,
    Finished,
    NoMemory,
    Polls,
    Interrupts,
    Held,
    Offered,
    Fetched,
    Lapsed,
    Unfetched,
}

pub(super) const COUNTS: usize = Count::Unfetched as usize + 1;

/// Names of the counters for ethtool: those of [`Count`], then registers of the TNI.
pub(super) const NAMES: [&CStr; COUNTS] = [
    c"sent",
    c"received",
    c"answered",
    c"forwarded",
    c"malformed",
    c"spoofed",
    c"misdirected",
    c"duplicates",
    c"damaged",
    c"oversized",
    c"abandoned",
    c"no_such_node",
    c"rerouted",
    c"lost",
    c"full",
    c"finished",
    c"no_memory",
    c"polls",
    c"interrupts",
    c"held",
    c"offered",
    c"fetched",
    c"lapsed",
    c"unfetched",
];
pub(super) const REGISTERS: [(&CStr, TniReg); 7] = [
    (c"tni_send_tlp", TniReg::NumSendTlp),
    (c"tni_send_system_tlp", TniReg::NumSendSystemTlp),
    (c"tni_receive_tlp", TniReg::NumReceiveTlp),
    (c"tni_receive_system_tlp", TniReg::RxNumSystemTlp),
    (c"tni_receive_unknown_tlp", TniReg::RxNumUnknownTlp),
    (c"tni_receive_exception_tlp", TniReg::RxNumExceptionTlp),
    (c"tni_discard_system_tlp", TniReg::RxNumDiscardSystemTlp),
];
