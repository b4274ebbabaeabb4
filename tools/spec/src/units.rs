//! Values written in the same way in the machine file and on the command line.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tofu_abi::decimal;
use tofu_fabric::{ShardId, Shards};
use tofu_ipotofu::Config;
use tofu_machine::{Generation, Links};
use tofu_ui::not_allowed;

use crate::faults::FaultSpec;

pub use tofu_machine::Interconnect;

/// A type whose values are a few words, on the command line and in machine files.
pub trait Choice: Copy + FromStr<Err = &'static str> + 'static {
    /// The values, with their words, and what they mean for users.
    const ALL: &'static [(Self, &'static str, &'static str)];
}

/// Defines a [`Choice`](crate::units::Choice): its name, the default, the text that lists the
/// allowed values, and the values with their words.
#[macro_export]
macro_rules! choices {
    (
        #[doc = $about:literal]
        $name:ident, $default:ident, $allowed:literal:
        $(#[doc = $help:literal] $value:ident = $word:literal,)+
    ) => {
        #[doc = $about]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = $help] $value,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self::$default
            }
        }

        impl $crate::units::Choice for $name {
            const ALL: &'static [(Self, &'static str, &'static str)] =
                &[$((Self::$value, $word, $help)),+];
        }

        impl $name {
            /// Returns the word for it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }
        }

        impl std::str::FromStr for $name {
            type Err = &'static str;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let all = <Self as $crate::units::Choice>::ALL;
                let named = all.iter().find(|(_, word, _)| *word == text);
                named.map(|(value, ..)| *value).ok_or($allowed)
            }
        }
    };
}

/// Guest memory of a node in bytes: 2 MiB to 1 TiB in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct MemorySize(pub u64);

impl MemorySize {
    /// For a node without an operating system.
    pub const DEFAULT: Self = Self(16 << 20);
    /// The host's memory that a node without an operating system takes besides its guest's file:
    /// KVM, a thread, the device, and the first pages of the guest. Measured.
    pub(crate) const OVERHEAD: Self = Self(1 << 20);
    /// For a Linux node.
    pub const LINUX_DEFAULT: Self = Self(256 << 20);
    /// The least memory for a Linux node, for any kernel and initramfs.
    pub(crate) const LINUX_LEAST: Self = Self(80 << 20);
    pub(crate) const ALLOWED: &str = "a whole number with KiB, MiB or GiB, such as \"16MiB\", \
                                      from 2MiB to 1024GiB, in 4KiB steps";
}

impl FromStr for MemorySize {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
        let bytes = units
            .iter()
            .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
            .and_then(|(number, shift)| decimal::<u64>(number)?.checked_mul(1 << shift))
            .filter(|bytes| (2 << 20..=1 << 40).contains(bytes) && bytes.is_multiple_of(4096));
        bytes.map(Self).ok_or(Self::ALLOWED)
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, shift) = [("GiB", 30), ("MiB", 20)]
            .into_iter()
            .find(|(_, shift)| self.0.trailing_zeros() >= *shift)
            .unwrap_or(("KiB", 10));
        write!(f, "{}{unit}", self.0 >> shift)
    }
}

/// The time limit for a run: 1 ms to 24 h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(pub Duration);

impl Timeout {
    /// The timeout unless the user says otherwise.
    pub const DEFAULT: Self = Self(Duration::from_secs(60));
    /// The longest one.
    pub const LONGEST: Self = Self(Duration::from_secs(24 * 3600));
    pub(crate) const ALLOWED: &str =
        "a whole number of seconds, or with ms, s, m or h, such as \"30s\", from 1ms to 24h";
}

impl Default for Timeout {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TryFrom<i64> for Timeout {
    type Error = &'static str;

    fn try_from(seconds: i64) -> Result<Self, Self::Error> {
        seconds.to_string().parse()
    }
}

impl FromStr for Timeout {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // "ms" comes before "m", with which it starts, and "s", with which it ends.
        let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
        let millis = units
            .iter()
            .find_map(|(unit, millis)| Some((text.strip_suffix(unit)?, *millis)))
            .or(Some((text, 1000)))
            .and_then(|(number, millis)| decimal::<u64>(number)?.checked_mul(millis))
            .filter(|millis| (1..=86_400_000).contains(millis));
        millis.map(|millis| Self(Duration::from_millis(millis))).ok_or(Self::ALLOWED)
    }
}

/// Number of engine threads that move data: 1 to 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engines(pub NonZeroU32);

/// The address at which metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsAddress(pub SocketAddr);

