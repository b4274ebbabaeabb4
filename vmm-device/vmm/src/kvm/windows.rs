//! Parts of BARs that a guest reaches without an exit to this process: pages of
//! shared memory and doorbells.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kvm_ioctls::{IoEventAddress, NoDatamatch, VmFd};
use log::{debug, warn};
use tofu_pci::{BAR_COUNT, BarRange};
use tofu_sync::lock;
use vm_memory::MmapRegion;
use vmm_sys_util::eventfd::EventFd;

use super::pages;
use super::slots::{SlotId, Slots};
use crate::Error;

const PAGE: u64 = 4096;

/// The handle of something attached to a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attachment(u64);

/// The attachments of one function. Cloning it clones a reference.
///
/// Attachments are given as offsets in a BAR and follow it: they come into effect while the guest
/// has the BAR decoding, and move when the guest moves it. While an attachment is not in effect,
/// for instance because the guest put the BAR over its own RAM, accesses reach the function as
/// ordinary BAR accesses. Attachments are therefore an optimisation that a device must not rely on.
///
/// Methods may be called from any thread, also from within the function's own
/// `config_write`, `bar_read` and `bar_write`.
#[derive(Clone)]
pub struct Windows {
    vm: Arc<VmFd>,
    slots: Arc<Slots>,
    state: Arc<Mutex<State>>,
}

struct State {
    bars: [Option<BarRange>; BAR_COUNT],
    attached: Vec<Attached>,
    /// The number of times a watched page's protection has been lifted.
    lifts: u64,
}

struct Attached {
    id: Attachment,
    bar: u8,
    offset: u64,
    what: Backing,
}

enum Backing {
    Doorbell {
        event: EventFd,
        at: Option<u64>,
    },
    /// Protected by exchanging its memory slot.
    Page {
        region: Arc<MmapRegion<()>>,
        offset: usize,
        len: usize,
        read_only: bool,
        at: Option<SlotId>,
    },
    /// Protected by its host mapping, which is the guest's alone.
    WatchedPage {
        alias: Arc<MmapRegion<()>>,
        read_only: bool,
        at: Option<SlotId>,
        written: Hook,
    },
}

/// Told about a write to a protected page.
type Hook = Arc<dyn Fn() + Send + Sync>;

impl Windows {
    pub(crate) fn new(vm: Arc<VmFd>, slots: Arc<Slots>) -> Self {
        let state = State { bars: [None; BAR_COUNT], attached: Vec::new(), lifts: 0 };
        Self { vm, slots, state: Arc::new(Mutex::new(state)) }
    }

    /// Makes writes at `offset` of BAR `bar`, of any length and value, signal `event`; the function
    /// does not see them. Reads still reach it.
    ///
    /// # Errors
    /// [`Error::Attach`] for a bad place, [`Error::Kvm`] if KVM refuses.
    pub fn attach_doorbell(
        &self,
        bar: u8,
        offset: u64,
        event: EventFd,
    ) -> Result<Attachment, Error> {
        if usize::from(bar) >= BAR_COUNT {
            let reason = "no such BAR";
            return Err(Error::Attach { what: "a doorbell", bar, offset, reason });
        }
        self.attach(bar, offset, Backing::Doorbell { event, at: None })
    }

    /// Maps the 4 KiB page at `page_offset` bytes in `region` at `offset` of BAR
    /// `bar`: the guest reads and writes it as plain memory. See
    /// [`Windows::set_read_only`] for noticing writes.
    ///
    /// # Errors
    /// [`Error::Attach`] for a bad place, [`Error::Kvm`] if KVM refuses.
    pub fn attach_page(
        &self,
        bar: u8,
        offset: u64,
        region: Arc<MmapRegion<()>>,
        page_offset: usize,
    ) -> Result<Attachment, Error> {
        self.attach_pages(bar, offset, region, (page_offset, PAGE as usize))
    }

    /// The same for several pages, `at` bytes in `region` and `len` bytes long, in one memory slot.
    ///
    /// # Errors
    /// As [`Windows::attach_page`].
    pub fn attach_pages(
        &self,
        bar: u8,
        offset: u64,
        region: Arc<MmapRegion<()>>,
        (at, len): (usize, usize),
    ) -> Result<Attachment, Error> {
        check_pages(bar, offset, &region, (at, len))?;
        let page = Backing::Page { region, offset: at, len, read_only: false, at: None };
        self.attach(bar, offset, page)
    }

