//! The device: six link modules and the code that drives them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tofu_abi::Coords;
use tofu_abi::tnw::{
    CHANNELS, Cancel, Channel, Errors, LINKS, Link, MAX_MESSAGE, MAX_STORE, Mode, Start, Status,
    WINDOW_BAR, WINDOW_PLACES, WINDOW_SIZE, WindowPlace, vector,
};
use tofu_abi::topology::Shape;
use tofu_dma::{Access, DmaMemory};
use tofu_rules::{Device, Point, Report, Rule, Rules};
use tofu_sync::lock;

use crate::host::{Host, Net};
use crate::link::{Arrival, LinkEnd, NEVER, Room};
use crate::receive::{Done, Receive, Request};
use crate::shared::SharedWindows;
use crate::transmit::Transmit;
use crate::unit::{MAX_RUN, Unit};

/// The most units that wait at a link. A neighbour that obeys the protocol has fewer in flight.
/// Further units are lost, as on a link.
const INBOX: usize = 4 * crate::link::TX_BUFFER as usize;
/// The most units that a link processes before the next link's turn.
const ARRIVALS_PER_TURN: usize = 256;
/// Rounds over a link's channels before another link's turn. In each round a channel sends at most
/// one run and moves at most one.
const ROUNDS_PER_TURN: usize = 16;

/// The configuration of a device.
#[derive(Clone, Debug)]
pub struct Config {
    /// The coordinates of the node.
    pub coords: Coords,
    /// The machine's shape; A, B and C are of length 1.
    pub shape: Shape,
    /// The first life of the device's links. A device that replaces another one needs a higher
    /// number than that one had, modulo 2^16.
    pub life: u16,
    /// Memory for windows that the guest maps, if there is any.
    pub windows: Option<SharedWindows>,
}

/// The network processor of a node.
pub struct Nwp {
    pub(crate) config: Config,
    pub(crate) host: Arc<dyn Host>,
    memory: Arc<dyn DmaMemory>,
    pub(crate) enabled: AtomicBool,
    bus_master: AtomicBool,
    pub(crate) errors: AtomicU64,
    pub(crate) stray_stores: AtomicU64,
    pub(crate) bad_accesses: AtomicU64,
    pub(crate) rules: Rules,
    pub(crate) links: [LinkModule; LINKS],
    /// Held while windows become memory or registers, so that the host is notified in the same
    /// order.
    modes: Mutex<()>,
}

/// A link module (section 2.2).
pub(crate) struct LinkModule {
    pub(crate) present: bool,
    /// Units that have arrived and were not processed yet.
    inbox: Mutex<VecDeque<Unit>>,
    state: Mutex<LinkState>,
    /// True if the link has work.
    pending: AtomicBool,
    /// A copy of [`LinkEnd::deadline`].
    deadline: AtomicU64,
    /// The marks that the next packets in shared windows will have; 0 for windows that are
    /// registers.
    marks: [AtomicU64; CHANNELS],
}

impl LinkModule {
    /// Takes new packets from the window of a channel, if it is shared.
    fn look(&self, state: &mut LinkState, channel: usize) {
        state.tx[channel].look();
        self.note_mark(state, channel);
    }

    fn note_mark(&self, state: &LinkState, channel: usize) {
        self.marks[channel].store(state.tx[channel].next_mark().unwrap_or(0), Relaxed);
    }
}

/// The registers that make up a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posting {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) notify: u64,
}

/// The contents of a channel's page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) credit: Posting,
    pub(crate) nget: Posting,
    pub(crate) report: u64,
    pub(crate) refused: u64,
}

/// The state under a link module's lock.
pub(crate) struct LinkState {
    pub(crate) end: LinkEnd,
    pub(crate) tx: [Transmit; CHANNELS],
    pub(crate) rx: [Receive; CHANNELS],
    pub(crate) pages: [Page; CHANNELS],
    /// True if the HELLO of this end's new life is still to be sent.
    greet: bool,
    /// The channel that is the first to send, and the channel that is the first to be moved.
    next_tx: usize,
    next_rx: usize,
}

impl LinkState {
    fn new(life: u16) -> Self {
        Self {
            end: LinkEnd::new(life),
            tx: Default::default(),
            rx: Default::default(),
            pages: Default::default(),
            greet: false,
            next_tx: 0,
            next_rx: 0,
        }
    }

