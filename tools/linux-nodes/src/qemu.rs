//! QEMU as the monitor of a Linux node.
//!
//! Everything that it uses is passed to it open, so that it needs no rights to reach it.

mod connect;
mod link_error;
mod passed;
mod qmp;

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use command_fds::CommandFdExt;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Value, json};
use tofu_image::{Arch, Qemu, TCG_CPU, Template, TemplateKey};
use tofu_process::{Resize, memory_file};
use tofu_spec::units::MemorySize;
use tofu_supervisor::duplex::Duplex;
use tofu_supervisor::janitor;

use crate::lan::{End, LanPort};
use crate::qemu::passed::Passed;
use crate::setup::{GuestTime, VmSetup};

pub use link_error::LinkError;
pub use qmp::Qmp;

/// Descriptor numbers in QEMU.
const CONSOLE: i32 = 3;
const AGENT: i32 = 4;
const LAN: i32 = 5;
const MONITOR: i32 = 6;
const MEMORY: i32 = 7;
const PACE: i32 = 8;
const BREAKS: i32 = 9;

/// The environment variable with the socket of the node's device. It identifies the QEMU of a node.
const NODE: &str = "QEMU_TOFU_NODE";

/// The port that the device of an x86-64 node is plugged into. Its windows hold the BARs of every
/// generation. Its link has the most speed at which Linux does not wait for Data Link Layer Link
/// Active after a reset, because QEMU 11.1 never sets that bit for devices that are hot-plugged by
/// ACPI.
const ROOT_PORT: &str = "pcie-root-port,id=tofu-port,x-speed=5,pref64-reserve=1G,mem-reserve=4M";
const PORT: &str = "tofu-port";
/// The disk of a node with a root, which is passed open.
const ROOT_DISK: [&str; 4] = [
    "-drive",
    "if=none,id=root,format=raw,readonly=on,file=/dev/fdset/1",
    "-device",
    "virtio-blk-pci,drive=root",
];
/// The capability that leaves memory out of a saved state.
const WITHOUT_MEMORY: &str = "x-ignore-shared";
/// The pause between two questions whether a state is saved or loaded.
const SOON: Duration = Duration::from_millis(2);

/// The start of a virtual machine.
#[derive(Clone, Copy)]
pub(crate) enum Boot<'a> {
    /// With its device, from its kernel.
    Cold,
    /// Without a device, from its kernel, to be saved.
    Template,
    /// From a saved state; [`resume`] has it run.
    Clone(&'a Template),
}

/// A running QEMU, with our ends of its console and of its agent's port.
pub(crate) struct Started {
    pub(crate) child: Child,
    pub(crate) console: Duplex,
    pub(crate) agent: Duplex,
    pub(crate) memory: File,
}

/// Starts QEMU in the janitor's group. It dies with the calling thread.
pub(crate) fn start(
    qemu: &Qemu,
    setup: &VmSetup,
    boot: Boot<'_>,
    group: i32,
    stderr: OwnedFd,
) -> anyhow::Result<Started> {
    let limits = setup.confinement.of_program();
    let mut passed = Passed::new(limits);
    if let Some(LanPort { end: End::Socket(lan), .. }) = &setup.lan {
        passed.at(LAN, lan.try_clone()?);
    }
    passed.at(MONITOR, listen(&setup.qmp)?);
    let memory = memory(setup.memory, boot)?;
    passed.at(MEMORY, memory.try_clone()?);
    let time = machine_time(setup, boot);
    if let Some(time) = time {
        let (pace, pace_there) = UnixStream::pair().context("no sockets left")?;
        passed.at(PACE, pace_there);
        time.machine.keep(time.at, pace, &setup.confinement)?;
    }
    if let Some(watch) = &setup.watch {
        passed.at(BREAKS, watch.breaks.file().try_clone_to_owned()?);
    }
    let [console, agent] = ports(time, &mut passed)?;
    let qemu = passed.program(qemu, setup)?;
    let khz = clock(setup);
    let arguments = arguments(setup, boot, khz, &mut passed)?;
    let is_confined = passed.limits.is_some();
    let mut limits = passed.limits.unwrap_or_default();
    passed.mappings.iter().for_each(|mapping| limits.keep(mapping.child_fd));
    let run = |program: &Path| janitor::wrapped_with(group, program, &limits);
    let mut command = match setup.lan.as_ref().map(|lan| &lan.end) {
        // QEMU must run in the namespace of its interface.
        Some(End::Tap { namespace, .. }) => {
            let mut command = run(Path::new("nsenter"))?;
            command.arg(format!("--net={}", namespace.display())).arg("--").arg(&qemu.program);
            command
        }
        _ => run(&qemu.program)?,
    };
    command.args(&qemu.args_prefix).envs(qemu.envs.iter().cloned());
    // The arguments of a clone do not say which node it is.
    command.env(NODE, &setup.device);
    if is_confined {
        connect::answer(&mut command, &setup.name, &setup.device)?;
        if qemu.sandbox {
            command.args(Qemu::SANDBOX);
        }
    }
    command.args(arguments);
    // QEMU writes nothing useful to standard output: the console and errors go elsewhere.
    command.stdout(stderr.try_clone()?).stderr(stderr);
    command.fd_mappings(passed.mappings).context("cannot pass descriptors to QEMU")?;
    let child =
        command.spawn().with_context(|| format!("cannot run {}", qemu.program.display()))?;
    Ok(Started { child, console, agent, memory })
}

