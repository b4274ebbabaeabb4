//! Completions and notices.

use std::ffi::{c_int, c_ulong, c_void};

use tofu_abi::Rcode;
use tofu_utofu::{Code, Error, flags};

use crate::call::{Out, call};
use crate::{handle, link_state};

/// `struct utofu_mrq_notice`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct MrqNotice {
    /// `enum utofu_mrq_notice_type`.
    pub notice_type: u8,
    /// Unused.
    pub padding1: [u8; 7],
    /// The VCQ at the other end.
    pub vcq_id: u64,
    /// The command's data for notices.
    pub edata: u64,
    /// Old value, or the address accessed in this process's memory.
    pub rmt_value: u64,
    /// Address on the side of the VCQ that sent the command.
    pub lcl_stadd: u64,
    /// Address on the side of the VCQ that was the command's target.
    pub rmt_stadd: u64,
    /// 0.
    pub reserved: [u64; 2],
}

/// Returns an error if a command did not end successfully.
#[inline(always)]
fn check(result: Rcode, code: impl FnOnce() -> Code) -> Result<(), Error> {
    if result == Rcode::SUCCESS { Ok(()) } else { Err(failed(code(), result)) }
}

#[cold]
fn failed(code: Code, result: Rcode) -> Error {
    if matches!(result, Rcode::LINK_DOWN | Rcode::TIMEOUT) {
        link_state::refresh();
    }
    let what = "command ended with result";
    Error::with_value(code, what, result.raw().into(), result.describe())
}

const fn empty(what: &'static str) -> Error {
    Error::new(Code::NotFound, what, "nothing has come yet")
}

/// Takes the next completion of a command with `UTOFU_ONESIDED_FLAG_TCQ_NOTICE`.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_poll_tcq(
    vcq_hdl: usize,
    flags: c_ulong,
    cbdata: *mut *mut c_void,
) -> c_int {
    call("utofu_poll_tcq", || {
        let (queue, ticket) = handle::find(vcq_hdl)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(cbdata, "cbdata")? };
        flags::check(flags, 0, "flags")?;
        let done = queue.poll_tcq(ticket)?.ok_or_else(|| empty("completions"))?;
        out.set(done.cbdata as *mut c_void);
        check(done.rcode, || done.status())
    })
}

/// Takes the next notice.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_poll_mrq(
    vcq_hdl: usize,
    flags: c_ulong,
    notice: *mut MrqNotice,
) -> c_int {
    call("utofu_poll_mrq", || {
        let (queue, ticket) = handle::find(vcq_hdl)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(notice, "notice")? };
        flags::check(flags, 0, "flags")?;
        let notice = queue.poll_mrq(ticket)?.ok_or_else(|| empty("notices"))?;
        out.set(MrqNotice {
            notice_type: notice.kind as u8,
            vcq_id: notice.vcq_id.0,
            edata: notice.edata.into(),
            rmt_value: notice.rmt_value,
            lcl_stadd: notice.lcl_stadd,
            rmt_stadd: notice.rmt_stadd,
            ..MrqNotice::default()
        });
        check(notice.rcode, || notice.status())
    })
}

/// Reports how many completions can be taken now.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_num_unread_tcq(vcq_hdl: usize, count: *mut usize) -> c_int {
    call("utofu_query_num_unread_tcq", || {
        let (queue, ticket) = handle::find(vcq_hdl)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(count, "count")? };
        out.set(queue.unread_tcq(ticket)?);
        Ok(())
    })
}

/// Reports how many notices can be taken now.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_num_unread_mrq(vcq_hdl: usize, count: *mut usize) -> c_int {
    call("utofu_query_num_unread_mrq", || {
        let (queue, ticket) = handle::find(vcq_hdl)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(count, "count")? };
        out.set(queue.unread_mrq(ticket)?);
        Ok(())
    })
}
