//! Sends malformed and forged packets of IP over Tofu: false origins, wrong lengths, too many
//! address requests, requests to fetch memory that does not exist. None of this may harm the other
//! nodes; the program succeeds if it reaches its end.
//!
//! `count=N`: how many packets (20000), `seed=N`: which.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};
use tofu_abi::topology::{NodeId, Shape};
use tofu_abi::{Coords, StagOffset, TniId};
use tofu_driver::{Device, PacketConfig, PacketTarget, Packets};
use tofu_guests::random::Random;
use tofu_guests::{Error, find_device, machine_shape, number, println};
use tofu_ipotofu::addr;
use tofu_ipotofu::offload::METADATA_SIZE;
use tofu_ipotofu::rendezvous::{Message, Request};
use tofu_ipotofu::wire::{Capabilities, ETHERNET_HEADER, FRAGMENT_MAX, PacketKind, Repr, sum};

tofu_guests::entry!(badframes);

/// TNI of all nodes' links.
const TNI: TniId = TniId::ALL[0];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
const BROADCAST: [u8; 6] = [0xff; 6];
/// The announced contents of the messages.
const SAYS: Capabilities =
    Capabilities { offload: true, rendezvous: true, split: false, more_queues: 0 };

fn badframes() -> Result<(), Error> {
    let count = number("count", 20_000)?;
    let random = Random::new(number("seed", 1)?);
    let shape = machine_shape()?;
    let device = Device::probe(find_device()?)?;
    let me = device.coords();
    let mut packets = Packets::open(&device, &PacketConfig::new(TNI))?;
    let mut vandal = Vandal { random, shape, me };
    let mut received = vec![0; 2048];
    for n in 0..count {
        let to = vandal.node();
        let packet = vandal.packet(to, n as u32);
        let target = PacketTarget::straight(me, to, TNI);
        while packets.free() == 0 {
            packets.wait(1_000_000);
            while packets.poll_sent().is_some() {}
        }
        packets.send(&target, &[&packet], n as u32)?;
        while packets.poll_sent().is_some() {}
        // The others' answers do not matter.
        while packets.recv(&mut received).is_some() {}
    }
    println!("{count} bad packets sent");
    packets.close()?;
    Ok(())
}

struct Vandal {
    random: Random,
    shape: Shape,
    me: Coords,
}

