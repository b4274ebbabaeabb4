//! A bad network between two parts: bytes are late, and few at a time.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are passed on at once.
const PIECE: usize = 16 << 10;
/// Pieces that are on their way at most.
const PIECES: usize = 64;

/// What a network does to bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rough {
    /// How late they are, each way.
    pub(crate) delay: Duration,
    /// How long a piece takes to be sent.
    pub(crate) piece: Duration,
}

/// Passes connections on to an address.
pub(crate) struct Relay {
    address: String,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    /// To the server that listens there.
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

    /// The address at which it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Ends all connections, whatever is on its way.
    pub(crate) fn cut(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            // It may have ended.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Passes bytes on one way.
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
