//! The parts of a PC beside serial port, interrupt controllers and PCI, as far as Linux uses them:
//! a real-time clock, ACPI power management, the reset register.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tofu_sync::lock;

use super::acpi::{CMOS_CENTURY, SLEEP_TYPE_OFF};
use crate::layout;
use crate::outcome::Outcome;

const PM1_EVENT_END: u16 = layout::PORT_PM1_EVENT + 4;
const PM1_CONTROL_END: u16 = layout::PORT_PM1_CONTROL + 2;
const PM_TIMER_END: u16 = layout::PORT_PM_TIMER + 4;

/// Devices at I/O ports. Small guests have none of them.
pub(crate) struct Platform {
    cmos: Mutex<Cmos>,
    power: Option<Mutex<Power>>,
}

impl Platform {
    /// With or without the registers of ACPI.
    pub(crate) fn new(acpi: bool) -> Self {
        Self { cmos: Mutex::new(Cmos::new()), power: acpi.then(|| Mutex::new(Power::new())) }
    }

    /// Serves an OUT. Returns the outcome if this ends the VM, and `Err` if the port is not here.
    pub(crate) fn write(&self, port: u16, data: &[u8]) -> Result<Option<Outcome>, NotHere> {
        const RESET_CPU: u8 = 1 << 2;
        match (port, data) {
            (layout::PORT_RESET, &[value]) => {
                return Ok((value & RESET_CPU != 0).then_some(Outcome::Reset));
            }
            (CMOS_INDEX, &[index]) => lock(&self.cmos).index = index & CMOS_INDEX_MASK,
            (CMOS_DATA, &[value]) => lock(&self.cmos).write(value),
            _ => {
                let power = self.power.as_ref().ok_or(NotHere)?;
                return lock(power).write(port, data);
            }
        }
        Ok(None)
    }

    /// Serves an IN. `Err` if the port is not here.
    pub(crate) fn read(&self, port: u16, data: &mut [u8]) -> Result<(), NotHere> {
        match (port, &mut *data) {
            (layout::PORT_RESET, [value]) => *value = 0,
            (CMOS_INDEX, [value]) => *value = 0xff,
            (CMOS_DATA, [value]) => *value = lock(&self.cmos).read(SystemTime::now()),
            _ => return lock(self.power.as_ref().ok_or(NotHere)?).read(port, data),
        }
        Ok(())
    }
}

/// Nothing answers at that port.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotHere;

/// The fixed registers of ACPI 6.5, section 4.8: no event ever happens.
struct Power {
    /// Status is always 0; enable bits are kept.
    enable: u16,
    control: u16,
    begin: Instant,
}

impl Power {
    /// The machine is in ACPI mode.
    const SCI_ENABLED: u16 = 1 << 0;
    const SLEEP: u16 = 1 << 13;
    const SLEEP_TYPE_SHIFT: u16 = 10;
    const HZ: u128 = 3_579_545;
    const TIMER_MASK: u32 = 0xff_ffff;

    fn new() -> Self {
        Self { enable: 0, control: 0, begin: Instant::now() }
    }

    fn write(&mut self, port: u16, data: &[u8]) -> Result<Option<Outcome>, NotHere> {
        match port {
            layout::PORT_PM1_EVENT..PM1_EVENT_END => {
                let mut registers = self.event();
                put(&mut registers, port - layout::PORT_PM1_EVENT, data);
                self.enable = u16::from_le_bytes([registers[2], registers[3]]);
            }
            layout::PORT_PM1_CONTROL..PM1_CONTROL_END => {
                let mut registers = self.control.to_le_bytes();
                put(&mut registers, port - layout::PORT_PM1_CONTROL, data);
                let value = u16::from_le_bytes(registers);
                self.control = value & !Self::SLEEP;
                let kind = value >> Self::SLEEP_TYPE_SHIFT & 7;
                if value & Self::SLEEP != 0 && kind == u16::from(SLEEP_TYPE_OFF) {
                    return Ok(Some(Outcome::PoweredOff));
                }
            }
            layout::PORT_PM_TIMER..PM_TIMER_END => {}
            _ => return Err(NotHere),
        }
        Ok(None)
    }

    fn read(&self, port: u16, data: &mut [u8]) -> Result<(), NotHere> {
        match port {
            layout::PORT_PM1_EVENT..PM1_EVENT_END => {
                get(&self.event(), port - layout::PORT_PM1_EVENT, data);
            }
            layout::PORT_PM1_CONTROL..PM1_CONTROL_END => {
                let registers = (self.control | Self::SCI_ENABLED).to_le_bytes();
                get(&registers, port - layout::PORT_PM1_CONTROL, data);
            }
            layout::PORT_PM_TIMER..PM_TIMER_END => {
                let registers = Self::timer(self.begin.elapsed()).to_le_bytes();
                get(&registers, port - layout::PORT_PM_TIMER, data);
            }
            _ => return Err(NotHere),
        }
        Ok(())
    }

