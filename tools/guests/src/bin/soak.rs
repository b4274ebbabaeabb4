//! Random Puts and Gets while links, nodes and boards fail: each Put arrives or is reported lost,
//! and all data are verified. Meanwhile nodes ping each other over IP, and answers have what was
//! sent. When all is repaired nothing is lost any more, all nodes answer, and the barrier gates of
//! all add up.
//!
//! `calm=N`: seconds without a loss after which everything counts as repaired (2); with `lossy=1`
//! not before a first loss. `seed=N`: which Puts (1).
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;

use tofu_abi::desc::MAX_MTU;
use tofu_abi::queue::MrqId;
use tofu_abi::reduce::Op;
use tofu_abi::{Path, Rcode};
use tofu_driver::{DmaBuffer, Order};
use tofu_guests::collective::Gates;
use tofu_guests::net::{Net, Pinger};
use tofu_guests::random::Random;
use tofu_guests::{Comm, Error, fail, fill_pattern, now_ns, number, println};

tofu_guests::entry!(soak);

/// A Put has up to three TLPs.
const MAX_LEN: u64 = 3 * MAX_MTU as u64;
/// Bytes between the places of two nodes.
const SLOT: u64 = 8192;
/// Offsets in each node's memory: the data that it puts, the data that it gets back, the nodes that
/// no longer need its IP, and a place for each node's Puts.
const SOURCE: u64 = 0;
const BACK: u64 = SLOT;
const DONE: u64 = 2 * SLOT;
const PLACES: u64 = 3 * SLOT;
/// The time limit for a command at most, in nanoseconds: far longer than the device waits for an
/// answer, on a host that has much else to do.
const PATIENCE_NS: u64 = 120_000_000_000;
const SECOND: u64 = 1_000_000_000;
/// Bytes of data of a ping at most.
const PING: usize = 1400;
/// One ping in this many Puts, and how long to wait for its answer, in nanoseconds: not long,
/// because the other node may be waiting for a command that is lost.
const PING_IN: u64 = 4;
const PING_NS: u64 = 1_000_000;
/// Puts, and sums of all nodes, once everything is repaired.
const LAST: u32 = 200;
const SUMS: u64 = 50;

struct Soak {
    comm: Comm,
    random: Random,
    peers: Vec<u32>,
    paths: Vec<Path>,
    /// The known contents of this node's place at each other node: the number of a Put and its
    /// length. Nothing is known after a lost Put.
    known: Vec<Option<(u64, usize)>>,
    serial: u64,
    lost: u64,
    net: Net,
    pinger: Pinger,
    pings: u64,
    answers: u64,
}

impl Soak {
    /// The repeated work of nodes.
    fn round(&mut self) -> Result<(), Error> {
        self.put_and_get()?;
        if self.random.one_in(PING_IN) {
            let peer = self.random.choose(&self.peers);
            self.pings += 1;
            self.answers += u64::from(self.ping(peer, PING_NS)?);
        }
        // Others may have pinged this one.
        self.net.poll();
        Ok(())
    }

    /// Returns true if a node answers a ping, which must have the same data.
    fn ping(&mut self, peer: u32, timeout_ns: u64) -> Result<bool, Error> {
        let mut data = vec![0; self.random.below(PING as u64 + 1) as usize];
        fill_pattern(self.random.next(), &mut data);
        let to = self.net.ipv4(peer);
        Ok(self.pinger.ping(&mut self.net, to, &data, timeout_ns)?.is_some())
    }

    /// Waits until all nodes have answered all of them.
    fn all_answer(&mut self) -> Result<(), Error> {
        for peer in self.peers.clone() {
            let start = now_ns();
            while !self.ping(peer, SECOND)? {
                if now_ns() - start > PATIENCE_NS {
                    return Err(fail!("node {peer} does not answer pings though all was repaired"));
                }
            }
        }
        let own = u64::from(self.comm.rank());
        for peer in self.peers.clone() {
            let to = self.comm.at(DONE + own);
            let done = Order::put_piggyback(self.comm.target(peer), to, &[1])?;
            if !self.run(&done)?.is_success() {
                return Err(fail!("a command is lost though all was repaired"));
            }
        }
        let mut done = vec![0; self.comm.nodes() as usize];
        let start = now_ns();
        loop {
            self.comm.data().read(DONE as usize, &mut done);
            if self.peers.iter().all(|peer| done[*peer as usize] != 0) {
                return Ok(());
            }
            if now_ns() - start > PATIENCE_NS {
                return Err(fail!("others wait for answers to pings though all was repaired"));
            }
            self.net.poll();
            self.net.wait(PING_NS);
        }
    }

