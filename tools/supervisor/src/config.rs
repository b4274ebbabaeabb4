//! The machine file.
//!
//! TOML, parsed into typed values before anything runs.

use std::collections::HashSet;
use std::fmt;
use std::ops::{Deref, Range};
use std::path::Path;
use std::str::FromStr;

use serde::Deserialize;
use tofu_abi::Coords;
use tofu_fabric::{Port, Shape};
use tofu_image::Arch;
use tofu_ui::{FileError, FileLine, TomlFile};
use toml::Spanned;

use crate::faults::FaultSpec;
use crate::guest::GuestName;
use crate::units::{
    ArmCpu, BootFrom, Cpus, Doorbell, Driver, Engines, GuestArgs, ImageName, Interconnect,
    IpNumber, LinkMode, MemorySize, MetricsAddress, Mtu, Timeout,
};

/// A machine file, checked as far as possible without knowing what the command line overrides.
/// Fields that were left out are `None` or empty.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MachineFile {
    pub(crate) shape: Option<Shape>,
    /// X, Y, Z: torus (true) or mesh.
    pub(crate) torus: [Option<bool>; 3],
    /// Whether nodes with Z = 0 are I/O nodes, with the line of the file that says so.
    pub(crate) io_nodes: Option<(FileLine, bool)>,
    /// The interconnect of the nodes: the field `generation`.
    pub interconnect: Option<Interconnect>,
    /// Whether a node fails with its guest.
    pub(crate) fail_with_guest: bool,
    /// The carrier of packets over links.
    pub link_mode: Option<LinkMode>,
    pub(crate) settings: Settings,
    /// The kind of doorbells.
    pub doorbell: Option<Doorbell>,
    pub(crate) timeout: Option<Timeout>,
    /// Engine threads.
    pub engines: Option<Engines>,
    /// Where metrics are served, if at all.
    pub metrics: Option<MetricsAddress>,
    pub(crate) image: Option<ImageName>,
    /// Which driver owns the device in Linux nodes.
    pub(crate) driver: Option<Driver>,
    /// The processor model of arm64 nodes.
    pub(crate) cpu: Option<ArmCpu>,
    /// Where the boot server is.
    pub(crate) boot_server: Option<Coords>,
    pub(crate) ip_number: Option<IpNumber>,
    pub(crate) mtu: Option<Mtu>,
    /// Faults on all links.
    pub(crate) faults: Option<FaultSpec>,
    pub(crate) nodes: Vec<NodeEntry>,
    pub(crate) links: Vec<LinkEntry>,
    /// The first field that is about guests, or how they are started.
    pub(crate) of_guests: Option<(FileLine, &'static str)>,
}

/// Settings for the machine or for a single node.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Settings {
    pub(crate) guest: Option<GuestName>,
    pub(crate) memory: Option<MemorySize>,
    pub(crate) args: Option<GuestArgs>,
    /// Whether the guest is Linux.
    pub(crate) linux: Option<bool>,
    /// Virtual processors of Linux nodes.
    pub(crate) cpus: Option<Cpus>,
    /// Additions to the kernel command line of Linux nodes.
    pub(crate) append: Option<GuestArgs>,
    /// The source of the guest or kernel.
    pub(crate) boot: Option<BootFrom>,
    /// The architecture of Linux nodes.
    pub(crate) arch: Option<Arch>,
}

/// A `[[node]]`: settings of the node at these coordinates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeEntry {
    pub(crate) place: FileLine,
    pub(crate) at: Coords,
    pub(crate) settings: Settings,
    /// Whether it has no guest, but connects the machine to the host.
    pub(crate) gateway: bool,
}

/// A `[[link]]`: a link, whether it starts down, and its faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkEntry {
    pub(crate) place: FileLine,
    pub(crate) at: Coords,
    pub(crate) port: Port,
    pub(crate) down: bool,
    /// Its own faults, instead of those on all links.
    pub(crate) faults: Option<FaultSpec>,
}

impl NodeEntry {
    /// Returns the error that this machine has no such node.
    pub(crate) fn outside(&self, shape: &Shape) -> FileError {
        not_in_machine(&self.place, self.at, shape)
    }

    /// Returns the error that there is already a gateway.
    pub(crate) fn second_gateway(&self) -> FileError {
        FileError::Value {
            place: self.place.clone(),
            field: "gateway",
            value: "true".into(),
            allowed: "for one node of a machine only".into(),
        }
    }

