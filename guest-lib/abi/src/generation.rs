//! The generations of Tofu: the features of each, for controllers, drivers and programs.
//!
//! Every difference between generations that is visible to a guest is in their [`Description`]s:
//! devices, drivers, libraries and tools read it from here. Sources are named in front of each
//! description; IEEE Micro is *The Tofu Interconnect* (2012), Fujitsu *Tofu: Interconnect for the K
//! computer* (FSTJ 48-3, 2012), TofuD *The Tofu Interconnect D* (CLUSTER 2018).
//!
//! The public register map is TofuD's. *Ours*: the registers of the other generations are where
//! TofuD's are, as far as these generations have them.

use core::fmt;

use crate::Coords;
use crate::barrier::Profile;
use crate::desc::{Command, PIGGYBACK_BUFFER_MAX};
use crate::ids::{BgId, CqId, TniId};
use crate::pci::{DEVICE_TOFU, DEVICE_TOFU2, DEVICE_TOFUD, VENDOR_ID};
use crate::reduce::{MAX_DOUBLES, MAX_INTEGERS};
use crate::regs::{BgsReg, MAX_BG, NUM_BCH, NUM_BG, NUM_CQ, NUM_PORT, NUM_TNI, Register, TofuReg};

/// A generation of machines with a Tofu interconnect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Generation {
    /// The K computer: Tofu.
    K,
    /// PRIMEHPC FX10: Tofu on a faster bus.
    Fx10,
    /// PRIMEHPC FX100: Tofu2.
    Fx100,
    /// Fugaku: TofuD.
    #[default]
    Fugaku,
}

/// The links of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Lanes of one direction.
    pub lanes: u8,
    /// Bits that a lane moves, in kbit/s.
    pub lane_kbps: u32,
    /// Data bits, and the bits that they are sent as.
    pub coding: (u8, u8),
}

impl Link {
    /// Data that a lane moves, in kB/s.
    pub const fn lane_kbytes(&self) -> u32 {
        let data = self.lane_kbps as u64 * self.coding.0 as u64;
        match data.checked_div(self.coding.1 as u64 * 8) {
            Some(kbytes) => kbytes as u32,
            None => 0,
        }
    }

    /// Data that all lanes move, in kB/s.
    pub const fn kbytes(&self) -> u32 {
        self.lane_kbytes() * self.lanes as u32
    }

    /// Bytes a second in one direction.
    pub const fn bytes_per_s(&self) -> u64 {
        self.kbytes() as u64 * 1000
    }
}

/// Bits of the parts of a global address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressBits {
    /// Of a node: X, Y and Z have five each, A and C one, B two.
    pub node: u8,
    /// Of the number of an interface.
    pub interface: u8,
    /// Of the number of a control queue; 0 if the STag selects the queue.
    pub queue: u8,
    /// Of a steering tag.
    pub stag: u8,
    /// Of an offset in the memory of a steering tag.
    pub offset: u8,
}

/// Core memory groups (CMGs) of a node, the domains of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryGroups {
    /// Those near the network interfaces.
    pub near: u8,
    /// Those far from them, where it takes longer.
    pub far: u8,
}

impl MemoryGroups {
    /// The control queues, as bits, for which [`MemoryGroups::is_far`] is true.
    pub const fn far_queues(&self) -> u16 {
        let (mut bits, mut cq) = (0, 0);
        while cq < u16::BITS as u8 {
            bits |= (self.is_far(cq) as u16) << cq;
            cq += 1;
        }
        bits
    }

    /// Returns true if the process with a control queue is in a group that is far from the
    /// interfaces.
    ///
    /// *Ours*: processes are dealt to the groups in turn, in the order of their control queues, the
    /// near ones first.
    pub const fn is_far(&self, cq: u8) -> bool {
        // Without a remainder that could panic, which the kernel's objtool complains of.
        match cq.checked_rem(self.near.saturating_add(self.far)) {
            Some(place) => place >= self.near,
            None => false,
        }
    }
}

