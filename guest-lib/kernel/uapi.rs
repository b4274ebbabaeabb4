// SPDX-License-Identifier: GPL-2.0

//! Arguments of the ioctls: numbers, layouts, and what can be checked without a device.

use kernel::ffi::c_ulong;
use kernel::ioctl::_IOWR;
use kernel::prelude::*;
use kernel::transmute::{AsBytes, FromBytes};
use kernel::uaccess::{UserPtr, UserSlice};

use tofu_abi::queue::queue_entries;
use tofu_abi::regs::CqsMode;

/// Version that INIT_CQ has to name.
pub(crate) const VERSION: u16 = 0x2a00;

const fn number(n: u32) -> u32 {
    // The size says 8 whatever the argument is, as in the public interface.
    _IOWR::<c_ulong>(b'd' as u32, n)
}

/// Opens the queue.
pub(crate) const INIT_CQ: u32 = number(0);
/// Registers memory.
pub(crate) const ALLOC_STAG: u32 = number(1);
/// Deregisters memory.
pub(crate) const FREE_STAGS: u32 = number(2);
/// Sets up a barrier channel with its gates.
pub(crate) const ENABLE_BCH: u32 = number(3);
/// Takes the barrier channel down.
pub(crate) const DISABLE_BCH: u32 = number(4);
/// Chooses the signal that reports exceptions.
pub(crate) const SET_RT_SIGNAL: u32 = number(5);
/// Sets the subnet of users without one of their own.
pub(crate) const SET_SUBNET: u32 = number(6);
/// Registers the rights of a user.
pub(crate) const REG_USER: u32 = number(7);
/// Reports links that are down.
pub(crate) const NOTIFY_LINKDOWN: u32 = number(8);
/// Reads the counters of a port.
pub(crate) const GET_PORT_STAT: u32 = number(9);
/// Reads the counters of a queue.
pub(crate) const GET_CQ_STAT: u32 = number(10);
/// Reads registers.
pub(crate) const LOAD_REGISTER: u32 = number(11);
/// Reads queues and tables.
pub(crate) const LOAD_RESOURCE: u32 = number(12);

