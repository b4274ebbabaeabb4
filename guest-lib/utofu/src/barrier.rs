//! Virtual barrier gates: allocation, links, barriers and reductions.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Deref;

use tofu_abi::barrier::Profile;
use tofu_abi::reduce::{self, Input, MAX_DOUBLES, MAX_UTOFU_INTEGERS, Op, Value};
use tofu_abi::regs::{MAX_BG, NUM_TNI};
use tofu_abi::{BchId, BgId, TniId};

use crate::barrier_state::{Gate, Round, Start};
use crate::context::Context;
use crate::error::{Code, Error};
use crate::flags;
use crate::gates::{VbgSetting, by_channel, gates_in};
use crate::ids::VbgId;
use crate::lock::Lock;
use crate::provider::{Channel, Provider};
use crate::rest::{EmptyPolls, doze};

/// The results of a reduction, as a slice of as many values as were reduced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduced<T> {
    count: usize,
    values: [T; MAX_UTOFU_INTEGERS],
}

impl<T: Copy + Default> Reduced<T> {
    fn new(count: usize, from: impl IntoIterator<Item = T>) -> Self {
        let mut values = [T::default(); MAX_UTOFU_INTEGERS];
        values.iter_mut().zip(from).for_each(|(value, from)| *value = from);
        Self { count: count.min(MAX_UTOFU_INTEGERS), values }
    }
}

impl<T> Deref for Reduced<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values[..self.count]
    }
}

fn wrong_gate(id: VbgId, hint: &'static str) -> Error {
    Error::with_value(Code::InvalidVbgId, "VBG ID", id.0, hint)
}

const NOT_OURS: &str = "the process has not allocated it";

/// Returns the error for a wrong number of elements or gates.
fn wrong_number(what: &'static str, number: usize, hint: &'static str) -> Error {
    Error::with_value(Code::InvalidNumber, what, number as u64, hint)
}

impl<P: Provider + ?Sized> Context<P> {
    /// Returns the capabilities of barriers in the device's generation. Tofu and Tofu2 reduce one
    /// element at a time.
    pub(crate) fn barrier_profile(&self) -> Profile {
        self.description().barrier
    }

    /// Returns the most integers that [`Context::reduce_uint64`] takes.
    pub fn integers_at_once(&self) -> usize {
        MAX_UTOFU_INTEGERS.min(self.barrier_profile().integers.into())
    }

    /// Returns the most floating-point numbers that [`Context::reduce_double`] takes.
    pub fn doubles_at_once(&self) -> usize {
        MAX_DOUBLES.min(self.barrier_profile().doubles.into())
    }

    /// Allocates barrier gates of an interface: first one start and end gate, then relay gates.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidTniId`], [`Code::InvalidFlags`], [`Code::InvalidNumber`] for zero gates;
    /// [`Code::NotAvailable`] for an interface of other processes; [`Code::Full`] if too few are
    /// left, in which case none is allocated.
    pub fn alloc_vbg(&self, tni: u16, number: usize, flags: u64) -> Result<Vec<VbgId>, Error> {
        let tni = self.check_tni(tni)?;
        flags::check(flags, flags::VBG_THREAD_SAFE, "flags of a VBG")?;
        let relays = number.checked_sub(1).ok_or(wrong_number(
            "number of VBGs",
            number,
            "there is at least one",
        ))?;
        // If only one interface has gates, all processes of a node share it.
        if self.barrier_profile().tnis > 1 {
            self.check_own_tni(tni)?;
        }
        let mut gates = self.barriers().gates.lock();
        let mask = self.provider().take_gates(tni, relays)?.ok_or_else(|| {
            let mut hint = "it has fewer gates left, or no start and end gate; another TNI may do";
            if self.barrier_profile().tnis == 1 {
                hint =
                    "it has fewer gates left, or no start and end gate, and no other TNI has any";
            }
            Error::with_value(Code::Full, "barrier gates of TNI", tni.get().into(), hint)
        })?;
        for bg in gates_in(mask) {
            gates[tni.index()][bg.index()] = Gate::Allocated;
        }
        Ok(gates_in(mask).map(|bg| VbgId::new(self.coords(), tni, bg)).collect())
    }

