//! Linux nodes with Fugaku's processor: the device, the shipped programs, IP, programs that were
//! compiled with the SDK, and refused options. With `TOFU_LONG` in the environment also Debian's
//! packages for them, MPI, the kernel driver with pages of each size, the tests of the uTofu
//! library, and twelve nodes.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use tofu_c_tests::have;
use tofu_linux_tests::driver::{Nodes, is_well, passes};
use tofu_linux_tests::net::{fetch, forward};
use tofu_linux_tests::sdk::{BUILD, Sdk};
use tofu_linux_tests::{Image, MOMENT, PATIENCE, Place, Running, Said, skip, wait_for};

#[test]
fn nodes_with_fugakus_processor() {
    let Some(place) = Place::new(Image::Default) else { return };
    if !has_rustup() {
        return;
    }
    let built = here(&place, &["image", "build", "--arch", "arm64"]).ok();
    assert!(built.starts_with("image arm64 for arm64: kernel "), "{built}");
    place.up(&["--arch", "arm64", "--shape", "2x1x1x1x1x1", "--image", "arm64"]);
    let info = place.exec("0", &["cat", "/proc/cpuinfo"]).ok();
    assert!(info.contains("0x46") && info.contains(" sve"), "Fujitsu's, with SVE: {info}");
    place.exec_all(&["uname", "-m"]).iter().for_each(|line| assert!(line.ends_with("aarch64")));
    let said = place.exec("1", &["tofu-guest", "selftest"]).ok();
    assert!(said.contains(" works: "), "{said}");
    place.all_pairs(2, 2);
    reach_each_other(&place, "t-1-0-0");
    compiled_programs(&place);
    // Programs for the host are none for such nodes.
    let host = std::env::current_exe().unwrap();
    place.run(&["cp", host.to_str().unwrap(), "0:/tmp/host"]).ok();
    let said = place.exec("0", &["/tmp/host"]);
    let why = "tofu: node 0: cannot run /tmp/host: it is for x86-64, and this node is arm64\n";
    assert_eq!((said.code, said.err.as_str()), (Some(126), why), "{said:?}");
    let error = place.run(&["run", "/bin/true"]).error();
    let expected = "cannot run true: it is for x86-64, and the machine's nodes are arm64";
    assert!(error.contains(expected), "{error}");
    place.run(&["restart", "1"]).ok();
    wait_for("node 1 is ready again", PATIENCE, || place.exec("1", &["true"]).code == Some(0));
    place.run_for(&["down"], MOMENT, b"").ok();
    place.is_clean();
    both_kinds(&place);
    place.is_clean();
    in_modelled_time(&place);
    place.is_clean();
    for (args, expected) in [
        (
            &["--image", "default"][..],
            "image default: it is for x86-64 and the nodes are for arm64",
        ),
        (&["--driver", "tofu", "--image", "arm64"], "--driver tofu: image arm64 has no tofu.ko"),
        (&["--vmm", "tofu"], "nodes for arm64 cannot have our own monitor (--vmm tofu)"),
        (&["--guest", "/bin/true"], "guest /bin/true: it is for x86-64, and its node is arm64"),
    ] {
        let error = place.run(&[&["up", "--linux", "--arch", "arm64"], args].concat()).error();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    let error = place.run(&["up", "--linux", "--cpu", "max"]).error();
    assert!(error.contains("--cpu is for nodes for arm64; add --arch arm64"), "{error}");
    let error = place.run(&["image", "build", "--arch", "arm64", "--kernel", "driver-debug"]);
    assert!(error.error().contains("an image for arm64 has one of Debian's kernels"));
    let error = place.run(&["image", "build", "--kernel", "16k"]).error();
    assert!(error.contains("have pages of 4 KiB; add --arch arm64"), "{error}");
    let sdk = place.path().join("none");
    let sdk_for = ["sdk", "--arch", "arm64", "--mpi", "--image", "default", sdk.to_str().unwrap()];
    let error = place.run(&sdk_for).error();
    assert!(
        error.contains("image default is for x86-64, but the programs must be for arm64"),
        "{error}"
    );
    assert!(!sdk.exists());
}

/// Two nodes whose instructions take 0.3 ns each: their clock counts them, and a Put takes what the
/// hardware and those of the programs at both ends do.
fn in_modelled_time(place: &Place) {
    let nodes = ["--arch", "arm64", "--shape", "2x1x1x1x1x1", "--image", "arm64"];
    let time = ["--time", "modelled"];
    let up = [&["up", "--linux", "--detach"], &nodes[..], &time].concat();
    place.run_for(&up, BUILD, b"").ok();
    let clock = place.exec("0", &["dmesg"]).ok();
    assert!(clock.contains("cp15 timer(s) running at 3333.33MHz"), "{clock}");
    let (_, row) = place.pingpong(BUILD);
    let [min, p50] = ["min_us", "p50_us"].map(|of| row[of].as_f64().unwrap());
    assert!((0.7..2.0).contains(&min) && p50 - min < 0.3, "{row}");
    let time = place.run(&["time", "--json"]).json();
    assert_eq!(time["time"]["late"], 0, "{time}");
    place.run(&["down"]).ok();
}

/// Times between neighbours that users of Fugaku have measured, in microseconds or GB/s: published
/// by lighttransport/gemm, `a64fx/utofu-tests/summary.md`, findings 5 and 17.
const MEASURED: [(&str, f64); 12] = [
    ("put 1", 0.98),
    ("get 1", 1.495),
    ("add 1", 1.335),
    ("stream 1024", 3.49),
    ("stream 4096", 6.18),
    ("stream 16384", 6.32),
    ("ring 2080", 1.56),
    ("ring 4160", 1.83),
    ("ring 8320", 2.49),
    ("ring 16640", 3.80),
    ("striped 1", 3.87),
    ("striped 2", 3.88),
];

/// A program for Fugaku, started without any option but for the clock, measures what it would
/// there.
#[test]
fn a_program_measures_what_it_would_on_fugaku() {
    let Some(place) = Place::new(Image::Default) else { return };
    if !has_rustup() {
        return;
    }
    let Some(sdk) = Sdk::arm64(&place, &[]) else { return };
    let source = sdk.path().join("examples/times.c");
    sdk.compile(source.to_str().unwrap(), &["-ltofucom", "-ltofutop"]);
    let run = ["run", "--time", "modelled", "--driver", "vfio", "-n", "2", "./times"];
    let said = Running::start(sdk.command(&place, &run), b"").end(BUILD);
    assert!(said.err.contains(" s, 0.3 ns an instruction; nothing was late"), "{said:?}");
    let out = said.ok();
    for (what, measured) in MEASURED {
        let line = out.lines().find_map(|line| line.strip_prefix(&format!("0: {what} ")));
        let ours: f64 = line.unwrap_or_else(|| panic!("no {what}: {out}")).parse().unwrap();
        assert!((0.8..1.2).contains(&(ours / measured)), "{what}: {measured} there\n{out}");
    }
    place.is_clean();
}

fn has_rustup() -> bool {
    let there = have("rustup");
    if !there {
        skip("no rustup, which fetches Rust's libraries for arm64");
    }
    there
}

/// A command that runs in the checkout, where programs and libraries are built.
fn here(place: &Place, args: &[&str]) -> Said {
    Running::start(place.command_in_checkout(args), b"").end(BUILD)
}

/// A place for a test that takes long; or `None`, after it was said why not.
fn long() -> Option<Place> {
    if std::env::var_os("TOFU_LONG").is_none() {
        skip("takes minutes; TOFU_LONG=1 runs it");
        return None;
    }
    has_rustup().then(|| Place::new(Image::Default)).flatten()
}

/// The kernel driver in a kernel of Debian's.
#[test]
fn driver_works_with_4_kib_pages() {
    the_driver(("driver-cloud", "a64fx", 4));
}

/// In another one. The A64FX has no such pages.
#[test]
fn driver_works_with_16_kib_pages() {
    the_driver(("driver-16k", "max", 16));
}

/// With pages as Fugaku's kernel has them, in a kernel that is built here if it is not there, which
/// takes long.
#[test]
fn driver_works_with_64_kib_pages() {
    the_driver(("driver", "a64fx", 64));
}

/// The driver's own tests, and all that nodes do with it, by a kernel whose pages have this size.
fn the_driver((kernel, cpu, kib): (&str, &str, u32)) {
    let Some(place) = long() else { return };
    let Some(sdk) = Sdk::arm64(&place, &[]) else { return };
    let said = here(&place, &["image", "build", "--arch", "arm64", "--kernel", kernel]);
    if said.lacks_packages() {
        return skip("Debian's packages for arm64 cannot be had");
    }
    said.ok();
    let nodes = Nodes::boot_arm64(place, sdk, (&format!("{kernel}-arm64"), cpu));
    for node in ["0", "1"] {
        let maps = nodes.place.exec(node, &["grep", "-m1", "KernelPageSize", "/proc/self/smaps"]);
        let words: Vec<_> = maps.ok().split_whitespace().map(str::to_owned).collect();
        assert_eq!(words[1..], [kib.to_string(), "kB".to_owned()], "{kernel}");
    }
    for test in ["ioctls", "users", "memory", "barrier"] {
        passes(&nodes.place, "0", &[&format!("/tmp/{test}")]);
    }
    passes(&nodes.place, "0", &["/tmp/races", "5"]);
    nodes.puts();
    nodes.barriers();
    nodes.foreign_program();
    reach_each_other(&nodes.place, "t-0-0-0-1-0-0");
    utofu_suite(&nodes.place, &nodes.sdk);
    for node in ["0", "1"] {
        is_well(&nodes.place, node);
    }
    nodes.place.run_for(&["down"], MOMENT, b"").ok();
    nodes.place.is_clean();
}

/// The features that users need around nodes with Fugaku's processor: a gateway with forwards,
/// captures, files, a console, and a restart.
#[test]
fn all_around_fugakus_processor() {
    const OTHER: &str = "10.2.0.1";
    let Some(place) = long() else { return };
    let gateway = ["--gateway", "0,0,0,0,0,0", "--tap", "off", "--arch", "arm64"];
    place.up(&[&["--shape", "3x1x1x1x1x1"], &gateway[..]].concat());
    let ping = || place.exec("1", &["ping", "-c", "1", "-W", "10", OTHER]).code == Some(0);
    wait_for("nodes reach each other by IP", PATIENCE, ping);

    let data: Vec<u8> = (0..1_000_000_u32).map(|n| (n.wrapping_mul(97) >> 5) as u8).collect();
    let (file, back) = (place.file("data"), place.file("back"));
    fs::write(&file, &data).unwrap();
    place.exec("1", &["mkdir", "/srv"]).ok();
    place.run(&["cp", &file, "1:/srv/data"]).ok();
    place.run(&["cp", "1:/srv/data", &back]).ok();
    assert!(fs::read(&back).unwrap() == data);
    place.exec("1", &["busybox", "httpd", "-p", "80", "-h", "/srv"]).ok();
    let (forwarding, port) = forward(&place, "1");
    assert!(fetch(TcpStream::connect(("127.0.0.1", port)).unwrap()) == data);
    drop(forwarding);

    let pcapng = place.file("pings.pcapng");
    let capture = ["capture", "1", "-w", &pcapng, "--on", "tni0", "--kind", "system"];
    let mut capturing = place.start(&[&capture[..], &["--count", "4", "--json"]].concat());
    wait_for("pings to be captured", PATIENCE, || ping() && !capturing.runs());
    let said = capturing.end(MOMENT).json();
    assert_eq!((&said["packets"], &said["dropped"]), (&4.into(), &0.into()), "{said}");

    place.run_with(&["console", "2"], b"\nuname -m\n").ok();
    let answered = || place.run(&["console", "2"]).ok().contains("\naarch64");
    wait_for("the console to answer", MOMENT, answered);
    place.run(&["restart", "2"]).ok();
    wait_for("node 2 is ready again", PATIENCE, || place.exec("2", &["true"]).code == Some(0));
    wait_for("it is reached again", PATIENCE, ping);
    place.run_for(&["down"], MOMENT, b"").ok();
    place.is_clean();
}

/// Examples and tests of the library, on what nodes have of the device: by `tofud` or the driver.
fn utofu_suite(place: &Place, sdk: &Sdk) {
    let run = |args: &[&str]| {
        let command = sdk.command(place, &[&["run"], args].concat());
        Running::start(command, b"").end(4 * PATIENCE).ok()
    };
    for (name, expected) in [
        ("counter", "0: counter 2000, each number drawn once: yes\n"),
        ("pingpong", "0: 1000 rounds of 4096 bytes, first byte 208\n"),
        ("striping", "1: 12582912 bytes over 6 TNIs, 0 wrong\n"),
        ("stride", "0: 2 ranks, halo columns of 300 rows, 0 wrong\n"),
        ("piggyback", "0: 128 of 128 letters as they were written\n"),
        ("prepared", "0: 100 rounds of 192 bytes of descriptors, 0 wrong\n"),
        ("sizes", "0: 22 sizes up to 16777215 bytes, 22 as they were sent\n"),
        ("threads", "0: 2 ranks of 4 threads: each number drawn once\n"),
    ] {
        let source = format!("../../guest-lib/utofu/examples/c/{name}.c");
        sdk.compile(&source, &["-ltofucom", "-ltofutop", "-lpthread"]);
        assert_eq!(run(&["-n", "2", &format!("./{name}")]), expected, "{name}");
    }
    for (name, args) in [("abi", &[][..]), ("functions", &[]), ("codes", &[]), ("model", &["500"])]
    {
        let source = format!("../../guest-lib/utofu/c/tests/{name}.c");
        let flags = ["-DONE_PROCESS", "-ltofucom", "-ltofutop", "-lpthread"];
        sdk.compile(&source, &flags);
        run(&[&["-n", "1", "--no-prefix", &format!("./{name}")], args].concat());
    }
}

/// The library's own examples and tests without the kernel driver.
#[test]
fn utofu_on_fugakus_processor() {
    let Some(place) = long() else { return };
    let Some(sdk) = Sdk::arm64(&place, &[]) else { return };
    place.up(&["--arch", "arm64", "--shape", "1x1x1x2x1x1"]);
    utofu_suite(&place, &sdk);
    place.run_for(&["down"], MOMENT, b"").ok();
    place.is_clean();
}

/// A unit of Fugaku, whose twelve nodes have its processor.
#[test]
fn twelve_nodes_with_fugakus_processor() {
    let Some(place) = long() else { return };
    let Some(sdk) = Sdk::arm64(&place, &[]) else { return };
    let up = ["up", "--linux", "--detach", "--boot-timeout", "20m", "--arch", "arm64"];
    here(&place, &[&up[..], &["--shape", "1x1x1x2x3x2"]].concat()).ok();
    place.all_pairs(12, 12);
    let source = sdk.path().join("examples/sve.c");
    sdk.compile(source.to_str().unwrap(), &["-ltofucom", "-ltofutop"]);
    let command = sdk.command(&place, &["run", "-n", "12", "./sve"]);
    let out = Running::start(command, b"").end(4 * PATIENCE).ok();
    let right = |line: &&str| line.ends_with(" of 12: vectors of 512 bits, as computed alone");
    assert_eq!(out.lines().filter(right).count(), 12, "{out}");
    reach_each_other(&place, "t-0-0-0-1-2-1");
    place.run_for(&["down"], PATIENCE, b"").ok();
    place.is_clean();
}

/// A root file system of Debian's packages for such nodes, whose set-up scripts have run in a
/// guest, and programs with the MPI that is in it.
#[test]
fn mpi_on_fugakus_processor() {
    let Some(place) = long() else { return };
    let Some(sdk) = Sdk::arm64(&place, &["--mpi"]) else { return };
    let sdk = sdk.path();
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let built = |compiler: &str, source: &Path| {
        let program = place.path().join(source.file_stem().unwrap());
        let mut command = Command::new(sdk.join("bin").join(compiler));
        command.args(["-Nclang", "-Kfast,openmp", "-Wall", "-Wextra", "-Werror"]).arg(source);
        command.args(["-ltofucom", "-o"]).arg(&program);
        Running::start(command, b"").end(PATIENCE).ok();
        program.to_str().unwrap().to_owned()
    };
    let put = built("mpifccpx", &sdk.join("examples/mpi_put.c"));
    let abort = built("mpicc", &programs.join("mpi_abort.c"));
    let cxx = built("mpiFCCpx", &programs.join("mpi_cxx.cc"));

    let lan = ["--net", "lan", "--memory", "512MiB", "--image", "mpich-arm64"];
    place.up(&[&["--arch", "arm64", "--shape", "2x1x1x1x1x1"], lan.as_slice()].concat());
    // All packages are set up: none is pending, the names that their scripts make are there, and
    // the files that only the scripts needed are gone.
    assert_eq!(place.exec("0", &["dpkg", "--audit"]).ok(), "");
    let awk = place.exec("0", &["readlink", "/etc/alternatives/awk"]).ok();
    assert_eq!(awk.trim(), "/usr/bin/mawk");
    place.exec("0", &["mpirun", "--version"]).ok();
    assert_eq!(place.exec("0", &["test", "-e", "/tofu-build"]).code, Some(1));
    for (ranks, numbers) in [("2", 4), ("4", 16)] {
        let out = here(&place, &["run", "--mpi", "-n", ranks, &put]).ok();
        assert_eq!(out, format!("0: {ranks} ranks have put {numbers} numbers, 0 wrong\n"));
    }
    assert_eq!(here(&place, &["run", "--mpi", "-n", "2", &cxx]).ok(), "0: the sum is 3\n");
    let said = here(&place, &["run", "--mpi", "-n", "4", &abort]);
    assert_eq!(said.code, Some(9), "{said:?}");
    let said = here(&place, &["run", "-n", "2", &put]);
    assert!(said.err.contains("is linked with libmpich.so.12, and there is no --mpi"), "{said:?}");
    place.run_for(&["down"], MOMENT, b"").ok();
    place.is_clean();
}

/// IP from the first node to another one.
fn reach_each_other(place: &Place, other: &str) {
    let hosts = place.run(&["hosts"]).ok();
    let address = hosts.lines().find(|line| line.contains(other) && line.contains('.'));
    let address = address.unwrap().split_whitespace().next().unwrap();
    // Their interfaces come back when programs have released the devices.
    wait_for("nodes reach each other by IP", PATIENCE, || {
        place.exec("0", &["ping", "-c", "1", "-W", "10", address]).code == Some(0)
    });
}

/// A machine with one node of each kind, the second one Fugaku's: the device is the same.
fn both_kinds(place: &Place) {
    let file = place.path().join("both.toml");
    let text = "shape = \"2x1x1x1x1x1\"\nlinux = true\n[[node]]\nat = [1, 0, 0, 0, 0, 0]\n\
                arch = \"arm64\"\n";
    fs::write(&file, text).unwrap();
    place.up(&["-c", file.to_str().unwrap()]);
    for (node, machine) in [("0", "x86_64"), ("1", "aarch64")] {
        assert_eq!(place.exec(node, &["uname", "-m"]).ok().trim(), machine);
    }
    let ps = place.ps();
    let arch = |node: usize| ps[0]["nodes"][node]["arch"].as_str();
    assert_eq!((arch(0), arch(1)), (Some("x86-64"), Some("arm64")));
    place.all_pairs(2, 2);
    // Integers, floating-point numbers and bits with results that each node knows.
    let lines = place.exec_all(&["allreduce", "rounds=3"]);
    let right = |line: &&String| line.contains("all operations verified 3 times");
    assert_eq!(lines.iter().filter(right).count(), 2, "{lines:?}");
    reach_each_other(place, "t-1-0-0");
    // Each program where it can run, which is one node.
    assert_eq!(place.run_for(&["run", "/bin/uname", "-m"], PATIENCE, b"").ok(), "0: x86_64\n");
    let own = place.path().join("threads");
    if own.is_file() {
        assert_eq!(here(place, &["run", own.to_str().unwrap()]).ok(), "0: rank 0: 500500\n");
        // Where it cannot, it is said what it is for.
        place.run(&["cp", own.to_str().unwrap(), "0:/tmp/threads"]).ok();
        let said = place.exec("0", &["/tmp/threads"]);
        let why =
            "tofu: node 0: cannot run /tmp/threads: it is for arm64, and this node is x86-64\n";
        assert_eq!((said.code, said.err.as_str()), (Some(126), why), "{said:?}");
    }
    place.run_for(&["down"], MOMENT, b"").ok();
}

/// Programs that the SDK's compilers make, linked with our libraries and with those of C and C++.
fn compiled_programs(place: &Place) {
    let here = |args: &[&str]| here(place, args);
    let Some(sdk) = Sdk::arm64(place, &[]) else { return };
    let sdk = sdk.path();
    let openmp = place.path().join("threads.cc");
    fs::write(
        &openmp,
        "#include <cstdlib>\n#include <iostream>\n\
         int main() {\n\
             double sum = 0;\n\
             _Pragma(\"omp parallel for reduction(+ : sum)\")\n\
             for (int i = 1; i <= 1000; i++) sum += i;\n\
             std::cout << \"rank \" << std::getenv(\"TOFU_RANK\") << \": \" << sum << std::endl;\n\
         }\n",
    )
    .unwrap();
    let examples = sdk.join("examples");
    for (compiler, source) in
        [("fccpx", examples.join("ring.c")), ("fccpx", examples.join("sve.c")), ("FCCpx", openmp)]
    {
        let mut command = Command::new(sdk.join("bin").join(compiler));
        // Options as Fugaku's makefiles have them.
        command.args(["-Nclang", "-Kfast,openmp", "-Wall", "-Wextra", "-Werror"]).arg(&source);
        command.args(["-ltofucom", "-ltofutop", "-o"]).arg(source.with_extension(""));
        Running::start(command, b"").end(PATIENCE).ok();
    }
    let clang = by_clang(&sdk);
    let run = |program: &Path| {
        let mut lines: Vec<String> = here(&["run", "-n", "2", program.to_str().unwrap()])
            .ok()
            .lines()
            .map(|line| line.split_once(": ").unwrap().1.to_owned())
            .collect();
        lines.sort();
        lines
    };
    let ring = run(&examples.join("ring"));
    assert_eq!(ring, ["rank 0 of 2: hello from rank 1", "rank 1 of 2: hello from rank 0"]);
    let expected =
        [0, 1].map(|rank| format!("rank {rank} of 2: vectors of 512 bits, as computed alone"));
    assert_eq!(run(&examples.join("sve")), expected);
    if clang {
        assert_eq!(run(&examples.join("sve-clang")), expected);
        assert_eq!(run(&examples.join("words-clang")), ["clang: 6", "clang: 6"]);
    }
    assert_eq!(run(&place.path().join("threads")), ["rank 0: 500500", "rank 1: 500500"]);
    let ring = examples.join("ring");
    let error = here(&["run", "--local", ring.to_str().unwrap()]).error();
    assert!(error.contains("it is for arm64, and this host is x86-64"), "{error}");
}

/// Compiles the SVE example and a program in C++ with Clang, which lacks OpenMP's library for such
/// nodes; `false`, after it was said, where there is no Clang.
fn by_clang(sdk: &Path) -> bool {
    if !have("clang++") || !have("ld.lld") {
        skip("of Clang: there is none, or no lld");
        return false;
    }
    let examples = sdk.join("examples");
    let words = examples.join("words.cc");
    let text = "#include <iostream>\n#include <numeric>\n#include <vector>\n\
                int main() {\n\
                    std::vector<int> v{1, 2, 3};\n\
                    std::cout << \"clang: \" << std::accumulate(v.begin(), v.end(), 0)\n\
                              << std::endl;\n\
                }\n";
    fs::write(&words, text).unwrap();
    for (compiler, variable, clang, source) in [
        ("fccpx", "TOFU_ARM64_CC", "clang", &examples.join("sve.c")),
        ("FCCpx", "TOFU_ARM64_CXX", "clang++", &words),
    ] {
        let program = format!("{}-clang", source.file_stem().unwrap().to_str().unwrap());
        let mut command = Command::new(sdk.join("bin").join(compiler));
        command.args(["-Nclang", "-Kfast", "-Wall", "-Wextra", "-Werror"]).arg(source);
        command.args(["-ltofucom", "-ltofutop", "-o"]).arg(examples.join(program));
        command.env(variable, clang);
        Running::start(command, b"").end(PATIENCE).ok();
    }
    true
}