/// The properties of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its name in machine files and on command lines.
    pub name: &'static str,
    /// The machine, as people call it.
    pub machine: &'static str,
    /// The interconnect.
    pub interconnect: &'static str,
    /// Which version of the interconnect that is: what `utofu_query_tofu_version` says.
    pub version: u8,
    /// PCI device id.
    pub device_id: u16,
    /// Network interfaces of a node.
    pub tnis: u8,
    /// Control queues of an interface. The last one is the kernel's.
    pub cqs: u8,
    /// Processes of a node that can have a control queue of some interface for themselves.
    pub processes: u8,
    /// Cores of a node that run programs.
    pub cores: u8,
    /// Domains of a node's memory.
    pub groups: MemoryGroups,
    /// Barrier gates and channels.
    pub barrier: Profile,
    /// Barrier channels of an interface that the system keeps for itself: the last ones.
    pub system_channels: u8,
    /// True if there are atomic commands (ARMW).
    pub atomics: bool,
    /// Bytes of data that descriptors bring along at most.
    pub piggyback: u8,
    /// True if control queues can be in session mode.
    pub session_mode: bool,
    /// True if targets can put data into their caches.
    pub cache_injection: bool,
    /// Parts of a global address.
    pub address: AddressBits,
    /// The width of the data path in bytes; parts of packets are aligned to it.
    pub alignment: u8,
    /// Clock of the logic, in kHz.
    pub clock_khz: u32,
    /// Link ports of a node.
    pub ports: u8,
    /// The properties of each link.
    pub link: Link,
    /// Bytes a second of data on the bus between memory and interfaces, in either direction, if
    /// that is less than the interfaces can send.
    pub bus_bytes_per_s: Option<u64>,
    /// The block of nodes within which links are electric, X Y Z A B C; links that leave it are
    /// optical. `None` if all are electric.
    pub electric_block: Option<[u8; 6]>,
    /// The nodes of a board, X Y Z A B C. A board is replaced as a whole when a part of it fails.
    pub board: [u8; 6],
    /// The nodes of a shelf, X Y Z A B C, if the papers have shelves.
    pub shelf: Option<[u8; 6]>,
    /// True if the optical links of a board's two nodes in the same direction share a cable.
    pub shared_cables: bool,
}

/// Sources. IEEE Micro: 312.5 MHz; four interfaces with two queues for users and one for the
/// kernel; 8 channels and 64 gates on interface 0; commands for Put, Get, data in descriptors,
/// system packets and barriers; addresses of 19, 2, 22 and 40 bits; a board of four nodes on A and
/// C. Fujitsu: one of the channels is the system's. TofuD: queues for eight processes and one
/// element of a reduction (II.A); atomic commands, session mode and cache injection came with Tofu2
/// (II.B, V.B); alignment (V.D), lanes (Table I) and the bus (Table IV). *Ours*: which channel is
/// the system's; and the upper four bits of an STag number the control queue whose tables have it,
/// so that addresses look like TofuD's.
const K: Description = Description {
    name: "k",
    machine: "K computer",
    interconnect: "Tofu",
    version: 1,
    device_id: DEVICE_TOFU,
    tnis: 4,
    cqs: 3,
    processes: 8,
    cores: 8,
    groups: MemoryGroups { near: 1, far: 0 },
    barrier: Profile { tnis: 1, channels: 8, gates: MAX_BG as u8, integers: 1, doubles: 1 },
    system_channels: 1,
    atomics: false,
    piggyback: PIGGYBACK_BUFFER_MAX as u8,
    session_mode: false,
    cache_injection: false,
    address: AddressBits { node: 19, interface: 2, queue: 0, stag: 22, offset: 40 },
    alignment: 16,
    clock_khz: 312_500,
    ports: NUM_PORT as u8,
    link: Link { lanes: 8, lane_kbps: 6_250_000, coding: (8, 10) },
    bus_bytes_per_s: Some(15_000_000_000),
    electric_block: None,
    board: [1, 1, 1, 2, 1, 2],
    shelf: None,
    shared_cables: false,
};

