//! Group process ids (GPID): which control queues and barrier gates reach each other.
//!
//! A control queue compares 64 bits, a barrier gate 40. The values are ours: a kind in bits
//! 39 to 32, and a number of that kind below, so that ids of two kinds are never the same.

/// The owner of the queues and gates of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// A number that an administrator has given: to a job, to a user by `REG_USER`, or by
    /// `TOFU_GROUP` to programs that have the device itself. Root's programs are in 0.
    Given(u32),
    /// The default group of a user, from the user id in the initial user namespace.
    User(u32),
    /// The kernels', which fetch each other's frames.
    Kernel,
}

/// The number of the kernels' group: "IP".
const IP: u64 = 0x4950;
/// The lowest bit of the kind.
const KIND: u32 = 32;

impl Group {
    /// The group and the user of job `n` have the number `JOBS | n` (ours).
    pub const JOBS: u32 = 1 << 30;

    /// Returns the default group of a user.
    pub const fn of_user(uid: u32) -> Self {
        match uid {
            0 => Self::Given(0),
            uid => Self::User(uid),
        }
    }

    /// The id, as in the registers GPID and GPID_BSEQ.
    pub const fn gpid(self) -> u64 {
        match self {
            Self::Given(number) => number as u64,
            Self::User(uid) => 1 << KIND | uid as u64,
            Self::Kernel => 2 << KIND | IP,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;

    use super::*;
    use crate::barrier::{GPID_MASK, GpidBseq};

    /// Numbers, and more often those that are special somewhere.
    fn number() -> impl Strategy<Value = u32> {
        let special = [0, 1, IP as u32, Group::JOBS, Group::JOBS | IP as u32, u32::MAX];
        prop_oneof![any::<u32>(), proptest::sample::select(special.to_vec())]
    }

    fn group() -> impl Strategy<Value = Group> {
        prop_oneof![
            number().prop_map(Group::Given),
            number().prop_map(Group::User),
            number().prop_map(Group::of_user),
            number().prop_map(|n| Group::Given(Group::JOBS | (n % Group::JOBS))),
            Just(Group::Kernel),
        ]
    }

    #[test]
    fn kinds_do_not_meet() {
        // The whole ranges, by their ends.
        let kinds: [fn(u32) -> Group; 3] = [Group::Given, Group::User, |_| Group::Kernel];
        let mut ranges = kinds.map(|kind| (kind(0).gpid(), kind(u32::MAX).gpid()));
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:x?}");
        assert_eq!(Group::of_user(0), Group::Given(0), "as programs that have the device itself");
    }

    proptest! {
        #[test]
        fn different_groups_have_different_ids(one in group(), other in group()) {
            prop_assert_eq!(one == other, one.gpid() == other.gpid());
        }

        #[test]
        fn ids_fit_into_a_gates_register(group in group(), bseq in 0u32..1 << 24) {
            let gpid = group.gpid();
            prop_assert_eq!(gpid & !GPID_MASK, 0);
            let register = GpidBseq(0).with_gpid(gpid).with_bseq(bseq);
            prop_assert_eq!((register.gpid(), register.bseq()), (gpid, bseq));
        }
    }
}
