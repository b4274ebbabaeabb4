//! Any reports of dead links at a node, in the name of any node.
//!
//! No node is heard in another one's name, few reports are passed on, and a packet is tried a
//! bounded number of times.

use std::collections::BTreeMap;

use arbitrary::{Result, Unstructured};
use tofu_abi::Coords;
use tofu_abi::topology::{NodeId, Port, Shape};
use tofu_abi::{Rcode, TniId};
use tofu_ipotofu::neighbor::LocalNode;
use tofu_ipotofu::testing::TestQueue;
use tofu_ipotofu::{Health, Heap, Outbound, Report, Reporter, Sending};

/// Actions of one input at most.
const MAX_ACTIONS: u32 = 256;
/// Ways from one node to another at most: 12 paths, either way round on X, Y and Z.
const MAX_WAYS: usize = 96;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = play(&mut u);
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let shape = *u.choose(&["1x1x1x2x3x2", "3x1x2x1x1x1", "2x2x4x2x3x2", "32x32x32x2x3x2"])?;
    let Ok(shape) = shape.parse::<Shape>() else { return Ok(()) };
    let me = node(&shape, u)?;
    let Ok(health) = Health::<Heap>::new(shape, me);
    let health = std::sync::Arc::new(health);
    let sending = Sending::new(LocalNode { shape, machine: 0, me }, TniId::ALL[0]);
    let Ok(mut outbound) = Outbound::<Heap>::new(sending, health.clone(), 0);
    let mut reporter = Reporter::new(me, u.arbitrary()?);
    let mut now_ns = 0u64;
    // The nodes that have ever sent reports, and their contents.
    let mut spoken = BTreeMap::<Coords, u16>::new();
    for _ in 0..MAX_ACTIONS {
        if u.is_empty() {
            break;
        }
        now_ns = now_ns.saturating_add(u64::from(u.arbitrary::<u32>()?) << u.int_in_range(0..=8)?);
        match u.int_in_range(0..=4)? {
            0 => {
                let own = u.arbitrary()?;
                health.set_own(own);
                *spoken.entry(me).or_default() |= own;
            }
            1 => {
                step(&mut reporter, &health, (&shape, me), now_ns);
            }
            2 => {
                let to = node(&shape, u)?;
                send(&mut outbound, to, now_ns);
                assert!(shape.contains_path(health.path(to, now_ns)));
            }
            _ => {
                let (from, claimed) = (node(&shape, u)?, node(&shape, u)?);
                let mut header = Report {
                    origin: if u.ratio(3, 4)? { from } else { claimed },
                    number: u.arbitrary()?,
                    dead: u.arbitrary()?,
                }
                .emit();
                if u.ratio(1, 4)? {
                    header[u.choose_index(20)?] = u.arbitrary()?;
                }
                let Some(report) = Report::parse(from, &header) else { continue };
                assert_eq!(report.origin, from, "a report in another node's name");
                assert!(Report::is_report(&header) && report.dead >> Port::COUNT == 0);
                health.learn(&report, now_ns);
                if from != me {
                    *spoken.entry(from).or_default() |= report.dead;
                }
            }
        }
        for (at, dead) in health.iter(now_ns) {
            let said = spoken.get(&at).copied().unwrap_or_default();
            assert_eq!(dead & !said, 0, "{at} never said that");
        }
    }
    Ok(())
}

/// Reports go to other nodes of the machine, few at a time; every seventh cannot be sent.
fn step(
    reporter: &mut Reporter,
    health: &Health<Heap>,
    (shape, me): (&Shape, Coords),
    now_ns: u64,
) {
    let mut told = 0;
    reporter.step(health, now_ns, |to, header| {
        assert!(to != me && shape.contains(to));
        assert!(Report::parse(me, header).is_some() && Report::parse(to, header).is_none());
        told += 1;
        told % 7 != 0
    });
    assert!(told <= 32, "{told} nodes told in one go");
}

/// A packet is tried at most twice on each path, regardless of the known link state.
fn send(outbound: &mut Outbound<Heap>, to: Coords, now_ns: u64) {
    let mut queue = TestQueue::new(1);
    outbound.post(&mut queue, to, &[&[0]], now_ns);
    let Some(posted) = queue.posted.pop() else { return };
    let (mut target, mut tag) = (posted.target, posted.tag());
    let mut tried = 1;
    while let Some(next) = outbound.lost(tag, Rcode::LINK_DOWN, now_ns) {
        (target, tag) = next;
        assert_eq!((target.node, tag.to), (to, to));
        tried += 1;
        assert!(tried <= 2 * MAX_WAYS, "it does not end");
    }
    assert_eq!(target.node, to);
}

fn node(shape: &Shape, u: &mut Unstructured<'_>) -> Result<Coords> {
    // A few nodes most of the time, so that a node receives several reports of each.
    let rank = if u.ratio(7, 8)? { u.int_in_range(0..=7)? } else { u.arbitrary::<u32>()? };
    Ok(shape.coords(NodeId(rank % shape.nodes())).unwrap_or_default())
}
