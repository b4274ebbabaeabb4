//! Nodes and a server, and between them a network that loses, duplicates, delays and damages
//! messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use tofu_abi::Coords;
use tofu_netboot::wire::{
    self, BLOCK, BootState, FileRole, ImageKind, Manifest, Message, Range, Reason,
};
use tofu_netboot::{
    Ask, Boot, BootEvent, Content, Failure, Fault, Fetch, Poll, Server, Settings, Task,
};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const PATIENCE_NS: u64 = 20 * SECOND;

fn node(c: u8) -> Coords {
    Coords::new(0, 0, 0, 0, 0, c)
}

fn settings(session: u32) -> Settings {
    Settings { session, patience_ns: PATIENCE_NS }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n ^ n >> 7).wrapping_mul(97) as u8).collect()
}

fn content(bytes: &[u8]) -> Content {
    Arc::new(bytes.to_vec())
}

fn boot(kernel: &[u8], initrd: Option<&[u8]>) -> Boot {
    let kind = if initrd.is_some() { ImageKind::Linux } else { ImageKind::Guest };
    Boot::new(7, kind, content(kernel), initrd.map(content), "a=b".into()).unwrap()
}

/// A number between 0 and 1, the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 40) as f64 / (1u64 << 24) as f64
    }
}

/// Bytes of a message that one packet carries.
const PACKET: usize = 1900;

/// The quality of a network: the probability of each fault of a message, 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    lost: f64,
    /// The same for each packet of a message; all must arrive.
    packets_lost: f64,
    duplicated: f64,
    damaged: f64,
    /// Messages take from 1 ms to this much longer.
    jitter_ns: u64,
}

/// Messages on their way, by time of arrival: receiver (the server if `None`), sender, and
/// contents.
type Sent = BTreeMap<(u64, u64), (Option<Coords>, Coords, Vec<u8>)>;

struct World {
    server: Server,
    now_ns: u64,
    weather: Weather,
    dice: Dice,
    way: Sent,
    sent: u64,
    news: Vec<BootEvent>,
}

impl World {
    fn new(server: Server, weather: Weather, seed: u64) -> Self {
        let (way, news) = (BTreeMap::new(), Vec::new());
        Self { server, now_ns: SECOND, weather, dice: Dice(seed), way, sent: 0, news }
    }

    fn send(&mut self, to: Option<Coords>, from: Coords, mut bytes: Vec<u8>) {
        let packets = bytes.len().div_ceil(PACKET) as i32;
        let comes = (1.0 - self.weather.lost) * (1.0 - self.weather.packets_lost).powi(packets);
        if self.dice.roll() >= comes {
            return;
        }
        if self.dice.roll() < self.weather.damaged {
            let at = (self.dice.roll() * bytes.len() as f64) as usize;
            bytes[at] ^= 1 << (at % 8);
        }
        let copies = if self.dice.roll() < self.weather.duplicated { 2 } else { 1 };
        for _ in 0..copies {
            let late = (self.dice.roll() * self.weather.jitter_ns as f64) as u64;
            self.sent += 1;
            self.way.insert((self.now_ns + MS + late, self.sent), (to, from, bytes.clone()));
        }
    }

    /// Runs a node's task to its end.
    fn run(&mut self, me: Coords, task: &mut dyn Task) -> Result<(), Failure> {
        loop {
            let until = match task.poll(self.now_ns) {
                Poll::Send(message) => {
                    self.send(None, me, message);
                    continue;
                }
                Poll::Wait(until) => until,
                Poll::Ready => return Ok(()),
                Poll::Failed(failure) => return Err(failure),
            };
            assert!(until > self.now_ns, "a wait that is over");
            let next = self.way.first_key_value().map_or(until, |((at, _), _)| until.min(*at));
            self.now_ns = self.now_ns.max(next);
            while let Some(entry) = self.way.first_entry() {
                if entry.key().0 > self.now_ns {
                    break;
                }
                match entry.remove() {
                    (None, from, message) => self.news.extend(self.server.receive(from, &message)),
                    (Some(to), _, message) if to == me => task.receive(&message, self.now_ns),
                    _ => {}
                }
            }
            while let Some((to, message)) = self.server.answer() {
                self.send(Some(to), me, message);
            }
        }
    }

