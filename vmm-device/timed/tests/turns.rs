//! Programs that take turns: what they find depends on modelled time alone.

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::machine;
use proptest::prelude::*;
use tofu_abi::topology::NodeId;
use tofu_fabric::Ps;
use tofu_timed::{Away, Bounds, Lateness, Stuck, Turn, Turns};

/// A program's step: it computes for so long, sends a packet to the node so many ahead, or
/// looks for one at intervals, for a time.
#[derive(Clone, Copy, Debug)]
enum Step {
    Compute(Ps),
    Send(u32),
    Look(Ps, Ps),
}

/// A turn: its program, the time, and the bytes of the packet that was found.
type Seen = (usize, Ps, Option<Vec<u8>>);

/// Runs these programs on threads that sleep for times of the host in between.
fn run(programs: &[Vec<Step>], pauses: &[u64]) -> (Vec<Seen>, Ps) {
    let mut machine = machine("1x1x1x2x3x1", Box::new(|_| {}));
    let start = machine.engine.now();
    let nodes: Vec<_> = (0..programs.len() as u32).map(NodeId).collect();
    let targets = |from: u32| (0..6).map(|to| machine.to(from, to)).collect::<Vec<_>>();
    let targets: Vec<_> = (0..6).map(targets).collect();
    let turns = Turns::start(&machine.engine, &nodes);
    let log = Mutex::new(Vec::new());
    thread::scope(|s| {
        let ends = machine.ends.iter_mut();
        for ((turn, end), (program, targets)) in
            turns.into_iter().zip(ends).zip(programs.iter().zip(targets))
        {
            let log = &log;
            s.spawn(move || {
                let pause = |i: usize| match pauses.get((i + turn.program()) % 7) {
                    Some(0) | None => thread::yield_now(),
                    Some(us) => thread::sleep(Duration::from_micros(*us)),
                };
                pause(0);
                turn.begin().unwrap();
                for (i, step) in program.iter().enumerate() {
                    pause(i);
                    let mut found = None;
                    let at = match *step {
                        Step::Compute(ps) => turn.spend(ps).unwrap(),
                        Step::Send(ahead) => {
                            let to = (turn.program() as u32 + ahead) % 6;
                            let data = [turn.program() as u8, i as u8];
                            let _ = end.send(&targets[to as usize], &[&data], 0);
                            turn.spend(100_000).unwrap()
                        }
                        Step::Look(every, longest) => {
                            let until = turn.spend(0).unwrap() + longest;
                            let mut buf = [0; 64];
                            loop {
                                if let Some(packet) = end.recv(&mut buf) {
                                    found = Some(buf[..packet.len].to_vec());
                                    break turn.spend(0).unwrap();
                                }
                                let at = turn.look(every, until).unwrap();
                                if at >= until {
                                    break at;
                                }
                            }
                        }
                    };
                    log.lock().unwrap().push((turn.program(), at - start, found));
                }
            });
        }
    });
    (log.into_inner().unwrap(), machine.engine.now() - start)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..2_000_000u64).prop_map(Step::Compute),
        (1..6u32).prop_map(Step::Send),
        (1..50_000u64, 0..3_000_000u64).prop_map(|(every, longest)| Step::Look(every, longest)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Turns come in the order of time, and neither they nor what is found depends on the host.
    #[test]
    fn every_interleaving_has_one_trace(
        programs in prop::collection::vec(prop::collection::vec(step(), 1..12), 2..6),
        pauses in prop::collection::vec(0..300u64, 7),
    ) {
        let (seen, end) = run(&programs, &[]);
        prop_assert!(seen.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{seen:?}");
        prop_assert_eq!(run(&programs, &pauses), (seen, end));
    }
}

#[test]
fn looks_find_a_packet_at_the_first_one_after_it() {
    let every = 7_000;
    let programs = [vec![Step::Send(1)], vec![Step::Look(every, 1 << 40)]];
    let (seen, _) = run(&programs, &[]);
    let [(0, 100_000, None), (1, found, Some(data))] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((found % every, &data[..]), (0, &[0, 0][..]));
    // With looks ten times as often, it is found where it has come.
    let finer = [vec![Step::Send(1)], vec![Step::Look(every / 10, 1 << 40)]];
    let (seen, _) = run(&finer, &[]);
    assert!((found - every..=*found).contains(&seen[1].1), "{found} {seen:?}");
}

/// A guest that is stopped only at its horizons sees each event at its time.
#[test]
fn guests_that_run_to_horizons_miss_nothing() {
    const PACKETS: u8 = 20;
    let arrivals = |by_horizon: bool| {
        let mut machine = machine("1x1x1x2x3x1", Box::new(|_| {}));
        let start = machine.engine.now();
        let to = machine.to(0, 4);
        let turns = Turns::start(&machine.engine, &[NodeId(0), NodeId(4)]);
        let [sends, receives]: [Turn; 2] = turns.try_into().unwrap();
        let [from, _, _, _, end, _] = &mut machine.ends[..] else { panic!("six nodes") };
        thread::scope(|s| {
            s.spawn(|| {
                sends.begin().unwrap();
                for i in 0..PACKETS {
                    from.send(&to, &[&[i; 100]], 0).unwrap();
                    sends.spend(Ps::from(i) * 77_777).unwrap();
                }
                drop(sends);
            });
            let mut at = receives.begin().unwrap();
            let (mut found, mut stops) = (Vec::new(), 0);
            loop {
                while end.recv(&mut [0; 2048]).is_some() {
                    found.push(at - start);
                }
                if found.len() == usize::from(PACKETS) {
                    drop(receives);
                    break (found, stops);
                }
                at = match by_horizon {
                    true => receives.reach(receives.horizon(0)).unwrap(),
                    false => receives.look(1, Ps::MAX).unwrap(),
                };
                stops += 1;
            }
        })
    };
    let (exact, looks) = arrivals(false);
    let (found, stops) = arrivals(true);
    assert_eq!(found, exact);
    assert!(stops < 1000, "{stops} stops, {looks} looks");
}

/// Guests that run beside each other up to their horizons have the same results for any timing of
/// their threads.
#[test]
fn guests_away_from_the_machine_see_the_same() {
    const ROUNDS: u64 = 60;
    // Each guest sends a packet every so often, and looks for those of the others at each step.
    let run = |quantum: Ps, pauses: [u64; 3]| {
        let mut machine = machine("1x1x1x2x3x1", Box::new(|_| {}));
        let start = machine.engine.now();
        let (to, nodes) = ([1, 4, 0], [0, 1, 4]);
        let paths: Vec<_> = (0..3).map(|i| machine.to(nodes[i], to[i])).collect();
        let turns = Turns::start(&machine.engine, &nodes.map(NodeId));
        let mut ends: Vec<_> = machine.ends.iter_mut().enumerate().collect();
        ends.retain(|(node, _)| nodes.contains(&(*node as u32)));
        thread::scope(|s| {
            let guests = turns.into_iter().zip(ends).zip(paths).zip(pauses);
            let guests = guests.map(|(((turn, (_, end)), path), pause)| {
                s.spawn(move || {
                    let mut at = turn.begin().unwrap();
                    let (mut seen, mut due) = (Vec::new(), at + turn.program() as Ps * 13_000);
                    let mut sent = 0;
                    let every = 900_000 * (1 + 3 * turn.program() as Ps);
                    while sent < ROUNDS || at < start + 400_000_000 {
                        while end.recv(&mut [0; 2048]).is_some() {
                            seen.push(at - start);
                        }
                        if at >= due && sent < ROUNDS {
                            end.send(&path, &[&[0; 64]], 0).unwrap();
                            sent += 1;
                            due = if sent < ROUNDS { at + every } else { Ps::MAX };
                            turn.spend(0).unwrap();
                        }
                        let next = turn.horizon(quantum).min(due.max(at + 1));
                        let next = next.min(at + 1_000_000 + quantum).max(at + 1);
                        turn.leave(at + 1);
                        thread::sleep(Duration::from_micros(pause));
                        at = turn.reach(next).unwrap();
                    }
                    let late = turn.lateness();
                    turn.rest();
                    (seen, late)
                })
            });
            let guests: Vec<_> = guests.collect();
            let seen = guests.into_iter().map(|guest| guest.join().unwrap());
            let (seen, late): (Vec<_>, Vec<_>) = seen.unzip();
            (seen, late.into_iter().max_by_key(|late| late.count).unwrap_or_default())
        })
    };
    let (exact, late) = run(0, [0, 0, 0]);
    assert_eq!(late, Lateness::default());
    assert!(exact.iter().all(|seen| seen.len() == ROUNDS as usize), "{exact:?}");
    for pauses in [[30, 0, 0], [0, 10, 40]] {
        assert_eq!(run(0, pauses), (exact.clone(), Lateness::default()));
    }
    // With steps longer than the lookahead, what comes late is counted.
    let (_, late) = run(5_000_000, [0, 0, 0]);
    assert!(late.count > 0 && late.most > 0 && late.most <= 5_000_000, "{late:?}");
}

/// The pages of one guest that is away.
#[derive(Default)]
struct Pages {
    reached: AtomicU64,
    report: AtomicU64,
}

impl Away for Pages {
    fn reached(&self, _: usize) -> Ps {
        self.reached.load(SeqCst)
    }

    fn report_at(&self, at: Ps) {
        self.report.store(at, SeqCst);
    }

    fn apart(&self) -> Ps {
        1_000_000
    }

    fn tell(&self, _: &[Bounds]) {}
}

/// A packet on its way through the network changes the time that others wait for, also when it has
/// no effect at a node yet. Guests which have passed the previous one would never report.
#[test]
fn report_follows_what_the_network_does() {
    let mut machine = machine("1x1x1x2x3x1", Box::new(|_| {}));
    let to = machine.to(0, 4);
    let pages = Arc::new(Pages::default());
    let away: Arc<dyn Away> = Arc::clone(&pages) as _;
    let turns = Turns::start_away(&machine.engine, &[NodeId(0), NodeId(4)], away);
    let [sends, sleeps]: [Turn; 2] = turns.try_into().unwrap();
    let start = sends.begin().unwrap();
    machine.ends[0].send(&to, &[&[1; 1000]], 0).unwrap();
    sends.leave(start + 1);
    sleeps.begin().unwrap();
    sleeps.ask_look(300, Ps::MAX);
    let mut reports = BTreeSet::new();
    for at in (start..).step_by(10_000).take_while(|_| sends.holder().is_none()) {
        pages.reached.store(at, SeqCst);
        sends.heard();
        let report = pages.report.load(SeqCst);
        // Nothing has happened in between.
        sends.heard();
        assert_eq!(pages.report.load(SeqCst), report, "at {at}");
        reports.insert(report);
    }
    assert!(reports.len() > 2, "{reports:?}");
}

#[test]
fn time_stands_still_where_it_is_to_stop() {
    let machine = machine("1x1x1x2x3x1", Box::new(|_| {}));
    let engine = &machine.engine;
    let start = engine.now();
    let turns = Turns::start(engine, &[NodeId(0), NodeId(1)]);
    let [a, b]: [Turn; 2] = turns.try_into().unwrap();
    a.stop_at(Some(start + 1000));
    a.ask(start + 400);
    b.ask(start + 2000);
    assert_eq!((a.holder(), a.stands_at()), (Some((0, start + 400)), None));
    assert!(!a.is_last(start + 400, 600) && a.is_last(start + 400, 601));
    a.ask(start + 1000);
    assert_eq!(a.holder(), Some((0, start + 1000)));
    a.freeze();
    assert_eq!((a.holder(), a.stands_at(), engine.now()), (None, Some(start + 1000), start + 1000));
    // One that is frozen continues first.
    b.stop_at(Some(start + 1500));
    assert_eq!((a.holder(), a.stands_at()), (Some((0, start + 1000)), None));
    a.ask(start + 1600);
    assert_eq!((a.holder(), a.stands_at(), engine.now()), (None, Some(start + 1500), start + 1500));
    b.stop_at(None);
    assert_eq!(a.holder(), Some((0, start + 1600)));
    a.ask(start + 5000);
    assert_eq!(a.holder(), Some((1, start + 2000)));
}

#[test]
fn time_stands_still_behind_a_command() {
    const AHEAD: Ps = 700_000;
    let mut machine = machine("1x1x1x2x3x1", Box::new(|_| {}));
    let to = machine.to(0, 4);
    let turns = Turns::start(&machine.engine, &[NodeId(0)]);
    let [turn]: [Turn; 1] = turns.try_into().unwrap();
    machine.engine.await_command(NodeId(0), 3);
    turn.stop_after_command(AHEAD);
    let mut rings = Vec::new();
    while let Some((_, at)) = turn.holder() {
        rings.push(at);
        machine.ends[0].send(&to, &[&[0; 8]], 0).unwrap();
        turn.ask(at + 5_000_000);
    }
    let (started, _) = machine.engine.awaited().unwrap();
    assert_eq!(turn.stands_at(), Some(started + AHEAD));
    assert_eq!((machine.engine.commands(NodeId(0)), machine.engine.commands(NodeId(4))), (3, 0));
    // The third doorbell, and the time that the device takes.
    assert_eq!(rings.len(), 3);
    assert!((rings[2]..rings[2] + AHEAD).contains(&started), "{started} {rings:?}");
    turn.stop_at(None);
    assert!(turn.holder().is_some());
}

#[test]
fn programs_that_wait_for_each_other_are_named() {
    let machine = machine("1x1x1x2x3x1", Box::new(|_| {}));
    let turns = Turns::start(&machine.engine, &[NodeId(0), NodeId(1), NodeId(2)]);
    let wait = |turn: &Turn| loop {
        if let Err(stuck) = turn.look(1000, Ps::MAX) {
            break stuck;
        }
    };
    let [a, b, c]: [Turn; 3] = turns.try_into().unwrap();
    thread::scope(|s| {
        let ended = s.spawn(|| drop(b));
        let stuck = [a, c].map(|turn| {
            s.spawn(move || {
                turn.begin().unwrap();
                wait(&turn)
            })
        });
        ended.join().unwrap();
        let stuck = stuck.map(|thread| thread.join().unwrap());
        assert_eq!(stuck, [0, 1].map(|_| Stuck::Waiting(vec![0, 2])));
        assert_eq!(stuck[0].to_string(), "nothing is in flight, and programs 0, 2 wait");
    });
}

#[test]
fn program_that_panics_stops_the_others() {
    let machine = machine("1x1x1x2x1x1", Box::new(|_| {}));
    let turns = Turns::start(&machine.engine, &[NodeId(0), NodeId(1)]);
    let [a, b]: [Turn; 2] = turns.try_into().unwrap();
    let panics = thread::spawn(move || {
        a.begin().unwrap();
        panic!("on purpose");
    });
    assert!(panics.join().is_err());
    assert_eq!(b.begin(), Err(Stuck::Gone(0)));
}
