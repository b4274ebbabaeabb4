//! The control socket, as an independent program uses it: text over a UNIX socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tofu_control::protocol::{EventKind, Reply, Request};

use crate::tofu::{PATIENCE, Place, wait_for};

const PAGE: &str = include_str!("../../../../docs/src/reference/control.md");

/// A client that knows only JSON.
struct Stranger {
    out: UnixStream,
    input: BufReader<UnixStream>,
}

impl Stranger {
    /// Connects to the machine of this name and takes the greeting.
    fn connect(place: &Place, machine: &str) -> Self {
        let out = UnixStream::connect(place.path().join("tofu").join(machine).join("control"));
        let out = out.unwrap();
        out.set_read_timeout(Some(PATIENCE)).unwrap();
        let input = BufReader::new(out.try_clone().unwrap());
        let mut stranger = Self { out, input };
        let hello = stranger.hear().unwrap();
        assert_eq!((&hello["reply"], &hello["protocol"]), (&"hello".into(), &1.into()));
        stranger
    }

    fn say(&mut self, line: &str) {
        self.out.write_all(line.as_bytes()).unwrap();
    }

    /// The next line; `None` at the end.
    fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.input.read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    fn ask(&mut self, request: &Value) -> Value {
        self.say(&format!("{request}\n"));
        self.hear().unwrap()
    }

    #[track_caller]
    fn done(&mut self, request: &Value) {
        assert_eq!(self.ask(request), json!({"reply": "done"}), "{request}");
    }
}

