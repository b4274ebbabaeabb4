//! The MSI-X table and pending bit array.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use tofu_inspect::{Hex, Inspect, Visit};
use tofu_sync::{lock, read, write};

/// The most vectors an MSI-X table can have.
pub const MAX_VECTORS: u16 = 2048;

const ENTRY_SIZE: u64 = 16;

const ENABLE: u8 = 1 << 0;
const FUNCTION_MASK: u8 = 1 << 1;

/// The destination of MSI-X messages: an interrupt controller, or a stand-in for one.
///
/// Called with the vector's lock held, so that calls for one vector come in the
/// order of the events; an implementation must not call back into the
/// [`MsixTable`].
pub trait MsiSink: Send + Sync {
    /// Delivers the message of `vector`: a write of `data` to `address`. Runs on
    /// engine threads for every interrupt and must be quick.
    fn notify(&self, vector: u16, address: u64, data: u32);

    /// `vector`'s message or effective mask (its own mask bit, the function mask,
    /// MSI-X enable) changed. Not called for message changes of a masked vector,
    /// so a backend that programs a route per call does so only for vectors in
    /// use.
    fn update(&self, vector: u16, address: u64, data: u32, masked: bool);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vector {
    address: u64,
    data: u32,
    pub(crate) masked: bool,
    pub(crate) pending: bool,
    /// The last message to the sink.
    reported: Option<(u64, u32)>,
}

/// An address on the bus; 0 if it was never set, because a monitor like QEMU handles messages
/// itself.
pub(crate) struct Assigned(pub(crate) u64);

impl Inspect for Assigned {
    fn inspect(&self, visit: Visit<'_>) {
        Inspect::inspect(&(self.0 != 0).then_some(Hex(self.0)), visit);
    }
}

tofu_inspect::inspect!(Vector {
    address as Assigned,
    data as hex,
    masked,
    pending,
    reported as skip,
});

impl Vector {
    const RESET: Self = Self { address: 0, data: 0, masked: true, pending: false, reported: None };
}

/// An MSI-X table with its pending bits.
///
/// [`trigger`](MsixTable::trigger) may race with table writes and control
/// changes from other threads: each vector has its own lock, and an
/// interrupt is either delivered or found pending on unmasking.
pub struct MsixTable {
    /// ENABLE and FUNCTION_MASK. Stored before the vectors are visited, read with
    /// a vector's lock held.
    control: AtomicU8,
    vectors: Box<[Mutex<Vector>]>,
    sink: RwLock<Option<Arc<dyn MsiSink>>>,
}

impl MsixTable {
    /// A table of `vectors` entries in reset state: all masked, MSI-X off. At
    /// most [`MAX_VECTORS`]; more are cut off.
    pub fn new(vectors: u16) -> Self {
        let vectors = (0..vectors.min(MAX_VECTORS)).map(|_| Mutex::new(Vector::RESET)).collect();
        Self { control: AtomicU8::new(0), vectors, sink: RwLock::new(None) }
    }

    /// Number of vectors.
    pub fn len(&self) -> u16 {
        self.vectors.len() as u16
    }

    /// True if the table has no vector.
    pub fn is_empty(&self) -> bool {
        self.vectors.is_empty()
    }

    /// Size of the table in bytes.
    pub(crate) fn table_size(&self) -> u64 {
        u64::from(self.len()) * ENTRY_SIZE
    }

    /// Size of the pending bit array in bytes: one bit a vector, whole qwords.
    pub(crate) fn pba_size(&self) -> u64 {
        u64::from(self.len()).div_ceil(64) * 8
    }

    /// Connects the receiver of the messages, replacing an earlier one, and reports the unmasked
    /// vectors to it. Interrupts that were pending for lack of a receiver are delivered now.
    pub fn connect(&self, sink: Arc<dyn MsiSink>) {
        // The old sink is removed first. Otherwise the new one could be called before the record of
        // what was reported to the old one is cleared.
        self.disconnect();
        *write(&self.sink) = Some(sink);
        self.visit_all(|_| {});
    }

