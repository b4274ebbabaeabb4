//! Places of memory errors in a device, as users write them.

use std::str::FromStr;

use tofu_machine::EccPlace;

/// The memory of a device in which bits are wrong: `tables`, `buffers` or `router`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EccPlaceName(pub EccPlace);

impl EccPlaceName {
    /// The names.
    pub const NAMES: [&str; 3] = ["tables", "buffers", "router"];
}

impl FromStr for EccPlaceName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(match text {
            "tables" => EccPlace::Tables,
            "buffers" => EccPlace::Buffers,
            "router" => EccPlace::Router,
            _ => return Err("memory of a device is tables, buffers or router"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        for name in EccPlaceName::NAMES {
            let EccPlaceName(place) = name.parse().unwrap();
            assert_eq!(format!("{place:?}").to_lowercase(), name);
        }
        assert!("cache".parse::<EccPlaceName>().is_err());
    }
}
