//! Where the ranks of a job go.

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_jtofu::{Job, LogicalShape, Mapinfo, RankMap, System};

use super::RunArgs;

/// The most ranks on a node: that many have control queues of their own.
const MOST_ON_NODE: u32 = tofu_utofu::place::MAX_PROCESSES as u32;

/// What the user asks for, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) ranks: Option<u32>,
    pub(crate) map: Option<LogicalShape>,
    pub(crate) ppn: Option<u32>,
}

impl Wanted {
    /// What the command line says.
    ///
    /// # Errors
    ///
    /// If numbers are out of range or contradict each other.
    pub(crate) fn new(args: &RunArgs) -> anyhow::Result<Self> {
        let wanted = Self { ranks: args.ranks, map: args.map, ppn: args.ppn };
        wanted.check()?;
        Ok(wanted)
    }

    fn check(self) -> anyhow::Result<()> {
        if self.ranks == Some(0) {
            bail!("-n 0: a job has one rank or more");
        }
        if let Some(ppn) = self.ppn
            && !(1..=MOST_ON_NODE).contains(&ppn)
        {
            bail!("--ppn {ppn}: a node has 1 to {MOST_ON_NODE} ranks");
        }
        if let (Some(ranks), Some(map)) = (self.ranks, self.map) {
            let ppn = self.ppn.unwrap_or(MOST_ON_NODE);
            let most = map.nodes().saturating_mul(ppn);
            if ranks > most {
                bail!(
                    "-n {ranks}: a map of {map} with up to {ppn} ranks on a node has at most {most}"
                );
            }
        }
        Ok(())
    }

    /// How many nodes a machine must have that is made for this job.
    pub(crate) fn nodes(self) -> anyhow::Result<LogicalShape> {
        if let Some(map) = self.map {
            return Ok(map);
        }
        let nodes = self.ranks.map_or(2, |ranks| ranks.div_ceil(self.ppn.unwrap_or(1)));
        // One to 32 nodes: what does not fit in there shares nodes.
        LogicalShape::new(&[nodes.clamp(1, MOST_STARTED)]).context("no such job")
    }
}

/// The most nodes in a row of a machine that is started for a job.
const MOST_STARTED: u32 = 32;

/// Lays a job on the nodes of `system` that have not failed.
///
/// # Errors
///
/// If it does not fit there.
pub(crate) fn lay(system: &System, wanted: Wanted) -> anyhow::Result<Job> {
    wanted.check()?;
    let usable = system.nodes() - system.failed().len() as u32;
    if usable == 0 {
        bail!("the machine has no node for a rank");
    }
    let nodes = match (wanted.map, wanted.ranks) {
        (Some(map), _) => map.nodes(),
        (None, Some(ranks)) => match wanted.ppn {
            Some(ppn) => ranks.div_ceil(ppn),
            None => ranks.min(usable),
        },
        (None, None) => usable,
    };
    let ranks = wanted.ranks.unwrap_or_else(|| nodes.saturating_mul(wanted.ppn.unwrap_or(1)));
    let ppn = wanted.ppn.unwrap_or(ranks.div_ceil(nodes));
    if nodes > usable || ppn > MOST_ON_NODE {
        let most = usable.saturating_mul(wanted.ppn.unwrap_or(MOST_ON_NODE));
        if ranks > most || wanted.map.is_none() {
            bail!(
                "{ranks} ranks are too many: the machine has {usable} Linux nodes, and with up to \
                 {} ranks on each at most {most}",
                wanted.ppn.unwrap_or(MOST_ON_NODE)
            );
        }
    }
    let shape = match wanted.map {
        Some(map) => map,
        None => LogicalShape::new(&[nodes])?,
    };
    let map = RankMap::find(system, shape, false).context("--map")?;
    Ok(Job::new(&map, ppn, ranks)?)
}

/// A job in numbers that its ranks are told, and where each is.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub(crate) info: Mapinfo,
}

impl Placement {
    /// Where a rank is.
    pub(crate) fn node(&self, rank: u32) -> Coords {
        self.info.job.coords(rank).unwrap_or_default()
    }

    /// Which of its node's ranks a rank is, from 0, and how many there are.
    pub(crate) fn local(&self, rank: u32) -> (u32, u32) {
        let ranks = self.info.job.ranks_at(self.node(rank));
        let index = ranks.iter().position(|own| *own == rank).unwrap_or_default();
        (index as u32, ranks.len() as u32)
    }

    /// The nodes that have ranks, in the order of these.
    pub(crate) fn nodes(&self) -> Vec<Coords> {
        let job = &self.info.job;
        job.nodes().iter().copied().filter(|node| !job.ranks_at(*node).is_empty()).collect()
    }

    /// The variables by which a rank finds itself, but for the mapinfo.
    pub(crate) fn variables(&self, rank: u32) -> Vec<(String, String)> {
        let job = &self.info.job;
        let values = [
            ("TOFU_RANK", rank),
            ("TOFU_SIZE", job.processes()),
            ("TOFU_LOCAL_RANK", self.local(rank).0),
            // The same on all nodes, also if the last has fewer: IDs of peers follow from it.
            ("TOFU_PPN", job.per_node()),
        ];
        values.map(|(name, value)| (name.to_owned(), value.to_string())).into()
    }
}