/// Declares an argument that is plain integers without padding, or with padding that is a field.
macro_rules! argument {
    ($(#[$meta:meta])* $name:ident, $size:literal { $( $field:ident: $ty:ty ),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name { $( pub(crate) $field: $ty ),* }
        const _: () = assert!(size_of::<$name>() == $size);
        const _: () = assert!(0 $( + size_of::<$ty>() )* == $size);
        // SAFETY: integers and arrays of them: every pattern of bits is a value.
        unsafe impl FromBytes for $name {}
        // SAFETY: there is no padding: the sizes of the fields add up to the size.
        unsafe impl AsBytes for $name {}
    };
}

argument! {
    /// INIT_CQ.
    InitCq, 32 {
        version: u16, session_mode: u8, toq_size: u8, mrq_size: u8, num_stag: u8, tcq_cinj: u8,
        mrq_cinj: u8, toq_mem: u64, tcq_mem: u64, mrq_mem: u64,
    }
}
argument! {
    /// ALLOC_STAG.
    AllocStag, 32 { flags: u32, stag: i32, offset: u64, va: u64, len: u64 }
}
argument! {
    /// FREE_STAGS.
    FreeStags, 16 { num: u16, pad: [u8; 6], stags: u64 }
}
argument! {
    /// ENABLE_BCH.
    EnableBch, 24 { addr: u64, bseq: i32, num: i32, bgs: u64 }
}
argument! {
    /// An address of a gate's neighbour.
    Addr, 9 { pa: u8, pb: u8, pc: u8, x: u8, y: u8, z: u8, a: u8, b: u8, c: u8 }
}
argument! {
    /// A gate of ENABLE_BCH.
    SetBg, 56 {
        tni: i32, gate: i32, source_lgate: i32, source_raddr: Addr, pad0: [u8; 3],
        source_rtni: i32, source_rgate: i32, dest_lgate: i32, dest_raddr: Addr, pad1: [u8; 3],
        dest_rtni: i32, dest_rgate: i32,
    }
}
argument! {
    /// SET_SUBNET, and a part of REG_USER.
    Subnet, 20 {
        res0: i32, res1: i32, nx: u8, sx: u8, lx: u8, ny: u8, sy: u8, ly: u8, nz: u8, sz: u8,
        lz: u8, pad: [u8; 3],
    }
}
argument! {
    /// REG_USER.
    RegUser, 48 {
        uid: u32, gpid: u32, subnet: Subnet, pad: [u8; 4], cqmask: u64, bgmask: u64,
    }
}
argument! {
    /// NOTIFY_LINKDOWN.
    NotifyLinkdown, 16 { num: i32, pad: [u8; 4], items: u64 }
}
argument! {
    /// An item of NOTIFY_LINKDOWN.
    LinkdownItem, 8 { x: u8, y: u8, z: u8, a: u8, b: u8, c: u8, ports: u16 }
}
argument! {
    /// GET_PORT_STAT.
    PortStat, 264 { port_no: i32, pad: [u8; 4], mask: u64, pa: [u64; 31] }
}
argument! {
    /// GET_CQ_STAT.
    CqStat, 24 { tni: i32, cqid: i32, txbyte: u64, rxbyte: u64 }
}
argument! {
    /// LOAD_REGISTER.
    LoadRegister, 24 { pa: u64, len: u64, buf: u64 }
}
argument! {
    /// LOAD_RESOURCE.
    LoadResource, 32 { rsc_id: u64, offset: u64, len: u64, buf: u64 }
}

/// REG_USER: the user is to be as one who was never registered (ours).
pub(crate) const NO_GROUP: u32 = u32::MAX;
/// ALLOC_STAG: others may only read.
pub(crate) const READ_ONLY: u32 = 1;
/// ALLOC_STAG: the table may have large pages.
pub(crate) const LARGE_PAGES: u32 = 2;
/// ALLOC_STAG: a new STag even if the memory has one already (ours).
pub(crate) const NEW_STAG: u32 = 1 << 31;

/// Sizes of a queue, in entries.
pub(crate) struct QueueSizes {
    /// Entries of the TOQ, and of the TCQ.
    pub(crate) toq: u32,
    /// Entries of the MRQ.
    pub(crate) mrq: u32,
    /// STags.
    pub(crate) stags: u32,
}

impl InitCq {
    /// # Errors
    ///
    /// `EINVAL` if a field is out of range.
    pub(crate) fn sizes(&self) -> Result<QueueSizes> {
        let fit = self.version == VERSION
            && self.session_mode <= 1
            && self.num_stag <= 2
            && self.tcq_cinj <= 1
            && self.mrq_cinj <= 1;
        if !fit {
            return Err(EINVAL);
        }
        Ok(QueueSizes {
            toq: queue_entries(self.toq_size.into()).ok_or(EINVAL)?,
            mrq: queue_entries(self.mrq_size.into()).ok_or(EINVAL)?,
            stags: 1 << (13 + self.num_stag),
        })
    }
}

impl AllocStag {
    /// The STag that the process asks for, which must be below `end`; `None` if the driver chooses.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a field is out of range.
    pub(crate) fn wanted(&self, end: u32) -> Result<Option<u32>> {
        let known = READ_ONLY | LARGE_PAGES | NEW_STAG;
        let wanted = u32::try_from(self.stag).ok();
        let fit = self.flags & !known == 0
            && self.stag >= -1
            && wanted.is_none_or(|stag| stag < end)
            && self.va != 0
            && self.len != 0;
        if !fit {
            return Err(EINVAL);
        }
        Ok(wanted)
    }
}

impl Subnet {
    /// The fields as CQS MODE has them.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a partition does not lie in its system, or a size is above 32.
    pub(crate) fn mode(&self) -> Result<CqsMode> {
        let parts = [
            [self.nx, self.sx, self.lx],
            [self.ny, self.sy, self.ly],
            [self.nz, self.sz, self.lz],
        ];
        tofu_abi::Subnet::new(parts)
            .map(tofu_abi::Subnet::mode)
            .ok_or(EINVAL)
    }
}

/// Reads a value at a user's address.
///
/// # Errors
///
/// `EFAULT`.
pub(crate) fn get<T: FromBytes>(addr: u64) -> Result<T> {
    UserSlice::new(UserPtr::from_addr(addr as usize), size_of::<T>())
        .reader()
        .read()
}

/// Writes a value to a user's address.
///
/// # Errors
///
/// `EFAULT`.
pub(crate) fn put<T: AsBytes>(addr: u64, value: &T) -> Result {
    UserSlice::new(UserPtr::from_addr(addr as usize), size_of::<T>())
        .writer()
        .write(value)
}
