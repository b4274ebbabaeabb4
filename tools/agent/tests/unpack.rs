//! Archives, honest ones and those of a malicious sender.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tar::EntryType;
use tofu_agent::files::{self, Source};
use tofu_agent::unpack::{Folder, Place, unpack, unpack_alone};

/// The name that these tests request.
const NAME: &str = "asked";

fn pack(path: &Path) -> Vec<u8> {
    let mut archive = Vec::new();
    assert_eq!(files::pack(path, &mut archive).unwrap(), 0);
    archive
}

/// Entries of an archive that no honest sender makes: kind, path, and contents or target.
fn archive(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (kind, path, contents) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o6777);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        let is_link = kind.is_symlink() || kind.is_hard_link();
        let data = if is_link { "" } else { contents };
        if is_link {
            header.as_old_mut().linkname[..contents.len()].copy_from_slice(contents.as_bytes());
        }
        header.set_size(data.len() as u64);
        header.set_cksum();
        archive.append(&header, data.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

/// A job's folder has entries of every kind.
#[test]
fn made_folders_arrive_as_they_are() {
    let home = Home::new();
    let contents = [
        ("program".into(), Source::File(0o755, b"run".to_vec())),
        ("link".into(), Source::Link("program".into())),
        ("empty".into(), Source::Folder),
        ("keys".into(), Source::Path(home.at("dir/.ssh/authorized_keys"))),
    ];
    let mut archive = Vec::new();
    assert_eq!(files::pack_folder("job", &contents, &mut archive).unwrap(), 0);
    unpack_alone(&archive[..], &home.at("out/job")).unwrap();
    assert_eq!(fs::read(home.at("out/job/link")).unwrap(), b"run");
    let mode = fs::metadata(home.at("out/job/program")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    assert!(home.at("out/job/empty").is_dir());
    assert_eq!(fs::read(home.at("out/job/keys")).unwrap(), b"mine");
}

const FILE: EntryType = EntryType::Regular;
const FOLDER: EntryType = EntryType::Directory;
const LINK: EntryType = EntryType::Symlink;

/// A folder `home` of a user, with a file that must not change, and a folder `dir` in it, which
/// copies go to.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let this = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(this.at("dir/.ssh")).unwrap();
        fs::write(this.at("dir/.ssh/authorized_keys"), "mine").unwrap();
        fs::create_dir(this.at("out")).unwrap();
        this
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Unpacks an archive into `dir`.
    fn unpack(&self, archive: &[u8]) -> io::Result<()> {
        unpack(archive, &self.at("dir"), OsStr::new(NAME))
    }

    /// New entries of `dir`.
    fn check(&self, context: &str) -> Vec<String> {
        let keys = fs::read_to_string(self.at("dir/.ssh/authorized_keys")).unwrap();
        assert_eq!(keys, "mine", "{context}");
        assert_eq!(fs::read_dir(self.at("dir/.ssh")).unwrap().count(), 1, "{context}");
        assert_eq!(fs::read_dir(self.at("out")).unwrap().count(), 0, "{context}");
        let names = fs::read_dir(self.at("dir")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != ".ssh").collect()
    }
}

#[test]
fn copy_has_the_requested_name() {
    let home = Home::new();
    let file = archive(&[(FOLDER, ".ssh", ""), (FILE, ".ssh/authorized_keys", "evil")]);
    home.unpack(&file).unwrap();
    assert_eq!(home.check("a folder"), [NAME]);
    let home = Home::new();
    home.unpack(&archive(&[(FILE, ".ssh", "evil")])).unwrap();
    assert_eq!(home.check("a file"), [NAME]);
    assert_eq!(fs::read_to_string(home.at("dir/asked")).unwrap(), "evil");
    let mode = fs::metadata(home.at("dir/asked")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o777);
    for name in ["..", ".", "", "/", "a/.."] {
        let folder = Folder::open(&home.at("dir")).unwrap();
        for place in [Place::Merged(OsStr::new(name)), Place::Alone(OsStr::new(name))] {
            folder.unpack(&file[..], place).unwrap_err();
        }
    }
    home.check("names that are none");
}

#[test]
fn only_one_file_or_folder_is_taken() {
    let cases: &[&[(EntryType, &str, &str)]] = &[
        &[],
        &[(LINK, "x", "../out")],
        &[(EntryType::Link, "x", "/etc/passwd")],
        &[(EntryType::Char, "x", "")],
        &[(EntryType::Block, "x", "")],
        &[(EntryType::Fifo, "x", "")],
        &[(EntryType::GNUSparse, "x", "")],
        &[(EntryType::XHeader, "x", "14 path=../bad\n")],
        &[(EntryType::XGlobalHeader, "x", "14 path=../bad\n")],
        &[(EntryType::Continuous, "x", "")],
        &[(FILE, "../out/bad", "evil")],
        &[(FILE, "/tmp/bad", "evil")],
        &[(FILE, "./bad", "evil")],
        &[(FOLDER, "..", "")],
        &[(FOLDER, "x", ""), (FILE, "x/../../out/bad", "evil")],
        &[(FOLDER, "x", ""), (FILE, "y", "evil")],
        &[(FOLDER, "x", ""), (EntryType::Fifo, "x/f", "")],
        &[(FOLDER, "x", ""), (EntryType::Link, "x/f", ".ssh/authorized_keys")],
        &[(FOLDER, "x", ""), (LINK, "x/l", "../../out"), (FILE, "x/l/bad", "evil")],
        &[(FOLDER, "x", ""), (LINK, "x/l", "../../out"), (FOLDER, "x/l", "")],
        &[(FOLDER, "x", ""), (LINK, "x/l", "../../out/bad"), (FILE, "x/l", "evil")],
        &[(FOLDER, "x", ""), (LINK, "x/l", "../../out"), (FOLDER, "x/l/bad", "")],
        &[(FOLDER, "x", ""), (LINK, "x/l", "../../out"), (LINK, "x/l/bad", "y")],
        &[(FILE, "x", "a file"), (FILE, "x/y", "evil")],
        &[(FILE, "x", "a file"), (FILE, "x", "evil")],
        &[(EntryType::GNULongName, "x", "../out/bad"), (FILE, "x", "evil")],
    ];
    for case in cases {
        let home = Home::new();
        let context = format!("{case:?}");
        home.unpack(&archive(case)).expect_err(&context);
        assert!(home.check(&context).is_empty(), "{context}");
    }
}

/// Links that a copy brings, or that lie in its way, lead no later copy out of the folder.
#[test]
fn links_that_are_there_are_not_followed() {
    let home = Home::new();
    let first = [(FOLDER, "x", ""), (LINK, "x/l", "../../out"), (LINK, "x/f", "../../out/bad")];
    home.unpack(&archive(&first)).unwrap();
    assert_eq!(fs::read_link(home.at("dir/asked/l")).unwrap(), Path::new("../../out"));
    let second = [(FOLDER, "x", ""), (FOLDER, "x/l", ""), (FILE, "x/l/bad", "evil")];
    home.unpack(&archive(&second)).unwrap_err();
    home.check("through a link");
    // A file takes the place of a link.
    home.unpack(&archive(&[(FOLDER, "x", ""), (FILE, "x/f", "fine")])).unwrap();
    home.check("onto a link");
    assert_eq!(fs::read_to_string(home.at("dir/asked/f")).unwrap(), "fine");

    fs::remove_dir_all(home.at("dir/asked")).unwrap();
    symlink("../out", home.at("dir/asked")).unwrap();
    home.unpack(&archive(&[(FOLDER, "x", ""), (FILE, "x/bad", "evil")])).unwrap_err();
    home.check("through a link at the top");
    home.unpack(&archive(&[(FILE, "x", "fine")])).unwrap();
    home.check("onto a link at the top");

    // Contents of a folder: the folder may be reached by a link, those in it are not followed.
    symlink("dir", home.at("by link")).unwrap();
    symlink("../out", home.at("dir/l")).unwrap();
    let folder = Folder::open(&home.at("by link")).unwrap();
    folder.unpack(&archive(&second)[..], Place::Contents).unwrap_err();
    home.check("contents through a link");
    fs::remove_file(home.at("dir/l")).unwrap();
    let files = folder.unpack(&archive(&second)[..], Place::Contents).unwrap();
    assert_eq!(files, [Path::new("l/bad")]);
    assert_eq!(fs::read_to_string(home.at("dir/l/bad")).unwrap(), "evil");
    folder.unpack(&archive(&[(FILE, "x", "evil")])[..], Place::Contents).unwrap_err();
}

/// Calls something before the first byte is read.
struct Before<'a, F>(&'a [u8], Option<F>);

