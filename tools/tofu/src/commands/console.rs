//! `tofu console`.

use std::io::{self, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use tofu_control::protocol::{Reply, Request};
use tofu_control::{Connection, find_node};
use tofu_ui::terminal::Filter;
use tofu_ui::{exit, signals};

use crate::commands::terminal::Raw;

/// Connect this terminal to a Linux node's console
///
/// Shows the last lines first. Colours and full-screen programs work. Sequences that would change
/// the terminal permanently, such as a reset by the node's firmware, are filtered out. Ctrl-], or
/// ~. at the beginning of a line, leaves the console; the node keeps running.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConsoleArgs {
    /// Node, as for `tofu exec`
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
}

/// Ctrl-].
const ESCAPE: u8 = 0x1d;
/// The time to wait for output after the end of input that is not from a terminal.
const AFTERWARDS: Duration = Duration::from_millis(500);

/// Runs `tofu console` and returns the exit code.
pub(crate) fn run(args: &ConsoleArgs) -> anyhow::Result<u8> {
    let found = find_node(&args.node)?;
    let node = found.node.index;
    let mut connection = Connection::open(&found.control, &Request::Console { node })?;
    let Reply::Console { mut replay } = connection.answer()? else { bail!("not an answer") };
    let terminal = io::stdin().is_terminal();
    if terminal {
        tofu_ui::tell!("console of {}; Ctrl-] leaves", found.node.name);
    }
    let raw = if terminal { Some(Arc::new(Raw::enter()?)) } else { None };
    let restored = raw.clone().map(|raw| {
        signals::forward(signals::GRACE, move |signal| {
            raw.leave();
            process::exit(exit::of_signal(signal).into());
        })
    });
    let _signals = restored.transpose()?;
    let (out, input) = connection.split();
    let mut input = input.into_inner();
    let typing = out.try_clone()?;
    thread::spawn(move || {
        if let Err(error) = type_in(typing, terminal) {
            log::debug!("console: {error}");
        }
    });
    let mut buffer = [0; 4096];
    let mut screen = io::stdout().lock();
    let mut filter = Filter::default();
    loop {
        match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                let (before, now) = buffer[..n].split_at(n.min(replay as usize));
                replay -= before.len() as u64;
                screen.write_all(&filter.replay(before))?;
                screen.write_all(&filter.live(now)).and_then(|()| screen.flush())?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    if io::stdout().is_terminal() {
        screen.write_all(&filter.restore()).and_then(|()| screen.flush())?;
    }
    raw.inspect(|raw| raw.leave());
    if terminal {
        tofu_ui::tell!("");
    }
    Ok(0)
}

/// Sends input until the user leaves.
fn type_in(mut out: UnixStream, terminal: bool) -> io::Result<()> {
    let mut keys = Keys::default();
    let mut buffer = [0; 1024];
    loop {
        let n = io::stdin().read(&mut buffer)?;
        if n == 0 {
            // The node's answer to it is still shown.
            thread::sleep(AFTERWARDS);
            return out.shutdown(Shutdown::Both);
        }
        if !terminal {
            out.write_all(&buffer[..n])?;
            continue;
        }
        let (typed, leave) = keys.take(&buffer[..n]);
        out.write_all(&typed)?;
        if leave {
            return out.shutdown(Shutdown::Both);
        }
    }
}

/// Looks for the keys that leave.
#[derive(Default)]
struct Keys {
    state: Line,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Line {
    #[default]
    Begin,
    Tilde,
    Middle,
}

impl Keys {
    /// The input for the node, and whether the user wants to leave.
    fn take(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut typed = Vec::new();
        for &byte in bytes {
            let state = self.state;
            self.state = match byte {
                ESCAPE => return (typed, true),
                b'.' if state == Line::Tilde => return (typed, true),
                b'~' if state == Line::Begin => Line::Tilde,
                b'\r' | b'\n' => Line::Begin,
                _ => Line::Middle,
            };
            // A tilde waits for the next character, and ~~ sends one tilde.
            if state == Line::Tilde && byte != b'~' {
                typed.push(b'~');
            }
            if self.state != Line::Tilde {
                typed.push(byte);
            }
        }
        (typed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_leave() {
        let take = |chunks: &[&[u8]]| {
            let mut keys = Keys::default();
            let mut all = Vec::new();
            for chunk in chunks {
                let (typed, leave) = keys.take(chunk);
                all.extend(typed);
                if leave {
                    return (String::from_utf8(all).unwrap(), true);
                }
            }
            (String::from_utf8(all).unwrap(), false)
        };
        assert_eq!(take(&[b"ls ~.\r"]), ("ls ~.\r".into(), false));
        assert_eq!(take(&[b"ls\r~.x"]), ("ls\r".into(), true));
        assert_eq!(take(&[b"~", b"."]), (String::new(), true));
        assert_eq!(take(&[b"~", b"/x\r"]), ("~/x\r".into(), false));
        assert_eq!(take(&[b"~~."]), ("~.".into(), false));
        assert_eq!(take(&[b"a\x1db"]), ("a".into(), true));
    }
}
