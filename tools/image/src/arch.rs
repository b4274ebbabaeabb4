//! What images call the processors of guests.

pub use tofu_arch::Arch;

/// Their name in Debian.
pub(crate) const fn debian(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "amd64",
        Arch::Arm64 => "arm64",
    }
}

/// The suffix of their files' names in the cache.
pub(crate) const fn suffix(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "",
        Arch::Arm64 => "-arm64",
    }
}
