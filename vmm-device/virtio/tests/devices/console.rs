use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use tofu_virtio::regs::cap;
use tofu_virtio::{Console, PortConfig, PortHandle};
use vm_memory::{Bytes, GuestAddress};

use crate::driver::{BUFFERS, Guest, PATIENCE, Queue, from_device, to_device, wait};

const F_MULTIPORT: u64 = 1 << 1;
const AGENT: &str = "org.tofu.agent";

/// Bytes of a buffer in these tests.
const LEN: u32 = 4096;

fn plain(stream: Option<UnixStream>) -> (Console, PortHandle) {
    let port = PortConfig { name: None, console: true, stream };
    let (console, mut handles) = Console::new(vec![port]).unwrap();
    (console, handles.remove(0))
}

fn with_agent(streams: [Option<UnixStream>; 2]) -> (Console, Vec<PortHandle>) {
    let [terminal, agent] = streams;
    Console::new(vec![
        PortConfig { name: None, console: true, stream: terminal },
        PortConfig { name: Some(AGENT.to_owned()), console: false, stream: agent },
    ])
    .unwrap()
}

fn pair() -> (UnixStream, UnixStream) {
    let (ours, device) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    ours.set_write_timeout(Some(PATIENCE)).unwrap();
    (ours, device)
}

mod one_port {
    fn function() -> tofu_virtio::Virtio {
        crate::driver::virtio(super::plain(None).0)
    }
    tofu_pci::testing::law_tests!(function);
}

mod two_ports {
    fn function() -> tofu_virtio::Virtio {
        crate::driver::virtio(super::with_agent([None, None]).0)
    }
    tofu_pci::testing::law_tests!(function);
}

/// Sends a control message.
fn say(guest: &Guest, queue: &mut Queue, id: u32, event: u16, value: u16) {
    let at = BUFFERS - 64;
    let mut message = Vec::new();
    message.extend(id.to_le_bytes());
    message.extend(event.to_le_bytes());
    message.extend(value.to_le_bytes());
    guest.memory.write_slice(&message, GuestAddress(at)).unwrap();
    queue.call(&[to_device(at, 8)]);
}

/// The next control message: port, event, value and the following bytes.
fn hear(guest: &Guest, queue: &mut Queue) -> (u32, u16, u16, String) {
    let at = BUFFERS - 256;
    let len = queue.call(&[from_device(at, 128)]) as usize;
    let mut message = vec![0; len];
    guest.memory.read_slice(&mut message, GuestAddress(at)).unwrap();
    let text = String::from_utf8(message.split_off(8)).unwrap();
    let u16 = |at: usize| u16::from_le_bytes([message[at], message[at + 1]]);
    let id = u32::from_le_bytes(message[..4].try_into().unwrap());
    (id, u16(4), u16(6), text)
}

fn send(guest: &Guest, queue: &mut Queue, text: &[u8]) {
    guest.memory.write_slice(text, GuestAddress(BUFFERS)).unwrap();
    queue.call(&[to_device(BUFFERS, text.len() as u32)]);
}

fn receive(guest: &Guest, queue: &mut Queue) -> Vec<u8> {
    let at = BUFFERS + 0x8000;
    let len = queue.call(&[from_device(at, 10), from_device(at + 10, 1000)]);
    let mut text = vec![0; len as usize];
    guest.memory.read_slice(&mut text, GuestAddress(at)).unwrap();
    text
}

fn read(stream: &mut UnixStream, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    stream.read_exact(&mut data).unwrap();
    data
}

#[test]
fn terminal_works_both_ways() {
    let (mut ours, device) = pair();
    let (console, handle) = plain(Some(device));
    let guest = Guest::new(console);
    assert_eq!(guest.offered() & F_MULTIPORT, 0);
    let mut queues = guest.start(0, 2, 16);
    send(&guest, &mut queues[1], b"login: ");
    assert_eq!(read(&mut ours, 7), b"login: ");
    ours.write_all(b"root\n").unwrap();
    assert_eq!(receive(&guest, &mut queues[0]), b"root\n");
    assert!(handle.connected() && handle.guest_open());
    // A closed stream: the guest's output is lost, and the guest is not held up.
    drop(ours);
    for _ in 0..100 {
        send(&guest, &mut queues[1], &[b'x'; 1000]);
    }
    assert!(!handle.connected());
    let (mut ours, device) = pair();
    handle.connect(device).unwrap();
    ours.write_all(b"again").unwrap();
    assert_eq!(receive(&guest, &mut queues[0]), b"again");
}

