//! `tofu capture` and `tofu up --capture`: the files, and their contents as tshark shows them with
//! our dissector.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use tofu_linux_tests::interrupt;

use crate::tofu::{Place, wait_for};

/// A capture file.
#[derive(Default)]
pub(crate) struct Capture {
    pub(crate) names: Vec<String>,
    /// Interface and bytes.
    pub(crate) packets: Vec<(u32, Vec<u8>)>,
    received: u64,
    pub(crate) dropped: u64,
}

/// The number of packets of each interface and kind.
pub(crate) fn counts_of(capture: &Capture) -> BTreeMap<(u32, u8), usize> {
    let mut counts = BTreeMap::new();
    for (interface, bytes) in &capture.packets {
        *counts.entry((*interface, bytes[6])).or_default() += 1;
    }
    counts
}

pub(crate) fn read(path: &Path) -> Capture {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut capture = Capture::default();
    while let Some(block) = reader.next_block() {
        match block.unwrap().0 {
            Block::InterfaceDescription(interface) => {
                for option in &interface.options {
                    if let InterfaceDescriptionOption::IfName(name) = option {
                        capture.names.push(name.to_string());
                    }
                }
            }
            Block::EnhancedPacket(packet) => {
                capture.packets.push((packet.interface_id, packet.data.to_vec()));
            }
            Block::InterfaceStatistics(statistics) => {
                for option in &statistics.options {
                    match option {
                        InterfaceStatisticsOption::IsbIfRecv(n) => capture.received += n,
                        InterfaceStatisticsOption::IsbIfDrop(n) => capture.dropped += n,
                        _ => {}
                    }
                }
            }
            other => panic!("{other:?}"),
        }
    }
    capture
}

/// tshark: the host's, or the one that the command fetches. `None`, after the reason was printed,
/// if there is none available.
fn tshark_for(test: &str) -> Option<Tshark> {
    let place = Place::new();
    let said = place.run(&["image", "tshark", "--", "--version"]);
    if said.code == Some(0) {
        return Some(Tshark(place));
    }
    eprintln!("SKIP {test}: {}", said.err.lines().last().unwrap_or("there is no tshark"));
    None
}

struct Tshark(Place);

fn dissector() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../wireshark/tofu.lua")
}

impl Tshark {
    /// Its output for a capture.
    fn run(&self, file: &Path, args: &[&str]) -> String {
        let script = format!("lua_script:{}", dissector().display());
        let fixed = ["image", "tshark", "--", "-n", "-X", &script, "-r", file.to_str().unwrap()];
        let said = self.0.run(&[&fixed, args].concat());
        let no_errors = !said.err.contains("Lua") && !said.out.contains("Lua Error");
        assert!(said.code == Some(0) && no_errors, "{said:?}");
        said.out
    }

    /// Rows of fields of the packets that pass a filter.
    fn fields(&self, file: &Path, filter: &str, names: &[&str]) -> Vec<Vec<String>> {
        let mut args = vec!["-Y", filter, "-T", "fields"];
        args.extend(names.iter().flat_map(|name| ["-e", name]));
        let out = self.run(file, &args);
        out.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    }
}

/// Lets `check` count the packets that pass a filter, if there is a tshark.
pub(crate) fn dissected(test: &str, file: &Path, check: impl FnOnce(&dyn Fn(&str) -> usize)) {
    if let Some(tshark) = tshark_for(test) {
        check(&|filter| tshark.fields(file, filter, &["frame.number"]).len());
    }
}

/// Two nodes ping each other; node 0 is captured.
fn ping(place: &Place, extra: &[&str]) -> PathBuf {
    let path = place.path().join("node0.pcapng");
    let capture = format!("0={}", path.display());
    let up = ["up", "--shape", "1x1x1x2x1x1", "--guest", "ping", "--args", "count=3 mtu=9000"];
    place.run(&[&up[..], &["--capture", &capture], extra].concat()).ok();
    path
}

