use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tofu_virtio::regs::{cap, feature};
use tofu_virtio::{Block, BlockConfig, Error, MAX_REQUEST};
use vm_memory::{Bytes, GuestAddress};

use crate::driver::{BUFFERS, Buffer, Guest, HIGH_START, LOW, Queue, from_device, to_device};

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const F_RO: u64 = 1 << 5;
const F_FLUSH: u64 = 1 << 9;

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

/// The place of a request's header and status in guest memory.
const HEADER_AT: u64 = BUFFERS - 0x1000;
const STATUS_AT: u64 = BUFFERS - 0x800;
const TABLE_AT: u64 = BUFFERS - 0x4000;

fn image(sectors: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = (0..sectors * 512).map(|i| (i / 512 + i % 251) as u8).collect();
    fs::write(file.path(), bytes).unwrap();
    file
}

fn open(path: &Path, read_only: bool) -> Result<Block, Error> {
    Block::open(&BlockConfig { path: path.into(), read_only, id: "tofu-disk".to_owned() })
}

fn function() -> tofu_virtio::Virtio {
    // The device keeps the file open; its name is not needed any more.
    crate::driver::virtio(open(image(64).path(), false).unwrap())
}

tofu_pci::testing::law_tests!(function);

struct Disk {
    guest: Guest,
    queue: Queue,
}

impl Disk {
    fn new(path: &Path, read_only: bool, features: u64) -> Self {
        let guest = Guest::new(open(path, read_only).unwrap());
        let queue = guest.start(features, 1, 128).remove(0);
        Self { guest, queue }
    }

    /// Sends a request; returns status and bytes written by the device.
    #[track_caller]
    fn request(&mut self, kind: u32, sector: u64, data: &[Buffer], indirect: bool) -> (u8, u32) {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.guest.memory.write_slice(&header, GuestAddress(HEADER_AT)).unwrap();
        self.guest.memory.write_obj(0xffu8, GuestAddress(STATUS_AT)).unwrap();
        let mut buffers = vec![to_device(HEADER_AT, 16)];
        buffers.extend(data);
        buffers.push(from_device(STATUS_AT, 1));
        let head = if indirect {
            self.queue.add_indirect(TABLE_AT, &buffers)
        } else {
            self.queue.add(&buffers)
        };
        self.queue.kick();
        let (done, len) = self.queue.wait();
        assert_eq!(done, u32::from(head));
        (self.guest.memory.read_obj(GuestAddress(STATUS_AT)).unwrap(), len)
    }
}

/// Cuts `len` bytes from `at` on into pieces of these lengths, over and over.
fn cut(at: u64, len: u64, pieces: &[u32], writable: bool) -> Vec<Buffer> {
    let mut buffers = Vec::new();
    let mut done = 0;
    for &piece in pieces.iter().cycle().take(100) {
        let piece = u64::from(piece).min(len - done);
        buffers.push(Buffer { at: at + done, len: piece as u32, writable });
        done += piece;
        if done == len {
            return buffers;
        }
    }
    buffers.push(Buffer { at: at + done, len: (len - done) as u32, writable });
    buffers
}

