//! The device that is shared.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use tofu_abi::barrier::Profile;
use tofu_abi::irq::vector;
use tofu_abi::regs::NUM_TNI;
use tofu_abi::{BchId, CqId, TniId};
use tofu_driver::Device;
use tofu_utofu::gates_in;
use tofu_vfio::broker::wire::{Refusal, Terms};
use tofu_vfio::pci::{Bus, KERNEL_DRIVER};
use tofu_vfio::{Bdf, VfioPlatform};

use crate::lease::Refused;

/// Queues and channels of the kernel's own driver.
const QUEUES: &str = "/proc/tofu/dev";

/// Opens the device when the first process comes.
pub trait Source {
    /// The device.
    type Device: SharedDevice;

    /// Opens it. If it has no driver, it is bound to VFIO only if `bind` says so.
    ///
    /// # Errors
    ///
    /// The reason in one line.
    fn open(&self, bind: bool) -> Result<Self::Device, String>;

    /// Takes it from the kernel's own driver for a process that wants it by VFIO. Returns whether
    /// it was that driver's, and has to be [given back](Self::give_back).
    ///
    /// # Errors
    ///
    /// If processes use that driver, or the device cannot be taken from it.
    fn lend(&self) -> Result<bool, Refused>;

    /// Gives it back to the kernel's own driver.
    ///
    /// # Errors
    ///
    /// The reason in one line.
    fn give_back(&self) -> Result<(), String>;
}

