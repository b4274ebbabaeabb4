//! What is left of the monitor on hosts whose processors it cannot run guests on.

use std::path::Path;

use crate::support::HostSupport;

/// Why there is no monitor.
const NONE: &str = "our own monitor is for x86-64 hosts only: there is no KVM for this processor \
                    here, and nodes run under QEMU";

/// Looks at the host without changing anything: it cannot run small guests, whatever it has.
pub fn probe() -> HostSupport {
    let problem = Some(NONE.to_owned());
    HostSupport { problem, ..HostSupport::none(Path::new("/dev/kvm").exists()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::LinuxSupport;

    #[test]
    fn nothing_runs_here_and_it_is_said_why() {
        let support = probe();
        assert_eq!(support.linux(), LinuxSupport::None);
        let problem = support.problem.unwrap();
        assert!(problem.starts_with("our own monitor is for x86-64 hosts only"), "{problem}");
    }
}
