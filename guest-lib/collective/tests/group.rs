//! Groups of processes on a machine in this process, each a thread.

use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use tofu_abi::TniId;
use tofu_abi::reduce::Op;
use tofu_abi::topology::Shape;
use tofu_collective::plan::{Algorithm, GroupShape};
use tofu_collective::{Exchange, Group, GroupConfig, GroupError};
use tofu_utofu::{Code, Context, DeviceShare};
use tofu_utofu_local::{LocalMachine, LocalProvider};

/// Threads exchange data through memory.
#[derive(Clone)]
struct Board(Arc<(Barrier, Mutex<Vec<Vec<u64>>>)>, usize);

impl Board {
    fn of(members: usize) -> Vec<Self> {
        let shared = Arc::new((Barrier::new(members), Mutex::new(vec![Vec::new(); members])));
        (0..members).map(|member| Self(Arc::clone(&shared), member)).collect()
    }
}

impl Exchange for Board {
    type Error = std::convert::Infallible;

    fn allgather(&mut self, mine: &[u64], all: &mut [u64]) -> Result<(), Self::Error> {
        let (barrier, numbers) = &*self.0;
        numbers.lock().unwrap()[self.1] = mine.to_vec();
        barrier.wait();
        all.copy_from_slice(&numbers.lock().unwrap().concat());
        barrier.wait();
        Ok(())
    }
}

/// Runs `body` as each of `members` processes, `per_node` of them on a node.
fn processes(
    members: u32,
    per_node: u16,
    body: impl Fn(u32, &Context<LocalProvider>, &mut Board) + Sync,
) {
    let machine = LocalMachine::new(Shape::new([2, 1, 1, 2, 3, 2]).unwrap()).unwrap();
    let nodes: Vec<_> = Shape::new([2, 1, 1, 2, 3, 2]).unwrap().iter().collect();
    let boards = Board::of(members as usize);
    thread::scope(|scope| {
        for (rank, mut board) in (0..members).zip(boards) {
            let node = machine.node(nodes[rank as usize / usize::from(per_node)]).unwrap();
            let place = DeviceShare::new(rank as u16 % per_node, per_node).unwrap();
            let body = &body;
            scope.spawn(move || body(rank, &Context::new(node, place), &mut board));
        }
    });
}

fn config(rank: u32, axes: [u32; 3]) -> GroupConfig {
    GroupConfig { rank, shape: GroupShape { axes }, algorithm: None, tni: TniId::ALL[0] }
}

fn use_it(group: &Group<'_, LocalProvider>) {
    let (rank, members) = (u64::from(group.rank()), u64::from(group.members()));
    for round in 0..5u64 {
        group.barrier().unwrap();
        let mut data: Vec<u64> = (0..14).map(|i| rank + i + round).collect();
        group.allreduce(Op::Sum, &mut data).unwrap();
        let sum = members * (members - 1) / 2;
        let expected: Vec<u64> = (0..14).map(|i| sum + members * (i + round)).collect();
        assert_eq!(data, expected);
        let mut data = [1e16 * if rank == 0 { 1.0 } else { 0.0 }, 0.25, 1.0, rank as f64];
        group.allreduce_sum(&mut data).unwrap();
        assert_eq!(data, [1e16, members as f64 / 4.0, members as f64, sum as f64]);
        let root = (round % members) as u32;
        let mut data = [rank, rank + 1, 3, 4, 5, 6, rank];
        group.broadcast(root, &mut data).unwrap();
        assert_eq!(data, [root.into(), u64::from(root) + 1, 3, 4, 5, 6, root.into()]);
        let mut data = [rank; 8];
        group.reduce(root, Op::Max, &mut data).unwrap();
        let expected = if group.rank() == root { members - 1 } else { rank };
        assert_eq!(data, [expected; 8]);
    }
    assert_eq!(group.broadcast(group.members(), &mut [0]).unwrap_err().code(), Code::InvalidNumber);
}

