//! The lanes of one direction of a link: their errors, and how these are handled.

use crate::{Check, Counters, Parameters, Slicing};

/// Most lanes of any link.
pub const MAX_LANES: usize = 8;

/// The probability that a bit is flipped, in units of 2^-64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ErrorRate(u64);

impl ErrorRate {
    /// No errors.
    pub const NEVER: Self = Self(0);

    /// From a rate of 0 to 1; `None` for any other.
    pub fn new(rate: f64) -> Option<Self> {
        // Scaling by a power of two is exact, so this is the same on every machine.
        (0.0..=1.0).contains(&rate).then_some(Self((rate * 18_446_744_073_709_551_616.0) as u64))
    }

    /// The mean of several rates.
    #[must_use]
    pub fn mean(rates: &[Self]) -> Self {
        let sum: u128 = rates.iter().map(|rate| u128::from(rate.0)).sum();
        Self((sum / (rates.len().max(1) as u128)) as u64)
    }

    /// Returns true if any of that many bits is wrong, given a random number.
    pub fn spoils(self, bits: u32, random: u64) -> bool {
        if self.0 == 0 {
            return false;
        }
        // The probability that all bits are right, by repeated squaring.
        let (mut right, mut power, mut bits) = (u64::MAX, u64::MAX - self.0, bits);
        while bits > 0 {
            if bits & 1 == 1 {
                right = product(right, power);
            }
            power = product(power, power);
            bits >>= 1;
        }
        random >= right
    }
}

/// The product of two numbers in units of 2^-64.
const fn product(a: u64, b: u64) -> u64 {
    ((a as u128 * b as u128) >> 64) as u64
}

/// The lanes of one direction of a link.
///
/// The receiving end monitors the last 64 slices, or frames, of each lane. TofuD's reports the bad
/// lanes to the sender (STAT). While any lane is bad, every lane carries the whole frame, and one
/// good copy is enough; a lane that recovers is used again (TofuD paper, IV.E). Tofu2's receiver
/// permanently removes a bad lane, as long as there is another. The thresholds at which a lane
/// counts as bad, and as good again, are *ours*.
#[derive(Clone, Debug)]
pub struct Lanes {
    slicing: Slicing,
    /// As bits: all lanes, those that are dead, and those that were permanently removed.
    all: u8,
    dead: u8,
    given_up: u8,
    /// Bad lanes, according to the receiver, and as last reported to the sender.
    bad: u8,
    told: u8,
    /// Nothing can go wrong, and nothing recently did.
    quiet: bool,
    rates: [ErrorRate; MAX_LANES],
    /// Which of the last 64 were corrupted on each lane, the latest in the lowest bit.
    spoilt: [u64; MAX_LANES],
}

/// This number of corrupted ones among the last 64 makes a lane bad.
const BAD: u32 = 8;
/// With no more than this number, it is good again.
const GOOD: u32 = 1;

impl Lanes {
    /// Lanes without errors.
    pub const fn new(parameters: &Parameters) -> Self {
        Self {
            slicing: parameters.slicing,
            all: ((1 << parameters.lanes) - 1) as u8,
            dead: 0,
            given_up: 0,
            bad: 0,
            told: 0,
            quiet: true,
            rates: [ErrorRate::NEVER; MAX_LANES],
            spoilt: [0; MAX_LANES],
        }
    }

    /// The number of lanes.
    pub const fn count(&self) -> u8 {
        self.all.count_ones() as u8
    }

    /// Sets the bit error rate of a lane. A lane that does not exist is ignored.
    pub fn set_rate(&mut self, lane: u8, rate: ErrorRate) {
        if lane < self.count() {
            self.rates[usize::from(lane)] = rate;
            self.quiet = false;
        }
    }

    /// Makes a lane die, or come back.
    pub fn set_dead(&mut self, lane: u8, dead: bool) {
        let bit = self.all & 1_u8.checked_shl(lane.into()).unwrap_or(0);
        self.dead = if dead { self.dead | bit } else { self.dead & !bit };
        self.quiet &= bit == 0;
    }

