//! The owner of the control queues that ranks of a node share, with `tofu run --local`.
//!
//! A thread of this process is one more client of the node. It opens each queue that two ranks
//! share, and serves the rings of both ([`JointQueue`]). A rank requests the queue and the
//! registration of memory by the same messages as programs use with `tofud`. Each rank maps its
//! memory itself, as with a separate queue. When a rank ends, by any cause, its connection ends:
//! its memory is deregistered, and the other rank continues.
//!
//! A completion is that of the rank that posted the command. A notice is that of the rank to whose
//! extra values the one in `edata` belongs, of which bit 2 suffices.
//!
//! The alternative was rings that both ranks map, with a lock that outlives the process that holds
//! it. A rank may then be killed at each store to a ring, and the next one to take the lock must
//! find out how far it came. With an owner the ranks share neither lock nor memory. A doorbell is a
//! message, which costs two changes of process for each command that is not posted with others.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, mem};

use anyhow::Context;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::process::geteuid;
use tofu_abi::irq::vector;
use tofu_abi::regs::{CqReg, NodeAddress};
use tofu_abi::{Coords, CqId, TniId};
use tofu_driver::Device;
use tofu_utofu::{Code, DeviceShare, Error, Half, JointQueue, MappedMemory, OwnedQueue};
use tofu_vfio::broker::wire::{
    Answer, IsolatedRequest, Page, Queue, Refusal, Request, VERSION, receive, send,
};
use tofu_vfio::broker::{Part, ring_file};
use tofu_vfio_user_client::SocketPlatform;

/// Size code of the message receive queues: 32768 notices, as ranks with own queues have them.
const MRQ_SIZE: u8 = 2;
/// The most messages of a rank that are read before the others' turn comes.
const MESSAGES: usize = 32;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// The time to wait when the host has no descriptors for a rank.
const SHORT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

/// The node whose queues are shared.
pub(crate) struct SharedNode {
    /// Its place.
    pub(crate) at: Coords,
    /// The socket at which the node is served for the owner.
    pub(crate) socket: String,
    /// The owner's number among the clients of the node, and their number.
    pub(crate) client: (u16, u16),
    /// The most ranks of a node.
    pub(crate) ranks: u16,
    /// The abstract socket at which ranks find the owner.
    pub(crate) door: String,
}

/// The owner of the queues. Dropping it closes them.
pub(crate) struct QueueOwner {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl QueueOwner {
    /// Starts an owner.
    ///
    /// # Errors
    ///
    /// If the node cannot be reached, or the host has no descriptors or threads left.
    pub(crate) fn start(node: &SharedNode) -> anyhow::Result<Self> {
        let platform = SocketPlatform::connect_shared(&node.socket, node.client.0, node.client.1);
        let device = Device::probe(platform.context("the owner of shared queues")?)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let door = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&door, &SocketAddrUnix::new_abstract_name(node.door.as_bytes())?)?;
        listen(&door, BACKLOG)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ranks = node.ranks;
        let owner = Owner { device, ranks, door, stop: Arc::clone(&stop), queues: BTreeMap::new() };
        let name = format!("queues{}", node.at);
        let run = move || {
            if let Err(error) = owner.run() {
                log::error!("the owner of shared control queues ends: {error}");
            }
        };
        let thread = thread::Builder::new().name(name).spawn(run).context("no threads left")?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for QueueOwner {
    fn drop(&mut self) {
        // A full counter stops it as well.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already been printed.
            let _ = thread.join();
        }
    }
}

/// A queue of the node.
type Place = (TniId, CqId);
/// A queue that ranks share.
type Shared = JointQueue<OwnedQueue<SocketPlatform>, Part>;

/// A request that is done when the queue allows it.
#[derive(Clone, Copy)]
enum Pending {
    /// For its half of the queue, with so many steering tags in the whole queue.
    Open { stags: u32, mrq_size: u8 },
    /// To return it.
    Close,
}

/// A connected rank.
struct Client {
    socket: OwnedFd,
    /// Its queue and its half of that, once it has identified itself.
    own: Option<(Place, Half)>,
    is_open: bool,
    pending: Option<Pending>,
    is_gone: bool,
}

/// The state of the thread.
struct Owner {
    device: Device<SocketPlatform>,
    ranks: u16,
    door: OwnedFd,
    stop: Arc<OwnedFd>,
    queues: BTreeMap<Place, Shared>,
}

/// A request that is not done.
struct Refused(Refusal, String);

fn wrong(text: &str) -> Refused {
    Refused(Refusal::Wrong, text.to_owned())
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let why = match error.code() {
            Code::NotAvailable => Refusal::InUse,
            Code::OutOfMemory | Code::OutOfResource => Refusal::NoneLeft,
            Code::Fatal => Refusal::NoDevice,
            _ => Refusal::Wrong,
        };
        Self(why, error.to_string())
    }
}