/// As the K computer, except for the cores (TofuD, Table II) and the bus (Table IV).
const FX10: Description = Description {
    name: "fx10",
    machine: "PRIMEHPC FX10",
    cores: 16,
    bus_bytes_per_s: Some(17_600_000_000),
    ..K
};

/// Twelve queues, for 32 processes, atomic commands, session mode and cache injection, barriers as
/// they were (TofuD, II.B, IV.D, V.B); alignment (V.D), lanes (Table I); 425 MHz are 9 % more than
/// its clock (IV.C), which 256 bits and 12.5 GB/s give; the chassis (IV.B). *Ours*: addresses are
/// TofuD's, as they are not public, and boards of three nodes on Z, four to a chassis.
const FX100: Description = Description {
    name: "fx100",
    machine: "PRIMEHPC FX100",
    interconnect: "Tofu2",
    version: 2,
    device_id: DEVICE_TOFU2,
    cqs: NUM_CQ as u8,
    processes: 32,
    cores: 32,
    groups: MemoryGroups { near: 2, far: 0 },
    atomics: true,
    session_mode: true,
    cache_injection: true,
    address: AddressBits { node: 19, interface: 3, queue: 6, stag: 18, offset: 40 },
    alignment: 32,
    clock_khz: 390_625,
    link: Link { lanes: 4, lane_kbps: 25_781_250, coding: (64, 66) },
    bus_bytes_per_s: None,
    electric_block: Some([1, 1, 3, 2, 1, 2]),
    board: [1, 1, 3, 1, 1, 1],
    ..K
};

/// Sources. TofuD: six interfaces, each with barriers of 16 channels and 48 gates, for eight
/// integers or three floating-point numbers (IV.C, IV.D); 425 MHz; lanes (Table I); alignment
/// (V.D); half a rack, a shelf, and a CPU memory unit of two nodes on C, whose links share cables
/// (IV.A, IV.B); near and far memory groups (IV.A). Queues and addresses are those of the public
/// register map. Public programs of uTofu have up to 36 processes. *Ours*: 48 processes, one for
/// each core, have eight queues of each interface.
const FUGAKU: Description = Description {
    name: "fugaku",
    machine: "Fugaku",
    interconnect: "TofuD",
    version: 3,
    device_id: DEVICE_TOFUD,
    tnis: NUM_TNI as u8,
    processes: 48,
    cores: 48,
    groups: MemoryGroups { near: 2, far: 2 },
    barrier: Profile {
        tnis: NUM_TNI as u8,
        channels: NUM_BCH as u8,
        gates: NUM_BG as u8,
        integers: MAX_INTEGERS as u8,
        doubles: MAX_DOUBLES as u8,
    },
    system_channels: 0,
    alignment: 16,
    clock_khz: 425_000,
    link: Link { lanes: 2, lane_kbps: 28_050_000, coding: (64, 66) },
    electric_block: Some([2, 2, 4, 2, 3, 2]),
    board: [1, 1, 1, 1, 1, 2],
    shelf: Some([1, 1, 4, 2, 3, 2]),
    shared_cables: true,
    ..FX100
};

impl Generation {
    /// All of them, in the order in which they came.
    pub const ALL: [Self; 4] = [Self::K, Self::Fx10, Self::Fx100, Self::Fugaku];

    /// The names of all of them, for error messages. The text explains Tofu, Tofu2 and TofuD,
    /// because those name interconnects and not machines.
    pub const NAMES: &str = "\"k\" or \"fx10\" (Tofu), \"fx100\" (Tofu2) or \"fugaku\" (TofuD)";

