//! IP between Linux nodes by `tofu0`: two nodes that send each other anything, and four or twelve.
//!
//! Tests that take minutes run if the environment variable TOFU_LONG is set.

use std::fs::metadata;
use std::time::Duration;

use serde_json::Value;
use tofu_linux_tests::net::{LONG, Net, long};
use tofu_linux_tests::{MOMENT, Place, Running, interrupt, skip, wait_for};

/// A number in the output of iperf3.
fn rate(said: &Value, sum: &str) -> f64 {
    said["end"][sum]["bits_per_second"].as_f64().unwrap_or_else(|| panic!("no {sum}: {said}"))
}

fn addresses_and_names(net: &Net) {
    for target in ["n1", "t-1-0-0-0-0-0", "10.1.0.1", "-6 n1", "fd54:6f66:7500:0:0:1ff:fe00:0"] {
        let said = net.shell(0, &format!("ping -c 2 -i 0.2 -w 10 {target}"));
        assert!(said.contains(" 0% packet loss"), "{said}");
    }
    let said = net.shell(0, "ping -c 2 -i 0.2 -w 10 fe80::1ff:fe00:0%tofu0");
    assert!(said.contains(" 0% packet loss"), "{said}");
    // Node (1,0,0,0,0,0) has the network and the address that follow from the shape.
    let said = net.shell(1, "ip -4 -o address show dev tofu0; hostname");
    assert!(said.contains("10.1.0.1/15") && said.contains("t-1-0-0-0-0-0"), "{said}");
}

/// Echo requests of every size up to 9000, in IP fragments and in frames of that length.
fn sizes(net: &Net) {
    for mtu in ["9028", "1500"] {
        for node in 0..2 {
            net.shell(node, &format!("ip link set tofu0 mtu {mtu}"));
        }
        let said = net.python(0, &["sizes", "10.1.0.1", "0", "9000"]);
        assert_eq!(said["answered"], 9001, "MTU {mtu}: {said}");
        assert_eq!(said["wrong"], 0, "MTU {mtu}: {said}");
    }
}

/// Links lose, duplicate, reorder and damage `per_mille` per thousand of the packets, and also
/// damage some in a way that no device detects. Streams and answers still arrive as they were sent.
fn faults(net: &Net, per_mille: u32, bytes: u64) {
    let share = format!("{}.{}%", per_mille / 10, per_mille % 10);
    let kinds = ["loss", "duplicate", "reorder", "corrupt", "undetected"];
    let faults: String = kinds.iter().map(|kind| format!("{kind}={share},")).collect();
    net.place.run(&["fault", "set", &format!("{faults}seed=7")]).ok();
    net.stream(0, 1, bytes, |_| ());
    let said = net.python(1, &["sizes", "n0", "0", "200"]);
    assert_eq!(said["wrong"], 0, "{share}: {said}");
    assert_eq!(said["answered"], 201, "{share}: {said}");
    let shown = net.place.run(&["fault", "show", "--json"]).json();
    let happened = ["lost", "duplicated", "reordered", "corrupted", "undetected"];
    let happened: u64 = happened.iter().map(|kind| find(&shown, kind)).sum();
    assert!(happened > 0, "{shown}");
    net.place.run(&["fault", "off"]).ok();
}

