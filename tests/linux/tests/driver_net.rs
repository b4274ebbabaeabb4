//! `tofu0` of the kernel driver: three nodes on a ring. The middle one has the device by VFIO and
//! its `tofu0` from `tofu-net`, so that both implementations must understand each other.

use std::fs;

use serde_json::Value;
use tofu_linux_tests::driver::{self, CHECKS, TRACING, checks_its_heap, image, is_well, passes};
use tofu_linux_tests::{MOMENT, PATIENCE, Place, net, sorted, wait_for};

/// The node without the driver: its kernel refuses the module. The others have several queues, and
/// the first one sends frames without copying them.
const MACHINE: &str = r#"
shape = "3x1x1x1x1x1"
linux = true
memory = "384MiB"
[[node]]
at = [0, 0, 0, 0, 0, 0]
append = "tofu.queues=3 iommu=pt CHECKS"
[[node]]
at = [1, 0, 0, 0, 0, 0]
append = "module_blacklist=tofu"
[[node]]
at = [2, 0, 0, 0, 0, 0]
append = "tofu.queues=2 CHECKS"
"#;

/// IPv4 addresses of the nodes.
const ADDRESSES: [&str; 3] = ["10.0.0.1", "10.1.0.1", "10.2.0.1"];
/// Nodes with the driver's interface.
const DRIVER: [usize; 2] = [0, 2];

/// An echo of so many bytes comes back.
#[track_caller]
fn answers(place: &Place, from: usize, to: usize, bytes: u32) {
    let line = format!("ping -c 2 -i 0.2 -w 5 -s {bytes} {}", ADDRESSES[to]);
    let said = place.shell(from, &line);
    assert!(said.contains(" 0% packet loss"), "{from} to {to}, {bytes}: {said}");
}

/// `size` MiB of random bytes arrive by TCP unchanged.
#[track_caller]
fn streams(place: &Place, from: usize, to: usize, size: u32) {
    net::streams(place, from, (to, ADDRESSES[to]), size);
}

/// The kernel's byte queue limits know what has passed. With the lowest one, under which a queue is
/// stopped after each packet, data still arrives.
fn keeps_byte_queue_limits(place: &Place) {
    let limits = "cd /sys/class/net/tofu0/queues/tx-0/byte_queue_limits";
    let limit = || place.shell(0, &format!("{limits}; cat limit")).trim().parse::<u64>().unwrap();
    assert!(limit() >= 64 << 10, "{}", limit());
    place.shell(0, &format!("{limits}; cp limit_max /tmp/limit_max; echo 1 >limit_max"));
    for to in [1, 2] {
        answers(place, 0, to, 7000);
        streams(place, 0, to, 2);
    }
    wait_for("the limit", MOMENT, || {
        answers(place, 0, 2, 7000);
        limit() == 1
    });
    place.shell(0, &format!("{limits}; cat /tmp/limit_max >limit_max"));
}

/// Counters of a device that is gone do no harm, whenever they are read, and files say that it is.
fn counters_of_a_gone_device(place: &Place) {
    // The memory that such a device keeps counts as leaked.
    if image().contains("debug") {
        return;
    }
    place.run(&["fault", "device", "0", "gone"]).ok();
    // Until the interface is detached they are all ones, of each queue.
    place.exec("0", &["/tmp/net", "counters"]);
    for file in ["queues", "interfaces", "ports"] {
        let said = place.shell(0, &format!("cat /sys/kernel/debug/tofu/{file}"));
        assert_eq!(said, "device no answer\n", "{file}");
    }
    place.run(&["fault", "device", "0", "off"]).ok();
    wait_for("an answer", PATIENCE, || {
        place.shell(0, "ping -c 1 -W 1 10.2.0.1; true").contains(" 0% packet loss")
    });
}

