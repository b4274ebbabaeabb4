//! `tofu fault`: faults on the links of a running machine, and of its devices.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;
use tofu_control::protocol::{FaultReport, Reply, Request};
use tofu_control::{Found, MachineName, ask, find_machine, find_node, info, locate, node_number};
use tofu_linux_nodes::qemu::LinkError;
use tofu_spec::device_faults::DeviceFaultSpec;
use tofu_spec::ecc::EccPlaceName;
use tofu_spec::faults::FaultSpec;

use crate::fault_plan;

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
    /// msix-lost, msix-doubled and msix-delayed are shares of interrupts that are lost, sent twice
    /// or sent later by delay (10 ms); read-abort and write-abort: shares of accesses to memory
    /// that fail; register-lies and write-lies: shares of reads of registers that give other
    /// values, and of writes to memory with a wrong byte; gone: reads give all ones and writes have
    /// no effect; stuck: control queues do not stop; endless-reset: from the next function level
    /// reset on the device is gone; late: TCQ and MRQ entries that request no interrupt come this
    /// much later, and with late-tcq or late-mrq those of one queue only, so that notices and
    /// completions are reordered; seed: the seed of the random numbers.
    ///
    /// Single events: msix@9#3=lost (or doubled, or delayed) is the third message of vector 9,
    /// read#5=abort the fifth read of memory, write#5=abort the fifth write, each counted from now
    /// on. Each call replaces the earlier faults. `tofu inspect NODE faults` shows them, and how
    /// often each has occurred.
    Device {
        /// Node: an index, coordinates X,Y,Z,A,B,C or a name, with MACHINE/ in front if several
        /// machines run
        #[arg(value_name = "NODE")]
        node: String,
        /// Faults, separated by commas: msix-lost=5%, msix-doubled=5%, msix-delayed=5%, delay=10ms,
        /// read-abort=1%, write-abort=1%, register-lies=1%, write-lies=1%, gone, stuck,
        /// endless-reset, late=20ms, seed=N and single
        /// events; or off
        #[arg(value_name = "FAULTS", required_unless_present = "plan")]
        faults: Option<String>,
        /// Take the faults from a TOML file: a line such as msix-lost = "5%" for each, and for each
        /// single event a table of the array `event`, with msix = 9 or access = "write", nth = 3
        /// and fate = "lost"
        #[arg(long, value_name = "FILE", conflicts_with = "faults")]
        plan: Option<PathBuf>,
    },
    /// Have bits of the device's memory be wrong, which its error-correcting codes find
    ///
    /// Correctable errors are counted and do no harm. Fatal ones cannot be corrected: in buffers
    /// the next queue that fetches a descriptor stops with TOQ_MARKED_UE; in the router the next
    /// packet that goes through it is marked as bad and dropped by its target, so that the sender's
    /// command times out; in tables the node goes down, as by `tofu node down`. `tofu stats NODE`
    /// counts what was found.
    Ecc {
        /// Node: an index, coordinates X,Y,Z,A,B,C or a name, with MACHINE/ in front if several
        /// machines run
        #[arg(value_name = "NODE")]
        node: String,
        /// The memory: tables, buffers or router
        #[arg(long = "where", value_name = "WHERE", value_parser = EccPlaceName::NAMES)]
        place: String,
        /// So many errors of one bit, one at each use of the memory
        #[arg(long, value_name = "N", required_unless_present = "fatal")]
        correctable: Option<u64>,
        /// An error that cannot be corrected
        #[arg(long, conflicts_with = "correctable")]
        fatal: bool,
    },
    /// Have the root port of a Linux node report an error of the PCI Express link to the device
    ///
    /// The kernel logs it (Advanced Error Reporting) and calls the driver's error handlers. For
    /// errors that are not correctable it resets the device if the driver asks for that, and after
    /// fatal ones in any case. Only x86-64 nodes under QEMU have a root port, and machines in
    /// modelled time report no such errors.
    Pcie {
        /// Node: an index, coordinates X,Y,Z,A,B,C or a name, with MACHINE/ in front if several
        /// machines run
        #[arg(value_name = "NODE")]
        node: String,
        /// The severity: correctable (a receiver error), nonfatal (a completion timeout) or fatal
        /// (a data link protocol error)
        #[arg(value_name = "SEVERITY", value_parser = LinkError::NAMES)]
        severity: String,
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
        FaultCommand::Device { node, faults, plan } => {
            let faults = fault_plan::either(faults.as_deref(), plan.as_ref())?;
            return set_device(node, &faults);
        }
        FaultCommand::Ecc { node, place, correctable, .. } => {
            return inject_ecc(node, place, *correctable);
        }
        FaultCommand::Pcie { node, severity } => return inject_link_error(node, severity),
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

fn inject_ecc(node: &str, place: &str, correctable: Option<u64>) -> anyhow::Result<u8> {
    let (control, shape, at) = locate(node)?;
    let node = node_number(&shape, at)?;
    let mut requests = vec![Request::InjectEcc { node, place: place.to_owned(), correctable }];
    if place == "tables" && correctable.is_none() {
        // A separate request, because each shard of the machine has to know.
        requests.push(Request::SetNodes { nodes: vec![node], up: false, guests: true });
    }
    for request in requests {
        let Reply::Done = ask(&control, &request)? else { bail!("not an answer") };
    }
    Ok(0)
}

fn inject_link_error(text: &str, severity: &str) -> anyhow::Result<u8> {
    let error: LinkError = severity.parse().map_err(anyhow::Error::msg)?;
    let Found { control, node } = find_node(text)?;
    if info(&control)?.time.is_some() {
        bail!("node {text}: a machine in modelled time has no errors of the PCI Express link");
    }
    error.inject(&control, &node).with_context(|| format!("node {text}"))?;
    Ok(0)
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
        n => format!(" ({n} links with individual faults)"),
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
