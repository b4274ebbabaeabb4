//! Modelled links do what direct ones do: the same commands leave the same memory and the same
//! entries in all queues.

use proptest::prelude::*;
use tofu_abi::generation::Description;
use tofu_abi::queue::MrqEntry;
use tofu_abi::{Path, Rcode};
use tofu_driver::Order;
use tofu_fabric::LinkErrors;
use tofu_links::{ErrorRate, MAX_LANES, Parameters, Slicing};
use tofu_machine::Links;
use tofu_tests::{Cluster, Endpoint, config, description, generation, pattern};

const SHAPE: &str = "3x1x1x2x3x1";
const NODES: usize = 18;
/// Queues of a node that are used, all on one interface, so that they wait for each other.
const QUEUES: usize = 3;
/// Bytes of each place. The data that a command reads and the data that it writes have places of
/// their own.
const PLACE: usize = 6000;
const COMMANDS: usize = 60;

#[derive(Clone, Copy, Debug)]
enum What {
    Put,
    Get,
    Piggyback,
    Add(u64),
}

#[derive(Clone, Copy, Debug)]
struct Step {
    what: What,
    from: usize,
    to: usize,
    queue: usize,
    len: usize,
    mtu: u32,
    path: (u8, u8, u8),
    remote_notice: bool,
    packet_response: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        Just(What::Put),
        Just(What::Get),
        Just(What::Piggyback),
        any::<u64>().prop_map(What::Add),
    ];
    let places = (0..NODES, 0..NODES, 0..QUEUES);
    let mtu = prop_oneof![Just(0), (32..240u32).prop_map(|n| n * 8)];
    (what, places, 0..PLACE, mtu, (0..2u8, 0..3u8, 0..1u8), any::<[bool; 2]>()).prop_map(
        |(what, (from, to, queue), len, mtu, path, [remote_notice, packet_response])| Step {
            what,
            from,
            to,
            queue,
            len,
            mtu,
            path,
            remote_notice,
            packet_response,
        },
    )
}

fn order(step: &Step, number: usize, ends: &[Vec<Endpoint>]) -> Order {
    let (from, to) = (&ends[step.from][step.queue], &ends[step.to][step.queue]);
    let place = (number * PLACE) as u64;
    let (target, len) = (to.target(), step.len as u32);
    // The places that are written follow those that are read.
    let written = place + (COMMANDS * PLACE) as u64;
    let order = match step.what {
        What::Put => Order::put(target, to.at(written), from.at(place), len).mtu(step.mtu),
        What::Get => Order::get(target, to.at(place), from.at(written), len).mtu(step.mtu),
        What::Piggyback => {
            let data = pattern(number as u64, 1 + step.len % 32);
            Order::put_piggyback(target, to.at(written), &data).unwrap()
        }
        What::Add(n) => Order::armw8(target, tofu_abi::desc::ArmwOp::Add, to.at(written & !7), n),
    };
    let (a, b, c) = step.path;
    let mut order = order.path(Path::new(a, b, c)).edata(number as u16);
    if step.remote_notice {
        order = order.remote_notice();
    }
    if step.packet_response {
        order = order.packet_response();
    }
    order
}

/// The final state of a queue: how its commands ended, in order; its notices, which may come in any
/// order from different nodes; and its memory.
type Rest = (Vec<(u64, Rcode)>, Vec<[u64; 4]>, Vec<u8>);

/// A node, its port with a link, and the errors there.
type Wrong = (usize, usize, LinkErrors);

/// Errors on the first two lanes. Where frames are striped over all lanes, no lane may be dead.
fn errors(ber: [f64; 2], dead: u8, dllp_loss: f64) -> LinkErrors {
    let dead = if slicing() == Slicing::Striped { 0 } else { dead };
    let rate = |rate| ErrorRate::new(rate).unwrap();
    let mut rates = [ErrorRate::NEVER; MAX_LANES];
    rates[..2].copy_from_slice(&ber.map(rate));
    LinkErrors { rates, dead, dllp_loss: rate(dllp_loss) }
}

fn slicing() -> Slicing {
    Parameters::of(generation()).slicing
}

/// Ports with a link.
fn port() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![0, 3, 5])
}

fn wrong() -> impl Strategy<Value = Wrong> {
    let ber = || prop_oneof![Just(0.0), 0.0..1e-7, 0.0..1e-4];
    let dllp_loss = prop_oneof![Just(0.0), 0.0..0.5];
    (0..NODES, port(), ber(), ber(), 0..3u8, dllp_loss)
        .prop_map(|(node, port, a, b, dead, loss)| (node, port, errors([a, b], dead, loss)))
}

