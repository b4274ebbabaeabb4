//! TCP between node 0 and another one: throughput in both directions, and latency.
//!
//! `peer=N` is the other node (the last one), `bytes=N` what to move each way (8 MiB), `count=N`
//! the round trips of one byte (200). The other nodes have nothing to do.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;
use tofu_guests::net::Net;
use tofu_guests::{Error, Hundredths, Table, fail, now_ns, number, percentile, println};

tofu_guests::entry!(tcpbench);

const PORT: u16 = 5201;
/// The time limit for the other node to come up, and the longest time in which nothing may arrive,
/// in nanoseconds.
const START_NS: u64 = 60_000_000_000;
const QUIET_NS: u64 = 20_000_000_000;
/// Bytes that are made or checked at a time.
const CHUNK: usize = 16 << 10;

fn tcpbench() -> Result<(), Error> {
    let bytes = number("bytes", 8 << 20)?;
    let count = number("count", 200)?;
    let mut net = Net::open()?;
    let last = u64::from(net.nodes()) - 1;
    let peer = number("peer", last)?;
    if peer == 0 || peer > last {
        return Err(fail!("peer={peer} is not another node"));
    }
    let peer = peer as u32;
    if net.rank() == 0 {
        let socket = net.connect(peer, PORT, START_NS, |_| ())?;
        client(&mut net, socket, bytes, count)?;
    } else if net.rank() == peer {
        let socket = net.tcp_socket();
        net.sockets
            .get_mut::<tcp::Socket>(socket)
            .listen(PORT)
            .map_err(|error| fail!("TCP port {PORT}: {error}"))?;
        let open = net
            .run(START_NS, |net| net.sockets.get::<tcp::Socket>(socket).may_recv().then_some(()));
        open.ok_or_else(|| fail!("node 0 does not connect"))?;
        receive(&mut net, socket, bytes)?;
        send(&mut net, socket, bytes)?;
        echo(&mut net, socket, count)?;
        finish(&mut net, socket)?;
        println!("received and sent {bytes} bytes");
    }
    net.close()
}

fn client(net: &mut Net, socket: SocketHandle, bytes: u64, count: u64) -> Result<(), Error> {
    let columns = &[
        ("MiB/s out", "out_mib_s", 10),
        ("MiB/s in", "in_mib_s", 10),
        ("p50 us", "p50_us", 10),
        ("p99 us", "p99_us", 10),
    ];
    let mut table = Table::new("tcpbench", columns)?;
    let start = now_ns();
    send(net, socket, bytes)?;
    // The other side's first byte confirms that it has received everything.
    let first = net.run(QUIET_NS, |net| {
        let socket = net.sockets.get::<tcp::Socket>(socket);
        (socket.can_recv() || bytes == 0).then_some(())
    });
    first.ok_or_else(|| fail!("nothing comes back"))?;
    let turn = now_ns();
    receive(net, socket, bytes)?;
    let end = now_ns();
    let mut times = Vec::with_capacity(count as usize);
    for n in 0..count {
        let start = now_ns();
        put(net, socket, &[n as u8])?;
        let mut back = [0];
        get(net, socket, &mut back)?;
        if back != [n as u8] {
            return Err(fail!("another byte came back than was sent"));
        }
        times.push(now_ns() - start);
    }
    times.sort_unstable();
    table.row(vec![
        Hundredths::mib_per_s(bytes, turn - start),
        Hundredths::mib_per_s(bytes, end - turn),
        percentile(&times, 50),
        percentile(&times, 99),
    ]);
    table.finish();
    finish(net, socket)
}

/// Data that differs between places in the stream.
fn fill(position: u64, chunk: &mut [u8]) {
    for (n, byte) in chunk.iter_mut().enumerate() {
        let at = position + n as u64;
        *byte = (at ^ at >> 8 ^ at >> 16) as u8;
    }
}

fn send(net: &mut Net, socket: SocketHandle, bytes: u64) -> Result<(), Error> {
    let mut chunk = vec![0; CHUNK];
    let mut sent = 0;
    while sent < bytes {
        let n = (bytes - sent).min(CHUNK as u64) as usize;
        fill(sent, &mut chunk[..n]);
        put(net, socket, &chunk[..n])?;
        sent += n as u64;
    }
    Ok(())
}

fn receive(net: &mut Net, socket: SocketHandle, bytes: u64) -> Result<(), Error> {
    let (mut chunk, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut received = 0;
    while received < bytes {
        let n = (bytes - received).min(CHUNK as u64) as usize;
        get(net, socket, &mut chunk[..n])?;
        fill(received, &mut expected[..n]);
        if chunk[..n] != expected[..n] {
            return Err(fail!("wrong data within {n} bytes from {received}"));
        }
        received += n as u64;
    }
    Ok(())
}

fn echo(net: &mut Net, socket: SocketHandle, count: u64) -> Result<(), Error> {
    for _ in 0..count {
        let mut byte = [0];
        get(net, socket, &mut byte)?;
        put(net, socket, &byte)?;
    }
    Ok(())
}

fn put(net: &mut Net, handle: SocketHandle, data: &[u8]) -> Result<(), Error> {
    let mut done = 0;
    while done < data.len() {
        let n = net.run(QUIET_NS, |net| {
            let socket = net.sockets.get_mut::<tcp::Socket>(handle);
            match socket.send_slice(&data[done..]) {
                Ok(0) => None,
                Ok(n) => Some(Ok(n)),
                Err(error) => Some(Err(fail!("sending: {error}"))),
            }
        });
        done += n.ok_or_else(|| fail!("the other node takes nothing any more"))??;
    }
    Ok(())
}

fn get(net: &mut Net, handle: SocketHandle, data: &mut [u8]) -> Result<(), Error> {
    let mut done = 0;
    while done < data.len() {
        let n = net.run(QUIET_NS, |net| {
            let socket = net.sockets.get_mut::<tcp::Socket>(handle);
            match socket.recv_slice(&mut data[done..]) {
                Ok(0) => None,
                Ok(n) => Some(Ok(n)),
                Err(error) => Some(Err(fail!("receiving: {error}"))),
            }
        });
        done += n.ok_or_else(|| fail!("nothing arrives any more"))??;
    }
    Ok(())
}

/// Closes the connection, and waits until the other side has closed it, too.
fn finish(net: &mut Net, handle: SocketHandle) -> Result<(), Error> {
    net.sockets.get_mut::<tcp::Socket>(handle).close();
    let closed = net.run(QUIET_NS, |net| {
        let state = net.sockets.get::<tcp::Socket>(handle).state();
        matches!(state, tcp::State::Closed | tcp::State::TimeWait).then_some(())
    });
    // The other side has closed as well, and has gone if the acknowledgement of our end and its
    // repetitions were lost.
    let state = net.sockets.get::<tcp::Socket>(handle).state();
    let alone = matches!(state, tcp::State::LastAck | tcp::State::Closing);
    closed.or(alone.then_some(())).ok_or_else(|| fail!("the connection does not end: {state}"))
}
