//! A TCP/IP stack in this process: connections to nodes without any rights on the host.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use smoltcp::iface::{self, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, IpCidr,
    Ipv4Packet,
};
use tofu_abi::Coords;
use tofu_ipotofu::addr;

use crate::datagrams::{self, Flow};
use crate::io_node::{Config, Out, Tenant, Waker, watched};
use crate::prefix;

/// Connections at a time; each has two buffers. Also the number of flows of datagrams.
const MOST_STREAMS: usize = 256;
/// Headers of IPv4 and of UDP.
const UDP_HEADERS: u16 = 20 + 8;
/// Bytes of each of them.
const BUFFER: usize = 128 << 10;
/// Frames that wait for the stack; more are lost.
const MOST_FRAMES: usize = 1024;
/// The time limit for a node to answer a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// The time for which an open connection may leave data unacknowledged.
const STALL: Duration = Duration::from_secs(60);
/// The interval at which an idle connection is checked.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// The time limit for a connection whose client has gone to end.
const LINGER: Duration = Duration::from_secs(60);
/// Longer than the stack itself takes to give up.
const ANSWER: Duration = Duration::from_secs(7);
/// First port of those that connections are made from (RFC 6335).
const FIRST_PORT: u16 = 49152;

/// The reason why there is no connection to a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nothing listens at the port.
    #[error("the node refuses connections at port {0}")]
    Refused(u16),
    /// The node does not say anything.
    #[error(
        "the node does not answer within {} s; does a program with IP over Tofu run there?",
        CONNECT.as_secs()
    )]
    Silent,
    /// There are too many already.
    #[error("{MOST_STREAMS} connections are open, the maximum")]
    TooMany,
    /// No connection can be made to port 0.
    #[error("connections to port 0 are not possible")]
    Port,
    /// The I/O node has ended.
    #[error("the gateway has ended")]
    Gone,
}

enum Command {
    Connect {
        to: Ipv4Addr,
        port: u16,
        reply: SyncSender<Result<u64, ConnectError>>,
    },
    Splice {
        id: u64,
        client: UnixStream,
    },
    Drop {
        id: u64,
    },
    Datagrams {
        to: Ipv4Addr,
        port: u16,
        client: UnixStream,
        reply: SyncSender<Result<(), ConnectError>>,
    },
}

/// Asks a [`Stack`] for connections, from any thread.
#[derive(Clone)]
pub struct Connector {
    commands: Sender<Command>,
    waker: Waker,
    machine: u8,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl Connector {
    fn say(&self, command: Command) -> Result<(), ConnectError> {
        self.commands.send(command).map_err(|_| ConnectError::Gone)?;
        self.waker.wake();
        Ok(())
    }

    /// Opens a TCP connection to a port of a node, which takes as long as the node takes to answer,
    /// some seconds at most.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn connect(&self, node: Coords, port: u16) -> Result<Connected, ConnectError> {
        if port == 0 {
            return Err(ConnectError::Port);
        }
        let (reply, answer) = sync_channel(1);
        let to = prefix::node_address(self.machine, node);
        self.say(Command::Connect { to, port, reply })?;
        match answer.recv_timeout(ANSWER) {
            Ok(Ok(id)) => Ok(Connected { connector: self.clone(), id: Some(id) }),
            Ok(Err(error)) => Err(error),
            Err(RecvTimeoutError::Timeout) => Err(ConnectError::Silent),
            Err(RecvTimeoutError::Disconnected) => Err(ConnectError::Gone),
        }
    }

    /// Joins a stream with a UDP port of a node, from a port of the gateway that is used for this
    /// alone. On the stream each datagram, of up to MTU - 28 bytes, comes after its length in two
    /// bytes, big endian; longer ones are lost. Nothing is written to the stream before something
    /// has come from it. It ends when the client closes it.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`]. It is not known whether anything listens there.
    pub fn datagrams(
        &self,
        node: Coords,
        port: u16,
        client: UnixStream,
    ) -> Result<(), ConnectError> {
        if port == 0 {
            return Err(ConnectError::Port);
        }
        client.set_nonblocking(true).map_err(|_| ConnectError::Gone)?;
        let (reply, answer) = sync_channel(1);
        let to = prefix::node_address(self.machine, node);
        self.say(Command::Datagrams { to, port, client, reply })?;
        answer.recv_timeout(ANSWER).map_err(|_| ConnectError::Gone)?
    }
}