    /// Runs a command; returns its target's result.
    fn run(&mut self, order: &Order) -> Result<Rcode, Error> {
        let path = self.random.choose(&self.paths);
        let cq = self.comm.cq();
        cq.post_and_ring(&order.path(path), 0)?;
        let code = loop {
            let notice = cq.wait_mrq(PATIENCE_NS)?;
            if notice.id().is_some_and(MrqId::ends_own_command) {
                break notice.word0().rcode();
            }
        };
        let sent = cq.wait_tcq(PATIENCE_NS)?.rcode;
        match code {
            _ if !sent.is_success() => Err(fail!("it was not sent: {}", sent.describe())),
            Rcode::SUCCESS => Ok(code),
            Rcode::LINK_DOWN | Rcode::TIMEOUT => {
                self.lost += 1;
                Ok(code)
            }
            code => Err(fail!("a command ends with {}", code.describe())),
        }
    }

    /// Puts data to a node, and gets back what is there.
    fn put_and_get(&mut self) -> Result<(), Error> {
        let peer = self.random.choose(&self.peers);
        let len = 1 + self.random.below(MAX_LEN) as usize;
        self.serial += 1;
        let own = u64::from(self.comm.rank());
        let (serial, target) = (own << 40 | self.serial, self.comm.target(peer));
        let mut data = vec![0; len];
        fill_pattern(serial, &mut data);
        self.comm.data().write(SOURCE as usize, &data);
        let place = self.comm.at(PLACES + own * SLOT);
        let put = Order::put(target, place, self.comm.at(SOURCE), len as u32);
        self.known[peer as usize] = match self.run(&put)? {
            Rcode::SUCCESS => Some((serial, len)),
            _ => None,
        };
        let Some((serial, len)) = self.known[peer as usize] else { return Ok(()) };
        let mut wanted = vec![0; len];
        fill_pattern(serial, &mut wanted);
        let get = Order::get(target, place, self.comm.at(BACK), len as u32);
        if self.run(&get)?.is_success() {
            let mut found = vec![0; len];
            self.comm.data().read(BACK as usize, &mut found);
            if found != wanted {
                return Err(fail!("{len} bytes of node {peer} are not those that were put there"));
            }
        }
        Ok(())
    }
}

fn soak() -> Result<(), Error> {
    let calm = number("calm", 2)?.saturating_mul(SECOND);
    let seed = number("seed", 1)?;
    let mut comm = Comm::open(|nodes| (PLACES + u64::from(nodes) * SLOT) as usize)?;
    comm.barrier()?;
    let mut net = Net::beside(&comm)?;
    let pinger = Pinger::new(&mut net, PING)?;
    let mut soak = Soak {
        random: Random::new(seed << 32 | u64::from(comm.rank())),
        peers: comm.peers().collect(),
        paths: comm.shape().paths().collect(),
        known: vec![None; comm.nodes() as usize],
        serial: 0,
        lost: 0,
        net,
        pinger,
        pings: 0,
        answers: 0,
        comm,
    };
    if soak.peers.is_empty() {
        return Err(fail!("this takes two nodes or more"));
    }
    println!("soaking");
    let mut last = (number("lossy", 0)? == 0).then(now_ns);
    while last.is_none_or(|last| now_ns() - last < calm) {
        let before = soak.lost;
        soak.round()?;
        if soak.lost > before {
            last = Some(now_ns());
        }
    }
    let lost = soak.lost;
    for _ in 0..LAST {
        soak.round()?;
    }
    soak.all_answer()?;
    if soak.lost != lost {
        return Err(fail!("commands are lost though all was repaired"));
    }
    let Soak { mut comm, serial, pings, answers, net, .. } = soak;
    net.close()?;
    comm.barrier()?;
    let mut gates = Gates::open(&mut comm)?;
    let (rank, nodes) = (u64::from(comm.rank()), u64::from(comm.nodes()));
    for round in 0..SUMS {
        let [sum] = gates.reduce(Op::Sum, [round + rank])?;
        if sum != nodes * round + nodes * (nodes - 1) / 2 {
            return Err(fail!("the sum of round {round} is {sum}"));
        }
    }
    println!(
        "{serial} Puts, {lost} commands lost and told, {answers} of {pings} pings answered, \
         {SUMS} sums"
    );
    // Other nodes' gates may still send to gates of this node.
    comm.barrier()
}
