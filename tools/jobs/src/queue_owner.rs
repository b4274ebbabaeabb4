//! The owner of the control queues that ranks of a node share, with `tofu run --local`.
//!
//! A thread of this process is one more client of the node, and serves the rings of the ranks
//! ([`SharedQueues`]). Each rank maps its memory itself, as with a separate queue. When a rank
//! ends, by any cause, its connection ends.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::process::geteuid;
use tofu_abi::Coords;
use tofu_abi::regs::NodeAddress;
use tofu_driver::Device;
use tofu_queue_owner::{
    FilePart, Home, Member, QueueOwner as Queues, Refused, Reply, Rights, SharedQueues,
};
use tofu_utofu::DeviceShare;
use tofu_vfio::broker::wire::{Answer, Refusal, Request, VERSION, receive, send};
use tofu_vfio_user_client::SocketPlatform;

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
        let (ranks, queues) = (node.ranks, Queues::new(LocalNode(device.clone())));
        let owner = Owner { device, ranks, door, stop: Arc::clone(&stop), queues };
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

/// The node, whose ranks map their memory themselves.
struct LocalNode(Device<SocketPlatform>);

impl Home for LocalNode {
    type Platform = SocketPlatform;
    type Mapping = ();
    const PROCESSES_MAP: bool = true;

    fn device(&self) -> &Device<SocketPlatform> {
        &self.0
    }

    fn event(&self, vector: u16) -> io::Result<Arc<OwnedFd>> {
        self.0.platform().interrupt_event(vector).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn map(&self, _: &FilePart<'_>) -> Result<(u64, ()), Refused> {
        Err(wrong("ranks map their memory themselves"))
    }
}

/// A connected rank.
struct Client {
    socket: OwnedFd,
    /// Its half of a queue, once it has identified itself.
    member: Option<Member>,
    is_gone: bool,
}

/// The state of the thread.
struct Owner {
    device: Device<SocketPlatform>,
    ranks: u16,
    door: OwnedFd,
    stop: Arc<OwnedFd>,
    queues: Queues<LocalNode>,
}

fn wrong(text: &str) -> Refused {
    Refused::new(Refusal::Wrong, text)
}

/// Answers a rank. One that does not listen, or is gone, ends its connection.
fn answer(client: &mut Client, reply: Result<Option<Reply>, Refused>) {
    let socket = client.socket.as_fd();
    let sent = match reply {
        Ok(None) => return,
        Ok(Some(reply)) => {
            let (answer, fds) = reply.parts();
            send(socket, &answer, &fds)
        }
        Err(refused) => send(socket, &refused.answer(), &[]),
    };
    client.is_gone |= sent.is_err();
}

impl Owner {
    fn run(mut self) -> anyhow::Result<()> {
        let mut clients: Vec<Client> = Vec::new();
        loop {
            let mut busy = self.queues.serve();
            for client in &mut clients {
                if let Some(member) = &mut client.member {
                    let settled = self.queues.settle(member);
                    answer(client, settled);
                }
            }
            self.queues.close_unused();
            if !busy {
                busy = self.queues.rest();
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
                if client.is_gone
                    && let Some(member) = &mut client.member
                {
                    self.queues.end(member);
                }
            }
            clients.retain(|client| !client.is_gone);
        }
    }

    /// Waits until there is work; with `busy`, only polls. Returns whether the owner must stop, and
    /// whether a rank wants to connect.
    fn wait(&self, clients: &[Client], busy: bool) -> anyhow::Result<[bool; 2]> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let events = self.queues.events();
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
        Some(Client { socket: own, member: None, is_gone: false })
    }

    /// Reads a message; false if there is none.
    fn read(&mut self, client: &mut Client) -> bool {
        match receive::<Request>(client.socket.as_fd()) {
            Ok(Some(request)) => {
                let handled = self.handle(client, &request);
                answer(client, handled);
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
    fn handle(&mut self, client: &mut Client, request: &Request) -> Result<Option<Reply>, Refused> {
        match *request {
            Request::Hello { version: VERSION, place } if client.member.is_none() => {
                client.member = Some(self.member(place)?);
                let node = NodeAddress::from_coords(self.device.coords()).0;
                let generation = self.device.generation().register();
                Ok(Some(Reply::Answer(Answer::Isolated { node, generation, cq: None })))
            }
            Request::Hello { .. } => Err(wrong("it is of another version, or known already")),
            Request::Isolated(ref request) => {
                let member = client.member.as_mut();
                let member = member.ok_or_else(|| wrong("its first message is not a greeting"))?;
                self.queues.handle(member, request, &[])
            }
            _ => Err(wrong("ranks with a shared queue ask for that only")),
        }
    }

    /// Returns the half of the queue that a rank shares.
    fn member(&self, place: Option<(u16, u16)>) -> Result<Member, Refused> {
        let none = || wrong("the rank does not share a queue");
        let (index, count) = place.filter(|(_, count)| *count == self.ranks).ok_or_else(none)?;
        let share = DeviceShare::joint(self.device.generation(), index, count)?;
        let half = share.shared_queue().ok_or_else(none)?;
        let member = Member::new(half, Rights::default());
        member.map_err(|error| Refused::new(Refusal::NoneLeft, error.to_string()))
    }
}
