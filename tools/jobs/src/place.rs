//! Places the ranks of a job on nodes.

use std::collections::HashMap;

use anyhow::{Context, bail};
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, Subnet};
use tofu_jtofu::{Job, LogicalShape, Mapinfo, RankMap, System};
use tofu_spec::units::Interconnect;

use crate::spec::{JobSpec, RankOrder, as_machine};

/// The numbers that the user has requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) ranks: Option<u32>,
    pub(crate) map: Option<LogicalShape>,
    pub(crate) ppn: Option<u32>,
    /// True if no other job may use its nodes. Its map is then a torus if the machine has one.
    pub(crate) alone: bool,
    /// The interconnect of the machine.
    pub(crate) interconnect: Interconnect,
}

impl Wanted {
    /// Returns the request on the command line. A running machine may have another interconnect.
    ///
    /// # Errors
    ///
    /// If numbers are out of range, or contradict each other.
    pub(crate) fn new(spec: &JobSpec) -> anyhow::Result<Self> {
        let interconnect = spec.own.generation.unwrap_or_default();
        let torus = spec.torus();
        let wanted = Self {
            ranks: spec.ranks,
            map: spec.map.or(torus),
            ppn: spec.ppn,
            alone: torus.is_some(),
            interconnect,
        };
        wanted.check()?;
        Ok(wanted)
    }

    /// Returns the most ranks on a node: one for each core. A network processor of TNW belongs to
    /// one rank.
    fn most_on_node(self) -> u32 {
        self.interconnect.tofu().map_or(1, |generation| generation.description().cores.into())
    }

    fn check(self) -> anyhow::Result<()> {
        let most_on_node = self.most_on_node();
        if self.ranks == Some(0) {
            bail!("-n 0: a job has one rank or more");
        }
        if let Some(ppn) = self.ppn
            && !(1..=most_on_node).contains(&ppn)
        {
            let generation = self.interconnect.tofu();
            let machine = generation.map_or("TNW", |generation| generation.description().machine);
            bail!("--ppn {ppn}: a node has 1 to {most_on_node} ranks ({machine})");
        }
        if let (Some(ranks), Some(map)) = (self.ranks, self.map) {
            let ppn = self.ppn.unwrap_or(most_on_node);
            let most = map.nodes().saturating_mul(ppn);
            if ranks > most {
                bail!(
                    "-n {ranks}: a map of {map} with up to {ppn} ranks on a node has at most {most}"
                );
            }
        }
        Ok(())
    }

    /// Returns the torus of nodes that a machine for this job must have.
    pub(crate) fn nodes(self) -> anyhow::Result<LogicalShape> {
        if let Some(map) = self.map {
            return Ok(map);
        }
        let nodes = match (self.ranks, self.ppn) {
            (None, _) => 2,
            (Some(ranks), Some(ppn)) => ranks.div_ceil(ppn),
            (Some(ranks), None) => {
                let most_on_node = self.most_on_node();
                let most = MOST_STARTED * most_on_node;
                if ranks > most {
                    bail!(
                        "-n {ranks}: a machine that is started for a run has up to {MOST_STARTED} \
                         nodes with {most_on_node} ranks each, {most} in all, unless --map, --ppn \
                         or --shape ask for more"
                    );
                }
                ranks.min(MOST_STARTED)
            }
        };
        LogicalShape::new(&[nodes]).context("no such job")
    }
}

impl Wanted {
    /// Returns the shape of a machine for this job. The job's torus is the whole machine, so that
    /// every map and every torus fits.
    pub(crate) fn as_machine(self) -> anyhow::Result<Shape> {
        as_machine(self.nodes()?)
    }

    /// Returns whether the job is as large as a unit of Tofu, and asks for no torus.
    pub(crate) fn is_unit(self) -> anyhow::Result<bool> {
        let unit = self.map.is_none() && self.interconnect.tofu().is_some();
        Ok(unit && self.nodes()?.nodes() == Shape::UNIT.nodes())
    }
}

/// The most nodes of a machine that is started for a job, unless the job requests more: a Tofu
/// unit, which a host can run.
const MOST_STARTED: u32 = 12;

