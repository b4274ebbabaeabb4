//! Subnets of users: the nodes that their programs' queues and gates may reach.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context;
use tofu_abi::Subnet;
use tofu_tof::TofDevice;
use tofu_vfio::broker::{FOLDER, subnet_path};

/// Sets it in the kernel driver, and for `tofud` by a file, whichever exists.
pub(crate) fn limit(user: u32, subnet: Option<Subnet>) -> anyhow::Result<()> {
    if TofDevice::is_there() {
        let limited = TofDevice::open().and_then(|device| device.limit_user(user, subnet));
        limited.context("the kernel driver does not take the subnet")?;
    }
    if !Path::new(FOLDER).exists() {
        return Ok(());
    }
    let path = subnet_path(user);
    let done = match subnet {
        Some(subnet) => write(&path, &subnet.to_string()),
        None => match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    };
    done.with_context(|| path.display().to_string())
}

/// Writes a file that is complete as soon as it exists.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, path)
}
