//! IP between the nodes: the TCP/IP stack smoltcp over system packets.
//!
//! Command line: `mtu=N` (1500) and `machine=N` (0) are those of IP over Tofu, see
//! [`tofu_ipotofu::Config`], `verify=1` checks IP's checksums in addition to the device's,
//! `gateway=ADDRESS` is the gateway to everything outside; `shape=`, `torus=`, `nodes=`, `without=`
//! and `wait=` as for all programs.

use alloc::vec;
use alloc::vec::Vec;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::{icmp, tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{
    EthernetAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpAddress, IpCidr,
    Ipv4Address, Ipv6Address,
};
use tofu_abi::{Coords, TniId};
use tofu_driver::PacketConfig;
use tofu_ipotofu::{Link, StackDevice, addr};

use crate::{Comm, Error, NodePlatform, Numbering, SPIN_NS, Setup, fail, now_ns, number, option};

/// TNI of all nodes' links.
const TNI: TniId = TniId::ALL[0];
/// The interval at which the stack is given the other nodes' addresses, in nanoseconds: it drops
/// addresses that it has not used for a minute, and queries at most one address per second.
const INTRODUCE_NS: u64 = 20_000_000_000;
/// The longest sleep, in nanoseconds.
const NAP_NS: u64 = 1_000_000_000;
/// Bytes of a TCP socket's buffers.
pub const TCP_BUFFER: usize = 64 << 10;
/// First port of those that connections are made from.
const FIRST_LOCAL_PORT: u16 = 49152;

/// A node's IP stack.
pub struct Net {
    places: Numbering,
    nodes: u32,
    rank: u32,
    machine: u8,
    mtu: u16,
    device: StackDevice<NodePlatform>,
    iface: Interface,
    /// The sockets.
    pub sockets: SocketSet<'static>,
    introduced_ns: Option<u64>,
    /// The next node to introduce.
    next_introduction: u32,
    next_port: u16,
}

impl Net {
    /// Brings up the link and the stack.
    ///
    /// # Errors
    ///
    /// If there is no device, or the command line makes no sense.
    pub fn open() -> Result<Self, Error> {
        Self::on(Setup::new()?)
    }

    /// The same, on the node of a queue.
    ///
    /// # Errors
    ///
    /// If the command line makes no sense.
    pub fn beside(comm: &Comm) -> Result<Self, Error> {
        Self::on(comm.setup())
    }

    fn on(Setup { places, rank, polling, device }: Setup) -> Result<Self, Error> {
        let (shape, nodes) = (places.shape, places.nodes);
        let mtu = number("mtu", 1500)?;
        let (min, max) = (tofu_ipotofu::Config::MIN_MTU, tofu_ipotofu::Config::MAX_MTU);
        let mtu = u16::try_from(mtu).ok().filter(|mtu| (min..=max).contains(mtu));
        let mtu = mtu.ok_or_else(|| fail!("mtu= must be {min} to {max}"))?;
        let machine = number("machine", 0)?;
        let machine = u8::try_from(machine).ok().filter(|n| *n <= addr::MAX_MACHINE);
        let machine =
            machine.ok_or_else(|| fail!("machine= must be 0 to {}", addr::MAX_MACHINE))?;
        let coords = device.coords();
        let config = tofu_ipotofu::Config { mtu, machine, ..tofu_ipotofu::Config::new(shape) };
        let packets =
            PacketConfig { interrupts: !polling, spin_ns: SPIN_NS, ..PacketConfig::new(TNI) };
        let link = Link::open(&device, config, &packets)?;
        let mac = EthernetAddress(link.mac());
        let mut device = StackDevice::new(link);
        if number("verify", 0)? != 0 {
            device.verify();
        }
        let mut config = Config::new(mac.into());
        config.random_seed = now_ns() ^ u64::from(rank) << 32;
        let mut iface = Interface::new(config, &mut device, Instant::ZERO);
        let own = |cidr: IpCidr, iface: &mut Interface| {
            let mut added = Ok(());
            iface.update_ip_addrs(|list| added = list.push(cidr).map_err(drop));
            added.map_err(|()| fail!("no room for another IP address"))
        };
        own(IpCidr::new(Ipv4Address::from(addr::ipv4(machine, coords)).into(), 8), &mut iface)?;
        let v6 = Ipv6Address::from(addr::ipv6(machine, coords));
        own(IpCidr::new(v6.into(), addr::IPV6_PREFIX), &mut iface)?;
        if let Some(gateway) = option("gateway") {
            let gateway: Ipv4Address =
                gateway.parse().map_err(|_| fail!("gateway={gateway} is not an IPv4 address"))?;
            // There is room for it, as it is the first.
            let _ = iface.routes_mut().add_default_ipv4_route(gateway);
        }
        Ok(Self {
            places,
            nodes,
            rank,
            machine,
            mtu,
            device,
            iface,
            sockets: SocketSet::new(Vec::new()),
            introduced_ns: None,
            next_introduction: u32::MAX,
            next_port: FIRST_LOCAL_PORT,
        })
    }

    /// The number of nodes that run programs.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The number of this node.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Largest IP packet, in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// The numbers of the other nodes that run programs, beginning with the next one.
    pub fn peers(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, nodes) = (self.rank, self.nodes);
        (1..nodes).map(move |i| (rank + i) % nodes)
    }

    fn coords(&self, rank: u32) -> Coords {
        self.places.coords(rank).unwrap_or_default()
    }

    /// The IPv4 address of a node.
    pub fn ipv4(&self, rank: u32) -> IpAddress {
        Ipv4Address::from(addr::ipv4(self.machine, self.coords(rank))).into()
    }

    /// The IPv6 address of a node.
    pub fn ipv6(&self, rank: u32) -> IpAddress {
        Ipv6Address::from(addr::ipv6(self.machine, self.coords(rank))).into()
    }

    /// The link below.
    pub fn link(&mut self) -> &mut Link<NodePlatform> {
        self.device.link()
    }

    fn now() -> Instant {
        Instant::from_micros((now_ns() / 1000) as i64)
    }

    /// The number of nodes that are introduced to the stack, itself among them.
    fn known(&self) -> u32 {
        self.nodes + u32::from(self.places.gateway().is_some())
    }

    /// Lets the stack process received frames and send its own.
    pub fn poll(&mut self) {
        let now = now_ns();
        if self.introduced_ns.is_none_or(|at| now - at > INTRODUCE_NS) {
            self.introduced_ns = Some(now);
            self.next_introduction = 0;
        }
        loop {
            while self.next_introduction < self.known() {
                let number = self.next_introduction;
                // Behind the nodes with programs comes the one that joins them to others.
                let coords = if number < self.nodes {
                    self.coords(number)
                } else {
                    self.places.gateway().unwrap_or_default()
                };
                if number != self.rank && !self.device.link().introduce(coords) {
                    break;
                }
                self.next_introduction += 1;
            }
            self.iface.poll(Self::now(), &mut self.device, &mut self.sockets);
            if self.next_introduction >= self.known() {
                break;
            }
        }
        self.device.link().flush();
    }

    /// Sleeps until something arrives or the stack has work to do, for `timeout_ns` at most.
    pub fn wait(&mut self, timeout_ns: u64) {
        let delay = self.iface.poll_delay(Self::now(), &self.sockets);
        let delay = delay.map_or(NAP_NS, |delay| delay.total_micros().saturating_mul(1000));
        self.device.link().wait(delay.min(timeout_ns));
    }

    /// Works until `done` has something, for `timeout_ns` nanoseconds at most.
    pub fn run<T>(
        &mut self,
        timeout_ns: u64,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let start = now_ns();
        loop {
            self.poll();
            if let Some(found) = done(self) {
                // Its last data goes out, even if this is not called again.
                self.poll();
                return Some(found);
            }
            let elapsed = now_ns().saturating_sub(start);
            if elapsed >= timeout_ns {
                return None;
            }
            // If `done` has given the stack work to do, this does not sleep. `done` sees what
            // arrives from here on before the next sleep.
            self.wait(timeout_ns - elapsed);
        }
    }

    /// Waits until everything is sent, before the program ends.
    ///
    /// # Errors
    ///
    /// If it is not sent within a second.
    pub fn close(mut self) -> Result<(), Error> {
        self.poll();
        if self.device.link().drain(NAP_NS) {
            return Ok(());
        }
        Err(fail!("packets are not sent"))
    }

    /// A TCP socket.
    pub fn tcp_socket(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; TCP_BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        self.sockets.add(socket)
    }

    /// Moves those of these TCP sockets that listen behind the others.
    ///
    /// The stack hands a segment to the first socket that accepts it. A listening one accepts any
    /// SYN, so also a late copy of one whose connection is open: it answers the copy, and the
    /// client's next segment to it resets the connection.
    pub fn listen_last<'a>(&mut self, handles: impl Iterator<Item = &'a mut SocketHandle>) {
        let mut handles: Vec<_> = handles.collect();
        handles.sort_by_key(|handle| {
            self.sockets.get::<tcp::Socket>(**handle).state() == tcp::State::Listen
        });
        let sockets: Vec<_> = handles.iter().map(|handle| self.sockets.remove(**handle)).collect();
        // A new socket takes the first free place.
        for (handle, socket) in handles.into_iter().zip(sockets) {
            *handle = self.sockets.add(socket);
        }
    }

    /// A UDP socket at a port.
    ///
    /// # Errors
    ///
    /// If the port is 0.
    pub fn udp_socket(&mut self, port: u16) -> Result<SocketHandle, Error> {
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 8], vec![0; 4096]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(port).map_err(|error| fail!("UDP port {port}: {error}"))?;
        Ok(self.sockets.add(socket))
    }

    /// Connects a new TCP socket, and tries again while nothing listens there.
    ///
    /// # Errors
    ///
    /// If nothing listens for `timeout_ns` nanoseconds.
    pub fn connect(
        &mut self,
        rank: u32,
        port: u16,
        timeout_ns: u64,
        mut meanwhile: impl FnMut(&mut Self),
    ) -> Result<SocketHandle, Error> {
        const TRY_NS: u64 = 100_000_000;
        let start = now_ns();
        let remote = self.ipv4(rank);
        while now_ns().saturating_sub(start) < timeout_ns {
            let handle = self.tcp_socket();
            let local = self.next_port;
            self.next_port = local.checked_add(1).unwrap_or(FIRST_LOCAL_PORT);
            self.sockets
                .get_mut::<tcp::Socket>(handle)
                .connect(self.iface.context(), (remote, port), local)
                .map_err(|error| fail!("connecting to {remote}: {error}"))?;
            let open = self.run(TRY_NS, |net| {
                meanwhile(net);
                match net.sockets.get::<tcp::Socket>(handle).state() {
                    tcp::State::SynSent | tcp::State::SynReceived => None,
                    state => Some(state == tcp::State::Established),
                }
            });
            if open == Some(true) {
                return Ok(handle);
            }
            self.sockets.get_mut::<tcp::Socket>(handle).abort();
            self.poll();
            self.sockets.remove(handle);
            if open == Some(false) {
                // Refused immediately, because no program listens yet.
                self.run(TRY_NS / 20, |net| {
                    meanwhile(net);
                    None::<()>
                });
            }
        }
        Err(fail!("{remote} does not take connections at port {port}"))
    }
}

