//! The report for other programs: JUnit, which systems for continuous integration read, and SARIF,
//! which code viewers do.

use std::fmt::Write as _;

use serde_json::json;

use crate::report::{Outcome, Report};
use crate::stacks::{Called, Stack};

/// The start of an XML document.
const XML: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// Each report as a test suite.
pub(crate) fn junit(reports: &[Report]) -> String {
    let suites: String = reports.iter().map(suite).collect();
    if reports.len() == 1 {
        return format!("{XML}{suites}");
    }
    format!("{XML}<testsuites name=\"tofu prove\">\n{suites}</testsuites>\n")
}

/// A test for each scene, for each rule that was met, and for what is left behind and logged.
fn suite(report: &Report) -> String {
    let mut cases = String::new();
    let (mut tests, mut failures, mut skipped) = (0, 0, 0);
    let mut case = |class: &str, name: &str, seconds: f64, result: Result<(), Option<Why<'_>>>| {
        tests += 1;
        let _ = write!(
            cases,
            "  <testcase classname=\"{class}\" name=\"{}\" time=\"{seconds:.3}\"",
            escaped(name)
        );
        match result {
            Ok(()) => cases.push_str("/>\n"),
            Err(Some((why, stacks))) => {
                failures += 1;
                let (why, stacks) = (escaped(why), stacks_of(stacks));
                let _ =
                    writeln!(cases, "><failure message=\"{why}\">{stacks}</failure></testcase>");
            }
            Err(None) => {
                skipped += 1;
                cases.push_str("><skipped/></testcase>\n");
            }
        }
    };
    for scene in &report.scenes {
        let result = match scene.outcome {
            Outcome::Passed => Ok(()),
            Outcome::Failed => Err(Some((scene.says.as_str(), &[][..]))),
            Outcome::NotRun => Err(None),
        };
        case("scene", scene.name, scene.seconds, result);
    }
    for rule in &report.rules {
        let result = match (rule.broken, rule.kept) {
            (0, 0) => Err(None),
            (0, _) => Ok(()),
            _ => Err(Some((rule.rule, &rule.stacks[..]))),
        };
        case("rule", rule.id, 0.0, result);
    }
    for (class, lines) in [("left", &report.left), ("kernel", &report.warnings)] {
        let what = lines.join("; ");
        let result = if lines.is_empty() { Ok(()) } else { Err(Some((what.as_str(), &[][..]))) };
        case(class, class, 0.0, result);
    }
    format!(
        "<testsuite name=\"tofu prove {}\" \
         tests=\"{tests}\" failures=\"{failures}\" skipped=\"{skipped}\" time=\"{:.3}\">\n\
         {cases}</testsuite>\n",
        escaped(&report.driver),
        report.seconds
    )
}

/// The reason for a failure, and the code that has caused it.
type Why<'a> = (&'a str, &'a [Stack]);

/// Call stacks as the text of an element, one in each line.
fn stacks_of(stacks: &[Stack]) -> String {
    let lines: Vec<_> = stacks.iter().map(|stack| escaped(&stack.to_string())).collect();
    lines.join("\n")
}

/// Text as it may stand in an attribute or an element. Control characters may not be there at all.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// Broken rules, as results of an analysis of each driver.
pub(crate) fn sarif(reports: &[Report]) -> String {
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": reports.iter().map(analysis).collect::<Vec<_>>(),
    })
    .to_string()
}

fn analysis(report: &Report) -> serde_json::Value {
    let rule = |rule: &crate::report::RuleReport| {
        let text = json!({ "text": rule.rule });
        json!({ "id": rule.id, "shortDescription": text })
    };
    let result = |rule: &crate::report::RuleReport| {
        let scenes = report.scenes_of(rule.id);
        let text = format!("{} Broken {} times, in {scenes}.", rule.rule, rule.broken);
        let message = json!({ "text": text });
        let stacks: Vec<_> = rule.stacks.iter().map(stack).collect();
        // A line of the driver's own files, rather than one of the kernel's headers.
        let is_own = |called: &&Called| called.at.as_ref().is_some_and(|at| !at.0.starts_with('/'));
        let found = rule.stacks.iter().flat_map(|stack| &stack.functions);
        let found = found.clone().filter(is_own).chain(found);
        let places: Vec<_> = found.filter_map(place).take(1).collect();
        json!({
            "ruleId": rule.id,
            "level": "error",
            "message": message,
            "locations": places,
            "stacks": stacks,
        })
    };
    let driver = json!({
        "name": "tofu prove",
        "version": env!("CARGO_PKG_VERSION"),
        "rules": report.rules.iter().map(rule).collect::<Vec<_>>(),
    });
    json!({
        "tool": { "driver": driver },
        "results": report.broken().map(result).collect::<Vec<_>>(),
    })
}

/// The line of a function, if it is known.
fn place(called: &Called) -> Option<serde_json::Value> {
    let (file, line) = called.at.as_ref()?;
    let file = json!({ "uri": file });
    let region = json!({ "startLine": line });
    Some(json!({ "physicalLocation": { "artifactLocation": file, "region": region } }))
}

