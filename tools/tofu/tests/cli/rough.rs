//! Shards of a machine over a network that delays and loses frames, and falls apart.
//!
//! Where the kernel has no `netem`, this does the same: two network namespaces with a TAP interface
//! each, and a thread that takes Ethernet frames from one to the other, late, or not at all. The
//! kernels' TCP then retransmits the lost frames.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tofu_linux_tests::namespace::within;
use tofu_linux_tests::{Running, interrupt, kill, skip};

use crate::failing::schedule::Random;
use crate::shards::{Hosts, ip, wait_for_line};

/// Longest time for a machine.
const LONGEST: Duration = Duration::from_secs(900);
/// Bytes of a frame at most.
const FRAME: usize = 2048;
/// Frames that wait each way, at most.
const QUEUE: usize = 1000;

/// The faults of a network, each way.
#[derive(Default)]
struct Trouble {
    delay_us: AtomicU64,
    /// Frames of a thousand that are lost.
    loss: AtomicU64,
    /// Nothing gets through.
    cut: AtomicBool,
    /// Frames that were lost for any of that.
    lost: AtomicU64,
    passed: AtomicU64,
    over: AtomicBool,
}

/// Two network namespaces, and what is between them.
pub(crate) struct Rough {
    names: [String; 2],
    trouble: Arc<Trouble>,
    relay: Option<JoinHandle<()>>,
}

impl Rough {
    /// `None` if this host or user cannot have any, which it says.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let names = [0, 1].map(|n| format!("tofu-rough-{id}-{n}"));
        let trouble = Arc::new(Trouble::default());
        let mut rough = Self { names, trouble: Arc::clone(&trouble), relay: None };
        let mut ends = Vec::new();
        for (n, name) in rough.names.iter().enumerate() {
            // Its name here is unique; in its namespace it is `cable`.
            let here = format!("tofu{id}{n}");
            let tap = tofu_tap::open().and_then(|tap| {
                tofu_tap::attach(&tap, &here, 0)?;
                Ok(tap)
            });
            let Ok(tap) = tap else {
                skip("no TAP interfaces: they need root and /dev/net/tun");
                return None;
            };
            let address = format!("10.78.0.{}/24", n + 1);
            let made = ip(&["netns", "add", name])
                && ip(&["link", "set", &here, "netns", name, "name", "cable"])
                && ip(&["-n", name, "address", "add", &address, "dev", "cable"])
                && ip(&["-n", name, "link", "set", "cable", "up"])
                && ip(&["-n", name, "link", "set", "lo", "up"]);
            if !made {
                skip("no network namespaces: they need root and iproute2");
                return None;
            }
            ends.push(tap);
        }
        rough.relay = Some(thread::spawn(move || carry(ends.try_into().unwrap(), &trouble)));
        Some(rough)
    }

    fn set(&self, delay: Duration, loss: u64) {
        self.trouble.delay_us.store(delay.as_micros() as u64, SeqCst);
        self.trouble.loss.store(loss, SeqCst);
    }

    /// Takes the network apart, or together again.
    fn cut(&self, cut: bool) {
        self.trouble.cut.store(cut, SeqCst);
    }

    /// A command in one of them.
    fn enter(&self, n: usize, command: &Command) -> Command {
        let mut inside = within(&self.names[n], command);
        inside.stdin(Stdio::null());
        inside
    }
}

impl Drop for Rough {
    fn drop(&mut self) {
        self.trouble.over.store(true, SeqCst);
        if let Some(relay) = self.relay.take() {
            // What went wrong there has failed the test by now.
            let _ = relay.join();
        }
        for name in &self.names {
            ip(&["netns", "delete", name]);
        }
    }
}

