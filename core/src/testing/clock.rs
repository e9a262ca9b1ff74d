use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::time::{Clock, Timestamp, micros};

/// A clock that stands still until it is moved. Clones share it.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows 2026-01-01 00:00 UTC.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(AtomicI64::new(1_767_225_600_000_000)))
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(micros(by), Ordering::SeqCst);
    }

    /// Moves it back, as when the machine's clock is corrected.
    pub fn set_back(&self, by: Duration) {
        self.0.fetch_sub(micros(by), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}
