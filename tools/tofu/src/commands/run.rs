//! `tofu run`: a program as a job of ranks.

use std::path::PathBuf;

use clap::Parser;
use tofu_control::MachineName;
use tofu_jobs::{JobShape, JobSpec, Libs, RankOrder, Variable};
use tofu_jtofu::LogicalShape;
use tofu_spec::MachineSpec;
use tofu_spec::units::{Driver, ImageName, Interconnect, LinkMode, MemorySize, Timeout};

use crate::options::{ClockArgs, choice};

/// Run a program as a job of many processes, each of which has a rank
///
/// Copies the program with its libraries to the Linux nodes of a machine and starts it there, once
/// on each node unless -n says otherwise. If no machine is running, one is started for the run.
/// Each line of output begins with its rank; rank 0 gets the standard input. If a rank fails, the
/// command exits with its exit code, and the other ranks are stopped.
#[derive(Debug, Clone, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// Number of ranks [default: one for each node]
    #[arg(short = 'n', long, visible_alias = "np", value_name = "RANKS")]
    ranks: Option<u32>,

    /// Torus of nodes for the job, such as 12, 4x3 or 2x3x2 [default: one axis]
    #[arg(long, value_name = "XxYxZ")]
    map: Option<LogicalShape>,

    /// Ranks on each node, 1 to 48; up to 8 on the K computer and FX10 (with --local on FX10 up to
    /// 16, of which two share a queue), up to 32 on FX100, 1 on TNW [default: as few as possible]
    #[arg(long, value_name = "N")]
    ppn: Option<u32>,

    /// Run on this machine, and start none [default: the one that is running]
    #[arg(long, value_name = "NAME")]
    machine: Option<MachineName>,

    /// Run the ranks as processes on this host, in a machine without guests
    #[arg(long, conflicts_with_all = ["machine", "image"])]
    local: bool,

    /// The program uses MPI (one that speaks PMI-1, such as mpich, for which Linux nodes need tofu0
    /// or a LAN; or Open MPI)
    #[arg(long)]
    mpi: bool,

    /// Variable for the ranks: NAME=VALUE, or NAME for its value here; can be repeated
    ///
    /// Variables whose names begin with UTOFU_ are always passed on.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<Variable>,

    /// File or folder to copy to the ranks' working folder; can be repeated
    #[arg(long, value_name = "PATH")]
    copy: Vec<PathBuf>,

    /// Copy what ranks wrote in their working folder back to FOLDER, which gets a folder for each
    /// node
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Working folder of the ranks: nodes get a copy of it, and changes by ranks are copied back
    #[arg(long, value_name = "FOLDER", conflicts_with = "out")]
    cwd: Option<PathBuf>,

    /// Whose libraries the program runs with
    #[arg(long, value_name = "WHOSE", default_value = "auto", value_parser = choice::<Libs>())]
    libs: Libs,

    /// End the job after this time, with exit code 124
    #[arg(long, value_name = "TIME")]
    timeout: Option<Timeout>,

    /// The time limit for ranks to end after a signal, and for the other ranks when one has failed
    #[arg(long, value_name = "TIME", default_value = "2s")]
    grace: Timeout,

    /// If the job ends because it has lost nodes, start it again, up to N times, on a torus of the
    /// nodes that are left
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    #[arg(conflicts_with = "local", value_parser = clap::value_parser!(u32).range(..=1000))]
    restart: u32,

    /// Run the ranks as root, even on nodes with the kernel driver; there, jobs that run as root
    /// can access each other's memory
    #[arg(long, conflicts_with = "local")]
    root: bool,

    /// Print the ranks' output without the rank in front
    #[arg(long, conflicts_with = "json")]
    no_prefix: bool,

    /// Print one JSON object per line of output and per event
    #[arg(long)]
    json: bool,

    /// One to three lengths, such as 12, 4x3 or 3x4x2: a torus of nodes of the running machine, for
    /// this job alone. Six lengths or a name, such as 2x1x1x2x3x2 or unit, and always with --local:
    /// the shape of a machine that is started for the run [default: what the job needs]
    #[arg(long, value_name = "SHAPE")]
    shape: Option<JobShape>,

    /// Do not wait if there are no free nodes for the job
    #[arg(long)]
    no_wait: bool,

    /// Generation of a machine that is started for the run: k, fx10, fx100, fugaku or tnw, as for
    /// `tofu up` [default: fugaku]
    #[arg(long, value_name = "GENERATION", conflicts_with = "machine")]
    generation: Option<Interconnect>,

    /// Image for a machine that is started for the run
    #[arg(long, value_name = "NAME", conflicts_with = "machine")]
    image: Option<ImageName>,

    /// Memory of each node of a machine that is started for the run, such as 1GiB [default: 256MiB,
    /// 512MiB for MPI; in modelled time 1GiB, if all nodes then take at most two thirds of the
    /// host's]
    ///
    /// Half of it can be registered with the kernel driver; memory that is registered for several
    /// TNIs counts for each.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["machine", "local"])]
    memory: Option<MemorySize>,

    /// The owner of the device in the nodes of a machine that is started for the run: tofu, vfio or
    /// auto, as for `tofu up`
    #[arg(
        long,
        value_name = "DRIVER",
        value_parser = choice::<Driver>(),
        hide_possible_values = true,
        conflicts_with_all = ["machine", "local"]
    )]
    driver: Option<Driver>,

    /// The transport of packets over links in a machine that is started for the run: direct or
    /// modelled, as for `tofu up` [default: direct]
    #[arg(
        long,
        value_name = "LINKS",
        value_parser = choice::<LinkMode>(),
        hide_possible_values = true,
        conflicts_with = "machine"
    )]
    links: Option<LinkMode>,

    #[command(flatten)]
    time: ClockArgs,

    /// The program and its arguments; a name with a / is a file of this host, any other a program
    /// of the nodes
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<String>,
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
after --timeout, 125 after --until, 130 after Ctrl-C, 2 for mistakes.";

/// Runs `tofu run` and returns the exit code.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<u8> {
    tofu_jobs::run(&args.clone().into())
}

impl From<RunArgs> for JobSpec {
    fn from(args: RunArgs) -> Self {
        Self {
            ranks: args.ranks,
            map: args.map,
            ppn: args.ppn,
            machine: args.machine,
            local: args.local,
            mpi: args.mpi,
            env: args.env,
            copy: args.copy,
            tools: Vec::new(),
            out: args.out,
            cwd: args.cwd,
            libs: args.libs,
            timeout: args.timeout,
            grace: args.grace,
            restart: args.restart,
            order: RankOrder::default(),
            files: [None, None],
            input: None,
            root: args.root,
            no_prefix: args.no_prefix,
            json: args.json,
            shape: args.shape,
            no_wait: args.no_wait,
            own: args.time.over(MachineSpec {
                generation: args.generation,
                image: args.image,
                memory: args.memory,
                driver: args.driver,
                links: args.links,
                ..MachineSpec::default()
            }),
            program: args.program,
            others: Vec::new(),
        }
    }
}
