//! The folder in which jobs wait: records, scripts, locks.
//!
//! A process that reads or changes records holds the lock of the spool, for a moment. The one that
//! runs jobs holds another lock as long as it lives, so that there is one at most.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};

use crate::key::Key;
use crate::record::{Record, State, code, now};
use crate::{NAMES, QUEUE, site};

/// The variable that names another spool.
const VARIABLE: &str = "TOFU_SPOOL";
/// The longest record that is read, in bytes.
const MOST: u64 = 4 << 20;
/// The ended jobs that are remembered.
const REMEMBERED: usize = 1000;
/// The name of our command with subcommands.
const COMMAND: &str = "tofu";

/// Finds bash.
pub(crate) fn bash() -> Option<&'static str> {
    ["/bin/bash", "/usr/bin/bash"].into_iter().find(|path| Path::new(path).exists())
}

/// The spool of a user.
#[derive(Clone, Debug)]
pub(crate) struct Spool {
    folder: PathBuf,
}

/// A spool that others cannot change.
pub(crate) struct Locked<'a> {
    spool: &'a Spool,
    _lock: File,
}

impl Spool {
    /// Opens the user's spool, and makes it if there is none.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
        let folder = variable(VARIABLE)
            .map(PathBuf::from)
            .or_else(|| {
                variable("XDG_STATE_HOME").map(|base| PathBuf::from(base).join("tofu/spool"))
            })
            .or_else(|| {
                variable("HOME").map(|home| PathBuf::from(home).join(".local/state/tofu/spool"))
            })
            .with_context(|| format!("no spool: set {VARIABLE}, XDG_STATE_HOME or HOME"))?;
        Self::at(&folder)
    }

    pub(crate) fn at(folder: &Path) -> anyhow::Result<Self> {
        let folder = std::path::absolute(folder)?;
        let cannot = || format!("cannot make the spool {}", folder.display());
        for name in ["jobs", "scripts", "bin", "site"] {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(folder.join(name)).with_context(cannot)?;
        }
        Ok(Self { folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> anyhow::Result<Locked<'_>> {
        let lock = self.lock_file("lock")?;
        flock(&lock, FlockOperation::LockExclusive).context("cannot lock the spool")?;
        Ok(Locked { spool: self, _lock: lock })
    }

    fn lock_file(&self, name: &str) -> anyhow::Result<File> {
        let path = self.folder.join(name);
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).mode(0o600).open(&path);
        file.with_context(|| format!("cannot open {}", path.display()))
    }

    /// Takes the lock of the process that runs jobs; `None` if there is one already.
    pub(crate) fn become_runner(&self) -> anyhow::Result<Option<File>> {
        let lock = self.lock_file("runner.lock")?;
        Ok(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok().then_some(lock))
    }

    pub(crate) fn script(&self, key: Key, name: &str) -> PathBuf {
        self.folder.join("scripts").join(key.to_string()).join(name)
    }

    fn record(&self, key: Key) -> PathBuf {
        self.folder.join("jobs").join(format!("{key}.json"))
    }

    /// A file that is there once a user wants the job to end.
    pub(crate) fn cancel_mark(&self, key: Key) -> PathBuf {
        self.folder.join("jobs").join(format!("{key}.cancel"))
    }

    /// Counts a call of `mpiexec` in a job, from 1.
    pub(crate) fn count_call(&self, key: &str) -> anyhow::Result<u64> {
        let _locked = self.lock()?;
        let mut file = self.lock_file(&format!("jobs/{key}.calls"))?;
        file.write_all(b".")?;
        Ok(file.metadata()?.len())
    }

    /// Returns the folder with our commands, which comes first in the `PATH` of jobs, and the
    /// folder with substitutes for tools of the site, which comes last.
    pub(crate) fn commands(&self) -> anyhow::Result<[PathBuf; 2]> {
        let [bin, site] = ["bin", "site"].map(|name| self.folder.join(name));
        let own = env::current_exe().context("cannot find this program")?;
        // sh on Fugaku is bash, and programs of mpiexec rely on it.
        let shell = bash().map(|bash| ("sh", PathBuf::from(bash)));
        // The compilers among the substitutes write the SDK by it.
        let names = NAMES.into_iter().chain([COMMAND]).map(|name| (name, own.clone()));
        for (name, target) in names.chain(shell) {
            let link = bin.join(name);
            if fs::read_link(&link).is_ok_and(|there| there == target) {
                continue;
            }
            let new = bin.join(format!(".{name}.{}", std::process::id()));
            let _ = fs::remove_file(&new);
            symlink(&target, &new)?;
            fs::rename(&new, &link)?;
        }
        for (name, text) in site::all() {
            let path = site.join(name);
            if fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
                continue;
            }
            let new = site.join(format!(".{name}.{}", std::process::id()));
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o755);
            options.open(&new)?.write_all(text.as_bytes())?;
            fs::rename(&new, &path)?;
        }
        Ok([bin, site])
    }

    /// Starts the process that runs jobs, which ends immediately if there is one already.
    pub(crate) fn start_runner(&self) -> anyhow::Result<()> {
        let log = self.lock_file("runner.log")?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(QUEUE).arg(&self.folder).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().context("cannot start the process that runs jobs")?;
        Ok(())
    }
}

