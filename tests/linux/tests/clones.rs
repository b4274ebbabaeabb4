//! Nodes that are clones of one that has booted, and what happens if there can be none.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tofu_linux_tests::{Image, PATIENCE, Place, Running, Said, kill_if_there, wait_for};

/// The beginning of the warning about a node that is no clone.
const NO_CLONE: &str = "no clone";

/// A cache of a test's own, with the user's images and with no templates.
fn cache(place: &Place) -> PathBuf {
    let own = place.path().join("cache");
    fs::create_dir(&own).unwrap();
    let users = tofu_image::Cache::from_env().unwrap().folder().to_owned();
    for name in ["images", "parts", "host-qemu.toml", "driver-offered"] {
        symlink(users.join(name), own.join(name)).unwrap();
    }
    own
}

fn start(place: &Place, cache: &Path, args: &[&str]) -> Running {
    let up = ["up", "--linux", "--detach", "--driver", "vfio", "--name", "clones"];
    let mut command: Command = place.command(&[&up, args].concat());
    command.env("TOFU_CACHE", cache);
    Running::start(command, b"")
}

#[track_caller]
fn up(place: &Place, cache: &Path, args: &[&str]) -> Said {
    let said = start(place, cache, args).end(PATIENCE);
    assert_eq!(said.code, Some(0), "{said:?}");
    said
}

#[track_caller]
fn down(place: &Place) {
    place.run(&["down", "clones"]).ok();
}

/// The machine's log.
fn log(place: &Place) -> String {
    fs::read_to_string(place.path().join("tofu/clones/log")).unwrap()
}

/// The only template of a cache, whose folder is there when it is complete.
fn template(cache: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(cache.join("templates")).into_iter().flatten().flatten();
    let mut folders = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    let first = folders.next();
    assert_eq!(folders.next(), None);
    first
}

/// The content of a template as one value.
fn sum(template: &Path) -> Vec<u64> {
    let sum = |name: &str| {
        let bytes = fs::read(template.join(name)).unwrap();
        bytes.chunks(8).fold(0_u64, |sum, bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            sum.rotate_left(5).wrapping_add(u64::from_le_bytes(word))
        })
    };
    ["memory", "state", "clock"].map(sum).to_vec()
}