/// The traffic of node 0 while it is pinged and has connections, as tshark shows it with our
/// dissector.
fn capture(net: &Net) {
    let place = &net.place;
    let file = place.file("ip.pcapng");
    let capture = place.start(&["capture", "0", "-w", &file, "--on", "tni0", "--json"]);
    // The file's header is there once the capture has begun.
    wait_for("the capture", MOMENT, || metadata(&file).is_ok_and(|data| data.len() > 0));
    net.shell(1, "ping -4 -c 3 -i 0.2 -w 10 n0");
    net.shell(0, "ping -c 2 -i 0.2 ff02::1%tofu0");
    net.stream(0, 1, 100_000, |_| ());
    interrupt(capture.id());
    let said = capture.end(MOMENT).json();
    assert_eq!(said["dropped"], 0, "{said}");
    assert!(said["packets"].as_u64().is_some_and(|packets| packets > 20), "{said}");

    let script =
        concat!("lua_script:", env!("CARGO_MANIFEST_DIR"), "/../../tools/wireshark/tofu.lua");
    let tshark = |args: &[&str]| {
        let fixed = ["image", "tshark", "--", "-n", "-X", script, "-r", &file];
        place.run_for(&[&fixed, args].concat(), LONG, b"")
    };
    let first = tshark(&["-c", "1"]);
    if first.lacks_packages() {
        return skip(first.err.lines().last().unwrap_or_default());
    }
    first.ok();
    let rows = |filter: &str| -> Vec<String> {
        let fields = ["ip.src", "ip.dst", "tofu.src", "tofu.direction"];
        let fields = fields.iter().flat_map(|field| ["-e", field]);
        let args: Vec<_> = ["-Y", filter, "-T", "fields"].into_iter().chain(fields).collect();
        tshark(&args).ok().lines().map(str::to_owned).collect()
    };
    assert_eq!(rows("icmp.type == 8"), ["10.1.0.1\t10.0.0.1\t(1,0,0,0,0,0)\t1"; 3]);
    assert_eq!(rows("icmp.type == 0"), ["10.0.0.1\t10.1.0.1\t(0,0,0,0,0,0)\t0"; 3]);
    // TCP between Linux nodes leaves checksums and segmentation to the other end; multicasts are
    // confirmed.
    assert!(!rows("ipot.kind == 2 && tcp && ipot.metadata.checksum == 1").is_empty());
    assert!(!rows("ipot.kind == 1 && ipot.acknowledge == 1 && icmpv6.type == 128").is_empty());
    assert!(!rows("ipot.kind == 3 && tofu.direction == 1").is_empty());
    let wrong = "ipot.malformed || ipot.spoofed || ipot.damaged || tofu.unknown || tofu.short";
    assert_eq!(rows(wrong), [""; 0]);
}

fn flood(net: &Net, count: u32) {
    let said = net.shell_for(0, &format!("ping -f -q -c {count} n1"), LONG);
    assert!(said.contains(&format!("{count} received, 0% packet loss")), "{said}");
}

/// TCP and UDP out, in, and both ways.
fn iperf(net: &Net, seconds: u32) {
    net.shell(1, "iperf3 -s -D");
    let run = |options: &str| -> Value {
        // The server takes one test at a time, and resets connections that arrive while it still
        // ends another test.
        let test = format!("iperf3 --json -c n1 -t {seconds} {options}");
        let twice = format!(
            "said=$({test}) || {{ sleep 1; said=$({test}); }}; code=$?; echo \"$said\"; exit $code"
        );
        let said = net.shell_for(0, &twice, LONG);
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{said}: {error}"))
    };
    assert!(rate(&run(""), "sum_received") > 0.0);
    assert!(rate(&run("-R"), "sum_received") > 0.0);
    let both = run("--bidir");
    assert!(rate(&both, "sum_received") > 0.0 && rate(&both, "sum_received_bidir_reverse") > 0.0);
    assert!(rate(&run("-6"), "sum_received") > 0.0);
    for way in ["", "-R"] {
        // Slow enough for a busy host; datagrams have no flow control.
        let said = run(&format!("-u -b 2M {way}"));
        let packets = said["end"]["sum"]["packets"].as_f64().unwrap();
        let lost = said["end"]["sum"]["lost_packets"].as_f64().unwrap();
        assert!(packets > 0.0 && lost <= packets / 2.0, "{said}");
    }
}

