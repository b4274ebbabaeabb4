//! A machine with its own threads on modelled links with many errors. All commands that several
//! queues at both ends post concurrently are carried out exactly once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tofu_abi::desc::ArmwOp;
use tofu_abi::queue::MrqId;
use tofu_abi::{CqId, Rcode, StagOffset, TniId};
use tofu_driver::{Cq, CqConfig, Device, DmaBuffer, Order, Platform, Target};
use tofu_fabric::{LinkErrors, NodeId, Shape};
use tofu_inproc::{Buffer, InProcess};
use tofu_links::{ErrorRate, MAX_LANES, Parameters, Slicing};
use tofu_machine::capture::{CaptureConfig, PacketKind, RecordHeader};
use tofu_machine::{Links, Machine, MachineConfig};
use tofu_tests::{description, generation, pattern};

const SHAPE: &str = "1x1x1x2x1x1";
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(100);
const PLACE: usize = 16 << 10;
const COMMANDS: usize = 16;
/// The areas: data to put, data that was put, data that was got, words, and data to get.
const AREAS: usize = 5;
const SIZE: usize = AREAS * COMMANDS * PLACE;

struct End {
    cq: Cq<InProcess>,
    buffer: Arc<Buffer>,
    to: Target,
    its: Arc<Buffer>,
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn place(area: usize, command: usize) -> usize {
    (area * COMMANDS + command) * PLACE
}

impl End {
    fn at(&self, offset: usize) -> StagOffset {
        StagOffset::new(self.cq.cq(), 0, offset as u64)
    }

