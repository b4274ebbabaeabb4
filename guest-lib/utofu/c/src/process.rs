//! The processes in the sense of uTofu that this process represents: one, except in tests.
//!
//! A forked child inherits none of its parent's VCQs and gates. It can create its own, if the
//! backend allows that.

use std::cell::Cell;
use std::sync::OnceLock;

use tofu_abi::{Coords, Generation};
use tofu_process::PerProcess;
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

/// The most forks, each of a process that has used the library, so that a number fits into a
/// handle.
const MAX_FORKS: u32 = 1 << 8;

static WORLD: PerProcess<OnceLock<Result<World, Error>>> = PerProcess::new();

thread_local! {
    /// Number of the process that the thread belongs to.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

fn world() -> Result<&'static World, Error> {
    let own = WORLD.get_or_init(OnceLock::new);
    let world = own.value.get_or_init(|| {
        if own.generation >= MAX_FORKS {
            let hint = "too many of its parents have used the library";
            return Err(Error::new(Code::NotAvailable, "process", hint));
        }
        let backend = backend::choose(own.generation > 0)?;
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

/// Returns the calling thread's process, for what it has created earlier.
pub(crate) fn owner() -> Result<&'static Process, Error> {
    if WORLD.get().is_none() && is_of_parent(0) {
        return Err(parents("barrier gates"));
    }
    Ok(current()?.0)
}

/// Returns whether what has this number was created by a process that has forked this one.
pub(crate) fn is_of_parent(generation: u32) -> bool {
    generation < WORLD.generation()
}

/// Returns the error for what a process has created that has forked this one.
pub(crate) const fn parents(what: &'static str) -> Error {
    Error::new(Code::NotAvailable, what, "it belongs to the process that has forked this one")
}

/// Returns the number of what this process creates.
pub(crate) fn own_generation() -> u32 {
    WORLD.generation()
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
        context.rest_after(environment::rest_after()?);
        Ok(context)
    };
    place.get_or_init(make).as_ref().map_err(Clone::clone)
}

/// Returns a process that exists already and has this number of forks, for handles.
#[inline]
pub(crate) fn existing(index: usize, generation: u32) -> Option<&'static Process> {
    let own = WORLD.get().filter(|own| own.generation == generation)?;
    let world = own.value.get()?.as_ref().ok()?;
    world.processes.get(index)?.get()?.as_ref().ok()
}
