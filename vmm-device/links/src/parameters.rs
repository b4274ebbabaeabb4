//! The parameters of each generation's links.

use tofu_abi::Generation;
use tofu_abi::frame::ROUTING_HEADER_SIZE;
use tofu_abi::generation::{Description, Link};

/// A time or a duration in picoseconds.
pub type Ps = u64;

/// Room that a frame takes in a buffer, in rows of the data path. A row is
/// [`Parameters::row`] bytes.
pub type Rows = u8;

/// The layout of a frame on the lanes of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slicing {
    /// Over all lanes; the link fails if one does (Tofu).
    Striped,
    /// Over the lanes that work; a lane that has failed stays out of use (Tofu2: TofuD paper,
    /// IV.E).
    Degrading,
    /// Cut into a slice for each lane, or whole on each (TofuD: TofuD paper, IV.E).
    Dynamic,
}

/// The links of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The interconnect's name.
    pub name: &'static str,
    /// The layout of frames on lanes.
    pub slicing: Slicing,
    /// Lanes of one direction.
    pub lanes: u8,
    /// Bits that a lane moves, in kbit/s.
    pub lane_kbps: u32,
    /// Data bits, and the bits that code them.
    pub coding: (u8, u8),
    /// Clock of the logic, in kHz.
    pub clock_khz: u32,
    /// The width of the data path in bytes; each part of a frame is aligned to it.
    pub row: u8,
    /// Bytes in front of the TLP: preamble and routing header, or sequence number and routing
    /// header. For [`Slicing::Dynamic`], this and the next are bytes of one slice.
    pub head: u8,
    /// Bytes behind the TLP, including the place of a DLLP and the check sequence.
    pub tail: u8,
    /// The same for a frame that is sent whole on each lane.
    pub tail_whole: u8,
    /// Bytes between two frames.
    pub gap: u8,
    /// Bytes of frames that a sender keeps until they are acknowledged.
    pub replay_bytes: u32,
    /// Bytes of the receive queue of one virtual channel.
    pub queue_bytes: u32,
    /// Time from the first bit at one end to the same bit in the logic at the other: serialisers,
    /// coding and cable.
    pub link_ps: Ps,
    /// Time through the crossbar of a node.
    pub switch_ps: Ps,
    /// The time for which a sender waits for an acknowledgement, or for credit, before it acts.
    pub timeout_ps: Ps,
}

/// Bytes of the routing header, which begins every frame.
const ROUTING_HEADER: u32 = ROUTING_HEADER_SIZE as u32;

const K: &Description = Generation::K.description();
const FX100: &Description = Generation::Fx100.description();
const FUGAKU: &Description = Generation::Fugaku.description();

impl Parameters {
    /// Tofu (K computer, FX10).
    ///
    /// 8 lanes of 6.25 Gbit/s give 5.0 GB/s and the logic runs at 312.5 MHz (IEEE Micro 2012), on
    /// 16 bytes (TofuD paper, V.D): as much as the lanes move if 8 bits are sent as 10. Buffers are
    /// those of IEEE Micro 2012. A hop is 100 ns ("Tofu: Interconnect for the K computer",
    /// Fujitsu). *Ours*: the switch's share of a hop, the timeout, and what a frame has besides the
    /// TLP: a row with routing header and sequence number, and a row with CRC and DLLP.
    pub const TOFU: Self = Self {
        name: K.interconnect,
        slicing: Slicing::Striped,
        lanes: K.link.lanes,
        lane_kbps: K.link.lane_kbps,
        coding: K.link.coding,
        clock_khz: K.clock_khz,
        row: K.alignment,
        head: 16,
        tail: 16,
        tail_whole: 16,
        gap: 0,
        replay_bytes: 8 << 10,
        queue_bytes: 8 << 10,
        link_ps: 80_800,
        switch_ps: 19_200,
        timeout_ps: 4_000_000,
    };