/// The machine's time, if a guest keeps that. A template has no machine.
fn machine_time<'a>(setup: &'a VmSetup, boot: Boot<'_>) -> Option<&'a GuestTime> {
    setup.time.as_ref().filter(|_| !matches!(boot, Boot::Template))
}

/// Makes the ports of a guest. In modelled time, their input comes by its pace.
fn ports(time: Option<&GuestTime>, passed: &mut Passed) -> anyhow::Result<[Duplex; 2]> {
    let Some(time) = time else {
        let ((console, console_there), (agent, agent_there)) = (Duplex::pair()?, Duplex::pair()?);
        passed.at(CONSOLE, console_there);
        passed.at(AGENT, agent_there);
        return Ok([console, agent]);
    };
    let (console, console_there, typed) = Duplex::split()?;
    let (agent, agent_there, asked) = Duplex::split()?;
    passed.at(CONSOLE, console_there);
    passed.at(AGENT, agent_there);
    time.machine.attach(time.at, [typed, asked])?;
    Ok([console, agent])
}

/// The arguments for the ports of a guest.
fn port_arguments(setup: &VmSetup, boot: Boot<'_>) -> Vec<OsString> {
    let ports = [("console", CONSOLE), ("agent", AGENT)].into_iter();
    let words = ports.flat_map(|(name, number)| match machine_time(setup, boot) {
        None => vec!["-chardev".into(), format!("socket,id={name},fd={number}")],
        Some(_) => vec![
            "-add-fd".into(),
            format!("fd={number},set={number}"),
            "-chardev".into(),
            // A pipe cannot be truncated.
            format!("file,id={name},path=/dev/fdset/{number},append=on"),
        ],
    });
    words.map(OsString::from).collect()
}

/// The memory of a guest. It is ours, so that a clone's can be filled and a template's saved.
fn memory(size: MemorySize, boot: Boot<'_>) -> anyhow::Result<File> {
    // The device's server takes no memory that could become smaller under it.
    let memory = memory_file("tofu-ram", size.0, Resize::Never).context("no shared memory")?;
    let memory = File::from(memory);
    if let Boot::Clone(template) = boot {
        template.copy_memory(&memory)?;
    }
    Ok(memory)
}

/// Returns the key of the template of which a virtual machine can be a clone, and which has the
/// files that `files` identifies.
pub(crate) fn template_key(
    qemu: &Qemu,
    setup: &VmSetup,
    files: Option<&str>,
) -> anyhow::Result<TemplateKey> {
    let mut passed = Passed::new(None);
    // Without the host's clock, whose frequency is measured and so never quite the same.
    let mut words = arguments(setup, Boot::Template, modelled_clock(setup), &mut passed)?;
    words.push(qemu.version.clone().into());
    words.extend(files.map(OsString::from));
    let files = &setup.boot_files;
    let files = [&files.kernel, &files.initrd, &qemu.program].into_iter().chain(&files.root);
    let words = words.iter().map(OsString::as_os_str);
    Ok(TemplateKey::new(words, files.map(|path| path.as_path()))?)
}

