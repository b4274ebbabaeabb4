//! `tofu up --hosts FILE`: starts a part of a machine on each of several hosts by ssh(1), and
//! follows all of them.
//!
//! On each host one session makes a folder with everything that its part needs, others copy the
//! command and the image of Linux nodes if the host does not have them yet, and the last one runs
//! the part. The part ends with the session's standard input, however this process ends.

mod image;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tofu_fabric::{PartId, Parts};
use tofu_image::hex;
use tofu_supervisor::options::MachineArgs;
use tofu_supervisor::plan::Plan;
use tofu_supervisor::units::PartOf;
use tofu_ui::{exit, printable, signals};

use self::image::Image;

/// The port of a part if its line does not give one.
const PORT: u16 = 7700;
/// Hosts that are prepared at once.
const AT_ONCE: usize = 16;
/// The exit code of ssh(1) when it has failed before running anything.
const SSH_FAILED: i32 = 255;

/// A line of the file.
#[derive(Debug, PartialEq, Eq)]
struct Host {
    /// Its number, from 1.
    line: usize,
    /// What ssh(1) is told.
    name: String,
    /// Where its part listens.
    address: String,
    /// The command there, if it must not be copied.
    tofu: Option<String>,
}

/// Reads the lines of a file.
fn read(text: &str) -> Result<Vec<Host>, (usize, String)> {
    let mut hosts = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default();
        let mut words = text.split_whitespace();
        let Some(name) = words.next() else { continue };
        let (address, tofu) = (words.next(), words.next());
        if name.starts_with('-') || words.next().is_some() {
            let allowed = "a line is [USER@]HOST [ADDRESS:PORT [PATH]]";
            return Err((line, format!("{}: {allowed}", printable(text.trim()))));
        }
        let host = name.rsplit('@').next().unwrap_or(name);
        let address = address.map_or_else(|| format!("{host}:{PORT}"), str::to_owned);
        let (name, tofu) = (name.to_owned(), tofu.map(str::to_owned));
        hosts.push(Host { line, name, address, tofu });
    }
    Ok(hosts)
}

/// A word of a shell's.
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

/// What a host has received of the machine.
struct Prepared {
    /// The folder there of this machine.
    dir: String,
    /// The command.
    tofu: String,
}

/// What all hosts are told.
struct Machine<'a> {
    /// The file with the hosts.
    file: &'a Path,
    /// The folder of `tofu hosts init`.
    certificates: PathBuf,
    /// This command, and its hash.
    command: PathBuf,
    hash: String,
    /// The machine file and the guest, if they are files.
    config: Option<Vec<u8>>,
    guest: Option<Vec<u8>>,
    /// The images of Linux nodes that this host has.
    images: Vec<Image>,
    /// The options of the machine.
    args: Vec<String>,
    of: u32,
}

/// Removes the certificates on this host.
impl Drop for Machine<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.certificates);
    }
}

