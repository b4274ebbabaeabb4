//! The specification of a machine.

use std::path::PathBuf;

use serde::Deserialize;
use tofu_abi::Coords;
use tofu_arch::Arch;
use tofu_control::MachineName;
use tofu_fabric::{Port, Shape};
use tofu_ui::{FieldLines, FileError, FileLine};

use crate::faults::FaultSpec;
use crate::guest::GuestName;
use crate::read::{at, coords, port, shape, text};
use crate::units::{
    ArmCpu, BootFault, BootFrom, Cpus, Doorbell, Driver, Engines, GuestArgs, ImageName,
    InstructionTime, Interconnect, IpNumber, LinkMode, MemorySize, MetricsAddress, Mtu, Net,
    Quantum, TapWhen, Time, Timeout, Until, Vmm,
};

/// A specification of a machine. `None` leaves a setting to a specification below this one
/// ([`MachineSpec::over`]), or else to the default.
///
/// The fields up to `link` are those of machine files, which the manual describes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    /// The lengths of its axes.
    #[serde(default, deserialize_with = "shape")]
    pub shape: Option<Shape>,
    /// Which axes close into rings.
    #[serde(default)]
    pub torus: Torus,
    /// True if nodes with Z = 0 are I/O nodes.
    pub io_nodes: Option<bool>,
    /// The kind of its devices.
    #[serde(default, deserialize_with = "text")]
    pub generation: Option<Interconnect>,
    /// The carrier of packets over links.
    pub links: Option<LinkMode>,
    /// The clock of the machine.
    pub time: Option<Time>,
    /// The least step of a guest in modelled time.
    pub quantum: Option<Quantum>,
    /// The modelled time of an instruction.
    pub ns_per_instruction: Option<InstructionTime>,
    /// The number that chooses when each guest begins in modelled time.
    pub seed: Option<u32>,
    /// The file into which the input of guests in modelled time is recorded.
    pub record: Option<PathBuf>,
    /// The record from which they have their input.
    pub replay: Option<PathBuf>,
    /// The point at which modelled time stops.
    pub until: Option<Until>,
    /// True if a node fails when its guest crashes or its virtual machine dies.
    pub fail_with_guest: Option<bool>,
    /// The guest program of each node.
    #[serde(default, deserialize_with = "text")]
    pub guest: Option<GuestName>,
    /// Guest memory.
    pub memory: Option<MemorySize>,
    /// The user's part of guests' command lines.
    pub args: Option<GuestArgs>,
    /// The way doorbells reach the devices.
    pub doorbell: Option<Doorbell>,
    /// The time after which guests that still run are stopped.
    pub timeout: Option<Timeout>,
    /// Engine threads.
    pub engines: Option<Engines>,
    /// The address at which metrics are served, if at all.
    pub metrics: Option<MetricsAddress>,
    /// True if guests are Linux.
    pub linux: Option<bool>,
    /// Virtual processors of Linux nodes.
    pub cpus: Option<Cpus>,
    /// Additions to the kernel command line of Linux nodes.
    pub append: Option<GuestArgs>,
    /// The image of Linux nodes.
    pub image: Option<ImageName>,
    /// The owner of the device in Linux nodes.
    pub driver: Option<Driver>,
    /// The architecture of Linux nodes.
    #[serde(default, deserialize_with = "text")]
    pub arch: Option<Arch>,
    /// The processor model of arm64 nodes.
    pub cpu: Option<ArmCpu>,
    /// The source of guests and kernels.
    pub boot: Option<BootFrom>,
    /// The node of the boot server.
    #[serde(default, deserialize_with = "coords")]
    pub boot_server: Option<Coords>,
    /// The machine's number in IP addresses.
    pub ip_number: Option<IpNumber>,
    /// The largest IP packet between nodes.
    pub mtu: Option<Mtu>,
    /// Faults on all links.
    pub faults: Option<FaultSpec>,
    /// Settings of single nodes.
    #[serde(default)]
    pub node: Vec<NodeSpec>,
    /// Settings of single links.
    #[serde(default)]
    pub link: Vec<LinkSpec>,

    /// The number of nodes that have guests, the first ones.
    #[serde(skip)]
    pub nodes: Option<u32>,
    /// The node that connects the machine to the host.
    #[serde(skip)]
    pub gateway: Option<GatewayAt>,
    /// True if the host has a network interface to the gateway.
    #[serde(skip)]
    pub tap: Option<TapWhen>,
    /// True if nodes reach the host's networks.
    #[serde(skip)]
    pub nat: Option<bool>,
    /// The time for which nodes wait for an answer of the boot server.
    #[serde(skip)]
    pub boot_patience: Option<Timeout>,
    /// Mistakes of the boot server.
    #[serde(skip)]
    pub boot_fault: Option<BootFault>,
    /// Captures into files, as `NODE=FILE`.
    #[serde(skip)]
    pub captures: Vec<String>,
    /// The monitor of Linux nodes.
    #[serde(skip)]
    pub vmm: Option<Vmm>,
    /// A kernel for Linux nodes instead of the image's.
    #[serde(skip)]
    pub kernel: Option<PathBuf>,
    /// An initrd for Linux nodes instead of the image's.
    #[serde(skip)]
    pub initrd: Option<PathBuf>,
    /// Ethernet between Linux nodes.
    #[serde(skip)]
    pub net: Option<Net>,
    /// The time within which a Linux node must be ready.
    #[serde(skip)]
    pub boot_timeout: Option<Timeout>,
    /// True if Linux nodes boot from their kernel, rather than as clones of one that has booted.
    #[serde(skip)]
    pub cold: Option<bool>,
    /// The machine's name.
    #[serde(skip)]
    pub name: Option<MachineName>,
    /// True if the machine's threads keep their rights on the host.
    #[serde(skip)]
    pub no_sandbox: Option<bool>,

    /// The lines of the fields that a machine file has set.
    #[serde(skip)]
    pub lines: Lines,
}

