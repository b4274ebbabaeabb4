//! The other end of the protocol: a program that drives a device.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard};

use rustix::io::Errno;
use thiserror::Error;
use tofu_abi::pci::REGISTER_BAR;
use tofu_sync::lock;

use crate::channel::{ChannelError, read, send_with};
use crate::wire::{
    Fields, HEADER_SIZE, Header, MAX_BODY, MAX_DATA, MAX_SENT_FDS, VERSION, command, dma, io_fd,
    irq, put, put_long, region,
};

/// The reason why a client's request has failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// There is no connection, or not any more.
    #[error("the device's server is gone: {0}")]
    Socket(io::Error),
    /// The server does not keep to the protocol.
    #[error("the device's server answers with {0}")]
    Protocol(&'static str),
    /// The server refuses.
    #[error("the device's server refuses: {0}")]
    Refused(Errno),
}

impl From<ChannelError> for ClientError {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Socket(error) => Self::Socket(error),
            error => Self::Socket(io::Error::new(io::ErrorKind::UnexpectedEof, error)),
        }
    }
}

/// A client of a device's server. Dropping it releases the device, which resets it.
///
/// A process that forks shares the connection with its child; only one of the two may use it.
#[derive(Debug)]
pub struct Client(Mutex<Stream>);

#[derive(Debug)]
struct Stream {
    socket: UnixStream,
    next_id: u16,
}

/// Pages of the registers that can be mapped: doorbells are polled.
#[derive(Debug)]
pub struct MappedPages {
    /// The file to map: an offset in it is one in the region of the registers.
    pub file: OwnedFd,
    /// Offset and size of each mappable part, in bytes.
    pub areas: Vec<(u64, u64)>,
}

/// A doorbell that rings when an event is signalled.
#[derive(Debug)]
pub struct Doorbell {
    /// Offset of the register in the region of the registers, in bytes.
    pub offset: u64,
    /// Its eventfd.
    pub event: OwnedFd,
}

impl Client {
    /// Negotiates the protocol with the server at the other end of `socket`. The server sends up to
    /// `descriptors` descriptors at a time, 72 at most: one for each of that many doorbells.
    ///
    /// # Errors
    ///
    /// If there is no answer, or the server has another protocol.
    pub fn new(socket: UnixStream, descriptors: usize) -> Result<Self, ClientError> {
        let client = Self(Mutex::new(Stream { socket, next_id: 0 }));
        let capabilities = serde_json::json!({ "capabilities": {
            "max_msg_fds": descriptors.min(MAX_SENT_FDS),
            "max_data_xfer_size": MAX_DATA,
        }});
        let mut body = [VERSION.0.to_ne_bytes(), VERSION.1.to_ne_bytes()].concat();
        body.extend_from_slice(capabilities.to_string().as_bytes());
        body.push(0);
        let (reply, _) = client.call(command::VERSION, &body, &[])?;
        match Fields(&reply).u16() {
            Ok(major) if major == VERSION.0 => Ok(client),
            _ => Err(ClientError::Protocol("another version of the protocol")),
        }
    }

