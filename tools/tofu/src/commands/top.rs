//! `tofu top`: the activity of a machine, on a full screen.

mod screen;
mod view;

use std::io::{self, IsTerminal};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use ratatui_core::terminal::Terminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tofu_control::rates::Look;
use tofu_control::{MachineName, find_machine, rundir};
use tofu_spec::units::Timeout;
use tofu_ui::{exit, signals};

use self::screen::Screen;
use self::view::{Key, Keys, Sort, View};

/// Show a machine's activity on a full screen: nodes, rates, errors, waiting commands, links
///
/// Keys: up and down (or j and k) choose a node, Enter shows its details and Esc goes back, s sorts
/// by the next column, r reverses the order, l shows links by load, p pauses, q quits.
#[derive(Debug, Clone, Args)]
pub(crate) struct TopArgs {
    /// Machine; not needed if only one runs
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<MachineName>,

    /// Interval between updates
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) every: Timeout,

    /// Column by which nodes are sorted at first
    #[arg(long, value_name = "COLUMN", default_value = "node")]
    pub(crate) sort: Sort,
}

/// The interval at which keys and signals are checked.
const LOOK: Duration = Duration::from_millis(100);

/// Runs `tofu top` and returns the exit code.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<u8> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        bail!("tofu top is for terminals; tofu stats --watch is for files and pipes");
    }
    let (name, control) = find_machine(args.name.as_ref())?;
    let (ended, _signals) = signals::flag(signals::CLEANING)?;
    let mut view = View::new(name.as_str(), args.sort);
    view.take(Look::take(&control)?.into());
    let mut terminal = Terminal::new(Screen::enter()?).context("cannot use the terminal")?;
    let interval = args.every.0.max(LOOK);
    let mut next = Instant::now() + interval;
    let mut keys = Keys::default();
    loop {
        terminal.draw(|frame| view.draw(frame.area(), frame.buffer_mut()))?;
        let wait = next.saturating_duration_since(Instant::now()).min(LOOK);
        for key in typed(&mut keys, wait)? {
            if key == Key::Interrupt {
                return Ok(exit::INTERRUPTED);
            }
            if !view.key(key) {
                return Ok(0);
            }
        }
        if ended.load(SeqCst) {
            return Ok(exit::INTERRUPTED);
        }
        if Instant::now() >= next {
            next = Instant::now() + interval;
            match Look::take(&control) {
                Ok(look) => view.take(look.into()),
                // The machine has ended.
                Err(_) if rundir::has_ended(&control) => return Ok(0),
                Err(error) => return Err(error),
            }
        }
    }
}

/// The time within which keys belong together.
fn typed(keys: &mut Keys, wait: Duration) -> anyhow::Result<Vec<Key>> {
    let stdin = io::stdin();
    let time = Timespec::try_from(wait)?;
    let ready = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&time));
    match ready {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(keys.rest()),
        ready => ready?,
    };
    let mut bytes = [0; 64];
    match rustix::io::read(&stdin, &mut bytes)? {
        // The terminal has gone.
        0 => Ok(vec![Key::Interrupt]),
        n => Ok(keys.of(&bytes[..n])),
    }
}
