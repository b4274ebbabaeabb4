//! Any bytes on the lanes of a link, and anything from its other end.
//!
//! Unchanged slices are read as they were written, only the next frame is taken in, and credit
//! never exceeds the queue.

use arbitrary::{Result, Unstructured};
use tofu_abi::frame::RoutingHeader;
use tofu_links::{
    Check, Counters, Dllp, Effect, LinkFrame, MAX_SLICE, NEVER, Parameters, Ps, Receiver, Sender,
    Seq, Slice, Verdict, WINDOW,
};

/// Actions of one input at most.
const MAX_ACTIONS: u32 = 256;

/// One end of a link: what it sends and what it receives.
struct End {
    parameters: Parameters,
    sender: Sender,
    receiver: Receiver,
    counters: Counters,
    now: Ps,
    /// Rows of frames that were taken in and have not left their queue.
    held: Vec<(u8, u8)>,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = play(&mut u);
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let parameters = *u.choose(&Parameters::ALL)?;
    let sender = Sender::new(&parameters);
    let receiver = Receiver::new(&parameters, &sender);
    let counters = Counters::default();
    let mut end = End { parameters, sender, receiver, counters, now: 0, held: Vec::new() };
    for _ in 0..MAX_ACTIONS {
        if u.is_empty() {
            break;
        }
        end.now += u64::from(u.arbitrary::<u16>()?) << u.int_in_range(0..=12)?;
        end.act(u)?;
        end.check();
    }
    Ok(())
}

impl End {
    fn act(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let now = self.now;
        match u.int_in_range(0..=8)? {
            0..=2 => self.lanes(u)?,
            3 => {
                let (vc, rows) = (u.int_in_range(0..=3)?, u.int_in_range(1..=129)?);
                if self.sender.may_send(vc, rows).is_ok() {
                    self.sender.send(vc, rows, now, &mut self.counters);
                    if u.ratio(1, 8)? {
                        self.sender.nullify(vc, &mut self.counters);
                    }
                } else {
                    self.sender.starve(vc, now);
                }
            }
            4 => {
                let mut bytes = [0; Dllp::SIZE];
                let some = u.int_in_range(0..=bytes.len())?;
                u.fill_buffer(&mut bytes[..some])?;
                if let Some(dllp) = Dllp::from_bytes(&bytes) {
                    assert_eq!(dllp.to_bytes(), bytes);
                    self.hear(dllp);
                }
            }
            5 => {
                let number = self.sender.next().get().wrapping_sub(u.arbitrary::<u8>()?.into());
                let seq = Seq::new(number);
                self.hear(if u.arbitrary()? { Dllp::Ack(seq) } else { Dllp::Nack(seq) });
            }
            6 => {
                let deadline = self.sender.deadline();
                if deadline < NEVER {
                    self.now = now.max(deadline);
                    // One for acknowledgements, one for credit.
                    for _ in 0..2 {
                        self.sender.timeout(self.now, &mut self.counters);
                    }
                    assert!(self.sender.deadline() > self.now);
                }
            }
            7 => {
                let mut again = 0;
                while self.sender.resend(now, &mut self.counters).is_some() {
                    again += 1;
                }
                assert!(again <= WINDOW, "{again} frames again");
            }
            _ => {
                if !self.held.is_empty() {
                    let (vc, rows) = self.held.swap_remove(u.choose_index(self.held.len())?);
                    self.receiver.freed(vc, rows);
                }
                let mut said = 0;
                while self.receiver.take_dllp(&mut self.counters).is_some() {
                    said += 1;
                }
                assert!(said <= 6, "{said} DLLPs at once");
            }
        }
        Ok(())
    }

    fn hear(&mut self, dllp: Dllp) {
        if self.sender.dllp(dllp, self.now, &mut self.counters) == Effect::Polled {
            self.receiver.poll();
        }
    }

    /// The input of the two lanes: slices of a frame with some changes, or any bytes.
    fn lanes(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let units = if u.arbitrary()? { u.int_in_range(0..=4)? } else { u.int_in_range(0..=63)? };
        let mut tlp = [0x5a; 2048];
        let some = u.int_in_range(0..=8)?;
        u.fill_buffer(&mut tlp[..some])?;
        // Usually close to the expected number.
        let seq = self.receiver.expected().get().wrapping_add(u.int_in_range(0..=3)?);
        let seq = if u.ratio(1, 8)? { u.arbitrary()? } else { seq };
        let routing = RoutingHeader(u.arbitrary()?).with_tlp_units(units).with_seq(seq);
        let size = if units == 0 { 0 } else { routing.tlp_size() };
        let dllp = u.arbitrary::<bool>()?.then_some(Dllp::Poll);
        let frame = LinkFrame { routing, tlp: &tlp[..size], dllp, nullified: u.ratio(1, 8)? };
        let (cut, mut touched) = (u.arbitrary()?, false);
        let mut bytes = [[0; MAX_SLICE]; 2];
        let mut lens = [0; 2];
        for lane in 0..2 {
            lens[lane] = frame.slice(cut, lane as u8, &mut bytes[lane]);
            for _ in 0..u.int_in_range(0..=2)? {
                touched = true;
                let at = u.choose_index(lens[lane])?;
                match u.int_in_range(0..=2)? {
                    0 => bytes[lane][at] ^= u.arbitrary::<u8>()?,
                    1 => lens[lane] = at.max(1),
                    _ => {
                        let some = u.len().min(MAX_SLICE - at).min(16);
                        u.fill_buffer(&mut bytes[lane][at..at + some])?;
                    }
                }
            }
        }
        let slices = [0, 1].map(|lane| Slice::parse(&bytes[lane][..lens[lane]]).ok());
        if !touched {
            let [first, second] = slices.map(|slice| slice.expect("nothing was changed"));
            assert_eq!((first.seq(), first.routing()), (second.seq(), second.routing()));
            assert_eq!(first.routing(), routing.with_start(true).with_pat(cut.into()));
        }
        // Either slice of a frame that is not cut is enough.
        let intact = match slices {
            [Some(first), Some(_)] => Some(first),
            [one, other] if !cut => one.or(other),
            _ => None,
        };
        let (seq, check, routing) = match intact.map(|slice| slice.routing()) {
            Some(routing) if routing.tlp_units() == 0 => return Ok(()),
            Some(routing) if frame.nullified => (routing.seq(), Check::Nullified, routing),
            Some(routing) => (routing.seq(), Check::Good, routing),
            None => (0, Check::Bad, RoutingHeader(0)),
        };
        let seq = Seq::new(seq);
        let expected = self.receiver.expected();
        let verdict = self.receiver.frame(seq, check, self.now, &mut self.counters);
        assert_eq!(verdict == Verdict::Accept, seq == expected && check == Check::Good);
        if verdict == Verdict::Accept {
            assert_eq!(self.receiver.expected(), expected.next());
            let rows = self.parameters.rows((8 + routing.tlp_size()) as u16);
            self.held.push((routing.vc(), rows));
        } else {
            assert_eq!(self.receiver.expected(), expected);
        }
        Ok(())
    }

    /// Invariants that hold for anything that the other end sends.
    fn check(&self) {
        assert!(usize::from(self.sender.unacknowledged()) <= WINDOW);
        let queue = self.parameters.queue_bytes / u32::from(self.parameters.row);
        for vc in 0..4 {
            assert!(u32::from(self.sender.credit(vc)) <= queue, "more credit than there is room");
        }
    }
}