impl<F: FnOnce()> Read for Before<'_, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(before) = self.1.take() {
            before();
        }
        self.0.read(buffer)
    }
}

#[test]
fn replaced_folder_leads_nowhere() {
    let home = Home::new();
    let replace = || {
        fs::rename(home.at("dir"), home.at("moved")).unwrap();
        symlink("out", home.at("dir")).unwrap();
    };
    let archive = archive(&[(FOLDER, "x", ""), (FILE, "x/file", "text")]);
    let archive = Before(&archive, Some(replace));
    unpack(archive, &home.at("dir"), OsStr::new(NAME)).unwrap();
    assert_eq!(fs::read_dir(home.at("out")).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(home.at("moved/asked/file")).unwrap(), "text");
}

#[test]
fn lone_file_follows_no_folder_or_link() {
    let home = Home::new();
    let folder = archive(&[(FOLDER, "x", ""), (FILE, "x/bad", "evil")]);
    let to = home.at("dir/job");
    fs::create_dir(&to).unwrap();
    fs::write(to.join("planted"), "").unwrap();
    unpack_alone(&folder[..], &to).unwrap_err();
    fs::remove_dir_all(&to).unwrap();
    symlink("../out", &to).unwrap();
    unpack_alone(&folder[..], &to).unwrap_err();
    unpack_alone(&archive(&[(FILE, "x", "text")])[..], &to).unwrap();
    assert_eq!(fs::read_to_string(&to).unwrap(), "text");
    fs::remove_file(&to).unwrap();
    unpack_alone(&folder[..], &to).unwrap();
    assert_eq!(home.check("alone"), ["job"]);
}

