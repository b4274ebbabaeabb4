//! The baseline for IP over Tofu between two bare guests: the same TCP/IP stack, smoltcp, in two
//! threads of this process, with packet sockets on a pair of virtual Ethernets of the kernel
//! (veth). It measures the same as the guests `ping` and `tcpbench`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Medium, RawSocket};
use smoltcp::socket::{icmp, tcp};
use smoltcp::time::Instant as Time;
use smoltcp::wire::{EthernetAddress, Icmpv4Packet, Icmpv4Repr, IpAddress, IpCidr, Ipv4Address};

use crate::figures::quantiles;

const PORT: u16 = 5201;
/// Sizes of a TCP socket's buffers, and of each write, in bytes, as in the guests.
const TCP_BUFFER: usize = 64 << 10;
const CHUNK: usize = 16 << 10;
/// The default payload of `ping`, in bytes.
const PING_BYTES: usize = 56;
/// The longest silence before it fails.
const QUIET: Duration = Duration::from_secs(10);
/// The time to sleep at most. Frames come sooner, unless a wake-up was missed.
const NAP: smoltcp::time::Duration = smoltcp::time::Duration::from_millis(50);

/// A network namespace with its own interfaces, so that nothing on the host is changed. Dropping it
/// removes it.
pub(crate) struct Namespace {
    child: Child,
}

impl Namespace {
    /// Creates a namespace and runs commands of `ip` in it, one per line.
    ///
    /// # Errors
    ///
    /// If the host lacks the programs, or forbids this.
    pub(crate) fn new(commands: &str) -> anyhow::Result<Self> {
        // The namespace exists as long as a process is in it: `cat`, until its input is closed.
        let script = format!("set -e\n{commands}\necho ready\nexec cat >/dev/null\n");
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run unshare (util-linux)")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no pipe")?;
        BufReader::new(stdout).read_line(&mut line)?;
        if line != "ready\n" {
            let output = child.wait_with_output()?;
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.lines().last().unwrap_or("no message").to_owned();
            bail!("a network namespace with interfaces, which needs root and iproute2: {why}");
        }
        Ok(Self { child })
    }

    /// Returns the namespace's file, which exists as long as this value.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.child.id()).into()
    }

    /// Moves the calling thread into the namespace.
    fn enter(&self) -> anyhow::Result<()> {
        let file = File::open(self.path())?;
        Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The results.
pub(crate) struct Figures {
    /// Minimum, median and 99th percentile of ICMP round trips, in nanoseconds.
    pub(crate) ping: [u64; 3],
    /// TCP throughput out and in, in bytes per second.
    pub(crate) tcp: [f64; 2],
}

/// Measures `count` pings, and `bytes` in each direction by TCP.
pub(crate) fn measure(mtu: u16, count: usize, bytes: usize) -> anyhow::Result<Figures> {
    let namespace = Namespace::new(&format!(
        "ip link add v0 type veth peer name v1\n\
         for v in v0 v1; do\n\
         echo 1 >/proc/sys/net/ipv6/conf/$v/disable_ipv6\n\
         ip link set $v mtu {mtu} up\n\
         done"
    ))?;
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            namespace.enter()?;
            serve(Stack::open(1)?, bytes)
        });
        let client = scope.spawn(|| {
            namespace.enter()?;
            Client { stack: Stack::open(0)?, count, bytes }.run()
        });
        let figures = client.join().map_err(|_| anyhow!("the client has panicked"))?;
        let served = server.join().map_err(|_| anyhow!("the server has panicked"))?;
        figures.and_then(|figures| served.map(|()| figures))
    })
}

/// A TCP/IP stack on an interface.
struct Stack {
    device: RawSocket,
    iface: Interface,
    sockets: SocketSet<'static>,
    start: Instant,
}

const fn address(side: u8) -> Ipv4Address {
    Ipv4Address::new(10, 84, 1, 1 + side)
}

impl Stack {
    fn open(side: u8) -> anyhow::Result<Self> {
        let mut device = RawSocket::new(&format!("v{side}"), Medium::Ethernet)
            .context("no packet socket on the veth pair")?;
        let mac = EthernetAddress([2, 0, 0x54, 0, 0, side]);
        let mut iface = Interface::new(Config::new(mac.into()), &mut device, Time::ZERO);
        let mut added = Ok(());
        iface.update_ip_addrs(|list| {
            added = list.push(IpCidr::new(address(side).into(), 24)).map_err(drop);
        });
        added.map_err(|()| anyhow!("no room for an IP address"))?;
        Ok(Self { device, iface, sockets: SocketSet::new(Vec::new()), start: Instant::now() })
    }

    fn now(&self) -> Time {
        Time::from_micros(self.start.elapsed().as_micros() as i64)
    }

    fn poll(&mut self) {
        let now = self.now();
        self.iface.poll(now, &mut self.device, &mut self.sockets);
    }

    /// Runs the stack until `done` returns a value.
    fn run<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> anyhow::Result<T> {
        let start = Instant::now();
        loop {
            self.poll();
            if let Some(found) = done(self) {
                self.poll();
                return Ok(found);
            }
            ensure!(start.elapsed() < QUIET, "nothing arrives over the veth pair any more");
            let delay = self.iface.poll_delay(self.now(), &self.sockets);
            let delay = delay.map_or(NAP, |delay| delay.min(NAP));
            smoltcp::phy::wait(self.device.as_raw_fd(), Some(delay))?;
        }
    }

