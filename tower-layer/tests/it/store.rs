//! A store whose operations can be watched, held up and broken, with transactions that are made of memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hookclaim::{
    Acquire, Acquisition, Announcer, AuditEntry, Backlog, Changes, Claim, ClaimKey, ClaimOutcome,
    DeliveryStore, DurableStore, Enqueue, EnqueueOutcome, Failed, Failure, Held, ListFilter,
    MemoryStore, Pruned, Record, Renewal, Retention, Retried, Retry, Stats, StoreError,
    StoreErrorKind, StoredRequest, TransactionalStore,
};

#[derive(Clone, Debug)]
pub(crate) struct Rigged {
    inner: MemoryStore,
    pub(crate) rig: Arc<Rig>,
}

#[derive(Debug, Default)]
pub(crate) struct Rig {
    pub(crate) calls: AtomicUsize,
    pub(crate) renewals: AtomicUsize,
    pub(crate) claim_down: AtomicBool,
    pub(crate) claim_hangs: AtomicBool,
    pub(crate) renew_down: AtomicBool,
    pub(crate) settle_down: AtomicBool,
    pub(crate) enqueue_down: AtomicBool,
    pub(crate) acquire_down: AtomicBool,
    pub(crate) keep_down: AtomicBool,
    /// Whether nobody is told of what is new.
    pub(crate) silent: AtomicBool,
    /// Whether every operation waits a moment before and after it takes place.
    pub(crate) slow: AtomicBool,
    /// Transactions that are open.
    open: AtomicUsize,
}

impl Rig {
    async fn step(&self, down: &AtomicBool) -> Result<(), StoreError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.moment().await;
        if down.load(Ordering::SeqCst) {
            return Err(StoreError::new(
                StoreErrorKind::Unavailable,
                "the store is down",
            ));
        }
        Ok(())
    }

    async fn moment(&self) {
        if self.slow.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    }

    fn locked(&self) -> Result<(), StoreError> {
        if self.open.load(Ordering::SeqCst) > 0 {
            return Err(StoreError::new(StoreErrorKind::Busy, "the row is locked"));
        }
        Ok(())
    }

    pub(crate) fn set(&self, switch: impl Fn(&Self) -> &AtomicBool, on: bool) {
        switch(self).store(on, Ordering::SeqCst);
    }
}

impl Rigged {
    pub(crate) fn new(inner: MemoryStore) -> Self {
        Self {
            inner,
            rig: Arc::default(),
        }
    }
}

impl DeliveryStore for Rigged {
    async fn claim(&self, claim: Claim) -> Result<ClaimOutcome, StoreError> {
        self.rig.step(&self.rig.claim_down).await?;
        if self.rig.claim_hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.inner.claim(claim).await
    }

    async fn claim_many(&self, claims: Vec<Claim>) -> Result<Vec<ClaimOutcome>, StoreError> {
        self.inner.claim_many(claims).await
    }

    async fn complete(&self, held: &Held) -> Result<(), StoreError> {
        self.rig.step(&self.rig.settle_down).await?;
        self.rig.locked()?;
        let result = self.inner.complete(held).await;
        self.rig.moment().await;
        result
    }

    async fn fail(&self, held: &Held, failure: &Failure) -> Result<Failed, StoreError> {
        self.rig.step(&self.rig.settle_down).await?;
        self.rig.locked()?;
        let result = self.inner.fail(held, failure).await;
        self.rig.moment().await;
        result
    }

    async fn renew(&self, held: &Held) -> Result<Renewal, StoreError> {
        self.rig.renewals.fetch_add(1, Ordering::SeqCst);
        self.rig.step(&self.rig.renew_down).await?;
        match self.rig.locked() {
            Ok(()) => self.inner.renew(held).await,
            Err(_) => Ok(Renewal::Busy),
        }
    }

    async fn release(&self, held: &Held, delay: Duration) -> Result<(), StoreError> {
        self.inner.release(held, delay).await
    }

    async fn keep(&self, held: &Held, request: StoredRequest) -> Result<bool, StoreError> {
        self.rig.step(&self.rig.keep_down).await?;
        self.rig.locked()?;
        self.inner.keep(held, request).await
    }

    async fn retry(&self, key: &ClaimKey, retry: &Retry) -> Result<Retried, StoreError> {
        self.inner.retry(key, retry).await
    }

    async fn audit(&self, key: &ClaimKey) -> Result<Vec<AuditEntry>, StoreError> {
        self.inner.audit(key).await
    }

    async fn inspect(&self, key: &ClaimKey) -> Result<Option<Record>, StoreError> {
        self.inner.inspect(key).await
    }

    async fn list(&self, filter: &ListFilter) -> Result<Vec<Record>, StoreError> {
        self.inner.list(filter).await
    }

    async fn prune(&self, retention: &Retention, limit: u32) -> Result<Pruned, StoreError> {
        self.inner.prune(retention, limit).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.inner.stats().await
    }
}

impl DurableStore for Rigged {
    async fn enqueue(&self, enqueue: Enqueue) -> Result<EnqueueOutcome, StoreError> {
        self.rig.step(&self.rig.enqueue_down).await?;
        self.inner.enqueue(enqueue).await
    }

    async fn acquire(&self, acquire: Acquire) -> Result<Acquisition, StoreError> {
        self.rig.step(&self.rig.acquire_down).await?;
        self.inner.acquire(acquire).await
    }

    fn changes(&self) -> Changes {
        if self.rig.silent.load(Ordering::SeqCst) {
            return Announcer::new().changes();
        }
        self.inner.changes()
    }

    async fn stored(&self, key: &ClaimKey) -> Result<Option<StoredRequest>, StoreError> {
        self.inner.stored(key).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.inner.backlog().await
    }
}

/// Locks every row while it is open, and is rolled back when it is dropped.
#[derive(Debug)]
pub(crate) struct Tx {
    completes: Option<Held>,
    rig: Arc<Rig>,
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.rig.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl TransactionalStore for Rigged {
    type Tx = Tx;

    async fn begin(&self) -> Result<Tx, StoreError> {
        self.rig.open.fetch_add(1, Ordering::SeqCst);
        Ok(Tx {
            completes: None,
            rig: Arc::clone(&self.rig),
        })
    }

    async fn fence_in(&self, _: &mut Tx, held: &Held) -> Result<(), StoreError> {
        // A renewal of a lease that is held changes nothing that these tests look at.
        self.inner.renew(held).await.map(drop)
    }

    async fn complete_in(&self, tx: &mut Tx, held: &Held) -> Result<(), StoreError> {
        self.inner.renew(held).await?;
        tx.completes = Some(held.clone());
        Ok(())
    }

    async fn commit(&self, tx: Tx) -> Result<(), StoreError> {
        match &tx.completes {
            Some(held) => self.inner.complete(held).await,
            None => Ok(()),
        }
    }

    async fn rollback(&self, _: Tx) {}
}
