//! The effects of single commands, and the completions and notices that both ends get.

mod common;

use std::sync::Arc;

use common::{Memory, completion, notice, pair};
use tofu_utofu::command::{Packets, Posting};
use tofu_utofu::flags::{
    DELAY_START, LOCAL_MRQ_NOTICE, REG_MEM_READ_ONLY, REMOTE_MRQ_NOTICE, STRONG_ORDER, TCQ_NOTICE,
};
use tofu_utofu::ids::{Stadd, VcqId};
use tofu_utofu::{Code, Command, Context, DeviceShare, NoticeKind, Transfer};

const ALL: u64 = TCQ_NOTICE | LOCAL_MRQ_NOTICE | REMOTE_MRQ_NOTICE;

#[test]
fn put_arrives_and_notifies_both_ends() {
    let pair = pair();
    let vcqs = [&pair.contexts[0], &pair.contexts[1]].map(|c| c.create_vcq(2, None, 0).unwrap());
    let memories = [Memory::aligned(5000, 0x1234), Memory::aligned(6000, 0xff01)];
    let stadds = [memories[0].register(&vcqs[0], 0), memories[1].register(&vcqs[1], 0)];
    assert_eq!(stadds[0].0, 4096 << 40 | 0x1234);
    assert_eq!(stadds[1].0, 4096 << 40 | 0xff01);
    memories[0].fill(|i| i as u8);

    let flags = ALL | STRONG_ORDER;
    let [from, to] = [Stadd(stadds[0].0 + 7), Stadd(stadds[1].0 + 100)];
    let transfer =
        Transfer { peer: vcqs[1].id(), local: from, remote: to, length: 4001, edata: 0xab, flags };
    vcqs[0].put(&transfer, 77).unwrap();

    let done = completion(&vcqs[0]);
    assert_eq!((done.cbdata, done.status()), (77, Code::Success));
    let local = notice(&vcqs[0]);
    assert_eq!((local.kind, local.status()), (NoticeKind::LclPut, Code::Success));
    assert_eq!((local.vcq_id, local.edata), (vcqs[1].id(), 0xab));
    assert_eq!((local.lcl_stadd, local.rmt_stadd), (from.0 + 4001, to.0 + 4001));
    let remote = notice(&vcqs[1]);
    assert_eq!((remote.kind, remote.status()), (NoticeKind::RmtPut, Code::Success));
    assert_eq!((remote.vcq_id, remote.edata), (vcqs[0].id(), 0xab));
    assert_eq!((remote.rmt_stadd, remote.rmt_value), (to.0 + 4001, to.0 + 4001));

    let bytes = memories[1].bytes();
    assert!((0..4001).all(|i| bytes[100 + i] == (7 + i) as u8));
    assert!(bytes[..100].iter().chain(&bytes[4101..]).all(|&b| b == 0));
    assert_eq!((vcqs[0].unread_tcq(), vcqs[0].unread_mrq(), vcqs[1].unread_mrq()), (0, 0, 0));
}

