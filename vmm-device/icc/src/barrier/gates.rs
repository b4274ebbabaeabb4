//! The barrier gates and channels of one interface, as a pure state machine.
//!
//! Every call returns its results as [`Effects`]: signals for other interfaces, notices, interrupt
//! requests. Signals between gates of the interface are processed within the call. This terminates:
//! a signal belongs to a round, and in each round a gate takes at most two signals and fires once.

use smallvec::SmallVec;
use tofu_abi::barrier::{
    BCH_MASK, BSEQ_MASK, BchReady, BgAddress, GpidBseq, LocalLink, OpType, Profile, RemoteLink,
    SignalMask, SignalState, input_bits,
};
use tofu_abi::irq::BgsIrqs;
use tofu_abi::reduce::{self, Input, Op, VALUE_QWORDS, Value};
use tofu_abi::regs::{BgsReg, CqsMode};
use tofu_abi::{BchId, BgId, Coords, TniId};
use tofu_inspect::inspect;

use super::schedule::{END_PS, RELAY_PS, START_OVERLAP_PS, START_PS, Schedule};

/// The signal of a gate to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) bseq: u32,
    pub(super) gpid: u64,
    pub(super) op: OpType,
    pub(super) value: Value,
}

/// The source of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Local(BgId),
    Remote(BgAddress),
}

/// A signal for a gate that may be anywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentSignal {
    pub(super) from: BgId,
    pub(super) to: BgAddress,
    pub(super) content: Content,
    /// Modelled time at which it leaves.
    pub(super) at_ps: u64,
}

/// A round that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) bch: BchId,
    pub(super) notice: u64,
    pub(super) content: Content,
}

/// The results of a call.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) sent: SmallVec<[SentSignal; 2]>,
    pub(super) ended: SmallVec<[Ended; 1]>,
    /// Interrupt requests of gates.
    pub(super) requests: SmallVec<[(BgId, BgsIrqs); 2]>,
    /// The last signal to a gate that is not enabled, and the address that it came from.
    pub(super) inactive: Option<(BgId, BgAddress)>,
}

/// One of a gate's two buffers.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    /// SIG_RECV, TLP_RECV, SIG_SEND and the operator.
    state: SignalState,
    value: Value,
    /// Modelled time at which the last signal came.
    ready_ps: u64,
}

impl Buffer {
    const EMPTY: Self = Self { state: SignalState(0), value: [0; VALUE_QWORDS], ready_ps: 0 };
}

/// A barrier gate.
#[derive(Debug)]
struct Gate {
    enabled: bool,
    mask: SignalMask,
    local: LocalLink,
    remote: RemoteLink,
    subnet: CqsMode,
    gpid_bseq: GpidBseq,
    gpid_unmatch: u64,
    address_unmatch: u64,
    buffers: [Buffer; 2],
}

impl Gate {
    const fn new() -> Self {
        Self {
            enabled: false,
            mask: SignalMask(0),
            local: LocalLink(0),
            remote: RemoteLink(0),
            subnet: CqsMode(0),
            gpid_bseq: GpidBseq(0),
            gpid_unmatch: 0,
            address_unmatch: 0,
            buffers: [Buffer::EMPTY; 2],
        }
    }

    fn bseq(&self) -> u32 {
        self.gpid_bseq.bseq()
    }

    /// The buffer of a round.
    fn buffer(&mut self, bseq: u32) -> &mut Buffer {
        &mut self.buffers[bseq as usize & 1]
    }

    /// Returns true if all signals of the present round have come. A gate that waits for none never
    /// fires.
    fn is_complete(&self) -> bool {
        let state = self.buffers[self.bseq() as usize & 1].state;
        let (local, remote) = (!self.mask.sig_recv(), !self.mask.tlp_recv());
        (local || remote) && (!local || state.sig_recv()) && (!remote || state.tlp_recv())
    }

