//! Barrier channels and gates: synchronisation and reductions without the processor.

use alloc::vec::Vec;
use core::mem;

use thiserror::Error;
use tofu_abi::barrier::{
    BCH_MASK, BCH_MASK_STATUS_RUN, BSEQ_MASK, BgAddress, GPID_MASK, GpidBseq, LocalLink,
    NOTICE_SIZE, Profile, RemoteLink, SignalMask,
};
use tofu_abi::irq::{BgsIrqs, vector};
use tofu_abi::reduce::{Input, Op};
use tofu_abi::regs::{BchReg, BgsReg, CqsMode, bch_page, bgs_page};
use tofu_abi::{BchId, BgId, TniId};

use crate::device::{Device, DevicePage, IrqUnit, TimedOut, listed};
use crate::platform::{DmaError, IrqError, Platform, UserPage};
use crate::rounds::{Outcome, Rounds, StartError};

/// See [`ChannelConfig::nap_ns`].
const NAP_NS: u64 = 1_000_000;

/// Configuration of a barrier channel. Start from [`ChannelConfig::new`].
#[derive(Clone, Copy, Debug)]
pub struct ChannelConfig {
    /// Network interface.
    pub tni: TniId,
    /// Barrier channel: also the number of its start/end gate.
    pub bch: BchId,
    /// Group process id, 40 bits. Gates accept signals only from gates with the same id.
    pub gpid: u64,
    /// Sequence number of the first round, 24 bits: the same for all members of the group. After a
    /// round that did not end, the next set-up of the same gates should use a number at least 2
    /// higher, so that late signals are not taken for new ones.
    pub bseq: u32,
    /// Subnet of remote gates. Its rights have no meaning here.
    pub subnet: CqsMode,
    /// Requests to unmask. With none the channel is only polled.
    pub interrupts: BgsIrqs,
    /// The time for which [`Channel::wait`] polls before it sleeps, in nanoseconds.
    pub spin_ns: u64,
    /// Longest sleep of [`Channel::wait`], in nanoseconds. All channels of an interface share one
    /// interrupt, so another channel's wait may consume it. This bounds the resulting delay. A
    /// process with only one channel on the interface can sleep longer.
    pub nap_ns: u64,
}

impl ChannelConfig {
    /// A channel of group 0 that begins with round 0 and has no subnet. The ends of its rounds and
    /// its exceptions raise interrupts.
    pub const fn new(tni: TniId, bch: BchId) -> Self {
        Self {
            tni,
            bch,
            gpid: 0,
            bseq: 0,
            subnet: CqsMode(0),
            interrupts: BgsIrqs::ALL,
            spin_ns: 0,
            nap_ns: NAP_NS,
        }
    }

    /// Checks a channel and its gates as far as possible before they are set, against the barrier
    /// profile of the device's generation.
    ///
    /// # Errors
    ///
    /// See [`ChannelError`].
    pub fn check(&self, profile: Profile, gates: &[Gate]) -> Result<(), ChannelError> {
        let (tni, bch) = (self.tni, self.bch);
        if !profile.has_channel(tni, bch) {
            return Err(ChannelError::NoSuchChannel { tni, bch });
        }
        if self.gpid > GPID_MASK {
            return Err(ChannelError::Number(self.gpid));
        }
        if self.bseq > BSEQ_MASK {
            return Err(ChannelError::Number(self.bseq.into()));
        }
        for (i, gate) in gates.iter().enumerate() {
            let (tni, bg) = (gate.tni, gate.bg);
            if !profile.has_gate(tni, bg) {
                return Err(ChannelError::NoSuchGate { tni, bg });
            }
            if gates[..i].iter().any(|other| (other.tni, other.bg) == (tni, bg)) {
                return Err(ChannelError::Twice { tni, bg });
            }
            if profile.has_start_gate(tni, bg) && (tni, bg) != (self.tni, self.bch.gate()) {
                return Err(ChannelError::StartGate { tni, bg });
            }
        }
        if !gates.iter().any(|gate| (gate.tni, gate.bg) == (tni, bch.gate())) {
            return Err(ChannelError::StartGate { tni, bg: bch.gate() });
        }
        for gate in gates {
            let (tni, bg) = (gate.tni, gate.bg);
            for address in [gate.src_remote, gate.dst_remote].into_iter().flatten() {
                let node = address.coords();
                if !profile.has_address(address) {
                    return Err(ChannelError::NoSuchAddress { bg, address });
                }
                if !self.subnet.subnet_allows(node.x, node.y, node.z) {
                    return Err(ChannelError::Subnet { bg, address });
                }
            }
            if gate.src_local.is_none() && gate.src_remote.is_none() {
                return Err(ChannelError::NoSource { tni, bg });
            }
            let find = |bg: BgId| gates.iter().find(|other| (other.tni, other.bg) == (tni, bg));
            for (other, back) in [
                (gate.src_local, (|g: &Gate| g.dst_local) as fn(&Gate) -> Option<BgId>),
                (gate.dst_local, |g| g.src_local),
            ] {
                if let Some(other) = other
                    && find(other).and_then(back) != Some(bg)
                {
                    return Err(ChannelError::LocalLink { tni, bg, other });
                }
            }
        }
        Self::check_fires(profile, gates)
    }

