//! The daemon of a Linux node.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use tofu_abi::regs::TniReg;
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, Rcode, TniId};
use tofu_driver::{Device, PacketConfig, Platform};
use tofu_ipotofu::{Config, Link};
use tofu_vfio::Bdf;
use tofu_vfio::broker::{Broker, SharedPlatform, socket_path};
use tofu_vfio::pci::Bus;

use crate::pump::{End, LONGEST_MTU, Pump};
use crate::{AddressPlan, Tap};

/// Pause before the device is requested again.
const RETRY: Duration = Duration::from_millis(200);
/// The interval at which the device is checked, in case it was reset.
const LOOK: Duration = Duration::from_secs(1);
/// Turns without a sleep after which other descriptors are polled once.
const TURNS: u32 = 16;
/// Packet buffers to receive to, and to send from.
const RX_BUFFERS: u16 = 1024;
const TX_BUFFERS: u16 = 512;

/// The settings of a daemon.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The machine.
    pub shape: Shape,
    /// Its number, 0 to 7.
    pub machine: u8,
    /// Name of the interface.
    pub interface: String,
    /// Largest IP packet that the kernel sends, in bytes.
    pub mtu: u16,
    /// The gateway for packets that are not for the machine, if there is no other route.
    pub gateway: Option<Ipv4Addr>,
    /// The TNI, the same on all nodes.
    pub tni: TniId,
    /// The device; the first one if it is not named.
    pub device: Option<Bdf>,
    /// The socket of `tofud`; its default place if not given.
    pub broker: Option<PathBuf>,
    /// The socket at which the daemon serves its statistics.
    pub stats: PathBuf,
    /// The file in which it records dead links, for programs.
    pub links: PathBuf,
}

