//! Boots Linux and shows its console, each line with the time since the start.
//!
//! `cargo run --release -p tofu-vmm --example linux -- KERNEL [INITRD|-] [COMMAND LINE]`
//!
//! Environment: `VCPUS` (1), `MIB` (256) of memory, `ENTRY` (auto, 64 or pvh), `ACPI` (1),
//! `SECONDS` (120) after which it gives up, `UNTIL`: a text in the console upon
//! which it stops.

#[path = "../tests/common/mod.rs"]
mod common;

use std::str::FromStr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::TestFunction;
use tofu_vmm::{Hypervisor, KernelEntry, LinuxBoot, Vm, VmConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let kernel = std::fs::read(args.next().ok_or("which kernel?")?)?;
    let initrd = args.next().filter(|path| path != "-").map(std::fs::read).transpose()?;
    let command_line = args.next().unwrap_or_else(|| "console=ttyS0".to_owned());
    let hypervisor = Hypervisor::open()?;
    let config = VmConfig {
        name: "linux".to_owned(),
        memory: setting("MIB", 256u64)? << 20,
        vcpus: setting("VCPUS", 1)?,
        ..VmConfig::default()
    };
    let begin = Instant::now();
    let until = std::env::var("UNTIL").ok();
    let (found, finds) = mpsc::channel();
    let vm = Vm::new(&hypervisor, &config, move |line| {
        println!("{:8.3} {line}", begin.elapsed().as_secs_f64());
        if until.as_ref().is_some_and(|until| line.contains(until)) {
            let _ = found.send(());
        }
    })?;
    let (_function, slot) = TestFunction::plug(&vm);
    println!("test function in slot {}", slot.device());
    let entry = match std::env::var("ENTRY").as_deref() {
        Ok("64") => KernelEntry::Bits64,
        Ok("pvh") => KernelEntry::Pvh,
        _ => KernelEntry::Auto,
    };
    vm.boot_linux(&LinuxBoot {
        kernel: &kernel,
        initrd: initrd.as_deref(),
        command_line: &command_line,
        acpi: setting("ACPI", 1u8)? != 0,
        entry,
        ..LinuxBoot::default()
    })?;
    vm.start(|_| ())?;
    let end = begin + Duration::from_secs(setting("SECONDS", 120)?);
    while Instant::now() < end && finds.try_recv().is_err() {
        if let Some(outcome) = vm.wait(Duration::from_millis(100)) {
            println!("{:8.3} the VM {outcome}", begin.elapsed().as_secs_f64());
            return Ok(());
        }
    }
    for vcpu in 0..config.vcpus {
        println!("vCPU {vcpu}: {}", vm.registers_of(vcpu).unwrap_or_default());
    }
    Ok(())
}

fn setting<T: FromStr>(name: &str, default: T) -> Result<T, String> {
    match std::env::var(name) {
        Ok(value) => value.parse().map_err(|_| format!("{name}={value}: not a number")),
        Err(_) => Ok(default),
    }
}
