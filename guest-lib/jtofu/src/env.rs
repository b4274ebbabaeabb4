//! The mapinfo that a process's environment describes.

use std::env;
use std::io;
use std::path::Path;

use tofu_abi::Coords;
use tofu_abi::topology::{Axis, Shape};

use crate::{
    Job, LogicalShape, LogicalShapeError, MapError, Mapinfo, MapinfoError, RankMap, System,
    SystemError,
};

/// Names of the variables.
pub mod vars {
    /// The mapinfo itself, as JSON.
    pub const MAPINFO: &str = "TOFU_MAPINFO";
    /// The path of a file with the mapinfo.
    pub const FILE: &str = "TOFU_MAPINFO_FILE";
    /// Shape of the job, such as `4x3`, for which a map is then made.
    pub const NODE: &str = "JTOFU_MAPINFO_NODE";
    /// Shape of the machine, such as `1x1x1x2x3x2`. By default, X, Y and Z are those of the job.
    pub const SYSTEM: &str = "JTOFU_MAPINFO_SYSTEM";
    /// Which of X, Y and Z are tori, such as `xz`, or `none`. Default: `xyz`.
    pub const TORUS: &str = "JTOFU_MAPINFO_TORUS";
    /// Nodes to avoid, such as `0,0,0,0,1,0;0,0,0,1,2,1`. Default: none.
    pub const EXCLUDE: &str = "JTOFU_MAPINFO_EXCLUDE";
    /// Processes on each node. Default: 1.
    pub const PER_NODE: &str = "JTOFU_MAPINFO_PPN";
    /// Total number of processes. Default: as many as fit.
    pub const PROCESSES: &str = "JTOFU_MAPINFO_PROC";
    /// The path of a file with [`dead_links`](crate::dead_links) of dead links, instead of this
    /// node's own.
    pub const LINKS: &str = "TOFU_LINKS";
}

/// The largest file that is accepted as a mapinfo, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// The reason why the environment describes no mapinfo.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// No variable is set.
    #[error("none of {}, {}, {} is set", vars::MAPINFO, vars::FILE, vars::NODE)]
    Missing,
    /// The file cannot be read.
    #[error("{}: cannot read {path}: {error}", vars::FILE)]
    File {
        /// The file.
        path: String,
        /// The problem, in words.
        error: io::Error,
    },
    /// The mapinfo itself is invalid.
    #[error("{name}: {error}")]
    Mapinfo {
        /// The variable.
        name: &'static str,
        /// The problem, in words.
        error: MapinfoError,
    },
    /// A shape is invalid.
    #[error("{name}: {error}")]
    Shape {
        /// The variable.
        name: &'static str,
        /// The problem, in words.
        error: LogicalShapeError,
    },
    /// The machine is invalid.
    #[error("{name}: {error}")]
    System {
        /// The variable.
        name: &'static str,
        /// The problem, in words.
        error: SystemError,
    },
    /// Another value is invalid.
    #[error("{name} is \"{value}\"; it must be {allowed}")]
    Value {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The job does not fit into the machine.
    #[error("{}: {error}", vars::NODE)]
    Map {
        /// The problem, in words.
        #[from]
        error: MapError,
    },
}

