//! The commands of Fugaku's job scripts: `pjsub` and those around it, and `mpiexec`. Their options
//! are those of the real ones, and are read below.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args, Subcommand};

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum ScriptCommand {
    Mpiexec(MpiexecArgs),
    Pjsub(PjsubArgs),
    Pjstat(PjstatArgs),
    Pjdel(PjdelArgs),
    Pjwait(PjwaitArgs),
    Pjhold(PjholdArgs),
    Pjrls(PjrlsArgs),
    Pjalter(PjalterArgs),
    Pjshowrsc(PjshowrscArgs),
    Pjacl(PjaclArgs),
    /// The process that runs the jobs of pjsub
    #[command(hide = true, name = tofu_batch::QUEUE)]
    Queue {
        /// The spool
        spool: PathBuf,
    },
}

/// Submit a job script with #PJM lines, as on Fugaku
///
/// The job waits in a queue of your own, which runs one job after another, and what it writes goes
/// to SCRIPT.JOBID.out and .err. Its mpiexec starts ranks as `tofu run --local` does, or on the
/// nodes of a running machine, or of one in modelled time. The manual, page Job scripts, says which
/// options have a meaning here.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = PJSUB)]
pub(crate) struct PjsubArgs {
    /// Options, the script, and its arguments; without a script it is standard input
    #[arg(value_name = "OPTION|SCRIPT", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: (),
}

const PJSUB: &str = "\
Options, on the command line and in lines that begin with #PJM:
  -L RESOURCE=VALUE[,...]    node=12|4x3|2x3x2[:torus|mesh|noncont], elapse=[[H:]M:]S,
                             rscgrp=, rscunit=; others are ignored
  --mpi PARAMETER[,...]      proc=N, max-proc-per-node=N, shape=, rank-map-bynode,
                             rank-map-bychip, rank-map-hostfile=FILE
  -x NAME=VALUE[,...], -X    variables for the job; all of this command's
  -N NAME, -o FILE, -e FILE, -j, -s, -S, --spath FILE
                             name, outputs and statistics; %n, %j, %J, %b and %s in names of files
                             are the job's name and its numbers
  --bulk --sparam FIRST-LAST, --step [--sparam jid=JOB,sn=STEP,sd=CONDITION]
                             many jobs of one script; jobs that depend on each other
  --interact [--sparam wait-time=SECONDS]
                             a shell in the job, at this terminal, or the script if one is named
  --omp thread=N, -z jid, --comment TEXT, -C PREFIX, --script-delimiter C
  --machine NAME, --local    ours: ranks run on this machine's nodes; as processes here (default)
  --time modelled, --ns-per-instruction NS
                             ours: each mpiexec starts a machine in modelled time

Examples:
  tofu pjsub job.sh
  tofu pjsub -L node=2x3,elapse=10:00 --mpi max-proc-per-node=4 job.sh
  tofu pjsub --bulk --sparam 0-9 job.sh
  tofu pjsub --interact -L node=2
  tofu pjstat; tofu pjwait 12; tofu pjdel 12

Exit codes: 0 submitted, 1 refused; with --interact that of the shell.";

/// Show jobs that were submitted by pjsub
///
/// Without -H, those that wait or run.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = PJSTAT)]
pub(crate) struct PjstatArgs {
    /// Options and jobs: 12, 12_1, 12[3-5], 12-14
    #[arg(value_name = "OPTION|JOB", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: (),
}

const PJSTAT: &str = "\
Options:
  -H                  jobs that have ended
  -E                  sub jobs one by one
  -s, -S              statistics of each job
  -v                  more columns
  --choose=jid,st     these columns: jid, jnam, jmdl, st, usr, sdt, elpl, nnumr, rscg, rscu, adt,
                      edt, elp, ec, sn, pc, rsn
  --data [--delimiter=C]
                      with commas, or C, between columns
  --filter=st=RUN,usr=NAME, --rscgrp=NAME, --rscunit=NAME
                      these jobs only
  --sort=COLUMN       in this order
  --rsc, --limit      resource groups; limits of jobs
  --with-summary, --summary
                      the numbers of jobs in each state as well, or alone

Examples:
  tofu pjstat
  tofu pjstat -H --choose=jid,st,ec 12";

/// Cancel jobs that were submitted by pjsub
///
/// A running job is ended with all of its processes.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = PJDEL)]
pub(crate) struct PjdelArgs {
    /// Jobs: 12, 12_1, 12[3-5], 12-14
    #[arg(value_name = "JOB", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: (),
}

const PJDEL: &str = "\
Examples:
  tofu pjdel 12
  tofu pjdel '12[3-5]'";

/// Wait until jobs have ended that were submitted by pjsub
///
/// Prints how they ended.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = PJWAIT)]
pub(crate) struct PjwaitArgs {
    /// Jobs: 12, 12_1, 12[3-5], 12-14; with -w or, the first of them that ends is enough
    #[arg(value_name = "JOB", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: (),
}

const PJWAIT: &str = "\
Examples:
  tofu pjwait 12
  tofu pjwait $(tofu pjsub -z jid job.sh)";

/// Keep jobs of pjsub from running
///
/// They must wait; pjrls releases them.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = PJHOLD)]
pub(crate) struct PjholdArgs {
    /// Jobs: 12, 12_1, 12[3-5], 12-14
    #[arg(value_name = "JOB", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: (),
}

const PJHOLD: &str = "\
Examples:
  tofu pjhold 12; tofu pjrls 12";

