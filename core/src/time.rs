//! Instants as the stores keep them, and where they come from.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An instant: microseconds since the Unix epoch, UTC.
///
/// Stores keep plain integers, so no date crate is part of this API.
///
/// ```
/// use std::time::Duration;
/// use hookclaim::Timestamp;
///
/// let start = Timestamp::from_micros(1_000_000);
/// assert_eq!((start + Duration::from_secs(2)).as_micros(), 3_000_000);
/// assert_eq!((start + Duration::from_secs(2)).since(start), Duration::from_secs(2));
/// assert_eq!(start.since(start + Duration::from_secs(2)), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant that lies `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// How much later this instant is than `earlier`; zero if it is not later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

/// Saturates instead of overflowing.
impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }
}

/// Saturates instead of overflowing.
impl std::ops::Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros(by)))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}µs", self.0)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(micros(after)),
            Err(before) => Self(-micros(before.duration())),
        }
    }
}

/// The longest span that is written: longer ones are cut to it, so that no store is asked for an instant that it cannot
/// hold.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A span in whole microseconds, saturating: what the stores write.
pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Where a store without a clock of its own reads the time.
///
/// The memory and SQLite stores use the machine's clock ([`SystemClock`]); Postgres judges leases by the database's
/// clock. Tests inject a manual one (feature `test-util`).
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The current instant.
    fn now(&self) -> Timestamp;
}

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        SystemTime::now().into()
    }
}
