//! Two devices behind sockets, driven from here.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

use rustix::io::Errno;
use tofu_abi::irq::vector;
use tofu_abi::queue::MrqId;
use tofu_abi::table::PageSize;
use tofu_abi::{Coords, CqId, Rcode, TniId};
use tofu_driver::{
    Access, Cq, CqConfig, Device, IrqError, MemoryRange, Order, Platform, Target, WaitError,
};
use tofu_machine::{Doorbells, Machine, MachineConfig};
use tofu_vfio_user::{Backing, ClientError, ClientMemory, ClientPages, Limits, Server};
use tofu_vfio_user_client::{MapError, Mapping, SocketPlatform};

/// The longest time for anything, in nanoseconds.
const PATIENCE: u64 = 60_000_000_000;
const A: Coords = Coords::new(0, 0, 0, 0, 0, 0);
const B: Coords = Coords::new(0, 0, 0, 1, 0, 0);

struct Served {
    machine: Machine,
    servers: Vec<(Arc<Server>, JoinHandle<()>)>,
}

impl Served {
    fn new(doorbells: Doorbells) -> Self {
        let config = MachineConfig::new("1x1x1x2x1x1".parse().unwrap());
        let machine = Machine::new(MachineConfig { doorbells, ..config }).unwrap();
        machine.start().unwrap();
        Self { machine, servers: Vec::new() }
    }

    /// Two processes' parts of the node A.
    fn attach_two(&mut self) -> [Device<SocketPlatform>; 2] {
        let memory = (Backing::Process, Limits::DEFAULT);
        let pages = Some(ClientPages::new().unwrap());
        let servers = Server::joint(&self.machine, A, 2, memory, pages).unwrap();
        let mut servers = servers.into_iter().map(Arc::new);
        [0, 1].map(|index| {
            let server = servers.next().unwrap();
            let name = format!("tofu-attached-{}-{index}", std::process::id());
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            let listener = UnixListener::bind_addr(&address).unwrap();
            let serving = Arc::clone(&server);
            let thread = thread::spawn(move || serving.run(listener).unwrap());
            self.servers.push((server, thread));
            let platform = SocketPlatform::connect_shared(&format!("@{name}"), index, 2).unwrap();
            Device::probe(platform).unwrap()
        })
    }

    fn attach(&mut self, at: Coords, backing: Backing) -> Device<SocketPlatform> {
        let memory = Arc::new(ClientMemory::new(backing, Limits::DEFAULT));
        let pages = Some(ClientPages::new().unwrap());
        let server = Arc::new(Server::new(&self.machine, at, memory, pages).unwrap());
        let (mine, theirs) = UnixStream::pair().unwrap();
        let serving = Arc::clone(&server);
        let thread = thread::spawn(move || serving.serve(theirs).unwrap());
        self.servers.push((server, thread));
        Device::probe(SocketPlatform::attach(mine).unwrap()).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for (server, thread) in self.servers.drain(..) {
            server.stop();
            thread.join().unwrap();
        }
    }
}

fn open(device: &Device<SocketPlatform>, cq: u8) -> Cq<SocketPlatform> {
    device.tni(TniId::ALL[0]).enable().unwrap();
    Cq::open(device, &CqConfig::new(TniId::ALL[0], CqId::new(cq).unwrap())).unwrap()
}

/// Maps words of this process and registers them.
fn register(cq: &mut Cq<SocketPlatform>, words: &[AtomicU64]) -> (Mapping, tofu_driver::Stag) {
    let len = size_of_val(words);
    let mapping = cq.device().platform().map(words.as_ptr() as usize, len, true).unwrap();
    let range = MemoryRange { addr: mapping.device_addr(), len: len as u64 };
    let offset = mapping.device_addr() % 256;
    let stag = cq.register_at(range, PageSize::Size4K, Access::ReadWrite, 5, offset).unwrap();
    (mapping, stag)
}

fn words(value: u64) -> Vec<AtomicU64> {
    (0..1000).map(|_| AtomicU64::new(value)).collect()
}

fn run(cq: &mut Cq<SocketPlatform>, order: &Order) -> Rcode {
    cq.post_and_ring(&order.interrupt(), 7).unwrap();
    let sent = cq.wait_tcq(PATIENCE).unwrap().rcode;
    if !sent.is_success() {
        return sent;
    }
    // It was sent; its notice has the result.
    loop {
        let notice = cq.wait_mrq(PATIENCE).unwrap();
        if notice.id().is_some_and(MrqId::ends_own_command) {
            return notice.word0().rcode();
        }
    }
}

