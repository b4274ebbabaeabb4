//! Machines in shards by the launchers themselves: an SSH server, Slurm's daemons, and Kubernetes'
//! schemas. Each test is skipped where its programs are not installed.

use std::fs::{self, Permissions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tofu_c_tests::run;
use tofu_linux_tests::skip;

use crate::tofu::{Place, free_addresses, wait_for};

/// Longest time for a machine.
const LONGEST: &str = "800s";
/// Four nodes in a row, which are cut in the middle.
const SHAPE: &str = "4x1x1x1x1x1";
const TOFU: &str = env!("CARGO_BIN_EXE_tofu");

/// Where programs are that this host has, or says which one it lacks.
fn installed<const N: usize>(programs: [&str; N]) -> Option<[PathBuf; N]> {
    let path = std::env::var("PATH").unwrap_or_default();
    // Servers are not on everybody's path.
    let dirs: Vec<_> = path.split(':').chain(["/usr/sbin", "/sbin"]).map(PathBuf::from).collect();
    let find = |program: &str| {
        let found = dirs.iter().map(|dir| dir.join(program)).find(|file| file.is_file());
        if found.is_none() {
            skip(&format!("{program} is not installed"));
        }
        found
    };
    let found: Vec<_> = programs.into_iter().map_while(find).collect();
    found.try_into().ok()
}

/// A server, which ends with the test.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Writes a file that only its user may read.
fn write(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, Permissions::from_mode(0o700)).unwrap();
}

fn both_shards(code: Option<i32>, out: &str, err: &str) {
    assert_eq!(code, Some(0), "{out}{err}");
    for expected in ["shard 0/2, 2 of 4 VMs", "shard 1/2, 2 of 4 VMs", "all 2 guests succeeded"] {
        assert!(out.contains(expected), "{out}{err}");
    }
}

#[test]
fn ssh_starts_shards_by_its_server() {
    const TEST: &str = "ssh_starts_shards_by_its_server";
    let place = Place::new();
    if !place.can_boot(TEST) {
        return;
    }
    let Some([sshd, ssh, keygen]) = installed(["sshd", "ssh", "ssh-keygen"]) else { return };
    let dir = place.path().join("ssh");
    fs::create_dir(&dir).unwrap();
    let (at, port) = (dir.display(), free_port());
    for key in ["host", "key"] {
        let file = dir.join(key);
        run(Command::new(&keygen).args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file));
    }
    // Its separation of privileges wants a folder, which a service would make.
    let _ = fs::create_dir("/run/sshd");
    write(
        &dir.join("sshd_config"),
        &format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {at}/host\n\
             AuthorizedKeysFile {at}/key.pub\nStrictModes no\nUsePAM no\nPidFile none\n\
             PasswordAuthentication no\n\
             SetEnv XDG_CACHE_HOME={at}/cache XDG_RUNTIME_DIR={}\n",
            place.path().display()
        ),
    );
    let user = rustix::process::getuid();
    let user = Command::new("id").args(["-un", &user.as_raw().to_string()]).output().unwrap();
    let user = String::from_utf8(user.stdout).unwrap();
    write(
        &dir.join("config"),
        &format!(
            "Host one two\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\
             \n  IdentityFile {at}/key\n  UserKnownHostsFile {at}/known\
             \n  StrictHostKeyChecking accept-new\n"
        ),
    );
    let mut server = Command::new(sshd);
    server.args(["-D", "-e", "-f"]).arg(dir.join("sshd_config"));
    let server = Server::start(server.stderr(Stdio::null()));
    // The command takes the first ssh on the path, which this user has set up so.
    let bin = dir.join("bin");
    fs::create_dir(&bin).unwrap();
    let text = format!("#!/bin/sh\nexec {} -F {at}/config \"$@\"\n", ssh.display());
    write(&bin.join("ssh"), &text);
    let [first, second] = free_addresses();
    let hosts = dir.join("hosts.txt");
    // The first is sent the command.
    fs::write(&hosts, format!("one {first}\ntwo {second} {TOFU}\n")).unwrap();
    wait_for("the SSH server", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    let mut up = place.command(&["up", "--shape", SHAPE, "--guest", "ring", "--timeout", LONGEST]);
    up.arg("--hosts").arg(&hosts);
    up.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    let said = place.run_command(up);
    both_shards(said.code, &said.out, &said.err);
    assert!(said.err.contains("hosts.txt:1: one: copies the command"), "{}", said.err);
    assert!(fs::read_dir(dir.join("cache/tofu/commands")).unwrap().count() == 1);
    drop(server);
    place.is_clean();
}

/// Slurm's daemons for two nodes, both of them this host.
struct Slurm {
    conf: PathBuf,
    /// They are ended in this order.
    _daemons: Vec<Server>,
}

impl Slurm {
    const PROGRAMS: [&str; 4] = ["munged", "slurmctld", "slurmd", "sinfo"];

