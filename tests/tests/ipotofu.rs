//! IP over Tofu between devices: links that go down, nodes that are not there, RDMA alongside.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use tofu_abi::table::PageSize;
use tofu_abi::topology::{NodeId, Port, Shape};
use tofu_abi::{Coords, CqId, Group, Rcode, TniId};
use tofu_driver::{
    Access, Cq, CqConfig, Device, DmaBuffer, DmaError, IrqError, MemoryRange, Order, PacketConfig,
    Packets, Platform, Target,
};
use tofu_inproc::InProcess;
use tofu_ipotofu::offload::{HEAD, Metadata};
use tofu_ipotofu::rendezvous::{MIN_FRAME, Message, REST_MAX, Request};
use tofu_ipotofu::routes::route;
use tofu_ipotofu::wire::{Capabilities, WHOLE_MTU};
use tofu_ipotofu::{Config, Frame, Link, LinkError, addr};
use tofu_machine::Machine;
use tofu_tests::{Cluster, pattern};

type Node = Link<InProcess>;

fn config(text: &str, mtu: u16) -> Config {
    Config { mtu, ..Config::new(text.parse().unwrap()) }
}

fn open(device: &Device<InProcess>, text: &str, mtu: u16) -> Node {
    let packets =
        PacketConfig { rx_buffers: 64, tx_buffers: 64, ..PacketConfig::new(TniId::ALL[0]) };
    Link::open(device, config(text, mtu), &packets).unwrap()
}

/// Links of all nodes of a cluster.
fn open_all(cluster: &Cluster, text: &str, mtu: u16) -> Vec<Node> {
    let shape: Shape = text.parse().unwrap();
    (0..shape.nodes()).map(|rank| open(cluster.device(rank), text, mtu)).collect()
}

fn frame(from: Coords, to: addr::Mac, len: usize, seed: u64) -> Vec<u8> {
    let mut frame = [&to[..], &addr::mac(from), &[0x88, 0xb5]].concat();
    frame.extend(pattern(seed, len - 14));
    frame
}

/// A frame with both of its parts.
fn whole<D: DmaBuffer>(frame: &Frame<'_, D>) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 19];
    let len = frame.copy_to(&mut bytes);
    bytes.truncate(len);
    bytes
}

/// All frames that have arrived for a node.
fn receive<P: Platform>(node: &mut Link<P>) -> Vec<Vec<u8>> {
    let mut buf = vec![0; node.config().max_frame()];
    std::iter::from_fn(|| node.recv(&mut buf).map(|len| buf[..len].to_vec())).collect()
}

/// Lets links and devices work until nothing moves any more, and returns the frames that arrived.
fn settle(cluster: &Cluster, nodes: &mut [Node]) -> Vec<Vec<Vec<u8>>> {
    let mut received = vec![Vec::new(); nodes.len()];
    // The most hops of a broadcast and ways of a packet.
    for _ in 0..110 {
        for (node, frames) in nodes.iter_mut().zip(&mut received) {
            node.flush();
            cluster.settle();
            frames.extend(receive(node));
        }
    }
    received
}

#[test]
fn frames_of_all_lengths_arrive() {
    let text = "1x1x1x2x1x1";
    let cluster = Cluster::new(text);
    let mut nodes = open_all(&cluster, text, 9000);
    let (a, b) = (nodes[0].coords(), nodes[1].coords());
    let whole = usize::from(WHOLE_MTU) + 14;
    for len in [14, 60, 1514, whole, whole + 1, 2 * whole, 9014] {
        let sent = frame(a, addr::mac(b), len, len as u64);
        nodes[0].send(&sent).unwrap();
        let received = settle(&cluster, &mut nodes);
        assert_eq!(received, [vec![], vec![sent]], "{len} bytes");
    }
    assert!(matches!(nodes[0].send(&frame(a, addr::mac(b), 9015, 0)), Err(LinkError::Frame(_))));
    // Also into a buffer that is too short for a fragment.
    let sent = frame(a, addr::mac(b), 300, 1);
    nodes[0].send(&sent).unwrap();
    nodes[0].flush();
    cluster.settle();
    let mut short = [0; 300];
    assert_eq!(nodes[1].recv(&mut short), Some(300));
    assert_eq!(short[..], sent);
}

