//! TofuD's frames and slices as bytes (TofuD paper, figures 4 to 6).
//!
//! A frame is cut in two, and its slices differ in their TLP, DLLP and other control; or it is sent
//! whole on both lanes:
//!
//! | | cut, lane n | whole |
//! |---|---|---|
//! | preamble | 8 bytes | 8 bytes |
//! | routing header | 8 bytes | 8 bytes |
//! | TLP | of each 16 bytes, the 8 at 8n | all |
//! | | DLLP 4n to 4n + 3, other control 4n to 4n + 3 | DLLP 0 to 3, other control 0 to 3 |
//! | | | DLLP 4 to 7, other control 4 to 7 |
//! | | | F, DLLP 8 to 11, zeros |
//! | | F, DLLP 8 + 4n to 11 + 4n, FCS | F, DLLP 12 to 15, FCS |
//! | gap | 8 bytes | 8 bytes |
//!
//! *Ours*: The bytes of the routing header come with the highest first. PAT is the number of slices
//! less one. A frame with LEN 0 has no TLP, only a DLLP. F marks a TLP as bad and is a byte, 0 or
//! 255. Other control is the CRC-32 of ISO 3309 of routing header and TLP (LCRC, little endian),
//! then zeros. FCS is a CRC of 24 bits (generator 0x5d6dcb, from FlexRay) of everything from the
//! routing header on, highest byte first. A frame without DLLP or other control has zeros in its
//! place.
//!
//! Two more choices are *ours*, and differ from the text of the printed figures. First, the gap
//! begins with fd, which ends a frame in Ethernet; the text has fb, which begins a frame in both.
//! Second, a cut TLP is followed by two rows; figure 6 has three. The second row of figure 6, `F,
//! DLLP 8 + 4n to 11 + 4n, zeros`, is as in figure 5, and the third, `F, DLLP 12 to 15, FCS`, is
//! the same in both slices. Two rows hold the whole DLLP once, and come closer to Table V: they
//! give 6.33 GB/s, and three rows 6.28; the paper has 6.35.
//!
//! # Fields
//!
//! A frame has a routing header of 8 bytes, the TLP, and a slot for a DLLP. The link makes two
//! slices of it, each with the routing header and its own frame check sequence (FCS), between a
//! preamble and an inter-frame gap. In *split* mode each slice has half of the TLP. In *duplicate*
//! mode both have all of it, and one of them is enough. `slice.rs` has the layout of figures 5 and
//! 6 byte by byte.
//!
//! The order of the routing header's fields is that of the figures. *Ours* are their widths and
//! positions, the empty TLP that carries a DLLP alone (LEN 0), the generators of the check
//! sequences, F as the mark of a bad TLP, the CRC of the whole frame in "other control", the first
//! byte of the gap, fd, and two rows behind a cut TLP. (The text of the figures has fb and three
//! rows, but was read from print. With three rows a long Put has 6.28 GB/s, with two 6.33; Table V
//! has 6.35.)
//!
//! | bit | 63 | 51 to 62 | 49, 50 | 46 to 48 | 44, 45 | 0 to 42 |
//! |---|---|---|---|---|---|---|
//! | field | 1 | SEQ | STAT | PAT | VC | route, as in packet buffers |

use tofu_abi::frame::{ROUTING_HEADER_SIZE, RoutingHeader, TLP_UNIT};

use crate::{Dllp, Seq};

const PREAMBLE: [u8; 8] = [0xfb, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xab];
/// The first byte is *ours*.
const GAP: [u8; 8] = [0xfd, 7, 7, 7, 7, 7, 7, 7];
/// Bytes that are cut into one row for each lane.
const CUT: usize = 16;
const ROW: usize = 8;
/// PAT of a frame that is not cut, and of one that is.
const WHOLE: u8 = 0;
const HALVES: u8 = 1;
/// F of a frame that is marked as bad.
const NULLIFIED: u8 = 0xff;
/// Bytes of the longest TLP that LEN can express.
const TLP_MAX: usize = 64 * TLP_UNIT;

