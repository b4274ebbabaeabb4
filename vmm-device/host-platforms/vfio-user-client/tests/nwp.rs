//! Two network processors of TNW behind sockets, driven from here, by stores to registers and by
//! stores to memory.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tofu_abi::Coords;
use tofu_abi::tnw::{self, ChannelReg, Features, NwpReg, Register};
use tofu_driver::{DmaBuffer, Platform};
use tofu_machine::{Doorbells, Torus, TorusConfig};
use tofu_tnw::{Channel, Link, Nwp, Outcome, Status, Windows};
use tofu_vfio_user::{Backing, ClientMemory, ClientWindows, Limits, Server};
use tofu_vfio_user_client::SocketPlatform;

/// The longest time for anything, in nanoseconds.
const PATIENCE: u64 = 60_000_000_000;
/// More than a window has room for, and not a multiple of a packet.
const LENGTH: usize = 40_001;
const LINK: Link = Link::ALL[1];
const CHANNEL: Channel = Channel::ALL[3];

struct Served {
    servers: Vec<Arc<Server>>,
    // After the servers.
    _torus: Torus,
}

impl Served {
    fn new(doorbells: Doorbells, memory: bool) -> Self {
        let torus = Torus::new(TorusConfig::new("2x1x1".parse().unwrap())).unwrap();
        torus.set_doorbells(doorbells);
        torus.start().unwrap();
        let server = |x| {
            let clients = Arc::new(ClientMemory::new(Backing::Sealed, Limits::DEFAULT));
            let windows = memory.then(|| ClientWindows::new().unwrap());
            let at = Coords::new(x, 0, 0, 0, 0, 0);
            Arc::new(Server::of_torus(&torus, at, clients, windows).unwrap())
        };
        Self { servers: [0, 1].map(server).into(), _torus: torus }
    }

    /// A client of a node, until the platform is dropped.
    fn attach(&self, node: usize) -> (SocketPlatform, JoinHandle<()>) {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let server = Arc::clone(&self.servers[node]);
        let thread = thread::spawn(move || server.serve(theirs).unwrap());
        (SocketPlatform::attach(mine).unwrap(), thread)
    }
}

fn bytes(seed: usize) -> Vec<u8> {
    (0..LENGTH).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

/// Messages by stores from the first node to the second.
fn messages(near: &Nwp<SocketPlatform>, far: &Nwp<SocketPlatform>) {
    let mut stream = near.open(LINK, CHANNEL).unwrap();
    let mut sink = far.open(LINK.opposite(), CHANNEL).unwrap();
    let buffer = far.platform().alloc_dma(LENGTH, 64).unwrap();
    for seed in 0..3 {
        let credit = sink.credit(&buffer, 0, LENGTH).unwrap();
        stream.send(&bytes(seed), PATIENCE).unwrap();
        let expected = Outcome { status: Status::Ok, length: LENGTH as u32 };
        assert_eq!(sink.wait(credit, PATIENCE), Ok(expected));
        let mut got = vec![0; LENGTH];
        buffer.read(0, &mut got);
        assert!(got == bytes(seed), "message {seed}");
    }
    assert!(near.flush(PATIENCE));
}

fn features(nwp: &Nwp<SocketPlatform>) -> Features {
    Features(nwp.read(Register::Nwp(NwpReg::Features)))
}

/// A word of the window that [`messages`] have gone through.
fn first_word(platform: &SocketPlatform) -> u64 {
    platform.load_after_stores(tnw::window(LINK, CHANNEL))
}

#[test]
fn windows_are_registers() {
    let served = Served::new(Doorbells::Trapped, false);
    let clients = [0, 1].map(|node| served.attach(node));
    let [(near, first), (far, second)] = clients;
    let (near, far) = (Nwp::probe(near).unwrap(), Nwp::probe(far).unwrap());
    assert_eq!(features(&near), Features(0));
    messages(&near, &far);
    drop((near, far));
    first.join().unwrap();
    second.join().unwrap();
}

#[test]
fn windows_are_memory_of_each_client() {
    for doorbells in [Doorbells::Trapped, Doorbells::Polled] {
        let served = Served::new(doorbells, true);
        let (far, other) = served.attach(1);
        let far = Nwp::probe(far).unwrap();
        for _ in 0..2 {
            let (near, client) = served.attach(0);
            // Nothing of a client before.
            assert_eq!(first_word(&near), 0);
            let near = Nwp::probe(near).unwrap();
            let both = Features(0).with_shared_windows(true).with_only_shared_windows(true);
            assert_eq!(features(&near), both);
            messages(&near, &far);
            let stream = near.open(LINK, CHANNEL).unwrap();
            assert_eq!(stream.read(ChannelReg::TxMode), 1);
            // Registers were requested, but this device only has memory.
            let mut other = near.open(LINK, Channel::ALL[0]).unwrap();
            other.use_registers();
            other.send(&[1], PATIENCE).unwrap();
            assert_eq!(other.read(ChannelReg::TxMode), 1);
            assert_ne!(first_word(near.platform()), 0);
            drop((stream, other));
            // Nor from an earlier program, which a reset has ended.
            near.platform().bar0_write64(Register::Nwp(NwpReg::Control).offset(), 2);
            // Comes after the write.
            assert_eq!(near.read(Register::Nwp(NwpReg::Control)), 0);
            assert_eq!(first_word(near.platform()), 0);
            drop(near);
            client.join().unwrap();
        }
        drop(far);
        other.join().unwrap();
    }
}
