//! Messages of TNW between two devices of this process, beside Puts of Tofu and copies of the same
//! size.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tofu_driver::{DmaBuffer, Platform};
use tofu_inproc::{Pair, nwp_pair};
use tofu_tnw::{Channel, Link, Status};

const SHORT: usize = 128;
const LONG: usize = 1 << 20;
const SECOND: u64 = 1_000_000_000;

fn tnw(c: &mut Criterion) {
    let [near, far] = nwp_pair(8 << 20).expect("there is memory for two nodes");
    let mut stream = near.open(Link::ALL[1], Channel::ALL[0]).expect("there is a neighbour");
    let mut sink = far.open(Link::ALL[0], Channel::ALL[0]).expect("there is a neighbour");
    let from = near.platform().alloc_dma(LONG, 4096).expect("there is memory");
    let to = far.platform().alloc_dma(LONG, 4096).expect("there is memory");
    from.write(0, &vec![1; LONG]);

    let mut group = c.benchmark_group("tnw");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    let message = [7; SHORT];
    group.bench_function("128 bytes by Pput, credit to notification", |b| {
        b.iter(|| {
            let credit = sink.credit(&to, 0, SHORT).expect("none waits");
            stream.send(&message, SECOND).expect("there is room");
            let outcome = sink.wait(credit, SECOND).expect("it arrives");
            assert_eq!(outcome.status, Status::Ok);
        });
    });
    let mut pair = Pair::new().expect("there is memory for two nodes");
    let put = pair.put(SHORT as u32);
    group.bench_function("128 bytes by a Put of Tofu", |b| {
        b.iter(|| pair.run(&put).expect("the Put succeeds"));
    });
    group.throughput(Throughput::Bytes(LONG as u64));
    group.bench_function("1 MiB by Nget, credit to notification", |b| {
        b.iter(|| {
            let credit = sink.credit(&to, 0, LONG).expect("none waits");
            let nget = stream.send_from(&from, 0, LONG).expect("none waits");
            let outcome = sink.wait(credit, SECOND).expect("it arrives");
            assert_eq!(outcome.status, Status::Ok);
            stream.wait(nget, SECOND).expect("it was fetched");
        });
    });
    let (source, mut target) = (vec![1u8; LONG], vec![2u8; LONG]);
    group.bench_function("1 MiB by memcpy", |b| {
        b.iter(|| black_box(&mut target).copy_from_slice(black_box(&source)));
    });
    group.finish();
}

criterion_group!(benches, tnw);
criterion_main!(benches);
