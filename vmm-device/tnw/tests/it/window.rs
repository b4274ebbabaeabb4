//! Stores to a window, in any order.

use proptest::prelude::*;
use proptest::sample::Index;
use tofu_abi::tnw::{PACKET_DATA, WINDOW_RING};
use tofu_tnw_device::{MAX_RUN, StoreError, Window};

const RING: usize = WINDOW_RING as usize;

/// Stores of 1 to 64 bytes that make up `len` bytes.
fn cuts(len: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..=64usize, len / 32 + 1).prop_map(move |sizes| {
        let mut cuts = vec![0];
        let mut sizes = sizes.into_iter().cycle();
        while let Some(at) = cuts.last().copied().filter(|at| *at < len) {
            let size = sizes.next().unwrap_or(1);
            cuts.push((at + size).min(len));
        }
        cuts
    })
}

proptest! {
    /// Messages are stored piece by piece, in any order within the ring. They come out complete, in
    /// order, and cut at their last packets.
    #[test]
    fn any_order_of_stores_gives_the_same_bytes(
        packets in prop::collection::vec(1..40usize, 1..6),
        sizes in cuts(RING * 2),
        order in prop::collection::vec(any::<Index>(), 64),
        most in 1..=MAX_RUN,
    ) {
        let mut window = Window::new();
        let message = |number: usize, len: usize| -> Vec<u8> {
            (0..len).map(|at| (at * 7 + number * 31 + at / 128) as u8).collect()
        };
        // For each piece: its place in the stream, its bytes, and whether its packet is the last
        // one.
        let mut pieces = Vec::new();
        let (mut at, mut expected) = (0, Vec::new());
        for (number, packets) in packets.into_iter().enumerate() {
            let bytes = message(number, packets * PACKET_DATA);
            let last_packet = at + bytes.len() - PACKET_DATA;
            for cut in sizes.windows(2).take_while(|cut| cut[0] < bytes.len()) {
                let (from, to) = (cut[0], cut[1].min(bytes.len()));
                // A store belongs either to the last packet or to others, and does not cross the
                // ring's end.
                let middles = [last_packet - at, RING - at % RING];
                let mut ends: Vec<usize> =
                    middles.into_iter().filter(|m| from < *m && *m < to).collect();
                ends.sort_unstable();
                ends.push(to);
                let mut from = from;
                for end in ends {
                    pieces.push((at + from, bytes[from..end].to_vec(), at + from >= last_packet));
                    from = end;
                }
            }
            at += bytes.len();
            expected.push(bytes);
        }
        let mut got: Vec<Vec<u8>> = vec![Vec::new()];
        let mut order = order.iter().cycle();
        while !pieces.is_empty() {
            // Any piece that the ring has room for.
            let room = window.head() as usize + RING;
            let fit = pieces.iter().take_while(|(at, bytes, _)| at + bytes.len() <= room).count();
            prop_assert!(fit > 0);
            let which = order.next().unwrap().index(fit);
            let (at, bytes, last) = pieces.remove(which);
            prop_assert_eq!(window.store((at % RING) as u64, &bytes, last), Ok(()));
            if pieces.len() % 5 == 0 || fit == 1 {
                while let Some(taken) = window.take(most, u64::MAX) {
                    prop_assert!(taken.data.len() <= usize::from(most) * PACKET_DATA);
                    got.last_mut().unwrap().extend_from_slice(&taken.data);
                    if taken.last {
                        got.push(Vec::new());
                    }
                }
            }
        }
        prop_assert_eq!(got.pop(), Some(Vec::new()));
        prop_assert_eq!(got, expected);
        prop_assert_eq!(window.head(), window.tail());
        prop_assert_eq!(window.head(), at as u64);
    }

    /// Any stores leave the window as it was, or filled with the stored bytes.
    #[test]
    fn any_stores_are_harmless(
        stores in prop::collection::vec((0..WINDOW_RING + 100, 0..=64usize, any::<bool>()), 0..500),
    ) {
        let mut window = Window::new();
        let mut taken = 0;
        for (at, len, last) in stores {
            let _ = window.store(at, &[1; 64][..len], last);
            if let Some(run) = window.take(MAX_RUN, u64::MAX) {
                prop_assert!(run.data.iter().all(|byte| *byte == 1));
                taken += run.data.len() as u64;
            }
            prop_assert!(window.head() <= window.tail());
            prop_assert!(window.tail() - window.head() <= WINDOW_RING);
        }
        prop_assert_eq!(window.head(), taken);
    }
}

#[test]
fn stored_data_is_not_changed() {
    let mut window = Window::new();
    window.store(0, &[1; 64], false).unwrap();
    assert_eq!(window.store(63, &[2; 2], false), Err(StoreError::Overlap));
    assert_eq!(window.store(0, &[2; 64], true), Err(StoreError::Overlap));
    window.store(64, &[3; 64], false).unwrap();
    assert_eq!(window.store(WINDOW_RING - 1, &[4; 2], false), Err(StoreError::Outside));
    let taken = window.take(9, u64::MAX).unwrap();
    assert_eq!((&taken.data[..64], &taken.data[64..]), (&[1; 64][..], &[3; 64][..]));
    assert!(!taken.last, "the store that marked it was dropped");
    // The place is free again.
    window.store(0, &[5; 64], false).unwrap();
}

#[test]
fn cleared_data_is_gone_and_ring_continues() {
    let mut window = Window::new();
    for at in [0, 64, 128, 256] {
        window.store(at, &[1; 64], true).unwrap();
    }
    window.clear();
    assert_eq!((window.head(), window.tail()), (128, 128));
    assert_eq!(window.take(9, u64::MAX), None);
    window.store(128, &[2; 64], false).unwrap();
    window.store(192, &[2; 64], true).unwrap();
    let taken = window.take(9, u64::MAX).unwrap();
    assert_eq!((&taken.data[..], taken.last), (&[2; 128][..], true));
}
