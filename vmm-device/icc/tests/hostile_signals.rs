//! Signals that no gate sends, and more of them than any gate sends, as a peer over a cable could
//! send them.

mod common;

use std::sync::Arc;

use tofu_abi::barrier::{BchReady, BgAddress, GpidBseq, OpType, SignalMask, SignalState};
use tofu_abi::irq::BgsIrqs;
use tofu_abi::reduce::{Op, Value};
use tofu_abi::regs::{BchReg, BgsReg, Register, TniReg};
use tofu_abi::{BchId, BgId, Path, TniId};
use tofu_fabric::{Class, Packet};
use tofu_icc::{Body, Config, DmaMemory, Icc, Signal};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use common::{PEER, Quiet, SELF, Sent};

const RELAY: BgId = BgId::ALL[20];
/// The start/end gate of the channel.
const END: BgId = BgId::ALL[0];
const GPID: u64 = 5;
const NOTICE: u64 = 0x1000;

/// A device with two gates. Gate 20 relays signals from gate 7 of the peer to its gate 8. Gate 0 is
/// linked to itself and to gate 9 of the peer.
struct Device {
    icc: Icc,
    memory: GuestMemoryMmap<()>,
    net: Sent,
}

impl Device {
    fn new() -> Self {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x2000)]).unwrap();
        let icc =
            Icc::new(Config::tofud(SELF), Arc::new(Quiet::default()), Arc::new(memory.clone()));
        icc.set_bus_master(true);
        let device = Self { icc, memory, net: Sent::default() };
        device.write(Register::Tni { tni: TniId::ALL[0], reg: TniReg::Enable }, 1);
        let peer = |bg: usize| BgAddress::new(PEER, TniId::ALL[0], BgId::ALL[bg]).place().0;
        let relay = SignalMask(0).with_sig_recv(true).with_sig_send(true);
        device.gate(RELAY, relay.0, peer(7) << 32 | peer(8));
        device.write(
            Register::Bgs { tni: TniId::ALL[0], bg: END, reg: BgsReg::BchNoticeIpa },
            NOTICE,
        );
        device.write(Register::Bgs { tni: TniId::ALL[0], bg: END, reg: BgsReg::BchMask }, 0);
        device.gate(END, 0, peer(9) << 32 | peer(9));
        device
    }

    fn gate(&self, bg: BgId, mask: u64, remote: u64) {
        let number = GpidBseq(0).with_gpid(GPID).with_bseq(10);
        for (reg, value) in [
            (BgsReg::SignalMask, mask),
            (BgsReg::RemoteLink, remote),
            (BgsReg::GpidBseq, number.0),
            (BgsReg::Enable, 1),
        ] {
            self.write(Register::Bgs { tni: TniId::ALL[0], bg, reg }, value);
        }
    }

    fn write(&self, register: Register, value: u64) {
        self.icc.bar_write(register.offset(), &value.to_le_bytes());
    }

    fn read(&self, register: Register) -> u64 {
        let mut bytes = [0; 8];
        self.icc.bar_read(register.offset(), &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn irr(&self, bg: BgId) -> BgsIrqs {
        let pending = self.read(Register::Bgs { tni: TniId::ALL[0], bg, reg: BgsReg::Irr });
        self.write(Register::Bgs { tni: TniId::ALL[0], bg, reg: BgsReg::Irc }, u64::MAX);
        BgsIrqs::from_raw(pending)
    }

    /// Lets a signal arrive; returns how many signals result.
    fn arrive(&mut self, tni: u8, signal: Signal) -> usize {
        let before = self.net.0.len();
        let packet = Packet {
            dst_tni: tni,
            path: Path::default(),
            model_ps: u64::MAX,
            ..Packet::shortest(Class::Request, PEER, SELF, Body::Signal(signal))
        };
        self.icc.arrive(&packet, &mut self.net);
        self.net.0.len() - before
    }

    fn start(&mut self) {
        let ready = Register::Bch { tni: TniId::ALL[0], bch: BchId::ALL[0], reg: BchReg::Ready };
        self.write(ready, BchReady(0).with_op(Op::Sum.code()).with_count(1).with_start(true).0);
        assert!(!self.icc.run_queue(TniId::ALL[0], BchId::ALL[0].into(), &mut self.net));
    }
}

/// The signals that the relay waits for.
fn signal() -> Signal {
    let value: Box<Value> = Box::new([3; 15]);
    let op = Op::Sum.into();
    Signal { source: BgId::ALL[7], target: RELAY, gpid: GPID, bseq: 10, op, value: Some(value) }
}

#[test]
fn relay_passes_on_once_per_round() {
    let mut device = Device::new();
    assert_eq!(device.arrive(0, signal()), 1);
    let Body::Signal(sent) = &device.net.0[0].body else { panic!("a signal") };
    assert_eq!(sent, &Signal { source: RELAY, target: BgId::ALL[8], ..signal() });
    assert_eq!(device.irr(RELAY), BgsIrqs::NONE);
    // Again, as a network that repeats what has arrived would send it.
    assert_eq!(device.arrive(0, signal()), 0);
    assert_eq!(device.irr(RELAY), BgsIrqs::BSEQ_UNMATCH);
    // Out of order: the next but one waits, and is used with the next one.
    assert_eq!(device.arrive(0, Signal { bseq: 12, ..signal() }), 0);
    assert_eq!(device.irr(RELAY), BgsIrqs::NONE, "the gate waits for round 11");
    assert_eq!(device.arrive(0, Signal { bseq: 12, ..signal() }), 0);
    assert_eq!(device.irr(RELAY), BgsIrqs::SIGNAL_STATE_ERROR, "twice");
    assert_eq!(device.arrive(0, Signal { bseq: 11, ..signal() }), 2);
    assert_eq!(device.irr(RELAY), BgsIrqs::NONE);
}

#[test]
fn duplicate_at_a_waiting_gate_is_ignored() {
    let mut device = Device::new();
    device.start();
    let end = Signal { source: BgId::ALL[9], target: END, ..signal() };
    let state = || Register::Bgs { tni: TniId::ALL[0], bg: END, reg: BgsReg::SignalA };
    let waiting = SignalState(device.read(state()));
    assert!(waiting.sig_recv() && waiting.sig_send() && !waiting.tlp_recv());
    let early = Signal { bseq: 11, ..end.clone() };
    device.arrive(0, early.clone());
    device.arrive(0, early);
    assert_eq!(device.irr(END), BgsIrqs::SIGNAL_STATE_ERROR);
    device.arrive(0, end.clone());
    assert_eq!(device.irr(END), BgsIrqs::SYNCHRONIZATION_ACKNOWLEDGE);
    assert_eq!(device.memory.load(NOTICE).unwrap(), 3);
    device.arrive(0, end);
    assert_eq!(device.irr(END), BgsIrqs::BSEQ_UNMATCH);
    device.start();
    assert_eq!(device.irr(END), BgsIrqs::SYNCHRONIZATION_ACKNOWLEDGE);
    assert_eq!(device.memory.load(NOTICE + 128).unwrap(), 3, "the early one, once");
}

#[test]
fn impossible_signals_are_counted() {
    let mut device = Device::new();
    let unknown = Register::Tni { tni: TniId::ALL[0], reg: TniReg::RxNumUnknownTlp };
    let illegal = [
        Signal { op: OpType::new(0), ..signal() },
        Signal { op: OpType::new(9), ..signal() },
        Signal { op: OpType::new(255), ..signal() },
        Signal { op: OpType::ERROR, ..signal() },
        Signal { op: Op::Barrier.into(), ..signal() },
        Signal { value: None, ..signal() },
        Signal { bseq: 1 << 24, ..signal() },
        Signal { gpid: 1 << 40 | GPID, ..signal() },
    ];
    for (n, signal) in (1..).zip(illegal) {
        assert_eq!(device.arrive(0, signal), 0);
        assert_eq!((device.read(unknown), device.irr(RELAY)), (n, BgsIrqs::NONE));
    }
    // Gates and interfaces that do not exist.
    for (tni, target) in
        [(0, BgId::ALL[48]), (0, BgId::ALL[63]), (5, RELAY), (6, RELAY), (255, END)]
    {
        assert_eq!(device.arrive(tni, Signal { target, ..signal() }), 0);
    }
    assert_eq!(device.arrive(0, Signal { source: BgId::ALL[63], ..signal() }), 0);
    assert_eq!(device.irr(RELAY), BgsIrqs::NODE_ADDRESS_UNMATCH);
    assert_eq!(device.arrive(0, signal()), 1, "the relay waits for its signal as before");
}

#[test]
fn error_stays_an_error() {
    let mut device = Device::new();
    let error = Signal { op: OpType::ERROR, value: None, ..signal() };
    assert_eq!(device.arrive(0, error.clone()), 1);
    let Body::Signal(sent) = &device.net.0[0].body else { panic!("a signal") };
    assert_eq!(sent, &Signal { source: RELAY, target: BgId::ALL[8], ..error });
    assert_eq!(device.irr(RELAY), BgsIrqs::NONE, "who saw the two operations has reported it");
    device.start();
    let end =
        Signal { source: BgId::ALL[9], target: END, op: OpType::ERROR, value: None, ..signal() };
    device.arrive(0, end);
    assert_eq!(device.irr(END), BgsIrqs::ERROR_SYNCHRONIZATION_ACKNOWLEDGE);
    assert_eq!(device.memory.load(NOTICE + 120).unwrap(), 1 << 63 | 15 << 24 | 10);
}

#[test]
fn signal_flood_costs_each_signal_once() {
    let mut device = Device::new();
    for n in 0..100_000 {
        device.arrive(0, Signal { bseq: n % 24, ..signal() });
        device.arrive(
            0,
            Signal { bseq: n, target: BgId::from_field(n as u8), source: BgId::ALL[1], ..signal() },
        );
    }
    // Rounds 10 to 23 came once each; the gate has not seen 24 and takes nothing else.
    assert_eq!(device.net.0.len(), 14);
    assert!(device.net.0.iter().all(|packet| packet.bytes == 8 + 128), "64 bytes of payload");
}
