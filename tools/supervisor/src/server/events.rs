//! The events of a machine, for followers on the control socket.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tofu_control::lines::LineReader;
use tofu_control::protocol::{EventInfo, EventKind, Reply, Request};

use super::reply::say;
use crate::registry::Registry;

/// How often it is checked whether a follower without events is still there.
const LOOK: Duration = Duration::from_millis(500);

/// Sends events until the client has left, or cannot keep up.
pub(super) fn serve(
    mut client: UnixStream,
    mut requests: LineReader<UnixStream>,
    registry: &Registry,
) -> anyhow::Result<()> {
    let (events, _follows): (Receiver<EventInfo>, _) = registry.follow();
    say(&mut client, &Reply::Done)?;
    let (left, gone) = std::sync::mpsc::channel::<()>();
    let listen = move || {
        // It sends nothing more; the end of its stream means that it wants no more events.
        while let Ok(Some(_)) = requests.receive::<Request>() {}
        drop(left);
    };
    thread::Builder::new().name("events".into()).spawn(listen).context("no threads left")?;
    loop {
        match events.recv_timeout(LOOK) {
            Ok(event) => {
                let last = event.what == EventKind::Down;
                say(&mut client, &Reply::Event(event))?;
                if last {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let why = "the client takes events too slowly".to_owned();
                say(&mut client, &Reply::Error { why })?;
                break;
            }
        }
        if gone.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected) {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    Ok(())
}
