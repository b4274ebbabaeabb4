//! Being one of several processes: which part, where the others are, and meeting them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use tofu_cables::{Joining, Mesh};
use tofu_spec::units::{PartOf, Timeout};

use crate::commands::slurm;

/// A kernel waits for 200 ms or more before it sends lost data again.
const LEAST_CABLE_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Several processes or hosts")]
pub(crate) struct JoinArgs {
    /// Run part I of N parts, counted from 0, in this process, and wait for the others
    ///
    /// With slurm, I and N come from the Slurm task that this runs in (SLURM_PROCID, SLURM_NTASKS).
    ///
    /// All other options must be the same for all parts, except those for what is printed or
    /// captured, and for doorbells and engines. See the manual, page Machines over many hosts.
    #[arg(long, value_name = "I/N|slurm", requires = "join", value_parser = part)]
    part: Option<PartOf>,

    /// Folder with the addresses of all parts and the certificate of this one: see
    /// `tofu hosts init`
    #[arg(long, value_name = "DIR", requires = "part")]
    join: Option<PathBuf>,

    /// Consider a part lost when its host acknowledges nothing for this time, 100ms or more
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "part")]
    cable_timeout: Timeout,
}

/// A part as the user names it.
fn part(text: &str) -> anyhow::Result<PartOf> {
    match text {
        "slurm" => slurm::part(&slurm::environment),
        text => text.parse().map_err(anyhow::Error::msg),
    }
}

impl JoinArgs {
    /// The requested part, and the folder.
    pub(crate) fn asked(&self) -> Option<(PartOf, &Path)> {
        self.part.zip(self.join.as_deref())
    }

    /// Meets the other parts, however long that takes, and says for whom it waits unless `quiet`.
    pub(crate) fn meet(&self, joining: Joining, own: PartOf, quiet: bool) -> anyhow::Result<Mesh> {
        let Timeout(timeout) = self.cable_timeout;
        if timeout < LEAST_CABLE_TIMEOUT {
            bail!("--cable-timeout {} ms: give 100ms or more", timeout.as_millis());
        }
        let at = joining.address().to_owned();
        let mut waits_for = None;
        joining.with_timeout(timeout).meet(&mut |part, address| {
            if !quiet && waits_for.replace(part) != Some(part) {
                tofu_ui::tell!("tofu: part {own} at {at} waits for part {part} at {address}");
            }
        })
    }
}
