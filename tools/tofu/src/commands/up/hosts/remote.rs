//! Work on other hosts: sessions of ssh(1) that give each what its shard of a machine needs,
//! and start the shard.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;

use anyhow::{Context, bail, ensure};
use tofu_fabric::ShardId;
use tofu_ui::printable;

use super::file::Host;
use super::image::Image;

/// Hosts that are prepared at a time.
const AT_ONCE: usize = 16;

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Runs a script on a host.
fn session(host: &Host, script: &str) -> Command {
    let mut command = Command::new("ssh");
    // There is no user to type a password for each host.
    command.args(["-T", "-o", "BatchMode=yes", "--", &host.name]);
    // Works with any shell that the user has there.
    command.arg(format!("exec sh -c {}", quoted(script)));
    command
}

/// The shards of the machine that a host has received.
pub(super) struct Prepared {
    /// The folder there of this machine.
    dir: String,
    /// The command.
    tofu: String,
}

/// Properties of the machine for all hosts.
pub(super) struct Machine<'a> {
    /// The file with the hosts.
    pub(super) file: &'a Path,
    /// The folder of `tofu hosts init`.
    pub(super) certificates: PathBuf,
    /// This command, and its hash.
    pub(super) command: PathBuf,
    pub(super) hash: String,
    /// The machine file and the guest, if they are files.
    pub(super) config: Option<Vec<u8>>,
    pub(super) guest: Option<Vec<u8>>,
    /// The images of Linux nodes that this host has.
    pub(super) images: Vec<Image>,
    /// The options of the machine.
    pub(super) args: Vec<String>,
    pub(super) of: u32,
}

/// Removes the certificates on this host.
impl Drop for Machine<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.certificates);
    }
}

