//! Any settings of barrier gates and channels of two nodes, and any rounds that they start, while
//! two other nodes synchronise.
//!
//! Rounds of the other two end with the right sum, and notices go to notice areas only.

use std::ops::Range;

use arbitrary::{Result, Unstructured};
use tofu_abi::barrier::{
    BCH_MASK, BchReady, BgAddress, GpidBseq, LocalLink, NOTICE_SIZE, Notice, NoticeStatus,
    RemoteLink, SignalMask,
};
use tofu_abi::reduce::Op;
use tofu_abi::regs::{BchReg, BgsReg, CqsMode, NUM_BCH, Register, TniReg};
use tofu_abi::{BchId, BgId, TniId};

use crate::world::{DATA, HIGH, LOW, TNI, World, coords};

/// The place for the notices of a gate's channel, unless the input has another one.
const NOTICES: u64 = DATA;
/// The channel of the two bystanders, and their group.
const BCH: BchId = BchId::ALL[0];
/// The two interfaces that take part.
const TNIS: [TniId; 2] = [TNI, TniId::ALL[1]];
const GROUP: u64 = 7;
/// Gates that inputs mostly use: with channels, then relays.
const GATES: [u8; 8] = [0, 1, 2, 15, 16, 17, 18, 47];

/// Runs one input.
pub fn run(data: &[u8]) {
    let world = World::new();
    let before: Vec<_> = world.memory.iter().map(|memory| memory.snapshot()).collect();
    for node in 0..4 {
        for tni in TNIS {
            world.write(node, Register::Tni { tni, reg: TniReg::Enable }, 1);
        }
    }
    let mut bystanders = Bystanders::new(&world);
    bystanders.synchronise(&world);
    let mut areas = [Vec::new(), Vec::new()];
    let mut u = Unstructured::new(data);
    while !u.is_empty() && act(&world, &mut areas, &mut u).is_ok() {
        if u.len().is_multiple_of(16) {
            bystanders.synchronise(&world);
        }
    }
    world.run(64);
    bystanders.synchronise(&world);
    for (memory, (before, areas)) in world.memory.iter().zip(before.iter().zip(&areas)) {
        memory.assert_unchanged(before, areas);
    }
    let notices = NOTICES..NOTICES + NOTICE_SIZE as u64;
    for node in [2, 3] {
        world.memory[node].assert_unchanged(&before[node], std::slice::from_ref(&notices));
    }
}

fn bgs(tni: TniId, bg: BgId, reg: BgsReg) -> Register {
    Register::Bgs { tni, bg, reg }
}

/// Nodes 2 and 3: one gate each, linked to itself and to the other's.
struct Bystanders {
    bseq: u32,
}

impl Bystanders {
    fn new(world: &World) -> Self {
        for node in [2, 3] {
            let other = BgAddress::new(coords(5 - node), TNI, BCH.gate());
            let remote = RemoteLink(0).with_recv(other.place().0 as u32).with_send(other.0 as u32);
            // X 1 of 2.
            let subnet = CqsMode(0).with_nx(2).with_sx(1).with_lx(1);
            for (reg, value) in [
                (BgsReg::BchNoticeIpa, NOTICES),
                (BgsReg::BchMask, 0),
                (BgsReg::SignalMask, 0),
                (BgsReg::LocalLink, LocalLink(0).with_recv(BCH.get()).with_send(BCH.get()).0),
                (BgsReg::RemoteLink, remote.0),
                (BgsReg::SubnetSize, subnet.0),
                (BgsReg::GpidBseq, GpidBseq(0).with_gpid(GROUP).0),
                (BgsReg::Enable, 1),
            ] {
                world.write(node, bgs(TNI, BCH.gate(), reg), value);
            }
        }
        Self { bseq: 0 }
    }

    /// A round of the two, which must end with their sum.
    fn synchronise(&mut self, world: &World) {
        let op = Op::Sum;
        let ready = BchReady(0).with_op(op.code()).with_count(1).with_start(true);
        for node in [2, 3] {
            let value = node as u64 + u64::from(self.bseq);
            world.write(node, Register::Bch { tni: TNI, bch: BCH, reg: BchReg::Idata0 }, value);
            world.write(node, Register::Bch { tni: TNI, bch: BCH, reg: BchReg::Ready }, ready.0);
            world.run(64);
        }
        let expected = NoticeStatus(0).with_bseq(self.bseq).with_op(op.code()).with_valid(true);
        for node in [2, 3] {
            let memory = &world.memory[node];
            let status = memory.word(NOTICES + Notice::status_offset(self.bseq) as u64);
            assert_eq!(NoticeStatus(status), expected, "the bystanders' round has not ended");
            let sum = memory.word(NOTICES + Notice::offset(self.bseq) as u64);
            assert_eq!(sum, 5 + 2 * u64::from(self.bseq));
        }
        self.bseq += 1;
    }
}

