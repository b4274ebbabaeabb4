//! System packets as a driver sends and receives them: their destinations, and which entries of the
//! packet queues come next.

use crate::desc::{Command, Descriptor, Header1};
use crate::frame::HEADER_SIZE;
use crate::queue::{
    MrqId, PACKET_BUFFER_SIZE, PbqEntry, PrqEntry, PrqRcode, RingIndex, queue_entries,
};
use crate::regs::TniReg;
use crate::{Coords, Path, TniId};

/// The destination and the way of a system packet: its hops on X, Y and Z, towards higher
/// coordinates if positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketTarget {
    /// Hops on X, Y and Z.
    pub distances: [i8; 3],
    /// A, B and C of the target; its X, Y and Z follow from the distances.
    pub node: Coords,
    /// The node of the unit at which the packet enters X, Y, Z routing.
    pub path: Path,
    /// Network interface of the target.
    pub tni: TniId,
}

impl PacketTarget {
    /// The way from one node to another that crosses no date line, which every machine has, by
    /// the default path.
    pub fn straight(from: Coords, to: Coords, tni: TniId) -> Self {
        let hops = |from: u8, to: u8| to.wrapping_sub(from) as i8;
        Self {
            distances: [hops(from.x, to.x), hops(from.y, to.y), hops(from.z, to.z)],
            node: to,
            path: to.default_path(),
            tni,
        }
    }

    /// Its part of the first qword of a descriptor.
    pub fn header(&self) -> Header1 {
        Header1(0)
            .with_target(self.node)
            .with_distances(self.distances)
            .with_path(self.path)
            .with_ri(self.tni.get())
    }

    /// Returns the command that sends a packet of `payload` bytes, which begin 16 bytes after the
    /// device address `frame` (see [`crate::frame`]). If `interrupt` is set, the device raises an
    /// interrupt when the command ends.
    pub fn descriptor(&self, frame: u64, payload: u16, interrupt: bool) -> Descriptor {
        let length = payload.saturating_add(HEADER_SIZE as u16);
        let header = self.header().with_interrupt(interrupt);
        Descriptor::packet(Command::TransmitSystemPacket1, header, length, frame)
    }
}

/// The packet buffer queue and the packet receive queue of a TNI: which entry of each is next.
///
/// The buffers lie one after the other. The queues themselves are their owner's memory.
#[derive(Debug)]
pub struct PacketQueues {
    /// Device address of the first buffer.
    first: u64,
    /// Bytes of all buffers.
    len: u64,
    post: RingIndex,
    receive: RingIndex,
    /// Entries that the device knows to be consumed.
    full_pointer: u64,
}

impl PacketQueues {
    /// MRQ_MASK of the control queue that sends the packets: it also fetches from other nodes by
    /// Gets, whose ends are its only notices. So others cannot fill its message receive queue.
    pub const MRQ_MASK: u64 = MrqId::mask_all_but(&[MrqId::GetLast, MrqId::GetLastRemoteError]);
    /// PRQ_MASK that lets system packets pass, and nothing else.
    pub const SYSTEM_ONLY: u64 = !(1 << PrqRcode::SystemTlp as u8);
    /// The values to write to the registers of the TNI, in this order, to take queues and buffers
    /// from the device. Writes may be posted: when a read of one of these registers is answered,
    /// they have arrived, and nothing is written to the buffers any more.
    pub const CLOSED: [(TniReg, u64); 3] =
        [(TniReg::PrqPa, 0), (TniReg::PbqPa, 0), (TniReg::PrqInterruptArmPa, 0)];
    /// Size code of the queues.
    pub const SIZE_CODE: u8 = 0;
    /// Entries of each queue.
    pub const ENTRIES: u32 = match queue_entries(Self::SIZE_CODE as u64) {
        Some(entries) => entries,
        None => 0,
    };
    /// Largest number of buffers. The queues have twice as many entries, so that they never fill up
    /// although the driver only occasionally reports what it has consumed.
    pub const MAX_BUFFERS: u16 = (Self::ENTRIES / 2) as u16;

    /// Returns empty queues for this number of buffers, the first of which is at the device address
    /// `first`.
    pub const fn new(first: u64, buffers: u16) -> Self {
        Self {
            first,
            len: buffers as u64 * PACKET_BUFFER_SIZE as u64,
            post: RingIndex::new(Self::ENTRIES),
            receive: RingIndex::new(Self::ENTRIES),
            full_pointer: 0,
        }
    }

    /// The values to write to the registers of the TNI, in this order, when all buffers are posted.
    /// `mask` is PRQ_MASK; the queues are at the device addresses `pbq` and `prq`.
    pub const fn registers(mask: u64, pbq: u64, prq: u64) -> [(TniReg, u64); 6] {
        [
            (TniReg::PrqMask, mask),
            (TniReg::PrqEntryCoalescingTimer, 0),
            (TniReg::PbqSize, Self::SIZE_CODE as u64),
            (TniReg::PbqPa, pbq),
            (TniReg::PrqSize, Self::SIZE_CODE as u64),
            (TniReg::PrqPa, prq),
        ]
    }

    /// Posts the buffer at byte `at` of the buffer memory. Returns the slot of the packet buffer
    /// queue and the value to write there.
    pub const fn post(&mut self, at: usize) -> (usize, PbqEntry) {
        let posted =
            (self.post.slot() as usize, PbqEntry::post(self.first + at as u64, self.post.flip()));
        self.post.advance();
        posted
    }

    /// The slot of the packet receive queue that is written next.
    #[inline]
    pub const fn slot(&self) -> usize {
        self.receive.slot() as usize
    }

    /// Returns true if that slot, which has this content, was written.
    #[inline]
    pub const fn is_written(&self, entry: PrqEntry) -> bool {
        entry.f() == self.receive.flip()
    }

    /// Advances to the next entry. Occasionally this returns a value, which the driver must write
    /// to PRQ_FULL_POINTER when it posts the entry's buffer again.
    pub const fn advance(&mut self) -> Option<u64> {
        self.receive.advance();
        let count = self.receive.count();
        if count - self.full_pointer < (Self::ENTRIES / 4) as u64 {
            return None;
        }
        self.full_pointer = count;
        Some(count)
    }

    /// The place of an entry's buffer among the buffers, in bytes. The device names addresses that
    /// were posted. If it named another one and that were posted again, the device itself would
    /// write there.
    #[inline]
    pub const fn buffer(&self, entry: PrqEntry) -> Option<usize> {
        let at = entry.addr().wrapping_sub(self.first);
        let posted = at < self.len && at % PACKET_BUFFER_SIZE as u64 == 0;
        if posted { Some(at as usize) } else { None }
    }
}