    /// Checks that every gate can fire.
    fn check_fires(profile: Profile, gates: &[Gate]) -> Result<(), ChannelError> {
        // Local links are one to one, so each gate has a chain of gates before it. It fires if that
        // chain begins at the start gate, or with a gate that waits only for other nodes.
        for gate in gates {
            let mut at = gate;
            for _ in 0..=gates.len() {
                let Some(source) = at.src_local else { break };
                if profile.has_start_gate(at.tni, source) {
                    break;
                }
                let next = gates.iter().find(|other| (other.tni, other.bg) == (at.tni, source));
                match next {
                    Some(next) if next != gate => at = next,
                    _ => return Err(ChannelError::NeverFires { tni: gate.tni, bg: gate.bg }),
                }
            }
        }
        Ok(())
    }
}

/// A gate and its links.
///
/// A relay gate, 16 to 47, waits for its sources, then signals its destinations. A start/end gate,
/// 0 to 15, signals its destinations when its channel starts a round; the round ends when the
/// signals of its sources have arrived. The result contains the channel's own value only if its
/// sources have passed that on, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Network interface.
    pub tni: TniId,
    /// Number of the gate.
    pub bg: BgId,
    /// Gate of the same interface to wait for.
    pub src_local: Option<BgId>,
    /// Gate of any node and interface to wait for. The path in the address has no meaning.
    pub src_remote: Option<BgAddress>,
    /// Gate of the same interface to signal.
    pub dst_local: Option<BgId>,
    /// Gate of any node and interface to signal. The path in the address is used.
    pub dst_remote: Option<BgAddress>,
}

impl Gate {
    /// A gate without links.
    pub const fn new(tni: TniId, bg: BgId) -> Self {
        Self { tni, bg, src_local: None, src_remote: None, dst_local: None, dst_remote: None }
    }
}

