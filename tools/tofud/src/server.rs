//! Serves the processes that share the device.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, chmod, rename, unlink};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, socket_with,
};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use tofu_abi::irq::vector;
use tofu_abi::{BchId, BgId, CqId, TniId};
use tofu_driver::Gate;
use tofu_queue_owner::{Member, Place, Refused, Reply, SharedQueues};
use tofu_utofu::Half;
use tofu_vfio::broker::wire::{
    Answer, Channel, GateLinks, IsolatedRequest, Page, Queue, Refusal, Request, VERSION,
    receive_with_fds, send,
};

use crate::device::{SharedDevice, Source};
use crate::isolated::{NewMemory, NewQueue, Part, Registers};
use crate::lease::{ClientId, Leases};
use crate::limits::Limits;
use crate::sharer::Sharer;
use crate::throttle::Throttle;

/// The most connections at a time. A node has at most 48 processes.
pub const MAX_CLIENTS: usize = 64;
/// The most connections at a time of a user whose processes are isolated: as many as a node has
/// processes.
const MAX_OF_USER: usize = 48;
/// Device addresses that a process has from the start, in bytes; it requests more when they are
/// used up.
const FIRST_ADDRESSES: u64 = 8 << 30;
/// The most messages of a process that shares a queue that are read before the others' turn comes:
/// each doorbell is one.
const MESSAGES: usize = 32;
/// The fewest processes of a node for which a generation has queues: more may share some.
const FEWEST: u16 = 8;
/// Connections that are accepted before known processes are served again.
const ACCEPTED_AT_ONCE: usize = 16;

/// Makes a socket that listens at `path`, replacing one that may be left from before.
///
/// # Errors
///
/// If the folder does not permit it.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // Prepared beside it, so that there is a socket at any time.
    let new = path.with_extension("new");
    match unlink(&new) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    bind(&socket, &SocketAddrUnix::new(&new)?)?;
    // For all users, because what users other than root get is isolated.
    chmod(&new, Mode::from_raw_mode(0o666))?;
    rustix::net::listen(&socket, MAX_CLIENTS as i32)?;
    rename(&new, path)?;
    Ok(socket)
}

/// A process, or anything else that has connected.
struct Client {
    socket: OwnedFd,
    /// Readable when the process has ended, in case another process keeps its socket open.
    process: Option<OwnedFd>,
    pid: i32,
    /// Its user, whose number is the group of its queues if it is isolated.
    user: u32,
    /// Its part of the device if it is isolated.
    part: Option<Box<dyn Part>>,
    /// Its half of a queue if it shares its queue.
    sharer: Option<Sharer>,
    role: Role,
    /// Start and length of each range of device addresses.
    addresses: Vec<(u64, u64)>,
}

/// The role of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Nothing, because it has not sent anything.
    Silent,
    /// Shares it.
    Program,
    /// It is the node's network, on this TNI, and shares it until a process wants it alone.
    Network(TniId),
    /// Has it alone, by VFIO.
    Alone,
}

/// The result of a client's message.
#[derive(PartialEq, Eq)]
enum Next {
    Stay,
    /// There was none.
    Wait,
    Leave,
}

/// Gives a device to the processes that connect.
pub struct Server<S: Source> {
    listener: OwnedFd,
    source: S,
    /// The queues that processes share; dropped before the device.
    shared: Option<Box<dyn SharedQueues>>,
    device: Option<S::Device>,
    leases: Leases,
    clients: BTreeMap<ClientId, Client>,
    next: u64,
    /// The device was opened once: if it has no driver now, it was taken away.
    was_open: bool,
    /// True if the device is on loan from the kernel's own driver, for a process with exclusive
    /// use or for those that share queues.
    lent: bool,
    /// The user whose processes get the device itself: this process's user, root. All others' are
    /// isolated.
    trusted: u32,
    warnings: Throttle,
}

