//! Connections from this process to nodes: an I/O node with a stack, and nodes with servers.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use smoltcp::iface::{self, Interface, SocketHandle, SocketSet};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Address};
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, TniId};
use tofu_driver::{Device, PacketConfig};
use tofu_gateway::{Config, ConnectError, Connector, IoNode, Prepared, Stack};
use tofu_inproc::InProcess;
use tofu_ipotofu::{Link, StackDevice, addr};
use tofu_machine::{Machine, MachineConfig};

/// Sends back what it gets.
const ECHO: u16 = 7;
/// A port that accepts connections and never reads.
const STALL: u16 = 9;
/// Longest time for anything here, on a busy host.
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections that a server takes at a time at each port.
const PLACES: usize = 48;

/// A node with the two servers.
struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(machine: &Arc<Machine>, at: Coords) -> Self {
        let device = Device::probe(InProcess::attach(machine, at, 16 << 20).unwrap()).unwrap();
        let shape = machine.config().shape;
        let config = tofu_ipotofu::Config::new(shape);
        let packets =
            PacketConfig { rx_buffers: 512, tx_buffers: 512, ..PacketConfig::new(TniId::ALL[0]) };
        let link = Link::open(&device, config, &packets).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = thread::spawn(move || serve(link, at, &seen));
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

fn socket(sockets: &mut SocketSet<'_>) -> SocketHandle {
    let buffer = || tcp::SocketBuffer::new(vec![0; 16 << 10]);
    sockets.add(tcp::Socket::new(buffer(), buffer()))
}

fn serve(link: Link<InProcess>, at: Coords, stop: &AtomicBool) {
    let mut device = StackDevice::new(link);
    let config = iface::Config::new(EthernetAddress(addr::mac(at)).into());
    let mut interface = Interface::new(config, &mut device, Instant::ZERO);
    let own = IpCidr::new(Ipv4Address::from(addr::ipv4(0, at)).into(), 8);
    interface.update_ip_addrs(|list| list.push(own).unwrap());
    let mut sockets = SocketSet::new(Vec::new());
    let mut places = Vec::new();
    for port in [ECHO, STALL] {
        places.extend((0..PLACES).map(|_| (port, socket(&mut sockets))));
    }
    let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 1 << 17]);
    let datagrams = sockets.add(udp::Socket::new(buffer(), buffer()));
    sockets.get_mut::<udp::Socket<'_>>(datagrams).bind(ECHO).unwrap();
    let start = std::time::Instant::now();
    while !stop.load(SeqCst) {
        let now = Instant::from_micros(start.elapsed().as_micros() as i64);
        // Connections before anything listens would be refused.
        if places.iter().all(|(_, handle)| sockets.get::<tcp::Socket<'_>>(*handle).is_open()) {
            interface.poll(now, &mut device, &mut sockets);
        }
        for (port, handle) in &places {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(*handle);
            if !socket.is_open() {
                socket.listen(*port).unwrap();
            }
            if *port == STALL {
                continue;
            }
            while socket.can_recv() && socket.can_send() {
                let mut chunk = [0; 4096];
                let room = (socket.send_capacity() - socket.send_queue()).min(chunk.len());
                let n = socket.recv_slice(&mut chunk[..room]).unwrap();
                assert_eq!(socket.send_slice(&chunk[..n]), Ok(n));
            }
            if !socket.may_recv() && !socket.can_recv() && socket.may_send() {
                socket.close();
            }
        }
        let socket = sockets.get_mut::<udp::Socket<'_>>(datagrams);
        while let Ok((data, from)) = socket.recv() {
            let data = data.to_vec();
            socket.send_slice(&data, from.endpoint).unwrap();
        }
        interface.poll(now, &mut device, &mut sockets);
        device.link().wait(1_000_000);
    }
}

/// A machine of four nodes: an I/O node, two servers, and one without a program.
struct World {
    machine: Arc<Machine>,
    connector: Connector,
    shape: Shape,
    // Dropped before the servers, which it communicates with.
    _io_node: IoNode,
    _servers: [Server; 2],
}

impl World {
    fn new(shared: bool) -> Self {
        let shape: Shape = "1x1x1x2x1x2".parse().unwrap();
        let machine = Arc::new(Machine::new(MachineConfig::new(shape)).unwrap());
        machine.start().unwrap();
        let at = |index| shape.iter().nth(index).unwrap();
        let servers = [Server::start(&machine, at(1)), Server::start(&machine, at(2))];
        let config = Config::new(shape);
        let prepared = Prepared::new(&machine, at(0), &config).unwrap();
        let (stack, connector) = Stack::new(&config, at(0), prepared.waker(), shared);
        let io_node = prepared.start(vec![Box::new(stack)], || ()).unwrap();
        Self { machine, connector, shape, _io_node: io_node, _servers: servers }
    }