    fn start([munged, slurmctld, slurmd, sinfo]: [PathBuf; 4], dir: &Path) -> Self {
        fs::create_dir(dir).unwrap();
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        let at = dir.display();
        write(&dir.join("key"), &"tofu".repeat(32));
        fs::set_permissions(dir.join("key"), Permissions::from_mode(0o600)).unwrap();
        let option = |name: &str, file: &str| format!("--{name}={at}/{file}");
        let mut munge = Command::new(munged);
        munge.args(["--foreground", "--force"]).args([
            option("key-file", "key"),
            option("socket", "munge.socket"),
            option("pid-file", "munge.pid"),
            option("log-file", "munge.log"),
            option("seed-file", "munge.seed"),
        ]);
        let mut daemons = vec![Server::start(munge.stderr(Stdio::null()))];
        wait_for("munged", || dir.join("munge.socket").exists());
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim().split('.').next().unwrap();
        let [control, first, second] = [(); 3].map(|()| free_port());
        let conf = dir.join("slurm.conf");
        // Addresses as names of nodes, so that shards find each other without a name server.
        let text = format!(
            "ClusterName=tofu\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={control}\n\
             SlurmUser=root\nSlurmdUser=root\nAuthInfo=socket={at}/munge.socket\n\
             StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool-%n\n\
             SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd-%n.pid\n\
             SlurmctldLogFile={at}/slurmctld.log\nSlurmdLogFile={at}/slurmd-%n.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\n\
             MpiDefault=none\nSelectType=select/cons_tres\nKillWait=5\n\
             NodeName=127.0.0.[2-3] NodeHostname={host} Port=[{first},{second}] CPUs=2\n\
             PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE\n"
        );
        fs::write(&conf, text).unwrap();
        let daemon = |program: &Path, args: &[&str]| {
            let mut command = Command::new(program);
            command.arg("-D").args(args).env("SLURM_CONF", &conf).stderr(Stdio::null());
            Server::start(&mut command)
        };
        daemons.push(daemon(&slurmctld, &["-c"]));
        daemons.push(daemon(&slurmd, &["-N", "127.0.0.2"]));
        daemons.push(daemon(&slurmd, &["-N", "127.0.0.3"]));
        daemons.reverse();
        wait_for("Slurm's nodes", || {
            let mut info = Command::new(&sinfo);
            info.args(["-h", "-N", "-o", "%t"]).env("SLURM_CONF", &conf);
            let states = info.stderr(Stdio::null()).output().unwrap().stdout;
            String::from_utf8_lossy(&states).split_whitespace().eq(["idle"; 2])
        });
        Self { conf, _daemons: daemons }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", &self.conf);
        command
    }
}

#[test]
fn slurm_starts_shards_by_its_daemons() {
    const TEST: &str = "slurm_starts_shards_by_its_daemons";
    let place = Place::new();
    if !place.can_boot(TEST) {
        return;
    }
    let Some(programs) = installed(Slurm::PROGRAMS) else { return };
    if !rustix::process::getuid().is_root() {
        return skip("Slurm's daemons are root's");
    }
    let slurm = Slurm::start(programs, &place.path().join("slurm"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../slurm/tofu.sbatch");
    let sbatch = |nodes: &[&str], args: &[&str]| {
        let mut sbatch = slurm.command("sbatch");
        sbatch.args(["--parsable", "--output=job-%j.txt"]).args(nodes).arg(script);
        sbatch.args(["--shape", SHAPE, "--timeout", LONGEST]).args(args);
        sbatch.env("TOFU", TOFU).env("TOFU_PORT", free_port().to_string());
        sbatch.env("XDG_RUNTIME_DIR", place.path()).current_dir(place.path());
        sbatch
    };
    let printed = |job: &str| {
        let file = place.path().join(format!("job-{}.txt", job.trim()));
        fs::read_to_string(file).unwrap_or_default()
    };
    // A shard on each of two nodes, and two shards on a node.
    for nodes in [&["--nodes=2"][..], &["--nodes=1", "--ntasks-per-node=2"]] {
        let options = [&["--wait"], nodes].concat();
        let said = place.run_command(sbatch(&options, &["--guest", "ring"]));
        both_shards(said.code, &printed(&said.out), &said.err);
    }

    // A job that is cancelled ends all shards, and leaves no certificates.
    let job = place.run_command(sbatch(&["--nodes=2"], &["--args", "rounds=1000000000"])).ok();
    wait_for("guests of both shards run", || {
        place.ps()[0]["nodes"].as_array().is_some_and(|nodes| nodes.len() == 4)
    });
    run(slurm.command("scancel").arg(job.trim()));
    wait_for("the shards have ended", || place.ps().as_array().is_some_and(Vec::is_empty));
    let hosts = place.path().join(format!("tofu-hosts-{}", job.trim()));
    wait_for("the job's certificates are gone", || !hosts.exists());
    drop(slurm);
    place.is_clean();
}

#[test]
fn manifests_match_kubernetes_schemas() {
    let Some([validate]) = installed(["kubernetes-validate"]) else { return };
    let list: Value = serde_json::from_str(include_str!("../../../kubernetes/tofu.json")).unwrap();
    let place = Place::new();
    let check = |item: &Value| {
        let file = place.path().join("item.json");
        fs::File::create(&file).unwrap().write_all(item.to_string().as_bytes()).unwrap();
        Command::new(&validate).args(["--strict", "--quiet"]).arg(file).output().unwrap()
    };
    for item in list["items"].as_array().unwrap() {
        let said = check(item);
        assert!(said.status.success(), "{}: {said:?}", item["kind"]);
        let mut wrong = item.clone();
        wrong["spec"]["unheard_of"] = Value::from(1);
        assert!(!check(&wrong).status.success(), "{}: anything goes", item["kind"]);
    }
}
