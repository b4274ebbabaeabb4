//! A ring of records with one writing thread and several readers, and the encoding of the records.
//!
//! Cycle: `super`, because what is packed here is defined there.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

use tofu_abi::desc::{Header1, Header2};
use tofu_abi::{Coords, CqId, Rcode, StagOffset, TniId};
use tofu_fabric::NodeId;
use tofu_icc::{Event, Tag};

use super::{Record, What};

/// Number of words of a record.
pub(super) const WORDS: usize = 8;
pub(super) type Words = [u64; WORDS];
/// The place of a record in a ring.
type RecordWords = [AtomicU64; WORDS];

/// The last records of a thread.
pub(super) struct Ring {
    records: Box<[RecordWords]>,
    /// Number of records written so far.
    head: AtomicU64,
    /// True if a thread writes here.
    taken: AtomicBool,
}

impl Ring {
    /// A ring for this number of records, already entered by the calling thread.
    pub(super) fn new(records: usize) -> Self {
        let records = (0..records.next_power_of_two()).map(|_| Default::default()).collect();
        Self { records, head: AtomicU64::new(0), taken: AtomicBool::new(true) }
    }

    /// Claims the ring for a thread. Returns false if another thread has it.
    pub(super) fn enter(&self) -> bool {
        !self.taken.swap(true, SeqCst)
    }

    pub(super) fn leave(&self) {
        self.taken.store(false, SeqCst);
    }

    pub(super) fn head(&self) -> u64 {
        self.head.load(Acquire)
    }

    #[inline]
    fn place(&self, number: u64) -> &RecordWords {
        &self.records[number as usize & (self.records.len() - 1)]
    }

    /// Replaces the oldest record: `write` stores the new one. Only the thread that has entered may
    /// call this.
    #[inline]
    pub(super) fn push(&self, write: impl FnOnce(&RecordWords)) {
        let head = self.head.load(Relaxed);
        // A reader that sees any word of this record then sees the whole record before it.
        fence(Release);
        write(self.place(head));
        self.head.store(head + 1, Release);
    }

    /// Reads the records since `cursor`, and advances the cursor. Returns how many records were
    /// overwritten before they could be read.
    pub(super) fn read(&self, cursor: &mut u64, mut take: impl FnMut(Words)) -> u64 {
        let size = self.records.len() as u64;
        let head = self.head();
        let mut lost = 0;
        while *cursor < head {
            let oldest = head.saturating_sub(size);
            if *cursor < oldest {
                lost += oldest - *cursor;
                *cursor = oldest;
            }
            let words = self.place(*cursor).each_ref().map(|word| word.load(Relaxed));
            fence(Acquire);
            // The writer may already be at the record `size` places further.
            if self.head.load(Relaxed) >= *cursor + size {
                lost += 1;
            } else {
                take(words);
            }
            *cursor += 1;
        }
        lost
    }
}

const BEGUN: u64 = 1;
const AT_ONCE: u64 = 2;
const SERVED: u64 = 3;
const ANSWERED: u64 = 4;
const ENDED: u64 = 5;
const INTERRUPT: u64 = 6;
const ACCESS: u64 = 7;

fn kind(kind: u64, tni: TniId, cq: CqId, rcode: Rcode) -> u64 {
    kind | u64::from(tni.get()) << 8 | u64::from(cq.get()) << 16 | u64::from(rcode.raw()) << 24
}