    /// Frees gates in any order, either all of them or none. When a gate is freed, its channel is
    /// closed, and the channel's other gates lose their links.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidNumber`] for zero gates; [`Code::InvalidVbgId`] for a gate that the process
    /// has not allocated, or that is named twice; [`Code::Fatal`] if the device does not release a
    /// gate.
    pub fn free_vbg(&self, ids: &[VbgId]) -> Result<(), Error> {
        check_count(ids.len())?;
        let mut gates = self.barriers().gates.lock();
        let mut freed = [0u64; NUM_TNI];
        for id in ids {
            if self.gate(&gates, *id) == Gate::None {
                return Err(wrong_gate(*id, NOT_OURS));
            }
            let (tni, bit) = (usize::from(id.tni()), 1 << id.bg());
            if freed[tni] & bit != 0 {
                return Err(wrong_gate(*id, "it is named twice"));
            }
            freed[tni] |= bit;
        }
        let mut result = Ok(());
        for id in ids {
            if let Gate::Linked { tni, bch } = self.gate(&gates, *id)
                && let Err(error) = self.close_channel(&mut gates, tni, bch)
            {
                result = Err(error);
            }
        }
        for (tni, mask) in TniId::ALL.into_iter().zip(freed).filter(|(_, mask)| *mask != 0) {
            for bg in gates_in(mask) {
                gates[tni.index()][bg.index()] = Gate::None;
            }
            // Gates that the device has not released are not reused.
            if result.is_ok() {
                self.provider().give_gates(tni, mask);
            }
        }
        result
    }

    /// Links gates and starts passing signals on, for either all of them or none.
    ///
    /// All gates of a channel are linked by one call, and stay linked until one of them is freed.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidNumber`] for zero gates; [`Code::InvalidVbgId`] for a gate that the process
    /// has not allocated, that is named twice, or whose local links lead to other interfaces, to
    /// gates that are not linked in the same call, or to no or several start and end gates;
    /// [`Code::Used`] for a gate that is already linked; [`Code::InvalidArg`] for a start and end
    /// gate that has no input, and for links by which a gate would wait for itself; any error of
    /// [`Provider::open_channel`].
    pub fn set_vbg(&self, settings: &[VbgSetting]) -> Result<(), Error> {
        check_count(settings.len())?;
        let Profile { tnis, gates: of_each, .. } = self.barrier_profile();
        if settings.len() > usize::from(tnis) * usize::from(of_each) {
            return Err(wrong_number("number of VBGs", settings.len(), "a node has 288 at most"));
        }
        let mut gates = self.barriers().gates.lock();
        for setting in settings {
            match self.gate(&gates, setting.id) {
                Gate::Allocated => {}
                Gate::None => return Err(wrong_gate(setting.id, NOT_OURS)),
                Gate::Linked { .. } => {
                    let hint = "it is linked already: free it, and allocate it again";
                    return Err(Error::with_value(Code::Used, "VBG ID", setting.id.0, hint));
                }
            }
        }
        let channels = by_channel(settings, self.barrier_profile().channels)?;
        for (i, channel) in channels.iter().enumerate() {
            let (tni, bch) = unit(channel.start)?;
            let opened = match self.provider().open_channel(tni, bch, &channel.settings) {
                Ok(opened) => opened,
                Err(error) => {
                    for before in &channels[..i] {
                        // The error to report is the one that caused this.
                        let _ = unit(before.start)
                            .and_then(|(tni, bch)| self.close_channel(&mut gates, tni, bch));
                    }
                    return Err(error);
                }
            };
            for setting in &channel.settings {
                let id = setting.id;
                gates[usize::from(id.tni())][usize::from(id.bg())] = Gate::Linked { tni, bch };
            }
            let empty = EmptyPolls::default();
            *self.start_at(tni, bch).lock() = Some(Start { channel: opened, round: None, empty });
        }
        Ok(())
    }

    /// Starts a barrier.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVbgId`] if it is not a start and end gate of the process,
    /// [`Code::NotAvailable`] if it is not linked, [`Code::InvalidFlags`], [`Code::Busy`] while a
    /// barrier or reduction is in progress; [`Code::BarrierOther`] if the device has detected an
    /// error at one of the gates.
    pub fn barrier(&self, id: VbgId, flags: u64) -> Result<(), Error> {
        self.begin(id, flags, Op::Barrier, &Input::default(), Round::Barrier)
    }

