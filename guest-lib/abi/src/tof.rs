//! The ioctls of `/proc/tofu`, the interface that programs know from the machines that have this
//! controller: numbers, layouts, and what can be checked of an argument without a device.
//!
//! Numbers, sizes and offsets are public, names are ours. The kernel driver reads these structures
//! from a process's memory, so every bit pattern is a valid value of each, and none has padding.
//! The checks here are the same for all devices of a generation; ownership is not checked here.

use core::ops::Range;

use crate::barrier::{BgAddress, LocalLink, RemoteLink, SignalMask};
use crate::generation::Description;
use crate::queue::queue_entries;
use crate::regs::{BAR0_SIZE, CqsMode, NUM_CQ, NUM_PORT, NUM_TNI};
use crate::table::PageSize;
use crate::topology::{Port, Shape};
use crate::{BgId, Coords, CqId, Path, TniId};

/// The number of the n-th ioctl: `_IOWR('d', n, long)`. The size field is always 8, regardless of
/// the argument.
pub const fn request(n: u32) -> u32 {
    0xc008_6400 + n
}

/// Opens the queue.
pub const INIT_CQ: u32 = request(0);
/// Registers memory.
pub const ALLOC_STAG: u32 = request(1);
/// Deregisters memory.
pub const FREE_STAGS: u32 = request(2);
/// Sets up a barrier channel with its gates.
pub const ENABLE_BCH: u32 = request(3);
/// Takes the barrier channel down.
pub const DISABLE_BCH: u32 = request(4);
/// Chooses the signal that reports exceptions.
pub const SET_RT_SIGNAL: u32 = request(5);
/// Sets the default subnet, for users without one.
pub const SET_SUBNET: u32 = request(6);
/// Registers the rights of a user.
pub const REG_USER: u32 = request(7);
/// Reports links that are down.
pub const NOTIFY_LINKDOWN: u32 = request(8);
/// Reads the counters of a port.
pub const GET_PORT_STAT: u32 = request(9);
/// Reads the counters of a queue.
pub const GET_CQ_STAT: u32 = request(10);
/// Reads registers.
pub const LOAD_REGISTER: u32 = request(11);
/// Reads queues and tables.
pub const LOAD_RESOURCE: u32 = request(12);

/// Declares an argument that is plain integers without padding, or with padding that is a field.
macro_rules! arguments {
    ($(
        $(#[$meta:meta])*
        $name:ident, $size:literal { $( $field:ident: $ty:ty ),* $(,)? }
    )*) => { $(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs, reason = "docs/src/reference/tof-uapi.md has what they mean")]
        pub struct $name { $( pub $field: $ty ),* }
        const _: () = assert!(size_of::<$name>() == $size);
        const _: () = assert!(0 $( + size_of::<$ty>() )* == $size);
    )* };
}

