//! Sends a long Put in parts over several of the shortest paths.
//!
//! All of it except its end is sent in parts that raise no notice for the program. The end is a
//! shortened form of the command that the program has posted. It is sent when the parts have
//! arrived, with all flags, and ends at the same address as the whole Put would. So each side gets
//! one notice, with the same addresses as for a whole Put, when all data has arrived. If a part
//! fails, the whole command is sent as posted, and its result counts.

use tofu_abi::desc::Descriptor;
use tofu_abi::{Coords, Rcode, StagOffset};

use crate::command::Command;
use crate::notice::{Entry, Notice};
use crate::wire::Mark;

/// The most bytes of a part. It is small enough that switches can buffer a part that waits on one
/// path while the next part takes another, and large enough that the cost of commands is low.
const PART: u32 = 16 << 10;
/// Bytes of the end, which waits for the parts: those of the longest packet.
const END: u32 = 1920;
/// The number of times to look for notices of parts after their completions, before they count as
/// lost.
const PATIENCE: u32 = 1 << 16;

/// The plan for splitting a long Put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    whole: Command,
    from: Coords,
    parts: u32,
    part_bytes: u32,
}

impl Cut {
    /// Returns how to split a command from a node into at most `most` parts and its end. Returns
    /// `None` if the Put is too short, there are too few places or paths, or the program has chosen
    /// another path.
    pub(crate) fn new(whole: &Command, from: Coords, most: usize) -> Option<Self> {
        let to = whole.header1().target();
        let paths = from.minimal_paths(to).count() as u32;
        // If only one coordinate differs, all paths are the same.
        let pairs = from.to_array().into_iter().zip(to.to_array());
        let one_way = pairs.filter(|(one, other)| one != other).count() < 2;
        if paths < 2 || one_way || whole.header1().path() != to.default_path() {
            return None;
        }
        // At least one packet for each path.
        let rest = whole.put_length()?.checked_sub(END).filter(|rest| *rest >= paths * END)?;
        let most = u32::try_from(most).unwrap_or(u32::MAX) / paths * paths;
        if most < paths {
            return None;
        }
        // The same amount for each path, in whole packets.
        let rounds = rest.div_ceil(paths * PART).min(most / paths);
        let part_bytes = rest.div_ceil(rounds * paths).next_multiple_of(END);
        Some(Self { whole: *whole, from, parts: rest.div_ceil(part_bytes), part_bytes })
    }

    fn rest(&self) -> u32 {
        self.whole.put_length().unwrap_or(0).saturating_sub(END)
    }

    /// Returns the parts in the form for the device.
    pub(crate) fn parts(&self, mark: Mark) -> impl Iterator<Item = Descriptor> + use<> {
        let Self { whole, from, parts, part_bytes } = *self;
        let rest = self.rest();
        let to = whole.header1().target();
        let paths = from.minimal_paths(to).cycle();
        (0..parts).zip(paths).map(move |(n, path)| {
            let at = n * part_bytes;
            whole.part(at, part_bytes.min(rest - at), path, mark)
        })
    }

    /// Returns the command that is left when the parts have arrived, for the end of the memory.
    fn end(&self) -> Command {
        self.whole.after(self.rest())
    }
}

/// The end of a Put whose parts have arrived. The end is on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    local: u64,
    remote: u64,
    /// Total bytes of the parts.
    before: u64,
}

impl Tail {
    /// Returns whether a local notice belongs to it. If it has failed, the notice gets the
    /// addresses of the whole Put.
    pub(crate) fn takes(&self, notice: &mut Notice) -> bool {
        let failed = !notice.rcode.is_success();
        let end = if failed { 0 } else { u64::from(END) };
        let at = |start: u64| StagOffset(start).advanced(end).0;
        let own = notice.lcl_stadd == at(self.local) && notice.rmt_stadd == at(self.remote);
        if own && failed {
            for stadd in [&mut notice.lcl_stadd, &mut notice.rmt_stadd] {
                *stadd = StagOffset(*stadd).advanced(self.before.wrapping_neg()).0;
            }
        }
        own
    }
}

/// A Put whose parts are on their way.
#[derive(Debug)]
pub(crate) struct Split {
    cut: Cut,
    pub(crate) mark: Mark,
    /// Parts whose completions have not arrived, and those whose notices have not.
    unended: u32,
    untold: u32,
    failed: bool,
    looks: u32,
}

impl Split {
    pub(crate) const fn new(cut: Cut, mark: Mark) -> Self {
        let (unended, untold) = (cut.parts, cut.parts);
        Self { cut, mark, unended, untold, failed: false, looks: 0 }
    }

    /// Records that a part has ended.
    pub(crate) fn ended(&mut self, rcode: Rcode) {
        self.unended = self.unended.saturating_sub(1);
        self.failed |= !rcode.is_success();
    }

    /// Returns whether a notice is about a part, and counts it if so.
    pub(crate) fn takes(&mut self, entry: &Entry) -> bool {
        let mark = Mark { sender: entry.sender, number: entry.notice.edata };
        let own = entry.wanted && entry.notice.kind.is_local() && mark == self.mark;
        if own {
            self.untold = self.untold.saturating_sub(1);
            self.failed |= !entry.notice.rcode.is_success();
        }
        own
    }

    /// Returns the command that follows the parts once none of them is in flight: the end with its
    /// place in the whole if all parts have arrived, and the whole command otherwise. Must be
    /// called after completions and notices have been polled.
    pub(crate) fn next(&mut self) -> Option<(Command, Option<Tail>)> {
        if self.unended > 0 {
            return None;
        }
        if self.untold > 0 {
            // The queue may have had no room for some notices.
            self.looks += 1;
            if self.looks < PATIENCE {
                return None;
            }
            self.failed = true;
        }
        if self.failed {
            return Some((self.cut.whole, None));
        }
        let (end, before) = (self.cut.end(), self.cut.rest().into());
        let [remote, local] = end.addresses();
        Some((end, Some(Tail { local, remote, before })))
    }

    /// Returns the target node.
    pub(crate) const fn target(&self) -> Coords {
        self.cut.whole.header1().target()
    }
}
