// SPDX-License-Identifier: GPL-2.0

//! A barrier channel that a process has opened, with its gates.

use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, Arc, Mutex};

use tofu_abi::barrier::{BCH_MASK, BCH_MASK_STATUS_RUN};
use tofu_abi::irq::BgsIrqs;
use tofu_abi::regs::BgsReg;
use tofu_abi::TniId;

use crate::device::Device;
use crate::ids::{ChannelId, GateSet};
use crate::opener::Opener;
use crate::pin::{Pinned, PAGE};
use crate::signal::Signal;
use crate::uapi::{self, EnableBch, SetBg};

mod gate;
mod interrupt;

use gate::Gate;

/// The channel after ENABLE_BCH.
struct Enabled {
    irqs: KVec<interrupt::Registration>,
    _notice: Pinned,
    gates: GateSet,
}

/// The epoch of a channel that is not enabled.
const NO_EPOCH: u64 = u64::MAX;

/// A barrier channel that is open.
#[pin_data]
pub(crate) struct Bch {
    device: Arc<Device>,
    id: ChannelId,
    uid: u32,
    opener: Arc<Opener>,
    signal: Arc<Signal>,
    /// The epoch in which its gates were set up in the device, if they were.
    epoch: Atomic<u64>,
    #[pin]
    state: Mutex<Option<Enabled>>,
}

