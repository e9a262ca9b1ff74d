//! How long to wait before another attempt.

use std::time::Duration;

/// Exponential backoff with full jitter and a cap.
///
/// The wait before attempt *n* + 1 is drawn evenly from zero to `min(cap, base · 2ⁿ⁻¹)`
/// ([exponential backoff and jitter](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/)), so
/// that deliveries that failed together do not come back together.
///
/// ```
/// use std::time::Duration;
/// use hookclaim::Backoff;
///
/// let backoff = Backoff::default();
/// assert_eq!(backoff.bound(1), Duration::from_secs(2));
/// assert_eq!(backoff.bound(4), Duration::from_secs(16));
/// assert_eq!(backoff.bound(64), Duration::from_secs(3600));
/// assert!(backoff.delay_with(3, u64::MAX / 2) <= backoff.bound(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
}

impl Backoff {
    /// Waits up to `base` after the first failure, twice as long after each further one, never over `cap`.
    #[must_use]
    pub const fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap }
    }

    /// The longest wait after this attempt, counted from 1.
    #[must_use]
    pub fn bound(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.cap)
    }

    /// The wait after this attempt, with the randomness given: `random` over the whole range of `u64`.
    #[must_use]
    pub fn delay_with(&self, attempt: u32, random: u64) -> Duration {
        let bound = u64::try_from(self.bound(attempt).as_micros()).unwrap_or(u64::MAX);
        let share = (u128::from(bound) * u128::from(random)) >> 64;
        Duration::from_micros(u64::try_from(share).unwrap_or(bound))
    }

    /// The wait after this attempt.
    ///
    /// # Panics
    ///
    /// If the operating system has no randomness to give.
    #[must_use]
    pub fn delay(&self, attempt: u32) -> Duration {
        self.delay_with(
            attempt,
            getrandom::u64().expect("the operating system has randomness"),
        )
    }
}

/// From 2 s up to 1 h.
impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_secs(2), Duration::from_secs(3600))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_grows_to_the_cap_without_overflow_and_the_wait_stays_in_it() {
        let backoff = Backoff::default();
        for attempt in 1..=64 {
            assert!(backoff.bound(attempt) <= backoff.bound(attempt + 1));
            assert!(backoff.bound(attempt) <= Duration::from_secs(3600));
            assert_eq!(backoff.delay_with(attempt, 0), Duration::ZERO);
            for random in [1, u64::MAX / 3, u64::MAX] {
                assert!(backoff.delay_with(attempt, random) <= backoff.bound(attempt));
            }
        }
        assert_eq!(backoff.bound(u32::MAX), Duration::from_secs(3600));
        assert_eq!(
            Backoff::new(Duration::MAX, Duration::MAX).bound(9),
            Duration::MAX
        );
    }
}
