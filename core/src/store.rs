//! What a store does.

use std::future::Future;
use std::time::Duration;

use crate::claim::{Claim, ClaimOutcome, Failed, Failure, Held, Renewal};
use crate::delivery::DeliveryId;
use crate::error::StoreError;
use crate::key::{ClaimKey, Source};
use crate::operator::{AuditEntry, Retried, Retry};
use crate::record::{Record, State};
use crate::request::StoredRequest;
use crate::time::Timestamp;

/// Remembers deliveries and decides who works on them.
///
/// The contract is the [machine](crate::machine), kept by every operation for itself and atomically, whatever other
/// callers and processes do at the same moment. `hookclaim::testing::conformance` (feature `test-util`) checks a store
/// clause by clause.
///
/// # Cancel safety
///
/// Dropping the future of a write does not tell whether it happened. Each write names its claim's token and may be
/// sent again. A store must not leave a claim behind whose caller has gone before it learned that it won: such a claim
/// is released.
pub trait DeliveryStore: Clone + Send + Sync + 'static {
    /// Claims one delivery.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot decide. Nothing was won then, or it is released.
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<ClaimOutcome, StoreError>> + Send;

    /// Claims several, each for itself; the outcomes are in the order of the claims. The same key may be there more
    /// than once: one of them wins at most.
    ///
    /// # Errors
    ///
    /// As for [`claim`](Self::claim), for all of them.
    fn claim_many(
        &self,
        claims: Vec<Claim>,
    ) -> impl Future<Output = Result<Vec<ClaimOutcome>, StoreError>> + Send;

    /// Completes an attempt. Again for the same claim is no error.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::StoreErrorKind::LeaseLost) if another attempt holds the delivery or it was settled
    /// otherwise, [`Busy`](crate::StoreErrorKind::Busy) if its row is locked.
    fn complete(&self, held: &Held) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Records that an attempt failed. Again for the same claim is no error and has the same answer.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete).
    fn fail(
        &self,
        held: &Held,
        failure: &Failure,
    ) -> impl Future<Output = Result<Failed, StoreError>> + Send;

    /// Begins the lease anew.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::StoreErrorKind::LeaseLost) if another attempt holds the delivery or it was settled.
    fn renew(&self, held: &Held) -> impl Future<Output = Result<Renewal, StoreError>> + Send;

    /// Hands a delivery back, to be due after `delay`. The attempt does not count.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete).
    fn release(
        &self,
        held: &Held,
        delay: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Stores the payload of a delivery whose claim is held, so that a worker can take it over should this attempt not
    /// end well. Again for the same claim is no error. False says that this store keeps no payloads.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete).
    fn keep(
        &self,
        held: &Held,
        request: StoredRequest,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = (held, request);
        std::future::ready(Ok(false))
    }

    /// Lets a delivery run again because an operator says so, and writes down who said it. In one step: there is no
    /// change without its line, and none is written for an order that changed nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot be written.
    fn retry(
        &self,
        key: &ClaimKey,
        retry: &Retry,
    ) -> impl Future<Output = Result<Retried, StoreError>> + Send;

    /// What operators did to a delivery, oldest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot be read.
    fn audit(
        &self,
        key: &ClaimKey,
    ) -> impl Future<Output = Result<Vec<AuditEntry>, StoreError>> + Send;

    /// The record of a key.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot be read.
    fn inspect(
        &self,
        key: &ClaimKey,
    ) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send;

    /// Records that pass the filter, newest first. Deliveries that are covered by another's work are among them; see
    /// [`Record::covered_by`].
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot be read.
    fn list(
        &self,
        filter: &ListFilter,
    ) -> impl Future<Output = Result<Vec<Record>, StoreError>> + Send;

    /// Forgets at most `limit` terminal records that are past their retention, with the deliveries that they cover, and
    /// drops at most `limit` payloads of completed ones. Call it again while [`Pruned::may_be_more`].
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot be written.
    fn prune(
        &self,
        retention: &Retention,
        limit: u32,
    ) -> impl Future<Output = Result<Pruned, StoreError>> + Send;

    /// Counts the records by state. It reads the whole store: ask seldom.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot be read.
    fn stats(&self) -> impl Future<Output = Result<Stats, StoreError>> + Send;
}

