//! A bound on what waits for workers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hookclaim::DurableStore;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How old a count may be. What was accepted since is added to it.
const FRESH: Duration = Duration::from_secs(1);

/// Refuses deliveries while more than so many wait.
#[derive(Debug)]
pub(crate) struct BacklogLimit {
    limit: u64,
    /// What is known to wait: the last count, and what this layer stored since.
    waiting: AtomicU64,
    counted: Mutex<Option<Instant>>,
}

impl BacklogLimit {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            waiting: AtomicU64::new(0),
            counted: Mutex::new(None),
        }
    }

    /// Whether there is room for one more. One caller counts, the others go by the number that is there.
    pub(crate) async fn has_room(&self, store: &impl DurableStore) -> bool {
        if let Ok(mut counted) = self.counted.try_lock()
            && counted.is_none_or(|at| at.elapsed() >= FRESH)
            // A store that cannot count says so again when it is asked to store.
            && let Ok(backlog) = store.backlog().await
        {
            self.waiting.store(backlog.waiting, Ordering::Relaxed);
            *counted = Some(Instant::now());
        }
        self.waiting.load(Ordering::Relaxed) < self.limit
    }

    /// One more waits.
    pub(crate) fn add(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }
}