#[test]
fn full_link_reports_it_and_recovers() {
    let text = "1x1x1x2x1x1";
    let cluster = Cluster::new(text);
    let mut nodes = open_all(&cluster, text, 1500);
    let (a, b) = (nodes[0].coords(), nodes[1].coords());
    let sent = frame(a, addr::mac(b), 1514, 9);
    let mut count = 0;
    // Nothing runs in between, so that the buffers fill up.
    let full = loop {
        match nodes[0].send(&sent) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((full, count), (LinkError::Full, 64));
    assert!(nodes[0].wait_room(1_000_000_000));
    nodes[0].send(&sent).unwrap();
    let received = settle(&cluster, &mut nodes);
    assert_eq!(received[1].len() as u64 + dropped(&cluster, 1), 65);
}

fn dropped(cluster: &Cluster, rank: u32) -> u64 {
    use tofu_abi::regs::{Register, TniReg};
    let reg = TniReg::RxNumDiscardSystemTlp;
    cluster.device(rank).read(Register::Tni { tni: TniId::ALL[0], reg })
}

/// Memory of nodes that fetch frames.
const FETCHING: usize = 16 << 20;

/// Two links that fetch long frames from each other, and know this of each other.
fn fetching(cluster: &Cluster, text: &str) -> Vec<Node> {
    fetching_by(cluster, text, [0, 1].map(|rank| cluster.device(rank).clone()), false)
}

/// The same, with the heads of the frames in the requests.
fn splitting(cluster: &Cluster, text: &str) -> Vec<Node> {
    fetching_by(cluster, text, [0, 1].map(|rank| cluster.device(rank).clone()), true)
}

/// The same with devices that the caller makes, splitting frames or not.
fn fetching_by<P: Platform>(
    cluster: &Cluster,
    text: &str,
    devices: [Device<P>; 2],
    split: bool,
) -> Vec<Link<P>> {
    let config = Config { offload: true, rendezvous: true, split, ..config(text, 9000) };
    let packets =
        PacketConfig { rx_buffers: 64, tx_buffers: 64, ..PacketConfig::new(TniId::ALL[0]) };
    let open = |device| Link::open(&device, config.clone(), &packets).unwrap();
    let mut nodes: Vec<_> = devices.map(open).into();
    introduce(cluster, &mut nodes);
    nodes
}

/// A short frame in each direction, which announces that its sender fetches.
fn introduce<P: Platform>(cluster: &Cluster, nodes: &mut [Link<P>]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let sent = frame(nodes[from].coords(), nodes[to].mac(), 100, 7);
        nodes[from].send(&sent).unwrap();
        nodes[from].flush();
        cluster.settle();
        assert_eq!(receive(&mut nodes[to]), [sent]);
    }
}

#[test]
fn long_frames_are_fetched_in_order() {
    let text = "1x1x1x2x1x1";
    let cluster = Cluster::with_memory(text, FETCHING);
    let mut nodes = fetching(&cluster, text);
    let (from, to) = (nodes[0].coords(), nodes[1].mac());
    let nothing = Metadata::default();
    // More than there are places for, long ones and short ones in turn.
    let sent: Vec<_> = (0..120).map(|n| frame(from, to, [9014, 80][n % 2], n as u64)).collect();
    let mut received = Vec::new();
    let mut waits = 0;
    for frame in &sent {
        while let Err(error) = nodes[0].send_offloaded(&nothing, frame) {
            assert_eq!(error, LinkError::Full);
            waits += 1;
            received.extend(settle(&cluster, &mut nodes).remove(1));
        }
    }
    received.extend(settle(&cluster, &mut nodes).remove(1));
    assert!(received == sent, "{} frames of {}", received.len(), sent.len());
    assert!(waits > 0, "there were places for all of them");
    let (ours, theirs) = (nodes[0].counters(), nodes[1].counters());
    assert_eq!(
        (ours.rendezvous_sent, theirs.rendezvous_received, theirs.rendezvous_failed),
        (60, 60, 0)
    );
    assert_eq!((theirs.damaged, theirs.malformed), (0, 0));
    assert!(!nodes[1].is_fetching());
    // An offloaded frame of the greatest length, whose checksum is at its end.
    let long = frame(from, to, 65527, 3);
    let metadata = Metadata { checksum: Some((14, 65511)), ..nothing };
    nodes[0].send_offloaded(&metadata, &long).unwrap();
    nodes[0].flush();
    cluster.settle();
    let mut buf = [0; 2000];
    let mut take = || nodes[1].recv_with(&mut buf, |metadata, frame| (*metadata, whole(&frame)));
    let got = (0..10).find_map(|_| {
        let got = take();
        cluster.settle();
        got
    });
    assert!(got == Some((metadata, long)));
    // Frames that are not offloaded must not exceed the usual length.
    let long = frame(from, to, 9015, 3);
    let refused = nodes[0].send_offloaded(&nothing, &long);
    assert!(matches!(refused, Err(LinkError::Frame(_))), "{refused:?}");
}

#[test]
fn fetched_frames_of_all_lengths_are_whole() {
    for split in [false, true] {
        let text = "1x1x1x2x1x1";
        let cluster = Cluster::with_memory(text, FETCHING);
        let devices = [0, 1].map(|rank| cluster.device(rank).clone());
        all_lengths(&cluster, fetching_by(&cluster, text, devices, split));
    }
}

fn all_lengths(cluster: &Cluster, mut nodes: Vec<Node>) {
    let (from, to) = (nodes[0].coords(), nodes[1].mac());
    let sent: Vec<_> =
        (8192..8208).chain(9007..=9014).map(|len| frame(from, to, len, len as u64)).collect();
    for sent in &sent {
        nodes[0].send_offloaded(&Metadata::default(), sent).unwrap();
        let received = settle(cluster, &mut nodes).remove(1);
        assert!(received == [sent.clone()], "{} bytes", sent.len());
    }
    assert_eq!(nodes[1].counters().rendezvous_received, sent.len() as u64);
}

/// Numbers of bytes of memory of the device that are copied to or from it, and summed up.
#[derive(Debug, Default)]
struct Counts {
    copied: AtomicUsize,
    summed: AtomicUsize,
}

impl Counts {
    /// Both numbers since the last call.
    fn take(&self) -> [usize; 2] {
        [&self.copied, &self.summed].map(|count| count.swap(0, Ordering::Relaxed))
    }
}

