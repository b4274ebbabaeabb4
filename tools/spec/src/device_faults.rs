//! Faults of a device, as users write them.

use std::str::FromStr;

use tofu_fabric::Ppm;
use tofu_machine::{DeviceFaults, Fate, MOST_PLANNED, Planned};

use crate::faults::share;
use crate::units::Timeout;

/// Faults of a device, such as `msix-lost=5%,late=20ms,seed=7`, or `off`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceFaultSpec(pub DeviceFaults);

impl DeviceFaultSpec {
    const ALLOWED: &str = "off, or a list of msix-lost, msix-doubled, msix-delayed, read-abort, \
         write-abort, register-lies and write-lies with a share from 0% to 100%, gone, stuck, \
         endless-reset, late, late-tcq, \
         late-mrq and delay with a time up to 24h, seed with a whole number, and at most 16 of \
         msix@VECTOR#N=lost (or doubled, or delayed), read#N=abort and write#N=abort, such as \
         \"msix-lost=5%,msix@9#3=lost,late=20ms,seed=7\"";
    /// Time for which messages are delayed if none is given.
    const DELAY_NS: u64 = 10_000_000;
}

impl FromStr for DeviceFaultSpec {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut faults = DeviceFaults::default();
        let mut planned = Vec::new();
        if text.trim() == "off" {
            return Ok(Self(faults));
        }
        for part in text.split(',').map(str::trim) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let time = || value.parse().map(|Timeout(time)| time.as_nanos() as u64);
            match name {
                _ if name.contains('#') => {
                    planned.push(of_one(name, value).ok_or(Self::ALLOWED)?);
                }
                "msix-delayed" => faults.msix_delayed = share(value).ok_or(Self::ALLOWED)?,
                "read-abort" => faults.read_abort = share(value).ok_or(Self::ALLOWED)?,
                "write-abort" => faults.write_abort = share(value).ok_or(Self::ALLOWED)?,
                "register-lies" => faults.register_lies = share(value).ok_or(Self::ALLOWED)?,
                "write-lies" => faults.write_lies = share(value).ok_or(Self::ALLOWED)?,
                "delay" => faults.delay_ns = time().map_err(|_| Self::ALLOWED)?,
                "late-tcq" => faults.late_tcq_ns = time().map_err(|_| Self::ALLOWED)?,
                "late-mrq" => faults.late_mrq_ns = time().map_err(|_| Self::ALLOWED)?,
                "msix-lost" => faults.msix_lost = share(value).ok_or(Self::ALLOWED)?,
                "msix-doubled" => faults.msix_doubled = share(value).ok_or(Self::ALLOWED)?,
                "gone" if part == name => faults.gone = true,
                "stuck" if part == name => faults.stuck = true,
                "endless-reset" if part == name => faults.endless_reset = true,
                "late" => {
                    let late_ns = time().map_err(|_| Self::ALLOWED)?;
                    (faults.late_tcq_ns, faults.late_mrq_ns) = (late_ns, late_ns);
                }
                "seed" => faults.seed = value.parse().map_err(|_| Self::ALLOWED)?,
                _ => return Err(Self::ALLOWED),
            }
        }
        if planned.len() > MOST_PLANNED {
            return Err(Self::ALLOWED);
        }
        for (place, planned) in faults.planned.iter_mut().zip(planned) {
            *place = Some(planned);
        }
        let delays =
            |planned: &Planned| matches!(planned, Planned::Message { fate: Fate::Delayed, .. });
        let delays = faults.planned.iter().flatten().any(delays);
        if faults.delay_ns == 0 && (delays || faults.msix_delayed != Ppm::NEVER) {
            faults.delay_ns = Self::DELAY_NS;
        }
        Ok(Self(faults))
    }
}

/// A fault of one message or access, such as `msix@9#3=lost` or `write#100=abort`.
fn of_one(name: &str, value: &str) -> Option<Planned> {
    let (of, nth) = name.split_once('#')?;
    let nth = nth.parse().ok().filter(|nth| *nth > 0)?;
    Some(match (of, value) {
        ("read", "abort") => Planned::Read(nth),
        ("write", "abort") => Planned::Write(nth),
        _ => {
            let vector = of.strip_prefix("msix@")?.parse().ok()?;
            let fate = match value {
                "lost" => Fate::Lost,
                "doubled" => Fate::Doubled,
                "delayed" => Fate::Delayed,
                _ => return None,
            };
            Planned::Message { vector, nth, fate }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_faults_are_read() {
        let text = "msix-lost=5%, msix-doubled=0.5%,gone,stuck,endless-reset,late=20ms,seed=7";
        let DeviceFaultSpec(faults) = text.parse().unwrap();
        assert_eq!(faults.msix_lost.parts(), 50_000);
        assert_eq!(faults.msix_doubled.parts(), 5_000);
        assert!(faults.gone && faults.stuck && faults.endless_reset);
        assert_eq!((faults.late_tcq_ns, faults.late_mrq_ns), (20_000_000, 20_000_000));
        assert_eq!(faults.seed, 7);
        assert_eq!("off".parse(), Ok(DeviceFaultSpec::default()));
    }

    #[test]
    fn planned_device_faults_are_read() {
        let text = "msix@9#3=lost,msix@8#1=delayed,read#5=abort,write#100=abort,late-mrq=1s,\
                    register-lies=1%,write-lies=0.1%";
        let DeviceFaultSpec(faults) = text.parse().unwrap();
        let lost = Planned::Message { vector: 9, nth: 3, fate: Fate::Lost };
        let delayed = Planned::Message { vector: 8, nth: 1, fate: Fate::Delayed };
        let expected = [lost, delayed, Planned::Read(5), Planned::Write(100)].map(Some);
        assert_eq!(faults.planned[..5], [&expected[..], &[None]].concat());
        assert_eq!((faults.late_tcq_ns, faults.late_mrq_ns), (0, 1_000_000_000));
        assert_eq!((faults.register_lies.parts(), faults.write_lies.parts()), (10_000, 1_000));
        assert_eq!(faults.delay_ns, DeviceFaultSpec::DELAY_NS);
    }

    #[test]
    fn malformed_device_faults_are_refused() {
        let many = ["read#1=abort"; MOST_PLANNED + 1].join(",");
        for text in [
            "",
            "gone=1",
            "late",
            "late=25h",
            "msix-lost=101%",
            "seed=x",
            "off,gone",
            "x",
            &many,
            "msix@9#0=lost",
            "msix@x#1=lost",
            "msix#1=lost",
            "read#1=lost",
            "read#=abort",
            "msix@9#1=abort",
            "late-tcq=x",
        ] {
            assert_eq!(text.parse::<DeviceFaultSpec>(), Err(DeviceFaultSpec::ALLOWED), "{text}");
        }
    }
}
