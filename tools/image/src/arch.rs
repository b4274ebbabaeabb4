//! Names for the architectures of guests.

pub use tofu_arch::Arch;

/// Returns Debian's name for an architecture.
pub(crate) const fn debian(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "amd64",
        Arch::Arm64 => "arm64",
    }
}

/// Returns the suffix for the names of an architecture's files in the cache.
pub(crate) const fn suffix(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "",
        Arch::Arm64 => "-arm64",
    }
}
