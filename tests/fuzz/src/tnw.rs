//! Everything that a guest, a neighbour or a link can do to network processors of TNW: registers,
//! stores to windows, credits, what arrives over links, faults, resets.
//!
//! Four nodes in a row. The first two are controlled by the input; the other two are bystanders.
//! One target does everything; each of the others uses one interface only, so that its inputs get
//! further.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use tofu_abi::tnw::{
    CHANNELS, Channel, ChannelReg, Control, LINKS, Link, LinkReg, MAX_MESSAGE, Mark, NwpReg,
    PACKET_DATA, PACKET_SIZE, REGISTER_BAR, REGISTER_BAR_SIZE, Register, WINDOW_BAR,
    WINDOW_BAR_SIZE, WINDOW_PLACES, WINDOW_RING, WINDOW_SIZE, WindowPlace, mark_offset, window,
};
use tofu_driver::{DmaBuffer, Platform};
use tofu_fabric::{FaultPlan, Ppm, Rates, Shape};
use tofu_inproc::InProcess;
use tofu_machine::{Torus, TorusConfig, TorusNode};
use tofu_pci::{PciFunction, regs};
use tofu_tnw::{Nwp, Status, Windows};
use tofu_tnw_device::{CONTROL_SIZE, Unit};

/// Actions of one input at most.
const MAX_ACTIONS: u32 = 512;
/// Memory of each node: all addresses from [`BASE`] on.
const MEMORY: usize = 1 << 20;
const BASE: u64 = 0x1000;
const X_PLUS: Link = Link::ALL[1];

struct World {
    torus: Arc<Torus>,
    platforms: Vec<InProcess>,
    nodes: Vec<Arc<TorusNode>>,
}

/// The actions of an input.
#[derive(Clone, Copy)]
enum Action {
    /// A register is written, in whole or in half.
    Register,
    /// A credit or an Nget that may be valid.
    Request,
    /// CANCEL.
    Cancel,
    /// A store to a window.
    Store,
    /// The window of a channel becomes memory, or registers.
    Share,
    /// Packets in a window that is memory, with their marks.
    Packets,
    /// Anything in such a window.
    Scribble,
    /// TX_BELL.
    Bell,
    /// Bytes at any place of a BAR, of any length.
    Raw,
    Time,
    /// Something comes over a link.
    Arrival,
    Faults,
    Link,
    /// Configuration space, or a reset by CONTROL.
    Config,
}

use Action as A;

const ALL: &[Action] = &[
    A::Register,
    A::Register,
    A::Register,
    A::Request,
    A::Request,
    A::Cancel,
    A::Store,
    A::Store,
    A::Share,
    A::Packets,
    A::Scribble,
    A::Bell,
    A::Raw,
    A::Time,
    A::Arrival,
    A::Arrival,
    A::Faults,
    A::Link,
    A::Config,
];

/// Runs one input of everything.
pub fn run(data: &[u8]) {
    run_actions(data, ALL);
}

/// Runs one input of accesses to registers and configuration space.
pub fn registers(data: &[u8]) {
    run_actions(data, &[A::Register, A::Register, A::Register, A::Raw, A::Config, A::Time]);
}

/// Runs one input of stores to windows, and of windows that are memory.
pub fn windows(data: &[u8]) {
    let all = [
        A::Store,
        A::Store,
        A::Share,
        A::Packets,
        A::Scribble,
        A::Bell,
        A::Raw,
        A::Cancel,
        A::Request,
    ];
    run_actions(data, &all);
}

/// Runs one input of credits and Ngets, with messages that match them.
pub fn credits(data: &[u8]) {
    run_actions(data, &[A::Request, A::Request, A::Store, A::Store, A::Cancel, A::Config, A::Link]);
}

/// Runs one input of packets that arrive over links.
pub fn arrivals(data: &[u8]) {
    run_actions(
        data,
        &[A::Arrival, A::Arrival, A::Arrival, A::Time, A::Store, A::Request, A::Faults],
    );
}

