//! Commands and packets among nodes of a machine in shards.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tofu_abi::desc::ArmwOp;
use tofu_abi::queue::MrqId;
use tofu_abi::regs::CqsMode;
use tofu_abi::table::PageSize;
use tofu_abi::{Coords, CqId, Rcode, StagOffset, TniId};
use tofu_driver::{
    Access, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, PacketConfig, PacketTarget,
    Packets, Platform, Target,
};
use tofu_fabric::ShardId;
use tofu_inproc::{Buffer, InProcess};
use tofu_machine::{MachineConfig, Refused};
use tofu_tests::shards::InShards;
use tofu_tests::{config, description, pattern};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(100);
/// More than a burst, so that a message is several packets.
const SIZE: usize = 600 << 10;

struct End {
    device: Device<InProcess>,
    cq: Cq<InProcess>,
    buffer: Arc<Buffer>,
}

fn ends(shards: &InShards) -> Vec<End> {
    let open = |platform: InProcess| {
        let device = Device::probe(platform).unwrap();
        device.enable_tnis().unwrap();
        let (cq, buffer) = tofu_tests::open(&device, &config(0, 0), 2 * SIZE);
        End { device, cq, buffer }
    };
    shards.attach(4 << 20).into_iter().map(open).collect()
}

fn at(offset: usize) -> StagOffset {
    StagOffset::new(CqId::ALL[0], 0, offset as u64)
}

fn to(end: &End) -> Target {
    Target::new(end.device.coords(), TniId::ALL[0])
}

impl End {
    /// The result of a command.
    fn run(&mut self, order: &Order) -> Rcode {
        self.cq.post_and_ring(order, 0).unwrap();
        let start = Instant::now();
        let mut end = None;
        let mut read = false;
        while end.is_none() || !read {
            read |= self.cq.poll_tcq().is_some();
            while let Some(notice) = self.cq.poll_mrq() {
                if notice.id().is_some_and(MrqId::ends_own_command) {
                    end = Some(notice.word0().rcode());
                }
            }
            assert!(start.elapsed() < PATIENCE, "a command that does not end");
            self.device.platform().relax();
        }
        end.unwrap_or(Rcode::SUCCESS)
    }
}

fn unit(shards: u32) -> InShards {
    let shape = "1x1x1x2x3x2".parse().unwrap();
    // A busy host may delay a cable for as long as commands usually wait for an answer.
    let timeout_ns = 2 * PATIENCE.as_nanos() as u64;
    InShards::new(&MachineConfig { engines: 2, timeout_ns, ..tofu_tests::machine(shape) }, shards)
}

#[test]
fn commands_reach_all_nodes_of_all_shards() {
    let shards = unit(6);
    let mut ends = ends(&shards);
    let lengths = [0, 8, 33, 1920, 70_001, SIZE];
    for source in 0..ends.len() {
        for target in 0..ends.len() {
            let seed = (source * 16 + target) as u64;
            let len = lengths[(source + target) % lengths.len()];
            let target_at = to(&ends[target]);
            let (data, mut seen) = (pattern(seed, len), vec![0; len]);
            ends[source].buffer.write(0, &data);
            let put = Order::put(target_at, at(SIZE), at(0), len as u32);
            assert_eq!(ends[source].run(&put), Rcode::SUCCESS);
            ends[target].buffer.read(SIZE, &mut seen);
            assert!(seen == data, "Put of {len} bytes from {source} to {target}");

            ends[source].buffer.write(0, &vec![0; len]);
            let get = Order::get(target_at, at(SIZE), at(0), len as u32);
            assert_eq!(ends[source].run(&get), Rcode::SUCCESS);
            ends[source].buffer.read(0, &mut seen);
            assert!(seen == data, "Get of {len} bytes by {source} from {target}");

            if description().atomics {
                ends[target].buffer.store_u64(SIZE, seed, Ordering::SeqCst);
                let add = Order::armw8(target_at, ArmwOp::Add, at(SIZE), 1000);
                assert_eq!(ends[source].run(&add), Rcode::SUCCESS);
                let sum = ends[target].buffer.load_u64(SIZE, Ordering::SeqCst);
                assert_eq!(sum, seed + 1000);
            }
        }
    }
    let (mut sent, mut received) = (0, 0);
    for machine in shards.machines() {
        for shard in (0..6).map(ShardId) {
            let counters = machine.network().cables(shard).unwrap();
            (sent, received) = (sent + counters.sent, received + counters.received);
            assert_eq!(counters.refused, 0);
        }
    }
    assert!(sent > 0 && sent == received, "{sent} {received}");
}

