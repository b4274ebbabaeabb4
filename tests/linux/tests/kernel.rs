//! The device with stock kernels and third-party programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tofu_image::{Cache, Silent, TCG_ARGUMENTS, TCG_CPU};
use tofu_linux_tests::{Image, MOMENT, Place, Running, Typed, kill, vfio_selftests, wait_for};

/// The folder of this workspace.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The slot of the device on a node.
fn slot(place: &Place) -> String {
    let devices = place.exec("0", &["tofu-guest", "ls", "--json"]).json();
    devices[0]["device"].as_str().unwrap().to_owned()
}

/// Cases of the kernel's selftests that are skipped, and why.
const SKIPPED: [(&str, &str); 1] =
    [("vfio_pci_irq_test.msi.enable_trigger_disable", "the device has MSI-X only")];

/// The cases of a selftest in the kernel's format: name and result.
fn cases(output: &str) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    for line in output.lines() {
        let (word, rest) = line.split_once("ok ").unwrap_or_default();
        let Some((_, name)) = rest.split_once(' ').filter(|(n, _)| n.parse::<u32>().is_ok()) else {
            continue;
        };
        let (name, comment) = name.split_once(" # ").unwrap_or((name, ""));
        let result = match word {
            "" if comment.starts_with("SKIP") => "skipped",
            "" if comment.is_empty() => "passed",
            _ => "failed",
        };
        found.push((name.trim_start_matches("# ").to_owned(), result));
    }
    found
}

#[test]
fn selftests_of_vfio() {
    let Some(place) = Place::new(Image::Newest) else { return };
    let Some(programs) = vfio_selftests() else { return };
    let image = ["--image", Image::Newest.name(), "--shape", "1x1x1x1x1x1"];
    // They have exclusive use of the device.
    place.up(&[&image[..], &["--append", "tofu.net=off"]].concat());
    let slot = slot(&place);
    place.exec("0", &["tofu-guest", "bind"]).ok();
    // For the cases that map huge pages.
    place.exec("0", &["sh", "-c", "echo 8 > /proc/sys/vm/nr_hugepages"]).ok();
    let modes = ["vfio_type1_iommu", "vfio_type1v2_iommu"];
    let variants = modes.iter().flat_map(|mode| {
        [mode.to_string(), format!("{mode}_anonymous"), format!("{mode}_anonymous_hugetlb_2mb")]
    });
    let variants: Vec<_> = variants.map(|name| format!("-v {name}")).collect();
    let device =
        format!("VFIO_SELFTESTS_IOMMU=vfio_type1v2_iommu /tmp/vfio_pci_device_test {slot}");
    let mapping = format!("/tmp/vfio_dma_mapping_test {} {slot}", variants.join(" "));
    let mut found = Vec::new();
    let mut output = String::new();
    for (program, line) in [("vfio_pci_device_test", device), ("vfio_dma_mapping_test", mapping)] {
        let file = programs.join(program);
        place.run(&["cp", file.to_str().unwrap(), "0:/tmp/"]).ok();
        let said = place.exec("0", &["sh", "-c", &line]);
        found.extend(cases(&said.out));
        output += &format!("{said:?}\n");
    }
    let mut bad = Vec::new();
    for (name, result) in &found {
        let expected = SKIPPED.iter().find(|(known, _)| known == name);
        match expected {
            Some((_, why)) if *result == "skipped" => {
                eprintln!("{result} {name}: as expected, {why}");
            }
            _ => eprintln!("{result} {name}"),
        }
        if *result == "failed" || (*result == "skipped") != expected.is_some() {
            bad.push(name);
        }
    }
    assert!(bad.is_empty(), "not as expected: {bad:?}\n{output}");
    for expected in ["config_space_read_write", "validate_bars", "reset", "msix", "dma_map_unmap"] {
        assert!(found.iter().any(|(name, _)| name.contains(expected)), "{expected}: {output}");
    }
    // None of them has left the device in an unusable state.
    place.exec("0", &["tofu-guest", "selftest"]).ok();
    place.run(&["down"]).ok();
    place.is_clean();
}

/// The output of `lspci -vvv` without the parts that differ from run to run; see
/// tests/golden/README.md.
fn normalised(output: &str) -> String {
    let mut lines = Vec::new();
    for line in output.lines().filter(|line| !line.starts_with("lspci:")) {
        let cut = |line: &str, start: &str, name: &str| {
            let begin = line.find(start)? + start.len();
            let end = line[begin..].find(' ').map_or(line.len(), |length| begin + length);
            Some(format!("{}{name}{}", &line[..begin], &line[end..]))
        };
        let line = cut(line, "Memory at ", "ADDRESS")
            .or_else(|| cut(line, "IOMMU group: ", "N"))
            .or_else(|| cut(line, "Physical Slot: ", "N"))
            .unwrap_or_else(|| line.to_owned());
        lines.push(line);
    }
    if let Some(first) = lines.first_mut() {
        let rest = first.split_once(' ').map_or("", |(_, rest)| rest);
        *first = format!("SLOT {rest}");
    }
    lines.join("\n").trim_end().to_owned()
}

