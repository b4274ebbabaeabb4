//! Machines in shards by one command: `tofu up --hosts`, and Slurm.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tofu_linux_tests::{Running, interrupt};

use crate::tofu::{Place, free_addresses, wait_for};

/// Longest time for a machine.
const LONGEST: Duration = Duration::from_secs(900);
/// Four nodes in a row, divided in the middle.
const SHAPE: &str = "4x1x1x1x1x1";

/// A stand-in for ssh(1): each host is this host with a separate cache.
const SSH: &str = r#"#!/bin/sh
while [ "$1" != -- ]; do shift; done
if [ "$2" = nowhere ]; then
    echo "ssh: Could not resolve hostname nowhere: Name or service not known" >&2
    exit 255
fi
export XDG_CACHE_HOME="$CACHES/$2"
unset TOFU_CACHE
mkdir -p "$XDG_CACHE_HOME"
exec /bin/sh -c "$3"
"#;

/// A place with a program that takes precedence over others of its name.
struct Hosts {
    place: Place,
}

impl Hosts {
    fn new(program: &str, text: &str) -> Self {
        let place = Place::new();
        let bin = place.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let file = bin.join(program);
        write_program(&file, text);
        Self { place }
    }

    /// Makes the command find that program.
    fn with(&self, mut command: Command) -> Command {
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.place.path().join("bin").display()));
        command.env("CACHES", self.place.path().join("caches"));
        command
    }

    /// A command with a file of hosts.
    fn up(&self, hosts: &str, args: &[&str]) -> Command {
        let file = self.place.path().join("hosts.txt");
        fs::write(&file, hosts).unwrap();
        let mut command = self.place.command(&["up", "--timeout", "800s", "--shape", SHAPE]);
        command.arg("--hosts").arg(file).args(args);
        self.with(command)
    }

    /// The contents of the hosts' caches.
    fn caches(&self, host: &str) -> Vec<String> {
        let found = fs::read_dir(self.place.path().join("caches").join(host).join("tofu")).unwrap();
        found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn write_program(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

const TOFU: &str = env!("CARGO_BIN_EXE_tofu");

#[test]
fn hosts_get_command_and_shard_by_ssh() {
    let hosts = Hosts::new("ssh", SSH);
    if !hosts.place.can_boot("hosts_get_command_and_shard_by_ssh") {
        return;
    }
    let [first, second] = free_addresses();
    let file = format!("# both\none {first}\n\nme@two {second} {TOFU} # it has the command\n");
    let said = hosts.place.run_command(hosts.up(&file, &["--guest", "ring"]));
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    for expected in ["0: machine 4x1x1x1x1x1: shard 0/2", "1: all 2 guests succeeded"] {
        assert!(said.out.contains(expected), "{}", said.out);
    }
    let copies: Vec<_> =
        said.err.lines().filter(|line| line.contains("copies the command")).collect();
    assert!(copies.len() == 1 && copies[0].contains("hosts.txt:2: one: "), "{copies:?}");
    // The command is kept for the next time; keys are not.
    assert_eq!(hosts.caches("one"), ["commands"]);
    assert!(hosts.caches("me@two").is_empty());

    let said = hosts.place.run_command(hosts.up(&file, &["--guest", "ring", "--json"]));
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(!said.err.contains("copies the command"), "{}", said.err);
    let events = said.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let ended = events.filter(|event| event["event"] == "ended").map(|event| event["part"].clone());
    let mut shards: Vec<_> = ended.map(|shard| shard.as_u64().unwrap()).collect();
    shards.sort_unstable();
    assert_eq!(shards, [0, 0, 1, 1]);
    hosts.place.is_clean();
}

/// An image goes to hosts that have not got it, once. That it boots nothing is found there.
#[test]
fn hosts_get_the_image_that_is_named_once() {
    let hosts = Hosts::new("ssh", SSH);
    let cache = hosts.place.path().join("cache");
    let folder = cache.join("images/mine");
    fs::create_dir_all(&folder).unwrap();
    let files = ["initrd", "vmlinux"];
    let mut manifest = "format = 1\nname = \"mine\"\nfingerprint = \"f\"\nbuilt = 1\n\
                        kernel = \"6\"\narch = \"arm64\"\nwith = []\n"
        .to_owned();
    for file in files {
        fs::write(folder.join(file), file.repeat(100_000)).unwrap();
        let size = file.len() * 100_000;
        manifest += &format!("[files.{file}]\nsize = {size}\nsha256 = \"0\"\n");
    }
    fs::write(folder.join("manifest.toml"), &manifest).unwrap();
    let [first, second] = free_addresses();
    let file = format!("one {first} {TOFU}\ntwo {second} {TOFU}\n");
    for (round, copied) in [(0, 2), (1, 0)] {
        let mut up = hosts.up(&file, &["--linux", "--image", "mine"]);
        // There is no other cache for hosts to take one from.
        up.env("TOFU_CACHE", &cache).env("TOFU_QEMU", "/bin/true");
        up.env("TOFU_QEMU_ARM64", "/bin/true");
        let said = hosts.place.run_command(up);
        assert_eq!(said.code, Some(2), "{}", said.err);
        let copies = said.err.lines().filter(|line| line.contains("copies the image mine, 1 MiB"));
        assert_eq!(copies.count(), copied, "round {round}: {}", said.err);
        for host in ["one", "two"] {
            let there = hosts.place.path().join("caches").join(host).join("tofu/images/mine");
            for file in files.into_iter().chain(["manifest.toml"]) {
                let (sent, got) = (fs::read(folder.join(file)), fs::read(there.join(file)));
                assert!(sent.unwrap() == got.unwrap(), "{file}");
            }
            assert_eq!(fs::read_dir(there.parent().unwrap()).unwrap().count(), 1);
        }
    }
    // Without a name, hosts get the default image if they have none of that name.
    let ours = cache.join("images/default");
    fs::rename(&folder, &ours).unwrap();
    let manifest = manifest.replace("mine", "default");
    fs::write(ours.join("manifest.toml"), &manifest).unwrap();
    let caches = ["one", "two"].map(|host| hosts.place.path().join("caches").join(host));
    let theirs = caches[1].join("tofu/images/default");
    fs::create_dir_all(&theirs).unwrap();
    fs::write(theirs.join("manifest.toml"), manifest.replace("built = 1", "built = 2")).unwrap();
    for copied in [1, 0] {
        // The default image of nodes with other processors has another name.
        let mut up = hosts.up(&file, &["--linux", "--arch", "x86-64", "--driver", "vfio"]);
        up.env("TOFU_CACHE", &cache).env("TOFU_QEMU", "/bin/true");
        up.env("TOFU_QEMU_ARM64", "/bin/true");
        let said = hosts.place.run_command(up);
        let copies = said.err.lines().filter(|line| line.contains("copies the image default"));
        assert_eq!(copies.count(), copied, "{}", said.err);
        assert!(caches[0].join("tofu/images/default/vmlinux").exists());
        assert!(!theirs.join("vmlinux").exists());
    }
    hosts.place.is_clean();
}

#[test]
fn bad_host_is_reported_with_its_line() {
    let hosts = Hosts::new("ssh", SSH);
    let refused = |file: &str, args: &[&str], expected: &[&str]| {
        let error = hosts.place.run_command(hosts.up(file, args)).error();
        for expected in expected {
            assert!(error.contains(expected), "{error}");
        }
    };
    let [first, second] = free_addresses();
    let one = format!("one {first} {TOFU}\n");
    let nowhere = ["hosts.txt:2: nowhere: ", "Could not resolve hostname"];
    refused(&format!("{one}nowhere {second}\n"), &[], &nowhere);
    let fails = ["hosts.txt:2: two: the command does not run there"];
    refused(&format!("{one}two {second} /bin/false\n"), &[], &fails);
    let older = hosts.place.path().join("bin/older");
    write_program(&older, "#!/bin/sh\necho tofu 0.0.9\n");
    let other = ["hosts.txt:2: two: ", "bin/older there is tofu 0.0.9, this is "];
    refused(&format!("{one}two {second} {}\n", older.display()), &[], &other);
    // Its folder was made before the other host was contacted, or not at all.
    assert!(hosts.caches("one").is_empty() && hosts.caches("two").is_empty());
    refused(&format!("{one}two {first}\n"), &[], &["hosts.txt", "two shards cannot listen at"]);
    refused("-x\n", &[], &["hosts.txt:1: -x: a line is [USER@]HOST"]);
    refused("# none\n", &[], &["hosts.txt: no hosts"]);
    refused(&one.repeat(5), &[], &["4x1x1x1x1x1 cannot be cut into 5 shards"]);
    refused(&one, &["--guest", "none"], &["none"]);
    // A shard that fails to start ends those that wait for it.
    let broken = hosts.place.path().join("bin/broken");
    let text =
        format!("#!/bin/sh\n[ $1 = --version ] && exec {TOFU} $1\necho broken >&2\nexit 3\n");
    write_program(&broken, &text);
    let file = format!("{one}two {second} {}\n", broken.display());
    let said = hosts.place.run_command(hosts.up(&file, &[]));
    let last = said.err.lines().last().unwrap_or_default();
    assert_eq!(said.code, Some(2), "{}", said.err);
    assert!(last.contains("hosts.txt:2: two: exit code 3: broken"), "{}", said.err);
    hosts.place.is_clean();
}

#[test]
fn ctrl_c_ends_the_shards_of_all_hosts() {
    let hosts = Hosts::new("ssh", SSH);
    if !hosts.place.can_boot("ctrl_c_ends_the_shards_of_all_hosts") {
        return;
    }
    let [first, second] = free_addresses();
    let file = format!("one {first} {TOFU}\ntwo {second} {TOFU}\n");
    let machine = Running::start(hosts.up(&file, &["--args", "rounds=1000000000"]), b"");
    wait_for("guests of both shards run", || {
        hosts.place.ps()[0]["nodes"].as_array().is_some_and(|nodes| nodes.len() == 4)
    });
    interrupt(machine.id());
    let said = machine.end(LONGEST);
    assert_eq!(said.code, Some(130), "{}{}", said.out, said.err);
    assert!(hosts.caches("one").is_empty() && hosts.caches("two").is_empty());
    hosts.place.is_clean();
}

/// A stand-in for srun(1): two tasks on this host.
const SRUN: &str = r#"#!/bin/sh
shift
export SLURM_NTASKS=2
SLURM_PROCID=0 "$@" & first=$!
SLURM_PROCID=1 "$@" & second=$!
wait $first && wait $second
"#;

/// The first of two ports in a row that are free.
fn two_free_ports() -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let next = first.checked_add(1).map(|next| TcpListener::bind(("127.0.0.1", next)));
        if matches!(next, Some(Ok(_))) {
            return first;
        }
    }
}

