//! A store in the memory of one process.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::claim::{Claim, ClaimOutcome, Failed, Failure, Held, Renewal};
use crate::error::StoreError;
use crate::key::ClaimKey;
use crate::machine;
use crate::record::{Record, State};
use crate::store::{DeliveryStore, ListFilter, Retention, Stats};
use crate::time::{Clock, SystemClock};

/// Remembers deliveries until the process ends: for tests, and for handlers that may run again after a restart.
///
/// ```
/// use hookclaim::{Claim, ClaimKey, ClaimOutcome, DeliveryId, DeliveryStore, EventName, LeasePolicy, MemoryStore, Source};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let id = DeliveryId::new("72d3162e-cc78-11e3-81ab-4c9367dc0958")?;
/// let claim = || {
///     let key = ClaimKey::delivery(Source::default(), &id);
///     Claim::bare(key, id.clone(), EventName::new("push").unwrap(), LeasePolicy::default())
/// };
///
/// let held = store.claim(claim()).await?.won().expect("nobody has it");
/// assert!(matches!(store.claim(claim()).await?, ClaimOutcome::InProgress { .. }));
/// store.complete(&held).await?;
/// assert!(matches!(store.claim(claim()).await?, ClaimOutcome::Completed));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    records: Arc<Mutex<HashMap<ClaimKey, Record>>>,
    clock: Arc<dyn Clock>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store that reads the time from `clock`.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            records: Arc::default(),
            clock,
        }
    }

    fn records(&self) -> MutexGuard<'_, HashMap<ClaimKey, Record>> {
        // Every change is a single insertion or removal, so that a panic elsewhere leaves nothing half done.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim_now(&self, claim: &Claim) -> ClaimOutcome {
        let sent = Instant::now();
        let mut records = self.records();
        let now = self.clock.now();
        if let Some(record) = machine::claim(records.get(&claim.key), claim, now) {
            records.insert(claim.key.clone(), record);
        }
        machine::outcome((&records[&claim.key]).into(), claim, false, now, sent)
    }

    fn standing(&self, claim: &Claim) -> ClaimOutcome {
        let sent = Instant::now();
        machine::outcome(
            (&self.records()[&claim.key]).into(),
            claim,
            false,
            self.clock.now(),
            sent,
        )
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("records", &self.records().len())
            .finish_non_exhaustive()
    }
}

/// No operation waits: each is done when its future is first polled.
impl DeliveryStore for MemoryStore {
    async fn claim(&self, claim: Claim) -> Result<ClaimOutcome, StoreError> {
        Ok(self.claim_now(&claim))
    }

    async fn claim_many(&self, claims: Vec<Claim>) -> Result<Vec<ClaimOutcome>, StoreError> {
        // Of several claims of one key the first is asked, as where they travel in one statement.
        let mut asked = HashSet::with_capacity(claims.len());
        let mut outcomes = Vec::with_capacity(claims.len());
        for claim in &claims {
            let first = asked.insert(&claim.key);
            outcomes.push(if first {
                self.claim_now(claim)
            } else {
                self.standing(claim)
            });
        }
        Ok(outcomes)
    }

    async fn complete(&self, held: &Held) -> Result<(), StoreError> {
        let mut records = self.records();
        if let Some(record) =
            machine::complete(records.get(&held.key), held.token, self.clock.now())?
        {
            records.insert(held.key.clone(), record);
        }
        Ok(())
    }

    async fn fail(&self, held: &Held, failure: &Failure) -> Result<Failed, StoreError> {
        let mut records = self.records();
        let attempts = held.policy.max_attempts;
        let (failed, record) = machine::fail(
            records.get(&held.key),
            held.token,
            failure,
            attempts,
            self.clock.now(),
        )?;
        if let Some(record) = record {
            records.insert(held.key.clone(), record);
        }
        Ok(failed)
    }

    async fn renew(&self, held: &Held) -> Result<Renewal, StoreError> {
        let mut records = self.records();
        let now = self.clock.now();
        let policy = &held.policy;
        let record = machine::renew(
            records.get(&held.key),
            held.token,
            policy.lease,
            policy.max_hold,
            now,
        )?;
        let lease_left = record
            .lease_until
            .map_or(Duration::ZERO, |until| until.since(now));
        records.insert(held.key.clone(), record);
        Ok(Renewal::Renewed { lease_left })
    }

    async fn release(&self, held: &Held, delay: Duration) -> Result<(), StoreError> {
        let mut records = self.records();
        if let Some(record) =
            machine::release(records.get(&held.key), held.token, delay, self.clock.now())?
        {
            records.insert(held.key.clone(), record);
        }
        Ok(())
    }

    async fn inspect(&self, key: &ClaimKey) -> Result<Option<Record>, StoreError> {
        Ok(self.records().get(key).cloned())
    }

    async fn list(&self, filter: &ListFilter) -> Result<Vec<Record>, StoreError> {
        let mut found: Vec<Record> = self
            .records()
            .values()
            .filter(|record| filter.matches(record))
            .cloned()
            .collect();
        found.sort_by(|a, b| (b.received_at, &b.key).cmp(&(a.received_at, &a.key)));
        found.truncate(filter.limit as usize);
        Ok(found)
    }

    async fn prune(&self, retention: &Retention, limit: u32) -> Result<u64, StoreError> {
        let (completed, dead) = retention.cutoffs(self.clock.now());
        let mut records = self.records();
        let past: Vec<ClaimKey> = records
            .values()
            .filter(|record| match record.state {
                State::Completed => record.finished_at < Some(completed),
                State::Dead => record.finished_at < Some(dead),
                State::Received | State::Processing | State::Failed => false,
            })
            .take(limit as usize)
            .map(|record| record.key.clone())
            .collect();
        for key in &past {
            records.remove(key);
        }
        Ok(past.len() as u64)
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let records = self.records();
        Ok(records.values().fold(Stats::default(), |stats, record| {
            stats.with(record.state, stats.count(record.state) + 1)
        }))
    }
}

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use super::*;
    use crate::testing::{ManualClock, conformance};

    #[tokio::test]
    async fn the_memory_store_conforms() {
        let clock = ManualClock::new();
        conformance::check(&MemoryStore::with_clock(Arc::new(clock.clone())), &clock).await;
    }
}
