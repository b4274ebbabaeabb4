//! The target of commands: carries out and answers requests of other nodes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use tofu_abi::desc::{ArmwOp, Command};
use tofu_abi::queue::MrqId;
use tofu_abi::regs::CqReg;
use tofu_abi::{CqId, Path, Rcode, TniId};
use tofu_fabric::{Class, Packet, Way};

use crate::cq::Cq;
use crate::device::Icc;
use crate::ecc::EccPlace;
use crate::fault::Fault;
use crate::host::Net;
use crate::memory::{Access, DmaMemory, Segments, read_segments};
use crate::notice::{Notice, Peer};
use crate::observe::explain;
use crate::tlp::{Answer, Body, Payload, Request, Size};
use crate::translate::{InForce, Use};
use tofu_rules::Point;

/// A request that has arrived.
#[derive(Clone, Copy)]
pub(crate) struct Incoming<'a> {
    pub(crate) tni: TniId,
    pub(crate) from: Peer,
    pub(crate) path: Path,
    pub(crate) request: &'a Request,
    /// Modelled time of its way, in picoseconds.
    pub(crate) model_ps: u64,
    pub(crate) now_ns: u64,
}

impl Incoming<'_> {
    pub(crate) fn answer(&self, done: u32, rcode: Rcode) -> Answer {
        let Request { tag, position, length, .. } = *self.request;
        Answer { tag, position, length, done, rcode, request_ps: self.model_ps }
    }

    /// Returns true if the message ends with this burst.
    fn is_last(&self) -> bool {
        self.request.position.saturating_add(self.request.length) == self.request.total
    }

    /// A notice at the target for a TLP of `length` bytes that ends `advance` bytes into the burst.
    fn notice(&self, id: MrqId, initial: bool, length: u32, advance: u32) -> Notice {
        Notice {
            id,
            rcode: Rcode::SUCCESS,
            peer: self.from,
            path: self.path,
            edata: self.request.header2.edata(),
            initial,
            length,
            local: self.request.remote.advanced(advance.into()),
            remote: self.request.local.advanced(advance.into()),
        }
    }
}

impl Icc {
    /// Carries out a request and answers it, if the packet is one.
    pub(crate) fn serve(&self, tni: TniId, packet: &Packet<Body>, now_ns: u64, net: &mut dyn Net) {
        let &Packet { src, src_tni, path, model_ps, ref body, tlps, .. } = packet;
        let from = Peer { node: src, tni: src_tni };
        let model_ps = model_ps.saturating_add(self.deliver_ps(tni, body));
        let incoming = |request| Incoming { tni, from, path, request, model_ps, now_ns };
        let since = self.came(body.requested());
        match body {
            Body::Put { request, payload } => {
                let incoming = incoming(request);
                let answer = self.serve_put(&incoming, payload);
                self.served(since, &incoming, Command::Put, &answer);
                self.reply(&incoming, Size::of_put_ack(tlps), Body::PutAck { answer }, net);
            }
            Body::Get { request } => {
                let mut incoming = incoming(request);
                let (answer, payload) = self.serve_get(&incoming);
                self.served(since, &incoming, Command::Get, &answer);
                let mtu = request.legal_mtu();
                let size = Size::of_data(answer.done, mtu, request.header2.padding());
                let read_ps = self.timing().answer_with_data();
                incoming.model_ps = incoming.model_ps.saturating_add(read_ps);
                self.reply(&incoming, size, Body::GetData { answer, payload, mtu }, net);
            }
            &Body::Armw { ref request, op, operand, compare } => {
                let incoming = incoming(request);
                let (answer, old) = self.serve_armw(&incoming, op, operand, compare);
                self.served(since, &incoming, Command::AtomicReadModifyWrite, &answer);
                let size = Size::of_data(answer.done, request.legal_mtu(), false);
                self.reply(&incoming, size, Body::ArmwAck { answer, old }, net);
            }
            _ => {}
        }
    }

    /// Reports a request that was carried out or refused.
    #[inline]
    fn served(&self, since: u64, incoming: &Incoming<'_>, command: Command, answer: &Answer) {
        self.tell_served(since, incoming, answer);
        self.log_exception(incoming, command, answer.rcode);
    }

