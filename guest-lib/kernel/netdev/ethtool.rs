// SPDX-License-Identifier: GPL-2.0

//! The counters of an interface that `ethtool -S` prints.

use kernel::str::CStr;

use tofu_abi::regs::TniReg;
use tofu_ipotofu::Counters;

/// Counters of a queue in addition to those of the engine, [`Counters`].
#[derive(Clone, Copy, Default)]
pub(super) struct QueueCounters {
    /// Frames dropped because there was no room for them.
    pub(super) full: u64,
    /// Offloaded frames that had to be completed here.
    pub(super) completed: u64,
    /// Polls.
    pub(super) polls: u64,
    /// Times that the queue was stopped.
    pub(super) held: u64,
    /// Frames that were fetched and copied, because the stack held the maximum number of our pages.
    pub(super) copied: u64,
    /// Interrupts.
    pub(super) interrupts: u64,
}

impl QueueCounters {
    const NAMES: [&'static CStr; 6] = [
        c"full",
        c"completed",
        c"polls",
        c"held",
        c"copied",
        c"interrupts",
    ];

    fn values(&self) -> [u64; 6] {
        [
            self.full,
            self.completed,
            self.polls,
            self.held,
            self.copied,
            self.interrupts,
        ]
    }
}

/// Registers of the TNI that are also shown.
const REGISTERS: [(&CStr, TniReg); 7] = [
    (c"tni_send_tlp", TniReg::NumSendTlp),
    (c"tni_send_system_tlp", TniReg::NumSendSystemTlp),
    (c"tni_receive_tlp", TniReg::NumReceiveTlp),
    (c"tni_receive_system_tlp", TniReg::RxNumSystemTlp),
    (c"tni_receive_unknown_tlp", TniReg::RxNumUnknownTlp),
    (c"tni_receive_exception_tlp", TniReg::RxNumExceptionTlp),
    (c"tni_discard_system_tlp", TniReg::RxNumDiscardSystemTlp),
];

/// The number of counters.
pub(super) const COUNT: usize = Counters::COUNT + QueueCounters::NAMES.len() + REGISTERS.len();

/// Their names.
pub(super) fn names() -> impl Iterator<Item = &'static CStr> {
    let registers = REGISTERS.into_iter().map(|(name, _)| name);
    let queue = Counters::NAMES.into_iter().chain(QueueCounters::NAMES);
    queue.chain(registers)
}

/// Adds the counters of a queue, in the order of [`names`].
pub(super) fn add(
    values: &mut [u64],
    engine: &Counters,
    queue: &QueueCounters,
    read: impl Fn(TniReg) -> u64,
) {
    let registers = REGISTERS.into_iter().map(|(_, reg)| read(reg));
    let all = engine.values().into_iter().chain(queue.values());
    for (value, more) in values.iter_mut().zip(all.chain(registers)) {
        // A device that is gone reads as all ones, for each queue.
        *value = value.saturating_add(more);
    }
}
