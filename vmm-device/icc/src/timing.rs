//! Costs of commands at the two ends, in modelled time: everything but the network.
//!
//! The sources are Table III and section V.B of the TofuD paper, and Table 2 and Figure 6 of IEEE
//! Micro 2012. A Put of 8 bytes to a neighbour takes [`issue_ps`](CommandTiming::issue_ps), a hop,
//! the time of its frame, and [`deliver_ps`](CommandTiming::deliver_ps). The papers have the sum of
//! the two ends; giving each half of it is *ours*.

use tofu_abi::CqId;
use tofu_abi::desc::{Header1, source_type};
use tofu_abi::generation::{Description, Generation};

use crate::tlp::{Body, Payload, Request};

/// Costs of a generation's commands at the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTiming {
    /// The time from a command in the interface to its first TLP in the crossbar, in picoseconds.
    pub issue_ps: u64,
    /// The time from a TLP's arrival until a process can read its data, in picoseconds.
    pub deliver_ps: u64,
    /// An access to main memory, in picoseconds: for a descriptor that is fetched, for data that is
    /// read, and for data that is not put into the target's cache.
    pub memory_ps: u64,
    /// True if targets can put data into their caches.
    pub cache_injection: bool,
    /// The control queues, as bits, of processes in memory groups (CMGs) that are far from the
    /// interfaces.
    pub far_queues: u16,
    /// The additional time at each end if its process is in a memory group far from the
    /// interface, in picoseconds.
    pub far_ps: u64,
    /// The time between the starts of two commands of an interface, in picoseconds.
    pub command_ps: u64,
    /// Bytes a second of data on the bus between memory and interfaces, in either direction, if
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
    /// 0.91 us with a direct descriptor and 1.15 us with a fetched one (Table III). Of these, a hop
    /// takes 0.1 us and the frame 25.6 ns. The command rate limits messages of up to 256 bytes, but
    /// not those of 512 (Figure 6), so a command takes 30 cycles (*ours*). The bus is in Table IV
    /// of the TofuD paper.
    pub const TOFU: Self = Self {
        issue_ps: 392_200,
        deliver_ps: 392_200,
        memory_ps: 240_000,
        cache_injection: K.cache_injection,
        far_queues: K.groups.far_queues(),
        far_ps: 0,
        command_ps: 96_000,
        bus_bytes_per_s: K.bus_bytes_per_s,
    };

    /// Tofu in FX10, whose bus is faster (TofuD paper, Table IV).
    pub const FX10: Self = Self { bus_bytes_per_s: FX10.bus_bytes_per_s, ..Self::TOFU };

    /// Tofu2.
    ///
    /// 0.71 us with cache injection and 0.87 us without (Table III). Of these, a hop takes 0.3 us
    /// and the frame 15.4 ns. *Ours*: a fetched descriptor and data that is read each cost as much
    /// as the missing injection, and commands take as many cycles as Tofu's.
    pub const TOFU2: Self = Self {
        issue_ps: 197_300,
        deliver_ps: 197_300,
        memory_ps: 160_000,
        cache_injection: FX100.cache_injection,
        far_queues: FX100.groups.far_queues(),
        far_ps: 0,
        command_ps: 76_800,
        bus_bytes_per_s: FX100.bus_bytes_per_s,
    };

    /// TofuD.
    ///
    /// 0.49 us between near memory groups and 0.54 us between far ones (Table III). Of these, a hop
    /// takes 0.1 us and the frame 25.9 ns. The other values are Tofu2's, because a Put takes almost
    /// as long apart from the hop (section V.B).
    pub const TOFUD: Self = Self {
        issue_ps: 182_000,
        deliver_ps: 182_000,
        far_queues: FUGAKU.groups.far_queues(),
        far_ps: 25_000,
        command_ps: 70_588,
        cache_injection: FUGAKU.cache_injection,
        bus_bytes_per_s: FUGAKU.bus_bytes_per_s,
        ..Self::TOFU2
    };

    /// The costs of a generation's commands.
    pub const fn of(generation: Generation) -> Self {
        match generation {
            Generation::K => Self::TOFU,
            Generation::Fx10 => Self::FX10,
            Generation::Fx100 => Self::TOFU2,
            Generation::Fugaku => Self::TOFUD,
        }
    }

    /// The additional time at an end whose process has this control queue.
    const fn far(&self, cq: u8) -> u64 {
        if self.far_queues >> (cq % 16) & 1 != 0 { self.far_ps } else { 0 }
    }

    /// The time from the doorbell to the first TLP of a command. If the data is in the command, or
    /// there is none, one access to memory is saved.
    /// `cq` is the control queue of the process that issues it, if it is one's.
    pub(crate) fn issue(&self, header: Header1, cq: Option<CqId>, reads: bool) -> u64 {
        let fetched = header.source_type() != source_type::DIRECT;
        let ways = u64::from(fetched) + u64::from(reads);
        let far = cq.map_or(0, |cq| self.far(cq.get()));
        self.issue_ps + far + ways * self.memory_ps
    }

    /// The time from a packet's arrival until a process can read its data, or the interface can
    /// answer it.
    pub const fn deliver(&self, body: &Body) -> u64 {
        let (injected, far) = match body {
            Body::Put { request, .. } => return self.deliver_put(request),
            // Requests and acknowledgements carry no data, and signals stay in the interface.
            Body::Get { .. } | Body::Signal(_) => return 0,
            Body::Armw { request, .. } => (true, self.far(request.remote.cqid())),
            // The target's interface can answer a Put that has arrived while it delivers the data.
            // The model answers after that, so its answer, from which the notice follows, is
            // delivered in no time.
            Body::PutAck { .. } => return 0,
            Body::ArmwAck { answer, .. } => (true, self.far(answer.tag.cq.get())),
            Body::GetData { answer, .. } => (false, self.far(answer.tag.cq.get())),
            Body::Frame { .. } => (false, 0),
        };
        let memory = if injected || !self.cache_injection { 0 } else { self.memory_ps };
        self.deliver_ps + far + memory
    }

    /// The same for the data of a Put.
    #[inline]
    pub(crate) const fn deliver_put(&self, request: &Request) -> u64 {
        let injected = request.header2.cache_injection();
        let memory = if injected || !self.cache_injection { 0 } else { self.memory_ps };
        self.deliver_ps + self.far(request.remote.cqid()) + memory
    }

    /// The time from when the last TLP of a Put has left its interface until a process can read the
    /// Put's completion, where that does not wait for answers: as if a neighbour had answered,
    /// wherever the target is (*ours*; collectives of Fugaku take as long as with 0.5 to 0.55 us on
    /// TofuD, for which this is 0.56). It is never shorter than a hop, the time that is given.
    pub const fn put_sent_ps(&self, hop_ps: u64) -> u64 {
        2 * hop_ps + self.issue_ps + self.deliver_ps
    }

    /// The time from the end of a request to the first TLP of its answer, which is data that is
    /// read. Other answers take no time.
    pub(crate) const fn answer_with_data(&self) -> u64 {
        self.issue_ps + self.memory_ps
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
    use tofu_abi::desc::Header2;
    use tofu_abi::{CqId, StagOffset};

    use super::*;
    use crate::tlp::{Request, Tag};

    #[test]
    fn latencies_are_those_of_table_3() {
        // Hop and frame of 104 bytes, in nanoseconds.
        let network = [100 + 26, 300 + 15, 100 + 26];
        let put = [CommandTiming::TOFU, CommandTiming::TOFU2, CommandTiming::TOFUD]
            .map(|timing| timing.issue_ps + timing.deliver_ps);
        for ((put, network), paper) in put.into_iter().zip(network).zip([910, 710, 490]) {
            assert_eq!((put + 500) / 1000 + network, paper);
        }
        let timing = CommandTiming::TOFU;
        let cq = Some(CqId::ALL[0]);
        let header = Header1(0).with_source_type(source_type::DIRECT);
        assert_eq!(timing.issue(header, cq, false), 392_200);
        let fetched = Header1(0).with_source_type(source_type::TOQ);
        assert_eq!(timing.issue(fetched, cq, false), 632_200);
        assert_eq!(timing.issue(fetched, cq, true), 872_200);
    }

    /// A Put of 8 bytes that come with the command, from one queue to another.
    fn put(from: CqId, to: CqId) -> Body {
        let request = Request {
            tag: Tag { cq: from, index: 0, generation: 0 },
            gpid: 0,
            header2: Header2(0).with_cache_injection(true),
            sps: 0,
            remote: StagOffset::new(to, 0, 0),
            local: StagOffset::new(from, 0, 0),
            position: 0,
            length: 8,
            total: 8,
            mtu: 1920,
        };
        Body::Put { request, payload: Payload::Inline { data: [0; 32], len: 8 } }
    }

    #[test]
    fn far_memory_groups_take_longer() {
        let header = Header1(0).with_source_type(source_type::DIRECT);
        for (timing, far) in [(CommandTiming::TOFUD, 25_000), (CommandTiming::TOFU2, 0)] {
            let ends = |from: usize, to: usize| {
                let (from, to) = (CqId::ALL[from], CqId::ALL[to]);
                timing.issue(header, Some(from), false) + timing.deliver(&put(from, to))
            };
            let near = timing.issue_ps + timing.deliver_ps;
            assert_eq!(ends(0, 1), near);
            assert_eq!([ends(2, 0), ends(1, 7), ends(6, 3)], [1, 1, 2].map(|n| near + n * far));
        }
    }
}
