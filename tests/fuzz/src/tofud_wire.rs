//! Messages of processes to `tofud`, which shares a node's device among them.
//!
//! Each process is served or dropped, and the device is released when all have gone.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arbitrary::{Result, Unstructured};
use rustix::event::Timespec;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use tofu_abi::regs::BAR0_SIZE;
use tofu_abi::{CqId, TniId};
use tofu_vfio::Layout;
use tofu_vfio::broker::wire::{Answer, SpaceKind, Terms, receive};
use tofud::{Refused, Server, SharedDevice, Source};

/// Processes of one input, and messages, at most.
const PROCESSES: usize = 4;
const MOST: usize = 64;

/// A device that is not used.
struct Device(File);

struct Fake;

impl Source for Fake {
    type Device = Device;

    fn open(&self, _: bool) -> std::result::Result<Device, String> {
        let file = memfd_create("device", MemfdFlags::CLOEXEC);
        file.map(|file| Device(file.into())).map_err(|error| error.to_string())
    }

    fn lend(&self) -> std::result::Result<bool, Refused> {
        Ok(false)
    }

    fn give_back(&self) -> std::result::Result<(), String> {
        Ok(())
    }
}

impl SharedDevice for Device {
    fn terms(&self) -> io::Result<(Terms, [BorrowedFd<'_>; 2])> {
        let registers = Layout::whole(0, BAR0_SIZE);
        let terms = Terms { registers, page: 4096, space: SpaceKind::Container };
        Ok((terms, [self.0.as_fd(), self.0.as_fd()]))
    }

    fn grant_addresses(&self, size: u64) -> Option<(u64, u64)> {
        (size <= 1 << 40).then_some((0, size))
    }

    fn take_addresses_back(&self, _: u64, _: u64) -> std::result::Result<(), String> {
        Ok(())
    }

    fn interrupt(&self, _: u16) -> io::Result<BorrowedFd<'_>> {
        Ok(self.0.as_fd())
    }

    fn stop_packets(&self, _: TniId) {}

    fn stop_queues(&self, _: &[(TniId, CqId)]) -> Vec<(TniId, CqId)> {
        Vec::new()
    }

    fn stop_gates(&self, _: &[u64; 6]) -> bool {
        true
    }
}

/// Runs one input: messages, each after a byte with its process and a byte with its length.
pub fn run(data: &[u8]) {
    let _ = play(&mut Unstructured::new(data));
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets are left")
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    // It gets no connections: processes are added.
    let (listener, _other) = pair();
    let mut server = Server::new(listener, Fake);
    let mut processes: [Option<OwnedFd>; PROCESSES] = Default::default();
    for _ in 0..MOST {
        if u.is_empty() {
            break;
        }
        let (who, length) = (u.arbitrary::<u8>()?, u.arbitrary::<u8>()?);
        let process = &mut processes[usize::from(who) % PROCESSES];
        let message = u.bytes(usize::from(length).min(u.len()))?;
        let socket = process.get_or_insert_with(|| {
            let (ours, theirs) = pair();
            server.add(theirs);
            ours
        });
        // It may have been turned away.
        let _ = send(socket.as_fd(), message, SendFlags::NOSIGNAL);
        let _ = server.turn(Some(&Timespec::default()));
        while let Ok(Some(_)) = receive::<Answer>(socket.as_fd()) {}
        if who >= 0xf0 {
            *process = None;
        }
        assert!(server.users() <= PROCESSES);
    }
    drop(processes);
    for _ in 0..2 * PROCESSES {
        let _ = server.turn(Some(&Timespec::default()));
    }
    assert_eq!(server.users(), 0, "the device is unused");
    Ok(())
}
