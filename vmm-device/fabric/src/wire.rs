//! Packets as bytes, for cables between processes.
//!
//! Numbers are little-endian. A packet's body encodes and decodes itself ([`Wire`]). A packet that
//! no device could have sent is refused: for its size, for ids in it, or for a class that does not
//! match its content. The fabric and the target decide what an accepted packet may do.

use tofu_abi::{Coords, Path, TniId};

use crate::{Class, Crossing, NodeId, Packet, Port, SENDERS, Way};

/// Most bytes that a packet takes in addition to its body.
const HEADER: usize = 128;

/// The reason why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They are truncated.
    #[error("the packet is truncated")]
    Short,
    /// There are bytes after its end.
    #[error("trailing bytes after the packet")]
    Long,
    /// A field has a value that no device sends.
    #[error("invalid value for {0}")]
    Field(&'static str),
}

/// The memory that a body refers to has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory with the packet's data is gone")]
pub struct Vanished;

/// Bodies of packets that can go over cables.
pub trait Wire: Sized {
    /// Most bytes that a body takes.
    const MOST_BYTES: usize;
    /// Most TLPs of a packet.
    const MOST_TLPS: u32;
    /// The virtual channels that packets with a way of one hop name.
    const CHANNELS: u8;

    /// The class of packets with this body.
    fn class(&self) -> Class;

    /// Appends the body. Its data is read from the sender's memory here.
    ///
    /// # Errors
    ///
    /// [`Vanished`] if that memory has gone.
    fn write(&self, to: &mut Writer<'_>) -> Result<(), Vanished>;

    /// Reads a body.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if no device sends such bytes.
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed>;

    /// The body without its data, as a report of a lost packet needs it.
    #[must_use]
    fn without_data(&self) -> Self;
}

/// Most bytes that one packet takes.
pub const fn most_bytes<B: Wire>() -> usize {
    HEADER + B::MOST_BYTES
}

/// Appends a packet to `out`.
///
/// # Errors
///
/// [`Vanished`] if the memory with its data has gone; `out` is then unchanged.
pub fn encode<B: Wire>(crossing: &Crossing<B>, out: &mut Vec<u8>) -> Result<(), Vanished> {
    let start = out.len();
    let mut writer = Writer(out);
    writer.header(crossing);
    let written = crossing.packet.body.write(&mut writer);
    if written.is_err() {
        out.truncate(start);
    }
    written
}

/// Decodes a packet.
///
/// # Errors
///
/// [`Malformed`] if no device sends such bytes.
pub fn decode<B: Wire>(bytes: &[u8]) -> Result<Crossing<B>, Malformed> {
    let mut reader = Reader(bytes);
    let crossing = reader.crossing()?;
    if reader.0.is_empty() { Ok(crossing) } else { Err(Malformed::Long) }
}

/// Appends what a packet consists of.
pub struct Writer<'a>(&'a mut Vec<u8>);

#[expect(missing_docs, reason = "the names say it")]
impl Writer<'_> {
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Appends this many bytes, which the caller fills in.
    pub fn space(&mut self, bytes: usize) -> &mut [u8] {
        let start = self.0.len();
        self.0.resize(start + bytes, 0);
        &mut self.0[start..]
    }

    fn header<B>(&mut self, crossing: &Crossing<B>) {
        let Crossing { packet, hops, held, duplicated } = crossing;
        self.u32(*hops);
        self.u32(held.map_or(0, |others| others.saturating_add(1)));
        self.u8(u8::from(*duplicated) | u8::from(packet.system) << 1);
        self.bytes(&packet.src.to_array());
        self.u8(packet.src_tni.get());
        self.bytes(&packet.dst.to_array());
        self.u8(packet.dst_tni);
        self.bytes(&[packet.path.a, packet.path.b, packet.path.c]);
        match packet.way {
            Way::Shortest => self.bytes(&[0; 4]),
            Way::Distances([x, y, z]) => self.bytes(&[1, x as u8, y as u8, z as u8]),
            Way::Hop { port, vc, nullified } => {
                self.bytes(&[2, port.index() as u8, vc, nullified.into()]);
            }
        }
        self.bytes(&[packet.gap, packet.sender]);
        self.u32(packet.tlps);
        self.u32(packet.tlp_bytes);
        self.u32(packet.before);
        self.u32(packet.bad.unwrap_or(NodeId::NOWHERE).0);
        self.u64(packet.bytes);
        self.u64(packet.model_ps);
    }
}

/// The rest of the bytes of a packet.
pub struct Reader<'a>(&'a [u8]);

#[expect(missing_docs, clippy::missing_errors_doc, reason = "the names say it")]
impl Reader<'_> {
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// True if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of bytes that are left.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The remaining bytes, if there are at most `most` of them.
    pub fn rest(&mut self, most: usize, what: &'static str) -> Result<Box<[u8]>, Malformed> {
        if self.0.len() > most {
            return Err(Malformed::Field(what));
        }
        Ok(std::mem::take(&mut self.0).into())
    }

    fn crossing<B: Wire>(&mut self) -> Result<Crossing<B>, Malformed> {
        let hops = self.u32()?;
        let held = self.u32()?.checked_sub(1);
        let flags = self.u8()?;
        let src = Coords::from_array(self.array()?);
        let src_tni = TniId::new(self.u8()?).ok_or(Malformed::Field("interface"))?;
        let dst = Coords::from_array(self.array()?);
        let dst_tni = self.u8()?;
        let [a, b, c] = self.array()?;
        let way = match self.array()? {
            [0, 0, 0, 0] => Way::Shortest,
            [1, x, y, z] => Way::Distances([x as i8, y as i8, z as i8]),
            [2, port, vc, bad @ 0..=1] if vc < B::CHANNELS => {
                let port = Port::from_index(port.into()).ok_or(Malformed::Field("port"))?;
                Way::Hop { port, vc, nullified: bad == 1 }
            }
            _ => return Err(Malformed::Field("way")),
        };
        let [gap, sender] = self.array()?;
        let (tlps, tlp_bytes, before) = (self.u32()?, self.u32()?, self.u32()?);
        let bad = Some(NodeId(self.u32()?)).filter(|node| *node != NodeId::NOWHERE);
        let (bytes, model_ps) = (self.u64()?, self.u64()?);
        let body = B::read(self)?;
        let (class, system) = (body.class(), flags & 2 != 0);
        let fields = [
            ("flags", flags <= 3),
            ("sender", usize::from(sender) < SENDERS),
            ("number of TLPs", (1..=B::MOST_TLPS).contains(&tlps)),
            ("system", !system || class == Class::System),
        ];
        if let Some((what, _)) = fields.into_iter().find(|(_, right)| !right) {
            return Err(Malformed::Field(what));
        }
        let path = Path::new(a, b, c);
        let packet = Packet {
            src,
            src_tni,
            dst,
            dst_tni,
            path,
            way,
            class,
            system,
            tlps,
            bytes,
            tlp_bytes,
            gap,
            sender,
            before,
            bad,
            model_ps,
            body,
        };
        Ok(Crossing { packet, hops, held, duplicated: flags & 1 != 0 })
    }
}