arguments! {
    /// INIT_CQ.
    InitCq, 32 {
        version: u16, session_mode: u8, toq_size: u8, mrq_size: u8, num_stag: u8, tcq_cinj: u8,
        mrq_cinj: u8, toq_mem: u64, tcq_mem: u64, mrq_mem: u64,
    }
    /// ALLOC_STAG.
    AllocStag, 32 { flags: u32, stag: i32, offset: u64, va: u64, len: u64 }
    /// FREE_STAGS.
    FreeStags, 16 { num: u16, pad: [u8; 6], stags: u64 }
    /// ENABLE_BCH.
    EnableBch, 24 { addr: u64, bseq: i32, num: i32, bgs: u64 }
    /// An address of a gate's neighbour.
    Addr, 9 { pa: u8, pb: u8, pc: u8, x: u8, y: u8, z: u8, a: u8, b: u8, c: u8 }
    /// A gate of ENABLE_BCH. Less than 0 is no gate.
    SetBg, 56 {
        tni: i32, gate: i32, source_lgate: i32, source_raddr: Addr, pad0: [u8; 3],
        source_rtni: i32, source_rgate: i32, dest_lgate: i32, dest_raddr: Addr, pad1: [u8; 3],
        dest_rtni: i32, dest_rgate: i32,
    }
    /// SET_SUBNET, and a part of REG_USER: size, start and length on X, Y and Z.
    Subnet, 20 { unused: [u32; 2], parts: [[u8; 3]; 3], pad: [u8; 3] }
    /// REG_USER.
    RegUser, 48 { uid: u32, gpid: u32, subnet: Subnet, pad: [u8; 4], cqmask: u64, bgmask: u64 }
    /// NOTIFY_LINKDOWN.
    NotifyLinkdown, 16 { num: i32, pad: [u8; 4], items: u64 }
    /// An item of NOTIFY_LINKDOWN.
    LinkdownItem, 8 { x: u8, y: u8, z: u8, a: u8, b: u8, c: u8, ports: u16 }
    /// GET_PORT_STAT.
    PortStat, 264 { port_no: i32, pad: [u8; 4], mask: u64, pa: [u64; 31] }
    /// GET_CQ_STAT.
    CqStat, 24 { tni: i32, cqid: i32, txbyte: u64, rxbyte: u64 }
    /// LOAD_REGISTER.
    LoadRegister, 24 { pa: u64, len: u64, buf: u64 }
    /// LOAD_RESOURCE.
    LoadResource, 32 { rsc_id: u64, offset: u64, len: u64, buf: u64 }
}

/// Version that INIT_CQ has to name.
pub const VERSION: u16 = 0x2a00;
/// ALLOC_STAG: others may only read.
pub const READ_ONLY: u32 = 1;
/// ALLOC_STAG: the table may have large pages.
pub const LARGE_PAGES: u32 = 2;
/// ALLOC_STAG: a new STag even if the memory has one already (ours).
pub const NEW_STAG: u32 = 1 << 31;
/// STags that a process chooses itself; others are given out from here on.
pub const SPECIAL_STAGS: u32 = 4096;
/// REG_USER: unregisters the user (ours).
pub const NO_GROUP: u32 = u32::MAX;

/// Sizes of a queue, in entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSizes {
    /// Entries of the TOQ, and of the TCQ.
    pub toq: u32,
    /// Entries of the MRQ.
    pub mrq: u32,
    /// STags.
    pub stags: u32,
}

impl InitCq {
    /// The sizes; `None` if a field is out of range.
    pub fn sizes(&self) -> Option<QueueSizes> {
        let fit = self.version == VERSION
            && self.session_mode <= 1
            && self.num_stag <= 2
            && self.tcq_cinj <= 1
            && self.mrq_cinj <= 1;
        Some(QueueSizes {
            toq: queue_entries(self.toq_size.into()).filter(|_| fit)?,
            mrq: queue_entries(self.mrq_size.into())?,
            stags: 1 << (13 + self.num_stag),
        })
    }
}

/// The pages, of `page` bytes, that hold `len` bytes from `addr`: first byte, and the one behind
/// the last. `None` if there are no such addresses, or more than an STag can name.
pub fn pages_around(addr: u64, len: u64, page: u64) -> Option<(u64, u64)> {
    let end = addr.checked_add(len)?.checked_next_multiple_of(page)?;
    let start = addr - addr % page;
    (end <= i64::MAX as u64 && end - start <= MAX_SPAN).then_some((start, end))
}

/// The most bytes of an STag: the range of its offset.
const MAX_SPAN: u64 = 1 << crate::addr::OFFSET_BITS;
/// The alignment at which the address space of an STag begins, as on machines with pages of this
/// size. Programs rely on an offset having the same low bits as the address.
const BASE_ALIGN: u64 = 1 << 16;
const HUGE: u64 = PageSize::Size2M.bytes();

