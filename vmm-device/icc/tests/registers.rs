//! The register map as a whole: reset values, halves, masks.

mod common;

use std::sync::Arc;

use common::Quiet;
use tofu_abi::regs::{
    BchReg, BgsReg, CqReg, CqsReg, NUM_BG, PortReg, Register, TniReg, TofuReg, XbReg,
    subnet_contains,
};
use tofu_abi::{BgId, Coords, CqId, TniId};
use tofu_fabric::PortCounters;
use tofu_icc::{Config, Icc};
use vm_memory::{GuestAddress, GuestMemoryMmap};

const SELF: Coords = Coords::new(21, 10, 5, 1, 2, 1);

struct Device {
    icc: Icc,
    host: Arc<Quiet>,
}

impl Device {
    fn new() -> Self {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x10_0000)]).unwrap();
        let port = PortCounters { send_bytes: 160, recv_tlp: 3, ..PortCounters::default() };
        let host = Arc::new(Quiet { port, ..Quiet::default() });
        let icc = Icc::new(Config::tofud(SELF), Arc::clone(&host) as _, Arc::new(memory));
        icc.set_bus_master(true);
        Self { icc, host }
    }

    fn read(&self, register: Register) -> u64 {
        let mut bytes = [0; 8];
        self.icc.bar_read(register.offset(), &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn read_half(&self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.icc.bar_read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn write(&self, register: Register, value: u64) {
        self.icc.bar_write(register.offset(), &value.to_le_bytes());
    }

    fn messages(&self) -> Vec<u16> {
        std::mem::take(&mut *self.host.interrupts.lock().unwrap())
    }
}

/// Every register of the map.
fn registers() -> Vec<Register> {
    let pages = (0..0x600_0000).step_by(0x1_0000).chain((0x600_0000..0x800_0000).step_by(0x1000));
    let mut registers: Vec<_> = pages
        .flat_map(|page| (page..page + 0x1000).step_by(8))
        .filter_map(Register::decode)
        .collect();
    registers.dedup();
    registers
}

/// The value of a register after reset.
fn reset_value(register: Register) -> u64 {
    match register {
        // Of gates that TofuD does not have.
        Register::Bgs { bg, .. } if bg.index() >= NUM_BG => 0,
        Register::Cqs { reg: CqsReg::Imr | CqsReg::Imc, .. }
        | Register::Bgs { reg: BgsReg::Imr | BgsReg::Imc, .. }
        | Register::Tni { reg: TniReg::Imr | TniReg::Imc, .. }
        | Register::Tofu(TofuReg::TnrImr | TofuReg::TnrImc) => u64::MAX,
        Register::Tni { reg: TniReg::CqPresent, .. } => 0xfff,
        Register::Bgs { reg: BgsReg::BchMask, .. } => 1 << 63,
        // X 21, Y 10, Z 5, A 1, B 2, C 1.
        Register::Tofu(TofuReg::NodeAddress) => {
            21 << 18 | 10 << 13 | 5 << 8 | 1 << 7 | 2 << 5 | 1 << 4
        }
        Register::Tofu(TofuReg::Generation) => 0x1ccd,
        // As the test's host counts: bytes in units of 16.
        Register::Port { reg: PortReg::ByteSendTlp, .. } => 10,
        Register::Port { reg: PortReg::NumReceiveTlp, .. } => 3,
        _ => 0,
    }
}

fn assert_reset(device: &Device, registers: &[Register]) {
    for &register in registers {
        assert_eq!(device.read(register), reset_value(register), "{register:?}");
    }
}

#[test]
fn registers_have_and_regain_reset_values() {
    let registers = registers();
    // 6 TNIs of 12 CQs, at most 64 gates and 16 channels; 10 ports; XB; TOFU.
    let gates = BgsReg::ALL.len() - 4 + 30;
    let expected = 6
        * (12 * (CqReg::ALL.len() + CqsReg::ALL.len())
            + 64 * (gates - 3)
            + 16 * (3 + 10)
            + TniReg::ALL.len())
        + 10 * PortReg::ALL.len()
        + XbReg::ALL.len()
        + 3
        + 20
        + 6
        + 6 * (16 + 5);
    assert_eq!(registers.len(), expected);
    let device = Device::new();
    assert_reset(&device, &registers);
    for value in [u64::MAX, 0, 0x5555_5555_5555_5555, 1] {
        for &register in &registers {
            device.write(register, value);
        }
        // It may now be in any state, with only half of a register written.
        for &register in &registers {
            device.icc.bar_write(register.offset() + 4, &[0xff; 4]);
        }
        device.icc.expire(u64::MAX);
    }
    device.icc.reset();
    assert_reset(&device, &registers);
    assert_eq!(device.icc.next_deadline(), u64::MAX);
}

#[test]
fn counters_and_states_cannot_be_written() {
    let device = Device::new();
    for &register in &registers() {
        let fixed = match register {
            Register::Port { .. } => true,
            Register::Tni { reg, .. } => {
                reg.offset() >= TniReg::SendCount.offset()
                    || matches!(reg, TniReg::State | TniReg::CqPresent | TniReg::Irr)
            }
            Register::Cqs { reg, .. } => matches!(
                reg,
                CqsReg::Status
                    | CqsReg::Irr
                    | CqsReg::ToqDirectSourceCount
                    | CqsReg::ToqDirectDescriptorCount
            ),
            Register::Cq { reg, .. } => reg.offset() >= CqReg::TcqNumNotice.offset(),
            Register::Bgs { reg, .. } => matches!(
                reg,
                BgsReg::Irr
                    | BgsReg::State
                    | BgsReg::ExceptionInfoGpidUnmatch
                    | BgsReg::ExceptionInfoAddressUnmatch
                    | BgsReg::SignalA
                    | BgsReg::SignalB
                    | BgsReg::BchMaskStatus
            ),
            Register::BgsData { .. } => true,
            Register::Bch { reg, .. } => matches!(reg, BchReg::Ready | BchReg::IgnoredSignalCount),
            Register::Xb(reg) => reg == XbReg::StqNextOffset,
            Register::Tofu(reg) => {
                matches!(reg, TofuReg::NodeAddress | TofuReg::TnrIrr | TofuReg::Generation)
            }
        };
        if fixed {
            device.write(register, u64::MAX);
            assert_eq!(device.read(register), reset_value(register), "{register:?}");
        }
    }
}

#[test]
fn register_has_two_halves() {
    let device = Device::new();
    for register in [
        Register::Cqs { tni: TniId::ALL[3], cq: CqId::ALL[7], reg: CqsReg::ToqIpa },
        Register::Cqs { tni: TniId::ALL[5], cq: CqId::ALL[11], reg: CqsReg::SteeringTableIpa },
        Register::Cq { tni: TniId::ALL[1], cq: CqId::ALL[2], reg: CqReg::MrqFullPointer },
        Register::Tni { tni: TniId::ALL[4], reg: TniReg::PrqPa },
        Register::Bgs { tni: TniId::ALL[2], bg: BgId::ALL[47], reg: BgsReg::RemoteLink },
        Register::Xb(XbReg::StqPa),
        Register::Tofu(TofuReg::PortSetting),
    ] {
        let at = register.offset();
        device.write(register, 0x1111_2222_3333_4444);
        device.icc.bar_write(at, &0x5555_6666u32.to_le_bytes());
        assert_eq!(device.read(register), 0x1111_2222_5555_6666, "{register:?}");
        device.icc.bar_write(at + 4, &0x7777_8888u32.to_le_bytes());
        assert_eq!((device.read_half(at), device.read_half(at + 4)), (0x5555_6666, 0x7777_8888));
    }
    // Enabling is bit 0: the other half does not affect it.
    let enable = Register::Cqs { tni: TniId::ALL[0], cq: CqId::ALL[0], reg: CqsReg::Enable };
    device.write(enable, 1);
    device.icc.bar_write(enable.offset() + 4, &[0; 4]);
    assert_eq!(device.read(enable), 1);
    device.icc.bar_write(enable.offset(), &[0; 4]);
    assert_eq!(device.read(enable), 0);
}

#[test]
fn other_sizes_are_counted_without_effect() {
    let device = Device::new();
    let register = Register::Cqs { tni: TniId::ALL[0], cq: CqId::ALL[0], reg: CqsReg::ToqIpa };
    device.write(register, 0x1234);
    let at = register.offset();
    for (offset, len) in [(0, 1), (0, 2), (1, 8), (2, 4), (4, 8), (0, 16), (0, 3), (0, 0), (0, 64)]
    {
        device.icc.bar_write(at + offset, &vec![0xff; len]);
        let mut bytes = vec![0xff; len];
        device.icc.bar_read(at + offset, &mut bytes);
        assert_eq!(bytes, vec![0; len], "{len} bytes at {offset}");
    }
    assert_eq!(device.read(register), 0x1234);
    assert_eq!(device.icc.faults().malformed(), 18);
    let mut bytes = [0; 8];
    for offset in [0x88, 0xc_0000, 0x60_0000, 0x600_a000, 0x700_1000, 0xfff_fff8, !7, u64::MAX - 7]
    {
        device.icc.bar_write(offset, &[0xff; 8]);
        device.icc.bar_read(offset, &mut bytes);
        assert_eq!(bytes, [0; 8], "{offset:#x}");
    }
    assert_eq!(device.icc.faults().unclaimed(), 16);
}

/// The four registers of every unit: IRR, IMR, IRC, IMC.
#[test]
fn masks_are_set_and_cleared_bit_by_bit() {
    let device = Device::new();
    let cqs = |reg| Register::Cqs { tni: TniId::ALL[1], cq: CqId::ALL[4], reg };
    let tni = |reg| Register::Tni { tni: TniId::ALL[1], reg };
    let bgs = |reg| Register::Bgs { tni: TniId::ALL[1], bg: BgId::ALL[20], reg };
    let units = [
        [cqs(CqsReg::Irr), cqs(CqsReg::Imr), cqs(CqsReg::Irc), cqs(CqsReg::Imc)],
        [tni(TniReg::Irr), tni(TniReg::Imr), tni(TniReg::Irc), tni(TniReg::Imc)],
        [bgs(BgsReg::Irr), bgs(BgsReg::Imr), bgs(BgsReg::Irc), bgs(BgsReg::Imc)],
        [
            Register::Tofu(TofuReg::TnrIrr),
            Register::Tofu(TofuReg::TnrImr),
            Register::Tofu(TofuReg::TnrIrc),
            Register::Tofu(TofuReg::TnrImc),
        ],
    ];
    for [irr, imr, irc, imc] in units {
        device.write(imr, u64::MAX);
        device.write(irc, u64::MAX);
        device.write(imc, 0b1111);
        assert_eq!(device.read(imr), !0b1111, "{imr:?}");
        device.write(imr, 0b0101);
        assert_eq!(device.read(imr), !0b1010, "{imr:?}");
        // The other half of a mask is unchanged.
        device.icc.bar_write(imc.offset() + 4, &[0xff; 4]);
        assert_eq!(device.read(imr), 0xffff_ffff & !0b1010, "{imr:?}");
        device.write(irr, u64::MAX);
        assert_eq!(device.read(irr), 0, "{irr:?}");
        assert_eq!(device.read(irc), 0, "{irc:?}");
    }
    assert_eq!(device.messages(), vec![0u16; 0]);
}

#[test]
fn pending_request_is_announced_once() {
    let device = Device::new();
    let cqs = |reg| Register::Cqs { tni: TniId::ALL[2], cq: CqId::ALL[5], reg };
    // A queue size that does not exist.
    device.write(cqs(CqsReg::ToqSize), 6);
    device.write(cqs(CqsReg::Enable), 1);
    assert_eq!((device.read(cqs(CqsReg::Irr)), device.messages()), (1, vec![]));
    device.write(cqs(CqsReg::Imc), 0b10);
    assert_eq!(device.messages(), vec![0u16; 0], "another bit");
    device.write(cqs(CqsReg::Imc), 1);
    assert_eq!(device.messages(), [1 + 16 * 2 + 5]);
    device.write(cqs(CqsReg::Imc), 1);
    device.write(cqs(CqsReg::Enable), 1);
    assert_eq!(device.messages(), vec![0u16; 0], "it is pending and was announced");
    device.write(cqs(CqsReg::Imr), 1);
    device.write(cqs(CqsReg::Imc), 1);
    assert_eq!(device.messages(), [1 + 16 * 2 + 5], "masked and unmasked, it is announced again");
    device.write(cqs(CqsReg::Irc), 1);
    device.write(cqs(CqsReg::Enable), 1);
    assert_eq!(device.messages(), [1 + 16 * 2 + 5], "a new request");
}

/// Compared with the rule of the public kernel driver, for every partition of every ring.
#[test]
fn subnets_are_those_of_the_public_driver() {
    for n in 1..=32u8 {
        for (s, l) in (0..n).flat_map(|s| (1..=n).map(move |l| (s, l))) {
            for p in 0..n {
                let inside = (0..l).any(|i| (s + i) % n == p);
                assert_eq!(subnet_contains(n, s, l, p), inside, "{n} {s} {l} {p}");
            }
        }
    }
}
