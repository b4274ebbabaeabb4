//! Files that the user names: a device, a pipe, a folder or too large a file is refused in one
//! line.

use std::fs::File;
use std::process::Stdio;

use rustix::fs::{CWD, Mode, mkfifoat};

use crate::tofu::Place;

/// Commands that read a file, which stands for `FILE`.
const READERS: [&str; 15] = [
    "up -c FILE",
    "up --check -c FILE",
    "serve -c FILE",
    "topo -c FILE",
    "up --guest FILE",
    "up --linux --guest FILE",
    "up --linux --kernel FILE",
    "up --linux --initrd FILE",
    "up --hosts FILE",
    "up --shape 2x1x1x1x1x1 --shard 0/2 --join FOLDER",
    "sim FILE",
    "inspect 0 --diff FILE",
    "view --replay FILE",
    "run -n 1 FILE",
    "run --shape 2 --copy FILE true",
];

#[test]
fn only_bounded_regular_files_are_read() {
    let place = Place::new();
    let at = |name: &str| place.path().join(name).into_os_string().into_string().unwrap();
    mkfifoat(CWD, at("pipe"), Mode::RWXU).unwrap();
    File::create(at("sparse.elf")).unwrap().set_len(1 << 40).unwrap();
    let folder = at("hosts");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink("/dev/zero", format!("{folder}/parts.toml")).unwrap();
    let files = ["/dev/zero", &at("pipe"), &at("sparse.elf")];
    for reader in READERS {
        for file in files {
            let words: Vec<_> = reader
                .split(' ')
                .map(|word| match word {
                    "FILE" => file,
                    "FOLDER" => &folder,
                    word => word,
                })
                .collect();
            let error = place.run(&words).error();
            let allowed = ["give a regular file of at most ", "neither a file nor a folder", "MiB"];
            assert!(allowed.iter().any(|words| error.contains(words)), "{words:?}: {error}");
            let named = if reader.ends_with("FOLDER") { &folder } else { file };
            assert!(error.contains(named), "{words:?}: {error}");
        }
    }
    place.is_clean();
}

#[test]
fn machine_file_comes_from_standard_input() {
    let place = Place::new();
    let file = b"shape = \"3x1x1x1x1x1\"\n";
    let said = place.run_with(&["topo", "-c", "-"], file).ok();
    assert!(said.starts_with("machine 3x1x1x1x1x1: 3 nodes"), "{said}");
    let error = place.run_with(&["topo", "-c", "-"], b"\nshap = 1\n").error();
    assert!(error.starts_with("tofu: -:2: shap = 1: did you mean shape"), "{error}");
    let mut command = place.command(&["up", "-c", "-"]);
    command.stdin(Stdio::from(File::open("/dev/zero").unwrap()));
    let output = command.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("at most 16 MiB"), "{error}");
}

/// Writes a machine file and returns its path.
fn machine_file(place: &Place, text: &str) -> String {
    let path = place.path().join("machine.toml");
    std::fs::write(&path, text).unwrap();
    path.into_os_string().into_string().unwrap()
}

#[test]
fn commands_refuse_the_same_machine_files() {
    let place = Place::new();
    let node = "[[node]]\nat = [1, 0, 0, 0, 0, 0]\n";
    let twice = format!("shape = \"2x1x1x1x1x1\"\n{node}{node}");
    let link = "[[link]]\nat = [0, 0, 0, 0, 0, 0]\nport = \"X+\"\ndown = true\n";
    let far = "[[link]]\nat = [1, 0, 0, 0, 0, 0]\nport = \"X-\"\ndown = false\n";
    let ends = format!("shape = \"3x1x1x1x1x1\"\n{link}{far}");
    let cases = [
        (ends, "machine.toml:8: port = \"X-\" is not allowed"),
        (node.to_owned(), "machine.toml:2: at = [1, 0, 0, 0, 0, 0] is not allowed"),
        (twice, "machine.toml:5: at = [1, 0, 0, 0, 0, 0] is not allowed"),
        ("[[link]]\nat = [0, 0, 0, 0, 0, 0]\nport = \"X+\"\ndown = true\n".into(), "\"X+\" is not"),
        ("generation = \"tnw\"\nshape = \"unit\"\n".into(), "TNW has the axes X, Y and Z only"),
        ("generation = \"tnw\"\nio_nodes = true\n".into(), "TNW cannot have I/O nodes"),
    ];
    for (text, expected) in cases {
        let file = machine_file(&place, &text);
        for command in [&["up", "--check"][..], &["up"], &["serve"], &["topo"], &["map"]] {
            let error = place.run(&[command, &["-c", &file]].concat()).error();
            assert!(error.contains(expected), "{command:?}: {error}");
        }
    }
    place.is_clean();
}

