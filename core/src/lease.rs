//! What a handler gets along with the delivery it won.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::claim::Held;
use crate::delivery::DeliveryId;
use crate::durable::TransactionalDurableStore;
use crate::error::StoreError;
use crate::inbox::{Enqueue, EnqueueOutcome};
use crate::key::ClaimKey;
use crate::store::TransactionalStore;

/// A handler's hold on its delivery.
///
/// A cheap clone of one shared handle, without a drop action: whoever drives the handler settles the attempt when the
/// handler is done. A handler whose store is transactional can settle it itself, together with what it writes:
///
/// ```ignore
/// let mut tx = lease.begin().await?;
/// sqlx::query("insert into bookings …").execute(&mut *tx).await?;
/// lease.commit(tx).await?;
/// ```
///
/// Once [`commit`](Self::commit) or [`complete_in`](Self::complete_in) was called, the store's row decides how the
/// attempt ended, and no longer what the handler returns: rolled back, or never committed, is a transient failure;
/// committed and then an error or a panic is completed.
pub struct Lease<St> {
    inner: Arc<Inner<St>>,
}

struct Inner<St> {
    store: St,
    held: Held,
    fate: AtomicU8,
}

/// What a handler did about the settlement of its own attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing: its result decides.
    Untouched,
    /// It completed the attempt in a transaction; whether that committed is in the store's row.
    InStore,
    /// It completed the attempt, and that was committed.
    Committed,
}

impl<St> Lease<St> {
    /// The lease of a claim that was won in `store`.
    #[must_use]
    pub fn new(store: St, held: Held) -> Self {
        Self {
            inner: Arc::new(Inner {
                store,
                held,
                fate: AtomicU8::new(Fate::Untouched as u8),
            }),
        }
    }

    /// The claim.
    #[must_use]
    pub fn held(&self) -> &Held {
        &self.inner.held
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &St {
        &self.inner.store
    }

    /// What the handler did about the settlement so far.
    #[must_use]
    pub fn fate(&self) -> Fate {
        match self.inner.fate.load(Ordering::Acquire) {
            0 => Fate::Untouched,
            1 => Fate::InStore,
            _ => Fate::Committed,
        }
    }

    fn set_fate(&self, fate: Fate) {
        self.inner.fate.fetch_max(fate as u8, Ordering::AcqRel);
    }
}

impl<St: TransactionalStore> Lease<St> {
    /// Begins a transaction whose first act is to lock the claim's row: nobody can take the delivery over while it is
    /// open, and renewals pass it by.
    ///
    /// On SQLite there is one writer per file. The transaction takes its turn with it, and holds it until it ends: do
    /// not wait for other systems in between.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::StoreErrorKind::LeaseLost) if the claim no longer holds the delivery; see
    /// [`TransactionalStore::begin`] for the rest.
    ///
    /// # Cancel safety
    ///
    /// No open transaction is left behind.
    pub async fn begin(&self) -> Result<St::Tx, StoreError> {
        let store = &self.inner.store;
        let mut tx = store.begin().await?;
        match store.fence_in(&mut tx, &self.inner.held).await {
            Ok(()) => Ok(tx),
            Err(error) => {
                store.rollback(tx).await;
                Err(error)
            }
        }
    }

    /// Completes the attempt in `tx` and commits: what was written there happens exactly once.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::StoreErrorKind::LeaseLost) if another attempt has taken over, or this one was completed
    /// before: everything in `tx` is rolled back. Other kinds: it was rolled back too, or (a connection that broke while committing) it is not known, and
    /// the store's row decides.
    ///
    /// # Cancel safety
    ///
    /// The transaction is rolled back, or committed as a whole.
    pub async fn commit(&self, mut tx: St::Tx) -> Result<(), StoreError> {
        let store = &self.inner.store;
        self.set_fate(Fate::InStore);
        if let Err(error) = store.complete_in(&mut tx, &self.inner.held).await {
            store.rollback(tx).await;
            return Err(error);
        }
        store.commit(tx).await?;
        self.set_fate(Fate::Committed);
        Ok(())
    }

