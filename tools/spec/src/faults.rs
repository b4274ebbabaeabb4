//! Faults of the network, as users write them.

use std::fmt;
use std::str::FromStr;

use tofu_fabric::{FaultPlan, Ppm, Rates};

/// Faults for a whole machine or a link, such as `loss=1%,duplicate=0.5%,seed=7`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSpec {
    /// The rates.
    pub rates: Rates,
    /// The seed of the random numbers.
    pub seed: u64,
    /// True if commands can be lost, too.
    pub commands: bool,
}

impl FaultSpec {
    pub(crate) const ALLOWED: &str = "a list of loss, duplicate, reorder, corrupt and undetected \
         with a share from 0% to 100% in steps of 0.0001%, seed with a whole number, and \
         commands, such as \"loss=1%,duplicate=0.5%,seed=7\"";

    /// Returns the plan that has these faults on all links.
    pub fn plan(&self) -> FaultPlan {
        let Self { rates, seed, commands } = *self;
        FaultPlan { seed, everywhere: rates, links: Vec::new(), commands }
    }

    /// Returns the faults that a plan has on all links.
    pub fn of(plan: &FaultPlan) -> Self {
        Self { rates: plan.everywhere, seed: plan.seed, commands: plan.commands }
    }
}

/// Parses a share such as `0.5%` into parts per million.
pub(crate) fn share(text: &str) -> Option<Ppm> {
    let number = text.strip_suffix('%')?;
    let (whole, rest) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(rest) || rest.len() > 4 {
        return None;
    }
    let rest: u32 = format!("{rest:0<4}").parse().ok()?;
    Ppm::new(whole.parse::<u32>().ok()?.checked_mul(10_000)?.checked_add(rest)?)
}

impl FromStr for FaultSpec {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut spec = Self::default();
        for part in text.split(',') {
            let part = part.trim();
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let rate = match name {
                "loss" => &mut spec.rates.loss,
                "duplicate" => &mut spec.rates.duplicate,
                "reorder" => &mut spec.rates.reorder,
                "corrupt" => &mut spec.rates.corrupt,
                "undetected" => &mut spec.rates.undetected,
                "seed" => {
                    spec.seed = value.parse().map_err(|_| Self::ALLOWED)?;
                    continue;
                }
                "commands" if part == "commands" => {
                    spec.commands = true;
                    continue;
                }
                _ => return Err(Self::ALLOWED),
            };
            *rate = share(value).ok_or(Self::ALLOWED)?;
        }
        Ok(spec)
    }
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rates { loss, duplicate, reorder, corrupt, undetected } = self.rates;
        let all = [
            ("loss", loss),
            ("duplicate", duplicate),
            ("reorder", reorder),
            ("corrupt", corrupt),
            ("undetected", undetected),
        ];
        for (name, rate) in all.into_iter().filter(|(_, rate)| *rate != Ppm::NEVER) {
            write!(f, "{name}={}%,", f64::from(rate.parts()) / 10_000.0)?;
        }
        write!(f, "seed={}", self.seed)?;
        if self.commands {
            f.write_str(",commands")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_written() {
        let text = "loss=1%,duplicate=0.5%,corrupt=0.0001%,undetected=100%,seed=7,commands";
        let spec: FaultSpec = text.parse().unwrap();
        let parts = |ppm: Ppm| ppm.parts();
        let Rates { loss, duplicate, reorder, corrupt, undetected } = spec.rates;
        assert_eq!([loss, duplicate, reorder].map(parts), [10_000, 5_000, 0]);
        assert_eq!([corrupt, undetected].map(parts), [1, 1_000_000]);
        assert_eq!((spec.seed, spec.commands), (7, true));
        assert_eq!(spec.to_string(), text);
        assert_eq!(FaultSpec::of(&spec.plan()), spec);
        assert_eq!(
            " reorder=2% , loss=0%".parse::<FaultSpec>().unwrap().to_string(),
            "reorder=2%,seed=0"
        );
    }

    #[test]
    fn malformed_faults_are_refused() {
        let cases = [
            "",
            "loss",
            "loss=1",
            "loss=%",
            "loss=.5%",
            "loss=101%",
            "loss=-1%",
            "loss=1.00001%",
            "loss=1%%",
            "seed=",
            "seed=x",
            "commands=1",
            "delay=1%",
            "loss=1%,",
            "loss=1e2%",
        ];
        for text in cases {
            assert_eq!(text.parse::<FaultSpec>(), Err(FaultSpec::ALLOWED), "{text}");
        }
    }
}
