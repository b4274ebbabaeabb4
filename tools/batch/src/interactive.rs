//! Interactive jobs: a shell, or a script, at the terminal of the command that submits it.
//!
//! In the queue, a script that only waits represents the job. The command starts the shell while
//! the script runs. So an interactive job waits, is cancelled and reaches its time limit like any
//! other.

use std::env;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_ui::exit;

use crate::key::Key;
use crate::record::{Record, State};
use crate::runner::{equip, interpreter};
use crate::spool::Spool;

/// The poll interval for the job.
const PAUSE: Duration = Duration::from_millis(50);
/// The time that the queue gets to notice the end of the shell.
const CLOSING: Duration = Duration::from_secs(20);

/// The script that has the job's turn: it ends with the process whose number is its argument, with
/// the exit code that this has left beside it.
pub(crate) const TURN: &str = "#!/bin/sh\n\
    while [ ! -e \"$0.exit\" ] && kill -0 \"$1\" 2>/dev/null; do sleep 0.1; done\n\
    exit \"$(cat \"$0.exit\" 2>/dev/null || echo 129)\"\n";

/// Waits for the job's turn, at most for `wait` seconds, and runs the script, or else a shell, in
/// it. Returns its exit code.
///
/// # Errors
///
/// If the job ends before its turn, or the shell cannot be run.
pub(crate) fn attend(
    spool: &Spool,
    key: Key,
    script: &[String],
    wait: Option<u64>,
) -> anyhow::Result<u8> {
    let until = wait.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    let record = loop {
        let record = find(spool, key)?;
        match record.state {
            State::Run => break record,
            State::Que | State::Hld => {}
            _ => bail!("job {key} was cancelled before it began"),
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            give_up(spool, key)?;
            bail!("job {key} has waited for {} s; its turn has not come", wait.unwrap_or(0));
        }
        sleep(PAUSE);
    };
    // Ctrl-C is for the shell.
    let unused = Arc::new(AtomicBool::new(false));
    let signals = [signal_hook::consts::SIGINT, signal_hook::consts::SIGQUIT];
    for signal in signals {
        signal_hook::flag::register(signal, Arc::clone(&unused))?;
    }
    say(&format!("PJM 0082 pjsub Interactive job {key} started."))?;
    let status = run(spool, &record, script)?;
    let code = exit_code(status);
    let path = spool.script(key, &format!("{}.exit", record.script));
    std::fs::write(&path, format!("{code}\n"))
        .with_context(|| format!("cannot write {}", path.display()))?;
    let end = Instant::now() + CLOSING;
    while !find(spool, key)?.state.is_over() && Instant::now() < end {
        sleep(PAUSE);
    }
    say(&format!("PJM 0083 pjsub Interactive job {key} completed."))?;
    Ok(code)
}

/// Cancels the job, which may already have begun.
fn give_up(spool: &Spool, key: Key) -> anyhow::Result<()> {
    let locked = spool.lock()?;
    let records = locked.records()?;
    match records.iter().find(|record| record.key == key) {
        Some(record) if record.state == State::Run => {
            std::fs::write(spool.cancel_mark(key), "").context("cannot cancel the job")
        }
        Some(record) if !record.state.is_over() => locked.cancel(record),
        _ => Ok(()),
    }
}

fn say(text: &str) -> io::Result<()> {
    writeln!(io::stderr(), "[INFO] {text}")
}

fn find(spool: &Spool, key: Key) -> anyhow::Result<Record> {
    let found = spool.lock()?.records()?.into_iter().find(|record| record.key == key);
    found.with_context(|| format!("job {key} is not in the queue any more"))
}

fn run(spool: &Spool, record: &Record, script: &[String]) -> anyhow::Result<ExitStatus> {
    let mut command = match script {
        [] => Command::new(env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())),
        [script, arguments @ ..] => {
            let mut command = interpreter(Path::new(script))?;
            command.arg(script).args(arguments);
            command
        }
    };
    equip(&mut command, spool, record)?;
    let cannot = || format!("cannot run {}", command.get_program().display());
    let cannot = cannot();
    command.status().context(cannot)
}

fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(exit::FAILED),
        (None, signal) => exit::of_signal(signal.unwrap_or(0)),
    }
}
