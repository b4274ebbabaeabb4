//! Connections of a node's programs to a server on the host, over the standard streams of one
//! program of the agent. Both ends are here.
//!
//! A frame has the number of a connection and that of bytes, both as 32 bits with the lowest byte
//! first, and the bytes. The node numbers connections upwards. The first frame of a number is empty
//! and opens the connection on the host, and a later empty one, from either end, ends it.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use tofu_sync::lock;

/// Most bytes in a frame.
pub const MAX_BYTES: usize = 16 << 10;
/// Most connections at the same time: two for each rank that a node has room for.
pub const MAX_OPEN: usize = 96;

/// An end, which writes frames to `out`.
struct End<W> {
    out: Mutex<W>,
    open: Mutex<HashMap<u32, TcpStream>>,
}

/// Carries connections that `listener` accepts over two streams, until `input` ends.
///
/// # Errors
///
/// If a stream breaks, or the other end sends what is no frame.
pub fn serve(
    listener: TcpListener,
    input: impl Read,
    out: impl Write + Send + 'static,
) -> io::Result<()> {
    let end = Arc::new(End::new(out));
    let accepting = Arc::clone(&end);
    thread::Builder::new().spawn(move || {
        for (number, client) in (0..).zip(listener.incoming()) {
            // Here, so that connections are opened in order.
            let opened = client.and_then(|client| {
                accepting.send(number, &[])?;
                accepting.carry(number, client)
            });
            if let Err(error) = opened {
                log::warn!("a program cannot be connected: {error}");
                // Without the other end there is nothing to end.
                let _ = accepting.send(number, &[]);
            }
        }
    })?;
    end.deliver(input, |_| Ok(false))
}

/// Carries the same connections to a server, to which `connect` connects, until `input` ends.
///
/// # Errors
///
/// As of [`serve`].
pub fn join(
    input: impl Read,
    out: impl Write + Send + 'static,
    connect: impl Fn() -> io::Result<TcpStream>,
) -> io::Result<()> {
    let end = Arc::new(End::new(out));
    let mut next = 0;
    end.deliver(input, |number| {
        if number < next {
            return Ok(false);
        }
        next = number.checked_add(1).ok_or_else(|| invalid("too many connections"))?;
        if let Err(error) = connect().and_then(|server| end.carry(number, server)) {
            // Nodes must not fill the log.
            log::debug!("a node's program cannot be connected: {error}");
            end.send(number, &[])?;
        }
        Ok(true)
    })
}

impl<W: Write + Send + 'static> End<W> {
    fn new(out: W) -> Self {
        Self { out: Mutex::new(out), open: Mutex::default() }
    }

    fn send(&self, number: u32, bytes: &[u8]) -> io::Result<()> {
        let mut out = lock(&self.out);
        out.write_all(&number.to_le_bytes())?;
        out.write_all(&(bytes.len() as u32).to_le_bytes())?;
        out.write_all(bytes)?;
        out.flush()
    }

    /// Takes a connection, from which a thread reads.
    fn carry(self: &Arc<Self>, number: u32, stream: TcpStream) -> io::Result<()> {
        // Messages are short, and the other side waits for each.
        stream.set_nodelay(true)?;
        let mut reading = stream.try_clone()?;
        let mut open = lock(&self.open);
        if open.len() >= MAX_OPEN {
            return Err(invalid("too many connections"));
        }
        open.insert(number, stream);
        drop(open);
        let this = Arc::clone(self);
        let read = move || {
            let mut buffer = vec![0; MAX_BYTES];
            loop {
                match reading.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(n) if this.send(number, &buffer[..n]).is_ok() => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    _ => break,
                }
            }
            // If the other end has ended it, there is nothing to say.
            if lock(&this.open).remove(&number).is_some() {
                let _ = this.send(number, &[]);
            }
        };
        let started = thread::Builder::new().spawn(read);
        if started.is_err() {
            lock(&self.open).remove(&number);
        }
        started.map(drop)
    }

    /// Passes the other end's frames on, until it ends. `open` is called for empty ones, and
    /// returns whether this was a new connection.
    fn deliver(
        &self,
        mut input: impl Read,
        mut open: impl FnMut(u32) -> io::Result<bool>,
    ) -> io::Result<()> {
        let result = loop {
            let frame = match frame(&mut input) {
                Ok(Some(frame)) => frame,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            if let Err(error) = self.take(frame, &mut open) {
                break Err(error);
            }
        };
        for (_, stream) in lock(&self.open).drain() {
            // Wakes the thread that reads from it.
            let _ = stream.shutdown(Shutdown::Both);
        }
        result
    }

    fn take(
        &self,
        (number, bytes): (u32, Vec<u8>),
        open: &mut impl FnMut(u32) -> io::Result<bool>,
    ) -> io::Result<()> {
        if bytes.is_empty() {
            if !open(number)?
                && let Some(stream) = lock(&self.open).remove(&number)
            {
                let _ = stream.shutdown(Shutdown::Both);
            }
            return Ok(());
        }
        // It may have ended here, and the other end does not know yet.
        let stream = lock(&self.open).get(&number).map(TcpStream::try_clone).transpose()?;
        if let Some(mut stream) = stream
            && stream.write_all(&bytes).is_err()
        {
            // The thread that reads from it reports the end.
            let _ = stream.shutdown(Shutdown::Both);
        }
        Ok(())
    }
}

