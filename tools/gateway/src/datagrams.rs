//! Datagrams between a client and a port of a node.
//!
//! They are sent over a stream, each after its length in two bytes, big endian. A datagram for
//! which there is no room is lost, as it may be anywhere in the network.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;
use smoltcp::socket::udp;
use smoltcp::wire::IpEndpoint;

/// The most datagrams that wait in the stack in each direction, and the most bytes.
const WAITING: usize = 64;
const BUFFER: usize = 128 << 10;
/// Bytes that may wait for a client that does not read.
const MOST_OUTPUT: usize = 256 << 10;
/// Bytes that are read from a client at a time.
const CHUNK: usize = 16 << 10;

/// A socket for one flow.
pub(crate) fn socket() -> udp::Socket<'static> {
    let buffer =
        || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; WAITING], vec![0; BUFFER]);
    udp::Socket::new(buffer(), buffer())
}

/// Joins a client with a node's port.
pub(crate) struct Flow {
    client: UnixStream,
    node: IpEndpoint,
    /// Longest datagram that fits into a packet.
    most: usize,
    /// True if the client has sent something; before that there are no answers.
    spoken: bool,
    /// Input from the client that is not complete.
    input: Vec<u8>,
    /// Output that the client has not taken yet.
    output: Vec<u8>,
}

impl Flow {
    pub(crate) fn new(client: UnixStream, node: IpEndpoint, most: usize) -> Self {
        Self { client, node, most, spoken: false, input: Vec::new(), output: Vec::new() }
    }

    /// The client, and what to wait for from it.
    pub(crate) fn watched(&self) -> (&UnixStream, PollFlags) {
        let out = if self.output.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        (&self.client, PollFlags::IN | out)
    }

    /// Moves datagrams both ways; returns whether the stack then has work to do.
    ///
    /// # Errors
    ///
    /// If the client has gone.
    pub(crate) fn advance(
        &mut self,
        socket: &mut udp::Socket<'_>,
        events: PollFlags,
    ) -> io::Result<bool> {
        let mut moved = false;
        if events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            self.read()?;
            moved = self.send(socket);
        }
        while let Ok((data, from)) = socket.recv() {
            // Datagrams of other senders are ignored.
            let expected = self.spoken && from.endpoint == self.node;
            if !expected || self.output.len() > MOST_OUTPUT {
                continue;
            }
            // An IP packet has no longer ones.
            let length = data.len().min(u16::MAX.into()) as u16;
            self.output.extend_from_slice(&length.to_be_bytes());
            self.output.extend_from_slice(&data[..length.into()]);
        }
        while !self.output.is_empty() {
            match self.client.write(&self.output) {
                Ok(n) => drop(self.output.drain(..n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Reads what the client has sent, at most a little more than one datagram.
    fn read(&mut self) -> io::Result<()> {
        let most = 2 + usize::from(u16::MAX);
        while self.input.len() < most {
            let have = self.input.len();
            self.input.resize(have + CHUNK, 0);
            let result = self.client.read(&mut self.input[have..]);
            self.input.truncate(have + result.as_ref().copied().unwrap_or(0));
            match result {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends the datagrams that are complete; returns whether there were any.
    fn send(&mut self, socket: &mut udp::Socket<'_>) -> bool {
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Some((length, data)) = rest.split_first_chunk() {
            let Some((datagram, behind)) =
                data.split_at_checked(u16::from_be_bytes(*length).into())
            else {
                break;
            };
            rest = behind;
            self.spoken = true;
            if datagram.len() > self.most {
                log::debug!("gateway: a datagram of {} bytes is too long", datagram.len());
            } else if socket.send_slice(datagram, self.node).is_err() {
                log::trace!("gateway: no room for a datagram");
            }
        }
        let used = input.len() - rest.len();
        self.input = rest.to_vec();
        used > 0
    }
}

#[cfg(test)]
mod tests {
    use smoltcp::wire::{IpAddress, Ipv4Address};

    use super::*;

    fn flow() -> (Flow, UnixStream, udp::Socket<'static>) {
        let (client, own) = UnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        let node = IpEndpoint::new(IpAddress::Ipv4(Ipv4Address::new(10, 0, 0, 5)), 53);
        let mut socket = socket();
        socket.bind(50_000).unwrap();
        (Flow::new(own, node, 1472), client, socket)
    }

    /// Datagrams are extracted from the stream for any split of it, and long ones are dropped.
    #[test]
    fn datagrams_are_cut_out_of_the_stream() {
        let (mut flow, mut client, mut socket) = flow();
        let mut bytes = vec![0, 3, 1, 2, 3, 0, 0, 0, 1, 9];
        bytes.extend_from_slice(&1473u16.to_be_bytes());
        bytes.extend(std::iter::repeat_n(7, 1473));
        bytes.extend_from_slice(&[0, 2, 5, 6]);
        for byte in bytes {
            client.write_all(&[byte]).unwrap();
            flow.advance(&mut socket, PollFlags::IN).unwrap();
        }
        assert!(flow.input.is_empty());
        // Datagrams of 3, 0, 1 and 2 bytes.
        assert_eq!(socket.send_queue(), 6);
        // A part of one waits for the rest.
        client.write_all(&[0, 2, 1]).unwrap();
        assert!(!flow.advance(&mut socket, PollFlags::IN).unwrap());
        assert_eq!((flow.input.len(), socket.send_queue()), (3, 6));
    }

    #[test]
    fn stream_ends_with_its_client() {
        let (mut flow, client, mut socket) = flow();
        assert!(!flow.advance(&mut socket, PollFlags::empty()).unwrap());
        drop(client);
        assert!(flow.advance(&mut socket, PollFlags::IN).is_err());
    }
}
