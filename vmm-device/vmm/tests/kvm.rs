//! Guests under KVM. Where /dev/kvm cannot be opened, each test says so on standard error and
//! passes.

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{TestFunction, guest, hypervisor, regs};
use tofu_pci::PciFunction;
use tofu_vmm::{Error, Hypervisor, Outcome, Virtualisation, Vm, VmConfig};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

const LONG: Duration = Duration::from_secs(60);

macro_rules! kvm {
    () => {{
        let this = || ();
        let name = std::any::type_name_of_val(&this).trim_end_matches("::{{closure}}");
        match hypervisor(name) {
            Some(hypervisor) => hypervisor,
            None => return,
        }
    }};
}

struct Guest {
    vm: Vm,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Guest {
    fn new(hypervisor: &Hypervisor) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = {
            let lines = lines.clone();
            move |line: &str| lines.lock().unwrap().push(line.to_owned())
        };
        let vm = Vm::new(hypervisor, &VmConfig::default(), sink).unwrap();
        Self { vm, lines }
    }

    fn start(&self, command_line: &str) {
        self.vm.boot(&guest("vmmtest"), command_line).unwrap();
        self.vm.start(|_| ()).unwrap();
    }

    /// Runs to the end.
    fn run(hypervisor: &Hypervisor, command_line: &str) -> (Outcome, Vec<String>) {
        let this = Self::new(hypervisor);
        this.start(command_line);
        let outcome = this.end();
        (outcome, this.lines())
    }

    /// Runs to the end, which is success; returns what it has said.
    #[track_caller]
    fn succeeds(hypervisor: &Hypervisor, command_line: &str) -> Vec<String> {
        let (outcome, lines) = Self::run(hypervisor, command_line);
        assert_eq!(outcome, Outcome::Exited(0), "{lines:?}");
        lines
    }

