//! One direction of a busy link, frame by frame, beside a queue that a number is pushed to and
//! popped from.

use std::collections::VecDeque;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tofu_links::{Check, Counters, Effect, Parameters, Receiver, Sender};

/// Frames of an iteration.
const FRAMES: u64 = 1024;

fn busy(c: &mut Criterion) {
    let parameters = Parameters::TOFUD;
    let rows = parameters.rows(1992);
    let wire = parameters.wire_ps(1992);
    let mut group = c.benchmark_group("link");
    group.throughput(Throughput::Elements(FRAMES));

    let mut queue = VecDeque::with_capacity(8);
    group.bench_function("queue", |b| {
        b.iter(|| {
            for n in 0..FRAMES {
                queue.push_back(black_box(n));
                black_box(queue.pop_front());
            }
        });
    });

    let (mut sender, mut counters) = (Sender::new(&parameters), Counters::default());
    let mut receiver = Receiver::new(&parameters, &sender);
    let mut now = 0;
    group.bench_function("by DLLPs", |b| {
        b.iter(|| {
            for n in 0..FRAMES {
                let vc = (n % 4) as u8;
                assert_eq!(black_box(&mut sender).may_send(vc, rows), Ok(()));
                let seq = sender.send(vc, rows, now, &mut counters);
                now += wire;
                receiver.frame(seq, Check::Good, now, &mut counters);
                receiver.freed(vc, rows);
                while let Some(dllp) = black_box(&mut receiver).take_dllp(&mut counters) {
                    assert_ne!(sender.dllp(dllp, now, &mut counters), Effect::Replay);
                }
            }
        });
    });
    group.finish();
}

criterion_group!(benches, busy);
criterion_main!(benches);
