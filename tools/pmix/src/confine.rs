//! Limits of a server whose ranks run in guests, since libpmix reads what guests have written.

use std::env;
use std::path::Path;

use tofu_sandbox::{Access, Policy, Sandbox};

/// Places that libpmix and the libraries below it read when they start: settings, texts of errors,
/// and facts about the host.
const READ: [&str; 6] = ["/etc", "/proc", "/sys", "/usr/local/lib", "/usr/share", "/lib64"];

/// Confines this thread and those that it starts: they can write files in this folder only, read
/// few others, run no programs, and connect to nothing. Where the kernel does not have that, a line
/// says so.
pub(crate) fn to(files: &Path) -> anyhow::Result<()> {
    let policy = Policy::new().allow_runtime().allow_listening().allow(files, Access::Folder);
    let mut policy = policy.allow_if_present("/dev", Access::Device);
    for path in READ {
        policy = policy.allow_if_present(path, Access::Read);
    }
    // The loader searches these, too.
    let search = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    for folder in env::split_paths(&search).filter(|folder| folder.is_dir()) {
        policy = policy.allow(folder, Access::Read);
    }
    Sandbox::new(policy)?.enter_process()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::ErrorKind;

    #[test]
    fn confined_thread_writes_in_its_folder_only() {
        let [inside, outside] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        fs::write(outside.path().join("there"), "x").unwrap();
        let [file, other] = [inside.path().join("a"), outside.path().join("a")];
        let thread = std::thread::spawn({
            let (folder, there) = (inside.path().to_owned(), outside.path().join("there"));
            move || {
                to(&folder).unwrap();
                fs::write(folder.join("a"), "a").unwrap();
                let read = fs::read(there).map_err(|error| error.kind());
                let run = std::process::Command::new("/bin/true").status();
                (fs::write(other, "a").map_err(|error| error.kind()), read, run.is_ok())
            }
        });
        let (written, read, ran) = thread.join().unwrap();
        assert!(file.exists());
        if written.is_ok() {
            eprintln!("SKIP confined_thread_writes_in_its_folder_only: no Landlock");
            return;
        }
        assert_eq!(written, Err(ErrorKind::PermissionDenied));
        assert_eq!((read, ran), (Err(ErrorKind::PermissionDenied), false));
    }
}
