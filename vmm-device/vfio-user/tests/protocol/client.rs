//! A vfio-user client, written from the protocol's description and not from the server.
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_machine::{Doorbells, Machine, MachineConfig};
use tofu_vfio_user::{Backing, ClientMemory, ClientPages, Error, Limits, Server};

pub(crate) const VERSION: u16 = 1;
pub(crate) const DMA_MAP: u16 = 2;
pub(crate) const DMA_UNMAP: u16 = 3;
pub(crate) const GET_INFO: u16 = 4;
pub(crate) const GET_REGION_INFO: u16 = 5;
pub(crate) const GET_REGION_IO_FDS: u16 = 6;
pub(crate) const GET_IRQ_INFO: u16 = 7;
pub(crate) const SET_IRQS: u16 = 8;
pub(crate) const REGION_READ: u16 = 9;
pub(crate) const REGION_WRITE: u16 = 10;
pub(crate) const RESET: u16 = 13;
pub(crate) const WRITE_MULTI: u16 = 15;

pub(crate) const CONFIG: u32 = 7;
pub(crate) const MSIX: u32 = 2;
pub(crate) const EVENTFDS: u32 = 0x24;

/// Rights of the device to mapped memory.
pub(crate) const READ: u32 = 1;
pub(crate) const WRITE: u32 = 2;

pub(crate) const EPERM: u32 = 1;
pub(crate) const EACCES: u32 = 13;
pub(crate) const EEXIST: u32 = 17;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;
pub(crate) const EOPNOTSUPP: u32 = 95;

/// Joins 32-bit words to a message's body.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub(crate) fn header(id: u16, command: u16, size: u32, flags: u32) -> Vec<u8> {
    let mut bytes = [id.to_ne_bytes(), command.to_ne_bytes()].concat();
    bytes.extend(words(&[size, flags, 0]));
    bytes
}

/// One end of a connection.
pub(crate) struct Client {
    pub(crate) socket: UnixStream,
    next_id: u16,
    pub(crate) received: Vec<OwnedFd>,
}

