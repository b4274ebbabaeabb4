//! The register map, the descriptors, the queue entries and the tables against literals
//! typed from the public description of the TofuD ICC, so that a slip in the crate's own
//! constants cannot hide.

use proptest::prelude::*;
use tofu_abi::desc::{ArmwOp, Command, Descriptor, Header1, Header2};
use tofu_abi::irq::{self, BgsIrqs, CqsIrqs, PortRequest, TniIrqs, TnrIrqs};
use tofu_abi::queue::{
    MrqId, MrqWord0, MrqWord1, PbqEntry, PrqEntry, RingIndex, TcqEntry, queue_entries,
};
use tofu_abi::regs::{
    BchReg, BgsReg, CqReg, CqsMode, CqsReg, CqsStatus, NodeAddress, PortReg, Register, TniReg,
    TofuReg, XbReg, subnet_contains,
};
use tofu_abi::table::{MemoryBlock, PageEntry, PageSize, Steering};
use tofu_abi::topology::{Port, Shape};
use tofu_abi::{BchId, BgId, Coords, CqId, Doorbell, Path, Rcode, StagOffset, Subnet, TniId};

/// Offset in the block and public name.
type Row = (u64, &'static str);

const CQ: &[Row] = &[
    (0x00, "TOQ_DIRECT_DESCRIPTOR"),
    (0x08, "TOQ_DIRECT_DESCRIPTOR1"),
    (0x10, "TOQ_DIRECT_DESCRIPTOR2"),
    (0x18, "TOQ_DIRECT_DESCRIPTOR3"),
    (0x20, "TOQ_DIRECT_DESCRIPTOR4"),
    (0x28, "TOQ_DIRECT_DESCRIPTOR5"),
    (0x30, "TOQ_DIRECT_DESCRIPTOR6"),
    (0x38, "TOQ_DIRECT_DESCRIPTOR7"),
    (0x40, "TOQ_FETCH_START"),
    (0x48, "MRQ_FULL_POINTER"),
    (0x50, "TOQ_PIGGYBACK_BUFFER0"),
    (0x58, "TOQ_PIGGYBACK_BUFFER1"),
    (0x60, "TOQ_PIGGYBACK_BUFFER2"),
    (0x68, "TCQ_NUM_NOTICE"),
    (0x70, "MRQ_NUM_NOTICE"),
    (0x78, "TX_PAYLOAD_BYTE"),
    (0x80, "RX_PAYLOAD_BYTE"),
];

const BCH: &[Row] = &[
    (0x800, "IDATA"),
    (0x808, "IDATA1"),
    (0x810, "IDATA2"),
    (0x818, "IDATA3"),
    (0x820, "IDATA4"),
    (0x828, "IDATA5"),
    (0x830, "IDATA6"),
    (0x838, "IDATA7"),
    (0x840, "READY"),
    (0x848, "IGNORED_SIGNAL_COUNT"),
];

const CQS: &[Row] = &[
    (0x00, "STATUS"),
    (0x08, "ENABLE"),
    (0x10, "CACHE_FLUSH"),
    (0x18, "FETCH_STOP"),
    (0x20, "MODE"),
    (0x28, "GPID"),
    (0x30, "TOQ_IPA"),
    (0x38, "TOQ_SIZE"),
    (0x40, "TCQ_IPA"),
    (0x48, "MRQ_IPA"),
    (0x50, "MRQ_SIZE"),
    (0x58, "MRQ_MASK"),
    (0x60, "TCQ_DESCRIPTOR_COALESCING_TIMER"),
    (0x68, "MRQ_DESCRIPTOR_COALESCING_TIMER"),
    (0x70, "MRQ_INTERRUPT_COALESCING_TIMER"),
    (0x78, "MRQ_INTERRUPT_COALESCING_COUNT"),
    (0x80, "TOQ_DIRECT_SOURCE_COUNT"),
    (0x88, "TOQ_DIRECT_DESCRIPTOR_COUNT"),
    (0x90, "MEMORY_BLOCK_TABLE_ENABLE"),
    (0x98, "MEMORY_BLOCK_TABLE_IPA"),
    (0xa0, "MEMORY_BLOCK_TABLE_SIZE"),
    (0xa8, "STEERING_TABLE_ENABLE"),
    (0xb0, "STEERING_TABLE_IPA"),
    (0xb8, "STEERING_TABLE_SIZE"),
    (0xc0, "MRQ_INTERRUPT_MASK"),
    (0xc8, "IRR"),
    (0xd0, "IMR"),
    (0xd8, "IRC"),
    (0xe0, "IMC"),
    (0xe8, "ICL"),
    (0xf0, "INTERRUPT_ARM_IPA"),
];

const BGS: &[Row] = &[
    (0x00, "ENABLE"),
    (0x08, "IRR"),
    (0x10, "IMR"),
    (0x18, "IRC"),
    (0x20, "IMC"),
    (0x28, "ICL"),
    (0x30, "STATE"),
    (0x38, "EXCEPTION_INFO_GPID_UNMATCH"),
    (0x40, "EXCEPTION_INFO_ADDRESS_UNMATCH"),
    (0x48, "SIGNAL_A"),
    (0x50, "SIGNAL_B"),
    (0x58, "SIGNAL_MASK"),
    (0x60, "LOCAL_LINK"),
    (0x68, "REMOTE_LINK"),
    (0x70, "SUBNET_SIZE"),
    (0x78, "GPID_BSEQ"),
    (0x108, "DATA_A0"),
    (0x178, "DATA_AE"),
    (0x188, "DATA_B0"),
    (0x1f8, "DATA_BE"),
    (0x800, "BCH_MASK"),
    (0x808, "BCH_MASK_STATUS"),
    (0x810, "BCH_NOTICE_IPA"),
];

const TNI: &[Row] = &[
    (0x08, "IRR"),
    (0x10, "IMR"),
    (0x18, "IRC"),
    (0x20, "IMC"),
    (0x28, "ICL"),
    (0x30, "STATE"),
    (0x38, "ENABLE"),
    (0x40, "CQ_PRESENT"),
    (0x48, "EXCEPTION_INFO_INACTIVE_BG"),
    (0xf8, "PRQ_INTERRUPT_ARM_PA"),
    (0x100, "PRQ_FULL_POINTER"),
    (0x108, "PBQ_PA"),
    (0x110, "PBQ_SIZE"),
    (0x118, "PRQ_PA"),
    (0x120, "PRQ_SIZE"),
    (0x128, "PRQ_MASK"),
    (0x130, "PRQ_ENTRY_COALESCING_TIMER"),
    (0x138, "PRQ_INTERRUPT_COALESCING_TIMER"),
    (0x140, "PRQ_INTERRUPT_COALESCING_COUNT"),
    (0x148, "SEND_COUNT"),
    (0x150, "NO_SEND_COUNT"),
    (0x158, "BLOCK_SEND_COUNT"),
    (0x160, "RECEIVE_COUNT"),
    (0x168, "NO_RECEIVE_COUNT"),
    (0x170, "NUM_SEND_TLP"),
    (0x178, "BYTE_SEND_TLP"),
    (0x180, "NUM_SEND_SYSTEM_TLP"),
    (0x188, "NUM_RECEIVE_TLP"),
    (0x190, "BYTE_RECEIVE_TLP"),
    (0x198, "NUM_RECEIVE_NULLIFIED_TLP"),
    (0x1a0, "RX_NUM_UNKNOWN_TLP"),
    (0x1a8, "RX_NUM_SYSTEM_TLP"),
    (0x1b0, "RX_NUM_EXCEPTION_TLP"),
    (0x1b8, "RX_NUM_DISCARD_UNKNOWN_TLP"),
    (0x1c0, "RX_NUM_DISCARD_SYSTEM_TLP"),
    (0x1c8, "RX_NUM_DISCARD_EXCEPTION_TLP"),
];

const PORT: &[Row] = &[
    (0x00, "TX_VC0_ZERO_CREDIT_COUNT"),
    (0x08, "TX_VC1_ZERO_CREDIT_COUNT"),
    (0x10, "TX_VC2_ZERO_CREDIT_COUNT"),
    (0x18, "TX_VC3_ZERO_CREDIT_COUNT"),
    (0x80, "FREE_RUN_COUNT"),
    (0xc0, "NUM_SEND_DLLP"),
    (0xc8, "NUM_SEND_TLP"),
    (0xd0, "BYTE_SEND_TLP"),
    (0xd8, "NUM_SEND_SYSTEM_TLP"),
    (0xe0, "NUM_SEND_NULLIFIED_TLP"),
    (0xe8, "NUM_TX_DISCARD_SYSTEM_TLP"),
    (0xf0, "NUM_TX_DISCARD_NORMAL_TLP"),
    (0xf8, "NUM_TX_FILTERED_NORMAL_TLP"),
    (0x100, "NUM_VIRTUAL_CUT_THROUGH_TLP"),
    (0x108, "NUM_GENERATE_NULLIFIED_TLP"),
    (0x110, "NUM_RECEIVE_DLLP"),
    (0x118, "NUM_RECEIVE_TLP"),
    (0x120, "BYTE_RECEIVE_TLP"),
    (0x128, "NUM_RECEIVE_SYSTEM_TLP"),
    (0x130, "NUM_RECEIVE_NULLIFIED_TLP"),
    (0x138, "NUM_RX_DISCARD_SYSTEM_TLP"),
    (0x140, "NUM_RX_DISCARD_NORMAL_TLP"),
    (0x158, "NUM_RX_FILTERED_NORMAL_TLP"),
    (0x160, "NUM_RX_DISCARD_NULLIFIED_TLP"),
    (0x170, "FRAME_LCRC_ERROR_COUNT"),
    (0x180, "TX_RETRY_BUFFER_CE_COUNT"),
    (0x188, "RX_VC_BUFFER_CE_COUNT"),
    (0x190, "XB_CE_COUNT"),
    (0x198, "ACK_NACK_TIME_OUT_COUNT"),
    (0x1a0, "SLICE0_FCS_ERROR_COUNT"),
    (0x1a8, "SLICE1_FCS_ERROR_COUNT"),
];

const XB: &[Row] = &[
    (0x00, "STQ_ENABLE"),
    (0x08, "STQ_UPDATE_INTERVAL"),
    (0x10, "STQ_PA"),
    (0x18, "STQ_SIZE"),
    (0x20, "STQ_NEXT_OFFSET"),
];

macro_rules! check_block {
    ($reg:ty, $rows:expr) => {
        let got: Vec<Row> = <$reg>::ALL.iter().map(|r| (r.offset(), r.name())).collect();
        assert_eq!(got, $rows, stringify!($reg));
    };
}

#[test]
fn blocks_have_public_offsets_and_names() {
    check_block!(CqReg, CQ);
    check_block!(BchReg, BCH);
    check_block!(CqsReg, CQS);
    check_block!(BgsReg, BGS);
    check_block!(TniReg, TNI);
    check_block!(PortReg, PORT);
    check_block!(XbReg, XB);
}

/// Every register of the device with the address that the public formulas give it.
fn golden_map() -> Vec<(u64, Register)> {
    let mut map = Vec::new();
    for tni in TniId::ALL {
        golden_interface(tni, &mut map);
    }
    for (base, port) in (0x600_0000..).step_by(0x1000).zip(Port::ALL) {
        for (reg, (offset, _)) in PortReg::ALL.iter().zip(PORT) {
            let address = base + offset;
            map.push((address, Register::Port { port, reg: *reg }));
        }
    }
    for (reg, (offset, _)) in XbReg::ALL.iter().zip(XB) {
        map.push((0x600_f000 + offset, Register::Xb(*reg)));
    }
    golden_bridge(&mut map);
    map.sort_by_key(|(address, _)| *address);
    map
}

/// The registers of a network interface, with those of its queues, channels and gates.
fn golden_interface(tni: TniId, map: &mut Vec<(u64, Register)>) {
    let t = u64::from(tni.get()) * 0x100_0000;
    for cq in CqId::ALL {
        let page = t + u64::from(cq.get()) * 0x1_0000;
        for (reg, (offset, _)) in CqReg::ALL.iter().zip(CQ) {
            map.push((page + offset, Register::Cq { tni, cq, reg: *reg }));
        }
        for (reg, (offset, _)) in CqsReg::ALL.iter().zip(CQS) {
            map.push((0x40_0000 + page + offset, Register::Cqs { tni, cq, reg: *reg }));
        }
    }
    for bch in BchId::ALL {
        let page = 0xe0_0000 + t + u64::from(bch.get()) * 0x1_0000;
        for (reg, (offset, _)) in BchReg::ALL.iter().zip(BCH) {
            map.push((page + offset, Register::Bch { tni, bch, reg: *reg }));
        }
    }
    for bg in BgId::ALL {
        let page = 0x80_0000 + t + u64::from(bg.get()) * 0x1_0000;
        for (reg, (offset, name)) in BgsReg::ALL.iter().zip(BGS) {
            // The 15 data qwords have their own variant; barrier channels exist only for
            // the gates 0 to 15.
            if !name.starts_with("DATA_") && (bg.get() < 16 || *offset < 0x800) {
                map.push((page + offset, Register::Bgs { tni, bg, reg: *reg }));
            }
        }
        for (buffer, first) in [(0, 0x108), (1, 0x188)] {
            for qword in 0..15u8 {
                let reg = Register::BgsData { tni, bg, buffer, qword };
                map.push((page + first + u64::from(qword) * 8, reg));
            }
        }
    }
    for (reg, (offset, _)) in TniReg::ALL.iter().zip(TNI) {
        map.push((0xc0_0000 + t + offset, Register::Tni { tni, reg: *reg }));
    }
}

/// The registers that the node has once.
fn golden_bridge(map: &mut Vec<(u64, Register)>) {
    let tofu = [
        (0x00, TofuReg::NodeAddress),
        (0x08, TofuReg::PortSetting),
        (0xc0, TofuReg::TnrMsiBase),
        (0xc8, TofuReg::TnrIrr),
        (0xd0, TofuReg::TnrImr),
        (0xd8, TofuReg::TnrIrc),
        (0xe0, TofuReg::TnrImc),
        (0xe8, TofuReg::TnrIcl),
        (0xf0, TofuReg::Generation),
    ];
    map.extend(tofu.map(|(offset, reg)| (0x700_0000 + offset, Register::Tofu(reg))));
    for tnr in Port::ALL {
        let n = tnr as u64 * 0x10;
        map.push((0x700_0010 + n, Register::Tofu(TofuReg::TdTlpFilter(tnr))));
        map.push((0x700_0018 + n, Register::Tofu(TofuReg::TdSettings(tnr))));
    }
    for tni in TniId::ALL {
        let base = 0x700_0000 + u64::from(tni.get()) * 0x100;
        for vms in 0..16u8 {
            let address = base + 0x100 + u64::from(vms) * 8;
            map.push((address, Register::Tofu(TofuReg::TniVms(tni, vms))));
        }
        map.push((base + 0x180, Register::Tofu(TofuReg::TniVmsCq00(tni))));
        map.push((base + 0x1a0, Register::Tofu(TofuReg::TniVmsBg00(tni))));
        map.push((base + 0x1a8, Register::Tofu(TofuReg::TniVmsBg16(tni))));
        map.push((base + 0x1b0, Register::Tofu(TofuReg::TniVmsBg32(tni))));
        map.push((base + 0x1c0, Register::Tofu(TofuReg::TniMsiBase(tni))));
    }
}

/// The control queue whose doorbell a register is.
fn doorbell(reg: Option<Register>) -> Option<(TniId, CqId)> {
    match reg? {
        Register::Cq { tni, cq, reg: CqReg::FetchStart } => Some((tni, cq)),
        _ => None,
    }
}

#[test]
fn registers_decode_only_at_mapped_offsets() {
    let map = golden_map();
    let mut expected = map.iter().peekable();
    // Every aligned offset of the 256 MiB, so that nothing shows up twice or in a gap.
    for offset in (0..0x1000_0000u64).step_by(8) {
        let here = expected.next_if(|(address, _)| *address == offset).map(|(_, reg)| *reg);
        assert_eq!(Register::decode(offset), here, "{offset:#x}");
        assert_eq!(Register::doorbell(offset), doorbell(here), "{offset:#x}");
        if let Some(reg) = here {
            assert_eq!(reg.offset(), offset, "{reg:?}");
        }
    }
    assert_eq!(expected.next(), None);
}

#[test]
fn unaligned_offsets_decode_to_nothing() {
    for (address, reg) in golden_map() {
        for low in 1..8 {
            assert_eq!(Register::decode(address + low), None, "{reg:?} + {low}");
        }
    }
}

type Fields = &'static [(&'static str, u32, u32)];