    /// Empties the present round's buffer and moves on to the next round.
    fn next_round(&mut self) -> Content {
        let bseq = self.bseq();
        let gpid = self.gpid_bseq.gpid();
        let buffer = self.buffer(bseq);
        let op = OpType::new(buffer.state.op());
        let content = Content { bseq, gpid, op, value: buffer.value };
        *buffer = Buffer::EMPTY;
        self.gpid_bseq = self.gpid_bseq.with_bseq(bseq.wrapping_add(1) & BSEQ_MASK);
        content
    }

    fn in_subnet(&self, node: Coords) -> bool {
        self.subnet.subnet_allows(node.x, node.y, node.z)
    }
}

/// A barrier channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    masked: bool,
    notice: u64,
    ignored: u64,
    /// A round was started and has not ended.
    running: bool,
    time: BarrierTime,
}

inspect!(Channel { masked, notice as hex, ignored, running, time });

/// Modelled time of the rounds of a barrier channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BarrierTime {
    /// Rounds that ended.
    pub rounds: u64,
    /// From the beginning of the last one until its notice, in picoseconds, as if all members had
    /// begun at the same time.
    pub last_ps: u64,
    /// Sum of that over all rounds, in picoseconds.
    pub total_ps: u64,
}

inspect!(BarrierTime { rounds, last_ps, total_ps });

/// The gates and channels of an interface.
#[derive(Debug)]
pub(super) struct Gates {
    node: Coords,
    tni: TniId,
    profile: Profile,
    gates: Box<[Gate]>,
    channels: Box<[Channel]>,
    /// One for rounds with an even number and one for the others.
    schedules: [Schedule; 2],
    /// Signals within the interface that are still to be handled.
    local: SmallVec<[(BgId, BgId, Content, u64); 4]>,
}

impl Gates {
    pub(super) fn new(node: Coords, tni: TniId, profile: Profile) -> Self {
        Self {
            node,
            tni,
            profile,
            gates: (0..profile.gates).map(|_| Gate::new()).collect(),
            channels: vec![Channel::RESET; profile.channels.into()].into(),
            schedules: Default::default(),
            local: SmallVec::new(),
        }
    }

    pub(super) fn channels(&self) -> &[Channel] {
        &self.channels
    }

    fn address(&self, bg: BgId) -> BgAddress {
        BgAddress::new(self.node, self.tni, bg).place()
    }

    /// The value of a register that is not an interrupt register.
    pub(super) fn read(&self, bg: BgId, reg: BgsReg) -> u64 {
        let Some(gate) = self.gates.get(bg.index()) else {
            return 0;
        };
        let channel = self.channels.get(bg.index());
        match reg {
            BgsReg::Enable | BgsReg::State => gate.enabled.into(),
            BgsReg::ExceptionInfoGpidUnmatch => gate.gpid_unmatch,
            BgsReg::ExceptionInfoAddressUnmatch => gate.address_unmatch,
            BgsReg::SignalA => gate.buffers[0].state.0,
            BgsReg::SignalB => gate.buffers[1].state.0,
            BgsReg::SignalMask => gate.mask.0,
            BgsReg::LocalLink => gate.local.0,
            BgsReg::RemoteLink => gate.remote.0,
            BgsReg::SubnetSize => gate.subnet.0,
            BgsReg::GpidBseq => gate.gpid_bseq.0,
            BgsReg::BchMask => channel.map_or(0, |c| if c.masked { BCH_MASK } else { 0 }),
            BgsReg::BchNoticeIpa => channel.map_or(0, |c| c.notice),
            _ => 0,
        }
    }

    /// A qword of a gate's buffer A (0) or B (1).
    pub(super) fn data(&self, bg: BgId, buffer: u8, qword: u8) -> u64 {
        let gate = self.gates.get(bg.index());
        let buffer = gate.and_then(|gate| gate.buffers.get(usize::from(buffer)));
        buffer.and_then(|b| b.value.get(usize::from(qword))).copied().unwrap_or(0)
    }

