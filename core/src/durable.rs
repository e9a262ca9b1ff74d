//! What a store does that keeps deliveries for later.

use std::future::Future;

use crate::error::StoreError;
use crate::inbox::{Acquire, Acquisition, Backlog, Changes, Enqueue, EnqueueOutcome};
use crate::key::ClaimKey;
use crate::request::StoredRequest;
use crate::store::{DeliveryStore, TransactionalStore};

/// A store that keeps deliveries with their payloads until a worker has run them.
///
/// What it accepted is on disk, and runs until it completes or is dead, whatever dies in between.
pub trait DurableStore: DeliveryStore {
    /// Stores a delivery, with its payload, in one step: afterwards it is there as a whole or not at all.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot decide. The delivery may have been stored or not; told again, it is stored
    /// once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not tell whether the delivery was stored.
    fn enqueue(
        &self,
        enqueue: Enqueue,
    ) -> impl Future<Output = Result<EnqueueOutcome, StoreError>> + Send;

    /// Takes deliveries that are due, each under a lease of its own. Of several callers, in whatever process, one gets
    /// each.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot decide. What was taken all the same is due again once its lease runs out.
    ///
    /// # Cancel safety
    ///
    /// What was taken for a caller who has gone is released.
    fn acquire(
        &self,
        acquire: Acquire,
    ) -> impl Future<Output = Result<Acquisition, StoreError>> + Send;

    /// Tells when there may be something new to take.
    fn changes(&self) -> Changes;

    /// The stored request of a delivery, if there is one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot be read, or the request cannot.
    fn stored(
        &self,
        key: &ClaimKey,
    ) -> impl Future<Output = Result<Option<StoredRequest>, StoreError>> + Send;

    /// Counts what waits. It reads what is waiting or leased and nothing else.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store cannot be read.
    fn backlog(&self) -> impl Future<Output = Result<Backlog, StoreError>> + Send;
}

/// A store that takes follow-up work within the handler's own transaction.
pub trait TransactionalDurableStore: DurableStore + TransactionalStore {
    /// Stores work in the transaction: it is there once that commits.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store refuses. The transaction is of no more use then.
    fn enqueue_in(
        &self,
        tx: &mut Self::Tx,
        enqueue: Enqueue,
    ) -> impl Future<Output = Result<EnqueueOutcome, StoreError>> + Send;
}
