//! The transmitting side of a control queue: descriptors in, request packets out.

use tofu_abi::desc::{
    ArmwOp, Command, DESC_SIZE, Descriptor, Header1, Header2, MAX_MTU, MTU_UNIT,
    PIGGYBACK_BUFFER_MAX, source_type,
};
use tofu_abi::irq::cqs;
use tofu_abi::queue::RingIndex;
use tofu_abi::regs::{CqReg, TniReg};
use tofu_abi::{Doorbell, Rcode, StagOffset, TniId};
use tofu_fabric::{Class, Packet, Way};

use crate::Icc;
use crate::cq::{Cq, lock};
use crate::host::Net;
use crate::memory::Access;
use crate::notice::{Kind, Outstanding, Slot};
use crate::tlp::{BURST_BYTES, BURST_NOTICES, Body, Payload, Request, Tag, burst_size};

/// What a queue may do before others get their turn: so many descriptors or bursts, of which each
/// [`STEP_BYTES`] bytes count as one more.
const TURN_STEPS: u64 = 64;
/// Copying so many bytes takes about as long as a step without data, or a little more.
const STEP_BYTES: u64 = 64 << 10;

/// A message that is being sent.
#[derive(Clone, Copy, Debug)]
struct Active {
    tag: Tag,
    kind: Kind,
    header1: Header1,
    header2: Header2,
    remote: StagOffset,
    local: StagOffset,
    length: u32,
    mtu: u32,
    sent: u32,
    /// Bytes sent on the wire so far, for the modelled time of what follows.
    wire: u64,
}

/// State of the transmitting side of an enabled queue.
#[derive(Debug)]
pub(crate) struct Transmit {
    toq: u64,
    ring: RingIndex,
    active: Option<Active>,
    /// Second descriptor of a direct command whose first one was just taken.
    second: Option<Descriptor>,
}

impl Transmit {
    pub(crate) const fn new(toq: u64, ring: RingIndex) -> Self {
        Self { toq, ring, active: None, second: None }
    }

    fn slot(&self) -> Slot {
        Slot { index: self.ring.slot(), flip: self.ring.flip() }
    }

    fn entry(&self) -> u64 {
        self.toq.wrapping_add(u64::from(self.ring.slot()) * DESC_SIZE as u64)
    }
}

/// What one step of a queue came to.
enum Step {
    /// Nothing to do, or not possible now.
    Idle,
    /// Went on without anything to send.
    Done,
    /// Something to send.
    Send(Packet<Body>),
}

impl Icc {
    /// Runs the control queue or barrier channel of a doorbell: takes descriptors until it meets a
    /// blank one, and sends what they ask for.
    ///
    /// Returns whether there is more to do: after a turn of bounded length the queue lets
    /// others work. If another thread runs the queue already, that one takes over what is new.
    pub fn run_queue(&self, tni: TniId, doorbell: Doorbell, net: &mut dyn Net) -> bool {
        let queue = match doorbell {
            Doorbell::Cq(cq) => self.queue(tni, cq),
            Doorbell::Channel(bch) => {
                self.run_channel(tni, bch, net);
                return false;
            }
        };
        queue.transmit.run(|transmit| {
            let more = transmit.as_mut().is_some_and(|transmit| self.turn(queue, transmit, net));
            self.note_deadline(queue);
            more
        })
    }

    fn turn(&self, queue: &Cq, transmit: &mut Transmit, net: &mut dyn Net) -> bool {
        let mut left = TURN_STEPS;
        while left > 0 {
            left -= 1;
            match self.step(queue, transmit, net.now_ns()) {
                Step::Idle => return false,
                Step::Done => {}
                Step::Send(packet) => {
                    let length = match &packet.body {
                        Body::Put { request, .. } | Body::Get { request } => request.length,
                        _ => 0,
                    };
                    left = left.saturating_sub(u64::from(length) / STEP_BYTES);
                    let frame = match &packet.body {
                        Body::Frame { tag, .. } => Some(*tag),
                        _ => None,
                    };
                    net.inject(packet);
                    net.progress();
                    if let Some(tag) = frame {
                        // The network has it. If it was lost already, it has ended with that.
                        self.account(queue, tag, u32::MAX, Rcode::SUCCESS, 0, net.now_ns());
                    }
                }
            }
        }
        true
    }