/// The lines of the fields that a machine file has set.
#[derive(Clone, Debug, Default)]
pub struct Lines(pub(crate) FieldLines);

/// The line at which a value was written is not compared.
impl PartialEq for Lines {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Which of the axes X, Y and Z close into rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are the axes")]
pub struct Torus {
    pub x: Option<bool>,
    pub y: Option<bool>,
    pub z: Option<bool>,
}

/// The place of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayAt {
    /// The first I/O node without a guest.
    IoNode,
    /// This node.
    Node(Coords),
}

/// A specification of a node's guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestSpec {
    /// The program.
    pub guest: Option<GuestName>,
    /// Its memory.
    pub memory: Option<MemorySize>,
    /// The user's part of its command line.
    pub args: Option<GuestArgs>,
    /// True if it is Linux.
    pub linux: Option<bool>,
    /// Virtual processors, with Linux.
    pub cpus: Option<Cpus>,
    /// Additions to the kernel command line, with Linux.
    pub append: Option<GuestArgs>,
    /// The source of the guest or kernel.
    pub boot: Option<BootFrom>,
    /// The architecture, with Linux.
    pub arch: Option<Arch>,
}

/// Makes a [`GuestSpec`] of the fields of the same names.
macro_rules! guest_spec {
    ($of:expr) => {
        GuestSpec {
            guest: $of.guest.clone(),
            memory: $of.memory,
            args: $of.args.clone(),
            linux: $of.linux,
            cpus: $of.cpus,
            append: $of.append.clone(),
            boot: $of.boot,
            arch: $of.arch,
        }
    };
}

/// A `[[node]]`: settings of the node at these coordinates.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// The node.
    #[serde(deserialize_with = "at")]
    pub at: Coords,
    #[serde(default, deserialize_with = "text")]
    pub(crate) guest: Option<GuestName>,
    pub(crate) memory: Option<MemorySize>,
    pub(crate) args: Option<GuestArgs>,
    pub(crate) linux: Option<bool>,
    pub(crate) cpus: Option<Cpus>,
    pub(crate) append: Option<GuestArgs>,
    pub(crate) boot: Option<BootFrom>,
    #[serde(default, deserialize_with = "text")]
    pub(crate) arch: Option<Arch>,
    /// True if it has no guest, but connects the machine to the host.
    #[serde(default)]
    pub gateway: bool,
    /// Accepted only to report that it belongs to the machine.
    pub(crate) generation: Option<String>,
    #[serde(skip)]
    pub(crate) lines: Lines,
}

impl NodeSpec {
    /// Returns the settings of its guest.
    pub(crate) fn guest(&self) -> GuestSpec {
        guest_spec!(self)
    }
}

/// A `[[link]]`: a link, whether it starts down, and its faults.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// The node at one of its ends.
    #[serde(deserialize_with = "at")]
    pub at: Coords,
    /// The port there.
    #[serde(deserialize_with = "port")]
    pub port: Port,
    /// True if it starts down.
    pub down: bool,
    /// Its own faults, instead of those on all links.
    pub faults: Option<FaultSpec>,
    #[serde(skip)]
    pub(crate) lines: Lines,
}

