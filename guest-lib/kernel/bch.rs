// SPDX-License-Identifier: GPL-2.0

//! A barrier channel that a process has opened, with its gates.

use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, Mutex};

use tofu_abi::barrier::{BCH_MASK, BCH_MASK_STATUS_RUN};
use tofu_abi::irq;
use tofu_abi::regs::{bch_page, bgs_page, BgsReg, NUM_BG, NUM_TNI};

use crate::device::Device;
use crate::pin::{current_mm, Pinned, PAGE};
use crate::signal::Signal;
use crate::uapi::{self, EnableBch, SetBg};

mod gate;
mod interrupt;

use gate::Gate;

/// Alignment of the notice area.
const NOTICE_ALIGN: u64 = 256;
/// Values of the sequence number.
const BSEQ_END: i32 = 1 << 24;

/// What ENABLE_BCH made.
struct Enabled {
    irqs: KVec<interrupt::Registration>,
    _notice: Pinned,
    /// A mask for each TNI.
    gates: [u64; NUM_TNI],
}

/// A barrier channel that is open.
#[pin_data]
pub(crate) struct Bch {
    device: Arc<Device>,
    tni: u8,
    bch: u8,
    uid: u32,
    signal: Arc<Signal>,
    #[pin]
    state: Mutex<Option<Enabled>>,
}

