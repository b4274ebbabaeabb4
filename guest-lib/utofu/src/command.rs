//! Commands: descriptors for a transmit order queue.

use tofu_abi::addr::OFFSET_BITS;
use tofu_abi::desc::{
    ArmwOp, Command as Opcode, DESC_SIZE, Descriptor, Header1, Header2, MAX_MESSAGE, MAX_MTU,
    MTU_UNIT, PIGGYBACK_BUFFER_MAX, PIGGYBACK_MAX,
};
use tofu_abi::{Path, StagOffset};

use crate::error::{Code, Error};
use crate::flags::{self, CACHE_INJECTION, LOCAL_MRQ_NOTICE, PACKET_RESPONSE};
use crate::ids::{Stadd, VcqId, is_path};
use crate::wire::{Edata, Mark, Prepared};

/// The most bytes that a command writes or reads: 2^24 - 1.
pub const MAX_PUTGET_SIZE: usize = MAX_MESSAGE as usize;
/// The most bytes that a piggyback Put carries.
pub const MAX_PIGGYBACK_SIZE: usize = PIGGYBACK_BUFFER_MAX;
/// The most bytes of a command's descriptors, except for strides.
pub const MAX_TOQ_DESC_SIZE: usize = 2 * DESC_SIZE;
/// The longest gap between packets.
pub const MAX_GAP: usize = 255;
/// The most bytes of data in a packet.
pub const MAX_PACKET: usize = MAX_MTU as usize;

/// Flag bits that are bits 8 and up of the second word. Packet response is left out: with one
/// notice for each packet, a program could not tell the notices apart.
const WIRE_FLAGS: u64 = (flags::STRONG_ORDER
    | flags::REMOTE_MRQ_NOTICE
    | flags::PADDING
    | PACKET_RESPONSE
    | CACHE_INJECTION)
    & !PACKET_RESPONSE;

/// Bits of the first word that only prepared descriptors use.
const PREPARED: u64 = 0xe;

/// The target of a command, and the fields that all commands have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting {
    header1: u64,
    header2: u64,
    /// The remote control queue, at its position in an address.
    cqid: u64,
    /// The notice data is too long. This makes the device refuse the command.
    refuse: bool,
}

impl Posting {
    /// Checks the fields common to all commands to a VCQ.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqId`], [`Code::InvalidFlags`], [`Code::InvalidPathId`].
    #[inline(always)]
    pub fn new(to: u64, edata: u64, flags: u64) -> Result<Self, Error> {
        let id = VcqId::check(to)?;
        flags::check_command(flags)?;
        let path = id.path_id() ^ (flags >> 28) as u8 & 15;
        if !is_path(path) {
            let hint = "take it from utofu_get_path_id for the same VCQ ID";
            let value = flags >> 28 & 15;
            return Err(Error::with_value(Code::InvalidPathId, "path ID in flags", value, hint));
        }
        let edata_word = Edata(0)
            .with_user(edata as u8)
            .with_local(flags & LOCAL_MRQ_NOTICE != 0)
            .with_target(id.extra() & 7);
        // Bits 63:28 of an ID are the same in a descriptor. Those of the session steps come from
        // the flags.
        let header1 = id.with_path_id(path).0 & !0x0fff_ffff
            | flags & 0x0f00_0000
            | Prepared(0)
                .with_tcq_notice(flags & flags::TCQ_NOTICE != 0)
                .with_delay(flags & flags::DELAY_START != 0)
                .with_component(id.extra() >= 8)
                .0;
        Ok(Self {
            header1,
            header2: (flags & WIRE_FLAGS) << 8 | edata_word.0 << 16,
            cqid: StagOffset(0).with_cqid(id.cq()).0,
            refuse: edata > 0xff,
        })
    }

    #[inline(always)]
    fn remote(&self, stadd: u64) -> Result<StagOffset, Error> {
        Ok(StagOffset(Stadd::check(stadd, "remote STADD")?.0 | self.cqid))
    }

    /// Returns a descriptor that the device refuses for its length, as real devices do when notice
    /// data overflows into the length.
    fn refused(&self) -> Command {
        let (header1, header2) = (Header1(self.header1), Header2(self.header2));
        Command::one(Descriptor::put_piggyback(header1, header2, StagOffset(0), 0, 63))
    }

