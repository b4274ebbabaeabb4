// SPDX-License-Identifier: GPL-2.0

//! A barrier channel that a process has opened, with its gates.

use kernel::irq::{self as kirq, IrqReturn};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, Arc, Mutex};

use tofu_abi::barrier::{
    BgAddress, GpidBseq, LocalLink, RemoteLink, SignalMask, BCH_MASK, BCH_MASK_STATUS_RUN,
};
use tofu_abi::regs::{bch_page, bgs_page, BgsReg, NUM_BCH, NUM_BG, NUM_TNI};
use tofu_abi::{irq, Coords, Path};

use crate::cq::Signal;
use crate::device::Device;
use crate::pin::{current_mm, Pinned, PAGE};
use crate::shim;
use crate::uapi::{self, Addr, EnableBch, SetBg};
use crate::users::Rights;

/// Alignment of the notice area.
const NOTICE_ALIGN: u64 = 256;
/// Values of the sequence number.
const BSEQ_END: i32 = 1 << 24;

/// What is taken of a node's gates.
pub(crate) struct Gates {
    /// Channels whose file is open.
    open: [u64; NUM_TNI],
    /// Gates that are enabled.
    taken: [u64; NUM_TNI],
}

impl Gates {
    pub(crate) const fn new() -> Self {
        Self {
            open: [0; NUM_TNI],
            taken: [0; NUM_TNI],
        }
    }

    /// Sets a bit of a mask that was not set.
    fn claim(masks: &mut [u64; NUM_TNI], tni: u8, bit: u8) -> Result {
        let mask = masks.get_mut(usize::from(tni)).ok_or(EINVAL)?;
        if *mask >> bit & 1 != 0 {
            return Err(EBUSY);
        }
        *mask |= 1 << bit;
        Ok(())
    }

    fn give_up(masks: &mut [u64; NUM_TNI], tni: u8, bits: u64) {
        if let Some(mask) = masks.get_mut(usize::from(tni)) {
            *mask &= !bits;
        }
    }
}

/// Exceptions that a process is told of, with their codes.
const EXCEPTIONS: [(u64, i32); 4] = [
    (irq::bgs::NODE_ADDRESS_UNMATCH, 0),
    (irq::bgs::BSEQ_UNMATCH, 1),
    (irq::bgs::SIGNAL_STATE_ERROR, 2),
    (irq::bgs::ERROR_SYNCHRONIZATION_ACKNOWLEDGE, 3),
];

fn exceptions() -> u64 {
    EXCEPTIONS.iter().fold(0, |mask, (bit, _)| mask | bit)
}

/// The interrupt of one TNI's gates, as far as they are this channel's.
struct Handler {
    device: Arc<Device>,
    tni: u8,
    gates: u64,
    signal: Arc<Signal>,
    /// TNI and channel, for the process.
    value: i32,
    seen: Arc<Atomic<u64>>,
}

impl kirq::Handler for Handler {
    fn handle(&self) -> IrqReturn {
        let mut result = IrqReturn::None;
        for gate in (0..NUM_BG as u8).filter(|gate| self.gates >> gate & 1 != 0) {
            let page = bgs_page(self.tni, gate);
            let pending = self.device.read(page + BgsReg::Irr.offset()) & exceptions();
            if pending == 0 {
                continue;
            }
            self.device.write(page + BgsReg::Irc.offset(), pending);
            self.device.faults.add(1, Relaxed);
            // Nobody else writes it.
            self.seen.store(self.seen.load(Relaxed) | pending, Relaxed);
            // SAFETY: no requirements.
            unsafe { shim::tofu_shim_trace_gate_fault(self.tni, gate, self.value as u32, pending) };
            for (bit, code) in EXCEPTIONS {
                if pending & bit != 0 {
                    self.signal.send(code, self.value);
                }
            }
            result = IrqReturn::Handled;
        }
        result
    }
}

/// What ENABLE_BCH made.
struct Enabled {
    irqs: KVec<Pin<KBox<kirq::Registration<'static, Handler>>>>,
    _notice: Pinned,
    gates: [u64; NUM_TNI],
    /// Exceptions that the process was told of, which are no longer in the registers; of each
    /// interrupt.
    seen: KVec<Arc<Atomic<u64>>>,
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
        Gates::claim(&mut device.gates.lock().open, tni, bch)?;
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
    /// See [`crate::node`].
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

