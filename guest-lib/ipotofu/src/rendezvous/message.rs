//! The messages of a rendezvous.

use core::ops::Deref;

use tofu_abi::{Coords, StagOffset};

use super::{HEAD_MAX, REST_MAX};
use crate::addr;
use crate::counters::Counters;
use crate::offload::METADATA_SIZE;
use crate::wire::{Capabilities, ETHERNET_HEADER, HEADER_SIZE, Header, PacketKind, Sum, VERSION};

/// Flag of [`Message::Done`]: the frame could not be fetched.
const REFUSED: u8 = 8;
const REQUEST: u8 = VERSION << 4 | 4;
const DONE: u8 = VERSION << 4 | 5;
const SPLIT: u8 = VERSION << 4 | 6;

/// Size of the body of a request in bytes: offload metadata, and the place of the frame.
const REQUEST_BODY: usize = METADATA_SIZE + 8;
/// The same for a request with the frame's head: also the number of bytes to fetch. The head
/// follows.
const SPLIT_BODY: usize = REQUEST_BODY + 4;

/// A frame in the memory of its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The node that the frame comes from.
    pub origin: Coords,
    /// Distinguishes the frames of a node.
    pub id: u32,
    /// Size of the frame's head in the request, in bytes; 0 if the whole frame is to be fetched.
    pub head: u16,
    /// Number of bytes to fetch.
    pub len: u32,
    /// Sum over metadata and frame; 0 if the head is in the request, because no sum was computed.
    pub sum: u32,
    /// The offload metadata of the frame, see [`crate::offload`].
    pub metadata: [u8; METADATA_SIZE],
    /// The place of the frame.
    pub place: StagOffset,
}

impl Request {
    /// Returns true if the head of the frame is in the request.
    pub const fn is_split(&self) -> bool {
        self.head > 0
    }

    /// The sum of the metadata of a frame that is fetched as a whole. The frame's bytes must be
    /// added, at their offsets in it.
    pub fn summed(metadata: &[u8; METADATA_SIZE]) -> Sum {
        let mut sum = Sum::default();
        sum.add(metadata);
        sum
    }

    /// Returns true if the frame that was fetched has this sum. If not, it is counted as damaged.
    pub fn is_intact(&self, sum: Sum, counters: &mut Counters) -> bool {
        let intact = sum.finish() == self.sum;
        counters.damaged += u64::from(!intact);
        intact
    }

    /// The head of the frame, from the bytes that follow the header of this request.
    pub fn head_in<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        let behind = body.get(SPLIT_BODY..).filter(|_| self.is_split());
        behind.and_then(|behind| behind.get(..self.head.into())).unwrap_or_default()
    }
}

/// A message about a frame that is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A node has a frame for the receiver to fetch.
    Request(Request),
    /// The sender no longer needs the frame with this id and those requested before.
    Done {
        /// Id of the last frame that is no longer needed.
        id: u32,
        /// True if that frame could not be fetched.
        refused: bool,
    },
}

/// Returns true if a packet with this header is a message of this module.
pub fn is_message(header: &[u8]) -> bool {
    header.first().is_some_and(|first| [REQUEST, DONE, SPLIT].contains(first))
}

/// Returns true if a packet with this header comes directly from its origin, if it is not forged.
pub fn is_from_origin(header: &[u8]) -> bool {
    let direct = [PacketKind::Unicast, PacketKind::Offloaded];
    header.first().is_some_and(|first| direct.map(|kind| VERSION << 4 | kind as u8).contains(first))
}

/// The body of a message. The head of a frame follows, if there is one.
#[derive(Clone, Copy, Debug)]
pub struct MessageBody {
    bytes: [u8; SPLIT_BODY],
    len: usize,
}

impl Deref for MessageBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Message {
    /// Parses a message that has come from node `from`; `None` if it is invalid, or names another
    /// node.
    pub fn parse(from: Coords, header: &[u8], body: &[u8]) -> Option<Self> {
        let Header { version_kind, flags, total, offset, length, id, sum, origin } =
            Header::parse(header)?;
        let origin = addr::unpack(origin).filter(|origin| *origin == from)?;
        match version_kind {
            REQUEST => {
                let (metadata, rest) = body.split_first_chunk()?;
                let place = StagOffset(u64::from_be_bytes(*rest.first_chunk()?));
                let whole = usize::from(total) >= METADATA_SIZE + ETHERNET_HEADER;
                let right = whole && offset == 0 && usize::from(length) == METADATA_SIZE + 8;
                right.then_some(Self::Request(Request {
                    origin,
                    id,
                    head: 0,
                    len: u32::from(total).saturating_sub(METADATA_SIZE as u32),
                    sum,
                    metadata: *metadata,
                    place,
                }))
            }
            SPLIT if (total, offset, sum) == (0, 0, 0) => {
                let body = body.get(..length.into())?;
                let (metadata, rest) = body.split_first_chunk()?;
                let (place, rest) = rest.split_first_chunk()?;
                let (len, head) = rest.split_first_chunk()?;
                let len = u32::from_be_bytes(*len);
                let right = (ETHERNET_HEADER..=HEAD_MAX).contains(&head.len())
                    && (1..=REST_MAX as u32).contains(&len);
                right.then_some(Self::Request(Request {
                    origin,
                    id,
                    head: head.len() as u16,
                    len,
                    sum,
                    metadata: *metadata,
                    place: StagOffset(u64::from_be_bytes(*place)),
                }))
            }
            DONE if (total, offset, length, sum) == (0, 0, 0, 0) => {
                Some(Self::Done { id, refused: flags & REFUSED != 0 })
            }
            _ => None,
        }
    }