impl Lines {
    /// Returns the line of a field, if a file has set it.
    pub(crate) fn of(&self, field: &str) -> Option<FileLine> {
        self.0.get(field).cloned()
    }
}

/// Which commands a field is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// All that make a machine.
    Machine,
    /// Those that start guests.
    Guests,
    /// Those that start Linux guests.
    Linux,
}

/// A field that has a value.
pub(crate) struct Given {
    /// Its name.
    pub(crate) field: &'static str,
    /// Its use.
    pub(crate) of: Use,
}

/// Defines operations on all fields except lists: merging, and finding those with values.
macro_rules! fields {
    ($spec:ident { $($field:ident: $of:ident),* $(,)? } $({ $($list:ident),* })?) => {
        impl $spec {
            /// Returns this specification with what it leaves open from another one.
            pub(crate) fn merged(self, lower: Self) -> Self {
                Self {
                    $($field: self.$field.or(lower.$field),)*
                    $($($list: self.$list.merged(lower.$list),)*)?
                }
            }

            /// Returns the fields that have a value.
            pub(crate) fn given(&self) -> impl Iterator<Item = Given> {
                [$(self.$field.is_some().then_some(Given {
                    field: stringify!($field),
                    of: Use::$of,
                })),*].into_iter().flatten()
            }
        }
    };
}

/// Merging of what is not an `Option`.
trait Merge {
    fn merged(self, lower: Self) -> Self;
}

impl<T> Merge for Vec<T> {
    fn merged(mut self, mut lower: Self) -> Self {
        self.append(&mut lower);
        self
    }
}

impl Merge for Torus {
    fn merged(self, lower: Self) -> Self {
        Self { x: self.x.or(lower.x), y: self.y.or(lower.y), z: self.z.or(lower.z) }
    }
}

impl Merge for Lines {
    fn merged(mut self, mut lower: Self) -> Self {
        self.0.append(&mut lower.0);
        self
    }
}

fields! {
    GuestSpec {
        guest: Guests, memory: Guests, args: Guests, linux: Guests, cpus: Linux, append: Linux,
        boot: Guests, arch: Linux,
    }
}

fields! {
    MachineSpec {
        shape: Machine, io_nodes: Machine, generation: Machine, links: Machine,
        time: Machine, quantum: Machine, ns_per_instruction: Machine, seed: Machine,
        record: Linux, replay: Linux, until: Linux,
        fail_with_guest: Guests, guest: Guests, memory: Guests, args: Guests, doorbell: Machine,
        timeout: Guests, engines: Machine, metrics: Machine, linux: Guests, cpus: Linux,
        append: Linux, image: Linux, driver: Linux, arch: Linux, cpu: Linux, boot: Guests,
        boot_server: Guests, ip_number: Machine, mtu: Machine, faults: Machine, nodes: Guests,
        gateway: Guests, tap: Guests, nat: Guests, boot_patience: Guests, boot_fault: Guests,
        vmm: Guests, kernel: Linux, initrd: Linux, net: Linux, boot_timeout: Guests,
        cold: Linux, name: Machine, no_sandbox: Machine,
    } { torus, node, link, captures, lines }
}

impl MachineSpec {
    /// Returns this specification with what it leaves open from another one, such as that of a
    /// machine file below that of options.
    pub fn over(self, mut lower: Self) -> Self {
        for given in self.given() {
            lower.lines.0.remove(given.field);
        }
        self.merged(lower)
    }

    /// Returns the settings for guests of nodes without specific settings.
    pub(crate) fn guests(&self) -> GuestSpec {
        guest_spec!(self)
    }
}

impl NodeSpec {
    /// Refuses fields that exclude each other. `generation` is that of the machine.
    pub(crate) fn check(&self, generation: &str) -> Result<(), FileError> {
        let wrong = |field: &'static str, value: String, allowed: String| FileError::Value {
            place: self.lines.of(field).unwrap_or_default(),
            field: field.into(),
            value,
            allowed,
        };
        if let Some(own) = &self.generation {
            let allowed = format!(
                "for the machine as a whole, whose nodes are all of one (here {generation}); leave \
                 it out of [[node]]"
            );
            return Err(wrong("generation", format!("\"{own}\""), allowed));
        }
        match self.guest().given().next() {
            Some(given) if self.gateway => {
                let allowed =
                    format!("for a node without a guest; leave out {} there", given.field);
                Err(wrong("gateway", "true".into(), allowed))
            }
            _ => Ok(()),
        }
    }
}
