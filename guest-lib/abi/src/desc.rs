//! Transmit descriptors: the 32-byte commands of a transmit order queue (TOQ).

use crate::addr::{Coords, Path, StagOffset};
use crate::{bitfield, codes};

/// Bytes of a descriptor.
pub const DESC_SIZE: usize = 32;
/// Longest message of one command, in bytes: 2^24 - 1.
pub const MAX_MESSAGE: u32 = (1 << 24) - 1;
/// Payload bytes of one TLP at most.
pub const MAX_MTU: u32 = 1920;
/// The mtu field counts units of this many bytes.
pub const MTU_UNIT: u32 = 8;
/// Data that one PUT_PIGGYBACK can carry by itself, in bytes.
pub const PIGGYBACK_MAX: usize = 8;
/// Data that it can carry after a WRITE_PIGGYBACK_BUFFER, in bytes.
pub const PIGGYBACK_BUFFER_MAX: usize = 32;

/// Bits of the address in the fourth qword of a packet command.
const PACKET_ADDRESS: u64 = (1 << 48) - 1;

bitfield! {
    /// Common header 1: the first qword of a descriptor.
    ///
    /// Bits 63:28 are those of a uTofu VCQ ID.
    pub struct Header1 {
        /// Request an interrupt when the command's TCQ entry is written.
        interrupt / with_interrupt: bool @ 0..=0,
        /// The source of the descriptor. Ours: see [`source_type`].
        source_type / with_source_type: u8 @ 5..=6,
        /// Flip bit: the entry is valid when it differs from a blank entry's.
        flip / with_flip: bool @ 7..=7,
        /// Command code, see [`Command`].
        command / with_command: u8 @ 8..=15,
        /// Payload bytes per TLP at most, in units of 8; 0 means 1920 (ours).
        mtu / with_mtu: u8 @ 16..=23,
        /// Operator of an ATOMIC_READ_MODIFY_WRITE, see [`ArmwOp`].
        op / with_op: u8 @ 20..=23,
        /// E flag of a TRANSMIT_RAW_PACKET2. Ours: the frame is sent marked as bad.
        e / with_e: bool @ 23..=23,
        /// Session progress steps to add at the target.
        sps / with_sps: u8 @ 24..=27,
        /// Path: A coordinate.
        pa / with_pa: u8 @ 28..=28,
        /// Path: B coordinate.
        pb / with_pb: u8 @ 29..=30,
        /// Path: C coordinate.
        pc / with_pc: u8 @ 31..=31,
        /// Target X.
        rx / with_rx: u8 @ 32..=39,
        /// Target Y.
        ry / with_ry: u8 @ 40..=47,
        /// Target Z.
        rz / with_rz: u8 @ 48..=55,
        /// Target A.
        ra / with_ra: u8 @ 56..=56,
        /// Target B.
        rb / with_rb: u8 @ 57..=58,
        /// Target C.
        rc / with_rc: u8 @ 59..=59,
        /// Target network interface.
        ri / with_ri: u8 @ 61..=63,
        /// Port of a TRANSMIT_RAW_PACKET2.
        port / with_port: u8 @ 56..=60,
        /// Virtual channel of a TRANSMIT_RAW_PACKET2.
        vc / with_vc: u8 @ 62..=63,
    }
}

impl Header1 {
    /// The target's coordinates.
    pub const fn target(self) -> Coords {
        Coords::new(self.rx(), self.ry(), self.rz(), self.ra(), self.rb(), self.rc())
    }

    /// A copy with the target's coordinates replaced.
    #[must_use]
    pub const fn with_target(self, n: Coords) -> Self {
        self.with_rx(n.x).with_ry(n.y).with_rz(n.z).with_ra(n.a).with_rb(n.b).with_rc(n.c)
    }

    /// Hops on X, Y and Z of a system packet, towards higher coordinates if positive. That the
    /// fields rdx, rdy and rdz are signed is ours.
    pub const fn distances(self) -> [i8; 3] {
        [self.rx() as i8, self.ry() as i8, self.rz() as i8]
    }

