//! The units that cross a link: data packets and commands.

use std::sync::Arc;

use tofu_abi::tnw::{
    CHANNELS, Channel, Header, PACKET_DATA, PACKET_SIZE, RECEPTION_FIFO, SEQUENCES,
};
use tofu_fabric::wire::{Malformed, Reader, Vanished, Wire, Writer};
use tofu_fabric::{Class, Disturb};

use crate::payload::{Borrowed, Payload};

/// Size of a command on a link, in bytes (ours; the paper's commands are 8b/10b control symbols).
pub const CONTROL_SIZE: usize = 32;
/// The most packets that cross a link together.
pub const MAX_RUN: u16 = RECEPTION_FIFO as u16;

/// The lives of the two ends of a link: the sender's, then the receiver's. Each reset of an end
/// begins a new life.
///
/// Check sequences cover the session although it is not sent (ours), so packets from before a reset
/// do not match after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Life of the sending end.
    pub from: u16,
    /// Life of the receiving end; 0 if it is not known.
    pub to: u16,
}

impl Session {
    fn digest(self) -> crc32fast::Hasher {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.from.to_le_bytes());
        hasher.update(&self.to.to_le_bytes());
        hasher
    }
}

/// The check sequence of a unit on a link.
///
/// Most packets never leave this process. There it is enough to know that the sequence would match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// It matches the contents.
    Fits,
    /// It has this value: CRC-32 (IEEE 802.3; the polynomial is ours).
    Sent(u32),
}

/// A run of consecutive packets of one message. It is one packet, or several where that makes no
/// difference. A long run costs no more than one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// Header of the first packet. Its mark of the last packet is that of the run's last packet.
    pub(crate) header: Header,
    pub(crate) session: Session,
    pub(crate) check: Check,
    /// Data of the packets, [`PACKET_DATA`] bytes each.
    pub(crate) payload: Payload,
}

impl Data {
    /// A run whose first packet has this offset in its message. `payload` is truncated to whole
    /// packets, [`MAX_RUN`] at most.
    pub fn new(channel: Channel, offset: u16, last: bool, payload: Arc<[u8]>) -> Self {
        Self::of(channel, offset, last, Payload::of(payload))
    }

    /// Like [`Data::new`], for memory that is read when the data is used.
    pub(crate) fn borrowed(channel: Channel, offset: u16, last: bool, borrowed: Borrowed) -> Self {
        Self::of(channel, offset, last, Payload::borrowed(borrowed))
    }

    fn of(channel: Channel, offset: u16, last: bool, mut payload: Payload) -> Self {
        let header =
            Header(0).with_channel(channel.index() as u8).with_offset(offset).with_last(last);
        let whole = payload.len() / PACKET_DATA * PACKET_DATA;
        payload.truncate(whole.min(usize::from(MAX_RUN) * PACKET_DATA));
        Self { header, session: Session { from: 0, to: 0 }, check: Check::Fits, payload }
    }

    /// The virtual channel.
    pub fn channel(&self) -> Channel {
        Channel::ALL[usize::from(self.header.channel()) % CHANNELS]
    }

    /// Number of packets in the run.
    pub fn packets(&self) -> u16 {
        (self.payload.len() / PACKET_DATA) as u16
    }

    /// Offset of the first packet in its message, in packets.
    pub fn offset(&self) -> u16 {
        self.header.offset()
    }

    /// Returns true if the run ends its message.
    pub fn is_last(&self) -> bool {
        self.header.last()
    }

    /// The data of all packets.
    pub fn payload(&self) -> &[u8] {
        self.payload.bytes()
    }

    pub(crate) fn sequence(&self) -> u16 {
        self.header.sequence()
    }

    pub(crate) fn seal(&mut self, sequence: u16, session: Session) {
        self.header = self.header.with_sequence(sequence % SEQUENCES);
        self.session = session;
        self.check = Check::Fits;
    }

    /// Removes packets from the beginning of a run whose check sequence matches; never all of them.
    pub(crate) fn skip(&mut self, packets: u16) {
        let bytes = usize::from(packets) * PACKET_DATA;
        if packets == 0 || bytes > self.payload.len() {
            return;
        }
        self.payload.skip(bytes);
        self.header = self
            .header
            .with_sequence((self.header.sequence() + packets) % SEQUENCES)
            .with_offset(self.header.offset().wrapping_add(packets));
        self.check = Check::Fits;
    }

    /// The check sequence that a receiver in `session` expects.
    fn crc(&self, session: Session) -> u32 {
        let mut hasher = session.digest();
        hasher.update(&(self.header.0 as u32).to_le_bytes());
        hasher.update(self.payload());
        hasher.finalize()
    }

