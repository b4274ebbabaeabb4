//! Messages among neighbours: on every node that sends, a program for each link posts a credit for
//! what comes from one side, sends to the other, and waits for both (section 3).

use std::fmt;

use anyhow::{Context, bail, ensure};
use tofu_abi::Coords;
use tofu_abi::tnw::{Channel, Link, Status};
use tofu_driver::{DmaBuffer, Platform};
use tofu_fabric::network::Ps;
use tofu_fabric::{Ppm, Shape};
use tofu_inproc::{Buffer, InProcess};
use tofu_tnw::{Stream, Ticket};

use super::model::{Event, Model, ModelConfig, TRANSFER_PS};

/// Memory of a node beside messages: notification words.
const WORDS: usize = 64 << 10;
/// Where messages begin.
const ALIGNMENT: usize = 4096;

/// How messages leave a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Stores to a window; the device puts them in order.
    Pput,
    /// The same, but the program flushes after each packet and waits for that.
    PputFlushed,
    /// The device fetches the message.
    Nget,
}

impl Scheme {
    pub(crate) const ALL: [(&'static str, Self); 3] =
        [("pput", Self::Pput), ("pput-flushed", Self::PputFlushed), ("nget", Self::Nget)];

    /// What a message costs in software (section 4).
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

/// Who sends what.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) shape: Shape,
    /// Who sends over which link. A program receives from the opposite one, so what comes in
    /// there must be sent by another of these.
    pub(crate) programs: Vec<(Coords, Link)>,
    pub(crate) scheme: Scheme,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// Messages of each program that count; one goes before them.
    pub(crate) count: u32,
    /// Packets and commands that links damage.
    pub(crate) errors: Ppm,
    pub(crate) seed: u64,
}

/// What has come of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// From one message's beginning to the next one's, the mean of all programs.
    pub(crate) message_ps: f64,
    /// What a program sends, in bytes a second, the mean of all.
    pub(crate) bytes_per_s: f64,
    /// Packets that were sent again.
    pub(crate) resent: u64,
    /// All of it.
    pub(crate) time_ps: Ps,
}

impl Exchange {
    /// Between a node and its neighbours on so many links, 1 to 3: the node sends over X+, Y+ and
    /// Z+, and each neighbour back over the same link. By that each link of the node carries what
    /// it would on a machine where all nodes do so.
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

    /// Runs it.
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
            match model.step().context("nothing is under way, and messages are missing")? {
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
    /// The next message is to begin.
    Begin,
    /// It is to be sent, from this byte on.
    Send(usize),
    /// It has been.
    Wait,
}

/// A program of a node, and its message.
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
    /// It is busy so long.
    until: Ps,
    credit: Option<Ticket>,
    nget: Option<Ticket>,
    /// Messages that are not over.
    left: u32,
    /// When the first message ended, and the latest.
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
        // Programs of both directions of a link have a channel each.
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

    /// Is busy until then.
    fn sleep(&mut self, model: &Model, until: Ps) {
        self.until = until;
        model.resume(self.number, until);
    }

    /// Does what it can do now.
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
                        // The device will tell of room.
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

    /// What came is what was sent.
    fn check(&self) -> anyhow::Result<()> {
        let mut came = vec![0; self.message.len()];
        self.target.read(0, &mut came);
        ensure!(came == self.message, "a message came otherwise than it was sent");
        Ok(())
    }
}

/// The ticket, if its message is still under way.
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

    /// Of what the paper's parts add up to, all but a transfer's small writes.
    #[test]
    fn a_packet_takes_its_parts() {
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
        // The link waits for each read.
        let fetched = run(1, Scheme::Nget, 1 << 20).bytes_per_s;
        assert!((0.82e9..0.85e9).contains(&fetched), "{fetched}");
    }

    #[test]
    fn a_model_comes_to_the_same_each_time() {
        for (_, scheme) in Scheme::ALL {
            let exchange = Exchange::of_a_node(3, scheme, 3000).unwrap();
            let noisy = Exchange { errors: Ppm::new(20_000).unwrap(), ..exchange.clone() };
            for exchange in [exchange, noisy] {
                let outcome = exchange.run().unwrap();
                assert_eq!(outcome, exchange.run().unwrap());
            }
        }
    }

    /// Errors cost time, and no message.
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