    /// A copy with the hops on X, Y and Z replaced.
    #[must_use]
    pub const fn with_distances(self, d: [i8; 3]) -> Self {
        self.with_rx(d[0] as u8).with_ry(d[1] as u8).with_rz(d[2] as u8)
    }

    /// The path.
    pub const fn path(self) -> Path {
        Path::new(self.pa(), self.pb(), self.pc())
    }

    /// A copy with the path replaced.
    #[must_use]
    pub const fn with_path(self, p: Path) -> Self {
        self.with_pa(p.a).with_pb(p.b).with_pc(p.c)
    }
}

/// Values of the source_type field (ours; only the field's name is public).
pub mod source_type {
    /// The descriptor lies in the transmit order queue.
    pub const TOQ: u8 = 0;
    /// The descriptor was written to the direct descriptor register. A queue entry with this type
    /// only reserves the place of such a descriptor.
    pub const DIRECT: u8 = 1;
}

bitfield! {
    /// Common header 2: the second qword of a descriptor (but not of a
    /// WRITE_PIGGYBACK_BUFFER, where it is data).
    pub struct Header2 {
        /// Gap between two TLPs.
        gap / with_gap: u8 @ 0..=7,
        /// Strong order: write the payload after all earlier accesses.
        strong_order / with_strong_order: bool @ 8..=8,
        /// Packet response: a notice for every TLP rather than for the last one only.
        packet_response / with_packet_response: bool @ 9..=9,
        /// Remote notice: the target's message receive queue gets one too.
        remote_notice / with_remote_notice: bool @ 10..=10,
        /// Padding: TLPs are padded to whole cache lines on the link.
        padding / with_padding: bool @ 11..=11,
        /// Cache injection at the target.
        cache_injection / with_cache_injection: bool @ 13..=13,
        /// Data for the notices at both ends.
        edata / with_edata: u16 @ 16..=31,
        /// Bytes of the message.
        length / with_length: u32 @ 32..=55,
        /// Bytes of piggyback data.
        piggyback_length / with_piggyback_length: u8 @ 32..=37,
        /// Bytes of a raw or system packet.
        packet_length / with_packet_length: u16 @ 32..=43,
    }
}

codes! {
    /// Command codes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Command {
        /// Does nothing but complete.
        Nop = 0x00,
        /// Writes local memory to remote memory.
        Put = 0x01,
        /// Keeps 24 bytes of data for the next PUT_PIGGYBACK.
        WritePiggybackBuffer = 0x02,
        /// Writes up to 8 (or 32) bytes of the descriptor's own data to remote memory.
        PutPiggyback = 0x03,
        /// Reads remote memory into local memory.
        Get = 0x04,
        /// Reads remote memory into local memory. The difference from GET is not public; here there
        /// is none (ours).
        GetL = 0x05,
        /// Reads, changes and writes back 4 or 8 bytes of remote memory.
        AtomicReadModifyWrite = 0x0e,
        /// Sends a frame as it lies in memory to a node.
        TransmitRawPacket1 = 0x10,
        /// Sends a frame as it lies in memory through a given port, one hop far.
        TransmitRawPacket2 = 0x11,
        /// Sends a system packet.
        TransmitSystemPacket1 = 0x12,
        /// Sends a system packet. The difference from TRANSMIT_SYSTEM_PACKET1 is not public; here
        /// there is none (ours).
        TransmitSystemPacket2 = 0x13,
    }
}

codes! {
    /// Operators of ATOMIC_READ_MODIFY_WRITE.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum ArmwOp {
        /// Compare and swap. The code is inferred from the order of uTofu's capability bits.
        CompareAndSwap = 0,
        /// Writes the operand.
        Swap = 1,
        /// Adds the operand, wrapping.
        Add = 2,
        /// Exclusive or with the operand.
        Xor = 3,
        /// And with the operand.
        And = 4,
        /// Or with the operand.
        Or = 5,
    }
}

