//! Common uses of a network, over `tofu0` between two Linux nodes: ssh, a file server, MPI.

use serde_json::Value;
use tofu_linux_tests::Running;
use tofu_linux_tests::net::{LONG, Net, long};
use tofu_linux_tests::sdk::Sdk;

/// The first word, which is the checksum in the output of `sha256sum`.
fn sum(said: &str) -> &str {
    said.split_whitespace().next().unwrap_or_default()
}

/// A file of `mib` MiB there and back by scp, with a cipher that is quick on emulated processors.
fn scp(net: &Net, mib: u32) {
    assert_eq!(net.shell(0, "ssh n1 hostname"), "t-1-0-0-0-0-0\n");
    assert_eq!(net.shell(0, "ssh -6 n1 hostname"), "t-1-0-0-0-0-0\n");
    let copy = "scp -c aes128-gcm@openssh.com -q";
    net.shell_for(0, &format!("head -c {} /dev/urandom >/tmp/much", u64::from(mib) << 20), LONG);
    let sha256 = |node, file: &str| {
        let said = net.shell_for(node, &format!("sha256sum /tmp/{file}"), LONG);
        assert_eq!(sum(&said).len(), 64, "{said}");
        sum(&said).to_owned()
    };
    let sent = sha256(0, "much");
    net.shell_for(0, &format!("{copy} /tmp/much n1:/tmp/much && rm /tmp/much"), LONG);
    assert_eq!(sha256(1, "much"), sent);
    net.shell_for(0, &format!("{copy} n1:/tmp/much /tmp/back"), LONG);
    assert_eq!(sha256(0, "back"), sent);
    net.shell(0, "rm /tmp/back");
    net.shell(1, "rm /tmp/much");
}

/// A folder of node 1 on node 0, by NFS over TCP; a file goes there and is read again.
fn nfs(net: &Net) {
    net.shell(0, "head -c 8000000 /dev/urandom >/tmp/big");
    net.shell(
        1,
        "mkdir -p /srv/share && mount -t tmpfs share /srv/share && \
         mount -t nfsd nfsd /proc/fs/nfsd && \
         echo '/srv/share *(rw,fsid=0,insecure,no_root_squash,no_subtree_check)' >/etc/exports && \
         exportfs -ra && rpc.mountd -N 2 -N 3 && rpc.nfsd -N 3 -V 4.2 -G 10 -L 10 4 && \
         echo Y >/proc/fs/nfsd/v4_end_grace",
    );
    let mount = "mount -t nfs4 -o proto=tcp n1:/ /mnt";
    net.shell_for(0, &format!("{mount} && cp /tmp/big /mnt/big && umount /mnt"), LONG);
    // Read from the server, not from the cache.
    let said =
        net.shell_for(0, &format!("{mount} && sha256sum /tmp/big /mnt/big && umount /mnt"), LONG);
    let mut sums = said.lines().map(sum);
    assert_eq!(sums.next(), sums.next(), "{said}");
    assert_eq!(sum(&net.shell(1, "sha256sum /srv/share/big")), sum(&said));
}

/// A job of uTofu whose ranks check every byte that they put into each other's memory. It runs as
/// long as `meanwhile`, which uses IP between the same nodes.
fn beside_rdma(net: &Net, sdk: &Sdk, meanwhile: impl FnOnce()) {
    sdk.compile("programs/rdma.c", &["-ltofucom", "-ltofutop", "-lpthread"]);
    let stop = "/tmp/stop-rdma";
    let mut rdma =
        Running::start(sdk.command(&net.place, &["run", "-n", "2", "./rdma", stop]), b"");
    assert_eq!(rdma.line(), "0: begun\n");
    meanwhile();
    assert!(rdma.runs(), "{:?}", rdma.end(LONG));
    net.shell(0, &format!("touch {stop}"));
    let said = rdma.end(LONG).ok();
    let ranks: Vec<_> = said.lines().filter(|line| line.contains(" rounds of ")).collect();
    assert!(ranks.len() == 2 && ranks.iter().all(|line| line.ends_with(", 0 wrong")), "{said}");
    // Neither starved the other.
    assert!(ranks.iter().all(|line| !line.contains(" 0 rounds")), "{said}");
    net.shell(0, &format!("rm {stop}"));
}

/// The results of a bandwidth test by TCP, in both directions at the same time, in bit/s.
fn iperf(net: &Net, seconds: u32) -> [f64; 2] {
    let said = net.shell_for(0, &format!("iperf3 --json --bidir -c n1 -t {seconds}"), LONG);
    let said: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{said}: {error}"));
    ["sum_received", "sum_received_bidir_reverse"]
        .map(|way| said["end"][way]["bits_per_second"].as_f64().unwrap_or(0.0))
}

#[test]
fn programs_over_tofu0() {
    let Some(net) = Net::start_with(2, "512MiB", &[]) else { return };
    net.ssh();
    scp(&net, 20);
    nfs(&net);
    let Some(sdk) = net.mpi_program() else { return };
    net.shell(1, "iperf3 -s -D");
    beside_rdma(&net, &sdk, || {
        let rates = iperf(&net, 2);
        assert!(rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
        net.stream(0, 1, 4 << 20, |_| ());
        net.mpi(5);
    });
}

/// MPI and RDMA for a while.
#[test]
fn programs_over_tofu0_for_long() {
    if !long() {
        return;
    }
    let Some(net) = Net::start(2, &[]) else { return };
    net.ssh();
    scp(&net, 100);
    let Some(sdk) = net.mpi_program() else { return };
    beside_rdma(&net, &sdk, || {
        net.stream(0, 1, 64 << 20, |_| ());
        net.mpi(1000);
    });
}