    /// Writes a setting of a gate or channel. Links and the sequence number can be set only while
    /// the gate is disabled; writes while it is enabled have no effect.
    pub(super) fn write(&mut self, bg: BgId, reg: BgsReg, value: u64) {
        if let BgsReg::BchMask | BgsReg::BchNoticeIpa = reg {
            match (self.channels.get_mut(bg.index()), reg) {
                (Some(channel), BgsReg::BchNoticeIpa) => channel.notice = value,
                (Some(_), _) => self.mask_channel(bg.index(), value & BCH_MASK != 0),
                _ => {}
            }
            return;
        }
        let Some(gate) = self.gates.get_mut(bg.index()).filter(|gate| !gate.enabled) else {
            return;
        };
        match reg {
            BgsReg::SignalMask => gate.mask = value.into(),
            BgsReg::LocalLink => gate.local = value.into(),
            BgsReg::RemoteLink => gate.remote = value.into(),
            BgsReg::SubnetSize => gate.subnet = value.into(),
            BgsReg::GpidBseq => gate.gpid_bseq = value.into(),
            _ => {}
        }
    }

    fn mask_channel(&mut self, at: usize, masked: bool) {
        let (Some(channel), Some(gate)) = (self.channels.get_mut(at), self.gates.get_mut(at))
        else {
            return;
        };
        channel.masked = masked;
        if masked {
            channel.running = false;
            gate.buffers = [Buffer::EMPTY; 2];
        }
    }

    /// Enables a gate. If its links do not allow that, the gate stays disabled and the matching
    /// interrupt requests are returned.
    pub(super) fn enable(&mut self, bg: BgId) -> Result<(), BgsIrqs> {
        let profile = self.profile;
        let Some(gate) = self.gates.get_mut(bg.index()) else {
            return Ok(());
        };
        if gate.enabled {
            return Ok(());
        }
        let local = |bg: u8| bg < profile.gates;
        let remote = |gate: &Gate, address: u32| {
            let address = BgAddress(address.into());
            profile.has_address(address) && gate.in_subnet(address.coords())
        };
        let mut bad = BgsIrqs::NONE;
        if !gate.mask.sig_recv() && !local(gate.local.recv())
            || !gate.mask.tlp_recv() && !remote(gate, gate.remote.recv())
        {
            bad |= BgsIrqs::BG_RECV_ADDRESS_EXCEPTION;
        }
        if !gate.mask.sig_send() && !local(gate.local.send())
            || !gate.mask.tlp_send() && !remote(gate, gate.remote.send())
        {
            bad |= BgsIrqs::BG_SEND_ADDRESS_EXCEPTION;
        }
        if !bad.is_empty() {
            return Err(bad);
        }
        gate.enabled = true;
        gate.gpid_unmatch = 0;
        gate.address_unmatch = 0;
        Ok(())
    }

    /// Disables a gate. Drops what it has received, and a round of its channel.
    pub(super) fn disable(&mut self, bg: BgId) {
        if let Some(gate) = self.gates.get_mut(bg.index()) {
            gate.enabled = false;
            gate.buffers = [Buffer::EMPTY; 2];
        }
        if let Some(channel) = self.channels.get_mut(bg.index()) {
            channel.running = false;
        }
    }

    /// READY of a channel.
    pub(super) fn ready(&self, bch: BchId) -> BchReady {
        let at = bch.index();
        let ready = match (self.channels.get(at), self.gates.get(at)) {
            (Some(channel), Some(gate)) => !channel.masked && gate.enabled && !channel.running,
            _ => false,
        };
        BchReady(0).with_state(ready)
    }

    /// IGNORED_SIGNAL_COUNT of a channel.
    pub(super) fn ignored(&self, bch: BchId) -> u64 {
        self.channels.get(bch.index()).map_or(0, |channel| channel.ignored)
    }

    pub(super) fn masked(&self, bch: BchId) -> bool {
        self.channels.get(bch.index()).is_none_or(|channel| channel.masked)
    }

    pub(super) fn time(&self, bch: BchId) -> BarrierTime {
        self.channels.get(bch.index()).map_or_else(BarrierTime::default, |c| c.time)
    }

