//! Runs of guest memory, the result of translation.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use tofu_inspect::{Hex, Inspect, Visit as Visitor};

use tofu_dma::Mapped;
pub use tofu_dma::{Access, DmaError, DmaMemory, DmaResult, Visit};

/// The memory of a device, without faults, or with injected ones to test drivers.
pub(crate) struct Reach {
    memory: Arc<dyn DmaMemory>,
    refusing: OnceLock<Arc<dyn DmaMemory>>,
    refuses: AtomicBool,
}

impl Reach {
    pub(crate) fn new(memory: Arc<dyn DmaMemory>) -> Self {
        Self { memory, refusing: OnceLock::new(), refuses: AtomicBool::new(false) }
    }

    #[inline]
    pub(crate) fn get(&self) -> &dyn DmaMemory {
        if self.refuses.load(Relaxed) {
            return &**self.refusing.get().unwrap_or(&self.memory);
        }
        &*self.memory
    }

    /// A ring or table of that many bytes, to be looked up once.
    pub(crate) fn table(&self, at: u64, len: u64) -> Table {
        Table { at, mapped: self.memory.mapped(at, len) }
    }

    /// The mapping of a table, if it has one and accesses are as they are.
    #[inline]
    fn mapping<'a>(&self, table: &'a Table) -> Option<&'a Mapped> {
        if self.refuses.load(Relaxed) { None } else { table.mapped.as_ref() }
    }

    /// [`DmaMemory::load`] of a word of a table, at an offset.
    #[inline(always)]
    pub(crate) fn load(&self, table: &Table, offset: u64) -> DmaResult<u64> {
        let at = table.at.wrapping_add(offset);
        match self.mapping(table).and_then(|mapped| mapped.load(at)) {
            Some(done) => Ok(done),
            None => self.load_any(at),
        }
    }

    #[cold]
    fn load_any(&self, at: u64) -> DmaResult<u64> {
        self.get().load(at)
    }

    /// [`DmaMemory::store`] of a word of a table, at an offset.
    #[inline(always)]
    pub(crate) fn store(&self, table: &Table, offset: u64, value: u64) -> DmaResult {
        let at = table.at.wrapping_add(offset);
        match self.mapping(table).and_then(|mapped| mapped.store(at, value)) {
            Some(done) => Ok(done),
            None => self.store_any(at, value),
        }
    }

    #[cold]
    fn store_any(&self, at: u64, value: u64) -> DmaResult {
        self.get().store(at, value)
    }

    /// [`DmaMemory::load_entry`] of an aligned entry of a ring, at an offset.
    #[inline(always)]
    pub(crate) fn load_entry(&self, ring: &Table, offset: u64) -> DmaResult<[u64; 4]> {
        let at = ring.at.wrapping_add(offset);
        match self.mapping(ring).and_then(|mapped| mapped.load_entry(at)) {
            Some(done) => Ok(done),
            None => self.load_entry_any(at),
        }
    }

    #[cold]
    fn load_entry_any(&self, at: u64) -> DmaResult<[u64; 4]> {
        self.get().load_entry(at)
    }

    /// [`DmaMemory::store_entry`] of an aligned entry of a ring, at an offset.
    #[inline(always)]
    pub(crate) fn store_entry(&self, ring: &Table, offset: u64, entry: [u64; 4]) -> DmaResult {
        let at = ring.at.wrapping_add(offset);
        match self.mapping(ring).and_then(|mapped| mapped.store_entry(at, entry)) {
            Some(done) => Ok(done),
            None => self.store_entry_any(at, entry),
        }
    }

    #[cold]
    fn store_entry_any(&self, at: u64, entry: [u64; 4]) -> DmaResult {
        self.get().store_entry(at, entry)
    }

    /// The memory as it is.
    pub(crate) fn faultless(&self) -> &dyn DmaMemory {
        &*self.memory
    }

    /// Sets the same memory with accesses that fail. Only the first call has an effect.
    pub(crate) fn set_refusing(&self, memory: Arc<dyn DmaMemory>) {
        let _ = self.refusing.set(memory);
    }

    /// Switches to the memory whose accesses fail, or back.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Relaxed);
    }
}