/// A QEMU of the test's own, attached to a device that `tofu serve` offers.
struct Client<'a> {
    place: &'a Place,
    image: &'a Value,
}

impl Client<'_> {
    /// Boots `line`, which `tofu serve` has printed, with a guest whose kernel gets these words;
    /// returns its shell.
    fn boot(&self, line: &str, words: &str) -> Typed {
        let folder = Path::new(self.image["folder"].as_str().unwrap());
        let file = |name: &str| folder.join(name).display().to_string();
        let mut line = format!(
            "exec {line} -nodefaults -no-user-config -display none -no-reboot -serial stdio \
             -accel tcg -cpu {TCG_CPU} -kernel {} -initrd {} \
             -append 'console=ttyS0 quiet panic=-1 {words} intel_iommu=on \
             iomem=relaxed tofu.name=guest tofu.net=off'",
            file("vmlinux"),
            file("initrd"),
        );
        let root = folder.join("root.ext4");
        if root.exists() {
            line += &format!(
                " -drive if=none,id=root,format=raw,readonly=on,file={} \
                 -device virtio-blk-pci,drive=root",
                root.display()
            );
        }
        let mut command = Command::new("sh");
        let path = format!("{}:{}", self.place.file("bin"), std::env::var("PATH").unwrap());
        command.args(["-c", &line]).env("PATH", path);
        // So that it is found among the processes of this place.
        command.env("XDG_RUNTIME_DIR", self.place.path());
        Typed::start(command)
    }
}

