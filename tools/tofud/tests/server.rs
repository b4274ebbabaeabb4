//! The server with a fake device, and processes of all kinds.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::Timespec;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::getuid;
use tofu_abi::regs::BAR0_SIZE;
use tofu_abi::{BchId, BgId, CqId, Generation, TniId};
use tofu_driver::{Gate, Platform};
use tofu_queue_owner::{Member, Place, Reply, Rights, SharedQueues};
use tofu_vfio::Layout;
use tofu_vfio::broker::wire::{
    Answer, Channel, GateLinks, IsolatedRequest, Page, Queue, Refusal, Request, SpaceKind, Terms,
    VERSION, receive_with_fds, send,
};
use tofu_vfio::broker::{Broker, BrokerError};
use tofud::{
    MAX_CLIENTS, NewMemory, NewQueue, Part, Refused, Registers, Server, SharedDevice, Source,
    listen,
};

const UNIT: u64 = 1 << 30;

/// The requests to the device.
#[derive(Default)]
struct State {
    open: u32,
    closed: u32,
    refuse: Option<&'static str>,
    granted: u64,
    back: Vec<(u64, u64)>,
    stopped: Vec<Queue>,
    stopped_gates: Vec<[u64; 6]>,
    gates_stick: bool,
    stuck: Vec<Queue>,
    bound: bool,
    packets_stopped: Vec<u8>,
    /// The kernel's own driver has it.
    is_kernels: bool,
    /// A process that uses that driver.
    user: bool,
    /// The node's memory that such processes have, in bytes.
    taken: u64,
    /// The generation, if it is not Fugaku's.
    generation: Option<Generation>,
    /// Shared queues are open, and requests for them are done.
    shared_open: bool,
    shared_settles: bool,
    /// The group of the last isolated process, and the operations for such processes.
    group: u64,
    done: Vec<String>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<State>>);

impl Fake {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The number of times the device was opened and released.
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

    fn interrupt(&self, _: u16) -> io::Result<BorrowedFd<'_>> {
        Ok(self.registers.as_fd())
    }

    fn stop_packets(&self, tni: TniId) {
        self.fake.state().packets_stopped.push(tni.get());
    }

    fn stop_queues(&self, queues: &[(TniId, CqId)]) -> Vec<(TniId, CqId)> {
        let mut state = self.fake.state();
        state.stopped.extend(queues.iter().copied().map(Queue::from));
        let stuck = |queue: &(TniId, CqId)| state.stuck.contains(&Queue::from(*queue));
        queues.iter().copied().filter(stuck).collect()
    }

    fn part(&self, user: u32) -> Option<Box<dyn Part>> {
        self.fake.state().group = user.into();
        Some(Box::new(FakePart(self.fake.clone())))
    }

    fn generation(&self) -> Generation {
        self.fake.state().generation.unwrap_or_default()
    }

    fn rights(&self, user: u32) -> Option<Rights> {
        Some(Rights { gpid: user.into(), ..Rights::default() })
    }

    fn shared_queues(&self) -> Option<Box<dyn SharedQueues>> {
        Some(Box::new(FakeQueues { fake: self.fake.clone(), waits: false }))
    }

    fn stop_gates(&self, gates: &[u64; 6]) -> bool {
        let mut state = self.fake.state();
        state.stopped_gates.push(*gates);
        !state.gates_stick
    }
}

/// Records the requests of an isolated process, and grants them.
struct FakePart(Fake);

impl FakePart {
    fn note(&self, what: impl std::fmt::Debug) -> Result<(), Refused> {
        self.0.state().done.push(format!("{what:?}"));
        Ok(())
    }

    fn file(&self, what: impl std::fmt::Debug) -> Result<OwnedFd, Refused> {
        self.note(what)?;
        Ok(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap())
    }
}

impl Part for FakePart {
    fn open_queue(&mut self, new: &NewQueue) -> Result<OwnedFd, Refused> {
        self.file(("open", new.queue.0.get(), new.queue.1.get()))
    }

    fn close_queue(&mut self, _: (TniId, CqId)) -> Result<(), Refused> {
        self.note("close")
    }

    fn register(&mut self, new: &NewMemory<'_>) -> Result<(), Refused> {
        self.note(("register", new.stag, new.runs))
    }

    fn deregister(&mut self, _: (TniId, CqId), stag: u32) -> Result<(), Refused> {
        self.note(("deregister", stag))
    }

    fn open_channel(&mut self, _: (TniId, BchId), gates: &[Gate]) -> Result<OwnedFd, Refused> {
        self.file(("channel", gates.len()))
    }

