//! Looking at devices without disturbing them.

use std::io::{self, Write};

use anyhow::bail;
use serde_json::{Map, Value, json};
use tofu_abi::regs::{
    CqReg, CqsReg, CqsStatus, NodeAddress, PortReg, Register, TniReg, TniState, TofuReg, XbReg,
};
use tofu_abi::topology::Port;
use tofu_abi::{CqId, Generation, TniId};
use tofu_vfio::Window;
use tofu_vfio::pci::{Bus, PciDevice};

use crate::output::Output;

/// What reads as this is no register.
const NOTHING: u64 = u64::MAX;

/// The registers of a device, if it answers.
struct View {
    window: Window,
    address: NodeAddress,
    generation: Generation,
}

impl View {
    fn open(device: &PciDevice) -> anyhow::Result<Self> {
        let window = Window::open(device)?;
        let raw = window.read64(Register::Tofu(TofuReg::NodeAddress).offset());
        let address = NodeAddress(raw);
        let raw_generation = window.read64(Register::Tofu(TofuReg::Generation).offset());
        let Some(generation) = Generation::from_register(raw_generation) else {
            bail!("{}: a generation that this tofu-guest does not know", device.bdf);
        };
        let view = Self { window, address, generation };
        // Where nothing answers, a system reads ones or zeros; every interface has queues.
        let queues = view.tni(TniId::ALL[0], TniReg::CqPresent);
        let no_address = NodeAddress::from_coords(address.coords()).0 != raw;
        if no_address || queues == 0 || queues == NOTHING {
            bail!("{}: the registers do not answer; is it switched off?", device.bdf);
        }
        Ok(view)
    }

    fn read(&self, register: Register) -> u64 {
        self.window.read64(register.offset())
    }

    fn tni(&self, tni: TniId, reg: TniReg) -> u64 {
        self.read(Register::Tni { tni, reg })
    }
}

/// `tofu-guest ls`.
pub(crate) fn list(bus: &Bus, output: &Output) -> anyhow::Result<()> {
    let devices = bus.tofu_devices()?;
    // A device that cannot be looked at is listed all the same.
    let coords = |device: &PciDevice| View::open(device).ok().map(|v| v.address.coords());
    let rows: Vec<_> = devices.iter().map(|device| (device, coords(device))).collect();
    let entry = |(device, coords): &(&PciDevice, Option<tofu_abi::Coords>)| {
        json!({
            "device": device.bdf.to_string(),
            "driver": device.driver,
            "iommu_group": device.iommu_group,
            "coords": coords.map(|c| c.to_array()),
        })
    };
    output.print(&rows.iter().map(entry).collect(), |out| {
        if rows.is_empty() {
            return writeln!(
                out,
                "there is no Tofu device (PCI 10cf:1cc1, 1cc2 or 1ccd) in this system"
            );
        }
        writeln!(out, "{:14} {:10} {:>5}  COORDINATES", "DEVICE", "DRIVER", "GROUP")?;
        for (device, coords) in &rows {
            let driver = device.driver.as_deref().unwrap_or("-");
            let group = device.iommu_group.map_or("none".to_owned(), |group| group.to_string());
            let coords = coords.map_or("? (in use, or off)".to_owned(), |c| c.to_string());
            writeln!(out, "{:14} {driver:10} {group:>5}  {coords}", device.bdf.to_string())?;
        }
        Ok(())
    })
}

/// State of a network interface, in a word.
fn state_name(state: u64) -> &'static str {
    match state & 3 {
        s if s == TniState::Disable as u64 => "disabled",
        s if s == TniState::Normal as u64 => "normal",
        s if s == TniState::Error as u64 => "error",
        _ => "unknown",
    }
}

/// `tofu-guest show`.
pub(crate) fn show(device: &PciDevice, output: &Output) -> anyhow::Result<()> {
    let view = View::open(device)?;
    let coords = view.address.coords();
    struct Tni {
        state: &'static str,
        present: Vec<u8>,
        enabled: Vec<u8>,
    }
    let description = view.generation.description();
    let tnis: Vec<Tni> = description
        .tni_ids()
        .map(|tni| {
            let mask = view.tni(tni, TniReg::CqPresent);
            let present: Vec<CqId> =
                CqId::ALL.into_iter().filter(|cq| mask >> cq.get() & 1 != 0).collect();
            let is_enabled = |cq: &CqId| {
                let status = Register::Cqs { tni, cq: *cq, reg: CqsReg::Status };
                CqsStatus(view.read(status)).cq_enable()
            };
            let enabled = present.iter().copied().filter(is_enabled).map(CqId::get).collect();
            let present = present.into_iter().map(CqId::get).collect();
            Tni { state: state_name(view.tni(tni, TniReg::State)), present, enabled }
        })
        .collect();
    let list: Vec<_> = (0..)
        .zip(&tnis)
        .map(|(n, tni): (u32, _)| {
            json!({ "tni": n, "state": tni.state, "cqs": tni.present, "enabled": tni.enabled })
        })
        .collect();
    let value = json!({
        "device": device.bdf.to_string(),
        "driver": device.driver,
        "iommu_group": device.iommu_group,
        "generation": view.generation.name(),
        "coords": coords.to_array(),
        "tnis": list,
    });
    output.print(&value, |out| {
        writeln!(out, "device       {}", device.bdf)?;
        writeln!(out, "driver       {}", device.driver.as_deref().unwrap_or("none"))?;
        writeln!(out, "generation   {}", view.generation)?;
        writeln!(out, "coordinates  {coords}  (x,y,z,a,b,c)")?;
        for (n, tni) in tnis.iter().enumerate() {
            writeln!(
                out,
                "TNI {n}        {}, {} control queues, enabled: {}",
                tni.state,
                tni.present.len(),
                if tni.enabled.is_empty() { "none".to_owned() } else { numbers(&tni.enabled) }
            )?;
        }
        Ok(())
    })
}

