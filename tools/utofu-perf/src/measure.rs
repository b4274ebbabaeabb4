//! The measurements.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::api::{self, LOCAL_NOTICE, Peer, REMOTE_NOTICE, STRONG_ORDER, TCQ_NOTICE, Vcq};

/// Bytes of memory on each side: one half is written by Puts, the other by Gets.
pub(crate) const MEMORY: usize = 32 << 20;
/// Largest message.
pub(crate) const MAX_SIZE: usize = (1 << 24) - 1;
/// Commands in flight on each interface.
pub(crate) const WINDOW: usize = 32;
/// The time limit for the other side to get ready, and to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks that find nothing after which others may have the processor.
const LOOKS: u32 = 256;

/// The purpose of a message.
const ECHO: u64 = 1;
const ANSWER: u64 = 2;
const END: u64 = 3;
const HELLO: u64 = 4;

/// One side of the connection.
pub(crate) struct Side {
    vcqs: Vec<Vcq>,
    peers: Vec<Peer>,
}

/// A measured value.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The result of a measurement.
    pub(crate) test: &'static str,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// Interfaces in use; 0 for baselines.
    pub(crate) tnis: usize,
    /// Messages.
    pub(crate) messages: u64,
    /// Median, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    /// 99th percentile, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
    /// Bytes per second, in units of 10^6; of both directions together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mb_per_s: Option<f64>,
    /// Messages per second, in units of 10^6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) million_per_s: Option<f64>,
}

impl Row {
    pub(crate) const fn new(test: &'static str, size: usize, tnis: usize, messages: u64) -> Self {
        let none = None;
        Self {
            test,
            size,
            tnis,
            messages,
            p50_us: none,
            p99_us: none,
            mb_per_s: none,
            million_per_s: none,
        }
    }

    /// Adds the quantiles of a histogram with `per_us` units per microsecond.
    pub(crate) fn times(mut self, histogram: &Histogram<u64>, per_us: f64) -> Self {
        let us = |quantile| Some(histogram.value_at_quantile(quantile) as f64 / per_us);
        self.p50_us = us(0.5);
        self.p99_us = us(0.99);
        self
    }
}

impl Side {
    /// VCQs with memory on the interfaces, whose peers are on the node at `coords`.
    pub(crate) fn new(coords: [u8; 6], tnis: u16) -> Result<Self> {
        let memory = api::memory(MEMORY);
        let vcqs = (0..tnis).map(|tni| Vcq::new(tni, memory, MEMORY)).collect::<Result<_>>()?;
        let peers = (0..tnis).map(|tni| Peer::new(coords, tni)).collect::<Result<_>>()?;
        Ok(Self { vcqs, peers })
    }

    /// Waits until the other side has all its VCQs. The measuring side does so: when it greets, its
    /// own VCQs are there, and its next message belongs to [`Side::serve`].
    pub(crate) fn greet(&self) -> Result<()> {
        let start = Instant::now();
        let flags = TCQ_NOTICE | LOCAL_NOTICE | REMOTE_NOTICE;
        for (vcq, &peer) in self.vcqs.iter().zip(&self.peers) {
            loop {
                // A Put to a side that is not ready is dropped, which the local notice reports.
                vcq.put8(peer, HELLO, flags)?;
                complete(vcq)?;
                match wait("notice of a greeting", || vcq.poll_own_notice()) {
                    Ok(()) => break,
                    Err(error) if start.elapsed() > PATIENCE => {
                        return Err(error.context("the other side does not get ready"));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(10)),
                }
            }
        }
        Ok(())
    }

    /// Answers the other side, which greets first, until it says that it is done.
    pub(crate) fn serve(&self) -> Result<()> {
        let (vcq, peer) = (&self.vcqs[0], self.peers[0]);
        let mut message = wait("greeting of the other side", || vcq.poll_mrq())?;
        loop {
            let (edata, end) = message;
            match edata {
                // The answer is as long as the message.
                ECHO => send(vcq, peer, (end - vcq.memory) as usize, ANSWER)?,
                END => return Ok(()),
                _ => {}
            }
            message = loop {
                match vcq.poll_mrq()? {
                    Some(message) => break message,
                    None => thread::yield_now(),
                }
            };
        }
    }