/// An endless archive: a start, and then the same for ever.
struct Endless {
    start: Vec<u8>,
    again: Vec<u8>,
    at: usize,
    read: usize,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for byte in &mut *buffer {
            *byte = match self.start.get(self.at) {
                Some(byte) => *byte,
                None => self.again[(self.at - self.start.len()) % self.again.len()],
            };
            self.at += 1;
        }
        self.read += buffer.len();
        assert!(self.read < 16 << 20, "it is read without end");
        Ok(buffer.len())
    }
}

#[test]
fn endless_archives_are_refused() {
    let header = |kind, path: &str, size| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_path(path).unwrap();
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let long = 7 << 30;
    let deep = vec!["x"; 200].join("/");
    let deep = archive(&[(EntryType::GNULongName, "x", &deep), (FOLDER, "x", "")]);
    let cases = [
        (header(EntryType::GNULongName, "x", long), vec![b'a']),
        (header(EntryType::GNULongLink, "x", long), vec![b'a']),
        (header(EntryType::XHeader, "x", long), vec![b'a']),
        (archive(&[(FOLDER, "x", "")]), vec![0]),
        (Vec::new(), header(EntryType::GNULongName, "x", 0)),
        (deep, vec![0]),
    ];
    for (start, again) in cases {
        let home = Home::new();
        let endless = Endless { start, again, at: 0, read: 0 };
        unpack(endless, &home.at("dir"), OsStr::new(NAME)).unwrap_err();
        assert!(home.check("endless").is_empty());
    }
}

