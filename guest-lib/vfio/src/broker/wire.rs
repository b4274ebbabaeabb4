//! Messages between a broker and the processes that share its device.
//!
//! A message is a packet of a UNIX socket (`SOCK_SEQPACKET`) in postcard's format. A process sends
//! one request at a time, and the broker answers in order.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use tofu_abi::barrier::BgAddress;
use tofu_abi::{BchId, BgId, CqId, TniId};
use tofu_driver::Gate;

use crate::bar::Layout;

/// Version of the messages. Both sides must have the same.
pub const VERSION: u16 = 7;
/// Most bytes of a message.
pub const MAX_MESSAGE: usize = 8192;
/// Descriptors in a message at most: the device, its address space, and an interrupt.
pub const MAX_FDS: usize = 3;

/// A request of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// To use the device. The first message, answered by [`Answer::Welcome`], or by
    /// [`Answer::Isolated`] if the process is another user's than the broker, which is root's.
    Hello {
        /// The process's [`VERSION`].
        version: u16,
        /// Its number among the processes of the node, from 0, and how many there are, if known.
        place: Option<(u16, u16)>,
    },
    /// To use the packet interface of a TNI, and the kernel's control queue there, for the node's
    /// network. The first message, answered by [`Answer::Welcome`], with the TNI's interrupt as a
    /// third descriptor, an eventfd.
    ///
    /// The network has the device until another process wants exclusive use. It must release the
    /// device immediately when the broker ends the connection.
    Packets {
        /// The process's [`VERSION`].
        version: u16,
        /// Network interface.
        tni: u8,
    },
    /// To have the device alone, by VFIO. The first message, answered by [`Answer::Yours`] if only
    /// the network uses it. No other process gets it until the connection ends.
    Alone {
        /// The process's [`VERSION`].
        version: u16,
    },
    /// A control queue that is not its own by its place.
    Take(Queue),
    /// Gives back what it has taken. Not answered.
    Give(Queue),
    /// A start and end gate of an interface, and relay gates, answered by [`Answer::Gates`].
    TakeGates {
        /// Network interface.
        tni: u8,
        /// Relay gates.
        relays: u8,
    },
    /// Gives barrier gates back, which are linked no more. Not answered.
    GiveGates {
        /// Network interface.
        tni: u8,
        /// The gates, one bit each.
        gates: u64,
    },
    /// At least so many more device addresses, in a row.
    Addresses {
        /// Bytes.
        size: u64,
    },
    /// A request of a process that the broker keeps apart from others.
    Isolated(IsolatedRequest),
    /// The interrupt of a control queue that is its own. Answered by [`Answer::Done`] with an
    /// eventfd, which belongs to the queue and not to the process.
    Interrupt(Queue),
}

/// Requests of a process that has neither the device nor its address space. It has the rings,
/// notices and register pages of its queues and channels. Requests about another process's queue or
/// channel are [`Refusal::Wrong`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IsolatedRequest {
    /// Opens a control queue that is its own, or its half of one that it shares. Answered by
    /// [`Answer::Memory`]: its rings, in whole pages each, in the order of TOQ, TCQ and MRQ. If
    /// the queue is shared, a page follows that begins with the word by which the process requests
    /// to be woken, and the eventfd that wakes it comes with the file.
    OpenQueue {
        /// The queue.
        queue: Queue,
        /// Steering tags.
        stags: u32,
        /// Size code of the message receive queue.
        mrq_size: u8,
        /// Commands start as the session advances.
        session: bool,
    },
    /// Closes it, and deregisters all of its memory. Answered by [`Answer::Done`].
    CloseQueue {
        /// The queue.
        queue: Queue,
    },
    /// Registers memory: pages of the file that comes with it, which cannot shrink. Answered by
    /// [`Answer::Done`].
    Register {
        /// The queue.
        queue: Queue,
        /// The steering tag.
        stag: u32,
        /// Offset that the first byte is to have.
        offset: u64,
        /// Address of the first byte in the process; only its offset within the page matters.
        address: u64,
        /// Bytes.
        len: u64,
        /// It is read-only for peers.
        read_only: bool,
        /// Start and length in the file, in whole pages, of the pages that hold the memory.
        runs: Vec<(u64, u64)>,
    },
    /// Registers memory that the process has mapped for the device itself, in its own addresses.
    /// Answered by [`Answer::Done`].
    RegisterMapped {
        /// The queue.
        queue: Queue,
        /// The steering tag.
        stag: u32,
        /// Offset that the first byte is to have.
        offset: u64,
        /// Address of the first byte for the device.
        address: u64,
        /// Bytes.
        len: u64,
        /// It is read-only for peers.
        read_only: bool,
    },
    /// Takes it back. Answered by [`Answer::Done`] when the device uses it no more.
    Deregister {
        /// The queue.
        queue: Queue,
        /// The steering tag.
        stag: u32,
    },
    /// Opens a barrier channel whose gates are its own. Answered by [`Answer::Memory`]: a page
    /// that begins with its notices.
    OpenChannel {
        /// The channel.
        channel: Channel,
        /// Its gates.
        gates: Vec<GateLinks>,
    },
    /// Closes it. Answered by [`Answer::Done`].
    CloseChannel {
        /// The channel.
        channel: Channel,
    },
    /// Reads the exceptions of its gates. Answered by [`Answer::Value`].
    Exceptions {
        /// The channel.
        channel: Channel,
    },
    /// Writes a register. Not answered.
    Write {
        /// The page.
        page: Page,
        /// Offset in it in bytes.
        offset: u16,
        /// The value that is written.
        value: u64,
    },
    /// Reads a register. Answered by [`Answer::Value`].
    Read {
        /// The page.
        page: Page,
        /// Offset in it in bytes.
        offset: u16,
    },
}