/// Places a job on the nodes of `system` that have not failed.
///
/// # Errors
///
/// If it does not fit there.
pub(crate) fn lay(system: &System, wanted: Wanted) -> anyhow::Result<Job> {
    wanted.check()?;
    let usable = system.shape().nodes() - system.failed().len() as u32;
    if usable == 0 {
        bail!(
            "none of the machine's nodes can run a rank: each of the {} is down, behind dead \
             links, or does not run Linux; `tofu ps` and `tofu topo` show which",
            system.shape().nodes()
        );
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
    let most_on_node = wanted.most_on_node();
    if nodes > usable || ppn > most_on_node {
        let most = usable.saturating_mul(wanted.ppn.unwrap_or(most_on_node));
        if ranks > most || wanted.map.is_none() {
            bail!(
                "{ranks} ranks are too many: the machine has {usable} Linux nodes, and with up to \
                 {} ranks on each at most {most}",
                wanted.ppn.unwrap_or(most_on_node)
            );
        }
    }
    let shape = match wanted.map {
        Some(map) => map,
        None => LogicalShape::new(&[nodes])?,
    };
    let closed = wanted.alone.then(|| RankMap::find(system, shape, true).ok()).flatten();
    let found = match closed {
        Some(map) => Ok(map),
        None => RankMap::find(system, shape, false),
    };
    let map = match wanted.map {
        Some(_) => found.context(if wanted.alone { "--shape" } else { "--map" })?,
        None => found.context("a row of nodes for the job; --map may ask for another shape")?,
    };
    Ok(Job::new(&map, ppn, ranks)?)
}

/// Places the ranks of a job again on its nodes, given by `map`.
///
/// # Errors
///
/// If the job has no such node, or a node no room.
pub(crate) fn in_order(job: Job, order: &RankOrder) -> anyhow::Result<Job> {
    let (shape, nodes) = (job.shape(), job.nodes().len() as u32);
    let ranks = match order {
        RankOrder::NodeAfterNode => return Ok(job),
        RankOrder::RoundRobin => (0..job.processes()).map(|rank| rank % nodes).collect(),
        RankOrder::At(places) => {
            let index = |place: &[u32; 3]| {
                let [x, y, z] = place;
                let none = || format!("({x},{y},{z}): the job's nodes are {shape}, from 0");
                shape.index(*place).with_context(none)
            };
            let all = job.processes() as usize;
            if places.len() < all {
                bail!("{all} ranks are placed, and there are {} places", places.len());
            }
            places[..all].iter().map(index).collect::<anyhow::Result<Vec<u32>>>()?
        }
    };
    let mut counts = vec![0; nodes as usize];
    ranks.iter().for_each(|node| counts[*node as usize] += 1);
    let per_node = counts.into_iter().max().unwrap_or(0).max(job.per_node());
    Ok(job.with_ranks(per_node, ranks)?)
}

/// The answer to a job that asks for nodes.
pub(crate) enum Fit {
    /// There are nodes.
    Now(Box<Job>),
    /// There will be nodes once other jobs have returned theirs. The text says what the job needs
    /// and what is free.
    Later(String),
}

/// Places a job on the nodes of `system` that are neither failed nor taken by other jobs. The other
/// jobs affect only the position of the result, unless the job does not request a number of nodes.
///
/// # Errors
///
/// If it would not fit even if it were alone.
pub(crate) fn fit(system: &System, taken: Vec<Coords>, wanted: Wanted) -> anyhow::Result<Fit> {
    let whole = lay(system, wanted)?;
    if taken.is_empty() {
        return Ok(Fit::Now(Box::new(whole)));
    }
    let free = system.clone().with_failed(taken)?;
    let left = free.shape().nodes() as usize - free.failed().len();
    let same = match wanted {
        Wanted { map: None, ranks: None, .. } => wanted,
        _ => Wanted {
            map: Some(whole.shape()),
            ranks: Some(whole.processes()),
            ppn: Some(whole.per_node()),
            ..wanted
        },
    };
    let is_closed = |job: &Job| job.closed().iter().all(|closed| *closed);
    match lay(&free, same) {
        Ok(job) if !wanted.alone || is_closed(&job) || !is_closed(&whole) => {
            Ok(Fit::Now(Box::new(job)))
        }
        _ => {
            let (shape, needed) = (whole.shape(), whole.nodes().len());
            let nodes = if needed == 1 { "node" } else { "nodes" };
            Ok(Fit::Later(match left >= needed {
                true => format!("no torus {shape} is free, though {left} nodes are"),
                false => format!("the job needs {needed} {nodes}, and {left} are free"),
            }))
        }
    }
}

/// Places a job in the same way again, on the nodes of `system` that have not failed.
///
/// # Errors
///
/// If it does not fit there.
pub(crate) fn lay_again(system: &System, wanted: Wanted, job: &Job) -> anyhow::Result<Job> {
    let (ranks, ppn) = (Some(job.processes()), Some(job.per_node()));
    lay(system, Wanted { map: Some(job.shape()), ranks, ppn, ..wanted })
}

/// Places a job that has lost nodes on those of `system` that have not failed, on its torus or on
/// one with a shorter axis. The number of ranks stays as requested; without a request, the number
/// on each node stays the same.
///
/// # Errors
///
/// If it does not fit there.
pub(crate) fn degrade(system: &System, wanted: Wanted, job: &Job) -> anyhow::Result<Job> {
    let closed = job.closed().iter().all(|closed| *closed);
    let map = RankMap::find_degraded(system, job.shape(), closed)?;
    let ppn = match wanted.ranks {
        Some(_) => wanted.ppn,
        None => Some(job.per_node()),
    };
    lay(system, Wanted { map: Some(map.shape()), ppn, ..wanted })
}

/// A job as described to its ranks, and the place of each rank.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub(crate) info: Mapinfo,
}

