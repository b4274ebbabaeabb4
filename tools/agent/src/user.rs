//! Programs that are run as separate users, so that jobs on a node are isolated from each other.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::cross_arch;

/// The word that makes the agent [`become_program`].
pub const WORD: &str = "as";

/// The folder that the kernel driver offers to all users.
const DRIVER: &str = "/proc/tofu/dev";
/// The place at which `tofud` listens. It shares the device among all users. If neither exists,
/// programs use the device through VFIO, which only root may do.
const BROKERS: &str = "/run/tofu";

/// Returns true if users other than root can have the device.
fn is_for_users() -> bool {
    let is_socket = |entry: fs::DirEntry| entry.path().extension().is_some_and(|it| it == "sock");
    Path::new(DRIVER).exists()
        || fs::read_dir(BROKERS).is_ok_and(|found| found.flatten().any(is_socket))
}

/// Makes this process the program `words`, run by the user of this number if the node has the
/// kernel driver or `tofud`. It returns only if that is not possible.
pub fn become_program(user: &str, words: &[&str]) -> io::Error {
    let Ok(user) = user.parse::<u32>() else {
        return io::Error::new(io::ErrorKind::InvalidInput, "not the number of a user");
    };
    let Some((name, args)) = words.split_first() else {
        return io::ErrorKind::InvalidInput.into();
    };
    let mut command = Command::new(name);
    command.args(args);
    if is_for_users() {
        // Setting the user also drops root's other groups.
        command.uid(user).gid(user);
    }
    cross_arch::exec(&mut command)
}