    fn step(&self, queue: &Cq, transmit: &mut Transmit, now: u64) -> Step {
        if !self.dma_enabled() || !self.tni(queue.tni).enabled() {
            return Step::Idle;
        }
        if let Some(active) = transmit.active {
            if !queue.may_process() {
                return Step::Idle;
            }
            return self.continue_message(queue, transmit, active, now);
        }
        if !queue.may_fetch() || !queue.session_may_start() {
            return Step::Idle;
        }
        let room = lock(&queue.completions).as_ref().is_some_and(|c| c.has_room());
        if !room {
            queue.stalled.store(true, std::sync::atomic::Ordering::SeqCst);
            // A completion that came before the flag was set would not ring again.
            if !lock(&queue.completions).as_ref().is_some_and(|c| c.has_room()) {
                return Step::Idle;
            }
        }
        match self.fetch(queue, transmit) {
            Some(descriptor) => {
                let slot = transmit.slot();
                transmit.ring.advance();
                queue.show_next(&transmit.ring);
                queue.use_session_step();
                self.start(queue, transmit, slot, &descriptor, now)
            }
            None => Step::Idle,
        }
    }

    /// The next descriptor, from the direct descriptor register or the transmit order queue.
    fn fetch(&self, queue: &Cq, transmit: &mut Transmit) -> Option<Descriptor> {
        if let Some(second) = transmit.second.take() {
            self.mark_direct(queue, transmit)?;
            return Some(second);
        }
        let at = transmit.entry();
        let Ok(words) = self.memory().load_entry(at) else {
            self.fail(queue, cqs::TOQ_READ_EXCEPTION);
            return None;
        };
        let header = Header1(words[0]);
        let valid = header.flip() == transmit.ring.flip();
        if valid && header.source_type() == source_type::TOQ {
            return Some(Descriptor(words));
        }
        if valid && !Cq::is_placeholder(header.source_type()) {
            self.fail(queue, cqs::TOQ_SOURCE_TYPE_EXCEPTION);
            return None;
        }
        // A blank entry, or one that keeps the place of a direct descriptor: here a direct
        // descriptor goes, if there is one.
        queue.poll_direct();
        let direct = lock(&queue.direct).take()?;
        let (first, second) = (direct.first(), direct.second());
        let from_register = |d: &Descriptor| d.header1().source_type() == source_type::DIRECT;
        if !from_register(&first) || !second.as_ref().is_none_or(from_register) {
            self.fail(queue, cqs::TOQ_SOURCE_TYPE_EXCEPTION);
            return None;
        }
        self.mark_direct(queue, transmit)?;
        queue.count_direct(if second.is_some() { 2 } else { 1 });
        transmit.second = second;
        Some(first)
    }

    /// Marks the place of a direct descriptor in the transmit order queue as used, so that
    /// it is not taken for a valid entry on the next lap.
    fn mark_direct(&self, queue: &Cq, transmit: &Transmit) -> Option<()> {
        let mark = Header1(0).with_flip(transmit.ring.flip()).with_source_type(source_type::DIRECT);
        match self.memory().store(transmit.entry(), mark.0) {
            Ok(()) => Some(()),
            Err(_) => {
                self.fail(queue, cqs::TOQ_READ_EXCEPTION);
                None
            }
        }
    }

    /// Stops a queue for an exception of its own.
    fn fail(&self, queue: &Cq, request: u64) {
        queue.stop();
        queue.irq.request(self.host(), request);
    }

    /// Answers a command that ends at once.
    fn answer(
        &self,
        queue: &Cq,
        slot: Slot,
        descriptor: &Descriptor,
        rcode: Rcode,
        length: u32,
        now: u64,
    ) -> Step {
        let mut writer = self.writer(queue, now);
        if let Some(completions) = lock(&queue.completions).as_mut() {
            let interrupt = descriptor.header1().interrupt();
            completions.complete(slot, rcode, length, interrupt, &mut writer);
        }
        let requests = writer.requests;
        self.raise(queue, requests);
        Step::Done
    }

