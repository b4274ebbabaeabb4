//! `tofu top` on its own terminal.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::tofu::{PATIENCE, Place};

/// A terminal with `tofu top` on it.
struct Terminal {
    ours: File,
    theirs: File,
    before: Termios,
    output: Receiver<Vec<u8>>,
    /// The output so far.
    seen: Vec<u8>,
    child: Child,
}

impl Terminal {
    fn start(place: &Place, columns: u16, rows: u16) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = OpenOptions::new().read(true).write(true).open(name).unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&theirs, size).unwrap();
        let before = tcgetattr(&theirs).unwrap();
        let child = place
            .command(&["top", "--every", "200ms"])
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .spawn()
            .unwrap();
        let ours = File::from(ours);
        let mut reader = ours.try_clone().unwrap();
        let (hear, output) = channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                if hear.send(bytes[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { ours, theirs, before, output, seen: Vec::new(), child }
    }

    fn wait_for(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !shown(&self.seen).contains(text) {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(bytes) = self.output.recv_timeout(left) else {
                panic!("no {text:?} in {:?}", shown(&self.seen));
            };
            self.seen.extend(bytes);
        }
    }

    /// Sends input, and waits for the end.
    fn end(mut self, typed: &[u8]) -> ExitStatus {
        self.ours.write_all(typed).unwrap();
        let status = self.child.wait().unwrap();
        self.wait_for("<?1049l>");
        let after = tcgetattr(&self.theirs).unwrap();
        assert_eq!(after.local_modes, self.before.local_modes, "the terminal is as before");
        assert_eq!(after.input_modes, self.before.input_modes);
        status
    }
}

/// The lines on a terminal's screen after these bytes, and the modes that were set last. Cells are
/// sent individually, each after its position, and blanks are not sent.
fn shown(bytes: &[u8]) -> String {
    let bytes = String::from_utf8_lossy(bytes);
    let mut pieces = bytes.split("\x1b[");
    let mut screen = BTreeMap::<usize, BTreeMap<usize, char>>::new();
    let (mut modes, mut row, mut column) = (String::new(), 0, 0);
    pieces.next();
    for piece in pieces {
        let end = piece.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(piece.len());
        let (sequence, rest) = piece.split_at((end + 1).min(piece.len()));
        if sequence.starts_with('?') {
            modes += &format!("<{sequence}>");
        }
        if let Some((y, x)) = sequence.strip_suffix('H').and_then(|at| at.split_once(';')) {
            (row, column) = (y.parse().unwrap(), x.parse().unwrap());
        }
        for c in rest.chars() {
            screen.entry(row).or_default().insert(column, c);
            column += 1;
        }
    }
    let line = |cells: BTreeMap<usize, char>| -> String {
        let last = cells.keys().max().copied().unwrap_or(0);
        (1..=last).map(|x| cells.get(&x).copied().unwrap_or(' ')).collect()
    };
    let lines: Vec<_> = screen.into_values().map(line).collect();
    modes + "\n" + &lines.join("\n")
}

#[test]
fn top_shows_a_machine_and_resets_terminal() {
    let place = Place::new();
    let error = place.run(&["top"]).error();
    assert!(error.contains("tofu top is for terminals"), "{error}");
    let (mut machine, _) = place.start(&["serve", "--shape", "2x1x1x1x1x1", "--json"]);
    let mut top = Terminal::start(&place, 80, 24);
    top.wait_for("<?1049h>");
    top.wait_for("cmd/s");
    top.wait_for("t-1-0-0-0-0-0");
    top.wait_for("q quit");
    assert_eq!(top.end(b"\x1b[B\rlsrpq").code(), Some(0));
    let mut small = Terminal::start(&place, 20, 5);
    small.wait_for("tofu: 2x1x1x1x1x1 fu");
    assert_eq!(small.end(b"\x03").code(), Some(130));
    // A machine that ends.
    let mut last = Terminal::start(&place, 80, 24);
    last.wait_for("t-1-0-0-0-0-0");
    place.run(&["down"]).ok();
    machine.ok();
    assert_eq!(last.end(b"").code(), Some(0));
}
