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

/// What the names of uTofu's settings begin with.
const SETTINGS: &str = "UTOFU_";

/// Run a program as a job: many processes, each of which knows its rank
///
/// Copies the program with its libraries to the Linux nodes of a machine and starts it there,
/// once on each node unless -n says otherwise. If no machine is running, one is started for the
/// time of the run. Lines of output have their rank in front; rank 0 gets the standard input. If
/// a rank fails, its exit code is that of the command, and the others are ended.
#[derive(Debug, Clone, Parser)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Number of ranks [default: one for each node]
    #[arg(short = 'n', long, visible_alias = "np", value_name = "RANKS")]
    pub(crate) ranks: Option<u32>,

    /// Torus of nodes for the job, such as 12, 4x3 or 2x3x2 [default: one axis]
    #[arg(long, value_name = "XxYxZ")]
    pub(crate) map: Option<LogicalShape>,

    /// Ranks on each node, 1 to 36; to 8 on the K computer and FX10, to 32 on FX100, 1 on TNW
    /// [default: as few as will do]
    #[arg(long, value_name = "N")]
    pub(crate) ppn: Option<u32>,

    /// Start no machine: run on this one [default: the one that is running]
    #[arg(long, value_name = "NAME")]
    pub(crate) machine: Option<MachineName>,

    /// Ranks are processes on this host, in a machine without guests
    #[arg(long, conflicts_with_all = ["machine", "image"])]
    pub(crate) local: bool,

    /// The program uses MPI (mpich, or what else speaks PMI-1); Linux nodes need tofu0 or a LAN
    #[arg(long)]
    pub(crate) mpi: bool,

    /// Variable for the ranks: NAME=VALUE, or NAME with the value it has here; may be given again
    ///
    /// Variables whose names begin with UTOFU_ are passed on without being named.
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<Variable>,

    /// File or folder to be copied to the ranks' working folder; may be given again
    #[arg(long, value_name = "PATH")]
    pub(crate) copy: Vec<PathBuf>,

    /// Bring back what ranks wrote in their working folder: to a folder of each node in this one
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,

    /// The ranks' working folder is this one: nodes get a copy, and what ranks change comes back
    #[arg(long, value_name = "FOLDER", conflicts_with = "out")]
    pub(crate) cwd: Option<PathBuf>,

    /// Whose libraries the program runs with
    #[arg(long, value_name = "WHOSE", default_value = "auto")]
    pub(crate) libs: Libs,

    /// End the job after this time, with exit code 124
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Timeout>,

    /// How long ranks may go on when another has failed, and to end when asked to
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) grace: Timeout,

    /// Start the job again, up to N times, if it ends because nodes of its are lost, on a torus of
    /// those that are left
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    #[arg(conflicts_with = "local", value_parser = clap::value_parser!(u32).range(..=1000))]
    pub(crate) restart: u32,

    /// Ranks are root also on nodes with the kernel driver, where jobs that are can reach each
    /// other's memory
    #[arg(long, conflicts_with = "local")]
    pub(crate) root: bool,

    /// Print the ranks' output as it is
    #[arg(long, conflicts_with = "json")]
    pub(crate) no_prefix: bool,

    /// Print one JSON object per line of output and per event
    #[arg(long)]
    pub(crate) json: bool,

    /// Torus of nodes for the job alone, such as 12, 4x3 or 3x4x2, out of the machine that is
    /// running; or the shape of a machine that is started for the run, such as unit or
    /// 2x1x1x2x3x2, and with --local always that [default: as the job asks]
    #[arg(long, value_name = "SHAPE")]
    pub(crate) shape: Option<JobShape>,

    /// If there are no nodes for the job now, do not wait for some
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Generation of a machine that is started for the run: k, fx10, fx100, fugaku or tnw, as for
    /// `tofu up` [default: fugaku]
    #[arg(long, value_name = "GENERATION", conflicts_with = "machine")]
    pub(crate) generation: Option<Interconnect>,

    /// Image for a machine that is started for the run
    #[arg(long, value_name = "NAME", conflicts_with = "machine")]
    pub(crate) image: Option<ImageName>,

    /// Who has the device in a machine that is started for the run: tofu, vfio or auto, as for
    /// `tofu up`
    #[arg(
        long,
        value_name = "DRIVER",
        hide_possible_values = true,
        conflicts_with_all = ["machine", "local"]
    )]
    pub(crate) driver: Option<Driver>,

    /// How packets go over links of a machine that is started for the run: at once, or as frames
    /// with credits in modelled time, as for `tofu up` [default: direct]
    #[arg(long, value_name = "LINKS", hide_possible_values = true, conflicts_with = "machine")]
    pub(crate) links: Option<LinkMode>,

    /// The program, and its arguments: a file if there is a / in it, else one of the nodes' own
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
      12 nodes of a larger machine that no other job has; waits until there are some
  tofu run --mpi -n 4 ./hello_mpi
  tofu run --copy ring.py -n 2 python3 ring.py
  tofu run --cwd . ./make_topology && tofu run --cwd . -n 4 ./uses_it
      what the first writes is there for the second
  tofu run --local -n 8 --ppn 4 ./ring
      without guests, as processes here, on two nodes

`tofu sdk DIR` writes the headers and libraries that programs are compiled with.
Exit codes: that of the first rank that failed (128 and the number if a signal ended it), 124
after --timeout, 130 after Ctrl-C, 2 for mistakes.";

impl RunArgs {
    /// What the ranks get of this command's environment, and what the user names for them, which
    /// counts where both have a variable.
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

    /// The torus that the job gets for itself.
    pub(crate) fn torus(&self) -> Option<LogicalShape> {
        match self.shape {
            Some(JobShape::Torus(torus)) if self.map.is_none() && !self.local => Some(torus),
            _ => None,
        }
    }

    /// The shape of a machine that is started for the run, if the user has named one.
    ///
    /// # Errors
    ///
    /// If no machine is of that shape, or none is to be started.
    pub(crate) fn machine_shape(&self) -> anyhow::Result<Option<Shape>> {
        let shape = match self.shape {
            None => return Ok(None),
            Some(JobShape::Torus(_)) if self.torus().is_some() => return Ok(None),
            Some(JobShape::Torus(torus)) => as_machine(torus)?,
            Some(JobShape::Machine(shape)) => shape,
        };
        if let Some(name) = &self.machine {
            bail!(
                "--shape {shape} is that of a machine which is started for the run, and --machine \
                 {name} runs; a torus out of it has one to three lengths, and is not given by --map"
            );
        }
        Ok(Some(shape))
    }
}

/// What `--shape` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobShape {
    /// One to three lengths: a torus for the job.
    Torus(LogicalShape),
    /// Six, or a name: a machine for the run.
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

/// The shape of a machine for a torus: the torus itself as X, Y and Z, into which every map fits.
///
/// # Errors
///
/// If no machine is so long.
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
    /// Whether they are the nodes' own in any case, for a program of MPI or another one: the
    /// image's MPI needs the image's libraries around it.
    pub(crate) fn are_the_nodes(self, mpi: bool) -> bool {
        self == Self::Node || self == Self::Auto && mpi
    }
}
