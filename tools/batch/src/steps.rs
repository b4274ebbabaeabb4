//! Conditions of steps on the results of earlier ones.

use serde::{Deserialize, Serialize};

use crate::key;

/// A result that a condition tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Judged {
    /// The exit code of the script.
    Exit,
    /// The code of the job manager.
    Manager,
}

/// A comparison with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Comparison {
    Equal,
    Unequal,
    Less,
    AtMost,
    More,
    AtLeast,
}

/// The steps that are not run if a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Without {
    /// This one.
    One,
    /// This one, and those that depend on it.
    After,
    /// This one and all later ones.
    All,
}

/// A condition under which a step is not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) result: Judged,
    pub(crate) comparison: Comparison,
    pub(crate) number: i32,
    /// Further numbers that the result may be equal to.
    #[serde(default)]
    pub(crate) others: Vec<i32>,
    pub(crate) without: Without,
    /// The steps that are tested; the previous one if there are none.
    pub(crate) steps: Vec<u32>,
}

impl Dependency {
    /// Reads `ec!=0:all:1` or `pc==1,6`, or `NONE`, which is no condition.
    pub(crate) fn read(text: &str) -> Result<Option<Self>, ()> {
        let text: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
        if text == "NONE" {
            return Ok(None);
        }
        let mut parts = text.split(':');
        let condition = parts.next().unwrap_or_default();
        let (result, rest) = match condition.split_at_checked(2).ok_or(())? {
            ("ec", rest) => (Judged::Exit, rest),
            ("pc", rest) => (Judged::Manager, rest),
            _ => return Err(()),
        };
        // Longer ones first.
        let comparisons = [
            ("==", Comparison::Equal),
            ("!=", Comparison::Unequal),
            ("<=", Comparison::AtMost),
            (">=", Comparison::AtLeast),
            ("<", Comparison::Less),
            (">", Comparison::More),
        ];
        let read = |(sign, comparison)| Some((rest.strip_prefix(sign)?, comparison));
        let (number, comparison) = comparisons.into_iter().find_map(read).ok_or(())?;
        let numbers = number.split(',').map(|number| key::number(number)?.try_into().map_err(drop));
        let mut numbers = numbers.collect::<Result<Vec<i32>, ()>>()?.into_iter();
        let (number, others) = (numbers.next().ok_or(())?, numbers.collect::<Vec<_>>());
        if !others.is_empty() && !matches!(comparison, Comparison::Equal | Comparison::Unequal) {
            return Err(());
        }
        let without = match parts.next() {
            None | Some("one") => Without::One,
            Some("after") => Without::After,
            Some("all") => Without::All,
            Some(_) => return Err(()),
        };
        let steps = parts.map(key::number).collect::<Result<_, _>>()?;
        Ok(Some(Self { result, comparison, number, others, without, steps }))
    }

    /// Returns true if the condition holds for a step's results.
    pub(crate) fn holds(&self, exit: i32, manager: i32) -> bool {
        let result = match self.result {
            Judged::Exit => exit,
            Judged::Manager => manager,
        };
        match self.comparison {
            Comparison::Equal => result == self.number || self.others.contains(&result),
            Comparison::Unequal => result != self.number && !self.others.contains(&result),
            Comparison::Less => result < self.number,
            Comparison::AtMost => result <= self.number,
            Comparison::More => result > self.number,
            Comparison::AtLeast => result >= self.number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_and_hold() {
        let read = |text: &str| Dependency::read(text).unwrap().unwrap();
        let all = read("ec!=0:all:1:3");
        assert_eq!((all.without, &*all.steps), (Without::All, &[1, 3][..]));
        assert!(all.holds(2, 0) && !all.holds(0, 2));
        assert!(read("pc>=11").holds(0, 11));
        assert!(read("ec < 5 : after").holds(4, 0));
        assert!(read("ec==3").holds(3, 0) && !read("ec>3").holds(3, 0));
        let several = read("ec == 1, 3:all:2");
        assert!(several.holds(1, 0) && several.holds(3, 0) && !several.holds(2, 0));
        assert_eq!((several.without, &*several.steps), (Without::All, &[2][..]));
        assert!(read("pc!=1,6").holds(0, 0) && !read("pc!=1,6").holds(0, 6));
        assert_eq!(Dependency::read("NONE"), Ok(None));
        for text in [
            "",
            "ec",
            "ec=0",
            "ec!=",
            "ec!=x",
            "xx==1",
            "ec==1:some",
            "ec==1:all:x",
            "ec<1,2",
            "ec==1,",
            "é",
        ] {
            assert_eq!(Dependency::read(text), Err(()), "{text}");
        }
    }
}