    fn tcp_socket(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; TCP_BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        self.sockets.add(socket)
    }

    fn send(&mut self, handle: SocketHandle, bytes: usize) -> anyhow::Result<()> {
        let chunk = [0x55; CHUNK];
        let mut left = bytes;
        while left > 0 {
            left -= self.run(|this| {
                let socket = this.sockets.get_mut::<tcp::Socket<'_>>(handle);
                socket.send_slice(&chunk[..left.min(CHUNK)]).ok().filter(|n| *n > 0)
            })?;
        }
        Ok(())
    }

    fn receive(&mut self, handle: SocketHandle, bytes: usize) -> anyhow::Result<()> {
        let mut chunk = [0; CHUNK];
        let mut left = bytes;
        while left > 0 {
            left -= self.run(|this| {
                let socket = this.sockets.get_mut::<tcp::Socket<'_>>(handle);
                socket.recv_slice(&mut chunk[..left.min(CHUNK)]).ok().filter(|n| *n > 0)
            })?;
        }
        Ok(())
    }

    /// Closes the connection, and waits until the other side has closed it, too.
    fn finish(&mut self, handle: SocketHandle) -> anyhow::Result<()> {
        self.sockets.get_mut::<tcp::Socket<'_>>(handle).close();
        self.run(|this| {
            let state = this.sockets.get::<tcp::Socket<'_>>(handle).state();
            matches!(state, tcp::State::Closed | tcp::State::TimeWait).then_some(())
        })
    }
}

fn serve(mut stack: Stack, bytes: usize) -> anyhow::Result<()> {
    let socket = stack.tcp_socket();
    let listening = stack.sockets.get_mut::<tcp::Socket<'_>>(socket).listen(PORT);
    listening.map_err(|error| anyhow!("TCP port {PORT}: {error}"))?;
    // Echo requests come first, and the stack answers them by itself.
    stack.run(|stack| stack.sockets.get::<tcp::Socket<'_>>(socket).may_recv().then_some(()))?;
    stack.receive(socket, bytes)?;
    stack.send(socket, bytes)?;
    stack.finish(socket)
}

struct Client {
    stack: Stack,
    count: usize,
    bytes: usize,
}

impl Client {
    fn run(mut self) -> anyhow::Result<Figures> {
        let ping = self.ping()?;
        let tcp = self.tcp()?;
        Ok(Figures { ping, tcp })
    }

    fn ping(&mut self) -> anyhow::Result<[u64; 3]> {
        const IDENT: u16 = 84;
        let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 4], vec![0; 512]);
        let mut socket = icmp::Socket::new(buffer(), buffer());
        let bound = socket.bind(icmp::Endpoint::Ident(IDENT));
        bound.map_err(|error| anyhow!("echo requests: {error}"))?;
        let handle = self.stack.sockets.add(socket);
        let to = IpAddress::from(address(1));
        let mut times = Vec::new();
        // The first one also resolves the other side's address.
        for n in 0..=self.count {
            let start = Instant::now();
            let request =
                Icmpv4Repr::EchoRequest { ident: IDENT, seq_no: n as u16, data: &[7; PING_BYTES] };
            let socket = self.stack.sockets.get_mut::<icmp::Socket<'_>>(handle);
            let bytes = socket.send(request.buffer_len(), to);
            let bytes = bytes.map_err(|error| anyhow!("echo request: {error}"))?;
            let mut packet = Icmpv4Packet::new_unchecked(bytes);
            request.emit(&mut packet, &ChecksumCapabilities::default());
            self.stack.run(|stack| {
                let socket = stack.sockets.get_mut::<icmp::Socket<'_>>(handle);
                while let Ok((packet, _)) = socket.recv() {
                    let packet = Icmpv4Packet::new_checked(packet).ok()?;
                    if packet.echo_seq_no() == n as u16 {
                        return Some(());
                    }
                }
                None
            })?;
            if n > 0 {
                times.push(start.elapsed().as_nanos() as u64);
            }
        }
        let [p50, p99] = quantiles(&mut times);
        Ok([times.first().copied().unwrap_or(0), p50, p99])
    }

    fn tcp(&mut self) -> anyhow::Result<[f64; 2]> {
        let stack = &mut self.stack;
        let socket = stack.tcp_socket();
        let connecting = stack.sockets.get_mut::<tcp::Socket<'_>>(socket).connect(
            stack.iface.context(),
            (address(1), PORT),
            49152,
        );
        connecting.map_err(|error| anyhow!("connecting: {error}"))?;
        stack.run(|stack| stack.sockets.get::<tcp::Socket<'_>>(socket).may_send().then_some(()))?;
        let start = Instant::now();
        stack.send(socket, self.bytes)?;
        // The other side's first byte shows that it has received everything.
        stack.run(|stack| stack.sockets.get::<tcp::Socket<'_>>(socket).can_recv().then_some(()))?;
        let out = start.elapsed();
        stack.receive(socket, self.bytes)?;
        let back = start.elapsed() - out;
        stack.finish(socket)?;
        Ok([out, back].map(|time| self.bytes as f64 / time.as_secs_f64()))
    }
}
