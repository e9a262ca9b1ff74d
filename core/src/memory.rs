//! A store in the memory of one process.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::claim::{Claim, ClaimOutcome, Failed, Failure, Held, Renewal};
#[cfg(feature = "test-util")]
use crate::durable::DurableStore;
use crate::error::StoreError;
#[cfg(feature = "test-util")]
use crate::inbox::{
    Acquire, Acquired, Acquisition, Announcer, Backlog, Changes, Enqueue, EnqueueOutcome, Lane,
    Retired, Unreadable,
};
use crate::key::ClaimKey;
use crate::machine::{self, Standing};
use crate::operator::{AuditEntry, Retried, Retry};
use crate::record::{ClaimToken, Record, State};
#[cfg(feature = "test-util")]
use crate::request::StoredRequest;
use crate::store::{DeliveryStore, ListFilter, Position, Pruned, Retention, Stats};
use crate::time::{Clock, SystemClock, Timestamp};

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
    memory: Arc<Mutex<Memory>>,
    clock: Arc<dyn Clock>,
    #[cfg(feature = "test-util")]
    announcer: Announcer,
}

/// Every change of one record is a single insertion or removal, so that a panic elsewhere leaves nothing half done.
#[derive(Default)]
struct Memory {
    records: HashMap<ClaimKey, Record>,
    covered: Vec<Record>,
    audit: Vec<AuditEntry>,
    #[cfg(feature = "test-util")]
    requests: HashMap<ClaimKey, StoredRequest>,
}

impl Memory {
    /// Decides on a claim, and remembers a delivery that is covered by another's work.
    fn change(&mut self, claim: &Claim, next: Option<Record>, now: Timestamp) -> Standing {
        if let Some(next) = next {
            self.records.insert(claim.key.clone(), next);
        }
        let record = &self.records[&claim.key];
        if machine::is_covered(record, claim)
            && !self
                .covered
                .iter()
                .any(|covered| covered.key == claim.key && covered.delivery_id == claim.delivery_id)
        {
            let mut covered = record.clone();
            covered.delivery_id = claim.delivery_id.clone();
            covered.event = claim.event.clone();
            covered.action = claim.action.as_deref().map(ToOwned::to_owned);
            covered.received_at = now;
            covered.covered_by = Some(record.delivery_id.clone());
            self.covered.push(covered);
        }
        record.into()
    }

