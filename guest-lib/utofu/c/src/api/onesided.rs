//! Commands, posted immediately or prepared for later.

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::slice;

use smallvec::SmallVec;
use tofu_abi::desc::{DESC_SIZE, Descriptor};
use tofu_utofu::command::{MAX_PIGGYBACK_SIZE, Packets, Posting};
use tofu_utofu::error::null;
use tofu_utofu::{Code, Command, Error};

use crate::call::{Out, call};
use crate::{handle, link_state};

/// The most descriptors in one call of `utofu_post_toq`: those of the largest transmit queue.
const MAX_DESCRIPTORS: usize = 1 << 21;

/// A command, or several that differ only in their addresses.
struct Batch {
    command: Command,
    stride: usize,
    blocks: usize,
}

impl From<Command> for Batch {
    fn from(command: Command) -> Self {
        Self { command, stride: 0, blocks: 1 }
    }
}

impl Batch {
    const fn strided(command: Command, stride: usize, blocks: usize) -> Self {
        Self { command, stride, blocks }
    }

    #[inline(always)]
    fn post(&self, vcq_hdl: usize, cbdata: *mut c_void) -> Result<(), Error> {
        let (queue, ticket) = handle::find(vcq_hdl)?;
        let cbdata = cbdata as usize;
        if self.blocks == 1 {
            return queue.post(ticket, &self.command, cbdata);
        }
        queue.post_blocks(ticket, &self.command, self.stride, self.blocks, cbdata)
    }

    /// # Safety
    ///
    /// `desc` is null or has room for the descriptors; `desc_size` is null or may be written to.
    unsafe fn prepare(
        &self,
        vcq_hdl: usize,
        desc: *mut c_void,
        desc_size: *mut usize,
    ) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        let (desc, size) = unsafe {
            (Out::new(desc.cast::<[u8; DESC_SIZE]>(), "desc")?, Out::new(desc_size, "desc_size")?)
        };
        let (queue, ticket) = handle::find(vcq_hdl)?;
        queue.check(ticket)?;
        queue.check_command(&self.command)?;
        self.command.check_blocks(self.stride, self.blocks)?;
        let mut bytes = SmallVec::<[[u8; DESC_SIZE]; 8]>::new();
        if self.blocks > MAX_DESCRIPTORS {
            let hint = "more descriptors than any transmit queue has entries";
            let value = self.blocks as u64;
            return Err(Error::with_value(Code::InvalidNumber, "number of blocks", value, hint));
        }
        for block in 0..self.blocks {
            let moved = self.command.moved(block as u64 * self.stride as u64)?;
            bytes.extend(moved.prepared().iter().map(Descriptor::to_bytes));
        }
        desc.set_all(&bytes);
        size.set(bytes.len() * DESC_SIZE);
        Ok(())
    }
}

/// Returns the data of a piggyback Put.
///
/// # Safety
///
/// `from` is null or points to `length` bytes.
unsafe fn piggyback<'a>(from: *const c_void, length: usize) -> Result<&'a [u8], Error> {
    if length > MAX_PIGGYBACK_SIZE {
        let hint = "a piggyback Put carries at most 32 bytes";
        return Err(Error::with_value(Code::InvalidSize, "length", length as u64, hint));
    }
    if length == 0 {
        return Ok(&[]);
    }
    if from.is_null() {
        return Err(null("lcl_data"));
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts(from.cast(), length) })
}

