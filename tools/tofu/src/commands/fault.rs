//! `tofu fault`: faults on the links of a machine that runs.

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;
use tofu_control::protocol::{FaultReport, Reply, Request};
use tofu_control::{MachineName, ask, find_machine};
use tofu_supervisor::faults::FaultSpec;

/// Have packets of a running machine lost, duplicated, overtaken or damaged on its links
///
/// Raw and system packets only, as IP over Tofu uses them: real links repeat what gets lost of
/// commands. On links of TNW, which do that themselves, all packets.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum FaultCommand {
    /// Have these faults from now on, such as loss=1%,reorder=2%,seed=7
    Set {
        /// Shares of the packets on each link: loss, duplicate, reorder, corrupt, undetected; and
        /// seed=N
        #[arg(value_name = "FAULTS")]
        faults: FaultSpec,
        /// Machine; not needed if only one runs
        #[arg(value_name = "NAME")]
        name: Option<MachineName>,
    },
    /// Have no more faults
    Off {
        /// Machine; not needed if only one runs
        #[arg(value_name = "NAME")]
        name: Option<MachineName>,
    },
    /// Show which faults there are, and how often they happened
    Show {
        /// Machine; not needed if only one runs
        #[arg(value_name = "NAME")]
        name: Option<MachineName>,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs `tofu fault` and returns the exit code.
pub(crate) fn run(command: &FaultCommand) -> anyhow::Result<u8> {
    let (name, question) = match command {
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
            println!("{}", if *json { as_json(report.as_ref()) } else { text(report.as_ref()) });
        }
        _ => bail!("not an answer"),
    }
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