    /// Returns true if everything sent arrives intact, and recently did.
    pub const fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Returns true if anything can be sent: not if all lanes are dead where one is enough, or any
    /// lane is dead where all are needed.
    pub const fn works(&self) -> bool {
        match self.slicing {
            Slicing::Striped => self.dead == 0,
            Slicing::Degrading => self.dead | self.given_up != self.all,
            Slicing::Dynamic => self.dead != self.all,
        }
    }

    /// Number of lanes over which the next frame is spread, for
    /// [`Parameters::wire_ps_on`](crate::Parameters::wire_ps_on): with TofuD, 1 means that it is
    /// sent whole on each.
    pub const fn width(&self) -> u8 {
        match self.slicing {
            Slicing::Striped => self.count(),
            Slicing::Degrading => (self.all & !self.given_up).count_ones() as u8,
            Slicing::Dynamic if self.told != 0 => 1,
            Slicing::Dynamic => self.count(),
        }
    }

    /// The lanes on which the last frame was corrupted, as bits.
    pub fn spoilt(&self) -> u8 {
        (0..).zip(self.spoilt).fold(0, |bits, (lane, seen)| bits | ((seen & 1) as u8) << lane)
    }

    /// Returns true if the lanes are as if nothing had ever gone wrong.
    pub const fn is_as_new(&self) -> bool {
        self.quiet && self.given_up == 0
    }

    /// STAT: the lanes that are bad according to the receiver, as bits.
    pub const fn stat(&self) -> u8 {
        self.bad
    }

    /// Passes STAT to the sender, which gets it from the routing header of any frame of the other
    /// direction.
    pub const fn tell(&mut self, stat: u8) {
        self.told = stat & self.all;
    }

    /// Sends a frame that is spread over `width` lanes. Returns whether it arrives intact.
    ///
    /// `frame` is as in [`Parameters::rows`](crate::Parameters::rows), 8 for a DLLP alone; `random`
    /// returns random numbers.
    pub fn carry(
        &mut self,
        parameters: &Parameters,
        frame: u16,
        width: u8,
        mut random: impl FnMut() -> u64,
        counters: &mut Counters,
    ) -> Check {
        if self.quiet {
            return Check::Good;
        }
        let Some(bits) = parameters.lane_bits(frame, width) else { return Check::Bad };
        let mut spoilt = 0;
        for lane in 0..usize::from(self.count()) {
            let bit = 1 << lane;
            if self.given_up & bit != 0 {
                continue;
            }
            let dead = self.dead & bit != 0;
            let wrong = !dead
                && self.rates[lane] != ErrorRate::NEVER
                && self.rates[lane].spoils(bits, random());
            if wrong && let Some(errors) = counters.slice_fcs_errors.get_mut(lane) {
                *errors += u64::from(self.slicing == Slicing::Dynamic);
            }
            if dead || wrong {
                spoilt |= bit;
            }
        }
        self.watch(spoilt);
        let good = match self.slicing {
            Slicing::Dynamic if width < self.count() => spoilt != self.all,
            _ => spoilt == 0,
        };
        if good { Check::Good } else { Check::Bad }
    }