/// Every invalid frame that a node sends on its Ethernet is counted, and all nodes keep answering.
fn bad_input(net: &Net, count: u32) {
    let sum = |counters: &Value, names: &[&str]| -> u64 {
        names.iter().map(|name| find(counters, name)).sum()
    };
    const SPOOFED: [&str; 2] = ["spoofed", "refused"];
    const NOWHERE: [&str; 3] = ["no_such_node", "lost", "refused"];
    let before = [0, 1].map(|node| net.counters(node));
    let said = net.python(0, &["bad", "t-1-0-0-0-0-0", &count.to_string()]);
    assert_eq!(said["sent"]["arp"], count, "{said}");
    // Longer than the interface permits, which the kernel reports.
    assert_eq!(said["refused"]["oversized"], count, "{said}");
    net.everybody_answers();
    let after = [0, 1].map(|node| net.counters(node));
    let more = |names: &[&str]| {
        let total = |counters: &[Value; 2]| counters.iter().map(|one| sum(one, names)).sum::<u64>();
        total(&after) - total(&before)
    };
    let detail = || format!("before {before:?}, after {after:?}, {said}");
    // Packets to an absent node and to no node at all; packets with two kinds of wrong sources.
    assert!(more(&NOWHERE) >= u64::from(count), "{}", detail());
    assert!(more(&SPOOFED) >= u64::from(2 * count), "{}", detail());
}

/// A counter, in any of the places for counters.
#[track_caller]
fn find(counters: &Value, name: &str) -> u64 {
    fn search(value: &Value, name: &str) -> Option<u64> {
        let fields = value.as_object()?;
        let here = fields.get(name).and_then(Value::as_u64);
        here.or_else(|| fields.values().find_map(|inner| search(inner, name)))
    }
    search(counters, name).unwrap_or_else(|| panic!("no counter {name}: {counters}"))
}

/// Tells if all of a node's pings are answered.
fn answers(net: &Net, node: usize, ping: &str) -> bool {
    net.shell(node, &format!("{ping}; true")).contains(" 0% packet loss")
}

/// The command that makes an interface of some kind above `tofu0`, in a network namespace.
fn inside(kind: &str, me: usize) -> String {
    format!(
        "ip netns add inside; ip link add in0 link tofu0 type {kind} && \
         ip link set in0 netns inside && \
         ip -n inside addr add 192.168.9.{me}/24 dev in0 && ip -n inside link set in0 up"
    )
}

/// Networks that send with the node's own hardware address work over the interface.
fn networks(net: &Net) {
    for me in 0..2 {
        let peer = 1 - me;
        net.shell(
            me,
            &format!(
                "ip link add link tofu0 name v5 type vlan id 5 && ip link set v5 up && \
                 ip addr add 192.168.5.{me}/24 dev v5 && \
                 ip link add vx type vxlan id 7 remote 10.{peer}.0.1 dstport 4789 dev tofu0 && \
                 ip addr add 192.168.7.{me}/24 dev vx && ip link set vx up"
            ),
        );
        net.shell(me, &inside("ipvlan mode l2", me));
    }
    const PING: &str = "ping -c 2 -i 0.2 -w 10 -q";
    assert!(answers(net, 0, &format!("{PING} 192.168.5.1")), "VLAN");
    assert!(answers(net, 0, &format!("{PING} -s 20000 192.168.5.1")), "VLAN, long frames");
    assert!(answers(net, 0, &format!("{PING} 192.168.7.1")), "VXLAN");
    assert!(answers(net, 0, &format!("ip netns exec inside {PING} 192.168.9.1")), "ipvlan");
    for me in 0..2 {
        net.shell(me, "ip link del v5; ip link del vx; ip netns del inside");
    }

    let behind = "ip netns add behind && ip link add out0 type veth peer name in0 netns behind && \
                  ip addr add 172.20.0.1/24 dev out0 && ip link set out0 up && \
                  ip -n behind addr add 172.20.0.2/24 dev in0 && ip -n behind link set in0 up && \
                  ip -n behind route add default via 172.20.0.1 && \
                  echo 1 >/proc/sys/net/ipv4/ip_forward && nft add table nat && \
                  nft 'add chain nat post { type nat hook postrouting priority 100; }' && \
                  nft add rule nat post oifname tofu0 masquerade";
    net.shell(0, behind);
    // The first packet may be lost while the kernel fetches modules of NAT.
    wait_for("NAT behind veth", MOMENT, || {
        answers(net, 0, &format!("ip netns exec behind {PING} 10.1.0.1"))
    });
    net.shell(0, "nft delete table nat; ip netns del behind");

    net.shell(0, "tc qdisc add dev tofu0 root netem loss 100%");
    assert!(!answers(net, 0, "ping -c 1 -W 1 -q 10.1.0.1"), "netem loses all");
    net.shell(0, "tc qdisc del dev tofu0 root");
    for module in ["bridge", "bonding", "wireguard", "geneve", "vrf"] {
        net.shell(0, &format!("modprobe {module}"));
    }

    macvlan(net);
}