#[test]
fn named_port_introduces_itself() {
    let (mut ours, device) = pair();
    let (console, handles) = with_agent([None, Some(device)]);
    let guest = Guest::new(console);
    assert_eq!(guest.read(cap::DEVICE, 4), 2u32.to_le_bytes());
    let mut queues = guest.start(F_MULTIPORT, 6, 16);
    let [_, _, control_rx, control_tx, rx, tx] = &mut queues[..] else { panic!("six queues") };
    say(&guest, control_tx, u32::MAX, 0, 1);
    assert_eq!(hear(&guest, control_rx), (0, 1, 1, String::new()), "PORT_ADD");
    assert_eq!(hear(&guest, control_rx), (1, 1, 1, String::new()));
    say(&guest, control_tx, 0, 3, 1);
    assert_eq!(hear(&guest, control_rx), (0, 4, 1, String::new()), "CONSOLE_PORT");
    assert_eq!(hear(&guest, control_rx), (0, 6, 0, String::new()), "not connected");
    say(&guest, control_tx, 1, 3, 1);
    assert_eq!(hear(&guest, control_rx), (1, 7, 1, AGENT.to_owned()), "PORT_NAME");
    assert_eq!(hear(&guest, control_rx), (1, 6, 1, String::new()), "PORT_OPEN");

    // Input that arrives before the guest has opened the port waits in the stream.
    ours.write_all(b"are you there?").unwrap();
    rx.add(&[from_device(BUFFERS + 0x8000, 100)]);
    rx.kick();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(rx.poll(), None);
    assert!(!handles[1].guest_open());
    say(&guest, control_tx, 1, 6, 1);
    assert_eq!(rx.wait().1, 14);
    wait("the handle knows", || handles[1].guest_open());
    send(&guest, tx, b"yes");
    assert_eq!(read(&mut ours, 3), b"yes");

    // The other end disconnects, and another one connects.
    drop(ours);
    rx.add(&[from_device(BUFFERS, 100)]);
    rx.kick();
    assert_eq!(hear(&guest, control_rx), (1, 6, 0, String::new()), "PORT_OPEN 0");
    let (mut ours, device) = pair();
    handles[1].connect(device).unwrap();
    assert_eq!(hear(&guest, control_rx), (1, 6, 1, String::new()));
    ours.write_all(b"hello").unwrap();
    assert_eq!(rx.wait().1, 5);
    handles[1].disconnect();
    assert_eq!(hear(&guest, control_rx), (1, 6, 0, String::new()));
    assert_eq!(ours.read(&mut [0]).unwrap(), 0, "the device has closed its end");
    // Nonsense is ignored.
    for (id, event) in [(2, 3), (u32::MAX, 3), (1, 99), (99, 6)] {
        say(&guest, control_tx, id, event, 1);
    }
    // A reset clears this state.
    guest.reset();
    assert!(!handles[1].guest_open());
}

/// A driver without MULTIPORT gets the first port.
#[test]
fn simple_driver_has_a_terminal() {
    let (mut ours, device) = pair();
    let (console, _handles) = with_agent([Some(device), None]);
    let guest = Guest::new(console);
    let mut queues = guest.start(0, 2, 16);
    send(&guest, &mut queues[1], b"simple");
    assert_eq!(read(&mut ours, 6), b"simple");
}

/// Opens the second port of a console for data.
fn opened(console: Console) -> (Guest, Queue, Queue) {
    let guest = Guest::new(console);
    let mut queues = guest.start(F_MULTIPORT, 6, 64);
    say(&guest, &mut queues[3], u32::MAX, 0, 1);
    say(&guest, &mut queues[3], 1, 6, 1);
    let tx = queues.remove(5);
    (guest, queues.remove(4), tx)
}

/// Byte `i` of the test's streams.
fn byte(i: usize) -> u8 {
    (i ^ (i >> 8) ^ (i >> 16)) as u8
}

