//! The part of PMIx's C interface that a server needs, from the PMIx standard, version 4. Types are
//! those of the 64-bit systems on which programs run; a test compares them with headers that are
//! installed.

use std::ffi::{c_char, c_int, c_void};

/// The most bytes of a name space's name, with the NUL.
pub(crate) const NAMESPACE: usize = 256;
/// The most bytes of a key, with the NUL.
pub(crate) const KEY: usize = 512;

/// The result of a function.
pub(crate) type Status = c_int;
pub(crate) const SUCCESS: Status = 0;
/// The operation is complete; no callback is called.
pub(crate) const DONE: Status = -157;
pub(crate) const NOT_SUPPORTED: Status = -47;

/// Types of values.
pub(crate) const BOOL: u16 = 1;
pub(crate) const STRING: u16 = 3;
pub(crate) const UINT16: u16 = 13;
pub(crate) const UINT32: u16 = 14;
pub(crate) const INFO: u16 = 24;
pub(crate) const DATA_ARRAY: u16 = 39;
pub(crate) const PROC_RANK: u16 = 40;

/// `pmix_proc_t`: a process.
#[repr(C)]
pub(crate) struct Proc {
    pub(crate) namespace: [c_char; NAMESPACE],
    pub(crate) rank: u32,
}

/// `pmix_data_array_t`: values of one type.
#[repr(C)]
pub(crate) struct DataArray {
    pub(crate) kind: u16,
    pub(crate) size: usize,
    pub(crate) array: *mut c_void,
}

/// The variants of [`Value`] that are used here. The largest in C has 24 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Data {
    pub(crate) flag: bool,
    pub(crate) string: *const c_char,
    pub(crate) uint16: u16,
    pub(crate) uint32: u32,
    pub(crate) array: *const DataArray,
    pub(crate) all: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
pub(crate) struct Value {
    pub(crate) kind: u16,
    pub(crate) data: Data,
}

/// `pmix_info_t`: a key and its value.
#[repr(C)]
pub(crate) struct Info {
    pub(crate) key: [c_char; KEY],
    pub(crate) flags: u32,
    pub(crate) value: Value,
}

/// `pmix_op_cbfunc_t`: the end of an operation.
pub(crate) type Ended = Option<unsafe extern "C" fn(Status, *mut c_void)>;
/// `pmix_release_cbfunc_t`: data is not needed any more.
pub(crate) type Release = Option<unsafe extern "C" fn(*mut c_void)>;
/// `pmix_modex_cbfunc_t`: the end of a fence, with the data of all ranks.
pub(crate) type Collected =
    Option<unsafe extern "C" fn(Status, *const c_char, usize, *mut c_void, Release, *mut c_void)>;
/// `pmix_info_cbfunc_t`: the end of an operation, with what it has found.
pub(crate) type Answered =
    Option<unsafe extern "C" fn(Status, *mut Info, usize, *mut c_void, Release, *mut c_void)>;

/// Functions of a [`Module`].
pub(crate) type Connected =
    unsafe extern "C" fn(*const Proc, *mut c_void, *mut Info, usize, Ended, *mut c_void) -> Status;
pub(crate) type Finalized =
    unsafe extern "C" fn(*const Proc, *mut c_void, Ended, *mut c_void) -> Status;
pub(crate) type Aborted = unsafe extern "C" fn(
    *const Proc,
    *mut c_void,
    c_int,
    *const c_char,
    *mut Proc,
    usize,
    Ended,
    *mut c_void,
) -> Status;
pub(crate) type Fence = unsafe extern "C" fn(
    *const Proc,
    usize,
    *const Info,
    usize,
    *mut c_char,
    usize,
    Collected,
    *mut c_void,
) -> Status;
pub(crate) type Group = unsafe extern "C" fn(
    c_int,
    *mut c_char,
    *const Proc,
    usize,
    *const Info,
    usize,
    Answered,
    *mut c_void,
) -> Status;

/// `pmix_server_module_t`: what a server does for its clients. Null is not supported.
#[repr(C)]
pub(crate) struct Module {
    pub(crate) client_connected: *const c_void,
    pub(crate) client_finalized: Option<Finalized>,
    pub(crate) abort: Option<Aborted>,
    pub(crate) fence: Option<Fence>,
    /// From `direct_modex` to `push_stdin`.
    pub(crate) others: [*const c_void; 21],
    pub(crate) group: Option<Group>,
    pub(crate) fabric: *const c_void,
    pub(crate) client_connected2: Option<Connected>,
    /// Later versions have more. They take as much as they know.
    pub(crate) later: [*const c_void; 36],
}

