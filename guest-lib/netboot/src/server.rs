//! The server's end: the files of each node, and a fair order of the nodes.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use sha2::{Digest, Sha256};
use tofu_abi::Coords;

use crate::wire::{
    BootState, Envelope, FileInfo, FileRole, ImageKind, Manifest, Message, Range, Reason, parse,
};

/// The most waiting questions of one node; more are dropped, and the node retransmits them.
const MAX_QUEUE: usize = 64;
/// Refusals to nodes that boot nothing from here that wait.
const MAX_STRANGERS: usize = 64;

/// A file that is served; nodes that boot the same share it.
pub type Content = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The files that a node boots.
#[derive(Clone)]
pub struct Boot {
    manifest: Manifest,
    files: Vec<Content>,
}

impl Boot {
    /// A kernel or guest, an initrd perhaps, and a command line. Hashes all of it. `None` if that
    /// cannot be [sent](Manifest::is_valid).
    pub fn new(
        id: u32,
        kind: ImageKind,
        kernel: Content,
        initrd: Option<Content>,
        command_line: String,
    ) -> Option<Self> {
        let mut files = Vec::from([(FileRole::Kernel, kernel)]);
        files.extend(initrd.map(|initrd| (FileRole::Initrd, initrd)));
        let infos = files.iter().map(|(role, content)| {
            let bytes = (**content).as_ref();
            FileInfo { role: *role, size: bytes.len() as u64, sha256: Sha256::digest(bytes).into() }
        });
        let manifest = Manifest { id, kind, files: infos.collect(), command_line };
        let files = files.into_iter().map(|(_, content)| content).collect();
        manifest.is_valid().then_some(Self { manifest, files })
    }

    /// The same files with another command line, which are not hashed again. `None` as for
    /// [`Boot::new`].
    pub fn with_command_line(&self, command_line: String) -> Option<Self> {
        let manifest = Manifest { command_line, ..self.manifest.clone() };
        manifest.is_valid().then(|| Self { manifest, files: self.files.clone() })
    }

    /// The answers to nodes.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.size).sum()
    }
}

/// Faults of a server, for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// It changes a byte of each file behind the hash.
    Corrupt,
    /// It answers a node no more once that has had so many percent of its first file.
    Silent(u8),
}

/// An event of a node's boot, for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootEvent {
    /// It begins to boot.
    Begun(Coords),
    /// It was given so much of a file, in percent, for the first time.
    Progress(Coords, FileRole, u8),
    /// It starts what it has fetched.
    Starting(Coords),
    /// It gives up, and why.
    Failed(Coords, String),
}

/// Counts since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that are none.
    pub malformed: u64,
    /// Questions that were dropped because too many waited.
    pub dropped: u64,
    /// Questions that were refused.
    pub refused: u64,
    /// Blocks sent.
    pub blocks: u64,
    /// Bytes of files sent.
    pub bytes: u64,
}

enum Work {
    Offer,
    Ack,
    Read(Range),
    Refuse(Reason),
}

/// The state of a node that boots.
#[derive(Default)]
struct Client {
    session: u32,
    queue: VecDeque<(Envelope, Work)>,
    /// For each file, the percent announced.
    percent: [u8; crate::wire::MAX_FILES],
    /// The last state that the node reported, which is returned once.
    reported: bool,
}

/// A boot server. Messages go in by [`Server::receive`] and out by [`Server::answer`], to one node
/// after the other.
#[derive(Default)]
pub struct Server {
    boots: BTreeMap<Coords, Boot>,
    clients: BTreeMap<Coords, Client>,
    /// Nodes with questions, each of them once.
    turns: VecDeque<Coords>,
    strangers: VecDeque<(Coords, Envelope)>,
    counters: Counters,
    fault: Fault,
}

impl Server {
    /// A server with nothing to boot, and with a fault.
    pub fn new(fault: Fault) -> Self {
        Self { fault, ..Self::default() }
    }

    /// Sets the files that a node boots from now on.
    pub fn set(&mut self, node: Coords, boot: Boot) {
        self.boots.insert(node, boot);
    }

