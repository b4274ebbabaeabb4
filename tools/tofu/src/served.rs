//! Devices of nodes on sockets, for monitors that are not ours.

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::Context;
use tofu_abi::Coords;
use tofu_machine::{Doorbells, Machine};
use tofu_sandbox::Role;
use tofu_vfio_user::{
    Backing, BoundSocket, ClientMemory, ClientPages, Limits, Server, bind_socket,
};

use crate::confine::Confinement;

/// A node's device on its socket. Dropping it closes and removes the socket.
pub(crate) struct Served {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
    at: Coords,
    socket: BoundSocket,
}

impl Served {
    /// Adds a device at `at` and serves it at `socket`.
    ///
    /// # Errors
    ///
    /// If the socket is in use or cannot be made.
    pub(crate) fn start(
        machine: &Machine,
        at: Coords,
        socket: &Path,
        backing: Backing,
        confinement: &Confinement,
    ) -> anyhow::Result<Self> {
        let socket = bind_socket(socket)?;
        let listener = socket.listener().context("no descriptors left")?;
        let memory = Arc::new(ClientMemory::new(backing, Limits::DEFAULT));
        let pages = match machine.config().doorbells {
            Doorbells::Trapped => None,
            Doorbells::Polled => Some(ClientPages::new().context("no memory for shared pages")?),
        };
        let shared = pages.as_ref().map(ClientPages::shared);
        let node = machine.add_node_with_pages(at, Arc::clone(&memory) as _, shared)?;
        let mut server = Server::new(node, memory);
        if let Some(pages) = pages {
            server = server.with_pages(pages);
        }
        let server = Arc::new(server);
        let mut served = Self { server: Arc::clone(&server), thread: None, at, socket };
        let first = confinement.hook(Role::VfioUser);
        let run = move || {
            first();
            if let Err(error) = server.run(listener) {
                log::error!("node {at}: {error}");
            }
        };
        let thread = thread::Builder::new().name(format!("serve{at}")).spawn(run);
        served.thread = Some(thread.context("no threads left")?);
        Ok(served)
    }

    /// The node.
    pub(crate) fn at(&self) -> Coords {
        self.at
    }

    /// Where it is served.
    pub(crate) fn socket(&self) -> &Path {
        self.socket.path()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.stop();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}