/// One 32-byte descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[repr(C, align(32))]
pub struct Descriptor(pub [u64; 4]);

impl Descriptor {
    /// Common header 1.
    pub const fn header1(&self) -> Header1 {
        Header1(self.0[0])
    }

    /// Common header 2.
    pub const fn header2(&self) -> Header2 {
        Header2(self.0[1])
    }

    /// Remote address of a Put, Get, piggyback or atomic command.
    pub const fn remote(&self) -> StagOffset {
        StagOffset(self.0[2])
    }

    /// Local address of a Put or Get.
    pub const fn local(&self) -> StagOffset {
        StagOffset(self.0[3])
    }

    /// Piggyback data or atomic operand.
    pub const fn data(&self) -> u64 {
        self.0[3]
    }

    /// A descriptor of a command without data.
    pub const fn nop() -> Self {
        Self([0; 4])
    }

    /// A Put or Get, by `command`, of `length` bytes. The other fields of both headers are
    /// taken as they are.
    pub const fn transfer(
        command: Command,
        header1: Header1,
        header2: Header2,
        remote: StagOffset,
        local: StagOffset,
        length: u32,
    ) -> Self {
        Self([
            header1.with_command(command as u8).0,
            header2.with_length(length).0,
            remote.0,
            local.0,
        ])
    }

    /// A WRITE_PIGGYBACK_BUFFER with its 24 bytes.
    pub const fn write_piggyback_buffer(data: [u64; 3]) -> Self {
        Self([
            Header1(0).with_command(Command::WritePiggybackBuffer as u8).0,
            data[0],
            data[1],
            data[2],
        ])
    }

    /// A PUT_PIGGYBACK of `length` bytes, the first eight of which are `data`, little endian.
    ///
    /// Longer data continues in the piggyback buffer (ours: the public sources give the two sizes,
    /// not the order of the bytes).
    pub const fn put_piggyback(
        header1: Header1,
        header2: Header2,
        remote: StagOffset,
        data: u64,
        length: u8,
    ) -> Self {
        Self([
            header1.with_command(Command::PutPiggyback as u8).0,
            header2.with_piggyback_length(length).0,
            remote.0,
            data,
        ])
    }

    /// An ATOMIC_READ_MODIFY_WRITE on `length` (4 or 8) bytes.
    ///
    /// A 4-byte compare-and-swap has the old value in bits 31:0 of the operand and the new
    /// one in bits 63:32. An 8-byte one has the old value in the operand and the new one in
    /// the first qword of a preceding WRITE_PIGGYBACK_BUFFER (both ours).
    pub const fn armw(
        header1: Header1,
        header2: Header2,
        op: ArmwOp,
        remote: StagOffset,
        operand: u64,
        length: u32,
    ) -> Self {
        Self([
            header1.with_command(Command::AtomicReadModifyWrite as u8).with_op(op as u8).0,
            header2.with_length(length).0,
            remote.0,
            operand,
        ])
    }

    /// A packet command, by `command`, for `length` bytes at the device address `pa`.
    ///
    /// `header1` has the fields besides the command, see [`Header1`]; for the contents of the
    /// memory at `pa` see [`crate::frame`].
    pub const fn packet(command: Command, header1: Header1, length: u16, pa: u64) -> Self {
        Self([
            header1.with_command(command as u8).0,
            Header2(0).with_packet_length(length).0,
            0,
            pa & PACKET_ADDRESS,
        ])
    }

    /// Address of the frame of a packet command.
    pub const fn packet_address(&self) -> u64 {
        self.0[3] & PACKET_ADDRESS
    }

    /// A copy with the flip bit set to `flip`.
    #[must_use]
    pub const fn with_flip(self, flip: bool) -> Self {
        Self([Header1(self.0[0]).with_flip(flip).0, self.0[1], self.0[2], self.0[3]])
    }

    /// The descriptor as it lies in memory.
    pub fn to_bytes(&self) -> [u8; DESC_SIZE] {
        let mut bytes = [0; DESC_SIZE];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}
