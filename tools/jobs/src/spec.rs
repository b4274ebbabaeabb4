//! Specifications of jobs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, bail};
use tofu_control::MachineName;
use tofu_fabric::Shape;
use tofu_jtofu::LogicalShape;
use tofu_spec::units::Timeout;
use tofu_spec::{MachineSpec, choices};

/// The prefix of uTofu's settings.
const SETTINGS: &str = "UTOFU_";

/// A specification of a job.
#[derive(Debug, Clone, Default)]
pub struct JobSpec {
    /// Number of ranks. One for each node if it is not given.
    pub ranks: Option<u32>,
    /// Torus of nodes for the job.
    pub map: Option<LogicalShape>,
    /// Ranks on each node. As few as possible if it is not given.
    pub ppn: Option<u32>,
    /// The machine that the job runs on. None is started then.
    pub machine: Option<MachineName>,
    /// True if the ranks are processes on this host, in a machine without guests.
    pub local: bool,
    /// True if the program uses MPI, by PMI-1.
    pub mpi: bool,
    /// Variables for the ranks.
    pub env: Vec<Variable>,
    /// Files and folders to copy to the ranks' working folder.
    pub copy: Vec<PathBuf>,
    /// Scripts for programs that nodes may lack: names and texts.
    pub tools: Vec<(String, String)>,
    /// Where what ranks wrote in their working folder is copied to.
    pub out: Option<PathBuf>,
    /// The working folder, which nodes get a copy of. Changes by ranks are copied back.
    pub cwd: Option<PathBuf>,
    /// Whose libraries the program runs with.
    pub libs: Libs,
    /// The time after which the job is ended.
    pub timeout: Option<Timeout>,
    /// The time for which other ranks may continue when one has failed, and that ranks have to end.
    pub grace: Timeout,
    /// The number of times that the job is started again, on nodes that are left, if it has lost
    /// nodes.
    pub restart: u32,
    /// Which rank is on which node of the job.
    pub order: RankOrder,
    /// Files that ranks' outputs go to, instead of this command's.
    pub files: [Option<RankFile>; 2],
    /// A file that is rank 0's standard input, instead of this command's.
    pub input: Option<PathBuf>,
    /// True if ranks run as root.
    pub root: bool,
    /// True if ranks' output is printed without the rank in front.
    pub no_prefix: bool,
    /// True if JSON objects are printed.
    pub json: bool,
    /// The torus of nodes for the job, or the shape of a machine that is started for it.
    pub shape: Option<JobShape>,
    /// True if the job fails if there are no free nodes.
    pub no_wait: bool,
    /// A machine that is started for the job. Only its clock, interconnect, links, image and driver
    /// count.
    pub own: MachineSpec,
    /// The program and its arguments. A name with a / is a file of this host, any other a program
    /// of the nodes.
    pub program: Vec<String>,
    /// Further programs with their arguments, each with its number of ranks. They run as the last
    /// ranks, in this order.
    pub others: Vec<(u32, Vec<String>)>,
}

impl JobSpec {
    /// Returns the variables that ranks inherit from this command's environment, and those that the
    /// user names, which take precedence.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let settings = std::env::vars_os().filter_map(text);
        let mut variables: BTreeMap<_, _> =
            settings.filter(|(name, _)| name.starts_with(SETTINGS)).collect();
        variables.extend(self.env.iter().map(|own| (own.name.clone(), own.value.clone())));
        variables.into_iter().collect()
    }

    /// Returns the program that a rank of `ranks` runs: 0 for the first, and one more for each of
    /// the others.
    pub(crate) fn program_of(&self, rank: u32, ranks: u32) -> usize {
        program_of(&self.others, rank, ranks)
    }

    /// Returns the torus that the job gets exclusively.
    pub(crate) fn torus(&self) -> Option<LogicalShape> {
        match self.shape {
            Some(JobShape::Torus(torus)) if self.map.is_none() && !self.local => Some(torus),
            _ => None,
        }
    }

    /// Returns the shape of a machine that is started for the run, if the user has named one.
    ///
    /// # Errors
    ///
    /// If no machine has that shape, or none may be started.
    pub(crate) fn machine_shape(&self) -> anyhow::Result<Option<Shape>> {
        let shape = match self.shape {
            None => return Ok(None),
            Some(JobShape::Torus(_)) if self.torus().is_some() => return Ok(None),
            Some(JobShape::Torus(torus)) => as_machine(torus)?,
            Some(JobShape::Machine(shape)) => shape,
        };
        if let Some(name) = &self.machine {
            bail!(
                "--shape {shape} is the shape of a new machine, but --machine {name} is running; \
                 for a torus of its nodes give --shape one to three lengths, without --map"
            );
        }
        Ok(Some(shape))
    }
}

fn program_of(others: &[(u32, Vec<String>)], rank: u32, ranks: u32) -> usize {
    let mut behind = ranks - rank;
    for (index, (count, _)) in others.iter().enumerate().rev() {
        if behind <= *count {
            return index + 1;
        }
        behind -= count;
    }
    0
}

