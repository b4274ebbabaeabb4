//! The format of log lines, from outside.

use serde_json::Value;

use crate::tofu::Place;

#[test]
fn log_lines_are_objects_on_request() {
    let place = Place::new();
    if !place.can_boot("log_lines_are_objects_on_request") {
        return;
    }
    // A guest that breaks rules, each of which is logged.
    let up = ["up", "--shape", "1x1x1x2x1x1", "--guest", "garbage", "--args", "steps=200 seed=1"];
    let up = [&up[..], &["--log", "device=debug"]].concat();
    let said = place.run(&[&up[..], &["--log-format", "json"]].concat());
    let lines: Vec<Value> =
        said.err.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(!lines.is_empty(), "{said:?}");
    for line in &lines {
        assert_eq!((&line["target"], &line["level"]), (&"device".into(), &"debug".into()));
        assert!(line["message"].as_str().unwrap().starts_with("node ("), "{line}");
        assert!(line["time"].as_str().unwrap().ends_with('Z'), "{line}");
    }
    assert!(!said.err.contains(" device] "), "no line of text beside them: {said:?}");
    let text = place.run(&up);
    assert!(text.err.contains(" device] node ("), "{text:?}");
    let error = place.run(&["ps", "--log-format", "xml"]).error();
    assert!(error.contains("[possible values: text, json]"), "{error}");
}
