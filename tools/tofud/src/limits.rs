//! Limits on what isolated processes take of the node's memory, as the kernel driver has them.

use std::fs;

use rustix::system::sysinfo;
use tofu_queue_owner::Refused;
use tofu_vfio::broker::wire::Refusal;

/// Limits of users, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// All of them together.
    all: u64,
    /// The user of the requesting process.
    user: u64,
}

impl Limits {
    /// Half of the node's memory for all users, 63 of 64 parts of that for one, and not more than
    /// RLIMIT_MEMLOCK of the requesting process.
    pub(crate) fn of(pid: i32) -> Self {
        let Self { all, .. } = Self::of_root();
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        Self { all, user: (all / 64 * 63).min(locked(&limits)) }
    }

    /// Those of root's processes: half of the node's memory.
    pub(crate) fn of_root() -> Self {
        let about = sysinfo();
        let all = about.totalram.saturating_mul(about.mem_unit.into()) / 2;
        Self { all, user: all }
    }

    /// True if `more` may be taken where so much is taken by all users, and by this one.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoneLeft`].
    pub(crate) fn check(self, all: u64, user: u64, more: u64) -> Result<(), Refused> {
        let text = if all.saturating_add(more) > self.all {
            "half of the node's memory can be pinned at most".to_owned()
        } else if user.saturating_add(more) > self.user {
            format!("a user can pin {} bytes here at most: see `ulimit -l`", self.user)
        } else {
            return Ok(());
        };
        Err(Refused::new(Refusal::NoneLeft, text))
    }
}

/// RLIMIT_MEMLOCK in a text of /proc; nothing if it is not there, as the process has ended.
fn locked(limits: &str) -> u64 {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => u64::MAX,
        word => word.and_then(|word| word.parse().ok()).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_lock_limit_is_read() {
        let text = "Max processes             95951    95951    processes\n\
                    Max locked memory         8388608  unlimited  bytes\n";
        assert_eq!(locked(text), 8 << 20);
        assert_eq!(locked(&text.replace("8388608", "unlimited")), u64::MAX);
        assert_eq!(locked(""), 0);
        let own = Limits::of(std::process::id() as i32);
        assert!(own.user > 0 && own.user < own.all, "{own:?}");
        assert_eq!(Limits::of(-1).user, 0, "no process");
    }

    #[test]
    fn users_and_each_of_them_have_a_limit() {
        let limits = Limits { all: 100, user: 60 };
        let fits = |all, user, more| limits.check(all, user, more).is_ok();
        assert!(fits(0, 0, 60) && !fits(0, 0, 61));
        assert!(fits(50, 10, 50) && !fits(50, 11, 50));
        assert!(!fits(60, 0, 41) && !fits(0, 0, u64::MAX));
    }
}