/// The reason why a channel cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChannelError {
    /// The device has no such channel.
    #[error("there is no barrier channel {bch} on TNI {tni}")]
    NoSuchChannel {
        /// Network interface.
        tni: TniId,
        /// Channel.
        bch: BchId,
    },
    /// The device has no such gate.
    #[error("there is no barrier gate {bg} on TNI {tni}")]
    NoSuchGate {
        /// Network interface.
        tni: TniId,
        /// Gate.
        bg: BgId,
    },
    /// A gate was given twice.
    #[error("gate {bg} of TNI {tni} is set twice")]
    Twice {
        /// Network interface.
        tni: TniId,
        /// Gate.
        bg: BgId,
    },
    /// The channel's start/end gate is not among the gates, or another channel's start/end gate is.
    #[error(
        "of start/end gates, the channel's own is set and no other; gate {bg} of TNI {tni} is \
         not so"
    )]
    StartGate {
        /// Network interface.
        tni: TniId,
        /// Gate that is missing, or that does not belong here.
        bg: BgId,
    },
    /// A link to a remote gate that no node has.
    #[error("gate {bg} is linked to a gate that does not exist: {address}")]
    NoSuchAddress {
        /// Gate with the link.
        bg: BgId,
        /// The remote gate.
        address: BgAddress,
    },
    /// A link to a remote gate outside of the subnet.
    #[error("gate {bg} is linked to a gate outside of the subnet: {address}")]
    Subnet {
        /// Gate with the link.
        bg: BgId,
        /// The remote gate.
        address: BgAddress,
    },
    /// A link within the interface whose other end is missing or linked to another gate.
    #[error("gate {bg} of TNI {tni} is linked to gate {other}, but that one not to it")]
    LocalLink {
        /// Network interface.
        tni: TniId,
        /// Gate with the link.
        bg: BgId,
        /// Gate that it names.
        other: BgId,
    },
    /// A gate without sources would never fire.
    #[error("gate {bg} of TNI {tni} waits for no other gate, so it never fires")]
    NoSource {
        /// Network interface.
        tni: TniId,
        /// Gate.
        bg: BgId,
    },
    /// A gate that waits, directly or not, only for itself would never fire.
    #[error("gate {bg} of TNI {tni} waits for gates that wait for it, so it never fires")]
    NeverFires {
        /// Network interface.
        tni: TniId,
        /// Gate.
        bg: BgId,
    },
    /// The group process id has more than 40 bits, or the sequence number more than 24.
    #[error("{0:#x} is too large: group process ids have 40 bits, sequence numbers 24")]
    Number(u64),
    /// The channel or a gate is in use.
    #[error("gate {bg} of TNI {tni} is in use")]
    Busy {
        /// Network interface.
        tni: TniId,
        /// Gate.
        bg: BgId,
    },
    /// The device refuses a gate. Its interrupt requests say why.
    #[error("the device refuses gate {bg} of TNI {tni}:{}", listed(*irr, &EXCEPTIONS))]
    Refused {
        /// Network interface.
        tni: TniId,
        /// Gate.
        bg: BgId,
        /// IRR of the gate.
        irr: BgsIrqs,
    },
    /// No memory for notices.
    #[error(transparent)]
    Memory(DmaError),
    /// No interrupt is left.
    #[error(transparent)]
    Interrupt(IrqError),
    /// Timed out enabling a gate or channel.
    #[error(transparent)]
    Enable(TimedOut),
}

/// Descriptions of the exceptions of a barrier gate.
const EXCEPTIONS: [(BgsIrqs, &str); 7] = [
    (BgsIrqs::NODE_ADDRESS_UNMATCH, "signal of a gate that it is not linked to"),
    (BgsIrqs::BG_RECV_ADDRESS_EXCEPTION, "no such gate to receive from"),
    (BgsIrqs::BG_SEND_ADDRESS_EXCEPTION, "no such gate to send to"),
    (BgsIrqs::GPID_UNMATCH, "signal of another group"),
    (BgsIrqs::BSEQ_UNMATCH, "signal of another round"),
    (BgsIrqs::SIGNAL_STATE_ERROR, "signal came twice or with another operation"),
    (BgsIrqs::DMA_COMPLETION_EXCEPTION, "notice not writable"),
];

/// The reason why a wait failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChannelWaitError {
    /// No round was started.
    #[error("no round was started")]
    Idle,
    /// The round timed out. It may still end, unless the channel is closed.
    #[error(
        "timed out{}{}",
        if exceptions.is_empty() { ": not all members came" } else { "; gates report:" },
        listed(*exceptions, &EXCEPTIONS)
    )]
    TimedOut {
        /// The exceptions of the channel's gates, see [`Channel::exceptions`].
        exceptions: BgsIrqs,
    },
    /// The round has ended, but the device could not write its notice.
    #[error("the device could not write the notice of the round")]
    Notice,
}

/// An open barrier channel with its gates.
///
/// Dropping it closes it. If the device does not release the channel then, the memory of its
/// notices is never freed.
#[derive(Debug)]
pub struct Channel<P: Platform> {
    tni: TniId,
    bch: BchId,
    interrupts: BgsIrqs,
    spin_ns: u64,
    nap_ns: u64,
    rounds: Rounds<P::Dma, DevicePage<P>>,
    gates: Vec<(TniId, BgId)>,
    /// True if the acknowledges have been cleared without an interrupt since. Then the end of the
    /// round raises an interrupt.
    armed: bool,
    open: bool,
}

impl<P: Platform> Channel<P> {
    /// Opens a channel with this node's gates for it, including its own start/end gate. Gates may
    /// be on other interfaces than the channel.
    ///
    /// No member of the group may start a round until all members have done this: signals to gates
    /// that are not set up are lost.
    ///
    /// # Errors
    ///
    /// See [`ChannelError`]. Nothing is changed then.
    pub fn open(
        device: &Device<P>,
        config: &ChannelConfig,
        gates: &[Gate],
    ) -> Result<Self, ChannelError> {
        let alloc = |size| device.platform().alloc_dma(size, size);
        Self::open_in(device, config, gates, alloc)
    }

