//! The block device (1.2, 5.2): a raw image.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use vm_memory::{ReadVolatile, VolatileMemoryError, WriteVolatile};

use crate::Error;
use crate::device::{Device, Identity, Io, Work};
use crate::regs::kind;
use crate::ring::{Broken, Chain};

/// Size of a sector in bytes (1.2, 5.2.4).
pub const SECTOR: u64 = 512;
/// Buffers of a request at most, and bytes in each at most (ours).
const SEG_MAX: u32 = 64;
const SIZE_MAX: u32 = 64 << 10;
/// The most bytes that a request may move (ours): as many as a driver can request within the limits
/// in the configuration.
pub const MAX_REQUEST: u64 = SEG_MAX as u64 * SIZE_MAX as u64;

const QUEUE: usize = 0;
const QUEUE_SIZE: u16 = 128;
/// Requests in a turn.
const TURN: usize = 4;

/// Feature bits (1.2, 5.2.3).
const F_SIZE_MAX: u64 = 1 << 1;
const F_SEG_MAX: u64 = 1 << 2;
const F_RO: u64 = 1 << 5;
const F_BLK_SIZE: u64 = 1 << 6;
const F_FLUSH: u64 = 1 << 9;

/// Request types (1.2, 5.2.6).
const T_IN: u32 = 0;
const T_OUT: u32 = 1;
const T_FLUSH: u32 = 4;
const T_GET_ID: u32 = 8;

/// Request status.
const S_OK: u8 = 0;
const S_IOERR: u8 = 1;
const S_UNSUPP: u8 = 2;

const HEADER: u64 = 16;
const ID_LEN: usize = 20;

/// The configuration of a block device.
#[derive(Clone, Debug)]
pub struct BlockConfig {
    /// A raw image or a block device of the host. Its length in whole sectors is the capacity.
    pub path: PathBuf,
    /// The guest cannot write; the image may be in use by other read-only devices.
    pub read_only: bool,
    /// The serial number that the guest sees; cut at 20 bytes.
    pub id: String,
}

/// A block device over a raw image, which it keeps locked (flock): for itself alone if it
/// writes, together with other readers if it does not.
#[derive(Debug)]
pub struct Block {
    path: PathBuf,
    file: File,
    sectors: u64,
    read_only: bool,
    id: [u8; ID_LEN],
}

impl Block {
    /// Opens and locks the image.
    ///
    /// # Errors
    /// [`Error::Image`] if it cannot be opened, is no file or block device, is shorter than a
    /// sector, or is in conflicting use.
    pub fn open(config: &BlockConfig) -> Result<Self, Error> {
        let fail = |reason: String| Error::Image { path: config.path.clone(), reason };
        let (file, length) = open(&config.path, config.read_only).map_err(fail)?;
        let sectors = length / SECTOR;
        if sectors == 0 {
            return Err(fail(format!("{length} bytes are less than a sector of {SECTOR}")));
        }
        let mut id = [0; ID_LEN];
        for (to, from) in id.iter_mut().zip(config.id.bytes()) {
            *to = from;
        }
        Ok(Self { path: config.path.clone(), file, sectors, read_only: config.read_only, id })
    }
}

fn open(path: &Path, read_only: bool) -> Result<(File, u64), String> {
    let opened = OpenOptions::new().read(true).write(!read_only).open(path);
    let mut file = opened.map_err(|error| error.to_string())?;
    let kind = file.metadata().map_err(|error| error.to_string())?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err("neither a file nor a block device".to_owned());
    }
    let locked = if read_only { file.try_lock_shared() } else { file.try_lock() };
    locked.map_err(|error| match error {
        TryLockError::WouldBlock if read_only => "in use by someone who writes to it".to_owned(),
        TryLockError::WouldBlock => {
            "in use by someone else; only read-only uses can be shared".to_owned()
        }
        TryLockError::Error(error) => format!("cannot be locked: {error}"),
    })?;
    // A block device's length is not in its metadata.
    let length = file.seek(SeekFrom::End(0)).map_err(|error| error.to_string())?;
    Ok((file, length))
}

