//! Machines whose nodes have the kernel driver `tofu.ko`, and its C tests in them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tofu_abi::Generation;
use tofu_c_tests::{have, run};

use crate::sdk::{Sdk, has_compiler};
use crate::{Image, PATIENCE, Place, Running, Said, skip, sorted};

/// C programs that need no library.
const PROGRAMS: [&str; 12] = [
    "ioctls",
    "users",
    "rights",
    "limits",
    "memory",
    "races",
    "grammar",
    "put",
    "barrier",
    "foreign",
    "contiguous",
    "reset",
];

/// Loads the driver, in a shell of a node.
pub const LOAD: &str = "{ modprobe tofu || insmod /lib/modules/*/kernel/tofu/tofu.ko; }";
/// Two neighbours along A, as the library's own tests have them.
pub const SHAPE: &str = "1x1x1x2x1x1";

/// Name of the image with the driver, and of its kernel. It takes minutes to make, so tests only
/// run where it has been made. `TOFU_DRIVER_IMAGE` names another one, such as one whose kernel
/// checks itself.
pub fn image() -> String {
    std::env::var("TOFU_DRIVER_IMAGE").unwrap_or_else(|_| "driver-cloud".into())
}

/// Words for the command line of a node's kernel that make it check its heap: freed memory is
/// poisoned and cleared, objects have red zones, and some of them have their own page.
/// Debian's kernel supports all of that.
pub const CHECKS: &str = "slab_debug=FZP init_on_free=1 kfence.sample_interval=10";

/// Goes to the folder of tracing, in a shell of a node.
pub const TRACING: &str =
    "cd /sys/kernel/tracing && { [ -e events ] || { mount -t tracefs trace . && cd .; }; }";

/// A place for a machine with that image; or `None`, after the reason was printed.
pub fn place() -> Option<Place> {
    if !have("gcc") {
        skip("there is no gcc");
        return None;
    }
    let place = Place::new(Image::Default)?;
    let images = place.run(&["image", "ls", "--json"]).json();
    let images = images.as_array().unwrap();
    if !images.iter().any(|found| found["name"] == image().as_str()) {
        let name = image();
        skip(&format!("no image {name}: `tofu image build --kernel {name}` makes it"));
        return None;
    }
    Some(place)
}

/// Compiles C tests of the driver (`guest-lib/kernel/tests`) and puts them into /tmp of nodes.
#[track_caller]
pub fn programs(place: &Place, names: &[&str], nodes: &[&str]) {
    programs_by(Path::new("gcc"), place, names, nodes);
}

fn programs_by(compiler: &Path, place: &Place, names: &[&str], nodes: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-lib/kernel/tests");
    for name in names {
        let path = place.file(name);
        run(Command::new(compiler)
            .args(["-static", "-pthread", "-Wall", "-Wextra", "-Werror", "-O2", "-o", &path])
            .arg(source.join(name).with_extension("c")));
        for node in nodes {
            place.run(&["cp", &path, &format!("{node}:/tmp")]).ok();
        }
    }
}

/// Runs a C test on a node: it succeeds, and prints how many things it has checked.
#[track_caller]
pub fn passes(place: &Place, node: &str, command: &[&str]) {
    passed(&place.run_for(&[&["exec", node, "--"], command].concat(), PATIENCE, b""));
}

/// A C test has succeeded, and printed how many things it has checked.
#[track_caller]
pub fn passed(said: &Said) {
    assert!(said.code == Some(0) && said.out.contains("\n1.."), "{said:?}");
    assert!(!said.out.contains("not ok"), "{said:?}");
}

/// The kernel has not complained; nor has it leaked memory, if it checks for that.
#[track_caller]
pub fn is_well(place: &Place, node: &str) {
    let log = place.exec(node, &["dmesg"]).ok();
    // The heap's own checks say "BUG kmalloc-64 (...)".
    let signs = [
        "BUG:",
        "] BUG ",
        "WARNING:",
        "Oops",
        "Call Trace",
        "INFO: task",
        "does not stop",
        "tofu: unknown parameter",
    ];
    for sign in signs.iter().chain(&["DMAR: [DMA", " fault from EP "]) {
        assert!(!log.contains(sign), "{sign}: {log}");
    }
    // A leak is reported once it is some seconds old.
    let script = "mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null; \
                  leaks=/sys/kernel/debug/kmemleak; [ -e $leaks ] || exit 0; \
                  echo scan >$leaks; sleep 6; echo scan >$leaks; cat $leaks";
    let leaks = place.exec(node, &["sh", "-c", script]).ok();
    assert!(!leaks.contains("tofu"), "{leaks}");
}

/// The kernel of a node that was started with [`CHECKS`] has recognised them.
#[track_caller]
pub fn checks_its_heap(place: &Place, node: &str) {
    let script = "cd /sys/kernel/slab/kmalloc-64 && cat poison red_zone";
    assert_eq!(place.exec(node, &["sh", "-c", script]).ok(), "1\n1\n");
}

/// Two nodes with the driver.
pub struct Nodes {
    /// The folder of their machine.
    pub place: Place,
    /// The SDK for compiling programs.
    pub sdk: Sdk,
    generation: Generation,
}

