//! QEMU as the client. It runs no guest: the test drives its buses by the qtest protocol.
//!
//! Run with `QEMU=qemu-system-x86_64 cargo test -p tofu-vfio-user`; without the variable the test
//! is skipped, with a message.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tofu_abi::pci::{DEVICE_TOFUD, VENDOR_ID};
use tofu_abi::{CqId, TniId};
use tofu_driver::{DmaError, IrqError, Platform};
use tofu_icc::DmaMemory;
use tofu_inproc::{Arena, Buffer};
use tofu_pci::regs;
use tofu_vfio_user::{Error, Server};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::client::{Host, sealed};
use crate::exchange;

const RAM: u64 = 64 << 20;
/// The place of the driver's memory in RAM. MSI-X messages are written below it.
const ARENA: u64 = 32 << 20;
const MESSAGES: u64 = 16 << 20;
/// Bytes of RAM for the messages of a device.
const MESSAGES_SIZE: u64 = 4096;

/// The first device is in this slot of bus 0.
const SLOT: u32 = 2;

/// The port to plug a device in.
const PORT_SLOT: u32 = 8;

/// QEMU's process, until it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The buses of a running QEMU.
struct Qemu {
    qtest: Mutex<BufReader<UnixStream>>,
    monitor: Mutex<BufReader<UnixStream>>,
    ram: GuestMemoryMmap<()>,
}

impl Qemu {
    /// QEMU with a device for each socket, and a port to plug one in.
    fn start(directory: &Path, sockets: usize) -> (Process, Arc<Self>) {
        let ram = sealed(RAM);
        let control = directory.join("qtest");
        let listener = UnixListener::bind(&control).unwrap();
        let monitor = directory.join("qmp");
        let monitors = UnixListener::bind(&monitor).unwrap();
        let mut command = Command::new(std::env::var_os("QEMU").expect("QEMU names the program"));
        let path = format!("/proc/{}/fd/{}", std::process::id(), ram.as_raw_fd());
        let backend = format!("memory-backend-file,id=ram,size={RAM},share=on,mem-path={path}");
        command.args(["-nodefaults", "-display", "none", "-accel", "qtest"]);
        command.args(["-machine", "q35,memory-backend=ram", "-m", "64", "-object", &backend]);
        command.args(["-qtest", &format!("unix:{}", control.display()), "-qtest-log", "none"]);
        command.args(["-qmp", &format!("unix:{}", monitor.display())]);
        // Plugging by the port itself, because without a guest nothing runs ACPI methods.
        command.args(["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]);
        command.args(["-device", &format!("pcie-root-port,id=plug,slot=1,addr={PORT_SLOT}")]);
        for index in 0..sockets {
            let socket = directory.join(index.to_string());
            let slot = SLOT as usize + index;
            command.arg("-device").arg(format!(
                r#"{{"driver":"vfio-user-pci","addr":"{slot}",
                    "socket":{{"type":"unix","path":"{}"}}}}"#,
                socket.display()
            ));
        }
        let mut process = Process(command.spawn().unwrap());
        let mut accept = |listener: UnixListener, path: &Path| {
            listener.set_nonblocking(true).unwrap();
            let stream = loop {
                if let Ok((stream, _)) = listener.accept() {
                    break stream;
                }
                assert!(process.0.try_wait().unwrap().is_none(), "QEMU does not start");
                std::thread::sleep(Duration::from_millis(1));
            };
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            std::fs::remove_file(path).unwrap();
            Mutex::new(BufReader::new(stream))
        };
        // It connects to its monitor first, and then waits until the qtest socket is accepted.
        let monitor = accept(monitors, &monitor);
        let qtest = accept(listener, &control);
        let qemu = Arc::new(Self { qtest, monitor, ram: map(&ram, 0) });
        qemu.command(&json!({"execute": "qmp_capabilities"}));
        (process, qemu)
    }

    /// Gives a command to the monitor.
    fn command(&self, command: &Value) {
        let line = format!("{command}\n");
        let mut monitor = self.monitor.lock().unwrap();
        monitor.get_mut().write_all(line.as_bytes()).unwrap();
        // Events and the greeting may arrive in between.
        loop {
            let mut line = String::new();
            monitor.read_line(&mut line).unwrap();
            let said: Value = serde_json::from_str(&line).expect(&line);
            assert!(said.get("error").is_none(), "{line}");
            if said.get("return").is_some() {
                return;
            }
        }
    }