/// Any mixture of reads and writes, in buffers cut anyhow, leaves guest and file with the contents
/// of a plain array.
#[test]
fn data_is_what_it_should_be() {
    const SECTORS: u64 = 200;
    let step = (
        any::<bool>(),
        0..SECTORS,
        1u64..40,
        proptest::collection::vec(1u32..3000, 1..6),
        any::<bool>(),
        any::<u64>(),
    );
    let mut runner = TestRunner::new(Config { cases: 24, ..Config::default() });
    runner
        .run(&(proptest::collection::vec(step, 1..30), any::<bool>()), |(steps, modern)| {
            let image = image(SECTORS);
            let mut model = fs::read(image.path()).unwrap();
            let features =
                F_FLUSH | if modern { feature::EVENT_IDX | feature::INDIRECT_DESC } else { 0 };
            let mut disk = Disk::new(image.path(), false, features);
            for (write, sector, count, pieces, high, seed) in steps {
                let count = count.min(SECTORS - sector);
                let (from, len) = (sector as usize * 512, count * 512);
                let at = if high { HIGH_START } else { BUFFERS };
                let range = from..from + len as usize;
                let buffers = cut(at, len, &pieces, !write);
                if write {
                    let data: Vec<u8> =
                        (0..len).map(|i| (seed.rotate_left((i % 64) as u32) ^ i) as u8).collect();
                    disk.guest.memory.write_slice(&data, GuestAddress(at)).unwrap();
                    prop_assert_eq!(disk.request(OUT, sector, &buffers, modern), (OK, 1));
                    model[range].copy_from_slice(&data);
                } else {
                    prop_assert_eq!(
                        disk.request(IN, sector, &buffers, modern),
                        (OK, len as u32 + 1)
                    );
                    let mut data = vec![0; len as usize];
                    disk.guest.memory.read_slice(&mut data, GuestAddress(at)).unwrap();
                    prop_assert_eq!(&data, &model[range]);
                }
            }
            prop_assert_eq!(disk.request(FLUSH, 0, &[], false), (OK, 1));
            prop_assert_eq!(fs::read(image.path()).unwrap(), model);
            Ok(())
        })
        .unwrap();
}

#[test]
fn many_requests_in_flight() {
    let image = image(64);
    let mut disk = Disk::new(image.path(), false, F_FLUSH);
    for sector in 0..40u64 {
        let header = HEADER_AT - 16 * 40 + sector * 16;
        disk.guest.memory.write_obj(IN, GuestAddress(header)).unwrap();
        disk.guest.memory.write_obj(sector, GuestAddress(header + 8)).unwrap();
        let data = from_device(BUFFERS + sector * 512, 512);
        disk.queue.add(&[to_device(header, 16), data, from_device(STATUS_AT + sector, 1)]);
    }
    disk.queue.kick();
    for _ in 0..40 {
        assert_eq!(disk.queue.wait().1, 513);
    }
    let mut data = vec![0; 40 * 512];
    disk.guest.memory.read_slice(&mut data, GuestAddress(BUFFERS)).unwrap();
    assert_eq!(data, fs::read(image.path()).unwrap()[..40 * 512]);
}

#[test]
fn requests_that_cannot_be_fail_alone() {
    let image = image(64);
    let before = fs::read(image.path()).unwrap();
    let mut disk = Disk::new(image.path(), false, F_FLUSH);
    let sector = |writable| Buffer { at: BUFFERS, len: 512, writable };
    for kind in [IN, OUT] {
        let writable = kind == IN;
        for place in [64, u64::MAX, u64::MAX / 512, 1 << 55] {
            assert_eq!(disk.request(kind, place, &[sector(writable)], false), (IOERR, 1));
        }
        let two = [sector(writable); 2];
        assert_eq!(disk.request(kind, 63, &two, false), (IOERR, 1), "over the end");
        let odd = Buffer { at: BUFFERS, len: 511, writable };
        assert_eq!(disk.request(kind, 0, &[odd], false), (IOERR, 1), "part of a sector");
        let outside = Buffer { at: LOW - 256, len: 512, writable };
        assert_eq!(disk.request(kind, 0, &[outside], false), (IOERR, 1), "over the end of memory");
        let wrapping = Buffer { at: u64::MAX - 100, len: 512, writable };
        assert_eq!(disk.request(kind, 0, &[wrapping], false), (IOERR, 1));
        let huge = Buffer { at: 0, len: MAX_REQUEST as u32 + 512, writable };
        assert_eq!(disk.request(kind, 0, &[huge], false), (IOERR, 1));
    }
    for kind in [2, 3, 11, 13, u32::MAX] {
        assert_eq!(disk.request(kind, 0, &[], false), (UNSUPP, 1), "{kind}");
    }
    assert_eq!(disk.request(IN, 0, &[], false), (OK, 1), "nothing is possible");
    assert_eq!(disk.request(IN, 0, &[sector(true)], false), (OK, 513), "it continues");
    assert_eq!(fs::read(image.path()).unwrap(), before);
}

