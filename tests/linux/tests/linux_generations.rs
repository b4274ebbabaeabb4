//! Linux nodes of the generations before Fugaku: the device, with the kernel driver and by VFIO,
//! and programs, jobs and IP. All other tests use Fugaku's nodes.
//!
//! With TOFU_LONG in the environment, FX10 is tested, too, which differs from the K computer only
//! in the bus; and machines whose nodes are all of one kind.

use std::fs;

use serde_json::{Value, json};
use tofu_abi::Generation;
use tofu_abi::generation::Description;
use tofu_linux_tests::driver::{
    self, CHECKS, LOAD, Nodes, SHAPE, first_put, is_well, learners_driver, passes,
};
use tofu_linux_tests::net::long;
use tofu_linux_tests::sdk::{Sdk, has_compiler};
use tofu_linux_tests::{Image, MOMENT, PATIENCE, Place, Running, sorted, wait_for};

/// Node 0 has the driver, whose interface has as many queues as one of Fugaku may have. The kernel
/// of node 1 refuses the driver, so that `tofud` and `tofu-net` have the device.
const MIXED: &str = r#"
shape = "SHAPE"
generation = "GENERATION"
linux = true
memory = "512MiB"
[[node]]
at = [0, 0, 0, 0, 0, 0]
append = "tofu.queues=3 CHECKS"
[[node]]
at = [0, 0, 0, 1, 0, 0]
append = "module_blacklist=tofu"
"#;

fn earlier() -> impl Iterator<Item = Generation> {
    let all = Generation::ALL.into_iter().filter(|of| *of != Generation::Fugaku);
    all.filter(|of| *of != Generation::Fx10 || takes_long())
}

fn takes_long() -> bool {
    std::env::var_os("TOFU_LONG").is_some()
}

/// A machine, and the SDK that its jobs are compiled with.
struct Jobs<'a> {
    place: &'a Place,
    sdk: &'a Sdk,
    generation: Generation,
}

