//! Ends nodes when memory runs out, before the kernel ends the whole process.
//!
//! All small guests are in one process, and the kernel charges their memory when they touch it. A
//! guest's access cannot be refused: when no memory is left, the kernel ends the process that has
//! most. So a thread polls the free memory, the more often the less there is, and ends the guest
//! with the most memory before that happens.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;

use crate::guests::Guests;

/// The memory that must be left: this part of the memory that was left at first, within these
/// bounds in bytes.
const RESERVE: (u64, u64, u64) = (8, 16 << 20, 1 << 30);
/// The bytes that a processor's guests can touch in a second: each page is zeroed. Four times of
/// that, because the thread may wake up late on a busy host.
const RATE: u64 = 4 * (8 << 30);
/// The shortest and the longest time between two looks.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_secs(1)];
/// The same while no guest has memory that is worth taking.
const HELPLESS: Duration = Duration::from_millis(50);

/// The thread that polls the free memory. Dropping it ends the thread.
pub(crate) struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread. `left` returns the bytes of memory that are left, if that is known.
    ///
    /// # Errors
    ///
    /// If there is no thread to be had.
    pub(crate) fn start(
        guests: &Arc<Guests>,
        left: impl Fn() -> Option<u64> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (stop, stopped) = channel();
        let guests = Arc::clone(guests);
        let body = move || watch(&guests, &left, &stopped);
        let thread = thread::Builder::new().name("memory".into()).spawn(body);
        let thread = thread.context("starting a thread (raise ulimit -u)")?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(guests: &Guests, left: &dyn Fn() -> Option<u64>, stopped: &Receiver<()>) {
    let cores = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let Some(first) = left() else { return };
    tofu_vmm::run_soon();
    let reserve = reserve(first);
    loop {
        let Some(now) = left() else { return };
        let pause = match now.checked_sub(reserve) {
            Some(above) => pause(above, cores),
            None if guests.relieve(now, reserve, left) => PAUSES[0],
            None => HELPLESS,
        };
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// The bytes below which guests are ended, from what is left at first.
fn reserve(first: u64) -> u64 {
    let (part, least, most) = RESERVE;
    (first / part).clamp(least, most)
}

/// The time in which guests cannot touch more than `above` bytes.
fn pause(above: u64, cores: u64) -> Duration {
    let nanos = u128::from(above) * 1_000_000_000 / u128::from(RATE.saturating_mul(cores));
    let [least, most] = PAUSES;
    Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX)).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
    use std::time::Instant;

    use tofu_spec::MachineSpec;
    use tofu_spec::guest::GuestName;
    use tofu_spec::plan::Plan;

    use super::*;
    use crate::confine::Confinement;
    use crate::event::{Event, Outcome, events};
    use crate::runner::{Backend, Machines};

    #[test]
    fn looks_are_the_more_frequent_the_less_is_left() {
        assert_eq!(reserve(22 << 30), 1 << 30);
        assert_eq!(reserve(1 << 30), 128 << 20);
        assert_eq!(reserve(0), 16 << 20);
        assert_eq!(pause(64 << 30, 2), PAUSES[1]);
        assert_eq!(pause(8 << 30, 2), Duration::from_millis(125));
        assert_eq!(pause(16 << 30, 64), Duration::from_nanos(7_812_500));
        assert_eq!(pause(1, 2), PAUSES[0]);
        assert_eq!(pause(u64::MAX, 1), PAUSES[1]);
    }

    /// The free memory for the machine of the next test; it is low once.
    static LEFT: AtomicU64 = AtomicU64::new(PLENTY);
    /// True if the thread has looked: what it finds first decides how much must be left.
    static HAS_LOOKED: AtomicBool = AtomicBool::new(false);
    const PLENTY: u64 = 64 << 20;

    #[test]
    fn the_largest_guest_is_ended_and_named_and_others_go_on() {
        if let Some(problem) = tofu_vmm::probe().problem {
            eprintln!("skipped: {problem}");
            return;
        }
        let spec = MachineSpec {
            shape: Some("6x1x1x1x1x1".parse().unwrap()),
            guest: Some(GuestName::named("httpd").unwrap()),
            args: Some("forever=1".parse().unwrap()),
            ..MachineSpec::default()
        };
        let plan = Plan::new(&spec).unwrap();
        let (sender, events) = events();
        let memory = || {
            let left = LEFT.swap(PLENTY, SeqCst);
            HAS_LOOKED.store(true, SeqCst);
            Some(left)
        };
        let machines = Machines { memory, ..Machines::bare(Confinement::default()) };
        let mut machine = machines.start(&plan, sender).unwrap();
        let limit = Duration::from_secs(60);
        let begin = Instant::now();
        while machine.guest_resident_kib() < Some(18 << 10) || !HAS_LOOKED.load(SeqCst) {
            assert!(begin.elapsed() < limit);
            thread::sleep(Duration::from_millis(10));
        }
        LEFT.store(1 << 20, SeqCst);
        let (first, outcome) = loop {
            match events.recv_timeout(Duration::from_secs(2)) {
                Ok(Event::Ended(node, outcome)) => break (node, outcome),
                Ok(_) => {}
                // Guests that have touched less than the reserve are left alone. What counts as
                // theirs above may contain memory of other tests that the kernel has mapped next
                // to it.
                Err(RecvTimeoutError::Timeout) if begin.elapsed() < limit => {
                    LEFT.store(1 << 20, SeqCst);
                }
                Err(error) => panic!("no guest has ended: {error}"),
            }
        };
        let Outcome::Fault(text) = &outcome else { panic!("{outcome:?}") };
        assert!(text.starts_with("memory runs out: 1 MiB are left, and this node has most,"));
        machine.stop();
        let others = events.try_iter().filter_map(|event| match event {
            Event::Ended(node, outcome) => Some((node, outcome)),
            _ => None,
        });
        let others: Vec<_> = others.collect();
        assert_eq!(others.len(), 5, "{others:?}");
        let stopped = |(node, outcome): &(_, _)| *node != first && *outcome == Outcome::Stopped;
        assert!(others.iter().all(stopped), "{others:?}");
    }
}