    pub(crate) fn fits(&self, session: Session) -> bool {
        match self.check {
            Check::Fits => self.session == session,
            Check::Sent(crc) => self.crc(session) == crc,
        }
    }

    /// Encodes the packets as on a link, [`PACKET_SIZE`] bytes each (section 2.2).
    pub fn to_wire(&self) -> impl Iterator<Item = [u8; PACKET_SIZE]> + '_ {
        let packets = self.packets();
        (0..packets).zip(self.payload().chunks_exact(PACKET_DATA)).map(move |(index, data)| {
            let header = self
                .header
                .with_sequence((self.header.sequence() + index) % SEQUENCES)
                .with_offset(self.header.offset().wrapping_add(index))
                .with_last(self.header.last() && index + 1 == packets);
            let header = (header.0 as u32).to_le_bytes();
            let mut hasher = self.session.digest();
            hasher.update(&header);
            hasher.update(data);
            let crc = match self.check {
                Check::Sent(crc) if packets == 1 => crc,
                // Damage to one packet of a run damages all of it.
                Check::Sent(_) if !self.fits(self.session) => !hasher.finalize(),
                _ => hasher.finalize(),
            };
            let mut bytes = [0; PACKET_SIZE];
            bytes[..4].copy_from_slice(&header);
            bytes[4..4 + PACKET_DATA].copy_from_slice(data);
            bytes[4 + PACKET_DATA..].copy_from_slice(&crc.to_le_bytes());
            bytes
        })
    }
}

/// The kinds of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ControlKind {
    /// Announces an end and its life (ours).
    Hello = 0,
    /// Everything before the sequence number has arrived (section 2.2).
    Ack = 1,
    /// Like `Ack`; everything from the sequence number on is discarded until RESTART (section 2.2).
    Nack = 2,
    /// Packets are retransmitted, from the sequence number on (section 2.2).
    Restart = 3,
}

/// A command on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    pub(crate) kind: ControlKind,
    pub(crate) session: Session,
    pub(crate) sequence: u16,
    /// The total number of packets that each channel may have sent in this session, modulo 2^16:
    /// those that have arrived plus the available room (ours; the paper says only that full buffers
    /// stall their senders).
    pub(crate) limits: [u16; CHANNELS],
    pub(crate) check: Check,
}

impl Control {
    /// The kind of command.
    pub const fn kind(&self) -> ControlKind {
        self.kind
    }

