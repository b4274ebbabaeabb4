//! The first bytes of a slot.

/// Bytes of a header.
pub(super) const HEADER: usize = 64;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A part of a message.
    Part,
    /// The places of a message, which the receiver reads.
    Request,
    /// The receiver has read a message.
    Done,
    /// The receiver could not read a message.
    Failed,
    /// A part of the data for a write to a region.
    Write,
    /// The places of the data for a write to a region, which the receiver reads.
    WriteRequest,
    /// A request to read a region.
    Read,
    /// A part of a region's contents.
    Data,
    /// The places of a region's contents, which the receiver reads.
    DataRequest,
    /// A request for an atomic operation on a region.
    Atomic,
    /// There is no such region, or the access is not allowed.
    Refused,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Part,
        Self::Request,
        Self::Done,
        Self::Failed,
        Self::Write,
        Self::WriteRequest,
        Self::Read,
        Self::Data,
        Self::DataRequest,
        Self::Atomic,
        Self::Refused,
    ];

    /// Returns whether it comes in parts, each with its offset.
    pub(super) const fn is_part(self) -> bool {
        matches!(self, Self::Part | Self::Write | Self::Data)
    }
}

/// The properties of a slot's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) tagged: bool,
    /// The sender requests an answer when the message is out of its slots.
    pub(super) answer: bool,
    pub(super) data: Option<u64>,
    /// Slots that the sender of this one has emptied, modulo 2^16.
    pub(super) emptied: u16,
    /// Bytes in this slot.
    pub(super) length: u32,
    /// The tag; for contents of a region, the requester's number of the operation.
    pub(super) tag: u64,
    /// Bytes of the whole message.
    pub(super) total: u64,
    /// The sender's number of a message that is read.
    pub(super) id: u64,
    /// The part's offset in the message, or the code of an atomic operation.
    pub(super) at: u64,
    /// The key of a region, and where in it.
    pub(super) key: u64,
    pub(super) place: u64,
}

impl Header {
    /// A header of this kind, without anything else.
    pub(super) const fn of(kind: Kind) -> Self {
        Self {
            kind,
            tagged: false,
            answer: false,
            data: None,
            emptied: 0,
            length: 0,
            tag: 0,
            total: 0,
            id: 0,
            at: 0,
            key: 0,
            place: 0,
        }
    }

    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.kind as u8 + 1;
        let flags = [self.tagged, self.data.is_some(), self.answer];
        bytes[1] = flags.iter().rev().fold(0, |all, flag| all << 1 | u8::from(*flag));
        bytes[2..4].copy_from_slice(&self.emptied.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        let Self { tag, total, id, at, key, place, .. } = *self;
        let words = [tag, total, id, at, self.data.unwrap_or(0), key, place];
        for (to, word) in bytes[8..].as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Returns `None` for bytes that no sender writes.
    pub(super) fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let kind = *Kind::ALL.get(usize::from(bytes[0]).checked_sub(1)?)?;
        let [flags, low, high] = [bytes[1], bytes[2], bytes[3]];
        let words = bytes[8..].as_chunks::<8>().0;
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        Some(Self {
            kind,
            tagged: flags & 1 != 0,
            answer: flags & 4 != 0,
            data: (flags & 2 != 0).then(|| word(4)),
            emptied: u16::from_le_bytes([low, high]),
            length: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            tag: word(0),
            total: word(1),
            id: word(2),
            at: word(3),
            key: word(5),
            place: word(6),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_come_back(
            (kind, tagged, answer) in (0usize..11, any::<bool>(), any::<bool>()),
            (emptied, length) in any::<(u16, u32)>(),
            (data, tag, total, id, at) in any::<(Option<u64>, u64, u64, u64, u64)>(),
            (key, place) in any::<(u64, u64)>(),
        ) {
            let header = Header {
                kind: Kind::ALL[kind], tagged, answer, data, emptied, length, tag, total, id, at,
                key, place,
            };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), HEADER),
        ) {
            let bytes: [u8; HEADER] = bytes.try_into().unwrap();
            prop_assert_eq!(Header::decode(&bytes).is_some(), (1..12).contains(&bytes[0]));
        }
    }
}