/// Data that a program leaves unread beyond the pages that the driver has mapped arrives as copies.
fn unread(place: &Place) {
    // The initial buffer does not grow while nothing is read.
    let room = "echo 4096 16777216 67108864 >/proc/sys/net/ipv4/tcp_";
    for node in DRIVER {
        place.shell(node, &format!("{room}rmem; {room}wmem"));
    }
    let listen =
        "rm -f /tmp/got; (sleep 60 | nc -l -p 5003 >/tmp/got) </dev/null >/dev/null 2>&1 &";
    place.shell(2, listen);
    wait_for("a listener", MOMENT, || place.shell(2, "netstat -tln").contains(":5003 "));
    place.shell(2, "killall -STOP nc");
    let send = "dd if=/dev/urandom of=/tmp/sent bs=1M count=32 2>/dev/null; \
                (nc 10.2.0.1 5003 </tmp/sent &) >/dev/null 2>&1; md5sum </tmp/sent";
    let sent = place.shell(0, send);
    wait_for("copies", MOMENT, || counter(place, 2, "copied") > 0);
    place.shell(2, "killall -CONT nc");
    wait_for("the last bytes", MOMENT, || place.shell(2, "md5sum </tmp/got") == sent);
}

/// The number of nodes that answer a ping to all of them.
#[track_caller]
fn nodes_that_answer(place: &Place, from: usize) -> usize {
    let said = place.shell(from, "ping -6 -c 2 -i 0.2 -W 3 ff02::1%tofu0; true");
    let mut answers: Vec<_> =
        said.lines().filter_map(|line| line.split(" from ").nth(1)?.split(": ").next()).collect();
    answers.sort_unstable();
    answers.dedup();
    answers.len()
}

/// The value of a counter in `ethtool -S`, by the C test.
#[track_caller]
fn counter(place: &Place, node: usize, name: &str) -> u64 {
    let said = place.shell(node, "/tmp/net counters");
    let value = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name}: {said}")).parse().unwrap()
}

/// System packets that a TNI of a node has sent.
#[track_caller]
fn sent_by(place: &Place, node: usize, tni: u32) -> u64 {
    let said = place.shell(node, "cat /sys/kernel/debug/tofu/interfaces");
    let name = format!("tni{tni} NUM_SEND_SYSTEM_TLP ");
    said.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |n| n.parse().unwrap())
}

/// Streams use all queues that both ends have, and no others.
fn queues_are_used(place: &Place) {
    for (node, tnis) in [(0, "0 2 4\n"), (2, "0 2\n")] {
        assert_eq!(place.shell(node, "cat /sys/class/net/tofu0/tofu/tni"), tnis);
    }
    let before = [0, 2].map(|tni| sent_by(place, 0, tni));
    let mut now = before;
    for _ in 0..12 {
        streams(place, 0, 2, 1);
        streams(place, 0, 1, 1);
        now = [0, 2].map(|tni| sent_by(place, 0, tni));
        // A fetched frame is one packet of 64 KiB.
        if now.iter().zip(before).all(|(now, before)| *now > before + 10) {
            assert_eq!(sent_by(place, 0, 4), 0, "node 2 has no third queue, node 1 but one");
            return;
        }
    }
    panic!("twelve connections, and all by one queue: packets before {before:?}, after {now:?}");
}

/// TCP sends frames beyond 64 KiB. They are not segmented between nodes with the driver, and are
/// sent to the other node in parts, because single segments would be too many.
fn longer_frames(place: &Place) {
    for node in DRIVER {
        place.shell(node, "/tmp/net longest 65536");
    }
    streams(place, 0, 2, 16);
    for node in DRIVER {
        place.shell(node, "/tmp/net longest 262144");
    }
    let before = counter(place, 0, "completed");
    for (from, to) in [(0, 1), (0, 2), (2, 0)] {
        streams(place, from, to, 16);
    }
    for node in DRIVER {
        for name in ["damaged", "malformed"] {
            assert_eq!(counter(place, node, name), 0, "{name} on node {node}");
        }
    }
    // A few before it is known what the other node takes; there would be a hundred.
    let cut = counter(place, 0, "completed") - before;
    assert!(cut < 20, "{cut} frames were cut into segments");
}

/// Programs that read frames from the interface see short ones with their checksums, from nodes of
/// both kinds.
fn complete_short_frames(place: &Place) {
    for from in [0, 1] {
        let mut reader = place.start(&["exec", "2", "--", "/tmp/net", "sums", "3"]);
        assert_eq!(reader.line(), "ready\n");
        streams(place, from, 2, 1);
        assert_eq!(reader.end(MOMENT).ok(), "ready\n3 right, 0 wrong, 0 partial\n", "from {from}");
    }
}