impl Client {
    pub(crate) fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { socket, next_id: 1, received: Vec::new() }
    }

    pub(crate) fn send_raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let pieces = [IoSlice::new(bytes)];
        let sent = sendmsg(&self.socket, &pieces, &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    pub(crate) fn post(&mut self, command: u16, body: &[u8]) {
        let mut message = header(0, command, 16 + body.len() as u32, 1 << 4);
        message.extend(body);
        self.send_raw(&message, &[]);
    }

    /// Sends a command and returns the body of its reply, or the errno.
    pub(crate) fn try_call(
        &mut self,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, u32> {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let mut message = header(id, command, 16 + body.len() as u32, 0);
        message.extend(body);
        self.send_raw(&message, fds);
        let (reply, flags, errno, body) = self.receive();
        assert_eq!(reply, (id, command));
        match flags {
            1 => Ok(body),
            0x21 => {
                assert!(body.is_empty());
                assert_ne!(errno, 0);
                Err(errno)
            }
            _ => panic!("reply with flags {flags:#x}"),
        }
    }

    /// Sends a command; returns the body of its reply and the descriptors that come with it.
    pub(crate) fn call_for_fds(&mut self, command: u16, body: &[u8]) -> (Vec<u8>, Vec<OwnedFd>) {
        let body = self.call(command, body);
        (body, std::mem::take(&mut self.received))
    }

    /// Id and command, flags, errno and body of the next message. Its descriptors are kept in
    /// `received`, replacing earlier ones.
    pub(crate) fn receive(&mut self) -> ((u16, u16), u32, u32, Vec<u8>) {
        let mut head = [0; 16];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(128))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(&mut head)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        assert_eq!(recvmsg(&self.socket, &mut pieces, &mut control, flags).unwrap().bytes, 16);
        self.received.clear();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.received.extend(fds);
            }
        }
        let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        let mut body = vec![0; word(4) as usize - 16];
        self.socket.read_exact(&mut body).unwrap();
        ((half(0), half(2)), word(8), word(12), body)
    }

    /// True if the server has closed the connection, after its last messages.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    pub(crate) fn call(&mut self, command: u16, body: &[u8]) -> Vec<u8> {
        self.try_call(command, body, &[]).unwrap()
    }

    pub(crate) fn negotiate(&mut self) -> String {
        self.negotiate_for(8)
    }

    /// Accepts `fds` descriptors with a message.
    pub(crate) fn negotiate_for(&mut self, fds: usize) -> String {
        let mut body = words(&[0]);
        let capabilities = format!("{{\"max_msg_fds\":{fds},\"max_data_xfer_size\":1048576}}");
        body.extend(format!("{{\"capabilities\":{capabilities}}}\0").as_bytes());
        let reply = self.call(VERSION, &body);
        assert_eq!(reply[..4], [0; 4], "no newer version than the client's");
        String::from_utf8(reply[4..].to_vec()).unwrap()
    }

    pub(crate) fn try_map(&mut self, file: Option<&impl AsFd>, place: [u64; 3]) -> Result<(), u32> {
        self.try_map_for(READ | WRITE, file, place)
    }

    pub(crate) fn try_map_for(
        &mut self,
        rights: u32,
        file: Option<&impl AsFd>,
        [offset, address, size]: [u64; 3],
    ) -> Result<(), u32> {
        let mut body = words(&[32, rights]);
        body.extend([offset, address, size].iter().flat_map(|word| word.to_ne_bytes()));
        let fds: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        self.try_call(DMA_MAP, &body, &fds).map(|reply| assert!(reply.is_empty()))
    }

    /// Returns how many bytes were unmapped.
    pub(crate) fn try_unmap(&mut self, address: u64, size: u64) -> Result<u64, u32> {
        let mut body = words(&[24, 0]);
        body.extend([address, size].iter().flat_map(|word| word.to_ne_bytes()));
        let reply = self.try_call(DMA_UNMAP, &body, &[])?;
        assert_eq!(reply[..16], body[..16]);
        Ok(u64::from_ne_bytes(reply[16..].try_into().unwrap()))
    }

    pub(crate) fn try_read(
        &mut self,
        region: u32,
        offset: u64,
        count: u32,
    ) -> Result<Vec<u8>, u32> {
        let body = access(region, offset, count);
        let reply = self.try_call(REGION_READ, &body, &[])?;
        assert_eq!(reply[..16], body);
        Ok(reply[16..].to_vec())
    }

    pub(crate) fn read(&mut self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        let data = self.try_read(region, offset, count).unwrap();
        assert_eq!(data.len(), count as usize);
        data
    }

    pub(crate) fn try_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), u32> {
        let mut body = access(region, offset, data.len() as u32);
        body.extend(data);
        let reply = self.try_call(REGION_WRITE, &body, &[])?;
        assert_eq!(reply, body[..16]);
        Ok(())
    }

    pub(crate) fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.try_write(region, offset, data).unwrap();
    }

    /// Writes without waiting for an answer, as QEMU does.
    pub(crate) fn post_write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let mut body = access(region, offset, data.len() as u32);
        body.extend(data);
        self.post(REGION_WRITE, &body);
    }

    /// Enables memory accesses and bus mastering.
    pub(crate) fn enable(&mut self) {
        self.write(CONFIG, 4, &6u16.to_le_bytes());
    }

    pub(crate) fn try_bind(&mut self, vector: u32, events: &[&Event]) -> Result<(), u32> {
        let fds: Vec<BorrowedFd<'_>> = events.iter().map(|event| event.as_fd()).collect();
        let body = words(&[20, EVENTFDS, MSIX, vector, fds.len().max(1) as u32]);
        self.try_call(SET_IRQS, &body, &fds).map(|reply| assert!(reply.is_empty()))
    }
}

