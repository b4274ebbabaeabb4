//! Boots many VMs at once and prints how long it takes and what each one needs.
//!
//! `cargo run --release -p tofu-vmm --example many -- [COUNT [THREADS]]`

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{TestFunction, guest};
use tofu_vmm::{Error, Hypervisor, Outcome, Vm, VmConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>());
    let count = args.next().transpose()?.unwrap_or(192);
    let threads = args.next().transpose()?.unwrap_or(2);
    let image = guest("vmmtest");
    let hypervisor = Hypervisor::open()?;
    let (resident, files) = (resident_kib()?, descriptors()?);
    let begin = Instant::now();

    let (next, vms) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let start = || -> Result<(), Error> {
            while next.fetch_add(1, Ordering::Relaxed) < count {
                let vm = Vm::new(&hypervisor, &VmConfig::default(), |_| ())?;
                TestFunction::plug(&vm);
                vm.boot(&image, "test=exit code=0")?;
                vm.start(|_| ())?;
                vms.lock().unwrap_or_else(PoisonError::into_inner).push(vm);
            }
            Ok(())
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(start)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or(Ok(())))
    })?;
    let started = begin.elapsed();
    let vms = vms.into_inner()?;
    let failed = vms
        .iter()
        .filter(|vm| vm.wait(Duration::from_secs(60)) != Some(Outcome::Exited(0)))
        .count();
    let ended = begin.elapsed();
    println!("{count} VMs by {threads} threads: all started after {started:?}, ended {ended:?}");
    println!("{failed} failed");
    println!("descriptors a VM: {}", (descriptors()? - files) / count.max(1));
    println!(
        "resident memory a VM, guest memory included: {} KiB",
        (resident_kib()? - resident) / count.max(1)
    );
    let begin = Instant::now();
    drop(vms);
    println!("dropped in {:?}", begin.elapsed());
    Ok(())
}

fn descriptors() -> std::io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

fn resident_kib() -> Result<usize, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}