    /// Answers a request for an interface that this node does not have, if the packet is one. Only
    /// a hostile peer sends one for an interface that no node has, and gets no answer.
    #[cold]
    pub(crate) fn refuse(&self, packet: &Packet<Body>, now_ns: u64, net: &mut dyn Net) {
        let Packet { src, src_tni, dst_tni, path, model_ps, tlps, .. } = *packet;
        let Some(tni) = TniId::new(dst_tni) else { return };
        let from = Peer { node: src, tni: src_tni };
        let refused = |request| {
            let incoming = Incoming { tni, from, path, request, model_ps, now_ns };
            (incoming, incoming.answer(0, Rcode::ILLEGAL_TLP))
        };
        match &packet.body {
            Body::Put { request, .. } => {
                let (incoming, answer) = refused(request);
                self.reply(&incoming, Size::of_put_ack(tlps), Body::PutAck { answer }, net);
            }
            Body::Get { request } => {
                let (incoming, answer) = refused(request);
                let mtu = request.legal_mtu();
                let size = Size::of_data(0, mtu, request.header2.padding());
                let payload = Payload::NONE;
                self.reply(&incoming, size, Body::GetData { answer, payload, mtu }, net);
            }
            Body::Armw { request, .. } => {
                let (incoming, answer) = refused(request);
                let size = Size::of_data(0, request.legal_mtu(), false);
                self.reply(&incoming, size, Body::ArmwAck { answer, old: 0 }, net);
            }
            _ => {}
        }
    }

    /// Sends the answer to a request.
    #[inline(always)]
    fn reply(&self, to: &Incoming<'_>, size: Size, body: Body, net: &mut dyn Net) {
        let &Incoming { tni, from, path, model_ps, .. } = to;
        self.tni(tni).count_sent(size.tlps, size.bytes);
        net.inject(Packet {
            src: self.coords(),
            src_tni: tni,
            dst: from.node,
            dst_tni: from.tni.get(),
            path,
            way: Way::Shortest,
            class: Class::Response,
            system: false,
            tlps: size.tlps,
            bytes: size.bytes,
            tlp_bytes: size.tlp_bytes,
            gap: 0,
            sender: 0,
            before: 0,
            bad: None,
            model_ps,
            body,
        });
    }

    /// The queue that a request is for, if it may take it, with its tables in use.
    #[inline]
    pub(crate) fn admit(&self, incoming: &Incoming<'_>) -> Result<(&Cq, Use<'_>), Rcode> {
        let request = incoming.request;
        if !request.is_legal() {
            return Err(Rcode::ILLEGAL_TLP);
        }
        let on = || match (self.dma_enabled(), self.tni(incoming.tni).enabled()) {
            (false, _) => Err(Rcode::TARGET_DMA_OFF),
            (_, false) => Err(Rcode::TNI_DISABLED),
            _ => Ok(()),
        };
        let cq = CqId::new(request.remote.cqid()).filter(|cq| self.description().has_cq(*cq));
        let Some(cq) = cq else { return Err(on().err().unwrap_or(Rcode::NO_SUCH_CQ)) };
        let queue = self.queue(incoming.tni, cq);
        // Disabling the queue, or turning bus mastering off, waits for the use of the tables, so it
        // begins before both are checked.
        let tables = queue.tables.enter();
        on()?;
        if !queue.enabled() {
            return Err(Rcode::CQ_DISABLED);
        }
        if queue.gpid() != request.gpid {
            return Err(Rcode::GPID);
        }
        let node = incoming.from.node;
        if !queue.mode().subnet_allows(node.x, node.y, node.z) {
            return Err(Rcode::REMOTE_SUBNET);
        }
        // An uncorrectable error there fails the node.
        let _ = self.ecc.is_lost(EccPlace::Tables);
        Ok((queue, tables))
    }

    /// The reason why a request was refused, in words.
    pub(crate) fn why_refused(
        &self,
        incoming: &Incoming<'_>,
        command: Command,
        rcode: Rcode,
    ) -> String {
        let request = incoming.request;
        let queue = CqId::new(request.remote.cqid()).map(|cq| self.queue(incoming.tni, cq));
        let Some(queue) = queue else {
            return "a TNI has no such control queue".to_owned();
        };
        let access = match command {
            Command::Put => Access::Write,
            Command::Get => Access::Read,
            _ => Access::Update,
        };
        match rcode {
            Rcode::ILLEGAL_TLP => format!(
                "{} bytes at {} of {} in TLPs of {}: no device sends that",
                request.length, request.position, request.total, request.mtu
            ),
            Rcode::NO_SUCH_CQ => "this generation has no such control queue".to_owned(),
            Rcode::CQ_DISABLED => "ENABLE of the control queue is 0".to_owned(),
            Rcode::TNI_DISABLED => "ENABLE of the TNI is 0".to_owned(),
            Rcode::TARGET_DMA_OFF => "bus master enable (bit 2) of COMMAND is 0".to_owned(),
            Rcode::GPID => {
                format!("GPID is {:#x}, the initiator's is {:#x}", queue.gpid(), request.gpid)
            }
            Rcode::REMOTE_SUBNET => {
                format!("MODE is {:?}: the initiator is outside of that", queue.mode())
            }
            _ => {
                let (at, length) = (request.remote, request.length);
                explain::address(queue, self.memory(), at, length, access, rcode)
            }
        }
    }