/// The fields of each structure, and where the public documents have them.
const GOLDEN_FIELDS: &[(Fields, Fields)] = &[
    (
        CqsStatus::FIELDS,
        &[
            ("next_descriptor_offset_units", 5, 29),
            ("session_offset", 32, 56),
            ("session_offset_overflow", 57, 57),
            ("session_dead", 58, 58),
            ("cq_enable", 59, 59),
            ("cache_flush_busy", 60, 60),
            ("blank_entry_flip_bit", 61, 61),
            ("descriptor_fetch_stop", 62, 62),
            ("descriptor_process_stop", 63, 63),
        ],
    ),
    (
        CqsMode::FIELDS,
        &[
            ("lz", 0, 5),
            ("sz", 6, 11),
            ("nz", 12, 17),
            ("ly", 18, 23),
            ("sy", 24, 29),
            ("ny", 30, 35),
            ("lx", 36, 41),
            ("sx", 42, 47),
            ("nx", 48, 53),
            // Ours, in a bit that has no public meaning.
            ("failures", 59, 59),
            ("session", 60, 60),
            ("trp1_enable", 61, 61),
            ("trp2_enable", 62, 62),
            ("system", 63, 63),
        ],
    ),
    (
        NodeAddress::FIELDS,
        &[("c", 4, 4), ("b", 5, 6), ("a", 7, 7), ("z", 8, 12), ("y", 13, 17), ("x", 18, 22)],
    ),
    (
        Header1::FIELDS,
        &[
            ("interrupt", 0, 0),
            ("source_type", 5, 6),
            ("flip", 7, 7),
            ("command", 8, 15),
            ("mtu", 16, 23),
            ("op", 20, 23),
            ("e", 23, 23),
            ("sps", 24, 27),
            ("pa", 28, 28),
            ("pb", 29, 30),
            ("pc", 31, 31),
            ("rx", 32, 39),
            ("ry", 40, 47),
            ("rz", 48, 55),
            ("ra", 56, 56),
            ("rb", 57, 58),
            ("rc", 59, 59),
            ("ri", 61, 63),
            ("port", 56, 60),
            ("vc", 62, 63),
        ],
    ),
    (
        Header2::FIELDS,
        &[
            ("gap", 0, 7),
            ("strong_order", 8, 8),
            ("packet_response", 9, 9),
            ("remote_notice", 10, 10),
            ("padding", 11, 11),
            ("cache_injection", 13, 13),
            ("edata", 16, 31),
            ("length", 32, 55),
            ("piggyback_length", 32, 37),
            ("packet_length", 32, 43),
        ],
    ),
    (StagOffset::FIELDS, &[("offset", 0, 39), ("stag", 40, 57), ("cqid", 58, 63)]),
    (
        TcqEntry::FIELDS,
        &[("counter_unmatch", 5, 5), ("flip", 7, 7), ("rcode", 8, 15), ("length", 32, 55)],
    ),
    (
        MrqWord0::FIELDS,
        &[
            ("flip", 7, 7),
            ("id", 8, 15),
            ("rcode", 16, 23),
            ("pa", 28, 28),
            ("pb", 29, 30),
            ("pc", 31, 31),
            ("x", 32, 39),
            ("y", 40, 47),
            ("z", 48, 55),
            ("a", 56, 56),
            ("b", 57, 58),
            ("c", 59, 59),
            ("i", 61, 63),
        ],
    ),
    (
        MrqWord1::FIELDS,
        &[("initial", 12, 12), ("edata", 16, 31), ("length", 32, 42), ("op", 32, 35)],
    ),
    (PbqEntry::FIELDS, &[("f", 7, 7), ("pa_units", 11, 39)]),
    (
        PrqEntry::FIELDS,
        &[
            ("rcode", 0, 6),
            ("f", 7, 7),
            ("pa_units", 11, 39),
            ("w", 48, 48),
            ("l", 54, 54),
            ("e", 55, 55),
        ],
    ),
    (
        Steering::FIELDS,
        &[("readonly", 6, 6), ("enable", 7, 7), ("mbva_units", 8, 39), ("mbid", 48, 63)],
    ),
    (MemoryBlock::FIELDS, &[("ps", 0, 2), ("enable", 7, 7), ("ipa_units", 8, 39)]),
    (PageEntry::FIELDS, &[("enable", 7, 7), ("ipa_units", 12, 39)]),
];

