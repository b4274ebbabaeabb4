//! The receiving side: requests of other nodes, and answers to this node's own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::SeqCst, fence};

use tofu_abi::desc::{ArmwOp, Command, MAX_MTU};
use tofu_abi::irq::tnr::{self, PortRequest};
use tofu_abi::queue::MrqId;
use tofu_abi::regs::CqReg;
use tofu_abi::{CqId, Rcode, TniId};
use tofu_fabric::{Class, DiscardReason, Packet, Port, Way};

use crate::Icc;
use crate::cq::{Cq, lock};
use crate::host::Net;
use crate::memory::{Access, DmaError, DmaMemory, Segment, Segments, copy_segments, skip_segments};
use crate::notice::{Kind, Notice, Peer};
use crate::tlp::{Answer, Body, Payload, Request, Tag, burst_size};
use crate::translate::{Fault, Pin, Translation};

/// Bytes that a strongly ordered Put writes last and by themselves.
const STRONG_TAIL: u32 = 8;

impl Icc {
    /// Takes a packet that arrived for this node.
    pub fn arrive(&self, packet: Packet<Body>, net: &mut dyn Net) {
        let Some(tni) = TniId::new(packet.dst_tni) else {
            // Only a raw frame may name an interface that no node has.
            return;
        };
        let unit = self.tni(tni);
        unit.count_received(packet.tlps, packet.bytes);
        let from = Peer { node: packet.src, tni: packet.src_tni };
        let ps = packet.model_ps;
        match packet.body {
            Body::Put { .. } | Body::Get { .. } | Body::Armw { .. } => {
                let answer = self.serve(tni, packet, net.now_ns());
                unit.count_sent(answer.tlps, answer.bytes);
                net.inject(answer);
            }
            Body::Frame { frame, .. } => {
                self.receive_frame(tni, from, packet.way, &frame, net.now_ns());
            }
            Body::PutAck { answer } => {
                self.answered(tni, from, Kind::Put, &answer, 0, ps, net.now_ns());
            }
            Body::GetData { answer, ref payload } => {
                self.take_get_data(tni, from, &answer, payload, ps, net.now_ns());
            }
            Body::ArmwAck { answer, old } => {
                self.answered(tni, from, Kind::Armw, &answer, old, ps, net.now_ns());
            }
            Body::Signal(signal) => self.take_signal(tni, from, &signal, ps, net),
        }
    }

    /// A packet of this node was lost on its way, for the reason that `rcode` tells.
    ///
    /// A lost request ends its command with that code at once. A lost answer is nothing that
    /// this node could do anything about: whoever waits for it has a timeout. A lost signal of a
    /// barrier gate is an exception of the gate if its target does not exist.
    pub fn undeliverable(&self, packet: &Packet<Body>, rcode: Rcode, now_ns: u64) {
        let Some(tni) = TniId::new(packet.src_tni) else {
            return;
        };
        if let Body::Signal(signal) = &packet.body {
            self.signal_lost(tni, signal, rcode);
        }
        let Some((tag, true)) = packet.body.tag() else {
            return;
        };
        let length = match &packet.body {
            Body::Put { request, .. } | Body::Get { request } | Body::Armw { request, .. } => {
                request.length
            }
            _ => 0,
        };
        self.account(self.queue(tni, tag.cq), tag, length.max(1), rcode, 0, now_ns);
    }

    /// A packet, of whichever node, was lost at this node, where it should have left through
    /// `port`: raises the matching network router request.
    pub fn router_event(&self, port: Option<Port>, reason: DiscardReason) {
        let (port, request) = match (port, reason) {
            (Some(port), DiscardReason::LinkDown) => (port, PortRequest::PortError),
            (Some(port), _) => (port, PortRequest::RoutingError),
            // Without a route there is no port to blame; the first one stands in (ours).
            (None, _) => (Port::A, PortRequest::RoutingError),
        };
        self.tnr().request(self.host(), tnr::bit(port.index() as u8, request));
    }