/// A connection to a node that is open. Dropping it ends it.
#[derive(Debug)]
pub struct Connected {
    connector: Connector,
    id: Option<u64>,
}

impl Connected {
    /// Joins the connection with a stream, for both directions and to the end of both.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Gone`].
    pub fn splice(mut self, client: UnixStream) -> Result<(), ConnectError> {
        client.set_nonblocking(true).map_err(|_| ConnectError::Gone)?;
        let Some(id) = self.id.take() else { return Err(ConnectError::Gone) };
        self.connector.say(Command::Splice { id, client })
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            // If the stack has ended, so has the connection.
            let _ = self.connector.say(Command::Drop { id });
        }
    }
}

/// The state of a connection of the stack.
enum State {
    /// The node has not answered yet at this port.
    Connecting { port: u16, since: Instant, reply: SyncSender<Result<u64, ConnectError>> },
    /// It has answered, and the caller has not given a stream to join it with yet.
    Waiting,
    /// It is joined with this stream.
    Spliced(UnixStream),
    /// The client has gone; its last data is on its way.
    Ending { until: Instant },
}

struct Stream {
    id: u64,
    socket: SocketHandle,
    state: State,
    /// The client sends no more.
    input_ended: bool,
    /// The client knows that the node sends no more.
    output_ended: bool,
    /// The client took less data than there was.
    blocked: bool,
}

/// The stack. It is a [`Tenant`] of an I/O node.
pub struct Stack {
    device: Queue,
    interface: Interface,
    sockets: SocketSet<'static>,
    streams: Vec<Stream>,
    flows: Vec<(SocketHandle, Flow)>,
    commands: Receiver<Command>,
    start: Instant,
    next_id: u64,
    next_port: u16,
    machine: u8,
    /// Its own address if it shares the node with others; otherwise all frames are its own.
    shared: Option<Ipv4Addr>,
    address: Ipv4Addr,
    mac: EthernetAddress,
    /// In bytes.
    longest_datagram: usize,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack").field("streams", &self.streams.len()).finish_non_exhaustive()
    }
}

impl Stack {
    /// A stack for the I/O node `at`, which `waker` wakes up.
    ///
    /// It has the node's addresses. With `shared`, another tenant has these, such as the host's
    /// kernel behind a [`Tap`](crate::Tap). The stack then has the address of the node's other
    /// side, and takes only frames for that.
    pub fn new(config: &Config, at: Coords, waker: Waker, shared: bool) -> (Self, Connector) {
        let mac = EthernetAddress(addr::mac(at));
        let max_frame = usize::from(config.mtu) + tofu_ipotofu::wire::ETHERNET_HEADER;
        let mut device = Queue { frames: VecDeque::new(), max_frame, buffer: vec![0; max_frame] };
        let mut settings = iface::Config::new(mac.into());
        settings.random_seed = seed();
        let mut interface = Interface::new(
            settings,
            &mut Port { queue: &mut device, out: None },
            StackInstant::ZERO,
        );
        let machine = config.machine;
        let address = match shared {
            true => prefix::other_side(machine, at),
            false => prefix::node_address(machine, at),
        };
        interface.update_ip_addrs(|list| {
            // All nodes of all machines are neighbours. There is room for more than these.
            let _ = list.push(IpCidr::new(address.into(), 8));
            if !shared {
                let v6 = IpAddr::from(addr::ipv6(machine, at));
                let _ = list.push(IpCidr::new(v6.into(), addr::IPV6_PREFIX));
            }
        });
        let (commands, receiver) = channel();
        let stack = Self {
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            streams: Vec::new(),
            flows: Vec::new(),
            commands: receiver,
            start: Instant::now(),
            next_id: 0,
            next_port: FIRST_PORT + (seed() % u64::from(u16::MAX - FIRST_PORT)) as u16,
            machine,
            shared: shared.then_some(address),
            address,
            mac,
            longest_datagram: config.mtu.saturating_sub(UDP_HEADERS).into(),
        };
        (stack, Connector { commands, waker, machine })
    }

    fn now(&self) -> StackInstant {
        StackInstant::from_micros(self.start.elapsed().as_micros() as i64)
    }

