//! Injection windows of TNW that are memory, and the engine that polls them.

use std::sync::Arc;

use tofu_abi::tnw::{Channel, Link};
use tofu_parts::DmaMemory;
use tofu_tnw_device::{Nwp, SharedWindows};
use vm_memory::MmapRegion;

use crate::wakeup::doze;

/// Services that the VMM behind a node of TNW provides for windows that are memory. Offsets are in
/// the BAR of windows; all offsets and sizes are multiples of 4 KiB.
///
/// Any thread that writes to TX_MODE or resets the device calls the methods.
pub trait WindowBackend: Send + Sync {
    /// Maps the memory at `at` of `region` as the `len` bytes at `offset`.
    ///
    /// # Errors
    ///
    /// A text for the log; stores then reach the device, which puts them there.
    fn attach_window(
        &self,
        offset: u64,
        region: &Arc<MmapRegion<()>>,
        at: usize,
        len: usize,
    ) -> Result<(), String>;

    /// Removes the memory that was attached at `offset`.
    fn detach_window(&self, offset: u64);
}

/// The parts that a node of TNW is made from.
pub struct TorusParts {
    /// Memory that the device reaches by DMA.
    pub memory: Arc<dyn DmaMemory>,
    /// Memory for the windows.
    pub windows: Option<SharedWindows>,
    /// Maps that memory into the guest at the windows. Without it each store reaches the device.
    pub backend: Option<Arc<dyn WindowBackend>>,
}

impl TorusParts {
    /// Parts of a node whose windows are registers.
    pub const fn new(memory: Arc<dyn DmaMemory>) -> Self {
        Self { memory, windows: None, backend: None }
    }
}

/// The shared windows that an engine polls, because they had something new lately. The guests of
/// all other windows notify the engine.
pub(crate) struct Watched<N> {
    windows: Vec<Window<N>>,
    /// How long a window is polled after it last had something new, in nanoseconds.
    spin_ns: u64,
}

struct Window<N> {
    node: N,
    link: Link,
    channel: Channel,
    /// When the window last had something new, in nanoseconds.
    news_at: u64,
}

/// A thing that contains a network processor.
pub(crate) trait HasNwp {
    fn nwp(&self) -> &Nwp;
}

impl<N: HasNwp> Watched<N> {
    pub(crate) const fn new(spin_ns: u64) -> Self {
        Self { windows: Vec::new(), spin_ns }
    }

    /// Starts to poll a window. Its guest need not notify the engine any more.
    pub(crate) fn add(&mut self, node: N, link: Link, channel: Channel, now: u64) {
        let same = |window: &&mut Window<N>| {
            std::ptr::eq(window.node.nwp(), node.nwp())
                && (window.link, window.channel) == (link, channel)
        };
        if let Some(known) = self.windows.iter_mut().find(same) {
            known.news_at = now;
            return;
        }
        node.nwp().set_bell(link, channel, false);
        self.windows.push(Window { node, link, channel, news_at: now });
    }

    /// Whether no window is polled.
    pub(crate) const fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Polls all windows. Returns whether any had something new.
    pub(crate) fn poll(&mut self, now: u64) -> bool {
        let (spin_ns, mut any) = (self.spin_ns, false);
        self.windows.retain_mut(|window| {
            let (nwp, link, channel) = (window.node.nwp(), window.link, window.channel);
            let mut news = nwp.window_rings(link, channel);
            if !news && now.saturating_sub(window.news_at) > spin_ns {
                let set_bell = |on| nwp.set_bell(link, channel, on);
                news = doze(set_bell, || nwp.window_rings(link, channel));
                if !news {
                    return false;
                }
            }
            if news {
                nwp.look(link, channel);
                window.news_at = now;
                any = true;
            }
            true
        });
        any
    }

    /// Stops polling. The guests of all windows notify the engine from now on.
    pub(crate) fn end(&mut self) {
        for Window { node, link, channel, .. } in self.windows.drain(..) {
            node.nwp().set_bell(link, channel, true);
        }
    }
}
