//! All operations of uTofu, between the two nodes of each pair: both apply them to each other, and
//! each checks what it finds. Features that the nodes' generation lacks must be refused.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;

use tofu_abi::BgId;
use tofu_guests::{Error, fail, println};
use tofu_guests_utofu::{MEMORY, Node, Vcqs};
use tofu_utofu::command::{Packets, Posting};
use tofu_utofu::flags::{
    DELAY_START, LOCAL_MRQ_NOTICE, REMOTE_MRQ_NOTICE, STRONG_ORDER, TCQ_NOTICE, VCQ_SESSION_MODE,
    sps,
};
use tofu_utofu::ids::{Stadd, VbgId, VcqId};
use tofu_utofu::{Code, Command, Context, Notice, NoticeKind, VbgSetting, Vcq};
use tofu_utofu_bare::BareProvider;

/// The memory: words for meetings and atomic commands, then places that are written, then data that
/// is sent.
const SIZE: usize = 1 << 20;
const MEETING: u64 = 0;
const COUNTER: u64 = 8;
const LOCK: u64 = 16;
const INBOX: u64 = 4096;
const OUTBOX: u64 = SIZE as u64 / 2;
/// Reduces to the sum.
const SUM: u32 = 7;
/// The time limit for the other node, in nanoseconds.
const PATIENCE_NS: u64 = 30_000_000_000;

tofu_guests::entry!(all);

/// This node's end of a pair.
struct Pair {
    context: Context<BareProvider>,
    vcqs: Vec<Vcq<BareProvider>>,
    /// The other node's VCQs, and where its memory starts for each.
    ids: Vec<VcqId>,
    theirs: u64,
    mine: u64,
    memory: *mut u8,
    meetings: u64,
}

/// Polls until there is something.
fn wait<T>(
    vcq: &Vcq<BareProvider>,
    what: &str,
    mut poll: impl FnMut() -> Option<T>,
) -> Result<T, Error> {
    let start = tofu_guests::now_ns();
    loop {
        if let Some(found) = poll() {
            return Ok(found);
        }
        if tofu_guests::now_ns() - start > PATIENCE_NS {
            return Err(fail!("no {what}"));
        }
        vcq.relax();
    }
}

impl Pair {
    fn open() -> Result<Self, Error> {
        let node = Node::open()?;
        let rank = node.rank;
        // The last one of an odd number of nodes is its own peer.
        let peer = if rank ^ 1 < node.shape.nodes() { rank ^ 1 } else { rank };
        let Vcqs { own: vcqs, ids, memory } = Vcqs::open(&node, node.coords(peer)?, SIZE)?;
        let context = node.context;
        let stadd = Stadd::reserved(ids[0], MEMORY)?.0;
        let mut pair = Self { context, vcqs, ids, theirs: stadd, mine: stadd, memory, meetings: 0 };
        pair.first_meeting()?;
        Ok(pair)
    }

    fn set(&self, at: u64, len: usize, byte: impl Fn(usize) -> u8) {
        for i in 0..len {
            // SAFETY: within the memory, which has no references.
            unsafe { self.memory.add(at as usize + i).write_volatile(byte(i)) };
        }
    }

    fn is(&self, at: u64, len: usize, byte: impl Fn(usize) -> u8) -> bool {
        // SAFETY: as above.
        (0..len).all(|i| unsafe { self.memory.add(at as usize + i).read_volatile() } == byte(i))
    }

    fn word(&self, at: u64) -> u64 {
        // SAFETY: as above; words are aligned.
        unsafe { self.memory.add(at as usize).cast::<u64>().read_volatile() }
    }

    fn to(&self, tni: usize, edata: u64, flags: u64) -> Result<Posting, Error> {
        Ok(Posting::new(self.ids[tni].0, edata, flags)?)
    }