impl FromStr for MetricsAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = "an IP address and a port, such as \"127.0.0.1:9400\"";
        text.parse().map(Self).map_err(|_| allowed)
    }
}

/// One shard of a machine, and the number of shards: `0/2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOf {
    /// The shard, from 0.
    pub shard: ShardId,
    /// The number of shards.
    pub of: u32,
}

impl FromStr for ShardOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = || {
            format!(
                "a shard is I/N, such as 0/2, with I from 0 on and below N, and N at most {}",
                Shards::MOST
            )
        };
        let (shard, of) = text.split_once('/').ok_or_else(allowed)?;
        let (shard, of) = decimal::<u16>(shard).zip(decimal::<u32>(of)).ok_or_else(allowed)?;
        if u32::from(shard) >= of || of > Shards::MOST {
            return Err(allowed());
        }
        Ok(Self { shard: ShardId(shard), of })
    }
}

impl fmt::Display for ShardOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.shard, self.of)
    }
}

/// Virtual processors of a Linux node: 1 to 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Cpus(pub u32);

impl Cpus {
    /// The number unless the user says otherwise.
    pub const DEFAULT: Self = Self(1);
}

/// Name of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName(String);

impl ImageName {
    pub(crate) const ALLOWED: &str = "1 to 64 letters, digits, and . _ + - after the first";

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ImageName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The library checks the rules.
        let fits = tofu_image::Spec::new(text).is_ok();
        fits.then(|| Self(text.to_owned())).ok_or(Self::ALLOWED)
    }
}

/// Text appended to a guest's command line.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct GuestArgs(pub String);

impl GuestArgs {
    pub(crate) const ALLOWED: &str = "at most 1024 printable ASCII characters";
}

impl FromStr for GuestArgs {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if printable && text.len() <= 1024 { Ok(Self(text.to_owned())) } else { Err(Self::ALLOWED) }
    }
}

choices! {
    /// The way doorbell writes reach the device.
    Doorbell, Auto, "\"trapped\", \"polled\" or \"auto\"":
    /// Each doorbell write leaves the guest; engines sleep until one comes
    Trapped = "trapped",
    /// Doorbells are shared memory that engines watch; nothing leaves the guest
    Polled = "polled",
    /// Choose what suits this host and the number of nodes
    Auto = "auto",
}

impl Serialize for Doorbell {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

choices! {
    /// The way packets go over the links of a machine.
    LinkMode, Direct, "\"direct\" or \"modelled\"":
    /// At once, without buffers
    Direct = "direct",
    /// As frames with credits, in modelled time
    Modelled = "modelled",
}

impl LinkMode {
    /// Returns the link model of a machine.
    pub const fn links(self) -> Links {
        match self {
            Self::Direct => Links::Direct,
            Self::Modelled => Links::Modelled,
        }
    }
}

choices! {
    /// The clock of a machine.
    Time, Host, "\"host\" or \"modelled\"":
    /// The host's
    Host = "host",
    /// That of the models of devices and network, which QEMU keeps its guests in
    Modelled = "modelled",
}

/// The least step of a guest in modelled time, in nanoseconds: 1 to 1,000,000,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantum(pub u64);

/// The modelled time of an instruction of a guest, in nanoseconds: 0.1 to 100, in steps of 0.001.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionTime(u64);

impl InstructionTime {
    pub(crate) const ALLOWED: &str = "a number of nanoseconds from 0.1 to 100, such as 0.3";

    /// In picoseconds.
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// The frequency of a clock that ticks with each instruction, in kHz.
    pub const fn clock_khz(self) -> u32 {
        (1_000_000_000 / self.0) as u32
    }
}

/// Three instructions in two cycles of an A64FX at its 2.2 GHz. *Fitted*: `tofu sim measured`
/// agrees best with Fugaku then.
impl Default for InstructionTime {
    fn default() -> Self {
        Self(300)
    }
}

impl TryFrom<f64> for InstructionTime {
    type Error = &'static str;

    fn try_from(ns: f64) -> Result<Self, Self::Error> {
        let ps = (ns * 1000.0).round();
        if (100.0..=100_000.0).contains(&ps) { Ok(Self(ps as u64)) } else { Err(Self::ALLOWED) }
    }
}

impl FromStr for InstructionTime {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<f64>().map_err(|_| Self::ALLOWED)?.try_into()
    }
}

impl fmt::Display for InstructionTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 as f64 / 1000.0)
    }
}

/// The point at which the time of a machine in modelled time stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// At a time, in picoseconds.
    Time(u64),
    /// Once a node has started a command.
    Command {
        /// The number of the node.
        node: u32,
        /// The number of the command, counted from 1.
        number: u64,
    },
}

