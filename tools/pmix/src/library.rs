//! The host's libpmix, loaded at run time, behind functions that are safe to call.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use anyhow::{Context, bail};
use tofu_agent::pmi::Report;
use tofu_process as process;

use crate::{Variables, abi};

/// Called with what happens to ranks.
pub(crate) type OnReport = Box<dyn Fn(Report) + Send + Sync>;
/// The library calls functions without data of ours, so there is one server per process.
static ON_REPORT: OnceLock<OnReport> = OnceLock::new();

/// Keys and values for the library, with the memory that they point to.
#[derive(Default)]
pub(crate) struct Infos {
    entries: Vec<abi::Info>,
    kept: Vec<Box<dyn Any>>,
}

impl Infos {
    fn push(&mut self, key: &str, kind: u16, data: abi::Data) {
        let value = abi::Value { kind, data };
        self.entries.push(abi::Info { key: chars(key), flags: 0, value });
    }

    pub(crate) fn text(&mut self, key: &str, text: CString) {
        let data = abi::Data { string: text.as_ptr() };
        self.push(key, abi::STRING, data);
        self.kept.push(Box::new(text));
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) {
        let mut data = abi::Data { all: [0; 3] };
        data.flag = value;
        self.push(key, abi::BOOL, data);
    }

    pub(crate) fn uint16(&mut self, key: &str, value: u16) {
        let mut data = abi::Data { all: [0; 3] };
        data.uint16 = value;
        self.push(key, abi::UINT16, data);
    }

    pub(crate) fn uint32(&mut self, key: &str, value: u32) {
        self.number(key, abi::UINT32, value);
    }

    pub(crate) fn rank(&mut self, key: &str, value: u32) {
        self.number(key, abi::PROC_RANK, value);
    }

    fn number(&mut self, key: &str, kind: u16, value: u32) {
        let mut data = abi::Data { all: [0; 3] };
        data.uint32 = value;
        self.push(key, kind, data);
    }

    pub(crate) fn array(&mut self, key: &str, mut infos: Infos) {
        let (size, array) = (infos.entries.len(), infos.entries.as_mut_ptr().cast());
        self.data_array(key, abi::DataArray { kind: abi::INFO, size, array });
        self.kept.push(Box::new(infos));
    }

    fn data_array(&mut self, key: &str, array: abi::DataArray) {
        let array = Box::new(array);
        self.push(key, abi::DATA_ARRAY, abi::Data { array: &raw const *array });
        self.kept.push(array);
    }
}

/// A text as an array of C, cut to its length with a NUL.
fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from as c_char;
    }
    array
}

/// The functions of the library that a server calls.
pub(crate) struct Library {
    init: abi::ServerInit,
    finalize: abi::ServerFinalize,
    regex: abi::Generate,
    ranks: abi::Generate,
    namespace: abi::RegisterNamespace,
    client: abi::RegisterClient,
    fork: abi::SetupFork,
    error: abi::ErrorString,
}

impl Library {
    /// Loads the library.
    ///
    /// # Errors
    ///
    /// If there is none, or it is none for servers.
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        // Its plugins, if it has any, look for its symbols in the process.
        let how = libc::RTLD_NOW | libc::RTLD_GLOBAL;
        // SAFETY: what initialises the library is the user's.
        let library = unsafe { process::Library::open(&name, how) }.map_err(anyhow::Error::msg)?;
        // SAFETY: the types are those that the PMIx standard has for these names.
        unsafe {
            anyhow::Ok(Self {
                init: function(library, c"PMIx_server_init")?,
                finalize: function(library, c"PMIx_server_finalize")?,
                regex: function(library, c"PMIx_generate_regex")?,
                ranks: function(library, c"PMIx_generate_ppn")?,
                namespace: function(library, c"PMIx_server_register_nspace")?,
                client: function(library, c"PMIx_server_register_client")?,
                fork: function(library, c"PMIx_server_setup_fork")?,
                error: function(library, c"PMIx_Error_string")?,
            })
        }
        .with_context(|| path.display().to_string())
    }

    fn check(&self, status: abi::Status, what: &str) -> anyhow::Result<()> {
        if status == abi::SUCCESS || status == abi::DONE {
            return Ok(());
        }
        // SAFETY: it takes any number, and returns null or a text that stays.
        let text = unsafe { (self.error)(status) };
        let text = match text.is_null() {
            true => status.to_string(),
            // SAFETY: as above.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        bail!("libpmix: {what}: {text}")
    }

    /// Starts the server of this process.
    pub(crate) fn start(&self, infos: &Infos, on_report: OnReport) -> anyhow::Result<()> {
        if ON_REPORT.set(on_report).is_err() {
            bail!("there is a server already");
        }
        let module = Box::leak(Box::new(abi::Module {
            client_connected: ptr::null(),
            client_finalized: Some(finalized),
            abort: Some(aborted),
            fence: Some(fence),
            others: [ptr::null(); 21],
            group: Some(group),
            fabric: ptr::null(),
            client_connected2: Some(connected),
            later: [ptr::null(); 36],
        }));
        // SAFETY: the module stays, and is as large as that of any version. The infos are copied.
        let status = unsafe { (self.init)(module, infos.entries.as_ptr(), infos.entries.len()) };
        self.check(status, "the server does not start")
    }

    /// Returns the library's short form of a list of nodes.
    pub(crate) fn nodes(&self, list: &str) -> anyhow::Result<CString> {
        self.generate(self.regex, list)
    }

    /// Returns the library's short form of the ranks of each node.
    pub(crate) fn ranks(&self, list: &str) -> anyhow::Result<CString> {
        self.generate(self.ranks, list)
    }

    fn generate(&self, function: abi::Generate, list: &str) -> anyhow::Result<CString> {
        let list = CString::new(list)?;
        let mut text = ptr::null_mut();
        // SAFETY: both are a text and a place for one.
        let status = unsafe { function(list.as_ptr(), &raw mut text) };
        self.check(status, "nodes and ranks")?;
        // SAFETY: it succeeded, so this is a text that is ours.
        Ok(unsafe { taken(text) })
    }

    /// Registers a job of so many ranks, which are all of this server.
    pub(crate) fn add_job(&self, name: &str, ranks: u32, infos: &Infos) -> anyhow::Result<()> {
        let name: [c_char; abi::NAMESPACE] = chars(name);
        let (entries, count) = (infos.entries.as_ptr(), infos.entries.len());
        let ranks = c_int::try_from(ranks)?;
        // SAFETY: without a function to call at its end, it returns when it has copied everything.
        let status = unsafe {
            (self.namespace)(name.as_ptr(), ranks, entries, count, None, ptr::null_mut())
        };
        self.check(status, "the job")
    }

    /// Registers a rank of a job, which runs as this user and group. Returns the variables by which
    /// it finds this server.
    pub(crate) fn add_rank(
        &self,
        job: &str,
        rank: u32,
        [user, group]: [u32; 2],
    ) -> anyhow::Result<Variables> {
        let process = abi::Proc { namespace: chars(job), rank };
        let null = ptr::null_mut;
        // SAFETY: as for the job.
        let status =
            unsafe { (self.client)(&raw const process, user, group, null(), None, null()) };
        self.check(status, "a rank")?;
        let mut list: *mut *mut c_char = ptr::null_mut();
        // SAFETY: a process that is registered, and a place for a list, which is empty.
        let status = unsafe { (self.fork)(&raw const process, &raw mut list) };
        self.check(status, "a rank's variables")?;
        let mut variables = Vec::new();
        if list.is_null() {
            return Ok(variables);
        }
        let mut next = list;
        // SAFETY: the list and its texts are ours now, and a null pointer ends it.
        unsafe {
            while !(*next).is_null() {
                let text = taken(*next);
                if let Some((name, value)) = text.to_string_lossy().split_once('=') {
                    variables.push((name.to_owned(), value.to_owned()));
                }
                next = next.add(1);
            }
            libc::free(list.cast());
        }
        Ok(variables)
    }

    /// Ends the server.
    pub(crate) fn stop(&self) {
        // SAFETY: the server has been started, and nothing is called after this.
        unsafe { (self.finalize)() };
    }
}

