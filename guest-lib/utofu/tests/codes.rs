//! Causes every code that the Rust API can return; the C side has its own table.

mod common;

use std::collections::HashSet;

use common::{Memory, completion, notice, pair, pair_of};
use tofu_abi::desc::Descriptor;
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, Path};
use tofu_utofu::command::{Packets, Posting};
use tofu_utofu::flags::{LOCAL_MRQ_NOTICE, TCQ_NOTICE, VCQ_EXCLUSIVE, VCQ_SESSION_MODE, path};
use tofu_utofu::ids::{Stadd, VbgId, VcqId};
use tofu_utofu::{Code, Command, Context, DeviceShare, Error, Vcq};
use tofu_utofu_local::{Generation, LocalMachine, LocalProvider};

/// Codes of barriers, which have their own test; codes that only C functions return; codes for
/// which there is always a more exact one; and codes that no test can cause at will.
const ELSEWHERE: [Code; 14] = [
    Code::NotCompleted,
    Code::NotProcessed,
    Code::BarrierOther,
    Code::BarrierMismatch,
    Code::InvalidBgId,
    Code::InvalidPointer,
    Code::InvalidArg,
    Code::InvalidEdata,
    Code::InvalidData,
    Code::MrqOther,
    Code::TcqOther,
    Code::OutOfResource,
    Code::OutOfMemory,
    Code::Fatal,
];

/// The codes returned so far.
struct Seen(HashSet<Code>);

impl Seen {
    fn error<T>(&mut self, expected: Code, result: Result<T, Error>) {
        let error = result.map(|_| ()).unwrap_err();
        assert_eq!(error.code(), expected, "{error}");
        // Code, subject, and remedy.
        let text = error.to_string();
        assert!(text.split(": ").filter(|part| !part.is_empty()).count() >= 3, "{text}");
        self.0.insert(expected);
    }
}

fn ids(seen: &mut Seen) {
    let node = Coords::default();
    seen.error(Code::InvalidCoords, VcqId::construct(Coords::new(32, 0, 0, 0, 0, 0), 0, 0, 0));
    seen.error(Code::InvalidCoords, VcqId::construct(Coords::new(0, 0, 0, 0, 3, 0), 0, 0, 0));
    seen.error(Code::InvalidTniId, VcqId::construct(node, 6, 0, 0));
    seen.error(Code::InvalidCqId, VcqId::construct(node, 0, 12, 0));
    seen.error(Code::InvalidCmpId, VcqId::construct(node, 0, 0, 8));
    seen.error(Code::InvalidVcqId, VcqId::check(1 << 60));
    seen.error(Code::InvalidVcqId, VcqId::check(11 + 1));
    seen.error(Code::InvalidVbgId, VbgId::check(1 << 6));
    seen.error(Code::InvalidVbgId, VbgId::check(VbgId::NULL.0));
    let id = VcqId::construct(node, 0, 0, 0).unwrap();
    seen.error(Code::InvalidPath, id.with_path(Some(Path::new(0, 3, 0))));
    seen.error(Code::InvalidPath, id.path_id_of(Path::new(2, 0, 0)));
    seen.error(Code::InvalidPathId, id.path_of_id(6));
    seen.error(Code::InvalidPathId, id.path_of_id(16));
    seen.error(Code::InvalidStag, Stadd::reserved(id, 256));
    seen.error(Code::InvalidStadd, Stadd::check(1 << 63, "x"));
    seen.error(Code::NotAvailable, DeviceShare::new(0, 49));
    seen.error(Code::NotAvailable, DeviceShare::new(36, 36));
}

fn commands(seen: &mut Seen, to: u64) {
    seen.error(Code::InvalidVcqId, Posting::new(u64::MAX, 0, 0));
    seen.error(Code::InvalidFlags, Posting::new(to, 0, 1 << 4));
    seen.error(Code::InvalidFlags, Command::nop(1 << 32));
    seen.error(Code::InvalidPathId, Posting::new(to, 0, path(7)));
    for (mtu, gap) in [(7, 0), (1921, 0), (usize::MAX, 0), (64, 256)] {
        seen.error(Code::InvalidSize, Packets::new(mtu, gap));
    }
    let to = Posting::new(to, 0, 0).unwrap();
    let all = Packets::default();
    seen.error(Code::InvalidSize, to.put(0, 0, 1 << 24, all));
    seen.error(Code::InvalidSize, to.get(0, 0, usize::MAX, all));
    seen.error(Code::InvalidSize, to.put_piggyback(&[0; 33], 0));
    seen.error(Code::InvalidSize, to.put_piggyback8(0, 9, 0));
    seen.error(Code::InvalidStadd, to.put(1 << 58, 0, 1, all));
    seen.error(Code::InvalidStadd, to.put(0, 1 << 58, 1, all));
    seen.error(Code::InvalidStadd, to.get(1 << 63, 0, 1, all));
    seen.error(Code::InvalidStadd, to.put_piggyback(&[0], 1 << 58));
    seen.error(Code::InvalidStadd, to.put_piggyback8(0, 1, 1 << 58));
    seen.error(Code::InvalidStadd, to.armw(1, 0, 8, 1 << 58));
    seen.error(Code::InvalidStadd, to.cswap4(0, 0, 1 << 58));
    seen.error(Code::InvalidStadd, to.cswap8(0, 0, 1 << 58));
    seen.error(Code::InvalidOp, to.armw(0, 0, 8, 0));
    seen.error(Code::InvalidOp, to.armw(6, 0, 4, 0));
    let put = to.put(0, 0, 8, all).unwrap();
    seen.error(Code::InvalidNumber, put.check_blocks(8, 0));
    seen.error(Code::InvalidNumber, put.check_blocks(1 << 39, 3));
    seen.error(Code::InvalidDesc, Command::parse(&[]));
    seen.error(Code::InvalidDesc, Command::parse(&[Descriptor([0x80, 0, 0, 0])]));
}