    /// Returns the error that an earlier entry already describes this node.
    pub(crate) fn repeated(&self) -> FileError {
        FileError::Value {
            place: self.place.clone(),
            field: "at",
            value: show_coords(self.at),
            allowed: "a node that no other [[node]] names".into(),
        }
    }
}

impl LinkEntry {
    /// Returns the error that an earlier entry already describes this link.
    pub(crate) fn repeated(&self) -> FileError {
        FileError::Value {
            place: self.place.clone(),
            field: "port",
            value: format!("\"{}\"", self.port),
            allowed: "a port whose link no other [[link]] names, from either end".into(),
        }
    }

    /// Returns the error that this machine has no such node, or no link at that port.
    pub(crate) fn outside(&self, shape: &Shape) -> FileError {
        if !shape.contains(self.at) {
            return not_in_machine(&self.place, self.at, shape);
        }
        let ports = shape.neighbors(self.at).map(|(port, _)| format!("\"{port}\""));
        let ports: Vec<String> = ports.collect();
        let allowed = match ports.as_slice() {
            [] => format!("a port with a link, and {} has none", show_coords(self.at)),
            ports => format!("one of {} at {}", ports.join(", "), show_coords(self.at)),
        };
        let value = format!("\"{}\"", self.port);
        FileError::Value { place: self.place.clone(), field: "port", value, allowed }
    }
}

fn not_in_machine(place: &FileLine, at: Coords, shape: &Shape) -> FileError {
    FileError::Value {
        place: place.clone(),
        field: "at",
        value: show_coords(at),
        allowed: format!("[x, y, z, a, b, c], each below its length in the shape {shape}"),
    }
}

fn show_coords(at: Coords) -> String {
    format!("{:?}", at.to_array())
}

/// A value that may be written as text or as a number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text such as \"30s\", or a number of seconds")]
enum TextOrNumber {
    Text(String),
    Number(i64),
}

impl fmt::Debug for TextOrNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    shape: Option<Spanned<String>>,
    torus: Option<RawTorus>,
    io_nodes: Option<Spanned<bool>>,
    generation: Option<Spanned<String>>,
    links: Option<Spanned<String>>,
    fail_with_guest: Option<Spanned<bool>>,
    guest: Option<Spanned<String>>,
    memory: Option<Spanned<String>>,
    args: Option<Spanned<String>>,
    doorbell: Option<Spanned<String>>,
    timeout: Option<Spanned<TextOrNumber>>,
    engines: Option<Spanned<i64>>,
    metrics: Option<Spanned<String>>,
    linux: Option<Spanned<bool>>,
    cpus: Option<Spanned<i64>>,
    append: Option<Spanned<String>>,
    image: Option<Spanned<String>>,
    driver: Option<Spanned<String>>,
    arch: Option<Spanned<String>>,
    cpu: Option<Spanned<String>>,
    boot: Option<Spanned<String>>,
    boot_server: Option<Spanned<Vec<i64>>>,
    ip_number: Option<Spanned<i64>>,
    mtu: Option<Spanned<i64>>,
    faults: Option<Spanned<String>>,
    #[serde(default)]
    node: Vec<RawNode>,
    #[serde(default)]
    link: Vec<RawLink>,
}