impl<S: Source> Server<S> {
    /// Shares the device of `source` with processes that connect to `listener`, which does not
    /// block.
    pub fn new(listener: OwnedFd, source: S) -> Self {
        Self {
            listener,
            source,
            shared: None,
            device: None,
            leases: Leases::default(),
            clients: BTreeMap::new(),
            next: 0,
            was_open: false,
            lent: false,
            trusted: geteuid().as_raw(),
            warnings: Throttle::default(),
        }
    }

    /// The same with another user than this process's whose processes get the device itself.
    pub fn trusting(self, user: u32) -> Self {
        Self { trusted: user, ..self }
    }

    /// Processes that use the device.
    pub fn users(&self) -> usize {
        let shares = |role| matches!(role, Role::Program | Role::Network(_));
        self.clients.values().filter(|client| shares(client.role)).count()
    }

    fn with_role(&self, wanted: impl Fn(Role) -> bool) -> Vec<ClientId> {
        let found = self.clients.iter().filter(|(_, client)| wanted(client.role));
        found.map(|(id, _)| *id).collect()
    }

    /// Returns true if the device is open.
    pub fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// Serves until a system call fails.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn run(&mut self) -> io::Result<()> {
        loop {
            self.turn(None)?;
        }
    }

    /// Waits until something happens, or until the time-out, and handles it.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn turn(&mut self, timeout: Option<&Timespec>) -> io::Result<()> {
        let busy = self.serve_shared();
        let at_once = Timespec::default();
        let timeout = if busy { Some(&at_once) } else { timeout };
        let interrupts = self.shared.as_ref().map(|shared| shared.events()).unwrap_or_default();
        let events = PollFlags::IN;
        let mut fds = vec![PollFd::new(&self.listener, events)];
        let mut whose = Vec::new();
        for (id, client) in &self.clients {
            fds.push(PollFd::new(&client.socket, events));
            whose.push((*id, false));
            if let Some(process) = &client.process {
                fds.push(PollFd::new(process, events));
                whose.push((*id, true));
            }
        }
        let whose_end = fds.len();
        // There is something to move, which the next turn begins with.
        fds.extend(interrupts.iter().map(|event| PollFd::new(event, events)));
        match poll(&mut fds, timeout) {
            Err(Errno::INTR) => return Ok(()),
            polled => polled?,
        };
        let is_new = !fds[0].revents().is_empty();
        let mut ended = Vec::new();
        let mut ready = Vec::new();
        for (fd, (id, is_process)) in fds[1..whose_end].iter().zip(whose) {
            let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
            let happened = fd.revents();
            if happened.intersects(gone) || (is_process && !happened.is_empty()) {
                ended.push(id);
            } else if !happened.is_empty() {
                ready.push(id);
            }
        }
        // First what makes room.
        for id in ended {
            self.end(id);
        }
        for id in ready {
            self.serve_all(id);
        }
        if is_new {
            self.accept()?;
        }
        self.give_up_unused();
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..ACCEPTED_AT_ONCE {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.listener, flags) {
                Ok(socket) => self.add(socket),
                Err(Errno::AGAIN) => break,
                // The other side is gone already, or the call was interrupted.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                    self.warnings.warn(format_args!("cannot accept a process: {error}"));
                    // The connection stays in the queue; without a pause this would be an endless
                    // loop.
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Adds the client at the other end of a socket that does not block.
    pub fn add(&mut self, socket: OwnedFd) {
        if self.clients.len() >= MAX_CLIENTS {
            // Clients that have connected and sent nothing are dropped first.
            let silent = self.clients.iter().find(|(_, client)| client.role == Role::Silent);
            if let Some(id) = silent.map(|(id, _)| *id) {
                self.end(id);
            } else {
                self.warnings.warn("more processes than can be served");
                let text = format!("tofud serves {MAX_CLIENTS} processes, and no more");
                let _ = answer(socket.as_fd(), refused(Refusal::NoneLeft, text));
                return;
            }
        }
        let (process, pid, user) = match socket_peercred(&socket) {
            Ok(peer) => {
                let process = pidfd_open(peer.pid, PidfdFlags::empty()).ok();
                (process, Pid::as_raw(Some(peer.pid)), peer.uid.as_raw())
            }
            // An unknown process.
            Err(_) => (None, 0, u32::MAX),
        };
        let same = |client: &&Client| user != self.trusted && client.user == user;
        if self.clients.values().filter(same).count() >= MAX_OF_USER {
            let text = format!("tofud serves {MAX_OF_USER} processes of a user, and no more");
            let _ = answer(socket.as_fd(), refused(Refusal::NoneLeft, text));
            return;
        }
        let id = ClientId(self.next);
        self.next += 1;
        let (role, addresses) = (Role::Silent, Vec::new());
        let (part, sharer) = (None, None);
        let client = Client { socket, process, pid, user, part, sharer, role, addresses };
        self.clients.insert(id, client);
    }

    /// Serves the queues that processes share. Returns whether there was anything to do.
    fn serve_shared(&mut self) -> bool {
        let Some(shared) = &mut self.shared else { return false };
        let mut busy = shared.serve();
        let mut deaf = Vec::new();
        for (id, client) in &mut self.clients {
            let Some(sharer) = &mut client.sharer else { continue };
            let sent = match sharer.settle(&mut **shared) {
                Ok(None) => continue,
                Ok(Some(reply)) => {
                    let (answer, fds) = reply.parts();
                    send(client.socket.as_fd(), &answer, &fds)
                }
                Err(refused) => answer(client.socket.as_fd(), refused.answer()),
            };
            if sent.is_err() {
                deaf.push(*id);
            }
        }
        let stuck = shared.close_unused();
        self.leases.close_shared(|place| shared.has(place), &stuck);
        if !busy {
            busy = shared.rest();
        }
        for id in deaf {
            self.end(id);
        }
        busy
    }

    /// Reads messages of a process: one, or several of one that shares a queue.
    fn serve_all(&mut self, id: ClientId) {
        for _ in 0..MESSAGES {
            match self.serve(id) {
                Next::Stay => {}
                Next::Wait => return,
                Next::Leave => return self.end(id),
            }
            if self.clients.get(&id).is_none_or(|client| client.sharer.is_none()) {
                return;
            }
        }
    }

    /// Reads a message of a process and answers it.
    fn serve(&mut self, id: ClientId) -> Next {
        let Some(client) = self.clients.get(&id) else {
            return Next::Wait;
        };
        let pid = client.pid;
        let (request, fds) = match receive_with_fds::<Request>(client.socket.as_fd()) {
            Ok(Some(request)) => request,
            Ok(None) => return Next::Leave,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Wait,
            Err(error) => {
                self.warnings.warn(format_args!("process {pid}: {error}"));
                return Next::Leave;
            }
        };
        let sent = match self.handle(id, &request, &fds) {
            Ok(Handled::Silent) => Ok(()),
            Ok(Handled::Memory(file)) => self.clients.get(&id).map_or(Ok(()), |client| {
                send(client.socket.as_fd(), &Answer::Memory, &[file.as_fd()])
            }),
            Ok(Handled::Shared(reply)) => self.clients.get(&id).map_or(Ok(()), |client| {
                let (answer, fds) = reply.parts();
                send(client.socket.as_fd(), &answer, &fds)
            }),
            Ok(Handled::Event(vector)) => self.say_event(id, vector),
            Ok(Handled::Answer(found)) => self.say(id, found),
            Ok(Handled::Welcome(cq)) => self.welcome(id, cq),
            Err(refused) => {
                if refused.why == Refusal::Wrong {
                    self.warnings.warn(format_args!("process {pid}: {}", refused.text));
                }
                let sent = self.say(id, refused.answer());
                // A client that makes mistakes may make worse ones.
                if refused.why == Refusal::Wrong {
                    return Next::Leave;
                }
                sent
            }
        };
        match sent {
            Ok(()) => Next::Stay,
            Err(error) => {
                self.warnings.warn(format_args!("process {pid} does not listen: {error}"));
                Next::Leave
            }
        }
    }

    fn say(&self, id: ClientId, what: Answer) -> io::Result<()> {
        self.clients.get(&id).map_or(Ok(()), |client| answer(client.socket.as_fd(), what))
    }

    fn handle(
        &mut self,
        id: ClientId,
        request: &Request,
        fds: &[OwnedFd],
    ) -> Result<Handled, Refused> {
        let wrong = |text: &str| Refused::new(Refusal::Wrong, text);
        let client = self.clients.get(&id).ok_or_else(|| wrong("who is that?"))?;
        let (pid, role, user) = (client.pid, client.role, client.user);
        let shares = client.sharer.is_some();
        match *request {
            Request::Packets { .. } | Request::Alone { .. } if user != self.trusted => {
                Err(Refused::new(Refusal::NoDevice, "only root may have that of the device"))
            }
            Request::Hello { version, .. }
            | Request::Packets { version, .. }
            | Request::Alone { version }
                if version != VERSION =>
            {
                let text = format!("tofud speaks version {VERSION}, not {version}");
                Err(Refused::new(Refusal::Wrong, text))
            }
            Request::Hello { .. } | Request::Packets { .. } | Request::Alone { .. }
                if role != Role::Silent =>
            {
                Err(wrong("it is known already"))
            }
            Request::Hello { place, .. } => self.hello(id, place),
            Request::Packets { tni, .. } => {
                // Which ones there are is known once the device is open.
                self.open(!self.was_open)?;
                let tni = self.leases.unit(tni)?;
                self.leases.take_packets(id, pid, tni)?;
                self.enter(id, Role::Network(tni))?;
                Ok(Handled::Welcome(None))
            }
            Request::Alone { .. } => {
                self.leave_alone(id)?;
                Ok(Handled::Answer(Answer::Yours))
            }
            _ if !matches!(role, Role::Program | Role::Network(_)) => {
                Err(wrong("its first message is not a greeting"))
            }
            Request::Take(queue) => self.take(id, pid, queue),
            Request::Give(queue) => self.give(id, queue),
            Request::TakeGates { tni, relays } => self.take_gates(id, tni, relays),
            Request::GiveGates { tni, gates } => self.give_gates(id, tni, gates),
            Request::Isolated(ref request) if shares && Sharer::is_about_queue(request) => {
                self.of_shared(id, request, fds)
            }
            Request::Isolated(ref request) => self.isolated(id, request, fds),
            Request::Addresses { .. } if user != self.trusted => {
                Err(wrong("it has no address space"))
            }
            Request::Addresses { size } => self.grant_addresses(id, size),
            // Its word in memory, which requests the interrupt, must be in the address space.
            Request::Interrupt(_) if user != self.trusted => Err(wrong("it has no address space")),
            Request::Interrupt(queue) => {
                let (tni, cq) = own_queue(&self.leases, id, queue)?;
                Ok(Handled::Event(vector::cq(tni, cq)))
            }
        }
    }

    /// A process wants to use the device, at this place.
    fn hello(&mut self, id: ClientId, place: Option<(u16, u16)>) -> Result<Handled, Refused> {
        let (pid, user) = match self.clients.get(&id) {
            Some(client) => (client.pid, client.user),
            None => return Ok(Handled::Silent),
        };
        // Without the device the most is not known yet; no generation has less than this.
        if self.device.is_none() && place.is_some_and(|(_, processes)| processes > FEWEST) {
            self.borrow()?;
        }
        self.open(true)?;
        let half = self.leases.half(place)?;
        let cq = match half {
            Some(half) => self.leases.join_half(id, pid, half).map(|()| None)?,
            None => self.leases.join(id, pid, place)?,
        };
        // All processes of a node where queues are shared are of one group.
        let are_many = place.is_some_and(|(_, processes)| self.leases.are_many(processes));
        if user != self.trusted || are_many {
            let joined = self.isolate(id, user, cq);
            return joined.and_then(|done| self.share(id, user, half).map(|()| done)).inspect_err(
                |_| {
                    self.leases.end(id, &[]);
                    self.leases.end_half(id);
                },
            );
        }
        self.enter(id, Role::Program)?;
        Ok(Handled::Welcome(cq))
    }

    /// Takes the device from the kernel's own driver, which has no processes with shared queues.
    fn borrow(&mut self) -> Result<(), Refused> {
        if self.clients.values().all(|client| client.role != Role::Alone) {
            self.lent |= self.source.lend()?;
        }
        Ok(())
    }

    /// Makes an isolated process one that shares its queue, if it has half of one.
    fn share(
        &mut self,
        id: ClientId,
        user: u32,
        half: Option<(Place, Half)>,
    ) -> Result<(), Refused> {
        let Some(half) = half else { return Ok(()) };
        let device = self.device.as_ref();
        if self.shared.is_none() {
            self.shared = device.and_then(SharedDevice::shared_queues);
        }
        let rights = device.and_then(|device| device.rights(user));
        let (Some(rights), Some(_), Some(client)) =
            (rights, &self.shared, self.clients.get_mut(&id))
        else {
            let text = "this device has no queues that processes share";
            return Err(Refused::new(Refusal::NoDevice, text));
        };
        let member = Member::new(half, rights);
        let member = member.map_err(|error| Refused::new(Refusal::NoneLeft, error.to_string()))?;
        client.sharer = Some(Sharer::new(member));
        Ok(())
    }

    fn take(&mut self, id: ClientId, pid: i32, queue: Queue) -> Result<Handled, Refused> {
        let (tni, cq) = self.leases.queue(queue)?;
        self.leases.take(id, pid, tni, cq)?;
        Ok(Handled::Answer(Answer::Taken))
    }

    fn give(&mut self, id: ClientId, queue: Queue) -> Result<Handled, Refused> {
        let (tni, cq) = self.leases.queue(queue)?;
        self.leases.give(id, tni, cq)?;
        Ok(Handled::Silent)
    }

    fn take_gates(&mut self, id: ClientId, tni: u8, relays: u8) -> Result<Handled, Refused> {
        let tni = self.leases.unit(tni)?;
        let gates = self.leases.take_gates(id, tni, relays)?;
        Ok(Handled::Answer(Answer::Gates { gates }))
    }

    fn give_gates(&mut self, id: ClientId, tni: u8, gates: u64) -> Result<Handled, Refused> {
        let tni = self.leases.unit(tni)?;
        self.leases.give_gates(id, tni, gates)?;
        Ok(Handled::Silent)
    }

    fn grant_addresses(&mut self, id: ClientId, size: u64) -> Result<Handled, Refused> {
        let granted = self.device.as_ref().and_then(|device| device.grant_addresses(size));
        let (start, len) = granted
            .ok_or_else(|| Refused::new(Refusal::NoneLeft, "no device addresses are left"))?;
        if let Some(client) = self.clients.get_mut(&id) {
            client.addresses.push((start, len));
        }
        Ok(Handled::Answer(Answer::Addresses { start, len }))
    }

    /// Makes a process with queues an isolated one.
    fn isolate(&mut self, id: ClientId, user: u32, cq: Option<u8>) -> Result<Handled, Refused> {
        let part = self.device.as_ref().and_then(|device| {
            let about = (device.node(), device.generation().register());
            Some((device.part(user)?, about))
        });
        let (Some((part, (node, generation))), Some(client)) = (part, self.clients.get_mut(&id))
        else {
            self.leases.end(id, &[]);
            return Err(Refused::new(
                Refusal::NoDevice,
                "the device cannot be shared with this user",
            ));
        };
        client.part = Some(part);
        client.role = Role::Program;
        log::info!("process {} of user {user} uses the device, apart from others", client.pid);
        Ok(Handled::Answer(Answer::Isolated { node, generation, cq }))
    }

    /// The memory that isolated processes have: all of them, and those of the process's user.
    fn taken(&self, id: ClientId) -> (u64, u64) {
        let taken = |by: &dyn Fn(&Client) -> bool| -> u64 {
            let clients = self.clients.values().filter(|client| by(client));
            let taken = |client: &Client| {
                let shared = client.sharer.as_ref().map_or(0, Sharer::taken);
                client.part.as_ref().map_or(0, |part| part.taken()) + shared
            };
            clients.map(taken).sum()
        };
        match self.clients.get(&id) {
            Some(own) => (taken(&|_| true), taken(&|client| client.user == own.user)),
            None => (0, 0),
        }
    }

    /// Checks whether a process may have more bytes of the node's memory.
    fn room(&self, id: ClientId) -> impl Fn(u64) -> Result<(), Refused> + use<S> {
        let (all, user) = self.taken(id);
        let client = self.clients.get(&id);
        let limited = client.filter(|client| client.user != self.trusted).map(|client| client.pid);
        move |cost| limited.map_or_else(Limits::of_root, Limits::of).check(all, user, cost)
    }

    /// Handles a request of a process to the queue that it shares.
    fn of_shared(
        &mut self,
        id: ClientId,
        request: &IsolatedRequest,
        fds: &[OwnedFd],
    ) -> Result<Handled, Refused> {
        let fits = self.room(id);
        let sharer = self.clients.get_mut(&id).and_then(|client| client.sharer.as_mut());
        let (Some(sharer), Some(shared)) = (sharer, &mut self.shared) else {
            return Err(Refused::new(Refusal::Wrong, "it does not share a queue"));
        };
        let reply = sharer.handle(&mut **shared, request, fds, fits)?;
        Ok(reply.map_or(Handled::Silent, Handled::Shared))
    }

    /// Handles a request of an isolated process.
    fn isolated(
        &mut self,
        id: ClientId,
        request: &IsolatedRequest,
        fds: &[OwnedFd],
    ) -> Result<Handled, Refused> {
        let wrong = |text: &str| Refused::new(Refusal::Wrong, text);
        let leases = &self.leases;
        let queue = |queue| own_queue(leases, id, queue);
        let channel = |channel| own_channel(leases, id, channel);
        let page = |page| match page {
            Page::Queue(of) => queue(of).map(Registers::Queue),
            Page::Channel(of) => channel(of).map(Registers::Channel),
        };
        let fits = self.room(id);
        let client = self.clients.get_mut(&id);
        let part = client.and_then(|client| client.part.as_mut());
        let part = part.ok_or_else(|| wrong("it has the device itself"))?;
        let done = Handled::Answer(Answer::Done);
        let value = |value| Handled::Answer(Answer::Value(value));
        Ok(match *request {
            IsolatedRequest::OpenQueue { queue: of, stags, mrq_size, session } => {
                let new = NewQueue { queue: queue(of)?, stags, mrq_size, session };
                fits(new.cost())?;
                Handled::Memory(part.open_queue(&new)?)
            }
            IsolatedRequest::CloseQueue { queue: of } => {
                part.close_queue(queue(of)?)?;
                done
            }
            IsolatedRequest::Register {
                queue: of,
                stag,
                offset,
                address,
                len,
                read_only,
                ref runs,
            } => {
                let file = fds.first().ok_or_else(|| wrong("no file comes with it"))?.as_fd();
                let queue = queue(of)?;
                let new = NewMemory { queue, stag, offset, address, len, read_only, file, runs };
                fits(new.cost())?;
                part.register(&new)?;
                done
            }
            IsolatedRequest::RegisterMapped { .. } => return Err(wrong("it has no address space")),
            IsolatedRequest::Deregister { queue: of, stag } => {
                part.deregister(queue(of)?, stag).map(|()| done)?
            }
            IsolatedRequest::OpenChannel { channel: of, ref gates } => {
                let channel = channel(of)?;
                Handled::Memory(part.open_channel(channel, &own_gates(leases, id, gates)?)?)
            }
            IsolatedRequest::CloseChannel { channel: of } => {
                part.close_channel(channel(of)?)?;
                done
            }
            IsolatedRequest::Exceptions { channel: of } => value(part.exceptions(channel(of)?)?),
            IsolatedRequest::Write { page: of, offset, value } => {
                part.write(page(of)?, offset, value)?;
                Handled::Silent
            }
            IsolatedRequest::Read { page: of, offset } => value(part.read(page(of)?, offset)?),
        })
    }

    /// Opens the device if it is not.
    fn open(&mut self, bind: bool) -> Result<(), Refused> {
        let alone = self.clients.values().find(|client| client.role == Role::Alone);
        if let Some(Client { pid, .. }) = alone {
            let text =
                format!("the device is in use by another process, {pid}, which has it alone");
            return Err(Refused::new(Refusal::NoDevice, text));
        }
        if self.device.is_none() {
            let opened = self.source.open(bind);
            let device = opened.map_err(|text| Refused::new(Refusal::NoDevice, text))?;
            self.leases = Leases::new(device.generation());
            self.device = Some(device);
            self.was_open = true;
        }
        Ok(())
    }

    /// Makes a process with queues one that shares the device.
    fn enter(&mut self, id: ClientId, role: Role) -> Result<(), Refused> {
        let range = self.device.as_ref().and_then(|device| device.grant_addresses(FIRST_ADDRESSES));
        let (Some(range), Some(client)) = (range, self.clients.get_mut(&id)) else {
            self.leases.end(id, &[]);
            return Err(Refused::new(Refusal::NoneLeft, "no device addresses are left"));
        };
        client.addresses.push(range);
        client.role = role;
        log::info!("process {} uses the device: {role:?}", client.pid);
        Ok(())
    }

    /// Releases the device for a process that wants it alone.
    fn leave_alone(&mut self, id: ClientId) -> Result<(), Refused> {
        let in_the_way = |(other, client): &(&ClientId, &Client)| {
            **other != id && matches!(client.role, Role::Program | Role::Alone)
        };
        if let Some((_, client)) = self.clients.iter().find(in_the_way) {
            let text = format!("the device is in use by process {}", client.pid);
            return Err(Refused::new(Refusal::InUse, text));
        }
        self.end_network();
        self.give_up_unused();
        self.lent = self.source.lend()?;
        if let Some(client) = self.clients.get_mut(&id) {
            client.role = Role::Alone;
            log::info!("process {} has the device alone", client.pid);
        }
        Ok(())
    }

    fn end_network(&mut self) {
        for id in self.with_role(|role| matches!(role, Role::Network(_))) {
            self.end(id);
        }
    }

    fn welcome(&self, id: ClientId, cq: Option<u8>) -> io::Result<()> {
        let (Some(device), Some(client)) = (&self.device, self.clients.get(&id)) else {
            return Ok(());
        };
        let (terms, fds) = device.terms()?;
        let mut fds = fds.to_vec();
        if let Role::Network(tni) = client.role {
            fds.push(device.interrupt(vector::tni(tni))?);
        }
        let addresses = client.addresses.first().copied().unwrap_or_default();
        send(client.socket.as_fd(), &Answer::Welcome { terms, addresses, cq }, &fds)
    }

    /// Answers with the eventfd of a vector.
    fn say_event(&self, id: ClientId, vector: u16) -> io::Result<()> {
        let (Some(device), Some(client)) = (&self.device, self.clients.get(&id)) else {
            return Ok(());
        };
        match device.interrupt(vector) {
            Ok(event) => send(client.socket.as_fd(), &Answer::Done, &[event]),
            Err(error) => self.say(id, refused(Refusal::NoneLeft, error.to_string())),
        }
    }

    /// Ends a process's share: when this returns, the device does not use its memory any more.
    fn end(&mut self, id: ClientId) {
        let Some(mut client) = self.clients.remove(&id) else {
            return;
        };
        if let (Some(sharer), Some(shared)) = (&mut client.sharer, &mut self.shared) {
            shared.end(&mut sharer.member);
        }
        self.leases.end_half(id);
        if client.role == Role::Alone {
            // The kernel waits until the process has released it.
            self.give_back();
        }
        let shares = matches!(client.role, Role::Program | Role::Network(_));
        let Some(device) = self.device.as_ref().filter(|_| shares) else {
            return;
        };
        let pid = client.pid;
        let mut queues = self.leases.of(id);
        for tni in self.leases.packets_of(id) {
            device.stop_packets(tni);
            queues.push((tni, self.leases.kernel_cq()));
        }
        let stuck = device.stop_queues(&queues);
        // Closes the queues and channels that the process has left open. All have stopped, except
        // for stuck queues.
        drop(client.part);
        self.leases.end(id, &stuck);
        let gates_stopped = device.stop_gates(&self.leases.gates_of(id));
        self.leases.end_gates(id, gates_stopped);
        if !gates_stopped {
            log::error!(
                "the device does not release barrier gates of process {pid}; its memory stays \
                 mapped until the device is unused"
            );
            return;
        }
        if !stuck.is_empty() {
            log::error!(
                "the device does not release {} control queues of process {pid}; its memory \
                 stays mapped until the device is unused",
                stuck.len()
            );
            return;
        }
        for (start, len) in joined(client.addresses) {
            if let Err(error) = device.take_addresses_back(start, len) {
                log::error!("memory of process {pid} stays mapped for the device: {error}");
            }
        }
        log::info!("process {pid} has left the device");
    }

    /// Gives the device back to the kernel's own driver, if it is on loan.
    fn give_back(&mut self) {
        if std::mem::take(&mut self.lent)
            && let Err(error) = self.source.give_back()
        {
            log::error!("the kernel's driver does not get the device back: {error}");
        }
    }

    /// Releases the device if no process uses it. Then the kernel resets it.
    fn give_up_unused(&mut self) {
        // The network alone must not keep a device that only a reset can repair.
        if self.leases.any_stuck() && self.with_role(|role| role == Role::Program).is_empty() {
            self.end_network();
        }
        if self.users() > 0 {
            return;
        }
        if self.device.is_some() {
            // Closes the queues that are shared.
            self.shared = None;
            self.device = None;
            self.leases = Leases::default();
        }
        if self.with_role(|role| role == Role::Alone).is_empty() {
            self.give_back();
        }
    }
}

