//! Any messages at both ends of a network boot, and any image.
//!
//! There is one answer at most for a question, with the right bytes. A file that is accepted is the
//! right one, and nothing is placed outside of memory.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use tofu_abi::Coords;
use tofu_netboot::image::{Handed, places, plan};
use tofu_netboot::wire::{
    BLOCK, BootState, Envelope, FileInfo, FileRole, ImageKind, Manifest, Message, Range, Reason,
    parse,
};
use tofu_netboot::{Ask, Boot, Fault, Fetch, Poll, Server, Settings, Task};

/// Messages of one input at most.
const MAX_ACTIONS: u32 = 256;
const SESSION: u32 = 1;
const MANIFEST: u32 = 7;
const NODES: u8 = 2;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = play(&mut u);
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    match u.int_in_range(0..=3)? {
        0 => serve(u),
        1 => fetch(u),
        2 => ask(u),
        _ => place(u),
    }
}

fn node(c: u8) -> Coords {
    Coords::new(0, 0, 0, 0, 0, c)
}

fn file() -> Vec<u8> {
    (0..3 * BLOCK as u32 + 5).map(|n| (n ^ n >> 8) as u8).collect()
}

fn range(u: &mut Unstructured<'_>) -> Result<Range> {
    let near = BLOCK as u64 * u.int_in_range(0..=4)? + u64::from(u.arbitrary::<u8>()? / 64);
    Ok(Range {
        manifest: *u.choose(&[MANIFEST, MANIFEST, MANIFEST, 0])?,
        file: *u.choose(&[0, 0, 1, u16::MAX])?,
        length: *u.choose(&[BLOCK as u16, 5, 1, 0, u16::MAX])?,
        offset: *u.choose(&[near, near, near, u64::MAX])?,
    })
}

/// A valid message, or any bytes with a correct checksum.
fn message(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let tag = *u.choose(&[0, 1, 2, 3, u32::MAX])?;
    let envelope = Envelope { session: *u.choose(&[SESSION, SESSION, 0])?, tag };
    let data = file();
    Ok(match u.int_in_range(0..=8)? {
        0 => Message::Discover.emit(envelope),
        1 => {
            let files = (0..u.int_in_range(0..=5)?).map(|_| {
                let role = *u.choose(&[FileRole::Kernel, FileRole::Initrd])?;
                let size = *u.choose(&[0, 1, data.len() as u64, u64::MAX])?;
                Ok(FileInfo { role, size, sha256: [3; 32] })
            });
            let files = files.collect::<Result<_>>()?;
            let kind = *u.choose(&[ImageKind::Guest, ImageKind::Linux])?;
            let command_line = u.arbitrary::<&str>()?.into();
            let manifest = Manifest { id: MANIFEST, kind, files, command_line };
            Message::Offer(manifest).emit(envelope)
        }
        2 => Message::Read(range(u)?).emit(envelope),
        3 => {
            let range = range(u)?;
            // The requested data, or other data.
            let start = (range.offset as usize).min(data.len());
            let end = (start + usize::from(range.length)).min(data.len());
            let there = if u.ratio(3, 4)? { &data[start..end] } else { u.arbitrary()? };
            Message::Data(range, there).emit(envelope)
        }
        4 => {
            let state = *u.choose(&[BootState::Starting, BootState::Failed])?;
            Message::Report(state, u.arbitrary()?).emit(envelope)
        }
        5 => Message::Ack.emit(envelope),
        6 => {
            let reason = *u.choose(&[Reason::NotForYou, Reason::Stale, Reason::NoSuchRange])?;
            Message::Refused(reason, u.arbitrary()?).emit(envelope)
        }
        7 => {
            let mut bytes = Message::Ack.emit(envelope);
            bytes[3] = u.arbitrary()?;
            let more = u.arbitrary_len::<u8>()?.min(256);
            bytes.extend_from_slice(u.bytes(more)?);
            bytes[4..8].fill(0);
            let sum = crc32fast::hash(&bytes);
            bytes[4..8].copy_from_slice(&sum.to_be_bytes());
            bytes
        }
        _ => {
            let len = u.arbitrary_len::<u8>()?.min(256);
            u.bytes(len)?.to_vec()
        }
    })
}

/// Each question has at most one answer, whose contents are part of the file.
fn serve(u: &mut Unstructured<'_>) -> Result<()> {
    let data = file();
    let mut server = Server::new(Fault::None);
    let boot = Boot::new(MANIFEST, ImageKind::Guest, Arc::new(data.clone()), None, String::new());
    server.set(node(0), boot.expect("a proper boot"));
    let mut asked = 0;
    for _ in 0..MAX_ACTIONS {
        if u.is_empty() {
            break;
        }
        let from = u.int_in_range(0..=NODES - 1)?;
        server.receive(node(from), &message(u)?);
        asked += 1;
        while u.ratio(1, 2)? {
            let Some((to, answer)) = server.answer() else { break };
            asked -= 1;
            let (_, answer) = parse(&answer).expect("the server sends proper messages");
            match answer {
                Message::Data(range, bytes) => {
                    assert_eq!(to, node(0));
                    let start = range.offset as usize;
                    assert_eq!(bytes, &data[start..start + bytes.len()]);
                }
                Message::Offer(_) | Message::Ack => assert_eq!(to, node(0)),
                Message::Refused(..) => {}
                other => panic!("a server says {other:?}"),
            }
            assert!(asked >= 0, "more answers than questions");
        }
    }
    let left = std::iter::from_fn(|| server.answer()).take(1000).count() as i32;
    assert!(left <= asked.min(128), "{left} answers wait of {asked}");
    Ok(())
}

