//! Machines in parts: `tofu hosts init`, `tofu up --part`.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use tofu_linux_tests::{Running, Said, kill};

use crate::tofu::{Place, wait_for};

/// Longest time for a machine.
const LONGEST: Duration = Duration::from_secs(900);
/// Four nodes in a row, which are cut in the middle.
const SHAPE: &str = "4x1x1x1x1x1";

/// A place, and a folder in it for two parts at ports that are free.
struct Hosts {
    place: Place,
    addresses: Vec<String>,
}

impl Hosts {
    fn new() -> Self {
        let free: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses = free.iter().map(|free| free.local_addr().unwrap().to_string()).collect();
        let hosts = Self { place: Place::new(), addresses };
        hosts.init("demo");
        hosts
    }

    /// Makes a folder with the same addresses.
    fn init(&self, name: &str) -> String {
        let dir = self.dir(name);
        let args = ["hosts", "init", "--dir", &dir, &self.addresses[0], &self.addresses[1]];
        self.place.run(&args).ok()
    }

    fn dir(&self, name: &str) -> String {
        self.place.path().join(name).to_str().unwrap().to_owned()
    }

    /// The command of a part, with a folder of this name.
    fn command(&self, folder: &str, part: &str, args: &[&str]) -> Command {
        let mut command = self.place.command(&["up", "--timeout", "800s", "--join"]);
        command.args([&self.dir(folder), "--part", part]).args(args);
        command
    }

    fn start(&self, part: &str, args: &[&str]) -> Running {
        Running::start(self.command("demo", part, &[&["--shape", SHAPE], args].concat()), b"")
    }

    /// Starts both parts and waits for their ends.
    fn both(&self, args: &[&str]) -> [Said; 2] {
        let parts = ["0/2", "1/2"].map(|part| self.start(part, args));
        parts.map(|part| part.end(LONGEST))
    }

    /// Waits until somebody listens at the address of a part.
    fn wait_for(&self, part: usize) {
        wait_for("a part listens", || TcpStream::connect(&self.addresses[part]).is_ok());
    }
}

#[test]
fn small_guests_run_over_two_parts() {
    let hosts = Hosts::new();
    if !hosts.place.can_boot("small_guests_run_over_two_parts") {
        return;
    }
    for (guest, says) in [
        ("allpairs", "3 peers: put, get and atomic verified 1 times"),
        ("ring", "the token came back after 4 hops"),
    ] {
        let [first, second] = hosts.both(&["--guest", guest]).map(Said::ok);
        for (out, part, [own, not]) in [
            (&first, "part 0/2, 2 of 4 VMs", ["(1,0,0,0,0,0)", "(2,0,0,0,0,0)"]),
            (&second, "part 1/2, 2 of 4 VMs", ["(2,0,0,0,0,0)", "(1,0,0,0,0,0)"]),
        ] {
            assert!(out.contains(part) && out.contains("all 2 guests succeeded"), "{out}");
            assert!(out.contains(own) && !out.contains(not), "{out}");
        }
        assert!(first.contains(says), "{first}");
    }
    hosts.place.is_clean();
}

#[test]
fn what_is_no_part_of_the_machine_is_refused() {
    let hosts = Hosts::new();
    let refused = |part, args: &[&str], expected: &str| {
        let error = hosts.place.run_command(hosts.command("demo", part, args)).error();
        assert!(error.contains(expected), "{error}");
    };
    let shape = ["--shape", SHAPE];
    refused("3/2", &shape, "a part is I/N, such as 0/2");
    refused("0/3", &shape, "has addresses for 2 parts; give 0/2");
    refused("0/5", &[], "the shape 1x1x1x2x3x2 cannot be cut into 5 parts");
    refused("0/2", &["--linux"], "a machine in parts cannot have Linux nodes so far");
    refused("0/2", &["--links", "modelled"], "a machine in parts cannot have modelled links");
    refused("0/2", &["--generation", "tnw"], "cannot have the torus network of TNW");
    let elsewhere = format!("3={}", hosts.dir("x.pcapng"));
    refused("0/2", &[&shape[..], &["--capture", &elsewhere]].concat(), "it is in part 1");
    let error = hosts.place.run(&["up", "--part", "0/2"]).error();
    assert!(error.contains("--join"), "{error}");
    let error = hosts.place.run_command(hosts.command("none", "0/2", &shape)).error();
    assert!(error.contains("parts.toml; `tofu hosts init` makes it"), "{error}");
    let dir = hosts.dir("demo");
    let error = hosts.place.run(&["hosts", "init", "--dir", &dir, "here:1"]).error();
    assert!(error.contains("is there already"), "{error}");
    hosts.place.is_clean();
}

