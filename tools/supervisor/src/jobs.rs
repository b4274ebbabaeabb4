//! Which jobs hold which nodes of a machine, and which jobs wait for nodes.
//!
//! Jobs take nodes in the order in which they came. Each job decides itself which nodes it wants:
//! in its turn it reads the state of the machine, and takes free nodes or waits.

use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, bail};
use tofu_control::protocol::{JobInfo, JobState};
use tofu_sync::lock;
use tofu_ui::printable;

/// The most jobs at a time. Each has a connection and threads.
const MOST: usize = 1024;
/// Characters of a command that are kept.
const MOST_COMMAND: usize = 200;

/// Wakes the thread that serves a job: its place in the queue may have changed, or the machine may
/// have.
pub(crate) type Wake = Box<dyn Fn() + Send>;

/// The jobs of a machine.
#[derive(Default)]
pub(crate) struct Jobs(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// The number of the latest job.
    last: u32,
    /// In the order in which they came.
    jobs: Vec<Job>,
}

struct Job {
    number: u32,
    command: String,
    pid: Option<u32>,
    /// When it came, or when it took its nodes.
    since: Instant,
    held: Option<Held>,
    wake: Wake,
}

/// The nodes that a job holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Numbers of nodes.
    pub(crate) nodes: Vec<u32>,
    /// True if no other job may use them.
    pub(crate) alone: bool,
    /// The torus that they form for the job, as text.
    pub(crate) shape: Option<String>,
}

impl Job {
    fn info(&self, state: JobState) -> JobInfo {
        let Held { nodes, alone, shape } = self.held.clone().unwrap_or_default();
        JobInfo {
            job: self.number,
            command: self.command.clone(),
            pid: self.pid,
            state,
            shape,
            alone,
            nodes,
            seconds: self.since.elapsed().as_secs_f64(),
        }
    }
}

impl Table {
    fn find(&mut self, number: u32) -> anyhow::Result<&mut Job> {
        let found = self.jobs.iter_mut().find(|job| job.number == number);
        found.with_context(|| format!("there is no job {number}"))
    }

    fn queue(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter().filter(|job| job.held.is_none())
    }
}

