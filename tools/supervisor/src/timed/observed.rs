//! Records of what devices in modelled time do, for traces, and of the packets between them, for
//! captures.

use std::sync::Arc;

use tofu_abi::Coords;
use tofu_abi::topology::NodeId;
use tofu_fabric::Ps;
use tofu_icc::{Event, Subject};
use tofu_machine::Interconnect;
use tofu_machine::capture::ModelledCaptures;
use tofu_machine::trace::{Recorder, What};
use tofu_timed::{EventEngine, Observer};

/// When the clocks of guests begin, in nanoseconds since 1970: on 1 January 2026, as QEMU's
/// command line says.
const EPOCH_NS: u64 = 1_767_225_600_000_000_000;

/// Records what devices do while there is a trace.
struct Observed(Arc<Recorder>);

/// The clock of an engine, which does not keep it alive.
fn clock(engine: &Arc<EventEngine>) -> impl Fn() -> Ps + Send + Sync + use<> {
    let engine = Arc::downgrade(engine);
    move || engine.upgrade().map_or(0, |engine| engine.now())
}

/// Captures of the packets of an engine.
pub(super) fn captures(engine: &Arc<EventEngine>) -> ModelledCaptures {
    let interconnect = Interconnect::Tofu(engine.generation());
    ModelledCaptures::new(engine, interconnect, EPOCH_NS, clock(engine))
}

/// Has what the devices of an engine do recorded.
pub(super) fn observe(engine: &Arc<EventEngine>) -> Arc<Recorder> {
    let recorder = Recorder::modelled(EPOCH_NS, clock(engine));
    engine.observe(Box::new(Observed(Arc::clone(&recorder))));
    recorder
}

impl Observed {
    /// The recorder, while there is a trace.
    fn recorder(&self) -> Option<&Recorder> {
        self.0.is_on().then_some(&*self.0)
    }
}

impl Observer for Observed {
    fn step(&self, node: NodeId, event: &Event) {
        if let Some(recorder) = self.recorder() {
            recorder.note_step(node, event);
        }
    }

    fn explain(&self, by: Coords, subject: &Subject, why: &str) {
        if let Some(recorder) = self.recorder() {
            recorder.explain(by, subject, why);
        }
    }

    fn access(&self, node: NodeId, offset: u64, write: bool) {
        if let Some(recorder) = self.recorder() {
            recorder.note(node, &What::Access { offset, write });
        }
    }

    fn interrupt(&self, node: NodeId, vector: u16) {
        if let Some(recorder) = self.recorder() {
            recorder.note(node, &What::Interrupt(vector));
        }
    }

    fn stamp(&self) -> u64 {
        self.0.stamp()
    }
}