    /// Counts since the beginning.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes a message from a node.
    pub fn receive(&mut self, from: Coords, bytes: &[u8]) -> Option<BootEvent> {
        let Ok((envelope, message)) = parse(bytes) else {
            self.counters.malformed += 1;
            return None;
        };
        let Some(boot) = self.boots.get(&from) else {
            self.refuse(from, envelope, &message);
            return None;
        };
        let client = self.clients.entry(from).or_default();
        let mut news = None;
        let work = match message {
            Message::Discover => {
                if client.session != envelope.session || client.reported {
                    // Waiting questions are from an earlier life of the node.
                    let queued = !client.queue.is_empty();
                    *client = Client { session: envelope.session, ..Client::default() };
                    if queued {
                        self.turns.retain(|node| *node != from);
                    }
                    news = Some(BootEvent::Begun(from));
                }
                Work::Offer
            }
            Message::Read(range) => match check(boot, range) {
                Ok(percent) => {
                    let file = usize::from(range.file);
                    let before = client.percent[file];
                    if let Fault::Silent(after) = self.fault
                        && (file > 0 || percent.max(before) >= after)
                    {
                        return None;
                    }
                    if percent > before && client.session == envelope.session {
                        client.percent[file] = percent;
                        let role = boot.manifest.files[file].role;
                        news = Some(BootEvent::Progress(from, role, percent));
                    }
                    Work::Read(range)
                }
                Err(reason) => Work::Refuse(reason),
            },
            Message::Report(state, text) => {
                if !core::mem::replace(&mut client.reported, true) {
                    news = Some(match state {
                        BootState::Starting => BootEvent::Starting(from),
                        BootState::Failed => BootEvent::Failed(from, text.to_string()),
                    });
                }
                Work::Ack
            }
            // Only servers send those.
            _ => {
                self.counters.malformed += 1;
                return None;
            }
        };
        self.queue(from, envelope, work);
        news
    }

    /// Queues work for a node, unless the node has too much of it already.
    fn queue(&mut self, from: Coords, envelope: Envelope, work: Work) {
        let client = self.clients.entry(from).or_default();
        if client.queue.len() >= MAX_QUEUE {
            self.counters.dropped += 1;
            return;
        }
        if client.queue.is_empty() {
            self.turns.push_back(from);
        }
        client.queue.push_back((envelope, work));
    }

    /// Queues a refusal for a node without files to boot, if it requests something.
    fn refuse(&mut self, from: Coords, envelope: Envelope, message: &Message<'_>) {
        if matches!(message, Message::Discover | Message::Read(_)) {
            if self.strangers.len() < MAX_STRANGERS {
                self.strangers.push_back((from, envelope));
            } else {
                self.counters.dropped += 1;
            }
        }
    }

    /// The next answer, and for which node.
    pub fn answer(&mut self) -> Option<(Coords, Vec<u8>)> {
        if let Some((node, envelope)) = self.strangers.pop_front() {
            self.counters.refused += 1;
            let message = Message::Refused(Reason::NotForYou, "nothing to boot for this node");
            return Some((node, message.emit(envelope)));
        }
        let node = self.turns.pop_front()?;
        let client = self.clients.get_mut(&node)?;
        let (envelope, work) = client.queue.pop_front()?;
        if !client.queue.is_empty() {
            self.turns.push_back(node);
        }
        let boot = self.boots.get(&node)?;
        let bytes = match work {
            Work::Offer => Message::Offer(boot.manifest.clone()).emit(envelope),
            Work::Ack => Message::Ack.emit(envelope),
            Work::Read(range) => {
                self.counters.blocks += 1;
                self.counters.bytes += u64::from(range.length);
                read(boot, range, self.fault, envelope)?
            }
            Work::Refuse(reason) => {
                self.counters.refused += 1;
                let text = match reason {
                    Reason::Stale => "the files have changed since the node asked for them",
                    Reason::NoSuchRange | Reason::NotForYou => "there is no such part of a file",
                };
                Message::Refused(reason, text).emit(envelope)
            }
        };
        Some((node, bytes))
    }

    /// Returns true if [`Server::answer`] has something.
    pub fn has_work(&self) -> bool {
        !self.turns.is_empty() || !self.strangers.is_empty()
    }
}

/// Checks that a range is within its file. Returns where it ends there, in percent.
fn check(boot: &Boot, range: Range) -> Result<u8, Reason> {
    if range.manifest != boot.manifest.id {
        return Err(Reason::Stale);
    }
    let file = boot.manifest.files.get(usize::from(range.file)).ok_or(Reason::NoSuchRange)?;
    let end = range.offset + u64::from(range.length);
    if end > file.size {
        return Err(Reason::NoSuchRange);
    }
    Ok((end * 100 / file.size) as u8)
}

fn read(boot: &Boot, range: Range, fault: Fault, envelope: Envelope) -> Option<Vec<u8>> {
    let bytes = (**boot.files.get(usize::from(range.file))?).as_ref();
    let start = range.offset as usize;
    let data = bytes.get(start..start.checked_add(range.length.into())?)?;
    if fault == Fault::Corrupt && start == 0 {
        let mut changed = data.to_vec();
        *changed.last_mut()? ^= 1;
        return Some(Message::Data(range, &changed).emit(envelope));
    }
    Some(Message::Data(range, data).emit(envelope))
}
