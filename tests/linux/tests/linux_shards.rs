//! Machines of Linux nodes in shards: commands from any shard, and jobs over all shards.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use tofu_linux_tests::sdk::{Sdk, has_compiler};
use tofu_linux_tests::{Image, Place, Running, skip, wait_for};

/// Longest time for a machine to boot or to end, on a busy host.
const PATIENCE: Duration = Duration::from_secs(600);
/// Two nodes, which are cut apart.
const SHAPE: &str = "2x1x1x1x1x1";

/// Starts both shards, and waits for their nodes.
fn up(place: &Place, options: &[&str]) -> [Running; 2] {
    let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = free.map(|free| free.local_addr().unwrap().to_string());
    let hosts = place.file("hosts");
    place.run(&["hosts", "init", "--dir", &hosts, &addresses[0], &addresses[1]]).ok();
    let shards = ["0/2", "1/2"].map(|shard| {
        let args = ["up", "--linux", "--boot-timeout", "600s", "--shape", SHAPE];
        let args = [&args[..], &["--join", &hosts, "--shard", shard], options].concat();
        Running::start(place.command(&args), b"")
    });
    wait_for("both nodes are ready", PATIENCE, || {
        let ps = place.ps();
        let nodes = ps[0]["nodes"].as_array().cloned().unwrap_or_default();
        nodes.len() == 2 && nodes.iter().all(|node| node["state"] == "ready")
    });
    shards
}

/// Ends both.
fn down(place: &Place, shards: [Running; 2]) {
    place.run(&["down", "tofu-part1"]).ok();
    for shard in shards {
        let said = shard.end(PATIENCE);
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    }
    place.is_clean();
}

#[test]
fn linux_nodes_of_two_shards_are_one_machine() {
    let Some(place) = Place::new(Image::Default) else { return };
    let shards = up(&place, &[]);

    // A program on either node, run from either shard, and its input.
    for shard in ["tofu-part0", "tofu-part1"] {
        for (node, name) in [("0", "t-0-0-0-0-0-0"), ("1", "t-1-0-0-0-0-0")] {
            let said = place.exec(&format!("{shard}/{node}"), &["hostname"]);
            assert_eq!(said.ok().trim(), name);
            let cat = ["exec", &format!("{shard}/{node}"), "--", "cat"];
            let text = "over the cable\n".repeat(100_000);
            assert!(place.run_with(&cat, text.as_bytes()).ok() == text);
        }
    }
    let said = place.exec("1", &["sh", "-c", "echo here; exit 7"]);
    assert_eq!((said.code, said.out.as_str()), (Some(7), "here\n"));
    assert_eq!(place.exec_all(&["hostname"]).len(), 2);

    // Files there and back.
    let file = place.file("sent");
    std::fs::write(&file, vec![42; 1 << 20]).unwrap();
    let back = place.file("back");
    place.run(&["cp", &file, "1:/tmp/file"]).ok();
    place.run(&["cp", "1:/tmp/file", &back]).ok();
    assert!(std::fs::read(Path::new(&back)).unwrap() == vec![42; 1 << 20]);

    // Puts and Gets between them, IP over Tofu, and a job submitted at either shard.
    place.all_pairs(2, 2);
    // The interface is back a moment after the programs have released the device.
    let ping = "for i in $(seq 60); do ping -c 2 -W 60 10.0.0.1 && exit; sleep 1; done; exit 1";
    place.exec("tofu-part0/1", &["sh", "-c", ping]).ok();
    if has_compiler() {
        let sdk = Sdk::new(&place);
        sdk.compile("../../guest-lib/utofu/examples/run/ring.c", &["-ltofucom", "-ltofutop"]);
        for shard in ["tofu-part0", "tofu-part1"] {
            let run = ["run", "--machine", shard, "-n", "2", &place.file("ring")];
            let out = Running::start(sdk.command(&place, &run), b"").end(PATIENCE).ok();
            assert!(out.contains("rank 0 of 2: hello from rank 1"), "{out}");
        }
    }

    down(&place, shards);
}

/// Ranks find each other and send their MPI messages by IP over the torus.
#[test]
fn mpi_goes_from_shard_to_shard() {
    if std::env::var_os("TOFU_LONG").is_none() {
        skip("takes a minute; TOFU_LONG=1 runs it");
        return;
    }
    if !has_compiler() {
        return;
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let sdk = Sdk::new(&place);
    if !sdk.add_mpi(&place) {
        return;
    }
    sdk.compile_mpi("../../guest-lib/utofu/examples/run/mpi_put.c", &["-ltofucom"]);
    sdk.compile_mpi_cxx("programs/mpi_cxx.cc");
    let shards = up(&place, &["--image", "mpich", "--memory", "512MiB"]);
    let run = |shard: &str, ranks: &str, program: &str| {
        let args = ["run", "--machine", shard, "--mpi", "-n", ranks, program];
        Running::start(sdk.command(&place, &args), b"").end(PATIENCE).ok()
    };
    for (shard, ranks, numbers) in [("tofu-part0", "2", 4), ("tofu-part1", "4", 16)] {
        let out = run(shard, ranks, "./mpi_put");
        assert_eq!(out, format!("0: {ranks} ranks have put {numbers} numbers, 0 wrong\n"));
    }
    assert_eq!(run("tofu-part1", "2", "./mpi_cxx"), "0: the sum is 3\n");
    down(&place, shards);
}