/// Replaces the name in a printed command line by the QEMU that machines here run under.
fn replace_qemu(place: &Place) {
    let qemu = Cache::from_env().unwrap().qemu(None, &Silent).unwrap();
    let words = qemu.command();
    let words = [words.get_program()].into_iter().chain(words.get_args());
    let words = words.map(|word| format!("'{}'", word.display()));
    let variables = qemu.envs.iter();
    let variables =
        variables.map(|(name, value)| format!("{}='{}'", name.display(), value.display()));
    let words: Vec<_> = variables.chain(words).collect();
    fs::create_dir(place.path().join("bin")).unwrap();
    let script = place.path().join("bin/qemu-system-x86_64");
    fs::write(&script, format!("#!/bin/sh\nexec env {} \"$@\"\n", words.join(" "))).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The output of `tofu serve`, once it serves.
fn printed(serve: &mut Running) -> String {
    let mut text = String::new();
    while !text.contains("Ctrl-C ends it.") {
        text += &serve.line();
    }
    text
}

/// The blocks of a pcapng file that are packets, with their times.
fn packets(file: &str) -> Vec<Vec<u8>> {
    const ENHANCED_PACKET: u32 = 6;
    let bytes = fs::read(file).unwrap();
    let mut rest = &bytes[..];
    let mut packets = Vec::new();
    while let Some((head, _)) = rest.split_first_chunk::<8>() {
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let (block, left) = rest.split_at(word(4) as usize);
        if word(0) == ENHANCED_PACKET {
            packets.push(block.to_vec());
        }
        rest = left;
    }
    packets
}

/// Nodes in modelled time measure the same in each round, on a busy host as on an idle one. A run
/// that was recorded comes again to the last interrupt.
#[test]
fn nodes_in_modelled_time_measure_the_machine() {
    let Some(place) = Place::new(Image::Default) else { return };
    let image = ["--image", Image::Default.name(), "--driver", "vfio", "--shape", "2x1x1x1x1x1"];
    let up = ["up", "--linux", "--detach", "--time", "modelled"];
    let up = [&up[..], &image].concat();
    let (record, captured) = (place.file("input.jsonl"), place.file("node0.pcapng"));
    let capture = format!("0={captured}");
    let records = ["--record", &record, "--capture", &capture];
    place.run_for(&[&up[..], &records].concat(), Duration::from_secs(400), b"").ok();
    let look = ["exec", "1", "--", "sh", "-c", "dmesg; cat /proc/interrupts /proc/stat"];
    let run = || {
        let said = place.pingpong(Duration::from_secs(200));
        (said, place.run_for(&look, Duration::from_secs(100), b"").ok())
    };
    let recorded = run();
    let row = &recorded.0.1;
    let [bytes, min, p50, p99] = ["bytes", "min_us", "p50_us", "p99_us"]
        .map(|of| row[of].as_f64().unwrap_or_else(|| panic!("{row}")));
    // Hardware takes 0.49 us of it. The rest is 0.3 ns for each instruction of the guests. A round
    // in a hundred has a timer's interrupt, and one may look at memory once more than another.
    assert!(bytes == 8.0 && (0.8..1.6).contains(&p50), "{row}");
    assert!(p50 - min < 0.1 && p99 - p50 < 2.0, "{row}");
    let time = place.run(&["time", "--json"]).json();
    assert_eq!(time["time"]["late"], 0, "{time}");
    assert_eq!(time["time"]["ns_per_instruction"], 0.3, "{time}");
    let guests = time["time"]["guests"].as_array().unwrap();
    assert!(guests.iter().all(|guest| guest["accesses"].as_u64().unwrap() > 100), "{time}");
    // Its commands are in flight for a part of the time in which a guest is awake.
    let times = |guest: &Value| ["in_flight_ns", "awake_ns"].map(|of| guest[of].as_u64().unwrap());
    let is_part = |[in_flight, awake]: [u64; 2]| in_flight > 10_000 && in_flight < awake;
    assert!(guests.iter().map(times).all(is_part), "{time}");
    // Nothing uses registers now.
    place.run(&["fault", "device", "0", "gone"]).ok();
    let faults = place.run(&["inspect", "0", "faults", "--json"]).json();
    assert_eq!(faults["tree"]["gone"], true, "{faults}");
    place.run(&["fault", "device", "0", "off"]).ok();
    let device = place.run(&["inspect", "1", "device", "--json"]).json();
    assert!(device.is_object(), "{device}");
    place.run(&["down"]).ok();
    let first = packets(&captured);

    // Counts of interrupts, switches and ticks are those of the recorded run, so it has gone the
    // same way.
    let again = ["--replay", &record, "--capture", &capture];
    place.run_for(&[&up[..], &again].concat(), Duration::from_secs(400), b"").ok();
    let replayed = run();
    let error = place.run(&["fault", "set", "loss=1%"]).error();
    assert!(error.contains("come from its record"), "{error}");
    assert_eq!(replayed.0, recorded.0);
    assert_eq!(replayed.1, recorded.1);
    assert!(recorded.1.contains("LOC:") && recorded.1.contains("ctxt "), "{}", recorded.1);
    place.run(&["down"]).ok();
    // Each frame has crossed the same link at the same time, until one of the machines ended.
    let second = packets(&captured);
    assert!(first.len().min(second.len()) > 400, "{} {}", first.len(), second.len());
    assert_eq!(first.iter().zip(&second).position(|(one, other)| one != other), None);
    place.is_clean();
}

#[test]
fn lspci_describes_a_served_device() {
    let Some(place) = Place::new(Image::Newest) else { return };
    let images = place.run(&["image", "ls", "--json"]).json();
    let image = images.as_array().unwrap().iter().find(|image| image["name"] == "tofu-tests");
    let client = Client { place: &place, image: image.unwrap() };

    replace_qemu(&place);
    let mut serve = place.start(&["serve", "--shape", "2x1x1x1x1x1"]);
    let text = printed(&mut serve);
    // The line that it prints for QEMU, with the changes that it recommends for VFIO in the guest.
    let begin = text.find("qemu-system-x86_64").unwrap();
    let line = text[begin..].split("\n  and for VFIO").next().unwrap();
    let line = line.replace("\\\n", " ");
    let machine = "-machine q35,kernel-irqchip=split,memory-backend=ram";
    let iommu = "-device intel-iommu,caching-mode=on";
    assert!(text.contains(machine) && text.contains(iommu), "{text}");
    let line = line.replace("-machine q35,memory-backend=ram", &format!("{machine} {iommu}"));
    assert!(line.contains(machine), "{line}");

    let mut guest = client.boot(&line, TCG_ARGUMENTS);
    let found = guest.run("tofu-guest ls --json");
    assert!(found.contains("\"coords\":[0,0,0,0,0,0]"), "{found}");
    let said = guest.run("tofu-guest selftest");
    assert!(said.contains("18 checks passed"), "{said}");
    // Killed while a program uses the device.
    guest.say("puts shape=1x1x1x1x1x1 nodes=1; tofu-guest selftest");
    kill(guest.id());
    drop(guest);

    // Another one, with the device behind its own port, as in a real machine.
    let port = "-device pcie-root-port,id=rp0,chassis=1,slot=1";
    let behind = line.replace(iommu, &format!("{iommu} {port}"));
    let behind = behind.replace("{\"driver\":", "{\"bus\":\"rp0\",\"driver\":");
    let mut guest = client.boot(&behind, TCG_ARGUMENTS);
    // Without its list of names, which changes.
    let output = guest.run("lspci -vvv -i /dev/null -d 10cf:1ccd");
    let golden = fs::read_to_string(workspace().join("tests/golden/lspci-qemu.txt")).unwrap();
    assert_eq!(normalised(&output), golden.trim_end());
    let said = guest.run("tofu-guest selftest");
    assert!(said.contains("18 checks passed"), "{said}");
    kill(guest.id());
    drop(guest);

    // And one as the first, for the other node.
    let other = line.replace("node-0-0-0-0-0-0", "node-1-0-0-0-0-0");
    let mut guest = client.boot(&other, TCG_ARGUMENTS);
    let found = guest.run("tofu-guest ls --json");
    assert!(found.contains("\"coords\":[1,0,0,0,0,0]"), "{found}");
    drop(guest);

    wait_for("the machine to be alone", MOMENT, || place.processes().len() <= 2);
    tofu_linux_tests::interrupt(serve.id());
    assert_eq!(serve.end(MOMENT).code, Some(130));
    place.is_clean();
}

/// Two guests that this test has started, with the words that `tofu serve` prints.
#[test]
fn guests_of_others_keep_modelled_time() {
    let Some(place) = Place::new(Image::Newest) else { return };
    let images = place.run(&["image", "ls", "--json"]).json();
    let image = images.as_array().unwrap().iter().find(|image| image["name"] == "tofu-tests");
    let client = Client { place: &place, image: image.unwrap() };
    replace_qemu(&place);
    let mut serve = place.start(&["serve", "--shape", "2x1x1x1x1x1", "--time", "modelled"]);
    let text = printed(&mut serve);
    let (_, line) = text.split_once("when all are there:\n").unwrap();
    let (line, words) = line.split_once("On the kernel's command line of each guest:\n").unwrap();
    let line = line.replace("\\\n", " ").replace('\n', " ");
    let line = line.trim().to_owned() + " -device intel-iommu,caching-mode=on";
    let words = words.lines().next().unwrap();
    let nodes = ["node-0-0-0-0-0-0", "node-1-0-0-0-0-0"];
    // Time begins when both are there.
    let [mut first, mut second] = thread::scope(|s| {
        let boots = nodes.map(|node| {
            let line = line.replace(nodes[0], node);
            let client = &client;
            s.spawn(move || client.boot(&line, words))
        });
        boots.map(|boot| boot.join().unwrap())
    });
    let talk = "pingpong shape=2x1x1x1x1x1 nodes=2 wait=poll count=100 max=8 json=1";
    second.say(talk);
    let said = first.run(talk);
    let line = said.lines().find(|line| line.starts_with("{\"")).expect(&said);
    let table: Value = serde_json::from_str(line).unwrap();
    // As those of nodes_in_modelled_time_measure_the_machine.
    let p50 = table["rows"][0]["p50_us"].as_f64().unwrap();
    assert!((0.8..1.6).contains(&p50), "{said}");
    for guest in [&first, &second] {
        kill(guest.id());
    }
    drop((first, second));
    wait_for("the machine to be alone", MOMENT, || place.processes().len() <= 2);
    tofu_linux_tests::interrupt(serve.id());
    assert_eq!(serve.end(MOMENT).code, Some(130));
    place.is_clean();
}

#[test]
fn kernel_messages_are_normalised() {
    let raw = "lspci: Unable\n01:00.0 Class 0280: X (rev 01)\n\tIOMMU group: 4\n\tRegion 0: Memory \
               at e0000000 (64-bit)\n\tPhysical Slot: 1-2\n\n";
    let expected = "SLOT Class 0280: X (rev 01)\n\tIOMMU group: N\n\tRegion 0: Memory at ADDRESS \
                    (64-bit)\n\tPhysical Slot: N";
    assert_eq!(normalised(raw), expected);
}

#[test]
fn case_results_are_parsed() {
    let output = "TAP version 13\n1..3\n#  RUN  a.b ...\n#   OK  a.b\nok 1 a.b\n# not ok\n\
                  not ok 2 a.c\nok 3 a.d # SKIP no\nok 4 # SKIP x\n";
    let found = cases(output);
    let found: Vec<_> = found.iter().map(|(name, result)| (name.as_str(), *result)).collect();
    assert_eq!(found[..3], [("a.b", "passed"), ("a.c", "failed"), ("a.d", "skipped")]);
}
