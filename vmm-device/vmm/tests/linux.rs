//! Linux in a VM. On hosts with PVM, a kernel built for it boots up to its init program, and these
//! tests need no more. On hosts with hardware virtualisation, tests of user space run as well.
//!
//! The kernel comes from `ci/kernel/build-pvm-kernel`, run once. Without it, or
//! without KVM, each test says so on standard error and passes.

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use common::{TestFunction, guest, hypervisor};
use tofu_pci::{PciFunction, regs};
use tofu_virtio::iommu::{Endpoint, Iommu};
use tofu_virtio::regs::{COMMON_AT, REGISTER_BAR, common as virtio_common};
use tofu_virtio::{Block, BlockConfig, Device, Doorbells, Options, Virtio};
use tofu_vmm::{
    Error, GuestMemory, Hypervisor, KernelEntry, KernelError, LinuxBoot, LinuxSupport, Outcome,
    Slot, Viot, Virtualisation, Vm, VmConfig, Windows, layout, probe,
};
use vm_memory::GuestMemoryBackend;
use vmm_sys_util::eventfd::EventFd;

const MIB: u64 = 1 << 20;
/// Enough for a kernel on PVM beside other work on few processors; 15 s are usual.
const LONG: Duration = Duration::from_secs(240);
/// The processor time that a boot to the init program may take; on an idle host, also the time that
/// it lasts.
const BOOT_TIME: Duration = Duration::from_secs(60);

/// Linux guests keep a processor busy each: one test at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The folder of the kernel made for these tests.
fn kernel_folder(test: &str) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci/kernel/build-pvm-kernel");
    let output = Command::new(&script).arg("--path").output().unwrap();
    if !output.status.success() {
        eprintln!("SKIP {test}: no kernel in the cache: run ci/kernel/build-pvm-kernel");
        return None;
    }
    let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end());
    Some(path.parent().unwrap().to_owned())
}

/// A Linux guest and its output.
struct Linux {
    vm: Vm,
    console: Arc<(Mutex<Vec<String>>, Condvar)>,
}

impl Linux {
    fn new(hypervisor: &Hypervisor, config: &VmConfig) -> Self {
        let console = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let sink = console.clone();
        let vm = Vm::new(hypervisor, config, move |line| {
            sink.0.lock().unwrap().push(line.to_owned());
            sink.1.notify_all();
        })
        .unwrap();
        Self { vm, console }
    }

    /// Waits for a line with `text` in it; returns it.
    #[track_caller]
    fn expect(&self, text: &str) -> String {
        let end = Instant::now() + LONG;
        let mut lines = self.console.0.lock().unwrap();
        loop {
            if let Some(line) = lines.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            let ended = self.vm.wait(Duration::ZERO);
            if left.is_zero() || ended.is_some() {
                let last = lines[lines.len().saturating_sub(30)..].join("\n");
                drop(lines);
                panic!("no {text:?}; the VM: {ended:?}; last lines:\n{last}");
            }
            // Not all of the time, so as to notice the VM's end.
            let step = left.min(Duration::from_secs(1));
            lines = self.console.1.wait_timeout(lines, step).unwrap().0;
        }
    }

    fn has(&self, text: &str) -> bool {
        self.console.0.lock().unwrap().iter().any(|line| line.contains(text))
    }

    /// The console so far must contain these texts, each on a separate line.
    #[track_caller]
    fn printed(&self, texts: &[&str]) {
        let lines = self.console.0.lock().unwrap().clone();
        for text in texts {
            let found = lines.iter().any(|line| line.contains(text));
            assert!(found, "no {text:?} in\n{}", lines.join("\n"));
        }
    }

    #[track_caller]
    fn end(&self) -> Outcome {
        self.vm.wait(LONG).unwrap_or_else(|| panic!("no end: {:?}", self.vm.registers()))
    }
}

