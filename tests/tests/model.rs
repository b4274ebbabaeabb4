//! Random sequences of commands against a model in plain memory.

use std::collections::HashMap;

use proptest::prelude::*;
use tofu_abi::Path;
use tofu_abi::Rcode;
use tofu_abi::desc::source_type::DIRECT;
use tofu_abi::desc::{ArmwOp, MAX_MTU};
use tofu_abi::queue::MrqId;
use tofu_driver::{CqConfig, DmaBuffer, Order};
use tofu_tests::{Cluster, Endpoint, description, pattern};

const NODES: u32 = 4;
/// Bytes of a node's memory that the commands use.
const MEMORY: usize = 64 << 10;

#[derive(Clone, Copy, Debug)]
enum What {
    Put,
    Get,
    Piggyback,
    Armw4(ArmwOp, u32),
    Armw8(ArmwOp, u64),
    Cswap4(u32, u32),
    Cswap8(u64, u64),
    Nop,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    what: What,
    from: usize,
    to: usize,
    /// Offsets and length before they are brought into range.
    remote: usize,
    local: usize,
    len: usize,
    mtu: u32,
    path: (u8, u8, u8),
    remote_notice: bool,
    packet_response: bool,
    padding: bool,
    strong: bool,
    interrupt: bool,
    direct: bool,
    gap: u8,
    edata: u16,
}

