//! The protocol: commands of a client and what they do to a node.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use serde::Deserialize;
use smallvec::SmallVec;
use thiserror::Error;
use tofu_abi::barrier::BCH_MASK;
use tofu_abi::pci::{MSIX_BAR, REGISTER_BAR};
use tofu_abi::regs::{
    BgsReg, CqReg, CqsReg, NUM_CQ, NUM_TNI, PAGE_SIZE as REGISTER_PAGE, bgs_page, cqs_page,
};
use tofu_abi::{BgId, Coords, CqId, Doorbell, TniId};
use tofu_icc::DmaMemory;
use tofu_machine::{DoorbellBackend, Doorbells, Machine, Node, NodeParts, Torus, TorusParts};
use tofu_pci::{CONFIG_SPACE_SIZE, MsiSink, MsixTable, PciFunction, regs};
use tofu_sync::lock;
use tofu_timed::Function;
use vm_memory::MmapRegion;
use vmm_sys_util::eventfd::EventFd;

use crate::channel::{Channel, ChannelError, Message};
use crate::device::Device;
use crate::irq::{ClientVectors, Vectors, check_eventfd};
use crate::memory::{Backing, ClientMemory, HUGE, JointMemory, Limits, MapRequest, Rights};
use crate::pages::{ClientPages, ClientWindows, Mappable};
use crate::process::ClientProcess;
use crate::sent::{SentFd, set_back};
use crate::wire::{
    Fields, HEADER_SIZE, MAX_DATA, MAX_FDS, MAX_MAPS_TOLD, MAX_SENT_FDS, PAGE_SIZE, VERSION,
    command, device, dma, io_fd, irq, put, put_long, region,
};

/// The longest description of a client's capabilities, in bytes.
const MAX_CAPABILITIES: usize = 64 << 10;
/// The time for which a client may wait for another one to leave before it is turned away. A client
/// that restarts connects before its former connection has been cleaned up.
const PATIENCE: Duration = Duration::from_secs(2);
/// The poll interval for clients that wait to attach.
const LOOK: Duration = Duration::from_millis(100);
/// The time for which a client that is turned away has for its first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(1);
/// An address at which every PC has ordinary memory, not a ROM or a device.
const ORDINARY_MEMORY: u64 = 1 << 20;
/// The time to wait when the host has no descriptors for a client.
const SHORT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);
/// Capabilities that a function can have in the first 256 bytes of configuration space.
const MAX_PCI_CAPABILITIES: usize = 48;

/// The reason why a client or all clients cannot be served.
#[derive(Debug, Error)]
pub enum Error {
    /// No more clients can be accepted.
    #[error("waiting for a client: {0}")]
    Accept(io::Error),
    /// A descriptor could not be duplicated.
    #[error("duplicating a descriptor: {0}")]
    Duplicate(io::Error),
    /// There is no memory for the pages that the client maps.
    #[error("making pages for a client: {0}")]
    Pages(io::Error),
    /// [`Backing::Process`] needs the client's memory, but its process cannot be identified, or
    /// runs as another user.
    #[error("the client's process cannot be reached: {0}")]
    Process(Errno),
    /// A client's messages could not be followed any more.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The client wants another protocol, or its first message was not a correct VERSION.
    #[error("no agreement on a version of the protocol")]
    Version,
}

/// Serves a node to one client at a time, or a client's part of a node that several share.
pub struct Server {
    device: Device,
    memory: Arc<ClientMemory>,
    mappable: Option<Mappable>,
    /// ENABLE registers that the client has written to, if others use the device as well.
    used: Option<Mutex<BTreeSet<u64>>>,
    vectors: ClientVectors,
    sockets: Mutex<Sockets>,
    /// Held while there is a client.
    attached: Mutex<()>,
    /// Told whether a client is attached, whenever that changes.
    on_change: Mutex<Option<OnChange>>,
}

type OnChange = Arc<dyn Fn(bool) + Send + Sync>;

/// The reason why memory of a client cannot be reached, for the user.
fn why_unreachable(backing: Backing, errno: Errno) -> &'static str {
    match backing {
        Backing::Process => "its process has unmapped it, or may not write it",
        Backing::Sealed if errno == HUGE => {
            "it is of huge pages, which the host may run out of; --any-memory takes it nevertheless"
        }
        Backing::Sealed => {
            "it must be shared, as by memory-backend-memfd,share=on of QEMU; --any-memory takes \
             files that are not sealed, too"
        }
        Backing::Any => "it must be shared, as by memory-backend-memfd,share=on of QEMU",
    }
}

/// The sockets that [`Server::stop`] has to shut down.
#[derive(Default)]
struct Sockets {
    stopped: bool,
    listener: Option<UnixListener>,
    client: Option<UnixStream>,
    /// When the client has come.
    since: Option<Instant>,
}

