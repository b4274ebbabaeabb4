//! Shards of a machine that meet over TLS on this host.

mod hostile;
mod relay;

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use tofu_abi::table::PageSize;
use tofu_abi::{CqId, Rcode, StagOffset, TniId};
use tofu_cables::{Hello, Joining, Mesh, Receive, ShardEvent, ShardStatus, hosts};
use tofu_driver::{Access, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, Platform, Target};
use tofu_fabric::{Shape, ShardId};
use tofu_inproc::{Buffer, InProcess};
use tofu_machine::{Machine, MachineConfig, Network, Shard, Surroundings, Transport};

use hostile::{Hostile, Random};
use relay::{Relay, Rough};

/// Far longer than any step of a test takes.
const PATIENCE: Duration = Duration::from_secs(100);

/// Creates a folder for `shards` shards, at free ports.
fn folder(shards: usize) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("demo");
    let free: Vec<_> = (0..shards).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> =
        free.iter().map(|free| free.local_addr().unwrap().to_string()).collect();
    hosts::init(&dir, &addresses).unwrap();
    (folder, dir)
}

fn hello(shard: u16, shards: u32) -> Hello {
    shaped("1x1x1x2x3x2", shard, shards)
}

fn shaped(shape: &str, shard: u16, shards: u32) -> Hello {
    Hello::new("demo", (shard, shards), vec![("shape".to_owned(), shape.to_owned())])
}

fn meet(dir: &Path, own: Hello) -> anyhow::Result<Mesh> {
    Joining::new(dir, own)?.meet(&mut |_, _| ())
}

/// Starts all shards and returns them once they have met.
fn all(dir: &Path, shards: u16) -> Vec<Arc<Mesh>> {
    let join = |shard| {
        let dir = dir.to_owned();
        thread::spawn(move || meet(&dir, hello(shard, shards.into())))
    };
    let joining: Vec<_> = (0..shards).map(join).collect();
    joining.into_iter().map(|shard| Arc::new(shard.join().unwrap().unwrap())).collect()
}

/// Joins once the address is free, that is, when the threads of its previous owner have ended.
fn join_again(dir: &Path, own: Hello) -> Joining {
    loop {
        if let Ok(joining) = Joining::new(dir, own.clone()) {
            return joining;
        }
        thread::yield_now();
    }
}

/// Keeps all received messages.
#[derive(Default)]
struct Inbox {
    messages: Mutex<Vec<(ShardId, Vec<u8>)>>,
    event: Mutex<Vec<ShardEvent>>,
    changed: Condvar,
}

impl Receive for Inbox {
    fn message(&self, from: ShardId, message: &[u8]) {
        self.messages.lock().unwrap().push((from, message.to_vec()));
        self.changed.notify_all();
    }

    fn room(&self) {}

    fn event(&self, event: ShardEvent) {
        self.event.lock().unwrap().push(event);
        self.changed.notify_all();
    }
}

impl Inbox {
    fn of(mesh: &Arc<Mesh>) -> Arc<Self> {
        let inbox = Arc::new(Self::default());
        start(mesh, &inbox);
        inbox
    }

    fn wait_for_messages(&self, count: usize) {
        let messages = self.messages.lock().unwrap();
        let few = |messages: &mut Vec<_>| messages.len() < count;
        let (_messages, timeout) =
            self.changed.wait_timeout_while(messages, PATIENCE, few).unwrap();
        assert!(!timeout.timed_out());
    }

    /// Waits for the next event of another shard, except for its first announcement.
    fn next_news(&self) -> ShardEvent {
        let event = self.event.lock().unwrap();
        let none = |event: &mut Vec<_>| event.is_empty();
        let (mut event, _) = self.changed.wait_timeout_while(event, PATIENCE, none).unwrap();
        assert!(!event.is_empty(), "nothing happens");
        event.remove(0)
    }

    /// Waits until `count` others have announced themselves.
    fn wait_for_all(&self, count: usize) {
        for _ in 0..count {
            let event = self.next_news();
            assert!(matches!(event, ShardEvent::Status(_, ShardStatus::Here)), "{event:?}");
        }
    }
}