fn run_actions(data: &[u8], actions: &[Action]) {
    let shape = Shape::new([4, 1, 1, 1, 1, 1]).expect("a shape").with_torus([false; 3]);
    let torus = Arc::new(Torus::with_manual_clock(TorusConfig::new(shape)).expect("three axes"));
    let attach = |coords| InProcess::attach_sharing_nwp(&torus, coords, MEMORY).expect("memory");
    let platforms: Vec<_> = shape.iter().map(attach).collect();
    let nodes = shape.iter().filter_map(|coords| torus.node(coords).cloned()).collect();
    let world = World { torus, platforms, nodes };
    world.start(0);
    world.start(2);
    world.transfer(0);
    world.transfer(2);
    let mut u = Unstructured::new(data);
    for _ in 0..MAX_ACTIONS {
        // An input that ends in the middle of an action is complete.
        if u.is_empty() || world.act(&mut u, actions).is_err() {
            break;
        }
        world.torus.run_pending();
    }
    world.transfer(2);
    // After any of this, a reset brings the others back.
    world.torus.wires().set_faults(None).expect("no link is named");
    for node in &world.nodes[..3] {
        let _ = world.torus.wires().fabric().set_link(node.coords(), X_PLUS.port(), true);
    }
    world.start(0);
    world.transfer(0);
}

impl World {
    /// Resets and enables a node and the next one.
    fn start(&self, first: usize) {
        for node in [first, first + 1] {
            self.nodes[node].reset();
        }
        for node in [first, first + 1] {
            let command = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
            self.nodes[node].config_write(regs::COMMAND, &command.to_le_bytes());
            Nwp::probe(self.platforms[node].clone()).expect("it says what it is");
        }
        self.torus.run_pending();
    }

    /// A node sends to the next one.
    fn transfer(&self, first: usize) {
        let nwp = |node: usize| {
            // Not reset, as it would be by a probe, so that its work continues.
            let platform = self.platforms[node].clone();
            Nwp::attach(platform).expect("it says what it is")
        };
        let (near, far) = (nwp(first), nwp(first + 1));
        let mut stream = near.open(X_PLUS, Channel::ALL[0]).expect("it has a neighbour");
        let mut sink = far.open(X_PLUS.opposite(), Channel::ALL[0]).expect("it has one, too");
        let buffer = far.platform().alloc_dma(300, 8).expect("there is memory");
        let credit = sink.credit(&buffer, 0, 300).expect("none waits");
        stream.send(&[0x5a; 300], u64::MAX).expect("there is room");
        let mut credit = Some(credit);
        for _ in 0..1000 {
            self.torus.run_pending();
            match credit.take().map(|credit| sink.test(credit)) {
                Some(Err(waiting)) => credit = Some(waiting),
                Some(Ok(outcome)) => {
                    assert_eq!((outcome.status, outcome.length), (Status::Ok, 300));
                    let mut bytes = [0; 300];
                    buffer.read(0, &mut bytes);
                    assert_eq!(bytes, [0x5a; 300]);
                    return;
                }
                None => {}
            }
            self.torus.advance(1_000_000_000);
        }
        panic!("a message between nodes {first} and {} does not arrive", first + 1);
    }

