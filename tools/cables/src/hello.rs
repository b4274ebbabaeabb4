//! What parts tell each other before and besides packets.

use serde::{Deserialize, Serialize};

/// Version of what goes over cables. Parts whose versions differ do not join.
const PROTOCOL: u32 = 1;

/// What a part says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// Version of what goes over cables.
    pub protocol: u32,
    /// Version of the command.
    pub tofu: String,
    /// Name of the machine.
    pub machine: String,
    /// Lengths of its axes, and which wrap round, as on the command line.
    pub shape: String,
    /// Its generation.
    pub generation: String,
    /// Number of the part.
    pub part: u16,
    /// How many parts there are.
    pub parts: u32,
    /// Its process.
    pub pid: u32,
}

impl Hello {
    /// That of this process.
    pub fn new(machine: &str, shape: &str, generation: &str, (part, parts): (u16, u32)) -> Self {
        Self {
            protocol: PROTOCOL,
            tofu: env!("CARGO_PKG_VERSION").to_owned(),
            machine: machine.to_owned(),
            shape: shape.to_owned(),
            generation: generation.to_owned(),
            part,
            parts,
            pid: std::process::id(),
        }
    }

    /// Why another part does not fit to this one, if it does not: one line that names both.
    pub(crate) fn refuses(&self, other: &Self) -> Option<String> {
        let parts = format!("{}/{}", self.part, self.parts);
        let others = format!("{}/{}", other.part, other.parts);
        let fields = [
            ("protocol", self.protocol.to_string(), other.protocol.to_string()),
            ("version", self.tofu.clone(), other.tofu.clone()),
            ("machine", self.machine.clone(), other.machine.clone()),
            ("shape", self.shape.clone(), other.shape.clone()),
            ("generation", self.generation.clone(), other.generation.clone()),
            ("number of parts", self.parts.to_string(), other.parts.to_string()),
        ];
        let (what, own, its) = fields.into_iter().find(|(_, own, its)| own != its)?;
        Some(format!("part {parts} has {what} {own}, part {others} has {what} {its}"))
    }
}

/// What a part says of its guests, or of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartStatus {
    /// All of them have ended; so many have failed.
    Ended {
        /// Guests that have failed.
        failed: u32,
    },
    /// The machine is to end.
    Down,
}

/// What goes before the packets: one of these from each end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Greeting {
    Hello(Hello),
    /// That part does not fit: why.
    Refused(String),
    /// It does.
    Welcome,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_with_both_parts() {
        let own = Hello::new("here", "1x1x1x2x3x2", "fugaku", (0, 2));
        let other = Hello { part: 1, pid: 7, ..own.clone() };
        assert_eq!(own.refuses(&other), None);
        let newer = Hello { tofu: "9.9.9".to_owned(), ..other.clone() };
        let line = own.refuses(&newer).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!("part 0/2 has version {version}, part 1/2 has version 9.9.9");
        assert_eq!(line, expected);
        let shape = Hello { shape: "2x1x1x1x1x1".to_owned(), ..other };
        let line = own.refuses(&shape).unwrap();
        assert!(line.contains("1x1x1x2x3x2") && line.contains("2x1x1x1x1x1"), "{line}");
    }
}