/// A folder with all kinds of entries.
fn sample() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("dir");
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/file"), "text").unwrap();
    fs::set_permissions(dir.join("sub/file"), Permissions::from_mode(0o4751)).unwrap();
    symlink("sub/file", dir.join("link")).unwrap();
    let long = "long".repeat(50);
    fs::write(dir.join(&long), "long").unwrap();
    symlink(&long, dir.join("to long")).unwrap();
    fs::set_permissions(dir.join("sub"), Permissions::from_mode(0o555)).unwrap();
    folder
}

#[test]
fn folders_are_copied_with_modes_and_links() {
    let folder = sample();
    let archive = pack(&folder.path().join("dir"));
    // To a new name, and into an existing folder.
    let there = folder.path().join("there");
    fs::create_dir(&there).unwrap();
    for (to, at) in [("new", "new"), ("there", "there/dir"), ("there/", "there/dir")] {
        unpack(&archive[..], &folder.path().join(to), OsStr::new("dir")).unwrap();
        let at = folder.path().join(at);
        assert_eq!(fs::read(at.join("sub/file")).unwrap(), b"text");
        let mode = |path: &str| fs::metadata(at.join(path)).unwrap().permissions().mode() & 0o7777;
        // Without the set-user bit.
        assert_eq!((mode("sub/file"), mode("sub")), (0o751, 0o555));
        assert_eq!(fs::read_link(at.join("link")).unwrap().to_str(), Some("sub/file"));
        assert_eq!(fs::read_to_string(at.join("to long")).unwrap(), "long");
        let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        let second = std::time::Duration::from_secs(1);
        let packed = time(&folder.path().join("dir/sub/file"));
        assert!(packed.duration_since(time(&at.join("sub/file"))).unwrap() < second);
    }
    let to = folder.path().join("no/where");
    let error = unpack(&archive[..], &to, OsStr::new("dir")).unwrap_err();
    assert!(error.to_string().starts_with("there is no folder "), "{error}");
    let error = files::pack(Path::new("/"), Vec::new()).unwrap_err();
    assert!(error.to_string().contains("does not end in a name"), "{error}");
}

/// An archive of changes lacks the folders that have not changed.
#[test]
fn changes_arrive_without_their_folders() {
    let home = Home::new();
    let changes = archive(&[(FOLDER, "work", ""), (FILE, "work/a/b/file", "text")]);
    let folder = Folder::open(&home.at("dir")).unwrap();
    for _ in 0..2 {
        folder.unpack(&changes[..], Place::Contents).unwrap();
        assert_eq!(fs::read_to_string(home.at("dir/a/b/file")).unwrap(), "text");
    }
}

proptest! {
    /// Archives of any bytes unpack or are refused.
    #[test]
    fn damaged_archives_harm_nobody(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = Vec::new();
        files::pack_bytes("name", 0o644, b"some contents", &mut archive).unwrap();
        archive[at.index(1024)] = byte;
        let _ = unpack(&archive[..], &folder.path().join("to"), OsStr::new("name"));
        for entry in fs::read_dir(folder.path()).unwrap() {
            prop_assert_eq!(entry.unwrap().file_name(), "to");
        }
    }
}

/// A sender that stops early leaves nothing, also between two entries.
#[test]
fn truncated_archive_changes_nothing() {
    let home = Home::new();
    let whole = archive(&[(FOLDER, "x", ""), (FILE, "x/file", "text"), (FILE, "x/more", "text")]);
    for length in [0, 1, 511, 512, 513, 1024, 1536, 2560, 3000] {
        home.unpack(&whole[..length]).unwrap_err();
        assert!(home.check("truncated").is_empty(), "{length}");
    }
    home.unpack(&whole).unwrap();
}