/// Reads a frame. Returns `None` at the end of the stream.
fn frame(input: &mut impl Read) -> io::Result<Option<(u32, Vec<u8>)>> {
    let mut head = [0; 8];
    match input.read_exact(&mut head) {
        // Part of a frame at the end is no error: its sender has died.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let [a, b, c, d, e, f, g, h] = head;
    let size = u32::from_le_bytes([e, f, g, h]) as usize;
    if size > MAX_BYTES {
        return Err(invalid("not a frame"));
    }
    let mut bytes = vec![0; size];
    match input.read_exact(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    Ok(Some((u32::from_le_bytes([a, b, c, d]), bytes)))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    fn local() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        (listener, at)
    }

    fn client(at: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// A relay to a server. Returns the node's address, and a stream whose end ends the relay.
    fn relay(server: SocketAddr) -> (SocketAddr, UnixStream) {
        let (node, host) = UnixStream::pair().unwrap();
        let (listener, at) = local();
        let (out, keep) = (node.try_clone().unwrap(), host.try_clone().unwrap());
        thread::spawn(move || serve(listener, node, out));
        let out = host.try_clone().unwrap();
        thread::spawn(move || join(host, out, || TcpStream::connect(server)));
        (at, keep)
    }

    #[test]
    fn connections_are_carried_apart() {
        let (listener, server) = local();
        // Answers with each byte plus one, and ends after 9.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let mut byte = [0];
                    let (mut from, mut to) = (&stream, &stream);
                    while from.read(&mut byte).unwrap() > 0 {
                        to.write_all(&[byte[0].wrapping_add(1)]).unwrap();
                        if byte[0] == 9 {
                            break;
                        }
                    }
                });
            }
        });
        let (at, _keep) = relay(server);
        let mut clients: Vec<_> = (0..5).map(|_| client(at)).collect();
        for (number, client) in clients.iter_mut().enumerate().rev() {
            client.write_all(&[20 + number as u8]).unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte[0], 21 + number as u8);
        }
        // The server's end arrives, and others stay.
        clients[1].write_all(&[9]).unwrap();
        let mut rest = Vec::new();
        clients[1].read_to_end(&mut rest).unwrap();
        assert_eq!(rest, [10]);
        // More than a frame has.
        let many = vec![3; 3 * MAX_BYTES + 1];
        let mut writing = clients[2].try_clone().unwrap();
        let sent = many.clone();
        let writer = thread::spawn(move || writing.write_all(&sent));
        let mut back = vec![0; many.len()];
        clients[2].read_exact(&mut back).unwrap();
        writer.join().unwrap().unwrap();
        assert!(back.iter().all(|byte| *byte == 4));
    }

    #[test]
    fn clients_end_without_a_server() {
        let (listener, absent) = local();
        drop(listener);
        let (at, keep) = relay(absent);
        let mut one = client(at);
        one.write_all(b"x").unwrap();
        assert_eq!(one.read(&mut [0]).unwrap_or(0), 0);
        let mut other = client(at);
        keep.shutdown(Shutdown::Both).unwrap();
        assert_eq!(other.read(&mut [0]).unwrap_or(0), 0);
    }

    #[test]
    fn bad_frames_end_a_relay() {
        let refuse = || -> io::Result<TcpStream> { Err(invalid("none")) };
        let ended = |bytes: &[u8]| join(bytes, io::sink(), refuse).map_err(|error| error.kind());
        let [zero, one] = [0u32, 1].map(u32::to_le_bytes);
        let long = (MAX_BYTES as u32 + 1).to_le_bytes();
        assert_eq!(ended(&[zero, long].concat()), Err(io::ErrorKind::InvalidData));
        assert_eq!(ended(&[[0xff; 4], zero].concat()), Err(io::ErrorKind::InvalidData));
        assert_eq!(ended(&[zero, one].concat()), Ok(()));
        assert_eq!(ended(&zero), Ok(()));
        assert_eq!(ended(b""), Ok(()));
    }

    #[test]
    fn bytes_of_all_connections_are_passed_in_turn() {
        let (listener, server) = local();
        let [zero, one, two] = [0u32, 1, 2].map(u32::to_le_bytes);
        // Two are opened before any has sent, the second one sends first, and a third never opens.
        let frames = [
            [zero, zero].concat(),
            [one, zero].concat(),
            [&one[..], &one, b"b"].concat(),
            [&two[..], &one, b"c"].concat(),
            [&zero[..], &one, b"a"].concat(),
        ];
        let got = thread::spawn(move || {
            let mut streams = listener.incoming().take(2);
            let mut byte = || {
                let mut byte = [0];
                streams.next().unwrap().unwrap().read_exact(&mut byte).unwrap();
                byte[0]
            };
            [byte(), byte()]
        });
        join(&frames.concat()[..], io::sink(), || TcpStream::connect(server)).unwrap();
        assert_eq!(&got.join().unwrap(), b"ab");
    }
}