impl Bch {
    /// Opens a channel for the calling process.
    ///
    /// # Errors
    ///
    /// `EACCES` if the user may not use it, `EBUSY` if it is open already.
    pub(crate) fn open(device: &Arc<Device>, tni: u8, bch: u8) -> Result<Arc<Self>> {
        let uid = crate::users::current();
        let rights = device.users.lock().rights(uid);
        if rights.bgs.get(usize::from(tni)).copied().unwrap_or(0) >> bch & 1 == 0 {
            return Err(EACCES);
        }
        let signal = Arc::new(Signal::new(), GFP_KERNEL)?;
        let this = Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                tni,
                bch,
                uid,
                signal,
                state <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )?;
        device.taken.lock().channels.claim(tni, bch)?;
        Ok(this)
    }

    /// Physical address of the channel's user page.
    pub(crate) fn page_phys(&self) -> u64 {
        self.device.bar_phys(bch_page(self.tni, self.bch))
    }

    /// The ioctls of a channel's file.
    ///
    /// # Errors
    ///
    /// See docs/src/reference/tof-uapi.md.
    pub(crate) fn ioctl(&self, cmd: u32, arg: u64) -> Result {
        match cmd {
            uapi::ENABLE_BCH => self.enable(&uapi::get(arg)?),
            uapi::DISABLE_BCH => self.disable(),
            uapi::SET_RT_SIGNAL => self.signal.set(arg),
            _ => Err(ENOTTY),
        }
    }

    fn gate_register(tni: u8, gate: u8, reg: BgsReg) -> u64 {
        bgs_page(tni, gate) + reg.offset()
    }

    fn channel_register(&self, reg: BgsReg) -> u64 {
        Self::gate_register(self.tni, self.bch, reg)
    }

    fn enable(&self, a: &EnableBch) -> Result {
        let mut state = self.state.lock();
        if state.is_some() {
            return Err(EBUSY);
        }
        let gates = self.gates(a)?;
        let mut enabled = Enabled {
            irqs: KVec::new(),
            _notice: self.unmask(a.addr)?,
            gates: [0; NUM_TNI],
        };
        let result = self
            .wait_until_idle()
            .and_then(|()| self.enable_gates(&gates, &mut enabled))
            .and_then(|()| self.register_interrupts(&mut enabled));
        if let Err(error) = result {
            self.take_down(&mut enabled);
            return Err(error);
        }
        *state = Some(enabled);
        Ok(())
    }

    /// The gates that the process asks for, checked.
    fn gates(&self, a: &EnableBch) -> Result<KVec<Gate>> {
        let fit = a.addr != 0
            && a.addr % NOTICE_ALIGN == 0
            && (0..BSEQ_END).contains(&a.bseq)
            && (0..=(NUM_TNI * NUM_BG) as i32).contains(&a.num);
        if !fit {
            return Err(EINVAL);
        }
        let rights = self.device.users.lock().rights(self.uid);
        let mut gates = KVec::with_capacity(a.num as usize, GFP_KERNEL)?;
        for i in 0..a.num as u64 {
            let set: SetBg = uapi::get(a.bgs.wrapping_add(i * size_of::<SetBg>() as u64))?;
            gates.push(Gate::new(&set, &rights, a.bseq as u32)?, GFP_KERNEL)?;
        }
        Ok(gates)
    }

    /// Pins the notice area at `addr`, and has the channel run with it.
    fn unmask(&self, addr: u64) -> Result<Pinned> {
        let page = addr & !(PAGE - 1);
        let notice = Pinned::new(
            &self.device,
            &current_mm()?,
            (page, page + PAGE),
            true,
            PAGE,
        )?;
        let ipa = notice.addr(0) + (addr - page);
        self.device
            .write(self.channel_register(BgsReg::BchNoticeIpa), ipa);
        self.device.write(self.channel_register(BgsReg::BchMask), 0);
        Ok(notice)
    }

    fn wait_until_idle(&self) -> Result {
        let status = self.channel_register(BgsReg::BchMaskStatus);
        self.device
            .wait(status, |v| v & BCH_MASK_STATUS_RUN == 0)
            .map(drop)
    }

    fn enable_gates(&self, gates: &[Gate], enabled: &mut Enabled) -> Result {
        for gate in gates {
            self.device.taken.lock().gates.claim(gate.tni, gate.gate)?;
            if let Some(mask) = enabled.gates.get_mut(usize::from(gate.tni)) {
                *mask |= 1 << gate.gate;
            }
            gate.enable(&self.device, interrupt::told())?;
        }
        Ok(())
    }

    fn register_interrupts(&self, enabled: &mut Enabled) -> Result {
        let value = i32::from(self.tni) << 8 | i32::from(self.bch);
        for (tni, mask) in (0..).zip(&enabled.gates).filter(|(_, mask)| **mask != 0) {
            let irq = interrupt::Registration::new(&self.device, tni, *mask, &self.signal, value)?;
            if let Some(irq) = irq {
                enabled.irqs.push(irq, GFP_KERNEL)?;
            }
        }
        Ok(())
    }

    /// Undoes as much as [`Bch::enable`] has done.
    fn take_down(&self, enabled: &mut Enabled) {
        enabled.irqs.clear();
        self.device
            .write(self.channel_register(BgsReg::BchMask), BCH_MASK);
        for (tni, mask) in enabled.gates.iter().enumerate() {
            let tni = tni as u8;
            for gate in (0..NUM_BG as u8).filter(|gate| mask >> gate & 1 != 0) {
                self.device
                    .write(Self::gate_register(tni, gate, BgsReg::Imr), u64::MAX);
                self.device
                    .write(Self::gate_register(tni, gate, BgsReg::Enable), 0);
            }
            self.device.taken.lock().gates.give_up(tni, *mask);
        }
        // Nothing more is written to the notice area, which is about to be unpinned.
        self.device
            .write(self.channel_register(BgsReg::BchNoticeIpa), 0);
        self.device
            .read(self.channel_register(BgsReg::BchMaskStatus));
    }

    fn disable(&self) -> Result {
        let mut enabled = self.state.lock().take().ok_or(EPERM)?;
        self.take_down(&mut enabled);
        Ok(())
    }

    /// Exceptions of the channel's gates since ENABLE_BCH, also those that are no signal (ours):
    /// requests of [`irq::bgs`], put together.
    ///
    /// # Errors
    ///
    /// `EPERM` if the channel is not enabled.
    pub(crate) fn exceptions(&self) -> Result<u64> {
        let state = self.state.lock();
        let enabled = state.as_ref().ok_or(EPERM)?;
        let mut all = enabled.irqs.iter().fold(0, |all, irq| all | irq.seen());
        for (tni, mask) in enabled.gates.iter().enumerate() {
            for gate in (0..NUM_BG as u8).filter(|gate| mask >> gate & 1 != 0) {
                all |= self
                    .device
                    .read(Self::gate_register(tni as u8, gate, BgsReg::Irr));
            }
        }
        Ok(all & irq::bgs::EXCEPTIONS)
    }

    /// The file is closed for good.
    pub(crate) fn release(&self) {
        let _ = self.disable();
        let mut taken = self.device.taken.lock();
        taken.channels.give_up(self.tni, 1 << self.bch);
    }
}
