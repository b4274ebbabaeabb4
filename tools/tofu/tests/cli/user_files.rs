//! Files that the user names: a device, a pipe, a folder or too large a file is refused in one line.

use std::fs::File;
use std::process::Stdio;

use rustix::fs::{CWD, Mode, mkfifoat};

use crate::tofu::Place;

/// Commands that read a file, which stands for `FILE`.
const READERS: [&str; 14] = [
    "up -c FILE",
    "serve -c FILE",
    "topo -c FILE",
    "up --guest FILE",
    "up --linux --guest FILE",
    "up --linux --kernel FILE",
    "up --linux --initrd FILE",
    "up --hosts FILE",
    "up --shape 2x1x1x1x1x1 --part 0/2 --join FOLDER",
    "sim FILE",
    "inspect 0 --diff FILE",
    "view --replay FILE",
    "run -n 1 FILE",
    "run --shape 2 --copy FILE true",
];

#[test]
fn only_regular_files_of_limited_size_are_read() {
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
fn a_machine_file_comes_from_standard_input() {
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