fn tag(tag: Tag, a: u8, b: u8) -> u64 {
    u64::from(tag.generation) | u64::from(tag.index) << 32 | u64::from(a) << 48 | u64::from(b) << 56
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Stores the first words of a record at its place. The other words keep their old values: each
/// omitted store counts in the few that a whole Put can afford.
#[inline]
fn set<const N: usize>(place: &RecordWords, words: [u64; N]) {
    for (place, word) in place.iter().zip(words) {
        place.store(word, Relaxed);
    }
}

/// Encodes an event with its time at a place.
#[inline]
pub(super) fn pack(place: &RecordWords, now: u64, node: NodeId, what: &What) {
    let at = u64::from(node.0) << 32;
    match what {
        What::Command(event) => pack_event(place, now, node, event),
        What::Interrupt(vector) => set(place, [now, INTERRUPT | at, (*vector).into()]),
        What::Access { offset, write } => {
            set(place, [now, ACCESS | at, u64::from(*write), *offset]);
        }
    }
}

/// Encodes a step of a command, like [`pack`].
#[inline]
pub(super) fn pack_event(place: &RecordWords, now: u64, node: NodeId, event: &Event) {
    let at = u64::from(node.0) << 32;
    let ok = Rcode::SUCCESS;
    match *event {
        Event::Begun { tni, tag: of, slot, header1, header2, remote, local, length } => {
            let word = kind(BEGUN, tni, of.cq, ok) | at;
            let numbers = pair(length, slot);
            let headers = (header1.0, header2.0);
            set(
                place,
                [now, word, tag(of, 0, 0), numbers, remote.0, local.0, headers.0, headers.1],
            );
        }
        Event::AtOnce { tni, cq, slot, header1, rcode } => {
            let word = kind(AT_ONCE, tni, cq, rcode) | at;
            set(place, [now, word, 0, pair(0, slot), 0, 0, header1.0]);
        }
        Event::Served { since, tni, from, from_tni, tag: of, position, done, rcode } => {
            let [x, y, z, a, b, c] = from.to_array();
            let from = u64::from_le_bytes([x, y, z, a, b, c, 0, 0]);
            let word = kind(SERVED, tni, of.cq, rcode) | at;
            set(place, [now, word, tag(of, 0, from_tni.get()), pair(position, done), since, from]);
        }
        Event::Answered { tni, tag: of, position, done, rcode } => {
            let word = kind(ANSWERED, tni, of.cq, rcode) | at;
            set(place, [now, word, tag(of, 0, 0), pair(position, done)]);
        }
        Event::Ended { tni, tag: of, rcode, sent } => {
            let word = kind(ENDED, tni, of.cq, rcode) | at;
            set(place, [now, word, tag(of, sent.raw(), 0)]);
        }
    }
}

/// Decodes a record; `time` converts ticks to nanoseconds since 1970.
pub(super) fn unpack(thread: u32, words: &Words, time: impl Fn(u64) -> u64) -> Option<Record> {
    let [now, word, tag, numbers, remote, local, header1, header2] = *words;
    let tni = || TniId::new((word >> 8) as u8);
    let rcode = Rcode::new((word >> 24) as u8);
    let cq = || CqId::new((word >> 16) as u8);
    let of = || Some(Tag { cq: cq()?, index: (tag >> 32) as u16, generation: tag as u32 });
    let (low, high) = (numbers as u32, (numbers >> 32) as u32);
    let what = match word & 0xff {
        BEGUN => What::Command(Event::Begun {
            tni: tni()?,
            tag: of()?,
            slot: high,
            header1: Header1(header1),
            header2: Header2(header2),
            remote: StagOffset(remote),
            local: StagOffset(local),
            length: low,
        }),
        AT_ONCE => What::Command(Event::AtOnce {
            tni: tni()?,
            cq: cq()?,
            slot: high,
            header1: Header1(header1),
            rcode,
        }),
        SERVED => {
            let [x, y, z, a, b, c, ..] = local.to_le_bytes();
            What::Command(Event::Served {
                since: if remote == 0 { 0 } else { time(remote) },
                tni: tni()?,
                from: Coords::from_array([x, y, z, a, b, c]),
                from_tni: TniId::new((tag >> 56) as u8)?,
                tag: of()?,
                position: low,
                done: high,
                rcode,
            })
        }
        ANSWERED => What::Command(Event::Answered {
            tni: tni()?,
            tag: of()?,
            position: low,
            done: high,
            rcode,
        }),
        ENDED => What::Command(Event::Ended {
            tni: tni()?,
            tag: of()?,
            rcode,
            sent: Rcode::new((tag >> 48) as u8),
        }),
        INTERRUPT => What::Interrupt(tag as u16),
        ACCESS => What::Access { offset: numbers, write: tag != 0 },
        _ => return None,
    };
    Some(Record { time_ns: time(now), node: NodeId((word >> 32) as u32), thread, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_whole_or_lost() {
        const RECORDS: u64 = 200_000;
        let ring = Ring::new(64);
        let (mut read, mut lost, mut cursor) = (0, 0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..RECORDS).for_each(|n| ring.push(|place| set(place, [n; WORDS]))));
            while cursor < RECORDS {
                let from = cursor;
                let mut next = from;
                lost += ring.read(&mut cursor, |words| {
                    assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
                    assert!(words[0] >= next);
                    next = words[0] + 1;
                    read += 1;
                });
            }
        });
        assert_eq!(read + lost, RECORDS);
        // At least the last ones. The reader gives up the oldest record, because the writer may
        // already be at its place.
        assert!(read >= 63, "{read}");
    }

    #[test]
    fn records_round_trip() {
        let tag = Tag { cq: CqId::ALL[11], index: 63, generation: u32::MAX };
        let (tni, rcode) = (TniId::ALL[5], Rcode::STAG_DISABLED);
        let from = Coords::new(1, 2, 3, 1, 2, 1);
        let (remote, local) = (StagOffset(1 << 60 | 7), StagOffset(9));
        let (header1, header2) = (Header1(u64::MAX), Header2(5));
        let slot = 77;
        for what in [
            What::Command(Event::Begun {
                tni,
                tag,
                slot,
                header1,
                header2,
                remote,
                local,
                length: 1 << 24,
            }),
            What::Command(Event::AtOnce { tni, cq: tag.cq, slot, header1, rcode }),
            What::Command(Event::Served {
                since: 3,
                tni,
                from,
                from_tni: TniId::ALL[4],
                tag,
                position: 1,
                done: 2,
                rcode,
            }),
            What::Command(Event::Answered { tni, tag, position: 1, done: 2, rcode }),
            What::Command(Event::Ended { tni, tag, rcode, sent: Rcode::SUCCESS }),
            What::Interrupt(515),
            What::Access { offset: u64::MAX, write: true },
        ] {
            // Filled with the words of a former record.
            let place = RecordWords::from([u64::MAX; WORDS].map(AtomicU64::new));
            pack(&place, 10, NodeId(768), &what);
            let words = place.map(AtomicU64::into_inner);
            let record = unpack(2, &words, |ticks| ticks).unwrap();
            let expected = Record { time_ns: 10, node: NodeId(768), thread: 2, what };
            assert_eq!(format!("{record:?}"), format!("{expected:?}"));
        }
    }
}
