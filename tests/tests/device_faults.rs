//! Faults of a device, and a driver that gets along with them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tofu_abi::irq::CqsIrqs;
use tofu_abi::{CqId, TniId};
use tofu_driver::{Cq, CqConfig, Device, DeviceError, Order, WaitError};
use tofu_fabric::{Ppm, Shape};
use tofu_inproc::InProcess;
use tofu_machine::{DeviceFaults, MOST_PLANNED, Machine, MachineConfig, Node, Planned};
use tofu_pci::{PciFunction, regs};

const NONE: DeviceFaults = DeviceFaults {
    msix_lost: Ppm::NEVER,
    msix_doubled: Ppm::NEVER,
    gone: false,
    stuck: false,
    endless_reset: false,
    late_tcq_ns: 0,
    late_mrq_ns: 0,
    msix_delayed: Ppm::NEVER,
    delay_ns: 0,
    read_abort: Ppm::NEVER,
    write_abort: Ppm::NEVER,
    register_lies: Ppm::NEVER,
    write_lies: Ppm::NEVER,
    planned: [None; MOST_PLANNED],
    seed: 0,
};
/// Longer than anything here takes, in nanoseconds.
const LONG: u64 = 20_000_000_000;

fn machine() -> Arc<Machine> {
    let shape: Shape = "1x1x1x2x1x1".parse().unwrap();
    Arc::new(Machine::new(MachineConfig { engines: 1, ..tofu_tests::machine(shape) }).unwrap())
}

/// Starts the first node as firmware and the driver's probe do.
fn start(machine: &Arc<Machine>, then: impl Fn(&Node, &InProcess)) {
    let coords = tofu_abi::Coords::default();
    let platform = InProcess::attach(machine, coords, 8 << 20).unwrap();
    let node = machine.node(coords).unwrap();
    machine.start().unwrap();
    let command = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
    node.config_write(regs::COMMAND, &command.to_le_bytes());
    then(node, &platform);
}

fn open(platform: &InProcess) -> Cq<InProcess> {
    let device = Device::probe(platform.clone()).unwrap();
    device.tni(TniId::ALL[0]).enable().unwrap();
    let config = CqConfig::new(TniId::ALL[0], CqId::ALL[0]);
    Cq::open(&device, &CqConfig { interrupts: CqsIrqs::NONE, ..config }).unwrap()
}

#[test]
fn device_that_is_gone_reads_as_all_ones() {
    start(&machine(), |node, platform| {
        node.set_faults(DeviceFaults { gone: true, ..NONE });
        let absent = Device::probe(platform.clone()).err();
        let expected = DeviceError::NotPresent { node_address: u64::MAX };
        assert_eq!(format!("{absent:?}"), format!("{:?}", Some(expected)));
        let mut vendor = [0; 2];
        node.config_read(0, &mut vendor);
        assert_eq!(vendor, [0xff; 2]);
        node.set_faults(NONE);
        Device::probe(platform.clone()).unwrap();
    });
}

#[test]
fn queue_that_is_stuck_is_given_up() {
    start(&machine(), |node, platform| {
        let cq = open(platform);
        node.set_faults(DeviceFaults { stuck: true, ..NONE });
        cq.close().unwrap_err();
        // A reset stops it all the same.
        node.reset();
        node.set_faults(NONE);
        let command = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
        node.config_write(regs::COMMAND, &command.to_le_bytes());
        open(platform).close().unwrap();
    });
}

#[test]
fn endless_reset_leaves_no_device() {
    start(&machine(), |node, platform| {
        node.set_faults(DeviceFaults { endless_reset: true, ..NONE });
        Device::probe(platform.clone()).unwrap();
        node.reset();
        Device::probe(platform.clone()).unwrap_err();
        node.set_faults(NONE);
        let mut vendor = [0; 2];
        node.config_read(0, &mut vendor);
        assert_ne!(vendor, [0xff; 2]);
    });
}

#[test]
fn late_entry_comes_late_or_when_the_fault_ends() {
    start(&machine(), |node, platform| {
        let mut cq = open(platform);
        let late_ns = 50_000_000;
        node.set_faults(DeviceFaults { late_tcq_ns: late_ns, ..NONE });
        let begin = Instant::now();
        cq.post_and_ring(&Order::nop(), 0).unwrap();
        assert!(cq.wait_tcq(LONG).unwrap().rcode.is_success());
        assert!(begin.elapsed() >= Duration::from_nanos(late_ns));

        node.set_faults(DeviceFaults { late_tcq_ns: 3_600_000_000_000, ..NONE });
        cq.post_and_ring(&Order::nop(), 0).unwrap();
        assert_eq!(cq.wait_tcq(late_ns).err(), Some(WaitError::TimedOut));
        node.set_faults(NONE);
        assert!(cq.wait_tcq(LONG).unwrap().rcode.is_success());
    });
}

/// Each of the first accesses may fail: the command then ends with an error, or its queue stops
/// with an exception, and a newly opened queue works.
#[test]
fn access_that_fails_ends_its_command() {
    start(&machine(), |node, platform| {
        let mut failed = 0;
        for planned in (1..8).flat_map(|nth| [Planned::Read(nth), Planned::Write(nth)]) {
            let mut cq = open(platform);
            let mut faults = NONE;
            faults.planned[0] = Some(planned);
            node.set_faults(faults);
            cq.post_and_ring(&Order::nop(), 0).unwrap();
            let ended = cq.wait_tcq(200_000_000);
            node.set_faults(NONE);
            failed += u32::from(!ended.is_ok_and(|ended| ended.rcode.is_success()));
            cq.close().unwrap();
        }
        assert!(failed > 0);
        let mut cq = open(platform);
        cq.post_and_ring(&Order::nop(), 0).unwrap();
        assert!(cq.wait_tcq(LONG).unwrap().rcode.is_success());
    });
}

/// With any seed, a driver of a device that returns wrong values gets errors or wrong results, but
/// terminates.
#[test]
fn device_that_lies_hangs_no_driver() {
    let some = Ppm::new(200_000).unwrap();
    start(&machine(), |node, platform| {
        for seed in 0..20 {
            node.set_faults(DeviceFaults { register_lies: some, write_lies: some, seed, ..NONE });
            if let Ok(device) = Device::probe(platform.clone())
                && device.tni(TniId::ALL[0]).enable().is_ok()
            {
                let config = CqConfig::new(TniId::ALL[0], CqId::ALL[0]);
                let config = CqConfig { interrupts: CqsIrqs::NONE, ..config };
                if let Ok(mut cq) = Cq::open(&device, &config) {
                    for _ in 0..50 {
                        let _ = cq.post_and_ring(&Order::nop().remote_notice(), 0);
                        let _ = cq.wait_tcq(1_000_000);
                        let _ = cq.poll_mrq();
                    }
                    let _ = cq.close();
                }
            }
            node.set_faults(NONE);
            node.reset();
            let command = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
            node.config_write(regs::COMMAND, &command.to_le_bytes());
        }
        open(platform).close().unwrap();
    });
}
