//! Memory that clients map, as the device sees it.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::*;
use crate::remote::BASE;
use proptest::prelude::*;
use tofu_icc::{Access, DmaMemory};
use tofu_vfio_user::{Backing, Limits};

const PAGE: u64 = 4096;

#[test]
fn memory_page_by_page_as_a_viommu_maps_it() {
    const PAGES: u64 = 20_000;
    const STRIDE: u64 = 2 * 4096;
    let host = Host::sealed();
    let (mut client, _thread) = host.attach(0);
    let file = sealed(PAGES * 4096);
    let memory = Arc::clone(&host.memories[0]);
    // Every other page, backwards.
    for page in 0..PAGES {
        let place = [(PAGES - 1 - page) * 4096, BASE + page * STRIDE, 4096];
        client.try_map(Some(&file), place).unwrap();
    }
    memory.write(BASE + STRIDE, b"second").unwrap();
    let mut bytes = [0; 6];
    let at = (PAGES - 2) * 4096;
    file.read_exact_at(&mut bytes, at).unwrap();
    assert_eq!(&bytes, b"second");
    assert!(memory.contains(BASE, 4096, Access::Update));
    assert!(!memory.contains(BASE, 4097, Access::Read), "a hole follows");
    assert!(!memory.contains(BASE - 1, 2, Access::Read));
    assert_eq!(client.try_unmap(BASE, STRIDE * (PAGES - 1)), Ok((PAGES - 1) * 4096));
    assert_eq!(memory.mapped_ranges(), 1);
    assert!(memory.write(BASE, &[1]).is_err());
    assert_eq!(client.try_unmap(0, u64::MAX), Ok(4096));
    assert_eq!(client.try_unmap(0, u64::MAX), Ok(0), "as VFIO, nothing is no error");
}

#[test]
fn ranges_that_touch_are_one_for_the_device() {
    let host = Host::sealed();
    let (mut client, _thread) = host.attach(0);
    let (a, b) = (sealed(8192), sealed(8192));
    client.try_map(Some(&a), [4096, BASE, 4096]).unwrap();
    client.try_map(Some(&b), [0, BASE + 4096, 8192]).unwrap();
    // A range without memory.
    client.try_map(None::<&std::fs::File>, [0, BASE + 12288, 4096]).unwrap();
    let memory = &host.memories[0];
    let data: Vec<u8> = (0..6000).map(|i| i as u8).collect();
    memory.write(BASE + 3000, &data).unwrap();
    let mut back = vec![0; 6000];
    memory.read(BASE + 3000, &mut back).unwrap();
    assert_eq!(back, data);
    let mut part = [0; 10];
    b.read_exact_at(&mut part, 0).unwrap();
    assert_eq!(part, data[1096..1106]);
    assert!(!memory.contains(BASE + 8192, 4097, Access::Read));
    assert_eq!(memory.mapped_ranges(), 3);
    assert_eq!(client.try_unmap(BASE, 16384), Ok(16384));
    // All at once.
    client.try_map(Some(&a), [0, BASE, 8192]).unwrap();
    let reply = client.call(DMA_UNMAP, &words(&[24, 2, 0, 0, 0, 0]));
    assert_eq!(reply, words(&[24, 2, 0, 0, 8192, 0]));
    assert_eq!(memory.mapped_ranges(), 0);
}

#[test]
fn unmapping_waits_for_transfers_in_range() {
    let host = Host::sealed();
    let (mut client, _thread) = host.attach(0);
    let file = sealed(8192);
    client.try_map(Some(&file), [0, BASE, 8192]).unwrap();
    let memory = Arc::clone(&host.memories[0]);
    let (inside, entered) = std::sync::mpsc::channel();
    let (done, end) = std::sync::mpsc::channel();
    let transfer = std::thread::spawn(move || {
        memory
            .access(BASE, 8, Access::Write, &mut |piece| {
                inside.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
                piece.copy_from(&[7u8; 8]);
                done.send(()).unwrap();
            })
            .unwrap();
    });
    entered.recv().unwrap();
    assert_eq!(client.try_unmap(BASE, 8192), Ok(8192));
    end.try_recv().expect("the answer came before the transfer's end");
    transfer.join().unwrap();
    assert!(host.memories[0].read(BASE, &mut [0]).is_err());
}