    fn connect(&mut self, to: Ipv4Addr, port: u16) -> Result<SocketHandle, ConnectError> {
        if self.streams.len() >= MOST_STREAMS {
            return Err(ConnectError::TooMany);
        }
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.set_timeout(Some(CONNECT.into()));
        let local = self.port();
        // The stack sends at most one address query per second, so the answer is given in advance.
        self.introduce(to);
        socket
            .connect(self.interface.context(), (to, port), local)
            .map_err(|_| ConnectError::Port)?;
        Ok(self.sockets.add(socket))
    }

    /// The next port to send from.
    fn port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
        port
    }

    fn datagrams(
        &mut self,
        to: Ipv4Addr,
        port: u16,
        client: UnixStream,
    ) -> Result<(), ConnectError> {
        if self.flows.len() >= MOST_STREAMS {
            return Err(ConnectError::TooMany);
        }
        let mut socket = datagrams::socket();
        socket.bind((self.address, self.port())).map_err(|_| ConnectError::Port)?;
        self.introduce(to);
        let flow = Flow::new(client, (to, port).into(), self.longest_datagram);
        self.flows.push((self.sockets.add(socket), flow));
        Ok(())
    }

    /// Gives the stack the hardware address for a node's address.
    fn introduce(&mut self, node: Ipv4Addr) {
        let Some((machine, at)) = addr::node_of_ipv4(node.octets()) else { return };
        if machine != self.machine {
            return;
        }
        let arp = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: EthernetAddress(addr::mac(at)),
            source_protocol_addr: node,
            target_hardware_addr: self.mac,
            target_protocol_addr: self.address,
        };
        let header = EthernetFrame::<&[u8]>::header_len();
        let mut frame = vec![0; header + arp.buffer_len()];
        let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
        ethernet.set_src_addr(EthernetAddress(addr::mac(at)));
        ethernet.set_dst_addr(self.mac);
        ethernet.set_ethertype(EthernetProtocol::Arp);
        arp.emit(&mut ArpPacket::new_unchecked(ethernet.payload_mut()));
        self.device.frames.push_back(frame);
    }

    fn obey(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Connect { to, port, reply } => match self.connect(to, port) {
                    Ok(socket) => {
                        let id = self.next_id;
                        self.next_id += 1;
                        self.streams.push(Stream {
                            id,
                            socket,
                            state: State::Connecting { port, since: Instant::now(), reply },
                            input_ended: false,
                            output_ended: false,
                            blocked: false,
                        });
                    }
                    Err(error) => {
                        // The caller may have gone.
                        let _ = reply.try_send(Err(error));
                    }
                },
                Command::Datagrams { to, port, client, reply } => {
                    // The caller may have gone, and then the client ends.
                    let _ = reply.try_send(self.datagrams(to, port, client));
                }
                Command::Splice { id, client } => {
                    // If it has ended in the meantime, the client's connection ends too.
                    if let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) {
                        stream.state = State::Spliced(client);
                    }
                }
                Command::Drop { id } => {
                    if let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) {
                        self.sockets.get_mut::<tcp::Socket<'_>>(stream.socket).abort();
                        stream.state = State::Ending { until: Instant::now() };
                    }
                }
            }
        }
    }

    /// Moves all data that can be moved; returns true if the stack then has work to do.
    fn move_all(&mut self, ready: Option<&[PollFlags]>) -> bool {
        let mut ready = ready.map(|ready| ready.iter().copied());
        let mut moved = false;
        for stream in &mut self.streams {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(stream.socket);
            let watched = stream.watched(socket).is_some();
            // Connections that are new since then are handled, too.
            let events = match ready.as_mut().filter(|_| watched).map(|ready| ready.next()) {
                Some(Some(events)) => events,
                _ => PollFlags::IN | PollFlags::OUT,
            };
            moved |= stream.advance(socket, events);
        }
        let before = self.streams.len() + self.flows.len();
        let sockets = &mut self.sockets;
        self.flows.retain_mut(|(handle, flow)| {
            let events = match ready.as_mut().map(Iterator::next) {
                Some(Some(events)) => events,
                _ => PollFlags::IN | PollFlags::OUT,
            };
            let result = flow.advance(sockets.get_mut::<udp::Socket<'_>>(*handle), events);
            moved |= *result.as_ref().unwrap_or(&true);
            if result.is_err() {
                sockets.remove(*handle);
            }
            result.is_ok()
        });
        self.streams.retain(|stream| {
            let over = stream.is_over(sockets.get::<tcp::Socket<'_>>(stream.socket));
            if over {
                sockets.remove(stream.socket);
            }
            !over
        });
        moved || before != self.streams.len() + self.flows.len()
    }
}

/// A number that differs each time; the values that it seeds need not be secret.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

impl Stream {
    /// The client and what to wait for from it, if anything.
    fn watched(&self, socket: &tcp::Socket<'_>) -> Option<(&UnixStream, PollFlags)> {
        let State::Spliced(client) = &self.state else { return None };
        let mut flags = PollFlags::empty();
        if !self.input_ended && socket.can_send() {
            flags |= PollFlags::IN;
        }
        if self.blocked && socket.can_recv() {
            flags |= PollFlags::OUT;
        }
        // For a client without flags, its end would be reported again and again.
        (!flags.is_empty()).then_some((client, flags))
    }

    /// Moves bytes between client and node; returns true if the stack then has work to do.
    fn advance(&mut self, socket: &mut tcp::Socket<'_>, events: PollFlags) -> bool {
        match &mut self.state {
            State::Connecting { port, since, reply } => match socket.state() {
                tcp::State::SynSent | tcp::State::SynReceived => false,
                tcp::State::Established | tcp::State::CloseWait => {
                    socket.set_timeout(Some(STALL.into()));
                    socket.set_keep_alive(Some(KEEP_ALIVE.into()));
                    let told = reply.try_send(Ok(self.id)).is_ok();
                    self.state = State::Waiting;
                    if !told {
                        self.abort(socket);
                    }
                    true
                }
                // A node that refuses does so soon; on a silent one the stack gives up.
                _ => {
                    let refused = since.elapsed() < CONNECT;
                    let why =
                        if refused { ConnectError::Refused(*port) } else { ConnectError::Silent };
                    let _ = reply.try_send(Err(why));
                    self.abort(socket);
                    true
                }
            },
            State::Waiting => false,
            State::Ending { until } => {
                if Instant::now() >= *until && socket.is_open() {
                    socket.abort();
                    return true;
                }
                false
            }
            State::Spliced(_) => self.splice(socket, events),
        }
    }

    /// Moves bytes between a client and its node; returns true if the stack then has work to do.
    fn splice(&mut self, socket: &mut tcp::Socket<'_>, events: PollFlags) -> bool {
        let State::Spliced(client) = &self.state else { return false };
        let mut moved = false;
        let wants_in = events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        while wants_in && !self.input_ended && socket.can_send() {
            match socket.send(|buffer| receive(client, buffer)) {
                Ok(Ok(0)) => {
                    self.input_ended = true;
                    socket.close();
                    moved = true;
                }
                Ok(Ok(_)) => moved = true,
                Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(Err(_)) | Err(_) => {
                    self.abort(socket);
                    return true;
                }
            }
        }
        self.blocked = false;
        while socket.can_recv() {
            match socket.recv(|buffer| send(client, buffer)) {
                Ok(Ok(_)) => moved = true,
                Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    break;
                }
                Ok(Err(_)) | Err(_) => {
                    self.abort(socket);
                    return true;
                }
            }
        }
        // The node has sent everything, and all of it was passed on.
        if !socket.may_recv() && !socket.can_recv() && !self.output_ended {
            self.output_ended = true;
            // The client may have gone, which reading will show.
            let _ = client.shutdown(std::net::Shutdown::Write);
        }
        if self.input_ended && self.output_ended {
            self.state = State::Ending { until: Instant::now() + LINGER };
            moved = true;
        }
        moved
    }

    fn abort(&mut self, socket: &mut tcp::Socket<'_>) {
        socket.abort();
        self.state = State::Ending { until: Instant::now() };
    }

    /// Returns true if nothing is left to be done for it.
    fn is_over(&self, socket: &tcp::Socket<'_>) -> bool {
        // An aborted connection must still send its last packet as long as it has a remote end.
        let closed = match socket.state() {
            tcp::State::Closed => socket.remote_endpoint().is_none(),
            tcp::State::TimeWait => true,
            _ => false,
        };
        let unread = matches!(self.state, State::Spliced(_)) && socket.can_recv();
        let asked = matches!(self.state, State::Connecting { .. });
        closed && !unread && !asked
    }
}