impl Server {
    /// Adds a node with this memory to a machine, and makes a server for it, which receives the
    /// node's MSI-X messages and controls its doorbells. Clients can map `pages` if the machine has
    /// polled doorbells.
    ///
    /// # Errors
    ///
    /// As [`Machine::add_node`].
    pub fn new(
        machine: &Machine,
        at: Coords,
        memory: Arc<ClientMemory>,
        pages: Option<ClientPages>,
    ) -> Result<Self, tofu_machine::Error> {
        let node = add_node(machine, at, Arc::clone(&memory) as _, pages.as_ref())?;
        let pages = pages.map(|pages| Mappable::Pages(Arc::new(pages)));
        Ok(Self::alone(Device::Tofu(node), memory, pages))
    }

    /// Adds a node of TNW with this memory to its machine, and makes a server for it. Its windows
    /// are `windows`, if there are some, which clients can map, and registers otherwise.
    ///
    /// # Errors
    ///
    /// As [`Torus::add_node`].
    pub fn of_torus(
        torus: &Torus,
        at: Coords,
        memory: Arc<ClientMemory>,
        windows: Option<ClientWindows>,
    ) -> Result<Self, tofu_machine::Error> {
        let windows = windows.map(Arc::new);
        let parts = TorusParts {
            windows: windows.as_ref().map(|windows| windows.shared()),
            backend: windows.clone().map(|windows| windows as _),
            ..TorusParts::new(Arc::clone(&memory) as _)
        };
        let node = torus.add_node_of(at, parts)?;
        Ok(Self::alone(Device::Tnw(node), memory, windows.map(Mappable::Windows)))
    }

    /// Makes a server for a node in modelled time, whose device reaches this memory. All accesses,
    /// doorbells included, are messages. They take effect when they arrive, so the caller must let
    /// a guest send one only when it is the guest's turn.
    pub fn in_modelled_time(function: Arc<Function>, memory: Arc<ClientMemory>) -> Self {
        Self::alone(Device::Timed(function), memory, None)
    }

    /// A server whose client has the device for itself, and its interrupts.
    fn alone(device: Device, memory: Arc<ClientMemory>, mappable: Option<Mappable>) -> Self {
        let count = device.endpoint().msix().map_or(0, MsixTable::len);
        let vectors = Arc::new(Vectors::new(count));
        if let Some(table) = device.endpoint().msix() {
            table.connect(Arc::clone(&vectors) as Arc<dyn MsiSink>);
        }
        Self::of(device, memory, mappable, ClientVectors::new(vectors, 0), None)
    }

    /// Adds a node that `count` clients share, and makes a server for each of them. Client `index`
    /// maps memory at the addresses of [`client_window`](crate::client_window) alone.
    ///
    /// # Errors
    ///
    /// As [`Machine::add_node`].
    pub fn joint(
        machine: &Machine,
        at: Coords,
        count: u16,
        (backing, limits): (Backing, Limits),
        pages: Option<ClientPages>,
    ) -> Result<Vec<Self>, tofu_machine::Error> {
        let memory = Arc::new(JointMemory::new(count, backing, limits));
        let node = add_node(machine, at, Arc::clone(&memory) as _, pages.as_ref())?;
        let pages = pages.map(|pages| Mappable::Pages(Arc::new(pages)));
        let all = Arc::new(Vectors::new(node.endpoint().msix().map_or(0, MsixTable::len)));
        if let Some(table) = node.endpoint().msix() {
            table.connect(Arc::clone(&all) as Arc<dyn MsiSink>);
        }
        let servers = (0..).zip(memory.clients()).map(|(client, memory)| {
            let (device, memory) = (Device::Tofu(Arc::clone(&node)), Arc::clone(memory));
            let vectors = ClientVectors::new(Arc::clone(&all), client);
            Self::of(device, memory, pages.clone(), vectors, Some(Mutex::default()))
        });
        Ok(servers.collect())
    }

    fn of(
        device: Device,
        memory: Arc<ClientMemory>,
        mappable: Option<Mappable>,
        vectors: ClientVectors,
        used: Option<Mutex<BTreeSet<u64>>>,
    ) -> Self {
        // Pages are of use only if the node polls them.
        let mappable = mappable.filter(|_| device.doorbells() != Some(Doorbells::Trapped));
        let (sockets, attached) = (Mutex::default(), Mutex::default());
        let on_change = Mutex::default();
        Self { device, memory, mappable, used, vectors, sockets, attached, on_change }
    }

    /// The time since which a client has been attached, if one is.
    pub fn attached_since(&self) -> Option<Instant> {
        lock(&self.sockets).since
    }

    /// Calls `told` whenever a client attaches (true) or has disconnected (false).
    pub fn on_change(&self, told: impl Fn(bool) + Send + Sync + 'static) {
        *lock(&self.on_change) = Some(Arc::new(told));
    }

    fn changed(&self, attached: bool) {
        let told = lock(&self.on_change).clone();
        told.into_iter().for_each(|told| told(attached));
    }

    /// The node that is served; `None` if it is one of TNW, or in modelled time.
    pub fn node(&self) -> Option<&Arc<Node>> {
        self.device.tofu()
    }

    /// Place of the node that is served.
    pub fn coords(&self) -> Coords {
        self.device.coords()
    }

