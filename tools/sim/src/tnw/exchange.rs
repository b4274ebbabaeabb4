//! Message exchange among neighbours. On every node that sends, there is a program for each link:
//! it posts a credit for a message from one side, sends a message to the other, and waits for both
//! (section 3).

use std::fmt;

use anyhow::{Context, bail, ensure};
use tofu_abi::Coords;
use tofu_abi::tnw::{Channel, Link, Status};
use tofu_driver::{DmaBuffer, Platform};
use tofu_fabric::{Ppm, Ps, Shape};
use tofu_inproc::{Buffer, InProcess};
use tofu_tnw::{Stream, Ticket};

use super::model::{Event, Model, ModelConfig, TRANSFER_PS};

/// Memory of a node in addition to messages, for notification words.
const WORDS: usize = 64 << 10;
/// Alignment of messages.
const ALIGNMENT: usize = 4096;

/// The way a node sends messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Stores to a window; the device puts the data in order.
    Pput,
    /// Stores to a window, with a flush by the program after each packet, which waits for it.
    PputFlushed,
    /// The device fetches the message.
    Nget,
}

impl Scheme {
    pub(crate) const ALL: [(&'static str, Self); 3] =
        [("pput", Self::Pput), ("pput-flushed", Self::PputFlushed), ("nget", Self::Nget)];

    /// Returns the software cost of a message (section 4).
    const fn software_ps(self) -> Ps {
        match self {
            Self::Pput | Self::PputFlushed => 700_000,
            Self::Nget => 800_000,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pput => "Pput",
            Self::PputFlushed => "Pput, flushed by software",
            Self::Nget => "Nget",
        })
    }
}

/// Describes the messages and their senders.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) shape: Shape,
    /// The node and link of each program. A program receives from the opposite link, so another
    /// program must send over that link.
    pub(crate) programs: Vec<(Coords, Link)>,
    pub(crate) scheme: Scheme,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// Messages of each program that are measured. One more is sent first.
    pub(crate) count: u32,
    /// The share of packets and commands that links damage.
    pub(crate) errors: Ppm,
    pub(crate) seed: u64,
}

/// The result of an exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// The time from one message's start to the next, averaged over all programs.
    pub(crate) message_ps: f64,
    /// The rate of a program in bytes per second, averaged over all programs.
    pub(crate) bytes_per_s: f64,
    /// Packets that were resent.
    pub(crate) resent: u64,
    /// The time of the whole run.
    pub(crate) time_ps: Ps,
}

impl Exchange {
    /// An exchange between a node and its neighbours on 1 to 3 links. The node sends over X+, Y+
    /// and Z+, and each neighbour sends back over the same link. Each link of the node thus carries
    /// what it would if all nodes of a machine did the same.
    pub(crate) fn of_a_node(links: usize, scheme: Scheme, size: usize) -> anyhow::Result<Self> {
        let shape = Shape::new([2, 2, 2, 1, 1, 1])?;
        let node = Coords::default();
        let mut programs = Vec::new();
        for link in Link::ALL.into_iter().skip(1).step_by(2).take(links) {
            programs.push((node, link));
            programs.push((shape.neighbor(node, link.port()).context("a neighbour")?, link));
        }
        Ok(Self { shape, programs, scheme, size, count: 2, errors: Ppm::NEVER, seed: 1 })
    }

