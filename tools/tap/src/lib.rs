//! TAP interfaces: opening them, and the structure for requests to the kernel about one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use libc::{c_char, c_int, c_short, ifreq};
use rustix::ioctl::{Opcode, Setter, ioctl};

/// The device through which interfaces are opened.
pub const DEVICE: &str = "/dev/net/tun";
/// Longest name of an interface, in bytes (linux/if.h).
pub const NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// Opens [`DEVICE`], so that neither reads nor writes block.
///
/// # Errors
///
/// The kernel's answer.
pub fn open() -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(DEVICE)
}

/// Makes `tun` the interface `name`, of frames without packet information; `flags` are further
/// ones of `IFF_*`.
///
/// # Errors
///
/// The kernel's answer.
#[expect(unsafe_code, reason = "the kernel has no other way to make an interface")]
pub fn attach(tun: &File, name: &str, flags: c_int) -> io::Result<()> {
    const TUNSETIFF: Opcode = libc::TUNSETIFF as Opcode;
    let mut request = request(name);
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | flags) as c_short;
    // SAFETY: TUNSETIFF takes the address of an `ifreq`, which outlives the call.
    Ok(unsafe { ioctl(tun, Setter::<TUNSETIFF, ifreq>::new(request)) }?)
}

/// A request about the interface `name`, of whose name at most [`NAME_MAX`] bytes count.
#[expect(unsafe_code, reason = "the structure has a union")]
pub fn request(name: &str) -> ifreq {
    // SAFETY: all bytes zero is a value of the structure and its union.
    let mut request: ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name[..NAME_MAX].iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    request
}
