//! An Ethernet between the Linux nodes of a machine, which needs no rights on the host.
//!
//! Each node has a pair of sockets that keep packets apart, and each packet is an Ethernet frame.
//! Two nodes are joined directly. Between more nodes, a thread forwards frames like a switch.
//!
//! For comparison there is the usual alternative: a TAP interface for each node, on a bridge of the
//! host's kernel. It needs rights, and interfaces that exist already.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use tofu_sandbox::Role;
use tofu_spec::units::Net;
use tofu_supervisor::confine::Confinement;

/// The longest frame that is forwarded, in bytes. Virtio has no longer ones.
const MAX_FRAME: usize = 65_536 + 64;
/// The most addresses that the switch remembers, because a guest can make up any number of them.
const MOST_ADDRESSES: usize = 4096;

type Mac = [u8; 6];

/// The kind of Ethernet of a machine's Linux nodes.
#[derive(Clone, Debug)]
pub enum Ethernet {
    /// None.
    None,
    /// Sockets in this process.
    Sockets,
    /// TAP interfaces `tap0`, `tap1` and so on in the network namespace of this file.
    Taps(PathBuf),
}

impl Ethernet {
    /// Sets up the Ethernet for `nodes` nodes.
    pub(crate) fn join(
        &self,
        nodes: usize,
        confinement: &Confinement,
    ) -> anyhow::Result<Option<Lan>> {
        match self {
            Self::None => Ok(None),
            Self::Sockets => Lan::new(nodes, confinement).map(Some),
            Self::Taps(namespace) => {
                let end = |n| End::Tap { namespace: namespace.clone(), name: format!("tap{n}") };
                Ok(Some(Lan { ends: (0..nodes).map(end).collect(), hub: None }))
            }
        }
    }
}

impl From<Net> for Ethernet {
    fn from(net: Net) -> Self {
        match net {
            Net::None => Self::None,
            Net::Lan => Self::Sockets,
        }
    }
}

/// A node's place in the network.
#[derive(Clone, Debug)]
pub(crate) struct LanPort {
    /// Its Ethernet address.
    pub(crate) mac: String,
    pub(crate) end: End,
}

/// The end to which a node's monitor is connected.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// A socket of packets. One of datagrams could send to any path.
    Socket(Arc<OwnedFd>),
    /// A TAP interface, and the file of its network namespace.
    Tap { namespace: PathBuf, name: String },
}

/// The network. Dropping it shuts it down.
pub(crate) struct Lan {
    ends: Vec<End>,
    hub: Option<(OwnedFd, JoinHandle<()>)>,
}

fn pair(kind: SocketType) -> anyhow::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, kind, flags, None).context("no sockets left")
}

impl Lan {
    /// Creates a network with `nodes` places.
    pub(crate) fn new(nodes: usize, confinement: &Confinement) -> anyhow::Result<Self> {
        if nodes == 2 {
            let (a, b) = pair(SocketType::SEQPACKET)?;
            let ends = [a, b].map(|end| End::Socket(Arc::new(end))).into();
            return Ok(Self { ends, hub: None });
        }
        let (mut ends, mut ports) = (Vec::new(), Vec::new());
        for _ in 0..nodes {
            let (end, port) = pair(SocketType::SEQPACKET)?;
            ends.push(End::Socket(Arc::new(end)));
            ports.push(port);
        }
        let (stop, stopped) = pair(SocketType::STREAM)?;
        let first = confinement.hook(Role::Reader);
        let hub = thread::Builder::new().name("lan".into()).spawn(move || {
            first();
            if let Err(error) = switch(&ports, &stopped) {
                log::error!("the network between the nodes: {error}");
            }
        });
        Ok(Self { ends, hub: Some((stop, hub.context("no threads left")?)) })
    }

    /// Returns the place of a node.
    pub(crate) fn place(&self, index: usize) -> Option<LanPort> {
        let end = self.ends.get(index)?.clone();
        // A locally administered address.
        let mac = format!("52:54:00:74:{:02x}:{:02x}", (index >> 8) & 0xff, index & 0xff);
        Some(LanPort { mac, end })
    }
}

