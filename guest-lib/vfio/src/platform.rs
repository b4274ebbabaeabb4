//! The platform: one device, opened.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use iommufd_ioctls::{IommuFd, IommufdError};
use tofu_abi::pci::REGISTER_BAR;
use tofu_abi::regs::BAR0_SIZE;
use tofu_abi::tnw;
use tofu_process::lock;
use vfio_bindings::bindings::vfio::{VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_REQ_IRQ_INDEX};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError, VfioIommufd, VfioOps};

use crate::bar::{Layout, Region};
use crate::bdf::Bdf;
use crate::broker::shared_space::{unmap_in_container, unmap_in_ioas};
use crate::broker::wire::{SpaceKind, Terms};
use crate::broker::{Reservation, socket_path};
use crate::dma::{Pool, Right, Space};
use crate::error::Error;
use crate::event::EventLoop;
use crate::iommu::Info;
use crate::irq::{Interrupts, borrow, new_event};
use crate::mapped::{MappedPlatform, Tenure};
use crate::pci::{Bus, PciDevice, VFIO_PCI};

const COMMAND: u64 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;

const CONTAINER: &str = "/dev/vfio/vfio";
const IOMMU: &str = "/dev/iommu";

/// A Tofu device that this process drives through VFIO.
///
/// It has the device for itself. When it and all memory that came from it are dropped, the kernel
/// resets the device.
pub type VfioPlatform = MappedPlatform<Alone>;

/// A device that the process has for itself.
pub struct Alone {
    bdf: Bdf,
    // Ends before what its handlers use.
    events: Mutex<Option<EventLoop>>,
    interrupts: Interrupts,
    device: Arc<VfioDevice>,
    ops: Arc<dyn VfioOps>,
    page: u64,
    /// Ends last, as others may have the device then.
    _reservation: Option<Arc<Reservation>>,
}

impl fmt::Debug for Alone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VfioPlatform({})", self.bdf)
    }
}

impl Tenure for Alone {
    fn irq_enable(&self, vector: u16) -> io::Result<()> {
        self.interrupts.enable(vector).map(drop)
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        self.interrupts.wait(vector, timeout_ns)
    }

    fn irq_fd(&self, vector: u16) -> Option<i32> {
        self.interrupts.descriptor(vector)
    }
}