#[test]
fn strangers_and_second_claimants_are_turned_away() {
    let hosts = Hosts::new();
    if !hosts.place.can_boot("strangers_and_second_claimants_are_turned_away") {
        return;
    }
    let first = hosts.start("0/2", &[]);
    hosts.wait_for(0);
    let shape = ["--shape", SHAPE];
    let error = hosts.place.run_command(hosts.command("demo", "0/2", &shape)).error();
    assert!(error.contains("part 0 of machine tofu is taken"), "{error}");

    // The same addresses, but another authority.
    hosts.init("other");
    let mut stranger = hosts.command("other", "1/2", &shape);
    let mut stranger = stranger.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(stranger.stderr.take().unwrap()).lines();
    let why = lines.map(Result::unwrap).find(|line| line.contains("certificate")).unwrap();
    assert!(why.contains(&format!("part 0 at {}", hosts.addresses[0])), "{why}");
    stranger.kill().unwrap();
    stranger.wait().unwrap();

    let second = hosts.start("1/2", &[]);
    let (first, second) = (first.end(LONGEST), second.end(LONGEST));
    // By the stranger's alert, or by the end of the connection if it was killed before that.
    assert!(first.err.contains("127.0.0.1 is turned away: "), "{}", first.err);
    assert_eq!((first.code, second.code), (Some(0), Some(0)), "{}\n{}", first.err, second.err);
    hosts.place.is_clean();
}

#[test]
fn parts_of_different_machines_refuse_each_other() {
    let hosts = Hosts::new();
    let first = hosts.start("0/2", &[]);
    let other = hosts.command("demo", "1/2", &["--shape", "2x2x1x1x1x1"]);
    let second = Running::start(other, b"");
    for said in [first.end(LONGEST), second.end(LONGEST)] {
        assert_eq!(said.code, Some(2), "{}", said.err);
        let last = said.err.lines().last().unwrap_or_default();
        assert!(last.contains(SHAPE) && last.contains("2x2x1x1x1x1"), "{}", said.err);
    }
    hosts.place.is_clean();
}

#[test]
fn a_part_that_is_killed_ends_the_others() {
    let hosts = Hosts::new();
    if !hosts.place.can_boot("a_part_that_is_killed_ends_the_others") {
        return;
    }
    let args = ["--args", "rounds=1000000000"];
    let parts = ["0/2", "1/2"].map(|part| hosts.start(part, &args));
    wait_for("guests of both parts run", || {
        let machines = hosts.place.ps();
        let nodes = |machine: &serde_json::Value| machine["nodes"].as_array().map_or(0, Vec::len);
        machines.as_array().is_some_and(|all| all.iter().map(nodes).sum::<usize>() == 4)
    });
    let machines = hosts.place.ps();
    assert_eq!([&machines[0]["name"], &machines[1]["name"]], ["tofu-part0", "tofu-part1"]);
    let [first, second] = parts;
    kill(second.id());
    let said = first.end(LONGEST);
    assert_eq!(said.code, Some(1), "{}", said.err);
    let lost = "part 1 is lost: its process has ended; its links are down";
    assert!(said.out.contains(lost), "{}", said.out);
    second.end(LONGEST);
    hosts.place.is_clean();
}