    fn manifest(&mut self, me: Coords) -> Result<Manifest, Failure> {
        let mut ask = Ask::manifest(settings(1), self.now_ns);
        self.run(me, &mut ask)?;
        Ok(ask.into_manifest().unwrap())
    }

    fn fetch(
        &mut self,
        me: Coords,
        manifest: &Manifest,
        role: FileRole,
    ) -> Result<Vec<u8>, Failure> {
        let size = manifest.file(role).unwrap().1.size;
        let mut buf = vec![0; size as usize];
        let mut fetch = Fetch::new(settings(1), manifest, role, &mut buf, self.now_ns).unwrap();
        self.run(me, &mut fetch)?;
        assert_eq!(fetch.percent(), 100);
        fetch.finish()?;
        Ok(buf)
    }
}

fn world(kernel: &[u8], initrd: Option<&[u8]>, weather: Weather, fault: Fault) -> World {
    let mut server = Server::new(fault);
    server.set(node(0), boot(kernel, initrd));
    World::new(server, weather, 1)
}

#[test]
fn files_of_all_lengths_arrive() {
    for len in [1, BLOCK - 1, BLOCK, BLOCK + 1, 40 * BLOCK + 17] {
        let kernel = bytes(len);
        let mut world = world(&kernel, None, Weather::default(), Fault::None);
        let manifest = world.manifest(node(0)).unwrap();
        assert_eq!((manifest.kind, manifest.command_line.as_str()), (ImageKind::Guest, "a=b"));
        assert_eq!(world.fetch(node(0), &manifest, FileRole::Kernel).unwrap(), kernel);
        // Nothing is requested twice on a network that loses nothing.
        assert_eq!(world.server.counters().blocks, len.div_ceil(BLOCK) as u64);
        assert_eq!(world.server.counters().bytes, len as u64);
    }
}

#[test]
fn boot_is_reported_from_begin_to_end() {
    let (kernel, initrd) = (bytes(3 * BLOCK), bytes(BLOCK / 2));
    let mut world = world(&kernel, Some(&initrd), Weather::default(), Fault::None);
    let manifest = world.manifest(node(0)).unwrap();
    world.fetch(node(0), &manifest, FileRole::Kernel).unwrap();
    assert_eq!(world.fetch(node(0), &manifest, FileRole::Initrd).unwrap(), initrd);
    let message = Message::Report(BootState::Starting, "");
    for _ in 0..2 {
        let mut report = Ask::report(settings(1), &message, world.now_ns);
        world.run(node(0), &mut report).unwrap();
    }
    let me = node(0);
    let expected = [
        BootEvent::Begun(me),
        BootEvent::Progress(me, FileRole::Kernel, 33),
        BootEvent::Progress(me, FileRole::Kernel, 66),
        BootEvent::Progress(me, FileRole::Kernel, 100),
        BootEvent::Progress(me, FileRole::Initrd, 100),
        BootEvent::Starting(me),
    ];
    assert_eq!(world.news, expected);
    // It boots again, in another session.
    let mut again = Ask::manifest(settings(2), world.now_ns);
    world.run(me, &mut again).unwrap();
    assert_eq!(world.news.last(), Some(&BootEvent::Begun(me)));
}

#[test]
fn changed_bytes_are_not_taken() {
    let kernel = bytes(5 * BLOCK);
    let mut world = world(&kernel, None, Weather::default(), Fault::Corrupt);
    let manifest = world.manifest(node(0)).unwrap();
    let failure = world.fetch(node(0), &manifest, FileRole::Kernel).unwrap_err();
    assert_eq!(failure, Failure::WrongHash(FileRole::Kernel));
    assert!(failure.to_string().contains("kernel has another SHA-256"), "{failure}");
}