    /// Sends a line to QEMU; returns what follows "OK".
    fn say(&self, line: &str) -> String {
        let mut qtest = self.qtest.lock().unwrap();
        qtest.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut reply = String::new();
        qtest.read_line(&mut reply).unwrap();
        reply.trim().strip_prefix("OK").expect(&reply).trim().to_owned()
    }

    fn ask(&self, line: &str) -> u64 {
        let reply = self.say(line);
        u64::from_str_radix(reply.trim_start_matches("0x"), 16).unwrap()
    }

    fn select(&self, slot: u32, register: u16) {
        let address = 1 << 31 | slot << 11 | u32::from(register & 0xfc);
        self.say(&format!("outl 0xcf8 {address:#x}"));
    }

    fn config_read(&self, slot: u32, register: u16) -> u32 {
        self.select(slot, register);
        self.ask("inl 0xcfc") as u32
    }

    fn find_capability(&self, slot: u32, id: u8) -> u16 {
        let mut at = self.config_read(slot, regs::CAPABILITIES) as u16 & 0xff;
        loop {
            assert_ne!(at, 0, "no capability {id:#x}");
            let capability = self.config_read(slot, at);
            if capability as u8 == id {
                return at;
            }
            at = capability as u16 >> 8;
        }
    }

    fn config_write(&self, slot: u32, register: u16, value: u32) {
        self.select(slot, register);
        self.say(&format!("outl 0xcfc {value:#x}"));
    }
}

/// RAM from an address on.
fn map(ram: &File, from: u64) -> GuestMemoryMmap<()> {
    let file = FileOffset::new(ram.try_clone().unwrap(), from);
    let range = (GuestAddress(from), (RAM - from) as usize, Some(file));
    GuestMemoryMmap::from_ranges_with_files([range]).unwrap()
}

/// A device in QEMU as the driver's platform.
struct Slot {
    qemu: Arc<Qemu>,
    memory: Arena,
    registers: u64,
    table: u64,
    messages: u64,
    start: Instant,
}

impl Slot {
    /// Does what firmware would do with device `index`.
    fn new(qemu: &Arc<Qemu>, index: u32, memory: &Arena) -> Self {
        let slot = SLOT + index;
        let identity = u32::from(DEVICE_TOFUD) << 16 | u32::from(VENDOR_ID);
        assert_eq!(qemu.config_read(slot, regs::VENDOR_ID), identity);
        let registers = 0x80_0000_0000 + (u64::from(index) << 28);
        let table = 0xe000_0000 + (index << 16);
        qemu.config_write(slot, regs::BAR0, registers as u32);
        qemu.config_write(slot, regs::BAR0 + 4, (registers >> 32) as u32);
        qemu.config_write(slot, regs::BAR0 + 8, table);
        let command = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
        qemu.config_write(slot, regs::COMMAND, command.into());
        let control = qemu.find_capability(slot, regs::CAP_MSIX);
        qemu.config_write(slot, control, u32::from(regs::MSIX_ENABLE) << 16);
        let messages = MESSAGES + u64::from(index) * MESSAGES_SIZE;
        let (qemu, memory) = (Arc::clone(qemu), memory.clone());
        Self { qemu, memory, registers, table: table.into(), messages, start: Instant::now() }
    }

    fn message(&self, vector: u16) -> u64 {
        self.messages + 8 * u64::from(vector)
    }
}