/// The shape of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobShape {
    /// One to three lengths, for the job's torus.
    Torus(LogicalShape),
    /// Six lengths or a name, for a machine that is started for the run.
    Machine(Shape),
}

impl FromStr for JobShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(torus) = text.parse() {
            return Ok(Self::Torus(torus));
        }
        let allowed = "one to three lengths of a torus for the job, such as 12, 4x3 or 3x4x2, six \
                       lengths of a machine, or a machine's name, such as unit";
        text.parse().map(Self::Machine).map_err(|error| format!("{error}; --shape is {allowed}"))
    }
}

/// Returns the shape of a machine for a torus: the torus itself as X, Y and Z, so that every map
/// fits.
///
/// # Errors
///
/// If an axis is too long for a machine.
pub(crate) fn as_machine(torus: LogicalShape) -> anyhow::Result<Shape> {
    let mut lens = [1; 6];
    for (len, wanted) in lens.iter_mut().zip(torus.lens()) {
        *len = u8::try_from(*wanted).unwrap_or(u8::MAX);
    }
    let shape = Shape::new(lens).ok();
    shape.with_context(|| format!("a machine cannot be made for {torus}; name one with --shape"))
}

/// Which rank is on which node of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RankOrder {
    /// Consecutive ranks share a node, which is filled before the next one.
    #[default]
    NodeAfterNode,
    /// Consecutive ranks are on consecutive nodes, round after round.
    RoundRobin,
    /// Each rank is at a place of the job's torus.
    At(Vec<[u32; 3]>),
}

/// A file for an output of ranks, whose name may depend on the rank. Ranks may share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankFile {
    /// The name, in which `%r` and `%R` are the rank, `%06r` the rank in six digits, `%/1000R` the
    /// rank rounded down to a multiple of 1000, and `%%` is a percent sign.
    pub name: String,
    /// True if the file is there even if nothing is written.
    pub empty: bool,
}

impl RankFile {
    /// Returns the file of a rank.
    #[must_use]
    pub fn path(&self, rank: u32) -> PathBuf {
        let (mut path, mut rest) = (String::new(), &*self.name);
        while let Some(at) = rest.find('%') {
            path.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let Some(end) = rest.find(|c: char| c != '/' && !c.is_ascii_digit()) else {
                path.push('%');
                continue;
            };
            let (number, letter) = (&rest[..end], rest[end..].chars().next());
            let text = match (number, letter) {
                ("", Some('%')) => "%".to_owned(),
                ("", Some('r' | 'R')) => rank.to_string(),
                (_, Some('r' | 'R')) => match number.strip_prefix('/') {
                    Some(step) => match step.parse() {
                        Ok(step @ 1..) => (rank / step * step).to_string(),
                        _ => rank.to_string(),
                    },
                    None => {
                        let width = number.parse().unwrap_or(0).min(MOST_DIGITS);
                        format!("{rank:0width$}")
                    }
                },
                // No form of ours.
                _ => {
                    path.push('%');
                    continue;
                }
            };
            path.push_str(&text);
            rest = &rest[end + 1..];
        }
        path.push_str(rest);
        path.into()
    }
}

/// The most digits of a rank in a file's name.
const MOST_DIGITS: usize = 20;

/// A variable of the ranks' environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl FromStr for Variable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, std::env::var(text).ok()),
        };
        if name.is_empty() || name.contains('\0') {
            return Err("a variable is NAME=VALUE, or NAME alone".to_owned());
        }
        let value = value.ok_or_else(|| format!("{name} has no value here; give NAME=VALUE"))?;
        Ok(Self { name: name.to_owned(), value })
    }
}

choices! {
    /// Whose libraries a program runs with.
    Libs, Auto, "\"auto\", \"host\" or \"node\"":
    /// This host's if it has them all, else the nodes'
    Auto = "auto",
    /// Libraries of this host, which are copied with the program
    Host = "host",
    /// The nodes'
    Node = "node",
}

impl Libs {
    /// Returns true if the nodes' own libraries must be used. `mpi` is true if the program is
    /// linked with MPI in a job with MPI: the image's MPI needs the image's libraries.
    pub(crate) fn are_the_nodes(self, mpi: bool) -> bool {
        self == Self::Node || self == Self::Auto && mpi
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_ranks_run_other_programs() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let others = [(2, words("./b it's")), (1, words("./c"))];
        let programs: Vec<_> = (0..5).map(|rank| program_of(&others, rank, 5)).collect();
        assert_eq!(programs, [0, 0, 1, 1, 2]);
    }

    #[test]
    fn names_of_files_have_ranks() {
        for (name, expected) in [
            ("out", "out"),
            ("out.%r", "out.1234"),
            ("%/1000R/out.%r", "1000/out.1234"),
            ("%/0R.%/R", "1234.1234"),
            ("%06r.%2R", "001234.1234"),
            ("100%%.%x.%", "100%.%x.%"),
            ("%12", "%12"),
            ("%é%r", "%é1234"),
        ] {
            let file = RankFile { name: name.to_owned(), empty: false };
            assert_eq!(file.path(1234), PathBuf::from(expected), "{name}");
        }
    }
}
