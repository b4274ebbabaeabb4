//! The state of the library, shared by all threads of the process.

use std::sync::{PoisonError, RwLock};

use tofu_jtofu::{Jobs, Mapinfo};

use crate::code::Code;

struct State {
    jobs: Jobs,
    /// The calls of `jtofu_initialize` less those of `jtofu_finalize`.
    uses: u32,
}

static STATE: RwLock<Option<State>> = RwLock::new(None);

/// Initializes the library, or counts one more use by the same process.
pub(crate) fn initialize(
    job: u32,
    rank: u32,
    mapinfo: impl FnOnce() -> Result<Mapinfo, Code>,
) -> Result<(), Code> {
    let mut state = STATE.write().unwrap_or_else(PoisonError::into_inner);
    match &mut *state {
        Some(state) if state.jobs.me() == (job, rank) => {
            state.uses = state.uses.checked_add(1).ok_or(Code::Internal)?;
        }
        Some(state) => {
            let (own, own_rank) = state.jobs.me();
            return Err(Code::invalid(format_args!(
                "initialized as rank {own_rank} of job {own} already"
            )));
        }
        None => {
            let jobs = Jobs::new(job, rank, mapinfo()?).map_err(Code::invalid)?;
            *state = Some(State { jobs, uses: 1 });
        }
    }
    Ok(())
}

/// Takes back one use.
pub(crate) fn finalize() -> Result<(), Code> {
    let mut state = STATE.write().unwrap_or_else(PoisonError::into_inner);
    let Some(known) = &mut *state else { return Err(Code::ExcessFinalize) };
    known.uses -= 1;
    if known.uses == 0 {
        *state = None;
    }
    Ok(())
}

/// Calls `f` with the jobs for reading.
pub(crate) fn read<T>(f: impl FnOnce(&Jobs) -> Result<T, Code>) -> Result<T, Code> {
    let state = STATE.read().unwrap_or_else(PoisonError::into_inner);
    f(&state.as_ref().ok_or(Code::NotInitialized)?.jobs)
}

/// Calls `f` with the jobs for changes.
pub(crate) fn change(f: impl FnOnce(&mut Jobs) -> Result<(), Code>) -> Result<(), Code> {
    let mut state = STATE.write().unwrap_or_else(PoisonError::into_inner);
    f(&mut state.as_mut().ok_or(Code::NotInitialized)?.jobs)
}
