//! Machines with a gateway: `tofu forward` without rights, and the host's interface with them.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tofu_linux_tests::namespace::{Namespace, can_translate};
use tofu_linux_tests::{interrupt, kill, skip};

use crate::tofu::{PATIENCE, Place, Process, wait_for};

/// Returns true if this host can run small guests; if not, says so.
fn can_run(place: &Place) -> bool {
    let doctor: Value = serde_json::from_str(&place.run(&["doctor", "--json"]).out).unwrap();
    let can = doctor["can_run"] == true;
    if !can {
        skip("small guests need KVM, which this host does not have");
    }
    can
}

/// Bytes of the page of each node: more than fits into the buffers on its way.
const PAGE: usize = 1 << 20;

/// A machine of four places whose first is the gateway, and whose nodes serve pages.
fn servers(place: &Place, more: &[&str]) -> Process {
    servers_in(place, more, |args| place.command(args))
}

/// The same, by a command that `make` makes from these arguments.
fn servers_in(place: &Place, more: &[&str], make: impl Fn(&[&str]) -> Command) -> Process {
    let args = format!("forever=1 count=0 size={PAGE}");
    let fixed = ["up", "--json", "--shape", "1x1x1x2x1x2", "--gateway", "0,0,0,0,0,0"];
    let guest = ["--guest", "httpd", "--args", &args];
    let (process, machine) = Process::start(make(&[&fixed[..], &guest, more].concat()));
    assert_eq!((&machine["event"], &machine["vms"]), (&json!("machine"), &json!(3)), "{machine}");
    wait_for("the nodes to run", || {
        let nodes = &place.ps()[0]["nodes"];
        nodes
            .as_array()
            .is_some_and(|all| all.iter().filter(|n| n["state"] == "running").count() == 3)
    });
    process
}

/// A `tofu forward` and the ports of this host that it has printed.
struct Forward {
    child: Child,
    ports: Vec<u16>,
    errors: BufReader<ChildStderr>,
}