impl Vandal {
    /// A node of the machine, occasionally this one.
    fn node(&mut self) -> Coords {
        let id = self.random.below(self.shape.nodes().into()) as u32;
        self.shape.coords(NodeId(id)).unwrap_or(self.me)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.random.next() as u8).collect()
    }

    /// An Ethernet frame.
    fn frame(&mut self, to: [u8; 6], from: [u8; 6], kind: [u8; 2], data: &[u8]) -> Vec<u8> {
        [&to[..], &from, &kind, data].concat()
    }

    /// A packet that is correct except for what the caller changes.
    fn repr(&self, kind: PacketKind, id: u32, len: usize) -> Repr {
        Repr {
            kind,
            takes_offloaded: false,
            acknowledge: false,
            total: len as u16,
            offset: 0,
            length: len.min(FRAGMENT_MAX) as u16,
            id,
            sum: 0,
            origin: self.me,
        }
    }

    /// One packet for a node.
    fn packet(&mut self, to: Coords, id: u32) -> Vec<u8> {
        let (own, theirs, other) = (addr::mac(self.me), addr::mac(to), self.node());
        let (len, name) = (self.random.below(1400) as usize, addr::mac(other));
        let data = self.bytes(len);
        match self.random.below(11) {
            // The packet claims to be from another node.
            0 => {
                let frame = self.frame(theirs, name, IPV4, &data);
                let repr =
                    Repr { origin: other, ..self.repr(PacketKind::Unicast, id, frame.len()) };
                [&repr.emit()[..], &frame].concat()
            }
            // The frame claims to be from another node.
            1 => {
                let frame = self.frame(theirs, name, IPV4, &data);
                [&self.repr(PacketKind::Unicast, id, frame.len()).emit()[..], &frame].concat()
            }
            // For another node than the one that it is sent to.
            2 => {
                let frame = self.frame(name, own, IPV4, &data);
                [&self.repr(PacketKind::Unicast, id, frame.len()).emit()[..], &frame].concat()
            }
            // A broadcast in the name of another node.
            3 => {
                let frame = self.frame(BROADCAST, name, IPV4, &data);
                let repr =
                    Repr { origin: other, ..self.repr(PacketKind::Broadcast, id, frame.len()) };
                [&repr.emit()[..], &frame].concat()
            }
            // A question for an address that no node has, to all nodes.
            4 | 5 => self.question(id),
            // The first fragment of a frame that is too long, or that never becomes complete.
            6 => {
                let total = FRAGMENT_MAX as u64 + 1 + self.random.below(u64::from(u16::MAX) - 2000);
                let data = self.bytes(FRAGMENT_MAX - ETHERNET_HEADER);
                let fragment = self.frame(theirs, own, IPV4, &data);
                let sum = sum(&fragment);
                let repr = Repr { sum, ..self.repr(PacketKind::Unicast, id, total as usize) };
                [&repr.emit()[..], &fragment].concat()
            }
            // Cut off, in its header or behind it.
            7 => {
                let frame = self.frame(theirs, own, IPV4, &data);
                let repr = self.repr(PacketKind::Unicast, id, frame.len());
                let mut packet = [&repr.emit()[..], &frame].concat();
                packet.truncate(self.random.below(packet.len() as u64) as usize);
                packet
            }
            // An offloaded frame with inconsistent metadata, or an unexpected confirmation.
            8 => {
                let kind =
                    self.random.choose(&[PacketKind::Offloaded, PacketKind::Acknowledgement]);
                let frame = self.frame(theirs, own, IPV4, &data);
                let body = [&self.bytes(8)[..], &frame].concat();
                let repr = Repr { sum: sum(&body), ..self.repr(kind, id, body.len()) };
                let repr =
                    if kind == PacketKind::Acknowledgement { repr.acknowledgement() } else { repr };
                [&repr.emit()[..], &body].concat()
            }
            // A frame to be fetched from memory that does not exist, or the end of a request that
            // was never made.
            9 => self.rendezvous(id),
            _ => data,
        }
    }

    /// A request for a frame in memory that does not exist, or the end of a request that was never
    /// made.
    fn rendezvous(&mut self, id: u32) -> Vec<u8> {
        let len = self.random.below(1 << 16) as u32;
        let head = self.random.choose(&[0, 1, 14, 400, 600]);
        let place = StagOffset(self.random.next());
        let (metadata, sum) = ([0; METADATA_SIZE], self.random.next() as u32);
        let request = Request { origin: self.me, id, head, len, sum, metadata, place };
        let done = Message::Done { id, refused: self.random.below(8) == 0 };
        let message = self.random.choose(&[Message::Request(request), done]);
        let (header, body) = message.emit(self.me, SAYS);
        [&header[..], &body, &vec![0; head.into()]].concat()
    }

    /// A correct ARP question for an address that no node has, in a broadcast.
    fn question(&mut self, id: u32) -> Vec<u8> {
        let [.., a, b, _] = self.random.next().to_le_bytes();
        let arp = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: EthernetAddress(addr::mac(self.me)),
            source_protocol_addr: addr::ipv4(0, self.me).into(),
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: [192, 168, a, b].into(),
        };
        let mut data = vec![0; arp.buffer_len()];
        arp.emit(&mut ArpPacket::new_unchecked(&mut data));
        let frame = self.frame(BROADCAST, addr::mac(self.me), ARP, &data);
        [&self.repr(PacketKind::Broadcast, id, frame.len()).emit()[..], &frame].concat()
    }
}