fn start<R: Receive + 'static>(mesh: &Arc<Mesh>, to: &Arc<R>) {
    let (to, first): (Arc<dyn Receive>, Arc<dyn Fn() + Send + Sync>) =
        (Arc::clone(to) as _, Arc::new(|| ()));
    mesh.start(&to, &first).unwrap();
}

#[test]
fn messages_of_all_pairs_arrive_in_order() {
    const COUNT: u32 = 300;
    let (_folder, dir) = folder(3);
    let meshes = all(&dir, 3);
    let inboxes: Vec<_> = meshes.iter().map(Inbox::of).collect();
    thread::scope(|scope| {
        for (own, mesh) in (0..).zip(&meshes) {
            for to in (0..3).filter(|to| *to != own) {
                scope.spawn(move || {
                    for number in 0..COUNT {
                        // Some messages are larger than a socket buffer.
                        let size = if number % 50 == 0 { 250_000 } else { number as usize * 7 };
                        let mut message = number.to_le_bytes().to_vec();
                        message.resize(4 + size, number as u8);
                        assert!(mesh.send(ShardId(to), message));
                    }
                });
            }
        }
    });
    for inbox in &inboxes {
        inbox.wait_for_messages(2 * COUNT as usize);
        let messages = inbox.messages.lock().unwrap();
        for from in (0..3).map(ShardId) {
            let of = messages.iter().filter(|(sender, _)| *sender == from);
            let numbers: Vec<u32> = of
                .map(|(_, message)| {
                    let (number, rest) = message.split_first_chunk::<4>().unwrap();
                    let number = u32::from_le_bytes(*number);
                    assert!(rest.iter().all(|byte| *byte == number as u8));
                    number
                })
                .collect();
            assert!(numbers.is_empty() || numbers.into_iter().eq(0..COUNT));
        }
    }
    inboxes[0].wait_for_all(2);
    meshes[1].tell(ShardStatus::Ended { failed: 2 });
    let expected = ShardEvent::Status(ShardId(1), ShardStatus::Ended { failed: 2 });
    assert_eq!(inboxes[0].next_news(), expected);
}

#[test]
fn departed_shard_is_unreachable() {
    let (_folder, dir) = folder(2);
    let meshes = all(&dir, 2);
    let inboxes: Vec<_> = meshes.iter().map(Inbox::of).collect();
    assert!(meshes[0].send(ShardId(1), vec![1]));
    inboxes[1].wait_for_messages(1);
    inboxes[0].wait_for_all(1);
    meshes[1].leave();
    let event = inboxes[0].next_news();
    assert_eq!(event, ShardEvent::Went(ShardId(1), "its process has ended".to_owned()));
    while meshes[0].send(ShardId(1), vec![1]) {
        thread::yield_now();
    }
    assert!(meshes[0].has_room());
}

/// The last message of a shard is received, although others send to it while it leaves.
#[test]
fn last_message_of_a_leaving_shard_is_heard() {
    let ended = ShardStatus::Ended { failed: 3 };
    for _ in 0..20 {
        let (_folder, dir) = folder(2);
        let meshes = all(&dir, 2);
        let inboxes: Vec<_> = meshes.iter().map(Inbox::of).collect();
        inboxes[0].wait_for_all(1);
        thread::scope(|scope| {
            scope.spawn(|| while meshes[0].send(ShardId(1), vec![1; 5000]) {});
            inboxes[1].wait_for_messages(1);
            meshes[1].tell(ended);
            meshes[1].leave();
        });
        assert_eq!(inboxes[0].next_news(), ShardEvent::Status(ShardId(1), ended));
        let went = ShardEvent::Went(ShardId(1), "its process has ended".to_owned());
        assert_eq!(inboxes[0].next_news(), went);
    }
}