impl AllocStag {
    /// The STag that the process requests, or `Some(None)` if the driver chooses; `None` if a field
    /// is out of range.
    pub fn wanted(&self) -> Option<Option<u32>> {
        let known = READ_ONLY | LARGE_PAGES | NEW_STAG;
        let wanted = u32::try_from(self.stag).ok();
        let fit = self.flags & !known == 0
            && self.stag >= -1
            && wanted.is_none_or(|stag| stag < SPECIAL_STAGS)
            && self.va != 0
            && self.len != 0;
        fit.then_some(wanted)
    }
}

/// The memory behind an STag: pages of the process, and how they are mapped.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First byte that the process requested.
    va: u64,
    /// First byte of the first page, and the one behind the last.
    start: u64,
    end: u64,
    /// The start of the address space, unless the process has chosen the STag.
    base: u64,
    large: bool,
    read_only: bool,
}

impl Span {
    /// In pages of `page` bytes. `None` if there are no such addresses, or more than an offset can
    /// say.
    pub fn new(a: &AllocStag, page: u64) -> Option<Self> {
        let (start, end) = pages_around(a.va, a.len, page)?;
        let large = a.flags & LARGE_PAGES != 0 && end - start >= HUGE;
        let base = start & !(if large { HUGE } else { BASE_ALIGN } - 1);
        let read_only = a.flags & READ_ONLY != 0;
        (end - base <= MAX_SPAN).then_some(Self { va: a.va, start, end, base, large, read_only })
    }

    /// First byte of the first page, and the one behind the last.
    pub const fn range(&self) -> (u64, u64) {
        (self.start, self.end)
    }

    /// Others may only read.
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns true if the public interface has one STag for both: it counts in pages of 64 KiB.
    pub fn serves(&self, other: &Self) -> bool {
        let properties = |span: &Self| (span.base, span.large, span.read_only);
        properties(self) == properties(other)
            && self.end.div_ceil(BASE_ALIGN) == other.end.div_ceil(BASE_ALIGN)
            && (self.start..=self.end).contains(&other.start)
            && other.end <= self.end
    }

    /// The start of the address space of `stag`. If the process has chosen the STag, this is the
    /// start of the memory itself.
    pub const fn origin(&self, stag: u32) -> u64 {
        if stag < SPECIAL_STAGS { self.va & !0xff } else { self.base }
    }

    /// The offset of the first byte that the process requested, under `stag`.
    pub const fn offset(&self, stag: u32) -> u64 {
        self.va - self.origin(stag)
    }

    /// The page size with which the device maps the memory if its addresses are one range.
    pub const fn range_page(&self) -> PageSize {
        if self.end - self.start >= HUGE { PageSize::Size2M } else { PageSize::Size64K }
    }

    /// The start of the device's page table: with pages of `range_page`, or with the device's
    /// smallest pages.
    pub const fn first(&self, is_range: bool) -> u64 {
        if is_range { self.start & !(self.range_page().bytes() - 1) } else { self.base }
    }

    /// The word of the process's translation table for the STag; `large` says whether the device
    /// has large pages.
    pub const fn user_entry(&self, large: bool) -> u64 {
        let units = (self.end - self.base).div_ceil(BASE_ALIGN);
        self.base >> 16 & ((1 << 36) - 1)
            | (units & ((1 << 27) - 1)) << 36
            | ((self.large && large) as u64) << 63
    }
}

impl EnableBch {
    /// Alignment of the notice area.
    const NOTICE_ALIGN: u64 = 256;

    /// The number of gates; `None` if a field is out of range.
    pub fn gates(&self, description: &Description) -> Option<usize> {
        let barrier = &description.barrier;
        let most = i32::from(barrier.tnis) * i32::from(barrier.gates);
        let fit = self.addr != 0
            && self.addr % Self::NOTICE_ALIGN == 0
            && (0..1 << 24).contains(&self.bseq)
            && (0..=most).contains(&self.num);
        usize::try_from(self.num).ok().filter(|_| fit)
    }
}