    /// Tofu2 (FX100).
    ///
    /// 4 lanes of 25.78125 Gbit/s give 12.5 GB/s (TofuD paper, Table I), by the coding of 100 Gbit
    /// Ethernet (IV.E), on 32 bytes (V.D), which is 390.625 MHz: TofuD's 425 MHz are 9 % more
    /// (IV.C). A link and switches take 0.2 us longer than Tofu's (V.B). *Ours*: buffers twice as
    /// large as Tofu's, because links between neighbours would otherwise wait for credit and
    /// acknowledgements; the switch's share of a hop; the timeout; and preamble, control and gap as
    /// TofuD's, each aligned to a row.
    pub const TOFU2: Self = Self {
        name: FX100.interconnect,
        slicing: Slicing::Degrading,
        lanes: FX100.link.lanes,
        lane_kbps: FX100.link.lane_kbps,
        coding: FX100.link.coding,
        clock_khz: FX100.clock_khz,
        row: FX100.alignment,
        head: 16,
        tail: 24,
        tail_whole: 24,
        gap: 8,
        replay_bytes: 16 << 10,
        queue_bytes: 16 << 10,
        link_ps: 284_640,
        switch_ps: 15_360,
        ..Self::TOFU
    };

    /// TofuD (Fugaku).
    ///
    /// 2 lanes of 28.05 Gbit/s give 6.8 GB/s (TofuD paper, Table I) if 64 bits are sent as 66. The
    /// logic runs at 425 MHz on 16 bytes (IV.C, V.D), and a frame is cut as in figures 4 to 6. A
    /// hop takes nearly as long as Tofu's (V.B). *Ours*: buffers as Tofu's, the switch's share of a
    /// hop, the timeout, and that the gap is the one row of figures 5 and 6.
    pub const TOFUD: Self = Self {
        name: FUGAKU.interconnect,
        slicing: Slicing::Dynamic,
        lanes: FUGAKU.link.lanes,
        lane_kbps: FUGAKU.link.lane_kbps,
        coding: FUGAKU.link.coding,
        clock_khz: FUGAKU.clock_khz,
        row: FUGAKU.alignment,
        head: 16,
        tail: 16,
        tail_whole: 32,
        gap: 8,
        link_ps: 85_882,
        switch_ps: 14_118,
        ..Self::TOFU
    };

    /// TNW (section 2.2 of its paper).
    ///
    /// XAUI with a bit rate of 10 Gbit/s: 4 lanes of 2.5 Gbit/s, which send 8 bits as 10. The logic
    /// has 32 bits at 250 MHz. A packet of 128 bytes of data has 8 more, and the link moves 0.91
    /// GB/s of data. Of the 0.6 us from processor to processor 0.24 are the transceivers' (section
    /// 4), and 0.14 the packet's own. *Ours*: a row more for each packet, which makes the 0.91
    /// GB/s; the switch's share of the rest; and replay, credits and timeout of the model's links,
    /// which are large enough never to delay TNW's own protocol.
    pub const TNW: Self = Self {
        name: "TNW",
        slicing: Slicing::Striped,
        lanes: 4,
        lane_kbps: 2_500_000,
        coding: (8, 10),
        clock_khz: 250_000,
        row: 4,
        head: 0,
        tail: 4,
        tail_whole: 4,
        gap: 0,
        link_ps: 240_000,
        switch_ps: 220_000,
        ..Self::TOFU
    };

    /// All generations of Tofu.
    pub const ALL: [Self; 3] = [Self::TOFU, Self::TOFU2, Self::TOFUD];