/// Stops a virtual machine that was started with [`Boot::Template`], and saves the state of its
/// devices.
pub(crate) fn save(setup: &VmSetup) -> anyhow::Result<File> {
    let state = File::from(memfd_create("tofu-state", MemfdFlags::CLOEXEC)?);
    let mut monitor = Qmp::connect(&setup.qmp)?;
    monitor.command("stop", json!({}))?;
    // QEMU opens it for writing, and wants a descriptor that can do no more.
    let there = format!("/proc/self/fd/{}", state.as_raw_fd());
    let written = File::options().write(true).open(there).context("cannot open the state")?;
    let uri = prepare(&mut monitor, &written)?;
    monitor.command("migrate", uri)?;
    wait_for_state(&mut monitor)?;
    Ok(state)
}

/// Loads the state of a virtual machine that was started with [`Boot::Clone`], plugs its device in
/// and has it run.
pub(crate) fn resume(setup: &VmSetup, template: &Template) -> anyhow::Result<()> {
    let mut monitor = Qmp::connect(&setup.qmp)?;
    let uri = prepare(&mut monitor, &template.state()?)?;
    monitor.command("migrate-incoming", uri)?;
    wait_for_state(&mut monitor)?;
    monitor.command("device_add", device(&setup.device, Some(PORT)))?;
    // In modelled time, QEMU answers when the guests of all nodes have begun.
    monitor.run()
}

/// Prepares the saving or loading of a state without the memory; returns the arguments of the
/// command for it.
fn prepare(monitor: &mut Qmp, state: &File) -> anyhow::Result<Value> {
    let capabilities = json!([{ "capability": WITHOUT_MEMORY, "state": true }]);
    monitor.command("migrate-set-capabilities", json!({ "capabilities": capabilities }))?;
    let path = monitor.add(state.as_fd())?;
    Ok(json!({ "uri": format!("file:{path}") }))
}

/// Waits until a state has been saved or loaded.
fn wait_for_state(monitor: &mut Qmp) -> anyhow::Result<()> {
    loop {
        let migration = monitor.command("query-migrate", json!({}))?;
        match migration["status"].as_str() {
            Some("completed") => return Ok(()),
            Some("failed" | "cancelled") => {
                let why = migration["error-desc"].as_str().unwrap_or("it does not say why");
                bail!("QEMU cannot save or load the state: {why}");
            }
            _ => thread::sleep(SOON),
        }
    }
}

/// Listens for connections to QEMU's own control socket, which QEMU cannot make itself.
fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    // The node's former QEMU may have had it.
    let _ = fs::remove_file(path);
    UnixListener::bind(path).with_context(|| format!("cannot make {}", path.display()))
}

/// Returns the argument that attaches a device to any QEMU, as for `tofu serve`.
pub fn device_argument(socket: &Path) -> String {
    device(socket, None).to_string()
}

/// The description of a device, which is plugged into a port or the root bus.
fn device(socket: &Path, port: Option<&str>) -> Value {
    let socket = socket.display().to_string();
    let mut device = json!({
        "driver": "vfio-user-pci", "socket": { "type": "unix", "path": socket },
    });
    if let Some(port) = port {
        device["bus"] = port.into();
    }
    device
}

/// Returns the machine and memory options that a device needs, because a client shares its memory
/// with the server.
pub fn memory_arguments(memory: MemorySize, machine: &str) -> [String; 6] {
    memory_of(memory, machine, "memory-backend-memfd")
}

/// The same for memory of a backend, which is QEMU's name for a kind and its own properties.
fn memory_of(memory: MemorySize, machine: &str, backend: &str) -> [String; 6] {
    let bytes = memory.0;
    [
        "-machine".into(),
        format!("{machine},memory-backend=ram"),
        "-object".into(),
        format!("{backend},id=ram,size={bytes},share=on"),
        "-m".into(),
        format!("{}K", bytes >> 10),
    ]
}

