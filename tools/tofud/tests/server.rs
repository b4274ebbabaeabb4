//! The server with a device that is none, and processes of all kinds.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::Timespec;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tofu_abi::regs::BAR0_SIZE;
use tofu_abi::{CqId, TniId};
use tofu_driver::Platform;
use tofu_vfio::Layout;
use tofu_vfio::broker::wire::{
    Answer, Refusal, Request, SpaceKind, Terms, VERSION, receive_with_fds, send,
};
use tofu_vfio::broker::{Broker, BrokerError};
use tofud::{MAX_CLIENTS, Refused, Server, SharedDevice, Source, listen};

const UNIT: u64 = 1 << 30;

/// What was asked of the device.
#[derive(Default)]
struct State {
    open: u32,
    closed: u32,
    refuse: Option<&'static str>,
    granted: u64,
    back: Vec<(u64, u64)>,
    stopped: Vec<(u8, u8)>,
    stopped_gates: Vec<[u64; 6]>,
    gates_stick: bool,
    stuck: Vec<(u8, u8)>,
    bound: bool,
    packets_stopped: Vec<u8>,
    /// The kernel's own driver has it.
    is_kernels: bool,
    /// A process that uses that driver.
    user: bool,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<State>>);

impl Fake {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// How often the device was opened and given up.
    fn counts(&self) -> (u32, u32) {
        let state = self.state();
        (state.open, state.closed)
    }
}

struct Device {
    fake: Fake,
    registers: File,
    /// In place of an address space.
    space: File,
}

impl Source for Fake {
    type Device = Device;

    fn open(&self, bind: bool) -> Result<Device, String> {
        self.state().bound |= bind;
        if let Some(why) = self.state().refuse {
            return Err(why.into());
        }
        self.state().open += 1;
        let file = || File::from(memfd_create("device", MemfdFlags::CLOEXEC).unwrap());
        let (registers, space) = (file(), file());
        ftruncate(&registers, BAR0_SIZE).unwrap();
        Ok(Device { fake: self.clone(), registers, space })
    }

    fn lend(&self) -> Result<bool, Refused> {
        let mut state = self.state();
        if state.user {
            return Err(Refused { why: Refusal::InUse, text: "process 5 uses it".into() });
        }
        Ok(std::mem::take(&mut state.is_kernels))
    }

    fn give_back(&self) -> Result<(), String> {
        assert!(!std::mem::replace(&mut self.state().is_kernels, true));
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let mut state = self.fake.state();
        state.closed += 1;
        state.granted = 0;
    }
}

impl SharedDevice for Device {
    fn terms(&self) -> io::Result<(Terms, [BorrowedFd<'_>; 2])> {
        let registers = Layout::whole(0, BAR0_SIZE);
        let terms = Terms { registers, page: 4096, space: SpaceKind::Container };
        Ok((terms, [self.registers.as_fd(), self.space.as_fd()]))
    }

    fn grant_addresses(&self, size: u64) -> Option<(u64, u64)> {
        let len = size.checked_next_multiple_of(UNIT)?;
        let mut state = self.fake.state();
        let start = state.granted;
        state.granted = start.checked_add(len).filter(|end| *end <= 1 << 40)?;
        Some((start, len))
    }

    fn take_addresses_back(&self, start: u64, len: u64) -> Result<(), String> {
        self.fake.state().back.push((start, len));
        Ok(())
    }

    fn interrupt(&self, _: TniId) -> io::Result<BorrowedFd<'_>> {
        Ok(self.registers.as_fd())
    }

    fn stop_packets(&self, tni: TniId) {
        self.fake.state().packets_stopped.push(tni.get());
    }

    fn stop_queues(&self, queues: &[(TniId, CqId)]) -> Vec<(TniId, CqId)> {
        let mut state = self.fake.state();
        let numbers = |&(tni, cq): &(TniId, CqId)| (tni.get(), cq.get());
        state.stopped.extend(queues.iter().map(numbers));
        queues.iter().copied().filter(|queue| state.stuck.contains(&numbers(queue))).collect()
    }

