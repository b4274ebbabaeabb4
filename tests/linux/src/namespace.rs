//! Network namespaces, in which interfaces, routes and rules can be changed without effects on the
//! host.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tofu_c_tests::{have, run};

use crate::skip;

/// A network namespace, until it is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// A new one with its loopback interface up; or `None`, after the reason was printed for which
    /// `test` cannot have one with TAP interfaces here.
    pub fn new() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !Path::new("/dev/net/tun").exists() {
            skip("the host has no TAP interfaces");
            return None;
        }
        let name = format!("tofu-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let why = match Command::new("ip").args(["netns", "add", &name]).output() {
            Ok(output) if output.status.success() => {
                let this = Self { name };
                this.ip(&["link", "set", "dev", "lo", "up"]);
                return Some(this);
            }
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => format!("cannot run ip: {error}"),
        };
        skip(&format!("no network namespace can be made: {why}"));
        None
    }

    /// The output of `ip` in it.
    ///
    /// # Panics
    ///
    /// If it does not succeed.
    #[track_caller]
    pub fn ip(&self, args: &[&str]) -> String {
        run(Command::new("ip").args(["-n", &self.name]).args(args))
    }

    /// The same command, in the namespace.
    pub fn command(&self, command: &Command) -> Command {
        within(&self.name, command)
    }

    /// Joins it with another namespace by a pair of interfaces of this name, with these addresses.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    #[track_caller]
    pub fn join(&self, interface: &str, other: &Self, addresses: [&str; 2]) {
        let peer = ["peer", "name", interface, "netns", &other.name];
        self.ip(&[&["link", "add", interface, "type", "veth"][..], &peer].concat());
        for (namespace, address) in [self, other].into_iter().zip(addresses) {
            namespace.ip(&["addr", "add", address, "dev", interface]);
            namespace.ip(&["link", "set", "dev", interface, "up"]);
        }
    }

    /// Calls `f` on a thread that is in the namespace.
    ///
    /// # Panics
    ///
    /// If `f` does, or no thread gets there.
    pub fn inside<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                f()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Everything that a gateway may change: interfaces, routes, forwarding, and the names of
    /// tables or chains of rules.
    pub fn state(&self) -> String {
        let forward = "/proc/sys/net/ipv4/ip_forward";
        let forward = self.inside(|| std::fs::read_to_string(forward).unwrap_or_default());
        let rules = match have("nft") {
            true => self.said("nft", &["list", "tables"]),
            false => ["nat", "filter"].map(|of| self.said("iptables", &["-t", of, "-S"])).concat(),
        };
        let (links, routes) = (self.ip(&["-o", "link"]), self.ip(&["route"]));
        format!("{links}{routes}forwarding {forward}{rules}")
    }

    /// True if a state has the rules of the machine of this name.
    pub fn translates(state: &str, machine: &str) -> bool {
        let table = format!("table ip tofu-{machine}");
        let chain = format!("-N tofu-{machine}");
        state.lines().any(|line| line == table || line == chain)
    }

    /// The output of a program in the namespace; nothing if the host does not have it.
    fn said(&self, program: &str, args: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(args);
        let output = self.command(&command).output().map(|output| output.stdout);
        String::from_utf8_lossy(&output.unwrap_or_default()).into_owned()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // An error cannot be reported here.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// The same command, in the network namespace of this name.
pub fn within(namespace: &str, command: &Command) -> Command {
    let mut inside = Command::new("ip");
    inside.args(["netns", "exec", namespace]);
    inside.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    inside
}

/// Returns true if the host has a program for address translation.
pub fn can_translate() -> bool {
    have("nft") || have("iptables")
}