impl Jobs<'_> {
    fn description(&self) -> &'static Description {
        self.generation.description()
    }

    fn start(&self, args: &[&str]) -> Running {
        Running::start(self.sdk.command(self.place, &[&["run"], args].concat()), b"")
    }

    /// The lines of a job, in order.
    #[track_caller]
    fn run(&self, args: &[&str]) -> Vec<String> {
        sorted(&self.start(args).end(2 * PATIENCE).ok())
    }

    fn compile(&self, source: &str) {
        self.sdk.compile(source, &["-ltofucom", "-ltofutop", "-lpthread"]);
    }

    /// The capabilities of each node's interfaces, and the results of calls that they do not
    /// support. Both are the same as on a machine of the generation in a process of this host.
    fn interfaces(&self) {
        let source = "../../guest-lib/utofu/c/tests/generation.c";
        self.sdk.compile(source, &["-DONE_PROCESS", "-ltofucom"]);
        let mut here = self.sdk.here("./generation");
        here.env("TOFU_PROVIDER", "inproc").env("TOFU_GENERATION", self.generation.name());
        let expected = Running::start(here, b"").end(PATIENCE).ok();
        let of_both = |line| ["0: ", "1: "].map(|rank| format!("{rank}{line}"));
        let mut expected: Vec<_> = expected.lines().flat_map(of_both).collect();
        expected.sort_unstable();
        assert_eq!(self.run(&["-n", "2", "./generation"]), expected, "{}", self.generation);
    }

    /// Between both nodes.
    fn examples(&self) {
        let Description { tnis, atomics, .. } = self.description();
        let striping = format!("1: 12582912 bytes over {tnis} TNIs, 0 wrong");
        let told = format!("0: rank 0: {tnis} TNIs, {} completions", tnis * 16);
        let came = format!("1: rank 1: {0} of {0} numbers at the right VCQ", tnis * 16);
        for (name, expected) in [
            ("striping", &[striping.as_str()][..]),
            ("many_vcqs", &[&told, &came]),
            ("pingpong", &["0: 1000 rounds of 4096 bytes, first byte 208"]),
            ("piggyback", &["0: 128 of 128 letters as they were written"]),
            ("sizes", &["0: 22 sizes up to 16777215 bytes, 22 as they were sent"]),
        ] {
            self.compile(&format!("../../guest-lib/utofu/examples/c/{name}.c"));
            assert_eq!(self.run(&["-n", "2", &format!("./{name}")]), expected, "{name}");
        }
        self.compile("../../guest-lib/utofu/examples/c/counter.c");
        if *atomics {
            let expected = "0: counter 2000, each number drawn once: yes";
            assert_eq!(self.run(&["-n", "2", "./counter"]), [expected]);
        } else {
            let said = self.start(&["-n", "2", "--grace", "100ms", "./counter"]).end(PATIENCE);
            let refused = said.err.contains("utofu_armw8: UTOFU_ERR_NOT_SUPPORTED");
            assert!(said.code != Some(0) && refused, "{said:?}");
        }
    }

    /// Several ranks on each node, up to the most that have their own queues, and one more than a
    /// node has cores.
    fn ranks(&self) {
        self.compile("../../guest-lib/utofu/examples/run/ring.c");
        let line =
            |rank: usize| format!("{rank}: rank {rank} of 4: hello from rank {}", (rank + 3) % 4);
        assert_eq!(self.run(&["-n", "4", "./ring"]), (0..4).map(line).collect::<Vec<_>>());
        self.compile("programs/barriers.c");
        let groups = "4 ranks: 60 rounds right, gates ran out and came back";
        let expected: Vec<_> = (0..4).map(|rank| format!("{rank}: {groups}")).collect();
        assert_eq!(self.run(&["-n", "4", "./barriers", "groups"]), expected);

        let Description { processes, cores, tnis, cqs, .. } = *self.description();
        let most = u32::from(processes);
        self.compile("programs/ranks.c");
        // All of 32 emulate for long.
        if most <= 8 || takes_long() {
            let all = (2 * most).to_string();
            let lines = self.run(&["-n", &all, "--no-prefix", "./ranks", "queues"]);
            // Each queue belongs to one rank on each node, and none is the kernel's.
            let queues: Vec<(u8, u8)> = lines
                .iter()
                .flat_map(|line| line.split(' '))
                .map(|queue| queue.split_once('.').unwrap())
                .map(|(tni, cq)| (tni.parse().unwrap(), cq.parse().unwrap()))
                .collect();
            assert!(queues.iter().all(|(tni, cq)| *tni < tnis && *cq < cqs - 1), "{lines:?}");
            for queue in &queues {
                let same = queues.iter().filter(|other| *other == queue).count();
                assert_eq!(same, 2, "{queue:?}: {lines:?}");
            }
            assert_eq!(lines.len() as u32, 2 * most, "{lines:?}");
        }
        let most = u32::from(cores);
        let many = (2 * most + 1).to_string();
        let error = self.start(&["-n", &many, "true"]).end(MOMENT).error();
        assert!(error.contains(&format!("at most {}", 2 * most)), "{error}");
        let error = self.start(&["--ppn", &(most + 1).to_string(), "true"]).end(MOMENT).error();
        assert!(error.contains(&format!("a node has 1 to {most} ranks")), "{error}");
    }

    /// Uncounted processes of a node: as many as there are queues for them.
    fn uncounted(&self) {
        let most = usize::from(self.description().user_cqs()).min(4);
        self.compile("programs/processes.c");
        let many = most.to_string();
        let job = ["-n", "1", "--no-prefix", "./processes", "many", &many, "20"];
        let expected: Vec<_> = (0..most).map(|n| format!("process {n}: 20 rounds")).collect();
        assert_eq!(self.run(&job), expected);
    }
}

