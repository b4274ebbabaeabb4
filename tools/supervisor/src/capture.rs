//! Captures of the packets at a node's ports and TNIs, as pcapng.

pub mod file;
pub mod select;
pub mod text;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use file::Writer;
use tofu_abi::Coords;
use tofu_control::protocol::{CaptureLimits, CaptureSummary};
use tofu_machine::capture::Capture;

/// The interval at which a capture without packets flushes its data and checks whether it must end.
const LOOK: Duration = Duration::from_millis(100);

/// Writes captured packets to `out` until a limit is reached or `stop` is set, then the counters of
/// the interfaces.
///
/// # Errors
///
/// If writing to `out` fails.
pub(crate) fn write(
    capture: &Capture,
    at: Coords,
    limits: CaptureLimits,
    stop: &AtomicBool,
    out: &mut dyn Write,
) -> io::Result<CaptureSummary> {
    let (start, since_ns) = (Instant::now(), capture.now_ns());
    let end = limits.seconds.map(|seconds| start + Duration::from_secs(seconds));
    let mut writer = Writer::new(out, at, capture.config())?;
    // Once the header is written, the file is valid even if the machine ends immediately.
    writer.flush()?;
    let mut packets = 0;
    let is_over = || stop.load(SeqCst) || end.is_some_and(|end| Instant::now() >= end);
    while limits.count.is_none_or(|count| packets < count) && !is_over() {
        let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
        match capture.next(left.min(LOOK)) {
            Some(record) => {
                writer.record(&record)?;
                packets += 1;
            }
            None => writer.flush()?,
        }
    }
    capture.close();
    // Drain the packets that came before that.
    while limits.count.is_none_or(|count| packets < count)
        && let Some(record) = capture.next(Duration::ZERO)
    {
        writer.record(&record)?;
        packets += 1;
    }
    let dropped = writer.finish(capture, since_ns)?;
    Ok(CaptureSummary { packets, dropped, seconds: start.elapsed().as_secs_f64() })
}

/// A capture into a file from the start of a machine to its end.
#[derive(Clone, Debug)]
pub struct ToFile {
    pub(crate) at: Coords,
    pub(crate) path: PathBuf,
    /// Opened early, because the machine gives up the right to open files.
    pub(crate) file: Arc<std::fs::File>,
}

/// A capture that a thread writes. Dropping it ends the capture.
pub(crate) struct FileCapture {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FileCapture {
    /// # Errors
    ///
    /// If the host has no threads left.
    pub(crate) fn start(capture: Capture, to: &ToFile) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, to) = (Arc::clone(&stop), to.clone());
        let thread = thread::Builder::new().name("capture".into());
        let thread = thread.spawn(move || {
            let mut out = io::BufWriter::new(&*to.file);
            let written = write(&capture, to.at, CaptureLimits::default(), &seen, &mut out);
            if let Err(error) = written.and_then(|_| out.flush()) {
                log::error!("capture {}: {error}", to.path.display());
            }
        });
        Ok(Self { stop, thread: Some(thread.context("no threads left")?) })
    }
}

impl Drop for FileCapture {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already been printed.
            let _ = thread.join();
        }
    }
}