#[test]
fn fields_have_the_public_bit_positions() {
    for (got, expected) in GOLDEN_FIELDS {
        assert_eq!(got, expected);
    }
}

#[test]
fn interrupt_bits_are_the_public_ones() {
    let cqs = [
        (0, CqsIrqs::TOQ_READ_EXCEPTION),
        (1, CqsIrqs::TOQ_DIRECT_DESCRIPTOR_EXCEPTION),
        (2, CqsIrqs::TOQ_MARKED_UE),
        (3, CqsIrqs::TCQ_WRITE_EXCEPTION),
        (4, CqsIrqs::TOQ_SOURCE_TYPE_EXCEPTION),
        (5, CqsIrqs::TCQ_WRITE_ACKNOWLEDGE),
        (7, CqsIrqs::MRQ_WRITE_ACKNOWLEDGE),
        (8, CqsIrqs::MRQ_WRITE_EXCEPTION),
        (9, CqsIrqs::MRQ_OVERFLOW),
        (36, CqsIrqs::STEERING_READ_EXCEPTION),
        (38, CqsIrqs::MB_READ_EXCEPTION),
        (39, CqsIrqs::PAYLOAD_READ_EXCEPTION),
        (40, CqsIrqs::PAYLOAD_WRITE_EXCEPTION),
    ];
    for (bit, set) in cqs {
        assert_eq!(set.raw(), 1 << bit);
    }
    assert_eq!(CqsIrqs::ALL.raw(), 0x1d0_0000_03bf);
    assert_eq!(CqsIrqs::EXCEPTIONS.raw(), 0x1d0_0000_031f);
    assert_eq!(BgsIrqs::ALL.raw(), 0x0700_003f);
    assert_eq!(BgsIrqs::EXCEPTIONS.raw(), 0x0400_003f);
    assert_eq!(TniIrqs::ALL.raw(), 0x1_0001_007f);
    assert_eq!(TnrIrqs::of(Port::ZPlus, PortRequest::RoutingError).raw(), 1 << 58);
    assert_eq!(TnrIrqs::of(Port::BMinus, PortRequest::PortError).raw(), 1 << 14);
    assert_eq!(TnrIrqs::ALL.raw().count_ones(), 50);
}