    /// Disconnects the receiver; further interrupts stay pending.
    pub fn disconnect(&self) {
        *write(&self.sink) = None;
        self.visit_all(|vector| vector.reported = None);
    }

    /// Sets MSI-X enable and function mask (message control bits 15 and 14).
    pub fn set_control(&self, enable: bool, function_mask: bool) {
        let control =
            if enable { ENABLE } else { 0 } | if function_mask { FUNCTION_MASK } else { 0 };
        if self.control.swap(control, Ordering::SeqCst) != control {
            self.visit_all(|_| {});
        }
    }

    /// True if MSI-X is enabled.
    pub fn enabled(&self) -> bool {
        self.control.load(Ordering::SeqCst) & ENABLE != 0
    }

    /// True if the function mask masks all vectors.
    pub(crate) fn function_mask(&self) -> bool {
        self.control.load(Ordering::SeqCst) & FUNCTION_MASK != 0
    }

    /// The vectors, each as it is when it is read.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = (usize, Vector)> {
        self.vectors.iter().map(|vector| *lock(vector)).enumerate()
    }

    /// Raises `vector`: delivers its message, or latches its pending bit while it is masked. Does
    /// nothing if there is no such vector, or while MSI-X is disabled. The latter is ours: there is
    /// no INTx pin for such an interrupt, and drivers read the device's request registers when they
    /// enable MSI-X.
    pub fn trigger(&self, vector: u16) {
        let Some(entry) = self.vectors.get(usize::from(vector)) else { return };
        let mut entry = lock(entry);
        if self.enabled() {
            entry.pending = true;
            self.settle(vector, &mut entry);
        }
    }

    /// True if `vector`'s pending bit is set.
    pub fn pending(&self, vector: u16) -> bool {
        self.vectors.get(usize::from(vector)).is_some_and(|entry| lock(entry).pending)
    }

