//! Devices on the PCI buses of this system, as sysfs shows them: finding them, and moving them
//! between drivers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tofu_abi::generation::is_tofu;
use tofu_abi::pci::{DEVICE_TNW, VENDOR_ID};

use crate::bdf::Bdf;
use crate::error::Error;

/// The kernel's driver that gives devices to processes.
pub(crate) const VFIO_PCI: &str = "vfio-pci";
/// The kernel's own driver for Tofu devices, `tofu.ko`.
pub const KERNEL_DRIVER: &str = "tofu";

/// The PCI buses in sysfs, or a folder with the same structure.
#[derive(Clone, Debug)]
pub struct Bus {
    root: PathBuf,
}

impl Default for Bus {
    fn default() -> Self {
        Self::at("/sys/bus/pci")
    }
}

impl Bus {
    /// Buses that `root` shows: in place of `/sys/bus/pci`, for tests.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn path(&self, bdf: Bdf) -> PathBuf {
        self.root.join("devices").join(bdf.to_string())
    }

    /// The Tofu devices, in the order of their addresses.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the buses cannot be listed. A system without PCI has no devices.
    pub fn tofu_devices(&self) -> Result<Vec<PciDevice>, Error> {
        self.devices(PciDevice::is_tofu)
    }

    /// The network processors of TNW, in the order of their addresses.
    ///
    /// # Errors
    ///
    /// As [`Bus::tofu_devices`].
    pub fn tnw_devices(&self) -> Result<Vec<PciDevice>, Error> {
        self.devices(PciDevice::is_tnw)
    }

    fn devices(&self, is_wanted: fn(&PciDevice) -> bool) -> Result<Vec<PciDevice>, Error> {
        let list = match fs::read_dir(self.root.join("devices")) {
            Ok(list) => list,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::system("listing PCI devices")(error)),
        };
        let mut devices: Vec<_> = list
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            // A device that vanishes in the meantime is left out.
            .filter_map(|bdf| self.device(bdf).ok())
            .filter(is_wanted)
            .collect();
        devices.sort_by_key(|device| device.bdf);
        Ok(devices)
    }

    /// The device at an address, of any kind.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchDevice`] if there is none.
    pub fn device(&self, bdf: Bdf) -> Result<PciDevice, Error> {
        let path = self.path(bdf);
        let id = |name| {
            let text = fs::read_to_string(path.join(name)).ok()?;
            u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
        };
        let target = |name| {
            let link = fs::read_link(path.join(name)).ok()?;
            Some(link.file_name()?.to_str()?.to_owned())
        };
        match (id("vendor"), id("device")) {
            (Some(vendor), Some(device)) => Ok(PciDevice {
                bdf,
                vendor,
                device,
                driver: target("driver"),
                iommu_group: target("iommu_group").and_then(|name| name.parse().ok()),
                has_cdev: path.join("vfio-dev").is_dir(),
                path,
            }),
            _ => Err(Error::NoSuchDevice(bdf)),
        }
    }

    /// The Tofu device at an address, or the first one.
    ///
    /// # Errors
    ///
    /// If there is none, or the device there is no Tofu device.
    pub fn find(&self, bdf: Option<Bdf>) -> Result<PciDevice, Error> {
        let Some(bdf) = bdf else {
            return self.tofu_devices()?.into_iter().next().ok_or(Error::NoDevice);
        };
        let device = self.device(bdf)?;
        if device.is_tofu() {
            return Ok(device);
        }
        Err(Error::NotTofu { bdf, vendor: device.vendor, device: device.device })
    }

    /// The network processor of TNW at an address, or the first one.
    ///
    /// # Errors
    ///
    /// If there is none, or the device there is another one.
    pub(crate) fn find_tnw(&self, bdf: Option<Bdf>) -> Result<PciDevice, Error> {
        let Some(bdf) = bdf else {
            return self.tnw_devices()?.into_iter().next().ok_or(Error::NoNwp);
        };
        let device = self.device(bdf)?;
        if device.is_tnw() {
            return Ok(device);
        }
        Err(Error::NotTnw { bdf, vendor: device.vendor, device: device.device })
    }

    /// The device at an address, of Tofu or of TNW; or the first one, those of Tofu first.
    ///
    /// # Errors
    ///
    /// As [`Bus::find`].
    pub fn find_any(&self, bdf: Option<Bdf>) -> Result<PciDevice, Error> {
        match self.find(bdf) {
            Err(none @ (Error::NoDevice | Error::NotTofu { .. })) => {
                self.find_tnw(bdf).map_err(|_| none)
            }
            found => found,
        }
    }

    /// Gives a device to `vfio-pci`, taking it from the driver that has it. Does nothing if
    /// `vfio-pci` has it.
    ///
    /// # Errors
    ///
    /// If the kernel has no `vfio-pci`, or says no.
    pub fn bind(&self, bdf: Bdf) -> Result<(), Error> {
        let device = self.device(bdf)?;
        if device.driver.as_deref() == Some(VFIO_PCI) {
            return Ok(());
        }
        if !self.root.join("drivers").join(VFIO_PCI).is_dir() {
            return Err(Error::NoVfioPci);
        }
        write(&device.path.join("driver_override"), VFIO_PCI)
            .map_err(bind_error(bdf, "bind to vfio-pci the device"))?;
        if device.driver.is_some() {
            self.release(&device)?;
        }
        // The write says whether a driver was looked for, not whether it took the device.
        let probed = write(&self.root.join("drivers_probe"), &bdf.to_string());
        if self.device(bdf)?.driver.as_deref() == Some(VFIO_PCI) {
            return Ok(());
        }
        probed.map_err(bind_error(bdf, "bind to vfio-pci the device"))?;
        Err(Error::NotTaken { bdf })
    }

    /// Takes a device from its driver, whichever that is, and leaves it without one. If a process
    /// uses it, waits until the process releases it.
    ///
    /// # Errors
    ///
    /// If the kernel says no.
    pub fn unbind(&self, bdf: Bdf) -> Result<(), Error> {
        let device = self.device(bdf)?;
        if device.driver.is_some() {
            self.release(&device)?;
        }
        // An empty line: any driver may have it again.
        write(&device.path.join("driver_override"), "\n")
            .map_err(bind_error(bdf, "free for any driver the device"))
    }

    /// Gives a device to the kernel's own driver, as [`Bus::unbind`] and a look for a driver do.
    ///
    /// # Errors
    ///
    /// If the kernel says no; there may be no driver any more.
    pub fn give_back(&self, bdf: Bdf) -> Result<(), Error> {
        self.unbind(bdf)?;
        write(&self.root.join("drivers_probe"), &bdf.to_string())
            .map_err(bind_error(bdf, "find a driver for the device"))
    }

    fn release(&self, device: &PciDevice) -> Result<(), Error> {
        write(&device.path.join("driver/unbind"), &device.bdf.to_string())
            .map_err(bind_error(device.bdf, "unbind the device"))
    }

    /// Resets a device in the way that the kernel finds best: a function level reset.
    ///
    /// # Errors
    ///
    /// If the kernel says no.
    pub fn reset(&self, bdf: Bdf) -> Result<(), Error> {
        let device = self.device(bdf)?;
        write(&device.path.join("reset"), "1").map_err(bind_error(bdf, "reset the device"))
    }
}

