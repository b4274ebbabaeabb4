//! Devices in modelled time on sockets, for guests whose instructions QEMU counts.
//!
//! Each node has two sockets: that of its device, by vfio-user, and that of its pace, by which a
//! plugin of its QEMU says where the guest is in time, and learns how far it may run. The manual's
//! page on guests in modelled time has the protocol.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use tofu_abi::topology::{NodeId, Shape};
use tofu_abi::{Coords, Generation};
use tofu_control::rundir::node_file;
use tofu_netmodel::Arbiter;
use tofu_sync::{lock, wait};
use tofu_timed::{EventEngine, Function, Interrupt, Turn, Turns};
use tofu_vfio_user::{Backing, BoundSocket, ClientMemory, Limits, Server, bind_socket};

/// Version of the pace protocol.
const VERSION: u32 = 1;
/// Bytes of a message of the plugin.
const REQUEST: usize = 24;
/// Kinds of messages.
const BEGIN: u32 = 1;
const AT: u32 = 2;
const ASLEEP: u32 = 3;
/// The longest sleep that is believed at once, in nanoseconds.
const LONGEST_SLEEP: u64 = 1_000_000_000;
/// The most vectors that one answer has.
const MOST_VECTORS: usize = 64;

/// Picoseconds of a nanosecond.
const PS: u64 = 1000;

/// The machine's side of all paces.
struct Paces {
    /// Interrupts of each node that its guest has not got yet.
    pending: Arc<Vec<Mutex<Vec<u16>>>>,
    /// The longest way that a guest runs by itself, in nanoseconds.
    quantum_ns: u64,
    /// Nodes whose guests have not begun yet.
    awaited: Mutex<usize>,
    begun: Condvar,
    stopped: Mutex<bool>,
}

/// Devices of a machine in modelled time, on their sockets. Dropping it closes and removes them.
pub struct TimedNodes {
    paces: Arc<Paces>,
    nodes: Vec<Node>,
    /// Those that serve devices.
    threads: Vec<JoinHandle<()>>,
}

struct Node {
    at: Coords,
    server: Arc<Server>,
    device: BoundSocket,
    pace: BoundSocket,
    /// The connection of the plugin, to end it.
    plugin: Arc<Mutex<Option<UnixStream>>>,
}

/// The sockets of a node: of its device, and of its pace.
pub type Sockets = (Coords, PathBuf, PathBuf);

impl TimedNodes {
    /// Makes the devices of a machine, and serves them at sockets in `folder`. A guest runs at most
    /// `quantum_ns` nanoseconds by itself.
    ///
    /// # Errors
    ///
    /// If the host has no memory, threads or descriptors left, or a socket is in use.
    pub fn serve(
        generation: Generation,
        shape: Shape,
        folder: &Path,
        backing: Backing,
        quantum_ns: u64,
    ) -> anyhow::Result<Self> {
        let ids: Vec<_> = (0..shape.nodes()).map(NodeId).collect();
        let memory = |_: &NodeId| Arc::new(ClientMemory::new(backing, Limits::DEFAULT));
        let memories: Vec<_> = ids.iter().map(memory).collect();
        let pending: Arc<Vec<Mutex<Vec<u16>>>> =
            Arc::new(ids.iter().map(|_| Mutex::default()).collect());
        let interrupts = Arc::clone(&pending);
        let engine = EventEngine::new(
            generation,
            shape,
            Arbiter::InTurn,
            memories.iter().map(|memory| Arc::clone(memory) as _),
            Box::new(move |Interrupt { node, vector, .. }| {
                // Once each, as a node whose guest has gone may get any number.
                let mut pending = lock(&interrupts[node.index()]);
                if !pending.contains(&vector) {
                    pending.push(vector);
                }
            }),
        )?;
        let turns = Turns::start(&engine, &ids);
        let paces = Arc::new(Paces {
            pending,
            quantum_ns: quantum_ns.max(1),
            awaited: Mutex::new(ids.len()),
            begun: Condvar::new(),
            stopped: Mutex::new(false),
        });
        let mut served = Self { paces: Arc::clone(&paces), nodes: Vec::new(), threads: Vec::new() };
        for ((id, memory), turn) in ids.into_iter().zip(memories).zip(turns) {
            let function = Function::new(&engine, id)?.context("a node of the machine")?;
            served.add(&paces, (id, turn), Arc::new(function), memory, folder)?;
        }
        Ok(served)
    }

