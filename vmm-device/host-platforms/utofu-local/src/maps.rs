//! Which addresses of the process are mapped, as the kernel reports.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// The process's access rights to its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// It is not there, all of it or a part, or may not even be read.
    None,
    /// Some of it may only be read.
    Read,
    /// All of it may be read and written.
    ReadWrite,
}

/// Returns this process's access rights to `len` bytes at `addr`; all rights, if the kernel does
/// not report them.
pub fn rights(addr: usize, len: usize) -> Rights {
    File::open("/proc/self/maps")
        .map_or(Rights::ReadWrite, |maps| rights_in(BufReader::new(maps), addr, len))
}

/// The same for mappings in the form of `/proc/self/maps`: lines with start, end, and rights, by
/// rising addresses.
fn rights_in(maps: impl BufRead, addr: usize, len: usize) -> Rights {
    let Some(end) = addr.checked_add(len) else {
        return Rights::None;
    };
    let (mut at, mut rights) = (addr, Rights::ReadWrite);
    for line in maps.lines().map_while(Result::ok) {
        let Some((from, to, may)) = parse(&line) else {
            continue;
        };
        if to <= at {
            continue;
        }
        if from > at || !may.starts_with('r') {
            return Rights::None;
        }
        if may.as_bytes().get(1) != Some(&b'w') {
            rights = Rights::Read;
        }
        at = to;
        if at >= end {
            return rights;
        }
    }
    Rights::None
}

fn parse(line: &str) -> Option<(usize, usize, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(from)?, number(to)?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_counts() {
        let maps = "\
1000-3000 r--p 00000000 fe:01 12 /usr/bin/program
3000-5000 rw-p 00000000 00:00 0
5000-6000 rw-p 00000000 00:00 0 [heap]
7000-8000 ---p 00000000 00:00 0
8000-9000 rw-s 00000000 00:01 5 /memfd:one (deleted)
";
        for (addr, len, expected) in [
            (0x1000, 0x2000, Rights::Read),
            (0x2fff, 2, Rights::Read),
            (0x3000, 0x3000, Rights::ReadWrite),
            (0x4fff, 0x1001, Rights::ReadWrite),
            (0x5fff, 2, Rights::None),
            (0xfff, 2, Rights::None),
            (0x6000, 1, Rights::None),
            (0x7fff, 1, Rights::None),
            (0x8000, 0x1000, Rights::ReadWrite),
            (0x8000, 0x1001, Rights::None),
            (usize::MAX, 2, Rights::None),
        ] {
            assert_eq!(rights_in(maps.as_bytes(), addr, len), expected, "{addr:#x} {len:#x}");
        }
    }

    #[test]
    fn kernel_lists_this_processs_maps() {
        static TEXT: &str = "may only be read";
        let heap = vec![0u8; 10_000];
        assert_eq!(rights(heap.as_ptr() as usize, heap.len()), Rights::ReadWrite);
        assert_eq!(rights(TEXT.as_ptr() as usize, TEXT.len()), Rights::Read);
        assert_eq!(rights(8, 8), Rights::None);
    }
}
