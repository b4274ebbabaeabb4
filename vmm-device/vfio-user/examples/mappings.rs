//! The cost of page-wise mappings: the rate of map and unmap requests, and the bandwidth of Puts
//! through such mappings, compared with one range and with adjacent pages.
//!
//! ```text
//! cargo run --release -p tofu-vfio-user --example mappings [PAGES]
//! ```
//!
//! # What it costs
//!
//! On a busy host with 2 processors (`cargo run --release -p tofu-vfio-user --example mappings`),
//! so orders of magnitude only:
//!
//! - DMA_MAP of a page, mostly the way over the socket and back: 27 to 31 us
//! - 262,144 scattered pages given up by one message; by one of all their range: 0.6 s; 11 ms
//! - 1 MiB Puts within a node through one range; if no two pages are contiguous: 3.4 GiB/s; 0.5
//!   GiB/s
//! - a Linux guest under TCG with an IOMMU, through VFIO: 8-byte Put to itself, trapped, median:
//!   9.5 us
//! - 16 MiB Puts there, 640 MiB mapped page by page: 3.0 GiB/s

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tofu_abi::table::PageSize;
use tofu_abi::{CqId, StagOffset, TniId};
use tofu_driver::{Access, Cq, CqConfig, Device, MemoryRange, Order, Target};
use tofu_icc::DmaMemory;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

#[allow(dead_code)]
#[path = "../tests/protocol/client.rs"]
mod client;
#[allow(dead_code)]
#[path = "../tests/protocol/remote.rs"]
mod remote;

use client::{Host, sealed};
use remote::Remote;

const PAGE: u64 = 4096;
/// The device's address of the pages that are measured. The driver's tables are below.
const AT: u64 = 1 << 36;
/// A Put of the measurement, in bytes.
const LEN: u32 = 1 << 20;

fn main() {
    let pages: u64 = std::env::args().nth(1).map_or(262_144, |arg| arg.parse().expect("PAGES"));
    for (name, scattered, page_wise) in [
        ("one range", false, false),
        ("pages side by side", false, true),
        ("scattered pages", true, true),
    ] {
        measure(name, pages, scattered, page_wise);
    }
}

fn measure(name: &str, pages: u64, scattered: bool, page_wise: bool) {
    let host = Host::sealed();
    let (client, thread) = host.attach(0);
    let remote = Remote::new(client);
    let file = sealed(pages * PAGE);
    // Touched before, so that no page fault is measured.
    let whole = [(
        GuestAddress(0),
        (pages * PAGE) as usize,
        Some(FileOffset::new(file.try_clone().unwrap(), 0)),
    )];
    GuestMemoryMmap::<()>::from_ranges_with_files(whole)
        .unwrap()
        .write(0, &vec![1; (pages * PAGE) as usize])
        .unwrap();
    // An odd step visits every page once, far from the one before.
    let step = if scattered { (40_503 % pages) | 1 } else { 1 };
    let start = Instant::now();
    {
        let mut client = remote.client.lock().unwrap();
        if page_wise {
            for page in 0..pages {
                let place = [page * step % pages * PAGE, AT + page * PAGE, PAGE];
                client.try_map(Some(&file), place).unwrap();
            }
        } else {
            client.try_map(Some(&file), [0, AT, pages * PAGE]).unwrap();
        }
    }
    let mapping = start.elapsed();
    let ranges = host.memories[0].mapped_ranges();

    let (cq, bandwidth) = put_all(&host, remote, pages);

    // The longest wait of a look-up while ranges are unmapped.
    let memory = Arc::clone(&host.memories[0]);
    let done = Arc::new(AtomicBool::new(false));
    let (watched, ended) = (Arc::clone(&memory), Arc::clone(&done));
    let watch = std::thread::spawn(move || {
        let mut longest = Duration::ZERO;
        while !ended.load(Relaxed) {
            let start = Instant::now();
            std::hint::black_box(watched.contains(remote::BASE, 8, tofu_icc::Access::Read));
            longest = longest.max(start.elapsed());
            std::thread::sleep(Duration::from_micros(20));
        }
        longest
    });
    let start = Instant::now();
    let unmapped = cq.device().platform().client.lock().unwrap().try_unmap(AT, pages * PAGE);
    let unmapping = start.elapsed();
    done.store(true, Relaxed);
    let longest = watch.join().unwrap();
    assert_eq!(unmapped, Ok(pages * PAGE));
    println!(
        "{name}: {ranges} ranges, mapped in {mapping:.2?} ({:.2?} each), 1 MiB Puts \
         {bandwidth:.0} MiB/s, given up in {unmapping:.2?}, \
         look-ups meanwhile {longest:.2?} at most",
        mapping / if page_wise { pages as u32 } else { 1 },
    );
    drop(cq);
    thread.join().unwrap().unwrap();
}

/// Puts within the mapped pages; returns the queue, and MiB/s.
fn put_all(host: &Host, remote: Remote, pages: u64) -> (Cq<Remote>, f64) {
    let device = Device::probe(remote).unwrap();
    device.tni(TniId::ALL[0]).enable().unwrap();
    let mut cq = Cq::open(&device, &CqConfig::new(TniId::ALL[0], CqId::ALL[0])).unwrap();
    let range = MemoryRange { addr: AT, len: pages * PAGE };
    let stag = cq.register(&[range], PageSize::Size4K, Access::ReadWrite, None).unwrap();
    let to = Target::new(host.servers[0].coords(), TniId::ALL[0]);
    let half = pages / 2 * PAGE;
    let put = |cq: &mut Cq<Remote>, from: StagOffset, to_offset: StagOffset| {
        cq.post_and_ring(&Order::put(to, to_offset, from, LEN), 0).unwrap();
        assert!(cq.wait_tcq(20_000_000_000).unwrap().is_success());
    };
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for i in 0..64 {
            let at = u64::from(LEN) * i % half;
            put(&mut cq, stag.at(at), stag.at(half + at));
        }
        best = best.min(start.elapsed());
    }
    let bandwidth = 64.0 * f64::from(LEN) / best.as_secs_f64() / f64::from(1 << 20);
    (cq, bandwidth)
}
