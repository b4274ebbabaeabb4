//! Guest programs for Linux nodes.

use std::borrow::Cow;
use std::sync::Arc;

use tofu_programs::{LINUX, Shipped, for_linux};

use crate::guests::{GuestError, GuestName, read_program};

/// A program for Linux nodes, in memory.
#[derive(Clone, Debug)]
pub(crate) struct LinuxGuest {
    /// Name for people.
    pub(crate) name: String,
    /// The file: an ELF program, or a script.
    pub(crate) image: Arc<Cow<'static, [u8]>>,
}

/// The largest program that is copied to nodes, in bytes.
const MAX_IMAGE: u64 = 1 << 28;

impl LinuxGuest {
    /// Finds or reads a program.
    pub(crate) fn load(name: &GuestName) -> Result<Self, GuestError> {
        match name {
            GuestName::Shipped(wanted) => {
                let shipped = for_linux(wanted);
                let shipped = shipped.ok_or_else(|| GuestError::Unknown(wanted.clone()))?;
                Ok(Self { name: wanted.clone(), image: Arc::new(Cow::Borrowed(shipped.image)) })
            }
            GuestName::File(path) => {
                let (name, image) = read_program(path, MAX_IMAGE)?;
                Ok(Self { name, image: Arc::new(Cow::Owned(image)) })
            }
        }
    }
}

/// Programs of ours that every image has.
///
/// # Errors
///
/// None as long as the shipped programs have proper names.
pub(crate) fn tools() -> tofu_image::Result<Vec<tofu_image::Program>> {
    let program =
        |shipped: &Shipped| tofu_image::Program::new(shipped.name, shipped.image.to_vec());
    LINUX.iter().map(program).collect()
}
