//! Reports of `tofu prove` about wrong drivers.

use std::time::Duration;

use serde_json::Value;

use crate::{PATIENCE, Place, Said, driver};

/// The part of a report that names a wrong driver, or its beginning.
pub enum Named {
    /// A broken rule.
    Rule(&'static str),
    /// Something that is left behind; `#` stands for anything.
    Left(&'static str),
    /// A warning of a kernel.
    Warning(&'static str),
    /// A scene, and why it has failed.
    Scene(&'static str, &'static str),
    /// A kernel that has crashed, wherever it was noticed: code that has gone is called later.
    Crash,
    /// Any of these, where it depends on the time which of them it is.
    Any(&'static [Named]),
    /// Nothing, as no scene meets it yet.
    Unmet,
}

use Named::{Any, Crash, Left, Rule, Scene, Unmet, Warning};

/// Words of a kernel that has crashed.
const CRASHES: [&str; 4] = ["Kernel panic", "Oops", "BUG:", "Unable to handle"];

/// Arguments of make for modules without debugging information.
pub const PLAIN: [&str; 2] = ["CONFIG_DEBUG_INFO=", "CONFIG_DEBUG_INFO_BTF_MODULES="];

/// The time limit for each of many modules, of which some end only after limits of `tofu prove`.
const EACH: Duration = Duration::from_secs(90);

/// Proves drivers.
pub fn prove(place: &Place, args: &[&str]) -> Said {
    let image = driver::image();
    let modules = args.iter().filter(|arg| arg.ends_with(".ko")).count();
    let command = [&["prove", "--json", "--kernel", &image], args].concat();
    place.run_for(&command, 4 * PATIENCE + modules as u32 * EACH, b"")
}

/// The report, or all of them.
pub fn report(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

/// The ids of broken rules.
pub fn broken(report: &Value) -> Vec<&str> {
    let rules = report["rules"].as_array().unwrap().iter();
    rules.filter(|rule| rule["broken"] != 0).map(|rule| rule["id"].as_str().unwrap()).collect()
}

/// Nothing of the machine is left.
#[track_caller]
pub fn nothing_runs(place: &Place) {
    assert_eq!(place.run(&["ps", "--json"]).json(), Value::Array(Vec::new()));
}

/// A line about the report about a wrong driver, if it does not name what it should.
pub fn missed(name: &str, named: &Named, report: &Value) -> Option<String> {
    let is_ok = report["ok"] == true;
    if let Unmet = named {
        return (!is_ok).then(|| format!("{name} is named now: {report:#}"));
    }
    (is_ok || !has(report, named)).then(|| {
        let parts = ["scenes", "left", "warnings"].map(|part| &report[part]);
        format!("{name}: {:?} {parts:?}", broken(report))
    })
}

/// Returns true if a report has what names a driver.
fn has(report: &Value, named: &Named) -> bool {
    let begins = |list: &str, with: &str| {
        let mut lines = report[list].as_array().unwrap().iter().filter_map(Value::as_str);
        let (begin, end) = with.split_once('#').unwrap_or((with, ""));
        lines.any(|line| line.starts_with(begin) && line.ends_with(end))
    };
    match named {
        Rule(id) => broken(report).contains(id),
        Left(with) => begins("left", with),
        Warning(with) => begins("warnings", with),
        Crash => {
            let said = [&report["warnings"], &report["scenes"]].map(Value::to_string);
            CRASHES.iter().any(|word| said.iter().any(|said| said.contains(word)))
        }
        Scene(scene, with) => {
            let mut scenes = report["scenes"].as_array().unwrap().iter();
            let found = scenes.find(|found| found["name"] == *scene).unwrap();
            found["says"].as_str().unwrap().starts_with(with)
        }
        Any(all) => all.iter().any(|named| has(report, named)),
        Unmet => false,
    }
}
