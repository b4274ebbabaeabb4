//! Long uTofu Puts, split over the shortest paths, compared with the same Puts unsplit, on modelled
//! links: in modelled time, so the host's speed does not matter.

use std::cell::RefCell;

use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_machine::{Links, MachineConfig};
use tofu_utofu::flags::{REMOTE_MRQ_NOTICE, TCQ_NOTICE};
use tofu_utofu::ids::Stadd;
use tofu_utofu::{Context, DeviceShare, Transfer, Vcq};
use tofu_utofu_local::{Generation, LocalMachine, LocalProvider};

/// Puts of each sender, one after another.
const PUTS: usize = 8;
const SIZES: [usize; 3] = [16 << 10, 128 << 10, 512 << 10];

/// Pairs of node indices: the first one puts to the second one.
type Pairs = Vec<(usize, usize)>;

struct Sender {
    vcq: Vcq<LocalProvider>,
    transfer: Transfer,
    posted: usize,
    done: usize,
}

/// Modelled time until all are done, in microseconds.
fn run(shape: Shape, pairs: &Pairs, bytes: usize, split_from: u32) -> f64 {
    let config = MachineConfig { links: Links::Modelled, ..MachineConfig::new(shape) };
    let machine = LocalMachine::stepped(config).expect("a machine");
    let nodes: Vec<Coords> = shape.iter().collect();
    let processes: Vec<_> = nodes
        .iter()
        .map(|node| {
            let share = DeviceShare::of(Generation::Fugaku, 0, 1).expect("a share");
            Context::splitting(machine.node(*node).expect("a node"), share, split_from)
        })
        .collect();
    let mut receivers = Vec::new();
    let mut senders = Vec::new();
    for &(from, to) in pairs {
        // The contents of the memory do not matter.
        let register = |vcq: &Vcq<LocalProvider>| -> Stadd {
            let memory = Box::leak(vec![0u8; bytes].into_boxed_slice());
            // SAFETY: the memory is never freed, and nothing else uses it.
            unsafe { vcq.reg_mem(memory.as_mut_ptr(), bytes, None, 0) }.expect("memory")
        };
        // One interface sends, and one receives.
        let vcq_of = |node: usize| processes[node].create_vcq(0, None, 0).expect("a VCQ");
        let (target, vcq) = (vcq_of(to), vcq_of(from));
        let (remote, local) = (register(&target), register(&vcq));
        let flags = TCQ_NOTICE | REMOTE_MRQ_NOTICE;
        let transfer =
            Transfer { peer: target.id(), local, remote, length: bytes, edata: 0, flags };
        receivers.push(target);
        senders.push(Sender { vcq, transfer, posted: 0, done: 0 });
    }
    let senders = RefCell::new(senders);
    loop {
        let mut left = 0;
        for sender in senders.borrow_mut().iter_mut() {
            sender.done += std::iter::from_fn(|| sender.vcq.poll_tcq()).count();
            if sender.posted < PUTS && sender.posted == sender.done {
                sender.vcq.put(&sender.transfer, 0).expect("room");
                sender.posted += 1;
            }
            left += PUTS - sender.done;
        }
        if left == 0 {
            break;
        }
        machine.machine().run_turn();
    }
    machine.machine().fabric().modelled_ps().unwrap_or(0) as f64 / 1e6
}

fn main() {
    let unit: Shape = "2x1x1x2x3x2".parse().expect("a shape");
    let shelf: Shape = "1x1x4x2x3x2".parse().expect("a shape");
    let index = |shape: &Shape, coords| shape.node_id(coords).map_or(0, |id| id.index());
    let one = |to| vec![(0, index(&unit, to))];
    let (two, four) = (Coords::new(1, 0, 0, 1, 0, 0), Coords::new(1, 0, 0, 1, 1, 1));
    // Two senders that share the last link of the default path.
    let beside = |to: Coords, from: Coords| {
        vec![(0, index(&unit, to)), (index(&unit, from), index(&unit, to))]
    };
    let shifted = |shape: &Shape, by: usize| -> Pairs {
        let nodes = shape.nodes() as usize;
        (0..nodes).map(|node| (node, (node * 7 + by) % nodes)).filter(|(a, b)| a != b).collect()
    };
    println!("{:<44}{:>9}{:>11}{:>11}{:>8}", "", "bytes", "whole, us", "parts, us", "ratio");
    for (name, shape, pairs) in [
        ("alone, two paths", unit, one(two)),
        ("alone, four paths", unit, one(four)),
        ("two to one node", unit, beside(four, Coords::new(0, 0, 0, 0, 1, 0))),
        ("48 nodes, a permutation", shelf, shifted(&shelf, 5)),
        ("48 nodes, another", shelf, shifted(&shelf, 17)),
    ] {
        for bytes in SIZES {
            let whole = run(shape, &pairs, bytes, u32::MAX);
            let parts = run(shape, &pairs, bytes, 0);
            println!("{name:<44}{bytes:>9}{whole:>11.1}{parts:>11.1}{:>8.2}", whole / parts);
        }
    }
}
