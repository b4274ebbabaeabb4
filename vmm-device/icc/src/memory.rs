//! Runs of guest memory, the result of translation.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, Release},
    fence,
};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use vm_memory::VolatileSlice;

pub use tofu_dma::{Access, DmaError, DmaMemory, DmaResult, Mapped, Visit};

/// The memory of a device, without faults, or with injected ones to test drivers.
pub(crate) struct Reach {
    memory: Arc<dyn DmaMemory>,
    /// Where it is in this process, as far as it stays there: the first part, which has all that
    /// most nodes have, and others.
    first: Option<Mapped>,
    others: Vec<Mapped>,
    refusing: OnceLock<Arc<dyn DmaMemory>>,
    refuses: AtomicBool,
}

impl Reach {
    pub(crate) fn new(memory: Arc<dyn DmaMemory>) -> Self {
        let mut mappings = memory.mappings().into_iter();
        Self {
            memory,
            first: mappings.next(),
            others: mappings.collect(),
            refusing: OnceLock::new(),
            refuses: AtomicBool::new(false),
        }
    }

    fn get(&self) -> &dyn DmaMemory {
        if self.refuses.load(Relaxed) {
            return &**self.refusing.get().unwrap_or(&self.memory);
        }
        &*self.memory
    }

    #[cold]
    fn slice_of_others(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.others.iter().find_map(|mapped| mapped.slice(addr, len))
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

impl DmaMemory for Reach {
    #[inline]
    fn contains(&self, addr: u64, len: usize, access: Access) -> bool {
        self.slice(addr, len).is_some() || self.get().contains(addr, len, access)
    }

    #[inline]
    fn access(&self, addr: u64, len: usize, access: Access, f: &mut Visit<'_>) -> DmaResult {
        match self.slice(addr, len) {
            Some(slice) => {
                f(slice);
                Ok(())
            }
            None => self.get().access(addr, len, access, f),
        }
    }

    fn mapped_bytes(&self) -> Option<u64> {
        self.memory.mapped_bytes()
    }

    #[inline(always)]
    fn slice(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        if self.refuses.load(Relaxed) {
            return None;
        }
        self.first.as_ref()?.slice(addr, len).or_else(|| self.slice_of_others(addr, len))
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

/// Bytes of a word that is written at once.
const WORD: usize = 8;

/// The bytes of a burst that are written before its last aligned word, if the burst has this length
/// and ends before `end`: programs on real systems wait for the last word of their data. Data of a
/// word is written at once, as is each aligned word of longer data.
#[inline]
pub(crate) fn before_last_word(end: u64, len: usize) -> usize {
    let last = (end.wrapping_sub(1) % WORD as u64) as usize + 1;
    if len > WORD { len - last } else { 0 }
}

/// The end of memory, as far as it matters for its last word.
fn end_of(memory: VolatileSlice<'_>) -> u64 {
    memory.ptr_guard().as_ptr() as u64 + memory.len() as u64
}

/// Copies bytes between memory of the same length, the last word last.
#[inline]
pub(crate) fn copy_in_order(from: VolatileSlice<'_>, to: VolatileSlice<'_>) {
    let head = before_last_word(end_of(to), to.len());
    if head > 0
        && let (Ok(first), Ok(last), Ok(to_last)) =
            (from.subslice(0, head), from.offset(head), to.offset(head))
    {
        first.copy_to_volatile_slice(to);
        fence(Release);
        last.copy_to_volatile_slice(to_last);
    } else {
        from.copy_to_volatile_slice(to);
    }
}

/// The same from bytes that are not in a guest's memory.
#[inline]
pub(crate) fn fill_in_order(from: &[u8], to: VolatileSlice<'_>) {
    let head = before_last_word(end_of(to), to.len());
    match (from.split_at_checked(head), to.offset(head)) {
        (Some((first, last)), Ok(to_last)) if head > 0 => {
            to.copy_from(first);
            fence(Release);
            to_last.copy_from(last);
        }
        _ => to.copy_from(from),
    }
}

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

/// The end of the first `len` bytes of a list of segments.
pub(crate) fn end_of_segments(segments: &[Segment], len: u32) -> u64 {
    let mut left = len;
    for s in segments {
        if left <= s.len {
            return s.addr.wrapping_add(left.into());
        }
        left -= s.len;
    }
    0
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vm_memory::{GuestAddress, GuestMemoryMmap};

    proptest! {
        /// No aligned word is written in two parts, and the last bytes come last.
        #[test]
        fn bursts_are_divided_between_words(end in 0x1000u64..0x2000, len in 1usize..200) {
            let head = before_last_word(end, len);
            prop_assert!(head < len && (head == 0) == (len <= 8));
            let start = end - len as u64;
            let at = start + head as u64;
            prop_assert!(head == 0 || (at.is_multiple_of(8) && end - at <= 8));
            let segments = [0, 100].map(|skip| Segment { addr: start + skip, len: 100 });
            prop_assert_eq!(end_of_segments(&segments, len as u32), end);
        }
    }

    fn memory(starts: &[u64]) -> Arc<dyn DmaMemory> {
        let ranges: Vec<_> = starts.iter().map(|at| (GuestAddress(*at), 0x1000)).collect();
        Arc::new(GuestMemoryMmap::<()>::from_ranges(&ranges).unwrap())
    }

    #[test]
    fn each_mapping_is_reached() {
        let reach = Reach::new(memory(&[0x1000, 0x2000, 0x8000]));
        for (value, addr) in [0x1000, 0x1ff8, 0x2000, 0x8ff8].into_iter().enumerate() {
            assert!(reach.slice(addr, 8).is_some(), "{addr:#x}");
            reach.store(addr, value as u64).unwrap();
            assert_eq!(reach.load(addr), Ok(value as u64), "{addr:#x}");
        }
        // Two mappings that are neighbours.
        assert!(reach.slice(0x1ff8, 16).is_none());
        assert!(reach.contains(0x1ff8, 16, Access::Update));
        let mut words = [0; 16];
        reach.read(0x1ff8, &mut words).unwrap();
        assert_eq!((words[0], words[8]), (1, 2));
        for (addr, len) in [(0xff8, 8), (0x2ff8, 16), (0x8ffc, 8), (u64::MAX - 7, 8)] {
            assert!(!reach.contains(addr, len, Access::Read), "{addr:#x}");
            assert!(reach.read(addr, &mut words[..len]).is_err(), "{addr:#x}");
        }
    }

    #[test]
    fn refused_accesses_do_not_reach_it() {
        let reach = Reach::new(memory(&[0x1000, 0x8000]));
        reach.set_refusing(memory(&[0x4000]));
        for refuses in [true, false] {
            reach.refuse(refuses);
            for addr in [0x1000, 0x8000] {
                assert_eq!(reach.load(addr).is_err(), refuses, "{addr:#x}");
                assert_eq!(reach.store_entry(addr, [1; 4]).is_err(), refuses, "{addr:#x}");
                assert_eq!(reach.slice(addr, 8).is_none(), refuses, "{addr:#x}");
            }
        }
    }
}
