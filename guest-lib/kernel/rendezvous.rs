// SPDX-License-Identifier: GPL-2.0

//! Memory for the frames of a rendezvous: frames that other nodes may fetch, and buffers for frames
//! fetched from them.
//!
//! A page is in the page table of the kernel's queue only during the transfer of a frame. Before a
//! fetched frame is read, its pages are removed from the table and the device's cache is flushed
//! (by [`Sender`]). After that no other node can write to them.
//!
//! [`Sender`]: crate::packets::Sender

use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::Arc;

use tofu_abi::cq::StagTables;
use tofu_abi::regs::CqsReg;
use tofu_abi::table::{MemoryBlock, PageEntry, PageSize, Steering, TABLE_ALIGN};
use tofu_abi::StagOffset;
use tofu_ipotofu::rendezvous::{REST_MAX, SLOTS};

use crate::device::Device;
use crate::dma::Table;
use crate::shim::{self, DmaRun, ReadAreas};
use crate::skb::{SentSkb, Skb};

/// Bytes of a run of contiguous pages for frames.
pub(crate) const CHUNK: usize = shim::CHUNK;
/// Bytes of a page of the device's tables.
const PAGE: usize = PageSize::Size4K.bytes() as usize;
/// Chunks of the longest frame.
const CHUNKS: usize = REST_MAX / CHUNK;
/// The limits on chunks that the stack may hold, and that are kept for later frames. Between them,
/// their size is a share of the node's memory, about as much as TCP allows two connections.
const POOL_MIN: usize = 192;
const POOL_MAX: usize = 1024;
const POOL_SHARE: usize = 64;
/// The number of chunks that are searched for a free one.
const LOOKS: usize = 4;
/// Chunks that are kept besides them, for frames that are fetched and then copied.
const SPARE: usize = 64;
/// Page table entries of a slot for fetched frames.
const FETCH_PAGES: usize = REST_MAX / PAGE;
/// The same for a frame of this node, which may begin anywhere in a page. Rounded up, so that the
/// next slot's entries are aligned.
const SHARE_PAGES: usize =
    (FETCH_PAGES + 1).next_multiple_of(TABLE_ALIGN as usize / size_of::<u64>());

/// The STag of all slots for fetched frames, and the first one of those for frames of this node.
const FETCH: u32 = 0;
const SHARE: u32 = 1;
/// The memory of an STag begins at a multiple of this many bytes in a page.
const BEGIN: u64 = 256;
/// STags of a slot. A late Get of an abandoned frame finds a disabled one.
const GENERATIONS: u32 = 64;
const STAGS: usize = SHARE as usize + SLOTS * GENERATIONS as usize;
/// The memory block of all slots for fetched frames; slot n for this node's frames has the n-th one
/// after it.
const FETCH_BLOCK: usize = 0;
const SHARE_BLOCK: usize = 1;
const BLOCKS: usize = SHARE_BLOCK + SLOTS;

/// The contiguous parts of a frame in device addresses.
pub(crate) type Runs = [DmaRun; shim::MAX_RUNS];

/// Contiguous pages, mapped for the device. The stack may have references to them, too.
pub(crate) struct Chunk {
    device: Arc<Device>,
    page: *mut bindings::page,
    addr: u64,
}

// SAFETY: pages belong to their holder, on any processor.
unsafe impl Send for Chunk {}

impl Chunk {
    fn new(device: &Arc<Device>) -> Option<Self> {
        let mut addr = 0;
        // SAFETY: the device exists; the pages are ours.
        let page = unsafe { shim::tofu_shim_chunk_new(device.raw(), &mut addr) };
        (!page.is_null()).then(|| Self {
            device: device.clone(),
            page,
            addr,
        })
    }