/// A modelled time in milliseconds, as far as there are digits.
pub fn milliseconds(ps: u64) -> String {
    let text = format!("{}.{:09}", ps / 1_000_000_000, ps % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Until {
    pub(crate) const ALLOWED: &str = "a modelled time of up to 100 days, such as 250ms, 1.5s or \
                                      812345.4us, or a command, such as 'node 3 command 1234'";
    const MOST: u64 = 100 * 24 * 3600 * 1_000_000_000_000;

    /// Picoseconds of a number with a unit. No digit is lost.
    fn time(text: &str) -> Option<u64> {
        let units = [("ps", 0), ("ns", 3), ("us", 6), ("ms", 9), ("s", 12)];
        let (number, digits) =
            units.iter().find_map(|(unit, digits)| Some((text.strip_suffix(unit)?, *digits)))?;
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let part = part.trim_end_matches('0');
        if !is_number(whole) || part.len() > digits || !is_number(&format!("0{part}")) {
            return None;
        }
        let whole = whole.parse::<u64>().ok()?.checked_mul(10u64.pow(digits as u32))?;
        let part = format!("{part:0<digits$}");
        let part = if digits == 0 { 0 } else { part.parse().ok()? };
        whole.checked_add(part).filter(|ps| (1..=Self::MOST).contains(ps))
    }

    fn command(text: &str) -> Option<Self> {
        let words: Vec<_> = text.split_ascii_whitespace().collect();
        let ["node", node, "command", number] = words[..] else { return None };
        let number = number.parse().ok().filter(|number| *number > 0)?;
        Some(Self::Command { node: node.parse().ok()?, number })
    }
}

impl FromStr for Until {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let time = Self::time(text).map(Self::Time);
        time.or_else(|| Self::command(text)).ok_or(Self::ALLOWED)
    }
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(ps) => write!(f, "{}ms", milliseconds(*ps)),
            Self::Command { node, number } => write!(f, "node {node} command {number}"),
        }
    }
}

choices! {
    /// The owner of the device in Linux nodes.
    Driver, Auto, "\"tofu\", \"vfio\" or \"auto\"":
    /// The kernel driver if there is an image with it, otherwise VFIO
    Auto = "auto",
    /// The kernel driver, tofu.ko
    Tofu = "tofu",
    /// Programs, by VFIO
    Vfio = "vfio",
}

choices! {
    /// Which of QEMU's processors a node for 64-bit Arm has.
    ArmCpu, A64fx, "\"a64fx\" or \"max\"":
    /// Fugaku's, with SVE of 512 bits
    A64fx = "a64fx",
    /// All that QEMU has
    Max = "max",
}

choices! {
    /// Where a node's guest or kernel comes from.
    BootFrom, Monitor, "\"monitor\" or \"tofu\"":
    /// The machine monitor puts it into the node's memory
    Monitor = "monitor",
    /// The node fetches it from a boot server, over the torus
    Tofu = "tofu",
}

choices! {
    /// A monitor for Linux nodes.
    Vmm, Auto, "\"auto\", \"tofu\" or \"qemu\"":
    /// Our own, with hardware virtualisation and without --net; otherwise QEMU
    Auto = "auto",
    /// Our own; needs hardware virtualisation
    Tofu = "tofu",
    /// QEMU; emulates the processor where there is no hardware virtualisation
    Qemu = "qemu",
}

choices! {
    /// A network between Linux nodes besides Tofu.
    Net, None, "\"none\" or \"lan\"":
    /// None
    None = "none",
    /// All Linux nodes are on one Ethernet
    Lan = "lan",
}

choices! {
    /// True if there is an interface on the host.
    TapWhen, Auto, "\"auto\", \"on\" or \"off\"":
    /// If this process has CAP_NET_ADMIN
    Auto = "auto",
    /// Always; it is an error if it cannot be created
    On = "on",
    /// Never
    Off = "off",
}

choices! {
    /// Faults of a boot server, for tests.
    BootFault, None, "\"none\", \"corrupt\" or \"silent\"":
    /// None
    None = "none",
    /// Changes a byte of each file
    Corrupt = "corrupt",
    /// Answers no more half-way
    Silent = "silent",
}

/// Returns the generation of Tofu of this name.
///
/// # Errors
///
/// If there is none, with the allowed names.
pub fn generation(name: &str) -> Result<Generation, &'static str> {
    Generation::from_name(name).ok_or(Generation::NAMES)
}

/// Number of a machine in IP addresses: 0 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IpNumber(pub u8);

/// Largest IP packet between nodes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mtu(pub u16);