    fn stop_gates(&self, gates: &[u64; 6]) -> bool {
        let mut state = self.fake.state();
        state.stopped_gates.push(*gates);
        !state.gates_stick
    }
}

struct Test {
    fake: Fake,
    server: Server<Fake>,
    _folder: tempfile::TempDir,
}

impl Test {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let server = Server::new(listen(&folder.path().join("sock")).unwrap(), fake.clone());
        Self { fake, server, _folder: folder }
    }

    /// Lets the server do all that there is to do.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.server.turn(Some(&Timespec::default())).unwrap();
        }
    }

    fn connect(&mut self) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        self.server.add(theirs);
        ours
    }

    /// The answer to a request; `None` if the connection has ended.
    fn ask(&mut self, socket: &OwnedFd, request: &Request) -> Option<Answer> {
        let _ = send(socket.as_fd(), request, &[]);
        self.settle();
        receive_with_fds(socket.as_fd()).unwrap_or_default().map(|(answer, _)| answer)
    }

    /// A new process; its socket, device addresses and queue.
    fn join(&mut self, place: Option<(u16, u16)>) -> (OwnedFd, (u64, u64), Option<u8>) {
        let socket = self.connect();
        match self.ask(&socket, &hello(place)) {
            Some(Answer::Welcome { addresses, cq, .. }) => (socket, addresses, cq),
            other => panic!("{other:?}"),
        }
    }
}

fn hello(place: Option<(u16, u16)>) -> Request {
    Request::Hello { version: VERSION, place }
}