    /// Starts a reduction of 1 to 6 integers.
    ///
    /// # Errors
    ///
    /// As [`Context::barrier`]; [`Code::InvalidOp`] for an operation that does not apply to
    /// integers; [`Code::InvalidNumber`] for too few or too many, or for half a pair of `MaxLoc`.
    pub fn reduce_uint64(&self, id: VbgId, op: u32, data: &[u64], flags: u64) -> Result<(), Error> {
        let op = match operation(op)? {
            other @ (Op::Barrier | Op::FpSum) => return Err(not_here(other)),
            op => op,
        };
        if op == Op::MaxLoc && !data.len().is_multiple_of(2) {
            let hint = "MAXLOC takes pairs of a number and a place";
            return Err(wrong_number("number of integers", data.len(), hint));
        }
        let input = match data.len() {
            1..=MAX_UTOFU_INTEGERS => reduce::integers(data),
            _ => None,
        };
        let hint = "a round reduces 1 to 6 integers";
        let input = input.ok_or_else(|| wrong_number("number of integers", data.len(), hint))?;
        self.begin(id, flags, op, &input, Round::Integers(data.len()))
    }

    /// Starts a reduction of 1 to 3 floating-point numbers.
    ///
    /// # Errors
    ///
    /// As [`Context::barrier`]; [`Code::InvalidOp`] for an operation other than `FpSum`;
    /// [`Code::InvalidNumber`] for too few or too many.
    pub fn reduce_double(&self, id: VbgId, op: u32, data: &[f64], flags: u64) -> Result<(), Error> {
        match operation(op)? {
            Op::FpSum => {}
            other => return Err(not_here(other)),
        }
        let mut bits = [0; MAX_DOUBLES];
        let input = match data.len() {
            count @ 1..=MAX_DOUBLES => {
                bits.iter_mut().zip(data).for_each(|(bits, x)| *bits = x.to_bits());
                reduce::doubles(&bits[..count])
            }
            _ => None,
        };
        let hint = "a round sums 1 to 3 numbers";
        let input = input.ok_or_else(|| wrong_number("number of doubles", data.len(), hint))?;
        self.begin(id, flags, Op::FpSum, &input, Round::Doubles(data.len()))
    }

    /// Checks whether a barrier is complete.
    ///
    /// # Errors
    ///
    /// [`Code::NotCompleted`] if it is not; [`Code::NotProcessed`] if none was started;
    /// [`Code::BarrierMismatch`] if the members did not all start the same operation; otherwise as
    /// [`Context::barrier`].
    pub fn poll_barrier(&self, id: VbgId, flags: u64) -> Result<(), Error> {
        self.end(id, flags, |round| round == Round::Barrier).map(drop)
    }

    /// Checks whether a reduction of integers is complete. Returns as many results as were reduced.
    ///
    /// # Errors
    ///
    /// As [`Context::poll_barrier`].
    pub fn poll_reduce_uint64(&self, id: VbgId, flags: u64) -> Result<Reduced<u64>, Error> {
        let (round, value) = self.end(id, flags, |round| matches!(round, Round::Integers(_)))?;
        let Round::Integers(count) = round else { return Err(not_begun()) };
        Ok(Reduced::new(count, value))
    }

    /// Checks whether a reduction of floating-point numbers is complete. Returns as many results as
    /// were reduced.
    ///
    /// # Errors
    ///
    /// As [`Context::poll_barrier`].
    pub fn poll_reduce_double(&self, id: VbgId, flags: u64) -> Result<Reduced<f64>, Error> {
        let (round, value) = self.end(id, flags, |round| matches!(round, Round::Doubles(_)))?;
        let Round::Doubles(count) = round else { return Err(not_begun()) };
        Ok(Reduced::new(count, reduce::sums(&value).map(f64::from_bits)))
    }

    /// Returns the state of a gate in this process.
    fn gate(&self, gates: &[[Gate; MAX_BG]; NUM_TNI], id: VbgId) -> Gate {
        let gate = gates.get(usize::from(id.tni())).and_then(|tni| tni.get(usize::from(id.bg())));
        gate.copied().filter(|_| id.is_of(self.coords())).unwrap_or(Gate::None)
    }

    fn start_at(&self, tni: TniId, bch: BchId) -> &Lock<Option<Start<P::Channel>>> {
        &self.barriers().starts[tni.index()][bch.index()]
    }

    fn close_channel(
        &self,
        gates: &mut [[Gate; MAX_BG]; NUM_TNI],
        tni: TniId,
        bch: BchId,
    ) -> Result<(), Error> {
        for gate in gates.iter_mut().flatten() {
            if *gate == (Gate::Linked { tni, bch }) {
                *gate = Gate::Allocated;
            }
        }
        match self.start_at(tni, bch).lock().take() {
            Some(start) => Box::new(start.channel).close(),
            None => Ok(()),
        }
    }