        let page = a.addr & !(PAGE - 1);
        let notice = Pinned::new(&self.device, &current_mm()?, page, page + PAGE, true, PAGE)?;
        let addr = notice.addr(0) + (a.addr - page);
        self.device
            .write(self.channel_register(BgsReg::BchNoticeIpa), addr);
        self.device.write(self.channel_register(BgsReg::BchMask), 0);
        let mut enabled = Enabled {
            irqs: KVec::new(),
            _notice: notice,
            gates: [0; NUM_TNI],
            seen: KVec::new(),
        };
        let status = self.channel_register(BgsReg::BchMaskStatus);
        let result = self
            .device
            .wait(status, |v| v & BCH_MASK_STATUS_RUN == 0)
            .and_then(|_| self.enable_gates(&gates, &mut enabled));
        if let Err(error) = result {
            self.take_down(&mut enabled);
            return Err(error);
        }
        *state = Some(enabled);
        Ok(())
    }

    fn enable_gates(&self, gates: &[Gate], enabled: &mut Enabled) -> Result {
        for gate in gates {
            Gates::claim(&mut self.device.gates.lock().taken, gate.tni, gate.gate)?;
            if let Some(mask) = enabled.gates.get_mut(usize::from(gate.tni)) {
                *mask |= 1 << gate.gate;
            }
            let register = |reg| Self::gate_register(gate.tni, gate.gate, reg);
            let settings = [
                (BgsReg::Imr, u64::MAX),
                (BgsReg::Irc, u64::MAX),
                (BgsReg::Imc, exceptions()),
                (BgsReg::SignalMask, gate.mask.0),
                (BgsReg::LocalLink, gate.local.0),
                (BgsReg::RemoteLink, gate.remote.0),
                (BgsReg::SubnetSize, gate.subnet),
                (BgsReg::GpidBseq, gate.gpid_bseq.0),
                (BgsReg::Enable, 1),
            ];
            for (reg, value) in settings {
                self.device.write(register(reg), value);
            }
            self.device.wait(register(BgsReg::State), |v| v & 1 != 0)?;
        }
        for (tni, mask) in enabled
            .gates
            .iter()
            .enumerate()
            .filter(|(_, mask)| **mask != 0)
        {
            let Some(request) = self.device.vector(irq::vector::bg(tni as u8)) else {
                continue;
            };
            let seen = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            enabled.seen.push(seen.clone(), GFP_KERNEL)?;
            let handler = Handler {
                device: self.device.clone(),
                tni: tni as u8,
                gates: *mask,
                signal: self.signal.clone(),
                value: i32::from(self.tni) << 8 | i32::from(self.bch),
                seen,
            };
            // SAFETY: it goes with `Enabled`, which is never forgotten.
            let registration = unsafe {
                kirq::Registration::new(request, kirq::Flags::SHARED, c"tofu-bg", Ok(handler))
            };
            enabled
                .irqs
                .push(KBox::try_pin_init(registration, GFP_KERNEL)?, GFP_KERNEL)?;
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
            Gates::give_up(&mut self.device.gates.lock().taken, tni, *mask);
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
        let mut all = enabled
            .seen
            .iter()
            .fold(0, |all, seen| all | seen.load(Relaxed));
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
        Gates::give_up(&mut self.device.gates.lock().open, self.tni, 1 << self.bch);
    }
}

/// A gate's settings, checked.
struct Gate {
    tni: u8,
    gate: u8,
    mask: SignalMask,
    local: LocalLink,
    remote: RemoteLink,
    subnet: u64,
    gpid_bseq: GpidBseq,
}

impl Gate {
    fn new(set: &SetBg, rights: &Rights, bseq: u32) -> Result<Self> {
        let tni = number(set.tni, NUM_TNI)?;
        let gate = number(set.gate, NUM_BG)?;
        if rights.bgs.get(usize::from(tni)).copied().unwrap_or(0) >> gate & 1 == 0 {
            return Err(EACCES);
        }
        // Less than 0 is no gate.
        let local = |gate: i32| {
            if gate < 0 {
                Ok(None)
            } else {
                number(gate, NUM_BG).map(Some)
            }
        };
        let remote = |addr: &Addr, tni, gate| {
            if gate < 0 {
                Ok(None)
            } else {
                address(addr, tni, gate, rights).map(Some)
            }
        };
        let source = local(set.source_lgate)?;
        let dest = local(set.dest_lgate)?;
        let from = remote(&set.source_raddr, set.source_rtni, set.source_rgate)?;
        let to = remote(&set.dest_raddr, set.dest_rtni, set.dest_rgate)?;
        Ok(Self {
            tni,
            gate,
            mask: SignalMask(0)
                .with_sig_recv(source.is_none())
                .with_tlp_recv(from.is_none())
                .with_sig_send(dest.is_none())
                .with_tlp_send(to.is_none()),
            local: LocalLink(0)
                .with_recv(source.unwrap_or(0))
                .with_send(dest.unwrap_or(0)),
            remote: RemoteLink(0)
                .with_recv(from.map_or(0, |from| from.place().0 as u32))
                .with_send(to.map_or(0, |to| to.0 as u32)),
            subnet: rights.subnet.0,
            gpid_bseq: GpidBseq(0).with_gpid(rights.gpid).with_bseq(bseq),
        })
    }
}

fn number(value: i32, end: usize) -> Result<u8> {
    u8::try_from(value)
        .ok()
        .filter(|n| usize::from(*n) < end)
        .ok_or(EINVAL)
}

fn address(addr: &Addr, tni: i32, gate: i32, rights: &Rights) -> Result<BgAddress> {
    let (tni, gate) = (number(tni, NUM_TNI)?, number(gate, NUM_BG)?);
    let node = Coords::new(addr.x, addr.y, addr.z, addr.a, addr.b, addr.c);
    let path = Path::new(addr.pa, addr.pb, addr.pc);
    let fit = [addr.x, addr.y, addr.z].iter().all(|p| *p < 32)
        && [addr.a, addr.c, path.a, path.c].iter().all(|p| *p < 2)
        && [addr.b, path.b].iter().all(|p| *p < 3)
        && rights.subnet.subnet_allows(addr.x, addr.y, addr.z);
    if !fit {
        return Err(EINVAL);
    }
    Ok(BgAddress::new(node, tni, gate).with_path(path))
}

const _: () = assert!(NUM_BCH <= NUM_BG);
