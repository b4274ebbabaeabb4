//! The values of `-L` and `--mpi`.

use serde::{Deserialize, Serialize};

/// The most nodes and the most processes of a job here.
pub(crate) const MOST: u32 = tofu_jobs::MOST_RANKS;
/// The cores of a node of Fugaku's, and the most ranks on one that have control queues here.
pub(crate) const CORES: u32 = 48;
/// The resource groups that there seem to be: any other name is as good.
pub(crate) const GROUPS: [&str; 2] = ["small", "large"];
/// The resource unit that a job has if it names none.
pub(crate) const UNIT: &str = "rscunit_ft01";
/// The most lengths of a job's torus.
const AXES: usize = 3;

/// Resources that are known, and have no meaning here.
const WITHOUT_MEANING: [&str; 26] = [
    "freq",
    "throttling_state",
    "issue_state",
    "ex_pipe_state",
    "eco_state",
    "retention_state",
    "node-mem",
    "node-quota",
    "core-mem",
    "vnode",
    "vnode-mem",
    "vnode-core",
    "proc-core",
    "proc-data",
    "proc-stack",
    "proc-crproc",
    "proc-filesize",
    "proc-openfd",
    "proc-psig",
    "proc-vmem",
    "proc-lockm",
    "proc-msgq",
    "jobenv",
    "gpu",
    "gpus",
    "gpu-share",
];
/// Resources that are honoured.
const HONOURED: [&str; 4] = ["node", "elapse", "rscgrp", "rscunit"];

/// The nodes that a job requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Nodes {
    /// One to three lengths.
    pub(crate) lens: Vec<u32>,
}

impl Nodes {
    pub(crate) fn count(&self) -> u32 {
        self.lens.iter().product()
    }

    /// As `pjstat` shows it.
    pub(crate) fn required(&self) -> String {
        match &*self.lens {
            [one] => one.to_string(),
            lens => format!("{}:{}", self.count(), joined(lens)),
        }
    }
}

/// Lengths as text.
pub(crate) fn joined(lens: &[u32]) -> String {
    let lens: Vec<_> = lens.iter().map(ToString::to_string).collect();
    lens.join("x")
}

/// A value of `-L`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Nodes(Nodes),
    /// In seconds; `None` has no limit.
    Elapse(Option<u64>),
    Group(String),
    Unit(String),
    /// Nodes of systems whose jobs have parts of nodes.
    VirtualNodes(u32),
    /// Processors of each of them, which only set a variable here.
    VirtualCores(u32),
    /// Known, but without a meaning here.
    Ignored(String),
}

/// A value of `--mpi`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mpi {
    Shape(Vec<u32>),
    Processes(u32),
    PerNode(u32),
    ByNode,
    ByChip,
    HostFile(String),
    Ignored(String),
}

/// Reads the value of `-L`: resources, separated by commas.
pub(crate) fn resources(text: &str) -> Result<Vec<Resource>, String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(resource).collect()
}

fn resource(item: &str) -> Result<Resource, String> {
    let (name, value) = item.split_once('=').unwrap_or((item, ""));
    let (name, value) = (name.trim(), value.trim());
    let bad = |allowed: &str| format!("{item}: must be {allowed}");
    Ok(match name {
        "node" => Resource::Nodes(nodes(value).map_err(|allowed| bad(&allowed))?),
        "elapse" => {
            let seconds = elapse(value).ok_or_else(|| bad(TIMES))?;
            Resource::Elapse(seconds)
        }
        "rscgrp" | "rg" if is_name(value) => Resource::Group(value.to_owned()),
        "rscunit" | "ru" if is_name(value) => Resource::Unit(value.to_owned()),
        "rscgrp" | "rg" | "rscunit" | "ru" => return Err(bad("a name")),
        "vnode" if value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() => {
            let number = value.parse().ok().filter(|number| (1..=MOST).contains(number));
            let allowed = format!("a whole number from 1 to {MOST}");
            Resource::VirtualNodes(number.ok_or_else(|| bad(&allowed))?)
        }
        "vnode-core" if value.parse::<u32>().is_ok() => {
            Resource::VirtualCores(value.parse().unwrap_or_default())
        }
        name if WITHOUT_MEANING.contains(&name) => Resource::Ignored(item.to_owned()),
        name => {
            let known = HONOURED.iter().chain(&WITHOUT_MEANING).copied();
            let hint = tofu_ui::did_you_mean(name, known);
            let allowed = HONOURED.join(", ");
            return Err(format!(
                "{item}: no such resource{hint}; there are {allowed}, and others \
                                that are ignored"
            ));
        }
    })
}

fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.len() <= 63 && text.chars().all(allowed)
}

/// One to three lengths, and words that select the nodes.
fn nodes(text: &str) -> Result<Nodes, String> {
    let allowed = || {
        "one to three lengths, such as 12, 4x3 or 2x3x2, and behind a colon torus, mesh, noncont, \
         strict or strict-io"
            .to_owned()
    };
    let mut parts = text.split(':');
    let lens = lengths(parts.next().unwrap_or_default()).ok_or_else(allowed)?;
    let known = ["torus", "mesh", "noncont", "strict", "strict-io"];
    if !parts.all(|part| known.contains(&part)) {
        return Err(allowed());
    }
    let count = lens.iter().try_fold(1u32, |count, len| count.checked_mul(*len));
    match count {
        Some(1..=MOST) => Ok(Nodes { lens }),
        _ => Err(format!("up to {MOST} nodes, which is the upper limit here")),
    }
}

/// One to three whole numbers from 1.
pub(crate) fn lengths(text: &str) -> Option<Vec<u32>> {
    let lens: Option<Vec<u32>> = text.split('x').map(number).collect();
    lens.filter(|lens| (1..=AXES).contains(&lens.len()))
}

fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|number| *number > 0)
}

const TIMES: &str = "a time such as 600 (seconds), 10:00 or 1:00:00, two of them with a - between \
                     them, or unlimited";

/// A time limit in seconds. Of a range it is the longest.
fn elapse(text: &str) -> Option<Option<u64>> {
    let last = match text.split_once('-') {
        Some((first, last)) => {
            time(first)?;
            last
        }
        None => text,
    };
    match last {
        "unlimited" => Some(None),
        // With a least time only, the job runs as long as it may.
        "" if text.ends_with('-') => Some(None),
        last => time(last).map(Some),
    }
}

fn time(text: &str) -> Option<u64> {
    let parts: Vec<&str> = text.split(':').collect();
    let fits = (1..=3).contains(&parts.len())
        && parts.iter().all(|part| {
            (1..=9).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
        });
    let seconds = fits.then(|| {
        parts.iter().fold(0u64, |sum, part| sum * 60 + part.parse::<u64>().unwrap_or_default())
    })?;
    (seconds > 0).then_some(seconds)
}

/// Reads the value of `--mpi`: parameters, separated by commas.
pub(crate) fn mpi(text: &str) -> Result<Vec<Mpi>, String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(parameter).collect()
}

