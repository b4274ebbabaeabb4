//! Every node serves a page over HTTP, and fetches the pages of all others.
//!
//! `size=N` bytes of the page (20000), `count=N` how often to fetch each (3); `forever=1` keeps
//! serving after that. With `again=1` it keeps fetching while nodes fail and recover, and reports,
//! at most once a second, when the pages of all nodes have arrived.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;
use smoltcp::time::Duration;
use tofu_guests::net::Net;
use tofu_guests::{Error, fail, now_ns, number, println};

tofu_guests::entry!(httpd);

const PORT: u16 = 80;
/// Connections that a node serves at a time.
const SERVERS: usize = 16;
/// The time limit for a node to come up, a page to arrive, and the others to fetch theirs, in
/// nanoseconds.
const START_NS: u64 = 60_000_000_000;
const PAGE_NS: u64 = 20_000_000_000;
/// The time to wait for the ends of connections: the last acknowledgement may have been lost, and
/// its sender may be gone.
const END_NS: u64 = 2_000_000_000;
/// With `again=1`: how long a connection may take, and a page, before it is another node's turn. A
/// client may be silent for as long as a page may take.
const AGAIN_NS: [u64; 2] = [1_000_000_000, 10_000_000_000];
/// The shortest time between reports that pages have arrived.
const SAY_NS: u64 = 1_000_000_000;
/// Longest request that is parsed, in bytes.
const MAX_REQUEST: usize = 1024;

fn httpd() -> Result<(), Error> {
    let size = number("size", 20_000)?;
    let size = usize::try_from(size).ok().filter(|size| *size <= 1 << 20);
    let size = size.ok_or_else(|| fail!("size= must be {} at most", 1 << 20))?;
    let count = number("count", 3)?;
    let forever = number("forever", 0)? != 0;
    let again = number("again", 0)? != 0;
    let mut net = Net::open()?;
    let mut server = Server::new(&mut net, size)?;
    if again {
        return fetch_again(&mut net, &mut server, size);
    }
    let start = now_ns();
    for _ in 0..count {
        for peer in net.peers() {
            let limits = [START_NS, PAGE_NS];
            let got = fetch(&mut net, &mut server, (peer, size), limits)?;
            got.map_err(|why| fail!("node {peer}'s page: {why}"))?;
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

/// Fetches the pages of all others for ever, whichever are there.
fn fetch_again(net: &mut Net, server: &mut Server, size: usize) -> Result<(), Error> {
    server.end_quiet(net);
    let (mut fetched, mut said) = (0_u64, None);
    loop {
        let mut missed = false;
        for peer in net.peers() {
            match fetch(net, server, (peer, size), AGAIN_NS)? {
                Ok(()) => fetched += 1,
                Err(_) => missed = true,
            }
        }
        let now = now_ns();
        if !missed && said.is_none_or(|said| now - said > SAY_NS) {
            said = Some(now);
            println!("fetched {fetched} pages, the last ones of all nodes");
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
    /// The response to send, and how much of it was sent.
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

    /// Ends connections of clients that have gone.
    fn end_quiet(&self, net: &mut Net) {
        let quiet = Some(Duration::from_micros(AGAIN_NS[1] / 1000));
        for connection in &self.connections {
            let socket = net.sockets.get_mut::<tcp::Socket>(connection.handle);
            socket.set_timeout(quiet);
            socket.set_keep_alive(quiet.map(|quiet| quiet / 4));
        }
    }

    /// Returns true if clients have acknowledged everything that was sent to them.
    fn is_taken(&self, net: &Net) -> bool {
        self.connections
            .iter()
            .all(|connection| net.sockets.get::<tcp::Socket>(connection.handle).send_queue() == 0)
    }

    /// Returns true if no connection is open.
    fn is_idle(&self, net: &Net) -> bool {
        self.connections.iter().all(|connection| {
            let state = net.sockets.get::<tcp::Socket>(connection.handle).state();
            matches!(state, tcp::State::Closed | tcp::State::Listen)
        })
    }

    /// Does the pending work of all connections.
    fn work(&mut self, net: &mut Net) {
        let mut listens = false;
        for (connection, is_found) in self.connections.iter_mut().zip(&mut self.is_found) {
            let socket = net.sockets.get_mut::<tcp::Socket>(connection.handle);
            if !socket.is_open() {
                connection.request.clear();
                connection.response = None;
                // Fails only for port 0.
                let _ = socket.listen(PORT);
                listens = true;
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
        if listens {
            net.listen_last(self.connections.iter_mut().map(|connection| &mut connection.handle));
        }
    }
}

fn head(status: &str, length: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    )
}

/// Fetches a node's page, with a time limit for its connection and then for the page. The inner
/// error is the reason for which it did not arrive.
///
/// # Errors
///
/// If another page has arrived.
fn fetch(
    net: &mut Net,
    server: &mut Server,
    (peer, size): (u32, usize),
    [start_ns, page_ns]: [u64; 2],
) -> Result<Result<(), Error>, Error> {
    let handle = match net.connect(peer, PORT, start_ns, |net| server.work(net)) {
        Ok(handle) => handle,
        Err(error) => return Ok(Err(error)),
    };
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", net.ipv4(peer));
    let socket = net.sockets.get_mut::<tcp::Socket>(handle);
    let sent = socket.send_slice(request.as_bytes());
    let mut expected = head("200 OK", size).into_bytes();
    expected.extend(page(peer, size));
    let mut response = Vec::with_capacity(expected.len());
    net.run(page_ns, |net| {
        server.work(net);
        let socket = net.sockets.get_mut::<tcp::Socket>(handle);
        let mut chunk = [0; 2048];
        while let Ok(n @ 1..) = socket.recv_slice(&mut chunk) {
            response.extend_from_slice(&chunk[..n]);
        }
        (response.len() >= expected.len() || !socket.may_recv()).then_some(())
    });
    net.sockets.get_mut::<tcp::Socket>(handle).close();
    if !expected.starts_with(&response) {
        return Err(fail!("of node {peer}'s page came {} bytes, and wrong ones", response.len()));
    }
    let got = match sent {
        Err(error) => Err(fail!("a request: {error}")),
        Ok(_) if response.len() < expected.len() => Err(fail!("{} bytes came", response.len())),
        Ok(_) => {
            net.run(END_NS, |net| {
                server.work(net);
                let state = net.sockets.get::<tcp::Socket>(handle).state();
                matches!(state, tcp::State::Closed | tcp::State::TimeWait).then_some(())
            });
            Ok(())
        }
    };
    net.sockets.get_mut::<tcp::Socket>(handle).abort();
    net.poll();
    net.sockets.remove(handle);
    Ok(got)
}
