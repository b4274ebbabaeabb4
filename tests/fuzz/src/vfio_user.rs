//! Any stream of messages and descriptors from a vfio-user client.
//!
//! The device is reset, the next client is served, answers are well formed, and the neighbour's
//! memory stays as it is.

use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use rustix::cmsg_space;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tofu_abi::regs::{CqReg, CqsReg, Register, TniReg};
use tofu_abi::{Coords, CqId, TniId, pci};
use tofu_icc::DmaMemory;
use tofu_machine::{Doorbells, Machine, MachineConfig};
use tofu_pci::{PciFunction, regs};
use tofu_vfio_user::{Backing, ClientMemory, ClientPages, Limits, Server};

/// Bytes of the files that a client maps.
const FILE: u64 = 0x1_0000;
/// The address of the bystander's memory.
const BYSTANDER: u64 = 0x1000;
/// The most bytes of a body, except where its length is given wrongly.
const BODY: usize = 256;
/// The most descriptors with a message.
const FDS: usize = 20;
/// Turns of the machine's queues after each message.
const TURNS: usize = 4;

const VERSION: &[u8] = b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":80}}\0";

/// Two nodes: one for the input's client, and a bystander with its own client.
struct World {
    machine: Machine,
    server: Arc<Server>,
    memory: Arc<ClientMemory>,
    bystander: Arc<ClientMemory>,
    files: Files,
    /// The bystander's client.
    _other: UnixStream,
}

/// Descriptors that a client can send.
struct Files {
    sealed: File,
    read_only: File,
    event: File,
    socket: UnixStream,
}

static TRAPPED: LazyLock<World> = LazyLock::new(|| World::new(Doorbells::Trapped));
static POLLED: LazyLock<World> = LazyLock::new(|| World::new(Doorbells::Polled));

impl World {
    fn new(doorbells: Doorbells) -> Self {
        let shape = "1x1x1x2x1x1".parse().expect("a shape");
        let config = MachineConfig { doorbells, ..MachineConfig::new(shape) };
        let machine = Machine::new(config).expect("the host has descriptors");
        let limits = Limits { ranges: 32, files: 4, bytes: 1 << 20 };
        let [first, second] = [0, 1].map(|b| {
            let memory = Arc::new(ClientMemory::new(Backing::Sealed, limits));
            let pages = ClientPages::new().expect("the host has memory");
            let coords = Coords::new(0, 0, 0, b, 0, 0);
            let server = Server::new(&machine, coords, Arc::clone(&memory), Some(pages));
            (Arc::new(server.expect("a place in the machine")), memory)
        });
        let file = memory_file();
        let read_only = File::open(format!("/proc/self/fd/{}", {
            use std::os::fd::AsRawFd;
            file.as_raw_fd()
        }));
        let event = eventfd(0, EventfdFlags::NONBLOCK).expect("the host has descriptors");
        let files = Files {
            read_only: read_only.expect("the file can be opened again"),
            sealed: file,
            event: File::from(event),
            socket: UnixStream::pair().expect("the host has descriptors").0,
        };
        let mut other = attach(&second.0);
        let file = memory_file();
        let mut body = words(&[32, 3]);
        body.extend([0, BYSTANDER, FILE].iter().flat_map(|word: &u64| word.to_ne_bytes()));
        send(&mut other, &message(2, &body), &[file.as_fd()]);
        receive(&mut other);
        second.1.write(BYSTANDER, &[0x5a; FILE as usize]).expect("it is mapped");
        let (server, memory) = first;
        Self { machine, server, memory, bystander: second.1, files, _other: other }
    }
}

fn memory_file() -> File {
    let file = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let file = file.expect("the host has descriptors");
    ftruncate(&file, FILE).expect("the host has memory");
    File::from(file)
}