fn numbers(list: &[u8]) -> String {
    list.iter().map(u8::to_string).collect::<Vec<_>>().join(" ")
}

/// Names and values of some registers, under a headline.
struct Block {
    name: String,
    values: Vec<(String, u64)>,
}

impl Block {
    fn new<T: Copy>(
        view: &View,
        name: impl Into<String>,
        all: &[T],
        text: impl Fn(T) -> &'static str,
        register: impl Fn(T) -> Register,
    ) -> Self {
        let values = all.iter().map(|r| (text(*r).to_owned(), view.read(register(*r)))).collect();
        Self { name: name.into(), values }
    }

    fn json(blocks: &[Self], value: impl Fn(u64) -> Value) -> Value {
        let block = |block: &Self| {
            let values = block.values.iter().map(|(name, v)| (name.clone(), value(*v)));
            (block.name.clone(), Value::Object(values.collect()))
        };
        Value::Object(blocks.iter().map(block).collect::<Map<_, _>>())
    }

    fn print(
        blocks: &[Self],
        out: &mut dyn Write,
        value: impl Fn(u64) -> String,
    ) -> io::Result<()> {
        for (i, block) in blocks.iter().enumerate() {
            writeln!(out, "{}{}", if i > 0 { "\n" } else { "" }, block.name)?;
            for (name, number) in &block.values {
                writeln!(out, "  {name:32} {}", value(*number))?;
            }
        }
        Ok(())
    }
}

/// `tofu-guest regs`.
pub(crate) fn registers(
    device: &PciDevice,
    tni: Option<TniId>,
    cq: Option<CqId>,
    output: &Output,
) -> anyhow::Result<()> {
    let view = View::open(device)?;
    let blocks = match (tni, cq) {
        (Some(tni), Some(cq)) => vec![
            Block::new(&view, format!("CQ {cq} of TNI {tni}"), CqReg::ALL, CqReg::name, |reg| {
                Register::Cq { tni, cq, reg }
            }),
            Block::new(&view, format!("CQS {cq} of TNI {tni}"), CqsReg::ALL, CqsReg::name, |reg| {
                Register::Cqs { tni, cq, reg }
            }),
        ],
        (Some(tni), None) => {
            vec![Block::new(&view, format!("TNI {tni}"), TniReg::ALL, TniReg::name, |reg| {
                Register::Tni { tni, reg }
            })]
        }
        (None, _) => {
            // Indexed registers go by their names here, as in NODE_ADDRESS or TniVms(0, 3).
            let node = (0..0x700)
                .step_by(8)
                .filter_map(TofuReg::from_offset)
                .map(|reg| (format!("{reg:?}"), view.read(Register::Tofu(reg))))
                .collect();
            vec![
                Block { name: "TOFU".into(), values: node },
                Block::new(&view, "XB", XbReg::ALL, XbReg::name, Register::Xb),
            ]
        }
    };
    // As text: JSON's numbers do not hold 64 bits everywhere.
    let value = Block::json(&blocks, |v| Value::from(format!("{v:#x}")));
    output.print(&value, |out| Block::print(&blocks, out, |v| format!("{v:#018x}")))
}

/// The counters of a network interface.
const TNI_COUNTERS: TniReg = TniReg::SendCount;

/// `tofu-guest counters`.
pub(crate) fn counters(device: &PciDevice, all: bool, output: &Output) -> anyhow::Result<()> {
    let view = View::open(device)?;
    let mut blocks = Vec::new();
    for (port, name) in (0..).zip(Port::ALL) {
        blocks.push(Block::new(
            &view,
            format!("port {name}"),
            PortReg::ALL,
            PortReg::name,
            |reg| Register::Port { port, reg },
        ));
    }
    for tni in view.generation.description().tni_ids() {
        let first = TniReg::ALL.iter().position(|reg| *reg == TNI_COUNTERS).unwrap_or(0);
        let registers = &TniReg::ALL[first..];
        blocks.push(Block::new(&view, format!("TNI {tni}"), registers, TniReg::name, |reg| {
            Register::Tni { tni, reg }
        }));
        for cq in view.generation.description().cq_ids() {
            let registers = [
                CqReg::TcqNumNotice,
                CqReg::MrqNumNotice,
                CqReg::TxPayloadByte,
                CqReg::RxPayloadByte,
            ];
            let name = format!("CQ {cq} of TNI {tni}");
            blocks.push(Block::new(&view, name, &registers, CqReg::name, |reg| Register::Cq {
                tni,
                cq,
                reg,
            }));
        }
    }
    if !all {
        let clock = PortReg::FreeRunCount.name();
        for block in &mut blocks {
            block.values.retain(|(name, value)| *value != 0 && name != clock);
        }
        blocks.retain(|block| !block.values.is_empty());
    }
    output.print(&Block::json(&blocks, Value::from), |out| {
        if blocks.is_empty() {
            return writeln!(out, "all counters are 0; the device counts while it is in use");
        }
        Block::print(&blocks, out, |v| v.to_string())
    })
}
