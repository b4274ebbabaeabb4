//! The jobs that a process knows: its own, and others that have been added.

use std::collections::BTreeMap;

use tofu_abi::Coords;

use crate::{Job, Mapinfo, PathTo, RouteError, System};

/// The reason why a job is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The process's rank is not one of its job.
    #[error("rank {rank} is not in the job, which has {processes} processes")]
    Rank {
        /// The rank.
        rank: u32,
        /// Number of processes of the job.
        processes: u32,
    },
    /// The job is known already.
    #[error("job {0} is known already")]
    Known(u32),
    /// The job is not known.
    #[error("no job {0} is known")]
    Unknown(u32),
    /// The process's own job cannot be deleted.
    #[error("job {0} is the process's own")]
    Own(u32),
    /// The job's mapinfo is for another machine.
    #[error("the mapinfo of job {0} is of another machine")]
    OtherSystem(u32),
}

/// The jobs that a process knows.
#[derive(Clone, Debug)]
pub struct Jobs {
    id: u32,
    rank: u32,
    place: Coords,
    system: System,
    jobs: BTreeMap<u32, Job>,
}

impl Jobs {
    /// Creates the set with the process's own job.
    ///
    /// # Errors
    /// [`JobError::Rank`] if the job does not have the rank.
    pub fn new(id: u32, rank: u32, info: Mapinfo) -> Result<Self, JobError> {
        let Mapinfo { system, job } = info;
        let processes = job.processes();
        let place = job.coords(rank).ok_or(JobError::Rank { rank, processes })?;
        Ok(Self { id, rank, place, system, jobs: BTreeMap::from([(id, job)]) })
    }

    /// Adds another job on the same machine.
    ///
    /// # Errors
    /// [`JobError::Known`] and [`JobError::OtherSystem`].
    pub fn add(&mut self, id: u32, info: Mapinfo) -> Result<(), JobError> {
        if self.jobs.contains_key(&id) {
            return Err(JobError::Known(id));
        }
        // Failures may have changed since.
        if info.system.shape() != self.system.shape() {
            return Err(JobError::OtherSystem(id));
        }
        self.jobs.insert(id, info.job);
        Ok(())
    }

    /// Forgets a job that was added.
    ///
    /// # Errors
    /// [`JobError::Own`] and [`JobError::Unknown`].
    pub fn delete(&mut self, id: u32) -> Result<(), JobError> {
        if id == self.id {
            return Err(JobError::Own(id));
        }
        self.jobs.remove(&id).map(|_| ()).ok_or(JobError::Unknown(id))
    }

    /// Returns the number of the process's own job, and its rank there.
    pub const fn me(&self) -> (u32, u32) {
        (self.id, self.rank)
    }

    /// Returns the node that the process runs on.
    pub const fn place(&self) -> Coords {
        self.place
    }

    /// Returns the machine.
    pub const fn system(&self) -> &System {
        &self.system
    }

    /// Returns the process's own job.
    pub fn own(&self) -> &Job {
        &self.jobs[&self.id]
    }

    /// Returns the own job, or one that has been added.
    ///
    /// # Errors
    /// [`JobError::Unknown`].
    pub fn job(&self, id: u32) -> Result<&Job, JobError> {
        self.jobs.get(&id).ok_or(JobError::Unknown(id))
    }

    /// Returns [`System::onesided_paths`] from the process's node.
    ///
    /// # Errors
    /// [`RouteError`] if the machine has no such node.
    pub fn onesided_paths(&self, to: Coords) -> Result<Vec<PathTo>, RouteError> {
        self.system.onesided_paths(self.place, to)
    }

    /// Returns [`System::barrier_paths`] from the process's node.
    ///
    /// # Errors
    /// [`RouteError`] if the machine has no such node.
    pub fn barrier_paths(&self, to: Coords) -> Result<Vec<PathTo>, RouteError> {
        self.system.barrier_paths(self.place, to)
    }
}
