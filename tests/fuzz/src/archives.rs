//! Archives that a node sends: two of them, one after the other, into the same folder. Nothing
//! outside of it may change, and in it only what has the receiver's name.

use std::fs;
use std::path::Path;

use tofu_agent::unpack::{unpack, unpack_alone};

/// The receiver's name for an archive's file or folder.
const NAME: &str = "name";
const CANARY: &[u8] = b"untouched";

/// Runs one input. Its first byte says where the second archive begins, in blocks.
pub fn run(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let (one, other) = data.split_at((usize::from(*first) * 512).min(data.len()));
    let place = tempfile::tempdir().expect("a temporary folder");
    let (inside, outside) = (place.path().join("in"), place.path().join("out"));
    for folder in [&inside, &outside] {
        fs::create_dir(folder).expect("a new folder");
    }
    fs::write(outside.join("file"), CANARY).expect("a new file");
    // Most are no archives.
    let _ = unpack(one, &inside, NAME.as_ref());
    let _ = unpack(other, &inside, NAME.as_ref());
    let _ = unpack_alone(other, &inside.join(NAME));
    assert!(names(&inside).iter().all(|name| name == NAME), "{:?}", names(&inside));
    assert_eq!(names(&outside), ["file"]);
    assert_eq!(names(place.path()), ["in", "out"]);
    assert_eq!(fs::read(outside.join("file")).expect("it is there"), CANARY);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("it is there").flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().display().to_string()).collect();
    names.sort_unstable();
    names
}
