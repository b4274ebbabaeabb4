//! Serves nodes to clients: who is attached, and who waits.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use tofu_abi::Coords;
use tofu_icc::DmaMemory;
use tofu_machine::{DoorbellBackend, Doorbells, Machine, Node, NodeParts, Torus, TorusParts};
use tofu_pci::{MsiSink, MsixTable};
use tofu_sync::lock;
use tofu_timed::Function;
use vm_memory::MmapRegion;
use vmm_sys_util::eventfd::EventFd;

use crate::channel::{Channel, ChannelError, Message};
use crate::client_device::ClientDevice;
use crate::device::Device;
use crate::error::Error;
use crate::irq::{ClientVectors, Vectors};
use crate::memory::{Backing, ClientMemory, JointMemory, Limits};
use crate::pages::{ClientPages, ClientWindows, Mappable};
use crate::process::ClientProcess;
use crate::sent::set_back;
use crate::session::Session;
use crate::wire::HEADER_SIZE;

/// The time for which a client may wait for another one to leave before it is turned away. A client
/// that restarts connects before its former connection has been cleaned up.
const PATIENCE: Duration = Duration::from_secs(2);
/// The poll interval for clients that wait to attach.
const LOOK: Duration = Duration::from_millis(100);
/// The time for which a client that is turned away has for its first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(1);
/// The time to wait when the host has no descriptors for a client.
const SHORT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

/// Serves a node to one client at a time, or a client's part of a node that several share.
pub struct Server {
    client: ClientDevice,
    sockets: Mutex<Sockets>,
    /// Held while there is a client.
    attached: Mutex<()>,
    /// Told whether a client is attached, whenever that changes.
    on_change: Mutex<Option<OnChange>>,
}

type OnChange = Arc<dyn Fn(bool) + Send + Sync>;

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
        Self::of(device, memory, mappable, ClientVectors::new(vectors, 0), false)
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
            Self::of(device, memory, pages.clone(), vectors, true)
        });
        Ok(servers.collect())
    }

    fn of(
        device: Device,
        memory: Arc<ClientMemory>,
        mappable: Option<Mappable>,
        vectors: ClientVectors,
        shared: bool,
    ) -> Self {
        // Pages are of use only if the node polls them.
        let mappable = mappable.filter(|_| device.doorbells() != Some(Doorbells::Trapped));
        let used = shared.then(Mutex::default);
        let client = ClientDevice { device, memory, mappable, used, vectors };
        let (sockets, attached) = (Mutex::default(), Mutex::default());
        Self { client, sockets, attached, on_change: Mutex::default() }
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
        self.client.device.tofu()
    }

    /// Place of the node that is served.
    pub fn coords(&self) -> Coords {
        self.client.device.coords()
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
        let coords = self.client.device.coords();
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
        let coords = self.client.device.coords();
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
            self.client.device.coords()
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
        let process = match self.client.memory.backing() {
            Backing::Process => Some(ClientProcess::of_peer(&client).map_err(Error::Process)?),
            Backing::Sealed | Backing::Any => None,
        };
        let process = process.map(Arc::new);
        self.client.memory.set_process(process.clone());
        lock(&self.sockets).since = Some(Instant::now());
        self.changed(true);
        let mut session = Session::new(&self.client, process, client);
        // Dropped before the session: when the client sees the end of its connection, the device is
        // free again.
        let _release = Release(self);
        self.client.renew().map_err(Error::Pages)?;
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
        self.client.release();
    }
}

/// Releases the device when its client has left.
struct Release<'a>(&'a Server);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.release();
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