/// One action of node 0 or 1. `areas` are those where the two may have notices.
fn act(world: &World, areas: &mut [Vec<Range<u64>>; 2], u: &mut Unstructured<'_>) -> Result<()> {
    let choice: u8 = u.arbitrary()?;
    let node = usize::from(choice >> 7);
    let tni = TNIS[usize::from(choice >> 6 & 1)];
    let bg = BgId::from_field(gate(u)?);
    match choice & 0xf {
        // A gate with links, all at once.
        0..=4 => {
            links(world, node, (tni, bg), u)?;
            notices(world, areas, node, tni, bg, NOTICES);
        }
        5..=8 => {
            let ready = BchReady(0)
                .with_op(u.arbitrary()?)
                .with_count(if u.ratio(7, 8)? { 0 } else { u.arbitrary()? })
                .with_start(true);
            world.write(
                node,
                Register::Bch { tni, bch: BchId::ALL[bg.index() % NUM_BCH], reg: BchReg::Ready },
                ready.0,
            );
        }
        9 => {
            let (reg, value) = (*u.choose(BchReg::ALL)?, u.arbitrary()?);
            world.write(
                node,
                Register::Bch { tni, bch: BchId::ALL[bg.index() % NUM_BCH], reg },
                value,
            );
        }
        10 => {
            let reg = *u.choose(BgsReg::ALL)?;
            let value = u.arbitrary()?;
            match reg {
                BgsReg::BchNoticeIpa => notices(world, areas, node, tni, bg, value),
                _ => world.write(node, bgs(tni, bg, reg), value),
            }
        }
        11 => {
            let offsets = u.arbitrary::<u16>()?;
            let base = *u.choose(&[LOW, DATA, HIGH, u64::MAX - 0x1_0000])?;
            notices(world, areas, node, tni, bg, base.wrapping_add(offsets.into()));
        }
        12 => world.write(node, bgs(tni, bg, BgsReg::BchMask), u.choose(&[0, BCH_MASK]).copied()?),
        13 => world.write(node, bgs(tni, bg, BgsReg::Enable), (choice >> 4 & 1).into()),
        14 => {
            let register = Register::Tni { tni, reg: TniReg::Enable };
            world.write(node, register, u64::from(!u.ratio(1, 2)?));
        }
        _ => world.run(4),
    }
    Ok(())
}

/// Disables a gate, sets its links, and enables it.
fn links(
    world: &World,
    node: usize,
    (tni, bg): (TniId, BgId),
    u: &mut Unstructured<'_>,
) -> Result<()> {
    world.write(node, bgs(tni, bg, BgsReg::Enable), 0);
    let mask = SignalMask(u.int_in_range(0..=15)? << 60);
    let local = LocalLink(0).with_recv(gate(u)?).with_send(gate(u)?);
    let remote =
        RemoteLink(0).with_recv(address(u)?.place().0 as u32).with_send(address(u)?.0 as u32);
    let number = GpidBseq(0)
        .with_gpid(if u.ratio(7, 8)? { 1 } else { u.arbitrary()? })
        .with_bseq(if u.ratio(7, 8)? { 0 } else { u.arbitrary()? });
    for (reg, value) in [
        (BgsReg::SignalMask, mask.0),
        (BgsReg::LocalLink, local.0),
        (BgsReg::RemoteLink, remote.0),
        (BgsReg::GpidBseq, number.0),
        (BgsReg::BchMask, 0),
        (BgsReg::Enable, 1),
    ] {
        world.write(node, bgs(tni, bg, reg), value);
    }
    Ok(())
}

/// Sets a notice address, and notes that there may be notices.
fn notices(
    world: &World,
    areas: &mut [Vec<Range<u64>>; 2],
    node: usize,
    tni: TniId,
    bg: BgId,
    at: u64,
) {
    world.write(node, bgs(tni, bg, BgsReg::BchNoticeIpa), at);
    areas[node].push(at..at.saturating_add(NOTICE_SIZE as u64));
}

fn gate(u: &mut Unstructured<'_>) -> Result<u8> {
    if u.ratio(15, 16)? { u.choose(&GATES).copied() } else { u.int_in_range(0..=63) }
}

/// A gate of any of the four nodes, or of none.
fn address(u: &mut Unstructured<'_>) -> Result<BgAddress> {
    if u.ratio(1, 16)? {
        return Ok(BgAddress(u64::from(u.arbitrary::<u32>()?)));
    }
    let node = u.int_in_range(0..=3)?;
    // Mostly the two that the input plays with.
    let node = if u.ratio(3, 4)? { node & 1 } else { node };
    let tni = TNIS[usize::from(u.int_in_range(0..=1_u8)?)];
    Ok(BgAddress::new(coords(node), tni, BgId::from_field(gate(u)?)))
}