    /// Begins the round that `ready` describes by the start gate's signals. If the channel cannot
    /// take an operation, the start is ignored and counted. An operation that does not exist is an
    /// error of the start gate. Returns whether a round has begun.
    pub(super) fn start(
        &mut self,
        bch: BchId,
        ready: BchReady,
        mut input: Input,
        effects: &mut Effects,
    ) -> bool {
        let at = bch.index();
        let free = self.ready(bch).state();
        let alone = !self.channels.iter().any(|channel| channel.running);
        let (Some(channel), Some(gate)) = (self.channels.get_mut(at), self.gates.get_mut(at))
        else {
            return false;
        };
        if !free {
            channel.ignored = channel.ignored.wrapping_add(1);
            return false;
        }
        let op = Op::from_code(ready.op());
        let Some(op) = op.filter(|op| ready.count() <= self.profile.max_elements(*op)) else {
            effects.requests.push((bch.gate(), BgsIrqs::SIGNAL_STATE_ERROR));
            return false;
        };
        channel.running = true;
        keep_bits(&mut input, u32::from(ready.count()) * input_bits(op));
        let (bseq, gpid) = (gate.bseq(), gate.gpid_bseq.gpid());
        let value = reduce::widen(op, &input);
        let content = Content { bseq, gpid, op: op.into(), value };
        let schedule = &mut self.schedules[bseq as usize & 1];
        if alone {
            // An earlier round of the same number ended long ago.
            *schedule = Schedule::default();
        }
        let at_ps = schedule.take(bseq, START_OVERLAP_PS, START_PS);
        let buffer = gate.buffer(bseq);
        buffer.state = buffer.state.with_sig_send(true);
        buffer.ready_ps = buffer.ready_ps.max(at_ps);
        self.send(bch.gate(), &content, at_ps, effects);
        self.fire(bch.gate(), effects);
        self.work(effects);
        true
    }

    /// Counts a start that the interface is not enabled for.
    pub(super) fn ignore_start(&mut self, bch: BchId) {
        if let Some(channel) = self.channels.get_mut(bch.index()) {
            channel.ignored = channel.ignored.wrapping_add(1);
        }
    }

    /// Handles a signal from a gate elsewhere.
    pub(super) fn arrive(
        &mut self,
        bg: BgId,
        from: BgAddress,
        content: &Content,
        at_ps: u64,
        effects: &mut Effects,
    ) {
        self.take(bg, Source::Remote(from.place()), content, at_ps, effects);
        self.work(effects);
    }

    /// Handles signals between the interface's gates until there are none.
    fn work(&mut self, effects: &mut Effects) {
        while let Some((from, to, content, at_ps)) = self.local.pop() {
            self.take(to, Source::Local(from), &content, at_ps, effects);
        }
    }

    /// Sends a gate's signals.
    fn send(&mut self, bg: BgId, content: &Content, at_ps: u64, effects: &mut Effects) {
        let Some(gate) = self.gates.get(bg.index()) else {
            return;
        };
        if !gate.mask.tlp_send() {
            let to = BgAddress(gate.remote.send().into());
            effects.sent.push(SentSignal { from: bg, to, content: *content, at_ps });
        }
        if !gate.mask.sig_send() {
            let to = BgId::from_field(gate.local.send());
            self.local.push((bg, to, *content, at_ps));
        }
    }

