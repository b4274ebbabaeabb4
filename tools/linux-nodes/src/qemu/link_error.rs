//! Errors of the PCI Express link between a node's root port and its device.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::protocol::NodeInfo;
use tofu_control::rundir::node_file;
use tofu_image::Arch;

use super::{PORT, Qmp};

/// An error that the root port reports by Advanced Error Reporting, by its severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// A receiver error, which hardware has corrected.
    Correctable,
    /// The completion of a request did not come in time.
    NonFatal,
    /// A data link protocol error. The kernel resets what is behind the port.
    Fatal,
}

impl LinkError {
    /// The names of the severities.
    pub const NAMES: [&str; 3] = ["correctable", "nonfatal", "fatal"];

    /// QEMU's options and name for it. It knows correctable errors by their bits alone.
    fn words(self) -> [&'static str; 2] {
        match self {
            Self::Correctable => ["-c ", "1"],
            Self::NonFatal => ["", "COMP_TIME"],
            Self::Fatal => ["", "DLP"],
        }
    }

    /// Has the root port of a node report it.
    ///
    /// # Errors
    ///
    /// If the node has no root port, does not run under QEMU, or its monitor does not answer.
    pub fn inject(self, control: &Path, node: &NodeInfo) -> anyhow::Result<()> {
        ensure!(
            node.is_linux() && node.vmm == "qemu" && node.processors() == Arch::X86_64,
            "its device is behind no root port: only x86-64 Linux nodes under QEMU have one"
        );
        let folder = control.parent().context("a socket without a folder")?;
        let socket = folder.join(node_file("qmp", Coords::from_array(node.at), "sock"));
        let [option, name] = self.words();
        let line = format!("pcie_aer_inject_error {option}{PORT} {name}");
        let mut monitor = Qmp::connect(&socket)?;
        let said = monitor.command("human-monitor-command", json!({ "command-line": line }))?;
        match said.as_str().unwrap_or_default().trim() {
            said if said.starts_with("OK") => Ok(()),
            // Firmware that starts over the network supports the root bus alone.
            said => bail!("its root port reports no error: QEMU says: {said}"),
        }
    }
}

impl FromStr for LinkError {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "correctable" => Ok(Self::Correctable),
            "nonfatal" => Ok(Self::NonFatal),
            "fatal" => Ok(Self::Fatal),
            _ => Err("severities are correctable, nonfatal and fatal"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_an_error_and_no_other() {
        let errors = LinkError::NAMES.map(|name| name.parse::<LinkError>().unwrap());
        assert_eq!(errors, [LinkError::Correctable, LinkError::NonFatal, LinkError::Fatal]);
        assert!("".parse::<LinkError>().is_err());
    }
}
