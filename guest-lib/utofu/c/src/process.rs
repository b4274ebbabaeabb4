//! The processes in the sense of uTofu that this process represents: one, except in tests.

use std::cell::Cell;
use std::sync::OnceLock;

use tofu_abi::{Coords, Generation};
use tofu_utofu::{Code, Context, Error};

use crate::backend::{self, Backend};
use crate::environment;
use crate::provider::AnyProvider;

/// A process in the sense of uTofu.
pub(crate) type Process = Context<AnyProvider>;

/// The most processes, so that a number fits into a handle.
const MAX_PROCESSES: usize = 1 << 16;

/// All processes, which are created when they are first used.
struct World {
    backend: Backend,
    processes: Vec<OnceLock<Result<Process, Error>>>,
}

static WORLD: OnceLock<Result<World, Error>> = OnceLock::new();

thread_local! {
    /// Number of the process that the thread belongs to.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

fn world() -> Result<&'static World, Error> {
    let world = WORLD.get_or_init(|| {
        let backend = backend::choose()?;
        let processes = backend.processes().min(MAX_PROCESSES);
        let processes = (0..processes).map(|_| OnceLock::new()).collect();
        Ok(World { backend, processes })
    });
    world.as_ref().map_err(Clone::clone)
}

/// Returns the number of processes.
pub(crate) fn count() -> Result<usize, Error> {
    Ok(world()?.processes.len())
}

/// Makes the calling thread a thread of process `index`.
pub(crate) fn select(index: usize) -> Result<(), Error> {
    let count = count()?;
    if index >= count {
        let hint = "not below the number of processes (TOFU_SHAPE, TOFU_PPN)";
        return Err(Error::with_value(Code::InvalidNumber, "process", index as u64, hint));
    }
    CURRENT.set(index);
    Ok(())
}

/// Returns the calling thread's process, and its number.
pub(crate) fn current() -> Result<(&'static Process, usize), Error> {
    let index = CURRENT.get();
    Ok((get(index)?, index))
}

/// Returns the node of the calling thread's process, if it has a device.
pub(crate) fn here() -> Option<Coords> {
    current().ok().map(|(process, _)| process.provider().coords())
}

/// Returns the generation of the process's device, or Fugaku's if it has none.
pub(crate) fn generation() -> Generation {
    current().map_or(Generation::default(), |(process, _)| process.provider().generation())
}

/// Returns a process, and creates it if necessary.
fn get(index: usize) -> Result<&'static Process, Error> {
    let world = world()?;
    let hint = "there is no such process";
    let none = Error::with_value(Code::NotAvailable, "process", index as u64, hint);
    let place = world.processes.get(index).ok_or(none)?;
    let make = || {
        let (provider, share) = world.backend.process(index)?;
        let context = match environment::split_puts()? {
            None => Context::new(provider, share),
            Some(bytes) => Context::splitting(provider, share, bytes),
        };
        Ok(context)
    };
    place.get_or_init(make).as_ref().map_err(Clone::clone)
}

/// Returns a process that exists already, for handles.
#[inline]
pub(crate) fn existing(index: usize) -> Option<&'static Process> {
    let world = WORLD.get()?.as_ref().ok()?;
    world.processes.get(index)?.get()?.as_ref().ok()
}
