//! Connections: a stream to the machine for each.

use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_linger;
use tofu_abi::Coords;

use super::way::{MOST, Way};

/// The time to wait when the host has no descriptors left.
const BUSY: Duration = Duration::from_millis(500);

/// Serves a port until the process ends.
pub(super) fn serve(listener: &TcpListener, way: &Arc<Way>) {
    for client in listener.incoming() {
        let client = match client {
            Ok(client) => client,
            Err(error) => {
                // Probably there are no descriptors left, which become free when connections end.
                tofu_ui::tell!("tofu: no connection can be taken: {error}");
                thread::sleep(BUSY);
                continue;
            }
        };
        if way.open.fetch_add(1, SeqCst) >= MOST {
            way.open.fetch_sub(1, SeqCst);
            reset(&client);
            continue;
        }
        let own = Arc::clone(way);
        let run = move || {
            if let Err(error) = pass_on(&client, &own) {
                let at = Coords::from_array(own.node.at);
                own.complain(&format!("tofu: port {} of {at}: {error:#}", own.port));
                reset(&client);
            }
            own.open.fetch_sub(1, SeqCst);
        };
        if thread::Builder::new().name("forward".into()).spawn(run).is_err() {
            // The client was dropped with the thread that could not be started.
            way.open.fetch_sub(1, SeqCst);
        }
    }
}

/// Shows the client that the connection did not end in order.
fn reset(client: &TcpStream) {
    // Closed in order, then.
    let _ = set_socket_linger(client, Some(Duration::ZERO));
}

fn pass_on(client: &TcpStream, way: &Way) -> anyhow::Result<()> {
    let (node, from_node) = way.connect(false)?;
    // A forwarder knows no more about when to send than the client.
    client.set_nodelay(true)?;
    let client_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let there = thread::Builder::new().spawn_scoped(scope, || {
            copy(client, &node);
            client_ended.store(true, SeqCst);
            // The other direction continues; if the node has gone, it ends by itself.
            let _ = node.shutdown(Shutdown::Write);
        });
        there.context("no threads left")?;
        let whole = copy(from_node, client);
        // The machine closes the stream when both directions have ended in order, or when the
        // connection has ended in another way.
        let mut gone = [PollFd::new(&node, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = poll(&mut gone, Some(&now)).is_ok_and(|n| n > 0);
        if whole && (!gone || client_ended.load(SeqCst)) {
            let _ = client.shutdown(Shutdown::Write);
        } else {
            reset(client);
            // Ends the other direction as well.
            let _ = client.shutdown(Shutdown::Read);
        }
        Ok(())
    })
}

/// Passes on all input; returns false if that ended prematurely.
fn copy(mut from: impl io::Read, mut to: impl Write) -> bool {
    io::copy(&mut from, &mut to).is_ok()
}