impl Placement {
    /// Returns the node of a rank.
    pub(crate) fn node(&self, rank: u32) -> Coords {
        self.info.job.coords(rank).unwrap_or_default()
    }

    /// Returns a rank's index among the ranks of its node, from 0, and their number.
    pub(crate) fn local(&self, rank: u32) -> (u32, u32) {
        let ranks = self.info.job.ranks_at(self.node(rank));
        let index = ranks.iter().position(|own| *own == rank).unwrap_or_default();
        (index as u32, ranks.len() as u32)
    }

    /// Returns the nodes that have ranks, in the order of the ranks.
    pub(crate) fn nodes(&self) -> Vec<Coords> {
        let job = &self.info.job;
        job.nodes().iter().copied().filter(|node| !job.ranks_at(*node).is_empty()).collect()
    }

    /// Returns the smallest box that contains the nodes with ranks.
    pub(crate) fn subnet(&self) -> Subnet {
        Subnet::around(self.info.system.shape(), &self.nodes())
    }

    /// Returns the variables with a rank's place, except for the mapinfo.
    pub(crate) fn variables(&self, rank: u32) -> Vec<(String, String)> {
        let job = &self.info.job;
        let values = [
            ("TOFU_RANK", rank),
            ("TOFU_SIZE", job.processes()),
            ("TOFU_LOCAL_RANK", self.local(rank).0),
            // The same on all nodes, even if the last one has fewer ranks, because IDs of peers are
            // derived from it.
            ("TOFU_PPN", job.per_node()),
        ];
        values.map(|(name, value)| (name.to_owned(), value.to_string())).into()
    }

