//! Raw and system packets: sending frames from memory, and the packet queues that receive frames of
//! other nodes and reports about their requests.

pub(crate) mod frame;
pub(crate) mod queues;

use std::sync::MutexGuard;

use tofu_abi::desc::Command;
use tofu_abi::frame::{HEADER_SIZE, Report, frame_size};
use tofu_abi::irq::TniIrqs;
use tofu_abi::queue::PrqRcode;
use tofu_abi::regs::TniReg;
use tofu_abi::{Rcode, TniId};
use tofu_fabric::Way;
use tofu_sync::lock;

use crate::command::{PacketCommand, PacketRoute};
use crate::device::Icc;
use crate::fault::Fault;
use crate::memory::DmaMemory;
use crate::notice::Peer;
use crate::observe::rules;
use crate::observe::trace_events::{Subject, Which};
use crate::packets::frame::{
    Outgoing, ecrc_is_right, is_system, is_whole, report_frame, tlp_header,
};
use crate::packets::queues::{PacketQueues, PacketWriter};
use crate::target::Incoming;
use crate::tlp::Request;
use crate::tni::Tni;
use tofu_rules::Point;

/// An entry for the packet receive queue, and the counter for it if there is no room.
struct Delivery<'a> {
    code: PrqRcode,
    /// True if the device wrote it itself.
    own: bool,
    bytes: &'a [u8],
    discards: TniReg,
}

impl Icc {
    /// Reads the frame of a packet command.
    pub(crate) fn read_packet(
        &self,
        tni: TniId,
        command: &PacketCommand,
    ) -> Result<Outgoing, Fault> {
        let (message, length) = (&command.message, command.message.length as usize);
        let size = match command.route {
            PacketRoute::System => frame_size(length - HEADER_SIZE),
            PacketRoute::Raw | PacketRoute::Hop(_) => length,
        };
        let mut frame = vec![0; size];
        self.memory().read(command.at, &mut frame[..length]).map_err(|_| Fault::payload(false))?;
        Ok(match command.route {
            PacketRoute::System => Outgoing::system(self.coords(), tni, message, frame),
            PacketRoute::Raw => Outgoing::raw(message, frame),
            PacketRoute::Hop(port) => Outgoing::hop(self.coords(), message.header1, port, frame),
        })
    }

    /// Handles a frame that arrived for TNI `tni` of this node. Returns whether it is in the packet
    /// receive queue.
    pub(crate) fn receive_frame(
        &self,
        tni: TniId,
        from: Peer,
        way: Way,
        frame: &[u8],
        now_ns: u64,
    ) -> bool {
        let unit = self.tni(tni);
        if matches!(way, Way::Hop { nullified: true, .. }) {
            unit.add(TniReg::NumReceiveNullifiedTlp, 1);
            return false;
        }
        if !is_whole(frame) {
            unit.add(TniReg::RxNumUnknownTlp, 1);
            unit.add(TniReg::RxNumDiscardUnknownTlp, 1);
            unit.irq.request(self.host(), TniIrqs::PRQ_PACKET_DISCARD);
            return false;
        }
        if !ecrc_is_right(frame) {
            unit.add(TniReg::NumReceiveNullifiedTlp, 1);
            return false;
        }
        let header = tlp_header(frame);
        let code = if !is_system(frame) {
            PrqRcode::UnknownTlp
        } else if frame_size(header.length().into()) != frame.len() {
            PrqRcode::IllegalTlpLength
        } else if (header.source(), header.i()) != (from.node, from.tni.get()) {
            PrqRcode::IllegalTlpFlags
        } else {
            PrqRcode::SystemTlp
        };
        let (counter, discards) = match code {
            PrqRcode::UnknownTlp => (TniReg::RxNumUnknownTlp, TniReg::RxNumDiscardUnknownTlp),
            PrqRcode::SystemTlp => (TniReg::RxNumSystemTlp, TniReg::RxNumDiscardSystemTlp),
            _ => (TniReg::RxNumExceptionTlp, TniReg::RxNumDiscardExceptionTlp),
        };
        unit.add(counter, 1);
        self.deliver(unit, &Delivery { code, own: false, bytes: frame, discards }, now_ns)
    }

    /// Counts a request of another node that was refused with `rcode`, and reports it to the packet
    /// receive queue if there is one.
    #[inline]
    pub(crate) fn log_exception(&self, incoming: &Incoming<'_>, command: Command, rcode: Rcode) {
        if !rcode.is_success() {
            self.log_refused(incoming, command, rcode);
        }
    }