/// The machine with its memory and processors.
fn processor_arguments(setup: &VmSetup) -> Vec<OsString> {
    let arch = setup.boot_files.arch;
    let mut args: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(OsString::from));
    let machine = match arch {
        Arch::X86_64 => "q35,kernel-irqchip=split,graphics=off",
        Arch::Arm64 => "virt,gic-version=3",
    };
    let backend = format!("memory-backend-file,mem-path=/proc/self/fd/{MEMORY}");
    add(&memory_of(setup.memory, machine, &backend).each_ref().map(String::as_str));
    let tcg = match setup.time {
        // Instructions are counted for one processor at a time.
        Some(_) => "tcg,thread=single",
        None => "tcg,thread=multi",
    };
    match (arch, setup.kvm) {
        (Arch::X86_64, true) => add(&["-accel", "kvm", "-cpu", "host"]),
        (Arch::X86_64, false) => add(&["-accel", tcg, "-cpu", TCG_CPU]),
        (Arch::Arm64, _) => {
            let cpu = setup.arm_cpu.name();
            // The generic timer counts each instruction.
            let timer = setup.time.as_ref().map(|time| time.instruction.clock_khz());
            let timer = timer.map(|khz| format!(",cntfrq={khz}000")).unwrap_or_default();
            add(&["-accel", tcg, "-cpu", &format!("{cpu}{timer}")]);
        }
    }
    add(&["-smp", &setup.cpus.to_string()]);
    args
}

/// Returns whether a node's IOMMU is Intel's. In modelled time it is, as it works within the
/// access.
pub(crate) fn has_intel_iommu(setup: &VmSetup) -> bool {
    setup.boot_files.has_driver || setup.time.is_some()
}

/// The options that keep a guest in modelled time. The serial bus works within the access, and no
/// device works at times of the host.
fn in_modelled_time(
    time: &GuestTime,
    boot: Boot<'_>,
    passed: &mut Passed,
) -> anyhow::Result<Vec<OsString>> {
    let plugin = passed.file(&time.plugin)?;
    let plugin = plugin.display();
    let words = ["-icount", "shift=0,sleep=off", "-rtc", "clock=vm,base=2026-01-01", "-seed", "1"];
    let mut args: Vec<OsString> = words.map(OsString::from).into();
    args.push("-plugin".into());
    args.push(OsString::from(match boot {
        Boot::Cold => format!("file={plugin},fd={PACE}"),
        Boot::Template => format!("file={plugin},template={}", time.instruction.ps()),
        Boot::Clone(_) => format!("file={plugin},fd={PACE},clone=on"),
    }));
    args.extend(["-device", "virtio-serial-pci,ioeventfd=off"].map(OsString::from));
    Ok(args)
}

/// The options for the device of a virtual machine that starts in some way, and for the plugin that
/// watches it. A template has neither.
fn start_arguments(
    setup: &VmSetup,
    boot: Boot<'_>,
    port: Option<&str>,
    passed: &mut Passed,
) -> anyhow::Result<Vec<OsString>> {
    let mut words: Vec<String> = match boot {
        Boot::Template => return Ok(Vec::new()),
        Boot::Cold => vec!["-device".into(), device(&setup.device, port).to_string()],
        Boot::Clone(_) => ["-incoming", "defer", "-S"].map(String::from).into(),
    };
    if let Some(watch) = &setup.watch {
        let plugin = passed.file(&watch.plugin)?;
        words.push("-plugin".into());
        words.push(format!("file={},stacks={BREAKS}", plugin.display()));
    }
    Ok(words.into_iter().map(OsString::from).collect())
}