#[test]
fn limits_are_kept_and_given_back() {
    let limits = Limits { ranges: 4, files: 2, bytes: 64 << 10 };
    let host = Host::new(Backing::Sealed, limits);
    for _ in 0..2 {
        let (mut client, thread) = host.attach(0);
        let files = [sealed(16 << 10), sealed(16 << 10), sealed(16 << 10)];
        assert_eq!(client.try_map(Some(&sealed(65 << 10)), [0, BASE, 4096]), Err(ENOSPC));
        client.try_map(Some(&files[0]), [0, 0, 4096]).unwrap();
        client.try_map(Some(&files[1]), [0, 4096, 4096]).unwrap();
        assert_eq!(client.try_map(Some(&files[2]), [0, 8192, 4096]), Err(ENOSPC));
        client.try_unmap(0, 4096).unwrap();
        client.try_map(Some(&files[2]), [0, 8192, 4096]).unwrap();
        client.try_map(Some(&files[2]), [8192, 0x10000, 4096]).unwrap();
        client.try_map(Some(&files[2]), [4096, 0x20000, 4096]).unwrap();
        assert_eq!(client.try_map(Some(&files[2]), [4096, 0x30000, 4096]), Err(ENOSPC));
        drop(client);
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn adjacent_pages_are_one_range() {
    const PAGES: u64 = 1000;
    let host = Host::sealed();
    let (mut client, thread) = host.attach(0);
    let file = sealed((PAGES + 1) * PAGE);
    let memory = Arc::clone(&host.memories[0]);
    // Even ones first, then those between them.
    for page in (0..PAGES).step_by(2).chain((1..PAGES).step_by(2)) {
        client.try_map(Some(&file), [page * PAGE, BASE + page * PAGE, PAGE]).unwrap();
    }
    assert_eq!(memory.mapped_ranges(), 1);
    let mut pieces = 0;
    let whole = (PAGES * PAGE) as usize;
    memory.access(BASE, whole, Access::Read, &mut |_| pieces += 1).unwrap();
    assert_eq!(pieces, 1);
    // Adjacent, but at another place in the file or with other rights: a separate range.
    client.try_map(Some(&file), [0, BASE + PAGES * PAGE, PAGE]).unwrap();
    assert_eq!(memory.mapped_ranges(), 2);
    client.try_unmap(BASE + PAGES * PAGE, PAGE).unwrap();
    let end = [PAGES * PAGE, BASE + PAGES * PAGE, PAGE];
    client.try_map_for(READ, Some(&file), end).unwrap();
    assert_eq!(memory.mapped_ranges(), 2);
    // Removed page by page, as it was mapped.
    for page in 0..PAGES {
        let at = BASE + page * PAGE;
        assert!(memory.contains(at, 4096, Access::Update));
        assert_eq!(client.try_unmap(at, PAGE), Ok(PAGE));
        assert!(!memory.contains(at, 1, Access::Read));
    }
    assert_eq!(memory.mapped_ranges(), 1);
    assert_eq!(client.try_unmap(BASE + 1, PAGE), Err(EINVAL));
    assert_eq!(client.try_unmap(BASE, PAGE + 1), Err(EINVAL));
    drop(client);
    thread.join().unwrap().unwrap();
}

#[test]
fn cutting_keeps_within_the_range_limit() {
    let host = Host::new(Backing::Sealed, Limits { ranges: 2, ..Limits::DEFAULT });
    let (mut client, _thread) = host.attach(0);
    let file = sealed(8 * PAGE);
    client.try_map(Some(&file), [0, BASE, 8 * PAGE]).unwrap();
    assert_eq!(client.try_unmap(BASE + PAGE, PAGE), Ok(PAGE));
    assert_eq!(client.try_unmap(BASE + 3 * PAGE, PAGE), Err(ENOSPC));
    let memory = &host.memories[0];
    assert!(memory.contains(BASE + 2 * PAGE, 6 * PAGE as usize, Access::Read));
    // At the ends it may still be cut.
    assert_eq!(client.try_unmap(BASE + 2 * PAGE, PAGE), Ok(PAGE));
    assert_eq!(client.try_unmap(BASE + 7 * PAGE, 9 * PAGE), Ok(PAGE));
    assert!(memory.contains(BASE + 3 * PAGE, 4 * PAGE as usize, Access::Read));
    assert_eq!(memory.mapped_ranges(), 2);
}

#[test]
fn range_allows_only_its_mapped_access() {
    let host = Host::sealed();
    let (mut client, _thread) = host.attach(0);
    let file = sealed(3 * PAGE);
    let [in_only, out_only, both] = [BASE, BASE + PAGE, BASE + 2 * PAGE];
    client.try_map_for(READ, Some(&file), [0, in_only, PAGE]).unwrap();
    client.try_map_for(WRITE, Some(&file), [PAGE, out_only, PAGE]).unwrap();
    client.try_map(Some(&file), [2 * PAGE, both, PAGE]).unwrap();
    let memory = &host.memories[0];
    let allowed =
        |at| [Access::Read, Access::Write, Access::Update].map(|a| memory.contains(at, 8, a));
    assert_eq!(allowed(in_only), [true, false, false]);
    assert_eq!(allowed(out_only), [false, true, false]);
    assert_eq!(allowed(both), [true, true, true]);
    assert!(memory.write(in_only, &[1]).is_err());
    assert!(memory.store(in_only, 1).is_err());
    assert!(memory.load(out_only).is_err());
    memory.store(out_only, 7).unwrap();
    assert_eq!(memory.load(in_only), Ok(0));
    // An access that extends into memory with fewer rights is refused as a whole.
    assert!(memory.write(out_only + PAGE - 4, &[1; 8]).is_ok());
    assert!(memory.read(out_only + PAGE - 4, &mut [0; 8]).is_err());
    // A read-only file is enough for reading.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()));
    let read_only = File::open(path).unwrap();
    let at = BASE + 16 * PAGE;
    assert_eq!(client.try_map(Some(&read_only), [PAGE, at, PAGE]), Err(EACCES));
    client.try_map_for(READ, Some(&read_only), [PAGE, at, PAGE]).unwrap();
    assert_eq!(memory.load(at), Ok(7));
    assert!(memory.store(at, 1).is_err());
}

/// A change to a map of pages.
#[derive(Clone, Debug)]
enum Change {
    Map { page: u64, count: u64, from: u64 },
    Unmap { page: u64, count: u64 },
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        (0u64..32, 1u64..8, 0u64..24).prop_map(|(page, count, from)| Change::Map {
            page,
            count,
            from
        }),
        (0u64..32, 1u64..16).prop_map(|(page, count)| Change::Unmap { page, count }),
    ];
    proptest::collection::vec(change, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Ranges are merged and cut; each page is what was mapped there last.
    #[test]
    fn ranges_behave_as_a_table_of_pages(changes in changes()) {
        let host = Host::sealed();
        let (mut client, _thread) = host.attach(0);
        let file = sealed(32 * PAGE);
        for page in 0..32 {
            file.write_all_at(&[page as u8 + 1], page * PAGE).unwrap();
        }
        let mut model = [None::<u64>; 48];
        for change in changes {
            match change {
                Change::Map { page, count, from } => {
                    let pages = page as usize..(page + count) as usize;
                    let taken = model[pages].iter().any(Option::is_some);
                    let place = [from * PAGE, BASE + page * PAGE, count * PAGE];
                    let expected = if taken { Err(EEXIST) } else { Ok(()) };
                    prop_assert_eq!(client.try_map(Some(&file), place), expected);
                    if !taken {
                        (0..count).for_each(|i| model[(page + i) as usize] = Some(from + i));
                    }
                }
                Change::Unmap { page, count } => {
                    let part = &mut model[page as usize..(page + count) as usize];
                    let mapped = part.iter().flatten().count() as u64;
                    part.fill(None);
                    let unmapped = client.try_unmap(BASE + page * PAGE, count * PAGE);
                    prop_assert_eq!(unmapped, Ok(mapped * PAGE));
                }
            }
        }
        let memory = &host.memories[0];
        for (page, expected) in (0..).zip(model) {
            let mut byte = [0];
            let found = memory.read(BASE + page * PAGE, &mut byte).is_ok().then_some(byte[0]);
            prop_assert_eq!(found, expected.map(|place| place as u8 + 1));
        }
        // No two ranges could be one.
        let goes_on = |pair: &[Option<u64>]| match pair {
            [None, Some(_)] => false,
            [Some(a), Some(b)] => a + 1 == *b,
            _ => true,
        };
        let starts = model.windows(2).filter(|pair| !goes_on(pair)).count();
        let first = usize::from(model[0].is_some());
        prop_assert_eq!(memory.mapped_ranges(), starts + first);
    }
}
