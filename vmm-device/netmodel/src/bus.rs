//! The bus between a node's memory and its network interfaces, where it is slower than these.

use std::fmt;

use tofu_fabric::Ps;

/// The bus of every node of a machine.
pub struct HostBus<B> {
    /// Bytes a second, in each direction.
    pub bytes_per_s: u64,
    /// Returns how many bytes of a packet's data are read from memory at the sender, and written to
    /// memory at the target.
    pub data: fn(&B) -> (u64, u64),
}

impl<B> HostBus<B> {
    /// The time for which the bus is busy with that many bytes.
    pub fn time_ps(&self, bytes: u64) -> Ps {
        bus_ps(self.bytes_per_s, bytes)
    }
}

impl<B> Clone for HostBus<B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for HostBus<B> {}

impl<B> fmt::Debug for HostBus<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBus").field("bytes_per_s", &self.bytes_per_s).finish_non_exhaustive()
    }
}

/// Until when the bus of a node is busy, in each direction. First come, first served (*ours*).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusLine {
    read: Ps,
    write: Ps,
}

impl BusLine {
    /// Reads data from memory, from `now` on at the earliest. Returns when it starts to arrive and
    /// when all of it is there.
    pub fn read(&mut self, bytes_per_s: u64, now: Ps, bytes: u64) -> (Ps, Ps) {
        if bytes == 0 {
            return (now, now);
        }
        let from = now.max(self.read);
        self.read = from.saturating_add(bus_ps(bytes_per_s, bytes));
        (from, self.read)
    }

    /// Writes data that arrived until `at` to memory; the last `last` bytes arrived together at
    /// that time. Returns when all of it is in memory.
    pub fn write(&mut self, bytes_per_s: u64, at: Ps, bytes: u64, last: u64) -> Ps {
        if bytes == 0 {
            return at;
        }
        let alone = at.saturating_add(bus_ps(bytes_per_s, last));
        self.write = alone.max(self.write.saturating_add(bus_ps(bytes_per_s, bytes)));
        self.write
    }
}

/// The time of that many bytes at that many bytes a second.
fn bus_ps(bytes_per_s: u64, bytes: u64) -> Ps {
    let ps = u128::from(bytes) * 1_000_000_000_000 / u128::from(bytes_per_s.max(1));
    Ps::try_from(ps).unwrap_or(Ps::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 10_000_000_000;

    #[test]
    fn data_waits_for_earlier_data() {
        let mut bus = BusLine::default();
        assert_eq!(bus.read(RATE, 500, 100), (500, 10_500));
        assert_eq!(bus.read(RATE, 600, 100), (10_500, 20_500));
        assert_eq!(bus.read(RATE, 700, 0), (700, 700), "no data, no bus");
        assert_eq!(bus.read(RATE, 90_000, 1), (90_000, 90_100));
        assert_eq!(bus.write(RATE, 800, 10, 10), 1800, "the other direction");
    }

    #[test]
    fn data_is_written_while_more_arrives() {
        let mut bus = BusLine::default();
        // Ten pieces of 100 bytes each; nine are in memory when the last one arrives.
        assert_eq!(bus.write(RATE, 200_000, 1000, 100), 210_000);
        // Two simultaneous senders exceed the bandwidth of the bus.
        assert_eq!(bus.write(RATE, 200_000, 1000, 100), 310_000);
    }
}