/// Takes frames from each end to the other.
fn carry(ends: [File; 2], trouble: &Trouble) {
    let mut queues: [VecDeque<(Instant, Vec<u8>)>; 2] = Default::default();
    let mut random = Random(5);
    while !trouble.over.load(SeqCst) {
        let next = queues.iter().filter_map(|queue| queue.front()).map(|(due, _)| *due).min();
        let longest = Duration::from_millis(50);
        let wait = next.map_or(longest, |due| due.saturating_duration_since(Instant::now()));
        let mut fds = ends.each_ref().map(|end| PollFd::new(end, PollFlags::IN));
        // Frames that are due are looked at regardless of what it says.
        let _ = poll(&mut fds, Some(&Timespec::try_from(wait.min(longest)).unwrap()));
        for (from, queue) in queues.iter_mut().enumerate() {
            let mut frame = [0; FRAME];
            while let Ok(length @ 1..) = (&ends[from]).read(&mut frame) {
                let lost = trouble.cut.load(SeqCst)
                    || queue.len() >= QUEUE
                    || random.below(1000) < trouble.loss.load(SeqCst);
                if lost {
                    trouble.lost.fetch_add(1, SeqCst);
                    continue;
                }
                let delay = Duration::from_micros(trouble.delay_us.load(SeqCst));
                queue.push_back((Instant::now() + delay, frame[..length].to_vec()));
            }
            while queue.front().is_some_and(|(due, _)| *due <= Instant::now()) {
                let (_, frame) = queue.pop_front().unwrap();
                match (&ends[1 - from]).write(&frame) {
                    Ok(_) => drop(trouble.passed.fetch_add(1, SeqCst)),
                    // As a full queue of an interface does.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // The interface is down.
                    Err(_) => {}
                }
            }
        }
    }
}

#[test]
fn shards_survive_delay_and_loss_until_cut() {
    const TEST: &str = "shards_survive_delay_and_loss_until_cut";
    let mut hosts = Hosts::new();
    if !hosts.place.can_boot(TEST) {
        return;
    }
    let Some(rough) = Rough::new() else { return };
    hosts.addresses = vec!["10.78.0.1:7700".to_owned(), "10.78.0.2:7700".to_owned()];
    hosts.init("apart");
    // The settings that the manual recommends for such networks.
    let args = ["--shape", "2x1x1x1x1x1", "--cable-timeout", "5s"];
    let start = |shard: usize, more: &[&str]| {
        let args = [&args[..], more].concat();
        let command = hosts.command("apart", ["0/2", "1/2"][shard], &args);
        Running::start(rough.enter(shard, &command), b"")
    };
    rough.set(Duration::from_millis(10), 20);
    let shards = [0, 1].map(|shard| start(shard, &["--guest", "allpairs"]));
    for said in shards.map(|shard| shard.end(LONGEST)) {
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        assert!(said.out.contains("1 peers: put, get and atomic verified"), "{}", said.out);
        assert!(!said.out.contains("is lost"), "{}", said.out);
    }
    let (lost, passed) = (rough.trouble.lost.load(SeqCst), rough.trouble.passed.load(SeqCst));
    assert!(lost > 0 && passed > lost, "{lost} of {passed} frames were lost");

    // With the network apart each takes the other for lost; together again, one is started anew.
    let forever = ["--guest", "httpd", "--args", "forever=1 count=1"];
    let mut shards = [0, 1].map(|shard| start(shard, &forever));
    shards.iter_mut().for_each(|shard| wait_for_line(shard, "fetched 1 pages"));
    rough.cut(true);
    for (shard, other) in shards.iter_mut().zip([1, 0]) {
        wait_for_line(shard, &format!("shard {other} is lost: its host does not answer"));
    }
    rough.cut(false);
    let [mut first, second] = shards;
    kill(second.id());
    drop(second);
    let mut second = start(1, &forever);
    wait_for_line(&mut first, "shard 1 is back; its links are up");
    wait_for_line(&mut second, "fetched 1 pages");
    for shard in [first, second] {
        interrupt(shard.id());
        assert_eq!(shard.end(LONGEST).code, Some(130));
    }
    hosts.place.is_clean();
}