#[test]
fn gets_atomics_and_piggyback_take_effect() {
    let pair = pair();
    let a = pair.contexts[0].create_vcq(0, Some(3), 0).unwrap();
    let b = pair.contexts[1].create_vcq(5, Some(7), 0).unwrap();
    assert_eq!(b.id(), VcqId::construct(pair.contexts[1].coords(), 5, 0, 7).unwrap());
    let (mine, theirs) = (Memory::new(4096), Memory::new(4096));
    let (local, remote) = (mine.register(&a, 0), theirs.register(&b, 0));
    theirs.fill(|i| (i * 7) as u8);

    a.get(&Transfer { peer: b.id(), local, remote, length: 4096, edata: 1, flags: ALL }, 1)
        .unwrap();
    assert_eq!(completion(&a).status(), Code::Success);
    let got = notice(&a);
    assert_eq!((got.kind, got.vcq_id), (NoticeKind::LclGet, b.id()));
    assert_eq!((got.lcl_stadd, got.rmt_stadd), (local.0 + 4096, remote.0 + 4096));
    assert_eq!(notice(&b).kind, NoticeKind::RmtGet);
    assert_eq!(mine.bytes(), theirs.bytes());

    let posting = Posting::new(b.id().0, 9, ALL).unwrap();
    a.post(&posting.put_piggyback8(0x1122_3344_5566_7788, 8, remote.0).unwrap(), 2).unwrap();
    assert_eq!((completion(&a).cbdata, notice(&a).kind), (2, NoticeKind::LclPut));
    assert_eq!(notice(&b).rmt_stadd, remote.0 + 8);
    assert_eq!(theirs.bytes()[..8], 0x1122_3344_5566_7788u64.to_le_bytes());

    let atomics = [
        (posting.armw(1, 5, 8, remote.0), 0x1122_3344_5566_7788, 5),
        (posting.armw(2, 10, 8, remote.0), 5, 15),
        (posting.armw(3, 1, 8, remote.0), 15, 14),
        (posting.armw(4, 12, 8, remote.0), 14, 12),
        (posting.armw(5, 3, 8, remote.0), 12, 15),
        (posting.cswap8(14, 99, remote.0), 15, 15),
        (posting.cswap8(15, 1 << 40 | 2, remote.0), 15, 1 << 40 | 2),
        (posting.armw(2, u64::from(u32::MAX), 4, remote.0), 2, 1 << 40 | 1),
        (posting.cswap4(1, 8, remote.0), 1, 1 << 40 | 8),
    ];
    for (i, (command, old, new)) in atomics.into_iter().enumerate() {
        a.post(&command.unwrap(), i).unwrap();
        assert_eq!((completion(&a).status(), i), (Code::Success, i));
        let local = notice(&a);
        assert_eq!((local.kind, local.rmt_value, i), (NoticeKind::LclArmw, old, i));
        assert_eq!((local.rmt_stadd, local.vcq_id, local.edata), (remote.0, b.id(), 9));
        let told = notice(&b);
        assert_eq!((told.kind, told.rmt_value), (NoticeKind::RmtArmw, remote.0));
        assert_eq!((told.vcq_id, told.edata), (a.id(), 9));
        let word = u64::from_le_bytes(theirs.bytes()[..8].try_into().unwrap());
        assert_eq!((word, i), (new, i));
    }

    for len in 1..=32 {
        let data: Vec<u8> = (0..len).map(|i| (len * 3 + i) as u8).collect();
        a.post(&posting.put_piggyback(&data, remote.0 + 101).unwrap(), len).unwrap();
        assert_eq!((completion(&a).cbdata, a.unread_tcq()), (len, 0));
        assert_eq!(notice(&b).rmt_stadd, remote.0 + 101 + len as u64);
        assert_eq!(theirs.bytes()[101..101 + len], data);
        notice(&a);
    }
    a.post(&Command::nop(TCQ_NOTICE | LOCAL_MRQ_NOTICE).unwrap(), 3).unwrap();
    assert_eq!(completion(&a).cbdata, 3);
    assert_eq!(a.poll_mrq(), None);
}