/// A platform that counts bytes of memory of the device.
#[derive(Clone, Debug)]
struct Counting {
    device: Device<InProcess>,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct CountingBuffer {
    buffer: <InProcess as Platform>::Dma,
    counts: Arc<Counts>,
}

impl Platform for Counting {
    type Dma = CountingBuffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        self.device.platform().bar0_read64(offset)
    }
    fn bar0_write64(&self, offset: u64, value: u64) {
        self.device.platform().bar0_write64(offset, value);
    }
    fn doorbell_write64(&self, offset: u64, value: u64) {
        self.device.platform().doorbell_write64(offset, value);
    }
    fn alloc_dma(&self, size: usize, align: usize) -> Result<CountingBuffer, DmaError> {
        let buffer = self.device.platform().alloc_dma(size, align)?;
        Ok(CountingBuffer { buffer, counts: Arc::clone(&self.counts) })
    }
    fn irq_enable(&self, vector: u16) -> Result<(), IrqError> {
        self.device.platform().irq_enable(vector)
    }
    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        self.device.platform().irq_wait(vector, timeout_ns)
    }
    fn now_ns(&self) -> u64 {
        self.device.platform().now_ns()
    }
    fn relax(&self) {
        self.device.platform().relax();
    }
}

impl DmaBuffer for CountingBuffer {
    fn device_addr(&self) -> u64 {
        self.buffer.device_addr()
    }
    fn len(&self) -> usize {
        self.buffer.len()
    }
    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.buffer.load_u64(offset, order)
    }
    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.buffer.store_u64(offset, value, order);
    }
    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        self.buffer.load_u32(offset, order)
    }
    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.buffer.store_u32(offset, value, order);
    }
    fn load_u8(&self, offset: usize, order: Ordering) -> u8 {
        self.buffer.load_u8(offset, order)
    }
    fn store_u8(&self, offset: usize, value: u8, order: Ordering) {
        self.buffer.store_u8(offset, value, order);
    }
    fn read(&self, offset: usize, buf: &mut [u8]) {
        self.counts.copied.fetch_add(buf.len(), Ordering::Relaxed);
        self.buffer.read(offset, buf);
    }
    fn each_word(&self, offset: usize, len: usize, each: impl FnMut(u64)) {
        self.counts.summed.fetch_add(len, Ordering::Relaxed);
        self.buffer.each_word(offset, len, each);
    }
    fn write(&self, offset: usize, buf: &[u8]) {
        self.counts.copied.fetch_add(buf.len(), Ordering::Relaxed);
        self.buffer.write(offset, buf);
    }
}

#[test]
fn placed_frame_is_not_copied_in_transit() {
    for split in [false, true] {
        place_and_count(split);
    }
}

/// Sends frames of several lengths from their places, and counts.
fn place_and_count(split: bool) {
    let text = "1x1x1x2x1x1";
    let cluster = Cluster::with_memory(text, FETCHING);
    let counts = [(); 2].map(|()| Arc::new(Counts::default()));
    let devices = [0, 1].map(|rank| {
        let (device, counts) = (cluster.device(rank).clone(), Arc::clone(&counts[rank as usize]));
        Device::probe(Counting { device, counts }).unwrap()
    });
    let mut nodes = fetching_by(&cluster, text, devices, split);
    let (from, to) = (nodes[0].coords(), nodes[1].mac());
    // All lengths of the last word, and the longest frame.
    for len in (20_000..20_008).chain([MIN_FRAME, MIN_FRAME + 1, 65527]) {
        let sent = frame(from, to, len, len as u64);
        // The checksum is at its end.
        let metadata = Metadata { checksum: Some((14, len as u16 - 16)), ..Metadata::default() };
        let place = nodes[0].place().unwrap();
        {
            let (memory, range) = nodes[0].place_memory(&place).unwrap();
            memory.buffer.write(range.start + HEAD, &sent[HEAD..]);
        }
        counts.iter().for_each(|counts| _ = counts.take());
        let is_sent = nodes[0].send_placed(&metadata, &sent[..HEAD], &place, len);
        assert_eq!(is_sent, Ok(true), "{len} bytes");
        nodes[0].flush();
        let mut buf = vec![0; 1 << 16];
        let mut looks = 0..20;
        let got = loop {
            assert!(looks.next().is_some(), "{len} bytes");
            cluster.settle();
            let taken = nodes[1].recv_with(&mut buf, |said, frame| {
                let rest = frame.rest.as_ref().map_or(0, |(_, range)| range.len());
                assert_eq!((*said, frame.head.len() + rest), (metadata, len));
                // As the kernel does when it is given the frame.
                let mut whole = frame.head.to_vec();
                if let Some((memory, range)) = &frame.rest {
                    whole.resize(len, 0);
                    memory.buffer.read(range.start, &mut whole[frame.head.len()..]);
                }
                whole
            });
            if let Some(got) = taken {
                break got;
            }
        };
        assert!(got == sent, "{len} bytes");
        let counts = counts.each_ref().map(|counts| counts.take());
        // The first bytes on either side, and the request.
        let summed = if split { 0 } else { len - HEAD };
        let right = counts.iter().all(|[copied, sum]| *copied < 512 && *sum == summed);
        assert!(right, "copied and summed {counts:?} of {len} bytes");
        settle_two(&cluster, &mut nodes);
    }
    assert_eq!(nodes[0].counters().rendezvous_sent, 11);
}

