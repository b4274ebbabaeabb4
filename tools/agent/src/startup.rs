//! Waits for what a node's other programs need: the broker of the device, and the network.
//!
//! They are started beside the agent, by the scripts of this project's init. The agent does not
//! report the node as ready before them, so that programs find them. A script leaves a mark when
//! nothing comes for which there must be a wait, or has come.

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
/// The node's own network interface.
const INTERFACE: &str = "/sys/class/net/tofu0";
/// The scripts.
const SCRIPTS: &str = "/usr/local/lib/tofu/session";
/// The longest time to wait for the broker, in guests that may be slow.
const BROKER: Duration = Duration::from_secs(10);
/// The longest time to wait for the network, whose script runs several programs. It has to do
/// without the device while a program has it alone.
const NETWORK: Duration = Duration::from_secs(30);
/// The longest time to wait for each of them in a system with an init that may know neither.
const OTHERS: Duration = Duration::from_secs(1);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until the broker and the network are ready, or none is coming, for a limited time.
pub fn wait() {
    if Path::new(HELD).exists() {
        return;
    }
    let marks = Path::new(MARKS);
    let limit = |own| if Path::new(SCRIPTS).exists() { own } else { OTHERS };
    until(limit(BROKER), || marks.join("broker").exists() || has_socket(Path::new(SOCKETS)));
    until(limit(NETWORK), || marks.join("network").exists() || is_up(Path::new(INTERFACE)));
}

/// Returns whether an interface of `tofu-net` carries frames, before which it gets its addresses.
///
/// The driver's interface, which has this folder, carries frames as soon as it is up. The script
/// gives it addresses later, and then leaves its mark.
fn is_up(interface: &Path) -> bool {
    let carrier = fs::read_to_string(interface.join("carrier"));
    carrier.is_ok_and(|carrier| carrier.trim() == "1") && !interface.join("tofu").exists()
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
    fn carrier_of_the_driver_is_not_enough() {
        let folder = tempfile::tempdir().unwrap();
        let is_up_with = |text: &str| {
            fs::write(folder.path().join("carrier"), text).unwrap();
            is_up(folder.path())
        };
        assert!(!is_up(folder.path()));
        assert!(!is_up_with("0\n"));
        assert!(is_up_with("1\n"));
        fs::create_dir(folder.path().join("tofu")).unwrap();
        assert!(!is_up_with("1\n"));
    }

    #[test]
    fn waits_are_limited() {
        assert!(until(Duration::ZERO, || true));
        assert!(!until(Duration::from_millis(1), || false));
    }
}
