//! Faults of a device, as users write them.

use std::str::FromStr;

use tofu_machine::DeviceFaults;

use crate::faults::share;
use crate::units::Timeout;

/// Faults of a device, such as `msix-lost=5%,late=20ms,seed=7`, or `off`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceFaultSpec(pub DeviceFaults);

impl DeviceFaultSpec {
    const ALLOWED: &str = "off, or a list of msix-lost and msix-doubled with a share from 0% to \
         100%, gone, stuck, endless-reset, late with a time up to 24h, and seed with a whole \
         number, such as \"msix-lost=5%,late=20ms,seed=7\"";
}

impl FromStr for DeviceFaultSpec {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut faults = DeviceFaults::default();
        if text.trim() == "off" {
            return Ok(Self(faults));
        }
        for part in text.split(',').map(str::trim) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match name {
                "msix-lost" => faults.msix_lost = share(value).ok_or(Self::ALLOWED)?,
                "msix-doubled" => faults.msix_doubled = share(value).ok_or(Self::ALLOWED)?,
                "gone" if part == name => faults.gone = true,
                "stuck" if part == name => faults.stuck = true,
                "endless-reset" if part == name => faults.endless_reset = true,
                "late" => {
                    let Timeout(time) = value.parse().map_err(|_| Self::ALLOWED)?;
                    faults.late_ns = time.as_nanos() as u64;
                }
                "seed" => faults.seed = value.parse().map_err(|_| Self::ALLOWED)?,
                _ => return Err(Self::ALLOWED),
            }
        }
        Ok(Self(faults))
    }
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
        assert_eq!((faults.late_ns, faults.seed), (20_000_000, 7));
        assert_eq!("off".parse(), Ok(DeviceFaultSpec::default()));
    }

    #[test]
    fn malformed_device_faults_are_refused() {
        for text in ["", "gone=1", "late", "late=25h", "msix-lost=101%", "seed=x", "off,gone", "x"]
        {
            assert_eq!(text.parse::<DeviceFaultSpec>(), Err(DeviceFaultSpec::ALLOWED), "{text}");
        }
    }
}