    /// Appends `len` bytes from `at` on, or a copy of them, to a frame. The stack's reference to
    /// the chunk lasts until it frees the frame. Returns false if there is no memory for a copy.
    pub(crate) fn add_to(&self, skb: &mut Skb, at: usize, len: usize, copy: bool) -> bool {
        if at.checked_add(len).is_none_or(|end| end > CHUNK) {
            return false;
        }
        // SAFETY: the range is in the pages, as was checked. The device no longer uses them, and
        // the pool does not reuse them before the stack has put its references. A frame has room
        // for the chunks of the longest one.
        unsafe { skb.add_frag(self.page, at, len, copy) }
    }

    fn run(&self, len: usize) -> DmaRun {
        DmaRun {
            addr: self.addr,
            len: len as u32,
        }
    }

    /// Returns true if this is the only reference to the pages.
    fn is_free(&self) -> bool {
        // SAFETY: we hold a reference.
        unsafe { shim::tofu_shim_chunk_is_free(self.page) }
    }

    /// Syncs the first `len` bytes for the device, or for the CPU.
    fn sync(&self, len: usize, to_device: bool) {
        // SAFETY: the pages were mapped like that.
        unsafe { shim::tofu_shim_chunk_sync(self.device.raw(), self.addr, len as u32, to_device) }
    }

    /// All bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the chunk has this many bytes. Neither the device nor the stack uses them: they
        // come from a pool, or were taken from the device and not yet passed to the stack.
        unsafe {
            let start = shim::tofu_shim_page_address(self.page).cast::<u8>();
            core::slice::from_raw_parts_mut(start, CHUNK)
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: the device does not use the pages any more.
        unsafe { shim::tofu_shim_chunk_free(self.device.raw(), self.page, self.addr) };
    }
}

/// The chunks of a frame, and its length.
#[derive(Default)]
pub(crate) struct Chunks {
    places: [Option<Chunk>; CHUNKS],
    len: usize,
}

impl Chunks {
    /// The chunks in use, each with its offset in the frame and its length.
    pub(crate) fn parts(&mut self) -> impl Iterator<Item = (usize, usize, &mut Chunk)> {
        let len = self.len;
        let parts = self.places.iter_mut().flatten().enumerate();
        parts.map(move |(n, chunk)| (n * CHUNK, (len - n * CHUNK).min(CHUNK), chunk))
    }

    fn sync(&mut self, to_device: bool) {
        self.parts()
            .for_each(|(_, len, chunk)| chunk.sync(len, to_device));
    }

    /// The device addresses of the chunks.
    fn runs(&mut self, runs: &mut Runs) -> usize {
        let parts = self.parts().zip(runs);
        parts
            .map(|((_, len, chunk), run)| *run = chunk.run(len))
            .count()
    }
}

/// Returns this many empty places.
fn places<T>(count: usize) -> Result<KVVec<Option<T>>> {
    let mut places = KVVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        places.push(None, GFP_KERNEL)?;
    }
    Ok(places)
}

/// Chunks that were used before. They stay mapped, because mapping others takes longer than
/// copying.
struct Pool {
    device: Arc<Device>,
    /// Chunks that the stack may still hold, oldest first.
    ring: KVVec<Option<Chunk>>,
    first: usize,
    count: usize,
    /// Chunks for which the ring has no room.
    spare: KVVec<Chunk>,
}

impl Pool {
    fn new(device: &Arc<Device>) -> Result<Self> {
        let memory = shim::tofu_shim_total_pages() as usize * kernel::page::PAGE_SIZE;
        let size = (memory / POOL_SHARE / CHUNK).clamp(POOL_MIN, POOL_MAX);
        Ok(Self {
            device: device.clone(),
            ring: places(size)?,
            first: 0,
            count: 0,
            spare: KVVec::with_capacity(SPARE, GFP_KERNEL)?,
        })
    }

    /// Returns true if the ring has room for the chunks of this many bytes.
    fn has_room_for(&self, len: usize) -> bool {
        self.count + len.div_ceil(CHUNK) <= self.ring.len()
    }

    fn pop(&mut self) -> Option<Chunk> {
        let chunk = self.ring.get_mut(self.first)?.take()?;
        self.first = (self.first + 1) % self.ring.len();
        self.count -= 1;
        Some(chunk)
    }