impl Default for Mtu {
    fn default() -> Self {
        Self(1500)
    }
}

/// Implements reading of values that are whole numbers of a range in a machine file, and text on
/// the command line.
macro_rules! from_number {
    ($($unit:ident, $range:expr, $make:expr, $allowed:literal;)*) => { $(
        impl $unit {
            pub(crate) const ALLOWED: &str = $allowed;
        }

        impl TryFrom<i64> for $unit {
            type Error = &'static str;

            fn try_from(number: i64) -> Result<Self, Self::Error> {
                let number = Some(number).filter(|number| $range.contains(number));
                number.and_then($make).ok_or(Self::ALLOWED)
            }
        }

        impl FromStr for $unit {
            type Err = &'static str;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse::<i64>().map_err(|_| Self::ALLOWED)?.try_into()
            }
        }
    )* };
}

from_number! {
    Engines, (1..=256), |number| NonZeroU32::new(number as u32).map(Self),
    "a whole number of threads from 1 to 256";

    Cpus, (1..=16), |number| Some(Self(number as u32)),
    "a whole number of processors from 1 to 16";

    Quantum, (1..=1_000_000_000), |number| Some(Self(number as u64)),
    "a whole number of nanoseconds from 1 to 1000000000";

    IpNumber, (0..=7), |number| Some(Self(number as u8)),
    "a whole number from 0 to 7";

    Mtu, (Config::MIN_MTU as i64..=Config::MAX_MTU as i64), |number| Some(Self(number as u16)),
    "a whole number of bytes from 1280 to 65521";
}

/// Implements reading from a machine file, where a value is of this TOML type.
macro_rules! in_files {
    ($($unit:ty: $written:ty),* $(,)?) => { $(
        impl<'de> Deserialize<'de> for $unit {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let written = <$written>::deserialize(from)?;
                Self::from_file(&written).map_err(not_allowed)
            }
        }
    )* };
}

/// A value in a machine file: text, a number, or either.
trait Written<T> {
    type Allowed: fmt::Display;

    fn from_file(written: &T) -> Result<Self, Self::Allowed>
    where
        Self: Sized;
}

impl<T: FromStr<Err: fmt::Display>> Written<String> for T {
    type Allowed = T::Err;

    fn from_file(written: &String) -> Result<Self, Self::Allowed> {
        written.parse()
    }
}

impl<T: TryFrom<i64, Error: fmt::Display>> Written<i64> for T {
    type Allowed = T::Error;

    fn from_file(written: &i64) -> Result<Self, Self::Allowed> {
        (*written).try_into()
    }
}

/// A duration in a machine file: text with a unit, or a number of seconds.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text such as \"30s\", or a number of seconds")]
enum TextOrSeconds {
    Text(String),
    Seconds(i64),
}

impl Written<TextOrSeconds> for Timeout {
    type Allowed = &'static str;

    fn from_file(written: &TextOrSeconds) -> Result<Self, Self::Allowed> {
        match written {
            TextOrSeconds::Text(text) => text.parse(),
            TextOrSeconds::Seconds(seconds) => (*seconds).try_into(),
        }
    }
}

impl Written<f64> for InstructionTime {
    type Allowed = &'static str;

    fn from_file(written: &f64) -> Result<Self, Self::Allowed> {
        (*written).try_into()
    }
}