/// A file that is accepted is the right one.
fn fetch(u: &mut Unstructured<'_>) -> Result<()> {
    let data = file();
    let boot = Boot::new(MANIFEST, ImageKind::Guest, Arc::new(data.clone()), None, String::new());
    let boot = boot.expect("a proper boot");
    let settings = Settings { session: SESSION, patience_ns: 1_000_000_000 };
    let mut buf = vec![0; data.len()];
    let mut now_ns = 0u64;
    let fetch = Fetch::new(settings, boot.manifest(), FileRole::Kernel, &mut buf, now_ns);
    let mut fetch = fetch.expect("the manifest has a kernel");
    let done = drive(u, &mut fetch, &mut now_ns)?;
    assert!(!done || fetch.percent() == 100);
    if done && fetch.finish().is_ok() {
        assert_eq!(buf, data);
    }
    Ok(())
}

fn ask(u: &mut Unstructured<'_>) -> Result<()> {
    let settings = Settings { session: SESSION, patience_ns: 1_000_000_000 };
    let mut now_ns = 0u64;
    let mut ask = Ask::manifest(settings, now_ns);
    drive(u, &mut ask, &mut now_ns)?;
    if let Some(manifest) = ask.into_manifest() {
        assert!(manifest.is_valid());
    }
    Ok(())
}

/// Feeds a task with messages; returns whether it is done.
fn drive(u: &mut Unstructured<'_>, task: &mut dyn Task, now_ns: &mut u64) -> Result<bool> {
    for _ in 0..MAX_ACTIONS {
        if u.is_empty() {
            break;
        }
        // All messages that it wants to send; their number must be finite.
        let mut said = 0;
        loop {
            match task.poll(*now_ns) {
                Poll::Send(bytes) => {
                    said += 1;
                    assert!(said <= 64, "no end of questions");
                    let (envelope, _) = parse(&bytes).expect("a node sends proper messages");
                    assert_eq!(envelope.session, SESSION);
                }
                Poll::Wait(until) => {
                    assert!(until > *now_ns, "a wait that is over");
                    break;
                }
                Poll::Ready => return Ok(true),
                Poll::Failed(_) => return Ok(false),
            }
        }
        task.receive(&message(u)?, *now_ns);
        *now_ns += u64::from(u.arbitrary::<u16>()?) << 10;
    }
    Ok(matches!(task.poll(*now_ns), Poll::Ready))
}

/// Nothing is placed outside of the existing memory, nor twice at the same place.
fn place(u: &mut Unstructured<'_>) -> Result<()> {
    let room = 0x20_0000..0x20_0000 + u64::from(u.arbitrary::<u32>()?);
    if let Ok(found) = places(&room, u.arbitrary()?, u.arbitrary()?) {
        let all = [&found.kernel, &found.initrd];
        assert!(all.iter().all(|place| room.start <= place.start && place.end <= room.end));
        assert!(found.kernel.end <= found.initrd.start);
    }
    let kind = *u.choose(&[ImageKind::Guest, ImageKind::Linux])?;
    let image = u.take_rest_image()?;
    let Ok(layout) = plan(kind, &image, &room) else { return Ok(()) };
    for (n, segment) in layout.segments.iter().enumerate() {
        let memory = &segment.memory;
        assert!(segment.file.end <= image.len());
        assert!(room.start <= memory.start && memory.end <= room.end);
        assert!(segment.file.len() as u64 <= memory.end - memory.start);
        let apart =
            |other: &std::ops::Range<u64>| other.end <= memory.start || memory.end <= other.start;
        assert!(layout.segments[..n].iter().all(|other| apart(&other.memory)));
    }
    let handed = Handed {
        memory_map: &[(0, 1, 2); 200],
        command_line: 0x2_0000,
        command_line_len: 2047,
        initrd: 0..0,
        rsdp: 0,
    };
    let _ = layout.zero_page(&handed);
    Ok(())
}

/// An image whose beginning is valid, so that later checks are reached as well.
trait TakeImage {
    fn take_rest_image(&mut self) -> Result<Vec<u8>>;
}

impl TakeImage for Unstructured<'_> {
    fn take_rest_image(&mut self) -> Result<Vec<u8>> {
        let shape: u8 = self.int_in_range(0..=2)?;
        let len = self.len();
        let mut image = self.bytes(len)?.to_vec();
        let mut put = |at: usize, bytes: &[u8]| {
            if image.len() < at + bytes.len() {
                image.resize(at + bytes.len(), 0);
            }
            image[at..at + bytes.len()].copy_from_slice(bytes);
        };
        match shape {
            0 => {
                put(0, b"\x7fELF\x02\x01");
                put(16, &[2, 0, 62, 0]);
                put(32, &64u64.to_le_bytes());
                put(54, &[56, 0, 2, 0]);
                put(64, &1u32.to_le_bytes());
            }
            1 => {
                put(0x202, b"HdrS\x0f\x02");
                put(0x211, &[1]);
                put(0x236, &[1, 0]);
            }
            _ => {}
        }
        Ok(image)
    }
}