#[test]
fn run_is_captured_from_start_to_end() {
    let place = Place::new();
    if !place.can_boot("run_is_captured_from_start_to_end") {
        return;
    }
    let path = ping(&place, &[]);
    let capture = read(&path);
    assert_eq!(capture.names.len(), 16);
    assert_eq!((capture.names[0].as_str(), capture.names[6].as_str()), ("tni0", "port-A"));
    // Each packet at the TNI and at the only port, and nowhere else.
    let mut by_interface: BTreeMap<u32, usize> = BTreeMap::new();
    for (interface, bytes) in &capture.packets {
        *by_interface.entry(*interface).or_default() += 1;
        assert_eq!((bytes[0], bytes[1]), (1, 56));
    }
    let counts: Vec<_> = by_interface.into_iter().collect();
    assert_eq!(counts, [(0, capture.packets.len() / 2), (6, capture.packets.len() / 2)]);
    assert_eq!((capture.received, capture.dropped), (capture.packets.len() as u64, 0));

    let Some(tshark) = tshark_for("run_is_captured_from_start_to_end, the dissector") else {
        return;
    };
    let names = ["tofu.src", "tofu.dst", "ip.src", "ip.dst", "tofu.place", "tofu.vc"];
    let requests = tshark.fields(&path, "icmp.type == 8 && tofu.place == \"tni0\"", &names);
    let expected = ["(0,0,0,0,0,0)", "(0,0,0,1,0,0)", "10.0.0.1", "10.0.0.33", "tni0", ""];
    assert!(requests.len() >= 10, "{requests:?}");
    assert!(requests.iter().all(|row| row[..] == expected), "{requests:?}");
    let replies = tshark.fields(&path, "icmp.type == 0 && tofu.place == \"port A\"", &names);
    assert!(replies.iter().all(|row| (row[0].as_str(), &*row[5]) == ("(0,0,0,1,0,0)", "0")));
    assert!(replies.len() >= 9);

    // 8972 bytes of data are a frame of 9014, in five fragments.
    let names = ["ipot.fragments", "ip.len", "icmp.checksum.status"];
    let large = "ip.len == 9000 && icmp.type == 0 && tofu.place == \"tni0\" && ipot.sum.good == 1";
    let large = tshark.fields(&path, large, &names);
    assert_eq!(large.len(), 3);
    assert!(large.iter().all(|row| row[..] == ["5", "9000", "1"]), "{large:?}");
    // IPv6, and the broadcast at the end.
    assert!(!tshark.fields(&path, "icmpv6.type == 129", &["ipv6.src"]).is_empty());
    assert!(
        !tshark.fields(&path, "ipot.kind == 1 && udp.dstport == 7777", &["eth.dst"]).is_empty()
    );
    let bad =
        tshark.fields(&path, "_ws.malformed || _ws.expert.severity == error", &["_ws.expert"]);
    assert_eq!(bad, [[""; 0]; 0]);
}

#[test]
fn damaged_frames_are_dissected_too() {
    let place = Place::new();
    if !place.can_boot("damaged_frames_are_dissected_too") {
        return;
    }
    // No node needs an answer here.
    let path = place.path().join("bad.pcapng");
    let capture = format!("1={}", path.display());
    let up = ["up", "--shape", "1x1x1x2x1x1", "--guest", "ping", "--timeout", "3s"];
    let faults = ["--faults", "corrupt=50%,undetected=50%,duplicate=5%,seed=3"];
    place.run(&[&up[..], &faults, &["--capture", &capture]].concat());
    let packets = read(&path).packets.len();
    assert!(packets >= 6, "{packets}");
    let Some(tshark) = tshark_for("damaged_frames_are_dissected_too") else { return };
    // All of them are shown, with their errors.
    assert_eq!(tshark.fields(&path, "tofu", &["frame.number"]).len(), packets);
    assert!(!tshark.fields(&path, "tofu.tlp.ecrc.good == 0", &["frame.number"]).is_empty());
    assert!(!tshark.fields(&path, "tofu.ecrc_wrong", &["frame.number"]).is_empty());
    tshark.run(&path, &["-V"]);
}

#[test]
fn commands_are_dissected() {
    let place = Place::new();
    if !place.can_boot("commands_are_dissected") {
        return;
    }
    let path = place.path().join("puts.pcapng");
    let capture = format!("t-0-0-0-0-0-0={}", path.display());
    let up = ["up", "--shape", "1x1x1x2x1x1", "--guest", "allpairs", "--capture", &capture];
    place.run(&up).ok();
    let Some(tshark) = tshark_for("commands_are_dissected") else { return };
    let rows =
        tshark.fields(&path, "tofu.kind == 3 && tofu.direction == 1", &["tofu.total", "tofu.src"]);
    assert!(!rows.is_empty());
    let answers = tshark.fields(&path, "tofu.kind == 6", &["tofu.rcode", "tofu.done"]);
    assert!(answers.iter().any(|row| row[0] == "0x00" && row[1] != "0"), "{answers:?}");
    assert_eq!(
        tshark.fields(&path, "_ws.expert.severity == error", &["frame.number"]),
        [[""; 0]; 0]
    );
}