    /// Calls `f` with the channel of a start and end gate.
    #[inline]
    fn with_start<T>(
        &self,
        id: VbgId,
        flags: u64,
        f: impl FnOnce(&mut Start<P::Channel>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let tni = self.barriers().starts.get(usize::from(id.tni()));
        let start = tni.and_then(|tni| tni.get(usize::from(id.bg())));
        let start = start.filter(|_| id.is_of(self.coords()));
        let hint = "not a start and end gate that the process has allocated";
        let mut start = start.ok_or_else(|| wrong_gate(id, hint))?.lock();
        flags::check(flags, 0, "flags")?;
        match &mut *start {
            Some(start) => f(start),
            None => {
                drop(start);
                match self.gate(&self.barriers().gates.lock(), id) {
                    Gate::None => Err(wrong_gate(id, hint)),
                    _ => {
                        let hint = "it is not linked: utofu_set_vbg comes first";
                        Err(Error::with_value(Code::NotAvailable, "VBG ID", id.0, hint))
                    }
                }
            }
        }
    }

    fn begin(
        &self,
        id: VbgId,
        flags: u64,
        op: Op,
        input: &Input,
        round: Round,
    ) -> Result<(), Error> {
        self.with_start(id, flags, |start| {
            if start.round.is_some() {
                let hint = "a barrier or reduction is in progress: poll until it completes";
                return Err(Error::with_value(Code::Busy, "VBG ID", id.0, hint));
            }
            let count = match round {
                Round::Barrier => 0,
                Round::Integers(count) | Round::Doubles(count) => count as u8,
            };
            start.channel.start(op, input, count)?;
            start.round = Some(round);
            Ok(())
        })
    }

    /// Returns the round with its result, if it is complete and of an expected kind.
    #[inline]
    fn end(
        &self,
        id: VbgId,
        flags: u64,
        is_it: impl FnOnce(Round) -> bool,
    ) -> Result<(Round, Value), Error> {
        let mut waited = None;
        let ended = self.with_start(id, flags, |start| {
            let round = start.round.filter(|round| is_it(*round)).ok_or_else(not_begun)?;
            let outcome = match start.channel.poll() {
                Ok(None) => {
                    waited = start.empty.add(&self.barriers().rest_after);
                    let hint = "others have not started it yet";
                    return Err(Error::new(Code::NotCompleted, "barrier", hint));
                }
                Ok(Some(outcome)) => Ok(outcome),
                Err(error) => Err(error),
            };
            start.round = None;
            start.empty.found();
            outcome.map(|value| (round, value))
        });
        // Nothing is locked any more.
        if let Some(waited) = waited {
            doze(waited);
        }
        ended
    }
}

/// Returns the interface and the channel of a start and end gate.
fn unit(start: VbgId) -> Result<(TniId, BchId), Error> {
    let unit = TniId::new(start.tni()).zip(BchId::new(start.bg()));
    unit.ok_or_else(|| wrong_gate(start, "the device does not have it"))
}

fn check_count(count: usize) -> Result<(), Error> {
    match count {
        0 => Err(wrong_number("number of VBGs", 0, "there is at least one")),
        _ => Ok(()),
    }
}

fn operation(op: u32) -> Result<Op, Error> {
    let hint = "operations are 1 to 8 (enum utofu_reduce_op)";
    let none = Error::with_value(Code::InvalidOp, "operation", op.into(), hint);
    u8::try_from(op).ok().and_then(Op::from_code).ok_or(none)
}

fn not_here(op: Op) -> Error {
    let hint = "integers have BAND, BOR, BXOR, MAX, MAXLOC and SUM, doubles BFPSUM";
    Error::with_value(Code::InvalidOp, "operation", op.code().into(), hint)
}

fn not_begun() -> Error {
    Error::new(Code::NotProcessed, "barrier", "none of this kind was started")
}

impl<P: Provider + ?Sized> Drop for Context<P> {
    fn drop(&mut self) {
        let mut ids = Vec::new();
        for (tni, gates) in TniId::ALL.into_iter().zip(self.barriers().gates.lock().iter()) {
            let gates = BgId::ALL.into_iter().zip(gates);
            for (bg, _) in gates.filter(|(_, gate)| **gate != Gate::None) {
                ids.push(VbgId::new(self.coords(), tni, bg));
            }
        }
        if !ids.is_empty() {
            // Gates that the device does not release are not given to others.
            let _ = self.free_vbg(&ids);
        }
    }
}