/// A macvlan has its own hardware address, so its frames are dropped and counted at the receiver.
fn macvlan(net: &Net) {
    let spoofed = || {
        let said: Value = net.shell(1, "tofu-net stats --json").parse().unwrap();
        find(&said, "spoofed")
    };
    let before = spoofed();
    for me in 0..2 {
        wait_for("an interface for the next one", MOMENT, || {
            net.place.exec(&me.to_string(), &["sh", "-c", &inside("macvlan", me)]).code == Some(0)
        });
    }
    assert!(!answers(net, 0, "ip netns exec inside ping -c 2 -W 1 -q 192.168.9.1"), "macvlan");
    assert!(spoofed() > before);
    for me in 0..2 {
        net.shell(me, "ip netns del inside");
    }
}

/// Two nodes: every size, floods, TCP and UDP, faults, and invalid frames.
#[test]
fn two_nodes() {
    // Faults from the beginning, while interfaces come up.
    let faulty = ["--faults", "loss=2%,duplicate=2%,reorder=2%,seed=1"];
    let Some(net) = Net::start(2, &faulty) else { return };
    faults(&net, 1, 4 << 20);
    faults(&net, 10, 1 << 20);
    faults(&net, 50, 1 << 18);
    addresses_and_names(&net);
    capture(&net);
    sizes(&net);
    flood(&net, 500);
    iperf(&net, 1);
    net.stream(0, 1, 8 << 20, |_| ());
    // Long frames are fetched instead of sent, each way.
    for node in 0..2 {
        let said: Value = net.shell(node, "tofu-net stats --json").parse().unwrap();
        assert!(
            said["counters"]["rendezvous_received"].as_u64().is_some_and(|count| count > 0),
            "{said}"
        );
    }
    bad_input(&net, 100);
    networks(&net);
    net.stream(1, 0, 1 << 20, |_| ());
}

/// The same for minutes.
#[test]
fn two_nodes_for_long() {
    if !long() {
        return;
    }
    let Some(net) = Net::start(2, &[]) else { return };
    flood(&net, 20_000);
    iperf(&net, 20);
    net.stream(0, 1, 256 << 20, |_| ());
    faults(&net, 1, 64 << 20);
    faults(&net, 10, 16 << 20);
    faults(&net, 50, 4 << 20);
    bad_input(&net, 3000);
    net.everybody_answers();
}

/// Four nodes that boot over the torus, from a boot server on a fifth: all to all, groups,
/// connections while links go down and up, MPI; and their devices without the network. A unit has
/// twelve nodes, but emulating them keeps two processors busy for minutes.
#[test]
fn four_nodes() {
    let shape = ["--shape", "1x1x2x1x3x2", "--nodes", "4", "--boot", "tofu"];
    let Some(net) = Net::start(4, &shape) else { return };
    all_to_all(&net, 4, &["C", "B+", "B-", "Z+", "Z-"], 12);
    devices(&net.place);
    net.place.run(&["down"]).ok();
    net.place.is_clean();
}

