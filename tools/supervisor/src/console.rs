//! A node's console: its latest output, and the clients attached to it.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tofu_sync::lock;
use tofu_sync::queue::{Item, Receiver, Sender, WhenFull, queue};

use crate::duplex::Duplex;
use crate::outlet::Outlet;

/// Bytes of output kept for later clients.
const TAIL: usize = 64 << 10;
/// Bytes of output by which a viewer may lag. Older output is lost.
const BEHIND: usize = 1 << 20;
/// Bytes of input that wait for a guest that does not read its console.
const TYPED: usize = 64 << 10;
/// The time for which input waits for such a guest.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of output that are kept in one piece.
const PIECE: usize = 4 << 10;
/// The most characters of a line that an error shows.
const MOST_SHOWN: usize = 300;
/// The size at which a new log file is begun. The previous file is kept.
const MAX_LOG: u64 = 1 << 20;

/// A console. It outlives the virtual machines of its node.
pub struct Console {
    inner: Mutex<Inner>,
}

struct Inner {
    tail: VecDeque<u8>,
    viewers: Vec<Sender<Output>>,
    input: Option<Outlet>,
    log: Log,
}

/// Output of a console, for a viewer.
pub(crate) struct Output(pub(crate) Vec<u8>);

impl Item for Output {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn absorb(&mut self, later: Self) -> Option<Self> {
        if self.0.len() + later.0.len() > PIECE {
            return Some(later);
        }
        self.0.extend(later.0);
        None
    }
}

impl Console {
    /// Creates a console that is logged to `log`.
    pub fn new(log: PathBuf) -> Self {
        let log = Log { path: log, file: None, size: 0 };
        let (tail, viewers) = (VecDeque::new(), Vec::new());
        Self { inner: Mutex::new(Inner { tail, viewers, input: None, log }) }
    }

    /// Returns the path of its log.
    pub fn log(&self) -> PathBuf {
        self.lock().log.path.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Follows the console of a virtual machine until the virtual machine ends.
    pub fn follow(&self, Duplex { mut output, input }: Duplex) {
        match Outlet::new(input, TYPED, PATIENCE) {
            Ok(input) => self.lock().input = Some(input),
            Err(error) => log::warn!("console input: {error:#}"),
        }
        let mut buffer = [0; PIECE];
        loop {
            match output.read(&mut buffer) {
                Ok(n) if n > 0 => self.lock().output(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // An error also means that the other end is gone.
                _ => break,
            }
        }
        self.lock().input = None;
    }

    /// Returns the latest output, and a receiver of the output to come.
    pub(crate) fn view(&self) -> (Vec<u8>, Receiver<Output>) {
        let (sender, receiver) = queue(BEHIND, WhenFull::DropOldest);
        let mut inner = self.lock();
        inner.viewers.retain(|viewer| !viewer.is_closed());
        inner.viewers.push(sender);
        (inner.tail.iter().copied().collect(), receiver)
    }

    /// Sends input. Input for a node that is off is lost.
    ///
    /// # Errors
    ///
    /// If the guest has not read its console for long.
    pub(crate) fn type_in(&self, bytes: &[u8]) -> anyhow::Result<()> {
        // Others need the lock while this waits for the guest.
        let input = self.lock().input.clone();
        input.map_or(Ok(()), |input| input.send(bytes.to_vec()))
    }

    /// Returns the last lines that are not blank, without control characters.
    pub fn last_lines(&self, most: usize) -> Vec<String> {
        let tail: Vec<u8> = self.lock().tail.iter().copied().collect();
        last_lines(&String::from_utf8_lossy(&tail), most)
    }
}

/// For a kernel panic, the reason is shown rather than its place.
fn last_lines(text: &str, most: usize) -> Vec<String> {
    let text = tofu_ui::terminal::plain(text);
    let clean = text.lines().map(|line| tofu_ui::printable(line.trim_end()));
    let clean = clean.map(|line| line.chars().take(MOST_SHOWN).collect::<String>());
    let mut lines: Vec<String> = clean.filter(|line| !line.trim().is_empty()).collect();
    if let Some(panic) = lines.iter().rposition(|line| line.contains("Kernel panic")) {
        lines.truncate(panic + 1);
    }
    lines.split_off(lines.len().saturating_sub(most))
}

impl Inner {
    fn output(&mut self, bytes: &[u8]) {
        self.tail.extend(bytes);
        let excess = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..excess);
        self.viewers.retain(|viewer| viewer.send(Output(bytes.to_vec())).is_ok());
        self.log.write(bytes);
    }
}

/// A log file of bounded size.
struct Log {
    path: PathBuf,
    file: Option<File>,
    size: u64,
}

impl Log {
    fn write(&mut self, bytes: &[u8]) {
        if let Err(error) = self.try_write(bytes) {
            // Warned once: a full disk stays full.
            if self.size != u64::MAX {
                log::warn!("{}: {error}; no longer written", self.path.display());
            }
            self.size = u64::MAX;
            self.file = None;
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.size == u64::MAX {
            return Ok(());
        }
        if self.size > MAX_LOG {
            self.file = None;
            std::fs::rename(&self.path, self.path.with_extension("log.1"))?;
            self.size = 0;
        }
        if self.file.is_none() {
            let mut options = OpenOptions::new();
            self.file = Some(options.create(true).append(true).mode(0o600).open(&self.path)?);
        }
        if let Some(file) = &mut self.file {
            file.write_all(bytes)?;
        }
        self.size += bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn last_lines_give_the_reason() {
        let text = "one\r\n\r\ntwo\x1b[6n\nthree";
        assert_eq!(last_lines(text, 2), ["two", "three"]);
        let panic = "a\nb\n[ 1.0] Kernel panic - not syncing\nCall Trace:\n more\n";
        assert_eq!(last_lines(panic, 2), ["b", "[ 1.0] Kernel panic - not syncing"]);
        assert!(last_lines("", 5).is_empty());
        assert_eq!(last_lines(&"x".repeat(10_000), 5), ["x".repeat(MOST_SHOWN)]);
    }

    #[test]
    fn console_keeps_a_bounded_tail_and_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("console.log");
        let console = Console::new(log.clone());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| console.follow(Duplex::on(ours).unwrap()));
            let chunk = [b'x'; 1000];
            for _ in 0..2200 {
                theirs.write_all(&chunk).unwrap();
            }
            drop(theirs);
        });
        assert_eq!(console.view().0.len(), TAIL);
        let size = |path| std::fs::metadata(path).unwrap().len();
        assert!(size(log.clone()) <= MAX_LOG + 4096);
        assert!(size(log.with_extension("log.1")) <= MAX_LOG + 4096);
        // There is no reader.
        console.type_in(b"lost").unwrap();
    }
}
