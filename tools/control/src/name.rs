//! Names of machines and nodes.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use tofu_abi::topology::{NodeId, Shape};
use tofu_abi::{Coords, decimal};

use crate::protocol::NodeInfo;

/// The prefix of the names of machines that exist for one run of `tofu run`. The number of the
/// run's process follows.
const OF_A_RUN: &str = "run-";

/// Separates the name of a machine from the number of one of its shards.
const OF_A_SHARD: &str = "-part";

/// Name of a machine, which is also a file name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct MachineName(String);

impl Default for MachineName {
    /// The name if the user gives none.
    fn default() -> Self {
        Self("tofu".to_owned())
    }
}

impl MachineName {
    /// Describes the names that are allowed.
    pub(crate) const ALLOWED: &str = "1 to 32 letters, digits, - and _, and begins with a letter";

    /// Returns the name of the machine that `tofu run` in this process starts for itself.
    pub fn of_this_run() -> Self {
        Self(format!("{OF_A_RUN}{}", std::process::id()))
    }

    /// Returns whether a machine of this name exists for one run, in which case it is only used if
    /// it is named.
    pub fn is_of_a_run(&self) -> bool {
        self.0.starts_with(OF_A_RUN)
    }

    /// Returns the name of the whole machine, for the name `NAME-partI` of a shard; otherwise this
    /// name.
    #[must_use]
    pub(crate) fn of_whole(&self) -> Self {
        let whole =
            self.0.rsplit_once(OF_A_SHARD).filter(|(_, shard)| decimal::<u16>(shard).is_some());
        whole.map_or_else(|| self.clone(), |(whole, _)| Self(whole.to_owned()))
    }

    /// Returns the name of a shard of the machine of this name.
    ///
    /// # Errors
    ///
    /// The rules for names, if the result is too long.
    pub fn of_shard(&self, shard: u16) -> Result<Self, &'static str> {
        format!("{self}{OF_A_SHARD}{shard}").parse()
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MachineName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let letter = text.starts_with(|c: char| c.is_ascii_alphabetic());
        let known = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if letter && known && text.len() <= 32 {
            Ok(Self(text.to_owned()))
        } else {
            Err(Self::ALLOWED)
        }
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the name of the node at these coordinates, such as `t-0-0-0-0-0-0`.
pub fn node_name(at: Coords) -> String {
    format!("t-{}", at.separated('-'))
}

/// A name of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeName {
    /// By its number.
    Index(u32),
    /// By its coordinates.
    At(Coords),
}

impl NodeName {
    /// Parses an index, coordinates with or without parentheses, or a name such as `t-0-0-0-0-0-0`.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(index) = decimal(text) {
            return Some(Self::Index(index));
        }
        let at = match text.strip_prefix("t-") {
            Some(name) => Coords::from_decimals(name.split('-')),
            None => {
                let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
                Coords::from_decimals(inner.unwrap_or(text).split(',').map(str::trim))
            }
        };
        at.map(Self::At)
    }

    /// Returns its coordinates in a machine of this shape.
    pub fn at(self, shape: &Shape) -> Option<Coords> {
        match self {
            Self::Index(index) => shape.coords(NodeId(index)),
            Self::At(at) => Some(at).filter(|at| shape.contains(*at)),
        }
    }

    /// Returns whether it refers to this node.
    pub(crate) fn means(self, node: &NodeInfo) -> bool {
        match self {
            Self::Index(index) => node.index == index,
            Self::At(at) => node.at == at.to_array(),
        }
    }
}

/// A node of a machine, by its coordinates on a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAt(pub Coords);

impl FromStr for NodeAt {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match NodeName::parse(text) {
            Some(NodeName::At(at)) => Ok(Self(at)),
            _ => Err("coordinates such as 0,0,0,0,0,0 or a name such as t-0-0-0-0-0-0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_several_names() {
        assert_eq!(NodeName::parse("11"), Some(NodeName::Index(11)));
        let at = Some(NodeName::At(Coords::new(1, 0, 0, 1, 2, 0)));
        for text in ["1,0,0,1,2,0", "t-1-0-0-1-2-0", "(1,0,0,1,2,0)", "1, 0, 0, 1, 2, 0"] {
            assert_eq!(NodeName::parse(text), at, "{text}");
        }
        for text in ["", "-1", "+1", "1,0,0,1,2", "1,0,0,1,2,0,0", "1,0,0,1,2,256", "t-1", "x"] {
            assert_eq!(NodeName::parse(text), None, "{text}");
            assert!(text.parse::<NodeAt>().is_err(), "{text}");
        }
        assert_eq!("(1,2,3,0,2,1)".parse(), Ok(NodeAt(Coords::new(1, 2, 3, 0, 2, 1))));
        assert!("11".parse::<NodeAt>().is_err());
    }

    #[test]
    fn shards_are_called_after_their_machine() {
        let name = |text: &str| text.parse::<MachineName>().unwrap();
        assert_eq!(name("demo").of_shard(12).unwrap(), name("demo-part12"));
        assert_eq!(name("demo-part12").of_whole(), name("demo"));
        for text in ["demo", "demo-part", "demo-partx", "part1"] {
            assert_eq!(name(text).of_whole(), name(text));
        }
        assert!(name(&"x".repeat(30)).of_shard(0).is_err());
    }

    #[test]
    fn machines_have_names_of_files() {
        assert!("a-machine_2".parse::<MachineName>().is_ok());
        for text in ["", "..", "a/b", "2a", "-a", "a b", "ü", &"x".repeat(33)] {
            assert_eq!(text.parse::<MachineName>(), Err(MachineName::ALLOWED), "{text}");
        }
    }
}
