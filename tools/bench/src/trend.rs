//! `--trend FILE`: figures of a run as a line of a file, and their changes since the line before.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::figures::Host;

/// Numbers that say what was measured, and are no figures.
const NAMING: [&str; 5] = ["at_once", "bytes", "cores", "nodes", "size"];
/// Fields that are no figures of the emulation.
const LEFT_OUT: [&str; 2] = ["host", "load"];
/// Changes by less than this factor are not shown: runs on one host differ by as much.
const SHOWN: f64 = 1.1;
/// Longest file that is read, in bytes. A line of a full run has some 10 kB.
const LONGEST: u64 = 256 << 20;

/// A run of the benchmark: a line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The end of the run, in seconds since 1970.
    time: u64,
    version: String,
    host: Host,
    quick: bool,
    /// The load average of one minute before and after the run.
    load: [f64; 2],
    /// By their places in the report.
    figures: BTreeMap<String, f64>,
}

/// The file of earlier runs.
#[derive(Debug)]
pub(crate) struct Trend {
    path: PathBuf,
    file: File,
    /// The last run on the same kind of host that was as long as this one.
    before: Option<Run>,
}

impl Trend {
    /// Opens the file, or makes one, before anything is measured.
    ///
    /// # Errors
    ///
    /// If it cannot be written, or has a line that is no run.
    pub(crate) fn open(path: &Path, host: &Host, quick: bool) -> anyhow::Result<Self> {
        let name = || path.display().to_string();
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = file.with_context(|| format!("--trend {}", name()))?;
        let data = file.metadata().with_context(name)?;
        if !data.is_file() || data.len() > LONGEST {
            bail!("--trend {}: expected a file of runs, of at most {LONGEST} bytes", name());
        }
        let mut before = None;
        for (i, line) in BufReader::new(&file).lines().enumerate() {
            let run = line.map_err(anyhow::Error::from);
            let run = run.and_then(|line| Ok(serde_json::from_str::<Run>(&line)?));
            let run = run.with_context(|| {
                format!("--trend {}: line {} is no run of tofu bench --trend", name(), i + 1)
            })?;
            if run.host == *host && run.quick == quick {
                before = Some(run);
            }
        }
        Ok(Self { path: path.to_owned(), file, before })
    }

    /// Appends a run with this report, and returns its changes since the one before.
    pub(crate) fn append(
        &mut self,
        report: &Value,
        host: Host,
        load: [f64; 2],
        quick: bool,
    ) -> anyhow::Result<Changes> {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (time, version) = (time.as_secs(), env!("CARGO_PKG_VERSION").to_owned());
        let run = Run { time, version, host, quick, load, figures: figures(report) };
        // In one write, so that runs that end at the same time do not mix their lines.
        let line = format!("{}\n", serde_json::to_string(&run)?);
        self.file.write_all(line.as_bytes()).with_context(|| self.path.display().to_string())?;
        Ok(Changes::between(self.before.as_ref(), &run))
    }
}

/// The differences between two runs, as text.
#[derive(Debug, PartialEq)]
pub(crate) struct Changes {
    /// The loads of the run before; `None` if there was none.
    before: Option<[f64; 2]>,
    /// Figures that both have.
    common: usize,
    /// Names, values before and now, the largest change first.
    rows: Vec<(String, f64, f64)>,
}

impl Changes {
    fn between(before: Option<&Run>, now: &Run) -> Self {
        let Some(before) = before else {
            return Self { before: None, common: 0, rows: Vec::new() };
        };
        let both = now.figures.iter().filter_map(|(name, &now)| {
            before.figures.get(name).map(|&before| (name.clone(), before, now))
        });
        let both: Vec<_> = both.collect();
        let common = both.len();
        let mut rows: Vec<_> = both.into_iter().filter(|row| size(row) >= SHOWN).collect();
        rows.sort_by(|a, b| size(b).total_cmp(&size(a)));
        Self { before: Some(before.load), common, rows }
    }
}

/// The factor by which a row's value is larger or smaller, at least 1.
fn size(&(_, before, now): &(String, f64, f64)) -> f64 {
    match (before > 0.0 && now > 0.0, before == now) {
        (_, true) => 1.0,
        (true, _) => (now / before).max(before / now),
        (false, _) => f64::INFINITY,
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some([first, last]) = self.before else {
            return write!(f, "\nTrend: the first run of this kind on this host");
        };
        let (shown, common) = (self.rows.len(), self.common);
        write!(f, "\nTrend: {shown} of {common} figures changed by 10 % or more")?;
        write!(f, " since the run before (load {first:.1} to {last:.1})")?;
        for (name, before, now) in &self.rows {
            write!(f, "\n{name:72} {before:>12.3} {now:>12.3}")?;
            if *before > 0.0 {
                write!(f, "  x {:.2}", now / before)?;
            }
        }
        Ok(())
    }
}