    /// Reports a fault of an address at the target: an exception here, a code for the initiator.
    fn target_fault(&self, queue: &Cq, fault: Fault) -> Rcode {
        self.raise(queue, fault).remote()
    }

    /// Returns the memory of a request, the number of its valid bytes, and the fault after these.
    /// If a TLP has a fault, none of its bytes count.
    fn locate(
        &self,
        queue: &Cq,
        in_force: InForce<'_>,
        request: &Request,
        access: Access,
    ) -> (Segments, u32, Rcode) {
        let range =
            queue.tables.translate(self.memory(), in_force, request.remote, request.length, access);
        match range.fault {
            None => {
                self.rules.lane(queue.tni.index()).kept(Point::Translated);
                (range.segments, range.len, Rcode::SUCCESS)
            }
            Some(fault) => {
                let whole = range.len - range.len % request.mtu;
                (range.segments, whole, self.target_fault(queue, fault))
            }
        }
    }

    fn serve_put(&self, incoming: &Incoming<'_>, payload: &Payload) -> Answer {
        let request = incoming.request;
        let (queue, tables) = match self.admit(incoming) {
            Ok(admitted) => admitted,
            Err(rcode) => return incoming.answer(0, rcode),
        };
        let (done, code) = match self.take_at_once(queue, tables.in_force(), request, payload) {
            Some(()) => (request.length, Rcode::SUCCESS),
            None => self.take_data(queue, tables.in_force(), request, payload),
        };
        drop(tables);
        queue.page.add(CqReg::RxPayloadByte, done.into());
        if request.header2.remote_notice() {
            let ids = (MrqId::PutHalfway, MrqId::PutLastHalfway);
            self.halfway_notices(queue, incoming, done, ids);
        }
        if incoming.is_last() && code.is_success() {
            self.advance_session(queue, request);
        }
        incoming.answer(done, code)
    }

    /// Writes the data of a Put to where it belongs, if it is in one piece at both ends. What it
    /// does not take, [`take_data`](Icc::take_data) does.
    #[inline]
    fn take_at_once(
        &self,
        queue: &Cq,
        in_force: InForce<'_>,
        request: &Request,
        payload: &Payload,
    ) -> Option<()> {
        let &Request { remote, length, .. } = request;
        let memory = self.memory();
        let addr = queue.tables.on_a_page(in_force, remote, length, Access::Write)?;
        let to = memory.slice(addr, length as usize)?;
        let taken = payload.fill(to);
        taken.then(|| self.rules.lane(queue.tni.index()).kept(Point::Translated))
    }

    /// Writes the data of a Put to where it belongs. Returns how much it was, and the result.
    #[cold]
    fn take_data(
        &self,
        queue: &Cq,
        in_force: InForce<'_>,
        request: &Request,
        payload: &Payload,
    ) -> (u32, Rcode) {
        if payload.len() < u64::from(request.length) {
            return (0, Rcode::ILLEGAL_TLP);
        }
        let (to, done, code) = self.locate(queue, in_force, request, Access::Write);
        match payload.copy_in(self.memory(), &to, done) {
            Ok(()) => (done, code),
            Err(_) => (0, self.target_fault(queue, Fault::payload(true))),
        }
    }

    /// Lets a queue in session mode take more descriptors, as a message that has arrived says.
    pub(crate) fn advance_session(&self, queue: &Cq, request: &Request) {
        if queue.advance_session(request.sps) {
            self.host().doorbell(queue.tni, queue.id.into());
        }
    }

