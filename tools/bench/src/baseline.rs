//! The baselines of `tofu bench`: the cost for a guest of a doorbell, and of polling shared memory,
//! without any device behind them.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use tofu_pci::{Bar, Endpoint, EndpointDevice, Identity, LinkSpeed};
use tofu_spec::guest::{Guest, GuestName};
use tofu_vmm::{Hypervisor, Outcome, Vm, VmConfig};
use vm_memory::{MmapRegion, VolatileMemory};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

/// The values that the guest program `baseline` expects.
const VENDOR: u16 = 0x10cf;
const DEVICE: u16 = 0x1cff;
const BAR_SIZE: u64 = 0x4000;
const DOORBELL: u64 = 0x1000;
const PAGE: u64 = 0x2000;
const RUNG: usize = 0x00;
const MINE: usize = 0x40;
const ECHO: usize = 0x80;

/// The time limit for the guest.
const PATIENCE: Duration = Duration::from_secs(60);

/// The minimum, median and 99th percentile of round trips, in nanoseconds.
pub(crate) type Times = [u64; 3];

/// Round trips between a guest and a thread of the host.
pub(crate) struct Baseline {
    /// The guest writes a word of shared memory, and spins until a thread that polls it has
    /// answered in another word.
    pub(crate) spin: Times,
    /// The guest rings an ioeventfd, and spins until the thread that sleeps on it has answered in
    /// shared memory.
    pub(crate) ring: Times,
}

/// A function with nothing but a doorbell and a page of memory.
struct Bare(Endpoint);

impl EndpointDevice for Bare {
    fn endpoint(&self) -> &Endpoint {
        &self.0
    }

    fn read(&self, _: u8, _: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn write(&self, _: u8, _: u64, _: &[u8]) {}
}

/// Runs the guest program `baseline` with `count` round trips of each kind.
pub(crate) fn measure(count: u32) -> anyhow::Result<Baseline> {
    let hypervisor = Hypervisor::open()?;
    let (lines, printed) = mpsc::channel();
    let config = VmConfig { name: "baseline".into(), ..VmConfig::default() };
    let vm = Vm::new(&hypervisor, &config, move |line| {
        // After a failure, the receiver is gone.
        let _ = lines.send(line.to_owned());
    })?;
    let identity = Identity {
        vendor: VENDOR,
        device: DEVICE,
        class: 0xff_0000,
        revision: 1,
        subsystem_vendor: VENDOR,
        subsystem: DEVICE,
    };
    let endpoint = Endpoint::new(identity, LinkSpeed::Gen3).with_bar(0, Bar::memory64(BAR_SIZE))?;
    let slot = vm.add_function(Arc::new(Bare(endpoint)))?;
    let windows = vm.windows(slot).context("the function is on the bus")?;
    let event = EventFd::new(0)?;
    let page = tofu_vmm::shared_region(4096)?;
    windows.attach_doorbell(0, DOORBELL, event.try_clone()?)?;
    windows.attach_page(0, PAGE, Arc::clone(&page), 0)?;

    let image = Guest::load_bare(&GuestName::Shipped("baseline".into()))?.image;
    vm.boot(&image, &format!("count={count}"))?;
    let stop = Arc::new(AtomicBool::new(false));
    let answering = {
        let (page, stop) = (Arc::clone(&page), Arc::clone(&stop));
        thread::spawn(move || answer(&page, &event, &stop))
    };
    vm.start(|_| {})?;
    let outcome = vm.wait(PATIENCE);
    stop.store(true, Ordering::Release);
    vm.stop();
    match answering.join() {
        Ok(result) => result?,
        Err(_) => bail!("the answering thread panicked"),
    }
    if outcome != Some(Outcome::Exited(0)) {
        bail!("the guest program baseline failed");
    }
    let lines: Vec<String> = printed.try_iter().collect();
    let times = |what: &str| -> anyhow::Result<Times> {
        let line = lines.iter().find_map(|line| line.strip_prefix(what)).context("no figures")?;
        let numbers: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
        numbers?.try_into().map_err(|_| anyhow::anyhow!("figures that make no sense: {line}"))
    };
    Ok(Baseline { spin: times("spin ")?, ring: times("ring ")? })
}

/// Plays the host's part: spins while the guest spins, then sleeps on the doorbell.
fn answer(page: &MmapRegion<()>, event: &EventFd, stop: &AtomicBool) -> anyhow::Result<()> {
    let word = |offset| page.get_atomic_ref::<AtomicU64>(offset);
    let (rung, mine, echo) = (word(RUNG)?, word(MINE)?, word(ECHO)?);
    // The first doorbell ends the spinning. Until then, its descriptor must not put this thread to
    // sleep.
    let polled = event.try_clone()?;
    let ready = Epoll::new()?;
    let interest = EpollEvent::new(EventSet::IN, 0);
    ready.ctl(ControlOperation::Add, polled.as_raw_fd(), interest)?;
    let mut found = [EpollEvent::default()];
    let mut looks = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let wanted = mine.load(Ordering::Acquire);
        if echo.load(Ordering::Relaxed) != wanted {
            echo.store(wanted, Ordering::Release);
        }
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(4096) && ready.wait(0, &mut found)? > 0 {
            break;
        }
        std::hint::spin_loop();
    }
    while !stop.load(Ordering::Acquire) {
        // The time limit lets it notice that the guest is done.
        if ready.wait(100, &mut found)? > 0 {
            event.read()?;
            rung.fetch_add(1, Ordering::Release);
        }
    }
    Ok(())
}