/// The guest writes more than the stream takes: it is held up, and nothing is lost.
#[test]
fn slow_host_holds_up_the_guest() {
    const BUFFERS_SENT: usize = 1024;
    let (mut ours, device) = pair();
    let (console, _handles) = with_agent([None, Some(device)]);
    let (guest, _rx, mut tx) = opened(console);
    let total = BUFFERS_SENT * LEN as usize;
    let put = |tx: &mut Queue, n: usize| {
        let at = BUFFERS + (n % 64) as u64 * u64::from(LEN);
        let from = n * LEN as usize;
        let data: Vec<u8> = (from..from + LEN as usize).map(byte).collect();
        guest.memory.write_slice(&data, GuestAddress(at)).unwrap();
        tx.add(&[to_device(at, LEN)]);
    };
    (0..64).for_each(|n| put(&mut tx, n));
    tx.kick();
    thread::sleep(Duration::from_millis(100));
    let mut sent = 64;
    let mut done = 0;
    while tx.poll().is_some() {
        done += 1;
    }
    // A socket takes a few hundred KiB; then everything stops.
    while sent - done < 64 && sent < BUFFERS_SENT {
        put(&mut tx, sent);
        sent += 1;
        tx.kick();
        thread::sleep(Duration::from_millis(1));
        while tx.poll().is_some() {
            done += 1;
        }
    }
    assert!(sent < BUFFERS_SENT, "the device has swallowed {total} bytes that were not taken");
    let start = Instant::now();
    let reader = thread::spawn(move || read(&mut ours, total));
    while done < BUFFERS_SENT {
        tx.wait();
        done += 1;
        if sent < BUFFERS_SENT {
            put(&mut tx, sent);
            sent += 1;
            tx.kick();
        }
    }
    let data = reader.join().unwrap();
    println!("guest to host: {:.0} MB/s", total as f64 / 1e6 / start.elapsed().as_secs_f64());
    assert!(data.iter().enumerate().all(|(i, b)| *b == byte(i)), "bytes lost or mixed up");
}

/// The host writes more than the guest has buffers for: it is held up, and nothing is lost.
#[test]
fn slow_guest_holds_up_the_host() {
    const TOTAL: usize = 4 << 20;
    let (mut ours, device) = pair();
    let (console, _handles) = with_agent([None, Some(device)]);
    let (guest, mut rx, _tx) = opened(console);
    let data: Vec<u8> = (0..TOTAL).map(byte).collect();
    ours.set_nonblocking(true).unwrap();
    let mut taken = 0;
    let start = Instant::now();
    // Until it has been stuck for a while.
    let mut stuck = 0;
    while stuck < 50 {
        match ours.write(&data[taken..]) {
            Ok(len) => taken += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stuck += 1;
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
        assert!(taken < TOTAL, "the device has swallowed everything without a buffer");
        assert!(start.elapsed() < PATIENCE);
    }
    ours.set_nonblocking(false).unwrap();
    let rest = data[taken..].to_vec();
    let start = Instant::now();
    let writer = thread::spawn(move || ours.write_all(&rest).map(|()| ours));
    let at = |n: usize| BUFFERS + (n % 64) as u64 * u64::from(LEN);
    for n in 0..64 {
        rx.add(&[from_device(at(n), LEN)]);
    }
    rx.kick();
    let (mut got, mut n) = (Vec::with_capacity(TOTAL), 0);
    while got.len() < TOTAL {
        let (_, len) = rx.wait();
        let mut piece = vec![0; len as usize];
        guest.memory.read_slice(&mut piece, GuestAddress(at(n))).unwrap();
        got.extend(piece);
        rx.add(&[from_device(at(n), LEN)]);
        rx.kick();
        n += 1;
    }
    println!("host to guest: {:.0} MB/s", TOTAL as f64 / 1e6 / start.elapsed().as_secs_f64());
    assert!(got == data, "bytes lost or mixed up");
    drop(writer.join().unwrap().unwrap());
}

/// Data that was written before the other end closed still arrives.
#[test]
fn last_words_arrive() {
    let (mut ours, device) = pair();
    let (console, _handle) = plain(Some(device));
    let guest = Guest::new(console);
    let mut queues = guest.start(0, 2, 16);
    ours.write_all(b"goodbye").unwrap();
    drop(ours);
    assert_eq!(receive(&guest, &mut queues[0]), b"goodbye");
}

#[test]
fn impossible_ports_are_refused() {
    let port = |name: Option<String>| PortConfig { name, console: false, stream: None };
    let error = |ports| Console::new(ports).err().expect("refused").to_string();
    assert_eq!(error(vec![]), "console: 0 ports; 1 to 16 are possible");
    assert!(error((0..17).map(|_| port(None)).collect()).contains("17 ports"));
    assert!(error(vec![port(Some(String::new()))]).contains("port name \"\""));
    assert!(error(vec![port(Some("n".repeat(65)))]).contains("1 to 64 bytes"));
}