fn what() -> impl Strategy<Value = What> {
    let op =
        prop::sample::select(vec![ArmwOp::Swap, ArmwOp::Add, ArmwOp::Xor, ArmwOp::And, ArmwOp::Or]);
    // Small values, so that compare-and-swap sometimes finds the value that it compares with.
    prop_oneof![
        3 => Just(What::Put),
        3 => Just(What::Get),
        2 => Just(What::Piggyback),
        1 => (op.clone(), any::<u32>()).prop_map(|(op, x)| What::Armw4(op, x)),
        1 => (op, any::<u64>()).prop_map(|(op, x)| What::Armw8(op, x)),
        1 => (0..3u32, 0..3u32).prop_map(|(old, new)| What::Cswap4(old, new)),
        1 => (0..3u64, 0..3u64).prop_map(|(old, new)| What::Cswap8(old, new)),
        1 => Just(What::Nop),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let places = (0..NODES as usize, 0..NODES as usize, 0..MEMORY, 0..MEMORY);
    let len = prop_oneof![0..64usize, 0..5000usize, 0..40_000usize];
    let mtu = prop_oneof![Just(0), 1..=MAX_MTU / 8].prop_map(|n| n * 8);
    let path = (0..2u8, 0..1u8, 0..2u8);
    let flags = any::<[bool; 6]>();
    (what(), places, len, mtu, path, flags, any::<u8>(), any::<u16>()).prop_map(
        |(what, (from, to, remote, local), len, mtu, path, flags, gap, edata)| Step {
            what,
            from,
            to,
            remote,
            local,
            len,
            mtu,
            path,
            remote_notice: flags[0],
            packet_response: flags[1],
            padding: flags[2],
            strong: flags[3],
            interrupt: flags[4],
            direct: flags[5],
            gap,
            edata,
        },
    )
}

/// The result of a command.
struct Expected {
    rcode: Rcode,
    length: usize,
    /// At the initiator, the last notice.
    notice: Option<MrqId>,
    /// At the target, if it gets one.
    halfway: Option<MrqId>,
    /// TLPs, which have separate notices if the command requests that.
    tlps: usize,
    old: Option<u64>,
}

impl Expected {
    /// The result of a command that copies `length` bytes, with its notices at both ends.
    fn copied((notice, halfway): (MrqId, MrqId), length: usize, mtu: usize) -> Self {
        Self {
            rcode: Rcode::SUCCESS,
            length,
            notice: Some(notice),
            halfway: Some(halfway),
            tlps: length.div_ceil(mtu).max(1),
            old: None,
        }
    }
}

/// The value that an atomic command writes.
fn combine(op: ArmwOp, old: u64, x: u64) -> u64 {
    match op {
        ArmwOp::Swap => x,
        ArmwOp::Add => old.wrapping_add(x),
        ArmwOp::Xor => old ^ x,
        ArmwOp::And => old & x,
        ArmwOp::Or => old | x,
        ArmwOp::CompareAndSwap => unreachable!("handled as a separate case"),
    }
}

/// Applies the command's effect to `memory`, and returns its order.
fn model(s: &Step, ends: &[Endpoint], memory: &mut [Vec<u8>]) -> (Order, Expected) {
    let to = &ends[s.to];
    let target = to.target();
    let mtu = if s.mtu == 0 { MAX_MTU } else { s.mtu } as usize;
    let mut remote = s.remote;
    let rcode = Rcode::SUCCESS;
    let mut expected =
        Expected { rcode, length: 0, notice: None, halfway: None, tlps: 1, old: None };
    let mut atomic = |remote: &mut usize, size: usize, change: &dyn Fn(u64) -> u64| {
        *remote = (*remote).min(MEMORY - 8) / size * size;
        if !description().atomics {
            // Nothing is sent, so the TCQ entry is the only report.
            expected.rcode = Rcode::UNSUPPORTED_COMMAND;
            return;
        }
        let place = &mut memory[s.to][*remote..*remote + size];
        let mut word = [0; 8];
        word[..size].copy_from_slice(place);
        let old = u64::from_le_bytes(word);
        place.copy_from_slice(&change(old).to_le_bytes()[..size]);
        expected = Expected {
            rcode,
            length: size,
            notice: Some(MrqId::Armw),
            halfway: Some(MrqId::ArmwHalfway),
            tlps: 1,
            old: Some(old),
        };
    };
    let order = match s.what {
        What::Nop => Order::nop(),
        What::Put | What::Get => {
            let (order, result) = transfer(s, ends, mtu, memory);
            expected = result;
            order
        }
        What::Piggyback => {
            let len = 1 + s.len % 32;
            remote = remote.min(MEMORY - len);
            let data = pattern(s.edata.into(), len);
            memory[s.to][remote..remote + len].copy_from_slice(&data);
            expected = Expected::copied((MrqId::PutLast, MrqId::PutLastHalfway), len, mtu);
            Order::put_piggyback(target, to.at(remote as u64), &data).unwrap().mtu(s.mtu)
        }
        What::Armw4(op, x) => {
            atomic(&mut remote, 4, &|old| combine(op, old, x.into()));
            Order::armw4(target, op, to.at(remote as u64), x)
        }
        What::Armw8(op, x) => {
            atomic(&mut remote, 8, &|old| combine(op, old, x));
            Order::armw8(target, op, to.at(remote as u64), x)
        }
        What::Cswap4(cmp, new) => {
            atomic(&mut remote, 4, &|old| if old == u64::from(cmp) { new.into() } else { old });
            Order::cswap4(target, to.at(remote as u64), cmp, new)
        }
        What::Cswap8(cmp, new) => {
            atomic(&mut remote, 8, &|old| if old == cmp { new } else { old });
            Order::cswap8(target, to.at(remote as u64), cmp, new)
        }
    };
    (order, expected)
}

/// Applies a Put or a Get.
fn transfer(s: &Step, ends: &[Endpoint], mtu: usize, memory: &mut [Vec<u8>]) -> (Order, Expected) {
    let (from, to, remote) = (&ends[s.from], &ends[s.to], s.remote);
    let len = s.len.min(MEMORY - remote).min(MEMORY - s.local);
    let put = matches!(s.what, What::Put);
    let (src, src_at, dst, dst_at) =
        if put { (s.from, s.local, s.to, remote) } else { (s.to, remote, s.from, s.local) };
    // Within one memory, bursts are copied one after another: the result of an overlap
    // would depend on their size, so overlaps are avoided.
    let overlaps = src == dst && src_at.abs_diff(dst_at) < len;
    let len = if overlaps { src_at.abs_diff(dst_at) } else { len };
    let data = memory[src][src_at..src_at + len].to_vec();
    memory[dst][dst_at..dst_at + len].copy_from_slice(&data);
    let ids = if put {
        (MrqId::PutLast, MrqId::PutLastHalfway)
    } else {
        (MrqId::GetLast, MrqId::GetLastHalfway)
    };
    let make = if put { Order::put } else { Order::get };
    let (remote, local) = (to.at(remote as u64), from.at(s.local as u64));
    (make(to.target(), remote, local, len as u32).mtu(s.mtu), Expected::copied(ids, len, mtu))
}

fn decorate(s: &Step, mut order: Order) -> Order {
    let (a, b, c) = s.path;
    order = order.path(Path::new(a, b, c)).gap(s.gap).edata(s.edata);
    for (flag, set) in [
        (s.remote_notice, Order::remote_notice as fn(Order) -> Order),
        (s.packet_response, Order::packet_response),
        (s.padding, Order::padding),
        (s.strong, Order::strong_order),
        (s.interrupt, Order::interrupt),
    ] {
        if flag {
            order = set(order);
        }
    }
    order
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn commands_do_what_the_model_does(
        steps in prop::collection::vec(step(), 1..60),
        seed: u64,
    ) {
        let cluster = Cluster::new("1x1x1x2x1x2");
        // Room for a notice at both ends for every 8 bytes of the longest message.
        let config = |rank| CqConfig { mrq_size: 2, ..tofu_tests::config(rank, 11 - rank) };
        let mut ends: Vec<_> =
            (0..NODES).map(|rank| cluster.endpoint_with(rank, &config(rank as u8))).collect();
        let mut memory: Vec<_> =
            (0..u64::from(NODES)).map(|rank| pattern(seed ^ rank, MEMORY)).collect();
        for (end, bytes) in ends.iter().zip(&mut memory) {
            // Some zeros, for compare-and-swap.
            bytes[..MEMORY / 4].fill(0);
            end.fill(0, bytes);
        }
        for s in &steps {
            let (order, expected) = model(s, &ends, &mut memory);
            let order = decorate(s, order);
            let end = &mut ends[s.from];
            if s.direct {
                end.cq.post_direct(&order, 7).unwrap();
            } else {
                end.cq.post_and_ring(&order, 7).unwrap();
            }
            let done = end.complete();
            prop_assert_eq!((done.cookie, done.rcode), (7, expected.rcode));
            prop_assert_eq!(done.length as usize, expected.length);

            // Notices, by kind: of this end's commands and of the other end's.
            let mut seen: HashMap<MrqId, usize> = HashMap::new();
            for (i, end) in ends.iter_mut().enumerate() {
                for notice in end.notices() {
                    let id = notice.id().unwrap();
                    let owner = if id.is_halfway() { s.to } else { s.from };
                    prop_assert_eq!(i, owner);
                    prop_assert_eq!(notice.word1().edata(), s.edata);
                    if let (MrqId::Armw, Some(old)) = (id, expected.old) {
                        prop_assert_eq!(notice.old_value(), old);
                    }
                    *seen.entry(id).or_default() += 1;
                }
            }
            let mut want: HashMap<MrqId, usize> = HashMap::new();
            let halfway = expected.halfway.filter(|_| s.remote_notice);
            for last in expected.notice.into_iter().chain(halfway) {
                want.insert(last, 1);
                let each = match last {
                    MrqId::PutLast => MrqId::Put,
                    MrqId::GetLast => MrqId::Get,
                    MrqId::PutLastHalfway => MrqId::PutHalfway,
                    MrqId::GetLastHalfway => MrqId::GetHalfway,
                    _ => continue,
                };
                if s.packet_response && expected.tlps > 1 {
                    want.insert(each, expected.tlps - 1);
                }
            }
            prop_assert_eq!(seen, want, "{:?}", s);
        }
        for (end, bytes) in ends.iter().zip(&memory) {
            prop_assert!(end.bytes(0, end.buffer.len()) == *bytes, "node {}", end.node);
            prop_assert_eq!(end.cq.exception(), None);
        }
    }

    /// The queue ends any descriptor with one completion or stops with an exception, and the
    /// neighbours keep working.
    #[test]
    fn any_descriptor_ends(
        words in prop::collection::vec(any::<[u64; 4]>(), 1..20),
        command in 0u8..0x14,
    ) {
        let cluster = Cluster::new("1x1x1x2x1x1");
        let mut a = cluster.endpoint(0, 0, 0);
        let mut b = cluster.endpoint(1, 0, 0);
        for (i, words) in words.into_iter().enumerate() {
            let mut d = tofu_abi::desc::Descriptor(words);
            // Half of them with a known command and source type, else few pass the first checks.
            if i % 2 == 0 {
                let header = d.header1().with_command(command).with_source_type(0);
                d.0[0] = header.with_target(b.node).with_ri(0).with_path(Path::new(0, 0, 0)).0;
            }
            a.cq.post_and_ring(&Order::raw(&[d]), i as u64).unwrap();
            cluster.settle();
            match a.cq.poll_tcq() {
                Some(done) => prop_assert_eq!(done.cookie, i as u64),
                None => {
                    // An entry of the direct source reserves the place of a descriptor that does
                    // not come; any other entry without a completion is an exception.
                    let exception = a.cq.exception().is_some();
                    prop_assert_eq!(exception, d.header1().source_type() != DIRECT);
                    prop_assert_eq!(a.cq.status().descriptor_process_stop(), exception);
                    a.cq.close().unwrap();
                    a = cluster.endpoint(0, 0, 0);
                }
            }
            a.cq.clear_exceptions();
            a.notices();
        }
        let order = Order::put(a.target(), a.at(0), b.at(0), 100);
        prop_assert_eq!(b.run(&order).rcode, Rcode::SUCCESS);
    }
}