    /// Ends the other side's [`Side::serve`].
    pub(crate) fn end(&self) -> Result<()> {
        let (vcq, peer) = (&self.vcqs[0], self.peers[0]);
        vcq.put8(peer, END, TCQ_NOTICE | REMOTE_NOTICE)?;
        complete(vcq)
    }

    /// One-way time of a message: half of the time for a message and its answer, each reported by a
    /// notice.
    pub(crate) fn latency(&self, size: usize, time: Duration) -> Result<Row> {
        let (vcq, peer) = (&self.vcqs[0], self.peers[0]);
        let mut histogram = Histogram::new(3)?;
        let (warm, end) = (Instant::now() + time / 10, Instant::now() + time);
        let mut messages = 0;
        loop {
            let start = Instant::now();
            send(vcq, peer, size, ECHO)?;
            let answer = || Ok(vcq.poll_mrq()?.filter(|(edata, _)| *edata == ANSWER));
            wait("answer to a message", answer).with_context(|| after(messages))?;
            let now = Instant::now();
            if now > warm {
                histogram.record((now - start).as_nanos() as u64 / 2)?;
                messages += 1;
            }
            if now > end && messages > 0 {
                break;
            }
        }
        Ok(Row::new("latency", size, 1, messages).times(&histogram, 1000.0))
    }

    /// Time until a Put (`get` false) or Get is complete.
    pub(crate) fn completion(&self, size: usize, get: bool, time: Duration) -> Result<Row> {
        let (vcq, peer) = (&self.vcqs[0], self.peers[0]);
        let mut histogram = Histogram::new(3)?;
        let end = Instant::now() + time;
        let mut messages = 0;
        while messages == 0 || Instant::now() < end {
            let start = Instant::now();
            if get {
                vcq.get(peer, size, MEMORY as u64 / 2, TCQ_NOTICE)?;
            } else {
                vcq.put(peer, size, 0, TCQ_NOTICE)?;
            }
            complete(vcq).with_context(|| after(messages))?;
            histogram.record(start.elapsed().as_nanos() as u64)?;
            messages += 1;
        }
        let test = if get { "get" } else { "put" };
        Ok(Row::new(test, size, 1, messages).times(&histogram, 1000.0))
    }

    /// Bytes per second with many messages in flight on some interfaces, one way or both.
    pub(crate) fn bandwidth(
        &self,
        size: usize,
        tnis: usize,
        both: bool,
        time: Duration,
    ) -> Result<Row> {
        let (messages, rate) = self.stream(tnis, time, |vcq, peer, turn| {
            if both && turn % 2 == 1 {
                vcq.get(peer, size, MEMORY as u64 / 2, TCQ_NOTICE)
            } else {
                vcq.put(peer, size, 0, TCQ_NOTICE)
            }
        })?;
        let test = if both { "bidirectional" } else { "bandwidth" };
        let mut row = Row::new(test, size, tnis, messages);
        row.mb_per_s = Some(rate * size as f64 / 1e6);
        Ok(row)
    }

    /// Messages of 8 bytes per second.
    pub(crate) fn rate(&self, tnis: usize, time: Duration) -> Result<Row> {
        let (messages, rate) =
            self.stream(tnis, time, |vcq, peer, _| vcq.put8(peer, 0, TCQ_NOTICE))?;
        let mut row = Row::new("rate", 8, tnis, messages);
        row.million_per_s = Some(rate / 1e6);
        Ok(row)
    }

    /// Keeps messages in flight for some time, and waits for the last ones. Returns how many there
    /// were, and how many ended per second.
    fn stream(
        &self,
        tnis: usize,
        time: Duration,
        mut post: impl FnMut(&Vcq, Peer, u64) -> Result<bool>,
    ) -> Result<(u64, f64)> {
        let mut under_way = vec![0; tnis];
        let mut posted = 0;
        let mut rate = Rate::new();
        let start = Instant::now();
        while posted == 0 || start.elapsed() < time {
            for (tni, count) in under_way.iter_mut().enumerate() {
                let (vcq, peer) = (&self.vcqs[tni], self.peers[tni]);
                while *count < WINDOW && post(vcq, peer, posted)? {
                    *count += 1;
                    posted += 1;
                }
                while vcq.poll_tcq()? {
                    *count -= 1;
                    rate.ended();
                }
            }
            rate.tick();
        }
        let mut left: VecDeque<usize> = (0..tnis).collect();
        while let Some(tni) = left.pop_front() {
            if under_way[tni] > 0 {
                let on = || format!("on TNI {tni}, {} of {posted} in flight", under_way[tni]);
                complete(&self.vcqs[tni]).with_context(on)?;
                under_way[tni] -= 1;
                rate.ended();
                left.push_back(tni);
            }
        }
        Ok((posted, rate.median()))
    }
}