    /// Some concurrent commands; all of them are carried out.
    fn round(&mut self, round: u64, state: &mut u64) {
        let mut posted = Vec::new();
        for n in 0..1 + random(state) as usize % COMMANDS {
            let len = match random(state) % 4 {
                0 => random(state) as usize % 64,
                1 => 1024,
                _ => random(state) as usize % PLACE,
            };
            let data = pattern(round << 8 | n as u64, PLACE);
            let (what, from) = (random(state) % 4, self.at(place(0, n)));
            let order = match what {
                0 if description().atomics => {
                    self.its.store_u64(place(3, n), round, Ordering::SeqCst);
                    Order::armw8(self.to, ArmwOp::Add, self.at(place(3, n)), 1)
                }
                1 => {
                    self.its.write(place(4, n), &data);
                    Order::get(self.to, self.at(place(4, n)), self.at(place(2, n)), len as u32)
                }
                _ => {
                    self.buffer.write(place(0, n), &data);
                    let put = Order::put(self.to, self.at(place(1, n)), from, len as u32);
                    if random(state).is_multiple_of(2) { put.strong_order() } else { put }
                }
            };
            self.cq.post_and_ring(&order, n as u64).unwrap();
            posted.push((what, len, data));
        }
        let (mut done, mut told) = (0, 0);
        let start = Instant::now();
        while done < posted.len() || told < posted.len() {
            while let Some(completion) = self.cq.poll_tcq() {
                assert_eq!(completion.rcode, Rcode::SUCCESS);
                done += 1;
            }
            while let Some(notice) = self.cq.poll_mrq() {
                if notice.id().is_some_and(MrqId::ends_own_command) {
                    assert_eq!(notice.word0().rcode(), Rcode::SUCCESS);
                    told += 1;
                }
            }
            let late = start.elapsed() > PATIENCE;
            assert!(!late, "{done} and {told} of {} commands in round {round}", posted.len());
            self.cq.device().platform().relax();
        }
        for (n, (what, len, data)) in posted.iter().enumerate() {
            let mut seen = vec![0; *len];
            match what {
                0 if description().atomics => {
                    assert_eq!(self.its.load_u64(place(3, n), Ordering::SeqCst), round + 1);
                    continue;
                }
                1 => self.buffer.read(place(2, n), &mut seen),
                _ => self.its.read(place(1, n), &mut seen),
            }
            assert!(seen == data[..*len], "round {round}: command {n} of {len} bytes");
        }
    }
}

fn rate(rate: f64) -> ErrorRate {
    ErrorRate::new(rate).unwrap()
}

/// `queues` queues at each end of the link between two nodes, in pairs.
fn ends(machine: &Arc<Machine>, queues: usize) -> Vec<End> {
    let shape = machine.config().shape;
    let devices: Vec<_> = shape
        .iter()
        .map(|coords| {
            let platform = InProcess::attach(machine, coords, queues * SIZE + (8 << 20)).unwrap();
            let device = Device::probe(platform).unwrap();
            device.enable_tnis().unwrap();
            device
        })
        .collect();
    let open = |device: &Device<InProcess>, n: usize| {
        let tnis = usize::from(description().tnis);
        let config = CqConfig::new(TniId::ALL[n % tnis], CqId::ALL[n / tnis]);
        tofu_tests::open(device, &config, SIZE)
    };
    let mut ends = Vec::new();
    for n in 0..queues {
        let [(a, near), (b, far)] = [&devices[0], &devices[1]].map(|device| open(device, n));
        let [to_a, to_b] =
            [(&devices[0], &a), (&devices[1], &b)].map(|(d, cq)| Target::new(d.coords(), cq.tni()));
        let (its_a, its_b) = (Arc::clone(&near), Arc::clone(&far));
        ends.push(End { cq: a, buffer: near, to: to_b, its: its_b });
        ends.push(End { cq: b, buffer: far, to: to_a, its: its_a });
    }
    ends
}

/// Several queues at both ends of a link, one lane of which is dead if the link works without it.
/// The other lane has errors, and DLLPs are lost.
fn run(seed: u64) {
    let shape: Shape = SHAPE.parse().unwrap();
    let config = MachineConfig {
        engines: 2,
        links: Links::Modelled,
        ..MachineConfig::of(generation(), shape)
    };
    let machine = Arc::new(Machine::new(config).unwrap());
    let mut ends = ends(&machine, 4);
    let mut rates = [ErrorRate::NEVER; MAX_LANES];
    rates[1] = rate(1e-5);
    let all_needed = Parameters::of(generation()).slicing == Slicing::Striped;
    let errors = LinkErrors { rates, dead: !u8::from(all_needed) & 1, dllp_loss: rate(0.01) };
    let first = shape.iter().next().unwrap();
    let (port, _) = shape.neighbors(first).next().unwrap();
    machine.fabric().set_link_errors(first, port, &errors).unwrap();
    machine.start().unwrap();
    std::thread::scope(|scope| {
        for (n, end) in ends.iter_mut().enumerate() {
            scope.spawn(move || {
                let mut state = seed << 8 | n as u64;
                for round in 1..=20 {
                    end.round(round, &mut state);
                }
            });
        }
    });
    machine.stop();
}

#[test]
fn link_faults_complete_everything_once() {
    let long = std::env::var_os("TOFU_LONG").is_some();
    (0..if long { 300 } else { 2 }).for_each(run);
}

/// The clock for command timeouts waits for the threads that drive the links, for any delay of
/// these by the host.
#[test]
fn busy_host_times_no_command_out() {
    let shape: Shape = SHAPE.parse().unwrap();
    let timeout_ns = 100_000_000;
    let config = MachineConfig {
        timeout_ns,
        links: Links::Modelled,
        ..MachineConfig::of(generation(), shape)
    };
    // Without threads: the links advance when the test says so.
    let machine = Arc::new(Machine::new(config).unwrap());
    let mut ends = ends(&machine, 1);
    let [here, _] = &mut ends[..] else { unreachable!("two nodes") };
    let put = Order::put(here.to, here.at(0), here.at(0), 100_000);
    for n in 0..2 {
        here.cq.post_and_ring(&put, n).unwrap();
        for _ in 0..4 {
            std::thread::sleep(Duration::from_nanos(2 * timeout_ns));
            machine.run_turn();
        }
        while machine.run_turn() {}
        assert_eq!(here.cq.poll_tcq().map(|done| done.rcode), Some(Rcode::SUCCESS));
        let notice = here.cq.poll_mrq().unwrap();
        assert_eq!(notice.word0().rcode(), Rcode::SUCCESS);
    }
}

/// Each frame of an answer has the position of its data in the message, regardless of the padding
/// that was added on the link.
#[test]
fn padded_answers_frames_locate_their_data() {
    let shape: Shape = SHAPE.parse().unwrap();
    let config = MachineConfig { links: Links::Modelled, ..MachineConfig::of(generation(), shape) };
    let machine = Arc::new(Machine::new(config).unwrap());
    let mut ends = ends(&machine, 1);
    let [here, there] = &mut ends[..] else { unreachable!("two nodes") };
    there.buffer.write(0, &pattern(1, 5000));
    let capture = machine.network().capture(CaptureConfig::new(NodeId(0)));
    let get = Order::get(here.to, here.at(0), here.at(0), 5000).mtu(1000).padding();
    here.cq.post_and_ring(&get, 0).unwrap();
    while machine.run_turn() {}
    assert_eq!(here.cq.poll_tcq().map(|done| done.rcode), Some(Rcode::SUCCESS));
    let records = std::iter::from_fn(|| capture.next(Duration::ZERO));
    let parts: Vec<_> = records
        .filter_map(|record| RecordHeader::parse(&record.bytes))
        .filter(|header| header.kind == PacketKind::GetAnswer && header.link.is_some())
        .filter_map(|header| header.message.map(|part| (part.position, part.length)))
        .collect();
    assert_eq!(parts, [0, 1000, 2000, 3000, 4000].map(|position| (position, 1000)));
}
