//! Every node serves a page over HTTP, and fetches those of all others.
//!
//! `size=N` bytes of the page (20000), `count=N` how often to fetch each (3); `forever=1` goes on
//! serving after that.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;
use tofu_guests::net::Net;
use tofu_guests::{Error, fail, now_ns, number, println};

tofu_guests::entry!(httpd);

const PORT: u16 = 80;
/// Connections that a node serves at a time.
const SERVERS: usize = 16;
/// How long a node may take to come up, a page to come, and the others to fetch theirs, in
/// nanoseconds.
const START_NS: u64 = 60_000_000_000;
const PAGE_NS: u64 = 20_000_000_000;
/// How long the ends of connections are waited for: the last acknowledgement may have been lost,
/// and who sent it be gone.
const END_NS: u64 = 2_000_000_000;
/// Longest request that is looked at, in bytes.
const MAX_REQUEST: usize = 1024;

fn httpd() -> Result<(), Error> {
    let size = number("size", 20_000)?;
    let size = usize::try_from(size).ok().filter(|size| *size <= 1 << 20);
    let size = size.ok_or_else(|| fail!("size= must be {} at most", 1 << 20))?;
    let count = number("count", 3)?;
    let forever = number("forever", 0)? != 0;
    let mut net = Net::open()?;
    let mut server = Server::new(&mut net, size)?;
    let start = now_ns();
    for _ in 0..count {
        for peer in net.peers() {
            fetch(&mut net, &mut server, peer, size)?;
        }
    }
    let us = (now_ns() - start) / 1000;
    let fetched = count * u64::from(net.nodes() - 1);
    println!("fetched {fetched} pages of {size} bytes in {us} us");
    loop {
        let done = net.run(START_NS, |net| {
            server.work(net);
            (!forever && server.served >= fetched && server.is_taken(net)).then_some(())
        });
        if done.is_some() {
            net.run(END_NS, |net| {
                server.work(net);
                server.is_idle(net).then_some(())
            });
            return net.close();
        }
        if !forever {
            return Err(fail!("only {} of {fetched} pages were fetched here", server.served));
        }
    }
}

/// The page of a node.
fn page(rank: u32, size: usize) -> Vec<u8> {
    let mut page = format!("This is node {rank}.\n").into_bytes();
    let line = format!("{rank} 0123456789 abcdefghijklmnopqrstuvwxyz\n");
    page.extend(line.bytes().cycle().take(size.saturating_sub(page.len())));
    page.truncate(size);
    page
}

/// A connection to a client.
struct Connection {
    handle: SocketHandle,
    request: Vec<u8>,
    /// What is to be sent, and how much of it was.
    response: Option<usize>,
}

/// Serves the page.
struct Server {
    connections: Vec<Connection>,
    found: Vec<u8>,
    missing: Vec<u8>,
    is_found: Vec<bool>,
    served: u64,
}

impl Server {
    fn new(net: &mut Net, size: usize) -> Result<Self, Error> {
        let body = page(net.rank(), size);
        let mut found = head("200 OK", body.len()).into_bytes();
        found.extend_from_slice(&body);
        let missing = head("404 Not Found", 0).into_bytes();
        let connections: Vec<_> = (0..SERVERS)
            .map(|_| Connection { handle: net.tcp_socket(), request: Vec::new(), response: None })
            .collect();
        let is_found = connections.iter().map(|_| false).collect();
        Ok(Self { connections, found, missing, is_found, served: 0 })
    }

    /// Whether clients have acknowledged all that they were sent.
    fn is_taken(&self, net: &Net) -> bool {
        self.connections
            .iter()
            .all(|connection| net.sockets.get::<tcp::Socket>(connection.handle).send_queue() == 0)
    }

    /// Whether no connection is open.
    fn is_idle(&self, net: &Net) -> bool {
        self.connections.iter().all(|connection| {
            let state = net.sockets.get::<tcp::Socket>(connection.handle).state();
            matches!(state, tcp::State::Closed | tcp::State::Listen)
        })
    }

    /// Does what there is to do for all connections.
    fn work(&mut self, net: &mut Net) {
        for (connection, is_found) in self.connections.iter_mut().zip(&mut self.is_found) {
            let socket = net.sockets.get_mut::<tcp::Socket>(connection.handle);
            if !socket.is_open() {
                connection.request.clear();
                connection.response = None;
                // Fails only for port 0.
                let _ = socket.listen(PORT);
                continue;
            }
            if connection.response.is_none() {
                let mut chunk = [0; 256];
                while let Ok(n @ 1..) = socket.recv_slice(&mut chunk) {
                    connection.request.extend_from_slice(&chunk[..n]);
                    if connection.request.len() > MAX_REQUEST {
                        socket.abort();
                        break;
                    }
                }
                if connection.request.windows(4).any(|end| end == b"\r\n\r\n") {
                    let get = |path: &[u8]| connection.request.starts_with(path);
                    *is_found = get(b"GET / ") || get(b"GET /index.html ");
                    connection.response = Some(0);
                }
            }
            let response = if *is_found { &self.found } else { &self.missing };
            if let Some(sent) = &mut connection.response
                && *sent < response.len()
            {
                *sent += socket.send_slice(&response[*sent..]).unwrap_or(0);
                if *sent == response.len() && *is_found {
                    self.served += 1;
                }
            }
            // The client closes first, having the length; then this side does.
            if socket.state() == tcp::State::CloseWait {
                socket.close();
            }
        }
    }
}

fn head(status: &str, length: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    )
}

/// Fetches a node's page and compares it with what it should be.
fn fetch(net: &mut Net, server: &mut Server, peer: u32, size: usize) -> Result<(), Error> {
    let handle = net.connect(peer, PORT, START_NS, |net| server.work(net))?;
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", net.ipv4(peer));
    let socket = net.sockets.get_mut::<tcp::Socket>(handle);
    socket.send_slice(request.as_bytes()).map_err(|error| fail!("a request: {error}"))?;
    let mut expected = head("200 OK", size).into_bytes();
    expected.extend(page(peer, size));
    let mut response = Vec::with_capacity(expected.len());
    let whole = net.run(PAGE_NS, |net| {
        server.work(net);
        let socket = net.sockets.get_mut::<tcp::Socket>(handle);
        let mut chunk = [0; 2048];
        while let Ok(n @ 1..) = socket.recv_slice(&mut chunk) {
            response.extend_from_slice(&chunk[..n]);
        }
        (response.len() >= expected.len() || !socket.may_recv()).then_some(())
    });
    net.sockets.get_mut::<tcp::Socket>(handle).close();
    if whole.is_none() || response != expected {
        return Err(fail!("of node {peer}'s page {} bytes came, or wrong ones", response.len()));
    }
    net.run(END_NS, |net| {
        server.work(net);
        let state = net.sockets.get::<tcp::Socket>(handle).state();
        matches!(state, tcp::State::Closed | tcp::State::TimeWait).then_some(())
    });
    net.sockets.get_mut::<tcp::Socket>(handle).abort();
    net.poll();
    net.sockets.remove(handle);
    Ok(())
}
