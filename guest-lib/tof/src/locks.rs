//! Which queues and gates of a node are in use, as locks on a file that all its processes open.
//!
//! The locks belong to the open file, so they end with the process, even if it is killed. A forked
//! child keeps them until it ends as well, or executes another program.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use tofu_abi::regs::{NUM_BG, NUM_CQ, NUM_TNI};
use tofu_abi::{BgId, CqId, TniId};

/// Bytes of the file that represent queues, followed by those that represent gates.
const QUEUES: usize = NUM_TNI * NUM_CQ;

/// The locks of one process.
#[derive(Debug)]
pub struct Locks(File);

/// The object of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A control queue.
    Queue {
        /// Its interface.
        tni: TniId,
        /// Its number there.
        cq: CqId,
    },
    /// A barrier gate.
    Gate {
        /// Its interface.
        tni: TniId,
        /// Its number there.
        bg: BgId,
    },
}

impl Claim {
    fn byte(self) -> usize {
        match self {
            Self::Queue { tni, cq } => tni.index() * NUM_CQ + cq.index(),
            Self::Gate { tni, bg } => QUEUES + tni.index() * NUM_BG + bg.index(),
        }
    }
}

impl Locks {
    /// Locks on `file`, which was opened for reading and writing, once for each process. Its
    /// content and length do not matter.
    pub const fn new(file: File) -> Self {
        Self(file)
    }

    fn set(&self, kind: libc::c_int, claim: Claim) -> io::Result<()> {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: claim.byte() as libc::off_t,
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: the call reads the structure.
        match unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Takes a lock; `false` if another process has it. A lock of the process itself does not
    /// prevent this.
    ///
    /// # Errors
    ///
    /// The kernel's error on a system without locks.
    pub fn take(&self, claim: Claim) -> io::Result<bool> {
        match self.set(libc::F_WRLCK, claim) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives it up.
    pub fn give(&self, claim: Claim) {
        if let Err(error) = self.set(libc::F_UNLCK, claim) {
            log::warn!("unlocking {claim:?}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_claim_has_a_lock_of_its_own() {
        let queues = TniId::ALL
            .into_iter()
            .flat_map(|tni| CqId::ALL.map(|cq| Claim::Queue { tni, cq }.byte()));
        let gates = TniId::ALL.into_iter().flat_map(|tni| {
            BgId::ALL.into_iter().take(NUM_BG).map(move |bg| Claim::Gate { tni, bg }.byte())
        });
        let bytes: BTreeSet<_> = queues.chain(gates).collect();
        assert_eq!(bytes.len(), NUM_TNI * (NUM_CQ + NUM_BG));
    }

    #[test]
    fn two_processes_have_one_each() {
        let path = std::env::temp_dir().join(format!("tofu-tof-locks-{}", std::process::id()));
        let open = || {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            Locks::new(options.open(&path).unwrap())
        };
        let (one, other) = (open(), open());
        let (gate, queue) = (
            Claim::Gate { tni: TniId::ALL[5], bg: BgId::ALL[47] },
            Claim::Queue { tni: TniId::ALL[0], cq: CqId::ALL[0] },
        );
        assert!(one.take(gate).unwrap());
        assert!(one.take(gate).unwrap(), "its own");
        assert!(!other.take(gate).unwrap());
        assert!(other.take(queue).unwrap());
        one.give(gate);
        assert!(other.take(gate).unwrap());
        drop(other);
        assert!(one.take(queue).unwrap(), "they end with the file");
        std::fs::remove_file(path).unwrap();
    }
}
