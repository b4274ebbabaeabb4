//! A client's socket: whole messages with their descriptors.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use thiserror::Error;

use crate::wire::{HEADER_SIZE, Header, MAX_BODY, MAX_FDS, MAX_SENT_FDS};

/// The most bytes of one read. They may be several messages: a register access is far shorter.
const BUFFER: usize = 1024;

/// The reason why no more messages can be received from a client.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// The socket does not work.
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
    /// The client has gone in the middle of a message.
    #[error("the client has closed its socket in the middle of a message")]
    Cut,
    /// No message has this size, in bytes with its header: where the next one begins is unknown.
    #[error("a message of {0} bytes")]
    Size(u32),
    /// The client sent something that is not a command.
    #[error("a message that is no command")]
    NoCommand,
}

/// A message without its body, which is in [`Channel::body`].
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) fds: Fds,
}

pub(crate) struct Channel {
    socket: UnixStream,
    body: Vec<u8>,
    /// Bytes that were read and belong to no message yet, from `start` to `end`.
    buffer: Box<[u8; BUFFER]>,
    start: usize,
    end: usize,
    /// The descriptors that came with the last bytes of it. They belong to the message that has
    /// the byte before this place.
    fds: Option<(usize, Fds)>,
}

/// Descriptors. If there were too many, this is an error, and they have been closed.
type Fds = Result<Vec<OwnedFd>, Errno>;

impl Channel {
    pub(crate) fn new(socket: UnixStream) -> Self {
        let buffer = Box::new([0; BUFFER]);
        Self { socket, body: Vec::new(), buffer, start: 0, end: 0, fds: None }
    }

    /// Returns true if bytes of the next message were read already.
    pub(crate) fn has_read_ahead(&self) -> bool {
        self.start < self.end
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// The body of the last message.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Waits for the next message; `None` if the client has left.
    ///
    /// A message of an impossible size is answered before this fails.
    pub(crate) fn receive(&mut self) -> Result<Option<Message>, ChannelError> {
        let mut fds = Ok(Vec::new());
        let bytes = loop {
            if let Some(bytes) = self.buffer[self.start..self.end].first_chunk::<HEADER_SIZE>() {
                break *bytes;
            }
            if !self.fill(&mut fds)? {
                return if self.has_read_ahead() { Err(ChannelError::Cut) } else { Ok(None) };
            }
        };
        self.start += HEADER_SIZE;
        let header = Header::parse(bytes);
        if !header.is_command() {
            return Err(ChannelError::NoCommand);
        }
        let length = (header.size as usize).checked_sub(HEADER_SIZE);
        let Some(length) = length.filter(|&length| length <= MAX_BODY) else {
            self.reply(header, &mut vec![0; HEADER_SIZE], Err(Errno::INVAL), &[])?;
            return Err(ChannelError::Size(header.size));
        };
        self.body.resize(length, 0);
        let (here, there) = self.body.split_at_mut(length.min(self.end - self.start));
        here.copy_from_slice(&self.buffer[self.start..self.start + here.len()]);
        self.start += here.len();
        if let Some((_, ours)) = self.fds.take_if(|(place, _)| *place <= self.start) {
            join(&mut fds, ours, MAX_FDS);
        }
        if read(&self.socket, there, &mut fds, MAX_FDS)? < there.len() {
            return Err(ChannelError::Cut);
        }
        Ok(Some(Message { header, fds }))
    }

    /// Reads the available bytes, at least one. Returns false if the stream has ended. `fds` gets
    /// the descriptors that were there before, which are those of the message that is not complete.
    fn fill(&mut self, fds: &mut Fds) -> Result<bool, ChannelError> {
        if let Some((_, ours)) = self.fds.take() {
            join(fds, ours, MAX_FDS);
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let mut new = Ok(Vec::new());
        let read = read_once(&self.socket, &mut self.buffer[self.end..], &mut new, MAX_FDS)?;
        self.end += read;
        if !new.as_ref().is_ok_and(Vec::is_empty) {
            self.fds = Some((self.end, new));
        }
        Ok(read > 0)
    }

    /// Answers a message, if its sender wants an answer. `message` has room for the header before
    /// its body. Descriptors are sent only with an answer that is no error.
    pub(crate) fn reply(
        &mut self,
        header: Header,
        message: &mut Vec<u8>,
        result: Result<(), Errno>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        if !header.wants_reply() {
            return Ok(());
        }
        header.reply(message, result);
        let mut sent = 0;
        if result.is_ok() && !fds.is_empty() {
            sent = send_with(&self.socket, message, fds)?;
        }
        // The answer is sent in one piece, because QEMU treats a header in two pieces as an error.
        self.socket.write_all(&message[sent..])?;
        Ok(())
    }
}

/// Sends the beginning of a message with its descriptors, if any; returns how many bytes.
pub(crate) fn send_with(
    socket: &UnixStream,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, ChannelError> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_SENT_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from(Errno::MFILE).into());
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return Ok(sent.map_err(io::Error::from)?),
        }
    }
}

