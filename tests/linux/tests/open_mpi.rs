//! Programs of the host's Open MPI on Linux nodes, with the Open MPI of the nodes' image.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use tofu_linux_tests::sdk::{Sdk, has_compiler};
use tofu_linux_tests::{Image, PATIENCE, Place, Running, Said, skip, sorted};

/// Compiles the program that local ranks run, too. Returns whether there is what that takes.
fn compile(place: &Place) -> bool {
    const SOURCE: &str = "../../tools/tofu/tests/cli/programs/mpi.c";
    let source = format!("{}/{SOURCE}", env!("CARGO_MANIFEST_DIR"));
    let compiled = Command::new("mpicc.openmpi").args([&source, "-o", &place.file("mpi")]).output();
    let found = compiled.is_ok_and(|compiled| compiled.status.success());
    if !found {
        skip("there is no mpicc.openmpi");
    }
    found
}

#[test]
fn open_mpi_on_two_nodes() {
    if !has_compiler() {
        return;
    }
    let Some(place) = Place::new(Image::OpenMpi) else { return };
    if !compile(&place) {
        return;
    }
    let sdk = Sdk::new(&place);
    let image = Image::OpenMpi.name();
    place.up(&["--name", "two", "--image", image, "--memory", "512MiB", "--driver", "vfio"]);
    // Neither the PMIx server nor messages need a network.
    for node in ["0", "1"] {
        place.exec(node, &["ip", "link", "set", "tofu0", "down"]).ok();
    }
    let run = |args: &[&str]| -> Said {
        let args = [&["run", "--mpi", "--timeout", "5m"], args].concat();
        Running::start(sdk.command(&place, &args), b"").end(3 * PATIENCE)
    };
    let said = run(&["-n", "2", "./mpi"]);
    if said.err.contains("libpmix.so.2: cannot open") {
        return skip("there is no libpmix2");
    }
    assert_eq!(said.err, "tofu: MPI's messages go over Tofu, by libfabric of Open MPI\n");
    let expected = [0, 1].map(|rank| format!("{rank}: 0 of 1 on node, 0 wrong, sum 3"));
    assert_eq!(sorted(&said.ok()), expected);
    // Connections of several ranks of a node come at the same time.
    for _ in 0..3 {
        let said = run(&["-n", "6", "./mpi"]);
        let line = |rank: u32| format!("{rank}: {} of 3 on node, 0 wrong, sum 21", rank % 3);
        assert_eq!(sorted(&said.ok()), (0..6).map(line).collect::<Vec<_>>());
    }
    let said = run(&["-n", "4", "--env", "OMPI_MCA_mtl_base_verbose=10", "./mpi"]);
    assert!(said.err.contains("select: component ofi selected"), "{said:?}");
    let said = run(&["-n", "3", "./mpi", "7"]);
    assert_eq!(said.code, Some(7), "{said:?}");
    let expected = "rank 2 on node (1,0,0,0,0,0) has aborted the job with code 7\n";
    assert!(said.err.contains(expected), "{said:?}");
    // A script starts the program.
    let folder = place.file("folder");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(place.file("mpi"), place.path().join("folder/mpi")).unwrap();
    let said = run(&["-n", "2", "--cwd", "folder", "sh", "-c", "exec ./mpi"]);
    assert_eq!(said.ok().matches("0 wrong, sum 3").count(), 2);
    run_python(&place, run);
    let look = "ls /tmp; grep -l TOFU_JOB= /proc/[0-9]*/environ 2>/dev/null; true";
    let lines = place.exec_all(&["sh", "-c", look]);
    assert!(lines.is_empty(), "{lines:?}");
    place.run(&["down"]).ok();
    place.is_clean();
}

/// Python is asked which MPI it has, unless the user says so.
fn run_python(place: &Place, run: impl Fn(&[&str]) -> Said) {
    let folder = place.path().join("folder");
    let program = "from mpi4py import MPI\n\
                   comm = MPI.COMM_WORLD\n\
                   data = comm.bcast(b'x' * 100000 if comm.rank == 0 else None)\n\
                   print(comm.size, comm.allreduce(comm.rank + 1), len(data))\n";
    std::fs::write(folder.join("sum.py"), program).unwrap();
    // Its name is not in the script.
    let start = folder.join("start");
    std::fs::write(&start, "#!/bin/sh\nname=pyth\nexec ${name}on3 sum.py\n").unwrap();
    std::fs::set_permissions(&start, std::fs::Permissions::from_mode(0o755)).unwrap();
    for program in [
        &["python3", "sum.py"][..],
        &["sh", "-c", "cd . && exec python3 sum.py"],
        &["--env", "TOFU_MPI_LIBRARY=libmpi.so.40", "sh", "-c", "./start"],
    ] {
        let said = run(&[&["-n", "4", "--cwd", "folder"], program].concat());
        assert_eq!(said.err, "tofu: MPI's messages go over Tofu, by libfabric of Open MPI\n");
        assert_eq!(said.ok().matches(": 4 10 100000\n").count(), 4, "{program:?}");
    }
}

#[test]
fn image_without_open_mpi_is_named() {
    let Some(place) = Place::new(Image::Default) else { return };
    if !compile(&place) {
        return;
    }
    place.up(&["--shape", "1x1x1x1x1x1", "--name", "one"]);
    let said = place.run(&["run", "--mpi", "-n", "1", &place.file("mpi")]);
    let why = "it is linked with libmpi.so.40, which the nodes of machine one do not have";
    assert!(said.err.contains(why) && said.err.contains("--image openmpi"), "{said:?}");
    assert_eq!((said.code, said.err.lines().count()), (Some(2), 1), "{said:?}");
    place.run(&["down"]).ok();
    place.is_clean();
}