    /// Passes a signal to a gate, which takes it if it waits for it.
    fn take(
        &mut self,
        bg: BgId,
        source: Source,
        content: &Content,
        at_ps: u64,
        effects: &mut Effects,
    ) {
        let sender = match source {
            Source::Local(from) => self.address(from),
            Source::Remote(from) => from,
        };
        let Some(gate) = self.gates.get_mut(bg.index()).filter(|gate| gate.enabled) else {
            effects.inactive = Some((bg, sender));
            return;
        };
        if let Some(channel) = self.channels.get_mut(bg.index()).filter(|c| c.masked) {
            channel.ignored = channel.ignored.wrapping_add(1);
            return;
        }
        if content.gpid != gate.gpid_bseq.gpid() {
            gate.gpid_unmatch = sender.0;
            effects.requests.push((bg, BgsIrqs::GPID_UNMATCH));
            return;
        }
        let expected = match source {
            Source::Local(from) => !gate.mask.sig_recv() && gate.local.recv() == from.get(),
            Source::Remote(from) => {
                !gate.mask.tlp_recv()
                    && u64::from(gate.remote.recv()) == from.0
                    && gate.in_subnet(from.coords())
            }
        };
        if !expected {
            gate.address_unmatch = sender.0;
            effects.requests.push((bg, BgsIrqs::NODE_ADDRESS_UNMATCH));
            return;
        }
        if content.bseq.wrapping_sub(gate.bseq()) & BSEQ_MASK > 1 {
            effects.requests.push((bg, BgsIrqs::BSEQ_UNMATCH));
            return;
        }
        let buffer = gate.buffer(content.bseq);
        let (came, with_it) = match source {
            Source::Local(_) => (buffer.state.sig_recv(), buffer.state.with_sig_recv(true)),
            Source::Remote(_) => (buffer.state.tlp_recv(), buffer.state.with_tlp_recv(true)),
        };
        if came {
            effects.requests.push((bg, BgsIrqs::SIGNAL_STATE_ERROR));
            return;
        }
        if buffer.merge(content) {
            effects.requests.push((bg, BgsIrqs::SIGNAL_STATE_ERROR));
        }
        buffer.state = with_it.with_op(buffer.state.op());
        buffer.ready_ps = buffer.ready_ps.max(at_ps);
        self.fire(bg, effects);
    }

    /// Fires a gate as long as all signals of its present round have come: once, or twice if those
    /// of the next round came before.
    fn fire(&mut self, bg: BgId, effects: &mut Effects) {
        let at = bg.index();
        while let Some(gate) = self.gates.get_mut(at)
            && gate.is_complete()
        {
            let bseq = gate.bseq();
            let buffer = *gate.buffer(bseq);
            let schedule = &mut self.schedules[bseq as usize & 1];
            if let (Some(channel), Some(bch)) = (self.channels.get_mut(at), bg.channel()) {
                // The end of a round waits for its beginning at this node.
                if !buffer.state.sig_send() {
                    return;
                }
                let content = gate.next_round();
                let end_ps = schedule.take(bseq, buffer.ready_ps, END_PS);
                channel.time.rounds += 1;
                channel.time.last_ps = end_ps;
                channel.time.total_ps = channel.time.total_ps.saturating_add(end_ps);
                channel.running = false;
                effects.ended.push(Ended { bch, notice: channel.notice, content });
                return;
            }
            let content = gate.next_round();
            let at_ps = schedule.take(bseq, buffer.ready_ps, RELAY_PS);
            self.send(bg, &content, at_ps, effects);
        }
    }
}

impl Channel {
    const RESET: Self = Self {
        masked: true,
        notice: 0,
        ignored: 0,
        running: false,
        time: BarrierTime { rounds: 0, last_ps: 0, total_ps: 0 },
    };
}

impl Buffer {
    /// Combines a signal's value with the earlier ones. Returns true if their operators differ; the
    /// buffer then holds an error.
    fn merge(&mut self, content: &Content) -> bool {
        let before = OpType::new(self.state.op());
        if before.code() == 0 {
            self.state = self.state.with_op(content.op.code());
            self.value = content.value;
            return false;
        }
        match before.op() {
            Some(op) if before == content.op => {
                reduce::combine(op, &mut self.value, &content.value);
                false
            }
            _ => {
                self.state = self.state.with_op(OpType::ERROR.code());
                self.value = [0; VALUE_QWORDS];
                before != OpType::ERROR && content.op != OpType::ERROR
            }
        }
    }
}

/// Clears all bits from `n` on.
fn keep_bits(input: &mut Input, n: u32) {
    for (word, from) in input.iter_mut().zip((0..).step_by(64)) {
        match n.saturating_sub(from) {
            0 => *word = 0,
            left @ 1..64 => *word &= (1 << left) - 1,
            _ => {}
        }
    }
}