#[test]
fn served_devices_follow_the_machine_file() {
    let place = Place::new();
    let file = machine_file(
        &place,
        "shape = \"2x1x1x1x1x1\"\nip_number = 3\nmtu = 9000\n\
         faults = \"loss=1%\"\n\
         [[link]]\nat = [0, 0, 0, 0, 0, 0]\nport = \"X+\"\ndown = false\nfaults = \"loss=7%\"\n",
    );
    let (mut machine, said) = place.start(&["serve", "--json", "-c", &file]);
    assert_eq!(said["shape"], "2x1x1x1x1x1");
    let words = said["append"].as_str().unwrap();
    assert!(words.contains("tofu.machine=3") && words.contains("tofu.mtu=9000"), "{words}");
    let faults = place.run(&["fault", "show"]).ok();
    assert!(faults.contains("loss=1%"), "{faults}");
    place.run(&["down"]).ok();
    machine.ok();
    let file = machine_file(&place, "shape = \"2x1x1x1x1x1\"\nguest = \"hello\"\n");
    let error = place.run(&["serve", "-c", &file]).error();
    assert!(error.contains(":2: guest has no effect here, where no guests are started"), "{error}");
}

#[test]
fn described_machine_is_the_started_one() {
    let place = Place::new();
    let file = machine_file(&place, "linux = true\narch = \"x86-64\"\n");
    for command in [&["topo", "-c", &file][..], &["up", "--check", "-c", &file]] {
        let said = place.run(command).ok();
        assert!(said.starts_with("machine 2x1x1x1x1x1: 2 nodes"), "{command:?}: {said}");
    }
    let file = machine_file(&place, "shape = \"2x1x1x1x1x1\"\nmemory = \"2MiB\"\n");
    for command in [&["topo", "-c", &file][..], &["map", "-c", &file], &["up", "-c", &file]] {
        let error = place.run(command).error();
        assert!(error.contains(":2: 2MiB of memory are too little"), "{command:?}: {error}");
    }
}

#[test]
fn check_starts_and_writes_nothing() {
    let place = Place::new();
    let file = machine_file(&place, "shape = \"2x1x1x1x1x1\"\n");
    let capture = place.path().join("capture");
    let capture_of = format!("0={}", capture.display());
    let said = place.run(&["up", "--check", "-c", &file, "--capture", &capture_of]).ok();
    assert_eq!(said, "machine 2x1x1x1x1x1: 2 nodes, 2 links; 2 guests, 32 MiB\n");
    assert!(!capture.exists());
    let said = place.run(&["up", "--check", "--json", "-c", &file]).ok();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&said["ok"], &said["nodes"], &said["guests"]),
        (&true.into(), &2.into(), &2.into())
    );
    let error = place.run(&["up", "--check", "--memory", "2MiB"]).error();
    assert!(error.contains("too little for the guest"), "{error}");
    // Four racks are refused for the memory that they take, not for what guests could use: 96 TiB.
    let racks = ["up", "--check", "--shape", "4x4x8x2x3x2", "--memory", "64GiB"];
    let checked = place.run(&racks);
    assert!(checked.err.contains("would take 100663296 MiB"), "{}", checked.err);
    assert!(checked.ok().contains("1536 guests, 100663296 MiB"));
    let error = place.run(&[&racks[..], &["--linux"]].concat()).error();
    assert!(error.contains("too little memory: 1536 VMs take 100663296 MiB"), "{error}");
    let error = place.run(&["up", "--check", "--cpus", "2"]).error();
    assert!(error.contains("--cpus is for machines with Linux nodes"), "{error}");
    assert_eq!(place.ps(), serde_json::json!([]));
    place.is_clean();
}