    /// Does what a request asks for and makes its answer.
    fn serve(&self, tni: TniId, packet: Packet<Body>, now: u64) -> Packet<Body> {
        let Packet { src, src_tni, path, model_ps, body, .. } = packet;
        let from = Sender { packet_src: src, tni: src_tni, path };
        let peer = Peer { node: src, tni: src_tni };
        let log = |command, request: &Request, answer: &Answer| {
            if answer.rcode != Rcode::SUCCESS {
                self.log_exception(tni, peer, command, request, answer.rcode, now);
            }
        };
        let (body, payload, mtu, padding) = match body {
            Body::Put { request, payload } => {
                let answer = self.serve_put(tni, &from, &request, &payload, model_ps, now);
                log(Command::Put, &request, &answer);
                (Body::PutAck { answer }, 0, request.mtu, false)
            }
            Body::Get { request } => {
                let (answer, payload) = self.serve_get(tni, &from, &request, model_ps, now);
                log(Command::Get, &request, &answer);
                let n = answer.done;
                let padding = request.header2.padding();
                (Body::GetData { answer, payload }, n, request.mtu, padding)
            }
            Body::Armw { request, op, operand, compare } => {
                let (answer, old) =
                    self.serve_armw(tni, &from, &request, (op, operand, compare), model_ps, now);
                log(Command::AtomicReadModifyWrite, &request, &answer);
                (Body::ArmwAck { answer, old }, answer.done, request.mtu, false)
            }
            // Only requests come here.
            other => (other, 0, MAX_MTU, false),
        };
        let (mut tlps, mut bytes) = burst_size(payload, mtu.clamp(1, MAX_MTU), padding);
        if let Body::PutAck { .. } = body {
            // Every TLP of a Put is answered by one of its own.
            tlps = packet.tlps;
            bytes *= u64::from(tlps);
        }
        Packet {
            src: self.coords(),
            src_tni: tni.get(),
            dst: src,
            dst_tni: src_tni,
            path,
            way: Way::Shortest,
            class: Class::Response,
            system: false,
            tlps,
            bytes,
            model_ps,
            body,
        }
    }

    /// The queue that a request is for, if it may take it.
    fn admit(&self, tni: TniId, from: &Sender, request: &Request) -> Result<&Cq, Rcode> {
        if !request.is_legal() {
            return Err(Rcode::ILLEGAL_TLP);
        }
        if !self.dma_enabled() {
            return Err(Rcode::TARGET_DMA_OFF);
        }
        if !self.tni(tni).enabled() {
            return Err(Rcode::TNI_DISABLED);
        }
        let cq = CqId::new(request.remote.cqid()).ok_or(Rcode::NO_SUCH_CQ)?;
        let queue = self.queue(tni, cq);
        if !queue.enabled() {
            return Err(Rcode::CQ_DISABLED);
        }
        if queue.gpid() != request.gpid {
            return Err(Rcode::GPID);
        }
        let n = from.packet_src;
        if !queue.mode().subnet_allows(n.x, n.y, n.z) {
            return Err(Rcode::REMOTE_SUBNET);
        }
        Ok(queue)
    }

    /// Begins a use of a queue's tables.
    ///
    /// Only now is it certain that a queue which is disabled meanwhile, or a device whose bus
    /// mastering is turned off, waits for this; so both are looked at once more.
    fn pin(&self, queue: &Cq) -> Result<Pin, Rcode> {
        let pin = queue.tables.pin();
        match (queue.enabled(), self.dma_enabled()) {
            (false, _) => Err(Rcode::CQ_DISABLED),
            (_, false) => Err(Rcode::TARGET_DMA_OFF),
            _ => Ok(pin),
        }
    }

    /// Reports a fault of an address at the target: an exception here, a code for the initiator.
    fn target_fault(&self, queue: &Cq, fault: Fault) -> Rcode {
        queue.irq.request(self.host(), fault.irq);
        fault.rcode.remote()
    }

