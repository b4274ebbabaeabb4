//! A node that another process of this host serves: `tofu run --local`.

use std::env;
use std::fs::File;
use std::io;
use std::sync::Arc;

use tofu_abi::{BgId, CqId, Generation, TniId};
use tofu_hosted::Library;
use tofu_tof::{Claim, Locks};
use tofu_utofu::{ClaimQueue, Code, DeviceShare, Error, Provider as _};

use super::gates::{LockGate, LockedGates};
use super::halves::OWNER;
use super::{halves, hosted};
use crate::environment;
use crate::provider::{AnyProvider, any};

/// The variable with the socket that serves the node: a path, or an `@` and the name of an abstract
/// socket. Several sockets, separated by commas, are for several processes in the sense of uTofu.
const SOCKET: &str = "TOFU_LOCAL_SOCKET";
/// The variable with the path of a file. Its locks record the owners of barrier gates, among
/// processes that share a node.
const LOCKS: &str = "TOFU_LOCAL_LOCKS";

/// Nodes that are served, or this process's share of one. There are several only in tests.
pub(crate) struct Served {
    library: Library,
    sockets: Vec<String>,
    /// The index of this process among those of its node, and their number.
    rank: (u16, u16),
}

impl Served {
    /// Takes the nodes that the environment names.
    pub(crate) fn new() -> Result<Self, Error> {
        let sockets = env::var(SOCKET).map_err(|_| {
            let hint = "TOFU_PROVIDER=local needs it; `tofu run --local` sets it";
            Error::new(Code::NotAvailable, SOCKET, hint)
        })?;
        let number = environment::number;
        let rank = (number("TOFU_LOCAL_RANK", 0)?, number("TOFU_PPN", 1)?);
        let sockets = sockets.split(',').map(str::to_owned).collect();
        Ok(Self { library: hosted::load()?, sockets, rank })
    }

    pub(crate) fn processes(&self) -> usize {
        self.sockets.len()
    }

    /// Attaches to a node.
    pub(crate) fn process(&self, index: usize) -> Result<(Arc<AnyProvider>, DeviceShare), Error> {
        let hint = "there is no such process";
        let none = Error::with_value(Code::NotAvailable, "process", index as u64, hint);
        let socket = self.sockets.get(index).ok_or(none)?;
        let (index, processes) = self.rank;
        // The owner of shared queues is one more client.
        let clients = processes.saturating_add(env::var_os(OWNER).is_some().into());
        let platform = self.library.connect(socket, index, clients);
        let platform = platform.map_err(|why| hosted::refused("Tofu device", None, why))?;
        let provider = hosted::provider(platform)?;
        let generation = provider.generation();
        let share = DeviceShare::joint(generation, index, processes)?;
        if processes == 1 {
            return Ok((any(provider), share));
        }
        let provider = provider.with_claims(Claims::open(generation)?);
        let provider = match share.half() {
            None => any(provider),
            Some(_) => halves::provider(provider, (index, processes))?,
        };
        Ok((provider, share))
    }
}

/// Divides a shared node: queues by the processes' numbers, gates by locks.
struct Claims {
    locks: Locks,
    gates: LockedGates,
}

impl Claims {
    fn open(generation: Generation) -> Result<Self, Error> {
        let path = env::var_os(LOCKS).ok_or_else(|| {
            let hint = "processes that share a node need it; `tofu run --local` sets it";
            Error::new(Code::NotAvailable, LOCKS, hint)
        })?;
        // Each process opens the file itself, because locks belong to the open file.
        let file = File::options().read(true).write(true).open(path);
        let locks = Locks::new(file.map_err(|error| no_locks(&error))?);
        Ok(Self { locks, gates: LockedGates::new(generation) })
    }
}

fn no_locks(error: &io::Error) -> Error {
    let hint = format!("processes cannot share the node: {LOCKS}: {error}");
    Error::with_text(Code::OutOfResource, "Tofu device", None, hint)
}

impl LockGate for Locks {
    fn lock(&self, tni: TniId, bg: BgId) -> io::Result<bool> {
        self.take(Claim::Gate { tni, bg })
    }

    fn unlock(&self, tni: TniId, bg: BgId) {
        self.give(Claim::Gate { tni, bg });
    }
}

impl ClaimQueue for Claims {
    type Claim = ();

    fn claim(&self, _: TniId, _: CqId) -> Result<(), Error> {
        Ok(())
    }

    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error> {
        self.gates.take(&self.locks, (tni, relays), no_locks)
    }

    fn give_gates(&self, tni: TniId, gates: u64) {
        self.gates.give(&self.locks, tni, gates);
    }
}