    fn act(&self, u: &mut Unstructured<'_>, actions: &[Action]) -> Result<()> {
        let choice: u8 = u.arbitrary()?;
        let which = usize::from(choice >> 7);
        let (node, link) = (&self.nodes[which], X_PLUS_OR_MINUS[which]);
        let platform = &self.platforms[which];
        match actions[usize::from(choice & 0x3f) % actions.len()] {
            A::Register => {
                let value = value(u)?.to_le_bytes();
                let len = if choice & 0x40 == 0 { 8 } else { 4 };
                node.bar_write(REGISTER_BAR, register(u)?.offset(), &value[..len]);
            }
            A::Request => {
                self.request(u, which, choice)?;
            }
            A::Cancel => {
                let at = Register::Channel(link, channel(u)?, ChannelReg::Cancel).offset();
                let what = u64::from(u.int_in_range(0..=3u8)?);
                node.bar_write(REGISTER_BAR, at, &what.to_le_bytes());
            }
            A::Share => {
                let at = Register::Channel(link, channel(u)?, ChannelReg::TxMode).offset();
                let shared = u64::from(choice & 0x40 == 0);
                node.bar_write(REGISTER_BAR, at, &shared.to_le_bytes());
            }
            A::Packets => {
                self.packets(u, which, choice & 0x40 != 0)?;
            }
            A::Scribble => {
                let (channel, at) = (channel(u)?, u.int_in_range(0..=WINDOW_SIZE / 8 - 1)? * 8);
                platform.publish(window(link, channel) + at, value(u)?);
            }
            A::Bell => {
                let at = Register::Channel(link, channel(u)?, ChannelReg::TxBell).offset();
                node.bar_write(REGISTER_BAR, at, &1u64.to_le_bytes());
            }
            A::Store => {
                self.store(u, which, choice)?;
            }
            A::Raw => {
                raw(node, choice & 0x40 != 0, u)?;
            }
            A::Time => self.torus.advance(u64::from(u.arbitrary::<u32>()?)),
            A::Arrival => {
                let link = Link::ALL[u.int_in_range(0..=LINKS - 1)?];
                if let Some(unit) = unit(u)? {
                    node.nwp().push(link, unit);
                }
            }
            A::Faults => {
                self.faults(u)?;
            }
            A::Link => {
                let up = choice & 0x40 == 0;
                let at = node.coords();
                let _ = self.torus.wires().fabric().set_link(at, X_PLUS.port(), up);
            }
            A::Config => {
                configure(node, choice & 0x40 != 0, u)?;
            }
        }
        Ok(())
    }

    /// Stores into a window.
    fn store(&self, u: &mut Unstructured<'_>, which: usize, choice: u8) -> Result<()> {
        let (node, link) = (&self.nodes[which], X_PLUS_OR_MINUS[which]);
        let place = WindowPlace {
            link,
            channel: channel(u)?,
            at: u.int_in_range(0..=7)? * 64 % WINDOW_RING,
            last: choice & 0x40 != 0,
        };
        node.bar_write(WINDOW_BAR, place.offset(), &[choice; 64]);
        Ok(())
    }

    /// Has the link between the first two nodes lose, damage, double and reorder packets.
    fn faults(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let rates = Rates {
            loss: chance(u)?,
            corrupt: chance(u)?,
            duplicate: chance(u)?,
            reorder: chance(u)?,
            undetected: Ppm::NEVER,
        };
        // Not on the bystanders' link.
        let links = vec![(self.nodes[0].coords(), X_PLUS.port(), rates)];
        let plan = FaultPlan { seed: u.arbitrary()?, links, ..FaultPlan::default() };
        let _ = self.torus.wires().set_faults(Some(plan));
        Ok(())
    }

    /// Puts packets into a channel's window, as a program that sends does.
    fn packets(&self, u: &mut Unstructured<'_>, which: usize, last: bool) -> Result<()> {
        let (node, link) = (&self.nodes[which], X_PLUS_OR_MINUS[which]);
        let channel = channel(u)?;
        let tail = Register::Channel(link, channel, ChannelReg::TxTail);
        let next = node.nwp().read_register(tail) / PACKET_DATA as u64 + 1;
        for number in next..next + u.int_in_range(0..=130)? {
            let place = (number - 1) as usize % WINDOW_PLACES;
            let mark = Mark(0).with_number(number).with_last(last);
            self.platforms[which].publish(window(link, channel) + mark_offset(place), mark.0);
        }
        Ok(())
    }

    /// Writes the registers of a credit or an NGET, which it gives back with an interrupt if
    /// `choice` says so.
    fn request(&self, u: &mut Unstructured<'_>, which: usize, choice: u8) -> Result<()> {
        let (node, link) = (&self.nodes[which], X_PLUS_OR_MINUS[which]);
        let channel = channel(u)?;
        let length = u.int_in_range(0..=3000u64)?;
        let address = BASE + u64::from(u.arbitrary::<u32>()?) % (MEMORY as u64 + 0x1000);
        let first = match u.arbitrary()? {
            true => ChannelReg::CreditAddress,
            _ => ChannelReg::NgetAddress,
        };
        let mut data = [0; 32];
        let notify = BASE + (address & 0xff8);
        for (place, word) in data.as_chunks_mut().0.iter_mut().zip([
            address,
            length,
            notify,
            u64::from(choice & 0x40) << 57,
        ]) {
            *place = word.to_le_bytes();
        }
        let at = Register::Channel(link, channel, first).offset();
        node.bar_write(REGISTER_BAR, at, &data);
        Ok(())
    }
}