impl Locked<'_> {
    /// Returns all jobs in the order in which they came.
    pub(crate) fn records(&self) -> anyhow::Result<Vec<Record>> {
        let folder = self.spool.folder.join("jobs");
        let entries = fs::read_dir(&folder);
        let entries = entries.with_context(|| format!("cannot read {}", folder.display()))?;
        let mut records = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = tofu_input::read_text(&path, MOST)
                .with_context(|| format!("cannot read {}", path.display()))?;
            match serde_json::from_str::<Record>(&text) {
                Ok(record) => records.push(record),
                Err(error) => bail!("{}: {error}; remove it", path.display()),
            }
        }
        records.sort_by_key(|record| (record.turn, record.key));
        Ok(records)
    }

    /// Writes a record, all of it or nothing.
    pub(crate) fn write(&self, record: &Record) -> anyhow::Result<()> {
        let path = self.spool.record(record.key);
        let new = path.with_extension("new");
        let write = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(serde_json::to_string(record)?.as_bytes())?;
            fs::rename(&new, &path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Cancels a job that has not begun.
    pub(crate) fn cancel(&self, record: &Record) -> anyhow::Result<()> {
        let mut record = record.clone();
        record.state = State::Ccl;
        record.ended = Some(now());
        record.ending.manager = code::CANCELLED;
        self.write(&record)
    }

    /// Keeps a script for a job.
    pub(crate) fn keep_script(&self, key: Key, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.spool.script(key, name);
        let write = || -> io::Result<()> {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o700);
            options.open(&path)?.write_all(text.as_bytes())
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the number of the next job, and how many jobs there have been.
    pub(crate) fn next(&self, records: &[Record]) -> anyhow::Result<(u32, u64)> {
        let path = self.spool.folder.join("next");
        let last = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
        let highest = records.iter().map(|record| record.key.id).max().unwrap_or(0);
        let id = last.unwrap_or(0).max(highest) + 1;
        fs::write(&path, format!("{id}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
        let turn = records.iter().map(|record| record.turn).max().unwrap_or(0) + 1;
        Ok((id, turn))
    }

    /// Forgets the oldest of many ended jobs.
    pub(crate) fn forget(&self, records: &[Record]) {
        let over: Vec<_> = records.iter().filter(|record| record.state.is_over()).collect();
        for record in over.iter().take(over.len().saturating_sub(REMEMBERED)) {
            let path = self.spool.record(record.key);
            // Files that cannot be removed now are removed another time.
            let _ = fs::remove_file(&path);
            let _ = fs::remove_file(self.spool.cancel_mark(record.key));
            let _ = fs::remove_file(path.with_extension("calls"));
            let scripts = self.spool.script(record.key, &record.script);
            let _ = scripts.parent().map(fs::remove_dir_all);
        }
    }

    /// Marks jobs that seem to run, though the process that ran them is gone. Called by the process
    /// that runs jobs now.
    pub(crate) fn mourn(&self, records: &mut [Record]) -> anyhow::Result<Vec<Key>> {
        let mut dead = Vec::new();
        for record in records.iter_mut().filter(|record| record.state == State::Run) {
            record.state = State::Err;
            record.ended = Some(now());
            record.ending.manager = code::NODE_DOWN;
            self.write(record)?;
            dead.push(record.key);
        }
        Ok(dead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Part;
    use crate::record::tests::record;
    use crate::request::Request;

    #[test]
    fn records_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::at(&folder.path().join("spool")).unwrap();
        let locked = spool.lock().unwrap();
        assert_eq!(locked.next(&[]).unwrap(), (1, 1));
        let mut known = record(Part::Bulk(2), Request::default());
        known.state = State::Run;
        locked.write(&known).unwrap();
        locked.keep_script(known.key, "job.sh", "echo").unwrap();
        let mut records = locked.records().unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(locked.next(&records).unwrap(), (13, 2));
        assert_eq!(locked.mourn(&mut records).unwrap(), [known.key]);
        assert_eq!(locked.records().unwrap()[0].state, State::Err);
        drop(locked);
        assert_eq!(spool.count_call("12[2]").unwrap(), 1);
        assert_eq!(spool.count_call("12[2]").unwrap(), 2);
        let first = spool.become_runner().unwrap();
        assert!(first.is_some() && spool.become_runner().unwrap().is_none());
    }
}
