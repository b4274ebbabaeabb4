//! Both sides of rings on the same memory: in any order of calls, and, with two threads, in any
//! order of accesses to memory.

mod words;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tofu_abi::desc::{Command, Descriptor, Header1};
use tofu_abi::queue::{MrqEntry, MrqWord0};
use tofu_abi::regs::CqReg;
use tofu_abi::{Coords, Rcode, StagOffset, TniId};
use tofu_driver::{Arm, Order, RingMemory, Rings, ServedRings, Target, UserPage};

use words::{Fenced, Memory, Word};

/// A page with the one register that counts.
#[derive(Clone, Debug, Default)]
struct Registers(Arc<AtomicU64>);

impl UserPage for Registers {
    fn read(&self, _: u64) -> u64 {
        0
    }
    fn write(&self, offset: u64, value: u64) {
        if offset == CqReg::MrqFullPointer.offset() {
            self.0.store(value, Ordering::SeqCst);
        }
    }
}

type Both<W> = (Rings<Memory<W>, Registers>, ServedRings<Memory<W>>, Registers);

/// The two sides of rings of this many orders and notices.
fn rings<W: Word>(orders: u32, notices: u32) -> Both<W> {
    let sizes = RingMemory::<Memory<W>>::sizes(orders, notices);
    let parts = sizes.map(|size| Memory::new(0, size));
    let served = ServedRings::new(RingMemory::of(parts.clone(), orders, notices));
    let page = Registers::default();
    (Rings::new(RingMemory::of(parts, orders, notices), page.clone()), served, page)
}

/// A command that carries a number, of one descriptor or of two.
fn order(number: u64, long: bool) -> Order {
    let to = Target::new(Coords::default(), TniId::ALL[0]);
    let data = [number; 4].map(u64::to_le_bytes).concat();
    Order::put_piggyback(to, StagOffset(0), &data[..if long { 32 } else { 8 }]).unwrap()
}

/// The number of a command whose descriptors are whole.
#[track_caller]
fn number_of(order: &Order) -> u64 {
    let [.., main] = *order.descriptors() else { panic!("no descriptor") };
    assert_eq!(main.header1().command(), Command::PutPiggyback as u8);
    if let [buffer, _] = *order.descriptors() {
        assert_eq!(buffer.0[1..], [main.data(); 3], "of another command");
    }
    main.data()
}

fn notice(number: u64) -> MrqEntry {
    MrqEntry([MrqWord0(0).with_id(number as u8 % 16).0, number, number, number])
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Post { long: bool, delayed: bool },
    Take,
    Complete,
    Poll,
    Notify,
    PollNotice,
}

fn step() -> impl Strategy<Value = Step> {
    let post = (any::<bool>(), any::<bool>());
    prop_oneof![
        post.prop_map(|(long, delayed)| Step::Post { long, delayed }),
        Just(Step::Take),
        Just(Step::Complete),
        Just(Step::Poll),
        Just(Step::Notify),
        Just(Step::PollNotice),
    ]
}

/// The entries on their way, as they should be.
#[derive(Default)]
struct Model {
    posted: VecDeque<(u64, usize)>,
    delayed: VecDeque<(u64, usize)>,
    taken: VecDeque<(u64, usize)>,
    ended: VecDeque<u64>,
    notices: VecDeque<u64>,
    next: u64,
    told: u64,
}

proptest! {
    #[test]
    fn both_sides_agree(steps in prop::collection::vec(step(), 0..400)) {
        let (mut rings, mut served, page) = rings::<AtomicU64>(8, 8);
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Post { long, delayed } => {
                    let (number, order) = (model.next, order(model.next, long));
                    let post = if delayed { Rings::post_delayed } else { Rings::post };
                    if post(&mut rings, &order, number).is_ok() {
                        model.next += 1;
                        model.delayed.push_back((number, order.descriptors().len()));
                        if !delayed {
                            model.posted.append(&mut model.delayed);
                        }
                    }
                }
                Step::Take => {
                    let taken = served.take();
                    let expected = model.posted.pop_front();
                    let number = taken.map(|order| (number_of(&order), order.descriptors().len()));
                    prop_assert_eq!(number, expected);
                    model.taken.extend(expected);
                }
                Step::Complete => {
                    if let Some((number, descriptors)) = model.taken.pop_front() {
                        served.complete(descriptors, Rcode::new(number as u8));
                        model.ended.push_back(number);
                    } else {
                        served.complete(2, Rcode::SUCCESS);
                    }
                }
                Step::Poll => {
                    let done = rings.poll_tcq().map(|done| (done.cookie, done.rcode));
                    let expected = model.ended.pop_front();
                    let expected = expected.map(|number| (number, Rcode::new(number as u8)));
                    prop_assert_eq!(done, expected);
                }
                Step::Notify => {
                    let fits = model.told - page.0.load(Ordering::SeqCst) < 8;
                    prop_assert_eq!(served.notify(&notice(model.told)), fits);
                    if fits {
                        model.notices.push_back(model.told);
                        model.told += 1;
                    }
                }
                Step::PollNotice => {
                    let found = rings.poll_mrq().map(|entry| entry.0[1]);
                    prop_assert_eq!(found, model.notices.pop_front());
                    served.acknowledge(page.0.load(Ordering::SeqCst));
                }
            }
        }
    }

    /// Of garbage in the rings of a process, no more is taken than they hold.
    #[test]
    fn garbage_in_rings_is_taken_once(words in prop::collection::vec(any::<u64>(), 32)) {
        let sizes = RingMemory::<Memory>::sizes(8, 8);
        let parts = sizes.map(|size| Memory::new(0, size));
        for (index, word) in words.iter().enumerate() {
            parts[0].set(index, Header1(*word).with_flip(true).0);
        }
        let mut served = ServedRings::new(RingMemory::of(parts, 8, 8));
        let taken: usize =
            std::iter::from_fn(|| served.take()).map(|order| order.descriptors().len()).sum();
        prop_assert!(taken <= 8);
        served.acknowledge(words[0]);
        for _ in 0..20 {
            served.complete(2, Rcode::SUCCESS);
            served.notify(&MrqEntry([0; 4]));
        }
    }
}

