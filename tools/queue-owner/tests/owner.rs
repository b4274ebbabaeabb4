//! An owner of shared queues on a device in this process, and processes that speak to it as to
//! `tofud`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tofu_abi::regs::NodeAddress;
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, CqId, Generation, StagOffset, TniId};
use tofu_driver::{Device, DmaBuffer, Order, Platform, Target};
use tofu_inproc::{Buffer, InProcess};
use tofu_machine::{Machine, MachineConfig};
use tofu_queue_owner::{
    FilePart, Home, Member, Place, QueueOwner, Refused, Reply, Rights, SharedQueues,
};
use tofu_utofu::{Half, NUM_STAGS};
use tofu_vfio::broker::wire::{Answer, Refusal, Request, receive, send};
use tofu_vfio::broker::{Broker, BrokerError, IsolatedDevice, IsolatedQueue, Joined};

const PLACE: Place = (TniId::ALL[0], CqId::ALL[0]);

/// A device of FX10 in this process.
struct Here(Device<InProcess>);

impl Home for Here {
    type Platform = InProcess;
    type Mapping = ();
    const PROCESSES_MAP: bool = true;

    fn device(&self) -> &Device<InProcess> {
        &self.0
    }

    fn event(&self, _: u16) -> io::Result<Arc<OwnedFd>> {
        Ok(Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    fn map(&self, _: &FilePart<'_>) -> Result<(u64, ()), Refused> {
        panic!("processes map their memory")
    }
}

/// A process, as the owner has it.
struct Client {
    socket: OwnedFd,
    member: Member,
}

fn answer(client: &Client, reply: Result<Option<Reply>, Refused>) {
    let socket = client.socket.as_fd();
    // A process may have gone.
    let _ = match reply {
        Ok(None) => Ok(()),
        Ok(Some(Reply::Answer(answer))) => send(socket, &answer, &[]),
        Ok(Some(Reply::Memory(file, event))) => {
            send(socket, &Answer::Memory, &[file.as_fd(), event.as_fd()])
        }
        Err(refused) => send(socket, &refused.answer(), &[]),
    };
}

/// Serves processes until all have gone.
fn serve(machine: &Machine, mut owner: QueueOwner<Here>, mut clients: Vec<Client>) {
    while !clients.is_empty() {
        machine.run_turn();
        owner.serve();
        for client in &mut clients {
            let settled = owner.settle(&mut client.member);
            answer(client, settled);
        }
        owner.rest();
        assert!(owner.close_unused().is_empty());
        clients.retain_mut(|client| match receive::<Request>(client.socket.as_fd()) {
            Ok(Some(Request::Isolated(request))) => {
                let handled = owner.handle(&mut client.member, &request, &[]);
                answer(client, handled);
                true
            }
            Ok(Some(_)) => {
                let node = NodeAddress::from_coords(Coords::default()).0;
                let generation = Generation::Fx10.register();
                let hello = Answer::Isolated { node, generation, cq: None };
                answer(client, Ok(Some(Reply::Answer(hello))));
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Ok(None) | Err(_) => {
                owner.end(&mut client.member);
                false
            }
        });
        thread::yield_now();
    }
    machine.run_turn();
    owner.serve();
    owner.close_unused();
    assert!(!owner.has(PLACE), "no process has it");
}

/// Processes with these halves and rights, and as many pages of memory.
fn with<const N: usize>(
    members: [(Half, u64); N],
    run: impl FnOnce([IsolatedDevice; N], [&Buffer; N]) + Send,
) {
    let shape = Shape::new([1, 1, 1, 1, 1, 1]).unwrap();
    let machine = Machine::new(MachineConfig::of(Generation::Fx10, shape)).unwrap();
    let machine = Arc::new(machine);
    let platform = InProcess::attach(&machine, Coords::default(), 64 << 20).unwrap();
    let pages = [(); N].map(|()| platform.alloc_dma(4096, 65536).unwrap());
    let device = Device::probe(platform).unwrap();
    let owner = QueueOwner::new(Here(device));
    let mut sockets = Vec::new();
    let clients = members.map(|(half, gpid)| {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::io::ioctl_fionbio(&theirs, true).unwrap();
        sockets.push(ours);
        let rights = Rights { gpid, ..Rights::default() };
        Client { socket: theirs, member: Member::new((PLACE, half), rights).unwrap() }
    });
    thread::scope(|scope| {
        scope.spawn(|| serve(&machine, owner, clients.into()));
        let mut sockets = sockets.into_iter();
        let devices = members.map(|_| {
            let broker = Arc::new(Broker::of(sockets.next().unwrap()).unwrap());
            match broker.join_any(Some((0, 9))).unwrap() {
                Joined::Isolated(device) => device,
                Joined::Shared(_) => panic!("it has only its half"),
            }
        });
        run(devices, pages.each_ref());
    });
}

fn open(device: &IsolatedDevice) -> Result<IsolatedQueue, BrokerError> {
    device.open(PLACE, NUM_STAGS, 0, false)
}

#[track_caller]
fn refused<T>(result: Result<T, BrokerError>) -> Refusal {
    match result {
        Err(BrokerError::Refused { why, .. }) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was granted"),
    }
}

fn register(queue: &IsolatedQueue, page: &Buffer, stag: u32) {
    queue.register_mapped((page.device_addr(), 4096), stag, 0, false).unwrap();
}

/// Puts a number to a steering tag of the node, and sleeps until the command has ended. Returns
/// whether the number is in the page.
fn put(queue: &mut IsolatedQueue, stag: u32, page: &Buffer) -> bool {
    let number = page.load_u64(0, Ordering::SeqCst) + 1;
    let to = Target::new(Coords::default(), TniId::ALL[0]);
    let at = StagOffset::new(CqId::ALL[0], stag, 0);
    let order = Order::put_piggyback(to, at, &number.to_le_bytes()).unwrap();
    queue.rings_mut().post_and_ring(&order, number).unwrap();
    loop {
        queue.wake().unwrap().ask();
        if let Some(done) = queue.rings_mut().poll_tcq() {
            queue.wake().unwrap().ask_no_more();
            assert_eq!((done.cookie, done.is_success()), (number, true), "it was sent");
            return page.load_u64(0, Ordering::SeqCst) == number;
        }
        let event = eventfd_of(queue);
        let mut fds = [PollFd::new(&event, PollFlags::IN)];
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "it is not woken");
    }
}

/// A descriptor of what wakes a process.
fn eventfd_of(queue: &IsolatedQueue) -> OwnedFd {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    pidfd_getfd(&own, queue.wake().unwrap().fd(), PidfdGetfdFlags::empty()).unwrap()
}

#[test]
fn halves_are_used_by_two_processes() {
    with([(Half::Lower, 0), (Half::Upper, 0)], |[lower, upper], [page, other]| {
        let [mut a, mut b] = [open(&lower).unwrap(), open(&upper).unwrap()];
        register(&a, page, 4096);
        assert!(put(&mut b, 4096, page) && put(&mut a, 4096, page));
        assert!(!put(&mut b, 6144, other), "not registered yet");
        register(&b, other, 6144);
        assert!(put(&mut a, 6144, other));
        // A process that goes takes its memory with it, and leaves the other its own.
        drop(a);
        assert!(!put(&mut b, 4096, page) && put(&mut b, 6144, other));
        let mut a = open(&lower).unwrap();
        register(&a, page, 4096);
        assert!(put(&mut b, 4096, page));
        b.deregister(6144).unwrap();
        assert!(!put(&mut a, 6144, other));
    });
}

#[test]
fn half_goes_to_the_next_process() {
    with(
        [(Half::Lower, 0), (Half::Lower, 0), (Half::Upper, 0)],
        |[one, next, other], [page, ..]| {
            let (a, mut b) = (open(&one).unwrap(), open(&other).unwrap());
            register(&a, page, 4096);
            thread::scope(|scope| {
                // It waits until the first one has gone, with all of its commands.
                let next = scope.spawn(|| open(&next).unwrap());
                assert!(put(&mut b, 4096, page));
                assert!(!next.is_finished());
                drop((a, one));
                register(&next.join().unwrap(), page, 4096);
            });
            let next = open(&next).unwrap();
            assert!(!put(&mut b, 4096, page), "it was closed");
            register(&next, page, 4096);
            assert!(put(&mut b, 4096, page));
        },
    );
}

#[test]
fn requests_that_are_wrong_are_refused() {
    with([(Half::Lower, 0), (Half::Upper, 1)], |[lower, upper], [page, _]| {
        assert_eq!(refused(lower.open((TniId::ALL[1], PLACE.1), 256, 0, false)), Refusal::Wrong);
        assert_eq!(refused(lower.open(PLACE, 256, 0, true)), Refusal::Wrong, "a session");
        assert_eq!(refused(lower.open(PLACE, NUM_STAGS + 1, 0, false)), Refusal::Wrong);
        assert_eq!(refused(lower.open(PLACE, 256, 4, false)), Refusal::Wrong, "many notices");
        let a = open(&lower).unwrap();
        assert_eq!(refused(open(&lower)), Refusal::Wrong, "open already");
        let register = |stag: u32| a.register_mapped((page.device_addr(), 4096), stag, 0, false);
        assert_eq!(refused(register(6144)), Refusal::Wrong, "the other one's");
        register(4096).unwrap();
        assert_eq!(refused(register(4096)), Refusal::Wrong, "in use");
        assert_eq!(refused(a.deregister(4097)), Refusal::Wrong);
        assert!(a.works());
        assert_eq!(refused(open(&upper)), Refusal::InUse, "of another group");
    });
}

#[test]
fn no_process_is_woken_unasked() {
    with([(Half::Upper, 0)], |[upper], [page]| {
        let mut queue = open(&upper).unwrap();
        register(&queue, page, 8191);
        let event = eventfd_of(&queue);
        let to = Target::new(Coords::default(), TniId::ALL[0]);
        let at = StagOffset::new(CqId::ALL[0], 8191, 0);
        let order = Order::put_piggyback(to, at, &[1]).unwrap();
        queue.rings_mut().post_and_ring(&order, 0).unwrap();
        while queue.rings_mut().poll_tcq().is_none() {
            thread::yield_now();
        }
        // The owner has read all messages before this one.
        assert!(queue.works());
        let mut fds = [PollFd::new(&event, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(0));
    });
}