/// A device that processes share. It is given up when it is dropped.
pub trait SharedDevice {
    /// What a process needs to use it: a description, and descriptors of the device and of its
    /// address space.
    ///
    /// # Errors
    ///
    /// If it cannot be shared.
    fn terms(&self) -> io::Result<(Terms, [BorrowedFd<'_>; 2])>;

    /// Sets a range of at least `size` device addresses aside: start and length in bytes.
    fn grant_addresses(&self, size: u64) -> Option<(u64, u64)>;

    /// Unmaps all memory within a range, made of such as were granted, and has it back.
    ///
    /// # Errors
    ///
    /// The reason in one line; the range stays set aside.
    fn take_addresses_back(&self, start: u64, len: u64) -> Result<(), String>;

    /// The eventfd of a TNI's interrupt.
    ///
    /// # Errors
    ///
    /// If the system has none left.
    fn interrupt(&self, tni: TniId) -> io::Result<BorrowedFd<'_>>;

    /// Takes the packet buffers of a TNI from it, and masks its interrupt.
    fn stop_packets(&self, tni: TniId);

    /// Stops control queues, and returns those that do not stop.
    fn stop_queues(&self, queues: &[(TniId, CqId)]) -> Vec<(TniId, CqId)>;

    /// What barriers of its generation have.
    fn barrier_profile(&self) -> Profile {
        Profile::TOFUD
    }

    /// Stops barrier gates, a bit for each by interface, and the channels of those that have one.
    /// Returns whether they have stopped.
    fn stop_gates(&self, gates: &[u64; NUM_TNI]) -> bool;
}

/// Opens a device through VFIO.
#[derive(Clone, Copy, Debug)]
pub struct VfioSource(
    /// Its address.
    pub Bdf,
);

/// A device through VFIO.
pub struct Vfio(Device<VfioPlatform>);

impl Source for VfioSource {
    type Device = Vfio;

    fn open(&self, bind: bool) -> Result<Vfio, String> {
        if !bind {
            let found = Bus::default().find(Some(self.0)).map_err(|error| error.to_string())?;
            if found.driver.is_none() {
                return Err(format!("{} has no driver", self.0));
            }
        }
        let platform =
            VfioPlatform::try_open_at(Some(self.0)).map_err(|error| error.to_string())?;
        Device::probe(platform).map(Vfio).map_err(|error| format!("{}: {error}", self.0))
    }

    fn lend(&self) -> Result<bool, Refused> {
        let bus = Bus::default();
        let failed = |error: tofu_vfio::Error| Refused::new(Refusal::NoDevice, error.to_string());
        if bus.find(Some(self.0)).map_err(failed)?.driver.as_deref() != Some(KERNEL_DRIVER) {
            return Ok(false);
        }
        if let Some(pid) = user_of(Path::new("/proc"), Path::new(QUEUES)) {
            let text = format!("the device is in use by process {pid}, through {QUEUES}");
            return Err(Refused::new(Refusal::InUse, text));
        }
        bus.bind(self.0).map(|()| true).map_err(failed)
    }

    fn give_back(&self) -> Result<(), String> {
        Bus::default().give_back(self.0).map_err(|error| error.to_string())
    }
}

/// A process that has a file below `folder` open, by its descriptors in `proc`.
fn user_of(proc: &Path, folder: &Path) -> Option<u32> {
    let entries = std::fs::read_dir(proc).ok()?.flatten();
    let mut processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.find(|pid| {
        let files = std::fs::read_dir(proc.join(format!("{pid}/fd"))).into_iter().flatten();
        // Those of a process that ends meanwhile are gone.
        let mut files = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
        files.any(|file| file.starts_with(folder))
    })
}

impl SharedDevice for Vfio {
    fn terms(&self) -> io::Result<(Terms, [BorrowedFd<'_>; 2])> {
        self.0.platform().terms()
    }

    fn grant_addresses(&self, size: u64) -> Option<(u64, u64)> {
        self.0.platform().grant_addresses(size)
    }

    fn take_addresses_back(&self, start: u64, len: u64) -> Result<(), String> {
        self.0.platform().take_addresses_back(start, len).map_err(|error| error.to_string())
    }

    fn interrupt(&self, tni: TniId) -> io::Result<BorrowedFd<'_>> {
        self.0.platform().share_interrupt(vector::tni(tni))
    }

    fn stop_packets(&self, tni: TniId) {
        self.0.stop_packets(tni);
    }

    fn stop_queues(&self, queues: &[(TniId, CqId)]) -> Vec<(TniId, CqId)> {
        self.0.stop_queues(queues)
    }

    fn barrier_profile(&self) -> Profile {
        self.0.barrier_profile().unwrap_or(Profile::TOFUD)
    }

    fn stop_gates(&self, gates: &[u64; NUM_TNI]) -> bool {
        let profile = self.barrier_profile();
        let of = |(tni, mask): (TniId, u64)| gates_in(mask).map(move |bg| (tni, bg));
        let all: Vec<_> = TniId::ALL.into_iter().zip(*gates).flat_map(of).collect();
        // Gates without a start and end gate belong to no channel of the process, so none is open.
        let channels = all.iter().filter_map(|(tni, bg)| Some((*tni, bg.channel()?)));
        let channels = channels.filter(|(tni, bch)| profile.has_channel(tni.get(), bch.get()));
        let sticks = |&(tni, bch): &(TniId, BchId)| self.0.stop_barrier(tni, bch, &all).is_err();
        // All of them, also when one sticks.
        channels.filter(sticks).count() == 0
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn who_uses_the_kernels_driver_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let open = |pid: &str, fd: &str, file: &str| {
            let fds = folder.path().join(pid).join("fd");
            fs::create_dir_all(&fds).unwrap();
            symlink(file, fds.join(fd)).unwrap();
        };
        open("7", "0", "/proc/tofu/position");
        open("7", "1", "socket:[12]");
        open("self", "3", "/proc/tofu/dev/tni0cq0");
        fs::create_dir_all(folder.path().join("8")).unwrap();
        assert_eq!(user_of(folder.path(), Path::new(QUEUES)), None);
        open("9", "4", "/proc/tofu/dev/tni0cq0");
        assert_eq!(user_of(folder.path(), Path::new(QUEUES)), Some(9));
    }
}