    fn serve_put(
        &self,
        tni: TniId,
        from: &Sender,
        request: &Request,
        payload: &Payload,
        request_ps: u64,
        now: u64,
    ) -> Answer {
        let refused = |rcode| answer(request, 0, rcode, request_ps);
        let queue = match self.admit(tni, from, request) {
            Ok(queue) => queue,
            Err(rcode) => return refused(rcode),
        };
        if payload.len() < u64::from(request.length) {
            return refused(Rcode::ILLEGAL_TLP);
        }
        let pin = match self.pin(queue) {
            Ok(pin) => pin,
            Err(rcode) => return refused(rcode),
        };
        let to = queue.tables.translate(
            self.memory(),
            &pin,
            request.remote,
            request.length,
            Access::Write,
        );
        let mut done = to.len;
        let mut code = Rcode::SUCCESS;
        if let Some(fault) = to.fault {
            // Whole TLPs only: of the one with the fault no byte is written.
            done -= done % request.mtu;
            code = self.target_fault(queue, fault);
        }
        let strong = request.header2.strong_order();
        if self.copy_in(payload, &to.segments, done, strong).is_err() {
            done = 0;
            code = self.target_fault(queue, Fault::payload(true));
        }
        drop(pin);
        queue.page.add(CqReg::RxPayloadByte, done.into());
        if request.header2.remote_notice() {
            let ids = (MrqId::PutHalfway, MrqId::PutLastHalfway);
            self.halfway_notices(queue, from, request, done, ids, now);
        }
        let last = request.position.saturating_add(request.length) == request.total;
        if last && code == Rcode::SUCCESS {
            self.advance_session(queue, request);
        }
        answer(request, done, code, request_ps)
    }

    /// Lets a queue in session mode go on, as a message that has arrived says.
    fn advance_session(&self, queue: &Cq, request: &Request) {
        if queue.advance_session(request.sps) {
            self.host().doorbell(queue.tni, queue.id.into());
        }
    }

    fn serve_get(
        &self,
        tni: TniId,
        from: &Sender,
        request: &Request,
        request_ps: u64,
        now: u64,
    ) -> (Answer, Payload) {
        let nothing = || Payload::Inline { data: [0; 32], len: 0 };
        let queue = match self.admit(tni, from, request) {
            Ok(queue) => queue,
            Err(rcode) => {
                return (answer(request, 0, rcode, request_ps), nothing());
            }
        };
        let pin = match self.pin(queue) {
            Ok(pin) => pin,
            Err(rcode) => return (answer(request, 0, rcode, request_ps), nothing()),
        };
        let range = queue.tables.translate(
            self.memory(),
            &pin,
            request.remote,
            request.length,
            Access::Read,
        );
        let mut done = range.len;
        let mut code = Rcode::SUCCESS;
        if let Some(fault) = range.fault {
            done -= done % request.mtu;
            code = self.target_fault(queue, fault);
        }
        queue.page.add(CqReg::TxPayloadByte, done.into());
        if !request.header2.remote_notice() {
            let memory = self.shared_memory();
            let payload = Payload::Guest { memory, segments: range.segments, pin };
            return (answer(request, done, code, request_ps), payload);
        }
        // The notice says that the memory was read and may change, so it is read now.
        let mut data = vec![0; done as usize];
        let read = read_segments(self.memory(), &range.segments, &mut data);
        drop(pin);
        if read.is_err() {
            let code = self.target_fault(queue, Fault::payload(false));
            return (answer(request, 0, code, request_ps), nothing());
        }
        let ids = (MrqId::GetHalfway, MrqId::GetLastHalfway);
        self.halfway_notices(queue, from, request, done, ids, now);
        (answer(request, done, code, request_ps), Payload::Bytes(data.into()))
    }

