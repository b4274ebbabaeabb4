//! Polls that find nothing.

/// After this many polls that found nothing, a few microseconds, the processor is yielded.
const POLLS_IN_VAIN: u32 = 64;

/// Counts polls since the last one that found something. A program whose polls find nothing may be
/// keeping the processor from what it waits for: a device that is a program, or a peer.
#[derive(Debug, Default)]
pub struct IdlePolls(u32);

impl IdlePolls {
    /// Records what a poll has found, and returns it. While nothing is found, calls
    /// `yield_processor` from time to time.
    #[inline]
    pub fn note<T>(&mut self, found: Option<T>, yield_processor: impl FnOnce()) -> Option<T> {
        if found.is_some() {
            self.0 = 0;
        } else {
            self.0 = self.0.wrapping_add(1);
            if self.0.is_multiple_of(POLLS_IN_VAIN) {
                yield_processor();
            }
        }
        found
    }

    /// Returns the number of polls since the last one that found something, modulo 2^32.
    #[inline]
    pub const fn count(&self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_yields_after_many_empty_polls() {
        let (mut idle, mut yields) = (IdlePolls::default(), 0);
        for _ in 0..POLLS_IN_VAIN - 1 {
            assert_eq!(idle.note(None::<u8>, || yields += 1), None);
        }
        assert_eq!((idle.note(Some(7), || yields += 1), idle.count()), (Some(7), 0));
        for _ in 0..3 * POLLS_IN_VAIN {
            idle.note(None::<u8>, || yields += 1);
        }
        assert_eq!((yields, idle.count()), (3, 3 * POLLS_IN_VAIN));
    }
}