fn vcqs(seen: &mut Seen, context: &Context<LocalProvider>) {
    seen.error(Code::InvalidTniId, context.create_vcq(6, None, 0));
    seen.error(Code::InvalidCmpId, context.create_vcq(0, Some(8), 0));
    seen.error(Code::InvalidFlags, context.create_vcq(0, None, 8));
    let _component = context.create_vcq(5, Some(0), 0).unwrap();
    seen.error(Code::Used, context.create_vcq(5, Some(0), 0));
    let _all: Vec<_> = (0..8).map(|_| context.create_vcq(5, None, 0).unwrap()).collect();
    seen.error(Code::Full, context.create_vcq(5, None, 0));
    let _own: Vec<_> =
        (0..10).map(|_| context.create_vcq(5, None, VCQ_EXCLUSIVE).unwrap()).collect();
    seen.error(Code::Full, context.create_vcq(5, None, VCQ_EXCLUSIVE));
    seen.error(Code::Full, context.create_vcq(5, None, VCQ_SESSION_MODE));
    let (queue, ticket) = context.create_vcq(4, None, 0).unwrap().into_parts();
    queue.free(ticket).unwrap();
    seen.error(Code::InvalidVcqHdl, queue.free(ticket));
    seen.error(Code::InvalidVcqHdl, queue.id(ticket));
    seen.error(Code::InvalidVcqHdl, queue.check(ticket));
    seen.error(Code::InvalidVcqHdl, queue.poll_tcq(ticket));
    seen.error(Code::InvalidVcqHdl, queue.poll_mrq(ticket));
    seen.error(Code::InvalidVcqHdl, queue.unread_tcq(ticket));
    seen.error(Code::InvalidVcqHdl, queue.unread_mrq(ticket));
    seen.error(Code::InvalidVcqHdl, queue.deregister(ticket, 0));
    let nop = Command::nop(0).unwrap();
    seen.error(Code::InvalidVcqHdl, queue.post(ticket, &nop, 0));
    seen.error(Code::InvalidVcqHdl, queue.post_blocks(ticket, &nop, 0, 2, 0));
    seen.error(Code::InvalidVcqHdl, queue.post_prepared(ticket, nop.prepared(), 0));
}

fn memory(seen: &mut Seen, vcq: &Vcq<LocalProvider>) {
    let memory = Memory::new(4096);
    let mut register = |expected, addr: usize, size, stag, flags| {
        // SAFETY: the memory is never freed and only accessed by volatile accesses; unmapped memory
        // is refused.
        seen.error(expected, unsafe { vcq.reg_mem(addr as *mut u8, size, stag, flags) });
    };
    let at = memory.addr() as usize;
    register(Code::InvalidAddress, 0, 8, None, 0);
    register(Code::InvalidAddress, 4096, 8, None, 0);
    register(Code::InvalidAddress, 4096, 8, Some(1), 0);
    register(Code::InvalidSize, at, 0, None, 0);
    register(Code::InvalidSize, at, usize::MAX, None, 0);
    register(Code::InvalidFlags, at, 8, None, 2);
    register(Code::InvalidStag, at, 8, Some(256), 0);
    // SAFETY: as above.
    let stadd = unsafe { vcq.reg_mem(memory.addr(), 8, Some(1), 0).unwrap() };
    register(Code::Used, at, 8, Some(1), 0);
    vcq.dereg_mem(stadd).unwrap();
    seen.error(Code::InvalidStadd, vcq.dereg_mem(stadd));
    seen.error(Code::InvalidStadd, vcq.dereg_mem(Stadd(1 << 63)));
}