/// A control queue, as numbers. A process may send any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Network interface.
    pub tni: u8,
    /// Control queue.
    pub cq: u8,
}

impl From<(TniId, CqId)> for Queue {
    fn from((tni, cq): (TniId, CqId)) -> Self {
        Self { tni: tni.get(), cq: cq.get() }
    }
}

impl Queue {
    /// The queue; `None` if there are no such numbers. Whether the device has it is another
    /// question.
    pub fn ids(self) -> Option<(TniId, CqId)> {
        TniId::new(self.tni).zip(CqId::new(self.cq))
    }
}

/// A barrier channel, as numbers. A process may send any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// Network interface.
    pub tni: u8,
    /// Barrier channel.
    pub bch: u8,
}

impl From<(TniId, BchId)> for Channel {
    fn from((tni, bch): (TniId, BchId)) -> Self {
        Self { tni: tni.get(), bch: bch.get() }
    }
}

impl Channel {
    /// The channel; `None` if there are no such numbers. Whether the device has it is another
    /// question.
    pub fn ids(self) -> Option<(TniId, BchId)> {
        TniId::new(self.tni).zip(BchId::new(self.bch))
    }
}

/// A page of registers that a program may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Page {
    /// The page of a control queue.
    Queue(Queue),
    /// The page of a barrier channel.
    Channel(Channel),
}

/// A barrier gate and its links, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateLinks {
    /// Network interface.
    pub tni: u8,
    /// The gate.
    pub bg: u8,
    /// Gate of the interface to wait for.
    pub src_local: Option<u8>,
    /// Address of a gate to wait for.
    pub src_remote: Option<u64>,
    /// Gate of the interface to signal.
    pub dst_local: Option<u8>,
    /// Address of a gate to signal.
    pub dst_remote: Option<u64>,
}

impl From<&Gate> for GateLinks {
    fn from(gate: &Gate) -> Self {
        Self {
            tni: gate.tni.get(),
            bg: gate.bg.get(),
            src_local: gate.src_local.map(BgId::get),
            src_remote: gate.src_remote.map(|at| at.0),
            dst_local: gate.dst_local.map(BgId::get),
            dst_remote: gate.dst_remote.map(|at| at.0),
        }
    }
}

impl GateLinks {
    /// The gate; `None` if there are no such numbers. Whether the device has it is another
    /// question.
    pub fn gate(&self) -> Option<Gate> {
        let local = |number: Option<u8>| number.map_or(Some(None), |n| BgId::new(n).map(Some));
        Some(Gate {
            tni: TniId::new(self.tni)?,
            bg: BgId::new(self.bg)?,
            src_local: local(self.src_local)?,
            src_remote: self.src_remote.map(BgAddress),
            dst_local: local(self.dst_local)?,
            dst_remote: self.dst_remote.map(BgAddress),
        })
    }
}

/// An answer of the broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The process may use the device. Comes with descriptors of the device and of its address
    /// space, and with everything else that was requested.
    Welcome {
        /// The terms on which it uses the device.
        terms: Terms,
        /// Device addresses that are its own: start and length in bytes.
        addresses: (u64, u64),
        /// The control queue of each interface that is its own, if it did not know its place.
        cq: Option<u8>,
    },
    /// The process may use the device through the broker, see [`IsolatedRequest`].
    Isolated {
        /// The node, as the register NODE_ADDRESS has it.
        node: u64,
        /// The device's generation, as the register GENERATION has it.
        generation: u64,
        /// As of [`Answer::Welcome`].
        cq: Option<u8>,
    },
    /// Comes with a file, memory that the device and the process share.
    Memory,
    /// It is done. The answer to [`Request::Interrupt`] comes with an eventfd.
    Done,
    /// The requested value.
    Value(
        /// The value.
        u64,
    ),
    /// The broker has given up the device, and those whose it was are about to.
    Yours,
    /// The queue is its own.
    Taken,
    /// Barrier gates are its own: one bit each.
    Gates {
        /// The gates.
        gates: u64,
    },
    /// Further device addresses are its own: start and length in bytes.
    Addresses {
        /// First address.
        start: u64,
        /// Bytes.
        len: u64,
    },
    /// No.
    Refused {
        /// The kind of reason.
        why: Refusal,
        /// The reason in one line.
        text: String,
    },
}

