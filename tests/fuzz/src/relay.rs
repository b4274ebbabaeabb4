//! Frames that a node writes to the host's end of a relay, which carries its programs' connections
//! to a server on the host.
//!
//! Each connection gets the bytes of its frames, in order, and nothing else. The node is sent the
//! ends of those that could not be opened, and nothing else. There are no more than the limit.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tofu_agent::relay::{MAX_BYTES, MAX_OPEN, join};

/// The most bytes of an input: the server's buffers have room for them.
const MOST: usize = 1 << 15;

/// The bytes that the host's end writes to the node.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs one input. Its first byte says how often the server refuses a connection.
pub fn run(data: &[u8]) {
    let Some((often, frames)) = data.split_first() else { return };
    let frames = &frames[..frames.len().min(MOST)];
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let at = listener.local_addr().expect("it has an address");
    // The server's ends, or `None` for a refusal, in the order in which they were asked for.
    let asked: RefCell<Vec<Option<TcpStream>>> = RefCell::default();
    let connect = || {
        let number = asked.borrow().len();
        let refused = *often > 0 && number % usize::from(*often) == 1;
        // The host may run out of ports.
        let pair = match refused {
            true => None,
            false => TcpStream::connect(at).ok().zip(listener.accept().ok()),
        };
        let (ours, theirs) = pair.map(|(ours, (theirs, _))| (ours, theirs)).unzip();
        asked.borrow_mut().push(theirs);
        ours.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionRefused))
    };
    let written = Written::default();
    let result = join(frames, written.clone(), connect);
    let asked = asked.into_inner();
    let expected = Expected::of(frames, &asked);
    assert_eq!(result.is_ok(), expected.well_formed, "{result:?}");
    assert_eq!(asked.len(), expected.connections.len());
    for (server, (number, bytes)) in asked.into_iter().zip(&expected.connections) {
        let Some(mut server) = server else { continue };
        server.set_read_timeout(Some(Duration::from_secs(60))).expect("it is open");
        let mut got = Vec::new();
        server.read_to_end(&mut got).expect("the relay ends its connections");
        assert_eq!(&got, bytes, "connection {number}");
    }
    assert_eq!(*written.0.lock().expect("no writer panics"), expected.written);
}

/// The result of an input, computed in another way.
#[derive(Default)]
struct Expected {
    /// Connections in the order of their opening, with their numbers and bytes.
    connections: Vec<(u32, Vec<u8>)>,
    written: Vec<u8>,
    well_formed: bool,
}

impl Expected {
    fn of(frames: &[u8], asked: &[Option<TcpStream>]) -> Self {
        let mut expected = Self::default();
        let mut open: HashMap<u32, usize> = HashMap::new();
        let mut left = frames;
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        while let Some((head, rest)) = left.split_at_checked(8) {
            let (number, size) = (word(&head[..4]), word(&head[4..]) as usize);
            if size > MAX_BYTES {
                return expected;
            }
            let Some((bytes, rest)) = rest.split_at_checked(size) else { break };
            left = rest;
            let known = expected.connections.last().is_some_and(|(last, _)| number <= *last);
            match (bytes, known) {
                ([], true) => drop(open.remove(&number)),
                ([], false) if number == u32::MAX => return expected,
                ([], false) => {
                    let at = expected.connections.len();
                    if asked.get(at).is_some_and(Option::is_some) && open.len() < MAX_OPEN {
                        open.insert(number, at);
                    } else {
                        expected.written.extend(number.to_le_bytes());
                        expected.written.extend([0; 4]);
                    }
                    expected.connections.push((number, Vec::new()));
                }
                (bytes, _) => {
                    if let Some(at) = open.get(&number) {
                        expected.connections[*at].1.extend(bytes);
                    }
                }
            }
        }
        expected.well_formed = true;
        expected
    }
}