pub(crate) fn access(region: u32, offset: u64, count: u32) -> Vec<u8> {
    [&offset.to_ne_bytes()[..], &region.to_ne_bytes(), &count.to_ne_bytes()].concat()
}

/// An eventfd that does not block.
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> Self {
        Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap())
    }

    pub(crate) fn add(&self, count: u64) {
        rustix::io::write(&self.0, &count.to_ne_bytes()).unwrap();
    }

    /// Returns how often it was signalled since the last call.
    pub(crate) fn take(&self) -> u64 {
        let mut bytes = [0; 8];
        match rustix::io::read(&self.0, &mut bytes) {
            Ok(8) => u64::from_ne_bytes(bytes),
            Err(Errno::AGAIN) => 0,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until it is signalled.
    pub(crate) fn wait(&self) -> u64 {
        let count = self.wait_for(Duration::from_secs(20));
        assert!(count > 0, "no interrupt");
        count
    }

    /// Waits for at most `time`, after which it returns 0.
    pub(crate) fn wait_for(&self, time: Duration) -> u64 {
        let end = Instant::now() + time;
        loop {
            let count = self.take();
            if count > 0 || Instant::now() >= end {
                return count;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Memory of `size` bytes that cannot shrink.
pub(crate) fn sealed(size: u64) -> File {
    let file = unsealed(size, MemfdFlags::ALLOW_SEALING);
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL).unwrap();
    file
}

pub(crate) fn unsealed(size: u64, flags: MemfdFlags) -> File {
    let file = File::from(memfd_create("memory", flags | MemfdFlags::CLOEXEC).unwrap());
    file.set_len(size).unwrap();
    file
}

/// Two neighbours, each with a server.
pub(crate) struct Host {
    /// It drives the devices until it is dropped.
    _machine: Machine,
    pub(crate) servers: Vec<Arc<Server>>,
    pub(crate) memories: Vec<Arc<ClientMemory>>,
}

impl Host {
    pub(crate) fn new(backing: Backing, limits: Limits) -> Self {
        Self::with_doorbells(backing, limits, Doorbells::Trapped)
    }

    /// With pages that clients can map.
    pub(crate) fn polled() -> Self {
        Self::polled_with(Backing::Sealed)
    }

    pub(crate) fn polled_with(backing: Backing) -> Self {
        Self::with_doorbells(backing, Limits::DEFAULT, Doorbells::Polled)
    }

    fn with_doorbells(backing: Backing, limits: Limits, doorbells: Doorbells) -> Self {
        let shape = Shape::new([1, 1, 1, 2, 1, 1]).unwrap();
        let config = MachineConfig { doorbells, ..MachineConfig::new(shape) };
        let machine = Machine::new(config).unwrap();
        let coords: Vec<Coords> = shape.iter().collect();
        let memories: Vec<_> =
            coords.iter().map(|_| Arc::new(ClientMemory::new(backing, limits))).collect();
        let node = |(coords, memory): (&Coords, &Arc<ClientMemory>)| {
            let (memory, pages) = (Arc::clone(memory), ClientPages::new().unwrap());
            Arc::new(Server::new(&machine, *coords, memory, Some(pages)).unwrap())
        };
        let servers = coords.iter().zip(&memories).map(node).collect();
        machine.start().unwrap();
        Self { _machine: machine, servers, memories }
    }

    pub(crate) fn sealed() -> Self {
        Self::new(Backing::Sealed, Limits::DEFAULT)
    }

    /// A client of a node before its first message.
    pub(crate) fn connect(&self, index: usize) -> (Client, JoinHandle<Result<(), Error>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Arc::clone(&self.servers[index]);
        let thread = std::thread::spawn(move || server.serve(theirs));
        (Client::new(ours), thread)
    }

    /// A client that has agreed on the version.
    pub(crate) fn attach(&self, index: usize) -> (Client, JoinHandle<Result<(), Error>>) {
        let (mut client, thread) = self.connect(index);
        client.negotiate();
        (client, thread)
    }
}