impl RawFile {
    /// Returns the first given field that is about guests or how they are started.
    fn of_guests(&self) -> Option<(Range<usize>, &'static str)> {
        fn at<T>(field: &Option<Spanned<T>>) -> Option<Range<usize>> {
            field.as_ref().map(Spanned::span)
        }
        let given = [
            (at(&self.fail_with_guest), "fail_with_guest"),
            (at(&self.guest), "guest"),
            (at(&self.memory), "memory"),
            (at(&self.args), "args"),
            (at(&self.timeout), "timeout"),
            (at(&self.linux), "linux"),
            (at(&self.cpus), "cpus"),
            (at(&self.append), "append"),
            (at(&self.image), "image"),
            (at(&self.driver), "driver"),
            (at(&self.arch), "arch"),
            (at(&self.cpu), "cpu"),
            (at(&self.boot), "boot"),
            (at(&self.boot_server), "boot_server"),
        ];
        let given = given.into_iter().find_map(|(at, field)| Some((at?, field)));
        let of_node = |node: &RawNode| {
            let field = node.of_a_guest().or(node.gateway.then_some("gateway"))?;
            Some((node.at.span(), field))
        };
        given.or_else(|| self.node.iter().find_map(of_node))
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTorus {
    x: Option<bool>,
    y: Option<bool>,
    z: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    at: Spanned<Vec<i64>>,
    guest: Option<Spanned<String>>,
    memory: Option<Spanned<String>>,
    args: Option<Spanned<String>>,
    linux: Option<bool>,
    cpus: Option<Spanned<i64>>,
    append: Option<Spanned<String>>,
    boot: Option<Spanned<String>>,
    arch: Option<Spanned<String>>,
    #[serde(default)]
    gateway: bool,
    /// Accepted only to report that it belongs to the machine.
    generation: Option<Spanned<toml::Value>>,
}

impl RawNode {
    /// Returns the name of a given field that describes a guest, if there is one.
    fn of_a_guest(&self) -> Option<&'static str> {
        let given = [
            ("guest", self.guest.is_some()),
            ("memory", self.memory.is_some()),
            ("args", self.args.is_some()),
            ("linux", self.linux.is_some()),
            ("cpus", self.cpus.is_some()),
            ("append", self.append.is_some()),
            ("boot", self.boot.is_some()),
            ("arch", self.arch.is_some()),
        ];
        given.iter().find(|(_, given)| *given).map(|(field, _)| *field)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    at: Spanned<Vec<i64>>,
    port: Spanned<String>,
    down: bool,
    faults: Option<Spanned<String>>,
}

impl MachineFile {
    /// Checks the nodes and links of the file against the shape of the machine.
    pub(crate) fn check(&self, shape: &Shape) -> Result<(), FileError> {
        let mut seen = HashSet::new();
        let mut gateway = false;
        for node in &self.nodes {
            if !shape.contains(node.at) {
                return Err(node.outside(shape));
            }
            if !seen.insert(node.at) {
                return Err(node.repeated());
            }
            if node.gateway && std::mem::replace(&mut gateway, true) {
                return Err(node.second_gateway());
            }
        }
        let mut seen = HashSet::new();
        for link in &self.links {
            let far = shape.neighbor(link.at, link.port).ok_or_else(|| link.outside(shape))?;
            let ends = [(link.at, link.port), (far, link.port.opposite())];
            if ends.iter().any(|end| seen.contains(end)) {
                return Err(link.repeated());
            }
            seen.extend(ends);
        }
        Ok(())
    }

    /// Parses and checks the text of a machine file. Relative paths of guests start at the folder
    /// of `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let source = Source(TomlFile::new(path, text));
        let raw: RawFile = source.parse()?;
        let torus = raw.torus.as_ref().map_or([None; 3], |torus| [torus.x, torus.y, torus.z]);
        let mut file = Self {
            shape: source
                .checked("shape", &raw.shape, |text| text.parse().or(Err(SHAPE_ALLOWED)))?,
            torus,
            io_nodes: raw.io_nodes.as_ref().map(|io| (source.place(io.span()), *io.get_ref())),
            interconnect: source.text("generation", &raw.generation)?,
            link_mode: source.text("links", &raw.links)?,
            fail_with_guest: raw.fail_with_guest.as_ref().is_some_and(|fail| *fail.get_ref()),
            settings: Settings {
                linux: raw.linux.as_ref().map(|linux| *linux.get_ref()),
                cpus: source.number("cpus", &raw.cpus)?,
                append: source.text("append", &raw.append)?,
                boot: source.text("boot", &raw.boot)?,
                arch: source.text("arch", &raw.arch)?,
                ..source.settings(&raw.guest, &raw.memory, &raw.args)?
            },
            doorbell: source.text("doorbell", &raw.doorbell)?,
            timeout: source.duration("timeout", &raw.timeout)?,
            engines: source.number("engines", &raw.engines)?,
            metrics: source.text("metrics", &raw.metrics)?,
            image: source.text("image", &raw.image)?,
            driver: source.text("driver", &raw.driver)?,
            cpu: source.text("cpu", &raw.cpu)?,
            boot_server: {
                let at = raw.boot_server.as_ref();
                at.map(|at| source.coords("boot_server", at)).transpose()?
            },
            ip_number: source.number("ip_number", &raw.ip_number)?,
            mtu: source.number("mtu", &raw.mtu)?,
            faults: source.text("faults", &raw.faults)?,
            nodes: Vec::with_capacity(raw.node.len()),
            links: Vec::with_capacity(raw.link.len()),
            of_guests: raw.of_guests().map(|(span, field)| (source.place(span), field)),
        };
        for node in &raw.node {
            if let Some(generation) = &node.generation {
                let of_shape = || file.shape.as_ref().map(Interconnect::of_shape);
                let name = file.interconnect.or_else(of_shape).unwrap_or_default().name();
                return Err(FileError::Value {
                    place: source.place(generation.span()),
                    field: "generation",
                    value: generation.get_ref().to_string(),
                    allowed: format!(
                        "for the machine as a whole, whose nodes are all of one (here {name}); \
                         leave it out of [[node]]"
                    ),
                });
            }
            if let (true, Some(field)) = (node.gateway, node.of_a_guest()) {
                return Err(FileError::Value {
                    place: source.place(node.at.span()),
                    field: "gateway",
                    value: "true".into(),
                    allowed: format!("for a node without a guest; leave out {field} there"),
                });
            }
            file.nodes.push(NodeEntry {
                place: source.place(node.at.span()),
                at: source.coords("at", &node.at)?,
                gateway: node.gateway,
                settings: Settings {
                    linux: node.linux,
                    cpus: source.number("cpus", &node.cpus)?,
                    append: source.text("append", &node.append)?,
                    boot: source.text("boot", &node.boot)?,
                    arch: source.text("arch", &node.arch)?,
                    ..source.settings(&node.guest, &node.memory, &node.args)?
                },
            });
        }
        for link in &raw.link {
            let port = Port::from_name(link.port.get_ref());
            file.links.push(LinkEntry {
                place: source.place(link.port.span()),
                at: source.coords("at", &link.at)?,
                port: port.ok_or_else(|| source.value_error("port", &link.port, PORT_ALLOWED))?,
                down: link.down,
                faults: source.text("faults", &link.faults)?,
            });
        }
        Ok(file)
    }
}

const SHAPE_ALLOWED: &str = "\"unit\", \"shelf\", \"half-rack\", \"rack\", \"k-racks\", \"k\", \
     six lengths XxYxZxAxBxC such as \"2x2x4x2x3x2\" (X, Y, Z 1 to 32; A, C 1 to 2; B 1 to 3) or \
     three, XxYxZ";
const COORDS_ALLOWED: &str = "[x, y, z, a, b, c], whole numbers from 0 to [31, 31, 31, 1, 2, 1]";
const PORT_ALLOWED: &str =
    "one of \"A\", \"C\", \"B-\", \"B+\", \"X-\", \"X+\", \"Y-\", \"Y+\", \"Z-\", \"Z+\"";

/// The text of a machine file.
struct Source<'a>(TomlFile<'a>);

