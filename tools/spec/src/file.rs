//! The machine file: TOML, read into a [`MachineSpec`].

use std::path::Path;

use tofu_ui::{FieldLines, FileError, TomlFile};

use crate::spec::{Lines, MachineSpec};
use crate::units::Interconnect;

impl MachineSpec {
    /// Reads the machine file, or standard input, that is called `path`, from `copy`, which may be
    /// the same.
    ///
    /// # Errors
    ///
    /// One line on what is wrong, and where.
    pub fn read_as(path: &Path, copy: &Path) -> Result<Self, FileError> {
        Self::parse(path, &TomlFile::read(copy, "machine file")?)
    }

    /// Parses the text of a machine file. Relative paths of guests start at the folder of `path`.
    ///
    /// # Errors
    ///
    /// As [`MachineSpec::read_as`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let source = TomlFile::new(path, text);
        let mut spec: Self = source.parse()?;
        let (lines, rows) = source.lines(&["node", "link"]);
        spec.lines = Lines(lines);
        let [nodes, links] = <[Vec<FieldLines>; 2]>::try_from(rows).unwrap_or_default();
        for (node, lines) in spec.node.iter_mut().zip(nodes) {
            node.lines = Lines(lines);
        }
        for (link, lines) in spec.link.iter_mut().zip(links) {
            link.lines = Lines(lines);
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let guests = spec.node.iter_mut().map(|node| &mut node.guest);
        for guest in guests.chain([&mut spec.guest]).flatten() {
            guest.start_at(folder);
        }
        let of_shape = || spec.shape.as_ref().map(Interconnect::of_shape);
        let name = spec.generation.or_else(of_shape).unwrap_or_default().name();
        spec.node.iter().try_for_each(|node| node.check(name))?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tofu_abi::Coords;
    use tofu_arch::Arch;
    use tofu_fabric::Port;
    use tofu_machine::Generation;
    use tofu_ui::FileLine;

    use super::*;
    use crate::guest::GuestName;
    use crate::spec::Torus;
    use crate::units::{ArmCpu, BootFrom, Cpus, Doorbell, Driver, GuestArgs, LinkMode, MemorySize};

    fn parse(text: &str) -> Result<MachineSpec, FileError> {
        MachineSpec::parse(Path::new("m.toml"), text)
    }

    fn error(text: &str) -> String {
        let message = parse(text).expect_err(text).to_string();
        assert!(!message.contains('\n'), "more than one line: {message}");
        assert!(message.starts_with("m.toml:"), "{message}");
        message
    }

    #[test]
    fn misspelt_field_gets_a_suggestion() {
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
    fn gateway_has_no_guest() {
        let message =
            error("[[node]]\nat = [0, 0, 0, 0, 0, 0]\ngateway = true\nguest = \"hello\"\n");
        let expected = "m.toml:3: gateway = true is not allowed; gateway is for a node without a \
                        guest; leave out guest there";
        assert_eq!(message, expected);
        assert!(parse("[[node]]\nat = [0, 0, 0, 0, 0, 0]\ngateway = true\n").is_ok());
        assert!(
            parse("[[node]]\nat = [0, 0, 0, 0, 0, 0]\ngateway = false\nlinux = true\n").is_ok()
        );
    }

    /// A file that sets all fields.
    const EVERYTHING: &str = r#"
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
            "#;

    #[test]
    fn everything_at_once() {
        let file = parse(EVERYTHING).unwrap();
        assert_eq!(file.shape, "2x1x1x2x3x2".parse().ok());
        assert_eq!(file.torus, Torus { x: Some(false), y: None, z: Some(true) });
        assert_eq!(file.guest, Some(GuestName::Shipped("hello".into())));
        assert_eq!(file.memory, Some(MemorySize(32 << 20)));
        assert_eq!(file.args, Some(GuestArgs("rounds=4".into())));
        assert_eq!(file.generation, Some(Interconnect::Tofu(Generation::Fx100)));
        assert_eq!(file.links, Some(LinkMode::Modelled));
        assert_eq!(file.fail_with_guest, Some(true));
        assert_eq!(file.doorbell, Some(Doorbell::Polled));
        assert_eq!(file.timeout, "30s".parse().ok());
        assert_eq!(file.engines, "2".parse().ok());
        assert_eq!(file.metrics, "127.0.0.1:9400".parse().ok());
        assert_eq!(file.node[0].at, Coords::new(1, 0, 0, 0, 2, 1));
        assert_eq!(file.node[0].guest, Some(GuestName::File("own.elf".into())));
        assert_eq!(file.node[0].args, Some(GuestArgs(String::new())));
        let append = |text: &str| Some(GuestArgs(text.into()));
        let machine = &file;
        assert_eq!((machine.linux, machine.cpus), (Some(false), Some(Cpus(2))));
        assert_eq!(machine.append, append("quiet"));
        assert_eq!(file.image, "mpi".parse().ok());
        assert_eq!(file.driver, Some(Driver::Vfio));
        assert_eq!((machine.arch, file.cpu), (Some(Arch::Arm64), Some(ArmCpu::Max)));
        let node = &file.node[0];
        assert_eq!((node.linux, node.cpus), (Some(true), Some(Cpus(4))));
        assert_eq!(node.arch, Some(Arch::X86_64));
        assert_eq!(node.append, append("debug"));
        assert_eq!(file.faults.map(|faults| faults.to_string()).as_deref(), Some("loss=1%,seed=3"));
        assert_eq!(machine.boot, Some(BootFrom::Tofu));
        assert_eq!(file.boot_server, Some(Coords::new(1, 0, 0, 0, 0, 0)));
        assert_eq!(node.boot, Some(BootFrom::Monitor));
        let link = &file.link[0];
        assert_eq!(link.faults, "loss=100%".parse().ok());
        assert_eq!((link.at, link.port, link.down), (Coords::default(), Port::BPlus, true));
        assert_eq!(link.lines.of("port"), Some(FileLine { path: "m.toml".into(), line: 38 }));
    }

    #[test]
    fn empty_file_sets_nothing() {
        assert_eq!(parse("").unwrap(), MachineSpec::default());
    }

    #[test]
    fn guests_are_looked_for_beside_the_file() {
        let file = MachineSpec::parse(Path::new("some/m.toml"), "guest = \"./my.elf\"").unwrap();
        assert_eq!(file.guest, Some(GuestName::File("some/./my.elf".into())));
    }

    /// Files with a bad value, and a part of the message.
    const BAD: &[(&str, &str)] = &[
        ("shape = \"3x3\"", "m.toml:1: shape = \"3x3\" is not allowed; shape is \"unit\", "),
        ("shape = \"33x1x1x2x3x2\"", "shape = \"33x1x1x2x3x2\" is not allowed"),
        ("shape = \"1x1x1x3x3x2\"", "A, C 1 to 2"),
        ("\nmemory = \"16MB\"", "m.toml:2: memory = \"16MB\" is not allowed; memory is a whole"),
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
        ("arch = \"sparc\"", "arch = \"sparc\" is not allowed; arch is \"x86-64\" or \"arm64\""),
        ("cpu = \"a64\"", "cpu = \"a64\" is not allowed; cpu is \"a64fx\" or \"max\""),
        ("image = \"a/b\"", "image = \"a/b\" is not allowed; image is 1 to 64 letters"),
        ("faults = \"loss=2\"", "faults = \"loss=2\" is not allowed; faults is a list of loss"),
        ("append = \"a\\nb\"", "append = \"a\\nb\" is not allowed; append is at most 1024"),
        (
            "links = \"slow\"",
            "links = \"slow\" is not allowed; links is \"direct\" or \"modelled\"",
        ),
        ("generation = \"tofu2\"", "generation = \"tofu2\" is not allowed; generation is \"k\" or"),
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

    #[test]
    fn bad_values_are_named() {
        for (text, expected) in BAD {
            let message = error(text);
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn malformed_file_is_named() {
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