impl Platform for Slot {
    type Dma = Buffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        self.qemu.ask(&format!("readq {:#x}", self.registers + offset))
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        self.qemu.say(&format!("writeq {:#x} {value:#x}", self.registers + offset));
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        self.memory.alloc(size, align)
    }

    fn irq_enable(&self, vector: u16) -> Result<(), IrqError> {
        // The message is a 1 in RAM.
        for (word, value) in (0..).zip([self.message(vector), 0, 1, 0]) {
            let at = self.table + 16 * u64::from(vector) + 4 * word;
            self.qemu.say(&format!("writel {at:#x} {value:#x}"));
        }
        Ok(())
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        let end = Instant::now() + Duration::from_nanos(timeout_ns);
        let at = self.message(vector);
        while self.qemu.ram.load(at).unwrap() == 0 {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        self.qemu.ram.store(at, 0).unwrap();
        true
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

fn serve(server: &Arc<Server>, socket: &Path) -> JoinHandle<Result<(), Error>> {
    let (server, listener) = (Arc::clone(server), UnixListener::bind(socket).unwrap());
    std::thread::spawn(move || server.run(listener))
}

/// The program, if there is one; otherwise says that the test is skipped.
fn have_qemu(test: &str) -> bool {
    let have = std::env::var_os("QEMU").is_some();
    if !have {
        eprintln!(
            "SKIP {test}: QEMU= names no QEMU of version 10.1 or later; \
             ci/test --tier linux has one"
        );
    }
    have
}

/// Two devices of one QEMU. It is killed, and the next one finds them in their initial state.
#[test]
fn qemu_drives_the_devices() {
    if have_qemu("qemu_drives_the_devices") {
        drive(&Host::sealed());
    }
}

/// The same through pages that QEMU maps.
#[test]
fn qemu_drives_the_devices_by_mapped_pages() {
    if have_qemu("qemu_drives_the_devices_by_mapped_pages") {
        drive(&Host::polled());
    }
}

fn drive(host: &Host) {
    const LEN: usize = 100_000;
    let directory = tempfile::tempdir().unwrap();
    let threads: Vec<_> = (0..)
        .zip(&host.servers)
        .map(|(index, server)| serve(server, &directory.path().join(index.to_string())))
        .collect();
    for round in 0..2 {
        let (process, qemu) = Qemu::start(directory.path(), 2);
        let ram = qemu.ram.find_region(GuestAddress(0)).unwrap().file_offset().unwrap();
        let arena = Arena::new(map(ram.file(), ARENA)).unwrap();
        let sent: Vec<u8> = (0..LEN).map(|i| (i * 7 + i / 251 + round) as u8).collect();
        let to = host.servers[1].coords();
        let slots = [0, 1].map(|index| Slot::new(&qemu, index, &arena));
        let [(one, _kept), (other, _its)] =
            exchange::put(slots, to, (TniId::ALL[3], CqId::ALL[4]), &sent);
        // Killed, so the queues are not closed.
        std::mem::forget((one, other));
        drop(process);
    }
    for server in &host.servers {
        server.stop();
    }
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
}

/// A device that is plugged in while QEMU runs, and unplugged.
///
/// QEMU 11.1 aborts when it unplugs any vfio-user device with MSI-X (it takes the memory region of
/// the pending bits from one that is gone by then). To the device, the client disconnects, and the
/// next QEMU finds it in its initial state.
#[test]
fn qemu_plugs_and_unplugs_a_device() {
    if !have_qemu("qemu_plugs_and_unplugs_a_device") {
        return;
    }
    let host = Host::sealed();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("0");
    let thread = serve(&host.servers[0], &socket);
    let node = host.servers[0].node().unwrap();
    for _ in 0..2 {
        let (process, qemu) = Qemu::start(directory.path(), 0);
        // The port's buses, and its window for memory.
        qemu.config_write(PORT_SLOT, 0x18, 0x0001_0100);
        qemu.config_write(PORT_SLOT, 0x20, 0xe7f0_e000);
        qemu.config_write(PORT_SLOT, regs::COMMAND, 6);
        // What a guest's driver for the port does: the slot's power and its indicator.
        let control = qemu.find_capability(PORT_SLOT, regs::CAP_PCI_EXPRESS) + 0x18;
        let identity = || {
            qemu.say(&format!("outl 0xcf8 {:#x}", 1u32 << 31 | 1 << 16));
            qemu.ask("inl 0xcfc") as u32
        };
        assert_eq!(identity(), u32::MAX, "nothing is plugged in");
        qemu.command(&json!({"execute": "device_add", "arguments": {
            "driver": "vfio-user-pci", "id": "tofu", "bus": "plug",
            "socket": {"type": "unix", "path": socket.to_str().unwrap()},
        }}));
        qemu.config_write(PORT_SLOT, control, 0x100);
        assert_eq!(identity(), u32::from(DEVICE_TOFUD) << 16 | u32::from(VENDOR_ID));
        qemu.say(&format!("outl 0xcf8 {:#x}", 1u32 << 31 | 1 << 16 | u32::from(regs::COMMAND)));
        qemu.say("outl 0xcfc 0x6");
        // An answer to a read arrives after earlier writes.
        identity();
        assert!(node.endpoint().bus_master());
        qemu.command(&json!({"execute": "device_del", "arguments": {"id": "tofu"}}));
        qemu.config_write(PORT_SLOT, control, 0x700);
        let end = Instant::now() + Duration::from_secs(20);
        while node.endpoint().bus_master() || host.memories[0].mapped_ranges() > 0 {
            assert!(Instant::now() < end, "the device was not reset");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(process);
    }
    host.servers[0].stop();
    thread.join().unwrap().unwrap();
}
