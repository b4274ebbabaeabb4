//! Guests that keep each other's pace by pages.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use tofu_pace::LONGEST_STEP;
use tofu_pace::pages::{MOST_GUESTS, Next, Outlook, Page, Pages};

const INSTRUCTION: u64 = 500;
const AHEAD: u64 = 282_000;
const FREE: Outlook = Outlook { limit: u64::MAX, ahead: AHEAD, acts: 0 };

fn pages(guests: usize, outlooks: &[Outlook]) -> (Pages, Vec<Page>) {
    let pages = Pages::new(guests, INSTRUCTION, 0).unwrap();
    pages.tell(outlooks.iter().copied());
    let own = |guest: usize| {
        pages.begin(guest, 0, 0);
        let files = pages.files(guest).into_iter().map(|file| file.try_clone_to_owned().unwrap());
        Page::map(guest, files.collect()).unwrap()
    };
    let mapped = (0..guests).map(own).collect();
    (pages, mapped)
}

const fn there() -> io::Result<()> {
    Ok(())
}

#[test]
fn guest_runs_until_another_could_have_an_effect() {
    let (_pages, mut guests) = pages(2, &[FREE; 2]);
    assert_eq!(guests[0].next(0, 0, there).unwrap(), Next::Run(AHEAD / INSTRUCTION));
    guests[1].reach(400);
    let until = (400 * INSTRUCTION + AHEAD) / INSTRUCTION;
    assert_eq!(guests[0].next(500, 500, there).unwrap(), Next::Run(until));
}

#[test]
fn guest_asks_where_something_happens() {
    let limited = Outlook { limit: 100_250, ..FREE };
    let (pages, mut guests) = pages(2, &[limited, FREE]);
    assert_eq!(guests[0].next(0, 0, there).unwrap(), Next::Run(200));
    guests[0].reach(200);
    assert_eq!(guests[0].next(200, 200, there).unwrap(), Next::Ask);
    pages.tell([FREE; 2].into_iter());
    assert_eq!(guests[0].next(200, 200, there).unwrap(), Next::Run(AHEAD / INSTRUCTION));
}

#[test]
fn guest_alone_makes_its_longest_step() {
    let (_pages, guests) = pages(1, &[FREE]);
    assert_eq!(guests[0].next(7, 7, there).unwrap(), Next::Run(7 + LONGEST_STEP));
}

#[test]
fn guest_that_waits_is_woken_by_another_or_by_the_machine() {
    for by_machine in [false, true] {
        let (pages, mut guests) = pages(2, &[FREE; 2]);
        let mut second = guests.pop().unwrap();
        thread::scope(|s| {
            let first = &guests[0];
            let waits = s.spawn(move || {
                first.next(AHEAD / INSTRUCTION, AHEAD / INSTRUCTION, there).unwrap()
            });
            thread::sleep(Duration::from_millis(20));
            assert!(!waits.is_finished());
            match by_machine {
                false => _ = second.reach(1000),
                true => pages.tell([FREE, Outlook { acts: 782_000, ..FREE }].into_iter()),
            }
            assert_eq!(waits.join().unwrap(), Next::Run(782_000 / INSTRUCTION));
        });
        let (steps, waited) = pages.steps(0);
        assert!(steps == 1 && waited > 10_000_000, "{steps} {waited}");
    }
}

#[test]
fn guest_that_waits_ends_with_the_machine() {
    let (_pages, guests) = pages(2, &[FREE; 2]);
    let gone = || Err(io::ErrorKind::UnexpectedEof.into());
    assert!(guests[0].next(AHEAD / INSTRUCTION, AHEAD / INSTRUCTION, gone).is_err());
}