impl Forward {
    fn start(place: &Place, forwards: &[&str]) -> Self {
        let mut command = place.command(&[&["forward", "--json"], forwards].concat());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ports = forwards.iter().map(|forward| {
            let line = lines.next().unwrap_or_else(|| panic!("{forward}")).unwrap();
            let said: Value = serde_json::from_str(&line).unwrap();
            said["listen"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap()
        });
        let ports = ports.collect();
        let errors = BufReader::new(child.stderr.take().unwrap());
        Self { child, ports, errors }
    }

    /// The next line on standard error.
    fn error(&mut self) -> String {
        let mut line = String::new();
        self.errors.read_line(&mut line).unwrap();
        line
    }

    fn end(mut self) -> Option<i32> {
        interrupt(self.child.id().into());
        self.child.wait().unwrap().code()
    }
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Fetches a page; `None` if the node has no place for another connection, or none yet.
fn try_fetch(mut stream: TcpStream) -> Option<Vec<u8>> {
    let mut answer = Vec::new();
    let done = stream
        .write_all(b"GET / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        .and_then(|()| read_page(&mut stream, &mut answer));
    match done {
        Ok(()) => Some(answer),
        Err(error)
            if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) =>
        {
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Reads a page to its end, which its header gives; the node waits for the client to close.
fn read_page(stream: &mut TcpStream, answer: &mut Vec<u8>) -> io::Result<()> {
    let mut chunk = [0; 65536];
    loop {
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n");
        if head.is_some_and(|head| answer.len() >= head + 4 + PAGE) {
            return Ok(());
        }
        match stream.read(&mut chunk)? {
            0 => return Err(ErrorKind::ConnectionReset.into()),
            n => answer.extend_from_slice(&chunk[..n]),
        }
    }
}

fn fetch(port: u16) -> Vec<u8> {
    fetch_from(|| TcpStream::connect(("127.0.0.1", port)))
}

fn fetch_from(connect: impl Fn() -> io::Result<TcpStream>) -> Vec<u8> {
    let end = Instant::now() + PATIENCE;
    loop {
        // A node can be too busy to take another connection.
        if let Ok(stream) = connect() {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            if let Some(page) = try_fetch(stream) {
                return page;
            }
        }
        assert!(Instant::now() < end, "no page in time");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that this is the page of the node with this number among those with guests.
#[track_caller]
fn is_page_of(page: &[u8], node: u32) {
    let text = std::str::from_utf8(page).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let line = format!("{node} 0123456789 abcdefghijklmnopqrstuvwxyz\n");
    let first = format!("This is node {node}.\n");
    assert!(body.starts_with(&first), "{}", &body[..40]);
    let rest = &body.as_bytes()[first.len()..];
    assert!(rest.iter().eq(line.as_bytes().iter().cycle().take(PAGE - first.len())));
}

#[test]
fn bare_nodes_ports_are_reachable_from_host() {
    let place = Place::new();
    if !can_run(&place) {
        return;
    }
    let mut up = servers(&place, &["--tap", "off", "--name", "web"]);
    let ps = &place.ps()[0];
    assert_eq!(ps["name"], "web");
    let gateway = &ps["nodes"][0];
    assert_eq!((&gateway["state"], &gateway["vmm"]), (&json!("gateway"), &json!("none")), "{ps}");

    // By number, name and coordinates.
    let ways = ["0:1:80", "0:t-0-0-0-1-0-0:80", "127.0.0.1:0:web/0,0,0,1,0,1:80"];
    let mut forward = Forward::start(&place, &[&ways[..], &["0:1:81"]].concat());
    for (node, port) in (0..).zip(&forward.ports[..3]) {
        is_page_of(&fetch(*port), node);
    }
    let taken = format!("{}:1:80", forward.ports[0]);
    let error = place.run(&["forward", &taken]).error();
    assert!(error.contains("cannot listen at 127.0.0.1:"), "{error}");

    // Clients that ask for a page and do not read it, and many others at once.
    let stalled: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream = connect(forward.ports[0]);
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            stream
        })
        .collect();
    thread::scope(|scope| {
        for n in 0..24 {
            let port = forward.ports[n % 3];
            scope.spawn(move || is_page_of(&fetch(port), n as u32 % 3));
        }
    });
    for mut stream in stalled {
        let mut page = Vec::new();
        read_page(&mut stream, &mut page).unwrap();
        is_page_of(&page, 0);
    }

    // A port at which nothing listens.
    let mut byte = [0];
    let closed = connect(forward.ports[3]).read(&mut byte).unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::ConnectionReset);
    let mut said = forward.error();
    while said.contains(": port 80 of ") {
        // Errors of clients that found all places taken.
        said = forward.error();
    }
    assert_eq!(said, "tofu: port 81 of (0,0,0,0,0,1): the node refuses connections at port 81\n");

    assert_eq!(forward.end(), Some(0));
    place.run(&["down", "web"]).ok();
    up.ok();
    place.is_clean();
}

#[test]
fn killed_machine_leaves_nothing() {
    let place = Place::new();
    if !can_run(&place) {
        return;
    }
    let mut up = servers(&place, &["--tap", "off"]);
    let mut forward = Forward::start(&place, &["0:3:80"]);
    is_page_of(&fetch(forward.ports[0]), 2);
    let mut open = connect(forward.ports[0]);
    kill(up.id());
    assert_eq!(up.wait(), None);
    assert_eq!(forward.child.wait().unwrap().code(), Some(2));
    let mut said = String::new();
    forward.errors.read_to_string(&mut said).unwrap();
    assert!(said.ends_with("tofu: the machine has ended\n"), "{said}");
    assert!(!matches!(open.read(&mut [0]), Ok(1..)));
    place.is_clean();
}

#[test]
fn wrong_gateways_are_explained() {
    let place = Place::new();
    let up = |args: &[&str]| place.run(&[&["up", "--shape", "1x1x1x2x1x1"], args].concat()).error();
    for (args, expected) in [
        (
            &["--gateway", "0,0,0,0,0,1"][..],
            "--gateway (0,0,0,0,0,1): the shape 1x1x1x2x1x1 has no such node",
        ),
        (&["--gateway", "0"], "'--gateway [<NODE>]': coordinates such as 0,0,0,0,0,0"),
        (&["--nat"], "--nat is for machines with a gateway; add --gateway"),
        (&["--gateway", "0,0,0,0,0,0", "--nat", "--tap", "off"], "leave --tap off out"),
        (&["--gateway", "0,0,0,0,0,0", "--ip-number", "8"], "a whole number from 0 to 7"),
        (&["--mtu", "1000"], "a whole number of bytes from 1280 to 65521"),
    ] {
        let error = up(args);
        assert!(error.contains(expected), "{error}");
    }
    let error = place.run(&["forward", "8080:0"]).error();
    assert!(error.contains("a forward is [ADDRESS:]PORT:NODE:PORT"), "{error}");
    let error = place.run(&["forward", "0:0:80"]).error();
    assert!(error.contains("no machine is running"), "{error}");
    place.is_clean();
}

#[test]
fn host_gets_an_interface() {
    let place = Place::new();
    if !can_run(&place) {
        return;
    }
    let Some(host) = Namespace::new() else { return };
    let before = host.state();
    let nat: &[&str] = if can_translate() { &["--nat"] } else { &[] };
    if nat.is_empty() {
        skip("address translation needs nft or iptables");
    }
    for tidily in [true, false] {
        let more = [&["--tap", "on", "--name", "web"], nat].concat();
        let mut up = servers_in(&place, &more, |args| host.command(&place.command(args)));
        let addresses = host.ip(&["-o", "addr", "show", "dev", "web"]);
        for own in ["inet 10.0.0.1/26 ", "inet6 fd54:6f66:7500::ff:fe00:0/64 "] {
            assert!(addresses.contains(own), "{addresses}");
        }
        // Each node by its address, several at once.
        host.inside(|| {
            for (node, address) in
                ["10.0.0.5:80", "10.0.0.33:80", "10.0.0.37:80"].iter().enumerate()
            {
                is_page_of(&fetch_from(|| TcpStream::connect(address)), node as u32);
            }
            let page = fetch_from(|| TcpStream::connect("[fd54:6f66:7500::ff:fe00:1]:80"));
            is_page_of(&page, 0);
        });
        // And by a forward, which needs no interface.
        let forward = Forward::start(&place, &["0:3:80"]);
        is_page_of(&fetch(forward.ports[0]), 2);
        forward.end();
        if !nat.is_empty() {
            let state = host.state();
            assert!(state.contains("forwarding 1\n"), "{state}");
            assert!(Namespace::translates(&state, "web"), "{state}");
        }
        // Addresses that are taken.
        let second = ["up", "--gateway", "0,0,0,0,0,0", "--tap", "on", "--name", "second"];
        let second = place.run_command(host.command(&place.command(&second)));
        let error = second.error();
        assert!(error.contains("10.0.0.0/26 collide with the route 10.0.0.0/26 of web"), "{error}");
        assert!(error.contains("--ip-number 1"), "{error}");

        if tidily {
            place.run(&["down", "web"]).ok();
        } else {
            kill(up.id());
        }
        up.wait();
        wait_for("the host to be as before", || host.state() == before);
        place.is_clean();
    }
}

/// Invalid frames are counted where they arrive.
#[test]
fn bad_frames_are_counted() {
    let place = Place::new();
    if !can_run(&place) {
        return;
    }
    let up = ["up", "--json", "--shape", "1x1x1x2x1x2", "--gateway", "0,0,0,0,0,0", "--tap", "off"];
    let vandals = ["--guest", "badframes", "--args", "count=1000000"];
    let (mut machine, _) = place.start(&[&up[..], &vandals].concat());
    place.wait_for_machine();
    wait_for("each kind of bad frame", || {
        let said = place.run(&["stats", "0", "--json"]);
        // The machine may have just begun.
        let Ok(stats) = serde_json::from_str::<Value>(&said.out) else { return false };
        let kinds = ["malformed", "spoofed", "misdirected", "oversized", "relayed"];
        kinds.iter().all(|kind| stats["nodes"][0]["ip"][kind].as_u64().is_some_and(|n| n > 0))
    });
    place.run(&["down"]).ok();
    machine.wait();
}