/// Serves a client on its own thread.
fn serve(server: &Arc<Server>) -> (UnixStream, std::thread::JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().expect("the host has descriptors");
    let server = Arc::clone(server);
    let thread = std::thread::spawn(move || {
        // The reason for which a client was dropped does not matter here.
        let _ = server.serve(theirs);
    });
    ours.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
    (ours, thread)
}

/// A client that has agreed on the version.
fn attach(server: &Arc<Server>) -> UnixStream {
    let (mut client, _thread) = serve(server);
    send(&mut client, &message(1, VERSION), &[]);
    receive(&mut client);
    client
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn message(command: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = [7u16.to_ne_bytes(), command.to_ne_bytes()].concat();
    bytes.extend(words(&[16 + body.len() as u32, 0, 0]));
    bytes.extend(body);
    bytes
}

/// Receives one answer, which must be no error; returns its body.
fn receive(client: &mut UnixStream) -> Vec<u8> {
    let mut head = [0; 16];
    client.read_exact(&mut head).expect("an answer");
    assert_eq!(u32::from_ne_bytes([head[8], head[9], head[10], head[11]]), 1, "no error");
    let size = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
    let mut body = vec![0; size as usize - 16];
    client.read_exact(&mut body).expect("the whole answer");
    body
}

/// Sends bytes; returns false if the server has closed the connection.
fn send(client: &mut UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    send_and_drain(client, bytes, fds, &mut Answers::default())
}

/// The same with a socket that does not block: while there is no room, the server may wait for
/// its answers to be read.
fn send_and_drain(
    client: &mut UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    answers: &mut Answers,
) -> bool {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "they fit");
    }
    let mut sent = 0;
    while sent < bytes.len() {
        let pieces = [IoSlice::new(&bytes[sent..])];
        // Descriptors are sent with the first byte.
        let result = if sent == 0 {
            sendmsg(&*client, &pieces, &mut control, SendFlags::NOSIGNAL)
        } else {
            client.write(&bytes[sent..]).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
        };
        match result {
            Ok(n) => sent += n,
            Err(Errno::AGAIN) if answers.drain(client) => std::thread::yield_now(),
            Err(_) => return false,
        }
    }
    true
}

/// Takes the server's answers apart.
#[derive(Default)]
struct Answers(Vec<u8>);