/// Commands that fail, by the codes of both queues; `None`: there is no notice.
fn ends(seen: &mut Seen, a: &Vcq<LocalProvider>, b: &Vcq<LocalProvider>) {
    static CONSTANT: [u8; 64] = [1; 64];
    let (mine, theirs) = (Memory::new(4096), Memory::new(4096));
    let [lcl, rmt] = [mine.register(a, 0).0, theirs.register(b, 0).0];
    let constant = |vcq: &Vcq<LocalProvider>| {
        let addr = CONSTANT.as_ptr().cast_mut();
        // SAFETY: it is never freed, and the device cannot write to it.
        unsafe { vcq.reg_mem(addr, CONSTANT.len(), None, 0).unwrap().0 }
    };
    let [my_constant, their_constant] = [constant(a), constant(b)];
    let never = Stadd::new(8190, 0).0;
    let (all, flags) = (Packets::default(), TCQ_NOTICE | LOCAL_MRQ_NOTICE);
    let to = Posting::new(b.id().0, 0, flags).unwrap();
    let far = VcqId::construct(Coords::new(9, 0, 0, 0, 0, 0), 0, 0, 0).unwrap();
    let absent = Posting::new(far.0, 0, flags).unwrap();
    let long = Posting::new(b.id().0, 256, flags).unwrap();
    let mut spoiled = to.put(lcl, rmt, 8, all).unwrap().prepared()[0];
    spoiled.0[0] |= 255 << 16;
    let (spoiled, _) = Command::parse(&[spoiled]).unwrap();
    for (command, tcq, mrq) in [
        (to.put(never, rmt, 8, all), Code::TcqStadd, Some(Code::MrqLclStadd)),
        (to.put(lcl + 4090, rmt, 8, all), Code::TcqLength, Some(Code::MrqLclLength)),
        (to.get(my_constant, rmt, 8, all), Code::TcqMemory, Some(Code::MrqLclMemory)),
        (to.get(lcl, never, 8, all), Code::Success, Some(Code::MrqRmtStadd)),
        (to.put(lcl, rmt + 4090, 8, all), Code::Success, Some(Code::MrqRmtLength)),
        (to.put(lcl, their_constant, 8, all), Code::Success, Some(Code::MrqRmtMemory)),
        (absent.put(lcl, rmt, 8, all), Code::Success, Some(Code::MrqPeer)),
        (long.put(lcl, rmt, 8, all), Code::TcqLength, None),
        (Ok(spoiled), Code::TcqDesc, None),
    ] {
        a.post(&command.unwrap(), 5).unwrap();
        let done = completion(a);
        assert_eq!((done.cbdata, done.status()), (5, tcq));
        seen.0.insert(tcq);
        match mrq {
            Some(code) => assert_eq!(notice(a).status(), code),
            None => assert_eq!(a.poll_mrq(), None),
        }
        seen.0.extend(mrq);
    }
}

#[test]
fn every_code_comes_up_and_says_why() {
    let mut seen = Seen(HashSet::from([Code::Success]));
    let pair = pair();
    let a = pair.contexts[0].create_vcq(0, None, 0).unwrap();
    let b = pair.contexts[1].create_vcq(0, None, 0).unwrap();
    ids(&mut seen);
    commands(&mut seen, b.id().0);
    vcqs(&mut seen, &pair.contexts[0]);
    memory(&mut seen, &a);
    ends(&mut seen, &a, &b);

    assert!(a.poll_tcq().is_none() && a.poll_mrq().is_none());
    seen.0.insert(Code::NotFound);
    let nop = Command::nop(TCQ_NOTICE).unwrap();
    while a.post(&nop, 0).is_ok() {}
    seen.error(Code::Busy, a.post(&nop, 0));
    seen.error(Code::Busy, a.post_blocks(&nop, 0, 2, 0));
    seen.error(Code::InvalidNumber, a.post_blocks(&nop, 0, 2049, 0));

    // A process that has one interface only.
    let machine = LocalMachine::new(Shape::new([1; 6]).unwrap()).unwrap();
    let node = machine.node(Coords::default()).unwrap();
    let few = Context::new(node, DeviceShare::new(0, 36).unwrap());
    let other = if few.share().tnis().any(|tni| tni.get() == 0) { 1 } else { 0 };
    seen.error(Code::NotAvailable, few.create_vcq(other, None, 0));

    // Features that the first Tofu lacks.
    let old = pair_of(Generation::K);
    let session = old.contexts[0].create_vcq(0, None, VCQ_SESSION_MODE);
    seen.error(Code::NotSupported, session);
    seen.error(Code::InvalidTniId, old.contexts[0].create_vcq(4, None, 0));
    let [a, b] = [0, 1].map(|i| old.contexts[i].create_vcq(3, None, 0).unwrap());
    let add = Posting::new(b.id().0, 0, 0).unwrap().armw(2, 1, 8, 0).unwrap();
    seen.error(Code::NotSupported, a.post(&add, 0));

    let (elsewhere, seen) = (HashSet::from(ELSEWHERE), seen.0);
    assert!(elsewhere.is_disjoint(&seen));
    let missing: Vec<_> =
        Code::ALL.iter().filter(|&c| !seen.contains(c) && !elsewhere.contains(c)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