    fn room(&self) -> Room {
        std::array::from_fn(|c| self.rx[c].room())
    }
}

/// The life after this one. 0 is not a life.
const fn next_life(life: u16) -> u16 {
    match life.wrapping_add(1) {
        0 => 1,
        life => life,
    }
}

impl Nwp {
    /// A device in its reset state.
    pub fn new(config: Config, host: Arc<dyn Host>, memory: Arc<dyn DmaMemory>) -> Self {
        let links = Link::ALL.map(|link| LinkModule {
            present: config.shape.neighbor(config.coords, link.port()).is_some(),
            inbox: Mutex::default(),
            state: Mutex::new(LinkState::new(config.life.max(1))),
            pending: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
            marks: Default::default(),
        });
        Self {
            config,
            host,
            memory,
            enabled: AtomicBool::new(false),
            bus_master: AtomicBool::new(false),
            errors: AtomicU64::new(0),
            stray_stores: AtomicU64::new(0),
            bad_accesses: AtomicU64::new(0),
            rules: Rules::new(Device::Tnw),
            links,
            modes: Mutex::default(),
        }
    }

    /// Sets whether the device may access memory and send interrupts. Until then, work that needs
    /// this waits.
    pub fn set_bus_master(&self, on: bool) {
        self.bus_master.store(on, SeqCst);
        if !on {
            // Reads the memory that packets refer to for the last time.
            self.links.iter().for_each(|link| lock(&link.state).end.keep());
        } else {
            for link in &self.links {
                {
                    let mut state = lock(&link.state);
                    let state = &mut *state;
                    for (page, tx) in state.pages.iter_mut().zip(&state.tx) {
                        self.report(page, tx.head());
                    }
                }
                link.pending.store(true, SeqCst);
            }
            self.host.work();
        }
    }

    /// Returns true if a link leads to a neighbour.
    pub const fn leads_somewhere(&self, link: Link) -> bool {
        self.links[link.index()].present
    }

    pub(crate) fn is_bus_master(&self) -> bool {
        self.bus_master.load(SeqCst)
    }

    /// Number of units that have arrived on a link and were not processed yet.
    pub(crate) fn arrived(&self, link: Link) -> usize {
        lock(&self.links[link.index()].inbox).len()
    }

    fn dma(&self) -> Option<&Arc<dyn DmaMemory>> {
        self.bus_master.load(SeqCst).then_some(&self.memory)
    }

    /// Returns to the reset state. Pending work is dropped.
    pub fn reset(&self) {
        let _modes = lock(&self.modes);
        self.enabled.store(false, SeqCst);
        for (link, module) in Link::ALL.into_iter().zip(&self.links) {
            self.renew(link, module);
        }
        for counter in [&self.errors, &self.stray_stores, &self.bad_accesses] {
            counter.store(0, SeqCst);
        }
    }

    fn renew(&self, link: Link, module: &LinkModule) {
        let mut state = lock(&module.state);
        // The memory of units in flight must not be read after this.
        state.end.keep();
        let life = state.end.life();
        // A life that no neighbour has seen can be reused. Otherwise a driver that keeps resetting
        // the device would wrap around to numbers that its neighbour takes for old ones.
        *state = LinkState::new(if state.end.has_spoken() { next_life(life) } else { life });
        lock(&module.inbox).clear();
        module.deadline.store(NEVER, SeqCst);
        module.pending.store(false, SeqCst);
        let marks = module.marks.each_ref().map(|mark| mark.swap(0, Relaxed));
        drop(state);
        for (channel, mark) in Channel::ALL.into_iter().zip(marks) {
            if mark != 0 {
                self.host.window_shared(link, channel, false);
            }
        }
    }

    /// Handles a write to CONTROL.enable.
    pub(crate) fn enable(&self, on: bool) {
        let _modes = lock(&self.modes);
        if self.enabled.swap(on, SeqCst) == on {
            return;
        }
        for (link, module) in Link::ALL.into_iter().zip(&self.links) {
            if on {
                if module.present {
                    lock(&module.state).greet = true;
                    self.wake(link);
                }
                continue;
            }
            let done: Vec<Done> = {
                let mut state = lock(&module.state);
                let state = &mut *state;
                state.end.keep();
                let credits = state.rx.iter_mut().flat_map(Receive::cancel);
                credits.chain(state.tx.iter_mut().flat_map(Transmit::cancel)).collect()
            };
            done.into_iter().for_each(|done| self.notify(link, done));
            self.renew(link, module);
        }
    }

