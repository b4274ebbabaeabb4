//! Node 0 pings every other node over IP. It broadcasts a message when it is done.
//!
//! `count=N` echo requests of each size to each node (20), `size=N` bytes of data of the largest
//! (what fits into one packet of the MTU). Each size is also sent once by IPv6. `tries=N` (1):
//! unanswered requests are sent again, for networks that lose some.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;

use smoltcp::socket::udp;
use smoltcp::wire::Ipv4Address;
use tofu_guests::net::{Net, Pinger};
use tofu_guests::{
    Error, LATENCY_COLUMNS, Table, fail, fill_pattern, latency_row, now_ns, number, println,
};

tofu_guests::entry!(ping);

/// The port of the broadcast.
const PORT: u16 = 7777;
const DONE: &[u8] = b"done";
/// In nanoseconds: the time limit for a node to come up; for how long a node waits for the message
/// that all is done; how long an answer may take from a node that is up; and the interval of
/// requests to a node that is not up.
const START_NS: u64 = 60_000_000_000;
const DONE_NS: u64 = 300_000_000_000;
const ANSWER_NS: u64 = 5_000_000_000;
const AGAIN_NS: u64 = 20_000_000;
/// Headers of an echo request, of IPv4 and of ICMP.
const HEADERS: usize = 28;

fn ping() -> Result<(), Error> {
    let count = number("count", 20)?;
    let mut net = Net::open()?;
    let most = usize::from(net.mtu()) - HEADERS;
    let size = number("size", most as u64)?;
    let size = usize::try_from(size).ok().filter(|size| *size <= most);
    let size = size.ok_or_else(|| fail!("size= must be {most} at most with this MTU"))?;
    let udp = net.udp_socket(PORT)?;
    if net.rank() != 0 {
        let told = net.run(DONE_NS, |net| {
            let socket = net.sockets.get_mut::<udp::Socket>(udp);
            socket.recv().is_ok_and(|(data, _)| data == DONE).then_some(())
        });
        told.ok_or_else(|| fail!("node 0 has not said that it is done"))?;
        println!("answered, and was told to stop");
        return net.close();
    }
    let mut pinger = Pinger::new(&mut net, most)?;
    let peers: Vec<u32> = net.peers().collect();
    for peer in &peers {
        let start = now_ns();
        let to = net.ipv4(*peer);
        while pinger.ping(&mut net, to, b"up?", AGAIN_NS)?.is_none() {
            if now_ns() - start > START_NS {
                return Err(fail!("{to} does not answer"));
            }
        }
    }
    let mut table = Table::new("ping", LATENCY_COLUMNS)?;
    let mut data = vec![0; size];
    fill_pattern(3, &mut data);
    let mut sizes = vec![0, 56.min(size), size];
    sizes.dedup();
    for size in sizes {
        let mut times = Vec::new();
        for _ in 0..count {
            for peer in &peers {
                let to = net.ipv4(*peer);
                times.push(once(&mut net, &mut pinger, to, &data[..size])?);
            }
        }
        table.row(latency_row(size as u64, &mut times));
    }
    for peer in &peers {
        let to = net.ipv6(*peer);
        once(&mut net, &mut pinger, to, &data[..56.min(size)])?;
    }
    table.finish();
    for _ in 0..number("tries", 1)?.max(1) {
        let socket = net.sockets.get_mut::<udp::Socket>(udp);
        socket
            .send_slice(DONE, (Ipv4Address::BROADCAST, PORT))
            .map_err(|error| fail!("the broadcast: {error}"))?;
        // One after another, so that they are not lost together.
        net.run(AGAIN_NS, |_| None::<()>);
    }
    net.close()
}

/// Sends an echo request that must be answered at the last try at the latest.
fn once(
    net: &mut Net,
    pinger: &mut Pinger,
    to: smoltcp::wire::IpAddress,
    data: &[u8],
) -> Result<u64, Error> {
    let tries = number("tries", 1)?.max(1);
    for _ in 0..tries {
        if let Some(time) = pinger.ping(net, to, data, ANSWER_NS / tries)? {
            return Ok(time);
        }
    }
    Err(fail!("{to} does not answer a request of {} bytes any more", data.len()))
}