impl Block {
    /// Serves a request; returns its status and how many bytes of data were written to the guest.
    fn serve(&mut self, io: &Io<'_>, chain: &Chain) -> Result<(u8, u64), Broken> {
        let mut header = [0; HEADER as usize];
        chain.read(io.memory(), 0, &mut header)?;
        let [t0, t1, t2, t3, _, _, _, _, sector @ ..] = header;
        let sector = u64::from_le_bytes(sector);
        let (from_guest, to_guest) = (chain.readable() - HEADER, chain.writable() - 1);
        let result = match u32::from_le_bytes([t0, t1, t2, t3]) {
            T_IN => self.place(sector, to_guest).and_then(|()| self.read(io, chain, to_guest)),
            T_OUT if self.read_only => Err(Failure::Guest),
            T_OUT => {
                self.place(sector, from_guest).and_then(|()| self.write(io, chain, from_guest))
            }
            T_FLUSH => self.file.sync_data().map(|()| 0).map_err(Failure::from),
            T_GET_ID => {
                let len = to_guest.min(ID_LEN as u64);
                chain.write(io.memory(), 0, &self.id[..len as usize])?;
                Ok(len)
            }
            _ => return Ok((S_UNSUPP, 0)),
        };
        Ok(match result {
            Ok(written) => (S_OK, written),
            Err(failure) => {
                if let Failure::Host(reason) = failure {
                    io.complain(&format_args!("{}: {reason}", self.path.display()));
                }
                (S_IOERR, 0)
            }
        })
    }

    /// Goes to the place of a transfer, if that is possible.
    fn place(&mut self, sector: u64, len: u64) -> Result<(), Failure> {
        let end = sector.checked_add(len / SECTOR);
        let possible = len.is_multiple_of(SECTOR)
            && len <= MAX_REQUEST
            && end.is_some_and(|end| end <= self.sectors);
        if !possible {
            return Err(Failure::Guest);
        }
        self.file.seek(SeekFrom::Start(sector * SECTOR))?;
        Ok(())
    }

    fn read(&mut self, io: &Io<'_>, chain: &Chain, len: u64) -> Result<u64, Failure> {
        for slice in chain.write_slices(io.memory(), 0, len) {
            self.file.read_exact_volatile(&mut slice?)?;
        }
        Ok(len)
    }

    fn write(&mut self, io: &Io<'_>, chain: &Chain, len: u64) -> Result<u64, Failure> {
        // All or nothing: a buffer outside of memory must not cost half of what was there.
        let slices = || chain.read_slices(io.memory(), HEADER, len);
        slices().try_for_each(|slice| slice.map(drop))?;
        for slice in slices() {
            self.file.write_all_volatile(&slice?)?;
        }
        if !io.negotiated(F_FLUSH) {
            // Such a driver takes what was written for stable (1.2, 5.2.6.2).
            self.file.sync_data()?;
        }
        Ok(0)
    }
}

/// The reason why a request failed.
enum Failure {
    /// It is malformed.
    Guest,
    /// The host could not do it.
    Host(String),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Host(error.to_string())
    }
}

impl From<VolatileMemoryError> for Failure {
    fn from(error: VolatileMemoryError) -> Self {
        Self::Host(error.to_string())
    }
}

impl From<Broken> for Failure {
    fn from(_: Broken) -> Self {
        Self::Guest
    }
}

impl Device for Block {
    fn identity(&self) -> Identity {
        // Up to and including the block size (1.2, 5.2.4).
        let mut config = vec![0; 24];
        config[..8].copy_from_slice(&self.sectors.to_le_bytes());
        config[8..12].copy_from_slice(&SIZE_MAX.to_le_bytes());
        config[12..16].copy_from_slice(&SEG_MAX.to_le_bytes());
        config[20..24].copy_from_slice(&(SECTOR as u32).to_le_bytes());
        Identity {
            kind: kind::BLOCK,
            // Mass storage of another kind.
            class: 0x01_80_00,
            features: F_SIZE_MAX
                | F_SEG_MAX
                | F_BLK_SIZE
                | F_FLUSH
                | if self.read_only { F_RO } else { 0 },
            queues: vec![QUEUE_SIZE],
            config,
        }
    }

    fn work(&mut self, io: &mut Io<'_>) -> Result<Work, Broken> {
        for _ in 0..TURN {
            let Some(chain) = io.pop(QUEUE)? else { return Ok(Work::Done) };
            if chain.readable() < HEADER || chain.writable() < 1 {
                return Err(Broken("a request without header or status"));
            }
            let (status, written) = self.serve(io, &chain)?;
            chain.write(io.memory(), chain.writable() - 1, &[status])?;
            // The status byte counts too.
            io.complete(QUEUE, chain, written as u32 + 1)?;
        }
        Ok(Work::More)
    }

    fn reset(&mut self) {}
}