    /// Runs the exchange.
    pub(crate) fn run(&self) -> anyhow::Result<Outcome> {
        let links = self.programs.iter().filter(|at| at.0 == self.programs[0].0).count();
        let memory = links * (2 * self.size.next_multiple_of(ALIGNMENT) + WORDS) + ALIGNMENT;
        let config = ModelConfig {
            shape: self.shape,
            memory: memory.next_multiple_of(ALIGNMENT),
            errors: self.errors,
            seed: self.seed,
        };
        let model = Model::new(&config, self.programs.iter().map(|at| at.0))?;
        let programs = self.programs.iter().enumerate();
        let mut programs: Vec<_> = programs
            .map(|(number, at)| Program::new(self, &model, number, *at))
            .collect::<anyhow::Result<_>>()?;
        for program in &mut programs {
            program.go_on(&model)?;
        }
        while programs.iter().any(|program| program.left > 0) {
            match model.step().context("nothing is in flight, and messages are missing")? {
                Event::Device => {}
                Event::Program(number) => programs[number].go_on(&model)?,
                Event::Memory(node) => {
                    for program in programs.iter_mut().filter(|program| program.node == node) {
                        program.go_on(&model)?;
                    }
                }
            }
        }
        let time_ps = model.now();
        let mut resent = 0;
        for (program, (coords, link)) in programs.iter().zip(&self.programs) {
            program.check()?;
            resent += model.node(*coords)?.1.link_counters(*link).resent;
        }
        let messages = programs.iter().map(|program| {
            let (first, last) = program.ends.unwrap_or_default();
            (last - first) as f64 / f64::from(self.count)
        });
        let message_ps = messages.sum::<f64>() / programs.len() as f64;
        let bytes_per_s = self.size as f64 * 1e12 / message_ps;
        Ok(Outcome { message_ps, bytes_per_s, resent, time_ps })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The next message is about to start.
    Begin,
    /// The message must be sent from this byte on.
    Send(usize),
    /// The message has been sent.
    Wait,
}

/// A program of a node, with its message.
struct Program<'a> {
    number: usize,
    node: usize,
    scheme: Scheme,
    out: Stream<'a, InProcess>,
    inward: Stream<'a, InProcess>,
    message: Vec<u8>,
    source: Buffer,
    target: Buffer,
    phase: Phase,
    /// The program is busy until then.
    until: Ps,
    credit: Option<Ticket>,
    nget: Option<Ticket>,
    /// Messages that are not complete yet.
    left: u32,
    /// When the first message ended, and when the latest did.
    ends: Option<(Ps, Ps)>,
}

impl<'a> Program<'a> {
    fn new(
        exchange: &Exchange,
        model: &'a Model,
        number: usize,
        (coords, link): (Coords, Link),
    ) -> anyhow::Result<Self> {
        let size = exchange.size;
        let (node, nwp) = model.node(coords)?;
        let message: Vec<u8> = (0..size).map(|at| (at + at / 251) as u8).collect();
        let source = nwp.platform().alloc_dma(size, ALIGNMENT)?;
        // The programs of the two directions of a link use different channels.
        let channel = Channel::ALL[link.index() % 2];
        source.write(0, &message);
        Ok(Self {
            number,
            node,
            scheme: exchange.scheme,
            out: nwp.open(link, channel)?,
            inward: nwp.open(link.opposite(), channel)?,
            message,
            source,
            target: nwp.platform().alloc_dma(size, ALIGNMENT)?,
            phase: Phase::Begin,
            until: 0,
            credit: None,
            nget: None,
            left: exchange.count + 1,
            ends: None,
        })
    }

    /// Stays busy until `until`.
    fn sleep(&mut self, model: &Model, until: Ps) {
        self.until = until;
        model.resume(self.number, until);
    }

