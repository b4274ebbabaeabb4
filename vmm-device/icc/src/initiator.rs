//! The initiator of commands: descriptors in, request packets out, answers in.

use std::sync::atomic::Ordering::SeqCst;

use tofu_abi::desc::{ArmwOp, Descriptor, Header1, PIGGYBACK_BUFFER_MAX, source_type};
use tofu_abi::irq::CqsIrqs;
use tofu_abi::regs::{CqReg, TniReg};
use tofu_abi::{Doorbell, Rcode, TniId};
use tofu_fabric::{Class, Packet, Way};

use crate::command::{self, Action, CommandKind, Message, PacketCommand};
use crate::completions::{End, Side, Slot};
use crate::cq::Cq;
use crate::device::Icc;
use crate::ecc::EccPlace;
use crate::fault::Fault;
use crate::host::Net;
use crate::memory::{Access, DmaMemory};
use crate::notice::Peer;
use crate::observe::explain;
use crate::observe::rules;
use crate::observe::trace_events::{Subject, Which};
use crate::tlp::{Answer, BURST_BYTES, BURST_NOTICES, Body, Payload, Tag, burst_size, full_tlp};
use crate::translate::Translation;
use crate::transmit::{Active, Transmit};
use tofu_rules::Point;

/// The steps that a queue may take before others get their turn. A descriptor or a burst is a step,
/// and each [`STEP_BYTES`] bytes of a burst count as one more.
const TURN_STEPS: u64 = 64;
/// Copying that many bytes takes about as long as a step without data, or a little more.
const STEP_BYTES: u64 = 64 << 10;

/// The outcome of one step of a queue.
enum Step {
    /// Nothing to do, or not possible now.
    Idle,
    /// Went on without anything to send.
    Done,
    /// Sent a packet for this number of bytes of a message.
    Sent(u32),
    /// Sent a raw or system packet.
    SentFrame(Tag),
}

/// An answer that has arrived.
#[derive(Clone, Copy)]
pub(crate) struct Answered {
    pub(crate) tni: TniId,
    pub(crate) from: Peer,
    /// The kind of command that has such answers.
    pub(crate) kind: CommandKind,
    pub(crate) answer: Answer,
    /// The side of the fault that the answer reports, if any.
    pub(crate) at: Side,
    /// The old value in the answer to an atomic command.
    pub(crate) old: u64,
    /// Modelled time since the command, in picoseconds.
    pub(crate) model_ps: u64,
    pub(crate) now_ns: u64,
}

