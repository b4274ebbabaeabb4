//! The console device (1.2, 5.3): ports, each connected to a stream of the host.
//!
//! Nothing is buffered here. Input stays in the stream until the guest has a buffer for it, and
//! output stays in the guest's buffer until the stream takes it, so either end can throttle the
//! other.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};

use event_manager::EventSet;
use tofu_sync::lock;
use vm_memory::{ReadVolatile, VolatileMemoryError, VolatileSlice, WriteVolatile};
use vmm_sys_util::eventfd::EventFd;

use crate::Error;
use crate::device::{Device, Identity, Interest, Io, Work};
use crate::regs::kind;
use crate::ring::{Broken, Chain};

/// Ports of a console at most (ours).
pub const MAX_PORTS: usize = 16;
/// Bytes in a port's name at most (ours).
const NAME_MAX: usize = 64;

const QUEUE_SIZE: u16 = 64;
/// Chains of each port in a turn, and bytes of one chain that one call to the host moves.
const TURN: usize = 16;
const MOVE_MAX: u64 = 64 << 10;

const F_MULTIPORT: u64 = 1 << 1;

/// The queues of control messages (1.2, 5.3.2).
const CONTROL_RX: usize = 2;
const CONTROL_TX: usize = 3;
/// Length of a control message in bytes.
const CONTROL: usize = 8;

/// Control messages (1.2, 5.3.6.2).
const DEVICE_READY: u16 = 0;
const PORT_ADD: u16 = 1;
const PORT_READY: u16 = 3;
const CONSOLE_PORT: u16 = 4;
const PORT_OPEN: u16 = 6;
const PORT_NAME: u16 = 7;

/// The configuration of a console's port.
#[derive(Debug, Default)]
pub struct PortConfig {
    /// The name by which a guest finds it: Linux makes it /dev/virtio-ports/NAME where udev
    /// runs, and shows it in /sys/class/virtio-ports/*/name everywhere.
    pub name: Option<String>,
    /// The guest is to use it as a terminal (hvc0 and so on), not as a plain stream of bytes.
    pub console: bool,
    /// The device's end of a stream, if there is one already.
    pub stream: Option<UnixStream>,
}

/// A console with up to [`MAX_PORTS`] ports. One with a single port that is a terminal without a
/// name has no control messages; any other needs a driver that knows them (MULTIPORT).
pub struct Console {
    ports: Vec<Port>,
    multiport: bool,
    /// The driver has said that it is ready for control messages.
    ready: bool,
}

/// The host's side of a port, for connecting it while the guest runs.
#[derive(Clone)]
pub struct PortHandle(Arc<Shared>);

/// State that a port and its handles share.
#[derive(Default)]
struct Shared {
    /// The new connection of the port, if that has changed.
    change: Mutex<Option<Option<Arc<UnixStream>>>>,
    changed: AtomicBool,
    connected: AtomicBool,
    guest_open: AtomicBool,
    wake: OnceLock<EventFd>,
}

impl PortHandle {
    /// Connects the port to `stream` instead of what it is connected to now, if anything.
    ///
    /// # Errors
    /// If the stream cannot be made non-blocking.
    pub fn connect(&self, stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        self.change(Some(Arc::new(stream)));
        Ok(())
    }

    /// Closes the stream. Further output of the guest is lost.
    pub fn disconnect(&self) {
        self.change(None);
    }

    /// Returns true if the port has a stream. It loses it when the other end closes.
    pub fn connected(&self) -> bool {
        self.0.connected.load(SeqCst)
    }

    /// Returns true if a program in the guest has opened the port; always true for a console
    /// without control messages, once its driver runs.
    pub fn guest_open(&self) -> bool {
        self.0.guest_open.load(SeqCst)
    }

    fn change(&self, to: Option<Arc<UnixStream>>) {
        self.0.connected.store(to.is_some(), SeqCst);
        *lock(&self.0.change) = Some(to);
        self.0.changed.store(true, SeqCst);
        if let Some(wake) = self.0.wake.get() {
            // Fails only when the counter is full, and then the thread wakes up anyway.
            let _ = wake.write(1);
        }
    }
}

