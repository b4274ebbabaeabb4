//! The half of a control queue that a process has if it shares the queue with another one.

use core::ops::Range;

use tofu_abi::queue::MrqEntry;

use crate::ids::FIRST_NORMAL_STAG;
use crate::notice::Entry;
use crate::stag::NUM_STAGS;
use crate::wire::Edata;

/// Half of a control queue: of its extra values, and of its steering tags.
///
/// The extra values of both differ in the bit that is part of all notices, so a notice identifies
/// its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Extra values 0 to 3 and component IDs 0 to 3.
    Lower = 0,
    /// Extra values 4 to 7 and component IDs 4 to 7.
    Upper = 1,
}

impl Half {
    /// The two of them.
    pub const BOTH: [Self; 2] = [Self::Lower, Self::Upper];

    /// Returns the half to which an extra value belongs.
    pub(crate) const fn of_extra(extra: u8) -> Self {
        if extra & 4 == 0 { Self::Lower } else { Self::Upper }
    }

    /// Returns the half whose process gets this notice; `None` if neither does.
    pub fn of_notice(entry: &MrqEntry) -> Option<Self> {
        if Entry::is_unwanted(entry) {
            return None;
        }
        let edata = Edata(entry.word1().edata().into());
        let is_halfway = entry.id()?.is_halfway();
        Some(Self::of_extra(if is_halfway { edata.target() } else { edata.sender() }))
    }

    /// Returns whether the process may register memory under a steering tag.
    pub fn has_stag(self, stag: u32) -> bool {
        // The reserved tags of a VCQ begin with its extra value.
        match u8::try_from(stag >> 8) {
            Ok(extra) if stag < FIRST_NORMAL_STAG => Self::of_extra(extra) == self,
            _ => normal_stags(Some(self)).contains(&stag),
        }
    }
}

/// The normal steering tags of a process that has this half of a queue, or all of it.
pub(crate) const fn normal_stags(half: Option<Half>) -> Range<u32> {
    const MIDDLE: u32 = FIRST_NORMAL_STAG + (NUM_STAGS - FIRST_NORMAL_STAG) / 2;
    match half {
        None => FIRST_NORMAL_STAG..NUM_STAGS,
        Some(Half::Lower) => FIRST_NORMAL_STAG..MIDDLE,
        Some(Half::Upper) => MIDDLE..NUM_STAGS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_abi::queue::{MrqId, MrqWord0, MrqWord1};

    #[test]
    fn each_tag_belongs_to_one_half() {
        for stag in 0..NUM_STAGS {
            let owners = Half::BOTH.iter().filter(|half| half.has_stag(stag)).count();
            assert_eq!(owners, 1, "{stag}");
        }
        assert!(Half::BOTH.iter().all(|half| !half.has_stag(NUM_STAGS)));
        assert!(Half::Lower.has_stag(0xb05) && Half::Upper.has_stag(0xc05));
    }

    #[test]
    fn notices_tell_their_half() {
        let entry = |id: MrqId, edata: Edata| {
            let word0 = MrqWord0(0).with_id(id as u8).0;
            MrqEntry([word0, MrqWord1(0).with_edata(edata.0 as u16).0, 0, 0])
        };
        for extra in 0..16 {
            let half = Half::of_extra(extra);
            let (other, wanted) = (extra ^ 4, Edata(0).with_local(true));
            let put = wanted.with_sender(extra).with_target(other & 7);
            assert_eq!(Half::of_notice(&entry(MrqId::PutLast, put)), Some(half));
            let got = Edata(0).with_sender(other).with_target(extra & 7);
            assert_eq!(Half::of_notice(&entry(MrqId::PutLastHalfway, got)), Some(half));
            assert_eq!(Half::of_notice(&entry(MrqId::PutLast, got)), None, "not wanted");
        }
        assert_eq!(Half::of_notice(&MrqEntry([0; 4])), None);
    }
}