/// A command of two descriptors, its completion, and two notices; the second has no room until the
/// first is taken. Each side polls a few times only, because threads do not wait here.
#[test]
fn loom_entries_are_whole_when_seen() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut rings, mut served, _) = rings::<loom::sync::atomic::AtomicU64>(2, 1);
        let server = loom::thread::spawn(move || {
            if let Some(order) = served.take() {
                assert_eq!((number_of(&order), order.descriptors().len()), (7, 2));
                served.complete(2, Rcode::new(9));
            }
            assert!(served.notify(&notice(5)));
            assert!(!served.notify(&notice(6)), "no room");
        });
        rings.post(&order(7, true), 3).unwrap();
        for _ in 0..2 {
            if let Some(done) = rings.poll_tcq() {
                assert_eq!((done.cookie, done.rcode), (3, Rcode::new(9)));
            }
            if let Some(MrqEntry([_, rest @ ..])) = rings.poll_mrq() {
                assert_eq!(rest, [5; 3]);
            }
        }
        server.join().unwrap();
        assert!(rings.poll_tcq().is_none_or(|done| done.rcode == Rcode::new(9)));
    });
}

/// A process that requests to be woken and finds nothing then is woken, also if it has withdrawn a
/// request before.
#[test]
fn loom_no_wake_up_is_lost() {
    use loom::sync::atomic::AtomicBool;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut rings, served, _) = rings::<Fenced>(2, 1);
        let word = Memory::<Fenced>::new(0, Arm::<Memory>::SIZE);
        let mut served = served.with_arm(Arm::of(word.clone()));
        let arm = Arm::of(word);
        // In place of an eventfd.
        let event = Arc::new(AtomicBool::new(false));
        let bell = Arc::clone(&event);
        let server = loom::thread::spawn(move || {
            assert!(served.notify(&notice(5)));
            if served.must_wake() {
                bell.store(true, Ordering::SeqCst);
            }
        });
        arm.ask();
        let mut found = rings.poll_mrq().is_some();
        if !found {
            arm.withdraw();
            event.store(false, Ordering::SeqCst);
            arm.ask();
            found = rings.poll_mrq().is_some();
        }
        server.join().unwrap();
        assert!(found || event.load(Ordering::SeqCst), "it would sleep for ever");
    });
}

/// A process is woken once for each request, and only by something new.
#[test]
fn one_request_wakes_once() {
    let (_, served, _) = rings::<AtomicU64>(8, 8);
    let word = Memory::<AtomicU64>::new(0, Arm::<Memory>::SIZE);
    let mut served = served.with_arm(Arm::of(word.clone()));
    let arm = Arm::of(word);
    let news = |served: &mut ServedRings<Memory>| {
        assert!(served.notify(&notice(1)));
        served.must_wake()
    };
    assert!(!news(&mut served), "it has not asked");
    arm.ask();
    assert!(!served.must_wake(), "nothing is new");
    assert!(news(&mut served) && !news(&mut served));
    arm.ask();
    arm.withdraw();
    assert!(!news(&mut served));
}

/// The first of two descriptors is there before the second.
#[test]
fn half_a_command_is_not_taken() {
    let (mut rings, mut served, _) = rings::<AtomicU64>(2, 1);
    let lone = Order::raw(&[Descriptor::write_piggyback_buffer([1; 3])]);
    rings.post(&lone, 0).unwrap();
    assert!(served.take().is_none());
    rings.post(&order(1, false), 0).unwrap();
    assert_eq!(served.take().map(|order| number_of(&order)), Some(1));
}