    fn event(&self) -> [u8; 4] {
        let [low, high] = self.enable.to_le_bytes();
        [0, 0, low, high]
    }

    fn timer(elapsed: Duration) -> u32 {
        (elapsed.as_nanos() * Self::HZ / 1_000_000_000) as u32 & Self::TIMER_MASK
    }
}

/// Copies the part of `registers` from `offset` that an access covers; what lies
/// beyond reads as ones.
fn get(registers: &[u8], offset: u16, data: &mut [u8]) {
    data.fill(0xff);
    for (byte, register) in data.iter_mut().zip(registers.iter().skip(offset.into())) {
        *byte = *register;
    }
}

fn put(registers: &mut [u8], offset: u16, data: &[u8]) {
    for (register, byte) in registers.iter_mut().skip(offset.into()).zip(data) {
        *register = *byte;
    }
}

const CMOS_INDEX: u16 = layout::PORT_CMOS;
const CMOS_DATA: u16 = layout::PORT_CMOS + 1;
/// Bit 7 of the index masks NMIs; this machine has none.
const CMOS_INDEX_MASK: u8 = 0x7f;
const CMOS_SIZE: usize = 128;

/// An MC146818: the host's time in UTC, in BCD and by 24 hours, and 128 bytes of
/// memory. Guests cannot set it, and it raises no interrupts.
struct Cmos {
    index: u8,
    memory: [u8; CMOS_SIZE],
}

impl Cmos {
    const REGISTER_A: u8 = 0x0a;
    const REGISTER_D: u8 = 0x0d;
    /// 32768 Hz time base, no update in progress.
    const TIME_BASE: u8 = 0x26;
    const BY_24_HOURS: u8 = 0x02;
    const VALID: u8 = 0x80;

    fn new() -> Self {
        Self { index: 0, memory: [0; CMOS_SIZE] }
    }

    fn write(&mut self, value: u8) {
        if self.index > Self::REGISTER_D && self.index != CMOS_CENTURY {
            self.memory[usize::from(self.index)] = value;
        }
    }

    fn read(&self, now: SystemTime) -> u8 {
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let date = Date::of(seconds);
        match self.index {
            0x00 => bcd(date.second),
            0x02 => bcd(date.minute),
            0x04 => bcd(date.hour),
            0x06 => bcd(date.weekday),
            0x07 => bcd(date.day),
            0x08 => bcd(date.month),
            0x09 => bcd((date.year % 100) as u8),
            CMOS_CENTURY => bcd((date.year / 100 % 100) as u8),
            Self::REGISTER_A => Self::TIME_BASE,
            0x0b => Self::BY_24_HOURS,
            Self::REGISTER_D => Self::VALID,
            // Alarms, and the interrupt flags.
            0x01 | 0x03 | 0x05 | 0x0c => 0,
            index => self.memory[usize::from(index)],
        }
    }
}

fn bcd(value: u8) -> u8 {
    ((value / 10) << 4) | (value % 10)
}

/// A moment in the Gregorian calendar, UTC.
#[derive(Debug, PartialEq, Eq)]
struct Date {
    year: u64,
    month: u8,
    day: u8,
    /// Sunday is 1.
    weekday: u8,
    hour: u8,
    minute: u8,
    second: u8,
}

