//! The command line of `tofu run`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::Parser;
use tofu_control::MachineName;
use tofu_fabric::Shape;
use tofu_jtofu::LogicalShape;
use tofu_supervisor::units::{Driver, ImageName, Interconnect, LinkMode, Timeout};

/// The prefix of uTofu's settings.
const SETTINGS: &str = "UTOFU_";

/// Run a program as a job of many processes, each of which has a rank
///
/// Copies the program with its libraries to the Linux nodes of a machine and starts it there, once
/// on each node unless -n says otherwise. If no machine is running, one is started for the run.
/// Each line of output begins with its rank; rank 0 gets the standard input. If a rank fails, the
/// command exits with its code, and the other ranks are stopped.
#[derive(Debug, Clone, Parser)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Number of ranks [default: one for each node]
    #[arg(short = 'n', long, visible_alias = "np", value_name = "RANKS")]
    pub(crate) ranks: Option<u32>,

    /// Torus of nodes for the job, such as 12, 4x3 or 2x3x2 [default: one axis]
    #[arg(long, value_name = "XxYxZ")]
    pub(crate) map: Option<LogicalShape>,

    /// Ranks on each node, 1 to 36; up to 8 on the K computer and FX10, up to 32 on FX100, 1 on TNW
    /// [default: as few as possible]
    #[arg(long, value_name = "N")]
    pub(crate) ppn: Option<u32>,

    /// Run on this machine, and start none [default: the one that is running]
    #[arg(long, value_name = "NAME")]
    pub(crate) machine: Option<MachineName>,

    /// Run the ranks as processes on this host, in a machine without guests
    #[arg(long, conflicts_with_all = ["machine", "image"])]
    pub(crate) local: bool,

    /// The program uses MPI (mpich, or another MPI that speaks PMI-1); Linux nodes need tofu0 or a
    /// LAN
    #[arg(long)]
    pub(crate) mpi: bool,

    /// Variable for the ranks: NAME=VALUE, or NAME for its value here; can be repeated
    ///
    /// Variables whose names begin with UTOFU_ are always passed on.
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<Variable>,

    /// File or folder to copy to the ranks' working folder; can be repeated
    #[arg(long, value_name = "PATH")]
    pub(crate) copy: Vec<PathBuf>,

    /// Copy what ranks wrote in their working folder back to FOLDER, which gets a folder for each
    /// node
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,

    /// Working folder of the ranks: nodes get a copy of it, and changes by ranks are copied back
    #[arg(long, value_name = "FOLDER", conflicts_with = "out")]
    pub(crate) cwd: Option<PathBuf>,

    /// Whose libraries the program runs with
    #[arg(long, value_name = "WHOSE", default_value = "auto")]
    pub(crate) libs: Libs,

    /// End the job after this time, with exit code 124
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Timeout>,

    /// The time limit for the other ranks may continue when one has failed, and how long ranks to
    /// end when asked to
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) grace: Timeout,

    /// If the job ends because it has lost nodes, start it again, up to N times, on a torus of the
    /// nodes that are left
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    #[arg(conflicts_with = "local", value_parser = clap::value_parser!(u32).range(..=1000))]
    pub(crate) restart: u32,

    /// Run the ranks as root, even on nodes with the kernel driver; there, jobs that run as root
    /// can access each other's memory
    #[arg(long, conflicts_with = "local")]
    pub(crate) root: bool,

    /// Print the ranks' output without the rank in front
    #[arg(long, conflicts_with = "json")]
    pub(crate) no_prefix: bool,

    /// Print one JSON object per line of output and per event
    #[arg(long)]
    pub(crate) json: bool,

    /// One to three lengths, such as 12, 4x3 or 3x4x2: a torus of nodes of the running machine, for
    /// this job alone. Six lengths or a name, such as 2x1x1x2x3x2 or unit, and always with --local:
    /// the shape of a machine that is started for the run [default: what the job needs]
    #[arg(long, value_name = "SHAPE")]
    pub(crate) shape: Option<JobShape>,

    /// Do not wait if there are no free nodes for the job
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Generation of a machine that is started for the run: k, fx10, fx100, fugaku or tnw, as for
    /// `tofu up` [default: fugaku]
    #[arg(long, value_name = "GENERATION", conflicts_with = "machine")]
    pub(crate) generation: Option<Interconnect>,

    /// Image for a machine that is started for the run
    #[arg(long, value_name = "NAME", conflicts_with = "machine")]
    pub(crate) image: Option<ImageName>,

    /// Who owns the device in the nodes of a machine that is started for the run: tofu, vfio or
    /// auto, as for `tofu up`
    #[arg(
        long,
        value_name = "DRIVER",
        hide_possible_values = true,
        conflicts_with_all = ["machine", "local"]
    )]
    pub(crate) driver: Option<Driver>,

    /// How packets cross links in a machine that is started for the run: direct or modelled, as for
    /// `tofu up` [default: direct]
    #[arg(long, value_name = "LINKS", hide_possible_values = true, conflicts_with = "machine")]
    pub(crate) links: Option<LinkMode>,

    /// The program and its arguments; a name with a / is a file of this host, any other a program
    /// of the nodes
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) program: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  tofu run -n 2 ./ring
      on two nodes, of a machine that is started for it if none runs
  tofu run --map 4x3 --ppn 2 ./stencil 100
      24 ranks on a torus of 4 by 3 nodes
  tofu run --shape 3x2x2 --machine big ./stencil
      12 free nodes of a larger machine; waits until there are enough
  tofu run --mpi -n 4 ./hello_mpi
  tofu run --copy ring.py -n 2 python3 ring.py
  tofu run --cwd . ./make_topology && tofu run --cwd . -n 4 ./uses_it
      the second job finds the files that the first one wrote
  tofu run --local -n 8 --ppn 4 ./ring
      without guests, as processes here, on two nodes

`tofu sdk DIR` writes the headers and libraries that programs are compiled with.
Exit codes: that of the first rank that failed (128 plus the signal if a signal ended it), 124
after --timeout, 130 after Ctrl-C, 2 for mistakes.";

impl RunArgs {
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

/// The value of `--shape`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobShape {
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

/// Whose libraries a program runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Libs {
    /// This host's if it has them all, else the nodes'
    Auto,
    /// This host's, which are copied with the program
    Host,
    /// The nodes'
    Node,
}

impl Libs {
    /// Returns whether the nodes' own libraries are used in any case. `mpi` tells whether it is an
    /// MPI program: the image's MPI needs the image's libraries.
    pub(crate) fn are_the_nodes(self, mpi: bool) -> bool {
        self == Self::Node || self == Self::Auto && mpi
    }
}
