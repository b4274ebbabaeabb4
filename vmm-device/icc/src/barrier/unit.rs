//! State of the barrier gates and channels of a node.

use std::sync::{Mutex, OnceLock};

use tofu_abi::barrier::Profile;
use tofu_abi::irq::{BgsIrqs, vector};
use tofu_abi::regs::NUM_TNI;
use tofu_abi::{BchId, BgId, Coords, TniId};
use tofu_inspect::{Inspect, Visit};
use tofu_sync::lock;

use crate::barrier::gates::Gates;
use crate::barrier::page::ChannelPage;
use crate::irq::IrqUnit;
use crate::page::SharedPages;

/// Barrier gates and channels of one interface.
pub(crate) struct BarrierUnit {
    pub(crate) irqs: Box<[IrqUnit<BgsIrqs>]>,
    pages: Box<[ChannelPage]>,
    pub(super) gates: Mutex<Gates>,
    /// Held while a channel is masked or unmasked and the host is notified, so that it gets
    /// these calls in order. Taken before `gates`.
    pub(super) life: Mutex<()>,
}

impl BarrierUnit {
    fn new(node: Coords, tni: TniId, profile: Profile, pages: Option<&SharedPages>) -> Self {
        let irq = |_| IrqUnit::new(vector::bg(tni));
        Self {
            irqs: (0..profile.gates).map(irq).collect(),
            pages: channels(profile).map(|bch| ChannelPage::new(tni, bch, pages)).collect(),
            gates: Mutex::new(Gates::new(node, tni, profile)),
            life: Mutex::new(()),
        }
    }

    pub(super) fn irq(&self, bg: BgId) -> Option<&IrqUnit<BgsIrqs>> {
        self.irqs.get(bg.index())
    }

    pub(super) fn page(&self, bch: BchId) -> Option<&ChannelPage> {
        self.pages.get(bch.index())
    }

    pub(super) fn clear_pages(&self) {
        self.pages.iter().for_each(ChannelPage::clear);
    }

    /// Shows a channel's state in its page.
    pub(super) fn publish(&self, gates: &Gates, bch: BchId) {
        if let Some(page) = self.page(bch) {
            page.publish(gates.ready(bch).state(), gates.ignored(bch));
        }
    }
}

impl Inspect for BarrierUnit {
    /// Its channels; the gates are seen by their registers.
    fn inspect(&self, visit: Visit<'_>) {
        let channels = lock(&self.gates).channels().to_vec();
        channels.inspect(visit);
    }
}

/// The barrier channels of an interface.
pub(super) fn channels(profile: Profile) -> impl Iterator<Item = BchId> {
    BchId::ALL.into_iter().take(profile.channels.into())
}

/// The barrier of a node, TNI by TNI. Most nodes never use theirs, so the unit of an interface is
/// made at the first write to one of its registers.
#[derive(Default)]
pub(crate) struct Barrier([OnceLock<BarrierUnit>; NUM_TNI]);

impl Barrier {
    pub(crate) fn get(&self, tni: TniId) -> Option<&BarrierUnit> {
        self.0[tni.index()].get()
    }

    /// The gates of an interface that has any, whose registers are about to be written.
    pub(super) fn get_or_make(
        &self,
        node: Coords,
        tni: TniId,
        profile: Profile,
        pages: Option<&SharedPages>,
    ) -> Option<&BarrierUnit> {
        let make = || BarrierUnit::new(node, tni, profile, pages);
        (tni.get() < profile.tnis).then(|| self.0[tni.index()].get_or_init(make))
    }

    pub(crate) fn units(&self) -> impl Iterator<Item = (TniId, &BarrierUnit)> {
        TniId::ALL.into_iter().zip(&self.0).filter_map(|(tni, unit)| Some((tni, unit.get()?)))
    }
}
