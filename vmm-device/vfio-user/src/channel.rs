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

/// Why no more messages can be had from a client.
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
    /// The descriptors; an error if there were too many, and then they are closed.
    pub(crate) fds: Result<Vec<OwnedFd>, Errno>,
}

pub(crate) struct Channel {
    socket: UnixStream,
    body: Vec<u8>,
}

impl Channel {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, body: Vec::new() }
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
        let mut bytes = [0; HEADER_SIZE];
        match read(&self.socket, &mut bytes, &mut fds, MAX_FDS)? {
            0 => return Ok(None),
            HEADER_SIZE => {}
            _ => return Err(ChannelError::Cut),
        }
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
        if read(&self.socket, &mut self.body, &mut fds, MAX_FDS)? < length {
            return Err(ChannelError::Cut);
        }
        Ok(Some(Message { header, fds }))
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
        // In one piece: QEMU takes a header that comes in two as an error.
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
    fds: &mut Result<Vec<OwnedFd>, Errno>,
    most: usize,
) -> Result<usize, ChannelError> {
    let mut done = 0;
    while done < buffer.len() {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_SENT_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(&mut buffer[done..])];
        let received = match recvmsg(socket, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            received => received.map_err(io::Error::from)?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(new) = message
                && let Ok(fds) = fds
            {
                fds.extend(new);
            }
        }
        let too_many = fds.as_ref().is_ok_and(|fds| fds.len() > most);
        if too_many || received.flags.contains(ReturnFlags::CTRUNC) {
            *fds = Err(Errno::INVAL);
        }
        if received.bytes == 0 {
            break;
        }
        done += received.bytes;
    }
    Ok(done)
}