/// Lets answers arrive at both nodes.
fn settle_two<P: Platform>(cluster: &Cluster, nodes: &mut [Link<P>]) {
    for _ in 0..3 {
        for node in &mut *nodes {
            node.flush();
            cluster.settle();
            assert_eq!(receive(node), Vec::<Vec<u8>>::new());
        }
    }
}

#[test]
fn place_is_of_one_link_for_long_frames() {
    let text = "1x1x1x2x1x1";
    let cluster = Cluster::with_memory(text, FETCHING);
    let mut nodes = fetching(&cluster, text);
    let nothing = Metadata::default();
    let sent = frame(nodes[0].coords(), nodes[1].mac(), 9014, 1);
    let head = &sent[..MIN_FRAME];
    let place = nodes[0].place().unwrap();
    let foreign = nodes[1].place().unwrap();
    assert!(nodes[0].place_memory(&foreign).is_none());
    assert_eq!(nodes[0].send_placed(&nothing, head, &foreign, 9014), Ok(false));
    // Its length, and the head's.
    for (head, len) in [(&sent[..100], 9014), (&sent[..8191], 9014), (head, 8191), (head, 65528)] {
        let is_sent = nodes[0].send_placed(&nothing, head, &place, len);
        assert_eq!(is_sent, Ok(false), "{} of {len}", head.len());
    }
    // A node that does not exist, or one that has not announced that it fetches.
    let mut astray = sent.clone();
    astray[..6].copy_from_slice(&addr::mac(Coords::new(5, 0, 0, 0, 0, 0)));
    assert_eq!(nodes[0].send_placed(&nothing, &astray[..MIN_FRAME], &place, 9014), Ok(false));
    let wrong = Metadata { checksum: Some((14, 9000)), ..nothing };
    assert_eq!(nodes[0].send_placed(&wrong, head, &place, 9014), Err(LinkError::Metadata));
    cluster.pass(3_000_000_000);
    assert_eq!(nodes[0].send_placed(&nothing, head, &place, 9014), Ok(false));
    assert_eq!(nodes[0].counters().rendezvous_sent, 0);
    // No place is available when all are taken.
    introduce(&cluster, &mut nodes);
    while nodes[0].send_offloaded(&nothing, &sent).is_ok() {}
    assert!(nodes[0].place().is_some(), "others may have some");
    assert_eq!(nodes[0].send_placed(&nothing, head, &place, 9014), Err(LinkError::Full));
}

#[test]
fn unfetchable_frames_are_skipped() {
    let text = "1x1x1x2x1x1";
    let cluster = Cluster::with_memory(text, FETCHING);
    let mut nodes = fetching(&cluster, text);
    let (from, to) = (nodes[0].coords(), nodes[1].mac());
    let long = frame(from, to, 9014, 1);
    // The frame's origin restarts, with other memory, between the offer and the Get.
    nodes[0].send_offloaded(&Metadata::default(), &long).unwrap();
    nodes[0].flush();
    assert_eq!(nodes[0].counters().rendezvous_sent, 1);
    cluster.settle();
    drop(nodes.remove(0));
    nodes.insert(0, open(cluster.device(0), text, 9000));
    assert_eq!(settle(&cluster, &mut nodes), [vec![], Vec::<Vec<u8>>::new()]);
    assert_eq!(
        (nodes[1].counters().rendezvous_failed, nodes[1].counters().rendezvous_received),
        (1, 0)
    );
    assert!(!nodes[1].is_fetching());
    // The new link does not know that the other one fetches: fragments go both ways.
    introduce(&cluster, &mut nodes);
    for (a, b) in [(0, 1), (1, 0)] {
        let long = frame(nodes[a].coords(), nodes[b].mac(), 9014, 2);
        nodes[a].send_offloaded(&Metadata::default(), &long).unwrap();
        assert_eq!(settle(&cluster, &mut nodes)[b], [long]);
    }
    assert_eq!((nodes[0].counters().rendezvous_sent, nodes[1].counters().rendezvous_sent), (0, 0));
}

/// A node that comes late does not get a frame's head with the rest of another one, which no sum
/// would reveal.
#[test]
fn late_node_does_not_fetch_what_replaced_a_frame() {
    let text = "1x1x1x2x1x1";
    let cluster = Cluster::with_memory(text, FETCHING);
    let mut nodes = splitting(&cluster, text);
    let (from, to) = (nodes[0].coords(), nodes[1].mac());
    let mut sent = (0..).map(|n| frame(from, to, 9014, n));
    let nothing = Metadata::default();
    // One frame that is fetched before the timeout, and then the most that may be outstanding for
    // one node, which are not.
    nodes[0].send_offloaded(&nothing, &sent.next().unwrap()).unwrap();
    assert_eq!(settle(&cluster, &mut nodes)[1].len(), 1);
    let late = sent.by_ref().take_while(|sent| nodes[0].send_offloaded(&nothing, sent).is_ok());
    assert_eq!(late.count(), 24);
    nodes[0].flush();
    cluster.pass(1_100_000_000);
    // The requests have timed out, but are still there to be taken. Another frame is sent in place
    // of one that they name, once there is no doubt of the node any more.
    nodes[0].send_offloaded(&nothing, &sent.next().unwrap()).unwrap();
    cluster.pass(1_100_000_000);
    let hello = frame(nodes[1].coords(), nodes[0].mac(), 100, 7);
    nodes[1].send(&hello).unwrap();
    nodes[1].flush();
    cluster.settle();
    assert!(receive(&mut nodes[0]) == [hello]);
    let mut others: Vec<_> = sent.by_ref().take(20).collect();
    for sent in &others {
        nodes[0].send_offloaded(&nothing, sent).unwrap();
    }
    let received = settle(&cluster, &mut nodes).remove(1);
    others.retain(|sent| !received.contains(sent));
    assert!(others.is_empty() && received.len() == 21, "{} frames", received.len());
    let counters = nodes[1].counters();
    assert_eq!((counters.rendezvous_failed, counters.rendezvous_received), (24, 21));
    assert_eq!(nodes[0].counters().rendezvous_timed_out, 24);
    // That the late frames could not be fetched is no reason to send no more requests.
    for sent in sent.take(64) {
        nodes[0].send_offloaded(&nothing, &sent).unwrap();
        assert!(settle(&cluster, &mut nodes).remove(1) == [sent]);
    }
    assert_eq!(nodes[1].counters().rendezvous_received, 85);
}

