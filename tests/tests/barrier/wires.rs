//! Faults on the wires, and their effects on barriers.

use std::sync::Arc;

use tofu_abi::irq::BgsIrqs;
use tofu_abi::reduce::{self, Op};
use tofu_driver::{Channel, ChannelWaitError, Device};
use tofu_fabric::{FaultCounters, FaultPlan, Ppm, Rates, Shape};
use tofu_inproc::InProcess;
use tofu_machine::{Machine, MachineConfig};

use crate::group::{BCH, config, gate_at, tni, tni_id, tree};

/// Longer than a round takes on any host, in nanoseconds.
const LONG_NS: u64 = 30_000_000_000;
/// Long enough for a round that cannot end, in nanoseconds.
const SHORT_NS: u64 = 10_000_000;
const NODES: usize = 12;
const ROUNDS: u64 = 200;

fn percent(n: u32) -> Ppm {
    Ppm::new(n * 10_000).unwrap()
}

/// A machine whose nodes are all members of a group.
struct Wired {
    machine: Arc<Machine>,
    devices: Vec<Device<InProcess>>,
}

impl Wired {
    fn new() -> Self {
        let shape: Shape = "1x1x1x2x3x2".parse().unwrap();
        let machine =
            Arc::new(Machine::new(MachineConfig::of(tofu_tests::generation(), shape)).unwrap());
        let device = |coords| {
            let device =
                Device::probe(InProcess::attach(&machine, coords, 1 << 16).unwrap()).unwrap();
            device.tni(tni_id()).enable().unwrap();
            device
        };
        let devices = shape.iter().map(device).collect();
        Self { machine, devices }
    }

    fn set_faults(&self, everywhere: Rates, commands: bool) {
        let plan = FaultPlan { seed: 11, everywhere, links: Vec::new(), commands };
        self.machine.network().wires().set_faults(Some(plan)).unwrap();
    }

    fn faults(&self) -> FaultCounters {
        self.machine.network().wires().faults().unwrap().1
    }

    /// A channel on each node; rounds begin with this number.
    fn group(&self, bseq: u32) -> Vec<Channel<InProcess>> {
        let members: Vec<_> =
            self.devices.iter().map(|d| gate_at(d.coords(), tni(), BCH)).collect();
        let open = |(rank, device)| {
            Channel::open(device, &config(7, bseq), &tree(&members, rank)).unwrap()
        };
        self.devices.iter().enumerate().map(open).collect()
    }
}

fn sums(channels: &mut [Channel<InProcess>], rounds: u64) {
    let nodes = NODES as u64;
    for round in 0..rounds {
        for (rank, channel) in (0..).zip(channels.iter_mut()) {
            let input = reduce::integers(&[rank + round]).unwrap();
            channel.start(Op::Sum, &input, 1).unwrap();
        }
        for channel in channels.iter_mut() {
            let outcome = channel.wait(LONG_NS).unwrap();
            assert_eq!(outcome.value[0], nodes * round + nodes * (nodes - 1) / 2, "{round}");
        }
    }
}

#[test]
fn lossy_links_deliver_signals_once() {
    let wired = Wired::new();
    let half = percent(50);
    let everything =
        Rates { loss: half, duplicate: half, reorder: half, corrupt: half, undetected: half };
    wired.set_faults(everything, false);
    let mut channels = wired.group(0);
    sums(&mut channels, ROUNDS);
    assert!(channels.iter().all(|channel| channel.exceptions().is_empty()));
    assert_eq!(wired.faults(), FaultCounters::default());
}

#[test]
fn signals_that_come_twice_count_once() {
    let wired = Wired::new();
    wired.set_faults(Rates { duplicate: percent(30), ..Rates::NONE }, true);
    let mut channels = wired.group(0);
    sums(&mut channels, ROUNDS);
    let exceptions = channels.iter().fold(BgsIrqs::NONE, |all, channel| all | channel.exceptions());
    // A duplicate arrives while the gate waits for the round's other signal, or after the round.
    assert_eq!(exceptions, BgsIrqs::SIGNAL_STATE_ERROR | BgsIrqs::BSEQ_UNMATCH);
    let FaultCounters { duplicated, lost, .. } = wired.faults();
    assert!(duplicated > ROUNDS && lost == 0, "{duplicated} duplicated, {lost} lost");
}

#[test]
fn lost_signal_lets_the_group_restart() {
    let wired = Wired::new();
    let mut bseq = 0;
    for loss in [percent(1), percent(20), Ppm::ALWAYS] {
        let mut channels = wired.group(bseq);
        sums(&mut channels, 2);
        wired.set_faults(Rates { loss, ..Rates::NONE }, true);
        // Ends with the first round in which a signal is lost. Rounds that end have correct
        // results.
        let lost = (0..1_000_000u64).find(|round| {
            for (rank, channel) in (0..).zip(&mut channels) {
                channel.start(Op::Max, &reduce::integers(&[rank * round]).unwrap(), 1).unwrap();
            }
            let ends: Vec<_> = channels.iter_mut().map(|channel| channel.wait(SHORT_NS)).collect();
            for outcome in ends.iter().flatten() {
                assert_eq!(outcome.value[0], (NODES as u64 - 1) * round);
            }
            let late = |end: &Result<_, _>| matches!(end, Err(ChannelWaitError::TimedOut { .. }));
            ends.iter().any(late)
        });
        assert!(lost.is_some() && wired.faults().lost > 0, "{loss:?}");
        wired.set_faults(Rates::NONE, true);
        // Members may be in this round or the one before.
        let last = channels.iter().map(Channel::bseq).max().unwrap();
        for channel in channels {
            channel.close().unwrap();
        }
        bseq = last + 2;
    }
    sums(&mut wired.group(bseq), ROUNDS);
}
