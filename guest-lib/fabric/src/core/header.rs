//! The first bytes of a slot.

/// Bytes of a header.
pub(super) const HEADER: usize = 64;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A part of a message.
    Part,
    /// The address of a message, which the receiver reads.
    Request,
    /// The receiver has read a message.
    Done,
    /// The receiver could not read a message.
    Failed,
}

/// The properties of a slot's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) tagged: bool,
    pub(super) data: Option<u64>,
    /// Slots that the sender of this one has emptied, modulo 2^16.
    pub(super) emptied: u16,
    /// Bytes in this slot.
    pub(super) length: u32,
    pub(super) tag: u64,
    /// Bytes of the whole message.
    pub(super) total: u64,
    /// The sender's number of a message that is read.
    pub(super) id: u64,
    /// The part's offset in the message, or where the device finds the message.
    pub(super) at: u64,
}

impl Header {
    /// An answer to a request.
    pub(super) const fn answer(kind: Kind, id: u64) -> Self {
        let (tag, total, at) = (0, 0, 0);
        Self { kind, tagged: false, data: None, emptied: 0, length: 0, tag, total, id, at }
    }

    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = match self.kind {
            Kind::Part => 1,
            Kind::Request => 2,
            Kind::Done => 3,
            Kind::Failed => 4,
        };
        bytes[1] = u8::from(self.tagged) | u8::from(self.data.is_some()) << 1;
        bytes[2..4].copy_from_slice(&self.emptied.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        let words = [self.tag, self.total, self.id, self.at, self.data.unwrap_or(0)];
        for (to, word) in bytes[8..].as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Returns `None` for bytes that no sender writes.
    pub(super) fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let kind = match bytes[0] {
            1 => Kind::Part,
            2 => Kind::Request,
            3 => Kind::Done,
            4 => Kind::Failed,
            _ => return None,
        };
        let [flags, low, high] = [bytes[1], bytes[2], bytes[3]];
        let words = bytes[8..].as_chunks::<8>().0;
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        Some(Self {
            kind,
            tagged: flags & 1 != 0,
            data: (flags & 2 != 0).then(|| word(4)),
            emptied: u16::from_le_bytes([low, high]),
            length: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            tag: word(0),
            total: word(1),
            id: word(2),
            at: word(3),
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
            (kind, tagged, emptied, length) in (0u8..4, any::<bool>(), any::<u16>(), any::<u32>()),
            (data, tag, total, id, at) in any::<(Option<u64>, u64, u64, u64, u64)>(),
        ) {
            let kind = [Kind::Part, Kind::Request, Kind::Done, Kind::Failed][usize::from(kind)];
            let header =
                Header { kind, tagged, data, emptied, length, tag, total, id, at };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), HEADER),
        ) {
            let bytes: [u8; HEADER] = bytes.try_into().unwrap();
            prop_assert_eq!(Header::decode(&bytes).is_some(), (1..5).contains(&bytes[0]));
        }
    }
}
