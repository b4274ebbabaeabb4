//! Injection windows that are guest memory (ours): a store to a window costs no more than any other
//! store.
//!
//! The first half of such a window is its ring. The second half has a mark for each place of the
//! ring, which is stored after the packet's bytes. The mark has the packet's number. So nothing
//! needs to be cleared before a place is reused, and the device needs to check one word only: the
//! mark of the next packet.
//!
//! Either the device polls the window or a write to TX_BELL notifies it; a word of the window says
//! which. The content of a window is not trusted and may change at any time: each mark is read
//! once, and so is each byte of a packet whose mark matches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use tofu_abi::tnw::{
    BELL_OFFSET, CHANNELS, Channel, LINKS, Link, Mark, PACKET_DATA, WINDOW_PLACES, WINDOW_SIZE,
    mark_offset, window,
};
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

/// Memory for all windows of a device, each at its offset in the BAR.
#[derive(Clone, Debug)]
pub struct SharedWindows {
    region: Arc<MmapRegion<()>>,
    /// True if stores always go to this memory, so that windows cannot be registers.
    only: bool,
}

impl SharedWindows {
    /// Size of all windows, in bytes.
    pub const SIZE: usize = WINDOW_SIZE as usize * LINKS * CHANNELS;

    /// Uses `region`, which must be at least [`SharedWindows::SIZE`] bytes long. The memory of
    /// unused windows is never touched.
    pub fn new(region: Arc<MmapRegion<()>>) -> Option<Self> {
        (region.len() >= Self::SIZE).then_some(Self { region, only: false })
    }

    /// The same for a host on which the guest's stores always go to this memory, so that windows
    /// cannot be registers.
    #[must_use]
    pub fn without_registers(self) -> Self {
        Self { only: true, ..self }
    }

    /// Returns true if windows cannot be registers.
    pub(crate) const fn is_only(&self) -> bool {
        self.only
    }

    /// The memory of the windows.
    pub fn region(&self) -> &Arc<MmapRegion<()>> {
        &self.region
    }

    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        self.region.get_atomic_ref(offset as usize).ok()
    }

    /// Stores bytes as the guest does, at an offset of the BAR. Eight bytes at a multiple of 8 are
    /// stored in one access, so a reader that sees them also sees all earlier stores.
    pub fn store(&self, offset: u64, data: &[u8]) {
        let word = data.try_into().map(u64::from_le_bytes);
        match (self.word(offset).filter(|_| offset.is_multiple_of(8)), word) {
            (Some(place), Ok(word)) => place.store(word, Ordering::Release),
            _ => {
                if let Ok(place) = self.region.get_slice(offset as usize, data.len()) {
                    place.copy_from(data);
                }
            }
        }
    }

    /// Loads a word as the guest does, at an offset of the BAR, after all of the guest's stores.
    pub fn load(&self, offset: u64) -> u64 {
        fence(Ordering::SeqCst);
        self.word(offset).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// The mark at a place of a window's ring. Later reads see what was stored before the mark.
    pub(crate) fn mark(&self, link: Link, channel: Channel, place: usize) -> Mark {
        let word = self.word(window(link, channel) + mark_offset(place));
        Mark(word.map_or(0, |word| word.load(Ordering::Acquire)))
    }

    pub(crate) fn window(&self, link: Link, channel: Channel) -> SharedWindow {
        SharedWindow { windows: self.clone(), link, channel }
    }
}

/// The memory of one window.
#[derive(Clone, Debug)]
pub(crate) struct SharedWindow {
    windows: SharedWindows,
    link: Link,
    channel: Channel,
}

impl SharedWindow {
    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        self.windows.word(window(self.link, self.channel) + offset)
    }

    /// Bytes at an offset; `None` if they are not all in this window.
    fn bytes(&self, offset: u64, len: usize) -> Option<VolatileSlice<'_>> {
        offset.checked_add(len as u64).filter(|end| *end <= WINDOW_SIZE)?;
        let at = window(self.link, self.channel) + offset;
        self.windows.region.get_slice(at as usize, len).ok()
    }

    /// The mark at a place of the ring. See [`SharedWindows::mark`].
    pub(crate) fn mark(&self, place: usize) -> Mark {
        self.windows.mark(self.link, self.channel, place)
    }

    /// Copies from the window.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        if let Some(bytes) = self.bytes(offset, data.len()) {
            bytes.copy_to(data);
        }
    }

    /// Stores bytes that have reached the device instead of the memory.
    pub(crate) fn store(&self, offset: u64, data: &[u8]) {
        if self.bytes(offset, data.len()).is_some() {
            self.windows.store(window(self.link, self.channel) + offset, data);
        }
    }

    /// Clears all marks.
    pub(crate) fn clear(&self) {
        for place in 0..WINDOW_PLACES {
            if let Some(mark) = self.word(mark_offset(place)) {
                mark.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Zeroes the whole window, so that its next user cannot see the data of the previous one.
    pub(crate) fn wipe(&self) {
        if let Some(bytes) = self.bytes(0, WINDOW_SIZE as usize) {
            bytes.copy_from(&[0u8; WINDOW_SIZE as usize]);
        }
    }

    /// Sets whether the guest must write to TX_BELL.
    pub(crate) fn set_bell(&self, on: bool) {
        if let Some(word) = self.word(BELL_OFFSET) {
            word.store(u64::from(on), Ordering::SeqCst);
            // Later checks for packets stored before must not move ahead of this store.
            fence(Ordering::SeqCst);
        }
    }
}

/// The number of the packet at a position in the byte stream through the ring.
pub(crate) const fn number(at: u64) -> u64 {
    at / PACKET_DATA as u64 + 1
}
