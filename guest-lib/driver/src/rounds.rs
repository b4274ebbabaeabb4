//! The hot path of a barrier channel: its page of registers starts rounds, and notices in memory
//! show their end.

use alloc::sync::Arc;
use core::mem;
use core::sync::atomic::Ordering;

use thiserror::Error;
use tofu_abi::barrier::{
    BSEQ_MASK, BchReady, NOTICE_SIZE, Notice, NoticeStatus, Profile, input_bits,
};
use tofu_abi::reduce::{Input, Op, VALUE_QWORDS, Value};
use tofu_abi::regs::BchReg;

use crate::platform::{DmaBuffer, UserPage};

/// The reason why a round cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartError {
    /// The last round has not ended, or its result was not taken.
    #[error("the channel's last round has not ended")]
    Busy,
    /// More elements than the operation supports.
    #[error("{count} elements; the operation takes at most {max}")]
    Count {
        /// Requested number of elements.
        count: u8,
        /// Maximum number of elements.
        max: u8,
    },
}

/// The outcome of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Sequence number of the round.
    pub bseq: u32,
    /// The operation; `None` if members of the group started the round with different ones.
    pub op: Option<Op>,
    /// The result; all 0 after a barrier or a mismatch.
    pub value: Value,
}

/// The rounds of an open barrier channel.
///
/// On drop, the page is dropped before the memory, see [`crate::Rings`].
#[derive(Debug)]
pub struct Rounds<D, G> {
    page: G,
    notices: Arc<D>,
    profile: Profile,
    /// Number of the current or next round.
    bseq: u32,
    running: bool,
}

impl<D: DmaBuffer, G: UserPage> Rounds<D, G> {
    /// Rounds from number `bseq` on, of the channel with this page. The device writes their results
    /// to `notices`, zeroed memory with the size and the alignment [`NOTICE_SIZE`].
    pub fn new(notices: D, page: G, profile: Profile, bseq: u32) -> Self {
        debug_assert!(notices.len() >= NOTICE_SIZE);
        Self { page, notices: Arc::new(notices), profile, bseq, running: false }
    }

    /// The channel's page.
    pub const fn page(&self) -> &G {
        &self.page
    }

    /// Device address of the notices.
    pub(crate) fn notices_addr(&self) -> u64 {
        self.notices.device_addr()
    }

    /// Keeps the memory from ever being freed, for a device that may still use it.
    pub(crate) fn leak(&self) {
        mem::forget(Arc::clone(&self.notices));
    }

    /// Sequence number of the current round, or of the next one.
    pub const fn bseq(&self) -> u32 {
        self.bseq
    }

    /// Returns true if a round has been started whose outcome has not been taken yet.
    pub const fn is_running(&self) -> bool {
        self.running
    }

    /// Starts a round with the first `count` elements of `input`: qwords, or floating-point
    /// numbers of 160 bits (see [`tofu_abi::reduce`]). All members of the group must start it with
    /// the same operation.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub fn start(&mut self, op: Op, input: &Input, count: u8) -> Result<(), StartError> {
        if self.running {
            return Err(StartError::Busy);
        }
        let max = self.profile.max_elements(op);
        if count > max {
            return Err(StartError::Count { count, max });
        }
        let words = (u32::from(count) * input_bits(op)).div_ceil(64) as usize;
        for (reg, word) in BchReg::ALL.iter().zip(&input[..words]) {
            self.page.write(reg.offset(), *word);
        }
        let ready = BchReady(0).with_op(op.code()).with_count(count).with_start(true);
        self.page.write(BchReg::Ready.offset(), ready.0);
        self.running = true;
        Ok(())
    }

    /// Takes the outcome of the current round, if it has ended.
    pub fn poll(&mut self) -> Option<Outcome> {
        if !self.running {
            return None;
        }
        let at = Notice::status_offset(self.bseq);
        let status = NoticeStatus(self.notices.load_u64(at, Ordering::Acquire));
        if !status.valid() || status.bseq() != self.bseq {
            return None;
        }
        let op = Op::from_code(status.op());
        let mut value = [0; VALUE_QWORDS];
        if op.is_some_and(|op| op != Op::Barrier) {
            let start = Notice::offset(self.bseq);
            for (i, word) in value.iter_mut().enumerate() {
                *word = self.notices.load_u64(start + 8 * i, Ordering::Relaxed);
            }
        }
        // Cleared, so that this half is not taken for the end of a round when it is used again.
        self.notices.store_u64(at, 0, Ordering::Relaxed);
        let outcome = Outcome { bseq: self.bseq, op, value };
        self.next_round();
        Some(outcome)
    }

    /// Continues with the next round, without the outcome of this one.
    pub(crate) fn next_round(&mut self) {
        self.bseq = self.bseq.wrapping_add(1) & BSEQ_MASK;
        self.running = false;
    }
}
