//! The MPI that Linux nodes have: which one Python there is built with, and whether a program's
//! library is there.

use anyhow::bail;
use tofu_abi::Coords;
use tofu_agent::wire::Exec;

use crate::elf::Family;
use crate::machine::Machine;
use crate::node_command::{must, shell};
use crate::spec::JobSpec;

/// Seconds for Python to load mpi4py, in guests that may be slow.
const LOADING: &str = "60";
/// Prints which MPI library mpi4py is built with. It may be asked before MPI starts.
const ASK: &str = "from mpi4py import rc\n\
                   rc.initialize = False\n\
                   from mpi4py import MPI\n\
                   print(MPI.Get_library_version())\n";

/// Fails unless a library of one of these names is where loaders look for it.
const HAS: &str = r#"
for name; do
    for folder in /lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /lib/*-linux-gnu \
        /usr/lib/*-linux-gnu; do
        [ -e "$folder/$name" ] && exit 0
    done
    ldconfig -p 2>/dev/null | grep -qF "$name" && exit 0
done
exit 1
"#;

/// Returns the MPI library that `python` of a machine's nodes loads by mpi4py; `None` if it has
/// none.
pub(crate) fn of_python(machine: &Machine, python: &str, spec: &JobSpec) -> Option<Family> {
    let node = machine.nodes.first()?;
    let mut env = spec.variables();
    // Not what is in the folder that it happens to run in.
    env.push(("PYTHONSAFEPATH".to_owned(), "1".to_owned()));
    let exec = Exec { env, ..Exec::named(["timeout", LOADING, python, "-c", ASK]) };
    match must(&machine.control, node.index, exec, &[]) {
        Ok(said) => Family::of_version(&said),
        Err(error) => {
            log::debug!("node {}: {python} has no mpi4py: {error:#}", Coords::from_array(node.at));
            None
        }
    }
}

/// Checks that the nodes have the MPI library that a program is linked with.
///
/// # Errors
///
/// If they do not. The error says which image has it.
pub(crate) fn check(machine: &Machine, program: &str, family: Family) -> anyhow::Result<()> {
    let Some(node) = machine.nodes.first() else { return Ok(()) };
    let (names, package) = family.library();
    let has: Vec<_> = [HAS, "sh"].into_iter().chain(names.iter().copied()).collect();
    if must(&machine.control, node.index, shell(&has), &[]).is_ok() {
        return Ok(());
    }
    bail!(
        "cannot run {program}: it is linked with {}, which the nodes of machine {} do not have; \
         start them with `tofu up --linux --image {}`, or with another image that has the package \
         {package} (`tofu {}` makes one)",
        names[0],
        machine.name,
        family.image(machine.arch),
        family.make_image(machine.arch)
    );
}