in_files! {
    ArmCpu: String,
    BootFrom: String,
    Cpus: i64,
    Doorbell: String,
    Driver: String,
    Engines: i64,
    FaultSpec: String,
    GuestArgs: String,
    ImageName: String,
    InstructionTime: f64,
    IpNumber: i64,
    LinkMode: String,
    MemorySize: String,
    MetricsAddress: String,
    Mtu: i64,
    Quantum: i64,
    Time: String,
    Timeout: TextOrSeconds,
    Until: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ends_of_modelled_time() {
        for (text, ps) in [
            ("250ms", 250_000_000_000),
            ("1.5s", 1_500_000_000_000),
            ("812345.4us", 812_345_400_000),
            ("0.001ns", 1),
            ("7ps", 7),
            ("1.10s", 1_100_000_000_000),
            ("8640000s", 8_640_000_000_000_000_000),
        ] {
            let until = Until::Time(ps);
            assert_eq!(text.parse(), Ok(until), "{text}");
            assert_eq!(until.to_string().parse(), Ok(until), "{until}");
        }
        let command = Until::Command { node: 3, number: 1234 };
        assert_eq!("node 3 command 1234".parse(), Ok(command));
        assert_eq!(command.to_string().parse(), Ok(command));
        for text in [
            "",
            "1",
            "s",
            "0s",
            "-1s",
            "+1s",
            "1.s.s",
            ".5s",
            "1,5s",
            "1 s",
            "0.5ps",
            "0.0001ns",
            "8640001s",
            "99999999999999999999s",
            "node 3",
            "node 3 command 0",
            "node -1 command 1",
            "node 3 command 1 2",
            "command 1",
            "node 3 commands 1",
            "1e3s",
            "1.+5s",
        ] {
            assert_eq!(text.parse::<Until>(), Err(Until::ALLOWED), "{text}");
        }
    }

    proptest! {
        #[test]
        fn milliseconds_lose_no_digit(ps in 1..1u64 << 60) {
            prop_assert_eq!(format!("{}ms", milliseconds(ps)).parse(), Ok(Until::Time(ps)));
        }
    }

    #[test]
    fn memory_sizes() {
        let good =
            [("16MiB", 16 << 20), ("2048KiB", 2 << 20), ("1GiB", 1 << 30), ("1024GiB", 1 << 40)];
        for (text, bytes) in good {
            assert_eq!(text.parse(), Ok(MemorySize(bytes)), "{text}");
        }
        for text in [
            "",
            "16",
            "MiB",
            "16 MiB",
            "16MB",
            "-16MiB",
            "+16MiB",
            "1.5GiB",
            "1MiB",
            "2049KiB",
            "1025GiB",
            "99999999999999999999GiB",
            "18014398509481984KiB",
        ] {
            assert_eq!(text.parse::<MemorySize>(), Err(MemorySize::ALLOWED), "{text}");
        }
    }

    #[test]
    fn timeouts() {
        for (text, millis) in
            [("30s", 30_000), ("30", 30_000), ("1ms", 1), ("2m", 120_000), ("24h", 86_400_000)]
        {
            assert_eq!(text.parse(), Ok(Timeout(Duration::from_millis(millis))), "{text}");
        }
        for text in [
            "",
            "0",
            "90000",
            "s",
            "0s",
            "1.5s",
            "-1s",
            "25h",
            "1d",
            "1 s",
            "99999999999999999999s",
        ] {
            assert_eq!(text.parse::<Timeout>(), Err(Timeout::ALLOWED), "{text}");
        }
    }

    #[test]
    fn engines_and_args() {
        assert_eq!("256".parse::<Engines>().map(|e| e.0.get()), Ok(256));
        for text in ["0", "257", "-1", "two", "4294967297"] {
            assert_eq!(text.parse::<Engines>(), Err(Engines::ALLOWED), "{text}");
        }
        assert!("rounds=3 verify".parse::<GuestArgs>().is_ok());
        assert_eq!("7".parse(), Ok(IpNumber(7)));
        for text in ["8", "-1", "one"] {
            assert_eq!(text.parse::<IpNumber>(), Err(IpNumber::ALLOWED), "{text}");
        }
        assert_eq!("65521".parse(), Ok(Mtu(65521)));
        for text in ["1279", "65522", "66816", "big"] {
            assert_eq!(text.parse::<Mtu>(), Err(Mtu::ALLOWED), "{text}");
        }
        assert_eq!("16".parse::<Cpus>(), Ok(Cpus(16)));
        for text in ["0", "17", "-1", "two"] {
            assert_eq!(text.parse::<Cpus>(), Err(Cpus::ALLOWED), "{text}");
        }
        assert!("iperf3+mpich".parse::<ImageName>().is_ok());
        for text in ["", "+a", "a/b", &"x".repeat(65)] {
            assert_eq!(text.parse::<ImageName>(), Err(ImageName::ALLOWED), "{text}");
        }
        for text in ["a\nb", "ü", &"x".repeat(1025)] {
            assert_eq!(text.parse::<GuestArgs>(), Err(GuestArgs::ALLOWED), "{text}");
        }
    }

    proptest! {
        /// The displayed form can be parsed.
        #[test]
        fn memory_size_round_trips(pages in 512u64..=1 << 28) {
            let size = MemorySize(pages * 4096);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }
    }

    #[test]
    fn shards_are_numbered_from_zero() {
        let shard: ShardOf = "3/4".parse().unwrap();
        assert_eq!((shard.shard, shard.of, shard.to_string()), (ShardId(3), 4, "3/4".to_owned()));
        for bad in ["3/2", "2/2", "0/0", "1", "/2", "1/", "-1/2", "+1/2", "0/4097", "0/2/3"] {
            let why = bad.parse::<ShardOf>().unwrap_err();
            assert!(why.contains("such as 0/2"), "{bad}: {why}");
        }
    }
}
