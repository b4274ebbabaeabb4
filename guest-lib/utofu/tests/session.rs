//! Session mode: commands that start when a peer triggers them.

mod common;

use std::thread;
use std::time::Duration;

use common::{Memory, completion, notice, pair};
use tofu_utofu::command::Posting;
use tofu_utofu::flags::{LOCAL_MRQ_NOTICE, REMOTE_MRQ_NOTICE, TCQ_NOTICE, VCQ_SESSION_MODE, sps};
use tofu_utofu::{Code, Command, Transfer};

#[test]
fn commands_wait_for_a_step_per_descriptor() {
    let pair = pair();
    let a = pair.contexts[0].create_vcq(0, None, 0).unwrap();
    let other = pair.contexts[1].create_vcq(0, None, 0).unwrap();
    let session = pair.contexts[1].create_vcq(0, None, VCQ_SESSION_MODE).unwrap();
    assert_eq!((other.id().cq(), session.id().cq()), (0, 10));
    let (mine, theirs) = (Memory::new(4096), Memory::new(4096));
    let (lcl, rmt) = (mine.register(&a, 0), theirs.register(&session, 0));
    theirs.fill(|i| i as u8);

    // Four descriptors: a Put, a piggyback Put of two, a NOP.
    let back = Posting::new(a.id().0, 1, TCQ_NOTICE | REMOTE_MRQ_NOTICE).unwrap();
    session
        .put(
            &Transfer {
                peer: a.id(),
                local: rmt,
                remote: lcl,
                length: 4096,
                edata: 1,
                flags: TCQ_NOTICE | REMOTE_MRQ_NOTICE,
            },
            1,
        )
        .unwrap();
    session.post(&back.put_piggyback(&[9; 32], lcl.0).unwrap(), 2).unwrap();
    session.post(&Command::nop(TCQ_NOTICE).unwrap(), 3).unwrap();
    let quiet = || {
        thread::sleep(Duration::from_millis(10));
        assert_eq!((session.unread_tcq(), a.unread_mrq()), (0, 0));
    };
    quiet();
    // A failed Put, a Put to another queue, and a Put without steps change nothing.
    let step = |n| Posting::new(session.id().0, 0, TCQ_NOTICE | sps(n)).unwrap();
    let put = |posting: Posting, at: u64| {
        a.post(&posting.put_piggyback8(7, 1, at).unwrap(), 0).unwrap();
        completion(&a).status()
    };
    assert_eq!(put(step(15), rmt.0 + 4096), Code::Success, "it was sent");
    assert_eq!(put(step(0), rmt.0), Code::Success);
    quiet();

    assert_eq!(put(step(1), rmt.0), Code::Success);
    assert_eq!(completion(&session).cbdata, 1);
    notice(&a);
    // The data that came with the step is there already.
    assert_eq!(mine.bytes()[..3], [7, 1, 2]);
    quiet();
    assert_eq!(put(step(1), rmt.0), Code::Success);
    quiet();
    // The second descriptor; and the NOP, by an atomic command.
    assert_eq!(put(step(1), rmt.0), Code::Success);
    assert_eq!(completion(&session).cbdata, 2);
    notice(&a);
    assert_eq!(mine.bytes()[..32], [9; 32]);
    quiet();
    a.post(&step(1).armw(2, 1, 8, rmt.0).unwrap(), 0).unwrap();
    assert_eq!((completion(&a).status(), completion(&session).cbdata), (Code::Success, 3));
}

#[test]
fn steps_wait_for_commands() {
    let pair = pair();
    let a = pair.contexts[0].create_vcq(0, None, 0).unwrap();
    let session = pair.contexts[1].create_vcq(0, Some(0), VCQ_SESSION_MODE).unwrap();
    let theirs = Memory::new(4096);
    let rmt = theirs.register(&session, 0);
    let steps = Posting::new(session.id().0, 0, TCQ_NOTICE | sps(15)).unwrap();
    a.post(&steps.put_piggyback8(7, 1, rmt.0).unwrap(), 0).unwrap();
    assert_eq!(completion(&a).status(), Code::Success);
    for cbdata in 0..15 {
        session.post(&Command::nop(TCQ_NOTICE).unwrap(), cbdata).unwrap();
        assert_eq!(completion(&session).cbdata, cbdata);
    }
    session.post(&Command::nop(TCQ_NOTICE).unwrap(), 99).unwrap();
    thread::sleep(Duration::from_millis(10));
    assert_eq!(session.unread_tcq(), 0);
    // Waiting commands are dropped with the VCQ, and a new session starts without steps.
    drop(session);
    let session = pair.contexts[1].create_vcq(0, Some(1), VCQ_SESSION_MODE).unwrap();
    session.post(&Command::nop(TCQ_NOTICE).unwrap(), 1).unwrap();
    thread::sleep(Duration::from_millis(10));
    assert_eq!(session.unread_tcq(), 0);
}

#[test]
fn session_chain_runs_by_itself() {
    const LEN: usize = 300_000;
    let pair = pair();
    let first = pair.contexts[0].create_vcq(0, None, 0).unwrap();
    let all: Vec<_> = (0..12)
        .map(|i| pair.contexts[i % 2].create_vcq(i as u16 % 6, None, VCQ_SESSION_MODE).unwrap())
        .collect();
    let memories: Vec<_> = all.iter().map(|_| Memory::new(LEN)).collect();
    let stadds: Vec<_> = memories.iter().zip(&all).map(|(m, v)| m.register(v, 0)).collect();
    let source = Memory::new(LEN);
    source.fill(|i| (i * 3 + i / 256) as u8);
    let from = source.register(&first, 0);
    for (i, vcq) in all.iter().enumerate().take(11) {
        let flags = sps(1) | if i == 10 { REMOTE_MRQ_NOTICE } else { 0 };
        vcq.put(
            &Transfer {
                peer: all[i + 1].id(),
                local: stadds[i],
                remote: stadds[i + 1],
                length: LEN,
                edata: 5,
                flags,
            },
            0,
        )
        .unwrap();
    }
    first
        .put(
            &Transfer {
                peer: all[0].id(),
                local: from,
                remote: stadds[0],
                length: LEN,
                edata: 0,
                flags: sps(1) | LOCAL_MRQ_NOTICE,
            },
            0,
        )
        .unwrap();
    assert_eq!(notice(&all[11]).edata, 5);
    assert!(memories[11].bytes() == source.bytes());
}
