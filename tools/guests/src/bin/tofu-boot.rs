//! Boot firmware: fetches the node's program from a boot server, and starts it.
//!
//! Command line: `shape=` and `torus=` tell the machine, as for all programs; `server=N` the
//! number of the node with the boot server (without it, the server is searched for by broadcast);
//! `patience_ms=N` after how many milliseconds of silence to give up (10000). The protocol is
//! described in the documentation of `tofu-netboot`.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use tofu_abi::TniId;
use tofu_abi::topology::NodeId;
use tofu_bare::loader::{self, Ram};
use tofu_driver::{Device, PacketConfig};
use tofu_guests::{Error, NodePlatform, fail, find_device, machine_shape, number, option, println};
use tofu_ipotofu::addr::{self, Mac};
use tofu_ipotofu::{Config, Link, LinkError};
use tofu_netboot::image::{self, Handed};
use tofu_netboot::wire::{BootState, ETHERTYPE, FileRole, ImageKind, MTU, Manifest, Message};
use tofu_netboot::{Ask, Fetch, Poll, Settings, Task};

tofu_guests::entry!(main);

/// TNI of all nodes' links.
const TNI: TniId = TniId::ALL[0];
const ETHERNET_HEADER: usize = 14;
/// The longest sleep, in nanoseconds, so that a lost interrupt costs no more.
const NAP_NS: u64 = 50_000_000;
/// The longest time to report the end to the server, in nanoseconds.
const REPORT_NS: u64 = 500_000_000;
/// The words that the machine monitor adds to small guests' command lines, apart from the machine.
const MONITOR_WORDS: [&str; 3] = ["ecam", "print", "tsc_khz"];

fn main() -> Result<(), Error> {
    let patience_ns = number("patience_ms", 10_000)?.saturating_mul(1_000_000);
    // Time differs from boot to boot; a server takes 0 for no session.
    let settings = Settings { session: tofu_bare::time::ticks() as u32 | 1, patience_ns };
    let mut ram = loader::take_ram().ok_or_else(|| fail!("too little memory to boot"))?;
    let device = Device::probe(find_device()?)?;
    let mut wire = Wire::open(&device)?;
    let (manifest, loaded) = match load(&mut wire, settings, &mut ram) {
        Ok(loaded) => loaded,
        Err(error) => {
            if wire.server.is_some() {
                let text = format!("{error}");
                wire.report(
                    Settings { patience_ns: REPORT_NS, ..settings },
                    BootState::Failed,
                    &text,
                );
            }
            return Err(error);
        }
    };
    wire.report(Settings { patience_ns: REPORT_NS, ..settings }, BootState::Starting, "");
    drop(wire);
    device.tni(TNI).disable()?;
    device.platform().reset();
    let line = command_line(&manifest);
    let memory_map: Vec<_> = loader::memory_map().collect();
    let handed = Handed {
        memory_map: &memory_map,
        command_line: loader::COMMAND_LINE as u32,
        command_line_len: line.len(),
        initrd: loaded.initrd,
        rsdp: loader::rsdp(),
    };
    let zero_page = loaded.layout.zero_page(&handed)?;
    // SAFETY: the image is in place, checked to be the announced one, and does not overlap this
    // program; the device was reset.
    unsafe { loader::start(loaded.layout.entry, &zero_page, &line) }
}

/// The node's link to its boot server.
struct Wire {
    link: Link<NodePlatform>,
    server: Option<Mac>,
    frame: Vec<u8>,
}

impl Wire {
    fn open(device: &Device<NodePlatform>) -> Result<Self, Error> {
        let shape = machine_shape()?;
        let server = match option("server") {
            None => None,
            Some(text) => {
                let node = text.parse().ok().and_then(|id| shape.coords(NodeId(id)));
                Some(addr::mac(node.ok_or_else(|| fail!("server={text} is no node's number"))?))
            }
        };
        let config = Config { mtu: MTU, ..Config::new(shape) };
        // Room for all packets that may be on their way here, and for a broadcast.
        let packets = PacketConfig { rx_buffers: 192, tx_buffers: 128, ..PacketConfig::new(TNI) };
        let frame = vec![0; config.max_frame()];
        Ok(Self { link: Link::open(device, config, &packets)?, server, frame })
    }

    fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        let mut frame = Vec::with_capacity(ETHERNET_HEADER + message.len());
        frame.extend_from_slice(&self.server.unwrap_or(addr::BROADCAST));
        frame.extend_from_slice(&self.link.mac());
        frame.extend_from_slice(&ETHERTYPE.to_be_bytes());
        frame.extend_from_slice(message);
        loop {
            match self.link.send(&frame) {
                Err(LinkError::Full) => self.link.wait_room(NAP_NS),
                other => return Ok(other?),
            };
        }
    }

    /// Carries out a task's requests until it is done.
    fn run(&mut self, task: &mut impl Task) -> Result<(), Error> {
        loop {
            while let Some(len) = self.link.recv(&mut self.frame) {
                let (header, message) = self.frame[..len].split_at(ETHERNET_HEADER.min(len));
                let Some((from, kind)) = source(header) else { continue };
                if kind != ETHERTYPE || self.server.is_some_and(|server| server != from) {
                    continue;
                }
                task.receive(message, tofu_guests::now_ns());
                if task.is_done() {
                    // All further requests go to the server that answers first.
                    self.server = Some(from);
                    return Ok(());
                }
            }
            let now = tofu_guests::now_ns();
            match task.poll(now) {
                Poll::Send(message) => self.send(&message)?,
                Poll::Wait(until) => {
                    self.link.wait(until.saturating_sub(now).min(NAP_NS));
                }
                Poll::Ready => return Ok(()),
                Poll::Failed(failure) => return Err(failure.into()),
            }
        }
    }

    fn report(&mut self, settings: Settings, state: BootState, text: &str) {
        let message = Message::Report(state, text);
        let mut ask = Ask::report(settings, &message, tofu_guests::now_ns());
        // The server only reports it to users, and may be gone.
        let _ = self.run(&mut ask);
    }
}

/// Source and EtherType of an Ethernet header.
fn source(header: &[u8]) -> Option<(Mac, u16)> {
    let [_, _, _, _, _, _, a, b, c, d, e, f, high, low] = *header.first_chunk::<14>()?;
    Some(([a, b, c, d, e, f], u16::from_be_bytes([high, low])))
}

/// A system that is ready to be started.
struct Loaded {
    layout: image::Layout,
    initrd: Range<u64>,
}

/// Fetches all files and loads them.
fn load(wire: &mut Wire, settings: Settings, ram: &mut Ram) -> Result<(Manifest, Loaded), Error> {
    let start = tofu_guests::now_ns();
    let mut ask = Ask::manifest(settings, start);
    wire.run(&mut ask)?;
    let manifest = ask.into_manifest().ok_or_else(|| fail!("the boot server sent no manifest"))?;
    let size = |role| manifest.file(role).map_or(0, |(_, file)| file.size);
    let room = ram.range();
    let places = image::places(&room, size(FileRole::Kernel), size(FileRole::Initrd))?;
    let at =
        |place: &Range<u64>| (place.start - room.start) as usize..(place.end - room.start) as usize;
    for (role, place) in [(FileRole::Kernel, &places.kernel), (FileRole::Initrd, &places.initrd)] {
        if !place.is_empty() {
            fetch(wire, settings, &manifest, role, &mut ram.bytes()[at(place)])?;
        }
    }
    let file = at(&places.kernel);
    let below = room.start..places.kernel.start;
    let layout = image::plan(manifest.kind, &ram.bytes()[file.clone()], &below)?;
    for segment in &layout.segments {
        let to = at(&segment.memory);
        let from = file.start + segment.file.start..file.start + segment.file.end;
        let zero = to.start + from.len()..to.end;
        ram.bytes().copy_within(from, to.start);
        ram.bytes()[zero].fill(0);
    }
    let bytes: u64 = manifest.files.iter().map(|file| file.size).sum();
    println!(
        "boot: {} KiB in {} ms",
        bytes.div_ceil(1024),
        tofu_guests::now_ns().saturating_sub(start) / 1_000_000
    );
    Ok((manifest, Loaded { layout, initrd: places.initrd }))
}

fn fetch(
    wire: &mut Wire,
    settings: Settings,
    manifest: &Manifest,
    role: FileRole,
    buf: &mut [u8],
) -> Result<(), Error> {
    let mut fetch = Fetch::new(settings, manifest, role, buf, tofu_guests::now_ns())
        .ok_or_else(|| fail!("the boot server's manifest has no {role}"))?;
    wire.run(&mut fetch)?;
    Ok(fetch.finish()?)
}

/// The command line of the image: the server's words, and for a small guest also those of the
/// monitor.
fn command_line(manifest: &Manifest) -> String {
    let mut line = manifest.command_line.clone();
    if manifest.kind == ImageKind::Guest {
        for name in MONITOR_WORDS {
            if let Some(value) = option(name) {
                line.push_str(&format!(" {name}={value}"));
            }
        }
    }
    line.trim_start().into()
}
