//! A lock that sleeps where there is an operating system and spins where there is none.

#[cfg(not(feature = "std"))]
pub(crate) use spin::mutex::SpinMutexGuard as Guard;
#[cfg(feature = "std")]
pub(crate) use std::sync::MutexGuard as Guard;

#[cfg(feature = "std")]
type Inner<T> = std::sync::Mutex<T>;
#[cfg(not(feature = "std"))]
type Inner<T> = spin::mutex::SpinMutex<T>;

/// A lock that a panic of its holder leaves open: nothing behind it is left half changed for
/// longer than a call that cannot panic.
#[derive(Debug)]
pub(crate) struct Lock<T>(Inner<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Inner::new(value))
    }

    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[cfg(not(feature = "std"))]
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock()
    }
}