    #[inline(always)]
    fn transfer(
        &self,
        opcode: Opcode,
        packets: Packets,
        local: u64,
        remote: u64,
        length: usize,
    ) -> Result<Command, Error> {
        let remote = self.remote(remote)?;
        let local = StagOffset(Stadd::check(local, "local STADD")?.0);
        if length > MAX_PUTGET_SIZE {
            let hint = "at most 0xffffff bytes fit into one command";
            return Err(Error::with_value(Code::InvalidSize, "length", length as u64, hint));
        }
        if self.refuse {
            return Ok(self.refused());
        }
        let header1 = Header1(self.header1).with_mtu(packets.mtu);
        let header2 = Header2(self.header2).with_gap(packets.gap);
        let length = length as u32;
        Ok(Command::one(Descriptor::transfer(opcode, header1, header2, remote, local, length)))
    }

    /// Writes `length` bytes of local memory to remote memory.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidStadd`], [`Code::InvalidSize`].
    #[inline(always)]
    pub fn put(
        &self,
        local: u64,
        remote: u64,
        length: usize,
        packets: Packets,
    ) -> Result<Command, Error> {
        self.transfer(Opcode::Put, packets, local, remote, length)
    }

    /// Reads `length` bytes of remote memory into local memory.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidStadd`], [`Code::InvalidSize`].
    #[inline(always)]
    pub fn get(
        &self,
        local: u64,
        remote: u64,
        length: usize,
        packets: Packets,
    ) -> Result<Command, Error> {
        self.transfer(Opcode::Get, packets, local, remote, length)
    }

    /// Writes up to 32 bytes, which are part of the command, to remote memory.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidStadd`], [`Code::InvalidSize`].
    #[inline]
    pub fn put_piggyback(&self, data: &[u8], remote: u64) -> Result<Command, Error> {
        if data.len() > MAX_PIGGYBACK_SIZE {
            let hint = "a piggyback Put carries at most 32 bytes";
            return Err(Error::with_value(Code::InvalidSize, "length", data.len() as u64, hint));
        }
        let mut padded = [0; MAX_PIGGYBACK_SIZE];
        padded[..data.len()].copy_from_slice(data);
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(padded.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        self.piggyback(words, data.len(), remote)
    }

    /// Writes the lowest `length` bytes, 8 at most, of a value to remote memory.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidStadd`], [`Code::InvalidSize`].
    #[inline(always)]
    pub fn put_piggyback8(&self, data: u64, length: usize, remote: u64) -> Result<Command, Error> {
        if length > PIGGYBACK_MAX {
            let hint = "this Put carries at most 8 bytes";
            return Err(Error::with_value(Code::InvalidSize, "length", length as u64, hint));
        }
        self.piggyback([data, 0, 0, 0], length, remote)
    }

    #[inline(always)]
    fn piggyback(&self, words: [u64; 4], length: usize, remote: u64) -> Result<Command, Error> {
        let remote = self.remote(remote)?;
        if self.refuse {
            return Ok(self.refused());
        }
        let [first, rest @ ..] = words;
        let (header1, header2) = (Header1(self.header1), Header2(self.header2));
        let put = Descriptor::put_piggyback(header1, header2, remote, first, length as u8);
        Ok(if length <= PIGGYBACK_MAX {
            Command::one(put)
        } else {
            Command::two(Descriptor::write_piggyback_buffer(rest), put)
        })
    }

    /// Applies an operation, 1 to 5, to 4 or 8 bytes of remote memory. The local notice contains
    /// the old value.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidStadd`], [`Code::InvalidOp`].
    #[inline(always)]
    pub fn armw(&self, op: u32, value: u64, size: u32, remote: u64) -> Result<Command, Error> {
        let op = match op {
            1 => ArmwOp::Swap,
            2 => ArmwOp::Add,
            3 => ArmwOp::Xor,
            4 => ArmwOp::And,
            5 => ArmwOp::Or,
            _ => {
                let hint = "operations are 1 to 5 (enum utofu_armw_op)";
                return Err(Error::with_value(Code::InvalidOp, "operation", op.into(), hint));
            }
        };
        Ok(Command::one(self.atomic(op, value, size, remote)?))
    }

    #[inline(always)]
    fn atomic(
        &self,
        op: ArmwOp,
        operand: u64,
        size: u32,
        remote: u64,
    ) -> Result<Descriptor, Error> {
        let remote = self.remote(remote)?;
        if self.refuse {
            return Ok(self.refused().descriptors[0]);
        }
        let (header1, header2) = (Header1(self.header1), Header2(self.header2));
        Ok(Descriptor::armw(header1, header2, op, remote, operand, size))
    }

    /// Writes `new` to 4 bytes of remote memory if they hold `old`.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidStadd`].
    #[inline(always)]
    pub fn cswap4(&self, old: u32, new: u32, remote: u64) -> Result<Command, Error> {
        let operand = u64::from(new) << 32 | u64::from(old);
        Ok(Command::one(self.atomic(ArmwOp::CompareAndSwap, operand, 4, remote)?))
    }

    /// Writes `new` to 8 bytes of remote memory if they hold `old`.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidStadd`].
    #[inline(always)]
    pub fn cswap8(&self, old: u64, new: u64, remote: u64) -> Result<Command, Error> {
        let swap = self.atomic(ArmwOp::CompareAndSwap, old, 8, remote)?;
        Ok(Command::two(Descriptor::write_piggyback_buffer([new, 0, 0]), swap))
    }
}

/// The division of a message into packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packets {
    mtu: u8,
    gap: u8,
}

