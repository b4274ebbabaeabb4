//! The boot server as a tenant of an I/O node.

use std::collections::HashMap;
use std::time::Duration;

use tofu_abi::Coords;
use tofu_fabric::NodeId;
use tofu_gateway::{Out, Tenant};
use tofu_ipotofu::addr;
use tofu_netboot::wire::ETHERTYPE;
use tofu_netboot::{BootEvent, Server};

use crate::event::{BootStage, Event, EventSender};

const HEADER: usize = 14;
/// Answers sent before other frames get their turn.
const TURN: usize = 64;
/// The delay before checking again whether there is room to send.
const SOON: Duration = Duration::from_micros(100);

pub(super) struct BootServer {
    server: Server,
    ids: HashMap<Coords, NodeId>,
    events: EventSender,
}

impl BootServer {
    pub(super) fn new(server: Server, ids: HashMap<Coords, NodeId>, events: EventSender) -> Self {
        Self { server, ids, events }
    }

    fn tell(&self, news: BootEvent) {
        let (node, stage) = match news {
            BootEvent::Begun(node) => (node, BootStage::Begun),
            BootEvent::Progress(node, role, percent) => (node, BootStage::Fetching(role, percent)),
            BootEvent::Starting(node) => (node, BootStage::Starting),
            BootEvent::Failed(node, why) => (node, BootStage::Failed(why)),
        };
        if let Some(id) = self.ids.get(&node) {
            self.events.send(Event::Netboot(*id, stage));
        }
    }
}

impl Tenant for BootServer {
    fn frame(&mut self, frame: &[u8]) -> bool {
        let Some((header, message)) = frame.split_first_chunk::<HEADER>() else { return false };
        let [_, _, _, _, _, _, a, b, c, d, e, f, high, low] = *header;
        if u16::from_be_bytes([high, low]) != ETHERTYPE {
            return false;
        }
        // The link has verified the sender's address.
        if let Some(from) = addr::node_of_mac([a, b, c, d, e, f])
            && let Some(news) = self.server.receive(from, message)
        {
            self.tell(news);
        }
        true
    }

    fn work(&mut self, _: &[rustix::event::PollFlags], out: &mut Out<'_>) -> Option<Duration> {
        let mut frame = Vec::new();
        for _ in 0..TURN {
            if !out.has_room() {
                return Some(SOON);
            }
            let (to, message) = self.server.answer()?;
            frame.clear();
            frame.extend_from_slice(&addr::mac(to));
            frame.extend_from_slice(&out.mac());
            frame.extend_from_slice(&ETHERTYPE.to_be_bytes());
            frame.extend_from_slice(&message);
            out.send(&frame);
        }
        self.server.has_work().then_some(Duration::ZERO)
    }
}
