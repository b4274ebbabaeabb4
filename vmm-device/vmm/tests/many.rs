//! Many VMs in one process, and what they leave behind. This is a separate program because it
//! counts the process's threads and descriptors.

mod common;

use std::time::{Duration, Instant};

use common::{TestFunction, guest, hypervisor};
use tofu_vmm::{Outcome, Vm, VmConfig};

const VMS: usize = 48;

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn many_vms_run_at_once_and_leave_nothing() {
    let image = guest("vmmtest");
    let (threads, files) = (entries("/proc/self/task"), entries("/proc/self/fd"));
    {
        let test = "many_vms_run_at_once_and_leave_nothing";
        let Some(hypervisor) = hypervisor(test) else { return };
        let begin = Instant::now();
        let vms: Vec<_> = (0..VMS)
            .map(|index| {
                let config = VmConfig { name: format!("vm {index}"), ..Default::default() };
                let vm = Vm::new(&hypervisor, &config, |_| ()).unwrap();
                TestFunction::plug(&vm);
                // Every third one never ends by itself.
                let test = if index % 3 == 0 { "test=sleep" } else { "test=hello" };
                vm.boot(&image, test).unwrap();
                vm.start(|_| ()).unwrap();
                vm
            })
            .collect();
        for (index, vm) in vms.iter().enumerate() {
            if index % 3 == 0 {
                assert_eq!(vm.wait(Duration::ZERO), None);
            } else {
                assert_eq!(vm.wait(Duration::from_secs(60)), Some(Outcome::Exited(0)));
            }
        }
        eprintln!(
            "{VMS} VMs after {:?}: {} threads, {} descriptors",
            begin.elapsed(),
            entries("/proc/self/task"),
            entries("/proc/self/fd")
        );
    }
    // A thread disappears a moment after it was joined.
    let begin = Instant::now();
    while entries("/proc/self/task") > threads && begin.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(entries("/proc/self/task"), threads);
    assert_eq!(entries("/proc/self/fd"), files);
}