/// Release jobs that pjhold holds
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = PJRLS)]
pub(crate) struct PjrlsArgs {
    /// Jobs: 12, 12_1, 12[3-5], 12-14
    #[arg(value_name = "JOB", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: (),
}

const PJRLS: &str = "\
Examples:
  tofu pjrls 12";

/// Change jobs of pjsub that wait
///
/// Their elapse limit, resource group and unit; other options are ignored with a word.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = PJALTER)]
pub(crate) struct PjalterArgs {
    /// -L RESOURCE=VALUE[,...], and jobs: 12, 12_1, 12[3-5], 12-14
    #[arg(value_name = "OPTION|JOB", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: (),
}

const PJALTER: &str = "\
Examples:
  tofu pjalter -L elapse=20:00 12";

/// Show nodes that jobs of pjsub may have
///
/// Those in total, free ones, and those of the job that runs.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = PJSHOWRSC)]
pub(crate) struct PjshowrscArgs {
    /// --rscgrp NAME, --data; others change nothing
    #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: (),
}

const PJSHOWRSC: &str = "\
Examples:
  tofu pjshowrsc --rscgrp small";

/// Show the resources that jobs of pjsub may request
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = PJACL)]
pub(crate) struct PjaclArgs {
    /// --rg NAME; others change nothing
    #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: (),
}

const PJACL: &str = "\
Examples:
  tofu pjacl";

/// Run a program as ranks, with the options of Fugaku's mpiexec
///
/// In a job of pjsub it has the job's nodes and processes, and each rank writes to a separate file,
/// output.JOBID/0/1/stdout.1.RANK. Elsewhere it is like `tofu run --local --mpi --no-prefix`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = MPIEXEC)]
pub(crate) struct MpiexecArgs {
    /// Options, the program, and its arguments
    #[arg(value_name = "OPTION|PROGRAM", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: (),
}

const MPIEXEC: &str = "\
Options, with one dash or two:
  -n RANKS, -np RANKS       number of ranks
  -ppn N                    ranks on each node
  -vcoordfile FILE          the place of each rank in the job, a line such as (0,1,2) for each
  -of FILE, -ofout FILE, -oferr FILE
  -std FILE, -stdout FILE, -stderr FILE
                            both outputs, or one of them, to a file
  -of-proc FILE, -std-proc FILE, -stdout-proc FILE, -stderr-proc FILE
                            to a file for each rank, FILE.CALL.RANK
  -stdin FILE               the input of rank 0
  -x NAME[=VALUE]           a variable of the ranks
  -wdir FOLDER, -ofprefix rank
  -mca orte_tag_output 1    the rank in front of each line
  -n N PROGRAM : -n N PROGRAM, --app FILE
                            several programs as one job; lines of a file with options and programs
  -machine NAME, -local     ours: nodes of this machine; processes here (default)
  -time modelled, -ns-per-instruction NS
                            ours: nodes of a machine in modelled time, which is started for this
In names of files %r is the rank, %06r the rank in six digits, %/1000R the rank rounded down to a
multiple of 1000, %j the job, %n its name, and %m the number of the call in the job. Options that
concern real systems only, such as other -mca, are ignored with a word.

Examples:
  tofu mpiexec -n 4 ./program
  tofu mpiexec -n 4 -stdout-proc ./%/1000R/out ./program
  tofu mpiexec -n 2 ./ocean : -n 4 ./air";

/// Runs one of these commands and returns the exit code.
pub(crate) fn run(command: &ScriptCommand) -> anyhow::Result<u8> {
    match command {
        ScriptCommand::Mpiexec(args) => tofu_batch::mpiexec(&args.words),
        ScriptCommand::Pjsub(args) => tofu_batch::pjsub(&args.words),
        ScriptCommand::Pjstat(args) => tofu_batch::pjstat(&args.words),
        ScriptCommand::Pjdel(args) => tofu_batch::pjdel(&args.words),
        ScriptCommand::Pjwait(args) => tofu_batch::pjwait(&args.words),
        ScriptCommand::Pjhold(args) => tofu_batch::pjhold(&args.words),
        ScriptCommand::Pjrls(args) => tofu_batch::pjrls(&args.words),
        ScriptCommand::Pjalter(args) => tofu_batch::pjalter(&args.words),
        ScriptCommand::Pjshowrsc(args) => tofu_batch::pjshowrsc(&args.words),
        ScriptCommand::Pjacl(args) => tofu_batch::pjacl(&args.words),
        ScriptCommand::Queue { spool } => tofu_batch::run_queue(spool).map(|()| 0),
    }
}

/// The words of the command line. Under the name of one of these commands the program is that
/// command.
pub(crate) fn words(mut words: Vec<OsString>) -> Vec<OsString> {
    let name = words.first().map(PathBuf::from);
    let name = name.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    let known = tofu_batch::NAMES.iter().find(|known| name == Some(**known));
    if let Some(known) = known {
        let command = if known.starts_with("mpi") { "mpiexec" } else { known };
        words.insert(1, command.into());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_commands() {
        let of = |line: &str| {
            let words = words(line.split(' ').map(OsString::from).collect());
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("/a/pjsub -j x"), "/a/pjsub pjsub -j x");
        assert_eq!(of("mpirun -n 2 x"), "mpirun mpiexec -n 2 x");
        assert_eq!(of("mpiexec.hydra x"), "mpiexec.hydra mpiexec x");
        assert_eq!(of("tofu pjsub"), "tofu pjsub");
    }
}
