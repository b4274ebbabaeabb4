//! Registers as the guest accesses them.

use std::sync::atomic::Ordering::SeqCst;

use tofu_abi::Coords;
use tofu_abi::pci::DEVICE_TNW;
use tofu_abi::tnw::{
    Cancel, Channel, ChannelReg, Control, Errors, Features, Link, LinkReg, LinkStatus, Mode,
    NwpReg, Register, Start,
};
use tofu_abi::topology::Axis;
use tofu_dma::{RegisterWrite, aligned};

use tofu_rules::{Point, Rule};

use crate::device::{LinkState, Nwp};
use crate::shared::SharedWindows;

/// Version of the register map.
const VERSION: u64 = 1;

/// The fields of a register's value, with their names.
pub fn register_fields(register: Register, value: u64) -> Vec<(&'static str, String)> {
    let fields: &[(&str, u32, u32)] = match register {
        Register::Nwp(NwpReg::Control) => Control::FIELDS,
        Register::Nwp(NwpReg::Errors) => Errors::FIELDS,
        Register::Link(_, LinkReg::Status) => LinkStatus::FIELDS,
        _ => &[],
    };
    let field = |&(name, low, high): &(&'static str, u32, u32)| {
        (name, tofu_abi::bits::extract(value, low, high).to_string())
    };
    fields.iter().map(field).collect()
}

fn xyz(x: u8, y: u8, z: u8) -> u64 {
    u64::from(x) | u64::from(y) << 8 | u64::from(z) << 16
}

impl Nwp {
    /// Reads `data.len()` bytes at `offset` of the BAR of registers: 4 or 8, at a multiple of that
    /// size. Other reads are counted and return 0, as do reads where there is no register.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let place = aligned(offset, data.len())
            .and_then(|(at, shift)| Some((Register::decode(at)?, shift)));
        let Some((register, shift)) = place else {
            self.bad_access();
            return;
        };
        self.rules.kept(Point::Read);
        let value = self.read_register(register) >> shift;
        data.copy_from_slice(&value.to_le_bytes()[..data.len()]);
    }

    /// Writes bytes. As for reads, 4 and 8 bytes are defined. A write of 16, 32 or 64 bytes covers
    /// several registers, which are written one after the other.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) {
        if matches!(data.len(), 16 | 32 | 64) && offset.is_multiple_of(8) {
            for (at, word) in (offset..).step_by(8).zip(data.chunks_exact(8)) {
                self.write(at, word);
            }
            return;
        }
        let place = RegisterWrite::at(offset, data)
            .and_then(|(at, write)| Some((Register::decode(at)?, write)));
        match place {
            Some((register, write)) => {
                self.rules.kept(Point::Write);
                self.write_register(register, write);
            }
            None => self.bad_access(),
        }
    }

    fn bad_access(&self) {
        self.bad_accesses.fetch_add(1, SeqCst);
        self.rules.broke(Rule::TnwAccess);
        self.error(Errors(0).with_bad_access(true));
    }

    /// The value of a register, without side effects.
    pub fn read_register(&self, register: Register) -> u64 {
        match register {
            Register::Nwp(reg) => self.read_nwp(reg),
            Register::Link(link, reg) => {
                let present = self.links[link.index()].present;
                self.with_link(link, |state| read_link(state, reg, present))
            }
            Register::Channel(link, channel, reg) => {
                if reg == ChannelReg::TxTail {
                    self.look(link, channel);
                }
                self.with_link(link, |state| read_channel(state, channel, reg))
            }
        }
    }

    fn read_nwp(&self, reg: NwpReg) -> u64 {
        let Coords { x, y, z, .. } = self.config.coords;
        match reg {
            NwpReg::Id => u64::from(DEVICE_TNW) | VERSION << 16,
            NwpReg::Coordinates => xyz(x, y, z),
            NwpReg::Shape => {
                let [x, y, z] = Axis::XYZ.map(|axis| self.config.shape.len(axis));
                xyz(x, y, z)
            }
            NwpReg::Control => Control(0).with_enable(self.enabled.load(SeqCst)).0,
            NwpReg::Present => {
                (0..).zip(&self.links).map(|(bit, link)| u64::from(link.present) << bit).sum()
            }
            NwpReg::Errors => self.errors.load(SeqCst),
            NwpReg::StrayStores => self.stray_stores.load(SeqCst),
            NwpReg::BadAccesses => self.bad_accesses.load(SeqCst),
            NwpReg::Features => {
                let windows = self.config.windows.as_ref();
                let only = windows.is_some_and(SharedWindows::is_only);
                let features = Features(0).with_shared_windows(windows.is_some());
                features.with_only_shared_windows(only).0
            }
        }
    }

    fn write_register(&self, register: Register, write: RegisterWrite) {
        match register {
            Register::Nwp(NwpReg::Control) => {
                let control = Control(write.bits());
                if control.reset() {
                    self.reset();
                }
                if let Some(on) = write.switch() {
                    self.enable(on);
                }
            }
            Register::Nwp(NwpReg::Errors) => {
                self.errors.fetch_and(!write.bits(), SeqCst);
            }
            Register::Channel(link, channel, reg) => {
                self.write_channel(link, channel, reg, write);
            }
            // Read-only.
            Register::Nwp(_) | Register::Link(..) => {}
        }
    }

    fn write_channel(&self, link: Link, channel: Channel, reg: ChannelReg, write: RegisterWrite) {
        let page = |f: fn(&mut crate::device::Page) -> &mut u64| {
            self.with_link(link, |state| {
                let value = f(&mut state.pages[channel.index()]);
                *value = write.merge(*value);
            });
        };
        match reg {
            ChannelReg::CreditAddress => page(|page| &mut page.credit.address),
            ChannelReg::CreditLength => page(|page| &mut page.credit.length),
            ChannelReg::CreditNotify => page(|page| &mut page.credit.notify),
            ChannelReg::NgetAddress => page(|page| &mut page.nget.address),
            ChannelReg::NgetLength => page(|page| &mut page.nget.length),
            ChannelReg::NgetNotify => page(|page| &mut page.nget.notify),
            ChannelReg::TxReport => page(|page| &mut page.report),
            // They start by a write to their low half, which has the tag.
            ChannelReg::CreditStart | ChannelReg::NgetStart if write.halves() & 1 == 0 => {}
            ChannelReg::CreditStart => {
                let posting = self.with_link(link, |state| state.pages[channel.index()].credit);
                self.post(link, channel, (posting, true), Start(write.bits()));
            }
            ChannelReg::NgetStart => {
                let posting = self.with_link(link, |state| state.pages[channel.index()].nget);
                self.post(link, channel, (posting, false), Start(write.bits()));
            }
            ChannelReg::Cancel => self.cancel(link, channel, Cancel(write.bits())),
            ChannelReg::TxMode if write.halves() & 1 == 0 => {}
            ChannelReg::TxMode => self.set_mode(link, channel, Mode(write.bits())),
            ChannelReg::TxBell => self.bell(link, channel),
            // Read-only.
            _ => {}
        }
    }
}

