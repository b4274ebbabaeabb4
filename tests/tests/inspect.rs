//! The live state of devices as a tree: its contents, and their consistency under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tofu_abi::frame::SYSTEM_PAYLOAD_MAX;
use tofu_abi::{CqId, Rcode, StagOffset, TniId};
use tofu_driver::{Cq, CqConfig, Device, Order, PacketConfig, PacketTarget, Packets, Target};
use tofu_fabric::Shape;
use tofu_inproc::InProcess;
use tofu_inspect::Value;
use tofu_machine::{Machine, MachineConfig};
use tofu_tests::seen::{at, number, parts, see, text};
use tofu_tests::{Cluster, tni};

/// Invariants of a queue's tree at any moment.
fn assert_fits(queue: &Value) {
    if at(queue, "completions") == &Value::None {
        return;
    }
    let next = number(queue, "completions/next_sequence");
    let window = parts(at(queue, "completions/window"));
    assert!(window.len() as u64 + number(queue, "completions/free") <= 64);
    let mut sequences: Vec<_> =
        window.iter().map(|(_, command)| number(command, "sequence")).collect();
    assert!(sequences.iter().all(|sequence| *sequence < next), "{sequences:?} before {next}");
    sequences.sort_unstable();
    sequences.dedup();
    assert_eq!(sequences.len(), window.len(), "each command once");
    for ring in ["transmit/ring", "completions/mrq"] {
        if ring.starts_with("transmit") && at(queue, "transmit") == &Value::None {
            continue;
        }
        let (slot, count) = (number(queue, &format!("{ring}/slot")), format!("{ring}/count"));
        assert_eq!(slot, number(queue, &count) % number(queue, &format!("{ring}/entries")));
    }
}

#[test]
fn queue_shows_waiting_and_running_commands() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = cluster.endpoint(1, 0, 0);
    let queue = || see(cluster.icc(0), "tni/0/cq/0");
    assert_eq!(parts(at(&queue(), "waiting")), []);
    // The registered memory, according to the tables in memory.
    let of_buffer = see(cluster.icc(0), "tni/0/cq/0/stags/0");
    assert_eq!(at(&of_buffer, "readonly"), &Value::Flag(false), "{of_buffer:?}");
    let block = number(&of_buffer, "block");
    let block = see(cluster.icc(0), &format!("tni/0/cq/0/blocks/{block}"));
    let bytes = number(&block, "page_size") * number(&block, "pages");
    let length = u64::from_str_radix(&text(at(&of_buffer, "length"))[2..], 16).unwrap();
    assert!(length > 0 && length <= bytes, "{of_buffer:?} {block:?}");
    // Requests by name; the gates are unused.
    let masked = see(cluster.icc(0), "tni/0/interrupts/masked");
    assert!(!text(&masked).contains(['{', '"']), "{masked:?}");
    assert_eq!(parts(&see(cluster.icc(0), "tni/0/channel")), []);
    // With the interface disabled, descriptors stay where they are.
    let device = cluster.device(0);
    device.tni(tni(0)).disable().unwrap();
    for n in 0..3 {
        let order = Order::put(b.target(), b.at(0x40), a.at(0x100 * n), 8);
        a.cq.post_and_ring(&order, n).unwrap();
    }
    let waiting = queue();
    let waiting = parts(at(&waiting, "waiting"));
    assert_eq!(waiting.len(), 3);
    let said = text(&waiting[1].1);
    assert!(said.starts_with("Put of 8 bytes to node (0,0,0,1,0,0) TNI 0 CQ 0"), "{said}");
    assert!(said.ends_with("own STag 0x0 offset 0x100"), "{said}");
    // Without answers, they stay in progress.
    cluster.lose_answers(true);
    device.tni(tni(0)).enable().unwrap();
    a.cq.doorbell();
    cluster.settle();
    let under_way = queue();
    assert_fits(&under_way);
    assert_eq!(parts(at(&under_way, "waiting")), []);
    let window = parts(at(&under_way, "completions/window"));
    assert_eq!(window.len(), 3);
    assert!(text(at(&window[0].1, "message")).starts_with("Put of 8 bytes"));
    assert_eq!(number(&under_way, "transmit/ring/count"), 3);
    cluster.lose_answers(false);
    cluster.pass(1_000_000_000);
    for _ in 0..3 {
        assert_eq!(a.complete().rcode, Rcode::SUCCESS, "it was sent");
    }
    assert_eq!(parts(at(&queue(), "completions/window")), []);
    assert_eq!(number(&see(cluster.icc(0), "tni/0"), "failed_commands/lost"), 3);
    // A queue that was never opened exists, and is not in use.
    let other = see(cluster.icc(0), "tni/0/cq/1");
    assert_eq!(at(&other, "enabled"), &Value::Flag(false));
    assert_eq!(parts(&other).len(), 2);
}

