//! Connects the port again after the node was suspended.
//!
//! A virtio port loses its state when its node suspends. Afterwards Linux 7.3 does not detect that
//! the host is connected, and holds back all writes to it (6.12 does detect it). Binding the device
//! to its driver again makes the host report the connection.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use std::{fs, io, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The time for which a port may be without a host. At boot, the host says very soon that it is
/// there.
const WITHOUT_HOST: Duration = Duration::from_secs(3);
/// The folder of the ports' driver.
const DRIVER: &str = "/sys/bus/virtio/drivers/virtio_console";

/// Starts a thread that watches the port at `path`, which was opened as `port`, until the port is
/// gone.
///
/// # Errors
///
/// If the system has no threads or descriptors left.
pub fn watch(path: &Path, port: &impl AsFd) -> io::Result<()> {
    let (path, port) = (path.to_owned(), port.as_fd().try_clone_to_owned()?);
    thread::Builder::new().name("wakeup".into()).spawn(move || run(&path, port)).map(drop)
}

fn run(path: &Path, port: OwnedFd) {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        // A node that wakes up restarts its system calls, so this call returns the port's new
        // state.
        match is_without_host(&port, None) {
            Ok(_) => thread::sleep(WITHOUT_HOST),
            Err(Errno::INTR) => continue,
            Err(_) => return,
        }
        if is_without_host(&port, Some(&now)) == Ok(true) {
            drop(port);
            if let Err(error) = rebind(path) {
                eprintln!("{}: {error}", path.display());
            }
            return;
        }
    }
}

fn is_without_host(port: &OwnedFd, timeout: Option<&Timespec>) -> rustix::io::Result<bool> {
    let mut fds = [PollFd::new(port, PollFlags::empty())];
    poll(&mut fds, timeout)?;
    Ok(fds[0].revents().contains(PollFlags::HUP))
}

/// Binds the port's device to its driver again. Reads and writes of the port then fail, and it is
/// opened again.
fn rebind(port: &Path) -> io::Result<()> {
    let port = fs::canonicalize(port)?;
    let name = port.file_name().unwrap_or_default();
    let device = fs::canonicalize(Path::new("/sys/class/virtio-ports").join(name).join("device"))?;
    let device = device.file_name().unwrap_or_default();
    for what in ["unbind", "bind"] {
        fs::write(Path::new(DRIVER).join(what), device.as_encoded_bytes())?;
    }
    Ok(())
}