/// Four devices are at their coordinates, and each reaches every other one.
fn devices(place: &Place) {
    let expected: Vec<_> = (0..4)
        .map(|index| (index / 2, index % 2))
        .map(|(b, c)| format!("(0,0,0,0,{b},{c}) [0,0,0,0,{b},{c}] \"vfio-pci\""))
        .collect();
    let state = |line: &String| {
        let (node, devices) = line.split_once(' ').unwrap();
        let devices: Value = serde_json::from_str(devices).unwrap();
        assert_eq!(devices.as_array().map(Vec::len), Some(1), "{line}");
        format!("{node} {} {}", devices[0]["coords"], devices[0]["driver"])
    };
    // The network has bound them.
    let drivers = place.exec_all(&["sh", "-c", "ls /sys/bus/pci/drivers/vfio-pci | grep -c :"]);
    assert!(drivers.len() == 4 && drivers.iter().all(|line| line.ends_with(" 1")), "{drivers:?}");
    let found = place.exec_all(&["tofu-guest", "ls", "--json"]);
    assert_eq!(found.iter().map(state).collect::<Vec<_>>(), expected);
    place.all_pairs(4, 1);
}

/// A unit without the boot server, for long. To boot them takes minutes on a busy host.
#[test]
fn twelve_nodes_for_long() {
    if !long() {
        return;
    }
    let Some(net) = Net::start(12, &["--shape", "unit"]) else { return };
    all_to_all(&net, 12, &["A", "C", "B+", "B-"], 40);
    for node in 1..12 {
        net.stream(0, node, 8 << 20, |_| ());
    }
    net.everybody_answers();
}

/// Two Linux nodes of a unit, whose default path leads over boards 1 and 4, and back over 3 and 0:
/// each of the boards that is neither's fails and is repaired while they exchange data.
#[test]
fn streams_survive_each_boards_failure() {
    if !long() {
        return;
    }
    let small = |node: u32| {
        let (a, b, c) = (node / 6, node / 2 % 3, node % 2);
        format!("[[node]]\nat = [0, 0, 0, {a}, {b}, {c}]\nlinux = false\nguest = \"hello\"\n")
    };
    let others: String = (0..12).filter(|node| ![0, 9].contains(node)).map(small).collect();
    let file = format!("shape = \"unit\"\nlinux = true\n{others}");
    let Some(net) = Net::of_file(&file, &[0, 9]) else { return };
    let mut failed = 0;
    net.stream(0, 9, 64 << 20, |client| {
        while client.runs() {
            for board in ["3", "5", "7", "11"] {
                net.place.run(&["board", "down", board]).ok();
                // Long enough for packets to be sent again, and for the failure to be noticed.
                std::thread::sleep(Duration::from_millis(500));
                net.place.run(&["board", "up", board]).ok();
                failed += 1;
            }
        }
    });
    assert!(failed >= 4, "the streams ended before any board failed");
    net.place.run(&["down"]).ok();
    net.place.is_clean();
}

/// `ports` are those of the first node that have links.
fn all_to_all(net: &Net, nodes: usize, ports: &[&str], rounds: usize) {
    // Each node hears every other one by multicasts of both versions of IP and by broadcasts, each
    // exactly once, and gets back the datagrams that it sends to each.
    let everybody: Vec<Running> =
        (0..nodes).map(|node| net.begin(node, &["meet", &nodes.to_string(), "200"])).collect();
    for (node, told) in everybody.into_iter().enumerate() {
        let said = told.end(LONG).json();
        for way in ["multicast4", "multicast6", "broadcast", "back"] {
            assert_eq!(said[way], nodes, "node {node}: {said}");
        }
        assert_eq!((&said["twice"], &said["wrong"]), (&0.into(), &0.into()), "node {node}: {said}");
    }
    // Connections from one corner to the other, in both directions, while links of the first node
    // go down one after another and come up again. There is always a path.
    net.stream(0, nodes - 1, 2 << 20, |client| {
        for round in 0..rounds {
            let port = ports[round % ports.len()];
            net.place.run(&["link", "down", "0", port]).ok();
            net.place.run(&["link", "up", "0", port]).ok();
            if !client.runs() {
                break;
            }
        }
    });
    // With one way left.
    for port in &ports[1..] {
        net.place.run(&["link", "down", "0", port]).ok();
    }
    net.stream(nodes - 1, 0, 1 << 20, |_| ());
    for port in &ports[1..] {
        net.place.run(&["link", "up", "0", port]).ok();
    }
    net.ssh();
    if net.mpi_program().is_some() {
        net.mpi(2);
    }
}