#[test]
fn returning_shard_learns_the_others_state() {
    const SHARDS: u16 = 3;
    let (_folder, dir) = folder(SHARDS.into());
    let mut meshes = all(&dir, SHARDS);
    let mut inboxes: Vec<_> = meshes.iter().map(Inbox::of).collect();
    inboxes.iter().for_each(|inbox| inbox.wait_for_all(2));
    // In this order, the first shard is once the one that comes back, and once one that others
    // connect to.
    for shard in [1, 0, 2] {
        let (own, others) = (ShardId(shard), [0, 1, 2].into_iter().filter(|other| *other != shard));
        meshes[own.index()].leave();
        for other in others.clone() {
            let event = inboxes[other as usize].next_news();
            assert_eq!(event, ShardEvent::Went(own, "its process has ended".to_owned()));
        }
        meshes[own.index()] = Arc::clone(&meshes[usize::from((shard + 1) % SHARDS)]);
        let joining = join_again(&dir, hello(shard, SHARDS.into()));
        let again = Arc::new(joining.meet(&mut |_, _| ()).unwrap());
        meshes[own.index()] = Arc::clone(&again);
        inboxes[own.index()] = Inbox::of(&again);
        for other in others.clone() {
            let event = inboxes[other as usize].next_news();
            assert_eq!(event, ShardEvent::Status(own, ShardStatus::Here));
            assert!(meshes[other as usize].send(own, vec![other as u8]));
            assert!(again.send(ShardId(other), vec![9]));
            inboxes[other as usize].wait_for_messages(1);
            inboxes[other as usize].messages.lock().unwrap().clear();
        }
        inboxes[own.index()].wait_for_messages(2);
        inboxes[own.index()].messages.lock().unwrap().clear();
        inboxes[own.index()].wait_for_all(2);
    }
    meshes[0].tell(ShardStatus::Ended { failed: 0 });
    let ended = ShardEvent::Status(ShardId(0), ShardStatus::Ended { failed: 0 });
    for inbox in &inboxes[1..] {
        assert_eq!(inbox.next_news(), ended);
    }
}

#[test]
fn shard_is_held_by_one_process() {
    let (_folder, dir) = folder(2);
    let _holder = Joining::new(&dir, hello(0, 2)).unwrap();
    let error = Joining::new(&dir, hello(0, 2)).err().unwrap().to_string();
    assert!(error.starts_with("shard 0 of machine demo is taken: another process"), "{error}");
    drop(_holder);

    // Another process has a copy of a shard's files, and connects when all have met.
    let meshes = all(&dir, 2);
    let inboxes: Vec<_> = meshes.iter().map(Inbox::of).collect();
    inboxes.iter().for_each(|inbox| inbox.wait_for_all(1));
    let addresses = fs::read_to_string(dir.join("parts.toml")).unwrap();
    for shard in [1, 0] {
        let own = addresses.split('"').nth(2 * usize::from(shard) + 1).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let elsewhere = addresses.replace(own, &free.to_string());
        fs::write(dir.join("parts.toml"), elsewhere).unwrap();
        let error = meet(&dir, hello(shard, 2)).err().unwrap().to_string();
        let pid = std::process::id();
        let expected =
            format!("shard {shard} of machine demo is taken by process {pid} at 127.0.0.1");
        assert!(error.starts_with(&expected), "{error}");
    }
    // The holder of the shard keeps running.
    assert!(meshes[0].send(ShardId(1), vec![1]) && meshes[1].send(ShardId(0), vec![1]));
    inboxes.iter().for_each(|inbox| inbox.wait_for_messages(1));
}

#[test]
fn unfit_shards_refuse_each_other() {
    let (_folder, dir) = folder(2);
    let own = hello(0, 2);
    let other = hello(1, 2);
    let (release, protocol) = (own.tofu.clone(), own.protocol.to_string());
    let next = (own.protocol + 1).to_string();
    for (other, [has, and]) in [
        (shaped("2x1x1x1x1x1", 1, 2), ["shape 1x1x1x2x3x2", "shape 2x1x1x1x1x1"]),
        (
            Hello { tofu: format!("{release}.1"), ..other.clone() },
            [&*format!("version {release}"), &format!("version {release}.1")],
        ),
        (
            Hello { protocol: own.protocol + 1, ..other.clone() },
            [&*format!("protocol {protocol}"), &format!("protocol {next}")],
        ),
    ] {
        let first = {
            let (dir, own) = (dir.clone(), own.clone());
            thread::spawn(move || meet(&dir, own))
        };
        let second = meet(&dir, other).err().unwrap().to_string();
        let first = first.join().unwrap().err().unwrap().to_string();
        for line in [first, second] {
            for named in [format!("shard 0/2 has {has}"), format!("shard 1/2 has {and}")] {
                assert!(line.contains(&named), "{line}");
            }
            assert!(!line.contains('\n'));
        }
    }
    let error = Joining::new(&dir, hello(0, 3)).err().unwrap().to_string();
    assert!(error.contains("has addresses for 2 shards; give 0/2"), "{error}");
}