impl<'a> Deref for Source<'a> {
    type Target = TomlFile<'a>;

    fn deref(&self) -> &TomlFile<'a> {
        &self.0
    }
}

/// Types whose parse error lists the allowed values.
trait Field: FromStr<Err = &'static str> {}
impl<T: FromStr<Err = &'static str>> Field for T {}

impl Source<'_> {
    fn text<T: Field>(
        &self,
        field: &'static str,
        value: &Option<Spanned<String>>,
    ) -> Result<Option<T>, FileError> {
        self.checked(field, value, |text| text.parse())
    }

    /// Reads a duration: text with a unit, or a number of seconds.
    fn duration(
        &self,
        field: &'static str,
        value: &Option<Spanned<TextOrNumber>>,
    ) -> Result<Option<Timeout>, FileError> {
        let Some(value) = value else { return Ok(None) };
        let parsed = match value.get_ref() {
            TextOrNumber::Text(text) => text.parse(),
            TextOrNumber::Number(seconds) => Timeout::try_from(*seconds),
        };
        parsed.map(Some).map_err(|allowed| self.value_error(field, value, allowed))
    }

    fn settings(
        &self,
        guest: &Option<Spanned<String>>,
        memory: &Option<Spanned<String>>,
        args: &Option<Spanned<String>>,
    ) -> Result<Settings, FileError> {
        let guest = match guest {
            None => None,
            Some(name) => {
                let folder = self.path.parent().unwrap_or(Path::new(""));
                let found = GuestName::find(name.get_ref(), folder);
                Some(found.ok_or_else(|| self.value_error("guest", name, GuestName::allowed()))?)
            }
        };
        let (memory, args) = (self.text("memory", memory)?, self.text("args", args)?);
        Ok(Settings { guest, memory, args, ..Settings::default() })
    }

    fn number<T: TryFrom<i64, Error = &'static str>>(
        &self,
        field: &'static str,
        value: &Option<Spanned<i64>>,
    ) -> Result<Option<T>, FileError> {
        self.checked(field, value, |number| T::try_from(*number))
    }

    fn coords(&self, field: &'static str, value: &Spanned<Vec<i64>>) -> Result<Coords, FileError> {
        let bytes = <[i64; 6]>::try_from(value.get_ref().as_slice()).ok();
        let bytes = bytes.map(|all| all.map(|c| u8::try_from(c).unwrap_or(u8::MAX)));
        let coords = bytes.map(Coords::from_array).filter(|at| Shape::LARGEST.contains(*at));
        coords.ok_or_else(|| self.value_error(field, value, COORDS_ALLOWED))
    }
}

