//! Throughput of Puts by size, from node 0 to another node.
//!
//! `peer=N` is the other node (the last one), `bytes=N` the bytes to move for each size (64 MiB),
//! `max=N` the largest size in bytes (1 MiB). The other nodes only wait.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec;

use tofu_driver::{DmaBuffer, Order};
use tofu_guests::{Comm, Error, Hundredths, Table, fail, fill_pattern, now_ns, number};

tofu_guests::entry!(stream);

/// Messages for each size at most, so that small ones do not take for ever.
const MAX_COUNT: u64 = 20_000;

fn stream() -> Result<(), Error> {
    let max = number("max", 1 << 20)?;
    let bytes = number("bytes", 64 << 20)?;
    if !(8..=4 << 20).contains(&max) {
        return Err(fail!("max= must be 8 to {}", 4 << 20));
    }
    let mut comm = Comm::open(|_| 2 * max as usize)?;
    let peer = number("peer", u64::from(comm.nodes()) - 1)?;
    if peer == 0 || peer >= comm.nodes().into() {
        return Err(fail!("peer={peer} is not another node"));
    }
    let peer = peer as u32;
    let mut expected = vec![0; max as usize];
    fill_pattern(7, &mut expected);
    comm.data().write(max as usize, &expected);
    comm.barrier()?;
    if comm.rank() == 0 {
        let columns = &[
            ("bytes", "bytes", 8),
            ("messages", "messages", 8),
            ("MiB/s", "mib_s", 10),
            ("1000/s", "kilo_s", 10),
        ];
        let mut table = Table::new("stream", columns)?;
        let to = comm.target(peer);
        let mut size = 8;
        loop {
            let count = (bytes / size).clamp(1, MAX_COUNT);
            let order = Order::put(to, comm.at(0), comm.at(max), size as u32);
            let start = now_ns();
            comm.run_all((0..count).map(|_| order))?;
            let ns = (now_ns() - start).max(1);
            table.row(vec![
                Hundredths::whole(size),
                Hundredths::whole(count),
                Hundredths::mib_per_s(count * size, ns),
                Hundredths::thousands_per_s(count, ns),
            ]);
            if size == max {
                break;
            }
            size = (size * 8).min(max);
        }
        table.finish();
    }
    // The last and longest message is there when node 0 comes here.
    comm.barrier()?;
    if comm.rank() == peer {
        let mut found = vec![0; max as usize];
        comm.data().read(0, &mut found);
        if found != expected {
            return Err(fail!("the data that arrived is wrong"));
        }
    }
    comm.barrier()
}