    /// Encodes the message as in a packet of node `me`, which has these capabilities: its header
    /// and its body, without the head of a frame.
    pub fn emit(&self, me: Coords, says: Capabilities) -> ([u8; HEADER_SIZE], MessageBody) {
        let mut body = MessageBody { bytes: [0; _], len: 0 };
        let (kind, flags, id, total, sum, head) = match self {
            Self::Request(request) => {
                let (metadata, rest) = body.bytes.split_at_mut(METADATA_SIZE);
                let (place, len) = rest.split_at_mut(8);
                metadata.copy_from_slice(&request.metadata);
                place.copy_from_slice(&request.place.0.to_be_bytes());
                let Request { id, sum, head, .. } = *request;
                if request.is_split() {
                    len.copy_from_slice(&request.len.to_be_bytes());
                    body.len = SPLIT_BODY;
                    (SPLIT, 0, id, 0, 0, head)
                } else {
                    body.len = REQUEST_BODY;
                    (REQUEST, 0, id, (METADATA_SIZE as u32 + request.len) as u16, sum, 0)
                }
            }
            Self::Done { id, refused } => (DONE, if *refused { REFUSED } else { 0 }, *id, 0, 0, 0),
        };
        let header = Header {
            version_kind: kind,
            flags: flags | says.flags(),
            total,
            length: body.len() as u16 + head,
            id,
            sum,
            origin: addr::pack(me),
            ..Header::default()
        };
        (header.emit(), body)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use alloc::vec::Vec;

    use tofu_abi::CqId;

    use super::*;

    const SAYS: Capabilities =
        Capabilities { offload: true, rendezvous: true, split: false, more_queues: 0 };

    pub(crate) const NODE: Coords = Coords::new(1, 2, 3, 0, 1, 1);

    pub(crate) fn request(id: u32) -> Request {
        let place = StagOffset::new(CqId::ALL[11], 0, 3 << 16);
        let metadata = [7; METADATA_SIZE];
        Request { origin: NODE, id, head: 0, len: 8992, sum: 0x1234_5678, metadata, place }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        for message in [Message::Request(request(9)), Message::Done { id: u32::MAX, refused: true }]
        {
            let (header, body) = message.emit(NODE, SAYS);
            assert!(is_message(&header) && Capabilities::of(&header).rendezvous);
            assert_eq!(Message::parse(NODE, &header, &body), Some(message));
            assert_eq!(Message::parse(Coords::default(), &header, &body), None, "in another name");
        }
        let (header, body) = Message::Request(request(9)).emit(NODE, SAYS);
        assert_eq!(Message::parse(NODE, &header, &body[..15]), None, "cut off");
        for (at, byte) in [(0, 0x15), (0, 0x13), (5, 1), (7, 15), (2, 0xff)] {
            let mut changed = header;
            changed[at] = byte;
            let parsed = Message::parse(NODE, &changed, &body);
            assert!(parsed.is_none() || at == 2, "byte {at}");
        }
    }

    #[test]
    fn head_lies_behind_body_within_bounds() {
        let head: Vec<u8> = (0..HEAD_MAX).map(|n| n as u8).collect();
        for (of_head, len, right) in [
            (ETHERNET_HEADER, 1, true),
            (HEAD_MAX, REST_MAX, true),
            (ETHERNET_HEADER - 1, 1, false),
            (HEAD_MAX + 1, 1, false),
            (ETHERNET_HEADER, 0, false),
            (ETHERNET_HEADER, REST_MAX + 1, false),
        ] {
            let split = Request { head: of_head as u16, len: len as u32, sum: 0, ..request(7) };
            let message = Message::Request(split);
            let (header, body) = message.emit(NODE, SAYS);
            let mut body = body.to_vec();
            body.extend(head.iter().chain(&[9]).take(of_head));
            assert!(is_message(&header));
            let parsed = Message::parse(NODE, &header, &body);
            assert_eq!(parsed, right.then_some(message), "{of_head}, {len}");
            assert_eq!(Message::parse(NODE, &header, &body[..body.len() - 1]), None, "cut off");
            if right {
                // Padding may follow.
                body.push(0);
                assert_eq!(split.head_in(&body), &head[..of_head]);
            }
        }
    }
}