fn bind_error(bdf: Bdf, what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Bind { bdf, what, source }
}

/// Writes to a file that must be there, in one system call.
fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// Keeps a device from sleeping.
pub(crate) struct Awake {
    /// The file to which `auto` is written afterwards, if any.
    control: Option<PathBuf>,
}

impl Awake {
    fn new(control: PathBuf) -> Self {
        let sleeps = fs::read_to_string(&control).is_ok_and(|text| text.trim() == "auto");
        let control = (sleeps && write(&control, "on").is_ok()).then_some(control);
        Self { control }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        if let Some(control) = &self.control
            && let Err(error) = write(control, "auto")
        {
            log::debug!("{}: {error}", control.display());
        }
    }
}

/// A device as sysfs shows it.
#[derive(Clone, Debug)]
pub struct PciDevice {
    /// Its address.
    pub bdf: Bdf,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// The driver to which it is bound.
    pub driver: Option<String>,
    /// Its IOMMU group; `None` if there is no IOMMU in front of it.
    pub iommu_group: Option<u32>,
    /// The kernel offers it as a separate character device (`/dev/vfio/devices`).
    pub has_cdev: bool,
    /// Its folder in sysfs.
    pub path: PathBuf,
}

impl PciDevice {
    /// Returns true if it is a Tofu controller.
    pub fn is_tofu(&self) -> bool {
        is_tofu((self.vendor, self.device))
    }