/// Bytes of the longest slice, with preamble and gap.
pub const MAX_SLICE: usize = PREAMBLE.len() + ROUTING_HEADER_SIZE + TLP_MAX + 4 * ROW + GAP.len();

/// The contents of a frame of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFrame<'a> {
    /// The routing header, with the link's fields.
    pub routing: RoutingHeader,
    /// The TLP; empty if there is only a DLLP.
    pub tlp: &'a [u8],
    /// The DLLP that rides in the frame, if any.
    pub dllp: Option<Dllp>,
    /// The TLP is marked as bad.
    pub nullified: bool,
}

/// The reason why bytes are not a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A slice has no valid start or end.
    #[error("no preamble, or no gap")]
    Framing,
    /// A slice's length does not match its routing header.
    #[error("of another length than LEN and PAT say")]
    Length,
    /// PAT is unknown, or not that of the frame.
    #[error("PAT has no meaning")]
    Pattern,
    /// The slice's check sequence is wrong.
    #[error("wrong FCS")]
    Fcs,
}

/// Bytes of the TLP, as a routing header on a link says.
const fn tlp_size(routing: RoutingHeader) -> usize {
    if routing.tlp_units() == 0 { 0 } else { routing.tlp_size() }
}

/// The CRC of a slice.
fn fcs(bytes: &[u8]) -> [u8; 3] {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = (byte as u32) << 16;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc << 1) ^ if crc & 0x80_0000 != 0 { 0x5d_6dcb } else { 0 };
                bit += 1;
            }
            table[byte] = crc & 0xff_ffff;
            byte += 1;
        }
        table
    };
    let crc = bytes.iter().fold(0xff_ffff, |crc: u32, byte| {
        (crc << 8 & 0xff_ffff) ^ TABLE[(crc >> 16) as usize & 0xff ^ usize::from(*byte)]
    });
    let [_, bytes @ ..] = crc.to_be_bytes();
    bytes
}

/// The CRC of a frame, over the parts that are the same on every link.
fn lcrc(routing: RoutingHeader, tlp: &[u8]) -> [u8; 4] {
    let same = routing.with_vc(0).with_pat(0).with_stat(0).with_seq(0);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&same.0.to_be_bytes());
    crc.update(tlp);
    crc.finalize().to_le_bytes()
}

/// Writes bytes one after another. All that is written fits into [`MAX_SLICE`].
struct Writer<'a> {
    out: &'a mut [u8; MAX_SLICE],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.out.get_mut(self.at..self.at + bytes.len()) {
            place.copy_from_slice(bytes);
            self.at += bytes.len();
        }
    }
}

impl LinkFrame<'_> {
    /// Returns true if the routing header says how long the TLP is.
    pub fn is_valid(&self) -> bool {
        self.tlp.len() == tlp_size(self.routing)
    }

    /// Writes the slice for a lane, and returns its length in bytes. Fills in PAT and the first bit
    /// of the routing header.
    ///
    /// If the TLP is not as long as LEN says, no receiver accepts the slice.
    pub fn slice(&self, cut: bool, lane: u8, out: &mut [u8; MAX_SLICE]) -> usize {
        let lane = usize::from(lane & 1);
        let routing = self.routing.with_start(true).with_pat(if cut { HALVES } else { WHOLE });
        let dllp = self.dllp.map_or([0; Dllp::SIZE], Dllp::to_bytes);
        let mut control = [0; 8];
        control[..4].copy_from_slice(&lcrc(routing, self.tlp));
        let flag = [if self.nullified { NULLIFIED } else { 0 }];
        let mut writer = Writer { out, at: 0 };
        writer.put(&PREAMBLE);
        writer.put(&routing.0.to_be_bytes());
        if cut {
            for both in self.tlp.chunks_exact(CUT) {
                writer.put(&both[lane * ROW..][..ROW]);
            }
            writer.put(&dllp[4 * lane..][..4]);
            writer.put(&control[4 * lane..][..4]);
            writer.put(&flag);
            writer.put(&dllp[8 + 4 * lane..][..4]);
        } else {
            writer.put(self.tlp);
            for part in 0..2 {
                writer.put(&dllp[4 * part..][..4]);
                writer.put(&control[4 * part..][..4]);
            }
            writer.put(&flag);
            writer.put(&dllp[8..12]);
            writer.put(&[0; 3]);
            writer.put(&flag);
            writer.put(&dllp[12..]);
        }
        let fcs = fcs(writer.out.get(PREAMBLE.len()..writer.at).unwrap_or_default());
        writer.put(&fcs);
        writer.put(&GAP);
        writer.at
    }
}