/// The kernel driver sends such frames.
#[test]
fn rest_of_longest_frame_is_fetched() {
    let text = "1x1x1x2x1x1";
    let cluster = Cluster::with_memory(text, FETCHING);
    let mut nodes = splitting(&cluster, text);
    let (origin, to) = (nodes[0].coords(), nodes[1].mac());
    drop(nodes.remove(0));
    let mut packets = Packets::open(
        cluster.device(0),
        &PacketConfig {
            share: REST_MAX,
            gpid: Group::Kernel.gpid(),
            ..PacketConfig::new(TniId::ALL[0])
        },
    )
    .unwrap();
    let metadata = Metadata { checksum: Some((14, 16)), ..Metadata::default() };
    let says = Capabilities { offload: true, rendezvous: true, split: true, more_queues: 0 };
    let shape: Shape = text.parse().unwrap();
    let target = route(&shape, origin, nodes[0].coords(), TniId::ALL[0], 0).unwrap();
    for (id, len) in [(1, REST_MAX), (2, 1), (3, REST_MAX)] {
        let sent = frame(origin, to, HEAD + len, id);
        packets.share().unwrap().write(0, &sent[HEAD..]);
        let request = Request {
            origin,
            id: id as u32,
            head: HEAD as u16,
            len: len as u32,
            sum: 0,
            metadata: metadata.emit(),
            place: packets.share_at(0).unwrap(),
        };
        let (header, body) = Message::Request(request).emit(origin, says);
        packets.send(&target, &[&header, &body, &sent[..HEAD]], 0).unwrap();
        cluster.settle();
        let mut buf = vec![0; 2000];
        let got = (0..10).find_map(|_| {
            let got = nodes[0].recv_with(&mut buf, |said, frame| (*said, whole(&frame)));
            cluster.settle();
            got
        });
        let counters = nodes[0].counters();
        assert!(got == Some((metadata, sent)), "{len} bytes, {counters:?}");
        while packets.poll_sent().is_some() {}
    }
}

#[test]
fn fetched_memory_is_private_to_its_pair() {
    let text = "3x1x1x1x1x1";
    let cluster = Cluster::with_memory(text, FETCHING);
    let mut nodes = fetching(&cluster, text);
    let shared = nodes[0].packets().share_at(0).unwrap();
    // A queue of another group, on a node that is neither of the two.
    let device = cluster.device(2);
    let mut cq = Cq::open(device, &CqConfig::new(TniId::ALL[0], CqId::ALL[1])).unwrap();
    let memory = device.platform().alloc_dma(4096, 4096).unwrap();
    let range = [MemoryRange::of(&memory)];
    let own = cq.register(&range, PageSize::Size4K, Access::ReadWrite, None).unwrap();
    let target = Target::new(nodes[0].coords(), TniId::ALL[0]);
    for stag in [0, 1] {
        let there = shared.with_stag(stag);
        for order in
            [Order::get(target, there, own.at(0), 64), Order::put(target, there, own.at(0), 64)]
        {
            cq.post_and_ring(&order, 0).unwrap();
            cluster.settle();
            let sent = cq.poll_tcq().map(|done| done.rcode);
            let code = cq.poll_mrq().map(|notice| notice.word0().rcode());
            assert_eq!((sent, code), (Some(Rcode::SUCCESS), Some(Rcode::GPID)), "{order:?}");
        }
    }
}

#[test]
fn sleeper_gets_frames_and_replies() {
    let text = "1x1x1x2x1x1";
    let cluster = Cluster::new(text);
    let mut nodes = open_all(&cluster, text, 1500);
    assert!(!nodes[1].wait(100_000));
    let sent = frame(nodes[0].coords(), nodes[1].mac(), 100, 1);
    nodes[0].send(&sent).unwrap();
    nodes[0].flush();
    assert!(nodes[1].wait(1_000_000_000));
    assert_eq!(receive(&mut nodes[1]), [sent]);
    assert!(nodes[0].drain(1_000_000_000));
}

