//! The trace of the commands of an input.

use std::collections::HashMap;

use tofu_abi::pci;
use tofu_abi::regs::{CqReg, Register};
use tofu_fabric::{NodeId, Shape};
use tofu_icc::Event;
use tofu_machine::trace::{Reason, Record, Trace, What};
use tofu_pci::PciFunction;

use crate::world::{CQ, TNI, World, coords};

/// A complete trace of an input, from before the first command.
pub struct Traced {
    /// The machine's shape.
    pub shape: Shape,
    /// Steps, in order.
    pub records: Vec<Record>,
    /// The reason why commands have failed.
    pub reasons: Vec<Reason>,
    /// Commands of all nodes that the devices have counted as ended.
    pub ended: u64,
    /// Records that were lost because the buffer was full.
    pub lost: u64,
}

impl Traced {
    /// Reads a trace to its end. The steps must be consistent, and their sums must equal the
    /// devices' counters.
    pub(crate) fn read(world: &World, mut trace: Trace) -> Self {
        let (records, reasons, lost) = (trace.read(true), trace.reasons(), trace.lost());
        let shape = world.machine.config().shape;
        let mut sum = 0;
        for node in 0..world.nodes.len() {
            let counted = world.completed(node);
            sum += counted;
            if lost > 0 {
                continue;
            }
            let id = shape.node_id(coords(node)).expect("the node is there");
            let (ended, open) = ended(&records, id);
            assert_eq!((ended, open), (counted, 0), "commands of node {node}");
        }
        for Reason { why, .. } in &reasons {
            assert!(!why.contains(char::is_control), "{why:?}");
        }
        Self { shape, records, reasons, ended: sum, lost }
    }
}

impl World {
    /// TCQ entries that a node's device has counted.
    fn completed(&self, node: usize) -> u64 {
        let register = Register::Cq { tni: TNI, cq: CQ, reg: CqReg::TcqNumNotice };
        let mut bytes = [0; 8];
        self.nodes[node].bar_read(pci::REGISTER_BAR, register.offset(), &mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// Commands of a node that have ended, and those that are still in progress.
///
/// # Panics
///
/// If one ends that has not begun, or begins while another one is in progress.
pub fn ended(records: &[Record], node: NodeId) -> (u64, usize) {
    let mut open = HashMap::new();
    let mut ended = 0;
    for record in records.iter().filter(|record| record.node == node) {
        let What::Command(event) = record.what else { continue };
        match event {
            Event::Begun { tni, tag, .. } => {
                let before = open.insert((tni, tag.cq, tag.index), tag.generation);
                assert_eq!(before, None, "commands of one place do not overlap");
            }
            Event::Answered { tni, tag, .. } => {
                assert_eq!(open.get(&(tni, tag.cq, tag.index)), Some(&tag.generation));
            }
            Event::Ended { tni, tag, .. } => {
                assert_eq!(open.remove(&(tni, tag.cq, tag.index)), Some(tag.generation));
                ended += 1;
            }
            Event::AtOnce { .. } => ended += 1,
            Event::Served { .. } => {}
        }
    }
    (ended, open.len())
}