#[test]
fn tasks_of_slurm_are_shards() {
    let hosts = Hosts::new("srun", SRUN);
    if !hosts.place.can_boot("tasks_of_slurm_are_shards") {
        return;
    }
    let port = two_free_ports().to_string();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../slurm/tofu.sbatch");
    let mut command = Command::new("sh");
    command.args([script, "--shape", SHAPE, "--guest", "ring", "--timeout", "800s"]);
    for (name, value) in [
        ("TOFU", TOFU),
        ("TOFU_PORT", &port),
        ("SLURM_JOB_ID", "17"),
        ("SLURM_JOB_NODELIST", "localhost"),
        ("SLURM_TASKS_PER_NODE", "2"),
    ] {
        command.env(name, value);
    }
    command.env("XDG_RUNTIME_DIR", hosts.place.path());
    command.env("SLURM_SUBMIT_DIR", hosts.place.path());
    let said = hosts.place.run_command(hosts.with(command));
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    for expected in ["shard 0/2, 2 of 4 VMs", "shard 1/2, 2 of 4 VMs"] {
        assert!(said.out.contains(expected), "{}", said.out);
    }
    assert!(!hosts.place.path().join("tofu-hosts-17").exists(), "the certificates are left there");

    let mut command = hosts.place.command(&["up", "--shard", "slurm", "--join", "none"]);
    command.env_remove("SLURM_PROCID");
    let error = hosts.place.run_command(command).error();
    assert!(error.contains("SLURM_PROCID is not set"), "{error}");
    hosts.place.is_clean();
}