/// The links of a gate, as its registers have them.
#[derive(Clone, Copy, Debug)]
pub struct GateLinks {
    /// SIGNAL_MASK.
    pub mask: SignalMask,
    /// LOCAL_LINK.
    pub local: LocalLink,
    /// REMOTE_LINK.
    pub remote: RemoteLink,
}

impl SetBg {
    /// The gate; `None` if there is none.
    pub fn id(&self, description: &Description) -> Option<(TniId, BgId)> {
        Some((tni(self.tni, description)?, gate(self.gate, description)?))
    }

    /// Its links; `None` if a gate or node cannot exist, or lies outside of the subnet.
    pub fn links(&self, subnet: CqsMode, description: &Description) -> Option<GateLinks> {
        let local = |number: i32| match number {
            ..0 => Some(None),
            _ => gate(number, description).map(Some),
        };
        let remote = |addr: &Addr, tni_number, number: i32| match number {
            ..0 => Some(None),
            _ => {
                let (tni, gate) = (tni(tni_number, description)?, gate(number, description)?);
                addr.gate(tni, gate, subnet).map(Some)
            }
        };
        let source = local(self.source_lgate)?;
        let dest = local(self.dest_lgate)?;
        let from = remote(&self.source_raddr, self.source_rtni, self.source_rgate)?;
        let to = remote(&self.dest_raddr, self.dest_rtni, self.dest_rgate)?;
        Some(GateLinks {
            mask: SignalMask(0)
                .with_sig_recv(source.is_none())
                .with_tlp_recv(from.is_none())
                .with_sig_send(dest.is_none())
                .with_tlp_send(to.is_none()),
            local: LocalLink(0)
                .with_recv(source.map_or(0, BgId::get))
                .with_send(dest.map_or(0, BgId::get)),
            remote: RemoteLink(0)
                .with_recv(from.map_or(0, |from| from.place().0 as u32))
                .with_send(to.map_or(0, |to| to.0 as u32)),
        })
    }
}

impl Addr {
    /// A gate there; `None` if there is no such node or path, or it lies outside of the subnet.
    fn gate(&self, tni: TniId, gate: BgId, subnet: CqsMode) -> Option<BgAddress> {
        let node = Coords::new(self.x, self.y, self.z, self.a, self.b, self.c);
        let path = Path::new(self.pa, self.pb, self.pc);
        let fit = Shape::LARGEST.contains(node)
            && Shape::LARGEST.contains_path(path)
            && subnet.subnet_allows(self.x, self.y, self.z);
        fit.then(|| BgAddress::new(node, tni, gate).with_path(path))
    }
}

fn tni(number: i32, description: &Description) -> Option<TniId> {
    let id = u8::try_from(number).ok().and_then(TniId::new)?;
    (id.get() < description.barrier.tnis).then_some(id)
}

fn gate(number: i32, description: &Description) -> Option<BgId> {
    let id = u8::try_from(number).ok().and_then(BgId::new)?;
    (id.get() < description.barrier.gates).then_some(id)
}

impl Subnet {
    /// The fields as CQS MODE has them; `None` if a partition does not lie in its system, or a size
    /// is above 32.
    pub fn mode(&self) -> Option<CqsMode> {
        crate::Subnet::new(self.parts).map(crate::Subnet::mode)
    }
}

impl RegUser {
    /// Returns the queues or gates of the mask `given` that are also in `there`: programs written
    /// for TofuD register all queues and gates that TofuD has. `None` if some are outside of
    /// `known`.
    pub fn masks(
        given: [u64; NUM_TNI],
        known: u64,
        there: [u64; NUM_TNI],
    ) -> Option<[u64; NUM_TNI]> {
        let fit = given.iter().all(|mask| mask & !known == 0);
        let mut masks = given;
        masks.iter_mut().zip(there).for_each(|(mask, there)| *mask &= there);
        fit.then_some(masks)
    }

    /// Queues that programs know.
    pub const CQ_MASK: u64 = (1 << (NUM_CQ - 1)) - 1;