    fn serve_get(&self, incoming: &Incoming<'_>) -> (Answer, Payload) {
        let request = incoming.request;
        let (queue, tables) = match self.admit(incoming) {
            Ok(admitted) => admitted,
            Err(rcode) => return (incoming.answer(0, rcode), Payload::NONE),
        };
        let (segments, done, code) = self.locate(queue, tables.in_force(), request, Access::Read);
        queue.page.add(CqReg::TxPayloadByte, done.into());
        if !request.header2.remote_notice() {
            return (incoming.answer(done, code), Payload::Guest { segments, pin: tables.keep() });
        }
        // The notice says that the memory was read and may change, so it is read now.
        let mut data = vec![0; done as usize];
        let read = read_segments(self.memory(), &segments, &mut data);
        drop(tables);
        if read.is_err() {
            let code = self.target_fault(queue, Fault::payload(false));
            return (incoming.answer(0, code), Payload::NONE);
        }
        let ids = (MrqId::GetHalfway, MrqId::GetLastHalfway);
        self.halfway_notices(queue, incoming, done, ids);
        (incoming.answer(done, code), Payload::Bytes(data.into()))
    }

    fn serve_armw(
        &self,
        incoming: &Incoming<'_>,
        op: ArmwOp,
        operand: u64,
        compare: u64,
    ) -> (Answer, u64) {
        match self.change(incoming, op, operand, compare) {
            Ok(old) => (incoming.answer(incoming.request.length, Rcode::SUCCESS), old),
            Err(rcode) => (incoming.answer(0, rcode), 0),
        }
    }

    /// Changes a word and returns its old value.
    fn change(
        &self,
        incoming: &Incoming<'_>,
        op: ArmwOp,
        operand: u64,
        compare: u64,
    ) -> Result<u64, Rcode> {
        let request = incoming.request;
        let (queue, tables) = self.admit(incoming)?;
        if request.length != 4 && request.length != 8 {
            return Err(Rcode::ILLEGAL_TLP);
        }
        let fail = |fault| self.target_fault(queue, fault);
        let (memory, access) = (self.memory(), Access::Update);
        let (in_force, length) = (tables.in_force(), request.length);
        let at = queue.tables.translate(memory, in_force, request.remote, length, access);
        if let Some(fault) = at.fault {
            return Err(fail(fault));
        }
        // An unaligned word could span pages, and no host changes such a word atomically.
        let addr = at.segments.first().map_or(0, |s| s.addr);
        if at.segments.len() != 1 || addr % u64::from(request.length) != 0 {
            return Err(fail(Fault { rcode: Rcode::ALIGNMENT, ..Fault::payload(true) }));
        }
        let mut old = 0;
        let changed = if request.length == 4 {
            memory.half_word(addr, access, &mut |word| {
                old = change4(word, op, operand as u32, compare as u32).into();
            })
        } else {
            memory.word(addr, access, &mut |word| old = change8(word, op, operand, compare))
        };
        drop(tables);
        changed.map_err(|_| fail(Fault::payload(true)))?;
        self.rules.lane(queue.tni.index()).kept(Point::Atomic);
        queue.page.add(CqReg::RxPayloadByte, request.length.into());
        if request.header2.remote_notice() {
            let notice = incoming.notice(MrqId::ArmwHalfway, true, op as u32, 0);
            self.remote_notices(queue, [notice], incoming.now_ns);
        }
        self.advance_session(queue, request);
        Ok(old)
    }

    /// Notices at the target for the `done` bytes of a burst: one for every TLP if the command
    /// requests packet responses, otherwise only when the message ends here.
    pub(crate) fn halfway_notices(
        &self,
        queue: &Cq,
        incoming: &Incoming<'_>,
        done: u32,
        (each, last): (MrqId, MrqId),
    ) {
        let request = incoming.request;
        let all = request.header2.packet_response();
        // After a fault the message does not end here, but TLPs before it have their notices.
        if done < request.length && (done == 0 || !all) {
            return;
        }
        let whole = request.position.saturating_add(done);
        let mut at = request.position;
        let mut notices = Vec::new();
        loop {
            let n = request.mtu.min(whole - at);
            at += n;
            let ends = at >= request.total;
            if ends || all {
                let id = if ends { last } else { each };
                notices.push(incoming.notice(id, at == n, n, at - request.position));
            }
            if at >= whole {
                break;
            }
        }
        self.remote_notices(queue, notices, incoming.now_ns);
    }

    fn remote_notices(&self, queue: &Cq, notices: impl IntoIterator<Item = Notice>, now_ns: u64) {
        self.completing(queue, now_ns, |completions, writer| {
            for notice in notices {
                completions.remote_notice(notice.entry(), writer);
            }
        });
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
