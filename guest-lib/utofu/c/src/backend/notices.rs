//! The number of notices a queue holds until they are polled.

use std::fs;

/// Size code of message receive queues, as on real systems: 131072 notices.
pub(super) const MRQ_SIZE: u8 = 3;
/// Memory of a node in KiB below which they have [`SMALL_MRQ_SIZE`].
const SMALL_NODE_KIB: u64 = 1 << 20;
/// Their size code there: 32768 notices, which take 1 MiB. A user's share of a node's memory is
/// limited, and queues of 4 MiB for each of six interfaces would use up most of it on a small node.
const SMALL_MRQ_SIZE: u8 = 2;

/// The size code on this node, where what users pin is limited.
pub(super) fn mrq_size() -> u8 {
    let about = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = about.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    match total {
        Some(0..SMALL_NODE_KIB) => SMALL_MRQ_SIZE,
        _ => MRQ_SIZE,
    }
}
