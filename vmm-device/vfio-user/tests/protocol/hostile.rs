//! Clients that do not keep to the protocol.

use std::fs::File;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::LazyLock;

use crate::client::*;
use proptest::prelude::*;
use rustix::fs::MemfdFlags;
use tofu_vfio_user::{Backing, ChannelError, Error, Limits};

/// The server still serves the next client.
fn assert_serves(host: &Host) {
    let (mut client, thread) = host.attach(0);
    assert_eq!(client.read(CONFIG, 4, 2), [0, 0]);
    drop(client);
    thread.join().unwrap().unwrap();
}

#[test]
fn wrong_versions_are_refused() {
    let host = Host::sealed();
    let bad: &[(&[u8], u32)] = &[
        (&[], EINVAL),
        (&[0, 0], EINVAL),
        (&[1, 0, 0, 0], EOPNOTSUPP),
        (b"\0\0\0\0{}", EINVAL),
        (b"\0\0\0\0{\0", EINVAL),
        (b"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":-1}}\0", EINVAL),
        (b"\0\0\0\0{\"capabilities\":[]\0", EINVAL),
        (b"\0\0\0\0{}\0{}\0", EINVAL),
        (&[b'['; 70_000], EINVAL),
    ];
    for (body, errno) in bad {
        let (mut client, thread) = host.connect(0);
        assert_eq!(client.try_call(VERSION, body, &[]), Err(*errno), "{body:?}");
        assert!(client.is_closed());
        assert!(matches!(thread.join().unwrap(), Err(Error::Version)));
    }
    let (mut client, thread) = host.connect(0);
    assert_eq!(client.try_call(GET_INFO, &words(&[16, 0, 0, 0]), &[]), Err(EINVAL));
    assert!(matches!(thread.join().unwrap(), Err(Error::Version)));
    // Without capabilities, or with unknown ones only, the server agrees.
    for body in [&b"\0\0\x09\0"[..], b"\0\0\0\0{}\0", b"\0\0\0\0{\"capabilities\":{\"x\":[1]}}\0"] {
        let (mut client, _thread) = host.connect(0);
        let reply = client.try_call(VERSION, body, &[]).unwrap();
        assert!(reply[..4] == [0, 0, 0, 0] || reply[..4] == [0, 0, 1, 0]);
        assert_eq!(client.try_call(VERSION, body, &[]), Err(EINVAL), "only once");
    }
    assert_serves(&host);
}

#[test]
fn impossible_sizes_end_the_connection() {
    let host = Host::sealed();
    for size in [0, 15, (1 << 20) + 33, u32::MAX] {
        let (mut client, thread) = host.attach(0);
        client.send_raw(&header(9, REGION_READ, size, 0), &[]);
        let (_, flags, errno, _) = client.receive();
        assert_eq!((flags, errno), (0x21, EINVAL));
        assert!(client.is_closed());
        let error = thread.join().unwrap();
        assert!(matches!(error, Err(Error::Channel(ChannelError::Size(s))) if s == size));
    }
    let (mut client, thread) = host.attach(0);
    client.send_raw(&header(9, REGION_READ, 16, 1), &[]);
    assert!(client.is_closed());
    let error = thread.join().unwrap();
    assert!(matches!(error, Err(Error::Channel(ChannelError::NoCommand))));
    assert_serves(&host);
}

#[test]
fn broken_messages_end_the_connection() {
    let host = Host::sealed();
    let mut message = header(1, REGION_WRITE, 40, 0);
    message.extend(access(CONFIG, 4, 8));
    for n in 1..message.len() {
        let (client, thread) = host.attach(0);
        client.send_raw(&message[..n], &[]);
        drop(client);
        let error = thread.join().unwrap();
        assert!(matches!(error, Err(Error::Channel(ChannelError::Cut))), "{n}: {error:?}");
    }
    assert_serves(&host);
}

#[test]
fn errors_leave_the_stream_in_step() {
    let host = Host::sealed();
    let (mut client, _thread) = host.attach(0);
    for command in [0, 11, 12, 14, 16, 99, u16::MAX] {
        assert_eq!(client.try_call(command, &[7; 100], &[]), Err(EOPNOTSUPP), "{command}");
    }
    for command in [GET_INFO, GET_REGION_INFO, GET_IRQ_INFO, SET_IRQS, DMA_MAP, DMA_UNMAP] {
        // Too short for its command, and too small for the reply.
        assert_eq!(client.try_call(command, &[1; 11], &[]), Err(EINVAL), "{command}");
        assert_eq!(client.try_call(command, &[0; 64], &[]), Err(EINVAL), "{command}");
    }
    for command in [REGION_READ, REGION_WRITE] {
        assert_eq!(client.try_call(command, &[0; 15], &[]), Err(EINVAL));
    }
    for (region, offset, count) in [
        (CONFIG, 4096, 1),
        (CONFIG, 4090, 7),
        (CONFIG, u64::MAX, 2),
        (0, 0, (1 << 20) + 1),
        (0, 1 << 28, 8),
        (1, 0, 8),
        (2, 8188, 8),
        (6, 0, 1),
        (8, 0, 1),
        (9, 0, 1),
        (u32::MAX, 0, 0),
        (CONFIG, 0, u32::MAX),
    ] {
        assert_eq!(client.try_read(region, offset, count), Err(EINVAL), "{region} {offset:#x}");
    }
    // More data promised than sent.
    assert_eq!(client.try_call(REGION_WRITE, &access(CONFIG, 0, 8), &[]), Err(EINVAL));
    assert_eq!(
        client.try_call(GET_REGION_INFO, &words(&[32, 0, 9, 0, 0, 0, 0, 0]), &[]),
        Err(EINVAL)
    );
    assert_eq!(client.try_call(GET_IRQ_INFO, &words(&[16, 0, 5, 0]), &[]), Err(EINVAL));
    assert_eq!(client.read(CONFIG, 4, 2), [0, 0]);
}

