//! Messages between shards that are not packets.

use serde::{Deserialize, Serialize};

/// Version of the protocol on cables. Shards whose versions differ do not join.
const PROTOCOL: u32 = 3;
/// The most characters of another shard's text that are shown.
const MOST_SHOWN: usize = 200;

/// A shard's first message. Other versions may send more or fewer fields, and must be refused with
/// an error that names their version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the protocol on cables.
    pub protocol: u32,
    /// Version of the command.
    pub tofu: String,
    /// Name of the machine.
    pub machine: String,
    /// Settings that must be the same for all shards: names and values, in the same order. They
    /// have no meaning here.
    #[serde(default)]
    pub same: Vec<(String, String)>,
    /// Number of the shard.
    #[serde(rename = "part")]
    pub shard: u16,
    /// Number of shards of the machine.
    #[serde(rename = "parts")]
    pub shards: u32,
    /// The process ID.
    pub pid: u32,
}

impl Hello {
    /// The greeting of this process.
    pub fn new(machine: &str, (shard, shards): (u16, u32), same: Vec<(String, String)>) -> Self {
        Self {
            protocol: PROTOCOL,
            tofu: env!("CARGO_PKG_VERSION").to_owned(),
            machine: machine.to_owned(),
            same,
            shard,
            shards,
            pid: std::process::id(),
        }
    }

    /// The reason for which another shard does not match this one, if any: one line that names
    /// both.
    pub(crate) fn refuses(&self, other: &Self) -> Option<String> {
        let shards = format!("{}/{}", self.shard, self.shards);
        let others = format!("{}/{}", other.shard, other.shards);
        let fields = [
            ("protocol", self.protocol.to_string(), other.protocol.to_string()),
            ("version", self.tofu.clone(), other.tofu.clone()),
            ("machine", self.machine.clone(), other.machine.clone()),
            ("number of shards", self.shards.to_string(), other.shards.to_string()),
        ];
        let (what, own, its) = match fields.iter().find(|(_, own, its)| own != its) {
            Some((what, own, its)) => (*what, &own[..], &its[..]),
            None => self.differs(other)?,
        };
        let (own, its) = (shown(own), shown(its));
        Some(format!("shard {shards} has {what} {own}, shard {others} has {what} {its}"))
    }

    /// The first setting that must be the same and is not.
    fn differs<'a>(&'a self, other: &'a Self) -> Option<(&'a str, &'a str, &'a str)> {
        let value = |of: &'a Self, what: &str| {
            of.same.iter().find(|(name, _)| name == what).map_or("", |(_, value)| value)
        };
        let names = self.same.iter().map(|(name, _)| &name[..]);
        let differ = |what: &&str| value(self, what) != value(other, what);
        if let Some(what) = names.clone().find(differ) {
            return Some((what, value(self, what), value(other, what)));
        }
        // Both shards have the same version, so only a dishonest shard causes this.
        let same = self.same == other.same;
        (!same).then_some(("properties", "that are known", "that are not"))
    }
}

/// Another shard's text, fit to be shown: one line without control characters.
pub(crate) fn shown(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let mut clean: String = clean.take(MOST_SHOWN + 1).collect();
    if clean.chars().count() > MOST_SHOWN {
        clean.pop();
        clean.push_str("...");
    }
    match clean.is_empty() {
        true => "none".to_owned(),
        false => clean,
    }
}

/// A shard's report of its guests, or of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShardStatus {
    /// Its devices exist. Each shard reports this first.
    Here,
    /// All of its guests have ended.
    Ended {
        /// Number of guests that have failed.
        failed: u32,
    },
    /// The machine must end.
    Down,
}

/// The exchange before the packets. Each end sends one of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Greeting {
    Hello(Hello),
    /// The other shard does not match. The line says why.
    Refused(String),
    /// Another live process holds that shard. The line names that process.
    Taken(String),
    /// The other shard must wait, because this one connects to it.
    Later,
    /// The other shard matches.
    Welcome,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_both_shards() {
        let same = |shape: &str| vec![("shape".to_owned(), shape.to_owned())];
        let own = Hello::new("here", (0, 2), same("1x1x1x2x3x2"));
        let other = Hello { shard: 1, pid: 7, ..own.clone() };
        assert_eq!(own.refuses(&other), None);
        let newer = Hello { tofu: "9.9.9".to_owned(), ..other.clone() };
        let line = own.refuses(&newer).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!("shard 0/2 has version {version}, shard 1/2 has version 9.9.9");
        assert_eq!(line, expected);
        let shape = Hello { same: same("2x1x1x1x1x1"), ..other.clone() };
        assert_eq!(
            own.refuses(&shape).unwrap(),
            "shard 0/2 has shape 1x1x1x2x3x2, shard 1/2 has shape 2x1x1x1x1x1"
        );
        let first = r#"{"protocol":1,"tofu":"0","machine":"here","shape":"k","generation":"k",
            "part":1,"parts":2,"pid":7}"#;
        let line = own.refuses(&serde_json::from_str(first).unwrap()).unwrap();
        assert_eq!(line, format!("shard 0/2 has protocol {PROTOCOL}, shard 1/2 has protocol 1"));
        let none = Hello { same: Vec::new(), ..other.clone() };
        assert!(own.refuses(&none).unwrap().ends_with("shard 1/2 has shape none"));
        assert!(none.refuses(&own).is_some());
        let bad = Hello { same: same(&"\n\x1b".repeat(5000)), ..other };
        let line = own.refuses(&bad).unwrap();
        assert!(line.len() < 1000 && !line.contains(char::is_control), "{line}");
    }
}