impl Date {
    fn of(seconds: u64) -> Self {
        const DAY: u64 = 86_400;
        const DAYS_OF_400_YEARS: u64 = 146_097;
        const MARCH_0000_TO_1970: u64 = 719_468;
        let (days, time) = (seconds / DAY, seconds % DAY);
        // Years are counted from 1 March, so that the leap day is their last.
        let days_since_march_0 = days + MARCH_0000_TO_1970;
        let cycle = days_since_march_0 / DAYS_OF_400_YEARS;
        let day_of_cycle = days_since_march_0 % DAYS_OF_400_YEARS;
        let leap_days = |day: u64| day / 1460 - day / 36_524 + day / (DAYS_OF_400_YEARS - 1);
        let year_of_cycle = (day_of_cycle - leap_days(day_of_cycle)) / 365;
        let day_of_year =
            day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
        // Five months from March on have 153 days.
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u8;
        let month = (month_from_march + 2) % 12 + 1;
        Self {
            year: 400 * cycle + year_of_cycle + u64::from(month <= 2),
            month: month as u8,
            day,
            // 1 January 1970 was a Thursday.
            weekday: ((days + 4) % 7 + 1) as u8,
            hour: (time / 3600) as u8,
            minute: (time / 60 % 60) as u8,
            second: (time % 60) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        let date = |seconds| {
            let Date { year, month, day, weekday, hour, minute, second } = Date::of(seconds);
            (year, month, day, weekday, hour, minute, second)
        };
        assert_eq!(date(0), (1970, 1, 1, 5, 0, 0, 0));
        assert_eq!(date(951_782_399), (2000, 2, 28, 2, 23, 59, 59));
        assert_eq!(date(951_782_400), (2000, 2, 29, 3, 0, 0, 0));
        assert_eq!(date(1_735_689_599), (2024, 12, 31, 3, 23, 59, 59));
        assert_eq!(date(4_107_542_400), (2100, 3, 1, 2, 0, 0, 0));
        // Each day follows the one before it.
        let mut before = Date::of(0);
        for day in 1..150_000u64 {
            let now = Date::of(day * 86_400);
            let next_day = now.year == before.year && now.month == before.month;
            let next_month = now.day == 1
                && before.day >= 28
                && now.year * 12 + u64::from(now.month)
                    == before.year * 12 + u64::from(before.month) + 1;
            assert!(next_day && now.day == before.day + 1 || next_month, "{before:?} {now:?}");
            before = now;
        }
    }

    fn cmos(platform: &Platform, index: u8) -> u8 {
        platform.write(layout::PORT_CMOS, &[index]).unwrap();
        let mut value = [0];
        platform.read(layout::PORT_CMOS + 1, &mut value).unwrap();
        value[0]
    }

    #[test]
    fn clock_tells_time_and_keeps_memory() {
        let platform = Platform::new(false);
        assert_eq!(cmos(&platform, 0x0d), 0x80);
        assert_eq!(cmos(&platform, 0x0a) & 0x80, 0, "no update in progress");
        let year = u32::from(cmos(&platform, 0x32)) << 8 | u32::from(cmos(&platform, 0x09));
        assert!((0x2024..0x2300).contains(&year), "{year:x}");
        platform.write(layout::PORT_CMOS, &[0x8f]).unwrap();
        platform.write(layout::PORT_CMOS + 1, &[0x5a]).unwrap();
        assert_eq!(cmos(&platform, 0x0f), 0x5a);
        // The time is the host's; what the guest writes is ignored.
        platform.write(layout::PORT_CMOS, &[0x08]).unwrap();
        platform.write(layout::PORT_CMOS + 1, &[0x99]).unwrap();
        assert!(cmos(&platform, 0x08) <= 0x12);
    }

    #[test]
    fn only_sleep_type_5_powers_off() {
        let platform = Platform::new(true);
        let write = |value: u16| platform.write(layout::PORT_PM1_CONTROL, &value.to_le_bytes());
        assert_eq!(write(5 << 10), Ok(None));
        assert_eq!(write(1 << 13 | 3 << 10), Ok(None));
        let mut control = [0; 2];
        platform.read(layout::PORT_PM1_CONTROL, &mut control).unwrap();
        assert_eq!(u16::from_le_bytes(control), 3 << 10 | 1, "in ACPI mode, not asleep");
        assert_eq!(write(1 << 13 | 5 << 10), Ok(Some(Outcome::PoweredOff)));
        assert_eq!(platform.write(layout::PORT_RESET, &[2]), Ok(None));
        assert_eq!(platform.write(layout::PORT_RESET, &[6]), Ok(Some(Outcome::Reset)));
    }

    #[test]
    fn timer_counts_at_its_rate_and_wraps() {
        assert_eq!(Power::timer(Duration::from_secs(1)), 3_579_545);
        assert_eq!(Power::timer(Duration::from_secs(5)), (5 * 3_579_545) & 0xff_ffff);
        let platform = Platform::new(true);
        let mut one = [0; 4];
        platform.read(layout::PORT_PM_TIMER, &mut one).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        let mut two = [0; 4];
        platform.read(layout::PORT_PM_TIMER, &mut two).unwrap();
        assert!(u32::from_le_bytes(two).wrapping_sub(u32::from_le_bytes(one)) >= 2 * 3579);
    }

    #[test]
    fn accesses_of_any_size_are_survived() {
        let platform = Platform::new(true);
        for port in (0..0x100).chain(0x5f0..0x620).chain([layout::PORT_RESET]) {
            for len in [0, 1, 2, 3, 4, 8, 64] {
                let mut data = vec![0; len];
                let here = platform.read(port, &mut data).is_ok();
                // No sleep bit and no reset bit in it.
                let written = platform.write(port, &vec![0x01; len]);
                assert_eq!(written.is_ok(), here, "port {port:#x}, {len} bytes");
                assert!(!matches!(written, Ok(Some(_))));
            }
        }
        // Without ACPI its registers are not there.
        let mut data = [0; 4];
        assert_eq!(Platform::new(false).read(layout::PORT_PM_TIMER, &mut data), Err(NotHere));
    }
}