    fn end(&self) -> Outcome {
        self.vm.wait(LONG).unwrap_or_else(|| {
            panic!("no end; {:?}; {:?}", self.vm.registers(), self.lines());
        })
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    fn wait_for_line(&self, wanted: &str) {
        let begin = Instant::now();
        while !self.lines().iter().any(|line| line == wanted) {
            assert!(begin.elapsed() < LONG, "no line {wanted:?} in {:?}", self.lines());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn guest_prints_and_exits() {
    let kvm = kvm!();
    let lines = Guest::succeeds(&kvm, "test=hello who=node7");
    let expected = [
        "hello from node7".to_owned(),
        String::new(),
        "long ".repeat(100),
        "00:00.0 1b36:0008".to_owned(),
        "no line end".to_owned(),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn exit_code_is_the_guests() {
    let kvm = kvm!();
    assert_eq!(Guest::run(&kvm, "test=exit code=258").0, Outcome::Exited(258));
    assert_eq!(Guest::run(&kvm, "test=exit code=-1").0, Outcome::Exited(u32::MAX));
}

#[test]
fn guest_reports_panics_and_exceptions() {
    let kvm = kvm!();
    let (outcome, lines) = Guest::run(&kvm, "test=panic");
    assert_eq!(outcome, Outcome::Exited(101));
    assert!(lines.iter().any(|line| line == "told to"), "{lines:?}");

    let (outcome, lines) = Guest::run(&kvm, "test=page-fault");
    assert_eq!(outcome, Outcome::Exited(102));
    let found = lines.iter().any(|line| {
        line.starts_with("exception 14 (page fault) rip=0x4") && line.contains("cr2=0x201238")
    });
    assert!(found, "{lines:?}");

    // Page 0 is not mapped.
    let (outcome, lines) = Guest::run(&kvm, "test=null");
    assert_eq!(outcome, Outcome::Exited(102));
    let found = lines.iter().any(|line| line.contains("page fault") && line.contains("cr2=0x10 "));
    assert!(found, "{lines:?}");

    // The page below the stack is not mapped.
    let (outcome, lines) = Guest::run(&kvm, "test=stack-overflow");
    assert_eq!(outcome, Outcome::Exited(102));
    let found = lines.iter().any(|line| line.contains("page fault") && line.contains("cr2=0x3f"));
    assert!(found, "{lines:?}");
}

#[test]
fn triple_fault_is_reported_with_registers() {
    let kvm = kvm!();
    let (outcome, _) = Guest::run(&kvm, "test=triple-fault");
    let Outcome::TripleFault(fault) = &outcome else { panic!("{outcome:?}") };
    assert!((0x40_0000..0x50_0000).contains(&fault.registers.rip), "{fault}");
    assert!(fault.to_string().starts_with("triple fault on vCPU 0: rip=0x4"), "{fault}");
}

#[test]
fn unemulated_access_ends_only_that_vm() {
    let kvm = kvm!();
    let other = Guest::new(&kvm);
    other.start("test=sleep");
    other.wait_for_line("sleeping");
    let (outcome, _) = Guest::run(&kvm, "test=unemulated");
    match (kvm.virtualisation(), &outcome) {
        (Virtualisation::Pvm, Outcome::InternalError(fault)) => {
            // The message names the instruction: POPCNT of a 64-bit register.
            let instruction = "KVM cannot emulate the instruction f3 4";
            assert!(fault.reason.starts_with(instruction), "{fault}");
            assert!((0x40_0000..0x50_0000).contains(&fault.registers.rip), "{fault}");
        }
        (Virtualisation::Pvm, _) => panic!("{outcome:?}"),
        (_, outcome) => assert_eq!(*outcome, Outcome::Exited(0)),
    }
    assert_eq!(other.vm.wait(Duration::ZERO), None);
    assert_eq!(other.vm.stop(), Outcome::Stopped);
}

#[test]
fn reset_is_reported() {
    let kvm = kvm!();
    assert_eq!(Guest::run(&kvm, "test=reset").0, Outcome::Reset);
}

/// One that was stopped, or has ended, is followed by another around the same memory.
#[test]
fn vm_replaces_a_former_one() {
    let kvm = kvm!();
    let former = Guest::new(&kvm);
    former.start("test=sleep");
    former.wait_for_line("sleeping");
    let renew = |vm: &Vm, lines: &Arc<Mutex<Vec<String>>>| {
        let lines = lines.clone();
        let sink = move |line: &str| lines.lock().unwrap().push(line.to_owned());
        vm.renew(&kvm, &VmConfig::default(), sink)
    };
    let still = renew(&former.vm, &former.lines);
    assert!(matches!(still, Err(Error::State("still running"))));
    former.vm.stop();
    // Where the command line was, among much else.
    let used = |vm: &Vm| {
        let mut all = vec![0; 2 << 20];
        vm.memory().read_slice(&mut all, GuestAddress(0)).unwrap();
        all.iter().any(|byte| *byte != 0)
    };
    assert!(used(&former.vm));
    let mut vm = renew(&former.vm, &former.lines).unwrap();
    let start = |vm: &Vm| vm.memory().iter().next().unwrap().as_ptr();
    assert!(start(&vm) == start(&former.vm) && !used(&vm));
    drop(former);
    // Any number of times, also after a guest that has exited.
    for _ in 0..3 {
        let next = Guest { vm, lines: Arc::default() };
        next.start("test=hello who=node7");
        assert_eq!(next.end(), Outcome::Exited(0));
        vm = renew(&next.vm, &next.lines).unwrap();
    }
}

/// One that is ended for a reason says so, and its memory can be given back then.
#[test]
fn ended_guest_has_its_reason_and_gives_memory_back() {
    let kvm = kvm!();
    let guest = Guest::new(&kvm);
    assert_eq!(guest.vm.resident().unwrap(), 0);
    guest.start("test=hang");
    guest.wait_for_line("spinning");
    assert!(guest.vm.resident().unwrap() > 64 << 10);
    assert!(matches!(guest.vm.give_back(), Err(Error::State("still running"))));
    guest.vm.holder().end("too large".to_owned());
    let outcome = guest.end();
    assert_eq!(
        (outcome.to_string(), outcome),
        ("too large".into(), Outcome::Ended("too large".into()))
    );
    guest.vm.give_back().unwrap();
    assert_eq!(guest.vm.resident().unwrap(), 0);
}

/// A spinning vCPU and a sleeping one both answer, and stop immediately.
#[test]
fn hanging_guests_show_registers_and_stop() {
    let kvm = kvm!();
    for (test, line) in [("test=hang", "spinning"), ("test=sleep", "sleeping")] {
        let guest = Guest::new(&kvm);
        guest.start(test);
        guest.wait_for_line(line);
        assert_eq!(guest.vm.wait(Duration::from_millis(20)), None);
        let registers = guest.vm.registers().expect("the vCPU answers");
        assert!((0x40_0000..0x50_0000).contains(&registers.rip), "{test}: {registers}");
        let begin = Instant::now();
        assert_eq!(guest.vm.stop(), Outcome::Stopped);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_eq!(guest.vm.registers(), None);
    }
}

#[test]
fn paused_guest_stands_still() {
    let kvm = kvm!();
    let guest = Guest::new(&kvm);
    guest.start("test=hang");
    guest.wait_for_line("spinning");
    assert!(guest.vm.pause());
    // Reading them takes a round through the vCPU thread each time.
    let first = guest.vm.registers().unwrap();
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(guest.vm.registers().unwrap(), first);
    guest.vm.resume();
    assert_eq!(guest.vm.wait(Duration::from_millis(10)), None);
    assert!(guest.vm.pause());
    assert_eq!(guest.vm.stop(), Outcome::Stopped);
    assert!(!guest.vm.pause());
}

#[test]
fn memory_and_time_work() {
    let kvm = kvm!();
    let lines = Guest::succeeds(&kvm, "test=memory");
    // 16 MiB minus the 4 MiB below the image and the image itself.
    let free: usize = lines[0].parse().unwrap();
    assert!((11 << 20..12 << 20).contains(&free), "{free}");

    let lines = Guest::succeeds(&kvm, "test=time");
    let us: u64 = lines[0].strip_suffix(" us").unwrap().parse().unwrap();
    assert!((20_000..5_000_000).contains(&us), "{us}");
}

#[test]
fn absent_devices_read_as_ones() {
    let kvm = kvm!();
    Guest::succeeds(&kvm, "test=stray");
}

#[test]
fn pc_ports_work() {
    let kvm = kvm!();
    let lines = Guest::succeeds(&kvm, "test=ports");
    let expected = [
        "through the serial port",
        "address 0x80000000, bridge 0x81b36",
        "device 31 0xffffffff",
        "bus 1 0xffffffff",
        "disabled 0xffffffff",
    ];
    assert_eq!(lines, expected);
}

/// Registers, MSI-X through irqfds, a doorbell through an ioeventfd, a shared page with write
/// protection, and the same after the guest moved the BAR.
#[test]
fn device_works_in_all_ways() {
    let kvm = kvm!();
    let guest = Guest::new(&kvm);
    let (function, slot) = TestFunction::plug(&guest.vm);
    assert_eq!(slot.device(), 1);
    let writes = drive(&guest, &function);
    // Neither doorbells nor unprotected page writes caused exits.
    let page = regs::PAGE;
    let expected = [
        (regs::SCRATCH, 0x1122_3344_5566_7788),
        (regs::TRIGGER, 3),
        (regs::TRIGGER, 4),
        (regs::PROTECT, 1),
        (page + 16, 0x5678),
        (regs::PROTECT, 0),
    ];
    assert_eq!(writes, expected);
}

/// The same with a watched page: a write to it while it was protected was noticed, and reached the
/// page.
#[test]
fn watched_page_notices_a_write() {
    let kvm = kvm!();
    let guest = Guest::new(&kvm);
    let (function, _) = TestFunction::plug_watched(&guest.vm).unwrap();
    let writes = drive(&guest, &function);
    let expected = [
        (regs::SCRATCH, 0x1122_3344_5566_7788),
        (regs::TRIGGER, 3),
        (regs::TRIGGER, 4),
        (regs::PROTECT, 1),
        (regs::PROTECT, 0),
    ];
    assert_eq!(writes, expected);
    assert_eq!(function.woken.load(Ordering::SeqCst), 1);
}

/// A guest may put its BAR anywhere; that harms only itself, and not permanently.
#[test]
fn misplaced_bars_come_back() {
    let kvm = kvm!();
    for watched in [false, true] {
        let guest = Guest::new(&kvm);
        let (function, _) = match watched {
            true => TestFunction::plug_watched(&guest.vm).unwrap(),
            false => TestFunction::plug(&guest.vm),
        };
        function.page_word(1).store(0xfeed, Ordering::SeqCst);
        guest.start("test=bars");
        assert_eq!(guest.end(), Outcome::Exited(0), "{:?}", guest.lines());
        let expected =
            ["gone 0xffffffffffffffff", "back 0xfeed", "off 0xffffffffffffffff", "on 0xfeed"];
        assert_eq!(guest.lines(), expected);
        assert_eq!(function.page_word(0).load(Ordering::SeqCst), 0x1234);
        assert_eq!(function.take_writes(), []);
    }
}

/// Runs the guest's `device` test; returns the writes that reached the function.
fn drive(guest: &Guest, function: &Arc<TestFunction>) -> Vec<(u64, u64)> {
    function.page_word(1).store(0xfeed, Ordering::SeqCst);
    let echo = {
        let function = function.clone();
        std::thread::spawn(move || {
            let mut rings = 0;
            while rings < 201 {
                rings += function.doorbell.read().unwrap();
                function.endpoint.trigger(4);
            }
        })
    };
    guest.start("test=device");
    assert_eq!(guest.end(), Outcome::Exited(0), "{:?}", guest.lines());
    echo.join().unwrap();
    let expected = [
        "bar 0x1000000000",
        "scratch 0x1122334455667788",
        "vector 3: 1",
        "vector 4: 1",
        "rounds done",
        "page 0xfeed",
        "protected 0x5678",
        "bar 0x2000000000",
        "scratch 0x1122334455667788",
        "moved 202",
    ];
    assert_eq!(guest.lines(), expected);
    for (index, value) in [(0, 0x1234), (1, 0xfeed), (2, 0x5678), (3, 0x9abc), (4, 0xdef0)] {
        assert_eq!(function.page_word(index).load(Ordering::SeqCst), value, "word {index}");
    }
    function.take_writes()
}

/// However early the stop is, it is neither lost nor late.
#[test]
fn stop_right_after_start_works() {
    let kvm = kvm!();
    for round in 0..30 {
        let guest = Guest::new(&kvm);
        guest.start("test=hang");
        std::thread::sleep(Duration::from_micros(50 * round));
        let begin = Instant::now();
        assert_eq!(guest.vm.stop(), Outcome::Stopped);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}

/// A function with a bug.
struct Broken(std::sync::atomic::AtomicBool);

impl PciFunction for Broken {
    fn config_read(&self, _offset: u16, data: &mut [u8]) {
        assert!(!self.0.load(Ordering::SeqCst), "on purpose");
        data.fill(0);
    }
    fn config_write(&self, _offset: u16, _data: &[u8]) {}
    fn bars(&self) -> [Option<tofu_pci::BarRange>; tofu_pci::BAR_COUNT] {
        [None; tofu_pci::BAR_COUNT]
    }
    fn bar_read(&self, _bar: u8, _offset: u64, _data: &mut [u8]) {}
    fn bar_write(&self, _bar: u8, _offset: u64, _data: &[u8]) {}
    fn reset(&self) {}
}

#[test]
fn panicking_device_ends_only_its_vm() {
    let kvm = kvm!();
    let guest = Guest::new(&kvm);
    let function = Arc::new(Broken(false.into()));
    guest.vm.add_function(function.clone()).unwrap();
    function.0.store(true, Ordering::SeqCst);
    guest.start("test=hello");
    let outcome = guest.end();
    let Outcome::InternalError(fault) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(fault.reason, "a device panicked");
    assert_eq!(guest.vm.stop(), outcome);
}

#[test]
fn bad_images_are_refused() {
    let kvm = kvm!();
    let guest = Guest::new(&kvm);
    for image in [&b""[..], b"#!/bin/sh", &common::guest("vmmtest")[..40]] {
        let error = guest.vm.boot(image, "").unwrap_err();
        assert!(matches!(error, Error::Image(_)), "{error}");
    }
    let error = guest.vm.boot(&common::guest("vmmtest"), &"x".repeat(3000)).unwrap_err();
    assert!(matches!(error, Error::CommandLine(_)), "{error}");
    assert!(matches!(guest.vm.start(|_| ()), Err(Error::State(_))));
    // None of that spoils the VM.
    guest.start("test=exit code=0");
    assert_eq!(guest.end(), Outcome::Exited(0));
}

#[test]
fn impossible_memory_sizes_are_refused() {
    let kvm = kvm!();
    for memory in [0, 4096, (16 << 20) + 1, 1 << 60] {
        let config = VmConfig { memory, ..Default::default() };
        let error = Vm::new(&kvm, &config, |_| ()).err();
        assert!(matches!(error, Some(Error::MemorySize { .. })), "{memory}: {error:?}");
    }
}

#[test]
fn end_is_announced_once_with_all_output() {
    let kvm = kvm!();
    let guest = Guest::new(&kvm);
    guest.vm.boot(&common::guest("vmmtest"), "test=hello").unwrap();
    let (sender, ends) = std::sync::mpsc::channel();
    let lines = guest.lines.clone();
    guest
        .vm
        .start(move |outcome| {
            let printed = lines.lock().unwrap().len();
            sender.send((outcome.clone(), printed)).unwrap();
        })
        .unwrap();
    assert_eq!(ends.recv_timeout(LONG).unwrap(), (Outcome::Exited(0), 5));
    assert_eq!(guest.vm.stop(), Outcome::Exited(0));
    assert!(ends.recv().is_err());
}
