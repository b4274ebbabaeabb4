//! The process that holds another shard.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use tofu_fabric::ShardId;

use crate::hello::Hello;
use crate::keepalive::Dead;
use crate::link::{FrameKind, Link};
use crate::streams::Streams;

/// A connection to another shard after the greetings.
pub(crate) struct Met {
    pub(crate) link: Link,
    pub(crate) said: Hello,
    /// The address of the shard.
    pub(crate) at: String,
    /// Frames that came together with its greeting.
    pub(crate) early: Vec<Frame>,
}

/// The process that holds a shard.
pub(crate) struct Peer {
    pub(crate) link: Arc<Link>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) said: Hello,
    pub(crate) at: String,
    /// Frames that came together with its greeting.
    pub(crate) early: Mutex<Vec<Frame>>,
    /// True if anything was received from it since the last check.
    pub(crate) received: AtomicBool,
    /// True if it has throttled this shard's requests.
    pub(crate) holds: AtomicBool,
    /// The shard because of which its requests were throttled, if they were.
    pub(crate) held: Mutex<Option<ShardId>>,
    pub(crate) gone: AtomicBool,
    /// The reason for which it was considered dead, if it was.
    pub(crate) dead: OnceLock<Dead>,
}

impl Peer {
    pub(crate) fn new(Met { link, said, at, early }: Met) -> Self {
        let link = Arc::new(link);
        let sends = Arc::clone(&link);
        let streams = Streams::new(Box::new(move |body| sends.send(FrameKind::Stream, body)));
        Self {
            link,
            streams,
            said,
            at,
            early: Mutex::new(early),
            received: AtomicBool::new(true),
            holds: AtomicBool::new(false),
            held: Mutex::new(None),
            gone: AtomicBool::new(false),
            dead: OnceLock::new(),
        }
    }
}

/// A frame that was received.
pub(crate) type Frame = (FrameKind, Vec<u8>);
