//! A process and its VCQs.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use tofu_abi::generation::Description;
use tofu_abi::{Coords, TniId};

use crate::barrier_state::Barriers;
use crate::error::{Code, Error};
use crate::flags;
use crate::ids::{check_cmp_id, check_tni};
use crate::provider::Provider;
use crate::share::DeviceShare;
use crate::vcq::{SharedQueue, Vcq, VcqKind};

/// A process that communicates, with its share of its node's device.
pub struct Context<P: Provider + ?Sized> {
    provider: Arc<P>,
    share: DeviceShare,
    /// Queues by interface, then by control queue.
    queues: Vec<Arc<SharedQueue<P>>>,
    barriers: Barriers<P::Channel>,
}

impl<P: Provider + ?Sized> Context<P> {
    /// Creates a process with a share of the device behind `provider`.
    pub fn new(provider: Arc<P>, share: DeviceShare) -> Self {
        Self::splitting(provider, share, u32::MAX)
    }

    /// Creates a process that splits Puts of at least `bytes` over several of the shortest paths,
    /// if they take the default path and their completion is reported to this process. While such a
    /// Put is in progress, it and later commands on the same control queue progress only during
    /// calls to the library.
    pub fn splitting(provider: Arc<P>, share: DeviceShare, bytes: u32) -> Self {
        let all = share.tnis().flat_map(|tni| share.cqs().map(move |cq| (tni, cq)));
        let half = share.half();
        let queues = all
            .map(|queue| Arc::new(SharedQueue::new(Arc::clone(&provider), queue, half, bytes)))
            .collect();
        Self { provider, share, queues, barriers: Barriers::default() }
    }

    /// Makes polls sleep, each for up to a millisecond, once they have found nothing for `after` or
    /// longer; `None` turns that off, which is the default. A poll of a VCQ wakes up when an entry
    /// arrives. If the queue has no interrupts, or the thread polls several VCQs or barriers, it
    /// sleeps for a small part of the time that it has waited. Without an operating system no poll
    /// sleeps.
    pub fn rest_after(&self, after: Option<Duration>) {
        self.queues.iter().for_each(|queue| queue.rest_after.set(after));
        self.barriers.rest_after.set(after);
    }

    /// Returns the provider.
    pub fn provider(&self) -> &Arc<P> {
        &self.provider
    }

    /// Returns its share of the device.
    pub fn share(&self) -> &DeviceShare {
        &self.share
    }

    /// Returns the coordinates of its node.
    pub fn coords(&self) -> Coords {
        self.provider.coords()
    }

    /// Returns the process's control queues. Their indices never change.
    pub fn queues(&self) -> &[Arc<SharedQueue<P>>] {
        &self.queues
    }

    pub(crate) fn barriers(&self) -> &Barriers<P::Channel> {
        &self.barriers
    }

    /// Returns the description of this generation's devices.
    pub fn description(&self) -> &'static Description {
        self.provider.generation().description()
    }

    /// Returns the interfaces with barrier gates that the process can use: those of its share, or
    /// the only one with gates.
    pub fn barrier_tnis(&self) -> impl Iterator<Item = TniId> + use<P> {
        let with_gates = self.description().barrier.tnis;
        let own = self.share.tnis().filter(move |tni| tni.get() < with_gates);
        let only = (with_gates == 1).then_some(TniId::ALL[0]);
        own.filter(move |_| only.is_none()).chain(only)
    }

    /// Checks that a network interface exists.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidTniId`] if it does not.
    pub fn check_tni(&self, tni: u16) -> Result<TniId, Error> {
        let checked = check_tni(tni)?;
        if self.description().has_tni(checked) {
            return Ok(checked);
        }
        let hint = "there are TNIs 0 to 3 in this generation";
        Err(Error::with_value(Code::InvalidTniId, "TNI", tni.into(), hint))
    }

    pub(crate) fn check_own_tni(&self, tni: TniId) -> Result<(), Error> {
        if self.share.tnis().any(|own| own == tni) {
            return Ok(());
        }
        let hint = "this TNI is for other processes of the node";
        Err(Error::with_value(Code::NotAvailable, "TNI", tni.get().into(), hint))
    }

    /// Creates a VCQ on an interface, with a component ID (0 to 7) if one is given.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidTniId`], [`Code::InvalidCmpId`], [`Code::InvalidFlags`];
    /// [`Code::NotAvailable`] for an interface of other processes; [`Code::Used`] for a component
    /// ID that is in use; [`Code::NotSupported`] for a session if the generation has no session
    /// mode; [`Code::Full`] if no VCQ or control queue is left; any error of [`Provider::open`].
    pub fn create_vcq(&self, tni: u16, cmp_id: Option<u16>, flags: u64) -> Result<Vcq<P>, Error> {
        let tni = self.check_tni(tni)?;
        let extra = cmp_id.map(check_cmp_id).transpose()?;
        let known = flags::VCQ_THREAD_SAFE | flags::VCQ_EXCLUSIVE | flags::VCQ_SESSION_MODE;
        flags::check(flags, known, "flags of a VCQ")?;
        self.check_own_tni(tni)?;
        let kind = VcqKind {
            extra,
            exclusive: flags & flags::VCQ_EXCLUSIVE != 0,
            session: flags & flags::VCQ_SESSION_MODE != 0,
        };
        if kind.session && !self.description().session_mode {
            let hint = "the controllers of this generation have none";
            return Err(Error::new(Code::NotSupported, "session mode", hint));
        }
        // Peers expect the first queue, so another one is taken only if the first is not suitable.
        // A VCQ in session mode leaves the first queue to other VCQs if possible, because the
        // program must send its ID to peers anyway.
        let mut queues: Vec<_> = self.queues.iter().filter(|queue| queue.tni() == tni).collect();
        if kind.session {
            queues.reverse();
        }
        for queue in queues {
            match queue.create(kind) {
                Ok(Some(ticket)) => return Ok(Vcq::new(Arc::clone(queue), ticket)),
                Ok(None) => {}
                // Another process has taken it first.
                Err(error)
                    if error.code() == Code::NotAvailable && !self.share.owns(tni, queue.cq()) => {}
                Err(error) => return Err(error),
            }
        }
        let hint = "the process's control queues on this TNI are taken";
        Err(Error::with_value(Code::Full, "control queues of TNI", tni.get().into(), hint))
    }
}
