//! Data-link-layer packets between the two ends of a link.

use crate::VCS;

/// The sequence number of a frame: 12 bits *(ours)*, wrapping around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(u16);

impl Seq {
    const MASK: u16 = 0xfff;
    /// Half of all numbers.
    pub(crate) const HALF: u16 = 0x800;

    /// The number with these bits; those above the lowest 12 are ignored.
    #[inline]
    pub const fn new(number: u16) -> Self {
        Self(number & Self::MASK)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The number after this one.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }

    /// The number before this one.
    #[inline]
    #[must_use]
    pub const fn previous(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// The distance of this number ahead of `from`, counting upwards.
    #[inline]
    pub const fn after(self, from: Self) -> u16 {
        self.0.wrapping_sub(from.0) & Self::MASK
    }
}

/// A data-link-layer packet: one end of a link reports on the frames from the other end.
///
/// Each is valid at any time of arrival, and supersedes all earlier ones of its kind: a number is
/// the latest, and credits are a running total *(ours)*. Any of them may therefore be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dllp {
    /// This frame and all before it have been accepted.
    Ack(Seq),
    /// All before this frame have been accepted; this one and those that follow must be resent.
    Nack(Seq),
    /// That many rows have left the receive queue of a virtual channel since the link came up,
    /// modulo 2^16.
    UpdateFc {
        /// The virtual channel, 0 to 3.
        vc: u8,
        /// The running total.
        total: u16,
    },
    /// Requests the latest of all of these (*ours*). Otherwise a sender without credit and without
    /// unacknowledged frames would never recover from the loss of an UpdateFC.
    Poll,
}

impl Dllp {
    /// Bytes of a DLLP (TofuD paper, figures 5 and 6).
    pub const SIZE: usize = 16;

    /// The DLLP as it is sent *(ours, except for the size)*: kind, virtual channel, and the number
    /// in little endian; the rest is 0.
    pub const fn to_bytes(self) -> [u8; Self::SIZE] {
        let (kind, vc, number) = match self {
            Self::Ack(seq) => (1, 0, seq.get()),
            Self::Nack(seq) => (2, 0, seq.get()),
            Self::UpdateFc { vc, total } => (3, vc, total),
            Self::Poll => (4, 0, 0),
        };
        let [low, high] = number.to_le_bytes();
        let mut bytes = [0; Self::SIZE];
        (bytes[0], bytes[1], bytes[2], bytes[3]) = (kind, vc, low, high);
        bytes
    }

    /// Inverse of [`to_bytes`](Self::to_bytes). `None` if this is not a DLLP: a frame without one
    /// has zeros in its place.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let &[kind, vc, low, high, ref rest @ ..] = bytes;
        let number = u16::from_le_bytes([low, high]);
        let known = rest.iter().all(|&byte| byte == 0);
        match (kind, vc) {
            _ if !known => None,
            (1, 0) if number <= Seq::MASK => Some(Self::Ack(Seq(number))),
            (2, 0) if number <= Seq::MASK => Some(Self::Nack(Seq(number))),
            (3, vc) if usize::from(vc) < VCS => Some(Self::UpdateFc { vc, total: number }),
            (4, 0) if number == 0 => Some(Self::Poll),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dllp_comes_back() {
        for number in [0, 1, 0xfff] {
            for dllp in [Dllp::Ack(Seq(number)), Dllp::Nack(Seq(number)), Dllp::Poll] {
                assert_eq!(Dllp::from_bytes(&dllp.to_bytes()), Some(dllp));
            }
        }
        for vc in 0..4 {
            let dllp = Dllp::UpdateFc { vc, total: 0xfedc };
            assert_eq!(Dllp::from_bytes(&dllp.to_bytes()), Some(dllp));
        }
    }

    #[test]
    fn other_words_are_no_dllp() {
        for bytes in
            [[0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0x10], [3, 4, 0, 0], [4, 0, 1, 0], [5; 4]]
        {
            let mut dllp = [0; Dllp::SIZE];
            dllp[..4].copy_from_slice(&bytes);
            assert_eq!(Dllp::from_bytes(&dllp), None, "{bytes:?}");
        }
        let mut dllp = Dllp::Poll.to_bytes();
        dllp[15] = 1;
        assert_eq!(Dllp::from_bytes(&dllp), None);
    }

    #[test]
    fn sequence_numbers_go_around() {
        assert_eq!(Seq::new(0xfff).next(), Seq::new(0));
        assert_eq!(Seq::new(0).previous(), Seq::new(0xfff));
        assert_eq!(Seq::new(2).after(Seq::new(0xffe)), 4);
        assert_eq!(Seq::new(0x1003), Seq::new(3));
    }
}