    /// Runs a command until it is sent, which must succeed.
    fn run(&self, tni: usize, command: &Command) -> Result<(), Error> {
        let vcq = &self.vcqs[tni];
        vcq.post(command, 9)?;
        let done = wait(vcq, "completion", || vcq.poll_tcq())?;
        match (done.cbdata, done.status()) {
            (9, Code::Success) => Ok(()),
            (cbdata, code) => Err(fail!("a command ended with {} ({cbdata})", code.name())),
        }
    }

    /// Returns true if a command that this generation does not have is refused.
    fn is_refused(&self, command: &Command) -> bool {
        let posted = self.vcqs[0].post(command, 9);
        posted.is_err_and(|error| error.code() == Code::NotSupported)
    }

    fn notice(&self, kind: NoticeKind) -> Result<Notice, Error> {
        let vcq = &self.vcqs[0];
        let notice = wait(vcq, "notice", || vcq.poll_mrq())?;
        if notice.kind == kind && notice.status() == Code::Success {
            return Ok(notice);
        }
        Err(fail!("{:?} ({}) where {kind:?} was due", notice.kind, notice.status().name()))
    }

    /// Announces this node to the other one once that is there, and waits for the same.
    fn first_meeting(&mut self) -> Result<(), Error> {
        let start = tofu_guests::now_ns();
        let flags = TCQ_NOTICE | LOCAL_MRQ_NOTICE;
        let hello = self.to(0, 0, flags)?.put_piggyback8(1, 8, self.theirs + MEETING)?;
        loop {
            // A Put to a node that is not there yet is dropped, according to the notice.
            self.run(0, &hello)?;
            match self.notice(NoticeKind::LclPut) {
                Ok(_) => break,
                Err(error) if tofu_guests::now_ns() - start > PATIENCE_NS => return Err(error),
                Err(_) => {}
            }
        }
        self.meetings = 1;
        wait(&self.vcqs[0], "other node", || (self.word(MEETING) >= 1).then_some(()))
    }

    /// Both nodes have come here.
    fn meet(&mut self) -> Result<(), Error> {
        self.meetings += 1;
        let number = self.meetings;
        let word = self.to(0, 0, TCQ_NOTICE)?.put_piggyback8(number, 8, self.theirs + MEETING)?;
        self.run(0, &word)?;
        wait(&self.vcqs[0], "other node", || (self.word(MEETING) >= number).then_some(()))
    }

    /// A Put at odd addresses, whose target gets a notice when all of it has arrived.
    fn put(&mut self) -> Result<bool, Error> {
        self.set(OUTBOX + 1, 5000, |i| (i * 7) as u8);
        let flags = TCQ_NOTICE | LOCAL_MRQ_NOTICE | REMOTE_MRQ_NOTICE;
        let put = self.to(0, 0x5a, flags)?.put(
            self.mine + OUTBOX + 1,
            self.theirs + INBOX + 3,
            5000,
            Packets::new(256, 1)?,
        )?;
        self.run(0, &put)?;
        // The other node's Put may arrive first.
        let vcq = &self.vcqs[0];
        let one = wait(vcq, "notice", || vcq.poll_mrq())?;
        let two = wait(vcq, "notice", || vcq.poll_mrq())?;
        let kinds = [one.kind, two.kind];
        let end = self.mine + INBOX + 5003;
        Ok(kinds.contains(&NoticeKind::LclPut)
            && kinds.contains(&NoticeKind::RmtPut)
            && [one, two].iter().all(|n| n.edata == 0x5a && n.rmt_stadd == end)
            && self.is(INBOX + 3, 5000, |i| (i * 7) as u8))
    }

    fn get(&mut self) -> Result<bool, Error> {
        self.set(OUTBOX, 70_000, |i| (i * 5 + i / 256) as u8);
        self.meet()?;
        let get = self.to(0, 0, TCQ_NOTICE)?.get(
            self.mine + INBOX + 7,
            self.theirs + OUTBOX,
            70_000,
            Packets::default(),
        )?;
        self.run(0, &get)?;
        Ok(self.is(INBOX + 7, 70_000, |i| (i * 5 + i / 256) as u8))
    }