fn arguments(
    setup: &VmSetup,
    boot: Boot<'_>,
    clock: Option<u32>,
    passed: &mut Passed,
) -> anyhow::Result<Vec<OsString>> {
    let mut args = processor_arguments(setup);
    args.extend(port_arguments(setup, boot));
    let mut add = |words: &[&str]| args.extend(words.iter().map(OsString::from));
    add(&["-name", &setup.name, "-nodefaults", "-no-user-config", "-display", "none"]);
    // A guest that resets itself has ended, for example after a kernel panic.
    add(&["-no-reboot"]);
    let arch = setup.boot_files.arch;
    if arch == Arch::X86_64 {
        // Waking up from S3 resets the machine, and QEMU then loads the kernel again, over the
        // suspended one. Without S3, guests suspend to idle, and keep their state.
        add(&["-global", "ICH9-LPC.disable_s3=1", "-global", "ICH9-LPC.disable_s4=1"]);
    }
    // QEMU's SMMUv3 does not report mappings. Its Intel IOMMU reports each entry of its tables,
    // which is a message to the device's server for each page. The virtio IOMMU reports ranges.
    // But Linux does not restore that after a suspend, so a driver that maps memory never wakes.
    add(match (arch, has_intel_iommu(setup)) {
        (Arch::X86_64, true) => &["-device", "intel-iommu,caching-mode=on"],
        _ => &["-device", "virtio-iommu-pci"],
    });
    add(&["-serial", "chardev:console"]);
    match &setup.time {
        Some(time) => args.extend(in_modelled_time(time, boot, passed)?),
        None => add(&["-device", "virtio-serial-pci", "-device", "virtio-rng-pci"]),
    }
    let mut add = |words: &[&str]| args.extend(words.iter().map(OsString::from));
    add(&["-device", "virtserialport,chardev=agent,name=org.tofu.agent"]);
    add(&["-chardev", &format!("socket,id=qmp,fd={MONITOR},server=on,wait=off")]);
    add(&["-qmp", "chardev:qmp"]);
    if let Some(LanPort { mac, end }) = &setup.lan {
        let backend = match end {
            End::Socket(_) => format!("dgram,id=lan,local.type=fd,local.str={LAN}"),
            End::Tap { name, .. } => format!("tap,id=lan,ifname={name},script=no,downscript=no"),
        };
        add(&["-netdev", &backend]);
        add(&["-device", &format!("virtio-net-pci,netdev=lan,mac={mac},romfile=")]);
    }
    // A clone's device is hot-plugged behind a port. All nodes have it there, so that its addresses
    // are the same. The exception is a node whose firmware uses it, because our firmware only
    // supports the root bus.
    let port = (arch == Arch::X86_64 && setup.firmware.is_none()).then_some(PORT);
    if port.is_some() {
        add(&["-device", ROOT_PORT]);
    }
    // Its number is another one each time.
    if port.is_some() && setup.time.is_none() {
        add(&["-device", "vmgenid,guid=auto"]);
    }
    args.extend(start_arguments(setup, boot, port, passed)?);
    let mut add = |words: &[&str]| args.extend(words.iter().map(OsString::from));
    let boot_files = &setup.boot_files;
    if let Some(root) = &boot_files.root {
        add(&["-add-fd", &format!("fd={},set=1", passed.open(root)?)]);
        add(&ROOT_DISK);
    }
    if let Some(firmware) = &setup.firmware {
        // The firmware ends QEMU through this device if it cannot boot anything.
        add(&["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        let clock = clock.map(|khz| format!(" tsc_khz={khz}")).unwrap_or_default();
        add(&["-append", &format!("{}{clock}", firmware.command_line)]);
        args.extend(["-kernel".into(), passed.file(&firmware.file)?.into()]);
        return Ok(args);
    }
    let line = setup.command_line.clone();
    let line = if arch == Arch::X86_64 { with_clock(line, clock) } else { line };
    add(&["-append", &line]);
    args.extend(["-kernel".into(), passed.file(&boot_files.kernel)?.into()]);
    args.extend(["-initrd".into(), passed.file(&boot_files.initrd)?.into()]);
    Ok(args)
}

/// The frequency of the time stamp counter of a guest, in kHz; `None` if it is not known, or the
/// hardware runs the guest.
pub(crate) fn clock(setup: &VmSetup) -> Option<u32> {
    modelled_clock(setup).or_else(|| host_clock(setup.kvm))
}

/// The same of a guest that keeps modelled time.
fn modelled_clock(setup: &VmSetup) -> Option<u32> {
    setup.time.as_ref().map(|time| time.instruction.clock_khz())
}

/// The same of a guest that does not keep modelled time: that of the host.
pub(crate) fn host_clock(kvm: bool) -> Option<u32> {
    if kvm { None } else { tofu_vmm::host_tsc_khz() }
}

/// Adds the frequency of the time stamp counter to the command line of the kernel of an emulated
/// processor. The emulated counter is the host's. On a busy host, the kernel would measure it
/// against timers that are late, and its clock would run several times too fast.
pub(crate) fn with_clock(mut command_line: String, khz: Option<u32>) -> String {
    if let Some(khz) = khz {
        command_line.insert_str(0, &format!("tsc_early_khz={khz} "));
    }
    command_line
}
