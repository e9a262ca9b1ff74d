//! What a store does.

use std::future::Future;
use std::time::Duration;

use crate::claim::{Claim, ClaimOutcome, Failed, Failure, Held, Renewal};
use crate::error::StoreError;
use crate::key::{ClaimKey, Source};
use crate::record::{Record, State};
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

    /// The record of a key.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot be read.
    fn inspect(
        &self,
        key: &ClaimKey,
    ) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send;

    /// Records that pass the filter, newest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot be read.
    fn list(
        &self,
        filter: &ListFilter,
    ) -> impl Future<Output = Result<Vec<Record>, StoreError>> + Send;

    /// Forgets at most `limit` terminal records that are past their retention, and says how many. Call it until it
    /// says fewer than `limit`.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot be written.
    fn prune(
        &self,
        retention: &Retention,
        limit: u32,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

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
    /// [`LeaseLost`](crate::StoreErrorKind::LeaseLost) if the claim does not hold the delivery; nothing can be
    /// committed in this transaction then, so that forgetting to look at this error books nothing.
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
    /// At most so many.
    pub limit: u32,
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

    /// The instants before which completed and dead deliveries are past their retention.
    #[must_use]
    pub fn cutoffs(&self, now: Timestamp) -> (Timestamp, Timestamp) {
        (now - self.completed, now - self.dead)
    }

    /// The times for completed and dead deliveries in microseconds, as stores with a clock of their own take them.
    #[cfg(feature = "postgres")]
    pub(crate) fn micros(&self) -> (i64, i64) {
        (
            crate::time::micros(self.completed),
            crate::time::micros(self.dead),
        )
    }
}

/// 30 days each.
impl Default for Retention {
    fn default() -> Self {
        let month = Duration::from_secs(30 * 24 * 3600);
        Self {
            completed: month,
            dead: month,
        }
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