#[test]
fn strangers_are_turned_away() {
    let (_folder, dir) = folder(2);
    let (_other, theirs) = folder(2);
    // They have the addresses, and certificates of another authority.
    fs::copy(dir.join("parts.toml"), theirs.join("parts.toml")).unwrap();
    let joining = Joining::new(&dir, hello(0, 2)).unwrap();
    let address = joining.address().to_owned();
    let first = thread::spawn(move || joining.meet(&mut |_, _| ()));
    let mut noise = TcpStream::connect(&address).unwrap();
    noise.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    drop(noise);
    let stranger = Joining::new(&theirs, hello(1, 2)).unwrap();
    let stranger = thread::spawn(move || stranger.meet(&mut |_, _| ()));
    thread::sleep(Duration::from_millis(300));
    assert!(!first.is_finished() && !stranger.is_finished());
}

#[test]
fn shard_cannot_claim_another_number() {
    let (_folder, dir) = folder(3);
    let joining = Joining::new(&dir, hello(0, 3)).unwrap();
    let first = thread::spawn(move || joining.meet(&mut |_, _| ()));
    // This shard has the certificate of shard 1, and claims to be shard 2.
    let (_other, liars) = folder(3);
    for file in ["parts.toml", "authority.pem"] {
        fs::copy(dir.join(file), liars.join(file)).unwrap();
    }
    for file in ["certificate.pem", "key.pem"] {
        fs::copy(dir.join("part-1").join(file), liars.join("part-2").join(file)).unwrap();
    }
    let liar = Joining::new(&liars, hello(2, 3)).unwrap();
    let error = liar.meet(&mut |_, _| ()).err().unwrap().to_string();
    assert_eq!(error, "a peer that claims to be shard 2 has another certificate");
    assert!(!first.is_finished());
}

#[test]
fn silent_connections_delay_no_other() {
    let (_folder, dir) = folder(2);
    let first = Joining::new(&dir, hello(0, 2)).unwrap();
    let address = first.address().to_owned();
    let silent =
        |count| -> Vec<_> { (0..count).map(|_| TcpStream::connect(&address).unwrap()).collect() };
    let before = silent(100);
    let first = thread::spawn(move || first.meet(&mut |_, _| ()));
    let second = Arc::new(meet(&dir, hello(1, 2)).unwrap());
    let first = Arc::new(first.join().unwrap().unwrap());
    let inboxes = [&first, &second].map(Inbox::of);
    inboxes.iter().for_each(|inbox| inbox.wait_for_all(1));
    drop(before);
    // Silent connections do not disturb a shard that comes back later either.
    let _flood = silent(100);
    second.leave();
    assert!(matches!(inboxes[0].next_news(), ShardEvent::Went(ShardId(1), _)));
    drop(second);
    let again = join_again(&dir, hello(1, 2));
    let again = Arc::new(again.meet(&mut |_, _| ()).unwrap());
    let _inbox = Inbox::of(&again);
    assert_eq!(inboxes[0].next_news(), ShardEvent::Status(ShardId(1), ShardStatus::Here));
}

/// Takes no messages before it is opened.
#[derive(Default)]
struct Gate {
    inbox: Inbox,
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

impl Receive for Gate {
    fn message(&self, from: ShardId, message: &[u8]) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
        self.inbox.message(from, message);
    }

    fn room(&self) {}

    fn event(&self, event: ShardEvent) {
        self.inbox.event(event);
    }
}

