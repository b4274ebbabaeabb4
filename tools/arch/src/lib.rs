//! The processors of guests and of programs: their names, and the processor of an ELF file.
//!
//! A separate crate, because both the command and the agent (a small program in each node) need it.
#![forbid(unsafe_code)]

use std::env::consts;
use std::fmt;
use std::str::FromStr;

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

    /// Its number in ELF files (`e_machine`).
    pub const fn elf_number(self) -> u16 {
        match self {
            Self::X86_64 => 62,
            Self::Arm64 => 183,
        }
    }

    /// Those that this program is compiled for; `None` if they are others.
    pub fn own() -> Option<Self> {
        match consts::ARCH {
            "x86_64" => Some(Self::X86_64),
            "aarch64" => Some(Self::Arm64),
            _ => None,
        }
    }

    /// The host's, or the default if they are others.
    pub fn host() -> Self {
        Self::own().unwrap_or_default()
    }

    /// The processors with a number of ELF files; `None` if they are others.
    pub fn of_elf_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|arch| arch.elf_number() == number)
    }

    /// The processors that the ELF file `bytes` is for; `None` if it is not an ELF file, or for
    /// neither.
    pub fn of_elf(bytes: &[u8]) -> Option<Self> {
        Self::of_elf_number(elf_number(bytes)?)
    }
}

/// As much of a file as [`elf_number`] needs.
pub const ELF_HEAD: usize = 20;

/// The number of the processors that an ELF file is for, if it is one with 64 bits and the least
/// significant byte first. Its first [`ELF_HEAD`] bytes suffice.
pub fn elf_number(bytes: &[u8]) -> Option<u16> {
    const CLASS_AND_ORDER: &[u8] = b"\x7fELF\x02\x01";
    let machine = bytes.strip_prefix(CLASS_AND_ORDER)?.get(12..14)?;
    Some(u16::from_le_bytes(machine.try_into().ok()?))
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Arch {
    /// The allowed values.
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
        // The linker wrote this one.
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(Arch::of_elf(&own[..ELF_HEAD]), Arch::own());
        assert_eq!(Arch::of_elf(&file(62)), Some(Arch::X86_64));
        assert_eq!(Arch::of_elf(&file(183)), Some(Arch::Arm64));
        assert_eq!(Arch::of_elf(&file(243)), None);
        assert_eq!(elf_number(&file(243)), Some(243));
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
