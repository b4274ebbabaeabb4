//! Observability: traces, logs, counters and live state. Nothing here changes what a device does.
//!
//! | module | what |
//! |---|---|
//! | `trace_events` | the steps of commands, as the host sees them |
//! | `trace_points` | where the device emits them |
//! | `tracing` | whether commands are traced |
//! | `inspect`, `format` | live state as a tree, and how values are printed in it |
//! | `statistics` | the statistics queue of the crossbar, and counters |
//! | `violations` | the rate-limited log of what a guest does against the rules |
//! | `rules` | the rules that result codes and interrupt requests are about |
//! | `rule_counts` | where these are counted, and the counts of all rules |
//! | `blank` | rings that have to be blank when the device begins to use them |
//! | `failures`, `explain` | the last failed commands, and the reason of a failure in words |

pub(crate) mod blank;
pub(crate) mod explain;
pub(crate) mod failures;
pub(crate) mod format;
mod inspect;
mod rule_counts;
pub(crate) mod rules;
pub(crate) mod statistics;
pub(crate) mod trace_events;
mod trace_points;
pub(crate) mod tracing;
pub(crate) mod violations;
