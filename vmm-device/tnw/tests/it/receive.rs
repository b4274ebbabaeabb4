//! The matching of messages and credits.

use std::sync::Arc;

use proptest::prelude::*;
use tofu_abi::tnw::{CREDIT_QUEUE, Channel, PACKET_DATA, RECEPTION_FIFO, Status, packets};
use tofu_dma::DmaMemory;
use tofu_tnw_device::{Data, Receive, Request};
use vm_memory::{GuestAddress, GuestMemoryMmap};

fn memory() -> GuestMemoryMmap<()> {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0x1000), 1 << 20)]).unwrap()
}

fn credit(address: u64, length: u32, tag: u32) -> Request {
    Request { address, length, notify: 0x1000, tag, interrupt: false }
}

/// A message, cut into runs of `run` packets.
fn message(bytes: &[u8], run: usize) -> Vec<Data> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(PACKET_DATA), 0);
    let chunk = run * PACKET_DATA;
    let count = padded.len().div_ceil(chunk);
    padded
        .chunks(chunk)
        .enumerate()
        .map(|(n, part)| {
            let payload: Arc<[u8]> = part.into();
            Data::new(Channel::ALL[0], (n * run) as u16, n + 1 == count, payload)
        })
        .collect()
}

proptest! {
    /// Each message matches one credit, for any lengths, any cuts of the message, and any order of
    /// arrival. Memory gets the shorter of both lengths, and nothing beyond.
    #[test]
    fn each_message_meets_one_credit(
        pairs in prop::collection::vec((1..3000usize, 1..3000u32), 1..8),
        run in 1..5usize,
        most in 1..40u16,
        credits_first in any::<bool>(),
    ) {
        let memory = memory();
        memory.write(0x1000, &vec![0xee; 1 << 20]).unwrap();
        let mut receive = Receive::default();
        let place = |n: usize| 0x2000 + 0x2000 * n as u64;
        let mut done = Vec::new();
        let add = |receive: &mut Receive, n: usize| {
            receive.add(credit(place(n), pairs[n].1, n as u32)).unwrap();
        };
        if credits_first {
            (0..pairs.len()).for_each(|n| add(&mut receive, n));
        }
        let contents = |n: usize| -> Vec<u8> {
            (0..pairs[n].0).map(|at| (at + n * 57) as u8).collect()
        };
        for n in 0..pairs.len() {
            for data in message(&contents(n), run) {
                prop_assert!(data.packets() <= receive.room());
                prop_assert!(receive.push(data));
                while receive.matches() && credits_first {
                    done.extend(receive.deliver(&memory, most));
                }
            }
            if !credits_first {
                prop_assert!(!receive.matches());
                add(&mut receive, n);
                while receive.matches() {
                    done.extend(receive.deliver(&memory, most));
                }
            }
        }
        prop_assert_eq!(done.len(), pairs.len());
        prop_assert_eq!((receive.packets(), receive.credits()), (0, 0));
        for (n, done) in done.iter().enumerate() {
            let (sent, length) = (pairs[n].0, pairs[n].1 as usize);
            prop_assert_eq!(done.request.tag, n as u32);
            let status = match packets(sent as u64).cmp(&packets(length as u64)) {
                std::cmp::Ordering::Less => Status::Short,
                std::cmp::Ordering::Equal => Status::Ok,
                std::cmp::Ordering::Greater => Status::Truncated,
            };
            prop_assert_eq!(done.status, status);
            let mut expected = contents(n);
            expected.resize(sent.next_multiple_of(PACKET_DATA), 0);
            expected.truncate(length);
            prop_assert_eq!(done.length as usize, expected.len());
            let mut got = vec![0; 0x1800];
            memory.read(place(n), &mut got).unwrap();
            prop_assert_eq!(&got[..expected.len()], &expected[..]);
            prop_assert!(got[expected.len()..].iter().all(|byte| *byte == 0xee));
        }
    }
}

#[test]
fn lost_memory_spares_the_next_message() {
    let memory = memory();
    let mut receive = Receive::default();
    receive.add(credit(1 << 40, 256, 1)).unwrap();
    receive.add(credit(0x2000, 256, 2)).unwrap();
    for bytes in [[1; 256], [2; 256]] {
        message(&bytes, 1).into_iter().for_each(|data| assert!(receive.push(data)));
    }
    let ends: Vec<_> = std::iter::from_fn(|| receive.deliver(&memory, 64)).collect();
    let ends: Vec<_> = ends.iter().map(|done| (done.status, done.length)).collect();
    assert_eq!(ends, [(Status::BadAddress, 0), (Status::Ok, 256)]);
}

#[test]
fn cut_message_ends_its_credit() {
    let memory = memory();
    let mut receive = Receive::default();
    receive.add(credit(0x2000, 1024, 1)).unwrap();
    receive.add(credit(0x3000, 128, 2)).unwrap();
    let mut old = message(&[1; 1024], 2);
    let rest = old.split_off(2);
    old.into_iter().for_each(|data| assert!(receive.push(data)));
    receive.cut();
    for data in rest {
        assert!(!receive.push(data), "of a message without a beginning");
    }
    message(&[2; 128], 1).into_iter().for_each(|data| assert!(receive.push(data)));
    let done = receive.deliver(&memory, 64).unwrap();
    assert_eq!((done.status, done.length, done.request.tag), (Status::Cut, 512, 1));
    let done = receive.deliver(&memory, 64).unwrap();
    assert_eq!((done.status, done.length, done.request.tag), (Status::Ok, 128, 2));
}

#[test]
fn cancelled_credit_takes_the_messages_rest() {
    let memory = memory();
    let mut receive = Receive::default();
    receive.add(credit(0x2000, 1024, 1)).unwrap();
    let mut first = message(&[1; 1024], 2);
    let rest = first.split_off(2);
    first.into_iter().for_each(|data| assert!(receive.push(data)));
    assert_eq!(receive.deliver(&memory, 64), None);
    let [done] = receive.cancel()[..] else { panic!("one credit") };
    assert_eq!((done.status, done.length), (Status::Cancelled, 512));
    receive.add(credit(0x3000, 128, 2)).unwrap();
    rest.into_iter().for_each(|data| assert!(receive.push(data)));
    message(&[2; 128], 1).into_iter().for_each(|data| assert!(receive.push(data)));
    let done = receive.deliver(&memory, 64).unwrap();
    assert_eq!((done.status, done.request.tag), (Status::Ok, 2));
    let mut got = [0; 128];
    memory.read(0x3000, &mut got).unwrap();
    assert_eq!(got, [2; 128]);
}

#[test]
fn credits_and_packets_have_limits() {
    let mut receive = Receive::default();
    for n in 0..CREDIT_QUEUE as u32 {
        receive.add(credit(0x2000, 128, n)).unwrap();
    }
    assert_eq!(receive.add(credit(0x2000, 128, 0)), Err(Status::Full));
    let mut receive = Receive::default();
    message(&[1; RECEPTION_FIFO * PACKET_DATA], 64)
        .into_iter()
        .for_each(|data| assert!(receive.push(data)));
    assert_eq!(receive.room(), 0);
    assert!(!receive.matches(), "there is no credit");
}