/// A ring or a table in memory.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    at: u64,
    /// Where it is in this process, if all of it is in one piece and stays there.
    mapped: Option<Mapped>,
}

impl Inspect for Table {
    fn inspect(&self, visit: Visitor<'_>) {
        Hex(self.at).inspect(visit);
    }
}

/// A contiguous run of bus addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
}

/// Segments of one burst: contiguous buffers need one, pages of 4 KiB up to 65.
pub type Segments = SmallVec<[Segment; 2]>;

/// Copies `len` bytes from one list of segments to another.
///
/// Both lists must be at least `len` bytes long; only the start of longer ones is used.
///
/// # Errors
///
/// If memory vanished since its addresses were translated.
pub(crate) fn copy_segments(
    src: (&dyn DmaMemory, &[Segment]),
    dst: (&dyn DmaMemory, &[Segment]),
    len: u32,
) -> DmaResult {
    // Most copies are of one run that is memory of this process at both ends.
    if let ([s, ..], [d, ..]) = (src.1, dst.1)
        && len <= s.len.min(d.len)
        && let Some(source) = src.0.slice(s.addr, len as usize)
        && let Some(sink) = dst.0.slice(d.addr, len as usize)
    {
        source.copy_to_volatile_slice(sink);
        return Ok(());
    }
    copy_runs(src, dst, len)
}

/// [`copy_segments`] for any memory.
fn copy_runs(
    src: (&dyn DmaMemory, &[Segment]),
    dst: (&dyn DmaMemory, &[Segment]),
    len: u32,
) -> DmaResult {
    let mut from = src.1.iter().copied();
    let mut to = dst.1.iter().copied();
    let mut s = Segment { addr: 0, len: 0 };
    let mut d = s;
    let mut left = len;
    while left > 0 {
        if s.len == 0 {
            s = from.next().ok_or(DmaError { addr: s.addr, len: left as usize })?;
            continue;
        }
        if d.len == 0 {
            d = to.next().ok_or(DmaError { addr: d.addr, len: left as usize })?;
            continue;
        }
        let n = left.min(s.len).min(d.len);
        copy_run(src.0, s.addr, dst.0, d.addr, n as usize)?;
        for run in [&mut s, &mut d] {
            run.addr += u64::from(n);
            run.len -= n;
        }
        left -= n;
    }
    Ok(())
}

fn copy_run(src: &dyn DmaMemory, from: u64, dst: &dyn DmaMemory, to: u64, len: usize) -> DmaResult {
    let mut at = to;
    let mut result = Ok(());
    src.access(from, len, Access::Read, &mut |source| {
        if result.is_err() {
            return;
        }
        result = dst.write_from(at, source);
        at += source.len() as u64;
    })?;
    result
}

/// Reads the memory of a list of segments into `data`; the part of `data` that they do not fill is
/// left as it is.
///
/// # Errors
///
/// If memory vanished since its addresses were translated.
pub(crate) fn read_segments(
    memory: &dyn DmaMemory,
    segments: &[Segment],
    data: &mut [u8],
) -> DmaResult {
    let mut left = data;
    for s in segments {
        let (part, tail) = left.split_at_mut((s.len as usize).min(left.len()));
        memory.read(s.addr, part)?;
        left = tail;
    }
    Ok(())
}

/// Drops the first `bytes` bytes of a list of segments.
pub(crate) fn skip_segments(segments: &[Segment], bytes: u32) -> Segments {
    let mut left = bytes;
    let mut rest = Segments::new();
    for s in segments {
        let skipped = left.min(s.len);
        left -= skipped;
        if s.len > skipped {
            rest.push(Segment { addr: s.addr + u64::from(skipped), len: s.len - skipped });
        }
    }
    rest
}
