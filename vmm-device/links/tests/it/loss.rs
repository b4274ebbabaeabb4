//! Every frame arrives once and in order, no matter what is lost.

use proptest::prelude::*;
use tofu_links::Parameters;

use crate::world::{Fate, Frame, World};

/// A link with so few resources that each of them runs out.
const SMALL: Parameters =
    Parameters { queue_bytes: 16 * 16, replay_bytes: 40 * 16, ..Parameters::TOFUD };

/// Frames of which two fill a queue, on two virtual channels.
fn frames(count: u32) -> Vec<Frame> {
    (0..count).map(|id| Frame { id, vc: (id % 2) as u8 * 3, rows: 8 }).collect()
}

fn check(parameters: Parameters, fates: &mut dyn FnMut() -> Fate, frames: Vec<Frame>) -> [u64; 4] {
    let mut world = World::new(parameters, fates);
    world.run(frames.clone());
    assert_eq!(world.arrived, frames);
    assert_eq!(world.sender.unacknowledged(), 0);
    [
        world.near.replayed,
        world.near.ack_timeouts,
        world.near.credit_timeouts,
        world.near.send_nullified,
    ]
}

/// Every way to spoil the first things that are sent, in either direction.
fn exhaust(kinds: &[Fate], depth: u32, count: u32) -> [u64; 4] {
    let mut seen = [0; 4];
    for pattern in 0..(kinds.len() as u64).pow(depth) {
        let mut left = pattern;
        let mut fates = || {
            let fate = kinds[(left % kinds.len() as u64) as usize];
            left /= kinds.len() as u64;
            fate
        };
        let counted = check(SMALL, &mut fates, frames(count));
        for (seen, counted) in seen.iter_mut().zip(counted) {
            *seen += counted;
        }
    }
    seen
}

#[test]
fn first_frames_survive_any_loss() {
    let seen = exhaust(&[Fate::Fine, Fate::Lost], 16, 6);
    assert!(seen[..3].iter().all(|&seen| seen > 0), "{seen:?}");
}

#[test]
fn first_frames_survive_any_fate() {
    let seen = exhaust(&[Fate::Fine, Fate::Lost, Fate::Bad, Fate::Nullified], 8, 5);
    assert!(seen.iter().all(|&seen| seen > 0), "{seen:?}");
}

#[test]
fn without_losses_nothing_is_repeated() {
    assert_eq!(check(SMALL, &mut || Fate::Fine, frames(10_000)), [0; 4]);
    assert_eq!(check(Parameters::TOFU2, &mut || Fate::Fine, frames(10_000)), [0; 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_frames_with_any_rates_of_loss(
        sent in proptest::collection::vec((0u8..4, 1u8..=125), 0..400),
        rates in [0u32..300, 0u32..300, 0u32..300],
        seed: u64,
    ) {
        let mut state = seed;
        let mut fates = || {
            // The generator of Numerical Recipes; any other one would do.
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let mut draw = (state >> 33) as u32 % 1000;
            for (fate, rate) in [Fate::Bad, Fate::Lost, Fate::Nullified].into_iter().zip(rates) {
                if draw < rate {
                    return fate;
                }
                draw -= rate;
            }
            Fate::Fine
        };
        let frames = (0..).zip(sent).map(|(id, (vc, rows))| Frame { id, vc, rows }).collect();
        check(Parameters::TOFU, &mut fates, frames);
    }
}
