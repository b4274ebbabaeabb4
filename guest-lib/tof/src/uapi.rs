//! The calls of the kernel's interface.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use tofu_abi::regs::NUM_TNI;
use tofu_abi::tof::{self, AllocStag, EnableBch, FreeStags, InitCq, NEW_STAG, RegUser, SetBg};

/// # Safety
///
/// `argument` must be what the call takes, and what the kernel and the device do to memory upon
/// it must be sound.
unsafe fn call<T>(file: BorrowedFd<'_>, request: u32, argument: &mut T) -> io::Result<()> {
    let argument = std::ptr::from_mut(argument);
    // The C library takes the number as a signed one on some machines.
    // SAFETY: the caller's promise.
    match unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a queue.
///
/// # Errors
///
/// The kernel's answer.
///
/// # Safety
///
/// The rings are accessed only as memory that others may change, until `file` is closed and the
/// queue's page is unmapped.
pub(crate) unsafe fn init_cq(file: BorrowedFd<'_>, mut init: InitCq) -> io::Result<()> {
    // SAFETY: as promised to this function.
    unsafe { call(file, tof::INIT_CQ, &mut init) }
}

/// Registers memory under an STag, or under the lowest free one of those that programs do not
/// choose themselves. Returns the STag with the offset of the first byte.
///
/// # Errors
///
/// The kernel's answer.
///
/// # Safety
///
/// Until it is freed, or `file` is closed, the process treats the memory as memory that others may
/// change at any time.
pub(crate) unsafe fn alloc_stag(
    file: BorrowedFd<'_>,
    addr: usize,
    len: usize,
    wanted: Option<u32>,
    read_only: bool,
) -> io::Result<(u32, u64)> {
    let flags = NEW_STAG | if read_only { tof::READ_ONLY } else { 0 };
    let stag = wanted.map_or(-1, |stag| stag as i32);
    let mut a = AllocStag { flags, stag, offset: 0, va: addr as u64, len: len as u64 };
    // SAFETY: as promised to this function.
    unsafe { call(file, tof::ALLOC_STAG, &mut a)? };
    Ok((a.stag as u32, a.offset))
}

/// Deregisters memory.
///
/// # Errors
///
/// The kernel's error: `ENOENT` if the kernel has done so already.
pub(crate) fn free_stag(file: BorrowedFd<'_>, stag: u32) -> io::Result<()> {
    let mut stags = [stag as i32];
    let mut a = FreeStags { num: 1, stags: stags.as_mut_ptr() as u64, ..FreeStags::default() };
    // SAFETY: the kernel writes to the one place that `num` says.
    unsafe { call(file, tof::FREE_STAGS, &mut a) }
}

/// Sets up a barrier channel with its gates.
///
/// # Errors
///
/// The kernel's answer.
///
/// # Safety
///
/// 256 bytes at `notice` are accessed only as memory that others may change, until `file` is closed
/// and the channel's page is unmapped.
pub(crate) unsafe fn enable_bch(
    file: BorrowedFd<'_>,
    notice: u64,
    bseq: u32,
    gates: &[SetBg],
) -> io::Result<()> {
    let num = i32::try_from(gates.len()).unwrap_or(i32::MAX);
    let mut a = EnableBch { addr: notice, bseq: bseq as i32, num, bgs: gates.as_ptr() as u64 };
    // SAFETY: as promised to this function; the kernel reads as many gates as there are.
    unsafe { call(file, tof::ENABLE_BCH, &mut a) }
}

/// Registers a user with a group, a subnet, and masks of queues and gates of each interface.
///
/// # Errors
///
/// The kernel's answer.
pub(crate) fn register_user(
    file: BorrowedFd<'_>,
    (uid, gpid): (u32, u32),
    subnet: tofu_abi::Subnet,
    queues: &[u64; NUM_TNI],
    gates: &[u64; NUM_TNI],
) -> io::Result<()> {
    let (cqmask, bgmask) = (queues.as_ptr() as u64, gates.as_ptr() as u64);
    let subnet = tof::Subnet { parts: subnet.parts(), ..tof::Subnet::default() };
    let mut a = RegUser { uid, gpid, subnet, cqmask, bgmask, ..RegUser::default() };
    // SAFETY: the kernel reads as many masks as there are.
    unsafe { call(file, tof::REG_USER, &mut a) }
}

/// Chooses the signal for exceptions of a queue or channel.
///
/// # Errors
///
/// The kernel's answer.
pub(crate) fn set_rt_signal(file: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    let mut number = number;
    // SAFETY: the kernel reads the number.
    unsafe { call(file, tof::SET_RT_SIGNAL, &mut number) }
}