/// Processor time that the vCPU threads of the VM `name` have taken so far.
fn cpu_time(name: &str) -> Duration {
    let mut total = Duration::ZERO;
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        let folder = thread.unwrap().path();
        let read = |file| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
        if read("comm").trim_end().ends_with(name) {
            // Time on a processor in nanoseconds comes first.
            let taken = read("schedstat");
            let taken = taken.split_whitespace().next().and_then(|first| first.parse().ok());
            total += Duration::from_nanos(taken.unwrap_or(0));
        }
    }
    total
}

/// Doorbells for virtio devices, as a machine attaches them.
struct Bell(Windows);

impl Doorbells for Bell {
    fn attach(&self, bar: u8, offset: u64, event: EventFd) -> Result<(), String> {
        self.0.attach_doorbell(bar, offset, event).map(drop).map_err(|error| error.to_string())
    }
}

/// Puts a disk with one partition on the bus.
fn plug_disk(vm: &Vm, folder: &Path) -> Arc<Virtio> {
    plug_disk_behind(vm, folder, None).0
}

/// The same behind an IOMMU.
fn plug_disk_behind(vm: &Vm, folder: &Path, endpoint: Option<Endpoint>) -> (Arc<Virtio>, Slot) {
    let path = folder.join("disk");
    let mut disk = vec![0; 1 << 20];
    // A partition table: type Linux, from sector 64 on, 1024 sectors.
    disk[0x1be + 4] = 0x83;
    disk[0x1be + 8..0x1be + 12].copy_from_slice(&64u32.to_le_bytes());
    disk[0x1be + 12..0x1be + 16].copy_from_slice(&1024u32.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(&path, disk).unwrap();
    let block = Block::open(&BlockConfig { path, read_only: true, id: "test".to_owned() }).unwrap();
    plug(vm, block, Options { name: "disk".to_owned(), endpoint, ..Options::default() })
}

/// Puts a virtio device on the bus.
fn plug(vm: &Vm, device: impl Device + 'static, options: Options) -> (Arc<Virtio>, Slot) {
    let function = Arc::new(Virtio::new(device, options, vm.memory().clone()).unwrap());
    function.endpoint().msix().unwrap().connect(vm.msi_sink());
    let slot = vm.add_function(function.clone()).unwrap();
    function.attach_doorbell(&Bell(vm.windows(slot).unwrap())).unwrap();
    (function, slot)
}

fn config_word(function: &dyn PciFunction, offset: u16) -> u32 {
    let mut bytes = [0; 4];
    function.config_read(offset, &mut bytes);
    u32::from_le_bytes(bytes)
}

fn bar64(function: &dyn PciFunction) -> u64 {
    let (low, high) = (config_word(function, 0x10), config_word(function, 0x14));
    u64::from(low & !0xf) | u64::from(high) << 32
}

/// Offset of the MSI-X capability.
fn msix(function: &dyn PciFunction) -> u16 {
    const MSIX: u8 = 0x11;
    let mut at = config_word(function, regs::CAPABILITIES) as u16 & 0xff;
    while at != 0 {
        let [id, next, ..] = config_word(function, at).to_le_bytes();
        if id == MSIX {
            return at;
        }
        at = next.into();
    }
    panic!("no MSI-X capability");
}

/// An init program: prints, then switches the machine off by reboot(2).
fn init() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 120;
    const TEXT: &[u8] = b"this is the init program\n";
    #[rustfmt::skip]
    let mut code = vec![
        0xb8, 1, 0, 0, 0,                   // mov eax, SYS_write
        0xbf, 1, 0, 0, 0,                   // mov edi, 1
        0x48, 0x8d, 0x35, 0, 0, 0, 0,       // lea rsi, [rip + text]
        0xba, TEXT.len() as u8, 0, 0, 0,    // mov edx, length
        0x0f, 0x05,                         // syscall
        0xb8, 169, 0, 0, 0,                 // mov eax, SYS_reboot
        0xbf, 0xad, 0xde, 0xe1, 0xfe,       // mov edi, LINUX_REBOOT_MAGIC1
        0xbe, 0x69, 0x19, 0x12, 0x28,       // mov esi, LINUX_REBOOT_MAGIC2
        0xba, 0xdc, 0xfe, 0x21, 0x43,       // mov edx, LINUX_REBOOT_CMD_POWER_OFF
        0x0f, 0x05,                         // syscall
        0xeb, 0xfe,                         // jmp $
    ];
    // The distance of the text, from behind the lea.
    code[13] = (code.len() - 17) as u8;
    code.extend_from_slice(TEXT);
    let size = HEADERS + code.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    elf.extend([2u16, 62].iter().flat_map(|half| half.to_le_bytes()));
    elf.extend(1u32.to_le_bytes());
    elf.extend([BASE + HEADERS, 64, 0].iter().flat_map(|quad| quad.to_le_bytes()));
    elf.extend(0u32.to_le_bytes());
    elf.extend([64u16, 56, 1, 64, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    // One segment, readable and executable, of the whole file.
    elf.extend([1u32, 5].iter().flat_map(|word| word.to_le_bytes()));
    elf.extend([0, BASE, BASE, size, size, 4096].iter().flat_map(|quad| quad.to_le_bytes()));
    elf.extend(code);
    elf
}

/// A cpio archive of the "newc" kind with /init in it.
fn initrd() -> Vec<u8> {
    let mut archive = Vec::new();
    let mut file = |name: &str, mode: u32, contents: &[u8]| {
        let name_size = name.len() as u32 + 1;
        let fields = [1, mode, 0, 0, 1, 0, contents.len() as u32, 0, 0, 0, 0, name_size, 0];
        archive.extend(b"070701");
        for field in fields {
            archive.extend(format!("{field:08X}").bytes());
        }
        archive.extend(name.bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(contents);
        archive.resize(archive.len().next_multiple_of(4), 0);
    };
    file("init", 0o100_755, &init());
    file("TRAILER!!!", 0, &[]);
    archive
}

/// Tests everything that the firmware tables describe, with the kernel made for PVM: among it the
/// IOMMU. A disk behind it works with the addresses that Linux maps, and one that is not behind it
/// works as usual.
#[test]
fn linux_finds_the_machine_through_acpi() {
    let test = "linux_finds_the_machine_through_acpi";
    let (Some(kvm), Some(folder)) = (hypervisor(test), kernel_folder(test)) else { return };
    let _turn = turn();
    // Memory on both sides of the hole. The command line gives up most of the memory below it, and
    // the bounce buffers that Linux makes if there is memory above 4 GiB: on PVM it takes long to
    // set up each page and to clear them.
    let config = VmConfig {
        name: "acpi".to_owned(),
        memory: layout::LOW_RAM_END + 64 * MIB,
        vcpus: 2,
        ..VmConfig::default()
    };
    let linux = Linux::new(&kvm, &config);
    let (function, slot) = TestFunction::plug(&linux.vm);
    assert_eq!(slot.device(), 1);
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let beside = plug_disk(&linux.vm, folders[0].path());
    let iommu = Iommu::new();
    let options = Options { name: "iommu".to_owned(), ..Options::default() };
    let (_function, iommu_slot) = plug(&linux.vm, iommu.clone(), options);
    // The next slot.
    let endpoint = iommu.endpoint(4 << 3);
    let (behind, slot_behind) = plug_disk_behind(&linux.vm, folders[1].path(), Some(endpoint));
    assert_eq!(slot_behind.requester_id(), 4 << 3);
    // A kernel that knows MSI-X switches it off when it finds the function.
    let control = msix(&*function) + 2;
    function.config_write(control, &0x8000u16.to_le_bytes());
    assert_eq!(config_word(&*function, control - 2) >> 31, 1);
    let (bar0, bar2) = (bar64(&*function), config_word(&*function, 0x18));

    let kernel = std::fs::read(folder.join("vmlinux")).unwrap();
    let initrd = initrd();
    let begin = Instant::now();
    linux
        .vm
        .boot_linux(&LinuxBoot {
            kernel: &kernel,
            initrd: Some(&initrd),
            command_line: "console=ttyS0 panic=-1 memmap=0xb4000000$0x8000000 swiotlb=noforce",
            acpi: true,
            entry: KernelEntry::Auto,
            viot: Some(Viot { iommu: iommu_slot, behind: &[slot_behind] }),
        })
        .unwrap();
    linux.vm.start(|_| ()).unwrap();
    linux.expect("Run /init as init process");
    let took = cpu_time(&config.name);
    eprintln!("{test}: `Run /init` after {:?}, {took:?} on a processor", begin.elapsed());

    let mmio64 = 1u64 << kvm.physical_address_bits().clamp(34, 46);
    let high_end = 0x1_0000_0000 + 64 * MIB - 1;
    check_tables(&linux, mmio64, high_end, bar0, bar2);
    check_complaints(&linux);
    for function in 1..=3 {
        let group = format!("0000:00:0{function}.0: Adding to iommu group");
        assert!(!linux.has(&group), "{group}");
    }
    check_rings(&iommu, &behind, &beside, high_end);
    assert_eq!(bar64(&*function), bar0);
    assert_eq!(config_word(&*function, control - 2) >> 31, 0, "MSI-X found");
    match kvm.virtualisation() {
        // Its first system call fails, and `panic=-1` resets the machine: through
        // the reset register of the FADT.
        Virtualisation::Pvm => assert_eq!(linux.end(), Outcome::Reset),
        _ => assert_eq!(linux.end(), Outcome::PoweredOff),
    }
    assert!((Duration::from_millis(1)..BOOT_TIME).contains(&took), "{took:?}");
}

/// The ring of the disk behind the IOMMU is mapped, at an address where there is no memory.
fn check_rings(iommu: &Iommu, behind: &Virtio, beside: &Virtio, high_end: u64) {
    assert!(iommu.mappings() > 0);
    let is_memory = |address: u64| {
        let high = 0x1_0000_0000..=high_end;
        (1..layout::LOW_RAM_END).contains(&address) || high.contains(&address)
    };
    let ring = |disk: &Virtio| {
        let mut bytes = [0; 8];
        disk.bar_read(REGISTER_BAR, COMMON_AT + virtio_common::QUEUE_DESC, &mut bytes);
        u64::from_le_bytes(bytes)
    };
    assert!(ring(behind) != 0 && !is_memory(ring(behind)), "{:#x}", ring(behind));
    assert!(is_memory(ring(beside)), "{:#x}", ring(beside));
}

/// Linux has nothing to complain about.
fn check_complaints(linux: &Linux) {
    let complaints = [
        "no compatible bridge window",
        "can't claim",
        "BUG:",
        "WARNING:",
        "Firmware Bug",
        "virtio_iommu: ",
        "I/O error",
    ];
    for complaint in complaints {
        assert!(!linux.has(complaint), "{complaint}: {}", linux.expect(complaint));
    }
}

/// Linux prints what it finds in the firmware tables: memory up to `high_end`, windows up to
/// `mmio64`, and the test function with these BARs.
fn check_tables(linux: &Linux, mmio64: u64, high_end: u64, bar0: u64, bar2: u32) {
    linux.printed(&[
        // Memory on both sides of the hole.
        &format!("BIOS-e820: [mem 0x0000000100000000-{high_end:#018x}] usable"),
        // Firmware tables and what follows from them.
        "ACPI: RSDP 0x00000000000E0000 000024 (v02 TOFU  )",
        "ACPI: PM-Timer IO Port: 0x608",
        "IOAPIC[0]: apic_id 0, version 17, address 0xfec00000, GSI 0-23",
        "smp: Brought up 1 node, 2 CPUs",
        "ACPI: Interpreter enabled",
        "ACPI: PM: (supports S0 S5)",
        "MMCONFIG for domain 0000 [bus 00-ff] at [mem 0xe0000000-0xefffffff]",
        "ACPI: PCI Root Bridge [PCI0] (domain 0000 [bus 00-ff])",
        "_OSC: OS now controls [",
        // The windows of the host bridge.
        "pci_bus 0000:00: root bus resource [mem 0xc0000000-0xdfffffff window]",
        &format!(
            "root bus resource [mem {:#x}-{:#x} pref window]",
            mmio64_start(mmio64),
            mmio64 - 1
        ),
        // The function, with its BARs where the monitor put them.
        "pci 0000:00:01.0: [10cf:1ccd] type 00 class 0x028000",
        &format!(
            "pci 0000:00:01.0: BAR 0 [mem {bar0:#x}-{:#x} 64bit pref]",
            bar0 + (256 << 20) - 1
        ),
        &format!("pci 0000:00:01.0: BAR 2 [mem {bar2:#x}-"),
        // Devices that only the tables describe.
        "ttyS0 at I/O 0x3f8 (irq = 4, base_baud = 115200) is a 16550A",
        "rtc_cmos 00:02: registered as rtc0",
        "system 00:00: [mem 0xe0000000-0xefffffff] has been reserved",
        // The IOMMU.
        "ACPI: VIOT 0x",
        "input address: 48 bits",
        "page mask: 0xfffffffffffff000",
        "0000:00:04.0: Adding to iommu group 0",
        // The disks' driver moved no BAR, wrote to the rings, rang the doorbells and got its
        // interrupts by MSI-X: it has read the partition tables.
        "[vda] 2048 512-byte logical blocks",
        " vda: vda1",
        " vdb: vdb1",
    ]);
}

fn mmio64_start(end: u64) -> u64 {
    layout::MMIO64_START.min(end / 2)
}

/// Without tables Linux finds what a PC always had, and moves a BAR that is at an impossible place.
#[test]
fn linux_without_acpi_places_a_bar() {
    let test = "linux_without_acpi_places_a_bar";
    let (Some(kvm), Some(folder)) = (hypervisor(test), kernel_folder(test)) else { return };
    let _turn = turn();
    let config = VmConfig {
        name: "bzimage".to_owned(),
        memory: 96 * MIB,
        shared_memory: true,
        ..VmConfig::default()
    };
    let linux = Linux::new(&kvm, &config);
    let folder_of_disk = tempfile::tempdir().unwrap();
    let disk = plug_disk(&linux.vm, folder_of_disk.path());
    let (function, _) = TestFunction::plug(&linux.vm);
    let before = bar64(&*function);
    // The BARs overlap RAM. The disk's doorbell must follow to the place that Linux chooses.
    for bar in [0x10, 0x14] {
        function.config_write(bar, &0u32.to_le_bytes());
        disk.config_write(bar, &0u32.to_le_bytes());
    }

    let kernel = std::fs::read(folder.join("bzImage")).unwrap();
    linux
        .vm
        .boot_linux(&LinuxBoot {
            kernel: &kernel,
            command_line: "console=ttyS0 earlyprintk=ttyS0 panic=-1",
            ..LinuxBoot::default()
        })
        .unwrap();
    linux.vm.start(|_| ()).unwrap();
    // There is nothing to run, so Linux gives up here.
    linux.expect("Kernel panic - not syncing: VFS: Unable to mount root fs");
    linux.printed(&[
        "PCI: Using configuration type 1",
        "pci 0000:00:02.0: [10cf:1ccd] type 00 class 0x028000",
        " vda: vda1",
    ]);
    // The BAR is where Linux says that it put it.
    let after = bar64(&*function);
    let place = format!("[mem {after:#x}-{:#x} 64bit pref]", after + (256 << 20) - 1);
    let lines = linux.console.0.lock().unwrap().clone();
    let moved = |line: &&String| line.contains(&place) && line.contains("assigned");
    assert!(lines.iter().find(moved).is_some(), "{place} in\n{}", lines.join("\n"));
    assert!(config_word(&*disk, 0x10) != 0);
    assert!(after != 0 && after.is_multiple_of(256 << 20), "{before:#x} -> {after:#x}");
    assert_eq!(linux.end(), Outcome::Reset);
}

/// User space: what PVM cannot run.
#[test]
fn linux_runs_init_and_powers_off() {
    let test = "linux_runs_init_and_powers_off";
    let Some(kvm) = hypervisor(test) else { return };
    let support = probe().linux();
    if support != LinuxSupport::Full {
        eprintln!("SKIP {test}: {}", support.explanation());
        return;
    }
    let _turn = turn();
    let ours = kernel_folder(test).map(|folder| folder.join("vmlinux"));
    // Debian's kernel, made by `tofu image build`.
    let debian = cache().join("images/default");
    let kernels = [ours, Some(debian.join("vmlinux")), Some(debian.join("vmlinuz"))];
    let kernels: Vec<_> = kernels.into_iter().flatten().filter(|path| path.exists()).collect();
    if kernels.is_empty() {
        eprintln!("SKIP {test}: no kernel in the cache: run `tofu image build`");
        return;
    }
    for path in kernels {
        let config = VmConfig {
            name: "init".to_owned(),
            memory: 512 * MIB,
            vcpus: 4,
            ..VmConfig::default()
        };
        let linux = Linux::new(&kvm, &config);
        TestFunction::plug(&linux.vm);
        let kernel = std::fs::read(&path).unwrap();
        linux
            .vm
            .boot_linux(&LinuxBoot {
                kernel: &kernel,
                initrd: Some(&initrd()),
                command_line: "console=ttyS0 panic=-1",
                acpi: true,
                entry: KernelEntry::Auto,
                viot: None,
            })
            .unwrap();
        linux.vm.start(|_| ()).unwrap();
        linux.expect("this is the init program");
        linux.printed(&["smp: Brought up 1 node, 4 CPUs", "pci 0000:00:01.0: [10cf:1ccd]"]);
        assert_eq!(linux.end(), Outcome::PoweredOff, "{}", path.display());
    }
}

/// The project's cache folder.
fn cache() -> PathBuf {
    let folder = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    folder("TOFU_CACHE")
        .or_else(|| folder("XDG_CACHE_HOME").map(|base| base.join("tofu")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache/tofu")))
        .unwrap_or_default()
}

/// A small guest on a machine made for Linux, for tests that a kernel on PVM does not get to.
fn small_guest(kvm: &Hypervisor, vcpus: u8, test: &str, acpi: bool) -> Linux {
    let linux = Linux::new(kvm, &VmConfig { vcpus, ..VmConfig::default() });
    let image = guest("vmmtest");
    let command_line =
        format!("test={test} ecam={:#x} print={:#x}", layout::ECAM_START, layout::PORT_PRINT);
    let boot = LinuxBoot {
        kernel: &image,
        command_line: &command_line,
        acpi,
        entry: KernelEntry::Bits64,
        ..LinuxBoot::default()
    };
    linux.vm.boot_linux(&boot).unwrap();
    linux
}

#[test]
fn power_off_is_reported() {
    let Some(kvm) = hypervisor("power_off_is_reported") else { return };
    // The second vCPU waits to be started, and leaves with the first one.
    let linux = small_guest(&kvm, 2, "power-off", true);
    linux.vm.start(|_| ()).unwrap();
    assert_eq!(linux.end(), Outcome::PoweredOff);
}

#[test]
fn serial_input_of_any_size_arrives() {
    let Some(kvm) = hypervisor("serial_input_of_any_size_arrives") else { return };
    let linux = small_guest(&kvm, 1, "echo", false);
    let raw = Arc::new(Mutex::new(Vec::new()));
    let sink = raw.clone();
    linux.vm.set_console(move |bytes| sink.lock().unwrap().extend_from_slice(bytes));
    let mut input = linux.vm.console_input();
    // More than is kept for a guest that does not read (or does not run at all).
    let text = vec![b'a'; 100_000];
    let mut taken = 0;
    let full = loop {
        match input.write(&text) {
            Ok(part) => taken += part,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
    assert!((1000..text.len()).contains(&taken), "{taken}");
    linux.vm.start(|_| ()).unwrap();
    linux.expect("reading");
    let begin = Instant::now();
    let mut rest = &b"\n"[..];
    while !rest.is_empty() {
        assert!(begin.elapsed() < LONG);
        match input.write(rest) {
            Ok(taken) => rest = &rest[taken..],
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    let sum = taken * usize::from(b'a');
    linux.expect(&format!("{taken} bytes, sum {sum}"));
    assert_eq!(linux.end(), Outcome::Exited(0));
    let printed = String::from_utf8(raw.lock().unwrap().clone()).unwrap();
    assert!(printed.contains("reading\n"), "{printed:?}");
}

#[test]
fn impossible_numbers_of_vcpus_are_refused() {
    let Some(kvm) = hypervisor("impossible_numbers_of_vcpus_are_refused") else { return };
    for count in [0, 17, 255] {
        let config = VmConfig { vcpus: count, ..VmConfig::default() };
        let error = Vm::new(&kvm, &config, |_| ()).err().unwrap();
        assert_eq!(error.to_string(), format!("{count} vCPUs: need 1 to 16"));
    }
}

#[test]
fn unbootable_kernel_leaves_the_vm_bootable() {
    let Some(kvm) = hypervisor("unbootable_kernel_leaves_the_vm_bootable") else {
        return;
    };
    let linux = Linux::new(&kvm, &VmConfig::default());
    let boot = LinuxBoot { kernel: b"#!/bin/sh\n", ..LinuxBoot::default() };
    let error = linux.vm.boot_linux(&boot).unwrap_err();
    assert!(matches!(error, Error::Kernel(KernelError::UnknownFormat)), "{error}");
    linux.vm.boot(&guest("vmmtest"), "test=exit code=3").unwrap();
    assert!(matches!(linux.vm.boot_linux(&boot), Err(Error::State(_))));
    linux.vm.start(|_| ()).unwrap();
    assert_eq!(linux.end(), Outcome::Exited(3));
}

#[test]
fn each_vcpu_thread_starts_with_the_hook() {
    let Some(kvm) = hypervisor("each_vcpu_thread_starts_with_the_hook") else { return };
    let linux = small_guest(&kvm, 3, "power-off", true);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hook = seen.clone();
    linux.vm.on_thread_start(move |vcpu| {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        hook.lock().unwrap().push((vcpu, name));
    });
    linux.vm.start(|_| ()).unwrap();
    assert_eq!(linux.end(), Outcome::PoweredOff);
    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    let expected = [(0, "vm"), (1, "1 vm"), (2, "2 vm")].map(|(id, name)| (id, name.to_owned()));
    assert_eq!(seen, expected);
}

#[test]
fn waiting_vcpus_pause_and_stop() {
    let Some(kvm) = hypervisor("waiting_vcpus_pause_and_stop") else { return };
    let linux = small_guest(&kvm, 3, "hang", true);
    linux.vm.start(|_| ()).unwrap();
    linux.expect("spinning");
    assert!(linux.vm.pause());
    let first = linux.vm.registers().unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(linux.vm.registers().unwrap(), first, "it stands still");
    // At the reset vector.
    assert_eq!(linux.vm.registers_of(2).unwrap().rip, 0xfff0);
    assert_eq!(linux.vm.registers_of(3), None, "there is none");
    linux.vm.resume();
    assert_eq!(linux.vm.stop(), Outcome::Stopped);
}

#[test]
fn shared_memory_is_one_file() {
    let Some(kvm) = hypervisor("shared_memory_is_one_file") else { return };
    let config = VmConfig {
        memory: layout::LOW_RAM_END + 16 * MIB,
        shared_memory: true,
        ..VmConfig::default()
    };
    let vm = Vm::new(&kvm, &config, |_| ()).unwrap();
    let memory: &GuestMemory = vm.memory();
    let places: Vec<_> = memory
        .iter()
        .map(|region| region.file_offset().map(|file| file.start()).unwrap())
        .collect();
    assert_eq!(places, [0, layout::LOW_RAM_END]);
    let file = memory.iter().next().unwrap().file_offset().unwrap();
    assert_eq!(file.file().metadata().unwrap().len(), config.memory);
    assert!(
        Vm::new(&kvm, &VmConfig::default(), |_| ())
            .unwrap()
            .memory()
            .iter()
            .all(|region| { region.file_offset().is_none() })
    );
}