    /// Records which lanes corrupted what they carried.
    fn watch(&mut self, spoilt: u8) {
        let lanes = usize::from(self.count());
        for (lane, seen) in self.spoilt[..lanes].iter_mut().enumerate() {
            let bit = 1 << lane;
            *seen = *seen << 1 | u64::from(spoilt & bit != 0);
            if seen.count_ones() >= BAD {
                self.bad |= bit;
            } else if seen.count_ones() <= GOOD {
                self.bad &= !bit;
            }
        }
        if self.slicing == Slicing::Degrading && self.given_up | self.bad != self.all {
            self.given_up |= self.bad;
        }
        self.quiet = self.dead == 0
            && self.told == 0
            && self.spoilt == [0; MAX_LANES]
            && self.rates == [ErrorRate::NEVER; MAX_LANES];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u16 = 1992;

    /// Any generator will do.
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    struct Direction(Lanes, Parameters, Counters, u64);

    impl Direction {
        fn new(parameters: Parameters) -> Self {
            Self(Lanes::new(&parameters), parameters, Counters::default(), 1)
        }

        /// Sends frames, and passes the receiver's STAT to the sender after each. Returns how many
        /// arrived.
        fn send(&mut self, frames: u32) -> u32 {
            let mut good = 0;
            for _ in 0..frames {
                let (width, seed) = (self.0.width(), &mut self.3);
                let check = self.0.carry(&self.1, FRAME, width, || random(seed), &mut self.2);
                good += u32::from(check == Check::Good);
                let stat = self.0.stat();
                self.0.tell(stat);
            }
            good
        }
    }

    #[test]
    fn rates_are_what_they_say() {
        assert_eq!(ErrorRate::new(-0.1), None);
        assert_eq!(ErrorRate::new(1.1), None);
        assert_eq!(ErrorRate::new(f64::NAN), None);
        for (rate, bits, percent) in [(0.0, 1, 0), (1e-4, 10_000, 63), (0.5, 1, 50), (1.0, 1, 100)]
        {
            let rate = ErrorRate::new(rate).expect("it is a rate");
            let mut seed = 7;
            let spoilt = (0..10_000).filter(|_| rate.spoils(bits, random(&mut seed))).count();
            assert!(spoilt.abs_diff(percent * 100) < 200, "{spoilt} of 10000, not {percent} %");
        }
    }

    #[test]
    fn dead_lane_costs_frames_and_half_the_rate() {
        let mut direction = Direction::new(Parameters::TOFUD);
        assert_eq!((direction.send(1000), direction.0.width()), (1000, 2));
        direction.0.set_dead(1, true);
        assert!(direction.0.works());
        let arrived = direction.send(1000);
        assert_eq!((arrived, direction.0.width(), direction.0.stat()), (992, 1, 2));
        direction.0.set_dead(1, false);
        assert_eq!((direction.send(1000), direction.0.width()), (1000, 2));
        assert!(direction.0.is_quiet());
        assert_eq!(direction.2.slice_fcs_errors, [0, 0]);
    }

    #[test]
    fn recovered_lane_is_used_again() {
        let mut direction = Direction::new(Parameters::TOFUD);
        direction.0.set_rate(0, ErrorRate::new(1e-4).expect("it is a rate"));
        let arrived = direction.send(10_000);
        assert_eq!((direction.0.width(), direction.0.stat()), (1, 1));
        assert!(arrived > 9_980, "{arrived} of 10000 arrived");
        assert!(direction.2.slice_fcs_errors[0] > 7_000 && direction.2.slice_fcs_errors[1] == 0);
        direction.0.set_rate(0, ErrorRate::NEVER);
        direction.send(100);
        assert_eq!((direction.0.width(), direction.0.is_quiet()), (2, true));
    }

    #[test]
    fn tofu2_gives_a_lane_up_for_good() {
        let mut direction = Direction::new(Parameters::TOFU2);
        direction.0.set_dead(3, true);
        assert_eq!((direction.send(1000), direction.0.width()), (992, 3));
        direction.0.set_dead(3, false);
        assert_eq!((direction.send(1000), direction.0.width()), (1000, 3));
        for lane in 0..3 {
            direction.0.set_dead(lane, true);
            direction.send(100);
        }
        assert!(!direction.0.works());
        assert_eq!((direction.0.width(), direction.send(10)), (1, 0));
    }

    #[test]
    fn tofu_needs_every_lane() {
        let mut direction = Direction::new(Parameters::TOFU);
        direction.0.set_dead(9, true);
        assert!(direction.0.works() && direction.0.is_quiet());
        direction.0.set_dead(7, true);
        assert!(!direction.0.works());
        assert_eq!((direction.send(10), direction.0.width()), (0, 8));
    }
}