impl Packets {
    /// Creates packets of at most `mtu` bytes, rounded down to a multiple of 8, with gaps of `gap`
    /// units between them. An `mtu` of 0 means the largest.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidSize`] for an mtu of 1 to 7 or above 1920, or a gap above 255.
    pub fn new(mtu: usize, gap: usize) -> Result<Self, Error> {
        if mtu > MAX_PACKET || (1..MTU_UNIT as usize).contains(&mtu) {
            let hint = "packets carry 8 to 1920 bytes";
            return Err(Error::with_value(Code::InvalidSize, "mtu", mtu as u64, hint));
        }
        if gap > MAX_GAP {
            let hint = "gaps are 0 to 255";
            return Err(Error::with_value(Code::InvalidSize, "gap", gap as u64, hint));
        }
        Ok(Self { mtu: (mtu / MTU_UNIT as usize) as u8, gap: gap as u8 })
    }
}

/// A command of one or two descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    descriptors: [Descriptor; 2],
    len: usize,
}

impl Command {
    #[inline(always)]
    const fn one(descriptor: Descriptor) -> Self {
        Self { descriptors: [descriptor, Descriptor([0; 4])], len: 1 }
    }

    /// The flags and addresses of a command are in its last descriptor.
    #[inline(always)]
    const fn two(buffer: Descriptor, descriptor: Descriptor) -> Self {
        Self { descriptors: [buffer, descriptor], len: 2 }
    }

    /// A command that does nothing but complete.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidFlags`].
    pub fn nop(flags: u64) -> Result<Self, Error> {
        flags::check_command(flags)?;
        let prepared = Prepared(0)
            .with_tcq_notice(flags & flags::TCQ_NOTICE != 0)
            .with_delay(flags & flags::DELAY_START != 0);
        Ok(Self::one(Descriptor([prepared.0, 0, 0, 0])))
    }

    /// Returns the same command with both addresses moved by `bytes`.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidNumber`] if an address leaves the space of its steering tag.
    pub fn moved(mut self, bytes: u64) -> Result<Self, Error> {
        let main = &mut self.descriptors[self.len - 1];
        if main.header1().command() == Opcode::PutPiggyback as u8 {
            // The device refuses it anyway.
            return Ok(self);
        }
        for word in &mut main.0[2..4] {
            let at = StagOffset(*word);
            let offset = at.offset().checked_add(bytes).filter(|o| *o < 1 << OFFSET_BITS);
            let hint = "stride and number of blocks lead beyond the largest offset";
            *word = at
                .with_offset(offset.ok_or_else(|| {
                    Error::with_value(Code::InvalidNumber, "offset of a block", bytes, hint)
                })?)
                .0;
        }
        Ok(self)
    }

    /// Checks that the command can be repeated for `blocks` blocks, `stride` bytes apart.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidNumber`] for no blocks, or if the last one is beyond the largest offset.
    pub fn check_blocks(&self, stride: usize, blocks: usize) -> Result<(), Error> {
        let hint = "there is at least one block, and all lie within 2^40 bytes";
        let blocks_error =
            || Error::with_value(Code::InvalidNumber, "number of blocks", blocks as u64, hint);
        let last = blocks.checked_sub(1).and_then(|n| (n as u64).checked_mul(stride as u64));
        self.moved(last.ok_or_else(blocks_error)?).map(drop)
    }