/// The result of a request.
enum Handled {
    Silent,
    /// The eventfd of a vector.
    Event(u16),
    Memory(OwnedFd),
    Shared(Reply),
    Answer(Answer),
    Welcome(Option<u8>),
}

fn answer(socket: BorrowedFd<'_>, what: Answer) -> io::Result<()> {
    send(socket, &what, &[])
}

fn refused(why: Refusal, text: String) -> Answer {
    Refused { why, text }.answer()
}

/// Merges ranges, because a process may have mapped memory across the border of two.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut result: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (start, len) in ranges {
        match result.last_mut() {
            Some(last) if last.0 + last.1 == start => last.1 += len,
            _ => result.push((start, len)),
        }
    }
    result
}

/// A control queue that the process has.
fn own_queue(leases: &Leases, id: ClientId, queue: Queue) -> Result<(TniId, CqId), Refused> {
    let queue = leases.queue(queue)?;
    let own = leases.has(id, queue).then_some(queue);
    own.ok_or_else(|| Refused::new(Refusal::Wrong, "the control queue is not this process's"))
}

fn has_gate(leases: &Leases, id: ClientId, (tni, bg): (TniId, BgId)) -> bool {
    leases.gates_of(id)[tni.index()] >> bg.get() & 1 != 0
}

/// A barrier channel whose start gate the process has.
fn own_channel(leases: &Leases, id: ClientId, channel: Channel) -> Result<(TniId, BchId), Refused> {
    let own = channel.ids().filter(|(tni, bch)| has_gate(leases, id, (*tni, bch.gate())));
    own.ok_or_else(|| Refused::new(Refusal::Wrong, "the barrier channel is not this process's"))
}

/// Links of gates that all belong to the process.
fn own_gates(leases: &Leases, id: ClientId, gates: &[GateLinks]) -> Result<Vec<Gate>, Refused> {
    let gates: Option<Vec<Gate>> = gates.iter().map(GateLinks::gate).collect();
    let gates =
        gates.ok_or_else(|| Refused::new(Refusal::Wrong, "there is no such barrier gate"))?;
    if !gates.iter().all(|gate| has_gate(leases, id, (gate.tni, gate.bg))) {
        return Err(Refused::new(Refusal::Wrong, "barrier gates are not this process's"));
    }
    Ok(gates)
}
