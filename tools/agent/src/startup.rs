//! Waits for what a node's other programs need: the broker of the device, and the network.
//!
//! They are started beside the agent, by the scripts of this project's init. The agent does not
//! report the node as ready before them, so that programs find them. A script that starts nothing
//! leaves a mark, so that there is no wait for it.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A FIFO that exists in a node from which clones are made. Its other programs wait until it is
/// opened for writing.
pub(crate) const HELD: &str = "/run/tofu-held";
/// The folder of the scripts' marks.
const MARKS: &str = "/run/tofu-session";
/// The folder of the brokers' sockets.
const SOCKETS: &str = "/run/tofu";
/// The state of the node's own network interface.
const CARRIER: &str = "/sys/class/net/tofu0/carrier";
/// The longest time to wait for the broker.
const BROKER: Duration = Duration::from_secs(1);
/// The longest time to wait for the network. It has to do without the device while a program has it
/// alone.
const NETWORK: Duration = Duration::from_secs(2);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until the broker and the network are ready, or none is coming, for a limited time.
pub fn wait() {
    if Path::new(HELD).exists() {
        return;
    }
    until(BROKER, || is_marked("broker") || has_socket(Path::new(SOCKETS)));
    until(NETWORK, || {
        is_marked("network")
            // The driver's interface reports its carrier as soon as it is up. On the only node of a
            // machine the carrier stays 0.
            || match fs::read_to_string(CARRIER).as_deref().map(str::trim) {
                Ok("1") => true,
                Ok("0") => Path::new(CARRIER).with_file_name("tofu").exists(),
                _ => false,
            }
    });
}

/// Waits until `is_done`, or for `limit`. Returns whether it is.
pub(crate) fn until(limit: Duration, is_done: impl Fn() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if is_done() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        sleep(PAUSE);
    }
}

fn is_marked(script: &str) -> bool {
    Path::new(MARKS).join(script).exists()
}

fn has_socket(folder: &Path) -> bool {
    let socket = |entry: fs::DirEntry| entry.path().extension().is_some_and(|end| end == "sock");
    fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_socket(&folder.path().join("none")));
        fs::write(folder.path().join("tofud.log"), "").unwrap();
        assert!(!has_socket(folder.path()));
        fs::write(folder.path().join("0000:01:00.0.sock"), "").unwrap();
        assert!(has_socket(folder.path()));
    }

    #[test]
    fn waits_are_limited() {
        assert!(until(Duration::ZERO, || true));
        assert!(!until(Duration::from_millis(1), || false));
    }
}
