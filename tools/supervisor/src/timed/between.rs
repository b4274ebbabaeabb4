//! The pages of a machine's guests, for the order of their turns.

use tofu_fabric::Ps;
use tofu_pace::pages::{Outlook, Pages};
use tofu_timed::{Away, Bounds};

/// The pages through which guests keep each other's pace, and the longest step of a guest.
#[derive(Debug)]
pub(super) struct Between {
    pub(super) pages: Pages,
    pub(super) longest_step: Ps,
}

impl Away for Between {
    fn reached(&self, program: usize) -> Ps {
        self.pages.reached(program)
    }

    fn report_at(&self, at: Ps) {
        self.pages.report_at(at);
    }

    fn apart(&self) -> Ps {
        self.longest_step
    }

    fn tell(&self, bounds: &[Bounds]) {
        let outlook = |&Bounds { limit, ahead, acts }: &_| Outlook { limit, ahead, acts };
        self.pages.tell(bounds.iter().map(outlook));
    }
}