    fn serve_armw(
        &self,
        tni: TniId,
        from: &Sender,
        request: &Request,
        (op, operand, compare): (ArmwOp, u64, u64),
        request_ps: u64,
        now: u64,
    ) -> (Answer, u64) {
        let refused = |code| (answer(request, 0, code, request_ps), 0);
        let queue = match self.admit(tni, from, request) {
            Ok(queue) => queue,
            Err(rcode) => return refused(rcode),
        };
        if request.length != 4 && request.length != 8 {
            return refused(Rcode::ILLEGAL_TLP);
        }
        let pin = match self.pin(queue) {
            Ok(pin) => pin,
            Err(rcode) => return refused(rcode),
        };
        let at = queue.tables.translate(
            self.memory(),
            &pin,
            request.remote,
            request.length,
            Access::Update,
        );
        if let Some(fault) = at.fault {
            return refused(self.target_fault(queue, fault));
        }
        // A word that is not aligned could span pages, and no host changes such a one as one.
        let addr = at.segments.first().map_or(0, |s| s.addr);
        if at.segments.len() != 1 || addr % u64::from(request.length) != 0 {
            let fault = Fault { rcode: Rcode::ALIGNMENT, irq: Fault::payload(true).irq };
            return refused(self.target_fault(queue, fault));
        }
        let mut old = 0;
        let changed = if request.length == 4 {
            self.memory().half_word(addr, Access::Update, &mut |word| {
                old = change4(word, op, operand as u32, compare as u32).into();
            })
        } else {
            self.memory().word(addr, Access::Update, &mut |word| {
                old = change8(word, op, operand, compare);
            })
        };
        drop(pin);
        if changed.is_err() {
            return refused(self.target_fault(queue, Fault::payload(true)));
        }
        queue.page.add(CqReg::RxPayloadByte, request.length.into());
        if request.header2.remote_notice() {
            let notice = Notice {
                id: MrqId::ArmwHalfway,
                rcode: Rcode::SUCCESS,
                peer: from.packet_src,
                peer_tni: from.tni,
                path: from.path,
                edata: request.header2.edata(),
                initial: true,
                length: op as u32,
                local: request.remote,
                remote: request.local,
            };
            self.remote_notices(queue, [notice], now);
        }
        self.advance_session(queue, request);
        (answer(request, request.length, Rcode::SUCCESS, request_ps), old)
    }

    /// Notices at the target for the `done` bytes of a burst: one for every TLP if the command
    /// asks for packet responses, otherwise only when the message ends here.
    fn halfway_notices(
        &self,
        queue: &Cq,
        from: &Sender,
        request: &Request,
        done: u32,
        (each, last): (MrqId, MrqId),
        now: u64,
    ) {
        // After a fault the message does not end here, but TLPs before it have their notices.
        if done < request.length && (done == 0 || !request.header2.packet_response()) {
            return;
        }
        let whole = request.position.saturating_add(done);
        let mut at = request.position;
        let mut notices = Vec::new();
        loop {
            let n = request.mtu.min(whole - at);
            at += n;
            let ends = at >= request.total;
            if ends || request.header2.packet_response() {
                let advance = u64::from(at - request.position);
                notices.push(Notice {
                    id: if ends { last } else { each },
                    rcode: Rcode::SUCCESS,
                    peer: from.packet_src,
                    peer_tni: from.tni,
                    path: from.path,
                    edata: request.header2.edata(),
                    initial: at == n,
                    length: n,
                    local: request.remote.advanced(advance),
                    remote: request.local.advanced(advance),
                });
            }
            if at >= whole {
                break;
            }
        }
        self.remote_notices(queue, notices, now);
    }

    fn remote_notices(&self, queue: &Cq, notices: impl IntoIterator<Item = Notice>, now: u64) {
        let mut writer = self.writer(queue, now);
        if let Some(completions) = lock(&queue.completions).as_mut() {
            for notice in notices {
                completions.remote_notice(notice.entry(), &mut writer);
            }
        }
        let requests = writer.requests;
        self.raise(queue, requests);
        self.note_deadline(queue);
    }

