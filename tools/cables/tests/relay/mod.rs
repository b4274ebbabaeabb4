//! A bad network between two shards: bytes arrive late, and few at a time.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Number of bytes that are relayed at a time.
const PIECE: usize = 16 << 10;
/// The most pieces in flight.
const PIECES: usize = 64;

/// Properties of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rough {
    /// Delay in each direction.
    pub(crate) delay: Duration,
    /// Time to send a piece.
    pub(crate) piece: Duration,
}

/// Forwards connections to an address.
pub(crate) struct Relay {
    address: String,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    /// Creates a relay to the server that listens at `to`.
    pub(crate) fn new(to: &str, rough: Rough) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (to, all) = (to.to_owned(), Arc::clone(&connections));
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                // Nothing listens yet: the client sees the end of the connection.
                let Ok(far) = TcpStream::connect(&to) else { continue };
                for end in [&near, &far] {
                    end.set_nodelay(true).unwrap();
                    all.lock().unwrap().push(end.try_clone().unwrap());
                }
                pass_on(near.try_clone().unwrap(), far.try_clone().unwrap(), rough);
                pass_on(far, near, rough);
            }
        });
        Self { address, connections }
    }

    /// The address at which the relay listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Ends all connections, with bytes that may be in flight.
    pub(crate) fn cut(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            // The connection may have ended.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Forwards bytes in one direction.
fn pass_on(mut from: TcpStream, mut to: TcpStream, rough: Rough) {
    let (sender, pieces) = sync_channel::<(Instant, Vec<u8>)>(PIECES);
    thread::spawn(move || {
        let mut piece = vec![0; PIECE];
        loop {
            match from.read(&mut piece) {
                Ok(read @ 1..) => {
                    let due = Instant::now() + rough.delay;
                    if sender.send((due, piece[..read].to_vec())).is_err() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => break,
            }
        }
    });
    thread::spawn(move || {
        for (due, piece) in pieces {
            thread::sleep(due.saturating_duration_since(Instant::now()) + rough.piece);
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