impl Icc {
    /// Runs the control queue or barrier channel of a doorbell: takes descriptors until it meets a
    /// blank one, and carries them out.
    ///
    /// Returns whether there is more to do: after a turn of bounded length the queue lets others
    /// work. If another thread already runs the queue, that thread also handles the new
    /// descriptors.
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
        transmit.narrow = net.can_be_full();
        transmit.transacts = net.transacts();
        let mut left = TURN_STEPS;
        while left > 0 {
            left -= 1;
            match self.step(queue, transmit, net) {
                Step::Idle => return false,
                Step::Done => {}
                Step::Sent(bytes) => {
                    left = left.saturating_sub(u64::from(bytes) / STEP_BYTES);
                    net.progress();
                }
                Step::SentFrame(tag) => {
                    net.progress();
                    if !net.tells_of_frames() {
                        // The network has it. If it was lost already, it has ended with that.
                        self.frame_passed(queue.tni, tag, net.now_ns());
                    }
                }
            }
        }
        true
    }

    fn step(&self, queue: &Cq, transmit: &mut Transmit, net: &mut dyn Net) -> Step {
        if !self.dma_enabled() || !self.tni(queue.tni).enabled() {
            return Step::Idle;
        }
        if let Some(active) = transmit.active {
            if !queue.may_process() || !self.may_send(queue, transmit, net) {
                return Step::Idle;
            }
            return self.continue_message(queue, transmit, active, net);
        }
        if !queue.may_fetch() || !queue.session_may_start() {
            return Step::Idle;
        }
        if transmit.room == 0 && !self.make_room(queue, transmit) {
            return Step::Idle;
        }
        if !self.may_send(queue, transmit, net) {
            return Step::Idle;
        }
        match self.fetch(queue, transmit) {
            Some(_) if self.ecc.is_lost(EccPlace::Buffers) => {
                self.fail(queue, CqsIrqs::TOQ_MARKED_UE);
                Step::Idle
            }
            Some(descriptor) => {
                // Its addresses are looked up in the tables. An uncorrectable error there fails the
                // node.
                let _ = self.ecc.is_lost(EccPlace::Tables);
                let slot = transmit.slot();
                transmit.ring.advance();
                // Whether or not it starts a command.
                transmit.room -= 1;
                queue.show_next(&transmit.ring);
                queue.use_session_step();
                self.start(queue, transmit, slot, &descriptor, net)
            }
            None => Step::Idle,
        }
    }

    /// Checks whether the queue's table has room for another command. If not, the queue is rung
    /// when it has.
    fn make_room(&self, queue: &Cq, transmit: &mut Transmit) -> bool {
        transmit.room = queue.room();
        if transmit.room == 0 {
            queue.stalled.store(true, SeqCst);
            // Check again: a completion before the flag was set did not ring the queue.
            transmit.room = queue.room();
        }
        transmit.room > 0
    }

    /// Returns true if the network takes a request of the queue. If not, the queue is rung when it
    /// does.
    fn may_send(&self, queue: &Cq, transmit: &mut Transmit, net: &dyn Net) -> bool {
        let has_room = || !transmit.narrow || net.has_room(self.coords(), queue.tni);
        if has_room() {
            if transmit.waited {
                transmit.waited = false;
                self.tni(queue.tni).waiting.served(queue.id);
            }
            return true;
        }
        transmit.waited = true;
        self.tni(queue.tni).waiting.enter(queue.id);
        // Check again: room made before the queue entered did not ring it.
        has_room()
    }

    /// The next descriptor, from the direct descriptor register or the transmit order queue.
    fn fetch(&self, queue: &Cq, transmit: &mut Transmit) -> Option<Descriptor> {
        if let Some(second) = transmit.second {
            transmit.second = None;
            self.mark_direct(queue, transmit)?;
            return Some(second);
        }
        let Ok(words) = self.memory().load_entry(transmit.entry()) else {
            self.fail(queue, CqsIrqs::TOQ_READ_EXCEPTION);
            return None;
        };
        let header = Header1(words[0]);
        let valid = header.flip() == transmit.ring.flip();
        if valid && header.source_type() == source_type::TOQ {
            return Some(Descriptor(words));
        }
        if valid && !Cq::is_placeholder(header.source_type()) {
            self.fail(queue, CqsIrqs::TOQ_SOURCE_TYPE_EXCEPTION);
            return None;
        }
        // A blank entry, or one that reserves the place of a direct descriptor: a direct descriptor
        // goes here, if there is one.
        let direct = queue.take_direct()?;
        let (first, second) = (direct.first(), direct.second());
        let from_register = |d: &Descriptor| d.header1().source_type() == source_type::DIRECT;
        if !from_register(&first) || !second.as_ref().is_none_or(from_register) {
            self.fail(queue, CqsIrqs::TOQ_SOURCE_TYPE_EXCEPTION);
            return None;
        }
        self.mark_direct(queue, transmit)?;
        self.rules.lane(queue.tni.index()).kept(Point::Direct);
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
                self.fail(queue, CqsIrqs::TOQ_READ_EXCEPTION);
                None
            }
        }
    }

    /// Stops a queue for an exception that it caused.
    fn fail(&self, queue: &Cq, request: CqsIrqs) {
        self.count_queue_exceptions(request);
        let rule = rules::OF_QUEUE.iter().find(|(bits, _)| bits.intersects(request));
        let what = format_args!("{}: {request:?}: the queue stops", queue.name());
        self.report_breach(rule.map(|(_, rule)| *rule), what);
        queue.stop();
        queue.irq.request(self.host(), request);
    }

    /// Carries out a descriptor.
    #[inline]
    fn start(
        &self,
        queue: &Cq,
        transmit: &mut Transmit,
        slot: Slot,
        descriptor: &Descriptor,
        net: &mut dyn Net,
    ) -> Step {
        let now = net.now_ns();
        let end = match command::parse(descriptor, queue.id, queue.mode(), self.description()) {
            Ok(Action::Transfer(message)) => {
                if transmit.transacts && self.transact(queue, slot, &message, now, net) {
                    // It took no place in the table.
                    transmit.room += 1;
                    return Step::Sent(message.length);
                }
                let Some(tag) = self.begin(queue, slot, &message, now) else { return Step::Idle };
                return self.send_burst(queue, transmit, &mut Active::new(tag, message), net);
            }
            Ok(Action::PutPiggyback(message, first)) => {
                return self.put_piggyback(queue, transmit, (slot, message, first), net);
            }
            Ok(Action::Armw(message, op, operand)) => {
                return self.start_armw(queue, slot, message, (op, operand), net);
            }
            Ok(Action::Packet(packet)) => match self.start_packet(queue, slot, &packet, net) {
                Ok(step) => return step,
                Err(fault) => fault,
            },
            Ok(Action::Nop) => Rcode::SUCCESS.into(),
            Ok(Action::WritePiggybackBuffer(data)) => {
                queue.write_piggyback(data);
                Rcode::SUCCESS.into()
            }
            Err(fault) => fault,
        };
        self.end_at_once(queue, slot, descriptor, end, now)
    }

    /// Ends a descriptor that sends nothing.
    #[inline(never)]
    fn end_at_once(
        &self,
        queue: &Cq,
        slot: Slot,
        descriptor: &Descriptor,
        end: Fault,
        now: u64,
    ) -> Step {
        if !end.rcode.is_success() {
            let (node, tni, cq) = (self.coords(), queue.tni, queue.id);
            let subject = Subject { node, tni, cq, which: Which::Slot(slot.index) };
            self.failed.note(
                now,
                (end.rcode, rules::of_local(end.rcode)),
                || {
                    format!(
                        "{}: descriptor in slot {}, {:x?}",
                        queue.name(),
                        slot.index,
                        descriptor.0
                    )
                },
                || explain::refusal(descriptor, queue.mode(), self.description(), end.rcode),
                |failure| {
                    self.report_breach(failure.rule(), format_args!("{failure}"));
                    self.tell_why(subject, &failure.reason());
                },
            );
        }
        self.tell_at_once(queue, slot, descriptor.header1(), end.rcode);
        let rcode = self.raise(queue, end);
        if rcode.is_success() {
            self.rules.lane(queue.tni.index()).kept(Point::Local);
        }
        self.completing(queue, now, |completions, writer| {
            completions.complete(slot, rcode, 0, descriptor.header1().interrupt(), writer);
        });
        Step::Done
    }

    /// Notes a command as outstanding.
    #[inline(always)]
    fn begin(&self, queue: &Cq, slot: Slot, message: &Message, now: u64) -> Option<Tag> {
        let deadline_ns = self.command_deadline(now);
        let (index, generation) = queue.begin(message, slot, deadline_ns)?;
        let tag = Tag { cq: queue.id, index, generation };
        if self.traced.is_on() {
            self.tell_begun(queue.tni, slot, tag, message);
        }
        Some(tag)
    }

    /// Sends data that came with the command.
    #[inline(never)]
    fn put_piggyback(
        &self,
        queue: &Cq,
        transmit: &mut Transmit,
        (slot, message, first): (Slot, Message, u64),
        net: &mut dyn Net,
    ) -> Step {
        let length = message.length;
        let mut data = [0; PIGGYBACK_BUFFER_MAX];
        for (bytes, word) in
            data.chunks_exact_mut(8).zip([first].into_iter().chain(queue.piggyback()))
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let (taken, rest) = data.split_at_mut(length as usize);
        rest.fill(0);
        if transmit.transacts && self.transact_with(queue, slot, &message, taken, net) {
            transmit.room += 1;
            return Step::Sent(length);
        }
        let Some(tag) = self.begin(queue, slot, &message, net.now_ns()) else {
            return Step::Idle;
        };
        let mut active = Active::new(tag, message);
        queue.page.add(CqReg::TxPayloadByte, length.into());
        let payload = Payload::Inline { data, len: length as u8 };
        let model_ps = self.issue_ps(active.message.header1, Some(queue.id), false);
        let body = Body::Put { request: active.request(queue.gpid(), length), payload };
        self.send(queue, &mut active, (length, length), model_ps, body, net)
    }

    #[inline(never)]
    fn start_armw(
        &self,
        queue: &Cq,
        slot: Slot,
        message: Message,
        (op, data): (ArmwOp, u64),
        net: &mut dyn Net,
    ) -> Step {
        let Some(tag) = self.begin(queue, slot, &message, net.now_ns()) else {
            return Step::Idle;
        };
        let mut active = Active::new(tag, message);
        let length = message.length;
        let (operand, compare) = match (op, length) {
            (ArmwOp::CompareAndSwap, 4) => (data >> 32, data & 0xffff_ffff),
            (ArmwOp::CompareAndSwap, _) => (queue.piggyback()[0], data),
            _ => (data, 0),
        };
        let request = active.request(queue.gpid(), length);
        let body = Body::Armw { request, op, operand, compare };
        // An operand and, for a compare-and-swap, the value to compare with.
        let data = if op == ArmwOp::CompareAndSwap { 2 * length } else { length };
        let model_ps = self.issue_ps(active.message.header1, Some(queue.id), false);
        self.send(queue, &mut active, (length, data), model_ps, body, net)
    }

    /// Sends a raw or system packet. Its command ends when the network has taken it.
    #[inline(never)]
    fn start_packet(
        &self,
        queue: &Cq,
        slot: Slot,
        command: &PacketCommand,
        net: &mut dyn Net,
    ) -> Result<Step, Fault> {
        let outgoing = self.read_packet(queue.tni, command)?;
        let Some(tag) = self.begin(queue, slot, &command.message, net.now_ns()) else {
            return Ok(Step::Idle);
        };
        let (bytes, system) = (outgoing.frame.len() as u64, outgoing.is_system());
        let unit = self.tni(queue.tni);
        unit.count_sent(1, bytes);
        unit.add(TniReg::NumSendSystemTlp, system.into());
        queue.page.add(CqReg::TxPayloadByte, command.message.length.into());
        let body = Body::Frame { tag, frame: outgoing.frame };
        net.inject(Packet {
            src: self.coords(),
            src_tni: queue.tni,
            dst: outgoing.dst,
            dst_tni: outgoing.dst_tni,
            path: command.message.header1.path(),
            way: outgoing.way,
            class: Class::System,
            system,
            tlps: 1,
            bytes,
            tlp_bytes: bytes as u32,
            gap: 0,
            sender: queue.id.get(),
            before: 0,
            bad: None,
            model_ps: self.issue_ps(command.message.header1, None, bytes > 0),
            body,
        });
        Ok(Step::SentFrame(tag))
    }

    /// Continues a message, unless it has failed.
    #[inline(never)]
    fn continue_message(
        &self,
        queue: &Cq,
        transmit: &mut Transmit,
        mut active: Active,
        net: &mut dyn Net,
    ) -> Step {
        let failed = match queue.lock_completions().as_mut().and_then(|c| c.find(active.tag)) {
            // After an error or a timeout, the rest is not sent.
            Some(command) => !command.rcode.is_success(),
            None => true,
        };
        if failed {
            transmit.active = None;
            self.give_up_rest(queue, &active, Rcode::SUCCESS, net.now_ns());
            return Step::Done;
        }
        self.send_burst(queue, transmit, &mut active, net)
    }

    /// Sends the next burst of a message.
    fn send_burst(
        &self,
        queue: &Cq,
        transmit: &mut Transmit,
        active: &mut Active,
        net: &mut dyn Net,
    ) -> Step {
        let message = &active.message;
        let limit = if message.header2.packet_response() {
            BURST_BYTES.min(BURST_NOTICES * message.mtu)
        } else {
            BURST_BYTES
        };
        // Whole TLPs, except at the end. Most are the only one, and a division takes long.
        let rest = message.length - active.sent;
        let n = if rest <= message.mtu { rest } else { rest.min(limit - limit % message.mtu) };
        let (header1, gpid) = (message.header1, queue.gpid());
        if message.kind == CommandKind::Put {
            let pin = queue.tables.enter().keep();
            let (tables, in_force) = (&queue.tables, pin.in_force());
            let at = message.local.advanced(active.sent.into());
            let from = tables.translate(self.memory(), in_force, at, n, Access::Read);
            if let Some(fault) = from.fault {
                transmit.active = None;
                let rcode = self.raise(queue, fault);
                self.give_up_rest(queue, active, rcode, net.now_ns());
                return Step::Done;
            }
            self.rules.lane(queue.tni.index()).kept(Point::Translated);
            queue.page.add(CqReg::TxPayloadByte, n.into());
            let payload = Payload::Guest { segments: from.segments, pin };
            let model_ps = self.issue_ps(header1, Some(queue.id), n > 0);
            let body = Body::Put { request: active.request(gpid, n), payload };
            self.send(queue, active, (n, n), model_ps, body, net);
        } else {
            let model_ps = self.issue_ps(header1, Some(queue.id), false);
            let body = Body::Get { request: active.request(gpid, n) };
            self.send(queue, active, (n, 0), model_ps, body, net);
        }
        transmit.active = (active.sent < active.message.length).then_some(*active);
        Step::Sent(n)
    }

    /// Counts what was not sent of a message as answered, and ends it if nothing else is awaited.
    /// With an error, that is one of this end's.
    fn give_up_rest(&self, queue: &Cq, active: &Active, rcode: Rcode, now: u64) {
        let length = active.message.length;
        let rest = (length - active.sent).max(u32::from(length == 0));
        self.account(queue, active.tag, rest, End::new(rcode, Side::Initiator), now);
    }

    /// Sends a packet with `data` bytes of payload for `n` bytes of a message.
    #[inline(always)]
    fn send(
        &self,
        queue: &Cq,
        active: &mut Active,
        (n, data): (u32, u32),
        model_ps: u64,
        body: Body,
        net: &mut dyn Net,
    ) -> Step {
        let Message { header1, header2, tni, mtu, .. } = active.message;
        let (tlps, bytes) = burst_size(data, mtu, header2.padding());
        let before = active.wire;
        active.sent += n;
        active.wire = active.wire.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        self.tni(queue.tni).count_sent(tlps, bytes);
        net.inject(Packet {
            src: self.coords(),
            src_tni: queue.tni,
            dst: header1.target(),
            dst_tni: tni.get(),
            path: header1.path(),
            way: Way::Shortest,
            class: Class::Request,
            system: false,
            tlps,
            bytes,
            tlp_bytes: full_tlp(mtu, header2.padding()),
            gap: header2.gap(),
            sender: queue.id.get(),
            before,
            bad: None,
            model_ps,
            body,
        });
        Step::Sent(n)
    }

    /// The answer to a Get, with its data.
    pub(crate) fn take_get_data(&self, mut answered: Answered, payload: &Payload) {
        let Answered { tni, from, kind, answer, .. } = answered;
        let queue = self.queue(tni, answer.tag.cq);
        // This precedes the search for the command. Disabling and enabling the queue meanwhile
        // waits for this, so the command and the tables belong to the same life.
        let tables = queue.tables.enter();
        let Some(message) = queue
            .lock_completions()
            .as_mut()
            .and_then(|completions| completions.find(answer.tag))
            .filter(|command| command.expects(from, kind, &answer))
            .map(|command| command.message)
        else {
            return;
        };
        let done = u64::from(answer.done).min(payload.len()) as u32;
        if done > 0 {
            let at = message.local.advanced(answer.position.into());
            let (memory, in_force) = (self.memory(), tables.in_force());
            let mut to = queue.tables.translate(memory, in_force, at, done, Access::Write);
            if !self.dma_enabled() {
                to = Translation::failed(Fault::payload(true));
            }
            let mut n = to.len;
            let mut fault = to.fault;
            if fault.is_some() {
                n -= n % message.mtu;
            }
            if payload.copy_in(self.memory(), &to.segments, n).is_err() {
                n = 0;
                fault = Some(Fault::payload(true));
            }
            queue.page.add(CqReg::RxPayloadByte, n.into());
            answered.answer.done = n;
            if let Some(fault) = fault {
                answered.answer.rcode = self.raise(queue, fault);
                answered.at = Side::Initiator;
            } else {
                self.rules.lane(tni.index()).kept(Point::Translated);
            }
        }
        drop(tables);
        self.answered(&answered);
    }

    /// Counts an answer to a command of this node. Unsolicited answers are ignored.
    pub(crate) fn answered(&self, answered: &Answered) {
        let Answered { tni, from, kind, answer, at, old, model_ps, now_ns } = answered;
        let queue = self.queue(*tni, answer.tag.cq);
        let ended = self.completing(queue, *now_ns, |completions, writer| {
            let command = completions.find(answer.tag)?;
            if !command.expects(*from, *kind, answer) {
                return None;
            }
            if command.message.header2.packet_response() {
                let message = command.message;
                completions.packet_notices(&message, answer, writer);
            }
            self.statistics.count_model_time(*tni, answer.request_ps, *model_ps);
            let (n, end) =
                (answer.length.max(1), End { rcode: answer.rcode, at: *at, old_value: *old });
            let deadline_ns = self.command_deadline(*now_ns);
            Some(completions.account(answer.tag, n, end, deadline_ns, writer))
        });
        let Some(ended) = ended.flatten() else { return };
        if ended {
            self.ring_stalled(queue);
        } else {
            self.tell_answered(*tni, answer);
        }
    }

    /// Counts `n` bytes of a command as answered and ends the command if these were the last.
    pub(crate) fn account(&self, queue: &Cq, tag: Tag, n: u32, end: End, now: u64) {
        let ended = self.completing(queue, now, |completions, writer| {
            completions.account(tag, n, end, self.command_deadline(now), writer)
        });
        if ended == Some(true) {
            self.ring_stalled(queue);
        }
    }
}
