//! Prints what exits, interrupts, doorbells and memory slots cost on this host.
//!
//! `cargo run --release -p tofu-vmm --example kvm-costs`
//!
//! # Figures
//!
//! Means in microseconds on a host with KVM in software (PVM):
//!
//! - create a VM and its vCPU: 7200 to 8500
//! - guest: ring 3 to ring 0 and back: 6
//! - guest: MMIO access that leaves the guest; ioeventfd write; write to a shared page: 28; 3 to 6;
//!   0.02
//! - guest: print a line of 64 bytes: 34
//! - guest: MMIO write that is answered by an MSI, spinning: 42
//! - guest: doorbell, host thread, MSI, spinning; halted: 51; 42
//! - guest: wait with a time limit of 100 us: 134
//! - host: protect a shared page, or lift that, by memory slot; by the host's mapping: 45; 3
//! - guest: touch 1024 pages, all mapped; after protection by memory slot; by the host's mapping:
//!   9; 801; 74

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{TestFunction, guest};
use tofu_vmm::{Hypervisor, Outcome, Slot, Vm, VmConfig};
use vm_memory::MmapRegion;
use vmm_sys_util::eventfd::EventFd;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = guest("costs");
    println!("== shared page protected by its memory slot");
    costs(&image, false)?;
    println!("== shared page protected by its host mapping");
    costs(&image, true)
}

fn costs(image: &[u8], watched: bool) -> Result<(), Box<dyn std::error::Error>> {
    let begin = Instant::now();
    let hypervisor = Hypervisor::open()?;
    report("host: open KVM and read CPUID", begin.elapsed(), 1);

    let begin = Instant::now();
    let vm = Vm::new(&hypervisor, &VmConfig::default(), |line| {
        if !line.starts_with('|') {
            println!("guest: {line}");
        }
    })?;
    report("host: create a VM and its vCPU", begin.elapsed(), 1);
    let (function, slot) = match watched {
        true => TestFunction::plug_watched(&vm)?,
        false => TestFunction::plug(&vm),
    };
    let begin = Instant::now();
    vm.boot(image, "")?;
    report("host: load the image", begin.elapsed(), 1);

    // Answers each doorbell with MSI-X vector 1, once the guest has requested that.
    let done = Arc::new(AtomicBool::new(false));
    let echo = {
        let (function, done) = (function.clone(), done.clone());
        std::thread::spawn(move || {
            while !done.load(Ordering::SeqCst) {
                function.doorbell.read().expect("a blocking eventfd");
                let mut scratch = [0; 8];
                tofu_pci::PciFunction::bar_read(&*function, 0, 0, &mut scratch);
                if u64::from_le_bytes(scratch) == 0x7ead {
                    function.endpoint.trigger(1);
                }
            }
        })
    };
    let begin = Instant::now();
    vm.start(|_| ())?;
    let outcome = vm.wait(Duration::from_secs(60));
    report("host: run of the guest", begin.elapsed(), 1);
    if outcome != Some(Outcome::Exited(0)) {
        println!("the guest: {outcome:?} {:?}", vm.registers());
    }
    done.store(true, Ordering::SeqCst);
    function.doorbell.write(1)?;
    echo.join().map_err(|_| "the echo thread panicked")?;

    let flips = function.flips_ns.lock().map_err(|_| "poisoned")?;
    let (total, count) = (flips.iter().sum::<u64>(), flips.len() as u32);
    report("host: flip a shared page read-only or back", Duration::from_nanos(total), count);
    windows(&vm, slot, &function.doorbell)?;
    let begin = Instant::now();
    drop(vm);
    report("host: drop the VM (100 doorbells)", begin.elapsed(), 1);
    Ok(())
}

/// Attaches pages and doorbells to the windows of a function, and reports what each takes.
fn windows(vm: &Vm, slot: Slot, doorbell: &EventFd) -> Result<(), Box<dyn std::error::Error>> {
    let windows = vm.windows(slot).ok_or("no such slot")?;
    let region = Arc::new(MmapRegion::new(100 * 4096)?);
    let begin = Instant::now();
    let pages = (0..100)
        .map(|at| windows.attach_page(0, 0x10_0000 + at * 4096, region.clone(), at as usize * 4096))
        .collect::<Result<Vec<_>, _>>()?;
    report("host: attach a page", begin.elapsed(), 100);
    let begin = Instant::now();
    pages.into_iter().for_each(|page| windows.detach(page));
    report("host: detach a page", begin.elapsed(), 100);
    let begin = Instant::now();
    let bells = (0..100)
        .map(|at| -> Result<_, Box<dyn std::error::Error>> {
            let event = doorbell.try_clone()?;
            Ok(windows.attach_doorbell(0, 0x20_0000 + at * 8, event)?)
        })
        .collect::<Result<Vec<_>, _>>()?;
    report("host: attach a doorbell", begin.elapsed(), 100);
    drop(bells);
    Ok(())
}

fn report(what: &str, total: Duration, times: u32) {
    let each = total / times.max(1);
    println!("{what:<65} mean {:>8} ns", each.as_nanos());
}
