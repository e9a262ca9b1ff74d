//! How much memory the bodies in flight may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are set aside for bodies, shared by every clone of a layer.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            used: AtomicU64::new(0),
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn is_full(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.limit
    }

    fn take(&self, bytes: u64) -> bool {
        // Relaxed is enough: the number guards no other memory.
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= self.limit)
            })
            .is_ok()
    }
}

/// What one request took of the budget; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Option<Arc<Budget>>,
    bytes: u64,
}

impl Reservation {
    pub(crate) fn new(budget: Option<Arc<Budget>>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Takes `bytes` more; false if there are not so many.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let Some(budget) = &self.budget else {
            return true;
        };
        let granted = budget.take(bytes);
        if granted {
            self.bytes += bytes;
        }
        granted
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_up_to_the_limit_and_given_back() {
        let budget = Arc::new(Budget::new(10));
        let mut first = Reservation::new(Some(Arc::clone(&budget)));
        let mut second = Reservation::new(Some(budget));
        assert!(first.grow(6) && !second.grow(5) && second.grow(4));
        assert!(!first.grow(1) && !first.grow(u64::MAX));
        drop(first);
        assert!(second.grow(6) && !second.grow(1));
        assert!(Reservation::new(None).grow(u64::MAX));
    }
}
