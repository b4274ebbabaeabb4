//! Being one of several processes: which shard, where the others are, and meeting them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use tofu_cables::{Joining, Mesh};
use tofu_spec::units::{ShardOf, Timeout};

use crate::commands::slurm;

/// A kernel waits for 200 ms or more before it sends lost data again.
const LEAST_CABLE_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Several processes or hosts")]
pub(crate) struct JoinArgs {
    /// Run shard I of N shards, counted from 0, in this process, and wait for the others
    ///
    /// With slurm, I and N come from the Slurm task that this runs in (SLURM_PROCID, SLURM_NTASKS).
    ///
    /// All other options must be the same for all shards, except those for what is printed or
    /// captured, and for doorbells and engines. See the manual, page Machines over many hosts.
    #[arg(long, alias = "part", value_name = "I/N|slurm", requires = "join", value_parser = shard)]
    shard: Option<ShardOf>,

    /// Folder with the addresses of all shards and the certificate of this one; see `tofu hosts
    /// init`
    #[arg(long, value_name = "DIR", requires = "shard")]
    join: Option<PathBuf>,

    /// Consider a shard lost when its host acknowledges nothing for this time, 100ms or more
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "shard")]
    cable_timeout: Timeout,
}

/// A shard as the user names it.
fn shard(text: &str) -> anyhow::Result<ShardOf> {
    match text {
        "slurm" => slurm::shard(&slurm::environment),
        text => text.parse().map_err(anyhow::Error::msg),
    }
}

impl JoinArgs {
    /// The requested shard, and the folder.
    pub(crate) fn asked(&self) -> Option<(ShardOf, &Path)> {
        self.shard.zip(self.join.as_deref())
    }

    /// Connects to the other shards, without a time limit. Unless `quiet`, prints the shard for
    /// which it waits.
    pub(crate) fn meet(&self, joining: Joining, own: ShardOf, quiet: bool) -> anyhow::Result<Mesh> {
        let Timeout(timeout) = self.cable_timeout;
        if timeout < LEAST_CABLE_TIMEOUT {
            bail!("--cable-timeout {} ms: give 100ms or more", timeout.as_millis());
        }
        let at = joining.address().to_owned();
        let mut waits_for = None;
        joining.with_timeout(timeout).meet(&mut |shard, address| {
            if !quiet && waits_for.replace(shard) != Some(shard) {
                tofu_ui::tell!("tofu: shard {own} at {at} waits for shard {shard} at {address}");
            }
        })
    }
}