    /// Serves clients, one after the other, until [`Server::stop`]. The errors of a client are
    /// logged.
    ///
    /// # Errors
    ///
    /// [`Error::Accept`] or [`Error::Duplicate`] if no more clients can be served.
    pub fn run(&self, listener: UnixListener) -> Result<(), Error> {
        {
            let mut sockets = lock(&self.sockets);
            if sockets.stopped {
                return Ok(());
            }
            sockets.listener = Some(listener.try_clone().map_err(Error::Duplicate)?);
        }
        let result = self.accept_all(&listener);
        lock(&self.sockets).listener = None;
        result
    }

    fn accept_all(&self, listener: &UnixListener) -> Result<(), Error> {
        let coords = self.device.coords();
        loop {
            let accepted = listener.accept();
            if lock(&self.sockets).stopped {
                return Ok(());
            }
            match accepted {
                Ok((client, _)) => self.serve_logged(client),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INTR | Errno::CONNABORTED) => {}
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        log::warn!("node {coords}: waiting for a client: {error}");
                        thread::sleep(SHORT_OF_DESCRIPTORS);
                    }
                    _ => return Err(Error::Accept(error)),
                },
            }
        }
    }

    fn serve_logged(&self, client: UnixStream) {
        let coords = self.device.coords();
        match self.serve(client) {
            Ok(()) => log::info!("node {coords}: the client has left"),
            // It has left as well, but did not read its last answers.
            Err(Error::Channel(ChannelError::Socket(error)))
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                ) =>
            {
                log::info!("node {coords}: the client has left: {error}");
            }
            Err(error) => log::warn!("node {coords}: client dropped: {error}"),
        }
    }

    /// Runs until [`Server::stop`] and turns away clients that connect to the listener of
    /// [`Server::run`] while another client is attached and stays attached for two seconds. They
    /// get EBUSY, and the log names them. Without this they would wait silently.
    ///
    /// # Errors
    ///
    /// If the listener does not work.
    pub fn turn_away(&self, listener: &UnixListener) -> Result<(), Error> {
        {
            let mut sockets = lock(&self.sockets);
            if sockets.stopped {
                return Ok(());
            }
            if sockets.listener.is_none() {
                sockets.listener = Some(listener.try_clone().map_err(Error::Duplicate)?);
            }
        }
        let mut since = None;
        loop {
            // Most of the time there is none, or `run` takes it.
            let waits = match poll(&mut [PollFd::new(listener, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => self.attached_since().is_some(),
                Err(error) => return Err(Error::Accept(error.into())),
            };
            if lock(&self.sockets).stopped {
                return Ok(());
            }
            let first = *since.get_or_insert_with(Instant::now);
            if !waits {
                since = None;
            } else if first.elapsed() >= PATIENCE {
                since = None;
                let (client, _) = listener.accept().map_err(Error::Accept)?;
                match self.attached_since() {
                    Some(_) => self.refuse(client),
                    // The other one has left in this moment.
                    None => self.serve_logged(client),
                }
                continue;
            }
            thread::sleep(LOOK);
        }
    }

    /// Tells a client that another one is attached.
    fn refuse(&self, client: UnixStream) {
        log::warn!(
            "node {}: a client was turned away, as another one is attached to the device",
            self.device.coords()
        );
        // A silent client is not waited for.
        if client.set_read_timeout(Some(FIRST_MESSAGE)).is_err() {
            return;
        }
        let mut channel = Channel::new(client);
        if let Ok(Some(Message { header, .. })) = channel.receive() {
            // It may have left.
            let _ = channel.reply(header, &mut vec![0; HEADER_SIZE], Err(Errno::BUSY), &[]);
        }
    }

    /// Serves one client until it leaves or [`Server::stop`]; waits for an earlier one to leave
    /// first. Afterwards the device is reset and the client's memory and descriptors are released.
    ///
    /// # Errors
    ///
    /// If the client broke the protocol, so that its connection had to be closed.
    pub fn serve(&self, client: UnixStream) -> Result<(), Error> {
        let _attached = lock(&self.attached);
        {
            let mut sockets = lock(&self.sockets);
            if sockets.stopped {
                return Ok(());
            }
            sockets.client = Some(client.try_clone().map_err(Error::Duplicate)?);
        }
        let process = match self.memory.backing() {
            Backing::Process => Some(ClientProcess::of_peer(&client).map_err(Error::Process)?),
            Backing::Sealed | Backing::Any => None,
        };
        let process = process.map(Arc::new);
        self.memory.set_process(process.clone());
        lock(&self.sockets).since = Some(Instant::now());
        self.changed(true);
        let session = Session {
            server: self,
            process,
            channel: Channel::new(client),
            reply: Vec::new(),
            fds: Vec::new(),
            takes_fds: 1,
            told: false,
        };
        // A client that has left may have kept its mappings. If clients share the node, the memory
        // stays.
        let mappable = self.mappable.as_ref().filter(|_| self.used.is_none());
        mappable.map_or(Ok(()), Mappable::renew).map_err(Error::Pages)?;
        // Dropped before the result is seen: the device is free again then.
        session.run()
    }

    /// Ends [`Server::run`] and [`Server::serve`], now and for ever. Does not wait for them to
    /// return.
    pub fn stop(&self) {
        let mut sockets = lock(&self.sockets);
        sockets.stopped = true;
        // Wakes up the threads that wait for a client or a message. Sockets that are already closed
        // do not matter.
        if let Some(listener) = &sockets.listener {
            let _ = shutdown(listener, Shutdown::Both);
        }
        if let Some(client) = &sockets.client {
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
    }

    fn release(&self) {
        {
            let mut sockets = lock(&self.sockets);
            (sockets.client, sockets.since) = (None, None);
        }
        self.changed(false);
        // In this order: a device that was reset does not touch memory.
        self.reset_used();
        self.memory.clear();
        self.memory.set_process(None);
        if let Some(table) = self.device.endpoint().msix() {
            self.vectors.clear(table);
        }
        if let Some(node) = self.device.tofu().filter(|_| self.used.is_none()) {
            node.renew_doorbell_events();
        }
    }

    /// Resets the device, or what the client has used of it if others use it as well.
    fn reset_used(&self) {
        let (Some(used), Some(node)) = (&self.used, self.device.tofu()) else {
            return self.device.function().reset();
        };
        let used = std::mem::take(&mut *lock(used));
        for tni in TniId::ALL {
            let enabled = |page: u64, offset: u64| used.contains(&(page + offset));
            for cq in CqId::ALL {
                if enabled(cqs_page(tni, cq), CqsReg::Enable.offset()) {
                    node.icc().reset_queue(tni, cq);
                }
            }
            for bg in BgId::ALL {
                let page = bgs_page(tni, bg);
                if enabled(page, BgsReg::Enable.offset()) {
                    let write = |reg: BgsReg, value: u64| {
                        let at = page + reg.offset();
                        node.bar_write(REGISTER_BAR, at, &value.to_le_bytes());
                    };
                    write(BgsReg::BchMask, BCH_MASK);
                    write(BgsReg::Enable, 0);
                }
            }
        }
    }

    /// Size of a region in bytes, 0 if the device does not have it; `None` if there is no such
    /// index.
    fn region_size(&self, index: u32) -> Option<u64> {
        match index {
            region::CONFIG => Some(CONFIG_SPACE_SIZE as u64),
            region::ROM | region::VGA => Some(0),
            _ => {
                let bar = self.device.endpoint().layout().get(index as usize)?;
                Some(bar.map_or(0, |bar| bar.size))
            }
        }
    }

    /// Vectors of an interrupt index; `None` if there is no such index.
    fn irq_count(&self, index: u32) -> Option<u32> {
        match index {
            irq::MSIX => Some(self.vectors.len()),
            // As VFIO has it for every PCI Express device. The device has no errors to report.
            irq::ERROR => Some(1),
            _ => (index < irq::COUNT).then_some(0),
        }
    }

    /// Checks that an access lies in a region.
    fn check_access(&self, index: u32, offset: u64, count: usize) -> Result<(), Errno> {
        let size = self.region_size(index).ok_or(Errno::INVAL)?;
        let end = offset.checked_add(count as u64).ok_or(Errno::INVAL)?;
        if count <= MAX_DATA && end <= size { Ok(()) } else { Err(Errno::INVAL) }
    }

    fn region_read(&self, index: u32, offset: u64, data: &mut [u8]) {
        let longest = self.device.longest_access(index);
        for_natural_accesses(offset, data.len(), longest, |at, range| {
            let piece = &mut data[range];
            match index {
                // Checked: configuration space has 4096 bytes, there are six BARs.
                region::CONFIG => self.device.function().config_read(at as u16, piece),
                bar => self.device.function().bar_read(bar as u8, at, piece),
            }
        });
    }

    fn region_write(&self, index: u32, offset: u64, data: &[u8]) {
        // The server owns the MSI-X table: see `Vectors`.
        if index == u32::from(MSIX_BAR) {
            return;
        }
        if let Some(used) = self.used.as_ref().filter(|_| index == u32::from(REGISTER_BAR)) {
            // ENABLE of control queues and gates, and a few other registers, which do no harm.
            let enable = [CqsReg::Enable.offset(), BgsReg::Enable.offset()];
            if enable.contains(&(offset % REGISTER_PAGE)) {
                lock(used).insert(offset);
            }
        }
        let longest = self.device.longest_access(index);
        for_natural_accesses(offset, data.len(), longest, |at, range| {
            let piece = &data[range];
            match index {
                region::CONFIG => self.device.function().config_write(at as u16, piece),
                bar => self.device.function().bar_write(bar as u8, at, piece),
            }
        });
        if index == region::CONFIG {
            self.restore_vectors();
        }
    }

    /// Unmasks the client's vectors, which a reset has masked.
    fn restore_vectors(&self) {
        if let Some(table) = self.device.endpoint().msix() {
            self.vectors.restore(table);
        }
    }

    fn reset(&self) {
        self.reset_used();
        self.restore_vectors();
    }

    /// Turns MSI-X on or off in configuration space, as VFIO does for a client that binds the
    /// first vector or unbinds all.
    fn enable_msix(&self, on: bool) {
        let Some(capability) = find_capability(self.device.function(), regs::CAP_MSIX) else {
            return;
        };
        let at = capability + regs::MSIX_CONTROL;
        let mut bytes = [0; 2];
        self.device.function().config_read(at, &mut bytes);
        let control = u16::from_le_bytes(bytes);
        let enable = if on { regs::MSIX_ENABLE } else { 0 };
        let new = (control & !regs::MSIX_ENABLE) | enable;
        if new != control {
            self.device.function().config_write(at, &new.to_le_bytes());
        }
    }
}

/// Adds a node that clients ring themselves.
fn add_node(
    machine: &Machine,
    at: Coords,
    memory: Arc<dyn DmaMemory>,
    pages: Option<&ClientPages>,
) -> Result<Arc<Node>, tofu_machine::Error> {
    let pages = pages.map(ClientPages::shared);
    let backend = Some(Arc::new(RungByClient) as _);
    let posted_writes_ns = POSTED_WRITES_NS;
    machine.add_node_of(at, NodeParts { memory, pages, backend, posted_writes_ns })
}

/// Offset of a capability in configuration space.
fn find_capability(function: &dyn PciFunction, id: u8) -> Option<u16> {
    let byte = |at: u16| {
        let mut byte = [0];
        function.config_read(at, &mut byte);
        byte[0]
    };
    let mut at = u16::from(byte(regs::CAPABILITIES));
    for _ in 0..MAX_PCI_CAPABILITIES {
        if at == 0 {
            return None;
        }
        if byte(at) == id {
            return Some(at);
        }
        at = u16::from(byte(at + 1));
    }
    None
}

/// Cuts an access into naturally aligned ones of powers of two up to `longest`, as a bus would;
/// calls `f` with the offset of each in the region and its place in the data.
fn for_natural_accesses(
    offset: u64,
    len: usize,
    longest: usize,
    mut f: impl FnMut(u64, std::ops::Range<usize>),
) {
    let most = longest.max(1).ilog2();
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let aligned = 1 << at.trailing_zeros().min(most);
        let fits = 1 << (len - done).ilog2().min(most);
        let n = usize::min(aligned, fits);
        f(at, done..done + n);
        done += n;
    }
}

/// The assumed delay of a client's register writes, in nanoseconds. QEMU does not wait for the
/// answer to a write, and a busy host may keep a thread of either process from running for that
/// long.
const POSTED_WRITES_NS: u64 = 100_000_000;

/// Doorbells that need no set-up in this process: the client signals their event descriptors, if it
/// has requested them, or has mapped the pages.
struct RungByClient;

impl DoorbellBackend for RungByClient {
    fn attach_event(&self, _: u64, event: &EventFd) -> Result<(), String> {
        // A doorbell that rang while the queue was disabled is none.
        set_back(event);
        Ok(())
    }

    fn attach_page(
        &self,
        _: u64,
        _: &Arc<MmapRegion<()>>,
        _: usize,
        _: Box<dyn Fn() + Send + Sync>,
    ) -> Result<(), String> {
        Ok(())
    }

    fn protect_page(&self, _: u64) {}

    /// The page is mapped in the client's process.
    fn can_protect(&self) -> bool {
        false
    }

    fn detach(&self, _: u64) {}
}

/// One client.
struct Session<'a> {
    server: &'a Server,
    /// The process that ranges without a descriptor are memory of.
    process: Option<Arc<ClientProcess>>,
    channel: Channel,
    /// The reply under construction, and the descriptors to send with it.
    reply: Vec<u8>,
    fds: Vec<SentFd>,
    /// The number of descriptors the client takes with a message.
    takes_fds: usize,
    /// The user knows that memory cannot be reached.
    told: bool,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.server.release();
    }
}

