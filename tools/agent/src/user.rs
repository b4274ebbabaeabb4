//! Programs that are run as users of their own, so that jobs on a node are apart.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The word that makes the agent [`become_program`].
pub const WORD: &str = "as";

/// What the kernel driver offers to all users. Where it is not, programs have the device through
/// VFIO, which is for root alone.
const FOR_USERS: &str = "/proc/tofu/dev";

/// Makes this process the program `words`, run by the user of this number if the node has the
/// kernel driver. It returns only if that is not possible.
pub fn become_program(user: &str, words: &[&str]) -> io::Error {
    let Ok(user) = user.parse::<u32>() else {
        return io::Error::new(io::ErrorKind::InvalidInput, "not the number of a user");
    };
    let Some((name, args)) = words.split_first() else {
        return io::ErrorKind::InvalidInput.into();
    };
    let mut command = Command::new(name);
    command.args(args);
    if Path::new(FOR_USERS).exists() {
        // Other groups of root's go with the user.
        command.uid(user).gid(user);
    }
    command.exec()
}