    fn stream(&self) -> MutexGuard<'_, Stream> {
        lock(&self.0)
    }

    /// Sends a command; returns the body of the answer and its descriptors.
    fn call(
        &self,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), ClientError> {
        let mut stream = self.stream();
        let id = stream.next_id;
        stream.next_id = id.wrapping_add(1);
        stream.send(id, command, true, body, fds)?;
        stream.answer(id, command)
    }

    /// Reads from a region, and waits for the answer.
    ///
    /// # Errors
    ///
    /// If the part is not in the region, or the server is gone.
    pub fn region_read(
        &self,
        region: u32,
        offset: u64,
        data: &mut [u8],
    ) -> Result<(), ClientError> {
        let body = access(region, offset, data.len());
        let (reply, _) = self.call(command::REGION_READ, &body, &[])?;
        let read = reply.get(body.len()..).filter(|read| read.len() == data.len());
        data.copy_from_slice(read.ok_or(ClientError::Protocol("another amount of data"))?);
        Ok(())
    }

    /// Writes to a region. There is no answer that says whether it was possible. Later messages
    /// arrive after it.
    ///
    /// # Errors
    ///
    /// If the server is gone.
    pub fn region_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let mut body = access(region, offset, data.len()).to_vec();
        body.extend_from_slice(data);
        Ok(self.stream().send(0, command::REGION_WRITE, false, &body, &[])?)
    }

    /// Makes `size` bytes available to the device at `address`: those of `file` from `offset` on
    /// or, if the server supports it ([`Backing::Process`](crate::Backing::Process)), of this
    /// process's memory at `offset`.
    ///
    /// # Errors
    ///
    /// If the server refuses, or is gone.
    pub fn map(
        &self,
        address: u64,
        size: u64,
        offset: u64,
        writable: bool,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), ClientError> {
        let rights = if writable { dma::READ | dma::WRITE } else { dma::READ };
        let mut body = Vec::with_capacity(32);
        put(&mut body, &[32, rights]);
        put_long(&mut body, &[offset, address, size]);
        self.call(command::DMA_MAP, &body, file.as_slice()).map(drop)
    }

    /// Unmaps memory. When this returns the device can no longer reach it.
    ///
    /// # Errors
    ///
    /// If the server refuses, or is gone.
    pub fn unmap(&self, address: u64, size: u64) -> Result<(), ClientError> {
        let mut body = Vec::with_capacity(24);
        put(&mut body, &[24, 0]);
        put_long(&mut body, &[address, size]);
        self.call(command::DMA_UNMAP, &body, &[]).map(drop)
    }

    /// The parts of a BAR that can be mapped; `None` if there are none.
    ///
    /// # Errors
    ///
    /// If the server is gone, or does not keep to the protocol.
    pub fn mapped_pages(&self, bar: u8) -> Result<Option<MappedPages>, ClientError> {
        const SIZE: u32 = 32;
        let ask = |argsz: u32| {
            let mut body = Vec::with_capacity(SIZE as usize);
            put(&mut body, &[argsz, 0, bar.into(), 0]);
            put_long(&mut body, &[0, 0]);
            self.call(command::DEVICE_GET_REGION_INFO, &body, &[])
        };
        let malformed = |_| ClientError::Protocol("a malformed description of its registers");
        let (reply, _) = ask(SIZE)?;
        let whole = Fields(&reply).u32().map_err(malformed)?;
        let (reply, fds) = ask(whole.clamp(SIZE, MAX_BODY as u32))?;
        let parse = || {
            let mut fields = Fields(&reply);
            let (_argsz, flags, _index) = (fields.u32()?, fields.u32()?, fields.u32()?);
            let at = fields.u32()? as usize;
            if flags & (region::MMAP | region::CAPS) != region::MMAP | region::CAPS {
                return Ok(Vec::new());
            }
            let mut fields = Fields(reply.get(at..).ok_or(Errno::INVAL)?);
            let (kind, _next) = (fields.u32()?, fields.u32()?);
            let (count, _reserved) = (fields.u32()?, fields.u32()?);
            let count = if kind == region::SPARSE_MMAP { count } else { 0 };
            (0..count).map(|_| Ok((fields.u64()?, fields.u64()?))).collect()
        };
        let areas: Vec<_> = parse().map_err(malformed)?;
        let file = fds.into_iter().next().filter(|_| !areas.is_empty());
        Ok(file.map(|file| MappedPages { file, areas }))
    }

    /// Doorbells that can be rung without a message, those of the first queue of each interface
    /// first; none if they are polled.
    ///
    /// # Errors
    ///
    /// If the server is gone, or does not keep to the protocol.
    pub fn doorbells(&self) -> Result<Vec<Doorbell>, ClientError> {
        const SIZE: u32 = 16;
        let ask = |argsz: u32| {
            let mut body = Vec::with_capacity(SIZE as usize);
            put(&mut body, &[argsz, 0, REGISTER_BAR.into(), 0]);
            self.call(command::DEVICE_GET_REGION_IO_FDS, &body, &[])
        };
        let malformed = |_| ClientError::Protocol("a malformed description of its doorbells");
        let (reply, _) = ask(SIZE)?;
        let whole = Fields(&reply).u32().map_err(malformed)?;
        let (reply, fds) = ask(whole.clamp(SIZE, MAX_BODY as u32))?;
        let mut fds: Vec<Option<OwnedFd>> = fds.into_iter().map(Some).collect();
        let mut parse = || {
            let mut fields = Fields(&reply);
            let (_argsz, _flags, _index) = (fields.u32()?, fields.u32()?, fields.u32()?);
            let count = fields.u32()?;
            let mut bells = Vec::new();
            for _ in 0..count {
                let (offset, _size) = (fields.u64()?, fields.u64()?);
                let (fd, kind) = (fields.u32()? as usize, fields.u32()?);
                let (_flags, _reserved) = (fields.u32()?, fields.u32()?);
                let _datamatch = fields.u64()?;
                if let Some(event) = fds.get_mut(fd).and_then(Option::take)
                    && kind == io_fd::IOEVENTFD
                {
                    bells.push(Doorbell { offset, event });
                }
            }
            Ok(bells)
        };
        parse().map_err(malformed)
    }

    /// Connects an MSI-X vector to an eventfd.
    ///
    /// # Errors
    ///
    /// If there is no such vector, or the server is gone.
    pub fn bind_vector(&self, vector: u16, event: BorrowedFd<'_>) -> Result<(), ClientError> {
        let mut body = Vec::with_capacity(20);
        let flags = irq::DATA_EVENTFD | irq::ACTION_TRIGGER;
        put(&mut body, &[20, flags, irq::MSIX, vector.into(), 1]);
        self.call(command::DEVICE_SET_IRQS, &body, &[event]).map(drop)
    }
}

