//! The user's selection of packets.

use std::str::FromStr;

use tofu_fabric::{Port, TNIS, TapPoint};
use tofu_machine::Interconnect;
use tofu_machine::capture::{INTERFACES, PacketKind, interface, interface_bits, place};

/// Points of a node where packets are seen, a bit for each interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturePoints(pub u32);

impl CapturePoints {
    /// All of them.
    pub const ALL: Self = Self((1 << INTERFACES) - 1);
    /// The points that nodes of this kind have; `None` if there are none.
    pub fn of(self, interconnect: Interconnect) -> Option<Self> {
        Some(Self(self.0 & interface_bits(interconnect))).filter(|points| points.0 != 0)
    }

    const ALLOWED: &str =
        "tni, tni0 to tni5, port, or a port: A, C, B-, B+, X-, X+, Y-, Y+, Z-, Z+";
}

impl FromStr for CapturePoints {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bits = |wanted: &dyn Fn(TapPoint) -> bool| {
            let chosen = (0..INTERFACES).filter(|n| place(*n).is_some_and(wanted));
            chosen.fold(0, |bits, n| bits | 1 << n)
        };
        let name = text.to_ascii_uppercase();
        let port = Port::from_name(&name);
        let tni = name.strip_prefix("TNI").and_then(|n| n.parse::<u8>().ok());
        let bits = match (name.as_str(), port, tni) {
            ("TNI", ..) => bits(&|place| matches!(place, TapPoint::Tni(_))),
            ("PORT", ..) => bits(&|place| matches!(place, TapPoint::Port(_))),
            (_, Some(port), _) => 1 << interface(TapPoint::Port(port)).unwrap_or_default(),
            (_, _, Some(tni)) if usize::from(tni) < TNIS => 1 << tni,
            _ => return Err(Self::ALLOWED),
        };
        Ok(Self(bits))
    }
}

/// Kinds of packets, a bit for each code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketKinds(pub u32);

impl PacketKinds {
    /// All of them.
    pub const ALL: Self = Self(u32::MAX);
    const ALLOWED: &str = "system, raw, put, get, atomic, answer, barrier, or dllp; of TNW data, \
                           hello, ack, nack, or restart";
}

impl FromStr for PacketKinds {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let kinds: &[PacketKind] = match text {
            "system" => &[PacketKind::System],
            "raw" => &[PacketKind::Raw],
            "put" => &[PacketKind::Put],
            "get" => &[PacketKind::Get],
            "atomic" => &[PacketKind::Atomic],
            "answer" => &[PacketKind::PutAnswer, PacketKind::GetAnswer, PacketKind::AtomicAnswer],
            "barrier" => &[PacketKind::Signal],
            "dllp" => &[PacketKind::Dllp],
            "data" => &[PacketKind::TnwData],
            "hello" => &[PacketKind::TnwHello],
            "ack" => &[PacketKind::TnwAck],
            "nack" => &[PacketKind::TnwNack],
            "restart" => &[PacketKind::TnwRestart],
            _ => return Err(Self::ALLOWED),
        };
        Ok(Self(kinds.iter().fold(0, |bits, kind| bits | 1 << *kind as u8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_abi::Generation;

    #[test]
    fn places_have_names() {
        let bits = |text: &str| text.parse::<CapturePoints>().map(|places| places.0);
        assert_eq!(bits("tni"), Ok(0x3f));
        assert_eq!(bits("port"), Ok(0xffc0));
        assert_eq!(bits("tni5"), Ok(1 << 5));
        assert_eq!((bits("A"), bits("z+")), (Ok(1 << 6), Ok(1 << 15)));
        for text in ["", "tni6", "tni-1", "D", "port0"] {
            assert_eq!(bits(text), Err(CapturePoints::ALLOWED), "{text}");
        }
    }

    #[test]
    fn places_are_those_of_the_generation() {
        let of = |points: u32, generation| CapturePoints(points).of(Interconnect::Tofu(generation));
        let tnw = CapturePoints::ALL.of(Interconnect::Tnw);
        assert_eq!(tnw, Some(CapturePoints(0x3f << (TNIS + Port::XMinus.index()))));
        assert_eq!(CapturePoints(0x3f).of(Interconnect::Tnw), None);
        assert_eq!(of(0x3f, Generation::K), Some(CapturePoints(0xf)));
        assert_eq!(of(1 << 4, Generation::Fx100), None);
        assert_eq!(of(1 << 4, Generation::Fugaku), Some(CapturePoints(1 << 4)));
        assert_eq!(of(1 << 15, Generation::K), Some(CapturePoints(1 << 15)));
    }

    #[test]
    fn kinds_have_names() {
        let bits = |text: &str| text.parse::<PacketKinds>().map(|kinds| kinds.0);
        assert_eq!((bits("system"), bits("answer")), (Ok(2), Ok(0b1_1100_0000)));
        assert_eq!(bits("ip"), Err(PacketKinds::ALLOWED));
    }
}
