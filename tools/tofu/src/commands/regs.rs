//! `tofu regs`: the registers of a node's device.

use std::io::{self, Write};

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tofu_control::protocol::{RegisterValue, Reply, Request};
use tofu_control::{ask, locate, node_number};

/// Show the registers of a node's device, by the names of the register map
///
/// The host reads the registers without the guest, and without effect on the device. Control queues
/// and barrier gates that are not enabled are left out. So are registers that are 0, unless --all
/// is given.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RegsArgs {
    /// Node: an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C, with MACHINE/ in front if
    /// several machines run
    #[arg(value_name = "NODE")]
    pub(crate) node: String,

    /// Only registers of these units, such as tofu, tni0, tni0cq3 or port, or registers with these
    /// names
    #[arg(value_name = "UNIT|NAME")]
    pub(crate) only: Vec<String>,

    /// Also show registers that are 0
    #[arg(long)]
    pub(crate) all: bool,

    /// Print JSON, including registers that are 0
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tofu regs 0
  tofu regs 0 tni0cq11
      a control queue
  tofu regs 0 status mode --all
      the STATUS and MODE of all control queues that are enabled";

/// Runs `tofu regs` and returns the exit code.
pub(crate) fn run(args: &RegsArgs) -> anyhow::Result<u8> {
    let (control, shape, at) = locate(&args.node)?;
    let node = node_number(&shape, at)?;
    let Reply::Registers { registers } = ask(&control, &Request::Registers { node })? else {
        bail!("not an answer")
    };
    let Some(registers) = registers else {
        bail!("node {}: there is no device at this place", args.node)
    };
    let chosen: Vec<_> =
        registers.iter().filter(|register| is_meant(&args.only, register)).collect();
    if chosen.is_empty() {
        bail!(
            "{}: no unit or register of this name that is enabled; `tofu regs {} --all` lists them",
            args.only.join(" "),
            args.node
        );
    }
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", json!(chosen))?;
    } else {
        writeln!(out, "node {at}")?;
        print(&mut out, chosen.into_iter().filter(|register| args.all || register.value != 0))?;
    }
    out.flush()?;
    Ok(0)
}

/// Returns true if the user has selected the register, by a prefix of its unit's name or of its
/// own.
fn is_meant(only: &[String], register: &RegisterValue) -> bool {
    let plain = |text: &str| text.to_ascii_lowercase().replace(' ', "");
    let unit = plain(&register.of);
    let of_unit = |wanted: &str| {
        // tni0cq1 is not tni0cq11.
        let rest = unit.strip_prefix(wanted);
        rest.is_some_and(|rest| {
            !(wanted.ends_with(|c: char| c.is_ascii_digit())
                && rest.starts_with(|c: char| c.is_ascii_digit()))
        })
    };
    let meant = |wanted: &String| {
        let wanted = plain(wanted);
        of_unit(&wanted) || plain(&register.name) == wanted
    };
    only.is_empty() || only.iter().any(meant)
}

fn print<'a>(
    out: &mut dyn Write,
    registers: impl Iterator<Item = &'a RegisterValue>,
) -> io::Result<()> {
    let mut unit = "";
    for register in registers {
        if register.of != unit {
            unit = &register.of;
            writeln!(out, "  {unit}")?;
        }
        let RegisterValue { offset, name, value, fields, .. } = register;
        let known = fields.iter().filter(|(_, value)| value != "0");
        let known: Vec<_> = known.map(|(name, value)| format!("{name}={value}")).collect();
        let line = format!("    {offset:#09x}  {name:<32} {value:#018x}  {}", known.join(" "));
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_registers_have_names() {
        let register = RegisterValue {
            offset: 0x40_0000,
            of: "tni 0 cq 11".into(),
            name: "STATUS".into(),
            value: 1 << 59,
            fields: vec![("cq_enable".into(), "1".into()), ("session_dead".into(), "0".into())],
        };
        let meant = |name: &str| is_meant(&[name.to_owned()], &register);
        for name in ["tni", "tni0", "TNI0CQ11", "tni0cq", "status", "tni 0 cq 11"] {
            assert!(meant(name), "{name}");
        }
        for name in ["tni1", "tni0cq1", "cq11", "stat"] {
            assert!(!meant(name), "{name}");
        }
        assert!(is_meant(&[], &register));
        let mut out = Vec::new();
        print(&mut out, [&register].into_iter()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "  tni 0 cq 11\n    0x0400000  STATUS                           \
                        0x0800000000000000  cq_enable=1\n";
        assert_eq!(text, expected);
    }
}