    fn close_channel(&mut self, _: (TniId, BchId)) -> Result<(), Refused> {
        self.note("close channel")
    }

    fn exceptions(&self, _: (TniId, BchId)) -> Result<u64, Refused> {
        Ok(5)
    }

    fn write(&self, _: Registers, offset: u16, value: u64) -> Result<(), Refused> {
        self.note(("write", offset, value))
    }

    fn read(&self, _: Registers, offset: u16) -> Result<u64, Refused> {
        Ok(offset.into())
    }

    fn taken(&self) -> u64 {
        self.0.state().taken
    }
}

/// Records the requests to shared queues. Those to open and close one are done when the test says.
struct FakeQueues {
    fake: Fake,
    waits: bool,
}

impl SharedQueues for FakeQueues {
    fn handle(
        &mut self,
        member: &mut Member,
        request: &IsolatedRequest,
        _: &[OwnedFd],
    ) -> Result<Option<Reply>, Refused> {
        let (tni, cq) = member.place();
        match request {
            IsolatedRequest::OpenQueue { .. } | IsolatedRequest::CloseQueue { .. } => {
                self.waits = true;
                Ok(None)
            }
            IsolatedRequest::Write { .. } => {
                let done = format!("doorbell of {tni} {cq}");
                self.fake.state().done.push(done);
                Ok(None)
            }
            _ => Ok(Some(Reply::Answer(Answer::Value(77)))),
        }
    }

    fn settle(&mut self, _: &mut Member) -> Result<Option<Reply>, Refused> {
        let settles = self.fake.state().shared_settles && std::mem::take(&mut self.waits);
        Ok(settles.then_some(Reply::Answer(Answer::Done)))
    }

    fn end(&mut self, member: &mut Member) {
        let (tni, cq) = member.place();
        self.fake.state().done.push(format!("end of {tni} {cq}"));
    }

    fn serve(&mut self) -> bool {
        false
    }

    fn rest(&mut self) -> bool {
        false
    }

    fn close_unused(&mut self) -> Vec<Place> {
        Vec::new()
    }

    fn has(&self, _: Place) -> bool {
        self.fake.state().shared_open
    }