#[test]
fn silent_server_times_out() {
    let kernel = bytes(100 * BLOCK);
    let mut world = world(&kernel, None, Weather::default(), Fault::Silent(50));
    let manifest = world.manifest(node(0)).unwrap();
    let start = world.now_ns;
    let failure = world.fetch(node(0), &manifest, FileRole::Kernel).unwrap_err();
    let Failure::Silent(ns) = failure else { panic!("{failure}") };
    assert!((PATIENCE_NS..PATIENCE_NS + SECOND).contains(&ns), "{ns}");
    assert_eq!(failure.to_string(), "the boot server has not answered for 20.0 s");
    // The question was retransmitted, at growing intervals.
    let waited = world.now_ns - start;
    let asked = world.sent;
    assert!(waited >= PATIENCE_NS && asked < 400, "{asked} messages in {waited} ns");
    // And one that is not there at all.
    let mut ask = Ask::manifest(settings(1), world.now_ns);
    let refused = world.run(node(1), &mut ask);
    assert!(matches!(refused, Err(Failure::Refused(why)) if why.contains("nothing to boot")));
    world.weather.lost = 1.0;
    let before = world.sent;
    let mut ask = Ask::manifest(settings(1), world.now_ns);
    assert!(matches!(world.run(node(0), &mut ask), Err(Failure::Silent(_))));
    assert_eq!(world.sent, before);
}

/// As on a path of seven links that each lose one packet in twenty: a block of 9 packets arrives
/// once in 24 times, and the question for it two times in three.
#[test]
fn file_arrives_over_lossy_links() {
    let kernel = bytes(40 * BLOCK + 17);
    let weather = Weather { packets_lost: 0.3, ..Weather::default() };
    let mut world = world(&kernel, None, weather, Fault::default());
    let manifest = world.manifest(node(0)).unwrap();
    let start = world.now_ns;
    assert_eq!(world.fetch(node(0), &manifest, FileRole::Kernel).unwrap(), kernel);
    let took = world.now_ns - start;
    assert!(took < 60 * SECOND, "{} ms", took / MS);
}

#[test]
fn blocks_of_other_files_are_refused() {
    let kernel = bytes(2 * BLOCK);
    let mut world = world(&kernel, None, Weather::default(), Fault::None);
    let manifest = world.manifest(node(0)).unwrap();
    // The server has others by now.
    world.server.set(
        node(0),
        Boot::new(8, ImageKind::Guest, content(&kernel), None, String::new()).unwrap(),
    );
    let failure = world.fetch(node(0), &manifest, FileRole::Kernel).unwrap_err();
    assert!(matches!(&failure, Failure::Refused(why) if why.contains("have changed")), "{failure}");
    for (file, offset, length) in [(1, 0, 1), (0, 2 * BLOCK as u64, 1), (0, BLOCK as u64, BLOCK)] {
        let length = length as u16;
        let range = Range { manifest: 8, file, offset: offset + u64::from(length > 1), length };
        let envelope = wire::Envelope { session: 1, tag: 9 };
        world.server.receive(node(0), &Message::Read(range).emit(envelope));
        let (_, answer) = world.server.answer().unwrap();
        let (back, message) = wire::parse(&answer).unwrap();
        assert_eq!(back, envelope);
        assert!(matches!(message, Message::Refused(Reason::NoSuchRange, _)), "{message:?}");
    }
}

/// Found by fuzzing: blocks that an answer left out were never requested again.
#[test]
fn missing_parts_are_asked_for_again() {
    let kernel = bytes(3 * BLOCK + 17);
    let manifest = boot(&kernel, None).manifest().clone();
    let mut buf = vec![0; kernel.len()];
    let mut fetch = Fetch::new(settings(1), &manifest, FileRole::Kernel, &mut buf, 0).unwrap();
    let (mut questions, mut now_ns) = (0, 0);
    loop {
        match fetch.poll(now_ns) {
            Poll::Send(question) => {
                questions += 1;
                assert!(questions < 1000, "{} %", fetch.percent());
                let (envelope, Message::Read(asked)) = wire::parse(&question).unwrap() else {
                    panic!("no question");
                };
                // A kilobyte of the requested data.
                let length = asked.length.min(1 << 10);
                let start = asked.offset as usize;
                let there = &kernel[start..start + usize::from(length)];
                let answer = Message::Data(Range { length, ..asked }, there).emit(envelope);
                fetch.receive(&answer, now_ns);
            }
            Poll::Wait(until) => {
                assert!(until > now_ns, "a wait that is over");
                now_ns = until;
            }
            Poll::Ready => break,
            other => panic!("{other:?}"),
        }
    }
    fetch.finish().unwrap();
    assert_eq!(buf, kernel);
}