/// Frames on modelled links, with their behaviour when one of their lanes is dead and the other one
/// has errors.
#[test]
fn slices_of_modelled_links_are_dissected() {
    let place = Place::new();
    if !place.can_boot("slices_of_modelled_links_are_dissected") {
        return;
    }
    let up = ["up", "--links", "modelled", "--shape", "1x1x1x2x1x1", "--json", "--timeout", "300s"];
    let guest = ["--guest", "ping", "--args", "count=300000 mtu=9000 size=5000 tries=100"];
    let (mut machine, _) = place.start(&[&up[..], &guest].concat());
    place.wait_for_machine();
    place.run(&["link", "errors", "0", "A", "--ber", "1e-5", "--dllp-loss", "0.01"]).ok();
    let path = place.path().join("frames.pcapng");
    let limits = ["--on", "A", "--count", "3000", "--seconds", "100"];
    place.run(&[&["capture", "0", "-w", path.to_str().unwrap()][..], &limits].concat()).ok();
    place.run(&["down"]).ok();
    machine.wait();
    let capture = read(&path);
    assert!(capture.packets.iter().all(|(interface, bytes)| (*interface, bytes[1]) == (6, 80)));
    let Some(tshark) = tshark_for("slices_of_modelled_links_are_dissected, the dissector") else {
        return;
    };
    let count = |filter: &str| tshark.fields(&path, filter, &["frame.number"]).len();
    let all = count("tofu");
    assert_eq!(all, capture.packets.len());
    // Two slices each, whose check sequences are right as they were sent.
    let with_slices = count("tofu.slice.lane == 0 && tofu.slice.lane == 1");
    assert_eq!((with_slices, count("tofu.slice.fcs.good == 0")), (all, 0));
    assert_eq!(count("tofu.link.lcrc.good == 0"), 0);
    for some in [
        "tofu.link.spoilt != 0 && tofu.slice.spoilt == 1",
        "tofu.link.check == 2 && tofu.kind == 1",
        "tofu.link.again == 1",
        "tofu.dllp.kind == 1",
        "tofu.dllp.kind == 2",
        "tofu.dllp.kind == 3",
        "icmp && tofu.link.seq",
    ] {
        assert!(count(some) > 0, "{some}");
    }
    assert_eq!(count("_ws.expert.severity == error"), 0);
}

/// Starts a capture, and waits until it has begun.
fn begin(place: &Place, args: &[&str]) -> Child {
    let mut command = place.command(args);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("capturing at ("), "{line}");
    child
}

#[test]
fn captures_end_as_asked_with_valid_files() {
    let place = Place::new();
    let (mut machine, _) = place.start(&["serve", "--shape", "unit", "--json"]);
    let path = place.path().join("quiet.pcapng");
    let file = path.to_str().unwrap();
    let out = place.run(&["capture", "0", "-w", file, "--seconds", "1", "--json"]).ok();
    let summary: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&summary["packets"], &summary["dropped"]), (&0.into(), &0.into()));
    assert_eq!(read(&path).names.len(), 16);

    let mut capture = begin(&place, &["capture", "0,0,0,1,2,1", "-w", file]);
    interrupt(capture.id().into());
    assert_eq!(capture.wait().unwrap().code(), Some(0));
    assert_eq!(read(&path).names.len(), 16);

    // The machine ends first.
    let mut capture = begin(&place, &["capture", "tofu/11", "-w", file]);
    interrupt(machine.id());
    assert_eq!(machine.wait(), Some(130));
    assert_eq!(capture.wait().unwrap().code(), Some(2));
    read(&path);
}

#[test]
fn running_machine_is_captured() {
    let place = Place::new();
    if !place.can_boot("running_machine_is_captured") {
        return;
    }
    let up = ["up", "--name", "ping", "--shape", "1x1x1x2x1x1", "--json", "--guest", "ping"];
    let (mut machine, _) = place.start(&[&up[..], &["--args", "count=3000 size=56"]].concat());
    place.wait_for_machine();
    let path = place.path().join("some.pcapng");
    let limits = ["--on", "tni0,X+", "--kind", "system", "--count", "40", "--snaplen", "100"];
    let capture = ["capture", "t-0-0-0-1-0-0", "--json", "-w", path.to_str().unwrap()];
    let out = place.run(&[&capture[..], &limits].concat()).ok();
    let summary: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(summary["packets"], 40);
    let capture = read(&path);
    assert_eq!(capture.packets.len(), 40);
    // The same for people, one packet per line.
    let said = place.run(&[&["capture", "1", "--count", "5"][..], &limits[..4]].concat());
    let lines: Vec<_> = said.out.lines().collect();
    assert!(lines.len() == 5 && said.err.contains("5 packets, 0 dropped"), "{said:?}");
    let shown = |line: &&str| {
        line.contains(" tni0 ") && line.contains(" system (0,0,0,") && line.contains(" bytes")
    };
    assert!(lines.iter().all(shown), "{lines:?}");
    assert!(capture.packets.iter().all(|(interface, bytes)| (*interface, bytes.len()) == (0, 100)));
    assert_eq!(place.run(&["down"]).code, Some(0));
    machine.wait();
}

