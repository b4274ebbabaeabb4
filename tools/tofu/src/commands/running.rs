//! The network of a running machine, for commands that also describe machines that do not run.

use anyhow::bail;
use clap::Args;
use tofu_control::protocol::{JobInfo, Reply, Request};
use tofu_control::{MachineName, ask, find_machine, info};
use tofu_machine::{Generation, Interconnect};
use tofu_spec::MachineSpec;
use tofu_spec::plan::{Network, Plan};

use crate::options::ShapeArgs;

/// Which machine is described.
#[derive(Debug, Clone, Args)]
pub(crate) struct MachineOrShape {
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,

    /// Use a running machine, without the links that are down now; NAME is needed if several run
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true)]
    #[arg(conflicts_with_all = ["shape", "config"])]
    pub(crate) machine: Option<Option<MachineName>>,
}

/// Properties of a machine.
pub(crate) struct Described {
    pub(crate) network: Network,
    pub(crate) generation: Option<Generation>,
    /// None of one that does not run.
    pub(crate) jobs: Vec<JobInfo>,
}

impl MachineOrShape {
    /// Its network.
    pub(crate) fn network(&self) -> anyhow::Result<Network> {
        Ok(self.describe(None)?.network)
    }

    /// Its properties. `generation` takes precedence over that of the machine.
    pub(crate) fn describe(&self, generation: Option<Generation>) -> anyhow::Result<Described> {
        let Some(name) = &self.machine else {
            let options = MachineSpec {
                generation: generation.map(Interconnect::Tofu),
                ..MachineSpec::default()
            };
            let plan = Plan::new(&self.shape.over_file(options)?)?;
            let generation = plan.interconnect.tofu();
            return Ok(Described { network: plan.network, generation, jobs: Vec::new() });
        };
        let (_, control) = find_machine(name.as_ref())?;
        let info = info(&control)?;
        let shape = info.shape()?;
        let Reply::Links { down } = ask(&control, &Request::Links)? else { bail!("not an answer") };
        let links_down = down.iter().filter_map(|end| end.find(&shape)).collect();
        let generation = generation.or_else(|| info.generation());
        Ok(Described {
            network: Network { shape, links_down, shard: None },
            generation,
            jobs: info.jobs,
        })
    }

    /// Returns true if it runs.
    pub(crate) fn runs(&self) -> bool {
        self.machine.is_some()
    }
}