#[test]
fn interrupt_sets_are_sets() {
    let both = CqsIrqs::MRQ_OVERFLOW | CqsIrqs::TOQ_MARKED_UE;
    assert!(both.intersects(CqsIrqs::EXCEPTIONS) && !both.intersects(CqsIrqs::ACKNOWLEDGES));
    assert_eq!(both.without(CqsIrqs::TOQ_MARKED_UE), CqsIrqs::MRQ_OVERFLOW);
    assert_eq!(format!("{both:?}"), r#"{"TOQ_MARKED_UE", "MRQ_OVERFLOW"}"#);
    // Hardware may have unknown requests.
    assert_eq!(format!("{:?}", CqsIrqs::from_raw(1 << 63)), "{9223372036854775808}");
    let links = TnrIrqs::of(Port::BPlus, PortRequest::PortError)
        | TnrIrqs::of(Port::ZPlus, PortRequest::PortError);
    assert!(links.ports(PortRequest::PortError).eq([Port::BPlus, Port::ZPlus]));
    assert_eq!(links.ports(PortRequest::RoutingError).count(), 0);
}

#[test]
fn ids_are_what_the_register_map_has() {
    assert_eq!(TniId::ALL.map(TniId::get), [0, 1, 2, 3, 4, 5]);
    assert_eq!((TniId::new(5), TniId::new(6)), (Some(TniId::ALL[5]), None));
    assert_eq!((CqId::new(11), CqId::new(12)), (Some(CqId::KERNEL), None));
    assert_eq!((BgId::new(63).map(BgId::get), BgId::new(64)), (Some(63), None));
    assert_eq!(BchId::new(16), None);
    assert!(BchId::ALL.iter().all(|bch| bch.gate().channel() == Some(*bch)));
    assert_eq!(BgId::ALL[16].channel(), None);
    for (number, doorbell) in (0u8..).zip(Doorbell::ALL) {
        assert_eq!(doorbell.number(), number);
        assert_eq!(Doorbell::from_number(number), Some(doorbell));
    }
    assert_eq!(Doorbell::from_number(28), None);
    assert_eq!(Doorbell::from_number(255), None);
    let (tni, queue, channel) = (TniId::ALL[1], CqId::ALL[2], BchId::ALL[3]);
    assert_eq!(Doorbell::from(queue).page(tni), 0x102_0000);
    assert_eq!(Doorbell::from(channel).page(tni), 0x1e3_0000);
}

#[test]
fn msix_vectors_do_not_overlap() {
    let mut seen = vec![false; usize::from(irq::vector::COUNT)];
    let mut take = |v: u16| {
        assert!(!seen[usize::from(v)], "vector {v} given twice");
        seen[usize::from(v)] = true;
    };
    take(irq::vector::TNR);
    for tni in TniId::ALL {
        CqId::ALL.iter().for_each(|cq| take(irq::vector::cq(tni, *cq)));
        take(irq::vector::bg(tni));
        take(irq::vector::tni(tni));
    }
    assert_eq!(irq::vector::cq(TniId::ALL[1], CqId::KERNEL), 28);
}

#[test]
fn codes_match_the_public_documents() {
    let commands = [0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x0e, 0x10, 0x11, 0x12, 0x13];
    assert_eq!(Command::ALL.map(|c| c as u8), commands);
    assert_eq!(ArmwOp::ALL.map(|op| op as u8), [0, 1, 2, 3, 4, 5]);
    assert_eq!(ArmwOp::from_code(2), Some(ArmwOp::Add));
    assert_eq!(MrqId::ALL.map(|id| id as u8), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(MrqId::PutLastHalfway as u8, 5);
    assert_eq!(MrqId::PutLast as u8, 9);
    for code in 0..=255u8 {
        assert_eq!(
            Command::from_code(code).map(|c| c as u8),
            commands.contains(&code).then_some(code)
        );
        assert_eq!(ArmwOp::from_code(code).map(|c| c as u8), (code < 6).then_some(code));
        assert_eq!(
            MrqId::from_code(code).map(|c| c as u8),
            (1..16).contains(&code).then_some(code)
        );
    }
}

#[test]
fn descriptors_are_the_golden_words() {
    let header1 = Header1(0)
        .with_interrupt(true)
        .with_mtu(240)
        .with_sps(5)
        .with_target(Coords::new(0x12, 0x03, 0x1f, 1, 2, 1))
        .with_path(Path::new(1, 2, 0))
        .with_ri(5);
    let header2 = Header2(0).with_gap(7).with_remote_notice(true).with_edata(0xbeef);
    let remote = StagOffset::new(CqId::ALL[11], 0x2_0001, 0xab_cdef_0123);
    let local = StagOffset::new(CqId::ALL[3], 7, 0x40);
    let put = Descriptor::transfer(Command::Put, header1, header2, remote, local, 0xff_ffff);
    assert_eq!(
        put.0,
        [
            0xad1f_0312_55f0_0101,
            0x00ff_ffff_beef_0407,
            0x2e00_01ab_cdef_0123,
            0x0c00_0700_0000_0040
        ]
    );
    assert_eq!(put.with_flip(true).0[0], 0xad1f_0312_55f0_0181);
    assert_eq!(put.to_bytes()[..8], [0x01, 0x01, 0xf0, 0x55, 0x12, 0x03, 0x1f, 0xad]);
    let piggyback = Descriptor::put_piggyback(Header1(0), Header2(0), remote, 0x1122, 32);
    assert_eq!(piggyback.0, [0x300, 32 << 32, 0x2e00_01ab_cdef_0123, 0x1122]);
    let armw = Descriptor::armw(Header1(0), Header2(0), ArmwOp::Or, remote, 0x33, 8);
    assert_eq!(armw.0, [0x50_0e00, 8 << 32, 0x2e00_01ab_cdef_0123, 0x33]);
    assert_eq!(Descriptor::write_piggyback_buffer([1, 2, 3]).0, [0x200, 1, 2, 3]);
    assert_eq!(Descriptor::nop().0, [0; 4]);
}

#[test]
fn entries_and_tables_are_the_golden_words() {
    assert_eq!(
        TcqEntry(0).with_flip(true).with_rcode(Rcode::LINK_DOWN).with_length(0x12_3456).0,
        0x12_3456_0000_5080
    );
    let word0 = MrqWord0(0)
        .with_flip(true)
        .with_id(9)
        .with_rcode(Rcode::STEERING_TABLE_DISABLED)
        .with_coords(Coords::new(1, 2, 3, 1, 2, 1))
        .with_i(4);
    assert_eq!(word0.0, 0x8d03_0201_0010_0980);
    assert_eq!(word0.with_path(Path::new(0, 1, 1)).0, 0x8d03_0201_a010_0980);
    assert_eq!(
        MrqWord1(0).with_initial(true).with_edata(0x55aa).with_length(1920).0,
        0x0780_55aa_1000
    );
    let node = Coords::new(1, 2, 3, 1, 2, 1);
    let header = Header1(u64::MAX).with_target(node).with_path(Path::new(0, 1, 1)).with_ri(4);
    assert_eq!(MrqWord0::about_target(header).0, 0x8d03_0201_a000_0000);
    let steering = Steering(0)
        .with_readonly(true)
        .with_enable(true)
        .with_mbva_units(0x1_2345)
        .with_mbid(0xfedc);
    assert_eq!(steering.0, 0xfedc_0000_0123_45c0);
    assert_eq!(steering.mbva(), 0x123_4500);
    let block =
        MemoryBlock(0).with_ps(PageSize::Size64K as u8).with_enable(true).with_ipa(0xab_cdef_0100);
    assert_eq!(block.0, 0xab_cdef_0184);
    assert_eq!(block.ipa(), 0xab_cdef_0100);
    let page = PageEntry(0).with_enable(true).with_ipa(0xff_ffff_f000);
    assert_eq!(page.0, 0xff_ffff_f080);
    assert_eq!(page.ipa(), 0xff_ffff_f000);
    let node = Coords::new(31, 30, 29, 1, 2, 1);
    assert_eq!(NodeAddress::from_coords(node).0, (31 << 18) | (30 << 13) | (29 << 8) | 0xd0);
    assert_eq!(NodeAddress::from_coords(node).coords(), node);
}

#[test]
fn queue_and_page_sizes_are_the_public_ones() {
    let entries: Vec<_> = (0..=5).map(|code| queue_entries(code).unwrap()).collect();
    assert_eq!(entries, [2048, 8192, 32768, 131072, 524288, 2097152]);
    assert_eq!(queue_entries(6), None);
    assert_eq!(queue_entries(u64::MAX), None);
    let sizes = [
        (0, Some(4096)),
        (1, Some(2 << 20)),
        (2, Some(1 << 30)),
        (3, None),
        (4, Some(65536)),
        (5, Some(512 << 20)),
        (6, None),
        (7, None),
    ];
    for (code, bytes) in sizes {
        assert_eq!(PageSize::from_code(code).map(PageSize::bytes), bytes);
    }
    for size in PageSize::ALL {
        assert_eq!(PageSize::from_code(size as u8), Some(size));
    }
}

#[test]
fn flip_bits_follow_the_laps() {
    for entries in [1u64, 2, 8, 2048] {
        let mut index = RingIndex::new(entries as u32);
        for n in 0..entries * 5 {
            assert_eq!(index.count(), n);
            assert_eq!(u64::from(index.slot()), n % entries);
            assert_eq!(u64::from(index.flip()), ((n / entries) & 1) ^ 1, "{n} of {entries}");
            index.advance();
        }
    }
}

#[test]
fn consumer_that_is_ahead_leaves_more_than_a_ring_has() {
    for entries in [2u64, 8, 2048] {
        let mut index = RingIndex::new(entries as u32);
        // Beyond all bits that count.
        for _ in 0..entries * 5 + 1 {
            index.advance();
        }
        for waiting in 0..=entries {
            assert_eq!(index.unconsumed(index.count() - waiting), waiting);
            // Only low bits of the pointer are kept by some.
            let low = (index.count() - waiting) % (2 * entries);
            assert_eq!(index.unconsumed(low), waiting);
        }
        assert!(index.unconsumed(index.count() + 1) > entries);
    }
}

#[test]
fn result_codes_are_distinct_and_described() {
    assert_eq!(Rcode::SUCCESS.raw(), 0);
    assert_eq!(Rcode::STEERING_TABLE_DISABLED.raw(), 0x10);
    let mut codes: Vec<u8> = Rcode::ALL.iter().map(|(code, ..)| code.raw()).collect();
    // Remote variants of the address codes count as separate codes.
    let remote: Vec<u8> =
        codes.iter().filter(|c| (0x11..=0x1f).contains(*c)).map(|c| c + 0x20).collect();
    codes.extend(remote);
    let total = codes.len();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), total);
    for code in 0..=255 {
        let unknown = Rcode::new(code).describe() == "unknown result code";
        assert_eq!(unknown, !codes.contains(&code));
    }
    let remote = Rcode::READ_ONLY.remote();
    assert_eq!(remote.raw(), 0x35);
    assert_eq!(remote.describe(), Rcode::READ_ONLY.describe());
    assert_eq!(remote.remote(), remote);
    assert_eq!(Rcode::STEERING_TABLE_DISABLED.remote(), Rcode::STEERING_TABLE_DISABLED);
    assert!(remote.is_remote_address() && !Rcode::READ_ONLY.is_remote_address());
    assert!(Rcode::READ_ONLY.is_local() && !Rcode::SUCCESS.is_local());
    assert_eq!(format!("{:?}", Rcode::READ_ONLY), "0x15 READ_ONLY");
    assert_eq!(format!("{remote:?}"), "0x35 READ_ONLY remote");
    assert_eq!(format!("{:?} {0}", Rcode::new(0xff)), "0xff unknown result code");
}

