//! Any packets and frames at a node's IP link.
//!
//! A received frame has the address of the node that it came from. Answers and relayed packets are
//! few, and no buffer is lost.

use arbitrary::{Result, Unstructured};
use tofu_abi::topology::{NodeId, Shape};
use tofu_abi::{Coords, Rcode, StagOffset, TniId};
use tofu_ipotofu::neighbor::Destination;
use tofu_ipotofu::offload::{METADATA_SIZE, Metadata};
use tofu_ipotofu::rendezvous::{self, Message, Request};
use tofu_ipotofu::testing::{Posted, TestQueue};
use tofu_ipotofu::wire::{Capabilities, FRAGMENT_MAX, HEADER_SIZE, Packet, PacketKind, Repr};
use tofu_ipotofu::{Config, Core, Ended, Event, SendError, addr, tree};

/// Packets and frames of one input at most.
const MAX_ACTIONS: u32 = 256;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = play(&mut u);
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let shape = *u.choose(&["1x1x1x2x3x2", "3x1x2x1x1x1", "2x2x4x2x3x2", "32x32x32x2x3x2"])?;
    let torus = *u.choose(&["xyz", "", "y"])?;
    let Ok(shape) = shape.parse::<Shape>() else { return Ok(()) };
    let shape = shape.with_torus_letters(torus);
    let me = node(&shape, u)?;
    // Half of the nodes take offloaded frames.
    let offload = me.c == 1;
    let config = Config { mtu: u.arbitrary()?, reassemblies: 4, offload, ..Config::new(shape) };
    let mut core = Core::new(config, me, TniId::ALL[0], 0);
    let max = core.config().max_frame();
    let mut now_ns = 0u64;
    for _ in 0..MAX_ACTIONS {
        if u.is_empty() {
            break;
        }
        now_ns = now_ns.wrapping_add(u.arbitrary::<u32>()?.into());
        if u.ratio(1, 4)? {
            send(&mut core, &shape, u)?;
        } else {
            receive(&mut core, &shape, now_ns, max, u)?;
        }
        let mut replies = 0;
        while let Some(reply) = core.take_reply() {
            replies += 1;
            assert!(reply.len() <= max && reply[6..8] == [2, 0], "an answer of no node");
        }
        assert!(replies <= 2, "{replies} answers to one question");
    }
    Ok(())
}

fn node(shape: &Shape, u: &mut Unstructured<'_>) -> Result<Coords> {
    let rank = u.arbitrary::<u32>()? % shape.nodes();
    Ok(shape.coords(NodeId(rank)).unwrap_or_default())
}

fn send(core: &mut Core, shape: &Shape, u: &mut Unstructured<'_>) -> Result<()> {
    let (me, max) = (core.me(), core.config().max_frame());
    let len = u.arbitrary_len::<u8>()?.min(128);
    let mut frame = u.bytes(len)?.to_vec();
    if u.ratio(3, 4)? && frame.len() >= 14 {
        let to = if u.arbitrary()? { addr::BROADCAST } else { addr::mac(node(shape, u)?) };
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&addr::mac(me));
        frame[12..14].copy_from_slice(u.choose(&[[8, 6], [0x86, 0xdd], [8, 0]])?);
    }
    if u.ratio(1, 8)? {
        frame.resize(usize::from(u.arbitrary::<u16>()?), 0x5a);
    }
    let expected = match core.destination(&frame) {
        Destination::Group => tree::children(shape, me, me).count(),
        _ => 1,
    } * frame.len().div_ceil(FRAGMENT_MAX);
    let size = if u.ratio(3, 4)? { 1 << 12 } else { u.int_in_range(0..=64)? };
    let mut queue = TestQueue::new(size);
    let sent = core.send(&mut queue, &frame, 0);
    let count = queue.posted.len();
    assert!(count == 0 || count == expected, "{count} packets instead of {expected}");
    assert!(sent != Err(SendError::Full) || expected > size && count == 0);
    for posted in &queue.posted {
        let to = posted.tag().to;
        check(shape, &posted.payload);
        assert_ne!(to, me, "a packet to oneself");
        assert!(shape.contains(to));
    }
    lose(core, &mut queue, u)?;
    assert!(sent.is_err() || frame.len() <= max);
    let mut bytes = [0; METADATA_SIZE];
    for byte in &mut bytes {
        *byte = u.arbitrary().unwrap_or_default();
    }
    if let Ok(metadata) = Metadata::parse(&bytes)
        && frame.len() >= 14
        && metadata.check(&frame).is_ok()
    {
        complete(&metadata, &frame);
    }
    Ok(())
}

