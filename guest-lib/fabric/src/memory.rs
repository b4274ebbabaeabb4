//! Memory of the program.

use crate::core::Memory;

/// Memory of the program, or of the operation itself.
#[derive(Debug)]
pub(crate) enum ProgramMemory {
    /// One piece: address and length.
    One(usize, usize),
    /// Several.
    Several(Vec<(usize, usize)>),
    /// The operation's own.
    Owned(Box<[u8]>),
}

impl ProgramMemory {
    /// Creates it from pieces.
    ///
    /// # Safety
    ///
    /// Until the operation with this memory has ended, all pieces can be read, and written if the
    /// operation writes, and nothing else in the process uses them as Rust memory.
    pub(crate) unsafe fn new(pieces: impl ExactSizeIterator<Item = (usize, usize)>) -> Self {
        let mut pieces = pieces;
        match pieces.len() {
            0 => Self::One(0, 0),
            1 => pieces.next().map_or(Self::One(0, 0), |(at, length)| Self::One(at, length)),
            _ => Self::Several(pieces.collect()),
        }
    }

    /// The address and length of the only piece.
    pub(crate) fn only_piece(&self) -> Option<(usize, usize)> {
        match self {
            Self::One(at, length) => Some((*at, *length)),
            Self::Several(_) => None,
            Self::Owned(memory) => Some((memory.as_ptr() as usize, memory.len())),
        }
    }

    /// Returns whether a piece is at no address, as where a program has forgotten it.
    pub(crate) fn is_null(&self) -> bool {
        let null = |(at, length): &(usize, usize)| *at == 0 && *length > 0;
        match self {
            Self::One(at, length) => null(&(*at, *length)),
            Self::Several(pieces) => pieces.iter().any(null),
            Self::Owned(_) => false,
        }
    }

    fn pieces(&self) -> &[(usize, usize)] {
        match self {
            Self::Several(pieces) => pieces,
            _ => &[],
        }
    }

    /// Calls `f` for each part of a range that is in one piece: address, length, and how far it is
    /// from the start of the range.
    fn each(&self, offset: usize, length: usize, mut f: impl FnMut(usize, usize, usize)) {
        let one = self.only_piece();
        let pieces = one.as_ref().map_or(self.pieces(), std::slice::from_ref);
        let (mut start, mut done) = (0, 0);
        for &(at, size) in pieces {
            let from = (offset + done).saturating_sub(start);
            if done < length && from < size {
                let part = (size - from).min(length - done);
                f(at + from, part, done);
                done += part;
            }
            start += size;
        }
    }
}

impl Memory for ProgramMemory {
    fn len(&self) -> usize {
        match self {
            Self::One(_, length) => *length,
            Self::Several(pieces) => pieces.iter().map(|piece| piece.1).sum(),
            Self::Owned(memory) => memory.len(),
        }
    }

    fn address(&self) -> usize {
        match self {
            Self::Several(pieces) => pieces.first().map_or(0, |piece| piece.0),
            _ => self.only_piece().map_or(0, |piece| piece.0),
        }
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        if let Self::Owned(memory) = self {
            let to = memory.iter_mut().skip(offset);
            to.zip(data).for_each(|(to, from)| *to = *from);
            return;
        }
        self.each(offset, data.len(), |at, length, from| {
            // SAFETY: the creator has guaranteed that the memory can be written.
            unsafe { std::ptr::copy(data[from..].as_ptr(), at as *mut u8, length) }
        });
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        let length = into.len();
        self.each(offset, length, |at, length, to| {
            // SAFETY: the creator has guaranteed that the memory can be read; or it is the own.
            unsafe { std::ptr::copy(at as *const u8, into[to..].as_mut_ptr(), length) }
        });
    }

    fn part(&self, offset: usize, length: usize) -> Self {
        // The operation's own memory would not stay.
        let Self::One(at, size) = *self else { return Self::One(0, 0) };
        let offset = offset.min(size);
        Self::One(at + offset, length.min(size - offset))
    }

    fn owned(length: usize) -> Self {
        Self::Owned(vec![0; length].into_boxed_slice())
    }
}

/// Zeroed memory of whole pages.
#[derive(Debug)]
pub(crate) struct Pages {
    at: *mut u8,
    size: usize,
}

// SAFETY: it is memory, and its functions that write take it exclusively.
unsafe impl Send for Pages {}

impl Pages {
    pub(crate) fn new(size: usize) -> Option<Self> {
        let (read_write, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), size, read_write, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            return None;
        }
        // A child of a fork does not get what the device writes; and the parent keeps its pages.
        // SAFETY: the own memory.
        unsafe { libc::madvise(at, size, libc::MADV_DONTFORK) };
        Some(Self { at: at.cast(), size })
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.at
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Reads what fits.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let length = into.len().min(self.size.saturating_sub(offset));
        // SAFETY: within the memory. The device may write it at the same time only if a peer
        // breaks the protocol, and then the bytes are any.
        unsafe { std::ptr::copy_nonoverlapping(self.at.add(offset), into.as_mut_ptr(), length) }
    }

    /// Writes what fits.
    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) {
        let length = data.len().min(self.size.saturating_sub(offset));
        // SAFETY: within the memory.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.at.add(offset), length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this object's memory, to which there are no references.
        unsafe { libc::munmap(self.at.cast(), self.size) };
    }
}