    /// Reads the table. Aligned 4- and 8-byte accesses inside it are defined by
    /// the specification; anything else reads as ones.
    pub(crate) fn table_read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if !self.covers(self.table_size(), offset, data.len()) {
            return;
        }
        let entry = *lock(&self.vectors[(offset / ENTRY_SIZE) as usize]);
        let mut bytes = [0; ENTRY_SIZE as usize];
        bytes[..8].copy_from_slice(&entry.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&entry.data.to_le_bytes());
        bytes[12] = u8::from(entry.masked);
        let at = (offset % ENTRY_SIZE) as usize;
        data.copy_from_slice(&bytes[at..at + data.len()]);
    }

    /// Writes the table. Anything but an aligned 4- or 8-byte access inside it is
    /// ignored. An 8-byte write takes effect as one.
    pub fn table_write(&self, offset: u64, data: &[u8]) {
        if !self.covers(self.table_size(), offset, data.len()) {
            return;
        }
        let vector = (offset / ENTRY_SIZE) as u16;
        let mut entry = lock(&self.vectors[usize::from(vector)]);
        let first = (offset % ENTRY_SIZE) / 4;
        for (dword, bytes) in (first..).zip(data.chunks_exact(4)) {
            let value = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            match dword {
                // Bits 1:0 of the address must be zero for a dword write.
                0 => entry.address = (entry.address & !0xffff_ffff) | u64::from(value & !3),
                1 => entry.address = (entry.address & 0xffff_ffff) | (u64::from(value) << 32),
                2 => entry.data = value,
                _ => entry.masked = value & 1 != 0,
            }
        }
        self.settle(vector, &mut entry);
    }

    /// Reads the pending bit array; same rules as the table. Writes have no
    /// effect, so there is no method for them.
    pub(crate) fn pba_read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if !self.covers(self.pba_size(), offset, data.len()) {
            return;
        }
        for (at, byte) in (offset..).zip(data) {
            let first = (at * 8) as u16;
            *byte = (0..8).fold(0, |bits, bit| bits | u8::from(self.pending(first + bit)) << bit);
        }
    }

    /// Returns to the reset state. The receiver stays connected and sees every
    /// vector masked.
    pub fn reset(&self) {
        self.control.store(0, Ordering::SeqCst);
        self.visit_all(|vector| {
            *vector = Vector { reported: vector.reported, ..Vector::RESET };
        });
    }

    fn covers(&self, size: u64, offset: u64, len: usize) -> bool {
        let len = len as u64;
        matches!(len, 4 | 8)
            && offset.is_multiple_of(len)
            && offset.checked_add(len).is_some_and(|end| end <= size)
    }

    fn visit_all(&self, change: impl Fn(&mut Vector)) {
        for (vector, entry) in (0..).zip(&self.vectors) {
            let mut entry = lock(entry);
            change(&mut entry);
            self.settle(vector, &mut entry);
        }
    }

    /// Brings the sink up to date with `entry` and delivers it if pending and
    /// unmasked.
    fn settle(&self, vector: u16, entry: &mut Vector) {
        let sink = read(&self.sink);
        let Some(sink) = sink.as_ref() else { return };
        let open = self.control.load(Ordering::SeqCst) == ENABLE && !entry.masked;
        let message = open.then_some((entry.address, entry.data));
        if message != entry.reported {
            entry.reported = message;
            sink.update(vector, entry.address, entry.data, !open);
        }
        if open && entry.pending {
            entry.pending = false;
            sink.notify(vector, entry.address, entry.data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MsiEvent, RecordingSink};
    use proptest::prelude::*;

    fn table(vectors: u16) -> (MsixTable, Arc<RecordingSink>) {
        let table = MsixTable::new(vectors);
        let sink = Arc::new(RecordingSink::default());
        table.connect(sink.clone());
        (table, sink)
    }

    fn program(table: &MsixTable, vector: u16, address: u64, data: u32, masked: bool) {
        let at = u64::from(vector) * 16;
        table.table_write(at, &address.to_le_bytes());
        let word = u64::from(data) | u64::from(masked) << 32;
        table.table_write(at + 8, &word.to_le_bytes());
    }

    #[test]
    fn open_vector_delivers_at_once() {
        let (table, sink) = table(3);
        table.set_control(true, false);
        program(&table, 2, 0xfee0_0000, 0x41, false);
        table.trigger(2);
        assert_eq!(
            sink.take(),
            [
                MsiEvent::Update { vector: 2, address: 0xfee0_0000, data: 0x41, masked: false },
                MsiEvent::Notify { vector: 2, address: 0xfee0_0000, data: 0x41 },
            ]
        );
        assert!(!table.pending(2));
    }

    #[test]
    fn masked_vector_is_delivered_on_unmask() {
        let (table, sink) = table(70);
        table.set_control(true, false);
        program(&table, 69, 0xfee0_0000, 7, true);
        table.trigger(69);
        table.trigger(69);
        let mut pba = [0; 8];
        table.pba_read(8, &mut pba);
        assert_eq!(pba, (1u64 << 5).to_le_bytes());
        assert_eq!(sink.take(), []);
        table.table_write(69 * 16 + 12, &0u32.to_le_bytes());
        assert_eq!(sink.notified(), [69]);
        assert!(!table.pending(69));
    }

    #[test]
    fn function_mask_covers_all_vectors() {
        let (table, sink) = table(2);
        table.set_control(true, true);
        program(&table, 0, 0xfee0_0000, 1, false);
        program(&table, 1, 0xfee0_1000, 2, true);
        table.trigger(0);
        table.trigger(1);
        assert_eq!(sink.take(), []);
        table.set_control(true, false);
        assert_eq!(sink.notified(), [0]);
        assert!(table.pending(1));
    }

    #[test]
    fn disabled_drops_and_reset_clears() {
        let (table, sink) = table(1);
        program(&table, 0, 0xfee0_0000, 1, false);
        table.trigger(0);
        assert!(!table.pending(0));
        table.set_control(true, false);
        table.trigger(0);
        assert_eq!(sink.notified(), [0]);
        sink.take();
        table.reset();
        assert_eq!(
            sink.take(),
            [MsiEvent::Update { vector: 0, address: 0, data: 0, masked: true }]
        );
        assert!(!table.enabled());
        let mut entry = [0; 8];
        table.table_read(8, &mut entry);
        assert_eq!(entry, (1u64 << 32).to_le_bytes());
    }

    #[test]
    fn updates_come_only_for_vectors_in_use() {
        let (table, sink) = table(2);
        program(&table, 0, 0xfee0_0000, 1, true);
        table.set_control(true, false);
        program(&table, 0, 0xfee0_2000, 2, true);
        assert_eq!(sink.take(), []);
        program(&table, 0, 0xfee0_2000, 2, false);
        program(&table, 0, 0xfee0_2000, 2, false);
        let open = MsiEvent::Update { vector: 0, address: 0xfee0_2000, data: 2, masked: false };
        assert_eq!(sink.take(), [open]);
    }

    #[test]
    fn without_a_sink_interrupts_wait() {
        let table = MsixTable::new(1);
        table.set_control(true, false);
        program(&table, 0, 0xfee0_0000, 9, false);
        table.trigger(0);
        assert!(table.pending(0));
        let sink = Arc::new(RecordingSink::default());
        table.connect(sink.clone());
        assert_eq!(sink.notified(), [0]);
        table.disconnect();
        table.trigger(0);
        assert_eq!(sink.notified(), [0]);
        assert!(table.pending(0));
    }

    #[test]
    fn odd_accesses_are_ignored() {
        let (table, _) = table(1);
        for (offset, len) in [(0, 1), (0, 2), (2, 4), (4, 8), (12, 8), (16, 4), (u64::MAX, 8)] {
            let mut data = vec![0; len];
            table.table_write(offset, &data);
            table.table_read(offset, &mut data);
            assert_eq!(data, vec![0xff; len], "offset {offset} length {len}");
        }
        table.trigger(u16::MAX);
    }

    /// An interrupt raised while another thread masks and unmasks arrives once the
    /// vector is open, never later and never not at all.
    #[test]
    fn racing_unmask_loses_nothing() {
        for round in 1..=200 {
            let (table, sink) = table(1);
            table.set_control(true, false);
            program(&table, 0, 0xfee0_0000, 0, false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for masked in [1u32, 0, 1, 0, 1, 0] {
                        table.table_write(12, &masked.to_le_bytes());
                    }
                });
                table.trigger(0);
            });
            assert_eq!(sink.notified(), [0], "round {round}");
            assert!(!table.pending(0));
        }
    }

    proptest! {
        /// A model of one vector: message delivered = (open at trigger) or (pending
        /// at the time it opens).
        #[test]
        fn delivery_follows_the_model(steps in proptest::collection::vec(0u8..7, 0..60)) {
            let (table, sink) = table(1);
            let (mut enable, mut function, mut own) = (false, false, true);
            let (mut pending, mut delivered) = (false, 0);
            for step in steps {
                match step {
                    0 => enable = !enable,
                    1 => function = !function,
                    2 => own = false,
                    3 => own = true,
                    _ => {
                        table.trigger(0);
                        pending |= enable;
                    }
                }
                table.set_control(enable, function);
                table.table_write(12, &u32::from(own).to_le_bytes());
                if pending && enable && !function && !own {
                    pending = false;
                    delivered += 1;
                }
                prop_assert_eq!(table.pending(0), pending);
                prop_assert_eq!(sink.notified().len(), delivered);
            }
        }
    }
}
