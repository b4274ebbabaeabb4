//! Puts between two devices of this process, beside a copy of the same size.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tofu_abi::desc::MAX_MESSAGE;
use tofu_inproc::Pair;

fn put(c: &mut Criterion) {
    let mut pair = Pair::new().expect("there is memory for two nodes");
    let mut group = c.benchmark_group("put");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    let (source, mut sink) = (vec![1u8; Pair::BUFFER], vec![2u8; Pair::BUFFER]);
    for bytes in [8, 512, 1920, 32 << 10, 1 << 20, MAX_MESSAGE] {
        group.throughput(Throughput::Bytes(bytes.into()));
        let order = if bytes == 8 { pair.piggyback() } else { pair.put(bytes) };
        group.bench_function(BenchmarkId::new("put", bytes), |b| {
            b.iter(|| pair.run(&order).expect("the Put succeeds"));
        });
        group.bench_function(BenchmarkId::new("memcpy", bytes), |b| {
            let n = bytes as usize;
            b.iter(|| black_box(&mut sink)[..n].copy_from_slice(&black_box(&source)[..n]));
        });
    }
    group.finish();
}

fn rate(c: &mut Criterion) {
    const BATCH: usize = 1024;
    let mut pair = Pair::new().expect("there is memory for two nodes");
    let order = pair.piggyback();
    let mut group = c.benchmark_group("rate");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("8-byte puts, 1024 to a doorbell", |b| {
        b.iter(|| pair.run_many(&order, BATCH).expect("the Puts succeed"));
    });
    group.finish();
}

criterion_group!(benches, put, rate);
criterion_main!(benches);