/// The known state of a node's ports.
#[track_caller]
fn ports(place: &Place, node: usize) -> String {
    place.shell(node, "cat /sys/class/net/tofu0/tofu/ports")
}

#[track_caller]
fn has_carrier(place: &Place, node: usize) -> bool {
    place.shell(node, "cat /sys/class/net/tofu0/carrier") == "1\n"
}

/// Taking the interface down and up costs a node of either kind no address: names, which have an
/// IPv6 address, lead to it as before.
fn keeps_its_addresses(place: &Place) {
    for node in [0, 1] {
        let addresses = "ip -o address show tofu0 scope global | sed 's/ *valid_lft.*//' | sort";
        let before = place.shell(node, addresses);
        assert!(before.contains("inet6 fd"), "{before}");
        place.shell(node, "ip link set tofu0 down; ip link set tofu0 up");
        assert_eq!(place.shell(node, addresses), before, "node {node}");
        wait_for("an answer", MOMENT, || {
            let line = format!("ping -6 -c 2 -i 0.2 -w 5 n{node}; true");
            place.shell(2, &line).contains(" 0% packet loss")
        });
    }
    // Nor does a stay in another namespace.
    let stay = "ip netns add stay && ip link set tofu0 netns stay && sleep 2 && \
                ip -n stay link set tofu0 netns 1 && ip netns del stay";
    if place.exec("0", &["sh", "-c", "ip netns list"]).code == Some(0) {
        place.shell(0, stay);
        wait_for("its address", MOMENT, || {
            place.shell(0, "ip address show tofu0").contains("inet6 fd")
        });
        answers(place, 2, 0, 56);
    }
}

/// Resets of the function, by anyone: the interface continues, up or down, under load or not.
fn survives_resets(place: &Place) {
    const RESET: &str = "reset() { for f in /sys/bus/pci/drivers/tofu/*/reset; do \
                         echo 1 >$f || exit 1; done; }; reset";
    let resets = || {
        let health = place.shell(0, "cat /sys/kernel/debug/tofu/health");
        let line = health.lines().find_map(|line| line.strip_prefix("resets "));
        line.unwrap_or_else(|| panic!("{health}")).parse::<u64>().unwrap()
    };
    let before = resets();
    place.shell(0, RESET);
    assert_eq!(resets(), before + 1);
    wait_for("an answer", MOMENT, || has_carrier(place, 0));
    let said = place.shell(2, "ping -6 -c 2 -i 0.2 -w 5 n0");
    assert!(said.contains(" 0% packet loss"), "{said}");
    streams(place, 0, 2, 4);
    // While it is down, and twice.
    let down = format!("ip link set tofu0 down; {RESET}; reset");
    place.shell(0, &down);
    assert!(!place.shell(0, "ip link show tofu0").contains("UP"));
    place.shell(0, "ip link set tofu0 up");
    wait_for("a carrier", MOMENT, || has_carrier(place, 0));
    answers(place, 2, 0, 30_000);
    // In the middle of traffic.
    let busy = format!(
        "(ping -A -i 0 -s 20000 10.2.0.1 >/dev/null 2>&1 &) ; \
         (nc 10.2.0.1 9 </dev/zero >/dev/null 2>&1 &) ; sleep 0.3; {RESET}; \
         for i in 1 2 3 4 5; do reset; reset; sleep 0.2; done; killall ping nc 2>/dev/null; true"
    );
    place.shell(0, &busy);
    wait_for("a carrier", MOMENT, || has_carrier(place, 0));
    for node in [1, 2] {
        answers(place, 0, node, 20_000);
        streams(place, 0, node, 2);
    }
}

/// Nodes that suspend themselves, of either driver, are woken by `tofu resume`.
fn wakes_up(place: &Place) {
    let suspend = "(sleep 0.3; echo mem >/sys/power/state) >/dev/null 2>&1 &";
    for node in [1, 2] {
        let state = || place.node(node)["state"].as_str().unwrap_or_default().to_owned();
        place.shell(node, suspend);
        wait_for("the node suspends", MOMENT, || state() == "not answering");
        place.run(&["resume", &node.to_string()]).ok();
        assert_eq!(state(), "ready", "node {node}");
        let said = place.shell(node, "dmesg");
        assert!(said.contains("PM: suspend exit"), "{said}");
        wait_for("a carrier", MOMENT, || has_carrier(place, node));
        answers(place, 0, node, 20_000);
        streams(place, node, 0, 2);
    }
}