    /// Its properties.
    #[inline]
    pub const fn description(self) -> &'static Description {
        match self {
            Self::K => &K,
            Self::Fx10 => &FX10,
            Self::Fx100 => &FX100,
            Self::Fugaku => &FUGAKU,
        }
    }

    /// The generation with this name, in small letters.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|generation| generation.name() == name)
    }

    /// The generations with this PCI device id: none, one, or the K computer and FX10.
    pub(crate) fn with_device_id(id: u16) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |generation| generation.description().device_id == id)
    }

    /// The value of the register GENERATION of its devices (ours): the PCI device id, and above it
    /// the place among those with the same id.
    pub const fn register(self) -> u64 {
        let place = matches!(self, Self::Fx10) as u64;
        self.description().device_id as u64 | place << 16
    }

    /// The generation of a device whose register GENERATION reads this. At first TofuD did not have
    /// the register, which read 0.
    pub fn from_register(value: u64) -> Option<Self> {
        if value == 0 {
            return Some(Self::Fugaku);
        }
        Self::ALL.into_iter().find(|generation| generation.register() == value)
    }

    /// Its number in captures (ours): from 1, in the order in which they came.
    pub const fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The generation with this number. Captures did without it at first: they have 0.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Fugaku),
            number => Self::ALL.into_iter().find(|generation| generation.number() == number),
        }
    }

    /// Its name in machine files and on command lines.
    pub const fn name(self) -> &'static str {
        self.description().name
    }
}

/// Returns true if a PCI function with this vendor and device id is a controller of some
/// generation.
pub fn is_tofu((vendor, device): (u16, u16)) -> bool {
    vendor == VENDOR_ID && Generation::with_device_id(device).next().is_some()
}

impl fmt::Display for Generation {
    /// `Tofu (K computer)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Description { interconnect, machine, .. } = self.description();
        write!(f, "{interconnect} ({machine})")
    }
}

impl Description {
    /// The kernel's control queue on each interface.
    pub const fn kernel_cq(&self) -> CqId {
        CqId::ALL[self.cqs as usize - 1]
    }

    /// Control queues of each interface that user processes may have.
    pub const fn user_cqs(&self) -> u8 {
        self.cqs - 1
    }

    /// Barrier gates of each interface that user processes may have, a bit for each. Of TofuD the
    /// last four are the kernel's (inferred from the mask that public programs register), of the
    /// others the last channel's.
    pub fn user_gates(&self) -> [u64; NUM_TNI] {
        let barrier = self.barrier;
        let mask = match self.system_channels {
            0 => (1 << (barrier.gates - 4)) - 1,
            system => {
                let of_system = (1 << barrier.channels) - (1 << (barrier.channels - system));
                (u64::MAX >> (64 - barrier.gates)) & !of_system
            }
        };
        core::array::from_fn(|tni| if tni < usize::from(barrier.tnis) { mask } else { 0 })
    }

    /// Returns true if nodes have this network interface.
    #[inline]
    pub const fn has_tni(&self, tni: TniId) -> bool {
        tni.get() < self.tnis
    }

    /// Returns true if interfaces have this control queue.
    #[inline]
    pub const fn has_cq(&self, cq: CqId) -> bool {
        cq.get() < self.cqs
    }

    /// Returns true if nodes have this barrier gate.
    #[inline]
    pub const fn has_gate(&self, tni: TniId, bg: BgId) -> bool {
        self.barrier.has_gate(tni, bg)
    }

    /// The network interfaces of a node.
    pub fn tni_ids(&self) -> impl ExactSizeIterator<Item = TniId> + Clone + use<> {
        TniId::ALL.into_iter().take(self.tnis.into())
    }

    /// The control queues of an interface.
    pub fn cq_ids(&self) -> impl ExactSizeIterator<Item = CqId> + Clone + use<> {
        CqId::ALL.into_iter().take(self.cqs.into())
    }