/// Defines two functions for each command: one posts it, and the other prepares it. Both take the
/// arguments in the first parentheses, then edata and flags, then those in the second.
macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        $post:ident, $prepare:ident
        ($($before:ident: $before_type:ty),*) ($($after:ident: $after_type:ty),*)
        |$posting:ident| $batch:expr;
    )*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// Pointers to data are null or point to as many bytes as are to be sent.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, unused_unsafe)]
        pub unsafe extern "C" fn $post(
            vcq_hdl: usize,
            rmt_vcq_id: u64,
            $($before: $before_type,)*
            edata: u64,
            flags: c_ulong,
            $($after: $after_type,)*
            cbdata: *mut c_void,
        ) -> c_int {
            call(stringify!($post), || {
                let to = link_state::detour(rmt_vcq_id, flags, || handle::node(vcq_hdl));
                let $posting = Posting::new(to, edata, flags)?;
                // SAFETY: guaranteed by the caller.
                let batch: Batch = unsafe { $batch };
                batch.post(vcq_hdl, cbdata)
            })
        }

        /// Prepares the command of
        #[doc = concat!("[`", stringify!($post), "`].")]
        ///
        /// # Safety
        ///
        /// Pointers to data are null or point to as many bytes as are to be sent; `desc` is null or
        /// has room for the descriptors; `desc_size` is null or may be written to.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, unused_unsafe)]
        pub unsafe extern "C" fn $prepare(
            vcq_hdl: usize,
            rmt_vcq_id: u64,
            $($before: $before_type,)*
            edata: u64,
            flags: c_ulong,
            $($after: $after_type,)*
            desc: *mut c_void,
            desc_size: *mut usize,
        ) -> c_int {
            call(stringify!($prepare), || {
                let to = link_state::detour(rmt_vcq_id, flags, || handle::node(vcq_hdl));
                let $posting = Posting::new(to, edata, flags)?;
                // SAFETY: guaranteed by the caller.
                let batch: Batch = unsafe { $batch };
                // SAFETY: guaranteed by the caller.
                unsafe { batch.prepare(vcq_hdl, desc, desc_size) }
            })
        }
    )* };
}

commands! {
    /// Writes local memory to remote memory.
    utofu_put, utofu_prepare_put
    (lcl_stadd: u64, rmt_stadd: u64, length: usize) ()
    |to| to.put(lcl_stadd, rmt_stadd, length, Packets::default())?.into();

    /// Writes like `utofu_put`, in packets of a given size with gaps in between.
    utofu_put_gap, utofu_prepare_put_gap
    (lcl_stadd: u64, rmt_stadd: u64, length: usize) (mtu: usize, gap: usize)
    |to| to.put(lcl_stadd, rmt_stadd, length, Packets::new(mtu, gap)?)?.into();

    /// Writes several blocks that begin `stride` bytes apart on both sides, with a Put for each.
    utofu_put_stride, utofu_prepare_put_stride
    (lcl_stadd: u64, rmt_stadd: u64, length: usize, stride: usize, num_blocks: usize) ()
    |to| Batch::strided(
        to.put(lcl_stadd, rmt_stadd, length, Packets::default())?, stride, num_blocks);

    /// Writes like `utofu_put_stride`, in packets of a given size with gaps in between.
    utofu_put_stride_gap, utofu_prepare_put_stride_gap
    (lcl_stadd: u64, rmt_stadd: u64, length: usize, stride: usize, num_blocks: usize)
    (mtu: usize, gap: usize)
    |to| Batch::strided(
        to.put(lcl_stadd, rmt_stadd, length, Packets::new(mtu, gap)?)?, stride, num_blocks);

    /// Writes up to 32 bytes to remote memory. The data is copied before the function returns.
    utofu_put_piggyback, utofu_prepare_put_piggyback
    (lcl_data: *mut c_void, rmt_stadd: u64, length: usize) ()
    |to| to.put_piggyback(piggyback(lcl_data, length)?, rmt_stadd)?.into();

    /// Writes up to 8 bytes, the lowest ones of a number, to remote memory.
    utofu_put_piggyback8, utofu_prepare_put_piggyback8
    (lcl_data: u64, rmt_stadd: u64, length: usize) ()
    |to| to.put_piggyback8(lcl_data, length, rmt_stadd)?.into();

    /// Reads remote memory into local memory.
    utofu_get, utofu_prepare_get
    (lcl_stadd: u64, rmt_stadd: u64, length: usize) ()
    |to| to.get(lcl_stadd, rmt_stadd, length, Packets::default())?.into();

    /// Reads like `utofu_get`, in packets of a given size with gaps in between.
    utofu_get_gap, utofu_prepare_get_gap
    (lcl_stadd: u64, rmt_stadd: u64, length: usize) (mtu: usize, gap: usize)
    |to| to.get(lcl_stadd, rmt_stadd, length, Packets::new(mtu, gap)?)?.into();

    /// Reads several blocks that begin `stride` bytes apart on both sides, with a Get for each.
    utofu_get_stride, utofu_prepare_get_stride
    (lcl_stadd: u64, rmt_stadd: u64, length: usize, stride: usize, num_blocks: usize) ()
    |to| Batch::strided(
        to.get(lcl_stadd, rmt_stadd, length, Packets::default())?, stride, num_blocks);

    /// Reads like `utofu_get_stride`, in packets of a given size with gaps in between.
    utofu_get_stride_gap, utofu_prepare_get_stride_gap
    (lcl_stadd: u64, rmt_stadd: u64, length: usize, stride: usize, num_blocks: usize)
    (mtu: usize, gap: usize)
    |to| Batch::strided(
        to.get(lcl_stadd, rmt_stadd, length, Packets::new(mtu, gap)?)?, stride, num_blocks);

    /// Applies an operation to 4 bytes of remote memory.
    utofu_armw4, utofu_prepare_armw4
    (armw_op: c_uint, op_value: u32, rmt_stadd: u64) ()
    |to| to.armw(armw_op, op_value.into(), 4, rmt_stadd)?.into();

    /// Applies an operation to 8 bytes of remote memory.
    utofu_armw8, utofu_prepare_armw8
    (armw_op: c_uint, op_value: u64, rmt_stadd: u64) ()
    |to| to.armw(armw_op, op_value, 8, rmt_stadd)?.into();

    /// Replaces 4 bytes of remote memory if they hold the old value.
    utofu_cswap4, utofu_prepare_cswap4
    (old_value: u32, new_value: u32, rmt_stadd: u64) ()
    |to| to.cswap4(old_value, new_value, rmt_stadd)?.into();

    /// Replaces 8 bytes of remote memory if they hold the old value.
    utofu_cswap8, utofu_prepare_cswap8
    (old_value: u64, new_value: u64, rmt_stadd: u64) ()
    |to| to.cswap8(old_value, new_value, rmt_stadd)?.into();
}

