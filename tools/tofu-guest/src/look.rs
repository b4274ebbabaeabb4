//! Reads devices without disturbing them: all in a list, and those of Tofu.

use anyhow::bail;
use serde_json::{Value, json};
use tofu_abi::regs::{
    CqReg, CqsReg, CqsStatus, NodeAddress, PortReg, Register, TniReg, TniState, TofuReg, XbReg,
};
use tofu_abi::topology::Port;
use tofu_abi::{CqId, Generation, TniId};
use tofu_vfio::Window;
use tofu_vfio::pci::{Bus, PciDevice};

use crate::nwp;
use crate::output::{Block, Output};

/// A register that reads as this does not exist.
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
    let devices = [bus.tofu_devices()?, bus.tnw_devices()?].concat();
    // A device that cannot be read is listed nevertheless.
    let rows: Vec<_> = devices.iter().map(|device| (device, place(device))).collect();
    let entry = |(device, coords): &(&PciDevice, Option<(String, Value)>)| {
        json!({
            "device": device.bdf.to_string(),
            "driver": device.driver,
            "iommu_group": device.iommu_group,
            "coords": coords.as_ref().map(|(_, coords)| coords),
        })
    };
    output.print(&rows.iter().map(entry).collect(), |out| {
        if rows.is_empty() {
            return writeln!(
                out,
                "there is no Tofu device (PCI 10cf:1cc1, 1cc2 or 1ccd) in this system, and none \
                 of TNW (10cf:1cce)"
            );
        }
        writeln!(out, "{:14} {:10} {:>5}  COORDINATES", "DEVICE", "DRIVER", "GROUP")?;
        for (device, coords) in &rows {
            let driver = device.driver.as_deref().unwrap_or("-");
            let group = device.iommu_group.map_or("none".to_owned(), |group| group.to_string());
            let coords = coords.as_ref().map_or("? (in use, or off)", |(text, _)| text);
            writeln!(out, "{:14} {driver:10} {group:>5}  {coords}", device.bdf.to_string())?;
        }
        Ok(())
    })
}

/// Coordinates of a device that answers, as text and as JSON.
fn place(device: &PciDevice) -> Option<(String, Value)> {
    if device.is_tnw() {
        return nwp::place(device);
    }
    let coords = View::open(device).ok()?.address.coords();
    Some((coords.to_string(), json!(coords.to_array())))
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

/// Registers of a device, under a headline.
fn block<T: Copy>(
    view: &View,
    name: impl Into<String>,
    all: &[T],
    text: impl Fn(T) -> &'static str,
    register: impl Fn(T) -> Register,
) -> Block {
    let values = all.iter().map(|r| (text(*r).to_owned(), view.read(register(*r)))).collect();
    Block { name: name.into(), values }
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
            block(&view, format!("CQ {cq} of TNI {tni}"), CqReg::ALL, CqReg::name, |reg| {
                Register::Cq { tni, cq, reg }
            }),
            block(&view, format!("CQS {cq} of TNI {tni}"), CqsReg::ALL, CqsReg::name, |reg| {
                Register::Cqs { tni, cq, reg }
            }),
        ],
        (Some(tni), None) => {
            vec![block(&view, format!("TNI {tni}"), TniReg::ALL, TniReg::name, |reg| {
                Register::Tni { tni, reg }
            })]
        }
        (None, _) => {
            // Indexed registers are shown with their names here, as in NODE_ADDRESS or TniVms(0,
            // 3).
            let node = (0..0x700)
                .step_by(8)
                .filter_map(TofuReg::from_offset)
                .map(|reg| (format!("{reg:?}"), view.read(Register::Tofu(reg))))
                .collect();
            vec![
                Block { name: "TOFU".into(), values: node },
                block(&view, "XB", XbReg::ALL, XbReg::name, Register::Xb),
            ]
        }
    };
    Block::print_registers(&blocks, output)
}

/// The counters of a network interface.
const TNI_COUNTERS: TniReg = TniReg::SendCount;

/// `tofu-guest counters`.
pub(crate) fn counters(device: &PciDevice, all: bool, output: &Output) -> anyhow::Result<()> {
    let view = View::open(device)?;
    let mut blocks = Vec::new();
    for port in Port::ALL {
        blocks.push(block(&view, format!("port {port}"), PortReg::ALL, PortReg::name, |reg| {
            Register::Port { port, reg }
        }));
    }
    for tni in view.generation.description().tni_ids() {
        let first = TniReg::ALL.iter().position(|reg| *reg == TNI_COUNTERS).unwrap_or(0);
        let registers = &TniReg::ALL[first..];
        blocks.push(block(&view, format!("TNI {tni}"), registers, TniReg::name, |reg| {
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
            blocks.push(block(&view, name, &registers, CqReg::name, |reg| Register::Cq {
                tni,
                cq,
                reg,
            }));
        }
    }
    Block::print_counters(blocks, all, output)
}
