//! A mark of a command that is at its target without a place among outstanding commands.

use std::sync::atomic::Ordering::{Relaxed, Release};

use tofu_sync::{AtomicBool, fence};

/// True while a command that its target carries out in place is away.
///
/// Its effects at the target may cause a notice for this queue, which must not overtake the
/// command's completion. The thread of the command says that it is away before it has any effect,
/// and ends that with the queue's completions locked. A thread that saw the effects and then locks
/// the completions finds either the flag or the completion.
#[derive(Debug)]
pub(crate) struct Away(AtomicBool);

impl Away {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The command has effects from now on.
    #[inline]
    pub(crate) fn begin(&self) {
        self.0.store(true, Relaxed);
        // No later store becomes visible before this one.
        fence(Release);
    }

    /// It has none that were not told.
    #[inline]
    pub(crate) fn end(&self) {
        self.0.store(false, Relaxed);
    }

    /// Returns true if one is away. The queue's completions are locked.
    #[inline]
    pub(crate) fn is_one(&self) -> bool {
        self.0.load(Relaxed)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::atomic::{AtomicU32, Ordering::Acquire};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    /// A queue with its message receive queue, and the memory of a command's target.
    struct Model {
        away: Away,
        written: Mutex<Vec<&'static str>>,
        target: AtomicU32,
    }

    #[test]
    fn loom_answer_does_not_overtake_its_cause() {
        loom::model(|| {
            let model = Arc::new(Model {
                away: Away::new(),
                written: Mutex::new(Vec::new()),
                target: AtomicU32::new(0),
            });
            let other = Arc::clone(&model);
            let peer = thread::spawn(move || {
                if other.target.load(Acquire) == 0 {
                    return;
                }
                let mut written = other.written.lock().unwrap();
                if !other.away.is_one() {
                    written.push("caused");
                }
            });
            model.away.begin();
            model.target.store(1, Relaxed);
            let mut written = model.written.lock().unwrap();
            written.push("completion");
            model.away.end();
            drop(written);
            peer.join().unwrap();
            assert_eq!(model.written.lock().unwrap()[0], "completion");
        });
    }
}
