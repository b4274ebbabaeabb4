//! The messages of a rendezvous.

use core::ops::Deref;

use tofu_abi::{Coords, StagOffset};

use crate::addr;
use crate::offload::METADATA_SIZE;
use crate::wire::{Capabilities, ETHERNET_HEADER, HEADER_SIZE, Header, PacketKind, VERSION};

/// The flag of an end that says that the frame could not be fetched.
const REFUSED: u8 = 8;
const REQUEST: u8 = VERSION << 4 | 4;
const DONE: u8 = VERSION << 4 | 5;
/// What a node that sends these messages says of itself.
const SAYS: Capabilities = Capabilities { offload: true, rendezvous: true, more_queues: 0 };

/// Bytes of what follows the header of a request: offload metadata, and the place of the frame.
const REQUEST_BODY: usize = METADATA_SIZE + 8;

/// A frame in the memory of the node that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The node that the frame comes from.
    pub origin: Coords,
    /// Tells the frames of a node apart.
    pub id: u32,
    /// Bytes of the frame with the metadata in front of it.
    pub total: u16,
    /// Sum over these.
    pub sum: u32,
    /// The metadata: what is left to do with the frame, see [`crate::offload`].
    pub metadata: [u8; METADATA_SIZE],
    /// Where the frame is.
    pub place: StagOffset,
}

/// A message about a frame that is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A node has a frame for the receiver to fetch.
    Request(Request),
    /// The sender needs the frame with this id, and those requested before, no more.
    Done {
        /// Id of the last frame that is meant.
        id: u32,
        /// Whether it could not be fetched.
        refused: bool,
    },
}

/// Whether a packet with this header is a message of this module.
pub fn is_message(header: &[u8]) -> bool {
    header.first().is_some_and(|first| [REQUEST, DONE].contains(first))
}

/// Whether a packet with this header comes from its origin at once, if it is no forgery.
pub fn is_from_origin(header: &[u8]) -> bool {
    let direct = [PacketKind::Unicast, PacketKind::Offloaded];
    header.first().is_some_and(|first| direct.map(|kind| VERSION << 4 | kind as u8).contains(first))
}

/// What follows the header of a message.
#[derive(Clone, Copy, Debug)]
pub struct MessageBody {
    bytes: [u8; REQUEST_BODY],
    len: usize,
}

impl Deref for MessageBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Message {
    /// Reads a message that has come from node `from`; `None` if it is none, or in another node's
    /// name.
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
                    total,
                    sum,
                    metadata: *metadata,
                    place,
                }))
            }
            DONE if (total, offset, length, sum) == (0, 0, 0, 0) => {
                Some(Self::Done { id, refused: flags & REFUSED != 0 })
            }
            _ => None,
        }
    }

    /// The message as it lies in a packet of node `me`: its header, and what follows.
    pub fn emit(&self, me: Coords) -> ([u8; HEADER_SIZE], MessageBody) {
        let mut body = MessageBody { bytes: [0; _], len: 0 };
        let (kind, flags, id, total, sum) = match self {
            Self::Request(request) => {
                let (metadata, place) = body.bytes.split_at_mut(METADATA_SIZE);
                metadata.copy_from_slice(&request.metadata);
                place.copy_from_slice(&request.place.0.to_be_bytes());
                body.len = body.bytes.len();
                (REQUEST, 0, request.id, request.total, request.sum)
            }
            Self::Done { id, refused } => (DONE, if *refused { REFUSED } else { 0 }, *id, 0, 0),
        };
        let header = Header {
            version_kind: kind,
            // Who knows these messages fetches.
            flags: flags | SAYS.flags(),
            total,
            length: body.len() as u16,
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
    use super::*;

    pub(crate) const NODE: Coords = Coords::new(1, 2, 3, 0, 1, 1);

    pub(crate) fn request(id: u32) -> Request {
        let place = StagOffset::new(11, 0, 3 << 16);
        let metadata = [7; METADATA_SIZE];
        Request { origin: NODE, id, total: 9000, sum: 0x1234_5678, metadata, place }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        for message in [Message::Request(request(9)), Message::Done { id: u32::MAX, refused: true }]
        {
            let (header, body) = message.emit(NODE);
            assert!(is_message(&header) && Capabilities::of(&header).rendezvous);
            assert_eq!(Message::parse(NODE, &header, &body), Some(message));
            assert_eq!(Message::parse(Coords::default(), &header, &body), None, "in another name");
        }
        let (header, body) = Message::Request(request(9)).emit(NODE);
        assert_eq!(Message::parse(NODE, &header, &body[..15]), None, "cut off");
        for (at, byte) in [(0, 0x15), (0, 0x13), (5, 1), (7, 15), (2, 0xff)] {
            let mut changed = header;
            changed[at] = byte;
            let parsed = Message::parse(NODE, &changed, &body);
            assert!(parsed.is_none() || at == 2, "byte {at}");
        }
    }
}