#[test]
fn impossible_captures_are_refused() {
    let place = Place::new();
    let error = place.run(&["capture", "0", "-w", "x"]).error();
    assert!(error.contains("no machine is running"), "{error}");
    let (_machine, _) = place.start(&["serve", "--shape", "2x1x1x1x1x1", "--json"]);
    let error = place.run(&["capture", "2", "-w", "x"]).error();
    assert!(error.contains("node 2: the machine 2x1x1x1x1x1 has no such node"), "{error}");
    let error = place.run(&["capture", "0", "-w", "/no/such/x"]).error();
    assert!(error.contains("cannot write /no/such/x: No such file"), "{error}");
    let error = place.run(&["capture", "0", "-w", "x", "--on", "tni6"]).error();
    assert!(error.contains("tni, tni0 to tni5, port, or a port: A, C"), "{error}");
    let error = place.run(&["capture", "0", "-w", "x", "--kind", "ip"]).error();
    assert!(error.contains("system, raw, put, get, atomic, answer, barrier, or dllp"), "{error}");
    for (capture, expected) in [
        ("0", "--capture 0: give NODE=FILE"),
        ("x=y", "--capture x=y: give an index, coordinates or a name"),
        ("12=y", "--capture 12=y: the machine 1x1x1x2x3x2 has no node 12"),
        ("0=/no/such/y", "cannot write /no/such/y: No such file"),
    ] {
        let error = place.run(&["up", "--capture", capture]).error();
        assert!(error.contains(expected), "{error}");
    }
}

/// The counters of a column of `tofu stats --json`, summed over the part `of`.
fn counted(stats: &serde_json::Value, node: usize, of: &str, name: &str) -> u64 {
    let all = stats["nodes"][node][of].as_array().unwrap();
    all.iter().map(|one| one[name].as_u64().unwrap_or_else(|| panic!("no {name}: {one}"))).sum()
}

