// SPDX-License-Identifier: GPL-2.0

//! Frames and messages in packets.

use tofu_abi::Coords;
use tofu_ipotofu::offload::Metadata;
use tofu_ipotofu::rendezvous::Message;
use tofu_ipotofu::tree;
use tofu_ipotofu::wire::{Fragment, PacketKind, Repr, Sum, HEADER_SIZE, MAX_FRAGMENTS};

use super::skb::Skb;
use super::Tx;
use crate::netdev::frame::read;
use crate::packets::{Posted, Purpose, Sender};

impl Tx {
    /// The header of a frame of this node's, whose number and sum are still to come.
    fn header(&self, kind: PacketKind, total: usize) -> Repr {
        Repr {
            kind,
            takes_offloaded: true,
            acknowledge: kind == PacketKind::Broadcast,
            total: total as u16,
            offset: 0,
            length: 0,
            id: 0,
            sum: 0,
            origin: self.node.me,
        }
    }

    /// Sends a frame to a node, with metadata in front of it if it is offloaded.
    pub(super) fn unicast(
        &mut self,
        to: Coords,
        frame: Skb,
        metadata: Option<&Metadata>,
        now: u64,
    ) -> bool {
        let emitted = metadata.map(Metadata::emit);
        let prefix: &[u8] = emitted.as_ref().map_or(&[], |metadata| &metadata[..]);
        let total = prefix.len() + frame.len;
        let kind = match metadata {
            Some(_) => PacketKind::Offloaded,
            None => PacketKind::Unicast,
        };
        let mut whole = self.header(kind, total);
        let count = whole.count();
        let mut buffers = [0u16; MAX_FRAGMENTS];
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        if count > sender.room() {
            self.counters.full += 1;
            return false;
        }
        let Some((target, tag)) = self.outbound.way(to, now) else {
            return false;
        };
        let summed = Repr::is_summed(kind, total);
        let mut sum = Sum::default();
        for (n, repr) in whole.fragments().enumerate() {
            // There is room, as was just seen.
            let Some(buffer) = sender.take() else {
                return false;
            };
            buffers[n] = buffer;
            let (offset, end) = (repr.offset.into(), HEADER_SIZE + usize::from(repr.length));
            let body = sender
                .payload(buffer)
                .and_then(|all| all.get_mut(HEADER_SIZE..end));
            let copied = body.is_some_and(|body| {
                let in_front = prefix.len().saturating_sub(offset);
                let (front, rest) = body.split_at_mut(in_front);
                front.copy_from_slice(&prefix[..in_front]);
                let copied = read(frame.raw, (offset + in_front) - prefix.len(), rest);
                if summed {
                    sum.add(body);
                }
                copied
            });
            if !copied {
                for buffer in &buffers[..=n] {
                    sender.give_up(*buffer);
                }
                self.outbound.count().lost += 1;
                return false;
            }
        }
        whole.id = self.new_id();
        whole.sum = if summed { sum.finish() } else { 0 };
        let says = self.says();
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        for (repr, &buffer) in whole.fragments().zip(&buffers) {
            let header = sender.payload(buffer);
            if let Some(header) = header.and_then(|all| all.first_chunk_mut()) {
                *header = repr.emit_with(says);
            }
            let posted = Posted {
                purpose: Purpose::Packet(tag),
                buffer,
                len: HEADER_SIZE as u16 + repr.length,
            };
            sender.post_buffer(posted, &target);
        }
        self.outbound.count().sent += 1;
        true
    }

    /// Sends a frame to all nodes.
    pub(super) fn broadcast(&mut self, frame: Skb, now: u64) -> bool {
        let mut scratch = core::mem::take(&mut self.scratch);
        let sent = self.broadcast_by(frame, &mut scratch, now);
        self.scratch = scratch;
        sent
    }

    fn broadcast_by(&mut self, frame: Skb, scratch: &mut [u8], now: u64) -> bool {
        let mut whole = self.header(PacketKind::Broadcast, frame.len);
        let children = tree::children(&self.node.shape, self.node.me, self.node.me);
        let room = self.sender.as_ref().map_or(0, Sender::room);
        if whole.count() * children.clone().count() > room {
            self.counters.full += 1;
            return false;
        }
        if Repr::is_summed(whole.kind, frame.len) {
            let mut sum = Sum::default();
            for repr in whole.fragments() {
                let Some(body) = frame.fragment(&repr, scratch) else {
                    return false;
                };
                sum.add(body);
            }
            whole.sum = sum.finish();
        }
        whole.id = self.new_id();
        for repr in whole.fragments() {
            let Some(body) = frame.fragment(&repr, scratch) else {
                return false;
            };
            for to in children.clone() {
                let fragment = Fragment {
                    to,
                    broadcast: true,
                    header: repr.emit(),
                    prefix: &[],
                    body,
                };
                self.post_fragment(&fragment, now);
            }
        }
        self.outbound.count().sent += 1;
        true
    }

    /// Sends a fragment of a broadcast, or the acknowledgement of one.
    pub(in crate::netdev) fn post_fragment(&mut self, fragment: &Fragment<'_>, now: u64) {
        let Some(sender) = self.sender.as_mut() else {
            return;
        };
        let Fragment {
            to, header, body, ..
        } = fragment;
        if fragment.broadcast {
            self.outbound.relay(sender, *to, header, body, now);
        } else {
            self.outbound.post(sender, *to, &[header, body], now);
        }
    }

    /// Sends a message about frames that are fetched, with the head of one.
    pub(super) fn post_message(&mut self, to: Coords, message: &Message, head: &[u8], now: u64) {
        let (mut header, body) = message.emit(self.node.me);
        header[1] |= self.says().flags();
        if let Some(sender) = self.sender.as_mut() {
            let outbound = &mut self.outbound;
            outbound.post(sender, to, &[&header, &body, head], now);
        }
    }
}
