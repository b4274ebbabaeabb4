//! A process that uses a device through a broker.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tofu_abi::irq::vector;
use tofu_abi::regs::BAR0_SIZE;
use tofu_abi::{CqId, TniId};
use tofu_process::lock;

use super::shared_space::SharedSpace;
use super::wire::{Answer, Refusal, Request, VERSION, receive_with_fds, send};
use crate::bar::Region;
use crate::dma::{MoreAddresses, Pool, Space};
use crate::iommu::Info;
use crate::irq;
use crate::mapped::{MappedPlatform, Tenure};

/// The time limit for the broker to answer. It never takes that long, unless it is stopped or the
/// device is broken.
const ANSWER: Duration = Duration::from_secs(20);
/// The time to wait for a broker that is gone, because one that was killed is restarted.
const RESTART: Duration = Duration::from_secs(3);

/// The reason why a broker does not carry out a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The broker has refused.
    #[error("{text}")]
    Refused {
        /// The kind of reason.
        why: Refusal,
        /// The reason in one line.
        text: String,
    },
    /// It has answered nothing that makes sense.
    #[error("tofud and this program do not understand each other: are they of one version?")]
    Answer,
    /// It is gone, or does not answer.
    #[error("tofud is gone, or does not answer: {0}")]
    Gone(io::Error),
    /// The device cannot be used in this process.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// A connection to the broker of a device. When it ends, the broker ends this process's share in
/// the device.
pub struct Broker {
    /// `None` after an error: answers could no longer be matched to requests.
    socket: Mutex<Option<OwnedFd>>,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Broker")
    }
}

impl Broker {
    /// Connects to the broker that listens at `path`, or at the abstract socket whose name follows
    /// an `@`; `None` if there is none.
    ///
    /// A broker that was there and does not answer gets a moment to come back.
    ///
    /// # Errors
    ///
    /// If the socket cannot be used.
    pub fn connect(path: &Path) -> io::Result<Option<Self>> {
        let start = Instant::now();
        let socket = loop {
            match Self::try_connect(path) {
                Ok(socket) => break socket,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error)
                    if error.kind() == io::ErrorKind::ConnectionRefused
                        && start.elapsed() < RESTART =>
                {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
                Err(error) => return Err(error),
            }
        };
        Ok(Some(Self::of(socket)?))
    }

