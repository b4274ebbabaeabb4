//! The options of `tofu prove`.

use std::path::PathBuf;
use std::time::Duration;

use tofu_spec::units::Interconnect;

/// The options of `tofu prove`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Modules, folders with the source of one, or a program for VFIO; the shipped driver without
    /// any.
    pub drivers: Vec<PathBuf>,
    /// A folder with all that the source of a module needs, if that is more than its own folder.
    pub base: Option<PathBuf>,
    /// Parameters of the module, or arguments of the program.
    pub arguments: Vec<String>,
    /// Kernel of the nodes, which is also what a source folder is compiled for.
    pub kernel: String,
    /// The generation of the devices.
    pub generation: Option<Interconnect>,
    /// Only the scenes that find most.
    pub quick: bool,
    /// Times that the driver is loaded and unloaded.
    pub reloads: u32,
    /// Shell commands that both nodes run as traffic.
    pub traffic: Vec<String>,
    /// Faults of the devices to be played.
    pub faults: Vec<String>,
    /// Files that are copied to /tmp of both nodes.
    pub copy: Vec<PathBuf>,
    /// The longest time for a command on a node.
    pub patience: Duration,
    /// The longest time for all scenes of a driver together.
    pub limit: Duration,
    /// Print the report as JSON.
    pub json: bool,
    /// Also write it to this file, for JUnit.
    pub junit: Option<PathBuf>,
    /// Also write broken rules to this file, as SARIF.
    pub sarif: Option<PathBuf>,
}