#[test]
fn subnets_wrap_around_the_ring() {
    // Partition of 4 that starts at 6 on a ring of 8: 6, 7, 0, 1.
    let inside: Vec<u8> = (0..8).filter(|p| subnet_contains(8, 6, 4, *p)).collect();
    assert_eq!(inside, [0, 1, 6, 7]);
    assert!((0..8).all(|p| subnet_contains(8, 3, 0, p)), "length 0 is no limit");
    assert!(subnet_contains(0, 0, 0, 255), "the reset value is no limit");
    assert!(!subnet_contains(8, 2, 3, 5));
    let mode = CqsMode(0).with_nx(8).with_sx(2).with_lx(3).with_ny(1).with_nz(1);
    assert!(mode.subnet_allows(4, 0, 0));
    assert!(!mode.subnet_allows(5, 0, 0));
}

#[test]
fn subnets_are_the_smallest_boxes() {
    let shape = Shape::new([8, 6, 1, 2, 3, 2]).unwrap().with_torus([true, false, false]);
    let around = |nodes: &[(u8, u8)]| {
        let nodes: Vec<_> = nodes.iter().map(|(x, y)| Coords::new(*x, *y, 0, 1, 2, 0)).collect();
        Subnet::around(&shape, &nodes)
    };
    // Around the torus on X, but not on Y, where the machine is a mesh.
    assert_eq!(around(&[(7, 0), (0, 5), (1, 5)]).to_string(), "8,7,3,6,0,6,1,0,1");
    assert_eq!(around(&[(2, 3)]).to_string(), "8,2,1,6,3,1,1,0,1");
    assert_eq!(around(&[(0, 0), (4, 0)]).to_string(), "8,0,5,6,0,1,1,0,1");
    assert_eq!(around(&[]).to_string(), "8,0,0,6,0,0,1,0,0");
    let mode = CqsMode(0).with_nx(8).with_sx(7).with_lx(3);
    let mode = mode.with_ny(6).with_ly(6).with_nz(1).with_lz(1);
    assert_eq!(around(&[(7, 0), (0, 5), (1, 5)]).mode(), mode);
    for bad in ["", "8", "8,7,3,6,0,6,1,0", "8,7,3,6,0,6,1,0,1,0", "8,8,1,0,0,0,0,0,0", "33,0,1"] {
        assert!(bad.parse::<Subnet>().is_err(), "{bad}");
    }
    for bad in
        ["33,0,1,0,0,0,0,0,0", "0,1,0,0,0,0,0,0,0", "8,0,9,0,0,0,0,0,0", "8, 0,1,0,0,0,0,0,0"]
    {
        assert!(bad.parse::<Subnet>().is_err(), "{bad}");
    }
    assert_eq!("0,0,0,0,0,0,0,0,0".parse(), Ok(Subnet::default()));
}

