//! Rate-limited log of guest protocol violations.
//!
//! The lines have level debug and a separate target, so that a user can enable them without knowing
//! which crate writes them. A guest must not fill the log, so only a few lines are written per
//! second; the rest is counted.

use std::fmt;
use std::sync::Mutex;

use log::Level::Debug;
use tofu_abi::regs::{CqReg, CqsReg, Register, TniReg, TofuReg, XbReg};
use tofu_abi::{Coords, CqId, TniId};
use tofu_sync::lock;

use crate::page::{DIRECT, PIGGYBACK};

/// Log target for violations by guests.
pub const LOG_TARGET: &str = "device";

/// Most lines of a node per second.
const LINES: u32 = 20;
const SECOND_NS: u64 = 1_000_000_000;

/// Limits how much is reported.
#[derive(Debug, Default)]
pub(crate) struct Violations(Mutex<Lately>);

/// The number of lines that were written in this second.
#[derive(Debug, Default)]
pub(crate) struct Lately {
    since_ns: u64,
    lines: u32,
    /// Lines left out since the last one.
    left_out: u64,
}

impl Lately {
    /// Counts a line. Returns the number of lines left out before it, or `None` to leave it out
    /// too.
    pub(crate) fn take(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns.saturating_sub(self.since_ns) >= SECOND_NS {
            (self.since_ns, self.lines) = (now_ns, 0);
        }
        if self.lines >= LINES {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Violations {
    /// Reports a violation by the guest of `node`.
    pub(crate) fn tell(&self, node: Coords, now_ns: u64, what: fmt::Arguments<'_>) {
        match lock(&self.0).take(now_ns) {
            Some(0) => log::debug!(target: LOG_TARGET, "node {node}: {what}"),
            Some(n) => {
                log::debug!(target: LOG_TARGET, "node {node}: {n} more were left out");
                log::debug!(target: LOG_TARGET, "node {node}: {what}");
            }
            None => {}
        }
    }
}

/// Returns true if the log takes such lines.
pub(crate) fn are_told() -> bool {
    log::log_enabled!(target: LOG_TARGET, Debug)
}

/// The name of a control queue in the log.
pub(crate) struct QueueName(pub(crate) TniId, pub(crate) CqId);

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TNI {} CQ {}", self.0, self.1)
    }
}

/// The name of a register in the log: its unit, and its name in the register map.
pub struct RegisterName(pub Register);

impl fmt::Display for RegisterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Register::Cq { tni, cq, reg } => write!(f, "{} {}", QueueName(tni, cq), reg.name()),
            Register::Cqs { tni, cq, reg } => write!(f, "{} {}", QueueName(tni, cq), reg.name()),
            Register::Bch { tni, bch, reg } => write!(f, "TNI {tni} BCH {bch} {}", reg.name()),
            Register::Bgs { tni, bg, reg } => write!(f, "TNI {tni} BG {bg} {}", reg.name()),
            Register::BgsData { tni, bg, .. } => write!(f, "TNI {tni} BG {bg} DATA"),
            Register::Tni { tni, reg } => write!(f, "TNI {tni} {}", reg.name()),
            Register::Port { port, reg } => write!(f, "port {} {}", port.index(), reg.name()),
            Register::Xb(reg) => write!(f, "XB {}", reg.name()),
            Register::Tofu(reg) => write!(f, "{reg:?}"),
        }
    }
}

/// Returns true if no write to a register has any effect.
pub(crate) fn is_read_only(register: Register) -> bool {
    match register {
        Register::Cq { reg, .. } => {
            let command = matches!(reg, CqReg::FetchStart | CqReg::MrqFullPointer);
            !command && !DIRECT.contains(&reg) && !PIGGYBACK.contains(&reg)
        }
        Register::Cqs { reg, .. } => matches!(
            reg,
            CqsReg::Status
                | CqsReg::Irr
                | CqsReg::ToqDirectSourceCount
                | CqsReg::ToqDirectDescriptorCount
        ),
        Register::Tni { reg, .. } => {
            let counter = reg.offset() >= TniReg::SendCount.offset();
            counter
                || matches!(
                    reg,
                    TniReg::Irr
                        | TniReg::State
                        | TniReg::CqPresent
                        | TniReg::ExceptionInfoInactiveBg
                )
        }
        Register::Port { .. } | Register::BgsData { .. } => true,
        Register::Xb(reg) => reg == XbReg::StqNextOffset,
        Register::Tofu(reg) => {
            matches!(reg, TofuReg::NodeAddress | TofuReg::TnrIrr | TofuReg::Generation)
        }
        Register::Bgs { .. } | Register::Bch { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_and_the_rest_counted() {
        let mut lately = Lately::default();
        let told = (0..1000).filter(|n| lately.take(SECOND_NS + n).is_some()).count();
        assert_eq!(told, LINES as usize);
        assert_eq!(lately.take(2 * SECOND_NS - 1), None);
        assert_eq!(lately.take(2 * SECOND_NS), Some(1001 - u64::from(LINES)));
        assert_eq!(lately.take(2 * SECOND_NS + 1), Some(0));
    }
}
