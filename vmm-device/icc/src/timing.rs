//! What commands cost at the two ends, in modelled time: everything but the network.
//!
//! The sources are Table III and section V.B of the TofuD paper, and Table 2 and Figure 6 of IEEE
//! Micro 2012. A Put of 8 bytes to a neighbour takes [`issue_ps`](CommandTiming::issue_ps), a hop,
//! the time of its frame, and [`deliver_ps`](CommandTiming::deliver_ps). The papers have the sum of
//! the two ends; that each has half of it is *ours*.

use tofu_abi::desc::{Header1, source_type};
use tofu_abi::generation::{Description, Generation};

use crate::tlp::{Body, Payload};

/// What the commands of a generation cost at the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTiming {
    /// From a command in the interface to its first TLP in the crossbar, in picoseconds.
    pub issue_ps: u64,
    /// From a TLP that is in to its data where a process reads it, in picoseconds.
    pub deliver_ps: u64,
    /// A way to main memory that is not saved: that of a descriptor that is fetched, of data that
    /// is read, and of data that is not put into the target's cache, in picoseconds.
    pub memory_ps: u64,
    /// Whether targets can put data into their caches.
    pub cache_injection: bool,
    /// How much longer it takes at each end if that is a memory group (CMG) far from the
    /// interface, in picoseconds.
    pub far_ps: u64,
    /// For how long a command keeps the interface from beginning the next one, in picoseconds.
    pub command_ps: u64,
    /// Bytes a second of data on the bus between memory and interfaces, in either direction, where
    /// that is less than the interfaces can send.
    pub bus_bytes_per_s: Option<u64>,
}

const K: &Description = Generation::K.description();
const FX10: &Description = Generation::Fx10.description();
const FX100: &Description = Generation::Fx100.description();
const FUGAKU: &Description = Generation::Fugaku.description();

impl CommandTiming {
    /// Tofu (K computer).
    ///
    /// 0.91 us with a direct descriptor and 1.15 us with one that is fetched (Table III), of which
    /// a hop is 0.1 us and the frame 25.6 ns. Commands limit messages of up to 256 bytes, and not
    /// those of 512 (Figure 6): 30 cycles are in between (*ours*). The bus is in Table IV of the
    /// TofuD paper.
    pub const TOFU: Self = Self {
        issue_ps: 392_200,
        deliver_ps: 392_200,
        memory_ps: 240_000,
        cache_injection: K.cache_injection,
        far_ps: 0,
        command_ps: 96_000,
        bus_bytes_per_s: K.bus_bytes_per_s,
    };

    /// Tofu in FX10, whose bus is faster (TofuD paper, Table IV).
    pub const FX10: Self = Self { bus_bytes_per_s: FX10.bus_bytes_per_s, ..Self::TOFU };

    /// Tofu2.
    ///
    /// 0.71 us with cache injection and 0.87 us without (Table III), of which a hop is 0.3 us and
    /// the frame 15.4 ns. That a fetched descriptor and data that is read cost as much as the
    /// missing injection, and commands as many cycles as Tofu's, is *ours*.
    pub const TOFU2: Self = Self {
        issue_ps: 197_300,
        deliver_ps: 197_300,
        memory_ps: 160_000,
        cache_injection: FX100.cache_injection,
        far_ps: 0,
        command_ps: 76_800,
        bus_bytes_per_s: FX100.bus_bytes_per_s,
    };

    /// TofuD.
    ///
    /// 0.49 us between near memory groups and 0.54 us between far ones (Table III), of which a hop
    /// is 0.1 us and the frame 25.9 ns. The rest is as Tofu2's: but for the hop a Put takes almost
    /// as long (section V.B).
    pub const TOFUD: Self = Self {
        issue_ps: 182_000,
        deliver_ps: 182_000,
        far_ps: 25_000,
        command_ps: 70_588,
        cache_injection: FUGAKU.cache_injection,
        bus_bytes_per_s: FUGAKU.bus_bytes_per_s,
        ..Self::TOFU2
    };

    /// What the commands of a generation cost.
    pub const fn of(generation: Generation) -> Self {
        match generation {
            Generation::K => Self::TOFU,
            Generation::Fx10 => Self::FX10,
            Generation::Fx100 => Self::TOFU2,
            Generation::Fugaku => Self::TOFUD,
        }
    }

    /// The same for a process at each end that is far from the interface.
    #[must_use]
    pub const fn far(self) -> Self {
        Self {
            issue_ps: self.issue_ps + self.far_ps,
            deliver_ps: self.deliver_ps + self.far_ps,
            ..self
        }
    }

    /// From the doorbell to the first TLP of a command that brings its data (`inline`) or has none,
    /// or whose data is read.
    pub(crate) const fn issue(&self, header: Header1, inline: bool) -> u64 {
        let fetched = header.source_type() != source_type::DIRECT;
        let ways = fetched as u64 + !inline as u64;
        self.issue_ps + ways * self.memory_ps
    }

    /// From a packet that is in to its data where a process reads it, or where the interface can
    /// answer.
    pub const fn deliver(&self, body: &Body) -> u64 {
        let injected = match body {
            Body::Put { request, .. } => request.header2.cache_injection(),
            // Requests and acknowledgements bring no data, and signals stay in the interface.
            Body::Get { .. } | Body::Signal(_) => return 0,
            Body::PutAck { .. } | Body::ArmwAck { .. } | Body::Armw { .. } => true,
            Body::GetData { .. } | Body::Frame { .. } => false,
        };
        let memory = if injected || !self.cache_injection { 0 } else { self.memory_ps };
        self.deliver_ps + memory
    }

    /// From a request that was carried out to the first TLP of its answer: data of a Get is read.
    pub(crate) const fn answer(&self, body: &Body) -> u64 {
        match body {
            Body::GetData { .. } => self.issue_ps + self.memory_ps,
            _ => 0,
        }
    }
}

impl Body {
    /// Bytes of data in the packet that are read from memory where it is sent, and written where
    /// it arrives; those that came with a command are only written.
    pub fn payload_bytes(&self) -> (u64, u64) {
        match self {
            Self::Put { payload, .. } | Self::GetData { payload, .. } => {
                let bytes = payload.len();
                (if matches!(payload, Payload::Inline { .. }) { 0 } else { bytes }, bytes)
            }
            Self::Frame { frame, .. } => (frame.len() as u64, frame.len() as u64),
            _ => (0, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_hops_and_frames_are_the_latencies_of_table_3() {
        // Hop and frame of 104 bytes, in nanoseconds.
        let network = [100 + 26, 300 + 15, 100 + 26];
        let put = [CommandTiming::TOFU, CommandTiming::TOFU2, CommandTiming::TOFUD]
            .map(|timing| timing.issue_ps + timing.deliver_ps);
        for ((put, network), paper) in put.into_iter().zip(network).zip([910, 710, 490]) {
            assert_eq!((put + 500) / 1000 + network, paper);
        }
        let header = Header1(0).with_source_type(source_type::DIRECT);
        assert_eq!(CommandTiming::TOFU.issue(header, true), 392_200);
        let fetched = Header1(0).with_source_type(source_type::TOQ);
        assert_eq!(CommandTiming::TOFU.issue(fetched, true), 632_200);
        assert_eq!(CommandTiming::TOFU.issue(fetched, false), 872_200);
        let far = CommandTiming::TOFUD.far();
        assert_eq!(far.issue_ps + far.deliver_ps, 414_000);
    }
}
