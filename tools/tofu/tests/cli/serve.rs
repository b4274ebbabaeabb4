//! `tofu serve`.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use tofu_linux_tests::{interrupt, janitor, kill};

use crate::tofu::{PATIENCE, Place, Process};

const PAIR: [&str; 4] = ["serve", "--shape", "2x1x1x1x1x1", "--json"];

fn sockets(machine: &serde_json::Value) -> Vec<String> {
    let nodes = machine["nodes"].as_array().unwrap();
    nodes.iter().map(|node| node["socket"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn devices_are_on_sockets_until_ctrl_c() {
    let place = Place::new();
    let (mut process, machine) = place.start(&PAIR);
    let sockets = sockets(&machine);
    assert_eq!(sockets.len(), 2);
    assert!(sockets[1].ends_with("/tofu/tofu/node-1-0-0-0-0-0.sock"), "{sockets:?}");
    for socket in &sockets {
        UnixStream::connect(socket).unwrap();
    }
    let ps = place.ps();
    assert_eq!(ps[0]["name"], "tofu");
    assert_eq!(
        (&ps[0]["nodes"][1]["kind"], &ps[0]["nodes"][1]["index"]),
        (&"served".into(), &1.into())
    );
    let error = place.run(&["exec", "0", "--", "true"]).error();
    assert!(error.contains("not a Linux node"), "{error}");
    let error = place.run(&["serve", "--name", "tofu"]).error();
    assert!(error.contains("the name tofu is taken"), "{error}");
    interrupt(process.id());
    assert_eq!(process.wait(), Some(130));
    place.is_clean();
}

#[test]
fn faults_of_a_device_come_from_a_plan() {
    let place = Place::new();
    let (mut process, _) = place.start(&PAIR);
    let plan = |text: &str| {
        let file = place.path().join("plan.toml");
        std::fs::write(&file, text).unwrap();
        place.run(&["fault", "device", "1", "--plan", file.to_str().unwrap()])
    };
    let event = "[[event]]\nmsix = 9\nnth = 3\nfate = \"lost\"\n";
    plan(&format!("seed = 7\nmsix-delayed = \"5%\"\n{event}")).ok();
    let faults = || place.run(&["inspect", "1", "faults", "--json"]).json()["tree"].clone();
    let shown = faults();
    for (name, value) in
        [("seed", 7), ("msix_delayed_ppm", 50_000), ("delay_ns", 10_000_000), ("planned", 1)]
    {
        assert_eq!(shown[name], value, "{name}: {shown}");
    }
    let error = plan("loss = \"1%\"\n").error();
    assert!(error.contains("plan.toml: loss=1%: faults of a device are"), "{error}");
    assert_eq!(faults(), shown, "a plan that is refused changes nothing");
    place.run(&["fault", "device", "1", "off"]).ok();
    assert_eq!(faults()["planned"], 0);
    interrupt(process.id());
    assert_eq!(process.wait(), Some(130));
    place.is_clean();
}

#[test]
fn devices_in_modelled_time_have_paces() {
    let place = Place::new();
    let (mut process, machine) = place.start(&[&PAIR[..], &["--time", "modelled"]].concat());
    assert_eq!(machine["time"], "modelled");
    for node in machine["nodes"].as_array().unwrap() {
        for socket in ["socket", "pace"] {
            UnixStream::connect(node[socket].as_str().unwrap()).unwrap();
        }
    }
    interrupt(process.id());
    assert_eq!(process.wait(), Some(130));
    place.is_clean();
    let file = place.path().join("m.toml");
    for (field, expected) in [
        ("doorbell = \"polled\"", "cannot have polled doorbells"),
        ("engines = 2", "cannot have engine threads"),
        ("metrics = \"127.0.0.1:9\"", "cannot have metrics"),
        ("generation = \"tnw\"", "cannot have the devices of TNW"),
        ("ns_per_instruction = 0.01", "a number of nanoseconds from 0.1 to 100"),
    ] {
        std::fs::write(&file, format!("{field}\n")).unwrap();
        let file = file.to_str().unwrap();
        let shape = ["--shape", "2x1x1x1x1x1"];
        let args = [&["serve", "--time", "modelled", "-c", file][..], &shape].concat();
        let error = place.run(&args).error();
        assert!(error.contains(expected), "{error}");
    }
    let error = place.run(&["serve", "--quantum", "100"]).error();
    assert!(
        error.contains("--quantum is for machines in modelled time; add --time modelled"),
        "{error}"
    );
}

#[test]
fn several_machines_have_names() {
    let place = Place::new();
    let (mut first, _) = place.start(&PAIR);
    let (mut second, machine) = place.start(&PAIR);
    assert_eq!(machine["machine"], "tofu-2");
    let error = place.run(&["down"]).error();
    assert!(error.ends_with("several machines are running, name one of them: tofu, tofu-2"));
    let error = place.run(&["down", "tofu-3"]).error();
    assert!(error.contains("no machine tofu-3 is running; there are: tofu, tofu-2"), "{error}");
    place.run(&["down", "tofu-2"]).ok();
    second.ok();
    place.run(&["down"]).ok();
    first.ok();
    place.is_clean();
}

#[test]
fn sockets_in_a_folder_of_the_users() {
    let place = Place::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let args = [&PAIR[..], &["--socket-dir", path]].concat();
    // A stale one is no obstacle.
    drop(std::os::unix::net::UnixListener::bind(folder.path().join("node-0-0-0-0-0-0.sock")));
    let (process, machine) = place.start(&args);
    assert!(sockets(&machine)[0].starts_with(path));
    let error = place.run(&args).error();
    assert!(error.contains("in use"), "{error}");
    // The other's sockets are still there.
    UnixStream::connect(&sockets(&machine)[0]).unwrap();
    kill(process.id());
    place.is_clean();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let error = place.run(&["serve", "--socket-dir", "/no/such/folder"]).error();
    assert!(error.contains("--socket-dir /no/such/folder: there is no such folder"), "{error}");
}

#[test]
fn killed_by_force_it_leaves_nothing() {
    let place = Place::new();
    let (process, _) = place.start(&PAIR);
    kill(process.id());
    place.is_clean();
    // Even if the janitor is killed as well: then the next command cleans up.
    let (process, machine) = place.start(&PAIR);
    kill(janitor(process.id()));
    kill(process.id());
    drop(process);
    assert!(std::path::Path::new(&sockets(&machine)[0]).exists());
    assert_eq!(place.run(&["ps"]).ok(), "no machine is running\n");
    place.is_clean();
}

#[test]
fn memory_errors_are_counted_or_end_the_node() {
    let place = Place::new();
    let (_process, _) = place.start(&["serve", "--shape", "1x1x1x2x1x1", "--json"]);
    let ecc = |args: &[&str]| place.run(&[&["fault", "ecc", "0", "--where"], args].concat());
    let counts = || {
        let stats = place.run(&["stats", "0", "--json"]).ok();
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        stats["nodes"][0]["ecc"].clone()
    };
    ecc(&["router", "--correctable", "2"]).ok();
    assert_eq!(counts()["ECC_ROUTER_CORRECTED"], 0, "no packet has come");
    let links = || place.run(&["link", "ls", "--down"]).ok().lines().count();
    assert_eq!(links(), 0);
    ecc(&["tables", "--fatal"]).ok();
    assert_eq!((counts()["ECC_TABLES_LOST"].as_u64(), links()), (Some(1), 1));
    assert!(ecc(&["tables"]).error().contains("--correctable"));
    assert!(ecc(&["cache", "--fatal"]).error().contains("tables, buffers, router"));
}

/// Out of a half rack, two links of a board's nodes share a cable.
#[test]
fn cable_takes_both_its_links_down() {
    let place = Place::new();
    let (_process, _) = place.start(&["serve", "--shape", "4x1x1x1x1x2", "--json"]);
    let down = || place.run(&["link", "ls", "--down"]).ok().lines().count();
    let said = place.run(&["link", "down", "1,0,0,0,0,0", "X+"]).ok();
    assert_eq!((said.as_str(), down()), ("with X+ of (1,0,0,0,0,1), in the same cable\n", 2));
    place.run(&["link", "up", "1,0,0,0,0,1", "X+", "--alone"]).ok();
    assert_eq!(down(), 1);
    place.run(&["link", "up", "1,0,0,0,0,1", "X+"]).ok();
    assert_eq!(down(), 0);
    // Within the half rack there are no cables.
    assert_eq!(place.run(&["link", "down", "0,0,0,0,0,0", "X+"]).ok(), "");
    assert_eq!(down(), 1);
}

#[test]
fn links_go_down_and_come_up() {
    let place = Place::new();
    let (mut process, _) = place.start(&["serve", "--shape", "2x1x1x2x1x1", "--json"]);
    let down = || -> Vec<String> {
        let out = place.run(&["link", "ls", "--down"]).ok();
        out.lines().map(str::to_owned).collect()
    };
    assert_eq!(place.run(&["link", "ls"]).ok().lines().count(), 6);
    assert_eq!(down(), [""; 0]);
    place.run(&["link", "down", "0,0,0,0,0,0", "A"]).ok();
    assert_eq!(down(), ["(0,0,0,0,0,0) A  (0,0,0,1,0,0) down"]);
    // Both links of a ring of two.
    place.run(&["link", "down", "tofu/3", "t-0-0-0-1-0-0"]).ok();
    assert_eq!(down().len(), 3);
    // As planned, the machine has all its links; the running one has three fewer.
    let topo = place.run(&["topo", "--machine"]).ok();
    assert!(topo.starts_with("machine 2x1x1x2x1x1: 4 nodes, 6 links, 3 down\n"), "{topo}");
    assert!(topo.ends_with("\n! this link is down\n"), "{topo}");
    let map = place.run(&["map", "--machine=tofu", "--map", "2"]).ok();
    assert!(map.starts_with("machine 2x1x1x2x1x1: 4 nodes, 6 links, 3 down\n"), "{map}");
    let error = place.run(&["topo", "--machine=other"]).error();
    assert!(error.contains("no machine other is running; there are: tofu"), "{error}");
    let links = place.run(&["link", "ls", "--json"]).ok();
    let links: serde_json::Value = serde_json::from_str(&links).unwrap();
    let links = links.as_array().unwrap();
    assert_eq!(links.iter().filter(|link| link["up"] == false).count(), 3);
    place.run(&["link", "up", "1", "0"]).ok();
    place.run(&["link", "up", "1", "X-"]).ok();
    assert_eq!(down().len(), 1);
    place.run(&["link", "up", "1", "X+"]).ok();
    assert_eq!(down(), [""; 0]);
    let error = place.run(&["link", "down", "0", "3"]).error();
    assert!(error.contains("(0,0,0,0,0,0) and (1,0,0,1,0,0) are not neighbours"), "{error}");
    let error = place.run(&["link", "down", "0", "Y+"]).error();
    assert!(error.contains("port Y+: node (0,0,0,0,0,0) has no link there; it has: A, X-, X+"));
    let error = place.run(&["link", "up", "4", "A"]).error();
    assert!(error.contains("node 4: the machine 2x1x1x2x1x1 has no such node"), "{error}");
    interrupt(process.id());
    assert_eq!(process.wait(), Some(130));
}

/// A message of the vfio-user protocol: its command, and a body; returns the error of the answer.
fn say(client: &mut UnixStream, command: u16, body: &[u8]) -> u32 {
    ask(client, command, body).err().unwrap_or(0)
}

/// The same, with the body of an answer that is not an error.
fn ask(client: &mut UnixStream, command: u16, body: &[u8]) -> Result<Vec<u8>, u32> {
    let mut message = Vec::new();
    message.extend([7, 0]);
    message.extend(command.to_ne_bytes());
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    client.write_all(&message).unwrap();
    let mut header = [0; 16];
    client.read_exact(&mut header).unwrap();
    let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
    let mut rest = vec![0; word(4) as usize - 16];
    client.read_exact(&mut rest).unwrap();
    // The answer's flags say whether it is an error.
    if word(8) & 1 << 5 == 0 { Ok(rest) } else { Err(word(12)) }
}

/// Version 0.1, without capabilities.
const VERSION: &[u8] = b"\0\0\x01\0{}\0";

/// Vendor and device id of the first device of a machine.
fn ids(machine: &serde_json::Value) -> u32 {
    let mut client = UnixStream::connect(&sockets(machine)[0]).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(say(&mut client, 1, VERSION), 0);
    // REGION_READ: four bytes at offset 0 of region 7, which is configuration space.
    let body = [0u32, 0, 7, 4].map(u32::to_ne_bytes).concat();
    let answer = ask(&mut client, 9, &body).unwrap();
    u32::from_le_bytes(answer[16..20].try_into().unwrap())
}

#[test]
fn devices_have_the_requested_generation() {
    let place = Place::new();
    let file = place.path().join("machine.toml");
    std::fs::write(&file, "generation = \"fx100\"\n").unwrap();
    let in_file = ["-c", file.to_str().unwrap()];
    let cases: [(&[&str], _, _); 4] = [
        (&[], "fugaku", 0x1ccd_10cf),
        (&["--generation", "fx10"], "fx10", 0x1cc1_10cf),
        (&in_file, "fx100", 0x1cc2_10cf),
        // The command line wins.
        (&[&in_file[..], &["--generation", "k"]].concat(), "k", 0x1cc1_10cf),
    ];
    for (args, generation, expected) in cases {
        let (mut process, machine) = place.start(&[&PAIR, args].concat());
        assert_eq!(machine["generation"], generation);
        assert_eq!(place.ps()[0]["generation"], generation);
        assert_eq!(ids(&machine), expected, "{generation}");
        interrupt(process.id());
        assert_eq!(process.wait(), Some(130));
    }
    std::fs::write(&file, "generation = \"tnw\"\n").unwrap();
    let (mut process, machine) =
        place.start(&[&["serve", "--json", "--shape", "2x1x1"], &in_file[..]].concat());
    assert_eq!(ids(&machine), 0x1cce_10cf);
    interrupt(process.id());
    assert_eq!(process.wait(), Some(130));
    let (mut process, machine) =
        place.start(&[&PAIR, &in_file[..], &["--generation", "k"]].concat());
    assert_eq!(ids(&machine), 0x1cc1_10cf);
    interrupt(process.id());
    assert_eq!(process.wait(), Some(130));
    place.is_clean();
}

#[test]
fn monitors_map_doorbells_and_windows() {
    let place = Place::new();
    let file = place.path().join("machine.toml");
    std::fs::write(&file, "doorbell = \"polled\"\n").unwrap();
    let in_file = ["-c", file.to_str().unwrap()];
    // Doorbells of Tofu are in region 0, windows of TNW in region 4.
    for (generation, region) in [("fugaku", 0u32), ("tnw", 4)] {
        let cases: [(&[&str], bool); 4] = [
            (&[], false),
            (&["--doorbell", "polled"], true),
            (&in_file, true),
            (&[&in_file[..], &["--doorbell", "trapped"]].concat(), false),
        ];
        for (args, expected) in cases {
            let args = [&PAIR, args, &["--generation", generation]].concat();
            let (mut process, machine) = place.start(&args);
            let mut client = UnixStream::connect(&sockets(&machine)[0]).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(say(&mut client, 1, VERSION), 0);
            // DEVICE_GET_REGION_INFO: with room for the areas; bit 2 of the flags means "mmap".
            let body = [4096u32, 0, region, 0, 0, 0, 0, 0].map(u32::to_ne_bytes).concat();
            let answer = ask(&mut client, 5, &body).unwrap();
            let flags = u32::from_ne_bytes(answer[4..8].try_into().unwrap());
            assert_eq!(flags & 1 << 2 != 0, expected, "{args:?}");
            interrupt(process.id());
            assert_eq!(process.wait(), Some(130));
        }
    }
    let error = place.run(&[&PAIR[..], &["--doorbell", "rung"]].concat()).error();
    assert!(error.contains("[possible values: trapped, polled, auto]"), "{error}");
    place.is_clean();
}

#[test]
fn clients_that_would_wait_in_vain_are_told() {
    const BUSY: u32 = 16;
    const INVALID: u32 = 22;
    let place = Place::new();
    let log = place.path().join("log");
    let mut command = place.command(&PAIR);
    command.stderr(File::create(&log).unwrap());
    let (mut process, machine) = Process::start(command);
    assert_eq!(machine["append"], "tofu.shape=2x1x1x1x1x1 tofu.torus=x tofu.nodes=2");
    let socket = &sockets(&machine)[0];
    let connect = || {
        let client = UnixStream::connect(socket).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    };
    let mut first = connect();
    assert_eq!(say(&mut first, 1, VERSION), 0);
    // A client that connects while another one is attached, and does not leave.
    let mut second = connect();
    assert_eq!(say(&mut second, 1, VERSION), BUSY);
    // Memory without a descriptor: a ROM, which does not matter, and where programs are.
    let map = |address: u64, size: u64| {
        let mut body = Vec::new();
        body.extend([32u32, 3].map(u32::to_ne_bytes).concat());
        body.extend([0, address, size].map(u64::to_ne_bytes).concat());
        body
    };
    assert_eq!(say(&mut first, 2, &map(0xfffc_0000, 0x4_0000)), 0);
    assert_eq!(say(&mut first, 2, &map(0, 16 << 20)), INVALID);
    // A client that starts over is served, and a correct run ends without a warning: the client
    // leaves without reading its answers.
    first.write_all(&[7, 0, 4, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    first.write_all(&[32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop(first);
    let mut third = connect();
    assert_eq!(say(&mut third, 1, VERSION), 0);
    drop(third);
    interrupt(process.id());
    assert_eq!(process.wait(), Some(130));
    let log = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].contains("(0,0,0,0,0,0): a client was turned away, as another one"), "{log}");
    assert!(lines[1].contains("memory cannot be reached (Invalid argument"), "{log}");
    assert!(lines[1].contains("memory-backend-memfd,share=on"), "{log}");
}

#[test]
fn metrics_are_served_on_request() {
    let place = Place::new();
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let metrics = free.to_string();
    let (mut process, _) = place.start(&[&PAIR[..], &["--metrics", &metrics]].concat());
    let mut client = TcpStream::connect(&metrics).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: tofu\r\n\r\n").unwrap();
    let mut page = String::new();
    client.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    for line in [
        "tofu_machine_info{shape=\"2x1x1x1x1x1\",generation=\"fugaku\"} 1",
        "tofu_tni_num_send_tlp_total{node=\"1\",tni=\"5\"} 0",
        "tofu_port_num_send_tlp_total{node=\"0\",port=\"X+\"} 0",
        "tofu_node_router_up{node=\"0\"} 1",
    ] {
        assert!(page.lines().any(|other| other == line), "{line}: {page}");
    }
    // All that the dashboard asks for exists, except queues, because none is open.
    let dashboard = include_str!("../../../grafana/tofu.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut asked = 0;
    for target in targets {
        let words = target["expr"].as_str().unwrap();
        let words = words.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for metric in words.filter(|word| word.starts_with("tofu_")) {
            let there = page.contains(&format!("# TYPE {metric} "));
            assert!(there || metric.starts_with("tofu_queue_"), "{metric}");
            asked += 1;
        }
    }
    assert!(asked > 10);
    let one = ["serve", "--shape", "1x1x1x1x1x1", "--metrics"];
    let error = place.run(&[&one[..], &[&metrics]].concat()).error();
    assert!(error.contains(&format!("cannot serve metrics on {metrics}")), "{error}");
    let error = place.run(&[&one[..], &["9400"]].concat()).error();
    assert!(error.contains("an IP address and a port, such as"), "{error}");
    interrupt(process.id());
    assert_eq!(process.wait(), Some(130));
}