proptest! {
    #[test]
    fn subnet_contains_the_nodes_around_it(
        size in (1..=32u8, 1..=32u8, 1..=32u8),
        torus: [bool; 3],
        seeds in proptest::collection::vec(any::<[u8; 3]>(), 1..5),
    ) {
        let shape = Shape::new([size.0, size.1, size.2, 2, 3, 2]).unwrap().with_torus(torus);
        let [nx, ny, nz] = [size.0, size.1, size.2];
        let nodes: Vec<_> =
            seeds.iter().map(|[x, y, z]| Coords::new(x % nx, y % ny, z % nz, 0, 0, 0)).collect();
        let subnet = Subnet::around(&shape, &nodes);
        prop_assert_eq!(subnet.to_string().parse(), Ok(subnet));
        for node in &nodes {
            prop_assert!(subnet.mode().subnet_allows(node.x, node.y, node.z));
        }
    }
}

/// Checks that setting field `$with` to any value changes only that field's bits.
macro_rules! check_setter {
    ($raw:expr, $value:expr, $t:ident { $($field:ident / $with:ident : $ty:ty),* $(,)? }) => {$({
        let (_, lo, hi) = *$t::FIELDS.iter().find(|f| f.0 == stringify!($field)).unwrap();
        let mask = (u64::MAX >> (63 - (hi - lo))) << lo;
        let value = $value as $ty;
        let set = $t($raw).$with(value);
        prop_assert_eq!(set.0 & !mask, $raw & !mask);
        prop_assert_eq!(set.$field() as u64, value as u64 & (mask >> lo));
        prop_assert_eq!($t($raw).$with($t($raw).$field()).0, $raw);
    })*};
}