fn receive(mut client: &UnixStream, buffer: &mut [u8]) -> (usize, io::Result<usize>) {
    let result = client.read(buffer);
    (*result.as_ref().unwrap_or(&0), result)
}

fn send(mut client: &UnixStream, buffer: &mut [u8]) -> (usize, io::Result<usize>) {
    let result = client.write(buffer);
    (*result.as_ref().unwrap_or(&0), result)
}

impl Tenant for Stack {
    fn frame(&mut self, frame: &[u8]) -> bool {
        let (mine, others) = match self.shared {
            None => (true, false),
            Some(own) => wanted(frame, own),
        };
        if mine && self.device.frames.len() < MOST_FRAMES {
            self.device.frames.push_back(frame.to_vec());
        }
        mine && !others
    }

    fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        for stream in &self.streams {
            let socket = self.sockets.get::<tcp::Socket<'_>>(stream.socket);
            fds.extend(stream.watched(socket).map(|(client, flags)| watched(client, flags)));
        }
        for (_, flow) in &self.flows {
            let (client, flags) = flow.watched();
            fds.push(watched(client, flags));
        }
    }

    fn work(&mut self, ready: &[PollFlags], out: &mut Out<'_>) -> Option<Duration> {
        // In the order of watch(), so before anything changes.
        self.move_all(Some(ready));
        self.obey();
        // Once more for the effects of the frames.
        for _ in 0..2 {
            let now = self.now();
            let Self { device, interface, sockets, .. } = self;
            interface.poll(now, &mut Port { queue: device, out: Some(out) }, sockets);
            if !self.move_all(None) {
                break;
            }
        }
        let now = self.now();
        let delay = self.interface.poll_delay(now, &self.sockets).map(Duration::from);
        let linger = self.streams.iter().filter_map(|stream| match stream.state {
            State::Ending { until } => Some(until.saturating_duration_since(Instant::now())),
            _ => None,
        });
        // Without room, the thread calls this again soon in any case.
        let delay = delay.filter(|delay| !delay.is_zero() || out.has_room());
        delay.into_iter().chain(linger).min()
    }
}

