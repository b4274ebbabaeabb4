//! The kernel's interface: layouts and numbers, and the calls.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use tofu_abi::Subnet;
use tofu_abi::regs::NUM_TNI;

/// Version that INIT_CQ names.
pub(crate) const VERSION: u16 = 0x2a00;
/// ALLOC_STAG: others may only read.
const READ_ONLY: u32 = 1;
/// ALLOC_STAG: not one that the same memory has already.
const NEW_STAG: u32 = 1 << 31;

/// Argument of INIT_CQ. Rings are addresses of this process.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct InitCq {
    pub(crate) version: u16,
    pub(crate) session_mode: u8,
    pub(crate) toq_size: u8,
    pub(crate) mrq_size: u8,
    /// 0 for the library's 8192 STags.
    pub(crate) num_stag: u8,
    pub(crate) tcq_cinj: u8,
    pub(crate) mrq_cinj: u8,
    pub(crate) toq_mem: u64,
    pub(crate) tcq_mem: u64,
    pub(crate) mrq_mem: u64,
}

#[repr(C)]
struct AllocStag {
    flags: u32,
    stag: i32,
    offset: u64,
    va: u64,
    len: u64,
}

#[repr(C)]
struct FreeStags {
    num: u16,
    stags: u64,
}

#[repr(C)]
struct EnableBch {
    addr: u64,
    bseq: i32,
    num: i32,
    bgs: u64,
}

/// Where a gate's neighbour is, with the path there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addr {
    pub(crate) pa: u8,
    pub(crate) pb: u8,
    pub(crate) pc: u8,
    pub(crate) x: u8,
    pub(crate) y: u8,
    pub(crate) z: u8,
    pub(crate) a: u8,
    pub(crate) b: u8,
    pub(crate) c: u8,
}

/// A gate with its links; less than 0 stands for none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetBg {
    pub(crate) tni: i32,
    pub(crate) gate: i32,
    pub(crate) source_lgate: i32,
    pub(crate) source_raddr: Addr,
    pub(crate) source_rtni: i32,
    pub(crate) source_rgate: i32,
    pub(crate) dest_lgate: i32,
    pub(crate) dest_raddr: Addr,
    pub(crate) dest_rtni: i32,
    pub(crate) dest_rgate: i32,
}

/// In place of a group: the user is to be as one who was never registered.
pub(crate) const NO_GROUP: u32 = u32::MAX;

#[repr(C)]
struct RegUser {
    uid: u32,
    gpid: u32,
    unused: [u32; 2],
    subnet: [[u8; 3]; 3],
    pad: [u8; 7],
    cqmask: u64,
    bgmask: u64,
}

const _: () = assert!(size_of::<RegUser>() == 48);
const _: () = assert!(size_of::<InitCq>() == 32);
const _: () = assert!(size_of::<AllocStag>() == 32);
const _: () = assert!(size_of::<FreeStags>() == 16);
const _: () = assert!(size_of::<EnableBch>() == 24);
const _: () = assert!(size_of::<Addr>() == 9);
const _: () = assert!(size_of::<SetBg>() == 56);

/// The size in the number is 8, whatever the argument is. The C library takes the number as a
/// signed one on some machines.
const fn request(n: libc::Ioctl) -> libc::Ioctl {
    0xc008_6400_u32 as libc::Ioctl + n
}

/// # Safety
///
/// `argument` must be what the call takes, and what the kernel and the device do to memory upon
/// it must be sound.
unsafe fn call<T>(file: BorrowedFd<'_>, n: libc::Ioctl, argument: &mut T) -> io::Result<()> {
    let argument = std::ptr::from_mut(argument);
    // SAFETY: the caller's promise.
    match unsafe { libc::ioctl(file.as_raw_fd(), request(n), argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a queue.
///
/// # Errors
///
/// What the kernel says.
///
/// # Safety
///
/// The rings are memory that is accessed as memory that others may change, until `file` is closed
/// and the queue's page is not mapped any more.
pub(crate) unsafe fn init_cq(file: BorrowedFd<'_>, mut init: InitCq) -> io::Result<()> {
    // SAFETY: as promised to this function.
    unsafe { call(file, 0, &mut init) }
}

/// Registers memory under an STag, or under the lowest free one of those that programs do not
/// choose themselves. Returns the STag with the offset of the first byte.
///
/// # Errors
///
/// What the kernel says.
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
    let flags = NEW_STAG | if read_only { READ_ONLY } else { 0 };
    let stag = wanted.map_or(-1, |stag| stag as i32);
    let mut a = AllocStag { flags, stag, offset: 0, va: addr as u64, len: len as u64 };
    // SAFETY: as promised to this function.
    unsafe { call(file, 1, &mut a)? };
    Ok((a.stag as u32, a.offset))
}

/// Deregisters memory.
///
/// # Errors
///
/// What the kernel says: `ENOENT` if the kernel has done so already.
pub(crate) fn free_stag(file: BorrowedFd<'_>, stag: u32) -> io::Result<()> {
    let mut stags = [stag as i32];
    let mut a = FreeStags { num: 1, stags: stags.as_mut_ptr() as u64 };
    // SAFETY: the kernel writes to the one place that `num` says.
    unsafe { call(file, 2, &mut a) }
}

/// Sets up a barrier channel with its gates.
///
/// # Errors
///
/// What the kernel says.
///
/// # Safety
///
/// 256 bytes at `notice` are accessed as memory that others may change, until `file` is closed
/// and the channel's page is not mapped any more.
pub(crate) unsafe fn enable_bch(
    file: BorrowedFd<'_>,
    notice: u64,
    bseq: u32,
    gates: &[SetBg],
) -> io::Result<()> {
    let num = i32::try_from(gates.len()).unwrap_or(i32::MAX);
    let mut a = EnableBch { addr: notice, bseq: bseq as i32, num, bgs: gates.as_ptr() as u64 };
    // SAFETY: as promised to this function; the kernel reads as many gates as there are.
    unsafe { call(file, 3, &mut a) }
}

/// Registers a user with a group, a subnet, and masks of queues and gates of each interface.
///
/// # Errors
///
/// What the kernel says.
pub(crate) fn register_user(
    file: BorrowedFd<'_>,
    (uid, gpid): (u32, u32),
    subnet: Subnet,
    queues: &[u64; NUM_TNI],
    gates: &[u64; NUM_TNI],
) -> io::Result<()> {
    let (cqmask, bgmask) = (queues.as_ptr() as u64, gates.as_ptr() as u64);
    let (unused, pad, subnet) = ([0; 2], [0; 7], subnet.parts());
    let mut a = RegUser { uid, gpid, unused, subnet, pad, cqmask, bgmask };
    // SAFETY: the kernel reads as many masks as there are.
    unsafe { call(file, 7, &mut a) }
}

/// Chooses the signal for exceptions of a queue or channel.
///
/// # Errors
///
/// What the kernel says.
pub(crate) fn set_rt_signal(file: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    let mut number = number;
    // SAFETY: the kernel reads the number.
    unsafe { call(file, 5, &mut number) }
}
