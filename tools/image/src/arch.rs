//! Processors of guests.

use std::fmt;
use std::str::FromStr;

use object::elf;
use serde::{Deserialize, Serialize};

/// The processors of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Arch {
    /// x86-64, as the host has.
    #[default]
    #[serde(rename = "x86-64")]
    X86_64,
    /// 64-bit Arm, as Fugaku has; emulated by QEMU.
    #[serde(rename = "arm64")]
    Arm64,
}

impl Arch {
    /// All, the default one first.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Arm64];

    /// Its name for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::Arm64 => "arm64",
        }
    }

    /// The processors that the ELF file `bytes` is for; `None` if it is not an ELF file, or for
    /// neither.
    pub fn of_elf(bytes: &[u8]) -> Option<Self> {
        const CLASS_AND_ORDER: &[u8] = b"\x7fELF\x02\x01";
        let machine = bytes.strip_prefix(CLASS_AND_ORDER)?.get(12..14)?;
        match elf::Machine(u16::from_le_bytes(machine.try_into().ok()?)) {
            elf::EM_X86_64 => Some(Self::X86_64),
            elf::EM_AARCH64 => Some(Self::Arm64),
            _ => None,
        }
    }

    /// Its name in Debian.
    pub(crate) const fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The suffix of its files' names in the cache.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::X86_64 => "",
            Self::Arm64 => "-arm64",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Arch {
    /// What is allowed.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|arch| arch.name() == text);
        named.ok_or("\"x86-64\" or \"arm64\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_say_what_they_are_for() {
        let file = |machine: u16| {
            let mut bytes = vec![0; 64];
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            bytes[18..20].copy_from_slice(&machine.to_le_bytes());
            bytes
        };
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(Arch::of_elf(&own), Some(Arch::X86_64));
        assert_eq!(Arch::of_elf(&file(183)), Some(Arch::Arm64));
        assert_eq!(Arch::of_elf(&file(243)), None);
        assert_eq!(Arch::of_elf(&file(183)[..19]), None);
        assert_eq!(Arch::of_elf(b"#!/bin/sh"), None);
    }

    #[test]
    fn names_are_read() {
        for arch in Arch::ALL {
            assert_eq!(arch.to_string().parse(), Ok(arch));
        }
        assert_eq!("sparc".parse::<Arch>(), Err("\"x86-64\" or \"arm64\""));
    }
}