    fn try_connect(path: &Path) -> io::Result<OwnedFd> {
        let name = path.to_str().and_then(|path| path.strip_prefix('@'));
        let address = match name {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
            None => SocketAddrUnix::new(path)?,
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        set_timeouts(&socket)?;
        connect(&socket, &address)?;
        Ok(socket)
    }

    /// A connection that is there already.
    ///
    /// # Errors
    ///
    /// If it is not a socket.
    pub fn of(socket: OwnedFd) -> io::Result<Self> {
        set_timeouts(&socket)?;
        Ok(Self { socket: Mutex::new(Some(socket)) })
    }

    /// Asks to use the device, as process `place.0` of `place.1` of its node, if that is known.
    ///
    /// # Errors
    ///
    /// See [`BrokerError`].
    pub fn join(self: Arc<Self>, place: Option<(u16, u16)>) -> Result<SharedPlatform, BrokerError> {
        self.enter(&Request::Hello { version: VERSION, place }, None)
    }

    /// Asks for the packet interface of a TNI, for the node's network. The resulting platform has
    /// that TNI's interrupt.
    ///
    /// The device must be released immediately when the broker ends the connection, see
    /// [`SharedPlatform::connection`].
    ///
    /// # Errors
    ///
    /// See [`BrokerError`].
    pub fn join_packets(self: Arc<Self>, tni: TniId) -> Result<SharedPlatform, BrokerError> {
        let request = Request::Packets { version: VERSION, tni: tni.get() };
        self.enter(&request, Some(vector::tni(tni)))
    }

    /// Asks to have the device alone, until this connection is dropped.
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`] if processes share it.
    pub fn reserve(&self) -> Result<(), BrokerError> {
        match self.ask(&Request::Alone { version: VERSION })? {
            (Answer::Yours, _) => Ok(()),
            _ => Err(BrokerError::Answer),
        }
    }

    fn enter(
        self: Arc<Self>,
        request: &Request,
        vector: Option<u16>,
    ) -> Result<SharedPlatform, BrokerError> {
        let (answer, fds) = self.ask(request)?;
        self.welcomed(answer, fds, vector)
    }

    pub(super) fn welcomed(
        self: Arc<Self>,
        answer: Answer,
        mut fds: Vec<OwnedFd>,
        vector: Option<u16>,
    ) -> Result<SharedPlatform, BrokerError> {
        let Answer::Welcome { terms, addresses: (start, len), cq } = answer else {
            return Err(BrokerError::Answer);
        };
        let own = queue_number(cq)?;
        let mut interrupts = BTreeMap::new();
        if let Some(vector) = vector {
            interrupts.insert(vector, Arc::new(fds.pop().ok_or(BrokerError::Answer)?));
        }
        let packets = interrupts.values().next().cloned();
        let interrupts = Mutex::new(interrupts);
        let fds: Result<[OwnedFd; 2], _> = fds.try_into();
        let Ok([device, space]) = fds else {
            return Err(BrokerError::Answer);
        };
        // Nothing that the rest relies on is left to the other side.
        let sound = terms.registers.size() == BAR0_SIZE
            && terms.page.is_power_of_two()
            && len > 0
            && start.checked_add(len).is_some();
        if !sound {
            return Err(BrokerError::Answer);
        }
        let registers = Region::new(Arc::new(device), &terms.registers)
            .map_err(|source| BrokerError::System { what: "mapping the registers", source })?;
        let info = Info { page: terms.page, ranges: vec![(start, start + (len - 1))] };
        let ops = Arc::new(SharedSpace::new(terms.space, space));
        let memory = Pool::new(Space::part(ops, &info, Arc::clone(&self) as _));
        let shared = Shared { interrupts, packets, broker: self, cq: own };
        Ok(SharedPlatform::new(registers, memory, shared))
    }

    /// Asks for a control queue that is not this process's own by its place.
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`] if another process has it.
    pub fn take(&self, tni: TniId, cq: CqId) -> Result<(), BrokerError> {
        match self.ask(&Request::Take((tni, cq).into()))? {
            (Answer::Taken, _) => Ok(()),
            _ => Err(BrokerError::Answer),
        }
    }

    /// Gives a control queue back, after it was closed.
    pub fn give(&self, tni: TniId, cq: CqId) {
        self.tell(&Request::Give((tni, cq).into()));
    }

    /// Asks for a start and end gate of an interface, and relay gates: one bit each.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoneLeft`] if there are not so many left.
    pub fn take_gates(&self, tni: TniId, relays: u8) -> Result<u64, BrokerError> {
        match self.ask(&Request::TakeGates { tni: tni.get(), relays })? {
            (Answer::Gates { gates }, _) => Ok(gates),
            _ => Err(BrokerError::Answer),
        }
    }

    /// Gives barrier gates back, after their channel was closed.
    pub fn give_gates(&self, tni: TniId, gates: u64) {
        self.tell(&Request::GiveGates { tni: tni.get(), gates });
    }

    /// Returns true if the broker has ended the connection.
    pub fn is_gone(&self) -> bool {
        let place = lock(&self.socket);
        let Some(socket) = &*place else { return true };
        let mut fds = [PollFd::new(socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(1..)) && !fds[0].revents().is_empty()
    }

    /// Sends a request that is not answered.
    pub(super) fn tell(&self, request: &Request) {
        let socket = lock(&self.socket);
        // A broker that is gone needs no message.
        if let Some(socket) = &*socket {
            let _ = send(socket.as_fd(), request, &[]);
        }
    }

    pub(super) fn ask(&self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), BrokerError> {
        self.ask_with(request, &[])
    }

    /// Asks with descriptors.
    pub(super) fn ask_with(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>), BrokerError> {
        let mut place = lock(&self.socket);
        let gone = |kind: io::ErrorKind| BrokerError::Gone(kind.into());
        let socket = place.as_ref().ok_or_else(|| gone(io::ErrorKind::NotConnected))?;
        let answer = send(socket.as_fd(), request, fds)
            .and_then(|()| receive_with_fds::<Answer>(socket.as_fd()));
        match answer {
            Ok(Some((Answer::Refused { why, text }, _))) => Err(BrokerError::Refused { why, text }),
            Ok(Some(answer)) => Ok(answer),
            other => {
                *place = None;
                Err(match other {
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => BrokerError::Answer,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        gone(io::ErrorKind::TimedOut)
                    }
                    Err(error) => BrokerError::Gone(error),
                    Ok(_) => gone(io::ErrorKind::ConnectionAborted),
                })
            }
        }
    }
}