    fn events(&self) -> Vec<Arc<OwnedFd>> {
        Vec::new()
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

    /// Lets the server do all pending work.
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

    /// A test with processes of users other than the server's.
    fn of_others() -> Self {
        let test = Self::new();
        Self { server: test.server.trusting(getuid().as_raw() ^ 1), ..test }
    }

    /// The answer to a request; `None` if the connection has ended.
    fn ask(&mut self, socket: &OwnedFd, request: &Request) -> Option<Answer> {
        self.ask_with(socket, request, &[])
    }

    /// The same to a request with descriptors.
    fn ask_with(
        &mut self,
        socket: &OwnedFd,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Option<Answer> {
        let _ = send(socket.as_fd(), request, fds);
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
fn device_is_open_while_in_use() {
    let mut test = Test::new();
    let silent = test.connect();
    test.settle();
    assert_eq!(test.fake.state().open, 0, "it was not asked for");
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
        assert_eq!(state.stopped, [0, 1, 2, 3, 4, 5].map(|tni| Queue { tni, cq: 0 }));
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

/// Nine processes of a node of FX10, which has eight queues for them. The kernel's own driver has
/// the device before and after.
#[test]
fn processes_share_queues() {
    let mut test = Test::new();
    {
        let mut state = test.fake.state();
        (state.generation, state.is_kernels) = (Some(Generation::Fx10), true);
        state.shared_open = true;
    }
    // Even if all users are trusted, they get no more than rings.
    let join = |test: &mut Test, index| {
        let socket = test.connect();
        let answer = test.ask(&socket, &hello(Some((index, 9))));
        assert!(matches!(answer, Some(Answer::Isolated { cq: None, .. })), "{answer:?}");
        socket
    };
    let (first, second, ninth) = (join(&mut test, 0), join(&mut test, 1), join(&mut test, 8));
    assert!(!test.fake.state().is_kernels, "it is on loan");
    let late = test.connect();
    assert_eq!(why(test.ask(&late, &hello(Some((8, 9))))), Refusal::InUse);
    let late = test.connect();
    assert_eq!(why(test.ask(&late, &hello(Some((16, 17))))), Refusal::Wrong);

    let open = |tni| {
        let queue = Queue { tni, cq: 0 };
        let request = IsolatedRequest::OpenQueue { queue, stags: 64, mrq_size: 0, session: false };
        Request::Isolated(request)
    };
    assert_eq!(test.ask(&first, &open(0)), None, "later");
    test.fake.state().shared_settles = true;
    test.settle();
    let answer = receive_with_fds::<Answer>(first.as_fd()).unwrap().map(|(answer, _)| answer);
    assert_eq!(answer, Some(Answer::Done));
    // One whose queue is not shared has it by itself.
    assert_eq!(test.ask(&second, &open(1)), Some(Answer::Memory));
    let page = Page::Queue(Queue { tni: 0, cq: 0 });
    let read = Request::Isolated(IsolatedRequest::Read { page, offset: 0 });
    assert_eq!(test.ask(&ninth, &read), Some(Answer::Value(77)));
    let write = IsolatedRequest::Write { page, offset: 0x40, value: 1 };
    for _ in 0..3 {
        send(ninth.as_fd(), &Request::Isolated(write.clone()), &[]).unwrap();
    }
    test.server.turn(Some(&Timespec::default())).unwrap();
    let doorbells = |test: &Test| {
        test.fake.state().done.iter().filter(|done| *done == "doorbell of 0 0").count()
    };
    assert_eq!(doorbells(&test), 3, "several in a turn");

    // What one leaves is free when its queue is closed, or for another of the same place.
    drop((first, ninth));
    test.settle();
    let ends =
        |test: &Test| test.fake.state().done.iter().filter(|done| *done == "end of 0 0").count();
    assert_eq!(ends(&test), 2);
    let take = Request::Take(Queue { tni: 0, cq: 0 });
    assert_eq!(why(test.ask(&second, &take)), Refusal::InUse, "it is being closed");
    let ninth = join(&mut test, 8);
    drop(ninth);
    test.fake.state().shared_open = false;
    test.settle();
    assert_eq!(test.ask(&second, &take), Some(Answer::Taken));
    assert_eq!(test.fake.counts(), (1, 0));
    drop(second);
    test.settle();
    assert_eq!(test.fake.counts(), (1, 1));
    assert!(test.fake.state().is_kernels, "it has the device again");
}

#[test]
fn addresses_and_queues_are_had_on_demand() {
    let mut test = Test::new();
    let (one, first, _) = test.join(None);
    let (other, ..) = test.join(None);
    let take = Request::Take(Queue { tni: 3, cq: 9 });
    assert_eq!(test.ask(&one, &take), Some(Answer::Taken));
    assert_eq!(why(test.ask(&other, &take)), Refusal::InUse);
    send(one.as_fd(), &Request::Give(Queue { tni: 3, cq: 9 }), &[]).unwrap();
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
fn interrupts_are_those_of_own_queues() {
    let mut test = Test::new();
    let (one, ..) = test.join(None);
    let queue = Queue { tni: 2, cq: 0 };
    send(one.as_fd(), &Request::Interrupt(queue), &[]).unwrap();
    test.settle();
    let (answer, fds) = receive_with_fds::<Answer>(one.as_fd()).unwrap().unwrap();
    assert_eq!((answer, fds.len()), (Answer::Done, 1));
    let (other, ..) = test.join(None);
    assert_eq!(why(test.ask(&other, &Request::Interrupt(queue))), Refusal::Wrong);
    let mut test = Test::of_others();
    let (user, queue, _) = isolated(&mut test);
    assert_eq!(why(test.ask(&user, &Request::Interrupt(queue))), Refusal::Wrong);
}

#[test]
fn taken_or_invalid_place_is_refused() {
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
fn failed_open_is_retried_for_the_next() {
    let mut test = Test::new();
    test.fake.state().refuse = Some("it is in use");
    let socket = test.connect();
    let answer = test.ask(&socket, &hello(None));
    let text = "it is in use".to_owned();
    assert_eq!(answer, Some(Answer::Refused { why: Refusal::NoDevice, text }));
    test.fake.state().refuse = None;
    assert!(matches!(test.ask(&socket, &hello(None)), Some(Answer::Welcome { .. })));
}

#[test]
fn unstoppable_queue_is_given_to_no_process() {
    let mut test = Test::new();
    let (_other, ..) = test.join(Some((1, 2)));
    let (one, ..) = test.join(None);
    test.fake.state().stuck.push(Queue { tni: 4, cq: 0 });
    drop(one);
    test.settle();
    assert_eq!(test.fake.state().back, [], "the device may still use it");
    let (_one, _, cq) = test.join(None);
    assert_eq!(cq, Some(4), "not 0, and 6 is another one's");
}

#[test]
fn gates_are_stopped_before_reuse() {
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
    // A queue that does not stop may still write to the process's memory.
    test.fake.state().back.clear();
    test.fake.state().gates_stick = true;
    drop(other);
    test.settle();
    assert_eq!(test.fake.state().back, []);
}

#[test]
fn malformed_requests_end_the_connection() {
    let mut test = Test::new();
    let (good, ..) = test.join(None);
    let requests: [&[Request]; 6] = [
        &[Request::Hello { version: VERSION + 1, place: None }],
        &[Request::Take(Queue { tni: 0, cq: 1 })],
        &[hello(None), hello(None)],
        &[hello(None), Request::Give(Queue { tni: 0, cq: 0 })],
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
    // Descriptors are not accepted, in any number.
    let socket = test.connect();
    let fds = [socket.as_fd(), good.as_fd()];
    send(socket.as_fd(), &hello(Some((9, 9))), &fds).unwrap();
    test.settle();
    assert_eq!(test.server.users(), 1);
    assert_eq!(test.ask(&good, &Request::Take(Queue { tni: 0, cq: 1 })), Some(Answer::Taken));
}

/// An isolated process, with its queue, which is open, and gates of TNI 0.
fn isolated(test: &mut Test) -> (OwnedFd, Queue, u64) {
    let socket = test.connect();
    let cq = match test.ask(&socket, &hello(None)) {
        Some(Answer::Isolated { node: 0, cq: Some(cq), .. }) => cq,
        other => panic!("{other:?}"),
    };
    let queue = Queue { tni: 2, cq };
    let open = IsolatedRequest::OpenQueue { queue, stags: 8, mrq_size: 0, session: false };
    assert_eq!(test.ask(&socket, &Request::Isolated(open)), Some(Answer::Memory));
    match test.ask(&socket, &Request::TakeGates { tni: 0, relays: 1 }) {
        Some(Answer::Gates { gates }) => (socket, queue, gates),
        other => panic!("{other:?}"),
    }
}

#[test]
fn isolated_process_memory_is_limited() {
    let mut test = Test::of_others();
    let (socket, queue, _) = isolated(&mut test);
    let file = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
    let register = |len| IsolatedRequest::Register {
        queue,
        stag: 3,
        offset: 0,
        address: 0,
        len: 1,
        read_only: false,
        runs: vec![(0, len)],
    };
    let ask =
        |test: &mut Test, what| test.ask_with(&socket, &Request::Isolated(what), &[file.as_fd()]);
    assert_eq!(why(ask(&mut test, register(1 << 60))), Refusal::NoneLeft);
    let open =
        |stags, mrq_size| IsolatedRequest::OpenQueue { queue, stags, mrq_size, session: false };
    assert_eq!(why(ask(&mut test, open(u32::MAX, 0))), Refusal::NoneLeft);
    test.fake.state().taken = 1 << 60;
    assert_eq!(why(ask(&mut test, register(4096))), Refusal::NoneLeft);
    assert_eq!(why(ask(&mut test, open(8, 0))), Refusal::NoneLeft);
    test.fake.state().taken = 0;
    assert_eq!(ask(&mut test, register(4096)), Some(Answer::Done));
}

#[test]
fn isolated_process_has_its_own() {
    let mut test = Test::of_others();
    let (socket, queue, gates) = isolated(&mut test);
    assert_eq!(test.fake.state().group, u64::from(getuid().as_raw()));
    let file = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
    let runs = vec![(0, 4096)];
    let (offset, address, len, read_only) = (0, 0, 4096, false);
    let register =
        IsolatedRequest::Register { queue, stag: 3, offset, address, len, read_only, runs };
    let registered = test.ask_with(&socket, &Request::Isolated(register), &[file.as_fd()]);
    assert_eq!(registered, Some(Answer::Done));
    let page = Page::Queue(queue);
    let write = IsolatedRequest::Write { page, offset: 0x40, value: 9 };
    send(socket.as_fd(), &Request::Isolated(write), &[]).unwrap();
    let read = IsolatedRequest::Read { page, offset: 0x48 };
    assert_eq!(test.ask(&socket, &Request::Isolated(read)), Some(Answer::Value(0x48)));
    let own = BgId::ALL.into_iter().filter(|bg| gates >> bg.get() & 1 != 0);
    let own = own.map(|bg| GateLinks::from(&Gate::new(TniId::ALL[0], bg))).collect();
    let channel = Channel { tni: 0, bch: gates.trailing_zeros() as u8 };
    let open = IsolatedRequest::OpenChannel { channel, gates: own };
    assert_eq!(test.ask(&socket, &Request::Isolated(open)), Some(Answer::Memory));
    let expected = [
        format!("(\"open\", 2, {})", queue.cq),
        "(\"register\", 3, [(0, 4096)])".into(),
        "(\"write\", 64, 9)".into(),
        "(\"channel\", 2)".into(),
    ];
    assert_eq!(test.fake.state().done, expected);
    assert_eq!(test.server.users(), 1);
    drop(socket);
    test.settle();
    assert!(test.fake.state().stopped.contains(&queue));
    assert_eq!(test.fake.counts(), (1, 1));
}

#[test]
fn isolated_process_has_nothing_of_others() {
    let mut test = Test::of_others();
    let (_victim, its, gates) = isolated(&mut test);
    let channel = Channel { tni: 0, bch: gates.trailing_zeros() as u8 };
    let before = test.fake.state().done.len();
    let attempts = |own: u8| {
        let gate = |bg: u8| GateLinks::from(&Gate::new(TniId::ALL[0], BgId::ALL[usize::from(bg)]));
        let runs = vec![(0, 4096)];
        let (stag, offset, address, len, read_only) = (1, 0, 0, 4096, false);
        let open =
            |queue| IsolatedRequest::OpenQueue { queue, stags: 8, mrq_size: 0, session: false };
        vec![
            open(its),
            open(Queue { tni: 0, cq: 11 }),
            open(Queue { tni: 9, cq: 0 }),
            IsolatedRequest::CloseQueue { queue: its },
            IsolatedRequest::Register { queue: its, stag, offset, address, len, read_only, runs },
            IsolatedRequest::Deregister { queue: its, stag: 3 },
            IsolatedRequest::Write { page: Page::Queue(its), offset: 0x40, value: 1 },
            IsolatedRequest::Read { page: Page::Queue(its), offset: 0x40 },
            IsolatedRequest::Write { page: Page::Channel(channel), offset: 0x840, value: 1 },
            IsolatedRequest::OpenChannel { channel, gates: vec![gate(channel.bch)] },
            IsolatedRequest::OpenChannel {
                channel: Channel { tni: 0, bch: own },
                gates: vec![gate(own), gate((63 - gates.leading_zeros()) as u8)],
            },
            IsolatedRequest::OpenChannel {
                channel: Channel { tni: 0, bch: own },
                gates: vec![GateLinks { bg: 200, ..gate(own) }],
            },
            IsolatedRequest::CloseChannel { channel },
            IsolatedRequest::Exceptions { channel },
        ]
    };
    for attempt in 0..attempts(0).len() {
        let (socket, _, own) = isolated(&mut test);
        let made = test.fake.state().done.len();
        let request = attempts(own.trailing_zeros() as u8).swap_remove(attempt);
        let answer = test.ask(&socket, &Request::Isolated(request.clone()));
        assert_eq!(why(answer), Refusal::Wrong, "{request:?}");
        assert_eq!(test.ask(&socket, &hello(None)), None, "{request:?}");
        assert_eq!(test.fake.state().done.len(), made, "{request:?}");
    }
    assert!(test.fake.state().done.len() > before);
    // Nor what is root's.
    for request in [packets(0), Request::Alone { version: VERSION }] {
        let socket = test.connect();
        assert_eq!(why(test.ask(&socket, &request)), Refusal::NoDevice);
    }
    let (socket, ..) = isolated(&mut test);
    assert_eq!(why(test.ask(&socket, &Request::Addresses { size: 1 })), Refusal::Wrong);
    // Nor do trusted processes get anything through tofud.
    let mut test = Test::new();
    let (socket, ..) = test.join(None);
    let request = IsolatedRequest::CloseQueue { queue: Queue { tni: 0, cq: 0 } };
    assert_eq!(why(test.ask(&socket, &Request::Isolated(request))), Refusal::Wrong);
}

#[test]
fn isolated_users_connections_are_limited() {
    let mut test = Test::of_others();
    let sockets: Vec<_> = (0..MAX_CLIENTS).map(|_| test.connect()).collect();
    let heard = |socket: &&OwnedFd| {
        matches!(receive_with_fds::<Answer>(socket.as_fd()), Ok(Some((Answer::Refused { .. }, _))))
    };
    test.settle();
    assert_eq!(sockets.iter().filter(heard).count(), MAX_CLIENTS - 48);
}

#[test]
fn deaf_client_delays_no_other() {
    let mut test = Test::new();
    let (unresponsive, ..) = test.join(None);
    let mut sent = 0;
    while send(unresponsive.as_fd(), &Request::Addresses { size: u64::MAX }, &[]).is_ok() {
        test.settle();
        sent += 1;
        assert!(sent < 100_000, "its answers are kept without bound");
    }
    test.settle();
    assert_eq!(test.server.users(), 0);
    test.join(None);
}

#[test]
fn silent_clients_make_room() {
    let mut test = Test::new();
    let (good, ..) = test.join(None);
    let silent: Vec<_> = (0..3 * MAX_CLIENTS).map(|_| test.connect()).collect();
    let (_other, ..) = test.join(None);
    assert_eq!(test.server.users(), 2);
    let gone = |socket: &&OwnedFd| matches!(receive_with_fds::<Answer>(socket.as_fd()), Ok(None));
    assert_eq!(silent.iter().filter(gone).count(), silent.len() + 2 - MAX_CLIENTS);
    assert_eq!(test.ask(&good, &Request::Take(Queue { tni: 0, cq: 1 })), Some(Answer::Taken));
}

#[test]
fn process_drives_the_device_by_itself() {
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
fn socket_is_replaced_by_the_next_broker() {
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
fn kernels_device_is_lent() {
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
    assert!(!test.fake.state().is_kernels, "a refused client has nothing to give back");
    drop(program);
    test.settle();
    assert!(test.fake.state().is_kernels);
    // Free queues stay free.
    test.fake.state().is_kernels = false;
    let program = test.connect();
    assert_eq!(test.ask(&program, &alone()), Some(Answer::Yours));
    drop(program);
    test.settle();
    assert!(!test.fake.state().is_kernels);
}

#[test]
fn network_shares_the_device_with_programs() {
    let mut test = Test::new();
    let network = test.connect();
    send(network.as_fd(), &packets(2), &[]).unwrap();
    test.settle();
    let (welcome, fds) = receive_with_fds(network.as_fd()).unwrap().unwrap();
    assert!(matches!(welcome, Answer::Welcome { cq: None, .. }), "{welcome:?}");
    assert_eq!(fds.len(), 3, "the device, its address space, the interrupt");
    let (program, _, cq) = test.join(None);
    assert_eq!((cq, test.server.users()), (Some(0), 2));
    // There is only one network on a TNI, and no TNI 6.
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
        assert_eq!(state.packets_stopped, [2]);
        assert_eq!(state.stopped, [Queue { tni: 2, cq: 11 }]);
    }
    assert_eq!(test.fake.counts(), (1, 1));
}

#[test]
fn network_yields_to_exclusive_use() {
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
    // Until it is gone, no other process gets the device.
    for request in [packets(0), hello(None)] {
        let other = test.connect();
        assert_eq!(why(test.ask(&other, &request)), Refusal::NoDevice);
    }
    let other = test.connect();
    assert_eq!(why(test.ask(&other, &alone())), Refusal::InUse);
    assert_eq!(why(test.ask(&greedy, &Request::Take(Queue { tni: 0, cq: 0 }))), Refusal::Wrong);
    drop(greedy);
    test.settle();
    let network = test.connect();
    assert!(matches!(test.ask(&network, &packets(0)), Some(Answer::Welcome { .. })));
    assert_eq!(test.fake.state().open, 2);
}

#[test]
fn network_binds_a_device_once() {
    let mut test = Test::new();
    let network = test.connect();
    test.ask(&network, &packets(0)).unwrap();
    assert!(std::mem::take(&mut test.fake.state().bound), "it has no driver at first");
    drop(network);
    test.settle();
    // Taking away the driver now is intended.
    let network = test.connect();
    test.ask(&network, &packets(0)).unwrap();
    assert!(!test.fake.state().bound);
    drop(network);
    test.settle();
    test.join(None);
    assert!(test.fake.state().bound, "a program has asked for it");
}

#[test]
fn network_drops_device_that_needs_reset() {
    let mut test = Test::new();
    let network = test.connect();
    test.ask(&network, &packets(0)).unwrap();
    let (program, ..) = test.join(None);
    test.fake.state().stuck.push(Queue { tni: 4, cq: 0 });
    drop(program);
    test.settle();
    assert_eq!(test.fake.counts(), (1, 1), "given up, to be reset");
    assert!(receive_with_fds::<Answer>(network.as_fd()).unwrap().is_none(), "shown out");
}