/// Finds a function.
///
/// # Safety
///
/// `F` is the type of a pointer to it.
unsafe fn function<F: Copy>(library: process::Library, name: &CStr) -> anyhow::Result<F> {
    // SAFETY: promised by the caller.
    let found = unsafe { library.function(name) };
    found.with_context(|| format!("it has no {}", name.to_string_lossy()))
}

/// Takes a text that C has allocated.
///
/// # Safety
///
/// It must be one, and is not used any more.
unsafe fn taken(text: *mut c_char) -> CString {
    // SAFETY: as promised by the caller.
    unsafe {
        let copy = CStr::from_ptr(text).to_owned();
        libc::free(text.cast());
        copy
    }
}

/// Reports about a rank, which the library has called with.
///
/// # Safety
///
/// It is null or points to a process.
unsafe fn report(process: *const abi::Proc, of: impl Fn(u32) -> Report) -> abi::Status {
    // SAFETY: as promised by the caller.
    if let (Some(process), Some(on_report)) = (unsafe { process.as_ref() }, ON_REPORT.get()) {
        on_report(of(process.rank));
    }
    abi::DONE
}

unsafe extern "C" fn connected(
    process: *const abi::Proc,
    _: *mut c_void,
    _: *mut abi::Info,
    _: usize,
    _: abi::Ended,
    _: *mut c_void,
) -> abi::Status {
    // SAFETY: the process that has connected.
    unsafe { report(process, Report::Joined) }
}

unsafe extern "C" fn finalized(
    process: *const abi::Proc,
    _: *mut c_void,
    _: abi::Ended,
    _: *mut c_void,
) -> abi::Status {
    // SAFETY: the process that has called it.
    unsafe { report(process, Report::Finalized) }
}

unsafe extern "C" fn aborted(
    process: *const abi::Proc,
    _: *mut c_void,
    code: c_int,
    _: *const c_char,
    _: *mut abi::Proc,
    _: usize,
    _: abi::Ended,
    _: *mut c_void,
) -> abi::Status {
    // SAFETY: null, or the process that has called it.
    unsafe { report(process, |rank| Report::Aborted(rank, code)) }
}

/// All ranks are of this server, so their data is what it has collected.
unsafe extern "C" fn fence(
    _: *const abi::Proc,
    _: usize,
    _: *const abi::Info,
    _: usize,
    data: *mut c_char,
    size: usize,
    collected: abi::Collected,
    of: *mut c_void,
) -> abi::Status {
    if let Some(collected) = collected {
        // SAFETY: the library's own function with its own argument. The data was allocated by C,
        // belongs to us, and is freed when the library reports that it no longer needs it.
        unsafe { collected(abi::SUCCESS, data, size, of, Some(release), data.cast()) };
    }
    abi::SUCCESS
}

/// Groups, which MPI makes communicators without a parent of, are refused. Without this function
/// their members would wait for ever.
unsafe extern "C" fn group(
    _: c_int,
    _: *mut c_char,
    _: *const abi::Proc,
    _: usize,
    _: *const abi::Info,
    _: usize,
    _: abi::Answered,
    _: *mut c_void,
) -> abi::Status {
    abi::NOT_SUPPORTED
}

unsafe extern "C" fn release(data: *mut c_void) {
    // SAFETY: data of `fence`, which C has allocated.
    unsafe { libc::free(data) };
}