    /// Returns the variables that tell a rank of an MPI job its place, and its process manager for
    /// PMI-1 at `address`.
    pub(crate) fn mpi_variables(&self, rank: u32, address: Option<&str>) -> Vec<(String, String)> {
        let ((local, locals), ranks) = (self.local(rank), self.info.job.processes());
        let numbers = [
            ("PMI_ID", rank),
            ("PMI_RANK", rank),
            ("PMI_SIZE", ranks),
            ("MPI_LOCALRANKID", local),
            ("MPI_LOCALNRANKS", locals),
            // By these, scripts find their rank before MPI begins: on Fugaku, and with Open MPI.
            ("PMIX_RANK", rank),
            ("OMPI_MCA_orte_ess_vpid", rank),
            ("OMPI_COMM_WORLD_RANK", rank),
            ("OMPI_COMM_WORLD_SIZE", ranks),
            ("OMPI_COMM_WORLD_LOCAL_RANK", local),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", locals),
            ("OMPI_COMM_WORLD_NODE_RANK", local),
            ("OMPI_PLE_RANK_ON_NODE", local),
            ("PLE_RANK_ON_NODE", local),
            ("FLIB_RANK_ON_NODE", local),
        ];
        let numbers = numbers.into_iter().map(|(name, value)| (name, value.to_string()));
        let address = address.map(|address| ("PMI_PORT", address.to_owned()));
        let all = address.into_iter().chain(numbers);
        all.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Returns which ranks share a node, in PMI's notation.
    pub(crate) fn mpi_mapping(&self) -> String {
        let job = &self.info.job;
        let numbers: HashMap<Coords, u32> = job.nodes().iter().copied().zip(0..).collect();
        let node = |rank| numbers.get(&self.node(rank)).copied().unwrap_or_default();
        mapping((0..job.processes()).map(node))
    }
}

/// Returns triples of first node, number of nodes, and ranks on each, for ranks on these nodes.
fn mapping(nodes: impl Iterator<Item = u32>) -> String {
    // Runs of ranks on one node, then runs of neighbouring nodes with as many ranks each.
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for node in nodes {
        match runs.last_mut() {
            Some((last, ranks)) if *last == node => *ranks += 1,
            _ => runs.push((node, 1)),
        }
    }
    let mut blocks: Vec<[u32; 3]> = Vec::new();
    for (node, ranks) in runs {
        match blocks.last_mut() {
            Some([first, count, each]) if *each == ranks && *first + *count == node => *count += 1,
            _ => blocks.push([node, 1, ranks]),
        }
    }
    let blocks = blocks.iter().map(|[first, count, each]| format!(",({first},{count},{each})"));
    format!("(vector{})", blocks.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_abi::Generation;

    fn wanted(ranks: Option<u32>, map: Option<&str>, ppn: Option<u32>) -> Wanted {
        let map = map.map(|map| map.parse().unwrap());
        Wanted { ranks, map, ppn, ..Wanted::default() }
    }

    fn unit() -> System {
        System::new(tofu_abi::topology::Shape::UNIT)
    }

    fn place(system: &System, wanted: Wanted) -> Placement {
        let job = lay(system, wanted).unwrap();
        Placement { info: Mapinfo { system: system.clone(), job } }
    }

    #[test]
    fn twelve_nodes_are_a_unit_unless_a_torus_is_asked_for() {
        let is_unit = |ranks, map| wanted(ranks, map, None).is_unit().unwrap();
        assert!(is_unit(Some(12), None) && is_unit(Some(24), None));
        assert!(!is_unit(Some(11), None) && !is_unit(Some(12), Some("4x3")));
    }

    #[test]
    fn ranks_spread_over_nodes_then_share() {
        let cases = [
            (wanted(None, None, None), 12, 1, "12"),
            (wanted(Some(3), None, None), 3, 1, "3"),
            (wanted(Some(25), None, None), 25, 3, "12"),
            (wanted(None, None, Some(2)), 24, 2, "12"),
            (wanted(Some(5), None, Some(2)), 5, 2, "3"),
            (wanted(None, Some("4x3"), None), 12, 1, "4x3"),
            (wanted(Some(24), Some("4x3"), None), 24, 2, "4x3"),
        ];
        for (wanted, ranks, ppn, shape) in cases {
            let job = lay(&unit(), wanted).unwrap();
            assert_eq!((job.processes(), job.per_node()), (ranks, ppn), "{wanted:?}");
            assert_eq!(job.shape().to_string(), shape, "{wanted:?}");
        }
    }

    #[test]
    fn ranks_know_their_place() {
        let placement = place(&unit(), wanted(Some(5), None, Some(2)));
        assert_eq!(placement.nodes().len(), 3);
        assert_eq!(placement.node(0), placement.node(1));
        assert_ne!(placement.node(1), placement.node(2));
        assert_eq!((placement.local(3), placement.local(4)), ((1, 2), (0, 1)));
        let variables = placement.variables(3);
        let text: Vec<_> =
            variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(text, ["TOFU_RANK=3", "TOFU_SIZE=5", "TOFU_LOCAL_RANK=1", "TOFU_PPN=2"]);
    }

    #[test]
    fn nodes_are_shared_by_rule() {
        for (nodes, expected) in [
            (&[0, 1][..], "(vector,(0,2,1))"),
            (&[0, 0, 1, 1], "(vector,(0,2,2))"),
            (&[0, 0, 1, 1, 2], "(vector,(0,2,2),(2,1,1))"),
            (&[0], "(vector,(0,1,1))"),
            (&[0, 1, 2, 0, 1, 2], "(vector,(0,3,1),(0,3,1))"),
            (&[2, 0, 0], "(vector,(2,1,1),(0,1,2))"),
        ] {
            assert_eq!(mapping(nodes.iter().copied()), expected);
        }
    }

    #[test]
    fn ranks_go_where_they_are_sent() {
        let job = || lay(&unit(), wanted(Some(6), Some("2x2"), Some(3))).unwrap();
        let at = |job: &Job| (0..6).map(|rank| job.logical(rank).unwrap()).collect::<Vec<_>>();
        let packed = in_order(job(), &RankOrder::NodeAfterNode).unwrap();
        assert_eq!(at(&packed)[..4], [[0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0]]);
        let spread = in_order(job(), &RankOrder::RoundRobin).unwrap();
        assert_eq!(at(&spread)[..5], [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]]);
        let places = vec![[1, 1, 0], [0, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0], [0, 1, 0]];
        let listed = in_order(job(), &RankOrder::At(places.clone())).unwrap();
        assert_eq!((at(&listed), listed.per_node()), (places.clone(), 4));
        let refused = |places: Vec<[u32; 3]>| {
            format!("{:#}", in_order(job(), &RankOrder::At(places)).unwrap_err())
        };
        assert!(refused(vec![[2, 0, 0]; 6]).contains("(2,0,0): the job's nodes are 2x2, from 0"));
        assert!(refused(places[..5].to_vec()).contains("there are 5 places"));
    }

    #[test]
    fn nodes_that_are_not_there_are_not_used() {
        let failed = Coords::from_array([0, 0, 0, 0, 1, 0]);
        let system = unit().with_failed([failed]).unwrap();
        let placement = place(&system, wanted(Some(10), None, None));
        assert!(!placement.nodes().contains(&failed));
        assert!(lay(&system, wanted(Some(12), None, Some(1))).is_err());
    }

    #[test]
    fn jobs_fit_beside_each_other_or_wait() {
        let alone = |shape| Wanted { alone: true, ..wanted(None, Some(shape), None) };
        let mut taken = Vec::new();
        for _ in 0..2 {
            let Fit::Now(job) = fit(&unit(), taken.clone(), alone("3x2")).ok().unwrap() else {
                panic!("there is room for two")
            };
            assert!(job.nodes().iter().all(|node| !taken.contains(node)));
            assert!(job.closed().iter().all(|closed| *closed));
            taken.extend(job.nodes());
        }
        let later = |taken: &[Coords], wanted| match fit(&unit(), taken.to_vec(), wanted) {
            Ok(Fit::Later(why)) => why,
            Ok(Fit::Now(job)) => panic!("it has {:?}", job.nodes()),
            Err(error) => panic!("{error:#}"),
        };
        let why = later(&taken, alone("3x2"));
        assert_eq!(why, "the job needs 6 nodes, and 0 are free");
        // There are enough nodes, but every second one is taken, so they form no such torus.
        let odd = unit().shape().iter().filter(|at| (at.a + at.b + at.c) % 2 == 1);
        let why = later(&odd.collect::<Vec<_>>(), alone("2x2"));
        assert_eq!(why, "no torus 2x2 is free, though 6 nodes are");
        // A job that would never fit is refused immediately.
        assert!(fit(&unit(), taken.clone(), alone("4x4")).is_err());
        // A request for ranks does not make do with fewer nodes and more ranks on each. A request
        // for all nodes takes those that are free.
        later(&taken[..6], wanted(Some(12), None, None));
        let Ok(Fit::Now(job)) = fit(&unit(), taken[..6].to_vec(), wanted(None, None, None)) else {
            panic!("six are free")
        };
        assert_eq!(job.processes(), 6);
    }

    #[test]
    fn job_continues_with_the_remaining_nodes() {
        let dead = [Coords::default(), Coords::new(0, 0, 0, 0, 0, 1)];
        let left = unit().with_failed(dead).unwrap();
        let goes_on = |wanted: Wanted| {
            let job = lay(&unit(), wanted).unwrap();
            let job = degrade(&left, wanted, &job).map_err(|error| format!("{error:#}"))?;
            assert!(dead.iter().all(|node| !job.nodes().contains(node)));
            Ok::<_, String>((job.shape().to_string(), job.processes(), job.per_node()))
        };
        assert_eq!(goes_on(wanted(None, Some("4x3"), None)), Ok(("4x2".into(), 8, 1)));
        assert_eq!(goes_on(wanted(None, None, Some(2))), Ok(("10".into(), 20, 2)));
        // The ranks that the user wants share nodes, unless that is forbidden.
        assert_eq!(goes_on(wanted(Some(12), None, None)), Ok(("10".into(), 12, 2)));
        let error = goes_on(wanted(Some(12), None, Some(1))).unwrap_err();
        assert!(error.contains("has at most 10"), "{error}");
    }

    #[test]
    fn excess_ranks_are_reported() {
        let cases = [
            (wanted(Some(0), None, None), "one rank or more"),
            (wanted(None, None, Some(49)), "1 to 48 ranks"),
            (wanted(Some(13), None, Some(1)), "13 ranks are too many: the machine has 12"),
            (wanted(Some(577), None, None), "at most 576"),
            (wanted(Some(97), Some("2"), None), "has at most 96"),
            (wanted(None, Some("4x4"), None), "4x4"),
        ];
        for (wanted, expected) in cases {
            let error = format!("{:#}", lay(&unit(), wanted).unwrap_err());
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
        assert!(wanted(Some(577), None, None).nodes().is_err());
        for generation in Generation::ALL {
            let most = u32::from(generation.description().cores);
            let interconnect = Interconnect::Tofu(generation);
            let of = |ranks, ppn| Wanted { interconnect, ..wanted(Some(ranks), None, ppn) };
            assert_eq!(lay(&unit(), of(12 * most, None)).unwrap().per_node(), most);
            assert!(of(12 * most, None).nodes().is_ok());
            assert!(of(12 * most + 1, None).nodes().is_err());
            let error = lay(&unit(), of(12 * most + 1, None)).unwrap_err().to_string();
            assert!(error.contains(&format!("at most {}", 12 * most)), "{error}");
            let error = lay(&unit(), of(1, Some(most + 1))).unwrap_err().to_string();
            let machine = generation.description().machine;
            let allowed = format!("a node has 1 to {most} ranks ({machine})");
            assert!(error.contains(&allowed), "{error}");
        }
        let fx10 = Interconnect::Tofu(Generation::Fx10);
        let of = |ppn| Wanted { interconnect: fx10, ..wanted(Some(ppn), None, Some(ppn)) };
        assert_eq!(lay(&unit(), of(16)).unwrap().per_node(), 16);
        let error = lay(&unit(), of(17)).unwrap_err().to_string();
        assert_eq!(error, "--ppn 17: a node has 1 to 16 ranks (PRIMEHPC FX10)");
        let of_tnw = Wanted { interconnect: Interconnect::Tnw, ..wanted(None, None, Some(2)) };
        let error = lay(&unit(), of_tnw).unwrap_err().to_string();
        assert!(error.contains("a node has 1 to 1 ranks (TNW)"), "{error}");
        assert_eq!(wanted(Some(100), None, None).nodes().unwrap().nodes(), 12);
        assert_eq!(wanted(Some(32), None, Some(1)).nodes().unwrap().nodes(), 32);
    }
}
