//! Puts and Gets that their target carries out in place.
//!
//! Where nothing observes the network, a packet is with its target as soon as it is sent, and so is
//! the answer. A Put or Get of one burst then needs neither packets nor a place among the
//! outstanding commands: the network calls the target with the initiator's memory. Checks, counts,
//! modelled times, traces and the order of completions are those of packets. Anything out of the
//! ordinary at either end (a fault of an address, pages that are not in one piece, an injected
//! error) is found before anything has been done, and the command is sent after all.

use tofu_abi::Rcode;
use tofu_abi::queue::MrqId;
use tofu_abi::regs::CqReg;
use vm_memory::VolatileSlice;

use crate::command::{CommandKind, Message};
use crate::completions::{Slot, TRANSACTION};
use crate::cq::Cq;
use crate::device::Icc;
use crate::host::Net;
use crate::memory::{Access, DmaMemory, copy_in_order};
use crate::notice::Peer;
use crate::target::Incoming;
use crate::tlp::{Request, Size, Tag, burst_size};
use crate::transaction::{Ended, Served, Transaction};
use tofu_rules::Point;

/// The longest message that is worth it: copying more takes long compared with packets.
const LONGEST: u32 = 64 << 10;

impl Icc {
    /// Has the target of a Put or Get of memory carry it out in place, and ends the command.
    /// Returns false if the command must be sent; nothing has happened then.
    #[inline]
    pub(crate) fn transact(
        &self,
        queue: &Cq,
        slot: Slot,
        message: &Message,
        now_ns: u64,
        net: &mut dyn Net,
    ) -> bool {
        let length = message.length;
        if length > LONGEST {
            return false;
        }
        let is_put = message.kind == CommandKind::Put;
        let access = if is_put { Access::Read } else { Access::Write };
        let tables = queue.tables.enter();
        let addr = queue.tables.on_a_page(tables.in_force(), message.local, length, access);
        let memory = addr.and_then(|addr| self.memory().slice(addr, length as usize));
        let Some(memory) = memory else { return false };
        let ended = self.transaction(queue, (slot, message), (memory, is_put), net);
        let Some(ended) = ended else { return false };
        drop(tables);
        self.rules.lane(queue.tni.index()).kept(Point::Translated);
        self.end_transaction(queue, slot, message, ended, now_ns);
        true
    }

    /// The same for a Put of data that came with the command.
    pub(crate) fn transact_with(
        &self,
        queue: &Cq,
        slot: Slot,
        message: &Message,
        data: &mut [u8],
        net: &mut dyn Net,
    ) -> bool {
        let memory = VolatileSlice::from(data);
        let ended = self.transaction(queue, (slot, message), (memory, false), net);
        let Some(ended) = ended else { return false };
        self.end_transaction(queue, slot, message, ended, net.now_ns());
        true
    }