/// The driver's interfaces have got their addresses when nodes are ready.
fn have_addresses_at_once(place: &Place) {
    for node in DRIVER {
        let look = "[ -e /run/tofu-session/network ] && ip -o address show tofu0 scope global";
        let said = place.shell(node, look);
        let all = [format!("inet {}/14", ADDRESSES[node]), "inet6 fd".to_owned()];
        assert!(all.iter().all(|address| said.contains(address)), "node {node}: {said}");
    }
}

/// Each node's interface is of the expected kind and has its address.
fn have_addresses(place: &Place) {
    for (node, address) in ADDRESSES.iter().enumerate() {
        let ours = place.shell(node, "[ -d /sys/class/net/tofu0/tofu ] && echo yes; true");
        assert_eq!(ours == "yes\n", DRIVER.contains(&node), "node {node}: {ours}");
        let said = place.shell(node, "ip address show tofu0");
        assert!(said.contains(&format!("inet {address}/14")), "{said}");
    }
}

/// Sizes within one fragment, at its end, and of many fragments, between all combinations of the
/// two kinds of nodes.
fn carry_all_sizes(place: &Place) {
    for (from, to) in [(0, 1), (1, 0), (0, 2)] {
        for bytes in [0, 1, 1472, 1473, 1910, 1911, 20_000, 65_000] {
            answers(place, from, to, bytes);
        }
        streams(place, from, to, 8);
    }
}

/// Long frames are fetched instead of sent, by nodes of both kinds from nodes of both kinds. TCP
/// may send short segments on a slow host, so the test uses echoes.
fn fetch_long_frames(place: &Place) {
    for mtu in [65_521, 1500] {
        for node in 0..ADDRESSES.len() {
            place.shell(node, &format!("ip link set tofu0 mtu {mtu}"));
        }
        for (from, to) in [(0, 1), (1, 0), (0, 2)] {
            answers(place, from, to, 30_000);
        }
    }
    for node in DRIVER {
        assert!(counter(place, node, "rendezvous_received") > 0, "node {node}");
    }
    assert!(counter(place, 0, "rendezvous_sent") > 0);
    let said: Value = place.shell(1, "tofu-net stats --json").parse().unwrap();
    assert!(
        said["counters"]["rendezvous_received"].as_u64().is_some_and(|count| count > 0),
        "{said}"
    );
    assert!(said["counters"]["rendezvous_sent"].as_u64().is_some_and(|count| count > 0), "{said}");
    assert_eq!(nodes_that_answer(place, 0), 3);
    assert_eq!(nodes_that_answer(place, 1), 3);
    assert!(counter(place, 0, "relayed") + counter(place, 2, "relayed") == 0);
}

/// Frames as long as they can be; requests that lapsed are the only exceptions.
fn carry_the_longest_frames(place: &Place) {
    for node in DRIVER {
        place.shell(node, "ip link set tofu0 mtu 65521");
    }
    answers(place, 0, 2, 65_400);
    streams(place, 2, 0, 8);

    // On a busy host a request may lapse before its frame is fetched, which is an exception then.
    let lapsed = counter(place, 0, "rendezvous_timed_out");
    let health = place.shell(0, "cat /sys/kernel/debug/tofu/health");
    assert!(lapsed > 0 || health.starts_with("state ok\n"), "{health}");
}

/// Links lose packets: requests that get lost time out, and data by TCP arrives unchanged.
fn survive_lost_packets(place: &Place) {
    place.run(&["fault", "set", "loss=1%,seed=7"]).ok();
    streams(place, 0, 2, 2);
    streams(place, 1, 0, 2);
    place.run(&["fault", "set", "loss=5%,seed=7"]).ok();
    wait_for("a request that times out", PATIENCE, || {
        place.shell(0, "ping -c 10 -A -W 1 -s 10000 10.2.0.1; true");
        counter(place, 0, "rendezvous_timed_out") > 0
    });
    place.run(&["fault", "off"]).ok();
    let before = counter(place, 2, "rendezvous_received");
    wait_for("requests again", MOMENT, || {
        answers(place, 0, 2, 30_000);
        counter(place, 2, "rendezvous_received") > before
    });
}

