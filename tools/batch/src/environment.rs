//! The variables of a job's script.

use std::collections::BTreeMap;
use std::env;

/// Variables that a job gets from the command that submits it even without `-X`: those of a login,
/// and those that this project's programs read.
const LOGIN: [&str; 9] = ["HOME", "LANG", "LOGNAME", "MAIL", "PATH", "SHELL", "TZ", "USER", "TERM"];
const PREFIXES: [&str; 5] = ["TOFU_", "UTOFU_", "XDG_", "RUST_LOG", "LC_"];

/// The variable with the job's number. A job's processes are found by it.
pub(crate) const MARK: &str = "TOFU_PJM_JOB";
/// The prefix of variables through which bash exports functions.
pub(crate) const FUNCTION: &str = "BASH_FUNC_";
/// The variable with the folder of Fujitsu's compilers and MPI, in which scripts find
/// `bin/mpiexec`.
pub(crate) const COMPILERS: &str = "FJSVXTCLANGA";
/// The variable that names a file which bash reads before a script.
pub(crate) const BEFORE: &str = "BASH_ENV";
/// The variable that names the spool to processes of a job.
pub(crate) const SPOOL: &str = "TOFU_SPOOL";

/// Returns the variables that a job is submitted with.
pub(crate) fn of_submission(all: bool, own: &[(String, String)]) -> Vec<(String, String)> {
    let inherited = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let wanted = |name: &str| {
        all || LOGIN.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let mut variables: BTreeMap<_, _> = inherited
        // A job that a job submits is another one.
        .filter(|(name, _)| wanted(name) && name != MARK && !name.starts_with("PJM_"))
        .collect();
    variables.extend(own.iter().cloned());
    variables.into_iter().collect()
}