    #[cold]
    fn log_refused(&self, incoming: &Incoming<'_>, command: Command, rcode: Rcode) {
        let Incoming { from, request, now_ns, .. } = *incoming;
        self.refused.note(
            now_ns,
            // For addresses, the rule was counted when the address was translated.
            (rcode, rules::of_local(rcode.local())),
            || {
                let (from, tni) = (from.node, from.tni);
                let (to, at) = (incoming.tni, request.remote);
                format!(
                    "TNI {to} CQ {}: {command:?} of {} bytes from node {from} TNI {tni} CQ {}, \
                     STag {:#x} offset {:#x}",
                    at.cqid(),
                    request.length,
                    request.tag.cq,
                    at.stag(),
                    at.offset()
                )
            },
            || self.why_refused(incoming, command, rcode),
            |failure| {
                self.report_breach(failure.rule(), format_args!("{failure}"));
                let tag = request.tag;
                let which = Which::Tag(tag.index, tag.generation);
                let subject = Subject { node: from.node, tni: from.tni, cq: tag.cq, which };
                self.tell_why(subject, &failure.reason());
            },
        );
        let unit = self.tni(incoming.tni);
        unit.add(TniReg::RxNumExceptionTlp, 1);
        let Some(code) = exception_code(rcode, request) else {
            return;
        };
        if !lock(&unit.packets).receives() {
            return;
        }
        let report = Report {
            rcode,
            source_cq: request.tag.cq.get(),
            command: command as u8,
            length: request.length,
            remote: request.remote,
            gpid: request.gpid,
        };
        let (bytes, discards) = (&report_frame(from, &report), TniReg::RxNumDiscardExceptionTlp);
        self.deliver(unit, &Delivery { code, own: true, bytes, discards }, now_ns);
    }

    /// Puts an entry into the packet receive queue of a TNI, or counts it as discarded. Returns
    /// true if it is in the queue.
    fn deliver(&self, unit: &Tni, delivery: &Delivery<'_>, now_ns: u64) -> bool {
        let Delivery { code, own, bytes, discards } = *delivery;
        if unit.read(TniReg::PrqMask) >> (code as u8) & 1 != 0 {
            unit.add(discards, 1);
            return false;
        }
        let mut receiving = self.receiving(unit, now_ns);
        let (queues, writer) = receiving.parts();
        // Checked with the lock held: the caller that turns one of them off waits for it.
        let taken = unit.enabled() && self.dma_enabled() && queues.take(code, own, bytes, writer);
        if taken {
            self.rules.lane(unit.index()).kept(Point::PacketTaken);
        } else {
            unit.add(discards, 1);
            writer.requests |= TniIrqs::PRQ_PACKET_DISCARD;
        }
        taken
    }

    /// Writes the entries of packet queues that are due by now or, with `all`, all that were held
    /// back.
    pub(crate) fn expire_packets(&self, now_ns: u64, all: bool) {
        for unit in self.tnis() {
            let mut receiving = self.receiving(unit, now_ns);
            let (queues, writer) = receiving.parts();
            // Without DMA nothing can be written; turning it on again writes it.
            if self.dma_enabled() {
                if all || queues.is_due(now_ns) {
                    queues.flush(writer);
                }
                queues.expire_interrupt(writer);
            }
        }
    }

    /// Locks the packet queues of a TNI, to write entries at this time.
    fn receiving<'a>(&'a self, unit: &'a Tni, now_ns: u64) -> Receiving<'a> {
        let queues = lock(&unit.packets);
        let writer = unit.packet_writer(self.memory(), now_ns);
        let deadline = u64::MAX;
        Receiving { queues, consequences: Consequences { icc: self, unit, writer, deadline } }
    }
}

/// The packet queues of a TNI, locked. When this is dropped they are unlocked first; then the
/// pending [`Consequences`] are carried out.
struct Receiving<'a> {
    // Fields are dropped in this order.
    queues: MutexGuard<'a, PacketQueues>,
    consequences: Consequences<'a>,
}

impl<'a> Receiving<'a> {
    /// The queues and where they are written.
    fn parts(&mut self) -> (&mut PacketQueues, &mut PacketWriter<'a>) {
        (&mut self.queues, &mut self.consequences.writer)
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        self.consequences.deadline = self.queues.next_deadline();
    }
}

/// When this is dropped, interrupts are requested and a timer is set for what is held back.
struct Consequences<'a> {
    icc: &'a Icc,
    unit: &'a Tni,
    writer: PacketWriter<'a>,
    /// When something held back is due, in nanoseconds.
    deadline: u64,
}

impl Drop for Consequences<'_> {
    fn drop(&mut self) {
        let Self { icc, unit, ref writer, deadline } = *self;
        icc.count_interface_exceptions(writer.requests);
        unit.irq.request(icc.host(), writer.requests);
        unit.irq.announce(icc.host(), writer.asked);
        // Overdue entries wait for bus mastering, not for a timer.
        if deadline > writer.now_ns {
            icc.want_expire(deadline);
        }
    }
}

/// The code with which a request that was answered with `rcode` appears in the packet receive
/// queue, if at all.
fn exception_code(rcode: Rcode, request: &Request) -> Option<PrqRcode> {
    Some(match rcode.local() {
        Rcode::SUCCESS | Rcode::TNI_DISABLED | Rcode::TARGET_DMA_OFF => return None,
        Rcode::ILLEGAL_TLP if !request.has_legal_mtu() => PrqRcode::IllegalTlpFlags,
        Rcode::ILLEGAL_TLP => PrqRcode::IllegalTlpLength,
        Rcode::STAG_RANGE | Rcode::OFFSET_RANGE | Rcode::MEMORY_BLOCK_RANGE | Rcode::PAGE_RANGE => {
            PrqRcode::AddressRangeException
        }
        Rcode::NO_SUCH_CQ | Rcode::CQ_DISABLED | Rcode::GPID | Rcode::REMOTE_SUBNET => {
            PrqRcode::CqError
        }
        _ => PrqRcode::CqException,
    })
}