/// Node `to` soon answers over `tofu0`.
#[track_caller]
fn answers(place: &Place, from: &str, to: &str) {
    let ping = format!("ping -c 1 -W 2 n{to}");
    wait_for(&format!("node {to}"), MOMENT, || {
        place.exec(from, &["sh", "-c", &ping]).code == Some(0)
    });
    let long = format!("ping -c 2 -i 0.2 -w 10 -s 20000 n{to}");
    let said = place.exec(from, &["sh", "-c", &long]).ok();
    assert!(said.contains(" 0% packet loss"), "{said}");
}

/// The device in a node without the driver, according to the kernel and the tools.
#[track_caller]
fn device(place: &Place, node: &str, generation: Generation) {
    let Description { device_id, tnis, cqs, .. } = *generation.description();
    let shown = place.exec(node, &["tofu-guest", "show", "--json"]).json();
    assert_eq!(shown["generation"], generation.name());
    let interfaces = shown["tnis"].as_array().unwrap();
    assert_eq!(interfaces.len(), usize::from(tnis), "{shown}");
    let all: Vec<_> = (0..cqs).collect();
    assert!(interfaces.iter().all(|tni| tni["cqs"] == json!(all)), "{shown}");
    let path = format!("/sys/bus/pci/devices/{}", shown["device"].as_str().unwrap());
    let said = place.exec(node, &["sh", "-c", &format!("cd {path}; cat vendor device class")]);
    assert_eq!(said.ok(), format!("0x10cf\n{device_id:#x}\n0x028000\n"));
}

#[track_caller]
fn self_test(place: &Place, node: &str) {
    let result = place.exec(node, &["tofu-guest", "selftest", "--json"]).json();
    assert_eq!(result["ok"], true, "{result}");
}

/// Programs that use the device exclusively, on both nodes at the same time.
#[track_caller]
fn programs(place: &Place) {
    place.all_pairs(2, 2);
    for program in [&["ring", "laps=20"][..], &["barrier", "rounds=20"]] {
        let lines = place.exec_all(program);
        assert!(!lines.is_empty(), "{program:?}");
    }
}

/// The files, tables and queues of the driver.
fn the_driver(place: &Place, generation: Generation) {
    let description = generation.description();
    let shell = |line: &str| place.exec("0", &["sh", "-c", line]).ok();
    assert_eq!(shell("cat /proc/tofu/generation"), format!("{}\n", generation.name()));
    let Description { tnis, barrier, system_channels, .. } = *description;
    let (tnis, users) = (u32::from(tnis), u32::from(description.user_cqs()));
    let channels = u32::from(barrier.tnis) * u32::from(barrier.channels - system_channels);
    let count = shell("cd /proc/tofu/dev; ls -d tni*cq* | wc -l; ls -d tni*bch* | wc -l");
    assert_eq!(count, format!("{}\n{channels}\n", tnis * users));
    let kernel = description.kernel_cq();
    let queues = shell("cat /sys/kernel/debug/tofu/queues");
    assert!(queues.starts_with(&format!("tni0cq{kernel} owner kernel")), "{queues}");
    // Each queue of the interface has its own TNI, every other one.
    let second = format!("\ntni2cq{kernel} owner kernel");
    assert!(queues.contains(&second) && !queues.contains("tni4"), "{queues}");
    let log = shell("dmesg");
    assert!(log.contains("queues=3 is 1 to 2\n"), "{log}");
    for test in ["ioctls", "users", "memory", "barrier"] {
        passes(place, "0", &[&format!("/tmp/{test}")]);
    }
    passes(place, "0", &["/tmp/races", "3"]);
}