    /// The same for a page whose protection changes often; its memory is that of
    /// a [`shared_region`].
    ///
    /// When the guest writes to the page while [`Windows::set_read_only`] protects it, the
    /// protection of all watched pages of the VM is lifted, because KVM does not report which page
    /// it was. Then the vCPU's thread calls `written` of each. The guest's write takes place only
    /// after that, so the thread that `written` wakes must poll for it for a while. If KVM emulates
    /// the writing instruction, as with guest kernels on PVM, the write reaches the function as a
    /// BAR write instead, and leaves page and protection unchanged.
    ///
    /// Protecting a page, or lifting that, costs a few microseconds. With [`Windows::attach_page`]
    /// it costs hundreds, and makes KVM drop all translations of the VM.
    ///
    /// [`shared_region`]: crate::shared_region
    ///
    /// # Errors
    /// [`Error::Attach`] for a bad place or a region without a file, [`Error::Kvm`]
    /// if KVM refuses, [`Error::Host`] if the host does not map the page again.
    pub fn attach_watched_page(
        &self,
        bar: u8,
        offset: u64,
        region: &MmapRegion<()>,
        page_offset: usize,
        written: impl Fn() + Send + Sync + 'static,
    ) -> Result<Attachment, Error> {
        check_pages(bar, offset, region, (page_offset, PAGE as usize))?;
        let Some(alias) = pages::alias(region, page_offset, PAGE as usize) else {
            let reason = "the region has no file behind it";
            return Err(Error::Attach { what: "a page", bar, offset, reason });
        };
        let (alias, written) = (alias?, Arc::new(written));
        self.attach(
            bar,
            offset,
            Backing::WatchedPage { alias, read_only: false, at: None, written },
        )
    }

