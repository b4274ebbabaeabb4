//! TNW: latency and bandwidth by size, by stores and by fetching, over one to three links.
//!
//! Latency is half of the round-trip time of a message from the first node to its neighbour, from
//! the send to the notification. For bandwidth, all nodes send to X+, then to X+ and Y+, then to
//! X+, Y+ and Z+ at the same time, and receive from the other sides; the result is the bytes that a
//! node sends in the time of such a round.
//!
//! `count=N`: how often each size (20); `max=N`: the longest message in bytes (65536); `pput=N`:
//! the longest one by stores (8192).
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;

use tofu_abi::Coords;
use tofu_guests::tnw::{How, Lane, leave, torus};
use tofu_guests::{
    Column, Error, Hundredths, LATENCY_COLUMNS, NodePlatform, Table, fail, find_nwp, latency_row,
    now_ns, number, option, percentile, println,
};
use tofu_tnw::{Channel, Link, Nwp};

tofu_guests::entry!(bench);

const COLUMNS: &[Column] = &[
    ("bytes", "bytes", 8),
    ("links", "links", 6),
    ("p50 us", "p50_us", 10),
    ("MiB/s", "mib_per_s", 10),
];
/// Messages of the shortest size: a packet.
const SHORTEST: usize = 128;
/// The greatest value of `max=`.
const LIMIT: u64 = 1 << 20;

/// The measurement.
struct Run {
    count: u64,
    /// The longest messages, by [`How`].
    most: [u64; 2],
    /// Results are for people.
    talks: bool,
    first: bool,
}

impl Run {
    fn sizes(&self, how: How) -> impl Iterator<Item = usize> + use<> {
        let most = self.most[how as usize] as usize;
        core::iter::successors(Some(SHORTEST), |size| Some(size * 2))
            .take_while(move |size| *size <= most)
    }

    /// A table, which the first node prints.
    fn table(
        &self,
        how: How,
        what: &str,
        program: &'static str,
        columns: &'static [Column],
    ) -> Result<Option<Table>, Error> {
        if !self.first {
            return Ok(None);
        }
        if self.talks {
            println!("{what} of {how:?}:");
        }
        Table::new(program, columns).map(Some)
    }
}

fn bench() -> Result<(), Error> {
    let (count, max, pput) =
        (number("count", 20)?, number("max", 64 << 10)?, number("pput", 8192)?);
    let allowed = SHORTEST as u64..=LIMIT;
    if count == 0 || !allowed.contains(&max) || !allowed.contains(&pput) {
        return Err(fail!("max= and pput= must be {SHORTEST} to {LIMIT}, count= at least 1"));
    }
    let nwp = find_nwp()?;
    let run = Run {
        count,
        most: [pput.min(max), max],
        talks: matches!(option("json"), None | Some("0")),
        first: nwp.coords() == Coords::default(),
    };
    // X+, Y+ and Z+ as far as they lead anywhere; messages arrive from the opposite links.
    let plus: Vec<Link> = Link::ALL.into_iter().skip(1).step_by(2).collect();
    let is_ring = |link: &Link| nwp.is_present(*link) && nwp.is_present(link.opposite());
    let plus: Vec<Link> = plus.into_iter().filter(is_ring).collect();
    let &[first_link, ..] = &plus[..] else {
        return Err(fail!("no axis of the machine is a ring of two nodes or more"));
    };
    for how in How::ALL {
        latency(&nwp, &run, how, first_link)?;
        bandwidth(&nwp, &run, how, &plus)?;
    }
    leave(&nwp);
    Ok(())
}

/// Message `number` of `size` bytes.
fn message(size: usize, number: u64) -> Vec<u8> {
    vec![(number as u8).wrapping_mul(31) ^ size.ilog2() as u8; size]
}

fn check(got: &[u8], expected: &[u8]) -> Result<(), Error> {
    if got == expected {
        return Ok(());
    }
    Err(fail!("a message of {} bytes is wrong", expected.len()))
}