    /// Keeps a chunk for later, if there is room.
    fn give(&mut self, chunk: Chunk) {
        if !self.has_room_for(CHUNK) {
            // It is freed if there is no room here either.
            let _ = self.spare.push_within_capacity(chunk);
            return;
        }
        let at = (self.first + self.count) % self.ring.len();
        if let Some(place) = self.ring.get_mut(at) {
            *place = Some(chunk);
            self.count += 1;
        }
    }

    fn take(&mut self) -> Option<Chunk> {
        for _ in 0..LOOKS {
            let Some(chunk) = self.pop() else { break };
            if chunk.is_free() {
                return Some(chunk);
            }
            self.give(chunk);
        }
        let spare = self.spare.pop().filter(Chunk::is_free);
        spare.or_else(|| Chunk::new(&self.device))
    }

    /// Chunks for this many bytes; `None` if there is no memory for them.
    fn take_for(&mut self, len: usize) -> Option<Chunks> {
        let mut chunks = Chunks {
            len,
            ..Chunks::default()
        };
        for n in 0..len.div_ceil(CHUNK) {
            let place = chunks.places.get_mut(n)?;
            *place = Some(self.take()?);
        }
        Some(chunks)
    }
}

/// The memory that others may read, until it is dropped.
// The variants differ little in size, which clippy does not detect.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Shared {
    /// A copy of a frame.
    Copy(Chunks),
    /// A frame of the stack, in its own pages.
    Skb(MappedSkb),
}

/// A frame of the stack that the device reads in place.
pub(crate) struct MappedSkb {
    skb: SentSkb,
    runs: Runs,
    count: usize,
}

/// The memory of the stack's frames that is mapped for the device.
struct Areas(*mut ReadAreas);

// SAFETY: they belong to their holder, on any processor.
unsafe impl Send for Areas {}

impl Areas {
    /// Creates an empty set; `None` if other nodes must read copies.
    fn new(device: &Device) -> Option<Self> {
        // SAFETY: the device exists.
        let areas = unsafe { shim::tofu_shim_areas_new(device.raw()) };
        (!areas.is_null()).then_some(Self(areas))
    }

    /// Finds the device addresses of the bytes of a frame from `at` on, in parts. There are none if
    /// the device cannot read it in place.
    fn find(&mut self, skb: &Skb, at: usize, runs: &mut Runs) -> usize {
        let (skb, runs) = (skb.as_ptr(), runs.as_mut_ptr());
        // SAFETY: the areas are ours, and the frame and `runs` are borrowed during the call; C
        // writes `MAX_RUNS` parts at most, and there is room for as many.
        unsafe { shim::tofu_shim_areas_find(self.0, skb, at as u32, runs) as usize }
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        // SAFETY: the device no longer reads them.
        unsafe { shim::tofu_shim_areas_free(self.0) };
    }
}

/// All memory for the frames of a queue, and its tables for the device.
pub(crate) struct RendezvousMemory {
    device: Arc<Device>,
    steering: Table,
    blocks: Table,
    share: Table,
    fetch: Table,
    pool: Pool,
    /// By slots.
    shared: KVVec<Option<(u32, Shared)>>,
    /// The number of slots that others may read.
    shared_count: usize,
    fetched: KVVec<Option<Chunks>>,
    /// True if the device reaches all memory without an IOMMU, so that mapping is free.
    direct: bool,
    areas: Option<Areas>,
}

fn block(pages: u64, count: usize) -> [u64; 2] {
    let block = MemoryBlock(0)
        .with_ps(PageSize::Size4K as u8)
        .with_ipa(pages)
        .with_enable(true);
    [block.0, count as u64]
}

