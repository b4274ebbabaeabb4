//! Finding and loading the library.
#![allow(unsafe_code, reason = "the dynamic loader")]

use std::env;
use std::ffi::{CStr, CString, OsStr, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf, absolute};
use std::sync::OnceLock;

use thiserror::Error;
use tofu_process as process;

use crate::table::{Entry, FILE, SYMBOL, Table, VERSION};

/// The reason why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoadError {
    /// It is not there, or the loader refuses it.
    #[error(
        "{FILE} is needed, and neither {folder} nor the path of libraries has it ({why}): copy it \
         to that folder from the host's libraries of tofu; `tofu sdk` has it, and `cargo build \
         --release -p tofu-local` makes it"
    )]
    Absent {
        /// The folder in which it should be.
        folder: String,
        /// The loader's reason.
        why: String,
    },
    /// It is there, but the loader refuses it.
    #[error("{FILE} does not load: {0}")]
    Refused(String),
    /// It is something else.
    #[error("{0} is not tofu's: it has no table of functions")]
    Foreign(String),
    /// It belongs to another version of tofu.
    #[error(
        "{file} has version {found} of its functions, and this library needs {VERSION}: take both \
         from the same build of tofu"
    )]
    Version {
        /// The library.
        file: String,
        /// The version that it has.
        found: u32,
    },
}

/// The library, which stays loaded.
#[derive(Clone, Copy, Debug)]
pub struct Library(&'static Table);

/// The table of a program that contains the devices itself.
static OWN: OnceLock<&'static Table> = OnceLock::new();

impl Library {
    /// Loads the library from the folder that has this code, or else from where the loader looks.
    ///
    /// # Errors
    ///
    /// See [`LoadError`].
    pub fn load() -> Result<Self, LoadError> {
        if let Some(table) = OWN.get() {
            return Ok(Self(table));
        }
        let folder = own_folder();
        let beside = folder.as_ref().map(|folder| folder.join(FILE));
        let found = beside.filter(|path| path.exists());
        let file = found.clone().unwrap_or_else(|| FILE.into());
        Self::open(&file).map_err(|error| match error {
            LoadError::Refused(why) if found.is_none() => {
                let folder = folder.unwrap_or_else(|| PathBuf::from("this program's folder"));
                LoadError::Absent { folder: folder.display().to_string(), why }
            }
            error => error,
        })
    }

    /// Takes the functions of a program that contains the devices itself: the library is not
    /// loaded, and a statically linked program can have devices.
    pub fn provide(table: &'static Table) {
        let _ = OWN.set(table);
    }

    fn open(file: &Path) -> Result<Self, LoadError> {
        let shown = || file.display().to_string();
        let name = CString::new(file.as_os_str().as_bytes());
        let name = name.map_err(|_| LoadError::Refused(shown()))?;
        // SAFETY: what initialises the library is ours, or the user's.
        let library = unsafe { process::Library::open(&name, libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let library = library.map_err(LoadError::Refused)?;
        // SAFETY: all versions of the library have a function of this type with this name.
        let entry = unsafe { library.function::<Entry>(SYMBOL) };
        let table = entry.ok_or_else(|| LoadError::Foreign(shown()))?();
        // SAFETY: null, or a table that stays. Every version begins with its number, so no more
        // than that is looked at.
        match unsafe { table.cast::<u32>().as_ref() } {
            None => Err(LoadError::Foreign(shown())),
            // SAFETY: the version says that the type is this one.
            Some(&VERSION) => Ok(Self(unsafe { &*table })),
            Some(&found) => Err(LoadError::Version { file: shown(), found }),
        }
    }

    /// Returns the functions.
    pub(crate) fn table(self) -> &'static Table {
        self.0
    }
}

/// Returns the folder of the shared library or program that has this code.
fn own_folder() -> Option<PathBuf> {
    let here = own_folder as *const c_void;
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the place can be written to; the address is only compared.
    let found = unsafe { libc::dladdr(here, info.as_mut_ptr()) };
    // SAFETY: zeros are valid, and so is what the loader has written.
    let name = unsafe { info.assume_init() }.dli_fname;
    if found == 0 || name.is_null() {
        return None;
    }
    // SAFETY: a text of the loader, which stays while this code is loaded.
    let name = OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes());
    // A program itself has the name that it was called by.
    let path = match env::args_os().next() {
        Some(called) if called == name => env::current_exe().ok()?,
        _ => absolute(name).ok()?,
    };
    path.parent().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_that_of_this_code() {
        let own = env::current_exe().unwrap();
        assert_eq!(own_folder().as_deref(), own.parent());
    }

    #[test]
    fn another_library_is_not_taken() {
        let error = Library::open(Path::new("libc.so.6")).unwrap_err();
        assert_eq!(error, LoadError::Foreign("libc.so.6".to_owned()));
        let error = Library::open(Path::new("/nonexistent/libtofulocal.so")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/libtofulocal.so"), "{error}");
    }
}