    fn add(
        &mut self,
        paces: &Arc<Paces>,
        (id, turn): (NodeId, Turn),
        function: Arc<Function>,
        memory: Arc<ClientMemory>,
        folder: &Path,
    ) -> anyhow::Result<()> {
        let at = function.coords();
        let device = bind_socket(&folder.join(node_file("node", at, "sock")))?;
        let pace = bind_socket(&folder.join(node_file("node", at, "pace")))?;
        let server = Arc::new(Server::in_modelled_time(function, memory));
        let (serving, listener) = (Arc::clone(&server), device.listener()?);
        let run = move || {
            if let Err(error) = serving.run(listener) {
                log::error!("node {at}: {error}");
            }
        };
        let spawn = |name: String, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name).spawn(run).context("no threads left")
        };
        self.threads.push(spawn(format!("serve{at}"), Box::new(run))?);
        let plugin = Arc::new(Mutex::new(None));
        let (paces, listener, connected) =
            (Arc::clone(paces), pace.listener()?, Arc::clone(&plugin));
        let run = move || {
            let ended = paces.keep(id, turn, &listener, &connected);
            // Closes the connection, which this holds, too.
            *lock(&connected) = None;
            if let Err(error) = ended {
                log::error!("node {at}: its guest is out of modelled time: {error}");
            }
        };
        // Not joined: it may wait for the turn of a guest that is stopped.
        spawn(format!("pace{at}"), Box::new(run))?;
        self.nodes.push(Node { at, server, device, pace, plugin });
        Ok(())
    }

    /// The sockets of all nodes.
    pub fn sockets(&self) -> Vec<Sockets> {
        let path = |socket: &BoundSocket| socket.path().to_owned();
        self.nodes.iter().map(|node| (node.at, path(&node.device), path(&node.pace))).collect()
    }
}

impl Drop for TimedNodes {
    fn drop(&mut self) {
        *lock(&self.paces.stopped) = true;
        for node in &self.nodes {
            node.server.stop();
            if let Some(plugin) = &*lock(&node.plugin) {
                let _ = plugin.shutdown(std::net::Shutdown::Both);
            }
            // Wakes a thread that waits for the plugin.
            let _ = UnixStream::connect(node.pace.path());
        }
        for thread in self.threads.drain(..) {
            // A panic in the thread has already been printed.
            let _ = thread.join();
        }
    }
}

/// A message of the plugin: its kind, a version, and two times.
fn parse(message: &[u8; REQUEST]) -> (u32, u32, u64, u64) {
    let word = |at: usize| message[at..at + 8].iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
    (word(0) as u32, (word(0) >> 32) as u32, word(8), word(16))
}

fn bad(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl Paces {
    /// Keeps the time of a node's guest until its plugin goes.
    fn keep(
        &self,
        node: NodeId,
        turn: Turn,
        listener: &UnixListener,
        connected: &Mutex<Option<UnixStream>>,
    ) -> io::Result<()> {
        let mut message = [0; REQUEST];
        let mut plugin = loop {
            let (mut plugin, _) = listener.accept()?;
            *lock(connected) = Some(plugin.try_clone()?);
            if *lock(&self.stopped) {
                return Ok(());
            }
            let spoken = plugin.read_exact(&mut message).map(|()| parse(&message));
            match spoken {
                Ok((BEGIN, VERSION, ..)) => break plugin,
                Ok((_, version, ..)) => {
                    log::warn!("the plugin of a guest speaks version {version}, not {VERSION}");
                }
                Err(error) => log::warn!("the plugin of a guest: {error}"),
            }
            *lock(connected) = None;
        };
        self.all_begin();
        turn.begin().map_err(io::Error::other)?;
        let (mut last, mut go) = (0, self.go(&turn, 0));
        loop {
            self.answer(&mut plugin, &go)?;
            match plugin.read_exact(&mut message) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                result => result?,
            }
            let (kind, _, at, until) = parse(&message);
            if ![AT, ASLEEP].contains(&kind) || at < last {
                return Err(bad(format!("message {kind} for {at} ns after {last} ns")));
            }
            last = at;
            let ps = at.checked_mul(PS).ok_or_else(|| bad("a time of centuries"))?;
            turn.reach(ps).map_err(io::Error::other)?;
            let vectors = self.fired(node);
            go = if kind == ASLEEP && vectors.is_empty() && until > at {
                // The guest sleeps until then, or until something happens at its node. It gets what
                // that is when it is there.
                let until = until.min(at.saturating_add(LONGEST_SLEEP)).saturating_mul(PS);
                let woken = turn.look(PS, until).map_err(io::Error::other)?;
                Go { until_ns: (woken / PS).max(at + 1), vectors }
            } else {
                Go { vectors, ..self.go(&turn, at) }
            };
        }
    }

    /// Waits until the guests of all nodes are here.
    fn all_begin(&self) {
        let mut awaited = lock(&self.awaited);
        *awaited = awaited.saturating_sub(1);
        self.begun.notify_all();
        while *awaited > 0 {
            awaited = wait(&self.begun, awaited);
        }
    }

    /// The time until which the guest may run from `at` on, in nanoseconds.
    fn go(&self, turn: &Turn, at: u64) -> Go {
        let horizon = turn.horizon() / PS;
        let until_ns = horizon.min(at.saturating_add(self.quantum_ns)).max(at.saturating_add(1));
        Go { until_ns, vectors: Vec::new() }
    }

    /// Interrupts of a node that its guest has not got.
    fn fired(&self, node: NodeId) -> Vec<u16> {
        let mut pending = lock(&self.pending[node.index()]);
        let few = pending.len().min(MOST_VECTORS);
        pending.drain(..few).collect()
    }

    fn answer(&self, plugin: &mut UnixStream, go: &Go) -> io::Result<()> {
        let mut answer = Vec::with_capacity(16 + 4 * go.vectors.len());
        answer.extend(go.until_ns.to_le_bytes());
        answer.extend((go.vectors.len() as u32).to_le_bytes());
        answer.extend(0u32.to_le_bytes());
        answer.extend(go.vectors.iter().flat_map(|vector| u32::from(*vector).to_le_bytes()));
        plugin.write_all(&answer)
    }
}