/// A store whose claims can be completed within the handler's own transaction.
///
/// What the handler writes there happens if and only if its attempt completes: exactly once.
/// [`Lease`](crate::Lease) is the handler's side of it.
pub trait TransactionalStore: DeliveryStore {
    /// The transaction.
    type Tx: Send;

    /// Begins a transaction for a handler.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if none can be begun.
    ///
    /// # Cancel safety
    ///
    /// No open transaction is left behind.
    fn begin(&self) -> impl Future<Output = Result<Self::Tx, StoreError>> + Send;

    /// Locks the claim's row in the transaction, so that nobody can take the delivery over while it is open.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::StoreErrorKind::LeaseLost) if the claim does not hold the delivery; nothing can be
    /// committed in this transaction then.
    fn fence_in(
        &self,
        tx: &mut Self::Tx,
        held: &Held,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Completes the claim within the transaction. It counts once the transaction commits.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::StoreErrorKind::LeaseLost) if the claim does not hold the delivery, or was completed before;
    /// nothing can be committed in this transaction then, so that forgetting to look at this error books nothing.
    fn complete_in(
        &self,
        tx: &mut Self::Tx,
        held: &Held,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Commits.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the transaction did not commit, or if that is not known.
    fn commit(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Rolls back.
    fn rollback(&self, tx: Self::Tx) -> impl Future<Output = ()> + Send;
}

/// What [`DeliveryStore::list`] is asked for.
///
/// ```
/// use hookclaim::{ListFilter, State};
///
/// let filter = ListFilter::newest(50).state(State::Dead);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListFilter {
    /// In one of these states; any if empty.
    pub states: Vec<State>,
    /// Of this source.
    pub source: Option<Source>,
    /// Of this event.
    pub event: Option<String>,
    /// Of this delivery, under whatever key.
    pub delivery_id: Option<String>,
    /// Received at or after this instant.
    pub since: Option<Timestamp>,
    /// Received before this instant.
    pub until: Option<Timestamp>,
    /// Whose last error is of this class, or has this in its text.
    pub error: Option<String>,
    /// Older than this one: the last record of the page before.
    pub after: Option<Position>,
    /// At most so many.
    pub limit: u32,
}

/// Where a record stands in a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    received_at: Timestamp,
    key: ClaimKey,
    delivery_id: DeliveryId,
}

impl Position {
    /// When it was received, the key's source and text, and the delivery: what lists are ordered by.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn columns(&self) -> (i64, &str, &str, &str) {
        (
            self.received_at.as_micros(),
            self.key.source().as_str(),
            self.key.key(),
            self.delivery_id.as_str(),
        )
    }
}

impl From<&Record> for Position {
    fn from(record: &Record) -> Self {
        Self {
            received_at: record.received_at,
            key: record.key.clone(),
            delivery_id: record.delivery_id.clone(),
        }
    }
}

impl ListFilter {
    /// The newest records, at most `limit`.
    #[must_use]
    pub fn newest(limit: u32) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Only those in this state, or in one named before.
    #[must_use]
    pub fn state(mut self, state: State) -> Self {
        self.states.push(state);
        self
    }

    /// Only those of this source.
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        self.source = Some(source);
        self
    }

    /// Only those of this event.
    #[must_use]
    pub fn event(mut self, event: impl Into<String>) -> Self {
        self.event = Some(event.into());
        self
    }

    /// Only those of this delivery.
    #[must_use]
    pub fn delivery_id(mut self, id: impl Into<String>) -> Self {
        self.delivery_id = Some(id.into());
        self
    }

    /// Only those received at or after this instant.
    #[must_use]
    pub fn since(mut self, since: Timestamp) -> Self {
        self.since = Some(since);
        self
    }

    /// Only those received before this instant.
    #[must_use]
    pub fn until(mut self, until: Timestamp) -> Self {
        self.until = Some(until);
        self
    }

    /// Only those whose last error is of this class (`transient`, `permanent`, …), or has this in its text. Upper and
    /// lower case are the same in ASCII.
    #[must_use]
    pub fn error(mut self, error: impl Into<String>) -> Self {
        self.error = Some(error.into());
        self
    }

    /// Only those that come after this one in the list.
    #[must_use]
    pub fn after(mut self, last: impl Into<Position>) -> Self {
        self.after = Some(last.into());
        self
    }

    /// Whether a record passes. Stores without a query language use it.
    #[must_use]
    pub fn matches(&self, record: &Record) -> bool {
        (self.states.is_empty() || self.states.contains(&record.state))
            && self
                .source
                .as_ref()
                .is_none_or(|source| source == record.key.source())
            && self
                .event
                .as_ref()
                .is_none_or(|event| event == record.event.as_str())
            && self
                .delivery_id
                .as_ref()
                .is_none_or(|id| id == record.delivery_id.as_str())
            && self.since.is_none_or(|since| record.received_at >= since)
            && self.until.is_none_or(|until| record.received_at < until)
            && self.error.as_ref().is_none_or(|error| {
                record
                    .error_class
                    .is_some_and(|class| class.as_str().eq_ignore_ascii_case(error))
                    || record.last_error.as_ref().is_some_and(|text| {
                        let text = text.to_ascii_lowercase();
                        text.contains(&error.to_ascii_lowercase())
                    })
            })
            && self
                .after
                .as_ref()
                .is_none_or(|last| Position::from(record) < *last)
    }
}