fn why(answer: Option<Answer>) -> Refusal {
    match answer {
        Some(Answer::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_device_is_open_while_somebody_uses_it() {
    let mut test = Test::new();
    let silent = test.connect();
    test.settle();
    assert_eq!(test.fake.state().open, 0, "nobody has asked for it");
    let (one, (start, len), cq) = test.join(None);
    assert_eq!((start, cq), (0, Some(0)));
    let (other, second, cq) = test.join(None);
    assert!(second.0 >= start + len);
    assert_eq!((cq, test.server.users()), (Some(6), 2));
    assert_eq!(test.fake.counts(), (1, 0));
    drop(one);
    test.settle();
    {
        let state = test.fake.state();
        assert_eq!(state.stopped, [0, 1, 2, 3, 4, 5].map(|tni| (tni, 0)));
        assert_eq!(state.back, [(start, len)]);
        assert_eq!(state.closed, 0, "the other one has it still");
    }
    let (again, _, cq) = test.join(None);
    assert_eq!(cq, Some(0), "free at once");
    drop((other, again));
    test.settle();
    assert_eq!(test.fake.counts(), (1, 1));
    assert!(!test.server.has_device());
    test.join(Some((0, 1)));
    assert_eq!(test.fake.state().open, 2);
    drop(silent);
}

#[test]
fn addresses_and_queues_are_had_on_demand() {
    let mut test = Test::new();
    let (one, first, _) = test.join(None);
    let (other, ..) = test.join(None);
    let take = Request::Take { tni: 3, cq: 9 };
    assert_eq!(test.ask(&one, &take), Some(Answer::Taken));
    assert_eq!(why(test.ask(&other, &take)), Refusal::InUse);
    send(one.as_fd(), &Request::Give { tni: 3, cq: 9 }, &[]).unwrap();
    assert_eq!(test.ask(&other, &take), Some(Answer::Taken));
    let more = test.ask(&one, &Request::Addresses { size: 5 });
    let Some(Answer::Addresses { start, len }) = more else { panic!("{more:?}") };
    let next = test.ask(&one, &Request::Addresses { size: UNIT });
    assert_eq!(next, Some(Answer::Addresses { start: start + len, len: UNIT }));
    for size in [1 << 41, u64::MAX] {
        assert_eq!(why(test.ask(&one, &Request::Addresses { size })), Refusal::NoneLeft);
    }
    drop(one);
    test.settle();
    // Memory may lie across the border of two ranges.
    let expected = [first, (start, len + UNIT)];
    assert_eq!(test.fake.state().back, expected);
}

#[test]
fn a_place_that_is_taken_or_none_is_refused() {
    let mut test = Test::new();
    let (_one, _, cq) = test.join(Some((1, 2)));
    assert_eq!(cq, None);
    for (place, expected) in
        [((1, 2), Refusal::InUse), ((2, 2), Refusal::Wrong), ((0, 0), Refusal::Wrong)]
    {
        let socket = test.connect();
        assert_eq!(why(test.ask(&socket, &hello(Some(place)))), expected, "{place:?}");
    }
    test.join(Some((0, 2)));
}

#[test]
fn a_device_that_cannot_be_opened_is_tried_again_for_the_next_one() {
    let mut test = Test::new();
    test.fake.state().refuse = Some("somebody has it");
    let socket = test.connect();
    let answer = test.ask(&socket, &hello(None));
    let text = "somebody has it".to_owned();
    assert_eq!(answer, Some(Answer::Refused { why: Refusal::NoDevice, text }));
    test.fake.state().refuse = None;
    assert!(matches!(test.ask(&socket, &hello(None)), Some(Answer::Welcome { .. })));
}

#[test]
fn what_does_not_stop_is_nobodys() {
    let mut test = Test::new();
    let (_other, ..) = test.join(Some((1, 2)));
    let (one, ..) = test.join(None);
    test.fake.state().stuck.push((4, 0));
    drop(one);
    test.settle();
    assert_eq!(test.fake.state().back, [], "the device may still use it");
    let (_one, _, cq) = test.join(None);
    assert_eq!(cq, Some(4), "not 0, and 6 is another one's");
}

#[test]
fn barrier_gates_are_stopped_before_others_have_them() {
    let mut test = Test::new();
    let (one, ..) = test.join(None);
    let (other, ..) = test.join(None);
    let take = |relays| Request::TakeGates { tni: 1, relays };
    assert_eq!(test.ask(&one, &take(32)), Some(Answer::Gates { gates: 1 | 0xffff_ffff << 16 }));
    assert_eq!(why(test.ask(&other, &take(1))), Refusal::NoneLeft);
    test.ask(&one, &Request::GiveGates { tni: 1, gates: 1 << 20 });
    assert_eq!(test.ask(&other, &take(1)), Some(Answer::Gates { gates: 2 | 1 << 20 }));
    drop(one);
    test.settle();
    let all = 1 | 0xffff_ffff << 16 & !(1 << 20);
    assert_eq!(test.fake.state().stopped_gates, [[0, all, 0, 0, 0, 0]]);
    assert_eq!(test.ask(&other, &take(31)), Some(Answer::Gates { gates: all }));
    // What does not stop may still write to the process's memory.
    test.fake.state().back.clear();
    test.fake.state().gates_stick = true;
    drop(other);
    test.settle();
    assert_eq!(test.fake.state().back, []);
}

#[test]
fn those_who_make_no_sense_are_shown_out() {
    let mut test = Test::new();
    let (good, ..) = test.join(None);
    let requests: [&[Request]; 6] = [
        &[Request::Hello { version: VERSION + 1, place: None }],
        &[Request::Take { tni: 0, cq: 1 }],
        &[hello(None), hello(None)],
        &[hello(None), Request::Give { tni: 0, cq: 0 }],
        &[hello(None), Request::GiveGates { tni: 0, gates: 1 }],
        &[hello(None), Request::TakeGates { tni: 6, relays: 0 }],
    ];
    for requests in requests {
        let socket = test.connect();
        let (last, first) = requests.split_last().unwrap();
        for request in first {
            test.ask(&socket, request);
        }
        assert_eq!(why(test.ask(&socket, last)), Refusal::Wrong, "{requests:?}");
        assert_eq!(test.ask(&socket, &hello(None)), None, "{requests:?}");
    }
    for bytes in [&b"\xff\xff\xff"[..], &[0; 5000], &[0]] {
        let socket = test.connect();
        rustix::io::write(&socket, bytes).unwrap();
        assert_eq!(test.ask(&socket, &hello(None)), None);
    }
    // Descriptors are not taken, however many.
    let socket = test.connect();
    let fds = [socket.as_fd(), good.as_fd()];
    send(socket.as_fd(), &hello(Some((9, 9))), &fds).unwrap();
    test.settle();
    assert_eq!(test.server.users(), 1);
    assert_eq!(test.ask(&good, &Request::Take { tni: 0, cq: 1 }), Some(Answer::Taken));
}

#[test]
fn one_that_does_not_listen_holds_up_nobody() {
    let mut test = Test::new();
    let (deaf, ..) = test.join(None);
    let mut sent = 0;
    while send(deaf.as_fd(), &Request::Addresses { size: u64::MAX }, &[]).is_ok() {
        test.settle();
        sent += 1;
        assert!(sent < 100_000, "its answers are kept without bound");
    }
    test.settle();
    assert_eq!(test.server.users(), 0);
    test.join(None);
}

#[test]
fn those_who_say_nothing_make_room() {
    let mut test = Test::new();
    let (good, ..) = test.join(None);
    let silent: Vec<_> = (0..3 * MAX_CLIENTS).map(|_| test.connect()).collect();
    let (_other, ..) = test.join(None);
    assert_eq!(test.server.users(), 2);
    let gone = |socket: &&OwnedFd| matches!(receive_with_fds::<Answer>(socket.as_fd()), Ok(None));
    assert_eq!(silent.iter().filter(gone).count(), silent.len() + 2 - MAX_CLIENTS);
    assert_eq!(test.ask(&good, &Request::Take { tni: 0, cq: 1 }), Some(Answer::Taken));
}

#[test]
fn a_process_drives_the_device_by_itself() {
    let mut test = Test::new();
    let socket = test.connect();
    // The library's side waits.
    rustix::io::ioctl_fionbio(&socket, false).unwrap();
    let broker = Arc::new(Broker::of(socket).unwrap());
    let joining = Arc::clone(&broker);
    let thread = std::thread::spawn(move || joining.join(None));
    while !thread.is_finished() {
        test.server.turn(Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 })).unwrap();
    }
    let platform = thread.join().unwrap().unwrap();
    assert_eq!(platform.cq(), Some(CqId::ALL[0]));
    platform.bar0_write64(0x1000, 0x1234_5678);
    assert_eq!(platform.bar0_read64(0x1000), 0x1234_5678);
    assert!(platform.alloc_dma(64, 64).is_err(), "a file is no address space");
    drop(test);
    let refused = broker.take(TniId::ALL[0], CqId::ALL[5]).unwrap_err();
    assert!(matches!(refused, BrokerError::Gone(_)), "{refused}");
    let refused = broker.take(TniId::ALL[0], CqId::ALL[5]).unwrap_err();
    assert!(matches!(refused, BrokerError::Gone(_)), "{refused}");
    platform.bar0_write64(0x1000, 7);
    assert_eq!(platform.bar0_read64(0x1000), 7, "the device is still there");
}

#[test]
fn a_socket_is_replaced_by_the_next_broker() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device.sock");
    assert!(Broker::connect(&path).unwrap().is_none());
    let old = listen(&path).unwrap();
    drop(old);
    let _new = listen(&path).unwrap();
    assert!(Broker::connect(&path).unwrap().is_some());
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1, "nothing else is left there");
}