impl Session<'_> {
    fn run(mut self) -> Result<(), Error> {
        if !self.negotiate()? {
            return Ok(());
        }
        while self.lives()
            && let Some(Message { header, fds }) = self.channel.receive()?
        {
            self.start_reply();
            let result = fds.and_then(|fds| self.execute(header.command, fds));
            if let Err(errno) = result {
                log::debug!("command {} of a vfio-user client: {errno}", header.command);
                self.tell_of_memory(header.command, errno);
            }
            let fds: SmallVec<[BorrowedFd<'_>; 1]> = self.fds.iter().map(AsFd::as_fd).collect();
            self.channel.reply(header, &mut self.reply, result, &fds)?;
        }
        Ok(())
    }

    /// Reports, once, memory that the device cannot reach: the guest would wait for ever.
    fn tell_of_memory(&mut self, command: u16, errno: Errno) {
        if command != command::DMA_MAP || std::mem::replace(&mut self.told, true) {
            return;
        }
        log::warn!(
            "node {}: the client's memory cannot be reached ({errno}): {}",
            self.server.device.coords(),
            why_unreachable(self.server.memory.backing(), errno)
        );
    }

    /// Waits for a message; returns false if there will be none, as the client's process is no
    /// more.
    fn lives(&self) -> bool {
        let Some(process) = self.process.as_ref().filter(|_| !self.channel.has_read_ahead()) else {
            return true;
        };
        process.wait(self.channel.socket()).unwrap_or(false)
    }

    fn start_reply(&mut self) {
        self.fds.clear();
        self.reply.clear();
        self.reply.resize(HEADER_SIZE, 0);
    }

    /// Negotiates the protocol's version; returns false if the client disconnected without a
    /// message.
    fn negotiate(&mut self) -> Result<bool, Error> {
        let Some(Message { header, .. }) = self.channel.receive()? else {
            return Ok(false);
        };
        self.start_reply();
        let result = match header.command {
            command::VERSION => self.version(),
            _ => Err(Errno::INVAL),
        };
        self.channel.reply(header, &mut self.reply, result, &[])?;
        if result.is_ok() { Ok(true) } else { Err(Error::Version) }
    }

    fn version(&mut self) -> Result<(), Errno> {
        let mut body = Fields(self.channel.body());
        let (major, minor) = (body.u16()?, body.u16()?);
        let takes_fds = check_capabilities(body.0)?;
        if major != VERSION.0 {
            return Err(Errno::OPNOTSUPP);
        }
        let capabilities = serde_json::json!({ "capabilities": {
            "max_msg_fds": MAX_FDS,
            "max_data_xfer_size": MAX_DATA,
            "max_dma_maps": self.server.memory.limits().ranges.min(MAX_MAPS_TOLD),
            "pgsizes": PAGE_SIZE,
            "write_multiple": true,
        }});
        self.takes_fds = takes_fds;
        self.reply.extend_from_slice(&VERSION.0.to_ne_bytes());
        self.reply.extend_from_slice(&minor.min(VERSION.1).to_ne_bytes());
        self.reply.extend_from_slice(capabilities.to_string().as_bytes());
        self.reply.push(0);
        Ok(())
    }

    fn execute(&mut self, command: u16, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let body = Fields(self.channel.body());
        let (server, reply) = (self.server, &mut self.reply);
        match command {
            command::DMA_MAP => dma_map(server, body, fds),
            command::DMA_UNMAP => dma_unmap(server, body, reply),
            command::DEVICE_GET_INFO => device_info(body, reply),
            command::DEVICE_GET_REGION_INFO => {
                region_info(server, body, reply, &mut self.fds, self.takes_fds)
            }
            command::DEVICE_GET_REGION_IO_FDS => {
                region_io_fds(server, body, reply, &mut self.fds, self.takes_fds)
            }
            command::DEVICE_GET_IRQ_INFO => irq_info(server, body, reply),
            command::DEVICE_SET_IRQS => set_irqs(server, body, fds),
            command::REGION_READ => region_read(server, body, reply),
            command::REGION_WRITE => region_write(server, body, reply),
            command::REGION_WRITE_MULTI => region_write_multi(server, body, reply),
            command::DEVICE_RESET => {
                server.reset();
                Ok(())
            }
            command::VERSION => Err(Errno::INVAL),
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

/// The capabilities of a client. The server sends only as much data as was requested.
#[derive(Deserialize)]
struct ClientVersion {
    #[serde(default)]
    capabilities: ClientCapabilities,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClientCapabilities {
    max_msg_fds: Option<u64>,
    max_data_xfer_size: Option<u64>,
}

/// Returns how many descriptors the client takes with a message.
fn check_capabilities(data: &[u8]) -> Result<usize, Errno> {
    /// The protocol's defaults.
    const DEFAULT_FDS: u64 = 1;
    if data.is_empty() {
        return Ok(DEFAULT_FDS as usize);
    }
    let json = data.strip_suffix(&[0]).filter(|json| json.len() <= MAX_CAPABILITIES);
    let version: ClientVersion =
        json.and_then(|json| serde_json::from_slice(json).ok()).ok_or(Errno::INVAL)?;
    let ClientCapabilities { max_msg_fds, max_data_xfer_size } = version.capabilities;
    log::debug!("vfio-user client: {max_msg_fds:?} descriptors, {max_data_xfer_size:?} bytes");
    Ok(max_msg_fds.unwrap_or(DEFAULT_FDS).min(MAX_SENT_FDS as u64) as usize)
}

fn dma_map(server: &Server, mut body: Fields<'_>, mut fds: Vec<OwnedFd>) -> Result<(), Errno> {
    const SIZE: usize = 32;
    body.argsz(SIZE)?;
    let flags = body.u32()?;
    let rights = Rights { read: flags & dma::READ != 0, write: flags & dma::WRITE != 0 };
    let request =
        MapRequest { offset: body.u64()?, address: body.u64()?, size: body.u64()?, rights };
    let both = dma::READ | dma::WRITE;
    if flags & !both != 0 || flags & both == 0 || fds.len() > 1 {
        return Err(Errno::INVAL);
    }
    // ROMs and devices' memory come without a descriptor, too, and are not needed.
    let ordinary = request.address <= ORDINARY_MEMORY
        && request.address.saturating_add(request.size) > ORDINARY_MEMORY;
    if fds.is_empty() && ordinary && server.memory.backing() != Backing::Process {
        return Err(Errno::INVAL);
    }
    server.memory.map(request, fds.pop())
}

fn dma_unmap(server: &Server, mut body: Fields<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
    const SIZE: usize = 24;
    let echo = body.0.get(..SIZE).ok_or(Errno::INVAL)?;
    body.argsz(SIZE)?;
    let (flags, address, size) = (body.u32()?, body.u64()?, body.u64()?);
    let unmapped = match flags {
        0 => server.memory.unmap(address, size)?,
        dma::UNMAP_ALL if address == 0 && size == 0 => server.memory.clear(),
        dma::UNMAP_ALL => return Err(Errno::INVAL),
        _ => return Err(Errno::OPNOTSUPP),
    };
    reply.extend_from_slice(&echo[..SIZE - 8]);
    reply.extend_from_slice(&unmapped.to_ne_bytes());
    Ok(())
}

fn device_info(mut body: Fields<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
    const SIZE: usize = 16;
    body.argsz(SIZE)?;
    put(reply, &[SIZE as u32, device::RESET | device::PCI, region::COUNT, irq::COUNT]);
    Ok(())
}

fn region_info(
    server: &Server,
    mut body: Fields<'_>,
    reply: &mut Vec<u8>,
    fds: &mut Vec<SentFd>,
    takes_fds: usize,
) -> Result<(), Errno> {
    const SIZE: usize = 32;
    const CAPABILITY: usize = 16;
    const AREA: usize = 16;
    let argsz = body.argsz(SIZE)?;
    let (_flags, index) = (body.u32()?, body.u32()?);
    let size = server.region_size(index).ok_or(Errno::INVAL)?;
    let mut flags = if size == 0 { 0 } else { region::READ | region::WRITE };
    let mappable = server.mappable.as_ref();
    let mappable = mappable.filter(|it| index == u32::from(it.bar()) && takes_fds > 0);
    let areas = mappable.map(Mappable::areas).unwrap_or_default();
    let whole = mappable.map_or(SIZE, |_| SIZE + CAPABILITY + AREA * areas.len());
    // If the client's buffer is too small, the answer has neither capabilities nor a descriptor. A
    // client that does not repeat the request with the size in the answer cannot map anything.
    let mappable = mappable.filter(|_| argsz >= whole);
    let mut capabilities = 0;
    if mappable.is_some() {
        flags |= region::MMAP | region::CAPS;
        capabilities = SIZE as u32;
    }
    put(reply, &[whole as u32, flags, index, capabilities]);
    // An offset in the file is one in the region.
    put_long(reply, &[size, 0]);
    if let Some(mappable) = mappable {
        put(reply, &[region::SPARSE_MMAP, 0, areas.len() as u32, 0]);
        for (first, size) in areas {
            put_long(reply, &[first, size]);
        }
        fds.push(SentFd::Pages(mappable.file()));
    }
    Ok(())
}

/// The doorbells of all queues, or of as many as the client takes descriptors: of the first
/// queue of each TNI, then of the second, and so on.
fn region_io_fds(
    server: &Server,
    mut body: Fields<'_>,
    reply: &mut Vec<u8>,
    fds: &mut Vec<SentFd>,
    takes_fds: usize,
) -> Result<(), Errno> {
    const SIZE: usize = 16;
    const PART: usize = 40;
    let argsz = body.argsz(SIZE)?;
    let (flags, index, count) = (body.u32()?, body.u32()?, body.u32()?);
    if flags != 0 || count != 0 || server.region_size(index).is_none() {
        return Err(Errno::INVAL);
    }
    let node = server.device.tofu().filter(|node| node.doorbells() == Doorbells::Trapped);
    let node = node.filter(|_| index == u32::from(REGISTER_BAR));
    let bells = node.map_or(0, |_| takes_fds.min(NUM_TNI * NUM_CQ));
    let whole = SIZE + PART * bells;
    put(reply, &[whole as u32, 0, index, bells as u32]);
    let Some(node) = node.filter(|_| argsz >= whole) else { return Ok(()) };
    for number in 0..bells {
        let (tni, cq) = (TniId::ALL[number % NUM_TNI], CqId::ALL[number / NUM_TNI]);
        let event = node.doorbell_event(tni, cq).map_err(|_| Errno::MFILE)?;
        // For writes of any size, which size 0 means, and of any value.
        put_long(reply, &[Doorbell::from(cq).page(tni) + CqReg::FetchStart.offset(), 0]);
        put(reply, &[number as u32, io_fd::IOEVENTFD, 0, 0]);
        put_long(reply, &[0]);
        fds.push(SentFd::Doorbell(event));
    }
    Ok(())
}

fn irq_info(server: &Server, mut body: Fields<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
    const SIZE: usize = 16;
    body.argsz(SIZE)?;
    let (_flags, index) = (body.u32()?, body.u32()?);
    let count = server.irq_count(index).ok_or(Errno::INVAL)?;
    let flags = if count == 0 { 0 } else { irq::EVENTFD };
    put(reply, &[SIZE as u32, flags, index, count]);
    Ok(())
}

fn set_irqs(server: &Server, mut body: Fields<'_>, fds: Vec<OwnedFd>) -> Result<(), Errno> {
    const SIZE: usize = 20;
    const NONE: u32 = irq::DATA_NONE | irq::ACTION_TRIGGER;
    const BOOL: u32 = irq::DATA_BOOL | irq::ACTION_TRIGGER;
    const EVENTFD: u32 = irq::DATA_EVENTFD | irq::ACTION_TRIGGER;
    body.argsz(SIZE)?;
    let (flags, index, start, count) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
    let total = server.irq_count(index).ok_or(Errno::INVAL)?;
    if start.checked_add(count).is_none_or(|end| end > total) {
        return Err(Errno::INVAL);
    }
    if flags == NONE && count == 0 {
        // Others that share the device keep their vectors, and MSI-X with them.
        if let Some(table) = server.device.endpoint().msix().filter(|_| index == irq::MSIX)
            && server.vectors.clear(table)
        {
            server.enable_msix(false);
        }
        return Ok(());
    }
    if index == irq::ERROR {
        return if flags == EVENTFD { Ok(()) } else { Err(Errno::OPNOTSUPP) };
    }
    let Some(table) = server.device.endpoint().msix().filter(|_| total > 0) else {
        return Err(Errno::INVAL);
    };
    // Both fit: a table has at most 2048 vectors.
    let vectors = start as u16..(start + count) as u16;
    match flags {
        NONE => vectors.for_each(|vector| server.vectors.signal(vector)),
        BOOL => {
            let wanted = body.0.get(..count as usize).ok_or(Errno::INVAL)?;
            let wanted = vectors.zip(wanted).filter(|&(_, &wanted)| wanted != 0);
            wanted.for_each(|(vector, _)| server.vectors.signal(vector));
        }
        EVENTFD if fds.is_empty() => {
            for vector in vectors {
                server.vectors.bind(table, vector, None)?;
            }
        }
        EVENTFD if fds.len() == vectors.len() => {
            fds.iter().try_for_each(check_eventfd)?;
            for (vector, event) in vectors.zip(fds) {
                server.vectors.bind(table, vector, Some(event))?;
            }
            server.enable_msix(true);
        }
        EVENTFD => return Err(Errno::INVAL),
        _ => return Err(Errno::OPNOTSUPP),
    }
    Ok(())
}

fn region_read(server: &Server, mut body: Fields<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
    const SIZE: usize = 16;
    let echo = body.0.get(..SIZE).ok_or(Errno::INVAL)?;
    let (offset, index, count) = (body.u64()?, body.u32()?, body.u32()? as usize);
    server.check_access(index, offset, count)?;
    reply.extend_from_slice(echo);
    reply.resize(HEADER_SIZE + SIZE + count, 0);
    server.region_read(index, offset, &mut reply[HEADER_SIZE + SIZE..]);
    Ok(())
}

fn region_write(server: &Server, mut body: Fields<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
    const SIZE: usize = 16;
    let echo = body.0.get(..SIZE).ok_or(Errno::INVAL)?;
    let (offset, index, count) = (body.u64()?, body.u32()?, body.u32()? as usize);
    server.check_access(index, offset, count)?;
    let data = body.0.get(..count).ok_or(Errno::INVAL)?;
    server.region_write(index, offset, data);
    reply.extend_from_slice(echo);
    Ok(())
}

/// Writes that a client has batched. Each is done as if it had come alone, and those that are not
/// possible are skipped; the answer says how many were done.
fn region_write_multi(
    server: &Server,
    mut body: Fields<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), Errno> {
    const WRITE: usize = 24;
    let count = usize::try_from(body.u64()?).map_err(|_| Errno::INVAL)?;
    if count.checked_mul(WRITE).is_none_or(|size| size > body.0.len()) {
        return Err(Errno::INVAL);
    }
    let mut done = 0u64;
    for _ in 0..count {
        let (offset, index, size) = (body.u64()?, body.u32()?, body.u32()? as usize);
        let data = body.u64()?.to_ne_bytes();
        let Some(data) = data.get(..size) else {
            continue;
        };
        if server.check_access(index, offset, size).is_ok() {
            server.region_write(index, offset, data);
            done += 1;
        }
    }
    put_long(reply, &[done]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn accesses_are_natural_and_cover_the_range(offset in 0u64..1 << 28, len in 0usize..100) {
            let mut next = 0;
            let mut pieces = 0;
            for_natural_accesses(offset, len, 8, |at, range| {
                assert_eq!((at, range.start), (offset + next as u64, next));
                assert!(matches!(range.len(), 1 | 2 | 4 | 8));
                assert!(at.is_multiple_of(range.len() as u64));
                next = range.end;
                pieces += 1;
            });
            prop_assert_eq!(next, len);
            // Up to three smaller ones at each end.
            prop_assert!(pieces <= len / 8 + 6);
        }
    }
}