/// A queue in session mode takes its command when a Put of another shard's node lets it.
#[test]
fn sessions_go_on_by_puts_of_other_shards() {
    if !description().session_mode {
        return;
    }
    let shards = unit(2);
    let mut ends = ends(&shards);
    let (own, far) = (to(&ends[0]), to(&ends[11]));
    let session = CqConfig { mode: CqsMode(0).with_session(true), ..config(0, 1) };
    let here = |offset| StagOffset::new(CqId::ALL[1], 0, offset);
    let range = [MemoryRange::of(&*ends[0].buffer)];
    let mut cq = Cq::open(&ends[0].device, &session).unwrap();
    cq.register(&range, PageSize::Size4K, Access::ReadWrite, Some(0)).unwrap();
    ends[0].buffer.write(0, &[7; 8]);
    cq.post_and_ring(&Order::put(far, at(SIZE), here(0), 8), 0).unwrap();
    // More than would have brought about what the session holds back.
    for _ in 0..20 {
        assert_eq!(ends[11].run(&Order::put(own, at(SIZE), at(0), 8)), Rcode::SUCCESS);
    }
    assert!(cq.poll_tcq().is_none());
    let steps = Order::put(own, here(SIZE as u64), at(8), 8).sps(2);
    assert_eq!(ends[11].run(&steps), Rcode::SUCCESS);
    let start = Instant::now();
    while cq.poll_tcq().is_none() {
        assert!(start.elapsed() < PATIENCE, "the session does not go on");
        std::thread::yield_now();
    }
    let mut seen = [0; 8];
    ends[11].buffer.read(SIZE, &mut seen);
    assert_eq!(seen, [7; 8]);
}

#[test]
fn refusals_have_the_codes_of_one_machine() {
    let run = |shards| {
        let mut ends = ends(&unit(shards));
        let own = to(&ends[0]);
        let far = to(&ends[11]);
        let beyond = Order::put(far, StagOffset::new(CqId::ALL[0], 7, 0), at(0), 8);
        let closed = Order::put(far, StagOffset::new(CqId::ALL[1], 0, 0), at(0), 8);
        let nowhere = Target::new(Coords::new(9, 0, 0, 0, 0, 0), TniId::ALL[0]);
        let nowhere = Order::put(nowhere, at(0), at(0), 8);
        let here = Order::put(own, StagOffset::new(CqId::ALL[0], 7, 0), at(0), 8);
        [beyond, closed, nowhere, here].map(|order| ends[0].run(&order))
    };
    assert_eq!(run(4), run(1));
}

#[test]
fn system_packets_go_over_cables() {
    let ends = ends(&unit(4));
    let open = |end: &End| Packets::open(&end.device, &PacketConfig::new(TniId::ALL[0])).unwrap();
    let mut queues: Vec<_> = ends.iter().map(open).collect();
    for source in 0..ends.len() {
        for target in 0..ends.len() {
            let (from, dst) = (ends[source].device.coords(), ends[target].device.coords());
            let way = PacketTarget::straight(from, dst, TniId::ALL[0]);
            let data = pattern((source * 16 + target) as u64, 100 + source);
            queues[source].send(&way, &[&data], 0).unwrap();
            let (start, mut buf) = (Instant::now(), [0; 2000]);
            let received = loop {
                if let Some(received) = queues[target].recv(&mut buf) {
                    break received;
                }
                assert!(start.elapsed() < PATIENCE, "from {source} to {target}");
                std::thread::yield_now();
            };
            assert_eq!(buf[..received.len], data);
            while queues[source].poll_sent().is_none() {
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn cut_off_shard_ends_commands() {
    let shards = unit(2);
    let mut ends = ends(&shards);
    let far = to(&ends[11]);
    let put = Order::put(far, at(0), at(0), 8);
    assert_eq!(ends[0].run(&put), Rcode::SUCCESS);
    // No shard has noticed yet: the cable accepts no more packets, which is like a link that is
    // down.
    shards.cut_off();
    assert_eq!(ends[0].run(&put), Rcode::LINK_DOWN);
    let [first, _] = shards.machines() else { unreachable!("two shards") };
    first.network().shard_went(ShardId(1));
    assert_eq!(ends[0].run(&put), Rcode::LINK_DOWN);
    // The links to the shard, and those within it.
    let down = first.fabric().links().filter(|(_, up)| !up).count();
    assert_eq!(down, 6 + 9);
    first.network().shard_came(ShardId(1));
    assert_eq!(first.fabric().links().filter(|(_, up)| !up).count(), 0);
}

#[test]
fn impossible_messages_are_dropped() {
    let shards = unit(2);
    let network = shards.machines()[0].network();
    let peer = ShardId(1);
    for message in [&[][..], &[0], &[9, 1, 2], &[1], &[1; 300], &[2], &[2, 0], &[2; 300]] {
        assert!(network.receive(peer, message).is_err());
    }
    assert_eq!(network.receive(peer, &[7]), Err(Refused::Kind));
    assert_eq!(network.cables(peer).unwrap().refused, 9);
    let mut ends = ends(&shards);
    let far = to(&ends[11]);
    assert_eq!(ends[0].run(&Order::put(far, at(0), at(0), 8)), Rcode::SUCCESS);
}