#[test]
fn states_under_load_fit_together() {
    const COMMANDS: usize = 3000;
    let shape: Shape = "1x1x1x2x1x1".parse().unwrap();
    let config = MachineConfig { engines: 2, ..tofu_tests::machine(shape) };
    let machine = Arc::new(Machine::new(config).unwrap());
    let devices: Vec<_> = shape
        .iter()
        .map(|coords| {
            let platform = InProcess::attach(&machine, coords, 4 << 20).unwrap();
            let device = Device::probe(platform).unwrap();
            device.tni(TniId::ALL[0]).enable().unwrap();
            device
        })
        .collect();
    machine.start().unwrap();
    let nodes: Vec<_> = shape.iter().map(|at| machine.node(at).unwrap().clone()).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let mut ends: Vec<_> = devices
            .iter()
            .map(|device| {
                let config = CqConfig::new(TniId::ALL[0], CqId::ALL[0]);
                tofu_tests::open(device, &config, 1 << 16)
            })
            .collect();
        let looks = s.spawn(|| {
            let mut looks = 0;
            while !done.load(Ordering::Relaxed) {
                for node in &nodes {
                    assert_fits(&see(&**node, "device/tni/0/cq/0"));
                }
                see(&*nodes[looks % 2], "");
                looks += 1;
            }
            looks
        });
        let (left, right) = ends.split_at_mut(1);
        std::thread::scope(|s| {
            for (end, to) in [(&mut left[0], 1), (&mut right[0], 0)] {
                let to = Target::new(devices[to].coords(), TniId::ALL[0]);
                s.spawn(move || drive(&mut end.0, to, COMMANDS));
            }
        });
        done.store(true, Ordering::Relaxed);
        assert!(looks.join().unwrap() > 0);
        for node in &nodes {
            let queue = see(&**node, "device/tni/0/cq/0");
            assert_fits(&queue);
            assert_eq!(parts(at(&queue, "completions/window")), []);
            assert_eq!(number(&queue, "transmit/ring/count"), COMMANDS as u64);
            let sequence = number(&queue, "completions/next_sequence");
            assert_eq!(sequence, COMMANDS as u64 + 1);
        }
    });
}

/// Entries that a ring of an interface has seen, which must agree with its current slot; none if it
/// is not in use.
fn entries(packets: &Value, ring: &str) -> u64 {
    let index = |part: &str| number(packets, &format!("{ring}/index/{part}"));
    assert_eq!(index("slot"), index("count") % index("entries"), "{ring}");
    index("count")
}

#[test]
fn packet_queues_under_load_fit_together() {
    const PACKETS: u64 = 3000;
    /// Far fewer than the receiver has buffers, so that none is lost.
    const UNDER_WAY: u64 = 64;
    let shape: Shape = "1x1x1x2x1x1".parse().unwrap();
    let config = MachineConfig { engines: 2, ..tofu_tests::machine(shape) };
    let machine = Arc::new(Machine::new(config).unwrap());
    let open = |coords| {
        let platform = InProcess::attach(&machine, coords, 4 << 20).unwrap();
        let device = Device::probe(platform).unwrap();
        device.tni(TniId::ALL[0]).enable().unwrap();
        Packets::open(&device, &PacketConfig::new(TniId::ALL[0])).unwrap()
    };
    let nodes: Vec<_> = shape.iter().collect();
    let (mut sender, mut receiver) = (open(nodes[0]), open(nodes[1]));
    machine.start().unwrap();
    let node = machine.node(nodes[1]).unwrap().clone();
    let queues = || see(&*node, "device/tni/0/packets");
    let target = PacketTarget::straight(nodes[0], nodes[1], TniId::ALL[0]);
    let taken = AtomicU64::new(0);
    let begin = entries(&queues(), "receive");
    std::thread::scope(|s| {
        let looks = s.spawn(|| {
            let (mut looks, mut last) = (0, begin);
            while taken.load(Ordering::Acquire) < PACKETS {
                let before = taken.load(Ordering::Acquire);
                let queues = queues();
                let written = entries(&queues, "receive");
                assert!((last..=begin + PACKETS).contains(&written), "{last}, {written}");
                assert!(written >= begin + before, "{before} were taken, {written} written");
                assert!(entries(&queues, "buffers") >= written, "each was written to a buffer");
                (looks, last) = (looks + 1, written);
            }
            looks
        });
        s.spawn(|| {
            let mut sent = 0;
            while sent < PACKETS {
                if sent - taken.load(Ordering::Acquire) < UNDER_WAY {
                    sender.send(&target, &[&sent.to_le_bytes()], 0).unwrap();
                    sent += 1;
                }
                while let Some(sent) = sender.poll_sent() {
                    assert!(sent.is_success());
                }
                std::thread::yield_now();
            }
        });
        let mut buf = [0; SYSTEM_PAYLOAD_MAX];
        while taken.load(Ordering::Acquire) < PACKETS {
            match receiver.recv(&mut buf) {
                Some(received) => {
                    assert_eq!(buf[..received.len], taken.load(Ordering::Acquire).to_le_bytes());
                    taken.fetch_add(1, Ordering::AcqRel);
                }
                None => std::thread::yield_now(),
            }
        }
        assert!(looks.join().unwrap() > 0);
    });
    assert_eq!(entries(&queues(), "receive"), begin + PACKETS);
}