#[test]
fn stuck_shard_holds_back_its_senders() {
    const PIECE: usize = 64 << 10;
    let (_folder, dir) = folder(3);
    let meshes = all(&dir, 3);
    let (first, second) = (Inbox::of(&meshes[0]), Inbox::of(&meshes[1]));
    let slow = Arc::new(Gate::default());
    start(&meshes[2], &slow);
    for inbox in [&*first, &*second, &slow.inbox] {
        inbox.wait_for_all(2);
    }
    assert!(meshes.iter().all(|mesh| mesh.has_room()));
    // Shard 1 passes on messages from shard 0 to shard 2.
    let pass_on = |number: u32| {
        let mut message = number.to_le_bytes().to_vec();
        message.resize(PIECE, number as u8);
        let passed = meshes[1].pass_on(ShardId(2), message);
        meshes[1].hold_back(ShardId(0), ShardId(2));
        passed
    };
    let passed = (0..).find(|number| !pass_on(*number)).unwrap();
    let bytes = passed as usize * PIECE;
    let event = second.event.lock().unwrap();
    assert!((64 << 20..160 << 20).contains(&bytes) && event.is_empty(), "{bytes}, {event:?}");
    drop(event);
    while meshes[0].has_room() {
        thread::yield_now();
    }
    // Its own messages to that shard are still accepted, and it does not wait.
    assert!(meshes[1].send(ShardId(2), passed.to_le_bytes().to_vec()));
    assert!(meshes[1].send(ShardId(0), vec![1]));
    first.wait_for_messages(1);

    slow.open();
    slow.inbox.wait_for_messages(passed as usize + 1);
    let numbers = slow.inbox.messages.lock().unwrap();
    let number = |message: &[u8]| u32::from_le_bytes(*message.first_chunk().unwrap());
    assert!(numbers.iter().map(|(_, message)| number(message)).eq(0..=passed));
    drop(numbers);
    while !meshes.iter().all(|mesh| mesh.has_room()) {
        thread::yield_now();
    }
    assert!(pass_on(0));
    assert!(first.event.lock().unwrap().is_empty() && second.event.lock().unwrap().is_empty());
}

/// Passes messages of other shards to a machine. One of these shards may send anything.
struct Inwards(Network, Option<ShardId>);

impl Receive for Inwards {
    fn message(&self, from: ShardId, message: &[u8]) {
        let taken = self.0.receive(from, message);
        assert!(taken.is_ok() || self.1 == Some(from), "{taken:?}");
    }

    fn room(&self) {
        self.0.room();
    }

    fn event(&self, event: ShardEvent) {
        match event {
            ShardEvent::Went(shard, _) => self.0.shard_went(shard),
            ShardEvent::Status(shard, ShardStatus::Here) => self.0.shard_came(shard),
            ShardEvent::Status(..) => {}
        }
    }
}

/// The result of a Put from the first queue.
fn put(cq: &mut Cq<InProcess>, to: Target, len: u32) -> Rcode {
    let at = StagOffset::new(CqId::ALL[0], 0, 0);
    cq.post_and_ring(&Order::put(to, at, at, len), 0).unwrap();
    let mut read = false;
    loop {
        read |= cq.poll_tcq().is_some();
        if let Some(notice) = cq.poll_mrq()
            && notice.id().is_some_and(|id| id.ends_own_command())
        {
            while !read {
                read = cq.poll_tcq().is_some();
            }
            return notice.word0().rcode();
        }
        thread::yield_now();
    }
}

/// A node of a shard, with a queue and a buffer that others may read and write.
struct Node {
    machine: Arc<Machine>,
    mesh: Arc<Mesh>,
    device: Device<InProcess>,
    cq: Cq<InProcess>,
    buffer: Buffer,
}

impl Node {
    /// A node with the cables of its shard, in a machine with one node in each shard.
    fn new(mesh: &Arc<Mesh>, shape: Shape, own: ShardId, len: usize) -> Self {
        Self::beside(None, mesh, shape, own, len)
    }