/// Kinds of reasons why the broker refuses something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Another process has it.
    InUse,
    /// There is nothing left of it.
    NoneLeft,
    /// The broker cannot use the device.
    NoDevice,
    /// The request is wrong, or of another version.
    Wrong,
}

/// The terms on which a process uses a device that the broker has opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The place of its registers.
    pub registers: Layout,
    /// The smallest page of its IOMMU in bytes, a power of two.
    pub page: u64,
    /// Its address space.
    pub space: SpaceKind,
}

/// Kinds of address spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpaceKind {
    /// A container of VFIO's.
    Container,
    /// An address space of iommufd, by its number.
    Iommufd(u32),
}

/// Sends a message.
///
/// # Errors
///
/// If the other side is gone, or has no room left for it and the socket does not wait.
pub fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut bytes = [0; MAX_MESSAGE];
    let used = postcard::to_slice(message, &mut bytes).map_err(io::Error::other)?;
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(used)], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// Receives a message without descriptors, which are closed if there are any; `None` if the other
/// side is gone.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidData`] if it is no message.
pub fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<T>> {
    take(socket, &mut RecvAncillaryBuffer::default())
}

/// Receives a message and the descriptors that come with it.
///
/// # Errors
///
/// As [`receive`].
pub fn receive_with_fds<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let message = take(socket, &mut control);
    // Also those of a message that is none.
    let fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    let fds = fds.collect();
    Ok(message?.map(|message| (message, fds)))
}

fn take<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    control: &mut RecvAncillaryBuffer<'_>,
) -> io::Result<Option<T>> {
    let mut bytes = [0; MAX_MESSAGE];
    let received = loop {
        let mut slices = [IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, &mut slices, control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
    }
    match postcard::take_from_bytes(&bytes[..received.bytes.min(MAX_MESSAGE)]) {
        Ok((message, [])) => Ok(Some(message)),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "trailing bytes after a message")),
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn messages_arrive_with_their_descriptors() {
        let (one, other) = pair();
        let refused = Answer::Refused { why: Refusal::InUse, text: "no".into() };
        let (kept, passed) = pair();
        send(one.as_fd(), &refused, &[]).unwrap();
        send(one.as_fd(), &Answer::Taken, &[passed.as_fd(), one.as_fd()]).unwrap();
        let (first, fds) = receive_with_fds::<Answer>(other.as_fd()).unwrap().unwrap();
        assert_eq!((first, fds.len()), (refused, 0));
        let (second, fds) = receive_with_fds::<Answer>(other.as_fd()).unwrap().unwrap();
        assert_eq!((second, fds.len()), (Answer::Taken, 2));
        drop(passed);
        send(fds[0].as_fd(), &1u32, &[]).unwrap();
        assert_eq!(receive::<u32>(kept.as_fd()).unwrap(), Some(1), "it is the same socket");
        drop((one, fds));
        assert!(receive::<Answer>(other.as_fd()).unwrap().is_none(), "gone");
    }

    #[test]
    fn descriptors_that_nobody_wants_are_closed() {
        let (one, other) = pair();
        let (kept, passed) = pair();
        send(one.as_fd(), &Answer::Taken, &[passed.as_fd()]).unwrap();
        drop(passed);
        assert_eq!(receive(other.as_fd()).unwrap(), Some(Answer::Taken));
        assert!(receive::<u32>(kept.as_fd()).unwrap().is_none(), "the other end is closed");
    }

    #[test]
    fn oversized_messages_are_refused() {
        let (one, other) = pair();
        let text = "x".repeat(MAX_MESSAGE);
        let answer = Answer::Refused { why: Refusal::Wrong, text };
        assert!(send(one.as_fd(), &answer, &[]).is_err());
        rustix::io::write(&one, &[0; MAX_MESSAGE + 1]).unwrap();
        rustix::io::write(&one, &[1, 0]).unwrap();
        for _ in 0..2 {
            let error = receive::<Answer>(other.as_fd()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        }
        assert_eq!(receive::<Answer>(other.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    proptest! {
        /// Any bytes decode to a request or an error.
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
            let (one, other) = pair();
            rustix::io::write(&one, &bytes).unwrap();
            let _ = receive::<Request>(other.as_fd());
        }
    }
}