/// The lines of the manual's examples that begin with `arrow`.
fn examples(arrow: &str) -> Vec<Value> {
    let blocks = PAGE.split("```json\n").skip(1).map(|block| block.split("```").next().unwrap());
    let lines = blocks.flat_map(str::lines).filter_map(|line| line.strip_prefix(arrow));
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

/// The names of all requests, or of all replies, from the error for one that does not exist.
fn names<T: serde::de::DeserializeOwned>(tag: &str) -> Vec<String> {
    let error = serde_json::from_value::<T>(json!({tag: "?"})).err().unwrap().to_string();
    let names: Vec<_> = error.split('`').skip(3).step_by(2).map(str::to_owned).collect();
    assert!(names.len() > 8, "{error}");
    names
}

#[test]
fn manual_has_every_message_with_an_example() {
    for example in examples("-> ") {
        let request: Request = serde_json::from_value(example.clone())
            .unwrap_or_else(|error| panic!("{example}: {error}"));
        let again = serde_json::to_value(request).unwrap();
        for (field, value) in example.as_object().unwrap() {
            assert_eq!(&again[field], value, "{field} of {example}");
        }
    }
    for example in examples("<- ") {
        let reply: Reply = serde_json::from_value(example.clone())
            .unwrap_or_else(|error| panic!("{example}: {error}"));
        assert_eq!(serde_json::to_value(reply).unwrap(), example);
    }
    for (arrow, tag, names) in
        [("-> ", "request", names::<Request>("request")), ("<- ", "reply", names::<Reply>("reply"))]
    {
        let examples = examples(arrow);
        for name in names {
            assert!(examples.iter().any(|example| example[tag] == *name), "no example of {name}");
        }
    }
    for event in names::<EventKind>("event") {
        assert!(PAGE.contains(&format!("`{event}`")), "{event}");
    }
}

#[test]
fn plain_text_client_gets_answers() {
    let place = Place::new();
    let (mut process, _) = place.start(&["serve", "--shape", "2x1x1x1x1x1", "--json"]);
    let mut stranger = Stranger::connect(&place, "tofu");
    mistakes(&mut stranger);
    let mut follower = Stranger::connect(&place, "tofu");
    follower.done(&json!({"request": "events"}));
    // Several requests in one write, and empty lines.
    stranger.say("\n{\"request\":\"links\"}\n{\"request\":\"set_link\",\"node\":0,");
    stranger.say("\"port\":\"X+\",\"up\":false}\r\n{\"request\":\"links\"}\n");
    assert_eq!(stranger.hear().unwrap(), json!({"reply": "links", "down": []}));
    assert_eq!(stranger.hear().unwrap(), json!({"reply": "done"}));
    let down = json!([{"node": 0, "port": "X+"}]);
    assert_eq!(stranger.hear().unwrap()["down"], down);
    let event = follower.hear().unwrap();
    assert_eq!(
        (&event["event"], &event["at"], &event["port"], &event["up"]),
        (&"link".into(), &json!([0, 0, 0, 0, 0, 0]), &"X+".into(), &false.into())
    );
    stranger.done(&json!({"request": "set_faults", "faults": "loss=1%,seed=0"}));
    assert_eq!(follower.hear().unwrap()["faults"], "loss=1%,seed=0");
    assert_eq!(stranger.ask(&json!({"request": "faults"}))["faults"]["faults"], "loss=1%,seed=0");
    let registers = stranger.ask(&json!({"request": "registers", "node": 1}));
    let registers = registers["registers"].as_array().unwrap();
    let address = registers.iter().find(|register| register["name"] == "NODE_ADDRESS").unwrap();
    assert_eq!((&address["of"], &address["value"]), (&"tofu".into(), &(1 << 18).into()));
    assert!(address["fields"].as_array().unwrap().contains(&json!(["x", "1"])), "{address}");
    // A client attaches to a device, and leaves.
    let info = stranger.ask(&json!({"request": "info"}));
    assert_eq!(
        (&info["nodes"][1]["kind"], &info["nodes"][1]["state"]),
        (&"served".into(), &"waiting".into())
    );
    let socket = place.path().join("tofu/tofu/node-1-0-0-0-0-0.sock");
    let client = UnixStream::connect(socket).unwrap();
    assert_eq!(follower.hear().unwrap()["event"], "attached");
    let info = stranger.ask(&json!({"request": "info"}));
    assert_eq!(info["nodes"][1]["state"], "attached");
    assert_eq!(place.ps()[0]["nodes"][1]["state"], "attached");
    drop(client);
    let event = follower.hear().unwrap();
    assert_eq!((&event["event"], &event["node"]), (&"detached".into(), &1.into()));
    // A capture that the client ends.
    let mut capture = Stranger::connect(&place, "tofu");
    let first = capture.ask(&json!({"request": "capture", "node": 0}));
    assert_eq!(first["reply"], "packets");
    capture.out.shutdown(std::net::Shutdown::Write).unwrap();
    let last = std::iter::from_fn(|| capture.hear()).last().unwrap();
    assert_eq!((&last["reply"], &last["packets"]), (&"captured".into(), &0.into()));
    // A line without an end.
    let mut endless = Stranger::connect(&place, "tofu");
    endless.say(&"x".repeat(256 << 10));
    let why = endless.hear().unwrap()["why"].to_string();
    assert!(why.contains("a line of more than 262144 bytes"), "{why}");
    stranger.done(&json!({"request": "down"}));
    assert_eq!(follower.hear().unwrap()["event"], "down");
    process.ok();
    place.is_clean();
}

/// Mistakes cost an answer, not the connection.
fn mistakes(stranger: &mut Stranger) {
    for (line, expected) in [
        ("hello\n", "not a request: expected value"),
        ("{\"request\":\"dance\"}\n", "unknown variant `dance`, expected one of `info`"),
        ("{\"request\":\"pause\",\"nod\":0}\n", "unknown field `nod`"),
        ("{\"request\":\"pause\",\"node\":0}\n", "the node has no virtual machine"),
        ("{\"request\":\"counters\",\"node\":2}\n", "the machine 2x1x1x1x1x1 has no node 2"),
        ("{\"request\":\"exec\",\"node\":0,\"args\":[\"true\"]}\n", "not a Linux node"),
        ("{\"request\":\"set_link\",\"node\":0,\"port\":\"Q\",\"up\":true}\n", "no port Q; ports"),
        ("{\"request\":\"capture\",\"node\":0,\"on\":[\"tni6\"]}\n", "on: places are tni, tni0"),
    ] {
        stranger.say(line);
        let answer = stranger.hear().unwrap();
        let why = answer["why"].as_str().unwrap_or_default();
        assert!(answer["reply"] == "error" && why.contains(expected), "{line}: {answer}");
    }
}

#[test]
fn jobs_take_nodes_in_arrival_order() {
    let place = Place::new();
    let (mut process, _) = place.start(&["serve", "--shape", "2x2x1x1x1x1", "--json"]);
    let mut follower = Stranger::connect(&place, "tofu");
    follower.done(&json!({"request": "events"}));
    let job = |command: &str| json!({"request": "job", "command": command, "pid": 7});
    let take = |nodes: &[u32]| json!({"request": "take", "nodes": nodes, "alone": true});
    let turn = |job: u32| json!({"reply": "turn", "job": job});
    let queued = |job: u32, before: u32| json!({"reply": "queued", "job": job, "before": before});
    let mut one = Stranger::connect(&place, "tofu");
    assert_eq!(one.ask(&job("one")), turn(1));
    let mut two = Stranger::connect(&place, "tofu");
    assert_eq!(two.ask(&job("two\u{1b}[2J")), queued(2, 1));
    let mut three = Stranger::connect(&place, "tofu");
    assert_eq!(three.ask(&job("three")), queued(3, 2));
    // Mistakes cost an answer.
    for (request, expected) in [
        (take(&[0, 4]), "has no node 4"),
        (take(&[]), "one node or more"),
        (json!({"request": "links"}), "the connection is that of job 1"),
        (json!({"request": "dance"}), "not a request"),
    ] {
        let answer = one.ask(&request);
        let why = answer["why"].as_str().unwrap_or_default();
        assert!(answer["reply"] == "error" && why.contains(expected), "{request}: {answer}");
    }
    for request in [take(&[3]), json!({"request": "wait"})] {
        assert_eq!(three.ask(&request)["why"], "it is not the turn of job 3");
    }
    one.done(&take(&[0, 1]));
    assert_eq!(two.hear().unwrap(), turn(2));
    assert_eq!(three.hear().unwrap(), queued(3, 1));
    assert_eq!(two.ask(&take(&[1, 2]))["why"], "node 1 is job 1's");
    two.say("{\"request\":\"wait\"}\n");
    // The commands that only read.
    let jobs = &place.ps()[0]["jobs"];
    assert_eq!(
        (&jobs[0]["nodes"], &jobs[0]["state"], &jobs[1]["state"], &jobs[2]["job"]),
        (&json!([0, 1]), &"running".into(), &"queued".into(), &3.into())
    );
    let text = place.run(&["ps"]).ok();
    assert!(text.contains("0-1 alone  one"), "{text}");
    let topo = place.run(&["topo", "--machine"]).ok();
    assert!(topo.lines().any(|line| line.contains("(0,0,0,0,0,0)  1 ")), "{topo}");
    // Taking fewer nodes needs no turn, and wakes waiting jobs; so does a client that leaves.
    one.done(&take(&[0]));
    assert_eq!(two.hear().unwrap(), turn(2));
    two.done(&take(&[1, 2]));
    assert_eq!(three.hear().unwrap(), turn(3));
    three.say("{\"request\":\"wait\"}\n");
    drop(one);
    wait_for("the end of job 1", || place.ps()[0]["jobs"].as_array().unwrap().len() == 2);
    assert_eq!(three.hear().unwrap(), turn(3));
    three.done(&take(&[3, 0]));
    let events: Vec<_> = std::iter::from_fn(|| follower.hear()).take(8).collect();
    let of_one = events.iter().filter(|event| event["job"] == 1);
    let of_one: Vec<_> = of_one.map(|event| (&event["state"], &event["nodes"])).collect();
    let states = ["queued", "running", "running", "ended"].map(Value::from);
    let nodes = [json!([]), json!([0, 1]), json!([0]), json!([0])];
    assert_eq!(of_one, states.iter().zip(&nodes).collect::<Vec<_>>());
    assert!(events[1]["command"].as_str().is_some_and(|text| !text.contains('\u{1b}')));
    Stranger::connect(&place, "tofu").done(&json!({"request": "down"}));
    process.ok();
    place.is_clean();
}

#[test]
fn followers_hear_of_the_machines_end() {
    let place = Place::new();
    if !place.can_boot("followers_hear_of_the_machines_end") {
        return;
    }
    // It ends by itself, when all guests have, which wait until packets come through.
    let up = ["up", "--shape", "2x1x1x1x1x1", "--json", "--guest", "ping", "--args", "count=1"];
    let (mut machine, _) = place.start(&[&up[..], &["--faults", "loss=100%"]].concat());
    place.wait_for_machine();
    // The command prints its first line when it hears of the faults.
    let (mut events, _) = std::thread::scope(|scope| {
        let events = scope.spawn(|| place.start(&["events", "--json"]));
        while !events.is_finished() {
            place.run(&["fault", "set", "loss=100%"]).ok();
        }
        events.join().unwrap()
    });
    place.run(&["fault", "off"]).ok();
    let last: Value = serde_json::from_str(events.rest().lines().last().unwrap()).unwrap();
    assert_eq!(last["event"], "down");
    assert_eq!((machine.wait(), events.wait()), (Some(0), Some(0)));
}

/// `tofu inspect` of a machine of two running small guests.
fn inspects(place: &Place) {
    let all = place.run(&["inspect", "1"]).ok();
    for part in ["pci:", "msix:", "completions:", "STATUS:", "cq_enable", "port:"] {
        assert!(all.contains(part), "{part}: {all}");
    }
    let short = place.run(&["inspect", "1", "--depth", "1"]).ok();
    assert!(short.starts_with("node: index=1 doorbells="), "{short}");
    assert!(short.ends_with(" pci=... device=... faults=... router_up=yes link=...\n"), "{short}");
    let links = place.run(&["inspect", "1", "link"]).ok();
    assert!(links.contains(": up=yes to=0 at=(0,0,0,0,0,0)\n"), "{links}");
    let before = place.run(&["inspect", "1", "device/tni/0", "--json"]).ok();
    let tree: Value = serde_json::from_str(&before).unwrap();
    assert_eq!((&tree["node"], &tree["complete"]), (&1.into(), &true.into()));
    assert_eq!(tree["tree"]["enabled"], true);
    let file = place.path().join("before.json");
    std::fs::write(&file, &before).unwrap();
    let file = file.to_str().unwrap();
    // The node keeps counting.
    wait_for("a change", || {
        let changes = place.run(&["inspect", "1", "--diff", file]).ok();
        changes.lines().any(|line| line.contains("registers/NUM_SEND_TLP: "))
    });
    let walk = place.run(&["inspect", "1", "--translate", "5/11", "0x3:0"]).ok();
    assert!(walk.contains("STEERING_TABLE_ENABLE is 0"), "{walk}");
    for (args, expected) in [
        (&["1", "device/tni/9"][..], "device/tni has no 9; there are 0, 1, 2, 3, 4, 5"),
        (&["1", "device/prot"], "device has no prot; did you mean port? There are"),
        (&["1", "tni/0"], "the node has no tni; did you mean device/tni/0? There are index"),
        (&["1", "tni/9"], "the node has no tni; did you mean device/tni? There are index"),
        (&["1", "index/x"], "index has no parts, and so no x"),
        (&["0", "--diff", file], "the file is about node 1, not 0"),
        (
            &["1", "--diff", "/dev/null"],
            "cannot read /dev/null: it is a device; give a regular file",
        ),
        (&["1", "--diff", "/proc/version"], "is not what tofu inspect --json prints"),
        (&["1", "--translate", "0", "0:0"], "a TNI and a CQ, such as 0/3"),
        (&["1", "--translate", "9/0", "0:0"], "the device has no TNI 9 CQ 0"),
        (&["1", "--translate", "0/0", "99999999:0"], "there are no such STags or offsets"),
    ] {
        let error = place.run(&[&["inspect"], args].concat()).error();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn machines_of_small_guests_can_be_asked() {
    let place = Place::new();
    if !place.can_boot("machines_of_small_guests_can_be_asked") {
        return;
    }
    let up = ["up", "--shape", "2x1x1x1x1x1", "--json", "--timeout", "120s", "--guest", "ping"];
    let (mut machine, first) = place.start(&[&up[..], &["--args", "count=1000000"]].concat());
    assert_eq!(first["name"], "tofu");
    place.wait_for_machine();
    // The commands of a second terminal.
    wait_for("both to run", || {
        place.ps()[0]["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2)
    });
    let text = place.run(&["ps"]).ok();
    assert!(text.starts_with("machine tofu: 2x1x1x1x1x1") && text.contains(" bare "), "{text}");
    wait_for("both to count", || place.run(&["stats"]).ok().lines().count() == 3);
    assert_eq!(place.run(&["link", "ls"]).ok().lines().count(), 2);
    let regs = || place.run(&["regs", "1", "tofu", "status"]).ok();
    assert!(regs().contains("NODE_ADDRESS") && regs().contains("x=1"), "{}", regs());
    wait_for("its queue to be enabled", || regs().contains("cq_enable=1"));
    let error = place.run(&["regs", "0", "nosuch"]).error();
    assert!(error.contains("nosuch: no unit or register of this name"), "{error}");
    inspects(&place);
    let error = place.run(&["gdb", "0"]).error();
    assert!(error.contains("node 0 is a small guest"), "{error}");
    // Events, as the command prints them and as they come.
    let mut events = place.command(&["events", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let told = BufReader::new(events.stdout.take().unwrap());
    let (hear, heard) = mpsc::channel();
    let follower = thread::spawn(move || {
        for line in told.lines() {
            hear.send(serde_json::from_str(&line.unwrap()).unwrap()).unwrap();
        }
    });
    // Events before the follower has connected are not seen.
    wait_for("an event", || {
        for state in ["down", "up"] {
            place.run(&["link", state, "0", "X+"]).ok();
        }
        let event: Result<Value, _> = heard.recv_timeout(Duration::from_millis(100));
        event.is_ok_and(|event| event["event"] == "link")
    });
    let mut stranger = Stranger::connect(&place, "tofu");
    stranger.done(&json!({"request": "pause", "node": 1}));
    assert_eq!(place.ps()[0]["nodes"][1]["state"], "paused");
    stranger.done(&json!({"request": "resume", "node": 1}));
    assert_eq!(place.ps()[0]["nodes"][1]["state"], "running");
    // A command inspects a device while the machine ends.
    let mut watch = place.command(&["inspect", "0", "index", "--watch", "100ms"]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut looks = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert_eq!(looks.next().unwrap().unwrap(), "index: 0");
    place.run(&["down"]).ok();
    machine.wait();
    assert!(looks.all(|line| line.is_ok()));
    let said = std::io::read_to_string(watch.stderr.take().unwrap()).unwrap();
    assert_eq!(watch.wait().unwrap().code(), Some(2), "{said}");
    assert!(said.lines().count() == 1 && said.starts_with("tofu: "), "{said}");
    assert_eq!(events.wait().unwrap().code(), Some(0));
    follower.join().unwrap();
    assert!(heard.iter().any(|event| event["event"] == "down"));
    place.is_clean();
}
