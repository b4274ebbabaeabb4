//! Devices of nodes on sockets, for virtual machine monitors other than ours.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::Context;
use tofu_abi::Coords;
use tofu_machine::{Doorbells, Machine, Torus};
use tofu_sandbox::Role;
use tofu_vfio_user::{
    Backing, BoundSocket, ClientMemory, ClientPages, ClientWindows, Limits, Server, bind_socket,
};

use crate::confine::Confinement;
use crate::machine::AnyMachine;

/// A node's device on its socket. Dropping it closes and removes the socket.
pub struct Served {
    server: Arc<Server>,
    threads: Vec<JoinHandle<()>>,
    /// Dropping it removes the socket's file.
    socket: Option<BoundSocket>,
}

impl Served {
    /// Adds a device at `at` and serves it at the path `socket`.
    ///
    /// # Errors
    ///
    /// If the socket is in use or cannot be created.
    pub fn at_path(
        machine: &AnyMachine,
        at: Coords,
        socket: &Path,
        backing: Backing,
        confinement: &Confinement,
    ) -> anyhow::Result<Self> {
        let socket = bind_socket(socket)?;
        let listener = socket.listener().context("no descriptors left")?;
        let door = socket.listener().context("no descriptors left")?;
        let mut served = Self::on(machine, at, listener, backing, confinement)?;
        served.socket = Some(socket);
        // We do not start these clients, so two of them may connect.
        let (server, first) = (Arc::clone(&served.server), confinement.hook(Role::VfioUser));
        let run = move || {
            first();
            if let Err(error) = server.turn_away(&door) {
                log::error!("node {at}: {error}");
            }
        };
        let thread = thread::Builder::new().name(format!("door{at}")).spawn(run);
        served.threads.push(thread.context("no threads left")?);
        Ok(served)
    }

    /// Adds a device of Tofu at `at` that up to `count` clients share, and serves each of them at a
    /// separate listener.
    ///
    /// # Errors
    ///
    /// If the host has no memory, threads or descriptors left.
    pub fn joint(
        machine: &Machine,
        at: Coords,
        (count, listeners): (u16, Vec<UnixListener>),
        backing: Backing,
        confinement: &Confinement,
    ) -> anyhow::Result<Vec<Self>> {
        let memory = (backing, Limits::DEFAULT);
        let servers = Server::joint(machine, at, count, memory, pages(machine)?)?;
        let start = |(server, listener)| Self::start(server, at, listener, confinement);
        servers.into_iter().zip(listeners).map(start).collect()
    }

    /// Adds a device at `at` and serves clients that connect to `listener`.
    ///
    /// # Errors
    ///
    /// If the host has no memory, threads or descriptors left.
    pub fn on(
        machine: &AnyMachine,
        at: Coords,
        listener: UnixListener,
        backing: Backing,
        confinement: &Confinement,
    ) -> anyhow::Result<Self> {
        let memory = || Arc::new(ClientMemory::new(backing, Limits::DEFAULT));
        let server = match machine {
            AnyMachine::Tofu(machine) => Server::new(machine, at, memory(), pages(machine)?)?,
            AnyMachine::Tnw(torus) => Server::of_torus(torus, at, memory(), windows(torus)?)?,
            AnyMachine::Timed(machine) => machine.server(at)?,
        };
        Self::start(server, at, listener, confinement)
    }

    fn start(
        server: Server,
        at: Coords,
        listener: UnixListener,
        confinement: &Confinement,
    ) -> anyhow::Result<Self> {
        let server = Arc::new(server);
        let mut served = Self { server: Arc::clone(&server), threads: Vec::new(), socket: None };
        let first = confinement.hook(Role::VfioUser);
        let run = move || {
            first();
            if let Err(error) = server.run(listener) {
                log::error!("node {at}: {error}");
            }
        };
        let thread = thread::Builder::new().name(format!("serve{at}")).spawn(run);
        served.threads.push(thread.context("no threads left")?);
        Ok(served)
    }
}

impl Served {
    /// Returns the server of the device.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }
}

/// Returns pages for a client's doorbells, if the machine uses them.
fn pages(machine: &Machine) -> anyhow::Result<Option<ClientPages>> {
    Ok(match machine.config().doorbells {
        Doorbells::Trapped => None,
        Doorbells::Polled => Some(ClientPages::new().context("no memory for shared pages")?),
    })
}

/// Returns windows that a client maps, if the machine polls them.
fn windows(torus: &Torus) -> anyhow::Result<Option<ClientWindows>> {
    Ok(match torus.doorbells() {
        Doorbells::Trapped => None,
        Doorbells::Polled => Some(ClientWindows::new().context("no memory for windows")?),
    })
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.stop();
        for thread in self.threads.drain(..) {
            // A panic in the thread has already been printed.
            let _ = thread.join();
        }
    }
}