/// The header of REGION_READ and REGION_WRITE.
fn access(region: u32, offset: u64, len: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&offset.to_ne_bytes());
    bytes[8..12].copy_from_slice(&region.to_ne_bytes());
    bytes[12..].copy_from_slice(&(len as u32).to_ne_bytes());
    bytes
}

impl Stream {
    fn send(
        &mut self,
        id: u16,
        command: u16,
        wants_reply: bool,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let mut message = Vec::with_capacity(HEADER_SIZE + body.len());
        message.extend_from_slice(&Header::command(id, command, body.len(), wants_reply));
        message.extend_from_slice(body);
        let mut sent = send_with(&self.socket, &message, fds)?;
        while sent < message.len() {
            // Not by `write`: a server that is gone must not end this process by a signal.
            sent += send_with(&self.socket, &message[sent..], &[])?;
        }
        Ok(())
    }

    fn answer(&mut self, id: u16, command: u16) -> Result<(Vec<u8>, Vec<OwnedFd>), ClientError> {
        let mut fds = Ok(Vec::new());
        let mut bytes = [0; HEADER_SIZE];
        if read(&self.socket, &mut bytes, &mut fds, MAX_SENT_FDS)? < HEADER_SIZE {
            return Err(ChannelError::Cut.into());
        }
        let header = Header::parse(bytes);
        let other = ClientError::Protocol("something else than an answer");
        let result = header.outcome().filter(|_| (header.id, header.command) == (id, command));
        let result = result.ok_or(other)?;
        let length = (header.size as usize).checked_sub(HEADER_SIZE);
        let length = length.filter(|&length| length <= MAX_BODY);
        let mut body = vec![0; length.ok_or(ClientError::Protocol("an impossible size"))?];
        if read(&self.socket, &mut body, &mut fds, MAX_SENT_FDS)? < body.len() {
            return Err(ChannelError::Cut.into());
        }
        result.map_err(ClientError::Refused)?;
        let fds = fds.map_err(|_| ClientError::Protocol("too many descriptors"))?;
        Ok((body, fds))
    }
}