    /// Does everything that it can do now.
    fn go_on(&mut self, model: &Model) -> anyhow::Result<()> {
        while self.left > 0 && model.now() >= self.until {
            match self.phase {
                Phase::Begin => {
                    self.credit = Some(self.inward.credit(&self.target, 0, self.message.len())?);
                    self.phase = Phase::Send(0);
                    self.sleep(model, model.now() + self.scheme.software_ps());
                }
                Phase::Send(_) if self.scheme == Scheme::Nget => {
                    let nget = self.out.send_from(&self.source, 0, self.message.len())?;
                    self.nget = Some(nget);
                    self.phase = Phase::Wait;
                }
                Phase::Send(at) => {
                    let Some(rest) = self.out.send_packet(&self.message[at..]) else {
                        // The device will report room.
                        return Ok(());
                    };
                    let at = self.message.len() - rest.len();
                    self.phase = if rest.is_empty() { Phase::Wait } else { Phase::Send(at) };
                    let stored = model.stored_until(self.node);
                    let fence = if self.scheme == Scheme::PputFlushed { TRANSFER_PS } else { 0 };
                    self.sleep(model, stored + fence);
                }
                Phase::Wait => {
                    self.credit = ended(&mut self.inward, self.credit.take())?;
                    self.nget = ended(&mut self.out, self.nget.take())?;
                    if self.credit.is_some() || self.nget.is_some() {
                        return Ok(());
                    }
                    self.left -= 1;
                    let first = self.ends.map_or(model.now(), |ends| ends.0);
                    self.ends = Some((first, model.now()));
                    self.phase = Phase::Begin;
                }
            }
        }
        Ok(())
    }

    /// Checks that the message received equals the one sent.
    fn check(&self) -> anyhow::Result<()> {
        let mut came = vec![0; self.message.len()];
        self.target.read(0, &mut came);
        ensure!(came == self.message, "a message came otherwise than it was sent");
        Ok(())
    }
}

/// Returns the ticket if its message has not ended yet.
fn ended(
    stream: &mut Stream<'_, InProcess>,
    ticket: Option<Ticket>,
) -> anyhow::Result<Option<Ticket>> {
    match ticket.map(|ticket| stream.test(ticket)) {
        Some(Err(ticket)) => Ok(Some(ticket)),
        Some(Ok(outcome)) if outcome.status != Status::Ok => {
            bail!("a message ended with {:?}", outcome.status)
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(links: usize, scheme: Scheme, size: usize) -> Outcome {
        Exchange::of_a_node(links, scheme, size).unwrap().run().unwrap()
    }

    /// The time is the sum of the paper's parts, except for the small writes of a transfer.
    #[test]
    fn packet_takes_the_sum_of_its_parts() {
        // Software, store, link, write.
        let pput = run(1, Scheme::Pput, 128).message_ps;
        assert!((1_700_000.0..1_705_000.0).contains(&pput), "{pput}");
        // Software, doorbell, read and its answer, link, write.
        let nget = run(1, Scheme::Nget, 128).message_ps;
        assert!((2_120_000.0..2_205_000.0).contains(&nget), "{nget}");
    }

    #[test]
    fn long_messages_fill_their_link() {
        let stored = run(1, Scheme::Pput, 1 << 20).bytes_per_s;
        assert!((0.90e9..0.911e9).contains(&stored), "{stored}");
        // The link idles during each read.
        let fetched = run(1, Scheme::Nget, 1 << 20).bytes_per_s;
        assert!((0.82e9..0.85e9).contains(&fetched), "{fetched}");
    }

    #[test]
    fn model_is_deterministic() {
        for (_, scheme) in Scheme::ALL {
            let exchange = Exchange::of_a_node(3, scheme, 3000).unwrap();
            let noisy = Exchange { errors: Ppm::new(20_000).unwrap(), ..exchange.clone() };
            for exchange in [exchange, noisy] {
                let outcome = exchange.run().unwrap();
                assert_eq!(outcome, exchange.run().unwrap());
            }
        }
    }

    /// Errors cost time but no messages.
    #[test]
    fn errors_lose_nothing() {
        for (_, scheme) in Scheme::ALL {
            let exchange = Exchange::of_a_node(2, scheme, 20_000).unwrap();
            let noisy = Exchange { errors: Ppm::new(10_000).unwrap(), ..exchange.clone() };
            let (fine, noisy) = (exchange.run().unwrap(), noisy.run().unwrap());
            assert_eq!(fine.resent, 0);
            assert!(noisy.resent > 0 && noisy.time_ps > fine.time_ps, "{noisy:?} {fine:?}");
        }
    }
}