impl Machine<'_> {
    /// An error on a host.
    pub(super) fn place(&self, host: &Host) -> String {
        format!("{}:{}: {}", self.file.display(), host.line, printable(&host.name))
    }

    /// Runs a script on a host, with something on its standard input, and returns what it prints.
    fn run(
        &self,
        host: &Host,
        script: &str,
        input: impl FnOnce(&mut ChildStdin) -> io::Result<()>,
    ) -> anyhow::Result<String> {
        let mut command = session(host, script);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot run ssh")?;
        // Its output is short, and comes after it has read everything.
        let given = child.stdin.take().map_or(Ok(()), |mut stdin| input(&mut stdin));
        let said = child.wait_with_output()?;
        if !said.status.success() {
            let why = String::from_utf8_lossy(&said.stderr);
            let last = why.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no word");
            bail!("{} ({})", printable(last.trim()), said.status);
        }
        given?;
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    }

    /// Gives a host what its shard needs.
    fn prepare(&self, host: &Host, shard: ShardId) -> anyhow::Result<Prepared> {
        let of_shard = |name| format!("part-{shard}/{name}");
        let files = ["parts.toml".to_owned(), "authority.pem".to_owned()].into_iter();
        let files = files.chain(["certificate.pem", "key.pem"].map(of_shard));
        let mut files = files
            .map(|name| Ok((self.read_certificate(&name)?, name)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        files.extend(self.config.clone().map(|bytes| (bytes, "machine.toml".to_owned())));
        let mut script = format!(
            "set -eu; umask 077; base=${{XDG_CACHE_HOME:-$HOME/.cache}}/tofu; mkdir -p \"$base\"; \
             dir=$(mktemp -d \"$base/part.XXXXXX\"); cd \"$dir\"; mkdir part-{shard}; "
        );
        for (bytes, name) in &files {
            // Exactly the bytes of the file are read, not one more.
            script += &format!("dd bs=1 count={} of={name} 2>/dev/null; ", bytes.len());
        }
        script += "cat > guest.elf; echo \"$dir\"; ";
        script +=
            &format!("tofu=$base/commands/{}/tofu; echo \"$tofu\"; test -x \"$tofu\" ", self.hash);
        script += "&& echo there || echo missing";
        let said = self.run(host, &script, |stdin| {
            files.iter().try_for_each(|(bytes, _)| stdin.write_all(bytes))?;
            stdin.write_all(self.guest.as_deref().unwrap_or_default())
        })?;
        let mut lines = said.lines();
        let (dir, tofu) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        ensure!(dir.starts_with('/') && tofu.starts_with('/'), "unexpected output of its shell");
        let mut prepared = Prepared { dir: dir.to_owned(), tofu: tofu.to_owned() };
        let there = lines.next() == Some("there");
        let copied = match &host.tofu {
            Some(path) => {
                prepared.tofu.clone_from(path);
                Ok(())
            }
            None if there => Ok(()),
            None => self.copy(host, &prepared.tofu).context("copying the command"),
        };
        let works = copied.and_then(|()| {
            let script = format!("exec {} --version", quoted(&prepared.tofu));
            let said =
                self.run(host, &script, |_| Ok(())).context("the command does not run there");
            let version = env!("CARGO_PKG_VERSION");
            let other = said?.lines().next().unwrap_or_default().to_owned();
            let same = other.strip_prefix("tofu ") == Some(version);
            ensure!(same, "{} there is {}, this is {version}", prepared.tofu, printable(&other));
            Ok(())
        });
        let sent = works.and_then(|()| {
            let mut images = self.images.iter();
            images.try_for_each(|image| self.send(image, host)).context("copying the image")
        });
        sent.inspect_err(|_| self.tidy(host, &prepared))?;
        Ok(prepared)
    }

    fn read_certificate(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        let path = self.certificates.join(name);
        tofu_input::read(&path, tofu_input::LIST)
            .with_context(|| format!("cannot read {}", path.display()))
    }

    /// Copies the command, which appears complete or not at all.
    fn copy(&self, host: &Host, to: &str) -> anyhow::Result<()> {
        let mut file = File::open(&self.command)?;
        let mib = file.metadata()?.len() >> 20;
        tofu_ui::tell!("tofu: {}: copies the command, {mib} MiB", self.place(host));
        let to = quoted(to);
        let script = format!(
            "set -eu; umask 077; mkdir -p \"$(dirname {to})\"; cat > {to}.$$; chmod 700 {to}.$$; \
             mv {to}.$$ {to}"
        );
        self.run(host, &script, |stdin| io::copy(&mut file, stdin).map(drop)).map(drop)
    }

    /// Copies an image, if the host does not have it.
    fn send(&self, image: &Image, host: &Host) -> anyhow::Result<()> {
        if self.run(host, &image.looked_for(), |_| Ok(()))?.trim() == "there" {
            return Ok(());
        }
        tofu_ui::tell!("tofu: {}: copies {}", self.place(host), image.words());
        self.run(host, &image.unpacked(), |stdin| image.pack(stdin)).map(drop)
    }

    /// Removes everything that a host has received, except the command and the image.
    pub(super) fn tidy(&self, host: &Host, prepared: &Prepared) {
        let script = format!("rm -rf {}", quoted(&prepared.dir));
        if let Err(error) = self.run(host, &script, |_| Ok(())) {
            log::warn!("{}: {} is left there: {error:#}", self.place(host), prepared.dir);
        }
    }

    /// Starts the shard of a host.
    pub(super) fn start(
        &self,
        host: &Host,
        shard: ShardId,
        prepared: &Prepared,
    ) -> anyhow::Result<Child> {
        let dir = quoted(&prepared.dir);
        let mut args = self.args.clone();
        let mut add = |option: &str, file: &str| {
            args.extend([option.to_owned(), format!("{}/{file}", prepared.dir)]);
        };
        add("--join", "");
        if self.config.is_some() {
            add("--config", "machine.toml");
        }
        if self.guest.is_some() {
            add("--guest", "guest.elf");
        }
        let args: Vec<_> = args.iter().map(|arg| quoted(arg)).collect();
        // The second process ends the shard when this process is gone.
        let script = format!(
            "exec 3<&0; {tofu} up --shard {shard}/{of} {args} </dev/null 3<&- & shard=$!; \
             {{ cat <&3; kill -TERM $shard; }} >/dev/null 2>&1 & ends=$!; exec 3<&-; \
             wait $shard; code=$?; kill $ends 2>/dev/null; rm -rf {dir}; exit $code",
            tofu = quoted(&prepared.tofu),
            of = self.of,
            args = args.join(" "),
        );
        let mut command = session(host, &script);
        // Ctrl-C is for this process, which ends them.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().context("cannot run ssh")
    }
}

/// Prepares all hosts, or none: an error of one is reported, and the others are cleaned up.
pub(super) fn prepare(machine: &Machine<'_>, hosts: &[Host]) -> anyhow::Result<Vec<Prepared>> {
    let numbered: Vec<_> = hosts.iter().zip(0..).collect();
    let mut all = Vec::new();
    for some in numbered.chunks(AT_ONCE) {
        let done: Vec<_> = thread::scope(|scope| {
            let prepare = |&(host, shard): &(&'_ Host, u16)| machine.prepare(host, ShardId(shard));
            let threads: Vec<_> =
                some.iter().map(|one| scope.spawn(move || prepare(one))).collect();
            let result = |thread: thread::ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(result).collect()
        });
        all.extend(some.iter().map(|(host, _)| *host).zip(done));
        if all.iter().any(|(_, result)| result.is_err()) {
            break;
        }
    }
    let mut failed = None;
    let mut prepared = Vec::new();
    for (host, result) in all {
        match result {
            Ok(done) => prepared.push((host, done)),
            Err(error) => {
                failed.get_or_insert(error.context(machine.place(host)));
            }
        }
    }
    if let Some(error) = failed {
        prepared.iter().for_each(|(host, done)| machine.tidy(host, done));
        return Err(error);
    }
    Ok(prepared.into_iter().map(|(_, done)| done).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_survives_a_shell() {
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
