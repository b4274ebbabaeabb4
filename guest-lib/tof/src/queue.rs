//! A control queue that the kernel sets up.

use std::os::fd::AsFd;

use tofu_abi::queue::queue_entries;
use tofu_abi::tof::{InitCq, VERSION};
use tofu_abi::{CqId, TniId};
use tofu_driver::{RingMemory, Rings};

use crate::buffer::Buffer;
use crate::error::{OpenError, RegisterError};
use crate::file::PageFile;
use crate::uapi;

/// The settings of a control queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// Network interface.
    pub tni: TniId,
    /// Control queue; the kernel's is not allowed.
    pub cq: CqId,
    /// Size code of the transmit queues, see [`tofu_abi::queue::queue_entries`].
    pub toq_size: u8,
    /// Size code of the message receive queue.
    pub mrq_size: u8,
    /// Commands start as the session advances.
    pub session: bool,
}

/// A control queue of this process. The process has its rings and its page; the kernel has its
/// registers and its tables.
///
/// Dropping it closes it. Registered memory is no longer used after that.
#[derive(Debug)]
pub struct ControlQueue {
    rings: Rings<Buffer, PageFile>,
}

impl ControlQueue {
    /// Opens a queue.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    #[allow(unsafe_code)]
    pub fn open(config: &QueueConfig) -> Result<Self, OpenError> {
        let &QueueConfig { tni, cq, toq_size, mrq_size, session } = config;
        let entries = |code: u8| queue_entries(code.into()).ok_or(OpenError::Size);
        let (orders, notices) = (entries(toq_size)?, entries(mrq_size)?);
        let page = PageFile::open(&format!("tni{tni}cq{cq}"))?;
        let memory = RingMemory::new(orders, notices, Buffer::new)?;
        // Cache injection, as on real systems.
        let init = InitCq {
            version: VERSION,
            num_stag: 0,
            tcq_cinj: 1,
            mrq_cinj: 1,
            session_mode: session.into(),
            toq_size,
            mrq_size,
            toq_mem: memory.toq_addr(),
            tcq_mem: memory.tcq_addr(),
            mrq_mem: memory.mrq_addr(),
        };
        // SAFETY: device addresses of buffers are addresses of this process. Rings access them by
        // atomic loads and stores, and keep them until the page is unmapped and the file closed.
        unsafe { uapi::init_cq(page.as_fd(), init)? };
        Ok(Self { rings: Rings::new(memory, page) })
    }

    /// The rings to post to and poll.
    pub const fn rings(&self) -> &Rings<Buffer, PageFile> {
        &self.rings
    }

    /// The rings to post to and poll.
    pub const fn rings_mut(&mut self) -> &mut Rings<Buffer, PageFile> {
        &mut self.rings
    }

    /// Registers memory of this process under the STag `wanted`, below 4096, or under the lowest
    /// free one from 4096 on: an even one if others may write to the memory, an odd one otherwise.
    /// Returns the STag and the offset of the first byte.
    ///
    /// # Errors
    ///
    /// See [`RegisterError`].
    ///
    /// # Safety
    ///
    /// Until [`ControlQueue::deregister`], or until the queue is closed, the process treats the
    /// memory as memory that others may change at any time. It may be unmapped: then others can no
    /// longer reach it.
    #[allow(unsafe_code)]
    pub unsafe fn register(
        &self,
        addr: usize,
        len: usize,
        wanted: Option<u32>,
        read_only: bool,
    ) -> Result<(u32, u64), RegisterError> {
        let file = self.rings.page().as_fd();
        // SAFETY: as promised to this function.
        Ok(unsafe { uapi::alloc_stag(file, addr, len, wanted, read_only)? })
    }

    /// Returns true if the device still has the queue. It loses it if it is reset.
    pub fn works(&self) -> bool {
        !self.rings.page().is_lost()
    }

    /// Deregisters memory. When it returns, the device no longer uses it. It makes no difference
    /// whether the kernel has already done so because the memory was unmapped or the queue lost.
    ///
    /// # Errors
    ///
    /// If the device does not release it.
    pub fn deregister(&self, stag: u32) -> Result<(), RegisterError> {
        match uapi::free_stag(self.rings.page().as_fd(), stag) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EIO)) => {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }
}