    /// Writes a payload to memory.
    fn copy_in(
        &self,
        payload: &Payload,
        to: &[Segment],
        len: u32,
        strong: bool,
    ) -> Result<(), DmaError> {
        let tail = if strong { len.min(STRONG_TAIL) } else { 0 };
        let head = len - tail;
        payload.copy_to(0, self.memory(), to, head)?;
        if tail > 0 {
            // Strong order: who sees the last word of the data sees all of it.
            fence(Ordering::Release);
            payload.copy_to(head, self.memory(), &skip_segments(to, head), tail)?;
        }
        Ok(())
    }

    /// An answer with data.
    fn take_get_data(
        &self,
        tni: TniId,
        from: Peer,
        answer: &Answer,
        payload: &Payload,
        model_ps: u64,
        now: u64,
    ) {
        let mut answer = *answer;
        let queue = self.queue(tni, answer.tag.cq);
        // Before the look for the command: a queue that is disabled and enabled again meanwhile
        // waits for this, so the command and the tables are of one life.
        let pin = queue.tables.pin();
        let Some((local, mtu)) = lock(&queue.completions)
            .as_mut()
            .and_then(|c| c.find(answer.tag.index, answer.tag.generation))
            .filter(|command| command.expects(from, Kind::Get, &answer))
            .map(|command| (command.local, command.mtu))
        else {
            return;
        };
        let done = u64::from(answer.done).min(payload.len()) as u32;
        if done > 0 {
            let at = local.advanced(answer.position.into());
            let mut to = queue.tables.translate(self.memory(), &pin, at, done, Access::Write);
            if !self.dma_enabled() {
                to = Translation::failed(Fault::payload(true));
            }
            let mut n = to.len;
            let mut fault = to.fault;
            if fault.is_some() {
                n -= n % mtu;
            }
            if self.copy_in(payload, &to.segments, n, false).is_err() {
                n = 0;
                fault = Some(Fault::payload(true));
            }
            queue.page.add(CqReg::RxPayloadByte, n.into());
            answer.done = n;
            if let Some(fault) = fault {
                queue.irq.request(self.host(), fault.irq);
                answer.rcode = fault.rcode;
            }
        }
        drop(pin);
        self.answered(tni, from, Kind::Get, &answer, 0, model_ps, now);
    }

    /// An answer of `from` to a command of this node, which should be of this kind. What nobody
    /// has asked for is ignored.
    #[expect(clippy::too_many_arguments, reason = "the parts of three kinds of packet")]
    fn answered(
        &self,
        tni: TniId,
        from: Peer,
        kind: Kind,
        answer: &Answer,
        old: u64,
        model_ps: u64,
        now: u64,
    ) {
        let queue = self.queue(tni, answer.tag.cq);
        let mut writer = self.writer(queue, now);
        let held_until;
        {
            let mut guard = lock(&queue.completions);
            let Some(completions) = guard.as_mut() else {
                return;
            };
            let Some(command) = completions
                .find(answer.tag.index, answer.tag.generation)
                .filter(|command| command.expects(from, kind, answer))
            else {
                return;
            };
            if command.header2.packet_response() {
                let (at, done, code) = (answer.position, answer.done, answer.rcode);
                completions.packet_notices(answer.tag.index, at, done, code, &mut writer);
            }
            held_until = completions.held_until();
        }
        self.want_expire(held_until);
        self.count_model_time(queue.tni, answer.request_ps, model_ps);
        let requests = writer.requests;
        self.raise(queue, requests);
        let n = answer.length.max(1);
        self.account(queue, answer.tag, n, answer.rcode, old, now);
    }

    /// Counts `n` bytes of a command as answered and ends the command if these were the last.
    pub(crate) fn account(&self, queue: &Cq, tag: Tag, n: u32, rcode: Rcode, old: u64, now: u64) {
        let mut writer = self.writer(queue, now);
        let held_until;
        {
            let mut guard = lock(&queue.completions);
            let Some(completions) = guard.as_mut() else {
                return;
            };
            let Some(command) = completions.find(tag.index, tag.generation) else {
                return;
            };
            if command.rcode == Rcode::SUCCESS {
                command.rcode = rcode;
            }
            command.unanswered = command.unanswered.saturating_sub(n);
            if command.unanswered > 0 {
                // It gets on; how long the whole of it takes depends on what else goes on.
                command.deadline_ns = now.saturating_add(self.timeout_ns());
                return;
            }
            let rcode = command.rcode;
            completions.finish(tag.index, rcode, old, &mut writer);
            held_until = completions.held_until();
        }
        let requests = writer.requests;
        self.raise(queue, requests);
        self.want_expire(held_until);
        if queue.stalled.swap(false, SeqCst) {
            self.host().doorbell(queue.tni, queue.id.into());
        }
    }
}

