//! A long Put in parts that take several of the shortest paths.
//!
//! All of it except its end is sent in parts that raise no notice. The end is a shortened form of
//! the command that the program has posted. It is sent when the parts have arrived, with all flags,
//! and ends at the same address as the whole Put would. So each side gets one notice, when all data
//! is there, with the same addresses as for a whole Put. If a part fails, the whole command is sent
//! as it was posted, and its result counts.

use tofu_abi::desc::Descriptor;
use tofu_abi::{Coords, Rcode, StagOffset};

use crate::command::Command;
use crate::notice::{Entry, Notice};
use crate::wire::Mark;

/// The most bytes of a part: few enough that switches can hold what waits on one path while the
/// next part goes by another, and enough that commands cost little.
const PART: u32 = 16 << 10;
/// Bytes of the end, which waits for the parts: those of the longest packet.
const END: u32 = 1920;
/// Looks for notices of parts after their completions, before they count as lost.
const PATIENCE: u32 = 1 << 16;

/// A long Put, as it is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    whole: Command,
    from: Coords,
    parts: u32,
    part_bytes: u32,
}

impl Cut {
    /// How a command from a node is cut into at most `most` parts and its end. `None` if it is not
    /// cut, because there is only one shortest path or the program has chosen another one.
    pub(crate) fn new(whole: &Command, from: Coords, most: usize) -> Option<Self> {
        let to = whole.header1().target();
        let paths = from.minimal_paths(to).count() as u32;
        // Where nothing but one coordinate differs all paths are one way.
        let pairs = from.to_array().into_iter().zip(to.to_array());
        let one_way = pairs.filter(|(one, other)| one != other).count() < 2;
        if paths < 2 || one_way || whole.header1().path() != to.default_path() {
            return None;
        }
        // A packet for each path at least.
        let rest = whole.put_length()?.checked_sub(END).filter(|rest| *rest >= paths * END)?;
        let most = u32::try_from(most).unwrap_or(u32::MAX) / paths * paths;
        if most < paths {
            return None;
        }
        // As much for each path, in whole packets.
        let rounds = rest.div_ceil(paths * PART).min(most / paths);
        let part_bytes = rest.div_ceil(rounds * paths).next_multiple_of(END);
        Some(Self { whole: *whole, from, parts: rest.div_ceil(part_bytes), part_bytes })
    }

    fn rest(&self) -> u32 {
        self.whole.put_length().unwrap_or(0).saturating_sub(END)
    }

    /// The parts, as the device is to have them.
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

    /// What is left when the parts have arrived: the command, about the end of its memory.
    fn end(&self) -> Command {
        self.whole.after(self.rest())
    }
}

/// The end of a Put whose parts have arrived, on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    local: u64,
    remote: u64,
    /// Bytes of the parts.
    before: u64,
}

impl Tail {
    /// Whether a local notice belongs to it. If it has failed, the notice gets the addresses of the
    /// whole Put.
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

/// A Put whose parts are under way.
#[derive(Debug)]
pub(crate) struct Split {
    cut: Cut,
    pub(crate) mark: Mark,
    /// Parts whose completions, and whose notices, have not come.
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

    /// A part has ended.
    pub(crate) fn ended(&mut self, rcode: Rcode) {
        self.unended = self.unended.saturating_sub(1);
        self.failed |= !rcode.is_success();
    }

    /// Whether a notice is of a part; that is counted then.
    pub(crate) fn takes(&mut self, entry: &Entry) -> bool {
        let mark = Mark { sender: entry.sender, number: entry.notice.edata };
        let own = entry.wanted && entry.notice.kind.is_local() && mark == self.mark;
        if own {
            self.untold = self.untold.saturating_sub(1);
            self.failed |= !entry.notice.rcode.is_success();
        }
        own
    }

    /// The command that follows the parts, once none of them is in flight: the end, with its place
    /// in the whole, if all of them have arrived, and the whole command otherwise. To be called
    /// after completions and notices were polled.
    pub(crate) fn next(&mut self) -> Option<(Command, Option<Tail>)> {
        if self.unended > 0 {
            return None;
        }
        if self.untold > 0 {
            // The queue had no room for some.
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

    /// The node that it is for.
    pub(crate) const fn target(&self) -> Coords {
        self.cut.whole.header1().target()
    }
}
