//! A job with its machine, as the launcher passes it to programs.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tofu_abi::Coords;
use tofu_abi::topology::{Axis, Shape};

use crate::{LogicalShape, LogicalShapeError, RankMap, System, SystemError};

/// The version of the format that this crate writes and reads.
const VERSION: u64 = 1;
/// The most processes on a node: one for each core of the node for which the interconnect was made.
/// Programs have arrays of that length.
const MAX_PER_NODE: u32 = 48;

/// The reason why a job or a text is rejected.
#[derive(Debug, thiserror::Error)]
pub enum MapinfoError {
    /// The text is not JSON, or a field is missing, unknown or of the wrong kind.
    #[error("not a mapinfo: {0}")]
    Json(#[from] serde_json::Error),
    /// The text is of another version of the format.
    #[error("mapinfo of version {0}; this library reads version {VERSION}")]
    Version(u64),
    /// The machine is invalid.
    #[error("mapinfo: {0}")]
    System(#[from] SystemError),
    /// The job's shape is invalid.
    #[error("mapinfo: {0}")]
    Shape(#[from] LogicalShapeError),
    /// Fields contradict each other or are out of range.
    #[error("{field} is {value}; it must be {allowed}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
}

fn field(field: &'static str, value: impl ToString, allowed: impl Into<String>) -> MapinfoError {
    MapinfoError::Field { field, value: value.to_string(), allowed: allowed.into() }
}

/// The processes of a job, and the nodes that they run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    shape: LogicalShape,
    closed: Vec<bool>,
    reference: Coords,
    extent: [u8; 6],
    per_node: u32,
    nodes: Vec<Coords>,
    /// Number of the node that each process runs on.
    ranks: Vec<u32>,
    /// Ranks on each node, in ascending order.
    on_node: Vec<Vec<u32>>,
    numbers: HashMap<Coords, u32>,
}

impl Job {
    /// Creates a job of `processes` processes on the nodes of a map, with `per_node` on each. The
    /// nodes are filled one after another in the order of [`LogicalShape::index`].
    ///
    /// # Errors
    /// [`MapinfoError::Field`] unless `per_node` is 1 to 48, and `processes` is 1 to `per_node`
    /// times the number of nodes.
    pub fn new(map: &RankMap, per_node: u32, processes: u32) -> Result<Self, MapinfoError> {
        check_counts(per_node, u64::from(processes), map.shape().nodes())?;
        let job = Self {
            shape: map.shape(),
            closed: map.axes().iter().map(|axis| axis.closed).collect(),
            reference: map.reference(),
            extent: map.extent(),
            per_node,
            nodes: map.nodes().to_vec(),
            ranks: (0..processes).map(|rank| rank / per_node).collect(),
            on_node: Vec::new(),
            numbers: HashMap::new(),
        };
        Ok(job.indexed())
    }

    /// Returns the job with other processes on its nodes, up to `per_node` on each: one for each
    /// element of `ranks`, which is the [`LogicalShape::index`] of its node.
    ///
    /// # Errors
    /// [`MapinfoError::Field`] as for [`Job::new`], and if a node is not there or has more
    /// processes.
    pub fn with_ranks(self, per_node: u32, ranks: Vec<u32>) -> Result<Self, MapinfoError> {
        check_counts(per_node, ranks.len() as u64, self.shape.nodes())?;
        check_ranks(&ranks, self.nodes.len())?;
        Self { per_node, ranks, ..self }.indexed().with_room()
    }

    /// Checks that no node has more processes than it may have.
    fn with_room(self) -> Result<Self, MapinfoError> {
        let most = self.per_node;
        match self.on_node.iter().find(|ranks| ranks.len() > most as usize) {
            Some(ranks) => {
                let allowed = format!("at most job.per_node, {most}");
                Err(field("the number of processes on a node", ranks.len(), allowed))
            }
            None => Ok(self),
        }
    }

    /// Fills the tables for lookups by node.
    fn indexed(mut self) -> Self {
        self.on_node = vec![Vec::new(); self.nodes.len()];
        for (rank, node) in (0..).zip(&self.ranks) {
            self.on_node[*node as usize].push(rank);
        }
        self.numbers = self.nodes.iter().copied().zip(0..).collect();
        self
    }

    /// Returns the torus that the job requested.
    pub const fn shape(&self) -> LogicalShape {
        self.shape
    }

    /// Returns which axes of the job are closed.
    pub fn closed(&self) -> &[bool] {
        &self.closed
    }

    /// Returns the lowest corner of the box of the machine that contains the job.
    pub const fn reference(&self) -> Coords {
        self.reference
    }

    /// Returns the lengths of that box.
    pub const fn extent(&self) -> [u8; 6] {
        self.extent
    }

    /// Returns the most processes that a node of the job may have.
    pub const fn per_node(&self) -> u32 {
        self.per_node
    }

    /// Returns the number of processes.
    pub fn processes(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// Returns the job's nodes, in the order of [`LogicalShape::index`].
    pub fn nodes(&self) -> &[Coords] {
        &self.nodes
    }

    /// Returns the node that a process runs on.
    pub fn coords(&self, rank: u32) -> Option<Coords> {
        self.ranks.get(rank as usize).map(|node| self.nodes[*node as usize])
    }

    /// Returns the logical coordinates of a process in the job's torus.
    pub fn logical(&self, rank: u32) -> Option<[u32; 3]> {
        self.ranks.get(rank as usize).and_then(|node| self.shape.coords(*node))
    }

    /// Returns the ranks on a node in ascending order; none on nodes of other jobs.
    pub fn ranks_at(&self, node: Coords) -> &[u32] {
        self.numbers.get(&node).map_or(&[], |number| &self.on_node[*number as usize])
    }

    /// Returns the ranks at a place of the job's torus in ascending order, or `None` outside of it.
    pub fn ranks_at_logical(&self, at: [u32; 3]) -> Option<&[u32]> {
        self.shape.index(at).map(|node| &*self.on_node[node as usize])
    }
}

fn check_counts(per_node: u32, processes: u64, nodes: u32) -> Result<(), MapinfoError> {
    if !(1..=MAX_PER_NODE).contains(&per_node) {
        let allowed = format!("1 to {MAX_PER_NODE}");
        return Err(field("the number of processes per node", per_node, allowed));
    }
    let most = u64::from(nodes) * u64::from(per_node);
    if !(1..=most).contains(&processes) {
        let allowed = format!("1 to {most} ({nodes} nodes, {per_node} on each)");
        return Err(field("the number of processes", processes, allowed));
    }
    Ok(())
}

fn check_ranks(ranks: &[u32], nodes: usize) -> Result<(), MapinfoError> {
    match ranks.iter().find(|node| **node as usize >= nodes) {
        Some(node) => {
            let allowed = format!("below {nodes}, the number of nodes");
            Err(field("a node's number in job.ranks", node, allowed))
        }
        None => Ok(()),
    }
}

/// A job and the machine that it runs on. Its text form is JSON, which the manual describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapinfo {
    /// The machine.
    pub system: System,
    /// The job.
    pub job: Job,
}

#[derive(Deserialize)]
struct RawVersion {
    tofu_mapinfo: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    tofu_mapinfo: u64,
    system: RawSystem,
    job: RawJob,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSystem {
    size: [u8; 6],
    torus: [bool; 6],
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failed: Vec<[u8; 6]>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    links_down: Vec<[[u8; 6]; 2]>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawJob {
    shape: Vec<u32>,
    closed: Vec<bool>,
    reference: [u8; 6],
    extent: [u8; 6],
    per_node: u32,
    processes: u64,
    nodes: Vec<[u8; 6]>,
    /// Number of each process's node. Left out if the nodes are filled one after another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ranks: Option<Vec<u32>>,
}

impl Mapinfo {
    /// Returns the text form.
    pub fn to_json(&self) -> String {
        let Self { system, job } = self;
        let packed = job.ranks.iter().zip(0u32..).all(|(node, rank)| *node == rank / job.per_node);
        let raw = Raw {
            tofu_mapinfo: VERSION,
            system: RawSystem {
                size: system.shape().lengths(),
                torus: system.wraps(),
                failed: system.failed().iter().map(|node| node.to_array()).collect(),
                links_down: system
                    .links_down()
                    .iter()
                    .map(|(from, to)| [from.to_array(), to.to_array()])
                    .collect(),
            },
            job: RawJob {
                shape: job.shape.lens().to_vec(),
                closed: job.closed.clone(),
                reference: job.reference.to_array(),
                extent: job.extent,
                per_node: job.per_node,
                processes: job.processes().into(),
                nodes: job.nodes.iter().map(|node| node.to_array()).collect(),
                ranks: (!packed).then(|| job.ranks.clone()),
            },
        };
        // It consists of numbers, lists and plain keys, so this cannot fail.
        serde_json::to_string(&raw).unwrap_or_default()
    }

    /// Reads the text form, and checks that its parts are consistent.
    ///
    /// # Errors
    /// [`MapinfoError`] with the field at fault.
    pub fn from_json(text: &str) -> Result<Self, MapinfoError> {
        let RawVersion { tofu_mapinfo } = serde_json::from_str(text)?;
        if tofu_mapinfo != VERSION {
            return Err(MapinfoError::Version(tofu_mapinfo));
        }
        let Raw { system: raw, job, .. } = serde_json::from_str(text)?;
        let [x, y, z, ..] = raw.torus;
        let shape = Shape::new(raw.size).map_err(SystemError::Shape)?;
        let system = System::new(shape.with_torus([x, y, z]));
        if system.wraps() != raw.torus {
            return Err(field(
                "system.torus",
                format!("{:?}", raw.torus),
                format!("{:?} for these sizes", system.wraps()),
            ));
        }
        let system = system
            .with_failed(raw.failed.into_iter().map(Coords::from_array))?
            .with_links_down(raw.links_down.into_iter().map(|ends| {
                let [from, to] = ends.map(Coords::from_array);
                (from, to)
            }))?;
        Ok(Self { job: job.check(&system)?, system })
    }
}

impl RawJob {
    fn check(self, system: &System) -> Result<Job, MapinfoError> {
        let shape = LogicalShape::new(&self.shape)?;
        if self.closed.len() != self.shape.len() {
            let allowed = format!("{}, one for each axis", self.shape.len());
            return Err(field("the number of values in job.closed", self.closed.len(), allowed));
        }
        if self.nodes.len() != shape.nodes() as usize {
            let allowed = format!("{}, the product of job.shape", shape.nodes());
            return Err(field("the number of job.nodes", self.nodes.len(), allowed));
        }
        check_counts(self.per_node, self.processes, shape.nodes())?;
        let reference = Coords::from_array(self.reference);
        if !system.shape().contains(reference) {
            return Err(field(
                "job.reference",
                reference,
                format!("a node of the machine {}", system.shape()),
            ));
        }
        if self.extent.iter().zip(system.shape().lengths()).any(|(n, len)| *n == 0 || *n > len) {
            let allowed = format!("a box within the machine {}", system.shape());
            return Err(field("job.extent", format!("{:?}", self.extent), allowed));
        }
        let nodes: Vec<_> = self.nodes.iter().copied().map(Coords::from_array).collect();
        self.check_nodes(system, &nodes)?;
        let ranks = match self.ranks {
            Some(ranks) if ranks.len() as u64 != self.processes => {
                let allowed = format!("{}, one for each process", self.processes);
                return Err(field("the number of job.ranks", ranks.len(), allowed));
            }
            Some(ranks) => ranks,
            None => (0..self.processes).map(|rank| rank as u32 / self.per_node).collect(),
        };
        check_ranks(&ranks, nodes.len())?;
        let Self { closed, extent, per_node, .. } = self;
        let (on_node, numbers) = (Vec::new(), HashMap::new());
        let job =
            Job { shape, closed, reference, extent, per_node, nodes, ranks, on_node, numbers };
        let job = job.indexed();
        if job.numbers.len() != job.nodes.len() {
            let allowed = "different nodes";
            return Err(field("job.nodes", "a list with a node twice", allowed));
        }
        job.with_room()
    }

    /// Checks that the nodes are within the job's box.
    fn check_nodes(&self, system: &System, nodes: &[Coords]) -> Result<(), MapinfoError> {
        for node in nodes {
            let shape = system.shape();
            let inside = |axis: Axis| {
                let (first, extent) = (self.reference[axis.index()], self.extent[axis.index()]);
                shape.steps_up(axis, first, node[axis]) < extent
            };
            let inside = shape.contains(*node) && Axis::ALL.into_iter().all(inside);
            if !inside {
                let allowed = "nodes within the box of job.reference and job.extent";
                return Err(field("a node of job.nodes", node, allowed));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn mapinfo(per_node: u32, processes: u32) -> Mapinfo {
        let system: System = "1x1x1x2x3x2".parse().unwrap();
        let map = RankMap::find(&system, "4x3".parse().unwrap(), true).unwrap();
        let job = Job::new(&map, per_node, processes).unwrap();
        Mapinfo { system, job }
    }

    #[test]
    fn processes_fill_node_after_node() {
        let Mapinfo { job, .. } = mapinfo(4, 46);
        assert_eq!((job.processes(), job.per_node()), (46, 4));
        assert_eq!(job.ranks_at_logical([1, 0, 0]), Some(&[4, 5, 6, 7][..]));
        assert_eq!(job.ranks_at_logical([3, 2, 0]), Some(&[44, 45][..]));
        assert_eq!(job.ranks_at_logical([0, 0, 1]), None);
        for rank in 0..46 {
            assert!(job.ranks_at(job.coords(rank).unwrap()).contains(&rank));
            assert!(job.ranks_at_logical(job.logical(rank).unwrap()).unwrap().contains(&rank));
        }
        assert_eq!((job.coords(46), job.logical(46)), (None, None));
        let outside = Coords::new(9, 0, 0, 0, 0, 0);
        assert!(job.ranks_at(outside).is_empty());
    }

    #[test]
    fn counts_are_checked() {
        let system: System = "1x1x1x2x3x2".parse().unwrap();
        let map = RankMap::find(&system, "12".parse().unwrap(), true).unwrap();
        for (per_node, processes) in [(0, 1), (49, 1), (1, 0), (1, 13), (4, 49)] {
            assert!(Job::new(&map, per_node, processes).is_err(), "{per_node} {processes}");
        }
        let error = Job::new(&map, 2, 30).unwrap_err().to_string();
        assert_eq!(
            error,
            "the number of processes is 30; it must be 1 to 24 (12 nodes, 2 on each)"
        );
    }

    #[test]
    fn text_form_round_trips() {
        let failed = Coords::new(0, 0, 0, 1, 1, 1);
        let link = (Coords::default(), Coords::new(0, 0, 0, 0, 2, 0));
        let system: System = "1x1x2x2x3x2".parse().unwrap();
        let system = system.with_failed([failed]).unwrap().with_links_down([link]).unwrap();
        let map = RankMap::find(&system, "4x5".parse().unwrap(), true).unwrap();
        let info = Mapinfo { job: Job::new(&map, 2, 39).unwrap(), system };
        assert_eq!(Mapinfo::from_json(&info.to_json()).unwrap(), info);
    }

    #[test]
    fn ranks_may_be_in_any_order() {
        let mut value: Value = serde_json::from_str(&mapinfo(2, 4).to_json()).unwrap();
        value["job"]["ranks"] = json!([5, 0, 5, 11]);
        let info = Mapinfo::from_json(&value.to_string()).unwrap();
        assert_eq!(info.job.ranks_at(info.job.nodes()[5]), [0, 2]);
        assert_eq!(Mapinfo::from_json(&info.to_json()).unwrap(), info);
    }

    #[test]
    fn processes_are_placed_one_by_one() {
        let system: System = "1x1x1x2x3x2".parse().unwrap();
        let map = RankMap::find(&system, "4".parse().unwrap(), false).unwrap();
        let packed = Job::new(&map, 1, 4).unwrap();
        let placed = |per_node, ranks: &[u32]| packed.clone().with_ranks(per_node, ranks.to_vec());
        let job = placed(2, &[0, 1, 2, 3, 0, 1]).unwrap();
        assert_eq!(job.ranks_at(job.nodes()[1]), [1, 5]);
        assert_eq!(job.logical(4), Some([0, 0, 0]));
        let info = Mapinfo { system, job };
        assert_eq!(Mapinfo::from_json(&info.to_json()).unwrap(), info);
        for (per_node, ranks, expected) in [
            (1, &[0, 0][..], "on a node is 2; it must be at most job.per_node, 1"),
            (1, &[4], "in job.ranks is 4; it must be below 4"),
            (1, &[], "the number of processes is 0"),
        ] {
            let error = placed(per_node, ranks).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn inconsistent_mapinfo_is_refused() {
        let good = mapinfo(1, 12).to_json();
        for text in ["", "{}", "null", "[1]", &good[1..], &good[..good.len() - 1]] {
            let error = Mapinfo::from_json(text).unwrap_err();
            assert!(matches!(error, MapinfoError::Json(_)), "{text}: {error}");
        }
        let broken = [
            ("/tofu_mapinfo", json!(2), "mapinfo of version 2; this library reads version 1"),
            ("/system/size", json!([1, 1, 1, 2, 4, 2]), "axis B has length 4, but may have 1 to 3"),
            ("/system/torus", json!([false, false, false, false, false, false]), "system.torus"),
            ("/system/failed", json!([[0, 0, 0, 0, 3, 0]]), "has no node"),
            ("/job/shape", json!([4, 3, 1, 1]), "\"4x3x1x1\" is no shape of a job"),
            ("/job/shape", json!([4, 4]), "the number of job.nodes is 12; it must be 16"),
            ("/job/closed", json!([true]), "the number of values in job.closed is 1"),
            ("/job/reference", json!([1, 0, 0, 0, 0, 0]), "job.reference is (1,0,0,0,0,0)"),
            ("/job/extent", json!([2, 1, 1, 2, 3, 2]), "job.extent"),
            ("/job/extent", json!([1, 1, 1, 2, 2, 2]), "a node of job.nodes"),
            ("/job/per_node", json!(0), "processes per node is 0; it must be 1 to 48"),
            ("/job/processes", json!(13), "the number of processes is 13"),
            ("/job/nodes/1", json!([0, 0, 0, 0, 0, 0]), "a node twice"),
            ("/job/nodes/1", json!([0, 0, 0, 2, 0, 0]), "a node of job.nodes"),
        ];
        for (place, wrong, expected) in broken {
            let mut value: Value = serde_json::from_str(&good).unwrap();
            *value.pointer_mut(place).unwrap_or(&mut Value::Null) = wrong.clone();
            if place == "/system/failed" {
                value["system"]["failed"] = wrong;
            }
            let error = Mapinfo::from_json(&value.to_string()).unwrap_err().to_string();
            assert!(error.contains(expected), "{place}: {error}");
        }
        for (ranks, expected) in [
            (json!([0, 1]), "the number of job.ranks is 2; it must be 12, one for each process"),
            (json!([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12]), "number in job.ranks is 12"),
            (json!([0, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]), "processes on a node is 2"),
        ] {
            let mut value: Value = serde_json::from_str(&good).unwrap();
            value["job"]["ranks"] = ranks;
            let error = Mapinfo::from_json(&value.to_string()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