#[test]
fn failures_are_coded_at_the_initiator_only() {
    let pair = pair();
    let a = pair.contexts[0].create_vcq(0, None, 0).unwrap();
    let b = pair.contexts[1].create_vcq(0, None, 0).unwrap();
    let (mine, theirs) = (Memory::new(4096), Memory::new(4096));
    let (local, remote) = (mine.register(&a, 0), theirs.register(&b, 0));
    let (mine_ro, theirs_ro) =
        (mine.register(&a, REG_MEM_READ_ONLY), theirs.register(&b, REG_MEM_READ_ONLY));
    assert_eq!((mine_ro.stag() & 1, theirs_ro.stag() & 1), (1, 1));
    let gone = Memory::new(64).register(&b, 0);
    b.dereg_mem(gone).unwrap();
    let never = Stadd::new(7777, 0);
    let put = |local: Stadd, remote: Stadd, len: usize| {
        a.put(&Transfer { peer: b.id(), local, remote, length: len, edata: 0, flags: ALL }, 0)
            .unwrap();
    };
    let get = |local: Stadd, remote: Stadd| {
        a.get(&Transfer { peer: b.id(), local, remote, length: 8, edata: 0, flags: ALL }, 0)
            .unwrap();
    };
    let check = |what: &str, post: &dyn Fn(), tcq: Code, mrq: Code| {
        post();
        assert_eq!(completion(&a).status(), tcq, "{what}");
        let notice = notice(&a);
        assert!(notice.kind.is_local());
        assert_eq!(notice.status(), mrq, "{what}");
        assert_eq!(b.poll_mrq(), None, "{what}");
    };
    use Code::{MrqLclLength, MrqLclStadd, MrqPeer, MrqRmtLength, MrqRmtStadd};
    use Code::{Success, TcqLength, TcqStadd};
    check("remote never", &|| put(local, never, 8), Success, MrqRmtStadd);
    check("remote gone", &|| put(local, gone, 8), Success, MrqRmtStadd);
    check("remote read-only", &|| put(local, theirs_ro, 8), Success, MrqRmtStadd);
    check("remote end", &|| put(local, Stadd(remote.0 + 4089), 8), Success, MrqRmtLength);
    check("local never", &|| put(never, remote, 8), TcqStadd, MrqLclStadd);
    check("local end", &|| put(local, remote, 4097), TcqLength, MrqLclLength);
    check("remote never, Get", &|| get(local, never), Success, MrqRmtStadd);
    let odd = Posting::new(b.id().0, 0, ALL).unwrap().armw(2, 1, 8, remote.0 + 4).unwrap();
    check("odd address", &|| a.post(&odd, 0).unwrap(), Success, MrqRmtStadd);
    let absent = b.id().with_cq(5);
    let to_nobody = || {
        a.put(&Transfer { peer: absent, local, remote, length: 8, edata: 0, flags: ALL }, 0)
            .unwrap()
    };
    check("no such queue", &to_nobody, Success, MrqPeer);
    let nowhere = b.id().with_x(31);
    let to_nowhere = || {
        a.put(&Transfer { peer: nowhere, local, remote, length: 8, edata: 0, flags: ALL }, 0)
            .unwrap()
    };
    check("no such node", &to_nowhere, Success, MrqPeer);
    // The target of this command has done its part.
    get(mine_ro, remote);
    assert_eq!((completion(&a).status(), notice(&a).status()), (TcqStadd, MrqLclStadd));
    assert_eq!(notice(&b).kind, NoticeKind::RmtGet);
    // Reading read-only memory is allowed.
    put(mine_ro, remote, 8);
    assert_eq!((completion(&a).status(), notice(&a).status()), (Code::Success, Code::Success));
    notice(&b);
}

#[test]
fn notice_data_spills_over_into_the_length() {
    let pair = pair();
    let a = pair.contexts[0].create_vcq(0, None, 0).unwrap();
    let b = pair.contexts[1].create_vcq(0, None, 0).unwrap();
    let (mine, theirs) = (Memory::new(4096), Memory::new(4096));
    let (local, remote) = (mine.register(&a, 0), theirs.register(&b, 0));
    // On real systems, notice data of more than one byte spills over into the length.
    a.put(
        &Transfer { peer: b.id(), local, remote, length: 8, edata: u64::MAX, flags: TCQ_NOTICE },
        5,
    )
    .unwrap();
    let done = completion(&a);
    assert_eq!((done.cbdata, done.status()), (5, Code::TcqLength));
}