/// A call stack of SARIF.
fn stack(stack: &Stack) -> serde_json::Value {
    let Stack { node, scene, access, functions } = stack;
    let frame = |called: &Called| {
        let names = json!([{ "fullyQualifiedName": called.says, "kind": "function" }]);
        let mut location = place(called).unwrap_or_else(|| json!({}));
        location["logicalLocations"] = names;
        json!({ "location": location })
    };
    let text = format!("node {node}, in {scene}, by a {access}");
    let frames: Vec<_> = functions.iter().map(frame).collect();
    json!({ "message": { "text": text }, "frames": frames })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Excuse, SceneReport};
    use crate::rules::Counts;
    use std::time::Duration;
    use tofu_rules::Rule;

    fn broken() -> Report {
        let mut report = Report::new("a<b>.ko".into(), "QEMU");
        report.rules[0].broken = 2;
        report.rules[1].kept = 1;
        let called = |says: &str, at| Called { says: says.into(), at };
        let at = Some(("a.c".into(), 12));
        let functions = vec![called("probe+0x10 (a.c:12) [a]", at), called("init<1>", None)];
        let access = "write to TNI 0 ENABLE".into();
        report.rules[0].stacks.push(Stack { node: 1, scene: "load", access, functions });
        let id = report.rules[0].id;
        report.scenes.push(SceneReport {
            name: "load",
            outcome: Outcome::Failed,
            seconds: 0.5,
            says: "no \"device\"\u{1b}".into(),
            broken: vec![(id, 2)],
        });
        report.finish(Duration::from_secs(1));
        report
    }

    #[test]
    fn junit_counts_what_it_lists() {
        let text = junit(&[broken()]);
        assert!(text.contains("name=\"tofu prove a&lt;b&gt;.ko\""), "{text}");
        assert!(text.contains("message=\"no &quot;device&quot;?\""), "{text}");
        let times = |what: &str| text.matches(what).count();
        for (name, what) in
            [("tests", "<testcase "), ("failures", "<failure "), ("skipped", "<skipped/>")]
        {
            assert!(text.contains(&format!(" {name}=\"{}\"", times(what))), "{name}: {text}");
        }
        assert_eq!(times("<failure "), 2);
        let stack = ">node 1, in load, by a write to TNI 0 ENABLE: \
                     probe+0x10 (a.c:12) [a] &lt; init&lt;1&gt;<";
        assert!(text.contains(stack), "{text}");
    }

    #[test]
    fn several_reports_are_suites_and_runs() {
        let reports = [broken(), broken()];
        let text = junit(&reports);
        assert!(text.starts_with(XML) && text.ends_with("</testsuites>\n"), "{text}");
        assert_eq!((text.matches(XML).count(), text.matches("<testsuite ").count()), (1, 2));
        let value: serde_json::Value = serde_json::from_str(&sarif(&reports)).unwrap();
        assert_eq!(value["runs"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn sarif_has_a_line_of_the_drivers_own() {
        let mut report = broken();
        let at = Some(("/build/linux/io.h".into(), 97));
        report.rules[0].stacks[0].functions.insert(0, Called { says: "writeq".into(), at });
        let value: serde_json::Value = serde_json::from_str(&sarif(&[report])).unwrap();
        let place = &value["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "a.c");
        assert_eq!(place["region"]["startLine"], 12);
    }

    #[test]
    fn sarif_has_a_result_for_each_broken_rule() {
        let value: serde_json::Value = serde_json::from_str(&sarif(&[broken()])).unwrap();
        let results = value["runs"][0]["results"].as_array().unwrap();
        assert_eq!(results.len(), 1);
        assert_eq!(results[0]["ruleId"], "T-REG-001");
        assert!(results[0]["message"]["text"].as_str().unwrap().ends_with("2 times, in load."));
        let stack = &results[0]["stacks"][0];
        assert_eq!(stack["message"]["text"], "node 1, in load, by a write to TNI 0 ENABLE");
        let place = &stack["frames"][0]["location"];
        let name = &place["logicalLocations"][0]["fullyQualifiedName"];
        assert_eq!(name, "probe+0x10 (a.c:12) [a]");
        assert_eq!(place["physicalLocation"]["region"]["startLine"], 12);
        assert_eq!(results[0]["locations"][0]["physicalLocation"], place["physicalLocation"]);
        assert!(stack["frames"][1]["location"].get("physicalLocation").is_none());
    }

    #[test]
    fn rules_of_an_end_that_starts_are_excused() {
        let mut report = Report::new("x".into(), "QEMU");
        let counts = Counts::broken_once(&[Rule::RemoteInterface, Rule::RemoteMemory]);
        report.count(&counts, Excuse::Starts);
        let broken: Vec<_> = report.broken().map(|rule| rule.id).collect();
        assert_eq!(broken, ["T-RMT-007"]);
        report.count(&counts, Excuse::Taken);
        assert_eq!(report.rules.iter().map(|rule| rule.excused).sum::<u64>(), 3);
        // A steering table that has gone is excused only for accesses by the other end.
        report.count(&Counts::broken_once(&[Rule::StagEnabled]), Excuse::Taken);
        let both = [Rule::StagEnabled, Rule::RemoteMemory];
        report.count(&Counts::broken_once(&both), Excuse::Taken);
        let own = report.rules.iter().find(|rule| rule.id == "T-AT-004").unwrap();
        assert_eq!((own.broken, own.excused), (1, 1));
    }

    #[test]
    fn rules_about_memory_are_excused_by_aborts() {
        let mut report = Report::new("x".into(), "QEMU");
        let counts = Counts::broken_once(&[Rule::PayloadMemory, Rule::TcqMemory, Rule::Mtu]);
        report.count(&counts, Excuse::Aborted);
        let broken: Vec<_> = report.broken().map(|rule| rule.id).collect();
        assert_eq!(broken, ["T-CMD-003"]);
    }

    #[test]
    fn report_is_only_ok_if_nothing_broke() {
        assert!(!broken().ok);
        let mut report = Report::new("x".into(), "QEMU");
        report.finish(Duration::ZERO);
        assert!(report.ok);
        report.left.push("a queue".into());
        report.finish(Duration::ZERO);
        assert!(!report.ok);
    }
}