    /// Returns the descriptors of a prepared command, for [`Command::parse`].
    pub fn prepared(&self) -> &[Descriptor] {
        &self.descriptors[..self.len]
    }

    /// Returns whether it is an atomic command, which not all generations support.
    #[inline]
    pub(crate) fn is_atomic(&self) -> bool {
        let last = self.descriptors[self.len.saturating_sub(1).min(1)];
        last.header1().command() == Opcode::AtomicReadModifyWrite as u8
    }

    /// Parses the first command of prepared descriptors. Returns it with the number of its
    /// descriptors.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidDesc`] if there is no command that could have been prepared.
    pub fn parse(descriptors: &[Descriptor]) -> Result<(Self, usize), Error> {
        let hint = "not what a utofu_prepare function has written";
        let bad = |word: u64| Error::with_value(Code::InvalidDesc, "descriptor", word, hint);
        let &first = descriptors.first().ok_or_else(|| bad(0))?;
        let opcode = |d: Descriptor| Opcode::from_code(d.header1().command());
        let (command, main) = if opcode(first) == Some(Opcode::WritePiggybackBuffer) {
            let &second = descriptors.get(1).ok_or_else(|| bad(first.0[0]))?;
            let uses_it = matches!(
                opcode(second),
                Some(Opcode::PutPiggyback | Opcode::AtomicReadModifyWrite)
            );
            if !uses_it || first.0[0] & !0xff00 != 0 {
                return Err(bad(first.0[0]));
            }
            (Self::two(first, second), second)
        } else {
            (Self::one(first), first)
        };
        let word = main.0[0];
        let good = match opcode(main) {
            Some(Opcode::Nop) => word & !PREPARED == 0,
            Some(
                Opcode::Put | Opcode::Get | Opcode::PutPiggyback | Opcode::AtomicReadModifyWrite,
            ) => {
                // An ID without the bits that a descriptor uses differently.
                VcqId::check(word & !0x0fff_ffff).is_ok()
                    && word & 0xf1 == 0
                    && main.0[1] & (0xd200 | 0xff00 << 48) == 0
            }
            _ => false,
        };
        if good { Ok((command, command.len)) } else { Err(bad(word)) }
    }

    /// Returns the first word of its last descriptor.
    pub(crate) const fn header1(&self) -> Header1 {
        self.descriptors[self.len - 1].header1()
    }

    /// Returns the bytes of a Put from registered memory, or `None` for anything else.
    #[inline]
    pub(crate) fn put_length(&self) -> Option<u32> {
        let put = self.header1().command() == Opcode::Put as u8;
        put.then(|| self.descriptors[self.len - 1].header2().length())
    }

    /// Returns the remote and local addresses of a Put or Get, as STADDs.
    pub(crate) const fn addresses(&self) -> [u64; 2] {
        let Descriptor([_, _, remote, local]) = self.descriptors[self.len - 1];
        [StagOffset(remote).with_cqid(0).0, StagOffset(local).with_cqid(0).0]
    }

    /// Returns a Put without its first `at` bytes.
    pub(crate) fn after(mut self, at: u32) -> Self {
        let length = self.put_length().unwrap_or(0);
        let main = &mut self.descriptors[self.len - 1];
        main.0[1] = Header2(main.0[1]).with_length(length.saturating_sub(at)).0;
        for word in &mut main.0[2..4] {
            *word = StagOffset(*word).advanced(at.into()).0;
        }
        self
    }

    /// Returns some bytes of a Put over another path, in the form for the device. The part's only
    /// notice is the local one, which has a mark, and it has no session steps.
    pub(crate) fn part(&self, at: u32, length: u32, path: Path, mark: Mark) -> Descriptor {
        let Descriptor([word0, word1, remote, local]) = self.after(at).descriptors[self.len - 1];
        let edata = Edata(word1 >> 16).with_sender(mark.sender).with_user(mark.number);
        let word1 = Header2(word1)
            .with_length(length)
            .with_edata(edata.with_local(true).0 as u16)
            .with_strong_order(false)
            .with_remote_notice(false);
        // A program that waits for the Put must wake up to send its end.
        let word0 = Header1(word0 & !PREPARED).with_path(path).with_sps(0).with_interrupt(true);
        Descriptor([word0.0, word1.0, remote, local])
    }