impl Answers {
    /// Reads what has arrived; returns whether the server is still there.
    fn drain(&mut self, client: &mut UnixStream) -> bool {
        let mut bytes = [0; 1 << 16];
        let there = loop {
            match client.read(&mut bytes) {
                Ok(0) => break false,
                Ok(n) => self.0.extend_from_slice(&bytes[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break false,
            }
        };
        let mut at = 0;
        while let Some(head) = self.0.get(at..at + 16) {
            let word =
                |i: usize| u32::from_ne_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
            let (size, flags, errno) = (word(4) as usize, word(8), word(12));
            assert!((16..=16 + 16 + (1 << 20)).contains(&size), "an answer of {size} bytes");
            match flags {
                1 => assert_eq!(errno, 0, "an answer"),
                0x21 => assert!(size == 16 && errno != 0, "an error"),
                _ => panic!("an answer with flags {flags:#x}"),
            }
            if self.0.len() < at + size {
                break;
            }
            at += size;
        }
        self.0.drain(..at);
        there
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let setup: u8 = u.arbitrary().unwrap_or(0);
    let world: &World = if setup & 1 == 0 { &TRAPPED } else { &POLLED };
    let (mut client, thread) = serve(&world.server);
    client.set_nonblocking(true).expect("a socket");
    let mut answers = Answers::default();
    let mut there = setup & 2 != 0 || send(&mut client, &message(1, VERSION), &[]);
    while there && !u.is_empty() {
        there = act(world, &mut client, &mut u, &mut answers).unwrap_or(false);
        for _ in 0..TURNS {
            world.machine.run_turn();
        }
    }
    let _ = client.shutdown(Shutdown::Write);
    client.set_nonblocking(false).expect("a socket");
    answers.drain(&mut client);
    thread.join().expect("the server does not panic");
    assert!(answers.0.is_empty(), "a part of an answer");
    world.check();
}

impl World {
    /// Invariants that hold once a client has gone.
    fn check(&self) {
        assert_eq!(self.memory.mapped_ranges(), 0, "memory of a client that has gone");
        let mut command = [0xff; 2];
        let node = self.server.node().expect("a node of Tofu");
        node.config_read(regs::COMMAND, &mut command);
        assert_eq!(command, [0, 0], "the device was not reset");
        let mut bytes = vec![0; FILE as usize];
        self.bystander.read(BYSTANDER, &mut bytes).expect("the bystander has its memory");
        assert!(bytes.iter().all(|&byte| byte == 0x5a), "the bystander's memory");
        let (mut next, thread) = serve(&self.server);
        send(&mut next, &message(1, VERSION), &[]);
        receive(&mut next);
        send(&mut next, &message(4, &words(&[16, 0, 0, 0])), &[]);
        assert_eq!(receive(&mut next), words(&[16, 3, 9, 5]), "the next client");
        drop(next);
        thread.join().expect("the server does not panic");
    }
}

/// Sends something; returns whether the server is still there.
fn act(
    world: &World,
    client: &mut UnixStream,
    u: &mut Unstructured<'_>,
    answers: &mut Answers,
) -> Result<bool> {
    let choice: u8 = u.arbitrary()?;
    let shrinking = memory_file();
    let count = match choice >> 6 {
        0 | 1 => 0,
        2 => 1,
        _ => u.int_in_range(0..=FDS)?,
    };
    let fds = some_files(&world.files, &shrinking, count, u)?;
    let mut bytes = match choice & 15 {
        0 => {
            let len = u.int_in_range(1..=BODY)?;
            u.bytes(len.min(u.len()))?.to_vec()
        }
        1 => {
            let len = u.int_in_range(0..=BODY)?;
            message(u.arbitrary::<u16>()? & 31, u.bytes(len.min(u.len()))?)
        }
        2..=4 => map(u)?,
        5 => unmap(u)?,
        6 => {
            let body = words(&[u.arbitrary::<u16>()?.into(), 0, u.int_in_range(0..=10)?, 0]);
            let command = [4, 6, 7][u.choose_index(3)?];
            message(command, &body)
        }
        7 => {
            let body = [u.arbitrary::<u16>()?.into(), 0, u.int_in_range(0..=10)?, 0, 0, 0, 0, 0];
            message(5, &words(&body))
        }
        8 | 9 => {
            let flags = [0x24, 0x24, 0x21, 0x22, u.arbitrary()?][u.choose_index(5)?];
            let (index, start) = (u.int_in_range(1..=4)?, u.int_in_range(0..=100)?);
            let given = fds.len() as u32;
            let count = [given, 0, 1, u.arbitrary()?][u.choose_index(4)?];
            message(8, &words(&[20, flags, index, start, count]))
        }
        10..=12 => access(u)?,
        13 => message(13, &[]),
        14 => write_multiple(u)?,
        _ => {
            let _ = client.shutdown(Shutdown::Write);
            return Ok(false);
        }
    };
    // Occasionally, flags and a size that do not match the message.
    if choice & 0x30 == 0x30 && bytes.len() >= 16 {
        let at = [4, 8][u.choose_index(2)?];
        bytes[at..at + 4].copy_from_slice(&u.arbitrary::<u32>()?.to_ne_bytes());
    } else if choice & 0x30 == 0x20 && bytes.len() >= 16 {
        // Posted.
        bytes[8] |= 0x10;
    }
    let there = send_and_drain(client, &bytes, &fds, answers);
    // Possibly while the server maps it.
    let _ = ftruncate(&shrinking, 0);
    Ok(answers.drain(client) && there)
}

/// Descriptors to send along.
fn some_files<'a>(
    files: &'a Files,
    shrinking: &'a File,
    count: usize,
    u: &mut Unstructured<'_>,
) -> Result<Vec<BorrowedFd<'a>>> {
    let mut fds = Vec::with_capacity(count);
    for _ in 0..count {
        fds.push(match u.int_in_range(0..=5)? {
            0 | 1 => files.sealed.as_fd(),
            2 => files.read_only.as_fd(),
            3 => files.event.as_fd(),
            4 => files.socket.as_fd(),
            _ => shrinking.as_fd(),
        });
    }
    Ok(fds)
}

/// A message with several writes in one.
fn write_multiple(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let count = u.int_in_range(0..=4u64)?;
    let mut body =
        [count, count, u64::MAX, u.arbitrary()?][u.choose_index(4)?].to_ne_bytes().to_vec();
    for _ in 0..count {
        let (region, offset) = place(u)?;
        body.extend(offset.to_ne_bytes());
        body.extend(words(&[region, u.int_in_range(0..=9)?]));
        body.extend(u.arbitrary::<u64>()?.to_ne_bytes());
    }
    Ok(message(15, &body))
}

fn map(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let rights = [3, 3, 1, 2, u.arbitrary()?][u.choose_index(5)?];
    let mut body = words(&[32, rights]);
    for most in [FILE >> 12, 32, FILE >> 12] {
        body.extend(pages(u, most)?.to_ne_bytes());
    }
    Ok(message(2, &body))
}

fn unmap(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut body = words(&[24, [0, 0, 0, 2, u.arbitrary()?][u.choose_index(5)?]]);
    for most in [32, 32] {
        body.extend(pages(u, most)?.to_ne_bytes());
    }
    Ok(message(3, &body))
}

/// Bytes of a few pages, most of the time.
fn pages(u: &mut Unstructured<'_>, most: u64) -> Result<u64> {
    Ok(match u.arbitrary::<u8>()? {
        0xff => u64::MAX - 0xfff,
        0xfe => u64::arbitrary(u)?,
        n => (u64::from(n) % (most + 1)) << 12,
    })
}

fn access(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let (region, offset) = place(u)?;
    let count = [1, 2, 4, 8, u.int_in_range(0..=64)?, u.arbitrary()?][u.choose_index(6)?];
    let mut body = offset.to_ne_bytes().to_vec();
    body.extend(words(&[region, count]));
    if u.arbitrary()? {
        return Ok(message(9, &body));
    }
    let len = (count as usize).min(64).min(u.len());
    body.extend(u.bytes(len)?);
    Ok(message(10, &body))
}

/// A place in a region, mostly one that is in use.
fn place(u: &mut Unstructured<'_>) -> Result<(u32, u64)> {
    let cqs = |reg| Register::Cqs { tni: TniId::ALL[0], cq: CqId::ALL[0], reg }.offset();
    Ok(match u.int_in_range(0..=7)? {
        0 => (7, u.int_in_range(0..=0xff)?),
        1 => (7, regs::COMMAND.into()),
        2 => (7, u.int_in_range(0..=0x1010)?),
        3 => (u32::from(pci::MSIX_BAR), u.int_in_range(0..=0x2010)?),
        4 => {
            let register = [
                cqs(CqsReg::Enable),
                cqs(CqsReg::ToqIpa),
                cqs(CqsReg::TcqIpa),
                cqs(CqsReg::MrqIpa),
                Register::Tni { tni: TniId::ALL[0], reg: TniReg::Enable }.offset(),
            ];
            (0, register[u.choose_index(register.len())?])
        }
        5 => (
            0,
            Register::Cq { tni: TniId::ALL[0], cq: CqId::ALL[0], reg: CqReg::FetchStart }.offset(),
        ),
        6 => (0, u.int_in_range(0..=0x1000_0000)?),
        _ => (u.int_in_range(0..=10)?, u.arbitrary()?),
    })
}