    /// The links of a generation.
    pub const fn of(generation: Generation) -> &'static Self {
        match generation {
            Generation::K | Generation::Fx10 => &Self::TOFU,
            Generation::Fx100 => &Self::TOFU2,
            Generation::Fugaku => &Self::TOFUD,
        }
    }

    const fn link(&self) -> Link {
        Link { lanes: self.lanes, lane_kbps: self.lane_kbps, coding: self.coding }
    }

    /// Data that a lane moves, in kB/s.
    pub const fn lane_kbytes(&self) -> u32 {
        self.link().lane_kbytes()
    }

    /// Data that all lanes move, in kB/s.
    pub const fn link_kbytes(&self) -> u32 {
        self.link().kbytes()
    }

    /// One cycle of the logic.
    pub const fn cycle_ps(&self) -> Ps {
        1_000_000_000 / self.clock_khz as Ps
    }

    /// Time through a link and the switch behind it.
    pub const fn hop_ps(&self) -> Ps {
        self.link_ps + self.switch_ps
    }

    /// Rows that a frame takes in buffers.
    ///
    /// `frame` is the size of routing header and TLP, without what a link adds. A frame with more
    /// rows than [`Rows`] can hold counts as the longest. That is possible only with TNW's short
    /// rows, and none of its frames is nearly that long.
    #[inline]
    pub const fn rows(&self, frame: u16) -> Rows {
        let rows = frame.div_ceil(self.row as u16);
        if rows > Rows::MAX as u16 { Rows::MAX } else { rows as Rows }
    }

    /// Bytes that pass, over all lanes together, while a frame is sent and until the next may
    /// follow. All lanes are in use, and the frame is cut if this generation cuts frames.
    #[inline]
    pub const fn wire_bytes(&self, frame: u16) -> u32 {
        let tlp = (frame as u32).saturating_sub(ROUTING_HEADER);
        match self.slicing {
            Slicing::Dynamic => {
                tlp + self.lanes as u32 * (self.head as u32 + self.tail as u32 + self.gap as u32)
            }
            Slicing::Striped | Slicing::Degrading => {
                let row = self.row as u32;
                (self.head as u32).next_multiple_of(row)
                    + tlp.next_multiple_of(row)
                    + (self.tail as u32).next_multiple_of(row)
                    + (self.gap as u32).next_multiple_of(row)
            }
        }
    }

    /// The time of that many bytes on that many lanes.
    #[inline]
    const fn bytes_ps(&self, bytes: u32, lanes: u8) -> Ps {
        let rate = self.lane_kbytes() as u64 * lanes as u64;
        (bytes as u64 * 1_000_000_000 + rate / 2) / rate
    }

    /// The time of that many bytes on all lanes, computed in whole femtoseconds per byte.
    pub const fn bytes_on_link_ps(&self, bytes: u64) -> Ps {
        bytes.saturating_mul(1_000_000_000_000 / self.link_kbytes() as u64) / 1000
    }

    /// The time for which a frame occupies its link: the time of [`wire_bytes`](Self::wire_bytes).
    #[inline]
    pub const fn wire_ps(&self, frame: u16) -> Ps {
        self.bytes_ps(self.wire_bytes(frame), self.lanes)
    }

    /// The time for which a frame occupies its link with that many lanes.
    ///
    /// [`Slicing::Dynamic`] takes the time of one lane for a frame that is sent whole on each.
    /// Returns `None` if nothing is sent: with no lane, or with one of Tofu's lanes gone.
    pub const fn wire_ps_on(&self, frame: u16, lanes: u8) -> Option<Ps> {
        if lanes >= self.lanes {
            return Some(self.wire_ps(frame));
        }
        if lanes == 0 {
            return None;
        }
        match self.slicing {
            Slicing::Striped => None,
            Slicing::Degrading => Some(self.bytes_ps(self.wire_bytes(frame), lanes)),
            Slicing::Dynamic => {
                let around = self.head as u32 + self.tail_whole as u32 + self.gap as u32;
                let tlp = (frame as u32).saturating_sub(ROUTING_HEADER);
                Some(self.bytes_ps(tlp + around, 1))
            }
        }
    }

    /// Bits of a frame on each of that many lanes, without the gap; see
    /// [`wire_ps_on`](Self::wire_ps_on).
    pub(crate) const fn lane_bits(&self, frame: u16, lanes: u8) -> Option<u32> {
        if lanes == 0 {
            return None;
        }
        let tlp = (frame as u32).saturating_sub(ROUTING_HEADER);
        let bytes = match self.slicing {
            Slicing::Striped | Slicing::Degrading => {
                (self.wire_bytes(frame) - self.gap as u32).div_ceil(lanes as u32)
            }
            Slicing::Dynamic if lanes < self.lanes => {
                self.head as u32 + tlp + self.tail_whole as u32
            }
            Slicing::Dynamic => self.head as u32 + tlp / self.lanes as u32 + self.tail as u32,
        };
        Some(bytes * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Payload in the longest TLP.
    const PAYLOAD: u64 = 1920;
    /// Its frame.
    const FRAME: u16 = 8 + 1984;

    #[test]
    fn lanes_and_data_path_are_equally_fast() {
        for (p, rate) in Parameters::ALL.into_iter().zip([5_000_000, 12_500_000, 6_800_000]) {
            assert_eq!(p.link_kbytes(), rate, "{}", p.name);
            assert_eq!(u32::from(p.row) * p.clock_khz, rate, "{}", p.name);
        }
    }

    /// TofuD paper, Table V.
    #[test]
    fn long_puts_are_as_fast_as_in_the_paper() {
        for (p, paper) in Parameters::ALL.into_iter().zip([4760, 11460, 6350]) {
            let ours = PAYLOAD * 1_000_000 / p.wire_ps(FRAME);
            assert!(ours.abs_diff(paper) * 100 < paper, "{}: {ours} MB/s", p.name);
        }
    }

    #[test]
    fn frames_have_the_manuals_sizes() {
        assert_eq!(Parameters::TOFU.wire_bytes(FRAME), 2016);
        assert_eq!(Parameters::TOFU2.wire_bytes(FRAME), 2080);
        assert_eq!(Parameters::TOFUD.wire_bytes(FRAME), 2064);
        assert_eq!(Parameters::TOFU.wire_ps(FRAME), 403_200);
    }

    /// Section 2.2 of the paper, for packets of 136 bytes.
    #[test]
    fn tnw_packets_are_as_fast_as_in_the_paper() {
        assert_eq!(Parameters::TNW.link_kbytes(), 1_000_000);
        let ours = 128 * 1_000_000 / Parameters::TNW.wire_ps(8 + 136);
        assert_eq!(ours, 914, "MB/s");
    }

    #[test]
    fn hop_takes_the_published_time() {
        assert_eq!(Parameters::ALL.map(|p| p.hop_ps()), [100_000, 300_000, 100_000]);
    }

    #[test]
    fn fewer_lanes_take_longer() {
        let [tofu, tofu2, tofud] = Parameters::ALL;
        assert_eq!(tofu.wire_ps_on(FRAME, 7), None);
        assert_eq!(tofu2.wire_ps_on(FRAME, 2), Some(2 * tofu2.wire_ps(FRAME)));
        let whole = tofud.wire_ps_on(FRAME, 1).expect("one lane is enough");
        assert!(whole > tofud.wire_ps(FRAME) && whole < 2 * tofud.wire_ps(FRAME));
        for p in Parameters::ALL {
            assert_eq!(p.wire_ps_on(FRAME, p.lanes), Some(p.wire_ps(FRAME)));
            assert_eq!(p.wire_ps_on(FRAME, 0), None);
        }
    }

    #[test]
    fn longest_frames_fill_a_link() {
        for (p, expected) in Parameters::ALL.into_iter().zip([4, 8, 4]) {
            let frames = p.queue_bytes / (u32::from(p.rows(FRAME)) * u32::from(p.row));
            assert_eq!(frames, expected, "{}", p.name);
        }
    }
}
