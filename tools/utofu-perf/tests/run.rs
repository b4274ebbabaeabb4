//! The program as a user runs it.

use std::fs;
use std::process::{Command, Output};

fn utofu_perf(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_utofu-perf"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TOFU_")) {
        command.env_remove(name);
    }
    command.args(args).output().unwrap()
}

#[test]
fn memory_is_registered() {
    let output = utofu_perf(&["registration", "--regions=4096,1048576", "--time=1", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["results"].as_array().unwrap();
    let found: Vec<_> =
        rows.iter().map(|row| (row["test"].as_str(), row["size"].as_u64())).collect();
    let expected =
        [4096, 1 << 20].map(|size| ["register", "deregister"].map(|test| (Some(test), Some(size))));
    assert_eq!(found, expected.concat());
    assert!(rows.iter().all(|row| row["p50_us"].as_f64().unwrap() > 0.0), "{rows:?}");
}

#[test]
fn empty_region_is_refused() {
    let output = utofu_perf(&["registration", "--regions=4096,0"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("--regions: 0 bytes"), "{error}");
}

#[test]
fn every_test_gives_its_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("plot.svg");
    let output = utofu_perf(&[
        "--time=5",
        "--sizes=8,5000",
        "--tnis=2",
        "--json",
        "--svg",
        svg.to_str().unwrap(),
    ]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["results"].as_array().unwrap();
    let mut expected = vec![("word", 8, 0)];
    for (test, tnis) in [
        ("copy", &[0][..]),
        ("latency", &[1]),
        ("put", &[1]),
        ("get", &[1]),
        ("bandwidth", &[1, 2]),
        ("bidirectional", &[1, 2]),
    ] {
        for size in [8, 5000] {
            expected.extend(tnis.iter().map(|&tnis| (test, size, tnis)));
        }
    }
    expected.extend([("rate by hand", 8, 1), ("rate", 8, 1), ("rate", 8, 2)]);
    let found: Vec<_> = rows
        .iter()
        .map(|row| {
            let number = |name: &str| row[name].as_u64().unwrap();
            (row["test"].as_str().unwrap(), number("size"), number("tnis"))
        })
        .collect();
    assert_eq!(found, expected);
    for row in rows {
        assert!(row["messages"].as_u64().unwrap() > 0);
        let value = ["p50_us", "mb_per_s", "million_per_s"].iter().find_map(|n| row[n].as_f64());
        assert!(value.unwrap() > 0.0, "{row}");
        if let Some(p99) = row["p99_us"].as_f64() {
            assert!(p99 >= row["p50_us"].as_f64().unwrap());
        }
    }
    let load = report["load"].as_array().unwrap();
    assert!(load.iter().all(|load| load.as_f64().is_some_and(|load| load >= 0.0)), "{load:?}");
    // Times of copies, messages, Puts and Gets; bandwidths of copies, and of both kinds with one
    // interface and with two.
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg ") && svg.matches("<polyline").count() == 4 + 5, "{svg}");
}

#[test]
fn commands_post_each_way_without_measuring() {
    for way in ["hand", "rust", "c"] {
        let output = utofu_perf(&["--repeat", way, "100"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout.is_empty(), "{way}: {error}");
    }
    let output = utofu_perf(&["--repeat", "foot", "100"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("--repeat: "), "{error}");
}

#[test]
fn wrong_arguments_are_told_in_a_line() {
    for (args, text) in [
        (&["--sizes=0"][..], "--sizes: 0 is not 1 to 16777215"),
        (&["--sizes=16777216"], "--sizes: 16777216 is not 1 to 16777215"),
        (&["--tnis=7"], "7 is not in 1..=6"),
        (&["--peer=1,2,3"], "--peer: not six coordinates"),
    ] {
        let output = utofu_perf(args);
        assert!(!output.status.success());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(text), "{error}");
    }
}
