//! `tofu up --hosts FILE`: starts a shard of a machine on each of several hosts by ssh(1), and
//! follows all of them.
//!
//! On each host one session makes a folder with everything that its shard needs, others copy the
//! command and the image of Linux nodes if the host does not have them yet, and the last one runs
//! the shard. The shard ends with the session's standard input, even if this process is killed.

mod file;
mod image;
mod remote;

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Child;
use std::thread;

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tofu_control::rundir;
use tofu_fabric::{ShardId, Shards};
use tofu_image::hex;
use tofu_spec::plan::Plan;
use tofu_spec::units::ShardOf;
use tofu_sync::queue::{Item, Receiver, Sender, WhenFull, queue};
use tofu_ui::{TomlFile, exit, printable, signals};

use crate::options::MachineArgs;

use self::file::Host;
use self::image::Image;
use self::remote::Machine;

/// The exit code of ssh(1) when it has failed before running anything.
const SSH_FAILED: i32 = 255;

/// The arguments of this process for each shard: without those about local files, and about hosts.
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
            // The value is not an option, even if it looks like one.
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

/// Messages from the shards, and from the user.
enum News {
    /// A line of standard output, or of standard error.
    Line {
        shard: usize,
        out: bool,
        line: String,
    },
    /// The session of a shard has ended.
    Ended(usize),
    Signal(i32),
}

impl Item for News {
    fn bytes(&self) -> usize {
        match self {
            Self::Line { line, .. } => line.len(),
            _ => 0,
        }
    }
}

/// Bytes of lines that wait to be shown. Shards whose lines wait are held up.
const MOST_WAITING: usize = 1 << 20;
/// The longest line of a shard, in bytes; a longer one is cut.
const LONGEST: u64 = 64 << 10;

/// Reads the lines of a shard.
fn follow(shard: usize, child: &mut Child, to: &Sender<News>) -> anyhow::Result<()> {
    let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else { return Ok(()) };
    let read = |stream: Box<dyn Read + Send>, out: bool, to: Sender<News>| {
        let run = move || {
            let mut lines = BufReader::new(stream);
            let mut line = Vec::new();
            while let Ok(1..) = lines.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                // The receiver is gone once all is over.
                let _ = to.send(News::Line { shard, out, line: text });
            }
        };
        thread::Builder::new().name("lines".into()).spawn(run).context("no threads left")
    };
    let streams = [read(Box::new(out), true, to.clone())?, read(Box::new(err), false, to.clone())?];
    let to = to.clone();
    let run = move || {
        streams.into_iter().for_each(|stream| drop(stream.join()));
        let _ = to.force(News::Ended(shard));
    };
    thread::Builder::new().name("ends".into()).spawn(run).context("no threads left")?;
    Ok(())
}

/// A shard that runs.
struct Shard {
    child: Child,
    /// It has met the others.
    met: bool,
    last_word: String,
    code: Option<i32>,
}

impl Shard {
    /// Has it end.
    fn end(&mut self) {
        self.child.stdin = None;
    }
}

/// Runs `tofu up --hosts` and returns the exit code.
pub(crate) fn run(
    file: &Path,
    args: &MachineArgs,
    json: bool,
    only_check: bool,
) -> anyhow::Result<u8> {
    let text = tofu_input::read_text(file, tofu_input::LIST)
        .with_context(|| format!("cannot read {}", file.display()))?;
    let hosts =
        file::read(&text).map_err(|(line, why)| anyhow!("{}:{line}: {why}", file.display()))?;
    let of = hosts.len() as u32;
    ensure!(of > 0, "{}: no hosts; a line is [USER@]HOST [ADDRESS:PORT [PATH]]", file.display());
    let most = Shards::MOST;
    ensure!(of <= most, "{}: {of} hosts: there are {most} at most", file.display());
    // Errors of the machine are reported before any host is contacted.
    let plan = Plan::new(&args.spec()?)?;
    let images = Image::of(&plan)?;
    if only_check {
        plan.clone().cut(ShardOf { shard: ShardId(0), of })?;
        return super::check::describe(&plan, json);
    }
    plan.cut(ShardOf { shard: ShardId(0), of })?;
    let guest = args.guest.as_deref().filter(|name| name.contains('/') || name.ends_with(".elf"));
    let file_of = |path: &Path| {
        tofu_input::read(path, tofu_input::PROGRAM)
            .with_context(|| format!("cannot read {}", path.display()))
    };
    let config = args.shape.config.as_deref().map(|path| TomlFile::read(path, "machine file"));
    let command = std::env::current_exe().context("cannot find this command")?;
    let hash = Sha256::digest(file_of(&command)?);
    let machine = Machine {
        file,
        certificates: rundir::base()?.join(format!(".hosts-{}", std::process::id())),
        hash: hex(&hash[..16]),
        command,
        config: config.transpose()?.map(String::into_bytes),
        guest: guest.map(|path| file_of(Path::new(path))).transpose()?,
        images,
        args: passed_on(std::env::args_os(), guest.is_some())?,
        of,
    };
    let addresses: Vec<_> = hosts.iter().map(|host| host.address.clone()).collect();
    tofu_cables::hosts::init(&machine.certificates, &addresses)
        .with_context(|| file.display().to_string())?;

    let (sender, news) = queue(MOST_WAITING, WhenFull::Wait);
    let signalled = sender.clone();
    let _signals = signals::forward(signals::CLEANING, move |signal| {
        let _ = signalled.force(News::Signal(signal));
    })?;
    let prepared = remote::prepare(&machine, &hosts)?;
    if let Ok(News::Signal(signal)) = news.try_recv() {
        hosts.iter().zip(&prepared).for_each(|(host, prepared)| machine.tidy(host, prepared));
        return Ok(exit::of_signal(signal));
    }
    let mut shards: Vec<Shard> = Vec::new();
    for ((host, prepared), shard) in hosts.iter().zip(&prepared).zip(0..) {
        // Those that have started end with this process.
        let child = machine.start(host, ShardId(shard), prepared);
        let mut child = child.with_context(|| machine.place(host))?;
        follow(shard.into(), &mut child, &sender)?;
        shards.push(Shard { child, met: false, last_word: String::new(), code: None });
    }
    let signal = follow_shards(&mut shards, &hosts, &news, json)?;
    if let Some(signal) = signal {
        return Ok(exit::of_signal(signal));
    }
    outcome(&machine, &hosts, &shards)
}