#[test]
fn nodes_with_and_without_the_driver() {
    if !has_compiler() {
        return;
    }
    let mut module = None;
    for generation in earlier() {
        let Some(place) = driver::place() else { return };
        let sdk = Sdk::new(&place);
        let text = MIXED.replace("SHAPE", SHAPE).replace("GENERATION", generation.name());
        let file = place.file("mixed.toml");
        fs::write(&file, text.replace("CHECKS", CHECKS)).unwrap();
        place.up(&["-c", &file, "--image", &driver::image()]);
        assert_eq!(place.generation(), generation);
        let tests = ["ioctls", "users", "memory", "barrier", "races"];
        driver::programs(&place, &tests, &["0"]);

        device(&place, "1", generation);
        the_driver(&place, generation);
        answers(&place, "0", "1");
        answers(&place, "1", "0");
        let jobs = Jobs { place: &place, sdk: &sdk, generation };
        jobs.interfaces();
        jobs.examples();
        jobs.ranks();
        jobs.uncounted();
        // The driver lends the device, and gets it back.
        programs(&place);
        self_test(&place, "0");
        self_test(&place, "1");
        // Also to one program right after another, while the driver is about to get it back.
        let script = "for i in 1 2 3; do tofu-guest selftest >/dev/null || exit 1; done";
        place.exec("0", &["sh", "-c", script]).ok();
        wait_for("the driver", MOMENT, || {
            place.exec("0", &["test", "-e", "/proc/tofu"]).code == Some(0)
        });
        // It goes and comes.
        let script = format!("for i in 1 2 3; do rmmod tofu && {LOAD} || exit 1; done");
        place.exec("0", &["sh", "-c", &script]).ok();
        let module = module.get_or_insert_with(|| first_put(&place));
        learners_driver(&place, "0", module);
        answers(&place, "0", "1");
        is_well(&place, "0");
        place.run(&["down"]).ok();
        place.is_clean();
    }
}

/// Programs of `tofu run --local`'s tests, which are for FX10 with more ranks than queues.
fn compile_for_halves(sdk: &Sdk) {
    for program in ["all_cores", "halves", "sleepers"] {
        let source = format!("../../tools/tofu/tests/cli/programs/{program}.c");
        let job = "-I../../guest-lib/utofu/examples/run";
        sdk.compile(&source, &[job, "-ltofucom", "-ltofutop", "-lpthread"]);
    }
}

