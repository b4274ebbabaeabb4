//! The network of a machine that runs, for commands that also describe machines on paper.

use anyhow::bail;
use clap::Args;
use tofu_control::protocol::{Reply, Request};
use tofu_control::{MachineName, ask, find_machine, info};
use tofu_machine::Generation;
use tofu_supervisor::options::ShapeArgs;
use tofu_supervisor::plan::Network;

/// Which machine is described.
#[derive(Debug, Clone, Args)]
pub(crate) struct MachineOrShape {
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,

    /// A machine that runs, with the links that are down now; without NAME the only one there is
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true)]
    #[arg(conflicts_with_all = ["shape", "config"])]
    pub(crate) machine: Option<Option<MachineName>>,
}

impl MachineOrShape {
    /// Its network.
    pub(crate) fn network(&self) -> anyhow::Result<Network> {
        Ok(self.network_and_generation()?.0)
    }

    /// Its network, and of which generation it is, if that is known.
    pub(crate) fn network_and_generation(&self) -> anyhow::Result<(Network, Option<Generation>)> {
        let Some(name) = &self.machine else {
            let (network, file) = Network::new(&self.shape)?;
            return Ok((network, file.interconnect.tofu()));
        };
        let (_, control) = find_machine(name.as_ref())?;
        let info = info(&control)?;
        let shape = info.shape()?;
        let Reply::Links { down } = ask(&control, &Request::Links)? else { bail!("not an answer") };
        let links_down = down.iter().filter_map(|end| end.find(&shape)).collect();
        Ok((Network { shape, links_down }, info.generation()))
    }

    /// Whether it runs.
    pub(crate) fn runs(&self) -> bool {
        self.machine.is_some()
    }
}