/// Functions of the library.
pub(crate) type ServerInit = unsafe extern "C" fn(*const Module, *const Info, usize) -> Status;
pub(crate) type ServerFinalize = unsafe extern "C" fn() -> Status;
pub(crate) type Generate = unsafe extern "C" fn(*const c_char, *mut *mut c_char) -> Status;
pub(crate) type RegisterNamespace =
    unsafe extern "C" fn(*const c_char, c_int, *const Info, usize, Ended, *mut c_void) -> Status;
pub(crate) type RegisterClient = unsafe extern "C" fn(
    *const Proc,
    libc::uid_t,
    libc::gid_t,
    *mut c_void,
    Ended,
    *mut c_void,
) -> Status;
pub(crate) type SetupFork = unsafe extern "C" fn(*const Proc, *mut *mut *mut c_char) -> Status;
pub(crate) type ErrorString = unsafe extern "C" fn(Status) -> *const c_char;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};
    use std::process::Command;

    use tofu_c_tests::{have, run};

    #[test]
    fn types_are_those_of_installed_headers() {
        let mut flags = Command::new("pkg-config");
        let flags = flags.args(["--cflags", "pmix"]).output();
        let flags = flags.ok().filter(|found| found.status.success() && have("gcc"));
        let Some(flags) = flags else {
            eprintln!("SKIP types_are_those_of_installed_headers: no gcc, or no libpmix-dev");
            return;
        };
        let numbers = [
            ("sizeof(pmix_proc_t)", size_of::<Proc>()),
            ("offsetof(pmix_proc_t, rank)", offset_of!(Proc, rank)),
            ("sizeof(pmix_data_array_t)", size_of::<DataArray>()),
            ("offsetof(pmix_data_array_t, size)", offset_of!(DataArray, size)),
            ("offsetof(pmix_data_array_t, array)", offset_of!(DataArray, array)),
            ("sizeof(pmix_value_t)", size_of::<Value>()),
            ("offsetof(pmix_value_t, data)", offset_of!(Value, data)),
            ("sizeof(pmix_info_t)", size_of::<Info>()),
            ("offsetof(pmix_info_t, value)", offset_of!(Info, value)),
            (
                "offsetof(pmix_server_module_t, client_finalized)",
                offset_of!(Module, client_finalized),
            ),
            ("offsetof(pmix_server_module_t, abort)", offset_of!(Module, abort)),
            ("offsetof(pmix_server_module_t, fence_nb)", offset_of!(Module, fence)),
            (
                "offsetof(pmix_server_module_t, client_connected2)",
                offset_of!(Module, client_connected2),
            ),
            ("PMIX_BOOL", usize::from(BOOL)),
            ("PMIX_STRING", usize::from(STRING)),
            ("offsetof(pmix_server_module_t, group)", offset_of!(Module, group)),
            ("sizeof(pmix_group_operation_t)", size_of::<c_int>()),
            ("PMIX_UINT16", usize::from(UINT16)),
            ("PMIX_UINT32", usize::from(UINT32)),
            ("PMIX_INFO", usize::from(INFO)),
            ("PMIX_DATA_ARRAY", usize::from(DATA_ARRAY)),
            ("PMIX_PROC_RANK", usize::from(PROC_RANK)),
            ("-PMIX_ERR_NOT_SUPPORTED", NOT_SUPPORTED.unsigned_abs() as usize),
            ("-PMIX_OPERATION_SUCCEEDED", DONE.unsigned_abs() as usize),
        ];
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
        let lines =
            numbers.iter().map(|(c, ours)| format!("_Static_assert({c} == {ours}, \"\");\n"));
        let own_is_as_large = format!(
            "_Static_assert(sizeof(pmix_server_module_t) <= {}, \"\");",
            size_of::<Module>()
        );
        let text: String = ["#include <stddef.h>\n#include <pmix_server.h>\n".to_owned()]
            .into_iter()
            .chain(lines)
            .chain([own_is_as_large, "\nint main(void) { return 0; }\n".to_owned()])
            .collect();
        std::fs::write(&source, text).unwrap();
        let flags = String::from_utf8(flags.stdout).unwrap();
        run(Command::new("gcc").args(flags.split_whitespace()).arg("-o").arg(program).arg(source));
    }
}