#[test]
fn broadcasts_pass_around_deaf_nodes() {
    // In a ring of four, node 2 is behind node 1, which has a device and no link.
    let text = "4x1x1x1x1x1";
    let cluster = Cluster::new(text);
    let packets =
        PacketConfig { rx_buffers: 64, tx_buffers: 64, ..PacketConfig::new(TniId::ALL[0]) };
    let open = |rank| {
        let config = Config { acknowledge: true, ..config(text, 9000) };
        Link::open(cluster.device(rank), config, &packets).unwrap()
    };
    let mut nodes = vec![open(0), open(2), open(3)];
    let from = nodes[0].coords();
    let sent = [1, 2, 3].map(|seed| frame(from, addr::BROADCAST, 5000, seed));
    nodes[0].send(&sent[0]).unwrap();
    let received = settle(&cluster, &mut nodes);
    assert_eq!(received, [vec![], vec![], vec![sent[0].clone()]]);
    assert!(!nodes[0].is_settled());
    // It takes a while to find out.
    assert!(!nodes[0].wait(200_000_000));
    let received = settle(&cluster, &mut nodes);
    assert_eq!(received, [vec![], vec![sent[0].clone()], vec![]]);
    assert!(nodes[0].is_settled());
    // From then on it is known that the node does not listen, until it does.
    nodes[0].send(&sent[1]).unwrap();
    let received = settle(&cluster, &mut nodes);
    assert_eq!(received, [vec![], vec![sent[1].clone()], vec![sent[1].clone()]]);
    nodes.push(open(1));
    for _ in 0..2 {
        nodes[0].send(&sent[2]).unwrap();
        let received = settle(&cluster, &mut nodes);
        let once = vec![sent[2].clone()];
        assert_eq!(received, [vec![], once.clone(), once.clone(), once]);
    }
    // The last frame came through the node that listens now, and by no other way.
    assert_eq!(nodes[1].counters().duplicates, 3, "three fragments of the frame before it");
    assert!(nodes[0].is_settled());
}

#[test]
fn frames_go_round_dead_links() {
    let text = "3x1x1x2x3x2";
    let cluster = Cluster::new(text);
    let mut nodes = open_all(&cluster, text, 9000);
    // Node 0 keeps only its links on C, B+ and X-.
    for port in [0, 2, 5] {
        cluster.set_link(0, port, false);
    }
    for n in 1..nodes.len() {
        let (a, b) = (nodes[0].coords(), nodes[n].coords());
        let there = frame(a, addr::mac(b), 4000, n as u64);
        let back = frame(b, addr::mac(a), 1514, n as u64);
        nodes[0].send(&there).unwrap();
        nodes[n].send(&back).unwrap();
        let received = settle(&cluster, &mut nodes);
        assert_eq!(received[n], [there], "to {b}");
        assert_eq!(received[0], [back], "from {b}");
    }
    assert!(nodes[0].counters().rerouted > 0);
    assert!(nodes.iter().all(|node| node.counters().lost == 0));
    // Permanently cut off.
    for port in [1, 3, 4] {
        cluster.set_link(0, port, false);
    }
    let (a, b) = (nodes[0].coords(), nodes[1].mac());
    nodes[0].send(&frame(a, b, 100, 1)).unwrap();
    let received = settle(&cluster, &mut nodes);
    assert!(received.iter().all(Vec::is_empty));
    assert_eq!(nodes[0].counters().lost, 1);
    // And back; the first way is tried again after a while.
    for port in 0..6 {
        cluster.set_link(0, port, true);
    }
    cluster.pass(2_000_000_000);
    let before = nodes[0].counters().rerouted;
    nodes[0].send(&frame(a, b, 100, 2)).unwrap();
    assert_eq!(settle(&cluster, &mut nodes)[1].len(), 1);
    assert_eq!(nodes[0].counters().rerouted, before);
}

#[test]
fn dead_board_is_reported_and_avoided() {
    let text = "2x1x1x2x3x2";
    let shape: Shape = text.parse().unwrap();
    let cluster = Cluster::new(text);
    let mut nodes = open_all(&cluster, text, 1500);
    let all: Vec<_> = shape.iter().collect();
    let second = 1_000_000_000;
    let quiet = |node: &Node| node.health().is_quiet(u64::MAX - 1);
    // As long as nothing fails, no node sends news.
    for _ in 0..3 {
        cluster.pass(second);
        settle(&cluster, &mut nodes);
    }
    assert!(nodes.iter().all(quiet));
    let dead = [8, 9];
    dead.iter().for_each(|rank| cluster.set_node(*rank, false));
    // The neighbours of the dead nodes notice when they send to them, and notify the others.
    for (n, node) in nodes.iter_mut().enumerate().filter(|(n, _)| !dead.contains(&(*n as u32))) {
        for to in dead.map(|rank| all[rank as usize]) {
            node.send(&frame(all[n], addr::mac(to), 100, 1)).unwrap();
        }
    }
    for _ in 0..4 {
        settle(&cluster, &mut nodes);
        cluster.pass(second);
    }
    let alive: Vec<_> = (0..24).filter(|n| !dead.contains(&(*n as u32))).collect();
    let now_ns = |node: &mut Node| node.packets().device().platform().now_ns();
    for &n in &alive {
        let now_ns = now_ns(&mut nodes[n]);
        let cut_off = |to: &Coords| nodes[n].health().is_cut_off(*to, now_ns);
        let found: Vec<_> = all.iter().filter(|to| cut_off(to)).collect();
        assert_eq!(found, [&all[8], &all[9]], "what {} knows", all[n]);
    }
    // From now on nothing meets it.
    let before: u64 = nodes.iter().map(|node| node.counters().rerouted).sum();
    for &n in &alive {
        for &to in alive.iter().filter(|to| **to != n) {
            nodes[n].send(&frame(all[n], addr::mac(all[to]), 100, n as u64)).unwrap();
        }
    }
    let received = settle(&cluster, &mut nodes);
    assert!(alive.iter().all(|n| received[*n].len() == alive.len() - 1));
    assert_eq!(nodes.iter().map(|node| node.counters().rerouted).sum::<u64>(), before);
    assert!(nodes.iter().map(|node| node.counters().avoided).sum::<u64>() > 0);
    // The nodes are repaired: their neighbours notice that by themselves, and report it.
    dead.iter().for_each(|rank| cluster.set_node(*rank, true));
    for _ in 0..6 {
        settle(&cluster, &mut nodes);
        cluster.pass(second);
    }
    for node in &mut nodes {
        let now_ns = now_ns(node);
        assert_eq!(node.health().iter(now_ns).count(), 0, "what {} knows", node.coords());
    }
}