/// A node's view of itself, which does not depend on how it was started.
fn looks(place: &Place, node: &str) -> String {
    let line = "sed 's/tsc_early_khz=[0-9]* //' /proc/cmdline; cat /etc/hosts; hostname; \
                ls /sys/bus/pci/devices /run/tofu/*.sock; id; ip addr show tofu0";
    place.shell(node, line)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

#[test]
fn clones_differ_in_identity_alone() {
    let Some(place) = Place::new(Image::Default) else { return };
    let cache = cache(&place);
    up(&place, &cache, &["--cold"]);
    assert_eq!(template(&cache), None);
    let cold = ["0", "1"].map(|node| looks(&place, node));
    down(&place);
    up(&place, &cache, &[]);
    let made = template(&cache).expect("the first use makes a template");
    let before = sum(&made);
    assert_eq!(["0", "1"].map(|node| looks(&place, node)), cold);
    // Jobs need not copy them.
    assert!(place.shell(0, "ls /run/tofu-libraries/*").contains("libtofucom.so"));
    for name in ["boot_id", "uuid"] {
        let lines = place.exec_all(&["cat", &format!("/proc/sys/kernel/random/{name}")]);
        let ids: Vec<_> = lines.iter().filter_map(|line| line.split_whitespace().last()).collect();
        assert!(ids.len() == 2 && ids[0] != ids[1], "{lines:?}");
    }
    let (first, time) = (now(), place.shell(0, "date +%s"));
    let time = Duration::from_secs(time.trim().parse().unwrap());
    let second = Duration::from_secs(1);
    assert!(time + second >= first && time <= now() + second, "{time:?} at {first:?}");
    assert!(log(&place).is_empty(), "{}", log(&place));
    place.all_pairs(2, 1);
    // A restarted node is a clone again, with nothing of what it was.
    place.shell(1, "touch /tmp/before");
    place.run(&["restart", "1"]).ok();
    assert_eq!(place.shell(1, "ls /tmp; hostname"), "t-1-0-0-0-0-0\n");
    place.all_pairs(2, 1);
    // Clones do not share its memory, to which devices write.
    assert_eq!(sum(&made), before);
    down(&place);
    place.is_clean();
}

/// Their disk is a file of QEMU's, which it gives up and takes again when a clone is loaded.
#[test]
fn clones_have_the_disk_of_an_image_with_packages() {
    let Some(place) = Place::new(Image::Newest) else { return };
    let cache = cache(&place);
    up(&place, &cache, &["--image", Image::Newest.name()]);
    assert!(template(&cache).is_some());
    assert!(log(&place).is_empty(), "{}", log(&place));
    for node in [0, 1] {
        assert!(place.shell(node, "lspci -n").contains("10cf:1ccd"));
        assert_eq!(place.shell(node, "mount | grep -c '^/dev/vd'"), "1\n");
    }
    place.all_pairs(2, 1);
    down(&place);
    place.is_clean();
}

#[test]
fn clones_in_modelled_time_have_names_and_one_clock() {
    let Some(place) = Place::new(Image::Default) else { return };
    let cache = cache(&place);
    let timed = ["--time", "modelled", "--ns-per-instruction", "1"];
    up(&place, &cache, &timed);
    let made = template(&cache).expect("the first use makes a template");
    let before = sum(&made);
    assert_eq!(place.run(&["time", "--json"]).json()["time"]["late"], 0);
    let hosts = [0, 1].map(|node| place.shell(node, "hostname; cut -c 1-4 /proc/cmdline"));
    assert_eq!(hosts, ["t-0-0-0-0-0-0\ntsc_\n", "t-1-0-0-0-0-0\ntsc_\n"]);
    // The programs start at different milliseconds, so that the next second may lie between them.
    let dates = || {
        let lines = place.exec_all(&["date", "+%F %s"]);
        let dates = lines.iter().filter_map(|line| line.split_once(") "));
        dates.map(|(_, date)| date.to_owned()).collect::<Vec<_>>()
    };
    let tries = [dates(), dates(), dates()];
    let same = tries.iter().find(|dates| dates.len() == 2 && dates[0] == dates[1]);
    let same = same.unwrap_or_else(|| panic!("{tries:?}"));
    // Where the real-time clock begins.
    assert!(same[0].starts_with("2026-01-01 "), "{tries:?}");
    place.all_pairs(2, 1);
    place.run(&["restart", "1"]).ok();
    assert_eq!(place.shell(1, "hostname"), "t-1-0-0-0-0-0\n");
    place.all_pairs(2, 1);
    down(&place);
    // Where input is recorded from the first instruction on, nodes boot.
    let record = place.file("input.jsonl");
    up(&place, &cache, &[&timed[..], &["--nodes", "1", "--record", &record]].concat());
    assert_eq!(template(&cache), Some(made.clone()));
    assert_eq!(sum(&made), before);
    down(&place);
    place.is_clean();
}

#[test]
fn unfit_templates_make_nodes_boot() {
    let Some(place) = Place::new(Image::Default) else { return };
    let cache = cache(&place);
    let one = ["--nodes", "1"];
    up(&place, &cache, &one);
    down(&place);
    let made = template(&cache).unwrap();
    let change = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let path = made.join(name);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, bytes).unwrap();
    };
    let modified = || fs::metadata(made.join("state")).unwrap().modified().unwrap();
    let works = |warns: bool| {
        let said = up(&place, &cache, &one);
        assert_eq!(place.shell(0, "hostname"), "t-0-0-0-0-0-0\n");
        place.exec("0", &["hello"]).ok();
        let text = said.err + &log(&place);
        assert_eq!(text.contains(NO_CLONE), warns, "{text}");
        assert!(text.matches(NO_CLONE).count() <= 1, "{text}");
        down(&place);
    };
    // As long as it was, but of no QEMU.
    change("state", &|bytes| bytes.fill(0));
    works(true);
    // A truncated template is made again.
    let damaged = modified();
    change("state", &|bytes| bytes.truncate(1000));
    works(false);
    assert!(modified() > damaged);
    // Memory that is not that of the devices ends the clone.
    change("memory", &|bytes| bytes.fill(0));
    works(true);
    // Without room for templates.
    fs::remove_dir_all(cache.join("templates")).unwrap();
    fs::write(cache.join("templates"), "").unwrap();
    works(true);
    place.is_clean();
}

#[test]
fn interrupted_template_leaves_nothing() {
    let Some(place) = Place::new(Image::Default) else { return };
    let cache = cache(&place);
    let mut first = start(&place, &cache, &[]);
    let lock = cache.join("templates/lock");
    wait_for("the making of a template", PATIENCE, || lock.exists());
    // The machine's processes end with it.
    for process in place.processes() {
        // Some end with others.
        kill_if_there(process.split(' ').next().unwrap().parse().unwrap());
    }
    assert!(!first.runs() || first.end(PATIENCE).code != Some(0));
    assert_eq!(template(&cache), None);
    place.run(&["ps"]).ok();
    place.is_clean();
    up(&place, &cache, &[]);
    assert!(template(&cache).is_some());
    place.all_pairs(2, 1);
    down(&place);
    assert_eq!(place.ps(), json!([]));
}
