//! Machines in shards: `tofu hosts init`, `tofu up --shard`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tofu_linux_tests::namespace::within;
use tofu_linux_tests::{Running, Said, interrupt, kill, signal, skip};

use crate::failing::schedule::Random;
use crate::tofu::{Place, free_addresses, wait_for};

/// Longest time for a machine.
const LONGEST: Duration = Duration::from_secs(900);
/// Four nodes in a row, divided in the middle.
const SHAPE: &str = "4x1x1x1x1x1";

/// A place, and a folder in it for shards at ports that are free.
pub(crate) struct Hosts {
    pub(crate) place: Place,
    pub(crate) addresses: Vec<String>,
}

impl Hosts {
    /// For two shards.
    pub(crate) fn new() -> Self {
        Self::of::<2>()
    }

    fn of<const SHARDS: usize>() -> Self {
        let hosts = Self { place: Place::new(), addresses: free_addresses::<SHARDS>().into() };
        hosts.init("demo");
        hosts
    }

    /// Makes a folder with the same addresses.
    pub(crate) fn init(&self, name: &str) -> String {
        let dir = self.dir(name);
        let addresses = self.addresses.iter().map(String::as_str);
        let args: Vec<_> = ["hosts", "init", "--dir", &dir].into_iter().chain(addresses).collect();
        self.place.run(&args).ok()
    }

    fn dir(&self, name: &str) -> String {
        self.place.path().join(name).to_str().unwrap().to_owned()
    }

    /// The command of a shard, with a folder of this name.
    pub(crate) fn command(&self, folder: &str, shard: &str, args: &[&str]) -> Command {
        // The tests have their own limits.
        let mut command = self.place.command(&["up", "--timeout", "24h", "--join"]);
        command.args([&self.dir(folder), "--shard", shard]).args(args);
        command
    }

    fn start(&self, shard: &str, args: &[&str]) -> Running {
        Running::start(self.command("demo", shard, &[&["--shape", SHAPE], args].concat()), b"")
    }

    /// Starts one of the shards with these options alone.
    fn start_one(&self, shard: usize, args: &[&str]) -> Running {
        let name = format!("{shard}/{}", self.addresses.len());
        Running::start(self.command("demo", &name, args), b"")
    }

    /// Starts both shards and waits for their ends.
    fn both(&self, args: &[&str]) -> [Said; 2] {
        let shards = ["0/2", "1/2"].map(|shard| self.start(shard, args));
        shards.map(|shard| shard.end(LONGEST))
    }

    /// Waits until the guests of both shards run.
    fn wait_for_guests(&self) {
        self.wait_for_nodes(4);
    }

    /// Waits until all shards know `nodes` nodes.
    fn wait_for_nodes(&self, nodes: usize) {
        wait_for("guests of all shards run", || {
            let machines = self.place.ps();
            let whole = |machine: &Value| machine["nodes"].as_array().map_or(0, Vec::len) == nodes;
            machines.as_array().is_some_and(|all| all.len() == 1 && whole(&all[0]))
        });
    }

    /// Waits until the address of a shard is served.
    fn wait_for(&self, shard: usize) {
        wait_for("a shard listens", || TcpStream::connect(&self.addresses[shard]).is_ok());
    }
}

#[test]
fn small_guests_run_over_two_shards() {
    let hosts = Hosts::new();
    if !hosts.place.can_boot("small_guests_run_over_two_shards") {
        return;
    }
    for (guest, says) in [
        ("allpairs", "3 peers: put, get and atomic verified 1 times"),
        ("ring", "the token came back after 4 hops"),
    ] {
        let [first, second] = hosts.both(&["--guest", guest]).map(Said::ok);
        for (out, shard, [own, not]) in [
            (&first, "shard 0/2, 2 of 4 VMs", ["(1,0,0,0,0,0)", "(2,0,0,0,0,0)"]),
            (&second, "shard 1/2, 2 of 4 VMs", ["(2,0,0,0,0,0)", "(1,0,0,0,0,0)"]),
        ] {
            assert!(out.contains(shard) && out.contains("all 2 guests succeeded"), "{out}");
            assert!(out.contains(own) && !out.contains(not), "{out}");
        }
        assert!(first.contains(says), "{first}");
    }
    hosts.place.is_clean();
}

