//! Machines of Linux nodes with programs for networks.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::sdk::{Sdk, has_compiler};
use crate::{Image, MOMENT, PATIENCE, Place, Running, skip, wait_for};

/// The program that nodes run, and where it is there.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/ip.py");
const THERE: &str = "/tmp/ip.py";
/// Time for a machine to boot on a busy host.
const BOOT: Duration = Duration::from_secs(420);
/// Time for a long step.
pub const LONG: Duration = Duration::from_secs(900);

/// The body of the answer of a web server to a request for the file `data`.
#[track_caller]
pub fn fetch(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /data HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4;
    answer.split_off(end)
}

/// A `tofu forward` to port 80 of a node, and its port here.
#[track_caller]
pub fn forward(place: &Place, node: &str) -> (Running, u16) {
    let mut forward = place.start(&["forward", "--json", &format!("0:{node}:80")]);
    let said: Value = serde_json::from_str(&forward.line()).unwrap();
    let port = said["listen"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
    (forward, port)
}

/// So many MiB of random bytes arrive by TCP unchanged, at a node and its address.
#[track_caller]
pub fn streams(place: &Place, from: usize, (to, address): (usize, &str), mib: u32) {
    // The listener must not get the end of its input, or it ends too early.
    let listen =
        "rm -f /tmp/got; (sleep 60 | nc -l -p 5002 >/tmp/got) </dev/null >/dev/null 2>&1 &";
    place.shell(to, listen);
    let send = format!(
        "dd if=/dev/urandom of=/tmp/sent bs=1M count={mib} 2>/dev/null; \
         for i in $(seq 50); do nc {address} 5002 </tmp/sent && break; sleep 0.2; done; \
         md5sum </tmp/sent"
    );
    let sent = place.shell(from, &send);
    wait_for("the last bytes", MOMENT, || place.shell(to, "md5sum </tmp/got") == sent);
}

/// A machine called `net` whose nodes have the program `ip.py`.
pub struct Net {
    /// The folder in which it runs.
    pub place: Place,
    nodes: usize,
}

impl Net {
    /// Starts a machine of `nodes` nodes with these arguments of `tofu up`; `None`, after the
    /// reason was printed, if this host cannot.
    pub fn start(nodes: usize, args: &[&str]) -> Option<Self> {
        Self::start_with(nodes, "288MiB", args)
    }

    /// The same with another size of the nodes' memory, half of which holds the files that a node
    /// writes.
    pub fn start_with(nodes: usize, memory: &str, args: &[&str]) -> Option<Self> {
        let place = Place::new(Image::Network)?;
        let options = ["--name", "net", "--image", Image::Network.name(), "--memory", memory];
        // Twelve nodes boot some at a time.
        let up = ["up", "--linux", "--detach", "--boot-timeout", "400s"];
        place.run_for(&[&up, &options[..], args].concat(), BOOT, b"").ok();
        let this = Self { place, nodes };
        this.bring(0..nodes);
        Some(this)
    }

    /// Starts the machine of this file, in which these nodes are Linux.
    pub fn of_file(text: &str, nodes: &[usize]) -> Option<Self> {
        let place = Place::new(Image::Network)?;
        let file = place.file("machine.toml");
        std::fs::write(&file, text).unwrap();
        let up = ["up", "-c", &file, "--name", "net", "--image", Image::Network.name()];
        let options = ["--memory", "288MiB", "--detach", "--boot-timeout", "400s"];
        place.run_for(&[&up[..], &options].concat(), BOOT, b"").ok();
        let this = Self { place, nodes: nodes.len() };
        this.bring(nodes.iter().copied());
        Some(this)
    }

    /// Brings the program to nodes.
    fn bring(&self, nodes: impl IntoIterator<Item = usize>) {
        for node in nodes {
            self.place.run(&["cp", PROGRAM, &format!("{node}:{THERE}")]).ok();
        }
    }

    /// Runs a shell's command line on a node.
    #[track_caller]
    pub fn shell(&self, node: usize, line: &str) -> String {
        self.shell_for(node, line, PATIENCE)
    }

    /// Runs a shell's command line that takes long.
    #[track_caller]
    pub fn shell_for(&self, node: usize, line: &str, time: Duration) -> String {
        let node = node.to_string();
        self.place.run_for(&["exec", &node, "--", "sh", "-c", line], time, b"").ok()
    }

    /// Starts the program on a node.
    pub fn begin(&self, node: usize, args: &[&str]) -> Running {
        let node = node.to_string();
        // The options avoid searches at Python's start, which take emulated processors seconds.
        let command = ["exec", node.as_str(), "--", "python3", "-I", "-S", THERE];
        self.place.start(&[&command, args].concat())
    }

    /// Runs the program on a node; returns its output.
    #[track_caller]
    pub fn python(&self, node: usize, args: &[&str]) -> Value {
        self.begin(node, args).end(LONG).json()
    }

    /// Moves `bytes` bytes each way between two nodes at the same time, while something else
    /// happens. All bytes must arrive as they were sent.
    #[track_caller]
    pub fn stream(&self, from: usize, to: usize, bytes: u64, meanwhile: impl FnOnce(&mut Running)) {
        let bytes_text = bytes.to_string();
        let server = self.begin(to, &["serve", &bytes_text]);
        let mut client = self.begin(from, &["connect", &format!("n{to}"), &bytes_text]);
        meanwhile(&mut client);
        let [client, server] = [client, server].map(|running| running.end(LONG).json());
        for (one, other) in [(&client, &server), (&server, &client)] {
            assert_eq!(one["bytes"], bytes, "{client} {server}");
            assert_eq!(one["taken"], other["given"], "{client} {server}");
        }
    }

    /// Lets node 0 log in on all nodes by ssh.
    #[track_caller]
    pub fn ssh(&self) {
        let key = self.shell(
            0,
            "mkdir -p -m 700 ~root/.ssh && ssh-keygen -q -t ed25519 -N '' -f ~root/.ssh/id_ed25519 \
             && cat ~root/.ssh/id_ed25519.pub",
        );
        let options = "StrictHostKeyChecking no\\nUserKnownHostsFile /dev/null\\nLogLevel ERROR\\n";
        let prepare = format!(
            "mkdir -p -m 700 ~root/.ssh /run/sshd && echo '{}' >~root/.ssh/authorized_keys && \
             printf '{options}' >~root/.ssh/config && /usr/sbin/sshd",
            key.trim()
        );
        self.place.exec_all(&["sh", "-c", &prepare]);
    }

    /// Compiles the program `mpi_ip` and copies it to all nodes; `None`, after the reason was
    /// printed, if this host cannot.
    #[track_caller]
    pub fn mpi_program(&self) -> Option<Sdk> {
        if !has_compiler() {
            return None;
        }
        let sdk = Sdk::new(&self.place);
        if !sdk.add_mpi(&self.place) {
            return None;
        }
        sdk.compile_mpi("programs/mpi_ip.c", &[]);
        for node in 0..self.nodes {
            self.place
                .run(&["cp", &self.place.file("mpi_ip"), &format!("{node}:/tmp/mpi_ip")])
                .ok();
        }
        Some(sdk)
    }

    /// Runs it on all nodes with this number of rounds, over `tofu0` alone: started by ssh from
    /// node 0.
    #[track_caller]
    pub fn mpi(&self, rounds: u32) {
        let hosts: Vec<_> = (0..self.nodes).map(|node| format!("n{node}")).collect();
        let said = self.shell_for(
            0,
            &format!(
                "HYDRA_LAUNCHER=ssh UCX_TLS=tcp,self UCX_NET_DEVICES=tofu0 mpiexec -iface tofu0 \
                 -hosts {} -n {} /tmp/mpi_ip {rounds} 2>&1",
                hosts.join(","),
                self.nodes
            ),
            LONG,
        );
        let names = self.place.exec_all(&["hostname"]);
        for (rank, name) in names.iter().enumerate() {
            // Each line begins with its node.
            let name = name.split_whitespace().last().unwrap_or_default();
            let line = format!("rank {rank} of {} on {name}", self.nodes);
            assert!(said.lines().any(|other| other == line), "{line}: {said}");
        }
        assert!(said.lines().any(|line| line == "0 wrong"), "{said}");
    }

    /// All answer to all.
    #[track_caller]
    pub fn everybody_answers(&self) {
        for node in 0..self.nodes {
            let peer = (node + 1) % self.nodes;
            // With -W it would wait for the last answers no longer than two round trips.
            let said = self.shell(node, &format!("ping -c 3 -i 0.2 -w 10 n{peer}"));
            assert!(said.contains(" 0% packet loss"), "{said}");
        }
    }

    /// Counters of a node's link.
    #[track_caller]
    pub fn counters(&self, node: usize) -> Value {
        let text = self.shell(node, "tofu-net stats --json");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }
}

/// Returns true if tests of minutes are wanted.
pub fn long() -> bool {
    let long = std::env::var_os("TOFU_LONG").is_some();
    if !long {
        skip("takes minutes; TOFU_LONG=1 runs it");
    }
    long
}