/// Sends an answer. A rank that does not listen, or is gone, ends its connection.
fn answer(client: &mut Client, answer: &Answer, fds: &[BorrowedFd<'_>]) {
    client.is_gone |= send(client.socket.as_fd(), answer, fds).is_err();
}

fn refuse(client: &mut Client, Refused(why, text): Refused) {
    answer(client, &Answer::Refused { why, text }, &[]);
}

impl Owner {
    fn run(mut self) -> anyhow::Result<()> {
        let mut clients: Vec<Client> = Vec::new();
        loop {
            let mut busy = self.serve();
            for client in &mut clients {
                self.settle(client);
            }
            self.queues.retain(|_, queue| !queue.is_unused());
            if !busy {
                // An entry that is there by now interrupts no more, and later ones do.
                for queue in self.queues.values() {
                    queue.queue().cq().take_interrupt();
                    queue.queue().cq().ask_interrupt();
                }
                busy = self.serve();
            }
            let [stopped, accepts] = self.wait(&clients, busy)?;
            if stopped {
                return Ok(());
            }
            if accepts && let Some(client) = self.accept() {
                clients.push(client);
            }
            for client in &mut clients {
                for _ in 0..MESSAGES {
                    if client.is_gone || !self.read(client) {
                        break;
                    }
                }
                if client.is_gone {
                    self.end(client);
                }
            }
            clients.retain(|client| !client.is_gone);
        }
    }

    /// Moves what there is. Returns whether there was anything.
    fn serve(&mut self) -> bool {
        self.queues.values_mut().fold(false, |busy, queue| queue.serve() | busy)
    }

    /// Waits until there is work; with `busy`, only polls. Returns whether the owner must stop, and
    /// whether a rank wants to connect.
    fn wait(&self, clients: &[Client], busy: bool) -> anyhow::Result<[bool; 2]> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let vectors = self.queues.keys().map(|&(tni, cq)| vector::cq(tni, cq));
        let events = vectors.filter_map(|at| self.device.platform().interrupt_event(at));
        let events: Vec<Arc<OwnedFd>> = events.collect();
        let ours = [self.stop.as_fd(), self.door.as_fd()].into_iter();
        let theirs = clients.iter().map(|client| client.socket.as_fd());
        let all = ours.chain(theirs).chain(events.iter().map(|event| event.as_fd()));
        let mut fds: Vec<PollFd<'_>> =
            all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, busy.then_some(&at_once)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok([0, 1].map(|index: usize| !fds[index].revents().is_empty()))
    }

    /// Accepts a rank; `None` for a process of another user.
    fn accept(&self) -> Option<Client> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(&self.door, flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return None,
            Err(error) => {
                log::warn!("a rank cannot reach the owner of shared queues: {error}");
                // Until there are descriptors again.
                thread::sleep(SHORT_OF_DESCRIPTORS);
                return None;
            }
        };
        let peer = socket_peercred(&socket).ok()?;
        let own = (peer.uid == geteuid()).then_some(socket)?;
        Some(Client { socket: own, own: None, is_open: false, pending: None, is_gone: false })
    }

    /// Reads a message; false if there is none.
    fn read(&mut self, client: &mut Client) -> bool {
        match receive::<Request>(client.socket.as_fd()) {
            Ok(Some(request)) => {
                match self.handle(client, &request) {
                    Ok(Some(done)) => answer(client, &done, &[]),
                    Ok(None) => {}
                    Err(refused) => refuse(client, refused),
                }
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            // The rank has ended, or sends what is no message.
            Ok(None) | Err(_) => {
                client.is_gone = true;
                false
            }
        }
    }

    /// Handles a request of a rank. `None` if it gets its answer later, or none.
    fn handle(
        &mut self,
        client: &mut Client,
        request: &Request,
    ) -> Result<Option<Answer>, Refused> {
        match *request {
            Request::Hello { version: VERSION, place } if client.own.is_none() => {
                client.own = Some(self.place_of(place)?);
                let node = NodeAddress::from_coords(self.device.coords()).0;
                let generation = self.device.generation().register();
                Ok(Some(Answer::Isolated { node, generation, cq: None }))
            }
            Request::Hello { .. } => Err(wrong("it is of another version, or known already")),
            Request::Isolated(ref request) if client.pending.is_none() => {
                self.isolated(client, request)
            }
            _ => Err(wrong("ranks with a shared queue ask for that only")),
        }
    }

    /// Returns the half of the queue that a rank shares.
    fn place_of(&self, place: Option<(u16, u16)>) -> Result<(Place, Half), Refused> {
        let none = || wrong("the rank does not share a queue");
        let (index, count) = place.filter(|(_, count)| *count == self.ranks).ok_or_else(none)?;
        let share = DeviceShare::joint(self.device.generation(), index, count)?;
        let queue = share.tnis().next().zip(share.cqs().next());
        queue.zip(share.half()).ok_or_else(none)
    }

    fn isolated(
        &mut self,
        client: &mut Client,
        request: &IsolatedRequest,
    ) -> Result<Option<Answer>, Refused> {
        let (place, half) =
            client.own.ok_or_else(|| wrong("its first message is not a greeting"))?;
        let is_own = |queue: Queue| queue.ids() == Some(place);
        if let IsolatedRequest::OpenQueue { queue, stags, mrq_size, session } = *request {
            if !is_own(queue) || session || client.is_open {
                return Err(wrong("that queue is not its own, or open already"));
            }
            client.pending = Some(Pending::Open { stags, mrq_size });
            return Ok(None);
        }
        let queue = self.queues.get_mut(&place).filter(|_| client.is_open);
        let queue = queue.ok_or_else(|| wrong("its queue is not open"))?;
        match *request {
            IsolatedRequest::CloseQueue { queue: of } if is_own(of) => {
                queue.stop(half);
                client.pending = Some(Pending::Close);
                Ok(None)
            }
            IsolatedRequest::RegisterMapped {
                queue: of,
                stag,
                offset,
                address,
                len,
                read_only,
            } if is_own(of) => {
                let memory = MappedMemory { address, len, stag, offset, read_only };
                queue.register(half, &memory)?;
                Ok(Some(Answer::Done))
            }
            IsolatedRequest::Deregister { queue: of, stag } if is_own(of) => {
                queue.deregister(half, stag)?;
                Ok(Some(Answer::Done))
            }
            IsolatedRequest::Write { page: Page::Queue(of), offset, value } if is_own(of) => {
                // A doorbell needs no more than the message: its orders are looked for next.
                if u64::from(offset) == CqReg::MrqFullPointer.offset() {
                    queue.acknowledge(half, value);
                }
                Ok(None)
            }
            IsolatedRequest::Read { page: Page::Queue(of), .. } if is_own(of) => {
                if queue.queue().cq().status().cq_enable() {
                    return Ok(Some(Answer::Value(0)));
                }
                Err(Refused(Refusal::NoDevice, "the device has lost the queue".to_owned()))
            }
            _ => Err(wrong("it has no such queue, channel or register")),
        }
    }

    /// Answers what a rank waits for, if it can be done by now.
    fn settle(&mut self, client: &mut Client) {
        let (Some(pending), Some((place, half))) = (client.pending, client.own) else { return };
        match pending {
            Pending::Open { stags, mrq_size } => {
                // The rank that was here before may have commands on their way.
                if self.queues.get(&place).is_some_and(|queue| !queue.is_free(half)) {
                    return;
                }
                client.pending = None;
                match self.open((place, half), stags, mrq_size) {
                    Ok(file) => {
                        client.is_open = true;
                        answer(client, &Answer::Memory, &[file.as_fd()]);
                    }
                    Err(refused) => refuse(client, refused),
                }
            }
            Pending::Close => {
                let Some(queue) = self.queues.get_mut(&place) else { return };
                if !queue.is_over(half) {
                    return;
                }
                (client.pending, client.is_open) = (None, false);
                match leave(queue, (place, half)) {
                    Ok(()) => answer(client, &Answer::Done, &[]),
                    Err(error) => refuse(client, error.into()),
                }
            }
        }
    }

    /// Gives a rank its half of a queue, which is opened if it is not open. Returns the file of the
    /// rank's rings.
    fn open(
        &mut self,
        (place, half): (Place, Half),
        stags: u32,
        mrq_size: u8,
    ) -> Result<OwnedFd, Refused> {
        let none_left = |error: io::Error| Refused(Refusal::NoneLeft, error.to_string());
        if mrq_size > MRQ_SIZE {
            return Err(wrong("a shared queue has up to 32768 notices"));
        }
        let (file, rings) = ring_file(mrq_size).map_err(none_left)?;
        if !self.queues.contains_key(&place) {
            let queue = OwnedQueue::open(&self.device, place, stags, MRQ_SIZE)?;
            self.queues.insert(place, JointQueue::new(queue));
        }
        if let Some(queue) = self.queues.get_mut(&place) {
            queue.join(half, rings)?;
        }
        Ok(file)
    }

    /// A rank has gone.
    fn end(&mut self, client: &mut Client) {
        let Some((place, half)) = client.own.filter(|_| mem::take(&mut client.is_open)) else {
            return;
        };
        let left = self.queues.get_mut(&place).map_or(Ok(()), |queue| leave(queue, (place, half)));
        if let Err(error) = left {
            log::warn!("memory of a rank that has ended: {error}");
        }
    }
}

/// Takes a half back from a rank.
fn leave(queue: &mut Shared, ((tni, cq), half): (Place, Half)) -> Result<(), Error> {
    let lost = queue.leave(half)?;
    if lost > 0 {
        log::warn!("queue {cq} of TNI {tni}: a rank did not poll, and lost {lost} notices");
    }
    Ok(())
}