fn latency(nwp: &Nwp<NodePlatform>, run: &Run, how: How, link: Link) -> Result<(), Error> {
    let neighbor = torus(nwp)?.neighbor(Coords::default(), link.port());
    let (first, link) = match nwp.coords() {
        _ if run.first => (true, link),
        at if Some(at) == neighbor => (false, link.opposite()),
        // The others look on.
        _ => return Ok(()),
    };
    let most = run.most[how as usize] as usize;
    // To the neighbour on one channel, back on another.
    let [to, back] = [Channel::ALL[6], Channel::ALL[7]];
    let [out, inward] = if first { [to, back] } else { [back, to] };
    let mut out = Lane::open(nwp, link, out, most)?;
    let mut inward = Lane::open(nwp, link, inward, most)?;
    let program =
        if how == How::Pput { "tnw-bench Pput latency" } else { "tnw-bench Nget latency" };
    let mut table = run.table(how, "latency", program, LATENCY_COLUMNS)?;
    for size in run.sizes(how) {
        let mut times = Vec::new();
        // The first one does not count, because the neighbour may not be ready for it.
        for round in 0..=run.count {
            let text = message(size, round);
            let credit = inward.credit(size)?;
            let start = now_ns();
            if first {
                let ticket = out.send(how, &text)?;
                inward.received(credit)?;
                times.push((now_ns() - start) / 2);
                out.sent(ticket)?;
            } else {
                inward.received(credit)?;
                let ticket = out.send(how, &text)?;
                out.sent(ticket)?;
            }
            check(inward.bytes(size), &text)?;
        }
        if let Some(table) = &mut table {
            times.remove(0);
            table.row(latency_row(size as u64, &mut times));
        }
    }
    if let Some(table) = table {
        table.finish();
    }
    Ok(())
}

fn bandwidth(nwp: &Nwp<NodePlatform>, run: &Run, how: How, plus: &[Link]) -> Result<(), Error> {
    let most = run.most[how as usize] as usize;
    let channel = Channel::ALL[how as usize];
    let lanes = |link: &Link| {
        let out = Lane::open(nwp, *link, channel, most)?;
        Ok((out, Lane::open(nwp, link.opposite(), channel, most)?))
    };
    let mut lanes = plus.iter().map(lanes).collect::<Result<Vec<_>, Error>>()?;
    let program =
        if how == How::Pput { "tnw-bench Pput bandwidth" } else { "tnw-bench Nget bandwidth" };
    let mut table = run.table(how, "bandwidth", program, COLUMNS)?;
    for links in 1..=lanes.len() {
        for size in run.sizes(how) {
            let mut times = Vec::new();
            for round in 0..=run.count {
                let text = message(size, round);
                let lanes = &mut lanes[..links];
                let start = now_ns();
                let mut tickets = Vec::new();
                for (_, inward) in &mut *lanes {
                    tickets.push(inward.credit(size)?);
                }
                let mut sends = Vec::new();
                for (out, _) in &mut *lanes {
                    sends.push(out.send(how, &text)?);
                }
                for (((out, inward), credit), send) in lanes.iter_mut().zip(tickets).zip(sends) {
                    inward.received(credit)?;
                    out.sent(send)?;
                }
                times.push(now_ns() - start);
                for (_, inward) in lanes {
                    check(inward.bytes(size), &text)?;
                }
            }
            times.remove(0);
            times.sort_unstable();
            let median = times[times.len() / 2];
            if let Some(table) = &mut table {
                let bytes = (links * size) as u64;
                table.row(vec![
                    Hundredths::whole(size as u64),
                    Hundredths::whole(links as u64),
                    percentile(&times, 50),
                    Hundredths::mib_per_s(bytes, median),
                ]);
            }
        }
    }
    if let Some(table) = table {
        table.finish();
    }
    Ok(())
}