/// The code that ends a command whose request was lost for this reason.
pub const fn discard_rcode(reason: DiscardReason) -> Rcode {
    match reason {
        DiscardReason::NoSuchNode => Rcode::NO_SUCH_NODE,
        DiscardReason::NoSuchPath => Rcode::NO_SUCH_PATH,
        _ => Rcode::LINK_DOWN,
    }
}

/// Where a request came from.
struct Sender {
    packet_src: tofu_abi::Coords,
    tni: u8,
    path: tofu_abi::Path,
}

fn answer(request: &Request, done: u32, rcode: Rcode, request_ps: u64) -> Answer {
    Answer {
        tag: request.tag,
        position: request.position,
        length: request.length,
        done,
        rcode,
        request_ps,
    }
}

/// Defines a function that changes an atomic word as an operator says and returns its old value.
macro_rules! change {
    ($name:ident, $atomic:ty, $value:ty) => {
        fn $name(word: &$atomic, op: ArmwOp, operand: $value, compare: $value) -> $value {
            match op {
                ArmwOp::CompareAndSwap => word
                    .compare_exchange(compare, operand, SeqCst, SeqCst)
                    .unwrap_or_else(|old| old),
                ArmwOp::Swap => word.swap(operand, SeqCst),
                ArmwOp::Add => word.fetch_add(operand, SeqCst),
                ArmwOp::Xor => word.fetch_xor(operand, SeqCst),
                ArmwOp::And => word.fetch_and(operand, SeqCst),
                ArmwOp::Or => word.fetch_or(operand, SeqCst),
            }
        }
    };
}

change!(change4, AtomicU32, u32);
change!(change8, AtomicU64, u64);

fn read_segments(
    memory: &dyn DmaMemory,
    segments: &Segments,
    data: &mut [u8],
) -> Result<(), DmaError> {
    let mut rest = data;
    for s in segments {
        let n = (s.len as usize).min(rest.len());
        let (part, tail) = rest.split_at_mut(n);
        memory.read(s.addr, part)?;
        rest = tail;
    }
    Ok(())
}

impl Payload {
    /// Bytes of data.
    fn len(&self) -> u64 {
        match self {
            Self::Inline { data, len } => u64::from(*len).min(data.len() as u64),
            Self::Bytes(data) => data.len() as u64,
            Self::Guest { segments, .. } => segments.iter().map(|s| u64::from(s.len)).sum(),
        }
    }

    /// Copies `len` bytes from `skip` on to memory.
    fn copy_to(
        &self,
        skip: u32,
        memory: &dyn DmaMemory,
        to: &[Segment],
        len: u32,
    ) -> Result<(), DmaError> {
        let bytes: &[u8] = match self {
            Self::Inline { data, .. } => data,
            Self::Bytes(data) => data,
            Self::Guest { memory: source, segments, .. } if skip == 0 => {
                return copy_segments((&**source, segments), (memory, to), len);
            }
            Self::Guest { memory: source, segments, .. } => {
                let from = skip_segments(segments, skip);
                return copy_segments((&**source, &from), (memory, to), len);
            }
        };
        let mut at = skip as usize;
        let mut left = len as usize;
        for s in to {
            let n = left.min(s.len as usize);
            let Some(part) = bytes.get(at..at + n) else {
                return Err(DmaError { addr: s.addr, len: n });
            };
            memory.write(s.addr, part)?;
            at += n;
            left -= n;
        }
        Ok(())
    }
}
