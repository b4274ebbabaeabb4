//! Reports of the steps of commands to the host.

use tofu_abi::Rcode;
use tofu_abi::TniId;
use tofu_abi::desc::Header1;

use crate::command::Message;
use crate::completions::Slot;
use crate::cq::Cq;
use crate::device::Icc;
use crate::notice::Peer;
use crate::observe::trace_events::{Event, Subject};
use crate::target::Incoming;
use crate::tlp::{Answer, Tag};

/// Requests of at least this many bytes read the clock at their begin, too. Serving shorter ones
/// takes little longer than reading the clock (ours).
const LONG: u32 = 1024;

impl Icc {
    /// Turns reports of all commands to [`Host::observe`](crate::Host::observe) and
    /// [`Host::explain`](crate::Host::explain) on or off.
    pub fn set_traced(&self, on: bool) {
        self.traced.set(on);
    }

    #[inline(never)]
    pub(crate) fn tell_begun(&self, tni: TniId, slot: Slot, tag: Tag, message: &Message) {
        self.host().observe(&Event::Begun {
            tni,
            tag,
            slot: slot.index,
            header1: message.header1,
            header2: message.header2,
            remote: message.remote,
            local: message.local,
            length: message.length,
        });
    }

    #[inline]
    pub(crate) fn tell_at_once(&self, queue: &Cq, slot: Slot, header1: Header1, rcode: Rcode) {
        if self.traced.is_on() {
            let (tni, cq, slot) = (queue.tni, queue.id, slot.index);
            self.host().observe(&Event::AtOnce { tni, cq, slot, header1, rcode });
        }
    }

    /// The arrival time of a request of this length, if commands are traced.
    #[inline]
    pub(crate) fn came(&self, length: u32) -> u64 {
        if self.traced.is_on() && length >= LONG { self.host().stamp() } else { 0 }
    }

    #[inline]
    pub(crate) fn tell_served(&self, since: u64, incoming: &Incoming<'_>, answer: &Answer) {
        if self.traced.is_on() {
            let Incoming { tni, from, .. } = *incoming;
            let Answer { tag, position, done, rcode, .. } = *answer;
            let (from, from_tni) = (from.node, from.tni);
            let served = Event::Served { since, tni, from, from_tni, tag, position, done, rcode };
            self.host().observe(&served);
        }
    }

    /// Reports a received frame; `done` bytes of it are in the packet receive queue.
    pub(crate) fn tell_received(&self, tni: TniId, from: Peer, tag: Tag, done: usize) {
        if self.traced.is_on() {
            let (from, from_tni) = (from.node, from.tni);
            let (since, position, done, rcode) = (0, 0, done as u32, Rcode::SUCCESS);
            let served = Event::Served { since, tni, from, from_tni, tag, position, done, rcode };
            self.host().observe(&served);
        }
    }

    #[inline]
    pub(crate) fn tell_answered(&self, tni: TniId, answer: &Answer) {
        if self.traced.is_on() {
            let Answer { tag, position, done, rcode, .. } = *answer;
            self.host().observe(&Event::Answered { tni, tag, position, done, rcode });
        }
    }

    /// Reports why a command has failed or a request was refused.
    pub(crate) fn tell_why(&self, subject: Subject, why: &str) {
        if self.traced.is_on() {
            self.host().explain(&subject, why);
        }
    }
}