    /// The same with another shard that may send anything.
    fn beside(
        hostile: Option<ShardId>,
        mesh: &Arc<Mesh>,
        shape: Shape,
        own: ShardId,
        len: usize,
    ) -> Self {
        let shards = shape.nodes();
        let timeout_ns = 2 * PATIENCE.as_nanos() as u64;
        let config = MachineConfig { timeout_ns, ..MachineConfig::new(shape) };
        let shard = Some(Shard { count: shards, own, transport: Arc::clone(mesh) as _ });
        let surroundings = Surroundings { shard, ..Surroundings::default() };
        let machine = Arc::new(Machine::within(config, surroundings).unwrap());
        let network = machine.network();
        (0..shards as u16).map(ShardId).for_each(|shard| network.shard_came(shard));
        start(mesh, &Arc::new(Inwards(network.clone(), hostile)));
        machine.start().unwrap();
        let at = shape.iter().nth(own.index()).unwrap();
        let device = Device::probe(InProcess::attach(&machine, at, 4 << 20).unwrap()).unwrap();
        device.tni(TniId::ALL[0]).enable().unwrap();
        let config = CqConfig::new(TniId::ALL[0], CqId::ALL[0]);
        let mut cq = Cq::open(&device, &config).unwrap();
        let buffer = device.platform().alloc_dma(len, 4096).unwrap();
        let range = [MemoryRange::of(&buffer)];
        cq.register(&range, PageSize::Size4K, Access::ReadWrite, Some(0)).unwrap();
        Self { machine, mesh: Arc::clone(mesh), device, cq, buffer }
    }

    fn target(&self) -> Target {
        Target::new(self.device.coords(), TniId::ALL[0])
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 % 251) as u8).collect()
}

#[test]
fn machines_put_until_one_of_them_goes() {
    const LEN: usize = 700_000;
    let (_folder, dir) = folder(2);
    let meshes = all(&dir, 2);
    let shape: Shape = "1x1x1x2x1x1".parse().unwrap();
    let nodes = (0..).map(ShardId).zip(&meshes);
    let mut nodes: Vec<_> = nodes.map(|(own, mesh)| Node::new(mesh, shape, own, LEN)).collect();
    let [near, far] = &mut nodes[..] else { unreachable!("two nodes") };
    let data = pattern(LEN);
    near.buffer.write(0, &data);
    let to = far.target();
    assert_eq!(put(&mut near.cq, to, LEN as u32), Rcode::SUCCESS);
    let mut seen = vec![0; LEN];
    far.buffer.read(0, &mut seen);
    assert!(seen == data);
    assert_eq!(put(&mut near.cq, to, 8), Rcode::SUCCESS);

    far.mesh.leave();
    while near.machine.fabric().links().any(|(_, up)| up) {
        thread::yield_now();
    }
    assert_eq!(put(&mut near.cq, to, 8), Rcode::LINK_DOWN);
}

/// Regardless of what a shard with the right certificate sends, the others keep communicating, and
/// an honest shard may replace it.
#[test]
fn hostile_shard_leaves_the_others_working() {
    let (_folder, dir) = folder(3);
    let mut meshes = all(&dir, 3);
    let shape: Shape = "3x1x1x1x1x1".parse().unwrap();
    let mut nodes: Vec<_> = [0, 2]
        .into_iter()
        .map(|shard| {
            let (mesh, own) = (&meshes[shard], ShardId(shard as u16));
            Node::beside(Some(ShardId(1)), mesh, shape, own, 64 << 10)
        })
        .collect();
    let first = Arc::clone(&meshes[0]);
    let is_gone = || first.peers().iter().any(|peer| peer.shard == ShardId(1) && peer.gone);
    meshes[1].leave();
    drop(meshes.remove(1));
    let own = hello(1, 3);
    let rounds: u64 = if std::env::var_os("TOFU_LONG").is_some() { 3000 } else { 60 };
    let (near, far) = (nodes[0].target(), nodes[1].target());
    for round in 0..rounds {
        while !is_gone() {
            thread::yield_now();
        }
        // The process before may be noticed only after it has gone. Until then this one is turned
        // away.
        let mut hostile = loop {
            let mut hostile = Hostile::connect(&dir, &own);
            if hostile.greet(&own) {
                break hostile;
            }
        };
        let mut random = Random(round);
        let many = random.below(200);
        let _ended = (0..many).find(|_| !hostile.torment(&mut random));
        if round % 2 == 0 {
            hostile.finish();
        } else {
            drop(hostile);
        }
        let [first, second] = &mut nodes[..] else { unreachable!("two nodes") };
        assert_eq!(put(&mut first.cq, far, 8), Rcode::SUCCESS, "round {round}");
        assert_eq!(put(&mut second.cq, near, 8), Rcode::SUCCESS, "round {round}");
    }
    let counters = nodes[0].machine.network().cables(ShardId(1)).unwrap();
    assert!(counters.refused > rounds / 4, "{counters:?}");
    while !is_gone() {
        thread::yield_now();
    }
    let honest = join_again(&dir, hello(1, 3));
    let honest = Arc::new(honest.meet(&mut |_, _| ()).unwrap());
    let inbox = Inbox::of(&honest);
    inbox.wait_for_all(2);
}