    fn marks(&self) -> Prepared {
        Prepared(self.descriptors[self.len - 1].0[0])
    }

    /// Returns whether a notice of its end was requested.
    pub(crate) fn local_notice(&self) -> bool {
        Edata(self.descriptors[self.len - 1].0[1] >> 16).local()
    }

    /// Returns whether its completion is to be reported.
    pub(crate) fn tcq_notice(&self) -> bool {
        self.marks().tcq_notice()
    }

    /// Returns whether it waits for the next command.
    pub(crate) fn is_delayed(&self) -> bool {
        self.marks().delay()
    }

    /// Converts the prepared command to the form for the device, as sent by the VCQ with this extra
    /// value. If the queue has interrupts enabled and the program will be notified of the
    /// completion, the completion interrupts.
    #[inline(always)]
    pub(crate) fn finish(&mut self, extra: u8) -> &[Descriptor] {
        let interrupt = self.tcq_notice() || self.local_notice();
        let main = &mut self.descriptors[self.len - 1].0;
        main[0] = Header1(main[0] & !PREPARED).with_interrupt(interrupt).0;
        if main[0] & 0xff00 != 0 {
            main[1] = Edata(main[1] >> 16).with_sender(extra).0 << 16 | main[1] & 0xffff;
        }
        &self.descriptors[..self.len]
    }

    /// Returns the extra value of the target VCQ, or `None` if there is no target.
    #[inline]
    pub(crate) fn target(&self) -> Option<u8> {
        let main = self.descriptors[self.len - 1];
        let edata = Edata(main.0[1] >> 16);
        let extra = edata.target() | u8::from(self.marks().component()) << 3;
        (main.header1().command() != Opcode::Nop as u8).then_some(extra)
    }