    fn piggyback(&mut self) -> Result<bool, Error> {
        let data: [u8; 32] = core::array::from_fn(|i| i as u8 + 1);
        for len in 1..=32 {
            let at = self.theirs + INBOX + len as u64 * 64;
            self.run(0, &self.to(0, 0, TCQ_NOTICE)?.put_piggyback(&data[..len], at)?)?;
        }
        self.meet()?;
        Ok((1..=32).all(|len| self.is(INBOX + len as u64 * 64, len, |i| i as u8 + 1)))
    }

    /// Additions whose old values are all different.
    fn counter(&mut self) -> Result<bool, Error> {
        let add =
            self.to(0, 0, TCQ_NOTICE | LOCAL_MRQ_NOTICE)?.armw(2, 3, 8, self.theirs + COUNTER)?;
        if !self.context.description().atomics {
            return Ok(self.is_refused(&add));
        }
        let mut good = true;
        for n in 0..100 {
            self.run(0, &add)?;
            good &= self.notice(NoticeKind::LclArmw)?.rmt_value == n * 3;
        }
        self.meet()?;
        Ok(good && self.word(COUNTER) == 300)
    }

    /// Compare and swap in both sizes: once it matches, once it does not.
    fn swap(&mut self) -> Result<bool, Error> {
        let to = self.to(0, 0, TCQ_NOTICE | LOCAL_MRQ_NOTICE)?;
        let at = self.theirs + LOCK;
        if !self.context.description().atomics {
            let commands = [to.cswap8(0, 1, at)?, to.cswap4(0, 1, at)?];
            return Ok(commands.iter().all(|command| self.is_refused(command)));
        }
        let mut old = Vec::new();
        for command in [
            to.cswap8(0, 1 << 40, at)?,
            to.cswap8(0, 5, at)?,
            to.cswap4(0, 6, at)?,
            to.cswap4(7, 8, at)?,
            to.armw(1, 0, 4, at)?,
        ] {
            self.run(0, &command)?;
            old.push(self.notice(NoticeKind::LclArmw)?.rmt_value);
        }
        self.meet()?;
        Ok(old == [0, 1 << 40, 0, 6, 6] && self.word(LOCK) == 1 << 40)
    }

    fn blocks(&mut self) -> Result<bool, Error> {
        self.set(INBOX, 3000, |_| 0);
        self.set(OUTBOX, 3000, |i| i as u8 | 1);
        self.meet()?;
        let put = self.to(0, 0, TCQ_NOTICE)?.put(
            self.mine + OUTBOX,
            self.theirs + INBOX,
            10,
            Packets::default(),
        )?;
        let vcq = &self.vcqs[0];
        vcq.post_blocks(&put, 100, 20, 3)?;
        let mut good = true;
        for _ in 0..20 {
            let done = wait(vcq, "completion", || vcq.poll_tcq())?;
            good &= done.cbdata == 3 && done.status() == Code::Success;
        }
        self.meet()?;
        let byte = |i: usize| if i % 100 < 10 { i as u8 | 1 } else { 0 };
        Ok(good && self.is(INBOX, 2000, byte))
    }

    /// Prepared commands in a row that wait for the last one.
    fn prepared(&mut self) -> Result<bool, Error> {
        self.set(INBOX, 64, |_| 0);
        self.meet()?;
        let later = self.to(0, 0, DELAY_START)?;
        let mut descriptors = Vec::new();
        for i in 0..8 {
            let put = later.put_piggyback8(i + 1, 8, self.theirs + INBOX + i * 8)?;
            descriptors.extend_from_slice(put.prepared());
        }
        self.vcqs[0].post_prepared(&descriptors, 1)?;
        let waiting = self.vcqs[0].unread_tcq() == 0;
        self.run(0, &Command::nop(TCQ_NOTICE)?)?;
        // Completions are in order, so all of them are there.
        self.meet()?;
        Ok(waiting && (0..8).all(|i| self.word(INBOX + i * 8) == i + 1))
    }