    /// Sends a transaction with the memory of its data, which a Put reads or has with it.
    #[inline(always)]
    fn transaction(
        &self,
        queue: &Cq,
        (slot, message): (Slot, &Message),
        (memory, reads): (VolatileSlice<'_>, bool),
        net: &mut dyn Net,
    ) -> Option<Ended> {
        let &Message { kind, header1, header2, tni, length, mtu, .. } = message;
        if header2.packet_response() || !self.ecc.is_quiet() {
            return None;
        }
        let mut tag = Tag { cq: queue.id, index: TRANSACTION, generation: 0 };
        let traced = self.traced.is_on();
        if traced {
            // Only this thread begins commands of the queue.
            tag.generation = queue.lock_completions().as_ref()?.next_sequence() as u32;
        }
        let begun = || self.tell_begun(queue.tni, slot, tag, message);
        let (is_put, padding) = (kind == CommandKind::Put, header2.padding());
        let (tlps, bytes) = burst_size(if is_put { length } else { 0 }, mtu, padding);
        let back = match is_put {
            true => Size::of_put_ack(tlps),
            false => Size::of_data(length, mtu, padding),
        };
        let transaction = Transaction {
            is_put,
            from: Peer { node: self.coords(), tni: queue.tni },
            header1,
            tni,
            request: &Request::whole(queue, tag, message),
            memory,
            there: Size { tlps, bytes, tlp_bytes: 0 },
            back,
            issue_ps: self.issue_ps(header1, Some(queue.id), reads),
            begun: if traced { Some(&begun) } else { None },
        };
        queue.away.begin();
        let ended = net.transact(&transaction);
        if ended.is_none() {
            queue.away.end();
            return None;
        }
        let unit = self.tni(queue.tni);
        unit.count_sent(tlps, bytes);
        unit.count_received(back.tlps, back.bytes);
        let moved = if is_put { CqReg::TxPayloadByte } else { CqReg::RxPayloadByte };
        queue.page.add(moved, length.into());
        ended
    }

    /// Ends the command of a transaction.
    #[inline(always)]
    fn end_transaction(
        &self,
        queue: &Cq,
        slot: Slot,
        message: &Message,
        ended: Ended,
        now_ns: u64,
    ) {
        self.statistics.count_model_time(queue.tni, ended.request_ps, ended.answer_ps);
        let done = self.completing(queue, now_ns, |completions, writer| {
            completions.end_transaction(slot, message, writer);
        });
        if done.is_none() {
            // The queue was disabled meanwhile.
            queue.away.end();
        }
    }

    /// Carries out a transaction for this node. Returns `None` if its request must be sent; nothing
    /// has happened then.
    pub fn serve_transaction(&self, transaction: &Transaction<'_>, now_ns: u64) -> Option<Served> {
        let &Transaction { is_put, from, header1, tni, request, memory, .. } = transaction;
        let &Transaction { there, back, issue_ps, begun, .. } = transaction;
        let notice = request.header2.remote_notice();
        // What a Get's notice reports was read before it.
        let early = notice && !is_put;
        let there_is = self.description().has_tni(tni);
        if early || !there_is || self.traced.is_on() != begun.is_some() || !self.ecc.is_quiet() {
            return None;
        }
        let path = header1.path();
        let incoming = Incoming { tni, from, path, request, model_ps: 0, now_ns };
        let (queue, tables) = self.admit(&incoming).ok()?;
        let access = if is_put { Access::Write } else { Access::Read };
        let length = request.length;
        let addr = queue.tables.on_a_page(tables.in_force(), request.remote, length, access)?;
        let own = self.memory().slice(addr, length as usize)?;
        if own.len() != memory.len() {
            return None;
        }
        if let Some(begun) = begun {
            begun();
        }
        let since = self.came(request.length);
        if is_put {
            copy_in_order(memory, own);
        } else {
            copy_in_order(own, memory);
        }
        drop(tables);
        let unit = self.tni(tni);
        unit.count_received(there.tlps, there.bytes);
        unit.count_sent(back.tlps, back.bytes);
        let moved = if is_put { CqReg::RxPayloadByte } else { CqReg::TxPayloadByte };
        queue.page.add(moved, length.into());
        self.rules.lane(tni.index()).kept(Point::Translated);
        if begun.is_some() {
            self.tell_served(since, &incoming, &incoming.answer(length, Rcode::SUCCESS));
        }
        let timing = self.timing();
        if !is_put {
            let answer_ps = timing.answer_with_data();
            return Some(Served { issue_ps, deliver_ps: 0, answer_ps });
        }
        if notice {
            self.halfway_notices(
                queue,
                &incoming,
                length,
                (MrqId::PutHalfway, MrqId::PutLastHalfway),
            );
        }
        self.advance_session(queue, request);
        Some(Served { issue_ps, deliver_ps: self.deliver_put_ps(tni, request), answer_ps: 0 })
    }
}

impl Request {
    /// The request for a whole message of a queue, without a place among outstanding commands.
    fn whole(queue: &Cq, tag: Tag, message: &Message) -> Self {
        Self {
            tag,
            gpid: queue.gpid(),
            header2: message.header2,
            sps: message.header1.sps(),
            remote: message.remote,
            local: message.local,
            position: 0,
            length: message.length,
            total: message.length,
            mtu: message.mtu,
        }
    }
}
