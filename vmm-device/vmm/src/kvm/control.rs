//! Requests to vCPU threads: stop, pause, resume, show registers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use tofu_sync::{lock, wait, wait_timeout};

use super::kick::Kicker;
use crate::outcome::{Outcome, Registers};

/// The state that the owner of the VM wants its vCPUs to be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunRequest {
    Run,
    Pause,
    Stop,
}

/// The phase of a vCPU thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VcpuPhase {
    Running,
    Parked,
    Gone,
}

struct VcpuState {
    phase: VcpuPhase,
    registers_wanted: bool,
    registers: Option<Registers>,
    /// Their values when it ended the VM.
    last: Option<Registers>,
}

struct State {
    request: RunRequest,
    vcpus: Vec<VcpuState>,
    outcome: Option<Outcome>,
}

/// Shared by the vCPU threads of a VM and its owner.
pub(crate) struct Control {
    state: Mutex<State>,
    changed: Condvar,
    /// For each vCPU: check `state` before running the guest.
    attention: Vec<AtomicBool>,
    kickers: Vec<Kicker>,
}

/// The next step of a vCPU thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Run,
    Leave,
}

impl Control {
    pub(crate) fn new(vcpus: usize) -> Self {
        let state = || VcpuState {
            phase: VcpuPhase::Gone,
            registers_wanted: false,
            registers: None,
            last: None,
        };
        Self {
            state: Mutex::new(State {
                request: RunRequest::Run,
                vcpus: (0..vcpus).map(|_| state()).collect(),
                outcome: None,
            }),
            changed: Condvar::new(),
            attention: (0..vcpus).map(|_| AtomicBool::new(false)).collect(),
            kickers: (0..vcpus).map(|_| Kicker::default()).collect(),
        }
    }

    pub(crate) fn kicker(&self, vcpu: usize) -> &Kicker {
        &self.kickers[vcpu]
    }

    /// Counts the vCPUs as running. Called before their threads exist, so that a VM that has not
    /// begun is not taken for one that has ended.
    pub(crate) fn begin(&self) {
        for vcpu in &mut lock(&self.state).vcpus {
            vcpu.phase = VcpuPhase::Running;
        }
    }

    /// The way out for a vCPU thread. The last one gets the VM's outcome.
    pub(crate) fn leave(&self, vcpu: usize) -> Option<Outcome> {
        let mut state = lock(&self.state);
        state.vcpus[vcpu].phase = VcpuPhase::Gone;
        self.changed.notify_all();
        if state.vcpus.iter().any(|vcpu| vcpu.phase != VcpuPhase::Gone) {
            return None;
        }
        Some(state.outcome.clone().unwrap_or(Outcome::Stopped))
    }

    /// Ends the VM from one of its vCPUs: the first outcome counts, the others
    /// leave too.
    pub(crate) fn end(&self, outcome: Outcome) {
        {
            let mut state = lock(&self.state);
            state.outcome.get_or_insert(outcome);
            state.request = RunRequest::Stop;
        }
        self.call_all();
    }

    /// Keeps the registers with which `vcpu` ends the VM.
    pub(crate) fn keep(&self, vcpu: usize, registers: Registers) {
        lock(&self.state).vcpus[vcpu].last = Some(registers);
    }

    /// Handles the requests to `vcpu` since the last call; waits here while the VM is paused. Cheap
    /// if there are none.
    pub(crate) fn service(&self, vcpu: usize, registers: impl Fn() -> Registers) -> Next {
        if !self.attention[vcpu].swap(false, Ordering::SeqCst) {
            return Next::Run;
        }
        let mut state = lock(&self.state);
        loop {
            if std::mem::take(&mut state.vcpus[vcpu].registers_wanted) {
                state.vcpus[vcpu].registers = Some(registers());
                self.changed.notify_all();
            }
            let phase = match state.request {
                RunRequest::Run => VcpuPhase::Running,
                RunRequest::Pause => VcpuPhase::Parked,
                RunRequest::Stop => return Next::Leave,
            };
            if state.vcpus[vcpu].phase != phase {
                state.vcpus[vcpu].phase = phase;
                self.changed.notify_all();
            }
            if phase == VcpuPhase::Running {
                return Next::Run;
            }
            state = wait(&self.changed, state);
        }
    }

    /// Asks all vCPUs to leave. Does not wait.
    pub(crate) fn stop(&self) {
        lock(&self.state).request = RunRequest::Stop;
        self.call_all();
    }

