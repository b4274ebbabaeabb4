//! The page of a barrier channel: IDATA, READY and IGNORED_SIGNAL_COUNT.

use std::sync::atomic::{AtomicU64, Ordering};

use tofu_abi::barrier::BchReady;
use tofu_abi::reduce::Input;
use tofu_abi::regs::BchReg;
use tofu_abi::{BchId, TniId};

use crate::page::{PageRegisters, SharedPages};
use tofu_dma::RegisterWrite;

const START: u64 = BchReady(0).with_start(true).0;
const STATE: u64 = BchReady(0).with_state(true).0;

/// The page of a barrier channel. The device reads only IDATA and a READY with START from it.
#[derive(Debug)]
pub(super) struct ChannelPage(PageRegisters<{ BchReg::ALL.len() }>);

impl ChannelPage {
    pub(super) fn new(tni: TniId, bch: BchId, shared: Option<&SharedPages>) -> Self {
        Self(PageRegisters::new(tni, bch.into(), shared))
    }

    fn reg(&self, reg: BchReg) -> &AtomicU64 {
        self.0.at(reg.offset())
    }

    /// A trapped read.
    pub(super) fn read(&self, reg: BchReg) -> u64 {
        let value = self.reg(reg).load(Ordering::Acquire);
        if reg == BchReg::Ready { value & STATE } else { value }
    }

    /// A trapped write. Returns whether a round is to be started.
    pub(super) fn write(&self, reg: BchReg, write: RegisterWrite) -> bool {
        let change = |old: u64| match reg {
            BchReg::IgnoredSignalCount => None,
            // Only the device sets STATE; a start clears it.
            BchReg::Ready => match write.merge(old) {
                new if new & START != 0 => Some(new & !STATE),
                new => Some(new & !STATE | old & STATE),
            },
            _ => Some(write.merge(old)),
        };
        let word = self.reg(reg);
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        reg == BchReg::Ready && self.poll()
    }

    /// Returns true if a round is to be started.
    pub(super) fn poll(&self) -> bool {
        self.reg(BchReg::Ready).load(Ordering::Acquire) & START != 0
    }

    /// Takes what was written to READY, if that is a start.
    pub(super) fn take_start(&self) -> Option<u64> {
        let take = |word: u64| (word & START != 0).then_some(0);
        let word = self.reg(BchReg::Ready);
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()
    }

    pub(super) fn input(&self) -> Input {
        std::array::from_fn(|i| self.reg(BchReg::ALL[i]).load(Ordering::Acquire))
    }

    /// Shows the channel's state. A start that was not taken yet is forgotten.
    pub(super) fn publish(&self, ready: bool, ignored: u64) {
        self.show_ignored(ignored);
        self.reg(BchReg::Ready).store(if ready { STATE } else { 0 }, Ordering::Release);
    }

    pub(super) fn show_ignored(&self, ignored: u64) {
        self.reg(BchReg::IgnoredSignalCount).store(ignored, Ordering::Release);
    }

    pub(super) fn clear(&self) {
        self.0.clear();
    }
}
