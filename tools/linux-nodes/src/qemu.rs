//! QEMU as the monitor of a Linux node.
//!
//! Everything that it uses is passed to it open, so that it needs no rights to reach it.

mod connect;
mod passed;

use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Child;

use anyhow::Context;
use command_fds::CommandFdExt;
use tofu_image::{Arch, Qemu};
use tofu_spec::units::MemorySize;
use tofu_supervisor::janitor;

use crate::lan::{End, LanPort};
use crate::qemu::passed::Passed;
use crate::setup::VmSetup;

/// Descriptor numbers in QEMU.
const CONSOLE: i32 = 3;
const AGENT: i32 = 4;
const LAN: i32 = 5;
const MONITOR: i32 = 6;

/// A running QEMU, with our ends of its console and of its agent's port.
pub struct Started {
    pub(crate) child: Child,
    pub(crate) console: UnixStream,
    pub(crate) agent: UnixStream,
}

/// Starts QEMU in the janitor's group. It dies with the calling thread.
pub fn start(qemu: &Qemu, setup: &VmSetup, group: i32, stderr: OwnedFd) -> anyhow::Result<Started> {
    let (console, console_there) = UnixStream::pair().context("no sockets left")?;
    let (agent, agent_there) = UnixStream::pair().context("no sockets left")?;
    let limits = setup.confinement.of_program();
    let mut passed = Passed::new(limits);
    passed.at(CONSOLE, console_there);
    passed.at(AGENT, agent_there);
    if let Some(LanPort { end: End::Socket(lan), .. }) = &setup.lan {
        passed.at(LAN, lan.try_clone()?);
    }
    passed.at(MONITOR, listen(&setup.qmp)?);
    let qemu = passed.program(qemu, setup)?;
    let arguments = arguments(setup, &mut passed)?;
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
    Ok(Started { child, console, agent })
}

/// Listens for connections to QEMU's own control socket, which QEMU cannot make itself.
fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    // The node's former QEMU may have had it.
    let _ = fs::remove_file(path);
    UnixListener::bind(path).with_context(|| format!("cannot make {}", path.display()))
}

/// Returns the argument that attaches a device to any QEMU, as for `tofu serve`.
pub fn device_argument(socket: &Path) -> String {
    let socket = socket.display().to_string();
    serde_json::json!({
        "driver": "vfio-user-pci", "socket": { "type": "unix", "path": socket },
    })
    .to_string()
}

/// Returns the machine and memory options that a device needs, because a client shares its memory
/// with the server.
pub fn memory_arguments(memory: MemorySize, machine: &str) -> [String; 6] {
    let bytes = memory.0;
    [
        "-machine".into(),
        format!("{machine},memory-backend=ram"),
        "-object".into(),
        format!("memory-backend-memfd,id=ram,size={bytes},share=on"),
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
    add(&memory_arguments(setup.memory, machine).each_ref().map(String::as_str));
    match (arch, setup.kvm) {
        (Arch::X86_64, true) => add(&["-accel", "kvm", "-cpu", "host"]),
        // With ERMS, guests copy with `rep movsb`, which is emulated byte by byte.
        (Arch::X86_64, false) => {
            add(&["-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm"]);
        }
        (Arch::Arm64, _) => {
            add(&["-accel", "tcg,thread=multi", "-cpu", setup.arm_cpu.name()]);
        }
    }
    add(&["-smp", &setup.cpus.to_string()]);
    args
}

fn arguments(setup: &VmSetup, passed: &mut Passed) -> anyhow::Result<Vec<OsString>> {
    let mut args = processor_arguments(setup);
    let mut add = |words: &[&str]| args.extend(words.iter().map(OsString::from));
    add(&["-name", &setup.name, "-nodefaults", "-no-user-config", "-display", "none"]);
    // A guest that resets itself has ended, for example after a kernel panic.
    add(&["-no-reboot"]);
    let arch = setup.boot_files.arch;
    if arch == Arch::X86_64 {
        // To wake up from S3 resets the machine, and QEMU then loads the kernel again, over the
        // one that is to continue. Without it, guests suspend to idle, and keep their state.
        add(&["-global", "ICH9-LPC.disable_s3=1", "-global", "ICH9-LPC.disable_s4=1"]);
    }
    // QEMU's SMMUv3 does not report mappings, so arm64 gets the virtio IOMMU.
    add(match arch {
        Arch::X86_64 => &["-device", "intel-iommu,caching-mode=on"],
        Arch::Arm64 => &["-device", "virtio-iommu-pci"],
    });
    add(&["-chardev", &format!("socket,id=console,fd={CONSOLE}"), "-serial", "chardev:console"]);
    add(&["-device", "virtio-serial-pci"]);
    add(&["-chardev", &format!("socket,id=agent,fd={AGENT}")]);
    add(&["-device", "virtserialport,chardev=agent,name=org.tofu.agent"]);
    add(&["-device", "virtio-rng-pci"]);
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
    add(&["-device", &device_argument(&setup.device)]);
    let boot_files = &setup.boot_files;
    if let Some(root) = &boot_files.root {
        let fd = passed.open(root)?;
        add(&["-add-fd", &format!("fd={fd},set=1")]);
        add(&["-drive", "if=none,id=root,format=raw,readonly=on,file=/dev/fdset/1"]);
        add(&["-device", "virtio-blk-pci,drive=root"]);
    }
    if let Some(firmware) = &setup.firmware {
        // The firmware ends QEMU through this device if it cannot boot anything.
        add(&["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        let clock = tofu_vmm::host_tsc_khz().filter(|_| !setup.kvm);
        let clock = clock.map(|khz| format!(" tsc_khz={khz}")).unwrap_or_default();
        add(&["-append", &format!("{}{clock}", firmware.command_line)]);
        args.extend(["-kernel".into(), passed.file(&firmware.file)?.into()]);
        return Ok(args);
    }
    let line = setup.command_line.clone();
    let line = if arch == Arch::X86_64 { with_clock(line, setup.kvm) } else { line };
    add(&["-append", &line]);
    args.extend(["-kernel".into(), passed.file(&boot_files.kernel)?.into()]);
    args.extend(["-initrd".into(), passed.file(&boot_files.initrd)?.into()]);
    Ok(args)
}

/// Adds the frequency of the time stamp counter to a kernel's command line if the processor is
/// emulated. The emulated counter is the host's. On a busy host, the kernel would measure it
/// against timers that are late, and its clock would run several times too fast.
pub(crate) fn with_clock(mut command_line: String, kvm: bool) -> String {
    if let Some(khz) = tofu_vmm::host_tsc_khz().filter(|_| !kvm) {
        command_line.insert_str(0, &format!("tsc_early_khz={khz} "));
    }
    command_line
}