    /// Like [`Channel::open`], with notices in the caller's memory. `notices` gets their size in
    /// bytes; their address must be a multiple of it. This is for a process that opens channels
    /// which another process starts and polls.
    ///
    /// # Errors
    ///
    /// See [`ChannelError`]. Nothing is changed then.
    pub fn open_in(
        device: &Device<P>,
        config: &ChannelConfig,
        gates: &[Gate],
        notices: impl FnOnce(usize) -> Result<P::Dma, DmaError>,
    ) -> Result<Self, ChannelError> {
        let profile = device.description().barrier;
        config.check(profile, gates)?;
        let (tni, bch) = (config.tni, config.bch);
        let platform = device.platform();
        let read = |tni: TniId, bg: BgId, reg: BgsReg| {
            platform.bar0_read64(bgs_page(tni, bg) + reg.offset())
        };
        if read(tni, bch.gate(), BgsReg::BchMask) & BCH_MASK == 0 {
            return Err(ChannelError::Busy { tni, bg: bch.gate() });
        }
        for gate in gates {
            if read(gate.tni, gate.bg, BgsReg::State) & 1 != 0 {
                return Err(ChannelError::Busy { tni: gate.tni, bg: gate.bg });
            }
        }
        if !config.interrupts.is_empty() {
            platform.irq_enable(vector::bg(tni)).map_err(ChannelError::Interrupt)?;
        }
        let notices = notices(NOTICE_SIZE).map_err(ChannelError::Memory)?;
        let page = DevicePage::new(device.clone(), bch_page(tni, bch));
        let mut channel = Self {
            tni,
            bch,
            interrupts: config.interrupts,
            spin_ns: config.spin_ns,
            nap_ns: config.nap_ns,
            rounds: Rounds::new(notices, page, profile, config.bseq),
            gates: Vec::with_capacity(gates.len()),
            armed: false,
            open: true,
        };
        // From here on, dropping the channel undoes a failure.
        channel.write(tni, bch.gate(), BgsReg::BchNoticeIpa, channel.rounds.notices_addr());
        channel.write(tni, bch.gate(), BgsReg::BchMask, 0);
        channel.wait_for_mask().map_err(ChannelError::Enable)?;
        for gate in gates {
            channel.set_gate(config, gate)?;
        }
        if !config.interrupts.is_empty() {
            // Consumes an interrupt from before.
            platform.irq_wait(vector::bg(tni), 0);
        }
        Ok(channel)
    }

    fn set_gate(&mut self, config: &ChannelConfig, gate: &Gate) -> Result<(), ChannelError> {
        let Gate { tni, bg, src_local, src_remote, dst_local, dst_remote } = *gate;
        let own = (tni, bg) == (self.tni, self.bch.gate());
        let wanted = if own { config.interrupts } else { BgsIrqs::NONE };
        self.device().bgs_irq(tni, bg).reset(wanted);
        let number = |bg: Option<BgId>| bg.map_or(0, BgId::get);
        let mask = SignalMask(0)
            .with_sig_recv(src_local.is_none())
            .with_tlp_recv(src_remote.is_none())
            .with_sig_send(dst_local.is_none())
            .with_tlp_send(dst_remote.is_none());
        let local = LocalLink(0).with_recv(number(src_local)).with_send(number(dst_local));
        let remote = RemoteLink(0)
            .with_recv(src_remote.map_or(0, |a| a.place().0 as u32))
            .with_send(dst_remote.map_or(0, |a| a.0 as u32));
        let number = GpidBseq(0).with_gpid(config.gpid).with_bseq(config.bseq);
        for (reg, value) in [
            (BgsReg::SignalMask, mask.0),
            (BgsReg::LocalLink, local.0),
            (BgsReg::RemoteLink, remote.0),
            (BgsReg::SubnetSize, config.subnet.0),
            (BgsReg::GpidBseq, number.0),
            (BgsReg::Enable, 1),
        ] {
            self.write(tni, bg, reg, value);
        }
        self.gates.push((tni, bg));
        let irr = self.device().bgs_irq(tni, bg).pending();
        const REFUSALS: BgsIrqs =
            BgsIrqs::BG_RECV_ADDRESS_EXCEPTION.union(BgsIrqs::BG_SEND_ADDRESS_EXCEPTION);
        if irr.intersects(REFUSALS) {
            return Err(ChannelError::Refused { tni, bg, irr });
        }
        let state = bgs_page(tni, bg) + BgsReg::State.offset();
        self.device()
            .poll_register(state, "barrier gate STATE enabled", |v| v & 1 != 0)
            .map(drop)
            .map_err(ChannelError::Enable)
    }