impl Nodes {
    /// A machine of two nodes of a generation with the driver, whose kernels check their heap, with
    /// the C programs in /tmp; or `None`, after the reason was printed.
    pub fn boot(generation: Generation) -> Option<Self> {
        if !has_compiler() {
            return None;
        }
        let place = place()?;
        let sdk = Sdk::new(&place);
        let options = ["--memory", "768MiB", "--shape", SHAPE, "--append", CHECKS];
        let of = ["--generation", generation.name(), "--image", &image()];
        place.up(&[&of, &options[..]].concat());
        programs(&place, &PROGRAMS, &["0", "1"]);
        Some(Self { place, sdk, generation })
    }

    /// A machine of two nodes with Fugaku's processor, whose image has the driver, and the C
    /// programs in /tmp.
    pub fn boot_arm64(place: Place, sdk: Sdk, (image, cpu): (&str, &str)) -> Self {
        let nodes = ["--shape", SHAPE, "--memory", "512MiB", "--arch", "arm64", "--cpu", cpu];
        place.up(&[&nodes[..], &["--driver", "tofu", "--image", image]].concat());
        programs_by(sdk.compiler(), &place, &PROGRAMS, &["0", "1"]);
        Self { place, sdk, generation: Generation::Fugaku }
    }

    /// The node's place in /proc/tofu, as words.
    #[track_caller]
    pub fn position(&self, node: &str) -> Vec<String> {
        let text = self.place.exec(node, &["cat", "/proc/tofu/position"]).ok();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Starts one of the C programs on a node.
    pub fn start(&self, node: &str, command: &[&str]) -> Running {
        let program = format!("/tmp/{}", command[0]);
        self.place.start(&[&["exec", node, "--", &program], &command[1..]].concat())
    }

    /// Runs a uTofu program as a job, and returns its lines in order.
    #[track_caller]
    pub fn job(&self, args: &[&str], time: Duration) -> Vec<String> {
        let command = self.sdk.command(&self.place, &[&["run"], args].concat());
        sorted(&Running::start(command, b"").end(time).ok())
    }

    /// A Put between two nodes without a library, of an odd length.
    #[track_caller]
    pub fn puts(&self) {
        let common = ["2", "1", "1000003", "7"];
        let mut receiver = self.start("1", &[&["put", "receive"], &common[..]].concat());
        assert_eq!(receiver.line(), "ready\n");
        let to = self.position("1");
        let to: Vec<_> = to.iter().map(String::as_str).collect();
        passed(&self.start("0", &[&["put", "send"], &common[..], &to].concat()).end(PATIENCE));
        let out = receiver.end(PATIENCE).ok();
        assert!(out.contains("ok 2 1000003 bytes as sent"), "{out}");
    }

    /// A program that uses the public API only, between two nodes and on one.
    #[track_caller]
    pub fn foreign_program(&self) {
        // The last two queues for users.
        let last = self.generation.description().user_cqs() - 1;
        let [sends, serves] = [last - 1, last].map(|cq| cq.to_string());
        for (server, bytes) in [("1", "3000001"), ("1", "100"), ("0", "70000")] {
            let mut serving = self.start(server, &["foreign", "serve", "2", &serves, bytes]);
            let line = serving.line();
            let address = line.trim().strip_prefix("ADDRESS ").expect(&line);
            let to = self.position(server);
            let to: Vec<_> = to.iter().map(String::as_str).collect();
            let command = [&["foreign", "send", "2", &sends, bytes], &to[..], &[address]].concat();
            assert_eq!(self.start("0", &command).end(PATIENCE).ok(), "ok\n");
            assert_eq!(serving.end(PATIENCE).ok(), format!("{line}ok\n"));
        }
    }

    /// Rounds of a barrier between two nodes, without a library.
    #[track_caller]
    pub fn barriers(&self) {
        let go = self.place.file("go");
        let members = [("0", "1"), ("1", "0")].map(|(me, other)| {
            let to = self.position(other);
            let to: Vec<_> = to.iter().map(String::as_str).collect();
            self.start(me, &[&["barrier", "meet", me, "200"], &to[..]].concat())
        });
        let members = members.map(|mut member| {
            assert_eq!(member.line(), "ready\n");
            member
        });
        // Both have their gates.
        std::fs::write(&go, "").unwrap();
        for node in ["0", "1"] {
            self.place.run(&["cp", &go, &format!("{node}:/tmp/go")]).ok();
        }
        members.into_iter().for_each(|member| passed(&member.end(PATIENCE)));
    }
}

/// The driver for learners, compiled as the manual says.
#[track_caller]
pub fn first_put(place: &Place) -> Vec<u8> {
    module(place, "../../guest-lib/kernel/samples/first_put")
}

/// A module, compiled for the nodes' kernel.
#[track_caller]
pub fn module(place: &Place, source: &str) -> Vec<u8> {
    let out = place.path().to_str().unwrap();
    let compile = ["image", "module", source, "--kernel", &image(), "--out", out];
    let module = place.run_for(&compile, PATIENCE, b"").ok();
    std::fs::read(module.trim()).unwrap()
}

/// The driver for learners takes the place of ours on a node for a while, and puts.
#[track_caller]
pub fn learners_driver(place: &Place, node: &str, module: &[u8]) {
    let path = place.file("first_put.ko");
    std::fs::write(&path, module).unwrap();
    place.run(&["cp", &path, &format!("{node}:/tmp")]).ok();
    let script = format!(
        "rmmod tofu && insmod /tmp/first_put.ko && dmesg | tail -n 2 && rmmod first_put && {LOAD}"
    );
    let said = place.run_for(&["exec", node, "--", "sh", "-c", &script], PATIENCE, b"").ok();
    assert!(said.contains("Put of 64 bytes: rcode 0, arrived"), "{said}");
}