#[cfg(test)]
mod tests {
    use tofu_machine::Generation;

    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<MachineFile, FileError> {
        MachineFile::parse(Path::new("m.toml"), text)
    }

    fn error(text: &str) -> String {
        let message = parse(text).expect_err(text).to_string();
        assert!(!message.contains('\n'), "more than one line: {message}");
        assert!(message.starts_with("m.toml:"), "{message}");
        message
    }

    #[test]
    fn a_misspelt_field_is_told_its_nearest() {
        let message = error("shpae = \"unit\"\n");
        let expected = "m.toml:1: shpae = \"unit\": did you mean shape? unknown field `shpae`, \
                        expected one of `shape`, `torus`";
        assert!(message.starts_with(expected), "{message}");
        let message = error("[[node]]\nat = [0, 0, 0, 0, 0, 0]\nlinus = true\n");
        assert!(message.contains("did you mean linux? unknown field `linus`"), "{message}");
        let message = error("colour = 1\n");
        assert!(message.contains("colour = 1: unknown field `colour`, expected"), "{message}");
    }

    #[test]
    fn a_gateway_has_no_guest() {
        let message =
            error("[[node]]\nat = [0, 0, 0, 0, 0, 0]\ngateway = true\nguest = \"hello\"\n");
        let expected = "m.toml:2: gateway = true is not allowed; gateway is for a node without a \
                        guest; leave out guest there";
        assert_eq!(message, expected);
        assert!(parse("[[node]]\nat = [0, 0, 0, 0, 0, 0]\ngateway = true\n").is_ok());
        assert!(
            parse("[[node]]\nat = [0, 0, 0, 0, 0, 0]\ngateway = false\nlinux = true\n").is_ok()
        );
    }

    #[test]
    fn everything_at_once() {
        let file = parse(
            r#"
            shape = "2x1x1x2x3x2"
            torus = { x = false, z = true }
            generation = "fx100"
            links = "modelled"
            fail_with_guest = true
            memory = "32MiB"
            guest = "hello"
            args = "rounds=4"
            doorbell = "polled"
            timeout = 30
            engines = 2
            metrics = "127.0.0.1:9400"
            linux = false
            cpus = 2
            append = "quiet"
            image = "mpi"
            driver = "vfio"
            arch = "arm64"
            cpu = "max"
            faults = "loss=1%,seed=3"
            boot = "tofu"
            boot_server = [1, 0, 0, 0, 0, 0]

            [[node]]
            at = [1, 0, 0, 0, 2, 1]
            guest = "own.elf"
            memory = "64MiB"
            args = ""
            linux = true
            cpus = 4
            append = "debug"
            boot = "monitor"
            arch = "x86-64"

            [[link]]
            at = [0, 0, 0, 0, 0, 0]
            port = "B+"
            down = true
            faults = "loss=100%"
            "#,
        )
        .unwrap();
        assert_eq!(file.shape, "2x1x1x2x3x2".parse().ok());
        assert_eq!(file.torus, [Some(false), None, Some(true)]);
        assert_eq!(file.settings.guest, Some(GuestName::Shipped("hello".into())));
        assert_eq!(file.settings.memory, Some(MemorySize(32 << 20)));
        assert_eq!(file.settings.args, Some(GuestArgs("rounds=4".into())));
        assert_eq!(file.interconnect, Some(Interconnect::Tofu(Generation::Fx100)));
        assert_eq!(file.link_mode, Some(LinkMode::Modelled));
        assert!(file.fail_with_guest);
        assert_eq!(file.doorbell, Some(Doorbell::Polled));
        assert_eq!(file.timeout, "30s".parse().ok());
        assert_eq!(file.engines, "2".parse().ok());
        assert_eq!(file.metrics, "127.0.0.1:9400".parse().ok());
        assert_eq!(file.nodes[0].at, Coords::new(1, 0, 0, 0, 2, 1));
        assert_eq!(file.nodes[0].settings.guest, Some(GuestName::File("own.elf".into())));
        assert_eq!(file.nodes[0].settings.args, Some(GuestArgs(String::new())));
        let append = |text: &str| Some(GuestArgs(text.into()));
        let machine = &file.settings;
        assert_eq!((machine.linux, machine.cpus), (Some(false), Some(Cpus(2))));
        assert_eq!(machine.append, append("quiet"));
        assert_eq!(file.image, "mpi".parse().ok());
        assert_eq!(file.driver, Some(Driver::Vfio));
        assert_eq!((machine.arch, file.cpu), (Some(Arch::Arm64), Some(ArmCpu::Max)));
        let node = &file.nodes[0].settings;
        assert_eq!((node.linux, node.cpus), (Some(true), Some(Cpus(4))));
        assert_eq!(node.arch, Some(Arch::X86_64));
        assert_eq!(node.append, append("debug"));
        assert_eq!(file.faults.map(|faults| faults.to_string()).as_deref(), Some("loss=1%,seed=3"));
        assert_eq!(machine.boot, Some(BootFrom::Tofu));
        assert_eq!(file.boot_server, Some(Coords::new(1, 0, 0, 0, 0, 0)));
        assert_eq!(node.boot, Some(BootFrom::Monitor));
        let link = &file.links[0];
        assert_eq!(link.faults, "loss=100%".parse().ok());
        assert_eq!((link.at, link.port, link.down), (Coords::default(), Port::BPlus, true));
        assert_eq!(link.place, FileLine { path: "m.toml".into(), line: 38 });
    }