    /// Calls `f` with the state of a link, for accesses to registers.
    pub(crate) fn with_link<R>(&self, link: Link, f: impl FnOnce(&mut LinkState) -> R) -> R {
        f(&mut lock(&self.links[link.index()].state))
    }

    /// Notes that a link has work.
    pub(crate) fn wake(&self, link: Link) {
        if !self.links[link.index()].pending.swap(true, SeqCst) {
            self.host.work();
        }
    }

    /// Notes that a link accepts packets again, after [`Net::room`] was 0.
    pub fn room(&self, link: Link) {
        self.wake(link);
    }

    /// Notes errors, and sends the interrupt if any of them is new.
    pub(crate) fn error(&self, errors: Errors) {
        if errors.0 & !self.errors.fetch_or(errors.0, SeqCst) != 0 {
            self.host.interrupt(vector::ERROR);
        }
    }

    /// Writes a notification word, and sends the interrupt if the request wants one.
    fn notify(&self, link: Link, done: Done) {
        let Done { request, status, length } = done;
        let word = request.notification(status, length);
        let told = self.dma().is_some_and(|dma| dma.store(request.notify, word.0).is_ok());
        if !told {
            self.rules.broke(Rule::TnwNotify);
            self.error(Errors(0).with_refused(true));
            return;
        }
        self.rules.lane(link.index()).kept(Point::Notified);
        if request.interrupt {
            self.host.interrupt(link.index() as u16);
        }
    }

    /// Posts a credit or an Nget.
    pub(crate) fn post(
        &self,
        link: Link,
        channel: Channel,
        posting: (Posting, bool),
        start: Start,
    ) {
        let (Posting { address, length, notify }, credit) = posting;
        let request = Request {
            address,
            length: length.min(MAX_MESSAGE) as u32,
            notify,
            tag: start.tag(),
            interrupt: start.interrupt(),
        };
        let access = if credit { Access::Write } else { Access::Read };
        let len = request.length as usize;
        let refused = match () {
            () if !self.enabled.load(SeqCst) => Err(Status::Disabled),
            () if !self.links[link.index()].present => Err(Status::NoLink),
            () if length == 0 || length > MAX_MESSAGE => Err(Status::BadLength),
            () if !self.memory.contains(address, len, access) => Err(Status::BadAddress),
            () if !notify.is_multiple_of(8) || !self.memory.contains(notify, 8, Access::Write) => {
                Err(Status::BadAddress)
            }
            () => self.with_link(link, |state| {
                // A reset may have come since: it clears `enabled` before it renews the link.
                if !self.enabled.load(SeqCst) {
                    return Err(Status::Disabled);
                }
                if credit {
                    state.rx[channel.index()].add(request)
                } else {
                    state.tx[channel.index()].add(request)
                }
            }),
        };
        match refused {
            Ok(()) => {
                self.rules.lane(link.index()).kept(Point::Posted);
                self.wake(link);
            }
            Err(status) => {
                self.refused(status);
                self.with_link(link, |state| state.pages[channel.index()].refused += 1);
                self.notify(link, Done { request, status, length: 0 });
            }
        }
    }

    /// Counts the rule that a refused credit or Nget has broken.
    #[cold]
    fn refused(&self, status: Status) {
        let rule = match status {
            Status::Disabled => Rule::TnwEnabled,
            Status::NoLink => Rule::TnwLink,
            Status::BadLength => Rule::TnwLength,
            Status::BadAddress => Rule::TnwMemory,
            Status::Full => Rule::TnwRoom,
            _ => return,
        };
        self.rules.broke(rule);
    }

    /// The counts of all rules.
    pub fn rules(&self) -> Report {
        self.rules.report()
    }

