//! Boots one ELF guest and shows what it prints and how it ends.
//!
//! `cargo run -p tofu-vmm --example boot -- FILE.elf [COMMAND LINE]`

use std::time::{Duration, Instant};

use tofu_vmm::{Hypervisor, Vm, VmConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let file = args.next().ok_or("usage: boot FILE.elf [COMMAND LINE]")?;
    let image = std::fs::read(file)?;
    let command_line = args.collect::<Vec<_>>().join(" ");
    let hypervisor = Hypervisor::open()?;
    let begin = Instant::now();
    let vm = Vm::new(&hypervisor, &VmConfig::default(), |line| println!("| {line}"))?;
    vm.boot(&image, &command_line)?;
    vm.start(|_| ())?;
    if vm.wait(Duration::from_secs(10)).is_none() {
        match vm.registers() {
            Some(registers) => println!("still running after 10 s: {registers}"),
            None => println!("still running after 10 s and not answering"),
        }
    }
    println!("{} after {:?}", vm.stop(), begin.elapsed());
    Ok(())
}