    /// Returns true if a device has this register. A register that it does not have reads 0 and
    /// ignores writes.
    #[inline]
    pub const fn has_register(&self, register: Register) -> bool {
        match register {
            Register::Cq { tni, cq, .. } | Register::Cqs { tni, cq, .. } => {
                self.has_tni(tni) && self.has_cq(cq)
            }
            Register::Bch { tni, bch, .. } => self.barrier.has_channel(tni, bch),
            Register::Bgs { tni, bg, reg } => {
                let channel = reg.offset() >= BgsReg::BchMask.offset();
                self.has_gate(tni, bg) && (!channel || self.barrier.has_start_gate(tni, bg))
            }
            Register::BgsData { tni, bg, .. } => self.has_gate(tni, bg),
            Register::Tni { tni, .. } => self.has_tni(tni),
            Register::Port { port, .. } => port.index() < self.ports as usize,
            Register::Tofu(
                TofuReg::TniVms(tni, _)
                | TofuReg::TniVmsCq00(tni)
                | TofuReg::TniVmsBg00(tni)
                | TofuReg::TniVmsBg16(tni)
                | TofuReg::TniVmsBg32(tni)
                | TofuReg::TniMsiBase(tni),
            ) => self.has_tni(tni),
            Register::Xb(_) | Register::Tofu(_) => true,
        }
    }

    /// Returns true if there is this command.
    #[inline]
    pub const fn has_command(&self, command: Command) -> bool {
        match command {
            Command::AtomicReadModifyWrite => self.atomics,
            _ => true,
        }
    }

    /// True if the link between two neighbours leaves a block of nodes with electric links.
    pub(crate) fn is_optical(&self, from: Coords, to: Coords) -> bool {
        let Some(block) = self.electric_block else { return false };
        Self::block_of(from, block) != Self::block_of(to, block)
    }

    /// Returns the node whose link in the same direction shares a cable with the link from `from`
    /// to its neighbour `to`, if there is one.
    pub fn shares_cable(&self, from: Coords, to: Coords) -> Option<Coords> {
        let shared = self.shared_cables && self.is_optical(from, to);
        // The two nodes of a board are neighbours on C.
        shared.then_some(Coords { c: from.c ^ 1, ..from })
    }

    /// The place of a node's block among all such blocks, on X, Y, Z, A, B and C.
    pub fn block_of(at: Coords, block: [u8; 6]) -> [u8; 6] {
        let at = at.to_array();
        core::array::from_fn(|axis| at[axis].checked_div(block[axis]).unwrap_or(0))
    }

