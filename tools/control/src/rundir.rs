//! Run directories, one for each machine, which hold the machines' sockets.
//!
//! A run directory is `$XDG_RUNTIME_DIR/tofu/NAME`, or `/tmp/tofu-UID/NAME` if that variable is not
//! set. The file `lock` in it is locked as long as the machine's process lives. A directory whose
//! lock is free was left by a killed process; the first process that finds it removes it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use tofu_abi::Coords;

use crate::name::MachineName;

/// The number of machines that may have a default name.
const MOST_DEFAULT_NAMES: u32 = 99;

const LOCK: &str = "lock";
const CONTROL: &str = "control";

/// The directory of a machine of this process.
#[derive(Debug)]
pub struct RunDir {
    name: MachineName,
    path: PathBuf,
    /// The lock file, which is locked until it is dropped.
    lock: File,
}

impl RunDir {
    /// Makes the directory of a new machine. Without a name, the machine is called `tofu`, `tofu-2`
    /// and so on.
    ///
    /// # Errors
    ///
    /// If a machine of that name runs, or the directory cannot be made.
    pub fn create(name: Option<&MachineName>) -> anyhow::Result<Self> {
        let base = base()?;
        let _creating = creating(&base)?;
        if let Some(name) = name {
            return Self::create_in(&base, name)?.with_context(|| {
                format!(
                    "the name {name} is taken by a machine that runs; give another --name, or end \
                     that machine with `tofu down {name}`"
                )
            });
        }
        for number in 1..=MOST_DEFAULT_NAMES {
            let name = match number {
                1 => MachineName::default(),
                n => {
                    format!("{}-{n}", MachineName::default()).parse().map_err(anyhow::Error::msg)?
                }
            };
            if let Some(dir) = Self::create_in(&base, &name)? {
                return Ok(dir);
            }
        }
        bail!(
            "{MOST_DEFAULT_NAMES} machines run already; end some with `tofu down`, or give --name"
        )
    }

    /// Makes the directory, or returns `None` if the name is taken.
    fn create_in(base: &Path, name: &MachineName) -> anyhow::Result<Option<Self>> {
        let path = base.join(name.as_str());
        check_length(&path)?;
        if path.exists() {
            if is_alive(&path) {
                return Ok(None);
            }
            remove(&path)?;
        }
        let cannot = || format!("cannot make the run directory {}", path.display());
        DirBuilder::new().mode(0o700).create(&path).with_context(cannot)?;
        let mut lock = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path.join(LOCK))
            .with_context(cannot)?;
        lock.lock().with_context(cannot)?;
        writeln!(lock, "{}", std::process::id()).with_context(cannot)?;
        Ok(Some(Self { name: name.clone(), path, lock }))
    }

    /// Returns the machine's name.
    pub fn name(&self) -> &MachineName {
        &self.name
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder of all run directories.
    pub fn base(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Returns the path of the socket for `tofu exec` and similar commands.
    pub fn control(&self) -> PathBuf {
        self.path.join(CONTROL)
    }

    /// Opens the lock file a second time, without locking it. [`remove_own`] recognises the
    /// directory by it.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn mark(&self) -> io::Result<File> {
        File::open(self.path.join(LOCK))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The janitor removes the directory as well, if it still exists then.
        let _ = remove_own(&self.path, &self.lock);
    }
}

/// Checks that the paths of a machine's sockets are not too long for the kernel.
fn check_length(dir: &Path) -> anyhow::Result<()> {
    /// Bytes of a socket's path: `sun_path` of unix(7) without the zero at its end.
    const MOST: usize = 107;
    /// The longest name of a node's socket.
    const NAME: &str = "/node-23-23-23-1-2-1.sock";
    let length = dir.as_os_str().len() + NAME.len();
    if length > MOST {
        bail!(
            "{}: {} bytes too long a path for the sockets of a machine; give a shorter --name, or \
             set XDG_RUNTIME_DIR to a folder with a shorter path",
            dir.display(),
            length - MOST
        );
    }
    Ok(())
}

/// Returns the name of a file for a node, such as `node-0-0-0-1-2-0.sock`.
pub fn node_file(kind: &str, at: Coords, extension: &str) -> String {
    format!("{kind}-{}.{extension}", at.separated('-'))
}

