//! Traces of commands: the switch that turns them on, and what observes a
//! command's end.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tofu_abi::{CqId, Rcode, TniId};

use crate::host::Host;
use crate::observe::trace_events::Event;
use crate::tlp::Tag;

/// The switch that turns on traces of commands.
#[derive(Debug, Default)]
pub(crate) struct Traced(AtomicBool);

impl Traced {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, on: bool) {
        self.0.store(on, Relaxed);
    }

    #[inline]
    pub(crate) fn watch<'a>(
        &self,
        host: &'a dyn Host,
        (tni, cq): (TniId, CqId),
    ) -> Option<Watch<'a>> {
        self.is_on().then_some(Watch { host, tni, cq })
    }
}

/// Reports the ends of a queue's commands.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a> {
    host: &'a dyn Host,
    tni: TniId,
    cq: CqId,
}

impl Watch<'_> {
    #[inline(never)]
    pub(crate) fn ended(&self, (index, generation): (u16, u32), rcode: Rcode, sent: Rcode) {
        let tag = Tag { cq: self.cq, index, generation };
        self.host.observe(&Event::Ended { tni: self.tni, tag, rcode, sent });
    }
}
