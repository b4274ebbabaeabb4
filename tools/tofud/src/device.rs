//! The device that is shared.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tofu_abi::Generation;
use tofu_abi::regs::{NUM_TNI, NodeAddress};
use tofu_abi::{BchId, CqId, Group, NoSubnet, Subnet, TniId};
use tofu_driver::Device;
use tofu_queue_owner::{FilePart, Home, QueueOwner, Refused, Rights, SharedQueues};
use tofu_utofu::gates_in;
use tofu_vfio::broker::subnet_path;
use tofu_vfio::broker::wire::{Refusal, Terms};
use tofu_vfio::pci::{Bus, KERNEL_DRIVER};
use tofu_vfio::{Bdf, FileMemory, VfioPlatform};

use crate::isolated::{Part, VfioPart, map_error};

/// Queues and channels of the kernel's own driver.
const QUEUES: &str = "/proc/tofu/dev";
/// The files of VFIO's groups.
const VFIO: &str = "/dev/vfio";
/// The interval at which it is checked whether a device is in use.
const LOOK: Duration = Duration::from_millis(500);

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

    /// Takes it from the kernel's own driver for a process that needs it through VFIO. Returns
    /// whether that driver had it, so that it must be [given back](Self::give_back).
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

/// A device that processes share. It is released when it is dropped.
pub trait SharedDevice {
    /// Everything that a process needs to use it: a description, and descriptors of the device and
    /// of its address space.
    ///
    /// # Errors
    ///
    /// If it cannot be shared.
    fn terms(&self) -> io::Result<(Terms, [BorrowedFd<'_>; 2])>;

    /// Reserves a range of at least `size` device addresses: start and length in bytes.
    fn grant_addresses(&self, size: u64) -> Option<(u64, u64)>;

    /// Unmaps all memory within a range, which consists of granted ranges, and frees the range.
    ///
    /// # Errors
    ///
    /// The reason in one line; the range stays reserved.
    fn take_addresses_back(&self, start: u64, len: u64) -> Result<(), String>;

    /// The eventfd of an interrupt, see [`tofu_abi::irq::vector`].
    ///
    /// # Errors
    ///
    /// If the system has none left.
    fn interrupt(&self, vector: u16) -> io::Result<BorrowedFd<'_>>;

    /// Takes the packet buffers of a TNI from it, and masks its interrupt.
    fn stop_packets(&self, tni: TniId);

    /// Stops control queues, and returns those that do not stop.
    fn stop_queues(&self, queues: &[(TniId, CqId)]) -> Vec<(TniId, CqId)>;

    /// Its generation.
    fn generation(&self) -> Generation {
        Generation::Fugaku
    }

    /// The part for a user's process that is isolated from other users', in the user's group;
    /// `None` if that is impossible.
    fn part(&self, user: u32) -> Option<Box<dyn Part>> {
        let _ = user;
        None
    }

    /// The rights of a user's processes that are isolated; `None` if they cannot be.
    fn rights(&self, user: u32) -> Option<Rights> {
        let _ = user;
        None
    }

    /// The queues that processes share, of which none is open; `None` if that is impossible.
    fn shared_queues(&self) -> Option<Box<dyn SharedQueues>> {
        None
    }

    /// The node, as in the register NODE_ADDRESS.
    fn node(&self) -> u64 {
        0
    }

    /// Stops barrier gates, a bit for each by interface, and the channels of those that have one.
    /// Returns whether they have stopped.
    fn stop_gates(&self, gates: &[u64; NUM_TNI]) -> bool;
}

/// Opens a device through VFIO.
#[derive(Clone, Debug)]
pub struct VfioSource {
    bdf: Bdf,
    lent: PathBuf,
}

impl VfioSource {
    /// Opens this device. The file `lent` exists while the device is on loan from the kernel's own
    /// driver, so that a later process can return it if this one is killed.
    pub fn new(bdf: Bdf, lent: PathBuf) -> Self {
        Self { bdf, lent }
    }

    /// Gives back a device that an earlier process has lent and could not give back itself, as soon
    /// as it is no longer used. Does not wait for that.
    ///
    /// # Errors
    ///
    /// If there can be no thread.
    pub fn take_over(&self) -> io::Result<()> {
        if !self.lent.exists() {
            return Ok(());
        }
        let this = self.clone();
        let give_back = move || match this.wait_until_unused().and_then(|()| this.give_back()) {
            Ok(()) => log::info!("the kernel's driver has the device again"),
            Err(error) => log::error!("the kernel's driver does not get the device back: {error}"),
        };
        thread::Builder::new().name("give back".into()).spawn(give_back).map(drop)
    }

    /// Waits until no process has the device open, because the process would otherwise be requested
    /// to release it.
    fn wait_until_unused(&self) -> Result<(), String> {
        let found = Bus::default().find(Some(self.bdf)).map_err(|error| error.to_string())?;
        let Some(group) = found.iommu_group else { return Ok(()) };
        let file = Path::new(VFIO).join(group.to_string());
        while user_of(Path::new("/proc"), &file).is_some() {
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// A device through VFIO.
pub struct Vfio(Device<VfioPlatform>);

impl Source for VfioSource {
    type Device = Vfio;

    fn open(&self, bind: bool) -> Result<Vfio, String> {
        if !bind {
            let found = Bus::default().find(Some(self.bdf)).map_err(|error| error.to_string())?;
            if found.driver.is_none() {
                return Err(format!("{} has no driver", self.bdf));
            }
        }
        let platform =
            VfioPlatform::try_open_at(Some(self.bdf)).map_err(|error| error.to_string())?;
        Device::probe(platform).map(Vfio).map_err(|error| format!("{}: {error}", self.bdf))
    }

    fn lend(&self) -> Result<bool, Refused> {
        let bus = Bus::default();
        let failed = |error: tofu_vfio::Error| Refused::new(Refusal::NoDevice, error.to_string());
        if bus.find(Some(self.bdf)).map_err(failed)?.driver.as_deref() != Some(KERNEL_DRIVER) {
            return Ok(false);
        }
        if let Some(pid) = user_of(Path::new("/proc"), Path::new(QUEUES)) {
            let text = format!("the device is in use by process {pid}, through {QUEUES}");
            return Err(Refused::new(Refusal::InUse, text));
        }
        let noted = |error| format!("{}: {error}", self.lent.display());
        fs::write(&self.lent, "").map_err(|error| Refused::new(Refusal::NoDevice, noted(error)))?;
        bus.bind(self.bdf).map(|()| true).map_err(failed)
    }

    fn give_back(&self) -> Result<(), String> {
        let bus = Bus::default();
        let found = bus.find(Some(self.bdf)).map_err(|error| error.to_string())?;
        if found.driver.as_deref() != Some(KERNEL_DRIVER) {
            bus.give_back(self.bdf).map_err(|error| error.to_string())?;
        }
        fs::remove_file(&self.lent).map_err(|error| format!("{}: {error}", self.lent.display()))
    }
}

/// A user's group and subnet, by the file with the subnet, whose user was given a group as well.
fn rights(user: u32, path: &Path) -> Result<Rights, String> {
    let of = |group: Group, subnet| Rights { gpid: group.gpid(), subnet };
    match fs::read_to_string(path) {
        Ok(text) => match text.trim_end().parse() {
            Ok(subnet) => Ok(of(Group::Given(user), subnet)),
            Err(error @ NoSubnet) => Err(error.to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(of(Group::of_user(user), Subnet::default()))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// A process that has `folder` or a file below it open, by its descriptors in `proc`.
fn user_of(proc: &Path, folder: &Path) -> Option<u32> {
    let entries = std::fs::read_dir(proc).ok()?.flatten();
    let mut processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.find(|pid| {
        let files = std::fs::read_dir(proc.join(format!("{pid}/fd"))).into_iter().flatten();
        // The files of a process that has just ended are gone.
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

    fn interrupt(&self, vector: u16) -> io::Result<BorrowedFd<'_>> {
        self.0.platform().share_interrupt(vector)
    }

    fn stop_packets(&self, tni: TniId) {
        self.0.stop_packets(tni);
    }

    fn stop_queues(&self, queues: &[(TniId, CqId)]) -> Vec<(TniId, CqId)> {
        self.0.stop_queues(queues)
    }

    fn generation(&self) -> Generation {
        self.0.generation()
    }

    fn part(&self, user: u32) -> Option<Box<dyn Part>> {
        Some(Box::new(VfioPart::new(self.0.clone(), self.rights(user)?)))
    }

    fn rights(&self, user: u32) -> Option<Rights> {
        let path = subnet_path(user);
        let found = rights(user, &path);
        found.inspect_err(|why| log::error!("{}: {why}", path.display())).ok()
    }

    fn shared_queues(&self) -> Option<Box<dyn SharedQueues>> {
        Some(Box::new(QueueOwner::new(VfioHome(self.0.clone()))))
    }

    fn node(&self) -> u64 {
        NodeAddress::from_coords(self.0.coords()).0
    }

    fn stop_gates(&self, gates: &[u64; NUM_TNI]) -> bool {
        let profile = self.0.description().barrier;
        let of = |(tni, mask): (TniId, u64)| gates_in(mask).map(move |bg| (tni, bg));
        let all: Vec<_> = TniId::ALL.into_iter().zip(*gates).flat_map(of).collect();
        // Gates without a start and end gate belong to no channel of the process, so none is open.
        let channels = all.iter().filter_map(|(tni, bg)| Some((*tni, bg.channel()?)));
        let channels = channels.filter(|(tni, bch)| profile.has_channel(*tni, *bch));
        let sticks = |&(tni, bch): &(TniId, BchId)| self.0.stop_barrier(tni, bch, &all).is_err();
        // All of them, even if one is stuck.
        channels.filter(sticks).count() == 0
    }
}

/// The device as the owner of queues that processes share has it.
struct VfioHome(Device<VfioPlatform>);

impl Home for VfioHome {
    type Platform = VfioPlatform;
    type Mapping = FileMemory;
    const PROCESSES_MAP: bool = false;

    fn device(&self) -> &Device<VfioPlatform> {
        &self.0
    }

    fn event(&self, vector: u16) -> io::Result<Arc<OwnedFd>> {
        self.0.platform().share_interrupt(vector)?.try_clone_to_owned().map(Arc::new)
    }

    fn map(&self, part: &FilePart<'_>) -> Result<(u64, FileMemory), Refused> {
        let &FilePart { file, runs, address, len } = part;
        let memory = self.0.platform().map_file(file, runs, address, len).map_err(map_error)?;
        Ok((memory.device_addr(), memory))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn groups_of_jobs_and_users_differ() {
        let folder = tempfile::tempdir().unwrap();
        let job = Group::JOBS | 7;
        let path = folder.path().join(job.to_string());
        let of = |group: Group, subnet| Ok(Rights { gpid: group.gpid(), subnet });
        let user = of(Group::User(job), Subnet::default());
        assert_eq!(rights(job, &path), user, "a user with the number of a job");
        let subnet = "8,6,4,1,0,1,1,0,1";
        fs::write(&path, subnet).unwrap();
        assert_eq!(rights(job, &path), of(Group::Given(job), subnet.parse().unwrap()));
        fs::write(&path, "8").unwrap();
        assert!(rights(job, &path).is_err(), "rather no rights than those of a user");
    }

    #[test]
    fn users_of_the_kernels_driver_are_found() {
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