#[test]
fn all_algorithms_with_groups_of_any_size() {
    for (members, axes) in [(1, [1, 1, 1]), (2, [2, 1, 1]), (7, [7, 1, 1]), (12, [3, 2, 2])] {
        processes(members, 1, |rank, context, board| {
            let algorithms = Algorithm::ALL.into_iter().map(Some).chain([None]);
            for algorithm in algorithms {
                let config = GroupConfig { algorithm, ..config(rank, axes) };
                let group = Group::new(context, &config, board).unwrap();
                assert!(algorithm.is_none_or(|wanted| wanted == group.algorithm()));
                use_it(&group);
            }
        });
    }
}

#[test]
fn several_groups_at_once_on_shared_nodes() {
    processes(24, 2, |rank, context, board| {
        let all = Group::new(context, &config(rank, [24, 1, 1]), board).unwrap();
        let again = Group::new(
            context,
            &GroupConfig { tni: TniId::ALL[5], ..config(rank, [24, 1, 1]) },
            board,
        );
        let again = again.unwrap();
        assert_eq!(again.gates()[0].tni(), [5, 0][rank as usize % 2]);
        // Rounds of both in progress.
        context.barrier(all.gates()[0], 0).unwrap();
        use_it(&again);
        while context.poll_barrier(all.gates()[0], 0).is_err() {}
        use_it(&all);
    });
}

/// Channels of one interface are served one after another (TofuD paper, V.E).
#[test]
fn processes_of_a_node_use_different_interfaces() {
    for (per_node, tnis) in [(4, 4), (6, 6), (8, 6)] {
        let used = Mutex::new(Vec::new());
        processes(per_node, per_node as u16, |rank, context, board| {
            let group = Group::new(context, &config(rank, [per_node, 1, 1]), board).unwrap();
            used.lock().unwrap().push(group.gates()[0].tni());
            use_it(&group);
        });
        let mut used = used.into_inner().unwrap();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), tnis, "{per_node} processes: {used:?}");
    }
}

#[test]
fn few_gates_left_select_another_algorithm() {
    processes(12, 1, |rank, context, board| {
        let best = Group::new(context, &config(rank, [12, 1, 1]), board).unwrap();
        let most = best.gates().len();
        drop(best);
        // One member has only three relays left on each interface.
        let taken: Vec<_> = if rank == 5 {
            (0..6).map(|tni| context.alloc_vbg(tni, 30, 0).unwrap()).collect()
        } else {
            Vec::new()
        };
        let group = Group::new(context, &config(rank, [12, 1, 1]), board).unwrap();
        assert!(group.gates().len() <= 5 && most <= 6, "{} gates", group.gates().len());
        use_it(&group);
        drop(group);
        let none: Vec<_> = if rank == 5 {
            (0..6).map(|tni| context.alloc_vbg(tni, 4, 0).unwrap()).collect()
        } else {
            Vec::new()
        };
        // No relay is left to it, but a leaf of a tree needs none.
        let wanted = GroupConfig {
            algorithm: Some(Algorithm::RecursiveDoubling),
            ..config(rank, [12, 1, 1])
        };
        let error = Group::new(context, &wanted, board).err().unwrap();
        assert_eq!(error, GroupError::Full);
        assert!(error.to_string().contains("free groups"));
        for ids in taken.iter().chain(&none) {
            context.free_vbg(ids).unwrap();
        }
        use_it(&Group::new(context, &wanted, board).unwrap());
    });
}

#[test]
fn groups_that_make_no_sense() {
    processes(1, 1, |_, context, board| {
        let error = |config: &GroupConfig, board: &mut Board| {
            Group::new(context, config, board).err().unwrap()
        };
        assert_eq!(error(&config(1, [1, 1, 1]), board), GroupError::Rank(1));
        assert_eq!(error(&config(0, [0, 1, 1]), board), GroupError::Rank(0));
    });
}
