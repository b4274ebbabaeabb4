//! Puts over a cable: two shards of a machine in this process, joined by TLS over TCP of this host.
//! The baselines are the transport alone, and a bare TCP connection. Each sends as many bytes and
//! waits for an answer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tofu_abi::table::PageSize;
use tofu_abi::{CqId, Rcode, StagOffset, TniId};
use tofu_cables::{Hello, Joining, Mesh, Receive, ShardEvent, ShardStatus, hosts};
use tofu_driver::{Access, Cq, CqConfig, Device, MemoryRange, Order, Platform, Target};
use tofu_fabric::{Shape, ShardId};
use tofu_inproc::InProcess;
use tofu_machine::{MAX_MESSAGE, Machine, MachineConfig, Network, Shard, Surroundings, Transport};

const SIZES: [usize; 4] = [8, 1920, 32 << 10, 1 << 20];
const LONGEST: usize = 1 << 20;

/// Two shards that have met.
fn shards() -> [Arc<Mesh>; 2] {
    let folder = tempfile::tempdir().expect("there is a place for files");
    let dir = folder.path().join("bench");
    let free = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("there are ports"));
    let addresses = free.map(|free| free.local_addr().expect("it has one").to_string());
    hosts::init(&dir, &addresses).expect("certificates can be made");
    let meet = |shard: u16| {
        let dir = dir.clone();
        thread::spawn(move || {
            let hello = Hello::new("bench", (shard, 2), Vec::new());
            let joining = Joining::new(&dir, hello).expect("the address is free");
            Arc::new(joining.meet(&mut |_, _| ()).expect("the shards fit"))
        })
    };
    [0, 1].map(meet).map(|shard| shard.join().expect("it has met the other"))
}

fn start(mesh: &Arc<Mesh>, to: impl Receive + 'static) {
    let (to, first): (Arc<dyn Receive>, Arc<dyn Fn() + Send + Sync>) =
        (Arc::new(to), Arc::new(|| ()));
    mesh.start(&to, &first).expect("there are threads");
}

/// Answers the last message of a batch, which is marked as the last.
struct Echo(Arc<Mesh>);

impl Receive for Echo {
    fn message(&self, from: ShardId, message: &[u8]) {
        if message.first() == Some(&1) {
            self.0.send(from, vec![0; 8]);
        }
    }

    fn room(&self) {}

    fn event(&self, _: ShardEvent) {}
}

/// Tells of answers.
struct Answers(Mutex<Sender<()>>);

impl Receive for Answers {
    fn message(&self, _: ShardId, _: &[u8]) {
        // The bench may be over.
        let _ = self.0.lock().expect("not poisoned").send(());
    }

    fn room(&self) {}

    fn event(&self, _: ShardEvent) {}
}

/// Two ends of the transport, and a channel that announces answers.
fn transport() -> (Arc<Mesh>, Receiver<()>) {
    let [near, far] = shards();
    let (sender, answers) = channel();
    start(&near, Answers(Mutex::new(sender)));
    start(&far, Echo(Arc::clone(&far)));
    (near, answers)
}

/// A bare connection, whose other end answers every `bytes` bytes.
fn tcp(bytes: usize) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there are ports");
    let near = TcpStream::connect(listener.local_addr().expect("it has one")).expect("it listens");
    let (mut far, _) = listener.accept().expect("one has come");
    for end in [&near, &far] {
        end.set_nodelay(true).expect("it is TCP");
    }
    thread::spawn(move || {
        let mut buffer = vec![0; bytes];
        while far.read_exact(&mut buffer).and_then(|()| far.write_all(&[0; 8])).is_ok() {}
    });
    near
}

/// Delivers to a machine the messages that come from other shards.
struct Inwards(Network);

impl Receive for Inwards {
    fn message(&self, from: ShardId, message: &[u8]) {
        self.0.receive(from, message).expect("an honest shard has sent it");
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

/// A node with a queue and a buffer in each shard.
struct End {
    _machine: Arc<Machine>,
    device: Device<InProcess>,
    cq: Cq<InProcess>,
}

fn machine() -> [End; 2] {
    let shape: Shape = "1x1x1x2x1x1".parse().expect("it is a shape");
    let mut shard = 0;
    shards().map(|mesh| {
        let own = ShardId(shard);
        let at = shape.coords(tofu_fabric::NodeId(shard.into())).expect("there are two nodes");
        shard += 1;
        let config = MachineConfig {
            timeout_ns: Duration::from_secs(60).as_nanos() as u64,
            ..MachineConfig::new(shape)
        };
        let shard = Some(Shard { count: 2, own, transport: Arc::clone(&mesh) as _ });
        let surroundings = Surroundings { shard, ..Surroundings::default() };
        let machine = Machine::within(config, surroundings);
        let machine = Arc::new(machine.expect("the host has descriptors"));
        let network = machine.network();
        (0..2).map(ShardId).for_each(|shard| network.shard_came(shard));
        start(&mesh, Inwards(network.clone()));
        machine.start().expect("there are threads");
        let platform = InProcess::attach(&machine, at, 4 << 20).expect("the node is free");
        let device = Device::probe(platform).expect("it is a device");
        device.tni(TniId::ALL[0]).enable().expect("it has that interface");
        let config = CqConfig::new(TniId::ALL[0], CqId::ALL[0]);
        let mut cq = Cq::open(&device, &config).expect("the queue is free");
        let buffer = device.platform().alloc_dma(LONGEST, 4096).expect("there is memory");
        let range = [MemoryRange::of(&buffer)];
        cq.register(&range, PageSize::Size4K, Access::ReadWrite, Some(0)).expect("the tag is free");
        // It must live as long as the queue.
        std::mem::forget(buffer);
        End { _machine: machine, device, cq }
    })
}

/// Runs a Put to its end.
fn put(cq: &mut Cq<InProcess>, order: &Order) {
    cq.post_and_ring(order, 0).expect("there is room");
    let (mut read, mut ended) = (false, false);
    while !(read && ended) {
        read |= cq.poll_tcq().is_some();
        if let Some(notice) = cq.poll_mrq()
            && notice.id().is_some_and(|id| id.ends_own_command())
        {
            assert_eq!(notice.word0().rcode(), Rcode::SUCCESS);
            ended = true;
        }
        thread::yield_now();
    }
}

fn cables(c: &mut Criterion) {
    let [mut near, far] = machine();
    let (mesh, answers) = transport();
    let mut group = c.benchmark_group("cables");
    group.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_millis(500));
    let (to, at) =
        (Target::new(far.device.coords(), TniId::ALL[0]), StagOffset::new(CqId::ALL[0], 0, 0));
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        let order = Order::put(to, at, at, bytes as u32);
        group.bench_function(BenchmarkId::new("put", bytes), |b| {
            b.iter(|| put(&mut near.cq, &order));
        });
        group.bench_function(BenchmarkId::new("transport", bytes), |b| {
            b.iter(|| {
                let mut left = bytes;
                while left > 0 {
                    let piece = left.min(MAX_MESSAGE / 2);
                    left -= piece;
                    let mut message = vec![0; piece];
                    message[0] = u8::from(left == 0);
                    assert!(mesh.send(ShardId(1), message));
                }
                answers.recv().expect("the other end answers");
            });
        });
        let (mut tcp, data, mut answer) = (tcp(bytes), vec![0; bytes], [0; 8]);
        group.bench_function(BenchmarkId::new("tcp", bytes), |b| {
            b.iter(|| {
                tcp.write_all(&data).and_then(|()| tcp.read_exact(&mut answer)).expect("it works");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, cables);
criterion_main!(benches);