#[test]
fn devices_say_what_they_have_counted() {
    let place = Place::new();
    let error = place.run(&["stats"]).error();
    assert!(error.contains("no machine is running"), "{error}");
    if !place.can_boot("devices_say_what_they_have_counted") {
        return;
    }
    let up = ["up", "--name", "ping", "--shape", "2x1x1x2x1x1", "--json", "--guest", "ping"];
    // Packets on the link are lost when it dies, perhaps the answer, so another request follows.
    let ping = "count=300000 size=56 tries=100";
    let more = ["--gateway", "1,0,0,0,0,0", "--tap", "off", "--args", ping];
    let (mut machine, _) = place.start(&[&up[..], &more].concat());
    place.wait_for_machine();
    let stats = |args: &[&str]| -> serde_json::Value {
        let out = place.run(&[&["stats", "--json"], args].concat()).ok();
        serde_json::from_str(&out).unwrap()
    };
    wait_for("packets", || {
        let stats = stats(&[]);
        stats["nodes"].as_array().map(Vec::len) == Some(4)
            && counted(&stats, 0, "tnis", "RX_NUM_SYSTEM_TLP") > 100
    });
    let (before, after) = (stats(&["0"]), stats(&["t-0-0-0-0-0-0"]));
    for (of, name) in [
        ("tnis", "NUM_SEND_SYSTEM_TLP"),
        ("tnis", "BYTE_RECEIVE_TLP"),
        ("ports", "NUM_SEND_TLP"),
        ("queues", "TCQ_NUM_NOTICE"),
    ] {
        let [before, after] = [&before, &after].map(|stats| counted(stats, 0, of, name));
        assert!(0 < before && before <= after, "{name}: {before} {after}");
    }
    assert_eq!(counted(&after, 0, "ports", "NUM_TX_DISCARD_SYSTEM_TLP"), 0);
    // The gateway's IP is this process's own; that of the others is not known.
    let all = stats(&[]);
    let gateway = all["nodes"].as_array().unwrap().iter().find(|node| node["at"][0] == 1).unwrap();
    assert!(gateway["ip"]["received"].is_number(), "{gateway}");
    assert!(all["nodes"][0]["ip"].is_null());
    // Packets that are sent over a dead link are counted at its port.
    place.run(&["link", "down", "0", "A"]).ok();
    wait_for("lost packets", || {
        counted(&stats(&["0"]), 0, "ports", "NUM_TX_DISCARD_SYSTEM_TLP") > 0
    });
    place.run(&["link", "up", "0", "A"]).ok();
    check_text(&place);
    let mut watch = place.command(&["stats", "0", "--watch", "50ms", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let added: Vec<u64> = lines
        .by_ref()
        .take(3)
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .map(|stats: serde_json::Value| counted(&stats, 0, "tnis", "NUM_SEND_TLP"))
        .collect();
    let total = counted(&stats(&["0"]), 0, "tnis", "NUM_SEND_TLP");
    assert!(added.iter().sum::<u64>() < total, "{added:?}, {total}");
    // It ends with the machine.
    place.run(&["down"]).ok();
    machine.wait();
    // As many as there are.
    let _ = lines.count();
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    let error = place.run(&["stats", "--watch", "0s"]).error();
    assert!(error.contains("a whole number of seconds, or with ms"), "{error}");
}

/// For people: a line for each device.
fn check_text(place: &Place) {
    let text = place.run(&["stats"]).ok();
    assert!(text.starts_with("index ") && text.lines().count() == 5, "{text}");
    let text = place.run(&["stats", "0"]).ok();
    assert!(text.contains("TNI 0\n") && text.contains("port A, to (0,0,0,1,0,0)"), "{text}");
}

#[test]
fn faults_are_set_shown_and_counted() {
    let place = Place::new();
    let (_machine, _) = place.start(&["serve", "--shape", "2x1x1x1x1x1", "--json"]);
    assert_eq!(place.run(&["fault", "show"]).ok(), "no faults\n");
    place.run(&["fault", "set", "loss=1%,reorder=0.5%,seed=7"]).ok();
    let shown: serde_json::Value =
        serde_json::from_str(&place.run(&["fault", "show", "--json"]).ok()).unwrap();
    assert_eq!(shown["faults"], "loss=1%,reorder=0.5%,seed=7");
    assert_eq!(shown["lost"], 0);
    place.run(&["fault", "off"]).ok();
    assert_eq!(place.run(&["fault", "show", "--json"]).ok(), "null\n");
    let error = place.run(&["fault", "set", "loss=2"]).error();
    assert!(
        error.contains("a list of loss, duplicate, reorder, corrupt and undetected"),
        "{error}"
    );
}

/// A served device is behind a port that we do not know.
#[test]
fn pcie_errors_need_a_root_port() {
    let place = Place::new();
    let (_machine, _) = place.start(&["serve", "--shape", "2x1x1x1x1x1", "--json"]);
    let error = place.run(&["fault", "pcie", "1", "fatal"]).error();
    assert!(error.contains("node 1: its device is behind no root port"), "{error}");
    let error = place.run(&["fault", "pcie", "1", "severe"]).error();
    assert!(error.contains("correctable, nonfatal, fatal"), "{error}");
}

/// A node of the K computer has four TNIs, and records are marked with the generation.
#[test]
fn capture_has_its_generation() {
    let place = Place::new();
    if !place.can_boot("capture_has_its_generation") {
        return;
    }
    let file = place.path().join("k.toml");
    std::fs::write(&file, "shape = \"1x1x1x2x1x1\"\ngeneration = \"k\"\n").unwrap();
    let path = place.path().join("k.pcapng");
    let to = format!("0={}", path.display());
    place.run(&["up", "-c", file.to_str().unwrap(), "--guest", "ping", "--capture", &to]).ok();
    let capture = read(&path);
    assert_eq!(capture.names.len(), 14);
    assert_eq!([&capture.names[3], &capture.names[4]], ["tni3", "port-A"]);
    assert!(!capture.packets.is_empty());
    assert!(capture.packets.iter().all(|(_, bytes)| bytes[35] == 1), "the K computer's number");
    let Some(tshark) = tshark_for("capture_has_its_generation") else { return };
    let machines = tshark.fields(&path, "tofu.machine == 1", &["tofu.machine"]);
    assert_eq!(machines.len(), capture.packets.len());
    assert!(tshark.fields(&path, "tofu.absent", &["tofu.machine"]).is_empty());
    // The same file marked as of another generation, which has no such interface.
    let mut bytes = std::fs::read(&path).unwrap();
    let first = &capture.packets[0].1;
    let at = bytes.windows(first.len()).position(|window| window == &first[..]).unwrap();
    bytes[at + 14] = 5;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(tshark.fields(&path, "tofu.absent", &["tofu.src_tni"]), [["5"]]);
}