    /// Returns true if it is a network processor of TNW.
    pub fn is_tnw(&self) -> bool {
        (self.vendor, self.device) == (VENDOR_ID, DEVICE_TNW)
    }

    /// Makes the device answer accesses to its registers for as long as the result lives. It does
    /// not answer before it was first used, nor while it is unused and `vfio-pci` lets it sleep.
    pub(crate) fn wake(&self) -> Awake {
        // In this order: nothing can be written to the configuration of one that sleeps.
        let awake = Awake::new(self.path.join("power/control"));
        if let Err(error) = self.try_enable_memory() {
            log::debug!("enabling {}: {error}", self.bdf);
        }
        awake
    }

    fn try_enable_memory(&self) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        const COMMAND: u64 = 4;
        const MEMORY: u16 = 1 << 1;
        let config = fs::File::options().read(true).write(true).open(self.path.join("config"))?;
        let mut command = [0; 2];
        config.read_exact_at(&mut command, COMMAND)?;
        let command = u16::from_le_bytes(command);
        if command & MEMORY == 0 {
            config.write_all_at(&(command | MEMORY).to_le_bytes(), COMMAND)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs in a folder. Drivers in it do nothing, as writes to its files have no effect.
    struct Fake {
        folder: tempfile::TempDir,
    }

    impl Fake {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("devices")).unwrap();
            fs::write(folder.path().join("drivers_probe"), "").unwrap();
            Self { folder }
        }

        fn bus(&self) -> Bus {
            Bus::at(self.folder.path())
        }