proptest! {
    #[test]
    fn decode_never_panics_and_inverts(offset: u64) {
        for offset in [offset, offset & 0xfff_ffff, offset & 0xfff_fff8] {
            if let Some(reg) = Register::decode(offset) {
                prop_assert_eq!(reg.offset(), offset);
            }
            prop_assert_eq!(Register::doorbell(offset), doorbell(Register::decode(offset)));
        }
    }

    #[test]
    fn setters_leave_their_neighbours_alone(raw: u64, value: u64) {
        check_setter!(raw, value, Header1 {
            source_type / with_source_type: u8, command / with_command: u8, mtu / with_mtu: u8,
            op / with_op: u8, sps / with_sps: u8, pa / with_pa: u8, pb / with_pb: u8,
            pc / with_pc: u8, rx / with_rx: u8, ry / with_ry: u8, rz / with_rz: u8,
            ra / with_ra: u8, rb / with_rb: u8, rc / with_rc: u8, ri / with_ri: u8,
        });
        check_setter!(raw, value, Header2 {
            gap / with_gap: u8, edata / with_edata: u16, length / with_length: u32,
            piggyback_length / with_piggyback_length: u8,
            packet_length / with_packet_length: u16,
        });
        check_setter!(raw, value, StagOffset {
            offset / with_offset: u64, stag / with_stag: u32, cqid / with_cqid: u8,
        });
        check_setter!(raw, value, TcqEntry { length / with_length: u32 });
        let ended = TcqEntry(raw).with_rcode(Rcode::new(value as u8));
        prop_assert_eq!(ended.0 & !0xff00, raw & !0xff00);
        prop_assert_eq!(ended.rcode().raw(), value as u8);
        prop_assert_eq!(TcqEntry(raw).with_rcode(TcqEntry(raw).rcode()).0, raw);
        check_setter!(raw, value, MrqWord1 {
            edata / with_edata: u16, length / with_length: u16, op / with_op: u8,
        });
        check_setter!(raw, value, Steering {
            mbva_units / with_mbva_units: u64, mbid / with_mbid: u16,
        });
        let flipped = Header1(raw).with_flip(!Header1(raw).flip());
        prop_assert_eq!(flipped.0 ^ raw, 1 << 7);
    }
}