    fn at(&self, index: usize) -> Coords {
        self.shape.iter().nth(index).unwrap()
    }

    /// A stream to a port of a node.
    fn open(&self, node: usize, port: u16) -> UnixStream {
        let (here, there) = UnixStream::pair().unwrap();
        self.connector.connect(self.at(node), port).unwrap().splice(there).unwrap();
        here.set_read_timeout(Some(PATIENCE)).unwrap();
        here
    }
}

fn bytes(seed: u32, len: u32) -> Vec<u8> {
    (0..len).map(|n| (n.wrapping_mul(2_654_435_761 ^ seed) >> 13) as u8).collect()
}

/// Sends `sent`, closes that direction, and returns what comes back until the node closes the
/// other.
fn echo(stream: &UnixStream, sent: &[u8]) -> Vec<u8> {
    let mut back = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = stream;
            stream.write_all(sent).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        let mut stream = stream;
        stream.read_to_end(&mut back).unwrap();
    });
    back
}

#[test]
fn megabytes_there_and_back() {
    for shared in [false, true] {
        let world = World::new(shared);
        for node in [1, 2] {
            let sent = bytes(node as u32, 3_000_001);
            let back = echo(&world.open(node, ECHO), &sent);
            assert!(back == sent, "node {node}: {} of {} bytes", back.len(), sent.len());
        }
    }
}

#[test]
fn many_connections_at_once() {
    let world = World::new(false);
    thread::scope(|scope| {
        for n in 0..2 * PLACES {
            let world = &world;
            scope.spawn(move || {
                let sent = bytes(n as u32, 20_000 + n as u32);
                assert!(echo(&world.open(1 + n % 2, ECHO), &sent) == sent, "connection {n}");
            });
        }
    });
}

#[test]
fn stalled_stream_delays_no_other() {
    let world = World::new(false);
    // A node that does not read what this client sends without end.
    let unresponsive = world.open(1, STALL);
    unresponsive.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut sent = 0;
    while let Ok(n) = (&unresponsive).write(&[1; 65536]) {
        sent += n;
        assert!(sent < 64 << 20, "all of it is read");
    }
    // A client that sends without end, and never reads the answers.
    let stalled = world.open(1, ECHO);
    stalled.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    while (&stalled).write(&[2; 65536]).is_ok() {}
    // Another connection to the same node is served nevertheless.
    let sent = bytes(3, 500_000);
    assert!(echo(&world.open(1, ECHO), &sent) == sent);
    // When it reads at last, everything arrives.
    stalled.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    (&stalled).read_to_end(&mut back).unwrap();
    assert!(back.len() > 65536 && back.iter().all(|byte| *byte == 2));
}

#[test]
fn vanished_clients_leave_room() {
    let world = World::new(false);
    // More than a server or a stack has places for.
    for n in 0..300u32 {
        let mut stream = world.open(1, ECHO);
        stream.write_all(&bytes(n, 100)).unwrap();
        if n % 2 == 0 {
            stream.read_exact(&mut [0; 100]).unwrap();
        }
        drop(stream);
        // One that is never joined with anything.
        drop(world.connector.connect(world.at(2), ECHO).unwrap());
    }
    let sent = bytes(9, 1000);
    assert_eq!(echo(&world.open(1, ECHO), &sent), sent);
}

/// A stream of datagrams to a port of a node.
fn datagrams(world: &World, node: usize, port: u16) -> UnixStream {
    let (here, there) = UnixStream::pair().unwrap();
    world.connector.datagrams(world.at(node), port, there).unwrap();
    here.set_read_timeout(Some(PATIENCE)).unwrap();
    here
}

/// A datagram as it lies in a stream.
fn framed(data: &[u8]) -> Vec<u8> {
    [&(data.len() as u16).to_be_bytes()[..], data].concat()
}

/// The next datagram of a stream.
fn next(mut stream: &UnixStream) -> Vec<u8> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut data = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut data).unwrap();
    data
}