    /// Handles a write to CANCEL.
    pub(crate) fn cancel(&self, link: Link, channel: Channel, cancel: Cancel) {
        let c = channel.index();
        let done: Vec<Done> = self.with_link(link, |state| {
            let mut done = Vec::new();
            if cancel.requests() {
                state.end.keep();
                done.extend(state.rx[c].cancel());
                done.extend(state.tx[c].cancel());
            }
            if cancel.window() {
                state.tx[c].clear();
                let head = state.tx[c].head();
                self.report(&mut state.pages[c], head);
            }
            done
        });
        done.into_iter().for_each(|done| self.notify(link, done));
        self.wake(link);
    }

    /// Handles a write to TX_MODE.
    pub(crate) fn set_mode(&self, link: Link, channel: Channel, mode: Mode) {
        let module = &self.links[link.index()];
        let Some(windows) = self.config.windows.as_ref().filter(|_| module.present) else { return };
        let _modes = lock(&self.modes);
        let changed = self.with_link(link, |state| {
            let c = channel.index();
            let tx = &mut state.tx[c];
            if !self.enabled.load(SeqCst) || tx.shared().is_some() == mode.shared() {
                return false;
            }
            tx.share(mode.shared().then(|| {
                let window = windows.window(link, channel);
                window.wipe();
                window.set_bell(true);
                window
            }));
            let head = tx.head();
            module.note_mark(state, c);
            self.report(&mut state.pages[c], head);
            true
        });
        if changed {
            self.host.window_shared(link, channel, mode.shared());
            self.wake(link);
        }
    }

    /// Returns true if a shared window has a new packet. Takes no lock.
    pub fn window_rings(&self, link: Link, channel: Channel) -> bool {
        let Some(windows) = &self.config.windows else { return false };
        let number = self.links[link.index()].marks[channel.index()].load(Relaxed);
        let place = (number.wrapping_sub(1) % WINDOW_PLACES as u64) as usize;
        number != 0 && windows.mark(link, channel, place).number() == number
    }

    /// Takes new packets from a shared window.
    pub fn look(&self, link: Link, channel: Channel) {
        let more = self.with_link(link, |state| {
            let c = channel.index();
            self.links[link.index()].look(state, c);
            state.tx[c].tail() > state.tx[c].head()
        });
        if more {
            self.wake(link);
        }
    }

    /// Sets in a shared window whether the guest must notify the device of new packets. A caller
    /// that turns notifications on must check the window afterwards, for packets stored before.
    pub fn set_bell(&self, link: Link, channel: Channel, on: bool) {
        self.with_link(link, |state| {
            if let Some(window) = state.tx[channel.index()].shared() {
                window.set_bell(on);
            }
        });
    }

    /// Handles a write to TX_BELL.
    pub(crate) fn bell(&self, link: Link, channel: Channel) {
        if self.links[link.index()].marks[channel.index()].load(Relaxed) != 0 {
            self.look(link, channel);
            self.host.window_rang(link, channel);
        }
    }

    /// Reads a window: its contents if it is memory, and 0 otherwise.
    fn load(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if let Some(WindowPlace { link, channel, .. }) = WindowPlace::decode(offset) {
            self.with_link(link, |state| {
                if let Some(window) = state.tx[channel.index()].shared() {
                    window.read(offset % WINDOW_SIZE, data);
                }
            });
        }
    }

    /// Stores `data` at `offset` of [`WINDOW_BAR`]. The store is dropped and counted if there is no
    /// such window, the device is disabled, or the bytes are there already.
    pub fn store(&self, offset: u64, data: &[u8]) {
        let place = WindowPlace::decode(offset)
            .filter(|_| (1..=MAX_STORE).contains(&data.len()))
            .filter(|place| self.links[place.link.index()].present);
        let stored = place.map(|WindowPlace { link, channel, at, last }| {
            self.with_link(link, |state| {
                // See `post`.
                if !self.enabled.load(SeqCst) {
                    return Err((link, crate::StoreError::Outside));
                }
                let tx = &mut state.tx[channel.index()];
                let stored = tx.window().store(at, data, last);
                tx.overlaps += u64::from(stored == Err(crate::StoreError::Overlap));
                let ready = stored.map(|()| tx.tail() > tx.head());
                self.links[link.index()].note_mark(state, channel.index());
                ready.map_err(|error| (link, error))
            })
            .map(|ready| (link, channel, ready))
        });
        match stored {
            Some(Ok((link, channel, true))) => {
                self.rules.lane(link.index()).kept(Point::Stored);
                self.wake(link);
                if self.links[link.index()].marks[channel.index()].load(Relaxed) != 0 {
                    self.host.window_rang(link, channel);
                }
            }
            Some(Ok((link, _, false))) => self.rules.lane(link.index()).kept(Point::Stored),
            Some(Err((_, crate::StoreError::Overlap))) => {
                self.rules.broke(Rule::TnwOverlap);
                self.error(Errors(0).with_overlap(true));
            }
            None | Some(Err((_, crate::StoreError::Outside))) => {
                self.stray_stores.fetch_add(1, SeqCst);
                self.rules.broke(Rule::TnwStray);
                self.error(Errors(0).with_stray_store(true));
            }
        }
    }

