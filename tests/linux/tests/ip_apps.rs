//! What people use a network for, over `tofu0` between two Linux nodes: ssh, a file server, MPI.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tofu_linux_tests::Running;
use tofu_linux_tests::net::{LONG, Net, long};
use tofu_linux_tests::skip;

/// Time for the image that MPI's headers come from.
const IMAGE: Duration = Duration::from_secs(600);

/// Lets node 0 log in on both.
fn ssh(net: &Net) {
    let key = net.shell(
        0,
        "mkdir -p -m 700 ~root/.ssh && ssh-keygen -q -t ed25519 -N '' -f ~root/.ssh/id_ed25519 && \
         cat ~root/.ssh/id_ed25519.pub",
    );
    for node in 0..2 {
        net.shell(
            node,
            &format!(
                "mkdir -p -m 700 ~root/.ssh /run/sshd && echo '{}' >~root/.ssh/authorized_keys && \
                 printf 'StrictHostKeyChecking no\\nUserKnownHostsFile /dev/null\\nLogLevel ERROR\\n' \
                 >~root/.ssh/config && /usr/sbin/sshd",
                key.trim()
            ),
        );
    }
    assert_eq!(net.shell(0, "ssh n1 hostname"), "t-1-0-0-0-0-0\n");
    assert_eq!(net.shell(0, "ssh -6 n1 hostname"), "t-1-0-0-0-0-0\n");
}

/// The first word, which is the sum in what `sha256sum` prints.
fn sum(said: &str) -> &str {
    said.split_whitespace().next().unwrap_or_default()
}

/// A file of so many MiB there and back by scp.
fn scp(net: &Net, mib: u32) {
    let size = mib << 20;
    net.shell_for(0, &format!("head -c {size} /dev/urandom >/tmp/big"), LONG);
    net.shell_for(0, "scp -q /tmp/big n1:/tmp/big && scp -q n1:/tmp/big /tmp/back", LONG);
    let sums = [(0, "big"), (1, "big"), (0, "back")]
        .map(|(node, file)| net.shell_for(node, &format!("sha256sum /tmp/{file}"), LONG));
    assert_eq!(sum(&sums[0]).len(), 64, "{sums:?}");
    assert!(sums.iter().all(|said| sum(said) == sum(&sums[0])), "{sums:?}");
    net.shell(0, "rm /tmp/back");
    net.shell(1, "rm /tmp/big");
}

/// A folder of node 1 on node 0, by NFS over TCP; `/tmp/big` goes there and is read again.
fn nfs(net: &Net) {
    net.shell(
        1,
        "mkdir -p /srv/share && mount -t tmpfs share /srv/share && mount -t nfsd nfsd /proc/fs/nfsd && \
         echo '/srv/share *(rw,fsid=0,insecure,no_root_squash,no_subtree_check)' >/etc/exports && \
         exportfs -ra && rpc.mountd -N 2 -N 3 && rpc.nfsd -N 3 -V 4.2 -G 10 -L 10 4 && \
         echo Y >/proc/fs/nfsd/v4_end_grace",
    );
    let mount = "mount -t nfs4 -o proto=tcp n1:/ /mnt";
    net.shell_for(0, &format!("{mount} && cp /tmp/big /mnt/big && umount /mnt"), LONG);
    // Read from the server, not from what was remembered.
    let said =
        net.shell_for(0, &format!("{mount} && sha256sum /tmp/big /mnt/big && umount /mnt"), LONG);
    let mut sums = said.lines().map(sum);
    assert_eq!(sums.next(), sums.next(), "{said}");
    assert_eq!(sum(&net.shell(1, "sha256sum /srv/share/big")), sum(&said));
}

fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {err}", output.status);
}

/// Programs with MPI and with uTofu, compiled by what `tofu sdk` writes; `false` if this host
/// cannot.
fn programs(net: &Net, test: &str) -> bool {
    let has = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
    if !has("gcc") || !has("strip") {
        skip(&format!("{test}_mpi"), "there is no gcc, or no strip");
        return false;
    }
    let folder = net.place.path();
    let libraries = folder.join("libraries");
    fs::create_dir(&libraries).unwrap();
    for name in ["libtofucom.so", "libtofutop.so"] {
        let built = std::env::current_exe().unwrap().with_file_name(name);
        must(Command::new("strip").arg("-o").arg(libraries.join(name)).arg(built));
    }
    let mut sdk = net.place.command(&["sdk", "--mpi", "sdk"]);
    sdk.env("TOFU_LIBRARIES", &libraries).current_dir(folder);
    let said = Running::start(sdk, b"").end(IMAGE);
    if said.code == Some(2) && (said.err.contains("mirror") || said.err.contains("cannot find")) {
        skip(&format!("{test}_mpi"), said.err.lines().last().unwrap_or_default());
        return false;
    }
    said.ok();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sdk = folder.join("sdk");
    let compile = |compiler: &Path, source: &Path, libraries: &[&str]| {
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-O2", "-I"]).arg(sdk.join("include"));
        command.arg(source).arg("-L").arg(sdk.join("lib")).args(libraries);
        must(command.arg("-o").arg(folder.join(source.file_stem().unwrap())));
    };
    compile(&sdk.join("bin/mpicc"), &source.join("programs/mpi_ip.c"), &[]);
    let striping = source.join("../../guest-lib/utofu/examples/c/striping.c");
    compile(Path::new("gcc"), &striping, &["-ltofucom", "-ltofutop", "-lpthread"]);
    for node in 0..2 {
        let there = format!("{node}:/tmp/mpi_ip");
        net.place.run(&["cp", &net.place.file("mpi_ip"), &there]).ok();
    }
    true
}

/// MPI over `tofu0`: started by ssh, while a job of uTofu moves 12 MB between the same nodes.
fn mpi(net: &Net, rounds: u32) {
    let mut rdma = net.place.command(&["run", "-n", "2", "./striping"]);
    rdma.env("TOFU_LIBRARIES", net.place.path().join("libraries")).current_dir(net.place.path());
    let rdma = Running::start(rdma, b"");
    let said = net.shell_for(
        0,
        &format!(
            "HYDRA_LAUNCHER=ssh UCX_TLS=tcp,self UCX_NET_DEVICES=tofu0 \
             mpiexec -iface tofu0 -hosts n0,n1 -n 2 /tmp/mpi_ip {rounds} 2>&1"
        ),
        LONG,
    );
    for line in ["rank 0 of 2 on t-0-0-0-0-0-0", "rank 1 of 2 on t-1-0-0-0-0-0", "0 wrong"] {
        assert!(said.lines().any(|other| other == line), "{said}");
    }
    let moved = rdma.end(LONG).ok();
    assert!(moved.contains("1: 12582912 bytes over 6 TNIs, 0 wrong"), "{moved}");
}

#[test]
fn programs_over_tofu0() {
    const TEST: &str = "programs_over_tofu0";
    let Some(net) = Net::start(TEST, 2, &[]) else { return };
    ssh(&net);
    scp(&net, 4);
    nfs(&net);
    if programs(&net, TEST) {
        mpi(&net, 5);
    }
}

/// With 100 MB, and with MPI for a while.
#[test]
fn programs_over_tofu0_for_long() {
    const TEST: &str = "programs_over_tofu0_for_long";
    if !long(TEST) {
        return;
    }
    let Some(net) = Net::start_with(TEST, 2, "1GiB", &[]) else { return };
    ssh(&net);
    scp(&net, 100);
    nfs(&net);
    if programs(&net, TEST) {
        mpi(&net, 1000);
    }
}