/// The manifests for Kubernetes have the fields that the API requires (apps/v1 StatefulSet, core/v1
/// Service), and their names agree.
#[test]
fn manifests_for_kubernetes_fit_together() {
    let text = include_str!("../../../kubernetes/tofu.json");
    let list: Value = serde_json::from_str(text).unwrap();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&"List".into(), &"v1".into()));
    let of =
        |kind: &str| list["items"].as_array().unwrap().iter().find(|item| item["kind"] == kind);
    let (service, set) = (of("Service").unwrap(), of("StatefulSet").unwrap());
    assert_eq!((&service["apiVersion"], &set["apiVersion"]), (&"v1".into(), &"apps/v1".into()));
    let (service_spec, spec) = (&service["spec"], &set["spec"]);
    // Headless, and with names for pods that are not ready: shards connect to each other.
    assert_eq!(
        (&service_spec["clusterIP"], &spec["podManagementPolicy"]),
        (&"None".into(), &"Parallel".into())
    );
    assert_eq!(service_spec["publishNotReadyAddresses"], true);
    assert_eq!(spec["serviceName"], service["metadata"]["name"]);
    let labels = &spec["template"]["metadata"]["labels"];
    assert!(labels.is_object() && spec["selector"]["matchLabels"] == *labels);
    assert_eq!(service_spec["selector"], *labels);

    let pod = &spec["template"]["spec"];
    let container = &pod["containers"][0];
    for field in ["name", "image", "command", "args", "volumeMounts", "securityContext"] {
        assert!(!container[field].is_null(), "{field}");
    }
    assert_eq!(container["ports"][0]["containerPort"], service_spec["ports"][0]["port"]);
    let shards = spec["replicas"].as_u64().unwrap();
    let env = |name: &str| {
        let found = container["env"].as_array().unwrap().iter().find(|env| env["name"] == name);
        found.unwrap()["value"].as_str().unwrap().to_owned()
    };
    assert_eq!(env("SHARDS"), shards.to_string());
    let volumes = pod["volumes"].as_array().unwrap();
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
    }

    let place = Place::new();
    check_secret(&place, shards, volumes);

    // The container's command line is valid, with a shape that can be divided in this way.
    let line = container["args"][0].as_str().unwrap();
    assert!(
        line.contains("tofu up --shard \"${HOSTNAME##*-}/$SHARDS\" --join /hosts $MACHINE"),
        "{line}"
    );
    let mut up = place.command(&["up", "--shard", &format!("0/{shards}"), "--join", "none"]);
    up.args(env("MACHINE").split(' '));
    let error = place.run_command(up).error();
    assert!(error.contains("parts.toml; `tofu hosts init` makes it"), "{error}");
}