impl Jobs {
    /// Adds a job at the end of the queue. Returns its number.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub(crate) fn enter(
        &self,
        command: &str,
        pid: Option<u32>,
        wake: Wake,
    ) -> anyhow::Result<JobInfo> {
        let mut table = lock(&self.0);
        if table.jobs.len() >= MOST {
            bail!("the machine has {MOST} jobs, and no place for more");
        }
        let number =
            table.last.checked_add(1).context("the machine has no numbers for jobs left")?;
        table.last = number;
        let command: String = printable(command).chars().take(MOST_COMMAND).collect();
        let job = Job { number, command, pid, since: Instant::now(), held: None, wake };
        let info = job.info(JobState::Queued);
        table.jobs.push(job);
        Ok(info)
    }

    /// Returns how many jobs are before this one in the queue, or `None` if it is not in the queue.
    pub(crate) fn before(&self, number: u32) -> Option<u32> {
        let place = lock(&self.0).queue().position(|job| job.number == number);
        place.map(|place| place as u32)
    }

    /// Gives a job nodes, which replace those that it holds.
    ///
    /// # Errors
    ///
    /// If another job holds one of them, unless neither wants it alone. If it is not the job's
    /// turn, unless it only keeps some of its nodes under the same conditions. While no job waits,
    /// it is every job's turn.
    pub(crate) fn take(&self, number: u32, wanted: Held) -> anyhow::Result<JobInfo> {
        let mut table = lock(&self.0);
        let first = table.queue().next().map(|job| job.number);
        let held = table.find(number)?.held.as_ref();
        let fewer = held.is_some_and(|held| {
            held.alone == wanted.alone && wanted.nodes.iter().all(|node| held.nodes.contains(node))
        });
        let its_turn = first == Some(number) || first.is_none();
        if !fewer && !its_turn {
            bail!("it is not the turn of job {number}");
        }
        for other in table.jobs.iter().filter(|job| job.number != number) {
            let Some(held) = other.held.as_ref().filter(|held| held.alone || wanted.alone) else {
                continue;
            };
            if let Some(node) = wanted.nodes.iter().find(|node| held.nodes.contains(node)) {
                bail!("node {node} is job {}'s", other.number);
            }
        }
        let job = table.find(number)?;
        (job.held, job.since) = (Some(wanted), Instant::now());
        Ok(job.info(JobState::Running))
    }

    /// Removes a job that has ended.
    pub(crate) fn leave(&self, number: u32) -> Option<JobInfo> {
        let mut table = lock(&self.0);
        let place = table.jobs.iter().position(|job| job.number == number)?;
        let job = table.jobs.remove(place);
        Some(job.info(JobState::Ended))
    }

    /// Makes waiting jobs check again, because the machine or its jobs have changed.
    pub(crate) fn wake(&self) {
        lock(&self.0).queue().for_each(|job| (job.wake)());
    }

    /// Returns all jobs, in the order in which they came.
    pub(crate) fn list(&self) -> Vec<JobInfo> {
        let state = |job: &Job| match job.held {
            Some(_) => JobState::Running,
            None => JobState::Queued,
        };
        lock(&self.0).jobs.iter().map(|job| job.info(state(job))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(jobs: &Jobs) -> u32 {
        jobs.enter("a\u{1b}b", None, Box::new(|| {})).unwrap().job
    }

    fn nodes(nodes: &[u32], alone: bool) -> Held {
        Held { nodes: nodes.to_vec(), alone, shape: None }
    }

    #[test]
    fn first_job_takes_first() {
        let jobs = Jobs::default();
        let [one, two, three] = [(); 3].map(|()| enter(&jobs));
        assert_eq!([one, two, three].map(|job| jobs.before(job)), [Some(0), Some(1), Some(2)]);
        let error = jobs.take(two, nodes(&[5], true)).unwrap_err().to_string();
        assert_eq!(error, format!("it is not the turn of job {two}"));
        jobs.take(one, nodes(&[0, 1], true)).unwrap();
        assert_eq!([one, two, three].map(|job| jobs.before(job)), [None, Some(0), Some(1)]);
        // A job that leaves lets the next one advance.
        jobs.leave(two).unwrap();
        assert_eq!(jobs.before(three), Some(0));
        assert!(jobs.leave(two).is_none());
        assert!(enter(&jobs) > three);
        assert!(!jobs.list()[0].command.contains('\u{1b}'));
    }

    #[test]
    fn nodes_are_exclusive_or_shared() {
        let jobs = Jobs::default();
        let [one, two, three] = [(); 3].map(|()| enter(&jobs));
        jobs.take(one, nodes(&[0, 1], false)).unwrap();
        let error = jobs.take(two, nodes(&[1, 2], true)).unwrap_err().to_string();
        assert_eq!(error, format!("node 1 is job {one}'s"));
        jobs.take(two, nodes(&[1, 2], false)).unwrap();
        jobs.take(three, nodes(&[3, 4], true)).unwrap();
        let four = enter(&jobs);
        assert!(jobs.take(four, nodes(&[4], false)).is_err());
        jobs.leave(three);
        jobs.take(four, nodes(&[4], false)).unwrap();
    }

    #[test]
    fn job_keeps_fewer_nodes_without_a_turn() {
        let jobs = Jobs::default();
        let one = enter(&jobs);
        jobs.take(one, nodes(&[0, 1, 2], true)).unwrap();
        let two = enter(&jobs);
        jobs.take(one, nodes(&[0, 2], true)).unwrap();
        assert!(jobs.take(one, nodes(&[0, 1, 2], true)).is_err());
        assert!(jobs.take(one, nodes(&[0], false)).is_err());
        jobs.take(two, nodes(&[1], true)).unwrap();
        assert_eq!(jobs.list()[0].nodes, [0, 2]);
        // Other nodes as soon as no job waits for them.
        jobs.take(one, nodes(&[2, 3], true)).unwrap();
    }

    #[test]
    fn there_is_an_end_to_jobs() {
        let jobs = Jobs::default();
        (0..MOST).for_each(|_| assert!(enter(&jobs) > 0));
        assert!(jobs.enter("", None, Box::new(|| {})).is_err());
    }
}
