//! `tofu fault`: faults on the links of a running machine, and of its devices.

use std::io::{self, Write};

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;
use tofu_control::protocol::{FaultReport, Reply, Request};
use tofu_control::{MachineName, ask, find_machine, locate, node_number};
use tofu_spec::device_faults::DeviceFaultSpec;
use tofu_spec::faults::FaultSpec;

/// Lose, duplicate, reorder or damage packets of a running machine, or let a device misbehave
///
/// Faults of links apply only to raw and system packets, which IP over Tofu uses, because real
/// links send lost packets of commands again. Links of TNW do so themselves in this emulation, so
/// there faults apply to all packets.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum FaultCommand {
    /// Set the faults from now on, such as loss=1%,reorder=2%,seed=7
    Set {
        /// Shares of the packets on each link: loss, duplicate, reorder, corrupt, undetected; and
        /// seed=N
        #[arg(value_name = "FAULTS")]
        faults: FaultSpec,
        /// Machine; not needed if only one runs
        #[arg(value_name = "NAME")]
        name: Option<MachineName>,
    },
    /// Turn all faults off
    Off {
        /// Machine; not needed if only one runs
        #[arg(value_name = "NAME")]
        name: Option<MachineName>,
    },
    /// Set the faults of a node's device, such as msix-lost=5%,seed=7, or off
    ///
    /// msix-lost and msix-doubled are shares of interrupts that are lost or sent twice; gone: reads
    /// give all ones and writes have no effect; stuck: control queues do not stop; endless-reset:
    /// from the next function level reset on the device is gone; late: TCQ and MRQ entries that ask
    /// for no interrupt come this much later; seed: where the random numbers begin. Each call
    /// replaces the faults of the one before. `tofu inspect NODE faults` shows them, and how often
    /// each has occurred.
    Device {
        /// Node: an index, coordinates X,Y,Z,A,B,C or a name, with MACHINE/ in front if several
        /// machines run
        #[arg(value_name = "NODE")]
        node: String,
        /// Faults: msix-lost=5%, msix-doubled=5%, gone, stuck, endless-reset, late=20ms, seed=N,
        /// separated by commas; or off
        #[arg(value_name = "FAULTS")]
        faults: String,
    },
    /// Show the faults that are set, and how often each has occurred
    Show {
        /// Machine; not needed if only one runs
        #[arg(value_name = "NAME")]
        name: Option<MachineName>,
        /// Print the faults as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs `tofu fault` and returns the exit code.
pub(crate) fn run(command: &FaultCommand) -> anyhow::Result<u8> {
    let (name, question) = match command {
        FaultCommand::Device { node, faults } => return set_device(node, faults),
        FaultCommand::Set { faults, name } => {
            (name, Request::SetFaults { faults: Some(faults.to_string()) })
        }
        FaultCommand::Off { name } => (name, Request::SetFaults { faults: None }),
        FaultCommand::Show { name, .. } => (name, Request::Faults),
    };
    let (_, control) = find_machine(name.as_ref())?;
    match (ask(&control, &question)?, command) {
        (Reply::Done, _) => {}
        (Reply::Faults { faults: report }, FaultCommand::Show { json, .. }) => {
            let report = report.as_ref();
            writeln!(io::stdout(), "{}", if *json { as_json(report) } else { text(report) })?;
        }
        _ => bail!("not an answer"),
    }
    Ok(0)
}

fn set_device(node: &str, faults: &str) -> anyhow::Result<u8> {
    if let Err(allowed) = faults.parse::<DeviceFaultSpec>() {
        bail!("faults of a device are {allowed}");
    }
    let (control, shape, at) = locate(node)?;
    let (node, faults) = (node_number(&shape, at)?, Some(faults.to_owned()));
    match ask(&control, &Request::SetDeviceFaults { node, faults })? {
        Reply::Done => Ok(0),
        _ => bail!("not an answer"),
    }
}

fn as_json(report: Option<&FaultReport>) -> String {
    match report {
        None => "null".into(),
        Some(FaultReport { faults, links, lost, duplicated, reordered, corrupted, undetected }) => {
            json!({
                "faults": faults, "links": links, "lost": lost, "duplicated": duplicated,
                "reordered": reordered, "corrupted": corrupted, "undetected": undetected,
            })
            .to_string()
        }
    }
}

fn text(report: Option<&FaultReport>) -> String {
    let Some(report) = report else { return "no faults".into() };
    let links = match report.links {
        0 => String::new(),
        n => format!(" ({n} links have faults of their own)"),
    };
    format!(
        "{}{links}\nlost {}, duplicated {}, reordered {}, corrupted {}, undetected {}",
        report.faults,
        report.lost,
        report.duplicated,
        report.reordered,
        report.corrupted,
        report.undetected
    )
}