    /// Write-protects a page, or lifts that. While it is protected the guest still reads it as
    /// plain memory. For writes to a watched page see [`Windows::attach_watched_page`]. A write to
    /// any other page reaches the function as a BAR write and leaves the page unchanged: the
    /// function must store the value. For such pages KVM can only replace the mapping. Reads and
    /// writes of the guest between the two steps reach the function too, which must answer as the
    /// page would.
    ///
    /// When this returns, every further write by a vCPU is noticed.
    ///
    /// # Errors
    /// [`Error::Kvm`] if KVM refuses; the page is unmapped then, and accesses
    /// reach the function.
    pub fn set_read_only(&self, attachment: Attachment, read_only: bool) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let State { bars, attached, lifts } = &mut *state;
        let Some(attached) = attached.iter_mut().find(|attached| attached.id == attachment) else {
            return Ok(());
        };
        match &mut attached.what {
            Backing::Page { read_only: current, .. } if *current != read_only => {
                *current = read_only;
                self.withdraw(attached)?;
                self.place(attached, bars)
            }
            Backing::WatchedPage { alias, read_only: current, .. } if *current != read_only => {
                pages::protect(alias, read_only)?;
                *current = read_only;
                *lifts += u64::from(!read_only);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Lifts the protection of all watched pages and calls their `written`. Returns how often a
    /// protection has been lifted so far, here or by [`Windows::set_read_only`].
    pub(crate) fn lift_all(&self) -> u64 {
        let mut hooks = Vec::new();
        let lifts = {
            let mut state = lock(&self.state);
            let State { attached, lifts, .. } = &mut *state;
            for attached in attached {
                if let Backing::WatchedPage { alias, read_only: current @ true, written, .. } =
                    &mut attached.what
                {
                    match pages::protect(alias, false) {
                        Ok(()) => {
                            *current = false;
                            *lifts += 1;
                            hooks.push(written.clone());
                        }
                        Err(error) => warn!("{error}"),
                    }
                }
            }
            *lifts
        };
        // Without the lock: they may want to attach or protect something.
        hooks.iter().for_each(|hook| hook());
        lifts
    }

    /// Takes an attachment away; accesses reach the function again. Does nothing
    /// if it is gone already.
    pub fn detach(&self, attachment: Attachment) {
        let mut state = lock(&self.state);
        let Some(at) = state.attached.iter().position(|attached| attached.id == attachment) else {
            return;
        };
        let mut attached = state.attached.swap_remove(at);
        if let Err(error) = self.withdraw(&mut attached) {
            warn!("detaching from BAR {}: {error}", attached.bar);
        }
    }

    /// Follows the BARs to where they are now.
    pub(crate) fn moved(&self, bars: [Option<BarRange>; BAR_COUNT]) {
        let mut state = lock(&self.state);
        let State { bars: current, attached, .. } = &mut *state;
        let old = std::mem::replace(current, bars);
        let changed = |attached: &&mut Attached| {
            let bar = usize::from(attached.bar);
            old[bar] != bars[bar]
        };
        for attached in attached.iter_mut().filter(changed) {
            let placed = self.withdraw(attached).and_then(|()| self.place(attached, &bars));
            if let Err(error) = placed {
                // The guest chose this address, and can do so as often as it likes.
                debug!("following BAR {} to its new address: {error}", attached.bar);
            }
        }
    }

    fn attach(&self, bar: u8, offset: u64, what: Backing) -> Result<Attachment, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = Attachment(NEXT.fetch_add(1, Ordering::Relaxed));
        let mut state = lock(&self.state);
        let mut attached = Attached { id, bar, offset, what };
        self.place(&mut attached, &state.bars)?;
        state.attached.push(attached);
        Ok(id)
    }

    /// Puts an attachment into effect if its BAR decodes.
    fn place(&self, attached: &mut Attached, bars: &[Option<BarRange>]) -> Result<(), Error> {
        let Some(range) = bars[usize::from(attached.bar)] else { return Ok(()) };
        let size = match attached.what {
            Backing::Doorbell { .. } => 1,
            Backing::Page { len, .. } => len as u64,
            Backing::WatchedPage { .. } => PAGE,
        };
        if attached.offset.checked_add(size).is_none_or(|end| end > range.size) {
            return Ok(());
        }
        let Some(address) = range.address.checked_add(attached.offset) else { return Ok(()) };
        match &mut attached.what {
            Backing::Doorbell { event, at } => {
                self.vm
                    .register_ioevent(event, &IoEventAddress::Mmio(address), NoDatamatch)
                    .map_err(Error::kvm("registering a doorbell"))?;
                *at = Some(address);
            }
            Backing::Page { region, offset, len, read_only, at } => {
                *at = Some(self.slots.map(address, region, *offset, *len, *read_only)?);
            }
            Backing::WatchedPage { alias, at, .. } => {
                *at = Some(self.slots.map(address, alias, 0, PAGE as usize, false)?);
            }
        }
        Ok(())
    }

    /// The opposite of [`Windows::place`].
    fn withdraw(&self, attached: &mut Attached) -> Result<(), Error> {
        match &mut attached.what {
            Backing::Doorbell { event, at } => match at.take() {
                Some(address) => self
                    .vm
                    .unregister_ioevent(event, &IoEventAddress::Mmio(address), NoDatamatch)
                    .map_err(Error::kvm("unregistering a doorbell")),
                None => Ok(()),
            },
            Backing::Page { at, .. } | Backing::WatchedPage { at, .. } => {
                at.take().map_or(Ok(()), |slot| self.slots.unmap(slot))
            }
        }
    }
}

fn check_pages(
    bar: u8,
    offset: u64,
    region: &MmapRegion<()>,
    (at, len): (usize, usize),
) -> Result<(), Error> {
    let fail = |reason| Err(Error::Attach { what: "a page", bar, offset, reason });
    let whole = |size: usize| size.is_multiple_of(PAGE as usize);
    if !offset.is_multiple_of(PAGE) || !whole(at) || !whole(len) || len == 0 {
        return fail("not a multiple of the page size");
    }
    if at.checked_add(len).is_none_or(|end| end > region.size()) {
        return fail("the page lies outside of its region");
    }
    if usize::from(bar) >= BAR_COUNT {
        return fail("no such BAR");
    }
    Ok(())
}