    /// Begins a command.
    fn start(
        &self,
        queue: &Cq,
        transmit: &mut Transmit,
        slot: Slot,
        descriptor: &Descriptor,
        now: u64,
    ) -> Step {
        let header1 = descriptor.header1();
        let header2 = descriptor.header2();
        let command = Command::from_code(header1.command());
        let refuse = |rcode| self.answer(queue, slot, descriptor, rcode, 0, now);
        let kind = match command {
            Some(Command::Nop) => return refuse(Rcode::SUCCESS),
            Some(Command::WritePiggybackBuffer) => {
                queue.write_piggyback([descriptor.0[1], descriptor.0[2], descriptor.0[3]]);
                return refuse(Rcode::SUCCESS);
            }
            Some(Command::Put | Command::PutPiggyback) => Kind::Put,
            Some(Command::Get | Command::GetL) => Kind::Get,
            Some(Command::AtomicReadModifyWrite) => Kind::Armw,
            Some(
                command @ (Command::TransmitRawPacket1
                | Command::TransmitRawPacket2
                | Command::TransmitSystemPacket1
                | Command::TransmitSystemPacket2),
            ) => return self.start_packet(queue, slot, command, descriptor, now),
            None => return refuse(Rcode::UNDEFINED_COMMAND),
        };
        if TniId::new(header1.ri()).is_none() {
            return refuse(Rcode::NO_SUCH_NODE);
        }
        if !queue.mode().subnet_allows(header1.rx(), header1.ry(), header1.rz()) {
            return refuse(Rcode::SUBNET);
        }
        let piggyback = command == Some(Command::PutPiggyback);
        let length = if piggyback { header2.piggyback_length().into() } else { header2.length() };
        // The bits of the mtu are those of the operator in an atomic command.
        let mtu = match (kind, u32::from(header1.mtu()) * MTU_UNIT) {
            (Kind::Armw, _) | (_, 0) => MAX_MTU,
            (_, mtu) => mtu,
        };
        if mtu > MAX_MTU {
            return refuse(Rcode::BAD_MTU);
        }
        if piggyback && length as usize > PIGGYBACK_BUFFER_MAX {
            return refuse(Rcode::BAD_LENGTH);
        }
        let op = ArmwOp::from_code(header1.op());
        if kind == Kind::Armw {
            if length != 4 && length != 8 {
                return refuse(Rcode::BAD_LENGTH);
            }
            if op.is_none() {
                return refuse(Rcode::BAD_OPERATOR);
            }
        }
        // Piggyback data and operands come with the command; the other side is told the
        // queue that they come from all the same.
        let local = if kind == Kind::Armw || piggyback {
            StagOffset::new(queue.id.get(), 0, 0)
        } else {
            descriptor.local().with_cqid(queue.id.get())
        };
        let outstanding = Outstanding {
            kind,
            slot,
            header1,
            header2,
            remote: descriptor.remote(),
            local,
            length,
            mtu,
            unanswered: length.max(1),
            rcode: Rcode::SUCCESS,
            deadline_ns: now.saturating_add(self.timeout_ns()),
            sequence: 0,
        };
        let Some((index, generation)) =
            lock(&queue.completions).as_mut().and_then(|c| c.start(outstanding))
        else {
            return Step::Idle;
        };
        let mut active = Active {
            tag: Tag { cq: queue.id, index, generation },
            kind,
            header1,
            header2,
            remote: descriptor.remote(),
            local,
            length,
            mtu,
            sent: 0,
            wire: 0,
        };
        if piggyback {
            let mut data = [0; PIGGYBACK_BUFFER_MAX];
            let words = [descriptor.data()].into_iter().chain(queue.piggyback());
            for (bytes, word) in data.chunks_exact_mut(8).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            data[length as usize..].fill(0);
            queue.page.add(CqReg::TxPayloadByte, length.into());
            let payload = Payload::Inline { data, len: length as u8 };
            let body = Body::Put { request: active.request(queue, length), payload };
            return self.send(queue, &mut active, length, length, body);
        }
        if let (Kind::Armw, Some(op)) = (kind, op) {
            let (operand, compare) = armw_operands(op, length, descriptor.data(), queue);
            let request = active.request(queue, length);
            let body = Body::Armw { request, op, operand, compare };
            // An operand and, for a compare-and-swap, the value to compare with.
            let data = if op == ArmwOp::CompareAndSwap { 2 * length } else { length };
            return self.send(queue, &mut active, length, data, body);
        }
        transmit.active = Some(active);
        self.continue_message(queue, transmit, active, now)
    }

    /// Sends a raw or system packet. Its command ends when the network has taken it.
    fn start_packet(
        &self,
        queue: &Cq,
        slot: Slot,
        command: Command,
        descriptor: &Descriptor,
        now: u64,
    ) -> Step {
        let fault = |request| queue.irq.request(self.host(), request);
        let mut packet = match self.packet(queue, command, descriptor, fault) {
            Ok(packet) => packet,
            Err(rcode) => return self.answer(queue, slot, descriptor, rcode, 0, now),
        };
        let length = descriptor.header2().packet_length().into();
        let outstanding = Outstanding {
            kind: Kind::Frame,
            slot,
            header1: descriptor.header1(),
            header2: descriptor.header2(),
            remote: StagOffset(0),
            local: StagOffset(0),
            length,
            mtu: MAX_MTU,
            unanswered: length,
            rcode: Rcode::SUCCESS,
            deadline_ns: now.saturating_add(self.timeout_ns()),
            sequence: 0,
        };
        let Some((index, generation)) =
            lock(&queue.completions).as_mut().and_then(|c| c.start(outstanding))
        else {
            return Step::Idle;
        };
        if let Body::Frame { tag, .. } = &mut packet.body {
            *tag = Tag { cq: queue.id, index, generation };
        }
        let unit = self.tni(queue.tni);
        unit.count_sent(packet.tlps, packet.bytes);
        unit.add(TniReg::NumSendSystemTlp, packet.system.into());
        queue.page.add(CqReg::TxPayloadByte, length.into());
        Step::Send(packet)
    }

