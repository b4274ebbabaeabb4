//! The events of a machine, for followers on the control socket.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tofu_control::protocol::{EventInfo, EventKind, Reply, Request};
use tofu_fabric::{NodeId, ShardId, Shards};
use tofu_sync::queue::{Receiver, RecvTimeoutError, Sender, WhenFull, queue};
use tofu_ui::printable;

use super::reply::{has_left, say};
use super::shards::OF_JOBS;
use crate::registry::{Registry, Rest};

/// The interval at which to check for shards that have come back, and whether a follower without
/// events is still there.
const LOOK: Duration = Duration::from_millis(500);
/// The most bytes of events of other shards that wait for a follower. The shards hold back any
/// beyond that.
const ELSEWHERE: usize = 256 << 10;
/// The most characters of a text of another shard.
const LONGEST: usize = 4 << 10;
/// The interval at which to check for events of other shards.
const MERGE: Duration = Duration::from_millis(50);

/// Follows the events of other shards.
struct Elsewhere<'a> {
    rest: &'a Rest,
    sender: Sender<EventInfo>,
    events: Receiver<EventInfo>,
    /// For each shard that is followed, its process and the stream from it.
    followed: HashMap<ShardId, (u32, UnixStream)>,
    looked_at: Option<Instant>,
}

impl<'a> Elsewhere<'a> {
    fn new(rest: &'a Rest) -> Self {
        let (sender, events) = queue(ELSEWHERE, WhenFull::Wait);
        Self { rest, sender, events, followed: HashMap::new(), looked_at: None }
    }

    /// Follows shards that have appeared since the last call.
    fn look(&mut self) {
        if self.looked_at.is_some_and(|at| at.elapsed() < LOOK) {
            return;
        }
        self.looked_at = Some(Instant::now());
        for peer in self.rest.others.peers() {
            let known = self.followed.get(&peer.shard).is_some_and(|(pid, _)| *pid == peer.pid);
            if peer.gone || known {
                continue;
            }
            match self.follow(peer.shard) {
                Ok(stream) => drop(self.followed.insert(peer.shard, (peer.pid, stream))),
                Err(error) => log::debug!("control: events of shard {}: {error:#}", peer.shard),
            }
        }
    }

    fn follow(&self, shard: ShardId) -> anyhow::Result<UnixStream> {
        let mut connection = self.rest.connect(shard, &Request::Events)?;
        let stream = connection.stream()?;
        let (shards, sender) = (self.rest.shards.clone(), self.sender.clone());
        let run = move || {
            // The stream ends with the shard, or when the follower has left.
            while let Ok(reply) = connection.reply() {
                let Reply::Event(event) = reply else { continue };
                if let Some(event) = of_shard(&shards, shard, event)
                    && sender.send(event).is_err()
                {
                    break;
                }
            }
        };
        thread::Builder::new().name("events".into()).spawn(run).context("no threads left")?;
        Ok(stream)
    }
}

impl Drop for Elsewhere<'_> {
    fn drop(&mut self) {
        for (_, stream) in self.followed.values() {
            // The shard may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Checks an event of another shard, and returns it if it concerns the shard's own nodes, or jobs
/// if the shard has them. Events about links, routers, faults and the end of the machine happen
/// here, too.
fn of_shard(shards: &Shards, shard: ShardId, event: EventInfo) -> Option<EventInfo> {
    let text = |text: String| printable(&text).chars().take(LONGEST).collect::<String>();
    let what = match event.what {
        EventKind::Job { job, state, command, nodes } if shard == OF_JOBS => {
            let what = EventKind::Job { job, state, command: text(command), nodes };
            return Some(EventInfo { node: None, at: None, what, ..event });
        }
        EventKind::Netboot { stage, file, percent, why } => EventKind::Netboot {
            stage: text(stage),
            file: file.map(text),
            percent,
            why: why.map(text),
        },
        EventKind::Line { text: line } => EventKind::Line { text: text(line) },
        EventKind::Ended { outcome, code, detail } => {
            EventKind::Ended { outcome: text(outcome), code, detail: detail.map(text) }
        }
        EventKind::Died { why } => EventKind::Died { why: text(why) },
        EventKind::Booted
        | EventKind::Paused
        | EventKind::Resumed
        | EventKind::Attached
        | EventKind::Detached => event.what,
        _ => return None,
    };
    let id = NodeId(event.node?);
    let at = shards.shape().coords(id).filter(|_| shards.of(id) == Some(shard))?;
    Some(EventInfo { at: Some(at.to_array()), what, ..event })
}

/// Sends events until the client has left or cannot keep up. With `rest`, they come from all
/// shards.
pub(super) fn serve(
    mut client: UnixStream,
    registry: &Registry,
    rest: Option<&Rest>,
) -> anyhow::Result<()> {
    let (events, _follows) = registry.follow();
    let mut elsewhere = rest.map(Elsewhere::new);
    let wait = if elsewhere.is_some() { MERGE } else { LOOK };
    // Follow the other shards before the reply, which promises the client all events.
    elsewhere.iter_mut().for_each(Elsewhere::look);
    say(&mut client, &Reply::Done)?;
    loop {
        if let Some(elsewhere) = &mut elsewhere {
            elsewhere.look();
            for event in elsewhere.events.try_iter() {
                // The clocks of other shards started at other times.
                let seconds = registry.started.elapsed().as_secs_f64();
                say(&mut client, &Reply::Event(EventInfo { seconds, ..event }))?;
            }
        }
        match events.recv_timeout(wait) {
            Ok(event) => {
                let last = event.what == EventKind::Down;
                say(&mut client, &Reply::Event(Arc::unwrap_or_clone(event)))?;
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
        // The client sends nothing more. The end of its stream means that it wants no more events.
        if has_left(&client) {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    Ok(())
}