impl VfioPlatform {
    /// Opens the first Tofu device.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn find() -> Result<Self, Error> {
        Self::open_at(None)
    }

    /// Opens the Tofu device at an address, or the first one.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn open_at(bdf: Option<Bdf>) -> Result<Self, Error> {
        let device = Bus::default().find(bdf)?.bdf;
        let mut alone: Option<Arc<Reservation>> = None;
        let mut patience = LEAVING;
        let mut since = Instant::now();
        loop {
            // A broker is asked first: it may have the device only for the node's network, or be
            // about to release it after its last user. It may also lend a device that is bound to
            // the kernel's driver, and move it to vfio-pci and back.
            if alone.is_none() && socket_path(device).exists() {
                alone = Reservation::of(device).map(Arc::new);
                if alone.is_some() {
                    (patience, since) = (HANDOVER, Instant::now());
                } else if since.elapsed() <= patience {
                    thread::sleep(PAUSE);
                    continue;
                }
            }
            match Self::try_open(Some(device), alone.as_ref()) {
                Ok(platform) => return Ok(platform),
                // Its previous process will release it soon.
                Err(Error::Busy(_)) if since.elapsed() <= patience => thread::sleep(PAUSE),
                Err(error) => return Err(error),
            }
        }
    }

    /// The same without waiting, for brokers themselves.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn try_open_at(bdf: Option<Bdf>) -> Result<Self, Error> {
        Self::try_open(bdf, None)
    }

    fn try_open(bdf: Option<Bdf>, alone: Option<&Arc<Reservation>>) -> Result<Self, Error> {
        Self::open_found(Bus::find, bdf, alone)
    }

    /// Opens the network processor of TNW at an address, or the first one, for
    /// [`tofu_tnw::Nwp::probe`]. It is not shared with any other process.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn open_nwp(bdf: Option<Bdf>) -> Result<Self, Error> {
        Self::open_found(Bus::find_tnw, bdf, None)
    }

    /// Opens the device that `find` finds, bound to vfio-pci if it has no driver.
    fn open_found(
        find: fn(&Bus, Option<Bdf>) -> Result<PciDevice, Error>,
        bdf: Option<Bdf>,
        alone: Option<&Arc<Reservation>>,
    ) -> Result<Self, Error> {
        let bus = Bus::default();
        let found = find(&bus, bdf)?;
        match found.driver.as_deref() {
            Some(VFIO_PCI) => {}
            // No device may be taken without asking.
            None => bus.bind(found.bdf)?,
            Some(driver) => {
                return Err(Error::Driver { bdf: found.bdf, driver: driver.to_owned() });
            }
        }
        Self::open(&find(&bus, Some(found.bdf))?, alone)
    }

    /// Opens a device that is bound to `vfio-pci`.
    fn open(found: &PciDevice, alone: Option<&Arc<Reservation>>) -> Result<Self, Error> {
        let bdf = found.bdf;
        let group = found.iommu_group.ok_or(Error::NoIommu(bdf))?;
        let group_file = PathBuf::from(format!("/dev/vfio/{group}"));
        let (device, ops, info) = if group_file.exists() || !found.has_cdev {
            patiently(|| Self::open_group(found))
                .map_err(|error| explain(bdf, group, &group_file, error))?
        } else {
            patiently(|| Self::open_cdev(found))
                .map_err(|error| explain(bdf, group, Path::new(IOMMU), error))?
        };
        let info = info.map_err(Error::system("asking for the IOMMU's addresses"))?;
        let device = Arc::new(device);
        let region = |bar: u8, expected| {
            let region = Region::new(Arc::clone(&device) as _, &Layout::of(&device, bar.into()))
                .map_err(Error::system("mapping the registers"))?;
            match region.size() {
                size if size == expected => Ok(region),
                size => Err(Error::RegisterSpace { bdf, size, expected }),
            }
        };
        let (registers, windows) = match found.is_tnw() {
            false => (region(REGISTER_BAR, BAR0_SIZE)?, None),
            true => {
                let windows = region(tnw::WINDOW_BAR, tnw::WINDOW_BAR_SIZE)?;
                (region(tnw::REGISTER_BAR, tnw::REGISTER_BAR_SIZE)?, Some(windows))
            }
        };
        enable(&device);
        let right = alone.cloned().map(|reservation| reservation as Right);
        let space = Space::new(Arc::clone(&ops), Some(Arc::clone(&device)), &info, right);
        let tenure = Alone {
            bdf,
            events: Mutex::new(None),
            interrupts: Interrupts::new(&device),
            device,
            ops,
            page: info.page,
            _reservation: alone.cloned(),
        };
        Ok(Self::new(registers, Pool::new(space), tenure).with_windows(windows))
    }

    /// By the device's group and a container, as every kernel with VFIO has it.
    fn open_group(found: &PciDevice) -> Result<Opened, VfioError> {
        let container = Arc::new(VfioContainer::new(None)?);
        let ops: Arc<dyn VfioOps> = Arc::clone(&container) as _;
        let device = VfioDevice::new(&found.path, Arc::clone(&ops), true)?;
        Ok((device, ops, Info::of_container(&container)))
    }

    /// By the device's own file and iommufd, for kernels that have nothing else.
    fn open_cdev(found: &PciDevice) -> Result<Opened, VfioError> {
        let iommufd = Arc::new(IommuFd::new().map_err(VfioError::IommufdIoctlError)?);
        let space = Arc::new(VfioIommufd::new(Arc::clone(&iommufd), None, None)?);
        let ops: Arc<dyn VfioOps> = Arc::clone(&space) as _;
        let device = VfioDevice::new(&found.path, Arc::clone(&ops), true)?;
        Ok((device, ops, Info::of_iommufd(&iommufd, space.ioas())))
    }

    /// The device's address on the bus.
    pub fn bdf(&self) -> Bdf {
        self.tenure.bdf
    }

    /// Returns true if all registers are mapped, so that no access to one is a system call.
    pub fn is_mapped(&self) -> bool {
        self.registers.is_mapped()
    }

    /// Resets the device and lets it reach memory again. Queues that were open are not.
    pub fn reset(&self) {
        self.tenure.device.reset();
        enable(&self.tenure.device);
    }

    /// The needs of another process that uses the device as well: its terms, and the descriptors of
    /// the device and its address space.
    ///
    /// # Errors
    ///
    /// If the kernel's interface in use cannot be shared.
    pub fn terms(&self) -> io::Result<(Terms, [BorrowedFd<'_>; 2])> {
        let (space, fd) = match self.space().ok_or(io::ErrorKind::Unsupported)? {
            AddressSpace::Container(container) => (SpaceKind::Container, container.as_raw_fd()),
            AddressSpace::Iommufd(space) => {
                (SpaceKind::Iommufd(space.ioas().id()), space.iommufd().as_raw_fd())
            }
        };
        let registers = Layout::of(&self.tenure.device, REGISTER_BAR.into());
        let fds = borrowed([self.tenure.device.as_raw_fd(), fd], self);
        Ok((Terms { registers, page: self.tenure.page, space }, fds))
    }

    /// Reserves device addresses for another process: start and length of a range of at least
    /// `size` bytes, which starts at a multiple of 1 GiB.
    pub fn grant_addresses(&self, size: u64) -> Option<(u64, u64)> {
        let len = size.max(1).checked_next_multiple_of(GRANT_UNIT)?;
        Some((self.memory.take_addresses(len, GRANT_UNIT)?, len))
    }

    /// Unmaps from the device what other processes have mapped within a range, which consists of
    /// granted ranges, and reclaims the addresses. The device must have stopped using them.
    ///
    /// # Errors
    ///
    /// If the kernel does not do it. The addresses stay reserved then.
    pub fn take_addresses_back(&self, start: u64, len: u64) -> Result<(), VfioError> {
        const ENOENT: i32 = 2;
        match self.space() {
            Some(AddressSpace::Container(container)) => {
                unmap_in_container(container, start, len)?;
            }
            Some(AddressSpace::Iommufd(space)) => {
                match unmap_in_ioas(space.iommufd(), space.ioas().id(), start, len) {
                    // Nothing was mapped.
                    Err(VfioError::IommufdIoctlError(IommufdError::IommuIoasUnmap(errno)))
                        if errno.errno() == ENOENT => {}
                    other => drop(other?),
                }
            }
            None => return Err(VfioError::InvalidDmaUnmapSize),
        }
        self.memory.give_addresses(start, len);
        Ok(())
    }

    /// The eventfd of an MSI-X vector, for another process that waits for it in this one's place.
    ///
    /// # Errors
    ///
    /// If there is no such vector, or the system has no interrupt left.
    pub fn share_interrupt(&self, vector: u16) -> io::Result<BorrowedFd<'_>> {
        Ok(borrow(self.tenure.interrupts.enable(vector)?))
    }

    fn space(&self) -> Option<AddressSpace<'_>> {
        let ops = self.tenure.ops.as_any();
        let container = ops.downcast_ref().map(AddressSpace::Container);
        container.or_else(|| ops.downcast_ref().map(AddressSpace::Iommufd))
    }

    /// Bytes of device addresses that are left for mappings.
    pub fn free_addresses(&self) -> u64 {
        self.memory.free_addresses()
    }

    /// Calls `call` from a thread of the platform's whenever MSI-X vector `vector` has fired.
    /// Interrupts that come close together are one call. Such a vector is not for
    /// [`Platform::irq_wait`](tofu_driver::Platform::irq_wait).
    ///
    /// `call` must not own the platform.
    ///
    /// # Errors
    ///
    /// If there is no such vector, or the system has no thread or interrupt left.
    pub fn on_interrupt(&self, vector: u16, call: impl FnMut() + Send + 'static) -> io::Result<()> {
        let event = self.tenure.interrupts.enable(vector)?.try_clone()?;
        self.with_events(|events| events.add(event, call))
    }

    /// Calls `call` when the kernel requests the device back, because it is being unbound or
    /// removed. The kernel waits for this process to drop the platform, and repeats the request
    /// every few seconds.
    ///
    /// # Errors
    ///
    /// If the kernel does not support that request, or the system has no thread left.
    pub fn on_release_request(&self, call: impl FnMut() + Send + 'static) -> io::Result<()> {
        let event = new_event()?;
        self.tenure
            .device
            .enable_irq(VFIO_PCI_REQ_IRQ_INDEX, vec![&event])
            .map_err(io::Error::other)?;
        self.with_events(|events| events.add(event, call))
    }

    fn with_events(&self, f: impl FnOnce(&EventLoop) -> io::Result<()>) -> io::Result<()> {
        let mut events = lock(&self.tenure.events);
        match &*events {
            Some(running) => f(running),
            None => f(events.insert(EventLoop::start()?)),
        }
    }

    /// Reads 8 bytes of BAR 0 at any offset: for tests of the device, because registers are at
    /// multiples of 8.
    pub fn bar0_read64_unaligned(&self, offset: u64) -> u64 {
        self.registers.read64(offset)
    }

    /// Reads 4 bytes of BAR 0, as [`VfioPlatform::bar0_read64_unaligned`].
    pub fn bar0_read32(&self, offset: u64) -> u32 {
        self.registers.read32(offset)
    }

    /// Writes 4 bytes of BAR 0, as [`VfioPlatform::bar0_read64_unaligned`].
    pub fn bar0_write32(&self, offset: u64, value: u32) {
        self.registers.write32(offset, value);
    }
}