impl Machine<'_> {
    /// An error on a host.
    fn place(&self, host: &Host) -> String {
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

    /// Gives a host what its part needs.
    fn prepare(&self, host: &Host, part: PartId) -> anyhow::Result<Prepared> {
        let of_part = |name| format!("part-{part}/{name}");
        let files = ["parts.toml".to_owned(), "authority.pem".to_owned()].into_iter();
        let files = files.chain(["certificate.pem", "key.pem"].map(of_part));
        let mut files = files
            .map(|name| Ok((self.read_certificate(&name)?, name)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        files.extend(self.config.clone().map(|bytes| (bytes, "machine.toml".to_owned())));
        let mut script = format!(
            "set -eu; umask 077; base=${{XDG_CACHE_HOME:-$HOME/.cache}}/tofu; mkdir -p \"$base\"; \
             dir=$(mktemp -d \"$base/part.XXXXXX\"); cd \"$dir\"; mkdir part-{part}; "
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
        ensure!(
            dir.starts_with('/') && tofu.starts_with('/'),
            "its shell says what is not expected"
        );
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
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Copies the command, which appears complete or not at all.
    fn copy(&self, host: &Host, to: &str) -> anyhow::Result<()> {
        let mut file = File::open(&self.command)?;
        let mib = file.metadata()?.len() >> 20;
        eprintln!("tofu: {}: copies the command, {mib} MiB", self.place(host));
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
        eprintln!("tofu: {}: copies {}", self.place(host), image.words());
        self.run(host, &image.unpacked(), |stdin| image.pack(stdin)).map(drop)
    }

    /// Removes everything that a host has received, except the command and the image.
    fn tidy(&self, host: &Host, prepared: &Prepared) {
        let script = format!("rm -rf {}", quoted(&prepared.dir));
        if let Err(error) = self.run(host, &script, |_| Ok(())) {
            log::warn!("{}: {} is left there: {error:#}", self.place(host), prepared.dir);
        }
    }

    /// Starts the part of a host.
    fn start(&self, host: &Host, part: PartId, prepared: &Prepared) -> anyhow::Result<Child> {
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
        // The second process ends the part when this process is gone.
        let script = format!(
            "exec 3<&0; {tofu} up --part {part}/{of} {args} </dev/null 3<&- & part=$!; \
             {{ cat <&3; kill -TERM $part; }} >/dev/null 2>&1 & ends=$!; exec 3<&-; \
             wait $part; code=$?; kill $ends 2>/dev/null; rm -rf {dir}; exit $code",
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

/// The arguments of this process for each part: without those about local files, and about hosts.
fn passed_on(
    args: impl Iterator<Item = OsString>,
    guest_is_file: bool,
) -> anyhow::Result<Vec<String>> {
    let mut passed = Vec::new();
    let mut args = args.skip_while(|arg| arg != "up").skip(1);
    while let Some(arg) = args.next() {
        let arg = arg.into_string().map_err(|arg| anyhow!("{}: not UTF-8", arg.display()))?;
        let (name, value) = arg.split_once('=').map_or((&arg[..], None), |(n, v)| (n, Some(v)));
        let here =
            matches!(name, "--hosts" | "--config" | "-c") || name == "--guest" && guest_is_file;
        match here {
            true if value.is_none() => drop(args.next()),
            true => {}
            // -cFILE
            false if arg.starts_with("-c") => {}
            // Whatever its value looks like, the value is not an option.
            false if arg == "--args" => {
                let value = args.next().unwrap_or_default().into_string();
                passed.extend([
                    arg,
                    value.map_err(|value| anyhow!("{}: not UTF-8", value.display()))?,
                ]);
            }
            false => passed.push(arg),
        }
    }
    Ok(passed)
}

/// Messages from the parts, and from the user.
enum News {
    /// A line of standard output, or of standard error.
    Line {
        part: usize,
        out: bool,
        line: String,
    },
    /// The session of a part has ended.
    Ended(usize),
    Signal(i32),
}

/// Reads the lines of a part.
fn follow(part: usize, child: &mut Child, to: &Sender<News>) -> anyhow::Result<()> {
    let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else { return Ok(()) };
    let read = |stream: Box<dyn Read + Send>, out: bool, to: Sender<News>| {
        let run = move || {
            let mut lines = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                // The receiver is gone once all is over.
                let _ = to.send(News::Line { part, out, line: text });
            }
        };
        thread::Builder::new().name("lines".into()).spawn(run).context("no threads left")
    };
    let streams = [read(Box::new(out), true, to.clone())?, read(Box::new(err), false, to.clone())?];
    let to = to.clone();
    let run = move || {
        streams.into_iter().for_each(|stream| drop(stream.join()));
        let _ = to.send(News::Ended(part));
    };
    thread::Builder::new().name("ends".into()).spawn(run).context("no threads left")?;
    Ok(())
}

/// A part that runs.
struct Part {
    child: Child,
    /// It has met the others.
    met: bool,
    last_word: String,
    code: Option<i32>,
}

impl Part {
    /// Has it end.
    fn end(&mut self) {
        self.child.stdin = None;
    }
}

/// Runs `tofu up --hosts` and returns the exit code.
pub(crate) fn run(file: &Path, args: &MachineArgs, json: bool) -> anyhow::Result<u8> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let hosts = read(&text).map_err(|(line, why)| anyhow!("{}:{line}: {why}", file.display()))?;
    let of = hosts.len() as u32;
    ensure!(of > 0, "{}: no hosts; a line is [USER@]HOST [ADDRESS:PORT [PATH]]", file.display());
    ensure!(of <= Parts::MOST, "{}: {of} hosts: there are {} at most", file.display(), Parts::MOST);
    // Errors of the machine are reported before any host is contacted.
    let plan = Plan::new(args)?;
    let images = Image::of(&plan, &args.linux)?;
    plan.cut(PartOf { part: PartId(0), of })?;
    let guest = args.guest.as_deref().filter(|name| name.contains('/') || name.ends_with(".elf"));
    let file_of =
        |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let command = std::env::current_exe().context("cannot find this command")?;
    let hash = Sha256::digest(file_of(&command)?);
    let machine = Machine {
        file,
        certificates: std::env::temp_dir().join(format!("tofu-hosts-{}", std::process::id())),
        hash: hex(&hash[..16]),
        command,
        config: args.shape.config.as_deref().map(file_of).transpose()?,
        guest: guest.map(|path| file_of(Path::new(path))).transpose()?,
        images,
        args: passed_on(std::env::args_os(), guest.is_some())?,
        of,
    };
    let addresses: Vec<_> = hosts.iter().map(|host| host.address.clone()).collect();
    tofu_cables::hosts::init(&machine.certificates, &addresses)
        .with_context(|| file.display().to_string())?;

    let (sender, news) = channel();
    let signalled = sender.clone();
    let _signals = signals::forward(move |signal| {
        let _ = signalled.send(News::Signal(signal));
    })?;
    let prepared = prepare(&machine, &hosts)?;
    if let Ok(News::Signal(signal)) = news.try_recv() {
        hosts.iter().zip(&prepared).for_each(|(host, prepared)| machine.tidy(host, prepared));
        return Ok(exit::of_signal(signal));
    }
    let mut parts: Vec<Part> = Vec::new();
    for ((host, prepared), part) in hosts.iter().zip(&prepared).zip(0..) {
        // Those that have started end with this process.
        let child = machine.start(host, PartId(part), prepared);
        let mut child = child.with_context(|| machine.place(host))?;
        follow(part.into(), &mut child, &sender)?;
        parts.push(Part { child, met: false, last_word: String::new(), code: None });
    }
    let mut signal = None;
    while parts.iter().any(|part| part.code.is_none()) {
        match news.recv()? {
            News::Line { part: number, out, line } => {
                let part = &mut parts[number];
                part.met |= out;
                show(json, number, &hosts[number], out, &line)?;
                if !out && !line.trim().is_empty() {
                    part.last_word = line;
                }
            }
            News::Ended(number) => {
                let code = parts[number].child.wait()?.code().unwrap_or(SSH_FAILED);
                parts[number].code = Some(code);
                if code != 0 {
                    // The others would wait for it. Those that know it end by themselves.
                    parts.iter_mut().filter(|part| !part.met).for_each(Part::end);
                }
            }
            News::Signal(number) => {
                signal = Some(number);
                parts.iter_mut().for_each(Part::end);
            }
        }
    }
    if let Some(signal) = signal {
        return Ok(exit::of_signal(signal));
    }
    let failed = hosts.iter().zip(&parts).find(|(_, part)| {
        part.code.is_some_and(|code| code != 0 && code != i32::from(exit::FAILED) && code < 128)
            || part.code == Some(SSH_FAILED)
    });
    if let Some((host, part)) = failed {
        let (place, why) = (machine.place(host), printable(&part.last_word));
        match part.code {
            Some(SSH_FAILED) => bail!("{place}: ssh has ended: {why}"),
            code => bail!("{place}: exit code {}: {why}", code.unwrap_or_default()),
        }
    }
    Ok(if parts.iter().all(|part| part.code == Some(0)) { 0 } else { exit::FAILED })
}

/// Prepares all hosts, or none: an error of one is reported, and the others are cleaned up.
fn prepare(machine: &Machine<'_>, hosts: &[Host]) -> anyhow::Result<Vec<Prepared>> {
    let numbered: Vec<_> = hosts.iter().zip(0..).collect();
    let mut all = Vec::new();
    for some in numbered.chunks(AT_ONCE) {
        let done: Vec<_> = thread::scope(|scope| {
            let prepare = |&(host, part): &(&'_ Host, u16)| machine.prepare(host, PartId(part));
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

/// Shows a line of a part.
fn show(json: bool, part: usize, host: &Host, out: bool, line: &str) -> io::Result<()> {
    if !out {
        eprintln!("{}: {}", printable(&host.name), printable(line));
        return Ok(());
    }
    let mut to = io::stdout().lock();
    match serde_json::from_str::<Value>(line) {
        Ok(Value::Object(mut event)) if json => {
            event.insert("part".to_owned(), part.into());
            writeln!(to, "{}", Value::Object(event))?;
        }
        _ => writeln!(to, "{part}: {}", printable(line))?,
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_host() {
        let hosts = read("# all\nnode1\n\nme@node2 10.0.0.2:7000 # comment\nn3 n3:1 /opt/tofu\n");
        let host = |line, name: &str, address: &str, tofu: Option<&str>| {
            let (name, address) = (name.to_owned(), address.to_owned());
            Host { line, name, address, tofu: tofu.map(str::to_owned) }
        };
        let expected = [
            host(2, "node1", "node1:7700", None),
            host(4, "me@node2", "10.0.0.2:7000", None),
            host(5, "n3", "n3:1", Some("/opt/tofu")),
        ];
        assert_eq!(hosts.unwrap(), expected);
        for bad in ["ok\n-oProxyCommand=x\n", "ok\na b c d\n"] {
            let (line, why) = read(bad).unwrap_err();
            assert!(line == 2 && why.contains("a line is [USER@]HOST"), "{why}");
        }
    }

    #[test]
    fn parts_get_the_options_of_the_machine() {
        let args = ["tofu", "--log", "info", "up", "--hosts=x", "-c", "m.toml", "--guest", "a.elf"];
        let args = args.into_iter().chain(["--shape", "unit", "--args", "it's"]);
        let args = || args.clone().map(OsString::from);
        let passed = passed_on(args(), true).unwrap();
        assert_eq!(passed, ["--shape", "unit", "--args", "it's"]);
        let passed = passed_on(args(), false).unwrap();
        assert_eq!(passed, ["--guest", "a.elf", "--shape", "unit", "--args", "it's"]);
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