    /// The device that the channel belongs to.
    pub fn device(&self) -> &Device<P> {
        self.rounds.page().device()
    }

    fn write(&self, tni: TniId, bg: BgId, reg: BgsReg, value: u64) {
        self.device().platform().bar0_write64(bgs_page(tni, bg) + reg.offset(), value);
    }

    fn wait_for_mask(&self) -> Result<(), TimedOut> {
        self.device().wait_for_channel_mask(self.tni, self.bch)
    }

    /// Network interface of the channel.
    pub fn tni(&self) -> TniId {
        self.tni
    }

    /// Number of the channel and of its start/end gate.
    pub fn bch(&self) -> BchId {
        self.bch
    }

    /// Sequence number of the current round, or of the next one.
    pub fn bseq(&self) -> u32 {
        self.rounds.bseq()
    }

    /// Returns true if a round has been started whose outcome has not been taken yet.
    pub fn is_running(&self) -> bool {
        self.rounds.is_running()
    }

    /// See [`Rounds::start`].
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    #[inline]
    pub fn start(&mut self, op: Op, input: &Input, count: u8) -> Result<(), StartError> {
        self.rounds.start(op, input, count)?;
        // The device clears the acknowledges when a round starts.
        self.armed = true;
        Ok(())
    }

    /// See [`Rounds::poll`].
    #[inline]
    pub fn poll(&mut self) -> Option<Outcome> {
        self.rounds.poll()
    }

    /// Waits for the outcome of the current round, for at most `timeout_ns` nanoseconds: polls for
    /// a while ([`ChannelConfig::spin_ns`]), then sleeps until the channel's interrupt. A channel
    /// without interrupts only polls.
    ///
    /// # Errors
    ///
    /// See [`ChannelWaitError`].
    pub fn wait(&mut self, timeout_ns: u64) -> Result<Outcome, ChannelWaitError> {
        const ENDS: BgsIrqs = BgsIrqs::ACKNOWLEDGES.union(BgsIrqs::DMA_COMPLETION_EXCEPTION);
        if let Some(outcome) = self.poll() {
            return Ok(outcome);
        }
        if !self.is_running() {
            return Err(ChannelWaitError::Idle);
        }
        let start = self.device().platform().now_ns();
        let sleeps = self.interrupts.intersects(ENDS);
        loop {
            let elapsed = self.device().platform().now_ns().saturating_sub(start);
            if sleeps && elapsed >= self.spin_ns {
                if !self.armed {
                    // Clear, check, sleep, as in `Cq::wait_until`. The read ensures that the write
                    // has arrived.
                    self.irq().clear(BgsIrqs::ACKNOWLEDGES);
                    let lost = self.notice_was_lost();
                    if let Some(outcome) = self.poll() {
                        return Ok(outcome);
                    }
                    if lost {
                        return Err(self.without_notice());
                    }
                    self.armed = true;
                }
                let nap = timeout_ns.saturating_sub(elapsed).min(self.nap_ns);
                self.device().platform().irq_wait(vector::bg(self.tni), nap);
                // A late interrupt of an earlier round may have ended the sleep. Its request would
                // then hide the request of this round's end.
                self.armed = false;
            } else {
                self.device().platform().relax();
            }
            if let Some(outcome) = self.poll() {
                return Ok(outcome);
            }
            if elapsed >= timeout_ns {
                if self.notice_was_lost() {
                    return Err(self.without_notice());
                }
                return Err(ChannelWaitError::TimedOut { exceptions: self.exceptions() });
            }
        }
    }

    fn notice_was_lost(&self) -> bool {
        self.irq().pending().intersects(BgsIrqs::DMA_COMPLETION_EXCEPTION)
    }

