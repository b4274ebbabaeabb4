//! Linux nodes behind a gateway: the host reaches them, and they reach everything that the host
//! reaches.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use tofu_linux_tests::namespace::{Namespace, can_translate};
use tofu_linux_tests::net::{fetch, forward};
use tofu_linux_tests::{Image, MOMENT, PATIENCE, Place, Running, driver, skip, wait_for};

/// Bytes of the file that is moved.
const SIZE: u32 = 6_000_000;
/// Addresses of nodes 1 and 2 of three on X.
const NODES: [&str; 2] = ["10.1.0.1", "10.2.0.1"];
/// The gateway's.
const GATEWAY: &str = "10.0.0.1";

fn data() -> Vec<u8> {
    (0..SIZE).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// Waits until the nodes have their addresses, and serve /srv over HTTP.
#[track_caller]
fn serve(place: &Place, file: &str) {
    for (node, address) in ["1", "2"].into_iter().zip(NODES) {
        let shown = || place.exec(node, &["ip", "-o", "addr", "show", "dev", "tofu0"]).out;
        wait_for("tofu0 to have its address", PATIENCE, || shown().contains(address));
        place.exec(node, &["mkdir", "-p", "/srv"]).ok();
        place.run(&["cp", file, &format!("{node}:/srv/data")]).ok();
        place.exec(node, &["busybox", "httpd", "-p", "80", "-h", "/srv"]).ok();
    }
}

#[test]
fn host_and_world_are_reached() {
    if let Some(place) = Place::new(Image::Default) {
        are_reached(&place, &["--driver", "vfio"]);
    }
}

#[test]
fn host_and_world_are_reached_by_the_driver() {
    if let Some(place) = driver::place() {
        are_reached(&place, &["--driver", "tofu", "--image", &driver::image()]);
    }
}

/// The host reaches nodes with this driver, and they reach what is behind the host.
fn are_reached(place: &Place, driver: &[&str]) {
    let spaces = Namespace::new().zip(Namespace::new());
    let up = ["up", "--linux", "--detach", "--boot-timeout", "140s", "--shape", "3x1x1x1x1x1"];
    let up = [&up[..], &["--name", "gate", "--gateway", "0,0,0,0,0,0"], driver].concat();
    let start = |args: &[&str], inside: &dyn Fn(&Command) -> Command| {
        let command = place.command(&[&up[..], args].concat());
        Running::start(inside(&command), b"").end(PATIENCE).ok();
    };
    let nat = can_translate();
    let before = spaces.as_ref().map(|(host, _)| host.state());
    match &spaces {
        None => start(&["--tap", "off"], &|command| {
            let mut same = Command::new(command.get_program());
            same.args(command.get_args()).env("XDG_RUNTIME_DIR", place.path());
            same
        }),
        Some((host, world)) => {
            host.join("uplink", world, ["192.0.2.1/24", "192.0.2.2/24"]);
            let more: &[&str] = if nat { &["--nat"] } else { &[] };
            start(&[&["--tap", "on"], more].concat(), &|command| host.command(command));
        }
    }
    let (data, file) = (data(), place.file("data"));
    fs::write(&file, &data).unwrap();
    serve(place, &file);

    // By forwards, which need nothing of the host.
    for node in ["1", "t-2-0-0-0-0-0"] {
        let (_running, port) = forward(place, node);
        assert!(fetch(TcpStream::connect(("127.0.0.1", port)).unwrap()) == data, "node {node}");
    }

    if let Some((host, world)) = &spaces {
        // Through the host's interface, to both nodes at the same time.
        host.inside(|| {
            thread::scope(|scope| {
                for address in NODES {
                    let data = &data;
                    scope.spawn(move || {
                        let stream = TcpStream::connect((address, 80)).unwrap();
                        assert!(fetch(stream) == *data, "{address}");
                    });
                }
            });
        });
        // Nodes reach the host, which is the gateway.
        place.exec("2", &["ping", "-c", "3", "-W", "5", GATEWAY]).ok();
        if nat {
            // Taking the interface down costs the default route, which comes back.
            place.exec("1", &["sh", "-c", "ip link set tofu0 down; ip link set tofu0 up"]).ok();
            let routes = || place.exec("1", &["ip", "route"]).ok();
            wait_for("the route", MOMENT, || routes().contains("default via 10.0.0.1 dev tofu0"));
            to_the_world(place, world, &data);
        } else {
            skip("address translation needs nft or iptables");
        }
    }

    place.run(&["down", "gate"]).ok();
    if let (Some((host, _)), Some(before)) = (&spaces, before) {
        host.ip(&["link", "del", "dev", "uplink"]);
        wait_for("the host to be as before", MOMENT, || host.state() == before);
    }
    place.is_clean();
}

/// A node fetches a file from a server that knows only the host.
fn to_the_world(place: &Place, world: &Namespace, data: &[u8]) {
    let listener = world.inside(|| TcpListener::bind("192.0.2.2:8000").unwrap());
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (mut client, from) = listener.accept().unwrap();
            client.read_exact(&mut [0; 16]).unwrap();
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", data.len());
            client.write_all(&[head.as_bytes(), data].concat()).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            // The rest of its output.
            let _ = client.read_to_end(&mut Vec::new());
            from.ip().to_string()
        });
        let get = "busybox wget -q -O /tmp/got http://192.0.2.2:8000/ && cmp /tmp/got /srv/data";
        place.exec("1", &["sh", "-c", get]).ok();
        assert_eq!(server.join().unwrap(), "192.0.2.1", "the host's address");
    });
    // But nothing outside reaches a node, even if it has a route.
    world.ip(&["route", "add", "10.0.0.0/8", "via", "192.0.2.1"]);
    let address = format!("{}:80", NODES[0]).parse().unwrap();
    let outside =
        world.inside(|| TcpStream::connect_timeout(&address, std::time::Duration::from_secs(2)));
    assert!(outside.is_err(), "{outside:?}");
}