    /// Bytes a second that a node can send by all its interfaces, if only links limit it.
    pub const fn injection_bytes_per_s(&self) -> u64 {
        self.tnis as u64 * self.link.bytes_per_s()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regs::{CqsReg, TniReg};

    #[test]
    fn links_and_injection_are_those_of_table_1() {
        let rates = Generation::ALL.map(|g| {
            let d = g.description();
            (d.link.kbytes() / 100_000, d.injection_bytes_per_s() / 100_000_000)
        });
        assert_eq!(rates, [(50, 200), (50, 200), (125, 500), (68, 408)]);
    }

    #[test]
    fn resources_of_a_node_are_those_of_table_2() {
        let resources = Generation::ALL.map(|g| {
            let Description { tnis, cqs, barrier, .. } = *g.description();
            (
                tnis * cqs,
                barrier.tnis * barrier.channels,
                u16::from(barrier.tnis) * u16::from(barrier.gates),
            )
        });
        assert_eq!(resources, [(12, 8, 64), (12, 8, 64), (48, 8, 64), (72, 96, 288)]);
    }

    #[test]
    fn nodes_have_a_queue_for_each_core() {
        let few = |g: &Generation| g.description().processes < g.description().cores;
        assert!(Generation::ALL.iter().filter(|g| few(g)).eq(&[Generation::Fx10]));
    }

    #[test]
    fn cables_have_two_links_of_a_board() {
        let at = |x, z, c| Coords::new(x, 0, z, 0, 0, c);
        let shares = |from, to| FUGAKU.shares_cable(from, to);
        // Half racks are two long on X and four on Z.
        assert_eq!(shares(at(0, 0, 0), at(1, 0, 0)), None);
        assert_eq!(shares(at(1, 0, 0), at(2, 0, 0)), Some(at(1, 0, 1)));
        assert_eq!(shares(at(2, 0, 1), at(1, 0, 1)), Some(at(2, 0, 0)));
        assert_eq!(shares(at(0, 3, 0), at(0, 4, 0)), Some(at(0, 3, 1)));
        assert_eq!(FX100.shares_cable(at(0, 2, 0), at(0, 3, 0)), None);
        assert!(FX100.is_optical(at(0, 2, 0), at(0, 3, 0)));
        assert!(!K.is_optical(at(0, 2, 0), at(0, 3, 0)));
    }

    #[test]
    fn memory_groups_are_those_of_table_2() {
        let far = Generation::ALL.map(|g| {
            let groups = g.description().groups;
            let far = (0..12).filter(|cq| groups.is_far(*cq)).count();
            (groups.near + groups.far, far)
        });
        assert_eq!(far, [(1, 0), (1, 0), (2, 0), (4, 6)]);
        assert!(!FUGAKU.groups.is_far(1) && FUGAKU.groups.is_far(2));
        assert_eq!(FUGAKU.groups.far_queues(), 0b1100_1100_1100_1100);
        assert_eq!(FX100.groups.far_queues(), 0);
    }

    #[test]
    fn names_and_addresses() {
        for generation in Generation::ALL {
            assert_eq!(Generation::from_name(generation.name()), Some(generation));
            assert!(Generation::NAMES.contains(generation.name()));
            let bits = generation.description().address;
            // A word of descriptors has room for all but the node.
            assert!(bits.queue + bits.stag + bits.offset <= 64);
        }
        assert_eq!(Generation::from_name("tofud"), None);
    }

    #[test]
    fn registers_tell_generations_apart() {
        for generation in Generation::ALL {
            assert_eq!(Generation::from_register(generation.register()), Some(generation));
            let id = generation.description().device_id;
            assert!(Generation::with_device_id(id).any(|with| with == generation));
        }
        assert_eq!(Generation::from_register(0), Some(Generation::Fugaku));
        assert_eq!(Generation::ALL.map(Generation::number), [1, 2, 3, 4]);
        let numbers = (0..=5).map(Generation::from_number);
        let [k, fx10, fx100, fugaku] = Generation::ALL.map(Some);
        assert!(numbers.eq([fugaku, k, fx10, fx100, fugaku, None]));
        assert_eq!(Generation::from_register(u64::MAX), None);
    }

    #[test]
    fn registers_exist_for_the_devices_units() {
        let of = |generation: Generation| {
            let description = generation.description();
            let registers = (0..crate::regs::BAR0_SIZE / 8).filter_map(|n| Register::decode(8 * n));
            let mut pages = [0; 4];
            for register in registers.filter(|register| description.has_register(*register)) {
                match register {
                    Register::Cqs { reg: CqsReg::Enable, .. } => pages[0] += 1,
                    Register::Bgs { reg: BgsReg::Enable, .. } => pages[1] += 1,
                    Register::Bgs { reg: BgsReg::BchMask, .. } => pages[2] += 1,
                    Register::Tni { reg: TniReg::Enable, .. } => pages[3] += 1,
                    _ => {}
                }
            }
            pages
        };
        assert_eq!(
            Generation::ALL.map(of),
            [[12, 64, 8, 4], [12, 64, 8, 4], [48, 64, 8, 4], [72, 288, 96, 6]]
        );
    }

    /// The data path carries at least what a link does.
    #[test]
    fn clocks_fit_links() {
        for generation in Generation::ALL {
            let Description { clock_khz, alignment, link, .. } = generation.description();
            assert!(clock_khz * u32::from(*alignment) >= link.kbytes(), "{generation}");
        }
    }
}