    /// Returns the target VCQ without its path, the program's notice data, and the STADDs of the
    /// start and end of the remote memory. `None` for a command without a target.
    pub(crate) fn whereabouts(&self) -> Option<(VcqId, u8, [u64; 2])> {
        let main = self.descriptors[self.len - 1];
        let length = match Opcode::from_code(main.header1().command())? {
            Opcode::Put | Opcode::Get => u64::from(main.header2().length()),
            Opcode::PutPiggyback => u64::from(main.header2().piggyback_length()),
            Opcode::AtomicReadModifyWrite => 0,
            _ => return None,
        };
        let start = main.remote();
        let to = VcqId(main.0[0] & !0xffff_ffff).with_extra(self.target()?).with_cq(start.cqid());
        let user = Edata(main.0[1] >> 16).user();
        let ends = [start, start.advanced(length)].map(|at| at.with_cqid(0).0);
        Some((to, user, ends))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_abi::{Coords, CqId, TniId};

    fn id() -> u64 {
        VcqId::new(Coords::new(1, 2, 3, 1, 2, 1), TniId::ALL[4], CqId::ALL[6], 13).0
    }

    #[test]
    fn put_matches_the_golden_words() {
        let flags = 0x1_c12d | flags::sps(5) | flags::path(1);
        assert!(Posting::new(id(), 0, flags).is_err(), "bit 16 is no flag");
        let flags = flags & !0x1_0000;
        let posting = Posting::new(id(), 0xa5, flags).unwrap();
        let local = Stadd::new(0x1002, 0x40).0;
        let remote = Stadd::new(0xd07, 0x80).0;
        let packets = Packets::new(1924 - 4, 7).unwrap();
        let put = posting.put(local, remote, 0x12_3456, packets).unwrap();
        assert!(put.tcq_notice() && put.is_delayed());
        let mut put = put;
        let &[words] = put.finish(9) else {
            panic!("more than one descriptor");
        };
        // Path: the ID's own, 1101, with its A changed by the path ID; steps 5; mtu 240; Put.
        assert_eq!(words.0[0], id() & !0xffff_ffff | 0xc5f0_0101);
        // Length; edata a5; local notice, target 5, sender 9; flags j, p, q, s; gap.
        assert_eq!(words.0[1], 0x12_3456 << 32 | 0xa5d9_0000 | 0x2d00 | 7);
        assert_eq!(words.0[2], 6 << 58 | remote);
        assert_eq!(words.0[3], local);
    }

    #[test]
    fn commands_interrupt_if_the_program_learns_of_their_end() {
        let local = Stadd::new(0x1002, 0x40).0;
        let remote = Stadd::new(0xd07, 0x80).0;
        let wanted = [
            (0, false),
            (flags::REMOTE_MRQ_NOTICE, false),
            (flags::TCQ_NOTICE, true),
            (flags::LOCAL_MRQ_NOTICE, true),
        ];
        for (flags, wanted) in wanted {
            let posting = Posting::new(id(), 0, flags).unwrap();
            let mut put = posting.put(local, remote, 4096, Packets::default()).unwrap();
            let part = put.part(0, 256, Path::new(0, 0, 0), Mark { sender: 7, number: 1 });
            assert!(part.header1().interrupt(), "the library sends the end of the Put then");
            assert_eq!(put.finish(9)[0].header1().interrupt(), wanted, "{flags:#x}");
        }
    }

    #[test]
    fn double_descriptors_are_used_if_needed() {
        let posting = Posting::new(id(), 0, 0).unwrap();
        let data: [u8; 32] = core::array::from_fn(|i| i as u8);
        for len in 0..=32 {
            let put = posting.put_piggyback(&data[..len], 0).unwrap();
            assert_eq!(put.prepared().len(), if len <= 8 { 1 } else { 2 }, "{len}");
        }
        assert_eq!(posting.cswap4(1, 2, 0).unwrap().prepared().len(), 1);
        assert_eq!(posting.cswap8(1, 2, 0).unwrap().prepared().len(), 2);
        let code = |r: Result<Command, Error>| r.unwrap_err().code();
        assert_eq!(code(posting.put_piggyback(&[0; 33], 0)), Code::InvalidSize);
        assert_eq!(code(posting.put_piggyback8(0, 9, 0)), Code::InvalidSize);
        assert_eq!(code(posting.put_piggyback8(0, 8, 1 << 58)), Code::InvalidStadd);
        assert_eq!(code(posting.armw(0, 0, 4, 0)), Code::InvalidOp);
        assert_eq!(code(posting.armw(6, 0, 8, 0)), Code::InvalidOp);
        assert_eq!(code(posting.put(0, 0, 1 << 24, Packets::default())), Code::InvalidSize);
    }

    #[test]
    fn only_prepared_commands_are_taken() {
        let posting = Posting::new(id(), 1, flags::TCQ_NOTICE | flags::sps(15)).unwrap();
        let commands = [
            Command::nop(flags::TCQ_NOTICE).unwrap(),
            posting.put(0, 0, 1, Packets::new(8, 255).unwrap()).unwrap(),
            posting.get(0, 0, MAX_PUTGET_SIZE, Packets::default()).unwrap(),
            posting.put_piggyback(&[1; 32], 0).unwrap(),
            posting.armw(3, 1, 8, 0).unwrap(),
            posting.cswap8(1, 2, 0).unwrap(),
            Posting::new(id(), 0x100, 0).unwrap().put(0, 0, 1, Packets::default()).unwrap(),
        ];
        for command in commands {
            let parsed = Command::parse(command.prepared()).unwrap();
            assert_eq!(parsed, (command, command.prepared().len()));
        }
        let code = |d: &[Descriptor]| Command::parse(d).unwrap_err().code();
        assert_eq!(code(&[]), Code::InvalidDesc);
        assert_eq!(code(&[Descriptor([u64::MAX; 4])]), Code::InvalidDesc);
        assert_eq!(code(&[Descriptor([0x1000, 0, 0, 0])]), Code::InvalidDesc, "a raw packet");
        assert_eq!(code(&[Descriptor([0x80, 0, 0, 0])]), Code::InvalidDesc, "a flip bit");
        let buffer = Descriptor::write_piggyback_buffer([0; 3]);
        assert_eq!(code(&[buffer]), Code::InvalidDesc);
        assert_eq!(code(&[buffer, Descriptor::nop()]), Code::InvalidDesc);
    }

    #[test]
    fn packets_have_bounds() {
        for (mtu, gap, good) in [
            (0, 0, true),
            (1, 0, false),
            (7, 0, false),
            (8, 255, true),
            (1920, 256, false),
            (1921, 0, false),
        ] {
            assert_eq!(Packets::new(mtu, gap).is_ok(), good, "{mtu} {gap}");
        }
    }
}