/// Echo requests, and the answers to them.
pub struct Pinger {
    handle: SocketHandle,
    ident: u16,
    sequence: u16,
}

impl Pinger {
    /// A pinger with room for packets of `max` bytes of data.
    ///
    /// # Errors
    ///
    /// If the stack refuses.
    pub fn new(net: &mut Net, max: usize) -> Result<Self, Error> {
        let ident = 0x70f0;
        let size = 2 * (max + 64);
        let buffer =
            || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 4], vec![0; size]);
        let mut socket = icmp::Socket::new(buffer(), buffer());
        socket
            .bind(icmp::Endpoint::Ident(ident))
            .map_err(|error| fail!("echo requests: {error}"))?;
        Ok(Self { handle: net.sockets.add(socket), ident, sequence: 0 })
    }

    /// Sends a request with this data and waits for its answer, `timeout_ns` at most. Returns how
    /// long it took, in nanoseconds; `None` if no answer came.
    ///
    /// # Errors
    ///
    /// If the answer has other data.
    pub fn ping(
        &mut self,
        net: &mut Net,
        to: IpAddress,
        data: &[u8],
        timeout_ns: u64,
    ) -> Result<Option<u64>, Error> {
        self.sequence = self.sequence.wrapping_add(1);
        let (ident, seq_no) = (self.ident, self.sequence);
        let start = now_ns();
        self.send(net, to, data)?;
        let handle = self.handle;
        let answer = net.run(timeout_ns, |net| {
            let socket = net.sockets.get_mut::<icmp::Socket>(handle);
            while let Ok((packet, from)) = socket.recv() {
                let answer = echo_reply(packet, from);
                if let Some((id, seq, bytes)) = answer
                    && (id, seq, from) == (ident, seq_no, to)
                {
                    return Some(bytes == data);
                }
            }
            None
        });
        match answer {
            None => Ok(None),
            Some(true) => Ok(Some(now_ns().saturating_sub(start))),
            Some(false) => Err(fail!("{to} answered with other data")),
        }
    }

    fn send(&self, net: &mut Net, to: IpAddress, data: &[u8]) -> Result<(), Error> {
        let (ident, seq_no) = (self.ident, self.sequence);
        let checksums = ChecksumCapabilities::default();
        let full = |error| fail!("echo request: {error}");
        match to {
            IpAddress::Ipv4(_) => {
                let repr = Icmpv4Repr::EchoRequest { ident, seq_no, data };
                let socket = net.sockets.get_mut::<icmp::Socket>(self.handle);
                let bytes = socket.send(repr.buffer_len(), to).map_err(full)?;
                repr.emit(&mut Icmpv4Packet::new_unchecked(bytes), &checksums);
            }
            IpAddress::Ipv6(to6) => {
                let repr = Icmpv6Repr::EchoRequest { ident, seq_no, data };
                let from = net.iface.get_source_address_ipv6(&to6);
                let socket = net.sockets.get_mut::<icmp::Socket>(self.handle);
                let bytes = socket.send(repr.buffer_len(), to).map_err(full)?;
                repr.emit(&from, &to6, &mut Icmpv6Packet::new_unchecked(bytes), &checksums);
            }
        }
        Ok(())
    }
}

/// Identifier, sequence number and data of an echo reply.
fn echo_reply(packet: &[u8], from: IpAddress) -> Option<(u16, u16, &[u8])> {
    // Reply types: 0 and, for IPv6, 129; then code and checksum.
    let (expected, rest) = match from {
        IpAddress::Ipv4(_) => (0, packet),
        IpAddress::Ipv6(_) => (129, packet),
    };
    let (header, data) = rest.split_first_chunk::<8>()?;
    let [kind, 0, _, _, id_high, id_low, seq_high, seq_low] = *header else { return None };
    (kind == expected).then_some((
        u16::from_be_bytes([id_high, id_low]),
        u16::from_be_bytes([seq_high, seq_low]),
        data,
    ))
}