/// Returns the address of a node in the network, in the form that `ip addr add` takes.
pub(crate) fn ip(index: usize) -> String {
    let host = index + 1;
    format!("10.84.{}.{}/16", host >> 8 & 0xff, host & 0xff)
}

impl Drop for Lan {
    fn drop(&mut self) {
        if let Some((stop, hub)) = self.hub.take() {
            drop(stop);
            // A panic in the thread has already been printed.
            let _ = hub.join();
        }
    }
}

/// Forwards frames until the other end of `stopped` is closed.
fn switch(ports: &[OwnedFd], stopped: &OwnedFd) -> Result<(), rustix::io::Errno> {
    let mut known: HashMap<Mac, usize> = HashMap::new();
    let mut frame = vec![0; MAX_FRAME];
    loop {
        let mut fds: Vec<_> = ports.iter().map(|port| PollFd::new(port, PollFlags::IN)).collect();
        fds.push(PollFd::new(stopped, PollFlags::IN));
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if fds.last().is_some_and(|fd| !fd.revents().is_empty()) {
            return Ok(());
        }
        let ready: Vec<usize> =
            (0..ports.len()).filter(|at| fds[*at].revents().contains(PollFlags::IN)).collect();
        for from in ready {
            let Ok((n, _)) = recv(&ports[from], &mut frame[..], RecvFlags::DONTWAIT) else {
                continue;
            };
            let frame = &frame[..n];
            let (Some(to), Some(source)) = (mac(frame, 0), mac(frame, 6)) else { continue };
            if known.len() < MOST_ADDRESSES || known.contains_key(&source) {
                known.insert(source, from);
            }
            let group = to[0] & 1 != 0;
            let only = known.get(&to).copied().filter(|_| !group);
            for (at, port) in ports.iter().enumerate() {
                if at != from && only.is_none_or(|only| only == at) {
                    // As in any network, a frame that a node has no room for is lost.
                    let _ = send(port, frame, SendFlags::DONTWAIT);
                }
            }
        }
    }
}

fn mac(frame: &[u8], at: usize) -> Option<Mac> {
    frame.get(at..at + 6)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::Timespec;

    fn end(lan: &Lan, node: usize) -> &OwnedFd {
        match &lan.ends[node] {
            End::Socket(end) => end,
            End::Tap { .. } => panic!("no socket"),
        }
    }

    fn has_frame(lan: &Lan, node: usize) -> Option<Vec<u8>> {
        let end = end(lan, node);
        let soon = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        let n = poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&soon)).unwrap();
        (n > 0).then(|| {
            let mut bytes = vec![0; 100];
            let (n, _) = recv(end, &mut bytes[..], RecvFlags::DONTWAIT).unwrap();
            bytes.truncate(n);
            bytes
        })
    }

    #[test]
    fn switch_learns() {
        let lan = Lan::new(3, &Confinement::default()).unwrap();
        let frame = |to: u8, from: u8| [[to; 6].as_slice(), &[from; 6], b"hello"].concat();
        let post = |node: usize, frame: &[u8]| {
            send(end(&lan, node), frame, SendFlags::empty()).unwrap();
        };
        // A broadcast, from which the switch learns the port of 2.
        post(0, &frame(0xff, 2));
        assert_eq!(has_frame(&lan, 1), Some(frame(0xff, 2)));
        assert_eq!(has_frame(&lan, 2), Some(frame(0xff, 2)));
        // Sent to that node only.
        post(2, &frame(2, 6));
        assert_eq!(has_frame(&lan, 0), Some(frame(2, 6)));
        assert_eq!(has_frame(&lan, 1), None);
        // An invalid frame goes to no node.
        post(1, b"short");
        assert_eq!(has_frame(&lan, 0), None);
    }

    #[test]
    fn two_are_joined() {
        let lan = Lan::new(2, &Confinement::default()).unwrap();
        send(end(&lan, 0), b"any datagram", SendFlags::empty()).unwrap();
        assert_eq!(has_frame(&lan, 1), Some(b"any datagram".to_vec()));
        assert_eq!(ip(0), "10.84.0.1/16");
        assert_eq!(ip(299), "10.84.1.44/16");
        assert_ne!(lan.place(0).unwrap().mac, lan.place(1).unwrap().mac);
    }
}