/// A port.
struct Port {
    name: Option<String>,
    console: bool,
    shared: Arc<Shared>,
    stream: Option<Arc<UnixStream>>,
    /// A buffer that waits for the host to have something.
    rx: Option<Chain>,
    /// A buffer that the host has not taken completely, and the number of bytes taken.
    tx: Option<(Chain, u64)>,
    guest_open: bool,
    /// Control messages to be sent to the driver: one of each kind.
    add: bool,
    describe: bool,
    name_it: bool,
    open: bool,
}

/// The progress of a transfer.
enum Moved {
    /// So many bytes.
    Some(u64),
    /// The host is not ready.
    Later,
    /// The other end of the stream has closed.
    Closed,
}

impl Console {
    /// A console with these ports, in this order, and a handle for each.
    ///
    /// # Errors
    /// [`Error::Ports`] for no ports or too many, or a name that is empty or longer than 64
    /// bytes; [`Error::Host`] if a stream cannot be made non-blocking.
    pub fn new(ports: Vec<PortConfig>) -> Result<(Self, Vec<PortHandle>), Error> {
        if ports.is_empty() || ports.len() > MAX_PORTS {
            let count = ports.len();
            return Err(Error::Ports(format!("{count} ports; 1 to {MAX_PORTS} are possible")));
        }
        let multiport = ports.len() > 1 || ports[0].name.is_some() || !ports[0].console;
        let ports: Vec<_> = ports.into_iter().map(Port::new).collect::<Result<_, _>>()?;
        let handles = ports.iter().map(|port| PortHandle(Arc::clone(&port.shared))).collect();
        Ok((Self { ports, multiport, ready: false }, handles))
    }

    /// Takes what the driver has to say.
    fn take_control(&mut self, io: &mut Io<'_>) -> Result<Work, Broken> {
        for _ in 0..TURN {
            let Some(chain) = io.pop(CONTROL_TX)? else { return Ok(Work::Done) };
            let mut message = [0; CONTROL];
            chain.read(io.memory(), 0, &mut message)?;
            io.complete(CONTROL_TX, chain, 0)?;
            let [i0, i1, i2, i3, e0, e1, v0, v1] = message;
            let on = u16::from_le_bytes([v0, v1]) == 1;
            let id = u32::from_le_bytes([i0, i1, i2, i3]) as usize;
            match (u16::from_le_bytes([e0, e1]), self.ports.get_mut(id)) {
                (DEVICE_READY, _) => {
                    self.ready = on;
                    for port in &mut self.ports {
                        // The driver will request the rest for each port.
                        (port.add, port.open) = (on, false);
                    }
                }
                (PORT_READY, Some(port)) if on => {
                    port.describe = port.console;
                    port.name_it = port.name.is_some();
                    port.open = true;
                }
                (PORT_OPEN, Some(port)) => port.set_guest_open(on),
                _ => {}
            }
        }
        Ok(Work::More)
    }

    /// Sends pending control messages to the driver, as far as it has buffers.
    fn give_control(&mut self, io: &mut Io<'_>) -> Result<(), Broken> {
        while self.ready
            && let Some((id, port)) =
                (0u32..).zip(&mut self.ports).find(|(_, port)| port.next_message().is_some())
        {
            let Some(chain) = io.pop(CONTROL_RX)? else { return Ok(()) };
            let Some((event, value)) = port.next_message() else { return Ok(()) };
            let mut message = Vec::with_capacity(CONTROL + NAME_MAX);
            message.extend(id.to_le_bytes());
            message.extend(event.to_le_bytes());
            message.extend(value.to_le_bytes());
            if event == PORT_NAME {
                message.extend(port.name.iter().flat_map(|name| name.bytes()));
            }
            port.said(event);
            chain.write(io.memory(), 0, &message)?;
            io.complete(CONTROL_RX, chain, message.len() as u32)?;
        }
        Ok(())
    }
}