    /// A command that the other node starts.
    fn session(&mut self) -> Result<bool, Error> {
        self.set(INBOX, 32, |_| 0);
        let session = self.context.create_vcq(1, None, VCQ_SESSION_MODE);
        if !self.context.description().session_mode {
            return Ok(session.is_err_and(|error| error.code() == Code::NotSupported));
        }
        let session = session?;
        // SAFETY: the memory is never freed, and only accessed by volatile accesses.
        unsafe { session.reg_mem(self.memory, SIZE, Some(MEMORY), 0)? };
        self.meet()?;
        let tell = self.to(0, 0, TCQ_NOTICE)?;
        let id = session.id().0;
        self.run(0, &tell.put_piggyback8(id, 8, self.theirs + INBOX)?)?;
        self.meet()?;
        let other = VcqId(self.word(INBOX));
        session.post(&self.to(0, 0, 0)?.put_piggyback8(77, 8, self.theirs + INBOX + 8)?, 0)?;
        self.meet()?;
        let waiting = self.word(INBOX + 8) == 0;
        self.meet()?;
        let start = Posting::new(other.0, 0, TCQ_NOTICE | sps(1))?;
        let at = Stadd::reserved(other, MEMORY)?.0 + INBOX + 16;
        self.run(0, &start.put_piggyback8(1, 8, at)?)?;
        let vcq = &self.vcqs[0];
        wait(vcq, "message of the session", || (self.word(INBOX + 8) == 77).then_some(()))?;
        // The session's queue is needed until the other node has started it.
        self.meet()?;
        Ok(waiting && self.word(INBOX + 16) == 1)
    }

    /// A part over each interface.
    fn striping(&mut self) -> Result<bool, Error> {
        self.set(OUTBOX, 60_000, |i| (i * 3 + i / 256) as u8);
        self.set(INBOX, 60_000, |_| 0);
        self.meet()?;
        let part = 60_000 / self.vcqs.len() as u64;
        for tni in 0..self.vcqs.len() {
            let at = tni as u64 * part;
            let put = self.to(tni, 0, TCQ_NOTICE)?.put(
                self.mine + OUTBOX + at,
                self.theirs + INBOX + at,
                part as usize,
                Packets::default(),
            )?;
            self.vcqs[tni].post(&put, tni)?;
        }
        for (tni, vcq) in self.vcqs.iter().enumerate() {
            let done = wait(vcq, "completion", || vcq.poll_tcq())?;
            if (done.cbdata, done.status()) != (tni, Code::Success) {
                return Ok(false);
            }
        }
        self.meet()?;
        Ok(self.is(INBOX, 60_000, |i| (i * 3 + i / 256) as u8))
    }

    /// The last word is written last: no notice is needed to know that everything has arrived.
    fn strong_order(&mut self) -> Result<bool, Error> {
        self.set(INBOX, 8192, |_| 0);
        self.set(OUTBOX, 8192, |i| i as u8 | 1);
        self.meet()?;
        let put = self.to(0, 0, STRONG_ORDER)?.put(
            self.mine + OUTBOX,
            self.theirs + INBOX,
            8192,
            Packets::default(),
        )?;
        self.vcqs[0].post(&put, 0)?;
        wait(&self.vcqs[0], "last word", || (self.word(INBOX + 8184) != 0).then_some(()))?;
        Ok(self.is(INBOX, 8192, |i| i as u8 | 1))
    }