#[test]
fn nodes_of_all_shards_boot_over_the_torus() {
    let hosts = Hosts::new();
    if !hosts.place.can_boot("nodes_of_all_shards_boot_over_the_torus") {
        return;
    }
    // The server takes the place of the last node, so that shard 1 has one guest.
    let shards = ["0/2", "1/2"].map(|shard| hosts.start(shard, &["--boot", "tofu"]));
    let [first, second] = shards.map(|shard| shard.end(LONGEST).ok());
    assert!(first.contains("all 2 guests succeeded"), "{first}");
    assert!(second.contains("the guest succeeded") || second.contains("all 1 guests"), "{second}");
    for out in [&first, &second] {
        assert!(out.contains("2 peers: put, get and atomic verified 1 times"), "{out}");
    }
    hosts.place.is_clean();
}

#[test]
fn gateway_reaches_all_shards_from_any() {
    let hosts = Hosts::new();
    if !hosts.place.can_boot("gateway_reaches_all_shards_from_any") {
        return;
    }
    let guest = ["--guest", "httpd", "--args", "forever=1 count=0 size=64"];
    let args = [&guest[..], &["--gateway", "3,0,0,0,0,0", "--tap", "off"]].concat();
    let shards = ["0/2", "1/2"].map(|shard| hosts.start(shard, &args));
    hosts.wait_for_guests();
    for (shard, node) in [(0, 0), (0, 2), (1, 1), (1, 2)] {
        let to = format!("0:tofu-part{shard}/{node}:80");
        let mut forward = hosts.place.command(&["forward", "--json", &to]);
        let mut forward = forward.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(forward.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        let at = said["listen"].as_str().unwrap().to_owned();
        wait_for("the node sends its page", || {
            let Ok(mut stream) = TcpStream::connect(&at) else { return false };
            let asked = stream.write_all(b"GET / HTTP/1.0\r\nConnection: close\r\n\r\n");
            let mut page = Vec::new();
            let mut chunk = [0; 1024];
            while let Ok(read @ 1..) = stream.read(&mut chunk) {
                page.extend_from_slice(&chunk[..read]);
                if String::from_utf8_lossy(&page).contains(&format!("This is node {node}.")) {
                    return asked.is_ok();
                }
            }
            false
        });
        interrupt(forward.id().into());
        forward.wait().unwrap();
    }
    hosts.place.run(&["down", "tofu-part0"]).ok();
    for shard in shards {
        let said = shard.end(LONGEST);
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    }
    hosts.place.is_clean();
}

#[test]
fn stranger_shard_is_refused() {
    let hosts = Hosts::new();
    let refused = |shard, args: &[&str], expected: &str| {
        let error = hosts.place.run_command(hosts.command("demo", shard, args)).error();
        assert!(error.contains(expected), "{error}");
    };
    let shape = ["--shape", SHAPE];
    refused("3/2", &shape, "a shard is I/N, such as 0/2");
    refused("0/3", &shape, "has addresses for 2 shards; give 0/2");
    refused("0/5", &[], "the shape 1x1x1x2x3x2 cannot be cut into 5 shards");
    refused("0/2", &["--linux", "--net", "lan"], "--net: a machine in shards has no Ethernet");
    refused("0/2", &["--links", "modelled"], "a machine in shards cannot have modelled links");
    let elsewhere = format!("3={}", hosts.dir("x.pcapng"));
    refused("0/2", &[&shape[..], &["--capture", &elsewhere]].concat(), "it is in shard 1");
    let error = hosts.place.run(&["up", "--shard", "0/2"]).error();
    assert!(error.contains("--join"), "{error}");
    // The options' former names.
    let former = ["up", "--part", "0/3", "--end-with-part", "--join", &hosts.dir("demo")];
    let error = hosts.place.run(&[&former[..], &shape].concat()).error();
    assert!(error.contains("has addresses for 2 shards"), "{error}");
    let error = hosts.place.run_command(hosts.command("none", "0/2", &shape)).error();
    assert!(error.contains("parts.toml; `tofu hosts init` makes it"), "{error}");
    let dir = hosts.dir("demo");
    let error = hosts.place.run(&["hosts", "init", "--dir", &dir, "here:1"]).error();
    assert!(error.contains("is there already"), "{error}");
    hosts.place.is_clean();
}

#[test]
fn strangers_and_claimants_are_refused() {
    let hosts = Hosts::new();
    if !hosts.place.can_boot("strangers_and_claimants_are_refused") {
        return;
    }
    let first = hosts.start("0/2", &[]);
    hosts.wait_for(0);
    let shape = ["--shape", SHAPE];
    let error = hosts.place.run_command(hosts.command("demo", "0/2", &shape)).error();
    assert!(error.contains("shard 0 of machine tofu is taken"), "{error}");

    // The same addresses, but another authority.
    hosts.init("other");
    let mut stranger = hosts.command("other", "1/2", &shape);
    let mut stranger = stranger.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(stranger.stderr.take().unwrap()).lines();
    let why = lines.map(Result::unwrap).find(|line| line.contains("certificate")).unwrap();
    assert!(why.contains(&format!("shard 0 at {}", hosts.addresses[0])), "{why}");
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
fn shards_of_different_machines_are_refused() {
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
fn killed_shard_ends_the_others() {
    let hosts = Hosts::new();
    if !hosts.place.can_boot("killed_shard_ends_the_others") {
        return;
    }
    let args = ["--args", "rounds=1000000000", "--end-with-shard"];
    let shards = ["0/2", "1/2"].map(|shard| hosts.start(shard, &args));
    hosts.wait_for_guests();
    let [first, second] = shards;
    kill(second.id());
    let said = first.end(LONGEST);
    assert_eq!(said.code, Some(1), "{}", said.err);
    let lost = "shard 1 is lost: its process has ended; its links are down";
    assert!(said.out.contains(lost), "{}", said.out);
    second.end(LONGEST);
    hosts.place.is_clean();
}

#[test]
fn commands_reach_the_machine_from_any_shard() {
    let hosts = Hosts::new();
    let place = &hosts.place;
    if !place.can_boot("commands_reach_the_machine_from_any_shard") {
        return;
    }
    let args = ["--args", "rounds=1000000000", "--grace", "700s"];
    let [first, second] = ["0/2", "1/2"].map(|shard| hosts.start(shard, &args));
    hosts.wait_for_guests();
    let mut events = ["tofu-part0", "tofu-part1"]
        .map(|shard| Running::start(place.command(&["events", "--json", shard]), b""));
    events_of_all(place, &mut events);

    let ps = &place.ps()[0];
    assert_eq!(ps["name"], "tofu");
    let nodes = ps["nodes"].as_array().unwrap();
    let of = |field: &str| nodes.iter().map(|node| node[field].clone()).collect::<Vec<_>>();
    assert_eq!(of("part"), [0, 0, 1, 1]);
    assert_eq!(of("state"), ["paused"; 4]);
    let shards: Vec<_> =
        ps["parts"].as_array().unwrap().iter().map(|shard| &shard["state"]).collect();
    assert_eq!(shards, ["here", "there"]);
    assert_eq!(ps["parts"][1]["address"], hosts.addresses[1].as_str());
    let text = place.run(&["ps"]).ok();
    assert!(text.contains("machine tofu: ") && text.contains(", 2 shards"), "{text}");

    // Counters of another shard's node are the same from both.
    let stats = |node: &str| place.run(&["stats", "--json", node]).ok();
    assert_eq!(stats("tofu-part0/3"), stats("tofu-part1/3"));
    let all: Value = serde_json::from_str(&place.run(&["stats", "--json"]).ok()).unwrap();
    assert_eq!(all["nodes"].as_array().unwrap().len(), 4);
    let registers = place.run(&["regs", "2"]).ok();
    assert!(registers.contains("NODE_ADDRESS"), "{registers}");

    links_of_all(place);
    place.run(&["fault", "set", "loss=1%", "tofu-part0"]).ok();
    let faults = place.run(&["fault", "show", "tofu-part1"]).ok();
    assert!(faults.contains("loss=1%"), "{faults}");
    let error = place.run(&["exec", "3", "--", "true"]).error();
    assert!(error.contains("not a Linux node"), "{error}");

    // A capture of another shard's node has the packets of that node.
    let file = place.path().join("there.pcapng");
    let args = ["capture", "tofu-part0/3", "-w", file.to_str().unwrap(), "--count", "5"];
    let capture = Running::start(place.command(&args), b"");
    wait_for("the capture has begun", || file.metadata().is_ok_and(|file| file.len() > 0));
    place.run(&["fault", "off"]).ok();
    for node in ["0", "1", "2", "3"] {
        place.run(&["resume", node]).ok();
    }
    capture.end(LONGEST).ok();

    place.run(&["down", "tofu-part1"]).ok();
    for shard in [first, second] {
        let said = shard.end(LONGEST);
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        assert!(said.out.contains("going down"), "{}", said.out);
    }
    place.is_clean();
}

/// Links and nodes go down from any shard: within the other shard, between both, and back.
fn links_of_all(place: &Place) {
    let down = || {
        let of = |name| {
            let listed = place.run(&["link", "ls", "--down", "--json", name]).ok();
            let links: Value = serde_json::from_str(&listed).unwrap();
            links.as_array().unwrap().len()
        };
        let [one, two] = ["tofu-part0", "tofu-part1"].map(of);
        assert_eq!(one, two);
        one
    };
    assert_eq!(down(), 0);
    for (args, expected) in [
        (["link", "down", "tofu-part0/2", "3"], 1),
        (["link", "down", "tofu-part1/1", "2"], 2),
        (["link", "up", "tofu-part0/2", "3"], 1),
        (["link", "up", "tofu-part0/2", "1"], 0),
    ] {
        place.run(&args).ok();
        assert_eq!(down(), expected, "{args:?}");
    }
    for (args, expected) in [
        (&["node", "down", "--keep-guests", "tofu-part0/3", "tofu-part0/0"][..], 3),
        (&["node", "up", "tofu-part1/0", "tofu-part1/3"], 0),
    ] {
        place.run(args).ok();
        assert_eq!(down(), expected, "{args:?}");
    }
}

/// Either shard tells of the nodes of both, each once. Pauses all nodes.
fn events_of_all(place: &Place, events: &mut [Running; 2]) {
    // They follow from their first line on, which is one of this node's.
    for follower in &mut *events {
        while follower.line_so_far().is_none() {
            place.run(&["pause", "0"]).ok();
            place.run(&["resume", "0"]).ok();
        }
    }
    // Nothing else is to happen on the links.
    for node in ["0", "1", "2", "3"] {
        place.run(&["pause", node]).ok();
    }
    for follower in events {
        let mut paused = BTreeSet::new();
        while paused.len() < 3 {
            let event: Value = serde_json::from_str(&follower.line()).unwrap();
            let node = event["node"].as_u64();
            if event["event"] == "paused" && node != Some(0) {
                assert!(paused.insert(node), "{event} again");
            }
        }
    }
}

#[test]
fn shards_compare_what_has_to_be_the_same() {
    let hosts = Hosts::new();
    for (one, other, expected) in [
        (&["--guest", "ring"][..], &["--guest", "allpairs"][..], ["guest ring", "guest allpairs"]),
        (&["--args", "rounds=1"], &["--args", "rounds=2"], ["--args rounds=1", "--args rounds=2"]),
        (&[], &["--generation", "fx10"], ["generation fugaku", "generation fx10"]),
    ] {
        let shards = [hosts.start("0/2", one), hosts.start("1/2", other)];
        for said in shards.map(|shard| shard.end(LONGEST)) {
            assert_eq!(said.code, Some(2), "{}", said.err);
            let last = said.err.lines().last().unwrap_or_default();
            assert!(expected.iter().all(|what| last.contains(what)), "{}", said.err);
        }
    }
    hosts.place.is_clean();
}

/// Waits until a shard prints this.
pub(crate) fn wait_for_line(shard: &mut Running, what: &str) {
    while !shard.line().contains(what) {}
}

#[test]
fn killed_shard_comes_back() {
    let hosts = Hosts::new();
    if !hosts.place.can_boot("killed_shard_comes_back") {
        return;
    }
    // Each node fetches pages of all others, and then serves its own for ever.
    let args = ["--guest", "httpd", "--args", "forever=1 count=1"];
    let mut shards = ["0/2", "1/2"].map(|shard| hosts.start(shard, &args));
    let fetched = |shard: &mut Running| {
        (0..2).for_each(|_| wait_for_line(shard, "fetched 3 pages"));
    };
    shards.iter_mut().for_each(fetched);
    for (lost, stays) in [(0, 1), (1, 0)] {
        kill(shards[lost].id());
        let gone = format!("shard {lost} is lost: its process has ended; its links are down");
        wait_for_line(&mut shards[stays], &gone);
        // Its connections may be closed before its listener is.
        wait_for("the killed shard to have ended", || !shards[lost].runs());
        shards[lost] = hosts.start(["0/2", "1/2"][lost], &args);
        wait_for_line(&mut shards[stays], &format!("shard {lost} is back; its links are up"));
        fetched(&mut shards[lost]);
    }
    for shard in &shards {
        interrupt(shard.id());
    }
    for shard in shards {
        assert_eq!(shard.end(LONGEST).code, Some(130));
    }
    hosts.place.is_clean();
}

/// Waits until both nodes of a shard have fetched the pages of all nodes.
fn wait_for_all_pages(shard: &mut Running) {
    let mut nodes = BTreeSet::new();
    while nodes.len() < 2 {
        if let Some((node, _)) = shard.line().split_once(" fetched ") {
            nodes.insert(node.to_owned());
        }
    }
}

/// Three rounds; 1000 with `TOFU_LONG`, or as many as `TOFU_ROUNDS` says.
#[test]
fn loaded_shards_may_be_killed_any_time() {
    let hosts = Hosts::of::<3>();
    if !hosts.place.can_boot("loaded_shards_may_be_killed_any_time") {
        return;
    }
    let rounds = match (std::env::var("TOFU_ROUNDS"), std::env::var_os("TOFU_LONG")) {
        (Ok(rounds), _) => rounds.parse().unwrap(),
        (_, Some(_)) => 1000,
        _ => 3,
    };
    // Each node fetches pages of all others for ever, most of them through other shards.
    let args = ["--shape", "6x1x1x1x1x1", "--guest", "httpd", "--args", "again=1 size=3000"];
    let start = |shard| hosts.start_one(shard, &args);
    let mut shards = [0, 1, 2].map(start);
    shards.iter_mut().for_each(wait_for_all_pages);
    let mut random = Random(21);
    for round in 0..rounds {
        let first = random.below(3) as usize;
        // Sometimes another shard goes as well, or the same one before it is back.
        let second = match random.below(4) {
            0 => Some((first + 1) % 3),
            1 => Some(first),
            _ => None,
        };
        let killed: Vec<_> = [Some(first), second].into_iter().flatten().collect();
        for &shard in &killed {
            sleep(Duration::from_millis(random.below(400)));
            kill(shards[shard].id());
            wait_for("a killed shard to have ended", || !shards[shard].runs());
            shards[shard] = start(shard);
        }
        for &shard in &killed {
            wait_for_all_pages(&mut shards[shard]);
        }
        if round % 8 == 0 || round + 1 == rounds {
            eprintln!("round {round}: {killed:?} came back");
            for shard in &mut shards {
                shard.skip_lines();
                wait_for_all_pages(shard);
            }
        }
    }
    for shard in &shards {
        interrupt(shard.id());
    }
    // No guest has ended, or received wrong data.
    for shard in shards {
        let said = shard.end(LONGEST);
        assert_eq!(said.code, Some(130), "{said:?}");
    }
    hosts.place.is_clean();
}

/// Each shard but the two with the ends of a TCP stream is ended and started again, one after
/// another: the stream takes other ways.
#[test]
fn tcp_stream_outlives_shards_on_its_path() {
    let hosts = Hosts::of::<6>();
    if !hosts.place.can_boot("tcp_stream_outlives_shards_on_its_path") {
        return;
    }
    // Guests of the other nodes have nothing to do, and their shards wait for the two.
    let stream = ["--guest", "tcpbench", "--args", "verify=1 peer=9 bytes=1000000000000"];
    let args = [&["--shape", "unit"], &stream[..]].concat();
    let mut shards: Vec<_> = (0..6).map(|shard| hosts.start_one(shard, &args)).collect();
    hosts.wait_for_nodes(12);
    let place = &hosts.place;
    let ps = place.ps();
    let shard_of = |node: usize| ps[0]["nodes"][node]["part"].as_u64().unwrap() as usize;
    let (near, far) = (shard_of(0), shard_of(9));
    assert_ne!(near, far);
    let goes_on = |when: &str| {
        let sent = || {
            let node = format!("tofu-part{near}/0");
            let all: Value = place.run(&["stats", "--json", &node]).json();
            let tnis = all["nodes"][0]["tnis"].as_array().unwrap().iter();
            tnis.map(|tni| tni["NUM_SEND_TLP"].as_u64().unwrap()).sum::<u64>()
        };
        // Far more than retransmissions to a node that does not answer.
        let enough = sent() + 3000;
        wait_for(&format!("the stream continues {when}"), || sent() > enough);
    };
    goes_on("at first");
    for shard in (0..6).filter(|shard| ![near, far].contains(shard)) {
        interrupt(shards[shard].id());
        wait_for("an interrupted shard to have ended", || !shards[shard].runs());
        goes_on(&format!("without shard {shard}"));
        shards[shard] = hosts.start_one(shard, &args);
        wait_for_line(&mut shards[near], &format!("shard {shard} is back; its links are up"));
        goes_on(&format!("with shard {shard} again"));
    }
    place.run(&["down", &format!("tofu-part{near}")]).ok();
    for shard in shards {
        let said = shard.end(LONGEST);
        assert_eq!(said.code, Some(0), "{said:?}");
    }
    place.is_clean();
}

#[test]
fn returning_shard_learns_former_commands() {
    let hosts = Hosts::new();
    let place = &hosts.place;
    if !place.can_boot("returning_shard_learns_former_commands") {
        return;
    }
    let args = ["--guest", "httpd", "--args", "forever=1 count=0"];
    let [mut first, second] = ["0/2", "1/2"].map(|shard| hosts.start(shard, &args));
    hosts.wait_for_guests();
    let down = |shard: &str| {
        let links = place.run(&["link", "ls", "--down", "--json", shard]).json();
        links.as_array().unwrap().len()
    };
    let knows_faults = |shard: &str| {
        wait_for("the shard to know of faults", || {
            place.run(&["fault", "show", shard]).ok().contains("loss=1%")
        });
    };

    // Some settings are made before a shard goes, and some while it is away.
    place.run(&["link", "down", "tofu-part0/2", "3"]).ok();
    place.run(&["fault", "set", "loss=1%", "tofu-part0"]).ok();
    kill(second.id());
    wait_for_line(&mut first, "shard 1 is lost: its process has ended; its links are down");
    drop(second);
    assert_eq!(down("tofu-part0"), 3, "all but the link between 0 and 1");
    place.run(&["node", "down", "--keep-guests", "tofu-part0/2"]).ok();
    let mut second = hosts.start("1/2", &args);
    wait_for_line(&mut first, "shard 1 is back; its links are up");
    knows_faults("tofu-part1");
    wait_for("the shard to know of its node", || place.ps()[0]["nodes"][2]["down"] == true);
    assert_eq!(down("tofu-part0"), 2, "those of node 2");
    place.run(&["node", "up", "tofu-part1/2"]).ok();
    assert_eq!(down("tofu-part1"), 1);

    // Its settings are kept when the other one goes.
    kill(first.id());
    wait_for_line(&mut second, "shard 0 is lost: its process has ended; its links are down");
    drop(first);
    assert_eq!(down("tofu-part1"), 4);
    place.run(&["link", "up", "tofu-part1/3", "2"]).ok();
    assert_eq!(down("tofu-part1"), 3);
    let first = hosts.start("0/2", &args);
    wait_for_line(&mut second, "shard 0 is back; its links are up");
    knows_faults("tofu-part0");
    assert_eq!(down("tofu-part0"), 0);
    for shard in [&first, &second] {
        interrupt(shard.id());
    }
    for shard in [first, second] {
        assert_eq!(shard.end(LONGEST).code, Some(130));
    }
    place.is_clean();
}

/// Hosts that are cut off: two shards in network namespaces, joined by a pair of interfaces.
struct Namespaces([String; 2]);

impl Namespaces {
    /// `None` if this host or user cannot have any.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let names = [0, 1].map(|n| format!("tofu-{id}-{n}"));
        let namespaces = Self(names);
        let [near, far] = &namespaces.0;
        let made = ip(&["netns", "add", near]) && ip(&["netns", "add", far]);
        let veth = ["link", "add", "cable", "netns", near, "type", "veth", "peer", "cable"];
        if !made || !ip(&[&veth[..], &["netns", far]].concat()) {
            return None;
        }
        for (n, name) in namespaces.0.iter().enumerate() {
            let address = format!("10.77.0.{}/24", n + 1);
            assert!(ip(&["-n", name, "address", "add", &address, "dev", "cable"]));
            assert!(ip(&["-n", name, "link", "set", "cable", "up"]));
            assert!(ip(&["-n", name, "link", "set", "lo", "up"]));
        }
        Some(namespaces)
    }

    /// Takes the interface of the first one up or down.
    fn set(&self, up: &str) {
        assert!(ip(&["-n", &self.0[0], "link", "set", "cable", up]));
    }

    /// A command in one of them.
    fn enter(&self, n: usize, command: &Command) -> Command {
        within(&self.0[n], command)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&["netns", "delete", name]);
        }
    }
}