impl Port {
    fn new(config: PortConfig) -> Result<Self, Error> {
        let PortConfig { name, console, stream } = config;
        if let Some(name) = name.as_ref().filter(|name| !(1..=NAME_MAX).contains(&name.len())) {
            let reason = format!("port name {name:?}; 1 to {NAME_MAX} bytes are possible");
            return Err(Error::Ports(reason));
        }
        if let Some(stream) = &stream {
            let failed = Error::host("making a console's stream non-blocking");
            stream.set_nonblocking(true).map_err(failed)?;
        }
        let shared = Arc::new(Shared::default());
        shared.connected.store(stream.is_some(), SeqCst);
        Ok(Self {
            name,
            console,
            shared,
            stream: stream.map(Arc::new),
            rx: None,
            tx: None,
            guest_open: false,
            add: false,
            describe: false,
            name_it: false,
            open: false,
        })
    }

    /// The next control message about this port: its event and value.
    fn next_message(&self) -> Option<(u16, u16)> {
        let open = u16::from(self.stream.is_some());
        let pending = [
            (self.add, PORT_ADD, 1),
            (self.describe, CONSOLE_PORT, 1),
            (self.name_it, PORT_NAME, 1),
            (self.open, PORT_OPEN, open),
        ];
        pending.into_iter().find(|(pending, ..)| *pending).map(|(_, event, value)| (event, value))
    }

    fn said(&mut self, event: u16) {
        match event {
            PORT_ADD => self.add = false,
            CONSOLE_PORT => self.describe = false,
            PORT_NAME => self.name_it = false,
            _ => self.open = false,
        }
    }

    fn set_guest_open(&mut self, open: bool) {
        self.guest_open = open;
        self.shared.guest_open.store(open, SeqCst);
    }

    /// Takes over what a handle has changed.
    fn update(&mut self) {
        if self.shared.changed.swap(false, SeqCst)
            && let Some(stream) = lock(&self.shared.change).take()
        {
            self.stream = stream;
            self.open = true;
            // The rest of a message to someone else would only confuse.
            if let Some((chain, done)) = &mut self.tx {
                *done = chain.readable();
            }
        }
    }

    fn close(&mut self) {
        self.stream = None;
        self.open = true;
        // A handle may have connected something new just now.
        let change = lock(&self.shared.change);
        if change.is_none() {
            self.shared.connected.store(false, SeqCst);
        }
    }

    /// From the host to the guest.
    fn receive(&mut self, queue: usize, io: &mut Io<'_>) -> Result<Work, Broken> {
        // Nothing is sent to a closed port: its driver would throw it away.
        for _ in 0..TURN {
            if !self.guest_open {
                return Ok(Work::Done);
            }
            let Some(stream) = &self.stream else { return Ok(Work::Done) };
            if self.rx.is_none() {
                self.rx = io.pop(queue)?;
            }
            let Some(chain) = &self.rx else { return Ok(Work::Done) };
            if chain.writable() == 0 {
                return Err(Broken("a buffer for input with no room in it"));
            }
            let moved = transfer(chain.write_slices(io.memory(), 0, MOVE_MAX), |slice| {
                stream.as_fd().read_volatile(slice)
            })?;
            match moved {
                Moved::Some(len) => {
                    if let Some(chain) = self.rx.take() {
                        io.complete(queue, chain, len as u32)?;
                    }
                }
                Moved::Later => return Ok(Work::Done),
                Moved::Closed => self.close(),
            }
        }
        Ok(Work::More)
    }

    /// From the guest to the host.
    fn transmit(&mut self, queue: usize, io: &mut Io<'_>) -> Result<Work, Broken> {
        for _ in 0..TURN {
            if self.tx.is_none() {
                self.tx = io.pop(queue)?.map(|chain| (chain, 0));
            }
            let Some((chain, done)) = &mut self.tx else { return Ok(Work::Done) };
            let left = chain.readable() - *done;
            if left > 0
                && let Some(stream) = &self.stream
            {
                let moved = transfer(chain.read_slices(io.memory(), *done, MOVE_MAX), |slice| {
                    stream.as_fd().write_volatile(slice)
                })?;
                match moved {
                    Moved::Some(len) => {
                        *done += len;
                        if len < left {
                            continue;
                        }
                    }
                    Moved::Later => return Ok(Work::Done),
                    Moved::Closed => self.close(),
                }
            }
            // Output without a reader is lost, as on a serial line.
            if let Some((chain, _)) = self.tx.take() {
                io.complete(queue, chain, 0)?;
            }
        }
        Ok(Work::More)
    }