#[test]
fn datagrams_there_and_back() {
    for shared in [false, true] {
        let world = World::new(shared);
        let streams = [1, 2].map(|node| datagrams(&world, node, ECHO));
        // Both at the same time, with all lengths that fit into a packet.
        for length in [0, 1, 100, 1471, 1472] {
            let sent = [0, 1].map(|n| bytes(length + n, length));
            for (mut stream, sent) in streams.iter().zip(&sent) {
                // A datagram that is too long comes first, and is lost.
                stream.write_all(&framed(&[9; 1473])).unwrap();
                stream.write_all(&framed(sent)).unwrap();
            }
            for (stream, sent) in streams.iter().zip(&sent) {
                assert_eq!(next(stream), *sent, "{length} bytes");
            }
        }
    }
}

#[test]
fn flows_end_with_their_clients() {
    let world = World::new(false);
    let (here, there) = UnixStream::pair().unwrap();
    let port = world.connector.datagrams(world.at(1), 0, there).unwrap_err();
    assert_eq!(port, ConnectError::Port);
    drop(here);
    // More in turn than there can be at a time; they get no answers.
    for _ in 0..600 {
        let mut stream = datagrams(&world, 3, ECHO);
        stream.write_all(&framed(b"anybody?")).unwrap();
    }
    let mut stream = datagrams(&world, 1, ECHO);
    stream.write_all(&framed(b"anyone?")).unwrap();
    assert_eq!(next(&stream), b"anyone?");
    // This many at a time.
    let mut open: Vec<_> = Vec::new();
    let why = loop {
        let (here, there) = UnixStream::pair().unwrap();
        match world.connector.datagrams(world.at(1), ECHO, there) {
            Ok(()) => open.push(here),
            Err(why) => break why,
        }
        assert!(open.len() <= 256);
    };
    assert_eq!(why, ConnectError::TooMany);
    drop(open);
}

#[test]
fn failed_connections_have_reasons() {
    let world = World::new(false);
    let refused = world.connector.connect(world.at(1), 12345).unwrap_err();
    assert_eq!(refused, ConnectError::Refused(12345));
    assert_eq!(world.connector.connect(world.at(1), 0).unwrap_err(), ConnectError::Port);
    // A place without a device.
    let silent = world.connector.connect(world.at(3), ECHO).unwrap_err();
    assert_eq!(silent, ConnectError::Silent);
    let World { connector, shape, _io_node, _servers, .. } = world;
    drop(_io_node);
    let gone = connector.connect(shape.iter().nth(1).unwrap(), ECHO).unwrap_err();
    assert_eq!(gone, ConnectError::Gone);
}

#[test]
fn garbage_from_a_node_changes_nothing() {
    for shared in [false, true] {
        let world = World::new(shared);
        let at = world.at(3);
        let device = Device::probe(InProcess::attach(&world.machine, at, 16 << 20).unwrap());
        let config = tofu_ipotofu::Config::new(world.shape);
        let mut link =
            Link::open(&device.unwrap(), config, &PacketConfig::new(TniId::ALL[0])).unwrap();
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let (world, ended) = (&world, &ended);
            scope.spawn(move || {
                for n in 0..10 {
                    let sent = bytes(n, 200_000);
                    assert!(echo(&world.open(1, ECHO), &sent) == sent, "connection {n}");
                }
                ended.store(true, SeqCst);
            });
            let mut seed = 1;
            while !ended.load(SeqCst) {
                seed += 1;
                if link.send(&garbage(seed, addr::mac(at), addr::mac(world.at(0)))).is_err() {
                    link.wait_room(1_000_000);
                }
            }
        });
    }
}

/// An almost valid frame: IPv4, ARP, IPv6 or other, with the gateway's addresses or others.
fn garbage(seed: u32, from: addr::Mac, gateway: addr::Mac) -> Vec<u8> {
    let kinds = [[8, 0], [8, 6], [0x86, 0xdd], [0x88, 0xb5]];
    let to = if seed.is_multiple_of(5) { addr::BROADCAST } else { gateway };
    let mut frame = [&to[..], &from, &kinds[seed as usize % 4]].concat();
    let mut body = bytes(seed, 1 + seed % 1400);
    // Fields that let it come further.
    let starts: [&[u8]; 4] = [
        &[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 37, 10, 0, 0, 1],
        &[0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 9, 10, 0, 0, 5, 2, 0, 0, 0, 0, 0, 10, 0, 0, 1],
        &[0x60, 0, 0, 0, 0, 24, 58, 255],
        &[],
    ];
    let start = starts[seed as usize % 4];
    let n = start.len().min(body.len()).min(seed as usize / 4 % 40);
    body[..n].copy_from_slice(&start[..n]);
    frame.extend(body);
    frame
}