/// The answer to a plugin.
struct Go {
    until_ns: u64,
    vectors: Vec<u16>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A plugin's side of a pace.
    struct Plugin(UnixStream);

    impl Plugin {
        fn connect(sockets: &Sockets) -> Self {
            Self(UnixStream::connect(&sockets.2).unwrap())
        }

        fn say(&mut self, kind: u32, version: u32, ns: u64) {
            self.tell([kind, version], [ns, 0]);
        }

        fn tell(&mut self, [kind, version]: [u32; 2], [ns, until]: [u64; 2]) {
            let head = [kind.to_le_bytes(), version.to_le_bytes()].concat();
            let times = [ns.to_le_bytes(), until.to_le_bytes()].concat();
            self.0.write_all(&[head, times].concat()).unwrap();
        }

        /// The time until which the guest may run; `None` if the machine has hung up.
        fn hear(&mut self) -> Option<u64> {
            let mut answer = [0; 16];
            self.0.read_exact(&mut answer).ok()?;
            assert_eq!(answer[8..], [0; 8], "interrupts");
            Some(u64::from_le_bytes(answer[..8].try_into().unwrap()))
        }

        fn begin(&mut self) -> Option<u64> {
            self.say(BEGIN, VERSION, 0);
            self.hear()
        }

        fn at(&mut self, ns: u64) -> Option<u64> {
            self.say(AT, 0, ns);
            self.hear()
        }
    }

    fn serve(folder: &Path) -> TimedNodes {
        let shape = "1x1x1x2x1x1".parse().unwrap();
        TimedNodes::serve(Generation::Fugaku, shape, folder, Backing::Sealed, 1000).unwrap()
    }

    #[test]
    fn guests_take_turns_in_order_of_time() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = serve(folder.path());
        let [first, second] = &nodes.sockets()[..] else { panic!("two nodes") };
        let (mut a, mut b) = (Plugin::connect(first), Plugin::connect(second));
        thread::scope(|s| {
            let other = s.spawn(|| {
                // Time begins when both are there. None of them uses its device.
                assert_eq!(b.begin(), Some(1000));
                assert_eq!(b.at(400), Some(1400));
                b
            });
            thread::sleep(Duration::from_millis(20));
            assert!(!other.is_finished(), "it did not wait");
            assert_eq!(a.begin(), Some(1000));
            a.say(AT, 0, 500);
            b = other.join().unwrap();
            // The first has 500 ns behind it, and waits for the second.
            b.say(AT, 0, 2000);
            assert_eq!(a.hear(), Some(1500));
            a.say(AT, 0, 2001);
            assert_eq!(b.hear(), Some(3000));
            // Guests that sleep go from one time to the next at once.
            b.tell([ASLEEP, 0], [2500, 9_000_000]);
            assert_eq!(a.hear(), Some(3001));
            a.tell([ASLEEP, 0], [3001, 7_000_000]);
            assert_eq!(a.hear(), Some(7_000_000));
            a.say(AT, 0, 9_000_500);
            assert_eq!(b.hear(), Some(9_000_000));
            drop(b);
            // A guest that has gone holds up the other one no longer.
            assert_eq!(a.hear(), Some(9_001_500));
        });
        drop(nodes);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn plugin_that_breaks_the_protocol_is_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = serve(folder.path());
        let [first, second] = &nodes.sockets()[..] else { panic!("two nodes") };
        let (mut a, mut b) = (Plugin::connect(first), Plugin::connect(second));
        a.say(BEGIN, VERSION, 0);
        b.say(BEGIN, VERSION, 0);
        assert_eq!(a.hear(), Some(1000));
        a.say(AT, 0, 950);
        assert_eq!(b.hear(), Some(1000));
        // Time does not go back.
        assert_eq!(b.at(900), Some(1900));
        assert_eq!(b.at(899), None);
        assert_eq!(a.hear(), Some(1950));
        assert_eq!(a.at(5000), Some(6000));
        drop(nodes);
        assert_eq!(a.hear(), None);

        let folder = tempfile::tempdir().unwrap();
        let nodes = serve(folder.path());
        let mut old = Plugin::connect(&nodes.sockets()[0]);
        old.say(BEGIN, VERSION + 1, 0);
        assert_eq!(old.hear(), None);
    }
}