/// Runs commands, all at the same time, and returns the final state of all queues.
fn run(links: Links, steps: &[Step], down: &[(usize, usize)], wrong: &[Wrong]) -> Vec<Rest> {
    let size = 2 * COMMANDS * PLACE;
    let memory = size.next_multiple_of(64 << 10) * QUEUES + (4 << 20);
    let cluster = Cluster::with_links(SHAPE, memory, links);
    for &(node, port) in down {
        cluster.set_link(node as u32, port, false);
    }
    for (node, port, errors) in wrong {
        cluster.set_link_errors(*node as u32, *port, errors);
    }
    let mut ends: Vec<Vec<Endpoint>> = (0..NODES as u32)
        .map(|rank| (0..QUEUES as u8).map(|cq| cluster.endpoint_of(rank, 2, cq, size)).collect())
        .collect();
    for (n, end) in ends.iter().flatten().enumerate() {
        end.fill(0, &pattern(n as u64, COMMANDS * PLACE));
    }
    for (number, step) in steps.iter().enumerate() {
        let order = order(step, number, &ends);
        ends[step.from][step.queue].cq.post_and_ring(&order, number as u64).unwrap();
    }
    cluster.settle();
    let mut rest = Vec::new();
    for end in ends.iter_mut().flatten() {
        let done = std::iter::from_fn(|| end.cq.poll_tcq());
        let done: Vec<_> = done.map(|done| (done.cookie, done.rcode)).collect();
        let mut notices: Vec<_> = end.notices().iter().map(|MrqEntry(words)| *words).collect();
        notices.sort_unstable();
        assert_eq!(end.cq.exception(), None);
        rest.push((done, notices, end.bytes(0, size)));
    }
    rest
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn same_commands_have_the_same_effect(
        steps in prop::collection::vec(step(), 1..COMMANDS),
        down in prop::collection::vec((0..NODES, port()), 0..3),
        wrong in prop::collection::vec(wrong(), 0..12),
    ) {
        let direct = run(Links::Direct, &steps, &down, &[]);
        let modelled = run(Links::Modelled, &steps, &down, &wrong);
        for (queue, (direct, modelled)) in direct.iter().zip(&modelled).enumerate() {
            prop_assert_eq!(&direct.0, &modelled.0, "completions of queue {}", queue);
            prop_assert_eq!(&direct.1, &modelled.1, "notices of queue {}", queue);
            prop_assert!(direct.2 == modelled.2, "memory of queue {}", queue);
        }
    }
}

/// More commands than any interface holds, from all queues to one node.
#[test]
fn all_queues_progress_to_one_target() {
    let cluster = Cluster::with_links(SHAPE, 4 << 20, Links::Modelled);
    let sink = cluster.endpoint(0, 0, 0);
    let mut ends: Vec<_> = (1..NODES as u32)
        .flat_map(|rank| (0..description().cqs).map(move |cq| (rank, cq)))
        .map(|(rank, cq)| cluster.endpoint_with(rank, &config(1, cq)))
        .collect();
    for end in &mut ends {
        for n in 0..40 {
            let at = u64::from(end.rank) * 1920;
            let put = Order::put(sink.target(), sink.at(at), end.at(0), 1920);
            end.cq.post_and_ring(&put, n).unwrap();
        }
    }
    cluster.settle();
    for end in &mut ends {
        let done: Vec<_> = std::iter::from_fn(|| end.cq.poll_tcq()).collect();
        assert!(done.iter().all(|done| done.rcode == Rcode::SUCCESS));
        assert!(done.iter().map(|done| done.cookie).eq(0..40));
    }
    // All came to TNI 0 through few ports, where most had to wait.
    let counters = cluster.xb_counters(0);
    let (data, wait) = counters
        .port
        .iter()
        .fold((0, 0), |(data, wait), port| (data + port.data, wait + port.wait));
    let Description { cqs, alignment, .. } = *description();
    assert!(data >= 40 * u64::from(cqs) * 17 * 1920 / u64::from(alignment));
    assert!(wait > 0);
}

/// Errors on a link show only in its counters.
#[test]
fn errors_are_counted_and_made_good() {
    let cluster = Cluster::with_links(SHAPE, 4 << 20, Links::Modelled);
    // Port B+ of node 0 leads to node 1.
    cluster.set_link_errors(0, 3, &errors([1e-5, 0.0], 0, 0.1));
    let (mut a, b) = (cluster.endpoint(0, 0, 0), cluster.endpoint(1, 0, 0));
    let data = pattern(1, 60_000);
    a.fill(0, &data);
    for _ in 0..20 {
        assert_eq!(a.run(&Order::put(b.target(), b.at(0), a.at(0), 60_000)).rcode, Rcode::SUCCESS);
    }
    assert!(b.bytes(0, 60_000) == data);
    cluster.settle();
    let (near, far) = (cluster.port_counters(0, 3), cluster.port_counters(1, 2));
    // For sliced frames, the lane of an error is known.
    let cut = slicing() == Slicing::Dynamic;
    assert_eq!(far.slice_fcs_errors.map(|errors| errors > 0), [cut, false]);
    assert!(far.lcrc_errors > 0);
    assert!(near.send_tlp >= 20 * 32);
    // Others were left alone.
    assert_eq!(cluster.port_counters(4, 3).lcrc_errors, 0);
}
