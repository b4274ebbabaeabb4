//! An interface is made and disappears with its descriptor, where the host permits that.

use std::path::Path;

use rustix::io::Errno;
use tofu_tap::{DEVICE, attach, open};

#[test]
fn interface_lives_with_its_descriptor() {
    let name = format!("tap{}", std::process::id() % 1_000_000);
    let place = Path::new("/sys/class/net").join(&name);
    let Ok(tun) = open() else { return eprintln!("skipped: {DEVICE} cannot be opened") };
    match attach(&tun, &name, libc::IFF_TUN_EXCL) {
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            return eprintln!("skipped: this takes CAP_NET_ADMIN");
        }
        made => made.unwrap(),
    }
    assert!(place.exists(), "{name} is not there");
    let again = attach(&open().unwrap(), &name, libc::IFF_TUN_EXCL).unwrap_err();
    assert_eq!(again.raw_os_error(), Some(Errno::BUSY.raw_os_error()), "{again}");
    drop(tun);
    assert!(!place.exists(), "{name} has stayed");
}