#[test]
fn node_that_loses_a_packet_reports_it() {
    let text = "2x1x1x2x3x2";
    let shape: Shape = text.parse().unwrap();
    let cluster = Cluster::new(text);
    let mut nodes = open_all(&cluster, text, 1500);
    // On the default path from the first node to the last, and neither of both.
    let (at, port) = (Coords::new(0, 0, 0, 0, 2, 1), Port::A);
    cluster.set_link(shape.node_id(at).unwrap().0, port.index(), false);
    let mut user = cluster.endpoint(0, 1, 0);
    let target = cluster.endpoint(23, 1, 0);
    let put = Order::put(target.target(), target.at(0), user.at(0), 8);
    user.cq.post_and_ring(&put, 0).unwrap();
    for _ in 0..4 {
        settle(&cluster, &mut nodes);
        cluster.pass(1_000_000_000);
    }
    let last = nodes[23].coords();
    for node in &mut nodes {
        let now_ns = node.packets().device().platform().now_ns();
        assert!(node.health().is_dead(at, port, now_ns), "what {} knows", node.coords());
        if node.coords() == user.node {
            assert_ne!(node.health().path(last, now_ns), last.default_path());
        }
    }
    // The news is not repeated once the link works and nothing is lost there.
    cluster.set_link(shape.node_id(at).unwrap().0, port.index(), true);
    for _ in 0..6 {
        settle(&cluster, &mut nodes);
        cluster.pass(1_000_000_000);
    }
    for node in &mut nodes {
        let now_ns = node.packets().device().platform().now_ns();
        assert_eq!(node.health().iter(now_ns).count(), 0, "what {} knows", node.coords());
    }
}