#[test]
fn compliant_driver_is_served() {
    let image = image(MAX_REQUEST / 512);
    let mut disk = Disk::new(image.path(), true, feature::INDIRECT_DESC);
    let size_max = u32::from_le_bytes(disk.guest.read(cap::DEVICE, 8));
    let seg_max = u32::from_le_bytes(disk.guest.read(cap::DEVICE, 12));
    let buffers = vec![from_device(BUFFERS, size_max); seg_max as usize];
    let all = size_max * seg_max;
    assert_eq!(disk.request(IN, 0, &buffers, false), (OK, all + 1));
    assert_eq!(disk.request(IN, 0, &buffers, true), (OK, all + 1));
}

#[test]
fn serial_number_is_reported() {
    let image = image(1);
    let mut disk = Disk::new(image.path(), true, 0);
    assert_eq!(disk.request(GET_ID, 0, &[from_device(BUFFERS, 20)], false), (OK, 21));
    let mut id = [0xffu8; 20];
    disk.guest.memory.read_slice(&mut id, GuestAddress(BUFFERS)).unwrap();
    assert_eq!(&id, b"tofu-disk\0\0\0\0\0\0\0\0\0\0\0");
}

#[test]
fn read_only_is_read_only() {
    let image = image(8);
    let before = fs::read(image.path()).unwrap();
    let mut disk = Disk::new(image.path(), true, F_RO);
    assert_ne!(disk.guest.offered() & F_RO, 0);
    assert_eq!(disk.request(OUT, 0, &[to_device(BUFFERS, 512)], false), (IOERR, 1));
    assert_eq!(disk.request(IN, 0, &[from_device(BUFFERS, 512)], false), (OK, 513));
    assert_eq!(fs::read(image.path()).unwrap(), before);
}

#[test]
fn image_has_one_writer_or_many_readers() {
    let image = image(8);
    let reader = open(image.path(), true).unwrap();
    let another = open(image.path(), true).unwrap();
    let error = open(image.path(), false).unwrap_err().to_string();
    assert!(
        error.ends_with("in use by someone else; only read-only uses can be shared"),
        "{error}"
    );
    drop((reader, another));
    let writer = open(image.path(), false).unwrap();
    assert!(open(image.path(), false).is_err());
    let error = open(image.path(), true).unwrap_err().to_string();
    assert!(error.ends_with("in use by someone who writes to it"), "{error}");
    drop(writer);
    open(image.path(), false).unwrap();
}

#[test]
fn bad_images_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let short = folder.path().join("short");
    fs::write(&short, [0; 511]).unwrap();
    let cases = [
        (folder.path().join("none"), "No such file"),
        (folder.path().into(), "neither a file nor a block device"),
        ("/dev/null".into(), "neither a file nor a block device"),
        (short, "511 bytes are less than a sector of 512"),
    ];
    for (path, reason) in cases {
        let error = open(&path, true).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(&*path.to_string_lossy()), "{error}");
        assert!(!error.contains('\n'));
    }
}

/// An image that shrinks while it is in use fails requests, and nothing else.
#[test]
fn truncated_image_fails_the_request() {
    let image = image(64);
    let mut disk = Disk::new(image.path(), true, 0);
    image.as_file().set_len(512).unwrap();
    assert_eq!(disk.request(IN, 8, &[from_device(BUFFERS, 512)], false), (IOERR, 1));
    assert_eq!(disk.request(IN, 0, &[from_device(BUFFERS, 512)], false), (OK, 513));
}