#[test]
fn quantum_lets_guests_go_further() {
    let pages = Pages::new(2, INSTRUCTION, 1_000_000).unwrap();
    pages.tell([FREE; 2].into_iter());
    let files = pages.files(0).into_iter().map(|file| file.try_clone_to_owned().unwrap());
    let guest = Page::map(0, files.collect()).unwrap();
    let at = AHEAD / INSTRUCTION;
    assert_eq!(guest.next(at, at, there).unwrap(), Next::Run(at + 1_000_000 / INSTRUCTION));
}

#[test]
fn machine_hears_once_of_a_time() {
    let (pages, mut guests) = pages(1, &[FREE]);
    pages.report_at(100 * INSTRUCTION);
    let heard: Vec<_> = [99, 100, 101, 300].into_iter().map(|ns| guests[0].reach(ns)).collect();
    assert_eq!(heard, [false, true, false, false]);
    pages.report_at(400 * INSTRUCTION);
    assert_eq!((guests[0].reach(399), guests[0].reach(500)), (false, true));
    assert_eq!(pages.reached(0), 500 * INSTRUCTION);
}

#[test]
fn plugin_can_write_no_page_but_its_own_and_cut_none() {
    let (pages, _guests) = pages(3, &[FREE; 3]);
    let writes = |file: OwnedFd| File::from(file).write(&[1]).is_ok();
    let files = pages.files(1);
    assert_eq!(files.len(), 4);
    for (place, file) in (0..).zip(files) {
        assert!(File::from(file.try_clone_to_owned().unwrap()).set_len(8).is_err());
        assert_eq!(writes(file.try_clone_to_owned().unwrap()), place == 2, "{place}");
    }
}

#[test]
fn files_that_are_no_pages_are_refused() {
    assert!(Page::map(0, Vec::new()).is_err());
    let (pages, _guests) = pages(1, &[FREE]);
    let machine = || pages.files(0)[0].try_clone_to_owned().unwrap();
    assert!(Page::map(0, vec![machine()]).is_err());
    assert!(Page::map(1, vec![machine(), machine()]).is_err());
    let short =
        File::from(rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::empty()).unwrap());
    assert!(Page::map(0, vec![machine(), short.into()]).is_err());
    assert!(Pages::new(MOST_GUESTS + 1, INSTRUCTION, 0).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// No guest gets further than the slowest allows, and all reach the end, with any steps in
    /// between and at any times of the host.
    #[test]
    fn guests_stay_together(
        seeds in prop::collection::vec(any::<u32>(), 2..6),
        ahead in 2_000..400_000u64,
    ) {
        const END: u64 = 20_000;
        let outlooks = vec![Outlook { ahead, ..FREE }; seeds.len()];
        let (_pages, guests) = pages(seeds.len(), &outlooks);
        let at: Vec<_> = seeds.iter().map(|_| AtomicU64::new(0)).collect();
        thread::scope(|s| {
            for (number, (mut guest, seed)) in guests.into_iter().zip(seeds).enumerate() {
                let at = &at;
                s.spawn(move || {
                    let mut random = u64::from(seed);
                    let mut ns = 0;
                    while ns < END {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        at[number].store(ns * INSTRUCTION, SeqCst);
                        guest.reach(ns);
                        let end = ns + (random >> 40) % (2 * ahead / INSTRUCTION);
                        let Next::Run(until) = guest.next(ns, end, there).unwrap() else {
                            panic!("nothing happens")
                        };
                        // A block that ends within the look-ahead runs.
                        assert!(until >= end || end > ns + ahead / INSTRUCTION);
                        for other in at.iter().enumerate().filter(|(other, _)| *other != number) {
                            let other = other.1.load(SeqCst);
                            assert!(until * INSTRUCTION <= other.saturating_add(ahead));
                        }
                        // It may stop before, as for an access.
                        ns += ((random >> 33) % (until - ns)).max(1);
                        if random >> 62 == 0 {
                            thread::yield_now();
                        }
                    }
                    at[number].store(u64::MAX, SeqCst);
                    guest.reach(u64::MAX);
                });
            }
        });
    }
}