fn read_link(state: &LinkState, reg: LinkReg, present: bool) -> u64 {
    let end = &state.end;
    end.counters().get(reg).unwrap_or_else(|| {
        LinkStatus(0)
            .with_present(present)
            .with_answered(end.is_answered())
            .with_resending(end.is_resending())
            .with_silent(end.is_silent())
            .with_discarding(end.is_discarding())
            .with_unacknowledged(end.unacknowledged())
            .0
    })
}

fn read_channel(state: &LinkState, channel: Channel, reg: ChannelReg) -> u64 {
    let c = channel.index();
    let (tx, rx, page) = (&state.tx[c], &state.rx[c], &state.pages[c]);
    match reg {
        ChannelReg::CreditAddress => page.credit.address,
        ChannelReg::CreditLength => page.credit.length,
        ChannelReg::CreditNotify => page.credit.notify,
        ChannelReg::NgetAddress => page.nget.address,
        ChannelReg::NgetLength => page.nget.length,
        ChannelReg::NgetNotify => page.nget.notify,
        ChannelReg::CreditStart
        | ChannelReg::NgetStart
        | ChannelReg::Cancel
        | ChannelReg::TxBell => 0,
        ChannelReg::TxMode => Mode(0).with_shared(tx.shared().is_some()).0,
        ChannelReg::TxHead => tx.head(),
        ChannelReg::TxTail => tx.tail(),
        ChannelReg::TxReport => page.report,
        ChannelReg::RxPackets => rx.packets().into(),
        ChannelReg::Credits => rx.credits() as u64,
        ChannelReg::Ngets => tx.ngets() as u64,
        ChannelReg::MessagesSent => tx.messages,
        ChannelReg::MessagesReceived => rx.messages,
        ChannelReg::Overlaps => tx.overlaps,
        ChannelReg::Orphans => rx.orphans,
        ChannelReg::Refused => page.refused,
    }
}
