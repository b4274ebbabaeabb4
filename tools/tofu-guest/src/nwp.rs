//! Reads network processors of TNW without disturbing them.

use anyhow::bail;
use serde_json::{Value, json};
use tofu_abi::pci::DEVICE_TNW;
use tofu_abi::tnw::{Control, Link, LinkReg, LinkStatus, NwpReg, Register};
use tofu_vfio::Window;
use tofu_vfio::pci::PciDevice;

use crate::output::{Block, Output};

/// The registers of a network processor that answers.
pub(crate) struct View(Window);

impl View {
    pub(crate) fn open(device: &PciDevice) -> anyhow::Result<Self> {
        let view = Self(Window::open(device)?);
        if view.nwp(NwpReg::Id) as u16 != DEVICE_TNW {
            bail!("{}: the registers do not answer; is it switched off?", device.bdf);
        }
        Ok(view)
    }

    fn read(&self, register: Register) -> u64 {
        self.0.read64(register.offset())
    }

    fn nwp(&self, reg: NwpReg) -> u64 {
        self.read(Register::Nwp(reg))
    }

    /// X, Y and Z of a register with coordinates.
    fn axes(&self, reg: NwpReg) -> [u8; 3] {
        let [x, y, z, ..] = self.nwp(reg).to_le_bytes();
        [x, y, z]
    }

    /// The coordinates of the node.
    pub(crate) fn coords(&self) -> [u8; 3] {
        self.axes(NwpReg::Coordinates)
    }

    fn links(&self) -> impl Iterator<Item = Link> {
        let present = self.nwp(NwpReg::Present);
        Link::ALL.into_iter().filter(move |link| present & 1 << link.index() != 0)
    }

    fn status(&self, link: Link) -> LinkStatus {
        LinkStatus(self.read(Register::Link(link, LinkReg::Status)))
    }
}

/// The state of a link, in a word or two.
fn state_name(status: LinkStatus) -> &'static str {
    match () {
        () if status.silent() => "silent",
        () if status.resending() => "resending",
        // A link that was never used discards, too.
        () if !status.answered() => "not answered",
        () if status.discarding() => "discarding",
        () => "answered",
    }
}

/// `tofu-guest show`.
pub(crate) fn show(device: &PciDevice, output: &Output) -> anyhow::Result<()> {
    let view = View::open(device)?;
    let (coords, shape) = (view.coords(), view.axes(NwpReg::Shape));
    let enabled = Control(view.nwp(NwpReg::Control)).enable();
    let links: Vec<_> = view.links().map(|link| (link, view.status(link))).collect();
    let link = |&(link, status): &(Link, LinkStatus)| {
        json!({
            "link": link.port().to_string(),
            "state": state_name(status),
            "unacknowledged": status.unacknowledged(),
        })
    };
    let value = json!({
        "device": device.bdf.to_string(),
        "driver": device.driver,
        "iommu_group": device.iommu_group,
        "generation": "tnw",
        "coords": coords,
        "shape": shape,
        "enabled": enabled,
        "links": links.iter().map(link).collect::<Vec<_>>(),
    });
    output.print(&value, |out| {
        let [x, y, z] = coords;
        writeln!(out, "device       {}", device.bdf)?;
        writeln!(out, "driver       {}", device.driver.as_deref().unwrap_or("none"))?;
        writeln!(out, "generation   TNW")?;
        writeln!(out, "coordinates  ({x},{y},{z})  (x,y,z)")?;
        writeln!(out, "shape        {}", shape.map(|len| len.to_string()).join("x"))?;
        writeln!(out, "state        {}", if enabled { "enabled" } else { "disabled" })?;
        for (link, status) in &links {
            let (name, left) = (link.port(), status.unacknowledged());
            writeln!(out, "link {name:7} {}, {left} packets to be answered", state_name(*status))?;
        }
        Ok(())
    })
}

/// `tofu-guest regs`.
pub(crate) fn registers(device: &PciDevice, output: &Output) -> anyhow::Result<()> {
    let view = View::open(device)?;
    let nwp = NwpReg::ALL.iter().map(|reg| (reg.name().to_owned(), view.nwp(*reg)));
    let mut blocks = vec![Block { name: "NWP".into(), values: nwp.collect() }];
    blocks.extend(view.links().map(|link| view.link(link)));
    Block::print_registers(&blocks, output)
}

/// `tofu-guest counters`.
pub(crate) fn counters(device: &PciDevice, all: bool, output: &Output) -> anyhow::Result<()> {
    let view = View::open(device)?;
    let mut blocks: Vec<_> = view.links().map(|link| view.link(link)).collect();
    for block in &mut blocks {
        block.values.retain(|(name, _)| name != LinkReg::Status.name());
    }
    Block::print_counters(blocks, all, output)
}

impl View {
    /// All registers of a link.
    fn link(&self, link: Link) -> Block {
        let value = |reg: &LinkReg| (reg.name().to_owned(), self.read(Register::Link(link, *reg)));
        Block {
            name: format!("link {}", link.port()),
            values: LinkReg::ALL.iter().map(value).collect(),
        }
    }
}

/// Coordinates of a device that answers, for a list.
pub(crate) fn place(device: &PciDevice) -> Option<(String, Value)> {
    let [x, y, z] = View::open(device).ok()?.coords();
    Some((format!("({x},{y},{z})"), json!([x, y, z])))
}