/// Puts that all succeed.
fn drive(cq: &mut Cq<InProcess>, to: Target, commands: usize) {
    let at = |offset| StagOffset::new(CqId::ALL[0], 0, offset);
    let (mut posted, mut complete) = (0, 0);
    while complete < commands {
        while posted < commands && posted - complete < 32 {
            let order = Order::put(to, at(0), at(0x8000), 1000);
            cq.post_and_ring(&order, posted as u64).unwrap();
            posted += 1;
        }
        while let Some(completion) = cq.poll_tcq() {
            assert_eq!(completion.rcode, Rcode::SUCCESS);
            complete += 1;
        }
        while cq.poll_mrq().is_some() {}
        std::thread::yield_now();
    }
}

#[test]
fn failure_has_its_reason_at_the_fault() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = cluster.endpoint(1, 0, 0);
    let last = |rank: u32, list: &str| {
        let all = see(cluster.icc(rank), list);
        let (_, last) = parts(&all).last().unwrap_or_else(|| panic!("nothing in {list}")).clone();
        ["command", "rcode", "why"].map(|part| text(at(&last, part)).to_owned())
    };
    // An STag of this end.
    let nowhere = StagOffset::new(CqId::ALL[0], 77, 0);
    assert_eq!(a.run(&Order::put(b.target(), b.at(0), nowhere, 8)).rcode, Rcode::STAG_DISABLED);
    let [command, rcode, why] = last(0, "failed");
    assert!(command.starts_with("TNI 0 CQ 0: Put of 8 bytes to node (0,0,0,1,0,0)"), "{command}");
    assert!(rcode.starts_with("0x13 STAG_DISABLED"), "{rcode}");
    assert!(why.starts_with("steering entry 77 at 0x"), "{why}");
    assert!(why.ends_with("is 0x0: enable (bit 7) is 0"), "{why}");
    // An error at the other end: each end reports what it knows.
    let order = Order::put(b.target(), nowhere, a.at(0), 8);
    assert_eq!(a.end_of(&order), Rcode::STAG_DISABLED.remote());
    let [_, rcode, why] = last(0, "failed");
    assert!(rcode.starts_with("0x33 STAG_DISABLED remote"), "{rcode}");
    assert!(why.contains("node (0,0,0,1,0,0) has refused it"), "{why}");
    let [command, _, why] = last(1, "refused");
    assert!(command.contains("Put of 8 bytes from node (0,0,0,0,0,0) TNI 0 CQ 0"), "{command}");
    assert!(why.contains("steering entry 77"), "{why}");
    // A queue that is not open.
    let order = Order::put(b.target(), StagOffset::new(CqId::ALL[1], 0, 0), a.at(0), 8);
    assert_eq!(a.end_of(&order), Rcode::CQ_DISABLED);
    assert_eq!(last(1, "refused")[2], "ENABLE of the control queue is 0");
    // A link that is down.
    cluster.set_link(0, 0, false);
    let order = Order::put(b.target(), b.at(0), a.at(0), 8);
    assert_eq!(a.end_of(&order), Rcode::LINK_DOWN);
    assert!(last(0, "failed")[2].contains("a link on the way to node (0,0,0,1,0,0) is down"));
}

#[test]
fn failing_commands_fill_nothing() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = cluster.endpoint(1, 0, 0);
    for _ in 0..100 {
        let nowhere = StagOffset::new(CqId::ALL[0], 77, 0);
        let order = Order::put(b.target(), b.at(0), nowhere, 8);
        assert_eq!(a.run(&order).rcode, Rcode::STAG_DISABLED);
        a.notices();
    }
    assert!((1..=16).contains(&parts(&see(cluster.icc(0), "failed")).len()));
}

#[test]
fn manual_lists_every_code() {
    let page = include_str!("../../docs/src/user/failing-commands.md");
    for (code, name, _) in Rcode::ALL.iter().filter(|(code, ..)| !code.is_success()) {
        assert!(page.contains(&format!("{:#04x} `{name}`", code.raw())), "{code:?}");
    }
}
