//! Linux nodes with Fugaku's processor: what they see of the device, the shipped programs, IP,
//! programs that were compiled with the SDK, and what is refused. With `TOFU_LONG` in the
//! environment also Debian's packages for them, and MPI.

use std::fs;
use std::path::Path;
use std::process::Command;

use tofu_linux_tests::{Image, MOMENT, PATIENCE, Place, Running, Said, skip, wait_for};

/// The root of the checkout, where `tofu` builds the programs for such nodes.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// The longest time for that, on a busy host.
const BUILD: std::time::Duration = std::time::Duration::from_secs(1200);

#[test]
fn nodes_with_fugakus_processor() {
    const TEST: &str = "nodes_with_fugakus_processor";
    let Some(place) = Place::new(TEST, Image::Default) else { return };
    if !has_rustup(TEST) {
        return;
    }
    let mut build = place.command(&["image", "build", "--arch", "arm64"]);
    build.current_dir(Path::new(ROOT));
    let built = Running::start(build, b"").end(BUILD).ok();
    assert!(built.starts_with("image arm64 for arm64: kernel "), "{built}");
    place.up(&["--arch", "arm64", "--shape", "2x1x1x1x1x1", "--image", "arm64"]);
    let info = place.exec("0", &["cat", "/proc/cpuinfo"]).ok();
    assert!(info.contains("0x46") && info.contains(" sve"), "Fujitsu's, with SVE: {info}");
    place.exec_all(&["uname", "-m"]).iter().for_each(|line| assert!(line.ends_with("aarch64")));
    let said = place.exec("1", &["tofu-guest", "selftest"]).ok();
    assert!(said.contains(" works: "), "{said}");
    place.all_pairs(2, 2);
    reach_each_other(&place);
    compiled_programs(&place, TEST);
    // Programs for the host do not run on such nodes.
    let error = place.run(&["run", "/bin/true"]).error();
    let expected = "cannot run true: it is for x86-64, and the machine's nodes are arm64";
    assert!(error.contains(expected), "{error}");
    place.run(&["restart", "1"]).ok();
    wait_for("node 1 is ready again", PATIENCE, || place.exec("1", &["true"]).code == Some(0));
    place.run_for(&["down"], MOMENT, b"").ok();
    place.is_clean();
    both_kinds(&place);
    place.is_clean();
    for (args, expected) in [
        (
            &["--image", "default"][..],
            "image default: it is for x86-64 and the nodes are for arm64",
        ),
        (&["--driver", "tofu"], "nodes for arm64 cannot have the kernel driver (--driver tofu)"),
        (&["--vmm", "tofu"], "nodes for arm64 cannot have our own monitor (--vmm tofu)"),
        (&["--guest", "/bin/true"], "guest /bin/true: it is for x86-64, and its node is arm64"),
    ] {
        let error = place.run(&[&["up", "--linux", "--arch", "arm64"], args].concat()).error();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    let error = place.run(&["up", "--linux", "--cpu", "max"]).error();
    assert!(error.contains("--cpu is for nodes for arm64; add --arch arm64"), "{error}");
    let error = place.run(&["image", "build", "--arch", "arm64", "--kernel", "driver-cloud"]);
    assert!(error.error().contains("has one of Debian's kernels without our driver"));
    let sdk = place.path().join("sdk");
    let sdk_for = ["sdk", "--arch", "arm64", "--mpi", "--image", "default", sdk.to_str().unwrap()];
    let error = place.run(&sdk_for).error();
    assert!(error.contains("image default: it is for x86-64, and programs are"), "{error}");
    assert!(!sdk.exists());
}

fn has_rustup(test: &str) -> bool {
    let rustup = Command::new("rustup").arg("--version").output();
    let there = rustup.is_ok_and(|said| said.status.success());
    if !there {
        skip(test, "no rustup, which fetches Rust's libraries for arm64");
    }
    there
}

/// A command that runs in the checkout, where programs and libraries are built.
fn here(place: &Place, args: &[&str]) -> Said {
    let mut command = place.command(args);
    command.current_dir(ROOT);
    Running::start(command, b"").end(BUILD)
}

/// A root file system of Debian's packages for such nodes, whose set-up scripts have run in a
/// guest, and programs with the MPI that is in it.
#[test]
fn mpi_on_fugakus_processor() {
    const TEST: &str = "mpi_on_fugakus_processor";
    if std::env::var_os("TOFU_LONG").is_none() {
        skip(TEST, "takes minutes; TOFU_LONG=1 runs it");
        return;
    }
    let Some(place) = Place::new(TEST, Image::Default) else { return };
    if !has_rustup(TEST) {
        return;
    }
    let sdk = place.path().join("arm64");
    let said = here(&place, &["sdk", "--arch", "arm64", "--mpi", sdk.to_str().unwrap()]);
    if said.lacks_packages() {
        skip(TEST, "Debian's packages for arm64 cannot be had");
        return;
    }
    said.ok();
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

/// IP between the two nodes.
fn reach_each_other(place: &Place) {
    let hosts = place.run(&["hosts"]).ok();
    let address = hosts.lines().find(|line| line.contains("t-1-0-0") && line.contains('.'));
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
    // Integers, floating-point numbers and bits, of which each node knows the result.
    let lines = place.exec_all(&["allreduce", "rounds=3"]);
    let right = |line: &&String| line.contains("all operations verified 3 times");
    assert_eq!(lines.iter().filter(right).count(), 2, "{lines:?}");
    reach_each_other(place);
    // Each program runs where it can, which is on one node.
    assert_eq!(place.run_for(&["run", "/bin/uname", "-m"], PATIENCE, b"").ok(), "0: x86_64\n");
    let own = place.path().join("threads");
    if own.is_file() {
        let mut command = place.command(&["run", own.to_str().unwrap()]);
        command.current_dir(ROOT);
        assert_eq!(Running::start(command, b"").end(BUILD).ok(), "0: rank 0: 500500\n");
    }
    place.run_for(&["down"], MOMENT, b"").ok();
}

/// Programs that the SDK's compilers make, linked with our libraries and with those of C and C++.
fn compiled_programs(place: &Place, test: &str) {
    let here = |args: &[&str]| here(place, args);
    let sdk = place.path().join("arm64");
    let said = here(&["sdk", "--arch", "arm64", sdk.to_str().unwrap()]);
    if said.lacks_packages() {
        skip(test, "of compiled programs: Debian's packages for arm64 cannot be had");
        return;
    }
    said.ok();
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
    assert_eq!(run(&place.path().join("threads")), ["rank 0: 500500", "rank 1: 500500"]);
    let ring = examples.join("ring");
    let error = here(&["run", "--local", ring.to_str().unwrap()]).error();
    assert!(error.contains("it is for arm64, and this host is x86-64"), "{error}");
}