/// Posts a command that does nothing but complete.
#[unsafe(no_mangle)]
pub extern "C" fn utofu_nop(vcq_hdl: usize, flags: c_ulong, cbdata: *mut c_void) -> c_int {
    call("utofu_nop", || Batch::from(Command::nop(flags)?).post(vcq_hdl, cbdata))
}

/// Prepares the command of [`utofu_nop`].
///
/// # Safety
///
/// `desc` is null or has room for 32 bytes; `desc_size` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_prepare_nop(
    vcq_hdl: usize,
    flags: c_ulong,
    desc: *mut c_void,
    desc_size: *mut usize,
) -> c_int {
    call("utofu_prepare_nop", || {
        let batch = Batch::from(Command::nop(flags)?);
        // SAFETY: guaranteed by the caller.
        unsafe { batch.prepare(vcq_hdl, desc, desc_size) }
    })
}

/// Posts one or several consecutive prepared commands, either all of them or none.
///
/// # Safety
///
/// `desc` is null or points to `desc_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_post_toq(
    vcq_hdl: usize,
    desc: *mut c_void,
    desc_size: usize,
    cbdata: *mut c_void,
) -> c_int {
    call("utofu_post_toq", || {
        let (queue, ticket) = handle::find(vcq_hdl)?;
        if desc.is_null() {
            return Err(null("desc"));
        }
        let whole = desc_size.is_multiple_of(DESC_SIZE);
        if desc_size == 0 || !whole || desc_size / DESC_SIZE > MAX_DESCRIPTORS {
            let hint = "a multiple of 32, as the utofu_prepare functions return it";
            return Err(Error::with_value(Code::InvalidSize, "desc_size", desc_size as u64, hint));
        }
        let words = desc.cast::<[u64; 4]>();
        let descriptors: SmallVec<[Descriptor; 4]> = (0..desc_size / DESC_SIZE)
            // SAFETY: guaranteed by the caller. Descriptors may be unaligned.
            .map(|i| Descriptor(unsafe { words.add(i).read_unaligned() }.map(u64::from_le)))
            .collect();
        queue.post_prepared(ticket, &descriptors, cbdata as usize)
    })
}