#[test]
fn nodes_take_turns() {
    let kernel = bytes(64 * BLOCK);
    let mut server = Server::default();
    for c in 0..2 {
        server.set(node(c), boot(&kernel, None));
    }
    let ask = |server: &mut Server, c: u8, count: u32| {
        for tag in 0..count {
            let range = Range { manifest: 7, file: 0, length: 1, offset: tag.into() };
            let message = Message::Read(range).emit(wire::Envelope { session: 1, tag });
            server.receive(node(c), &message);
        }
    };
    // One node has more questions than the server keeps, the other two.
    ask(&mut server, 0, 1000);
    ask(&mut server, 1, 2);
    let order: Vec<_> = std::iter::from_fn(|| server.answer()).map(|(to, _)| to.c).collect();
    assert_eq!(&order[..4], [0, 1, 0, 1]);
    assert_eq!(order.len(), 64 + 2);
    assert_eq!(server.counters().dropped, 1000 - 64);
    assert!(!server.has_work());
}

#[test]
fn strangers_are_answered_within_bounds() {
    let mut server = Server::default();
    for tag in 0..1000 {
        let message = Message::Discover.emit(wire::Envelope { session: 1, tag });
        assert_eq!(server.receive(node(0), &message), None);
    }
    let answers = std::iter::from_fn(|| server.answer()).count();
    assert_eq!(answers, 64);
}

#[test]
fn manifests_that_cannot_be_sent_are_none() {
    let new = |kernel: &[u8], initrd: Option<Content>, kind, line: &str| {
        Boot::new(1, kind, content(kernel), initrd, line.into()).is_some()
    };
    assert!(new(b"x", None, ImageKind::Guest, ""));
    assert!(new(b"x", Some(content(b"y")), ImageKind::Linux, &"l".repeat(2047)));
    assert!(!new(b"", None, ImageKind::Guest, ""));
    assert!(!new(b"x", Some(content(b"")), ImageKind::Linux, ""));
    assert!(!new(b"x", Some(content(b"y")), ImageKind::Guest, ""));
    assert!(!new(b"x", None, ImageKind::Guest, &"l".repeat(2048)));
    assert!(!new(b"x", None, ImageKind::Guest, "a\0b"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The right files arrive unless the network loses every packet.
    #[test]
    fn fetched_files_are_intact(
        seed: u64,
        len in 1usize..60 * BLOCK,
        lost in 0.0..0.3f64,
        duplicated in 0.0..0.3f64,
        damaged in 0.0..0.2f64,
        jitter_ms in 0u64..80,
    ) {
        let kernel = bytes(len);
        let mut server = Server::default();
        server.set(node(0), boot(&kernel, None));
        let weather = Weather {
            lost,
            duplicated,
            damaged,
            jitter_ns: jitter_ms * MS,
            ..Weather::default()
        };
        let mut world = World::new(server, weather, seed);
        let manifest = world.manifest(node(0)).unwrap();
        prop_assert_eq!(world.fetch(node(0), &manifest, FileRole::Kernel).unwrap(), kernel);
    }

    /// Messages are read as they were written, and other bytes are not taken for messages.
    #[test]
    fn bytes_are_a_message_or_none(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        at: usize,
    ) {
        prop_assert!(wire::parse(&bytes).is_err());
        let envelope = wire::Envelope { session: 5, tag: 6 };
        let range = Range { manifest: 1, file: 0, length: bytes.len() as u16, offset: 3 };
        if !bytes.is_empty() {
            let mut emitted = Message::Data(range, &bytes).emit(envelope);
            let parsed = wire::parse(&emitted).unwrap();
            prop_assert_eq!(parsed, (envelope, Message::Data(range, &bytes)));
            let at = at % emitted.len();
            emitted[at] ^= 0x10;
            prop_assert!(wire::parse(&emitted).is_err());
        }
    }

    /// A report is cut at the end of a character.
    #[test]
    fn text_is_cut(text in "\\PC{0,300}") {
        let envelope = wire::Envelope { session: 5, tag: 6 };
        let emitted = Message::Report(BootState::Failed, &text).emit(envelope);
        let (_, message) = wire::parse(&emitted).unwrap();
        let Message::Report(BootState::Failed, cut) = message else { panic!("{message:?}") };
        prop_assert!(text.starts_with(cut));
        prop_assert!(cut == text || cut.len() > wire::MAX_TEXT - 4);
    }
}