        fn driver(&self, name: &str) {
            let path = self.folder.path().join("drivers").join(name);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("unbind"), "").unwrap();
        }

        fn device(&self, bdf: &str, ids: [&str; 2], driver: Option<&str>) -> PathBuf {
            let path = self.folder.path().join("devices").join(bdf);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("vendor"), format!("{}\n", ids[0])).unwrap();
            fs::write(path.join("device"), format!("{}\n", ids[1])).unwrap();
            fs::write(path.join("driver_override"), "(null)\n").unwrap();
            fs::write(path.join("reset"), "").unwrap();
            if let Some(name) = driver {
                self.driver(name);
                symlink(self.folder.path().join("drivers").join(name), path.join("driver"))
                    .unwrap();
            }
            path
        }

        fn read(&self, path: &str) -> String {
            fs::read_to_string(self.folder.path().join(path)).unwrap()
        }
    }

    const TOFU: [&str; 2] = ["0x10cf", "0x1ccd"];

    #[test]
    fn tofu_devices_are_found_in_order() {
        let fake = Fake::new();
        assert!(matches!(fake.bus().find(None), Err(Error::NoDevice)));
        let second = fake.device("0000:01:00.0", TOFU, Some("vfio-pci"));
        fake.device("0000:00:03.0", TOFU, None);
        fake.device("0000:00:01.0", ["0x8086", "0x10d3"], None);
        fake.device("0000:00:04.0", ["garbage", ""], None);
        symlink("../../../kernel/iommu_groups/7", second.join("iommu_group")).unwrap();
        let found = fake.bus().tofu_devices().unwrap();
        let names: Vec<_> = found.iter().map(|device| device.bdf.to_string()).collect();
        assert_eq!(names, ["0000:00:03.0", "0000:01:00.0"]);
        assert_eq!((found[0].driver.as_deref(), found[0].iommu_group), (None, None));
        assert_eq!((found[1].driver.as_deref(), found[1].iommu_group), (Some("vfio-pci"), Some(7)));
        assert_eq!(fake.bus().find(None).unwrap().bdf, found[0].bdf);
        assert_eq!(fake.bus().find(Some(found[1].bdf)).unwrap().bdf, found[1].bdf);

        let other = "0000:00:01.0".parse().unwrap();
        let message = fake.bus().find(Some(other)).unwrap_err().to_string();
        assert_eq!(
            message,
            "PCI device 0000:00:01.0 is 8086:10d3, not a Tofu device (10cf:1cc1, 1cc2 or 1ccd)"
        );
        let nothing = "0000:00:1f.0".parse().unwrap();
        assert!(matches!(fake.bus().find(Some(nothing)), Err(Error::NoSuchDevice(_))));
    }

    #[test]
    fn system_without_pci_has_no_devices() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Bus::at(folder.path()).tofu_devices().unwrap().is_empty());
    }

    #[test]
    fn binding_says_who_is_missing() {
        let fake = Fake::new();
        let bdf = "0000:00:02.0".parse().unwrap();
        assert!(matches!(fake.bus().bind(bdf), Err(Error::NoSuchDevice(_))));
        fake.device("0000:00:02.0", TOFU, None);
        assert!(matches!(fake.bus().bind(bdf), Err(Error::NoVfioPci)));
        assert_eq!(fake.read("devices/0000:00:02.0/driver_override"), "(null)\n");
        fake.driver("vfio-pci");
        // The error has nowhere to go; what the kernel needs was written.
        assert!(matches!(fake.bus().bind(bdf), Err(Error::NotTaken { .. })));
        assert!(fake.read("devices/0000:00:02.0/driver_override").starts_with("vfio-pci"));
        assert_eq!(fake.read("drivers_probe"), "0000:00:02.0");
    }

    #[test]
    fn device_is_unbound_and_given_back() {
        let fake = Fake::new();
        fake.driver("vfio-pci");
        fake.device("0000:00:02.0", TOFU, Some("tofu"));
        let bdf = "0000:00:02.0".parse().unwrap();
        assert!(matches!(fake.bus().bind(bdf), Err(Error::NotTaken { .. })));
        assert_eq!(fake.read("drivers/tofu/unbind"), "0000:00:02.0");
        fake.bus().unbind(bdf).unwrap();
        assert!(fake.read("devices/0000:00:02.0/driver_override").starts_with('\n'));
        fake.bus().reset(bdf).unwrap();
        assert_eq!(fake.read("devices/0000:00:02.0/reset"), "1");
    }

    #[test]
    fn silent_device_is_reset() {
        let fake = Fake::new();
        let path = fake.device("0000:00:02.0", TOFU, None);
        let device = fake.bus().find(None).unwrap();
        assert!(device.try_enable_memory().is_err(), "there is no configuration space");
        let mut config = [0xaa; 64];
        config[4..6].copy_from_slice(&0x0104u16.to_le_bytes());
        fs::write(path.join("config"), config).unwrap();
        device.try_enable_memory().unwrap();
        config[4] = 0x06;
        assert_eq!(fs::read(path.join("config")).unwrap(), config);
    }

    #[test]
    fn sleeping_device_is_woken_for_a_while() {
        let fake = Fake::new();
        let path = fake.device("0000:00:02.0", TOFU, None);
        fs::create_dir(path.join("power")).unwrap();
        for (before, meanwhile) in [("auto", "on"), ("on", "on")] {
            // As long as what is written, as files keep what they had behind that.
            fs::write(path.join("power/control"), before).unwrap();
            let awake = fake.bus().find(None).unwrap().wake();
            let now = fake.read("devices/0000:00:02.0/power/control");
            assert!(now.starts_with(meanwhile), "{now}");
            drop(awake);
            assert_eq!(fake.read("devices/0000:00:02.0/power/control"), before);
        }
    }

    #[test]
    fn bound_already_is_fine() {
        let fake = Fake::new();
        fake.device("0000:00:02.0", TOFU, Some("vfio-pci"));
        fake.bus().bind("0000:00:02.0".parse().unwrap()).unwrap();
        assert_eq!(fake.read("drivers_probe"), "");
    }
}