    /// Gates that programs know, or that there are.
    pub fn bg_mask(description: &Description) -> u64 {
        description.user_gates().iter().fold((1 << 44) - 1, |all, mask| all | mask)
    }
}

impl NotifyLinkdown {
    /// The number of items; `None` if there are too many (ours).
    pub fn count(&self) -> Option<u64> {
        u64::try_from(self.num).ok().filter(|num| *num <= 4096)
    }
}

impl LinkdownItem {
    /// The node; `None` if there can be no such node, or it has no such ports.
    pub fn node(&self) -> Option<Coords> {
        let node = Coords::new(self.x, self.y, self.z, self.a, self.b, self.c);
        (Shape::LARGEST.contains(node) && self.ports >> NUM_PORT == 0).then_some(node)
    }
}

impl PortStat {
    /// The port; `None` if there is none.
    pub fn port(&self) -> Option<Port> {
        Port::from_index(usize::try_from(self.port_no).ok()?.checked_sub(1)?)
    }
}

impl CqStat {
    /// The queue; `None` if there is none.
    pub fn queue(&self, description: &Description) -> Option<(TniId, CqId)> {
        let tni = u8::try_from(self.tni).ok().and_then(TniId::new)?;
        let cq = u8::try_from(self.cqid).ok().and_then(CqId::new)?;
        (description.has_tni(tni) && description.has_cq(cq)).then_some((tni, cq))
    }
}

/// The address of the registers on a real machine. LOAD_REGISTER counts from it.
const HARDWARE_BASE: u64 = 0x4000_0000;
/// Bytes that LOAD_REGISTER and LOAD_RESOURCE give at most in one call (ours).
const MAX_LOAD: u64 = 16 << 20;

impl LoadRegister {
    /// The registers, by their offsets in BAR 0; `None` if they do not lie there.
    pub fn range(&self) -> Option<Range<u64>> {
        let start = self.pa.checked_sub(HARDWARE_BASE)?;
        let end = start.checked_add(self.len)?;
        let fit = (start | self.len) % 8 == 0 && end <= BAR0_SIZE && self.len <= MAX_LOAD;
        fit.then_some(start..end)
    }
}

/// The value that LOAD_RESOURCE reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A ring of a queue.
    Ring {
        /// The queue: 12 TNI + queue.
        queue: usize,
        /// 0 TOQ, 1 TCQ, 2 MRQ.
        ring: usize,
    },
    /// Packet queues, which are not dumped.
    Packets,
    /// A table of a queue.
    Table {
        /// The queue: 12 TNI + queue.
        queue: usize,
        /// Its memory block table, and not its steering table.
        blocks: bool,
    },
}

impl LoadResource {
    /// The resource; `None` if there is none, or too much of it is to be read. Numbers are as in
    /// the public interface. Its list leaves out the steering tables of queues 0 to 2 of the last
    /// TNI, so later numbers are lower by three.
    pub fn resource(&self) -> Option<Resource> {
        const QUEUES: u64 = (NUM_TNI * NUM_CQ) as u64;
        const STEERING: u64 = 3 * QUEUES + 2 * NUM_TNI as u64;
        const LEFT_OUT: u64 = 3;
        const BLOCKS: u64 = STEERING + QUEUES - LEFT_OUT;
        const END: u64 = BLOCKS + QUEUES;
        const LAST_TNI: u64 = QUEUES - NUM_CQ as u64;
        let resource = match self.rsc_id {
            id if id < 3 * QUEUES => {
                Resource::Ring { queue: (id % QUEUES) as usize, ring: (id / QUEUES) as usize }
            }
            id if id < STEERING => Resource::Packets,
            id if id < BLOCKS => {
                let n = id - STEERING;
                let queue = if n < LAST_TNI { n } else { n + LEFT_OUT };
                Resource::Table { queue: queue as usize, blocks: false }
            }
            id if id < END => Resource::Table { queue: (id - BLOCKS) as usize, blocks: true },
            _ => return None,
        };
        (self.len <= MAX_LOAD).then_some(resource)
    }
}