/// Returns the running machines by name, with their control sockets. Removes the directories of
/// dead machines.
pub fn machines() -> anyhow::Result<Vec<(MachineName, PathBuf)>> {
    let base = base()?;
    let _creating = creating(&base)?;
    let mut found = Vec::new();
    let entries = fs::read_dir(&base).with_context(|| format!("cannot list {}", base.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let Some(name) = name.filter(|_| path.is_dir()) else { continue };
        if is_alive(&path) {
            found.push((name, path.join(CONTROL)));
        } else {
            remove(&path)?;
        }
    }
    found.sort();
    Ok(found)
}

/// Returns whether the directory is gone, or has no owner.
pub fn is_gone(control: &Path) -> bool {
    control.parent().is_none_or(|dir| !is_alive(dir))
}

/// Returns whether a machine that has failed to answer has ended. A process that ends closes its
/// sockets and its lock one after another, so this waits a moment for the lock.
pub fn has_ended(control: &Path) -> bool {
    (0..20).any(|_| {
        let gone = is_gone(control);
        if !gone {
            thread::sleep(Duration::from_millis(10));
        }
        gone
    })
}

fn is_alive(dir: &Path) -> bool {
    match File::open(dir.join(LOCK)) {
        // The machine's process holds the lock. Our own lock ends when the file is closed.
        Ok(lock) => lock.try_lock_shared().is_err(),
        Err(_) => false,
    }
}

/// Removes the run directory of a machine that has ended since it was listed.
pub fn clear(control: &Path) -> anyhow::Result<()> {
    let base = base()?;
    let _creating = creating(&base)?;
    // Another machine may have taken the name by now.
    match control.parent() {
        Some(dir) if !is_alive(dir) => remove(dir),
        _ => Ok(()),
    }
}

/// Removes a run directory, unless another machine has taken its name by now. `lock` is the
/// directory's lock file, whose identity no other file gets while it is open.
pub fn remove_own(dir: &Path, lock: &File) -> anyhow::Result<()> {
    let base = dir.parent().with_context(|| format!("{} is in no folder", dir.display()))?;
    let _creating = creating(base)?;
    let cannot = || format!("cannot look at {}", dir.display());
    let there = match fs::symlink_metadata(dir.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.with_context(cannot)?,
    };
    let own = lock.metadata().with_context(cannot)?;
    match (there.dev(), there.ino()) == (own.dev(), own.ino()) {
        true => remove(dir),
        false => Ok(()),
    }
}

/// Removes the run directory of a machine that has ended.
fn remove(dir: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error)
            .with_context(|| format!("cannot remove what a dead machine left: {}", dir.display())),
        _ => Ok(()),
    }
}

/// Takes a lock that is held while directories are made and removed, so that a directory whose lock
/// does not exist yet is not mistaken for a dead one.
fn creating(base: &Path) -> anyhow::Result<File> {
    let path = base.join(".lock");
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let file = file.and_then(|file| file.lock().map(|()| file));
    file.with_context(|| format!("cannot lock {}", path.display()))
}

/// Returns the folder of all run directories, which only this user can enter, and makes it if it
/// does not exist.
///
/// # Errors
///
/// If it cannot be made, or belongs to another user.
pub fn base() -> anyhow::Result<PathBuf> {
    // An empty variable counts as unset, as the XDG Base Directory Specification requires.
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let uid = rustix::process::getuid().as_raw();
    let base = match runtime.map(PathBuf::from) {
        Some(dir) if !(dir.is_absolute() && dir.is_dir()) => bail!(
            "XDG_RUNTIME_DIR={}: there is no such folder, and machines have their sockets there; \
             make it, or unset the variable",
            dir.display()
        ),
        Some(dir) => dir.join("tofu"),
        None => std::env::temp_dir().join(format!("tofu-{uid}")),
    };
    match DirBuilder::new().mode(0o700).create(&base) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", base.display()));
        }
        _ => {}
    }
    // In /tmp, anybody may have made it first.
    let metadata = fs::symlink_metadata(&base)
        .with_context(|| format!("cannot look at {}", base.display()))?;
    if !metadata.is_dir() || metadata.uid() != uid || metadata.permissions().mode() & 0o077 != 0 {
        bail!(
            "{} must be a directory of yours with mode 0700; remove it or set XDG_RUNTIME_DIR",
            base.display()
        );
    }
    Ok(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_owner_keeps_its_directory() {
        let base = tempfile::tempdir().unwrap();
        let name = MachineName::default();
        let create = || RunDir::create_in(base.path(), &name).unwrap();
        let old = create().unwrap();
        assert!(create().is_none(), "its name is taken");
        let mark = old.mark().unwrap();
        // Its janitor removes it, and another machine takes the name before the first one has
        // ended.
        remove_own(old.path(), &mark).unwrap();
        assert!(!old.path().exists());
        let new = create().unwrap();
        drop(old);
        remove_own(new.path(), &mark).unwrap();
        assert!(new.path().join(LOCK).exists());
        let path = new.path().to_owned();
        drop(new);
        assert!(!path.exists());
    }

    #[test]
    fn long_path_is_reported_in_one_line() {
        let base = tempfile::tempdir().unwrap();
        let long = base.path().join("x".repeat(80));
        fs::create_dir(&long).unwrap();
        let error = RunDir::create_in(&long, &MachineName::default()).unwrap_err().to_string();
        assert!(error.contains("bytes too long a path for the sockets"), "{error}");
        assert!(!error.contains('\n'), "{error}");
        assert_eq!(fs::read_dir(&long).unwrap().count(), 0);
    }

    #[test]
    fn lock_is_released_after_the_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let name = MachineName::default();
        let machine = RunDir::create_in(dir.path(), &name).unwrap().unwrap();
        let control = machine.path().join(CONTROL);
        assert!(!has_ended(&control));
        let ends = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(machine);
        });
        assert!(has_ended(&control));
        ends.join().unwrap();
    }
}