/// The secret has each file of `tofu hosts init`, and the script writes it.
fn check_secret(place: &Place, shards: u64, volumes: &[Value]) {
    let dir = place.path().join("demo");
    let dir = dir.to_str().unwrap();
    let addresses: Vec<_> = (0..shards).map(|shard| format!("tofu-{shard}.tofu:7700")).collect();
    let addresses = addresses.iter().map(String::as_str);
    place
        .run(&["hosts", "init", "--dir", dir].into_iter().chain(addresses).collect::<Vec<_>>())
        .ok();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../kubernetes/secret.sh");
    let said = Command::new("sh").args([script, dir]).output().unwrap();
    assert!(said.status.success());
    let written: Value = serde_json::from_slice(&said.stdout).unwrap();
    let secret = volumes.iter().find_map(|volume| volume.get("secret")).unwrap();
    assert_eq!(written["metadata"]["name"], secret["secretName"]);
    let data = written["data"].as_object().unwrap();
    let items = secret["items"].as_array().unwrap();
    assert_eq!(items.len(), data.len());
    for item in items {
        let file =
            fs::read(place.path().join("demo").join(item["path"].as_str().unwrap())).unwrap();
        let coded = data[item["key"].as_str().unwrap()].as_str().unwrap();
        let base64 = Running::start(coder(), coded.as_bytes()).end(LONGEST);
        assert_eq!(base64.ok().into_bytes(), file, "{item}");
    }
}

/// A program that decodes base64.
fn coder() -> Command {
    let mut command = Command::new("base64");
    command.arg("-d");
    command
}