    /// Takes a unit that has come over a link. It is processed when the device runs next.
    pub fn push(&self, link: Link, unit: Unit) {
        if !self.enabled.load(SeqCst) {
            return;
        }
        {
            let mut inbox = lock(&self.links[link.index()].inbox);
            if inbox.len() >= INBOX {
                return;
            }
            inbox.push_back(unit);
        }
        self.wake(link);
    }

    /// Does pending work, for a turn of bounded length. Returns whether there is more.
    pub fn run(&self, net: &mut dyn Net) -> bool {
        let mut more = false;
        for (link, module) in Link::ALL.into_iter().zip(&self.links) {
            if module.pending.load(SeqCst) && module.pending.swap(false, SeqCst) {
                more |= self.turn(link, module, net);
            }
        }
        more
    }

    /// Returns when [`Nwp::expire`] must be called next, in nanoseconds; [`NEVER`] if nothing
    /// waits.
    pub fn next_deadline(&self) -> u64 {
        self.links.iter().map(|link| link.deadline.load(SeqCst)).min().unwrap_or(NEVER)
    }

    /// Handles the deadlines that have come by `now`: their links repeat what they sent.
    pub fn expire(&self, now: u64, net: &mut dyn Net) {
        for (link, module) in Link::ALL.into_iter().zip(&self.links) {
            // The answer may have arrived without having been processed.
            for _ in 0..INBOX / ARRIVALS_PER_TURN {
                if module.deadline.load(SeqCst) > now || lock(&module.inbox).is_empty() {
                    break;
                }
                if self.turn(link, module, net) {
                    self.host.work();
                }
            }
            if module.deadline.load(SeqCst) > now {
                continue;
            }
            let mut state = lock(&module.state);
            let state = &mut *state;
            let room = state.room();
            // It is not known when an answer will come, so Ngets do not wait for it.
            state.end.keep();
            self.end_ngets(link, state);
            state.end.expire(&room, now, &mut |unit| net.send(link, unit));
            module.deadline.store(state.end.deadline(), SeqCst);
        }
    }

    fn turn(&self, link: Link, module: &LinkModule, net: &mut dyn Net) -> bool {
        if !self.enabled.load(SeqCst) {
            return false;
        }
        let now = self.host.now_ns();
        let mut guard = lock(&module.state);
        let state = &mut *guard;
        if std::mem::take(&mut state.greet) {
            let room = state.room();
            state.end.greet(&room, &mut |unit| net.send(link, unit));
        }
        let mut more = self.take_in(module, state, now, &mut |unit| net.send(link, unit));
        self.end_ngets(link, state);
        let mut rounds = 0;
        loop {
            let moved = self.move_round(link, state);
            if moved || rounds == 0 && state.end.owes() {
                // Copies the data that was not moved yet, before it is acknowledged.
                state.rx.iter_mut().for_each(Receive::keep);
                let room = state.room();
                state.end.answer(&room, &mut |unit| net.send(link, unit));
            }
            let worked = self.send_round(link, state, now, net) | moved;
            rounds += 1;
            if !worked {
                break;
            }
            if rounds == ROUNDS_PER_TURN {
                more = true;
                break;
            }
        }
        let deadline = state.end.deadline();
        if module.deadline.swap(deadline, SeqCst) > deadline {
            self.host.timer(deadline);
        }
        more && !module.pending.swap(true, SeqCst)
    }

