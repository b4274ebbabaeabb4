//! A guest's violations of the rules are logged at debug level, under the target `device`.

mod common;

use std::sync::{Arc, Mutex};

use common::{PEER, Quiet, SELF, Sent};
use log::{Level, LevelFilter, Log, Metadata, Record};
use tofu_abi::desc::{Command, Descriptor, Header1, Header2};
use tofu_abi::regs::{BgsReg, CqReg, CqsReg, PortReg, Register, TniReg};
use tofu_abi::topology::Port;
use tofu_abi::{BgId, CqId, Rcode, StagOffset, TniId};
use tofu_icc::{Config, Icc, LOG_TARGET};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Keeps the lines of the target.
struct Keeper(Mutex<Vec<String>>);

static KEEPER: Keeper = Keeper(Mutex::new(Vec::new()));

impl Log for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == LOG_TARGET && metadata.level() == Level::Debug
    }
    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }
    fn flush(&self) {}
}

/// The lines that were logged since; all are about this node.
fn told(what: impl FnOnce()) -> Vec<String> {
    KEEPER.0.lock().unwrap().clear();
    what();
    let lines = std::mem::take(&mut *KEEPER.0.lock().unwrap());
    let prefix = format!("node {SELF}: ");
    lines.iter().map(|line| line.strip_prefix(&prefix).expect(line).to_owned()).collect()
}

const TNI: TniId = TniId::ALL[0];
const CQ: CqId = CqId::ALL[0];
const TOQ: u64 = 0x1_0000;

fn write(icc: &Icc, register: Register, value: u64) {
    icc.bar_write(register.offset(), &value.to_le_bytes());
}

fn cqs(reg: CqsReg) -> Register {
    Register::Cqs { tni: TNI, cq: CQ, reg }
}

#[test]
fn violations_name_register_and_rule() {
    log::set_logger(&KEEPER).unwrap();
    log::set_max_level(LevelFilter::Debug);
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x10_0000)]).unwrap();
    // A new device for each part, because the clock stands still and the lines of a second are
    // limited.
    let device = || {
        let icc =
            Icc::new(Config::tofud(SELF), Arc::new(Quiet::default()), Arc::new(memory.clone()));
        icc.set_bus_master(true);
        icc
    };

    let icc = device();
    let one = |register: Register, value: u64| told(|| write(&icc, register, value)).join("\n");
    assert_eq!(
        one(cqs(CqsReg::Status), 5),
        "T-REG-003: write of 0x5 to TNI 0 CQ 0 STATUS: read-only"
    );
    let sent = Register::Tni { tni: TNI, reg: TniReg::NumSendTlp };
    assert_eq!(one(sent, 0), "T-REG-003: write of 0x0 to TNI 0 NUM_SEND_TLP: read-only");
    let port = Register::Port { port: Port::BPlus, reg: PortReg::NumSendTlp };
    assert!(one(port, 0).ends_with("port 3 NUM_SEND_TLP: read-only"));
    let fetch = Register::Cq { tni: TNI, cq: CQ, reg: CqReg::FetchStart };
    assert_eq!(
        one(fetch, 1),
        "T-CQ-006: write to TNI 0 CQ 0 TOQ_FETCH_START: the queue is not enabled"
    );
    write(&icc, cqs(CqsReg::ToqSize), 7);
    assert_eq!(
        one(cqs(CqsReg::Enable), 1),
        "T-CQ-002: ENABLE, with 0x7 in TNI 0 CQ 0 TOQ_SIZE: size codes are 0 to 5"
    );
    write(&icc, cqs(CqsReg::ToqSize), 0);
    write(&icc, cqs(CqsReg::MrqIpa), 0x1010);
    assert!(one(cqs(CqsReg::Enable), 1).ends_with("MRQ_IPA: the address is a multiple of 32"));
    let gate = Register::Bgs { tni: TNI, bg: BgId::ALL[0], reg: BgsReg::LocalLink };
    write(&icc, gate, u64::MAX);
    let gate = Register::Bgs { tni: TNI, bg: BgId::ALL[0], reg: BgsReg::Enable };
    assert!(one(gate, 1).starts_with("T-BG-001: TNI 0 BG 0 ENABLE: its links are refused: "));
    let [two, nowhere] = [(8, 2), (0x7ff_fff8, 8)]
        .map(|(at, len)| told(|| icc.bar_write(at, &[0; 8][..len])).join("\n"));
    assert!(
        two.starts_with("T-REG-001: write of 2 bytes at BAR0 offset 0x8: registers take 4 or 8"),
        "{two}"
    );
    assert_eq!(nowhere, "T-REG-002: write at BAR0 offset 0x7fffff8: there is no register");

    check_commands(&device(), &memory);

    // A guest cannot fill the log.
    let icc = device();
    let lines = told(|| (0..1000).for_each(|_| write(&icc, cqs(CqsReg::Status), 0)));
    assert_eq!(lines.len(), 20);
}

/// Of commands one is refused, and one is not allowed by its tables.
fn check_commands(icc: &Icc, memory: &GuestMemoryMmap) {
    write(icc, Register::Tni { tni: TNI, reg: TniReg::Enable }, 1);
    for (reg, value) in
        [(CqsReg::ToqIpa, TOQ), (CqsReg::TcqIpa, 0x2_0000), (CqsReg::MrqIpa, 0x3_0000)]
    {
        write(icc, cqs(reg), value);
    }
    write(icc, cqs(CqsReg::Enable), 1);
    let header1 = Header1(0).with_target(PEER).with_path(PEER.default_path());
    let (to, from) =
        (StagOffset::new(CqId::ALL[2], 7, 0x40), StagOffset::new(CqId::ALL[0], 5, 0x80));
    let put = |header1| Descriptor::transfer(Command::Put, header1, Header2(0), to, from, 64);
    let commands = [put(header1.with_mtu(241)), put(header1)];
    for (n, command) in commands.into_iter().enumerate() {
        let at = GuestAddress(TOQ + 32 * n as u64);
        memory.write_slice(&command.with_flip(true).to_bytes(), at).unwrap();
    }
    let lines = told(|| while icc.run_queue(TNI, CQ.into(), &mut Sent::default()) {});
    let [refused, failed] = &lines[..] else { panic!("{lines:#?}") };
    assert!(refused.starts_with("T-CMD-003: TNI 0 CQ 0: descriptor in slot 0, ["), "{refused}");
    let rcode = Rcode::BAD_MTU;
    let why = format!(": {rcode:?}, {rcode}: the mtu is 1928 bytes; 1920 are the most");
    assert!(refused.ends_with(&why), "{refused}");
    let rcode = Rcode::STEERING_TABLE_DISABLED;
    let expected = format!(
        "T-AT-001: TNI 0 CQ 0: Put of 64 bytes to node {PEER} TNI 0 CQ 2, STag 0x7 offset 0x40, \
         own STag 0x5 offset 0x80: {rcode:?}, {rcode}: "
    );
    assert!(failed.starts_with(&expected) && failed.len() > expected.len(), "{failed}");
}
