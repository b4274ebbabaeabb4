//! Errors of a modelled link, as users write them.

use std::fmt;
use std::str::FromStr;

use tofu_fabric::{BadErrors, LinkErrors};
use tofu_links::{ErrorRate, MAX_LANES};

/// A rate from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate(f64);

impl Rate {
    /// Describes the allowed values.
    pub const ALLOWED: &str = "a rate from 0 to 1, such as 1e-7";

    fn error_rate(self) -> ErrorRate {
        ErrorRate::new(self.0).unwrap_or(ErrorRate::NEVER)
    }
}

impl FromStr for Rate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rate = text.parse().ok().filter(|rate| ErrorRate::new(*rate).is_some());
        rate.map(Self).ok_or(Self::ALLOWED)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:e}", self.0)
    }
}

/// Errors of a link, in both directions, such as `ber=1e-7,lane=1,dllp_loss=1e-3`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkErrorSpec {
    /// The probability that a bit is wrong.
    pub ber: Rate,
    /// The lane with these bit errors; all lanes if `None`.
    pub lane: Option<u8>,
    /// A lane that is dead.
    pub dead: Option<u8>,
    /// The probability that a data-link-layer packet is lost.
    pub dllp_loss: Rate,
}

impl LinkErrorSpec {
    pub(crate) const ALLOWED: &str = "a list of ber and dllp_loss, each a rate from 0 to 1, and \
         lane and dead, each the number of a lane, such as \"ber=1e-7,lane=1,dllp_loss=1e-3\"";

    /// Returns the errors for a network whose links have `lanes` lanes.
    ///
    /// # Errors
    ///
    /// If the links have no such lane.
    pub(crate) fn errors(&self, lanes: u8) -> Result<LinkErrors, BadErrors> {
        let mut named = [self.lane, self.dead].into_iter().flatten();
        if let Some(lane) = named.find(|lane| *lane >= lanes) {
            return Err(BadErrors::Lane { lane, lanes });
        }
        let mut rates = [ErrorRate::NEVER; MAX_LANES];
        for (lane, rate) in (0..).zip(&mut rates) {
            if self.lane.map_or(lane < lanes, |only| only == lane) {
                *rate = self.ber.error_rate();
            }
        }
        let dead = self.dead.map_or(0, |lane| 1 << lane);
        Ok(LinkErrors { rates, dead, dllp_loss: self.dllp_loss.error_rate() })
    }
}

impl FromStr for LinkErrorSpec {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Only the machine knows how many lanes there are.
        let lane = |value: &str| value.parse().map(Some).map_err(|_| Self::ALLOWED);
        let mut spec = Self::default();
        for part in text.split(',') {
            let (name, value) = part.trim().split_once('=').ok_or(Self::ALLOWED)?;
            match name {
                "ber" => spec.ber = value.parse().map_err(|_| Self::ALLOWED)?,
                "dllp_loss" => spec.dllp_loss = value.parse().map_err(|_| Self::ALLOWED)?,
                "lane" => spec.lane = lane(value)?,
                "dead" => spec.dead = lane(value)?,
                _ => return Err(Self::ALLOWED),
            }
        }
        Ok(spec)
    }
}

impl fmt::Display for LinkErrorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ber={},dllp_loss={}", self.ber, self.dllp_loss)?;
        for (name, lane) in [("lane", self.lane), ("dead", self.dead)] {
            if let Some(lane) = lane {
                write!(f, ",{name}={lane}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_read_and_written() {
        let spec: LinkErrorSpec = "ber=1e-7, lane=1,dllp_loss=0.001".parse().unwrap();
        assert_eq!(spec.to_string(), "ber=1e-7,dllp_loss=1e-3,lane=1");
        assert_eq!(spec.to_string().parse(), Ok(spec));
        let errors = spec.errors(2).unwrap();
        assert_eq!(errors.rates[0], ErrorRate::NEVER);
        assert_eq!(Some(errors.rates[1]), ErrorRate::new(1e-7));
        let all = LinkErrorSpec { lane: None, dead: Some(0), ..spec }.errors(2).unwrap();
        assert_eq!((all.rates[0], all.rates[2]), (errors.rates[1], ErrorRate::NEVER));
        assert_eq!(all.dead, 1);
        for wrong in [
            LinkErrorSpec { lane: Some(2), ..spec },
            LinkErrorSpec { dead: Some(2), ..spec },
            LinkErrorSpec { dead: Some(255), ..spec },
        ] {
            let error = wrong.errors(2).unwrap_err().to_string();
            assert!(error.ends_with(" does not exist: links have 0 to 1"), "{error}");
        }
    }

    #[test]
    fn malformed_error_rates_are_refused() {
        for text in ["", "ber", "ber=2", "ber=-1", "ber=nan", "lane=256", "lane=x", "loss=0.1"] {
            assert_eq!(text.parse::<LinkErrorSpec>(), Err(LinkErrorSpec::ALLOWED), "{text}");
        }
    }
}
