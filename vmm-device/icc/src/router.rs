//! Calls from the network router: packets that arrived, packets that were lost, and room for more
//! packets.

use tofu_abi::irq::{PortRequest, TnrIrqs};
use tofu_abi::regs::TniReg;
use tofu_abi::{Rcode, TniId};
use tofu_fabric::{DiscardReason, Packet, Port};

use crate::command::CommandKind;
use crate::completions::{End, Side};
use crate::device::Icc;
use crate::ecc::EccPlace;
use crate::host::Net;
use crate::initiator::Answered;
use crate::notice::Peer;
use crate::tlp::{Body, Tag};

impl Icc {
    /// Handles a packet that arrived for this node.
    pub fn arrive(&self, packet: &Packet<Body>, net: &mut dyn Net) {
        let there = |tni: &TniId| self.description().has_tni(*tni);
        let Some(tni) = TniId::new(packet.dst_tni).filter(there) else {
            // Only a raw frame, or a hostile peer, may name an interface that no node has.
            self.refuse(packet, net.now_ns(), net);
            return;
        };
        let unit = self.tni(tni);
        unit.count_received(packet.tlps, packet.bytes);
        if packet.bad.is_some() || self.ecc.is_lost(EccPlace::Router) {
            // It was marked as bad on its way, or is now. The initiator that waits for its answer
            // has a timeout.
            unit.add(TniReg::NumReceiveNullifiedTlp, packet.tlps.into());
            return;
        }
        let from = Peer { node: packet.src, tni: packet.src_tni };
        let (model_ps, now_ns) = (packet.model_ps, net.now_ns());
        let answered = |kind, answer, old| {
            let at = Side::Elsewhere;
            Answered { tni, from, kind, answer, at, old, model_ps, now_ns }
        };
        match packet.body {
            Body::Put { .. } | Body::Get { .. } | Body::Armw { .. } => {
                self.serve(tni, packet, now_ns, net);
            }
            Body::Frame { tag, ref frame } => {
                let taken = self.receive_frame(tni, from, packet.way, frame, now_ns);
                self.tell_received(tni, from, tag, if taken { frame.len() } else { 0 });
            }
            Body::PutAck { answer } => self.answered(&answered(CommandKind::Put, answer, 0)),
            Body::GetData { answer, ref payload, .. } => {
                self.take_get_data(answered(CommandKind::Get, answer, 0), payload);
            }
            Body::ArmwAck { answer, old } => {
                self.answered(&answered(CommandKind::Armw, answer, old));
            }
            Body::Signal(ref signal) => self.take_signal(tni, from, signal, model_ps, net),
        }
    }

    /// The network has handled a frame of this node: ends its command, if nothing else has.
    pub fn frame_passed(&self, tni: TniId, tag: Tag, now_ns: u64) {
        let end = End::new(Rcode::SUCCESS, Side::Initiator);
        self.account(self.queue(tni, tag.cq), tag, u32::MAX, end, now_ns);
    }

    /// The last data of a Put of this node has been read and has left its interface: writes its TCQ
    /// entry, unless it has ended. Carriers that don't say so leave that to the answers.
    pub fn put_sent(&self, tni: TniId, tag: Tag, now_ns: u64) {
        self.completing(self.queue(tni, tag.cq), now_ns, |completions, writer| {
            completions.sent(tag, writer);
        });
    }

    /// Handles the loss of a packet of this node in transit, for the reason `rcode`.
    ///
    /// A lost request completes its command with that code immediately: a raw or system packet in
    /// its TCQ entry, any other command in its notice. A lost answer is ignored, because the
    /// initiator that waits for it has a timeout. A lost signal of a barrier gate is an exception
    /// of the gate if its target does not exist.
    pub fn undeliverable(&self, packet: &Packet<Body>, rcode: Rcode, now_ns: u64) {
        let tni = packet.src_tni;
        if let Body::Signal(signal) = &packet.body {
            self.signal_lost(tni, signal, rcode);
        }
        if let Some((tag, true)) = packet.body.tag() {
            // A frame is its whole command, and has no answers.
            let n = match &packet.body {
                Body::Frame { .. } => u32::MAX,
                body => body.requested().max(1),
            };
            let end = End::new(rcode, Side::Elsewhere);
            self.account(self.queue(tni, tag.cq), tag, n, end, now_ns);
        }
    }

    /// Handles new room in the network for requests of an interface: rings the queues that stopped
    /// for lack of room, in turn.
    pub fn room(&self, tni: TniId) {
        for cq in self.tni(tni).waiting.take() {
            self.host().doorbell(tni, cq.into());
        }
    }

    /// Handles the loss of any node's packet at this node, where it should have left through
    /// `port`: raises the matching network router request.
    pub fn router_event(&self, port: Option<Port>, reason: DiscardReason) {
        let (port, request) = match (port, reason) {
            (Some(port), DiscardReason::LinkDown) => (port, PortRequest::PortError),
            (Some(port), _) => (port, PortRequest::RoutingError),
            // Without a route there is no port at fault; the exception is reported at the first one
            // (ours).
            (None, _) => (Port::A, PortRequest::RoutingError),
        };
        self.tnr.request(self.host(), TnrIrqs::of(port, request));
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
