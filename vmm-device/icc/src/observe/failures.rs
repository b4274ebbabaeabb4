//! The last commands that failed, and the last requests of other nodes that were refused, with the
//! reasons in words.
//!
//! Finding a reason costs more than the failure, so only a limited number per second are
//! determined. This also bounds the cost of a guest whose commands all fail.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;

use tofu_abi::Rcode;
use tofu_inspect::{Inspect, Visit, inspect};
use tofu_rules::Rule;
use tofu_sync::lock;

use crate::observe::format::Code;
use crate::observe::violations::Lately;

/// Number of failures that are kept.
const KEPT: usize = 16;

/// A command that has failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    at_ns: u64,
    /// Queue, and the command in words.
    command: String,
    rcode: Rcode,
    /// The rule that it has broken, if any.
    rule: Option<Rule>,
    why: String,
}

inspect!(Failure { at_ns, command, rcode as Code, rule as RuleId, why });

/// A rule as it is called.
struct RuleId(Option<Rule>);

impl Inspect for RuleId {
    fn inspect(&self, visit: Visit<'_>) {
        Inspect::inspect(&self.0.map(|rule| rule.id().to_owned()), visit);
    }
}

impl Failure {
    /// The rule that it has broken.
    pub(crate) const fn rule(&self) -> Option<Rule> {
        self.rule
    }

    /// The reason in words, after the rule.
    pub(crate) fn reason(&self) -> String {
        match self.rule {
            Some(rule) => format!("{rule}: {}", self.why),
            None => self.why.clone(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at_ns: _, command, rcode, rule: _, why } = self;
        write!(f, "{command}: {rcode:?}, {rcode}: {why}")
    }
}

/// The last failures, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    lately: Lately,
    last: VecDeque<Failure>,
}

impl Failures {
    /// Keeps a failure, and passes it to `also`. `command` and `why` are called only if it is kept.
    pub(crate) fn note(
        &self,
        at_ns: u64,
        (rcode, rule): (Rcode, Option<Rule>),
        command: impl FnOnce() -> String,
        why: impl FnOnce() -> String,
        also: impl FnOnce(&Failure),
    ) {
        if lock(&self.0).lately.take(at_ns).is_none() {
            return;
        }
        let failure = Failure { at_ns, command: command(), rcode, rule, why: why() };
        also(&failure);
        let last = &mut lock(&self.0).last;
        if last.len() >= KEPT {
            last.pop_front();
        }
        last.push_back(failure);
    }

    pub(crate) fn forget(&self) {
        lock(&self.0).last.clear();
    }
}

impl Inspect for Failures {
    fn inspect(&self, visit: Visit<'_>) {
        let last = lock(&self.0).last.clone();
        last.inspect(visit);
    }
}