#[test]
fn memory_that_cannot_be_had_is_refused() {
    let host = Host::sealed();
    let (mut client, thread) = host.attach(0);
    let file = sealed(1 << 20);
    client.try_map(Some(&file), [0, 0x10000, 0x10000]).unwrap();
    for (place, errno) in [
        ([0, 0x10000, 0x10000], EEXIST),
        ([0, 0x1f000, 0x2000], EEXIST),
        ([0, 0xf000, 0x2000], EEXIST),
        ([0, 0, 0x40000], EEXIST),
        ([0, 0x40000, 0], EINVAL),
        ([0, 0x40000, 100], EINVAL),
        ([0, 0x40001, 0x1000], EINVAL),
        ([1, 0x40000, 0x1000], EINVAL),
        ([0, 0x4000_0000, 0x10_1000], EINVAL),
        ([1 << 20, 0x40000, 0x1000], EINVAL),
        ([u64::MAX - 0xfff, 0x40000, 0x2000], EINVAL),
        ([0, u64::MAX - 0xfff, 0x2000], EINVAL),
        ([0, 0x1000_0000, u64::MAX - 0xfff], EINVAL),
    ] {
        assert_eq!(client.try_map(Some(&file), place), Err(errno), "{place:x?}");
    }
    assert_eq!(client.try_unmap(0, 0), Err(EINVAL));
    assert_eq!(client.try_unmap(u64::MAX, 2), Err(EINVAL));
    assert_eq!(client.try_unmap(0x10000, 0x1001), Err(EINVAL));
    assert_eq!(client.try_unmap(0x10001, 0x1000), Err(EINVAL));
    // Two descriptors, unknown flags, flags of a dirty bitmap.
    let fds = [file.as_fd(), file.as_fd()];
    let mut body = words(&[32, 3]);
    body.extend([0u64, 0x40000, 0x1000].iter().flat_map(|word| word.to_ne_bytes()));
    assert_eq!(client.try_call(DMA_MAP, &body, &fds), Err(EINVAL));
    body[4] = 0x13;
    assert_eq!(client.try_call(DMA_MAP, &body, &fds[..1]), Err(EINVAL));
    assert_eq!(
        client.try_call(DMA_UNMAP, &words(&[24, 1, 0x10000, 0, 0x10000, 0]), &[]),
        Err(EOPNOTSUPP)
    );
    // More descriptors than a message has.
    let many = vec![file.as_fd(); 17];
    assert_eq!(client.try_call(DMA_MAP, &body, &many), Err(EINVAL));
    let many = vec![file.as_fd(); 64];
    assert_eq!(client.try_call(DMA_MAP, &body, &many), Err(EINVAL));
    // A file that is not a memory file, or one that can shrink at any time.
    let place = [0, 0x40000, 0x1000];
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert_eq!(client.try_map(Some(&pipe), place), Err(EPERM));
    let program = File::open(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(client.try_map(Some(&program), place), Err(EPERM));
    let shrinkable = unsealed(1 << 20, MemfdFlags::empty());
    assert_eq!(client.try_map(Some(&shrinkable), place), Err(EPERM));
    // One that can be sealed is.
    let sealable = unsealed(1 << 20, MemfdFlags::ALLOW_SEALING);
    client.try_map(Some(&sealable), place).unwrap();
    assert!(sealable.set_len(0).is_err());
    assert_eq!(host.memories[0].mapped_ranges(), 2);
    drop(client);
    thread.join().unwrap().unwrap();

    let host = Host::new(Backing::Any, Limits::DEFAULT);
    let (mut client, _thread) = host.attach(0);
    client.try_map(Some(&shrinkable), place).unwrap();
    assert!(client.try_map(Some(&pipe), [0, 0x80000, 0x1000]).is_err());
}

#[test]
fn unavailable_interrupts_are_refused() {
    let host = Host::sealed();
    let (mut client, thread) = host.attach(0);
    let event = Event::new();
    let bad_event = sealed(4096);
    let one = [event.as_fd()];
    let file = [bad_event.as_fd()];
    let both = [event.as_fd(), bad_event.as_fd()];
    let cases: &[([u32; 5], &[BorrowedFd<'_>], u32)] = &[
        ([20, EVENTFDS, MSIX, 0, 2], &one, EINVAL),
        ([20, EVENTFDS, MSIX, 97, 1], &one, EINVAL),
        ([20, EVENTFDS, MSIX, u32::MAX, 1], &one, EINVAL),
        ([20, EVENTFDS, MSIX, 0, u32::MAX], &one, EINVAL),
        ([20, EVENTFDS, MSIX, 0, 1], &file, EINVAL),
        ([20, EVENTFDS, MSIX, 0, 2], &both, EINVAL),
        ([20, EVENTFDS, 0, 0, 1], &one, EINVAL),
        ([20, EVENTFDS, 5, 0, 0], &[], EINVAL),
        ([20, EVENTFDS, 3, 1, 1], &one, EINVAL),
        ([20, 0x21, 3, 0, 1], &[], EOPNOTSUPP),
        ([19, EVENTFDS, MSIX, 0, 1], &one, EINVAL),
        ([20, 0x0c, MSIX, 0, 1], &one, EOPNOTSUPP),
        ([20, 0x27, MSIX, 0, 1], &one, EOPNOTSUPP),
        ([20, 0, MSIX, 0, 1], &one, EOPNOTSUPP),
        ([20, 0x22, MSIX, 0, 4], &[], EINVAL),
    ];
    for (body, fds, errno) in cases {
        assert_eq!(client.try_call(SET_IRQS, &words(body), fds), Err(*errno), "{body:?}");
    }
    client.enable();
    host.servers[0].node().unwrap().endpoint().trigger(0);
    assert_eq!(event.take(), 0, "a half of a refused request was done");
    // A full counter blocks nothing.
    let full = Event::new();
    full.add(u64::MAX - 1);
    client.try_bind(1, &[&full]).unwrap();
    host.servers[0].node().unwrap().endpoint().trigger(1);
    assert_eq!(full.take(), u64::MAX - 1);
    drop(client);
    thread.join().unwrap().unwrap();
    assert_serves(&host);
}

/// A client that wants answers and does not read them holds up only its own thread, and not for
/// ever.
#[test]
fn answers_that_nobody_reads() {
    let host = Host::sealed();
    let (client, thread) = host.attach(0);
    for _ in 0..4 {
        let mut message = header(1, REGION_READ, 32, 0);
        message.extend(access(0, 0, 1 << 20));
        client.send_raw(&message, &[]);
    }
    // The other node still serves its client.
    let (mut other, other_thread) = host.attach(1);
    assert_eq!(other.read(CONFIG, 4, 2), [0, 0]);
    drop(other);
    other_thread.join().unwrap().unwrap();
    assert!(!thread.is_finished());
    host.servers[0].stop();
    let error = thread.join().unwrap();
    assert!(matches!(error, Err(Error::Channel(ChannelError::Socket(_)))), "{error:?}");
}

/// Sends bytes with a descriptor and leaves; the server must release the client.
fn run_stream(host: &Host, bytes: &[u8], negotiate: bool) {
    let (mut client, thread) = if negotiate { host.attach(0) } else { host.connect(0) };
    let file = sealed(1 << 16);
    let split = bytes.len() / 2;
    // The server may have closed its end already.
    if split > 0 {
        client.send_raw(&bytes[..split], &[file.as_fd()]);
    }
    let _ = client.socket.write_all(&bytes[split..]);
    let _ = client.socket.shutdown(Shutdown::Write);
    assert!(client.is_closed());
    let _ = thread.join().unwrap();
    assert_eq!(host.memories[0].mapped_ranges(), 0);
}

static FUZZED: LazyLock<Host> = LazyLock::new(Host::sealed);
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A message with a correct header and an almost valid body.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        0u32..40,
        Just(EVENTFDS),
        Just(0x1000),
        Just(0x2_0000),
        Just(u32::MAX),
        any::<u32>()
    ];
    let argsz = prop_oneof![Just(16u32), Just(20), Just(24), Just(32), any::<u32>()];
    let body = (argsz, prop::collection::vec(word, 0..12), any::<bool>());
    (0u16..17, body, prop_oneof![Just(0u32), Just(16)]).prop_map(
        |(command, (argsz, rest, with_argsz), flags)| {
            let mut body = if with_argsz { words(&[argsz]) } else { Vec::new() };
            body.extend(words(&rest));
            let mut message = header(1, command, 16 + body.len() as u32, flags);
            message.extend(body);
            message
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), negotiate in any::<bool>()) {
        let _turn = TURN.lock().unwrap();
        run_stream(&FUZZED, &bytes, negotiate);
        assert_serves(&FUZZED);
    }

    #[test]
    fn any_messages(messages in prop::collection::vec(message(), 1..30)) {
        let _turn = TURN.lock().unwrap();
        run_stream(&FUZZED, &messages.concat(), true);
        assert_serves(&FUZZED);
    }
}