/// Through queues with an event each, and through queues whose doorbells are messages.
fn exchange(doorbells: Doorbells, queue: u8) {
    let mut served = Served::new(doorbells);
    let (a, b) = (served.attach(A, Backing::Process), served.attach(B, Backing::Process));
    assert_eq!((a.coords(), b.coords()), (A, B));
    let (mut from, mut to) = (open(&a, queue), open(&b, queue));
    let (source, target) = (words(3), words(0));
    let (_mapped, mine) = register(&mut from, &source);
    let (mapped, theirs) = register(&mut to, &target);
    let (mine_at, theirs_at) = (mine.at(0), theirs.at(0));
    let there = Target::new(B, TniId::ALL[0]);
    let put = Order::put(there, theirs_at, mine_at, 8000);
    for _ in 0..100 {
        assert_eq!(run(&mut from, &put), Rcode::SUCCESS);
    }
    assert!(target.iter().all(|word| word.load(SeqCst) == 3));
    let add = Order::armw8(there, tofu_abi::desc::ArmwOp::Add, theirs_at, 4);
    assert_eq!(run(&mut from, &add), Rcode::SUCCESS);
    assert_eq!(target[0].load(SeqCst), 7);
    assert_eq!(source[0].load(SeqCst), 3);
    // Not after the memory was unmapped: the command is sent, and its notice has the error.
    to.unregister(theirs).unwrap();
    drop(mapped);
    assert_eq!(run(&mut from, &put), Rcode::STAG_DISABLED.remote());
    assert_eq!(target[0].load(SeqCst), 7);
}

/// Returns true if a server can reach into processes here. Emulators of single programs lack the
/// calls.
fn is_reached(test: &str) -> bool {
    let mut served = Served::new(Doorbells::Trapped);
    let refused = served.attach(A, Backing::Process).platform().map(page(), 8, true).map(drop);
    let lacking = matches!(refused, Err(MapError::Server(ClientError::Refused(Errno::NOSYS))));
    if lacking {
        eprintln!("SKIP {test}: this host has no process_vm_readv");
    }
    !lacking
}

#[test]
fn doorbells_are_events_pages_or_messages() {
    if !is_reached("doorbells_are_events_pages_or_messages") {
        return;
    }
    exchange(Doorbells::Trapped, 0);
    exchange(Doorbells::Trapped, 9);
    exchange(Doorbells::Polled, 0);
}

#[test]
fn server_maps_present_memory_of_processes() {
    const TEST: &str = "server_maps_present_memory_of_processes";
    if !is_reached(TEST) {
        return;
    }
    let mut served = Served::new(Doorbells::Trapped);
    let a = served.attach(A, Backing::Process);
    let refused = a.platform().map(8, 8, true).map(|_| ());
    assert!(matches!(refused, Err(MapError::NoMemory)), "{refused:?}");
    let refused = a.platform().map(0x1000, 1 << 41, true).map(|_| ());
    assert!(matches!(refused, Err(MapError::NoAddresses(_))), "{refused:?}");
    // A server for guests treats such a range as one without memory.
    let b = served.attach(B, Backing::Sealed);
    let mut cq = open(&b, 0);
    let own: Vec<u64> = vec![1; 2048];
    let page = own.as_ptr() as usize & !0xfff;
    let mapping = b.platform().map(page + 4096, 4096, true).unwrap();
    let range = MemoryRange { addr: mapping.device_addr(), len: 4096 };
    let stag = cq.register(&[range], PageSize::Size4K, Access::ReadWrite, None).unwrap();
    let order = Order::put(Target::new(B, TniId::ALL[0]), stag.at(0), stag.at(8), 8);
    cq.post_and_ring(&order.interrupt(), 7).unwrap();
    // The queue's exception may be seen before the command's completion.
    match cq.wait_tcq(PATIENCE) {
        Ok(completion) => assert!(!completion.rcode.is_success()),
        Err(error) => assert!(matches!(error, WaitError::Exception(_)), "{error}"),
    }
}

/// Each process has the vectors of its queues, and keeps them when the other one leaves.
#[test]
fn processes_of_a_node_have_their_interrupts() {
    const TEST: &str = "processes_of_a_node_have_their_interrupts";
    if !is_reached(TEST) {
        return;
    }
    for doorbells in [Doorbells::Trapped, Doorbells::Polled] {
        let mut served = Served::new(doorbells);
        let [a, b] = served.attach_two();
        let (mut first, mut second) = (open(&a, 0), open(&b, 1));
        let (source, target) = (words(3), words(0));
        let (mapped, from) = register(&mut first, &source);
        let (_mapped, to) = register(&mut second, &target);
        let here = Target::new(A, TniId::ALL[0]);
        let put = Order::put(here, to.at(0), from.at(0), 8000);
        assert_eq!(run(&mut first, &put), Rcode::SUCCESS);
        let get = Order::get(here, from.at(0), to.at(0), 8000);
        assert_eq!(run(&mut second, &get), Rcode::SUCCESS);
        let other = vector::cq(TniId::ALL[0], CqId::ALL[1]);
        assert_eq!(a.platform().irq_enable(other), Err(IrqError { vector: other }));
        drop((first, mapped, a));
        assert_eq!(run(&mut second, &Order::put(here, to.at(0), to.at(0), 8)), Rcode::SUCCESS);
    }
}

#[test]
fn lost_server_is_no_crash() {
    let mut served = Served::new(Doorbells::Trapped);
    let a = served.attach(A, Backing::Process);
    let cq = open(&a, 0);
    drop(served);
    cq.doorbell();
    assert_eq!(cq.read_page(tofu_abi::regs::CqReg::FetchStart), u64::MAX);
    assert!(matches!(a.platform().map(page(), 8, true), Err(MapError::Server(_))));
}

fn page() -> usize {
    static WORD: AtomicU64 = AtomicU64::new(0);
    (&raw const WORD).addr()
}
