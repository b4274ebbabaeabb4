//! Resets, bus mastering being turned off, and queues being closed while engines and other nodes
//! are at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tofu_abi::irq::CqsIrqs;
use tofu_abi::pci::REGISTER_BAR;
use tofu_abi::queue::MrqId;
use tofu_abi::regs::{CqsReg, Register};
use tofu_abi::table::PageSize;
use tofu_abi::{CqId, Rcode, StagOffset, TniId};
use tofu_driver::{Access, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, Platform, Target};
use tofu_fabric::Shape;
use tofu_inproc::{Buffer, InProcess};
use tofu_machine::{Machine, MachineConfig, Node};
use tofu_pci::{PciFunction, regs};
use tofu_tests::pattern;

/// Longer than anything here takes, in nanoseconds.
const LONG: u64 = 20_000_000_000;
const SIZE: usize = 256 << 10;

/// Starts a node as firmware and the driver's probe do.
fn start(node: &Node, platform: &InProcess) -> Device<InProcess> {
    let command = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
    node.config_write(regs::COMMAND, &command.to_le_bytes());
    let device = Device::probe(platform.clone()).unwrap();
    device.enable_tnis().unwrap();
    device
}

fn set_bus_master(node: &Node, on: bool) {
    let command = regs::COMMAND_MEMORY | if on { regs::COMMAND_BUS_MASTER } else { 0 };
    node.config_write(regs::COMMAND, &command.to_le_bytes());
}

fn open(device: &Device<InProcess>, buffer: &Arc<Buffer>) -> Cq<InProcess> {
    // Completions are polled: none of these commands requests an interrupt.
    let config = CqConfig::new(TniId::ALL[0], CqId::ALL[0]);
    let config = CqConfig { interrupts: CqsIrqs::NONE, ..config };
    let mut cq = Cq::open(device, &config).unwrap();
    let range = [MemoryRange::of(&**buffer)];
    cq.register(&range, PageSize::Size4K, Access::ReadWrite, Some(0)).unwrap();
    cq
}

fn at(offset: u64) -> StagOffset {
    StagOffset::new(CqId::ALL[0], 0, offset)
}

/// Runs a command, and returns how it ended.
fn run(cq: &mut Cq<InProcess>, order: &Order) -> Rcode {
    cq.post_and_ring(order, 0).unwrap();
    let done = cq.wait_tcq(LONG).expect("every command ends").rcode;
    if !done.is_success() {
        while cq.poll_mrq().is_some() {}
        return done;
    }
    loop {
        let notice = cq.wait_mrq(LONG).expect("every command has a notice");
        if notice.id().is_some_and(MrqId::ends_own_command) {
            return notice.word0().rcode();
        }
    }
}

fn is_quiet(buffer: &Buffer) -> bool {
    buffer.fill(0);
    (0..3).all(|_| {
        std::thread::yield_now();
        (0..SIZE / 8).step_by(509).all(|i| buffer.load_u64(i * 8, Ordering::Relaxed) == 0)
    })
}

/// Sends to a disturbed node and to another one, whose memory is `theirs`, until it is stopped.
fn disturbed(
    cq: &mut Cq<InProcess>,
    [own, theirs]: [&Buffer; 2],
    [victim, bystander]: [Target; 2],
    stop: &AtomicBool,
) {
    let mut n = 0u64;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let data = pattern(n, SIZE);
        own.write(0, &data);
        let order = Order::put(victim, at(0), at(0), SIZE as u32).remote_notice();
        assert_ne!(run(cq, &order), Rcode::TIMEOUT, "refused, but not unanswered");
        let order = Order::get(victim, at(0), at(0), SIZE as u32).remote_notice();
        assert_ne!(run(cq, &order), Rcode::TIMEOUT, "refused, but not unanswered");
        // What happens to one neighbour does not affect the other.
        own.write(0, &data);
        let order = Order::put(bystander, at(0), at(0), SIZE as u32);
        assert_eq!(run(cq, &order), Rcode::SUCCESS);
        let mut found = vec![0; SIZE];
        theirs.read(0, &mut found);
        assert!(found == data, "round {n}");
    }
}

/// Node 1 is disturbed in one way after another while node 0 sends to it and to node 2, and node 1
/// sends itself.
fn upset(rounds: u32, what: impl Fn(u32, &Node, &Device<InProcess>) + Sync) {
    let shape: Shape = "1x1x1x2x3x1".parse().unwrap();
    let config = MachineConfig { engines: 2, ..tofu_tests::machine(shape) };
    let machine = Arc::new(Machine::new(config).unwrap());
    let coords: Vec<_> = shape.iter().take(3).collect();
    let platforms: Vec<_> = coords
        .iter()
        .map(|&coords| InProcess::attach(&machine, coords, 8 << 20).unwrap())
        .collect();
    let nodes: Vec<_> = coords.iter().map(|&coords| machine.node(coords).unwrap()).collect();
    let buffers: Vec<_> = platforms
        .iter()
        .map(|platform| Arc::new(platform.alloc_dma(SIZE, 4096).unwrap()))
        .collect();
    machine.start().unwrap();
    let [victim, bystander] = [1, 2].map(|i| Target::new(coords[i], TniId::ALL[0]));
    let stop = AtomicBool::new(false);
    let devices: Vec<_> = nodes.iter().zip(&platforms).map(|(n, p)| start(n, p)).collect();
    std::thread::scope(|s| {
        let sender = s.spawn(|| {
            let mut cq = open(&devices[0], &buffers[0]);
            let _target = open(&devices[2], &buffers[2]);
            disturbed(&mut cq, [&buffers[0], &buffers[2]], [victim, bystander], &stop);
        });
        for round in 0..rounds {
            let device = start(nodes[1], &platforms[1]);
            let mut cq = open(&device, &buffers[1]);
            for n in 0..20 {
                let order = Order::get(bystander, at(0), at(0), SIZE as u32).edata(n);
                cq.post(&order, n.into()).unwrap();
            }
            cq.doorbell();
            for _ in 0..round % 4 {
                std::thread::yield_now();
            }
            what(round, nodes[1], &device);
            assert!(is_quiet(&buffers[1]), "memory was written in round {round}");
            set_bus_master(nodes[1], true);
            let _ = cq.close();
        }
        stop.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        // The node is as good as new.
        let device = start(nodes[1], &platforms[1]);
        let mut cq = open(&device, &buffers[1]);
        let order = Order::get(bystander, at(0), at(0), 8);
        assert_ne!(run(&mut cq, &order), Rcode::TIMEOUT);
    });
}

#[test]
fn reset_node_writes_nothing_more() {
    upset(60, |_, node, _| node.reset());
}

#[test]
fn node_without_bus_master_writes_nothing() {
    upset(60, |_, node, _| set_bus_master(node, false));
}

#[test]
fn two_processors_toggle_a_queue_at_once() {
    upset(30, |round, node, _| {
        let enable =
            Register::Cqs { tni: TniId::ALL[0], cq: CqId::ALL[0], reg: CqsReg::Enable }.offset();
        let write = |on: u64| node.bar_write(REGISTER_BAR, enable, &on.to_le_bytes());
        std::thread::scope(|s| {
            for thread in 0..2 {
                s.spawn(move || {
                    for n in 0..20 {
                        write((n + thread + u64::from(round)) & 1);
                    }
                });
            }
        });
        write(0);
    });
}