    /// Processes units that have arrived. Returns whether there are more.
    fn take_in(
        &self,
        module: &LinkModule,
        state: &mut LinkState,
        now: u64,
        out: &mut dyn FnMut(Unit),
    ) -> bool {
        for _ in 0..ARRIVALS_PER_TURN {
            let Some(unit) = lock(&module.inbox).pop_front() else { return false };
            let room = state.room();
            match state.end.arrive(unit, &room, now, out) {
                Arrival::Nothing => {}
                Arrival::Data(data) => {
                    let channel = data.channel();
                    if !state.rx[channel.index()].push(data) {
                        self.error(Errors(0).with_orphan(true));
                    }
                }
                Arrival::Renewed => state.rx.iter_mut().for_each(Receive::cut),
            }
        }
        true
    }

    /// Lets each channel send one run, if it may. Returns whether any did.
    fn send_round(&self, link: Link, state: &mut LinkState, now: u64, net: &mut dyn Net) -> bool {
        let dma = self.dma();
        let mut worked = false;
        let first = state.next_tx;
        for turn in 0..CHANNELS {
            let c = (first + turn) % CHANNELS;
            let channel = Channel::ALL[c];
            if state.tx[c].shared().is_some() {
                self.links[link.index()].look(state, c);
            }
            let tx = &mut state.tx[c];
            if !tx.is_ready(dma.is_some()) {
                state.end.idle(channel);
                continue;
            }
            let most = state.end.may_send(channel);
            if most == 0 {
                state.end.stall(channel, now);
                continue;
            }
            state.end.idle(channel);
            let most = most.min(net.room(link));
            let head = tx.head();
            let by_reference = net.by_reference();
            let done = match tx.take(channel, most, dma, by_reference) {
                Ok(None) => continue,
                Ok(Some(outgoing)) => {
                    state.end.send(outgoing.data, now, &mut |unit| net.send(link, unit));
                    if let Some(ended) = outgoing.ended {
                        // The Nget need not wait for packets whose data was copied.
                        let sent = if by_reference { state.end.counters().sent } else { 0 };
                        tx.post(ended, sent);
                    }
                    tx.ended(state.end.released())
                }
                Err(done) => Some(done),
            };
            let moved = tx.head();
            if let Some(done) = done {
                self.notify(link, done);
            }
            if moved != head {
                self.report(&mut state.pages[c], moved);
            }
            worked = true;
            state.next_tx = (c + 1) % CHANNELS;
        }
        worked
    }

    /// Moves some packets to memory for each channel whose credit matches a packet. Returns whether
    /// any were moved.
    fn move_round(&self, link: Link, state: &mut LinkState) -> bool {
        let Some(dma) = self.dma() else { return false };
        let mut worked = false;
        let first = state.next_rx;
        for turn in 0..CHANNELS {
            let c = (first + turn) % CHANNELS;
            if !state.rx[c].matches() {
                continue;
            }
            if let Some(done) = state.rx[c].deliver(&**dma, MAX_RUN) {
                self.notify(link, done);
            }
            worked = true;
            state.next_rx = (c + 1) % CHANNELS;
        }
        worked
    }

    /// Completes Ngets whose memory may be used again.
    fn end_ngets(&self, link: Link, state: &mut LinkState) {
        let released = state.end.released();
        for tx in &mut state.tx {
            while let Some(done) = tx.ended(released) {
                self.notify(link, done);
            }
        }
    }

    /// Tells the driver how many bytes have left a window.
    fn report(&self, page: &mut Page, head: u64) {
        if page.report == 0 {
            return;
        }
        // Without bus mastership the report waits.
        let Some(dma) = self.dma() else { return };
        if dma.store(page.report, head).is_err() {
            page.report = 0;
            self.rules.broke(Rule::TnwReport);
            self.error(Errors(0).with_report(true));
            return;
        }
        self.rules.kept(Point::Reported);
    }

    /// Reads a BAR. Windows that are not shared read as 0.
    pub fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        match bar {
            tofu_abi::tnw::REGISTER_BAR => self.read(offset, data),
            WINDOW_BAR => self.load(offset, data),
            _ => data.fill(0xff),
        }
    }

    /// Writes a BAR.
    pub fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
        match bar {
            tofu_abi::tnw::REGISTER_BAR => self.write(offset, data),
            WINDOW_BAR => self.store(offset, data),
            _ => {}
        }
    }
}