fn packets(tni: u8) -> Request {
    Request::Packets { version: VERSION, tni }
}

fn alone() -> Request {
    Request::Alone { version: VERSION }
}

#[test]
fn what_the_kernels_driver_has_is_lent() {
    let mut test = Test::new();
    test.fake.state().is_kernels = true;
    test.fake.state().user = true;
    let program = test.connect();
    assert_eq!(why(test.ask(&program, &alone())), Refusal::InUse);
    assert!(test.fake.state().is_kernels);
    test.fake.state().user = false;
    assert_eq!(test.ask(&program, &alone()), Some(Answer::Yours));
    assert!(!test.fake.state().is_kernels);
    let other = test.connect();
    assert_eq!(why(test.ask(&other, &alone())), Refusal::InUse);
    drop(other);
    test.settle();
    assert!(!test.fake.state().is_kernels, "whoever was refused has nothing to give back");
    drop(program);
    test.settle();
    assert!(test.fake.state().is_kernels);
    // What was nobody's stays so.
    test.fake.state().is_kernels = false;
    let program = test.connect();
    assert_eq!(test.ask(&program, &alone()), Some(Answer::Yours));
    drop(program);
    test.settle();
    assert!(!test.fake.state().is_kernels);
}

#[test]
fn the_network_shares_the_device_with_programs() {
    let mut test = Test::new();
    let network = test.connect();
    send(network.as_fd(), &packets(2), &[]).unwrap();
    test.settle();
    let (welcome, fds) = receive_with_fds(network.as_fd()).unwrap().unwrap();
    assert!(matches!(welcome, Answer::Welcome { cq: None, .. }), "{welcome:?}");
    assert_eq!(fds.len(), 3, "the device, its address space, the interrupt");
    let (program, _, cq) = test.join(None);
    assert_eq!((cq, test.server.users()), (Some(0), 2));
    // There is one network on a TNI, and no TNI 6.
    let other = test.connect();
    assert_eq!(why(test.ask(&other, &packets(2))), Refusal::InUse);
    let other = test.connect();
    assert_eq!(why(test.ask(&other, &packets(6))), Refusal::Wrong);
    assert_eq!(test.ask(&other, &packets(3)), None, "it was shown out");
    drop(program);
    test.settle();
    assert_eq!(test.fake.counts(), (1, 0), "the network has it still");
    test.fake.state().stopped.clear();
    drop(network);
    test.settle();
    {
        let state = test.fake.state();
        assert_eq!((&state.packets_stopped[..], &state.stopped[..]), (&[2][..], &[(2, 11)][..]));
    }
    assert_eq!(test.fake.counts(), (1, 1));
}