/// Follows the shards until all have ended; returns a signal that came.
fn follow_shards(
    shards: &mut [Shard],
    hosts: &[Host],
    news: &Receiver<News>,
    json: bool,
) -> anyhow::Result<Option<i32>> {
    let mut signal = None;
    while shards.iter().any(|shard| shard.code.is_none()) {
        match news.recv()? {
            News::Line { shard: number, out, line } => {
                let shard = &mut shards[number];
                shard.met |= out;
                show(json, number, &hosts[number], out, &line)?;
                if !out && !line.trim().is_empty() {
                    shard.last_word = line;
                }
            }
            News::Ended(number) => {
                let code = shards[number].child.wait()?.code().unwrap_or(SSH_FAILED);
                shards[number].code = Some(code);
                if code != 0 {
                    // The others would wait for it. Those that know it end by themselves.
                    shards.iter_mut().filter(|shard| !shard.met).for_each(Shard::end);
                }
            }
            News::Signal(number) => {
                signal = Some(number);
                shards.iter_mut().for_each(Shard::end);
            }
        }
    }
    Ok(signal)
}

/// The exit code of all shards; an error if one has not run as a shard of the machine.
fn outcome(machine: &Machine<'_>, hosts: &[Host], shards: &[Shard]) -> anyhow::Result<u8> {
    let failed = hosts.iter().zip(shards).find(|(_, shard)| {
        shard.code.is_some_and(|code| code != 0 && code != i32::from(exit::FAILED) && code < 128)
            || shard.code == Some(SSH_FAILED)
    });
    if let Some((host, shard)) = failed {
        let (place, why) = (machine.place(host), printable(&shard.last_word));
        match shard.code {
            Some(SSH_FAILED) => bail!("{place}: ssh has ended: {why}"),
            code => bail!("{place}: exit code {}: {why}", code.unwrap_or_default()),
        }
    }
    Ok(if shards.iter().all(|shard| shard.code == Some(0)) { 0 } else { exit::FAILED })
}

/// Shows a line of a shard.
fn show(json: bool, shard: usize, host: &Host, out: bool, line: &str) -> io::Result<()> {
    if !out {
        tofu_ui::tell!("{}: {}", printable(&host.name), printable(line));
        return Ok(());
    }
    let mut to = io::stdout().lock();
    match serde_json::from_str::<Value>(line) {
        Ok(Value::Object(mut event)) if json => {
            event.insert("part".to_owned(), shard.into());
            writeln!(to, "{}", Value::Object(event))?;
        }
        _ => writeln!(to, "{shard}: {}", printable(line))?,
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_get_the_options_of_the_machine() {
        let args = ["tofu", "--log", "info", "up", "--hosts=x", "-c", "m.toml", "--guest", "a.elf"];
        let args = args.into_iter().chain(["--shape", "unit", "--args", "it's"]);
        let args = || args.clone().map(OsString::from);
        let passed = passed_on(args(), true).unwrap();
        assert_eq!(passed, ["--shape", "unit", "--args", "it's"]);
        let passed = passed_on(args(), false).unwrap();
        assert_eq!(passed, ["--guest", "a.elf", "--shape", "unit", "--args", "it's"]);
    }
}