/// The time to wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(10);
/// The time limit for a broker to give up a device that is not used any more.
const LEAVING: Duration = Duration::from_secs(1);
/// The time limit for the node's network to release a device, on a busy computer.
const HANDOVER: Duration = Duration::from_secs(10);
/// Device addresses are granted to other processes in multiples of this many bytes.
const GRANT_UNIT: u64 = 1 << 30;

/// The provider of the device's address space.
enum AddressSpace<'a> {
    Container(&'a VfioContainer),
    Iommufd(&'a VfioIommufd),
}

/// Descriptors that are open as long as their owner is there.
#[allow(unsafe_code)]
fn borrowed(fds: [RawFd; 2], _owner: &VfioPlatform) -> [BorrowedFd<'_>; 2] {
    // SAFETY: the platform keeps the device and its address space open, and is borrowed.
    fds.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
}

type Opened = (VfioDevice, Arc<dyn VfioOps>, io::Result<Info>);

/// Lets the device answer to accesses and reach memory, which a reset has switched off.
fn enable(device: &VfioDevice) {
    let mut command = [0; 2];
    device.region_read(VFIO_PCI_CONFIG_REGION_INDEX, &mut command, COMMAND);
    let command = u16::from_le_bytes(command) | COMMAND_MEMORY | COMMAND_MASTER;
    device.region_write(VFIO_PCI_CONFIG_REGION_INDEX, &command.to_le_bytes(), COMMAND);
}

/// Opens a device, and retries for a while if another program holds its lock in the kernel.
/// Programs that bind it, reset it or change its power state hold the lock briefly. The kernel
/// resets a device when it is opened, and fails instead of waiting for the lock.
fn patiently(mut open: impl FnMut() -> Result<Opened, VfioError>) -> Result<Opened, VfioError> {
    const EAGAIN: i32 = 11;
    const PATIENCE: Duration = Duration::from_secs(2);
    let start = Instant::now();
    loop {
        match open() {
            Err(VfioError::GroupGetDeviceFD(errno) | VfioError::VfioDeviceBindIommufd(errno))
                if errno.errno() == EAGAIN && start.elapsed() < PATIENCE =>
            {
                thread::sleep(PAUSE)
            }
            other => return other,
        }
    }
}

/// The meaning of an error of VFIO's to a user.
fn explain(bdf: Bdf, group: u32, file: &Path, error: VfioError) -> Error {
    use io::ErrorKind::{NotFound, PermissionDenied, ResourceBusy};
    const EPERM: i32 = 1;
    const EBUSY: i32 = 16;
    let of_file = |path: &Path, module, source: &io::Error| match source.kind() {
        NotFound => Some(Error::NoModule { path: path.to_owned(), module }),
        PermissionDenied => Some(Error::Permission(path.to_owned())),
        ResourceBusy => Some(Error::Busy(bdf)),
        _ => None,
    };
    let known = match &error {
        VfioError::OpenContainer(source) => {
            of_file(Path::new(CONTAINER), "vfio_iommu_type1", source)
        }
        VfioError::OpenGroup(source, _) => of_file(file, "vfio-pci", source),
        VfioError::OpenDeviceCdev(source) => {
            of_file(Path::new("/dev/vfio/devices"), "vfio-pci", source)
        }
        VfioError::IommufdIoctlError(IommufdError::OpenIommufd(source)) => {
            of_file(Path::new(IOMMU), "iommufd", source)
        }
        VfioError::GroupViable => Some(Error::NotViable { group }),
        VfioError::VfioExtension => {
            Some(Error::NoModule { path: CONTAINER.into(), module: "vfio_iommu_type1" })
        }
        VfioError::ContainerSetIOMMU(errno) if errno.errno() == EPERM => {
            Some(Error::UnsafeInterrupts)
        }
        VfioError::GroupGetDeviceFD(errno) | VfioError::VfioDeviceBindIommufd(errno)
            if errno.errno() == EBUSY =>
        {
            Some(Error::Busy(bdf))
        }
        _ => None,
    };
    known.unwrap_or(Error::Vfio { bdf, source: error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(error: VfioError) -> String {
        let bdf = "0000:00:02.0".parse().unwrap();
        explain(bdf, 3, Path::new("/dev/vfio/3"), error).to_string()
    }

    #[test]
    fn errors_say_what_to_do() {
        let io = |kind: io::ErrorKind| io::Error::from(kind);
        let errno = vmm_sys_util::errno::Error::new;
        let cases = [
            (VfioError::OpenContainer(io(io::ErrorKind::NotFound)), "modprobe vfio_iommu_type1"),
            (
                VfioError::OpenGroup(io(io::ErrorKind::PermissionDenied), "3".into()),
                "no permission for /dev/vfio/3",
            ),
            (VfioError::OpenGroup(io(io::ErrorKind::ResourceBusy), "3".into()), "another process"),
            (VfioError::GroupViable, "IOMMU group 3 is not viable"),
            (VfioError::ContainerSetIOMMU(errno(1)), "allow_unsafe_interrupts=1"),
            (VfioError::GroupGetDeviceFD(errno(16)), "another process"),
        ];
        for (error, expected) in cases {
            let text = text(error);
            assert!(text.contains(expected) && !text.contains('\n'), "{text}");
        }
        assert!(text(VfioError::VfioApiVersion).starts_with("0000:00:02.0: "));
    }
}