/// Frames go around a link that is down, and are lost when there is no way.
fn go_around_a_dead_link(place: &Place) {
    place.run(&["link", "down", "0", "2"]).ok();
    // A Get has one way only. A node that cannot fetch refuses the request, and the next frames are
    // sent to it.
    wait_for("frames in fragments", PATIENCE, || {
        let said = place.shell(0, "ping -c 2 -i 0.2 -W 2 -s 30000 10.2.0.1; true");
        said.contains(" 0% packet loss")
    });
    // The first request failed, or the answer to it.
    assert!(counter(place, 0, "rendezvous_failed") + counter(place, 2, "rendezvous_failed") > 0);
    // The driver may have noticed before.
    assert!(counter(place, 0, "rerouted") + counter(place, 0, "avoided") > 0);
    // A broadcast may be lost before all nodes know of the link.
    wait_for("answers of all nodes", PATIENCE, || nodes_that_answer(place, 0) == 3);
    // Node 1, which takes no part in it, gets the report, and records it for programs.
    wait_for("news of the link at node 1", PATIENCE, || {
        let said = place.shell(1, "cat /run/tofu/links");
        said.contains("\n0 0 0 0 0 0 X-\n") && said.contains("\n2 0 0 0 0 0 X+\n")
    });
    // Node 1 becomes unreachable, and node 0 still reaches node 2.
    place.run(&["link", "up", "0", "2"]).ok();
    wait_for("both ports", MOMENT, || ports(place, 0) == "X- up\nX+ up\n");
}

/// A node fails: ports, health and the nodes' news agree on it.
fn report_a_failed_node(place: &Place) {
    let links = |node| place.shell(node, "cat /proc/tofu/links");
    let well = "shape 3x1x1x1x1x1 torus x\n";
    wait_for("no news", PATIENCE, || DRIVER.iter().all(|node| links(*node) == well));
    place.run(&["node", "down", "1", "--keep-guests"]).ok();
    for (node, down) in [(0, "X- up\nX+ down\n"), (2, "X- down\nX+ up\n")] {
        wait_for("a port that is down", MOMENT, || ports(place, node) == down);
        wait_for("the other's news", PATIENCE, || {
            sorted(&links(node)) == ["0 0 0 0 0 0 X+", "2 0 0 0 0 0 X-", well.trim_end()]
        });
    }
    for (node, port) in [(0, "port6 PORT_ERROR\n"), (2, "port5 PORT_ERROR\n")] {
        let health = place.shell(node, "cat /sys/kernel/debug/tofu/health");
        assert!(health.contains(port), "{health}");
    }
    answers(place, 0, 2, 56);
    place.run(&["node", "up", "1"]).ok();
    wait_for("both ports", MOMENT, || ports(place, 0) == "X- up\nX+ up\n");
    wait_for("no news", PATIENCE, || DRIVER.iter().all(|node| links(*node) == well));
    wait_for("no news at node 1", PATIENCE, || place.shell(1, "cat /run/tofu/links") == well);
    answers(place, 0, 1, 56);
}

/// A node without working links loses its frames, and its carrier with the last link.
fn lose_their_carrier(place: &Place) {
    for ends in [["1", "0"], ["1", "2"]] {
        place.run(&[&["link", "down"], &ends[..]].concat()).ok();
    }
    let said = place.shell(0, "ping -c 1 -W 1 10.1.0.1; true");
    assert!(said.contains("100% packet loss"), "{said}");
    assert!(counter(place, 0, "lost") > 0);
    wait_for("a port that is down", MOMENT, || ports(place, 0) == "X- up\nX+ down\n");
    assert!(has_carrier(place, 0));

    // Without any link there is no carrier; with one link the carrier is back.
    place.run(&["link", "down", "0", "2"]).ok();
    wait_for("no carrier", MOMENT, || !has_carrier(place, 0));
    assert_eq!(ports(place, 0), "X- down\nX+ down\n");
    let said = place.shell(0, "ip link show tofu0; /tmp/net link");
    assert!(said.contains("NO-CARRIER") && said.ends_with("\nno link\n"), "{said}");
    place.run(&["link", "up", "0", "1"]).ok();
    wait_for("a carrier", MOMENT, || has_carrier(place, 0));
    assert_eq!(place.shell(0, "/tmp/net link"), "link\n");
    for ends in [["0", "2"], ["1", "2"]] {
        place.run(&[&["link", "up"], &ends[..]].concat()).ok();
    }
    wait_for("all ports", MOMENT, || ports(place, 0) == "X- up\nX+ up\n");
    answers(place, 0, 2, 56);
}

