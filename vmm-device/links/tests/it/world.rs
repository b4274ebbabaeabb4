//! One direction of a link and its acknowledgements, in modelled time.

use std::collections::VecDeque;

use tofu_links::{
    Check, Counters, Dllp, NEVER, Parameters, Ps, Receiver, Rows, Sender, Timeout, Verdict, WINDOW,
};

/// The fate of a transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It arrives.
    Fine,
    /// A frame arrives as something else; a DLLP does not arrive.
    Bad,
    /// It does not arrive.
    Lost,
    /// A frame is marked as bad while it is sent.
    Nullified,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) id: u32,
    pub(crate) vc: u8,
    pub(crate) rows: Rows,
}

enum Forward {
    Frame(u16, Frame, Check),
    Poll,
}

/// The time for which a frame stays in a queue behind the link.
const STAY: Ps = 150_000;
const FRAME: Ps = 100_000;
const DLLP: Ps = 10_000;

pub(crate) struct World<F> {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) near: Counters,
    pub(crate) far: Counters,
    pub(crate) now: Ps,
    /// In the order in which they came in.
    pub(crate) arrived: Vec<Frame>,
    parameters: Parameters,
    fate: F,
    waiting: VecDeque<Frame>,
    kept: [Option<Frame>; WINDOW],
    forward: VecDeque<(Ps, Forward)>,
    forward_free: Ps,
    poll: bool,
    back: VecDeque<(Ps, Dllp)>,
    back_free: Ps,
    queue: VecDeque<(Ps, Frame)>,
    /// Rows in each queue.
    held: [u32; 4],
}

impl<F: FnMut() -> Fate> World<F> {
    pub(crate) fn new(parameters: Parameters, fate: F) -> Self {
        let sender = Sender::new(&parameters);
        Self {
            receiver: Receiver::new(&parameters, &sender),
            sender,
            near: Counters::default(),
            far: Counters::default(),
            now: 0,
            arrived: Vec::new(),
            parameters,
            fate,
            waiting: VecDeque::new(),
            kept: [None; WINDOW],
            forward: VecDeque::new(),
            forward_free: 0,
            poll: false,
            back: VecDeque::new(),
            back_free: 0,
            queue: VecDeque::new(),
            held: [0; 4],
        }
    }

    /// Sends frames and runs until nothing is left to do.
    pub(crate) fn run(&mut self, frames: impl IntoIterator<Item = Frame>) {
        self.waiting.extend(frames);
        for _ in 0..10_000_000 {
            self.transmit();
            self.answer();
            let next = [
                self.forward.front().map_or(NEVER, |&(at, _)| at),
                self.back.front().map_or(NEVER, |&(at, _)| at),
                self.queue.front().map_or(NEVER, |&(at, _)| at),
                self.sender.deadline(),
                if self.forward_free > self.now { self.forward_free } else { NEVER },
                if self.back_free > self.now { self.back_free } else { NEVER },
            ];
            let next = next.into_iter().min().unwrap_or(NEVER);
            if next == NEVER {
                assert!(self.waiting.is_empty(), "{} frames wait for good", self.waiting.len());
                return;
            }
            assert!(next >= self.now);
            self.now = next;
            self.advance();
        }
        panic!("it never ends");
    }

    fn transmit(&mut self) {
        if self.forward_free > self.now {
            return;
        }
        let arrival = self.now + FRAME + self.parameters.link_ps;
        if self.poll {
            self.poll = false;
            self.forward_free = self.now + DLLP;
            if (self.fate)() == Fate::Fine {
                self.forward.push_back((arrival, Forward::Poll));
            }
            return;
        }
        if let Some(seq) = self.sender.resend(self.now, &mut self.near) {
            let frame = self.kept[usize::from(seq.get()) % WINDOW].expect("it was sent before");
            let check = match (self.fate)() {
                // What is in the replay buffer has been checked.
                Fate::Fine | Fate::Nullified => Some(Check::Good),
                Fate::Bad => Some(Check::Bad),
                Fate::Lost => None,
            };
            self.put(arrival, seq.get(), frame, check);
            return;
        }
        let Some(&frame) = self.waiting.front() else { return };
        let now = self.now;
        match self.sender.may_send(frame.vc, frame.rows) {
            Err(_) => self.sender.starve(frame.vc, now),
            Ok(()) => {
                let seq = self.sender.send(frame.vc, frame.rows, now, &mut self.near);
                let check = match (self.fate)() {
                    Fate::Fine => Some(Check::Good),
                    Fate::Bad => Some(Check::Bad),
                    Fate::Lost => None,
                    Fate::Nullified => {
                        self.sender.nullify(frame.vc, &mut self.near);
                        Some(Check::Nullified)
                    }
                };
                self.put(arrival, seq.get(), frame, check);
                if check != Some(Check::Nullified) {
                    self.kept[usize::from(seq.get()) % WINDOW] = Some(frame);
                    self.waiting.pop_front();
                }
            }
        }
    }

    fn put(&mut self, arrival: Ps, seq: u16, frame: Frame, check: Option<Check>) {
        self.forward_free = self.now + FRAME;
        if let Some(check) = check {
            self.forward.push_back((arrival, Forward::Frame(seq, frame, check)));
        }
    }

    /// Sends a DLLP back, if one is due.
    fn answer(&mut self) {
        if self.back_free > self.now {
            return;
        }
        if let Some(dllp) = self.receiver.take_dllp(&mut self.far) {
            self.back_free = self.now + DLLP;
            if (self.fate)() == Fate::Fine {
                self.back.push_back((self.back_free + self.parameters.link_ps, dllp));
            }
        }
    }

    fn advance(&mut self) {
        let now = self.now;
        while self.queue.front().is_some_and(|&(at, _)| at <= now) {
            let (_, frame) = self.queue.pop_front().expect("there is one");
            self.held[usize::from(frame.vc)] -= u32::from(frame.rows);
            self.receiver.freed(frame.vc, frame.rows);
        }
        while self.forward.front().is_some_and(|&(at, _)| at <= now) {
            match self.forward.pop_front().expect("there is one").1 {
                Forward::Poll => self.receiver.poll(),
                Forward::Frame(seq, frame, check) => {
                    let seq = tofu_links::Seq::new(seq);
                    if self.receiver.frame(seq, check, now, &mut self.far) == Verdict::Accept {
                        self.arrived.push(frame);
                        self.queue.push_back((now + STAY, frame));
                        let held = &mut self.held[usize::from(frame.vc)];
                        *held += u32::from(frame.rows);
                        let bytes = *held * u32::from(self.parameters.row);
                        assert!(bytes <= self.parameters.queue_bytes, "a queue overflows");
                    }
                }
            }
        }
        while self.back.front().is_some_and(|&(at, _)| at <= now) {
            let (_, dllp) = self.back.pop_front().expect("there is one");
            self.sender.dllp(dllp, now, &mut self.near);
        }
        if self.sender.deadline() <= now {
            match self.sender.timeout(now, &mut self.near) {
                Some(Timeout::Poll) => self.poll = true,
                Some(Timeout::Replay) | None => {}
            }
        }
    }
}
