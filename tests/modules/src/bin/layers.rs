//! Draws the crates of the workspace by layer, from the output of `cargo metadata`, and finds those
//! that depend on crates which they must not use.
//!
//! ```text
//! cargo run -p tofu-modules --bin layers            # writes docs/src/pictures/crates.svg
//! cargo run -p tofu-modules --bin layers -- --check # fails if that file is not up to date
//! ```
//!
//! Both fail if a crate of `guest-lib` builds on one of `vmm-device`, directly or indirectly: what
//! runs in a guest contains no device.
//!
//! A crate is one row above the highest crate that it builds on. A line is drawn only if no longer
//! way leads to the same crate. Dependencies of tests and of build scripts are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use serde_json::Value;

const PICTURE: &str = "docs/src/pictures/crates.svg";
/// Sizes in pixels.
const BOX: (usize, usize) = (118, 24);
const GAP: (usize, usize) = (10, 46);
const MARGIN: usize = 12;
/// Folders at the top of the tree, and the colours of their crates.
const FOLDERS: [(&str, &str); 4] = [
    ("guest-lib", "#cfe8cf"),
    ("vmm-device", "#cfe0f5"),
    ("tools", "#f7e3c4"),
    ("tests", "#e6e0ea"),
];

/// A folder whose crates build on none of another one.
const APART: (&str, &str) = ("guest-lib", "vmm-device");

/// Crates by name.
type Crates = BTreeMap<String, Crate>;

struct Crate {
    /// The first folder of its path, and its colour.
    folder: (&'static str, &'static str),
    uses: BTreeSet<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--locked", "--format-version", "1"])
        .output()
        .context("running cargo metadata")?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata = serde_json::from_slice(&output.stdout)?;
    let crates = crates(&metadata)?;
    let wrong = forbidden(&crates);
    if !wrong.is_empty() {
        wrong.iter().for_each(|line| println!("{line}"));
        return Ok(ExitCode::FAILURE);
    }
    let picture = drawn(&crates, &rows(&crates));
    if std::env::args().nth(1).as_deref() != Some("--check") {
        fs::write(PICTURE, picture).context(PICTURE)?;
    } else if fs::read_to_string(PICTURE).context(PICTURE)? != picture {
        println!("{PICTURE} is out of date: cargo run -p tofu-modules --bin layers");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The crates in the output of `cargo metadata`.
fn crates(metadata: &Value) -> anyhow::Result<Crates> {
    let packages = metadata["packages"].as_array().context("no packages")?;
    let root = Path::new(metadata["workspace_root"].as_str().context("no workspace")?);
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let names: BTreeSet<_> = packages.iter().map(name).collect();
    let read = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.strip_prefix(root).unwrap_or(manifest);
        let folder = FOLDERS.iter().find(|(first, _)| folder.starts_with(first));
        let all = package["dependencies"].as_array().into_iter().flatten();
        let built_on = all.filter(|dependency| dependency["kind"].is_null()).map(name);
        let uses = built_on.filter(|name| names.contains(name)).collect();
        (name(package), Crate { folder: folder.copied().unwrap_or(("", "#ffffff")), uses })
    };
    Ok(packages.iter().map(read).collect())
}

/// The crates that build on those of a folder which they must be apart from, each with a way that
/// leads there.
fn forbidden(crates: &Crates) -> Vec<String> {
    let (here, there) = APART;
    let ours = crates.iter().filter(|(_, known)| known.folder.0 == here);
    let ways = ours.filter_map(|(name, _)| way(crates, name, there));
    ways.map(|way| format!("{here} builds on {there}: {}", way.join(" -> "))).collect()
}

/// A way from a crate to one of a folder.
fn way<'a>(crates: &'a Crates, from: &'a str, folder: &str) -> Option<Vec<&'a str>> {
    if crates[from].folder.0 == folder {
        return Some(vec![from]);
    }
    let rest = crates[from].uses.iter().find_map(|used| way(crates, used, folder))?;
    Some([vec![from], rest].concat())
}

/// Rows of crates, the lowest first, each in an order that keeps lines short.
fn rows(crates: &Crates) -> Vec<Vec<&str>> {
    let mut layers = BTreeMap::new();
    for name in crates.keys() {
        layer(crates, name, &mut layers);
    }
    let mut rows = vec![Vec::new(); layers.values().max().map_or(0, |top| top + 1)];
    for (name, layer) in &layers {
        rows[*layer].push(*name);
    }
    // Each crate goes above the middle of those that it uses.
    let mut places = BTreeMap::new();
    for row in &mut rows {
        let middle = |name: &&str| {
            let below = crates[*name].uses.iter().filter_map(|used| places.get(used.as_str()));
            let (sum, count) =
                below.fold((0usize, 0), |(sum, count), place| (sum + place, count + 1));
            sum.checked_div(count).unwrap_or(0)
        };
        row.sort_by_key(|name| (middle(name), *name));
        let width = row.len();
        places.extend(row.iter().enumerate().map(|(at, name)| (*name, at * 1000 / width)));
    }
    rows
}

fn layer<'a>(crates: &'a Crates, name: &'a str, known: &mut BTreeMap<&'a str, usize>) -> usize {
    if let Some(layer) = known.get(name) {
        return *layer;
    }
    let below = crates[name].uses.iter().map(|used| layer(crates, used, known) + 1);
    let layer = below.max().unwrap_or(0);
    known.insert(name, layer);
    layer
}