/// All figures of a report, by the words that lead to them.
fn figures(report: &Value) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    collect("", report, &mut all);
    all
}

fn collect(place: &str, value: &Value, all: &mut BTreeMap<String, f64>) {
    let below = |name: &str| match place {
        "" => name.to_owned(),
        place => format!("{place} {name}"),
    };
    match value {
        Value::Number(number) => {
            all.extend(number.as_f64().map(|number| (place.to_owned(), number)));
        }
        Value::Object(fields) => {
            let names = fields.iter().filter_map(|(field, value)| naming(field, value));
            let place = names.fold(place.to_owned(), |place, name| format!("{place} {name}"));
            for (field, value) in fields {
                if naming(field, value).is_none() && !LEFT_OUT.contains(&field.as_str()) {
                    collect(format!("{place} {field}").trim_start(), value, all);
                }
            }
        }
        // Of several measurements of one thing, the middle one.
        Value::Array(values) if values.iter().all(Value::is_number) => {
            let mut numbers: Vec<_> = values.iter().filter_map(Value::as_f64).collect();
            numbers.sort_by(f64::total_cmp);
            all.extend(numbers.get(numbers.len() / 2).map(|&middle| (below("median"), middle)));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(place, value, all)),
        _ => {}
    }
}

/// A field's part of the name of the figures beside it, if it says what they are figures of.
fn naming(field: &str, value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(true) => Some(field.to_owned()),
        Value::Number(number) if NAMING.contains(&field) => Some(format!("{field}={number}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn host(cores: usize) -> Host {
        Host { processor: "one".into(), cores, virtualisation: "none".into() }
    }

    fn report(ns: u64, us: f64) -> Value {
        json!({
            "put": [{"bytes": 8, "p50_ns": ns, "p99_ns": 100}],
            "bare": [{"what": "bare", "bytes": 8, "min_us": 1.0, "p50_us": us}],
        })
    }

    #[test]
    fn figures_are_named_by_what_they_are_of() {
        let report = json!({
            "host": {"cores": 2},
            "put": [{"bytes": 8, "p50_ns": 7}, {"bytes": 64, "p50_ns": 9}],
            "rate": {"commands_per_s": 2e6},
            "ip": {"load": [0.5, 1.0], "boots": [{"what": "a", "gates": true, "s": [3, 1, 2]}]},
            "driver": null,
        });
        let names = ["ip boots gates a s median", "put bytes=64 p50_ns", "put bytes=8 p50_ns"];
        let expected = names.into_iter().zip([2.0, 9.0, 7.0]).chain([("rate commands_per_s", 2e6)]);
        assert_eq!(figures(&report), expected.map(|(name, n)| (name.to_owned(), n)).collect());
    }

    #[test]
    fn change_since_last_run_of_same_kind_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trend");
        let run = |of: &Value, cores: usize, quick: bool| {
            let mut trend = Trend::open(&path, &host(cores), quick).unwrap();
            trend.append(of, host(cores), [0.0; 2], quick).unwrap()
        };
        assert_eq!(run(&report(500, 4.0), 2, false).before, None);
        assert_eq!(run(&report(900, 9.0), 2, true).before, None, "that run was not as brief");
        assert_eq!(run(&report(100, 1.0), 64, false).before, None, "that was another host");
        let changes = run(&report(520, 6.0), 2, false);
        let row = ("bare bytes=8 bare p50_us".to_owned(), 4.0, 6.0);
        assert_eq!(changes, Changes { before: Some([0.0; 2]), common: 4, rows: vec![row] });
        assert!(changes.to_string().contains("x 1.50"), "{changes}");
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 4);
    }

    #[test]
    fn other_files_are_refused_and_left_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, "my notes\n").unwrap();
        let error = Trend::open(&path, &host(2), false).unwrap_err().to_string();
        assert!(error.contains("notes: line 1 is no run"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "my notes\n");
        assert!(Trend::open(folder.path(), &host(2), false).is_err());
        assert!(Trend::open(&folder.path().join("no/file"), &host(2), false).is_err());
    }
}
