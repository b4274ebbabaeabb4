//! Writes the manual's table of rules from the table in `tofu-rules`, with the place in the
//! devices' code that checks each of them.
//!
//! ```text
//! cargo run -p tofu-modules --bin rules            # writes the table into the page
//! cargo run -p tofu-modules --bin rules -- --check # fails if the page is not up to date
//! ```
//!
//! Both fail if a rule is named at no place or at several.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use tofu_rules::{Device, Rule};

const PAGE: &str = "docs/src/reference/rules.md";
/// The lines between which the page has the table.
const BEGIN: &str = "<!-- written by tofu-modules, bin rules -->\n";
const END: &str = "<!-- end -->\n";
/// The folder of devices, and those whose code checks rules.
const DEVICES: &str = "vmm-device";
const CHECKING: [&str; 2] = ["icc/src", "tnw/src"];

fn main() -> anyhow::Result<ExitCode> {
    let places = places()?;
    let wrong = Rule::ALL.iter().filter(|rule| places[&rule.id()].len() != 1);
    let wrong: Vec<String> = wrong
        .map(|rule| format!("{rule}: {rule:?} is named at {:?}", places[&rule.id()]))
        .collect();
    if !wrong.is_empty() {
        wrong.iter().for_each(|line| println!("{line}"));
        return Ok(ExitCode::FAILURE);
    }
    let page = fs::read_to_string(PAGE).context(PAGE)?;
    let fresh = renewed(&page, &table(&places)).context("the page has no marks for the table")?;
    if std::env::args().nth(1).as_deref() != Some("--check") {
        fs::write(PAGE, fresh).context(PAGE)?;
    } else if page != fresh {
        println!("{PAGE} is out of date: cargo run -p tofu-modules --bin rules");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The page with another table.
fn renewed(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{table}{END}{after}"))
}

/// The files that name each rule, by its id; a file once for each time that it does.
type Places = BTreeMap<&'static str, Vec<String>>;

fn places() -> anyhow::Result<Places> {
    let mut places: Places = Rule::ALL.iter().map(|rule| (rule.id(), Vec::new())).collect();
    for folder in CHECKING {
        let mut files = Vec::new();
        sources(&Path::new(DEVICES).join(folder), &mut files)?;
        files.sort();
        for file in files {
            let source = fs::read_to_string(&file)?;
            // Unit tests are at the end of their files.
            let code = source.split("#[cfg(test)]").next().unwrap_or_default();
            let shown = file.strip_prefix(DEVICES)?.to_string_lossy().into_owned();
            for rule in Rule::ALL {
                let name = format!("Rule::{rule:?}");
                let is_it = |rest: &&str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric());
                let times = code.split(&name).skip(1).filter(is_it).count();
                let found = places.entry(rule.id()).or_default();
                found.extend(std::iter::repeat_n(shown.clone(), times));
            }
        }
    }
    Ok(places)
}

/// All source files of a folder.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn table(places: &Places) -> String {
    let mut text = String::new();
    for (device, title) in
        [(Device::Tofu, "The Tofu interconnect controller"), (Device::Tnw, "TNW")]
    {
        let _ = write!(
            text,
            "\n## {title}\n\n| id | source | rule | checked in |\n|---|---|---|---|\n"
        );
        for rule in Rule::ALL.iter().filter(|rule| rule.device() == device) {
            let (letter, says) = (rule.source().letter(), rule.says());
            let place = places[rule.id()].join(", ");
            let _ = writeln!(text, "| {rule} | {letter} | {says} | `{place}` |");
        }
    }
    text.push('\n');
    text
}