/// A slice that was received intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice<'a> {
    routing: RoutingHeader,
    tlp: &'a [u8],
    tail: &'a [u8],
    fcs: [u8; 3],
}

impl<'a> Slice<'a> {
    /// Parses a slice, from the preamble to the gap.
    ///
    /// # Errors
    /// A [`Fault`] if the bytes are not a slice, or not intact.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Fault> {
        let inner = bytes.strip_prefix(&PREAMBLE).and_then(|rest| rest.strip_suffix(&GAP));
        let inner = inner.ok_or(Fault::Framing)?;
        let (checked, check) = inner.split_last_chunk().ok_or(Fault::Length)?;
        if fcs(checked) != *check {
            return Err(Fault::Fcs);
        }
        let (header, rest) = checked.split_first_chunk().ok_or(Fault::Length)?;
        let routing = RoutingHeader(u64::from_be_bytes(*header));
        if !routing.start() {
            return Err(Fault::Framing);
        }
        let size = tlp_size(routing);
        let (tlp, tail) = match routing.pat() {
            WHOLE => (size, 4 * ROW - check.len()),
            HALVES => (size / 2, 2 * ROW - check.len()),
            _ => return Err(Fault::Pattern),
        };
        if rest.len() != tlp + tail {
            return Err(Fault::Length);
        }
        let (tlp, tail) = rest.split_at(tlp);
        Ok(Self { routing, tlp, tail, fcs: *check })
    }

    /// The routing header, with the link's fields.
    pub const fn routing(&self) -> RoutingHeader {
        self.routing
    }

    /// Its check sequence.
    pub const fn fcs(&self) -> [u8; 3] {
        self.fcs
    }

    /// The first bytes of its other control: on lane 0, and for a frame that is not cut, the
    /// frame's check sequence.
    pub fn control(&self) -> [u8; 4] {
        self.tail.get(4..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default()
    }

    /// Sequence number of its frame.
    pub const fn seq(&self) -> Seq {
        Seq::new(self.routing.seq())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Parameters;

    fn tlp(units: usize) -> [u8; TLP_MAX] {
        let mut tlp = [0; TLP_MAX];
        for (n, byte) in tlp.iter_mut().enumerate().take(units * TLP_UNIT) {
            *byte = (n * 7 + n / 256) as u8;
        }
        tlp
    }

    /// Both slices of a frame.
    fn slices(frame: &LinkFrame<'_>, cut: bool) -> [([u8; MAX_SLICE], usize); 2] {
        [0, 1].map(|lane| {
            let mut bytes = [0; MAX_SLICE];
            let len = frame.slice(cut, lane, &mut bytes);
            (bytes, len)
        })
    }

    /// The reason why slices are not a frame.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Broken {
        Half,
        Lcrc,
    }

    /// A frame assembled from its slices.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Assembled {
        /// The routing header, with the link's fields.
        routing: RoutingHeader,
        /// Bytes of the TLP.
        tlp_size: usize,
        /// The DLLP that rode in the frame, if any.
        dllp: Option<Dllp>,
        /// The TLP is marked as bad.
        nullified: bool,
    }

    /// Assembles a frame from the slices of the two lanes, with its TLP at the beginning of the
    /// bytes. For a frame that was sent whole, one slice is enough.
    fn assemble(bytes: [Option<&[u8]>; 2]) -> Result<(Assembled, [u8; TLP_MAX]), Broken> {
        let is_whole = |slice: Slice<'_>| slice.routing.pat() == WHOLE;
        let mut out = [0; TLP_MAX];
        let slices = bytes.map(|bytes| bytes.and_then(|bytes| Slice::parse(bytes).ok()));
        let (dllp, control, flag, routing) = match slices {
            [Some(first), Some(second)] if !is_whole(first) => {
                // F is the same on both lanes, as is the routing header.
                if first.routing != second.routing || first.tail[ROW] != second.tail[ROW] {
                    return Err(Broken::Half);
                }
                let rows = first.tlp.chunks_exact(ROW).zip(second.tlp.chunks_exact(ROW));
                for (place, (left, right)) in out.chunks_exact_mut(CUT).zip(rows) {
                    place[..ROW].copy_from_slice(left);
                    place[ROW..].copy_from_slice(right);
                }
                let (mut dllp, mut control) = ([0; Dllp::SIZE], [0; 8]);
                for (lane, tail) in [first.tail, second.tail].into_iter().enumerate() {
                    dllp[4 * lane..][..4].copy_from_slice(&tail[..4]);
                    control[4 * lane..][..4].copy_from_slice(&tail[4..8]);
                    dllp[8 + 4 * lane..][..4].copy_from_slice(&tail[ROW + 1..]);
                }
                (dllp, control, first.tail[ROW], first.routing)
            }
            [Some(whole), _] | [None, Some(whole)] if is_whole(whole) => {
                out[..whole.tlp.len()].copy_from_slice(whole.tlp);
                let (mut dllp, mut control) = ([0; Dllp::SIZE], [0; 8]);
                for part in 0..2 {
                    dllp[4 * part..][..4].copy_from_slice(&whole.tail[ROW * part..][..4]);
                    control[4 * part..][..4].copy_from_slice(&whole.tail[ROW * part + 4..][..4]);
                    dllp[8 + 4 * part..][..4]
                        .copy_from_slice(&whole.tail[ROW * (2 + part) + 1..][..4]);
                }
                (dllp, control, whole.tail[3 * ROW], whole.routing)
            }
            _ => return Err(Broken::Half),
        };
        let tlp_size = tlp_size(routing);
        if control[..4] != lcrc(routing, &out[..tlp_size]) {
            return Err(Broken::Lcrc);
        }
        let dllp = Dllp::from_bytes(&dllp);
        Ok((Assembled { routing, tlp_size, dllp, nullified: flag == NULLIFIED }, out))
    }

    #[test]
    fn slice_follows_the_figures() {
        let tlp = tlp(3);
        let routing = RoutingHeader(0).with_tlp_units(2).with_vc(2).with_seq(0xabc);
        let dllp = Some(Dllp::Ack(Seq::new(0x123)));
        let frame = LinkFrame { routing, tlp: &tlp[..96], dllp, nullified: true };
        let [(cut, len), (second, _)] = slices(&frame, true);
        assert_eq!(len, 8 + 8 + 48 + 16 + 8);
        assert_eq!(cut[..8], PREAMBLE);
        assert_eq!(cut[8] >> 7, 1);
        assert_eq!(cut[16..24], tlp[..8]);
        assert_eq!(cut[24..32], tlp[16..24]);
        assert_eq!(second[16..24], tlp[8..16]);
        assert_eq!(cut[64..68], [1, 0, 0x23, 1]);
        assert_eq!(cut[72], 0xff);
        assert_eq!(cut[len - 8..len], GAP);
        let [(whole, len), (same, _)] = slices(&frame, false);
        assert_eq!((len, whole), (8 + 8 + 96 + 32 + 8, same));
        assert_eq!(whole[16..112], tlp[..96]);
    }

    /// The timing model relies on this.
    #[test]
    fn slices_are_as_long_as_the_parameters_say() {
        let p = Parameters::TOFUD;
        for units in [0_u8, 3, 62] {
            let tlp = tlp(units.into());
            let tlp = &tlp[..usize::from(units) * TLP_UNIT];
            let routing = RoutingHeader(0).with_tlp_units(units.saturating_sub(1));
            let frame = LinkFrame { routing, tlp, dllp: None, nullified: false };
            assert!(frame.is_valid());
            let size = (ROUTING_HEADER_SIZE + tlp.len()) as u16;
            let [(_, cut), _] = slices(&frame, true);
            assert_eq!(2 * cut as u32, p.wire_bytes(size));
            assert_eq!(p.lane_bits(size, 2), Some((cut - GAP.len()) as u32 * 8));
            let [(_, whole), _] = slices(&frame, false);
            assert_eq!(p.lane_bits(size, 1), Some((whole - GAP.len()) as u32 * 8));
        }
    }

    /// FlexRay's CRC of 24 bits is known to detect this in a frame of that many bits.
    #[test]
    fn wrong_bits_are_noticed() {
        let tlp = tlp(3);
        let routing = RoutingHeader(0).with_tlp_units(2);
        let frame = LinkFrame { routing, tlp: &tlp[..96], dllp: None, nullified: false };
        let [(bytes, len), _] = slices(&frame, true);
        let bits = len * 8;
        let flip = |bytes: &mut [u8], bit: usize| bytes[bit / 8] ^= 1 << (bit % 8);
        for first in 0..bits {
            let mut once = bytes;
            flip(&mut once, first);
            assert!(Slice::parse(&once[..len]).is_err(), "bit {first}");
            for second in first + 1..bits {
                let mut twice = once;
                flip(&mut twice, second);
                assert!(Slice::parse(&twice[..len]).is_err(), "bits {first} and {second}");
            }
        }
        assert_eq!(fcs(b""), [0xff; 3]);
    }

    #[test]
    fn slices_of_two_frames_are_no_frame() {
        let tlp = tlp(3);
        let routing = RoutingHeader(0).with_tlp_units(2);
        let first = LinkFrame { routing, tlp: &tlp[..96], dllp: None, nullified: false };
        let other = LinkFrame { routing: routing.with_seq(1), ..first };
        let changed = LinkFrame { tlp: &tlp[32..128], ..first };
        let [(left, len), _] = slices(&first, true);
        for (frame, fault) in [(&other, Broken::Half), (&changed, Broken::Lcrc)] {
            let [_, (right, _)] = slices(frame, true);
            let both = [Some(&left[..len]), Some(&right[..len])];
            assert_eq!(assemble(both).map(|_| ()), Err(fault));
        }
        assert_eq!(assemble([Some(&left[..len]), None]).map(|_| ()), Err(Broken::Half));
        let [(whole, long), _] = slices(&first, false);
        assert!(assemble([None, Some(&whole[..long])]).is_ok());
        assert_eq!(
            assemble([Some(&left[..len]), Some(&whole[..long])]).map(|_| ()),
            Err(Broken::Half)
        );
    }

    proptest! {
        #[test]
        fn every_frame_comes_back(
            units in 0_u8..64,
            routing: u64,
            number in proptest::option::of(0_u16..0x1000),
            nullified: bool,
            cut: bool,
            lost in proptest::option::of(0_usize..2),
        ) {
            let tlp = tlp(64);
            let routing = RoutingHeader(routing).with_tlp_units(units).with_start(true);
            let tlp = &tlp[..tlp_size(routing)];
            let dllp = number.map(|number| Dllp::Nack(Seq::new(number)));
            let frame = LinkFrame { routing, tlp, dllp, nullified };
            let both = slices(&frame, cut);
            let mut bytes = [0, 1].map(|lane| Some(&both[lane].0[..both[lane].1]));
            if let Some(lane) = lost {
                bytes[lane] = None;
            }
            let back = assemble(bytes);
            if cut && lost.is_some() {
                prop_assert_eq!(back.map(|_| ()), Err(Broken::Half));
            } else {
                let (frame, out) = back.expect("enough of it came");
                prop_assert_eq!(&out[..frame.tlp_size], tlp);
                let routing = routing.with_pat(cut.into());
                prop_assert_eq!(frame, Assembled { routing, tlp_size: tlp.len(), dllp, nullified });
            }
        }
    }
}
