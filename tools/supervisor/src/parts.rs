//! A machine in parts, of which this process has one.

use std::collections::HashSet;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use tofu_cables::{Hello, Joining, Mesh, News, PartStatus, PeerInfo, Receive, Visit};
use tofu_fabric::PartId;
use tofu_machine::{Machine, Network};
use tofu_sandbox::Role;
use tofu_sync::lock;

use crate::command_line;
use crate::confine::Confinement;
use crate::event::Event;
use crate::plan::Plan;
use crate::units::PartOf;

/// Takes the address of a part of a plan. `dir` is the folder of `tofu hosts init`, and `machine`
/// a name that all parts have to give.
///
/// # Errors
///
/// One line for the user.
pub fn join(dir: &Path, machine: &str, plan: &Plan, own: PartOf) -> anyhow::Result<Joining> {
    // What guests are told has to be the same everywhere.
    let shape = command_line::machine(plan, "");
    let shape = shape.strip_prefix("shape=").unwrap_or(&shape);
    let generation = plan.interconnect.name();
    Joining::new(dir, Hello::new(machine, shape, generation, (own.part.0, own.of)))
}

/// The other parts of a machine, all of which were met. Copies are of the same.
#[derive(Clone)]
pub struct Others {
    mesh: Arc<Mesh>,
    left: Arc<AtomicBool>,
    /// For whoever serves what other parts ask, and that.
    visits: Sender<Visit>,
    visitors: Arc<Mutex<Option<Receiver<Visit>>>>,
}

impl Others {
    /// Behind these connections.
    pub fn new(mesh: Mesh) -> Self {
        let (visits, visitors) = channel();
        Self {
            mesh: Arc::new(mesh),
            left: Arc::default(),
            visits,
            visitors: Arc::new(Mutex::new(Some(visitors))),
        }
    }

    /// Where this part listens.
    pub(crate) fn address(&self) -> &str {
        self.mesh.address()
    }

    /// The others, in the order of their numbers.
    pub(crate) fn peers(&self) -> Vec<PeerInfo> {
        self.mesh.peers()
    }

    /// Opens a stream to the control server of a part.
    pub(crate) fn open(&self, part: PartId) -> io::Result<UnixStream> {
        self.mesh.open(part)
    }

    /// Those who come with questions from other parts, once.
    pub(crate) fn visitors(&self) -> Option<Receiver<Visit>> {
        lock(&self.visitors).take()
    }

    /// Has all of them end.
    pub(crate) fn take_down(&self) {
        self.mesh.tell(PartStatus::Down);
    }

    /// Lets packets go to and from them, before there are nodes here.
    pub(crate) fn connect(
        &self,
        machine: &Machine,
        events: &Sender<Event>,
        confinement: &Confinement,
    ) -> io::Result<()> {
        let network = machine.network();
        network.connect(Arc::clone(&self.mesh) as _);
        for part in network.part().into_iter().flat_map(|(parts, _)| parts.all()) {
            network.part_came(part);
        }
        let inbox: Arc<dyn Receive> = Arc::new(Inbox {
            network: network.clone(),
            events: events.clone(),
            ended: Mutex::default(),
            left: Arc::clone(&self.left),
            visits: Mutex::new(self.visits.clone()),
            down: AtomicBool::new(false),
        });
        self.mesh.start(&inbox, &confinement.hook(Role::Cable))
    }

    /// Tells them that all guests here have ended, and how many have failed.
    pub(crate) fn tell(&self, failed: u32) {
        self.mesh.tell(PartStatus::Ended { failed });
    }

    /// Leaves the machine.
    pub(crate) fn leave(&self) {
        self.left.store(true, SeqCst);
        self.mesh.leave();
    }
}

/// What is done with what other parts send.
struct Inbox {
    network: Network,
    events: Sender<Event>,
    /// Parts that have said that they have ended. What they say again is of no interest, however
    /// often they do.
    ended: Mutex<HashSet<PartId>>,
    /// This part has left.
    left: Arc<AtomicBool>,
    visits: Mutex<Sender<Visit>>,
    /// The machine is to end.
    down: AtomicBool,
}

impl Inbox {
    fn tell(&self, event: Event) {
        if !self.left.load(SeqCst) {
            // Nobody listens any more once the run is over.
            let _ = self.events.send(event);
        }
    }
}

impl Receive for Inbox {
    fn message(&self, from: PartId, message: &[u8]) {
        // What is refused was counted.
        let _ = self.network.receive(from, message);
    }

    fn room(&self) {
        self.network.room();
    }

    fn news(&self, news: News) {
        match news {
            News::Went(part, why) => {
                self.network.part_went(part);
                self.tell(Event::PartWent(part, why));
            }
            News::Status(part, PartStatus::Ended { failed }) => {
                if lock(&self.ended).insert(part) {
                    self.tell(Event::PartEnded(part, failed));
                }
            }
            // Once is enough.
            News::Status(_, PartStatus::Down) if !self.down.swap(true, SeqCst) => {
                self.tell(Event::Down);
            }
            News::Status(_, PartStatus::Down) => {}
        }
    }

    fn visit(&self, _from: PartId, visit: Visit) {
        // If nobody serves them it is closed.
        let _ = lock(&self.visits).send(visit);
    }
}
