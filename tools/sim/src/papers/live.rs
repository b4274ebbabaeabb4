//! A machine with modelled links, as guests use it, counts the same times as the devices here.

use std::sync::Arc;

use tofu_abi::{Coords, TniId};
use tofu_driver::{Device, Order};
use tofu_fabric::Shape;
use tofu_icc::ModelTime;
use tofu_inproc::InProcess;
use tofu_machine::{Generation, Links, Machine, MachineConfig};

use super::end::End;
use crate::machine::{Model, ModelConfig};

const MEMORY: usize = 16 << 20;
const BUFFER: usize = 2 << 20;
/// Bytes of a burst of whole TLPs. With a short last burst, answers would queue, and do so
/// differently in a device that takes no time to answer.
const BURST: u32 = 136 * 1920;
const LONG: u32 = 8 * BURST;

fn shape() -> Shape {
    Shape::new([1, 1, 1, 2, 1, 1]).unwrap()
}

fn coords(a: u8) -> Coords {
    Coords::new(0, 0, 0, a, 0, 0)
}

/// Returns what the sender has counted when a command is answered, in a model, where Puts are
/// complete before.
fn in_a_model(generation: Generation, order: impl Fn(&[End; 2]) -> Order) -> ModelTime {
    let config = ModelConfig { memory: MEMORY, ..ModelConfig::new(generation, shape()) };
    let model = Model::new(&config).unwrap();
    let mut ends = [0, 1].map(|a| End::new(&model, coords(a), TniId::ALL[0], BUFFER).unwrap());
    let order = order(&ends);
    model.begin_epoch();
    ends[0].cq.post_and_ring(&order, 0).unwrap();
    while model.step() {}
    assert_eq!(ends[0].ended().unwrap(), 1);
    model.icc(coords(0)).unwrap().model_time(TniId::ALL[0])
}

/// Returns what the sender has counted when a command is complete, in a machine.
fn in_a_machine(generation: Generation, order: impl Fn(&[End; 2]) -> Order) -> ModelTime {
    let machine = machine(generation, shape());
    let mut ends = [0, 1].map(|a| {
        let device = device(&machine, coords(a));
        End::of(&device, coords(a), TniId::ALL[0], BUFFER).unwrap()
    });
    ends[0].cq.post_and_ring(&order(&ends), 0).unwrap();
    machine.run_pending();
    assert_eq!(ends[0].ended().unwrap(), 1);
    machine.node(coords(0)).unwrap().icc().model_time(TniId::ALL[0])
}

fn machine(generation: Generation, shape: Shape) -> Arc<Machine> {
    let config = MachineConfig { links: Links::Modelled, ..MachineConfig::of(generation, shape) };
    Arc::new(Machine::with_manual_clock(config).unwrap())
}

fn device(machine: &Arc<Machine>, coords: Coords) -> Device<InProcess> {
    let device = Device::probe(InProcess::attach(machine, coords, MEMORY).unwrap()).unwrap();
    device.enable_tnis().unwrap();
    device
}

fn of_both(generation: Generation, order: impl Fn(&[End; 2]) -> Order) -> ModelTime {
    let (model, machine) = (in_a_model(generation, &order), in_a_machine(generation, &order));
    assert_eq!(model, machine, "{generation}");
    machine
}

fn both(order: impl Fn(&[End; 2]) -> Order) -> ModelTime {
    of_both(Generation::Fugaku, order)
}

fn put(bytes: u32) -> impl Fn(&[End; 2]) -> Order {
    move |ends| ends[0].put(&ends[1], bytes, 1, 8).unwrap()
}

#[test]
fn one_frame_takes_what_it_takes_here() {
    for generation in Generation::ALL {
        let short = of_both(generation, put(8));
        assert!(short.last_request_ps > 0);
        of_both(generation, |ends| {
            Order::get(ends[1].target(), ends[1].stag.at(0), ends[0].stag.at(0), 8)
        });
    }
}

/// The later ones of eight bursts wait behind the earlier ones. That wait counts only once.
#[test]
fn long_message_takes_its_modelled_time() {
    // Table V of the TofuD paper.
    for (generation, paper) in Generation::ALL.into_iter().zip([4.76, 4.76, 11.46, 6.35]) {
        let put = of_both(generation, put(LONG));
        let rate = f64::from(LONG) * 1e3 / put.last_request_ps as f64;
        assert!((0.98 * paper..1.01 * paper).contains(&rate), "{generation}: {rate} GB/s");
        of_both(generation, |ends| {
            Order::get(ends[1].target(), ends[1].stag.at(0), ends[0].stag.at(0), BURST)
        });
    }
}

/// The interface has no room for this many bursts.
#[test]
fn waiting_message_takes_its_modelled_time() {
    let answered = both(|ends| put(20 * 256 * 64)(ends).mtu(64).packet_response());
    assert!(answered.answers > 16, "{} bursts", answered.answers);
}

#[test]
fn gap_spaces_a_machines_frames() {
    let with = |gap| both(move |ends| put(LONG)(ends).gap(gap));
    let (full, half) = (with(0), with(64));
    // 64 units of 32 bytes are about as long as a frame of 2064 bytes.
    let ratio = half.last_request_ps as f64 / full.last_request_ps as f64;
    assert!((1.95..2.05).contains(&ratio), "{full:?} {half:?}");
}

/// All interfaces of a node send at the same time, each to another neighbour: Table IV of the TofuD
/// paper. The buses of the K computer and FX10 carry less than their links.
#[test]
fn node_injects_at_link_and_bus_rate() {
    let within = [14.5..15.0, 17.0..17.6, 45.0..46.0, 37.5..38.2];
    for (generation, within) in Generation::ALL.into_iter().zip(within) {
        let machine = machine(generation, Shape::new([3, 3, 3, 1, 1, 1]).unwrap());
        let node = device(&machine, Coords::default());
        let places = [(1, 0, 0), (2, 0, 0), (0, 1, 0), (0, 2, 0), (0, 0, 1), (0, 0, 2)];
        let tnis = generation.description().tni_ids();
        let mut ends: Vec<_> = tnis
            .clone()
            .zip(places)
            .map(|(tni, (x, y, z))| {
                let there = Coords::new(x, y, z, 0, 0, 0);
                let target = End::of(&device(&machine, there), there, tni, BUFFER).unwrap();
                (End::of(&node, Coords::default(), tni, BUFFER).unwrap(), target)
            })
            .collect();
        for (end, target) in &mut ends {
            let order = end.put(target, LONG, 1, 0).unwrap();
            end.cq.post_and_ring(&order, 0).unwrap();
        }
        machine.run_pending();
        let icc = machine.node(Coords::default()).unwrap().icc();
        let last = ends.iter().map(|(end, _)| icc.model_time(end.cq.tni()).last_request_ps).max();
        let rate = f64::from(LONG) * tnis.len() as f64 * 1e3 / last.unwrap() as f64;
        assert!(within.contains(&rate), "{generation}: {rate} GB/s");
    }
}