/// Writes and reads any bytes of a BAR, and behind it.
fn raw(node: &TorusNode, windows: bool, u: &mut Unstructured<'_>) -> Result<()> {
    let (bar, size) = match windows {
        false => (REGISTER_BAR, REGISTER_BAR_SIZE),
        true => (WINDOW_BAR, WINDOW_BAR_SIZE),
    };
    let offset = u64::from(u.arbitrary::<u32>()?) % (size + 128);
    let len = u.int_in_range(0..=80)?;
    node.bar_write(bar, offset, u.bytes(len)?);
    let mut data = vec![0; len];
    node.bar_read(bar, offset, &mut data);
    Ok(())
}

/// Writes into configuration space, or resets the device by its register.
fn configure(node: &TorusNode, reset: bool, u: &mut Unstructured<'_>) -> Result<()> {
    let value: u32 = u.arbitrary()?;
    match reset {
        false => node.config_write(u.int_in_range(0..=0x1ff)?, &value.to_le_bytes()),
        true => {
            let control = Control(0).with_reset(true).with_enable(true).0;
            let at = Register::Nwp(NwpReg::Control).offset();
            node.bar_write(REGISTER_BAR, at, &control.to_le_bytes());
        }
    }
    Ok(())
}

/// The links of the first node and of the second one that lead to each other.
const X_PLUS_OR_MINUS: [Link; 2] = [Link::ALL[1], Link::ALL[0]];

fn channel(u: &mut Unstructured<'_>) -> Result<Channel> {
    Ok(Channel::ALL[u.int_in_range(0..=CHANNELS - 1)?])
}

fn chance(u: &mut Unstructured<'_>) -> Result<Ppm> {
    // Rates low enough that some packets get through.
    Ok(Ppm::new(u.int_in_range(0..=300_000)?).unwrap_or_default())
}

fn register(u: &mut Unstructured<'_>) -> Result<Register> {
    let link = Link::ALL[u.int_in_range(0..=LINKS - 1)?];
    Ok(match u.int_in_range(0..=7)? {
        0 => Register::Nwp(*u.choose(NwpReg::ALL)?),
        1 => Register::Link(link, *u.choose(LinkReg::ALL)?),
        _ => Register::Channel(link, channel(u)?, *u.choose(ChannelReg::ALL)?),
    })
}

fn value(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.int_in_range(0..=6)? {
        0 => 0,
        1 => 1,
        2 => u.int_in_range(0..=300)?,
        3 => BASE + u64::from(u.arbitrary::<u16>()?) * 8,
        4 => *u.choose(&[MAX_MESSAGE, MAX_MESSAGE + 1, u64::MAX, BASE + MEMORY as u64 - 8])?,
        5 => 1 << u.int_in_range(0..=63)?,
        _ => u.arbitrary()?,
    })
}

/// Any unit on a link, more often with a correct check sequence.
fn unit(u: &mut Unstructured<'_>) -> Result<Option<Unit>> {
    let forged = u.ratio(3, 4)?;
    let lives = [u.int_in_range(0..=3u16)?, u.int_in_range(0..=3u16)?];
    if u.arbitrary()? {
        let mut bytes = [0; CONTROL_SIZE];
        u.fill_buffer(&mut bytes)?;
        if forged {
            bytes[0] &= 3;
            bytes[2..4].copy_from_slice(&lives[0].to_le_bytes());
            bytes[4..6].copy_from_slice(&lives[1].to_le_bytes());
            let crc = crc32fast::hash(&bytes[..CONTROL_SIZE - 4]);
            bytes[CONTROL_SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
        }
        return Ok(Unit::from_wire(&bytes));
    }
    let mut bytes = [0; PACKET_SIZE];
    u.fill_buffer(&mut bytes[..8])?;
    if forged {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&lives[0].to_le_bytes());
        hasher.update(&lives[1].to_le_bytes());
        hasher.update(&bytes[..4 + PACKET_DATA]);
        bytes[4 + PACKET_DATA..].copy_from_slice(&hasher.finalize().to_le_bytes());
    }
    Ok(Unit::from_wire(&bytes))
}