    /// A covered delivery as it stands now: its state is that of the work that covers it.
    fn covered(&self) -> impl Iterator<Item = Record> {
        self.covered.iter().filter_map(|covered| {
            let mut now = self.records.get(&covered.key)?.clone();
            now.covered_by = Some(std::mem::replace(
                &mut now.delivery_id,
                covered.delivery_id.clone(),
            ));
            now.event = covered.event.clone();
            now.action.clone_from(&covered.action);
            now.received_at = covered.received_at;
            Some(now)
        })
    }
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
            memory: Arc::default(),
            clock,
            #[cfg(feature = "test-util")]
            announcer: Announcer::new(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim_now(&self, claim: &Claim) -> ClaimOutcome {
        let sent = Instant::now();
        let mut memory = self.memory();
        let now = self.clock.now();
        let next = machine::claim(memory.records.get(&claim.key), claim, now);
        let standing = memory.change(claim, next, now);
        machine::outcome(standing, claim, false, now, sent)
    }

    fn standing(&self, claim: &Claim) -> ClaimOutcome {
        let sent = Instant::now();
        let mut memory = self.memory();
        let now = self.clock.now();
        let standing = memory.change(claim, None, now);
        machine::outcome(standing, claim, false, now, sent)
    }

    /// What an attempt writes: the machine's answer and what it makes of the record.
    fn settle<T>(
        &self,
        key: &ClaimKey,
        settle: impl FnOnce(
            Option<&Record>,
            Timestamp,
        ) -> Result<(T, Option<Record>), machine::LeaseLost>,
    ) -> Result<T, StoreError> {
        let mut memory = self.memory();
        let (answer, next) = settle(memory.records.get(key), self.clock.now())?;
        if let Some(next) = next {
            #[cfg(feature = "test-util")]
            if !next.has_payload {
                memory.requests.remove(key);
            }
            memory.records.insert(key.clone(), next);
        }
        Ok(answer)
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
            .field("records", &self.memory().records.len())
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
        let keep = held.policy.keep_payload;
        self.settle(&held.key, |record, now| {
            machine::complete(record, held.token, keep, now).map(|next| ((), next))
        })
    }

    async fn fail(&self, held: &Held, failure: &Failure) -> Result<Failed, StoreError> {
        let attempts = held.policy.max_attempts;
        self.settle(&held.key, |record, now| {
            machine::fail(record, held.token, failure, attempts, now)
        })
    }

    async fn renew(&self, held: &Held) -> Result<Renewal, StoreError> {
        let policy = &held.policy;
        self.settle(&held.key, |record, now| {
            let next = machine::renew(record, held.token, policy.lease, policy.max_hold, now)?;
            let lease_left = next
                .lease_until
                .map_or(Duration::ZERO, |until| until.since(now));
            Ok((Renewal::Renewed { lease_left }, Some(next)))
        })
    }

    async fn release(&self, held: &Held, delay: Duration) -> Result<(), StoreError> {
        self.settle(&held.key, |record, now| {
            machine::release(record, held.token, delay, now).map(|next| ((), next))
        })
    }

    #[cfg(feature = "test-util")]
    async fn keep(&self, held: &Held, request: StoredRequest) -> Result<bool, StoreError> {
        let mut memory = self.memory();
        // One that it has already stays.
        if let Some(next) = machine::keep(memory.records.get(&held.key), held.token)? {
            memory.records.insert(held.key.clone(), next);
            memory.requests.insert(held.key.clone(), request);
        }
        Ok(true)
    }

    async fn retry(&self, key: &ClaimKey, retry: &Retry) -> Result<Retried, StoreError> {
        let mut memory = self.memory();
        let now = self.clock.now();
        let record = memory.records.get(key);
        let forced = record.is_some_and(|record| record.state == State::Completed);
        let (told, next) = machine::retry(record, ClaimToken::random(), retry.force, now);
        if let Some(next) = next {
            memory.records.insert(key.clone(), next);
            memory.audit.push(AuditEntry {
                at: now,
                actor: retry.actor.clone(),
                action: AuditEntry::action(forced).to_owned(),
                reason: retry.reason.clone(),
                key: key.clone(),
            });
        }
        #[cfg(feature = "test-util")]
        self.announcer.announce();
        Ok(told)
    }

    async fn audit(&self, key: &ClaimKey) -> Result<Vec<AuditEntry>, StoreError> {
        let memory = self.memory();
        let of_key = memory.audit.iter().filter(|entry| entry.key == *key);
        Ok(of_key.cloned().collect())
    }

    async fn inspect(&self, key: &ClaimKey) -> Result<Option<Record>, StoreError> {
        Ok(self.memory().records.get(key).cloned())
    }

    async fn list(&self, filter: &ListFilter) -> Result<Vec<Record>, StoreError> {
        let memory = self.memory();
        let mut found: Vec<Record> = memory
            .records
            .values()
            .cloned()
            .chain(memory.covered())
            .filter(|record| filter.matches(record))
            .collect();
        found.sort_by(|a, b| Position::from(b).cmp(&Position::from(a)));
        found.truncate(filter.limit as usize);
        Ok(found)
    }

    async fn prune(&self, retention: &Retention, limit: u32) -> Result<Pruned, StoreError> {
        let [completed, dead, payload] = retention.cutoffs(self.clock.now());
        let mut memory = self.memory();
        let limit = limit as usize;
        let is_past = |record: &&Record| match record.state {
            State::Completed => record.finished_at < Some(completed),
            State::Dead => record.finished_at < Some(dead),
            State::Received | State::Processing | State::Failed => false,
        };
        let past = memory.records.values().filter(is_past).take(limit);
        let past: Vec<ClaimKey> = past.map(|record| record.key.clone()).collect();
        for key in &past {
            memory.records.remove(key);
            #[cfg(feature = "test-util")]
            memory.requests.remove(key);
        }
        memory
            .covered
            .retain(|covered| !past.contains(&covered.key));
        let mut dropped = Vec::new();
        for record in memory.records.values_mut() {
            if dropped.len() < limit
                && record.has_payload
                && record.state == State::Completed
                && record.finished_at < Some(payload)
            {
                record.has_payload = false;
                dropped.push(record.key.clone());
            }
        }
        #[cfg(feature = "test-util")]
        for key in &dropped {
            memory.requests.remove(key);
        }
        Ok(Pruned {
            records: past.len() as u64,
            payloads: dropped.len() as u64,
        })
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let memory = self.memory();
        let records = memory.records.values();
        Ok(records.fold(Stats::default(), |stats, record| {
            stats.with(record.state, stats.count(record.state) + 1)
        }))
    }
}

/// For tests alone: a store in memory accepts what it loses when the process ends, which nobody should be able to
/// build by mistake.
#[cfg(feature = "test-util")]
impl DurableStore for MemoryStore {
    async fn enqueue(&self, enqueue: Enqueue) -> Result<EnqueueOutcome, StoreError> {
        let mut memory = self.memory();
        let now = self.clock.now();
        let claim = &enqueue.claim;
        let next = machine::enqueue(memory.records.get(&claim.key), &enqueue, now);
        if let (Some(next), Some(kept)) = (&next, &claim.kept)
            && next.has_payload
        {
            memory
                .requests
                .insert(claim.key.clone(), kept.request.clone());
        }
        let standing = memory.change(claim, next, now);
        let outcome = machine::enqueued(standing, &enqueue, false, now);
        self.announcer.announce();
        Ok(outcome)
    }

