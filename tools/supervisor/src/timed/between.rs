//! The pages of a machine's guests, for the order of their turns.

use tofu_fabric::Ps;
use tofu_pace::pages::{self, Pages};
use tofu_timed::{Away, Outlook};

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

    fn tell(&self, outlooks: &[Outlook]) {
        let outlooks = outlooks.iter();
        self.pages.tell(outlooks.map(|&Outlook { limit, ahead, acts }| pages::Outlook {
            limit,
            ahead,
            acts,
        }));
    }
}