/// Four shards in a row. The last two are connected over a bad network.
fn over(rough: Rough) -> (TempDir, Vec<Arc<Mesh>>, Relay) {
    const SHARDS: u16 = 4;
    let (folder, dir) = folder(SHARDS.into());
    let addresses = fs::read_to_string(dir.join("parts.toml")).unwrap();
    let third = addresses.split('"').nth(5).unwrap();
    let relay = Relay::new(third, rough);
    // The last shard finds its neighbour at the relay's address.
    let its = folder.path().join("its");
    fs::create_dir(&its).unwrap();
    fs::write(its.join("parts.toml"), addresses.replace(third, relay.address())).unwrap();
    fs::copy(dir.join("authority.pem"), its.join("authority.pem")).unwrap();
    fs::rename(dir.join("part-3"), its.join("part-3")).unwrap();
    let join = |shard| {
        let dir = if shard == 3 { its.clone() } else { dir.clone() };
        thread::spawn(move || meet(&dir, shaped("row", shard, SHARDS.into())))
    };
    let joining: Vec<_> = (0..SHARDS).map(join).collect();
    let meshes = joining.into_iter().map(|shard| Arc::new(shard.join().unwrap().unwrap()));
    (folder, meshes.collect(), relay)
}

#[test]
fn transit_to_a_slow_cable_arrives() {
    const LEN: usize = 1 << 20;
    // About 8 MB/s.
    let rough = Rough { delay: Duration::from_millis(20), piece: Duration::from_millis(2) };
    let (_folder, meshes, relay) = over(rough);
    let shape: Shape = "4x1x1x1x1x1".parse().unwrap();
    let shape = shape.with_torus([false; 3]);
    let nodes = (0..).map(ShardId).zip(&meshes);
    let mut nodes: Vec<_> = nodes.map(|(own, mesh)| Node::new(mesh, shape, own, LEN)).collect();
    let data = pattern(LEN);
    nodes[0].buffer.write(0, &data);
    let last = nodes[3].target();
    // More data than any shard stores before it makes others wait, and then all of it back.
    let at = StagOffset::new(CqId::ALL[0], 0, 0);
    let first = &mut nodes[0];
    for order in [Order::put(last, at, at, LEN as u32), Order::get(last, at, at, LEN as u32)] {
        const COUNT: usize = 12;
        let (mut posted, mut read, mut ended) = (0, 0, 0);
        while ended < COUNT || read < COUNT {
            if posted < COUNT && posted - read.min(ended) < 6 {
                first.cq.post_and_ring(&order, 0).unwrap();
                posted += 1;
            }
            read += usize::from(first.cq.poll_tcq().is_some());
            if let Some(notice) = first.cq.poll_mrq()
                && notice.id().is_some_and(|id| id.ends_own_command())
            {
                assert_eq!(notice.word0().rcode(), Rcode::SUCCESS);
                ended += 1;
            }
            thread::yield_now();
        }
    }
    for node in [0, 3] {
        let mut seen = vec![0; LEN];
        nodes[node].buffer.read(0, &mut seen);
        assert!(seen == data);
    }
    while !meshes.iter().all(|mesh| mesh.has_room()) {
        thread::yield_now();
    }

    // Both ends notice that the connection breaks, and no other shard does.
    relay.cut();
    for (own, other) in [(2, 3), (3, 2)] {
        while !meshes[own].peers().iter().any(|peer| peer.shard == ShardId(other) && peer.gone) {
            thread::yield_now();
        }
    }
    assert!(meshes[0].peers().iter().all(|peer| !peer.gone));
    assert_eq!(put(&mut nodes[0].cq, last, 8), Rcode::LINK_DOWN);
    let beside = nodes[2].target();
    assert_eq!(put(&mut nodes[0].cq, beside, 8), Rcode::SUCCESS);
}