    /// Commands that fail have their codes, and the next one works.
    fn failures(&mut self) -> Result<bool, Error> {
        let to = self.to(0, 0, TCQ_NOTICE | LOCAL_MRQ_NOTICE)?;
        let (all, never) = (Packets::default(), Stadd::new(8190, 0).0);
        let (mine, theirs) = (self.mine, self.theirs);
        let end = SIZE as u64 - 4;
        let atomics = self.context.description().atomics;
        let unaligned = to.armw(2, 1, 8, theirs + 4)?;
        let mut good = true;
        for (command, tcq, mrq) in [
            (to.put(never, theirs, 8, all)?, Code::TcqStadd, Code::MrqLclStadd),
            (to.put(mine, never, 8, all)?, Code::Success, Code::MrqRmtStadd),
            (to.get(mine + end, theirs, 8, all)?, Code::TcqLength, Code::MrqLclLength),
            (to.get(mine, theirs + end, 8, all)?, Code::Success, Code::MrqRmtLength),
        ]
        .into_iter()
        .chain(atomics.then_some((unaligned, Code::Success, Code::MrqRmtStadd)))
        {
            let vcq = &self.vcqs[0];
            vcq.post(&command, 0)?;
            good &= wait(vcq, "completion", || vcq.poll_tcq())?.status() == tcq;
            good &= wait(vcq, "notice", || vcq.poll_mrq())?.status() == mrq;
        }
        self.run(0, &Command::nop(TCQ_NOTICE)?)?;
        Ok(good)
    }

    /// Barriers and sums by a start and end gate and a relay of each node, on an interface that has
    /// gates: in all generations that is interface 0.
    fn barriers(&mut self) -> Result<bool, Error> {
        let (me, other) = (self.context.coords(), self.ids[0].coords());
        if me == other {
            return Ok(true);
        }
        let tni = self.context.barrier_tnis().next().ok_or_else(|| fail!("no barriers"))?;
        let own = self.context.alloc_vbg(tni.get().into(), 2, 0)?;
        // The other node has allocated the same gates.
        let theirs = |id: VbgId| BgId::new(id.bg()).map(|bg| VbgId::new(other, tni, bg));
        let (start, relay) = (own[0], own[1]);
        let [their_start, their_relay] = [start, relay].map(theirs);
        self.context.set_vbg(&[
            VbgSetting {
                src_local: Some(relay),
                dst_local: Some(relay),
                dst_remote: their_relay,
                ..VbgSetting::new(start)
            },
            VbgSetting {
                src_local: Some(start),
                src_remote: their_start,
                dst_local: Some(start),
                ..VbgSetting::new(relay)
            },
        ])?;
        // Signals to gates that are not linked yet are lost.
        self.meet()?;
        let most = self.context.integers_at_once();
        let mut good = true;
        for round in 0..50 {
            self.context.barrier(start, 0)?;
            wait(&self.vcqs[0], "barrier", || {
                let done = self.context.poll_barrier(start, 0);
                let under_way = done.as_ref().is_err_and(is_under_way);
                (!under_way).then_some(done)
            })??;
            let terms: Vec<u64> = (0..most as u64).map(|i| round + i).collect();
            self.context.reduce_uint64(start, SUM, &terms, 0)?;
            let sums = wait(&self.vcqs[0], "sum", || {
                let done = self.context.poll_reduce_uint64(start, 0);
                let under_way = done.as_ref().is_err_and(is_under_way);
                (!under_way).then_some(done)
            })??;
            good &= sums.iter().zip(&terms).all(|(sum, term)| *sum == 2 * term);
        }
        self.meet()?;
        self.context.free_vbg(&own)?;
        Ok(good)
    }
}

fn is_under_way(error: &tofu_utofu::Error) -> bool {
    error.code() == Code::NotCompleted
}

/// True if all was as expected.
type Example = fn(&mut Pair) -> Result<bool, Error>;

fn all() -> Result<(), Error> {
    let mut pair = Pair::open()?;
    let examples: [(&str, Example); 12] = [
        ("put", Pair::put),
        ("get", Pair::get),
        ("piggyback", Pair::piggyback),
        ("counter", Pair::counter),
        ("swap", Pair::swap),
        ("blocks", Pair::blocks),
        ("prepared", Pair::prepared),
        ("session", Pair::session),
        ("striping", Pair::striping),
        ("strong order", Pair::strong_order),
        ("failures", Pair::failures),
        ("barriers", Pair::barriers),
    ];
    for (name, example) in examples {
        pair.meet()?;
        if !example(&mut pair)? {
            return Err(fail!("{name}: not what was expected"));
        }
    }
    pair.meet()?;
    println!("{} examples between two nodes, all as expected", examples.len());
    Ok(())
}