    /// Completes the attempt in `tx` and leaves the commit to the caller.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::StoreErrorKind::LeaseLost) if another attempt has taken over, or this one was completed
    /// before; `tx` cannot be committed any more then. A transaction is completed once: by this or by
    /// [`commit`](Self::commit).
    pub async fn complete_in(&self, tx: &mut St::Tx) -> Result<(), StoreError> {
        self.set_fate(Fate::InStore);
        self.inner.store.complete_in(tx, &self.inner.held).await
    }
}

impl<St: TransactionalDurableStore> Lease<St> {
    /// Stores follow-up work in `tx`: a worker runs it if and only if the transaction commits. Work that stands under
    /// the same key already is not stored again, and the outcome says so.
    ///
    /// # Errors
    ///
    /// See [`TransactionalDurableStore::enqueue_in`].
    pub async fn enqueue_in(
        &self,
        tx: &mut St::Tx,
        enqueue: Enqueue,
    ) -> Result<EnqueueOutcome, StoreError> {
        self.inner.store.enqueue_in(tx, enqueue).await
    }
}

impl<St> Clone for Lease<St> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<St> fmt::Debug for Lease<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("held", &self.inner.held)
            .field("fate", &self.fate())
            .finish_non_exhaustive()
    }
}

/// What a handler may want to know of its attempt, whatever the store.
#[derive(Clone)]
pub struct Attempt {
    inner: Arc<About>,
    cancelled: watch::Receiver<bool>,
}

struct About {
    key: ClaimKey,
    delivery_id: DeliveryId,
    number: u32,
    fence: u64,
}

impl Attempt {
    /// The attempt of a claim, and the handle that tells it to stop.
    #[must_use]
    pub fn new(held: &Held) -> (Self, CancelAttempt) {
        let (sender, cancelled) = watch::channel(false);
        let inner = Arc::new(About {
            key: held.key.clone(),
            delivery_id: held.delivery_id.clone(),
            number: held.attempt,
            fence: held.fence,
        });
        (Self { inner, cancelled }, CancelAttempt(sender))
    }

    /// The delivery.
    #[must_use]
    pub fn delivery_id(&self) -> &DeliveryId {
        &self.inner.delivery_id
    }

    /// The claim key.
    #[must_use]
    pub fn key(&self) -> &ClaimKey {
        &self.inner.key
    }

    /// The number of this attempt, from 1. Attempts that were handed back do not count.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.number
    }

    /// A number that only grows from one claim of this key to the next. A system that remembers the highest it saw
    /// can refuse what a slow, outdated attempt still sends.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.inner.fence
    }

    /// A key for calls to other systems, the same in every attempt at this piece of work: 32 hexadecimal digits.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        use fmt::Write;
        let mut hash = Sha256::new();
        hash.update(self.inner.key.source().as_str());
        hash.update([0]);
        hash.update(self.inner.key.key());
        hash.finalize()
            .iter()
            .take(16)
            .fold(String::with_capacity(32), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            })
    }

    /// Whether the lease was lost, or could not be renewed and is about to run out: another attempt may begin.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow()
    }

    /// Waits until [`is_cancelled`](Self::is_cancelled); for ever if that never happens.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn cancelled(&self) {
        let mut cancelled = self.cancelled.clone();
        if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
            // The attempt is over and was never cancelled.
            std::future::pending::<()>().await;
        }
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("key", &self.inner.key)
            .field("delivery_id", &self.inner.delivery_id)
            .field("number", &self.inner.number)
            .field("fence", &self.inner.fence)
            .field("cancelled", &self.is_cancelled())
            .finish()
    }
}

/// Tells an [`Attempt`] to stop.
#[derive(Debug)]
pub struct CancelAttempt(watch::Sender<bool>);

impl CancelAttempt {
    /// Tells it.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }
}