    #[test]
    fn an_empty_file_sets_nothing() {
        assert_eq!(parse("").unwrap(), MachineFile::default());
    }

    #[test]
    fn guests_are_looked_for_beside_the_file() {
        let file = MachineFile::parse(Path::new("some/m.toml"), "guest = \"./my.elf\"").unwrap();
        assert_eq!(file.settings.guest, Some(GuestName::File("some/./my.elf".into())));
    }

    #[test]
    fn bad_values_are_named() {
        let cases = [
            ("shape = \"3x3\"", "m.toml:1: shape = \"3x3\" is not allowed; shape is \"unit\", "),
            ("shape = \"33x1x1x2x3x2\"", "shape = \"33x1x1x2x3x2\" is not allowed"),
            ("shape = \"1x1x1x3x3x2\"", "A, C 1 to 2"),
            (
                "\nmemory = \"16MB\"",
                "m.toml:2: memory = \"16MB\" is not allowed; memory is a whole",
            ),
            ("memory = \"1KiB\"", "from 2MiB"),
            ("guest = \"nope\"", "guest = \"nope\" is not allowed; guest is "),
            ("args = \"a\\nb\"", "args = \"a\\nb\" is not allowed; args is at most 1024"),
            ("doorbell = \"loud\"", "doorbell = \"loud\" is not allowed; doorbell is \"trapped\""),
            ("timeout = 0", "timeout = 0 is not allowed; timeout is a whole"),
            ("timeout = \"soon\"", "timeout = \"soon\" is not allowed; timeout is a whole"),
            ("engines = 0", "engines = 0 is not allowed; engines is a whole number of threads"),
            ("engines = -9223372036854775808", "engines = -9223372036854775808 is not"),
            (
                "metrics = \"9400\"",
                "metrics = \"9400\" is not allowed; metrics is an IP address and a port",
            ),
            ("boot = \"disk\"", "boot = \"disk\" is not allowed; boot is \"monitor\" or \"tofu\""),
            ("boot_server = [1]", "boot_server = [1] is not allowed; boot_server is [x, y, z"),
            ("cpus = 17", "cpus = 17 is not allowed; cpus is a whole number of processors"),
            ("driver = \"rxe\"", "driver = \"rxe\" is not allowed; driver is \"tofu\", \"vfio\""),
            (
                "arch = \"sparc\"",
                "arch = \"sparc\" is not allowed; arch is \"x86-64\" or \"arm64\"",
            ),
            ("cpu = \"a64\"", "cpu = \"a64\" is not allowed; cpu is \"a64fx\" or \"max\""),
            ("image = \"a/b\"", "image = \"a/b\" is not allowed; image is 1 to 64 letters"),
            ("faults = \"loss=2\"", "faults = \"loss=2\" is not allowed; faults is a list of loss"),
            ("append = \"a\\nb\"", "append = \"a\\nb\" is not allowed; append is at most 1024"),
            (
                "links = \"slow\"",
                "links = \"slow\" is not allowed; links is \"direct\" or \"modelled\"",
            ),
            (
                "generation = \"tofu2\"",
                "generation = \"tofu2\" is not allowed; generation is \"k\" or",
            ),
            (
                "generation = \"k\"\n[[node]]\nat = [0, 0, 0, 0, 0, 0]\ngeneration = \"fx100\"",
                "m.toml:4: generation = \"fx100\" is not allowed; generation is for the machine as \
                 a whole, whose nodes are all of one (here k)",
            ),
            (
                "[[node]]\nat = [0, 0, 0, 0, 0]",
                "m.toml:2: at = [0, 0, 0, 0, 0] is not allowed; at is [x",
            ),
            ("[[node]]\nat = [0, 0, 0, 0, 0, 32]", "whole numbers from 0 to [31, 31, 31, 1, 2, 1]"),
            ("[[node]]\nat = [0, 0, 0, 0, 0, -1]", "at = [0, 0, 0, 0, 0, -1]"),
            ("[[node]]\nat = [0, 0, 0, 0, 0, 0]\nmemory = \"x\"", "m.toml:3: memory = \"x\""),
            (
                "[[link]]\nat = [0, 0, 0, 0, 0, 0]\nport = \"D\"\ndown = true",
                "m.toml:3: port = \"D\" is not allowed; port is one of \"A\", \"C\", \"B-\"",
            ),
        ];
        for (text, expected) in cases {
            let message = error(text);
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn what_is_no_machine_file_is_named() {
        let cases = [
            (
                "shap = \"unit\"",
                "m.toml:1: shap = \"unit\": did you mean shape? unknown field `shap`",
            ),
            ("\n\nshape = 3", "m.toml:3: shape = 3: invalid type: integer `3`, expected a string"),
            ("memory = 16", "memory = 16: invalid type"),
            ("engines = \"2\"", "engines = \"2\": invalid type"),
            ("torus = true", "torus = true: invalid type"),
            ("linux = 1", "linux = 1: invalid type"),
            ("torus = { w = true }", "unknown field `w`, expected one of `x`, `y`, `z`"),
            ("torus = { x = 1 }", "torus = { x = 1 }: invalid type"),
            ("[[node]]\nguest = \"ring\"", "missing field `at`"),
            ("[[node]]\nat = 3", "at = 3: invalid type"),
            ("[[node]]\nat = [0,0,0,0,0,0]\ncolour = 1", "unknown field `colour`"),
            ("[[link]]\nat = [0,0,0,0,0,0]\nport = \"A\"", "missing field `down`"),
            ("[[link]]\nat = [0,0,0,0,0,0]\nport = \"A\"\ndown = 1", "down = 1: invalid type"),
            ("node = 3", "node = 3: invalid type"),
            ("shape = \"unit\"\nshape = \"unit\"", "m.toml:2: shape = \"unit\": duplicate key"),
            ("shape =", "m.toml:1: shape =: "),
            ("this is prose", "m.toml:1: this is prose: "),
            ("engines = 99999999999999999999", "engines = 99999999999999999999: "),
        ];
        for (text, expected) in cases {
            let message = error(text);
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn long_values_are_cut() {
        let message = error(&format!("shape = \"{}\"", "x".repeat(5000)));
        assert!(message.len() < 600, "{} bytes", message.len());
    }

    proptest! {
        /// Any text gives a machine or a one-line error.
        #[test]
        fn any_text_is_answered_in_one_line(
            lines in proptest::collection::vec(
                prop_oneof![
                    "\\PC{0,20}",
                    "(shape|memory|guest|at|port|down|engines|torus|args) = \
                     (\"\\PC{0,8}\"|-?[0-9]{1,20}|\\[[0-9, ]{0,8}\\])",
                    Just("[[node]]".to_owned()),
                    Just("[[link]]".to_owned()),
                ],
                0..6,
            )
        ) {
            if let Err(message) = parse(&lines.join("\n")) {
                prop_assert!(!message.to_string().contains('\n'));
            }
        }
    }
}