    async fn acquire(&self, acquire: Acquire) -> Result<Acquisition, StoreError> {
        let sent = Instant::now();
        let mut memory = self.memory();
        let now = self.clock.now();
        let mut acquisition = Acquisition::default();
        for key in candidates(&memory.records, &acquire, now) {
            let record = &memory.records[&key];
            let Some(next) = machine::acquire(record, ClaimToken::random(), &acquire.policy, now)
            else {
                continue;
            };
            if next.state == State::Dead {
                acquisition.retired.push(Retired {
                    key: key.clone(),
                    delivery_id: next.delivery_id.clone(),
                    event: next.event.clone(),
                    attempts: next.attempts,
                });
            } else {
                let (id, policy) = (next.delivery_id.clone(), acquire.policy);
                let held = machine::held((&next).into(), key.clone(), id, policy, now, sent);
                let request = memory.requests.get(&key).cloned();
                acquisition.started.push(Acquired::new(
                    held,
                    next.event.clone(),
                    next.fingerprint,
                    request.ok_or(Unreadable::Malformed),
                    now.since(next.received_at),
                    next.ordering_key.is_some(),
                ));
            }
            memory.records.insert(key, next);
        }
        Ok(acquisition)
    }

    fn changes(&self) -> Changes {
        self.announcer.changes()
    }

    async fn stored(&self, key: &ClaimKey) -> Result<Option<StoredRequest>, StoreError> {
        Ok(self.memory().requests.get(key).cloned())
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        let memory = self.memory();
        let now = self.clock.now();
        let mut backlog = Backlog::default();
        for record in memory.records.values().filter(|record| record.has_payload) {
            match record.state {
                State::Received | State::Failed => {
                    backlog.waiting += 1;
                    let due = record.retry_at.map_or(Duration::ZERO, |at| now.since(at));
                    backlog.oldest_due = backlog.oldest_due.max(due);
                }
                State::Processing => {
                    backlog.leased += 1;
                    backlog.overdue += u64::from(record.lease_until <= Some(now));
                }
                State::Completed | State::Dead => {}
            }
        }
        Ok(backlog)
    }
}

/// The keys that are taken, in the order of their turn.
#[cfg(feature = "test-util")]
pub(crate) fn candidates(
    records: &HashMap<ClaimKey, Record>,
    acquire: &Acquire,
    now: Timestamp,
) -> Vec<ClaimKey> {
    let is_due = |record: &&Record| {
        acquire.takes(record.key.source())
            && (record.state != State::Processing || acquire.expired && acquire.lane == Lane::Due)
            && machine::acquire(record, record.token, &acquire.policy, now).is_some()
    };
    let mut due: Vec<&Record> = records.values().filter(is_due).collect();
    due.sort_by_key(|record| (turn(record), &record.key));
    if let Lane::Fresh { window, flood } = acquire.lane {
        due.retain(|record| {
            let since = record.retry_at.map_or(Duration::ZERO, |at| now.since(at));
            record.state == State::Received && record.attempts == 0 && since < window
        });
        due.reverse();
        if due.len() > flood as usize {
            due.clear();
        }
    }
    due.retain(|record| {
        record.ordering_key.is_none()
            || !records.values().any(|other| {
                other.key.source() == record.key.source()
                    && other.ordering_key == record.ordering_key
                    && machine::goes_first(other, record, acquire.order, now)
            })
    });
    due.truncate(acquire.limit as usize);
    due.into_iter().map(|record| record.key.clone()).collect()
}

/// What the order of turns goes by: first what is to be taken over, then what is due, each by its time.
#[cfg(feature = "test-util")]
pub(crate) fn turn(record: &Record) -> (bool, Option<Timestamp>) {
    let is_due = record.state != State::Processing;
    (is_due, record.retry_at.or(record.claimed_at))
}

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use super::*;
    use crate::testing::{ManualClock, conformance};

    #[tokio::test]
    async fn the_memory_store_conforms() {
        let clock = ManualClock::new();
        conformance::check_durable(&MemoryStore::with_clock(Arc::new(clock.clone())), &clock).await;
    }
}