    fn reset(&mut self) {
        (self.rx, self.tx) = (None, None);
        (self.add, self.describe, self.name_it, self.open) = (false, false, false, false);
        self.set_guest_open(false);
    }
}

/// Moves parts one after the other until one is not moved whole.
fn transfer<'a>(
    slices: impl Iterator<Item = Result<VolatileSlice<'a>, Broken>>,
    mut step: impl FnMut(&mut VolatileSlice<'a>) -> Result<usize, VolatileMemoryError>,
) -> Result<Moved, Broken> {
    let mut moved = 0;
    for slice in slices {
        let mut slice = slice?;
        match step(&mut slice) {
            Ok(0) if moved == 0 => return Ok(Moved::Closed),
            Ok(now) => {
                moved += now as u64;
                if now < slice.len() {
                    break;
                }
            }
            Err(_) if moved > 0 => break,
            Err(VolatileMemoryError::IOError(error)) if is_later(&error) => {
                return Ok(Moved::Later);
            }
            Err(_) => return Ok(Moved::Closed),
        }
    }
    Ok(Moved::Some(moved))
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The first of the two queues of a port, into the guest (1.2, 5.3.2).
fn first_queue(port: usize) -> usize {
    if port == 0 { 0 } else { 2 + 2 * port }
}

impl Device for Console {
    fn identity(&self) -> Identity {
        let ports = self.ports.len();
        let queues = if self.multiport { 2 + 2 * ports } else { 2 };
        // Columns, rows, ports (1.2, 5.3.4).
        let mut config = vec![0; 8];
        config[4..].copy_from_slice(&(ports as u32).to_le_bytes());
        Identity {
            kind: kind::CONSOLE,
            // Simple communication controller of another kind.
            class: 0x07_80_00,
            features: if self.multiport { F_MULTIPORT } else { 0 },
            queues: vec![QUEUE_SIZE; queues],
            config,
        }
    }

    fn connect(&mut self, wake: EventFd) {
        for port in &self.ports {
            if let Ok(wake) = wake.try_clone() {
                let _ = port.shared.wake.set(wake);
            }
        }
    }

    fn work(&mut self, io: &mut Io<'_>) -> Result<Work, Broken> {
        let mut more = false;
        let mut note = |work| more |= work == Work::More;
        // A driver that does not know control messages knows the first port alone.
        let controlled = self.multiport && io.negotiated(F_MULTIPORT);
        self.ports.iter_mut().for_each(Port::update);
        if controlled {
            note(self.take_control(io)?);
        } else {
            self.ports[0].set_guest_open(true);
        }
        for (id, port) in
            self.ports.iter_mut().enumerate().take(if controlled { MAX_PORTS } else { 1 })
        {
            // In this order, so that output continues when input finds the other end closed.
            note(port.receive(first_queue(id), io)?);
            note(port.transmit(first_queue(id) + 1, io)?);
        }
        if controlled {
            self.give_control(io)?;
        }
        Ok(if more { Work::More } else { Work::Done })
    }

    fn interests(&self, interests: &mut Vec<Interest>) {
        for port in &self.ports {
            let mut events = EventSet::empty();
            events.set(EventSet::IN, port.rx.is_some() && port.guest_open);
            events.set(EventSet::OUT, port.tx.is_some());
            if let Some(stream) = port.stream.as_ref().filter(|_| !events.is_empty()) {
                interests.push(Interest { stream: Arc::clone(stream), events });
            }
        }
    }

    fn reset(&mut self) {
        self.ready = false;
        self.ports.iter_mut().for_each(Port::reset);
    }
}