/// How long finished deliveries are remembered.
///
/// A completed delivery that is forgotten runs again if it is sent again, and GitHub lets people redeliver for three
/// days ([redelivering webhooks](https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks)).
/// Hence the floor of seven days. What is not finished is never forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    completed: Duration,
    dead: Duration,
    payload: Duration,
}

impl Retention {
    /// The shortest time for which completed deliveries are remembered.
    pub const FLOOR: Duration = Duration::from_secs(7 * 24 * 3600);

    /// Remembers completed deliveries for this long, and dead ones as set before.
    ///
    /// # Errors
    ///
    /// [`RetentionTooShort`] below [`FLOOR`](Self::FLOOR).
    pub fn completed(mut self, keep: Duration) -> Result<Self, RetentionTooShort> {
        if keep < Self::FLOOR {
            return Err(RetentionTooShort);
        }
        self.completed = keep;
        Ok(self)
    }

    /// Remembers completed deliveries for this long, however short: what is sent again after that runs again.
    #[must_use]
    pub fn completed_and_run_again_after(mut self, keep: Duration) -> Self {
        self.completed = keep;
        self
    }

    /// Remembers dead deliveries for this long.
    #[must_use]
    pub fn dead(mut self, keep: Duration) -> Self {
        self.dead = keep;
        self
    }

    /// Keeps the payloads of completed deliveries for this long, where they were kept at all
    /// ([`LeasePolicy::keep_payload`](crate::LeasePolicy::keep_payload)). Those of dead ones stay as long as their
    /// records.
    #[must_use]
    pub fn payload(mut self, keep: Duration) -> Self {
        self.payload = keep;
        self
    }

    /// The instants before which a completed delivery, a dead one, and the payload of a completed one are past their
    /// retention.
    #[must_use]
    pub fn cutoffs(&self, now: Timestamp) -> [Timestamp; 3] {
        [now - self.completed, now - self.dead, now - self.payload]
    }

    /// The same as spans in microseconds, as stores with a clock of their own take them.
    #[cfg(feature = "postgres")]
    pub(crate) fn micros(&self) -> [i64; 3] {
        [self.completed, self.dead, self.payload].map(crate::time::micros)
    }
}

/// 30 days for what is completed or dead, 3 days for the payloads of what is completed: as long as GitHub redelivers.
impl Default for Retention {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 3600);
        Self {
            completed: 30 * day,
            dead: 30 * day,
            payload: 3 * day,
        }
    }
}

/// What one step of pruning did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Records that were forgotten.
    pub records: u64,
    /// Payloads that were dropped from records that stay.
    pub payloads: u64,
}

impl Pruned {
    /// Whether the step reached its limit, so that another may find more.
    #[must_use]
    pub fn may_be_more(&self, limit: u32) -> bool {
        self.records.max(self.payloads) >= u64::from(limit)
    }
}

/// Completed deliveries must be remembered for seven days at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("completed deliveries must be remembered for 7 days at least, or a redelivery runs again")]
pub struct RetentionTooShort;

/// How many records there are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    counts: [u64; 5],
}

impl Stats {
    /// The number of records in `state`.
    #[must_use]
    pub fn count(&self, state: State) -> u64 {
        self.counts[state as usize]
    }

    /// All records.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sets the number of records in `state`.
    #[must_use]
    pub fn with(mut self, state: State, count: u64) -> Self {
        self.counts[state as usize] = count;
        self
    }
}