pub(crate) fn ip(args: &[&str]) -> bool {
    Command::new("ip").args(args).stderr(Stdio::null()).status().is_ok_and(|code| code.success())
}

#[test]
fn cut_off_host_is_lost_but_stopped_one_not() {
    let mut hosts = Hosts::new();
    let test = "cut_off_host_is_lost_but_stopped_one_not";
    if !hosts.place.can_boot(test) {
        return;
    }
    let Some(namespaces) = Namespaces::new() else {
        skip("no network namespaces: they need root and iproute2");
        return;
    };
    hosts.addresses = vec!["10.77.0.1:7700".to_owned(), "10.77.0.2:7700".to_owned()];
    hosts.init("apart");
    let args = ["--shape", SHAPE, "--guest", "httpd", "--args", "forever=1 count=1"];
    let start = |shard: usize| {
        let command = hosts.command("apart", ["0/2", "1/2"][shard], &args);
        Running::start(namespaces.enter(shard, &command), b"")
    };
    let mut shards = [0, 1].map(start);
    let fetched = |shard: &mut Running| {
        (0..2).for_each(|_| wait_for_line(shard, "fetched 3 pages"));
    };
    shards.iter_mut().for_each(fetched);

    // A process is stopped for longer than a host may be silent. It is not lost, and a later loss
    // has another reason.
    signal(shards[1].id(), Signal::STOP);
    sleep(Duration::from_secs(4));
    signal(shards[1].id(), Signal::CONT);

    namespaces.set("down");
    for (shard, other) in shards.iter_mut().zip([1, 0]) {
        let line = loop {
            let line = shard.line();
            if line.contains("is lost") {
                break line;
            }
        };
        let expected = format!("shard {other} is lost: its host does not answer; its links");
        assert!(line.contains(&expected), "{line}");
    }
    // The shard that was cut off is started again.
    namespaces.set("up");
    let [mut first, second] = shards;
    kill(second.id());
    drop(second);
    let mut second = start(1);
    wait_for_line(&mut first, "shard 1 is back; its links are up");
    fetched(&mut second);
    for shard in [first, second] {
        interrupt(shard.id());
        assert_eq!(shard.end(LONGEST).code, Some(130));
    }
    hosts.place.is_clean();
}