fn parameter(item: &str) -> Result<Mpi, String> {
    let (name, value) = item.split_once('=').unwrap_or((item, ""));
    let bad = |allowed: &str| format!("{item}: must be {allowed}");
    let (bare, order) = name.split_once(':').unwrap_or((name, value));
    let order_is_known = order.is_empty()
        || order.len() <= AXES
            && order.chars().all(|c| "XYZ".contains(c) && order.matches(c).count() == 1);
    Ok(match bare {
        "shape" => Mpi::Shape(lengths(value).ok_or_else(|| bad("one to three lengths"))?),
        "proc" => match number(value) {
            Some(processes @ 1..=MOST) => Mpi::Processes(processes),
            Some(_) => return Err(format!("{item} is greater than the upper limit ({MOST})")),
            None => return Err(bad("a whole number from 1")),
        },
        "max-proc-per-node" => {
            let most = number(value).filter(|most| *most <= MOST);
            let allowed = format!("a whole number from 1 to {MOST}");
            Mpi::PerNode(most.ok_or_else(|| bad(&allowed))?)
        }
        "rank-map-bynode" | "rank-map-bychip" if !order_is_known => {
            return Err(bad("an order of axes, such as XY or ZYX"));
        }
        "rank-map-bynode" => Mpi::ByNode,
        "rank-map-bychip" => Mpi::ByChip,
        "rank-map-hostfile" if value.is_empty() => return Err(bad("the name of a file")),
        "rank-map-hostfile" => Mpi::HostFile(value.to_owned()),
        "assign-online-node" | "use-rankdir" | "static-proc" => Mpi::Ignored(item.to_owned()),
        _ => {
            let known = [
                "shape",
                "proc",
                "max-proc-per-node",
                "rank-map-bynode",
                "rank-map-bychip",
                "rank-map-hostfile",
                "assign-online-node",
            ];
            let hint = tofu_ui::did_you_mean(bare, known);
            return Err(format!("{item}: no such parameter{hint}; there are {}", known.join(", ")));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn resources_are_read() {
        let text = "freq=2200, node=2x3x2:torus,elapse=01:30:00 ,rscgrp=small-s2";
        let expected = [
            Resource::Ignored("freq=2200".to_owned()),
            Resource::Nodes(Nodes { lens: vec![2, 3, 2] }),
            Resource::Elapse(Some(5400)),
            Resource::Group("small-s2".to_owned()),
        ];
        assert_eq!(resources(text).unwrap(), expected);
        for (text, seconds) in [
            ("10:00", Some(600)),
            ("60:00", Some(3600)),
            ("0:01:00", Some(60)),
            ("90", Some(90)),
            ("10:00-30:00", Some(1800)),
            ("10:00-", None),
            ("10:00-unlimited", None),
            ("unlimited", None),
            ("120:00:00", Some(432_000)),
        ] {
            assert_eq!(elapse(text), Some(seconds), "{text}");
        }
        for text in ["", "0", "1h", ":", "1:2:3:4", "-", "1-2-3", "9999999999"] {
            assert_eq!(elapse(text), None, "{text}");
        }
        let nodes = |text: &str| resources(text).map_err(|error| error.to_string());
        assert!(matches!(nodes("node=12:noncont"), Ok(found) if found.len() == 1));
        assert!(matches!(nodes("node=4x3:mesh:strict-io"), Ok(found) if found.len() == 1));
    }

    #[test]
    fn wrong_resources_are_named() {
        for (text, expected) in [
            ("node=0", "node=0: must be one to three lengths"),
            ("node=2x2x2x2", "node=2x2x2x2: must be one to three lengths"),
            ("node=4:ring", "and behind a colon torus, mesh, noncont"),
            ("node=16384", "node=16384: must be up to 4608 nodes"),
            ("node=99999x99999", "node=99999x99999: must be up to 4608 nodes"),
            ("node", "node: must be one to three lengths"),
            ("elapse=soon", "elapse=soon: must be a time such as 600"),
            ("rscgrp=", "rscgrp=: must be a name"),
            ("nod=4", "nod=4: no such resource; did you mean node?; there are node, elapse"),
        ] {
            let error = resources(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn parameters_of_mpi_are_read() {
        let text = "shape=2x3,proc=12,max-proc-per-node=4,rank-map-bynode,rank-map-bychip:XYZ";
        let expected =
            [Mpi::Shape(vec![2, 3]), Mpi::Processes(12), Mpi::PerNode(4), Mpi::ByNode, Mpi::ByChip];
        assert_eq!(mpi(text).unwrap(), expected);
        assert_eq!(mpi("rank-map-bynode=YX").unwrap(), [Mpi::ByNode]);
        assert_eq!(mpi("rank-map-hostfile=a=b").unwrap(), [Mpi::HostFile("a=b".to_owned())]);
        for (text, expected) in [
            ("proc=9216", "proc=9216 is greater than the upper limit (4608)"),
            ("proc=", "proc=: must be a whole number from 1"),
            ("max-proc-per-node=0", "must be a whole number from 1 to 4608"),
            ("rank-map-bynode=XX", "must be an order of axes"),
            ("procs=4", "procs=4: no such parameter; did you mean proc?"),
        ] {
            let error = mpi(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_value_is_read(text in "(node|elapse|proc|shape|=|x|:|-|,|[0-9]|\\PC){0,20}") {
            for resource in resources(&text).into_iter().flatten() {
                if let Resource::Nodes(nodes) = resource {
                    prop_assert!((1..=MOST).contains(&nodes.count()));
                }
            }
            for parameter in mpi(&text).into_iter().flatten() {
                if let Mpi::Processes(processes) = parameter {
                    prop_assert!((1..=MOST).contains(&processes));
                }
            }
        }

        #[test]
        fn times_add_up(hours in 0u64..1000, minutes in 0u64..60, seconds in 1u64..60) {
            let text = format!("{hours}:{minutes:02}:{seconds:02}");
            prop_assert_eq!(elapse(&text), Some(Some(hours * 3600 + minutes * 60 + seconds)));
        }
    }
}
