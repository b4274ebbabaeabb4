//! The file of a queue or channel.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use tofu_driver::UserPage;

use crate::error::OpenError;
use crate::page::Page;
use crate::{signal, uapi};

/// The folder of the driver's files.
pub(crate) const FILES: &str = "/proc/tofu";

/// A file that is open, and its page of registers.
///
/// The page is dropped before the file. Dropping the file closes it for the last time, which stops
/// its queue or channel.
#[derive(Debug)]
pub struct PageFile {
    page: Page,
    file: File,
}

impl PageFile {
    pub(crate) fn open(name: &str) -> Result<Self, OpenError> {
        let path = Path::new(FILES).join("dev").join(name);
        let file = File::options().read(true).write(true).open(path)?;
        if let Some(number) = signal::ignored() {
            uapi::set_rt_signal(file.as_fd(), number)?;
        }
        let page = Page::map(file.as_fd())?;
        Ok(Self { page, file })
    }

    /// Reads the word that the kernel has about the queue or channel. An error is the system's.
    pub(crate) fn word(&self) -> io::Result<u64> {
        let mut word = [0; 8];
        (&self.file).read_exact(&mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Returns true if the device has lost the queue or channel. A driver that is older than this
    /// library does not say.
    pub(crate) fn is_lost(&self) -> bool {
        self.word().is_err_and(|error| error.raw_os_error() == Some(libc::EIO))
    }
}

impl AsFd for PageFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl UserPage for PageFile {
    fn read(&self, offset: u64) -> u64 {
        self.page.read(offset)
    }

    #[inline]
    fn write(&self, offset: u64, value: u64) {
        self.page.write(offset, value);
    }
}