impl RendezvousMemory {
    /// Tables without a page.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self> {
        let this = Self {
            device: device.clone(),
            steering: Table::new(device, 2 * STAGS)?,
            blocks: Table::new(device, 2 * BLOCKS)?,
            share: Table::new(device, SLOTS * SHARE_PAGES)?,
            fetch: Table::new(device, SLOTS * FETCH_PAGES)?,
            pool: Pool::new(device)?,
            shared: places(SLOTS)?,
            shared_count: 0,
            fetched: places(SLOTS)?,
            // SAFETY: the device exists.
            direct: unsafe { shim::tofu_shim_is_direct(device.raw()) },
            areas: Areas::new(device),
        };
        let fetch = block(this.fetch.addr(), SLOTS * FETCH_PAGES);
        this.blocks.store_entry(FETCH_BLOCK, fetch);
        for slot in 0..SLOTS {
            let pages = this.share.addr() + (slot * SHARE_PAGES * size_of::<u64>()) as u64;
            this.blocks
                .store_entry(SHARE_BLOCK + slot, block(pages, SHARE_PAGES));
        }
        let entry = Steering(0).with_mbid(FETCH_BLOCK as u16).with_enable(true);
        let len = (SLOTS * REST_MAX) as u64;
        this.steering.store_entry(FETCH as usize, [entry.0, len]);
        Ok(this)
    }

    /// The registers that describe the tables to the device.
    pub(crate) fn registers(&self) -> [(CqsReg, u64); 6] {
        let tables = StagTables {
            blocks: self.blocks.addr(),
            block_count: BLOCKS as u32,
            steering: self.steering.addr(),
            stags: STAGS as u32,
        };
        tables.registers()
    }

    /// Lets the device read the bytes of a frame of the stack from `at` on in place, and no others.
    ///
    /// # Errors
    ///
    /// The frame, if the device cannot.
    pub(crate) fn map(&mut self, skb: Skb, at: usize) -> Result<MappedSkb, Skb> {
        let mut runs = Runs::default();
        let areas = self.areas.as_mut();
        let count = areas.map_or(0, |areas| areas.find(&skb, at, &mut runs));
        let mapped = runs.get(..count).unwrap_or_default();
        if mapped.is_empty() || !is_one_range(mapped) {
            return Err(skb);
        }
        let skb = SentSkb::new(skb);
        Ok(MappedSkb { skb, runs, count })
    }

    /// Chunks for a copy of this many bytes; `None` if there is no memory for them.
    pub(crate) fn chunks(&mut self, len: usize) -> Option<Chunks> {
        self.pool.take_for(len)
    }

    /// The global address of a byte under an STag of the kernel's queue.
    fn place(&self, stag: u32, offset: u64) -> StagOffset {
        StagOffset::new(self.device.description().kernel_cq(), stag, offset)
    }

    /// Lets other nodes read a frame of at most [`REST_MAX`] bytes under the STag of this
    /// generation of a slot, which must be free. Returns its address for them.
    pub(crate) fn share(&mut self, slot: usize, generation: u32, mut shared: Shared) -> StagOffset {
        let mut of_chunks = Runs::default();
        let runs = match &mut shared {
            Shared::Copy(chunks) => {
                chunks.sync(true);
                let count = chunks.runs(&mut of_chunks);
                of_chunks.get(..count)
            }
            Shared::Skb(skb) => skb.runs.get(..skb.count),
        };
        let runs = runs.unwrap_or_default();
        let lead = runs.first().map_or(0, |run| run.addr % PAGE as u64);
        let len: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
        let mut entry = slot * SHARE_PAGES;
        for run in runs {
            let start = run.addr - run.addr % PAGE as u64;
            for page in (start..run.addr + u64::from(run.len)).step_by(PAGE) {
                let page = PageEntry(0).with_ipa(page).with_enable(true);
                self.share.store(entry, page.0);
                entry += 1;
            }
        }
        let stag = SHARE + slot as u32 * GENERATIONS + generation % GENERATIONS;
        // The length limits it to the byte, and the first byte is at a multiple of these units.
        let steering = Steering(0)
            .with_readonly(true)
            .with_mbva_units(lead / BEGIN)
            .with_mbid((SHARE_BLOCK + slot) as u16)
            .with_enable(true);
        self.steering.store_entry(stag as usize, [steering.0, len]);
        if let Some(place) = self.shared.get_mut(slot) {
            let before = place.replace((stag, shared));
            self.shared_count += usize::from(before.is_none());
        }
        self.place(stag, 0)
    }

    /// Returns true if no frame is shared.
    pub(crate) fn shares_nothing(&self) -> bool {
        self.shared_count == 0
    }

    /// Returns true if no frame is shared in a slot.
    pub(crate) fn is_free(&self, slot: usize) -> bool {
        self.shared.get(slot).is_some_and(Option::is_none)
    }

    /// Orphans a slot's frame, which is no longer needed, so that its socket can send more.
    pub(crate) fn orphan(&self, slot: usize) {
        if let Some(Some((_, Shared::Skb(mapped)))) = self.shared.get(slot) {
            mapped.skb.orphan();
        }
    }

    /// Ends the sharing of a slot's frame. Others may read it until the device's cache is flushed.
    /// Returns false if there is none.
    pub(crate) fn unshare(&mut self, slot: usize) -> bool {
        match self.shared.get(slot) {
            Some(Some((stag, _))) => {
                self.steering.store(2 * *stag as usize, 0);
                true
            }
            _ => false,
        }
    }

    /// Frees a frame after the flush.
    pub(crate) fn free(&mut self, slot: usize) {
        let taken = self.shared.get_mut(slot).and_then(Option::take);
        self.shared_count -= usize::from(taken.is_some());
        if let Some((_, Shared::Copy(chunks))) = taken {
            self.give(chunks);
        }
    }

    /// Prepares `len` bytes of a slot for a fetch, and returns their global address.
    pub(crate) fn prepare(&mut self, slot: usize, len: usize) -> Option<StagOffset> {
        let place = self.fetched.get_mut(slot).filter(|place| place.is_none())?;
        let mut chunks = self.pool.take_for(len)?;
        chunks.sync(true);
        for (at, len, chunk) in chunks.parts() {
            for page in (0..len).step_by(PAGE) {
                let entry = PageEntry(0).with_ipa(chunk.addr + page as u64);
                let index = slot * FETCH_PAGES + (at + page) / PAGE;
                self.fetch.store(index, entry.with_enable(true).0);
            }
        }
        *place = Some(chunks);
        let offset = slot * REST_MAX;
        Some(self.place(FETCH, offset as u64))
    }

    /// Removes the memory of a fetched frame from the tables. Others may write there until the
    /// device's cache is flushed.
    pub(crate) fn take(&mut self, slot: usize) -> Option<Chunks> {
        let chunks = self.fetched.get_mut(slot)?.take()?;
        for page in 0..chunks.len.div_ceil(PAGE) {
            self.fetch.store(slot * FETCH_PAGES + page, 0);
        }
        Some(chunks)
    }

    /// Syncs the chunks for the CPU, after the device has written them.
    pub(crate) fn fetched(chunks: &mut Chunks) {
        chunks.sync(false);
    }

    /// Returns true if the stack may have these chunks: the pool then has room for them, so that
    /// none must be unmapped.
    pub(crate) fn may_pass_on(&self, chunks: &Chunks) -> bool {
        self.direct || self.pool.has_room_for(chunks.len)
    }

    /// Keeps chunks for later.
    pub(crate) fn give(&mut self, mut chunks: Chunks) {
        for place in &mut chunks.places {
            if let Some(chunk) = place.take() {
                self.pool.give(chunk);
            }
        }
    }
}

/// Returns true if the parts follow each other in whole pages, and the first one begins at a valid
/// address for an STag.
fn is_one_range(runs: &[DmaRun]) -> bool {
    let page = PAGE as u64;
    let begins = |(n, run): (usize, &DmaRun)| match n {
        0 => run.addr % BEGIN == 0,
        _ => run.addr % page == 0,
    };
    let ends = |run: &DmaRun| (run.addr + u64::from(run.len)) % page == 0;
    let inner = runs.len().saturating_sub(1);
    runs.iter().enumerate().all(begins) && runs.iter().take(inner).all(ends)
}