/// Health, queues and trace events.
fn show_their_state(place: &Place) {
    let health = place.shell(0, "cat /sys/kernel/debug/tofu/health");
    assert!(health.starts_with("state degraded\n") && health.contains("PORT_ERROR"), "{health}");
    // Devlink's reporter says the same.
    let said = place.shell(0, "/tmp/net health");
    let diagnosis = said.strip_prefix("healthy 1\nreports 0\n").unwrap_or_else(|| panic!("{said}"));
    assert_eq!(diagnosis, health);
    let queues = place.shell(0, "cat /sys/kernel/debug/tofu/queues");
    assert!(queues.contains("tni0cq11 owner kernel"), "{queues}");
    // Completions of sent packets are processed with the next packet, or later.
    let trace = format!(
        "{TRACING}; echo 1 >events/tofu/enable; ping -c 3 -i 0.2 10.2.0.1 >/dev/null; \
         echo 0 >events/tofu/enable; cat trace"
    );
    let trace = place.shell(0, &trace);
    for event in
        // Either queue may have been chosen for the pings.
        [
            &["tofu_doorbell: tni0cq11 orders=", "tofu_doorbell: tni2cq11 orders="],
            &["tofu_completion: tni0cq11", "tofu_completion: tni2cq11"],
            &["tofu_packet: tni0", "tofu_packet: tni2"],
        ]
    {
        assert!(event.iter().any(|name| trace.contains(name)), "no {event:?}: {trace}");
    }
}

/// The driver is loaded and unloaded in the middle of traffic, and works afterwards.
fn survive_reloads(place: &Place) {
    let script = "modprobe tofu; for i in 1 2 3 4 5; do \
                      (ping -A -i 0 -s 20000 10.2.0.1 >/dev/null 2>&1 &) ; \
                      (nc 10.2.0.1 9 </dev/zero >/dev/null 2>&1 &) ; sleep 0.3; \
                      ip link set tofu0 down || exit 1; ip link set tofu0 up || exit 2; sleep 0.3; \
                      rmmod tofu || exit 3; modprobe tofu || exit 4; killall ping nc 2>/dev/null; \
                  done; true";
    place.shell(0, script);
    wait_for("tofu0", MOMENT, || place.shell(0, "ip address show tofu0").contains("inet 10."));
    answers(place, 0, 2, 20_000);
    answers(place, 0, 1, 20_000);
}

#[test]
fn driver_interface_works() {
    let Some(place) = driver::place() else { return };
    let config = place.file("machine.toml");
    fs::write(&config, MACHINE.replace("CHECKS", CHECKS)).unwrap();
    place.up(&["--config", &config, "--image", &image()]);
    have_addresses_at_once(&place);
    driver::programs(&place, &["net"], &["0", "2"]);

    have_addresses(&place);
    carry_all_sizes(&place);
    queues_are_used(&place);
    keeps_byte_queue_limits(&place);
    unread(&place);
    longer_frames(&place);
    complete_short_frames(&place);
    fetch_long_frames(&place);
    // The interface itself, by its C test, which leaves it as it was.
    passes(&place, "0", &["/tmp/net", "test"]);

    carry_the_longest_frames(&place);
    survive_lost_packets(&place);
    go_around_a_dead_link(&place);
    report_a_failed_node(&place);
    lose_their_carrier(&place);
    show_their_state(&place);
    keeps_its_addresses(&place);
    survives_resets(&place);
    counters_of_a_gone_device(&place);
    wakes_up(&place);

    survive_reloads(&place);
    for node in DRIVER {
        is_well(&place, &node.to_string());
        checks_its_heap(&place, &node.to_string());
    }
    place.run(&["down"]).ok();
    place.is_clean();
}