/// Reads until `buffer` is full or the stream ends; returns how much there was. More than `most`
/// descriptors, with those in `fds` already, are an error; at most [`MAX_SENT_FDS`] are possible.
pub(crate) fn read(
    socket: &UnixStream,
    buffer: &mut [u8],
    fds: &mut Fds,
    most: usize,
) -> Result<usize, ChannelError> {
    let mut done = 0;
    while done < buffer.len() {
        match read_once(socket, &mut buffer[done..], fds, most)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Reads the available bytes, at least one unless the stream ends, and otherwise like [`read`]. The
/// kernel returns no bytes that were sent after descriptors together with these.
fn read_once(
    socket: &UnixStream,
    buffer: &mut [u8],
    fds: &mut Fds,
    most: usize,
) -> Result<usize, ChannelError> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_SENT_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(buffer)];
    let received = loop {
        match recvmsg(socket, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received.map_err(io::Error::from)?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(new) = message {
            join(fds, Ok(new.collect()), most);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        *fds = Err(Errno::INVAL);
    }
    Ok(received.bytes)
}

/// Adds descriptors to others. More than `most` are an error.
fn join(fds: &mut Fds, more: Fds, most: usize) {
    let all = std::mem::replace(fds, Err(Errno::INVAL)).and_then(|mut all| {
        all.extend(more?);
        Ok(all)
    });
    *fds = all.and_then(|all| if all.len() > most { Err(Errno::INVAL) } else { Ok(all) });
}

#[cfg(test)]
mod tests {
    use std::io::pipe;
    use std::os::fd::AsFd;

    use super::*;

    /// A command of this number. Its body has `len` bytes, all equal to the number.
    fn command(number: u8, len: usize) -> Vec<u8> {
        let mut message = vec![number; HEADER_SIZE + len];
        message[..HEADER_SIZE].fill(0);
        message[2] = number;
        message[4..8].copy_from_slice(&((HEADER_SIZE + len) as u32).to_ne_bytes());
        message
    }

    /// The next message's number, length of the body, and descriptors.
    fn next(channel: &mut Channel) -> (u16, usize, Option<usize>) {
        let Message { header, fds } = channel.receive().unwrap().unwrap();
        let body = channel.body();
        assert!(body.iter().all(|byte| u16::from(*byte) == header.command), "{body:?}");
        (header.command, body.len(), fds.ok().map(|fds| fds.len()))
    }

    #[test]
    fn joined_messages_are_told_apart() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(server);
        let lengths = [0, 8, BUFFER - HEADER_SIZE, 3 * BUFFER, 24, BUFFER];
        let all: Vec<u8> = (1..).zip(lengths).flat_map(|(n, len)| command(n, len)).collect();
        client.write_all(&all).unwrap();
        client.write_all(&command(9, 40)[..20]).unwrap();
        for (n, len) in (1..).zip(lengths) {
            assert_eq!(next(&mut channel), (n, len, Some(0)));
            assert!(n > 1 || channel.has_read_ahead());
        }
        drop(client);
        assert!(matches!(channel.receive(), Err(ChannelError::Cut)));
    }

    #[test]
    fn descriptors_stay_with_their_message() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(server);
        let (read, write) = pipe().unwrap();
        let two = [read.as_fd(), write.as_fd()];
        client.write_all(&command(1, 8)).unwrap();
        send_with(&client, &command(2, 8), &two).unwrap();
        client.write_all(&command(3, 8)).unwrap();
        send_with(&client, &command(4, 2 * BUFFER), &two[..1]).unwrap();
        for (n, len, fds) in [(1, 8, 0), (2, 8, 2), (3, 8, 0), (4, 2 * BUFFER, 1)] {
            assert_eq!(next(&mut channel), (n, len, Some(fds)));
        }
        // Descriptors come in the middle of the body, and of the header.
        let message = command(5, 8);
        client.write_all(&message[..7]).unwrap();
        send_with(&client, &message[7..12], &two).unwrap();
        send_with(&client, &message[12..20], &two[..1]).unwrap();
        client.write_all(&message[20..]).unwrap();
        assert_eq!(next(&mut channel), (5, 8, Some(3)));
        // Together they are too many.
        let many = [read.as_fd(); MAX_FDS];
        let message = command(6, 8);
        send_with(&client, &message[..12], &many).unwrap();
        send_with(&client, &message[12..], &two[..1]).unwrap();
        send_with(&client, &command(7, 0), &many).unwrap();
        assert_eq!(next(&mut channel), (6, 8, None));
        assert_eq!(next(&mut channel), (7, 0, Some(MAX_FDS)));
        assert!(!channel.has_read_ahead());
    }
}