/// The reason why a session has ended.
enum Ended {
    /// The daemon must end.
    Stop,
    /// The device is gone, for this reason.
    Lost(&'static str),
}

/// The daemon of `tofu0`.
#[derive(Debug)]
pub struct Daemon {
    settings: Settings,
    stop: OwnedFd,
    stats: UnixListener,
    pump: Pump,
    tap: Option<(Tap, Coords, AddressPlan)>,
    /// Sums of links that are closed.
    counters: BTreeMap<&'static str, u64>,
    sessions: u64,
    why: String,
    /// The last record of dead links.
    links: String,
}

impl Daemon {
    /// A daemon that ends when `stop` becomes readable.
    ///
    /// # Errors
    ///
    /// If it cannot listen for requests for its statistics.
    pub fn new(settings: Settings, stop: OwnedFd) -> anyhow::Result<Self> {
        let path = &settings.stats;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", path.display()));
            }
            _ => {}
        }
        let listening = UnixListener::bind(path).and_then(|stats| {
            stats.set_nonblocking(true)?;
            Ok(stats)
        });
        let stats = listening.with_context(|| format!("listening at {}", path.display()))?;
        let (pump, counters) = (Pump::default(), BTreeMap::new());
        let why = "it has just been started".into();
        let links = String::new();
        Ok(Self { settings, stop, stats, pump, tap: None, counters, sessions: 0, why, links })
    }

    /// Runs the interface whenever the device is available, until it must stop.
    ///
    /// # Errors
    ///
    /// Errors that do not go away by waiting.
    pub fn run(&mut self) -> anyhow::Result<()> {
        loop {
            let ended = match self.open()? {
                Ok((mut link, connection)) => {
                    let ended = self.serve(&mut link, connection)?;
                    self.add_up(&mut link);
                    ended
                }
                Err(why) => {
                    if self.why != why {
                        log::info!("waiting for the device: {why}");
                        self.why = why;
                    }
                    if self.pause()? {
                        Ended::Stop
                    } else {
                        continue;
                    }
                }
            };
            match ended {
                Ended::Stop => return Ok(()),
                Ended::Lost(why) => {
                    log::info!("without the device: {why}");
                    self.why = why.into();
                }
            }
        }
    }

    /// Opens the link, or returns why it must wait.
    #[allow(clippy::type_complexity)]
    fn open(&mut self) -> anyhow::Result<Result<(Link<SharedPlatform>, OwnedFd), String>> {
        let Settings { shape, machine, mtu, tni, device, .. } = self.settings;
        let bdf = Bus::default().find(device)?.bdf;
        let path = self.settings.broker.clone().unwrap_or_else(|| socket_path(bdf));
        let broker = match Broker::connect(&path) {
            Ok(Some(broker)) => broker,
            Ok(None) => return Ok(Err(format!("no tofud at {}", path.display()))),
            Err(error) => return Ok(Err(format!("tofud at {}: {error}", path.display()))),
        };
        let platform = match Arc::new(broker).join_packets(tni) {
            Ok(platform) => platform,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let Some(connection) = platform.connection().context("asking for a descriptor")? else {
            return Ok(Err("tofud is gone".into()));
        };
        let device = match Device::probe(platform) {
            Ok(device) => device,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let me = device.coords();
        if !shape.contains(me) {
            bail!("node {me} is not in the machine of its settings");
        }
        let packets = PacketConfig {
            rx_buffers: RX_BUFFERS,
            tx_buffers: TX_BUFFERS,
            ..PacketConfig::new(tni)
        };
        // The kernel decides the length of the frames that it sends; those of others are received
        // at any length.
        let config = Config {
            machine,
            mtu: LONGEST_MTU,
            offload: true,
            acknowledge: true,
            rendezvous: true,
            // Whole frames are fetched, so that the checksum finds damage that no device detects.
            split: false,
            ..Config::new(shape)
        };
        let link = match Link::open(&device, config, &packets) {
            Ok(link) => link,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if self.tap.is_none() {
            let plan = AddressPlan::new(&shape, machine, me);
            let tap = Tap::open(&self.settings.interface)?;
            tap.set_carrier(false)?;
            tap.configure(&plan, mtu)?;
            if let Some(gateway) = self.settings.gateway {
                tap.add_default_route(gateway)?;
            }
            self.tap = Some((tap, me, plan));
        }
        Ok(Ok((link, connection)))
    }

    /// Moves frames until the device is gone.
    fn serve(
        &mut self,
        link: &mut Link<SharedPlatform>,
        connection: OwnedFd,
    ) -> anyhow::Result<Ended> {
        let Some((tap, me, _)) = self.tap.take() else { bail!("no interface") };
        let plan = AddressPlan::new(&self.settings.shape, self.settings.machine, me);
        tap.set_carrier(true)?;
        self.sessions += 1;
        self.why.clear();
        log::info!("{} is up: {}", tap.name(), plan.ipv4);
        let ended = self.exchange(link, &tap, &connection);
        tap.set_carrier(false)?;
        self.tap = Some((tap, me, plan));
        ended
    }

    fn exchange(
        &mut self,
        link: &mut Link<SharedPlatform>,
        tap: &Tap,
        connection: &OwnedFd,
    ) -> anyhow::Result<Ended> {
        let platform = link.packets().device().clone();
        let interrupt = platform.platform().interrupt().context("no interrupt")?;
        let mut turns = 0;
        let mut looked = Instant::now();
        let mut dead = 0;
        loop {
            let moved = self.pump.turn(link, tap).context("the interface")?;
            turns = if moved { turns + 1 } else { TURNS };
            if turns < TURNS {
                continue;
            }
            turns = 0;
            let is_time = looked.elapsed() >= LOOK;
            if is_time {
                if link.packets().read(TniReg::PrqPa) == 0 {
                    return Ok(Ended::Lost("it was reset"));
                }
                // The kernel removes the route when the interface is taken down.
                if let Some(gateway) = self.settings.gateway
                    && let Err(error) = tap.add_default_route(gateway)
                {
                    log::debug!("{error}");
                }
                looked = Instant::now();
            }
            let own = link.health().own();
            if is_time || own != dead {
                dead = own;
                let now_ns = platform.platform().now_ns();
                self.write_links(link.health().known(now_ns).to_string());
            }
            let others = [self.stop.as_fd(), connection.as_fd(), self.stats.as_fd()];
            let time = if moved { Duration::ZERO } else { LOOK };
            match self.pump.sleep(link, tap, interrupt, &others, time)? {
                End::Work => {}
                End::Other(0) => return Ok(Ended::Stop),
                End::Other(1) => return Ok(Ended::Lost("tofud requests it back, or is gone")),
                End::Other(_) => {
                    let state = self.state(Some(link), Some((tap, link.coords())));
                    self.tell(&state);
                }
            }
        }
    }

    /// Writes the dead links to the file, if they have changed. A reader gets the old or the new
    /// text.
    fn write_links(&mut self, text: String) {
        if text == self.links {
            return;
        }
        let path = &self.settings.links;
        let new = path.with_extension("new");
        if let Err(error) = fs::write(&new, &text).and_then(|()| fs::rename(&new, path)) {
            log::warn!("{}: {error}", path.display());
        }
        self.links = text;
    }

    /// Waits for a moment. Returns whether the daemon must end.
    fn pause(&mut self) -> io::Result<bool> {
        let end = Instant::now() + RETRY;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut fds = [self.stop.as_fd(), self.stats.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Ok(false),
                Ok(_) if !fds[0].revents().is_empty() => return Ok(true),
                Ok(_) => {
                    let tap = self.tap.as_ref().map(|(tap, me, _)| (tap, *me));
                    let state = self.state(None, tap);
                    self.tell(&state);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Adds a link's statistics to those of earlier links.
    fn add_up(&mut self, link: &mut Link<SharedPlatform>) {
        for (name, value) in link.counters().named() {
            *self.counters.entry(name).or_default() += value;
        }
    }

    fn state(&self, link: Option<&Link<SharedPlatform>>, tap: Option<(&Tap, Coords)>) -> Value {
        let Settings { shape, machine, interface, tni, .. } = &self.settings;
        let mut sum = self.counters.clone();
        for (name, value) in link.map(Link::counters).unwrap_or_default().named() {
            *sum.entry(name).or_default() += value;
        }
        let pump = self.pump.counters();
        sum.extend([
            ("refused", pump.refused),
            ("unwanted", pump.unwanted),
            ("sleeps", pump.sleeps),
        ]);
        let addresses = tap.map(|(_, me)| {
            let plan = AddressPlan::new(shape, *machine, me);
            json!({
                "node": me.to_array(),
                "mac": plan.mac.map(|b| format!("{b:02x}")).join(":"),
                "ipv4": format!("{}/{}", plan.ipv4, plan.ipv4_prefix),
                "ipv6": format!("{}/{}", plan.ipv6, plan.ipv6_prefix),
            })
        });
        json!({
            "interface": interface,
            "state": if link.is_some() { "up" } else { "waiting" },
            "why": self.why,
            "tni": tni.get(),
            "sessions": self.sessions,
            "addresses": addresses,
            "last_loss": link.and_then(Link::last_loss).map(Rcode::describe),
            "counters": sum,
        })
    }

    /// Answers the client.
    fn tell(&self, state: &Value) {
        // A client that does not read it immediately gets nothing. The text fits into the socket's
        // buffer if it is written in one call. Formatted directly into the socket, it would be a
        // hundred messages, which each take about a page of that buffer.
        if let Ok((mut stream, _)) = self.stats.accept() {
            let _ = stream.set_nonblocking(true);
            let _ = stream.write_all(format!("{state}\n").as_bytes());
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for file in [&self.settings.stats, &self.settings.links] {
            let _ = fs::remove_file(file);
        }
    }
}

/// The statistics of the daemon that serves them at `path`, in JSON.
///
/// # Errors
///
/// If there is none.
pub fn ask(path: &Path) -> anyhow::Result<Value> {
    let stream = UnixStream::connect(path)
        .with_context(|| format!("{}: is tofu-net running?", path.display()))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    serde_json::from_reader(stream).context("the answer makes no sense")
}