/// The queue that a broker names.
pub(super) fn queue_number(cq: Option<u8>) -> Result<Option<CqId>, BrokerError> {
    cq.map(|cq| CqId::new(cq).ok_or(BrokerError::Answer)).transpose()
}

fn set_timeouts(socket: &OwnedFd) -> io::Result<()> {
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(socket, direction, Some(ANSWER))?;
    }
    Ok(())
}

impl MoreAddresses for Broker {
    fn more(&self, size: u64) -> Option<(u64, u64)> {
        match self.ask(&Request::Addresses { size }) {
            Ok((Answer::Addresses { start, len }, _))
                if len >= size && start.checked_add(len).is_some() =>
            {
                Some((start, len))
            }
            Ok(_) => None,
            Err(error) => {
                log::warn!("no more device addresses: {error}");
                None
            }
        }
    }
}

/// A Tofu device that this process shares with others.
///
/// Its interrupts are that of [`Broker::join_packets`], and those of its control queues.
pub type SharedPlatform = MappedPlatform<Shared>;

/// A device that a broker shares.
pub struct Shared {
    /// Vectors and their eventfds.
    interrupts: Mutex<BTreeMap<u16, Arc<OwnedFd>>>,
    /// The eventfd of [`Broker::join_packets`].
    packets: Option<Arc<OwnedFd>>,
    broker: Arc<Broker>,
    cq: Option<CqId>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedPlatform")
    }
}

impl Shared {
    fn event(&self, vector: u16) -> Option<Arc<OwnedFd>> {
        lock(&self.interrupts).get(&vector).cloned()
    }
}

impl Tenure for Shared {
    fn irq_enable(&self, index: u16) -> io::Result<()> {
        if self.event(index).is_some() {
            return Ok(());
        }
        let queues = TniId::ALL.into_iter().flat_map(|tni| CqId::ALL.map(|cq| (tni, cq)));
        let queue = queues.into_iter().find(|(tni, cq)| vector::cq(*tni, *cq) == index);
        let queue = queue.ok_or(io::ErrorKind::NotFound)?;
        let answer = self.broker.ask(&Request::Interrupt(queue.into()));
        let (_, mut fds) = answer.map_err(io::Error::other)?;
        let event = fds.pop().ok_or(io::ErrorKind::InvalidData)?;
        lock(&self.interrupts).insert(index, Arc::new(event));
        Ok(())
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        if let Some(event) = self.event(vector) {
            return irq::wait(event.as_fd(), timeout_ns);
        }
        thread::sleep(Duration::from_nanos(timeout_ns));
        false
    }

    fn irq_fd(&self, vector: u16) -> Option<i32> {
        self.event(vector).map(|event| event.as_raw_fd())
    }
}

impl SharedPlatform {
    /// The connection to the process that shares the device.
    pub fn broker(&self) -> &Arc<Broker> {
        &self.tenure.broker
    }

    /// The eventfd of the requested interrupt, for event loops. Reading it takes the event from
    /// [`Platform::irq_wait`](tofu_driver::Platform::irq_wait).
    pub fn interrupt(&self) -> Option<BorrowedFd<'_>> {
        self.tenure.packets.as_ref().map(|event| event.as_fd())
    }

    /// A descriptor that has an event (a hang-up) when the broker wants the device back, or is
    /// gone; `None` if it is known to be.
    ///
    /// # Errors
    ///
    /// If the system has no descriptors left.
    pub fn connection(&self) -> io::Result<Option<OwnedFd>> {
        let socket = lock(&self.tenure.broker.socket);
        socket.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// The control queue of each interface that is this process's own, if it did not know its
    /// place on the node.
    pub fn cq(&self) -> Option<CqId> {
        self.tenure.cq
    }
}
