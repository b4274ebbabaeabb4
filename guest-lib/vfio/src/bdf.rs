//! Addresses of PCI functions.

use std::fmt;
use std::str::FromStr;

/// Address of a PCI function: domain, bus, device, function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf {
    domain: u32,
    bus: u8,
    /// Device in bits 7:3, function in bits 2:0.
    devfn: u8,
}

impl fmt::Display for Bdf {
    /// `0000:00:02.0`, as sysfs names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{}", self.domain, self.bus, self.devfn >> 3, self.devfn & 7)
    }
}

impl FromStr for Bdf {
    type Err = BadAddress;

    /// Reads `0000:00:02.0`, or `00:02.0` in domain 0.
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
            let plain = text.bytes().all(|b| b.is_ascii_hexdigit());
            (plain && digits.contains(&text.len())).then(|| u32::from_str_radix(text, 16).ok())?
        }
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.split_once(':').unwrap_or(("0000", rest));
            let (device, function) = (hex(device, 2..=2)?, hex(function, 1..=1)?);
            (device < 32 && function < 8).then_some(())?;
            let devfn = (device << 3 | function) as u8;
            Some(Self { domain: hex(domain, 4..=8)?, bus: hex(bus, 2..=2)? as u8, devfn })
        };
        parse().ok_or_else(|| BadAddress(text.to_owned()))
    }
}

/// The text is no address of a PCI function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a PCI address, such as 0000:00:02.0")]
pub struct BadAddress(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_strictly() {
        for text in ["0000:00:02.0", "abcd:ff:1f.7", "10000:e1:00.1"] {
            assert_eq!(text.parse::<Bdf>().unwrap().to_string(), text);
        }
        assert_eq!("00:02.0".parse::<Bdf>().unwrap().to_string(), "0000:00:02.0");
        for bad in [
            "",
            "0000:00:20.0",
            "0000:00:02.8",
            "0:00:02.0",
            "00:2.0",
            "0000:00:02",
            "+000:00:02.0",
            "0000:00:02.0 ",
            "../../etc",
            "0000:0000:02.0",
            "000000000:00:02.0",
            "0000:00:é.0",
        ] {
            let error = bad.parse::<Bdf>().unwrap_err().to_string();
            assert!(error.contains("is not a PCI address"), "{bad}: {error}");
        }
    }
}