/// Two nodes of FX10 with more ranks than control queues.
fn shares_queues(jobs: &Jobs<'_>) {
    let all_pairs = |ranks: u32| {
        let mut lines: Vec<_> = (0..ranks).map(|rank| format!("{rank}: all pairs")).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(jobs.run(&["-n", "32", "--ppn", "16", "./all_cores"]), all_pairs(32));
    // They come late, the first ranks of queues as well as the second ones.
    assert_eq!(jobs.run(&["-n", "18", "--ppn", "9", "./all_cores", "late"]), all_pairs(18));
    // Root's ranks are like those of other users there.
    assert_eq!(jobs.run(&["-n", "18", "--ppn", "9", "--root", "./all_cores"]), all_pairs(18));
    // Rank 9 shares the queue of rank 1, which is killed.
    let args = ["-n", "16", "--ppn", "16", "--grace", "60s", "./all_cores", "without"];
    let said = jobs.start(&args).end(2 * PATIENCE);
    let right = said.out.lines().filter(|line| line.ends_with(": all pairs")).count();
    assert_eq!((said.code, right), (Some(137), 15), "{said:?}");
    // Rank 8 is killed while it posts to the queue that it shares with rank 0.
    let args = ["-n", "9", "--ppn", "9", "--grace", "60s", "./halves"];
    let said = jobs.start(&args).end(2 * PATIENCE);
    assert_eq!(said.code, Some(137), "{said:?}");
    let expected = "0: 7 of 9 have a channel\n0: 1000 rounds without rank 8\n";
    assert_eq!(said.out, expected, "{said:?}");
    // Both ranks of a queue sleep until they are woken.
    assert_eq!(jobs.run(&["-n", "9", "--ppn", "9", "./sleepers"]), ["0: ok", "8: ok"]);
}

#[test]
fn ranks_share_control_queues() {
    if !has_compiler() {
        return;
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let sdk = Sdk::new(&place);
    compile_for_halves(&sdk);
    let of = ["--generation", "fx10", "--shape", SHAPE, "--memory", "512MiB"];
    place.up(&[&of[..], &["--driver", "vfio"]].concat());
    shares_queues(&Jobs { place: &place, sdk: &sdk, generation: Generation::Fx10 });
    for node in ["0", "1"] {
        self_test(&place, node);
    }
    place.run(&["down"]).ok();
    place.is_clean();
}

/// `tofud` borrows the device of node 0 from the kernel's driver, which gets it back.
#[test]
fn driver_lends_what_ranks_share() {
    if !has_compiler() {
        return;
    }
    let Some(place) = driver::place() else { return };
    let sdk = Sdk::new(&place);
    compile_for_halves(&sdk);
    let text = MIXED.replace("SHAPE", SHAPE).replace("GENERATION", "fx10");
    let file = place.file("mixed.toml");
    fs::write(&file, text.replace("CHECKS", CHECKS)).unwrap();
    place.up(&["-c", &file, "--image", &driver::image()]);
    shares_queues(&Jobs { place: &place, sdk: &sdk, generation: Generation::Fx10 });
    wait_for("the driver", MOMENT, || {
        place.exec("0", &["test", "-e", "/proc/tofu"]).code == Some(0)
    });
    answers(&place, "1", "0");
    is_well(&place, "0");
    place.run(&["down"]).ok();
    place.is_clean();
}

#[test]
fn machines_whose_nodes_are_all_of_one_kind() {
    if !long() || !has_compiler() {
        return;
    }
    for generation in earlier() {
        let Some(nodes) = Nodes::boot(generation) else { return };
        for node in ["0", "1"] {
            for test in ["ioctls", "users", "memory", "barrier"] {
                passes(&nodes.place, node, &[&format!("/tmp/{test}")]);
            }
        }
        passes(&nodes.place, "1", &["/tmp/races", "10"]);
        nodes.puts();
        nodes.barriers();
        nodes.foreign_program();
        on_all(&nodes.place, &nodes.sdk, generation);
        answers(&nodes.place, "0", "1");
        for node in ["0", "1"] {
            is_well(&nodes.place, node);
        }
        nodes.place.run(&["down"]).ok();
        nodes.place.is_clean();
        drop(nodes);

        let Some(place) = Place::new(Image::Default) else { return };
        let sdk = Sdk::new(&place);
        let of = ["--generation", generation.name(), "--shape", SHAPE, "--memory", "512MiB"];
        place.up(&[&of[..], &["--driver", "vfio"]].concat());
        device(&place, "0", generation);
        on_all(&place, &sdk, generation);
        for node in ["0", "1"] {
            self_test(&place, node);
        }
        place.run(&["down"]).ok();
        place.is_clean();
    }
}

fn on_all(place: &Place, sdk: &Sdk, generation: Generation) {
    let jobs = Jobs { place, sdk, generation };
    jobs.interfaces();
    jobs.examples();
    jobs.ranks();
    jobs.uncounted();
    programs(place);
    answers(place, "0", "1");
}

/// A machine that exists for one run has the requested generation, with MPI, too.
#[test]
fn run_makes_a_machine_per_generation() {
    if !long() || !has_compiler() {
        return;
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let sdk = Sdk::new(&place);
    sdk.compile("../../guest-lib/utofu/examples/c/striping.c", &["-ltofucom", "-ltofutop"]);
    let mpi = sdk.add_mpi(&place);
    if mpi {
        sdk.compile_mpi("../../guest-lib/utofu/examples/run/mpi_put.c", &["-ltofucom"]);
    }
    for generation in earlier() {
        let run = |args: &[&str]| {
            let own = ["run", "--generation", generation.name()];
            let command = sdk.command(&place, &[&own, args].concat());
            Running::start(command, b"").end(2 * PATIENCE).ok()
        };
        let tnis = generation.description().tnis;
        let out = run(&["-n", "2", "./striping"]);
        assert_eq!(out, format!("1: 12582912 bytes over {tnis} TNIs, 0 wrong\n"));
        if mpi {
            let out = run(&["--mpi", "-n", "2", "./mpi_put"]);
            assert_eq!(out, "0: 2 ranks have put 4 numbers, 0 wrong\n");
        }
        assert_eq!(place.ps(), Value::Array(Vec::new()));
        place.is_clean();
    }
}
