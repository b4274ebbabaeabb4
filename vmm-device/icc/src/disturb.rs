//! The effects of network faults on packets.

use tofu_abi::frame::{ECRC_SIZE, HEADER_SIZE, ROUTING_HEADER_SIZE, TlpHeader};
use tofu_fabric::Disturb;

use crate::packets::frame::seal;
use crate::tlp::Body;

/// Only raw and system packets are damaged, because links retransmit all others until they are
/// intact. These and barrier signals can be duplicated.
impl Disturb for Body {
    fn duplicate(&self) -> Option<Self> {
        match self {
            Self::Frame { tag, frame } => Some(Self::Frame { tag: *tag, frame: frame.clone() }),
            Self::Signal(signal) => Some(Self::Signal(signal.clone())),
            _ => None,
        }
    }

    fn damage(&mut self, random: u64, undetected: bool) -> bool {
        let Self::Frame { frame, .. } = self else { return false };
        if undetected { forge(frame, random) } else { corrupt(frame, random) }
    }
}

/// Changes up to eight bits of a frame's TLP, anywhere.
fn corrupt(frame: &mut [u8], random: u64) -> bool {
    let tlp = frame.get_mut(ROUTING_HEADER_SIZE..).unwrap_or_default();
    let bits = tlp.len() as u64 * 8;
    if bits == 0 {
        return false;
    }
    let (first, count, stride) = (random >> 32, 1 + random % 8, 1 + (random >> 8) % 97);
    for n in 0..count {
        let bit = (first + n * stride) % bits;
        tlp[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
    // In such a short TLP the same bit may be changed twice; frames are longer.
    count * stride <= bits
}

/// Changes a byte of a frame's payload, and recomputes the CRC. It is a single byte, because the
/// checksums of IP, TCP and UDP detect any such change, but may miss larger ones.
fn forge(frame: &mut [u8], random: u64) -> bool {
    let header = frame.get(ROUTING_HEADER_SIZE..HEADER_SIZE).and_then(|b| b.try_into().ok());
    let Some(header) = header.map(|bytes| TlpHeader(u64::from_le_bytes(bytes))) else {
        return false;
    };
    let room = frame.len().saturating_sub(HEADER_SIZE + ECRC_SIZE);
    let length = usize::from(header.length()).min(room);
    if length == 0 {
        return false;
    }
    let at = HEADER_SIZE + (random >> 32) as usize % length;
    frame[at] ^= 1 + (random % 255) as u8;
    seal(frame);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::frame::ecrc_is_right;
    use crate::tlp::Tag;
    use tofu_abi::CqId;
    use tofu_abi::frame::{TlpKind, frame_size};

    fn body(payload: usize) -> Body {
        let mut frame = vec![0x5a; frame_size(payload)];
        let header = TlpHeader(0).with_kind(TlpKind::System as u8).with_length(payload as u16);
        frame[ROUTING_HEADER_SIZE..HEADER_SIZE].copy_from_slice(&header.0.to_le_bytes());
        seal(&mut frame);
        let tag = Tag { cq: CqId::KERNEL, index: 0, generation: 0 };
        Body::Frame { tag, frame: frame.into() }
    }

    fn frame(body: &Body) -> &[u8] {
        match body {
            Body::Frame { frame, .. } => frame,
            _ => &[],
        }
    }

    #[test]
    fn damage_is_seen_unless_it_is_to_be_unseen() {
        let randoms = (0..500u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n >> 3);
        for (payload, random) in (0..=1972).step_by(29).cycle().zip(randoms) {
            let whole = body(payload);
            let mut damaged = whole.duplicate().unwrap();
            assert_eq!(frame(&damaged), frame(&whole));
            assert!(damaged.damage(random, false));
            assert!(!ecrc_is_right(frame(&damaged)), "{payload} {random:#x}");
            // The routing header is protected by the network's own check.
            assert_eq!(frame(&damaged)[..8], frame(&whole)[..8]);

            let mut forged = whole.duplicate().unwrap();
            assert_eq!(forged.damage(random, true), payload > 0);
            assert!(ecrc_is_right(frame(&forged)), "{payload} {random:#x}");
            let end = frame(&whole).len() - ECRC_SIZE;
            let differ = (0..end).filter(|at| frame(&forged)[*at] != frame(&whole)[*at]);
            assert_eq!(differ.count(), usize::from(payload > 0));
        }
    }

    #[test]
    fn frames_of_any_size_can_be_damaged() {
        for size in 0..200 {
            for random in [0, u64::MAX, 0x1234_5678_9abc_def0] {
                let mut bytes = vec![0xff; size];
                corrupt(&mut bytes, random);
                forge(&mut bytes, random);
            }
        }
    }
}
