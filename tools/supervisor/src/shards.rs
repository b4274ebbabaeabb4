//! A machine in shards, with one of them in this process.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};
pub use tofu_cables::Joining;
use tofu_cables::{Hello, Mesh, PeerInfo, Receive, ShardEvent, ShardStatus, Visit};
use tofu_fabric::{NodeId, ShardId};
use tofu_machine::{AnyNetwork, Transport};
use tofu_sandbox::Role;
use tofu_sync::lock;
use tofu_sync::queue::{Receiver, Sender, WhenFull, queue};

use crate::command_line;
use crate::confine::Confinement;
use crate::event::{Event, EventSender};
use tofu_spec::plan::Plan;
use tofu_spec::units::ShardOf;

/// Takes the address of a shard. `dir` is the folder of `tofu hosts init`. `machine` is a name that
/// all shards must give, and `same` the other settings that they must share ([`in_common`]).
///
/// # Errors
///
/// One line for the user.
pub fn join(
    dir: &Path,
    machine: &str,
    same: Vec<(String, String)>,
    own: ShardOf,
) -> anyhow::Result<Joining> {
    Joining::new(dir, Hello::new(machine, (own.shard.0, own.of), same))
}

/// Returns the names and values of the settings that must be the same for all shards of a machine.
/// `plan` must not be cut yet.
pub fn in_common(plan: &Plan) -> Vec<(String, String)> {
    // Guests' command lines must be the same everywhere.
    let shape = command_line::machine(plan, "");
    let shape = shape.strip_prefix("shape=").unwrap_or(&shape);
    let mut files = HashMap::new();
    let mut file = |image: &Arc<Cow<'static, [u8]>>| {
        files.entry(Arc::as_ptr(image)).or_insert_with(|| fingerprint(image)).clone()
    };
    let down = plan.network.links_down.iter().map(|(at, port)| format!("{at} {}", port.name()));
    let mut down: Vec<_> = down.collect();
    down.sort_unstable();
    let at = |node: Option<NodeId>| node.map_or_else(String::new, |id| plan.coords(id).to_string());
    [
        ("shape", shape.to_owned()),
        ("generation", plan.interconnect.name().to_owned()),
        ("guest", of_all(plan.bare().map(|(_, vm)| vm.guest.name.clone()))),
        ("guest file", of_all(plan.bare().map(|(_, vm)| file(&vm.guest.image)))),
        ("--args", of_all(plan.bare().map(|(_, vm)| vm.args.clone()))),
        ("links that start down", down.join(", ")),
        ("boot server", at(plan.boot_server.map(|server| server.at))),
        ("nodes that boot over the torus", plan.netbooted().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Returns the value that all nodes have; or all different values, with a hash of the nodes'
/// values.
fn of_all(values: impl Iterator<Item = String>) -> String {
    let values: Vec<_> = values.collect();
    let mut kinds = values.clone();
    kinds.sort_unstable();
    kinds.dedup();
    match &kinds[..] {
        [] => String::new(),
        [one] => one.clone(),
        more => format!("{} ({})", more.join(", "), fingerprint(values.join("\0").as_bytes())),
    }
}

/// Returns the first digits of the SHA-256 of `bytes`.
pub fn fingerprint(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A request of another shard.
type From = (ShardId, Visit);

/// Bytes of requests of other shards that wait to be served.
const MOST_VISITS: usize = 64 << 10;

/// The other shards of a machine, which are all connected. Clones refer to the same shards.
#[derive(Clone)]
pub struct Others {
    mesh: Arc<Mesh>,
    left: Arc<AtomicBool>,
    /// Requests of other shards, for the thread that serves them.
    visits: Sender<From>,
    visitors: Arc<Mutex<Option<Receiver<From>>>>,
}

impl Others {
    /// Wraps these connections.
    pub fn new(mesh: Mesh) -> Self {
        let (visits, visitors) = queue(MOST_VISITS, WhenFull::WaitFor(Duration::ZERO));
        Self {
            mesh: Arc::new(mesh),
            left: Arc::default(),
            visits,
            visitors: Arc::new(Mutex::new(Some(visitors))),
        }
    }

    /// Returns the address on which this shard listens.
    pub(crate) fn address(&self) -> &str {
        self.mesh.address()
    }

    /// Returns the others, in the order of their numbers.
    pub(crate) fn peers(&self) -> Vec<PeerInfo> {
        self.mesh.peers()
    }

    /// Opens a stream to the control server of a shard.
    pub(crate) fn open(&self, shard: ShardId) -> io::Result<UnixStream> {
        self.mesh.open(shard)
    }

    /// Returns the receiver of requests from other shards, the first time it is called.
    pub(crate) fn visitors(&self) -> Option<Receiver<From>> {
        lock(&self.visitors).take()
    }

    /// Tells all of them to end.
    pub(crate) fn take_down(&self) {
        self.mesh.tell(ShardStatus::Down);
    }

    /// Returns the transport to them, for a machine that is about to be built.
    pub(crate) fn transport(&self) -> Arc<dyn Transport> {
        Arc::clone(&self.mesh) as _
    }

    /// Connects the network to them, before it has any nodes.
    pub(crate) fn connect(
        &self,
        network: Arc<dyn AnyNetwork>,
        events: &EventSender,
        confinement: &Confinement,
    ) -> io::Result<()> {
        for shard in network.shard().into_iter().flat_map(|(shards, _)| shards.all()) {
            network.shard_came(shard);
        }
        let inbox: Arc<dyn Receive> = Arc::new(Inbox {
            network,
            events: events.clone(),
            ended: Mutex::default(),
            gone: Mutex::default(),
            left: Arc::clone(&self.left),
            visits: self.visits.clone(),
            down: AtomicBool::new(false),
        });
        self.mesh.start(&inbox, &confinement.hook(Role::Cable))
    }

    /// Tells them that all guests here have ended, and how many have failed.
    pub(crate) fn tell(&self, failed: u32) {
        self.mesh.tell(ShardStatus::Ended { failed });
    }

    /// Leaves the machine.
    pub(crate) fn leave(&self) {
        self.left.store(true, SeqCst);
        self.mesh.leave();
    }
}

/// Handles the messages of other shards.
struct Inbox {
    network: Arc<dyn AnyNetwork>,
    events: EventSender,
    /// Shards that have reported their end. Further reports are ignored.
    ended: Mutex<HashSet<ShardId>>,
    /// Shards that have gone.
    gone: Mutex<HashSet<ShardId>>,
    /// True if this shard has left.
    left: Arc<AtomicBool>,
    visits: Sender<From>,
    /// True if the machine is ending on request.
    down: AtomicBool,
}

impl Inbox {
    fn tell(&self, event: Event) {
        if !self.left.load(SeqCst) {
            self.events.send(event);
        }
    }
}

impl Receive for Inbox {
    fn message(&self, from: ShardId, message: &[u8]) {
        // The network counts the messages that it refuses.
        let _ = self.network.receive(from, message);
    }

    fn room(&self) {
        self.network.room();
    }

    fn event(&self, event: ShardEvent) {
        match event {
            ShardEvent::Went(shard, why) => {
                self.network.shard_went(shard);
                lock(&self.gone).insert(shard);
                self.tell(Event::ShardWent(shard, why));
            }
            ShardEvent::Status(shard, ShardStatus::Here) => {
                if lock(&self.gone).remove(&shard) {
                    self.network.shard_came(shard);
                    lock(&self.ended).remove(&shard);
                    self.tell(Event::ShardCame(shard));
                }
            }
            ShardEvent::Status(shard, ShardStatus::Ended { failed }) => {
                if lock(&self.ended).insert(shard) {
                    self.tell(Event::ShardEnded(shard, failed));
                }
            }
            // One event is enough.
            ShardEvent::Status(_, ShardStatus::Down) if !self.down.swap(true, SeqCst) => {
                self.tell(Event::Down);
            }
            ShardEvent::Status(_, ShardStatus::Down) => {}
        }
    }

    fn visit(&self, from: ShardId, visit: Visit) {
        // If visits are not served, or too many wait, this one is closed.
        let _ = self.visits.send((from, visit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_summarised_in_few_words() {
        let of = |values: &[&str]| of_all(values.iter().map(|&value| value.to_owned()));
        assert_eq!(of(&[]), "");
        assert_eq!(of(&["ring", "ring"]), "ring");
        let (one, other) = (of(&["ring", "put", "put"]), of(&["put", "ring", "put"]));
        assert!(one.starts_with("put, ring (") && other.starts_with("put, ring ("), "{one}");
        assert_ne!(one, other);
        // SHA-256 of nothing.
        assert_eq!(fingerprint(b""), "e3b0c44298fc1c14");
    }
}
