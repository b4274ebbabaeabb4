//! Numbers of jobs and of the sub jobs that some are made of.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The largest number of a sub job.
pub(crate) const MOST_SUB: u32 = 999_999;

/// Which part of a job it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    /// All of it.
    Whole,
    /// A step.
    Step(u32),
    /// One of many that differ in their number only.
    Bulk(u32),
}

/// A job, or a sub job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) id: u32,
    pub(crate) part: Part,
}

impl Key {
    pub(crate) fn model(self) -> &'static str {
        match self.part {
            Part::Whole => "NM",
            Part::Step(_) => "ST",
            Part::Bulk(_) => "BU",
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        match self.part {
            Part::Whole => write!(f, "{id}"),
            Part::Step(number) => write!(f, "{id}_{number}"),
            Part::Bulk(number) => write!(f, "{id}[{number}]"),
        }
    }
}

/// Jobs that a user names: `12`, `12_1`, `12[3]`, and ranges `12-14`, `12[3-5]`, `12_0-2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    ids: (u32, u32),
    part: Picked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Picked {
    All,
    Steps(u32, u32),
    Bulks(u32, u32),
}

impl Selection {
    pub(crate) fn has(&self, key: Key) -> bool {
        let (first, last) = self.ids;
        let part = match (self.part, key.part) {
            (Picked::All, _) => true,
            (Picked::Steps(first, last), Part::Step(number))
            | (Picked::Bulks(first, last), Part::Bulk(number)) => (first..=last).contains(&number),
            _ => false,
        };
        (first..=last).contains(&key.id) && part
    }
}

impl FromStr for Selection {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if let Some((id, numbers)) = text.split_once('[') {
            let (first, last) = range(numbers.strip_suffix(']').ok_or(())?)?;
            let id = number(id)?;
            return Ok(Self { ids: (id, id), part: Picked::Bulks(first, last) });
        }
        if let Some((id, numbers)) = text.split_once('_') {
            let (first, last) = range(numbers)?;
            let id = number(id)?;
            return Ok(Self { ids: (id, id), part: Picked::Steps(first, last) });
        }
        Ok(Self { ids: range(text)?, part: Picked::All })
    }
}

/// A number, or two with a `-` between them.
pub(crate) fn range(text: &str) -> Result<(u32, u32), ()> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    if first <= last { Ok((first, last)) } else { Err(()) }
}

pub(crate) fn number(text: &str) -> Result<u32, ()> {
    let digits = (1..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().map_err(|_| ()) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn selections_have_jobs() {
        let key = |id, part| Key { id, part };
        let cases = [
            ("12", key(12, Part::Whole), true),
            ("12", key(12, Part::Step(3)), true),
            ("12", key(13, Part::Whole), false),
            ("12-14", key(13, Part::Bulk(1)), true),
            ("12_1", key(12, Part::Step(1)), true),
            ("12_1", key(12, Part::Bulk(1)), false),
            ("12_0-2", key(12, Part::Step(2)), true),
            ("12[3-5]", key(12, Part::Bulk(5)), true),
            ("12[3-5]", key(12, Part::Bulk(6)), false),
        ];
        for (text, key, expected) in cases {
            assert_eq!(text.parse::<Selection>().unwrap().has(key), expected, "{text} {key}");
        }
        for text in ["", "x", "-1", "12[", "12[]", "12[1", "3-2", "12_", "+1", "99999999999"] {
            assert!(text.parse::<Selection>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_key_selects_itself(
            id in 0u32..1_000_000,
            kind in 0usize..3,
            number in 0u32..1_000_000,
        ) {
            let part = [Part::Whole, Part::Step(number), Part::Bulk(number)][kind];
            let key = Key { id, part };
            let selection: Selection = key.to_string().parse().unwrap();
            prop_assert!(selection.has(key));
            let next = Key { id: id + 1, part };
            prop_assert!(!selection.has(next));
        }
    }
}