/// The number of messages that end in a second: the median of short slices of time, because on a
/// busy host other processes take the processor for a while.
pub(crate) struct Rate {
    start: Instant,
    ended: u64,
    slices: Vec<f64>,
    /// The completions up to the last tick, and the ticks since something new has completed.
    seen: u64,
    looks: u32,
}

impl Rate {
    /// A slice is at least this long.
    const SLICE: Duration = Duration::from_millis(2);

    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), ended: 0, slices: Vec::new(), seen: 0, looks: 0 }
    }

    /// A message has ended.
    pub(crate) const fn ended(&mut self) {
        self.ended += 1;
    }

    /// To be called when everything that has ended was counted. Yields the processor if nothing has
    /// ended: on a busy host the device's thread may be waiting for it.
    pub(crate) fn tick(&mut self) {
        self.looks = if self.ended == self.seen { self.looks + 1 } else { 0 };
        self.seen = self.ended;
        if self.looks >= LOOKS {
            self.looks = 0;
            thread::yield_now();
        }
        let took = self.start.elapsed();
        if took >= Self::SLICE && self.ended > 0 {
            self.slices.push(self.ended as f64 / took.as_secs_f64());
            (self.start, self.ended, self.seen) = (Instant::now(), 0, 0);
        }
    }

    pub(crate) fn median(mut self) -> f64 {
        if self.slices.is_empty() {
            self.slices.push(self.ended as f64 / self.start.elapsed().as_secs_f64());
        }
        self.slices.sort_by(f64::total_cmp);
        self.slices[self.slices.len() / 2]
    }
}

/// Sends a message, in the command itself if it fits.
fn send(vcq: &Vcq, peer: Peer, size: usize, edata: u64) -> Result<()> {
    let flags = REMOTE_NOTICE | STRONG_ORDER;
    let posted =
        if size == 8 { vcq.put8(peer, edata, flags)? } else { vcq.put(peer, size, edata, flags)? };
    if posted { Ok(()) } else { bail!("the queue is full with one message in flight") }
}

/// Waits for the end of the next command.
fn complete(vcq: &Vcq) -> Result<()> {
    wait("completion of a command", || Ok(vcq.poll_tcq()?.then_some(())))
}

/// The progress of a measurement.
fn after(messages: u64) -> String {
    format!("after {messages} messages")
}

/// Looks for `what`, and lets others have the processor if that takes long.
pub(crate) fn wait<T>(what: &str, mut poll: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let mut looks = 0u32;
    let start = Instant::now();
    loop {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS) {
            // The other side may need this processor.
            thread::yield_now();
            if start.elapsed() > PATIENCE {
                bail!("no {what} in {} s", PATIENCE.as_secs());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// The answering side may start late. It used to greet, too, and then discarded the first
    /// message.
    #[test]
    fn earlier_message_is_answered() {
        crate::own_machine();
        let coords = [0, 1].map(|process| {
            api::select(process).unwrap();
            api::my_coords().unwrap()
        });
        let (sent, may_serve) = mpsc::channel();
        let other = thread::spawn(move || {
            api::select(1).unwrap();
            let side = Side::new(coords[0], 1).unwrap();
            may_serve.recv().unwrap();
            side.serve().unwrap();
        });
        api::select(0).unwrap();
        let side = Side::new(coords[1], 1).unwrap();
        side.greet().unwrap();
        let (vcq, peer) = (&side.vcqs[0], side.peers[0]);
        send(vcq, peer, 8, ECHO).unwrap();
        sent.send(()).unwrap();
        wait("answer", || Ok(vcq.poll_mrq()?.filter(|(edata, _)| *edata == ANSWER))).unwrap();
        side.end().unwrap();
        other.join().unwrap();
    }
}
