// SPDX-License-Identifier: GPL-2.0

//! Exceptions of queues and channels: signals to their process, and counts of exceptions that other
//! nodes can cause.

use kernel::bindings;
use kernel::fmt;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;

use tofu_abi::irq::IrqSet;

use crate::device::Device;
use crate::opener::{Delivery, Opener};
use crate::uapi;

/// The causes of an exception.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Only the process itself, by wrong use.
    Process,
    /// Another node, by its packets.
    Peer,
}

/// The code for a lost queue or channel.
const LOST: i32 = 16;

/// Exceptions that are reported to a process, each with its code.
pub(crate) type Codes<S> = &'static [(S, i32, Cause)];

/// All exceptions that have a code.
pub(crate) fn all_of<S: IrqSet>(codes: Codes<S>) -> S {
    fold(codes.iter())
}

/// Those of them that other nodes can cause.
fn peers<S: IrqSet>(codes: Codes<S>) -> S {
    fold(codes.iter().filter(|(_, _, cause)| *cause == Cause::Peer))
}

fn fold<S: IrqSet>(codes: impl Iterator<Item = &'static (S, i32, Cause)>) -> S {
    S::from_raw(codes.fold(0, |all, (request, ..)| all | request.raw()))
}

/// The number of exceptions caused by other nodes after which a queue or channel disables
/// interrupts of that kind. So no node can keep a processor busy, or fill the signal queue of a
/// process.
const MAX_OF_PEERS: u32 = 1000;

/// The receivers of signals, and their signals.
pub(crate) struct Signal {
    opener: Arc<Opener>,
    /// 0: none was chosen.
    number: Atomic<i32>,
    /// Exceptions that other nodes may have caused.
    of_peers: Atomic<u32>,
}

impl Signal {
    /// The signal without SET_RT_SIGNAL.
    const DEFAULT: i32 = bindings::SIGTERM as i32;

    pub(crate) fn new(opener: &Arc<Opener>) -> Self {
        Self {
            opener: opener.clone(),
            number: Atomic::new(0),
            of_peers: Atomic::new(0),
        }
    }

    /// SET_RT_SIGNAL.
    ///
    /// # Errors
    ///
    /// `EINVAL` for another than a real-time signal, `EFAULT`.
    pub(crate) fn set(&self, arg: u64) -> Result {
        let number: i32 = uapi::get(arg)?;
        if !(bindings::SIGRTMIN as i32..=bindings::_NSIG as i32).contains(&number) {
            return Err(EINVAL);
        }
        self.number.store(number, Relaxed);
        Ok(())
    }

    /// Sends a signal for each of the exceptions that are `pending`: with its code (`si_errno`) and
    /// the queue or channel (`si_int`). An exception that another node may have caused is only
    /// signalled if the process has chosen the signal, and the signal does not end it.
    pub(crate) fn tell<S: IrqSet>(&self, codes: Codes<S>, pending: S, si_int: i32) {
        let chosen = self.number.load(Relaxed);
        for (_, code, cause) in codes
            .iter()
            .filter(|(request, ..)| request.raw() & pending.raw() != 0)
        {
            let (number, delivery) = match (cause, chosen) {
                (Cause::Peer, 0) => continue,
                (Cause::Peer, chosen) => (chosen, Delivery::IfHandled),
                (Cause::Process, 0) => (Self::DEFAULT, Delivery::Always),
                (Cause::Process, chosen) => (chosen, Delivery::Always),
            };
            self.opener.signal(number, *code, si_int, delivery);
        }
    }

    /// Sends the signal for a queue or channel that the device has lost (ours).
    pub(crate) fn tell_lost(&self, si_int: i32) {
        let number = match self.number.load(Relaxed) {
            0 => Self::DEFAULT,
            chosen => chosen,
        };
        self.opener.signal(number, LOST, si_int, Delivery::Always);
    }

    /// Counts the exceptions that are `pending` of a queue or gate `of` the device, and logs those
    /// that another node may have caused. Returns those whose interrupt must be masked, because
    /// there were too many.
    pub(crate) fn count<S: IrqSet>(
        &self,
        device: &Device,
        of: impl fmt::Display,
        codes: Codes<S>,
        pending: S,
    ) -> S {
        let by_peer = S::from_raw(pending.raw() & peers(codes).raw());
        if by_peer.raw() != pending.raw() {
            device.faults.fetch_add(1, Relaxed);
        }
        if by_peer.raw() == 0 {
            return by_peer;
        }
        device.log_peer(of, by_peer);
        if self.of_peers.fetch_add(1, Relaxed) < MAX_OF_PEERS {
            return S::from_raw(0);
        }
        by_peer
    }
}
