//! A PCI function to be driven by the `vmmtest` and `costs` guests, and a
//! builder of those guests.

#![allow(dead_code, unreachable_pub, reason = "each user takes what it needs")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tofu_pci::{Bar, Endpoint, EndpointDevice, Identity, LinkSpeed};
use tofu_vmm::{Attachment, Error, Hypervisor, Slot, Vm, Windows};
use vm_memory::{MmapRegion, VolatileMemory};
use vmm_sys_util::eventfd::EventFd;

/// BAR 0 of the test function. Registers are 64 bits wide.
pub mod regs {
    /// Reads what was written last.
    pub const SCRATCH: u64 = 0x0;
    /// A write raises the MSI-X vector of that number.
    pub const TRIGGER: u64 = 0x10;
    /// A write makes the shared page read-only (1) or writable (0).
    pub const PROTECT: u64 = 0x18;
    /// A doorbell: writes are counted on an eventfd, see [`super::TestFunction`].
    pub const DOORBELL: u64 = 0x1000;
    /// A page of memory shared with the host.
    pub const PAGE: u64 = 0x2000;
    /// Size of the BAR: that of TofuD's register space.
    pub const SIZE: u64 = 256 << 20;
}

/// KVM, or `None` and a line with the reason.
pub fn hypervisor(test: &str) -> Option<Hypervisor> {
    match Hypervisor::open() {
        Ok(hypervisor) => Some(hypervisor),
        Err(error @ (Error::NoKvm { .. } | Error::NoPermission { .. } | Error::OtherHost)) => {
            eprintln!("SKIP {test}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// MSI-X vectors of the test function.
pub const VECTORS: u16 = 16;

/// The test function.
pub struct TestFunction {
    pub endpoint: Endpoint,
    /// Signalled by the doorbell.
    pub doorbell: EventFd,
    /// The memory behind [`regs::PAGE`].
    pub page: Arc<MmapRegion<()>>,
    scratch: AtomicU64,
    attached: OnceLock<(Windows, Attachment)>,
    /// BAR writes that arrived as exits, by offset.
    writes: Mutex<Vec<(u64, u64)>>,
    /// Writes to the watched page while it was protected.
    pub woken: Arc<AtomicU64>,
    /// The time each change of the page's protection took.
    pub flips_ns: Mutex<Vec<u64>>,
}

impl TestFunction {
    const WRITES_MAX: usize = 1000;

    /// Puts a test function on the bus of `vm`, with doorbell and page attached.
    pub fn plug(vm: &Vm) -> (Arc<Self>, Slot) {
        let page = Arc::new(MmapRegion::new(4096).unwrap());
        Self::plug_with(vm, page, |windows, function| {
            windows.attach_page(0, regs::PAGE, function.page.clone(), 0)
        })
        .unwrap()
    }

    /// The same with a watched page.
    pub fn plug_watched(vm: &Vm) -> Result<(Arc<Self>, Slot), Error> {
        // Not the first page, so that a mistaken offset shows.
        let page = tofu_vmm::shared_region(2 * 4096)?;
        Self::plug_with(vm, page, |windows, function| {
            let woken = function.woken.clone();
            windows.attach_watched_page(0, regs::PAGE, &function.page, 4096, move || {
                woken.fetch_add(1, Ordering::SeqCst);
            })
        })
    }

    fn plug_with(
        vm: &Vm,
        page: Arc<MmapRegion<()>>,
        attach: impl FnOnce(&Windows, &Self) -> Result<Attachment, Error>,
    ) -> Result<(Arc<Self>, Slot), Error> {
        let identity = Identity {
            vendor: 0x10cf,
            device: 0x1ccd,
            revision: 1,
            class: 0x02_8000,
            subsystem_vendor: 0x10cf,
            subsystem: 1,
        };
        let endpoint = Endpoint::new(identity, LinkSpeed::Gen3)
            .with_bar(0, Bar::memory64(regs::SIZE).prefetchable())
            .and_then(|endpoint| endpoint.with_msix(2, VECTORS))
            .unwrap();
        endpoint.msix().unwrap().connect(vm.msi_sink());
        let function = Arc::new(Self {
            endpoint,
            doorbell: EventFd::new(0).unwrap(),
            page,
            scratch: AtomicU64::new(0),
            attached: OnceLock::new(),
            writes: Mutex::default(),
            woken: Arc::default(),
            flips_ns: Mutex::default(),
        });
        let slot = vm.add_function(function.clone()).unwrap();
        let windows = vm.windows(slot).unwrap();
        windows.attach_doorbell(0, regs::DOORBELL, function.doorbell.try_clone().unwrap()).unwrap();
        let page = attach(&windows, &function)?;
        assert!(function.attached.set((windows, page)).is_ok());
        Ok((function, slot))
    }

    /// Write-protects the shared page or lifts that.
    pub fn protect(&self, read_only: bool) {
        let (windows, page) = self.attached.get().unwrap();
        let begin = std::time::Instant::now();
        windows.set_read_only(*page, read_only).unwrap();
        self.flips_ns.lock().unwrap().push(begin.elapsed().as_nanos() as u64);
    }

    /// A 64-bit word of the shared page.
    pub fn page_word(&self, index: usize) -> &AtomicU64 {
        self.page.get_atomic_ref(self.page.size() - 4096 + 8 * index).unwrap()
    }

    /// The BAR 0 writes that arrived as exits since the last call, oldest first, up
    /// to a limit: offset and value.
    pub fn take_writes(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.writes.lock().unwrap())
    }
}

fn value(data: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..data.len()].copy_from_slice(data);
    u64::from_le_bytes(bytes)
}

impl EndpointDevice for TestFunction {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn read(&self, _: u8, offset: u64, data: &mut [u8]) {
        let word = match offset {
            regs::SCRATCH => self.scratch.load(Ordering::SeqCst),
            regs::PAGE..0x3000 => {
                self.page_word((offset - regs::PAGE) as usize / 8).load(Ordering::SeqCst)
            }
            _ => u64::MAX,
        };
        let len = data.len();
        data.copy_from_slice(&word.to_le_bytes()[..len]);
    }

    fn write(&self, _: u8, offset: u64, data: &[u8]) {
        let value = value(data);
        {
            let mut writes = self.writes.lock().unwrap();
            if writes.len() < Self::WRITES_MAX {
                writes.push((offset, value));
            }
        }
        match offset {
            regs::SCRATCH => self.scratch.store(value, Ordering::SeqCst),
            regs::TRIGGER => self.endpoint.trigger(value as u16),
            regs::PROTECT => self.protect(value != 0),
            regs::PAGE..0x3000 => {
                self.page_word((offset - regs::PAGE) as usize / 8).store(value, Ordering::SeqCst);
            }
            _ => {}
        }
    }
}

/// The guest program `name` of the folder `guests`, built if necessary.
pub fn guest(name: &str) -> Vec<u8> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("guests");
        // Beside the program that runs this, in its own folder so that it
        // never waits for a lock that another build holds.
        let this = std::env::current_exe().unwrap();
        let target = this.ancestors().nth(2).unwrap().join("vmm-guests");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            // This folder has the guests' own flags.
            .current_dir(&sources)
            .args(["build", "--release", "--quiet", "--target-dir"])
            .arg(&target)
            // Instrumentation meant for the host's programs has no runtime in guests.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .status()
            .expect("cargo runs");
        assert!(status.success(), "building the guests failed");
        target.join("release")
    });
    std::fs::read(folder.join(name)).unwrap()
}