/// Returns the mapinfo that this process's environment describes.
///
/// # Errors
/// [`EnvError`] with the variable at fault.
pub fn from_env() -> Result<Mapinfo, EnvError> {
    // A value that is not text is as invalid as a wrong one.
    from_vars(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

/// Returns the mapinfo that the given environment describes.
///
/// # Errors
/// [`EnvError`] with the variable at fault.
pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Mapinfo, EnvError> {
    if let Some(text) = var(vars::MAPINFO) {
        let name = vars::MAPINFO;
        return Mapinfo::from_json(&text).map_err(|error| EnvError::Mapinfo { name, error });
    }
    if let Some(path) = var(vars::FILE) {
        let text = tofu_input::read_text(Path::new(&path), MAX_FILE)
            .map_err(|error| EnvError::File { path, error })?;
        let name = vars::FILE;
        return Mapinfo::from_json(&text).map_err(|error| EnvError::Mapinfo { name, error });
    }
    let Some(node) = var(vars::NODE) else { return Err(EnvError::Missing) };
    let shape: LogicalShape =
        node.parse().map_err(|error| EnvError::Shape { name: vars::NODE, error })?;
    let system = system(&var, shape)?;
    let map = RankMap::find(&system, shape, false)?;
    let per_node = number(&var, vars::PER_NODE)?.unwrap_or(1);
    let name = if var(vars::PROCESSES).is_some() { vars::PROCESSES } else { vars::PER_NODE };
    let all = shape.nodes().saturating_mul(per_node);
    let processes = number(&var, vars::PROCESSES)?.unwrap_or(all);
    let job =
        Job::new(&map, per_node, processes).map_err(|error| EnvError::Mapinfo { name, error })?;
    Ok(Mapinfo { system, job })
}

fn number(
    var: &impl Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<Option<u32>, EnvError> {
    let Some(value) = var(name) else { return Ok(None) };
    match value.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(EnvError::Value { name, value, allowed: "a number" }),
    }
}

fn system(var: &impl Fn(&str) -> Option<String>, shape: LogicalShape) -> Result<System, EnvError> {
    let wrong = |name, error| EnvError::System { name, error };
    let machine = match var(vars::SYSTEM) {
        Some(text) => text.parse().map_err(|error| (vars::SYSTEM, error)),
        None => {
            let [x, y, z] = shape.size().map(|n| u8::try_from(n).unwrap_or(u8::MAX));
            Shape::new([x, y, z, 1, 1, 1]).map_err(|error| (vars::NODE, error))
        }
    };
    let machine: Shape = machine.map_err(|(name, error)| wrong(name, error.into()))?;
    let axes = var(vars::TORUS).unwrap_or_else(|| "xyz".to_owned());
    let is_axis = |c: char| Axis::XYZ.iter().any(|axis| axis.letter() == c.to_ascii_uppercase());
    if axes != "none" && (axes.is_empty() || !axes.chars().all(is_axis)) {
        let allowed = "axes out of x, y and z, as in xz, or none";
        return Err(EnvError::Value { name: vars::TORUS, value: axes, allowed });
    }
    let system = System::new(machine.with_torus_letters(&axes));
    let Some(value) = var(vars::EXCLUDE).filter(|value| !value.is_empty()) else {
        return Ok(system);
    };
    let nodes: Option<Vec<Coords>> = value
        .split(';')
        .map(|node| Coords::from_decimals(node.split(',').map(str::trim)))
        .collect();
    let Some(nodes) = nodes else {
        let allowed = "nodes as six numbers each, as in 0,0,0,0,1,0;0,0,0,1,2,1";
        return Err(EnvError::Value { name: vars::EXCLUDE, value, allowed });
    };
    system.with_failed(nodes).map_err(|error| wrong(vars::EXCLUDE, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn with(values: &[(&'static str, &str)]) -> Result<Mapinfo, EnvError> {
        from_vars(|name| {
            values.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn shape_alone_is_a_machine() {
        let info = with(&[(vars::NODE, "2x3x2")]).unwrap();
        assert_eq!(info.system.shape().lengths(), [2, 3, 2, 1, 1, 1]);
        for (index, node) in (0..).zip(info.job.nodes()) {
            let [x, y, z] = info.job.shape().coords(index).unwrap().map(|n| n as u8);
            // A torus of length 3 may be traversed in either direction.
            assert_eq!(*node, Coords::new(x, y, z, 0, 0, 0));
        }
        assert_eq!(info.job.processes(), 12);
    }

    #[test]
    fn all_of_them_together() {
        let info = with(&[
            (vars::NODE, "4x2"),
            (vars::SYSTEM, "1x1x3x2x3x2"),
            (vars::TORUS, "none"),
            (vars::EXCLUDE, "0,0,0,0,0,0; 0,0,2,1,1,1"),
            (vars::PER_NODE, "4"),
            (vars::PROCESSES, "30"),
        ])
        .unwrap();
        assert_eq!(info.system.wraps(), [false, false, false, false, true, false]);
        assert_eq!(info.system.failed().len(), 2);
        assert!(info.job.nodes().iter().all(|node| !info.system.is_failed(*node)));
        assert_eq!((info.job.per_node(), info.job.processes()), (4, 30));
    }

    #[test]
    fn mapinfo_precedes_a_file() {
        let info = with(&[(vars::NODE, "3")]).unwrap();
        let text = info.to_json();
        assert_eq!(with(&[(vars::MAPINFO, &text), (vars::NODE, "2")]).unwrap(), info);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(with(&[(vars::FILE, path), (vars::NODE, "2")]).unwrap(), info);
    }

    #[test]
    fn errors_name_the_variable() {
        let cases: [(&[_], &str); 10] = [
            (&[], "none of TOFU_MAPINFO, TOFU_MAPINFO_FILE, JTOFU_MAPINFO_NODE is set"),
            (&[(vars::MAPINFO, "{")], "TOFU_MAPINFO: not a mapinfo"),
            (&[(vars::FILE, "/none")], "TOFU_MAPINFO_FILE: cannot read /none"),
            (&[(vars::NODE, "2y2")], "JTOFU_MAPINFO_NODE: \"2y2\" is no shape of a job"),
            (&[(vars::NODE, "33")], "JTOFU_MAPINFO_NODE: axis X has length 33"),
            (&[(vars::NODE, "2"), (vars::SYSTEM, "2x2")], "JTOFU_MAPINFO_SYSTEM: shape \"2x2\""),
            (&[(vars::NODE, "2"), (vars::TORUS, "a")], "JTOFU_MAPINFO_TORUS is \"a\""),
            (&[(vars::NODE, "2"), (vars::EXCLUDE, "1,0")], "JTOFU_MAPINFO_EXCLUDE is \"1,0\""),
            (&[(vars::NODE, "2"), (vars::PER_NODE, "x")], "JTOFU_MAPINFO_PPN is \"x\""),
            (
                &[(vars::NODE, "2"), (vars::PROCESSES, "3")],
                "JTOFU_MAPINFO_PROC: the number of processes is 3; it must be 1 to 2",
            ),
        ];
        for (values, expected) in cases {
            let error = with(values).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let values = [(vars::NODE, "5x3"), (vars::SYSTEM, "1x1x1x2x3x2")];
        let error = with(&values).unwrap_err().to_string();
        assert_eq!(
            error,
            "JTOFU_MAPINFO_NODE: a map of 5x3 needs 15 nodes, and the machine 1x1x1x2x3x2 has \
             12 in order; 4x3 would fit"
        );
    }
}