fn receive(
    core: &mut Core,
    shape: &Shape,
    now_ns: u64,
    max: usize,
    u: &mut Unstructured<'_>,
) -> Result<()> {
    let (me, from) = (core.me(), node(shape, u)?);
    let origin = if u.ratio(3, 4)? { from } else { node(shape, u)? };
    let header = some_header(origin, u)?;
    let len = if u.ratio(7, 8)? { FRAGMENT_MAX } else { u.int_in_range(0..=FRAGMENT_MAX)? };
    let mut body = vec![0; len];
    let some = u.len().min(20);
    for (byte, value) in body.iter_mut().zip(u.bytes(some)?) {
        *byte = *value;
    }
    if len >= 14 + METADATA_SIZE && u.ratio(3, 4)? {
        let to = if u.arbitrary()? { addr::BROADCAST } else { addr::mac(me) };
        let at = if header[0] & 0xf == PacketKind::Offloaded as u8 { METADATA_SIZE } else { 0 };
        body[at..at + 6].copy_from_slice(&to);
        body[at + 6..at + 12].copy_from_slice(&addr::mac(origin));
    }
    if let Some(message) = Message::parse(from, &header, &body) {
        // A message that is accepted is one that a node could have sent.
        let (again, rest) = message.emit(from, Capabilities::of(&header));
        let head = match &message {
            Message::Request(request) => request.head_in(&body),
            Message::Done { .. } => &[],
        };
        let rest = [&rest, head].concat();
        assert!(rendezvous::is_message(&header), "no message of this kind");
        assert_eq!(Message::parse(from, &again, &rest), Some(message));
    }
    let mut queue = TestQueue::default();
    let event = core.receive(&mut queue, from, (&header, &body), now_ns);
    check_relayed(shape, (me, from), &queue);
    lose(core, &mut queue, u)?;
    let (metadata, frame) = match event {
        Event::Nothing | Event::Acknowledged(..) => return Ok(()),
        Event::Whole(metadata, part) => (metadata, body[part].to_vec()),
        Event::Assembled(metadata, frame) => (metadata, frame),
    };
    let offload = core.config().offload;
    if header[0] & 0xf == PacketKind::Offloaded as u8 {
        assert!(offload, "a frame that this node does not take");
        complete(&metadata, &frame);
    } else {
        assert!(metadata.is_empty(), "metadata of a frame that has none");
    }
    assert!(frame.len() <= max || offload, "longer than the MTU");
    let mut source = [0; 6];
    source.copy_from_slice(&frame[6..12]);
    let source = addr::node_of_mac(source).expect("a node's address");
    assert!(source == from || tree::is_ancestor(shape, source, from, me), "spoofed");
    assert!(frame[..6] == addr::mac(me) || frame[0] & 1 != 0, "misdirected");
    Ok(())
}

/// For a packet `from` another node, a node sends to its children or acknowledges to the sender.
fn check_relayed(shape: &Shape, (me, from): (Coords, Coords), queue: &TestQueue) {
    for posted in &queue.posted {
        let (repr, to) = (check(shape, &posted.payload), posted.tag().to);
        let right = if repr.kind == PacketKind::Acknowledgement {
            to == from
        } else {
            tree::parent(shape, repr.origin, to) == Some(me)
        };
        assert!(right, "{:?} to {to}, which is not a child", repr.kind);
    }
    assert!(queue.posted.len() <= 11, "relayed {} times", queue.posted.len());
}

/// A header, more often a plausible one.
fn some_header(origin: Coords, u: &mut Unstructured<'_>) -> Result<[u8; HEADER_SIZE]> {
    let mut header = [0; HEADER_SIZE];
    if u.ratio(1, 4)? {
        u.fill_buffer(&mut header)?;
    } else if u.ratio(1, 4)? {
        let says = Capabilities { rendezvous: true, split: true, ..Capabilities::NONE };
        let head = u.int_in_range(0..=rendezvous::HEAD_MAX as u16)?;
        let request = Request {
            origin,
            id: u.int_in_range(0..=3)?,
            head,
            len: u.int_in_range(1..=u16::MAX.into())?,
            sum: if head == 0 { u.arbitrary()? } else { 0 },
            metadata: u.arbitrary()?,
            place: StagOffset(u.arbitrary()?),
        };
        (header, _) = Message::Request(request).emit(origin, says);
    } else {
        let total: u16 = u.arbitrary()?;
        let fragments = usize::from(total).div_ceil(FRAGMENT_MAX).max(1);
        let offset = u.choose_index(fragments)? * FRAGMENT_MAX;
        let length = usize::from(total).saturating_sub(offset).min(FRAGMENT_MAX);
        let repr = Repr {
            kind: *u.choose(&[
                PacketKind::Unicast,
                PacketKind::Broadcast,
                PacketKind::Offloaded,
                PacketKind::Acknowledgement,
            ])?,
            takes_offloaded: length & 1 == 1,
            acknowledge: length & 2 == 2,
            total,
            offset: offset as u16,
            length: length as u16,
            id: u.int_in_range(0..=3)?,
            sum: if fragments == 1 { 0 } else { u.int_in_range(1..=2)? },
            origin,
        };
        header = repr.emit();
    }
    Ok(header)
}

/// A frame that was received can be completed: into frames no longer than it is, and not too many.
fn complete(metadata: &Metadata, frame: &[u8]) {
    let mut count = 0;
    let done = metadata.complete(frame, &mut |completed| {
        assert!(completed.len() <= frame.len() && completed[..12] == frame[..12]);
        count += 1;
    });
    assert!(done.is_ok() && (1..=frame.len().div_ceil(48)).contains(&count), "{count} frames");
}

/// Lets some of the packets in a queue end, and others meet dead links, until none is left.
fn lose(core: &mut Core, queue: &mut TestQueue, u: &mut Unstructured<'_>) -> Result<()> {
    for _ in 0..4 * MAX_ACTIONS {
        let Some(posted) = queue.posted.pop() else { break };
        let rcode = if u.ratio(1, 4)? { Rcode::LINK_DOWN } else { Rcode::SUCCESS };
        let Posted { purpose, payload, .. } = posted;
        let (len, buffer) = (payload.len() as u16, payload.into());
        core.outbound().ended(queue, Ended { purpose, rcode, buffer, len }, 0);
        assert_eq!(queue.missing(), 0, "a buffer is lost");
    }
    Ok(())
}

/// Packets that are sent can be received.
fn check(shape: &Shape, packet: &[u8]) -> Repr {
    let (header, body) = packet.split_at(HEADER_SIZE);
    let packet = Packet::new_checked(header).expect("a whole header");
    let repr = Repr::parse(&packet, body.len()).expect("a header that makes sense");
    assert_eq!(usize::from(repr.length), body.len());
    assert!(shape.contains(repr.origin));
    repr
}