impl Bch {
    /// Opens a channel for the calling process.
    ///
    /// # Errors
    ///
    /// `EACCES` if the user may not use it.
    pub(crate) fn open(device: &Arc<Device>, id: ChannelId) -> Result<Arc<Self>> {
        let uid = crate::users::current();
        let rights = device.users.lock().rights(uid);
        if !rights.gates.has(id.gate()) {
            return Err(EACCES);
        }
        let opener = Arc::new(Opener::current()?, GFP_KERNEL_ACCOUNT)?;
        let signal = Arc::new(Signal::new(&opener), GFP_KERNEL_ACCOUNT)?;
        Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                id,
                uid,
                opener,
                signal,
                epoch: Atomic::new(NO_EPOCH),
                state <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )
    }

    /// Which channel it is.
    pub(crate) fn id(&self) -> ChannelId {
        self.id
    }

    /// Returns true if the channel is enabled, but a reset of the device has ended that.
    pub(crate) fn is_lost(&self) -> bool {
        let epoch = self.epoch.load(Relaxed);
        epoch != NO_EPOCH && !self.device.is_in(epoch)
    }

    /// Notifies the process that the device is about to be reset. The reset stops the channel.
    pub(crate) fn lose(&self) {
        let epoch = self.epoch.load(Relaxed);
        // An earlier reset has been reported already.
        if epoch != NO_EPOCH && self.device.is_in(epoch + 1) {
            self.signal.tell_lost(self.id.si_int());
        }
    }

    /// Physical address of the channel's user page, if the caller may map it.
    ///
    /// # Errors
    ///
    /// Those of [`Opener::check`].
    pub(crate) fn page_phys(&self) -> Result<u64> {
        self.opener.check()?;
        Ok(self.device.page_phys(self.id.tni, self.id.bch))
    }

    /// The ioctls of a channel's file.
    ///
    /// # Errors
    ///
    /// See docs/src/reference/tof-uapi.md.
    pub(crate) fn ioctl(&self, cmd: u32, arg: u64) -> Result {
        self.opener.check()?;
        match cmd {
            uapi::ENABLE_BCH => self.enable(&uapi::get(arg)?),
            uapi::DISABLE_BCH => self.disable(),
            uapi::SET_RT_SIGNAL => self.signal.set(arg),
            _ => Err(ENOTTY),
        }
    }

    /// Writes a register of the channel. They are in the block of its gate.
    fn write(&self, reg: BgsReg, value: u64) {
        self.device.write(self.id.gate(), reg, value);
    }

    fn enable(&self, a: &EnableBch) -> Result {
        let epoch = self.device.epoch()?;
        let mut state = self.state.lock();
        if state.is_some() {
            return Err(if self.is_lost() { EIO } else { EBUSY });
        }
        let gates = self.gates(a)?;
        let mut enabled = Enabled {
            irqs: KVec::new(),
            _notice: self.unmask(a.addr)?,
            gates: GateSet::default(),
        };
        let result = self
            .wait_until_idle()
            .and_then(|()| self.enable_gates(&gates, &mut enabled))
            .and_then(|()| self.register_interrupts(&mut enabled));
        // From here on a reset handles this channel.
        self.epoch.store(epoch, Relaxed);
        let result = result.and_then(|()| if self.is_lost() { Err(EIO) } else { Ok(()) });
        if let Err(error) = result {
            self.take_down(&mut enabled);
            return Err(error);
        }
        *state = Some(enabled);
        Ok(())
    }

    /// The requested gates, checked.
    fn gates(&self, a: &EnableBch) -> Result<KVec<Gate>> {
        let description = self.device.description();
        let count = a.gates(description).ok_or(EINVAL)?;
        let rights = self.device.users.lock().rights(self.uid);
        let mut gates = KVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for i in 0..count as u64 {
            let set: SetBg = uapi::get(a.bgs.wrapping_add(i * size_of::<SetBg>() as u64))?;
            let gate = Gate::new(&set, &rights, a.bseq as u32, description)?;
            gates.push(gate, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(gates)
    }

    /// Pins the notice area at `addr`, and starts the channel with it.
    fn unmask(&self, addr: u64) -> Result<Pinned> {
        let page = addr & !(PAGE - 1);
        let end = page.checked_add(PAGE).ok_or(EINVAL)?;
        let notice = Pinned::new(&self.device, &self.opener, (page, end), true, PAGE)?;
        let ipa = notice.addr(0) + (addr - page);
        self.write(BgsReg::BchNoticeIpa, ipa);
        self.write(BgsReg::BchMask, 0);
        Ok(notice)
    }

    fn wait_until_idle(&self) -> Result {
        let is_idle = |v| v & BCH_MASK_STATUS_RUN == 0;
        self.device
            .wait(self.id.gate(), BgsReg::BchMaskStatus, is_idle)
    }

    fn enable_gates(&self, gates: &[Gate], enabled: &mut Enabled) -> Result {
        for gate in gates {
            self.device.claim_gate(gate.id)?;
            enabled.gates.insert(gate.id);
            gate.enable(&self.device, interrupt::told())?;
        }
        Ok(())
    }

    fn register_interrupts(&self, enabled: &mut Enabled) -> Result {
        for tni in TniId::ALL {
            if !enabled.gates.has_some_of(tni) {
                continue;
            }
            let gates = (tni, enabled.gates);
            let signal = (self.signal.clone(), self.id.si_int());
            if let Some(irq) = interrupt::Registration::new(&self.device, gates, signal)? {
                enabled.irqs.push(irq, GFP_KERNEL)?;
            }
        }
        Ok(())
    }

    /// Undoes the completed steps of [`Bch::enable`].
    fn take_down(&self, enabled: &mut Enabled) {
        self.epoch.store(NO_EPOCH, Relaxed);
        enabled.irqs.clear();
        self.write(BgsReg::BchMask, BCH_MASK);
        for gate in enabled.gates.iter() {
            self.device.write(gate, BgsReg::Imr, u64::MAX);
            self.device.write(gate, BgsReg::Enable, 0);
        }
        self.device.release_gates(&enabled.gates);
        // Nothing more is written to the notice area, which is about to be unpinned.
        self.write(BgsReg::BchNoticeIpa, 0);
        self.device.read(self.id.gate(), BgsReg::BchMaskStatus);
    }

    fn disable(&self) -> Result {
        let mut enabled = self.state.lock().take().ok_or(EPERM)?;
        self.take_down(&mut enabled);
        Ok(())
    }

    /// Exceptions of the channel's gates since ENABLE_BCH, including those without a signal (ours).
    ///
    /// # Errors
    ///
    /// `EPERM` if the channel is not enabled, `EIO` if a reset of the device has ended it or the
    /// device is gone, and those of [`Opener::check`].
    pub(crate) fn exceptions(&self) -> Result<BgsIrqs> {
        self.opener.check()?;
        let state = self.state.lock();
        let enabled = state.as_ref().ok_or(EPERM)?;
        if self.is_lost() {
            return Err(EIO);
        }
        let seen = enabled.irqs.iter().map(interrupt::Registration::seen);
        let mut all = seen.fold(BgsIrqs::NONE, BgsIrqs::union);
        for gate in enabled.gates.iter() {
            all |= BgsIrqs::from_raw(self.device.try_read(gate, BgsReg::Irr)?);
        }
        Ok(all & BgsIrqs::EXCEPTIONS)
    }

    /// Handles the last close of the file.
    pub(crate) fn release(&self) {
        let _ = self.disable();
    }
}