    /// Continues with the next round, without the outcome of this one.
    fn without_notice(&mut self) -> ChannelWaitError {
        self.irq().clear(BgsIrqs::DMA_COMPLETION_EXCEPTION);
        self.rounds.next_round();
        ChannelWaitError::Notice
    }

    /// Starts a round and waits for its outcome.
    ///
    /// # Errors
    ///
    /// As [`Channel::wait`].
    ///
    /// # Panics
    ///
    /// If a round is in progress or `count` is too large.
    pub fn run(
        &mut self,
        op: Op,
        input: &Input,
        count: u8,
        timeout_ns: u64,
    ) -> Result<Outcome, ChannelWaitError> {
        self.start(op, input, count).expect("the caller keeps to the rules");
        self.wait(timeout_ns)
    }

    fn irq(&self) -> IrqUnit<'_, P, BgsIrqs> {
        self.device().bgs_irq(self.tni, self.bch.gate())
    }

    /// The combined exceptions of the channel's gates. A stray signal of another node may have
    /// caused them, so they do not end a round.
    pub fn exceptions(&self) -> BgsIrqs {
        let pending = |&(tni, bg): &(TniId, BgId)| self.device().bgs_irq(tni, bg).pending();
        self.gates.iter().map(pending).fold(BgsIrqs::NONE, BgsIrqs::union) & BgsIrqs::EXCEPTIONS
    }

    /// Returns true if the channel's gates are enabled, as they are until it is closed or the
    /// device is reset.
    pub fn is_enabled(&self) -> bool {
        let state = |&(tni, bg): &(TniId, BgId)| bgs_page(tni, bg) + BgsReg::State.offset();
        let platform = self.device().platform();
        self.gates.iter().all(|gate| platform.bar0_read64(state(gate)) & 1 != 0)
    }

    /// Interrupt registers of one of the channel's gates.
    pub fn gate_irq(&self, tni: TniId, bg: BgId) -> Option<IrqUnit<'_, P, BgsIrqs>> {
        self.gates.contains(&(tni, bg)).then(|| self.device().bgs_irq(tni, bg))
    }

    /// Number of signals and starts that the channel ignored.
    pub fn ignored_signals(&self) -> u64 {
        self.rounds.page().read(BchReg::IgnoredSignalCount.offset())
    }

    /// Masks the channel and disables its gates. A round in progress does not end at this node;
    /// other members may wait for it until they time out.
    ///
    /// # Errors
    ///
    /// If the device does not release the channel within 3 s. The memory of its notices is then
    /// never freed.
    pub fn close(mut self) -> Result<(), TimedOut> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<(), TimedOut> {
        if !mem::replace(&mut self.open, false) {
            return Ok(());
        }
        let stopped = self.device().stop_barrier(self.tni, self.bch, &self.gates);
        if stopped.is_err() {
            self.rounds.leak();
        }
        stopped
    }
}

impl<P: Platform> Drop for Channel<P> {
    fn drop(&mut self) {
        // The error cannot be returned. The memory is safe in any case.
        let _ = self.shut_down();
    }
}

impl<P: Platform> Device<P> {
    /// Stops an orphaned barrier channel and its gates, and ends their current rounds.
    ///
    /// # Errors
    ///
    /// If the device does not release the channel within 3 s. Then the memory of its notices must
    /// not be reused.
    pub fn stop_barrier(
        &self,
        tni: TniId,
        bch: BchId,
        gates: &[(TniId, BgId)],
    ) -> Result<(), TimedOut> {
        let write = |tni: TniId, bg: BgId, reg: BgsReg, value| {
            self.platform().bar0_write64(bgs_page(tni, bg) + reg.offset(), value);
        };
        write(tni, bch.gate(), BgsReg::BchMask, BCH_MASK);
        for &(tni, bg) in gates {
            write(tni, bg, BgsReg::Enable, 0);
            self.bgs_irq(tni, bg).reset(BgsIrqs::NONE);
        }
        self.wait_for_channel_mask(tni, bch)
    }

    fn wait_for_channel_mask(&self, tni: TniId, bch: BchId) -> Result<(), TimedOut> {
        let status = bgs_page(tni, bch.gate()) + BgsReg::BchMaskStatus.offset();
        let done = |v| v & BCH_MASK_STATUS_RUN == 0;
        self.poll_register(status, "BCH_MASK_STATUS.RUN to be clear", done).map(drop)
    }
}