    /// Sends the next burst of a message.
    fn continue_message(
        &self,
        queue: &Cq,
        transmit: &mut Transmit,
        mut active: Active,
        now: u64,
    ) -> Step {
        let failed = {
            let mut completions = lock(&queue.completions);
            match completions.as_mut().and_then(|c| c.find(active.tag.index, active.tag.generation))
            {
                // After an error, and when it was given up, the rest is not sent.
                Some(command) => command.rcode != Rcode::SUCCESS,
                None => true,
            }
        };
        if failed {
            transmit.active = None;
            self.give_up_rest(queue, &active, Rcode::SUCCESS, now);
            return Step::Done;
        }
        let limit = if active.header2.packet_response() {
            BURST_BYTES.min(BURST_NOTICES * active.mtu)
        } else {
            BURST_BYTES
        };
        // Whole TLPs, unless it is the end.
        let limit = limit / active.mtu * active.mtu;
        let n = (active.length - active.sent).min(limit);
        let request = active.request(queue, n);
        let body = match active.kind {
            Kind::Put => {
                let pin = queue.tables.pin();
                let from =
                    queue.tables.translate(self.memory(), &pin, request.local, n, Access::Read);
                if let Some(fault) = from.fault {
                    transmit.active = None;
                    queue.irq.request(self.host(), fault.irq);
                    self.give_up_rest(queue, &active, fault.rcode, now);
                    return Step::Done;
                }
                queue.page.add(CqReg::TxPayloadByte, n.into());
                let memory = self.shared_memory();
                Body::Put {
                    request,
                    payload: Payload::Guest { memory, segments: from.segments, pin },
                }
            }
            Kind::Get | Kind::Armw | Kind::Frame => Body::Get { request },
        };
        let data = if active.kind == Kind::Put { n } else { 0 };
        let step = self.send(queue, &mut active, n, data, body);
        transmit.active = (active.sent < active.length).then_some(active);
        step
    }

    /// Counts what was not sent of a message as answered, and ends it if nothing else is awaited.
    fn give_up_rest(&self, queue: &Cq, active: &Active, rcode: Rcode, now: u64) {
        let rest = (active.length - active.sent).max(u32::from(active.length == 0));
        self.account(queue, active.tag, rest, rcode, 0, now);
    }

    /// A packet with `data` bytes of payload for `n` bytes of a message.
    fn send(&self, queue: &Cq, active: &mut Active, n: u32, data: u32, body: Body) -> Step {
        let padding = active.header2.padding();
        let (tlps, bytes) = burst_size(data, active.mtu, padding);
        let packet = Packet {
            src: self.coords(),
            src_tni: queue.tni.get(),
            dst: active.header1.target(),
            dst_tni: active.header1.ri(),
            path: active.header1.path(),
            way: Way::Shortest,
            class: Class::Request,
            system: false,
            tlps,
            bytes,
            model_ps: self.issue_ps(active.wire),
            body,
        };
        active.sent += n;
        active.wire += bytes;
        self.tni(queue.tni).count_sent(tlps, bytes);
        Step::Send(packet)
    }
}

impl Active {
    /// The request for the next `n` bytes.
    fn request(&self, queue: &Cq, n: u32) -> Request {
        Request {
            tag: self.tag,
            gpid: queue.gpid(),
            header2: self.header2,
            sps: self.header1.sps(),
            remote: self.remote.advanced(self.sent.into()),
            local: self.local.advanced(self.sent.into()),
            position: self.sent,
            length: n,
            total: self.length,
            mtu: self.mtu,
        }
    }
}

/// Operand and value to compare with.
fn armw_operands(op: ArmwOp, length: u32, data: u64, queue: &Cq) -> (u64, u64) {
    match (op, length) {
        (ArmwOp::CompareAndSwap, 4) => (data >> 32, data & 0xffff_ffff),
        (ArmwOp::CompareAndSwap, _) => (queue.piggyback()[0], data),
        _ => (data, 0),
    }
}
