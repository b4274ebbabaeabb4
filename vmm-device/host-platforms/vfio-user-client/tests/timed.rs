//! Two devices in modelled time behind sockets: what a Put takes does not depend on this host.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use tofu_abi::table::PageSize;
use tofu_abi::topology::{NodeId, Shape};
use tofu_abi::{CqId, Generation, TniId};
use tofu_driver::{Access, Cq, CqConfig, Device, MemoryRange, Order, Stag, Target};
use tofu_netmodel::Arbiter;
use tofu_timed::{EventEngine, Function, Turn, Turns};
use tofu_vfio_user::{Backing, ClientMemory, Limits, Server};
use tofu_vfio_user_client::{Mapping, SocketPlatform};

/// Picoseconds between two polls of memory.
const LOOK: u64 = 1000;
const ROUNDS: u64 = 100;

/// A program's queue, and its word that the other one puts to.
struct End {
    cq: Cq<SocketPlatform>,
    stag: Stag,
    word: Arc<[AtomicU64; 1]>,
    _mapping: Mapping,
}

fn end(platform: SocketPlatform) -> End {
    let device = Device::probe(platform).unwrap();
    device.tni(TniId::ALL[0]).enable().unwrap();
    let mut cq = Cq::open(&device, &CqConfig::new(TniId::ALL[0], CqId::ALL[0])).unwrap();
    let word = Arc::new([AtomicU64::new(0)]);
    let addr = word.as_ptr() as usize;
    let mapping = device.platform().map(addr, 8, true).unwrap();
    let range = MemoryRange { addr: mapping.device_addr(), len: 8 };
    let offset = mapping.device_addr() % 256;
    let stag = cq.register_at(range, PageSize::Size4K, Access::ReadWrite, 5, offset).unwrap();
    End { cq, stag, word, _mapping: mapping }
}

/// Puts to each other by turns; the times of the rounds, in picoseconds.
fn pingpong(turn: &Turn, end: &mut End, to: Target, remote: Stag, first: bool) -> Vec<u64> {
    let mut at = turn.begin().unwrap();
    let mut times = Vec::new();
    for round in 1..=ROUNDS {
        let start = at;
        for step in 0..2 {
            if (step == 0) == first {
                let data = round.to_le_bytes();
                let order = Order::put_piggyback(to, remote.at(0), &data).unwrap();
                end.cq.post_direct(&order.cache_injection(), 0).unwrap();
                // Writes are not answered; the answer to a read comes after them.
                assert!(end.cq.status().cq_enable());
            } else {
                while end.word[0].load(SeqCst) != round {
                    at = turn.look(LOOK, u64::MAX).unwrap();
                }
            }
        }
        while end.cq.poll_tcq().is_some() {}
        while end.cq.poll_mrq().is_some() {}
        times.push(at - start);
    }
    times
}

#[test]
fn put_between_clients_takes_its_time() {
    let shape: Shape = "1x1x1x2x1x1".parse().unwrap();
    let nodes = [NodeId(0), NodeId(1)];
    let memory = || Arc::new(ClientMemory::new(Backing::Process, Limits::DEFAULT));
    let memories = nodes.map(|_| memory());
    let engine = EventEngine::new(
        Generation::Fugaku,
        shape,
        Arbiter::InTurn,
        memories.iter().map(|memory| Arc::clone(memory) as _),
        Box::new(|_| {}),
    );
    let engine = engine.unwrap();
    let mut servers = Vec::new();
    let platforms = nodes.map(|node| {
        let function = Function::new(&engine, node).unwrap().unwrap();
        let memory = Arc::clone(&memories[node.index()]);
        let server = Arc::new(Server::in_modelled_time(Arc::new(function), memory));
        let (mine, theirs) = UnixStream::pair().unwrap();
        let serving = Arc::clone(&server);
        servers.push((server, thread::spawn(move || serving.serve(theirs).unwrap())));
        SocketPlatform::attach(mine).unwrap()
    });
    // Time passes by itself until the programs keep it.
    let ready = AtomicBool::new(false);
    let [mut a, mut b] = thread::scope(|s| {
        s.spawn(|| {
            while !ready.load(SeqCst) {
                engine.run_until(engine.now() + 1_000_000);
            }
        });
        let ends = platforms.map(end);
        ready.store(true, SeqCst);
        ends
    });
    let targets = nodes.map(|node| Target::new(shape.coords(node).unwrap(), TniId::ALL[0]));
    let stags = [a.stag, b.stag];
    let [first, second]: [Turn; 2] = Turns::start(&engine, &nodes).try_into().unwrap();
    let times = thread::scope(|s| {
        s.spawn(|| {
            pingpong(&second, &mut b, targets[0], stags[0], false);
            drop(second);
        });
        let times = pingpong(&first, &mut a, targets[1], stags[1], true);
        drop(first);
        times
    });
    // Two ways of 0.49 us (Table III of the TofuD paper), each found by the next look.
    assert!(times.iter().all(|&ps| ps == times[1]), "{times:?}");
    assert!((980_000..=980_000 + 2 * LOOK).contains(&times[1]), "{times:?}");
    drop((a, b));
    for (server, thread) in servers {
        server.stop();
        thread.join().unwrap();
    }
}