#[test]
fn delayed_commands_wait_for_the_next() {
    let pair = pair();
    let a = pair.contexts[0].create_vcq(0, None, 0).unwrap();
    let b = pair.contexts[1].create_vcq(0, None, 0).unwrap();
    let (mine, theirs) = (Memory::new(64), Memory::new(64));
    let (local, remote) = (mine.register(&a, 0), theirs.register(&b, 0));
    for cbdata in 0..100 {
        a.put(
            &Transfer {
                peer: b.id(),
                local,
                remote,
                length: 8,
                edata: 0,
                flags: TCQ_NOTICE | DELAY_START,
            },
            cbdata,
        )
        .unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(a.unread_tcq(), 0);
    a.put(&Transfer { peer: b.id(), local, remote, length: 8, edata: 0, flags: TCQ_NOTICE }, 100)
        .unwrap();
    for cbdata in 0..=100 {
        assert_eq!(completion(&a).cbdata, cbdata);
    }
}

#[test]
fn blocks_are_puts_of_their_own() {
    let pair = pair();
    let a = pair.contexts[0].create_vcq(0, None, 0).unwrap();
    let b = pair.contexts[1].create_vcq(0, None, 0).unwrap();
    let (mine, theirs) = (Memory::new(1000), Memory::new(1000));
    let (local, remote) = (mine.register(&a, 0), theirs.register(&b, 0));
    mine.fill(|_| 1);
    let posting = Posting::new(b.id().0, 0, ALL).unwrap();
    let put = posting.put(local.0, remote.0 + 5, 30, Packets::new(16, 3).unwrap()).unwrap();
    a.post_blocks(&put, 100, 9, 4).unwrap();
    for block in 0..9 {
        assert_eq!(completion(&a).cbdata, 4);
        assert_eq!(notice(&b).rmt_stadd, remote.0 + 5 + block * 100 + 30);
    }
    let bytes = theirs.bytes();
    let hit = |i: usize| (5..35).contains(&(i % 100)) && i < 900;
    assert!((0..1000).all(|i| bytes[i] == u8::from(hit(i))));
    let code = |stride, blocks| a.post_blocks(&put, stride, blocks, 0).unwrap_err().code();
    assert_eq!(code(1, 0), Code::InvalidNumber);
    assert_eq!(code(0, 2049), Code::InvalidNumber);
    assert_eq!(code(1 << 39, 3), Code::InvalidNumber);
    assert_eq!(code(usize::MAX, 2), Code::InvalidNumber);
}

#[test]
fn full_queue_is_busy_until_polled() {
    let pair = pair();
    let a = pair.contexts[0].create_vcq(0, None, 0).unwrap();
    let nop = Command::nop(TCQ_NOTICE).unwrap();
    for cbdata in 0..2048 {
        a.post(&nop, cbdata).unwrap();
    }
    assert_eq!(a.post(&nop, 0).unwrap_err().code(), Code::Busy);
    common::wait("completions", || (a.unread_tcq() == 2048).then_some(()));
    assert_eq!(a.post(&nop, 0).unwrap_err().code(), Code::Busy, "unread ones keep their places");
    for cbdata in 0..2048 {
        assert_eq!(completion(&a).cbdata, cbdata);
    }
    assert!(a.poll_tcq().is_none());
    // These completions are not requested: the library reaps them by itself.
    let silent = Command::nop(0).unwrap();
    for _ in 0..10_000 {
        common::wait("room", || a.post(&silent, 0).ok());
    }
}

#[test]
fn vcqs_share_a_queue_and_stay_distinct() {
    let pair = pair();
    let [c, d] = &pair.contexts;
    let senders: Vec<_> =
        [None, Some(0), Some(7), None].map(|cmp| c.create_vcq(1, cmp, 0).unwrap()).into();
    assert!(senders.iter().all(|v| v.id().cq() == 0));
    assert_eq!(senders.iter().map(|v| v.id().extra()).collect::<Vec<_>>(), [0, 8, 15, 1]);
    let receivers: Vec<_> =
        [None, Some(0), Some(7), Some(1)].map(|cmp| d.create_vcq(4, cmp, 0).unwrap()).into();
    let source = Memory::new(64);
    for (i, sender) in senders.iter().enumerate() {
        let local = source.register(sender, 0);
        for (k, receiver) in receivers.iter().enumerate() {
            let sink = Memory::new(64);
            // A reserved tag and a chosen one.
            // SAFETY: the memory is never freed.
            let fixed = unsafe { receiver.reg_mem(sink.addr(), 64, Some(9), 0) }.unwrap();
            assert_eq!(fixed, Stadd::reserved(receiver.id(), 9).unwrap());
            for remote in [fixed, sink.register(receiver, 0)] {
                let edata = (i * 16 + k) as u64;
                sender
                    .put(
                        &Transfer {
                            peer: receiver.id(),
                            local,
                            remote,
                            length: 8,
                            edata,
                            flags: ALL,
                        },
                        i,
                    )
                    .unwrap();
                assert_eq!(completion(sender).cbdata, i);
                let told = notice(sender);
                assert_eq!((told.vcq_id, u64::from(told.edata)), (receiver.id(), edata));
                let told = notice(receiver);
                assert_eq!((told.vcq_id, u64::from(told.edata)), (sender.id(), edata));
                receiver.dereg_mem(remote).unwrap();
            }
        }
    }
    for vcq in senders.iter().chain(&receivers) {
        assert_eq!((vcq.unread_tcq(), vcq.unread_mrq()), (0, 0));
    }
}

#[test]
fn vcqs_run_out_as_documented() {
    let pair = pair();
    let c = &pair.contexts[0];
    let code = |tni, cmp, flags| c.create_vcq(tni, cmp, flags).map(|_| ()).unwrap_err().code();
    assert_eq!(code(6, None, 0), Code::InvalidTniId);
    assert_eq!(code(0, Some(8), 0), Code::InvalidCmpId);
    assert_eq!(code(0, None, 8), Code::InvalidFlags);
    let mut vcqs: Vec<_> = (0..8).map(|_| c.create_vcq(0, None, 1).unwrap()).collect();
    assert_eq!(code(0, None, 0), Code::Full);
    vcqs.push(c.create_vcq(0, Some(2), 0).unwrap());
    assert_eq!(code(0, Some(2), 0), Code::Used);
    drop(vcqs.pop());
    c.create_vcq(0, Some(2), 0).unwrap();
    // Eleven queues; one is shared.
    let exclusive: Vec<_> = (0..10).map(|_| c.create_vcq(0, None, 2).unwrap()).collect();
    let mut cqs: Vec<_> = exclusive.iter().map(|v| v.id().cq()).collect();
    cqs.sort_unstable();
    assert_eq!(cqs, (1..=10).collect::<Vec<_>>());
    assert_eq!(code(0, None, 2), Code::Full);
    assert_eq!(c.create_vcq(1, None, 2).unwrap().id().cq(), 0);
}

#[test]
fn processes_of_a_node_have_separate_queues() {
    let pair = pair();
    let node = pair.contexts[0].provider();
    let processes: Vec<_> =
        (0..4).map(|i| Context::new(Arc::clone(node), DeviceShare::new(i, 4).unwrap())).collect();
    let vcqs: Vec<_> = processes.iter().map(|p| p.create_vcq(3, Some(7), 0).unwrap()).collect();
    assert_eq!(vcqs.iter().map(|v| v.id().cq()).collect::<Vec<_>>(), [0, 2, 5, 8]);
    let memories: Vec<_> = vcqs.iter().map(|_| Memory::new(64)).collect();
    let stadds: Vec<_> = memories.iter().zip(&vcqs).map(|(m, v)| m.register(v, 0)).collect();
    for (i, from) in vcqs.iter().enumerate() {
        for (k, to) in vcqs.iter().enumerate() {
            memories[i].fill(|_| (10 * i + k) as u8);
            from.put(
                &Transfer {
                    peer: to.id(),
                    local: stadds[i],
                    remote: stadds[k],
                    length: 64,
                    edata: k as u64,
                    flags: ALL,
                },
                i,
            )
            .unwrap();
            assert_eq!(completion(from).cbdata, i);
            // If a VCQ sends to itself, the local notice comes first.
            assert_eq!(notice(from).vcq_id, to.id());
            assert_eq!((notice(to).vcq_id, from.poll_mrq()), (from.id(), None));
            assert!(memories[k].bytes().iter().all(|&b| b == (10 * i + k) as u8));
        }
    }
    // Another process has the same queue: this one of a node with one process.
    let taken = pair.contexts[0].create_vcq(3, None, 0).map(|_| ()).unwrap_err();
    assert_eq!(taken.code(), Code::NotAvailable);
    let few = Context::new(Arc::clone(node), DeviceShare::new(1, 9).unwrap());
    assert_eq!(few.create_vcq(0, None, 0).map(|_| ()).unwrap_err().code(), Code::NotAvailable);
}