    fn contents(&self) -> [u8; CONTROL_SIZE - 4] {
        let mut bytes = [0; CONTROL_SIZE - 4];
        bytes[0] = self.kind as u8;
        let words = [self.session.from, self.session.to, self.sequence];
        for (place, word) in bytes[2..].chunks_exact_mut(2).zip(words.iter().chain(&self.limits)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn fits(&self) -> bool {
        match self.check {
            Check::Fits => true,
            Check::Sent(crc) => crc32fast::hash(&self.contents()) == crc,
        }
    }

    /// Encodes the command as on a link.
    pub fn to_wire(&self) -> [u8; CONTROL_SIZE] {
        let contents = self.contents();
        let crc = match self.check {
            Check::Fits => crc32fast::hash(&contents),
            Check::Sent(crc) => crc,
        };
        let mut bytes = [0; CONTROL_SIZE];
        bytes[..CONTROL_SIZE - 4].copy_from_slice(&contents);
        bytes[CONTROL_SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// A unit on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets.
    Data(Data),
    /// A command.
    Control(Control),
}

impl Unit {
    /// Number of packets; 1 for a command.
    pub fn packets(&self) -> u32 {
        match self {
            Self::Data(data) => data.packets().into(),
            Self::Control(_) => 1,
        }
    }

    /// Size on a link, in bytes.
    pub fn wire_bytes(&self) -> u64 {
        match self {
            Self::Data(data) => u64::from(data.packets()) * PACKET_SIZE as u64,
            Self::Control(_) => CONTROL_SIZE as u64,
        }
    }

    /// Decodes one packet or command. `None` if no unit has that length or the command is unknown.
    /// The check sequence may be wrong; the link checks it.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let check = Check::Sent(u32::from_le_bytes(*bytes.last_chunk()?));
        match bytes.len() {
            PACKET_SIZE => {
                let header = u32::from_le_bytes(*bytes.first_chunk()?);
                let payload = Payload::of(bytes.get(4..4 + PACKET_DATA)?.into());
                let session = Session { from: 0, to: 0 };
                Some(Self::Data(Data { header: Header(header.into()), session, check, payload }))
            }
            CONTROL_SIZE => {
                let kinds =
                    [ControlKind::Hello, ControlKind::Ack, ControlKind::Nack, ControlKind::Restart];
                let kind = *kinds.get(usize::from(*bytes.first()?))?;
                let mut limits = [0; CHANNELS];
                for (limit, at) in limits.iter_mut().zip((8..).step_by(2)) {
                    *limit = word(at)?;
                }
                let session = Session { from: word(2)?, to: word(4)? };
                let sequence = word(6)? % SEQUENCES;
                Some(Self::Control(Control { kind, session, sequence, limits, check }))
            }
            _ => None,
        }
    }
}

/// First bytes of units on cables.
const DATA: u8 = 0;
const CONTROL: u8 = 1;

/// Units on cables between processes *(ours)*: a run of packets goes as one, with one check
/// sequence, which the receiver verifies.
impl Wire for Unit {
    const MOST_BYTES: usize = 9 + MAX_RUN as usize * PACKET_DATA;
    const MOST_TLPS: u32 = MAX_RUN as u32;
    const CHANNELS: u8 = CHANNELS as u8;

    fn class(&self) -> Class {
        Class::System
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), Vanished> {
        match self {
            Self::Data(data) => {
                let crc = match data.check {
                    Check::Fits => data.crc(data.session),
                    Check::Sent(crc) => crc,
                };
                to.u8(DATA);
                to.u32(data.header.0 as u32);
                to.u32(crc);
                to.bytes(data.payload());
            }
            Self::Control(control) => {
                to.u8(CONTROL);
                to.bytes(&control.to_wire());
            }
        }
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let unit = match from.u8()? {
            DATA => {
                let (header, check) = (Header(from.u32()?.into()), Check::Sent(from.u32()?));
                let bytes = from.rest(usize::from(MAX_RUN) * PACKET_DATA, "length of the data")?;
                let whole = !bytes.is_empty() && bytes.len().is_multiple_of(PACKET_DATA);
                let payload = whole.then(|| Payload::of(bytes.into()));
                let session = Session { from: 0, to: 0 };
                payload.map(|payload| Self::Data(Data { header, session, check, payload }))
            }
            CONTROL => Self::from_wire(&from.array::<CONTROL_SIZE>()?),
            _ => return Err(Malformed::Field("kind")),
        };
        unit.ok_or(Malformed::Field("unit"))
    }

    /// The link's protocol notices a lost unit, so nothing reports one.
    fn without_data(&self) -> Self {
        self.clone()
    }
}

impl Disturb for Unit {
    fn duplicate(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn invert(&mut self, bits: &[u32]) -> bool {
        let mut wire = match self {
            Self::Data(data) => match data.to_wire().collect::<Vec<_>>()[..] {
                [packet] => packet.to_vec(),
                // A run of packets, which was sent before the link had errors.
                _ => {
                    self.damage(bits.first().copied().unwrap_or_default().into(), false);
                    return true;
                }
            },
            Self::Control(control) => control.to_wire().to_vec(),
        };
        for bit in bits {
            if let Some(byte) = wire.get_mut((bit / 8) as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
        let unit = Self::from_wire(&wire);
        unit.map(|unit| *self = unit).is_some()
    }

    fn damage(&mut self, random: u64, undetected: bool) -> bool {
        let bit = |len: usize| ((random >> 8) as usize % len, 1 << (random & 7));
        match self {
            Self::Data(data) => {
                let crc = match data.check {
                    Check::Fits => data.crc(data.session),
                    Check::Sent(crc) => crc,
                };
                let mut payload = data.payload().to_vec();
                let (at, bit) = bit(payload.len().max(1));
                let Some(byte) = payload.get_mut(at) else { return false };
                *byte ^= bit;
                data.payload = Payload::of(payload.into());
                if !undetected {
                    data.check = Check::Sent(crc);
                }
                true
            }
            // A command has no payload.
            Self::Control(_) if undetected => false,
            Self::Control(control) => {
                let crc = match control.check {
                    Check::Fits => crc32fast::hash(&control.contents()),
                    Check::Sent(crc) => crc,
                };
                control.sequence ^= 1 << (random % 12);
                control.check = Check::Sent(crc);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tofu_abi::{Coords, Path, TniId};
    use tofu_fabric::wire::{decode, encode, most_bytes};
    use tofu_fabric::{Crossing, Packet, Port, Way};

    use super::*;

    const SESSION: Session = Session { from: 3, to: 5 };

    fn run(packets: u8) -> Data {
        let payload: Vec<u8> = (0..packets).flat_map(|n| [n; PACKET_DATA]).collect();
        let mut data = Data::new(Channel::ALL[6], 9, true, payload.into());
        data.seal(SEQUENCES - 1, SESSION);
        data
    }

    #[test]
    fn run_equals_its_packets_in_sequence() {
        let packets: Vec<_> = run(3).to_wire().collect();
        assert_eq!(packets.len(), 3);
        for (index, bytes) in (0..3).zip(packets) {
            let Some(Unit::Data(data)) = Unit::from_wire(&bytes) else { panic!("data") };
            assert!(data.fits(SESSION));
            assert!(!data.fits(Session { from: 3, to: 4 }), "of another life");
            assert_eq!(data.channel(), Channel::ALL[6]);
            assert_eq!(data.offset(), 9 + index);
            assert_eq!(data.sequence(), (SEQUENCES - 1 + index) % SEQUENCES);
            assert_eq!(data.is_last(), index == 2);
            assert_eq!(data.payload(), [index as u8; PACKET_DATA]);
        }
    }

    #[test]
    fn units_survive_cables() {
        let crossing = |body: Unit| {
            let (src, way) =
                (Coords::default(), Way::Hop { port: Port::ZPlus, vc: 7, nullified: false });
            let packet = Packet {
                src,
                src_tni: TniId::ALL[0],
                dst: src,
                dst_tni: 0,
                path: Path::default(),
                way,
                class: body.class(),
                system: false,
                tlps: body.packets(),
                bytes: body.wire_bytes(),
                tlp_bytes: PACKET_SIZE as u32,
                gap: 0,
                sender: 7,
                before: 0,
                bad: None,
                model_ps: 0,
                body,
            };
            Crossing { packet, hops: 1, held: None, duplicated: false }
        };
        let mut damaged = Unit::Data(run(2));
        assert!(damaged.damage(77 << 8, false));
        for (unit, fits) in [(Unit::Data(run(3)), true), (damaged, false)] {
            let mut bytes = Vec::new();
            encode(&crossing(unit.clone()), &mut bytes).unwrap();
            assert!(bytes.len() <= most_bytes::<Unit>());
            let found = decode::<Unit>(&bytes).unwrap();
            let (Unit::Data(sent), Unit::Data(got)) = (&unit, &found.packet.body) else {
                panic!("data")
            };
            assert_eq!((got.header, got.payload()), (sent.header, sent.payload()));
            assert_eq!(got.fits(SESSION), fits);
            assert!(!got.fits(Session { from: 3, to: 4 }), "of another life");
            for cut in [1, PACKET_DATA, bytes.len()] {
                let shorter = decode::<Unit>(&bytes[..bytes.len() - cut]);
                let whole = cut == PACKET_DATA;
                assert_eq!(shorter.is_ok(), whole, "without {cut} bytes");
            }
        }
        let control = Control {
            kind: ControlKind::Hello,
            session: SESSION,
            sequence: 5,
            limits: [7; CHANNELS],
            check: Check::Fits,
        };
        let mut bytes = Vec::new();
        encode(&crossing(Unit::Control(control)), &mut bytes).unwrap();
        let found = decode::<Unit>(&bytes).unwrap();
        let Unit::Control(read) = found.packet.body else { panic!("a command") };
        assert!(read.fits() && Control { check: Check::Fits, ..read } == control);
        bytes.push(0);
        assert_eq!(decode::<Unit>(&bytes), Err(Malformed::Long));
    }

    #[test]
    fn commands_survive_the_wire() {
        let control = Control {
            kind: ControlKind::Nack,
            session: SESSION,
            sequence: 77,
            limits: [1, 2, 3, 4, 5, 6, 7, 65535],
            check: Check::Fits,
        };
        let Some(Unit::Control(read)) = Unit::from_wire(&control.to_wire()) else {
            panic!("a command")
        };
        assert!(read.fits());
        assert_eq!(Control { check: Check::Fits, ..read }, control);
        let mut bytes = control.to_wire();
        bytes[0] = 4;
        assert_eq!(Unit::from_wire(&bytes), None);
        assert_eq!(Unit::from_wire(&bytes[1..]), None);
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let [packet] = run(1).to_wire().collect::<Vec<_>>()[..] else { panic!("one packet") };
        for bit in 0..PACKET_SIZE * 8 {
            let mut bytes = packet;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let Some(Unit::Data(data)) = Unit::from_wire(&bytes) else { panic!("data") };
            assert!(!data.fits(SESSION), "bit {bit}");
        }
    }

    #[test]
    fn damage_is_seen_unless_undetected() {
        for random in 0..100 {
            let mut unit = Unit::Data(run(2));
            assert!(unit.damage(random << 3, false));
            let Unit::Data(data) = &unit else { panic!("data") };
            assert!(!data.fits(SESSION));
            let mut unit = Unit::Data(run(2));
            assert!(unit.damage(random << 3, true));
            let Unit::Data(data) = &unit else { panic!("data") };
            assert!(data.fits(SESSION) && *data != run(2));
        }
    }
}