#[test]
fn the_network_gives_way_to_whoever_wants_the_device_alone() {
    let mut test = Test::new();
    let network = test.connect();
    assert!(matches!(test.ask(&network, &packets(0)), Some(Answer::Welcome { .. })));
    let (program, ..) = test.join(None);
    let greedy = test.connect();
    assert_eq!(why(test.ask(&greedy, &alone())), Refusal::InUse, "a program has it");
    drop(program);
    test.settle();
    assert_eq!(test.ask(&greedy, &alone()), Some(Answer::Yours));
    assert_eq!(test.fake.counts(), (1, 1), "given up");
    assert!(receive_with_fds::<Answer>(network.as_fd()).unwrap().is_none(), "shown out");
    // Until it is gone nobody else gets the device.
    for request in [packets(0), hello(None)] {
        let other = test.connect();
        assert_eq!(why(test.ask(&other, &request)), Refusal::NoDevice);
    }
    let other = test.connect();
    assert_eq!(why(test.ask(&other, &alone())), Refusal::InUse);
    assert_eq!(why(test.ask(&greedy, &Request::Take { tni: 0, cq: 0 })), Refusal::Wrong);
    drop(greedy);
    test.settle();
    let network = test.connect();
    assert!(matches!(test.ask(&network, &packets(0)), Some(Answer::Welcome { .. })));
    assert_eq!(test.fake.state().open, 2);
}

#[test]
fn the_network_binds_a_device_once_only() {
    let mut test = Test::new();
    let network = test.connect();
    test.ask(&network, &packets(0)).unwrap();
    assert!(std::mem::take(&mut test.fake.state().bound), "it has no driver at first");
    drop(network);
    test.settle();
    // Whoever takes the driver away now means it.
    let network = test.connect();
    test.ask(&network, &packets(0)).unwrap();
    assert!(!test.fake.state().bound);
    drop(network);
    test.settle();
    test.join(None);
    assert!(test.fake.state().bound, "a program has asked for it");
}

#[test]
fn what_only_a_reset_mends_is_not_kept_by_the_network() {
    let mut test = Test::new();
    let network = test.connect();
    test.ask(&network, &packets(0)).unwrap();
    let (program, ..) = test.join(None);
    test.fake.state().stuck.push((4, 0));
    drop(program);
    test.settle();
    assert_eq!(test.fake.counts(), (1, 1), "given up, to be reset");
    assert!(receive_with_fds::<Answer>(network.as_fd()).unwrap().is_none(), "shown out");
}
