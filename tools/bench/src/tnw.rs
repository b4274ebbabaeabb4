//! Messages of TNW between two devices of this process, compared with Puts of Tofu and copies of
//! the same size.

use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;
use tofu_abi::desc::MAX_MESSAGE;
use tofu_driver::{DmaBuffer, Platform};
use tofu_inproc::{Buffer, InProcess, Pair, nwp_pair};
use tofu_tnw::{Channel, Link, Status, Stream};

use crate::figures::quantiles;

/// Sizes of messages sent by stores, and of messages that the device fetches, in bytes.
const BY_STORES: [usize; 3] = [128, 1 << 10, 8 << 10];
const FETCHED: [usize; 5] = [128, 8 << 10, 64 << 10, 1 << 20, 8 << 20];
const LONGEST: usize = 8 << 20;
/// Memory of each node, in bytes.
const MEMORY: usize = 64 << 20;
const SECOND: u64 = 1_000_000_000;

/// A message of TNW, from before its credit to its notification, compared with a Put, from its post
/// to its completion, and with a memory copy.
#[derive(Debug, Serialize)]
pub(crate) struct Message {
    /// `pput` or `nget`.
    how: &'static str,
    bytes: usize,
    p50_ns: u64,
    p99_ns: u64,
    put_p50_ns: u64,
    put_p99_ns: u64,
    memcpy_p50_ns: u64,
    memcpy_p99_ns: u64,
    /// Time of the message divided by that of the Put.
    of_put: f64,
    /// Throughput of the message divided by that of the copy.
    of_copy: f64,
}

/// Two nodes of TNW, two of Tofu, and buffers for copies. The calling thread runs all devices.
struct Bench<'a> {
    near: Stream<'a, InProcess>,
    far: Stream<'a, InProcess>,
    from: Buffer,
    to: Buffer,
    pair: Pair,
    source: Vec<u8>,
    sink: Vec<u8>,
}

impl Bench<'_> {
    /// Sends a message, including its credit.
    fn send(&mut self, bytes: usize, stores: bool) -> anyhow::Result<()> {
        let credit = self.far.credit(&self.to, 0, bytes)?;
        let nget = match stores {
            true => {
                self.near.send(&self.source[..bytes], SECOND)?;
                None
            }
            false => Some(self.near.send_from(&self.from, 0, bytes)?),
        };
        for (stream, ticket) in [(&mut self.far, Some(credit)), (&mut self.near, nget)] {
            let Some(ticket) = ticket else { continue };
            match stream.wait(ticket, SECOND) {
                Ok(outcome) if outcome.status == Status::Ok => {}
                outcome => bail!("a message of {bytes} bytes: {outcome:?}"),
            }
        }
        Ok(())
    }

    /// Measures all three in turn, so that they see the same load of the host.
    fn measure(&mut self, bytes: usize, stores: bool, time: Duration) -> anyhow::Result<Message> {
        // A batch is long enough to make the cost of reading the clock small.
        let batch = (4000 / (200 + bytes / 20)).max(1);
        // The longest message of TNW is a byte longer than that of Tofu.
        let put = self.pair.put((bytes as u32).min(MAX_MESSAGE));
        let mut times: [Vec<u64>; 3] = Default::default();
        let each = |start: Instant| start.elapsed().as_nanos() as u64 / batch as u64;
        let end = Instant::now() + time;
        while Instant::now() < end || times[0].len() < 10 {
            let start = Instant::now();
            for _ in 0..batch {
                self.send(bytes, stores)?;
            }
            times[0].push(each(start));
            let start = Instant::now();
            for _ in 0..batch {
                self.pair.run(&put)?;
            }
            times[1].push(each(start));
            let start = Instant::now();
            for _ in 0..batch {
                black_box(&mut self.sink)[..bytes]
                    .copy_from_slice(&black_box(&self.source)[..bytes]);
            }
            times[2].push(each(start));
        }
        let [message, put, copy] = times.map(|mut times| quantiles(&mut times));
        Ok(Message {
            how: if stores { "pput" } else { "nget" },
            bytes,
            p50_ns: message[0],
            p99_ns: message[1],
            put_p50_ns: put[0],
            put_p99_ns: put[1],
            memcpy_p50_ns: copy[0],
            memcpy_p99_ns: copy[1],
            of_put: message[0] as f64 / put[0].max(1) as f64,
            of_copy: copy[0] as f64 / message[0].max(1) as f64,
        })
    }
}

/// Measures messages of all sizes, for `time` each.
pub(crate) fn measure(
    time: Duration,
    say: &mut dyn FnMut(&dyn fmt::Display) -> std::io::Result<()>,
) -> anyhow::Result<Vec<Message>> {
    let [near, far] = nwp_pair(MEMORY)?;
    let (channel, neighbour) = (Channel::ALL[0], "two nodes are neighbours");
    let mut bench = Bench {
        near: near.open(Link::ALL[1], channel).context(neighbour)?,
        far: far.open(Link::ALL[0], channel).context(neighbour)?,
        from: near.platform().alloc_dma(LONGEST, 2 << 20)?,
        to: far.platform().alloc_dma(LONGEST, 2 << 20)?,
        pair: Pair::new()?,
        source: vec![1; LONGEST],
        sink: vec![2; LONGEST],
    };
    // Touched before the measurement, like the Puts' buffers.
    bench.from.write(0, &bench.source);
    bench.to.write(0, &bench.source);
    say(&Message::header())?;
    let all = BY_STORES.map(|bytes| (bytes, true)).into_iter();
    let all = all.chain(FETCHED.map(|bytes| (bytes, false)));
    let measure = |(bytes, stores)| {
        let message = bench.measure(bytes, stores, time)?;
        say(&message)?;
        Ok(message)
    };
    all.map(measure).collect()
}

impl Message {
    fn header() -> String {
        format!(
            "{:>6} {:>9} {:>10} {:>10} {:>10} {:>10} {:>11} {:>11} {:>7} {:>8}",
            "",
            "bytes",
            "p50 us",
            "p99 us",
            "Put p50",
            "Put p99",
            "copy p50",
            "copy p99",
            "/ Put",
            "of copy"
        )
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / 1000.0;
        write!(
            f,
            "{:>6} {:>9} {:>10.3} {:>10.3} {:>10.3} {:>10.3} {:>11.3} {:>11.3} {:>7.2} {:>8.2}",
            self.how,
            self.bytes,
            us(self.p50_ns),
            us(self.p99_ns),
            us(self.put_p50_ns),
            us(self.put_p99_ns),
            us(self.memcpy_p50_ns),
            us(self.memcpy_p99_ns),
            self.of_put,
            self.of_copy
        )
    }
}
