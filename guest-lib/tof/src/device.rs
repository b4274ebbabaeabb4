//! The device of this computer, and the queues and gates of it that this process has.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use tofu_abi::regs::{NUM_TNI, NodeAddress};
use tofu_abi::tof::NO_GROUP;
use tofu_abi::{BgId, Coords, CqId, Generation, Subnet, TniId};

use crate::file::FILES;
use crate::locks::{Claim, Locks};
use crate::uapi;

/// The device of this computer, through the kernel driver.
#[derive(Debug)]
pub struct TofDevice {
    coords: Coords,
    generation: Generation,
    locks: Locks,
}

impl TofDevice {
    /// Returns true if there is a kernel driver.
    pub fn is_there() -> bool {
        Path::new(FILES).join("position").exists()
    }

    /// The device that the kernel driver has.
    ///
    /// # Errors
    ///
    /// If there is no driver, or it does not say where the node is.
    pub fn open() -> io::Result<Self> {
        let path = Path::new(FILES).join("position");
        let mut file = File::options().read(true).write(true).open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let coords = parse(&text).ok_or(io::ErrorKind::InvalidData)?;
        // A driver that does not say drives TofuD alone.
        let generation = match fs::read_to_string(Path::new(FILES).join("generation")) {
            Ok(name) => Generation::from_name(name.trim_end()).ok_or(io::ErrorKind::InvalidData)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Generation::Fugaku,
            Err(error) => return Err(error),
        };
        Ok(Self { coords, generation, locks: Locks::new(file) })
    }

    /// The node.
    pub const fn coords(&self) -> Coords {
        self.coords
    }

    /// The device's generation.
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// Confines the queues and gates that a user opens from now on to a subnet, in the given group
    /// of the user's number. `None` removes the limit. Open ones do not change. For root only.
    ///
    /// # Errors
    ///
    /// The driver's error: it has room for 1024 such users.
    pub fn limit_user(&self, user: u32, subnet: Option<Subnet>) -> io::Result<()> {
        let control = File::options().write(true).open(Path::new(FILES).join("dev/control"))?;
        let description = self.generation.description();
        let queues = [(1 << description.user_cqs()) - 1; NUM_TNI];
        let gates = description.user_gates();
        let group = subnet.map_or(NO_GROUP, |_| user);
        let subnet = subnet.unwrap_or_default();
        uapi::register_user(control.as_fd(), (user, group), subnet, &queues, &gates)
    }

    /// Claims a queue among the processes that use this library; `false` if another one has it.
    ///
    /// # Errors
    ///
    /// Of a system without locks.
    pub fn lock_queue(&self, tni: TniId, cq: CqId) -> io::Result<bool> {
        self.locks.take(Claim::Queue { tni, cq })
    }

    /// Gives up [`TofDevice::lock_queue`].
    pub fn unlock_queue(&self, tni: TniId, cq: CqId) {
        self.locks.give(Claim::Queue { tni, cq });
    }

    /// Claims a barrier gate, as [`TofDevice::lock_queue`] does queues.
    ///
    /// # Errors
    ///
    /// Of a system without locks.
    pub fn lock_gate(&self, tni: TniId, bg: BgId) -> io::Result<bool> {
        self.locks.take(Claim::Gate { tni, bg })
    }

    /// Gives up [`TofDevice::lock_gate`].
    pub fn unlock_gate(&self, tni: TniId, bg: BgId) {
        self.locks.give(Claim::Gate { tni, bg });
    }
}

/// Six numbers.
fn parse(text: &str) -> Option<Coords> {
    let coords = Coords::from_decimals(text.split_whitespace())?;
    (NodeAddress::from_coords(coords).coords() == coords).then_some(coords)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_six_coordinates() {
        assert_eq!(parse("3 0 31 1 2 0\n"), Some(Coords::new(3, 0, 31, 1, 2, 0)));
        for bad in ["", "1 2 3", "1 2 3 4 5 6", "-1 0 0 0 0 0", "32 0 0 0 0 0", "x"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