prop_compose! {
    /// A message that resembles those about frames to be fetched, from node 2 or in the name of
    /// node 0.
    fn hostile()(
        kind in prop_oneof![Just(0x14u8), Just(0x15), Just(0x16), Just(0x12), any::<u8>()],
        flags in any::<u8>(),
        total in prop_oneof![Just(22u16), Just(9022), Just(u16::MAX), any::<u16>()],
        id in prop_oneof![Just(0u32), any::<u32>()],
        sum in prop_oneof![Just(u32::MAX), any::<u32>()],
        honest in any::<bool>(),
        body in any::<[u8; 16]>(),
        rest in prop_oneof![Just(1u32), Just(1 << 18), any::<u32>()],
        head in prop_oneof![Just(256u16), 0u16..600],
    ) -> Vec<u8> {
        let origin = addr::pack(Coords::new(if honest { 2 } else { 0 }, 0, 0, 0, 0, 0));
        let length = match kind {
            0x14 => 16u16,
            0x16 => 20 + head,
            _ => 0,
        };
        let total = if matches!(kind, 0x15 | 0x16) { 0 } else { total };
        let sum = if matches!(kind, 0x15 | 0x16) { 0 } else { sum };
        let mut packet = vec![kind, flags];
        packet.extend([total, 0, length].iter().flat_map(|word| word.to_be_bytes()));
        packet.extend([id, sum, origin].iter().flat_map(|word| word.to_be_bytes()));
        packet.extend(body);
        if kind == 0x16 {
            packet.extend(rest.to_be_bytes());
            packet.extend(vec![2; head.into()]);
        }
        packet
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Regardless of what a third node sends, frames between two nodes that fetch from each other
    /// are correct, and the two keep working.
    #[test]
    fn hostile_node_does_not_block_fetches(
        packets in proptest::collection::vec((hostile(), any::<bool>()), 1..60),
        split in any::<bool>(),
    ) {
        let text = "3x1x1x1x1x1";
        let cluster = Cluster::with_memory(text, FETCHING);
        let devices = [0, 1].map(|rank| cluster.device(rank).clone());
        let mut nodes = fetching_by(&cluster, text, devices, split);
        let (from, to) = (nodes[0].coords(), nodes[1].mac());
        let shape: Shape = text.parse().unwrap();
        let mut third = Packets::open(cluster.device(2), &PacketConfig {
            share: 1 << 16,
            gpid: Group::Kernel.gpid(),
            ..PacketConfig::new(TniId::ALL[0])
        }).unwrap();
        let place = third.share_at(0).unwrap();
        let mut sent = Vec::new();
        let mut received = Vec::new();
        for (n, (mut packet, aside)) in packets.into_iter().enumerate() {
            // Some refer to existing memory.
            if aside {
                packet[28..36].copy_from_slice(&place.0.to_be_bytes());
            }
            let hostile = cluster.device(2).coords();
            let target = route(&shape, hostile, nodes[1].coords(), TniId::ALL[0], 0);
            third.send(&target.unwrap(), &[&packet], 0).unwrap();
            let next = frame(from, to, 9014, n as u64);
            if nodes[0].send_offloaded(&Metadata::default(), &next).is_ok() {
                sent.push(next);
            }
            received.extend(settle(&cluster, &mut nodes).remove(1));
            while third.poll_sent().is_some() {}
        }
        received.retain(|frame| frame[6..12] == addr::mac(from));
        prop_assert!(received == sent, "{} frames of {}", received.len(), sent.len());
        prop_assert!(!sent.is_empty());
        prop_assert!(sent.len() == nodes[0].counters().rendezvous_sent as usize);
        prop_assert!(!nodes[1].is_fetching());
    }

    /// As long as no node is cut off, each node gets one copy, no matter which links are down.
    #[test]
    fn broadcasts_reach_nodes_with_links_down(
        down in proptest::collection::vec((0u32..12, 0usize..4), 0..6),
        origin in 0usize..12,
        len in prop_oneof![Just(60usize), Just(3000)],
    ) {
        let text = "1x1x1x2x3x2";
        let cluster = Cluster::new(text);
        let mut nodes = open_all(&cluster, text, 9000);
        for (rank, port) in down {
            cluster.set_link(rank, port, false);
        }
        let sent = frame(nodes[origin].coords(), addr::BROADCAST, len, 5);
        nodes[origin].send(&sent).unwrap();
        let received = settle(&cluster, &mut nodes);
        let lost: u64 = nodes.iter().map(|node| node.counters().lost).sum();
        for (n, frames) in received.iter().enumerate() {
            // Some pairs of nodes have no way between them that the device knows, even though they
            // are connected. Then other nodes take over the nodes behind, and one edge is lost.
            let expected = usize::from(n != origin);
            prop_assert!(frames.len() == expected || (lost > 0 && frames.is_empty()), "{n}");
            prop_assert!(frames.iter().all(|frame| *frame == sent));
        }
        if lost == 0 {
            prop_assert_eq!(received.iter().flatten().count(), 11);
        }
    }
}

#[test]
fn broadcast_skips_absent_nodes() {
    let text = "3x1x1x2x3x2";
    let shape: Shape = text.parse().unwrap();
    let machine = Arc::new(Machine::new(tofu_tests::machine(text.parse().unwrap())).unwrap());
    let absent = |rank: u32| rank % 3 == 1;
    let mut nodes: Vec<_> = (0..shape.nodes())
        .filter(|rank| !absent(*rank))
        .map(|rank| {
            let platform =
                InProcess::attach(&machine, shape.coords(NodeId(rank)).unwrap(), 4 << 20).unwrap();
            open(&Device::probe(platform).unwrap(), text, 1500)
        })
        .collect();
    let sent = frame(nodes[0].coords(), addr::BROADCAST, 200, 1);
    nodes[0].send(&sent).unwrap();
    let mut received = vec![0; nodes.len()];
    for _ in 0..60 {
        for (node, count) in nodes.iter_mut().zip(&mut received) {
            node.flush();
            machine.run_pending();
            *count += receive(node).len();
        }
    }
    assert_eq!(received[0], 0);
    assert!(received[1..].iter().all(|count| *count == 1), "{received:?}");
    // To one that is not there.
    let to = addr::mac(shape.coords(NodeId(1)).unwrap());
    let before = nodes[0].counters().lost;
    let alone = frame(nodes[0].coords(), to, 100, 1);
    nodes[0].send(&alone).unwrap();
    nodes[0].flush();
    machine.run_pending();
    nodes[0].flush();
    assert_eq!(nodes[0].counters().lost, before + 1);
}

#[test]
fn rdma_goes_on_alongside() {
    let text = "1x1x1x2x1x1";
    let cluster = Cluster::new(text);
    let mut nodes = open_all(&cluster, text, 9000);
    let mut user = cluster.endpoint(0, 0, 0);
    let target = cluster.endpoint(1, 0, 0);
    let (a, b) = (nodes[0].coords(), nodes[1].mac());
    for round in 0..50 {
        user.fill(0, &pattern(round, 30_000));
        let put = Order::put(target.target(), target.at(0), user.at(0), 30_000);
        user.cq.post_and_ring(&put, 0).unwrap();
        let sent = frame(a, b, 9014, round);
        nodes[0].send(&sent).unwrap();
        let received = settle(&cluster, &mut nodes);
        assert_eq!(received[1], [sent]);
        assert_eq!(user.complete().rcode, Rcode::SUCCESS);
        assert_eq!(target.bytes(0, 30_000), pattern(round, 30_000));
    }
}

#[test]
fn mistakes_are_told() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    let device = cluster.device(11);
    let open = |text, mtu, tx_buffers| {
        let packets = PacketConfig { tx_buffers, ..PacketConfig::new(TniId::ALL[0]) };
        Link::open(device, config(text, mtu), &packets).unwrap_err()
    };
    let error = open("1x1x1x1x1x1", 1500, 64);
    assert_eq!(error.to_string(), "node (0,0,0,1,2,1) is not in the machine");
    let error = open("1x1x1x2x3x2", 9000, 19);
    assert_eq!(error.to_string(), "this MTU needs 20 buffers for sending at least");
    let error = open("1x1x1x2x3x2", 9000, 2000);
    assert_eq!(error.to_string(), "1 to 1024 packet buffers, not 2000");
}