    /// Asks all vCPUs to halt between two instructions and waits until they have.
    /// False if one did not within `timeout`, or the VM has ended.
    pub(crate) fn pause(&self, timeout: Duration) -> bool {
        {
            let mut state = lock(&self.state);
            if state.request == RunRequest::Stop {
                return false;
            }
            state.request = RunRequest::Pause;
        }
        self.call_all();
        self.wait_until(timeout, |state| {
            state.vcpus.iter().all(|vcpu| vcpu.phase != VcpuPhase::Running).then_some(())
        })
        .is_some_and(|()| {
            lock(&self.state).vcpus.iter().any(|vcpu| vcpu.phase == VcpuPhase::Parked)
        })
    }

    /// Asks all vCPUs to halt, without waiting for them. False if they are halted already, or the
    /// VM has ended.
    pub(crate) fn hold(&self) -> bool {
        {
            let mut state = lock(&self.state);
            if state.request != RunRequest::Run {
                return false;
            }
            state.request = RunRequest::Pause;
        }
        self.call_all();
        true
    }

    /// Lets paused vCPUs continue.
    pub(crate) fn resume(&self) {
        {
            let mut state = lock(&self.state);
            if state.request == RunRequest::Pause {
                state.request = RunRequest::Run;
            }
        }
        self.call_all();
    }

    /// Returns the current registers of `vcpu`, or those with which it ended the VM. `None` if it
    /// did not answer within `timeout`, never ran, or was stopped.
    pub(crate) fn registers(&self, vcpu: usize, timeout: Duration) -> Option<Registers> {
        {
            let mut state = lock(&self.state);
            let vcpu = state.vcpus.get_mut(vcpu)?;
            if vcpu.phase == VcpuPhase::Gone {
                return vcpu.last.clone();
            }
            vcpu.registers = None;
            vcpu.registers_wanted = true;
        }
        self.call(vcpu);
        self.wait_until(timeout, |state| {
            let vcpu = &state.vcpus[vcpu];
            (vcpu.registers.is_some() || vcpu.phase == VcpuPhase::Gone)
                .then(|| vcpu.registers.clone())
        })
        .flatten()
    }

    /// Waits for the end of the VM.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<Outcome> {
        self.wait_until(timeout, |state| {
            let gone = state.vcpus.iter().all(|vcpu| vcpu.phase == VcpuPhase::Gone);
            gone.then(|| state.outcome.clone().unwrap_or(Outcome::Stopped))
        })
    }

    fn wait_until<T>(
        &self,
        timeout: Duration,
        mut done: impl FnMut(&State) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = done(&state) {
                return Some(found);
            }
            let left = match deadline {
                Some(deadline) => deadline.checked_duration_since(Instant::now())?,
                None => Duration::MAX,
            };
            state = wait_timeout(&self.changed, state, left);
        }
    }

    fn call_all(&self) {
        for vcpu in 0..self.kickers.len() {
            self.call(vcpu);
        }
    }

    fn call(&self, vcpu: usize) {
        self.attention[vcpu].store(true, Ordering::SeqCst);
        self.kickers[vcpu].kick();
        // A parked vCPU waits here, not in KVM. Taking the lock between the store
        // and the wake-up keeps a vCPU about to park from missing it.
        drop(lock(&self.state));
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_outcome_counts_for_the_last_vcpu() {
        let control = Control::new(2);
        control.begin();
        assert!(control.wait(Duration::ZERO).is_none());
        control.end(Outcome::Exited(3));
        control.end(Outcome::Reset);
        assert_eq!(control.leave(1), None);
        assert!(control.wait(Duration::ZERO).is_none());
        assert_eq!(control.leave(0), Some(Outcome::Exited(3)));
        assert_eq!(control.wait(Duration::ZERO), Some(Outcome::Exited(3)));
    }

    #[test]
    fn pause_holds_a_vcpu_until_resumed() {
        let control = Control::new(1);
        control.begin();
        let turns = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn({
                let (control, turns) = (&control, &turns);
                move || {
                    while control.service(0, Registers::default) == Next::Run {
                        turns.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                    }
                    control.leave(0);
                }
            });
            assert!(control.pause(Duration::from_secs(10)));
            let before = turns.load(Ordering::SeqCst);
            // A paused vCPU still shows its registers, and stays paused.
            assert!(control.registers(0, Duration::from_secs(10)).is_some());
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(turns.load(Ordering::SeqCst), before);
            control.resume();
            while turns.load(Ordering::SeqCst) == before {
                std::thread::yield_now();
            }
            control.stop();
            assert_eq!(control.wait(Duration::from_secs(10)), Some(Outcome::Stopped));
        });
        assert!(!control.pause(Duration::ZERO));
        assert_eq!(control.registers(0, Duration::ZERO), None);
    }
}