/// Returns true if a crate builds on another one, directly or indirectly.
fn reaches(crates: &Crates, from: &str, to: &str) -> bool {
    crates[from].uses.iter().any(|used| used == to || reaches(crates, used, to))
}

fn drawn(crates: &Crates, rows: &[Vec<&str>]) -> String {
    let widest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = 2 * MARGIN + widest * (BOX.0 + GAP.0);
    let height = 2 * MARGIN + rows.len() * (BOX.1 + GAP.1) + BOX.1;
    let mut places = BTreeMap::new();
    for (row, names) in rows.iter().enumerate() {
        let left = (width - names.len() * (BOX.0 + GAP.0)) / 2;
        for (at, name) in names.iter().enumerate() {
            let x = left + at * (BOX.0 + GAP.0);
            places.insert(*name, (x, MARGIN + (rows.len() - 1 - row) * (BOX.1 + GAP.1)));
        }
    }
    let mut lines = String::new();
    let mut boxes = String::new();
    for (name, Crate { folder: (_, colour), uses }) in crates {
        let (x, y) = places[name.as_str()];
        for used in uses {
            if uses.iter().any(|other| other != used && reaches(crates, other, used)) {
                continue;
            }
            let (to_x, to_y) = places[used.as_str()];
            let ((x, y), (to_x, to_y)) = ((x + BOX.0 / 2, y + BOX.1), (to_x + BOX.0 / 2, to_y));
            let (bend, to_bend) = (y + GAP.1 / 2, to_y - GAP.1 / 2);
            let _ =
                writeln!(lines, "<path d=\"M{x} {y}C{x} {bend} {to_x} {to_bend} {to_x} {to_y}\"/>");
        }
        boxes += &boxed((x, y), colour, name.strip_prefix("tofu-").unwrap_or(name));
    }
    for (at, (folder, colour)) in FOLDERS.iter().enumerate() {
        boxes += &boxed((MARGIN + at * (BOX.0 + GAP.0), height - MARGIN - BOX.1), colour, folder);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <g fill=\"none\" stroke=\"#8a8a8a\">\n{lines}</g>\n\
         <g stroke=\"#444444\" text-anchor=\"middle\">\n{boxes}</g>\n</svg>\n"
    )
}

fn boxed((x, y): (usize, usize), colour: &str, text: &str) -> String {
    format!(
        "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"3\" fill=\"{colour}\"/>\
         <text x=\"{}\" y=\"{}\" stroke=\"none\">{text}</text>\n",
        BOX.0,
        BOX.1,
        x + BOX.0 / 2,
        y + BOX.1 - 8
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Crates with their folders, what they build on, and what their tests do.
    fn workspace(all: &[(&str, &str, &[&str], &[&str])]) -> Crates {
        let dependency = |kind| move |name: &&str| json!({"name": name, "kind": kind});
        let packages = all.iter().map(|(name, folder, uses, tests)| {
            let uses = uses.iter().map(dependency(Value::Null));
            let all: Vec<_> = uses.chain(tests.iter().map(dependency(json!("dev")))).collect();
            let manifest = format!("/tree/{folder}/{name}/Cargo.toml");
            json!({"name": name, "manifest_path": manifest, "dependencies": all})
        });
        let packages: Vec<_> = packages.collect();
        crates(&json!({"packages": packages, "workspace_root": "/tree"})).unwrap()
    }

    #[test]
    fn guests_contain_no_devices() {
        let good = workspace(&[
            ("driver", "guest-lib", &["other"], &["device"]),
            ("other", "tools", &[], &["device"]),
            ("device", "vmm-device", &["driver"], &[]),
        ]);
        assert!(forbidden(&good).is_empty());
        let bad = workspace(&[
            ("a", "guest-lib", &["b"], &[]),
            ("b", "tools", &["c"], &[]),
            ("c", "vmm-device/host-platforms", &[], &[]),
            ("d", "guest-lib/utofu", &["c"], &[]),
        ]);
        let lines = [
            "guest-lib builds on vmm-device: a -> b -> c",
            "guest-lib builds on vmm-device: d -> c",
        ];
        assert_eq!(forbidden(&bad), lines);
    }
}
