//! A capture in several files; the oldest ones are removed.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Types of blocks that begin a capture file: section header and interface description. Each file
/// has all of them.
const HEAD: [u32; 2] = [0x0a0d_0d0a, 1];

/// Writes the blocks of a capture file to one file after the other. Each is a valid capture.
pub(super) struct Ring {
    path: PathBuf,
    /// Bytes of a file, unless its head and a single block are longer.
    size: u64,
    /// The most files that are kept.
    most: Option<usize>,
    head: Vec<u8>,
    /// The files there are, the last one open.
    files: VecDeque<PathBuf>,
    number: u64,
    file: File,
    written: u64,
}

impl Ring {
    /// Creates the first file.
    pub(super) fn new(path: &Path, size: u64, most: Option<usize>) -> io::Result<Self> {
        let first = name(path, 1);
        Ok(Self {
            path: path.to_owned(),
            size,
            most,
            head: Vec::new(),
            file: File::create(&first)?,
            files: [first].into(),
            number: 1,
            written: 0,
        })
    }

    fn add(&mut self, block: &[u8]) -> io::Result<()> {
        let kind = block.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if HEAD.contains(&kind) {
            self.head.extend_from_slice(block);
        } else if self.written > self.head.len() as u64
            && self.written + block.len() as u64 > self.size
        {
            self.next()?;
        }
        self.file.write_all(block)?;
        self.written += block.len() as u64;
        Ok(())
    }

    /// Begins the next file, and removes the oldest one if there are too many.
    fn next(&mut self) -> io::Result<()> {
        self.number += 1;
        let next = name(&self.path, self.number);
        self.file = File::create(&next)?;
        self.files.push_back(next);
        self.file.write_all(&self.head)?;
        self.written = self.head.len() as u64;
        while self.most.is_some_and(|most| self.files.len() > most) {
            let oldest = self.files.pop_front().unwrap_or_default();
            match fs::remove_file(&oldest) {
                // Another process may have removed it.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The name of the `number`th file: `node0-00001.pcapng` for `node0.pcapng`.
fn name(path: &Path, number: u64) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{number:05}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

impl Write for Ring {
    /// Takes whole blocks.
    fn write(&mut self, blocks: &[u8]) -> io::Result<usize> {
        let mut rest = blocks;
        while let Some(length) = rest.get(4..8).and_then(|bytes| bytes.first_chunk()) {
            let length = u32::from_le_bytes(*length) as usize;
            let block = rest.get(..length).filter(|block| !block.is_empty());
            let block = block.ok_or(io::ErrorKind::InvalidData)?;
            self.add(block)?;
            rest = &rest[length..];
        }
        Ok(blocks.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_supervisor::capture::file::WholeBlocks;

    fn block(kind: u32, data: &[u8]) -> Vec<u8> {
        let length = (12 + data.len() as u32).to_le_bytes();
        [&kind.to_le_bytes(), &length[..], data, &length].concat()
    }

    fn packet(n: u8) -> Vec<u8> {
        block(6, &[n; 28])
    }

    #[test]
    fn files_begin_with_the_head_and_oldest_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node0.pcapng");
        let head = [block(HEAD[0], &[1; 16]), block(1, &[2; 8]), block(1, &[3; 8])].concat();
        // Room for two packets of 40 bytes.
        let ring = Ring::new(&path, head.len() as u64 + 85, Some(2)).unwrap();
        let mut blocks = WholeBlocks::new(ring);
        let all = [head.clone(), (0..7).flat_map(packet).collect()].concat();
        for bytes in all.chunks(33) {
            blocks.add(bytes).unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        assert_eq!(names, [name(&path, 3), name(&path, 4)]);
        assert!(names[0].ends_with("node0-00003.pcapng"));
        let with = |packets: &[u8]| {
            [head.clone(), packets.iter().copied().flat_map(packet).collect()].concat()
        };
        assert_eq!(fs::read(&names[0]).unwrap(), with(&[4, 5]));
        assert_eq!(fs::read(&names[1]).unwrap(), with(&[6]));
    }

    #[test]
    fn oversized_block_gets_its_own_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all");
        let mut ring = Ring::new(&path, 10, None).unwrap();
        ring.write_all(&[block(HEAD[0], &[0; 16]), packet(1), packet(2)].concat()).unwrap();
        let lengths = [1, 2].map(|n| fs::metadata(name(&path, n)).unwrap().len());
        assert_eq!(lengths, [28 + 40; 2]);
        assert_eq!(name(&path, 1), folder.path().join("all-00001"));
    }
}
