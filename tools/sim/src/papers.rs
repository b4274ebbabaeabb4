//! Values that papers have published, next to those of the model.

mod arithmetic;
mod barrier;
mod commands;
mod end;
#[cfg(test)]
mod live;
mod permutations;
mod results;
mod switching;
mod tnw;
mod values;

use std::fmt::Write as _;

use anyhow::Context;
use serde::Serialize;

use crate::plot::{Curves, Line};
use results::Results;
use values::{Published, VALUES, Value};

/// A published value next to ours.
#[derive(Debug, Serialize)]
struct Compared {
    #[serde(flatten)]
    value: &'static Value,
    ours: f64,
    /// The difference of ours from the published value, relative to it.
    difference: f64,
    met: bool,
}

/// All published values next to ours, and curves.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    values: Vec<Compared>,
    curves: Vec<Curves>,
}

impl Report {
    /// Runs every model.
    pub(crate) fn measure() -> anyhow::Result<Self> {
        let mut results = Results::default();
        arithmetic::measure(&mut results);
        commands::measure(&mut results)?;
        switching::measure(&mut results)?;
        permutations::measure(&mut results)?;
        barrier::measure(&mut results)?;
        tnw::measure(&mut results)?;
        let values = VALUES
            .iter()
            .map(|value| {
                let ours = results.values.get(value.name);
                Ok(Compared::new(value, *ours.with_context(|| value.name)?))
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { values, curves: results.curves })
    }

    pub(crate) fn curves(&self) -> &[Curves] {
        &self.curves
    }

    /// Formats the report: a table, the reasons for values that are not met, and the curves.
    pub(crate) fn text(&self) -> String {
        let rows = self.values.iter().map(|row| {
            let Compared { value, ours, difference, met } = row;
            let verdict = match (met, value.given) {
                (true, true) => "given",
                (true, false) => "met",
                (false, _) => "not met",
            };
            vec![
                value.source.to_owned(),
                value.what.to_owned(),
                format!("{} {}", value.published, value.unit),
                number(*ours),
                format!("{:+.1} %", difference * 100.0),
                verdict.to_owned(),
            ]
        });
        let head = ["paper", "", "published", "ours", "difference", ""];
        let mut text = tofu_ui::table(&head, &[2, 3, 4], rows);
        text += "\ngiven: a parameter of the model. All else follows from the mechanism.\n";
        for row in self.values.iter().filter(|row| !row.met) {
            // Writing to a string cannot fail.
            let Value { source, what, reason, .. } = row.value;
            let _ = writeln!(text, "{source}, {what}: {reason}");
        }
        for Curves { title, y, x, lines } in &self.curves {
            let _ = writeln!(text, "\n{title}: {y} by {x}");
            let mut head = vec![*x];
            head.extend(lines.iter().map(|line| line.name.as_str()));
            let mut xs: Vec<f64> =
                lines.iter().flat_map(|line| &line.points).map(|at| at.0).collect();
            xs.sort_by(f64::total_cmp);
            xs.dedup();
            let rows = xs.iter().map(|x| {
                let at = |line: &Line| {
                    let point = line.points.iter().find(|point| point.0 == *x);
                    point.map_or(String::new(), |point| number(point.1))
                };
                [x.to_string()].into_iter().chain(lines.iter().map(at)).collect()
            });
            let right: Vec<usize> = (0..head.len()).collect();
            text += &tofu_ui::table(&head, &right, rows);
        }
        text
    }
}

impl Compared {
    fn new(value: &'static Value, ours: f64) -> Self {
        let (Published::About(paper) | Published::AtLeast(paper)) = value.published;
        let difference = ours / paper - 1.0;
        let met = match value.published {
            Published::About(_) => difference.abs() <= value.tolerance,
            Published::AtLeast(_) => difference >= 0.0,
        };
        Self { value, ours, difference, met }
    }
}

/// Formats a number with as many digits as papers give, and one more.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_met_stay_so_and_others_say_why() {
        let report = Report::measure().unwrap();
        let text = report.text();
        let wrong = report.values.iter().filter(|row| row.met != row.value.reason.is_empty());
        let wrong: Vec<_> = wrong.map(|row| (row.value.name, row.ours)).collect();
        assert!(wrong.is_empty(), "{wrong:?}\n{text}");
        assert!(text.contains("total injection"), "{text}");
    }

    #[test]
    fn a_model_comes_to_the_same_each_time() {
        let run = || {
            let mut results = Results::default();
            commands::measure(&mut results).unwrap();
            switching::measure(&mut results).unwrap();
            barrier::measure(&mut results).unwrap();
            format!("{results:?}")
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn names_are_unique_and_tolerances_those_of_tables_and_curves() {
        for (i, value) in VALUES.iter().enumerate() {
            assert!(VALUES[..i].iter().all(|other| other.name != value.name), "{}", value.name);
            assert!((0.0..=0.1).contains(&value.tolerance), "{}", value.name);
        }
    }

    #[test]
    fn numbers_have_the_digits_of_papers() {
        assert_eq!(["1.150", "15.02", "318"], [1.15, 15.02, 318.2].map(number)[..]);
    }
}