/// Returns whether a frame is for the owner of this address, and whether it is for others.
fn wanted(frame: &[u8], own: Ipv4Addr) -> (bool, bool) {
    let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return (false, true) };
    let asked = match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => {
            Ipv4Packet::new_checked(ethernet.payload()).is_ok_and(|packet| packet.dst_addr() == own)
        }
        EthernetProtocol::Arp => ArpPacket::new_checked(ethernet.payload())
            .is_ok_and(|arp| arp.target_protocol_addr() == own.octets()),
        _ => false,
    };
    (asked, !asked)
}

/// Frames for the stack.
struct Queue {
    frames: VecDeque<Vec<u8>>,
    max_frame: usize,
    buffer: Vec<u8>,
}

/// The stack's network device.
struct Port<'a, 'b> {
    queue: &'a mut Queue,
    out: Option<&'a mut Out<'b>>,
}

struct RxToken(Vec<u8>);

impl phy::RxToken for RxToken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct TxToken<'a, 'b> {
    buffer: &'a mut [u8],
    out: &'a mut Out<'b>,
}

impl phy::TxToken for TxToken<'_, '_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let frame = &mut self.buffer[..len];
        let result = f(frame);
        self.out.send(frame);
        result
    }
}

impl<'b> phy::Device for Port<'_, 'b> {
    type RxToken<'a>
        = RxToken
    where
        Self: 'a;
    type TxToken<'a>
        = TxToken<'a, 'b>
    where
        Self: 'a;

    fn receive(&mut self, _: StackInstant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        let out = self.out.as_deref_mut()?;
        let frame = self.queue.frames.pop_front()?;
        Some((RxToken(frame), TxToken { buffer: &mut self.queue.buffer, out }))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Self::TxToken<'_>> {
        let out = self.out.as_deref_mut()?;
        out.has_room().then_some(TxToken { buffer: &mut self.queue.buffer, out })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.queue.max_frame;
        // The device checks all packets end to end. But checksums that a kernel behind another
        // gateway has left to its network interface are checked nowhere else.
        capabilities.checksum.ipv4 = Checksum::Both;
        capabilities
    }
}
